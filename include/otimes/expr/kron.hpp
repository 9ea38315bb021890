// SPDX-License-Identifier: MIT
/// @file kron.hpp
/// The Kronecker product of any number of matrices, as a list of factors that is never multiplied out.
///
/// Mathematics. For F_k of P_k rows and Q_k columns, k = 1..N,
///
///     kron(F1, ..., FN)[i, j] = alpha * F1[i1, j1] * F2[i2, j2] * ... * FN[iN, jN]
///
///     i = ((i1 * P2 + i2) * P3 + ...) * PN + iN          the last factor's index runs fastest
///     j = ((j1 * Q2 + j2) * Q3 + ...) * QN + jN
///
/// Shape: rows = P1 * ... * PN, cols = Q1 * ... * QN; no factors: the 1 x 1 matrix (alpha).
///
/// Laws, each a test of tests/laws: kron(A, kron(B, C)) = kron(A, B, C); kron(A, B)^T = kron(A^T, B^T), the order of the
/// factors stays; kron(A, B) * kron(C, D) = kron(A C, B D) where the shapes fit; kron(1, A) = A; linear in each factor.
///
/// Scalar: the factors' common one; a complex kron may hold real factors. Lifetime: see leaf.hpp, per factor.
/// Cost: O(N) words, whatever the factors' sizes. Errors: shape_error where rows or columns exceed 2^63 - 1, or
/// there are more than `most_factors` factors; `identity(n)` refuses a negative n itself.
/// See also: product.hpp (X * K and K * X), docs/conventions.md (which kron is this).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <otimes/expr/braced.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

/// Factors of one Kronecker product, first to last.
using factor_list = inline_vector<leaf, 6>;

/// Factors that one Kronecker product may have. Beyond 126 all others are 1 x 1, by the extents; programs grow with the square.
inline constexpr std::size_t most_factors = 1024;

namespace detail {

enum class side : std::uint8_t { rows, cols };

inline std::int64_t extent_of(const leaf& factor, side which) {
    const matrix_view view = factor.view();
    return which == side::rows ? view.rows : view.cols;
}

/// The factors' extents on one side, for messages.
inline inline_vector<std::int64_t, 8> extents_of(const factor_list& factors, side which) {
    inline_vector<std::int64_t, 8> extents;
    for (const leaf& factor : factors) {
        extents.push_back(extent_of(factor, which));
    }
    return extents;
}

[[noreturn]] OTIMES_COLD inline void throw_extents_overflow(const factor_list& factors, side which,
                                                            std::size_t position) {
    const leaf& factor = factors[position - 1];
    throw shape_error("otimes: " + kron_text(factors.size()) + ": the product of the factors' " +
                      (which == side::rows ? "rows" : "columns") + " exceeds 2^63 - 1 at factor " +
                      std::to_string(position) + ", which is " + shape_text(factor.rows(), factor.cols()) +
                      ". Extents are 64-bit; use fewer or smaller factors.");
}

[[noreturn]] OTIMES_COLD inline void throw_too_many_factors() {
    throw shape_error("otimes: kron of more than " + std::to_string(most_factors) +
                      " factors: all but a few are 1 x 1. Multiply those into one number first.");
}

/// The factor at which the product of the extents overflows, counted from 1; 0: at none, since a zero extent makes the
/// product zero, however large the others are.
OTIMES_COLD inline std::size_t position_of_overflow(const factor_list& factors, side which) {
    std::int64_t product = 1;
    std::size_t position = 0;
    for (const leaf& factor : factors) {
        if (extent_of(factor, which) == 0) {
            return 0;
        }
    }
    for (const leaf& factor : factors) {
        ++position;
        if (!checked_multiply(product, extent_of(factor, which), product)) {
            return position;
        }
    }
    return 0;
}

/// Product of the factors' extents on one side. @throws shape_error where it does not fit in 64 bits.
OTIMES_OUT_OF_LINE inline std::int64_t extent_product(const factor_list& factors, side which) {
    std::int64_t product = 1;
    bool fits = true;
    for (const leaf& factor : factors) {
        fits = checked_multiply(product, extent_of(factor, which), product) && fits;
    }
    if (!fits) {
        if (const std::size_t position = position_of_overflow(factors, which)) {
            throw_extents_overflow(factors, which, position);
        }
        return 0;
    }
    return product;
}

}  // namespace detail

/// The factors and the scalar of a Kronecker product over `Scalar`; see the file comment.
template <class Scalar>
class kron_node {
public:
    using scalar_type = Scalar;

    kron_node() = default;

    /// Appends a factor on the right; `check_extents` follows once all are there.
    void append(const leaf& factor) { factors_.push_back(factor); }
    void append(leaf&& factor) { factors_.push_back(std::move(factor)); }
    /// @throws shape_error when the rows or the columns exceed 2^63 - 1, or there are more than `most_factors` factors.
    void check_extents() const {
        detail::extent_product(factors_, detail::side::rows);
        detail::extent_product(factors_, detail::side::cols);
        if (factors_.size() > most_factors) {
            detail::throw_too_many_factors();
        }
    }
    /// Appends all factors of another kron (flattening); its scalar multiplies this one's.
    template <class Other>
    void append(const kron_node<Other>& other) {
        if constexpr (std::is_same_v<Other, Scalar>) {
            factors_.append(other.factors());
        } else {
            for (leaf factor : other.factors()) {
                factor.set_real_elements(true);
                append(std::move(factor));
            }
        }
        alpha_ = alpha_ * Scalar(other.alpha());
        rewritten_.add(other.rewritten());
        complex_scale_ = complex_scale_ || other.complex_scale();
    }

    [[nodiscard]] std::int64_t rows() const { return detail::extent_product(factors_, detail::side::rows); }
    [[nodiscard]] std::int64_t cols() const { return detail::extent_product(factors_, detail::side::cols); }
    [[nodiscard]] const factor_list& factors() const noexcept { return factors_; }
    [[nodiscard]] const Scalar& alpha() const noexcept { return alpha_; }
    void set_alpha(Scalar alpha) { alpha_ = std::move(alpha); }
    /// The rules that made this node what it is.
    [[nodiscard]] const rewrites& rewritten() const noexcept { return rewritten_; }
    [[nodiscard]] rewrites& rewritten() noexcept { return rewritten_; }
    /// The scalar was multiplied by one of a complex type, whatever its value (product.hpp says what for).
    [[nodiscard]] bool complex_scale() const noexcept { return complex_scale_; }
    void set_complex_scale() noexcept { complex_scale_ = true; }

    /// kron(F1, ..)^T = kron(F1^T, ..): each factor is transposed, their order stays.
    void transpose() {
        for (leaf& factor : factors_) {
            factor.transpose();
        }
        rewritten_.add(rewrite::transpose_to_factors);
    }
    /// conj(kron(F1, ..)) = kron(conj F1, ..).
    void conjugate() {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            for (leaf& factor : factors_) {
                factor.conjugate();
            }
            alpha_ = detail::conjugate_of(alpha_);
        }
    }

    /// Element (i, j) by the formula above. Cost: O(N). @pre 0 <= i < rows, 0 <= j < cols.
    [[nodiscard]] Scalar coefficient(std::int64_t i, std::int64_t j) const {
        std::size_t k = factors_.size();
        Scalar product = Scalar(1);
        while (k-- > 0) {
            const leaf& factor = factors_[k];
            const matrix_view view = factor.view();
            product = element(factor, view, i % view.rows, j % view.cols) * product;
            i /= view.rows;
            j /= view.cols;
        }
        return alpha_ * product;
    }

    /// Element (i, j) of one factor.
    static Scalar element(const leaf& factor, const matrix_view& view, std::int64_t i, std::int64_t j) {
        if (factor.is_identity()) {
            return Scalar(i == j ? 1 : 0);
        }
        if (!factor.is_dense()) {
            return detail::structured_element<Scalar>(factor, view, i, j);
        }
        const std::int64_t at = i * view.row_stride + j * view.col_stride;
        if constexpr (detail::is_complex_scalar<Scalar>) {
            if (factor.real_elements()) {
                return Scalar(static_cast<const detail::real_of<Scalar>*>(view.data)[at]);
            }
            const Scalar value = static_cast<const Scalar*>(view.data)[at];
            return factor.conjugated() ? detail::conjugate_of(value) : value;
        } else {
            return static_cast<const Scalar*>(view.data)[at];
        }
    }

private:
    factor_list factors_;
    Scalar alpha_ = Scalar(1);
    rewrites rewritten_;
    bool complex_scale_ = false;
};

namespace detail {
/// `one` times itself, `count` factors of it; 0: the 1 x 1 one.
/// @throws shape_error a negative count, extents that overflow, more than `most_factors` factors
template <class Scalar>
kron_node<Scalar> power_of(const kron_node<Scalar>& one, std::int64_t count) {
    if (count < 0) {
        throw shape_error("otimes: kron_power(F, " + std::to_string(count) + "): the power must not be negative.");
    }
    kron_node<Scalar> node;
    for (std::int64_t k = 0; k < count && node.factors().size() <= most_factors; ++k) {
        node.append(one);
    }
    node.check_extents();
    return node;
}
}  // namespace detail

}  // namespace otimes

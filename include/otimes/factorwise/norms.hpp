// SPDX-License-Identifier: MIT
/// @file norms.hpp
/// Norms of one factor of any kind, all its entries as one vector, without forming it. They are all that norms of a kron need:
///
///     ||kron(F1, .., FN)||_p = prod_k ||F_k||_p        ||F||_p = (sum_ij |F[i, j]|^p)^(1/p), its largest |F[i, j]| for p = infinity
///
/// Cost: the factor's stored elements; O(1) for identities and permutations; r^2 (P + Q) for the Frobenius norm of a low-rank U V^T,
/// whose columns are orthogonalised; columns one by one, with memory for some of them, for other norms and products, and for functions.
/// Elements are scaled by powers of two, so that nothing overflows or vanishes on the way; sums are in double for float.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/factorwise/elements.hpp>
#include <otimes/factorwise/scaled_number.hpp>

namespace otimes {
namespace detail {

/// What inner products of `Scalar` are summed in.
template <class Scalar>
using sum_of =
    std::conditional_t<std::is_same_v<Scalar, float>, double,
                       std::conditional_t<std::is_same_v<Scalar, std::complex<float>>, std::complex<double>, Scalar>>;

/// The power of the maximum norm, as Eigen::Infinity.
inline constexpr int maximum_norm = -1;

/// (sum |x|^Power)^(1 / Power) of numbers that come one after another; scaled by a power of two near the largest one yet.
/// @pre floating-point numbers
template <class Scalar, int Power>
class running_norm {
public:
    using real = real_of<Scalar>;

    void add(const Scalar& x) {
        if constexpr (is_complex_scalar<Scalar> && Power == 2) {  // the squares of both parts
            add_size(std::abs(x.real()));
            add_size(std::abs(x.imag()));
        } else {
            add_size(std::abs(x));
        }
    }
    /// Behind a row or column: sums of sums lose less.
    void end_line() {
        sum_ += line_;
        line_ = 0;
    }
    [[nodiscard]] scaled_number<real> value() const {
        if (special_ != real(0)) {
            return scaled_number<real>(special_);
        }
        if constexpr (Power == maximum_norm) {
            return scaled_number<real>(largest_);
        } else {
            const sum_type total = sum_ + line_;
            const sum_type root = Power == 1   ? total
                                  : Power == 2 ? std::sqrt(total)
                                               : std::pow(total, sum_type(1) / sum_type(Power));
            return scaled_number<real>(static_cast<real>(root), total > sum_type(0) ? exponent_ : 0);
        }
    }

private:
    using sum_type = sum_of<real>;

    void add_size(real a) {
        if (!(a <= (std::numeric_limits<real>::max)())) {
            special_ += a;  // infinity or NaN
            return;
        }
        if constexpr (Power == maximum_norm) {
            largest_ = a > largest_ ? a : largest_;
        } else {
            if (a >= limit_) {
                rescale(a);
            }
            const sum_type part = sum_type(a) * sum_type(inverse_);
            line_ += Power == 1 ? part : Power == 2 ? part * part : std::pow(part, sum_type(Power));
        }
    }
    void rescale(real a) {
        if (a == real(0)) {  // the first
            return;
        }
        // 2^exponent and its inverse are normal numbers.
        const int exponent = std::clamp(std::ilogb(a), std::numeric_limits<real>::min_exponent,
                                        -std::numeric_limits<real>::min_exponent);
        const sum_type less = limit_ == real(0)
                                  ? sum_type(0)
                                  : std::ldexp(sum_type(1), (std::max)(Power * (exponent_ - exponent), -100000));
        sum_ *= less;
        line_ *= less;
        exponent_ = exponent;
        inverse_ = std::ldexp(real(1), -exponent);
        limit_ = std::ldexp(real(1), exponent + 1);
    }

    sum_type sum_ = 0;
    sum_type line_ = 0;
    real largest_ = 0;
    real special_ = 0;
    real limit_ = 0;    ///< 2^(exponent_ + 1): what is larger is scaled otherwise
    real inverse_ = 1;  ///< 2^-exponent_
    int exponent_ = 0;
};

/// R of a P x Q matrix with P >= Q = Q R, by columns, by modified Gram and Schmidt: as good a R as Householder's (Bjorck 1967).
/// `columns` are overwritten.
template <class Scalar>
std::vector<std::vector<Scalar>> triangle_of(std::vector<std::vector<Scalar>>& columns) {
    using std::sqrt;
    const std::size_t count = columns.size();
    std::vector<std::vector<Scalar>> r(count, std::vector<Scalar>(count, Scalar(0)));
    for (std::size_t j = 0; j < count; ++j) {
        real_of<Scalar> squares(0);
        for (const Scalar& x : columns[j]) {
            squares = squares + real_part_of(conjugate_of(x) * x);
        }
        const real_of<Scalar> size = sqrt(squares);
        r[j][j] = Scalar(size);
        if (!(size > real_of<Scalar>(0))) {
            continue;
        }
        for (Scalar& x : columns[j]) {
            x = x / Scalar(size);
        }
        for (std::size_t k = j + 1; k < count; ++k) {
            Scalar sum(0);
            for (std::size_t i = 0; i < columns[j].size(); ++i) {
                sum = sum + conjugate_of(columns[j][i]) * columns[k][i];
            }
            r[k][j] = sum;
            for (std::size_t i = 0; i < columns[j].size(); ++i) {
                columns[k][i] = columns[k][i] - sum * columns[j][i];
            }
        }
    }
    return r;
}

template <class Scalar, int Power>
scaled_number<real_of<Scalar>> factor_norm(const leaf& f);

/// The Frobenius norm of U * W, both of inner extent r below the others: that of R_U * R_W'^T, r x r.
template <class Scalar>
scaled_number<real_of<Scalar>> norm_of_thin_product(const leaf& u, const leaf& w) {
    using wide = sum_of<Scalar>;
    std::int64_t exponent = 0;
    std::vector<std::vector<wide>> triangles[2];
    for (const bool second : {false, true}) {
        leaf part = second ? w : u;
        if (second) {
            part.transpose();
        }
        const std::int64_t of_part = factor_norm<Scalar, maximum_norm>(part).exponent();
        exponent += of_part;
        std::vector<std::vector<wide>> columns(static_cast<std::size_t>(part.cols()));
        std::vector<Scalar> column;
        for (std::size_t j = 0; j < columns.size(); ++j) {
            write_column<Scalar>(part, static_cast<std::int64_t>(j), column);
            for (const Scalar& x : column) {
                columns[j].push_back(wide(scaled_number<Scalar>(x).value_over(of_part)));
            }
        }
        triangles[second ? 1 : 0] = triangle_of(columns);
    }
    running_norm<wide, 2> norm;
    const std::size_t inner = triangles[0].size();
    for (std::size_t i = 0; i < inner; ++i) {
        for (std::size_t j = 0; j < inner; ++j) {
            wide sum(0);  // sum_k R_U(i, k) R_W'(j, k); column k of R is triangles[.][k]
            for (std::size_t k = (std::max)(i, j); k < inner; ++k) {
                sum = sum + triangles[0][k][i] * triangles[1][k][j];
            }
            norm.add(sum);
        }
        norm.end_line();
    }
    const auto result = norm.value();
    return scaled_number<real_of<Scalar>>(static_cast<real_of<Scalar>>(result.value_over(result.exponent())),
                                          result.exponent() + exponent);
}

/// The `Power`-norm of all elements of a factor; see the file comment. @pre floating-point numbers
template <class Scalar, int Power>
scaled_number<real_of<Scalar>> factor_norm(const leaf& f) {
    using real = real_of<Scalar>;
    if (f.is_identity() || f.kind() == factor_kind::permutation) {
        const auto order = static_cast<real>(f.rows());
        return scaled_number<real>(Power == maximum_norm ? (order > real(0) ? real(1) : real(0))
                                   : Power == 1          ? order
                                   : Power == 2          ? std::sqrt(order)
                                                         : std::pow(order, real(1) / real(Power)));
    }
    running_norm<Scalar, Power> norm;
    if (f.kind() != factor_kind::low_rank) {
        for_each_element<Scalar>(
            f, [&norm](const Scalar& value) { norm.add(value); }, [&norm] { norm.end_line(); });
        return norm.value();
    }
    const std::vector<leaf> parts = product_factors(f);
    if (Power == 2 && parts.size() == 2 && parts[0].rows() / 2 >= parts[0].cols() &&
        parts[1].cols() / 2 >= parts[1].rows() && !has_few_elements(parts[0]) && !has_few_elements(parts[1])) {
        return norm_of_thin_product<Scalar>(parts[0], parts[1]);
    }
    std::vector<Scalar> column;
    std::vector<Scalar> next;
    std::vector<Scalar> of_part;
    for (std::int64_t j = 0; j < f.cols(); ++j) {
        write_column<Scalar>(parts, j, column, next, of_part);
        for (const Scalar& value : column) {
            norm.add(value);
        }
        norm.end_line();
    }
    return norm.value();
}

}  // namespace detail
}  // namespace otimes

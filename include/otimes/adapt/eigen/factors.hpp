// SPDX-License-Identifier: MIT
/// @file factors.hpp
/// What decompositions ask of a factor: whether it is an identity, a permutation or a diagonal, of which every decomposition is known,
/// or a dense copy of it, with finite elements and of a size that the factor's own explains.
///
/// Memory: a diagonal takes its elements. A dense copy of a factor that stores less than all its elements (sparse, low-rank,
/// Toeplitz, a function, a permutation) may take 64 MiB, or 12 times what the factor stores where that is more; budget_error beyond.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/factorwise/inner_products.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class Scalar>
using dense_vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

/// A matrix as an owned factor.
template <class Scalar>
leaf owned_factor(dense_matrix<Scalar> m) {
    return owned_leaf(std::move(m));
}
/// A diagonal as an owned factor.
template <class Scalar>
leaf owned_diagonal(dense_vector<Scalar> d) {
    enable_structure<Scalar>();
    auto kept = std::make_shared<const dense_vector<Scalar>>(std::move(d));
    const void* const data = kept->data();
    const std::int64_t size = kept->size();
    return detail::diagonal_leaf(data, size, 1, std::move(kept));
}

/// No element is NaN or infinite. With -ffast-math Eigen's own allFinite() may be true of anything, and its decompositions of NaN do not end.
template <class Derived>
bool all_finite(const Eigen::MatrixBase<Derived>& m) {
    for (Eigen::Index j = 0; j < m.cols(); ++j) {
        for (Eigen::Index i = 0; i < m.rows(); ++i) {
            const typename Derived::Scalar element = m(i, j);
            if (!detail::is_finite(element)) {
                return false;
            }
        }
    }
    return true;
}

/// The power of two near the largest element of m; its inverse is a normal number of the type, too. 0 for zero matrices, and where an
/// element is infinite.
template <class Derived>
int exponent_of_largest(const Eigen::MatrixBase<Derived>& m) {
    using real = typename Eigen::NumTraits<typename Derived::Scalar>::Real;
    if constexpr (std::is_floating_point_v<real>) {
        real largest(0);
        for (Eigen::Index j = 0; j < m.cols(); ++j) {
            for (Eigen::Index i = 0; i < m.rows(); ++i) {
                largest = (std::max)(
                    {largest, std::abs(Eigen::numext::real(m(i, j))), std::abs(Eigen::numext::imag(m(i, j)))});
            }
        }
        if (largest > real(0) && detail::is_finite(largest)) {
            constexpr int most = std::numeric_limits<real>::max_exponent - 2;
            return std::clamp(std::ilogb(largest), -most, most);
        }
    }
    return 0;
}

/// A matrix as `matrix` * 2^exponent, without roundings, with elements up to about 1: Eigen's decompositions add up squares of elements and
/// products with conjugates, which must neither overflow nor vanish.
template <class Scalar>
struct scaled_matrix {
    using real = detail::real_of<Scalar>;
    dense_matrix<Scalar> matrix;
    int exponent = 0;

    explicit scaled_matrix(dense_matrix<Scalar> m) : matrix(std::move(m)), exponent(exponent_of_largest(matrix)) {
        if (exponent != 0) {
            matrix *= power(-1);
        }
    }
    /// 2^(sign * exponent)
    [[nodiscard]] Scalar power(int sign = 1) const {
        if constexpr (std::is_floating_point_v<real>) {
            return Scalar(std::ldexp(real(1), sign * exponent));
        } else {
            return Scalar(1);
        }
    }
};

/// Bytes of the elements that a factor stores; each that lies in memory several times counts once.
template <class Scalar>
std::int64_t stored_bytes(const leaf& f) {
    const matrix_view view = f.view();
    std::int64_t elements = 0;
    switch (f.kind()) {
        case factor_kind::identity:
        case factor_kind::callback: break;
        case factor_kind::permutation:
        case factor_kind::diagonal: elements = view.rows; break;
        case factor_kind::sparse: {
            const sparse_elements s = static_cast<const sparse_operand*>(view.data)->elements();
            for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
                elements += s.end(outer) - s.begin(outer);
            }
            break;
        }
        case factor_kind::low_rank: {
            std::int64_t bytes = 0;
            for (const leaf& part : detail::product_factors(f)) {
                bytes += stored_bytes<Scalar>(part);
            }
            return bytes;
        }
        default: {
            const std::int64_t span =
                view.rows == 0 || view.cols == 0
                    ? 0
                    : (view.rows - 1) * std::abs(view.row_stride) + (view.cols - 1) * std::abs(view.col_stride) + 1;
            elements = (std::min)(saturating_multiply(view.rows, view.cols), span);
        }
    }
    return elements * static_cast<std::int64_t>(sizeof(Scalar));
}

[[noreturn]] OTIMES_COLD inline void throw_too_dense(const std::string& what, std::size_t position, std::int64_t rows,
                                                     std::int64_t cols, std::int64_t bytes) {
    throw budget_error(
        "otimes: " + what + ": factor " + std::to_string(position) + ", " + detail::shape_text(rows, cols) +
            ", would be formed as a dense matrix of " + (bytes > 0 ? std::to_string(bytes) : "more than 2^63 - 1") +
            " bytes, more than 64 MiB and 12 times what it stores. Identities, diagonals and permutations keep "
            "their structure; of others take smaller factors, or iterate.",
        bytes);
}
[[noreturn]] OTIMES_COLD inline void throw_not_finite(const std::string& what, std::size_t position, std::int64_t rows,
                                                      std::int64_t cols) {
    throw singular_error("otimes: " + what + ": factor " + std::to_string(position) + ", " +
                         detail::shape_text(rows, cols) +
                         ", has an element that is NaN or infinite; such a matrix has no decomposition.");
}

/// What is known of a factor without a decomposition.
enum class factor_form : std::uint8_t { identity, permutation, diagonal, other };

/// A factor as decompositions read it; see the file comment. `what` names the decomposition in errors.
template <class Scalar>
class factor_reader {
public:
    factor_reader(const leaf& f, std::size_t position, std::string what)
        : source_(f), position_(position), what_(std::move(what)) {
        find_form();
    }

    [[nodiscard]] const leaf& source() const noexcept { return source_; }
    [[nodiscard]] factor_form form() const noexcept { return form_; }
    [[nodiscard]] std::int64_t rows() const { return source_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return source_.cols(); }
    [[nodiscard]] bool empty() const { return rows() == 0 || cols() == 0; }
    /// An identity or a permutation: unitary, of ones.
    [[nodiscard]] bool moves_only() const noexcept {
        return form_ == factor_form::identity || form_ == factor_form::permutation;
    }
    /// The elements of a diagonal.
    [[nodiscard]] const dense_vector<Scalar>& diagonal() const noexcept { return diagonal_; }
    /// All elements, whatever the form. @throws budget_error
    [[nodiscard]] dense_matrix<Scalar> dense() const {
        const std::int64_t stored = stored_bytes<Scalar>(source_);
        std::int64_t bytes = 0;
        const bool addressable = checked_multiply(rows(), cols(), bytes) &&
                                 checked_multiply(bytes, static_cast<std::int64_t>(sizeof(Scalar)), bytes);
        if (!addressable) {
            throw_too_dense(what_, position_, rows(), cols(), 0);
        }
        if (bytes > always_formed && bytes / most_of_stored > stored) {
            throw_too_dense(what_, position_, rows(), cols(), bytes);
        }
        return kron_expr<Scalar>::dense_factor(source_);
    }
    /// The same for algorithms that do not end, or give nothing, where an element is NaN or infinite.
    /// @throws budget_error, singular_error
    [[nodiscard]] dense_matrix<Scalar> finite() const {
        dense_matrix<Scalar> result = dense();
        if (!all_finite(result)) {
            throw_not_finite(what_, position_, rows(), cols());
        }
        return result;
    }
    /// The lower triangle, with zeros above, of what may have anything there. @throws budget_error, singular_error
    [[nodiscard]] dense_matrix<Scalar> finite_lower_triangle() const {
        dense_matrix<Scalar> result = dense().template triangularView<Eigen::Lower>();
        if (!all_finite(result)) {
            throw_not_finite(what_, position_, rows(), cols());
        }
        return result;
    }
    /// @throws singular_error a diagonal with an element that is NaN or infinite
    [[nodiscard]] const dense_vector<Scalar>& finite_diagonal() const {
        if (!all_finite(diagonal_)) {
            throw_not_finite(what_, position_, rows(), cols());
        }
        return diagonal_;
    }

private:
    static constexpr std::int64_t always_formed = std::int64_t{64} << 20;
    static constexpr std::int64_t most_of_stored = 12;

    void find_form() {
        const matrix_view view = source_.view();
        if (source_.is_identity()) {
            form_ = factor_form::identity;
        } else if (source_.kind() == factor_kind::permutation) {
            const auto* const to = static_cast<const std::int32_t*>(view.data);
            bool stays = true;
            for (std::int64_t i = 0; i < view.rows && stays; ++i) {
                stays = to[i] == i;
            }
            form_ = stays ? factor_form::identity : factor_form::permutation;
        } else if (source_.kind() == factor_kind::diagonal) {
            read_diagonal();
        } else if (source_.kind() == factor_kind::sparse && view.rows == view.cols) {
            bool is_diagonal = true;
            detail::for_each_stored<Scalar>(source_, [&is_diagonal](std::int64_t i, std::int64_t j, const Scalar&) {
                is_diagonal = is_diagonal && i == j;
            });
            if (is_diagonal) {
                read_diagonal();
            }
        }
    }
    void read_diagonal() {
        form_ = factor_form::diagonal;
        diagonal_ = dense_vector<Scalar>::Zero(static_cast<Eigen::Index>(source_.rows()));
        detail::for_each_stored<Scalar>(source_, [this](std::int64_t i, std::int64_t, const Scalar& value) {
            diagonal_(static_cast<Eigen::Index>(i)) += value;
        });
    }

    leaf source_;
    std::size_t position_;
    std::string what_;
    factor_form form_ = factor_form::other;
    dense_vector<Scalar> diagonal_;
};

/// use(reader) for each factor of a kron.
template <class Scalar, class Use>
void for_each_factor(const kron_expr<Scalar>& k, const std::string& what, const Use& use) {
    std::size_t position = 0;
    for (const leaf& f : k.node().factors()) {
        use(factor_reader<Scalar>(f, ++position, what));
    }
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

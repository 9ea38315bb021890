// SPDX-License-Identifier: MIT
/// @file row_pairs.hpp
/// The product of two row-wise products, and sums of such:
///
///     face_split(A, B) * khatri_rao(C, D)      (A C) and (B D) multiplied entry by entry      m x n: kernels of samples
///     khatri_rao(A, B) * face_split(C, D)      sum over the samples of outer products          L x L: features against features
///     .. + s * MatrixXd::Identity(n, n)        either of them, shifted
///
/// In the first order, where the factors meet one by one, it becomes a matrix where it is assigned to one. In both it is applied to a matrix, and
/// is an operator beside others: `face_split(A, B).transpose() * face_split(A, B) + s * identity()` (applied_sums.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/applied.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/row_products.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// scale1 * R1 * S1 + scale2 * R2 * S2 + .. + shift * I: an operator. Shape: rows() x cols(). The row-wise products share their factors with those
/// that it was made of. Applied to c columns, each term takes the cheaper of
///
///     R * (S * X)         (rows(R) + cols(S)) cols(R) c           a matrix of cols(R) rows and c columns
///     (R * S) * X         rows(R) cols(S) (q1 + q2 + .. + c)      where the factors meet, q their common extents; some rows of R * S at a
///                                                                 time, of no more elements than X and the result
template <class ScalarType>
class row_pairs {
public:
    using Scalar = ScalarType;
    using row_product = row_product_expr<Scalar>;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

    /// first * second. @throws shape_error cols(first) != rows(second)
    row_pairs(row_product first, row_product second) {
        if (first.cols() != second.rows()) {
            throw shape_error("otimes: product of row-wise products: the first is " +
                              detail::shape_text(first.rows(), first.cols()) + ", the second is " +
                              detail::shape_text(second.rows(), second.cols()) +
                              ". The columns of the first must equal the rows of the second.");
        }
        terms_.push_back({std::move(first), std::move(second), Scalar(1)});
    }
    [[nodiscard]] Eigen::Index rows() const { return terms_.front().first.rows(); }
    [[nodiscard]] Eigen::Index cols() const { return terms_.front().second.cols(); }
    /// Is each term an entry-by-entry product of matrices?
    [[nodiscard]] bool is_entrywise() const {
        return std::all_of(terms_.begin(), terms_.end(), [](const term& t) { return meets(t); });
    }
    [[nodiscard]] row_pairs transpose() const {
        row_pairs result(*this);
        for (term& t : result.terms_) {
            t = {t.second.transpose(), t.first.transpose(), t.scale};
        }
        return result;
    }
    [[nodiscard]] row_pairs conjugate() const {
        row_pairs result(*this);
        for (term& t : result.terms_) {
            t = {t.first.conjugate(), t.second.conjugate(), detail::conjugate_of(t.scale)};
        }
        result.shift_ = detail::conjugate_of(shift_);
        return result;
    }
    [[nodiscard]] row_pairs scaled(const Scalar& by) const {
        row_pairs result(*this);
        for (term& t : result.terms_) {
            t.scale *= by;
        }
        result.shift_ *= by;
        return result;
    }
    /// With `by` more on the diagonal. @throws shape_error not square, or of another order (where that is not negative)
    [[nodiscard]] row_pairs shifted(const Scalar& by, std::int64_t order) const {
        detail::check_shift(rows(), cols(), order);
        row_pairs result(*this);
        result.shift_ += by;
        return result;
    }
    /// @throws shape_error other shapes
    [[nodiscard]] row_pairs plus(const row_pairs& other) const {
        if (rows() != other.rows() || cols() != other.cols()) {
            throw shape_error("otimes: sum of products of row-wise products: the first term is " +
                              detail::shape_text(rows(), cols()) + ", the second " +
                              detail::shape_text(other.rows(), other.cols()) +
                              ". Terms of a sum must have equal shapes.");
        }
        row_pairs result(*this);
        result.terms_.insert(result.terms_.end(), other.terms_.begin(), other.terms_.end());
        result.shift_ += other.shift_;
        return result;
    }
    /// The same over another scalar.
    template <class Other>
    [[nodiscard]] row_pairs<Other> cast() const {
        if constexpr (std::is_same_v<Other, Scalar>) {
            return *this;
        } else {
            std::vector<row_pairs<Other>> parts;
            for (const term& t : terms_) {
                parts.push_back(row_pairs<Other>(t.first.template cast<Other>(), t.second.template cast<Other>())
                                    .scaled(Other(t.scale)));
            }
            row_pairs<Other> result = parts.front();
            for (std::size_t k = 1; k < parts.size(); ++k) {
                result = result.plus(parts[k]);
            }
            return shift_ == Scalar(0) ? result : result.shifted(Other(shift_), -1);
        }
    }
    /// y (+)= scale * this as a matrix, some rows at a time. @pre is_entrywise()
    template <class Destination>
    void write(Destination& y, bool add, const Scalar& scale) const {
        if (!add) {
            y.setZero();
        }
        DenseMatrix block;
        DenseMatrix part;
        const Eigen::Index together = rows_together(Eigen::Index(1) << 16);
        for (const term& t : terms_) {
            for (Eigen::Index i = 0; i < rows(); i += together) {
                const Eigen::Index count = (std::min)(together, rows() - i);
                entrywise(t, i, count, block, part);
                y.middleRows(i, count) += (scale * t.scale) * block;
            }
        }
        if (shift_ != Scalar(0)) {
            y.diagonal().array() += scale * shift_;
        }
    }

    /// @name What eigen::applied asks of an operator.
    /// @{
    template <bool FromLeft>
    void check_operand(std::int64_t x_rows, std::int64_t x_cols) const {
        if (FromLeft ? x_rows != cols() : x_cols != rows()) {
            throw shape_error(
                "otimes: " +
                std::string(FromLeft ? "product of row-wise products * X" : "X * product of row-wise products") +
                ": X is " + detail::shape_text(x_rows, x_cols) + ", but the product is " +
                detail::shape_text(rows(), cols()) + ".");
        }
    }
    [[nodiscard]] static bool factors_read(const matrix_view&, std::int64_t) { return false; }
    template <bool FromLeft, class Destination, class Matrix>
    void apply(Destination& y, const Matrix& x, bool add, const Scalar& scale) const {
        if constexpr (FromLeft) {
            if (!add) {
                y.setZero();
            }
            for (const term& t : terms_) {
                add_times(t, y, x, scale * t.scale);
            }
            if (shift_ != Scalar(0)) {
                y += (scale * shift_) * x.topRows(y.rows());  // compiled for what is not square, too
            }
        } else {
            auto y_transposed = y.transpose();
            transpose().template apply<true>(y_transposed, x.transpose(), add, scale);
        }
    }
    /// @}

    /// @name What eigen::operator_leaf asks of an operator.
    /// @{
    static void check() {}
    [[nodiscard]] static bool reads(const strided_memory&) { return false; }
    [[nodiscard]] std::int64_t multiply_adds() const {
        double sum = shift_ != Scalar(0) ? static_cast<double>(rows()) : 0;
        for (const term& t : terms_) {
            sum += meets(t) ? (std::min)(entrywise_cost(t, 1), sequential_cost(t, 1)) : sequential_cost(t, 1);
        }
        return static_cast<std::int64_t>((std::min)(sum, 0x1p62));
    }
    /// Entry (i, j). Cost: the factors' common extents where they meet; else the number of samples (features) between them.
    [[nodiscard]] Scalar entry(Eigen::Index i, Eigen::Index j) const {
        Scalar sum = i == j ? shift_ : Scalar(0);
        for (const term& t : terms_) {
            Scalar value(t.scale);
            if (meets(t)) {
                for (std::size_t k = 0; k < t.first.factors().size(); ++k) {
                    const DenseMatrix& f = t.first.factors()[k];
                    const DenseMatrix& g = t.second.factors()[k];
                    Scalar of_factor(0);
                    for (Eigen::Index p = 0; p < f.cols(); ++p) {
                        of_factor += f(i, p) * g(j, p);
                    }
                    value *= of_factor;
                }
            } else {
                value *=
                    t.first.transposed() && !t.second.transposed() ? over_samples(t, i, j) : over_features(t, i, j);
            }
            sum += value;
        }
        return sum;
    }
    /// @}

private:
    struct term {
        row_product first;
        row_product second;
        Scalar scale;
    };

    /// face_split * khatri_rao with as many columns of each factor as rows of the other's.
    static bool meets(const term& t) {
        bool result =
            !t.first.transposed() && t.second.transposed() && t.first.factors().size() == t.second.factors().size();
        for (std::size_t k = 0; result && k < t.first.factors().size(); ++k) {
            result = t.first.factors()[k].cols() == t.second.factors()[k].cols();
        }
        return result;
    }
    /// Entry (i, j) of khatri_rao * face_split, less its scale: a column of each factor, whose elements for all samples lie together.
    static Scalar over_samples(const term& t, Eigen::Index i, Eigen::Index j) {
        inline_vector<const Scalar*, 8> columns;
        for (const row_product* r : {&t.first, &t.second}) {
            Eigen::Index rest = r == &t.first ? i : j;
            for (std::size_t k = r->factors().size(); k-- > 0;) {
                const DenseMatrix& f = r->factors()[k];
                columns.push_back(f.data() + (rest % f.cols()) * f.rows());
                rest /= f.cols();
            }
        }
        Scalar sum(0);
        for (Eigen::Index p = 0; p < t.first.cols(); ++p) {
            Scalar product = columns[0][p];
            for (std::size_t k = 1; k < columns.size(); ++k) {
                product *= columns[k][p];
            }
            sum += product;
        }
        return sum;
    }
    /// The same of any other two.
    static Scalar over_features(const term& t, Eigen::Index i, Eigen::Index j) {
        Scalar sum(0);
        for (Eigen::Index p = 0; p < t.first.cols(); ++p) {
            sum += t.first.entry(i, p) * t.second.entry(p, j);
        }
        return sum;
    }
    static double entrywise_cost(const term& t, Eigen::Index columns) {
        auto each = static_cast<double>(columns);
        for (const DenseMatrix& f : t.first.factors()) {
            each += static_cast<double>(f.cols());
        }
        return static_cast<double>(t.first.rows()) * static_cast<double>(t.second.cols()) * each;
    }
    static double sequential_cost(const term& t, Eigen::Index columns) {
        return (static_cast<double>(t.first.rows()) + static_cast<double>(t.second.cols())) *
               static_cast<double>(t.first.cols()) * static_cast<double>(columns);
    }
    /// Rows of a matrix of cols() columns that have about that many elements.
    [[nodiscard]] Eigen::Index rows_together(Eigen::Index elements) const {
        return (std::max)(Eigen::Index(1), elements / (std::max)(cols(), Eigen::Index(1)));
    }
    /// block = rows i, .., i + count - 1 of a term that meets, less its scale; `part` is memory for it.
    static void entrywise(const term& t, Eigen::Index i, Eigen::Index count, DenseMatrix& block, DenseMatrix& part) {
        for (std::size_t k = 0; k < t.first.factors().size(); ++k) {
            const auto f = t.first.factors()[k].middleRows(i, count);
            const DenseMatrix& g = t.second.factors()[k];
            if (k == 0) {
                block.noalias() = f * g.transpose();
            } else {
                part.noalias() = f * g.transpose();
                block.array() *= part.array();
            }
        }
    }
    template <class Destination, class Matrix>
    void add_times(const term& t, Destination& y, const Matrix& x, const Scalar& scale) const {
        if (!meets(t) || sequential_cost(t, x.cols()) <= entrywise_cost(t, x.cols())) {
            DenseMatrix between(t.second.rows(), x.cols());
            t.second.template apply<true>(between, x, false, Scalar(1));
            t.first.template apply<true>(y, between, true, scale);
            return;
        }
        DenseMatrix block;
        DenseMatrix part;
        DenseMatrix product;
        const Eigen::Ref<const DenseMatrix> by_columns(x);  // one matrix product to compile, for any kind of x and y
        const Eigen::Index together = rows_together(x.size() + y.size());
        for (Eigen::Index i = 0; i < rows(); i += together) {
            const Eigen::Index count = (std::min)(together, rows() - i);
            entrywise(t, i, count, block, part);
            product.noalias() = block * by_columns;
            y.middleRows(i, count) += scale * product;
        }
    }

    std::vector<term> terms_;
    Scalar shift_ = Scalar(0);
};

/// Those as an expression of Eigen, so that what is a matrix is used as one.
template <class Scalar>
struct row_pairs_node {
    using scalar_type = Scalar;
    static constexpr int rows_at_compile_time = Eigen::Dynamic;
    static constexpr int cols_at_compile_time = Eigen::Dynamic;
    static constexpr bool row_major = false;
    static constexpr bool holds_dense_term = false;

    row_pairs<Scalar> op;

    [[nodiscard]] std::int64_t rows() const { return op.rows(); }
    [[nodiscard]] std::int64_t cols() const { return op.cols(); }
    /// Before it becomes a matrix. @throws unsupported_error
    void check() const {
        if (!op.is_entrywise()) {
            throw unsupported_error(
                "otimes: product of row-wise products as a matrix: face_split(A, B) * khatri_rao(C, D) is one where "
                "A has as many columns as C has rows, B as D; in the other order it would need all entries of both. "
                "It is applied, (R * S) * X, and is an operator beside others, R * S + s * otimes::identity(); or "
                "form one of the two by toDenseMatrix().");
        }
    }
    [[nodiscard]] static bool reads(const matrix_view&, std::int64_t) { return false; }
    template <class Destination>
    void evaluate(Destination& destination, bool add, const Scalar& scale) const {
        op.write(destination, add, scale);
    }
    template <class Kept>
    void lower(lowering<Scalar>& low, const matrix_view& y, bool add, const Scalar& scale, Kept& kept) const {
        auto value = std::make_shared<dense_matrix<Scalar>>(rows(), cols());
        evaluate(*value, false, Scalar(1));
        low.add_dense(view_of(*value), y, scale, add);
        low.target().noted.operator_apart = true;
        kept.push_back(std::shared_ptr<const void>(std::move(value)));
    }
    /// Entry (i, j), at the cost of row_pairs::entry. @throws shape_error outside
    [[nodiscard]] Scalar coefficient(Eigen::Index i, Eigen::Index j) const {
        if (i < 0 || j < 0 || i >= op.rows() || j >= op.cols()) {
            throw shape_error("otimes: (R * S)(" + std::to_string(i) + ", " + std::to_string(j) +
                              ") of row-wise products R and S: it is " + detail::shape_text(rows(), cols()) + ".");
        }
        return op.entry(i, j);
    }
    [[nodiscard]] row_pairs_node transposed() const { return {op.transpose()}; }
    [[nodiscard]] row_pairs_node conjugated() const { return {op.conjugate()}; }
    /// As an operator; defined in applied_sums.hpp.
    [[nodiscard]] sum_expr<Scalar> as_operator() const;
};

template <class Scalar>
lazy<row_pairs_node<Scalar>> as_expression(row_pairs<Scalar> op) {
    return lazy<row_pairs_node<Scalar>>(row_pairs_node<Scalar>{std::move(op)});
}

}  // namespace eigen

/// @name R * S of row-wise products: face_split(A, B) * khatri_rao(C, D) is the matrix (A * C).cwiseProduct(B * D), R.transpose() * R the Gram matrix
/// of a khatri_rao. In any order applied to a matrix, and an operator. @throws shape_error; unsupported_error where a product in the other
/// order becomes a matrix
/// @{
template <class First, class Second>
requires detail::scalars_mix<First, Second>
[[nodiscard]] auto operator*(const row_product_expr<First>& a, const row_product_expr<Second>& b) {
    using scalar = detail::common_scalar<First, Second>;
    if constexpr (std::is_same_v<First, scalar> && std::is_same_v<Second, scalar>) {
        return eigen::as_expression(eigen::row_pairs<scalar>(a, b));
    } else {
        return eigen::as_expression(eigen::row_pairs<scalar>(a.template cast<scalar>(), b.template cast<scalar>()));
    }
}
/// (R * S) * X, X * (R * S).
template <class Scalar, class Matrix>
requires eigen::dense<Matrix>
[[nodiscard]] auto operator*(const lazy<eigen::row_pairs_node<Scalar>>& p, Matrix&& x) {
    return eigen::apply<true>(p.node().op, std::forward<Matrix>(x));
}
template <class Matrix, class Scalar>
requires(eigen::dense<Matrix> && !eigen::is_row_pairs<eigen::bare<Matrix>>) [[nodiscard]] auto operator*(
    Matrix&& x, const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return eigen::apply<false>(p.node().op, std::forward<Matrix>(x));
}
/// Multiples and sums stay what they are.
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const lazy<eigen::row_pairs_node<Scalar>>& p, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    return eigen::as_expression(p.node().op.template cast<scalar>().scaled(detail::amount_as<scalar>(amount)));
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const lazy<eigen::row_pairs_node<Scalar>>& p) { return p * amount; }
template <class Scalar>
[[nodiscard]] auto operator-(const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return p * Scalar(-1);
}
template <class First, class Second>
requires detail::scalars_mix<First, Second>
[[nodiscard]] auto operator+(const lazy<eigen::row_pairs_node<First>>& a,
                             const lazy<eigen::row_pairs_node<Second>>& b) {
    using scalar = detail::common_scalar<First, Second>;
    return eigen::as_expression(a.node().op.template cast<scalar>().plus(b.node().op.template cast<scalar>()));
}
template <class First, class Second>
requires detail::scalars_mix<First, Second>
[[nodiscard]] auto operator-(const lazy<eigen::row_pairs_node<First>>& a,
                             const lazy<eigen::row_pairs_node<Second>>& b) {
    return a + -b;
}
/// R * S + s * MatrixXd::Identity(n, n), likewise: a matrix where R * S is one, and an operator. @throws shape_error
template <class Scalar, class Identity>
requires eigen::row_pairs_and_shift<lazy<eigen::row_pairs_node<Scalar>>, Identity>
[[nodiscard]] auto operator+(const lazy<eigen::row_pairs_node<Scalar>>& p, const Identity& identity) {
    const auto shift = eigen::shift_of(identity);
    using scalar = detail::scaled_scalar<eigen::bare<decltype(shift.scale)>, Scalar>;
    return eigen::as_expression(
        p.node().op.template cast<scalar>().shifted(detail::amount_as<scalar>(shift.scale), shift.order));
}
template <class Identity, class Scalar>
requires eigen::row_pairs_and_shift<lazy<eigen::row_pairs_node<Scalar>>, Identity>
[[nodiscard]] auto operator+(const Identity& identity, const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return p + identity;
}
template <class Scalar, class Identity>
requires eigen::row_pairs_and_shift<lazy<eigen::row_pairs_node<Scalar>>, Identity>
[[nodiscard]] auto operator-(const lazy<eigen::row_pairs_node<Scalar>>& p, const Identity& identity) {
    return -(-p + identity);
}
template <class Identity, class Scalar>
requires eigen::row_pairs_and_shift<lazy<eigen::row_pairs_node<Scalar>>, Identity>
[[nodiscard]] auto operator-(const Identity& identity, const lazy<eigen::row_pairs_node<Scalar>>& p) {
    return -p + identity;
}
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

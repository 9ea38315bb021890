// SPDX-License-Identifier: MIT
/// @file row_products.hpp
/// Products of matrices row by row and column by column, and selected rows and columns of a Kronecker product.
///
///     face_split(A, B):  row i is kron(A.row(i), B.row(i))         m x (p q)      (transposed Khatri-Rao, "row-wise")
///     khatri_rao(A, B):  column j is kron(A.col(j), B.col(j))      (p q) x n      (column-wise); any number of factors
///     K(rows, cols), selected(K, rows, cols):  K(rows[i], cols[j]) repeated and unordered indices are allowed
///
/// None of them is formed. With m rows, an inner extent L and c columns of X, face_split(..) * X costs 2 m L c flops, as the
/// formed matrix would, in L / q matrix products with B and m c elements of memory. selected(K, rows, all) is the face-splitting
/// product of the factors' rows; with columns selected too, the cheaper of that on a scattered X and of single elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/applied.hpp>
#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/operator_base.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/index_list.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// face_split of any number of matrices, or its transpose (khatri_rao). The matrices are held by value.
template <class ScalarType>
class row_product_expr : public eigen::formed_on_request {
public:
    using Scalar = ScalarType;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

    row_product_expr(std::vector<DenseMatrix> factors, bool transposed)
        : factors_(std::move(factors)), transposed_(transposed) {
        for (std::size_t k = 0; k < factors_.size(); ++k) {
            if (factors_[k].rows() != factors_.front().rows()) {
                const auto text = [this](const DenseMatrix& m) {
                    return transposed_ ? detail::shape_text(m.cols(), m.rows())
                                       : detail::shape_text(m.rows(), m.cols());
                };
                throw shape_error("otimes: " + std::string(transposed_ ? "khatri_rao" : "face_split") +
                                  ": factor 1 is " + text(factors_.front()) + ", factor " + std::to_string(k + 1) +
                                  " is " + text(factors_[k]) + ". All factors must have equally many " +
                                  (transposed_ ? "columns." : "rows."));
            }
            std::int64_t width = 0;
            if (!checked_multiply(width_, factors_[k].cols(), width)) {
                throw shape_error("otimes: " + std::string(transposed_ ? "khatri_rao" : "face_split") +
                                  ": the product of the " + (transposed_ ? "rows" : "columns") +
                                  " exceeds 2^63 - 1 at factor " + std::to_string(k + 1) +
                                  ". Use fewer or smaller factors.");
            }
            width_ = eigen::index_of(width);
        }
    }
    [[nodiscard]] Eigen::Index rows() const { return transposed_ ? width_ : factors_.front().rows(); }
    [[nodiscard]] Eigen::Index cols() const { return transposed_ ? factors_.front().rows() : width_; }
    /// The factors of a face_split, the transposed ones of a khatri_rao.
    [[nodiscard]] const std::vector<DenseMatrix>& factors() const noexcept { return factors_; }
    /// Is it a khatri_rao?
    [[nodiscard]] bool transposed() const noexcept { return transposed_; }
    [[nodiscard]] row_product_expr transpose() const { return row_product_expr(factors_, !transposed_); }
    [[nodiscard]] row_product_expr conjugate() const {
        row_product_expr result(*this);
        for (DenseMatrix& f : result.factors_) {
            f = f.conjugate().eval();
        }
        return result;
    }
    [[nodiscard]] row_product_expr adjoint() const { return transpose().conjugate(); }
    [[nodiscard]] row_product_expr scaled(const Scalar& by) const {
        row_product_expr result(*this);
        result.factors_.front() *= by;
        return result;
    }
    /// D * face_split(..) and khatri_rao(..) * D for a diagonal D: the rows (columns) weighted. @throws shape_error,
    /// unsupported_error D on the other side, where it weights entries of the product
    template <class Diagonal>
    [[nodiscard]] row_product_expr weighted(const Diagonal& diagonal, bool from_left) const {
        if (diagonal.size() != (from_left ? rows() : cols())) {
            throw shape_error("otimes: " + std::string(from_left ? "D * R" : "R * D") + ": the row-wise product R is " +
                              detail::shape_text(rows(), cols()) + ", but D is of order " +
                              std::to_string(diagonal.size()) + ".");
        }
        if (from_left == transposed_) {
            throw unsupported_error(
                "otimes: khatri_rao(..) with a diagonal matrix on the left, or face_split(..) with one on the right, "
                "is no row-wise product any more. Apply one after the other, D * (khatri_rao(..) * X).");
        }
        row_product_expr result(*this);
        DenseMatrix& first = result.factors_.front();
        first = (diagonal.template cast<Scalar>().asDiagonal() * first).eval();
        return result;
    }
    /// face_split(A, B, ..) * khatri_rao(C, D, ..), which is A * C and B * D, .., multiplied entry by entry. @throws shape_error,
    /// unsupported_error the factors do not meet one by one, or the order is the other one
    [[nodiscard]] DenseMatrix times(const row_product_expr& other) const {
        if (cols() != other.rows()) {
            throw shape_error("otimes: product of row-wise products: the first is " +
                              detail::shape_text(rows(), cols()) + ", the second is " +
                              detail::shape_text(other.rows(), other.cols()) +
                              ". The columns of the first must equal the rows of the second.");
        }
        bool meet = !transposed_ && other.transposed_ && factors_.size() == other.factors_.size();
        for (std::size_t k = 0; meet && k < factors_.size(); ++k) {
            meet = factors_[k].cols() == other.factors_[k].cols();
        }
        if (!meet) {
            throw unsupported_error(
                "otimes: product of row-wise products: face_split(A, B) * khatri_rao(C, D) needs as many columns of A "
                "as rows of C, of B as of D; in the other order it would need all entries of both. Apply one after the "
                "other, R * (S * X), or form one of them by toDenseMatrix().");
        }
        DenseMatrix result = DenseMatrix::Ones(rows(), other.cols());
        DenseMatrix part(rows(), other.cols());
        for (std::size_t k = 0; k < factors_.size(); ++k) {
            part.noalias() = factors_[k] * other.factors_[k].transpose();
            result = result.cwiseProduct(part);
        }
        return result;
    }
    /// The same over another scalar.
    template <class Other>
    [[nodiscard]] row_product_expr<Other> cast() const {
        std::vector<typename row_product_expr<Other>::DenseMatrix> factors;
        for (const DenseMatrix& f : factors_) {
            factors.push_back(f.template cast<Other>());
        }
        return row_product_expr<Other>(std::move(factors), transposed_);
    }

    /// The whole matrix. The only way to form it.
    [[nodiscard]] DenseMatrix toDenseMatrix() const {
        DenseMatrix result = DenseMatrix::Ones(factors_.front().rows(), 1);
        for (const DenseMatrix& f : factors_) {
            DenseMatrix next(result.rows(), result.cols() * f.cols());
            for (Eigen::Index j = 0; j < next.cols(); ++j) {
                next.col(j) = result.col(j / f.cols()).cwiseProduct(f.col(j % f.cols()));
            }
            result.swap(next);
        }
        return transposed_ ? DenseMatrix(result.transpose()) : result;
    }

    /// @name What eigen::applied asks of an operator.
    /// @{
    template <bool FromLeft>
    void check_operand(std::int64_t x_rows, std::int64_t x_cols) const {
        if (FromLeft && cols() != x_rows) {
            throw shape_error("otimes: row-wise product * X: X is " + detail::shape_text(x_rows, x_cols) +
                              ", but the product is " + detail::shape_text(rows(), cols()) + ".");
        }
        if (!FromLeft && x_cols != rows()) {
            throw shape_error("otimes: X * row-wise product: X is " + detail::shape_text(x_rows, x_cols) +
                              ", but the product is " + detail::shape_text(rows(), cols()) + ".");
        }
    }
    /// The factors are copies.
    [[nodiscard]] static bool factors_read(const matrix_view&, std::int64_t) { return false; }
    template <bool FromLeft, class Destination, class Matrix>
    void apply(Destination& y, const Matrix& x, bool add, const Scalar& scale) const {
        if (!add) {
            y.setZero();
        }
        if (transposed_) {
            auto y_transposed = y.transpose();
            add_split<!FromLeft>(y_transposed, x.transpose(), scale);
        } else {
            add_split<FromLeft>(y, x, scale);
        }
    }
    /// @}

private:
    /// y += scale * face_split * x: a sum over blocks of columns of diag(weights) * (last factor * block of x). From the right,
    /// y += scale * x * face_split: block of y's columns += (x * diag(weights)) * last factor. The weights of a block are the
    /// products of one column of each factor but the last.
    template <bool FromLeft, class Destination, class Matrix>
    void add_split(Destination& y, const Matrix& x, const Scalar& scale) const {
        const DenseMatrix& last = factors_.back();
        const Eigen::Index blocks = last.cols() == 0 ? 0 : width_ / last.cols();
        DenseMatrix part(FromLeft ? last.rows() : x.rows(), x.cols());
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> weights(last.rows());
        for (Eigen::Index block = 0; block < blocks; ++block) {
            weights.setConstant(scale);
            Eigen::Index rest = block;
            for (std::size_t k = factors_.size() - 1; k-- > 0;) {
                weights.array() *= factors_[k].col(rest % factors_[k].cols()).array();
                rest /= factors_[k].cols();
            }
            if constexpr (FromLeft) {
                part.noalias() = last * x.middleRows(block * last.cols(), last.cols());
                y += weights.asDiagonal() * part;
            } else {
                part.noalias() = x * weights.asDiagonal();
                y.middleCols(block * last.cols(), last.cols()).noalias() += part * last;
            }
        }
    }

    std::vector<DenseMatrix> factors_;
    bool transposed_ = false;
    Eigen::Index width_ = 1;
};

/// Row by row: row i is kron(A.row(i), B.row(i), ..). The factors are copied. @throws shape_error different numbers of rows
template <class First, class... Rest>
requires(eigen::dense<First> && (eigen::dense<Rest> && ...))
    [[nodiscard]] auto face_split(const First& first, const Rest&... rest) {
    using scalar = typename detail::scalar_of_all<eigen::scalar_of<First>, eigen::scalar_of<Rest>...>::type;
    return row_product_expr<scalar>({first.template cast<scalar>(), rest.template cast<scalar>()...}, false);
}
/// Column by column: column j is kron(A.col(j), B.col(j), ..). The factors are copied. @throws shape_error
template <class First, class... Rest>
requires(eigen::dense<First> && (eigen::dense<Rest> && ...))
    [[nodiscard]] auto khatri_rao(const First& first, const Rest&... rest) {
    using scalar = typename detail::scalar_of_all<eigen::scalar_of<First>, eigen::scalar_of<Rest>...>::type;
    return row_product_expr<scalar>(
        {first.transpose().template cast<scalar>(), rest.transpose().template cast<scalar>()...}, true);
}

/// @name The same of the matrices in a list, their number known at run time. @throws shape_error different numbers of rows (columns), an empty list
/// @{
namespace eigen {
template <class Range>
concept dense_list = detail::is_factor_range<Range> && dense<typename Range::value_type>;
template <class Range>
auto row_product_of(const Range& list, bool transposed) {
    using scalar = scalar_of<typename Range::value_type>;
    std::vector<Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic>> factors;
    for (const auto& m : list) {
        factors.emplace_back();
        if (transposed) {
            factors.back() = m.transpose();
        } else {
            factors.back() = m;
        }
    }
    if (factors.empty()) {
        throw shape_error(
            "otimes: face_split and khatri_rao of an empty list: it has no rows. Give them at least one matrix.");
    }
    return row_product_expr<scalar>(std::move(factors), transposed);
}
}  // namespace eigen
template <class Range>
requires eigen::dense_list<Range>
[[nodiscard]] auto face_split(const Range& list) { return eigen::row_product_of(list, false); }
template <class Range>
requires eigen::dense_list<Range>
[[nodiscard]] auto khatri_rao(const Range& list) { return eigen::row_product_of(list, true); }
/// @}

namespace eigen {

/// @throws shape_error an index of a selection outside the product; `name`: "row " or "column "
template <class Scalar>
void check_selection(const kron_expr<Scalar>& k, const std::vector<std::int64_t>& indices, std::int64_t extent,
                     const char* name) {
    for (const std::int64_t i : indices) {
        if (i < 0 || i >= extent) {
            throw shape_error("otimes: K(rows, cols): " + (name + std::to_string(i)) +
                              " is outside the product, which is " + detail::shape_text(k.rows(), k.cols()) + ".");
        }
    }
}

}  // namespace eigen

/// Selected rows of a kron, all of its columns: a face-splitting product of the factors' rows. @throws shape_error an index
/// outside the product
template <class Scalar>
[[nodiscard]] row_product_expr<Scalar> selected_rows(const kron_expr<Scalar>& k,
                                                     const std::vector<std::int64_t>& rows) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    eigen::check_selection(k, rows, k.rows(), "row ");
    std::vector<matrix> factors;
    const Eigen::Index count = eigen::index_of(static_cast<std::int64_t>(rows.size()));
    factors.push_back(matrix::Constant(count, 1, k.node().alpha()));
    std::vector<std::int64_t> rest = rows;
    for (std::size_t f = k.factor_count(); f-- > 0;) {
        const leaf& factor = k.node().factors()[f];
        const matrix_view view = factor.view();
        matrix picked(count, eigen::index_of(view.cols));
        for (Eigen::Index i = 0; i < count; ++i) {
            std::int64_t& at = rest[static_cast<std::size_t>(i)];
            for (Eigen::Index j = 0; j < picked.cols(); ++j) {
                picked(i, j) = kron_node<Scalar>::element(factor, view, at % view.rows, j);
            }
            at /= view.rows;
        }
        factors.insert(factors.begin() + 1, std::move(picked));
    }
    return row_product_expr<Scalar>(std::move(factors), false);
}
/// Selected columns of a kron, all of its rows. @throws shape_error
template <class Scalar>
[[nodiscard]] row_product_expr<Scalar> selected_columns(const kron_expr<Scalar>& k,
                                                        const std::vector<std::int64_t>& cols) {
    eigen::check_selection(k, cols, k.cols(), "column ");
    return selected_rows(k.transpose(), cols).transpose();
}

/// K(rows, cols), lazy: `selected(K, rows, cols) * X` and `X * selected(..)`.
template <class ScalarType>
class selected_expr : public eigen::formed_on_request {
public:
    using Scalar = ScalarType;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    /// @throws shape_error an index outside the product
    selected_expr(kron_expr<Scalar> k, std::vector<std::int64_t> rows, std::vector<std::int64_t> cols)
        : kron_(std::move(k)), rows_(std::move(rows)), cols_(std::move(cols)) {
        check_indices();
    }
    [[nodiscard]] Eigen::Index rows() const { return static_cast<Eigen::Index>(rows_.size()); }
    [[nodiscard]] Eigen::Index cols() const { return static_cast<Eigen::Index>(cols_.size()); }
    [[nodiscard]] const kron_expr<Scalar>& kron() const noexcept { return kron_; }
    [[nodiscard]] const std::vector<std::int64_t>& row_indices() const noexcept { return rows_; }
    [[nodiscard]] const std::vector<std::int64_t>& column_indices() const noexcept { return cols_; }
    [[nodiscard]] selected_expr transpose() const { return selected_expr(kron_.transpose(), cols_, rows_); }
    [[nodiscard]] selected_expr conjugate() const { return selected_expr(kron_.conjugate(), rows_, cols_); }
    [[nodiscard]] selected_expr adjoint() const { return selected_expr(kron_.adjoint(), cols_, rows_); }
    [[nodiscard]] selected_expr scaled(const Scalar& by) const { return selected_expr(by * kron_, rows_, cols_); }
    /// The same over another scalar.
    template <class Other>
    [[nodiscard]] selected_expr<Other> cast() const {
        return selected_expr<Other>(eigen::kron_over<Other>(kron_), rows_, cols_);
    }
    /// The selected entries. The only way to form them. Cost: the number of factors for each.
    [[nodiscard]] DenseMatrix toDenseMatrix() const {
        DenseMatrix result(rows(), cols());
        for (Eigen::Index j = 0; j < cols(); ++j) {
            for (Eigen::Index i = 0; i < rows(); ++i) {
                result(i, j) = kron_(static_cast<Eigen::Index>(rows_[static_cast<std::size_t>(i)]),
                                     static_cast<Eigen::Index>(cols_[static_cast<std::size_t>(j)]));
            }
        }
        return result;
    }

    /// @name What eigen::applied asks of an operator.
    /// @{
    template <bool FromLeft>
    void check_operand(std::int64_t x_rows, std::int64_t x_cols) const {
        if (FromLeft ? x_rows != cols() : x_cols != rows()) {
            throw shape_error("otimes: " + std::string(FromLeft ? "K(rows, cols) * X" : "X * K(rows, cols)") +
                              ": X is " + detail::shape_text(x_rows, x_cols) + ", but the selection is " +
                              detail::shape_text(rows(), cols()) + ".");
        }
        check_indices();  // a factor may have been resized since
    }
    [[nodiscard]] bool factors_read(const matrix_view& written, std::int64_t bytes) const {
        const strided_memory memory = memory_of(written, bytes);
        const factor_list& factors = kron_.node().factors();
        return std::any_of(factors.begin(), factors.end(),
                           [&](const leaf& f) { return detail::factor_reads<Scalar>(f, memory); });
    }
    /// Single elements where the selection is small, else K on a scattered x. Zeros that stand for columns that were not selected
    /// would turn infinite elements into NaN there: rows of K that come from a row of a factor that is not finite are taken by
    /// single elements, too. Cost of finding them: a look at every factor. What a function factor returns is taken to be finite.
    template <bool FromLeft, class Destination, class Matrix>
    void apply(Destination& y, const Matrix& x, bool add, const Scalar& scale) const {
        if constexpr (FromLeft) {
            if (!add) {
                y.setZero();
            }
            add_times(y, x, scale);
        } else {
            auto y_transposed = y.transpose();
            transpose().template apply<true>(y_transposed, x.transpose(), add, scale);
        }
    }
    /// @}

private:
    void check_indices() const {
        eigen::check_selection(kron_, rows_, kron_.rows(), "row ");
        eigen::check_selection(kron_, cols_, kron_.cols(), "column ");
    }
    template <class Destination, class Matrix>
    void add_times(Destination& y, const Matrix& x, const Scalar& scale) const {
        double full = 0;
        for (const leaf& f : kron_.node().factors()) {
            full += static_cast<double>((std::max)(f.rows(), f.cols()));
        }
        full *= static_cast<double>((std::max)(kron_.rows(), kron_.cols())) * static_cast<double>(x.cols());
        const double single = static_cast<double>(rows()) * static_cast<double>(cols()) *
                              (static_cast<double>(x.cols()) + 8.0 * static_cast<double>(kron_.factor_count()));
        if (single <= full) {
            for (Eigen::Index i = 0; i < rows(); ++i) {
                add_row_times(y, x, scale, i);
            }
            return;
        }
        DenseMatrix scattered = DenseMatrix::Zero(kron_.cols(), x.cols());
        for (Eigen::Index j = 0; j < cols(); ++j) {
            scattered.row(static_cast<Eigen::Index>(cols_[static_cast<std::size_t>(j)])) += scale * x.row(j);
        }
        const DenseMatrix whole = kron_ * scattered;
        const std::vector<std::vector<bool>> finite = finite_rows();
        for (Eigen::Index i = 0; i < rows(); ++i) {
            if (comes_from(finite, rows_[static_cast<std::size_t>(i)])) {
                y.row(i) += whole.row(static_cast<Eigen::Index>(rows_[static_cast<std::size_t>(i)]));
            } else {
                add_row_times(y, x, scale, i);
            }
        }
    }
    /// Row i of y += scale * K(rows, cols) * x, element by element.
    template <class Destination, class Matrix>
    void add_row_times(Destination& y, const Matrix& x, const Scalar& scale, Eigen::Index i) const {
        for (Eigen::Index j = 0; j < cols(); ++j) {
            const Scalar element = kron_(static_cast<Eigen::Index>(rows_[static_cast<std::size_t>(i)]),
                                         static_cast<Eigen::Index>(cols_[static_cast<std::size_t>(j)]));
            y.row(i) += (scale * element) * x.row(j);
        }
    }
    /// Of each factor: which rows are finite. Of a product of factors none is, where any but the first has elements that are not.
    [[nodiscard]] std::vector<std::vector<bool>> finite_rows() const {
        const auto rows_of = [](const leaf& f) {
            std::vector<bool> result(static_cast<std::size_t>(f.rows()), true);
            const matrix_view view = f.view();
            const auto look = [&](std::int64_t i, const Scalar& v) {
                const Scalar zero = v - v;
                result[static_cast<std::size_t>(i)] = result[static_cast<std::size_t>(i)] && zero == zero;
            };
            switch (f.kind()) {
                case factor_kind::identity:
                case factor_kind::permutation:
                case factor_kind::callback: break;
                case factor_kind::diagonal:
                    for (std::int64_t i = 0; i < f.rows(); ++i) {
                        look(i, kron_node<Scalar>::element(f, view, i, i));
                    }
                    break;
                case factor_kind::sparse: {
                    const sparse_elements s = static_cast<const sparse_operand*>(view.data)->elements();
                    for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
                        for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
                            look(s.by_columns != f.transposed() ? s.index(s.inner, k) : outer,
                                 detail::stored_value<Scalar>(f, s.values, k));
                        }
                    }
                    break;
                }
                default:
                    for (std::int64_t j = 0; j < f.cols(); ++j) {
                        for (std::int64_t i = 0; i < f.rows(); ++i) {
                            look(i, kron_node<Scalar>::element(f, view, i, j));
                        }
                    }
            }
            return result;
        };
        std::vector<std::vector<bool>> finite;
        for (const leaf& factor : kron_.node().factors()) {
            const std::vector<leaf> parts = detail::product_factors(factor);
            std::vector<bool> result = rows_of(parts.front());
            for (std::size_t k = 1; k < parts.size(); ++k) {
                const std::vector<bool> further = rows_of(parts[k]);
                if (std::find(further.begin(), further.end(), false) != further.end()) {
                    result.assign(result.size(), false);
                }
            }
            finite.push_back(std::move(result));
        }
        return finite;
    }
    /// Is row `at` of K made of these rows of its factors?
    [[nodiscard]] bool comes_from(const std::vector<std::vector<bool>>& rows_of_factors, std::int64_t at) const {
        for (std::size_t k = rows_of_factors.size(); k-- > 0;) {
            const auto extent = static_cast<std::int64_t>(rows_of_factors[k].size());
            if (!rows_of_factors[k][static_cast<std::size_t>(at % extent)]) {
                return false;
            }
            at /= extent;
        }
        return true;
    }

    kron_expr<Scalar> kron_;
    std::vector<std::int64_t> rows_;
    std::vector<std::int64_t> cols_;
};

/// K(rows, cols): the elements of K at these rows and columns, never formed. @throws shape_error
template <class Scalar>
[[nodiscard]] selected_expr<Scalar> selected(const kron_expr<Scalar>& k, std::vector<std::int64_t> rows,
                                             std::vector<std::int64_t> cols) {
    return selected_expr<Scalar>(k, std::move(rows), std::move(cols));
}

namespace eigen {

#if EIGEN_VERSION_AT_LEAST(3, 4, 90)
using all_indices = std::remove_cvref_t<decltype(Eigen::placeholders::all)>;
using last_index = std::remove_cvref_t<decltype(Eigen::placeholders::last)>;
#else
using all_indices = std::remove_cvref_t<decltype(Eigen::all)>;
using last_index = std::remove_cvref_t<decltype(Eigen::last)>;
#endif

/// An index that is counted from the end: Eigen's `last`, `last - 2`.
template <class Type>
concept symbolic_index = std::is_class_v<Type> && requires(const Type& index) {
    index.eval(last_index{} = Eigen::Index(0));
};
/// Eigen's seq(..), seqN(..), lastN(..).
template <class Type>
concept index_sequence = requires(const Type& sequence) {
    sequence.firstObject();
    sequence.sizeObject();
    sequence.incrObject();
};
/// `index` among `extent` of them.
template <class Type>
std::int64_t index_among(const Type& index, std::int64_t extent) {
    if constexpr (symbolic_index<Type>) {
        return static_cast<std::int64_t>(index.eval(last_index{} = static_cast<Eigen::Index>(extent - 1)));
    } else {
        return static_cast<std::int64_t>(index);
    }
}
template <class List>
inline constexpr bool selects = detail::index_list<List>;
template <class List>
requires(symbolic_index<List> || index_sequence<List>) inline constexpr bool selects<List> = true;
/// The indices that a list, one index or a sequence of Eigen's means.
template <class List>
std::vector<std::int64_t> indices_among(const List& list, std::int64_t extent) {
    if constexpr (symbolic_index<List>) {
        return {index_among(list, extent)};
    } else if constexpr (index_sequence<List>) {
        std::vector<std::int64_t> result;
        const std::int64_t size = index_among(list.sizeObject(), extent);
        for (std::int64_t at = index_among(list.firstObject(), extent), i = 0; i < size; ++i) {
            result.push_back(at);
            at += index_among(list.incrObject(), extent);
        }
        return result;
    } else {
        return detail::indices_of(list);
    }
}

}  // namespace eigen

/// @name The same of any list of indices that K(rows, cols) takes.
/// @{
template <class Scalar, class Rows>
requires eigen::selects<Rows>
[[nodiscard]] auto selected_rows(const kron_expr<Scalar>& k, const Rows& rows) {
    return selected_rows(k, eigen::indices_among(rows, k.rows()));
}
template <class Scalar, class Cols>
requires eigen::selects<Cols>
[[nodiscard]] auto selected_columns(const kron_expr<Scalar>& k, const Cols& cols) {
    return selected_columns(k, eigen::indices_among(cols, k.cols()));
}
template <class Scalar, class Rows, class Cols>
requires(eigen::selects<Rows>&& eigen::selects<Cols>)
    [[nodiscard]] auto selected(const kron_expr<Scalar>& k, const Rows& rows, const Cols& cols) {
    return selected(k, eigen::indices_among(rows, k.rows()), eigen::indices_among(cols, k.cols()));
}
/// @}

/// Body of K(rows, cols).
template <class Scalar, class Rows, class Cols>
[[nodiscard]] auto select_from(const kron_expr<Scalar>& k, const Rows& rows, const Cols& cols) {
    constexpr bool all_rows = std::is_same_v<Rows, eigen::all_indices>;
    constexpr bool all_cols = std::is_same_v<Cols, eigen::all_indices>;
    static_assert(
        (all_rows || eigen::selects<Rows>)&&(all_cols || eigen::selects<Cols>)&&!(all_rows && all_cols),
        "otimes: K(rows, cols) takes indices, lists of indices (std::vector, std::array, std::span, an Eigen "
        "vector of integers), Eigen's last, seq, seqN and lastN, and Eigen's all for one of the two. Of a mask of bool "
        "list the positions.");
    constexpr bool one_row = std::is_integral_v<Rows> || eigen::symbolic_index<Rows>;
    constexpr bool one_col = std::is_integral_v<Cols> || eigen::symbolic_index<Cols>;
    if constexpr (all_cols) {
        return selected_rows(k, eigen::indices_among(rows, k.rows()));
    } else if constexpr (all_rows) {
        return selected_columns(k, eigen::indices_among(cols, k.cols()));
    } else if constexpr (one_row && one_col) {
        return k.coeff(static_cast<Eigen::Index>(eigen::index_among(rows, k.rows())),
                       static_cast<Eigen::Index>(eigen::index_among(cols, k.cols())));
    } else {
        return selected(k, eigen::indices_among(rows, k.rows()), eigen::indices_among(cols, k.cols()));
    }
}

namespace eigen {

template <class Type>
inline constexpr bool is_row_product = false;
template <class Scalar>
inline constexpr bool is_row_product<row_product_expr<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_row_product<selected_expr<Scalar>> = true;

}  // namespace eigen

/// @name Products of row-wise products and selections, lazy, with a dense matrix on either side. @throws shape_error
/// @{
template <class Product, class Matrix>
requires(eigen::is_row_product<Product>&& eigen::dense<Matrix>) [[nodiscard]] auto operator*(const Product& k,
                                                                                             Matrix&& x) {
    return eigen::apply<true>(k, std::forward<Matrix>(x));
}
template <class Matrix, class Product>
requires(eigen::is_row_product<Product>&& eigen::dense<Matrix>) [[nodiscard]] auto operator*(Matrix&& x,
                                                                                             const Product& k) {
    return eigen::apply<false>(k, std::forward<Matrix>(x));
}
/// @}

/// @name Weighted rows of a face_split, columns of a khatri_rao; face_split(A, B) * khatri_rao(C, D), a matrix: R.transpose() * R is the Gram matrix of
/// khatri_rao. @throws shape_error, unsupported_error
/// @{
template <class Scalar, class Diagonal>
requires(eigen::diagonal_like<Diagonal>&& detail::scalars_mix<Scalar, eigen::scalar_of<Diagonal>>) [[nodiscard]] auto
operator*(const row_product_expr<Scalar>& r, const Diagonal& d) {
    using scalar = detail::common_scalar<Scalar, eigen::scalar_of<Diagonal>>;
    return r.template cast<scalar>().weighted(d.diagonal(), false);
}
template <class Diagonal, class Scalar>
requires(eigen::diagonal_like<Diagonal>&& detail::scalars_mix<Scalar, eigen::scalar_of<Diagonal>>) [[nodiscard]] auto
operator*(const Diagonal& d, const row_product_expr<Scalar>& r) {
    using scalar = detail::common_scalar<Scalar, eigen::scalar_of<Diagonal>>;
    return r.template cast<scalar>().weighted(d.diagonal(), true);
}
template <class First, class Second>
requires detail::scalars_mix<First, Second>
[[nodiscard]] auto operator*(const row_product_expr<First>& a, const row_product_expr<Second>& b) {
    using scalar = detail::common_scalar<First, Second>;
    return a.template cast<scalar>().times(b.template cast<scalar>());
}
/// @}

/// @name Scalar multiples of row-wise products and selections.
/// @{

template <class Amount, class Product>
requires(eigen::is_row_product<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator*(
    const Amount& amount, const Product& k) {
    using scalar = detail::scaled_scalar<Amount, typename Product::Scalar>;
    if constexpr (std::is_same_v<scalar, typename Product::Scalar>) {
        return k.scaled(detail::amount_as<scalar>(amount));
    } else {
        return k.template cast<scalar>().scaled(amount);
    }
}
template <class Product, class Amount>
requires(eigen::is_row_product<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator*(
    const Product& k, const Amount& amount) {
    return amount * k;
}
template <class Product, class Amount>
requires(eigen::is_row_product<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator/(
    const Product& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, typename Product::Scalar>;
    static_assert(!std::is_integral_v<scalar>,
                  "otimes: khatri_rao, face_split and K(rows, cols) of integers cannot be divided, since 1 / n is 0.");
    return (scalar(1) / detail::amount_as<scalar>(amount)) * k;
}
template <class Product>
requires eigen::is_row_product<Product>
[[nodiscard]] auto operator-(const Product& k) { return k.scaled(typename Product::Scalar(-1)); }
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file selected.hpp
/// Selected rows and columns of a Kronecker product:
///
///     K(rows, cols)(i, j) = K(rows[i], cols[j])        indices count from 0, may repeat and come in any order; either may be all
///
/// With S_r and S_c the 0-1 matrices that take rows and columns, K(rows, cols) = S_r K S_c^T. It is never formed, and is applied to an X of c
/// columns in the way of the fewest multiplications:
///
///     entry by entry      |rows| |cols| (c + a look-up of each)       no memory; a look-up in a function is an application of it
///     row by row          |rows| cols(K) c                            all columns: the rows' factors as a face_split, some rows at a time
///     as a whole          K on X scattered, of which rows are taken   all columns: one matrix of K's rows; else one of its columns, too;
///                                                                     of some columns of X at a time, where K's extents are large
///
/// In a sum, between other operators and for Eigen's solvers it is a factor that applies itself so (applied_sums.hpp): `K(seen, seen) + s *
/// identity()`. On a GPU: device/selected.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/applied.hpp>
#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/operator_base.hpp>
#include <otimes/adapt/eigen/row_products.hpp>
#include <otimes/expr/index_list.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/lower_structured.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/factorwise/elements.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// The rows (columns) of a product of which some are selected.
struct selectable {
    std::int64_t rows;
    std::int64_t cols;
    bool of_rows;

    template <class Product>
    selectable(const Product& k, bool take_rows) : rows(k.rows()), cols(k.cols()), of_rows(take_rows) {}
    [[nodiscard]] std::int64_t extent() const noexcept { return of_rows ? rows : cols; }
    /// @throws shape_error an index outside
    void operator()(std::int64_t index) const {
        if (index < 0 || index >= extent()) {
            throw shape_error("otimes: K(rows, cols): " + ((of_rows ? "row " : "column ") + std::to_string(index)) +
                              " is outside the product, which is " + detail::shape_text(rows, cols) + ".");
        }
    }
    /// first, first + step, .., `count` of them. @throws shape_error
    void check_sequence(std::int64_t first, std::int64_t step, std::int64_t count) const {
        if (count < 0 || static_cast<std::uint64_t>(count) > std::vector<std::int64_t>().max_size()) {
            throw shape_error("otimes: K(rows, cols): a sequence of " + std::to_string(count) +
                              (of_rows ? " rows" : " columns") + "; the product is " + detail::shape_text(rows, cols) +
                              ".");
        }
        if (count > 0) {
            (*this)(first);
            constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
            std::int64_t reach = most;
            checked_multiply(count - 1, step >= 0 ? step : step < -most ? most : -step, reach);
            (*this)(step < 0 ? first - reach : reach > most - first ? most : first + reach);
        }
    }
};

}  // namespace eigen

/// K(rows, cols), lazy: `K(rows, cols) * X` and `X * K(rows, cols)`, a term of sums, and an Eigen operator that its iterative solvers take.
/// Shape: rows() x cols(). Lifetime: per factor, as in kron; the indices are copied.
template <class ScalarType>
class selected_expr : public eigen::operator_base<selected_expr<ScalarType>> {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<ScalarType>;
    using StorageIndex = Eigen::Index;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    using indices = std::optional<std::vector<std::int64_t>>;  ///< none: all
    enum {
        ColsAtCompileTime = Eigen::Dynamic,
        RowsAtCompileTime = Eigen::Dynamic,
        MaxRowsAtCompileTime = Eigen::Dynamic,
        MaxColsAtCompileTime = Eigen::Dynamic,
        IsRowMajor = false
    };

    /// @throws shape_error an index outside the product
    selected_expr(kron_expr<Scalar> k, indices rows, indices cols)
        : kron_(std::move(k)), rows_(std::move(rows)), cols_(std::move(cols)) {
        check_indices();
        last_row_ = last_of(rows_);
        last_col_ = last_of(cols_);
    }
    [[nodiscard]] Eigen::Index rows() const { return count(rows_, kron_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return count(cols_, kron_.cols()); }
    [[nodiscard]] const kron_expr<Scalar>& kron() const noexcept { return kron_; }
    [[nodiscard]] const indices& row_indices() const noexcept { return rows_; }
    [[nodiscard]] const indices& column_indices() const noexcept { return cols_; }
    [[nodiscard]] selected_expr transpose() const { return selected_expr(kron_.transpose(), cols_, rows_); }
    [[nodiscard]] selected_expr conjugate() const { return selected_expr(kron_.conjugate(), rows_, cols_); }
    [[nodiscard]] selected_expr adjoint() const { return selected_expr(kron_.adjoint(), cols_, rows_); }
    [[nodiscard]] selected_expr scaled(const Scalar& by) const { return selected_expr(by * kron_, rows_, cols_); }
    /// The same over another scalar.
    template <class Other>
    [[nodiscard]] selected_expr<Other> cast() const {
        return selected_expr<Other>(eigen::kron_over<Other>(kron_), rows_, cols_);
    }
    /// Entry (i, j), K(rows[i], cols[j]). Cost: the number of factors. @throws shape_error outside the selection
    [[nodiscard]] Scalar operator()(Eigen::Index i, Eigen::Index j) const {
        if (i < 0 || j < 0 || i >= rows() || j >= cols()) {
            throw shape_error("otimes: K(rows, cols)(" + std::to_string(i) + ", " + std::to_string(j) +
                              "): the selection is " + detail::shape_text(rows(), cols()) + ".");
        }
        return entry(i, j);
    }
    /// As S(i, j).
    [[nodiscard]] Scalar coeff(Eigen::Index i, Eigen::Index j) const { return (*this)(i, j); }
    /// The selected entries. The only way to form them. Cost: the number of factors for each, and for each column an application of a function.
    [[nodiscard]] DenseMatrix toDenseMatrix() const {
        DenseMatrix result(rows(), cols());
        for (Eigen::Index j = 0; j < cols(); ++j) {
            write_column(j, result.col(j).data());
        }
        return result;
    }
    /// The diagonal, min(rows, cols) entries. Cost: the number of factors for each.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal() const {
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result((std::min)(rows(), cols()));
        for (Eigen::Index i = 0; i < result.size(); ++i) {
            result(i) = entry(i, i);
        }
        return result;
    }
    /// The trace, at the cost of the diagonal. @throws shape_error not square
    [[nodiscard]] Scalar trace() const {
        if (rows() != cols()) {
            throw shape_error("otimes: trace() of K(rows, cols): it is " + detail::shape_text(rows(), cols()) +
                              "; only a square matrix has a trace.");
        }
        return diagonal().sum();
    }
    /// As a sum of one term, a value whose type does not say what it is made of.
    operator sum_expr<Scalar>() const;

    /// @name What eigen::applied asks of an operator.
    /// @{
    template <bool FromLeft>
    void check_operand(std::int64_t x_rows, std::int64_t x_cols) const {
        if (FromLeft ? x_rows != cols() : x_cols != rows()) {
            throw shape_error("otimes: " + std::string(FromLeft ? "K(rows, cols) * X" : "X * K(rows, cols)") +
                              ": X is " + detail::shape_text(x_rows, x_cols) + ", but the selection is " +
                              detail::shape_text(rows(), cols()) + ".");
        }
        check();
    }
    [[nodiscard]] bool factors_read(const matrix_view& written, std::int64_t bytes) const {
        return reads(memory_of(written, bytes));
    }
    /// @}

    /// @name What eigen::operator_leaf asks of an operator.
    /// @{

    /// A factor may have been resized since the indices were checked. Cost: the number of factors. @throws shape_error an index outside
    void check() const {
        if ((rows_ && last_row_ >= kron_.rows()) || (cols_ && last_col_ >= kron_.cols())) {
            check_indices();
        }
    }
    /// Entry (i, j), inside the selection.
    [[nodiscard]] Scalar entry(Eigen::Index i, Eigen::Index j) const {
        return kron_.node().coefficient(at(rows_, i), at(cols_, j));
    }
    /// Is there a factor that is applied to tell its elements?
    [[nodiscard]] bool has_functions() const {
        const factor_list& factors = kron_.node().factors();
        return std::any_of(factors.begin(), factors.end(), is_function);
    }
    /// Column j, rows() entries. A function is applied once for all of them.
    void write_column(Eigen::Index j, Scalar* out) const {
        const factor_list& factors = kron_.node().factors();
        std::vector<std::vector<Scalar>> columns;  // of the functions; none of other factors
        if (has_functions()) {
            columns.resize(factors.size());
        }
        std::int64_t rest = at(cols_, j);
        for (std::size_t k = columns.size(); k-- > 0;) {
            const matrix_view view = factors[k].view();
            if (is_function(factors[k])) {
                columns[k] = detail::callback_column<Scalar>(factors[k], view, rest % view.cols);
            }
            rest /= view.cols;
        }
        for (Eigen::Index i = 0; i < rows(); ++i) {
            if (columns.empty()) {
                out[i] = entry(i, j);
                continue;
            }
            std::int64_t row = at(rows_, i);
            std::int64_t col = at(cols_, j);
            Scalar product(1);
            for (std::size_t k = factors.size(); k-- > 0;) {
                const matrix_view view = factors[k].view();
                product =
                    (columns[k].empty() ? kron_node<Scalar>::element(factors[k], view, row % view.rows, col % view.cols)
                                        : columns[k][static_cast<std::size_t>(row % view.rows)]) *
                    product;
                row /= view.rows;
                col /= view.cols;
            }
            out[i] = kron_.node().alpha() * product;
        }
    }
    /// Of a product with one column, in the way that it takes, about.
    [[nodiscard]] std::int64_t multiply_adds() const {
        const double whole = whole_cost(1);
        const double least = rows_ && cols_ ? (std::min)(whole, single_cost(1))
                             : rows_        ? (std::min)(whole, by_rows_cost(1))
                                            : (std::min)(whole, transpose().by_rows_cost(1));
        return static_cast<std::int64_t>((std::min)(least, 0x1p62));
    }
    [[nodiscard]] bool reads(const strided_memory& memory) const {
        const factor_list& factors = kron_.node().factors();
        return std::any_of(factors.begin(), factors.end(),
                           [&](const leaf& f) { return detail::factor_reads<Scalar>(f, memory); });
    }
    template <bool FromLeft, class Destination, class Matrix>
    void apply(Destination& y, const Matrix& x, bool add, const Scalar& scale) const {
        if constexpr (FromLeft) {
            if (!add) {
                y.setZero();
            }
            if (!rows_ && cols_) {
                add_columns_times(y, x, scale);
            } else {
                add_rows_times(y, x, scale);
            }
        } else {
            auto y_transposed = y.transpose();
            transpose().template apply<true>(y_transposed, x.transpose(), add, scale);
        }
    }
    /// @}

    /// Never: it says what to write instead.
    /// @{
    template <class Destination>
    void evalTo(Destination&) const {
        static_assert(
            eigen::always_false<Destination>,
            "otimes: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix() to form "
            "it, or multiply it with a matrix.");
    }
    template <class Destination>
    void addTo(Destination& destination) const {
        evalTo(destination);
    }
    template <class Destination>
    void subTo(Destination& destination) const {
        evalTo(destination);
    }
    /// @}

private:
    static bool is_function(const leaf& f) { return !detail::tells_elements(f); }
    static Eigen::Index count(const indices& list, Eigen::Index extent) {
        return list ? static_cast<Eigen::Index>(list->size()) : extent;
    }
    static Eigen::Index at(const indices& list, Eigen::Index i) {
        return list ? static_cast<Eigen::Index>((*list)[static_cast<std::size_t>(i)]) : i;
    }
    static std::int64_t last_of(const indices& list) {
        return list && !list->empty() ? *std::max_element(list->begin(), list->end()) : -1;
    }
    void check_indices() const {
        for (const bool of_rows : {true, false}) {
            const eigen::selectable check(kron_, of_rows);
            const indices& list = of_rows ? rows_ : cols_;
            if (list) {
                std::for_each(list->begin(), list->end(), check);
            }
        }
    }
    /// Multiplications of K * X for an X of that many columns, about, and a pass over it. Identities cost nothing, sparse factors their elements.
    [[nodiscard]] double whole_cost(Eigen::Index columns) const {
        double sum = 0;
        for (const leaf& f : kron_.node().factors()) {
            sum += each_cost(f);
        }
        return (sum + 1) * static_cast<double>((std::max)(kron_.rows(), kron_.cols())) * static_cast<double>(columns);
    }
    /// Multiplications for one element of a result of the factor's larger extent.
    [[nodiscard]] static double each_cost(const leaf& f) {
        const auto extent = static_cast<double>((std::max)(f.rows(), f.cols()));
        switch (f.kind()) {
            case factor_kind::identity: return 0;
            case factor_kind::diagonal:
            case factor_kind::permutation: return 1;
            case factor_kind::sparse: {
                const sparse_elements s = static_cast<const sparse_operand*>(f.view().data)->elements();
                double stored = 0;
                for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
                    stored += static_cast<double>(s.end(outer) - s.begin(outer));
                }
                return stored / (std::max)(1.0, extent);
            }
            case factor_kind::low_rank:
            case factor_kind::callback: return detail::fibre_cost(f) / (std::max)(1.0, extent);
            default: return extent;
        }
    }
    /// Multiplications for an element of a factor, beyond those for one in memory: a search (sparse), the inner extents (a product of factors), an
    /// application (a function).
    [[nodiscard]] static double look_up_cost(const leaf& f) {
        switch (f.kind()) {
            case factor_kind::sparse: {
                const sparse_elements s = static_cast<const sparse_operand*>(f.view().data)->elements();
                return static_cast<double>(s.stored()) / (std::max)(1.0, static_cast<double>(s.outer_size()));
            }
            case factor_kind::callback: return is_function(f) ? detail::fibre_cost(f) : 0;
            case factor_kind::low_rank: {
                const std::vector<leaf> parts = detail::product_factors(f);
                double cost = 0;
                for (std::size_t k = 0; k < parts.size(); ++k) {
                    const double of_rows = k == 0 ? 1 : static_cast<double>(parts[k].rows());
                    const double of_cols = k + 1 == parts.size() ? 1 : static_cast<double>(parts[k].cols());
                    cost += of_rows * of_cols * (1 + look_up_cost(parts[k]));
                }
                return cost;
            }
            default: return 0;
        }
    }
    [[nodiscard]] double single_cost(Eigen::Index columns) const {
        double each = static_cast<double>(columns) + 8.0 * static_cast<double>(kron_.factor_count());
        for (const leaf& f : kron_.node().factors()) {
            each += look_up_cost(f);
        }
        return static_cast<double>(rows()) * static_cast<double>(cols()) * each;
    }
    /// Of these rows of K, all of their columns, as row-wise products of rows_together(columns) rows: for each a matrix product for each block of the last
    /// factor's columns. In multiplications of a whole K (measured: 8^3 to 100^2 in double, 1 to 256 rows, 1 to 16 columns of X).
    [[nodiscard]] double by_rows_cost(Eigen::Index columns) const {
        const auto c = static_cast<double>(columns);
        const auto width = static_cast<double>(kron_.cols());
        const std::size_t factors = kron_.factor_count();
        const double last = factors == 0 ? 1 : static_cast<double>(kron_.node().factors()[factors - 1].cols());
        const Eigen::Index together = rows_together(columns);
        const auto parts = static_cast<double>((rows() + together - 1) / together);
        double look_ups = 0;  // for one row of each factor
        for (const leaf& f : kron_.node().factors()) {
            look_ups += static_cast<double>(f.cols()) * look_up_cost(f);
        }
        return parts * width / (std::max)(1.0, last) * (700 + 270 * c) +
               static_cast<double>(rows()) * (2.2 * width * c + look_ups);
    }
    /// Rows i, .., i + count - 1 of K(rows, all), as the row-wise product of the factors' rows.
    [[nodiscard]] row_product_expr<Scalar> rows_of_factors(Eigen::Index first, Eigen::Index count) const {
        std::vector<DenseMatrix> factors;
        factors.push_back(DenseMatrix::Constant(count, 1, kron_.node().alpha()));
        std::vector<std::int64_t> rest(rows_->begin() + first, rows_->begin() + first + count);
        for (std::size_t f = kron_.factor_count(); f-- > 0;) {
            const leaf& factor = kron_.node().factors()[f];
            const matrix_view view = factor.view();
            DenseMatrix picked(count, eigen::index_of(view.cols));
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
    /// So many rows at a time that their factors' rows take no more memory than X and the result, at least one. By X alone the rows of thin factors
    /// would be taken one by one.
    [[nodiscard]] Eigen::Index rows_together(Eigen::Index columns) const {
        double each = 1;
        for (const leaf& f : kron_.node().factors()) {
            each += static_cast<double>(f.cols());
        }
        const double fit =
            (static_cast<double>(kron_.cols()) + static_cast<double>(rows())) * static_cast<double>(columns) / each;
        return (std::max)(Eigen::Index(1), static_cast<Eigen::Index>((std::min)(fit, static_cast<double>(rows()))));
    }

    /// y += scale * K(rows, cols) * x. Zeros that stand for columns that were not selected would turn infinite elements into NaN: rows of K
    /// that come from a row of a factor that is not finite are then taken entry by entry. Cost of finding them: a look at every factor. What a
    /// function factor returns is taken to be finite.
    template <class Destination, class Matrix>
    void add_rows_times(Destination& y, const Matrix& x, const Scalar& scale) const {
        const double whole = whole_cost(x.cols());
        if (!cols_ && rows_) {
            if (by_rows_cost(x.cols()) <= whole) {
                const Eigen::Index together = rows_together(x.cols());
                for (Eigen::Index i = 0; i < rows(); i += together) {
                    const Eigen::Index count = (std::min)(together, rows() - i);
                    auto part = y.middleRows(i, count);
                    rows_of_factors(i, count).template apply<true>(part, x, true, scale);
                }
                return;
            }
            const Eigen::Index together = columns_together(x.cols());
            DenseMatrix product;
            for (Eigen::Index first = 0; first < x.cols(); first += together) {
                const Eigen::Index count = (std::min)(together, x.cols() - first);
                product = kron_ * x.middleCols(first, count) * scale;
                auto y_part = y.middleCols(first, count);
                for (Eigen::Index i = 0; i < rows(); ++i) {
                    y_part.row(i) += product.row(at(rows_, i));
                }
            }
            return;
        }
        if (single_cost(x.cols()) <= whole) {
            for (Eigen::Index i = 0; i < rows(); ++i) {
                add_row_times(y, x, scale, i);
            }
            return;
        }
        const std::vector<std::vector<bool>> finite = finite_rows();
        const Eigen::Index together = columns_together(x.cols());
        DenseMatrix scattered;
        DenseMatrix product;
        for (Eigen::Index first = 0; first < x.cols(); first += together) {
            const Eigen::Index count = (std::min)(together, x.cols() - first);
            const auto x_part = x.middleCols(first, count);
            auto y_part = y.middleCols(first, count);
            scattered.setZero(kron_.cols(), count);
            for (Eigen::Index j = 0; j < cols(); ++j) {
                scattered.row(at(cols_, j)) += scale * x_part.row(j);
            }
            product = kron_ * scattered;
            for (Eigen::Index i = 0; i < rows(); ++i) {
                if (comes_from(finite, at(rows_, i))) {
                    y_part.row(i) += product.row(at(rows_, i));
                } else {
                    add_row_times(y_part, x_part, scale, i);
                }
            }
        }
    }
    /// Columns of X that K is applied to at a time: two matrices of K's extents for each are kept to 2^22 elements each, about.
    [[nodiscard]] Eigen::Index columns_together(Eigen::Index columns) const {
        const Eigen::Index extent = (std::max)({kron_.rows(), kron_.cols(), Eigen::Index(1)});
        return std::clamp(Eigen::Index(1 << 22) / extent, Eigen::Index(1), (std::max)(columns, Eigen::Index(1)));
    }
    /// y += scale * K(all, cols) * x: column by column where few are selected.
    template <class Destination, class Matrix>
    void add_columns_times(Destination& y, const Matrix& x, const Scalar& scale) const {
        const selected_expr rows_of_transpose = transpose();
        if (rows_of_transpose.by_rows_cost(x.cols()) > whole_cost(x.cols())) {
            add_rows_times(y, x, scale);
            return;
        }
        const Eigen::Index together = rows_of_transpose.rows_together(x.cols());
        for (Eigen::Index j = 0; j < cols(); j += together) {
            const Eigen::Index count = (std::min)(together, cols() - j);
            rows_of_transpose.rows_of_factors(j, count).transpose().template apply<true>(y, x.middleRows(j, count),
                                                                                         true, scale);
        }
    }
    /// Row i of y += scale * K(rows, cols) * x, entry by entry.
    template <class Destination, class Matrix>
    void add_row_times(Destination& y, const Matrix& x, const Scalar& scale, Eigen::Index i) const {
        for (Eigen::Index j = 0; j < cols(); ++j) {
            y.row(i) += (scale * entry(i, j)) * x.row(j);
        }
    }
    /// Of each factor: which rows are finite. Of a product of factors none is, where any but the first has elements that are not.
    [[nodiscard]] std::vector<std::vector<bool>> finite_rows() const {
        const auto rows_of = [](const leaf& f) {
            std::vector<bool> result(static_cast<std::size_t>(f.rows()), true);
            const matrix_view view = f.view();
            const auto look = [&](std::int64_t i, const Scalar& v) {
                if (!detail::is_finite(v)) {
                    result[static_cast<std::size_t>(i)] = false;
                }
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
    indices rows_;
    indices cols_;
    std::int64_t last_row_ = -1;  // the largest of each
    std::int64_t last_col_ = -1;
};

/// @name K(rows, cols): the entries of K at these rows and columns; with all columns, all rows. Never formed. @throws shape_error an index outside
/// the product
/// @{
template <class Scalar>
[[nodiscard]] selected_expr<Scalar> selected(const kron_expr<Scalar>& k, std::vector<std::int64_t> rows,
                                             std::vector<std::int64_t> cols) {
    return selected_expr<Scalar>(k, std::move(rows), std::move(cols));
}
template <class Scalar>
[[nodiscard]] selected_expr<Scalar> selected_rows(const kron_expr<Scalar>& k, std::vector<std::int64_t> rows) {
    return selected_expr<Scalar>(k, std::move(rows), std::nullopt);
}
template <class Scalar>
[[nodiscard]] selected_expr<Scalar> selected_columns(const kron_expr<Scalar>& k, std::vector<std::int64_t> cols) {
    return selected_expr<Scalar>(k, std::nullopt, std::move(cols));
}
/// @}

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
/// The indices that a list, one index or a sequence of Eigen's means. @throws shape_error an index outside, before anything is allocated
template <class List>
std::vector<std::int64_t> indices_among(const List& list, const selectable& among) {
    if constexpr (symbolic_index<List>) {
        return detail::indices_of(index_among(list, among.extent()), among);
    } else if constexpr (index_sequence<List>) {
        const std::int64_t first = index_among(list.firstObject(), among.extent());
        const std::int64_t step = index_among(list.incrObject(), among.extent());
        const std::int64_t count = index_among(list.sizeObject(), among.extent());
        among.check_sequence(first, step, count);
        std::vector<std::int64_t> result(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i) {
            result[static_cast<std::size_t>(i)] = first + i * step;
        }
        return result;
    } else {
        return detail::indices_of(list, among);
    }
}

}  // namespace eigen

/// @name The same of any list of indices that K(rows, cols) takes.
/// @{
template <class Scalar, class Rows>
requires eigen::selects<Rows>
[[nodiscard]] auto selected_rows(const kron_expr<Scalar>& k, const Rows& rows) {
    return selected_rows(k, eigen::indices_among(rows, {k, true}));
}
template <class Scalar, class Cols>
requires eigen::selects<Cols>
[[nodiscard]] auto selected_columns(const kron_expr<Scalar>& k, const Cols& cols) {
    return selected_columns(k, eigen::indices_among(cols, {k, false}));
}
template <class Scalar, class Rows, class Cols>
requires(eigen::selects<Rows>&& eigen::selects<Cols>)
    [[nodiscard]] auto selected(const kron_expr<Scalar>& k, const Rows& rows, const Cols& cols) {
    return selected(k, eigen::indices_among(rows, {k, true}), eigen::indices_among(cols, {k, false}));
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
        return selected_rows(k, eigen::indices_among(rows, {k, true}));
    } else if constexpr (all_rows) {
        return selected_columns(k, eigen::indices_among(cols, {k, false}));
    } else if constexpr (one_row && one_col) {
        return k.coeff(static_cast<Eigen::Index>(eigen::index_among(rows, k.rows())),
                       static_cast<Eigen::Index>(eigen::index_among(cols, k.cols())));
    } else {
        return selected(k, eigen::indices_among(rows, {k, true}), eigen::indices_among(cols, {k, false}));
    }
}

/// Body of K.block(i, j, r, c) and of its other names.
template <class Scalar>
[[nodiscard]] selected_expr<Scalar> block_from(const kron_expr<Scalar>& k, std::int64_t i, std::int64_t j,
                                               std::int64_t r, std::int64_t c) {
    detail::block_indices chosen = detail::indices_of_block(i, j, r, c, k.rows(), k.cols());
    return selected_expr<Scalar>(k, std::move(chosen.rows), std::move(chosen.cols));
}

/// What K(rows, cols) asks of Eigen's seq(..), last, .. where K has factors in device memory; found by the node's namespace. @throws shape_error
template <class Sequence, class Product>
requires(eigen::symbolic_index<Sequence> ||
         eigen::index_sequence<Sequence>) std::vector<std::int64_t> indices_of_sequence(const kron_node<double>*,
                                                                                        const Sequence& sequence,
                                                                                        const Product& k,
                                                                                        bool of_rows) {
    return eigen::indices_among(sequence, {k, of_rows});
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

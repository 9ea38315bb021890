// SPDX-License-Identifier: MIT
/// @file row_products.hpp
/// Products of matrices row by row and column by column.
///
///     face_split(A, B):  row i is kron(A.row(i), B.row(i))         m x (p q)      (transposed Khatri-Rao, "row-wise")
///     khatri_rao(A, B):  column j is kron(A.col(j), B.col(j))      (p q) x n      (column-wise); any number of factors
///
/// Neither is formed. With m rows, an inner extent L and c columns of X, face_split(..) * X costs 2 m L c flops, as the
/// formed matrix would, in L / q matrix products with B and (m + q) c elements of memory. A product of two of them is in row_pairs.hpp, sums and
/// products with other operators are in applied_sums.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
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
#include <otimes/adapt/strided/over_threads.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// face_split of any number of matrices, or its transpose (khatri_rao). The matrices are copies, which the expression's own copies and
/// transposes share. An Eigen operator: its iterative solvers take it, LeastSquaresConjugateGradient of any shape.
template <class ScalarType>
class row_product_expr : public eigen::operator_base<row_product_expr<ScalarType>> {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<ScalarType>;
    using StorageIndex = Eigen::Index;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    enum {
        ColsAtCompileTime = Eigen::Dynamic,
        RowsAtCompileTime = Eigen::Dynamic,
        MaxRowsAtCompileTime = Eigen::Dynamic,
        MaxColsAtCompileTime = Eigen::Dynamic,
        IsRowMajor = false
    };

    row_product_expr(std::vector<DenseMatrix> list, bool transposed)
        : factors_(std::make_shared<const std::vector<DenseMatrix>>(std::move(list))), transposed_(transposed) {
        const std::vector<DenseMatrix>& factors = *factors_;
        for (std::size_t k = 0; k < factors.size(); ++k) {
            if (factors[k].rows() != factors.front().rows()) {
                const auto text = [this](const DenseMatrix& m) {
                    return transposed_ ? detail::shape_text(m.cols(), m.rows())
                                       : detail::shape_text(m.rows(), m.cols());
                };
                throw shape_error("otimes: " + std::string(transposed_ ? "khatri_rao" : "face_split") +
                                  ": factor 1 is " + text(factors.front()) + ", factor " + std::to_string(k + 1) +
                                  " is " + text(factors[k]) + ". All factors must have equally many " +
                                  (transposed_ ? "columns." : "rows."));
            }
            std::int64_t width = 0;
            if (!checked_multiply(width_, factors[k].cols(), width)) {
                throw shape_error("otimes: " + std::string(transposed_ ? "khatri_rao" : "face_split") +
                                  ": the product of the " + (transposed_ ? "rows" : "columns") +
                                  " exceeds 2^63 - 1 at factor " + std::to_string(k + 1) +
                                  ". Use fewer or smaller factors.");
            }
            width_ = eigen::index_of(width);
        }
    }
    [[nodiscard]] Eigen::Index rows() const { return transposed_ ? width_ : factors().front().rows(); }
    [[nodiscard]] Eigen::Index cols() const { return transposed_ ? factors().front().rows() : width_; }
    /// The factors of a face_split, the transposed ones of a khatri_rao.
    [[nodiscard]] const std::vector<DenseMatrix>& factors() const noexcept { return *factors_; }
    /// Is it a khatri_rao?
    [[nodiscard]] bool transposed() const noexcept { return transposed_; }
    /// Shares the factors.
    [[nodiscard]] row_product_expr transpose() const {
        row_product_expr result(*this);
        result.transposed_ = !transposed_;
        return result;
    }
    /// Copies the factors where they are complex.
    [[nodiscard]] row_product_expr conjugate() const {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            std::vector<DenseMatrix> conjugates;
            for (const DenseMatrix& f : factors()) {
                conjugates.push_back(f.conjugate());
            }
            return row_product_expr(std::move(conjugates), transposed_);
        } else {
            return *this;
        }
    }
    [[nodiscard]] row_product_expr adjoint() const { return transpose().conjugate(); }
    [[nodiscard]] row_product_expr scaled(const Scalar& by) const {
        std::vector<DenseMatrix> result = factors();
        result.front() *= by;
        return row_product_expr(std::move(result), transposed_);
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
        std::vector<DenseMatrix> result = factors();
        result.front() = (diagonal.template cast<Scalar>().asDiagonal() * result.front()).eval();
        return row_product_expr(std::move(result), transposed_);
    }
    /// The same over another scalar.
    template <class Other>
    [[nodiscard]] row_product_expr<Other> cast() const {
        std::vector<typename row_product_expr<Other>::DenseMatrix> list;
        for (const DenseMatrix& f : factors()) {
            list.push_back(f.template cast<Other>());
        }
        return row_product_expr<Other>(std::move(list), transposed_);
    }

    /// The whole matrix. The only way to form it.
    [[nodiscard]] DenseMatrix toDenseMatrix() const {
        DenseMatrix result = DenseMatrix::Ones(factors().front().rows(), 1);
        for (const DenseMatrix& f : factors()) {
            DenseMatrix next(result.rows(), result.cols() * f.cols());
            for (Eigen::Index j = 0; j < next.cols(); ++j) {
                next.col(j) = result.col(j / f.cols()).cwiseProduct(f.col(j % f.cols()));
            }
            result.swap(next);
        }
        return transposed_ ? DenseMatrix(result.transpose()) : result;
    }

    /// Entry (i, j). Cost: the number of factors. @throws shape_error outside the product
    [[nodiscard]] Scalar operator()(Eigen::Index i, Eigen::Index j) const {
        if (i < 0 || j < 0 || i >= rows() || j >= cols()) {
            throw shape_error("otimes: " + std::string(transposed_ ? "khatri_rao" : "face_split") + "(" +
                              std::to_string(i) + ", " + std::to_string(j) + "): the product is " +
                              detail::shape_text(rows(), cols()) + ".");
        }
        return entry(i, j);
    }
    /// As R(i, j).
    [[nodiscard]] Scalar coeff(Eigen::Index i, Eigen::Index j) const { return (*this)(i, j); }

    /// The diagonal, min(rows, cols) entries. Cost: the number of factors for each.
    [[nodiscard]] Eigen::Matrix<Scalar, Eigen::Dynamic, 1> diagonal() const {
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> result((std::min)(rows(), cols()));
        for (Eigen::Index i = 0; i < result.size(); ++i) {
            result(i) = entry(i, i);
        }
        return result;
    }
    /// As a sum of one term, a value whose type does not say what it is made of.
    operator sum_expr<Scalar>() const;

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
    /// @}

    /// @name What eigen::operator_leaf asks of an operator.
    /// @{
    static void check() {}
    [[nodiscard]] static bool reads(const strided_memory&) { return false; }
    [[nodiscard]] std::int64_t multiply_adds() const { return saturating_multiply(rows(), cols()); }
    [[nodiscard]] Scalar entry(Eigen::Index i, Eigen::Index j) const {
        Eigen::Index rest = transposed_ ? i : j;
        Scalar result(1);
        for (std::size_t k = factors().size(); k-- > 0;) {
            const DenseMatrix& f = factors()[k];
            result *= f(transposed_ ? j : i, rest % f.cols());
            rest /= f.cols();
        }
        return result;
    }
    /// @}

    /// @name And eigen::applied again.
    /// @{
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
    /// How many rows are done together, and by how many threads beside each other; no rows: it takes too much memory.
    struct row_shares {
        Eigen::Index rows = 0;
        std::int64_t threads = 1;
    };
    /// As many as take, with their weights for all blocks, twice, and a column of x or a row of y for each thread, no more memory than the product
    /// has otherwise: a matrix of the size of the result and a block of x. From the right threads share all of that.
    template <bool FromLeft>
    [[nodiscard]] row_shares rows_together(Eigen::Index blocks, Eigen::Index columns) const {
        constexpr double least = 32, most = 512;
        constexpr bool shareable =
            dtype_of<Scalar>() != dtype::other;  // of other scalars nobody says what threads may do
        const DenseMatrix& last = factors().back();
        row_shares shares;
        if (blocks < 2 || columns < 1 || last.rows() < 1) {
            return shares;
        }
        const double rows = (std::min)(static_cast<double>(last.rows()), most);
        const double memory =
            (static_cast<double>(last.rows()) + static_cast<double>(last.cols())) * static_cast<double>(columns);
        const double of_row = 2.0 * static_cast<double>(blocks);
        const double enough = of_row * (std::min)(rows, least) + static_cast<double>(width_);
        if (enough > memory) {
            return shares;
        }
        shares.threads = shareable ? threading::threads_now(0) : 1;
        double each = memory;
        if (FromLeft) {
            shares.threads = (std::min)(shares.threads, static_cast<std::int64_t>(memory / enough));
            each = memory / static_cast<double>(shares.threads);
        }
        shares.rows = static_cast<Eigen::Index>((std::min)(rows, (each - static_cast<double>(width_)) / of_row));
        return shares;
    }
    /// The same a few rows of the factors at a time, which stay in cache: for each column of x one product of matrices, all blocks at once.
    /// Threads share the rows, from the right the blocks, so that each writes elements of its own.
    template <bool FromLeft, class Destination, class Matrix>
    void add_by_rows(Destination& y, const Matrix& x, const Scalar& scale, Eigen::Index blocks,
                     const row_shares& shares) const {
        const DenseMatrix& last = factors().back();
        const double flops = 2.0 * static_cast<double>(last.rows()) * static_cast<double>(width_) *
                             static_cast<double>(FromLeft ? x.cols() : x.rows());
        threading::over_threads(0, FromLeft ? last.rows() : blocks, flops, shares.threads,
                                [&](std::int64_t begin, std::int64_t end) {
                                    const auto from = eigen::index_of(begin), to = eigen::index_of(end);
                                    if constexpr (FromLeft) {
                                        add_part<true>(y, x, scale, from, to, 0, blocks, shares.rows);
                                    } else {
                                        add_part<false>(y, x, scale, 0, last.rows(), from, to, shares.rows);
                                    }
                                });
    }
    /// Of some rows of the factors and some blocks.
    template <bool FromLeft, class Destination, class Matrix>
    void add_part(Destination& y, const Matrix& x, const Scalar& scale, Eigen::Index begin, Eigen::Index end,
                  Eigen::Index first_block, Eigen::Index last_block, Eigen::Index together) const {
        const DenseMatrix& last = factors().back();
        const Eigen::Index width = last.cols();
        const Eigen::Index blocks = last_block - first_block;
        DenseMatrix weights, part, of_x, of_y;
        for (Eigen::Index first = begin; first < end; first += together) {
            const Eigen::Index count = (std::min)(together, end - first);
            weights.setConstant(count, blocks, scale);
            for (Eigen::Index block = 0; block < blocks; ++block) {
                Eigen::Index rest = first_block + block;
                for (std::size_t k = factors().size() - 1; k-- > 0;) {
                    const DenseMatrix& f = factors()[k];
                    weights.col(block).array() *= f.col(rest % f.cols()).segment(first, count).array();
                    rest /= f.cols();
                }
            }
            part = last.middleRows(first, count);
            for (Eigen::Index j = 0; j < (FromLeft ? x.cols() : x.rows()); ++j) {
                if constexpr (FromLeft) {
                    of_x.resize(width, blocks);
                    for (Eigen::Index block = 0; block < blocks; ++block) {
                        of_x.col(block) = x.col(j).segment((first_block + block) * width, width);
                    }
                    of_y.noalias() = part * of_x;
                    y.col(j).segment(first, count) += of_y.cwiseProduct(weights).rowwise().sum();
                } else {
                    of_x = weights.array().colwise() * x.row(j).segment(first, count).transpose().array();
                    of_y.noalias() = part.transpose() * of_x;
                    for (Eigen::Index block = 0; block < blocks; ++block) {
                        y.row(j).segment((first_block + block) * width, width) += of_y.col(block).transpose();
                    }
                }
            }
        }
    }
    /// y += scale * face_split * x: a sum over blocks of columns of diag(weights) * (last factor * block of x). From the right,
    /// y += scale * x * face_split: block of y's columns += (x * diag(weights)) * last factor. The weights of a block are the
    /// products of one column of each factor but the last. The block of x or y is copied: so the compiler sees one matrix product for
    /// a scalar, and not one for each kind of x and y, which costs it most of a second.
    template <bool FromLeft, class Destination, class Matrix>
    void add_split(Destination& y, const Matrix& x, const Scalar& scale) const {
        const DenseMatrix& last = factors().back();
        const Eigen::Index width = last.cols();
        const Eigen::Index blocks = width == 0 ? 0 : width_ / width;
        const Eigen::Index columns = FromLeft ? x.cols() : x.rows();
        if (const row_shares shares = rows_together<FromLeft>(blocks, columns); shares.rows > 0) {
            add_by_rows<FromLeft>(y, x, scale, blocks, shares);
            return;
        }
        DenseMatrix of_x, of_y;
        for (Eigen::Index block = 0; block < blocks; ++block) {
            if constexpr (FromLeft) {
                of_x = x.middleRows(block * width, width);
                multiply_block<true>(of_x, of_y, block, scale);
                y += of_y;
            } else {
                of_x = x;
                multiply_block<false>(of_x, of_y, block, scale);
                y.middleCols(block * width, width) += of_y;
            }
        }
    }
    /// of_y = diag(scale * weights) * last factor * of_x, or of_x * diag(scale * weights) * last factor; of_x is overwritten in this case.
    template <bool FromLeft>
    void multiply_block(DenseMatrix& of_x, DenseMatrix& of_y, Eigen::Index block, const Scalar& scale) const {
        const DenseMatrix& last = factors().back();
        Eigen::Matrix<Scalar, Eigen::Dynamic, 1> weights =
            Eigen::Matrix<Scalar, Eigen::Dynamic, 1>::Constant(last.rows(), scale);
        Eigen::Index rest = block;
        for (std::size_t k = factors().size() - 1; k-- > 0;) {
            weights.array() *= factors()[k].col(rest % factors()[k].cols()).array();
            rest /= factors()[k].cols();
        }
        if constexpr (FromLeft) {
            of_y.noalias() = last * of_x;
            of_y.array().colwise() *= weights.array();
        } else {
            of_x.array().rowwise() *= weights.transpose().array();
            of_y.noalias() = of_x * last;
        }
    }

    std::shared_ptr<const std::vector<DenseMatrix>> factors_;
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

/// @name Products of row-wise products and selections, lazy, with a dense matrix on either side. @throws shape_error
/// @{
template <class Product, class Matrix>
requires(eigen::applies_itself<Product>&& eigen::dense<Matrix>) [[nodiscard]] auto operator*(const Product& k,
                                                                                             Matrix&& x) {
    return eigen::apply<true>(k, std::forward<Matrix>(x));
}
template <class Matrix, class Product>
requires(eigen::applies_itself<Product>&& eigen::dense<Matrix>) [[nodiscard]] auto operator*(Matrix&& x,
                                                                                             const Product& k) {
    return eigen::apply<false>(k, std::forward<Matrix>(x));
}
/// @}

/// @name Weighted rows of a face_split, columns of a khatri_rao. @throws shape_error, unsupported_error
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
/// @}

/// @name Scalar multiples of row-wise products and selections.
/// @{

template <class Amount, class Product>
requires(eigen::applies_itself<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator*(
    const Amount& amount, const Product& k) {
    using scalar = detail::scaled_scalar<Amount, typename Product::Scalar>;
    if constexpr (std::is_same_v<scalar, typename Product::Scalar>) {
        return k.scaled(detail::amount_as<scalar>(amount));
    } else {
        return k.template cast<scalar>().scaled(amount);
    }
}
template <class Product, class Amount>
requires(eigen::applies_itself<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator*(
    const Product& k, const Amount& amount) {
    return amount * k;
}
template <class Product, class Amount>
requires(eigen::applies_itself<Product>&& eigen::amount<Amount, typename Product::Scalar>) [[nodiscard]] auto operator/(
    const Product& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, typename Product::Scalar>;
    static_assert(!std::is_integral_v<scalar>,
                  "otimes: khatri_rao, face_split and K(rows, cols) of integers cannot be divided, since 1 / n is 0.");
    return (scalar(1) / detail::amount_as<scalar>(amount)) * k;
}
template <class Product>
requires eigen::applies_itself<Product>
[[nodiscard]] auto operator-(const Product& k) { return k.scaled(typename Product::Scalar(-1)); }
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file reductions.hpp
/// Numbers from a product without the product: `dot(x, K * y)`, `squared_norm(X * K)`, `column_squared_norms(X * K)`,
/// `quadratic_trace(X, K)` = tr(X^H K X). The product is evaluated block by block and each block is reduced while it is in
/// cache, so that nothing of its size is ever stored.
///
/// Blocks are ranges of the index that no kron touches (rows of X in X * K, columns of X in K * X) or, for a single row or
/// column, ranges of the rows (columns) of the first factor:
///
///     x^H kron(A, B) y = sum_i x_i^H kron(A.row(i), B) y            x_i: the i-th of rows(A) pieces of x
///
/// Workspace: size(Y) / (rows of the first factor), but at least one row or column of it where that is cut. Flops: those of the
/// product with its first factor applied first, and two per entry. Sums are accumulated block by block in the same order on
/// every run. A first factor with structure that cannot be cut (sparse, a function) is evaluated whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// Rows [begin, begin + count) of a matrix, or columns where `of_columns`.
inline matrix_view part_of(const matrix_view& m, bool of_columns, std::int64_t begin, std::int64_t count,
                           std::int64_t bytes) {
    matrix_view part = m;
    const std::int64_t stride = of_columns ? m.col_stride : m.row_stride;
    part.data = static_cast<const char*>(m.data) + begin * stride * bytes;
    (of_columns ? part.cols : part.rows) = count;
    return part;
}

inline leaf part_of(const leaf& m, bool of_columns, std::int64_t begin, std::int64_t count, std::int64_t bytes) {
    leaf part = leaf::borrowed(part_of(m.view(), of_columns, begin, count, bytes));
    if (m.conjugated()) {
        part.conjugate();
    }
    part.set_real_elements(m.real_elements());
    part.set_space(m.space());
    return part;
}

/// x^H kron(A, B) y for single columns (or rows) x and y: with t_p = B y_p for the p-th piece of y, the sum over p and q of
/// A(q, p) x_q^H t_p. One intermediate of size(Y) / rows(A). False where the operands do not allow it; `sum` is then unchanged.
template <class Matrix, class Scalar>
bool dot_by_pieces(const Matrix& x, const product_node<Scalar>& node, Scalar& sum) {
    if constexpr (!has_direct_access<Matrix> || !std::is_same_v<typename Matrix::Scalar, Scalar>) {
        return false;
    } else {
        const bool left = node.has_left;
        const factor_list& factors = left ? node.left : node.right;
        if (node.has_left == node.has_right || factors.size() < 2 || !factors[0].is_dense() ||
            (left ? x.cols() : x.rows()) != 1 || x.size() == 0) {
            return false;
        }
        const matrix_view at = view_of(x);
        if ((left ? at.row_stride : at.col_stride) != 1) {
            return false;
        }
        product_node<Scalar> rest = node;
        factor_list others;
        for (std::size_t k = 1; k < factors.size(); ++k) {
            others.push_back(factors[k]);
        }
        (left ? rest.left : rest.right) = others;
        const detail::side contracted = left ? detail::side::cols : detail::side::rows;
        const detail::side produced = left ? detail::side::rows : detail::side::cols;
        const std::int64_t length = detail::extent_product(others, contracted);
        const auto out = static_cast<Eigen::Index>(detail::extent_product(others, produced));
        const matrix_view first = factors[0].view();
        const std::int64_t count = left ? first.cols : first.rows;
        const auto images = static_cast<Eigen::Index>(left ? first.rows : first.cols);
        const auto bytes =
            static_cast<std::int64_t>(node.x.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
        using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
        const Eigen::Map<const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>> pieces(x.data(), out, images);
        vector t(out);
        vector g(images);
        for (std::int64_t p = 0; p < count; ++p) {
            rest.x = part_of(node.x, !left, p * length, length, bytes);
            evaluate_product(rest, {t.data(), left ? out : 1, left ? 1 : out, 1, 1}, false, Scalar(1));
            g.noalias() = pieces.adjoint() * t;
            for (Eigen::Index q = 0; q < images; ++q) {
                sum += kron_node<Scalar>::element(factors[0], first, left ? q : p, left ? p : q) * g(q);
            }
        }
        return true;
    }
}

/// Calls use(block, first row, first column) for blocks that together are the product.
template <class Scalar, int Rows, int Cols, bool RowMajor, class Use>
void for_each_block(const lazy<product<Scalar, Rows, Cols, RowMajor>>& y, const Use& use) {
    using block_type = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    const product_node<Scalar>& node = y.node().node;
    const auto bytes_of = [](const leaf& m) {
        return static_cast<std::int64_t>(m.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
    };
    const std::int64_t rows = y.rows();
    const std::int64_t cols = y.cols();
    std::vector<Scalar> memory;
    const matrix_view x_view = node.x.view();
    const bool by_rows = x_view.row_stride > x_view.col_stride;  // blocks are stored as X is
    const auto run = [&](const product_node<Scalar>& part, Eigen::Index row, Eigen::Index col) {
        const auto block_rows = static_cast<Eigen::Index>(part.rows());
        const auto block_cols = static_cast<Eigen::Index>(part.cols());
        memory.resize(static_cast<std::size_t>(block_rows * block_cols));
        evaluate_product(part,
                         {memory.data(), block_rows, block_cols, by_rows ? block_cols : 1, by_rows ? 1 : block_rows},
                         false, Scalar(1));
        if (by_rows) {
            using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
            use(Eigen::Map<const row_major>(memory.data(), block_rows, block_cols), row, col);
        } else {
            use(Eigen::Map<const block_type>(memory.data(), block_rows, block_cols), row, col);
        }
    };
    const bool cuts_columns = !node.has_right && node.has_left;  // K * X: its columns are free
    const factor_list& factors = node.has_right ? node.right : node.left;
    const std::int64_t free_count = cuts_columns ? cols : rows;
    const bool both = node.has_left && node.has_right;
    const std::int64_t pieces =
        factors.empty() ? 1 : std::max<std::int64_t>(1, cuts_columns ? factors[0].rows() : factors[0].cols());
    if (!both && free_count > 1) {
        const std::int64_t step = std::max<std::int64_t>(1, free_count / pieces);
        for (std::int64_t begin = 0; begin < free_count; begin += step) {
            product_node<Scalar> part = node;
            part.x = part_of(node.x, cuts_columns, begin, (std::min)(step, free_count - begin), bytes_of(node.x));
            run(part, cuts_columns ? 0 : begin, cuts_columns ? begin : 0);
        }
        return;
    }
    if (!both && factors.size() > 1 && factors[0].is_dense()) {
        const std::int64_t length = (cuts_columns ? rows : cols) / pieces;
        for (std::int64_t piece = 0; piece < pieces; ++piece) {
            product_node<Scalar> part = node;
            (cuts_columns ? part.left : part.right)[0] =
                part_of(factors[0], !cuts_columns, piece, 1, bytes_of(factors[0]));
            run(part, cuts_columns ? piece * length : 0, cuts_columns ? 0 : piece * length);
        }
        return;
    }
    const block_type whole = y;
    use(whole, 0, 0);
}

template <class Type>
concept product_expression = lazy_node<Type> && is_product_node<typename bare<Type>::node_type>;

}  // namespace eigen

/// sum of conj(x(i, j)) * y(i, j), as Eigen's x.dot(y) for vectors, without y. @throws shape_error when the shapes differ
template <class Matrix, class Product>
requires(eigen::dense<Matrix>&& eigen::product_expression<Product>)
    [[nodiscard]] auto dot(const Matrix& x, const Product& y) {
    using scalar = detail::common_scalar<typename Matrix::Scalar, typename Product::Scalar>;
    if (x.rows() != y.rows() || x.cols() != y.cols()) {
        throw shape_error("otimes: dot(x, y): x is " + detail::shape_text(x.rows(), x.cols()) + ", y is " +
                          detail::shape_text(y.rows(), y.cols()) + ". They must have equal shapes.");
    }
    scalar sum(0);
    if constexpr (std::is_same_v<scalar, typename Product::Scalar>) {
        if (eigen::dot_by_pieces(x, y.node().node, sum)) {
            return sum;
        }
    }
    eigen::for_each_block(y, [&](const auto& block, Eigen::Index row, Eigen::Index col) {
        sum += (x.block(row, col, block.rows(), block.cols())
                    .conjugate()
                    .template cast<scalar>()
                    .cwiseProduct(block.template cast<scalar>()))
                   .sum();
    });
    return sum;
}

/// The sum of |y(i, j)|^2, without y.
template <class Product>
requires eigen::product_expression<Product>
[[nodiscard]] auto squared_norm(const Product& y) {
    detail::real_of<typename Product::Scalar> sum(0);
    eigen::for_each_block(y, [&](const auto& block, Eigen::Index, Eigen::Index) { sum += block.squaredNorm(); });
    return sum;
}

/// The squared norm of each column of y, without y: a vector of cols(y).
template <class Product>
requires eigen::product_expression<Product>
[[nodiscard]] auto column_squared_norms(const Product& y) {
    using real = detail::real_of<typename Product::Scalar>;
    Eigen::Matrix<real, Eigen::Dynamic, 1> sums = Eigen::Matrix<real, Eigen::Dynamic, 1>::Zero(y.cols());
    eigen::for_each_block(y, [&](const auto& block, Eigen::Index, Eigen::Index col) {
        sums.segment(col, block.cols()) += block.colwise().squaredNorm().transpose();
    });
    return sums;
}

/// tr(X^H K X), without K * X.
template <class Matrix, class Scalar>
requires eigen::dense<Matrix>
[[nodiscard]] auto quadratic_trace(const Matrix& x, const kron_expr<Scalar>& k) { return dot(x, k * x); }

}  // namespace OTIMES_TARGET
}  // namespace otimes

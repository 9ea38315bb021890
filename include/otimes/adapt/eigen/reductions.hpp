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
    const auto run = [&](const product_node<Scalar>& part, block_type& block) {
        lowering_scratch scratch;
        lowering<Scalar> low(scratch.program(), scratch.bindings());
        low.add_product(part, view_of(block), false, Scalar(1));
        evaluate_program<Scalar>(scratch.program(), scratch.bindings());
    };
    const bool cuts_columns = !node.has_right && node.has_left;  // K * X: its columns are free
    const factor_list& factors = node.has_right ? node.right : node.left;
    const std::int64_t free_count = cuts_columns ? cols : rows;
    const bool both = node.has_left && node.has_right;
    const std::int64_t pieces =
        factors.empty() ? 1 : std::max<std::int64_t>(1, cuts_columns ? factors[0].rows() : factors[0].cols());
    if (!both && free_count > 1) {
        const std::int64_t step = std::max<std::int64_t>(1, free_count / pieces);
        block_type block;
        for (std::int64_t begin = 0; begin < free_count; begin += step) {
            const std::int64_t count = std::min(step, free_count - begin);
            block.resize(cuts_columns ? rows : count, cuts_columns ? count : cols);
            product_node<Scalar> part = node;
            part.x = part_of(node.x, cuts_columns, begin, count, bytes_of(node.x));
            run(part, block);
            use(block, cuts_columns ? 0 : begin, cuts_columns ? begin : 0);
        }
        return;
    }
    if (!both && factors.size() > 1 && factors[0].is_dense()) {
        const std::int64_t length = (cuts_columns ? rows : cols) / pieces;
        block_type block(cuts_columns ? length : rows, cuts_columns ? cols : length);
        for (std::int64_t piece = 0; piece < pieces; ++piece) {
            product_node<Scalar> part = node;
            (cuts_columns ? part.left : part.right)[0] =
                part_of(factors[0], !cuts_columns, piece, 1, bytes_of(factors[0]));
            run(part, block);
            use(block, cuts_columns ? piece * length : 0, cuts_columns ? 0 : piece * length);
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

// SPDX-License-Identifier: MIT
/// @file structured.hpp
/// Factors with structure that have no type in Eigen, as arguments of kron(): Toeplitz, circulant, low-rank, stride
/// permutations, and matrices that only a function knows. What each costs is in docs/algebra/structured_factors.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/exec/cpu.hpp>
#include <otimes/exec/cpu/row_steps.hpp>
#include <otimes/exec/structured_steps.hpp>
#include <otimes/expr/lower_structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

template <class Scalar>
void enable_structure() {
    detail::enable_structured_lowering<Scalar>();
    enable_structured_steps<Scalar>();
    enable_cpu_steps<Scalar>();
    enable_cpu_steps<detail::real_of<Scalar>>();
    enable_row_steps<Scalar>();
}

}  // namespace eigen

namespace eigen {

/// h[Q - 1 + i - j] as a dense leaf: every element of a P x Q Toeplitz matrix lies in one vector of P + Q - 1.
template <class Scalar>
leaf toeplitz_leaf(std::vector<Scalar> h, std::int64_t rows, std::int64_t cols) {
    auto kept = std::make_shared<const std::vector<Scalar>>(std::move(h));
    const Scalar* const origin = kept->data() + (cols > 0 ? cols - 1 : 0);
    return leaf::owned(std::move(kept), {origin, rows, cols, 1, -1});
}

/// @throws shape_error what is neither one row nor one column
inline void require_vector(const char* what, std::int64_t rows, std::int64_t cols) {
    if (rows != 1 && cols != 1) {
        throw shape_error("otimes: " + std::string(what) + " is " + detail::shape_text(rows, cols) +
                          "; it must be a vector, one row or one column.");
    }
}
/// A row or a column as a column. @throws shape_error as require_vector
template <class Vector>
Eigen::Matrix<scalar_of<Vector>, Eigen::Dynamic, 1> elements_of(const char* what, const Vector& v) {
    require_vector(what, v.rows(), v.cols());
    using plain = Eigen::Matrix<scalar_of<Vector>, Eigen::Dynamic, Eigen::Dynamic>;
    const plain m = v;
    return Eigen::Map<const Eigen::Matrix<scalar_of<Vector>, Eigen::Dynamic, 1>>(m.data(), m.size());
}

}  // namespace eigen

/// The Toeplitz matrix with this first column and first row: T(i, j) = column(i - j) for i >= j, row(j - i) otherwise; row(0)
/// is not used. Stored in P + Q - 1 elements, applied like a dense matrix (2 P Q flops a fibre). The vectors are copied.
/// @throws shape_error an argument with more than one row and more than one column
template <class Column, class Row>
requires(eigen::dense<Column>&& eigen::dense<Row>) [[nodiscard]] auto toeplitz(const Column& column, const Row& row) {
    using scalar = eigen::scalar_of<Column>;
    static_assert(std::is_same_v<scalar, eigen::scalar_of<Row>>,
                  "otimes: toeplitz(): the column and the row have different scalar types.");
    const auto c = eigen::elements_of("toeplitz(column, row): column", column);
    const auto r = eigen::elements_of("toeplitz(column, row): row", row);
    std::vector<scalar> h;
    for (Eigen::Index j = r.size(); j-- > 1;) {
        h.push_back(r(j));
    }
    for (Eigen::Index i = 0; i < c.size(); ++i) {
        h.push_back(c(i));
    }
    return structured_factor<scalar>{eigen::toeplitz_leaf(std::move(h), c.size(), r.size())};
}

/// The circulant matrix with this first column: C(i, j) = column((i - j) mod n). Stored in 2 n - 1 elements.
/// @throws shape_error an argument with more than one row and more than one column
template <class Column>
requires eigen::dense<Column>
[[nodiscard]] auto circulant(const Column& column) {
    using scalar = eigen::scalar_of<Column>;
    const auto c = eigen::elements_of("circulant(column): column", column);
    std::vector<scalar> h;
    for (Eigen::Index i = 1; i < c.size(); ++i) {
        h.push_back(c(i));
    }
    for (Eigen::Index i = 0; i < c.size(); ++i) {
        h.push_back(c(i));
    }
    return structured_factor<scalar>{eigen::toeplitz_leaf(std::move(h), c.size(), c.size())};
}

/// U * V^T, U of P x r and V of Q x r, as one factor that is applied in two steps (2 r (P + Q) flops a fibre) where that is
/// cheaper than forming it. V is not conjugated. Lvalue matrices are borrowed. @throws shape_error when cols(U) != cols(V)
template <class Left, class Right>
requires(eigen::dense<Left>&& eigen::dense<Right>) [[nodiscard]] auto low_rank(Left&& u, Right&& v) {
    using scalar = eigen::scalar_of<Left>;
    static_assert(std::is_same_v<scalar, eigen::scalar_of<Right>>,
                  "otimes: low_rank(U, V): the matrices have different scalar types.");
    if (u.cols() != v.cols()) {
        throw shape_error("otimes: low_rank(U, V): U is " + detail::shape_text(u.rows(), u.cols()) + " and V is " +
                          detail::shape_text(v.rows(), v.cols()) +
                          ". The factor is U * V.transpose(): U and V must have equally many columns.");
    }
    leaf right = eigen::make_leaf(std::forward<Right>(v));
    right.transpose();
    return structured_factor<scalar>{detail::product_leaf(eigen::make_leaf(std::forward<Left>(u)), right)};
}

/// The stride permutation L(n, s) of an FFT: (L x)[i * (n / s) + j] = x[j * s + i], a transposition of x seen as an (n / s) x s
/// matrix by rows. @throws shape_error when s does not divide n
[[nodiscard]] inline Eigen::PermutationMatrix<Eigen::Dynamic> stride_permutation(std::int64_t n, std::int64_t stride) {
    if (n < 0 || stride < 1 || n % stride != 0) {
        throw shape_error("otimes: stride_permutation(" + std::to_string(n) + ", " + std::to_string(stride) +
                          "): the stride must divide the order.");
    }
    Eigen::PermutationMatrix<Eigen::Dynamic> result(static_cast<Eigen::Index>(n));
    for (std::int64_t j = 0; j < n / stride; ++j) {
        for (std::int64_t i = 0; i < stride; ++i) {
            result.indices()(static_cast<Eigen::Index>(j * stride + i)) = static_cast<int>(i * (n / stride) + j);
        }
    }
    return result;
}

/// A factor that only a function knows. `apply(transposed, in, out)` gets two Eigen maps by columns and writes out = F * in, or
/// out = F^T * in; it must not throw.
/// The function is copied into the factor. @throws shape_error for negative extents
template <class Scalar, class Apply>
[[nodiscard]] structured_factor<Scalar> matrix_free(std::int64_t rows, std::int64_t cols, Apply apply) {
    struct owner {
        callback_operand operand;
        Apply apply;
        std::int64_t rows;
        std::int64_t cols;
    };
    if (rows < 0 || cols < 0) {
        throw shape_error("otimes: matrix_free(" + std::to_string(rows) + ", " + std::to_string(cols) +
                          "): the extents must not be negative.");
    }
    auto kept = std::make_shared<owner>(owner{{}, std::move(apply), rows, cols});
    kept->operand.object = kept.get();
    kept->operand.apply = [](const void* object, bool transposed, const void* in, void* out, std::int64_t count) {
        using matrix = eigen::dense_matrix<Scalar>;
        const owner& o = *static_cast<const owner*>(object);
        const Eigen::Map<const matrix> from(static_cast<const Scalar*>(in), transposed ? o.rows : o.cols, count);
        Eigen::Map<matrix> to(static_cast<Scalar*>(out), transposed ? o.cols : o.rows, count);
        o.apply(transposed, from, to);
    };
    const callback_operand* const operand = &kept->operand;
    return {leaf::structured(factor_kind::callback, {operand, rows, cols, 1, 0}, std::move(kept))};
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

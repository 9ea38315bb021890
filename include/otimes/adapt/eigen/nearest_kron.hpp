// SPDX-License-Identifier: MIT
/// @file nearest_kron.hpp
/// The Kronecker product of two matrices that is nearest to a given dense or sparse matrix.
///
/// Mathematics (Van Loan and Pitsianis 1993). With A seen as blocks A_ij of the shape of the second factor, the rearrangement
/// R(A), whose row (i, j) is vec(A_ij)^T, turns the problem into that of the nearest matrix of rank one:
///
///     || A - kron(B, C) ||_F = || R(A) - vec(B) vec(C)^T ||_F
///
/// It is solved by power iteration on R(A), which is never formed: each iteration goes over the (stored) elements of A twice.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Dense>

#include <otimes/adapt/eigen/decompositions.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// Calls f(i, j, value) for every (stored) element.
template <class Matrix, class Function>
void for_each_element(const Matrix& a, const Function& f) {
    if constexpr (sparse_matrix_like<Matrix>) {
        for (Eigen::Index outer = 0; outer < a.outerSize(); ++outer) {
            for (typename Matrix::InnerIterator it(a, outer); it; ++it) {
                f(it.row(), it.col(), it.value());
            }
        }
    } else {
        for (Eigen::Index j = 0; j < a.cols(); ++j) {
            for (Eigen::Index i = 0; i < a.rows(); ++i) {
                f(i, j, a(i, j));
            }
        }
    }
}

}  // namespace eigen

/// kron(B, C) nearest to `a` in the Frobenius norm, B of rows x cols, C of the quotients. `a` is a dense or sparse matrix.
/// Cost: a few tens of passes over the elements of a. @throws shape_error when rows or cols do not divide those of a
template <class Matrix>
requires(eigen::dense<Matrix> || eigen::sparse_matrix_like<Matrix>)
    [[nodiscard]] auto nearest_kron(const Matrix& a, std::int64_t rows, std::int64_t cols) {
    using scalar = typename Matrix::Scalar;
    using real = detail::real_of<scalar>;
    using matrix = eigen::dense_matrix<scalar>;
    if (rows <= 0 || cols <= 0 || a.rows() % rows != 0 || a.cols() % cols != 0) {
        throw shape_error("otimes: nearest_kron(A, " + std::to_string(rows) + ", " + std::to_string(cols) + "): A is " +
                          detail::shape_text(a.rows(), a.cols()) +
                          "; the rows and columns of the first factor must divide those of A.");
    }
    const Eigen::Index inner_rows = a.rows() / rows;
    const Eigen::Index inner_cols = a.cols() / cols;
    matrix b = matrix::Zero(rows, cols);
    matrix c = matrix::Zero(inner_rows, inner_cols);
    // Start: the block of the largest norm.
    Eigen::Matrix<real, Eigen::Dynamic, Eigen::Dynamic> norms =
        Eigen::Matrix<real, Eigen::Dynamic, Eigen::Dynamic>::Zero(rows, cols);
    eigen::for_each_element(a, [&](Eigen::Index i, Eigen::Index j, const scalar& v) {
        norms(i / inner_rows, j / inner_cols) += std::norm(v);
    });
    Eigen::Index at_row = 0;
    Eigen::Index at_col = 0;
    norms.maxCoeff(&at_row, &at_col);
    eigen::for_each_element(a, [&](Eigen::Index i, Eigen::Index j, const scalar& v) {
        if (i / inner_rows == at_row && j / inner_cols == at_col) {
            c(i % inner_rows, j % inner_cols) = v;
        }
    });
    real before(0);
    for (int iteration = 0; iteration < 500 && c.norm() > real(0); ++iteration) {
        c /= c.norm();
        b.setZero();
        eigen::for_each_element(a, [&](Eigen::Index i, Eigen::Index j, const scalar& v) {
            b(i / inner_rows, j / inner_cols) += v * Eigen::numext::conj(c(i % inner_rows, j % inner_cols));
        });
        const real size = b.norm();
        if (!(size > real(0))) {
            break;
        }
        c.setZero();
        eigen::for_each_element(a, [&](Eigen::Index i, Eigen::Index j, const scalar& v) {
            c(i % inner_rows, j % inner_cols) += v * Eigen::numext::conj(b(i / inner_rows, j / inner_cols));
        });
        c /= size * size;  // now kron(b, c) is the best for this b
        if (std::abs(size - before) <= real(4) * std::numeric_limits<real>::epsilon() * size) {
            break;
        }
        before = size;
    }
    std::vector<matrix> factors;
    factors.push_back(std::move(b));
    factors.push_back(std::move(c));
    return eigen::owned_kron<scalar>(std::move(factors), scalar(1));
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

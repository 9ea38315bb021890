// SPDX-License-Identifier: MIT
// What the expressions of generate.cpp are made of, and the oracle that they are checked by.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <exception>
#include <iostream>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/SparseCore>
#include <otimes/otimes.hpp>

#include "support/oracle.hpp"
#include "support/random.hpp"

namespace random_expressions {

using Eigen::Index;

// The extents by name: n and m are those of a kron, as first[.] * second[.].
enum extent { n, m, k, p, one };
constexpr Index size[] = {12, 10, 7, 5, 1};
constexpr Index first[] = {3, 2};
constexpr Index second[] = {4, 5};

template <class Scalar>
using matrix_of = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

// One matrix for each pair of extents.
template <class Matrix>
struct table {
    Matrix of[5][5];
    Matrix (&operator[](extent rows))[5] { return of[rows]; }
};

template <class Scalar, class FactorScalar>
struct operands {
    using matrix = matrix_of<Scalar>;
    using factor = matrix_of<FactorScalar>;
    using by_rows = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using column = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
    using row = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;

    table<matrix> X, Z, Q;  // Q: 20 x 20, for its blocks
    table<by_rows> R;
    table<Eigen::SparseMatrix<Scalar>> W;
    table<factor> A, B;  // first[.] x first[.] and second[.] x second[.]
    table<otimes::kron_expr<FactorScalar>> K;
    factor F[2][6];  // size[.] rows and as many columns as the second index says, for products row by row
    column v[4], d[4];
    row u[4];
    Eigen::PermutationMatrix<Eigen::Dynamic> P[3];
    std::vector<int> chosen[2];

    operands() {
        for (const extent i : {n, m, k, p, one}) {
            for (const extent j : {n, m, k, p, one}) {
                fill(X[i][j], size[i], size[j]);
                fill(Z[i][j], size[i], size[j]);
                fill(R[i][j], size[i], size[j]);
                fill(Q[i][j], 20, 20);
                matrix few = X[i][j];
                for (Index at = 0; at < few.size(); at += 2) few.data()[at] = Scalar(0);
                W[i][j] = few.sparseView();
            }
        }
        for (const extent i : {n, m}) {
            for (const extent j : {n, m}) {
                fill(A[i][j], first[i], first[j]);
                fill(B[i][j], second[i], second[j]);
                K[i][j] = otimes::kron(A[i][j], B[i][j]);
            }
            for (Index columns = 1; columns < 6; ++columns) fill(F[i][columns], size[i], columns);
            for (Index at = 0; at < size[i]; ++at) chosen[i].push_back(static_cast<int>((7 * at + 3) % size[i]));
        }
        for (const extent i : {n, m, k, p}) {
            fill(v[i], size[i], 1);
            fill(d[i], size[i], 1);
            fill(u[i], 1, size[i]);
        }
        for (const extent i : {n, m, k}) {
            P[i].setIdentity(size[i]);
            for (Index at = 0; at + 1 < size[i]; at += 2) {
                std::swap(P[i].indices()[at], P[i].indices()[(5 * at + 3) % size[i]]);
            }
        }
    }

private:
    template <class Matrix>
    void fill(Matrix& to, Index rows, Index cols) {
        to.resize(rows, cols);
        for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < cols; ++j) {
                if constexpr (support::is_complex<typename Matrix::Scalar>) {
                    to(i, j) = {stream_.signed_unit(), stream_.signed_unit()};
                } else {
                    to(i, j) = stream_.signed_unit();
                }
            }
        }
    }
    support::random_stream stream_{1};
};

// The oracle's operations by the names that generate.cpp writes, all of its values over one scalar type.
template <class Scalar>
struct dense {
    using wide = oracle::wide_t<Scalar>;
    using value = oracle::dense<wide>;
    using lists = const std::vector<int>&;

    template <class Matrix>
    static value of(const Matrix& a) {
        const matrix_of<typename Matrix::Scalar> stored(a);
        if constexpr (std::is_same_v<decltype(oracle::from(stored)), value>) {
            return oracle::from(stored);
        } else {
            return oracle::to_complex(oracle::from(stored));
        }
    }
    static value kron(const value& a, const value& b) { return oracle::kron(std::vector{a, b}); }
    static value times(const value& a, const value& b) { return oracle::multiply(a, b); }
    static value plus(const value& a, const value& b) { return oracle::add(a, b); }
    static value scaled(Scalar s, const value& a) { return oracle::scale(s, a); }
    static value transposed(const value& a) { return oracle::transpose(a); }
    static value conjugated(const value& a) { return oracle::conjugate(a); }
    static value identity(Index order) { return oracle::identity<wide>(static_cast<std::size_t>(order)); }

    template <class Entry>
    static value filled(std::size_t rows, std::size_t cols, const Entry& entry) {
        value result(rows, cols);
        for (std::size_t i = 0; i < rows; ++i) {
            for (std::size_t j = 0; j < cols; ++j) result(i, j) = entry(i, j);
        }
        return result;
    }
    static value face_split(const value& a, const value& b) {
        return filled(a.rows(), a.cols() * b.cols(),
                      [&](std::size_t i, std::size_t j) { return a(i, j / b.cols()) * b(i, j % b.cols()); });
    }
    static value each_times(const value& a, const value& b) {
        return filled(a.rows(), a.cols(), [&](std::size_t i, std::size_t j) { return a(i, j) * b(i, j); });
    }
    static value diagonal(const value& column) {
        return filled(column.rows(), column.rows(),
                      [&](std::size_t i, std::size_t j) { return i == j ? column(i, 0) : wide(0); });
    }
    static value diagonal_of(const value& a) {
        return filled(a.rows(), 1, [&](std::size_t i, std::size_t) { return a(i, i); });
    }
    static value permutation(const Eigen::PermutationMatrix<Eigen::Dynamic>& a) {
        value result(static_cast<std::size_t>(a.rows()), static_cast<std::size_t>(a.rows()));
        for (Index j = 0; j < a.rows(); ++j) {
            result(static_cast<std::size_t>(a.indices()[j]), static_cast<std::size_t>(j)) = wide(1);
        }
        return result;
    }
    static value lower(const value& a) {
        return filled(a.rows(), a.rows(), [&](std::size_t i, std::size_t j) { return i >= j ? a(i, j) : wide(0); });
    }
    static value self_adjoint_from_upper(const value& a) {  // without the diagonal's imaginary parts, as Eigen reads it
        const value other = oracle::adjoint(a);
        return filled(a.rows(), a.rows(), [&](std::size_t i, std::size_t j) {
            return i == j ? wide(std::real(a(i, i))) : i < j ? a(i, j) : other(i, j);
        });
    }
    static value selected(const value& a, lists rows, lists cols) {
        return filled(rows.size(), cols.size(), [&](std::size_t i, std::size_t j) {
            return a(static_cast<std::size_t>(rows[i]), static_cast<std::size_t>(cols[j]));
        });
    }
    static value sum(const value& a) { return times(times(ones(1, a.rows()), a), ones(a.cols(), 1)); }
    static value ones(std::size_t rows, std::size_t cols) {
        return filled(rows, cols, [](std::size_t, std::size_t) { return wide(1); });
    }
    static value trace(const value& a) { return sum(diagonal_of(a)); }
    static value dot(const value& a, const value& b) { return sum(each_times(conjugated(a), b)); }
};

// Expressions that do not give what dense matrices give, and their number.
inline int wrong = 0;
template <class Scalar, class Matrix>
void check(const char* expression, const Matrix& got, const typename dense<Scalar>::value& want) {
    const auto value = dense<Scalar>::of(got);
    long double distance = 0;
    long double size_of_want = 0;
    const bool shapes = value.rows() == want.rows() && value.cols() == want.cols();
    for (std::size_t i = 0; shapes && i < want.rows(); ++i) {
        for (std::size_t j = 0; j < want.cols(); ++j) {
            distance += std::abs(value(i, j) - want(i, j));
            size_of_want += std::abs(want(i, j));
        }
    }
    if (shapes && distance <= 1e-11L * (1 + size_of_want)) {  // not for NaN
        return;
    }
    ++wrong;
    std::cout << "WRONG: " << expression << "\n  " << got.rows() << " x " << got.cols() << ", wanted " << want.rows()
              << " x " << want.cols() << ", distance " << distance << " of " << size_of_want << '\n';
}
template <class Function, class Operands>
void run(const char* expression, Function function, Operands& e) {
    try {
        function(e);
    } catch (const std::exception& thrown) {
        ++wrong;
        std::cout << "THROWN: " << expression << "\n  " << thrown.what() << '\n';
    }
}

}  // namespace random_expressions

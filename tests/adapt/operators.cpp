// SPDX-License-Identifier: MIT
// Sparse, diagonal and permutation matrices beside a kron, shifts, and Eigen's conjugate gradients on the result.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace operators {  // compiled together with files that have other ones by these names

namespace {

using sparse = Eigen::SparseMatrix<double, Eigen::RowMajor>;

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 2, 2);
const auto k = dense_kron(A, B);  // 6 x 6

// A sparse matrix with about a third of its entries.
sparse sparse_matrix(Index rows, Index cols, std::uint64_t seed) {
    const matrix_d values = random(rows, cols, seed);
    sparse S(rows, cols);
    for (Index i = 0; i < rows; ++i) {
        for (Index j = (i * 2) % 3; j < cols; j += 3) {
            S.insert(i, j) = values(i, j);
        }
    }
    S.makeCompressed();
    return S;
}

template <class Operator, class Oracle>
void check_operator(const Operator& op, const Oracle& want) {
    REQUIRE(op.rows() == static_cast<Index>(want.rows()));
    REQUIRE(op.cols() == static_cast<Index>(want.cols()));
    const matrix_d X = random(op.cols(), 4, 3);
    auto Y = poisoned(op.rows(), 4);
    Y = op * X;
    CHECK(support::close(Y, times(want, X), 50));
    Y.noalias() += 2.0 * (op * X);
    CHECK(support::close(Y, scaled(3.0, times(want, X)), 50));
    Y -= op * X;
    CHECK(support::close(Y, scaled(2.0, times(want, X)), 50));
    const vector_d v = X.col(1);
    const vector_d y = op * v;
    CHECK(support::close(y, times(want, v), 50));
    vector_d z = v;
    z = op * z;  // alias-safe like every assignment
    CHECK(support::close(z, times(want, v), 50));
}

}  // namespace

TEST_CASE("W * K * W^T + s * identity(), with sparse W") {
    const sparse W = sparse_matrix(5, 6, 4);
    const sparse V = sparse_matrix(6, 7, 5);
    const auto K = kron(A, B);
    check_operator(W * K, times(matrix_d(W), k));
    check_operator(K * V, times(k, matrix_d(V)));
    check_operator(W * K * V, times(matrix_d(W), times(k, matrix_d(V))));
    check_operator(W * (K * V), times(matrix_d(W), times(k, matrix_d(V))));
    const auto full = times(matrix_d(W), times(k, matrix_d(W.transpose())));
    check_operator(W * K * W.transpose(), full);
    check_operator(3 * (W * K * W.transpose()), scaled(3.0, full));
    check_operator(W * K * W.transpose() + 0.5 * otimes::identity(),
                   plus(full, scaled(0.5, matrix_d(matrix_d::Identity(5, 5)))));
    check_operator(otimes::identity() * 2 + K, plus(k, scaled(2.0, matrix_d(matrix_d::Identity(6, 6)))));
    check_operator((W * K * W.transpose() + 0.5 * otimes::identity()) * 2,
                   plus(scaled(2.0, full), matrix_d(matrix_d::Identity(5, 5))));
}

TEST_CASE("a rectangular operator on matrices of fixed size") {
    const sparse W = sparse_matrix(5, 6, 4);
    const Eigen::Matrix<double, 6, 3> X = random(6, 3, 8);
    Eigen::Matrix<double, 5, 3> Y = poisoned(5, 3);
    Y = W * kron(A, B) * X;
    const auto want = times(times(matrix_d(W), k), X);
    CHECK(support::close(Y, want, 50));
    Y.noalias() += W * kron(A, B) * X;
    CHECK(support::close(Y, scaled(2.0, want), 50));
}

TEST_CASE("diagonal and permutation matrices") {
    const vector_d d = random<vector_d>(6, 1, 6);
    const auto K = kron(A, B);
    check_operator(d.asDiagonal() * K, times(matrix_d(d.asDiagonal()), k));
    check_operator(K * d.asDiagonal(), times(k, matrix_d(d.asDiagonal())));
    Eigen::PermutationMatrix<Eigen::Dynamic> P(6);
    P.indices() << 2, 0, 5, 1, 4, 3;
    const matrix_d p = P.toDenseMatrix().cast<double>();
    check_operator(P * K, times(p, k));
    const Eigen::PermutationMatrix<Eigen::Dynamic> back = P.transpose();
    check_operator(K * back, times(k, matrix_d(p.transpose())));
    check_operator(K * P.transpose(), times(k, matrix_d(p.transpose())));
    check_operator(P.inverse() * K, times(matrix_d(p.transpose()), k));
    check_operator(P * K * P.transpose(), times(p, times(k, matrix_d(p.transpose()))));
    check_operator(P.transpose() * (K * P), times(matrix_d(p.transpose()), times(k, p)));
}

TEST_CASE("real and complex mixed in an operator: what multiplies it, K, the matrices beside it, scalars, shifts") {
    using complex = std::complex<double>;
    using matrix_c = matrix<complex>;
    const complex i(0, 1);
    const sparse W = sparse_matrix(5, 6, 4);
    const matrix_c dense_z = random<matrix_c>(6, 5, 5);
    const Eigen::SparseMatrix<complex> Z = dense_z.sparseView();
    const vector_d d = random<vector_d>(6, 1, 6);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(6);
    P.indices() << 2, 0, 5, 1, 4, 3;
    const matrix_c C = random<matrix_c>(2, 3, 7);
    const auto K = kron(A, B);
    const auto L = kron(C, B);
    const auto l = dense_kron(C, B);
    const auto check = [i](const auto& op, const auto& want) {
        REQUIRE(op.rows() == static_cast<Index>(want.rows()));
        REQUIRE(op.cols() == static_cast<Index>(want.cols()));
        const auto X = random<matrix_c>(op.cols(), 4, 3);
        auto Y = poisoned<matrix_c>(op.rows(), 4);
        Y = op * X;
        CHECK(support::close(Y, times(want, X), 50));
        Y.noalias() -= i * (op * X);
        CHECK(support::close(Y, scaled(complex(1, -1), times(want, X)), 50));
        CHECK(support::close(op.toDenseMatrix(), want, 50));
        CHECK(support::close(op.diagonal(), matrix_c(op.toDenseMatrix().diagonal()), 50));
    };
    const auto wk = times(matrix_d(W), k);
    const matrix_c p = P.toDenseMatrix().cast<complex>();
    const auto unit = matrix_c(matrix_c::Identity(5, 5));
    check(W * K, times(matrix_c(W.cast<complex>()), k));
    check(K * W.transpose(), times(k, matrix_c(W.transpose().cast<complex>())));
    check(P * K, times(p, k));
    check(d.asDiagonal() * K, times(matrix_c(d.cast<complex>().asDiagonal()), k));
    check(W * L, times(matrix_d(W), l));
    check(K * Z, times(k, dense_z));
    check(W * K * Z, times(wk, dense_z));
    check(W * (K * Z), times(wk, dense_z));
    check(i * (W * K), scaled(i, wk));
    check((W * K) * i, scaled(i, wk));
    const auto full = times(wk, matrix_d(W.transpose()));
    check(W * K * W.transpose() + i * otimes::identity(), plus(full, scaled(i, unit)));
    check(otimes::identity() * i - W * K * W.transpose(), plus(scaled(-1.0, full), scaled(i, unit)));
    check(W * K * W.transpose() - i * otimes::identity(), plus(full, scaled(-i, unit)));

    const matrix_d R = random(6, 4, 8);  // a real X, where only the operator is complex
    matrix_c Y = (i * (W * K)) * R;
    CHECK(support::close(Y, scaled(i, times(wk, R)), 50));
    Y = (W * L) * R;
    CHECK(support::close(Y, times(times(matrix_d(W), l), R), 50));
}

TEST_CASE("an operator borrows its lvalue matrices and owns the others") {
    sparse W = sparse_matrix(5, 6, 4);
    const auto op = W * kron(A, B) * sparse(sparse_matrix(6, 7, 5));
    W = W * 2.0;  // seen
    check_operator(op, times(matrix_d(W), times(k, matrix_d(sparse_matrix(6, 7, 5)))));
    const sparse V = sparse_matrix(6, 6, 7);
    const vector_d d = random<vector_d>(6, 1, 6), e = random<vector_d>(6, 1, 9);
    const sparse U = sparse_matrix(6, 6, 8);
    std::optional transposed(V.transpose());
    std::optional diagonal(d.asDiagonal());
    const auto of_views = *transposed * kron(A, B) * *diagonal;
    transposed.emplace(U.transpose());  // another handle in that place: not seen
    diagonal.emplace(e.asDiagonal());
    check_operator(of_views, times(matrix_d(V.transpose()), times(k, matrix_d(d.asDiagonal()))));
}

TEST_CASE("what is computed from a sparse matrix stands beside a kron with the value that it has") {
    const auto K = kron(A, B);
    sparse W = sparse_matrix(6, 6, 4);
    const matrix_d w(W);
    const auto op = 2.0 * W * K;
    const auto negative = times(matrix_d(-w), k);
    check_operator(-W * K + kron(A, B), plus(negative, k));  // as a term of a sum
    check_operator((K * W.cwiseAbs()).transpose(),
                   times(matrix_d(w.cwiseAbs().transpose()), dense_kron(A.transpose(), B.transpose())));
    check_operator(W.middleRows(1, 2) * K + W.bottomRows(2) * K,
                   times(matrix_d(w.middleRows(1, 2) + w.bottomRows(2)), k));
    W = W * 3.0;  // not seen
    check_operator(op, scaled(-2.0, negative));
    Eigen::SparseVector<double> s(6);
    s.coeffRef(3) = 2;
    check_operator(K * s, times(k, matrix_d(s)));
    check_operator(s.transpose() * K, times(matrix_d(s.transpose()), k));
}

TEST_CASE("conjugate gradients on an operator") {
    const matrix_d F = random(3, 3, 7);
    const matrix_d G = random(4, 4, 8);
    const matrix_d spd_f = F * F.transpose() + 0.5 * matrix_d::Identity(3, 3);
    const matrix_d spd_g = G * G.transpose() + 0.5 * matrix_d::Identity(4, 4);
    const sparse W = sparse_matrix(9, 12, 9);
    const auto op = W * kron(spd_f, spd_g) * W.transpose() + 0.25 * otimes::identity();
    Eigen::ConjugateGradient<std::remove_const_t<decltype(op)>, Eigen::Lower | Eigen::Upper,
                             Eigen::IdentityPreconditioner>
        solver;
    solver.setTolerance(1e-13);
    solver.compute(op);
    const vector_d b = random<vector_d>(9, 1, 10);
    const vector_d x = solver.solve(b);
    CHECK(solver.info() == Eigen::Success);
    const auto full = plus(times(matrix_d(W), times(dense_kron(spd_f, spd_g), matrix_d(W.transpose()))),
                           scaled(0.25, matrix_d(matrix_d::Identity(9, 9))));
    const auto back = times(full, x);
    long double worst = 0;
    for (std::size_t i = 0; i < 9; ++i) {
        worst = std::max(worst, std::abs(back(i, 0) - static_cast<long double>(b(static_cast<Index>(i)))));
    }
    CHECK(worst < 1e-10L);
}

}  // namespace operators

// SPDX-License-Identifier: MIT
// The laws of the Kronecker product over 1 to 6 ranks: products follow one another without leaving the ranks, cut by rows, by flat
// ranges of columns and along either mode.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <Eigen/SparseCore>

#include "support/compare.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

template <class Scalar>
struct over_ranks {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    const otimes::communicator& ranks;
    int cut;

    static matrix random(int rows, int cols, std::uint64_t seed) {
        return support::random_matrix<matrix>(rows, cols, seed);
    }
    // X on the ranks; its columns are those of two modes.
    DistributedMatrix<Scalar> held(const matrix& x, std::int64_t first, std::int64_t second) const {
        const std::vector<std::int64_t> extents{first, second};
        const distribution cuts[] = {otimes::cut_rows(ranks.size()), otimes::cut_columns(ranks.size()),
                                     otimes::cut_mode(1, ranks.size(), extents, 0),
                                     otimes::cut_mode(1, ranks.size(), extents, 1)};
        DistributedMatrix<Scalar> d(ranks, x.rows(), x.cols(), cuts[cut]);
        d.from_host(x);
        return d;
    }
    template <class Kron>
    DistributedMatrix<Scalar> product(const DistributedMatrix<Scalar>& x, const Kron& k) const {
        DistributedMatrix<Scalar> y(ranks);
        y = x * k;
        return y;
    }
    static auto equal(const DistributedMatrix<Scalar>& got, const DistributedMatrix<Scalar>& want, std::size_t length) {
        return support::close(got.to_host(), matrix(want.to_host()), length);
    }
};

template <class Scalar, class Law>
void everywhere(const Law& law) {
    for (const otimes::communicator& ranks : everyone()) {
        for (int cut = 0; cut < 4; ++cut) {
            CAPTURE(ranks.name());
            CAPTURE(cut);
            law(over_ranks<Scalar>{ranks, cut});
        }
    }
}

template <class Scalar>
void check_laws() {
    everywhere<Scalar>([](const auto& t) {
        using matrix = typename over_ranks<Scalar>::matrix;
        const matrix A = t.random(2, 5, 1), B = t.random(7, 3, 2), C = t.random(5, 4, 3), D = t.random(3, 6, 4);
        const auto dX = t.held(t.random(5, 14, 5), 2, 7);
        // mixed product
        const auto dY = t.product(dX, kron(A, B));
        const auto twice = t.product(dY, kron(C, D));
        CHECK(t.equal(twice, t.product(dX, kron(matrix(A * C), matrix(B * D))), 14 * 15));
        // the square of a square product of rectangular factors
        const matrix E = t.random(2, 3, 6), G = t.random(3, 2, 7);
        const auto dZ = t.held(t.random(4, 6, 8), 2, 3);
        const matrix square = kron(E, G).toDenseMatrix() * kron(E, G).toDenseMatrix();
        CHECK(t.equal(t.product(t.product(dZ, kron(E, G)), kron(E, G)), t.product(dZ, kron(square)), 36));
        // transposes and adjoints of the product are those of its factors
        const auto back = t.held(t.random(3, 15, 9), 5, 3);
        CHECK(
            t.equal(t.product(back, kron(A, B).transpose()), t.product(back, kron(A.transpose(), B.transpose())), 15));
        CHECK(t.equal(t.product(back, kron(A, B).adjoint()), t.product(back, kron(matrix(A.adjoint()), B.adjoint())),
                      15));
        // linear in X and in each factor
        const Scalar a = Scalar(-3) / Scalar(2);
        const matrix A2 = t.random(2, 5, 10);
        auto sum = t.product(dX, kron(A, B));
        sum += a * dX * kron(A2, B);
        CHECK(t.equal(t.product(dX, kron(matrix(A + a * A2), B)), sum, 14));
        auto shifted = dX;
        shifted += a * dX;
        auto scaled = dY;
        scaled += a * dY;
        CHECK(t.equal(t.product(shifted, kron(A, B)), scaled, 14));
        // grouping the factors changes nothing
        const auto three = t.held(t.random(3, 42, 11), 2, 21);
        CHECK(t.equal(t.product(three, kron(A, kron(B, D))), t.product(three, kron(kron(A, B), D)), 42));
        CHECK(t.equal(t.product(three, kron(A, kron(B, D).toDenseMatrix())), t.product(three, kron(A, B, D)), 42));
        // identities and 1 x 1 factors; two halves commute
        const matrix one = t.random(1, 1, 12);
        const auto first = t.product(t.product(dX, kron(A, otimes::identity(7))), kron(otimes::identity(5), B));
        const auto last = t.product(t.product(dX, kron(otimes::identity(2), B)), kron(A, otimes::identity(3)));
        CHECK(t.equal(first, dY, 14));
        CHECK(t.equal(last, dY, 14));
        CHECK(t.equal(t.product(dX, kron(one, A, one, B)), t.product(dX, one(0, 0) * one(0, 0) * kron(A, B)), 14));
        // factors with structure, also replicated, are those of their dense matrices
        const Eigen::Matrix<Scalar, Eigen::Dynamic, 1> d = t.random(2, 1, 13);
        Eigen::PermutationMatrix<Eigen::Dynamic> turn(7);
        turn.indices() << 3, 0, 6, 1, 5, 2, 4;
        const matrix dense_d = d.asDiagonal();
        const matrix dense_turn = turn.toDenseMatrix().template cast<Scalar>();
        const auto turned = t.product(dX, kron(dense_d, dense_turn));
        CHECK(t.equal(t.product(dX, kron(d.asDiagonal(), turn)), turned, 14));
        CHECK(t.equal(t.product(dX, otimes::replicate(t.ranks, kron(d.asDiagonal(), turn))), turned, 14));
        const matrix same = t.product(dX, kron(otimes::identity(2), matrix::Identity(7, 7))).to_host();
        CHECK((same.array() == dX.to_host().array()).all());
    });
}

}  // namespace

TEST_CASE("a diagonal is applied where the elements are, also where its mode is cut") {
    using matrix = Eigen::MatrixXcd;
    const std::vector<std::int64_t> extents{2, 301, 2}, after{3, 301, 2};
    const matrix A = support::random_matrix<matrix>(2, 3, 20);
    const matrix B = support::random_matrix<matrix>(2, 2, 21);
    const Eigen::VectorXcd d = support::random_matrix<matrix>(301, 1, 22);
    const matrix X = support::random_matrix<matrix>(3, 2 * 301 * 2, 23);
    matrix dense = matrix::Zero(301, 301);
    for (Eigen::Index i = 0; i < 301; ++i) {
        dense(i, i) = d(i);
    }
    const auto dense_kron = [](const matrix& a, const matrix& b) {
        matrix k(a.rows() * b.rows(), a.cols() * b.cols());
        for (Eigen::Index i = 0; i < a.rows(); ++i) {
            for (Eigen::Index j = 0; j < a.cols(); ++j) {
                k.block(i * b.rows(), j * b.cols(), b.rows(), b.cols()) = a(i, j) * b;
            }
        }
        return k;
    };
    const auto want_of = [&](const matrix& first, const matrix& middle, const matrix& last) {
        return matrix(X * dense_kron(dense_kron(first, middle), last));
    };
    const matrix want = want_of(A, dense, B);
    const matrix scaled = want_of(matrix::Identity(2, 2), dense.conjugate(), matrix::Identity(2, 2));
    bool several = false;
    bool cut_in_chunks = false;  // an exchange in chunks of the diagonal's own mode
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        several = several || ranks.size() > 1;
        for (int i = 0; i < 8; ++i) {
            const int cut = i / 2 - 1;
            const int rows = i % 2 == 0 ? 3 : 1;
            const matrix x = X.topRows(rows);
            CAPTURE(cut);
            CAPTURE(rows);
            const distribution from = cut < 0
                                          ? otimes::cut_rows(ranks.size())
                                          : otimes::cut_mode(1, ranks.size(), extents, static_cast<std::size_t>(cut));
            DistributedMatrix<std::complex<double>> dX(ranks, rows, x.cols(), from);
            dX.from_host(x);
            const auto K = kron(A, d.asDiagonal(), B);
            DistributedMatrix<std::complex<double>> dY(ranks);
            dY = dX * K;
            CHECK(support::close(matrix(dY.to_host()), matrix(want.topRows(rows)), 6));
            dY += 2 * dX * otimes::replicate(ranks, K);
            CHECK(support::close(matrix(dY.to_host()), matrix(3.0 * want.topRows(rows)), 6));
            for (std::size_t other = 0; other < 3; ++other) {
                DistributedMatrix<std::complex<double>> dW(ranks, rows, want.cols(),
                                                           otimes::cut_mode(1, ranks.size(), after, other));
                dW = dX * K;
                CHECK(support::close(matrix(dW.to_host()), matrix(want.topRows(rows)), 6));
                const auto plan = ranks.plan_for((dX * K).problem(false, &dW.layout(), {}));
                for (const otimes::distributed_stage& s : plan->stages) {
                    cut_in_chunks =
                        cut_in_chunks || (s.chunks > 1 && s.mode == 1 && std::ranges::count(s.factors, 1) > 0);
                }
                CHECK(otimes::distributed_plan_from_text(to_text(*plan)) == *plan);
            }
            // Alone it sends nothing, and Y has X's distribution.
            const auto D = kron(otimes::identity(2), d.asDiagonal(), otimes::identity(2)).adjoint();
            DistributedMatrix<std::complex<double>> dZ(ranks, rows, x.cols(), from);
            dZ = dX * D;
            CHECK(support::close(matrix(dZ.to_host()), matrix(scaled.topRows(rows)), 1));
            CHECK(ranks.plan_for((dX * D).problem(false, &dZ.layout(), {}))->bytes_on_wire == 0);
        }
    }
    CHECK(cut_in_chunks == several);
    // From the left, on rows that are cut.
    const matrix T = support::random_matrix<matrix>(301 * 2, 7, 24);
    for (const otimes::communicator& ranks : everyone()) {
        DistributedMatrix<std::complex<double>> dT(ranks, T.rows(), T.cols(), otimes::cut_rows(ranks.size()));
        dT.from_host(T);
        DistributedMatrix<std::complex<double>> dY(ranks);
        dY = kron(d.asDiagonal(), B.transpose()) * dT;
        CHECK(support::close(matrix(dY.to_host()), matrix(dense_kron(dense, B.transpose()) * T), 2));
    }
}

TEST_CASE("sparse matrices and permutations that are too large to be written out are applied as they are") {
    using scalar = std::complex<double>;
    using matrix = Eigen::MatrixXcd;
    const matrix A = support::random_matrix<matrix>(2, 3, 30), B = support::random_matrix<matrix>(3, 4, 31);
    Eigen::SparseMatrix<scalar> S(301, 260);
    for (Eigen::Index j = 0; j < 260; ++j) {
        S.insert((j * 7) % 301, j) = scalar(1.0 + static_cast<double>(j), -0.5);
        if (j % 3 == 0) {
            S.insert((j * 7 + 150) % 301, j) = scalar(0, 2);
        }
    }
    Eigen::PermutationMatrix<Eigen::Dynamic> P(301);
    P.setIdentity();
    for (int i = 0; i + 5 < 301; i += 3) {
        P.applyTranspositionOnTheRight(i, i + 5);
    }
    const matrix s(S), p = P.toDenseMatrix().cast<scalar>();
    const auto formed = [](const matrix& a, const matrix& b) {
        matrix k(a.rows() * b.rows(), a.cols() * b.cols());
        for (Eigen::Index i = 0; i < a.rows(); ++i) {
            for (Eigen::Index j = 0; j < a.cols(); ++j) {
                k.block(i * b.rows(), j * b.cols(), b.rows(), b.cols()) = a(i, j) * b;
            }
        }
        return k;
    };
    const std::vector<std::int64_t> extents{2, 301};
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::int32_t n = ranks.size();
        for (const distribution& from :
             {otimes::cut_rows(n), otimes::cut_mode(1, n, extents, 0), otimes::cut_mode(1, n, extents, 1)}) {
            const matrix X = support::random_matrix<matrix>(3, 602, 32);
            DistributedMatrix<scalar> dX(ranks, 3, 602, from);
            dX.from_host(X);
            DistributedMatrix<scalar> dY(ranks), dZ(ranks);
            const auto check = [&](const auto& K, const matrix& k) {
                dY = dX * K;
                CHECK(support::close(matrix(dY.to_host()), matrix(X * k), 700));
                dZ = kron(B.transpose()) * dX * K;
                CHECK(support::close(matrix(dZ.to_host()), matrix(B.transpose() * X * k), 700));
            };
            check(kron(A, S), formed(A, s));
            check(kron(A, P), formed(A, p));
            check(kron(A, P.transpose()).conjugate(), formed(A.conjugate(), p.transpose()));
            // From the left, and copies on the ranks, which later changes do not reach.
            DistributedMatrix<scalar> dV(ranks, 602, 3, otimes::cut_columns(n));
            dV.from_host(matrix(X.transpose()));
            dZ = kron(A, S).adjoint() * dV;
            CHECK(support::close(matrix(dZ.to_host()), matrix(formed(A, s).adjoint() * X.transpose()), 700));
            const matrix C = support::random_matrix<matrix>(5, 2, 34);
            dZ = kron(C, P) * dV;
            CHECK(support::close(matrix(dZ.to_host()), matrix(formed(C, p) * X.transpose()), 700));
            Eigen::SparseMatrix<scalar> changing = S;
            const auto K = otimes::replicate(ranks, kron(changing, A).adjoint());
            changing *= 2.0;
            DistributedMatrix<scalar> dU(ranks, 2, 780, otimes::cut_columns(n));
            const matrix U = support::random_matrix<matrix>(2, 780, 33);
            dU.from_host(U);
            dY = dU * K;
            CHECK(support::close(matrix(dY.to_host()), matrix(U * formed(s, A).adjoint()), 700));
        }
    }
}

#ifndef OTIMES_TEST_ONCE  // compiles for seconds
TEST_CASE("laws over ranks, double") { check_laws<double>(); }
#endif
TEST_CASE("laws over ranks, complex float") { check_laws<std::complex<float>>(); }

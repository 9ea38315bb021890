// SPDX-License-Identifier: MIT
// K * X and K1 * X * K2 over ranks: against the oracle for every way to cut X and Y, and the laws that join the two sides.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include "support/compare.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

// Rows, flat columns, columns along each of two modes, a grid, and one rank.
std::vector<distribution> cuts(std::int32_t ranks, std::int64_t first, std::int64_t second) {
    const std::vector<std::int64_t> extents{first, second};
    std::vector<distribution> list{otimes::cut_rows(ranks), otimes::cut_columns(ranks),
                                   otimes::cut_mode(1, ranks, extents, 0), otimes::cut_mode(1, ranks, extents, 1)};
    if (ranks % 2 == 0) {
        list.push_back(otimes::cut_mode(2, ranks / 2, extents, 1));
    }
    distribution one;
    one.first_rank = ranks - 1;
    list.push_back(one);
    return list;
}

struct sizes {
    int p1, q1, p2, q2;     // K1 = kron of p1 x q1 and p2 x q2
    int first, second, to;  // X has first * second columns, K2 is kron of an identity and second x to
};

template <class Scalar>
void check_all(const sizes& s, std::uint64_t seed) {
    const auto random = [&](int rows, int cols) { return support::random_matrix<matrix<Scalar>>(rows, cols, ++seed); };
    const matrix<Scalar> A = random(s.p1, s.q1), B = random(s.p2, s.q2), C = random(s.second, s.to);
    const matrix<Scalar> X = random(s.q1 * s.q2, s.first * s.second);
    const matrix<Scalar> K = kron(A, B).toDenseMatrix();
    const auto left = oracle::multiply(oracle::from(K), oracle::from(X));
    const matrix<Scalar> K2 = kron(otimes::identity(s.first), C).toDenseMatrix();
    const auto both = oracle::multiply(left, oracle::from(K2));
    const auto length = static_cast<std::size_t>(s.q1 * s.q2);
    const auto nan = std::numeric_limits<support::real_t<Scalar>>::quiet_NaN();
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::vector<distribution> targets = cuts(ranks.size(), s.first, s.second);
        const auto replicated = otimes::replicate(ranks, kron(A, B));
        std::size_t number = 0;
        for (const distribution& from : targets) {
            CAPTURE(to_string(from));
            DistributedMatrix<Scalar> dX(ranks, X.rows(), X.cols(), from);
            dX.from_host(X);
            DistributedMatrix<Scalar> dY(ranks);
            dY = kron(A, B) * dX;
            CHECK(support::close(dY.to_host(), left, length));
            const distribution& to = targets[(number++ + 2) % targets.size()];
            CAPTURE(to_string(to));
            DistributedMatrix<Scalar> dZ(ranks, K.rows(), X.cols(), to);
            dZ.fill([&](std::int64_t, std::int64_t) { return nan; });
            dZ = replicated * dX;
            CHECK(dZ.layout() == to);
            CHECK(support::close(dZ.to_host(), left, length));
            dZ -= Scalar(3) * (kron(A, B) * dX);
            CHECK(support::close(dZ.to_host(), oracle::scale(Scalar(-2), left), length));
            dY = kron(A, B) * dX * kron(otimes::identity(s.first), C);
            CHECK(support::close(dY.to_host(), both, length * static_cast<std::size_t>(s.second)));
        }
    }
}

}  // namespace

TEST_CASE("K * X over every distribution") {
    check_all<double>({3, 4, 5, 6, 2, 7, 3}, 1);
    check_all<double>({7, 2, 1, 3, 3, 1, 2}, 2);
    check_all<std::complex<float>>({4, 4, 3, 3, 5, 2, 2}, 3);
    check_all<double>({2, 1, 3, 2, 1, 1, 1}, 4);  // fewer rows and columns than ranks
}

TEST_CASE("K * X: what needs no communication, aliases, laws, errors") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const auto A = support::random_matrix<matrix<double>>(4, 4, 11);
        const auto B = support::random_matrix<matrix<double>>(6, 6, 12);
        const auto C = support::random_matrix<matrix<double>>(5, 5, 13);
        const auto X = support::random_matrix<matrix<double>>(24, 5, 14);
        const matrix<double> K = kron(A, B).toDenseMatrix();
        DistributedMatrix<double> dX(ranks, 24, 5, otimes::cut_columns(ranks.size()));
        dX.from_host(X);
        const auto plan = make_plan(kron(A, B) * dX);
        CHECK(plan.bytes_on_wire == 0);
        CHECK(plan.stages.size() == 1);
        for (const distribution& cut : cuts(ranks.size(), 1, 5)) {
            DistributedMatrix<double> dY(ranks, 24, 5, cut);
            dY.from_host(X);
            dY = kron(A, B) * dY;  // Y is X
            CHECK(dY.layout() == cut);
            CHECK(support::close(dY.to_host(), matrix<double>(K * X), 24));
            dY += kron(A, B) * dY;
            CHECK(support::close(dY.to_host(), matrix<double>(K * X + K * (K * X)), 24 * 24));
            // (K1 X) K2 = K1 (X K2), mixed product and transpose
            DistributedMatrix<double> first(ranks, 24, 5, cut), second(ranks, 24, 5, cut), at_once(ranks, 24, 5, cut);
            first = kron(A, B) * dX;
            first = first * kron(C);
            second = dX * kron(C);
            second = kron(A, B) * second;
            at_once = 2 * (kron(A, B) * dX) * kron(C);
            at_once -= first;
            CHECK(support::close(first.to_host(), second.to_host(), 120));
            CHECK(support::close(at_once.to_host(), second.to_host(), 120));
            first = kron(A, B).transpose() * dX;
            first = kron(A, B) * first;
            second = kron(matrix<double>(A * A.transpose()), matrix<double>(B * B.transpose())) * dX;
            CHECK(support::close(first.to_host(), second.to_host(), 24 * 24));
        }
        DistributedMatrix<double> dY(ranks);
        CHECK_THROWS_AS(dY = kron(A, A) * dX, otimes::shape_error);
        CHECK_THROWS_AS(dY = kron(A, B) * (kron(A, B) * dX), otimes::unsupported_error);
        DistributedMatrix<double> other(ranks, 23, 5, otimes::cut_rows(ranks.size()));
        CHECK_THROWS_AS(other += kron(A, B) * dX, otimes::shape_error);
    }
}

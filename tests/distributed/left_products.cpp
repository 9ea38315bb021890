// SPDX-License-Identifier: MIT
// K * X and K1 * X * K2 over ranks: against the oracle for every way to cut X and Y, and the laws that join the two sides.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <limits>

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
        const std::vector<distribution> targets = cuts_of(ranks.size(), s.first, s.second);
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
        for (const distribution& cut : cuts_of(ranks.size(), 1, 5)) {
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
        dY = kron(A, B) * (kron(A, B) * dX);
        CHECK(support::close(dY.to_host(), matrix<double>(K * (K * X)), 24 * 24));
        DistributedMatrix<double> other(ranks, 23, 5, otimes::cut_rows(ranks.size()));
        CHECK_THROWS_AS(other += kron(A, B) * dX, otimes::shape_error);
    }
}

// What a grid holds and sends is what its plan says: of X, of Y, of both, of a new Y.
TEST_CASE("K * X on a grid: plans count the copies, and limits hold with them [alone]") {
    const auto A = support::random_matrix<matrix<double>>(3, 3, 21);
    const auto B = support::random_matrix<matrix<double>>(4, 2, 22);
    const matrix<double> K = kron(A, B).toDenseMatrix();
    for (const int cols : {10, 200}) {
        const auto X = support::random_matrix<matrix<double>>(6, cols, 23);
        const matrix<double> want = K * X;
        const std::vector<std::int64_t> extents{cols};
        const distribution grid = otimes::cut_mode(2, 2, extents, 0);
        for (const auto& cuts : std::vector<std::pair<distribution, distribution>>{
                 {grid, grid}, {grid, otimes::cut_rows(4)}, {otimes::cut_rows(4), grid}, {grid, distribution{}}}) {
            const distribution& from = cuts.first;  // clang++ 14 captures no structured bindings
            const distribution& to = cuts.second;
            const bool is_new = to == distribution{};
            CAPTURE(cols);
            CAPTURE(to_string(from));
            CAPTURE(to_string(to));
            // What the assignment with this limit takes beside X and Y, at most; none: it is refused, and `least` is what it needs.
            std::int64_t least = 0;
            const auto taken = [&](std::int64_t limit, bool add) -> std::int64_t {
                const auto [ranks, link] = looped(4, {.wishes = {.workspace_limit_bytes = limit}});
                DistributedMatrix<double> x(ranks, 6, cols, from), y(ranks);
                x.from_host(X);
                if (!is_new) {
                    y.resize(12, cols, to);
                    y.fill([](std::int64_t, std::int64_t) { return 1.0; });
                }
                std::int64_t before = 0;
                for (auto& [rank, bytes] : link->held) {
                    bytes.second = bytes.first;
                    before = std::max(before, bytes.first);
                }
                link->bytes_sent = 0;
                try {
                    add ? y += kron(A, B)* x : y = kron(A, B) * x;
                } catch (const otimes::budget_error& refused) {
                    least = refused.least_bytes();
                    return -1;
                }
                const std::int64_t sent = link->bytes_sent;
                std::int64_t most = 0;
                for (std::int32_t rank = 0; rank < 4; ++rank) {
                    most = std::max(most, link->held[rank].second - before -
                                              (is_new ? y.block(rank).elements() * std::int64_t{8} : 0));
                }
                const matrix<double> all = want.array() + (add ? 1.0 : 0.0);
                CHECK(support::close(y.to_host(), all, 6));
                const auto asked = (kron(A, B) * x).in_turn(add, is_new ? nullptr : &y.layout(), ranks.wishes());
                const auto plan = ranks.plan_for(asked.problems, asked.copied_bytes);
                CHECK(plan->bytes_on_wire == sent);
                CHECK(plan->workspace_bytes >= most);
                CHECK(plan->workspace_bytes <= limit);
                CHECK(otimes::distributed_plan_from_text(to_text(*plan)) == *plan);
                return most;
            };
            for (const bool add : {false, true}) {
                if (add && is_new) {
                    continue;
                }
                const std::int64_t most = taken(std::numeric_limits<std::int64_t>::max(), add);
                CHECK(most >= 12 * cols / 4 * 8 / 2);  // a copy of X or of Y
                REQUIRE(taken(0, add) == -1);
                const std::int64_t needed = least;
                CHECK(needed >= most);
                CHECK(taken(needed - 1, add) == -1);
                CHECK(least == needed);
                for (const std::int64_t limit : {needed, needed + 8, 2 * needed}) {
                    const std::int64_t some = taken(limit, add);
                    CHECK(some >= 0);
                    CHECK(some <= limit);
                }
            }
        }
    }
    const auto [ranks, link] = looped(4);
    DistributedMatrix<double> x(ranks, 6, 10, otimes::cut_mode(2, 2, std::vector<std::int64_t>{10}, 0)), y(ranks);
    x.fill([](std::int64_t, std::int64_t) { return 1.0; });
    const auto plan = make_plan(kron(A, B) * x);
    link->bytes_sent = 0;
    y = kron(A, B) * x;
    CHECK(plan.bytes_on_wire == link->bytes_sent);
    CHECK(plan.in_turn.size() == 2);
    const std::string said = otimes::explain(kron(A, B) * x);
    CHECK(said == explain(plan));
    CHECK(said.find("2 plans one after another, through matrices that are cut by columns\n") == 0);
    CHECK(said.find("in all: bytes on the wire: " + std::to_string(plan.bytes_on_wire)) != std::string::npos);
    CHECK_THROWS_AS(ranks.run(plan, x.sources(), y.targets(), {}, 1.0), otimes::unsupported_error);
}

// SPDX-License-Identifier: MIT
// Sums over 1 to 6 ranks: of products, of krons, Kronecker sums, shifts; what they send and hold, aliases, and what is refused.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/compare.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::identity;
using otimes::kron;
using otimes::replicate;

namespace {

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

template <class Scalar>
matrix<Scalar> random(Eigen::Index rows, Eigen::Index cols, std::uint64_t seed) {
    return support::random_matrix<matrix<Scalar>>(rows, cols, seed);
}

// The Kronecker product by its definition.
template <class Scalar>
matrix<Scalar> formed(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    matrix<Scalar> k(a.rows() * b.rows(), a.cols() * b.cols());
    for (Eigen::Index i = 0; i < a.rows(); ++i) {
        for (Eigen::Index j = 0; j < a.cols(); ++j) {
            k.block(i * b.rows(), j * b.cols(), b.rows(), b.cols()) = a(i, j) * b;
        }
    }
    return k;
}

template <class Scalar>
DistributedMatrix<Scalar> held(const otimes::communicator& ranks, const matrix<Scalar>& x, const distribution& cut) {
    DistributedMatrix<Scalar> d(ranks, x.rows(), x.cols(), cut);
    d.from_host(x);
    return d;
}

template <class Scalar>
void check_sums() {
    using dense = matrix<Scalar>;
    const dense A = random<Scalar>(3, 2, 1), B = random<Scalar>(4, 5, 2), C = random<Scalar>(3, 2, 3),
                D = random<Scalar>(4, 5, 4);
    const dense E = random<Scalar>(3, 3, 5), F = random<Scalar>(4, 4, 6);
    const dense X = random<Scalar>(5, 12, 7), Z = random<Scalar>(5, 10, 8), V = random<Scalar>(12, 3, 9),
                G = random<Scalar>(10, 6, 11);
    const dense AB = formed(A, B), CD = formed(C, D), one3 = dense::Identity(3, 3), one4 = dense::Identity(4, 4);
    const dense sum = formed(E, one4) + formed(one3, F);
    const Eigen::Matrix<Scalar, Eigen::Dynamic, 1> d = random<Scalar>(12, 1, 10);
    const dense diagonal = d.asDiagonal();
    const Scalar a = Scalar(-3) / Scalar(2);
    const auto K1 = kron(A, B);
    const auto K2 = kron(C, D);
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const auto R = replicate(ranks, K1 + a * K2);
        const auto R1 = replicate(ranks, K1);
        const auto RS = replicate(ranks, otimes::kron_sum(E, F) - a * identity(12));
        const std::vector<distribution> cuts = cuts_of(ranks.size(), 3, 4);
        for (const distribution& cut : cuts) {
            CAPTURE(to_string(cut));
            const auto dX = held<Scalar>(ranks, X, cut);
            const auto dZ0 = held<Scalar>(ranks, Z, otimes::cut_rows(ranks.size()));
            const auto dV = held<Scalar>(ranks, V,
                                         ranks.size() > 1 && cut.row_parts > 1 ? otimes::cut_columns(ranks.size())
                                                                               : otimes::cut_rows(ranks.size()));
            const auto is = [](const DistributedMatrix<Scalar>& got, const dense& want) {
                return support::close(got.to_host(), want, 40);
            };
            DistributedMatrix<Scalar> dY(ranks);  // a new one, then one that has its distribution
            for (int again = 0; again < 2; ++again) {
                dY = dX * K1 + dX * K2;
                CHECK(is(dY, X * AB + X * CD));
            }
            const distribution kept = dY.layout();
            dY -= a * dX * K1 - dX * K2 / 4;
            CHECK(dY.layout() == kept);
            CHECK(is(dY, X * AB + X * CD - a * X * AB + X * CD / Scalar(4)));
            dY = 2 * (dX * (K1 - a * K2)) - dX * R / 2;
            CHECK(is(dY, Scalar(2) * X * (AB - a * CD) - X * (AB + a * CD) / Scalar(2)));
            dY += -(dX * R1 + dX * (K1 + K2));
            CHECK(is(dY, Scalar(2) * X * (AB - a * CD) - X * (AB + a * CD) / Scalar(2) - X * (AB + AB + CD)));
            // Matrices beside products, of any distribution.
            for (const distribution& other : cuts_of(ranks.size(), 2, 5)) {
                const auto dZ = held<Scalar>(ranks, Z, other);
                dY = dX * K1 - dZ;
                CHECK(is(dY, X * AB - Z));
                DistributedMatrix<Scalar> dW(ranks, 5, 10, other);
                dW = dZ + a * dX * K2;
                CHECK(dW.layout() == other);
                CHECK(is(dW, Z + a * X * CD));
                DistributedMatrix<Scalar> dU(ranks);
                dU = dZ + dY;
                CHECK(is(dU, X * AB));
            }
            // Kronecker sums and shifts, from the right and the left, in place.
            auto dS = dX;
            dS = dX * otimes::kron_sum(E, F);
            CHECK(is(dS, X * sum));
            dS = dX * RS;
            CHECK(is(dS, X * (sum - a * dense::Identity(12, 12))));
            dS = dX * (kron(E, F) + a * identity(12));
            CHECK(is(dS, X * formed(E, F) + a * X));
            dS = dX * (kron(E, F) + d.asDiagonal());
            CHECK(is(dS, X * formed(E, F) + X * diagonal));
            dS = dX;
            dS *= otimes::kron_sum(E, F);
            CHECK(is(dS, X * sum));
            dS = dS * otimes::kron_sum(E, F) - dX + dS;
            CHECK(is(dS, X * sum * sum - X + X * sum));
            dS -= dX * kron(E, F) + dS;
            CHECK(is(dS, -X * formed(E, F)));
            // Products of operators, and of sums.
            DistributedMatrix<Scalar> dP(ranks);
            dP = dX * kron(E, F) * K1 * Scalar(2);
            CHECK(is(dP, Scalar(2) * X * formed(E, F) * AB));
            dP += dX * (kron(E, F) * kron(F, E)) * K1 - (dX * K1 - dZ0) / Scalar(2);
            CHECK(is(dP, Scalar(2) * X * formed(E, F) * AB + X * formed(E, F) * formed(F, E) * AB -
                             (X * AB - Z) / Scalar(2)));
            dP = (dX * kron(E, F) - a * dX) * (K1 + K2) * kron(G);
            CHECK(is(dP, (X * formed(E, F) - a * X) * (AB + CD) * G));
            dS = dX * (otimes::kron_sum(E, F) * kron(E, F) - (kron(F, E) + identity(12)) * otimes::kron_sum(E, F));
            CHECK(is(dS, X * (sum * formed(E, F) - (formed(F, E) + dense::Identity(12, 12)) * sum)));
            dS = dS * kron(E, F) * RS;
            CHECK(is(dS, X * (sum * formed(E, F) - (formed(F, E) + dense::Identity(12, 12)) * sum) * formed(E, F) *
                             (sum - a * dense::Identity(12, 12))));
            auto dT = dV;
            dT = (kron(E, F) * otimes::kron_sum(E, F)) * (kron(F, E) * (dV + kron(E, F) * dV));
            CHECK(is(dT, formed(E, F) * sum * formed(F, E) * (V + formed(E, F) * V)));
            dT = (otimes::kron_sum(E, F) + identity(12)) * dV;
            CHECK(is(dT, sum * V + V));
            dT = K1.transpose() * dV + K2.transpose() * dV;
            CHECK(is(dT, AB.transpose() * V + CD.transpose() * V));
            dT = kron(A.transpose(), B.transpose()) * dV * (kron(V) + kron(V)).transpose() * Scalar(2);
            CHECK(is(dT, AB.transpose() * V * V.transpose() * Scalar(4)));
        }
    }
}

}  // namespace

TEST_CASE("sums over ranks are those of their terms: double") { check_sums<double>(); }
#ifndef OTIMES_TEST_ONCE
TEST_CASE("sums over ranks are those of their terms: complex float") { check_sums<std::complex<float>>(); }
#endif

TEST_CASE("real operators beside complex matrices over ranks") {
    using scalar = std::complex<double>;
    const matrix<double> E = random<double>(3, 3, 20), F = random<double>(2, 2, 21);
    const matrix<scalar> X = random<scalar>(2, 6, 22);
    const matrix<scalar> want =
        X * (formed<double>(E, F) + formed<double>(E, matrix<double>::Identity(2, 2))).cast<scalar>() -
        scalar(0, 2) * X;
    for (const otimes::communicator& ranks : everyone()) {
        const auto dX = held<scalar>(ranks, X, otimes::cut_columns(ranks.size()));
        DistributedMatrix<scalar> dY(ranks);
        dY = dX * (kron(E, F) + kron(E, identity(2))) - scalar(0, 2) * dX;
        CHECK(support::close(matrix<scalar>(dY.to_host()), want, 12));
    }
}

TEST_CASE("a new sum gets the distribution that costs least for all its terms, and sends what its plan says [alone]") {
    const std::vector<std::int64_t> extents{8, 6, 4};
    const matrix<double> A = random<double>(8, 8, 30), B = random<double>(6, 6, 31), C = random<double>(4, 4, 32);
    const matrix<double> X = random<double>(2, 192, 33);
    const auto K = kron(A, B, C);
    const matrix<double> want = X * formed<double>(formed<double>(A, B), C) + 2.0 * X;
    for (const bool chunks : {false, true}) {
        const auto [ranks, link] = looped(4, chunks ? in_chunks : otimes::communicator_options{});
        const auto dX = held<double>(ranks, X, otimes::cut_mode(1, 4, extents, 0));
        // Two exchanges leave the columns as they are cut, so that 2 X is added where it is; one cuts them along another mode, and 2 X is
        // exchanged too.
        DistributedMatrix<double> alone(ranks), dY(ranks);
        alone = dX * K;
        CHECK(!(alone.layout() == dX.layout()));
        const auto plan = make_plan(dX * K + 2 * dX);
        REQUIRE(plan.in_turn.size() == 2);
        link->bytes_sent = 0;
        dY = dX * K + 2 * dX;
        CHECK(link->bytes_sent == plan.bytes_on_wire);
        CHECK(dY.layout() == plan.result);
        CHECK(support::close(dY.to_host(), want, 192));
        CHECK(otimes::distributed_plan_from_text(to_text(plan)) == plan);
        const std::string said = otimes::explain(dX * K + 2 * dX);
        CHECK(said == explain(plan));
        CHECK(said.find("2 plans one after another\n1 of 2, distributed over 4 ranks: X columns along 1 * [8] * 24") ==
              0);
        CHECK(has(said, "\n2 of 2, distributed over 4 ranks: "));
        CHECK(has(said, "in all: bytes on the wire: " + std::to_string(plan.bytes_on_wire) + "; workspace: at most "));
        // None of the other distributions is predicted to be faster.
        for (std::size_t mode = 0; mode < 3; ++mode) {
            const distribution other = otimes::cut_mode(1, 4, extents, mode);
            const auto fixed = otimes::detail::agree_on_terms<double>((dX * K + 2 * dX).terms(), false, &other, {}, {});
            CHECK(fixed.plan->predicted_seconds >= plan.predicted_seconds);
        }
        // Rows need no exchange.
        const auto rows = held<double>(ranks, X, otimes::cut_rows(4));
        DistributedMatrix<double> dR(ranks);
        link->bytes_sent = 0;
        dR = rows * (K + 2 * identity(192));
        CHECK(link->bytes_sent == 0);
        CHECK(dR.layout() == otimes::cut_rows(4));
        CHECK(support::close(dR.to_host(), want, 192));
        // Neither does a multiple of the identity, however the columns are cut.
        const auto shift = make_plan(dX * (K + 2 * identity(192)));
        CHECK(shift.bytes_on_wire == plan.bytes_on_wire);
    }
}

TEST_CASE("a workspace limit holds for a sum, whose terms use the same memory [alone]") {
    const std::vector<std::int64_t> extents{8, 6};
    const matrix<double> A = random<double>(8, 8, 40), B = random<double>(6, 6, 41), X = random<double>(4, 48, 42);
    const matrix<double> want = X * formed<double>(A, B) - X * formed<double>(B, A) + 2.0 * X;
    const distribution cut = otimes::cut_mode(1, 3, extents, 0);
    std::int64_t least = 0;
    const auto taken = [&](std::int64_t limit) -> std::int64_t {
        const auto [ranks, link] = looped(3, {.wishes = {.workspace_limit_bytes = limit}});
        const auto dX = held<double>(ranks, X, cut);
        DistributedMatrix<double> dY(ranks, 4, 48, cut);
        dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
        std::int64_t before = 0;
        for (auto& [rank, bytes] : link->held) {
            bytes.second = bytes.first;
            before = std::max(before, bytes.first);
        }
        try {
            dY = dX * kron(A, B) - dX * kron(B, A) + 2 * dX;
        } catch (const otimes::budget_error& refused) {
            CHECK(dY.to_host().array().isNaN().all());
            least = refused.least_bytes();
            return -1;
        }
        std::int64_t most = 0;
        for (std::int32_t rank = 0; rank < 3; ++rank) {
            most = std::max(most, link->held[rank].second - before);
        }
        CHECK(support::close(dY.to_host(), want, 48));
        return most;
    };
    const std::int64_t everything = std::numeric_limits<std::int64_t>::max();
    // What the plans state for one term alone, and for all.
    const otimes::communicator ranks = looped(3).first;
    const auto dX = held<double>(ranks, X, cut);
    const auto stated = [&](const auto& terms) {
        return otimes::detail::agree_on_terms<double>(terms, false, &cut, {}, {}).plan->workspace_bytes;
    };
    const auto sum = dX * kron(A, B) - dX * kron(B, A) + 2 * dX;
    const std::int64_t all = stated(sum.terms());
    CHECK(all < stated(std::span(sum.terms()).first(1)) + stated(std::span(sum.terms()).subspan(1, 1)));
    CHECK(taken(everything) <= all);
    REQUIRE(taken(0) == -1);
    const std::int64_t needed = least;
    CHECK(needed < all);
    CHECK(taken(needed - 1) == -1);
    CHECK(least == needed);
    for (const std::int64_t limit : {needed, needed + 8, 2 * needed, all, 2 * all}) {
        const std::int64_t some = taken(limit);
        CHECK(some > 0);
        CHECK(some <= limit);
    }
}

TEST_CASE("a sum of rows is one program on each rank, which computes once what terms have in common") {
    using otimes::options;
    const matrix<double> A = random<double>(16, 16, 50), B = random<double>(12, 12, 51), C = random<double>(10, 10, 52);
    const matrix<double> A2 = random<double>(16, 16, 53), C2 = random<double>(10, 10, 54);
    const matrix<double> X = random<double>(7, 1920, 55), Z = random<double>(7, 1920, 56);
    const matrix<double> AB = formed(A, B), A2B = formed(A2, B);
    const matrix<double> want = X * (formed(AB, C) - 2.0 * formed(A2B, C) + formed(AB, C2)) + Z;
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const auto dX = held<double>(ranks, X, otimes::cut_rows(ranks.size()));
        const auto dZ = held<double>(ranks, Z, otimes::cut_rows(ranks.size()));
        const auto R = replicate(ranks, kron(A, B, C) - 2.0 * kron(A2, B, C) + kron(A, B, C2));
        const auto S = kron(A, B, C) - 2.0 * kron(A2, B, C) + kron(A, B, C2);
        DistributedMatrix<double> dY(ranks);
        for (int again = 0; again < 2; ++again) {
            dY = dX * S + dZ;
            CHECK(support::close(dY.to_host(), want, 2 * 1920));
        }
        dY -= dX * S + dZ / 2;
        CHECK(support::close(dY.to_host(), matrix<double>(0.5 * Z), 3 * 1920));
        const otimes::distributed_plan plan = make_plan(dX * S + dZ);
        CHECK(plan.in_turn.empty());
        CHECK(plan.stages.empty());
        CHECK(plan.bytes_on_wire == 0);
        CHECK(plan.result == dX.layout());
        CHECK(plan.terms_at_once == 4);
        CHECK(plan.shares_steps);
        // Six products instead of nine: one of A - 2 A2, and two that the terms with A have in common.
        REQUIRE(plan.at_once.size() == (7 % ranks.size() == 0 ? 1 : 7 < ranks.size() ? 1 : 2));
        for (std::size_t i = 0; i < plan.at_once.size(); ++i) {
            const auto contracts =
                std::ranges::count(plan.at_once[i].source.steps, otimes::step_kind::contract, &otimes::step::kind);
            CHECK(contracts == 6);
            CHECK(plan.rows_at_once[i] == otimes::part_of(7, ranks.size(), i == 0 ? 0 : ranks.size() - 1).size());
        }
        CHECK(otimes::distributed_plan_from_text(to_text(plan)) == plan);
        CHECK(
            has(otimes::explain(dX * S + dZ), "  1. local: 4 terms at once, products that they have in common once; "));
        CHECK_THROWS_AS(ranks.run(plan, dX.sources(), dY.targets(), {}, 1.0), otimes::unsupported_error);
        // Replicated factors are the same for all terms that have them.
        CHECK(R.terms()[0].addresses(1) == R.terms()[1].addresses(1));
        CHECK(R.terms()[0].addresses(0) != R.terms()[1].addresses(0));
        CHECK(R.terms()[0].addresses(0) == R.terms()[2].addresses(0));
        CHECK(make_plan(dX * R + dZ).shares_steps);
        dY = dX * R + dZ;
        CHECK(support::close(dY.to_host(), want, 2 * 1920));
        // Limits, from the least that does.
        std::int64_t least = 0;
        try {
            static_cast<void>(make_plan(dX * S + dZ, options{.workspace_limit_bytes = 0}));
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
            CHECK(has(refused.what(), "bytes on a rank, but workspace_limit_bytes is 0"));
        }
        REQUIRE(least > 0);
        CHECK(least < plan.workspace_bytes);
        CHECK_THROWS_AS(static_cast<void>(make_plan(dX * S + dZ, options{.workspace_limit_bytes = least - 1})),
                        otimes::budget_error);
        if (ranks_test::under_mpi()) {
            continue;
        }
        for (const std::int64_t limit : {least, (least + plan.workspace_bytes) / 2, plan.workspace_bytes}) {
            const otimes::communicator limited =
                otimes::in_process(ranks.size(), {.wishes = {.workspace_limit_bytes = limit}});
            const auto lX = held<double>(limited, X, otimes::cut_rows(ranks.size()));
            const auto lZ = held<double>(limited, Z, otimes::cut_rows(ranks.size()));
            CHECK(make_plan(lX * S + lZ).workspace_bytes <= limit);
            DistributedMatrix<double> lY(limited);
            lY = lX * S + lZ;
            CHECK(support::close(lY.to_host(), want, 2 * 1920));
        }
    }
}

TEST_CASE("a deterministic sum of rows has the same bits on any number of ranks, within any limit [alone]") {
    // What is predicted to be faster depends on the rows: of 2 x 7 x 3 the terms have B once for three rows, and not for eight.
    const matrix<double> X = random<double>(8, 42, 60);
    const matrix<double> A = random<double>(2, 2, 61), B = random<double>(7, 7, 62), B2 = random<double>(7, 7, 63);
    const matrix<double> C = random<double>(3, 3, 64);
    const auto S = kron(A, B, C) + 2.0 * kron(A, B2, C);
    const auto evaluated = [&](int count, std::int64_t limit) {
        const otimes::communicator ranks =
            otimes::in_process(count, {.wishes = {.workspace_limit_bytes = limit, .deterministic = true}});
        const auto dX = held<double>(ranks, X, otimes::cut_rows(count));
        DistributedMatrix<double> dY(ranks);
        dY = dX * S;
        return dY.to_host();
    };
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const matrix<double> want = evaluated(1, most);
    CHECK(support::close(want, matrix<double>(X * (formed(formed(A, B), C) + 2.0 * formed(formed(A, B2), C))), 84));
    for (const int count : {1, 2, 3, 5, 8, 9}) {
        CAPTURE(count);
        CHECK((evaluated(count, most) == want));
        std::int64_t least = 0;
        try {
            static_cast<void>(evaluated(count, 0));
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
        }
        REQUIRE(least > 0);
        for (const std::int64_t limit : {least, least + 512, 2 * least}) {
            CHECK((evaluated(count, limit) == want));
        }
    }
}

TEST_CASE("a deterministic sum of cut columns has the same bits for any number of rows, within any limit [alone]") {
    // Which of the terms' distributions costs least for both depends on the rows and on the limit.
    const auto check = [](int count, const std::vector<matrix<double>>& factors,
                          const std::vector<std::int64_t>& extents) {
        const std::int64_t cols = otimes::planning::product_of(extents);
        const matrix<double> X = random<double>(38, cols, 65), Z = random<double>(38, cols, 66);
        const auto evaluated = [&](std::int64_t rows, std::int64_t limit) {
            const otimes::communicator ranks =
                looped(count, {.links = {.bytes_per_second = 4e9, .exchange_seconds = 1e-6},
                               .wishes = {.workspace_limit_bytes = limit, .deterministic = true}})
                    .first;
            const auto dX = held<double>(ranks, X.topRows(rows), otimes::cut_mode(1, count, extents, 0));
            const auto dZ =
                held<double>(ranks, Z.topRows(rows), otimes::cut_mode(1, count, extents, extents.size() - 1));
            DistributedMatrix<double> dY(ranks);
            dY = dX * kron(factors) - 2.0 * dZ * kron(factors);
            return dY.to_host();
        };
        constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
        const matrix<double> all = evaluated(38, most);
        for (const int rows : {1, 2, 7, 17}) {
            CHECK((evaluated(rows, most) == all.topRows(rows)));
        }
        std::int64_t least = 0;
        try {
            static_cast<void>(evaluated(38, 0));
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
        }
        REQUIRE(least > 0);
        for (const std::int64_t limit : {least, least + least / 2, 2 * least}) {
            CHECK((evaluated(38, limit) == all));
        }
    };
    check(4, {random<double>(4, 1, 67), random<double>(1, 2, 68), random<double>(4, 2, 69)}, {4, 1, 4});
    check(2, {random<double>(4, 6, 70), random<double>(3, 3, 71), random<double>(5, 6, 72), random<double>(4, 1, 73)},
          {4, 3, 5, 4});
    check(6, {random<double>(6, 3, 74), random<double>(2, 2, 75), random<double>(2, 4, 76), random<double>(6, 1, 77)},
          {6, 2, 2, 6});
}

TEST_CASE("sums that cannot be evaluated are refused by all ranks, and nothing is written") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const matrix<double> two = matrix<double>::Ones(2, 2), three = matrix<double>::Ones(3, 3),
                             wide = matrix<double>::Ones(3, 4);
        const auto one = [](std::int64_t, std::int64_t) { return 1.0; };
        DistributedMatrix<double> dX(ranks, 4, 6, otimes::cut_columns(ranks.size())), dY(dX), dZ(ranks, 5, 6);
        dX.fill(one);
        dY.fill(one);
        dZ.fill(one);
        CHECK(has(thrown([&] { dY = dX * kron(two, three) + dX * kron(two, wide); }),
                  "shape: otimes: a sum over ranks: the first term is 4 x 6, term 2 is 4 x 8; they must be equal."));
        CHECK(has(thrown([&] { dY = dX - dZ; }), "term 2 is 5 x 6"));
        CHECK(has(thrown([&] { dY = dX + dX * kron(three, three); }), "shape: otimes: X * kron(F1, F2): X is 4 x 6"));
        CHECK(has(thrown([&] { dY += dZ + dZ; }), "shape: otimes: Y += expression: Y is 4 x 6, the expression 5 x 6"));
        CHECK(has(thrown([&] { dY -= dZ + dZ; }), "shape: otimes: Y -= expression: Y is 4 x 6, the expression 5 x 6"));
        CHECK(
            has(thrown([&] { static_cast<void>(replicate(ranks, kron(two, three) * kron(three, two) + identity(6))); }),
                "unsupported: otimes: replicate(ranks, S): a term of S is a product of 2 operators. Replicate each"));
        // A product that does not fit inside one that is multiplied on.
        CHECK(has(thrown([&] { dY = dX * kron(three, three) * kron(two, three); }),
                  "shape: otimes: X * kron(F1, F2): X is 4 x 6"));
        CHECK(has(thrown([&] { dY = (dX - dZ) * kron(two, three); }), "term 2 is 5 x 6"));
        CHECK(has(thrown([&] { dY = dX * (kron(two, three) * kron(three, two)) * kron(wide, three); }), "shape: "));
        const otimes::communicator other = otimes::in_process(ranks.size());
        DistributedMatrix<double> elsewhere(other, 4, 6);
        elsewhere.fill(one);
        CHECK(
            has(thrown([&] { dY = dX + elsewhere; }),
                "unsupported: otimes: a sum over ranks: the first term and term 2 belong to different communicators."));
        CHECK(dY.layout() == dX.layout());
        CHECK((dY.to_host().array() == 1).all());
        dY = dX + dX;
        CHECK((dY.to_host().array() == 2).all());
    }
}

TEST_CASE("ranks whose sums have other numbers of terms, or of which one has none, throw together and go on") {
    if (!under_mpi() || everyone().front().size() == 1) {
        return;
    }
    const otimes::communicator& ranks = everyone().front();
    const bool first = ranks.rank() == 0;
    DistributedMatrix<double> dX(ranks, 4, 6, otimes::cut_columns(ranks.size())), dY(dX);
    dX.fill([](std::int64_t, std::int64_t) { return 1.0; });
    const matrix<double> two = matrix<double>::Identity(2, 2), three = matrix<double>::Identity(3, 3);
    const auto K = kron(two, three);
    const std::string said = thrown([&] {
        auto sum = dX * K + dX;
        if (!first) {
            sum = sum - dX;
        }
        dY = sum;
    });
    CHECK(has(said, "unsupported: otimes: the ranks were asked for different products"));
    CHECK((first ? has(said, "this rank agrees with rank 0")
                 : has(said, "the products one after another are 3 here, 2 there: a sum has another number of terms")));
    const matrix<double> large = matrix<double>::Ones(first ? 300 : 6, first ? 300 : 6);
    CHECK(has(thrown([&] { dY = dX * kron(large.triangularView<Eigen::Lower>()) * K; }),
              first ? "unsupported: otimes: factor 1, 300 x 300" : "device: otimes: another rank could not"));
    CHECK(has(thrown([&] { dY = first ? dX * K * K : dX * K; }), "the ranks "));
    // On one rank two terms are of one matrix, on the others of two.
    DistributedMatrix<double> rows(ranks, 4, 6), same(rows);
    rows.fill([](std::int64_t, std::int64_t) { return 1.0; });
    same.fill([](std::int64_t, std::int64_t) { return 1.0; });
    CHECK(has(thrown([&] { rows = rows * K + (first ? rows : same) * K; }),
              first ? "this rank agrees with rank 0" : "terms of the sum have matrices in common"));
    CHECK(has(thrown([&] { first ? dY += dX + dX : dY -= dX + dX; }), "the ranks were asked for different products"));
    dY = dX * K + dX;
    CHECK((dY.to_host().array() == 2).all());
}

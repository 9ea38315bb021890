// SPDX-License-Identifier: MIT
// Distributed products against the oracle and against one process, over every kind of distribution.
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

template <class Scalar>
struct problem {
    std::vector<matrix<Scalar>> factors;
    matrix<Scalar> x;
    std::vector<std::int64_t> before;
    std::vector<std::int64_t> after;
};

template <class Scalar>
problem<Scalar> made(std::int64_t rows, const std::vector<std::pair<int, int>>& shapes, std::uint64_t seed) {
    problem<Scalar> p;
    std::int64_t cols = 1;
    for (const auto& [rows_of, cols_of] : shapes) {
        p.factors.push_back(support::random_matrix<matrix<Scalar>>(rows_of, cols_of, ++seed));
        p.before.push_back(rows_of);
        p.after.push_back(cols_of);
        cols *= rows_of;
    }
    p.x = support::random_matrix<matrix<Scalar>>(rows, cols, ++seed);
    return p;
}

// Every way to cut columns with these extents over the ranks, the rows, and grids of both.
std::vector<distribution> cuts(std::int32_t ranks, const std::vector<std::int64_t>& extents) {
    std::vector<distribution> list{otimes::cut_rows(ranks), otimes::cut_columns(ranks)};
    for (std::size_t k = 0; k < extents.size(); ++k) {
        list.push_back(otimes::cut_mode(1, ranks, extents, k));
        if (ranks % 2 == 0) {
            list.push_back(otimes::cut_mode(2, ranks / 2, extents, k));
        } else if (ranks > 2) {
            list.push_back(otimes::cut_mode(1, ranks - 1, extents, k));
        }
    }
    distribution one;
    one.first_rank = ranks - 1;
    list.push_back(one);
    return list;
}

// Y = X * K from every distribution into a free one and into every given one.
template <class Scalar>
void check_all(std::int64_t rows, const std::vector<std::pair<int, int>>& shapes, std::uint64_t seed) {
    const problem<Scalar> p = made<Scalar>(rows, shapes, seed);
    const matrix<Scalar> K = kron(p.factors).toDenseMatrix();
    const auto want = oracle::multiply(oracle::from(p.x), oracle::from(K));
    const matrix<Scalar> one_process = p.x * kron(p.factors);
    std::size_t length = 1;
    for (const auto e : p.before) {
        length *= static_cast<std::size_t>(e);
    }
    for (const otimes::communicator& ranks : everyone()) {
        std::size_t number = 0;
        const std::vector<distribution> targets = cuts(ranks.size(), p.after);
        for (const distribution& from : cuts(ranks.size(), p.before)) {
            DistributedMatrix<Scalar> dX(ranks, p.x.rows(), p.x.cols(), from);
            dX.from_host(p.x);
            DistributedMatrix<Scalar> dY(ranks);
            dY = dX * kron(p.factors);
            const matrix<Scalar> free = dY.to_host();
            CAPTURE(ranks.name());
            CAPTURE(to_string(from));
            CHECK(support::close(free, want, length));
            if (from.col_parts == 1) {
                CHECK(dY.layout().row_parts == from.row_parts);
                CHECK((free.array() == one_process.array()).all());
            }
            const distribution& to = targets[number++ % targets.size()];
            CAPTURE(to_string(to));
            DistributedMatrix<Scalar> dZ(ranks, one_process.rows(), one_process.cols(), to);
            dZ.fill(
                [](std::int64_t, std::int64_t) { return std::numeric_limits<support::real_t<Scalar>>::quiet_NaN(); });
            dZ = dX * kron(p.factors);
            CHECK(dZ.layout() == to);
            const matrix<Scalar> fixed = dZ.to_host();
            CHECK(support::close(fixed, want, length));
            dZ = dX * kron(p.factors);
            CHECK((dZ.to_host().array() == fixed.array()).all());  // repeatable
            dZ -= Scalar(3) * dX * kron(p.factors);
            CHECK(support::close(dZ.to_host(), oracle::scale(Scalar(-2), want), length));
        }
    }
}

}  // namespace

TEST_CASE("a product over every distribution: rectangular factors, uneven extents") {
    check_all<double>(5, {{3, 2}, {2, 5}, {7, 3}}, 1);
    check_all<std::complex<float>>(2, {{4, 4}, {5, 5}, {3, 3}}, 2);
}

TEST_CASE("fewer rows and columns than ranks, one factor, extents of one") {
    check_all<double>(1, {{2, 3}}, 4);
    check_all<double>(1, {{1, 4}, {3, 1}, {2, 2}}, 5);
    check_all<double>(7, {{1, 1}, {2, 1}}, 6);
    check_all<double>(0, {{2, 3}, {2, 2}}, 7);
}

TEST_CASE("identities, views, real factors of a complex X, sums and scalars, Y is X") {
    for (const otimes::communicator& ranks : everyone()) {
        const problem<double> p = made<double>(3, {{4, 4}, {3, 3}, {5, 5}}, 8);
        const auto& [A, B, C] = std::tie(p.factors[0], p.factors[1], p.factors[2]);
        for (const distribution& from : cuts(ranks.size(), p.before)) {
            CAPTURE(ranks.name());
            CAPTURE(to_string(from));
            DistributedMatrix<double> dX(ranks, 3, 60, from);
            dX.from_host(p.x);
            DistributedMatrix<double> dY(dX);
            dY += 2 * dX * kron(A.transpose(), otimes::identity(3), C.topLeftCorner(5, 5)) * 0.5;
            const matrix<double> want = p.x + p.x * kron(A.transpose(), otimes::identity(3), C);
            CHECK(support::close(dY.to_host(), want, 20));
            dY -= 3 * dX;
            CHECK(support::close(dY.to_host(), matrix<double>(want - 3 * p.x), 20));
            dY = dX * kron(otimes::identity(4), otimes::identity(15));
            CHECK((dY.to_host().array() == p.x.array()).all());
            CHECK(dY.layout() == from);
            const auto K = otimes::replicate(ranks, kron(A, B, C));
            dX = dX * (kron(A, B, C));
            CHECK(dX.layout() == from);
            const matrix<double> once = p.x * kron(A, B, C);
            CHECK(support::close(dX.to_host(), once, 60));
            dX += dX * K;
            CHECK(support::close(dX.to_host(), matrix<double>(once + once * kron(A, B, C)), 60));
            // Quotients, negation, in place.
            dX.from_host(p.x);
            dY = -(dX * K) / 4;
            CHECK(support::close(dY.to_host(), matrix<double>(-0.25 * once), 60));
            dY += -dX / 2;
            CHECK(support::close(dY.to_host(), matrix<double>(-0.25 * once - 0.5 * p.x), 60));
            dX *= kron(A, B, C);
            CHECK(dX.layout() == from);
            CHECK(support::close(dX.to_host(), once, 60));
            dX /= 8;
            dX *= -2.0;
            dX *= K;
            CHECK(support::close(dX.to_host(), matrix<double>(-0.25 * once * kron(A, B, C)), 60));
            dY = dX * 4;
            CHECK((dY.to_host().array() == 4 * dX.to_host().array()).all());
        }
        const problem<std::complex<float>> z = made<std::complex<float>>(2, {{2, 2}, {3, 3}}, 9);
        const auto R = support::random_matrix<matrix<float>>(2, 4, 10);
        DistributedMatrix<std::complex<float>> dZ(ranks, 2, 6, otimes::cut_columns(ranks.size()));
        dZ.from_host(z.x);
        DistributedMatrix<std::complex<float>> dW(ranks);
        dW = std::complex<float>(0, 2) * dZ * kron(R, z.factors[1].adjoint());
        const matrix<std::complex<float>> want = std::complex<float>(0, 2) * z.x * kron(R, z.factors[1].adjoint());
        CHECK(support::close(dW.to_host(), want, 6));
    }
}

TEST_CASE("what is sent is what the plan says, and half of Algorithm 2") {
    for (const int count : {2, 3, 4, 5, 6}) {
        auto [ranks, sent] = looped(count);
        for (const int rows : {1, 2}) {
            const problem<double> p = made<double>(rows, {{6, 6}, {6, 6}, {6, 6}}, 11);
            DistributedMatrix<double> dX(ranks, rows, 216, otimes::cut_mode(1, count, p.before, 0));
            dX.from_host(p.x);
            DistributedMatrix<double> dY(ranks);
            const otimes::distributed_plan plan = otimes::make_plan(dX * kron(p.factors));
            sent->bytes_sent = 0;
            dY = dX * kron(p.factors);
            CHECK(sent->bytes_sent == plan.bytes_on_wire);
            if (216 % count == 0) {  // uneven ranges move less
                const std::int64_t theirs = 8 * otimes::algorithm_2_elements(rows, plan.source.factors, count);
                CHECK(2 * plan.bytes_on_wire <= theirs);
                CHECK((6 % count != 0 || 2 * plan.bytes_on_wire == theirs));
            }
            // Keeping the cut takes two exchanges.
            DistributedMatrix<double> dZ(ranks, rows, 216, dX.layout());
            sent->bytes_sent = 0;
            dZ = dX * kron(p.factors);
            CHECK(sent->bytes_sent <= 2 * plan.bytes_on_wire);
        }
        // Rows never talk.
        const problem<double> p = made<double>(2 * count + 1, {{6, 5}, {3, 7}}, 12);
        DistributedMatrix<double> dX(ranks, p.x.rows(), p.x.cols());
        dX.from_host(p.x);
        DistributedMatrix<double> dY(ranks);
        sent->starts = 0;
        sent->bytes_sent = 0;
        dY = dX * kron(p.factors);
        CHECK(sent->starts == 0);
        CHECK(sent->bytes_sent == 0);
    }
    // Long runs go as messages of their own, without packing: one for each row and index of the first mode and pair.
    auto [ranks, sent] = looped(2);
    const problem<double> p = made<double>(2, {{4, 4}, {4, 4}, {96, 96}, {96, 96}}, 13);
    DistributedMatrix<double> dX(ranks, 2, 4 * 4 * 96 * 96, otimes::cut_columns(2));
    dX.from_host(p.x);
    DistributedMatrix<double> dY(ranks, 2, 4 * 4 * 96 * 96, otimes::cut_mode(1, 2, p.before, 1));
    sent->messages = 0;
    dY = dX * kron(p.factors[0], p.factors[1], otimes::identity(96), otimes::identity(96));
    CHECK(sent->messages == 2 * 2 * 2);
    const matrix<double> want = p.x * kron(p.factors[0], p.factors[1], otimes::identity(96), otimes::identity(96));
    CHECK(support::close(dY.to_host(), want, 16));
}

TEST_CASE("slabs of rows by turns: the exchange of one is on its way while the next is computed") {
    const problem<double> p = made<double>(7, {{4, 6}, {6, 4}, {16, 16}}, 15);
    const matrix<double> want = p.x * kron(p.factors);
    const otimes::interconnect links{
        .bytes_per_second = 1e9, .exchange_seconds = 1e-9, .chunks = 3, .least_chunk_bytes = 1};
    for (const bool keeps_the_cut : {false, true}) {  // one exchange, two
        matrix<double> at_once;
        for (const bool by_turns : {false, true}) {
            auto [ranks, link] = looped(2, {.links = by_turns ? links : otimes::interconnect{.bytes_per_second = 1e9}});
            const distribution from = otimes::cut_mode(1, 2, p.before, 0);
            const distribution to =
                keeps_the_cut ? otimes::cut_mode(1, 2, p.after, 0) : otimes::cut_mode(1, 2, p.after, 2);
            DistributedMatrix<double> dX(ranks, 7, p.x.cols(), from);
            dX.from_host(p.x);
            DistributedMatrix<double> dY(ranks, 7, want.cols(), to);
            dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            const auto plan = ranks.plan_for((dX * kron(p.factors)).problem(false, &to, ranks.wishes()));
            REQUIRE(plan->overlapped == by_turns);
            CHECK(plan->slab_count == (by_turns ? 3 : 1));
            link->bytes_sent = 0;
            link->most_on_their_way = 0;
            dY = dX * kron(p.factors);
            CHECK(link->bytes_sent == plan->bytes_on_wire);
            CHECK(support::close(dY.to_host(), want, 384));
            dY += 2 * dX * kron(p.factors);
            CHECK(support::close(dY.to_host(), matrix<double>(3 * want), 384));
            if (!by_turns) {
                at_once = dY.to_host();
                continue;
            }
            CHECK((dY.to_host().array() == at_once.array()).all());  // bit by bit
        }
    }
    // Runs that are long enough to go without packing are left on their way.
    auto [ranks, link] = looped(2, {.links = links});
    const problem<double> q = made<double>(6, {{4, 4}, {4, 4}, {96, 96}, {96, 96}}, 16);
    DistributedMatrix<double> dX(ranks, 6, q.x.cols(), otimes::cut_columns(2));
    dX.from_host(q.x);
    DistributedMatrix<double> dY(ranks, 6, q.x.cols(), otimes::cut_mode(1, 2, q.before, 1));
    link->most_on_their_way = 0;
    dY = dX * kron(q.factors[0], q.factors[1], otimes::identity(96), otimes::identity(96));
    CHECK(link->most_on_their_way == 2);
    const matrix<double> given = q.x * kron(q.factors[0], q.factors[1], otimes::identity(96), otimes::identity(96));
    CHECK(support::close(dY.to_host(), given, 16));
}

// Y = X * K with the last stages in `chunks` chunks of a mode that no rank cuts; mode 1 is cut before the exchange, the second one behind it.
template <class Scalar, class Factors>
void check_chunks_that_go_on(const otimes::communicator& ranks, const otimes::interconnect& links,
                             const problem<Scalar>& p, const Factors& K, const matrix<Scalar>& want,
                             std::int32_t row_parts) {
    constexpr std::int32_t mode = 2;
    constexpr std::size_t stages = 4;
    otimes::enable_cpu<Scalar>();
    const std::int64_t rows = p.x.rows();
    const std::int32_t col_parts = ranks.size() / row_parts;
    DistributedMatrix<Scalar> dX(ranks, rows, p.x.cols(), otimes::cut_mode(row_parts, col_parts, p.before, 0));
    dX.from_host(p.x);
    const distribution to = otimes::cut_mode(row_parts, col_parts, p.after, 1);
    DistributedMatrix<Scalar> dY(ranks, rows, want.cols(), to);
    dY.fill([](std::int64_t, std::int64_t) { return Scalar(std::numeric_limits<float>::quiet_NaN()); });
    const auto there = otimes::replicate(ranks, K);
    std::vector<std::vector<const void*>> factors;
    for (std::size_t k = 0; k < p.factors.size(); ++k) {
        factors.push_back(there.addresses(k));
    }
    const auto run = [&](const otimes::distributed_plan& plan, double scale) {
        ranks.run(plan, dX.sources(), dY.targets(), factors, scale);
    };
    const auto planned = [&](bool add) {
        const otimes::distributed_problem asked = (dX * there).problem(add, &to, ranks.wishes());
        std::int64_t least = 0;
        return otimes::planning::plan_at_once(asked, ranks.over().executor_of(0).target(), links, true, least, {},
                                              true);
    };
    otimes::distributed_plan plan = planned(false);
    REQUIRE(plan.stages.size() == stages);
    otimes::distributed_stage& first = plan.stages[stages - 3];
    CHECK(first.chunk_mode == mode);
    CHECK(first.chunks == links.chunks);
    CHECK(plan.stages[stages - 1].chunk_mode == mode);
    for (const bool by_places : {false, true}) {
        for (otimes::plan& one : first.plans) {
            const auto other = otimes::planning::from_place_to_place(plan.source, first.factors, one.source);
            if (by_places && other) {
                one = otimes::make_plan(*other, ranks.over().executor_of(0).target());
            }
        }
        run(plan, 1.0);
        CHECK(support::close(dY.to_host(), want, 630));
    }
    run(planned(true), -3.0);
    CHECK(support::close(dY.to_host(), matrix<Scalar>(Scalar(-2) * want), 630));
}

TEST_CASE("chunks of a mode that no rank cuts are multiplied further when they have arrived") {
    otimes::interconnect links{.bytes_per_second = 1e9, .chunks = 3, .least_chunk_bytes = 1, .stores = false};
    const auto check = [&links]<class Scalar>(const otimes::communicator& ranks, const problem<Scalar>& p,
                                              std::int32_t row_parts) {
        const auto K = kron(p.factors);
        check_chunks_that_go_on(ranks, links, p, K, matrix<Scalar>(p.x * K.toDenseMatrix()), row_parts);
    };
    for (const otimes::communicator& ranks : everyone()) {
        for (const auto& [row_parts, rows] : {std::pair{1, 1}, {1, 2}, {2, 3}}) {
            if (ranks.size() % row_parts != 0 || ranks.size() == row_parts) {
                continue;
            }
            CAPTURE(ranks.name());
            // Mode 3 goes first, then modes 2 and 4, of which the last one in place where it is square.
            check(ranks, made<double>(rows, {{5, 4}, {7, 8}, {6, 5}, {3, 2}}, 18), row_parts);
            check(ranks, made<float>(rows, {{5, 4}, {7, 8}, {6, 5}, {3, 3}}, 18), row_parts);
            check(ranks, made<std::complex<float>>(rows, {{5, 4}, {4, 8}, {6, 5}, {3, 2}}, 18), row_parts);
        }
    }
    // Runs that are long enough to go without packing are on their way until their chunk is multiplied further; two chunks at a time.
    auto [ranks, link] = looped(2);
    problem<double> q = made<double>(1, {{4, 3}, {4, 5}, {6, 4}, {96, 96}, {96, 96}}, 20);
    const auto K = kron(q.factors[0], q.factors[1], q.factors[2], otimes::identity(96), otimes::identity(96));
    link->most_on_their_way = 0;
    check_chunks_that_go_on(ranks, links, q, K, matrix<double>(q.x * K), 1);
    CHECK(link->most_on_their_way == 2);
}

TEST_CASE("the last pass stores into the ranks that take its output [alone]") {
    const problem<double> p = made<double>(3, {{5, 4}, {6, 7}, {4, 3}, {5, 4}}, 17);
    const matrix<double> want = p.x * kron(p.factors);
    for (const auto& [row_parts, col_parts] : {std::pair{1, 2}, {1, 3}, {2, 2}, {1, 6}}) {
        for (const bool stores : {false, true}) {
            const otimes::communicator ranks =
                otimes::in_process(row_parts * col_parts,
                                   {.links = {.bytes_per_second = 1e8, .exchange_seconds = 1e-9, .stores = stores}});
            DistributedMatrix<double> dX(ranks, 3, p.x.cols(), otimes::cut_mode(row_parts, col_parts, p.before, 0));
            dX.from_host(p.x);
            const distribution to = otimes::cut_mode(row_parts, col_parts, p.after, 1);
            DistributedMatrix<double> dY(ranks, 3, want.cols(), to);
            dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            const auto plan = ranks.plan_for((dX * kron(p.factors)).problem(false, &to, ranks.wishes()));
            CHECK(std::ranges::any_of(plan->stages, [](const otimes::distributed_stage& s) {
                      return s.kind == otimes::stage_kind::store;
                  }) == stores);
            dY = dX * kron(p.factors);
            CHECK(support::close(dY.to_host(), want, 420));
            dY -= 3 * dX * kron(p.factors);
            CHECK(support::close(dY.to_host(), matrix<double>(-2 * want), 420));
        }
    }
}

TEST_CASE("a workspace limit bounds what a column cut takes beside X and Y, from the least up") {
    const problem<double> p = made<double>(7, {{4, 6}, {6, 4}, {5, 5}}, 14);
    const matrix<double> want = p.x * kron(p.factors);
    for (const auto& [row_parts, col_parts] : {std::pair{1, 2}, {1, 3}, {2, 2}}) {
        const int count = row_parts * col_parts;
        const distribution from = otimes::cut_mode(row_parts, col_parts, p.before, 0);
        const distribution to = otimes::cut_mode(row_parts, col_parts, p.after, 1);
        std::int64_t most = 0;
        std::int64_t least = 0;
        const auto run = [&](std::int64_t limit) {
            auto [ranks, link] = looped(count, {.wishes = {.workspace_limit_bytes = limit}});
            DistributedMatrix<double> dX(ranks, 7, 120, from);
            dX.from_host(p.x);
            DistributedMatrix<double> dY(ranks, 7, 120, to);
            dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            std::map<std::int32_t, std::int64_t> before;
            for (const auto& [rank, bytes] : link->held) {
                before[rank] = bytes.first;
            }
            for (auto& [rank, bytes] : link->held) {
                bytes.second = bytes.first;
            }
            otimes::distributed_problem asked = (dX * kron(p.factors)).problem(false, &to, ranks.wishes());
            const auto plan = ranks.plan_for(asked);
            REQUIRE(plan->workspace_bytes <= limit);
            link->bytes_sent = 0;
            dY = dX * kron(p.factors);
            CHECK(link->bytes_sent == plan->bytes_on_wire);
            for (const auto& [rank, bytes] : link->held) {
                CHECK(bytes.second - before[rank] <= plan->workspace_bytes);
            }
            CHECK(support::close(dY.to_host(), want, 120));
            return std::pair{plan->workspace_bytes, plan->slab_count};
        };
        const auto [unlimited, one] = run(std::numeric_limits<std::int64_t>::max());
        CHECK(one == 1);
        most = unlimited;
        try {
            run(0);
            FAIL("nothing needs no workspace here");
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
            CHECK(std::string(refused.what()).find("at least " + std::to_string(least) + " bytes on a rank") !=
                  std::string::npos);
        }
        REQUIRE(least > 0);
        REQUIRE(least < most);
        CHECK_THROWS_AS(run(least - 1), otimes::budget_error);
        try {
            run(std::numeric_limits<std::int64_t>::min());
            FAIL("as no workspace");
        } catch (const otimes::budget_error& refused) {
            CHECK(refused.least_bytes() == least);
        }
        CHECK(run(least).second == (7 + row_parts - 1) / row_parts);  // row by row
        std::int64_t slabs = 7;
        for (std::int64_t limit = least; limit < most; limit += 64 + (most - least) / 40) {
            const std::int64_t count_now = run(limit).second;
            CHECK(count_now <= slabs);
            slabs = count_now;
        }
    }
    // Rows that lie on other ranks in Y than in X are not done in slabs, and every rank is told so.
    for (const otimes::communicator& ranks : everyone()) {
        if (ranks.size() == 1) {
            continue;
        }
        DistributedMatrix<double> dX(ranks, 7, 120, otimes::cut_mode(1, ranks.size(), p.before, 0));
        dX.from_host(p.x);
        const distribution rows = otimes::cut_rows(ranks.size());
        const auto asked = (dX * kron(p.factors)).problem(false, &rows, {.workspace_limit_bytes = 8});
        try {
            static_cast<void>(ranks.plan_for(asked));
            FAIL("a row does not fit in 8 bytes");
        } catch (const otimes::budget_error& refused) {
            CHECK(refused.least_bytes() > 8);
            CHECK(std::string(refused.what()).find("the same parts of rows") != std::string::npos);
        }
    }
}

TEST_CASE("rows of a deterministic product have the same bits however many there are, within any limit [alone]") {
    constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
    using shape_list = std::vector<std::pair<int, int>>;
    const auto check = [](int count, const shape_list& shapes) {
        const problem<double> p = made<double>(17, shapes, 30);
        const auto evaluated = [&](std::int64_t rows, int over, const distribution& from, const distribution* to,
                                   std::int64_t limit) {
            const otimes::communicator ranks =
                looped(
                    over,
                    {.links = {.bytes_per_second = 4e9, .exchange_seconds = 1e-6, .chunks = 2, .least_chunk_bytes = 1},
                     .wishes = {.workspace_limit_bytes = limit, .deterministic = true}})
                    .first;
            DistributedMatrix<double> dX(ranks, rows, p.x.cols(), from), dY(ranks);
            dX.from_host(matrix<double>(p.x.topRows(rows)));
            if (to != nullptr) {
                dY.resize(rows, otimes::planning::product_of(p.after), *to);
            }
            dY = dX * kron(p.factors);
            return dY.to_host();
        };
        const matrix<double> on_one = evaluated(17, 1, otimes::cut_rows(1), nullptr, unlimited);
        CHECK(support::close(on_one, matrix<double>(p.x * kron(p.factors)), 480));
        const std::vector<distribution> targets = cuts(count, p.after);
        std::size_t number = 0;
        for (const distribution& from : cuts(count, p.before)) {
            const distribution* const to = number % 2 == 0 ? nullptr : &targets[number % targets.size()];
            ++number;
            CAPTURE(to_string(from));
            CAPTURE((to == nullptr ? "free" : to_string(*to)));
            const matrix<double> all = evaluated(17, count, from, to, unlimited);
            CHECK(support::close(all, on_one, 480));
            if (from == otimes::cut_rows(count)) {  // into a free Y
                CHECK((all == on_one));
            }
            for (const int rows : {1, 7}) {
                CHECK((evaluated(rows, count, from, to, unlimited) == all.topRows(rows)));
            }
            std::int64_t least = 0;
            try {
                static_cast<void>(evaluated(17, count, from, to, 0));
            } catch (const otimes::budget_error& refused) {
                least = refused.least_bytes();
            }
            CHECK((evaluated(17, count, from, to, least) == all));
            CHECK((evaluated(17, count, from, to, 2 * least) == all));
        }
    };
    check(2, {{2, 6}, {2, 6}, {2, 4}, {2, 1}, {2, 2}, {2, 6}, {2, 2}});  // 7 rows of it are fastest over columns
    check(4, {{5, 4}, {3, 6}, {2, 2}, {6, 5}, {4, 4}});
    check(3, {{4, 4}, {4, 4}, {5, 5}, {4, 4}});
    check(3, {{5, 2}, {4, 2}, {3, 4}, {4, 1}});
}

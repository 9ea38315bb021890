// SPDX-License-Identifier: MIT
// Matrices without elements, without a shape, without ranks, and distributions that are none.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {
using matrix = Eigen::MatrixXd;
}

TEST_CASE("extents of zero, in and behind every mode") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::int32_t n = ranks.size();
        std::vector<distribution> cuts{otimes::cut_rows(n), otimes::cut_columns(n)};
        for (const std::vector<std::int64_t>& extents :
             {std::vector<std::int64_t>{2, 0}, std::vector<std::int64_t>{0, 2}, std::vector<std::int64_t>{2, 0, 3}}) {
            for (std::size_t mode = 0; mode < extents.size(); ++mode) {
                cuts.push_back(otimes::cut_mode(1, n, extents, mode));
                if (n % 2 == 0) {
                    cuts.push_back(otimes::cut_mode(2, n / 2, extents, mode));
                }
            }
        }
        for (const distribution& from : cuts) {
            for (const distribution& to : cuts) {
                CAPTURE(to_string(from));
                CAPTURE(to_string(to));
                DistributedMatrix<double> d(ranks, 8, 0, from);
                d.redistribute(to);
                CHECK(d.layout() == to);
                CHECK(d.gather().cols() == 0);
                CHECK(d.to_host().rows() == 8);
                d.scatter(matrix(8, 0), n - 1);
            }
            // Nothing comes out of columns, and of no columns zeros.
            DistributedMatrix<double> x(ranks, 8, 4, otimes::cut_columns(n)), y(ranks, 8, 0, from);
            x.fill([](std::int64_t, std::int64_t) { return 1.0; });
            y = x * kron(matrix::Ones(4, 2), matrix(1, 0));
            CHECK(y.layout() == from);
            CHECK(y.gather().cols() == 0);
            DistributedMatrix<double> z(ranks, 8, 6, otimes::cut_rows(n));
            z.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            z = y * kron(matrix(0, 2), matrix::Ones(2, 3));
            CHECK((z.to_host().array() == 0).all());
            z.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            z = y * otimes::replicate(ranks, kron(matrix(0, 2), matrix::Ones(2, 3)));  // of no elements
            CHECK((z.to_host().array() == 0).all());
        }
        // With a distribution that the planner chooses.
        const std::vector<std::int64_t> extents{2, 4, 2, 1};
        for (std::size_t mode = 0; mode < extents.size(); ++mode) {
            CAPTURE(mode);
            DistributedMatrix<double> x(ranks, 8, 16, otimes::cut_mode(1, n, extents, mode)), y(ranks);
            x.fill([](std::int64_t, std::int64_t) { return 1.0; });
            y = x * kron(matrix::Ones(2, 3), matrix::Ones(4, 3), matrix::Ones(2, 1), matrix(1, 0));
            CHECK(y.gather().cols() == 0);
            CHECK(y.to_host().rows() == 8);
        }
    }
}

TEST_CASE("matrices that have no shape yet, or no ranks") {
    CHECK(has(thrown([] { const otimes::communicator none(nullptr, {}); }),
              "unsupported: otimes: a communicator was made without a transport"));
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::int32_t n = ranks.size();
        DistributedMatrix<double> d(ranks);
        CHECK(d.data() == nullptr);
        CHECK(std::as_const(d).data(ranks.local_count() - 1) == nullptr);
        CHECK(d.sources().size() == static_cast<std::size_t>(ranks.local_count()));
        CHECK(d.gather().size() == 0);
        CHECK(d.to_host().size() == 0);
        CHECK(d.staged_block().empty());
        CHECK(
            has(thrown([&] { static_cast<void>(d.staged_block(ranks.local_count())); }),
                "shape: otimes: DistributedMatrix::block(" + std::to_string(ranks.local_count()) + "): this process"));
        CHECK(has(thrown([&] { static_cast<void>(d.block(-1)); }), "block(-1): this process has "));
        d.scatter(matrix(0, 0));
        CHECK(dot(d, d) == 0);
        DistributedMatrix<double> e(d);
        e = 2.0 * d;
        CHECK(e.rows() == 0);
        DistributedMatrix<double> f(ranks);
        f.redistribute(otimes::cut_columns(n));
        CHECK(f.layout() == otimes::cut_columns(n));
        // What was moved from has no ranks.
        DistributedMatrix<double> moved(std::move(f));
        CHECK(f.data() == nullptr);
        CHECK(f.sources().empty());
        f.fill([](std::int64_t, std::int64_t) { return 1.0; });
        CHECK_THROWS_AS(static_cast<void>(f.gather()), otimes::unsupported_error);
        CHECK_THROWS_AS(static_cast<void>(f.to_host()), otimes::unsupported_error);
        CHECK_THROWS_AS(f.redistribute(otimes::cut_rows(n)), otimes::unsupported_error);
        ranks.barrier();
    }
}

TEST_CASE("distributions whose numbers are too large, or negative") {
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        DistributedMatrix<double> d(ranks, 6, 6);
        d.fill([](std::int64_t i, std::int64_t j) { return static_cast<double>(6 * i + j); });
        for (const distribution& wrong : {
                 distribution{.row_parts = 65536, .col_parts = 65536},
                 distribution{.row_parts = most, .col_parts = 3},
                 distribution{.first_rank = most},
                 distribution{.first_rank = -1},
                 distribution{.outer = -1, .extent = 6, .inner = -1},
                 distribution{.outer = 1, .extent = -6, .inner = -1},
                 distribution{.outer = -2, .extent = 0, .inner = 1},
                 distribution{.outer = longest, .extent = 3, .inner = 2},
                 distribution{.outer = std::int64_t{1} << 32, .extent = (std::int64_t{1} << 32) + 6, .inner = 1},
                 otimes::cut_mode(1, 1, std::vector<std::int64_t>{6, longest, longest}, 0),
             }) {
            CHECK_THROWS_AS(d.redistribute(wrong), otimes::shape_error);
            CHECK_THROWS_AS(DistributedMatrix<double>(ranks, 6, 6, wrong), otimes::shape_error);
        }
        for (const std::int32_t root : {most, ranks.size(), -1}) {
            CHECK_THROWS_AS(static_cast<void>(d.gather(root)), otimes::shape_error);
            CHECK_THROWS_AS(d.scatter(matrix(6, 6), root), otimes::shape_error);
        }
        CHECK(d.to_host().sum() == 630);
    }
}

TEST_CASE("dot takes matrices with the same blocks, however they were cut") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::vector<std::int64_t> extents{3, 5};
        const std::int32_t all = ranks.size();
        DistributedMatrix<double> x(ranks, 4, 15, otimes::cut_rows(all));
        DistributedMatrix<double> y(ranks, 4, 15, otimes::cut_mode(all, 1, extents, 0));  // columns are whole
        x.fill([](std::int64_t i, std::int64_t) { return static_cast<double>(i); });
        y.fill([](std::int64_t, std::int64_t j) { return static_cast<double>(j); });
        CHECK(dot(x, y) == 6.0 * 105);
        DistributedMatrix<double> flat(ranks, 4, 15, otimes::cut_columns(all));
        DistributedMatrix<double> outermost(ranks, 4, 15,
                                            otimes::cut_mode(1, all, std::vector<std::int64_t>{15, 1}, 0));
        flat.fill([](std::int64_t i, std::int64_t) { return static_cast<double>(i); });
        outermost.fill([](std::int64_t, std::int64_t j) { return static_cast<double>(j); });
        CHECK(dot(flat, outermost) == 6.0 * 105);
        if (all > 1) {
            CHECK(has(thrown([&] { static_cast<void>(dot(x, flat)); }), "Shapes and distributions must be equal"));
            const otimes::distribution last{.row_parts = all - 1, .first_rank = 1};
            CHECK(to_string(last) ==
                  (all == 2 ? "all on rank 1" : "rows over " + std::to_string(all - 1) + " from rank 1 on"));
        }
    }
}

TEST_CASE("matrices, plans and addresses of another communicator are refused before anything is written") {
    const otimes::communicator alone = otimes::in_process(1);
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const otimes::communicator other = otimes::in_process(ranks.size());
        const matrix A = matrix::Ones(2, 2), B = matrix::Ones(3, 3);
        DistributedMatrix<double> x(ranks, 7, 6), y(ranks, 7, 6), elsewhere(other, 7, 6), single(alone, 7, 6);
        const auto value = [](std::int64_t i, std::int64_t j) { return static_cast<double>(6 * i + j); };
        x.fill(value);
        elsewhere.fill(value);
        y.fill([](std::int64_t, std::int64_t) { return 3.0; });
        // Under MPI a rank has one block of x, and all of `elsewhere`: the sums of blocks of the same number were no dot product.
        CHECK(has(thrown([&] { static_cast<void>(dot(x, elsewhere)); }),
                  "unsupported: otimes: dot(x, y): x and y belong"));
        CHECK(dot(x, x) == 41.0 * 42 * 83 / 6);

        const auto k = otimes::replicate(ranks, kron(A, B));
        const std::vector<std::vector<const void*>> factors{k.addresses(0), k.addresses(1)};
        const otimes::distributed_plan of_one = make_plan(single * kron(A, B)), plan = make_plan(x * kron(A, B));
        const auto refused = [&](const std::string& why, const auto& call) {
            const std::string text = thrown(call);
            CAPTURE(text);
            CHECK(has(text, "unsupported: otimes: communicator::"));
            CHECK(has(text, why));
        };
        if (ranks.size() > 1) {
            refused("made for 1 rank in host memory; here are",
                    [&] { ranks.run(of_one, x.sources(), y.targets(), factors, 1.0); });
            refused(" in host memory; here are 1 in host memory.",
                    [&] { alone.run(plan, single.sources(), single.targets(), factors, 1.0); });
        }
        otimes::distributed_plan on_gpus = plan;
        on_gpus.source.space = otimes::memory_space::device;
        refused("in device memory", [&] { ranks.run(on_gpus, x.sources(), y.targets(), factors, 1.0); });
        refused("0 blocks of X", [&] { ranks.run(plan, {}, y.targets(), factors, 1.0); });
        refused("0 blocks of Y", [&] { ranks.run(plan, x.sources(), {}, factors, 1.0); });
        refused("1 factors", [&] { ranks.run(plan, x.sources(), y.targets(), {factors.data(), 1}, 1.0); });
        const std::vector<std::vector<const void*>> short_ones{k.addresses(0), {}};
        refused("0 copies of a factor", [&] { ranks.run(plan, x.sources(), y.targets(), short_ones, 1.0); });
        const distribution rows = otimes::cut_rows(ranks.size());
        refused("blocks to move from", [&] { other.move(rows, {}, rows, elsewhere.targets(), 7, 6, 8); });
        refused("blocks to move to", [&] { other.move(rows, elsewhere.sources(), rows, {}, 7, 6, 8); });
        for (const auto& wrong :
             {std::array<std::int64_t, 3>{-7, 6, 8}, {7, -6, 8}, {7, 6, 0}}) {  // rows, columns, bytes
            CHECK(has(thrown([&] { ranks.move(rows, x.sources(), rows, y.targets(), wrong[0], wrong[1], wrong[2]); }),
                      "are no matrix"));
        }
        CHECK(has(thrown([&] { static_cast<void>(ranks.plan_for(std::vector<otimes::distributed_problem>{}, 0)); }),
                  "unsupported: otimes: make_distributed_plan: the list of problems is empty"));
        CHECK((y.to_host().array() == 3).all());
        ranks.run(plan, x.sources(), y.targets(), factors, 1.0);
        CHECK(y.to_host() == x.to_host() * matrix::Ones(6, 6));
    }
}

TEST_CASE("a placement where no rank is gets refused") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        DistributedMatrix<double> x(ranks, 3, 4);
        x.fill([](std::int64_t, std::int64_t) { return 1.0; });
        const auto K = kron(matrix::Ones(2, 3), matrix::Ones(2, 1));
        for (const otimes::placement elsewhere :
             {otimes::placement::gpu, otimes::placement::gpus, static_cast<otimes::placement>(9)}) {
            const std::string said =
                "unsupported: otimes: ranks compute where their parts of the matrices lie, here on CPUs";
            CHECK(has(thrown([&] { static_cast<void>(explain(x * K, {.placement = elsewhere})); }), said));
            CHECK(has(thrown([&] { static_cast<void>(make_plan(x * K + x * K, {.placement = elsewhere})); }), said));
        }
        CHECK(make_plan(x * K, {.placement = otimes::placement::cpu}).stages == make_plan(x * K).stages);
    }
    otimes::distributed_problem on_gpus;
    on_gpus.space = otimes::memory_space::device;
    on_gpus.wishes.placement = otimes::placement::cpu;
    CHECK(has(thrown([&] { otimes::planning::check_problem(on_gpus); }), "here on GPUs, but options::placement asks"));
    on_gpus.wishes.placement = otimes::placement::gpus;
    otimes::planning::check_problem(on_gpus);
}

TEST_CASE("a negative number of GPUs is refused, also where there are none") {
    const std::string said = "unsupported: otimes: communicator_options::gpu_count is -2. Ask for 1 or more";
    CHECK(has(thrown([] { static_cast<void>(otimes::make_communicator({.gpu_count = -2})); }), said));
    CHECK(has(thrown([] { static_cast<void>(otimes::gpu_communicator({.gpu_count = -2})); }), said));
}

// SPDX-License-Identifier: MIT
// Distributions as values: who holds what, what moves, which plan is chosen; against plain enumeration.
#include <otimes/plan/distributed_planner.hpp>
#include <otimes/plan/distributed_text.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/serialize.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "support/random.hpp"
#include "support/thrown.hpp"

namespace {

using otimes::distribution;
using extents = std::vector<std::int64_t>;

// The rank that holds element (i, j), by the definition; -1: nobody.
std::int32_t owner(const distribution& d, std::int64_t rows, std::int64_t cols, std::int64_t i, std::int64_t j) {
    const auto part = [](std::int64_t index, std::int64_t extent, std::int32_t parts) {
        for (std::int32_t r = 0; r < parts; ++r) {
            const auto range = otimes::part_of(extent, parts, r);
            if (range.begin <= index && index < range.end) {
                return r;
            }
        }
        return std::int32_t{-1};
    };
    const std::int64_t e = d.extent == 0 ? j : j / d.inner % d.extent;
    return d.first_rank + part(i, rows, d.row_parts) * d.col_parts +
           part(e, d.extent == 0 ? cols : d.extent, d.col_parts);
}

otimes::distributed_problem power(std::int64_t rows, std::int64_t p, std::int64_t q, int count, std::int32_t ranks) {
    otimes::distributed_problem problem;
    problem.rows = rows;
    problem.ranks = ranks;
    for (int i = 0; i < count; ++i) {
        problem.factors.push_back({otimes::dtype::f64, p, q, q, 1});
    }
    problem.operand = otimes::cut_columns(ranks);
    return problem;
}

const otimes::machine where = otimes::cpu_machine(otimes::cpu_avx2(), 1);
const otimes::interconnect net{.bytes_per_second = 1e9, .exchange_seconds = 1e-6};

otimes::distributed_plan planned(const otimes::distributed_problem& p) {
    return otimes::make_distributed_plan(p, where, net);
}

// Fewest bytes through the busiest rank, exchange by exchange, of any sequence of distributions, when each factor may be applied in any stage
// where its mode is whole: a search over (distribution, set of factors applied).
std::int64_t fewest_bytes(const otimes::distributed_problem& p) {
    const std::size_t n = p.factors.size();
    std::vector<distribution> grids{otimes::cut_rows(p.ranks)};
    const auto layout = [&](std::size_t which, unsigned done) {  // 0: rows, k + 1: columns along mode k
        extents e;
        for (std::size_t k = 0; k < n; ++k) {
            e.push_back((done >> k & 1) != 0 ? p.factors[k].q_extent : p.factors[k].p_extent);
        }
        return which == 0 ? otimes::cut_rows(p.ranks) : otimes::cut_mode(1, p.ranks, e, which - 1);
    };
    const auto cols = [&](unsigned done) {
        std::int64_t product = 1;
        for (std::size_t k = 0; k < n; ++k) {
            product *= (done >> k & 1) != 0 ? p.factors[k].q_extent : p.factors[k].p_extent;
        }
        return product;
    };
    const unsigned all = (1u << n) - 1;
    std::vector<std::vector<std::int64_t>> best(n + 1, std::vector<std::int64_t>(all + 1, -1));
    best[1][0] = 0;  // X is cut along the first mode
    for (int round = 0; round < 4 * static_cast<int>(n); ++round) {
        for (std::size_t at = 0; at <= n; ++at) {
            for (unsigned done = 0; done <= all; ++done) {
                if (best[at][done] < 0) {
                    continue;
                }
                const auto improve = [&](std::size_t next, unsigned then, std::int64_t bytes) {
                    if (best[next][then] < 0 || bytes < best[next][then]) {
                        best[next][then] = bytes;
                    }
                };
                for (std::size_t k = 0; k < n; ++k) {
                    if ((done >> k & 1) == 0 && at != k + 1) {
                        improve(at, done | 1u << k, best[at][done]);
                    }
                }
                for (std::size_t next = 0; next <= n; ++next) {
                    if (next != at) {
                        const auto moved =
                            otimes::count_moved(layout(at, done), layout(next, done), p.rows, cols(done), p.ranks);
                        improve(next, done, best[at][done] + 8 * std::max(moved.most_sent, moved.most_received));
                    }
                }
            }
        }
    }
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t at = 0; at <= n; ++at) {
        least = best[at][all] < 0 ? least : std::min(least, best[at][all]);
    }
    return least;
}

// A product of up to nine rows and four factors, on up to six ranks.
otimes::distributed_problem random_problem(support::random_stream& random) {
    otimes::distributed_problem p = power(random.integer(1, 9), 1, 1, 0, 2);
    p.ranks = static_cast<std::int32_t>(random.integer(2, 6));
    extents before;
    extents after;
    for (std::int64_t k = random.integer(1, 4); k > 0; --k) {
        before.push_back(random.integer(1, 9));
        after.push_back(random.integer(0, 1) == 0 ? before.back() : random.integer(1, 9));
        p.factors.push_back({otimes::dtype::f64, before.back(), after.back(), after.back(), 1});
    }
    const auto spread = [&](const extents& e) {
        const auto parts = static_cast<std::int32_t>(random.integer(1, p.ranks));
        const auto mode = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(e.size()) - 1));
        const std::int64_t how = random.integer(0, 2);
        return how == 0   ? otimes::cut_rows(parts)
               : how == 1 ? otimes::cut_columns(parts)
                          : otimes::cut_mode(1, parts, e, mode);
    };
    p.operand = spread(before);
    p.result_is_fixed = random.integer(0, 3) != 0;
    p.result = spread(after);
    p.add = random.integer(0, 2) == 0;
    return p;
}

}  // namespace

TEST_CASE("ranges: even, complete, also with more parts than indices") {
    for (const std::int64_t extent : {0, 1, 5, 12, 13}) {
        for (const std::int32_t parts : {1, 2, 5, 7, 16}) {
            std::int64_t next = 0;
            for (std::int32_t r = 0; r < parts; ++r) {
                const auto range = otimes::part_of(extent, parts, r);
                CHECK(range.begin == next);
                CHECK(range.size() >= extent / parts);
                CHECK(range.size() <= (extent + parts - 1) / parts);
                next = range.end;
            }
            CHECK(next == extent);
        }
    }
}

TEST_CASE("what moves is what plain enumeration says") {
    const std::int64_t rows = 3;
    const std::int64_t cols = 36;
    std::vector<distribution> all;
    for (const std::int32_t ranks : {1, 2, 3, 4, 5}) {
        all.push_back(otimes::cut_rows(ranks));
        all.push_back(otimes::cut_columns(ranks));
        for (const extents& e : {extents{3, 4, 3}, extents{2, 9, 2}, extents{36}}) {
            for (std::size_t k = 0; k < e.size(); ++k) {
                all.push_back(otimes::cut_mode(1, ranks, e, k));
            }
        }
        all.push_back(otimes::cut_mode(2, 2, extents{3, 4, 3}, 1));
    }
    bool all_right = true;
    const std::int32_t ranks = 5;
    for (const distribution& from : all) {
        for (const distribution& to : all) {
            std::int64_t moved = 0;
            for (std::int64_t i = 0; i < rows; ++i) {
                for (std::int64_t j = 0; j < cols; ++j) {
                    moved += owner(from, rows, cols, i, j) != owner(to, rows, cols, i, j) ? 1 : 0;
                }
            }
            all_right = all_right && otimes::count_moved(from, to, rows, cols, ranks).total == moved;
            // Each element arrives at its place, once.
            for (std::int32_t b = 0; b < ranks; ++b) {
                const auto target = otimes::block_of(to, rows, cols, b);
                std::vector<int> arrived(static_cast<std::size_t>(target.elements()), 0);
                for (std::int32_t a = 0; a < ranks; ++a) {
                    const auto source = otimes::block_of(from, rows, cols, a);
                    for (const otimes::moved_runs& m : otimes::moved_between(source, target)) {
                        for (std::int64_t x = 0; x < m.counts[0]; ++x) {
                            for (std::int64_t y = 0; y < m.counts[1]; ++y) {
                                for (std::int64_t z = 0; z < m.counts[2] * m.run; ++z) {
                                    const std::int64_t level = z / m.run;
                                    const std::int64_t s = m.from_start + x * m.from_strides[0] +
                                                           y * m.from_strides[1] + level * m.from_strides[2] +
                                                           z % m.run;
                                    const std::int64_t t = m.to_start + x * m.to_strides[0] + y * m.to_strides[1] +
                                                           level * m.to_strides[2] + z % m.run;
                                    const std::int64_t width = source.cols.size();
                                    const std::int64_t i = source.rows.begin + s / width;
                                    const std::int64_t j = source.cols.global(s % width);
                                    all_right =
                                        all_right && owner(from, rows, cols, i, j) == a &&
                                        owner(to, rows, cols, i, j) == b &&
                                        t == (i - target.rows.begin) * target.cols.size() + target.cols.local(j);
                                    ++arrived[static_cast<std::size_t>(t)];
                                }
                            }
                        }
                    }
                }
                all_right = all_right && std::ranges::all_of(arrived, [](int n) { return n == 1; });
            }
        }
    }
    CHECK(all_right);
    // Even cuts of one tensor move in the largest runs: one for each index of the first mode.
    const extents e{4, 6, 5};
    const auto runs = otimes::moved_between(otimes::block_of(otimes::cut_mode(1, 2, e, 0), 1, 120, 0),
                                            otimes::block_of(otimes::cut_mode(1, 2, e, 1), 1, 120, 1));
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].run == 15);
    CHECK(runs[0].run_count() == 2);
}

TEST_CASE("the plan that is chosen sends as little as any, and says how much") {
    for (const std::int32_t ranks : {2, 3, 4, 7}) {
        for (const auto& [p, q] : std::vector<std::pair<int, int>>{{8, 8}, {8, 4}, {4, 6}}) {
            otimes::distributed_problem problem = power(1, p, q, 3, ranks);
            problem.operand = otimes::cut_mode(1, ranks, extents{p, p, p}, 0);
            otimes::interconnect slow = net;
            slow.bytes_per_second = 1;
            const auto plan = otimes::make_distributed_plan(problem, where, slow, false);
            std::int64_t busiest = 0;
            for (const otimes::distributed_stage& s : plan.stages) {
                busiest += 8 * std::max(s.moved.most_sent, s.moved.most_received);
            }
            CHECK(busiest == fewest_bytes(problem));
        }
    }
    // Square, even: one all-to-all of the whole matrix; half of Algorithm 2.
    for (const std::int32_t ranks : {2, 4, 8}) {
        const auto plan = planned(power(2, 8, 8, 4, ranks));
        CHECK(plan.bytes_on_wire == 2 * 4096 * 8 * (ranks - 1) / ranks);
        CHECK(2 * plan.bytes_on_wire == 8 * otimes::algorithm_2_elements(2, plan.source.factors, ranks));
        CHECK(plan.most_bytes_sent * ranks == plan.bytes_on_wire);
        otimes::distributed_problem kept = power(2, 8, 8, 4, ranks);
        kept.result_is_fixed = true;
        kept.result = kept.operand;
        CHECK(planned(kept).bytes_on_wire == 2 * plan.bytes_on_wire);
    }
    CHECK(otimes::algorithm_2_elements(1, power(1, 2, 2, 4, 2).factors, 3) == -1);
    // Rows: nothing, and every rank applies all factors at once.
    otimes::distributed_problem rows = power(9, 8, 8, 3, 4);
    rows.operand = otimes::cut_rows(4);
    CHECK(planned(rows).bytes_on_wire == 0);
    CHECK(planned(rows).stages.size() == 1);
    CHECK(planned(rows).stages[0].plans.size() == 2);  // blocks of 3 and of 2 rows
    // A factor that shrinks its mode is applied before the exchange, one that grows it after.
    otimes::distributed_problem mixed = power(1, 8, 8, 3, 2);
    mixed.operand = otimes::cut_mode(1, 2, extents{8, 8, 8}, 0);
    mixed.factors[1].q_extent = 2;
    mixed.factors[2].q_extent = 16;
    const auto plan = planned(mixed);
    REQUIRE(plan.stages.size() == 3);
    CHECK(plan.stages[0].factors == std::vector<std::int32_t>{1});
    CHECK(plan.stages[2].factors == std::vector<std::int32_t>{0, 2});
    CHECK(plan.bytes_on_wire == 8 * 2 * 8 * 8 / 2);
    // Links decide: over slow ones few bytes, from and to flat ranges that follow no mode.
    otimes::distributed_problem flat = power(1, 3, 3, 3, 2);
    CHECK(planned(flat).stages.front().kind == otimes::stage_kind::exchange);
}

TEST_CASE("slabs of rows hide exchanges where there are rows, bytes and memory enough") {
    otimes::distributed_problem p = power(10, 8, 8, 3, 2);
    p.operand = otimes::cut_mode(1, 2, extents{8, 8, 8}, 0);
    otimes::interconnect links = net;
    links.exchange_seconds = 1e-9;
    const auto planned_with = [&](std::int32_t chunks, std::int64_t least_bytes) {
        links.chunks = chunks;
        links.least_chunk_bytes = least_bytes;
        return otimes::make_distributed_plan(p, where, links);
    };
    const auto at_once = planned_with(1, 1);
    CHECK(!at_once.overlapped);
    const auto plan = planned_with(4, 1);
    REQUIRE(plan.overlapped);
    CHECK(plan.slab_rows == 3);
    CHECK(plan.slab_count == 4);
    REQUIRE(plan.slabs.size() == 2);
    CHECK(plan.slabs[1].source.rows == 1);
    CHECK(plan.bytes_on_wire == at_once.bytes_on_wire);
    CHECK(plan.most_bytes_sent == at_once.most_bytes_sent);
    CHECK(plan.predicted_seconds < at_once.predicted_seconds);
    CHECK(otimes::distributed_plan_from_text(otimes::to_text(plan)) == plan);
    CHECK(otimes::explain(plan).find(
              "  4 slabs of at most 3 rows of each part, by turns: a slab is sent while the next is "
              "computed; each:\n  1. local: F2, F3; 1 plan\n") != std::string::npos);
    // A message is 10 * 512 / 2 / 2 elements: each slab's keeps the least size.
    CHECK(planned_with(4, 10 * 128 * 8 / 3).slab_count == 3);
    CHECK(!planned_with(4, 10 * 128 * 8 / 2 + 1).overlapped);
    // Two slabs are on their way, so there are twice the intermediates of one; where that is too much, all goes at once or in
    // slabs one after another.
    p.wishes.workspace_limit_bytes = plan.workspace_bytes;
    CHECK(planned_with(4, 1).overlapped);
    p.wishes.workspace_limit_bytes = plan.slabs[1].workspace_bytes / 2;
    const auto tight = planned_with(4, 1);
    CHECK(!tight.overlapped);
    CHECK(tight.workspace_bytes <= p.wishes.workspace_limit_bytes);
    p.wishes = {};
    p.rows = 1;
    CHECK(!planned_with(4, 1).overlapped);
    p.rows = 10;
    p.result_is_fixed = true;
    p.result = otimes::cut_rows(2);  // other rows on each rank than X has
    CHECK(!planned_with(4, 1).overlapped);
}

TEST_CASE("the least workspace that an error names is the least: it is kept, and no less is") {
    const auto check_least = [](otimes::distributed_problem p, const otimes::interconnect& links,
                                const otimes::machine& on = where) {
        const auto least_of = [&](std::int64_t limit) {  // -1: the limit is kept
            p.wishes.workspace_limit_bytes = limit;
            try {
                const otimes::distributed_plan made = otimes::make_distributed_plan(p, on, links);
                CHECK(made.workspace_bytes <= limit);
            } catch (const otimes::budget_error& refused) {
                CHECK(
                    std::string(refused.what()).find("at least " + std::to_string(refused.least_bytes()) + " bytes") !=
                    std::string::npos);
                return refused.least_bytes();
            }
            return std::int64_t{-1};
        };
        const std::int64_t least = least_of(0);
        if (least > 0) {
            CHECK(least_of(least) == -1);
            for (const std::int64_t limit : {least / 3, least - least / 8, least - 1}) {
                CHECK(least_of(limit) == least);
            }
        }
        return least;
    };
    const auto squares = [](const extents& orders, std::int32_t ranks, const distribution& x, const distribution& y) {
        otimes::distributed_problem p = power(1, 1, 1, 0, ranks);
        for (const std::int64_t n : orders) {
            p.factors.push_back({otimes::dtype::f64, n, n, n, 1});
        }
        p.operand = x;
        p.result_is_fixed = true;
        p.result = y;
        return p;
    };
    otimes::interconnect links = net;
    links.least_chunk_bytes = 1;
    for (links.chunks = 1; links.chunks <= 4; ++links.chunks) {
        CAPTURE(links.chunks);
        CHECK(check_least(squares({7, 3, 8}, 4, otimes::cut_mode(2, 2, extents{7, 3, 8}, 0), otimes::cut_rows(2)),
                          links) > 0);
        CHECK(check_least(squares({5, 3, 7}, 7, otimes::cut_columns(3), otimes::cut_mode(1, 5, extents{5, 3, 7}, 2)),
                          links) > 0);
    }
    // Of the two programs of a chunk the limit refuses both.
    otimes::distributed_problem both = squares({4, 6, 3, 8}, 4, otimes::cut_columns(3), otimes::cut_columns(2));
    both.rows = 8;
    CHECK(check_least(both, links) > 0);
    // Slabs by turns whose last passes store into peers: a stage that the limit refuses has no pass.
    otimes::distributed_problem stored = squares({8, 8, 8, 8}, 2, otimes::cut_mode(1, 2, extents{8, 8, 8, 8}, 0),
                                                 otimes::cut_mode(1, 2, extents{8, 8, 8, 8}, 1));
    stored.rows = 50;
    stored.space = otimes::memory_space::device;
    for (otimes::distributed_factor& f : stored.factors) {
        f.space = otimes::memory_space::device;
    }
    links.chunks = 6;
    links.packs = false;
    CHECK(check_least(stored, links, otimes::gpu_machine(otimes::h200(), 2)) > 0);
    links.packs = net.packs;
    int refused = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
        CAPTURE(i);
        support::random_stream random(77 * i + 5);
        const otimes::distributed_problem p = random_problem(random);
        links.chunks = static_cast<std::int32_t>(random.integer(1, 5));
        links.stores = random.integer(0, 1) == 0;
        refused += check_least(p, links) > 0 ? 1 : 0;
    }
    CHECK(refused > 20);
}

TEST_CASE("of products in turn, too, the named least is the least, and every limit from there up is kept") {
    // Products that each take more than their least may take less together: they use each other's memory.
    for (std::uint64_t i = 0; i < 31; ++i) {
        CAPTURE(i);
        support::random_stream random(91 * i + 7);
        std::vector<otimes::distributed_problem> problems;
        for (int k = 0; k < 3; ++k) {
            problems.push_back(random_problem(random));
            problems.back().ranks = 6;
        }
        otimes::interconnect links = net;
        links.least_chunk_bytes = 1;
        links.chunks = static_cast<std::int32_t>(random.integer(1, 4));
        const auto planned_within = [&](std::int64_t limit) {
            for (otimes::distributed_problem& p : problems) {
                p.wishes.workspace_limit_bytes = limit;
            }
            return otimes::make_distributed_plan(problems, 64, where, links);
        };
        const auto least_of = [&](std::int64_t limit) {  // -1: the limit is kept
            try {
                const otimes::distributed_plan made = planned_within(limit);
                CHECK(made.workspace_bytes <= limit);
                return std::int64_t{-1};
            } catch (const otimes::budget_error& refused) {
                return refused.least_bytes();
            }
        };
        const std::int64_t most = planned_within(std::numeric_limits<std::int64_t>::max()).workspace_bytes;
        const std::int64_t least = least_of(0);
        REQUIRE(least <= most);
        CHECK(least_of(least - 1) == least);
        CHECK(least_of(least / 2) == least);
        for (std::int64_t limit = least; limit < most; limit += 1 + (most - least) / 5) {
            CHECK(least_of(limit) == -1);
        }
    }
}

TEST_CASE("the last pass stores into the receivers where they can be reached and that hides more than chunks") {
    otimes::distributed_problem p = power(3, 8, 8, 4, 2);
    p.operand = otimes::cut_mode(1, 2, extents{8, 8, 8, 8}, 0);
    p.result_is_fixed = true;
    p.result = otimes::cut_mode(1, 2, extents{8, 8, 8, 8}, 1);
    otimes::interconnect links = net;
    const auto planned_with = [&](bool stores, bool packs) {
        links.stores = stores;
        links.packs = packs;
        return otimes::make_distributed_plan(p, where, links);
    };
    const auto plan = planned_with(true, false);
    REQUIRE(plan.stages.size() == 3);
    CHECK(plan.stages[0].factors == std::vector<std::int32_t>{1});  // the mode that receivers cut comes before
    CHECK(plan.stages[1].kind == otimes::stage_kind::store);
    CHECK(plan.stages[1].factors == std::vector<std::int32_t>{2, 3});
    CHECK(plan.stages[1].plan_of_rank == std::vector<std::int32_t>(2, 0));
    REQUIRE(plan.stages[1].plans.size() == 1);
    CHECK(plan.stages[1].plans[0].passes.size() == 1);
    CHECK(plan.stages[2].factors == std::vector<std::int32_t>{0});
    CHECK(plan.bytes_on_wire == planned_with(false, false).bytes_on_wire);
    CHECK(plan.predicted_seconds < planned_with(false, false).predicted_seconds);
    CHECK(planned_with(true, true).stages[1].kind == otimes::stage_kind::exchange);
    CHECK(otimes::distributed_plan_from_text(otimes::to_text(plan)) == plan);
    CHECK(otimes::explain(plan).find(
              "  2. stores into peers in the last pass: F3, F4, to columns along 8 * [8] * 64 over "
              "2; 48.0 KiB on the wire, at most 24.0 KiB from one rank; 1 plan\n") != std::string::npos);
    // Passes that store more slowly than the exchange takes.
    links.store_bytes_per_second = 1e8;
    CHECK(planned_with(true, false).stages[1].kind == otimes::stage_kind::exchange);
    links.store_bytes_per_second = 0;
    p.rows = 50;
    CHECK(planned_with(true, false).stages[1].kind == otimes::stage_kind::store);
    // A store may take a block more; where that is too much, blocks are exchanged.
    p.wishes.workspace_limit_bytes = planned_with(false, false).workspace_bytes;
    CHECK(planned_with(true, false).workspace_bytes == p.wishes.workspace_limit_bytes);
    CHECK(planned_with(true, false).stages[1].kind == otimes::stage_kind::exchange);
    p.wishes = {};
    // Y along a mode behind the last factor: a row of that pass would go to several ranks.
    p.result = otimes::cut_mode(1, 2, extents{8, 8, 8, 8}, 3);
    CHECK(planned_with(true, false).stages[1].kind == otimes::stage_kind::exchange);
}

TEST_CASE("slabs by turns store where that hides more than exchanges, and where half of a GPU does a pass") {
    otimes::machine gpus = otimes::gpu_machine(otimes::h200(), 2);
    otimes::interconnect nvlink{.bytes_per_second = 330e9, .chunks = 6, .packs = false};
    const auto planned = [&](std::int64_t rows, std::int64_t extent, std::int32_t ranks = 2,
                             otimes::dtype type = otimes::dtype::f32) {
        otimes::distributed_problem p = power(rows, extent, extent, 4, ranks);
        p.type = type;
        p.space = otimes::memory_space::device;
        for (otimes::distributed_factor& f : p.factors) {
            f.type = p.type;
            f.space = p.space;
        }
        p.operand = otimes::cut_mode(1, ranks, extents(4, extent), 0);
        p.result_is_fixed = true;
        p.result = otimes::cut_mode(1, ranks, extents(4, extent), 1);
        return otimes::make_distributed_plan(p, gpus, nvlink);
    };
    const auto stores = [](const otimes::distributed_plan& plan) {
        return std::ranges::count(plan.stages, otimes::stage_kind::store, &otimes::distributed_stage::kind) == 1;
    };
    const otimes::distributed_plan many = planned(32, 64);
    REQUIRE(many.overlapped);
    CHECK(std::ranges::all_of(many.slabs, stores));
    CHECK(many.slab_count == 2);
    // Few rows: beginning the passes again costs more than the links hide. Half of the blocks compute as fast as the links take.
    const otimes::distributed_plan few = planned(2, 64);
    REQUIRE(stores(few));
    otimes::distributed_stage store = few.stages.at(1);
    REQUIRE(store.kind == otimes::stage_kind::store);
    const otimes::plan& pass = store.plans.at(0);
    CHECK(otimes::planning::half_stores(store, pass));
    store.predicted_seconds = 1.3 * pass.predicted_seconds;
    CHECK(!otimes::planning::half_stores(store, pass));
    // Tiles of half the rows, the next one loaded meanwhile, and room for two blocks.
    const auto group = otimes::planning::scattered_group(
        otimes::planning::group_of(pass.passes.at(0), otimes::dtype::f32),
        otimes::planning::scatter_of(store, few.source, 0).together(), gpus.gpus.front());
    REQUIRE(group);
    CHECK(group->tile.rows == 1);
    CHECK(group->tile.threads == 128);
    CHECK(group->tile.slots == 1);
    CHECK(group->tile.blocks == 2);
    // What the links hold up leaves room: the last stage begins with what has arrived, in at most 16 portions of whole items (rows and indices of mode 2).
    CHECK(store.portion_items == 4);
    CHECK(otimes::planning::portions_of(store, few.source) == 16);
    CHECK(planned(1, 64).stages.at(1).portion_items == 2);
    CHECK(otimes::explain(few).find(
              "from one rank; the next stage begins with what has arrived, in 16 portions; 1 plan\n") !=
          std::string::npos);
    CHECK(otimes::distributed_plan_from_text(otimes::to_text(few)) == few);
    nvlink.portions = 1;
    const otimes::distributed_plan at_once = planned(2, 64);
    CHECK(at_once.stages.at(1).portion_items == 0);
    CHECK(few.predicted_seconds < at_once.predicted_seconds);
    nvlink.portions = 1000;
    CHECK(planned(2, 64).stages.at(1).portion_items == 1);
    nvlink.portions = 16;
    nvlink.store_bytes_per_second = 330e9;
    {  // ranks with 22 and 21 indices
        const otimes::distributed_plan uneven = planned(1, 64, 3);
        REQUIRE(stores(uneven));
        CHECK(uneven.stages.at(1).portion_items == 2);
        CHECK(otimes::planning::portions_of(uneven.stages.at(1), uneven.source) == 11);
    }
    nvlink.bytes_per_second = nvlink.store_bytes_per_second = 1e10;
    {  // warpgroups take floats
        nvlink.chunks = 1;
        const otimes::distributed_plan doubles = planned(2, 64, 2, otimes::dtype::f64);
        nvlink.chunks = 6;
        REQUIRE(stores(doubles));
        CHECK(otimes::planning::half_stores(doubles.stages.at(1), doubles.stages.at(1).plans.at(0)));
        CHECK(doubles.stages.at(1).portion_items == 0);
    }
    nvlink.bytes_per_second = 330e9;
    nvlink.store_bytes_per_second = 0;
    for (const otimes::distributed_plan& slab : many.slabs) {  // beside each other anyway
        CHECK(slab.stages.at(1).portion_items == 0);
    }
    // A block of 128's passes takes a multiprocessor: copies by the engines leave it alone.
    const otimes::distributed_plan large = planned(8, 128);
    REQUIRE(large.overlapped);
    CHECK(std::ranges::none_of(large.slabs, stores));
    // On an H100 the last factor of 128 goes by blocks, which store where they compute; what stores into peers is the tile all the same.
    gpus = otimes::gpu_machine(otimes::h100(), 2);
    const otimes::distributed_plan one_row = planned(1, 128);
    REQUIRE(stores(one_row));
    const otimes::plan& tile = one_row.stages.at(1).plans.at(0);
    CHECK(tile.passes.size() == 1);
    CHECK(tile.passes.at(0).kernel == otimes::pass_kernel::gpu_trailing);
    CHECK(otimes::make_plan(tile.source, gpus, tile.wishes).passes.at(0).kernel == otimes::pass_kernel::gpu_blocked);
    // On four of them, too, rather than in chunks of the mode that is cut: their copies take memory from the steps.
    nvlink.bytes_per_second = 394e9;
    nvlink.store_bytes_per_second = 330e9;
    const otimes::distributed_plan on_four = planned(1, 128, 4);
    CHECK((stores(on_four) || on_four.stages.back().chunk_mode >= 0));
    CHECK(on_four.stages.at(1).portion_items == 0);
}

TEST_CASE("where the rows of a pass go when it stores into the receivers") {
    // Element by element: the block of a rank, as scatter_of divides it, is what the receivers' blocks have of it.
    for (const auto& [cut, taken] : {std::pair{0, 1}, {1, 0}, {0, 2}, {2, 1}}) {
        for (const std::int32_t parts : {2, 3, 7}) {
            const extents all{5, 4, 6, 3};
            otimes::distributed_problem p = power(2, 1, 1, 4, parts);
            otimes::distributed_stage stage;
            stage.kind = otimes::stage_kind::store;
            stage.extents = all;
            stage.mode = cut;
            stage.receiver_mode = taken;
            stage.where = otimes::cut_mode(1, parts, all, static_cast<std::size_t>(cut));
            const auto to = otimes::cut_mode(1, parts, all, static_cast<std::size_t>(taken));
            for (std::int32_t rank = 0; rank < parts; ++rank) {
                const otimes::held_block mine = block_of(stage.where, 2, 360, rank);
                const otimes::scatter_shape s = otimes::planning::scatter_of(stage, p, rank);
                for (std::int64_t e = 0; e < mine.elements(); ++e) {
                    const std::int64_t below = e % s.below;
                    std::int64_t inner = e / s.below % s.inner;
                    const std::int64_t between = e / (s.below * s.inner) % s.between;
                    std::int64_t outer = e / (s.below * s.inner * s.between) % s.outer;
                    const std::int64_t before = e / (s.below * s.inner * s.between * s.outer);
                    const std::int64_t index = s.cuts_inner ? inner : outer;
                    std::size_t k = 0;
                    while (index >= s.first[k + 1]) {
                        ++k;
                    }
                    (s.cuts_inner ? inner : outer) -= s.first[k];
                    (s.cuts_inner ? outer : inner) += s.whole_first;
                    const std::int64_t own = s.first[k + 1] - s.first[k];
                    const std::int64_t outer_extent = s.cuts_inner ? s.whole : own;
                    const std::int64_t inner_extent = s.cuts_inner ? own : s.whole;
                    const std::int64_t there =
                        (((before * outer_extent + outer) * s.between + between) * inner_extent + inner) * s.below +
                        below;
                    const otimes::held_block theirs = block_of(to, 2, 360, static_cast<std::int32_t>(k));
                    const std::int64_t row = e / mine.col_count();
                    REQUIRE(there / theirs.col_count() == row);
                    REQUIRE(theirs.cols.global(there % theirs.col_count()) == mine.cols.global(e % mine.col_count()));
                }
            }
        }
    }
}

TEST_CASE("the last stages go through their exchange in chunks of a mode that no rank cuts") {
    // 128^4 with one row on four GPUs: a pass that stores holds whole multiprocessors, so that the links are idle before and behind it.
    const otimes::machine gpus = otimes::gpu_machine(otimes::h200(), 4);
    otimes::interconnect nvlink{.bytes_per_second = 394e9, .exchange_seconds = 20e-6, .chunks = 6, .packs = false};
    nvlink.store_bytes_per_second = 330e9;
    otimes::distributed_problem p = power(1, 128, 128, 4, 4);
    p.type = otimes::dtype::f32;
    p.space = otimes::memory_space::device;
    for (otimes::distributed_factor& f : p.factors) {
        f.type = p.type;
        f.space = p.space;
    }
    const extents all(4, 128);
    p.operand = otimes::cut_mode(1, 4, all, 0);
    p.result_is_fixed = true;
    p.result = otimes::cut_mode(1, 4, all, 1);
    const auto planned = [&] { return otimes::make_distributed_plan(p, gpus, nvlink); };
    const otimes::distributed_plan plan = planned();
    REQUIRE(plan.stages.size() == 4);
    CHECK(plan.stages[0].factors == std::vector<std::int32_t>{2});  // the chunks' mode comes first
    CHECK(plan.stages[0].chunks == 1);
    CHECK(plan.stages[1].factors == std::vector<std::int32_t>{1, 3});
    CHECK(plan.stages[3].factors == std::vector<std::int32_t>{0});
    for (const std::size_t i : {1, 3}) {
        CHECK(plan.stages[i].chunk_mode == 2);
        CHECK(plan.stages[i].chunks == 2);
        CHECK(plan.stages[i].plan_of_rank == std::vector<std::int32_t>(4 * 2, 0));
        CHECK(plan.stages[i].plans.size() == 1);
    }
    CHECK(otimes::distributed_plan_from_text(otimes::to_text(plan)) == plan);
    CHECK(
        otimes::explain(plan).find(
            "  2. local: F2, F4, in 2 chunks of mode 3 that are sent, and multiplied further, while the next ones are "
            "computed; ") != std::string::npos);
    CHECK(otimes::explain(plan).find("  4. local: F1, in 2 chunks, each when it has arrived; ") != std::string::npos);
    {  // a text whose stages are not those
        otimes::distributed_plan other = plan;
        other.stages[0].chunk_mode = 2;
        const std::string text = otimes::to_text(other);
        CHECK_THROWS_AS(static_cast<void>(otimes::distributed_plan_from_text(text)), otimes::unsupported_error);
        other.stages[0].chunk_mode = 4;
        const std::string none = otimes::to_text(other);
        CHECK_THROWS_AS(static_cast<void>(otimes::distributed_plan_from_text(none)), otimes::unsupported_error);
    }
    // Of each chunk a rank sends the least that goes on beside work.
    nvlink.least_chunk_bytes = plan.most_bytes_sent / 2;
    CHECK(planned().stages.back().chunk_mode == 2);
    nvlink.least_chunk_bytes += 1;
    CHECK(planned().stages.back().chunk_mode == -1);
    nvlink.least_chunk_bytes = 16 << 20;
    // What one chunk more costs is seen, and what a limit leaves is kept.
    const auto in_chunks = [&](std::int32_t chunks) {
        std::int64_t least = 0;
        nvlink.chunks = chunks;
        nvlink.stores = false;
        return otimes::planning::plan_at_once(p, gpus, nvlink, true, least, {}, true);
    };
    CHECK(in_chunks(2).predicted_seconds < in_chunks(6).predicted_seconds);
    CHECK(in_chunks(2).workspace_bytes == plan.workspace_bytes);
    std::int64_t of_steps = 0;
    for (const otimes::distributed_stage& s : plan.stages) {
        for (const otimes::plan& one : s.plans) {
            of_steps = (std::max)(of_steps, one.workspace_bytes);
        }
    }
    REQUIRE(of_steps > 0);
    for (const std::int64_t less : {std::int64_t{1}, of_steps / 4, of_steps / 2, 3 * of_steps / 4, of_steps}) {
        p.wishes.workspace_limit_bytes = plan.workspace_bytes - less;
        const otimes::distributed_plan smaller = planned();
        CHECK(smaller.workspace_bytes <= p.wishes.workspace_limit_bytes);
        for (const otimes::distributed_stage& s : smaller.stages) {
            CHECK(std::ranges::none_of(s.plans, [](const otimes::plan& one) { return one.passes.empty(); }));
        }
    }
    p.wishes = {};
    // The other factors of the first stage, F2 and F4: F2 from X's memory into the chunk's, where F4 is applied.
    const otimes::distributed_plan in_three = in_chunks(3);
    const otimes::plan& steps = in_three.stages[1].plans.front();
    REQUIRE(steps.passes.size() == 2);
    CHECK(steps.passes[0].sweeps.front().mode == 1);  // modes 3 and 4 are one to it
    CHECK(steps.passes[1].kernel == otimes::pass_kernel::gpu_trailing);
    // A mode without a factor needs no stage in front.
    p.factors[2].identity = true;
    REQUIRE(in_chunks(2).stages.size() == 3);
    CHECK(in_chunks(2).stages[0].chunk_mode == 2);
    p.factors[2].identity = false;
    // No mode is whole on both sides but one whose factor is all that there is, or comes behind the exchange.
    p.factors[1].identity = p.factors[3].identity = true;
    CHECK(in_chunks(2).stages.back().chunk_mode == 3);
    p.factors.resize(3);
    p.factors[1].identity = false;
    p.operand = otimes::cut_mode(1, 4, extents(3, 128), 0);
    p.result = otimes::cut_mode(1, 4, extents(3, 128), 1);
    nvlink.least_chunk_bytes = 1;
    CHECK(in_chunks(2).stages.back().chunk_mode == 2);
    p.factors[1].identity = true;
    CHECK(in_chunks(2).stages.back().chunk_mode == -1);
}

TEST_CASE("chunks cover an extent, and become shorter") {
    for (const std::int32_t chunks : {1, 2, 3, 4, 6}) {
        for (const std::int64_t extent : {0, 1, 5, 32, 97}) {
            std::int64_t end = 0;
            for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
                const otimes::index_range r = otimes::chunk_range(extent, chunks, chunk);
                CHECK(r.begin == end);
                CHECK(r.end >= r.begin);
                end = r.end;
            }
            CHECK(end == extent);
        }
    }
    CHECK(otimes::chunk_range(32, 4, 0).size() == 11);
    CHECK(otimes::chunk_range(32, 4, 3).size() == 5);
    CHECK(otimes::last_chunk_share(4) == doctest::Approx(2.0 / 14));
    CHECK(otimes::last_chunk_share(1) == 1);
}

TEST_CASE("a thousand ranks are planned as quickly as four") {
    const auto plan = otimes::make_distributed_plan(
        power(1, 64, 64, 4, 1024), otimes::gpu_machine(otimes::h200(), 8),
        {.bytes_per_second = 3e11, .network_bytes_per_second = 5e10, .ranks_per_host = 8}, false);
    CHECK(plan.bytes_on_wire > 0);
    CHECK(plan.predicted_seconds > 0);
}

TEST_CASE("an exchange pays the network for what leaves a host") {
    const otimes::interconnect across{.bytes_per_second = 3e11, .network_bytes_per_second = 5e10, .ranks_per_host = 8};
    const extents modes(3, 16);
    const auto seconds = [&](std::int32_t row_parts, std::int32_t col_parts, std::int32_t hosts_of) {
        otimes::distributed_problem p = power(4 * row_parts, 16, 16, 3, row_parts * col_parts);
        p.operand = otimes::cut_mode(row_parts, col_parts, modes, 0);
        p.result_is_fixed = true;
        p.result = otimes::cut_mode(row_parts, col_parts, modes, 1);
        otimes::interconnect of = across;
        of.ranks_per_host = hosts_of;
        return otimes::make_distributed_plan(p, otimes::gpu_machine(otimes::h200(), 8), of, false).predicted_seconds;
    };
    // Ranks that share rows share a host: as many hosts as one likes.
    CHECK(seconds(1, 8, 8) == seconds(16, 8, 8));
    CHECK(seconds(16, 8, 8) == seconds(16, 8, 0));
    CHECK(seconds(1, 16, 8) == seconds(4, 16, 8));
    CHECK(seconds(1, 16, 8) > seconds(1, 16, 16));
    const auto shares = [&](const distribution& from, const distribution& to, std::int32_t ranks) {
        const otimes::planning::outside_shares s = otimes::planning::shares_outside(across, from, to, ranks);
        return std::pair(s.least, s.most);
    };
    const distribution twelve = otimes::cut_columns(12);
    CHECK(shares(twelve, twelve, 12) == std::pair(4.0 / 11, 8.0 / 11));
    distribution four = otimes::cut_columns(4);  // two of them on each of two hosts
    four.first_rank = 6;
    CHECK(shares(four, four, 16) == std::pair(2.0 / 3, 2.0 / 3));
    CHECK(shares(otimes::cut_rows(16), otimes::cut_columns(16), 16) == std::pair(8.0 / 15, 8.0 / 15));
    CHECK(shares(otimes::cut_rows(5), otimes::cut_columns(5), 5) == std::pair(0.0, 0.0));
}

TEST_CASE("distributed plans as text") {
    otimes::distributed_problem p = power(3, 4, 5, 3, 3);
    p.factors[1].identity = true;
    p.factors[1].q_extent = 4;
    p.add = true;
    p.result_is_fixed = true;
    p.result = otimes::cut_rows(3);
    const auto plan = planned(p);
    const std::string text = otimes::to_text(plan);
    CHECK(otimes::distributed_plan_from_text(text) == plan);
    CHECK(otimes::to_text(otimes::distributed_plan_from_text(text)) == text);
    CHECK(otimes::distributed_problem_from_text(otimes::to_text(p)) == p);
    std::string damaged = text;
    damaged[text.size() / 2] ^= 1;
    CHECK_THROWS_AS(static_cast<void>(otimes::distributed_plan_from_text(damaged)), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::distributed_plan_from_text(otimes::to_text(
                        plan.stages.front().plans.empty() ? otimes::plan() : plan.stages.front().plans.front()))),
                    otimes::unsupported_error);
    otimes::distributed_plan around = plan;
    for (const bool fits : {true, true, false}) {  // in turn, in turn slabs, deeper than that
        otimes::distributed_plan inside = around;
        around = plan;
        around.in_turn.push_back(inside);
        const std::string nested = otimes::to_text(around);
        CHECK((support::text_of([&] {
                   static_cast<void>(otimes::distributed_plan_from_text(nested));
               }).find("deeper") == std::string::npos) == fits);
    }
    otimes::distributed_plan at_once;  // of fewer numbers of rows than plans
    at_once.at_once.push_back(otimes::plan());
    CHECK((support::text_of([&] {
               static_cast<void>(otimes::distributed_plan_from_text(otimes::to_text(at_once)));
           }).find("plans of all terms at once are not as many as their numbers of rows") != std::string::npos));
    otimes::distributed_problem other = p;
    other.factors[2].p_extent = 7;
    CHECK(otimes::describe_difference(p, other) == "factor 3 is here 4 x 5, there 7 x 5");
    CHECK(otimes::describe_difference(p, p) == "nothing differs");
    const std::string page = otimes::explain(planned(power(1, 8, 8, 3, 2)));
    CHECK(
        page.find(
            "distributed over 2 ranks: X columns in flat ranges over 2; Y columns along 8 * [8] * 8 over 2 (chosen)\n"
            "  1. local: F2, F3; 1 plan\n"
            "  2. exchange: to columns along 8 * [8] * 8 over 2; 2.00 KiB on the wire, at most 1.00 KiB from one rank\n"
            "  3. local: F1; 1 plan\n"
            "  bytes on the wire: 2048\n") == 0);
}

TEST_CASE("distributions that do not fit are refused") {
    otimes::distributed_problem p = power(1, 4, 4, 2, 4);
    p.operand = otimes::cut_columns(5);
    CHECK_THROWS_WITH_AS(static_cast<void>(planned(p)), doctest::Contains("1 x 5 parts does not fit 4 ranks"),
                         otimes::shape_error);
    p.operand = otimes::cut_mode(1, 4, extents{3, 5}, 1);
    CHECK_THROWS_WITH_AS(static_cast<void>(planned(p)), doctest::Contains("3 * 5 * 1 columns does not fit 16 columns"),
                         otimes::shape_error);
    p = power(std::int64_t{1} << 40, 1 << 20, 1 << 20, 2, 4);
    CHECK_THROWS_AS(static_cast<void>(planned(p)), otimes::shape_error);
}

// SPDX-License-Identifier: MIT
// Grouping and fusion against brute force over all partitions.
#include "plan/programs.hpp"

#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace {

using namespace planner_test;
using namespace otimes::planning;

std::vector<chain_mode> contiguous_modes(const std::vector<factor_shape>& shapes) {
    std::vector<chain_mode> modes;
    for (std::size_t k = 0; k < shapes.size(); ++k) {
        modes.push_back({static_cast<std::int32_t>(k), static_cast<std::int32_t>(k) + 1, shapes[k].p_extent,
                         shapes[k].q_extent, 1, 1});
    }
    for (std::size_t k = shapes.size(); k-- > 1;) {
        modes[k - 1].stride_in = modes[k].stride_in * modes[k].p_extent;
        modes[k - 1].stride_out = modes[k].stride_out * modes[k].q_extent;
    }
    return modes;
}

// Cost of the partition whose cuts are the set bits of `cuts`; infinite when a group is larger than allowed. A factor of 3 x 3, or of 4 x 4
// where those count, that is kept apart beside another such costs half of what its loads and stores alone would.
double partition_cost(const std::vector<factor_shape>& shapes, std::uint32_t cuts, bool outermost_first, twins which) {
    const auto square = [&shapes](std::size_t k, std::int64_t extent) {
        return k < shapes.size() && shapes[k].p_extent == extent && shapes[k].q_extent == extent;
    };
    double cost = 0;
    double before = 1;
    if (!outermost_first) {
        for (const factor_shape& s : shapes) {
            before = before / static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent);
        }
    }
    for (std::size_t begin = 0; begin < shapes.size();) {
        std::int64_t P = shapes[begin].p_extent;
        std::int64_t Q = shapes[begin].q_extent;
        std::size_t end = begin + 1;
        for (; end < shapes.size() && (cuts >> (end - 1) & 1) == 0; ++end) {
            P *= shapes[end].p_extent;
            Q *= shapes[end].q_extent;
        }
        if (end > begin + 1 && (P > most_grouped_extent || Q > most_grouped_extent)) {
            return std::numeric_limits<double>::infinity();
        }
        const double ratio = static_cast<double>(Q) / static_cast<double>(P);
        before = outermost_first ? before : before / ratio;
        const bool counts = (P == 3 && which != twins::none) || (P == 4 && which == twins::up_to_four);
        const bool twin = counts && end == begin + 1 && square(begin, P) && (square(begin - 1, P) || square(end, P));
        cost += twin ? 2.0 * before * static_cast<double>(P) / twin_efficiency : grouped_sweep_cost(P, Q, before);
        before = outermost_first ? before * ratio : before;
        begin = end;
    }
    return cost;
}

}  // namespace

TEST_CASE("the grouping is the cheapest of all partitions") {
    support::random_stream random(3);
    for (int i = 0; i < 400; ++i) {
        std::vector<factor_shape> shapes(static_cast<std::size_t>(random.integer(1, 8)));
        for (factor_shape& s : shapes) {
            s = {random.integer(1, 6), random.integer(1, 6)};
            const std::int64_t square = random.integer(3, 4);
            s = random.integer(0, 2) == 0 ? factor_shape{square, square} : s;
        }
        const twins which = i % 3 == 0 ? twins::none : i % 3 == 1 ? twins::of_three : twins::up_to_four;
        double best = std::numeric_limits<double>::infinity();
        for (std::uint32_t cuts = 0; cuts < 1u << (shapes.size() - 1); ++cuts) {
            best = std::min(best, partition_cost(shapes, cuts, i % 2 == 0, which));
        }
        std::vector<factor_group> groups;
        cheapest_grouping(contiguous_modes(shapes), 0, i % 2 == 0, groups, which);
        std::uint32_t cuts = 0;
        std::int32_t next = 0;
        for (const factor_group& g : groups) {
            REQUIRE(g.first == next);
            next += g.count;
            cuts |= next < static_cast<std::int32_t>(shapes.size()) ? 1u << (next - 1) : 0u;
        }
        REQUIRE(next == static_cast<std::int32_t>(shapes.size()));
        REQUIRE(partition_cost(shapes, cuts, i % 2 == 0, which) == doctest::Approx(best).epsilon(1e-12));
    }
}

TEST_CASE("known groupings: 2^3 becomes 8 x 8, 8 x 8 stays apart, gaps are not grouped over") {
    const auto groups_of = [](const std::vector<factor_shape>& shapes) {
        std::vector<factor_group> groups;
        cheapest_grouping(contiguous_modes(shapes), 0, true, groups);
        return groups;
    };
    CHECK(groups_of({{2, 2}, {2, 2}, {2, 2}}) == std::vector<factor_group>{{0, 3, 8, 8}});
    CHECK(groups_of({{8, 8}, {8, 8}}) == std::vector<factor_group>{{0, 1, 8, 8}, {1, 1, 8, 8}});
    CHECK(groups_of({{64, 64}, {2, 2}}) == std::vector<factor_group>{{0, 1, 64, 64}, {1, 1, 2, 2}});
    std::vector<chain_mode> gap = contiguous_modes({{2, 2}, {2, 2}});
    gap[0].stride_in = 3;  // rows of two elements with one unused behind them
    std::vector<factor_group> groups;
    cheapest_grouping(gap, 0, true, groups);
    CHECK(groups.size() == 2);
}

TEST_CASE("two real factors of 3 x 3 are kept apart, since they are swept at once; complex ones become 9 x 9") {
    const auto groups_of = [](dtype type, const std::vector<mode_spec>& factors) {
        const std::vector<chain> chains = chains_of(rows_program(7, factors, type));
        return group_factors(chains.front(), true).size();
    };
    CHECK(groups_of(dtype::f32, {factor(3, 3), factor(3, 3)}) == 2);
    CHECK(groups_of(dtype::f64, {factor(3, 3), factor(3, 3), factor(3, 3)}) == 3);
    CHECK(groups_of(dtype::c64, {factor(3, 3), factor(3, 3)}) == 1);
    CHECK(groups_of(dtype::f32, {factor(3, 3), factor(3, 4)}) == 1);
}

TEST_CASE(
    "with 32 registers factors of 4 x 4 are kept apart, and those of 2 x 2 become such, an odd number of them one of 8 "
    "x 8 first") {
    const auto groups_of = [](const std::vector<mode_spec>& factors, bool many_registers, dtype type = dtype::f32) {
        std::vector<std::int64_t> extents;
        const std::vector<chain> chains = chains_of(rows_program(7, factors, type));
        for (const factor_group& g : group_factors(chains.front(), true, many_registers)) {
            extents.push_back(g.p_extent);
        }
        return extents;
    };
    using extents = std::vector<std::int64_t>;
    const auto copies = [](int count, std::int64_t extent) {
        return std::vector<mode_spec>(static_cast<std::size_t>(count), factor(extent, extent));
    };
    CHECK(groups_of(copies(3, 4), true) == extents{4, 4, 4});
    CHECK(groups_of(copies(4, 2), true) == extents{4, 4});
    CHECK(groups_of(copies(4, 2), true, dtype::f64) == extents{16});
    CHECK(groups_of(copies(2, 4), true, dtype::f64) == extents{4, 4});
    CHECK(groups_of(copies(5, 2), true) == groups_of(copies(5, 2), false));  // 8 and a lone 4 either way
    CHECK(groups_of(copies(4, 2), false) == extents{16});
    CHECK(groups_of(copies(4, 2), true, dtype::c128) == extents{16});
    CHECK(groups_of(copies(7, 2), true) == extents{8, 4, 4});
    CHECK(groups_of(copies(3, 2), true) == extents{8});
    CHECK(groups_of({factor(4, 4), factor(2, 2), factor(2, 2)}, true) == extents{4, 4});
    CHECK(groups_of({factor(7, 9), factor(2, 2), factor(2, 2), factor(2, 2), factor(2, 2)}, true) == extents{4, 4, 7});
}

TEST_CASE("grouping never costs more than keeping all factors apart") {
    support::random_stream random(9);
    for (int i = 0; i < 400; ++i) {
        std::vector<mode_spec> factors(static_cast<std::size_t>(random.integer(2, 7)));
        for (mode_spec& f : factors) {
            f = factor(random.integer(1, 6), random.integer(1, 6));
        }
        const std::vector<chain> chains = chains_of(rows_program(3, factors));
        REQUIRE(ordered_cost(group_factors(chains.front(), true), twins::of_three) <=
                ordered_cost(group_factors(chains.front(), false), twins::of_three));
    }
}

TEST_CASE("the passes are the cheapest of all partitions of the sweeps") {
    support::random_stream random(5);
    for (int i = 0; i < 60; ++i) {
        const bool in_output = i % 4 == 1;  // all square: the output may hold what lies between passes
        std::vector<mode_spec> factors(static_cast<std::size_t>(random.integer(1, 6)));
        for (mode_spec& f : factors) {
            const std::int64_t p = random.integer(1, 12);
            f = factor(p, in_output ? p : random.integer(1, 12));
        }
        const otimes::program p = rows_program(random.integer(1, 40), factors, dtype::f32, random.integer(0, 1) != 0);
        const otimes::machine m = i % 2 == 0 ? two_wide_cores() : tiny_caches(2);
        std::vector<chain> chains = chains_of(p);
        chain& c = chains.front();
        sort_by_memory(c.modes);
        std::vector<factor_group> groups = group_factors(c, i % 3 != 0);
        if (groups.empty()) {
            continue;
        }
        cpu_request request;
        request.threads = m.cpu.threads;
        const fusion_setting unsliced = setting_for(c, groups, m.cpu, request, slab_choice{});
        std::vector<slab_choice> slabs = slab_candidates(unsliced);
        if (in_output) {
            slabs.push_back({});
            slabs.back().in_output = true;
        }
        for (const slab_choice& slab : slabs) {
            const fusion_setting f = setting_for(c, groups, m.cpu, request, slab);
            double best = std::numeric_limits<double>::infinity();
            otimes::pass scratch;
            strides in;
            strides out;
            for (std::uint32_t cuts = 0; cuts < 1u << (groups.size() - 1); ++cuts) {
                double seconds = 0;
                for (std::size_t begin = 0; begin < groups.size();) {
                    std::size_t end = begin + 1;
                    while (end < groups.size() && (cuts >> (end - 1) & 1) == 0) {
                        ++end;
                    }
                    if (slab.in_output && begin > 0 && end == begin + 1) {  // one sweep cannot work in place
                        seconds = std::numeric_limits<double>::infinity();
                    }
                    seconds += interval_seconds(f, begin, end, scratch, in, out);
                    begin = end;
                }
                best = std::min(best, seconds);
            }
            double planned = 0;
            const std::vector<std::size_t> ends = cheapest_partition(f, planned);
            REQUIRE(planned == doctest::Approx(best).epsilon(1e-12));
            REQUIRE(ends.back() == groups.size());
            REQUIRE(std::is_sorted(ends.begin(), ends.end()));
        }
    }
}

TEST_CASE("grouping and order depend on neither the number of rows nor, of deterministic plans, a workspace limit") {
    for (const auto& factors : std::vector<std::vector<mode_spec>>{{factor(2, 3), factor(4, 2), factor(3, 3)},
                                                                   {factor(5, 5), factor(2, 7)},
                                                                   {factor(17, 2), factor(5, 4), factor(2, 3)}}) {
        std::vector<std::vector<std::int32_t>> sequences;
        const auto add = [&](std::int64_t M, std::int64_t limit) {
            const otimes::plan made = otimes::make_plan(rows_program(M, factors), two_wide_cores(),
                                                        {.workspace_limit_bytes = limit, .deterministic = true});
            std::vector<std::int32_t> sequence;
            for (const otimes::pass& p : made.passes) {
                for (const otimes::sweep& s : p.sweeps) {
                    sequence.push_back(-1);
                    sequence.insert(sequence.end(), s.factors.begin(), s.factors.end());
                }
            }
            sequences.push_back(sequence);
        };
        for (const std::int64_t M : {1, 3, 64, 10000}) {
            add(M, std::numeric_limits<std::int64_t>::max());
            try {
                add(M, 0);
            } catch (const otimes::budget_error& refused) {
                add(M, refused.least_bytes());
            }
        }
        for (const auto& sequence : sequences) {
            CHECK(sequence == sequences.front());
        }
    }
}

// SPDX-License-Identifier: MIT
// The plans that otimes::tune measures on a CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <otimes/plan/cpu_candidates.hpp>
#include <otimes/plan/tuning.hpp>

#include "plan/programs.hpp"

using namespace planner_test;
using otimes::dtype;
using otimes::planning::cpu_candidate_choice;
using otimes::planning::cpu_candidates;
using otimes::planning::runs_alike;

TEST_CASE("candidates: the planner's own first, no two alike, each what its text asks for") {
    const std::vector<otimes::program> programs{rows_power(100, 3, 6, dtype::f64), rows_power(64, 8, 4),
                                                rows_program(37, {factor(7, 5), factor(3, 4), factor(5, 6)})};
    for (const otimes::program& p : programs) {
        const otimes::machine m = two_wide_cores();
        const std::vector<cpu_candidate_choice> found = cpu_candidates(p, m, {}, 12);
        REQUIRE(found.size() > 3);
        CHECK(found.size() <= 12);
        CHECK(found.front().choice.empty());
        CHECK(found.front().made == otimes::make_plan(p, m, {.placement = otimes::placement::cpu}));
        for (std::size_t i = 1; i < found.size(); ++i) {
            CAPTURE(found[i].choice);
            otimes::machine asked = m;
            asked.tuning.push_back({otimes::hash_value(p), found[i].choice, 1e-3});
            const otimes::plan made = otimes::make_plan(p, asked, {.placement = otimes::placement::cpu});
            CHECK(runs_alike(made, found[i].made));
            CHECK(std::ranges::any_of(made.notes, [](const std::string& note) {
                return note == "chosen by measurement: 1.00 ms when it was tuned";
            }));
            for (std::size_t j = 0; j < i; ++j) {
                CHECK_FALSE(runs_alike(found[i].made, found[j].made));
            }
        }
    }
}

TEST_CASE("candidates: ways to fuse before slabs of one way, and the limit is kept") {
    const otimes::program p = rows_power(256, 8, 5);
    const std::vector<cpu_candidate_choice> found = cpu_candidates(p, two_wide_cores(), {}, 4);
    CHECK(found.size() == 4);
    for (std::size_t i = 1; i < found.size(); ++i) {
        CHECK(otimes::planning::way_to_fuse(found[i].made) != otimes::planning::way_to_fuse(found[i - 1].made));
    }
    const std::vector<cpu_candidate_choice> all = cpu_candidates(p, two_wide_cores(), {}, 1000);
    CHECK(all.size() > 20);
    std::int64_t least = all.front().made.workspace_bytes;
    for (const cpu_candidate_choice& c : all) {
        least = std::min(least, c.made.workspace_bytes);
    }
    const std::int64_t limit = (least + all.front().made.workspace_bytes) / 2;
    for (const cpu_candidate_choice& c : cpu_candidates(p, two_wide_cores(), {.workspace_limit_bytes = limit}, 1000)) {
        CHECK(c.made.workspace_bytes <= limit);
    }
    CHECK(cpu_candidates(p, two_wide_cores(), {}, 0).size() == 1);
}

TEST_CASE("candidates: a table of before decides nothing") {
    const otimes::program p = rows_power(256, 8, 5);
    otimes::machine m = two_wide_cores();
    m.tuning.push_back(
        {otimes::hash_value(p), "threads 2 multiply_out 1 slab_extent 8 most_lanes 64 partition 3", 1e-3});
    CHECK(cpu_candidates(p, m, {}, 1).front().made ==
          otimes::make_plan(p, two_wide_cores(), {.placement = otimes::placement::cpu}));
}

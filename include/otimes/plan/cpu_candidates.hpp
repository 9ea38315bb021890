// SPDX-License-Identifier: MIT
/// @file cpu_candidates.hpp
/// The plans of a program that are worth measuring on a CPU: the planner's choice and the others that its requests lead to. Only the
/// tuning function includes this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/tuning.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// A plan, and the text by which a tuning table asks for it; empty: the planner's own.
struct cpu_candidate_choice {
    std::string choice;
    plan made;
};

/// True where two plans run the same passes over the same slabs.
inline bool runs_alike(const plan& a, const plan& b) {
    return a.threads == b.threads && a.slab_extent == b.slab_extent && a.slab_count == b.slab_count &&
           std::ranges::equal(a.passes, b.passes, [](const pass& x, const pass& y) {
               return x.sweeps == y.sweeps && x.lane_mode == y.lane_mode && x.lane_count == y.lane_count &&
                      x.in == y.in && x.out == y.out && x.step == y.step;
           });
}

/// Which sweeps each pass does, over lanes or not: plans of one way differ in slabs and lanes alone.
OTIMES_COLD inline std::string way_to_fuse(const plan& p) {
    std::string way = std::to_string(p.threads);
    for (const pass& one : p.passes) {
        way += '|';
        for (const sweep& s : one.sweeps) {
            way += std::to_string(s.p_extent) + ' ';
        }
        way += one.lane_mode < 0 ? "row" : one.lane_count <= 8 ? "few" : "lanes";
    }
    return way;
}

/// At most `most` plans that differ and keep the workspace limit, the planner's own first, the others by predicted time. What the
/// requests vary: factors multiplied out or kept apart, where passes end, the indices of a slab, the lanes of a tile, one thread
/// or all. Cost: up to a few hundred plans, tens of milliseconds.
/// @throws as make_plan for the planner's own.
OTIMES_ON_DEMAND inline std::vector<cpu_candidate_choice> cpu_candidates(const program& source, const machine& where,
                                                                         const options& wishes, std::size_t most) {
    machine target = where;
    target.tuning.clear();
    options decided = wishes;
    decided.placement = placement::cpu;
    std::vector<cpu_candidate_choice> found;
    found.push_back({"", make_plan(source, target, decided)});
    const std::int32_t threads = (std::max)(1, wishes.threads > 0 ? wishes.threads : target.cpu.threads);
    // The table names its program by this value, and nothing but the entry decides then.
    target.tuning.push_back({hash_value(source), "", (std::numeric_limits<double>::min)()});
    const auto consider = [&](const cpu_request& request) {
        target.tuning.front().choice = choice_text(request);
        cpu_candidate_choice next{target.tuning.front().choice, {}};
        try {
            next.made = make_plan(source, target, decided);
        } catch (const budget_error&) {
            return;
        }
        if (std::ranges::none_of(
                found, [&next](const cpu_candidate_choice& other) { return runs_alike(other.made, next.made); })) {
            found.push_back(std::move(next));
        }
    };
    std::int64_t longest = 1;  // extent of a mode that may be cut
    for (const mode& m : source.modes) {
        longest = (std::max)(longest, m.extent);
    }
    std::vector<std::int64_t> slabs{-1, 0};
    for (std::int64_t extent = 1; extent < longest && extent <= 4096; extent *= 2) {
        slabs.push_back(extent);
    }
    const auto vector = static_cast<std::int64_t>(target.cpu.simd_bytes) / 4;
    for (const partition how :
         {partition::by_cost, partition::one_pass, partition::two_passes, partition::one_group_each}) {
        for (const bool multiply_out : {true, false}) {
            for (const std::int64_t extent : slabs) {
                for (const std::int64_t lanes : {(std::numeric_limits<std::int64_t>::max)(), 16 * vector, vector}) {
                    consider({threads, multiply_out, extent, lanes, how});
                }
            }
        }
    }
    if (threads > 1 && found.front().made.predicted_seconds < 64 * target.cpu.fork_seconds) {
        for (const bool multiply_out : {true, false}) {
            for (const std::int64_t extent : {std::int64_t{-1}, std::int64_t{0}}) {
                consider({1, multiply_out, extent, (std::numeric_limits<std::int64_t>::max)(), partition::by_cost});
            }
        }
    }
    std::stable_sort(found.begin() + 1, found.end(), [](const cpu_candidate_choice& a, const cpu_candidate_choice& b) {
        return a.made.predicted_seconds < b.made.predicted_seconds;
    });
    // One of each way to fuse first, unless it is far behind; then the other slabs and lanes of the same.
    const double behind = 2.5 * (std::ranges::min)(found, {}, [](const cpu_candidate_choice& c) {
                                    return c.made.predicted_seconds;
                                }).made.predicted_seconds;
    std::vector<std::string> seen;
    std::stable_partition(found.begin(), found.end(), [&](const cpu_candidate_choice& c) {
        std::string way = way_to_fuse(c.made);
        const bool fresh = std::ranges::find(seen, way) == seen.end() && c.made.predicted_seconds <= behind;
        if (fresh) {
            seen.push_back(std::move(way));
        }
        return fresh || &c == &found.front();
    });
    if (found.size() > most) {
        found.erase(found.begin() + static_cast<std::ptrdiff_t>((std::max)(most, std::size_t{1})), found.end());
    }
    return found;
}

}  // namespace otimes::planning

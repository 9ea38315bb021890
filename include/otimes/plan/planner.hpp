// SPDX-License-Identifier: MIT
/// @file planner.hpp
/// make_plan: from what (program) to how (plan). A pure function of values: no hardware is asked, no clock is read, no
/// operand is touched. docs/planner.md explains the decisions.
#pragma once

#include <otimes/program/compiled.hpp>

#if OTIMES_PLANNER_IN_LIBRARY

#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
plan make_plan(const program& source, const machine& target, const options& wishes = {});
}  // namespace otimes

#else

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/cpu_plan.hpp>
#include <otimes/plan/cut.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/ordering.hpp>
#include <otimes/plan/placement.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/step_cost.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/plan/tuning.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/number_text.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

namespace planning {

/// The plan with the prediction that decides between requests.
struct cpu_candidate {
    plan made;
    std::vector<chain> chains;
    chain_decision decision;
    cpu_request request;
};

/// @param cut as plan_on_cpu has it
OTIMES_ON_DEMAND OTIMES_COLD inline cpu_candidate try_request(const program& source, const cpu_description& cpu,
                                                              const cpu_request& request,
                                                              const program_cut* cut = nullptr) {
    cpu_candidate candidate;
    candidate.request = request;
    candidate.chains = chains_of(source);
    candidate.made = plan_on_cpu(source, cpu, request, candidate.chains, candidate.decision, cut);
    if (cut != nullptr && candidate.made.slab_count > 1 && !candidate.made.tensor_buffers.empty()) {
        candidate.made.tensor_cuts = cut->mode;
    }
    return candidate;
}

/// The plan of a request, with one thread instead of several where starting the others costs more than they save.
OTIMES_ON_DEMAND OTIMES_COLD inline cpu_candidate with_cheapest_threads(const program& source,
                                                                        const cpu_description& cpu,
                                                                        const cpu_request& request) {
    cpu_candidate chosen = try_request(source, cpu, request);
    if (is_worth_one_thread(chosen.made, request, cpu)) {
        cpu_request alone = request;
        alone.threads = 1;
        cpu_candidate other = try_request(source, cpu, alone);
        if (other.made.predicted_seconds <= chosen.made.predicted_seconds) {
            return other;
        }
    }
    return chosen;
}

/// Why the pass of groups [begin, end), predicted at `seconds`, does not take the next group too.
OTIMES_ON_DEMAND inline std::string reason_to_end(const fusion_setting& f, std::size_t begin, std::size_t end,
                                                  const strides& in, double seconds) {
    if (end == f.groups.size()) {
        return begin == 0 ? "everything in one pass" : "end of the chain";
    }
    pass scratch;
    strides from;
    strides to;
    const double separate = seconds + interval_seconds(f, end, end + 1, scratch, from, to);
    strides_after(f, end + 1, to);
    outline_pass(f, begin, end + 1, in, to, scratch);
    const double fused = choose_lanes(f, setting_of(f, begin, end + 1), scratch).seconds;
    if (fused <= separate) {
        return "the modes behind it are cheaper together";
    }
    const double tile = (std::max)(1, tile_buffers_of(scratch, *f.cpu, f.source->type)) * tile_peak_elements(scratch) *
                        static_cast<double>(scratch.lane_count) * static_cast<double>(element_bytes(f.source->type));
    return "with the next mode tiles take " + bytes_text(tile) +
           (tile > static_cast<double>(f.cpu->l1_bytes)
                ? " (L1 has " + bytes_text(static_cast<double>(f.cpu->l1_bytes)) + ")"
                : "") +
           ": " + three_digits(fused / separate) + "x the time";
}

/// The plan of an in-place chain without any workspace: one step a pass, each fibre read whole onto the stack before its results
/// overwrite it. False where the program is no such chain or a fibre is too long.
OTIMES_ON_DEMAND inline bool plan_without_workspace(const program& source, const cpu_description& cpu,
                                                    cpu_candidate& result) {
    std::vector<chain> chains = chains_of(source);
    if (chains.size() != 1 || !chains.front().in_place) {
        return false;
    }
    plan p;
    p.source = source;
    p.machine_name = cpu.name;
    p.tensor_modes = source.modes;
    p.tensor_buffers.assign(source.tensors.size(), -1);
    const std::int32_t out = chains.front().out;
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (t.binding >= 0) {
            continue;
        }
        p.tensor_buffers[id] = in_place_of_result;
        for (std::int32_t k = 0; k < t.mode_count; ++k) {
            p.tensor_modes[static_cast<std::size_t>(t.first_mode + k)] =
                source.modes_of(out)[static_cast<std::size_t>(k)];
        }
    }
    for (std::size_t i = 0; i < source.steps.size(); ++i) {
        const step& s = source.steps[i];
        pass one;
        one.step = static_cast<std::int32_t>(i);
        one.in = chains.front().in;
        one.out = out;
        one.scalar = s.scalar;
        one.level = level_name(level::memory);
        one.reason = "each fibre through the stack: no workspace";
        one.bytes = 2 * operand_bytes(source, out);
        one.flops = step_flops(source, s);
        one.bound_seconds = (std::max)(static_cast<double>(one.bytes) / cpu.memory_bytes_per_second,
                                       static_cast<double>(one.flops) / cpu.flops_f64);
        one.predicted_seconds = 3.0 * one.bound_seconds + cpu.dispatch_seconds;  // plain loops that compilers vectorise
        if (s.kind == step_kind::contract &&
            source.modes_of(out)[static_cast<std::size_t>(s.mode)].extent > longest_stack_fibre) {
            return false;
        }
        saturating_add(p.flops, static_cast<double>(one.flops));
        p.predicted_seconds += one.predicted_seconds;
        p.passes.push_back(std::move(one));
    }
    result = {};
    result.made = std::move(p);
    result.chains = std::move(chains);
    result.request.threads = 1;
    return true;
}

OTIMES_ON_DEMAND [[noreturn]] OTIMES_COLD inline void throw_over_limit(std::int64_t least, std::int64_t limit) {
    throw budget_error("otimes: the product needs a workspace of at least " + std::to_string(least) +
                           " bytes, but workspace_limit_bytes is " + std::to_string(limit) +
                           ". Raise the limit to that or more.",
                       least);
}

/// Bytes of workspace that the plan of a request takes at least, of a program that is the chain `c` alone, by these groups: tiles for all threads
/// and what lies between the passes. Cost: some hundred nanoseconds, where the plan takes tens of microseconds.
OTIMES_ON_DEMAND inline double least_workspace_of(const program& source, const chain& c,
                                                  const std::vector<factor_group>& groups, const cpu_description& cpu,
                                                  const cpu_request& request) {
    const std::int32_t mode = slab_mode_of(c);
    const slab_choice slab = request.slab_extent > 0 && mode >= 0 ? cut(c, mode, request.slab_extent) : slab_choice{};
    const fusion_setting f = setting_for(c, groups, cpu, request, slab);
    const auto bytes_each = static_cast<double>(plan_element_bytes(source));
    double longest = 1;  // fibre of a pass of one group
    double stage = 1;    // of a pass of all groups
    for (const factor_group& g : groups) {
        longest = (std::max)(longest, static_cast<double>((std::max)(g.p_extent, g.q_extent)));
        stage *= static_cast<double>(g.p_extent);
    }
    double peak = stage;
    double smallest = std::numeric_limits<double>::infinity();  // tensor between two passes
    double two = 0;                                             // the largest two neighbours of them
    double before = 0;
    for (std::size_t done = 1; done <= groups.size(); ++done) {
        stage = stage / static_cast<double>(groups[done - 1].p_extent) * static_cast<double>(groups[done - 1].q_extent);
        peak = (std::max)(peak, stage);
        if (done < groups.size()) {
            const auto elements = static_cast<double>(elements_after(f, done));
            smallest = (std::min)(smallest, elements);
            two = (std::max)(two, before + elements);
            before = elements;
        }
    }
    const bool by_cost = request.partition == partition::by_cost;
    const bool may_be_one = by_cost || request.partition == partition::one_pass || groups.size() < 2;
    const bool is_one = request.partition == partition::one_pass || groups.size() < 2;
    // By cost of all slabs, or where the operand holds what lies between passes, there may be no buffer.
    const double buffers = request.slab_extent < 0 || c.in_place            ? 0.0
                           : request.partition == partition::one_group_each ? two
                                                                            : smallest;
    const double workers = static_cast<double>((std::min)(static_cast<std::int64_t>(request.threads), slab.count));
    const auto vector = static_cast<double>(vector_count(cpu, c.type));
    const auto with_tiles = [&](double elements, double between) {
        const double lines = std::ceil((elements + vector) * bytes_each / 64.0);
        return workers * between * bytes_each + 2.0 * request.threads * 64.0 * lines;
    };
    const double several = is_one ? std::numeric_limits<double>::infinity() : with_tiles(longest, buffers);
    const double one = may_be_one ? with_tiles(peak, 0) : std::numeric_limits<double>::infinity();
    return (std::min)(several, one);
}

/// The requests that a tight workspace is met with: fewer threads, smaller slabs, fewer lanes, other partitions, factors kept
/// apart. The set does not depend on the limit, so the least workspace in it is a limit that works.
/// @param unlimited_bytes workspace of the plan without a limit, which a tuning table may have taken from outside the set
/// @param keeps_groups only those that multiply out the same factors, so that a row's bits do not depend on the limit, which binds
///        by the number of rows
/// @throws budget_error none of them keeps the limit; the text names the least.
OTIMES_ON_DEMAND inline cpu_candidate within_limit(const program& source, const cpu_description& cpu,
                                                   const cpu_request& first, std::int64_t limit,
                                                   std::int64_t unlimited_bytes, bool keeps_groups) {
    std::vector<std::int64_t> slab_extents{-1, 0};
    const std::vector<chain> chains = chains_of(source);
    std::int64_t total = 0;  // indices that may be cut
    program_cut cut;         // of all chains together, where there are several
    if (chains.size() == 1 && chains.front().step_count > 0) {
        const std::int32_t mode = slab_mode_of(chains.front());
        total = mode < 0 ? 0 : chains.front().modes[static_cast<std::size_t>(mode)].p_extent;
    } else {
        cut = longest_cut_at_end(source);
        total = cut.extent;
        slab_extents = {0};
    }
    for (std::int64_t extent = total / 2; extent > 0; extent /= 2) {
        slab_extents.push_back(extent);
    }
    const std::int64_t unlimited = (std::numeric_limits<std::int64_t>::max)();
    const bool one_chain = chains.size() == 1 && chains.front().step_count > 0;
    std::int64_t most_groups = 0;  // of a chain
    for (const chain& c : chains) {
        most_groups = (std::max)(most_groups, static_cast<std::int64_t>(std::ranges::count_if(
                                                  c.modes, [](const chain_mode& m) { return m.contracted(); })));
    }
    // With factors kept apart, and multiplied out: the only chain and its groups are those of all such requests.
    cpu_candidate known[2];
    std::vector<cpu_request> requests;
    for (std::int32_t threads = first.threads; threads > 0; threads /= 2) {
        for (const bool multiply_out : {true, false}) {
            if (multiply_out != first.multiply_out && (keeps_groups || multiply_out)) {
                continue;
            }
            cpu_candidate& one = known[multiply_out ? 1 : 0];
            if (one_chain && one.chains.empty()) {
                one = try_request(source, cpu, {threads, multiply_out, 0, 1, partition::one_pass}, &cut);
            }
            if (!multiply_out && one_chain && !known[1].chains.empty() &&
                known[1].decision.groups == one.decision.groups) {
                continue;  // no factors are multiplied out
            }
            const auto groups = one_chain ? static_cast<std::int64_t>(one.decision.groups.size()) : most_groups;
            for (const partition how :
                 {partition::by_cost, partition::one_group_each, partition::one_pass, partition::two_passes}) {
                if ((how != partition::by_cost && groups < 2) || (how == partition::two_passes && groups == 2)) {
                    continue;  // what others have, too
                }
                for (const std::int64_t lanes : {unlimited, std::int64_t{1}}) {
                    for (const std::int64_t extent : slab_extents) {
                        requests.push_back({threads, multiply_out, extent, lanes, how});
                    }
                }
            }
        }
    }
    // From the last on, which take least, so that those that cannot matter need no plan. Of equally quick ones the first.
    std::optional<cpu_candidate> best;
    std::int64_t least = unlimited_bytes;
    for (; !requests.empty(); requests.pop_back()) {
        const cpu_request& request = requests.back();
        if (const cpu_candidate& one = known[request.multiply_out ? 1 : 0]; one_chain) {
            const double takes = least_workspace_of(source, one.chains.front(), one.decision.groups, cpu, request);
            if (takes > static_cast<double>(limit) && takes >= static_cast<double>(least)) {
                continue;
            }
        }
        cpu_candidate next = try_request(source, cpu, request, &cut);
        least = (std::min)(least, next.made.workspace_bytes);
        if (next.made.workspace_bytes <= limit &&
            (!best || next.made.predicted_seconds <= best->made.predicted_seconds)) {
            best = std::move(next);
        }
    }
    if (cpu_candidate bare; !best && !keeps_groups && plan_without_workspace(source, cpu, bare)) {
        least = 0;
        if (limit >= 0) {
            best = std::move(bare);
        }
    }
    if (!best) {
        throw_over_limit(least, limit);
    }
    return std::move(*best);
}

/// Multiply-adds of the best order of a chain with its factors kept apart: what any evaluation at least does.
OTIMES_ON_DEMAND inline double least_flops(const chain& c, double& last_first) {
    std::vector<factor_shape> shapes;
    double free_count = 1;
    for (const chain_mode& m : c.modes) {
        if (m.contracted()) {
            shapes.push_back({m.p_extent, m.q_extent});
        } else {
            free_count *= static_cast<double>(m.p_extent);
        }
    }
    std::vector<std::int32_t> order = cheapest_order(shapes);
    const std::int64_t weight = multiply_add_weight(c.type);
    const double least = chain_flops(shapes, order, free_count, weight);
    // the textbook order: the last factor of the formula first
    std::vector<std::int32_t> names;
    for (const chain_mode& m : c.modes) {
        if (m.contracted()) {
            names.push_back(m.name);
        }
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = static_cast<std::int32_t>(i);
    }
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return names[static_cast<std::size_t>(a)] > names[static_cast<std::size_t>(b)];
    });
    last_first = chain_flops(shapes, order, free_count, weight);
    return least;
}

/// The type of the result, by which the peak goes.
OTIMES_ON_DEMAND inline dtype type_of_result(const program& source) {
    const auto output = std::ranges::find(source.tensors, tensor_role::output, &tensor::role);
    return output == source.tensors.end() || output->type == dtype::other ? dtype::f64 : output->type;
}

/// Totals that do not depend on how: least bytes, and the bound of a machine with this bandwidth and peak.
/// @param link_bytes_per_second between a GPU and host memory, each way, both at the same time; 0: no operand takes it, or not known
OTIMES_ON_DEMAND inline void add_bounds(plan& p, const std::vector<chain>& chains, double bytes_per_second,
                                        double flops_per_second, double link_bytes_per_second = 0) {
    double bytes = 0;
    double bytes_to_gpu = 0;
    double bytes_from_gpu = 0;
    double written = 0;  // the terms of a sum have an output each, which is the same matrix
    for (std::size_t id = 0; id < p.source.tensors.size(); ++id) {
        const tensor& t = p.source.tensors[id];
        const auto own = static_cast<double>(operand_bytes(p.source, static_cast<std::int32_t>(id)));
        const auto is_same = [&t](const tensor& other) { return other.binding == t.binding && other.role == t.role; };
        const bool on_host = t.space == memory_space::host;
        if (t.role == tensor_role::output) {
            written = (std::max)(written, own);
            bytes_from_gpu = (std::max)(bytes_from_gpu, on_host ? own : 0.0);
        } else if (t.binding >= 0 && std::ranges::none_of(std::span(p.source.tensors).first(id), is_same)) {
            bytes += own;
            bytes_to_gpu += on_host ? own : 0.0;
        }
    }
    const auto first = std::ranges::find_if(
        p.source.steps, [&p](const step& s) { return s.out >= 0 && p.source.at(s.out).role == tensor_role::output; });
    const bool adds = first != p.source.steps.end() && first->add;
    bytes += adds ? 2 * written : written;
    bytes_to_gpu += adds ? bytes_from_gpu : 0.0;
    double flops = 0;
    for (const chain& c : chains) {
        double unused = 0;
        flops +=
            c.step_count > 0
                ? least_flops(c, unused)
                : static_cast<double>(step_flops(p.source, p.source.steps[static_cast<std::size_t>(c.first_step)]));
    }
    p.bytes = 0;
    saturating_add(p.bytes, bytes);
    const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0.0; };
    p.bound_seconds = (std::max)({bytes / bytes_per_second, seconds(flops, flops_per_second),
                                  seconds((std::max)(bytes_to_gpu, bytes_from_gpu), link_bytes_per_second)});
}

/// The rate at which all threads read and write operands, from where the passes are predicted to find them.
OTIMES_ON_DEMAND inline double operand_bytes_per_second(const cpu_candidate& chosen, const cpu_description& cpu,
                                                        std::int32_t threads) {
    double rate = cpu.memory_bytes_per_second;
    const auto found_beside = [&](double bytes) {
        const level where = (std::max)(level::l2, level_of(cpu, bytes, 1));
        rate = (std::max)(rate, bandwidth(cpu, where, threads) * threads);
    };
    for (const chain& c : chosen.chains) {
        if (c.step_count > 0) {
            found_beside(outer_bytes(c));
        }
    }
    for (const pass& p : chosen.made.passes) {
        if (p.kernel == pass_kernel::step) {
            found_beside(static_cast<double>(p.bytes));
        }
    }
    return rate;
}

/// Writes into the plan which candidates lost, and by how much. Only one chain has candidates.
/// @param measured measurement has decided, not the rules of the cost model
/// @param limited by which wishes.workspace_limit_bytes binds: one that is predicted to be quicker may have lost since it takes more, or as
/// wishes.deterministic has it; nullptr: it does not
OTIMES_ON_DEMAND inline void explain_losers(cpu_candidate& winner, const cpu_description& cpu, bool measured,
                                            const options* limited) {
    plan& p = winner.made;
    if (winner.chains.size() != 1 || winner.chains.front().step_count == 0 || winner.decision.groups.empty()) {
        return;
    }
    const chain& c = winner.chains.front();
    const chain_decision& chosen = winner.decision;
    const double fork = p.threads > 1 ? cpu.fork_seconds : 0;  // of the plan's own time, and of what lost
    // With the slabs, groups and partition of `request`.
    const auto lose = [&](std::string what, double seconds, const char* rule, const cpu_request& request) {
        const double times = (seconds + fork) / (chosen.seconds + fork);
        std::string reason = three_digits(times) + "x the time";
        if (times < 1) {
            if (measured) {
                rule = "measurement decided";
            } else if (limited != nullptr && limited->deterministic && !request.multiply_out) {
                rule = "deterministic: a limit does not change the groups";
            } else if (limited != nullptr &&
                       try_request(p.source, cpu, request).made.workspace_bytes > limited->workspace_limit_bytes) {
                rule = "beyond the workspace limit";
            }
            (reason += ": ") += rule;
        }
        p.rejected.push_back({std::move(what), std::move(reason), seconds + fork});
    };
    double last_first = 0;
    const double least = least_flops(c, last_first);
    if (last_first > 1.005 * least) {
        p.rejected.push_back({"last factor first", flops_text(last_first) + " instead of " + flops_text(least),
                              chosen.seconds * last_first / least + fork});
    }
    double seconds = 0;
    const fusion_setting f = setting_for(c, chosen.groups, cpu, winner.request, chosen.slab);
    cpu_request other = winner.request;
    other.slab_extent = chosen.slab.extent;
    if (chosen.ends.size() < chosen.groups.size()) {
        // The output cannot hold what lies between passes of one sweep.
        const fusion_setting apart =
            setting_for(c, chosen.groups, cpu, winner.request, chosen.slab.in_output ? slab_choice{} : chosen.slab);
        partition_of(apart, partition::one_group_each, seconds);
        other.partition = partition::one_group_each;
        lose("no fusion: " + std::to_string(chosen.groups.size()) + " passes", seconds, "more passes must promise more",
             other);
    }
    if (chosen.ends.size() > 1) {
        partition_of(f, partition::one_pass, seconds);
        other.partition = partition::one_pass;
        lose("everything in one pass", seconds, "larger tiles must promise more", other);
    }
    if (chosen.slab.count > 1 && chosen.seconds_without_slabs > 0) {
        cpu_request whole = winner.request;
        whole.slab_extent = 0;
        lose("no slabs", chosen.seconds_without_slabs, "more workspace must promise more", whole);
    }
    const bool grouped = std::ranges::any_of(chosen.groups, [](const factor_group& g) { return g.count > 1; });
    if (grouped) {
        std::vector<factor_group> apart = group_factors(c, false);
        partition_of(setting_for(c, apart, cpu, winner.request, chosen.slab), partition::by_cost, seconds);
        other.partition = partition::by_cost;
        other.multiply_out = false;
        lose("all factors kept apart", seconds, "groups are chosen by the factors alone", other);
    }
}

/// Writes into the passes of the only chain why each ends where it ends.
OTIMES_ON_DEMAND inline void explain_passes(cpu_candidate& winner, const cpu_description& cpu) {
    if (winner.chains.size() != 1 || winner.chains.front().step_count == 0) {
        return;
    }
    const fusion_setting f =
        setting_for(winner.chains.front(), winner.decision.groups, cpu, winner.request, winner.decision.slab);
    strides in;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < winner.decision.ends.size(); ++i) {
        pass& one = winner.made.passes[i];
        strides_after(f, begin, in);
        one.reason = reason_to_end(f, begin, winner.decision.ends[i], in, one.predicted_seconds);
        begin = winner.decision.ends[i];
    }
}

/// Notes about factors that are not swept by themselves.
OTIMES_ON_DEMAND inline void note_factors(plan& p, const std::vector<chain>& chains) {
    std::int64_t units = 0;
    std::int64_t identities = 0;
    for (const chain& c : chains) {
        units += c.step_count > 0 ? static_cast<std::int64_t>(c.unit_factors.size()) : 0;
        for (std::int32_t i = c.first_step; i < c.first_step + c.step_count; ++i) {
            const step& s = p.source.steps[static_cast<std::size_t>(i)];
            identities += s.factor >= 0 && p.source.at(s.factor).kind == factor_kind::identity ? 1 : 0;
        }
    }
    if (units > 0) {
        p.notes.push_back(counted(units, "factor") + " of 1 x 1 folded into a sweep beside");
    }
    if (identities > 0) {
        p.notes.push_back(counted(identities, "identity factor") + ": nothing to do");
    }
}

/// True when the result is of a type that no kernel knows (indices of gather and scatter are no results).
OTIMES_ON_DEMAND inline bool is_of_other_type(const program& source) {
    return std::ranges::any_of(source.tensors,
                               [](const tensor& t) { return t.role == tensor_role::output && t.type == dtype::other; });
}

/// The plan on the CPU. @throws budget_error
OTIMES_ON_DEMAND inline plan place_on_cpu(const program& source, const machine& target, const options& wishes) {
    const cpu_description& cpu = target.cpu;
    cpu_request request;
    request.threads = is_of_other_type(source) ? 1  // the reference loops start no others
                                               : (std::max)(1, wishes.threads > 0 ? wishes.threads : cpu.threads);
    double measured = 0;
    request.multiply_out =
        wishes.precision != precision::ieee;              // products of entries may leave the range that sums stay in
    if (!wishes.deterministic && request.multiply_out) {  // entries are tuned with factors multiplied out or apart
        request = tuned_request(target, source, request, measured);
    }
    cpu_candidate chosen =
        measured > 0 ? try_request(source, cpu, request) : with_cheapest_threads(source, cpu, request);
    if (measured > 0) {
        chosen.made.notes.push_back("chosen by measurement: " + seconds_text(measured) + " when it was tuned");
    }
    if (chosen.request.threads < request.threads) {
        chosen.made.notes.push_back("1 thread of " + std::to_string(request.threads) + ": starting the others takes " +
                                    seconds_text(cpu.fork_seconds));
    }
    const bool limited = chosen.made.workspace_bytes > wishes.workspace_limit_bytes;
    if (limited) {
        const std::int64_t wanted = chosen.made.workspace_bytes;
        chosen = within_limit(source, cpu, request, wishes.workspace_limit_bytes, wanted, wishes.deterministic);
        chosen.made.notes.push_back("workspace limit: " + bytes_text(static_cast<double>(chosen.made.workspace_bytes)) +
                                    " instead of " + bytes_text(static_cast<double>(wanted)));
    }
    const std::int32_t threads = chosen.made.threads;  // of the passes' bounds, too
    add_bounds(chosen.made, chosen.chains, operand_bytes_per_second(chosen, cpu, threads),
               peak_flops(cpu, type_of_result(source)) * threads);
    // The least traffic may be expected nearer by than by the rate above.
    chosen.made.bound_seconds = (std::min)(chosen.made.bound_seconds, chosen.made.predicted_seconds);
    note_factors(chosen.made, chosen.chains);
    explain_passes(chosen, cpu);
    explain_losers(chosen, cpu, measured > 0 && !limited, limited ? &wishes : nullptr);
    return std::move(chosen.made);
}

/// What `make` returns, where it keeps the workspace limit. @param least lowered to the limit that `make` would keep, where it does not
template <class Make>
std::optional<plan> plan_if_it_fits(const Make& make, std::int64_t& least) {
    try {
        return make();
    } catch (const budget_error& refused) {
        if (refused.least_bytes() > 0) {  // else the GPU's memory is too small for any limit
            least = (std::min)(least, refused.least_bytes());
        }
        return std::nullopt;
    }
}

/// The quickest plan of a program on host operands, on the CPU, one GPU or all. A place that cannot keep the workspace limit, or run the program, loses
/// to one that can. @throws budget_error none can; the text names the least of all.
OTIMES_ON_DEMAND inline plan place_by_cost(const program& source, const machine& target, const options& wishes) {
    std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
    std::optional<plan> other;
    const bool passes = !streaming::has_several_results(source);  // through a GPU
    if (!target.gpus.empty() && passes) {
        other = plan_if_it_fits([&] { return place_on_gpu(source, target, wishes); }, least);
    }
    if (target.gpus.size() > 1 && passes) {
        std::optional<plan> spread =
            plan_if_it_fits([&] { return spread_from_host(source, target, wishes, other); }, least);
        if (spread && (!other || spread->predicted_seconds < other->predicted_seconds)) {
            if (other) {
                spread->rejected.push_back(
                    {"on one GPU", three_digits(other->predicted_seconds / spread->predicted_seconds) + "x the time",
                     other->predicted_seconds});
            }
            other = std::move(spread);
        }
    }
    std::optional<plan> result;
    try {
        result = place_on_cpu(source, target, wishes);
    } catch (const budget_error& refused) {
        least = (std::min)(least, refused.least_bytes());
    } catch (const unsupported_error&) {  // real products among complex ones
        if (!other && least == (std::numeric_limits<std::int64_t>::max)()) {
            throw;
        }
    }
    if (!result && !other) {
        throw_over_limit(least, wishes.workspace_limit_bytes);
    }
    if (!result || !other) {
        return std::move(result ? *result : *other);
    }
    const auto lost = [](const plan& loser, const plan& winner, const char* name) {
        return rejected_candidate{name, three_digits(loser.predicted_seconds / winner.predicted_seconds) + "x the time",
                                  loser.predicted_seconds};
    };
    if (other->predicted_seconds < result->predicted_seconds) {
        std::swap(*other, *result);
        result->rejected.push_back(lost(*other, *result, "on the CPU"));
    } else {
        result->rejected.push_back(lost(
            *other, *result,
            other->where == placement::gpus ? "on all GPUs, transfers included" : "on the GPU, transfers included"));
    }
    return std::move(*result);
}

/// What the fields of a machine that is written by hand are checked by. @throws unsupported_error all of them.
class field_check {
public:
    explicit field_check(std::string owner) : owner_(std::move(owner)) {}
    /// Of things a second. `may_be_unknown`: 0 says that it is not known.
    OTIMES_COLD void rate(const char* field, double value, bool may_be_unknown) const {
        if (!((value >= 1 && value <= 1e30) || (may_be_unknown && value == 0))) {
            refuse(field, detail::number_text(value),
                   may_be_unknown ? "1 to 1e30 a second, or 0 for what is not known" : "1 to 1e30 a second");
        }
    }
    OTIMES_COLD void seconds(const char* field, double value) const {
        if (!(value >= 0 && value <= 1e9)) {
            refuse(field, detail::number_text(value), "0 to 1e9 seconds");
        }
    }
    OTIMES_COLD void bytes(const char* field, std::int64_t value) const {
        if (value < 0) {
            refuse(field, std::to_string(value), "bytes, 0 or more");
        }
    }
    OTIMES_COLD void between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) const {
        if (value < least || value > most) {
            refuse(field, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
        }
    }
    [[noreturn]] OTIMES_COLD void refuse(const char* field, const std::string& value, const std::string& wanted) const {
        throw unsupported_error("otimes: machine." + owner_ + "." + field + " is " + value + ". Give " + wanted + ".");
    }

private:
    std::string owner_;
};

/// @throws unsupported_error a machine written by hand whose costs would not be finite: no comparison of plans would end well.
OTIMES_ON_DEMAND OTIMES_COLD inline void check_cpu(const cpu_description& cpu) {
    const field_check check("cpu");
    check.between("threads", cpu.threads, 1, most_threads);
    check.rate("flops_f32", cpu.flops_f32, false);
    check.rate("flops_f64", cpu.flops_f64, false);
    check.rate("l1_bytes_per_second", cpu.l1_bytes_per_second, false);
    check.rate("l2_bytes_per_second", cpu.l2_bytes_per_second, false);
    check.rate("l3_bytes_per_second", cpu.l3_bytes_per_second, false);
    check.rate("memory_bytes_per_second", cpu.memory_bytes_per_second, false);
    check.seconds("dispatch_seconds", cpu.dispatch_seconds);
    check.seconds("fork_seconds", cpu.fork_seconds);
    if (cpu.simd_bytes != 16 && cpu.simd_bytes != 32 && cpu.simd_bytes != 64) {
        check.refuse("simd_bytes", std::to_string(cpu.simd_bytes), "16, 32 or 64");
    }
    check.between("simd_registers", cpu.simd_registers, 4, 1024);
    check.bytes("l1_bytes", cpu.l1_bytes);
    check.bytes("l2_bytes", cpu.l2_bytes);
    check.bytes("l3_bytes", cpu.l3_bytes);
}

/// The same of a GPU, of which all may be unknown (0): then it is planned for as a slow one.
OTIMES_ON_DEMAND OTIMES_COLD inline void check_gpu(const gpu_description& gpu, std::size_t position) {
    const field_check check("gpus[" + std::to_string(position) + "]");
    check.between("compute_capability", gpu.compute_capability, 0, 10'000);
    check.between("multiprocessors", gpu.multiprocessors, 0, 1 << 20);
    check.bytes("memory_bytes", gpu.memory_bytes);
    check.bytes("l2_bytes", gpu.l2_bytes);
    check.between("shared_bytes_per_block", gpu.shared_bytes_per_block, 0, 1 << 24);
    check.between("shared_bytes_per_multiprocessor", gpu.shared_bytes_per_multiprocessor, 0, 1 << 24);
    check.between("registers_per_multiprocessor", gpu.registers_per_multiprocessor, 0, 1 << 24);
    check.between("cluster_blocks", gpu.cluster_blocks, 0, 64);
    check.rate("memory_bytes_per_second", gpu.memory_bytes_per_second, true);
    check.rate("l2_bytes_per_second", gpu.l2_bytes_per_second, true);
    check.rate("flops_f32", gpu.flops_f32, true);
    check.rate("flops_f64", gpu.flops_f64, true);
    check.rate("flops_f32_split", gpu.flops_f32_split, true);
    check.rate("flops_f64_mma", gpu.flops_f64_mma, true);
    check.rate("host_bytes_per_second", gpu.host_bytes_per_second, true);
    check.rate("peer_bytes_per_second", gpu.peer_bytes_per_second, true);
    check.rate("staged_bytes_per_second", gpu.staged_bytes_per_second, true);
    check.seconds("launch_seconds", gpu.launch_seconds);
    check.seconds("graph_node_seconds", gpu.graph_node_seconds);
}

/// Bytes from which on no address reaches an operand: below it sizes and costs are added up and multiplied without a question.
inline constexpr double addressable_bytes = 0x1p56;

/// @throws shape_error an operand, or what a step leaves that no chain keeps small by its order, that no memory holds. Their extents fit
/// in 64 bits, also of a matrix of stride 0 or a matrix-free factor; their bytes may not.
OTIMES_ON_DEMAND OTIMES_COLD inline void check_sizes(const program& source) {
    const auto check = [&source](std::int32_t id) {
        const tensor& t = source.at(id);
        double bytes = t.scalar_bytes;
        for (const mode& m : source.modes_of(t)) {
            bytes *= t.role == tensor_role::factor && m.stride == 0 ? 1.0 : static_cast<double>(m.extent);
        }
        if (bytes >= addressable_bytes) {
            throw shape_error(
                "otimes: make_plan: an operand or an intermediate has " + bytes_text(bytes) +
                ", more than any memory holds (2^56 bytes). Use fewer or smaller factors, or fewer rows.");
        }
    };
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (t.binding >= 0 && t.kind != factor_kind::callback) {
            check(static_cast<std::int32_t>(id));
        }
    }
    for (const step& s : source.steps) {
        if (s.out >= 0 && !fits_a_chain(source, s)) {
            check(s.out);
        }
    }
}

}  // namespace planning

/// Decides how `source` is evaluated on `target`: order, grouping, fusion, slabs, kernels and placement.
/// Pure; equal arguments give equal plans. An output without elements gives a plan without passes.
/// Cost: tens of microseconds for a product of a few factors; a workspace limit that binds, or a GPU whose memory does, costs milliseconds, of
/// ten factors tens of them.
/// @throws budget_error the workspace limit cannot be kept; the text names the least that would do.
/// @throws shape_error an operand or an intermediate that no memory holds.
/// @throws unsupported_error a placement that the machine does not have, a GPU for scalars that only the reference loops know, the CPU
/// for operands in device memory or for real products among complex ones, one that is none of the enumeration, a precision that is none, a negative
/// number of threads or more than most_threads, or a machine with rates and times that no cost is reckoned from.
OTIMES_PLANNER_API_ON_DEMAND plan make_plan(const program& source, const machine& target, const options& wishes = {}) {
    using namespace planning;
    const residency where = residency_of(source);
    placement chosen = wishes.placement;
    if (wishes.threads < 0 || wishes.threads > most_threads) {
        throw unsupported_error("otimes: options::threads is " + std::to_string(wishes.threads) + ". Ask for 1 to " +
                                std::to_string(most_threads) + ", or for 0, which takes what OpenMP would use.");
    }
    if (chosen > placement::gpus) {
        throw unsupported_error("otimes: options::placement is " + std::to_string(static_cast<int>(chosen)) +
                                ", which is none of automatic, cpu, gpu and gpus.");
    }
    if (wishes.precision > precision::bf16) {
        throw unsupported_error("otimes: options::precision is " + std::to_string(static_cast<int>(wishes.precision)) +
                                ", which is none of standard, ieee, tf32 and bf16.");
    }
    check_cpu(target.cpu);
    for (std::size_t i = 0; chosen != placement::cpu && i < target.gpus.size(); ++i) {
        check_gpu(target.gpus[i], i);
    }
    if (chosen == placement::cpu && where.any_on_device) {
        throw unsupported_error(
            "otimes: placement::cpu, but an operand lies in device memory. Copy it to the host by "
            "to_host(), or plan for the GPU.");
    }
    if (is_of_other_type(source)) {  // by the reference loops, wherever they are called
        if (chosen == placement::gpu || chosen == placement::gpus) {
            throw unsupported_error(
                "otimes: a plan for a GPU was asked for, but only the CPU's reference loops know the scalar type of "
                "the operands. Use placement::automatic or placement::cpu.");
        }
        chosen = placement::cpu;
    }
    plan result;
    if (has_empty_output(source)) {
        if (wishes.workspace_limit_bytes < 0) {
            throw_over_limit(0, wishes.workspace_limit_bytes);
        }
        result.source = source;
        result.where = chosen == placement::automatic ? placement::cpu : chosen;
        result.machine_name = target.cpu.name;
        result.wishes = wishes;
        result.notes.push_back("the output has no elements: nothing to do");
        return result;
    }
    check_sizes(source);
    if (chosen == placement::gpus) {
        result = place_on_gpus(source, target, wishes);
    } else if (chosen == placement::gpu || where.any_on_device) {
        result = place_on_gpu(source, target, wishes);
    } else if (chosen == placement::automatic) {
        result = place_by_cost(source, target, wishes);
    } else {
        result = place_on_cpu(source, target, wishes);
    }
    if (result.where != placement::cpu) {
        const gpu_description& gpu = target.gpus.front();
        const std::vector<chain> chains = chains_of(source);
        const auto count = result.where == placement::gpus ? static_cast<double>(target.gpus.size()) : 1.0;
        add_bounds(result, chains, known_rate(gpu.memory_bytes_per_second) * count,
                   rate_of(gpu, type_of_result(source), wishes.precision, 8, 8).flops_per_second * count,
                   where.matrices_on_host ? gpu.host_bytes_per_second * count : 0.0);
        note_factors(result, chains);
    }
    result.wishes = wishes;
    return result;
}

}  // namespace otimes

#endif

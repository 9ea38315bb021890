// SPDX-License-Identifier: MIT
/// @file distributed_planner.hpp
/// make_distributed_plan: the cheapest sequence of distributions, in one piece or in slabs of rows, under a bound on memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/distributed_costs.hpp>
#include <otimes/plan/distributed_memory.hpp>
#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/distributed_stores.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/distribution_search.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/sharing.hpp>
#include <otimes/plan/step_cost.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

namespace planning {

/// Ranks compute where their blocks lie. @throws unsupported_error another place is asked for
OTIMES_COLD inline void check_placement(const distributed_problem& problem) {
    const bool on_device = problem.space == memory_space::device;
    const placement asked = problem.wishes.placement;
    const bool fits = on_device ? asked == placement::gpu || asked == placement::gpus : asked == placement::cpu;
    if (asked != placement::automatic && !fits) {
        throw unsupported_error(
            "otimes: ranks compute where their parts of the matrices lie, here on " +
            std::string(on_device ? "GPUs" : "CPUs") +
            ", but options::placement asks for another place. Leave it out; communicator_options::use_gpus decides.");
    }
}

/// @throws shape_error extents or an intermediate that do not fit in 63 bits, or a distribution that does not fit; as check_placement
OTIMES_COLD inline void check_problem(const distributed_problem& problem) {
    check_placement(problem);
    std::int64_t before = 1;
    std::int64_t after = 1;
    std::int64_t largest = (std::max)({problem.rows, rows_compared(problem), std::int64_t{1}});
    bool fits = problem.rows >= 0;
    for (const distributed_factor& f : problem.factors) {
        fits = fits && checked_multiply(before, f.p_extent, before) && checked_multiply(after, f.q_extent, after) &&
               checked_multiply(largest, (std::max)({f.p_extent, f.q_extent, std::int64_t{1}}), largest);
    }
    fits = fits && checked_multiply(largest, 16, largest);
    if (!fits) {
        throw shape_error("otimes: a distributed product of " + std::to_string(problem.rows) + " rows and " +
                          std::to_string(problem.factors.size()) +
                          " factors: an operand or an intermediate has more than 2^63 - 1 bytes.");
    }
    require_fits(problem.operand, before, problem.ranks);
    if (problem.result_is_fixed) {
        require_fits(problem.result, after, problem.ranks);
    }
}

/// A stage on the blocks of one layout, in which these factors are applied.
OTIMES_COLD inline distributed_stage local_stage(const layout_choice& layout, const std::vector<std::int64_t>& extents,
                                                 const std::vector<std::int32_t>& factors) {
    distributed_stage stage;
    stage.extents = extents;
    stage.factors = factors;
    stage.where = layout.with(extents);
    stage.mode = layout.mode;
    return stage;
}

/// The exchange between two layouts; nothing where every rank keeps its block.
OTIMES_COLD inline std::optional<distributed_stage> exchange_stage(const distributed_problem& problem,
                                                                   const interconnect& net, const layout_choice& from,
                                                                   const layout_choice& to,
                                                                   const std::vector<std::int64_t>& extents) {
    distributed_stage stage;
    stage.kind = stage_kind::exchange;
    stage.extents = extents;
    stage.from = from.with(extents);
    stage.to = to.with(extents);
    if (same_blocks(stage.from, stage.to, problem.rows, product_of(extents), problem.ranks)) {
        return std::nullopt;
    }
    stage.moved = count_moved(stage.from, stage.to, problem.rows, product_of(extents), problem.ranks);
    stage.predicted_seconds = exchange_seconds(net, stage.moved, static_cast<std::int64_t>(element_bytes(problem.type)),
                                               stage.from, stage.to, problem.ranks);
    return stage;
}

/// The stages of a sequence of layouts, and the bytes that its exchanges send.
OTIMES_COLD inline void add_stages(const distribution_candidate& chosen, std::vector<std::int64_t> extents,
                                   const interconnect& net, distributed_plan& result) {
    const distributed_problem& problem = result.source;
    const auto bytes = static_cast<std::int64_t>(element_bytes(problem.type));
    for (std::size_t i = 0; i < chosen.layouts.size(); ++i) {
        std::optional<distributed_stage> exchange;
        if (i > 0) {
            exchange = exchange_stage(problem, net, chosen.layouts[i - 1], chosen.layouts[i], extents);
        }
        if (exchange) {
            result.bytes_on_wire += exchange->moved.total * bytes;
            result.most_bytes_sent += exchange->moved.most_sent * bytes;
            result.stages.push_back(std::move(*exchange));
        }
        if (!chosen.factors[i].empty()) {
            result.stages.push_back(local_stage(chosen.layouts[i], extents, chosen.factors[i]));
            for (const std::int32_t k : chosen.factors[i]) {
                extents[static_cast<std::size_t>(k)] = problem.factors[static_cast<std::size_t>(k)].q_extent;
            }
        }
    }
    // Y is added to, or scaled, by a local stage; where no other comes last (first), one that copies is added.
    const auto is_local = [](const distributed_stage& s) { return s.kind == stage_kind::local; };
    if (!std::ranges::any_of(result.stages, is_local) ||
        (problem.add && result.stages.back().kind == stage_kind::exchange)) {
        result.stages.push_back(local_stage(chosen.layouts.back(), extents, {}));
    }
    std::find_if(result.stages.rbegin(), result.stages.rend(), is_local)->scaled = true;
    result.stages.back().add = problem.add;
}

/// What a stage leaves, behind which the columns' modes have the extents `after`.
OTIMES_COLD inline distribution layout_behind(const distributed_stage& stage, const std::vector<std::int64_t>& after) {
    return stage.kind != stage_kind::local ? stage.to
           : stage.mode >= 0               ? layout_choice{stage.where, stage.mode}.with(after)
                                           : stage.where;
}

/// Makes a rank's buffers as large as its largest block between two stages.
OTIMES_COLD inline void set_buffers(distributed_plan& result) {
    const distributed_problem& problem = result.source;
    result.buffer_elements.assign(static_cast<std::size_t>(problem.ranks), 0);
    for (std::size_t i = 0; i + 1 < result.stages.size(); ++i) {
        const distributed_stage& stage = result.stages[i];
        const std::vector<std::int64_t> after = extents_after(problem, stage);
        const distribution out = layout_behind(stage, after);
        for (std::int32_t rank = 0; rank < problem.ranks; ++rank) {
            std::int64_t& most = result.buffer_elements[static_cast<std::size_t>(rank)];
            most = (std::max)(most, block_of(out, problem.rows, product_of(after), rank).elements());
            if (stage.kind == stage_kind::store) {  // where the executor cannot, the block is stored here and moved
                most = (std::max)(most, block_of(stage.from, problem.rows, product_of(after), rank).elements());
            }
        }
    }
}

/// How the programs of the ranks' blocks are planned, and what workspace their plans need.
struct block_planning {
    const machine* where = nullptr;
    options wishes;
    std::int64_t steps_need = 0;  ///< the least workspace of a local plan that the limit refused
    std::int64_t steps_take = 0;
};

/// The plan of a block; without passes where the limit refuses it, then `needed` receives what it needs.
OTIMES_COLD inline plan plan_of_block(const block_planning& blocks, stage_kind kind, const program& source,
                                      std::int64_t& needed) {
    plan made;
    try {
        made = kind == stage_kind::store ? plan_of_store(source, *blocks.where, blocks.wishes)
                                         : make_plan(source, *blocks.where, blocks.wishes);
    } catch (const budget_error& refused) {
        needed = refused.least_bytes();
        made.source = source;
    }
    return made;
}

/// Which of a stage's plans is that of a program: one that there is, or another. Of two programs for the same the one that is predicted to be faster.
OTIMES_COLD inline std::int32_t find_or_plan(const program& source, const std::optional<program>& other,
                                             distributed_stage& stage, block_planning& blocks) {
    for (std::size_t n = 0; n < stage.plans.size(); ++n) {
        if (stage.plans[n].source == source || stage.plans[n].source == other) {
            return static_cast<std::int32_t>(n);
        }
    }
    std::int64_t needed = 0;
    plan best = plan_of_block(blocks, stage.kind, source, needed);
    if (other) {
        std::int64_t other_needs = 0;
        try {
            plan second = plan_of_block(blocks, stage.kind, *other, other_needs);
            if (other_needs == 0 && (needed > 0 || second.predicted_seconds < best.predicted_seconds)) {
                best = std::move(second);
                needed = 0;
            }
            needed = (std::min)(needed, other_needs);  // where the limit refuses both
        } catch (const unsupported_error&) {           // no kernel for this size works in place
        }
    }
    blocks.steps_need = (std::max)(blocks.steps_need, needed);
    blocks.steps_take = (std::max)(blocks.steps_take, best.workspace_bytes);
    stage.plans.push_back(std::move(best));
    return static_cast<std::int32_t>(stage.plans.size()) - 1;
}

/// Plans the chunks of one rank's block of a stage that is no exchange. @param last no stage follows
OTIMES_COLD inline void plan_chunks(const distributed_problem& problem, std::int32_t rank, bool last,
                                    distributed_stage& stage, block_planning& blocks) {
    const std::vector<std::int64_t> after = extents_after(problem, stage);
    const distribution out = stage.kind == stage_kind::store ? stage.from : layout_behind(stage, after);
    const held_block block = block_of(out, problem.rows, product_of(after), rank);
    if (block.elements() == 0) {
        stage.plan_of_rank.insert(stage.plan_of_rank.end(), static_cast<std::size_t>(stage.chunks), -1);
        return;
    }
    const std::int32_t mode = chunked_mode(stage);
    std::vector<std::int64_t> own = mode == -2 ? std::vector<std::int64_t>{block.cols.size()}  // a flat copy
                                               : local_extents(stage.extents, stage.where, stage.mode, rank);
    const std::int64_t whole = mode >= 0 ? own[static_cast<std::size_t>(mode)] : 0;
    // Chunks of a mode that no rank cuts lie apart on their way.
    const bool apart_in = stage.chunk_mode >= 0 && last;
    const bool apart_out = stage.chunk_mode >= 0 && !last;
    for (std::int32_t chunk = 0; chunk < stage.chunks; ++chunk) {
        if (stage.chunks > 1) {
            own[static_cast<std::size_t>(mode)] = range_of_chunk(stage, whole, chunk).size();
            if (own[static_cast<std::size_t>(mode)] == 0) {
                stage.plan_of_rank.push_back(-1);
                continue;
            }
        }
        const program steps = local_program(problem, stage.factors, block.rows.size(), own, stage.scaled, stage.add,
                                            apart_in ? extent_in_memory{} : extent_in_memory{mode, whole},
                                            apart_out ? extent_in_memory{} : extent_in_memory{mode, whole});
        stage.plan_of_rank.push_back(find_or_plan(
            steps, apart_out ? from_place_to_place(problem, stage.factors, steps) : std::nullopt, stage, blocks));
    }
}

/// Plans a stage that is no exchange for every rank. Its seconds are those of the slowest rank, whose chunks come one after another.
OTIMES_COLD inline void plan_blocks(const distributed_problem& problem, bool last, distributed_stage& stage,
                                    block_planning& blocks) {
    for (std::int32_t rank = 0; rank < problem.ranks; ++rank) {
        plan_chunks(problem, rank, last, stage, blocks);
    }
    const auto chunks = static_cast<std::size_t>(stage.chunks);
    for (std::size_t first = 0; first < stage.plan_of_rank.size(); first += chunks) {
        double seconds = 0;
        for (std::size_t n = first; n < first + chunks; ++n) {
            const std::int32_t which = stage.plan_of_rank[n];
            seconds += which < 0 ? 0.0 : stage.plans[static_cast<std::size_t>(which)].predicted_seconds;
        }
        stage.predicted_seconds = (std::max)(stage.predicted_seconds, seconds);
    }
}

/// Cuts the cut mode of a local stage in chunks, where an exchange follows that may send them one by one.
OTIMES_COLD inline void set_chunks(const interconnect& net, std::size_t i, distributed_plan& result) {
    distributed_stage& stage = result.stages[i];
    if (stage.kind == stage_kind::local && stage.mode >= 0 && stage.chunk_mode < 0 && i + 1 < result.stages.size() &&
        result.stages[i + 1].kind == stage_kind::exchange) {
        stage.chunks =
            chunks_of(stage, result.stages[i + 1], static_cast<std::int64_t>(element_bytes(result.source.type)), net);
    }
}

/// Tells receivers of portions of what is stored, where that hides time of the stage behind.
OTIMES_COLD inline void set_portions(const machine& where, const interconnect& net, distributed_plan& result) {
    for (std::size_t i = 0; i < result.stages.size(); ++i) {
        distributed_stage& stage = result.stages[i];
        if (stage.kind == stage_kind::store) {
            stage.portion_items = portion_items_of(result, i, where, net.portions);
            if (stage.portion_items > 0 && hidden_by_portions(result, i + 1) == 0) {
                stage.portion_items = 0;
            }
        }
    }
}

/// The sequences of layouts that lost.
OTIMES_COLD inline std::vector<rejected_candidate> rejected_for(const distribution_candidate& chosen,
                                                                const std::vector<distribution_candidate>& losers,
                                                                dtype type) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(type));
    std::vector<rejected_candidate> rejected;
    rejected.reserve(losers.size());
    for (const distribution_candidate& loser : losers) {
        rejected.push_back({distribution_search::kind_of(loser),
                            three_digits(loser.seconds / (std::max)(chosen.seconds, 1e-12)) + "x the time, " +
                                bytes_text(static_cast<double>(loser.total_moved * bytes)) + " on the wire",
                            loser.seconds});
    }
    return rejected;
}

/// The plan that does all rows at once. @param least receives the least `workspace_limit_bytes` with which it can be run; where
/// that is more than the limit, the plan is not complete
/// @param held what is held already, by plans that run before or after it
/// @param whole_mode in chunks of a mode that is whole on every rank, where there is one: the exchange goes on beside the stages in front of
/// it and behind it (distributed_stage::chunk_mode)
OTIMES_COLD inline distributed_plan plan_at_once(const distributed_problem& problem, const machine& where,
                                                 const interconnect& net, bool with_local_plans, std::int64_t& least,
                                                 held_between held = {}, bool whole_mode = false) {
    distributed_plan result;
    result.source = problem;
    distribution_search search(problem, where, net);
    std::vector<distribution_candidate> losers;
    const distribution_candidate chosen = search.best(losers);
    result.result = search.result_of(chosen);
    add_stages(chosen, search.extents_before(), net, result);
    if (whole_mode) {
        chunk_a_whole_mode(problem, result.stages, net);
    }
    const double hidden = store_in_last_passes(result, where, net, search);
    set_buffers(result);
    held.join(held_by(result, net));
    block_planning blocks;
    blocks.where = &where;
    blocks.wishes = problem.wishes;
    blocks.wishes.placement = problem.space == memory_space::device ? placement::gpu : placement::cpu;
    blocks.wishes.workspace_limit_bytes = left_of(problem.wishes.workspace_limit_bytes, held.total());
    for (std::size_t i = 0; i < result.stages.size(); ++i) {
        set_chunks(net, i, result);
        if (with_local_plans && result.stages[i].kind != stage_kind::exchange) {
            plan_blocks(problem, i + 1 == result.stages.size(), result.stages[i], blocks);
        }
    }
    if (with_local_plans && blocks.steps_need == 0) {
        set_portions(where, net, result);
    }
    least = held.total() + blocks.steps_need;
    result.workspace_bytes = held.total() + blocks.steps_take;
    result.predicted_seconds = with_local_plans ? seconds_of(result, search.rates()) : chosen.seconds - hidden;
    result.rejected = rejected_for(chosen, losers, problem.type);
    return result;
}

/// What more chunks must leave of the time of fewer: each of them takes the host as long again.
inline constexpr double more_chunks = 0.97;

/// By exchanges in chunks: of the numbers of chunks that `net` allows, the one that is predicted to be fastest within the workspace limit. Nothing: there is
/// no mode for chunks, or no number keeps the limit.
/// @param whole_mode as of plan_at_once
/// @param refused lowered to what one that does not keep the limit needs
OTIMES_COLD inline std::optional<distributed_plan> best_in_chunks(const distributed_problem& problem,
                                                                  const machine& where, interconnect net,
                                                                  bool whole_mode, std::int64_t& refused) {
    std::optional<distributed_plan> best;
    if (net.chunks < 2) {
        return best;
    }
    net.stores = false;
    std::int64_t needed = 0;
    std::int32_t most = 1;
    for (const distributed_stage& s : plan_at_once(problem, where, net, false, needed, {}, whole_mode).stages) {
        most = whole_mode == (s.chunk_mode >= 0) ? (std::max)(most, s.chunks) : most;
    }
    for (net.chunks = 2; net.chunks <= most; ++net.chunks) {
        distributed_plan one = plan_at_once(problem, where, net, true, needed, {}, whole_mode);
        if (needed > problem.wishes.workspace_limit_bytes) {
            refused = (std::min)(refused, needed);
        } else if (!best || one.predicted_seconds < more_chunks * best->predicted_seconds) {
            best = std::move(one);
        }
    }
    return best;
}

/// The same rows in slabs of `slab_rows` rows of each part, one after another or overlapped. X and Y have the same parts of rows
/// on the same ranks.
OTIMES_COLD inline distributed_plan plan_in_slabs(const distributed_problem& problem, const distribution& result_layout,
                                                  std::int64_t slab_rows, bool overlapped, const machine& where,
                                                  const interconnect& net, bool with_local_plans, std::int64_t& least) {
    const std::int32_t parts = problem.operand.row_parts;
    const std::int64_t longest = part_of(problem.rows, parts, 0).size();
    distributed_plan result;
    result.source = problem;
    result.result = result_layout;
    result.slab_rows = slab_rows;
    result.overlapped = overlapped;
    result.slab_count = (longest + slab_rows - 1) / slab_rows;
    distributed_problem slab = problem;
    if (!problem.wishes.deterministic) {  // else any number of rows goes through the same distributions
        slab.result_is_fixed = true;
        slab.result = result_layout;
    }
    // The last slab has what is left of each part: one row less in the parts that are shorter.
    const std::int64_t full = slab_rows * parts;
    const std::int64_t last = problem.rows - (result.slab_count - 1) * full;
    std::vector<std::int64_t> kinds;
    if (result.slab_count > 1) {
        kinds.push_back(full);
    }
    if (result.slab_count == 1 || last != full) {
        kinds.push_back(last);
    }
    held_between held;
    for (const std::int64_t rows : kinds) {
        slab.rows = rows;
        std::int64_t ignored = 0;
        held.join(held_by(plan_at_once(slab, where, net, false, ignored), net));
    }
    held.buffers *= overlapped ? static_cast<std::int64_t>(most_slabs_on_their_way) : 1;
    least = 0;
    double seen = 0;  // of a slab whose exchanges, or whose local stages, nothing hides
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        slab.rows = kinds[i];
        std::int64_t needed = 0;
        distributed_plan one = plan_at_once(slab, where, net, with_local_plans, needed, held);
        least = (std::max)(least, needed);
        const std::int64_t count = i == 1 ? 1 : result.slab_count - static_cast<std::int64_t>(kinds.size()) + 1;
        result.bytes_on_wire += count * one.bytes_on_wire;
        result.most_bytes_sent += count * one.most_bytes_sent;
        double exchanges = 0;
        double beside = 0;
        double stored = 0;  // of passes that store: what they compute meanwhile
        double behind = 0;  // local stages after the last exchange
        const distribution_rates rates = rates_of(where, problem);
        for (std::size_t k = 0; k < one.stages.size(); ++k) {
            const distributed_stage& s = one.stages[k];
            if (s.kind == stage_kind::exchange) {
                exchanges += s.predicted_seconds;
                beside += beside_seconds(slab, s, k > 0 ? memory_share(one.stages[k - 1], rates) : 0.5, rates);
                behind = 0;
                continue;
            }
            beside += restarts_of(problem, s.factors.size(), rates);
            if (s.kind == stage_kind::store) {
                exchanges += s.predicted_seconds;
                for (const plan& pass : s.plans) {
                    stored = (std::max)(stored, pass.predicted_seconds);
                }
                behind = 0;
            } else {
                behind += s.predicted_seconds;
            }
        }
        const double sharing = overlapped && stored > 0 ? shared_processor : 1.0;
        const double local = sharing * (one.predicted_seconds - exchanges + stored + (overlapped ? beside : 0.0));
        exchanges *= sharing;
        // While the last slab's exchange goes on, the one before it does what is behind its own. In front of the first stores, and
        // behind the last, nothing is on its way.
        seen = (std::max)(seen, stored == 0         ? (std::min)(local, (std::max)(exchanges - behind, 0.0))
                                : exchanges > local ? local - stored
                                                    : (std::max)(exchanges - stored, 0.0));
        result.predicted_seconds +=
            static_cast<double>(count) * (overlapped ? (std::max)(local, exchanges) : one.predicted_seconds);
        result.workspace_bytes = (std::max)(result.workspace_bytes, one.workspace_bytes);
        result.slabs.push_back(std::move(one));
    }
    result.predicted_seconds += overlapped ? seen : 0.0;
    return result;
}

/// True where a rank has the same rows of X and of Y.
OTIMES_COLD inline bool same_rows(const distribution& x, const distribution& y) {
    return y.row_parts == x.row_parts && y.col_parts == x.col_parts && y.first_rank == x.first_rank;
}

/// How many slabs of rows hide the exchanges of a plan: as many as `chunks` allows and leave a rank its least bytes to send; 1 where
/// nothing is to be hidden or rows are too few.
OTIMES_COLD inline std::int64_t slabs_that_overlap(const distributed_plan& p, const interconnect& net) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    std::int64_t count =
        same_rows(p.source.operand, p.result)
            ? (std::min)(part_of(p.source.rows, p.source.operand.row_parts, 0).size(), std::int64_t{net.chunks})
            : 1;
    bool any = false;
    for (const distributed_stage& s : p.stages) {
        if (s.kind != stage_kind::local && s.moved.total > 0) {
            any = true;
            count = (std::min)(count, s.moved.most_sent * bytes / (std::max)(net.least_chunk_bytes, std::int64_t{1}));
        }
    }
    return any ? (std::max)(count, std::int64_t{1}) : 1;
}

/// The rows in slabs by turns, so that the exchanges of one hide behind the stages of another: `slab_count` of them, or two or as many whose
/// passes store, where that is faster. @param at_once all rows in one piece
/// @param needed receives the least workspace with which they can be run. @param refused lowered to it, of all that are tried
OTIMES_COLD inline distributed_plan slabs_by_turns(const distributed_problem& problem, const distributed_plan& at_once,
                                                   std::int64_t slab_count, const machine& where,
                                                   const interconnect& net, bool with_local_plans, std::int64_t& needed,
                                                   std::int64_t& refused) {
    const std::int64_t longest = part_of(problem.rows, problem.operand.row_parts, 0).size();
    const std::int64_t slab_rows = (longest + slab_count - 1) / slab_count;
    interconnect whole_slabs = net;
    whole_slabs.chunks = 1;
    whole_slabs.portions = 1;
    whole_slabs.stores = false;
    distributed_plan slabs =
        plan_in_slabs(problem, at_once.result, slab_rows, true, where, whole_slabs, with_local_plans, needed);
    refused = (std::min)(refused, needed);
    whole_slabs.stores = net.stores && with_local_plans;
    // Two slabs that store hide a pass each; more begin more passes again.
    for (const std::int64_t rows : {(longest + 1) / 2, slab_rows}) {
        if (!whole_slabs.stores) {
            break;
        }
        std::int64_t by_stores_need = 0;
        distributed_plan by_stores =
            plan_in_slabs(problem, at_once.result, rows, true, where, whole_slabs, with_local_plans, by_stores_need);
        if (!std::ranges::all_of(by_stores.slabs,
                                 [&where](const distributed_plan& one) { return stores_by_turns(one, where); })) {
            continue;
        }
        refused = (std::min)(refused, by_stores_need);
        const std::int64_t limit = problem.wishes.workspace_limit_bytes;
        if (by_stores_need <= limit && (needed > limit || by_stores.predicted_seconds < slabs.predicted_seconds)) {
            slabs = std::move(by_stores);
            needed = by_stores_need;
        }
    }
    return slabs;
}

}  // namespace planning

/// Decides how a problem is evaluated by ranks of which each is like `where`. Pure. Cost: milliseconds at most for thousands
/// of ranks. `workspace_limit_bytes` bounds what each rank takes beside X, Y and the factors.
/// @throws shape_error as make_plan
/// @throws budget_error not even one row of each part at a time keeps the limit; or X and Y have their rows on different ranks,
/// so that they cannot be done in slabs. The text names the least that would do.
/// @param with_local_plans false: stages without the plans of their blocks (for cost studies).
OTIMES_COLD inline distributed_plan make_distributed_plan(const distributed_problem& problem, const machine& where,
                                                          interconnect net, bool with_local_plans = true) {
    using namespace planning;
    check_problem(problem);
    // Whether passes store into peers, or a mode that is whole goes in chunks, behind its factor, depends on the number of rows.
    const bool deterministic = problem.wishes.deterministic;
    net.stores = net.stores && !deterministic;
    const std::int64_t limit = problem.wishes.workspace_limit_bytes;
    std::int64_t least = 0;  // with which `result` can be run
    distributed_plan result = plan_at_once(problem, where, net, with_local_plans, least);
    std::int64_t refused = least;  // the least of all, where none keeps the limit
    if (std::ranges::count(result.stages, stage_kind::store, &distributed_stage::kind) > 0) {
        interconnect exchanges_only = net;
        exchanges_only.stores = false;
        std::int64_t needed = 0;  // a store may take a block more
        distributed_plan other = plan_at_once(problem, where, exchanges_only, with_local_plans, needed);
        refused = (std::min)(refused, needed);
        if (least > limit || (needed <= limit && other.predicted_seconds < result.predicted_seconds)) {
            result = std::move(other);
            least = needed;
        }
    }
    const std::int64_t slab_count = slabs_that_overlap(result, net);
    for (const bool whole_mode : {false, true}) {
        std::optional<distributed_plan> other;
        // Several slabs are as fast: 128^4 with two rows on two and four H200.
        if (with_local_plans && slab_count == 1 && !(whole_mode && deterministic)) {
            other = best_in_chunks(problem, where, net, whole_mode, refused);
        }
        if (other && (least > limit || other->predicted_seconds < result.predicted_seconds)) {
            result = std::move(*other);
            least = limit;  // which it keeps
        }
    }
    if (slab_count > 1) {
        std::int64_t needed = 0;
        distributed_plan slabs =
            slabs_by_turns(problem, result, slab_count, where, net, with_local_plans, needed, refused);
        // Chunks of the cut mode are for rows that are too few: where both were measured, slabs were as fast or faster.
        double in_one_piece = with_local_plans ? 0.0 : result.predicted_seconds;
        for (std::size_t i = 0; i < result.stages.size() && with_local_plans; ++i) {
            in_one_piece += result.stages[i].predicted_seconds - hidden_by_portions(result, i);
        }
        if (needed <= limit && (least > limit || slabs.predicted_seconds < in_one_piece)) {
            slabs.rejected = std::move(result.rejected);
            return slabs;
        }
    }
    if (least <= limit) {
        return result;
    }
    const distribution& x = problem.operand;
    distribution y = result.result;
    if (!problem.result_is_fixed && !deterministic && !same_rows(x, y)) {  // as X, with the factors' columns
        std::vector<std::int64_t> before;
        std::vector<std::int64_t> after;
        for (const distributed_factor& f : problem.factors) {
            before.push_back(f.p_extent);
            after.push_back(f.q_extent);
        }
        const std::int32_t mode = cut_mode_of(x, problem.rows, before, problem.ranks);
        y = {.row_parts = x.row_parts, .col_parts = x.col_parts, .first_rank = x.first_rank};
        y = mode >= 0 ? layout_choice{y, mode}.with(after) : y;
    }
    const std::int64_t longest = part_of(problem.rows, x.row_parts, 0).size();
    for (std::int64_t rows = longest; same_rows(x, y) && rows > 0; rows = rows > 1 ? (rows + 1) / 2 : 0) {
        std::int64_t needed = 0;
        distributed_plan slabs = plan_in_slabs(problem, y, rows, false, where, net, with_local_plans, needed);
        if (needed <= limit) {
            slabs.notes.push_back("workspace limit: " + bytes_text(static_cast<double>(slabs.workspace_bytes)) +
                                  " a rank instead of " + bytes_text(static_cast<double>(least)));
            return slabs;
        }
        refused = (std::min)(refused, needed);
    }
    throw budget_error(
        "otimes: the distributed product needs a workspace of at least " + std::to_string(refused) +
            " bytes on a rank, but workspace_limit_bytes is " + std::to_string(limit) +
            (same_rows(x, y) ? ". Raise the limit to that or more."
                             : ". Raise the limit to that or more, or give X and Y the same parts of rows, "
                               "which can then be done in slabs."),
        refused);
}

namespace planning {

[[noreturn]] OTIMES_COLD inline void throw_beyond_limit(std::int64_t least, std::int64_t limit,
                                                        std::int64_t copied_bytes) {
    throw budget_error(
        "otimes: distributed products one after another need a workspace of at least " + std::to_string(least) +
            " bytes on a rank, but workspace_limit_bytes is " + std::to_string(limit) +
            ". Raise the limit to that or more" +
            (copied_bytes > 0 ? ", or cut X and Y by rows or by columns alone: copies of them take " +
                                    std::to_string(copied_bytes) + " bytes."
                              : ", or evaluate the terms of the sum one by one, Y = X * K1; Y += X * K2;"),
        least);
}

}  // namespace planning

/// Problems that are evaluated one after another, while a rank holds `copied_bytes` more. All have the same wishes;
/// `workspace_limit_bytes` bounds what all take together, each using the memory of the ones before. @throws as above; unsupported_error no
/// problem
OTIMES_COLD inline distributed_plan make_distributed_plan(const std::vector<distributed_problem>& problems,
                                                          std::int64_t copied_bytes, const machine& where,
                                                          const interconnect& net) {
    if (problems.empty()) {
        throw unsupported_error("otimes: make_distributed_plan: the list of problems is empty. Give at least one.");
    }
    const std::int64_t limit = problems.front().wishes.workspace_limit_bytes;
    distributed_plan result;
    result.source = problems.front();
    result.copied_bytes = copied_bytes;
    // One plan for each problem with its own limit. False: one of them is not possible; `takes` then has what it needs.
    std::vector<std::int64_t> takes;
    const auto planned = [&](const std::vector<std::int64_t>& limits) {
        result.in_turn.clear();
        takes.assign(problems.size(), 0);
        bool all = true;
        for (std::size_t i = 0; i < problems.size(); ++i) {
            distributed_problem one = problems[i];
            one.wishes.workspace_limit_bytes = limits[i];
            try {
                result.in_turn.push_back(make_distributed_plan(one, where, net));
                takes[i] = result.in_turn.back().workspace_bytes;
            } catch (const budget_error& refused) {
                takes[i] = refused.least_bytes();
                all = false;
            }
        }
        result.workspace_bytes = all ? copied_bytes + planning::workspace_in_turn(result.in_turn, net) : 0;
        return all;
    };
    std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
    const auto kept = [&] {
        least = (std::min)(least, result.workspace_bytes);
        return result.workspace_bytes <= limit;
    };
    // All with one bound: this one, then each lower one with other plans. Together they may take more as each takes less, since they use each
    // other's memory.
    const auto kept_below = [&](std::int64_t bound) {
        while (planned(std::vector<std::int64_t>(problems.size(), bound))) {
            if (kept()) {
                return true;
            }
            bound = *std::ranges::max_element(takes) - 1;
        }
        return false;
    };
    if (!kept_below(planning::left_of(limit, copied_bytes))) {
        static_cast<void>(planned(std::vector<std::int64_t>(problems.size(), 0)));
        static_cast<void>(planned(std::vector<std::int64_t>(takes)));  // the least of each
        if (!kept()) {
            static_cast<void>(
                kept_below((std::numeric_limits<std::int64_t>::max)()));  // also of what is beyond the limit
            planning::throw_beyond_limit(least, limit, copied_bytes);
        }
    }
    for (const distributed_plan& one : result.in_turn) {
        result.bytes_on_wire += one.bytes_on_wire;
        result.most_bytes_sent += one.most_bytes_sent;
        result.predicted_seconds += one.predicted_seconds;
    }
    result.result = result.in_turn.back().result;
    return result;
}

namespace planning {

/// As step_flops, of all steps of a program.
OTIMES_COLD inline std::int64_t flops_of_steps(const program& source) {
    std::int64_t flops = 0;
    for (const step& s : source.steps) {
        saturating_add(flops, static_cast<double>(step_flops(source, s)));
    }
    return flops;
}

}  // namespace planning

/// Problems that are the terms of a sum, of which a rank's rows depend on its own rows alone: by one plan of each rank, if the limit allows it,
/// else one after another; deterministic ones are refused then. @throws as above
OTIMES_COLD inline distributed_plan make_distributed_plan(const std::vector<distributed_problem>& problems,
                                                          const programs_at_once& whole, const machine& where,
                                                          const interconnect& net) {
    const distributed_problem& first = problems.front();
    options wishes = first.wishes;
    wishes.placement = first.space == memory_space::device ? placement::gpu : placement::cpu;
    // The least workspace of a form that the limit refused.
    std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
    const auto planned = [&](const std::vector<program>& sources) {
        std::vector<plan> plans;
        std::int64_t needed = 0;
        bool fit = !sources.empty();
        for (const program& source : sources) {
            try {
                plans.push_back(make_plan(source, where, wishes));
                needed = (std::max)(needed, plans.back().workspace_bytes);
            } catch (const budget_error& refused) {
                needed = (std::max)(needed, refused.least_bytes());
                fit = false;
            } catch (const shape_error&) {  // an intermediate that no memory holds
                return std::vector<plan>();
            }
        }
        if (!fit) {
            least = sources.empty() ? least : (std::min)(least, needed);
            plans.clear();
        }
        return plans;
    };
    distributed_plan result;
    result.source = first;
    result.result = first.result;
    result.rows_at_once = whole.rows;
    result.terms_at_once = whole.terms;
    const bool on_gpu = wishes.placement == placement::gpu;
    // Predictions depend on how many rows a rank has, and what fits on the limit: a deterministic sum has the form of fewer multiply-adds.
    const bool one_form = wishes.deterministic && !whole.shared.empty();
    const bool shares = one_form && !on_gpu &&
                        planning::flops_of_steps(whole.shared.front()) < planning::flops_of_steps(whole.apart.front());
    if (!shares) {
        result.at_once = planned(whole.apart);
    }
    if (std::vector<plan> shared = one_form == shares ? planned(whole.shared) : std::vector<plan>(); !shared.empty()) {
        if (result.at_once.empty() ||
            (on_gpu ? planning::sharing_pays(result.at_once.front(), shared.front(), where.gpus.front())
                    : shared.front().predicted_seconds < result.at_once.front().predicted_seconds)) {
            result.at_once = std::move(shared);
            result.shares_steps = true;
        }
    }
    if (result.at_once.empty()) {
        try {
            if (!wishes.deterministic || least == (std::numeric_limits<std::int64_t>::max)()) {
                return make_distributed_plan(problems, 0, where, net);
            }
        } catch (const budget_error& refused) {
            if (least >= refused.least_bytes()) {
                throw;
            }
        }
        throw budget_error("otimes: a sum over ranks needs a workspace of at least " + std::to_string(least) +
                               " bytes on a rank, but workspace_limit_bytes is " +
                               std::to_string(wishes.workspace_limit_bytes) + ". Raise the limit to that or more.",
                           least);
    }
    for (const plan& one : result.at_once) {
        result.workspace_bytes = (std::max)(result.workspace_bytes, one.workspace_bytes);
        result.predicted_seconds = (std::max)(result.predicted_seconds, one.predicted_seconds);
    }
    return result;
}

/// What FastKron's Algorithm 2 sends for the same product (A. Jangda, M. Yadav: Fast Kronecker matrix-matrix multiplication on
/// GPUs, PPoPP 2024, section 5), in elements, all ranks together: a grid of `row_parts` x `col_parts`, flat ranges of columns;
/// as many sliced multiplications as a range allows, from the last factor on, then every rank keeps 1 / col_parts of its block
/// and sends the rest, until all factors are done.
/// @returns -1 where its columns cannot be cut: it needs col_parts to divide the columns, and ranges that hold a slice.
OTIMES_COLD inline std::int64_t algorithm_2_elements(std::int64_t rows, const std::vector<distributed_factor>& factors,
                                                     std::int32_t col_parts) {
    std::int64_t cols = 1;
    for (const distributed_factor& f : factors) {
        cols *= f.p_extent;
    }
    std::int64_t sent = 0;
    std::size_t left = factors.size();
    while (left > 0) {
        if (col_parts < 1 || cols % col_parts != 0) {
            return -1;
        }
        std::int64_t range = cols / col_parts;
        std::int64_t whole = 1;
        std::size_t done = 0;
        while (left > 0 && whole * factors[left - 1].p_extent <= range) {
            const distributed_factor& f = factors[left - 1];
            whole *= f.p_extent;
            cols = cols / f.p_extent * f.q_extent;
            range = range / f.p_extent * f.q_extent;
            whole = whole / f.p_extent * f.q_extent;
            --left;
            ++done;
        }
        if (done == 0) {
            return -1;
        }
        sent += rows * (cols - cols / col_parts);
    }
    return sent;
}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file distributed_stores.hpp
/// Where the last pass of a local stage stores straight into the memory of the ranks that take its output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/distribution_search.hpp>
#include <otimes/plan/gpu_choice.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

namespace planning {

/// Ranks that a pass stores into at most: kernels/fused_scattered.cuh.
inline constexpr std::int32_t most_receivers = 16;

/// The plan of a stage that stores into the receivers' memory: a tile does that, so where the pass would go by blocks, the tile that it has else.
OTIMES_COLD inline plan plan_of_store(const program& source, const machine& where, const options& wishes) {
    plan usual = make_plan(source, where, wishes);
    if (usual.where == placement::gpu && !where.gpus.empty() && usual.slab_count == 1 && usual.passes.size() == 1 &&
        usual.passes.front().kernel == pass_kernel::gpu_blocked) {
        gpu_choice choice;
        choice.only_tiles = true;
        choice.parts.resize(1);
        choice.parts.front().sweeps = static_cast<std::int32_t>(usual.passes.front().sweeps.size());
        choice.parts.front().any_tile = true;
        plan tile = plan_on_gpu(source, where.gpus.front(), wishes, 0, &choice);
        if (tile.passes.size() == 1 && tile.passes.front().kernel == pass_kernel::gpu_trailing &&
            tile.workspace_bytes <= wishes.workspace_limit_bytes) {
            return tile;
        }
    }
    return usual;
}

/// True where the last pass of a stage can store what it computes into the receivers' memory. In host memory the stage's output is
/// moved instead.
OTIMES_COLD inline bool one_pass_stores(const distributed_stage& stage, const distributed_problem& problem,
                                        const machine& where, const options& wishes) {
    for (const std::int32_t part : {0, stage.where.col_parts - 1}) {  // a longest and a shortest range
        const std::int32_t rank = stage.where.first_rank + part;
        const std::vector<std::int64_t> own = local_extents(stage.extents, stage.where, stage.mode, rank);
        const std::int64_t rows = part_of(problem.rows, stage.where.row_parts, 0).size();
        if (rows == 0 || product_of(own) == 0) {
            continue;
        }
        const plan one =
            plan_of_store(local_program(problem, stage.factors, rows, own, false, false, {}, {}), where, wishes);
        const bool can = problem.space == memory_space::device ? scatters(one, scatter_of(stage, problem, rank), where)
                                                               : one.passes.size() == 1;
        if (!can) {
            return false;
        }
    }
    return true;
}

/// True where half of a GPU's blocks compute a pass faster than the links take what it stores. Then half of them also store it faster: measured on
/// two H200, 64^4 with one and two rows, 57 and 105 us instead of 65 and 113.
OTIMES_COLD inline bool half_stores(const distributed_stage& store, const plan& pass) {
    constexpr double half_takes = 1.4;  // the time of all
    return half_takes * pass.predicted_seconds < store.predicted_seconds;
}

/// The items of a portion in which the store before the last stage tells its receivers of what it has stored, so that the last stage, one pass over the mode
/// that was cut, begins with what has arrived; 0 where that is not possible, or the pass that stores leaves no room beside it.
/// @param i of the store
OTIMES_COLD inline std::int64_t portion_items_of(const distributed_plan& p, std::size_t i, const machine& where,
                                                 std::int32_t portions) {
    if (portions < 2 || p.source.space != memory_space::device || i + 2 != p.stages.size() || where.gpus.empty() ||
        p.stages[i].where.parts() != p.source.ranks || p.stages[i].where.row_parts != 1) {
        return 0;
    }
    const distributed_stage& store = p.stages[i];
    const distributed_stage& next = p.stages[i + 1];
    if (next.kind != stage_kind::local || next.factors != std::vector<std::int32_t>{store.mode}) {
        return 0;
    }
    const auto all_have_plans = [](const distributed_stage& s) {
        return !s.plan_of_rank.empty() && std::ranges::none_of(s.plan_of_rank, [](std::int32_t n) { return n < 0; });
    };
    if (!all_have_plans(store) || !all_have_plans(next)) {
        return 0;
    }
    const scatter_shape to = scatter_of(store, p.source, store.where.first_rank);
    for (const plan& pass : store.plans) {
        const std::optional<gpu_group> group =
            scattered_group(group_of(pass.passes.front(), p.source.type), to.together(), where.gpus.front());
        if (!half_stores(store, pass) || !group || !may_tell(*group) ||
            to.below % (group->tile.rows * group->count_q()) != 0) {
            return 0;
        }
    }
    std::int64_t widest = 1;  // elements of a tile in a row of its mode
    for (const plan& pass : next.plans) {
        if (pass.where != placement::gpu || pass.slab_count != 1 || pass.passes.size() != 1 ||
            pass.passes.front().kernel != pass_kernel::gpu_outer ||
            !may_arrive(group_of(pass.passes.front(), p.source.type))) {
            return 0;
        }
        widest = (std::max)(widest, std::int64_t{pass.passes.front().tile.run});
    }
    const std::int64_t items = items_of(store, p.source);
    portions = (std::min)(portions, most_portions);
    const std::int64_t each = (std::max)((items + portions - 1) / portions, (widest + to.below - 1) / to.below);
    return items > each ? each : 0;
}

/// True where slabs by turns gain by stores: one of them is stored by half of a processor while the other half does the stages of another.
OTIMES_COLD inline bool stores_by_turns(const distributed_plan& p, const machine& where) {
    bool any = false;
    for (const distributed_stage& s : p.stages) {
        any = any || s.kind == stage_kind::store;
        if (s.kind == stage_kind::exchange) {
            return false;
        }
        for (std::size_t n = 0; s.kind == stage_kind::store && n < s.plans.size() && !where.gpus.empty(); ++n) {
            if (s.plans[n].passes.empty()) {  // the workspace's limit refused it
                return false;
            }
            const auto rank = std::ranges::find(s.plan_of_rank, static_cast<std::int32_t>(n)) - s.plan_of_rank.begin();
            const scatter_shape to = scatter_of(s, p.source, static_cast<std::int32_t>(rank));
            const std::optional<gpu_group> group =
                scattered_group(group_of(s.plans[n].passes.front(), p.source.type), to.together(), where.gpus.front());
            if (!group || group->tile.blocks < 2) {
                return false;
            }
        }
    }
    return any;
}

/// Replaces the end of local stages, and the exchanges behind them, by stores where one pass does what is stored.
/// @returns the seconds that stores hide
OTIMES_COLD inline double store_in_last_passes(distributed_plan& p, const machine& where, const interconnect& net,
                                               const distribution_search& search) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    double hidden = 0;
    for (std::size_t i = 0; i + 1 < p.stages.size(); ++i) {
        const distributed_stage& local = p.stages[i];
        const distributed_stage& exchange = p.stages[i + 1];
        if (local.kind != stage_kind::local || exchange.kind != stage_kind::exchange || local.mode < 0) {
            continue;
        }
        const std::int32_t taken = cut_mode_of(exchange.to, p.source.rows, exchange.extents, p.source.ranks);
        const bool same_grid = exchange.to.row_parts == local.where.row_parts &&
                               exchange.to.col_parts == local.where.col_parts &&
                               exchange.to.first_rank == local.where.first_rank;
        if (!net.stores || net.packs || !same_grid || taken < 0 || taken == local.mode || local.scaled ||
            i + 2 == p.stages.size() || local.where.col_parts > most_receivers) {
            continue;
        }
        // What is stored: factors behind both modes, so that a row of the pass goes to one rank; as many as one pass takes.
        distributed_stage store;
        store.kind = stage_kind::store;
        store.mode = local.mode;
        store.receiver_mode = taken;
        store.from = exchange.from;
        store.to = exchange.to;
        store.moved = exchange.moved;
        std::vector<std::int32_t> before;
        for (const std::int32_t k : local.factors) {
            (k <= (std::max)(local.mode, taken) ? before : store.factors).push_back(k);
        }
        options wishes = p.source.wishes;
        wishes.placement = p.source.space == memory_space::device ? placement::gpu : placement::cpu;
        wishes.workspace_limit_bytes = (std::numeric_limits<std::int64_t>::max)();
        for (; !store.factors.empty();
             before.push_back(store.factors.front()), store.factors.erase(store.factors.begin())) {
            store.extents = local.extents;
            for (const std::int32_t k : before) {
                store.extents[static_cast<std::size_t>(k)] = p.source.factors[static_cast<std::size_t>(k)].q_extent;
            }
            store.where = layout_choice{local.where, local.mode}.with(store.extents);
            if (one_pass_stores(store, p.source, where, wishes)) {
                break;
            }
        }
        if (store.factors.empty()) {
            continue;
        }
        const double computed = search.local_seconds(store.where, store.factors, store.extents);
        const double stored = net.store_bytes_per_second > 0
                                  ? static_cast<double>(exchange.moved.most_sent * bytes) / net.store_bytes_per_second
                                  : exchange.predicted_seconds;
        const double by_stores =
            computed + exchange.predicted_seconds - (std::max)(computed, stored) - net.exchange_seconds;
        if (by_stores <= 0) {
            continue;
        }
        store.predicted_seconds = stored + net.exchange_seconds;  // ranks wait for each other
        hidden += by_stores;
        p.stages[i].factors = before;
        p.stages[i + 1] = std::move(store);
        if (before.empty()) {
            p.stages.erase(p.stages.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
    return hidden;
}

}  // namespace planning

}  // namespace otimes

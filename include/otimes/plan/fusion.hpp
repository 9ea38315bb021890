// SPDX-License-Identifier: MIT
/// @file fusion.hpp
/// Passes: how many consecutive sweeps one trip through memory does, and which free mode gives the vector lanes. A dynamic
/// program over the contiguous partitions of the ordered sweeps, with cost.hpp as its measure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Which chain mode the slabs cut, and how; or that no workspace is taken at all.
struct slab_choice {
    std::int32_t chain_mode = -1;  ///< position in chain::modes; -1: no slabs
    std::int64_t extent = 0;       ///< indices per slab; 0: no slabs
    std::int64_t count = 1;
    bool in_output =
        false;  ///< no slabs: the output holds the intermediates, and all passes but the first work in place
};

/// Strides of a chain mode list: one number per chain mode.
using strides = std::vector<std::int64_t>;

/// Everything that stays fixed while the passes of a chain are chosen.
struct fusion_setting {
    const chain* source = nullptr;
    std::span<const factor_group> groups;  ///< in the order of execution
    const cpu_description* cpu = nullptr;
    slab_choice slab;
    std::int32_t threads = 1;
    level outer_in = level::memory;  ///< where the chain's input lies
    level outer_out = level::memory;
    level inner = level::l2;                                               ///< where its intermediates lie
    std::int64_t most_lanes = (std::numeric_limits<std::int64_t>::max)();  ///< a tight workspace limits the tile
    bool in_place = false;  ///< the result overwrites the input: what lies between lies there too
};

/// Extent of chain mode k after the first `done` groups.
OTIMES_COLD inline std::int64_t extent_after(const fusion_setting& f, std::size_t k, std::size_t done) {
    const chain_mode& m = f.source->modes[k];
    if (!m.contracted()) {
        return m.p_extent;
    }
    for (std::size_t g = 0; g < done; ++g) {
        const factor_group& group = f.groups[g];
        if (static_cast<std::int32_t>(k) >= group.first && static_cast<std::int32_t>(k) < group.first + group.count) {
            return m.q_extent;
        }
    }
    return m.p_extent;
}

/// Strides of the tensor after the first `done` groups: the input's, the output's, or those of a workspace buffer
/// (contiguous in the memory order of the chain, the slab mode only one slab long).
OTIMES_COLD inline void strides_after(const fusion_setting& f, std::size_t done, strides& result) {
    const std::vector<chain_mode>& modes = f.source->modes;
    result.resize(modes.size());
    if (done == 0 || done == f.groups.size() || f.slab.in_output || f.in_place) {
        for (std::size_t k = 0; k < modes.size(); ++k) {
            result[k] = done == 0 || f.in_place ? modes[k].stride_in : modes[k].stride_out;
        }
        return;
    }
    std::int64_t next = 1;
    for (std::size_t k = modes.size(); k-- > 0;) {
        result[k] = next;
        next *= static_cast<std::int32_t>(k) == f.slab.chain_mode ? f.slab.extent : extent_after(f, k, done);
    }
}

/// Elements of a workspace buffer that holds the tensor after the first `done` groups (one slab of it).
OTIMES_COLD inline std::int64_t elements_after(const fusion_setting& f, std::size_t done) {
    std::int64_t elements = 1;
    for (std::size_t k = 0; k < f.source->modes.size(); ++k) {
        elements *= static_cast<std::int32_t>(k) == f.slab.chain_mode ? f.slab.extent : extent_after(f, k, done);
    }
    return elements;
}

/// Writes modes and sweeps of the pass that does groups [begin, end), lanes not chosen yet. Reuses the memory of `p`.
OTIMES_COLD inline void outline_pass(const fusion_setting& f, std::size_t begin, std::size_t end, const strides& in,
                                     const strides& out, pass& p) {
    const std::vector<chain_mode>& modes = f.source->modes;
    p.kernel = pass_kernel::cpu_tiles;
    p.modes.clear();
    p.sweeps.resize(end - begin);
    p.slab_mode = -1;
    p.slab_scale = 1;
    p.lane_mode = -1;
    p.lane_count = 1;
    p.add = f.source->add && end == f.groups.size();
    bool mergeable = false;  // the last pass mode is free and may be extended
    for (std::size_t k = 0; k < modes.size();) {
        const chain_mode& m = modes[k];
        std::size_t hit = f.groups.size();
        for (std::size_t g = 0; g < f.groups.size() && hit == f.groups.size(); ++g) {
            if (f.groups[g].first == static_cast<std::int32_t>(k)) {
                hit = g;
            }
        }
        if (hit >= begin && hit < end) {
            const factor_group& group = f.groups[hit];
            const auto members = static_cast<std::size_t>(group.count);
            pass_mode whole{group.p_extent, group.q_extent, 0, 0};
            for (std::size_t j = k; j < k + members; ++j) {  // the innermost member that has a stride gives it
                if (modes[j].p_extent > 1 || j + 1 == k + members) {
                    whole.stride_in = modes[j].p_extent > 1 || whole.stride_in == 0 ? in[j] : whole.stride_in;
                }
                if (modes[j].q_extent > 1 || j + 1 == k + members) {
                    whole.stride_out = modes[j].q_extent > 1 || whole.stride_out == 0 ? out[j] : whole.stride_out;
                }
            }
            sweep& s = p.sweeps[hit - begin];
            s.mode = static_cast<std::int32_t>(p.modes.size());
            s.kernel = sweep_kernel::fibre;
            s.p_extent = group.p_extent;
            s.q_extent = group.q_extent;
            p.modes.push_back(whole);
            mergeable = false;
            k += members;
            continue;
        }
        const std::int64_t extent = m.contracted() ? extent_after(f, k, begin) : m.p_extent;
        const bool cut = static_cast<std::int32_t>(k) == f.slab.chain_mode;
        if (extent != 1 || cut) {
            pass_mode* last = p.modes.empty() ? nullptr : &p.modes.back();
            if (mergeable && !cut && last->stride_in == in[k] * extent && last->stride_out == out[k] * extent) {
                last->extent_in *= extent;
                last->extent_out = last->extent_in;
                last->stride_in = in[k];
                last->stride_out = out[k];
                if (p.slab_mode == static_cast<std::int32_t>(p.modes.size()) - 1) {
                    p.slab_scale *= extent;
                }
            } else {
                if (cut) {
                    p.slab_mode = static_cast<std::int32_t>(p.modes.size());
                }
                p.modes.push_back({extent, extent, in[k], out[k]});
                mergeable = true;
            }
        }
        ++k;
    }
}

/// Lanes of a tile when mode `k` gives them: as many as keep `buffers` tiles in `cache_bytes`, in whole vectors, at least one
/// vector.
OTIMES_COLD inline std::int64_t lanes_of(const fusion_setting& f, const pass& p, std::int32_t k, double cache_bytes,
                                         double buffers) {
    const std::int64_t vector = vector_count(*f.cpu, f.source->type);
    std::int64_t extent = p.modes[static_cast<std::size_t>(k)].extent_in;
    if (k == p.slab_mode && f.slab.extent > 0) {
        extent = (std::min)(extent, f.slab.extent * p.slab_scale);
    }
    const double lane_bytes = buffers * tile_peak_elements(p) * static_cast<double>(element_bytes(f.source->type));
    auto most = static_cast<std::int64_t>(cache_bytes / lane_bytes);
    most = (std::max)(vector, most / vector * vector);
    most = (std::min)(most, f.most_lanes);
    if (extent <= most) {
        return extent;
    }
    const std::int64_t tiles = (extent + most - 1) / most;
    return (std::min)(most, round_up((extent + tiles - 1) / tiles, vector));
}

/// A factor that is packed in blocks must promise this share of the time of one that is packed whole.
inline constexpr double blocks_must_earn = 0.97;

/// The cost of a pass whose lanes are chosen, its factor read as it lies, packed whole or in blocks, as the cost says. @post p.block_rows and
/// p.block_columns are set.
OTIMES_COLD inline pass_cost choose_packing(const fusion_setting& f, const pass_setting& where, pass& p) {
    const cpu_description& cpu = *f.cpu;
    const dtype type = f.source->type;
    p.block_rows = p.block_columns = 0;
    if (where.columns_contiguous && suits_columns(p, cpu, type)) {
        read_unpacked(p, cpu, type, where.threads);
        return cost_of(p, cpu, type, where);
    }
    const bool is_long =
        where.one_matrix && matrix_bytes(p.sweeps.front(), type) > static_cast<double>(factor_block_bytes(cpu));
    if (is_long && where.rows_contiguous && suits_unpacked(p, cpu)) {
        read_unpacked(p, cpu, type, where.threads);
        return cost_of(p, cpu, type, where);
    }
    const pass_cost whole = cost_of(p, cpu, type, where);
    // Columns that fill no more than one block of registers, rows contiguous, may lie packed already.
    if (!is_long || !suits_blocks(p, cpu, type) ||
        (where.rows_contiguous && p.sweeps.front().q_extent <= column_granule(p, vector_count(cpu, type)))) {
        return whole;
    }
    pack_in_blocks(p, cpu, type, where.threads, where.rows_contiguous);
    const pass_cost in_blocks = cost_of(p, cpu, type, where);
    if (in_blocks.seconds < blocks_must_earn * whole.seconds) {
        return in_blocks;
    }
    p.block_rows = p.block_columns = 0;
    return whole;
}

/// Chooses the lane mode of an outlined pass by cost and returns that cost. @post p.lane_mode, p.lane_count, the sweep kernels and how
/// its factor is packed are set.
OTIMES_COLD inline pass_cost choose_lanes(const fusion_setting& f, const pass_setting& where, pass& p) {
    const std::int64_t vector = vector_count(*f.cpu, f.source->type);
    std::int32_t innermost = -1;
    std::size_t innermost_sweep = 0;
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        if (p.sweeps[i].mode > innermost) {
            innermost = p.sweeps[i].mode;
            innermost_sweep = i;
        }
    }
    pass_cost best;
    std::int32_t best_mode = -1;
    std::int64_t best_count = 1;
    std::int64_t best_rows = 0;
    std::int64_t best_columns = 0;
    bool found = false;
    const auto consider = [&](std::int32_t lane_mode, std::int64_t lane_count, double must_earn = 1.0) {
        p.lane_mode = lane_mode;
        p.lane_count = lane_count;
        if (!p.sweeps.empty()) {
            p.sweeps[innermost_sweep].kernel = lane_mode < 0 ? sweep_kernel::row : sweep_kernel::fibre;
        }
        const pass_cost cost = choose_packing(f, where, p);
        if (!found || cost.seconds < must_earn * best.seconds) {
            found = true;
            best = cost;
            best_mode = lane_mode;
            best_count = lane_count;
            best_rows = p.block_rows;
            best_columns = p.block_columns;
        }
    };
    consider(-1, 1);
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        const auto mode = static_cast<std::int32_t>(k);
        if (is_contracted(p, k)) {
            continue;
        }
        // A tile in L2 takes more modes, or longer runs of memory, for slower sweeps. How many buffers it needs is not known before
        // its lanes are: one of whole registers is tried with one buffer and with two.
        const auto l1 = static_cast<double>(f.cpu->l1_bytes);
        const auto l2 = 0.5 * static_cast<double>(f.cpu->l2_bytes);
        std::int64_t lanes = lanes_of(f, p, mode, l1, 2.0);
        std::int64_t tried = lanes;
        consider(mode, lanes);
        const auto consider_in_l2 = [&](double buffers, double must_earn) {
            const std::int64_t more = lanes_of(f, p, mode, l2, buffers);
            if (more > tried) {
                consider(mode, more, must_earn);
                tried = more;
            }
        };
        consider_in_l2(2.0, 1.0);
        consider_in_l2(1.0, 0.88);  // what is read and written passes through L2 beside so large a tile
        if (takes_parts(p, *f.cpu)) {
            // Its tiles need no cache of their own: the more lanes, the more often a part of the factor is used while it is in L2.
            const std::int64_t most = lanes_of(f, p, mode, 4.0 * l2, 2.0);
            consider(mode, most);
            const std::int64_t extent = p.modes[k].extent_in;
            for (std::int64_t tiles = where.threads; tiles > 1 && tiles <= 2 * where.threads; tiles += where.threads) {
                consider(mode, (std::min)(most, round_up((extent + tiles - 1) / tiles, vector)));
            }
        }
        if (where.slab_count <= 1 && where.threads > 1) {
            while (lanes > 2 * vector && tile_count(p) < 4.0 * where.threads) {
                lanes = round_up(lanes / 2, vector);
                consider(mode, lanes);
            }
        }
    }
    p.lane_mode = best_mode;
    p.lane_count = best_count;
    p.block_rows = best_rows;
    p.block_columns = best_columns;
    if (!p.sweeps.empty()) {
        p.sweeps[innermost_sweep].kernel = best_mode < 0 ? sweep_kernel::row : sweep_kernel::fibre;
    }
    return best;
}

/// Levels and threads of the pass that does groups [begin, end).
inline pass_setting setting_of(const fusion_setting& f, std::size_t begin, std::size_t end) {
    const bool one_matrix =
        end - begin == 1 && f.groups[begin].count == 1 && !f.in_place && !f.slab.in_output && f.slab.count <= 1;
    const bool as_it_lies = one_matrix && (begin > 0 || f.source->unit_factors.empty());
    const auto mode = static_cast<std::size_t>(begin < f.groups.size() ? f.groups[begin].first : 0);
    const bool rows_contiguous = as_it_lies && f.source->modes[mode].rows_contiguous;
    const bool columns_contiguous = as_it_lies && f.source->modes[mode].columns_contiguous;
    return {begin == 0 ? f.outer_in : f.inner,
            end == f.groups.size() ? f.outer_out : f.inner,
            f.threads,
            static_cast<double>(f.slab.count),
            f.most_lanes == (std::numeric_limits<std::int64_t>::max)(),
            one_matrix,
            rows_contiguous,
            columns_contiguous};
}

/// Predicted seconds of the pass that does groups [begin, end), lanes chosen. `scratch` is overwritten.
OTIMES_COLD inline double interval_seconds(const fusion_setting& f, std::size_t begin, std::size_t end, pass& scratch,
                                           strides& in, strides& out) {
    strides_after(f, begin, in);
    strides_after(f, end, out);
    outline_pass(f, begin, end, in, out, scratch);
    return choose_lanes(f, setting_of(f, begin, end), scratch).seconds;
}

/// Ends of the passes of the cheapest partition of the groups into contiguous passes, and its predicted seconds.
/// Where the output holds what lies between passes, each but the first does two groups or more: then it reads its tile before it
/// writes it, and can work in place without a copy.
/// Cost: groups (groups + 1) / 2 evaluations of interval_seconds.
/// @post equals the minimum over all partitions that are allowed, without that 2^(groups - 1) (tests/plan/grouping.cpp).
OTIMES_COLD inline std::vector<std::size_t> cheapest_partition(const fusion_setting& f, double& seconds) {
    const std::size_t count = f.groups.size();
    std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
    std::vector<std::size_t> from(count + 1, 0);
    best[0] = 0;
    pass scratch;
    strides in;
    strides out;
    for (std::size_t end = 1; end <= count; ++end) {
        for (std::size_t begin = 0; begin < end; ++begin) {
            if (f.slab.in_output && begin > 0 && end - begin < 2) {
                continue;
            }
            const double total = best[begin] + interval_seconds(f, begin, end, scratch, in, out);
            if (begin == 0 || total < best[end]) {  // one pass over all, whatever a cost says
                best[end] = total;
                from[end] = begin;
            }
        }
    }
    seconds = best[count];
    std::vector<std::size_t> ends;
    for (std::size_t end = count; end > 0; end = from[end]) {
        ends.push_back(end);
    }
    for (std::size_t k = 0; k < ends.size() / 2; ++k) {  // found from the last on
        const std::size_t end = ends[k];
        ends[k] = ends[ends.size() - 1 - k];
        ends[ends.size() - 1 - k] = end;
    }
    return ends;
}

}  // namespace otimes::planning

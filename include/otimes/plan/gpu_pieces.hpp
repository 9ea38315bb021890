// SPDX-License-Identifier: MIT
/// @file gpu_pieces.hpp
/// Which tile a product gets that only a dot product reads and that no single kernel computes otherwise: one kernel all the same.
/// The blocks of a cluster hold a row, or a piece of it,
///
///     x^H kron(A, B) y = sum_i x^H kron(A.middleRows(i), B) y_i            y_i: the i-th piece of y
///
/// so that nothing lies between passes and the flops are those of the product; x is read once for each piece, from L2 but the first time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Of a tile that is alone on its multiprocessor, or nearly so: every warp gets fibres, by the unit of four warps where that takes them,
/// and a first mode that grows from 8 on takes the unit, too. Nothing changes where the group cannot run so.
OTIMES_ON_DEMAND OTIMES_COLD inline void share_among_warps(gpu_group& g, bool may_use_unit,
                                                           const gpu_description& gpu) {
    gpu_group shared = g;
    std::int64_t elements = shared.count_p() / shared.tile.cluster;
    for (gpu_trip& trip : shared.tile.trips) {
        const std::int64_t p = shared.p_of(trip.first);
        const std::int64_t q = shared.q_of(trip.first);
        const std::int64_t fibres = elements / p;
        elements = fibres * q;
        const bool grows = trip.first == 1 && may_use_unit && p % 8 == 0 && q % 8 == 0 && q >= 16;
        if (trip.count != 1 || (!trip.matrix && !grows)) {
            continue;
        }
        trip.matrix = true;
        trip.warpgroup = g.type == dtype::f32 && gpu.has_warpgroup_mma && (q == 32 || q == 64) &&
                         shared.tile.threads % 128 == 0 && fibres >= shared.tile.threads / 2;
        trip.split = 1;
        const std::int64_t items = fibres / (g.type == dtype::f32 || p >= 64 ? 32 : 16);  // of a warp
        // New indices of one warp: more wait for their own sums, in double sooner; where it reads other blocks' memory, fewer read it twice.
        const bool reads_others = trip.first == 1 && shared.tile.cluster > 1;
        const std::int64_t most = group_memory::factor_elements(shared, trip.first) == 0 ? 32
                                  : g.type == dtype::f32 || reads_others                 ? 64
                                                                                         : 48;
        while (!trip.warpgroup && q % (16 * trip.split) == 0 &&
               (items * trip.split * 2 <= shared.tile.threads / 32 || q / trip.split > most)) {
            trip.split *= 2;
        }
    }
    if (why_illegal(shared, gpu).empty()) {
        g = std::move(shared);
    }
}

/// The group of so many pieces over the smallest cluster of `least` to `most` blocks that holds one; nothing where none does.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> group_of_pieces(const group_request& whole,
                                                                             std::int64_t pieces, std::int32_t least,
                                                                             std::int32_t most,
                                                                             const gpu_description& gpu) {
    group_request r = whole;
    r.p.front() /= pieces;
    r.groups *= pieces;
    for (std::int32_t blocks = least; blocks <= most && r.p.front() % blocks == 0; blocks *= 2) {
        gpu_group g = without_tile(r);
        g.tile.cluster = blocks;
        g.tile.pieces = static_cast<std::int32_t>(pieces);
        if (!tile_formula::complete(r, gpu, g)) {
            continue;
        }
        g.tile.segments = 1;
        g.tile.slots = 0;
        share_among_warps(g, r.may_use_unit, gpu);
        if (why_illegal(g, gpu).empty()) {
            return g;
        }
    }
    return std::nullopt;
}

/// The group with the fewest pieces (`may_cut` false: one) and the smallest cluster that hold them; nothing where there is none, nor for factors
/// longer than 128, which are read where they stand: what was measured, of doubles 512^2, takes 13 times the prediction, and blocks reduce, too.
/// Its first mode is that of a piece. Clusters above portable_cluster_blocks, of which a GPU holds few, are for what no other holds whole, and for
/// fewer pieces of factors that lie in shared memory as they would in a smaller one (measured: 64^3 in double, whole, 1.7 times two pieces, 128^3 0.8).
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> group_in_pieces(const group_request& whole, bool may_cut,
                                                                             const gpu_description& gpu) {
    const auto is_long = [](std::int64_t extent) { return extent > 128; };
    if (whole.outer || whole.parts_per_line != 1 || !gpu.compiles || whole.p.size() < 2 || whole.order.empty() ||
        whole.order.back() != 1 || static_cast<std::int64_t>(whole.p.size()) > most_group_modes ||
        std::ranges::any_of(whole.p, is_long) || std::ranges::any_of(whole.q, is_long)) {
        return std::nullopt;
    }
    const std::int32_t portable = (std::min)(gpu.cluster_blocks, portable_cluster_blocks);
    std::optional<gpu_group> large;
    for (std::int64_t pieces = 1; pieces <= (may_cut ? whole.p.front() : 1); ++pieces) {
        if (whole.p.front() % pieces != 0) {
            continue;
        }
        const std::optional<gpu_group> g = group_of_pieces(whole, pieces, 1, portable, gpu);
        if (g) {
            return large && group_memory::factors_lie_alike(*large, *g) ? large : g;
        }
        if (!large) {
            large = group_of_pieces(whole, pieces, 2 * portable, gpu.cluster_blocks, gpu);
        }
    }
    return large;
}

}  // namespace otimes::planning

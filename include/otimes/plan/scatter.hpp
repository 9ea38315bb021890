// SPDX-License-Identifier: MIT
/// @file scatter.hpp
/// Which plans can leave their output in several matrices, and by which kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/scatter_shape.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// The group of fused_scattered in the place of a fused pass's. Its tile is finished in shared memory, so that there may be one staged
/// tile less; and where two blocks fit a multiprocessor with tiles of half the rows, or else without staged tiles, there are two: while a
/// block's stores wait for a link, the other one computes, or something else does. Nothing where it does not fit, or a tile would belong to
/// two matrices.
/// @param together scatter_shape::together of the output
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> scattered_group(gpu_group g, std::int64_t together,
                                                                             const gpu_description& gpu) {
    if (group_memory::is_ring(g)) {  // one of several matrices takes whole tiles
        g.tile.segments = 1;
        g.tile.slots = 0;
    }
    g.scattered = true;
    while (g.tile.slots > 1 && shared_bytes_of(g) > gpu.shared_bytes_per_block) {
        --g.tile.slots;
    }
    gpu_group half = g;
    half.tile.rows /= 2;
    half.tile.threads /= 2;
    half.tile.slots = 1;
    gpu_group bare = g;
    bare.tile.slots = 0;
    const bool halves = g.tile.blocks <= 2 && half.tile.rows > 0 &&
                        std::ranges::all_of(g.tile.trips, &gpu_trip::warpgroup);  // the kind for which it was measured
    for (gpu_group* const two : {&half, &bare}) {
        two->tile.blocks = 2;
        if ((two == &half ? halves : g.tile.blocks == 1) && g.tile.segments == 1 &&
            2 * (shared_bytes_of(*two) + 1024) <= gpu.shared_bytes_per_multiprocessor &&
            why_illegal(*two, gpu).empty()) {
            g = *two;
            break;
        }
    }
    if (!gpu.compiles || !why_illegal(g, gpu).empty() || together % (g.tile.rows * g.count_q()) != 0) {
        return std::nullopt;
    }
    return g;
}

/// True of a scattered group that may tell its receivers of portions while it runs, and leaves a block of another kernel room (kernels/fused_telling.cuh).
OTIMES_ON_DEMAND OTIMES_COLD inline bool may_tell(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    return g.scattered && t.threads == 128 && t.blocks == 2 && t.segments == 1 && t.slots == 1 &&
           std::ranges::all_of(t.trips, [](const gpu_trip& trip) { return trip.warpgroup && trip.split == 1; });
}

/// True of a group whose tiles may wait for what other GPUs store, one after another (kernels/fused_arriving.cuh).
OTIMES_ON_DEMAND OTIMES_COLD inline bool may_arrive(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    return g.outer && g.modes() == 1 && g.terms == 1 && g.inputs == 1 && !g.addend && g.ending == gpu_ending::stored &&
           !is_widened(g.type) && t.rows == 1 && t.segments == 1 && t.slots == 0 && t.cluster == 1 && t.slices == 1 &&
           t.pieces == 1 && g.p_of(1) != 32;  // those of 32 fetch the next tile while they store one
}

/// True where one pass does a plan and can leave its output divided so.
OTIMES_ON_DEMAND OTIMES_COLD inline bool scatters(const plan& p, const scatter_shape& to, const machine& where) {
    return p.where == placement::gpu && p.slab_count == 1 && p.passes.size() == 1 &&
           p.passes.front().kernel == pass_kernel::gpu_trailing && !where.gpus.empty() &&
           scattered_group(group_of(p.passes.front(), p.source.tensors.front().type), to.together(),
                           where.gpus.front());
}

}  // namespace otimes::planning

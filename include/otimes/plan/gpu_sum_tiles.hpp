// SPDX-License-Identifier: MIT
/// @file gpu_sum_tiles.hpp
/// Tiles of the kernels that add up several products of one X: single modes (kernels/fused_sum.cuh), terms (kernels/tile_schedules.cuh). Those of one
/// product: gpu_tiles.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// One trip for each mode of g, innermost first, by the matrix unit where `may_use_unit` and the extents allow. Returns the elements of a tensor;
/// 0 where it, or a fibre, is too long.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t trips_of_one_mode(gpu_group& g, bool may_use_unit,
                                                                   const gpu_description& gpu) {
    const bool by_unit = may_use_unit && !is_complex(g.type) && has_unit(gpu, g.type);
    std::int64_t elements = 1;
    for (std::int32_t level = g.modes(); level >= 1; --level) {
        const std::int64_t e = g.p_of(level);
        elements *= e;
        gpu_trip trip;
        trip.first = level;
        trip.matrix = by_unit && e % 8 == 0 && e >= (g.type == dtype::f32 ? 16 : 8) &&
                      (level == g.modes() || g.p_of(g.modes()) % group_memory::vector_of(g.type) == 0);
        if (e > (trip.matrix ? 64 : 32) || elements > (std::int64_t{1} << 16)) {
            return 0;
        }
        g.tile.trips.push_back(trip);
    }
    return elements;
}

/// Which trips of one mode use the unit of four warps, and how many warps share a fibre where there would be fewer fibres than warps.
OTIMES_ON_DEMAND OTIMES_COLD inline void choose_units(gpu_group& g, std::int64_t elements, const gpu_description& gpu) {
    for (gpu_trip& trip : g.tile.trips) {
        const std::int64_t e = g.p_of(trip.first);
        const std::int64_t fibres = elements * g.tile.rows / g.tile.cluster / e;
        trip.warpgroup = trip.matrix && g.type == dtype::f32 && gpu.has_warpgroup_mma && (e == 32 || e == 64) &&
                         g.tile.threads % 128 == 0 && fibres >= g.tile.threads / 2;
        const std::int64_t each = g.type == dtype::f32 || e >= 64 ? 32 : 16;
        trip.split = 1;
        while (trip.matrix && !trip.warpgroup && e % (16 * trip.split) == 0 &&
               fibres / each * trip.split * 2 <= g.tile.threads / 32) {
            trip.split *= 2;
        }
    }
}

/// The group that adds up the products of `groups` trailing tensors [p..] with each of their modes, first mode outermost; nothing where it
/// does not fit or would hold fibres that are too long.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> sum_group(dtype type, const std::vector<std::int64_t>& p,
                                                                       std::int64_t groups, std::int64_t parts_per_line,
                                                                       bool may_use_unit, const gpu_description& gpu) {
    group_request r;
    r.type = type;
    r.p = r.q = p;
    gpu_group g = without_tile(r);
    g.sum = true;
    const std::int64_t words = group_memory::words_of(type);
    const std::int64_t tile = trips_of_one_mode(g, may_use_unit, gpu);
    if (tile == 0) {
        return std::nullopt;
    }
    const bool all_by_unit = std::ranges::all_of(g.tile.trips, &gpu_trip::matrix);
    while (tile * g.tile.rows * 2 * words <= 4096 &&
           groups / (2 * g.tile.rows) >= 2 * (std::max)(1, gpu.multiprocessors) &&
           (parts_per_line == 1 || parts_per_line % (2 * g.tile.rows) == 0)) {
        g.tile.rows *= 2;
    }
    // As many threads as there are fibres, of about 32 words each; the unit's warps take more of them, so that they share the factor.
    g.tile.threads = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(tile * g.tile.rows * words / 32 / 32 * 32, 64, all_by_unit ? 128 : 256));
    const auto blocks_of = [&] {
        const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(g) + 1024);
        const std::int64_t by_registers =
            gpu.registers_per_multiprocessor / (g.tile.threads * (all_by_unit && words * tile > 8192 ? 168ll : 104ll));
        return static_cast<std::int32_t>(std::clamp<std::int64_t>((std::min)(by_memory, by_registers), 0, 16));
    };
    choose_units(g, tile, gpu);
    // Two blocks on a multiprocessor hide each other's loads. Where there is one, the blocks of a cluster share the tile; else the next
    // tile arrives during this one.
    if (all_by_unit && g.tile.rows == 1 && blocks_of() < 2) {
        const gpu_tile alone = g.tile;
        while (blocks_of() < 2 && g.tile.cluster * 2 <= (std::min)(gpu.cluster_blocks, portable_cluster_blocks) &&
               g.p_of(1) % (2 * g.tile.cluster) == 0) {
            g.tile.cluster *= 2;
            choose_units(g, tile, gpu);
        }
        if (g.modes() < 3 || blocks_of() < 2) {
            g.tile = alone;
            g.tile.slots = 1;
            g.tile.threads = 256;
            choose_units(g, tile, gpu);
        }
    }
    g.tile.blocks = (std::max)(1, blocks_of());
    return why_illegal(g, gpu).empty() ? std::optional(g) : std::nullopt;
}

/// The group of several terms with a tile that holds their input and their sum on chip for all of them, where that leaves enough
/// threads; else as it was.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group terms_group(const gpu_group& joined, const gpu_description& gpu) {
    gpu_group g = joined;
    gpu_tile& tile = g.tile;
    const std::int64_t words = group_memory::words_of(g.type);
    g.kept = true;
    if (g.outer || is_complex(g.type) || tile.cluster != 1 || !why_illegal(g, gpu).empty()) {
        return joined;
    }
    const bool by_unit = std::ranges::any_of(tile.trips, &gpu_trip::matrix);
    if (by_unit && g.modes() >= 3 && g.is_square() && std::ranges::count(g.p, 16) == g.modes()) {
        tile.trips = {{g.modes() - 1, 2, true}};
        for (std::int32_t l = g.modes() - 2; l >= 1; --l) {
            tile.trips.insert(tile.trips.begin(), {l, 1, true});
        }
        tile.rows = 1;
    }
    // The sum takes registers, so a thread holds few fibres at a time; a float mode of 8 is for multiply-adds.
    std::vector<gpu_trip> trips;
    bool as_it_is = false;
    bool long_fibres = false;
    for (const gpu_trip& trip : tile.trips) {
        as_it_is = as_it_is || trip.split > 1 || trip.warpgroup;
        if ((trip.matrix && (words > 1 || g.p_of(trip.first) >= 16)) || trip.split > 1) {
            trips.push_back(trip);
            continue;
        }
        std::int64_t held = 0;  // words of the last trip's fibre
        for (std::int32_t l = trip.first + trip.count - 1; l >= trip.first; --l) {
            const std::int64_t e = (std::max)(g.p_of(l), g.q_of(l));
            if (held > 0 && held * e <= 32) {
                trips.back().first = l;
                ++trips.back().count;
                held *= e;
            } else {
                trips.push_back({l});
                held = e * words;
            }
            long_fibres = long_fibres || held > 16;
        }
    }
    tile.trips = std::move(trips);
    while (!as_it_is && tile.rows % 2 == 0 && tile.rows * g.count_q() * words > 4096) {
        tile.rows /= 2;
    }
    const bool pairs = group_memory::is_swizzled(g);
    const std::int64_t tile_words = tile.rows * g.count_q() * words;
    if (!as_it_is) {
        const auto wanted = static_cast<std::int32_t>(std::clamp<std::int64_t>(tile_words / 16 / 32 * 32, 64, 256));
        tile.threads = pairs ? 128 : (std::max)(tile.threads, wanted);
    }
    const std::int64_t own = (tile_words + tile.threads - 1) / tile.threads;  // words of the sum, a thread
    gpu_group one_term = g;
    one_term.terms = 1;
    const bool factors_stay = shared_bytes_of(g) > shared_bytes_of(one_term);
    const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(g) + 1024);
    const std::int64_t registers = (pairs ? 128 : long_fibres ? 88 : 64) + own;  // of a thread
    const std::int64_t by_registers = gpu.registers_per_multiprocessor / (tile.threads * registers);
    const std::int64_t blocks = (std::min)(by_memory, by_registers);
    tile.blocks = static_cast<std::int32_t>(std::clamp<std::int64_t>(blocks, 1, 16));
    const bool enough = blocks * tile.threads * 2 >= std::int64_t{1} * joined.tile.blocks * joined.tile.threads;
    return own <= 64 && enough && factors_stay && why_illegal(g, gpu).empty() ? g : joined;
}

}  // namespace otimes::planning

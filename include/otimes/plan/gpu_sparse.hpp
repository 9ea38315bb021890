// SPDX-License-Identifier: MIT
/// @file gpu_sparse.hpp
/// A sparse factor along one mode on a GPU (kernels/sparse_multiply.cuh): whether a block brings all of the mode for some neighbours t into shared
/// memory, where each sum finds what it reads, or sums read X where it lies.
#pragma once

#include <algorithm>
#include <cstdint>

#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes::planning {

/// What kernels/sparse_multiply.cuh has: the most neighbours t of a thread, the bytes of a tile, the threads of its block.
inline constexpr std::int64_t sparse_sums_together = 8;
inline constexpr std::int64_t sparse_tile_bytes = 64 * 1024;
inline constexpr std::int64_t sparse_tile_threads = 256;

/// Y[f, t, o] = sum of values[k] * X[f, t, inner[k]] for `turns` t and `others` f.
struct sparse_sums {
    std::int64_t inputs = 1;  ///< extent of the mode in X
    std::int64_t stored = 0;  ///< elements of the factor
    std::int64_t turns = 1;
    std::int64_t others = 1;
    std::int64_t fibres = 1;  ///< turns * others of all slabs of a plan
    bool along = false;       ///< the inputs are neighbours in memory; else the t are
};

/// Neighbours t of a tile, a power of two; 0: no tiles. A tile is read once, while sums that read X where it lies read as much as they multiply,
/// from the second-level cache at best; so tiles it is wherever one fits, half of it is read, and there are enough of them for a device. More
/// neighbours share an index and a value, but not where that leaves a multiprocessor fewer than two tiles. Whether there are tiles does not depend
/// on the slabs of a plan (the order of a sum does depend on that), how large they are does.
OTIMES_ON_DEMAND inline std::int64_t sparse_tile_turns(const sparse_sums& s, dtype type,
                                                       const gpu_description& gpu) noexcept {
    constexpr std::int64_t least_tiles = 64;
    constexpr std::int64_t packet_bytes = 16;  // of an access
    constexpr std::int64_t bank_bytes = 128;   // of all banks of shared memory
    const std::int64_t bytes = element_bytes(type);
    const std::int64_t least = s.along ? 1 : packet_bytes / bytes;
    const std::int64_t most = s.along ? sparse_sums_together : bank_bytes / bytes;
    if (gpu.shared_bytes_per_block < sparse_tile_bytes || s.inputs < 1 ||
        s.inputs > sparse_tile_bytes / bytes / least || 2 * s.stored < s.inputs || s.fibres < least_tiles * least) {
        return 0;
    }
    std::int64_t turns = least;
    while (2 * turns <= most && turns < s.turns && s.inputs <= sparse_tile_bytes / bytes / (2 * turns) &&
           (s.turns + 2 * turns - 1) / (2 * turns) * s.others >= std::int64_t{2} * gpu.multiprocessors) {
        turns *= 2;
    }
    return turns;
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file fused_group.hpp
/// The exact instantiation of a fused kernel for one pass, as a value: extents, tile, threads and trips of
/// kernels/mode_group.cuh. No device is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <otimes/plan/machine.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes::backend {

/// Modes that a kernel replaces together between two barriers.
struct fused_trip {
    int first = 1;        ///< level of the first replaced mode, from 1
    int count = 1;        ///< modes replaced together
    bool matrix = false;  ///< matrix unit instead of multiply-adds
    int split = 1;        ///< threads (matrix unit: warps) that share a fibre
    friend bool operator==(const fused_trip&, const fused_trip&) = default;
};

/// One instantiation of fused_trailing or fused_outer.
struct fused_group {
    bool outer = false;       ///< fused_outer; else fused_trailing
    dtype type = dtype::f32;  ///< f32 or f64
    std::vector<int> p;       ///< extents of the group's modes before
    std::vector<int> q;       ///< and after
    int rows = 1;             ///< rows of a tile (trailing)
    int run = 1;              ///< neighbouring inner elements of a tile (outer)
    int threads = 256;
    int blocks = 1;  ///< per multiprocessor, bounds the registers
    int segments = 1;
    int slots = 0;
    int cluster = 1;  ///< blocks that share a tile
    std::vector<fused_trip> trips;
    friend bool operator==(const fused_group&, const fused_group&) = default;

    [[nodiscard]] std::int64_t count_p() const;
    [[nodiscard]] std::int64_t count_q() const;
    /// "fused_trailing" or "fused_outer": the kernel and, with ".cuh", its file.
    [[nodiscard]] std::string kernel() const { return outer ? "fused_outer" : "fused_trailing"; }
    /// "otimes::kernels::mode_group<...>"
    [[nodiscard]] std::string type_expression() const;
};

/// What a group must do, before its tile is chosen.
struct fused_request {
    bool outer = false;
    dtype type = dtype::f32;
    std::vector<std::int64_t> p;
    std::vector<std::int64_t> q;
    std::vector<int> order;           ///< levels (from 1) in the order in which they are best contracted
    std::vector<bool> matrix;         ///< per level: the matrix unit is wanted
    std::int64_t tiles_of_one = 1;    ///< rows (trailing) or tensors (outer) in all
    std::int64_t parts_per_line = 1;  ///< trailing: rows of a tile must divide it unless it is 1
    std::int64_t inner = 1;           ///< outer: extent below the group
};

/// Chooses tile, threads and trips for the GPU; nothing when no tile fits or the kernels do not know the case. The
/// kernels' padding is only estimated: the loader asks the compiled kernel for its exact shared memory.
std::optional<fused_group> choose_group(const fused_request& request, const gpu_description& gpu);

}  // namespace otimes::backend

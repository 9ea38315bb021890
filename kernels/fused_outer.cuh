// SPDX-License-Identifier: MIT
// Contract: modes that are not the innermost. For every line m, part o and inner element i:
//   Y[m, o, q_1 .. q_n, i] = alpha * sum_{p_1 .. p_n} X[m, o, p_1 .. p_n, i] * prod_j F_j[p_j, q_j] + beta * Y[m, o, q_1 .. q_n, i]
// where X[m, o, f, i] stands at x + m * x_line_stride + (o * prod P + f) * x_inner + i (f: linear index of the group), Y likewise with prod Q.
// A tile is the whole group times Group::run neighbouring i, for Group::rows neighbouring parts o; tiles along i are neighbours in time, so
// that their sectors meet in L2.
//
// Group::inputs = 2: X is two matrices, x and x + second, each with half of the P and a factor of its own: their products are added up.
//
// Requires: parts_per_line a multiple of Group::rows; Group::run >= 2 (>= 32 bytes for whole sectors); i < inner <= x_inner, y_inner; launch as
//   fused_trailing. Rows > 1: no pair trips.
// Alignment: any; 16-byte accesses where bases and strides allow. The last tile of a line may be narrower than the run.
// Aliasing: Y = X allowed when P_i = Q_i and the strides are equal; else X, Y and factors do not overlap.
// Called by: the GPU executor, for the other groups of a row-major operand and for all groups of a column-major one.
#pragma once
#include "fused_pass.cuh"

namespace otimes::kernels {

template <class Group, class Calls>
__device__ __forceinline__ void outer_pass(const group_arguments<typename Group::storage>& arguments, Calls& calls) {
    using storage = typename Group::storage;
    static_assert(Group::run > 1 && (Group::rows == 1 || !Group::swizzled));
    constexpr int in = Group::rows * Group::count_p() / Group::inputs,
                  out = Group::rows * Group::count_q();  // of a tile's parts
    const index_t runs = (arguments.inner + Group::run - 1) / Group::run;
    const index_t parts = Group::rows == 1 ? arguments.parts_per_line : arguments.parts_per_line / Group::rows;
    const index_t tiles = arguments.lines * parts * runs;
    const bool y_wide = aligned_to(arguments.y, 16) && (!Group::addend || arguments.c_offset % Group::vector == 0) &&
                        arguments.y_line_stride % Group::vector == 0 && arguments.y_inner % Group::vector == 0;
    fused_pass<Group>(
        arguments, tiles, y_wide,
        [&](index_t tile) {
            const index_t tensor = tile / runs, run = tile - tensor * runs;
            const index_t line = parts == 1 ? tensor : tensor / parts, part = tensor - line * parts;
            const index_t first = run * Group::run;
            tile_place<storage> place;
            place.x = arguments.x + line * arguments.x_line_stride + part * in * arguments.x_inner + first;
            place.y = arguments.y + line * arguments.y_line_stride + part * out * arguments.y_inner + first;
            place.x_row_stride = Group::inputs > 1 ? arguments.second : 0;
            place.y_row_stride = 0;
            place.x_inner = arguments.x_inner;
            place.y_inner = arguments.y_inner;
            place.rows = Group::rows;
            place.run = arguments.inner - first < Group::run ? int(arguments.inner - first) : Group::run;
            return place;
        },
        calls);
}

template <class Group>
__global__ void OTIMES_CLUSTER_OF(Group::cluster) __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_outer(const __grid_constant__ group_arguments<typename Group::storage> arguments) {
    calls_nothing calls;
    outer_pass<Group>(arguments, calls);
}

}  // namespace otimes::kernels

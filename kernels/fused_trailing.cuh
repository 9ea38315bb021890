// SPDX-License-Identifier: MIT
// Contract: every row r (a contiguous tensor [P_1 .. P_n], the whole row of X or a trailing part of it):
//   Y[r, q_1 .. q_n] = alpha * sum_{p_1 .. p_n} X[r, p_1 .. p_n] * prod_i F_i[p_i, q_i] + beta * Y[r, q_1 .. q_n]
// in one pass over X and Y. Row r is part r % parts_per_line of line r / parts_per_line: it begins at
// x + (r / parts_per_line) * x_line_stride + (r % parts_per_line) * prod P.
// In pieces: part o has the rows o * P_1, .. of F_1, and its image is added to that of the whole line, which stands at the line's begin in Y.
//
// Requires: Group::run = 1; parts_per_line = 1 or a multiple of Group::rows; 1-D grid of any size (at most one block a tile is
//   useful, blocks_per_multiprocessor x multiprocessors is usual); Group::threads threads; Group::shared_bytes dynamic shared memory;
//   grid a multiple of Group::cluster and of Group::slices.
// Alignment: any; 16-byte accesses where base and strides allow.
// Aliasing: Y = X allowed when P_i = Q_i, the line strides are equal and Group::slices = 1 (slices read the whole row); else X, Y and factors do not overlap.
// Called by: the GPU executor, for the last group of modes of a row-major operand.
#pragma once
#include "fused_pass.cuh"

namespace otimes::kernels {

template <class Group>
__global__ void OTIMES_CLUSTER_OF(Group::cluster) __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_trailing(const __grid_constant__ group_arguments<typename Group::storage> arguments) {
    using storage = typename Group::storage;
    static_assert(Group::run == 1);
    constexpr int in = Group::count_p(), out = Group::count_q() * Group::slices;
    const index_t first_of_slice =
        Group::slices == 1 ? 0 : index_t(blockIdx.x % Group::slices) * Group::q(Group::modes);
    const index_t rows = arguments.lines * arguments.parts_per_line;
    const index_t tiles = (rows + Group::rows - 1) / Group::rows;
    const bool y_wide = aligned_to(arguments.y, 16) && (!Group::addend || arguments.c_offset % Group::vector == 0) &&
                        arguments.y_line_stride % Group::vector == 0 && out % Group::vector == 0;
    const index_t parts = arguments.parts_per_line;
    fused_pass<Group>(arguments, tiles, y_wide, [&](index_t tile) {
        const index_t first = tile * Group::rows;
        const index_t line = parts == 1 ? first : first / parts, part = first - line * parts;
        tile_place<storage> place;
        place.x = arguments.x + line * arguments.x_line_stride + part * in;
        place.y = arguments.y + line * arguments.y_line_stride + (Group::in_pieces ? 0 : part * out) + first_of_slice;
        place.x_row_stride = parts == 1 ? arguments.x_line_stride : in;
        place.y_row_stride = parts == 1 ? arguments.y_line_stride : out;
        place.x_inner = place.y_inner = 1;
        place.rows = rows - first < Group::rows ? int(rows - first) : Group::rows;
        place.run = 1;
        return place;
    });
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// Contract: fused_trailing's product of contiguous rows r (each a tensor [P_1 .. P_n] of X), whose results go to several matrices. The rows
// have the indices [before, outer, between, inner, below], the last one fastest, and one of outer and inner is cut: index c of it belongs to
// the receiver k with first[k] <= c < first[k + 1]. With c - first[k] in its place, and `whole_first` added to the other one, which has `whole`
// indices there, the indices tell the row's place in receiver k's matrix [before, outer, between, inner, below] of contiguous rows.
// A tile is finished in shared memory and leaves in whole lines: runs of 32 bytes, as a last trip leaves them, take twice the time on
// a link to another GPU.
//
// Requires: beta = 0, X's rows contiguous; fewer than 2^31 rows; the rows of a tile belong to one receiver and follow each other there; launch as
//   fused_trailing. arguments.rows.y is not used.
// Alignment: any; 16-byte accesses where bases and strides allow.
// Aliasing: no receiver's matrix overlaps X or a factor.
// Visibility: the receivers may read once the kernel is done (an event behind it), or once they have been told (arrivals.cuh).
// Called by: the GPU executor, for the last pass of a stage whose output goes to other ranks.
#pragma once
#include "arrivals.cuh"
#include "fused_pass.cuh"

namespace otimes::kernels {

template <class Scalar>
struct scattered_arguments {
    group_arguments<Scalar> rows;
    Scalar* receivers[most_receivers];
    unsigned first[most_receivers + 1];
    unsigned count;                         // of receivers
    unsigned outer, between, inner, below;  // extents
    unsigned whole, whole_first;
    bool cuts_inner;
    arrival_words tell;
};

template <class Group>
__global__ void __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_scattered(const __grid_constant__ scattered_arguments<typename Group::scalar> arguments) {
    using scalar = typename Group::scalar;
    static_assert(Group::scattered);
    constexpr int in = Group::count_p(), out = Group::count_q();
    const unsigned rows = unsigned(arguments.rows.lines * arguments.rows.parts_per_line);
    const unsigned tiles = (rows + Group::rows - 1) / Group::rows;
    fused_pass<Group>(arguments.rows, index_t(tiles), true, [&](index_t tile) {
        const unsigned first = unsigned(tile) * Group::rows;
        const unsigned below = first % arguments.below;
        unsigned rest = first / arguments.below;
        unsigned inner = rest % arguments.inner;
        rest /= arguments.inner;
        const unsigned between = rest % arguments.between;
        rest /= arguments.between;
        unsigned outer = rest % arguments.outer;
        const unsigned before = rest / arguments.outer;
        const unsigned cut = arguments.cuts_inner ? inner : outer;
        scalar* y = arguments.receivers[0];
        unsigned begin = arguments.first[0], end = arguments.first[1];
#pragma unroll
        for (unsigned k = 1; k < unsigned(most_receivers);
             ++k)  // constant places: no copy of the arguments in local memory
            if (k < arguments.count && cut >= arguments.first[k]) {
                y = arguments.receivers[k];
                begin = arguments.first[k];
                end = arguments.first[k + 1];
            }
        const unsigned own = end - begin;
        unsigned outer_extent = own, inner_extent = arguments.whole;
        if (arguments.cuts_inner) {
            inner_extent = own;
            outer_extent = arguments.whole;
            inner -= begin;
            outer += arguments.whole_first;
        } else {
            outer -= begin;
            inner += arguments.whole_first;
        }
        const index_t row =
            (((index_t(before) * outer_extent + outer) * arguments.between + between) * inner_extent + inner) *
                arguments.below +
            below;
        tile_place<scalar> place;
        place.x = arguments.rows.x + index_t(first) * in;
        place.y = y + row * out;
        place.x_row_stride = in;
        place.y_row_stride = out;
        place.x_inner = place.y_inner = 1;
        place.rows = rows - first < Group::rows ? int(rows - first) : Group::rows;
        place.run = 1;
        return place;
    });
    tell_receivers(arguments.tell);
}

}  // namespace otimes::kernels

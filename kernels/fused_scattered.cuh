// SPDX-License-Identifier: MIT
// Contract: fused_trailing's product of contiguous rows r (each a tensor [P_1 .. P_n] of X), whose results go to several matrices. The rows
// have the indices [before, outer, between, inner, below], the last one fastest, and one of outer and inner is cut: index c of it belongs to
// the receiver k with first[k] <= c < first[k + 1]. With c - first[k] in its place, and `whole_first` added to the other one, which has `whole`
// indices there, the indices tell the row's place in receiver k's matrix [before, outer, between, inner, below] of contiguous rows.
// A tile is finished in shared memory and leaves in whole lines: runs of 32 bytes, as a last trip leaves them, take twice the time on
// a link to another GPU. All receivers get tiles by turns, and each has its matrix filled item by item (an index of all modes but the
// other one and those below), so that it may begin with what has arrived; measured, up to 7 % faster than in the order of X's rows.
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
    unsigned most;  // indices of the cut mode that a receiver has
    bool cuts_inner;
    arrival_words tell;
};

// Of a tile, the indices of its first row, and of its receiver.
struct scattered_tile {
    unsigned before, outer, between, inner, below;
    unsigned receiver, begin, end;  // begin <= index of the cut mode < end
    bool exists;
};

// Whether a tile's rows are of one item. Else tiles come in the order of X's rows.
template <class Group>
__device__ __forceinline__ bool tiles_by_items(const scattered_arguments<typename Group::scalar>& arguments) {
    return Group::rows == 1 || arguments.below % Group::rows == 0;
}

// Tiles in all: (items, the other mode's indices, receivers, tiles below). Of the last index of the cut mode some receivers have none.
template <class Group>
__device__ __forceinline__ unsigned scattered_tiles(const scattered_arguments<typename Group::scalar>& arguments) {
    const unsigned rows = unsigned(arguments.rows.lines * arguments.rows.parts_per_line);
    if (!tiles_by_items<Group>(arguments)) return (rows + Group::rows - 1) / Group::rows;
    const unsigned cut = arguments.cuts_inner ? arguments.inner : arguments.outer;
    return rows / Group::rows / cut * arguments.most * arguments.count;
}

template <class Group>
__device__ __forceinline__ scattered_tile
scattered_tile_of(const scattered_arguments<typename Group::scalar>& arguments, unsigned tile) {
    scattered_tile at;
    at.receiver = 0;
    at.begin = arguments.first[0];
    at.end = arguments.first[1];
    at.exists = true;
    if (!tiles_by_items<Group>(arguments)) {
        const unsigned first = tile * Group::rows;
        at.below = first % arguments.below;
        unsigned rest = first / arguments.below;
        at.inner = rest % arguments.inner;
        rest /= arguments.inner;
        at.between = rest % arguments.between;
        rest /= arguments.between;
        at.outer = rest % arguments.outer;
        at.before = rest / arguments.outer;
        const unsigned cut = arguments.cuts_inner ? at.inner : at.outer;
#pragma unroll
        for (unsigned k = 1; k < unsigned(most_receivers);
             ++k)  // constant places: no copy of the arguments in local memory
            if (k < arguments.count && cut >= arguments.first[k]) {
                at.receiver = k;
                at.begin = arguments.first[k];
                at.end = arguments.first[k + 1];
            }
        return at;
    }
    const unsigned each = arguments.below / Group::rows,
                   other = arguments.cuts_inner ? arguments.outer : arguments.inner;
    at.below = tile % each * Group::rows;
    tile /= each;
    // A block's tiles are gridDim.x apart: they go to another receiver each, as far as the turn shifts the receivers.
    const unsigned count = arguments.count, shift = gridDim.x % count == count - 1 ? 0 : 1;
    at.receiver = tile % count;
    tile /= count;
    at.receiver = (at.receiver + tile * each * count / gridDim.x * shift) % count;
    const unsigned index = tile % other;
    tile /= other;
    unsigned cut;
    if (arguments.cuts_inner) {
        cut = tile % arguments.most;
        tile /= arguments.most;
        at.between = tile % arguments.between;
        at.before = tile / arguments.between;
    } else {
        at.between = tile % arguments.between;
        tile /= arguments.between;
        cut = tile % arguments.most;
        at.before = tile / arguments.most;
    }
#pragma unroll
    for (unsigned k = 1; k < unsigned(most_receivers); ++k)
        if (k == at.receiver) {
            at.begin = arguments.first[k];
            at.end = arguments.first[k + 1];
        }
    cut += at.begin;
    at.exists = cut < at.end;
    at.outer = arguments.cuts_inner ? index : cut;
    at.inner = arguments.cuts_inner ? cut : index;
    return at;
}

// All tiles of the block. calls: fused_pass.cuh.
template <class Group, class Calls>
__device__ __forceinline__ void scattered_pass(const scattered_arguments<typename Group::scalar>& arguments,
                                               Calls& calls) {
    using scalar = typename Group::scalar;
    static_assert(Group::scattered);
    constexpr int in = Group::count_p(), out = Group::count_q();
    const unsigned rows = unsigned(arguments.rows.lines * arguments.rows.parts_per_line);
    fused_pass<Group>(
        arguments.rows, index_t(scattered_tiles<Group>(arguments)), true,
        [&](index_t tile) {
            const scattered_tile at = scattered_tile_of<Group>(arguments, unsigned(tile));
            scalar* y = arguments.receivers[0];
#pragma unroll
            for (unsigned k = 1; k < unsigned(most_receivers); ++k)
                if (k == at.receiver) y = arguments.receivers[k];
            const unsigned own = at.end - at.begin;
            unsigned outer_extent = own, inner_extent = arguments.whole, outer = at.outer, inner = at.inner;
            if (arguments.cuts_inner) {
                inner_extent = own;
                outer_extent = arguments.whole;
                inner -= at.begin;
                outer += arguments.whole_first;
            } else {
                outer -= at.begin;
                inner += arguments.whole_first;
            }
            const unsigned first =
                (((at.before * arguments.outer + at.outer) * arguments.between + at.between) * arguments.inner +
                 at.inner) *
                    arguments.below +
                at.below;
            const index_t row =
                (((index_t(at.before) * outer_extent + outer) * arguments.between + at.between) * inner_extent +
                 inner) *
                    arguments.below +
                at.below;
            tile_place<scalar> place;
            place.x = arguments.rows.x + index_t(first) * in;
            place.y = y + row * out;
            place.x_row_stride = in;
            place.y_row_stride = out;
            place.x_inner = place.y_inner = 1;
            place.rows = !at.exists ? 0 : rows - first < Group::rows ? int(rows - first) : Group::rows;
            place.run = 1;
            return place;
        },
        calls);
}

template <class Group>
__global__ void __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_scattered(const __grid_constant__ scattered_arguments<typename Group::scalar> arguments) {
    calls_nothing calls;
    scattered_pass<Group>(arguments, calls);
    tell_receivers(arguments.tell);
}

}  // namespace otimes::kernels

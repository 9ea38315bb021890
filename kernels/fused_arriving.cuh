// SPDX-License-Identifier: MIT
// Contract: fused_outer's product, whose X comes from other GPUs while it runs, in portions (arrivals.cuh). With X's elements, but for the
// group's mode, in one row u = (m, o, i), element u belongs to item u / item, and item k to portion k / items. A tile is read
// once all senders have told of its portions.
//
// Requires: as fused_outer; Group::run <= item * items, so that a tile has two portions at most; a group that waits for tiles (fused_pass.cuh); launched
//   so that it may begin before the launch in front ends, which writes X alone, here and elsewhere, and has waited for those before it. Blocks that
//   are placed keep their place while they wait: that launch must have all of its own before (it lets this one begin when all have begun).
// Aliasing: no operand overlaps another one.
// Visibility: it ends behind the launch in front. It stops the context where a portion does not come for `deadline` ns: its sender is lost.
// Called by: the GPU executor, for the first pass behind one that stores into other GPUs.
#pragma once
#include "arrivals.cuh"
#include "fused_outer.cuh"

namespace otimes::kernels {

template <class Storage>
struct arriving_arguments {
    group_arguments<Storage> rows;
    awaited_portions awaited;
    index_t item;    // elements of an item
    unsigned items;  // of a portion
};

// Tiles come in ascending order, and so do their portions.
template <class Group>
struct awaits_portions : calls_nothing {
    static constexpr bool waits_for_tiles = true;
    const arriving_arguments<typename Group::storage>& arguments;
    int seen = -1;  // the last portion that has arrived

    __device__ __forceinline__ explicit awaits_portions(const arriving_arguments<typename Group::storage>& all)
        : arguments(all) {}
    __device__ __forceinline__ void before_load(index_t tile) {
        const index_t inner = arguments.rows.inner, runs = (inner + Group::run - 1) / Group::run;
        const index_t tensor = tile / runs, first = (tile - tensor * runs) * Group::run;
        const index_t last = (first + Group::run < inner ? first + Group::run : inner) - 1;
        const int begin = int(unsigned((tensor * inner + first) / arguments.item) / arguments.items);
        const int end = int(unsigned((tensor * inner + last) / arguments.item) / arguments.items);
        if (end <= seen) return;
        if (threadIdx.x < 32)
            for (int portion = begin > seen ? begin : seen + 1; portion <= end; ++portion)
                await_portion(arguments.awaited, unsigned(portion));
        __syncthreads();
        seen = end;
    }
};

template <class Group>
__global__ void __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_arriving(const __grid_constant__ arriving_arguments<typename Group::storage> arguments) {
    static_assert(Group::rows == 1 && Group::modes == 1 && Group::inputs == 1 && !Group::addend && !Group::sums_up);
    awaits_portions<Group> awaits(arguments);
    outer_pass<Group>(arguments.rows, awaits);
    wait_for_earlier_launches();
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// Contract: fused_scattered, whose receivers are told while it runs of what they have, in portions: item k of a receiver's matrix belongs to portion
// k / tell.items. A warpgroup of its own does that: behind stores to another GPU a fence, or the answer of memory, takes microseconds, which the
// threads that compute would wait for at their next barrier.
//
// Requires: as fused_scattered; code for sm_90a; blocks of Group::threads + 128 threads; a group of 128 threads whose trips have no barriers of their
//   own, finished in shared memory; below a multiple of Group::rows; tell.items > 0.
// Registers: a multiprocessor is to hold a block of another kernel beside this one's: two blocks of 256 threads take 128 each, and the warpgroup that
//   computes has those that the other one leaves it.
// Called by: the GPU executor, for the last pass of a stage whose output goes to other ranks, if they begin with what has arrived.
#pragma once
#include "fused_scattered.cuh"
#include "warpgroup_unit.cuh"

namespace otimes::kernels {

// Of the tiles of a block: turn i's is tiles[i % 4], if i < given. Shared.
struct dealt_tiles {
    unsigned tiles[4];
    unsigned given;
    // Warps that have stored a tile, of all tiles: all of one before any of the next, since barriers lie between.
    unsigned stored;
};

template <int Threads>
struct takes_dealt_tiles : calls_nothing {
    static constexpr bool deals_tiles = true;
    dealt_tiles& block;

    __device__ __forceinline__ explicit takes_dealt_tiles(dealt_tiles& of_block) : block(of_block) {}
    __device__ __forceinline__ index_t tile_of_turn(unsigned turn) const {
        while (load_acquire_of_block(&block.given) <= turn) let_others_go_on();
        return block.tiles[turn % 4];
    }
    __device__ __forceinline__ void after_store() const {
        __syncwarp();
        if (threadIdx.x % 32u == 0) add_release_of_block(&block.stored, 1u);
    }
    __device__ __forceinline__ static void barrier() { barrier_of_first<Threads>(); }
};

// By one warp: deals the tiles in their order to the blocks that come for them, so that a portion is not late because of one block whose stores are, and
// tells of those that are stored. Two tiles at a time: that at work, and the next.
template <class Group>
__device__ __forceinline__ void deal_and_tell(const scattered_arguments<typename Group::scalar>& arguments,
                                              dealt_tiles& block) {
    const unsigned tiles = scattered_tiles<Group>(arguments), items = arguments.tell.items;
    const unsigned other = arguments.cuts_inner ? arguments.outer : arguments.inner;
    const unsigned tiles_of_item = other * (arguments.below / Group::rows);
    const unsigned before = unsigned(arguments.rows.lines * arguments.rows.parts_per_line) / arguments.below /
                            (arguments.outer * arguments.between * arguments.inner);
    unsigned given = 0, told = 0, tile = blockIdx.x;  // the last one given
    const auto give = [&] {
        if (threadIdx.x % 32u == 0) {
            block.tiles[given % 4] = tile;
            add_release_of_block(&block.given, 1u);
        }
        ++given;
    };
    const auto deal = [&] {
        if (threadIdx.x % 32u == 0) tile = atomicAdd(arguments.tell.tiles_dealt, 1u) + gridDim.x;
        tile = __shfl_sync(0xffffffffu, tile, 0);
        give();
    };
    give();
    if (tile < tiles) deal();
    unsigned at_work = blockIdx.x;
    while (at_work < tiles) {
        // Known before the tile is stored: its portion, and how many tiles that has.
        const scattered_tile at = scattered_tile_of<Group>(arguments, at_work);
        const unsigned own = at.end - at.begin, all = before * arguments.between * own;  // items of this receiver
        const unsigned item = arguments.cuts_inner
                                  ? (at.before * arguments.between + at.between) * own + at.inner - at.begin
                                  : (at.before * own + at.outer - at.begin) * arguments.between + at.between;
        const unsigned portion = item / items, left = all - portion * items;
        const unsigned tiles_of_portion = (left < items ? left : items) * tiles_of_item;
        at_work = tile;
        if (threadIdx.x % 32u == 0)
            while (load_acquire_of_block(&block.stored) / unsigned(Group::threads / 32) == told) take_a_nap();
        ++told;
        __syncwarp();
        if (tile < tiles) deal();
        __threadfence();  // whoever tells last makes it the system's
        if (threadIdx.x % 32u == 0 && at.exists) tell_of_tile(arguments.tell, portion, at.receiver, tiles_of_portion);
    }
    if (threadIdx.x % 32u != 0 || atomicAdd(arguments.tell.blocks_done, 1u) != gridDim.x - 1) return;
    *arguments.tell.tiles_dealt = 0;
    *arguments.tell.blocks_done = 0;
}

template <class Group>
__global__ void __launch_bounds__(Group::threads + 128, 2)
    fused_telling(const __grid_constant__ scattered_arguments<typename Group::scalar> arguments) {
    static_assert(Group::threads == 128 && Group::trips_without_barriers());
    __shared__ dealt_tiles block;
    if (threadIdx.x == 0) block.given = block.stored = 0;
    __syncthreads();
    if (threadIdx.x < unsigned(Group::threads)) {
        take_registers<208>();
        takes_dealt_tiles<Group::threads> calls(block);
        scattered_pass<Group>(arguments, calls);
    } else {
        release_registers<40>();
        if (threadIdx.x >= unsigned(Group::threads) + 32) return;
        after_earlier_launches();
        deal_and_tell<Group>(arguments, block);
    }
}

}  // namespace otimes::kernels

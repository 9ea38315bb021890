// SPDX-License-Identifier: MIT
// The body that both fused kernels share: place the factors, then tile after tile load, trips, store.
// Blocks are persistent: tile b, b + gridDim.x, ...; the blocks of a cluster share a tile, each holds its part of one mode (Group::cut)
// and replaces the other modes there; then each replaces that mode (and, in a pair trip, the next) for its share of the other
// indices, reading the others' shared memory.
#pragma once
#include "tile_schedules.cuh"

namespace otimes::kernels {

// What a pass calls whose tiles come from other GPUs while it runs, or go there.
struct calls_nothing {
    static constexpr bool waits_for_tiles = false;  // instead of for the launches in front
    static constexpr bool deals_tiles = false;      // tile_of_turn: which tile the block does next
    __device__ __forceinline__ static index_t tile_of_turn(unsigned turn) {
        return blockIdx.x + index_t(turn) * gridDim.x;
    }
    __device__ __forceinline__ void before_load(index_t /*tile*/) {}
    __device__ __forceinline__ void after_store() {}  // of tiles that are finished in shared memory
    __device__ __forceinline__ static void barrier() { __syncthreads(); }
};

// locate(tile) -> tile_place.
template <class Group, class Locate, class Calls>
__device__ __forceinline__ void fused_pass(const group_arguments<typename Group::storage>& arguments, index_t tiles,
                                           bool y_wide, Locate&& locate, Calls& calls) {
    using scalar = typename Group::scalar;
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    static_assert(Group::direct || Group::cluster == 1);
    constexpr bool waits_for_tiles = Calls::waits_for_tiles;
    static_assert(!waits_for_tiles || (Group::slots == 0 && Group::terms == 1 && !Group::ring && !Group::rotates &&
                                       !Group::refills && !Group::widens && Group::cluster == 1 && Group::slices == 1));
    static_assert(!Calls::deals_tiles ||
                  (!Group::direct && Group::terms == 1 && Group::slots == 1 && Group::segments == 1 && !Group::ring &&
                   !Group::rotates && !Group::widens && !Group::flows && !Group::holds_factor));

    own_sum<scalar, Group::sums_up> own;
    const typename Group::last_step epilogue_step = last_step_for<Group>(arguments, y_wide, own);
    const bool factors_first = !waits_for_tiles && Group::places_early && arguments.factors_ready;
    const bool x_first = !waits_for_tiles && Group::places_early && arguments.x_ready;
    const bool waits_late = Group::waits_late && x_first;
    if (!factors_first && !waits_for_tiles) after_earlier_launches();
    const tile_schedules<Group, Locate, Calls> schedules{
        arguments,     tiles,   y_wide,    locate, calls, epilogue_step, reinterpret_cast<scalar*>(shared_bytes),
        factors_first, x_first, waits_late};
    if constexpr (Group::widens)
        schedules.widened_tiles();
    else if constexpr (Group::ring)
        schedules.ring_of_slices();
    else if constexpr (Group::rotates)
        schedules.rotating_halves();
    else if constexpr (Group::slots == 0) {
        typename tile_schedules<Group, Locate, Calls>::own_tiles own_tiles;
        if (own_tiles.tile >= tiles) {
            if (factors_first) after_earlier_launches();
            if constexpr (Group::sums_up) store_sum<Group>(own.value, arguments, shared_bytes);
            return;
        }
        tile_place<typename Group::storage> place = locate(own_tiles.tile);
        const auto send_for_first_tile = [&] {
            calls.before_load(own_tiles.tile);
            load_part<Group>(place, schedules.sMain + (Group::kept ? Group::main_count : 0), own_tiles.part);
            commit_copies();
        };
        if constexpr (Group::refills)
            schedules.refilled_tiles(own_tiles, place, send_for_first_tile);
        else if constexpr (Group::terms == 1)
            schedules.one_term(own_tiles, place, send_for_first_tile);
        else if constexpr (Group::kept)
            schedules.kept_terms(own_tiles, place, send_for_first_tile);
        else
            schedules.several_terms(own_tiles, place, send_for_first_tile);
    } else if constexpr (Group::flows && has_stage_barriers)
        schedules.flowing_stages();
    else
        schedules.staged_parts();
    if constexpr (Group::sums_up) store_sum<Group>(own.value, arguments, shared_bytes);
}

template <class Group, class Locate>
__device__ __forceinline__ void fused_pass(const group_arguments<typename Group::storage>& arguments, index_t tiles,
                                           bool y_wide, Locate&& locate) {
    calls_nothing calls;
    fused_pass<Group>(arguments, tiles, y_wide, locate, calls);
}

}  // namespace otimes::kernels

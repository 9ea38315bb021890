// SPDX-License-Identifier: MIT
// The schedules by which a block of a fused pass goes through its tiles: when a tile is sent for, where it stands in shared memory, and which barriers
// separate its arrival, its trips and the next arrival. Which one is a group's own mode_group.cuh says; fused_pass.cuh calls it.
#pragma once
#include "place_factors.cuh"
#include "ring_pass.cuh"

namespace otimes::kernels {

template <class Group, int Step, int Part, bool ToY, class Next = no_next_tile>
__device__ __forceinline__ void run_trip(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                         const typename Group::scalar* sFactors,
                                         const tile_place<typename Group::storage>& place,
                                         const typename Group::last_step& last_step,
                                         const group_arguments<typename Group::storage>& arguments,
                                         const Next& next = {}) {
    if constexpr (Group::is_pair_of_eights(Step))
        pair_trip_of_eights<Group, Step, ToY>(sFrom, sTo, sFactors, place, last_step);
    else if constexpr (Group::is_pair(Step))
        pair_trip<Group, Step, ToY>(sFrom, sTo, sFactors, place, last_step, arguments);
    else if constexpr (Group::steps::unit(Step) > 0 && Group::is_complex)
        complex_trip<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step, arguments);
    else if constexpr (Group::steps::unit(Step) > 0)
        matrix_trip<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step, arguments, pairs_in_shared{},
                                            replace{}, next);
    else
        multiply_add_trip<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step);
}

// What all schedules share. locate(tile) -> tile_place; calls: fused_pass.cuh.
template <class Group, class Locate, class Calls>
struct tile_schedules {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using last_step_type = typename Group::last_step;
    using place_type = tile_place<storage>;
    using steps = typename Group::steps;

    const group_arguments<storage>& arguments;
    const index_t tiles;
    const bool y_wide;
    Locate& locate;
    Calls& calls;
    const last_step_type& epilogue_step;
    scalar* const sFactors;  // (factor_count of each level); shared memory begins here
    // The launch in front leaves the factors alone, and X: they may be read while it ends.
    const bool factors_first, x_first;
    const bool waits_late;                                  // with the last trip for the launch in front
    scalar* const sMain = sFactors + Group::main_offset;    // (Rows, D_1, .., D_n, Run)
    scalar* const sStage = sFactors + Group::stage_offset;  // (Slots, one part of the tile)

    // The trips of a tile that stands in sMain, from trip From on, and its store. A barrier before each trip and before a store out of sMain; none at
    // the end.
    template <class From>
    __device__ __forceinline__ void steps_of(From, const place_type& place, const scalar* sF,
                                             const last_step_type& last_step,
                                             const group_arguments<storage>& now) const {
        constexpr int last = steps::count - 1;
        for_constants<From::value, steps::count>([&](auto s) {
            constexpr int step = decltype(s)::value;
            if constexpr (step == last && Group::cluster > 1)
                cluster_barrier();
            else
                calls.barrier();
            if (step == last && waits_late) after_earlier_launches();
            run_trip<Group, step, step == last || Group::swizzled ? 1 : Group::cluster, step == last && Group::direct>(
                sMain, sMain, sF, place, last_step, now);
        });
        if constexpr (!Group::direct) {
            calls.barrier();
            store_tile<Group>(place, sMain, last_step);
            calls.after_store();
        }
    }
    template <class From>
    __device__ __forceinline__ void middle_and_last(From from, const place_type& place) const {
        steps_of(from, place, sFactors, epilogue_step, arguments);
    }

    // Behind a launch that leaves the factors alone they are placed while it ends, and X too is sent for where it leaves that alone; else the
    // first tile is sent for first.
    template <class Send>
    __device__ __forceinline__ void place_and_send(const group_arguments<storage>& now,
                                                   const Send& send_for_first_tile) const {
        if (!factors_first || x_first) send_for_first_tile();
        if constexpr (copies_factors<Group>())
            copy_factors<Group>(now, sFactors);
        else
            place_factors<Group>(now, sFactors);
        if (factors_first && !waits_late) after_earlier_launches();
        if (factors_first && !x_first) send_for_first_tile();
    }

    __device__ __forceinline__ stage_barrier* stage_barriers() const {
        return reinterpret_cast<stage_barrier*>(reinterpret_cast<unsigned char*>(sFactors) +
                                                Group::stage_barriers_offset);
    }

    // 16-bit elements arrive in a stage as they stand in memory and become floats on their way to sMain. Behind the barrier that says that they have
    // arrived the next tile is sent for to the other stage; with one stage, behind a barrier of its own, when that has been read.
    __device__ __forceinline__ void widened_tiles() const {
        int slot = 0;
        const auto send_for = [&](index_t tile, int to) {
            if (tile < tiles)
                load_raw<Group>(locate(tile), reinterpret_cast<storage*>(sStage + to * Group::slot_count));
            commit_copies();
        };
        send_for(blockIdx.x, 0);
        place_factors<Group>(arguments, sFactors);
#pragma unroll 1
        for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            wait_for_copies<0>();
            __syncthreads();  // all has arrived, and the tile before is done
            if constexpr (Group::slots == 2) send_for(tile + gridDim.x, 1 - slot);
            const place_type place = locate(tile);
            const scalar* const sRaw = sStage + slot * Group::slot_count;
            if constexpr (Group::reads_raw)
                run_trip<Group, 0, 1, steps::count == 1 && Group::direct>(sRaw, sMain, sFactors, place, epilogue_step,
                                                                          arguments);
            else
                widen_tile<Group>(reinterpret_cast<const storage*>(sRaw), sMain);
            if constexpr (Group::slots == 1) {
                __syncthreads();
                send_for(tile + gridDim.x, 0);
            } else
                slot = 1 - slot;
            middle_and_last(constant<(Group::reads_raw ? 1 : 0)>{}, place);
        }
    }

    // The slices of mode 1 in a ring of stages: ring_pass.cuh.
    __device__ __forceinline__ void ring_of_slices() const {
        ring_pass<Group>(tiles, epilogue_step, sFactors, stage_barriers(), locate,
                         [&] { place_factors<Group>(arguments, sFactors); });
    }

    // A tile's halves in two of three places in sMain (mode_group.cuh: rotates). A stage barrier for each half says that it has arrived, the block's
    // barriers separate the trips: all but the last within a half, the last one over both.
    __device__ __forceinline__ void rotating_halves() const {
        static_assert(has_stage_barriers || !Group::rotates);
        constexpr int last = steps::count - 1;
        index_t tile = blockIdx.x;
        const index_t tile_step = gridDim.x;
        stage_barrier* const arrived = stage_barriers();
        if (threadIdx.x == 0)
            for (int half = 0; half < 2; ++half) set_up(arrived[half], Group::threads);
        __syncthreads();
        const auto send_for = [&](const place_type& from, int half, int at) {
            load_part<Group>(from, sMain + at, half);
            copies_arrive(arrived[half]);
        };
        // The places of this tile's halves, and a free one: that of the second half of the tile before.
        constexpr int each = Group::slot_count;
        int first = 0, second = each, free = 2 * each;
        place_type place = locate(tile < tiles ? tile : 0);
        place_and_send(arguments, [&] {
            if (tile < tiles) {
                send_for(place, 0, first);
                send_for(place, 1, second);
            }
        });
        __syncthreads();
#pragma unroll 1
        for (unsigned turn = 0; tile < tiles; ++turn) {
            tile += tile_step;
            const bool more = tile < tiles;
            const place_type coming = more ? locate(tile) : place;
#pragma unroll 1
            for (int half = 0; half < 2; ++half) {
                // The second half has arrived: every warp has refilled its place, and so is done with the tile before.
                wait(arrived[half], turn);
                if (half == 0)
                    ask_for_tile<Group>(place);
                else if (more)
                    send_for(coming, 0, free);
                scalar* const sHalf = sMain + (half == 0 ? first : second);
                for_constants<0, last>([&](auto s) {
                    constexpr int step = decltype(s)::value;
                    if constexpr (step > 0) __syncthreads();
                    run_trip<Group, step, 2, false>(sHalf, sHalf, sFactors, place, epilogue_step, arguments);
                });
            }
            __syncthreads();
            const next_half<Group> next(coming, more, second - first - each);
            run_trip<Group, last, 1, true>(sMain + first, sMain + first, sFactors, place, epilogue_step, arguments,
                                           next);
            if (more && !next.refills()) {
                __syncthreads();
                load_part<Group>(coming, sMain + first, 1);
            }
            copies_arrive(arrived[1]);
            place = coming;
            const int was_second = second;
            second = first;
            first = free;
            free = was_second;
        }
    }

    // Of a block whose tiles are loaded where they are worked on. Its schedules are given the first tile's place in memory, and how it is sent for: it is
    // on its way while the factors are placed.
    struct own_tiles {
        index_t tile = blockIdx.x / (Group::cluster * Group::slices);  // at work, or on its way
        const index_t tile_step = gridDim.x / (Group::cluster * Group::slices);
        const int part = Group::cluster > 1 ? cluster_rank() : 0;
    };

    // One place, sMain. The last trip sends for the next tile's words where it has read this one's (mode_group.cuh: refills); where they cannot be
    // sent for so, all are behind a barrier after that trip.
    template <class Send>
    __device__ __forceinline__ void refilled_tiles(own_tiles& own, place_type& place,
                                                   const Send& send_for_first_tile) const {
        constexpr int last = steps::count - 1;
        place_and_send(arguments, send_for_first_tile);
        ask_for_tile<Group>(place);
#pragma unroll 1
        while (true) {
            wait_for_copies<0>();
            for_constants<0, last>([&](auto s) {
                constexpr int step = decltype(s)::value;
                __syncthreads();
                run_trip<Group, step, 1, false>(sMain, sMain, sFactors, place, epilogue_step, arguments);
            });
            __syncthreads();
            own.tile += own.tile_step;
            const next_tile<Group> next(locate(own.tile < tiles ? own.tile : own.tile - own.tile_step),
                                        own.tile < tiles);
            run_trip<Group, last, 1, true>(sMain, sMain, sFactors, place, epilogue_step, arguments, next);
            if (own.tile >= tiles) break;
            place = locate(own.tile);
            if (!next.refills()) {
                __syncthreads();
                load_part<Group>(place, sMain, own.part);
            }
            commit_copies();
            if constexpr (Group::reads_y) wait_for_copies<0>();
            ask_for_tile<Group>(place);
        }
    }

    // One place, sMain: a barrier behind the last trip, then the next tile is sent for.
    template <class Send>
    __device__ __forceinline__ void one_term(own_tiles& own, place_type& place, const Send& send_for_first_tile) const {
        arguments_of_tile<Group> of_tile(arguments, own.tile);
        place_and_send(of_tile.now, send_for_first_tile);
#pragma unroll 1
        while (true) {
            wait_for_copies<0>();
            ask_for_tile<Group>(place);
            own.tile += own.tile_step;
            if constexpr (Group::asks_ahead && !Calls::waits_for_tiles)
                if (own.tile < tiles) ask_for_part<Group>(locate(own.tile), own.part);
            steps_of(constant<0>{}, place, sFactors, epilogue_step, of_tile.now);
            if constexpr (Group::cluster > 1) cluster_barrier();  // also before the end: others may still read here
            if (own.tile >= tiles) break;
            if constexpr (Group::cluster == 1) calls.barrier();
            place = locate(own.tile);
            calls.before_load(own.tile);
            load_part<Group>(place, sMain, own.part);
            commit_copies();
            of_tile.follow(own.tile, sFactors);
        }
    }

    // Where a term's factors stand: those of all terms, or of the one at work.
    __device__ __forceinline__ const scalar* factors_of(int term) const {
        return sFactors + (Group::factors_stay ? term * Group::factors_each : 0);
    }
    // Those of all terms, or of the first one.
    __device__ __forceinline__ void place_first_factors() const {
#pragma unroll 1
        for (int t = 0; t < (Group::factors_stay ? Group::terms : 1); ++t)
            place_factors<Group>(arguments_of_term<Group>(arguments, t), sFactors + t * Group::factors_each);
    }

    // Each tile once for every term, X from its own place behind sMain; the next X is on its way as soon as the last term has read this one. A barrier
    // before each trip, and one before the threads add what a term left in sMain to their own elements.
    template <class Send>
    __device__ __forceinline__ void kept_terms(own_tiles& own, place_type& place,
                                               const Send& send_for_first_tile) const {
        scalar* const sX = sMain + Group::main_count;
        send_for_first_tile();
        place_first_factors();
        const last_step_type last_step(scalar(1), arguments.beta, y_wide, arguments.c_offset);
#pragma unroll 1
        while (true) {
            wait_for_copies<0>();
            const place_type done = place;
            own.tile += own.tile_step;
            own_elements<Group> sum;
            const auto add_term = [&](auto first, int term) {
                const group_arguments<storage> now = arguments_of_term<Group>(arguments, term);
                const scalar* sF = factors_of(term);
                for_constants<0, steps::count>([&](auto s) {
                    constexpr int step = decltype(s)::value;
                    __syncthreads();
                    if constexpr (step == 1)
                        if (term == Group::terms - 1 && own.tile < tiles) {
                            place = locate(own.tile);
                            load_part<Group>(place, sX, own.part);
                            commit_copies();
                        }
                    run_trip<Group, step, 1, false>(step == 0 ? sX : sMain, sMain, sF, done, last_step, now);
                });
                __syncthreads();
                if constexpr (!Group::factors_stay)  // of the next term, or of the next tile's first one
                    place_factors<Group>(arguments_of_term<Group>(arguments, term + 1 < Group::terms ? term + 1 : 0),
                                         sFactors);
                sum.template add<decltype(first)::value != 0>(
                    sMain, term == 0 ? arguments.alpha : arguments.more_alpha[term == 0 ? 0 : term - 1]);
            };
            add_term(constant<1>{}, 0);
#pragma unroll 1
            for (int term = 1; term < Group::terms; ++term) add_term(constant<0>{}, term);
            sum.store(done, last_step);
            if (own.tile >= tiles) break;
            if constexpr (steps::count == 1) {
                __syncthreads();
                place = locate(own.tile);
                load_part<Group>(place, sX, own.part);
                commit_copies();
            }
        }
    }

    // Each tile once for every term, in one place, sMain: X comes from memory for the first one and from L2 for the others, behind a barrier, which add
    // to what they find in Y there: every thread its own elements.
    template <class Send>
    __device__ __forceinline__ void several_terms(own_tiles& own, place_type& place,
                                                  const Send& send_for_first_tile) const {
        send_for_first_tile();
        place_first_factors();
        int term = 0;
#pragma unroll 1
        while (true) {
            wait_for_copies<0>();
            last_step_type last_step = epilogue_step;
            if (term > 0) {
                last_step.alpha = arguments.more_alpha[term - 1];
                last_step.beta = scalar(1);
                last_step.reads_y = true;
                if constexpr (Group::addend) last_step.c_offset = 0;
            }
            const group_arguments<storage> now = arguments_of_term<Group>(arguments, term);
            steps_of(constant<0>{}, place, factors_of(term), last_step, now);
            if (++term == Group::terms) {
                term = 0;
                own.tile += own.tile_step;
            }
            if constexpr (Group::cluster > 1) cluster_barrier();
            if (own.tile >= tiles) break;
            if constexpr (Group::cluster == 1) __syncthreads();
            if (term == 0) place = locate(own.tile);
            load_part<Group>(place, sMain, own.part);
            commit_copies();
            if constexpr (!Group::factors_stay)
                place_factors<Group>(arguments_of_term<Group>(arguments, term), sFactors);
        }
    }

    // Stages alone, nothing in sMain, and two barriers for each. A warp waits for a tile's copies and, before it sends for a later tile, for the other
    // warps, which may still read what that takes the place of. So the warps of a scheduler need not be at the same point: while one
    // stores, another has the matrix unit.
    __device__ __forceinline__ void flowing_stages() const {
        stage_barrier* const full = stage_barriers();
        stage_barrier* const empty = full + Group::slots;
        if (threadIdx.x == 0)
            for (int slot = 0; slot < Group::slots; ++slot) {
                set_up(full[slot], Group::threads);
                set_up(empty[slot], Group::threads / 32);
            }
        __syncthreads();
        const auto send_for = [&](index_t tile, int slot) {
            const place_type place = locate(tile);
            load_part<Group>(place, sStage + slot * Group::slot_count, 0);
            copies_arrive(full[slot]);
        };
        const auto start_all = [&] {
#pragma unroll 1
            for (int slot = 0; slot < Group::slots; ++slot) {
                const index_t tile = blockIdx.x + index_t(slot) * gridDim.x;
                if (tile < tiles) send_for(tile, slot);
            }
        };
        // Doubles go to registers from where the factor stands; the stages have the place of a factor that comes by shared memory.
        constexpr bool in_place = Group::holds_factor && Group::words == 2;
        if constexpr (in_place || !Group::holds_factor) start_all();
        const auto held = [&] {
            if constexpr (in_place) {
                held_pairs<Group, 0> pairs;
                pairs.read(arguments);
                return pairs;
            } else {
                place_factors<Group>(arguments, sFactors);
                __syncthreads();
                if constexpr (Group::holds_factor) {
                    held_pairs<Group, 0> pairs;
                    pairs.read(sFactors + Group::factor_offset(steps::first(0)));
                    __syncthreads();
                    start_all();
                    return pairs;
                } else
                    return pairs_in_shared{};
            }
        }();
        int slot = 0;
        unsigned turn = 0;
#pragma unroll 1
        for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            // What comes next takes the stage of the tile before. Half of the warps send for their part of it before they work on
            // this tile, half after it, so that the two of a scheduler do not leave the unit at the same time; with two stages that
            // would be too late.
            const auto send_for_next = [&] {
                const index_t next = tile + index_t(Group::slots - 1) * gridDim.x;
                if (tile == blockIdx.x || next >= tiles) return;
                const int before = slot == 0 ? Group::slots - 1 : slot - 1;
                wait(empty[before], slot == 0 ? turn - 1u : turn);
                send_for(next, before);
            };
            const bool late = Group::slots > 2 && threadIdx.x < unsigned(Group::threads / 2);
            if (!late) send_for_next();
            wait(full[slot], turn);
            const place_type place = locate(tile);
            ask_for_tile<Group>(place);
            const scalar* const sFrom = sStage + slot * Group::slot_count;
            if constexpr (Group::holds_factor)
                matrix_trip<Group, 0, 1, true>(sFrom, sMain, sFactors, place, epilogue_step, arguments, held);
            else
                run_trip<Group, 0, 1, true>(sFrom, sMain, sFactors, place, epilogue_step, arguments);
            __syncwarp();
            if (threadIdx.x % 32u == 0) arrive(empty[slot]);
            if (late) send_for_next();
            if (++slot == Group::slots) {
                slot = 0;
                ++turn;
            }
        }
    }

    // Parts of this block's tiles in one sequence; `slots` of them are on their way at any time, each to its stage. The first trip takes a part from there
    // to sMain, or to Y: a barrier before it says that the part has arrived, one behind it that the stage has been read.
    __device__ __forceinline__ void staged_parts() const {
        constexpr int parts = Group::segments;
        index_t coming_tile = blockIdx.x;
        int coming_part = 0;
        unsigned coming_turn = 0, turn = 0;  // of tiles that are dealt
        const auto start_next = [&](int slot) {
            if constexpr (Calls::deals_tiles)
                if (coming_tile < tiles) coming_tile = calls.tile_of_turn(coming_turn++);
            if (coming_tile < tiles) {
                const place_type coming = locate(coming_tile);
                load_part<Group>(coming, sStage + slot * Group::slot_count, coming_part);
                if (++coming_part == parts) {
                    coming_part = 0;
                    if constexpr (!Calls::deals_tiles) coming_tile += gridDim.x;
                }
            }
            commit_copies();
        };
        const auto start_all = [&] {
#pragma unroll 1
            for (int slot = 0; slot < Group::slots; ++slot) start_next(slot);
        };
        if constexpr (!Group::holds_factor) start_all();
        place_factors<Group>(arguments, sFactors);
        const auto held = [&] {
            if constexpr (Group::holds_factor) {
                held_pairs<Group, 0> pairs;
                calls.barrier();
                pairs.read(sFactors + Group::factor_offset(steps::first(0)));
                calls.barrier();  // the stages take the factor's place
                start_all();
                return pairs;
            } else
                return pairs_in_shared{};
        }();
        int slot = 0;
#pragma unroll 1
        for (index_t tile = blockIdx.x; tile < tiles;
             tile = Calls::deals_tiles ? calls.tile_of_turn(++turn) : tile + gridDim.x) {
            const place_type place = locate(tile);
#pragma unroll 1
            for (int part = 0; part < parts; ++part) {
                wait_for_copies<Group::slots - 1>();
                if (part == 0) ask_for_tile<Group>(place);
                calls.barrier();
                if constexpr (Group::holds_factor)
                    matrix_trip<Group, 0, parts, true>(sStage + slot * Group::slot_count, sMain, sFactors, place,
                                                       epilogue_step, arguments, held);
                else if constexpr (steps::count == 1 && Group::direct)
                    run_trip<Group, 0, parts, true>(sStage + slot * Group::slot_count, sMain, sFactors, place,
                                                    epilogue_step, arguments);
                else
                    run_trip<Group, 0, parts, false>(sStage + slot * Group::slot_count,
                                                     sMain + part * (Group::p(1) / parts) * Group::stride(1), sFactors,
                                                     place, epilogue_step, arguments);
                calls.barrier();
                start_next(slot);
                slot = slot + 1 == Group::slots ? 0 : slot + 1;
            }
            middle_and_last(constant<1>{}, place);
        }
    }
};

}  // namespace otimes::kernels

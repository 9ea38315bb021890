// SPDX-License-Identifier: MIT
// The body that both fused kernels share: place the factors, then tile after tile load, trips, store.
// Blocks are persistent: tile b, b + gridDim.x, ...; the blocks of a cluster share a tile, each holds its part of one mode (Group::cut)
// and replaces the other modes there; then each replaces that mode (and, in a pair trip, the next) for its share of the other
// indices, reading the others' shared memory.
#pragma once
#include "launch_order.cuh"
#include "pair_trip.cuh"
#include "ring_pass.cuh"

namespace otimes::kernels {

// Element of a level's factor in shared memory, [P][Q rounded up]; 0 behind its end.
template <class Group, int Level>
__device__ __forceinline__ typename Group::scalar read_factor_element(
    const group_arguments<typename Group::storage>& arguments, int element) {
    constexpr int pitch = Group::factor_pitch(Level);
    const int p = int(unsigned(element) / unsigned(pitch)), q = int(unsigned(element) % unsigned(pitch));
    const int first_q =
        Group::slices > 1 && Level == Group::modes ? int(blockIdx.x % unsigned(Group::slices)) * Group::q(Level) : 0;
    return p < Group::p(Level) && q < Group::q(Level)
               ? widen<typename Group::scalar>(
                     arguments.factor[Level - 1][p * arguments.factor_p_stride[Level - 1] +
                                                 (first_q + q) * arguments.factor_q_stride[Level - 1]])
               : typename Group::scalar(0);
}

// Elements of a factor that one thread places.
template <class Group>
__host__ __device__ constexpr int factor_share(int level) {
    const int items = Group::matrix_level(level) ? Group::unit_p(level) * Group::unit_q(level) / 2
                                                 : Group::p(level) * Group::factor_pitch(level);
    return (items + Group::threads - 1) / Group::threads * (Group::matrix_level(level) ? 2 : 1);
}
template <class Group>
__host__ __device__ constexpr int factor_share_before(int level) {
    int n = 0;
    for (int l = 1; l < level; ++l) n += factor_share<Group>(l);
    return n;
}

template <class Group>
__host__ __device__ constexpr bool one_fragment_each() {
    for (int l = 1; l <= Group::modes; ++l)
        if (Group::matrix_level(l) && factor_share<Group>(l) > 2) return false;
    return true;
}

// Factor `Level` -> shared memory, few elements at a time.
template <class Group, int Level>
__device__ __forceinline__ void place_factor(const group_arguments<typename Group::storage>& arguments,
                                             typename Group::scalar* sFactors) {
    typename Group::scalar* sF = sFactors + Group::factor_offset(Level);
    if constexpr (Group::factor_in_memory(Level))
        return;
    else if constexpr (Group::matrix_level(Level))
        place_fragments<Group, fragment_shape<Group, Level>>(arguments, sF);
    else {
        constexpr int elements = Group::p(Level) * Group::factor_pitch(Level);
#pragma unroll 4
        for (int element = int(threadIdx.x); element < elements; element += Group::threads)
            sF[element] = read_factor_element<Group, Level>(arguments, element);
    }
}

// Small factors are all on their way before the first of them is stored; of larger ones four elements at a time.
template <class Group>
__device__ __forceinline__ void place_factors(const group_arguments<typename Group::storage>& arguments,
                                              typename Group::scalar* sFactors) {
    using scalar = typename Group::scalar;
    constexpr int share = factor_share_before<Group>(Group::modes + 1);
    constexpr bool registers_left =
        share * Group::words <= 48 &&
        Group::threads * Group::blocks_per_multiprocessor * (share * Group::words + 104) <= 65536;
    constexpr bool together = registers_left && one_fragment_each<Group>();
    scalar rF[together ? share : 1];  // (level, of this thread)
    if constexpr (together)
        for_constants<1, Group::modes + 1>([&](auto l) {
            constexpr int level = decltype(l)::value, at = factor_share_before<Group>(level),
                          count = factor_share<Group>(level);
            if constexpr (Group::matrix_level(level)) {
                using shape = fragment_shape<Group, level>;
#pragma unroll
                for (int i = 0; i < count / 2; ++i) {
                    const int slot = int(threadIdx.x) + i * Group::threads;
                    if (slot < shape::slots) read_fragment<shape>(arguments, slot, rF + at + 2 * i);
                }
            } else {
#pragma unroll
                for (int i = 0; i < count; ++i)
                    rF[at + i] = read_factor_element<Group, level>(arguments, int(threadIdx.x) + i * Group::threads);
            }
        });
    for_constants<1, Group::modes + 1>([&](auto l) {
        constexpr int level = decltype(l)::value, at = factor_share_before<Group>(level),
                      count = factor_share<Group>(level);
        scalar* sF = sFactors + Group::factor_offset(level);
        if constexpr (!together)
            place_factor<Group, level>(arguments, sFactors);
        else if constexpr (Group::matrix_level(level)) {
            using shape = fragment_shape<Group, level>;
#pragma unroll
            for (int i = 0; i < count / 2; ++i) {
                const int slot = int(threadIdx.x) + i * Group::threads;
                if (slot < shape::slots) store_fragment<Group, shape>(sF, slot, rF + at + 2 * i);
            }
        } else {
            constexpr int elements = Group::p(level) * Group::factor_pitch(level);
#pragma unroll
            for (int i = 0; i < count; ++i) {
                const int element = int(threadIdx.x) + i * Group::threads;
                if (element < elements) sF[element] = rF[at + i];
            }
        }
    });
    if constexpr (Group::any_warpgroup()) fence_for_unit();
}

// All factors have one size, and few elements: they are copied as one.
template <class Group>
__host__ __device__ constexpr bool factors_alike() {
    const int each = Group::p(1) * Group::factor_pitch(1);
    for (int l = 2; l <= Group::modes; ++l)
        if (Group::p(l) != Group::p(1) || Group::factor_pitch(l) != Group::factor_pitch(1) ||
            (Group::q(l) != Group::q(1) && (l < Group::modes || Group::slices == 1)))
            return false;
    return each % Group::vector == 0 && Group::modes * each <= 4 * Group::threads;
}

// Groups whose factors go to shared memory by asynchronous copies, in few instructions a piece. A kernel of few tiles waits for them: taking
// apart the index of every element took half of the time of 52x65 to 50x20 (docs/notebook/gpu.md). Few elements a thread of
// factors of several sizes are read into registers faster.
template <class Group>
__host__ __device__ constexpr bool copies_factors() {
    using scalar = typename Group::scalar;
    return Group::slots == 0 && Group::terms == 1 && Group::all_multiply_adds() &&
           (is_same<scalar, float> || is_same<scalar, double>)&&(factors_alike<Group>() ||
                                                                 factor_share_before<Group>(Group::modes + 1) > 8);
}

// F[p, q] -> sF[p][q], in pieces of Width neighbours: a thread keeps its place in a row and goes from row to row.
template <class Group, int Level, int Width>
__device__ __forceinline__ void copy_factor(const typename Group::scalar* gF, index_t p_stride, index_t q_stride,
                                            typename Group::scalar* sF) {
    constexpr int P = Group::p(Level), pitch = Group::factor_pitch(Level), pieces = Group::q(Level) / Width;
    constexpr auto lanes_of = [](int wanted) {
        int n = 1;
        while (n < wanted && 2 * n <= Group::threads) n *= 2;
        return n;
    };
    constexpr int lanes = lanes_of(pieces), rows = Group::threads / lanes;  // at a time
    const int lane = int(threadIdx.x % unsigned(lanes)), row = int(threadIdx.x / unsigned(lanes));
    gF += row * p_stride + lane * (Width * q_stride);
    sF += row * pitch + lane * Width;
    const index_t next = rows * p_stride;
#pragma unroll 8
    for (int p = 0; p < P; p += rows) {
#pragma unroll
        for (int c = 0; c < pieces; c += lanes)
            if ((Group::threads % lanes == 0 || row < rows) && p + row < P && c + lane < pieces)
                copy_async<Width* int(sizeof(typename Group::scalar))>(sF + p * pitch + c * Width,
                                                                       gF + c * Width * q_stride);
        gF += next;
    }
}

// All factors -> shared memory; done when this thread's copies are.
template <class Group>
__device__ __forceinline__ void copy_factors(const group_arguments<typename Group::storage>& arguments,
                                             typename Group::scalar* sFactors) {
    using scalar = typename Group::scalar;
    const int first_q = Group::slices > 1 ? int(blockIdx.x % unsigned(Group::slices)) * Group::q(Group::modes) : 0;
    if constexpr (factors_alike<Group>()) {
        constexpr int pitch = Group::factor_pitch(1), each = Group::p(1) * pitch, all = Group::modes * each;
#pragma unroll
        for (int first = 0; first < all; first += Group::threads) {
            const unsigned element = unsigned(first) + threadIdx.x, level = element / unsigned(each),
                           rest = element % unsigned(each);
            const bool last = Group::slices > 1 && level == unsigned(Group::modes - 1);
            const int p = int(rest / unsigned(pitch)), q = int(rest % unsigned(pitch));
            if (element < unsigned(all) && q < (last ? Group::q(Group::modes) : Group::q(1)))
                copy_async<int(sizeof(scalar))>(sFactors + element,
                                                arguments.factor[level] + p * arguments.factor_p_stride[level] +
                                                    ((last ? first_q : 0) + q) * arguments.factor_q_stride[level]);
        }
    } else
        for_constants<1, Group::modes + 1>([&](auto l) {
            constexpr int level = decltype(l)::value, width = Group::widest_stretch(Group::q(level));
            const index_t p_stride = arguments.factor_p_stride[level - 1],
                          q_stride = arguments.factor_q_stride[level - 1];
            const scalar* gF = arguments.factor[level - 1] + (level == Group::modes ? first_q * q_stride : 0);
            scalar* sF = sFactors + Group::factor_offset(level);
            constexpr int elements = Group::p(level) * Group::q(level);
            if constexpr (Group::factor_pitch(level) == Group::q(level) &&
                          (Group::slices == 1 || level < Group::modes) && elements % Group::vector == 0)
                if (q_stride == 1 && p_stride == Group::q(level) && aligned_to(gF, 16)) {  // one stretch on both sides
#pragma unroll 4
                    for (int element = int(threadIdx.x) * Group::vector; element < elements;
                         element += Group::threads * Group::vector)
                        copy_async<16>(sF + element, gF + element);
                    return;
                }
            if (width > 1 && q_stride == 1 && p_stride % width == 0 && aligned_to(gF, width * int(sizeof(scalar))))
                copy_factor<Group, level, width>(gF, p_stride, 1, sF);
            else
                copy_factor<Group, level, 1>(gF, p_stride, q_stride, sF);
        });
    commit_copies();
}

// The arguments of a tile: all have the same factors.
template <class Group, bool InPieces = Group::in_pieces>
struct arguments_of_tile {
    using arguments = group_arguments<typename Group::storage>;
    const arguments& now;

    __device__ __forceinline__ arguments_of_tile(const arguments& all, index_t) : now(all) {}
    __device__ __forceinline__ void follow(index_t, typename Group::scalar*) const {}
};
// Or each piece its own rows of the first one. With as many blocks as a multiple of the pieces, those of a block are all the same.
template <class Group>
struct arguments_of_tile<Group, true> {
    using arguments = group_arguments<typename Group::storage>;
    arguments now;
    const arguments& all;
    index_t piece;

    __device__ __forceinline__ arguments_of_tile(const arguments& all_, index_t tile)
        : now(all_), all(all_), piece(tile % all_.parts_per_line) {
        now.factor[0] += piece * Group::p(1) * all.factor_p_stride[0];
    }
    // To the arguments of another tile, whose factors are to stand in shared memory.
    __device__ __forceinline__ void follow(index_t tile, typename Group::scalar* sFactors) {
        if (tile % all.parts_per_line == piece) return;
        piece = tile % all.parts_per_line;
        now.factor[0] = all.factor[0] + piece * Group::p(1) * all.factor_p_stride[0];
        place_factor<Group, 1>(now, sFactors);
        if constexpr (Group::any_warpgroup()) fence_for_unit();
    }
};

// The arguments with a term's factors in front.
template <class Group>
__device__ __forceinline__ group_arguments<typename Group::storage> arguments_of_term(
    const group_arguments<typename Group::storage>& arguments, int term) {
    group_arguments<typename Group::storage> now = arguments;
#pragma unroll
    for (int i = 0; i < Group::modes; ++i) {
        now.factor[i] = arguments.factor[term * Group::modes + i];
        now.factor_p_stride[i] = arguments.factor_p_stride[term * Group::modes + i];
        now.factor_q_stride[i] = arguments.factor_q_stride[term * Group::modes + i];
    }
    return now;
}

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
    using storage = typename Group::storage;
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    scalar* const sFactors = reinterpret_cast<scalar*>(shared_bytes);  // (factor_count of each level)
    scalar* const sMain = sFactors + Group::main_offset;               // (Rows, D_1, .., D_n, Run)
    scalar* const sStage = sFactors + Group::stage_offset;             // (Slots, one part of the tile)
    constexpr int steps = Group::steps::count;
    constexpr int last = steps - 1;
    constexpr bool direct = Group::direct;
    static_assert(direct || Group::cluster == 1);

    using last_step_type = typename Group::last_step;
    own_sum<scalar, Group::sums_up> own;
    const last_step_type epilogue_step = last_step_for<Group>(arguments, y_wide, own);
    constexpr bool waits_for_tiles = Calls::waits_for_tiles;
    static_assert(!waits_for_tiles || (Group::slots == 0 && Group::terms == 1 && !Group::ring && !Group::rotates &&
                                       !Group::refills && !Group::widens && Group::cluster == 1 && Group::slices == 1));
    static_assert(!Calls::deals_tiles ||
                  (!direct && Group::terms == 1 && Group::slots == 1 && Group::segments == 1 && !Group::ring &&
                   !Group::rotates && !Group::widens && !Group::flows && !Group::holds_factor));
    const bool factors_first = !waits_for_tiles && Group::places_early && arguments.factors_ready;
    const bool x_first = !waits_for_tiles && Group::places_early && arguments.x_ready;
    const bool waits_late = Group::waits_late && x_first;
    if (!factors_first && !waits_for_tiles) after_earlier_launches();
    const auto steps_of = [&](auto from, const tile_place<storage>& place, const scalar* sF,
                              const last_step_type& last_step, const group_arguments<storage>& now) {
        for_constants<decltype(from)::value, steps>([&](auto s) {
            constexpr int step = decltype(s)::value;
            if constexpr (step == last && Group::cluster > 1)
                cluster_barrier();
            else
                calls.barrier();
            if (step == last && waits_late) after_earlier_launches();
            run_trip<Group, step, step == last || Group::swizzled ? 1 : Group::cluster, step == last && direct>(
                sMain, sMain, sF, place, last_step, now);
        });
        if constexpr (!direct) {
            calls.barrier();
            store_tile<Group>(place, sMain, last_step);
            calls.after_store();
        }
    };
    const auto middle_and_last = [&](auto from, const tile_place<storage>& place) {
        steps_of(from, place, sFactors, epilogue_step, arguments);
    };

    // Behind a launch that leaves the factors alone they are placed while it ends, and X too is sent for where it leaves that alone; else the
    // first tile is sent for first.
    const auto place_and_send = [&](const group_arguments<storage>& now, const auto& send_for_first_tile) {
        if (!factors_first || x_first) send_for_first_tile();
        if constexpr (copies_factors<Group>())
            copy_factors<Group>(now, sFactors);
        else
            place_factors<Group>(now, sFactors);
        if (factors_first && !waits_late) after_earlier_launches();
        if (factors_first && !x_first) send_for_first_tile();
    };

    if constexpr (Group::widens) {
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
            const tile_place<storage> place = locate(tile);
            const scalar* const sRaw = sStage + slot * Group::slot_count;
            if constexpr (Group::reads_raw)
                run_trip<Group, 0, 1, steps == 1 && direct>(sRaw, sMain, sFactors, place, epilogue_step, arguments);
            else
                widen_tile<Group>(reinterpret_cast<const storage*>(sRaw), sMain);
            if constexpr (Group::slots == 1) {
                __syncthreads();
                send_for(tile + gridDim.x, 0);
            } else
                slot = 1 - slot;
            middle_and_last(constant<(Group::reads_raw ? 1 : 0)>{}, place);
        }
    } else if constexpr (Group::ring) {
        ring_pass<Group>(tiles, epilogue_step, sFactors,
                         reinterpret_cast<stage_barrier*>(shared_bytes + Group::stage_barriers_offset), locate,
                         [&] { place_factors<Group>(arguments, sFactors); });
    } else if constexpr (Group::rotates) {
        static_assert(has_stage_barriers || !Group::rotates);
        index_t tile = blockIdx.x;
        const index_t tile_step = gridDim.x;
        stage_barrier* const arrived = reinterpret_cast<stage_barrier*>(shared_bytes + Group::stage_barriers_offset);
        if (threadIdx.x == 0)
            for (int half = 0; half < 2; ++half) set_up(arrived[half], Group::threads);
        __syncthreads();
        const auto send_for = [&](const tile_place<storage>& from, int half, int at) {
            load_part<Group>(from, sMain + at, half);
            copies_arrive(arrived[half]);
        };
        // The places of this tile's halves, and a free one: that of the second half of the tile before.
        constexpr int each = Group::slot_count;
        int first = 0, second = each, free = 2 * each;
        tile_place<storage> place = locate(tile < tiles ? tile : 0);
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
            const tile_place<storage> coming = more ? locate(tile) : place;
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
    } else if constexpr (Group::slots == 0) {
        // The first tile is on its way while the factors are placed.
        constexpr int sharing = Group::cluster * Group::slices;  // blocks that share a tile
        index_t tile = blockIdx.x / sharing;
        const index_t tile_step = gridDim.x / sharing;
        const int part = Group::cluster > 1 ? cluster_rank() : 0;
        if (tile >= tiles) {
            if (factors_first) after_earlier_launches();
            if constexpr (Group::sums_up) store_sum<Group>(own.value, arguments, shared_bytes);
            return;
        }
        tile_place<storage> place = locate(tile);
        const auto send_for_first_tile = [&] {
            calls.before_load(tile);
            load_part<Group>(place, sMain + (Group::kept ? Group::main_count : 0), part);
            commit_copies();
        };
        if constexpr (Group::refills) {
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
                tile += tile_step;
                const next_tile<Group> next(locate(tile < tiles ? tile : tile - tile_step), tile < tiles);
                run_trip<Group, last, 1, true>(sMain, sMain, sFactors, place, epilogue_step, arguments, next);
                if (tile >= tiles) break;
                place = locate(tile);
                if (!next.refills()) {
                    __syncthreads();
                    load_part<Group>(place, sMain, part);
                }
                commit_copies();
                if constexpr (Group::reads_y) wait_for_copies<0>();
                ask_for_tile<Group>(place);
            }
        } else if constexpr (Group::terms == 1) {
            arguments_of_tile<Group> of_tile(arguments, tile);
            place_and_send(of_tile.now, send_for_first_tile);
#pragma unroll 1
            while (true) {
                wait_for_copies<0>();
                ask_for_tile<Group>(place);
                tile += tile_step;
                if constexpr (Group::asks_ahead && !waits_for_tiles)
                    if (tile < tiles) ask_for_part<Group>(locate(tile), part);
                steps_of(constant<0>{}, place, sFactors, epilogue_step, of_tile.now);
                if constexpr (Group::cluster > 1) cluster_barrier();  // also before the end: others may still read here
                if (tile >= tiles) break;
                if constexpr (Group::cluster == 1) calls.barrier();
                place = locate(tile);
                calls.before_load(tile);
                load_part<Group>(place, sMain, part);
                commit_copies();
                of_tile.follow(tile, sFactors);
            }
        } else if constexpr (Group::kept) {
            // Each tile once for every term, X from its own place; the next X is on its way as soon as the last term has read this one.
            scalar* const sX = sMain + Group::main_count;
            send_for_first_tile();
#pragma unroll 1
            for (int t = 0; t < (Group::factors_stay ? Group::terms : 1); ++t)
                place_factors<Group>(arguments_of_term<Group>(arguments, t), sFactors + t * Group::factors_each);
            const last_step_type last_step(scalar(1), arguments.beta, y_wide, arguments.c_offset);
#pragma unroll 1
            while (true) {
                wait_for_copies<0>();
                const tile_place<storage> done = place;
                tile += tile_step;
                own_elements<Group> sum;
                const auto add_term = [&](auto first, int term) {
                    const group_arguments<storage> now = arguments_of_term<Group>(arguments, term);
                    const scalar* sF = sFactors + (Group::factors_stay ? term * Group::factors_each : 0);
                    for_constants<0, steps>([&](auto s) {
                        constexpr int step = decltype(s)::value;
                        __syncthreads();
                        if constexpr (step == 1)
                            if (term == Group::terms - 1 && tile < tiles) {
                                place = locate(tile);
                                load_part<Group>(place, sX, part);
                                commit_copies();
                            }
                        run_trip<Group, step, 1, false>(step == 0 ? sX : sMain, sMain, sF, done, last_step, now);
                    });
                    __syncthreads();
                    if constexpr (!Group::factors_stay)  // of the next term, or of the next tile's first one
                        place_factors<Group>(
                            arguments_of_term<Group>(arguments, term + 1 < Group::terms ? term + 1 : 0), sFactors);
                    sum.template add<decltype(first)::value != 0>(
                        sMain, term == 0 ? arguments.alpha : arguments.more_alpha[term == 0 ? 0 : term - 1]);
                };
                add_term(constant<1>{}, 0);
#pragma unroll 1
                for (int term = 1; term < Group::terms; ++term) add_term(constant<0>{}, term);
                sum.store(done, last_step);
                if (tile >= tiles) break;
                if constexpr (steps == 1) {
                    __syncthreads();
                    place = locate(tile);
                    load_part<Group>(place, sX, part);
                    commit_copies();
                }
            }
        } else {
            // Each tile once for every term: X comes from memory for the first one and from L2 for the others, which add to what they
            // find in Y there: every thread its own elements.
            send_for_first_tile();
#pragma unroll 1
            for (int t = 0; t < (Group::factors_stay ? Group::terms : 1); ++t)
                place_factors<Group>(arguments_of_term<Group>(arguments, t), sFactors + t * Group::factors_each);
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
                steps_of(constant<0>{}, place, sFactors + (Group::factors_stay ? term * Group::factors_each : 0),
                         last_step, now);
                if (++term == Group::terms) {
                    term = 0;
                    tile += tile_step;
                }
                if constexpr (Group::cluster > 1) cluster_barrier();
                if (tile >= tiles) break;
                if constexpr (Group::cluster == 1) __syncthreads();
                if (term == 0) place = locate(tile);
                load_part<Group>(place, sMain, part);
                commit_copies();
                if constexpr (!Group::factors_stay)
                    place_factors<Group>(arguments_of_term<Group>(arguments, term), sFactors);
            }
        }
    } else if constexpr (Group::flows && has_stage_barriers) {
        // A warp waits for a tile's copies and, before it sends for a later tile, for the other warps, which may still read what that takes
        // the place of. So the warps of a scheduler need not be at the same point: while one stores, another has the matrix unit.
        stage_barrier* const full = reinterpret_cast<stage_barrier*>(shared_bytes + Group::stage_barriers_offset);
        stage_barrier* const empty = full + Group::slots;
        if (threadIdx.x == 0)
            for (int slot = 0; slot < Group::slots; ++slot) {
                set_up(full[slot], Group::threads);
                set_up(empty[slot], Group::threads / 32);
            }
        __syncthreads();
        const auto send_for = [&](index_t tile, int slot) {
            const tile_place<storage> place = locate(tile);
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
                    pairs.read(sFactors + Group::factor_offset(Group::steps::first(0)));
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
            const tile_place<storage> place = locate(tile);
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
    } else {
        // Parts of this block's tiles in one sequence; `slots` of them are on their way at any time.
        constexpr int parts = Group::segments;
        index_t coming_tile = blockIdx.x;
        int coming_part = 0;
        unsigned coming_turn = 0, turn = 0;  // of tiles that are dealt
        const auto start_next = [&](int slot) {
            if constexpr (Calls::deals_tiles)
                if (coming_tile < tiles) coming_tile = calls.tile_of_turn(coming_turn++);
            if (coming_tile < tiles) {
                const tile_place<storage> coming = locate(coming_tile);
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
                pairs.read(sFactors + Group::factor_offset(Group::steps::first(0)));
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
            const tile_place<storage> place = locate(tile);
#pragma unroll 1
            for (int part = 0; part < parts; ++part) {
                wait_for_copies<Group::slots - 1>();
                if (part == 0) ask_for_tile<Group>(place);
                calls.barrier();
                if constexpr (Group::holds_factor)
                    matrix_trip<Group, 0, parts, true>(sStage + slot * Group::slot_count, sMain, sFactors, place,
                                                       epilogue_step, arguments, held);
                else if constexpr (steps == 1 && direct)
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
    if constexpr (Group::sums_up) store_sum<Group>(own.value, arguments, shared_bytes);
}

template <class Group, class Locate>
__device__ __forceinline__ void fused_pass(const group_arguments<typename Group::storage>& arguments, index_t tiles,
                                           bool y_wide, Locate&& locate) {
    calls_nothing calls;
    fused_pass<Group>(arguments, tiles, y_wide, locate, calls);
}

}  // namespace otimes::kernels

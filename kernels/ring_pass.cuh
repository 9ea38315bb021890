// SPDX-License-Identifier: MIT
// The body of groups whose slices stand in a ring (mode_group.cuh: ring). A tile is one row; its slice s has the elements of index s of mode 1, and a
// warp of its own. The ring has places for the slices of one row and, with `slots` more, for some of the next:
//   slice number n = turn * segments + s of a block, (D_2, .., D_n) elements, stands in place n % places.
// Requires: compute capability 9.0; P_i = Q_i; 32 * segments threads.
// A turn: all threads together replace mode 1, across the slices, where they stand; then each warp replaces the other modes of its slice and stores it to
// Y. Between the two is the only barrier of a turn: a warp that is done goes on to the next row's mode 1 while others still store. What a
// warp has read for the last time it fills itself with slice n + places: at once where that is wanted in the next turn, else when mode 1 is done, so
// that loads and stores do not queue behind each other.
#pragma once
#include "launch_order.cuh"
#include "multiply_add_trip.cuh"

namespace otimes::kernels {

// One slice of X, contiguous in memory -> sSlice, by the lanes of a warp.
template <class Group>
__device__ __forceinline__ void load_slice(const typename Group::scalar* gX, typename Group::scalar* sSlice) {
    using scalar = typename Group::scalar;
    constexpr int count = Group::count_p() / Group::segments, stretch = Group::contiguous(0);
    constexpr int width = Group::widest(0, stretch < count ? stretch : count);
    const unsigned lane = threadIdx.x % 32u;
    const auto offset_of = [](int element) {
        return tile_offset<Group, 0, Group::segments, 0, Group::run_level>(element);
    };
    if (width > 1 && aligned_to(gX, width * int(sizeof(scalar)))) {
        constexpr int each = 32 * width;
        if constexpr (digits_apart<Group, 0>() && count % each == 0) {
            const int first = offset_of(int(lane) * width);
            gX += lane * width;
#pragma unroll
            for (int i = 0; i < count; i += each)
                copy_async<width* int(sizeof(scalar))>(sSlice + first + offset_of(i), gX + i);
        } else
#pragma unroll 4
            for (unsigned element = lane * width; element < unsigned(count); element += each)
                copy_async<width* int(sizeof(scalar))>(sSlice + offset_of(int(element)), gX + element);
    } else
#pragma unroll 4
        for (unsigned element = lane; element < unsigned(count); element += 32u)
            copy_async<int(sizeof(scalar))>(sSlice + offset_of(int(element)), gX + element);
}

// sum_p of mode 1 where the slices stand: slice(s)[i] = sum_p slice(p)[i] F_1[p, s]. All threads; no barrier at either end.
template <class Group, class Slice>
__device__ __forceinline__ void replace_across_slices(const Slice& slice, const typename Group::scalar* sFactors) {
    using scalar = typename Group::scalar;
    constexpr int P = Group::p(1), inner = Group::extent_product(0, 2, Group::modes);
    constexpr int V = Group::vectors_below(0, 1) ? Group::vector : 1, items = inner / V;
    constexpr bool even = items % (2 * Group::threads) == 0;
    constexpr int together = even && 2 * P * V * Group::words <= 64 ? 2 : 1;  // items
#pragma unroll 1
    for (unsigned item = threadIdx.x; item < unsigned(items); item += Group::threads * together) {
        int offset[together];
#pragma unroll
        for (int j = 0; j < together; ++j)
            offset[j] = tile_offset<Group, 0, 1, 2, Group::run_level>(int(item + unsigned(j) * Group::threads) * V);
        alignas(16) scalar rX[P * together * V];  // (p, item, V)
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
            for (int j = 0; j < together; ++j)
                *reinterpret_cast<packet<V* int(sizeof(scalar))>*>(rX + (p * together + j) * V) =
                    *reinterpret_cast<const packet<V* int(sizeof(scalar))>*>(slice(p) + offset[j]);
        contract_registers<Group, 1, 1, together * V, Group::ring_sums, even>(rX, sFactors + Group::factor_offset(1));
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
            for (int j = 0; j < together; ++j)
                *reinterpret_cast<packet<V* int(sizeof(scalar))>*>(slice(p) + offset[j]) =
                    *reinterpret_cast<const packet<V* int(sizeof(scalar))>*>(rX + (p * together + j) * V);
    }
}

// How the fibres of a trip within a slice go to the lanes of its warp.
template <class Group, int Step>
struct slice_fibres {
    using steps = typename Group::steps;
    static constexpr int first = steps::first(Step), modes = steps::modes(Step), last = first + modes - 1;
    static constexpr int N = Group::extent_product(Step, first, last);
    static constexpr int inner = Group::extent_product(Step, last + 1, Group::modes),
                         outer = Group::extent_product(Step, 2, first - 1);
    static constexpr int fibre_stride = Group::stride(last);
    // Neighbouring fibres of one access: as many as registers hold.
    __host__ __device__ static constexpr int width() {
        int w = Group::vectors_below(Step, last) ? Group::vector : 1;
        while (w > 1 && (inner % w || N * w * Group::words > 128 || inner / w * outer < 32)) w /= 2;
        return w;
    }
    static constexpr int V = width();
    // Neighbouring indices of a fibre of one access.
    static constexpr int W =
        inner == 1 && N % Group::vector == 0 && fibre_stride == 1 && Group::vector_strides(first - 1) ? Group::vector
                                                                                                      : 1;
    static constexpr int items = outer * (inner / V);
    static constexpr bool even = items % 32 == 0;
};

// Sums of whole groups of fibres: at most Sums, such that the groups divide the fibres.
template <int Sums, int Q, int Fibres>
__host__ __device__ constexpr int sums_of_whole_groups() {
    int together = fibres_of_sums<Sums, Q, Fibres>;
    while (Fibres % together) --together;
    return together * Q;
}

// One trip within a slice, by its warp: sSlice[o, q.., i] = sum_p sSlice[o, p.., i] * prod F; with ToY to gY, which is where the slice goes, through
// the epilogue. has_read(): called by all lanes when this lane has read all that it reads.
template <class Group, int Step, bool ToY, class HasRead>
__device__ __forceinline__ void slice_trip(typename Group::scalar* sSlice, const typename Group::scalar* sFactors,
                                           typename Group::storage* gY, const typename Group::last_step& last_step,
                                           const HasRead& has_read) {
    using scalar = typename Group::scalar;
    using fibres = slice_fibres<Group, Step>;
    constexpr int first = fibres::first, last = fibres::last, N = fibres::N, V = fibres::V, W = fibres::W;
    constexpr int inner = fibres::inner, items = fibres::items, fibre_stride = fibres::fibre_stride;
    constexpr int rounds = (items + 31) / 32, width = V > 1 ? V : W;
    using access = packet<width* int(sizeof(scalar))>;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const unsigned item = unsigned(round) * 32u + threadIdx.x % 32u;
        const bool works = fibres::even || item < unsigned(items);
        const int i = inner / V == 1 ? 0 : int(item % unsigned(inner / V)) * V, o = int(item / unsigned(inner / V));
        const int offset = works ? tile_offset<Group, Step, Group::segments, 2, first - 1>(o) +
                                       tile_offset<Group, Step, 1, last + 1, Group::run_level>(i)
                                 : 0;
        alignas(16) scalar rX[N * V];  // (p.., V)
        if (works)
#pragma unroll
            for (int p = 0; p < N; p += W)
                *reinterpret_cast<access*>(rX + p * V) =
                    *reinterpret_cast<const access*>(sSlice + offset + p * fibre_stride);
        if (round == rounds - 1) has_read();
        if (!works) continue;
        for_constants<0, fibres::modes - (ToY ? 1 : 0)>([&](auto m) {
            constexpr int level = last - decltype(m)::value;
            constexpr int above = Group::extent_product(Step, first, level - 1),
                          under = Group::extent_product(Step, level + 1, last);
            contract_registers<Group, level, above, under * V, Group::ring_sums, fibres::even>(
                rX, sFactors + Group::factor_offset(level));
        });
        if constexpr (ToY) {
            // The last mode's sums are stored as soon as they are complete, while others are summed.
            constexpr int Q = Group::q(first), under = Group::extent_product(Step, first + 1, last),
                          sums = sums_of_whole_groups<Group::ring_sums, Q, under * V>();
            typename Group::storage* const gFibre = gY + index_t(o) * (N * inner) + i;
            contract_fibres<Group, first, 1, under * V, sums, fibres::even>(
                rX, sFactors + Group::factor_offset(first), [&](int from, const auto& rY) {
                    constexpr int together = sums / Q, wide = together % V == 0 ? V : 1;
                    const auto to = [&](int k) {
                        const int q = k / (together / wide), b = from + k % (together / wide) * wide;
                        return gFibre + (q * under + b / V) * inner + b % V;
                    };
                    const auto value = [&](int k, int e) {
                        return rY[k % (together / wide) * wide + e][k / (together / wide)];
                    };
                    if constexpr (Group::ending == ends_stored)
                        last_step.template store_many<Q*(together / wide), wide>(to, value);
                    else
                        last_step.template store_all<Q*(together / wide), wide>(to, value);
                });
        } else
#pragma unroll
            for (int q = 0; q < N; q += W)
                *reinterpret_cast<access*>(sSlice + offset + q * fibre_stride) =
                    *reinterpret_cast<const access*>(rX + q * V);
    }
}

// locate(tile) -> tile_place; place_factors(): to sFactors, by all threads.
template <class Group, class Locate, class PlaceFactors>
__device__ __forceinline__ void ring_pass(index_t tiles, const typename Group::last_step& last_step,
                                          typename Group::scalar* sFactors, stage_barrier* arrived,
                                          const Locate& locate, const PlaceFactors& place_factors) {
    using scalar = typename Group::scalar;
    constexpr int slices = Group::segments, places = slices + Group::slots, each = Group::slot_count;
    constexpr int steps = Group::steps::count, last = steps - 1;
    static_assert(has_stage_barriers || !Group::ring);
    scalar* const sRing = sFactors + Group::stage_offset;  // (places, D_2, .., D_n)
    const int own = int(threadIdx.x / 32u);                // slice of this warp
    if (threadIdx.x == 0)
        for (int place = 0; place < places; ++place) set_up(arrived[place], 32);
    __syncthreads();
    // The slice of the tile that this block comes to in a turn.
    const auto send_for = [&](index_t turn, int slice, int place) {
        const index_t tile = blockIdx.x + turn * gridDim.x;
        if (tile >= tiles) return;
        load_slice<Group>(locate(tile).x + slice * (Group::count_p() / slices), sRing + place * each);
        copies_arrive(arrived[place]);
    };
    send_for(0, own, own);
    if (own < Group::slots) send_for(1, own, slices + own);
    place_factors();
    __syncthreads();
    int first = 0;     // the place of this turn's slice 0
    unsigned lap = 0;  // how often the ring has been gone round
    index_t turn = 0;
#pragma unroll 1
    for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, ++turn) {
        const tile_place<typename Group::storage> place = locate(tile);
        const auto place_of = [&](int slice) {
            return first + slice < places ? first + slice : first + slice - places;
        };
        ask_for_tile<Group>(place);
#pragma unroll
        for (int s = 0; s < slices; ++s) wait(arrived[place_of(s)], first + s < places ? lap : lap + 1u);
        replace_across_slices<Group>([&](int s) { return sRing + place_of(s) * each; }, sFactors);
        __syncthreads();  // mode 1 is done
        // The number of the slice that takes a place is that of the one that leaves it + places: slice own + slots of the next turn, or of the one behind it.
        const int now = place_of(own);
        constexpr int wanted_soon = slices - Group::slots;  // of so many warps in the next turn
        if (turn > 0 && own >= wanted_soon)
            send_for(turn + 1, own - wanted_soon, now >= slices ? now - slices : now + Group::slots);
        scalar* const sSlice = sRing + now * each;
        typename Group::storage* const gY = place.y + index_t(own) * (Group::count_q() / slices);
        for_constants<1, steps>([&](auto s) {
            constexpr int step = decltype(s)::value;
            slice_trip<Group, step, step == last>(sSlice, sFactors, gY, last_step, [&] {
                if constexpr (step == last) {
                    __syncwarp();  // the slice has been read
                    if (own < wanted_soon) send_for(turn + 1, own + Group::slots, now);
                }
            });
            if constexpr (step < last) __syncwarp();
        });
        first += slices;
        if (first >= places) {
            first -= places;
            ++lap;
        }
    }
}

}  // namespace otimes::kernels

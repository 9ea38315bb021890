// SPDX-License-Identifier: MIT
// A fused pass's factors on their way to shared memory: one by one, together by way of registers, or by asynchronous copies; and whose they are,
// where tiles or terms have factors of their own. Called by all threads; a barrier separates them from the first trip.
#pragma once
#include "pair_trip.cuh"

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

}  // namespace otimes::kernels

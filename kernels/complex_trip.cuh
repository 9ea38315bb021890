// SPDX-License-Identifier: MIT
// A trip by the matrix unit over complex scalars: one mode with P and Q multiples of 4, a warp takes 32 fibres (complex double: 16).
//
// A complex product is a real one of twice the extents:
//   Y[f, n] = sum_k X[f, k] * B[k, n],   k = 2p + c, n = 2q + d,   c, d = 0: real part, 1: imaginary part,
//   B[2p .. 2p + 1, 2q .. 2q + 1] = (re F, im F; -im F, re F)[p, q].
// A product of the unit, 16 x 8 x 8, so takes 16 fibres, 4 p and 4 q. Which k stands in which of its columns is free: lane (g, t) reads
// columns t and t + 4, which are the two parts of p = 4k + t, one access of an element; columns 2t and 2t + 1 of the result are the two
// parts of q = 4n + t. So a lane reads and writes whole elements in the same places. The factor stands once; a lane takes its column's part of B by
// the parity of g.
//   inner mode: a lane's access takes `wide` neighbouring fibres (16 bytes); the strides of mode_group keep it free of bank conflicts;
//   last mode:  row g is fibre g + 8j; complex double: bits 0 and 1 of g exchanged, so that two rows of a quarter warp are two fibres apart.
#pragma once
#include "matrix_unit.cuh"
#include "multiply_add_trip.cuh"

namespace otimes::kernels {

template <class Group, int Step>
struct complex_trip_shape {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    static constexpr bool single = is_same<scalar, complex<float>>;
    static constexpr int level = Group::steps::first(Step), split = Group::steps::split(Step);
    static constexpr int P = Group::p(level), Q = Group::q(level), stride = Group::stride(level);
    static constexpr int inputs = 1;
    static constexpr bool last_mode = stride == 1;
    // Neighbouring fibres of an access: 2, complex double and where odd extents stand below 1.
    static constexpr int wide = last_mode ? Group::vector : Group::unit_width(Step);
    static constexpr int products = single ? 2 : 1;  // 16-row products a warp works on together
    static constexpr int packs = 2 * products;       // fibres a lane holds
    static constexpr int accesses = packs / wide;    // of an inner mode
    static constexpr int warps = Group::threads / 32;
    static constexpr int k_steps = P / 4, n_tiles = Q / 4 / split;
    static constexpr int slots = P * Q / 2;  // pairs of the factor's elements
    static_assert(single || is_same<scalar, complex<double>>);
    static_assert(Group::steps::modes(Step) == 1 && P % 4 == 0 && Q % (4 * split) == 0 && warps % split == 0);
    static_assert(Group::inputs == 1 && Group::cluster == 1 && !Group::in_pieces && !Group::swizzled);

    // The factor in shared memory: [P/4][Q/4] tiles of 16 elements, (q, p) within one; a slot is two of them.
    struct pair_place {
        int p, q, p_next, q_next;
    };
    static constexpr bool left_operand = false;
    __host__ __device__ static constexpr bool has(int, int) { return true; }
    __host__ __device__ static constexpr pair_place pair_of(int slot) {
        const int tile = slot / 8, in_tile = 2 * slot % 16;
        const int p = tile / (Q / 4) * 4 + in_tile % 4, q = tile % (Q / 4) * 4 + in_tile / 4;
        return {p, q, p + 1, q};
    }
    __device__ static __forceinline__ int row_of(int g) { return single ? g : (g & 4) | (g & 1) << 1 | (g & 2) >> 1; }
};

// Contract: as multiply_add_trip, for one mode. A barrier inside when split > 1 and the trip works in place.
template <class Group, int Step, int Part, bool ToY>
__device__ __forceinline__ void complex_trip(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                             const typename Group::scalar* sFactors,
                                             const tile_place<typename Group::scalar>& place,
                                             const typename Group::last_step& last_step,
                                             const group_arguments<typename Group::scalar>& arguments) {
    using scalar = typename Group::scalar;
    using shape = complex_trip_shape<Group, Step>;
    using real = decltype(scalar::re);
    using element = packet<int(sizeof(scalar))>;
    using access = packet<shape::wide* int(sizeof(scalar))>;
    constexpr int level = shape::level, split = shape::split, packs = shape::packs, wide = shape::wide,
                  accesses = shape::accesses, products = shape::products, P = shape::P, stride = shape::stride,
                  k_steps = shape::k_steps, n_tiles = shape::n_tiles;
    constexpr int inner = Group::extent_product(Step, level + 1, Group::modes) * Group::run;
    constexpr int outer = Group::rows * Group::extent_product(Step, 1, level - 1) / Part;
    constexpr int fibres = inner * outer, per_item = 8 * packs, items = (fibres + per_item - 1) / per_item;
    constexpr int at_once = shape::warps / split, rounds = (items + at_once - 1) / at_once;
    static_assert(shape::last_mode || inner % wide == 0);
    static_assert(Group::run == 1 || Group::run % wide == 0);

    const int warp = int(threadIdx.x / 32u), g = int(threadIdx.x / 4u % 8u), t = int(threadIdx.x % 4u);
    const bool odd = g % 2 != 0;
    const int n_first = int(unsigned(warp) % unsigned(split)) * n_tiles;
    const int own_factor = g / 2 * 4 + t;                       // within a tile of the factor
    const scalar* sF = sFactors + Group::factor_offset(level);  // (k, n, q, p)

#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int item = round * at_once + int(unsigned(warp) / unsigned(split));
        const bool works = item < items;
        real rC[n_tiles * products][4];  // (n x product, row x part)
        int offset[packs];               // last mode: of each fibre; inner mode: of each access, at p = t
        bool inside[packs];
        int outer_index[accesses], inner_index[accesses];
        // As in matrix_trip, behind the end: the item's first fibre.
        const unsigned spare = fibres % per_item == 0 ? 0u : unsigned(item * per_item);
        if constexpr (shape::last_mode) {
#pragma unroll
            for (int j = 0; j < packs; ++j) {
                const int fibre = item * per_item + shape::row_of(g) + 8 * j;
                inside[j] = fibre < fibres;
                offset[j] = (inside[j] ? tile_offset<Group, Step, Part, 0, level - 1>(fibre)
                                       : tile_offset<Group, Step, Part, 0, level - 1>(int(spare))) +
                            t;
            }
        } else {
#pragma unroll
            for (int s = 0; s < accesses; ++s) {
                const unsigned first = unsigned((item * accesses + s) * 8 + g) * wide;
                inside[s] = first < unsigned(fibres);
                outer_index[s] = int(inside[s] ? first / unsigned(inner) : spare / unsigned(inner));
                inner_index[s] = int(inside[s] ? first % unsigned(inner) : spare % unsigned(inner));
                offset[s] = tile_offset<Group, Step, Part, 0, level - 1>(outer_index[s]) +
                            tile_offset<Group, Step, 1, level + 1, Group::run_level>(inner_index[s]) + t * stride;
            }
        }
        if (works) {
            const auto multiply = [&](auto first, int k) {
                alignas(16) scalar rX[packs];  // (fibre), at p = 4k + t
                if constexpr (shape::last_mode) {
#pragma unroll
                    for (int j = 0; j < packs; ++j)
                        *reinterpret_cast<element*>(rX + j) =
                            *reinterpret_cast<const element*>(sFrom + offset[j] + 4 * k);
                } else {
#pragma unroll
                    for (int s = 0; s < accesses; ++s)
                        *reinterpret_cast<access*>(rX + s * wide) =
                            *reinterpret_cast<const access*>(sFrom + offset[s] + 4 * k * stride);
                }
                const auto tile_of = [&](int n) { return (k * (shape::Q / 4) + n_first + n) * 16 + own_factor; };
                if constexpr (shape::single) {
                    unsigned rHigh[products][4], rLow[products][4];  // (product, fragment)
#pragma unroll
                    for (int m = 0; m < products; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const scalar x = rX[2 * m + e % 2];
                            const split_float parts = otimes::kernels::split(e < 2 ? x.re : x.im);
                            rHigh[m][e] = parts.high;
                            rLow[m][e] = parts.low;
                        }
                    constexpr int together = n_tiles % 2 == 0 ? 2 : 1;  // tiles of Q worked on side by side
#pragma unroll
                    for (int n = 0; n < n_tiles; n += together) {
                        uint4 rF[together];  // (n)
#pragma unroll
                        for (int c = 0; c < together; ++c) {
                            uint4 f;  // high words of both parts, low words
                            if constexpr (Group::presplit(level))
                                f = reinterpret_cast<const uint4*>(sF)[tile_of(n + c)];
                            else {
                                const float2 raw = reinterpret_cast<const float2*>(sF)[tile_of(n + c)];
                                const split_float re = split_factor(raw.x), im = split_factor(raw.y);
                                f = make_uint4(re.high, im.high, re.low, im.low);
                            }
                            rF[c] = make_uint4(odd ? f.y : f.x, odd ? f.x : f.y ^ 0x80000000u,  //
                                               odd ? f.w : f.z, odd ? f.z : f.w ^ 0x80000000u);
                        }
                        multiply_add_split<decltype(first)::value != 0, takes_low_low(2 * Group::p(level)),
                                           together * products, products>(rC + n * products, rHigh, rLow, rF);
                    }
                } else {
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n) {
                        const double2 f = reinterpret_cast<const double2*>(sF)[tile_of(n)];
                        const double rA[4] = {rX[0].re, rX[1].re, rX[0].im, rX[1].im};
                        if constexpr (decltype(first)::value != 0)
#pragma unroll
                            for (int e = 0; e < 4; ++e) rC[n][e] = 0.;
                        multiply_add_double(rC[n], rA, odd ? f.y : f.x, odd ? f.x : -f.y);
                    }
                }
            };
            constexpr int unrolled = k_steps == 1 ? 1 : n_tiles * products * k_steps <= 64 ? k_steps - 1 : 2;
            multiply(constant<1>{}, 0);
#pragma unroll unrolled
            for (int k = 1; k < k_steps; ++k) multiply(constant<0>{}, k);

            // A product that is not finite: an operand was infinite, NaN or too large to split. Repeat with multiply-adds, which say
            // which it is.
            if constexpr (shape::single) {
                float zero = 0.f;
#pragma unroll
                for (int i = 0; i < n_tiles * products; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) zero += rC[i][e] * 0.f;
                if (__any_sync(0xffffffffu, !(zero == 0.f))) {
                    // Rolled, through a local array: rare, and the registers of the usual path stay free.
                    const scalar* gF = arguments.factor[level - 1];
                    const index_t p_stride = arguments.factor_p_stride[level - 1],
                                  q_stride = arguments.factor_q_stride[level - 1];
                    scalar rAgain[n_tiles * packs];  // (n, fibre)
                    int at_fibre[packs];
#pragma unroll
                    for (int j = 0; j < packs; ++j)
                        at_fibre[j] = shape::last_mode ? offset[j] - t : offset[j / wide] + j % wide - t * stride;
#pragma unroll 1
                    for (int c = 0; c < n_tiles * packs; ++c) {
                        const int q = 4 * (n_first + c / packs) + t;
                        scalar sum(0.f);
#pragma unroll 1
                        for (int p = 0; p < P; ++p)
                            sum = multiply_add(sFrom[at_fibre[c % packs] + p * stride], gF[p * p_stride + q * q_stride],
                                               sum);
                        rAgain[c] = sum;
                    }
#pragma unroll
                    for (int c = 0; c < n_tiles * packs; ++c) {
                        real* r = rC[c / packs * products + c % packs / 2] + 2 * (c % 2);
                        r[0] = rAgain[c].re;
                        r[1] = rAgain[c].im;
                    }
                }
            }
        }
        if constexpr (split > 1 && !ToY)
            __syncthreads();
        else
            __syncwarp();
        if (!works) continue;
        // Fibre j at q = 4 * (n_first + n) + t.
        const auto value = [&](int n, int j) {
            const real* r = rC[n * products + j / 2] + 2 * (j % 2);
            return scalar(r[0], r[1]);
        };
        if constexpr (shape::last_mode) {
#pragma unroll
            for (int j = 0; j < packs; ++j) {
                if (!inside[j]) continue;
                if constexpr (!ToY) {
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n) {
                        const scalar r = value(n, j);
                        *reinterpret_cast<element*>(sTo + offset[j] + 4 * (n_first + n)) =
                            *reinterpret_cast<const element*>(&r);
                    }
                } else {
                    index_t step;
                    bool exists;
                    int run_left;
                    scalar* gY = place.y + place_in_y<Group, Step>(place, item * per_item + shape::row_of(g) + 8 * j, 0,
                                                                   step, exists, run_left);
                    gY += 4 * n_first + t;  // step is 1
                    if (exists)
                        last_step.template store_all<n_tiles, 1>([&](int n) { return gY + 4 * n; },
                                                                 [&](int n, int) { return value(n, j); });
                }
            }
        } else {
#pragma unroll
            for (int s = 0; s < accesses; ++s) {
                if (!inside[s]) continue;
                if constexpr (!ToY) {
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n) {
                        alignas(16) scalar rY[wide];  // (fibre)
#pragma unroll
                        for (int e = 0; e < wide; ++e) rY[e] = value(n, s * wide + e);
                        *reinterpret_cast<access*>(sTo + offset[s] + 4 * (n_first + n) * stride) =
                            *reinterpret_cast<const access*>(rY);
                    }
                } else {
                    index_t step;
                    bool exists;
                    int run_left;
                    scalar* gY = place.y +
                                 place_in_y<Group, Step>(place, outer_index[s], inner_index[s], step, exists, run_left);
                    gY += (4 * n_first + t) * step;
                    if (exists)
                        last_step.template store_all<n_tiles, wide>(
                            [&](int n) { return gY + 4 * n * step; },
                            [&](int n, int e) { return value(n, s * wide + e); }, run_left);
                }
            }
        }
    }
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// A trip that replaces two neighbouring modes (upper, lower) by the matrix unit with nothing between them but registers.
//
// A unit is the matrix X[b, a] (b: upper, a: lower mode) at fixed other indices. One warp replaces a whole unit:
//   first   D[q_a, b]   = sum_a F_lower[a, q_a] X[b, a]      the factor is the 16-row operand, the data the 8-column one
//   second  Y[q_a, q_b] = sum_b D[q_a, b] F_upper[b, q_b]    the data is the 16-row operand, the factor the 8-column one
// The first result's columns 2t, 2t + 1 of eight b stand in lane (g, t), which is where the second product wants columns t and t + 4 of its
// left operand: the order of a summation index is free, so the rows of F_upper are placed in that order and nothing moves.
// Which a stands at which step of the first sum, which q_a in which row and which q_b in which column is free too, and chosen so that
// every access is as wide as possible and free of bank conflicts with mode_group's swizzle.
// Of two modes of 16 floats the first sum alone takes low*low (matrix_unit.cuh): measured, that is enough for the product to be no less accurate
// than multiply-adds, and the second would take as long again.
#pragma once
#include "complex_trip.cuh"
#include "matrix_trip.cuh"

namespace otimes::kernels {

template <class Group, int Step>
struct pair_trip_shape {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    static constexpr int upper = Group::steps::first(Step), lower = upper + 1;
    static constexpr int A = Group::p(lower), B = Group::p(upper);
    static constexpr bool last_modes = lower == Group::modes && Group::run == 1;
    static constexpr bool eights = A == 8;                        // pair_trip_of_eights
    static constexpr int units = last_modes ? 1 : Group::vector;  // neighbouring units that a warp holds together
    static constexpr int a_steps = A / 8, a_rows = A / 16;        // eights of a in the first sum; sixteens of q_a
    static constexpr int b_steps = B / 8;                         // eights of b, and of q_b
    // New lower indices that a lane holds side by side.
    static constexpr int side_by_side = !last_modes ? 1 : Group::words == 1 && A % 32 == 0 ? 4 : 2;
    static constexpr int words_held = (Group::single_products ? 1 : 2) * A * (B + A) / 32;  // of both factors, a lane
    static constexpr bool holds_factors = words_held <= 64;  // over all units of the trip
    static constexpr int together = Group::words == 1 ? 2
                                    : A == 16         ? 2
                                                      : 1;  // eights of b that share each read of F_lower
    static_assert(Group::steps::split(Step) == 1);
    static_assert(eights ? B == 8 && (Group::words == 2 || Group::single_products)
                         : A % 16 == 0 && B % (8 * together) == 0 && A <= 32 && B <= 32,
                  "a pair trip takes extents of 16 and 32, of doubles and by single products also 8");
    static_assert(last_modes || A <= 16, "a warp holds a quarter of its registers' worth of units");

    // The index a at step k of the first sum, half h of the step, lane t.
    __host__ __device__ static constexpr int a_of(int k, int h, int t) {
        if (!last_modes) return 8 * k + t + 4 * h;
        return Group::words == 1 && !eights ? 16 * (k / 2) + 4 * t + 2 * (k % 2) + h : 8 * k + 2 * t + h;
    }
    // The new index q_a in row g + 8 r of the m-th sixteen.
    __host__ __device__ static constexpr int row_of(int m, int r, int g) {
        return side_by_side == 1   ? 16 * m + g + 8 * r
               : side_by_side == 2 ? 16 * m + 2 * g + r
                                   : 32 * (m / 2) + 4 * g + 2 * (m % 2) + r;
    }
    // The new index q_b in column j of the n-th eight.
    __host__ __device__ static constexpr int column_of(int n, int j) { return 8 * n + (j >> 1) + 4 * (j & 1); }
};

// How a pair trip's factors stand in shared memory. Lower: slot (m, k, half, lane) holds rows g and g + 8 of one a. Upper: slot
// (k, n, lane), as a single mode's.
template <class Group, int Level>
struct pair_fragment_shape {
    using trip_shape = pair_trip_shape<Group, Group::steps::of_level(Level)>;
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    static constexpr int level = Level, inputs = 1;
    static constexpr int slots = Group::p(Level) * Group::p(Level) / 2;
    static constexpr bool left_operand = Level == trip_shape::lower && !trip_shape::eights;
    __host__ __device__ static constexpr bool has(int, int) { return true; }
    struct pair_place {
        int p, q, p_next, q_next;
    };
    __host__ __device__ static constexpr pair_place pair_of(int slot) {
        const int g = int(unsigned(slot) / 4u % 8u), t = int(unsigned(slot) % 4u), tile = int(unsigned(slot) / 32u);
        if constexpr (Level == trip_shape::lower && trip_shape::eights) {  // rows 8 to 15 are zero and stored nowhere
            return {trip_shape::a_of(0, 0, t), g, trip_shape::a_of(0, 1, t), g};
        } else if constexpr (Level == trip_shape::lower) {
            constexpr unsigned steps = trip_shape::a_steps;
            const int half = int(unsigned(tile) % 2u), k = int(unsigned(tile) / 2u % steps),
                      m = int(unsigned(tile) / 2u / steps);
            const int a = trip_shape::a_of(k, half, t);
            return {a, trip_shape::row_of(m, 0, g), a, trip_shape::row_of(m, 1, g)};
        } else {
            constexpr unsigned columns = trip_shape::b_steps;
            const int n = int(unsigned(tile) % columns), k = int(unsigned(tile) / columns);
            const int q = trip_shape::column_of(n, g);
            return {8 * k + 2 * t, q, 8 * k + 2 * t + 1, q};
        }
    }
};

template <class Group, int Level, bool Pair, bool Complex>
struct fragment_shape_of {
    using type = matrix_trip_shape<Group, Group::steps::of_level(Level)>;
};
template <class Group, int Level>
struct fragment_shape_of<Group, Level, true, false> {
    using type = pair_fragment_shape<Group, Level>;
};
template <class Group, int Level>
struct fragment_shape_of<Group, Level, false, true> {
    using type = complex_trip_shape<Group, Group::steps::of_level(Level)>;
};
template <class Group, int Level>
using fragment_shape =
    typename fragment_shape_of<Group, Level, Group::is_pair(Group::steps::of_level(Level)), Group::is_complex>::type;

// One step of both operands, split. The left one's words in the unit's order; the right one's two.
struct alignas(16) left_split {
    unsigned high[4], low[4];
};
struct right_split {
    unsigned high[2], low[2];
};

// rC = or += left x right, to float's accuracy; the small terms go first, and what is already in rC is added outside the unit, to nearest.
template <bool First, bool LowLow>
__device__ __forceinline__ void multiply_add_split(float (&rC)[4], const left_split& rA, const right_split& rB) {
    float rD[4] = {0.f, 0.f, 0.f, 0.f};
    if constexpr (LowLow) multiply_tf32(rD, rA.low, rB.low[0], rB.low[1], rD);
    multiply_tf32(rD, rA.low, rB.high[0], rB.high[1], rD);
    multiply_tf32(rD, rA.high, rB.low[0], rB.low[1], rD);
    multiply_tf32(rD, rA.high, rB.high[0], rB.high[1], rD);
#pragma unroll
    for (int e = 0; e < 4; ++e) rC[e] = First ? rD[e] : rC[e] + rD[e];
}

// The two factors as the unit's operands, from shared memory.
template <class Group, int Step>
struct pair_operands {
    using shape = pair_trip_shape<Group, Step>;
    const typename Group::scalar* sFactors;
    int lane;

    __device__ __forceinline__ void read(left_split& rF, int m, int k) const {
        const uint4* s = reinterpret_cast<const uint4*>(sFactors + Group::factor_offset(shape::lower)) +
                         (m * shape::a_steps + k) * 64 + lane;
        *reinterpret_cast<uint4*>(rF.high) = s[0];
        *reinterpret_cast<uint4*>(rF.low) = s[32];
    }
    __device__ __forceinline__ void read(right_split& rF, int k, int n) const {
        const uint4 f = reinterpret_cast<const uint4*>(
            sFactors + Group::factor_offset(shape::upper))[(k * shape::b_steps + n) * 32 + lane];
        rF.high[0] = f.x;
        rF.high[1] = f.y;
        rF.low[0] = f.z;
        rF.low[1] = f.w;
    }
    __device__ __forceinline__ void read(unsigned (&rF)[4], int m, int k) const {
        const uint2* s = reinterpret_cast<const uint2*>(sFactors + Group::factor_offset(shape::lower)) +
                         (m * shape::a_steps + k) * 64 + lane;
        const uint2 first = s[0], second = s[32];
        rF[0] = first.x;
        rF[1] = first.y;
        rF[2] = second.x;
        rF[3] = second.y;
    }
    __device__ __forceinline__ void read(unsigned (&rF)[2], int k, int n) const {
        const uint2 f = reinterpret_cast<const uint2*>(
            sFactors + Group::factor_offset(shape::upper))[(k * shape::b_steps + n) * 32 + lane];
        rF[0] = f.x;
        rF[1] = f.y;
    }
    __device__ __forceinline__ void read(double (&rF)[4], int m, int k) const {
        const double2* s = reinterpret_cast<const double2*>(sFactors + Group::factor_offset(shape::lower)) +
                           (m * shape::a_steps + k) * 64 + lane;
        const double2 first = s[0], second = s[32];
        rF[0] = first.x;
        rF[1] = first.y;
        rF[2] = second.x;
        rF[3] = second.y;
    }
    __device__ __forceinline__ void read(double (&rF)[2], int k, int n) const {
        const double2 f = reinterpret_cast<const double2*>(
            sFactors + Group::factor_offset(shape::upper))[(k * shape::b_steps + n) * 32 + lane];
        rF[0] = f.x;
        rF[1] = f.y;
    }
};

template <class Scalar, bool SingleProducts>
struct pair_words {
    using left = unsigned[4];
    using right = unsigned[2];
};
template <>
struct pair_words<float, false> {
    using left = left_split;
    using right = right_split;
};
template <>
struct pair_words<double, false> {
    using left = double[4];
    using right = double[2];
};

// The products of a pair of eights: single ones, of which Exact elements are operands as they are, and doubles.
template <bool Exact>
__device__ __forceinline__ void multiply_eights(float (&rC)[4], const float (&rA)[4], const float (&rB)[2]) {
    const unsigned rLeft[4] = {as_tf32<Exact>(rA[0]), as_tf32<Exact>(rA[1]), as_tf32<Exact>(rA[2]),
                               as_tf32<Exact>(rA[3])};
    multiply_tf32(rC, rLeft, __float_as_uint(rB[0]), __float_as_uint(rB[1]), rC);
}
template <bool>
__device__ __forceinline__ void multiply_eights(double (&rC)[4], const double (&rA)[4], const double (&rB)[2]) {
    multiply_add_double(rC, rA, rB[0], rB[1]);
}

// rX (unit, half of the sum) = this lane's elements of an item of a pair trip of eights, with b = g; from: where they stand in the tile.
template <int Blocks, bool Raw, bool Exact, class Group, class Shape, int U>
__device__ __forceinline__ void read_eights(const typename Group::scalar* sFrom, int from, int g,
                                            typename Group::scalar (&rX)[U][2]) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    constexpr bool last_modes = Shape::last_modes;
    constexpr int width = last_modes ? 2 : Group::vector;  // elements of an access
    constexpr int b_held = 8 / Blocks;
    using access = packet<width* int(sizeof(scalar))>;
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // last modes: unit j; else half j, all units side by side
        alignas(16) scalar some[width];
        constexpr int next = last_modes ? b_held * Group::stride(Shape::upper) : 4 * Group::stride(Shape::lower);
        const scalar* s = sFrom + (Raw ? 0 : Group::place_further(from, j * next));
        if constexpr (Raw)
            read_widened(reinterpret_cast<const storage*>(sFrom) + (from + j * next), some);
        else if constexpr (Blocks > 1)
            read_from_block<int(sizeof(access))>(some, s, int(unsigned(g) / unsigned(b_held)));
        else
            *reinterpret_cast<access*>(some) = *reinterpret_cast<const access*>(s);
#pragma unroll
        for (int e = 0; e < width; ++e) {
            scalar x = some[e];
            if constexpr (!Exact) x = __uint_as_float(as_tf32<false>(x));
            rX[last_modes ? j : e][last_modes ? e : j] = x;
        }
    }
}

// sTo = an item's results rY (unit or two, fragment) of a pair trip of eights, which stand from `to` on in the tile.
template <int Blocks, class Group, class Shape, int Count>
__device__ __forceinline__ void write_eights(typename Group::scalar* sTo, int to,
                                             const typename Group::scalar (&rY)[Count][4]) {
    using scalar = typename Group::scalar;
    constexpr int b_stride = Group::stride(Shape::upper), b_held = 8 / Blocks, U = 2 * Count;
#pragma unroll
    for (int j = 0; j < 2; ++j)
        if constexpr (Shape::last_modes) {
            sTo[Group::place_further(to, 4 * j * b_stride)] = rY[0][j];
            sTo[Group::place_further(to, 4 * j * b_stride + b_held * b_stride)] = rY[0][2 + j];
        } else {
            alignas(16) scalar rOut[U];  // (unit)
#pragma unroll
            for (int u = 0; u < U; ++u) rOut[u] = rY[u / 2][2 * (u % 2) + j];
            *reinterpret_cast<packet<16>*>(sTo + Group::place_further(to, 4 * j * b_stride)) =
                *reinterpret_cast<const packet<16>*>(rOut);
        }
}

// As pair_trip, for two modes of 8, of doubles or by single products: the first product fills half of the unit's rows, for the second two units share
// its rows. An item is two units that follow each other in what is outside, or as many as an access holds in what is inside.
template <class Group, int Step, bool ToY>
__device__ __forceinline__ void pair_trip_of_eights(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                                    const typename Group::scalar* sFactors,
                                                    const tile_place<typename Group::storage>& place,
                                                    const typename Group::last_step& last_step) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using shape = pair_trip_shape<Group, Step>;
    constexpr bool last_modes = shape::last_modes, exact = Group::words == 2 || (Group::widens && Step == 0);
    constexpr int a_stride = Group::stride(shape::lower), b_stride = Group::stride(shape::upper);
    constexpr int blocks = ToY ? Group::cluster : 1, b_held = 8 / blocks;
    constexpr int outer = Group::rows * Group::extent_product(Step, 1, shape::upper - 1);
    constexpr int U = last_modes ? 2 : Group::vector;     // units of an item
    constexpr int items = outer * a_stride / U / blocks;  // of this block
    constexpr int warps = Group::threads / 32;
    constexpr int batch = items % (4 * warps) == 0 && U == 2 ? 4
                          : items % (2 * warps) == 0         ? 2
                                                             : 1;  // items worked on together
    static_assert(Group::swizzled && outer * a_stride % (U * blocks) == 0 && (!ToY || last_modes));

    const int warp = int(threadIdx.x / 32u), lane = int(threadIdx.x % 32u), g = int(threadIdx.x / 4u % 8u),
              t = int(threadIdx.x % 4u);
    scalar rLower[4], rUpper[2];
    {
        using pair = packet<2 * int(sizeof(scalar))>;
        alignas(16) scalar two[2];
        *reinterpret_cast<pair*>(two) =
            reinterpret_cast<const pair*>(sFactors + Group::factor_offset(shape::lower))[lane];
        rLower[0] = two[0];
        rLower[1] = rLower[3] = scalar(0);
        rLower[2] = two[1];
        *reinterpret_cast<pair*>(two) =
            reinterpret_cast<const pair*>(sFactors + Group::factor_offset(shape::upper))[lane];
        rUpper[0] = two[0];
        rUpper[1] = two[1];
    }
    constexpr bool raw = Group::reads_raw && Step == 0;  // sFrom holds 16-bit elements, as they stand in memory
    const int lane_from =
        raw ? g * b_stride + 2 * t : Group::place((g % b_held) * b_stride + (last_modes ? 2 * t : t * a_stride));
    const int lane_to = Group::place(t * b_stride + g * a_stride);

#pragma unroll 1
    for (int own = warp * batch; own < items; own += warps * batch) {
        scalar rX[batch][U][2];  // (item, unit, half of the sum)
        int origin[batch];
#pragma unroll
        for (int c = 0; c < batch; ++c) {
            const int first = U * (own + c + (blocks > 1 ? cluster_rank() * items : 0));  // unit, counted inside first
            const int i = int(unsigned(first) % unsigned(a_stride)), o = int(unsigned(first) / unsigned(a_stride));
            origin[c] = o * (b_held * b_stride) + i;
            const int from = raw ? origin[c] + lane_from : Group::place(origin[c]) ^ lane_from;
            read_eights<blocks, raw, exact, Group, shape>(sFrom, from, g, rX[c]);
        }
        scalar rD[batch][U][4], rY[batch][U / 2][4];  // (item, unit or two, fragment)
#pragma unroll
        for (int c = 0; c < batch; ++c)
#pragma unroll
            for (int u = 0; u < U; ++u) {
#pragma unroll
                for (int e = 0; e < 4; ++e) rD[c][u][e] = scalar(0);
                multiply_eights<true>(rD[c][u], rLower, rX[c][u]);
            }
#pragma unroll
        for (int c = 0; c < batch; ++c)
#pragma unroll
            for (int u = 0; u < U; u += 2) {
                const scalar rA[4] = {rD[c][u][0], rD[c][u + 1][0], rD[c][u][1], rD[c][u + 1][1]};
#pragma unroll
                for (int e = 0; e < 4; ++e) rY[c][u / 2][e] = scalar(0);
                multiply_eights<false>(rY[c][u / 2], rA, rUpper);
            }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < batch; ++c) {
            if constexpr (ToY) {
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const int o = int(unsigned(origin[c]) / unsigned(b_held * b_stride)) + u;
                    const int row = int(unsigned(o) / unsigned(outer / Group::rows)),
                              rest = int(unsigned(o) % unsigned(outer / Group::rows));
                    storage* gY = place.y + row * place.y_row_stride + (rest * 64 + t * 8 + g);
                    if (row < place.rows)
                        last_step.template store_all<2, 1>([&](int j) { return gY + 4 * j * 8; },
                                                           [&](int j, int) { return rY[c][0][2 * u + j]; });
                }
            } else {
                write_eights<blocks, Group, shape>(sTo, Group::place(origin[c]) ^ lane_to, rY[c]);
            }
        }
    }
}

// The products of `together` eights of b, from n0 on, of one unit: rY (m x n, row pair x column pair) = (n0 = 0) or += what they have in it.
// element(c, k, h): of the c-th eight, at a = a_of(k, h, t). rLower (m, k), rUpper (k, n): the factors where a lane holds them, which else come
// from `operands`. By single products the trip does the same itself: in a function, the compiler makes another code of it.

// Of floats, split.
template <class Shape, class Operands, int Lower, int Upper, class Element>
__device__ __forceinline__ void multiply_pair_split(const Element& element, int n0, const Operands& operands,
                                                    const left_split (&rLower)[Lower],
                                                    const right_split (&rUpper)[Upper],
                                                    float (&rY)[Shape::a_rows * Shape::b_steps][4]) {
    constexpr int a_steps = Shape::a_steps, a_rows = Shape::a_rows, b_steps = Shape::b_steps,
                  together = Shape::together;
    right_split rB[together][a_steps];
    float rD[a_rows][together][4];
#pragma unroll
    for (int c = 0; c < together; ++c)
#pragma unroll
        for (int k = 0; k < a_steps; ++k)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const split_float parts = split(element(c, k, h));
                rB[c][k].high[h] = parts.high;
                rB[c][k].low[h] = parts.low;
            }
#pragma unroll
    for (int m = 0; m < a_rows; ++m)
#pragma unroll
        for (int k = 0; k < a_steps; ++k) {
            left_split rF;
            if constexpr (Shape::holds_factors)
                rF = rLower[m * a_steps + k];
            else
                operands.read(rF, m, k);
#pragma unroll
            for (int c = 0; c < together; ++c) {
                if (k == 0)
                    multiply_add_split<true, takes_low_low(Shape::A)>(rD[m][c], rF, rB[c][k]);
                else
                    multiply_add_split<false, takes_low_low(Shape::A)>(rD[m][c], rF, rB[c][k]);
            }
        }
#pragma unroll
    for (int c = 0; c < together; ++c) {
        left_split rA[a_rows];
#pragma unroll
        for (int m = 0; m < a_rows; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) {  // columns 2t and 2t + 1 become t and t + 4
                const split_float parts = split(rD[m][c][e / 2 + 2 * (e % 2)]);
                rA[m].high[e] = parts.high;
                rA[m].low[e] = parts.low;
            }
#pragma unroll
        for (int n = 0; n < b_steps; ++n) {
            right_split rF;
            if constexpr (Shape::holds_factors)
                rF = rUpper[(n0 + c) * b_steps + n];
            else
                operands.read(rF, n0 + c, n);
#pragma unroll
            for (int m = 0; m < a_rows; ++m) {
                if (n0 + c == 0)
                    multiply_add_split<true, false>(rY[m * b_steps + n], rA[m], rF);
                else
                    multiply_add_split<false, false>(rY[m * b_steps + n], rA[m], rF);
            }
        }
    }
}

// Of doubles.
template <class Shape, class Operands, class Left, int Lower, class Right, int Upper, class Element>
__device__ __forceinline__ void multiply_pair_double(const Element& element, int n0, const Operands& operands,
                                                     const Left (&rLower)[Lower], const Right (&rUpper)[Upper],
                                                     double (&rY)[Shape::a_rows * Shape::b_steps][4]) {
    constexpr int a_steps = Shape::a_steps, a_rows = Shape::a_rows, b_steps = Shape::b_steps,
                  together = Shape::together;
    double rD[a_rows][together][4];
#pragma unroll
    for (int m = 0; m < a_rows; ++m)
#pragma unroll
        for (int k = 0; k < a_steps; ++k) {
            double rF[4];
            if constexpr (Shape::holds_factors) {
#pragma unroll
                for (int e = 0; e < 4; ++e) rF[e] = rLower[m * a_steps + k][e];
            } else
                operands.read(rF, m, k);
#pragma unroll
            for (int c = 0; c < together; ++c) {
                if (k == 0)
#pragma unroll
                    for (int e = 0; e < 4; ++e) rD[m][c][e] = 0.;
                multiply_add_double(rD[m][c], rF, element(c, k, 0), element(c, k, 1));
            }
        }
#pragma unroll
    for (int c = 0; c < together; ++c)
#pragma unroll
        for (int n = 0; n < b_steps; ++n) {
            double rF[2];
            if constexpr (Shape::holds_factors) {
                rF[0] = rUpper[(n0 + c) * b_steps + n][0];
                rF[1] = rUpper[(n0 + c) * b_steps + n][1];
            } else
                operands.read(rF, n0 + c, n);
#pragma unroll
            for (int m = 0; m < a_rows; ++m) {
                double(&rC)[4] = rY[m * b_steps + n];
                const double rA[4] = {rD[m][c][0], rD[m][c][2], rD[m][c][1], rD[m][c][3]};
                if (n0 + c == 0)
#pragma unroll
                    for (int e = 0; e < 4; ++e) rC[e] = 0.;
                multiply_add_double(rC, rA, rF[0], rF[1]);
            }
        }
}

// rY (unit, m x n, row pair x column pair) of the item at `origin` once more, by multiply-adds. Rolled, through a local array: rare, and the
// registers of the usual path stay free. Blocks share the trip.
template <int Blocks, class Group, class Shape>
__device__ __forceinline__ void repeat_pair_by_multiply_adds(
    const float* sFrom, int origin, int g, int t, const group_arguments<float>& arguments,
    float (&rY)[Shape::units][Shape::a_rows * Shape::b_steps][4]) {
    constexpr int upper = Shape::upper, lower = Shape::lower, a_rows = Shape::a_rows, b_steps = Shape::b_steps;
    constexpr int a_stride = Group::stride(lower), b_stride = Group::stride(upper), b_held = Shape::B / Blocks;
    const float *gUpper = arguments.factor[upper - 1], *gLower = arguments.factor[lower - 1];
    constexpr int count = Shape::units * a_rows * b_steps * 4;
    float rAgain[count];
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
        const int e = c % 4, n = c / 4 % b_steps, m = c / 4 / b_steps % a_rows, u = c / (4 * a_rows * b_steps);
        const int q_a = Shape::row_of(m, e / 2, g), q_b = Shape::column_of(n, 2 * t + e % 2);
        float sum = 0.f;
#pragma unroll 1
        for (int b = 0; b < Shape::B; ++b) {
            float inside = 0.f;
#pragma unroll 1
            for (int a = 0; a < Shape::A; ++a) {
                const float* s = sFrom + Group::place(origin + u + b % b_held * b_stride + a * a_stride);
                float x;
                if constexpr (Blocks > 1)
                    read_from_block<4>(&x, s, b / b_held);
                else
                    x = *s;
                inside +=
                    x * gLower[a * arguments.factor_p_stride[lower - 1] + q_a * arguments.factor_q_stride[lower - 1]];
            }
            sum +=
                inside * gUpper[b * arguments.factor_p_stride[upper - 1] + q_b * arguments.factor_q_stride[upper - 1]];
        }
        rAgain[c] = sum;
    }
#pragma unroll
    for (int c = 0; c < count; ++c) rY[c / (4 * a_rows * b_steps)][c / 4 % (a_rows * b_steps)][c % 4] = rAgain[c];
}

// rX (access, its elements) = this lane's elements with b = 8n + g, a = a_of(k, h, t), for all units of an item; from: where its own stand in the
// tile. Blocks share the trip; Raw: sFrom holds 16-bit elements, as they stand in memory.
template <int Blocks, bool Raw, class Group, class Shape>
__device__ __forceinline__ void read_pair_item(const typename Group::scalar* sFrom, int from, int n, int g,
                                               typename Group::scalar* rX) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    constexpr int a_stride = Group::stride(Shape::lower), b_stride = Group::stride(Shape::upper),
                  b_held = Shape::B / Blocks;
    constexpr int width = Shape::last_modes ? (Group::words == 1 ? 4 : 2) : Shape::units;  // elements of an access
    constexpr int of_step = Shape::a_steps * 2 * Shape::units / width;                     // accesses of eight b
#pragma unroll
    for (int j = 0; j < of_step; ++j) {
        // Accesses along a: (k, h) of the first element. Units side by side: one access each (k, h).
        const int first = Shape::last_modes ? j * width : j;
        const int at = (8 * n % b_held) * b_stride + Shape::a_of(first / 2, first % 2, 0) * a_stride;
        const scalar* s = sFrom + (Raw ? 0 : Group::place_further(from, at));
        if constexpr (Raw)
            read_widened(reinterpret_cast<const storage*>(sFrom) + (from + at),
                         *reinterpret_cast<scalar(*)[width]>(rX + j * width));
        else if constexpr (Blocks > 1)
            read_from_block<16>(rX + j * width, s, int(unsigned(8 * n + g) / unsigned(b_held)));
        else
            *reinterpret_cast<packet<16>*>(rX + j * width) = *reinterpret_cast<const packet<16>*>(s);
    }
}

// Contract: sTo[.., q_b, q_a, i] = sum_{b, a} sFrom[.., b, a, i] F_upper[b, q_b] F_lower[a, q_a] over the tile; with ToY (last modes only) the result goes
// to Y through the epilogue, in a cluster for this block's share of the outer indices, b from the block that holds it.
// sFrom = sTo is allowed. All threads call it; no barrier at either end.
template <class Group, int Step, bool ToY>
__device__ __forceinline__ void pair_trip(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                          const typename Group::scalar* sFactors,
                                          const tile_place<typename Group::storage>& place,
                                          const typename Group::last_step& last_step,
                                          const group_arguments<typename Group::storage>& arguments) {
    using scalar = typename Group::scalar;
    using shape = pair_trip_shape<Group, Step>;
    using storage = typename Group::storage;
    using left = typename pair_words<scalar, Group::single_products>::left;
    using right = typename pair_words<scalar, Group::single_products>::right;
    constexpr int A = shape::A, B = shape::B, upper = shape::upper, lower = shape::lower, U = shape::units;
    constexpr int a_steps = shape::a_steps, a_rows = shape::a_rows, b_steps = shape::b_steps,
                  together = shape::together;
    constexpr bool is_float = Group::words == 1, held = shape::holds_factors;
    constexpr int blocks = ToY ? Group::cluster : 1;  // that share this trip
    constexpr int a_stride = Group::stride(lower), b_stride = Group::stride(upper);
    constexpr int b_held = B / blocks;  // upper indices in one block
    constexpr int outer = Group::rows * Group::extent_product(Step, 1, upper - 1);
    constexpr int items = outer * (a_stride / U) / blocks;  // of this block; a_stride = extent of all that is below
    constexpr int warps = Group::threads / 32;
    static_assert(Group::swizzled && a_stride % U == 0 && (!ToY || shape::last_modes));
    static_assert(outer * (a_stride / U) % blocks == 0);

    const int warp = int(threadIdx.x / 32u), lane = int(threadIdx.x % 32u), g = int(threadIdx.x / 4u % 8u),
              t = int(threadIdx.x % 4u);
    const pair_operands<Group, Step> operands{sFactors, lane};
    left rLower[held ? a_rows * a_steps : 1];    // (m, k)
    right rUpper[held ? b_steps * b_steps : 1];  // (k, n)
    if constexpr (held) {
#pragma unroll
        for (int i = 0; i < a_rows * a_steps; ++i) operands.read(rLower[i], i / a_steps, i % a_steps);
#pragma unroll
        for (int i = 0; i < b_steps * b_steps; ++i) operands.read(rUpper[i], i / b_steps, i % b_steps);
    }
    // Where this lane's element b = g (in this block or another), a = a_of(0, 0, t) stands from the unit's origin; and q_b = t, q_a = row_of(0, 0, g).
    constexpr bool raw = Group::reads_raw && Step == 0;  // sFrom holds 16-bit elements, as they stand in memory
    const int lane_from = raw ? (g % b_held) * b_stride + shape::a_of(0, 0, t) * a_stride
                              : Group::place((g % b_held) * b_stride + shape::a_of(0, 0, t) * a_stride);
    const auto lane_at = [&](int origin) { return raw ? origin + lane_from : Group::place(origin) ^ lane_from; };
    const int lane_to = Group::place(t * b_stride + shape::row_of(0, 0, g) * a_stride);

    constexpr int width = shape::last_modes ? (is_float ? 4 : 2) : U;  // elements of an access
    constexpr int accesses = b_steps * a_steps * 2 * U / width;        // of an item
    constexpr int of_step = accesses / b_steps;                        // of eight b
    constexpr bool all_at_once = A == 16;                              // else registers run out
    constexpr bool ahead = all_at_once && shape::last_modes;  // the next item's data comes while one is worked on
    const auto origin_of = [&](int own) {
        const int item = own + (blocks > 1 ? cluster_rank() * items : 0);
        const int i = int(unsigned(item) % unsigned(a_stride / U)) * U,
                  o = int(unsigned(item) / unsigned(a_stride / U));
        return o * (b_held * b_stride) + i;
    };
    // This lane's elements with b = 8n + g, a = a_of(k, h, t), for all units of the item.
    const auto fetch = [&](int from, int n, scalar* rX) {
        read_pair_item<blocks, raw, Group, shape>(sFrom, from, n, g, rX);
    };
    // Of an item's results: groups of q_a in different places, of `count` elements each.
    constexpr int S = shape::side_by_side, groups = a_rows * 2 / S, count = shape::last_modes ? S : U;
    // Where piece k = (n, j, s) stands from the unit's first element; grows with k.
    const auto q_of = [](int k, int a_step, int b_step) {
        return shape::column_of(k / (2 * groups), k / groups % 2) * b_step +
               shape::row_of(k % groups * S / 2, k % groups * S % 2, 0) * a_step;
    };
    const auto in_y = [&](int o, bool& exists) {
        const int row = int(unsigned(o) / unsigned(outer / Group::rows)),
                  rest = int(unsigned(o) % unsigned(outer / Group::rows));
        exists = !ToY || row < place.rows;
        return ToY ? place.y + row * place.y_row_stride + index_t(rest) * (A * B) + (t * A + shape::row_of(0, 0, g))
                   : nullptr;
    };
    // What stands beside the products, read before they are known.
    constexpr int results = U * a_rows * b_steps * 4 * Group::words;
    constexpr bool beside_ahead =
        ToY && read_ahead<Group>(results, results + (held ? shape::words_held : 0) + (all_at_once ? 96 : 160), 1) > 0;
    beside_early<scalar, (beside_ahead ? 2 * b_steps * groups : 1), (beside_ahead ? count : 1)> rAside;
    alignas(16) scalar rX[(all_at_once ? accesses : together * of_step) * width];
    alignas(16) scalar rNext[ahead ? accesses * width : 1];
    if constexpr (ahead)
        if (warp < items) {
            const int from = lane_at(origin_of(warp));
#pragma unroll
            for (int n = 0; n < b_steps; ++n) fetch(from, n, rNext + n * of_step * width);
        }

#pragma unroll 1
    for (int own = warp; own < items; own += warps) {
        const int origin = origin_of(own), o = int(unsigned(origin) / unsigned(b_held * b_stride));
        const int from = lane_at(origin), to = Group::place(origin) ^ lane_to;
        if constexpr (beside_ahead) {
            bool exists;
            const storage* gY = in_y(o, exists);
            last_step.read_early(
                exists, [&](int k) { return gY + q_of(k, 1, A); }, count, rAside);
        }
        if constexpr (ahead) {
#pragma unroll
            for (int j = 0; j < accesses * width; ++j) rX[j] = rNext[j];
            if (own + warps < items) {
                const int next = lane_at(origin_of(own + warps));
#pragma unroll
                for (int n = 0; n < b_steps; ++n) fetch(next, n, rNext + n * of_step * width);
            }
        } else if constexpr (all_at_once) {
#pragma unroll
            for (int n = 0; n < b_steps; ++n) fetch(from, n, rX + n * of_step * width);
        }
        scalar rY[U][a_rows * b_steps][4];  // (unit, m x n, row pair x column pair)
#pragma unroll
        for (int n0 = 0; n0 < b_steps; n0 += together) {
            if constexpr (!all_at_once) {
#pragma unroll
                for (int c = 0; c < together; ++c) fetch(from, n0 + c, rX + c * of_step * width);
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                // Element (k, h) of the c-th eight of b.
                const auto element = [&](int c, int k, int h) {
                    const int n = all_at_once ? n0 + c : c;
                    return shape::last_modes ? rX[n * of_step * width + 2 * k + h]
                                             : rX[(n * of_step + 2 * k + h) * width + u];
                };
                if constexpr (Group::single_products) {
                    unsigned rB[together][a_steps][2];
                    float rD[a_rows][together][4];
#pragma unroll
                    for (int c = 0; c < together; ++c)
#pragma unroll
                        for (int k = 0; k < a_steps; ++k)
#pragma unroll
                            for (int h = 0; h < 2; ++h)
                                rB[c][k][h] = as_tf32 < Group::widens && Step == 0 > (element(c, k, h));
#pragma unroll
                    for (int m = 0; m < a_rows; ++m)
#pragma unroll
                        for (int k = 0; k < a_steps; ++k) {
                            left rF;
                            if constexpr (held) {
#pragma unroll
                                for (int e = 0; e < 4; ++e) rF[e] = rLower[m * a_steps + k][e];
                            } else
                                operands.read(rF, m, k);
#pragma unroll
                            for (int c = 0; c < together; ++c) {
                                if (k == 0)
#pragma unroll
                                    for (int e = 0; e < 4; ++e) rD[m][c][e] = 0.f;
                                multiply_tf32(rD[m][c], rF, rB[c][k][0], rB[c][k][1], rD[m][c]);
                            }
                        }
#pragma unroll
                    for (int c = 0; c < together; ++c) {
                        unsigned rA[a_rows][4];
#pragma unroll
                        for (int m = 0; m < a_rows; ++m)
#pragma unroll
                            for (int e = 0; e < 4; ++e)  // columns 2t and 2t + 1 become t and t + 4
                                rA[m][e] = as_tf32<false>(rD[m][c][e / 2 + 2 * (e % 2)]);
#pragma unroll
                        for (int n = 0; n < b_steps; ++n) {
                            right rF;
                            if constexpr (held) {
                                rF[0] = rUpper[(n0 + c) * b_steps + n][0];
                                rF[1] = rUpper[(n0 + c) * b_steps + n][1];
                            } else
                                operands.read(rF, n0 + c, n);
#pragma unroll
                            for (int m = 0; m < a_rows; ++m) {
                                float(&rC)[4] = rY[u][m * b_steps + n];
                                if (n0 + c == 0)
#pragma unroll
                                    for (int e = 0; e < 4; ++e) rC[e] = 0.f;
                                multiply_tf32(rC, rA[m], rF[0], rF[1], rC);
                            }
                        }
                    }
                } else if constexpr (is_float)
                    multiply_pair_split<shape>(element, n0, operands, rLower, rUpper, rY[u]);
                else
                    multiply_pair_double<shape>(element, n0, operands, rLower, rUpper, rY[u]);
            }
        }

        // A product that is not finite: an operand was infinite, NaN or too large to split. Repeat with multiply-adds, which say
        // which it is.
        if constexpr (is_float && !Group::single_products) {
            float zero = 0.f;
#pragma unroll
            for (int u = 0; u < U; ++u)
#pragma unroll
                for (int c = 0; c < a_rows * b_steps; ++c)
#pragma unroll
                    for (int e = 0; e < 4; ++e) zero += rY[u][c][e] * 0.f;
            if (__any_sync(0xffffffffu, !(zero == 0.f)))
                repeat_pair_by_multiply_adds<blocks, Group, shape>(sFrom, origin, g, t, arguments, rY);
        }
        __syncwarp();
        bool exists;
        storage* const gY = in_y(o, exists);
        if (exists) {
            const auto value = [&](int k, int c) {
                const int n = k / (2 * groups), j = k / groups % 2, s = k % groups;
                const int mr = shape::last_modes ? s * S + c : s;  // m x row pair
                return rY[shape::last_modes ? 0 : c][mr / 2 * b_steps + n][2 * (mr % 2) + j];
            };
            if constexpr (ToY) {
                const auto in_place = [&](int k) { return gY + q_of(k, 1, A); };
                if constexpr (beside_ahead)
                    last_step.finish_early(in_place, value, count, rAside);
                else
                    last_step.template store_all<2 * b_steps * groups, count>(in_place, value);
            } else
#pragma unroll
                for (int k = 0; k < 2 * b_steps * groups; ++k) {
                    alignas(16) scalar rOut[count];
#pragma unroll
                    for (int c = 0; c < count; ++c) rOut[c] = value(k, c);
                    using word = packet<count* int(sizeof(scalar))>;
                    *reinterpret_cast<word*>(sTo + Group::place_further(to, q_of(k, a_stride, b_stride))) =
                        *reinterpret_cast<const word*>(rOut);
                }
        }
    }
}

}  // namespace otimes::kernels

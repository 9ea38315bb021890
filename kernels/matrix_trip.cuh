// SPDX-License-Identifier: MIT
// A trip by the matrix unit: one mode, a warp takes 32 fibres (double below P = 64: 16). The warpgroup's matrix unit (float): four warps
// take 128 fibres, or 64 where the tile has no more for each warpgroup.
//
// The warp's unit takes any P and Q: beyond P a lane multiplies zeros with the zeros of the factor's fragments, beyond Q it stores nothing.
//
// Which fibre stands in which row of the product, and which p (q) in which column, is free; it is chosen so that every lane's accesses
// are 16 bytes wide (where odd extents stand below: less) and free of bank conflicts with the strides of mode_group:
//   inner mode: row g (g + 8) of the first (second) product is fibre 4g + j, so a lane reads 4 (2) neighbouring fibres at p = 8k + t and
//               8k + t + 4, and writes them at q = 8n + t and 8n + t + 4;
//   last mode:  row = fibre g + 8j; float: a lane reads p = 8k + 2t, 8k + 2t + 1 and writes q = 8n + 2t, 8n + 2t + 1; so it writes
//               doubles that go to Y.
#pragma once
#include "matrix_unit.cuh"
#include "multiply_add_trip.cuh"
#include "warpgroup_unit.cuh"

namespace otimes::kernels {

template <class Group, int Step>
struct matrix_trip_shape {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    static constexpr int level = Group::steps::first(Step), split = Group::steps::split(Step);
    static constexpr int P = Group::p(level), Q = Group::q(level), stride = Group::stride(level);
    static constexpr int inputs = Group::inputs;
    static constexpr bool last_mode = stride == 1;
    static constexpr bool warpgroup = Group::steps::unit(Step) == 2;
    static constexpr bool few_fibres =
        warpgroup &&
        Group::rows * Group::extent_product(Step, 1, Group::modes) * Group::run / P <= Group::threads / split / 2;
    // Neighbouring fibres of an access: 4 float, 2 double, fewer where odd extents stand below.
    static constexpr int wide = few_fibres ? 2 : last_mode ? Group::vector : Group::unit_width(Step);
    // Such accesses of a lane; two share each read of the factor.
    static constexpr int halves = (Group::words == 2 && P >= 64 ? 2 : 1) * (few_fibres ? 1 : Group::vector / wide);
    static constexpr int packs = wide * halves;  // fibres a lane holds
    static constexpr int products = packs / 2;   // 16-row products a warp works on together
    static constexpr int warps = Group::threads / 32;
    static constexpr int tiles_q = Group::unit_q(level) / 8;
    static constexpr bool whole_q = 8 * tiles_q == Q;
    static constexpr int k_steps = Group::unit_p(level) / 8, n_tiles = tiles_q / split;
    static constexpr int slots = k_steps * tiles_q * 32;  // pairs of the factor
    // In order where a lane's two new indices are stored together: floats, and doubles that go to Y.
    static constexpr bool permuted_q =
        !(last_mode && (Group::words == 1 || (Group::direct && Step + 1 == Group::steps::count)));
    static constexpr bool paired_p = last_mode && Group::words == 1;
    static_assert(is_same<scalar, float> || is_same<scalar, double>,
                  "the matrix unit takes float and double; complex groups use multiply-adds");
    static_assert(Group::steps::modes(Step) == 1 && tiles_q % split == 0 && warps % split == 0);
    static_assert(!Group::filled_up(level) || (!warpgroup && inputs == 1 && Group::cluster == 1 && !Group::in_pieces),
                  "other extents than multiples of 8: a mode of one matrix in one block, by the warp's unit");
    static_assert(!Group::swizzled || !last_mode);
    static_assert(!warpgroup || (Group::words == 1 && (Group::segments == 1 || Group::rotates) &&
                                 warps % (4 * split) == 0 && (Q / split == 64 || Q / split == 32)),
                  "a warpgroup takes 32 or 64 new indices of fibres of floats or 16-bit elements");

    // Slot (k, n, lane) of the factor's fragments: the pair F[p, q], F[p_next, q_next].
    struct pair_place {
        int p, q, p_next, q_next;
    };
    static constexpr bool left_operand = false;
    __host__ __device__ static constexpr bool has(int p, int q) { return (P % 8 == 0 || p < P) && (whole_q || q < Q); }
    __host__ __device__ static constexpr bool exists_p(int p) { return P % 8 == 0 || p < P; }
    __host__ __device__ static constexpr bool exists_q(int q) { return whole_q || q < Q; }
    __host__ __device__ static constexpr pair_place pair_of(int slot) {
        const int g = int(unsigned(slot) / 4u % 8u), t = int(unsigned(slot) % 4u), tile = int(unsigned(slot) / 32u);
        const int p = int(unsigned(tile) / unsigned(tiles_q)) * 8 + (paired_p ? 2 * t : t);
        const int q = int(unsigned(tile) % unsigned(tiles_q)) * 8 + (permuted_q ? (g >> 1) + 4 * (g & 1) : g);
        return {p, q, p + (paired_p ? 1 : 4), q};
    }
};

// F[p, q], where each input has a factor for its part of P.
template <class Shape>
__device__ __forceinline__ typename Shape::scalar element_of_inputs(
    const group_arguments<typename Shape::storage>& arguments, int p, int q) {
    constexpr int each = Shape::P / Shape::inputs;
    const int input = p / each;
    return widen<typename Shape::scalar>(
        arguments.factor[input][p % each * arguments.factor_p_stride[input] + q * arguments.factor_q_stride[input]]);
}

// F[p, q] -> fragments in shared memory, as the trips read them: a slot holds a lane's two elements.
template <class Shape>
__device__ __forceinline__ void read_fragment(const group_arguments<typename Shape::storage>& arguments, int slot,
                                              typename Shape::scalar* rF) {
    const auto at = Shape::pair_of(slot);
    if constexpr (Shape::inputs > 1) {
        rF[0] = element_of_inputs<Shape>(arguments, at.p, at.q);
        rF[1] = element_of_inputs<Shape>(arguments, at.p_next, at.q_next);
    } else {
        const typename Shape::storage* gF = arguments.factor[Shape::level - 1];
        const index_t p_stride = arguments.factor_p_stride[Shape::level - 1],
                      q_stride = arguments.factor_q_stride[Shape::level - 1];
        const auto element = [&](int p, int q) {
            return Shape::has(p, q) ? widen<typename Shape::scalar>(gF[p * p_stride + q * q_stride])
                                    : typename Shape::scalar(0);
        };
        rF[0] = element(at.p, at.q);
        rF[1] = element(at.p_next, at.q_next);
    }
}

template <class Group, class Shape>
__device__ __forceinline__ void store_fragment(typename Group::scalar* sF, int slot, const typename Group::scalar* rF) {
    constexpr int Level = Shape::level;
    if constexpr (is_same<typename Group::scalar, complex<float>> && Group::presplit(Level)) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const split_float re = split_factor(rF[e].re), im = split_factor(rF[e].im);
            reinterpret_cast<uint4*>(sF)[2 * slot + e] = make_uint4(re.high, im.high, re.low, im.low);
        }
    } else if constexpr (Group::single_products) {
        const float first = __uint_as_float(as_tf32<Group::widens>(rF[0])),
                    second = __uint_as_float(as_tf32<Group::widens>(rF[1]));
        const int at = Group::warpgroup_level(Level) ? slot / 32 * 64 + slot % 32 : 2 * slot;
        sF[at] = first;
        sF[at + (Group::warpgroup_level(Level) ? 32 : 1)] = second;
    } else if constexpr (Group::words >= 2 || !Group::presplit(Level)) {
        sF[2 * slot] = rF[0];
        sF[2 * slot + 1] = rF[1];
    } else {
        constexpr int chained = Group::chained(Level);
        const split_float s0 = split_factor<chained>(rF[0]), s1 = split_factor<chained>(rF[1]);
        if constexpr (Group::warpgroup_level(Level)) {
            const int at = slot / 32 * 64 + slot % 32;
            constexpr int count = Group::p(Level) * Group::q(Level);
            sF[at] = __uint_as_float(s0.high);
            sF[at + 32] = __uint_as_float(s1.high);
            sF[count + at] = __uint_as_float(s0.low);
            sF[count + at + 32] = __uint_as_float(s1.low);
        } else if constexpr (
            Shape::left_operand) {  // slots (.., half, lane): a lane's four high words side by side, then its low ones
            const int lane = slot % 32, half = slot / 32 % 2, tile = slot / 64;
            uint2* s = reinterpret_cast<uint2*>(sF) + tile * 128 + lane * 2 + half;
            s[0] = make_uint2(s0.high, s1.high);
            s[64] = make_uint2(s0.low, s1.low);
        } else
            reinterpret_cast<uint4*>(sF)[slot] = make_uint4(s0.high, s1.high, s0.low, s1.low);
    }
}

template <class Group, class Shape>
__device__ __forceinline__ void place_fragments(const group_arguments<typename Group::storage>& arguments,
                                                typename Group::scalar* sF) {
    // Loads on their way together: more where there are few threads and so registers.
    constexpr int most = Group::threads * Group::blocks_per_multiprocessor <= 256 ? 16 : Group::any_warpgroup() ? 8 : 4;
    constexpr int each = Shape::slots / Group::threads, together = each < 1 ? 1 : each < most ? each : most;
#pragma unroll together
    for (unsigned slot = threadIdx.x; slot < unsigned(Shape::slots); slot += Group::threads) {
        typename Group::scalar rF[2];  // (of the pair)
        read_fragment<Shape>(arguments, int(slot), rF);
        store_fragment<Group, Shape>(sF, int(slot), rF);
    }
}

// A lane's pair of the factor, and all of its pairs for the part of Q that its warp computes.
template <int Words>
struct pair_of_factor {
    using type = double2;
};
template <>
struct pair_of_factor<1> {
    using type = uint4;
};

// What a lane reads beside its products in one round: V's or D's elements.
template <class Group, int Step>
using aside_of_round = beside_early<typename Group::scalar, 2 * matrix_trip_shape<Group, Step>::n_tiles,
                                    matrix_trip_shape<Group, Step>::wide>[matrix_trip_shape<Group, Step>::halves];

// What a lane keeps over all tiles of its block: its part of the factor; in groups that scale, D's elements from element `at` on, as long
// as the next tile wants the same ones.
template <class Group, int Step>
struct held_pairs {
    using shape = matrix_trip_shape<Group, Step>;
    using pair = typename pair_of_factor<Group::words>::type;
    pair value[shape::k_steps * shape::n_tiles];  // (k, n)
    mutable aside_of_round<Group, Step> aside;
    mutable unsigned at[shape::halves];

    __device__ __forceinline__ void read(const typename Group::scalar* sF) {
        for_each([&](int slot, pair& held) { held = reinterpret_cast<const pair*>(sF)[slot]; });
    }
    // From where the factor stands; double.
    __device__ __forceinline__ void read(const group_arguments<double>& arguments) {
        for_each([&](int slot, pair& held) { read_fragment<shape>(arguments, slot, &held.x); });
    }

private:
    // visit(slot of the factor's fragments, this lane's pair)
    template <class Visit>
    __device__ __forceinline__ void for_each(const Visit& visit) {
#pragma unroll
        for (int s = 0; s < shape::halves; ++s) at[s] = ~0u;
        const int n_first = int(threadIdx.x / 32u % unsigned(shape::split)) * shape::n_tiles;
#pragma unroll
        for (int k = 0; k < shape::k_steps; ++k)
#pragma unroll
            for (int n = 0; n < shape::n_tiles; ++n)
                visit((k * shape::tiles_q + n_first + n) * 32 + int(threadIdx.x % 32u), value[k * shape::n_tiles + n]);
    }
};
struct pairs_in_shared {};

// Where a trip keeps what it reads beside its products: over all tiles (Stays), or its own variable.
template <bool Stays, class Held, class Own>
__device__ __forceinline__ Own& aside_of(const Held& held, Own& own) {
    if constexpr (Stays)
        return held.aside;
    else
        return own;
}

// What becomes of a trip's results: they, or alpha times them, replace what stands in sTo; or sTo = alpha * result (First), sTo += alpha * result
// (which stands elsewhere than sFrom); or, to Y, alpha * result is added to what stands in sSum.
struct replace {};
template <class Scalar>
struct replace_times {
    Scalar alpha;
};
template <class Scalar, bool First>
struct into_sum {
    Scalar alpha;
};
template <class Scalar>
struct onto_sum {
    Scalar alpha;
    const Scalar* sSum;
};

template <int Count, class Scalar>
__device__ __forceinline__ void put(const replace&, Scalar* s, Scalar (&values)[Count]) {
    using word = packet<Count* int(sizeof(Scalar))>;
    *reinterpret_cast<word*>(s) = *reinterpret_cast<const word*>(values);
}
template <int Count, class Scalar>
__device__ __forceinline__ void put(const replace_times<Scalar>& times, Scalar* s, Scalar (&values)[Count]) {
#pragma unroll
    for (int e = 0; e < Count; ++e) values[e] *= times.alpha;
    put(replace{}, s, values);
}
template <int Count, class Scalar, bool First>
__device__ __forceinline__ void put(const into_sum<Scalar, First>& sum, Scalar* s, Scalar (&values)[Count]) {
    using word = packet<Count* int(sizeof(Scalar))>;
    alignas(16) Scalar rSum[Count];  // (Count)
    if constexpr (!First) *reinterpret_cast<word*>(rSum) = *reinterpret_cast<const word*>(s);
#pragma unroll
    for (int e = 0; e < Count; ++e) {
        const Scalar value = sum.alpha * values[e];
        rSum[e] = First ? value : rSum[e] + value;
    }
    *reinterpret_cast<word*>(s) = *reinterpret_cast<const word*>(rSum);
}

// rC (n x product) = the item's products by the warpgroup's matrix unit, which adds up `chained` steps of eight before a sum leaves it. With
// few warps a multiprocessor, two sums are under way in turn: while the unit works on one, the other is added in float, to
// nearest, and its next operands are split; with many, the warpgroups do that for each other.
template <class Group, class Shape, class Read>
__device__ __forceinline__ void multiply_together(const Read& read, const float* sF, int n_first,
                                                  float (&rC)[Shape::n_tiles * Shape::products][4]) {
    constexpr int products = Shape::products, n_tiles = Shape::n_tiles, N = 8 * n_tiles, k_steps = Shape::k_steps;
    constexpr int chained = Group::chained(Shape::level), k_sums = k_steps / chained;
    constexpr int buffers = Group::threads * Group::blocks_per_multiprocessor >= 512 ? 1 : 2;
    constexpr int whole = Shape::P * Shape::Q;       // elements of one part of the factor
    constexpr int step = Shape::tiles_q * 256 / 16;  // of the operands, from eight rows to the next
    static_assert(k_steps % chained == 0);
    float rD[buffers][N / 2];
    unsigned rHigh[buffers][chained][4], rLow[buffers][chained][4];  // (sum under way, step, fragment)
#pragma unroll
    for (int i = 0; i < n_tiles * products; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) rC[i][e] = 0.f;
    unsigned long long high = right_operand(sF + n_first * 64), low = right_operand(sF + whole + n_first * 64);
    using steps_of_sum = float[chained][2][2 * products];  // (step, p of the pair, fibre)
    const auto read_sum = [&](int sum, steps_of_sum& rX) {
#pragma unroll
        for (int c = 0; c < chained; ++c) read(sum * chained + c, rX[c]);
    };
    const auto start = [&](const steps_of_sum& rX, int m, int buffer) {
#pragma unroll
        for (int c = 0; c < chained; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const split_float parts = split(rX[c][e / 2][2 * m + e % 2]);
                rHigh[buffer][c][e] = parts.high;
                rLow[buffer][c][e] = parts.low;
            }
        keep_registers(rD[buffer]);
        warpgroup_begin();
        warpgroup_multiply<N, true>(rD[buffer], rLow[buffer][0], high);  // the small terms first
        warpgroup_multiply<N, false>(rD[buffer], rHigh[buffer][0], low);
#pragma unroll
        for (int c = 1; c < chained; ++c) {
            warpgroup_multiply<N, false>(rD[buffer], rLow[buffer][c], high + c * step);
            warpgroup_multiply<N, false>(rD[buffer], rHigh[buffer][c], low + c * step);
        }
#pragma unroll
        for (int c = 0; c < chained; ++c) warpgroup_multiply<N, false>(rD[buffer], rHigh[buffer][c], high + c * step);
        warpgroup_commit();
    };
    const auto finish = [&](int m, int buffer) {
        keep_registers(rD[buffer]);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) rC[i / 4 * products + m][i % 4] += rD[buffer][i];
    };
    const auto next_rows = [&] {
        high += chained * step;
        low += chained * step;
    };
    alignas(16) steps_of_sum rX[2];  // (this sum or the next)
    read_sum(0, rX[0]);
    if constexpr (buffers == 1) {
#pragma unroll 1
        for (int k = 0; k < k_sums; ++k) {
#pragma unroll
            for (int m = 0; m < products; ++m) {
                start(rX[0], m, 0);
                if (m == 0) read_sum(k + 1 < k_sums ? k + 1 : k, rX[1]);
                warpgroup_wait<0>();
                finish(m, 0);
            }
#pragma unroll
            for (int c = 0; c < chained; ++c)
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int j = 0; j < 2 * products; ++j) rX[0][c][h][j] = rX[1][c][h][j];
            next_rows();
        }
    } else {
        // Unrolled: the compiler keeps two sums under way only where it sees all of them.
        constexpr int sums = k_sums * products;
        for_constants<0, sums>([&](auto i) {
            constexpr int sum = decltype(i)::value, k = sum / products, m = sum % products, buffer = sum % 2;
            if constexpr (m == 0 && k + 1 < k_sums) read_sum(k + 1, rX[(k + 1) % 2]);
            if constexpr (sum >= 2) {
                warpgroup_wait<1>();
                finish((sum - 2) % products, buffer);
            }
            start(rX[k % 2], m, buffer);
            if constexpr (m == products - 1) next_rows();
        });
        if constexpr (sums > 1) {
            warpgroup_wait<1>();
            finish((sums - 2) % products, sums % 2);
        }
        warpgroup_wait<0>();
        finish((sums - 1) % products, (sums - 1) % 2);
    }
}

// The same by single products: the unit adds up the whole sum. The next operands are read while it works.
template <class Group, class Shape, bool Exact, class Read>
__device__ __forceinline__ void multiply_single(const Read& read, const float* sF, int n_first,
                                                float (&rC)[Shape::n_tiles * Shape::products][4]) {
    constexpr int products = Shape::products, N = 8 * Shape::n_tiles, k_steps = Shape::k_steps;
    constexpr int step = Shape::tiles_q * 256 / 16;  // of the operand, from eight rows to the next
    float rD[products][N / 2];
    unsigned rA[2][products][4];               // (this step or the next, product, fragment)
    alignas(16) float rX[2][2][2 * products];  // (this step or the next, p of the pair, fibre)
    const unsigned long long factor = right_operand(sF + n_first * 64);
    read(0, rX[0]);
    for_constants<0, k_steps>([&](auto i) {
        constexpr int k = decltype(i)::value, now = k % 2;
        if constexpr (k + 1 < k_steps) read(k + 1, rX[1 - now]);
        if constexpr (k > 1) warpgroup_wait<1>();  // step k - 2 has read its operands
#pragma unroll
        for (int m = 0; m < products; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) rA[now][m][e] = as_tf32<Exact>(rX[now][e / 2][2 * m + e % 2]);
#pragma unroll
        for (int m = 0; m < products; ++m) keep_registers(rD[m]);
        warpgroup_begin();
#pragma unroll
        for (int m = 0; m < products; ++m) warpgroup_multiply<N, k == 0>(rD[m], rA[now][m], factor + k * step);
        warpgroup_commit();
    });
    warpgroup_wait<0>();
#pragma unroll
    for (int m = 0; m < products; ++m) {
        keep_registers(rD[m]);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) rC[i / 4 * products + m][i % 4] = rD[m][i];
    }
}

// Where the element at place_further(placed, begin + c) stands. c is a constant, which the access itself adds where nothing is exchanged.
template <class Group, class Scalar>
__device__ __forceinline__ Scalar* further(Scalar* s, int placed, int begin, int c) {
    if constexpr (Group::swizzled)
        return s + Group::place_further(placed, begin + c);
    else
        return s + (placed + begin) + c;
}

// How far index p of the mode stands behind where it would follow the first one: its second half may stand elsewhere.
template <class Group, class Shape, class Next>
__device__ __forceinline__ int gap_at(const Next& next, int p) {
    if constexpr (is_same<Next, next_half<Group>>)
        return p < Shape::P / 2 ? 0 : next.gap;
    else
        return 0;
}

// The pieces of a trip. A lane's fibres: `packs`, of the last mode one by one, of an inner mode `halves` accesses of `wide` neighbours each. Its
// operand of step k, rX (p of the pair, fibre): their elements at two p; beyond P zero. Its results, rC (n x product, row pair x column pair): of
// fibre 2m + i at two q, in elements 2i and 2i + 1 of rC[n * products + m]. The pieces take of the trip's variables what they read, one by one:
// given a struct of them, or more of them, the compiler makes another code of the trip; so it does where what is repeated or stored is in a
// function, for extents that the unit fills up, and the trip has that itself.

// rX = step k of the last mode, whose fibres begin at `offset`.
template <class Group, class Shape>
__device__ __forceinline__ void read_last_mode(const typename Group::scalar* sFrom, const int (&offset)[Shape::packs],
                                               int t, int k, typename Group::scalar (&rX)[2][Shape::packs]) {
    using scalar = typename Group::scalar;
#pragma unroll
    for (int j = 0; j < Shape::packs; ++j) {
        if constexpr (Group::words == 1) {
            float2 pair{0.f, 0.f};
            if (Shape::exists_p(8 * k + 2 * t))
                pair = *reinterpret_cast<const float2*>(further<Group>(sFrom, offset[j], 2 * t, 8 * k));
            rX[0][j] = pair.x;
            rX[1][j] = Shape::P % 2 == 0 || Shape::exists_p(8 * k + 2 * t + 1) ? pair.y : 0.f;
        } else {
            rX[0][j] = Shape::exists_p(8 * k + t) ? *further<Group>(sFrom, offset[j], t, 8 * k) : scalar(0);
            rX[1][j] = Shape::exists_p(8 * k + t + 4) ? *further<Group>(sFrom, offset[j], t, 8 * k + 4) : scalar(0);
        }
    }
}

// The same of an inner mode; lane_offset: where this lane's p = t of each access stands.
template <class Group, class Shape, class Next>
__device__ __forceinline__ void read_inner_mode(const typename Group::scalar* sFrom,
                                                const int (&lane_offset)[Shape::halves], int t, int k, const Next& next,
                                                typename Group::scalar (&rX)[2][Shape::packs]) {
    using scalar = typename Group::scalar;
    constexpr int wide = Shape::wide;
    using word = packet<wide* int(sizeof(scalar))>;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < Shape::halves; ++s)
            if (Shape::exists_p(8 * k + t + 4 * h))
                *reinterpret_cast<word*>(rX[h] + s * wide) = *reinterpret_cast<const word*>(further<Group>(
                    sFrom + gap_at<Group, Shape>(next, 8 * k), lane_offset[s], 0, (8 * k + 4 * h) * Shape::stride));
            else
#pragma unroll
                for (int j = 0; j < wide; ++j) rX[h][s * wide + j] = scalar(0);
}

// The same in a cluster, whose blocks hold Held indices of the mode each; offset: of each access.
template <int Held, class Group, class Shape>
__device__ __forceinline__ void read_inner_mode_of_blocks(const typename Group::scalar* sFrom,
                                                          const int (&offset)[Shape::packs], int t, int k,
                                                          typename Group::scalar (&rX)[2][Shape::packs]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int p = 8 * k + t + 4 * h;
#pragma unroll
        for (int s = 0; s < Shape::halves; ++s)
            read_from_block<Shape::wide* int(sizeof(typename Group::scalar))>(
                rX[h] + s * Shape::wide,
                sFrom + Group::place(offset[s] + int(unsigned(p) % unsigned(Held)) * Shape::stride),
                int(unsigned(p) / unsigned(Held)));
    }
}

// rC = (First) or += step k of the products, by single ones; sF: fragments (k, n, lane); read(k, rX): by one of the above.
template <bool First, bool Exact, class Group, class Shape, class Read>
__device__ __forceinline__ void multiply_step_single(const Read& read, const float* sF, int lane, int n_first, int k,
                                                     float (&rC)[Shape::n_tiles * Shape::products][4]) {
    constexpr int products = Shape::products;
    unsigned rA[products][4];               // (product, fragment)
    alignas(16) float rX[2][Shape::packs];  // (p of the pair, fibre)
    read(k, rX);
#pragma unroll
    for (int m = 0; m < products; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) rA[m][e] = as_tf32<Exact>(rX[e / 2][2 * m + e % 2]);
#pragma unroll
    for (int n = 0; n < Shape::n_tiles; ++n) {
        const uint2 f = reinterpret_cast<const uint2*>(sF)[(k * Shape::tiles_q + n_first + n) * 32 + lane];
#pragma unroll
        for (int m = 0; m < products; ++m) {
            float(&rSum)[4] = rC[n * products + m];
            if constexpr (First)
#pragma unroll
                for (int e = 0; e < 4; ++e) rSum[e] = 0.f;
            multiply_tf32(rSum, rA[m], f.x, f.y, rSum);
        }
    }
}

// The same of floats, split.
template <bool First, class Group, class Shape, class Held, class Read>
__device__ __forceinline__ void multiply_step_split(const Read& read, const float* sF, const Held& held_factor,
                                                    int lane, int n_first, int k,
                                                    float (&rC)[Shape::n_tiles * Shape::products][4]) {
    constexpr int products = Shape::products, n_tiles = Shape::n_tiles;
    unsigned rHigh[products][4], rLow[products][4];  // (product, fragment)
    alignas(16) float rX[2][Shape::packs];           // (p of the pair, fibre)
    read(k, rX);
#pragma unroll
    for (int m = 0; m < products; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const split_float parts = split(rX[e / 2][2 * m + e % 2]);
            rHigh[m][e] = parts.high;
            rLow[m][e] = parts.low;
        }
    constexpr int together = n_tiles % 2 == 0 ? 2 : 1;  // tiles of Q worked on side by side
#pragma unroll
    for (int n = 0; n < n_tiles; n += together) {
        uint4 rF[together];  // (n)
#pragma unroll
        for (int c = 0; c < together; ++c) {
            const int tile = (k * Shape::tiles_q + n_first + n + c) * 32 + lane;
            if constexpr (!is_same<Held, pairs_in_shared>)
                rF[c] = held_factor.value[k * n_tiles + n + c];
            else if constexpr (Group::presplit(Shape::level))
                rF[c] = reinterpret_cast<const uint4*>(sF)[tile];
            else {
                const float2 raw = reinterpret_cast<const float2*>(sF)[tile];
                const split_float s0 = split_factor(raw.x), s1 = split_factor(raw.y);
                rF[c] = make_uint4(s0.high, s1.high, s0.low, s1.low);
            }
        }
        multiply_add_split<First, takes_low_low(Group::p(Shape::level)), together * products, products>(
            rC + n * products, rHigh, rLow, rF);
    }
}

// The same of doubles, whose factor may stand in memory.
template <bool First, class Group, class Shape, class Held, class Read>
__device__ __forceinline__ void multiply_step_double(const Read& read, const double* sF, const Held& held_factor,
                                                     const group_arguments<double>& arguments, int lane, int n_first,
                                                     int k, double (&rC)[Shape::n_tiles * Shape::products][4]) {
    constexpr int products = Shape::products, n_tiles = Shape::n_tiles, level = Shape::level;
    alignas(16) double rX[2][Shape::packs];                                     // (p of the pair, fibre)
    [[maybe_unused]] double2 rF[Group::factor_in_memory(level) ? n_tiles : 1];  // (n)
    if constexpr (Group::factor_in_memory(level))
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
            read_fragment<Shape>(arguments, (k * Shape::tiles_q + n_first + n) * 32 + lane, &rF[n].x);
    read(k, rX);
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
        double2 f;
        if constexpr (!is_same<Held, pairs_in_shared>)
            f = held_factor.value[k * n_tiles + n];
        else if constexpr (Group::factor_in_memory(level))
            f = rF[n];
        else
            f = reinterpret_cast<const double2*>(sF)[(k * Shape::tiles_q + n_first + n) * 32 + lane];
#pragma unroll
        for (int m = 0; m < products; ++m) {
            const double rA[4] = {rX[0][2 * m], rX[0][2 * m + 1], rX[1][2 * m], rX[1][2 * m + 1]};
            if constexpr (First)
#pragma unroll
                for (int e = 0; e < 4; ++e) rC[n * products + m][e] = 0.;
            multiply_add_double(rC[n * products + m], rA, f.x, f.y);
        }
    }
}

// rC = what stands in sSum + alpha * rC, of access s of an inner mode.
template <int Blocks, class Group, class Shape>
__device__ __forceinline__ void add_to_sum(const onto_sum<typename Group::scalar>& result,
                                           const int (&offset)[Shape::packs], const int (&lane_offset)[Shape::halves],
                                           int s, int t, int n_first,
                                           typename Group::scalar (&rC)[Shape::n_tiles * Shape::products][4]) {
    using scalar = typename Group::scalar;
    constexpr int wide = Shape::wide, stride = Shape::stride, held = Shape::P / Blocks;
#pragma unroll
    for (int n = 0; n < Shape::n_tiles; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int q = 8 * (n_first + n) + t + 4 * h;
            if (!Shape::exists_q(q)) continue;
            alignas(16) scalar rSum[wide];  // (fibre)
            using word = packet<wide* int(sizeof(scalar))>;
            if constexpr (Blocks > 1)
                read_from_block<int(sizeof(word))>(
                    rSum, result.sSum + Group::place(offset[s] + int(unsigned(q) % unsigned(held)) * stride),
                    int(unsigned(q) / unsigned(held)));
            else
                *reinterpret_cast<word*>(rSum) = *reinterpret_cast<const word*>(
                    result.sSum + Group::place_further(lane_offset[s], (8 * (n_first + n) + 4 * h) * stride));
#pragma unroll
            for (int j = 0; j < wide; ++j) {
                scalar& r = rC[n * Shape::products + (s * wide + j) / 2][2 * ((s * wide + j) % 2) + h];
                r = rSum[j] + result.alpha * r;
            }
        }
}

// Whether what stands beside the products of a round is read before they are known: where nothing else hides it, in trips of one round, and in a
// block that has its multiprocessor to itself. Other warps with several rounds hide it for each other, and lose by more loads at a
// time (n = 8 and 16).
template <class Group, class Shape, bool InRegisters>
__host__ __device__ constexpr bool reads_beside_ahead(bool one_round) {
    constexpr int results = Shape::n_tiles * Shape::products * 4 * Group::words;  // words of a lane, a round
    const int others = results + (InRegisters ? Shape::k_steps * Shape::n_tiles * 4 : 0) +
                       (!one_round       ? 124
                        : Shape::P >= 64 ? 72
                                         : 48);
    return !Shape::last_mode && !Group::filled_up(Shape::level) &&
           (one_round || Group::blocks_per_multiprocessor == 1) && read_ahead<Group>(results, others, 1) > 0;
}

// rAside = what stands beside the results of access s of an inner mode, of which q = 0 goes to gY, the others `step` apart; Stays: unless the tile
// before wanted the same.
template <bool Stays, class Group, class Shape, class Held, class Aside>
__device__ __forceinline__ void read_beside(const typename Group::storage* gY, index_t step, bool reads, int run_left,
                                            int t, int n_first, const typename Group::last_step& last_step,
                                            const Held& held_factor, int s, Aside& rAside) {
    const auto to = [&](int k) { return gY + (8 * (n_first + k / 2) + t + 4 * (k % 2)) * step; };
    if constexpr (Stays) {
        const unsigned at = last_step.element_of(to(0));
        rAside.there = reads && last_step.template whole<2 * Shape::n_tiles, Shape::wide>(to, run_left);
        if (rAside.there && at != held_factor.at[s]) {
            held_factor.at[s] = at;
            last_step.read_whole(to, rAside);
        }
    } else
        last_step.read_early(reads, to, run_left, rAside);
}

// Fibre j of the last mode -> Y through the last step, its neighbours from gY on.
template <class Group, class Shape>
__device__ __forceinline__ void store_last_mode(
    typename Group::storage* gY, int j, int t, int n_first, const typename Group::last_step& last_step,
    const typename Group::scalar (&rC)[Shape::n_tiles * Shape::products][4]) {
    static_assert(!Shape::permuted_q && Shape::whole_q);
    gY += 8 * n_first + 2 * t;  // neighbours: step is 1
    last_step.template store_all<Shape::n_tiles, 2>(
        [&](int n) { return gY + 8 * n; },
        [&](int n, int e) { return rC[n * Shape::products + j / 2][2 * (j % 2) + e]; });
}

// Contract: as multiply_add_trip, for one mode; held: the factor's pairs in registers, or pairs_in_shared; result: what becomes of it
// (a sum stands elsewhere than sFrom). A barrier inside when split > 1 and the trip works in place.
template <class Group, int Step, int Part, bool ToY, class Held, class Result = replace, class Next = no_next_tile>
__device__ __forceinline__ void matrix_trip(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                            const typename Group::scalar* sFactors,
                                            const tile_place<typename Group::storage>& place,
                                            const typename Group::last_step& last_step,
                                            const group_arguments<typename Group::storage>& arguments,
                                            const Held& held_factor, const Result& result = {}, const Next& next = {}) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using shape = matrix_trip_shape<Group, Step>;
    [[maybe_unused]] constexpr bool exact = Group::widens && Step == 0;  // 16-bit elements as they came
    constexpr bool in_registers = !is_same<Held, pairs_in_shared>, adds_sum = is_same<Result, onto_sum<scalar>>;
    static_assert(!adds_sum || (ToY && !shape::last_mode), "to Y with a sum: not from the innermost mode");
    constexpr int level = shape::level, split = shape::split, packs = shape::packs, wide = shape::wide,
                  halves = shape::halves, products = shape::products, P = shape::P, stride = shape::stride;
    constexpr int k_steps = shape::k_steps, n_tiles = shape::n_tiles;
    constexpr int inner = Group::extent_product(Step, level + 1, Group::modes) * Group::run;
    constexpr int outer = Group::rows * Group::extent_product(Step, 1, level - 1) / Part;
    constexpr int fibres = inner * outer, per_item = 8 * packs, all_items = (fibres + per_item - 1) / per_item;
    constexpr int blocks = ToY ? Group::cluster : 1;          // that share this trip
    constexpr int items = (all_items + blocks - 1) / blocks;  // of this block
    constexpr int held = P / blocks;                          // indices of the mode in one block
    constexpr bool halved = is_same<Next, next_half<Group>>;  // the mode's second half stands elsewhere
    static_assert(!halved || (blocks == 1 && !shape::last_mode && P % 16 == 0));
    const int begin = blocks > 1 ? cluster_rank() * items : 0;
    static_assert((shape::last_mode && blocks == 1) || inner % wide == 0);
    static_assert(Group::run == 1 || Group::run % wide == 0);
    constexpr int at_once = shape::warps / split, rounds = (items + at_once - 1) / at_once;
    constexpr int team = shape::warpgroup ? 4 : 1;  // warps that multiply together

    const unsigned thread = shape::warpgroup ? threadIdx.x : thread_number<Group::threads>();
    const int warp = int(thread / 32u), lane = int(thread % 32u), g = int(thread / 4u % 8u), t = int(thread % 4u);
    const int n_first = int(unsigned(warp / team) % unsigned(split)) * n_tiles;
    const scalar* sF = sFactors + Group::factor_offset(level);  // fragments (k, n, lane)

    constexpr bool one_round = rounds == 1 && !shape::warpgroup;
    constexpr bool ahead = ToY && reads_beside_ahead<Group, shape, in_registers>(one_round);
    constexpr bool stays = ahead && one_round && in_registers && Group::ending == ends_scaled_along;
    aside_of_round<Group, Step> rOwn;
    auto& rAside = aside_of<stays>(held_factor, rOwn);

#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int own = round * at_once + int(unsigned(warp / team) / unsigned(split)) * team + warp % team,
                  item = begin + own;
        const bool works = own < items && item < all_items;
        const bool multiplies = shape::warpgroup || works;  // a warpgroup's warps stay together
        scalar rC[n_tiles * products][4];                   // (n x product, row pair x column pair)
        int offset[packs];                                  // last mode: of each fibre; inner mode: of each access
        bool inside[packs];
        int outer_index[halves], inner_index[halves];
        int lane_offset[halves];  // inner mode: where this lane's p = t of each access stands
        // A lane behind the end multiplies the item's first fibre, which no other warp writes, and stores nothing.
        const unsigned spare = fibres % per_item == 0 ? 0u : unsigned(item * per_item);
        if constexpr (shape::last_mode) {
#pragma unroll
            for (int j = 0; j < packs; ++j) {
                const int fibre = item * per_item + g + 8 * j;
                inside[j] = fibre < fibres;
                offset[j] = inside[j] ? tile_offset<Group, Step, Part, 0, level - 1>(fibre)
                                      : tile_offset<Group, Step, Part, 0, level - 1>(int(spare));
            }
        } else {
#pragma unroll
            for (int s = 0; s < halves; ++s) {
                const unsigned first = unsigned((item * halves + s) * 8 + g) * wide;
                inside[s] = first < unsigned(fibres);
                outer_index[s] = int(inside[s] ? first / unsigned(inner) : spare / unsigned(inner));
                inner_index[s] = int(inside[s] ? first % unsigned(inner) : spare % unsigned(inner));
                offset[s] = tile_offset<Group, Step, Part, 0, level - 1>(outer_index[s]) +
                            tile_offset<Group, Step, 1, level + 1, Group::run_level>(inner_index[s]);
                lane_offset[s] = Group::place(offset[s] + (blocks > 1 ? 0 : t * stride));
                if constexpr (ahead) {
                    index_t step;
                    bool exists;
                    int run_left;
                    const storage* gY = place.y + place_in_y<Group, Step>(place, outer_index[s], inner_index[s], step,
                                                                          exists, run_left);
                    read_beside<stays, Group, shape>(gY, step, works && exists && inside[s], run_left, t, n_first,
                                                     last_step, held_factor, s, rAside[s]);
                }
            }
        }
        if (multiplies) {
            // This lane's elements at p = 8k + .. of its fibres.
            const auto read = [&](int k, scalar(&rX)[2][packs]) {
                if (shape::warpgroup && items % at_once != 0 &&
                    !works) {  // others may be writing what stands at offset 0
#pragma unroll
                    for (int h = 0; h < 2; ++h)
#pragma unroll
                        for (int j = 0; j < packs; ++j) rX[h][j] = scalar(0);
                } else if constexpr (shape::last_mode)
                    read_last_mode<Group, shape>(sFrom, offset, t, k, rX);
                else if constexpr (blocks > 1)
                    read_inner_mode_of_blocks<held, Group, shape>(sFrom, offset, t, k, rX);
                else
                    read_inner_mode<Group, shape>(sFrom, lane_offset, t, k, next, rX);
            };
            const auto multiply = [&](auto first, int k) {
                constexpr bool is_first = decltype(first)::value != 0;
                if constexpr (Group::single_products)
                    multiply_step_single<is_first, exact, Group, shape>(read, sF, lane, n_first, k, rC);
                else if constexpr (Group::words == 1)
                    multiply_step_split<is_first, Group, shape>(read, sF, held_factor, lane, n_first, k, rC);
                else
                    multiply_step_double<is_first, Group, shape>(read, sF, held_factor, arguments, lane, n_first, k,
                                                                 rC);
            };
            if constexpr (shape::warpgroup && Group::single_products)
                multiply_single<Group, shape, exact>(read, sF, n_first, rC);
            else if constexpr (shape::warpgroup)
                multiply_together<Group, shape>(read, sF, n_first, rC);
            else {
                constexpr int unrolled = k_steps == 1                                         ? 1
                                         : in_registers || n_tiles * products * k_steps <= 64 ? k_steps - 1
                                                                                              : 2;
                multiply(constant<1>{}, 0);
#pragma unroll unrolled
                for (int k = 1; k < k_steps; ++k) multiply(constant<0>{}, k);
            }

            // A product that is not finite: an operand was infinite, NaN or too large to split. Repeat with multiply-adds, which say
            // which it is.
            if constexpr (Group::words == 1 && !Group::single_products) {
                float zero = 0.f;
#pragma unroll
                for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                    for (int m = 0; m < products; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e) zero += rC[n * products + m][e] * 0.f;
                if (__any_sync(0xffffffffu, works && !(zero == 0.f))) {
                    // Rolled, through a local array: rare, and the registers of the usual path stay free.
                    const scalar* gF = arguments.factor[level - 1];
                    const index_t p_stride = arguments.factor_p_stride[level - 1],
                                  q_stride = arguments.factor_q_stride[level - 1];
                    float rAgain[n_tiles * products * 4];  // (n, product, row pair x column pair)
                    int at_fibre[packs];
#pragma unroll
                    for (int j = 0; j < packs; ++j)
                        at_fibre[j] = shape::last_mode ? offset[j] : offset[j / wide] + j % wide;
#pragma unroll 1
                    for (int c = 0; c < n_tiles * products * 4; ++c) {
                        const int e = c % 4, j = 2 * (c / 4 % products) + e / 2;
                        const int q =
                            8 * (n_first + c / (4 * products)) + (shape::permuted_q ? t + 4 * (e % 2) : 2 * t + e % 2);
                        float sum = 0.f;
#pragma unroll 1
                        for (int p = 0; p < P && shape::exists_q(q); ++p) {
                            float x;
                            if constexpr (blocks > 1)
                                read_from_block<4>(&x, sFrom + Group::place(at_fibre[j] + p % held * stride), p / held);
                            else
                                x = sFrom[Group::place(at_fibre[j] + p * stride) + gap_at<Group, shape>(next, p)];
                            if constexpr (Group::inputs > 1)
                                sum += x * element_of_inputs<shape>(arguments, p, q);
                            else
                                sum += x * gF[p * p_stride + q * q_stride];
                        }
                        rAgain[c] = sum;
                    }
#pragma unroll
                    for (int c = 0; c < n_tiles * products * 4; ++c) rC[c / 4][c % 4] = rAgain[c];
                }
            }
        }
        if constexpr (split > 1 && !ToY && (is_same<Result, replace> || is_same<Result, replace_times<scalar>>))
            __syncthreads();
        else
            __syncwarp();
        if (works) {
            if constexpr (!ToY) {
#pragma unroll
                for (int n = 0; n < n_tiles; ++n) {
                    if constexpr (!shape::last_mode) {
#pragma unroll
                        for (int s = 0; s < halves; ++s)
                            if (inside[s])
#pragma unroll
                                for (int h = 0; h < 2; ++h) {
                                    alignas(16) scalar rY[wide];  // (fibre)
#pragma unroll
                                    for (int j = 0; j < wide; ++j)
                                        rY[j] = rC[n * products + (s * wide + j) / 2][2 * ((s * wide + j) % 2) + h];
                                    if (shape::exists_q(8 * (n_first + n) + t + 4 * h))
                                        put(result,
                                            further<Group>(sTo, lane_offset[s], 8 * n_first * stride,
                                                           (8 * n + 4 * h) * stride),
                                            rY);
                                }
                    } else {
#pragma unroll
                        for (int j = 0; j < packs; ++j)
                            if (inside[j]) {
                                scalar* row = sTo + offset[j] + 8 * (n_first + n);
                                alignas(16) scalar rY[2] = {rC[n * products + j / 2][2 * (j % 2)],
                                                            rC[n * products + j / 2][2 * (j % 2) + 1]};  // (q)
                                if constexpr (!shape::permuted_q) {
                                    if (shape::exists_q(8 * (n_first + n) + 2 * t)) put(result, row + 2 * t, rY);
                                } else
#pragma unroll
                                    for (int h = 0; h < 2; ++h) {
                                        scalar one[1] = {rY[h]};
                                        if (shape::exists_q(8 * (n_first + n) + t + 4 * h))
                                            put(result, row + t + 4 * h, one);
                                    }
                            }
                    }
                }
            } else if constexpr (!shape::last_mode) {
                if constexpr (!is_same<Next, no_next_tile>)
                    if (next.refills())
#pragma unroll
                        for (int s = 0; s < halves; ++s)
                            if (inside[s])
                                next.template fetch<P / (halved ? 8 : 4), wide>(
                                    place, outer_index[s], inner_index[s], inner / Group::run, halved ? P / 2 + t : t,
                                    4,
                                    [&](int k) { return sTo + Group::place_further(lane_offset[s], 4 * k * stride); });
#pragma unroll
                for (int s = 0; s < halves; ++s) {
                    index_t step;
                    bool exists;
                    int run_left;
                    storage* gY = place.y + place_in_y<Group, Step>(place, outer_index[s], inner_index[s], step, exists,
                                                                    run_left);
                    if constexpr (adds_sum)
                        if (inside[s]) add_to_sum<blocks, Group, shape>(result, offset, lane_offset, s, t, n_first, rC);
                    gY += (8 * n_first + t) * step;
                    const auto to = [&](int k) { return gY + 4 * k * step; };
                    const auto value = [&](int k, int j) {
                        return rC[k / 2 * products + (s * wide + j) / 2][2 * ((s * wide + j) % 2) + k % 2];
                    };
                    if (exists && inside[s]) {
                        if constexpr (ahead)
                            last_step.finish_early(to, value, run_left, rAside[s]);
                        else if (!shape::exists_q(8 * (n_first + n_tiles) - 1)) {
#pragma unroll
                            for (int k = 0; k < 2 * n_tiles; ++k)
                                if (shape::exists_q(8 * n_first + 4 * k + t))
                                    last_step.template store_all<1, wide>(
                                        [&](int) { return to(k); }, [&](int, int j) { return value(k, j); }, run_left);
                        } else
                            last_step.template store_all<2 * n_tiles, wide>(to, value, run_left);
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < packs; ++j) {
                    index_t step;
                    bool exists;
                    int run_left;
                    storage* gY = place.y + place_in_y<Group, Step>(place, item * per_item + g + 8 * j, 0, step, exists,
                                                                    run_left);
                    if (exists && inside[j]) store_last_mode<Group, shape>(gY, j, t, n_first, last_step, rC);
                }
            }
        }
    }
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// A trip by multiply-adds: a thread reads its fibres' elements into registers, replaces the trip's modes there, and writes them where
// they stood (or to Y). Any extents; several modes in one trip when P = Q for each.
#pragma once
#include "cluster.cuh"
#include "tile_store.cuh"

namespace otimes::kernels {

// 16 bytes of a factor (or two floats), the same for all threads of a warp. Volatile, so that the compiler reads it again where it is used
// instead of keeping a whole factor in registers.
template <class Scalar, int Count>
__device__ __forceinline__ void read_factor(const Scalar* sF, Scalar (&rF)[Count]) {
#ifdef OTIMES_HOST_DEVICE
    for (int e = 0; e < Count; ++e) rF[e] = sF[e];
#else
    if constexpr (is_same<Scalar, float> && Count == 4)
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(rF[0]), "=f"(rF[1]), "=f"(rF[2]), "=f"(rF[3])
                     : "r"(shared_address(sF)));
    else if constexpr (is_same<Scalar, float> && Count == 2)
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(rF[0]), "=f"(rF[1]) : "r"(shared_address(sF)));
    else if constexpr (is_same<Scalar, double> && Count == 2)
        asm volatile("ld.shared.v2.f64 {%0,%1}, [%2];" : "=d"(rF[0]), "=d"(rF[1]) : "r"(shared_address(sF)));
    else if constexpr (is_same<Scalar, complex<float>> && Count == 2)
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(rF[0].re), "=f"(rF[0].im), "=f"(rF[1].re), "=f"(rF[1].im)
                     : "r"(shared_address(sF)));
    else if constexpr (is_same<Scalar, complex<double>> && Count == 1)
        asm volatile("ld.shared.v2.f64 {%0,%1}, [%2];" : "=d"(rF[0].re), "=d"(rF[0].im) : "r"(shared_address(sF)));
    else {
#pragma unroll
        for (int e = 0; e < Count; ++e) rF[e] = sF[e];
    }
#endif
}

// Fibres that share one read of the factor: as many as Sums sums are, of the Fibres that there are.
template <int Sums, int Q, int Fibres>
constexpr int fibres_of_sums = Sums / Q < 1        ? 1
                               : Sums / Q < Fibres ? Sums / Q
                                                   : Fibres;

// sum_p rX[a, p, b] F[p, q], for a < A, b < B, of several fibres a * B + b at a time: result(first, rY) has those of fibre first + j in rY[j][q]; of
// the last ones some may not exist. A read of 16 bytes of the factor takes shared memory as long as 16 multiply-adds take the schedulers, so that it should serve
// 32 where registers allow. InStep: all lanes of the warp are here; the compiler then keeps the reads of one group of fibres from those of the next.
template <class Group, int Level, int A, int B, int Sums, bool InStep, int Size, class Result>
__device__ __forceinline__ void contract_fibres(const typename Group::scalar (&rX)[Size],
                                                const typename Group::scalar* sF, const Result& result) {
    using scalar = typename Group::scalar;
    constexpr int P = Group::p(Level), Q = Group::q(Level), W = Group::vector, pitch = Group::factor_pitch(Level);
    constexpr int fibres = A * B, together = fibres_of_sums<Sums, Q, fibres>;
#pragma unroll
    for (int first = 0; first < fibres; first += together) {
        if constexpr (InStep) __syncwarp();
        scalar rY[together][Group::round_up(Q, W)];  // (fibre, q)
#pragma unroll
        for (int p = 0; p < P; ++p) {
#pragma unroll
            for (int q = 0; q < Q; q += W) {
                scalar rF[W];  // (q)
                read_factor(sF + p * pitch + q, rF);
#pragma unroll
                for (int j = 0; j < together; ++j) {
                    const int fibre = first + j;
                    if (fibre < fibres) {
                        const scalar x = rX[((fibre / B) * (A > 1 ? P : 0) + p) * B + fibre % B];
#pragma unroll
                        for (int e = 0; e < W; ++e)
                            if (q + e < Q) rY[j][q + e] = p == 0 ? x * rF[e] : multiply_add(x, rF[e], rY[j][q + e]);
                    }
                }
            }
        }
        result(first, rY);
    }
}

// rX[a, p, b] -> rX[a, q, b] = sum_p rX[a, p, b] F[p, q], for a < A, b < B. Sums: held at a time.
template <class Group, int Level, int A, int B, int Sums = 32 / Group::words, bool InStep = false, int Size>
__device__ __forceinline__ void contract_registers(typename Group::scalar (&rX)[Size],
                                                   const typename Group::scalar* sF) {
    constexpr int Q = Group::q(Level), P = Group::p(Level);
    contract_fibres<Group, Level, A, B, Sums, InStep>(rX, sF, [&](int first, const auto& rY) {
#pragma unroll
        for (int j = 0; j < fibres_of_sums<Sums, Q, A * B>; ++j)
            if (first + j < A * B)
#pragma unroll
                for (int q = 0; q < Q; ++q)
                    rX[(((first + j) / B) * (A > 1 ? P : 0) + q) * B + (first + j) % B] = rY[j][q];
    });
}

// Offset in Y of the trip's element with outer index o, new index 0, inner index i; the new index steps by `step`.
template <class Group, int Step>
__device__ __forceinline__ index_t place_in_y(const tile_place<typename Group::storage>& place, int o, int i,
                                              index_t& step, bool& exists, int& run_left) {
    constexpr int first = Group::steps::first(Step), last = first + Group::steps::modes(Step) - 1,
                  done = Group::steps::count;
    constexpr int outer_modes = Group::extent_product(done, 1, first - 1);
    constexpr int fresh = Group::extent_product(done, first, last);
    constexpr int below = Group::extent_product(done, last + 1, Group::modes);
    if constexpr (Group::run > 1) {
        const int f = int(unsigned(i) / unsigned(Group::run)), s = int(unsigned(i) % unsigned(Group::run));
        step = index_t(below) * place.y_inner;
        run_left = place.run - s;
        exists = run_left > 0;
        return (index_t(o) * fresh * below + f) * place.y_inner + s;
    } else {
        const int row = int(unsigned(o) / unsigned(outer_modes)), rest = int(unsigned(o) % unsigned(outer_modes));
        step = last == Group::modes ? 1 : Group::sliced_offset(below);
        run_left = Group::vector;
        exists = row < place.rows;
        return row * place.y_row_stride + Group::sliced_offset(rest * (fresh * below) + i);
    }
}

// How many fibres a thread takes at once in a trip of one mode, so that they share each read of the factor: a row of the factor costs
// shared memory as much as two of their elements do, whether one fibre uses it or eight. 0: whole fibres in registers instead.
// As many as its registers hold (P elements stream past Q sums each), chosen for the least reads of all rounds of a tile.
template <class Group, int Step>
struct fibres_together {
    using steps = typename Group::steps;
    static constexpr int level = steps::first(Step), N = Group::extent_product(Step, level, level), Q = Group::q(level);
    static constexpr int words = Group::words,
                         rows_of_four = (Q * words + 3) / 4;  // 16-byte reads of a row of the factor
    static constexpr int registers = Group::registers;

    // What the fibres of a tile cost a warp, in accesses to shared memory of one bank each and in a quarter of the products, which four schedulers
    // issue beside each other. V: neighbouring fibres of one access; k: such accesses of a thread at once.
    __host__ __device__ static constexpr int cost(int V, int items, int k) {
        const int rounds = (items + Group::threads * k - 1) / (Group::threads * k);
        return rounds * (N * rows_of_four * 2 + k * V * (N + Q + N * Q * words / 4) * words);
    }
    // Whether neighbouring fibres go together: their accesses are fewer, and so are the threads that have any. Of up to eight indices they do: the
    // accesses to Y and to what is read beside it, which the cost leaves out, are most of such a trip (4^7 1.12 of the time one by one).
    __host__ __device__ static constexpr bool in_vectors(int V, int fibres) {
        if (steps::modes(Step) != 1 || steps::split(Step) != 1 || Group::max(N, Q) <= 8 ||
            Group::max(N, Q) * words > 64 || Group::cluster > 1)
            return true;
        const auto least = [&](int v) {
            const int k = count(v, fibres / v);
            return cost(v, fibres / v, k > 0 ? k : 1);
        };
        return 9 * least(V) <= 10 * least(1);
    }

    // items: accesses of the tile.
    __host__ __device__ static constexpr int count(int V, int items) {
        if (steps::modes(Step) != 1 || steps::split(Step) != 1 || Group::max(N, Q) * words > 64) return 0;
        if (V > 1 && 32 / words / Q >= V) return 0;  // contract_registers lets them share already
        const int most = (registers - 40) / (V * (Q + 2) * words + 2);
        int best = 1, least = 0;
        for (int k = 1; k <= most; ++k) {
            if (k == 1 || cost(V, items, k) < least) {
                best = k;
                least = cost(V, items, k);
            }
        }
        return best == 1 && V == 1 ? 0 : most < 1 ? 0 : best;
    }
};

// Which fibres of a tile go together; for the planner plan/gpu_multiply_adds.hpp says the same.
template <class Group, int Step, int Part, bool ToY>
struct dealt_fibres {
    using steps = typename Group::steps;
    static constexpr int first = steps::first(Step), modes = steps::modes(Step), last = first + modes - 1;
    static constexpr int N = Group::extent_product(Step, first, last);
    static constexpr int inner = Group::extent_product(Step, last + 1, Group::modes) * Group::run;
    static constexpr int outer = Group::rows * Group::extent_product(Step, 1, first - 1) / Part;
    static constexpr int Q = Group::q(last), fibre_stride = Group::stride(last);
    static constexpr int size = modes > 1 ? N : Group::max(N, Q);  // of a whole fibre in registers
    static constexpr int blocks = ToY ? Group::cluster : 1;        // that share this trip
    static constexpr int held = N / blocks;                        // indices of the mode in one block
    static constexpr bool in_vectors =
        !(ToY && (Group::slices > 1 || Group::unaligned)) && Group::vectors_below(Step, last) &&
        inner % Group::vector == 0 && Group::run % (Group::run > 1 ? Group::vector : 1) == 0 &&
        size * Group::vector * Group::words <= 64 && inner / Group::vector * outer >= Group::threads / 2 &&
        fibres_together<Group, Step>::in_vectors(Group::vector, outer* inner);
    static constexpr int width = in_vectors ? Group::vector : 1;  // neighbouring fibres of one access
    // Such accesses of a thread at once; 0: whole fibres in registers. In a cluster the fibres come from other blocks.
    static constexpr int at_once = ToY && Group::cluster > 1
                                       ? 0
                                       : fibres_together<Group, Step>::count(width, outer*(inner / width));
    // Neighbouring indices of a fibre of one access.
    static constexpr int along =
        inner == 1 && N % Group::vector == 0 && size == N && Group::vector_strides(first - 1) && fibre_stride == 1
            ? Group::vector
            : 1;
};

// multiply_add_trip of several fibres at once, which stream past their sums: they share each read of the factor.
template <class Group, int Step, int Part, bool ToY>
__device__ __forceinline__ void trip_of_fibres_at_once(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                                       const typename Group::scalar* sFactors,
                                                       const tile_place<typename Group::storage>& place,
                                                       const typename Group::last_step& last_step) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using dealt = dealt_fibres<Group, Step, Part, ToY>;
    constexpr int first = dealt::first, last = dealt::last, N = dealt::N, Q = dealt::Q;
    constexpr int inner = dealt::inner, outer = dealt::outer, fibre_stride = dealt::fibre_stride;
    constexpr int V = dealt::width, W = dealt::along, together = dealt::at_once;
    constexpr int items = outer * (inner / V);
    const scalar* sF = sFactors + Group::factor_offset(first);
#pragma unroll 1
    for (unsigned round = threadIdx.x; round < unsigned(items); round += Group::threads * together) {
        int offset[together], at_outer[together], at_inner[together];
#pragma unroll
        for (int j = 0; j < together; ++j) {
            // What is behind the end is done like this thread's first fibre, and not written.
            const unsigned next = round + unsigned(j) * Group::threads, item = next < unsigned(items) ? next : round;
            at_inner[j] = inner / V == 1 ? 0 : int(item % unsigned(inner / V)) * V;
            at_outer[j] = int(item / unsigned(inner / V));
            offset[j] = tile_offset<Group, Step, Part, 0, first - 1>(at_outer[j]) +
                        tile_offset<Group, Step, 1, last + 1, Group::run_level>(at_inner[j]);
        }
        scalar rY[together][Q][V];  // (item, q, V)
#pragma unroll
        for (int first_p = 0; first_p < N; first_p += W) {
            alignas(16) scalar rX[together][W * V];  // (item, p, V): one of the two is 1
#pragma unroll
            for (int j = 0; j < together; ++j) {
                if constexpr (V > 1 || W > 1)
                    *reinterpret_cast<packet<16>*>(rX[j]) =
                        *reinterpret_cast<const packet<16>*>(sFrom + offset[j] + first_p * fibre_stride);
                else
                    rX[j][0] = sFrom[offset[j] + first_p * fibre_stride];
            }
#pragma unroll
            for (int w = 0; w < W; ++w)
#pragma unroll
                for (int q = 0; q < Q; q += Group::vector) {
                    scalar rF[Group::vector];  // (q)
                    read_factor(sF + (first_p + w) * Group::factor_pitch(first) + q, rF);
#pragma unroll
                    for (int e = 0; e < Group::vector; ++e)
                        if (q + e < Q)
#pragma unroll
                            for (int j = 0; j < together; ++j)
#pragma unroll
                                for (int v = 0; v < V; ++v)
                                    rY[j][q + e][v] = first_p + w == 0
                                                          ? rX[j][w * V + v] * rF[e]
                                                          : multiply_add(rX[j][w * V + v], rF[e], rY[j][q + e][v]);
                }
        }
#pragma unroll
        for (int j = 0; j < together; ++j) {
            if (j > 0 && round + unsigned(j) * Group::threads >= unsigned(items)) continue;
            if constexpr (ToY) {
                index_t step;
                bool exists;
                int run_left;
                storage* gY =
                    place.y + place_in_y<Group, Step>(place, at_outer[j], at_inner[j], step, exists, run_left);
                const auto to = [&](int q) { return gY + q * step; };
                const auto value = [&](int q, int v) { return rY[j][q][v]; };
                if (exists) last_step.template store_all<Q, V>(to, value, run_left);
            } else if constexpr (V > 1) {
#pragma unroll
                for (int q = 0; q < Q; ++q) {
                    alignas(16) scalar rOut[V];  // (V)
#pragma unroll
                    for (int v = 0; v < V; ++v) rOut[v] = rY[j][q][v];
                    *reinterpret_cast<packet<16>*>(sTo + offset[j] + q * fibre_stride) =
                        *reinterpret_cast<const packet<16>*>(rOut);
                }
            } else {
                constexpr int wide = W > 1 && Q % W == 0 ? W : 1;
#pragma unroll
                for (int q = 0; q < Q; q += wide) {
                    if constexpr (wide > 1) {
                        alignas(16) scalar rOut[wide];  // (q)
#pragma unroll
                        for (int e = 0; e < wide; ++e) rOut[e] = rY[j][q + e][0];
                        *reinterpret_cast<packet<16>*>(sTo + offset[j] + q) =
                            *reinterpret_cast<const packet<16>*>(rOut);
                    } else
                        sTo[offset[j] + q * fibre_stride] = rY[j][q][0];
                }
            }
        }
    }
}

// multiply_add_trip of whole fibres in registers, of one mode or several.
template <class Group, int Step, int Part, bool ToY>
__device__ __forceinline__ void trip_of_whole_fibres(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                                     const typename Group::scalar* sFactors,
                                                     const tile_place<typename Group::storage>& place,
                                                     const typename Group::last_step& last_step) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using dealt = dealt_fibres<Group, Step, Part, ToY>;
    constexpr int first = dealt::first, modes = dealt::modes, last = dealt::last, N = dealt::N, Q = dealt::Q;
    constexpr int inner = dealt::inner, outer = dealt::outer, fibre_stride = dealt::fibre_stride, size = dealt::size;
    constexpr int V = dealt::width, W = dealt::along, blocks = dealt::blocks, held = dealt::held;
    static_assert(modes == 1 || N == Group::extent_product(Step + 1, first, last),
                  "several modes in one trip: P = Q for each");
    constexpr int items = outer * (inner / V);
    constexpr int share = (items + blocks - 1) / blocks;  // of this block
    const unsigned begin = blocks > 1 ? unsigned(cluster_rank() * share) : 0u,
                   end = blocks > 1 && begin + share < unsigned(items) ? begin + share : unsigned(items);
    constexpr int fresh = modes > 1 ? N : Q;
    // What stands beside the products, read before they are known.
    constexpr int ahead =
        ToY ? read_ahead<Group>(fresh * V * Group::words, size * V * Group::words + 72, share / Group::threads) : 0;
    using aside = beside_early<scalar, (ahead > 0 ? fresh : 1), (ahead > 0 ? V : 1)>;
    aside rAside, rNext;
    const auto read_aside = [&](unsigned item, aside& r) {
        if constexpr (ahead > 0) {
            const int i = inner / V == 1 ? 0 : int(item % unsigned(inner / V)) * V, o = int(item / unsigned(inner / V));
            index_t step;
            bool exists;
            int run_left;
            const storage* gY = place.y + place_in_y<Group, Step>(place, o, i, step, exists, run_left);
            last_step.read_early(
                exists, [&](int q) { return gY + q * step; }, run_left, r);
        }
    };
    if constexpr (ahead > 1)
        if (begin + threadIdx.x < end) read_aside(begin + threadIdx.x, rNext);
#pragma unroll 1
    for (unsigned item = begin + threadIdx.x; item < end; item += Group::threads) {
        if constexpr (ahead > 1) {
            rAside = rNext;
            if (item + Group::threads < end) read_aside(item + Group::threads, rNext);
        } else if constexpr (ahead > 0)
            read_aside(item, rAside);
        const int i = inner / V == 1 ? 0 : int(item % unsigned(inner / V)) * V, o = int(item / unsigned(inner / V));
        const int offset = tile_offset<Group, Step, Part, 0, first - 1>(o) +
                           tile_offset<Group, Step, 1, last + 1, Group::run_level>(i);
        alignas(16) scalar rX[size * V];  // (p.., V)
        if constexpr (blocks > 1) {
#pragma unroll
            for (int p = 0; p < N; ++p)
                read_from_block<V* int(sizeof(scalar))>(rX + p * V, sFrom + offset + p % held * fibre_stride, p / held);
        } else if constexpr (V > 1) {
#pragma unroll
            for (int p = 0; p < N; ++p)
                *reinterpret_cast<packet<16>*>(rX + p * V) =
                    *reinterpret_cast<const packet<16>*>(sFrom + offset + p * fibre_stride);
        } else if constexpr (W > 1) {
#pragma unroll
            for (int p = 0; p < N; p += W)
                *reinterpret_cast<packet<16>*>(rX + p) = *reinterpret_cast<const packet<16>*>(sFrom + offset + p);
        } else {
#pragma unroll
            for (int p = 0; p < N; ++p) rX[p] = sFrom[offset + p * fibre_stride];
        }
        for_constants<0, modes>([&](auto m) {
            constexpr int level = last - decltype(m)::value;
            constexpr int above = Group::extent_product(Step, first, level - 1),
                          under = Group::extent_product(Step, level + 1, last);
            contract_registers<Group, level, above, under * V>(rX, sFactors + Group::factor_offset(level));
        });
        if constexpr (ToY) {
            index_t step;
            bool exists;
            int run_left;
            storage* gY = place.y + place_in_y<Group, Step>(place, o, i, step, exists, run_left);
            const auto to = [&](int q) { return gY + q * step; };
            const auto value = [&](int q, int e) { return rX[q * V + e]; };
            if (exists) {
                if constexpr (ahead > 0)
                    last_step.finish_early(to, value, run_left, rAside);
                else
                    last_step.template store_all<fresh, V>(to, value, run_left);
            }
        } else if constexpr (V > 1) {
#pragma unroll
            for (int q = 0; q < fresh; ++q)
                *reinterpret_cast<packet<16>*>(sTo + offset + q * fibre_stride) =
                    *reinterpret_cast<const packet<16>*>(rX + q * V);
        } else if constexpr (W > 1 && fresh == N) {
#pragma unroll
            for (int q = 0; q < N; q += W)
                *reinterpret_cast<packet<16>*>(sTo + offset + q) = *reinterpret_cast<const packet<16>*>(rX + q);
        } else {
#pragma unroll
            for (int q = 0; q < fresh; ++q) sTo[offset + q * fibre_stride] = rX[q];
        }
    }
}

// multiply_add_trip of long fibres: X streams past the accumulators. `split` threads share a fibre, so every thread of a round has read before
// one writes.
template <class Group, int Step, int Part, bool ToY>
__device__ __forceinline__ void trip_of_long_fibres(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                                    const typename Group::scalar* sFactors,
                                                    const tile_place<typename Group::storage>& place,
                                                    const typename Group::last_step& last_step) {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using dealt = dealt_fibres<Group, Step, Part, ToY>;
    constexpr int first = dealt::first, modes = dealt::modes, last = dealt::last, N = dealt::N, Q = dealt::Q;
    constexpr int inner = dealt::inner, outer = dealt::outer, fibre_stride = dealt::fibre_stride;
    constexpr int split = Group::steps::split(Step), blocks = dealt::blocks, held = dealt::held;
    static_assert(modes == 1);
    constexpr int part = (Q + split - 1) / split;  // new indices of one thread
    constexpr int width = part % Group::vector == 0 ? Group::vector
                          : is_same<scalar, float> && part % 2 == 0 && Group::factor_pitch(first) % 2 == 0 ? 2
                                                                                                           : 1;
    // Indices of a fibre that one access reads.
    constexpr int wide = blocks == 1 && inner == 1 && fibre_stride == 1 && N % Group::vector == 0 &&
                                 Group::vector_strides(first - 1) && Group::words <= 2
                             ? Group::vector
                             : 1;
    constexpr int all_items = outer * inner, items = (all_items + blocks - 1) / blocks;  // of this block
    constexpr int at_once = Group::threads / split,
                  rounds = (items + at_once - 1) / at_once;  // threads behind them rest
    const unsigned begin = blocks > 1 ? unsigned(cluster_rank() * items) : 0u;
    const scalar* sF = sFactors + Group::factor_offset(first);
    const int q_first = int(threadIdx.x / unsigned(at_once)) * part;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const unsigned own = unsigned(round * at_once) + threadIdx.x % unsigned(at_once), item = begin + own;
        const bool works = own < unsigned(items) && item < unsigned(all_items) && q_first < Q;
        const int i = inner == 1 ? 0 : int(item % unsigned(inner)), o = int(item / unsigned(inner));
        const int offset = works ? tile_offset<Group, Step, Part, 0, first - 1>(o) +
                                       tile_offset<Group, Step, 1, last + 1, Group::run_level>(i)
                                 : 0;
        scalar rY[part];  // (q)
#pragma unroll
        for (int q = 0; q < part; ++q) rY[q] = scalar(0);
        if (works) {
            constexpr int unrolled = (part * Group::words <= 4 ? 32 : part * Group::words <= 16 ? 16 : 2) / wide;
#pragma unroll(unrolled < 1 ? 1 : unrolled)
            for (int first_p = 0; first_p < N; first_p += wide) {
                alignas(16) scalar rX[wide];  // (p)
                if constexpr (blocks > 1)
                    read_from_block<int(sizeof(scalar))>(rX, sFrom + offset + first_p % held * fibre_stride,
                                                         first_p / held);
                else if constexpr (wide > 1)
                    *reinterpret_cast<packet<16>*>(rX) = *reinterpret_cast<const packet<16>*>(sFrom + offset + first_p);
                else
                    rX[0] = sFrom[offset + first_p * fibre_stride];
#pragma unroll
                for (int w = 0; w < wide; ++w) {
                    const scalar* row = sF + (first_p + w) * Group::factor_pitch(first) + q_first;
#pragma unroll
                    for (int q = 0; q < part; q += width) {
                        scalar rF[width];  // (q)
                        if constexpr (width > 1)
                            read_factor(row + q, rF);
                        else
                            rF[0] = (part * split == Q || q_first + q < Q) ? row[q] : scalar(0);
#pragma unroll
                        for (int e = 0; e < width; ++e) rY[q + e] = multiply_add(rX[w], rF[e], rY[q + e]);
                    }
                }
            }
        }
        if constexpr (split > 1) __syncthreads();
        if (works) {
            if constexpr (ToY) {
                index_t step;
                bool exists;
                int run_left;
                storage* gY = place.y + place_in_y<Group, Step>(place, o, i, step, exists, run_left);
                if (exists)
#pragma unroll
                    for (int q = 0; q < part; ++q)
                        if (part * split == Q || q_first + q < Q) last_step.store(gY + (q_first + q) * step, rY[q]);
            } else {
#pragma unroll
                for (int q = 0; q < part; ++q)
                    if (part * split == Q || q_first + q < Q) sTo[offset + (q_first + q) * fibre_stride] = rY[q];
            }
        }
    }
}

// Contract: sTo[o, q.., i] = sum_p sFrom[o, p.., i] * prod F, over the tile's (Part = segments: one part's) outer and inner indices;
// with ToY the result goes to Y through the epilogue (in a cluster: of this block's share of the inner indices, p from the block that holds it). sFrom = sTo is allowed. All threads call it; no barrier at either end.
template <class Group, int Step, int Part, bool ToY>
__device__ __forceinline__ void multiply_add_trip(const typename Group::scalar* sFrom, typename Group::scalar* sTo,
                                                  const typename Group::scalar* sFactors,
                                                  const tile_place<typename Group::storage>& place,
                                                  const typename Group::last_step& last_step) {
    using dealt = dealt_fibres<Group, Step, Part, ToY>;
    if constexpr (dealt::at_once > 0)
        trip_of_fibres_at_once<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step);
    else if constexpr (dealt::modes > 1 || (Group::steps::split(Step) == 1 && dealt::size * Group::words <= 64))
        trip_of_whole_fibres<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step);
    else
        trip_of_long_fibres<Group, Step, Part, ToY>(sFrom, sTo, sFactors, place, last_step);
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// Contract: a Kronecker sum over every row r (a contiguous tensor [P_1 .. P_n], as fused_trailing):
//   Y[r, p_1 .. p_n] = sum_l alpha_l * sum_{k} X[r, p_1 .. k .. p_n] * F_l[k, p_l] + beta * C[r, p_1 .. p_n]
// where k stands in place l; alpha_1 = alpha, alpha_l = more_alpha[l - 2]; C is Y, or placed like Y at c_offset from it.
// One pass over X and Y: the tile stays in shared memory, the mode products are added up in a second tile there. In a cluster each block
// holds its part of mode 1 of both and does mode 1 last, for its share of the other indices, from all blocks' shared memory.
//
// Requires: P_i = Q_i; Group::run = segments = slices = terms = 1, at most one slot (the next tile arrives during this one); trips of one
//   mode each, the innermost first; at most max_terms modes; in a cluster all by the matrix unit, and no slot; Group::sum_bytes dynamic
//   shared memory; else as fused_trailing.
// Alignment: any; 16-byte accesses where base and strides allow.
// Aliasing: Y = X allowed when the line strides are equal; else X, Y and factors do not overlap.
// Called by: the GPU executor, for sums of single mode products of one X.
#pragma once
#include "fused_pass.cuh"

namespace otimes::kernels {

// sSum (+)= alpha * the product of sX with this level's factor.
template <class Group, int Level, bool First>
__device__ __forceinline__ void add_mode_product(const typename Group::scalar* sX, typename Group::scalar* sSum,
                                                 const typename Group::scalar* sFactors, typename Group::scalar alpha) {
    using scalar = typename Group::scalar;
    constexpr int N = Group::p(Level), stride = Group::stride(Level);
    constexpr int inner = Group::extent_product(0, Level + 1, Group::modes);
    constexpr int outer = Group::rows * Group::extent_product(0, 1, Level - 1);
    // A thread holds about 32 words of fibres: neighbours of one access, or several that stand apart.
    constexpr int most = Group::max(1, 32 / Group::words / N);
    constexpr bool in_vectors = inner % Group::vector == 0 && Group::vectors_below(0, Level);
    constexpr int V = in_vectors && most >= 2 && Group::vector >= 2 ? (most >= 4 && Group::vector >= 4 ? 4 : 2) : 1;
    constexpr int A = V > 1 ? 1 : most < 8 ? most : 8;
    constexpr int L = V == 1 && stride == 1 && N % Group::vector == 0 && Group::vector_strides(Level - 1)
                          ? Group::vector
                          : V;           // elements of an access
    constexpr int each = L > V ? L : 1;  // indices of the mode in it
    constexpr int items = outer * (inner / V);
    using access = packet<L* int(sizeof(scalar))>;
#pragma unroll 1
    for (int round = int(threadIdx.x); round < items; round += Group::threads * A) {
        int offset[A];
        alignas(16) scalar rX[A * N * V];  // (fibre, p, V)
#pragma unroll
        for (int a = 0; a < A; ++a) {
            // What is behind the end is done like this thread's first fibre, and not written.
            const int next = round + a * Group::threads, item = next < items ? next : round;
            const int i = inner / V == 1 ? 0 : int(unsigned(item) % unsigned(inner / V)) * V,
                      o = int(unsigned(item) / unsigned(inner / V));
            offset[a] =
                tile_offset<Group, 0, 1, 0, Level - 1>(o) + tile_offset<Group, 0, 1, Level + 1, Group::run_level>(i);
#pragma unroll
            for (int p = 0; p < N; p += each)
                *reinterpret_cast<access*>(rX + (a * N + p) * V) =
                    *reinterpret_cast<const access*>(sX + offset[a] + p * stride);
        }
        contract_registers<Group, Level, A, V>(rX, sFactors + Group::factor_offset(Level));
#pragma unroll
        for (int a = 0; a < A; ++a) {
            if (a > 0 && round + a * Group::threads >= items) continue;
#pragma unroll
            for (int p = 0; p < N; p += each) {
                alignas(16) scalar rSum[L];  // (p or V)
                if constexpr (!First)
                    *reinterpret_cast<access*>(rSum) = *reinterpret_cast<const access*>(sSum + offset[a] + p * stride);
#pragma unroll
                for (int e = 0; e < L; ++e) {
                    const scalar value = alpha * rX[(a * N + p) * V + e];
                    rSum[e] = First ? value : rSum[e] + value;
                }
                *reinterpret_cast<access*>(sSum + offset[a] + p * stride) = *reinterpret_cast<const access*>(rSum);
            }
        }
    }
}

template <class Group>
__global__ void OTIMES_CLUSTER_OF(Group::cluster) __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_sum(const __grid_constant__ group_arguments<typename Group::scalar> arguments) {
    using scalar = typename Group::scalar;
    using steps = typename Group::steps;
    constexpr int last = steps::count - 1, cluster = Group::cluster;
    // The outermost mode's product by the matrix unit goes to Y with the sum of the others; else the whole sum is stored.
    constexpr bool to_y = Group::modes > 1 && steps::unit(last) > 0 && steps::first(last) == 1;
    static_assert(Group::run == 1 && Group::segments == 1 && Group::slots <= 1 && Group::slices == 1 &&
                  Group::terms == 1 && !Group::swizzled && Group::modes <= max_terms && steps::count == Group::modes &&
                  (cluster == 1 || (to_y && Group::slots == 0)));
    constexpr int count = Group::count_p();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    scalar* const sFactors = reinterpret_cast<scalar*>(shared_bytes);     // (factor_count of each level)
    scalar* const sMain = sFactors + Group::main_offset;                  // (slots + 1, Rows, P_1, .., P_n): X
    scalar* const sSum = sMain + (1 + Group::slots) * Group::main_count;  // (Rows, P_1, .., P_n): the sum
    const index_t rows = arguments.lines * arguments.parts_per_line, parts = arguments.parts_per_line;
    const index_t tiles = (rows + Group::rows - 1) / Group::rows, tile_step = gridDim.x / cluster;
    const bool y_wide = aligned_to(arguments.y, 16) && (!Group::addend || arguments.c_offset % Group::vector == 0) &&
                        arguments.y_line_stride % Group::vector == 0 && count % Group::vector == 0;
    const typename Group::last_step last_step(scalar(1), arguments.beta, to_y && y_wide, arguments.c_offset);
    const auto locate = [&](index_t tile) {
        const index_t first = tile * Group::rows;
        const index_t line = parts == 1 ? first : first / parts, part = first - line * parts;
        tile_place<scalar> place;
        place.x = arguments.x + line * arguments.x_line_stride + part * count;
        place.y = arguments.y + line * arguments.y_line_stride + part * count;
        place.x_row_stride = parts == 1 ? arguments.x_line_stride : count;
        place.y_row_stride = parts == 1 ? arguments.y_line_stride : count;
        place.x_inner = place.y_inner = 1;
        place.rows = rows - first < Group::rows ? int(rows - first) : Group::rows;
        place.run = 1;
        return place;
    };
    const auto alpha_of = [&](int level) {
        return level == 1 ? arguments.alpha : arguments.more_alpha[level == 1 ? 0 : level - 2];
    };
    const int own_part = cluster > 1 ? cluster_rank() : 0;
    index_t tile = blockIdx.x / cluster;
    if (tile >= tiles) return;
    tile_place<scalar> place = locate(tile);
    load_part<Group>(place, sMain, own_part);
    commit_copies();
    place_factors<Group>(arguments, sFactors);
    int slot = 0;  // in which X stands
#pragma unroll 1
    while (true) {
        scalar* const sX = sMain + slot * Group::main_count;
        const index_t next = tile + tile_step;
        if constexpr (Group::slots > 0) {
            slot = 1 - slot;
            if (next < tiles) load_part<Group>(locate(next), sMain + slot * Group::main_count, own_part);
            commit_copies();
            wait_for_copies<1>();
        } else
            wait_for_copies<0>();
        __syncthreads();
        if constexpr (Group::slots == 0)
            if (next < tiles) ask_for_part<Group>(locate(next), own_part);
        for_constants<0, steps::count - (to_y ? 1 : 0)>([&](auto s) {
            constexpr int step = decltype(s)::value, level = steps::first(step);
            constexpr bool first = step == 0;
            const scalar alpha = alpha_of(level);
            if constexpr (steps::unit(step) > 0)
                matrix_trip<Group, step, cluster, false>(sX, sSum, sFactors, place, last_step, arguments,
                                                         pairs_in_shared{}, into_sum<scalar, first>{alpha});
            else
                add_mode_product<Group, level, first>(sX, sSum, sFactors, alpha);
            if constexpr (cluster > 1 && step + 1 == last)
                cluster_barrier();
            else
                __syncthreads();
        });
        const tile_place<scalar> done = place;
        tile = next;
        if constexpr (to_y) {
            matrix_trip<Group, last, 1, true>(sX, sSum, sFactors, done, last_step, arguments, pairs_in_shared{},
                                              onto_sum<scalar>{alpha_of(1), sSum});
            if constexpr (cluster > 1)
                cluster_barrier();  // also before the end: others may still read here
            else if (tile < tiles)
                __syncthreads();
        }
        if (tile < tiles) {
            place = locate(tile);
            if constexpr (Group::slots == 0) {
                load_part<Group>(place, sMain, own_part);
                commit_copies();
            }
        }
        // The next tile is on its way while this one's sum is stored.
        if constexpr (!to_y) store_tile<Group>(done, sSum, last_step);
        if (tile >= tiles) break;
        if constexpr (!to_y && Group::slots > 0) __syncthreads();
    }
}

}  // namespace otimes::kernels

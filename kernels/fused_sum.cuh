// SPDX-License-Identifier: MIT
// Contract: a Kronecker sum over every row r (a contiguous tensor [P_1 .. P_n], as fused_trailing):
//   Y[r, p_1 .. p_n] = sum_l alpha_l * sum_{k} X[r, p_1 .. k .. p_n] * F_l[k, p_l] + beta * C[r, p_1 .. p_n]
// where k stands in place l; alpha_1 = alpha, alpha_l = more_alpha[l - 2]; C is Y, or placed like Y at c_offset from it.
// One pass over X and Y: the tile stays in shared memory, the mode products are added up in a second tile there.
//
// Requires: P_i = Q_i; Group::run = cluster = segments = slices = terms = 1, no slots; trips of one mode each by multiply-adds; at most
//   max_terms modes; Group::sum_bytes dynamic shared memory; else as fused_trailing.
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
    constexpr bool in_vectors = inner % Group::vector == 0 && Group::vector_strides(Level) &&
                                Group::stretch_below(0, Level) % Group::vector == 0;
    constexpr int V = in_vectors && most >= 2 ? (most >= 4 && Group::vector >= 4 ? 4 : 2) : 1;
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
__global__ void __launch_bounds__(Group::threads, Group::blocks_per_multiprocessor)
    fused_sum(const __grid_constant__ group_arguments<typename Group::scalar> arguments) {
    using scalar = typename Group::scalar;
    static_assert(Group::run == 1 && Group::cluster == 1 && Group::segments == 1 && Group::slots == 0 &&
                  Group::slices == 1 && Group::terms == 1 && !Group::swizzled && Group::modes <= max_terms);
    constexpr int count = Group::count_p();
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    scalar* const sFactors = reinterpret_cast<scalar*>(shared_bytes);  // (factor_count of each level)
    scalar* const sMain = sFactors + Group::main_offset;               // (Rows, P_1, .., P_n): X
    scalar* const sSum = sMain + Group::main_count;                    // the same: the sum
    const index_t rows = arguments.lines * arguments.parts_per_line, parts = arguments.parts_per_line;
    const index_t tiles = (rows + Group::rows - 1) / Group::rows;
    const typename Group::last_step last_step(scalar(1), arguments.beta, false, arguments.c_offset);
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
    index_t tile = blockIdx.x;
    if (tile >= tiles) return;
    tile_place<scalar> place = locate(tile);
    load_part<Group>(place, sMain, 0);
    commit_copies();
    place_factors<Group>(arguments, sFactors);
#pragma unroll 1
    while (true) {
        wait_for_copies<0>();
        __syncthreads();
        for_constants<0, Group::modes>([&](auto i) {
            constexpr int level = Group::modes - decltype(i)::value;
            add_mode_product<Group, level, level == Group::modes>(
                sMain, sSum, sFactors, level == 1 ? arguments.alpha : arguments.more_alpha[level == 1 ? 0 : level - 2]);
            __syncthreads();
        });
        // The next tile is on its way while this one's sum is stored.
        const tile_place<scalar> done = place;
        tile += gridDim.x;
        if (tile < tiles) {
            place = locate(tile);
            load_part<Group>(place, sMain, 0);
            commit_copies();
        }
        store_tile<Group>(done, sSum, last_step);
        if (tile >= tiles) break;
    }
}

}  // namespace otimes::kernels

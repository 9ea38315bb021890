// SPDX-License-Identifier: MIT
// Contract: one contracted mode of any shape, stride and type, as generic_sliced_multiply, for few fibres f of a factor that all of them share:
//   Y[f, q] = alpha * sum_p op(X)[f, p] * op(F)[p, q] + beta * Y[f, q],   f = (f_1 .. f_k), op = identity or complex conjugate
// A block takes Shape::fibres of them and Shape::columns * 256 / L new indices q, L = 2^lanes_log2: an entry of F is read once for all of its fibres. X of
// `panel` values of p lies in shared memory, sX[p, f]; a thread sums p = l, l + L, .. for every fibre and Shape::columns of q, rSum[v, f], and the threads
// of a q add up their sums as those of generic_sliced_multiply do: with the same L the bits are the same.
//
// Requires: as generic_sliced_multiply (p_extent, q_extent and the free extents at least 0), f_stride = 0 everywhere, L at most 256; 1-D grid of any
//   size, 256 threads, Shape::shared_bytes dynamic shared memory. q_position is not used. beta = 0: Y is not read.
// Alignment: that of the scalar. Aliasing: Y overlaps neither X nor F.
// Called by: the GPU executor, for a long factor and few rows (plan/gpu_generic.hpp).
#pragma once
#include "generic_sliced_multiply.cuh"

namespace otimes::kernels {

template <class Storage, class Accumulator, int Fibres>
struct few_fibres_shape {
    using storage = Storage;
    using scalar = Accumulator;
    static constexpr int fibres = Fibres, threads = 256;
    static constexpr int words = int(sizeof(scalar)) / 4;
    static constexpr int columns = 2;  // each access of X serves both
    static constexpr int ahead = columns * words > 8 ? 2
                                                     : 16 / (columns * words);  // values of p of which F is on its way
    static constexpr int width = 16 / int(sizeof(scalar));                      // fibres of one access of shared memory
    static constexpr int packs = fibres > width ? fibres / width : 1;           // accesses of a p
    static constexpr int held = packs * width;                    // fibres of a row of sX, some of them none
    static constexpr int pitch = held + (packs > 1 ? width : 0);  // rows of neighbouring p begin in other banks
    static constexpr int most = 96 * 1024 / (pitch * int(sizeof(scalar)));               // values of p
    static constexpr int panel = most > 4096 ? 4096 : most / 256 * 256;                  // a multiple of all L
    static constexpr int sums_bytes = fibres * columns * threads * int(sizeof(scalar));  // in the place of X
    static constexpr int panel_bytes = panel * pitch * int(sizeof(scalar));
    static constexpr int shared_bytes = panel_bytes > sums_bytes ? panel_bytes : sums_bytes;
};

template <class Shape>
__global__ void __launch_bounds__(256, 2) few_fibres_multiply(
    const __grid_constant__ sliced_multiply_arguments<typename Shape::storage, typename Shape::scalar> arguments) {
    using storage = typename Shape::storage;
    using scalar = typename Shape::scalar;
    constexpr int R = Shape::fibres, V = Shape::columns, T = Shape::threads, P = Shape::panel;
    constexpr int width = Shape::width, packs = Shape::packs, ahead = Shape::ahead;
    struct alignas(16) pack {
        scalar of[width];
    };
    after_earlier_launches();
    OTIMES_DYNAMIC_SHARED(shared_bytes);
    scalar* const sX = reinterpret_cast<scalar*>(shared_bytes);     // (p, f), pitch apart
    scalar* const sSums = reinterpret_cast<scalar*>(shared_bytes);  // (f, v, lane, own)
    __shared__ index_t sXPlace[R], sYPlace[R];                      // of each fibre
    index_t count = 1;
    for (int i = 0; i < arguments.free_count; ++i) count *= arguments.free_extent[i];
    const int lanes = 1 << arguments.lanes_log2, together = T >> arguments.lanes_log2;
    const bool along_p = arguments.f_p_stride == 1;  // as in generic_sliced_multiply
    const int lane = along_p ? int(threadIdx.x) & (lanes - 1) : int(threadIdx.x) / together;
    const int own = along_p ? int(threadIdx.x) >> arguments.lanes_log2 : int(threadIdx.x) - lane * together;
    const int block_q = V * together;  // q = q_first + v * together + own
    const index_t q_blocks = (arguments.q_extent + block_q - 1) / block_q;
    constexpr int rows = T / packs,
                  brought = 4;  // values of p of X that the block brings at once; turns of that on their way
    const int first = int(threadIdx.x) % packs * width;
    const index_t turns = q_blocks * ((count + R - 1) / R);
    for (index_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        const index_t q_first = turn % q_blocks * block_q, f_first = turn / q_blocks * R;
        const int left = count - f_first < R ? int(count - f_first) : R;
        __syncthreads();  // places and sums of the turn before are read
        if (int(threadIdx.x) < R) {
            index_t rest = f_first + (int(threadIdx.x) < left ? int(threadIdx.x) : 0), x = 0, y = 0;
            for (int i = arguments.free_count; i-- > 0;) {
                const index_t above = rest / arguments.free_extent[i], f = rest - above * arguments.free_extent[i];
                x += f * arguments.x_stride[i];
                y += f * arguments.y_stride[i];
                rest = above;
            }
            sXPlace[threadIdx.x] = x;
            sYPlace[threadIdx.x] = y;
        }
        const storage* gF[V];  // (p)
        scalar rSum[V][Shape::held];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const index_t q = q_first + v * together + own;
            gF[v] = arguments.f + (q < arguments.q_extent ? q : arguments.q_extent - 1) * arguments.f_q_stride;
#pragma unroll
            for (int r = 0; r < Shape::held; ++r) rSum[v][r] = scalar(0);
        }
        for (index_t p_first = 0; p_first < arguments.p_extent; p_first += P) {
            const int p_count = arguments.p_extent - p_first < P ? int(arguments.p_extent - p_first) : P;
            __syncthreads();  // the places are there, the panel before is read
            index_t place[width];
#pragma unroll
            for (int r = 0; r < width; ++r)
                place[r] = sXPlace[first + r < R ? first + r : 0] + p_first * arguments.x_p_stride;
            for (int p = int(threadIdx.x) / packs; p < p_count; p += brought * rows) {
                pack values[brought];  // all on their way before the first is stored
#pragma unroll
                for (int i = 0; i < brought; ++i) {
                    const index_t at = (p + i * rows < p_count ? p + i * rows : p) * arguments.x_p_stride;
#pragma unroll
                    for (int r = 0; r < width; ++r) values[i].of[r] = widen<scalar>(arguments.x[place[r] + at]);
                }
                asm volatile("" ::: "memory");
#pragma unroll
                for (int i = 0; i < brought; ++i) {
                    if (p + i * rows >= p_count) break;
                    if (arguments.conjugate_x)
#pragma unroll
                        for (int r = 0; r < width; ++r) values[i].of[r] = conjugate(values[i].of[r]);
                    *reinterpret_cast<pack*>(sX + (p + i * rows) * Shape::pitch + first) = values[i];
                }
            }
            __syncthreads();
            const auto bring = [&](int p, scalar(&rF)[V]) {
                const index_t at = (p_first + p) * arguments.f_p_stride;
#pragma unroll
                for (int v = 0; v < V; ++v) rF[v] = widen<scalar>(gF[v][at]);
            };
            const auto add = [&](int p, scalar(&rF)[V]) {
#pragma unroll
                for (int v = 0; v < V; ++v)
                    if (arguments.conjugate_f) rF[v] = conjugate(rF[v]);
#pragma unroll
                for (int k = 0; k < packs; ++k) {
                    const pack x = *reinterpret_cast<const pack*>(sX + p * Shape::pitch + k * width);
#pragma unroll
                    for (int v = 0; v < V; ++v)
#pragma unroll
                        for (int r = 0; r < width; ++r)
                            rSum[v][k * width + r] = multiply_add(x.of[r], rF[v], rSum[v][k * width + r]);
                }
            };
            int p = lane;
            for (; p + (ahead - 1) * lanes < p_count; p += ahead * lanes) {
                scalar rF[ahead][V];
#pragma unroll
                for (int i = 0; i < ahead; ++i) bring(p + i * lanes, rF[i]);
                asm volatile("" ::: "memory");  // before the first is waited for
#pragma unroll
                for (int i = 0; i < ahead; ++i) add(p + i * lanes, rF[i]);
            }
            for (; p < p_count; p += lanes) {
                scalar rF[V];
                bring(p, rF);
                add(p, rF);
            }
        }
        __syncthreads();  // the last panel is read
        scalar* const mine = sSums + lane * together + own;
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int v = 0; v < V; ++v) mine[(r * V + v) * T] = rSum[v][r];
        for (int half = lanes / 2; half > 0; half /= 2) {
            __syncthreads();
            if (lane < half) {
#pragma unroll
                for (int k = 0; k < R * V; ++k) mine[k * T] += mine[k * T + half * together];
            }
        }
        __syncthreads();
        for (int k = int(threadIdx.x); k < R * block_q; k += T) {
            const int r = k / block_q, n = k - r * block_q, v = n / together;
            if (r >= left || q_first + n >= arguments.q_extent) continue;
            storage* const gY = arguments.y + sYPlace[r] + (q_first + n) * arguments.y_q_stride;
            scalar sum = arguments.alpha * sSums[(r * V + v) * T + n - v * together];
            if (!(arguments.beta == scalar(0))) sum += arguments.beta * widen<scalar>(*gY);
            *gY = narrow<storage>(sum);
        }
    }
}

}  // namespace otimes::kernels

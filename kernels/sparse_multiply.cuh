// SPDX-License-Identifier: MIT
// Contract: a sparse matrix along one mode, its elements listed by the index of the result:
//   Y[f, t, o] = alpha * sum_{k = starts[o]}^{starts[o + 1] - 1} op(values)[k] * op(X)[f, t, inner[k]] + beta * Y[f, t, o]
// op = identity or complex conjugate. X[f, t, i] stands at x + sum_j f_j * x_stride[j] + t * x_turn_stride + i * x_inner_stride, Y[f, t, o] likewise.
// 2^lanes_log2 neighbouring threads take up to `together` neighbours t at a time, so that an index and a value are read once for them: each adds
// every 2^lanes_log2-th element in order, then the threads add theirs by a tree. Equal arguments give equal bits: no atomics.
//
// Requires: 0 <= free_count <= max_free_modes; extents >= 0; 0 <= lanes_log2 <= 5; 1 <= together <= sums_together; 1-D grid of any size, blocks of a multiple of 32 threads.
//   beta = 0: Y is not read.
// Alignment: that of the scalar and of the indices. Aliasing: Y overlaps nothing else.
// Called by: the GPU executor, for DeviceSparse factors.
#pragma once
#include "generic_sliced_multiply.cuh"

namespace otimes::kernels {

constexpr int sums_together = 8;

template <class Storage, class Accumulator>
struct sparse_multiply_arguments {
    const Storage* x;
    const int* starts;
    const int* inner;
    const Storage* values;
    Storage* y;
    Accumulator alpha, beta;
    index_t outputs;  // along the mode
    index_t x_inner_stride, y_outer_stride;
    index_t turns;  // extent of t
    index_t x_turn_stride, y_turn_stride;
    int together;  // neighbours t of a thread, at most sums_together
    index_t free_extent[max_free_modes];
    index_t x_stride[max_free_modes], y_stride[max_free_modes];
    int free_count;
    int outer_position;  // o counts between free modes outer_position - 1 and outer_position: its place in Y's order
    int lanes_log2;
    bool conjugate_x, conjugate_values;
};

template <class Real>
__device__ __forceinline__ Real from_lane(Real value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}
template <class Real>
__device__ __forceinline__ complex<Real> from_lane(complex<Real> value, int distance) {
    return {__shfl_xor_sync(0xffffffffu, value.re, distance), __shfl_xor_sync(0xffffffffu, value.im, distance)};
}

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(256)
    sparse_multiply(const __grid_constant__ sparse_multiply_arguments<Storage, Accumulator> arguments) {
    after_earlier_launches();
    index_t count = arguments.outputs * ((arguments.turns + arguments.together - 1) / arguments.together);
    for (int i = 0; i < arguments.free_count; ++i) count *= arguments.free_extent[i];
    const int lanes = 1 << arguments.lanes_log2, lane = int(threadIdx.x) & (lanes - 1);
    const bool reads_y = !(arguments.beta == Accumulator(0));
    const index_t step = index_t(gridDim.x) * blockDim.x >> arguments.lanes_log2;
    // All threads of a warp stay in the loop: they exchange sums.
    for (index_t first = index_t(blockIdx.x) * blockDim.x >> arguments.lanes_log2; first < count; first += step) {
        const index_t linear = first + (int(threadIdx.x) >> arguments.lanes_log2);
        Accumulator sums[sums_together];  // (t)
#pragma unroll
        for (int t = 0; t < sums_together; ++t) sums[t] = Accumulator(0);
        Storage* gY = arguments.y;  // (t)
        int width = 0;              // of these t
        if (linear < count) {
            const Storage* gX = arguments.x;  // (t, i)
            index_t rest = linear, o = 0;
            const auto digit = [&](index_t extent) {
                const index_t above =
                    (rest | extent) >> 32 ? rest / extent : index_t(unsigned(rest) / unsigned(extent));
                const index_t value = rest - above * extent;
                rest = above;
                return value;
            };
            for (int i = arguments.free_count; i >= 0; --i) {
                if (i == arguments.outer_position) {
                    o = digit(arguments.outputs);
                    gY += o * arguments.y_outer_stride;
                }
                if (i > 0) {
                    const index_t f = digit(arguments.free_extent[i - 1]);
                    gX += f * arguments.x_stride[i - 1];
                    gY += f * arguments.y_stride[i - 1];
                }
            }
            const index_t turn = rest * arguments.together;
            width = arguments.turns - turn < arguments.together ? int(arguments.turns - turn) : arguments.together;
            gX += turn * arguments.x_turn_stride;
            gY += turn * arguments.y_turn_stride;
            const int end = arguments.starts[o + 1];
            for (int k = arguments.starts[o] + lane; k < end; k += lanes) {
                const Storage* gXi = gX + arguments.inner[k] * arguments.x_inner_stride;  // (t)
                Accumulator value = widen<Accumulator>(arguments.values[k]);
                if (arguments.conjugate_values) value = conjugate(value);
#pragma unroll
                for (int t = 0; t < sums_together; ++t) {
                    if (t >= width) break;
                    Accumulator x = widen<Accumulator>(gXi[t * arguments.x_turn_stride]);
                    if (arguments.conjugate_x) x = conjugate(x);
                    sums[t] = multiply_add(value, x, sums[t]);
                }
            }
        }
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int t = 0; t < sums_together; ++t) sums[t] += from_lane(sums[t], distance);
        }
        if (lane != 0) width = 0;
#pragma unroll
        for (int t = 0; t < sums_together; ++t) {
            if (t >= width) break;
            Storage& stored = gY[t * arguments.y_turn_stride];
            Accumulator sum = arguments.alpha * sums[t];
            if (reads_y) sum += arguments.beta * widen<Accumulator>(stored);
            stored = narrow<Storage>(sum);
        }
    }
}

}  // namespace otimes::kernels

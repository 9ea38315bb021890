// SPDX-License-Identifier: MIT
// Contract: R = alpha * sum_{l, i} op(X)[l, i] * op(Y)[l, i] + beta * R,   l < lines, i < count, op = identity or complex conjugate
// X[l, i] stands at x + l * x_line_stride + i * x_stride, Y likewise; Y = X: a squared norm. distance: of |op(X)[l, i] - op(Y)[l, i]|^2 instead. Two kernels
// after one another:
//   partial_dots   S[b] = the sum over the elements that block b of the grid takes
//   finish_dot     R from S, by one block; S may also be what fused kernels that end in sums have left
// The sum is computed in Accumulator, wider than or as wide as Storage: each thread adds its elements in order, four sums at a time, then
// a block adds its threads, and finish_dot the blocks, by a tree. Equal grids and strides give equal bits: no atomics.
//
// Requires: lines, count >= 0; strides any; 1-D grid of any size for partial_dots, one block for finish_dot, blocks of dot_threads
//   threads. beta = 0: R is not read.
// Alignment: that of the scalar; 16-byte accesses where both matrices have stride 1, and bases and line strides that are multiples of 16 bytes.
// Aliasing: S overlaps nothing else; R neither.
// Called by: the GPU executor, for reductions of a matrix or of two.
#pragma once
#include "launch_order.cuh"
#include "scalars.cuh"

namespace otimes::kernels {

constexpr int dot_threads = 256, dots_together = 4;

template <class Storage, class Accumulator>
struct dot_arguments {
    const Storage* x;
    const Storage* y;
    Accumulator* sums;
    index_t lines, count;
    index_t x_line_stride, x_stride, y_line_stride, y_stride;
    bool conjugate_x, conjugate_y, distance;
};

template <class Storage, class Accumulator>
struct finish_arguments {
    const Accumulator* sums;
    Storage* result;
    Accumulator alpha, beta;
    int count;
};

// The sum of all threads' values, in thread 0.
template <class Accumulator>
__device__ __forceinline__ Accumulator sum_of_block(Accumulator value) {
    __shared__ Accumulator tree[dot_threads];
    tree[threadIdx.x] = value;
#pragma unroll
    for (int half = dot_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (int(threadIdx.x) < half) tree[threadIdx.x] += tree[threadIdx.x + half];
    }
    return tree[0];
}

template <int Width, class Storage, class Accumulator>
__device__ __forceinline__ Accumulator dot_of_pieces(const dot_arguments<Storage, Accumulator>& arguments) {
    constexpr int bytes = Width * int(sizeof(Storage));
    const index_t each = arguments.count / Width, pieces = each * arguments.lines;
    const bool one_line = arguments.lines == 1;
    Accumulator sums[dots_together] = {Accumulator(0), Accumulator(0), Accumulator(0), Accumulator(0)};
    const index_t step = index_t(gridDim.x) * dot_threads * dots_together;
    for (index_t first = index_t(blockIdx.x) * dot_threads * dots_together + threadIdx.x; first < pieces;
         first += step) {
        alignas(16) Storage rX[dots_together][Width], rY[dots_together][Width];  // (access, element)
#pragma unroll
        for (int j = 0; j < dots_together; ++j) {
            const index_t piece = first + j * dot_threads;
            if (piece >= pieces) break;
            const index_t line = one_line               ? 0
                                 : (piece | each) >> 32 ? piece / each
                                                        : index_t(unsigned(piece) / unsigned(each));
            const index_t at = (piece - line * each) * Width;
            const Storage* gX = arguments.x + line * arguments.x_line_stride + at * arguments.x_stride;
            const Storage* gY = arguments.y + line * arguments.y_line_stride + at * arguments.y_stride;
            if constexpr (Width > 1) {
                *reinterpret_cast<packet<bytes>*>(rX[j]) = *reinterpret_cast<const packet<bytes>*>(gX);
                *reinterpret_cast<packet<bytes>*>(rY[j]) = *reinterpret_cast<const packet<bytes>*>(gY);
            } else {
                rX[j][0] = *gX;
                rY[j][0] = *gY;
            }
        }
#pragma unroll
        for (int j = 0; j < dots_together; ++j) {
            if (first + j * dot_threads >= pieces) break;
#pragma unroll
            for (int e = 0; e < Width; ++e) {
                Accumulator x = widen<Accumulator>(rX[j][e]), y = widen<Accumulator>(rY[j][e]);
                if (arguments.conjugate_x) x = conjugate(x);
                if (arguments.conjugate_y) y = conjugate(y);
                if (arguments.distance) {
                    y = x - y;
                    x = conjugate(y);
                }
                sums[j] = multiply_add(x, y, sums[j]);
            }
        }
    }
    Accumulator sum = sums[0];
#pragma unroll
    for (int j = 1; j < dots_together; ++j) sum += sums[j];
    return sum;
}

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(dot_threads)
    partial_dots(const __grid_constant__ dot_arguments<Storage, Accumulator> arguments) {
    after_earlier_launches();
    constexpr int width = 16 / int(sizeof(Storage));
    const bool wide =
        arguments.x_stride == 1 && arguments.y_stride == 1 && aligned_to(arguments.x, 16) &&
        aligned_to(arguments.y, 16) && arguments.count % width == 0 &&
        (arguments.lines == 1 || (arguments.x_line_stride % width == 0 && arguments.y_line_stride % width == 0));
    Accumulator sum = width > 1 && wide ? dot_of_pieces<width>(arguments) : dot_of_pieces<1>(arguments);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) arguments.sums[blockIdx.x] = sum;
}

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(dot_threads)
    finish_dot(const __grid_constant__ finish_arguments<Storage, Accumulator> arguments) {
    after_earlier_launches();
    Accumulator sum = Accumulator(0);
    for (int b = int(threadIdx.x); b < arguments.count; b += dot_threads) sum += arguments.sums[b];
    sum = sum_of_block(sum);
    if (threadIdx.x != 0) return;
    sum = arguments.alpha * sum;
    if (!(arguments.beta == Accumulator(0))) sum += arguments.beta * widen<Accumulator>(*arguments.result);
    *arguments.result = narrow<Storage>(sum);
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// Contract: Y[l, i] = alpha * op(X)[l, i] + beta * Y[l, i],   l < lines, i < count, op = identity or complex conjugate
// X[l, i] stands at x + l * x_line_stride + i, Y likewise: stretches that are contiguous on both sides.
//
// Requires: lines, count >= 0; strides any; 1-D grid of any size, blocks of copy_threads threads. beta = 0: Y is not read.
// Alignment: that of the scalar; 16-byte accesses where both bases and line strides are multiples of 16 bytes.
// Aliasing: Y = X with equal strides allowed; no other overlap.
// Called by: the GPU executor, for copies, multiples and sums of matrices. Each thread has four accesses of X on their way.
#pragma once
#include "scalars.cuh"

namespace otimes::kernels {

constexpr int copy_threads = 256, copies_together = 4;

template <class Storage, class Accumulator>
struct scaled_copy_arguments {
    const Storage* x;
    Storage* y;
    Accumulator alpha, beta;
    index_t lines, count;
    index_t x_line_stride, y_line_stride;
    bool conjugate_x;
};

// The accesses of Width elements of all lines, dealt out block by block: a block's threads take neighbouring ones.
template <int Width, class Storage, class Accumulator>
__device__ __forceinline__ void copy_pieces(const scaled_copy_arguments<Storage, Accumulator>& arguments) {
    constexpr int bytes = Width * int(sizeof(Storage));
    const index_t each = arguments.count / Width, pieces = each * arguments.lines;
    const bool reads_y = !(arguments.beta == Accumulator(0)), one_line = arguments.lines == 1;
    const auto place = [&](index_t piece, index_t line_stride) {
        if (one_line) return piece * Width;
        const index_t line = (piece | each) >> 32 ? piece / each : index_t(unsigned(piece) / unsigned(each));
        return line * line_stride + (piece - line * each) * Width;
    };
    const index_t step = index_t(gridDim.x) * copy_threads * copies_together;
    for (index_t first = index_t(blockIdx.x) * copy_threads * copies_together + threadIdx.x; first < pieces;
         first += step) {
        alignas(16) Storage rX[copies_together][Width], rY[copies_together][Width];  // (access, element)
#pragma unroll
        for (int j = 0; j < copies_together; ++j) {
            const index_t piece = first + j * copy_threads;
            if (piece >= pieces) break;
            const Storage* gX = arguments.x + place(piece, arguments.x_line_stride);
            const Storage* gY = arguments.y + place(piece, arguments.y_line_stride);
            if constexpr (Width > 1) {
                *reinterpret_cast<packet<bytes>*>(rX[j]) = *reinterpret_cast<const packet<bytes>*>(gX);
                if (reads_y) *reinterpret_cast<packet<bytes>*>(rY[j]) = *reinterpret_cast<const packet<bytes>*>(gY);
            } else {
                rX[j][0] = *gX;
                if (reads_y) rY[j][0] = *gY;
            }
        }
#pragma unroll
        for (int j = 0; j < copies_together; ++j) {
            const index_t piece = first + j * copy_threads;
            if (piece >= pieces) break;
            Storage* gY = arguments.y + place(piece, arguments.y_line_stride);
#pragma unroll
            for (int e = 0; e < Width; ++e) {
                Accumulator x = widen<Accumulator>(rX[j][e]);
                if (arguments.conjugate_x) x = conjugate(x);
                x = arguments.alpha * x;
                if (reads_y) x += arguments.beta * widen<Accumulator>(rY[j][e]);
                rX[j][e] = narrow<Storage>(x);
            }
            if constexpr (Width > 1)
                *reinterpret_cast<packet<bytes>*>(gY) = *reinterpret_cast<const packet<bytes>*>(rX[j]);
            else
                *gY = rX[j][0];
        }
    }
}

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(copy_threads)
    scaled_copy(const __grid_constant__ scaled_copy_arguments<Storage, Accumulator> arguments) {
    constexpr int width = 16 / int(sizeof(Storage));
    const bool wide =
        aligned_to(arguments.x, 16) && aligned_to(arguments.y, 16) && arguments.count % width == 0 &&
        (arguments.lines == 1 || (arguments.x_line_stride % width == 0 && arguments.y_line_stride % width == 0));
    if (width > 1 && wide)
        copy_pieces<width>(arguments);
    else
        copy_pieces<1>(arguments);
}

}  // namespace otimes::kernels

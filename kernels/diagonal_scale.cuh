// SPDX-License-Identifier: MIT
// Contract: Y[l, i] = alpha * op(X)[l, i] * op(D)[l, i] + beta * Y[l, i],   l < lines, i < count, op = identity or complex conjugate
// X[l, i] stands at x + l * x_line_stride + i, Y likewise: stretches that are contiguous on both sides. D[l, i] stands at
// d + (l mod d_lines) * d_line_stride + i * d_stride: a vector along the stretches (d_line_stride = 0), across them (d_stride = 0), or a matrix,
// that repeats after d_lines stretches.
//
// Requires: lines, count >= 0; d_lines > 0; strides any; 1-D grid of any size, blocks of scale_threads threads. beta = 0: Y is not read.
// Alignment: that of the scalar; 16-byte accesses of X and Y where both bases and line strides are multiples of 16 bytes, of D likewise.
// Aliasing: Y = X with equal strides allowed; no other overlap.
// Called by: the GPU executor, between the two products of a solve by eigenvectors. Each thread has four accesses of X on their way.
#pragma once
#include "scalars.cuh"

namespace otimes::kernels {

constexpr int scale_threads = 256, scales_together = 4;

template <class Storage, class Accumulator>
struct diagonal_arguments {
    const Storage* x;
    const Storage* d;
    Storage* y;
    Accumulator alpha, beta;
    index_t lines, count, d_lines;
    index_t x_line_stride, y_line_stride, d_line_stride, d_stride;
    bool conjugate_x, conjugate_d;
};

template <int Width, class Storage, class Accumulator>
__device__ __forceinline__ void scale_pieces(const diagonal_arguments<Storage, Accumulator>& arguments) {
    constexpr int bytes = Width * int(sizeof(Storage));
    const index_t each = arguments.count / Width, pieces = each * arguments.lines;
    const bool reads_y = !(arguments.beta == Accumulator(0)), one_line = arguments.lines == 1;
    const bool d_wide = Width > 1 && arguments.d_stride == 1 && aligned_to(arguments.d, 16) &&
                        (one_line || arguments.d_line_stride % Width == 0);
    const index_t step = index_t(gridDim.x) * scale_threads * scales_together;
    for (index_t first = index_t(blockIdx.x) * scale_threads * scales_together + threadIdx.x; first < pieces;
         first += step) {
        alignas(16) Storage rX[scales_together][Width], rD[scales_together][Width];  // (access, element)
        index_t line[scales_together], at[scales_together];                          // (access)
#pragma unroll
        for (int j = 0; j < scales_together; ++j) {
            const index_t piece = first + j * scale_threads;
            if (piece >= pieces) break;
            line[j] = one_line ? 0 : (piece | each) >> 32 ? piece / each : index_t(unsigned(piece) / unsigned(each));
            at[j] = (piece - line[j] * each) * Width;
            const Storage* gX = arguments.x + line[j] * arguments.x_line_stride + at[j];
            index_t d_line = line[j];
            if (d_line >= arguments.d_lines)
                d_line = (d_line | arguments.d_lines) >> 32 ? d_line % arguments.d_lines
                                                            : index_t(unsigned(d_line) % unsigned(arguments.d_lines));
            const Storage* gD = arguments.d + d_line * arguments.d_line_stride + at[j] * arguments.d_stride;
            if constexpr (Width > 1)
                *reinterpret_cast<packet<bytes>*>(rX[j]) = *reinterpret_cast<const packet<bytes>*>(gX);
            else
                rX[j][0] = *gX;
            if (d_wide) {
                if constexpr (Width > 1)
                    *reinterpret_cast<packet<bytes>*>(rD[j]) = *reinterpret_cast<const packet<bytes>*>(gD);
            } else {
#pragma unroll
                for (int e = 0; e < Width; ++e) rD[j][e] = gD[e * arguments.d_stride];
            }
        }
#pragma unroll
        for (int j = 0; j < scales_together; ++j) {
            if (first + j * scale_threads >= pieces) break;
            Storage* gY = arguments.y + line[j] * arguments.y_line_stride + at[j];
#pragma unroll
            for (int e = 0; e < Width; ++e) {
                Accumulator x = widen<Accumulator>(rX[j][e]), d = widen<Accumulator>(rD[j][e]);
                if (arguments.conjugate_x) x = conjugate(x);
                if (arguments.conjugate_d) d = conjugate(d);
                x = arguments.alpha * (x * d);
                if (reads_y) x += arguments.beta * widen<Accumulator>(gY[e]);
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
__global__ void __launch_bounds__(scale_threads)
    diagonal_scale(const __grid_constant__ diagonal_arguments<Storage, Accumulator> arguments) {
    constexpr int width = 16 / int(sizeof(Storage));
    const bool wide =
        aligned_to(arguments.x, 16) && aligned_to(arguments.y, 16) && arguments.count % width == 0 &&
        (arguments.lines == 1 || (arguments.x_line_stride % width == 0 && arguments.y_line_stride % width == 0));
    if (width > 1 && wide)
        scale_pieces<width>(arguments);
    else
        scale_pieces<1>(arguments);
}

}  // namespace otimes::kernels

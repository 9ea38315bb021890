// SPDX-License-Identifier: MIT
// Contract: one contracted mode, any shape, stride, type:
//   Y[f, q] = alpha * sum_p op(X)[f, p] * op(F)[f, p, q] + beta * Y[f, q],   f = (f_1 .. f_k), op = identity or complex conjugate
// X[f, p] stands at x + sum_i f_i * x_stride[i] + p * x_p_stride; Y and F likewise (a stride 0 in F: shared by all f_i).
// Computed in Accumulator: a sum in order of p with multiply-adds; where 2^lanes_log2 = L threads share it, lane l sums p = l, l + L, .., and the lanes'
// sums are added in pairs, l and l + L/2 first. The order depends on L alone.
//
// Requires: 0 <= free_count <= max_free_modes; extents >= 0 (an empty p gives beta * Y, an empty f or q nothing to do); strides any, also
//   negative; 1-D grid of any size, 1-D block of a multiple of L threads, at most 256. beta = 0: Y is not read.
// Alignment: that of the scalar. Aliasing: Y overlaps neither X nor F; where p and q have extent 1, Y = X with equal strides is allowed.
// Called by: the GPU executor, for whatever no other kernel takes, and for few long sums (plan/gpu_generic.hpp); the check of every other kernel.
#pragma once
#include "launch_order.cuh"
#include "scalars.cuh"

namespace otimes::kernels {

constexpr int max_free_modes = 16;

template <class Storage, class Accumulator>
struct sliced_multiply_arguments {
    const Storage* x;
    const Storage* f;
    Storage* y;
    Accumulator alpha, beta;
    index_t p_extent, q_extent;
    index_t x_p_stride, f_p_stride, f_q_stride, y_q_stride;
    index_t free_extent[max_free_modes];
    index_t x_stride[max_free_modes], y_stride[max_free_modes], f_stride[max_free_modes];
    int free_count;
    int q_position;  // q counts between free modes q_position - 1 and q_position: its place in Y's order, so that stores coalesce
    int lanes_log2;  // threads of a sum
    bool conjugate_x, conjugate_f;
};

template <class Storage, class Accumulator>
__global__ void __launch_bounds__(256)
    generic_sliced_multiply(const __grid_constant__ sliced_multiply_arguments<Storage, Accumulator> arguments) {
    after_earlier_launches();
    index_t count = arguments.q_extent;
    for (int i = 0; i < arguments.free_count; ++i) count *= arguments.free_extent[i];
    // What a warp reads of F lies together: neighbours in p are read by the lanes of a sum, others by neighbouring sums.
    const int lanes = 1 << arguments.lanes_log2, together = int(blockDim.x) >> arguments.lanes_log2;
    const bool along_p = arguments.f_p_stride == 1;
    const int lane = along_p ? int(threadIdx.x) & (lanes - 1) : int(threadIdx.x) / together;
    const int own = along_p ? int(threadIdx.x) >> arguments.lanes_log2 : int(threadIdx.x) - lane * together;
    // All threads of a block stay in the loop: they add up their sums.
    for (index_t first = index_t(blockIdx.x) * together; first < count; first += index_t(gridDim.x) * together) {
        const bool exists = first + own < count;
        const Storage* gX = arguments.x;  // (p)
        const Storage* gF = arguments.f;  // (p)
        Storage* gY = arguments.y;        // ()
        index_t rest = exists ? first + own : 0;
        const auto digit = [&](index_t extent) {
            const index_t above = (rest | extent) >> 32 ? rest / extent : index_t(unsigned(rest) / unsigned(extent));
            const index_t value = rest - above * extent;
            rest = above;
            return value;
        };
        for (int i = arguments.free_count; i >= 0; --i) {
            if (i == arguments.q_position) {
                const index_t q = digit(arguments.q_extent);
                gF += q * arguments.f_q_stride;
                gY += q * arguments.y_q_stride;
            }
            if (i > 0) {
                const index_t f = digit(arguments.free_extent[i - 1]);
                gX += f * arguments.x_stride[i - 1];
                gF += f * arguments.f_stride[i - 1];
                gY += f * arguments.y_stride[i - 1];
            }
        }
        Accumulator sum = Accumulator(0);
        const auto factors_of = [&](index_t p, Accumulator& x, Accumulator& f) {
            x = widen<Accumulator>(gX[p * arguments.x_p_stride]);
            f = widen<Accumulator>(gF[p * arguments.f_p_stride]);
        };
        const auto add = [&](Accumulator x, Accumulator f) {
            if (arguments.conjugate_x) x = conjugate(x);
            if (arguments.conjugate_f) f = conjugate(f);
            sum = multiply_add(x, f, sum);
        };
        index_t p = lane;
        constexpr int ahead = 4;  // reads on their way
        for (; p + (ahead - 1) * lanes < arguments.p_extent; p += ahead * lanes) {
            Accumulator rX[ahead], rF[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i) factors_of(p + i * lanes, rX[i], rF[i]);
            asm volatile("" ::: "memory");  // before the first is waited for
#pragma unroll
            for (int i = 0; i < ahead; ++i) add(rX[i], rF[i]);
        }
        for (; p < arguments.p_extent; p += lanes) {
            Accumulator x, f;
            factors_of(p, x, f);
            add(x, f);
        }
        if (lanes > 1) {
            __shared__ Accumulator sums[256];  // (own, lane)
            Accumulator* const mine = sums + lane * together + own;
            __syncthreads();  // those of the turn before are read
            *mine = sum;
            for (int half = lanes / 2; half > 0; half /= 2) {
                __syncthreads();
                if (lane < half) *mine += mine[half * together];
            }
            sum = *mine;
        }
        if (!exists || lane != 0) continue;
        sum = arguments.alpha * sum;
        if (!(arguments.beta == Accumulator(0))) sum += arguments.beta * widen<Accumulator>(*gY);
        *gY = narrow<Storage>(sum);
    }
}

}  // namespace otimes::kernels

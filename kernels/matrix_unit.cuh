// SPDX-License-Identifier: MIT
// The matrix unit's 16 x 8 x 8 products of one warp, with g = lane / 4 and t = lane % 4:
//
// Contract: D[i, j] = C[i, j] + sum_k A[i, k] * B[k, j],  i < 16, j < 8, k < 8
//   rA[0..3] = A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]      rB[0..1] = B[t, g], B[t + 4, g]
//   rC[0..3] = C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1]  (fragment layouts: PTX ISA, mma.m16n8k8)
// Requires: all 32 lanes; tf32 from compute capability 8.0, double from 9.0.
//
// A float is split as high + low, each with the 11 significant bits that the unit reads: high = x to nearest, low = x - high,
// exact but for its last bit (of either sign). Three products low*high + high*low + high*high then carry
// float's accuracy; what they lose is a constant part of the sum, while plain multiply-adds lose more the longer the sum is. Sums of
// up to 16 take the fourth, low*low, too, since without it they come out less accurate than those (of a pair of modes one: pair_trip.cuh). The unit truncates while it adds,
// so a long sum leaves it every eight k and is added in float outside. Infinite, NaN and overflowing operands give a non-finite result here;
// the caller finds those and repeats the fibre with multiply-adds.
#pragma once
#include "device_language.cuh"

namespace otimes::kernels {

#ifndef OTIMES_HOST_DEVICE
// No group that needs the unit is planned for a device that has none. Tests run kernels on the host: tests/kernels/host_device.hpp.
template <class... Operands>
__device__ __forceinline__ void without_unit(const Operands&...) {
    __trap();
}
#endif

struct split_float {
    unsigned high, low;  // tf32 bit patterns
};

// Three instructions. An infinity or a NaN leaves a NaN in `low`, so that no such operand goes unnoticed.
__device__ __forceinline__ split_float split(float value) {
    split_float parts;
    parts.high = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
    parts.low = __float_as_uint(value - __uint_as_float(parts.high));  // the unit ignores the 13 last bits
    return parts;
}

// As split, for a factor, which is split once: low to nearest, and the whole larger by what the unit cuts off on average. It cuts a sum
// towards zero, by truncation_mean = 2^-24.5 of it, and again for every further step of eight that it adds (Chained steps: those
// partial sums grow linearly on average). A sum that is this much larger comes out to nearest instead. With one step, a sum that
// float represents exactly still comes out exactly while x has 11 significant bits; beyond, and with more steps, small terms of
// the other sign may cost its last place.
#ifndef OTIMES_TRUNCATION_MEAN
#define OTIMES_TRUNCATION_MEAN 4.0e-8f
#endif
constexpr float truncation_mean = OTIMES_TRUNCATION_MEAN;

template <int Chained = 1>
__device__ __forceinline__ split_float split_factor(float value) {
    constexpr float more = Chained == 1 ? truncation_mean : truncation_mean * (Chained + 1) / 2;
    split_float parts = split(value);
    parts.low = __float_as_uint(__uint_as_float(parts.low) + value * more);
    if ((parts.low & 0x7fffffffu) < 0x7f800000u) parts.low += 0x1000u;
    return parts;
}

__device__ __forceinline__ void multiply_tf32(float (&rD)[4], const unsigned (&rA)[4], unsigned b0, unsigned b1,
                                              const float (&rC)[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(rD[0]), "=f"(rD[1]), "=f"(rD[2]), "=f"(rD[3])
        : "r"(rA[0]), "r"(rA[1]), "r"(rA[2]), "r"(rA[3]), "r"(b0), "r"(b1), "f"(rC[0]), "f"(rC[1]), "f"(rC[2]),
          "f"(rC[3]));
#else
    without_unit(rD, rA, b0, b1, rC);
#endif
}

// A number as one operand of the unit, to nearest; infinities and NaN stay what they are. Exact: it has no more than 11 significant bits.
#ifndef OTIMES_HOST_DEVICE
__device__ __forceinline__ unsigned nearest_tf32(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
#else
    without_unit(value);
    return 0;
#endif
}
#endif
template <bool Exact>
__device__ __forceinline__ unsigned as_tf32(float value) {
    if constexpr (Exact)
        return __float_as_uint(value);
    else
        return nearest_tf32(value);
}

// Whether sums of p products take low*low (above).
__host__ __device__ constexpr bool takes_low_low(int p) { return p <= 16; }

// rC[i] = A[i % Products] * B[i / Products] (First) or += it, for Count independent 16 x 8 x 8 products, to float's accuracy. Products
// of one term stand side by side, so that the unit need not wait for its own results. The small terms go first, and what is already
// in rC is added outside the unit, to nearest.
template <bool First, bool LowLow, int Count, int Products>
__device__ __forceinline__ void multiply_add_split(float (*rC)[4], const unsigned (&rHigh)[Products][4],
                                                   const unsigned (&rLow)[Products][4], const uint4* rF) {
    float rD[Count][4];  // (product, 2 rows x 2 columns)
#pragma unroll
    for (int i = 0; i < Count; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) rD[i][e] = 0.f;
        if constexpr (LowLow) multiply_tf32(rD[i], rLow[i % Products], rF[i / Products].z, rF[i / Products].w, rD[i]);
    }
#pragma unroll
    for (int i = 0; i < Count; ++i)
        multiply_tf32(rD[i], rLow[i % Products], rF[i / Products].x, rF[i / Products].y, rD[i]);
#pragma unroll
    for (int i = 0; i < Count; ++i)
        multiply_tf32(rD[i], rHigh[i % Products], rF[i / Products].z, rF[i / Products].w, rD[i]);
#pragma unroll
    for (int i = 0; i < Count; ++i)
        multiply_tf32(rD[i], rHigh[i % Products], rF[i / Products].x, rF[i / Products].y, rD[i]);
#pragma unroll
    for (int i = 0; i < Count; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) rC[i][e] = First ? rD[i][e] : rC[i][e] + rD[i][e];
}

__device__ __forceinline__ void multiply_add_double(double (&rC)[4], const double (&rA)[4], double b0, double b1) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+d"(rC[0]), "+d"(rC[1]), "+d"(rC[2]), "+d"(rC[3])
        : "d"(rA[0]), "d"(rA[1]), "d"(rA[2]), "d"(rA[3]), "d"(b0), "d"(b1));
#else
    without_unit(rC, rA, b0, b1, rC);
#endif
}

}  // namespace otimes::kernels

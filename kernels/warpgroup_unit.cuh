// SPDX-License-Identifier: MIT
// The warpgroup's matrix product (compute capability 9.0, architecture-specific target sm_90a): 64 x N x 8, left operand in registers, right
// operand in shared memory. Four consecutive warps, the first a multiple of four, work together; warp w has rows 16 w .. 16 w + 15,
// in lanes and registers as in matrix_unit.cuh, and rD[4 n + e] is the entry e of its columns 8 n .. 8 n + 7.
//
// Contract: warpgroup_multiply<N, First>(rD, rA, b): D = A * B (First) or D += A * B, asynchronous: rD and rA are touched again only after
// warpgroup_wait<K>() says that at most the K newest warpgroup_commit()s are outstanding.
// b: where eight rows of B stand, as 8 x 4 blocks of 128 bytes, [N / 8][2][8 columns][4 rows], 16-byte aligned, written before a
//   barrier and, by ordinary stores, before a fence_for_unit() of the writing thread.
// Reference for layouts and descriptor: PTX ISA, asynchronous warpgroup level matrix instructions, no swizzle.
#pragma once
#include "device_language.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OTIMES_WARPGROUP_UNIT 1
#else
#define OTIMES_WARPGROUP_UNIT 0
#endif

#ifndef OTIMES_HOST_DEVICE

namespace otimes::kernels {

// Ordinary stores of this thread become visible to the matrix unit (and the copy engine).
__device__ __forceinline__ void fence_for_unit() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ unsigned long long right_operand(const void* shared_block) {
    constexpr unsigned long long along_k = 128 / 16, along_n = 256 / 16;
    return ((shared_address(shared_block) & 0x3ffffu) >> 4) | along_k << 16 | along_n << 32;
}

template <int Count>
__device__ __forceinline__ void keep_registers(float (&rD)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(rD[i])::"memory");
}

__device__ __forceinline__ void warpgroup_begin() {
#if OTIMES_WARPGROUP_UNIT
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void warpgroup_commit() {
#if OTIMES_WARPGROUP_UNIT
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int Outstanding>
__device__ __forceinline__ void warpgroup_wait() {
#if OTIMES_WARPGROUP_UNIT
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Outstanding) : "memory");
#endif
}

template <int N, bool First>
__device__ __forceinline__ void warpgroup_multiply(float (&rD)[N / 2], const unsigned (&rA)[4], unsigned long long b) {
    static_assert(N == 32 || N == 64);
#if defined(__CUDACC_RTC__)
    static_assert(OTIMES_WARPGROUP_UNIT && N > 0, "the warpgroup's unit is in code for sm_90a alone");
#endif
#if OTIMES_WARPGROUP_UNIT
    if constexpr (N == 32)
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
            "{%16, %17, %18, %19}, %20, p, 1, 1;\n\t}"
            : "+f"(rD[0]), "+f"(rD[1]), "+f"(rD[2]), "+f"(rD[3]), "+f"(rD[4]), "+f"(rD[5]), "+f"(rD[6]), "+f"(rD[7]),
              "+f"(rD[8]), "+f"(rD[9]), "+f"(rD[10]), "+f"(rD[11]), "+f"(rD[12]), "+f"(rD[13]), "+f"(rD[14]),
              "+f"(rD[15])
            : "r"(rA[0]), "r"(rA[1]), "r"(rA[2]), "r"(rA[3]), "l"(b), "n"(First ? 0 : 1));
    else
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "{%32, %33, %34, %35}, %36, p, 1, 1;\n\t}"
            : "+f"(rD[0]), "+f"(rD[1]), "+f"(rD[2]), "+f"(rD[3]), "+f"(rD[4]), "+f"(rD[5]), "+f"(rD[6]), "+f"(rD[7]),
              "+f"(rD[8]), "+f"(rD[9]), "+f"(rD[10]), "+f"(rD[11]), "+f"(rD[12]), "+f"(rD[13]), "+f"(rD[14]),
              "+f"(rD[15]), "+f"(rD[16]), "+f"(rD[17]), "+f"(rD[18]), "+f"(rD[19]), "+f"(rD[20]), "+f"(rD[21]),
              "+f"(rD[22]), "+f"(rD[23]), "+f"(rD[24]), "+f"(rD[25]), "+f"(rD[26]), "+f"(rD[27]), "+f"(rD[28]),
              "+f"(rD[29]), "+f"(rD[30]), "+f"(rD[31])
            : "r"(rA[0]), "r"(rA[1]), "r"(rA[2]), "r"(rA[3]), "l"(b), "n"(First ? 0 : 1));
#else
    __trap();
#endif
}

}  // namespace otimes::kernels

#endif

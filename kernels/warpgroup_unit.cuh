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

// An operand in registers stays what it is until here: the unit reads it until it has been waited for.
template <int Count>
__device__ __forceinline__ void keep_registers(unsigned (&rA)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(rA[i])::"memory");
}

// A kernel's warpgroups share its registers evenly until those that need few give some back and others take them, in all at most what the
// kernel began with. Count: a multiple of 8. Every warp of a warpgroup calls it.
template <int Count>
__device__ __forceinline__ void release_registers() {
#if OTIMES_WARPGROUP_UNIT
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
__device__ __forceinline__ void take_registers() {
#if OTIMES_WARPGROUP_UNIT
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
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

// The instruction for N columns, written with what it is made of: the numbers of its N / 2 results, the results, and the numbers of what follows them.
#define OTIMES_NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OTIMES_NUMBERS_20 OTIMES_NUMBERS_16 ", %16, %17, %18, %19"
#define OTIMES_NUMBERS_24 OTIMES_NUMBERS_20 ", %20, %21, %22, %23"
#define OTIMES_NUMBERS_28 OTIMES_NUMBERS_24 ", %24, %25, %26, %27"
#define OTIMES_NUMBERS_32 OTIMES_NUMBERS_28 ", %28, %29, %30, %31"
#define OTIMES_NUMBERS_36 OTIMES_NUMBERS_32 ", %32, %33, %34, %35"
#define OTIMES_NUMBERS_40 OTIMES_NUMBERS_36 ", %36, %37, %38, %39"
#define OTIMES_NUMBERS_44 OTIMES_NUMBERS_40 ", %40, %41, %42, %43"
#define OTIMES_NUMBERS_48 OTIMES_NUMBERS_44 ", %44, %45, %46, %47"
#define OTIMES_NUMBERS_52 OTIMES_NUMBERS_48 ", %48, %49, %50, %51"
#define OTIMES_NUMBERS_56 OTIMES_NUMBERS_52 ", %52, %53, %54, %55"
#define OTIMES_NUMBERS_60 OTIMES_NUMBERS_56 ", %56, %57, %58, %59"
#define OTIMES_NUMBERS_64 OTIMES_NUMBERS_60 ", %60, %61, %62, %63"
#define OTIMES_FOUR_SUMS(i) "+f"(rD[i]), "+f"(rD[(i) + 1]), "+f"(rD[(i) + 2]), "+f"(rD[(i) + 3])
#define OTIMES_SUMS_16 OTIMES_FOUR_SUMS(0), OTIMES_FOUR_SUMS(4), OTIMES_FOUR_SUMS(8), OTIMES_FOUR_SUMS(12)
#define OTIMES_SUMS_20 OTIMES_SUMS_16, OTIMES_FOUR_SUMS(16)
#define OTIMES_SUMS_24 OTIMES_SUMS_20, OTIMES_FOUR_SUMS(20)
#define OTIMES_SUMS_28 OTIMES_SUMS_24, OTIMES_FOUR_SUMS(24)
#define OTIMES_SUMS_32 OTIMES_SUMS_28, OTIMES_FOUR_SUMS(28)
#define OTIMES_SUMS_36 OTIMES_SUMS_32, OTIMES_FOUR_SUMS(32)
#define OTIMES_SUMS_40 OTIMES_SUMS_36, OTIMES_FOUR_SUMS(36)
#define OTIMES_SUMS_44 OTIMES_SUMS_40, OTIMES_FOUR_SUMS(40)
#define OTIMES_SUMS_48 OTIMES_SUMS_44, OTIMES_FOUR_SUMS(44)
#define OTIMES_SUMS_52 OTIMES_SUMS_48, OTIMES_FOUR_SUMS(48)
#define OTIMES_SUMS_56 OTIMES_SUMS_52, OTIMES_FOUR_SUMS(52)
#define OTIMES_SUMS_60 OTIMES_SUMS_56, OTIMES_FOUR_SUMS(56)
#define OTIMES_SUMS_64 OTIMES_SUMS_60, OTIMES_FOUR_SUMS(60)
#define OTIMES_WARPGROUP_MULTIPLY(columns, numbers, sums, a0, a1, a2, a3, b_number, adds)                             \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" adds ", 0;\n\twgmma.mma_async.sync.aligned.m64n" columns    \
                 "k8.f32.tf32.tf32 {" numbers "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_number ", p, 1, 1;\n\t}" \
                 : sums                                                                                               \
                 : "r"(rA[0]), "r"(rA[1]), "r"(rA[2]), "r"(rA[3]), "l"(b), "n"(First ? 0 : 1))

template <int N, bool First>
__device__ __forceinline__ void warpgroup_multiply(float (&rD)[N / 2], const unsigned (&rA)[4], unsigned long long b) {
    static_assert(N % 8 == 0 && N >= 32 && N <= 128);
#if defined(__CUDACC_RTC__)
    static_assert(OTIMES_WARPGROUP_UNIT && N > 0, "the warpgroup's unit is in code for sm_90a alone");
#endif
#if OTIMES_WARPGROUP_UNIT
    if constexpr (N == 32)
        OTIMES_WARPGROUP_MULTIPLY("32", OTIMES_NUMBERS_16, OTIMES_SUMS_16, "16", "17", "18", "19", "20", "21");
    else if constexpr (N == 40)
        OTIMES_WARPGROUP_MULTIPLY("40", OTIMES_NUMBERS_20, OTIMES_SUMS_20, "20", "21", "22", "23", "24", "25");
    else if constexpr (N == 48)
        OTIMES_WARPGROUP_MULTIPLY("48", OTIMES_NUMBERS_24, OTIMES_SUMS_24, "24", "25", "26", "27", "28", "29");
    else if constexpr (N == 56)
        OTIMES_WARPGROUP_MULTIPLY("56", OTIMES_NUMBERS_28, OTIMES_SUMS_28, "28", "29", "30", "31", "32", "33");
    else if constexpr (N == 64)
        OTIMES_WARPGROUP_MULTIPLY("64", OTIMES_NUMBERS_32, OTIMES_SUMS_32, "32", "33", "34", "35", "36", "37");
    else if constexpr (N == 72)
        OTIMES_WARPGROUP_MULTIPLY("72", OTIMES_NUMBERS_36, OTIMES_SUMS_36, "36", "37", "38", "39", "40", "41");
    else if constexpr (N == 80)
        OTIMES_WARPGROUP_MULTIPLY("80", OTIMES_NUMBERS_40, OTIMES_SUMS_40, "40", "41", "42", "43", "44", "45");
    else if constexpr (N == 88)
        OTIMES_WARPGROUP_MULTIPLY("88", OTIMES_NUMBERS_44, OTIMES_SUMS_44, "44", "45", "46", "47", "48", "49");
    else if constexpr (N == 96)
        OTIMES_WARPGROUP_MULTIPLY("96", OTIMES_NUMBERS_48, OTIMES_SUMS_48, "48", "49", "50", "51", "52", "53");
    else if constexpr (N == 104)
        OTIMES_WARPGROUP_MULTIPLY("104", OTIMES_NUMBERS_52, OTIMES_SUMS_52, "52", "53", "54", "55", "56", "57");
    else if constexpr (N == 112)
        OTIMES_WARPGROUP_MULTIPLY("112", OTIMES_NUMBERS_56, OTIMES_SUMS_56, "56", "57", "58", "59", "60", "61");
    else if constexpr (N == 120)
        OTIMES_WARPGROUP_MULTIPLY("120", OTIMES_NUMBERS_60, OTIMES_SUMS_60, "60", "61", "62", "63", "64", "65");
    else
        OTIMES_WARPGROUP_MULTIPLY("128", OTIMES_NUMBERS_64, OTIMES_SUMS_64, "64", "65", "66", "67", "68", "69");
#else
    __trap();
#endif
}

}  // namespace otimes::kernels

#endif

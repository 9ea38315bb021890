// SPDX-License-Identifier: MIT
// Contract: copy_async<Size>(d, s): bytes s[0, Size) -> d[0, Size), done when wait_for_copies<N> says that at most the N
// newest commits are outstanding; visible to other threads after the next barrier.
// Requires: Size in {4, 8, 16}; s (global) and d (shared) multiples of Size; no overlap.
// Contract: copy_async_or_zero<Size>(d, s, n): as copy_async of n bytes, and zeros up to Size; with n = 0 nothing is read.
// Below compute capability 8.0 the copy is an ordinary load and store, and the waits are empty.
// With OTIMES_EVICT_FIRST defined what is copied is the first to leave the second-level cache: for kernels that run beside copies of host
// memory, whose page table is there. Then the copy is a load and a store, too: ptxas before 13.4 loses the policy of an asynchronous one, and
// leaves an illegal instruction (github.com/IST-DASLab/marlin/issues/44).
//
// Contract: a stage_barrier opens, again and again, when as many threads as set_up() said have called copies_arrive() or arrive():
// all that they had copied or written to shared memory, or read there, before the call is done. wait(b, turn) returns when b has opened
// turn + 1 times. Requires: compute capability 9.0; a __syncthreads() after set_up(); b opens at most once between a thread's waits.
#pragma once
#include "device_language.cuh"

#ifndef OTIMES_HOST_DEVICE

namespace otimes::kernels {

#ifdef OTIMES_EVICT_FIRST
constexpr bool copies_evict_first = true;
#else
constexpr bool copies_evict_first = false;
#endif

// copy_async<Size> that is done when it returns, by a load whose line leaves the second-level cache first.
template <int Size>
__device__ __forceinline__ void copy_at_once(void* shared_destination, const void* global_source) {
    const unsigned to = shared_address(shared_destination);
    if constexpr (Size == 16)
        asm volatile(
            "{\n\t.reg .b32 a, b, c, d;\n\t"
            "ld.global.cs.v4.b32 {a, b, c, d}, [%1];\n\t"
            "st.shared.v4.b32 [%0], {a, b, c, d};\n\t}" ::"r"(to),
            "l"(global_source)
            : "memory");
    else if constexpr (Size == 8)
        asm volatile(
            "{\n\t.reg .b32 a, b;\n\t"
            "ld.global.cs.v2.b32 {a, b}, [%1];\n\t"
            "st.shared.v2.b32 [%0], {a, b};\n\t}" ::"r"(to),
            "l"(global_source)
            : "memory");
    else
        asm volatile(
            "{\n\t.reg .b32 a;\n\t"
            "ld.global.cs.b32 a, [%1];\n\t"
            "st.shared.b32 [%0], a;\n\t}" ::"r"(to),
            "l"(global_source)
            : "memory");
}

template <int Size>
__device__ __forceinline__ void copy_async(void* shared_destination, const void* global_source) {
    if constexpr (copies_evict_first) {
        copy_at_once<Size>(shared_destination, global_source);
        return;
    }
#if __CUDA_ARCH__ >= 800
    if constexpr (Size == 16)  // .cg: past L1, nothing is read twice
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared_destination)),
                     "l"(global_source)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared_destination)),
                     "l"(global_source), "n"(Size)
                     : "memory");
#else
    *static_cast<packet<Size>*>(shared_destination) = *static_cast<const packet<Size>*>(global_source);
#endif
}

// The first `bytes` of Size, and zeros for the rest; bytes a multiple of 4.
template <int Size>
__device__ __forceinline__ void copy_async_or_zero(void* shared_destination, const void* global_source, int bytes) {
    if constexpr (copies_evict_first) {
        if (bytes == Size)
            copy_at_once<Size>(shared_destination, global_source);
        else
#pragma unroll
            for (int i = 0; i < Size; i += 4) {
                char* const to = static_cast<char*>(shared_destination) + i;
                if (i < bytes)
                    copy_at_once<4>(to, static_cast<const char*>(global_source) + i);
                else
                    asm volatile("st.shared.b32 [%0], 0;" ::"r"(shared_address(to)) : "memory");
            }
        return;
    }
#if __CUDA_ARCH__ >= 800
    if constexpr (Size == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared_destination)),
                     "l"(global_source), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared_destination)),
                     "l"(global_source), "n"(Size), "r"(bytes)
                     : "memory");
#else
#pragma unroll
    for (int i = 0; i < Size / 4; ++i)
        static_cast<unsigned*>(shared_destination)[i] =
            4 * i < bytes ? static_cast<const unsigned*>(global_source)[i] : 0u;
#endif
}

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int Outstanding>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Outstanding) : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
constexpr bool has_stage_barriers = true;
#else
constexpr bool has_stage_barriers = false;
#endif

struct stage_barrier {
    unsigned long long state;
};

__device__ __forceinline__ void set_up(stage_barrier& barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
#endif
}

__device__ __forceinline__ void arrive(stage_barrier& barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
#endif
}

// The barrier expects one more until this thread's copies are done, so that they are done when it opens.
__device__ __forceinline__ void copies_arrive(stage_barrier& barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
    arrive(barrier);
#endif
}

__device__ __forceinline__ void wait(stage_barrier& barrier, unsigned turn) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred open;\n\t"
        "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n\t"
        "@!open bra again;\n\t}" ::"r"(shared_address(&barrier)),
        "r"(turn & 1u)
        : "memory");
#endif
}

}  // namespace otimes::kernels

#endif

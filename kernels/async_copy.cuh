// SPDX-License-Identifier: MIT
// Contract: copy_async<Size>(d, s): bytes s[0, Size) -> d[0, Size), done when wait_for_copies<N> says that at most the N
// newest commits are outstanding; visible to other threads after the next barrier.
// Requires: Size in {4, 8, 16}; s (global) and d (shared) multiples of Size; no overlap.
// Below compute capability 8.0 the copy is an ordinary load and store, and the waits are empty.
#pragma once
#include "device_language.cuh"

namespace otimes::kernels {

template <int Size>
__device__ __forceinline__ void copy_async(void* shared_destination, const void* global_source) {
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

}  // namespace otimes::kernels

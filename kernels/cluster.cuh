// SPDX-License-Identifier: MIT
// Blocks of one cluster and each other's shared memory (compute capability 9.0).
//
// Contract: read_from_block<Size>(d, s, rank): Size bytes at s in the shared memory of block `rank` of this cluster -> d.
// Requires: s is an address of this block's own shared memory, a multiple of Size in {4, 8, 16}; the other block wrote it before a
//   cluster_barrier() that both have passed, and does not end before a later one.
#pragma once
#include "device_language.cuh"

// The attribute of a kernel whose blocks form clusters; older architectures refuse it even for one block.
#if __CUDA_ARCH__ >= 900
#define OTIMES_CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define OTIMES_CLUSTER_OF(blocks)
#endif

#ifndef OTIMES_HOST_DEVICE

namespace otimes::kernels {

// What was written to shared memory before it is seen after it; of other memory nothing is said, so that no one waits for stores to Y.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900 && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 8))
    asm volatile(
        "fence.release.sync_restrict::shared::cta.cluster;\n\t"
        "barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;\n\t"
        "fence.acquire.sync_restrict::shared::cluster.cluster;" ::
            : "memory");
#elif __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ int cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return int(rank);
}

template <int Size>
__device__ __forceinline__ void read_from_block(void* destination, const void* own_shared, int rank) {
#if __CUDA_ARCH__ >= 900
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own_shared)), "r"(rank));
    unsigned* words = static_cast<unsigned*>(destination);
    if constexpr (Size == 16)
        asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address));
    else if constexpr (Size == 8)
        asm volatile("ld.shared::cluster.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address));
    else
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(words[0]) : "r"(address));
#else
    __trap();
#endif
}

}  // namespace otimes::kernels

#endif

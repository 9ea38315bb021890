// SPDX-License-Identifier: MIT
// How GPUs that store into each other's memory tell each other that they are done, without the host.
//
// Contract: tell_receivers(t): called by all threads of all blocks after their last store, it sets the word t.words[k] of every receiver
//   k < t.count to t.value once all blocks have called it. await_arrivals ends when every word has its value, or a later one.
// Visibility: what a GPU had stored, in this launch or an earlier one on its stream, may be read by what is launched behind await_arrivals.
// Requires: values of one word follow each other by less than 2^31; *t.blocks_done is 0 before the launch, and after it. await_arrivals: one
//   block, at least `count` threads. It stops the context where a word does not come for `deadline` ns: its GPU is lost.
//   `room` only where no kernel that is to tell has yet to be placed on this GPU: the blocks of a launch behind this one, placed early, would take its
//   room and wait for it for ever.
// Called by: fused_scattered; the transport of GPUs of one process.
#pragma once
#include "launch_order.cuh"

namespace otimes::kernels {

constexpr int most_receivers = 16;

#ifndef OTIMES_HOST_DEVICE

// What was stored before it is seen by whoever, on any GPU, loads the value by load_acquire.
__device__ __forceinline__ void store_release(unsigned* word, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* word) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
    return value;
}
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif

struct arrival_words {
    unsigned* words[most_receivers];  // of each receiver, the one that this GPU sets
    unsigned* blocks_done;            // null: of this launch nothing is told
    unsigned count, value;
};

__device__ __forceinline__ void tell_receivers(const arrival_words& tell) {
    if (tell.blocks_done == nullptr) return;
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
        __threadfence_system();
        last = atomicAdd(tell.blocks_done, 1u) == gridDim.x - 1;
        if (last) *tell.blocks_done = 0;
    }
    if (!__syncthreads_or(last)) return;
    unsigned* word = nullptr;
#pragma unroll
    for (unsigned k = 0; k < unsigned(most_receivers); ++k)  // constant places: no local memory
        if (threadIdx.x == k && k < tell.count) word = tell.words[k];
    if (word == nullptr) return;
    __threadfence_system();
    store_release(word, tell.value);
}

struct awaited_arrivals {
    const unsigned* words;  // (count)
    unsigned count, value;
    unsigned long long deadline;
    bool room;  // what tells the words needs no room on this GPU any more: later launches may take it at once
};

__global__ void __launch_bounds__(32) await_arrivals(const __grid_constant__ awaited_arrivals arguments) {
    wait_for_earlier_launches();
    if (arguments.room) let_later_launches_begin();
    if (threadIdx.x >= arguments.count) return;
    const unsigned* const word = arguments.words + threadIdx.x;
    const unsigned long long begin = nanoseconds();
    while (int(load_acquire(word) - arguments.value) < 0)
        if (nanoseconds() - begin > arguments.deadline) __trap();
}

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
// How GPUs that store into each other's memory tell each other that they are done, without the host.
//
// Contract: tell_receivers(t): called by all threads of all blocks after their last store, it sets the word t.words[k] of every receiver
//   k < t.count to t.value once all blocks have called it. await_arrivals ends when every word has its value, or a later one.
// Portions: a receiver that begins with what has arrived is told of one portion after another. tell_of_tile(t, p, k, all): called by one thread
//   behind a fence that follows all stores of a tile of portion p of receiver k, once for each of the `all` tiles; behind the last one the word
//   t.words[k][p * t.count] takes the value. await_portion ends for a warp when the words of all senders have theirs.
// Visibility: what a GPU had stored, in this launch or an earlier one on its stream, may be read by what is launched behind await_arrivals.
// Requires: values of one word follow each other by less than 2^31; what *t.blocks_done, t.tiles_done and *t.tiles_dealt count is 0 before the launch, and after it.
//   await_arrivals: one block, at least `count` threads. It stops the context where a word does not come for `deadline` ns: its GPU is lost.
//   `room` only where no kernel that is to tell has yet to be placed on this GPU: the blocks of a launch behind this one, placed early, would take its
//   room and wait for it for ever.
// Called by: fused_scattered, fused_telling, fused_arriving; the transport of GPUs of one process.
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
// Not ordered with what is around them: a fence stands before the store, and an acquiring load follows the last of such loads.
__device__ __forceinline__ void store_system(unsigned* word, unsigned value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_system(const unsigned* word) {
    unsigned value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
    return value;
}
// A word in shared memory: what a warp has done before it adds is seen by whoever of its block loads the sum.
__device__ __forceinline__ void add_release_of_block(unsigned* word, unsigned value) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared_address(word)), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned load_acquire_of_block(const unsigned* word) {
    unsigned value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(word)) : "memory");
    return value;
}
// Of a thread that looks at a word again and again: for what comes soon (threads of a GPU need nothing), and for what comes later.
__device__ __forceinline__ void let_others_go_on() {}
__device__ __forceinline__ void take_a_nap() { __nanosleep(64); }
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
    unsigned* tiles_done;  // (portions, count): what is told in portions
    unsigned* tiles_dealt;
    unsigned items;  // of a portion; 0: all is told at once
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

__device__ __forceinline__ void tell_of_tile(const arrival_words& tell, unsigned portion, unsigned receiver,
                                             unsigned all) {
    unsigned* const done = tell.tiles_done + portion * tell.count + receiver;
    if (atomicAdd(done, 1u) != all - 1) return;
    *done = 0;
    unsigned* word = tell.words[0];
#pragma unroll
    for (unsigned k = 1; k < unsigned(most_receivers); ++k)  // constant places: no local memory
        if (k == receiver) word = tell.words[k];
    __threadfence_system();
    store_system(word + portion * tell.count, tell.value);
}

// What a kernel waits for that reads portions: words (portions, senders).
struct awaited_portions {
    const unsigned* words;
    unsigned senders, value;
    unsigned long long deadline;
};

__device__ __forceinline__ void await_portion(const awaited_portions& awaited, unsigned portion) {
    for (unsigned sender = threadIdx.x % 32u; sender < awaited.senders; sender += 32) {
        const unsigned* const word = awaited.words + portion * awaited.senders + sender;
        if (int(load_acquire(word) - awaited.value) >= 0) continue;
        const unsigned long long begin = nanoseconds();
        while (int(load_system(word) - awaited.value) < 0) {
            take_a_nap();
            if (nanoseconds() - begin > awaited.deadline) __trap();
        }
        load_acquire(word);  // once: each drops what the multiprocessor's cache holds
    }
    __syncwarp();
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

// SPDX-License-Identifier: MIT
// The few words every kernel shares. Nothing here needs a header: the text compiles under nvcc and, with no include
// path at all, under run-time compilation.
#pragma once

namespace otimes::kernels {

using index_t = long long;  // extents, strides and counts in memory; offsets inside a tile are int

// A list of compile-time integers, read in constant expressions only.
template <int... Values>
struct extents {
    static constexpr int count = sizeof...(Values);
    __host__ __device__ static constexpr int at(int position) {
        constexpr int values[count > 0 ? count : 1] = {Values...};
        return values[position];
    }
};

template <int Value>
struct constant {
    static constexpr int value = Value;
};

// Calls body(constant<First>{}), ..., body(constant<Last - 1>{}).
template <int First, int Last, class Body>
__device__ __forceinline__ void for_constants(Body&& body) {
    if constexpr (First < Last) {
        body(constant<First>{});
        for_constants<First + 1, Last>(body);
    }
}

// Size bytes that travel as one access when both addresses are multiples of Size.
template <int Size>
struct alignas(Size) packet {
    unsigned int words[Size / 4];
};

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

// An element that no one writes while the kernel runs.
template <class T>
__device__ __forceinline__ T read_only(const T* pointer) {
    union {
        T value;
        unsigned int words[sizeof(T) / 4];
        uint2 two;
        uint4 four;
    } read;
    if constexpr (sizeof(T) == 16)
        read.four = __ldg(reinterpret_cast<const uint4*>(pointer));
    else if constexpr (sizeof(T) == 8)
        read.two = __ldg(reinterpret_cast<const uint2*>(pointer));
    else
        read.words[0] = __ldg(reinterpret_cast<const unsigned int*>(pointer));
    return read.value;
}

#ifndef OTIMES_HOST_DEVICE  // a host that plays the device has words of its own: tests/kernels/host_device.hpp

// The dynamic shared memory of the block.
#define OTIMES_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// The 128 bytes around an address begin to travel to the second-level cache.
__device__ __forceinline__ void prefetch_line(const void* pointer) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// A barrier of a block's first Threads threads, where it has more.
template <int Threads>
__device__ __forceinline__ void barrier_of_first() {
    asm volatile("barrier.sync 1, %0;" ::"n"(Threads) : "memory");
}

// An address that goes on from step to step: the compiler must not make each step's own from the first one's, which takes registers for all distances.
template <class T>
__device__ __forceinline__ void keep_stepping(T*& pointer) {
    asm volatile("" : "+l"(pointer));
}

#endif

// The thread's number in its block of Threads, by way of its warp: the compiler would read the special register again wherever
// registers are short, which takes as long as an access of shared memory. All threads of a warp call it.
template <int Threads>
__device__ __forceinline__ unsigned thread_number() {
    const unsigned number = __shfl_up_sync(0xffffffffu, threadIdx.x, 0);
    __builtin_assume(number < unsigned(Threads));
    return number;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ bool aligned_to(const void* pointer, int size) {
    return (reinterpret_cast<unsigned long long>(pointer) & static_cast<unsigned long long>(size - 1)) == 0;
}

}  // namespace otimes::kernels

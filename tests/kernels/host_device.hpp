// SPDX-License-Identifier: MIT
// A device on the host, as far as the text of kernels/ needs one: its threads are coroutines of one thread that go on in turn, so barriers,
// warps and the matrix unit are what they are on a GPU, and the order of everything is repeatable. Shared memory is an array; asynchronous copies
// are the copies of a device that has none (__CUDA_ARCH__ stays undefined). Slow: for small tiles.
//
// Included before the kernels, once in a program.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define OTIMES_HOST_DEVICE
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __align__(bytes)
#define __grid_constant__
#define __launch_bounds__(...)
#ifndef __clang__
#define __builtin_assume(condition)
#endif

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) double2 {
    double x, y;
};
inline double2 make_double2(double x, double y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct dim3 {
    unsigned x = 0;
};
inline dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace host_device {

// A barrier of coroutines.
struct meeting {
    int arrived = 0;
    long turn = 0;
};

struct coroutine {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(std::size_t{256} << 10);
    bool done = false;
};

// What a lane shows to its warp.
struct shown {
    double left[4];
    double right[2];
    bool flag;
};

inline std::vector<coroutine> coroutines;
inline ucontext_t scheduler;
inline std::size_t current = 0;
inline std::function<void()> kernel;
inline meeting all;
inline meeting warps[32];
inline shown lanes[32][32];

inline void let_others() { swapcontext(&coroutines[current].context, &scheduler); }

inline void meet(meeting& m, int count) {
    const long turn = m.turn;
    if (++m.arrived == count) {
        m.arrived = 0;
        ++m.turn;
    } else {
        while (m.turn == turn) {
            let_others();
        }
    }
}
inline void meet_warp() { meet(warps[threadIdx.x / 32], 32); }
inline shown& own_lane() { return lanes[threadIdx.x / 32][threadIdx.x % 32]; }

inline void run_coroutine() {
    kernel();
    coroutines[current].done = true;
    let_others();
}

// Runs one block of `threads` threads, a multiple of 32.
inline void run_block(unsigned threads, const std::function<void()>& body) {
    kernel = body;
    coroutines.clear();
    coroutines.resize(threads);
    all = {};
    for (meeting& m : warps) {
        m = {};
    }
    blockDim.x = threads;
    for (coroutine& c : coroutines) {
        getcontext(&c.context);
        c.context.uc_stack.ss_sp = c.stack.data();
        c.context.uc_stack.ss_size = c.stack.size();
        c.context.uc_link = nullptr;
        makecontext(&c.context, run_coroutine, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (current = 0; current < threads; ++current) {
            if (!coroutines[current].done) {
                any = true;
                threadIdx.x = static_cast<unsigned>(current);
                swapcontext(&scheduler, &coroutines[current].context);
            }
        }
    }
}

// D = C + A * B, 16 x 8 x 8, from what the lanes of a warp hold (PTX ISA, mma.m16n8k8).
template <class Real>
void multiply(Real (&rD)[4], const Real (&rA)[4], Real b0, Real b1, const Real (&rC)[4]) {
    shown& own = own_lane();
    for (int e = 0; e < 4; ++e) {
        own.left[e] = static_cast<double>(rA[e]);
    }
    own.right[0] = static_cast<double>(b0);
    own.right[1] = static_cast<double>(b1);
    meet_warp();
    const shown* const lane = lanes[threadIdx.x / 32];
    const unsigned g = threadIdx.x % 32 / 4;
    const unsigned t = threadIdx.x % 4;
    Real sums[4];
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned column = 2 * t + e % 2;
        Real sum = 0;
        for (unsigned k = 0; k < 8; ++k) {
            sum += static_cast<Real>(lane[4 * g + k % 4].left[e / 2 + 2 * (k / 4)]) *
                   static_cast<Real>(lane[4 * column + k % 4].right[k / 4]);
        }
        sums[e] = rC[e] + sum;
    }
    meet_warp();
    for (int e = 0; e < 4; ++e) {
        rD[e] = sums[e];
    }
}

}  // namespace host_device

template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits = 0;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits = 0;
    std::memcpy(&bits, &value, 8);
    return bits;
}
inline void __trap() {
    std::fputs("a kernel has come where this device cannot go\n", stderr);
    std::abort();
}
inline std::uintptr_t __cvta_generic_to_shared(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}
inline std::uintptr_t __cvta_generic_to_global(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
    const unsigned before = *at;
    *at += value;
    return before;
}
inline void __threadfence() {}
inline void __threadfence_system() {}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }

inline void __syncthreads() { host_device::meet(host_device::all, static_cast<int>(host_device::coroutines.size())); }
inline void __syncwarp() { host_device::meet_warp(); }
inline bool __any_sync(unsigned, bool value) {
    host_device::own_lane().flag = value;
    host_device::meet_warp();
    bool any = false;
    for (const host_device::shown& lane : host_device::lanes[threadIdx.x / 32]) {
        any = any || lane.flag;
    }
    host_device::meet_warp();
    return any;
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
    return distance == 0 ? value : (__trap(), value);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int) {
    __trap();
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int) {
    __trap();
    return value;
}

namespace otimes::kernels {

alignas(1024) inline unsigned char shared_bytes[std::size_t{228} << 10];

// What the matrix unit does, see matrix_unit.cuh: of a float it reads the first 19 bits.
inline void without_unit(float (&rD)[4], const unsigned (&rA)[4], unsigned b0, unsigned b1, const float (&rC)[4]) {
    const auto read = [](unsigned bits) { return __uint_as_float(bits & 0xffffe000u); };
    const float rX[4] = {read(rA[0]), read(rA[1]), read(rA[2]), read(rA[3])};
    host_device::multiply<float>(rD, rX, read(b0), read(b1), rC);
}
inline void without_unit(double (&rD)[4], const double (&rA)[4], double b0, double b1, const double (&rC)[4]) {
    host_device::multiply<double>(rD, rA, b0, b1, rC);
}

}  // namespace otimes::kernels

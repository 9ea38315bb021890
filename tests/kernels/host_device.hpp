// SPDX-License-Identifier: MIT
// A device on the host, as far as the text of kernels/ needs one. Its threads are coroutines that go on in turn, so barriers, warps, clusters
// and the matrix units are what they are on a GPU, and every run is repeatable. What a GPU may do late is done as late as it may be, and what it
// leaves open is tried both ways, so that a barrier or a wait that is missing gives wrong numbers here:
//  - an asynchronous copy makes its destination NaN at once and is done when it is waited for, unless its source has changed meanwhile;
//  - a warpgroup's products are computed when they are waited for;
//  - the threads between two barriers go in ascending order, or in descending order (`backwards`).
// Shared memory is one array, which has the contents of the block that is at work. Slow: for small tiles.
//
// Included before the kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <otimes/program/half.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define OTIMES_HOST_DEVICE
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __launch_bounds__(...)
#define OTIMES_DYNAMIC_SHARED(name) unsigned char* const name = host_device::shared
#ifndef __clang__
#define __builtin_assume(condition)
#endif

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) double2 {
    double x, y;
};
inline double2 make_double2(double x, double y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct dim3 {
    unsigned x = 0;
};
inline dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace host_device {

constexpr std::size_t most_shared = std::size_t{228} << 10;
alignas(1024) inline unsigned char shared[most_shared];

// A barrier of coroutines.
struct meeting {
    int arrived = 0;
    long turn = 0;
};

// What a lane shows to its warp.
struct shown {
    double left[4];
    double right[2];
    unsigned char bytes[16];
    bool flag;
};

struct block {
    meeting all;
    meeting first;  // some of its threads
    meeting warps[32];
    shown lanes[32][32];
    bool any[2] = {false, false};
    std::vector<unsigned char> memory;  // while another block is at work
};

struct copy {
    void* to;
    const void* from;
    std::size_t bytes;
    unsigned char seen[16];

    copy(void* destination, const void* source, std::size_t size) : to(destination), from(source), bytes(size), seen() {
        std::memcpy(seen, from, bytes);
    }
    void finish() const {
        if (std::memcmp(seen, from, bytes) == 0) {
            std::memcpy(to, from, bytes);
        }
    }
};
struct product {
    std::function<void()> compute;
};

struct coroutine {
    jmp_buf place;
    void* fake_stack = nullptr;  // of the address sanitizer
    unsigned rank = 0;           // of its block in the cluster
    bool started = false;
    bool done = false;
    std::vector<std::vector<copy>> copies = std::vector<std::vector<copy>>(1);  // of each commit; the last: of none yet
    std::vector<std::vector<product>> products = std::vector<std::vector<product>>(1);  // likewise
};

// A barrier in shared memory, of compute capability 9.0, by its block and address.
struct stage {
    int expected = 0;
    int arrived = 0;
    unsigned opened = 0;
    std::vector<copy> copies;  // done when it opens, at the latest
};

inline bool backwards = false;
inline std::vector<coroutine> coroutines;
inline std::vector<std::unique_ptr<block>> blocks;
inline std::map<std::pair<unsigned, const void*>, stage> stages;
inline meeting cluster;
inline jmp_buf scheduler;
inline std::size_t current = 0;
inline std::size_t used_shared = most_shared;
inline std::function<void()> kernel;
inline std::function<void()>
    earlier_launches;  // writes what the launch in front writes, each time that it is waited for
inline std::function<void(const unsigned*)> before_look;  // at a word that another device sets
inline std::vector<const void*>* asked_lines = nullptr;   // of which prefetches are noted there
inline long steps = 0;  // that the coroutines have taken: none in a whole turn, and none will come

[[noreturn]] inline void fail(const char* why) {
    std::fprintf(stderr, "a kernel on the host: %s (block %u, thread %u)\n", why, blockIdx.x, threadIdx.x);
    std::abort();
}

inline coroutine& self() { return coroutines[current]; }
inline block& own_block() { return *blocks[self().rank]; }

constexpr std::size_t stack_bytes = std::size_t{256} << 10;

// The address sanitizer is told of each change of stacks: what is left (null: for good), and where one goes.
inline const void* scheduler_stack = nullptr;
inline std::size_t scheduler_stack_bytes = 0;
inline void leave([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to,
                  [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, to, bytes);
#endif
}
inline void arrive_from_scheduler([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}
inline void arrive_at_scheduler([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}
// Shared memory that a block has not asked for.
inline void forbid_behind([[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(shared, most_shared);
    ASAN_POISON_MEMORY_REGION(shared + bytes, most_shared - bytes);
#endif
}

// Contexts begin with ucontext.h and go on by longjmp: swapcontext would call the system each time.
inline void let_others() {
    if (_setjmp(self().place) == 0) {
        leave(self().done ? nullptr : &self().fake_stack, scheduler_stack, scheduler_stack_bytes);
        _longjmp(scheduler, 1);
    }
    arrive_from_scheduler(self().fake_stack);
}

inline void meet(meeting& m, int count) {
    const long turn = m.turn;
    ++steps;
    if (++m.arrived == count) {
        m.arrived = 0;
        ++m.turn;
    } else {
        while (m.turn == turn) {
            let_others();
        }
    }
}
inline void meet_block() { meet(own_block().all, static_cast<int>(blockDim.x)); }
inline void meet_first(int threads) { meet(own_block().first, threads); }
inline void meet_warp() { meet(own_block().warps[threadIdx.x / 32], 32); }
inline shown* own_warp() { return own_block().lanes[threadIdx.x / 32]; }
inline shown& own_lane() { return own_warp()[threadIdx.x % 32]; }

inline void run_coroutine() {
    arrive_from_scheduler(nullptr);
    kernel();
    for (const std::vector<copy>& of_commit : self().copies) {
        if (!of_commit.empty()) {
            fail("it ended before its copies");
        }
    }
    ++steps;
    self().done = true;
    let_others();
}

// The current coroutine goes on until it lets others.
inline void resume() {
    static std::vector<std::unique_ptr<char[]>> stacks;  // kept from run to run
    while (stacks.size() <= current) {
        stacks.emplace_back(new char[stack_bytes]);
    }
    static void* fake_stack = nullptr;
    if (_setjmp(scheduler) != 0) {
        arrive_at_scheduler(fake_stack);
        return;
    }
    leave(&fake_stack, stacks[current].get(), stack_bytes);
    if (self().started) {
        _longjmp(self().place, 1);
    }
    self().started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[current].get();
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, run_coroutine, 0);
    setcontext(&context);
}

// Runs one cluster of `count` blocks, from blockIdx.x on, of `threads` threads each, a multiple of 32.
inline void run_cluster(unsigned count, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
    kernel = body;
    used_shared = shared_bytes;
    if (used_shared > most_shared) {
        fail("more shared memory than there is");
    }
    const unsigned first = blockIdx.x;
    coroutines.clear();
    coroutines.resize(std::size_t{count} * threads);
    blocks.clear();
    stages.clear();
    cluster = {};
    for (unsigned r = 0; r < count; ++r) {
        blocks.push_back(std::make_unique<block>());
        blocks.back()->memory.assign(used_shared, 0xff);  // NaN
    }
    blockDim.x = threads;
    for (std::size_t c = 0; c < coroutines.size(); ++c) {
        coroutines[c].rank = static_cast<unsigned>(c / threads);
    }
    unsigned at_work = 0;
    forbid_behind(used_shared);
    std::memset(shared, 0xff, used_shared);
    for (bool any = true; any;) {
        any = false;
        const long before = steps;
        for (std::size_t i = 0; i < coroutines.size(); ++i) {
            current = backwards ? coroutines.size() - 1 - i : i;
            if (self().done) {
                continue;
            }
            any = true;
            if (self().rank != at_work) {
                std::memcpy(blocks[at_work]->memory.data(), shared, used_shared);
                at_work = self().rank;
                std::memcpy(shared, blocks[at_work]->memory.data(), used_shared);
            }
            blockIdx.x = first + at_work;
            threadIdx.x = static_cast<unsigned>(current % threads);
            resume();
        }
        if (any && steps == before) {
            fail("its threads wait for each other");
        }
    }
    blockIdx.x = first;
}

// Every cluster of a grid of gridDim.x blocks.
inline void run_grid(unsigned in_cluster, unsigned threads, std::size_t shared_bytes,
                     const std::function<void()>& body) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += in_cluster) {
        run_cluster(in_cluster, threads, shared_bytes, body);
    }
}

// A sum of floats as the unit leaves it: cut towards zero.
inline float cut(double sum) {
    const float nearest = static_cast<float>(sum);
    return std::isfinite(nearest) && std::abs(static_cast<double>(nearest)) > std::abs(sum)
               ? std::nextafter(nearest, 0.0F)
               : nearest;
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
    const shown* const lane = own_warp();
    const unsigned g = threadIdx.x % 32 / 4;
    const unsigned t = threadIdx.x % 4;
    Real sums[4];
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned column = 2 * t + e % 2;
        double sum = static_cast<double>(rC[e]);
        for (unsigned k = 0; k < 8; ++k) {
            sum += lane[4 * g + k % 4].left[e / 2 + 2 * (k / 4)] * lane[4 * column + k % 4].right[k / 4];
        }
        if constexpr (std::is_same_v<Real, float>) {
            sums[e] = cut(sum);
        } else {
            sums[e] = sum;
        }
    }
    meet_warp();
    for (int e = 0; e < 4; ++e) {
        rD[e] = sums[e];
    }
}

// The value that another lane of the warp shows.
template <class T>
T from_lane(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(shown::bytes));
    std::memcpy(own_lane().bytes, &value, sizeof(T));
    meet_warp();
    T other = value;
    if (lane < 32) {
        std::memcpy(&other, own_warp()[lane].bytes, sizeof(T));
    }
    meet_warp();
    return other;
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
[[noreturn]] inline void __trap() { host_device::fail("it has come where this device cannot go"); }
inline std::uintptr_t __cvta_generic_to_shared(const void* pointer) {
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

inline void __syncthreads() { host_device::meet_block(); }
inline void __syncwarp() { host_device::meet_warp(); }
inline bool __syncthreads_or(bool value) {
    host_device::block& own = host_device::own_block();
    own.any[0] = own.any[0] || value;
    host_device::meet_block();
    const bool any = own.any[0];
    host_device::meet_block();
    own.any[0] = false;
    return any;
}
inline bool __any_sync(unsigned, bool value) {
    host_device::own_lane().flag = value;
    host_device::meet_warp();
    bool any = false;
    for (int lane = 0; lane < 32; ++lane) {
        any = any || host_device::own_warp()[lane].flag;
    }
    host_device::meet_warp();
    return any;
}
template <class T>
T __shfl_sync(unsigned, T value, unsigned lane) {
    return host_device::from_lane(value, lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
    return distance == 0 ? value : host_device::from_lane(value, threadIdx.x % 32 - static_cast<unsigned>(distance));
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
    return host_device::from_lane(value, threadIdx.x % 32 + static_cast<unsigned>(distance));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
    return host_device::from_lane(value, threadIdx.x % 32 ^ static_cast<unsigned>(distance));
}

namespace otimes::kernels {

// device_language.cuh
inline void prefetch_line(const void* at) {
    if (host_device::asked_lines != nullptr) {
        host_device::asked_lines->push_back(at);
    }
}
template <class T>
void keep_stepping(T*&) {}

// launch_order.cuh
inline void wait_for_earlier_launches() {
    if (host_device::earlier_launches) {
        host_device::earlier_launches();
    }
}
inline void let_later_launches_begin() {}

// async_copy.cuh
template <int Size>
void copy_async(void* to, const void* from) {
    if (reinterpret_cast<std::uintptr_t>(to) % Size != 0 || reinterpret_cast<std::uintptr_t>(from) % Size != 0) {
        host_device::fail("a copy is not aligned");
    }
    std::memset(to, 0xff, Size);
    host_device::self().copies.back().push_back({to, from, Size});
}
// What does not exist becomes 0, as late as the rest arrives.
template <int Size>
void copy_async_or_zero(void* to, const void* from, int bytes) {
    static const unsigned char zeros[Size] = {};
    if (reinterpret_cast<std::uintptr_t>(to) % Size != 0 ||
        (bytes > 0 && reinterpret_cast<std::uintptr_t>(from) % Size != 0)) {
        host_device::fail("a copy is not aligned");
    }
    const auto some = static_cast<std::size_t>(bytes);
    std::memset(to, 0xff, Size);
    host_device::self().copies.back().push_back({to, from, some});
    host_device::self().copies.back().push_back({static_cast<unsigned char*>(to) + some, zeros, Size - some});
}
inline void commit_copies() { host_device::self().copies.emplace_back(); }
template <int Outstanding>
void wait_for_copies() {
    auto& commits = host_device::self().copies;
    while (commits.size() > Outstanding + 1) {
        for (const host_device::copy& one : commits.front()) {
            one.finish();
        }
        commits.erase(commits.begin());
    }
}

constexpr bool has_stage_barriers = true;
struct stage_barrier {
    unsigned long long state;
};
inline host_device::stage& stage_of(stage_barrier& barrier) {
    return host_device::stages[{host_device::self().rank, &barrier}];
}
inline void set_up(stage_barrier& barrier, int arrivals) {
    stage_of(barrier) = {};
    stage_of(barrier).expected = arrivals;
}
// It opens when someone wants to know, or arrives again: as late as it may.
inline void open_if_full(host_device::stage& s) {
    if (s.arrived == s.expected) {
        for (const host_device::copy& one : s.copies) {
            one.finish();
        }
        s.copies.clear();
        s.arrived = 0;
        ++s.opened;
    }
}
inline void arrive(stage_barrier& barrier) {
    open_if_full(stage_of(barrier));
    ++host_device::steps;
    ++stage_of(barrier).arrived;
}
inline void copies_arrive(stage_barrier& barrier) {
    open_if_full(stage_of(barrier));
    for (std::vector<host_device::copy>& of_commit : host_device::self().copies) {
        for (const host_device::copy& one : of_commit) {
            stage_of(barrier).copies.push_back(one);
        }
        of_commit.clear();
    }
    arrive(barrier);
}
inline void wait(stage_barrier& barrier, unsigned turn) {
    open_if_full(stage_of(barrier));
    while ((stage_of(barrier).opened & 1u) == (turn & 1u)) {
        host_device::let_others();
        open_if_full(stage_of(barrier));
    }
}

// cluster.cuh
inline void cluster_barrier() {
    host_device::meet(host_device::cluster, static_cast<int>(host_device::coroutines.size()));
}
inline int cluster_rank() { return static_cast<int>(host_device::self().rank); }
template <int Size>
void read_from_block(void* to, const void* own_shared, int rank) {
    const unsigned char* from = static_cast<const unsigned char*>(own_shared);
    if (rank != cluster_rank()) {
        from = host_device::blocks[static_cast<std::size_t>(rank)]->memory.data() + (from - host_device::shared);
    }
    std::memcpy(to, from, Size);
}

// warpgroup_unit.cuh; the descriptor of a right operand counts 16 bytes.
inline void fence_for_unit() {}
inline unsigned long long right_operand(const void* shared_block) {
    return reinterpret_cast<std::uintptr_t>(shared_block) / 16;
}
template <int Count>
void keep_registers(float (&)[Count]) {}
template <int Count>
void keep_registers(unsigned (&)[Count]) {}
template <int Count>
void release_registers() {}
template <int Count>
void take_registers() {}
inline void warpgroup_begin() {}
inline void warpgroup_commit() { host_device::self().products.emplace_back(); }
template <int Outstanding>
void warpgroup_wait() {
    auto& commits = host_device::self().products;
    while (commits.size() > Outstanding + 1) {
        for (const host_device::product& one : commits.front()) {
            one.compute();
        }
        commits.erase(commits.begin());
    }
}
inline float float_of_half(unsigned short bits) {
    otimes::half value;
    value.bits = bits;
    return static_cast<float>(value);
}
inline unsigned short half_of_float(float value) { return otimes::half(value).bits; }
// To nearest, ties away from zero (PTX ISA, cvt.rna.tf32.f32).
inline unsigned nearest_tf32(float value) {
    const unsigned bits = __float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : bits + 0x1000u;
}
inline float read_by_unit(unsigned bits) { return __uint_as_float(bits & 0xffffe000u); }  // the first 19 bits
template <int N, bool First>
void warpgroup_multiply(float (&rD)[N / 2], const unsigned (&rA)[4], unsigned long long b) {
    const auto compute = [&rD, &rA, b] {
        host_device::shown& own = host_device::own_lane();
        for (int e = 0; e < 4; ++e) {
            own.left[e] = static_cast<double>(read_by_unit(rA[e]));
        }
        host_device::meet_warp();
        const host_device::shown* const lane = host_device::own_warp();
        const unsigned g = threadIdx.x % 32 / 4;
        const unsigned t = threadIdx.x % 4;
        const unsigned* const sB = reinterpret_cast<const unsigned*>(b * 16);  // ([N / 8][2][8 columns][4 rows])
        for (unsigned n = 0; n < N / 8; ++n) {
            for (unsigned e = 0; e < 4; ++e) {
                float sum = 0;
                for (unsigned k = 0; k < 8; ++k) {
                    sum += static_cast<float>(lane[4 * g + k % 4].left[e / 2 + 2 * (k / 4)]) *
                           read_by_unit(sB[((n * 2 + k / 4) * 8 + 2 * t + e % 2) * 4 + k % 4]);
                }
                float& d = rD[4 * n + e];
                d = First ? sum : d + sum;
            }
        }
        host_device::meet_warp();
    };
    host_device::self().products.back().push_back({compute});
}

// matrix_unit.cuh: what the unit does.
inline void without_unit(float (&rD)[4], const unsigned (&rA)[4], unsigned b0, unsigned b1, const float (&rC)[4]) {
    const float rX[4] = {read_by_unit(rA[0]), read_by_unit(rA[1]), read_by_unit(rA[2]), read_by_unit(rA[3])};
    host_device::multiply<float>(rD, rX, read_by_unit(b0), read_by_unit(b1), rC);
}
inline void without_unit(double (&rD)[4], const double (&rA)[4], double b0, double b1, const double (&rC)[4]) {
    host_device::multiply<double>(rD, rA, b0, b1, rC);
}

// arrivals.cuh
inline void store_release(unsigned* word, unsigned value) { *word = value; }
inline void store_system(unsigned* word, unsigned value) { *word = value; }
inline unsigned load_acquire(const unsigned* word) {
    if (host_device::before_look) {
        host_device::before_look(word);
    }
    return *word;
}
inline unsigned load_system(const unsigned* word) { return load_acquire(word); }
inline void add_release_of_block(unsigned* word, unsigned value) {
    *word += value;
    ++host_device::steps;  // others may wait for it
}
inline unsigned load_acquire_of_block(const unsigned* word) { return *word; }
inline void let_others_go_on() { host_device::let_others(); }
inline void take_a_nap() { host_device::let_others(); }
template <int Threads>
void barrier_of_first() {
    host_device::meet_first(Threads);
}
inline unsigned long long nanoseconds() { return 0; }

}  // namespace otimes::kernels

// SPDX-License-Identifier: MIT
/// @file machine.hpp
/// The machine that a plan is made for, as a value: found on the host, taken from a table, or written by hand, so that a
/// laptop can plan for eight GPUs. Rates are per second, sizes in bytes. Nothing here asks the hardware.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace otimes {

/// Threads of a CPU that a plan may ask for: OpenMP ends the process where the system gives it fewer than it asks for.
inline constexpr std::int32_t most_threads = 4096;

/// One CPU socket's worth of cores as the planner sees it. Defaults: a desktop core with AVX2.
struct cpu_description {
    std::string name = "generic-avx2";
    std::int32_t threads = 1;               ///< threads that a plan may use, at most most_threads
    std::int32_t simd_bytes = 32;           ///< width of a vector register; 16, 32 or 64
    std::int32_t simd_registers = 16;       ///< vector registers
    std::int64_t l1_bytes = 32 * 1024;      ///< first-level data cache of a core
    std::int64_t l2_bytes = 512 * 1024;     ///< second-level cache of a core
    std::int64_t l3_bytes = 16ll << 20;     ///< last-level cache shared by the threads
    double flops_f32 = 100e9;               ///< fused multiply-adds count 2; one thread, float
    double flops_f64 = 50e9;                ///< one thread, double
    double l1_bytes_per_second = 200e9;     ///< read + write, one thread
    double l2_bytes_per_second = 80e9;      ///< read + write, one thread
    double l3_bytes_per_second = 40e9;      ///< read + write, one thread
    double memory_bytes_per_second = 25e9;  ///< read + write, all threads
    double dispatch_seconds = 2e-7;         ///< fixed cost of a pass
    double fork_seconds = 4e-6;             ///< fixed cost of a parallel region

    friend bool operator==(const cpu_description&, const cpu_description&) = default;
};

/// Blocks of a cluster that every GPU with clusters takes.
inline constexpr std::int32_t portable_cluster_blocks = 8;

/// One GPU as the planner sees it. Capabilities, not names, decide which kernels run. Defaults: 0 = not known.
struct gpu_description {
    std::string name;
    std::int32_t compute_capability = 0;  ///< 10 * major + minor, for the kernel source's options only
    std::int32_t multiprocessors = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t l2_bytes = 0;
    std::int32_t shared_bytes_per_block = 0;  ///< most dynamic shared memory of one block
    std::int32_t shared_bytes_per_multiprocessor = 0;
    std::int32_t registers_per_multiprocessor = 65536;
    /// Most blocks of a cluster; 1: no clusters. Of those above portable_cluster_blocks a device holds few: kernels take them that fit in no other.
    std::int32_t cluster_blocks = 1;
    bool has_async_copy = false;  ///< cp.async
    bool has_bulk_copy = false;   ///< bulk copies completing on an mbarrier
    bool has_tf32_mma = false;
    bool has_f64_mma = false;        ///< m8n8k4
    bool has_f64_mma_wide = false;   ///< m16n8k8
    bool has_warpgroup_mma = false;  ///< the unit of a whole warpgroup (capability 9.0 alone)
    bool compiles = true;  ///< kernels can be compiled at run time; false: there are those of the core set only
    double memory_bytes_per_second = 0;  ///< copy through DRAM, read + written
    double l2_bytes_per_second = 0;      ///< copy that stays in L2, read + written
    double flops_f32 = 0;                ///< multiply-adds on the ordinary cores
    double flops_f64 = 0;
    double flops_f32_split = 0;  ///< float-accurate products by three TF32 products
    double flops_f64_mma = 0;
    double launch_seconds = 0;  ///< cadence of kernels in a stream
    double graph_node_seconds = 0;
    double host_bytes_per_second = 0;  ///< one way, pinned memory
    double peer_bytes_per_second = 0;  ///< one way to another GPU of the host; 0: no link
    /// Both ways together for pageable memory, which passes through pinned blocks; 0: not known, the link decides.
    double staged_bytes_per_second = 0;

    friend bool operator==(const gpu_description&, const gpu_description&) = default;
};

/// One measured choice that replaces the cost model's for a signature; filled by the tuning function only.
struct tuning_entry {
    std::uint64_t program_hash = 0;
    std::string choice;  ///< text form of the chosen passes
    double seconds = 0;
    friend bool operator==(const tuning_entry&, const tuning_entry&) = default;
};

/// Everything the planner knows about where plans run.
struct machine {
    cpu_description cpu;
    std::vector<gpu_description> gpus;
    double network_bytes_per_second = 0;  ///< one way per rank between hosts; 0: one host
    std::vector<tuning_entry> tuning;

    friend bool operator==(const machine&, const machine&) = default;
};

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file machine_table.hpp
/// Machines as values, for tests, for planning on another computer, and as a start where nothing was measured. Each row
/// starts from a row before it and states what differs. No other file names an architecture.
///
/// Rates are what a kernel sees (copies through memory count bytes read and written), not what data sheets say: the rows
/// h200 and two_core_avx512 were measured, the others are data-sheet values times the ratios measured there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <otimes/plan/machine.hpp>

namespace otimes {

/// A CPU core that only the baseline of its architecture is known of: 16-byte vectors.
inline cpu_description cpu_baseline() {
    cpu_description cpu;
    cpu.name = "generic-baseline";
    cpu.simd_bytes = 16;
    cpu.flops_f32 = 25e9;
    cpu.flops_f64 = 12e9;
    cpu.l1_bytes_per_second = 100e9;
    cpu.l2_bytes_per_second = 50e9;
    return cpu;
}

/// A 64-bit Arm server core.
inline cpu_description cpu_neon() {
    cpu_description cpu = cpu_baseline();
    cpu.name = "generic-neon";
    cpu.simd_registers = 32;
    cpu.l1_bytes = 64 * 1024;
    cpu.l2_bytes = 1024 * 1024;
    cpu.flops_f32 = 40e9;
    cpu.flops_f64 = 20e9;
    return cpu;
}

/// A desktop or server core with 32-byte vectors and fused multiply-adds (the defaults of cpu_description).
inline cpu_description cpu_avx2() { return {}; }

/// A server core with 64-byte vectors: measured on two Sapphire Rapids cores.
inline cpu_description cpu_avx512() {
    cpu_description cpu = cpu_avx2();
    cpu.name = "generic-avx512";
    cpu.simd_bytes = 64;
    cpu.simd_registers = 32;
    cpu.l1_bytes = 48 * 1024;
    cpu.l2_bytes = 2 << 20;
    cpu.l3_bytes = 32ll << 20;
    cpu.flops_f32 = 175e9;
    cpu.flops_f64 = 87.5e9;
    cpu.l1_bytes_per_second = 400e9;
    cpu.l2_bytes_per_second = 130e9;
    cpu.memory_bytes_per_second = 42e9;
    return cpu;
}

/// NVIDIA H200 (SXM, 139 GiB): measured.
inline gpu_description h200() {
    gpu_description gpu;
    gpu.name = "NVIDIA H200";
    gpu.compute_capability = 90;
    gpu.multiprocessors = 132;
    gpu.memory_bytes = 139ll << 30;
    gpu.l2_bytes = 50ll << 20;
    gpu.shared_bytes_per_block = 227 * 1024;
    gpu.shared_bytes_per_multiprocessor = 228 * 1024;
    gpu.cluster_blocks = 16;
    gpu.has_async_copy = true;
    gpu.has_bulk_copy = true;
    gpu.has_tf32_mma = true;
    gpu.has_f64_mma = true;
    gpu.has_f64_mma_wide = true;
    gpu.has_warpgroup_mma = true;
    gpu.memory_bytes_per_second = 4.25e12;
    gpu.l2_bytes_per_second = 7.8e12;
    gpu.flops_f32 = 63.6e12;
    gpu.flops_f64 = 32.2e12;
    gpu.flops_f32_split = 102e12;
    gpu.flops_f64_mma = 66.3e12;
    gpu.launch_seconds = 2.69e-6;
    gpu.graph_node_seconds = 0.6e-6;
    gpu.host_bytes_per_second = 53e9;
    gpu.peer_bytes_per_second = 394e9;
    gpu.staged_bytes_per_second = 70e9;
    return gpu;
}

/// NVIDIA H100 (SXM, 80 GB).
inline gpu_description h100() {
    gpu_description gpu = h200();
    gpu.name = "NVIDIA H100";
    gpu.memory_bytes = 79ll << 30;
    gpu.memory_bytes_per_second = 2.96e12;
    return gpu;
}

/// NVIDIA A100 (SXM, 80 GB).
inline gpu_description a100() {
    gpu_description gpu = h200();
    gpu.name = "NVIDIA A100";
    gpu.compute_capability = 80;
    gpu.multiprocessors = 108;
    gpu.memory_bytes = 79ll << 30;
    gpu.l2_bytes = 40ll << 20;
    gpu.shared_bytes_per_block = 163 * 1024;
    gpu.shared_bytes_per_multiprocessor = 164 * 1024;
    gpu.cluster_blocks = 1;
    gpu.has_bulk_copy = false;
    gpu.has_f64_mma_wide = false;
    gpu.has_warpgroup_mma = false;
    gpu.memory_bytes_per_second = 1.7e12;
    gpu.l2_bytes_per_second = 4e12;
    gpu.flops_f32 = 18.5e12;
    gpu.flops_f64 = 9.3e12;
    gpu.flops_f32_split = 46e12;
    gpu.flops_f64_mma = 18.5e12;
    gpu.host_bytes_per_second = 24e9;
    gpu.peer_bytes_per_second = 250e9;
    return gpu;
}

/// The row of a compute capability (10 * major + minor), for a GPU of which nothing else is known; the nearest row that is
/// not newer. Capabilities below 7.5 get the row of 7.5.
inline gpu_description gpu_of_capability(std::int32_t capability) {
    gpu_description gpu = a100();
    gpu.peer_bytes_per_second = 0;
    if (capability >= 120) {  // consumer Blackwell
        gpu.multiprocessors = 170;
        gpu.memory_bytes = 31ll << 30;
        gpu.l2_bytes = 96ll << 20;
        gpu.shared_bytes_per_block = 99 * 1024;
        gpu.shared_bytes_per_multiprocessor = 100 * 1024;
        gpu.has_bulk_copy = true;
        gpu.memory_bytes_per_second = 1.6e12;
        gpu.l2_bytes_per_second = 5e12;
        gpu.flops_f32 = 95e12;
        gpu.flops_f64 = 1.5e12;
        gpu.flops_f32_split = 33e12;
        gpu.flops_f64_mma = 0;
        gpu.has_f64_mma = false;
    } else if (capability >= 100) {  // data-centre Blackwell
        gpu = h200();
        gpu.has_warpgroup_mma = false;
        gpu.multiprocessors = 148;
        gpu.memory_bytes = 178ll << 30;
        gpu.l2_bytes = 126ll << 20;
        gpu.memory_bytes_per_second = 7e12;
        gpu.l2_bytes_per_second = 12e12;
        gpu.flops_f32 = 70e12;
        gpu.flops_f64 = 35e12;
        gpu.flops_f64_mma = 36e12;
        gpu.peer_bytes_per_second = 780e9;
    } else if (capability >= 90) {
        gpu = h100();
    } else if (capability >= 86) {  // consumer Ampere and Ada
        const bool ada = capability >= 89;
        gpu.multiprocessors = ada ? 128 : 82;
        gpu.memory_bytes = 23ll << 30;
        gpu.l2_bytes = ada ? 72ll << 20 : 6ll << 20;
        gpu.shared_bytes_per_block = 99 * 1024;
        gpu.shared_bytes_per_multiprocessor = 100 * 1024;
        gpu.memory_bytes_per_second = 0.9e12;
        gpu.l2_bytes_per_second = ada ? 4e12 : 2e12;
        gpu.flops_f32 = ada ? 75e12 : 30e12;
        gpu.flops_f64 = ada ? 1.2e12 : 0.5e12;
        gpu.flops_f32_split = ada ? 25e12 : 11e12;
        gpu.flops_f64_mma = 0;
        gpu.has_f64_mma = false;
    } else if (capability < 80) {  // Turing
        gpu.multiprocessors = 40;
        gpu.memory_bytes = 15ll << 30;
        gpu.l2_bytes = 4ll << 20;
        gpu.shared_bytes_per_block = 64 * 1024;
        gpu.shared_bytes_per_multiprocessor = 64 * 1024;
        gpu.has_async_copy = false;
        gpu.has_tf32_mma = false;
        gpu.has_f64_mma = false;
        gpu.memory_bytes_per_second = 0.26e12;
        gpu.l2_bytes_per_second = 1.2e12;
        gpu.flops_f32 = 6e12;
        gpu.flops_f64 = 0.2e12;
        gpu.flops_f32_split = 0;
        gpu.flops_f64_mma = 0;
        gpu.host_bytes_per_second = 12e9;
    }
    gpu.name = "generic-capability-" + std::to_string(capability / 10) + "." + std::to_string(capability % 10);
    gpu.compute_capability = capability;
    return gpu;
}

/// `threads` cores of a CPU row and no GPU.
inline machine cpu_machine(cpu_description cpu, std::int32_t threads) {
    machine m;
    m.cpu = std::move(cpu);
    m.cpu.threads = threads;
    return m;
}

/// A host with `count` equal GPUs.
inline machine gpu_machine(const gpu_description& gpu, std::int32_t count = 1, std::int32_t host_threads = 16) {
    machine m = cpu_machine(cpu_avx512(), host_threads);
    m.gpus.assign(static_cast<std::size_t>(count), gpu);
    return m;
}

}  // namespace otimes

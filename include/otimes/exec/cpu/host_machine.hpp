// SPDX-License-Identifier: MIT
/// @file host_machine.hpp
/// The machine that this process runs on, as a value for the planner: cores, caches, and the instruction set that this
/// translation unit is compiled for. Rates are estimates by table; nothing is measured.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

#include <otimes/exec/target.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Size of a cache of core 0 in bytes as Linux reports it, 0 where it does not. `level` 1 to 3; data or unified.
OTIMES_COLD inline std::int64_t reported_cache_bytes(int level) {
    for (int index = 0; index < 8; ++index) {
        char path[96];
        char text[32];
        const auto read = [&](const char* name) {
            std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
            std::FILE* const file = std::fopen(path, "r");
            const bool ok = file != nullptr && std::fgets(text, sizeof(text), file) != nullptr;
            if (file != nullptr) {
                std::fclose(file);
            }
            return ok;
        };
        if (!read("level") || text[0] != static_cast<char>('0' + level)) {
            continue;
        }
        if (!read("type") || text[0] == 'I') {
            continue;
        }
        if (read("size")) {
            std::int64_t bytes = 0;
            const char* c = text;
            for (; *c >= '0' && *c <= '9'; ++c) {
                bytes = bytes * 10 + (*c - '0');
            }
            return *c == 'K' ? bytes << 10 : *c == 'M' ? bytes << 20 : bytes;
        }
    }
    return 0;
}

OTIMES_COLD inline std::int64_t cache_bytes(int level, [[maybe_unused]] int name, std::int64_t fallback) {
    std::int64_t bytes = reported_cache_bytes(level);
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    if (bytes <= 0) {
        bytes = static_cast<std::int64_t>(sysconf(name));
    }
#endif
    return bytes > 0 ? bytes : fallback;
}

OTIMES_COLD inline machine find_host_machine() {
    machine m;
    cpu_description& c = m.cpu;
    c.name = "host " OTIMES_TARGET_NAME;
#if OTIMES_OPENMP
    c.threads = omp_get_max_threads() < most_threads ? omp_get_max_threads() : most_threads;
#else
    c.threads = 1;
#endif
    c.simd_bytes = OTIMES_TARGET_SIMD_BYTES;
    c.simd_registers = OTIMES_TARGET_SIMD_REGISTERS;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    constexpr int names[3] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
#else
    constexpr int names[3] = {0, 0, 0};
#endif
    c.l1_bytes = cache_bytes(1, names[0], 32 << 10);
    c.l2_bytes = cache_bytes(2, names[1], 512 << 10);
    c.l3_bytes = cache_bytes(3, names[2], 16 << 20);
    // Two multiply-add units at a sustained 2.7 GHz. What matters to the planner is the ratio to the bandwidths.
    constexpr double clock = 2.7e9;
    constexpr double units = 2;
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
    constexpr double per_multiply_add = 2;
#else
    constexpr double per_multiply_add = 1;  // multiplication and addition are two instructions
#endif
    c.flops_f32 = clock * units * per_multiply_add * OTIMES_TARGET_SIMD_BYTES / 4;
    c.flops_f64 = c.flops_f32 / 2;
    c.l1_bytes_per_second = clock * 2 * OTIMES_TARGET_SIMD_BYTES;
    c.l2_bytes_per_second = clock * (OTIMES_TARGET_SIMD_BYTES >= 64 ? 48 : 32);
    c.l3_bytes_per_second = clock * 10;
    c.memory_bytes_per_second = 20e9;
    return m;
}

}  // namespace cpu_detail

/// The host as the planner sees it: found on the first call, the same object ever after. Cost of the first call: a few
/// small files read.
OTIMES_COLD OTIMES_EXECUTOR_API const machine& host_machine() {
    static const machine& found = *new machine(cpu_detail::find_host_machine());
    return found;
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

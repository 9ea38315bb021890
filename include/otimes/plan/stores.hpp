// SPDX-License-Identifier: MIT
/// @file stores.hpp
/// Which results a CPU stores past its caches. A line that is written the usual way is read first, so that a result far larger than the
/// second-level caches costs its bytes twice. Lines that are stored whole past the caches are not read, and are then in memory, not in the
/// third-level cache, for whoever reads them next. Measured on two cores with AVX-512 of both makers (docs/notebook/cpu.md): from 16 MiB on
/// products take 0.89 to 1.00 of the time in the geometric mean, and with a reader after them 0.92 to 1.01; single ones 0.66 to 1.25. Where the plan itself
/// reads the lines again, that begins at 64 MiB.
#pragma once

#include <cstdint>

#include <otimes/plan/cost.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

inline constexpr double least_bytes_past_caches = 16.0 * 1024 * 1024;
/// Where a later pass reads them again.
inline constexpr double least_bytes_past_caches_and_back = 64.0 * 1024 * 1024;

/// Does a pass, all but its name for `out` chosen, store its output past the caches? Only registers of 64 bytes are whole lines, and only where the
/// last sweep leaves multiples of them side by side.
/// @param bytes of the whole output
/// @param read_again by a later pass of the plan
/// @param slabs the plan works in slabs, whose lines are still in cache when they are read again
OTIMES_COLD inline bool stores_past_caches(const cpu_description& cpu, const pass& p, std::int64_t element_bytes,
                                           double bytes, bool read_again, bool slabs) {
    if (cpu.simd_bytes != 64 || p.sweeps.empty() || p.add || (read_again && slabs) ||
        bytes < (read_again ? least_bytes_past_caches_and_back : least_bytes_past_caches)) {
        return false;
    }
    constexpr std::int64_t line = 64;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {  // lines begin at every index of the outer modes
        const pass_mode& m = p.modes[k];
        if (m.extent_out > 1 && m.stride_out * element_bytes > line && m.stride_out * element_bytes % line != 0) {
            return false;
        }
    }
    const std::size_t count = p.sweeps.size();
    const sweep& last = p.sweeps[count - 1];
    if (last.kernel == sweep_kernel::row && last.q_extent == 8 && element_bytes == 4) {
        return count > 1 && last.p_extent == 8 && p.sweeps[count - 2].q_extent == 8;  // exec/cpu/tail_kernel.hpp
    }
    std::int64_t run = p.lane_count;
    if (movement_of(p, &pass_mode::stride_out) == movement::transposing) {
        run = static_cast<std::int64_t>(tile_stage_elements(p, count));
    } else if (last.kernel == sweep_kernel::row) {
        run = last.q_extent;
    } else if (p.lane_mode < 0) {
        run = static_cast<std::int64_t>(run_of_sweep(p, count - 1, 1));
    }
    return run * element_bytes % line == 0;
}

}  // namespace otimes::planning

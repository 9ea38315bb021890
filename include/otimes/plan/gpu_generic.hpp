// SPDX-License-Identifier: MIT
/// @file gpu_generic.hpp
/// One mode without a tile (kernels/generic_sliced_multiply.cuh): an element of the result is a sum of its own, of one thread, or of several where
/// there are few long ones.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes::planning {

/// Threads that share each of `sums` sums of `length` products: a power of two up to 32, so that each adds eight and more, and all of them
/// together are no more than run side by side. Of the whole plan's sums, so that its slabs change no bit; other rows than these may.
OTIMES_ON_DEMAND inline std::int32_t threads_of_sum(dtype type, std::int64_t length, std::int64_t sums) noexcept {
    const std::int64_t bytes = (std::max)(4, static_cast<int>(element_bytes(type)));
    const std::int64_t side_by_side = 32768 * bytes;  // longer elements hide their latency with more threads
    const std::int64_t most =
        (std::min)({std::int64_t{32}, length / 8, side_by_side / (std::max)(std::int64_t{1}, sums)});
    return static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint64_t>((std::max)(std::int64_t{1}, most))));
}

/// Seconds without the launch. Measured on an H200: 4 % of the peak, and with few sums a start of 1.5 us, 45 ns for each product of a
/// thread and 0.15 us for each of the additions that put a sum together.
OTIMES_ON_DEMAND inline double generic_seconds(dtype type, std::int64_t length, double sums, std::int32_t threads,
                                               double seconds_memory, const gpu_description& gpu) noexcept {
    const double flops = 2.0 * static_cast<double>(multiply_add_weight(type)) * sums * static_cast<double>(length);
    const double throughput = flops / (0.04 * peak_of(sweep_kernel::scalar, type, gpu));
    const double latency = 1.5e-6 + 45e-9 * static_cast<double>(length) / threads +
                           0.15e-6 * (std::bit_width(static_cast<std::uint32_t>(threads)) - 1);
    return (std::max)(4.0 * seconds_memory, throughput + latency);
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file host_copy.hpp
/// Copies between strided host memory and contiguous memory, any range of elements at a time, so that large operands can
/// pass through small pinned blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <otimes/program/program.hpp>

namespace otimes::backend {

/// Elements [first, first + count) of a tensor in the order of its modes (last fastest) -> `to`, contiguous.
void gather_elements(const std::byte* from, std::span<const mode> modes, std::int64_t element_bytes, std::int64_t first,
                     std::int64_t count, std::byte* to);
/// The same backwards.
void scatter_elements(std::byte* to, std::span<const mode> modes, std::int64_t element_bytes, std::int64_t first,
                      std::int64_t count, const std::byte* from);

/// Elements of a tensor. Extents have been checked for overflow.
inline std::int64_t count_of(std::span<const mode> modes) {
    std::int64_t count = 1;
    for (const mode& m : modes) {
        count *= m.extent;
    }
    return count;
}

}  // namespace otimes::backend

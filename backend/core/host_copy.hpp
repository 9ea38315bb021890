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

/// A tensor as lines of contiguous bytes at equal distances, which a device copies by itself; count 0: it is not.
struct host_lines {
    std::int64_t count = 0;
    std::int64_t bytes = 0;     ///< of a line
    std::int64_t distance = 0;  ///< bytes from one line to the next
};
host_lines lines_of(std::span<const mode> modes, std::int64_t element_bytes);

/// True of lines of pinned memory that a device copies faster than threads do: 8 KiB and longer, or 1 KiB where the table of the pages of
/// all `moved` bytes takes at most half of its second-level cache (docs/memory.md). False of lines that no copy engine takes.
bool device_copies(const host_lines& lines, double moved, std::int64_t l2_bytes) noexcept;

/// Elements of a tensor. Extents have been checked for overflow.
inline std::int64_t count_of(std::span<const mode> modes) {
    std::int64_t count = 1;
    for (const mode& m : modes) {
        count *= m.extent;
    }
    return count;
}

}  // namespace otimes::backend

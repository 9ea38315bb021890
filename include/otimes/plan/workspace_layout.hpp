// SPDX-License-Identifier: MIT
/// @file workspace_layout.hpp
/// Where a plan's workspace keeps what: byte offsets from a start that is aligned to 64 bytes.
///
///     [packed factor of sweep 0][packed factor of sweep 1] ...        shared by the threads, sweeps in plan order; of a pass that
///                                                                      packs a block at a time one for each thread
///     worker 0: [buffer 0][buffer 1] ...                               intermediates of the slab in flight
///     worker 1: ...                                                    one worker unless threads take slabs
///     thread 0: [tile A][tile B]                                       on-chip tiles, two per thread
///     thread 1: ...
///
/// Each region starts at a multiple of 64 bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>

namespace otimes {

/// Real numbers in a vector register: the granule to which packed factors and lanes are padded. Complex elements count
/// like real ones (their kernels keep real and imaginary parts apart).
constexpr std::int64_t vector_count(const cpu_description& cpu, dtype type) noexcept {
    const std::int64_t real_bytes = is_complex(type) ? element_bytes(type) / 2 : element_bytes(type);
    return real_bytes == 0 ? 1 : std::max<std::int64_t>(1, cpu.simd_bytes / real_bytes);
}

/// Elements set aside for the packed P x Q matrix of a sweep: P rows of Q rounded up to whole vectors. Kernels may pack
/// it in any order within that.
constexpr std::int64_t packed_factor_elements(std::int64_t p_extent, std::int64_t q_extent,
                                              std::int64_t vector) noexcept {
    return p_extent * ((q_extent + vector - 1) / vector * vector);
}
constexpr std::int64_t packed_factor_elements(const sweep& s, std::int64_t vector) noexcept {
    return packed_factor_elements(s.p_extent, s.q_extent, vector);
}

/// Byte offsets of everything in the workspace of a plan.
struct workspace_layout {
    std::int64_t element_bytes = 0;     ///< of the plan's scalar type
    std::vector<std::int64_t> factors;  ///< per sweep, in the order pass by pass, sweep by sweep
    std::vector<std::int64_t> buffers;  ///< buffer b of worker w: buffers[b] + w * worker_stride
    std::int64_t worker_count = 1;      ///< slabs in flight
    std::int64_t worker_stride = 0;
    std::int64_t tiles = 0;       ///< tile A of thread t: tiles + t * tile_stride
    std::int64_t tile_bytes = 0;  ///< tile B lies this far behind tile A
    std::int64_t tile_stride = 0;
    std::int64_t total = 0;  ///< == plan.workspace_bytes
};

namespace planning {
constexpr std::int64_t round_up(std::int64_t value, std::int64_t granule) noexcept {
    return (value + granule - 1) / granule * granule;
}
/// Bytes of the scalar that a program computes in: the widest of its operands (indices of gather and scatter aside).
OTIMES_COLD inline std::int64_t plan_element_bytes(const program& source) noexcept {
    std::int64_t bytes = 0;
    for (const tensor& t : source.tensors) {
        bytes = std::max<std::int64_t>(bytes, t.type == dtype::other ? 0 : t.scalar_bytes);
    }
    return bytes;
}

/// Elements set aside for what is packed of a sweep's matrix at a time: all of it, or a block, of which there is one for each thread, or
/// nothing. In place of a block as many columns as lie in a vector may be packed whole.
constexpr std::int64_t packed_elements(const pass& one, const sweep& s, std::int64_t vector) noexcept {
    if (one.block_columns == 0) {
        return packed_factor_elements(s, vector);
    }
    if (one.block_rows == 0) {
        return 0;
    }
    const std::int64_t block = packed_factor_elements(one.block_rows, one.block_columns, vector);
    const std::int64_t column = packed_factor_elements(s.p_extent, 1, vector);
    return block < column ? column : block;
}
/// How many of them there are.
constexpr std::int64_t packed_matrices(const plan& p, const pass& one) noexcept {
    return one.block_columns == 0 ? 1 : p.threads;
}
}  // namespace planning

/// Writes the layout of `p`'s workspace into `layout`, whose memory is reused: an executor that keeps one per thread
/// allocates nothing. @post layout.total == p.workspace_bytes.
OTIMES_COLD inline void layout_into(const plan& p, workspace_layout& layout) {
    constexpr std::int64_t line = 64;
    layout.element_bytes = planning::plan_element_bytes(p.source);
    layout.factors.clear();
    layout.buffers.clear();
    layout.worker_stride = 0;
    std::int64_t offset = 0;
    layout.worker_count = p.slab_count > 1 ? std::min<std::int64_t>(p.threads, p.slab_count) : 1;
    for (const pass& one : p.passes) {
        if (one.kernel == pass_kernel::step) {
            layout.worker_count = 1;
        }
        for (const sweep& s : one.sweeps) {
            layout.factors.push_back(offset);
            const std::int64_t bytes = planning::packed_elements(one, s, p.vector_count) * layout.element_bytes;
            offset += planning::packed_matrices(p, one) * planning::round_up(bytes, line);
        }
    }
    for (const std::int64_t elements : p.buffer_elements) {
        layout.buffers.push_back(offset + layout.worker_stride);
        layout.worker_stride += planning::round_up(elements * layout.element_bytes, line);
    }
    offset += layout.worker_count * layout.worker_stride;
    layout.tiles = offset;
    layout.tile_bytes = planning::round_up(p.tile_elements * layout.element_bytes, line);
    layout.tile_stride = 2 * layout.tile_bytes;
    layout.total = offset + p.threads * layout.tile_stride;
}

/// The same as a value.
OTIMES_COLD inline workspace_layout layout_of(const plan& p) {
    workspace_layout layout;
    layout_into(p, layout);
    return layout;
}

}  // namespace otimes

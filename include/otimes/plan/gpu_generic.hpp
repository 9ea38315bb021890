// SPDX-License-Identifier: MIT
/// @file gpu_generic.hpp
/// One mode without a tile (kernels/generic_sliced_multiply.cuh): an element of the result is a sum of its own, of one thread, or of several where
/// there are few long ones; where few fibres meet a long factor, those of several fibres by one thread (kernels/few_fibres.cuh); and the pieces of sums
/// by blocks that are too few.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
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

/// More fibres fill the blocks of gpu_blocks.hpp; factors of fewer bytes have a tile.
inline constexpr std::int64_t least_few_bytes = 256 * 1024;
inline constexpr std::int64_t most_few_fibres = 256;

/// Fibres that share each entry of a long factor (kernels/few_fibres.cuh), at most. Measured on an H200: of 16 the sums take the registers that reading
/// ahead needs.
constexpr std::int32_t most_fibres_at_once(dtype type) noexcept { return type == dtype::c128 ? 4 : 8; }
/// Of `fibres`: a power of two, more than there are where that saves a second reading of the factor.
OTIMES_ON_DEMAND inline std::int32_t fibres_at_once(dtype type, std::int64_t fibres) noexcept {
    const auto whole = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(fibres)));
    return static_cast<std::int32_t>((std::min)(whole, std::int64_t{most_fibres_at_once(type)}));
}

/// Bytes of shared memory that a block of few_fibres.cuh takes at most.
inline constexpr std::int32_t few_fibres_bytes = 96 * 1024;
inline bool has_room_for_few_fibres(const gpu_description& gpu) noexcept {
    return gpu.compiles && gpu.shared_bytes_per_block >= few_fibres_bytes;
}

/// Threads of a sum there: measured to be the best of 8 to 128, over P = Q = 400 to 4096,
/// floats and doubles.
inline constexpr std::int32_t threads_of_few = 16;
/// New indices of a thread, few_fibres_shape::columns.
inline constexpr std::int32_t columns_of_few = 2;

/// Seconds without the launch. Measured on an H200: 5 us from a block's start to its end, and the factor once for each group of fibres from L2
/// at 0.6 of its rate, and no less than once from memory, at 0.45, where it does not stay in L2; and no less than a block takes for its part of the
/// factor, an entry of b bytes for r fibres in 0.044 + (0.0045 + 0.0029 r) b nanoseconds.
OTIMES_ON_DEMAND inline double few_fibres_seconds(dtype type, const sweep& s, std::int64_t fibres,
                                                  const gpu_description& gpu) noexcept {
    const double groups = std::ceil(static_cast<double>(fibres) / fibres_at_once(type, fibres));
    const double bytes =
        static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent) * static_cast<double>(element_bytes(type));
    const bool stays = bytes <= 0.5 * static_cast<double>(gpu.l2_bytes);
    const double far = stays ? 0.0 : bytes / (0.45 * known_rate(gpu.memory_bytes_per_second));
    const double together = columns_of_few * 256.0 / threads_of_few;  // new indices of a block
    const double blocks_of_q = std::ceil(static_cast<double>(s.q_extent) / together);
    const auto entry_bytes = static_cast<double>(element_bytes(type));
    const double of_entry = 0.044e-9 + (0.0045e-9 + 0.0029e-9 * fibres_at_once(type, fibres)) * entry_bytes;
    const double of_block = static_cast<double>(s.p_extent) * together * of_entry;
    const double turns = std::ceil(groups * blocks_of_q / (2.0 * (std::max)(1, gpu.multiprocessors)));
    return 5e-6 * turns + (std::max)({far, groups * bytes / (0.6 * known_rate(gpu.l2_bytes_per_second)), of_block});
}

/// Sums in pieces of P, multiplied beside each other as those of several factors are, and added up by one more kernel.
struct blocks_in_pieces {
    std::int64_t pieces = 1;  ///< equal ones
    double seconds = 0;       ///< of both kernels, without the first one's launch
};

/// The pieces that few blocks are predicted to be fastest in: while multiprocessors have none, a block's panels are what takes the time. Measured on an
/// H200: 512 fibres by a factor of 512 17 us in float and 20 in double, 43 and 67 without pieces.
/// @pre suits_blocks, one factor
OTIMES_ON_DEMAND inline blocks_in_pieces pieces_of_blocks(const blocked_request& r, const blocked_kernel& whole,
                                                          const gpu_description& gpu) noexcept {
    constexpr std::int64_t most_pieces = 128;
    constexpr std::int64_t least_piece = 64;
    constexpr double most_bytes = 16.0 * 1024 * 1024;  // of the pieces' sums, which lie beside the workspace
    blocks_in_pieces best{1, blocked_seconds(r, whole, gpu)};
    const std::int64_t bytes = element_bytes(r.type);
    const std::int64_t blocks = whole.blocks(r.q, r.fibres);
    if (is_widened(r.type) || blocks >= gpu.multiprocessors) {
        return best;  // pieces of 16-bit elements would be rounded before they are added
    }
    const double result = static_cast<double>(r.q * r.fibres * bytes);
    const std::int64_t most = (std::min)({most_pieces, r.p / least_piece, 4 * gpu.multiprocessors / blocks});
    for (std::int64_t pieces = 2; pieces <= most && static_cast<double>(pieces) * result <= most_bytes; ++pieces) {
        if (r.p % pieces != 0 || (r.aligned && r.p / pieces * bytes % 16 != 0)) {
            continue;
        }
        blocked_request piece = r;
        piece.batches = pieces;
        piece.p = r.p / pieces;
        const std::optional<blocked_kernel> kernel = blocked_kernel_for(piece, gpu);
        if (!kernel) {
            continue;
        }
        const std::int32_t threads = threads_of_sum(r.type, pieces, r.q * r.fibres);  // of the sum of pieces
        const double adding = 2e-6 + gpu.launch_seconds + 45e-9 * static_cast<double>(pieces) / threads +
                              static_cast<double>(pieces + 1) * result / known_rate(gpu.l2_bytes_per_second);
        // Measured: 50 fibres 1.5 to 1.95; ahead, 40 by 1000 x 1000 1.05 and less.
        const double partly_filled = r.fibres >= kernel->fibres() ? 1.0 : kernel->ahead() ? 1.1 : 1.7;
        const double seconds = partly_filled * blocked_seconds(piece, *kernel, gpu) + adding;
        if (seconds < 0.9 * best.seconds) {
            best = {pieces, seconds};
        }
    }
    return best;
}

}  // namespace otimes::planning

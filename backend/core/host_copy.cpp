// SPDX-License-Identifier: MIT
#include "host_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <otimes/plan/cut.hpp>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace otimes::backend {

namespace {

/// One mode at least.
std::vector<mode> merged_modes(std::span<const mode> given) {
    std::vector<mode> modes = planning::merged_modes(given);
    if (modes.empty()) {
        modes.push_back({1, 1});
    }
    return modes;
}

/// Calls move(offset in elements, position in the contiguous side, run) for stretches that are contiguous on both sides.
template <class Move>
void for_stretches(std::span<const mode> given, std::int64_t first, std::int64_t count, const Move& move) {
    const std::vector<mode> modes = merged_modes(given);
    const bool contiguous = modes.back().stride == 1;
    const std::int64_t stretch = contiguous ? modes.back().extent : 1;
    std::int64_t done = 0;
    while (done < count) {
        std::int64_t rest = first + done;
        std::int64_t offset = 0;
        for (std::size_t k = modes.size(); k-- > 0;) {
            offset += rest % modes[k].extent * modes[k].stride;
            rest /= modes[k].extent;
        }
        if (contiguous) {
            const std::int64_t left = stretch - (first + done) % stretch;
            const std::int64_t run = std::min(left, count - done);
            move(offset, done, run, std::int64_t{1});
            done += run;
        } else {
            const std::int64_t extent = modes.back().extent;
            const std::int64_t left = extent - (first + done) % extent;
            const std::int64_t run = std::min(left, count - done);
            move(offset, done, run, modes.back().stride);
            done += run;
        }
    }
}

/// Lengths from which stretches are stored past the caches. A pinned block is written again and again and stays in them; of a large matrix every
/// line would be read before it is written (docs/memory.md).
constexpr std::size_t long_for_block = 4096;
constexpr std::size_t long_for_matrix = 128;
/// Bytes of a copy whose matrix is large: less is perhaps read next, out of the caches.
constexpr std::int64_t large_copy = 256 << 10;

/// memcpy whose stretches of `long_stretch` bytes and more go past the caches, so that the old contents are not read first. Such stores are seen
/// by others behind `end_of_stores`.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t long_stretch) {
#if defined(__SSE2__)
    if (bytes >= long_stretch) {
        const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
        std::memcpy(to, from, head);
        std::size_t at = head;
        for (; at + 64 <= bytes; at += 64) {
            const auto* const source = reinterpret_cast<const __m128i*>(from + at);
            auto* const target = reinterpret_cast<__m128i*>(to + at);
            const __m128i a = _mm_loadu_si128(source);
            const __m128i b = _mm_loadu_si128(source + 1);
            const __m128i c = _mm_loadu_si128(source + 2);
            const __m128i d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
        std::memcpy(to + at, from + at, bytes - at);
        return;
    }
#else
    static_cast<void>(long_stretch);
#endif
    std::memcpy(to, from, bytes);
}

void end_of_stores() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

template <std::size_t Bytes>
void copy_strided(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                  std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * to_stride, from + i * from_stride, Bytes);
    }
}

void copy_elements(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t count, std::size_t long_stretch) {
    if (to_stride == bytes && from_stride == bytes) {
        copy_past_caches(to, from, static_cast<std::size_t>(bytes * count), long_stretch);
        return;
    }
    switch (bytes) {
        case 2: copy_strided<2>(to, to_stride, from, from_stride, count); break;
        case 4: copy_strided<4>(to, to_stride, from, from_stride, count); break;
        case 8: copy_strided<8>(to, to_stride, from, from_stride, count); break;
        case 16: copy_strided<16>(to, to_stride, from, from_stride, count); break;
        default:
            for (std::int64_t i = 0; i < count; ++i) {
                std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<std::size_t>(bytes));
            }
    }
}

}  // namespace

host_lines lines_of(std::span<const mode> given, std::int64_t element_bytes) {
    const std::vector<mode> modes = merged_modes(given);
    if (modes.size() == 1 && modes[0].stride == 1) {
        return {1, modes[0].extent * element_bytes, modes[0].extent * element_bytes};
    }
    if (modes.size() == 2 && modes[1].stride == 1 && modes[0].stride >= modes[1].extent) {
        return {modes[0].extent, modes[1].extent * element_bytes, modes[0].stride * element_bytes};
    }
    return {};
}

bool device_copies(const host_lines& lines, double moved, std::int64_t l2_bytes) noexcept {
    constexpr std::int64_t most_distance = (std::int64_t{1} << 31) - 1;
    constexpr std::int64_t least_bytes = 8 << 10;
    constexpr std::int64_t least_found_bytes = 1 << 10;
    constexpr double bytes_per_table_byte = 512;  // pages of 4 KiB, entries of 8 bytes
    const bool found = moved / bytes_per_table_byte <= static_cast<double>(l2_bytes) / 2;
    return lines.count > 0 && lines.distance <= most_distance &&
           (lines.count == 1 || lines.bytes >= (found ? least_found_bytes : least_bytes));
}

void gather_elements(const std::byte* from, std::span<const mode> modes, std::int64_t element_bytes, std::int64_t first,
                     std::int64_t count, std::byte* to) {
    for_stretches(modes, first, count,
                  [&](std::int64_t offset, std::int64_t at, std::int64_t run, std::int64_t stride) {
                      copy_elements(to + at * element_bytes, element_bytes, from + offset * element_bytes,
                                    stride * element_bytes, element_bytes, run, long_for_block);
                  });
    end_of_stores();
}

void scatter_elements(std::byte* to, std::span<const mode> modes, std::int64_t element_bytes, std::int64_t first,
                      std::int64_t count, const std::byte* from) {
    const std::size_t long_stretch = count * element_bytes >= large_copy ? long_for_matrix : long_for_block;
    for_stretches(modes, first, count,
                  [&](std::int64_t offset, std::int64_t at, std::int64_t run, std::int64_t stride) {
                      copy_elements(to + offset * element_bytes, stride * element_bytes, from + at * element_bytes,
                                    element_bytes, element_bytes, run, long_stretch);
                  });
    end_of_stores();
}

}  // namespace otimes::backend

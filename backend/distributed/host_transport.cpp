// SPDX-License-Identifier: MIT
#include "host_transport.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include <otimes/program/errors.hpp>

namespace otimes::backend {

namespace {
constexpr std::align_val_t block_alignment{64};
}

void copy_on_host(const void* from, void* to, const strided_copy& what) {
    const auto* const source = static_cast<const std::byte*>(from);
    auto* const target = static_cast<std::byte*>(to);
    for (std::int64_t a = 0; a < what.counts[0]; ++a) {
        for (std::int64_t b = 0; b < what.counts[1]; ++b) {
            for (std::int64_t c = 0; c < what.counts[2]; ++c) {
                std::memcpy(target + a * what.to_strides[0] + b * what.to_strides[1] + c * what.to_strides[2],
                            source + a * what.from_strides[0] + b * what.from_strides[1] + c * what.from_strides[2],
                            static_cast<std::size_t>(what.run));
            }
        }
    }
}

void* host_transport::allocate(std::int32_t, std::int64_t bytes) {
    try {
        return ::operator new(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), block_alignment);
    } catch (const std::bad_alloc&) {
        throw device_error("otimes: a rank has no " + std::to_string(bytes) + " bytes of memory left.");
    }
}

void host_transport::release(std::int32_t, void* memory, std::int64_t) noexcept {
    ::operator delete(memory, block_alignment);
}

void host_transport::copy(std::int32_t, const void* from, void* to, const strided_copy& what) {
    copy_on_host(from, to, what);
}

void host_transport::upload(std::int32_t, void* to, const void* from, std::int64_t bytes) {
    if (bytes > 0) {  // of nothing there need be no address
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
}

void host_transport::download(std::int32_t, void* to, const void* from, std::int64_t bytes) {
    if (bytes > 0) {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }
}

void in_process_transport::start(std::span<const message> sends, std::span<const message> receives,
                                 std::span<const rank_copy> copies, bool) {
    if (!sends.empty() || !receives.empty()) {
        throw unsupported_error("otimes: ranks of one process reach each other's memory; nothing is sent.");
    }
    for (const rank_copy& c : copies) {
        copy_on_host(c.source, c.target, c.what);
    }
}

}  // namespace otimes::backend

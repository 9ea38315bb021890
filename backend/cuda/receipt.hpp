// SPDX-License-Identifier: MIT
/// @file receipt.hpp
/// Numbers that a thread waits for (device_executor::receive), and sums that the host adds up for them: a kernel that reduces what it computes leaves a
/// sum of each of its blocks in page-locked memory, where the host looks for them. The kernel that would add them up (kernels/dot_product.cuh:
/// finish_dot) is launched, placed and written back behind it.
#pragma once

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/program/dtype.hpp>

namespace otimes::backend {

class gpu_executor;

/// Numbers that kernels are to write to page-locked memory, each once. One of the same bits as the mark of what is not yet written is waited for as if it
/// had not come: correct, and slow.
class awaited_numbers {
public:
    /// Marks them. @pre multiples of four bytes
    explicit awaited_numbers(std::span<std::byte> memory);
    /// The first `bytes` of them alone are still to come.
    void keep(std::size_t bytes) noexcept { left_ = left_.first(bytes / sizeof(std::uint32_t)); }
    /// True when all have been written by then, which a fault of the GPU does not let them.
    [[nodiscard]] bool come_until(std::chrono::steady_clock::time_point end);

private:
    std::span<std::uint32_t> left_;
};

/// What a thread waits for from its construction until it ends. What the executor runs in that thread meanwhile may leave sums here.
class receipt {
public:
    /// @param sums page-locked
    receipt(const gpu_executor& executor, std::span<std::byte> numbers, std::span<std::byte> sums);
    receipt(const receipt&) = delete;
    receipt& operator=(const receipt&) = delete;
    ~receipt();

    /// That of this thread; nullptr: it has none, or of another executor.
    [[nodiscard]] static receipt* of_this_thread(const gpu_executor& executor) noexcept;

    /// Room for the sums of `count` blocks, marked; alpha times their total becomes the number at `number`. nullptr: there is no room, or it
    /// is not one of the numbers.
    [[nodiscard]] std::byte* take_sums(int count, dtype type, std::complex<double> alpha, void* number);

    /// True when all sums have come by then.
    [[nodiscard]] bool come_until(std::chrono::steady_clock::time_point end);
    /// Writes the totals, summed in finish_dot's order. @pre the sums have come
    void write_totals() const;

private:
    struct total {
        const std::byte* sums;
        int count;
        dtype type;  ///< of the number
        std::complex<double> alpha;
        void* number;
    };
    const gpu_executor& executor_;
    std::span<std::byte> numbers_;
    std::span<std::byte> sums_;  ///< that are still to be had
    std::vector<total> totals_;
    std::vector<awaited_numbers> awaited_;
    receipt* outer_;  ///< of the same thread, which this one is in front of
};

}  // namespace otimes::backend

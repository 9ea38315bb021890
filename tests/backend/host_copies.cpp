// SPDX-License-Identifier: MIT
// Copies between strided host memory and contiguous memory: every part of every line in its place, and nothing beside it touched.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <otimes/program/program.hpp>

#include "../../backend/core/host_copy.hpp"

namespace {

template <class Scalar>
void check_lines(std::int64_t lines, std::int64_t run, std::int64_t stride, std::int64_t inner_stride,
                 std::size_t offset) {
    CAPTURE(lines);
    CAPTURE(sizeof(Scalar));
    CAPTURE(run);
    CAPTURE(stride);
    CAPTURE(inner_stride);
    CAPTURE(offset);
    const std::array<otimes::mode, 2> modes{otimes::mode{lines, stride}, {run, inner_stride}};
    std::vector<Scalar> matrix(offset + static_cast<std::size_t>(lines * stride + run * inner_stride));
    for (std::size_t i = 0; i < matrix.size(); ++i) {
        matrix[i] = static_cast<Scalar>(i + 1);
    }
    const std::int64_t all = lines * run;
    const auto place = [&](std::int64_t element) {
        return offset + static_cast<std::size_t>(element / run * stride + element % run * inner_stride);
    };
    for (const auto& [first, count] :
         {std::array{std::int64_t{0}, all}, {run / 2, all - run / 2}, {all / 3, all / 2}}) {
        std::vector<Scalar> block(static_cast<std::size_t>(count) + 2, Scalar(-1));
        const std::vector<Scalar> before = matrix;
        otimes::backend::gather_elements(reinterpret_cast<const std::byte*>(matrix.data() + offset), modes,
                                         sizeof(Scalar), first, count, reinterpret_cast<std::byte*>(block.data() + 1));
        bool right = block.front() == Scalar(-1) && block.back() == Scalar(-1);
        for (std::int64_t i = 0; i < count; ++i) {
            right = right && block[static_cast<std::size_t>(i) + 1] == before[place(first + i)];
        }
        CHECK(right);
        std::vector<Scalar> want = before;
        for (std::int64_t i = 0; i < count; ++i) {
            block[static_cast<std::size_t>(i) + 1] = static_cast<Scalar>(-2 - i);
            want[place(first + i)] = static_cast<Scalar>(-2 - i);
        }
        otimes::backend::scatter_elements(reinterpret_cast<std::byte*>(matrix.data() + offset), modes, sizeof(Scalar),
                                          first, count, reinterpret_cast<const std::byte*>(block.data() + 1));
        CHECK(matrix == want);
    }
}

}  // namespace

TEST_CASE("lines of every length and alignment are gathered and scattered, and nothing else") {
    for (const std::int64_t run : {1, 7, 16, 31, 32, 33, 48, 100, 1024, 1300}) {
        for (const std::size_t offset : {0, 1, 5}) {
            for (const std::int64_t gap : {0, 3, 64}) {
                check_lines<float>(5, run, run + gap, 1, offset);
                check_lines<double>(5, run, run + gap, 1, offset);
            }
            check_lines<float>(5, run, 3 * run + 1, 3, offset);
        }
    }
    // Of large copies lines go past the caches.
    for (const std::int64_t run : {31, 32, 47, 96, 1030}) {
        for (const std::size_t offset : {0, 1, 5}) {
            check_lines<float>(600000 / run, run, run + 5, 1, offset);
        }
    }
}

TEST_CASE("host copies: which lines of pinned memory a device copies by itself") {
    using otimes::backend::device_copies;
    constexpr std::int64_t l2 = 50 << 20;
    constexpr double least_past_it = 512.0 * 25 * (1 << 20) + 1;  // whose page table takes more than half of that
    const auto line = [](std::int64_t bytes) { return otimes::backend::host_lines{100, bytes, 1 << 20}; };
    CHECK(device_copies(line(1024), least_past_it - 1, l2));
    CHECK_FALSE(device_copies(line(1023), least_past_it - 1, l2));
    CHECK_FALSE(device_copies(line(8191), least_past_it, l2));
    CHECK(device_copies(line(8192), least_past_it, l2));
    CHECK(device_copies({1, 16, 16}, least_past_it, l2));                    // one stretch
    CHECK_FALSE(device_copies({}, 0, l2));                                   // no lines
    CHECK_FALSE(device_copies({2, 1 << 20, std::int64_t{1} << 31}, 0, l2));  // farther apart than a copy engine steps
}

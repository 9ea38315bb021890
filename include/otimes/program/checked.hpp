// SPDX-License-Identifier: MIT
/// @file checked.hpp
/// Products and sums of extents that report overflow instead of wrapping, or have room for all of it.
#pragma once

#include <cstdint>
#include <limits>

namespace otimes {

/// a * b for non-negative extents; returns false and leaves `result` alone when the product exceeds 2^63 - 1.
/// A zero factor makes the product zero whatever the other is.
constexpr bool checked_multiply(std::int64_t a, std::int64_t b, std::int64_t& result) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    result = product;
#else
    if (a != 0 && b > (std::numeric_limits<std::int64_t>::max)() / a) {
        return false;
    }
    result = a * b;
#endif
    return true;
}

/// a + b for non-negative counts; returns false on overflow.
constexpr bool checked_add(std::int64_t a, std::int64_t b, std::int64_t& result) noexcept {
    if (b > (std::numeric_limits<std::int64_t>::max)() - a) {
        return false;
    }
    result = a + b;
    return true;
}

/// a * b for non-negative counts, clamped to 2^63 - 1: for costs, where "too large" is an answer, never for extents.
constexpr std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) noexcept {
    std::int64_t result = (std::numeric_limits<std::int64_t>::max)();
    checked_multiply(a, b, result);
    return result;
}

/// total += more for costs that are not negative, to the nearest whole one (sums of shares of a whole are a little beside it), clamped to 2^63 - 1.
constexpr void saturating_add(std::int64_t& total, double more) noexcept {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    if (more < static_cast<double>(most - total)) {
        const std::int64_t whole = static_cast<std::int64_t>(more);
        total += whole + (more - static_cast<double>(whole) < 0.5 ? 0 : 1);
    } else {
        total = most;
    }
}

/// A product of two 64-bit numbers, all 128 bits of it.
struct wide_product {
    std::int64_t high = 0;
    std::uint64_t low = 0;
    friend constexpr bool operator>(const wide_product& a, const wide_product& b) noexcept {
        return a.high != b.high ? a.high > b.high : a.low > b.low;
    }
};

/// a * b, never too large. Of halves of 32 bits, since not every compiler and system has a type of 128.
constexpr wide_product multiply_wide(std::int64_t a, std::int64_t b) noexcept {
    const auto first = static_cast<std::uint64_t>(a);
    const auto second = static_cast<std::uint64_t>(b);
    constexpr std::uint64_t half = 0xffffffff;
    const std::uint64_t low = (first & half) * (second & half);
    const std::uint64_t middle = (first >> 32) * (second & half) + (low >> 32);
    const std::uint64_t other = (first & half) * (second >> 32) + (middle & half);
    std::uint64_t high = (first >> 32) * (second >> 32) + (middle >> 32) + (other >> 32);
    high -= (a < 0 ? second : 0) + (b < 0 ? first : 0);  // as numbers without a sign these are 2^64 more
    return {static_cast<std::int64_t>(high), first * second};
}

}  // namespace otimes

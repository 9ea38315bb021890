// SPDX-License-Identifier: MIT
/// @file checked.hpp
/// Products and sums of extents that report overflow instead of wrapping.
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

/// total += more for costs that are not negative, clamped to 2^63 - 1.
constexpr void saturating_add(std::int64_t& total, double more) noexcept {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    total = more < static_cast<double>(most - total) ? total + static_cast<std::int64_t>(more) : most;
}

}  // namespace otimes

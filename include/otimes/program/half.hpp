// SPDX-License-Identifier: MIT
/// @file half.hpp
/// 16-bit floating-point numbers as storage: matrices of them are computed with in float. Conversions round to nearest,
/// ties to even, and keep infinities and NaN.
#pragma once

#include <bit>
#include <cstdint>

#include <otimes/program/dtype.hpp>

namespace otimes {

namespace detail {

constexpr std::uint16_t half_bits(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(wide >> 16 & 0x8000u);
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    std::uint32_t narrow = 0;
    if (magnitude > 0x7f800000u) {
        narrow = 0x7e00u | (magnitude >> 13 & 0x1ffu);  // NaN
    } else if (magnitude >= 0x477ff000u) {
        narrow = 0x7c00u;  // from 65520 on, infinity
    } else if (magnitude >= 0x38800000u) {
        const std::uint32_t shifted = magnitude - 0x38000000u;
        narrow = (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13;
    } else if (magnitude >= 0x33000000u) {  // subnormal: a multiple of 2^-24
        const std::uint32_t exponent = magnitude >> 23;
        const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        const std::uint32_t shift = 126 - exponent;
        const std::uint32_t kept = mantissa >> shift;
        const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
        const std::uint32_t half_way = 1u << (shift - 1);
        narrow = kept + ((rest > half_way || (rest == half_way && (kept & 1u) != 0)) ? 1u : 0u);
    }
    return static_cast<std::uint16_t>(sign | narrow);
}

constexpr float half_value(std::uint16_t bits) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = bits >> 10 & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {
        return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    }
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

constexpr std::uint16_t bfloat16_bits(float value) noexcept {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<std::uint16_t>(wide >> 16 | 0x40u);
    }
    return static_cast<std::uint16_t>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
}

}  // namespace detail

/// IEEE binary16.
struct half {
    std::uint16_t bits = 0;

    half() = default;
    constexpr explicit half(float value) noexcept : bits(detail::half_bits(value)) {}
    constexpr explicit operator float() const noexcept { return detail::half_value(bits); }
    constexpr explicit operator double() const noexcept { return static_cast<double>(detail::half_value(bits)); }
    friend constexpr half operator+(half a, half b) noexcept {
        return half(static_cast<float>(a) + static_cast<float>(b));
    }
    friend constexpr half operator-(half a, half b) noexcept {
        return half(static_cast<float>(a) - static_cast<float>(b));
    }
    friend constexpr half operator*(half a, half b) noexcept {
        return half(static_cast<float>(a) * static_cast<float>(b));
    }
    friend constexpr half operator/(half a, half b) noexcept {
        return half(static_cast<float>(a) / static_cast<float>(b));
    }
    friend constexpr half operator-(half a) noexcept { return half(-static_cast<float>(a)); }
    friend constexpr bool operator==(half a, half b) noexcept { return static_cast<float>(a) == static_cast<float>(b); }
};

/// The upper half of a float: its range with 8 bits of precision.
struct bfloat16 {
    std::uint16_t bits = 0;

    bfloat16() = default;
    constexpr explicit bfloat16(float value) noexcept : bits(detail::bfloat16_bits(value)) {}
    constexpr explicit operator float() const noexcept {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    constexpr explicit operator double() const noexcept { return static_cast<double>(static_cast<float>(*this)); }
    friend constexpr bfloat16 operator+(bfloat16 a, bfloat16 b) noexcept {
        return bfloat16(static_cast<float>(a) + static_cast<float>(b));
    }
    friend constexpr bfloat16 operator-(bfloat16 a, bfloat16 b) noexcept {
        return bfloat16(static_cast<float>(a) - static_cast<float>(b));
    }
    friend constexpr bfloat16 operator*(bfloat16 a, bfloat16 b) noexcept {
        return bfloat16(static_cast<float>(a) * static_cast<float>(b));
    }
    friend constexpr bfloat16 operator/(bfloat16 a, bfloat16 b) noexcept {
        return bfloat16(static_cast<float>(a) / static_cast<float>(b));
    }
    friend constexpr bfloat16 operator-(bfloat16 a) noexcept { return bfloat16(-static_cast<float>(a)); }
    friend constexpr bool operator==(bfloat16 a, bfloat16 b) noexcept {
        return static_cast<float>(a) == static_cast<float>(b);
    }
};

template <>
constexpr dtype dtype_of<half>() noexcept {
    return dtype::f16;
}
template <>
constexpr dtype dtype_of<bfloat16>() noexcept {
    return dtype::bf16;
}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file text.hpp
/// Numbers as text for explain and for error messages: the same in every locale, three significant digits.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Three significant digits, without an exponent: 8.19, 29.5, 132, 1024. What is more than 1e15 is written as that.
OTIMES_COLD inline std::string three_digits(double value) {
    if (!(value > 0)) {
        return "0";
    }
    value = value < 1e15 ? value : 1e15;
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    double unit = 1;
    for (double v = value; v < 0.9995 && decimals < 9; v *= 10) {
        ++decimals;  // values below 1 keep three digits
    }
    for (int i = 0; i < decimals; ++i) {
        unit *= 10;
    }
    const auto scaled = static_cast<std::int64_t>(std::llround(value * unit));
    const auto whole = scaled / static_cast<std::int64_t>(unit);
    std::string text = std::to_string(whole);
    if (decimals > 0) {
        const std::string fraction = std::to_string(scaled - whole * static_cast<std::int64_t>(unit));
        text += "." + std::string(static_cast<std::size_t>(decimals) - fraction.size(), '0') + fraction;
    }
    return text;
}

/// A value with a decimal prefix: "8.19 MFLOP", "3.30 us", "1.07 GB".
OTIMES_COLD inline std::string quantity(double value, std::string_view unit) {
    static constexpr std::array<const char*, 9> prefix{"n", "u", "m", "", "k", "M", "G", "T", "P"};
    std::size_t at = 3;
    if (value > 0) {
        while (value >= 999.5 && at + 1 < prefix.size()) {
            value /= 1000;
            ++at;
        }
        while (value < 0.9995 && at > 0) {
            value *= 1000;
            --at;
        }
    }
    return three_digits(value) + " " + prefix[at] + std::string(unit);
}

/// Flops without a prefix below one: "0 FLOP", "812 FLOP", "8.19 MFLOP".
OTIMES_COLD inline std::string flops_text(double flops) { return quantity(flops, "FLOP"); }

/// Bytes in binary units, as caches and workspaces are sized: "512 B", "48.0 KiB", "2.00 MiB".
OTIMES_COLD inline std::string bytes_text(double bytes) {
    static constexpr std::array<const char*, 6> unit{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    std::size_t at = 0;
    while (bytes >= 1023.5 && at + 1 < unit.size()) {
        bytes /= 1024;
        ++at;
    }
    return (at == 0 ? std::to_string(static_cast<std::int64_t>(bytes)) : three_digits(bytes)) + " " + unit[at];
}

OTIMES_COLD inline std::string seconds_text(double seconds) { return quantity(seconds, "s"); }

/// "P x Q".
OTIMES_COLD inline std::string shape_text(std::int64_t rows, std::int64_t cols) {
    return std::to_string(rows) + " x " + std::to_string(cols);
}

/// `count` and a noun: "1 slab", "2 slabs".
OTIMES_COLD inline std::string counted(std::int64_t count, std::string_view noun) {
    return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace otimes::planning

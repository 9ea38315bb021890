// SPDX-License-Identifier: MIT
/// @file messages.hpp
/// The texts of shape errors: both operands with their shapes, the rule, and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <otimes/program/bindings.hpp>

namespace otimes::detail {

/// "5 x 23"
inline std::string shape_text(std::int64_t rows, std::int64_t cols) {
    return std::to_string(rows) + " x " + std::to_string(cols);
}

/// "kron(F1, F2, F3)"; beyond six factors the middle ones are left out.
inline std::string kron_text(std::size_t factor_count) {
    std::string text = "kron(";
    for (std::size_t i = 0; i < factor_count; ++i) {
        if (factor_count > 6 && i == 2) {
            text += ", ...";
            i = factor_count - 2;
            continue;
        }
        text += (i == 0 ? "F" : ", F") + std::to_string(i + 1);
    }
    return text + ")";
}

/// "2 * 3 * 4 = 24"; one extent: "24"; none: "1 (no factors)".
template <class Extents>
std::string product_text(const Extents& extents, std::int64_t product) {
    if (extents.size() == 0) {
        return "1 (no factors)";
    }
    std::string text;
    std::size_t position = 0;
    for (const std::int64_t extent : extents) {
        text += (position++ == 0 ? "" : " * ") + std::to_string(extent);
    }
    return extents.size() == 1 ? text : text + " = " + std::to_string(product);
}

}  // namespace otimes::detail

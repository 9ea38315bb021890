// SPDX-License-Identifier: MIT
/// @file messages.hpp
/// The texts of shape errors: both operands with their shapes, the rule, and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <otimes/program/bindings.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/number_text.hpp>

namespace otimes::detail {

/// "5 x 23"
OTIMES_COLD inline std::string shape_text(std::int64_t rows, std::int64_t cols) {
    return std::to_string(rows) + " x " + std::to_string(cols);
}
[[noreturn]] OTIMES_COLD inline void throw_null_view(std::int64_t rows, std::int64_t cols) {
    throw shape_error("otimes: a view of " + shape_text(rows, cols) +
                      " elements at a null pointer. Give the Map the address of its elements.");
}

/// "kron(F1, F2, F3)"; beyond six factors the middle ones are left out.
OTIMES_COLD inline std::string kron_text(std::size_t factor_count) {
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
OTIMES_COLD std::string product_text(const Extents& extents, std::int64_t product) {
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

/// @name Y and the expression that is assigned to it have different shapes.
/// @{
[[noreturn]] OTIMES_COLD inline void throw_other_shape(const char* sign, std::int64_t rows, std::int64_t cols,
                                                       std::int64_t source_rows, std::int64_t source_cols) {
    throw shape_error("otimes: Y " + std::string(sign) + " expression: Y is " + shape_text(rows, cols) +
                      ", the expression " + shape_text(source_rows, source_cols) +
                      ". Only a plain assignment resizes.");
}
[[noreturn]] OTIMES_COLD inline void throw_fixed_shape(std::int64_t rows, std::int64_t cols, std::int64_t source_rows,
                                                       std::int64_t source_cols) {
    throw shape_error("otimes: Y = expression: Y is " + shape_text(rows, cols) +
                      " and cannot be resized, the expression is " + shape_text(source_rows, source_cols) + ".");
}
/// @}

/// Y * Z, of which one is a product that is not evaluated yet and the other a matrix of Eigen's.
[[noreturn]] OTIMES_COLD inline void throw_unfit_product(std::int64_t y_rows, std::int64_t y_cols, std::int64_t z_rows,
                                                         std::int64_t z_cols) {
    throw shape_error("otimes: Y * Z: Y is " + shape_text(y_rows, y_cols) + ", Z is " + shape_text(z_rows, z_cols) +
                      ". The columns of Y must equal the rows of Z.");
}

}  // namespace otimes::detail

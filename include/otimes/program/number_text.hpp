// SPDX-License-Identifier: MIT
/// @file number_text.hpp
/// A floating-point number as text for error messages: the same in every locale.
#pragma once

#include <charconv>
#include <string>

#include <otimes/program/cold.hpp>

namespace otimes::detail {

/// "0.5", "3e-17", "1e+300", "nan": six significant digits, whatever the magnitude.
OTIMES_COLD inline std::string number_text(double value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6).ptr);
}

}  // namespace otimes::detail

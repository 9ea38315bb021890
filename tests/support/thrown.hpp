// SPDX-License-Identifier: MIT
// What a statement throws, as text.
#pragma once

#include <string>

#include <otimes/program/errors.hpp>

namespace support {

// The text of the Error that `statement` throws; any other error passes through.
template <class Error = otimes::error, class Statement>
std::string text_of(const Statement& statement) {
    try {
        statement();
    } catch (const Error& e) {
        const otimes::error& base = e;  // every one is an otimes::error and a std::runtime_error
        return base.what();
    }
    return "(nothing was thrown)";
}

}  // namespace support

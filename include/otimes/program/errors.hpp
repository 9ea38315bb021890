// SPDX-License-Identifier: MIT
/// @file errors.hpp
/// The exceptions of otimes. All derive from `otimes::error`, are raised in release builds too, and are raised before
/// anything is written to a destination. Each text names the operand or the factor by position (factors count from 1, as
/// in the formula), both shapes, the rule that is broken, and what to do. docs/errors.md lists every text.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace otimes {

/// Base of every exception that otimes raises.
class error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Shapes that do not fit together, or extents whose product does not fit in 64 bits.
class shape_error : public error {
public:
    using error::error;
};

/// Operands that overlap where the caller promised that they do not.
class alias_error : public error {
public:
    using error::error;
};

/// A memory budget that cannot be kept; the text names the least that would do.
class budget_error : public error {
public:
    using error::error;
    budget_error(const std::string& text, std::int64_t least_bytes) : error(text), least_bytes_(least_bytes) {}

    /// The least limit that works, in bytes; 0 where none does, since a device has too little memory, or none is known.
    [[nodiscard]] std::int64_t least_bytes() const noexcept { return least_bytes_; }

private:
    std::int64_t least_bytes_ = 0;
};

/// A matrix that must be inverted or decomposed and cannot be: singular to working precision, not positive definite.
class singular_error : public error {
public:
    using error::error;
    singular_error(const std::string& text, bool zero_determinant) : error(text), zero_determinant_(zero_determinant) {}

    /// Whether this is known of a square matrix: that its determinant is 0, to working precision. (Else it has NaN, is not definite, ..)
    [[nodiscard]] bool zero_determinant() const noexcept { return zero_determinant_; }

private:
    bool zero_determinant_ = false;
};

/// A device, driver, communicator or rank that failed.
class device_error : public error {
public:
    using error::error;
};

/// Memory of a device that is not there. What takes less may still do.
class device_memory_error : public device_error {
public:
    using device_error::device_error;
};

/// A request that this build or this executor cannot carry out (a plan of another signature, an unknown scalar type on
/// a GPU, a foreign plan text).
class unsupported_error : public error {
public:
    using error::error;
};

}  // namespace otimes

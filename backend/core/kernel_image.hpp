// SPDX-License-Identifier: MIT
/// @file kernel_image.hpp
/// A compiled kernel as a value, and its text form for files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace otimes::backend {

/// Machine code (or PTX) of one kernel.
struct kernel_image {
    std::string code;      ///< cubin or PTX
    std::string function;  ///< its name inside the code
    friend bool operator==(const kernel_image&, const kernel_image&) = default;
};

/// One entry of a cache: everything that the code depends on, spelled out, and the code.
struct kernel_entry {
    std::string key;
    kernel_image image;
};

/// "otimes kernel 1\n", three lengths, key, function, code, SHA-256 of all that. The key is inside, so a file under the
/// wrong name is recognised.
std::string serialize(const kernel_entry& entry);

/// The entry in `bytes`; nothing when it is cut short, of another version or damaged.
std::optional<kernel_entry> deserialize(std::string_view bytes);

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file sha256.hpp
/// SHA-256 (FIPS 180-4): names and checksums of cached kernels.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace otimes::backend {

/// The digest of `data`.
std::array<std::uint8_t, 32> sha256(std::string_view data);

/// The digest in hexadecimal, 64 letters.
std::string sha256_hex(std::string_view data);

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file result_difference.hpp
/// How far two results of one expression lie from each other: what otimes::tune goes by where it takes a candidate for right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/program/dtype.hpp>

namespace otimes::backend {

/// Bytes of a result that are compared.
struct result_piece {
    std::int64_t first = 0;
    std::int64_t bytes = 0;
};

/// All of a result of up to 64 MiB, else pieces of 64 KiB spread over it, from its beginning to its end. Each begins with an element.
std::vector<result_piece> pieces_to_compare(std::int64_t bytes);

/// Frobenius norm of got - want over that of `want`, elements of `type` one behind the other. 0 where all of both are 0. Infinity, which no
/// tolerance allows, where `want` alone is 0, where an element of either is not finite, and where they are not equally many whole elements.
double relative_difference(std::span<const std::byte> got, std::span<const std::byte> want, dtype type);

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file index.hpp
/// Extents as Eigen counts them. Eigen::Index has 64 bits, as the library's extents have, unless EIGEN_DEFAULT_DENSE_INDEX_TYPE is
/// defined: where that is narrower, what does not fit is refused, and elsewhere nothing of this is left at run time. What every product
/// goes through asks `narrow_index` first, so that nothing of this is compiled either.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <Eigen/Core>

#include <otimes/exec/target.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

inline constexpr std::int64_t largest_index = (std::numeric_limits<Eigen::Index>::max)();
inline constexpr bool narrow_index = largest_index < (std::numeric_limits<std::int64_t>::max)();

[[noreturn]] OTIMES_COLD inline void throw_narrow_index(const std::string& what) {
    throw shape_error(
        "otimes: " + what + " is more than an Eigen::Index of " + std::to_string(8 * sizeof(Eigen::Index)) +
        " bits counts. Define EIGEN_DEFAULT_DENSE_INDEX_TYPE as a type of 64 bits, or leave it out; or use "
        "smaller operands.");
}

/// @throws shape_error an extent that Eigen::Index does not hold
inline Eigen::Index index_of(std::int64_t extent) {
    if constexpr (narrow_index) {
        if (extent > largest_index) {
            throw_narrow_index("an extent of " + std::to_string(extent));
        }
    }
    return static_cast<Eigen::Index>(extent);
}

/// Does Eigen::Index hold the number of elements? Also false where that exceeds 64 bits.
constexpr bool index_counts(std::int64_t rows, std::int64_t cols) noexcept {
    std::int64_t size = 0;
    return checked_multiply(rows, cols, size) && size <= largest_index && rows <= largest_index &&
           cols <= largest_index;
}

/// For a matrix that is about to be formed; where Eigen::Index has 64 bits its owner has asked. @throws shape_error
inline void require_index_counts(std::int64_t rows, std::int64_t cols) {
    if constexpr (narrow_index) {
        if (!index_counts(rows, cols)) {
            throw_narrow_index("a matrix of " + detail::shape_text(rows, cols) + " elements");
        }
    }
}

/// For an operator or a product, whose elements nobody stores yet. @throws shape_error extents that Eigen::Index does not hold
template <class Operator>
void require_index(const Operator& op) {
    if constexpr (narrow_index) {
        if (op.rows() > largest_index || op.cols() > largest_index) {
            throw_narrow_index("an operator or a product of " + detail::shape_text(op.rows(), op.cols()));
        }
    }
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

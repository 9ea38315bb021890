// SPDX-License-Identifier: MIT
/// @file batch_operand.hpp
/// Which types are batches of matrices (otimes/batched.hpp), so that kron() of a single matrix leaves them alone.
#pragma once

#include <type_traits>

namespace otimes {

template <class Type>
inline constexpr bool is_batch_operand = false;
template <class... Types>
inline constexpr bool any_batch_operand = (is_batch_operand<std::remove_cvref_t<Types>> || ...);

}  // namespace otimes

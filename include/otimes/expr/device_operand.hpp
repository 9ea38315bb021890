// SPDX-License-Identifier: MIT
/// @file device_operand.hpp
/// Which operands lie in device memory, and which are lists of factors: the front ends decide by it which `kron` and which `on` an
/// expression means.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace otimes {

/// True for matrices, views and expressions over device memory; their header specialises it.
template <class Type>
inline constexpr bool is_device_operand = false;

/// A std::vector, a std::array or a span of device operands counts as one, so that `kron(vector)` finds the right overload.
template <class Matrix, class Allocator>
inline constexpr bool is_device_operand<std::vector<Matrix, Allocator>> = is_device_operand<Matrix>;
template <class Matrix, std::size_t Extent>
inline constexpr bool is_device_operand<std::array<Matrix, Extent>> = is_device_operand<Matrix>;
template <class Matrix, std::size_t Extent>
inline constexpr bool is_device_operand<std::span<Matrix, Extent>> = is_device_operand<std::remove_cv_t<Matrix>>;

/// True when one of the types, references removed, is a device operand.
template <class... Types>
inline constexpr bool any_device_operand = (is_device_operand<std::remove_cvref_t<Types>> || ...);

namespace detail {
/// Lists of factors, as kron() takes them alone.
template <class Type>
inline constexpr bool is_factor_range = false;
template <class Matrix, class Allocator>
inline constexpr bool is_factor_range<std::vector<Matrix, Allocator>> = true;
template <class Matrix, std::size_t Extent>
inline constexpr bool is_factor_range<std::array<Matrix, Extent>> = true;
template <class Matrix, std::size_t Extent>
inline constexpr bool is_factor_range<std::span<Matrix, Extent>> = true;

/// Of a list given as `Range&&`: are its elements the expression's to keep? Those of a temporary vector or array are.
template <class Range>
inline constexpr bool owns_factors = !std::is_reference_v<Range>;
template <class Matrix, std::size_t Extent>
inline constexpr bool owns_factors<std::span<Matrix, Extent>> = false;
template <class Matrix, std::size_t Extent>
inline constexpr bool owns_factors<const std::span<Matrix, Extent>> = false;
}  // namespace detail

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file thrust.hpp
/// thrust::device_vector as a matrix, for programs that nvcc compiles.
#pragma once

#include <cstdint>
#include <string>

#include <thrust/device_vector.h>

#include <otimes/cuda.hpp>

namespace otimes {

namespace device {

/// @throws shape_error when a vector of `size` elements has fewer than rows * cols.
inline void require_elements(std::int64_t rows, std::int64_t cols, std::int64_t size) {
    std::int64_t count = 0;
    if (rows < 0 || cols < 0 || !checked_multiply(rows, cols, count) || count > size) {
        throw shape_error("otimes: as_matrix: " + detail::shape_text(rows, cols) + " does not fit into a vector of " +
                          std::to_string(size) + " elements.");
    }
}

}  // namespace device

/// The elements of `v` as a rows x cols matrix; borrowed, v must not be resized while it is used; one that is const is only read. Order: 0
/// column-major, 1 row-major. Thrust writes on the default stream: finish what fills `v` before otimes reads it.
/// @throws shape_error when v has fewer than rows * cols elements.
template <int Order = 0, class Scalar, class Allocator>
[[nodiscard]] DeviceMap<Scalar, Order> as_matrix(thrust::device_vector<Scalar, Allocator>& v, std::int64_t rows,
                                                 std::int64_t cols) {
    device::require_elements(rows, cols, static_cast<std::int64_t>(v.size()));
    return device_map<Scalar, Order>(thrust::raw_pointer_cast(v.data()), rows, cols);
}
template <int Order = 0, class Scalar, class Allocator>
[[nodiscard]] DeviceMap<const Scalar, Order> as_matrix(const thrust::device_vector<Scalar, Allocator>& v,
                                                       std::int64_t rows, std::int64_t cols) {
    device::require_elements(rows, cols, static_cast<std::int64_t>(v.size()));
    return device_map<Scalar, Order>(thrust::raw_pointer_cast(v.data()), rows, cols);
}

}  // namespace otimes

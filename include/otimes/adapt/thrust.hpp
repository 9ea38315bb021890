// SPDX-License-Identifier: MIT
/// @file thrust.hpp
/// thrust::device_vector as a matrix, for programs that nvcc compiles.
#pragma once

#include <complex>
#include <cstdint>
#include <string>

#include <thrust/complex.h>
#include <thrust/device_vector.h>

#include <otimes/cuda.hpp>

struct __half;         // of cuda_fp16.h
struct __nv_bfloat16;  // of cuda_bf16.h

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

/// The scalar as whose matrix a vector's elements are taken: thrust::complex has the layout of std::complex, and CUDA's numbers of 16 bits
/// have that of otimes::half and otimes::bfloat16.
template <class Element>
struct scalar_of_element {
    using type = Element;
};
template <class Real>
struct scalar_of_element<thrust::complex<Real>> {
    using type = std::complex<Real>;
};
template <>
struct scalar_of_element<__half> {
    using type = half;
};
template <>
struct scalar_of_element<__nv_bfloat16> {
    using type = bfloat16;
};
template <class Element>
using scalar_of_element_t = typename scalar_of_element<Element>::type;

}  // namespace device

/// The elements of `v` as a rows x cols matrix; borrowed, v must not be resized while it is used; one that is const is only read. Order: 0
/// column-major, 1 row-major. Thrust writes on the default stream: finish what fills `v` before otimes reads it.
/// @throws shape_error when v has fewer than rows * cols elements.
template <int Order = 0, class Element, class Allocator>
[[nodiscard]] auto as_matrix(thrust::device_vector<Element, Allocator>& v, std::int64_t rows, std::int64_t cols)
    -> DeviceMap<device::scalar_of_element_t<Element>, Order> {
    using scalar = device::scalar_of_element_t<Element>;
    device::require_elements(rows, cols, static_cast<std::int64_t>(v.size()));
    return device_map<scalar, Order>(reinterpret_cast<scalar*>(thrust::raw_pointer_cast(v.data())), rows, cols);
}
template <int Order = 0, class Element, class Allocator>
[[nodiscard]] auto as_matrix(const thrust::device_vector<Element, Allocator>& v, std::int64_t rows, std::int64_t cols)
    -> DeviceMap<const device::scalar_of_element_t<Element>, Order> {
    using scalar = device::scalar_of_element_t<Element>;
    device::require_elements(rows, cols, static_cast<std::int64_t>(v.size()));
    return device_map<scalar, Order>(reinterpret_cast<const scalar*>(thrust::raw_pointer_cast(v.data())), rows, cols);
}

}  // namespace otimes

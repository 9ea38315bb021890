// SPDX-License-Identifier: MIT
/// @file diagonals.hpp
/// Diagonal matrices of vectors in device memory, of any length: `kron(dA, dd.asDiagonal(), dB)`, `K + dd.asDiagonal()`, `dX * dd.asDiagonal()`.
/// Included by cuda.hpp. One multiplication for each element; beside other factors a pass over memory of its own, as a term of a sum one
/// that adds to Y. A diagonal of a vector in host memory (Eigen's `d.asDiagonal()`) is copied by each evaluation.
#pragma once

#include <complex>
#include <memory>
#include <type_traits>
#include <utility>

#include <otimes/cuda.hpp>
#include <otimes/expr/lower_structured.hpp>

namespace otimes::device {

/// Makes diagonals known to expressions over Scalar, and over its complex type.
template <class Scalar>
void enable_diagonals() {
    detail::enable_structured_lowering<Scalar>();
    if constexpr (!detail::is_complex_scalar<Scalar>) {
        detail::enable_structured_lowering<std::complex<Scalar>>();
    }
}

/// The diagonal matrix of a row or a column, as a kron of one factor. Lvalues and maps are borrowed by pointer and stride, values of
/// expressions owned. @throws shape_error neither a row nor a column
template <class Vector>
auto diagonal_of(Vector&& d) {
    using scalar = typename bare<Vector>::Scalar;
    static_assert(std::is_same_v<scalar, float> || std::is_same_v<scalar, double> ||
                      std::is_same_v<scalar, std::complex<float>> || std::is_same_v<scalar, std::complex<double>>,
                  "otimes: d.asDiagonal() in device memory is of float, double and their complex types.");
    enable_diagonals<scalar>();
    device_product<scalar> value = to_product(std::forward<Vector>(d));
    if (value.rows() != 1 && value.cols() != 1) {
        throw shape_error("otimes: d.asDiagonal() in device memory: d is " +
                          detail::shape_text(value.rows(), value.cols()) + ", neither a row nor a column.");
    }
    if (!value.is_matrix()) {
        value = device_product<scalar>(evaluated(value));
    }
    const leaf& x = value.node().x;
    const matrix_view v = x.view();
    leaf diagonal =
        detail::diagonal_leaf(v.data, v.cols == 1 ? v.rows : v.cols, v.cols == 1 ? v.row_stride : v.col_stride,
                              x.is_owned() ? std::make_shared<const leaf>(x) : nullptr);
    if (x.conjugated()) {
        diagonal.conjugate();
    }
    diagonal.set_real_elements(x.real_elements());
    diagonal.set_space(x.space());
    kron_node<scalar> node;
    node.append(std::move(diagonal));
    node.set_alpha(value.node().alpha);
    return device_kron<scalar>(std::move(node), value.homes());
}

}  // namespace otimes::device

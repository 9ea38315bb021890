// SPDX-License-Identifier: MIT
/// @file host_matrix.hpp
/// The matrix in host memory that `to_host()` returns unless told otherwise. A declaration alone: Eigen is needed where
/// such a matrix is made, and not by programs that name a type of their own.
#pragma once

namespace Eigen {
template <typename, int, int, int, int, int>
class Matrix;
}

namespace otimes {

/// `Eigen::Matrix` of any number of rows and columns. Order: 0 column-major, 1 row-major (Eigen's numbers).
template <class Scalar, int Order = 0>
using dynamic_host_matrix = Eigen::Matrix<Scalar, -1, -1, Order, -1, -1>;

}  // namespace otimes

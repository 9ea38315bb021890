// SPDX-License-Identifier: MIT
/// @file host_matrix.hpp
/// What headers that do not include Eigen know of its matrices: the one that `to_host()` returns unless told otherwise, and which views
/// are pointer and strides. Declarations alone: Eigen is needed where such a matrix is made, and not by programs that name a type of their own.
#pragma once

#include <type_traits>
#include <utility>

namespace Eigen {
template <typename, int, int, int, int, int>
class Matrix;
template <typename, typename, typename>
class IndexedView;
template <typename>
class RealView;
}  // namespace Eigen

namespace otimes {

/// `Eigen::Matrix` of any number of rows and columns. Order: 0 column-major, 1 row-major (Eigen's numbers).
template <class Scalar, int Order = 0>
using dynamic_host_matrix = Eigen::Matrix<Scalar, -1, -1, Order, -1, -1>;

namespace detail {

/// False for views of Eigen that have strides which do not say where their elements are, and for views of such: `A(rows, cols)` with
/// sequences of indices, which in Eigen 3.4 have no pointer and in Eigen 5 the inner stride of A for a row of it, too; and
/// `Z.realView()` of a complex matrix whose elements are not adjacent.
template <class View>
inline constexpr bool strides_hold = true;
template <class View>
requires requires(const View& v) { v.nestedExpression(); }
inline constexpr bool strides_hold<View> =
    strides_hold<std::remove_cvref_t<decltype(std::declval<const View&>().nestedExpression())>>;
template <class Matrix, class Rows, class Cols>
inline constexpr bool strides_hold<Eigen::IndexedView<Matrix, Rows, Cols>> = false;
template <class Matrix>
inline constexpr bool strides_hold<Eigen::RealView<Matrix>> =
    strides_hold<std::remove_const_t<Matrix>>&& int(Matrix::InnerStrideAtCompileTime) == 1;

}  // namespace detail
}  // namespace otimes

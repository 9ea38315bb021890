// SPDX-License-Identifier: MIT
/// @file leaf.hpp
/// From an Eigen expression to a leaf: what is borrowed, what is owned.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/scalar.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class Type>
inline constexpr bool always_false = false;

template <class Derived>
std::true_type probe_dense(const Eigen::MatrixBase<Derived>*);
std::false_type probe_dense(...);
template <class Derived>
std::true_type probe_sparse(const Eigen::SparseMatrixBase<Derived>*);
std::false_type probe_sparse(...);
template <class Derived>
std::true_type probe_diagonal(const Eigen::DiagonalBase<Derived>*);
std::false_type probe_diagonal(...);
template <class Derived>
std::true_type probe_permutation(const Eigen::PermutationBase<Derived>*);
std::false_type probe_permutation(...);
template <class Node>
std::true_type probe_lazy(const lazy<Node>*);
std::false_type probe_lazy(...);

template <class Type>
using bare = std::remove_cvref_t<Type>;

/// Any Eigen matrix expression, lazy nodes included.
template <class Type>
concept dense = std::is_class_v<bare<Type>> && decltype(probe_dense(static_cast<bare<Type>*>(nullptr)))::value;
template <class Type>
concept lazy_node = std::is_class_v<bare<Type>> && decltype(probe_lazy(static_cast<bare<Type>*>(nullptr)))::value;
/// Sparse, diagonal and permutation matrices: what multiplies a kron as an operator.
template <class Type>
concept sparse_like = std::is_class_v<bare<Type>> && (decltype(probe_sparse(static_cast<bare<Type>*>(nullptr)))::value ||
                                                      decltype(probe_diagonal(static_cast<bare<Type>*>(nullptr)))::value ||
                                                      decltype(probe_permutation(static_cast<bare<Type>*>(nullptr)))::value);

/// What scales a node of `Scalar`: a number, not a matrix that happens to convert to one.
template <class Type, class Scalar>
concept amount = detail::scales<bare<Type>, Scalar> && !dense<Type>;

template <class Type>
using scalar_of = typename Eigen::internal::traits<bare<Type>>::Scalar;

/// Pointer and strides of an expression with direct access.
template <class Derived>
matrix_view view_of(const Derived& m) {
    const std::int64_t inner = m.innerStride();
    const std::int64_t outer = m.outerStride();
    return {m.data(), m.rows(), m.cols(), Derived::IsRowMajor ? outer : inner, Derived::IsRowMajor ? inner : outer};
}

template <class Plain>
matrix_view look_at(const void* object) {
    return view_of(*static_cast<const Plain*>(object));
}

template <class Plain>
leaf owned_leaf(Plain&& value) {
    using object = bare<Plain>;
    auto kept = std::make_shared<const object>(std::forward<Plain>(value));
    const matrix_view view = view_of(*kept);
    return leaf::owned(std::move(kept), view);
}

/// A leaf of any dense expression. Plain lvalue: borrowed by address. Transpose of a plain matrix: likewise. Other view:
/// its pointer and strides are copied. Plain rvalue: moved in. Identity(n, n): an identity. Computed expression: evaluated
/// now, once.
template <class Matrix>
    requires dense<Matrix>
leaf make_leaf(Matrix&& m) {
    using type = bare<Matrix>;
    if constexpr (is_plain<type>) {
        if constexpr (std::is_lvalue_reference_v<Matrix>) {
            return leaf::borrowed(std::addressof(m), &look_at<type>);
        } else {
            return owned_leaf(std::forward<Matrix>(m));
        }
    } else if constexpr (is_transpose_of_plain<type>) {
        using plain = std::remove_const_t<std::remove_reference_t<decltype(m.nestedExpression())>>;
        leaf result = leaf::borrowed(std::addressof(m.nestedExpression()), &look_at<plain>);
        result.transpose();
        return result;
    } else if constexpr (has_direct_access<type>) {
        return leaf::borrowed(view_of(m));
    } else {
        if constexpr (is_identity_expression<type>) {
            if (m.rows() == m.cols()) {
                return leaf::identity(m.rows());
            }
        }
        return owned_leaf(typename type::PlainObject(m));
    }
}

/// The same for a node over `Scalar`, which may be complex while the matrix is real.
template <class Scalar, class Matrix>
leaf make_leaf_for(Matrix&& m) {
    leaf result = make_leaf(std::forward<Matrix>(m));
    result.set_real_elements(detail::is_complex_scalar<Scalar> && !detail::is_complex_scalar<scalar_of<Matrix>>);
    return result;
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file leaf.hpp
/// From an Eigen expression to a leaf: what is borrowed, what is owned.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class...>
inline constexpr bool always_false = false;

template <class Derived>
std::true_type probe_dense(const Eigen::MatrixBase<Derived>*);
template <class Matrix, bool ByRows>
std::false_type probe_dense(const vec_expr<Matrix, ByRows>*);  // has a convention: operators of its own (vec.hpp)
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
template <class Derived>
std::true_type probe_triangular(const Eigen::TriangularBase<Derived>*);
std::false_type probe_triangular(...);
template <class Node>
std::true_type probe_lazy(const lazy<Node>*);
std::false_type probe_lazy(...);

/// The type of an argument without const and reference, as Eigen knows it.
template <class Type>
using bare = eigen_type<std::remove_cvref_t<Type>>;

/// Any Eigen matrix expression, lazy nodes included.
template <class Type>
concept dense = std::is_class_v<bare<Type>> && decltype(probe_dense(static_cast<bare<Type>*>(nullptr)))::value;
template <class Type>
concept lazy_node = std::is_class_v<bare<Type>> && decltype(probe_lazy(static_cast<bare<Type>*>(nullptr)))::value;
/// Sparse, diagonal and permutation matrices: what multiplies a kron as an operator.
template <class Type>
concept sparse_like = std::is_class_v<bare<Type>> &&
    (decltype(probe_sparse(static_cast<bare<Type>*>(nullptr)))::value ||
     decltype(probe_diagonal(static_cast<bare<Type>*>(nullptr)))::value ||
     decltype(probe_permutation(static_cast<bare<Type>*>(nullptr)))::value);

/// Diagonal matrices and `v.asDiagonal()`.
template <class Type>
concept diagonal_like =
    std::is_class_v<bare<Type>> && decltype(probe_diagonal(static_cast<bare<Type>*>(nullptr)))::value;
/// Permutation matrices, and their transposes and inverses.
template <class Type>
concept permutation_like = std::is_class_v<bare<Type>> && !dense<Type> &&
                           (decltype(probe_permutation(static_cast<bare<Type>*>(nullptr)))::value ||
                            requires(const bare<Type>& p) { p.nestedExpression().indices(); });
/// What stands beside a kron in an operator: sparse, diagonal and permutation matrices, and inverse permutations.
template <class Type>
concept side_like = sparse_like<Type> || permutation_like<Type>;
/// Triangular and self-adjoint views.
template <class Type>
concept triangular_like =
    std::is_class_v<bare<Type>> && decltype(probe_triangular(static_cast<bare<Type>*>(nullptr)))::value;
template <class Vectors, class Coefficients, int Side>
std::true_type probe_householder(const Eigen::HouseholderSequence<Vectors, Coefficients, Side>*);
std::false_type probe_householder(...);
/// The orthogonal factor of a QR decomposition, `qr.householderQ()`.
template <class Type>
concept householder_like =
    std::is_class_v<bare<Type>> && decltype(probe_householder(static_cast<bare<Type>*>(nullptr)))::value;
template <class Type>
concept sparse_matrix_like =
    std::is_class_v<bare<Type>> && decltype(probe_sparse(static_cast<bare<Type>*>(nullptr)))::value;

/// What scales a node of `Scalar`: a number, not a matrix that happens to convert to one.
template <class Type, class Scalar>
concept amount = detail::scales<bare<Type>, Scalar> && !dense<Type>;

template <class Type>
using scalar_of = typename traits_of<bare<Type>>::Scalar;

/// The first element of an expression with direct access. Of a part of a complex matrix Eigen itself would take the address of element 0,
/// which an empty one does not have, and a part of a Block only with two indices.
template <class Derived>
const void* data_of(const Derived& m) {
    if constexpr (part_of_complex<Derived> >= 0) {
        const void* const whole = data_of(m.nestedExpression());
        return whole == nullptr ? whole : static_cast<const scalar_of<Derived>*>(whole) + part_of_complex<Derived>;
    } else if constexpr (is_wrapper<Derived>) {
        return data_of(m.nestedExpression());
    } else {
        return m.data();
    }
}

/// Pointer and strides of an expression with direct access. @throws shape_error elements at a null pointer
template <class Derived>
matrix_view view_of(const Derived& m) {
    const void* data = nullptr;
    if constexpr (is_plain<Derived>) {
        data = m.data();
    } else {
        data = data_of(m);
        if (data == nullptr && m.rows() != 0 && m.cols() != 0) {
            detail::throw_null_view(m.rows(), m.cols());
        }
    }
    const std::int64_t inner = m.innerStride();
    const std::int64_t outer = m.outerStride();
    return {data, m.rows(), m.cols(), Derived::IsRowMajor ? outer : inner, Derived::IsRowMajor ? inner : outer};
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
requires dense<Matrix> leaf make_leaf(Matrix&& m) {
    using type = bare<Matrix>;
    if constexpr (is_plain<type>) {  // of a class that inherits a matrix, the matrix in it
        if constexpr (std::is_lvalue_reference_v<Matrix>) {
            return leaf::borrowed(std::addressof(static_cast<const type&>(m)), &look_at<type>);
        } else if constexpr (std::is_const_v<std::remove_reference_t<Matrix>>) {
            return owned_leaf(static_cast<const type&>(m));
        } else {
            return owned_leaf(static_cast<type&&>(m));
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

/// @name Leaves with structure (expr/structured.hpp). Lvalue plain matrices are borrowed and followed, others owned.
/// @{

template <class Matrix>
inline constexpr bool owns_diagonal = false;
template <class Scalar, int Size, int MaxSize>
inline constexpr bool owns_diagonal<Eigen::DiagonalMatrix<Scalar, Size, MaxSize>> = true;

/// A diagonal matrix or `v.asDiagonal()`: the diagonal of an lvalue is borrowed like a view, a computed one is owned.
template <class Matrix>
leaf make_diagonal_leaf(Matrix&& m) {
    const auto& diagonal = m.diagonal();
    using vector = bare<decltype(diagonal)>;
    if constexpr (has_direct_access<vector> && !(owns_diagonal<bare<Matrix>> && !std::is_lvalue_reference_v<Matrix>)) {
        return detail::diagonal_leaf(diagonal.data(), diagonal.size(), diagonal.innerStride(), nullptr);
    } else {
        using plain = Eigen::Matrix<scalar_of<Matrix>, Eigen::Dynamic, 1>;
        auto kept = std::make_shared<const plain>(diagonal);
        const void* const data = kept->data();
        const std::int64_t size = kept->size();
        return detail::diagonal_leaf(data, size, 1, std::move(kept));
    }
}

/// A permutation matrix: its indices are copied.
template <class Matrix>
leaf make_permutation_leaf(const Matrix& m) {
    auto kept = std::make_shared<std::vector<std::int32_t>>();
    for (Eigen::Index i = 0; i < m.indices().size(); ++i) {
        kept->push_back(static_cast<std::int32_t>(m.indices()(i)));
    }
    const std::int32_t* const data = kept->data();
    const auto size = static_cast<std::int64_t>(kept->size());
    return detail::permutation_leaf(data, size, std::move(kept));
}

/// A triangular or self-adjoint view: what it looks at is borrowed as a dense
/// matrix is, one triangle of it is read. `StrictlyLower` and `StrictlyUpper`
/// views become matrices. @throws shape_error a self-adjoint view that is not square
template <class Matrix>
leaf make_triangular_leaf(const Matrix& m) {
    constexpr int mode = int(Matrix::Mode);
    if constexpr ((mode & Eigen::ZeroDiag) != 0) {
        return owned_leaf(Eigen::Matrix<scalar_of<Matrix>, Eigen::Dynamic, Eigen::Dynamic>(m));
    } else {
        if ((mode & Eigen::SelfAdjoint) != 0 && m.rows() != m.cols()) {  // Eigen does not ask
            throw shape_error("otimes: kron: a self-adjoint view of a matrix that is " +
                              detail::shape_text(m.rows(), m.cols()) + "; it must be square.");
        }
        constexpr bool lower = (mode & Eigen::Lower) != 0;
        constexpr bool unit = (mode & Eigen::UnitDiag) != 0;
        leaf result = make_leaf(m.nestedExpression());
        result.set_triangle((mode & Eigen::SelfAdjoint) != 0 ? factor_kind::self_adjoint : factor_kind::triangular,
                            lower  ? unit ? triangle::unit_lower : triangle::lower
                            : unit ? triangle::unit_upper
                                   : triangle::upper);
        return result;
    }
}

/// The elements of an Eigen::SparseMatrix, compressed or not.
template <class Matrix>
sparse_elements look_at_sparse(const void* object) {
    const auto& m = *static_cast<const Matrix*>(object);
    sparse_elements result;
    result.rows = m.rows();
    result.cols = m.cols();
    result.by_columns = !Matrix::IsRowMajor;
    result.index_bytes = sizeof(typename Matrix::StorageIndex);
    static_assert(sizeof(typename Matrix::StorageIndex) == 4 || sizeof(typename Matrix::StorageIndex) == 8,
                  "otimes: the indices of a sparse factor must have 32 or 64 bits.");
    result.starts = m.outerIndexPtr();
    result.counts = m.innerNonZeroPtr();
    result.inner = m.innerIndexPtr();
    result.values = m.valuePtr();
    return result;
}

/// Where a sparse leaf is, of the shape that its matrix has now.
inline matrix_view look_at_operand(const void* operand) {
    const sparse_elements now = static_cast<const sparse_operand*>(operand)->elements();
    return {operand, now.rows, now.cols, 1, 0};
}

/// A sparse matrix. An lvalue SparseMatrix is borrowed and followed, everything else is evaluated to one that is owned; a SparseVector
/// too, which has no index of its columns.
template <class Matrix>
leaf make_sparse_leaf(Matrix&& m) {
    struct kept_operand {
        sparse_operand operand;
        std::shared_ptr<const void> matrix;
    };
    using type = bare<Matrix>;
    auto kept = std::make_shared<kept_operand>();
    if constexpr (std::is_lvalue_reference_v<Matrix> && !type::IsVectorAtCompileTime && requires(type & plain) {
                      plain.outerIndexPtr();
                      plain.innerNonZeroPtr();
                      plain.reserve(1);
                  }) {
        kept->operand = {std::addressof(m), &look_at_sparse<type>};
    } else {
        using plain = typename type::PlainObject;
        auto matrix = std::make_shared<const plain>(std::forward<Matrix>(m));
        kept->operand = {matrix.get(), &look_at_sparse<plain>};
        kept->matrix = std::move(matrix);
    }
    const void* const operand = &kept->operand;
    return leaf::structured(factor_kind::sparse, operand, &look_at_operand, std::move(kept));
}
/// @}

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

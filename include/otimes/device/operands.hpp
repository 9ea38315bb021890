// SPDX-License-Identifier: MIT
/// @file operands.hpp
/// What the other headers of this folder know of each other: forward declarations, concepts, and how an operand in device memory is held.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/device/executors.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/product.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/host_matrix.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>

namespace otimes {

template <class Scalar, int Order>
class DeviceMatrix;
template <class Scalar, int Order>
class DeviceMap;
template <class Scalar>
class device_product;
template <class Scalar>
class device_sum;
template <class Scalar>
class device_kron;
template <class Scalar>
class device_operator;
template <class Scalar>
class device_selected;

template <class Scalar, int Order>
inline constexpr bool is_device_operand<DeviceMatrix<Scalar, Order>> = true;
template <class Scalar, int Order>
inline constexpr bool is_device_operand<DeviceMap<Scalar, Order>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_product<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_sum<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_kron<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_device_operand<device_operator<Scalar>> = true;

namespace device {

template <class Type>
using bare = std::remove_cvref_t<Type>;
template <class Type>
inline constexpr bool always_false = false;

template <class Type>
inline constexpr bool is_matrix = false;
template <class Scalar, int Order>
inline constexpr bool is_matrix<DeviceMatrix<Scalar, Order>> = true;
template <class Scalar, int Order>
inline constexpr bool is_matrix<DeviceMap<Scalar, Order>> = true;
template <class Type>
inline constexpr bool is_product = false;
template <class Scalar>
inline constexpr bool is_product<device_product<Scalar>> = true;
template <class Type>
inline constexpr bool is_sum = false;
template <class Scalar>
inline constexpr bool is_sum<device_sum<Scalar>> = true;
template <class Type>
inline constexpr bool is_kron = false;
template <class Scalar>
inline constexpr bool is_kron<device_kron<Scalar>> = true;
template <class Type>
inline constexpr bool is_operator = false;
template <class Scalar>
inline constexpr bool is_operator<device_operator<Scalar>> = true;
/// Products of krons one after the other: device/sparse.hpp.
template <class Type>
inline constexpr bool is_composite = false;
template <class Type>
inline constexpr bool is_shift = detail::identity_like<Type>;

/// What multiplies a kron: a matrix, its transpose, a scaled one.
template <class Type>
concept factor_or_x = is_matrix<bare<Type>> || is_product<bare<Type>>;
/// What can be added and subtracted.
template <class Type>
concept summand = factor_or_x<Type> || is_sum<bare<Type>>;

/// A sparse matrix in host memory, as Eigen's and its expressions; recognised by the members of its plain type.
template <class Type>
concept host_sparse =
    std::is_class_v<bare<Type>> && !any_device_operand<Type> && requires(const typename bare<Type>::PlainObject& m) {
    typename bare<Type>::StorageIndex;
    m.outerIndexPtr();
    m.innerIndexPtr();
    m.valuePtr();
    m.innerNonZeroPtr();
    m.outerSize();
};
/// A dense matrix expression in host memory, as Eigen's; recognised by its members, so that no header of Eigen is needed.
template <class Type>
concept host_matrix =
    std::is_class_v<bare<Type>> && !any_device_operand<Type> && !host_sparse<Type> && requires(const bare<Type>& m) {
    typename bare<Type>::Scalar;
    typename bare<Type>::PlainObject;
    bare<Type>::Flags;
    m.rows();
    m.cols();
    m.eval();
};
/// The same without the base classes of Eigen's views, for which assigning to a view looks, too: one of all these is what is assigned to.
template <class Type>
concept assigned_host_matrix = host_matrix<Type> && !requires(const Type& m) {
    requires !std::is_same_v<bare<decltype(m.derived())>, Type>;
};
/// Of a matrix that is copied into a new one of type `Host`. @param call for the message. @throws shape_error a type of fixed extents, or of at
/// most so many rows and columns, that has no such shape
template <class Host>
void require_host_shape(const char* call, std::int64_t rows, std::int64_t cols) {
    if constexpr (requires { Host::MaxColsAtCompileTime; }) {
        const auto has = [](std::int64_t extent, std::int64_t fixed, std::int64_t most) {
            return fixed < 0 ? most < 0 || extent <= most : extent == fixed;
        };
        if (!has(rows, Host::RowsAtCompileTime, Host::MaxRowsAtCompileTime) ||
            !has(cols, Host::ColsAtCompileTime, Host::MaxColsAtCompileTime)) {
            throw shape_error("otimes: " + std::string(call) + ": the matrix is " + detail::shape_text(rows, cols) +
                              ", which the type of the host matrix cannot be. Ask for one of that shape, or for one "
                              "with dynamic rows and columns.");
        }
    }
}
/// A kron of host matrices only, as the Eigen front end makes it.
template <class Type>
concept host_kron = std::is_class_v<bare<Type>> && !any_device_operand<Type> && requires(const bare<Type>& k) {
    typename bare<Type>::Scalar;
    k.node().factors();
    k.node().alpha();
    k.factor_count();
};
/// Eigen's flag of expressions that are pointer and strides.
inline constexpr int direct_access_flag = 0x40;
/// A matrix or a view of one that may be written.
template <class Matrix>
concept has_writable_data = bool(int(Matrix::Flags) & direct_access_flag) && requires(Matrix& m) {
    *m.data() = typename Matrix::Scalar();
};

/// `identity(n)` and `s * identity(n)`.
template <class Type>
inline constexpr bool is_identity_like = detail::identity_like<Type> && !std::is_same_v<bare<Type>, identity_operator>;

/// A matrix in host memory with structure, as `d.asDiagonal()` or a sparse one, by what the Eigen front end says of it (adapt/eigen/kron_arguments.hpp).
template <class Type>
concept host_structure = !any_device_operand<Type> && requires(const kron_node<double>* node, const bare<Type>* m) {
    scalar_of_structure(node, m);
};

/// A multiple of Eigen's identity, `s * MatrixXd::Identity(n, n)`, likewise.
template <class Type>
concept host_shift = !any_device_operand<Type> && requires(const kron_node<double>* node, const bare<Type>& m) {
    shift_of_matrix(node, m);
};

/// What scales an expression of `Scalar`.
template <class Amount, class Scalar>
concept amount = !any_device_operand<Amount> && !host_matrix<Amount> && !host_kron<Amount> &&
                 (detail::scales<bare<Amount>, Scalar> ||
                  (std::is_arithmetic_v<bare<Amount>> && std::is_constructible_v<Scalar, float>));

template <class Scalar, class Amount>
Scalar scalar_from(const Amount& value) {
    if constexpr (std::is_arithmetic_v<Amount> && detail::is_complex_scalar<Scalar>) {
        return Scalar(static_cast<detail::real_of<Scalar>>(value));
    } else if constexpr (std::is_convertible_v<Amount, Scalar>) {
        return static_cast<Scalar>(value);
    } else {
        return Scalar(static_cast<float>(value));
    }
}

/// The executors that own operands of an expression, each once.
using homes = inline_vector<const device_executor*, 3>;
inline void add_home(homes& list, const device_executor* home) {
    for (const device_executor* const known : list) {
        if (known == home) {
            return;
        }
    }
    if (home != nullptr) {
        list.push_back(home);
    }
}

struct operand {
    leaf matrix;
    const device_executor* home = nullptr;
};

/// A leaf with direct access to a host matrix: lvalues and views are borrowed by pointer and strides, the rest is owned.
template <class Matrix>
leaf host_leaf(Matrix&& m) {
    using type = bare<Matrix>;
    const auto view_of = [](const auto& direct) {
        const std::int64_t inner = direct.innerStride();
        const std::int64_t outer = direct.outerStride();
        const bool row_major = bool(int(bare<decltype(direct)>::Flags) & 1);
        return matrix_view{direct.data(), direct.rows(), direct.cols(), row_major ? outer : inner,
                           row_major ? inner : outer};
    };
    constexpr bool plain = std::is_base_of_v<typename type::PlainObject, type>;  // also a class that inherits one
    if constexpr (bool(int(type::Flags) & direct_access_flag) && otimes::detail::strides_hold<type> &&
                  (!plain || std::is_lvalue_reference_v<Matrix>)) {
        return leaf::borrowed(view_of(m));
    } else {
        auto kept = std::make_shared<const typename type::PlainObject>(std::forward<Matrix>(m));
        const matrix_view view = view_of(*kept);
        return leaf::owned(std::move(kept), view);
    }
}

/// The executor that evaluates: the one that is set if it reaches a GPU, else the operands' own.
inline const device_executor& executor_for(const device_executor* home) {
    if (const executor* const chosen = default_executor()) {
        if (const auto* const direct = dynamic_cast<const device_executor*>(chosen)) {
            return *direct;
        }
        if (const auto* const placing = dynamic_cast<const placing_executor*>(chosen)) {
            return home != nullptr ? *home : placing->device();
        }
    }
    return home != nullptr ? *home : gpu();
}

struct scratch {
    otimes::program program;
    otimes::bindings bindings;
};
/// Kept per thread, so that a second evaluation allocates nothing. No code of the user runs while it is in use. nullptr: the thread ends.
inline scratch* thread_scratch() { return otimes::detail::kept_by_thread<scratch, scratch>(); }

/// Everything in a program that is bound, except host factors, lies in device memory.
inline void mark_result_on_device(program& p) {
    for (tensor& t : p.tensors) {
        if (t.binding >= 0 && t.role != tensor_role::factor) {
            t.space = memory_space::device;
        }
    }
}

template <class Scalar>
void evaluate(const device_product<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home);

/// @name Defined in device_algebra.hpp.
/// @{
template <class Scalar>
detail::real_of<Scalar> squared_norm_of(const device_product<Scalar>& y);
template <class First, class Second>
typename First::Scalar dot_of(const First& x, const Second& y);
template <class Scalar, class Rhs>
auto solve_with_copies(const std::vector<device_kron<Scalar>>& terms, const Rhs& b);
/// @}
/// @name Defined in device/selected.hpp.
/// @{
template <class Scalar, class Rows, class Cols>
device_selected<Scalar> select_from(const device_kron<Scalar>& k, const Rows& rows, const Cols& cols);
/// Likewise K.block(i, j, r, c).
template <class Scalar>
device_selected<Scalar> block_from(const device_kron<Scalar>& k, std::int64_t i, std::int64_t j, std::int64_t r,
                                   std::int64_t c);
/// @}
/// @name Defined in device/diagonals.hpp.
/// @{
template <class Vector>
auto diagonal_of(Vector&& d);
template <class Scalar>
void enable_diagonals();
/// @}

}  // namespace device

template <class Scalar>
auto squared_norm(const device_sum<Scalar>& y, std::int64_t workspace_bytes = 0);  // device/sum_norms.hpp

}  // namespace otimes

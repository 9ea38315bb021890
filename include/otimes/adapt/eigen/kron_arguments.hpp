// SPDX-License-Identifier: MIT
/// @file kron_arguments.hpp
/// What `kron(...)` takes: the scalar of an argument, and how it becomes a factor.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/kron_expr.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/exec/cpu.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes {

/// A factor with structure that no Eigen type has; made by the functions of structured.hpp.
template <class ScalarType>
struct structured_factor {
    using Scalar = ScalarType;
    leaf factor;
    [[nodiscard]] std::int64_t rows() const { return factor.rows(); }
    [[nodiscard]] std::int64_t cols() const { return factor.cols(); }
};

/// Copies a matrix or evaluates an expression; given as an argument the copy is moved into the expression.
template <class Derived>
typename Derived::PlainObject own(const Eigen::MatrixBase<Derived>& m) {
    return typename Derived::PlainObject(m.derived());
}
/// The same of sparse, diagonal and permutation matrices: own(d.asDiagonal()) holds its diagonal, which d.asDiagonal() borrows.
template <class Derived>
typename Derived::PlainObject own(const Eigen::SparseMatrixBase<Derived>& m) {
    return typename Derived::PlainObject(m.derived());
}
template <class Derived>
auto own(const Eigen::DiagonalBase<Derived>& m) {
    return Eigen::DiagonalMatrix<typename Derived::Scalar, Derived::DiagonalVectorType::SizeAtCompileTime>(
        m.derived().diagonal());
}
template <class Derived>
auto own(const Eigen::PermutationBase<Derived>& m) {
    return typename Eigen::PermutationBase<Derived>::PlainPermutationType(m.derived());
}

inline namespace OTIMES_TARGET {

namespace eigen {

template <class Type>
inline constexpr bool is_kron = false;
template <class Scalar>
inline constexpr bool is_kron<kron_expr<Scalar>> = true;
template <bool Permutes, bool Fraction>
inline constexpr bool is_kron<index_kron<Permutes, Fraction>> = true;

template <class Type>
inline constexpr bool is_index_kron = false;
template <bool Permutes, bool Fraction>
inline constexpr bool is_index_kron<index_kron<Permutes, Fraction>> = true;
template <class Type>
inline constexpr bool is_fraction = false;
template <bool Permutes>
inline constexpr bool is_fraction<index_kron<Permutes, true>> = true;

template <class Type>
inline constexpr bool is_structured = false;
template <class Scalar>
inline constexpr bool is_structured<structured_factor<Scalar>> = true;

/// Scalar of an argument of kron(); void for an identity or a permutation, which fit any.
template <class Argument>
struct argument_scalar {
    static_assert(
        dense<Argument> || sparse_matrix_like<Argument> || diagonal_like<Argument> || triangular_like<Argument> ||
            permutation_like<Argument> || householder_like<Argument>,
        "otimes: kron() takes dense, sparse, diagonal, triangular, self-adjoint and permutation matrices of Eigen, "
        "otimes::identity(n), the factors of otimes such as toeplitz(), and other krons. For an array write "
        ".matrix(), for a multiple 2.0 * kron(A). A list of factors, std::vector, std::array or std::span, stands "
        "alone: kron(list), "
        "kron(kron(list), "
        "A).");
    static constexpr auto scalar() {
        if constexpr (permutation_like<Argument>) {
            return static_cast<void*>(nullptr);
        } else {
            return static_cast<scalar_of<Argument>*>(nullptr);
        }
    }
    using type = std::remove_pointer_t<decltype(scalar())>;
};
template <class Type>
struct argument_scalar<std::reference_wrapper<Type>> : argument_scalar<std::remove_cv_t<Type>> {};
template <class Scalar>
struct argument_scalar<structured_factor<Scalar>> {
    using type = Scalar;
};
template <>
struct argument_scalar<identity_factor> {
    using type = void;
};
template <std::same_as<identity_operator> Identity>
struct argument_scalar<Identity> {
    static_assert(always_false<Identity>,
                  "otimes: kron(.., identity(), ..): an identity among factors needs its order. Write identity(n).");
    using type = void;
};
/// A real multiple fits any scalar, as `2.0 * K` does.
template <class Scalar>
struct argument_scalar<scaled_identity<Scalar>> {
    using type = std::conditional_t<detail::is_complex_scalar<Scalar>, Scalar, void>;
};
template <class Scalar>
struct argument_scalar<kron_expr<Scalar>> {
    using type = Scalar;
};
template <bool Permutes, bool Fraction>
struct argument_scalar<index_kron<Permutes, Fraction>> {
    using type = void;
};

template <class Type>
inline constexpr bool is_reference = false;
template <class Type>
inline constexpr bool is_reference<std::reference_wrapper<Type>> = true;

template <class Type>
inline constexpr bool is_identity_factor = std::is_same_v<Type, identity_factor>;
template <bool Fraction>
inline constexpr bool is_identity_factor<index_kron<false, Fraction>> = true;
/// What a kron without a scalar type of its own is made of.
template <class Type>
inline constexpr bool is_index_factor = is_identity_factor<Type> || is_index_kron<Type> || permutation_like<Type>;

/// What shifts an operator: the identities of otimes, `MatrixXd::Identity(n, n)`, and their multiples.
template <class Type>
inline constexpr bool is_identity_multiple = is_identity_expression<Type>;
template <class Type>
requires scalar_multiple<Type>::value inline constexpr bool is_identity_multiple<Type> =
    is_identity_multiple<bare<decltype(scalar_multiple<Type>::matrix(std::declval<const Type&>()))>>;
template <class Type>
concept shift_like = detail::identity_like<Type> || is_identity_multiple<bare<Type>>;

/// The shift as a number and an order. @throws shape_error `MatrixXd::Identity(m, n)` that is not square
template <class Identity>
auto shift_of(const Identity& identity) {
    if constexpr (detail::identity_like<Identity>) {
        return detail::shift_of(identity);
    } else {
        if (identity.rows() != identity.cols()) {
            throw shape_error("otimes: operator + s * Identity(m, n): the identity is " +
                              detail::shape_text(identity.rows(), identity.cols()) +
                              "; only a square one shifts an operator.");
        }
        if constexpr (is_identity_expression<Identity>) {
            return scaled_identity<int>{1, identity.rows()};
        } else {
            using multiple = scalar_multiple<Identity>;
            const auto amount = multiple::amount(identity);
            if constexpr (is_identity_expression<bare<decltype(multiple::matrix(identity))>>) {
                return scaled_identity<bare<decltype(amount)>>{amount, identity.rows()};
            } else {
                const auto scale = detail::multiply_amounts(amount, shift_of(multiple::matrix(identity)).scale);
                return scaled_identity<bare<decltype(scale)>>{scale, identity.rows()};
            }
        }
    }
}
template <class Type, class Scalar>
concept shifts =
    shift_like<Type> && detail::scales<decltype(shift_of(std::declval<const bare<Type>&>()).scale), Scalar>;

/// Appends the factors of a kron, which may have structure that was made for another scalar.
template <class Scalar, class Other>
void append_kron(kron_node<Scalar>& node, const kron_node<Other>& other) {
    if constexpr (!std::is_same_v<Scalar, Other>) {
        enable_structure<Scalar>();
    }
    node.append(other);
}

template <class Scalar, class Other>
kron_expr<Scalar> kron_over(const kron_expr<Other>& k) {
    if constexpr (std::is_same_v<Scalar, Other>) {
        return k;
    } else {
        kron_node<Scalar> node;
        append_kron(node, k.node());
        return kron_expr<Scalar>(std::move(node));
    }
}

template <class Scalar, class Argument>
void append_argument(kron_node<Scalar>& node, Argument&& argument) {
    using type = bare<Argument>;
    if constexpr (permutation_like<type> || diagonal_like<type> || sparse_matrix_like<type> || triangular_like<type> ||
                  is_structured<type>) {
        enable_cpu_steps<Scalar>();  // here, so that files with dense factors only do not compile these loops
    }
    if constexpr (is_reference<type>) {  // borrowed, also in a list that is a temporary
        append_argument(node, argument.get());
    } else if constexpr (householder_like<type>) {
        using plain = Eigen::Matrix<scalar_of<type>, Eigen::Dynamic, Eigen::Dynamic>;
        node.append(make_leaf_for<Scalar>(plain(argument)));
    } else if constexpr (std::is_same_v<type, identity_factor>) {
        node.append(leaf::identity(argument.order));
    } else if constexpr (detail::identity_like<type> && !std::is_same_v<type, identity_operator>) {
        static_assert(!(std::is_integral_v<Scalar> && std::is_floating_point_v<decltype(argument.scale)>),
                      "otimes: kron(.., s * identity(n), ..) of integers: a fraction s would be cut off. Make s an "
                      "integer, or .cast<double>() the other factors.");
        detail::check_factor_order(argument.order);
        node.append(leaf::identity(argument.order));
        node.set_alpha(node.alpha() * detail::amount_as<Scalar>(argument.scale));
    } else if constexpr (is_index_kron<type>) {
        append_kron(node, argument.template cast<Scalar>().node());
        node.rewritten().add(rewrite::nested_kron_flattened);
    } else if constexpr (is_kron<type>) {
        append_kron(node, argument.node());
        node.rewritten().add(rewrite::nested_kron_flattened);
    } else if constexpr (permutation_like<type>) {
        enable_structure<Scalar>();
        leaf factor;
        if constexpr (requires { argument.indices(); }) {
            factor = make_permutation_leaf(argument);
        } else {
            factor = make_permutation_leaf(argument.nestedExpression());
            factor.transpose();
        }
        factor.set_real_elements(detail::is_complex_scalar<Scalar>);
        node.append(std::move(factor));
    } else if constexpr (is_structured<type>) {
        enable_structure<Scalar>();
        leaf factor = argument.factor;
        if constexpr (!std::is_same_v<typename type::Scalar, Scalar>) {
            factor.set_real_elements(true);
        }
        node.append(std::move(factor));
    } else if constexpr (diagonal_like<type> || sparse_matrix_like<type>) {
        enable_structure<Scalar>();
        leaf factor;
        if constexpr (diagonal_like<type>) {
            factor = make_diagonal_leaf(std::forward<Argument>(argument));
        } else {
            factor = make_sparse_leaf(std::forward<Argument>(argument));
        }
        factor.set_real_elements(detail::is_complex_scalar<Scalar> && !detail::is_complex_scalar<scalar_of<type>>);
        node.append(std::move(factor));
    } else if constexpr (triangular_like<type>) {
        enable_structure<Scalar>();
        leaf factor = make_triangular_leaf(argument);
        factor.set_real_elements(detail::is_complex_scalar<Scalar> && !detail::is_complex_scalar<scalar_of<type>>);
        node.append(std::move(factor));
    } else {
        node.append(make_leaf_for<Scalar>(std::forward<Argument>(argument)));
    }
}

/// Arguments of kron() that are neither dense nor krons.
template <class Type>
concept structured_argument = permutation_like<bare<Type>> || diagonal_like<bare<Type>> ||
    sparse_matrix_like<bare<Type>> || triangular_like<bare<Type>> || is_structured<bare<Type>>;

/// Their scalar; nothing for others, also for a compiler that asks before it looks at a constraint.
template <class Argument, bool = structured_argument<Argument>>
struct scalar_of_structured {};
template <class Argument>
struct scalar_of_structured<Argument, true> : argument_scalar<Argument> {};

}  // namespace eigen

/// @name What krons with factors in device memory ask of an argument with structure; found by the node's namespace.
/// @{
template <class Argument>
requires eigen::structured_argument<Argument>
typename eigen::scalar_of_structured<Argument>::type* scalar_of_structure(const kron_node<double>*, const Argument*);
template <class Scalar, class Argument>
requires eigen::structured_argument<Argument>
void append_structure(kron_node<Scalar>& node, Argument&& argument) {
    eigen::append_argument(node, std::forward<Argument>(argument));
}
/// `s * MatrixXd::Identity(n, n)` beside one of those krons. @throws shape_error not square
template <class Identity>
requires eigen::is_identity_multiple<Identity>
auto shift_of_matrix(const kron_node<double>*, const Identity& identity) { return eigen::shift_of(identity); }
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

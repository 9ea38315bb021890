// SPDX-License-Identifier: MIT
/// @file identity.hpp
/// Identities without storage: `identity(n)` as a factor, and `identity()`, `s * identity()`, `s * identity(n)` beside an operator of
/// the same order, as in `K + s * identity()`.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <otimes/expr/messages.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

/// The identity matrix of an order, as a factor or beside an operator: no storage, no flops.
struct identity_factor {
    std::int64_t order = 0;
};
/// The identity of whatever order fits, as in `K + identity()`.
struct identity_operator {};
/// `s * identity()`, of whatever order fits (order < 0), or `s * identity(n)`.
template <class Scalar>
struct scaled_identity {
    Scalar scale;
    std::int64_t order = -1;
};

/// Identity factor of the given order (>= 0). @throws shape_error for a negative order.
inline identity_factor identity(std::int64_t order) {
    if (order < 0) {
        throw shape_error("otimes: identity(" + std::to_string(order) + "): the order must not be negative.");
    }
    return {order};
}
/// The identity of the order that the other operand has.
inline identity_operator identity() { return {}; }

namespace detail {

/// An identity as a multiple of one.
inline scaled_identity<int> shift_of(identity_operator) { return {1}; }
inline scaled_identity<int> shift_of(identity_factor identity) { return {1, identity.order}; }
template <class Scalar>
scaled_identity<Scalar> shift_of(const scaled_identity<Scalar>& identity) {
    return identity;
}

template <class Type>
concept identity_like = requires(const std::remove_cvref_t<Type>& value) {
    detail::shift_of(value);
};

template <class Scalar>
concept identity_scale = !std::is_class_v<Scalar> || is_complex_scalar<Scalar>;

/// The product of two amounts, one of which may be the whole number of an identity without one.
template <class First, class Second>
auto multiply_amounts(const First& first, const Second& second) {
    if constexpr (std::is_arithmetic_v<First> && is_complex_scalar<Second>) {
        return amount_as<Second>(first) * second;
    } else if constexpr (is_complex_scalar<First> && std::is_arithmetic_v<Second>) {
        return first * amount_as<First>(second);
    } else if constexpr (std::is_arithmetic_v<First> && std::is_arithmetic_v<Second>) {
        using number = std::common_type_t<First, Second>;
        using signed_number =  // so that -1 times an unsigned multiple is negative
            std::conditional_t<std::is_integral_v<number> && std::is_unsigned_v<number>, std::int64_t, number>;
        return static_cast<signed_number>(first) * static_cast<signed_number>(second);
    } else {
        return first * second;
    }
}

/// @throws shape_error a shift of what is not square, or by an identity of another order. Nothing otherwise.
inline void check_shift(std::int64_t rows, std::int64_t cols, std::int64_t order) {
    if (rows != cols) {
        throw shape_error("otimes: operator + s * identity(): the operator is " + shape_text(rows, cols) +
                          "; only a square operator can be shifted.");
    }
    if (order >= 0 && order != rows) {
        throw shape_error("otimes: operator + s * identity(" + std::to_string(order) + "): the operator is " +
                          shape_text(rows, cols) + ", the identity " + shape_text(order, order) +
                          ". Their orders must be equal; identity() takes the order that fits.");
    }
}

/// @throws shape_error a factor `s * identity()`, which has no order.
inline void check_factor_order(std::int64_t order) {
    if (order < 0) {
        throw shape_error("otimes: kron(.., s * identity(), ..): a factor needs its order; write s * identity(n).");
    }
}

}  // namespace detail

/// @name Multiples of an identity. A quotient by a whole number is a fraction.
/// @{
template <detail::identity_scale Scalar, detail::identity_like Identity>
[[nodiscard]] auto operator*(const Scalar& scale, const Identity& identity) {
    const auto shift = detail::shift_of(identity);
    const auto product = detail::multiply_amounts(scale, shift.scale);
    return scaled_identity<std::remove_const_t<decltype(product)>>{product, shift.order};
}
template <detail::identity_like Identity, detail::identity_scale Scalar>
[[nodiscard]] auto operator*(const Identity& identity, const Scalar& scale) {
    return scale * identity;
}
template <detail::identity_like Identity, detail::identity_scale Scalar>
[[nodiscard]] auto operator/(const Identity& identity, const Scalar& divisor) {
    if constexpr (std::is_integral_v<Scalar>) {
        return (1.0 / static_cast<double>(divisor)) * identity;
    } else {
        return (Scalar(1) / divisor) * identity;
    }
}
template <detail::identity_like Identity>
[[nodiscard]] auto operator-(const Identity& identity) {
    return -1 * identity;
}
/// @}

}  // namespace otimes

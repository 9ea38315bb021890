// SPDX-License-Identifier: MIT
/// @file scalar.hpp
/// Which scalar an expression has when its operands differ: a complex type absorbs the real type that it is made of,
/// nothing else mixes (as in Eigen).
#pragma once

#include <bit>
#include <complex>
#include <cstdint>
#include <type_traits>

namespace otimes {

namespace detail {

template <class Scalar>
struct complex_parts {
    static constexpr bool is_complex = false;
    using real = Scalar;
};
template <class Real>
struct complex_parts<std::complex<Real>> {
    static constexpr bool is_complex = true;
    using real = Real;
};

template <class Scalar>
using real_of = typename complex_parts<Scalar>::real;
template <class Scalar>
inline constexpr bool is_complex_scalar = complex_parts<Scalar>::is_complex;

/// True when an expression may combine the two: equal, or a complex type and its own real type.
template <class First, class Second>
inline constexpr bool scalars_mix = std::is_same_v<real_of<First>, real_of<Second>>;

template <class First, class Second>
using common_scalar = std::conditional_t<is_complex_scalar<First>, First, Second>;

/// The scalar of an expression of operands over both; void, what fits any scalar (an identity), leaves the other.
template <class First, class Second>
struct combined_scalar {
    static_assert(scalars_mix<First, Second>,
                  "otimes: the operands have different scalar types. Only a real type and its own complex type mix; "
                  "convert the others "
                  "first, as with .cast<Scalar>().");
    using type = common_scalar<First, Second>;
};
template <class Second>
struct combined_scalar<void, Second> {
    using type = Second;
};
template <class First>
struct combined_scalar<First, void> {
    using type = First;
};
template <>
struct combined_scalar<void, void> {
    using type = void;
};

/// The same of any number of operands.
template <class... Scalars>
struct scalar_of_all {
    using type = void;
};
template <class First, class... Rest>
struct scalar_of_all<First, Rest...> {
    using type = typename combined_scalar<First, typename scalar_of_all<Rest...>::type>::type;
};

/// True when an `Amount` may scale an expression of `Scalar`: what converts to the scalar without leaving the real line,
/// or the complex type of a real scalar. A fraction does not scale integers: it would be cut off.
template <class Amount, class Scalar>
inline constexpr bool scales = (std::is_convertible_v<Amount, Scalar> &&
                                !(std::is_integral_v<real_of<Scalar>> && std::is_floating_point_v<Amount>)) ||
                               (is_complex_scalar<Amount> && std::is_same_v<real_of<Amount>, Scalar>);

/// Scalar of `amount * expression`.
template <class Amount, class Scalar>
using scaled_scalar =
    std::conditional_t<is_complex_scalar<Amount> && std::is_same_v<real_of<Amount>, Scalar>, Amount, Scalar>;

/// The number that scales an expression of `Scalar`, e.g. the 2 of `2 * X * K` as a complex float.
template <class Scalar, class Amount>
constexpr Scalar amount_as(const Amount& amount) {
    if constexpr (is_complex_scalar<Scalar> && std::is_arithmetic_v<Amount>) {
        return Scalar(static_cast<real_of<Scalar>>(amount));
    } else {
        return static_cast<Scalar>(amount);
    }
}

template <class Scalar>
constexpr Scalar conjugate_of(const Scalar& value) {
    if constexpr (is_complex_scalar<Scalar>) {
        return Scalar(value.real(), -value.imag());
    } else {
        return value;
    }
}
template <class Scalar>
constexpr auto real_part_of(const Scalar& value) {
    if constexpr (is_complex_scalar<Scalar>) {
        return value.real();
    } else {
        return value;
    }
}

/// Neither NaN nor infinite; of float and double by their bits, so that it is so also where the compiler is told that there are no such
/// numbers (-ffast-math).
template <class Scalar>
bool is_finite(const Scalar& x) {
    if constexpr (is_complex_scalar<Scalar>) {
        return is_finite(x.real()) && is_finite(x.imag());
    } else if constexpr (std::is_same_v<Scalar, double>) {
        return (std::bit_cast<std::uint64_t>(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    } else if constexpr (std::is_same_v<Scalar, float>) {
        return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
    } else {
        const Scalar same = x;
        return x - same == Scalar(0);  // NaN of both
    }
}

}  // namespace detail
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file misuse.hpp
/// What has no meaning beside an expression over device memory, by a sentence: one overload for each operator and function, for arguments that no
/// other one takes. The host's: adapt/eigen/misuse.hpp.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <otimes/device/operands.hpp>
#include <otimes/device/run.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/plan/plan.hpp>

namespace otimes {
namespace device {

template <class Type>
concept number = std::is_arithmetic_v<bare<Type>> || detail::is_complex_scalar<bare<Type>>;
template <class Type>
concept any_operator = is_kron<bare<Type>> || is_operator<bare<Type>>;
template <class Type>
concept any_expression = summand<Type> || any_operator<Type>;
/// A matrix on the host, of any kind.
template <class Type>
concept on_host = std::is_class_v<bare<Type>> &&(host_matrix<Type> || host_sparse<Type> || host_structure<Type>);

/// What does not multiply `One`, in either order.
template <class One, class Other>
concept no_factor_beside = (any_expression<One> && number<Other> && !amount<Other, typename One::Scalar>) ||
                           (summand<One> && (on_host<Other> || detail::identity_like<Other>)&&!host_kron<Other>);
template <class First, class Second>
concept refused_product = no_factor_beside<First, Second> || no_factor_beside<Second, First>;

template <class One, class Other>
concept no_term_beside = summand<One> &&(number<Other> || on_host<Other> || detail::identity_like<Other>);
template <class First, class Second>
concept refused_sum = no_term_beside<First, Second> || no_term_beside<Second, First>;

/// One is in host memory, the other in device memory.
template <class Destination, class Value>
concept apart = (is_matrix<Destination> && on_host<Value>) ||
                (summand<Value> && !any_device_operand<Destination> &&
                 (on_host<Destination> || requires(const Destination& promise) { promise.expression().noalias(); }));

template <class First, class Second>
concept refused_quotient = (any_expression<First> &&
                            (any_expression<Second> || on_host<Second> || host_kron<Second>)) ||
                           (any_expression<Second> && (number<First> || on_host<First> || host_kron<First>));

/// The type of a refused expression, with which the sentence is the only error; none for what is not refused: a constraint would do as
/// well, but some compilers form the type of the function first.
template <bool Refused, class First, class Second>
struct refused {};
template <class First, class Second>
struct refused<true, First, Second> {
    using expression = std::conditional_t<any_expression<First>, First, Second>;
    using type = device_sum<typename expression::Scalar>;
    static type value() { return type(device_product<typename expression::Scalar>(operand())); }
};

template <class Refused>
constexpr void refuse_sum() {
    static_assert(
        always_false<Refused>,
        "otimes: a matrix in device memory plus or minus what is none: a number, an identity or a matrix in host "
        "memory. Copy a matrix first: otimes::DeviceMatrix<Scalar> dX(X).");
}
template <class Refused>
constexpr void refuse_in_place() {
    static_assert(
        always_false<Refused>,
        "otimes: a Kronecker product is a value that is not changed in place. Write K = 2.0 * K; a sum of two has a "
        "type of its own: auto S = K + K2.");
}
template <class Refused>
constexpr void refuse_plan() {
    static_assert(
        always_false<Refused>,
        "otimes: explain and make_plan take a product with an operand, such as explain(dX * K): the plan depends on "
        "the shape and the storage of X.");
}

}  // namespace device

/// @name Operators.
/// @{
template <class First, class Second>
typename device::refused<device::refused_product<First, Second>, First, Second>::type operator*(const First&,
                                                                                                const Second&) {
    static_assert(
        device::number<First> || device::number<Second>,
        "otimes: the product of a matrix in device memory with a matrix in host memory, or with an identity. A "
        "factor stands in a Kronecker product, also a single one: dX * kron(A).");
    static_assert(
        !device::number<First> && !device::number<Second>,
        "otimes: a number of another scalar type beside an expression in device memory: a real one takes real "
        "numbers and complex ones of its precision.");
    return device::refused<device::refused_product<First, Second>, First, Second>::value();
}
template <class First, class Second>
typename device::refused<device::refused_sum<First, Second>, First, Second>::type operator+(const First&,
                                                                                            const Second&) {
    device::refuse_sum<First>();
    return device::refused<device::refused_sum<First, Second>, First, Second>::value();
}
template <class First, class Second>
typename device::refused<device::refused_sum<First, Second>, First, Second>::type operator-(const First&,
                                                                                            const Second&) {
    device::refuse_sum<First>();
    return device::refused<device::refused_sum<First, Second>, First, Second>::value();
}
template <class First, class Second>
typename device::refused<device::refused_quotient<First, Second>, First, Second>::type operator/(const First&,
                                                                                                 const Second&) {
    static_assert(
        device::always_false<First>,
        "otimes: an expression in device memory is divided by a number of its scalar type and by nothing else. For "
        "the X of K * X = B include <otimes/algebra.hpp> and write K.solve(dB).");
    return device::refused<device::refused_quotient<First, Second>, First, Second>::value();
}
template <class Kron, class Other>
requires device::any_operator<Kron>
void operator+=(Kron&, const Other&) { device::refuse_in_place<Kron>(); }
template <class Kron, class Other>
requires device::any_operator<Kron>
void operator-=(Kron&, const Other&) { device::refuse_in_place<Kron>(); }
template <class Kron, class Other>
requires device::any_operator<Kron>
void operator*=(Kron&, const Other&) { device::refuse_in_place<Kron>(); }
template <class Kron, class Other>
requires device::any_operator<Kron>
void operator/=(Kron&, const Other&) { device::refuse_in_place<Kron>(); }
/// dY += K; `=` is refused by no_matrix.
template <class Destination, class Kron>
requires(device::is_matrix<device::bare<Destination>>&& device::any_operator<Kron>) void operator+=(Destination&&,
                                                                                                    const Kron&) {
    static_cast<void>(device::refuse_matrix<typename Kron::Scalar>::order);
}
template <class Destination, class Kron>
requires(device::is_matrix<device::bare<Destination>>&& device::any_operator<Kron>) void operator-=(Destination&&,
                                                                                                    const Kron&) {
    static_cast<void>(device::refuse_matrix<typename Kron::Scalar>::order);
}
template <class Destination, class Value>
requires device::apart<device::bare<Destination>, Value>
void operator+=(Destination&&, const Value&) { device::refuse_other_memory<device::bare<Destination>>(); }
template <class Destination, class Value>
requires device::apart<device::bare<Destination>, Value>
void operator-=(Destination&&, const Value&) { device::refuse_other_memory<device::bare<Destination>>(); }
/// @}

/// @name Functions.
/// @{
template <class First, class... Rest>
requires(device::any_operator<First> || device::is_matrix<First>) std::string explain(const First&, const Rest&...) {
    device::refuse_plan<First>();
    return {};
}
template <class First, class... Rest>
requires(device::any_operator<First> || device::is_matrix<First>) plan make_plan(const First&, const Rest&...) {
    device::refuse_plan<First>();
    return {};
}
template <class Destination, class Value>
requires(!device::is_matrix<device::bare<Destination>> &&
         (device::is_product<Value> || device::is_sum<Value>)) void run_bound_plan(const plan&, Destination&,
                                                                                   const Value&, void*, std::int64_t) {
    device::refuse_other_memory<device::bare<Destination>>();
}
template <class First, class Second>
requires((device::any_operator<First> && device::any_expression<Second>) ||
         (device::any_expression<First> && device::any_operator<Second>)) double dot(const First&, const Second&) {
    static_assert(device::always_false<First>,
                  "otimes: dot(x, y) in device memory is of two matrices or products: dot(dX, K * dY) for x^H K y.");
    return 0;
}
/// @}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file sums.hpp
/// Multiples and sums of products over device memory, and the sentences for what is not there.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <otimes/device/operators.hpp>

namespace otimes {

/// @name Scalar multiples: kept beside the operands, no pass over memory.
/// @{
template <class Matrix, class Amount>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator*(Matrix&& x, const Amount& amount) {
    using from = typename device::bare<Matrix>::Scalar;
    using scalar = detail::scaled_scalar<Amount, from>;
    auto result = device::promote<scalar>(device::to_product(std::forward<Matrix>(x)));
    result.edit().alpha = result.node().alpha * device::scalar_from<scalar>(amount);
    return result;
}
template <class Amount, class Matrix>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator*(const Amount& amount, Matrix&& x) {
    return std::forward<Matrix>(x) * amount;
}
template <class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator-(Matrix&& x) { return std::forward<Matrix>(x) * -1; }
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const device_kron<Scalar>& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    kron_node<scalar> node;
    node.append(k.node());
    node.set_alpha(node.alpha() * device::scalar_from<scalar>(amount));
    return device_kron<scalar>(std::move(node), k.homes());
}
template <class Amount, class Scalar>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const device_kron<Scalar>& k) { return k * amount; }
/// @}

/// @name Quotients by a number.
/// @{
template <class Matrix, class Amount>
requires(device::factor_or_x<Matrix>&& device::amount<Amount, typename device::bare<Matrix>::Scalar>) [[nodiscard]] auto
operator/(Matrix&& x, const Amount& amount) {
    using from = typename device::bare<Matrix>::Scalar;
    using scalar = detail::scaled_scalar<Amount, from>;
    auto result = device::promote<scalar>(device::to_product(std::forward<Matrix>(x)));
    result.edit().alpha = result.node().alpha / device::scalar_from<scalar>(amount);
    return result;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const device_kron<Scalar>& k, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    kron_node<scalar> node;
    node.append(k.node());
    node.set_alpha(node.alpha() / device::scalar_from<scalar>(amount));
    return device_kron<scalar>(std::move(node), k.homes());
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const device_operator<Scalar>& s, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    return device::to_operator<scalar>(s).scaled(scalar(1) / device::scalar_from<scalar>(amount));
}
template <class Scalar>
[[nodiscard]] auto operator-(const device_kron<Scalar>& k) {
    return k * -1;
}
/// @}

/// @name Sums. Shapes are checked here and again at evaluation.
/// @{
namespace device {
template <class To, class Value>
device_sum<To> to_sum(Value&& value) {
    if constexpr (!is_sum<bare<Value>>) {
        return device_sum<To>(promote<To>(to_product(std::forward<Value>(value))));
    } else if constexpr (std::is_same_v<typename bare<Value>::Scalar, To>) {
        return std::forward<Value>(value);
    } else {
        device_sum<To> result(promote<To>(value.terms().front()));
        for (std::size_t i = 1; i < value.terms().size(); ++i) {
            result.append(device_sum<To>(promote<To>(value.terms()[i])), 1);
        }
        return result;
    }
}
template <class First, class Second>
auto sum_of(First&& a, Second&& b, int sign) {
    using scalar = typename detail::combined_scalar<typename bare<First>::Scalar, typename bare<Second>::Scalar>::type;
    device_sum<scalar> result = to_sum<scalar>(std::forward<First>(a));
    result.append(to_sum<scalar>(std::forward<Second>(b)), sign);
    return result;
}
}  // namespace device

template <class First, class Second>
requires(device::summand<First>&& device::summand<Second>) [[nodiscard]] auto operator+(First&& a, Second&& b) {
    return device::sum_of(std::forward<First>(a), std::forward<Second>(b), 1);
}
template <class First, class Second>
requires(device::summand<First>&& device::summand<Second>) [[nodiscard]] auto operator-(First&& a, Second&& b) {
    return device::sum_of(std::forward<First>(a), std::forward<Second>(b), -1);
}
template <class Scalar>
[[nodiscard]] device_sum<Scalar> operator-(const device_sum<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator*(const device_sum<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator/(const device_sum<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(1) / device::scalar_from<Scalar>(amount));
}
template <class Amount, class Scalar>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_sum<Scalar>
    operator*(const Amount& amount, const device_sum<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Matrix, class Destination>
requires(device::is_matrix<Matrix>&& device::is_matrix<device::bare<Destination>>&&
             std::is_same_v<typename Matrix::Scalar, typename device::bare<Destination>::Scalar>) Destination &&
operator+=(Destination&& y, const Matrix& x) {
    y += x.expression();
    return std::forward<Destination>(y);
}
template <class Matrix, class Destination>
requires(device::is_matrix<Matrix>&& device::is_matrix<device::bare<Destination>>&&
             std::is_same_v<typename Matrix::Scalar, typename device::bare<Destination>::Scalar>) Destination &&
operator-=(Destination&& y, const Matrix& x) {
    y -= x.expression();
    return std::forward<Destination>(y);
}
/// @}

namespace device {
/// What a sum of products is multiplied by: an operator, not a matrix.
template <class Type>
concept multiplies_sums =
    std::is_class_v<bare<Type>> && !summand<Type> && !is_shift<Type> && !host_matrix<Type> && !host_sparse<Type> &&
    (host_kron<Type> || !host_structure<Type>)&&requires(const bare<Type>& k) {
    typename bare<Type>::Scalar;
    k.rows();
    k.cols();
};
}  // namespace device

/// @name A sum as the X of a product, `(dX * K1 + dZ) * K2`: evaluated when the product is written, into a temporary of its extents that
/// the product keeps. @throws shape_error when the extents do not fit; device_error when memory is short
/// @{
template <class Scalar, class Operator>
requires device::multiplies_sums<Operator>
[[nodiscard]] auto operator*(const device_sum<Scalar>& s, const Operator& k) {
    return device_product<Scalar>(device::evaluated(s)) * k;
}
template <class Operator, class Scalar>
requires device::multiplies_sums<Operator>
[[nodiscard]] auto operator*(const Operator& k, const device_sum<Scalar>& s) {
    return k * device_product<Scalar>(device::evaluated(s));
}
/// @}

/// @name In place: `X *= K` is X = X * K, `X *= 2` and `X /= 2` are multiples; through a temporary.
/// @{
template <class Destination, class Other>
requires(device::is_matrix<device::bare<Destination>> &&
         (device::is_kron<Other> || device::is_operator<Other> || device::host_kron<Other> ||
          device::amount<Other, typename device::bare<Destination>::Scalar>)) Destination &&
operator*=(Destination&& x, const Other& other) {
    x = x * other;
    return std::forward<Destination>(x);
}
template <class Destination, class Amount>
requires(device::is_matrix<device::bare<Destination>>&&
             device::amount<Amount, typename device::bare<Destination>::Scalar>) Destination &&
operator/=(Destination&& x, const Amount& amount) {
    x = x / amount;
    return std::forward<Destination>(x);
}
/// @}

/// @name What is not there, by a sentence.
/// @{
template <class First, class Second>
requires(device::factor_or_x<First>&& device::factor_or_x<Second>) auto operator*(First&&, Second&&) {
    static_assert(device::always_false<First>,
                  "otimes: the product of two device matrices. First matrix multiplies a Kronecker product: write "
                  "dX * kron(dA) where dA is one factor.");
}
/// @}

}  // namespace otimes

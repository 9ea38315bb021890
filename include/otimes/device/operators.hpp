// SPDX-License-Identifier: MIT
/// @file operators.hpp
/// Products and multiples of Kronecker products in device memory, `kron_sum`, and their application term by term.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/device/kron.hpp>

namespace otimes {

namespace device {

/// The same kron over `To`.
template <class To, class From>
device_kron<To> promoted_kron(const device_kron<From>& k) {
    kron_node<To> node;
    node.append(k.node());
    return {std::move(node), k.homes()};
}
template <class To, class Kron>
device_operator<To> to_operator(const Kron& k) {
    if constexpr (is_kron<Kron>) {
        return device_operator<To>(promoted_kron<To>(k));
    } else {
        device_operator<To> result(promoted_kron<To>(k.terms().front()));
        for (std::size_t i = 1; i < k.terms().size(); ++i) {
            result.append(device_operator<To>(promoted_kron<To>(k.terms()[i])), 1);
        }
        return result;
    }
}

/// X * S (`from_left` false) or S * X, term by term; identities alone leave X as it is.
template <bool FromLeft, class Matrix, class From>
auto multiply_by_terms(Matrix&& x, const device_operator<From>& s) {
    using scalar = typename detail::combined_scalar<typename bare<Matrix>::Scalar, From>::type;
    auto value = promote<scalar>(to_product(std::forward<Matrix>(x)));
    if (FromLeft ? value.node().has_left : value.node().has_right) {
        value = device_product<scalar>(evaluated(value));  // once, not for each term
    }
    const auto term = [&](const device_kron<From>& k) {
        bool identity = true;
        for (const leaf& f : k.node().factors()) {
            identity = identity && f.is_identity();
        }
        if (!identity || k.rows() != (FromLeft ? value.rows() : value.cols())) {
            return multiply<FromLeft>(value, k);
        }
        device_product<scalar> multiple = value;
        multiple.edit().alpha = multiple.node().alpha * scalar(k.node().alpha());
        return multiple;
    };
    device_sum<scalar> result(term(s.terms().front()));
    for (std::size_t i = 1; i < s.terms().size(); ++i) {
        result.append(device_sum<scalar>(term(s.terms()[i])), 1);
    }
    return result;
}

}  // namespace device

/// kron(A, B) * kron(C, D) = kron(A * C, B * D), formed at once: as many small products as there are factors. Cost: those of the
/// factors alone. @throws shape_error the inner extents differ, unsupported_error they agree as a whole but not factor by factor
template <class First, class Second>
requires(std::is_same_v<First, Second>) [[nodiscard]] device_kron<First> operator*(const device_kron<First>& a,
                                                                                   const device_kron<Second>& b) {
    const auto text = [](const device_kron<First>& k) {
        std::string parts;
        for (const leaf& f : k.node().factors()) {
            parts += (parts.empty() ? "" : ", ") + detail::shape_text(f.rows(), f.cols());
        }
        return "kron of " + parts;
    };
    if (a.cols() != b.rows()) {
        throw shape_error("otimes: K1 * K2 in device memory: K1 is " + detail::shape_text(a.rows(), a.cols()) +
                          ", K2 is " + detail::shape_text(b.rows(), b.cols()) +
                          "; the columns of K1 must equal the rows of K2.");
    }
    if (!device::multiply_by_factors(a.node().factors(), b.node().factors())) {
        throw unsupported_error("otimes: K1 * K2 in device memory is formed factor by factor; K1 is a " + text(a) +
                                ", K2 a " + text(b) +
                                ". Give them factors that match, all in device memory, or multiply one after the "
                                "other: (dX * K1) * K2.");
    }
    device::homes where = a.homes();
    for (const device_executor* const home : b.homes()) {
        device::add_home(where, home);
    }
    kron_node<First> node;
    for (const leaf& f : device::products_of_factors<First>(a.node().factors(), b.node().factors(), where)) {
        node.append(f);
    }
    node.set_alpha(a.node().alpha() * b.node().alpha());
    return {std::move(node), where};
}

/// @name Multiples of sums of Kronecker products, and products with them. The sums: device/operator_sums.hpp.
/// @{
template <class Scalar>
[[nodiscard]] device_operator<Scalar> operator-(const device_operator<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const device_operator<Scalar>& s, const Amount& amount) {
    using scalar = detail::scaled_scalar<Amount, Scalar>;
    return device::to_operator<scalar>(s).scaled(device::scalar_from<scalar>(amount));
}
template <class Amount, class Scalar>
requires device::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const device_operator<Scalar>& s) { return s * amount; }
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const device_operator<Scalar>& s) {
    return device::multiply_by_terms<false>(std::forward<Matrix>(x), s);
}
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_operator<Scalar>& s, Matrix&& x) {
    return device::multiply_by_terms<true>(std::forward<Matrix>(x), s);
}

/// The Kronecker sum of square matrices, at least one of them in device memory: kron(A, I, I) + kron(I, B, I) + kron(I, I, C).
/// Applying it takes one mode product for each factor. @throws shape_error a factor that is not square
template <class... Factors>
requires any_device_operand<Factors...>
[[nodiscard]] auto kron_sum(Factors&&... factors) {
    using scalar =
        typename detail::scalar_of_all<typename device::argument_scalar<device::bare<Factors>>::type...>::type;
    std::size_t position = 0;
    const auto order_of = [&position](const auto& factor) -> std::int64_t {
        ++position;
        if constexpr (device::is_identity_like<decltype(factor)>) {
            return detail::shift_of(factor).order;
        } else {
            if (factor.rows() != factor.cols()) {
                throw shape_error("otimes: kron_sum in device memory: factor " + std::to_string(position) + " is " +
                                  detail::shape_text(factor.rows(), factor.cols()) +
                                  "; the terms of a Kronecker sum are square.");
            }
            return factor.rows();
        }
    };
    const std::int64_t orders[] = {order_of(factors)...};
    std::vector<device_kron<scalar>> terms;
    const auto add_term = [&](auto&& factor) {
        device_kron<scalar> k;
        for (std::size_t at = 0; at < sizeof...(Factors); ++at) {
            if (at == terms.size()) {
                k.append(std::forward<decltype(factor)>(factor));
            } else {
                k.edit().append(leaf::identity(orders[at]));
            }
        }
        k.node().check_extents();
        terms.push_back(std::move(k));
    };
    (add_term(std::forward<Factors>(factors)), ...);
    device_operator<scalar> result(terms.front());
    for (std::size_t i = 1; i < terms.size(); ++i) {
        result.append(device_operator<scalar>(terms[i]), 1);
    }
    return result;
}
/// @}

}  // namespace otimes

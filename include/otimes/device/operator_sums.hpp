// SPDX-License-Identifier: MIT
/// @file operator_sums.hpp
/// Sums of Kronecker products in device memory: `K1 + 2 * K2`, `K - s * identity()`, `K + dd.asDiagonal()`, and with a matrix with structure in host
/// memory, as `K + d.asDiagonal()`. Included by cuda.hpp. The CPU's: adapt/eigen/sums.hpp.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <otimes/cuda.hpp>
#include <otimes/device/diagonals.hpp>
#include <otimes/expr/dense_factors.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
namespace device {

/// A matrix in host memory with structure as a term of a sum: diagonals stay there and are copied by each evaluation, others are
/// written out now. @throws unsupported_error as detail::written_out
template <class Scalar, class Matrix>
device_kron<Scalar> structure_on_host(Matrix&& m) {
    enable_diagonals<Scalar>();
    kron_node<Scalar> node;
    append_structure(node, std::forward<Matrix>(m));
    return {detail::with_dense_factors(node, 0), homes()};
}

/// A sum of krons of host matrices, as the Eigen front end makes it.
template <class Type>
concept host_sum = std::is_class_v<bare<Type>> && !any_device_operand<Type> && requires(const bare<Type>& s) {
    s.tree().parts;
    s.term_count();
};

/// A host kron, or a sum of them, as a sum of krons whose factors are copied to the device by each evaluation.
/// @throws unsupported_error a term that is a product of operators
template <class Operator>
device_operator<typename Operator::Scalar> operator_of_host(const Operator& k) {
    using scalar = typename Operator::Scalar;
    const auto term = [](const kron_node<scalar>& node) {
        return device_operator<scalar>(device_kron<scalar>(detail::with_dense_factors(node), homes()));
    };
    if constexpr (host_kron<Operator>) {
        return term(k.node());
    } else {
        const auto part = [&term](const operator_tree<scalar>& tree) {
            if (tree.kind != tree_kind::kron) {
                throw unsupported_error(
                    "otimes: a sum with a product of operators among its terms, beside a matrix in device memory. "
                    "Evaluate on otimes::cpu(), or multiply one after the other: (dX * K1) * K2.");
            }
            return term(tree.kron);
        };
        if (k.tree().kind != tree_kind::sum) {
            return part(k.tree());
        }
        device_operator<scalar> all = part(k.tree().parts.front());
        for (std::size_t i = 1; i < k.tree().parts.size(); ++i) {
            all.append(part(k.tree().parts[i]), 1);
        }
        return all;
    }
}

template <class First, class Second>
auto sum_of_operators(First&& a, Second&& b, int sign) {
    using first = bare<First>;
    using second = bare<Second>;
    constexpr bool both = (is_kron<first> || is_operator<first>)&&(is_kron<second> || is_operator<second>);
    if constexpr (both) {
        using scalar = typename detail::combined_scalar<typename first::Scalar, typename second::Scalar>::type;
        device_operator<scalar> result = to_operator<scalar>(a);
        result.append(to_operator<scalar>(b), sign);
        return result;
    } else if constexpr (is_shift<second>) {
        const auto shift = detail::shift_of(b);
        using scalar = detail::scaled_scalar<bare<decltype(shift.scale)>, typename first::Scalar>;
        device_operator<scalar> result = to_operator<scalar>(a);
        result.append_identity(scalar_from<scalar>(shift.scale) * scalar_from<scalar>(sign), shift.order);
        return result;
    } else if constexpr (is_shift<first>) {
        auto result = sum_of_operators(b, a, 1);
        using scalar = typename decltype(result)::Scalar;
        if (sign > 0) {
            return result;
        }
        device_operator<scalar> difference = to_operator<scalar>(b).scaled(scalar_from<scalar>(-1));
        difference.append(device_operator<scalar>(result.terms().back()), 1);
        return difference;
    } else if constexpr (host_shift<second>) {
        return sum_of_operators(a, shift_of_matrix(static_cast<const kron_node<double>*>(nullptr), b), sign);
    } else if constexpr (host_shift<first>) {
        return sum_of_operators(shift_of_matrix(static_cast<const kron_node<double>*>(nullptr), a), b, sign);
    } else if constexpr (host_kron<second> || host_sum<second>) {
        return sum_of_operators(a, operator_of_host(b), sign);
    } else if constexpr (host_kron<first> || host_sum<first>) {
        return sum_of_operators(operator_of_host(a), b, sign);
    } else if constexpr (host_structure<second> && !host_kron<second>) {
        using scalar =
            typename detail::combined_scalar<typename first::Scalar, typename argument_scalar<second>::type>::type;
        return sum_of_operators(a, structure_on_host<scalar>(std::forward<Second>(b)), sign);
    } else if constexpr (host_structure<first> && !host_kron<first>) {
        using scalar =
            typename detail::combined_scalar<typename argument_scalar<first>::type, typename second::Scalar>::type;
        return sum_of_operators(structure_on_host<scalar>(std::forward<First>(a)), b, sign);
    } else {
        static_assert(
            always_false<First>,
            "otimes: a Kronecker product in device memory plus or minus what is none. Its terms are Kronecker "
            "products, s * identity(), and of Eigen's the matrices with structure, as d.asDiagonal(), "
            "when "
            "otimes/otimes.hpp is included; for others write the sum of the products: dX * K1 + dX * K2.");
    }
}

/// What may stand in `K + ..`: decided here, so that anything else is refused by a sentence.
template <class First, class Second>
concept operator_sum = (is_kron<bare<First>> || is_kron<bare<Second>> || is_operator<bare<First>> ||
                        is_operator<bare<Second>>)&&!is_composite<bare<First>> &&
                       !is_composite<bare<Second>>;

}  // namespace device

/// @name Sums of Kronecker products. @throws shape_error when the shapes differ, when what is shifted is not square
/// @{
template <class First, class Second>
requires device::operator_sum<First, Second>
[[nodiscard]] auto operator+(First&& a, Second&& b) {
    return device::sum_of_operators(std::forward<First>(a), std::forward<Second>(b), 1);
}
template <class First, class Second>
requires device::operator_sum<First, Second>
[[nodiscard]] auto operator-(First&& a, Second&& b) {
    return device::sum_of_operators(std::forward<First>(a), std::forward<Second>(b), -1);
}
/// @}

/// @name A matrix in device memory times a sum of krons of host matrices.
/// @{
template <class Matrix, class Sum>
requires(device::factor_or_x<Matrix>&& device::host_sum<Sum>) [[nodiscard]] auto operator*(Matrix&& x, const Sum& s) {
    return std::forward<Matrix>(x) * device::operator_of_host(s);
}
template <class Sum, class Matrix>
requires(device::factor_or_x<Matrix>&& device::host_sum<Sum>) [[nodiscard]] auto operator*(const Sum& s, Matrix&& x) {
    return device::operator_of_host(s) * std::forward<Matrix>(x);
}
/// @}

}  // namespace otimes

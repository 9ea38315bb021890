// SPDX-License-Identifier: MIT
/// @file kron.hpp
/// `kron(...)` over Eigen matrices and its scalar multiples. kron_expr.hpp has the operator that they make, kron_arguments.hpp what they take.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/kron_arguments.hpp>
#include <otimes/adapt/eigen/kron_expr.hpp>
#include <otimes/expr/batch_operand.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/expr/kron.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// The Kronecker product of the arguments, first factor outermost (expr/kron.hpp has the index formula). Arguments: dense
/// Eigen matrices and expressions, `identity(n)`, diagonal, permutation and sparse matrices, triangular and self-adjoint views, the
/// factors of structured.hpp, other krons (flattened), a std::reference_wrapper of one of these.
/// Scalar: the common one; where no argument has one, or there is none, it is that of X (index_kron). Cost: O(N). @throws shape_error when extents overflow.
template <class... Factors>
requires(!any_device_operand<Factors...> && !any_batch_operand<Factors...> &&
         !(sizeof...(Factors) == 1 && (detail::is_factor_range<eigen::bare<Factors>> && ...)))
    [[nodiscard]] auto kron(Factors&&... factors) {
    using combined =
        typename detail::scalar_of_all<typename eigen::argument_scalar<eigen::bare<Factors>>::type...>::type;
    using scalar = std::conditional_t<std::is_void_v<combined>, double, combined>;
    constexpr bool no_scalar = (eigen::is_index_factor<eigen::bare<Factors>> && ...);  // of none, too
    constexpr bool permutes = !(eigen::is_identity_factor<eigen::bare<Factors>> && ...);
    constexpr bool fraction = (eigen::is_fraction<eigen::bare<Factors>> || ...);
    std::conditional_t<no_scalar, index_kron<permutes, fraction>, kron_expr<scalar>> result;
    (eigen::append_argument(result.edit(), std::forward<Factors>(factors)), ...);
    result.node().check_extents();
    if constexpr (eigen::narrow_index) {
        eigen::require_index(result.node());
    }
    return result;
}

/// The Kronecker product of the elements of a vector, a std::array or a span, their number known at run time. An rvalue vector or
/// array is owned as a whole; of an lvalue or a span each element is borrowed.
template <class Range>
requires(detail::is_factor_range<eigen::bare<Range>> && !any_device_operand<Range>)
    [[nodiscard]] auto kron(Range&& factors) {
    using element = std::remove_cv_t<typename eigen::bare<Range>::value_type>;
    using scalar = typename eigen::argument_scalar<element>::type;
    using known_scalar = std::conditional_t<std::is_void_v<scalar>, double, scalar>;
    kron_node<known_scalar> node;
    constexpr bool owned = detail::owns_factors<Range>;
    if constexpr (owned) {
        for (auto& factor : factors) {
            eigen::append_argument(node, std::move(factor));  // copies where the vector is const
        }
    } else {
        for (const auto& factor : factors) {
            eigen::append_argument(node, factor);
        }
    }
    node.check_extents();
    using result = std::conditional_t<eigen::is_index_factor<element>,
                                      index_kron<!eigen::is_identity_factor<element>, eigen::is_fraction<element>>,
                                      kron_expr<known_scalar>>;
    return result(std::move(node));
}

/// kron(F, F, ..., F) with `count` factors; count 0 is the 1 x 1 one. An rvalue F is stored once.
/// @throws shape_error for a negative count or when extents overflow.
template <class Factor>
requires(!any_device_operand<Factor> && !any_batch_operand<Factor>)
    [[nodiscard]] auto kron_power(Factor&& factor, std::int64_t count) {
    auto one = kron(std::forward<Factor>(factor));
    return decltype(one)(detail::power_of(one.node(), count));
}
/// A fraction would be cut off; kron_power(2, A) is in the wrong order.
template <class First, class Second>
requires(std::is_floating_point_v<eigen::bare<Second>> ||
         (std::is_arithmetic_v<eigen::bare<First>> && eigen::dense<Second>)) auto kron_power(First&&, Second&&) {
    static_assert(eigen::always_false<First>,
                  "otimes: kron_power(F, n): a matrix and a whole number. Round a computed n: std::lround(x).");
    return kron_expr<double>();
}

/// @name Scalar multiples of a kron: the scalar is kept beside the factors.
/// @{
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const kron_expr<Scalar>& k, const Amount& amount) {
    using result_scalar = detail::scaled_scalar<Amount, Scalar>;
    kron_node<result_scalar> node;
    eigen::append_kron(node, k.node());
    node.set_alpha(node.alpha() * detail::amount_as<result_scalar>(amount));
    node.rewritten().add(rewrite::scalar_gathered);
    if constexpr (detail::is_complex_scalar<Amount>) {
        node.set_complex_scale();
    }
    return kron_expr<result_scalar>(std::move(node));
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const kron_expr<Scalar>& k) { return k * amount; }
/// A real number leaves a kron of identities and permutations without a scalar type.
template <bool Permutes, bool Fraction, class Amount>
requires std::is_arithmetic_v<Amount>
[[nodiscard]] auto operator*(const index_kron<Permutes, Fraction>& k, const Amount& amount) {
    return index_kron < Permutes, Fraction || std::is_floating_point_v < Amount >>
                                                  ((static_cast<const kron_expr<double>&>(k) * amount).node());
}
template <bool Permutes, bool Fraction, class Amount>
requires std::is_arithmetic_v<Amount>
[[nodiscard]] auto operator*(const Amount& amount, const index_kron<Permutes, Fraction>& k) { return k * amount; }
template <bool Permutes, bool Fraction, class Amount>
requires std::is_arithmetic_v<Amount>
[[nodiscard]] auto operator/(const index_kron<Permutes, Fraction>& k, const Amount& amount) {
    return index_kron<Permutes, true>((static_cast<const kron_expr<double>&>(k) / amount).node());
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator/(const kron_expr<Scalar>& k, const Amount& amount) {
    using result_scalar = detail::scaled_scalar<Amount, Scalar>;
    static_assert(
        !std::is_integral_v<result_scalar>,
        "otimes: a Kronecker product of integers cannot be divided, since 1 / n is 0. Divide a factor, or the "
        "evaluated product.");
    kron_node<result_scalar> node;
    eigen::append_kron(node, k.node());
    node.set_alpha(node.alpha() / detail::amount_as<result_scalar>(amount));
    node.rewritten().add(rewrite::scalar_gathered);
    if constexpr (detail::is_complex_scalar<Amount>) {
        node.set_complex_scale();
    }
    return kron_expr<result_scalar>(std::move(node));
}
template <class Scalar>
[[nodiscard]] kron_expr<Scalar> operator-(const kron_expr<Scalar>& k) {
    kron_node<Scalar> node = k.node();
    node.set_alpha(-node.alpha());
    node.rewritten().add(rewrite::scalar_gathered);
    return kron_expr<Scalar>(std::move(node));
}
template <bool Permutes, bool Fraction>
[[nodiscard]] auto operator-(const index_kron<Permutes, Fraction>& k) {
    return k * -1;
}
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

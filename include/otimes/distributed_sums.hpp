// SPDX-License-Identifier: MIT
/// @file distributed_sums.hpp
/// Sums over ranks: `dY = dX * K1 - 2 * dX * K2 + dZ`, `dX * (K1 + K2)`, `dX * kron_sum(A, B, C)`, `(K + s * identity()) * dX`. Included by
/// distributed.hpp.
///
/// A sum is the list of its terms. Where rows are cut each rank evaluates its rows of all of them by one plan (detail::rows_at_once).
/// Otherwise each term has a plan of its own; Y = t1, Y += t2, ... are run one after another, of which the ranks agree once. A Y that
/// is among the operands is written when all terms are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/device/operator_sums.hpp>
#include <otimes/distributed.hpp>
#include <otimes/expr/tree.hpp>

namespace otimes {

/// `t1 + t2 + ...`, lazy. Borrows as its terms do: evaluate it in the same statement.
template <class ScalarType>
class distributed_sum {
public:
    using Scalar = ScalarType;

    explicit distributed_sum(distributed_product<Scalar> first) { terms_.push_back(std::move(first)); }
    /// Appends `amount` times the terms of another sum; whether they fit is said when the sum is evaluated, to all ranks.
    void append(const distributed_sum& other, const Scalar& amount) {
        for (distributed_product<Scalar> term : other.terms_) {
            term.scale(amount);
            terms_.push_back(std::move(term));
        }
    }
    void scale(const Scalar& amount) {
        for (distributed_product<Scalar>& term : terms_) {
            term.scale(amount);
        }
    }

    [[nodiscard]] const std::vector<distributed_product<Scalar>>& terms() const noexcept { return terms_; }
    [[nodiscard]] const communicator& ranks() const noexcept { return terms_.front().ranks(); }
    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }

private:
    std::vector<distributed_product<Scalar>> terms_;
};

/// A sum of Kronecker products whose factors are where the ranks compute. Made by `replicate(ranks, kron_sum(A, B, C))`.
template <class ScalarType>
class replicated_sum {
public:
    using Scalar = ScalarType;

    explicit replicated_sum(std::vector<replicated_kron<Scalar>> terms) : terms_(std::move(terms)) {}
    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }
    [[nodiscard]] const std::vector<replicated_kron<Scalar>>& terms() const noexcept { return terms_; }

private:
    std::vector<replicated_kron<Scalar>> terms_;
};

namespace device {
/// A matrix, a product or a sum over ranks.
template <class Type>
inline constexpr bool is_distributed = false;
template <class Scalar>
inline constexpr bool is_distributed<DistributedMatrix<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_distributed<distributed_product<Scalar>> = true;
template <class Scalar>
inline constexpr bool is_distributed<distributed_sum<Scalar>> = true;
template <class Type>
inline constexpr bool is_distributed_sum = false;
template <class Scalar>
inline constexpr bool is_distributed_sum<distributed_sum<Scalar>> = true;
template <class Type>
inline constexpr bool is_replicated_sum = false;
template <class Scalar>
inline constexpr bool is_replicated_sum<replicated_sum<Scalar>> = true;

/// A sum of krons that may stand beside a DistributedMatrix.
template <class Type>
concept any_kron_sum = host_sum<Type> || is_operator<bare<Type>> || is_replicated_sum<bare<Type>>;
/// A DistributedMatrix or a product of one.
template <class Type>
concept distributed_factor_or_x = is_distributed<Type> && !is_distributed_sum<Type>;
/// Two that are over ranks, and of one scalar type.
template <class First, class Second>
concept distributed_summands =
    is_distributed<First> && is_distributed<Second> && std::is_same_v<typename First::Scalar, typename Second::Scalar>;

template <class Scalar>
distributed_product<Scalar> to_distributed_product(const DistributedMatrix<Scalar>& x) {
    return x.expression();
}
template <class Scalar>
distributed_product<Scalar> to_distributed_product(distributed_product<Scalar> x) {
    return x;
}
template <class Scalar>
distributed_sum<Scalar> to_distributed_sum(distributed_sum<Scalar> s) {
    return s;
}
template <class Value>
auto to_distributed_sum(const Value& x) {
    return distributed_sum<typename Value::Scalar>(to_distributed_product(x));
}
template <class First, class Second>
auto sum_over_ranks(const First& a, const Second& b, int sign) {
    using scalar = typename First::Scalar;
    distributed_sum<scalar> result = to_distributed_sum(a);
    result.append(to_distributed_sum(b), scalar(static_cast<float>(sign)));
    return result;
}

/// A term of a host expression, as a kron that a product takes.
template <class ScalarType>
struct kron_term {
    using Scalar = ScalarType;
    const kron_node<Scalar>& of;
    [[nodiscard]] const kron_node<Scalar>& node() const noexcept { return of; }
};

/// The terms of a sum, or what is none as the only one.
template <class Scalar>
std::span<const operator_tree<Scalar>> terms_of(const operator_tree<Scalar>& tree) {
    return tree.kind == tree_kind::sum ? std::span<const operator_tree<Scalar>>(tree.parts)
                                       : std::span<const operator_tree<Scalar>>(&tree, 1);
}

/// The value of a sum as a matrix that a product keeps: evaluated now, by all ranks.
template <class Scalar>
distributed_product<Scalar> evaluated_over_ranks(const distributed_sum<Scalar>& s) {
    return distributed_product<Scalar>(distributed_product<Scalar>::value_of(s));
}

/// X * k, or k * X, for a kron; a multiple of the identity is one of X.
template <bool FromLeft, class Scalar, class Kron>
distributed_product<Scalar> multiply_by_kron(distributed_product<Scalar> x, const Kron& k) {
    bool identity = true;
    for (const leaf& f : k.node().factors()) {
        identity = identity && f.is_identity();
    }
    if (identity && k.node().rows() == (FromLeft ? x.rows() : x.cols())) {
        x.scale(Scalar(k.node().alpha()));
    } else if constexpr (FromLeft) {
        x.multiply_left(k);
    } else {
        x.multiply_right(k);
    }
    return x;
}

/// X * T, or T * X, as a sum of its terms. The factors of a product of operators follow one another, each on the value of the one before.
template <bool FromLeft, class Scalar, class TreeScalar>
distributed_sum<Scalar> multiply_by_tree(const distributed_product<Scalar>& x, const operator_tree<TreeScalar>& tree) {
    if (tree.kind == tree_kind::kron) {
        return distributed_sum<Scalar>(multiply_by_kron<FromLeft>(x, kron_term<TreeScalar>{tree.kron}));
    }
    const std::size_t count = tree.parts.size();
    const auto part = [&](std::size_t i) -> const operator_tree<TreeScalar>& {
        return tree.parts[FromLeft && tree.kind == tree_kind::product ? count - 1 - i : i];
    };
    distributed_sum<Scalar> result = multiply_by_tree<FromLeft>(x, part(0));
    for (std::size_t i = 1; i < count; ++i) {
        if (tree.kind == tree_kind::product) {
            result = multiply_by_tree<FromLeft>(evaluated_over_ranks(result), part(i));
        } else {
            result.append(multiply_by_tree<FromLeft>(x, part(i)), Scalar(1));
        }
    }
    return result;
}

/// X * S, or S * X, term by term.
template <bool FromLeft, class Scalar, class Sum>
distributed_sum<Scalar> multiply_over_ranks(const distributed_product<Scalar>& x, const Sum& s) {
    static_assert(fits_scalar<Sum, Scalar>,
                  "otimes: dX * (K1 + K2): the factors have another scalar type than the DistributedMatrix.");
    if constexpr (host_sum<Sum>) {
        return multiply_by_tree<FromLeft>(x, s.tree());
    } else {
        distributed_sum<Scalar> result(multiply_by_kron<FromLeft>(x, s.terms().front()));
        for (std::size_t i = 1; i < s.terms().size(); ++i) {
            result.append(distributed_sum<Scalar>(multiply_by_kron<FromLeft>(x, s.terms()[i])), Scalar(1));
        }
        return result;
    }
}
}  // namespace device

/// Copies the factors of a sum of krons of host matrices to every rank of this process, one that several terms have once. Later changes of
/// the matrices are not seen. @throws unsupported_error a term that is a product of operators
template <class Sum>
requires device::host_sum<Sum>
[[nodiscard]] replicated_sum<typename Sum::Scalar> replicate(const communicator& ranks, const Sum& s) {
    using scalar = typename Sum::Scalar;
    const std::span<const operator_tree<scalar>> parts = device::terms_of(s.tree());
    detail::or_refuse(ranks, [&] {  // all of them, before anything is copied
        for (const operator_tree<scalar>& part : parts) {
            if (part.kind != tree_kind::kron) {
                throw unsupported_error("otimes: replicate(ranks, S): a term of S is " + part.name() +
                                        ". Replicate each of them and multiply one after the other, dX * R1 * R2.");
            }
        }
    });
    std::vector<replicated_kron<scalar>> terms;
    std::vector<typename replicated_kron<scalar>::copied_factor> known;
    for (const operator_tree<scalar>& part : parts) {
        terms.emplace_back(ranks, part.kron, known);
    }
    return replicated_sum<scalar>(std::move(terms));
}

/// @name Sums of matrices and products over ranks, and their multiples.
/// @{
template <class First, class Second>
requires device::distributed_summands<First, Second>
[[nodiscard]] auto operator+(const First& a, const Second& b) { return device::sum_over_ranks(a, b, 1); }
template <class First, class Second>
requires device::distributed_summands<First, Second>
[[nodiscard]] auto operator-(const First& a, const Second& b) { return device::sum_over_ranks(a, b, -1); }
template <class Scalar>
[[nodiscard]] distributed_sum<Scalar> operator-(distributed_sum<Scalar> s) {
    s.scale(Scalar(-1));
    return s;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_sum<Scalar> operator*(distributed_sum<Scalar> s, const Amount& amount) {
    s.scale(device::scalar_from<Scalar>(amount));
    return s;
}
template <class Amount, class Scalar>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_sum<Scalar> operator*(const Amount& amount, distributed_sum<Scalar> s) {
    return std::move(s) * amount;
}
template <class Scalar, class Amount>
requires device::amount<Amount, Scalar>
[[nodiscard]] distributed_sum<Scalar> operator/(distributed_sum<Scalar> s, const Amount& amount) {
    s.scale(Scalar(1) / device::scalar_from<Scalar>(amount));
    return s;
}
/// @}

/// @name dX * (K1 + K2), (K1 + K2) * dX, dX *= K1 + K2; also of a product over ranks. A sum as the X of a product, `(dX * K1 + dZ) * K2`, is
/// evaluated where the product is written.
/// @{
template <class Matrix, class Sum>
requires(device::distributed_factor_or_x<Matrix>&& device::any_kron_sum<Sum>) [[nodiscard]] auto operator*(
    const Matrix& x, const Sum& s) {
    return device::multiply_over_ranks<false>(device::to_distributed_product(x), s);
}
template <class Sum, class Matrix>
requires(device::distributed_factor_or_x<Matrix>&& device::any_kron_sum<Sum>) [[nodiscard]] auto operator*(
    const Sum& s, const Matrix& x) {
    return device::multiply_over_ranks<true>(device::to_distributed_product(x), s);
}
template <class Scalar, class Operator>
requires(device::any_kron<Operator> || device::any_kron_sum<Operator>) [[nodiscard]] auto operator*(
    const distributed_sum<Scalar>& x, const Operator& k) {
    return device::evaluated_over_ranks(x) * k;
}
template <class Operator, class Scalar>
requires(device::any_kron<Operator> || device::any_kron_sum<Operator>) [[nodiscard]] auto operator*(
    const Operator& k, const distributed_sum<Scalar>& x) {
    return k * device::evaluated_over_ranks(x);
}
template <class Scalar, class Sum>
requires device::any_kron_sum<Sum> DistributedMatrix<Scalar>
&operator*=(DistributedMatrix<Scalar>& x, const Sum& s) { return x = x * s; }
/// @}

/// @name Do not compile.
/// @{
namespace device {
/// Of two operands the one over ranks.
template <class First, class Second>
using distributed_of = std::conditional_t<is_distributed<First>, First, Second>;
template <class First, class Second>
concept no_distributed_summands = (is_distributed<First> ||
                                   is_distributed<Second>)&&!distributed_summands<First, Second>;
template <class One, class Other>
concept no_factor_of =
    is_distributed<One> && !any_kron<Other> && !any_kron_sum<Other> && !amount<Other, typename One::Scalar>;
template <class First, class Second>
concept no_distributed_product = no_factor_of<First, Second> || no_factor_of<Second, First>;
template <class First, class Second>
concept replicated_summands = (is_replicated<First> || is_replicated_sum<First>)&&(is_replicated<Second> ||
                                                                                   is_replicated_sum<Second>);

template <class First, class Second>
distributed_of<First, Second> one_of(const First& first, const Second& second) {
    if constexpr (is_distributed<First>) {
        return first;
    } else {
        return second;
    }
}
}  // namespace device

template <class First, class Second>
requires device::no_distributed_summands<First, Second>
auto operator+(const First& first, const Second& second) {
    static_assert(device::always_false<First>,
                  "otimes: a DistributedMatrix plus or minus what is none. Its summands are other DistributedMatrix of "
                  "the same scalar type and their products; bring a host matrix to the ranks by from_host().");
    return device::one_of(first, second);
}
template <class First, class Second>
requires device::no_distributed_summands<First, Second>
auto operator-(const First& first, const Second& second) { return first + second; }
template <class First, class Second>
requires device::no_distributed_product<First, Second>
auto operator*(const First& first, const Second& second) {
    static_assert(device::always_false<First>,
                  "otimes: a DistributedMatrix is multiplied by Kronecker products, by sums of them and by numbers. "
                  "Write a matrix as kron(M).");
    return device::one_of(first, second);
}
template <class First, class Second>
requires device::replicated_summands<First, Second> First operator+(const First& first, const Second&) {
    static_assert(device::always_false<First>,
                  "otimes: the sum of replicated Kronecker products. Replicate the sum, replicate(ranks, K1 + K2), or "
                  "add the products, dX * R1 + dX * R2.");
    return first;
}
template <class First, class Second>
requires device::replicated_summands<First, Second> First operator-(const First& first, const Second& second) {
    return first + second;
}
/// @}

/// The plan of an assignment `Y = sum` with a free distribution of Y. Collective.
template <class Scalar>
[[nodiscard]] distributed_plan make_plan(const distributed_sum<Scalar>& value, const options& wishes) {
    return *detail::agree_on_terms<Scalar>(value.terms(), false, nullptr, wishes, {}).plan;
}
template <class Scalar>
[[nodiscard]] distributed_plan make_plan(const distributed_sum<Scalar>& value) {
    return make_plan(value, value.terms().front().x().ranks().wishes());
}
/// Those plans in words. Collective.
template <class Scalar>
[[nodiscard]] std::string explain(const distributed_sum<Scalar>& value) {
    return explain(make_plan(value));
}
template <class Scalar>
[[nodiscard]] std::string explain(const distributed_sum<Scalar>& value, const options& wishes) {
    return explain(make_plan(value, wishes));
}

}  // namespace otimes

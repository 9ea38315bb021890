// SPDX-License-Identifier: MIT
/// @file misuse.hpp
/// What has no meaning beside a Kronecker product, or would need all of its entries, by a sentence instead of a list of Eigen's operators: one
/// overload for each operator and function, for arguments that no other one takes.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <Eigen/Core>

#include <otimes/adapt/eigen/applied_sums.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/eigen/operators.hpp>
#include <otimes/adapt/eigen/row_products.hpp>
#include <otimes/adapt/eigen/selected.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/adapt/eigen/vec.hpp>
#include <otimes/expr/batch_operand.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/identity.hpp>
#include <otimes/plan/plan.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class Derived>
std::true_type probe_array(const Eigen::ArrayBase<Derived>*);
std::false_type probe_array(...);
template <class Derived>
std::true_type probe_eigen(const Eigen::EigenBase<Derived>*);
template <class Matrix, bool ByRows>
std::false_type probe_eigen(const vec_expr<Matrix, ByRows>*);
std::false_type probe_eigen(...);

template <class Type>
concept array_like = std::is_class_v<bare<Type>> && decltype(probe_array(static_cast<bare<Type>*>(nullptr)))::value;
/// Any matrix, array or expression of Eigen's kind, operators and lazy nodes included, stacked matrices not.
template <class Type>
concept any_eigen = std::is_class_v<bare<Type>> && decltype(probe_eigen(static_cast<bare<Type>*>(nullptr)))::value;
template <class Type>
concept number = std::is_arithmetic_v<bare<Type>> || detail::is_complex_scalar<bare<Type>>;
/// A number that does not scale that expression.
template <class Type, class Expression>
concept other_number = number<Type> && !amount<Type, typename bare<Expression>::Scalar>;
template <class Type>
concept operator_or_product = any_operator<Type> || lazy_node<Type>;

/// Eigen's matrices with structure, and arrays.
template <class Type>
concept other_eigen = any_eigen<Type> && !dense<Type> && !any_operator<Type>;

/// What is wrong with a product, a sum, a quotient.
enum class flaw { none, array, dense, factor, identity, list, number, operand, shift, stacked };

/// What keeps `One` from being multiplied with `Other`, in either order.
template <class One, class Other>
constexpr flaw flaw_beside() {
    constexpr bool identity = detail::identity_like<Other>;
    if constexpr (is_structured<One>) {
        return number<Other> || is_structured<Other> || identity || other_eigen<Other> ? flaw::factor : flaw::none;
    } else if constexpr (detail::identity_like<One>) {
        return identity || other_eigen<Other> ? flaw::identity : flaw::none;
    } else if constexpr (operator_or_product<One>) {
        return array_like<Other>                                                                   ? flaw::array
               : other_number<Other, One>                                                          ? flaw::number
               : any_operator<One> && detail::is_factor_range<Other> && !any_device_operand<Other> ? flaw::list
                                                                                                   : flaw::none;
    } else {
        return flaw::none;
    }
}
template <class First, class Second>
constexpr flaw flaw_of_product() {
    if constexpr ((is_stacked<First> && (any_eigen<Second> || is_stacked<Second>)) ||
                  (is_stacked<Second> && dense<First>)) {
        return flaw::stacked;
    } else {
        return flaw_beside<First, Second>() != flaw::none ? flaw_beside<First, Second>() : flaw_beside<Second, First>();
    }
}

/// What keeps `Other` from being added to `One`, in either order.
template <class One, class Other>
constexpr flaw flaw_added() {
    if constexpr (any_operator<One>) {
        if constexpr (shift_like<Other>) {
            return shifts<Other, typename One::Scalar> ? flaw::none : flaw::shift;
        } else {
            return number<Other>                       ? flaw::number
                   : is_structured<Other>              ? flaw::factor
                   : dense<Other> || array_like<Other> ? flaw::dense
                                                       : flaw::none;
        }
    } else if constexpr (detail::identity_like<One>) {
        return number<Other> || detail::identity_like<Other> || (any_eigen<Other> && !any_operator<Other>)
                   ? flaw::identity
                   : flaw::none;
    } else if constexpr (lazy_node<One>) {
        return array_like<Other> ? flaw::array : number<Other> ? flaw::operand : flaw::none;
    } else {
        return flaw::none;
    }
}
template <class First, class Second>
constexpr flaw flaw_of_sum() {
    return flaw_added<First, Second>() != flaw::none ? flaw_added<First, Second>() : flaw_added<Second, First>();
}

template <class First, class Second>
constexpr flaw flaw_of_quotient() {
    if constexpr (any_operator<Second>) {
        return any_eigen<First> || number<First> ? flaw::operand : flaw::none;
    } else if constexpr (operator_or_product<First>) {
        return any_eigen<Second> || other_number<Second, First> ? (any_operator<First> ? flaw::dense : flaw::array)
                                                                : flaw::none;
    } else {
        return lazy_node<Second> && (any_eigen<First> || number<First>) ? flaw::array : flaw::none;
    }
}

template <class Type>
concept has_scalar = requires {
    typename bare<Type>::Scalar;
    requires number<typename bare<Type>::Scalar>;
};
template <class First, class Second>
struct scalar_of_refused {
    using type = double;
};
template <has_scalar First, class Second>
struct scalar_of_refused<First, Second> {
    using type = typename bare<First>::Scalar;
};
template <class First, has_scalar Second>
requires(!has_scalar<First>) struct scalar_of_refused<First, Second> {
    using type = typename bare<Second>::Scalar;
};
/// The type of a refused expression, with which the sentence is the only error; none for what is not refused: a constraint would do as
/// well, but some compilers form the type of the function first.
template <flaw Flaw, class First, class Second>
struct refused {
    using type = Eigen::Matrix<typename scalar_of_refused<First, Second>::type, Eigen::Dynamic, Eigen::Dynamic>;
};
template <class First, class Second>
struct refused<flaw::none, First, Second> {};

/// An operator on the left of an assignment that it does not take.
template <class Operator, class Other>
concept changed_in_place =
    any_operator<Operator> && !(is_sum<Operator> && added_in_place<typename Operator::Scalar, const Other&>);

template <flaw Flaw>
constexpr void refuse_product() {
    static_assert(
        Flaw != flaw::array,
        "otimes: an array of Eigen multiplies entry by entry, which a Kronecker product does not. Write R.matrix() "
        "* K for the product of matrices, (X * K).array() * R for that of entries.");
    static_assert(
        Flaw != flaw::factor,
        "otimes: toeplitz(), low_rank(), .. make factors of a Kronecker product. Write kron(toeplitz(c, r)) for one "
        "that stands alone.");
    static_assert(
        Flaw != flaw::identity,
        "otimes: otimes::identity(n) is a factor of kron() and multiplies dense matrices, Kronecker products and "
        "numbers. Beside a sparse, diagonal or permutation matrix leave it out.");
    static_assert(
        Flaw != flaw::list,
        "otimes: a list of matrices beside a Kronecker product is a batch: otimes::batched(list) * kron(A, B) "
        "(otimes/batched.hpp). A list of factors goes into kron(list).");
    static_assert(
        Flaw != flaw::number,
        "otimes: a number of another scalar type: real Kronecker products take real numbers and complex ones of "
        "their precision, those of integers no fraction. Convert the number, or the factors with .cast<Scalar>().");
    static_assert(
        Flaw != flaw::stacked,
        "otimes: vec(X) is a column and stands on the right of a Kronecker product: K * vec(X). For anything else "
        "make it a vector: vec(X).toVector().");
}
template <flaw Flaw>
constexpr void refuse_sum() {
    static_assert(Flaw != flaw::array,
                  "otimes: a product with a Kronecker product is a matrix, not an array. Write (X * K).array() + R, or "
                  "X * K + R.matrix().");
    static_assert(Flaw != flaw::dense,
                  "otimes: a Kronecker product plus or minus a dense matrix would need all entries of the product. "
                  "Write K.toDenseMatrix() + M if that is meant, or apply both: X * K + X * M.");
    static_assert(
        Flaw != flaw::factor,
        "otimes: toeplitz(), low_rank(), .. make factors of a Kronecker product. Write K + kron(toeplitz(c, r)).");
    static_assert(
        Flaw != flaw::identity,
        "otimes: otimes::identity() is added to Kronecker products and their sums. Beside a matrix write Eigen's: "
        "X + s * Eigen::MatrixXd::Identity(n, n).");
    static_assert(
        Flaw != flaw::number,
        "otimes: a number is added to no Kronecker product. Write K + s * otimes::identity() to add it to the "
        "diagonal, or K.toDenseMatrix().array() + s to add it to each entry.");
    static_assert(Flaw != flaw::operand,
                  "otimes: a number is added to no matrix. Write (X * K).array() + s to add it to each entry.");
    static_assert(
        Flaw != flaw::shift,
        "otimes: K + s * identity(): s is of another scalar type than K, or a fraction beside integers. Convert "
        "s, or the factors with .cast<Scalar>().");
}

template <flaw Flaw>
constexpr void refuse_quotient() {
    static_assert(
        Flaw != flaw::operand,
        "otimes: nothing is divided by a Kronecker product. Include <otimes/algebra.hpp> and write K.solve(B) for "
        "the X of K * X = B, K.transpose().solve(B.transpose()).transpose() for that of X * K = B.");
    static_assert(
        Flaw != flaw::dense,
        "otimes: a Kronecker product is divided by a number of its scalar type and by nothing else. For the X of K "
        "* X = B include <otimes/algebra.hpp> and write K.solve(B).");
    static_assert(
        Flaw != flaw::array,
        "otimes: a product is divided by a number of its scalar type and by nothing else. Entry by entry: (X * "
        "K).array() / R.");
}

/// What is planned is a lazy expression, not an operator or a matrix alone.
template <class First, class... Rest>
inline constexpr bool has_no_plan = any_operator<First> || is_stacked<First> || (any_eigen<First> && !lazy_node<First>);
template <class First, class Second, class... Rest>
inline constexpr bool has_no_plan<First, Second, Rest...> = any_operator<First> || is_stacked<First> ||
                                                            (any_eigen<First> && !lazy_node<First> &&
                                                             !lazy_node<Second>);

template <class... Refused>
constexpr void refuse_plan() {
    static_assert(
        (is_stacked<Refused> || ...) || always_false<Refused...>,
        "otimes: explain and make_plan take a product with an operand, such as explain(X * K) or make_plan(Y, X "
        "* K): the plan depends on the shape and the storage of X.");
    static_assert(
        !(is_stacked<Refused> || ...),
        "otimes: what is stacked is planned as the product of matrices that it is: explain((K * vec(X)).matrix()), "
        "make_plan(Y, (K * vec(X)).matrix()).");
}

}  // namespace eigen

/// @name Operators.
/// @{
template <class First, class Second>
typename eigen::refused<eigen::flaw_of_product<First, Second>(), First, Second>::type operator*(const First&,
                                                                                                const Second&) {
    eigen::refuse_product<eigen::flaw_of_product<First, Second>()>();
    return {};
}
template <class First, class Second>
typename eigen::refused<eigen::flaw_of_sum<First, Second>(), First, Second>::type operator+(const First&,
                                                                                            const Second&) {
    eigen::refuse_sum<eigen::flaw_of_sum<First, Second>()>();
    return {};
}
template <class First, class Second>
typename eigen::refused<eigen::flaw_of_sum<First, Second>(), First, Second>::type operator-(const First&,
                                                                                            const Second&) {
    eigen::refuse_sum<eigen::flaw_of_sum<First, Second>()>();
    return {};
}
template <class First, class Second>
typename eigen::refused<eigen::flaw_of_quotient<First, Second>(), First, Second>::type operator/(const First&,
                                                                                                 const Second&) {
    eigen::refuse_quotient<eigen::flaw_of_quotient<First, Second>()>();
    return {};
}
/// @}

/// @name Assignments to an operator, and of one.
/// @{
namespace eigen {
template <class Operator, class Other>
constexpr void refuse_in_place() {
    static_assert(
        is_sum<Operator> || always_false<Other>,
        "otimes: a Kronecker product is a value that is not changed in place. Write K = 2.0 * K; a sum or product "
        "of two has a type of its own: auto S = K + K2, or otimes::sum_expr<double> S = K; S += K2.");
    static_assert(
        !is_sum<Operator> || always_false<Other>,
        "otimes: a sum of Kronecker products takes += and -= of Kronecker products, sums, s * identity(), diagonal "
        "and sparse matrices of its scalar type. Otherwise write S = 2.0 * S; for a dense M, S.toDenseMatrix() + "
        "M.");
}
}  // namespace eigen
template <class Operator, class Other>
requires eigen::changed_in_place<Operator, Other>
void operator+=(const Operator&, const Other&) { eigen::refuse_in_place<Operator, Other>(); }
template <class Operator, class Other>
requires eigen::changed_in_place<Operator, Other>
void operator-=(const Operator&, const Other&) { eigen::refuse_in_place<Operator, Other>(); }
template <class Operator, class Other>
requires eigen::any_operator<Operator>
void operator*=(const Operator&, const Other&) { eigen::refuse_in_place<Operator, Other>(); }
template <class Operator, class Other>
requires eigen::any_operator<Operator>
void operator/=(const Operator&, const Other&) { eigen::refuse_in_place<Operator, Other>(); }
/// X /= K
template <class Matrix, class Operator>
requires(eigen::any_operator<Operator> && (eigen::dense<Matrix> || eigen::array_like<Matrix>)) void operator/=(
    const Matrix& x, const Operator& k) {
    x / k;
}
/// Y.noalias() += K; `=` is refused by operator_base.hpp.
template <class Matrix, class Operator>
requires eigen::any_operator<Operator>
void operator+=(const Eigen::NoAlias<Matrix, Eigen::MatrixBase>&, const Operator&) {
    static_cast<void>(sizeof(eigen::refuse_noalias<Matrix>));
}
template <class Matrix, class Operator>
requires eigen::any_operator<Operator>
void operator-=(const Eigen::NoAlias<Matrix, Eigen::MatrixBase>&, const Operator&) {
    static_cast<void>(sizeof(eigen::refuse_noalias<Matrix>));
}

/// Y << K, as Eigen fills a matrix.
template <class Matrix, class Operator>
requires eigen::any_operator<Operator>
void operator<<(Eigen::DenseBase<Matrix>&, const Operator&) {
    static_cast<void>(sizeof(eigen::refuse_ref<Eigen::Matrix<typename Operator::Scalar, 1, 1>>));
}
/// @}

/// @name Functions, with arguments of another kind or in another order.
/// @{
template <class First, class... Rest>
requires eigen::has_no_plan<First, Rest...> std::string explain(const First&, const Rest&...) {
    eigen::refuse_plan<First, Rest...>();
    return {};
}
template <class First, class... Rest>
requires eigen::has_no_plan<First, Rest...> plan make_plan(const First&, const Rest&...) {
    eigen::refuse_plan<First, Rest...>();
    return {};
}

/// Arguments of plan::run that are none, or in another order.
template <class Destination, class Other>
requires(!eigen::lazy_node<Other> &&
         !any_device_operand<Destination, Other>) void run_bound_plan(const plan&, Destination&, const Other&, void*,
                                                                      std::int64_t) {
    static_assert(eigen::is_stacked<Other> || eigen::always_false<Other>,
                  "otimes: plan::run(Y, X * K): the destination comes first, then an expression like the planned one.");
    static_assert(
        !eigen::is_stacked<Other>,
        "otimes: plan::run(Y, K * vec(X)): what is stacked is run as the product of matrices that it is, into "
        "a matrix: p.run(Y, (K * vec(X)).matrix()).");
}

template <class... Arguments>
requires(eigen::any_operator<Arguments> || ...) double dot(const Arguments&...) {
    static_assert(eigen::always_false<Arguments...>,
                  "otimes: dot(x, y) is of two matrices or products: dot(x, K * y) for x^H K y.");
    return 0;
}
template <class First, class Second>
requires(eigen::any_operator<First> ||
         (eigen::dense<First> && eigen::dense<Second>)) double quadratic_trace(const First&, const Second&) {
    static_assert(
        eigen::always_false<First, Second>,
        "otimes: quadratic_trace(X, K), the trace of X^H K X: a matrix and a Kronecker product, in that order.");
    return 0;
}

namespace eigen {
template <class... Arguments>
concept refused_columns =
    !any_device_operand<Arguments...> && !any_batch_operand<Arguments...> && !(dense<Arguments> && ...) &&
    !(sizeof...(Arguments) == 1 && (dense_list<Arguments> && ...)) &&
    ((any_eigen<Arguments> || detail::is_factor_range<Arguments>) || ...);
template <class... Arguments>
row_product_expr<double> refuse_columns() {
    static_assert(always_false<Arguments...>,
                  "otimes: khatri_rao and face_split take dense matrices, each as an argument of its own or in one "
                  "list. Evaluate others first: K.toDenseMatrix(), R.matrix(), Eigen::MatrixXd(S).");
    return {{}, false};
}
}  // namespace eigen
template <class... Arguments>
requires eigen::refused_columns<Arguments...>
auto khatri_rao(const Arguments&...) { return eigen::refuse_columns<Arguments...>(); }
template <class... Arguments>
requires eigen::refused_columns<Arguments...>
auto face_split(const Arguments&...) { return eigen::refuse_columns<Arguments...>(); }

namespace eigen {
template <class Type>
concept refused_stack = any_eigen<Type> && !dense<Type>;
template <class Argument>
vec_expr<Eigen::MatrixXd, false> refuse_stack() {
    static_assert(
        always_false<Argument>,
        "otimes: vec() and vec_r() stack a dense matrix. Evaluate others first: K.toDenseMatrix(), R.matrix().");
    return vec_expr<Eigen::MatrixXd, false>({});
}
template <class... Arguments>
inline constexpr bool is_unstacking = false;
template <class Vector, class Rows, class Cols>
inline constexpr bool is_unstacking<Vector, Rows, Cols> =
    (dense<Vector> ||
     is_stacked<Vector>)&&std::is_convertible_v<Rows, std::int64_t>&& std::is_convertible_v<Cols, std::int64_t>;
template <class... Arguments>
concept refused_unstacking = !any_device_operand<Arguments...> && !is_unstacking<Arguments...> &&
                             ((any_eigen<Arguments> || is_stacked<Arguments>) || ...);
template <class... Arguments>
Eigen::MatrixXd refuse_unstacking() {
    static_assert(
        always_false<Arguments...>,
        "otimes: unvec(y, rows, cols): a vector, then the rows and columns of the matrix. vec(X) of a matrix is "
        "undone by X itself.");
    return {};
}
}  // namespace eigen
template <class Argument>
requires eigen::refused_stack<Argument>
auto vec(const Argument&) { return eigen::refuse_stack<Argument>(); }
template <class Argument>
requires eigen::refused_stack<Argument>
auto vec_r(const Argument&) { return eigen::refuse_stack<Argument>(); }
template <class... Arguments>
requires eigen::refused_unstacking<Arguments...>
auto unvec(const Arguments&...) { return eigen::refuse_unstacking<Arguments...>(); }
template <class... Arguments>
requires eigen::refused_unstacking<Arguments...>
auto unvec_r(const Arguments&...) { return eigen::refuse_unstacking<Arguments...>(); }
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

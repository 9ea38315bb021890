// SPDX-License-Identifier: MIT
// What the tests of the front end share: matrices of every kind, the oracle's kron of Eigen matrices, and an executor that
// counts what it is asked to run.
#pragma once

#include <atomic>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "support/compare.hpp"
#include "support/once.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace adapt {

using Eigen::Index;

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
template <class Scalar>
using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
template <class Scalar>
using row_vector = Eigen::Matrix<Scalar, 1, Eigen::Dynamic>;

template <class Scalar>
using real_of = support::real_t<Scalar>;

using matrix_d = matrix<double>;
using row_major_d = row_major<double>;
using vector_d = vector<double>;
using row_vector_d = row_vector<double>;

// A matrix of signed unequal numbers; every seed gives another one.
template <class Matrix = matrix_d>
Matrix random(Index rows, Index cols, std::uint64_t seed) {
    return support::random_matrix<Matrix>(rows, cols, seed);
}
template <class Matrix = matrix_d>
Matrix poisoned(Index rows, Index cols) {
    return support::poisoned_matrix<Matrix>(rows, cols);
}

// The oracle's copy, in Wide.
template <class Wide, class Matrix>
oracle::dense<Wide> widened(const Matrix& m) {
    auto copy = oracle::from(m);
    if constexpr (std::is_same_v<decltype(copy), oracle::dense<Wide>>) {
        return copy;
    } else {
        return oracle::to_complex(copy);
    }
}

template <class... Matrices>
inline constexpr bool any_complex = (support::is_complex<support::scalar_of<Matrices>> || ...);
template <class... Matrices>
using wide_of = std::conditional_t<any_complex<Matrices...>, std::complex<long double>, long double>;

// kron(factors...) formed entry by entry by the oracle.
template <class... Matrices>
auto dense_kron(const Matrices&... factors) {
    using wide = wide_of<Matrices...>;
    return oracle::kron(std::vector<oracle::dense<wide>>{widened<wide>(factors)...});
}

// The product of oracle matrices and matrices, left to right.
template <class Matrix>
auto as_oracle(const Matrix& m) {
    return oracle::from(m);
}
template <class Wide>
const oracle::dense<Wide>& as_oracle(const oracle::dense<Wide>& m) {
    return m;
}
template <class First, class Second>
auto times(const First& a, const Second& b) {
    return oracle::multiply(as_oracle(a), as_oracle(b));
}
template <class First, class Second>
auto plus(const First& a, const Second& b) {
    return oracle::add(as_oracle(a), as_oracle(b));
}
template <class Factor, class Matrix>
auto scaled(Factor factor, const Matrix& a) {
    return oracle::scale(factor, as_oracle(a));
}

// Expressions of Eigen alone, with nothing of the library in them.
template <class Type>
inline constexpr bool of_eigen = false;
template <class Type>
inline constexpr bool of_eigen<const Type> = of_eigen<Type>;
template <class Scalar, int rows, int cols, int options, int max_rows, int max_cols>
inline constexpr bool of_eigen<Eigen::Matrix<Scalar, rows, cols, options, max_rows, max_cols>> = true;
template <class Matrix, int options, class Stride>
inline constexpr bool of_eigen<Eigen::Map<Matrix, options, Stride>> = true;
template <class Matrix, int rows, int cols, bool inner>
inline constexpr bool of_eigen<Eigen::Block<Matrix, rows, cols, inner>> = of_eigen<Matrix>;
template <class Matrix>
inline constexpr bool of_eigen<Eigen::Transpose<Matrix>> = of_eigen<Matrix>;
template <class Matrix, class Rows, class Cols>
inline constexpr bool of_eigen<Eigen::IndexedView<Matrix, Rows, Cols>> = of_eigen<Matrix>;
template <class Operation, class Matrix>
inline constexpr bool of_eigen<Eigen::CwiseNullaryOp<Operation, Matrix>> = true;
template <class Operation, class Matrix>
inline constexpr bool of_eigen<Eigen::CwiseUnaryOp<Operation, Matrix>> = of_eigen<Matrix>;
template <class Operation, class First, class Second>
inline constexpr bool of_eigen<Eigen::CwiseBinaryOp<Operation, First, Second>> = of_eigen<First>&& of_eigen<Second>;
// What stands on the left of a matrix as it is: diagonal matrices and permutations.
template <class Type>
inline constexpr bool of_one_entry_a_row = false;
template <class Vector>
inline constexpr bool of_one_entry_a_row<Eigen::DiagonalWrapper<Vector>> = of_eigen<Vector>;
template <int rows, int max_rows, class Number>
inline constexpr bool of_one_entry_a_row<Eigen::PermutationMatrix<rows, max_rows, Number>> = true;
template <class Permutation>
inline constexpr bool of_one_entry_a_row<Eigen::Inverse<Permutation>> = of_one_entry_a_row<Permutation>;
template <class First, class Second, int option>
inline constexpr bool of_eigen<Eigen::Product<First, Second, option>> = (of_eigen<First> ||
                                                                         of_one_entry_a_row<First>)&&of_eigen<Second>;

template <class Scalar>
matrix<Scalar> product_of(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    return a * b;
}
template <class Scalar>
matrix<Scalar> sum_of(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    return a + b;
}
template <class Scalar>
matrix<Scalar> difference_of(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    return a - b;
}
// The matrix that an expression is. Products, sums and differences that are Eigen's alone are formed one by one, of matrices: each kind
// of product that a check spells out costs the compiler up to a second.
template <class Scalar>
struct evaluated_as {
    template <class Expression>
    static matrix<Scalar> of(const Expression& e) {
        if constexpr (std::is_same_v<typename Expression::Scalar, Scalar>) {
            return matrix<Scalar>(e);
        } else {
            return evaluated_as<typename Expression::Scalar>::of(e).template cast<Scalar>();
        }
    }
    static const matrix<Scalar>& of(const matrix<Scalar>& m) { return m; }
    template <class First, class Second>
    requires(of_eigen<First>&& of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::Product<First, Second, Eigen::DefaultProduct>& e) {
        return product_of<Scalar>(of(e.lhs()), of(e.rhs()));
    }
    template <class First, class Second, int option>
    requires(of_one_entry_a_row<First>&& of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::Product<First, Second, option>& e) {
        return e.lhs() * of(e.rhs());
    }
    template <class Second>
    requires(of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::CwiseUnaryOp<Eigen::internal::scalar_opposite_op<Scalar>, Second>& e) {
        return -of(e.nestedExpression());
    }
    template <class First, class Second, class Left, class Right>
    requires(of_eigen<First>&& of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::CwiseBinaryOp<Eigen::internal::scalar_sum_op<Left, Right>, First, Second>& e) {
        return sum_of<Scalar>(of(e.lhs()), of(e.rhs()));
    }
    template <class First, class Second, class Left, class Right>
    requires(of_eigen<First>&& of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::CwiseBinaryOp<Eigen::internal::scalar_difference_op<Left, Right>, First, Second>& e) {
        return difference_of<Scalar>(of(e.lhs()), of(e.rhs()));
    }
    // A multiple: the constant is the first of the two.
    template <class Left, class Right, class Nullary, class Second>
    requires(of_eigen<Second>) static matrix<Scalar> of(
        const Eigen::CwiseBinaryOp<Eigen::internal::scalar_product_op<Left, Right>,
                                   const Eigen::CwiseNullaryOp<Eigen::internal::scalar_constant_op<Left>, Nullary>,
                                   Second>& e) {
        return e.lhs().functor()() * matrix<Scalar>(of(e.rhs()));
    }
};
template <class Expression>
auto evaluated(const Expression& e) {
    return matrix<typename Expression::Scalar>(evaluated_as<typename Expression::Scalar>::of(e));
}

template <class Scalar>
real_of<Scalar> distance_of(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    return (a - b).norm();
}
// |a - b|, of what the expressions a and b are as matrices.
template <class First, class Second>
auto distance(const First& a, const Second& b) {
    using scalar = std::conditional_t<support::is_complex<typename First::Scalar>, typename First::Scalar,
                                      typename Second::Scalar>;
    return distance_of<scalar>(evaluated_as<scalar>::of(a), evaluated_as<scalar>::of(b));
}

// Forwards to the cpu executor and counts.
class counting_executor final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "counting"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view workspace) const override {
        ++runs_;
        otimes::cpu().run(p, b, workspace);
    }
    [[nodiscard]] int runs() const { return runs_.load(); }
    void reset() const { runs_ = 0; }

private:
    mutable std::atomic<int> runs_{0};
};

}  // namespace adapt

// SPDX-License-Identifier: MIT
/// @file operator_base.hpp
/// What krons, their sums, selections of them, row-wise products and operators with matrices beside a kron have in common inside Eigen: they are no matrices, and say so where
/// Eigen, or its user, takes them for one.
#pragma once

#include <type_traits>

#include <Eigen/Core>

#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/scalar.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// Instantiated by the overload resolution of `Y.noalias() = K`: no function of otimes is asked there before Eigen refuses.
template <class Matrix>
struct refuse_noalias {
    static_assert(always_false<Matrix>,
                  "otimes: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix() to form "
                  "it, or multiply it with a matrix: Y.noalias() = X * K.");
    using type = Matrix;
};

/// The same of a function that takes an Eigen::Ref. Eigen's solvers ask whether an operator converts to a Ref of itself: it does not.
template <class Matrix, bool = dense<Matrix>>
struct refuse_ref {};
template <class Matrix>
struct refuse_ref<Matrix, true> {
    static_assert(always_false<Matrix>,
                  "otimes: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix() to form "
                  "it, or multiply it with a matrix.");
    using type = Matrix;
};

/// What `K.solve(B)` takes for B.
template <class Rhs, class Scalar>
constexpr bool may_solve_for() {
    static_assert(
        dense<Rhs> || is_device_operand<Rhs>,
        "otimes: K.solve(B): B is a matrix or a vector. For a Kronecker product B write K.inverse() * B, for a "
        "stacked matrix K.solve(vec(X).toVector()), for an array K.solve(R.matrix()).");
    static_assert(!std::is_integral_v<Scalar>,
                  "otimes: K.solve(B) of integers: solutions are fractions. Convert the factors and B: "
                  "kron(A.cast<double>(), B.cast<double>()).");
    if constexpr (std::is_integral_v<Scalar>) {
        return false;
    }
    if constexpr (dense<Rhs>) {
        static_assert(
            detail::scalars_mix<scalar_of<Rhs>, Scalar>,
            "otimes: K.solve(B): K and B have different scalar types. Only a real type and its own complex type "
            "mix; convert B with .cast<Scalar>().");
        return detail::scalars_mix<scalar_of<Rhs>, Scalar>;
    }
    return is_device_operand<Rhs>;
}

template <class Derived>
class operator_base : public Eigen::EigenBase<Derived> {
public:
    template <class Matrix, class = typename refuse_noalias<Matrix>::type>
    operator Eigen::NoAlias<Matrix, Eigen::MatrixBase>() const;
    template <class Matrix, int Options, class Stride, class = typename refuse_ref<Matrix>::type>
    operator Eigen::Ref<Matrix, Options, Stride>() const;

    template <class Operator = Derived>
    Eigen::Matrix<typename Operator::Scalar, Eigen::Dynamic, Eigen::Dynamic> eval() const {
        static_assert(always_false<Operator>,
                      "otimes: a Kronecker product has no eval(), which would form it. Write K.toDenseMatrix() if that "
                      "is meant; (X * K).eval() is the product with X.");
        return this->derived().toDenseMatrix();
    }

    /// @name Members of Eigen's matrices that would form the product: what to write instead.
    /// @{
#define OTIMES_NOT_A_MEMBER(name, sentence)                                                                 \
    template <class Operator = Derived, class... Arguments>                                                 \
    void name(const Arguments&...) const {                                                                  \
        static_assert(always_false<Operator>, "otimes: a Kronecker product has no " #name "(): " sentence); \
    }
#define OTIMES_DECOMPOSITION "write kron_lu(K), kron_llt(K) or kron_qr(K), or K.solve(b), of <otimes/algebra.hpp>."
#define OTIMES_SINGULAR_VALUES "write kron_svd(K) of <otimes/algebra.hpp>."
#define OTIMES_ALL_ENTRIES "it would form it. Write K.toDenseMatrix() if that is meant."
    OTIMES_NOT_A_MEMBER(lu, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(partialPivLu, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(fullPivLu, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(llt, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(ldlt, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(householderQr, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(colPivHouseholderQr, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(completeOrthogonalDecomposition, OTIMES_DECOMPOSITION)
    OTIMES_NOT_A_MEMBER(eigenvalues, "write K.eigenvalues() of a kron, kron_sum_solver(S).eigenvalues() of a sum.")
    OTIMES_NOT_A_MEMBER(jacobiSvd, OTIMES_SINGULAR_VALUES)
    OTIMES_NOT_A_MEMBER(bdcSvd, OTIMES_SINGULAR_VALUES)
    OTIMES_NOT_A_MEMBER(array, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(cwiseProduct, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(cwiseAbs, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(unaryExpr, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(rowwise, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(colwise, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(reshaped, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(sum, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(mean, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(minCoeff, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(maxCoeff, OTIMES_ALL_ENTRIES)
    OTIMES_NOT_A_MEMBER(isApprox, OTIMES_ALL_ENTRIES)
#undef OTIMES_NOT_A_MEMBER
#undef OTIMES_DECOMPOSITION
#undef OTIMES_SINGULAR_VALUES
#undef OTIMES_ALL_ENTRIES
    /// @}

    /// @name What the default preconditioners of Eigen's iterative solvers ask of a matrix.
    /// @{
    [[nodiscard]] Eigen::Index outerSize() const { return this->derived().cols(); }
    struct InnerIterator {
        template <class Operator>
        InnerIterator(const Operator&, Eigen::Index) {
            static_assert(
                always_false<Operator>,
                "otimes: the default preconditioner of Eigen's solvers reads the entries of a matrix. Name one that "
                "does "
                "not: Eigen::ConjugateGradient<decltype(K), Eigen::Lower | Eigen::Upper, "
                "Eigen::IdentityPreconditioner>, or otimes::DiagonalPreconditioner<Scalar> of <otimes/algebra.hpp>.");
        }
        explicit operator bool() const { return false; }
        InnerIterator& operator++() { return *this; }
        [[nodiscard]] Eigen::Index index() const { return 0; }
        [[nodiscard]] double value() const { return 0; }
    };
    /// @}
};

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

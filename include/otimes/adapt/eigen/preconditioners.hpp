// SPDX-License-Identifier: MIT
/// @file preconditioners.hpp
/// Preconditioners for Eigen's iterative solvers (ConjugateGradient, BiCGSTAB, GMRES, MINRES):
///
///     Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper, otimes::KronPreconditioner<double>> cg;
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Dense>

#include <otimes/adapt/eigen/decompositions.hpp>
#include <otimes/adapt/eigen/solvers.hpp>
#include <otimes/adapt/eigen/sums.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// Solves with a Kronecker product, with a sum of them that can be diagonalised, or with a product of such, part by part, as the
/// preconditioner of another operator. `set(K)` says with which; without it, with the operator itself: exactly where that is possible, and
/// else a sum with a diagonal matrix d, K + d.asDiagonal(), as K + mean(d) * identity().
template <class ScalarType>
class KronPreconditioner {
public:
    using Scalar = ScalarType;
    using StorageIndex = Eigen::Index;
    enum { ColsAtCompileTime = Eigen::Dynamic, MaxColsAtCompileTime = Eigen::Dynamic };

    KronPreconditioner() = default;
    /// As compute(op).
    template <class Operator>
    explicit KronPreconditioner(const Operator& op) {
        compute(op);
    }

    /// The operator to solve with in place of the one given to the solver. @throws shape_error, singular_error, unsupported_error
    KronPreconditioner& set(const kron_expr<Scalar>& k) {
        factorise(k);
        fixed_ = true;  // behind what may throw
        return *this;
    }
    KronPreconditioner& set(const sum_expr<Scalar>& s) {
        factorise(s);
        fixed_ = true;
        return *this;
    }

    /// @name What Eigen's solvers call: compute(op) decomposes op, if set() has named no other; costs of kron_lu or kron_sum_solver.
    /// What throws keeps what there was.
    /// @throws singular_error; unsupported_error an operator that is no kron, sum or product of krons, or one without such a solver
    /// @{
    template <class Operator>
    KronPreconditioner& analyzePattern(const Operator&) {
        return *this;
    }
    template <class Operator>
    KronPreconditioner& factorize(const Operator& op) {
        if (fixed_) {
            return *this;
        }
        if constexpr (std::is_same_v<Operator, kron_expr<Scalar>>) {
            factorise(op);
            return *this;
        } else if constexpr (std::is_convertible_v<const Operator&, sum_expr<Scalar>>) {
            try {
                factorise(sum_expr<Scalar>(op));
                return *this;
            } catch (const unsupported_error&) {  // which advises to take what this is
            }
        }
        refuse();
    }
    template <class Operator>
    KronPreconditioner& compute(const Operator& op) {
        return factorize(op);
    }

    /// @}

    /// That solver's solution for b; b itself before compute(). Cost: a solve.
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using result_type = Eigen::Matrix<Scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        if (kron_) {
            return result_type(kron_->solve(b));
        }
        if (sum_) {
            return result_type(sum_->solve(b));
        }
        result_type x(b);
        for (const KronPreconditioner& part : parts_) {
            x = part.solve(x);
        }
        return x;
    }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const { return Eigen::Success; }

private:
    [[noreturn]] static void refuse() {
        throw unsupported_error(
            "otimes: KronPreconditioner: the operator is not a Kronecker product, a sum of them that is diagonalised "
            "factor by factor, or a product of such; say by preconditioner().set(K) which one to solve with.");
    }
    void factorise(const kron_expr<Scalar>& k) {
        kron_ = std::make_shared<const kron_lu<Scalar>>(k);
        sum_.reset();
        parts_.clear();
    }
    void factorise(const sum_expr<Scalar>& s) {
        if (s.is_kron()) {
            factorise(s.as_kron());
        } else if (s.tree().kind == tree_kind::product) {
            factorise_parts(s.tree());
        } else {
            sum_ = solver_of(s);
            kron_.reset();
            parts_.clear();
        }
    }
    void factorise_parts(const operator_tree<Scalar>& product) {
        std::vector<KronPreconditioner> parts(product.parts.size());
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const operator_tree<Scalar>& part = product.parts[i];
            if (part.rows() != part.cols()) {
                refuse();
            }
            parts[i].factorise(sum_expr<Scalar>(part));
        }
        parts_ = std::move(parts);
        kron_.reset();
        sum_.reset();
    }
    static std::shared_ptr<const kron_sum_solver<Scalar>> solver_of(const sum_expr<Scalar>& s) {
        operator_tree<Scalar> near = s.tree();
        const bool differs = take_means(near);
        try {
            return std::make_shared<const kron_sum_solver<Scalar>>(s);
        } catch (const error&) {
            if (!differs) {
                throw;
            }
        }
        return std::make_shared<const kron_sum_solver<Scalar>>(sum_expr<Scalar>(std::move(near)));
    }
    /// A diagonal over the whole of the sum becomes its mean, beside what else there is. Whether there was one.
    static bool take_means(operator_tree<Scalar>& sum) {
        const auto is_one_factor = [](const operator_tree<Scalar>& part, factor_kind kind) {
            return part.kind == tree_kind::kron && part.kron.factors().size() == 1 &&
                   part.kron.factors()[0].kind() == kind;
        };
        const bool is_diagonal = std::ranges::all_of(sum.parts, [&](const operator_tree<Scalar>& part) {
            return is_one_factor(part, factor_kind::diagonal) || is_one_factor(part, factor_kind::identity);
        });
        bool found = false;
        for (operator_tree<Scalar>& part : sum.parts) {
            if (!is_diagonal && is_one_factor(part, factor_kind::diagonal)) {
                const auto order = part.rows();
                kron_node<Scalar> mean;
                mean.append(leaf::identity(order));
                mean.set_alpha(kron_expr<Scalar>(part.kron).trace() /
                               Scalar(static_cast<detail::real_of<Scalar>>(order)));
                part = operator_tree<Scalar>(std::move(mean));
                found = true;
            }
        }
        return found;
    }

    bool fixed_ = false;
    std::shared_ptr<const kron_lu<Scalar>> kron_;
    std::shared_ptr<const kron_sum_solver<Scalar>> sum_;
    std::vector<KronPreconditioner> parts_;  ///< of a product
};

/// Divides by the diagonal of a Kronecker product or of a sum of them (Eigen's DiagonalPreconditioner asks for columns, which
/// these do not have). Zeros on the diagonal count as ones, as in Eigen.
template <class ScalarType>
class DiagonalPreconditioner {
public:
    using Scalar = ScalarType;
    using StorageIndex = Eigen::Index;
    enum { ColsAtCompileTime = Eigen::Dynamic, MaxColsAtCompileTime = Eigen::Dynamic };

    DiagonalPreconditioner() = default;
    /// As compute(op).
    template <class Operator>
    explicit DiagonalPreconditioner(const Operator& op) {
        compute(op);
    }
    /// @name What Eigen's solvers call: compute(op) takes the reciprocals of op.diagonal(), O(factors) for each entry.
    /// @{
    template <class Operator>
    DiagonalPreconditioner& analyzePattern(const Operator&) {
        return *this;
    }
    template <class Operator>
    DiagonalPreconditioner& factorize(const Operator& op) {
        inverse_ = op.diagonal();
        for (Eigen::Index i = 0; i < inverse_.size(); ++i) {
            inverse_(i) = inverse_(i) == Scalar(0) ? Scalar(1) : Scalar(Scalar(1) / inverse_(i));
        }
        computed_ = true;
        return *this;
    }
    template <class Operator>
    DiagonalPreconditioner& compute(const Operator& op) {
        return factorize(op);
    }
    /// @}

    /// b divided by the diagonal, row by row; b itself before compute(). @throws shape_error other rows than the operator's
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using result_type = Eigen::Matrix<Scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        if (!computed_) {
            return result_type(b);
        }
        if (b.rows() != inverse_.size()) {
            throw shape_error("otimes: DiagonalPreconditioner of an operator of order " +
                              std::to_string(inverse_.size()) + ": the right-hand side is " +
                              detail::shape_text(b.rows(), b.cols()) + ".");
        }
        return result_type(inverse_.asDiagonal() * b);
    }
    /// Always Eigen::Success.
    [[nodiscard]] Eigen::ComputationInfo info() const { return Eigen::Success; }

private:
    bool computed_ = false;
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> inverse_;
};

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file kron_eigen.hpp
/// Eigenvalues and eigenvectors of a Kronecker product of any square factors, each the Kronecker product of its factors':
///
///     F_k V_k = V_k diag(l_k)    gives    K V = V diag(l),    V = kron(V_k),    l = alpha * kron(l_k)
///
/// What is known of factors without work, and what is refused, is as for the other decompositions (decompositions.hpp).
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/decompositions.hpp>
#include <otimes/adapt/eigen/dense_decompositions.hpp>
#include <otimes/adapt/eigen/factors.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// K V = V diag(eigenvalues), complex whatever the scalar, as of Eigen's EigenSolver. The eigenvalues are in the order of the product, not sorted;
/// columns of V have norm 1. Those of factors that are equal to their adjoints are orthonormal (kron_self_adjoint_eigen has
/// real ones); of a defective factor V is singular.
template <class ScalarType>
class kron_eigen {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;
    using Complex = typename eigen::dense_decompositions<Scalar>::complex;
    /// @throws shape_error a factor that is not square; singular_error a factor with NaN or Inf, no convergence; budget_error as kron_qr
    explicit kron_eigen(const kron_expr<Scalar>& k) {
        eigen::require_square_factors(k, "eigenvalue decomposition", "For other shapes use kron_svd.");
        eigen::require_finite_scalar(k, "eigenvalue decomposition");
        kron_node<Complex> vectors;
        std::vector<eigen::dense_vector<Complex>> values;
        int exponent = 0;
        eigen::for_each_factor(k, "eigenvalue decomposition", [&](const eigen::factor_reader<Scalar>& f) {
            const auto order = static_cast<Eigen::Index>(f.rows());
            if (f.form() == eigen::factor_form::diagonal) {
                vectors.append(leaf::identity(f.rows()));
                values.push_back(f.finite_diagonal().template cast<Complex>());
            } else if (f.form() == eigen::factor_form::identity || order == 0) {
                vectors.append(leaf::identity(f.rows()));
                values.push_back(eigen::dense_vector<Complex>::Ones(order));
            } else {
                const eigen::scaled_matrix<Scalar> m(f.finite());
                eigen::dense_vector<Complex> of_factor(order);
                eigen::dense_matrix<Complex> v(order, order);
                if (!(m.matrix == m.matrix.adjoint() ? decompose_self_adjoint(m.matrix, of_factor, v)
                                                     : decompose(m.matrix, of_factor, v))) {
                    throw singular_error("otimes: eigenvalue decomposition of " + eigen::shape_of(k) +
                                         ": no convergence.");
                }
                exponent += m.exponent;
                values.push_back(std::move(of_factor));
                vectors.append(eigen::owned_factor<Complex>(std::move(v)));
            }
        });
        vectors_ = kron_expr<Complex>(std::move(vectors));
        values_ = eigen::kron_of_vectors<Complex>(std::move(values), Complex(k.node().alpha()), -exponent);
    }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(vectors_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return rows(); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// The eigenvalues in the order of the product, entry (i1, i2, ..) the product of the factors', and the vectors' kron beside them.
    [[nodiscard]] const eigen::dense_vector<Complex>& eigenvalues() const noexcept { return values_; }
    [[nodiscard]] const kron_expr<Complex>& eigenvectors() const noexcept { return vectors_; }

private:
    static bool decompose_self_adjoint(const eigen::dense_matrix<Scalar>& m, eigen::dense_vector<Complex>& values,
                                       eigen::dense_matrix<Complex>& vectors) {
        eigen::dense_vector<RealScalar> l(m.rows());
        eigen::dense_matrix<Scalar> v(m.rows(), m.rows());
        const bool converged =
            eigen::dense_decompositions<Scalar>::self_adjoint_eigen(m.rows(), m.data(), nullptr, l.data(), v.data());
        values = l.template cast<Complex>();
        vectors = v.template cast<Complex>();
        return converged;
    }
    static bool decompose(const eigen::dense_matrix<Scalar>& m, eigen::dense_vector<Complex>& values,
                          eigen::dense_matrix<Complex>& vectors) {
        eigen::dense_matrix<Scalar> v(m.rows(), m.rows());
        if (!eigen::dense_decompositions<Scalar>::general_eigen(m.rows(), m.data(), values.data(), v.data())) {
            return false;
        }
        vectors = v.template cast<Complex>();
        if constexpr (!detail::is_complex_scalar<Scalar>) {
            // Of a conjugate pair v has sqrt(2) times the real and the imaginary part of the first vector.
            for (Eigen::Index j = 0; j + 1 < m.rows(); ++j) {
                if (values(j).imag() != RealScalar(0)) {
                    vectors.col(j) += Complex(0, 1) * vectors.col(j + 1);
                    vectors.col(j) /= std::sqrt(RealScalar(2));
                    vectors.col(j + 1) = vectors.col(j).conjugate();
                    ++j;
                }
            }
        }
        return true;
    }

    kron_expr<Complex> vectors_;
    eigen::dense_vector<Complex> values_;
};

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file dense_decompositions.hpp
/// Decompositions of one dense matrix by Eigen, behind plain pointers. Everything else in the library that decomposes calls these, so
/// that a program compiles each of Eigen's algorithms once for a scalar, or, with otimes::compiled, not at all (docs/decisions/0012).
///
/// Every matrix is column-major without gaps. Outputs are the caller's memory, whole and distinct from the inputs; those that may be
/// null are not computed then. Elements are finite and of a size that squares do not overflow (scaled_matrix). Cost: O(n^3).
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <Eigen/Dense>

#include <otimes/exec/target.hpp>
#include <otimes/expr/scalar.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// Of the type of Eigen's matrix, not of the class below, which is the same for every Eigen that a program links.
template <class Matrix>
Matrix copied(std::int64_t m, std::int64_t n, const typename Matrix::Scalar* a) {
    Matrix result(static_cast<Eigen::Index>(m), static_cast<Eigen::Index>(n));
    std::copy_n(a, m * n, result.data());
    return result;
}
template <class Matrix>
Matrix identity_of_order(std::int64_t n) {
    return Matrix::Identity(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(n));
}
template <class Matrix, class To>
void copy_to(const Matrix& m, To* to) {
    std::copy_n(m.data(), m.size(), to);
}

template <class Scalar>
struct dense_decompositions {
    using real = detail::real_of<Scalar>;
    using complex = std::conditional_t<detail::is_complex_scalar<Scalar>, Scalar, std::complex<real>>;

    struct lu_facts {
        real rcond = real(0);  ///< an estimate of the reciprocal condition number; 0 where a pivot is 0 or NaN
        real sign = real(1);   ///< of the permutation
    };
    /// P A = L U of order n > 0. `diagonal`: of U, n elements, or null; `inverse`: of A, or null; `b`, n x columns, becomes A^-1 B. `both`, or
    /// null: L below the diagonal, which is of ones, and U; `rows` then: the row of P's 1 in each column.
    static lu_facts lu(std::int64_t n, const Scalar* a, Scalar* diagonal, Scalar* inverse, Scalar* b = nullptr,
                       std::int64_t columns = 0, Scalar* both = nullptr, int* rows = nullptr);

    struct cholesky_facts {
        bool definite = false;
        real rcond = real(0);
    };
    /// A = L L^H of order n > 0, of which the lower triangle is read. `lower`: L with zeros above; `inverse_lower`: L^-1; `inverse`: A^-1, each or
    /// null; not written where A is not positive definite.
    static cholesky_facts cholesky(std::int64_t n, const Scalar* a, Scalar* lower, Scalar* inverse_lower,
                                   Scalar* inverse);
    /// B, of so many columns, becomes X with L L^H X = B, where L is lower triangular of order n.
    static void solve_by_triangle(std::int64_t n, const Scalar* lower, Scalar* b, std::int64_t columns);

    /// A = Q R, thin: with k = min(m, n) Q is m x k with orthonormal columns, R k x n.
    static void qr(std::int64_t m, std::int64_t n, const Scalar* a, Scalar* q, Scalar* r);

    /// A V = V diag(values), V^H V = I, or with `b` A V = B V diag(values), V^H B V = I; values ascend. The lower triangles are read.
    /// False where it does not converge.
    static bool self_adjoint_eigen(std::int64_t n, const Scalar* a, const Scalar* b, real* values, Scalar* vectors);

    /// A = U diag(values) V^H, thin, values descend; u and v both or none are null.
    static void svd(std::int64_t m, std::int64_t n, const Scalar* a, real* values, Scalar* u, Scalar* v);

    /// A^+, A being m x n. `inverse`: n x m, or null; `x`, n x columns: A^+ B of `b`, m x columns, or both null.
    static void pseudo_inverse(std::int64_t m, std::int64_t n, const Scalar* a, Scalar* inverse,
                               const Scalar* b = nullptr, std::int64_t columns = 0, Scalar* x = nullptr);
    /// Of A, m x n, by QR with column pivoting and Eigen's threshold.
    static std::int64_t rank(std::int64_t m, std::int64_t n, const Scalar* a);

    /// A V' = V' diag(values), columns of V' of norm 1. For a complex scalar V = V'. For a real one V is real: a pair of conjugate values, neighbours
    /// in `values`, has sqrt(2) times the real and the imaginary part of the first one's vector for its columns, so V' = V Z with a unitary
    /// Z, in the planes of pairs [1 1; i -i] / sqrt(2), and both have one condition number. False where it does not converge.
    static bool general_eigen(std::int64_t n, const Scalar* a, complex* values, Scalar* vectors);

    /// A = U T U^H, T upper triangular. False where it does not converge.
    static bool schur(std::int64_t n, const Scalar* a, complex* t, complex* u);

private:
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
};

template <class Scalar>
typename dense_decompositions<Scalar>::lu_facts dense_decompositions<Scalar>::lu(std::int64_t n, const Scalar* a,
                                                                                 Scalar* diagonal, Scalar* inverse,
                                                                                 Scalar* b, std::int64_t columns,
                                                                                 Scalar* both, int* rows) {
    const Eigen::PartialPivLU<matrix> lu(copied<matrix>(n, n, a));
    lu_facts facts;
    facts.sign = static_cast<real>(lu.permutationP().determinant());
    bool regular = true;
    for (Eigen::Index i = 0; i < lu.rows(); ++i) {
        const Scalar pivot = lu.matrixLU().coeff(i, i);
        regular = regular && std::abs(pivot) > real(0);
        if (diagonal != nullptr) {
            diagonal[i] = pivot;
        }
    }
    facts.rcond = regular ? lu.rcond() : real(0);  // the estimate knows nothing of a pivot that is 0
    if (inverse != nullptr) {
        const matrix result = lu.solve(identity_of_order<matrix>(n));
        copy_to(result, inverse);
    }
    if (both != nullptr) {
        copy_to(lu.matrixLU(), both);
        copy_to(lu.permutationP().indices(), rows);
    }
    if (b != nullptr) {
        Eigen::Map<matrix> x(b, static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(columns));
        x = lu.permutationP() * x;
        lu.matrixLU().template triangularView<Eigen::UnitLower>().solveInPlace(x);
        lu.matrixLU().template triangularView<Eigen::Upper>().solveInPlace(x);
    }
    return facts;
}

template <class Scalar>
typename dense_decompositions<Scalar>::cholesky_facts dense_decompositions<Scalar>::cholesky(
    std::int64_t n, const Scalar* a, Scalar* lower, Scalar* inverse_lower, Scalar* inverse) {
    const Eigen::LLT<matrix> llt(copied<matrix>(n, n, a));
    cholesky_facts facts;
    facts.definite = llt.info() == Eigen::Success;
    if (!facts.definite) {
        return facts;
    }
    facts.rcond = llt.rcond();
    if (lower != nullptr) {
        const matrix l = llt.matrixL();
        copy_to(l, lower);
    }
    if (inverse_lower != nullptr || inverse != nullptr) {
        matrix solved = identity_of_order<matrix>(n);
        llt.matrixL().solveInPlace(solved);
        if (inverse_lower != nullptr) {
            copy_to(solved, inverse_lower);
        }
        if (inverse != nullptr) {
            llt.matrixU().solveInPlace(solved);
            copy_to(solved, inverse);
        }
    }
    return facts;
}

template <class Scalar>
void dense_decompositions<Scalar>::solve_by_triangle(std::int64_t n, const Scalar* lower, Scalar* b,
                                                     std::int64_t columns) {
    const auto l = copied<matrix>(n, n, lower);
    Eigen::Map<matrix> x(b, static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(columns));
    l.template triangularView<Eigen::Lower>().solveInPlace(x);
    l.adjoint().template triangularView<Eigen::Upper>().solveInPlace(x);
}

template <class Scalar>
void dense_decompositions<Scalar>::qr(std::int64_t m, std::int64_t n, const Scalar* a, Scalar* q, Scalar* r) {
    const Eigen::HouseholderQR<matrix> qr(copied<matrix>(m, n, a));
    const auto thin = static_cast<Eigen::Index>((std::min)(m, n));
    matrix unitary = matrix::Identity(static_cast<Eigen::Index>(m), thin);
    unitary.applyOnTheLeft(qr.householderQ());
    copy_to(unitary, q);
    for (Eigen::Index j = 0; j < qr.cols(); ++j) {
        for (Eigen::Index i = 0; i < thin; ++i) {
            *r++ = i <= j ? qr.matrixQR().coeff(i, j) : Scalar(0);
        }
    }
}

template <class Scalar>
bool dense_decompositions<Scalar>::self_adjoint_eigen(std::int64_t n, const Scalar* a, const Scalar* b, real* values,
                                                      Scalar* vectors) {
    const auto take = [&](const Eigen::SelfAdjointEigenSolver<matrix>& solver) {
        if (solver.info() != Eigen::Success) {
            return false;
        }
        copy_to(solver.eigenvalues(), values);
        copy_to(solver.eigenvectors(), vectors);
        return true;
    };
    if (b == nullptr) {
        return take(Eigen::SelfAdjointEigenSolver<matrix>(copied<matrix>(n, n, a)));
    }
    return take(Eigen::GeneralizedSelfAdjointEigenSolver<matrix>(copied<matrix>(n, n, a), copied<matrix>(n, n, b)));
}

template <class Scalar>
void dense_decompositions<Scalar>::svd(std::int64_t m, std::int64_t n, const Scalar* a, real* values, Scalar* u,
                                       Scalar* v) {
    const bool vectors = u != nullptr;
    const Eigen::JacobiSVD<matrix> svd(copied<matrix>(m, n, a),
                                       vectors ? Eigen::ComputeThinU | Eigen::ComputeThinV : 0u);
    copy_to(svd.singularValues(), values);
    if (vectors) {
        copy_to(svd.matrixU(), u);
        copy_to(svd.matrixV(), v);
    }
}

template <class Scalar>
void dense_decompositions<Scalar>::pseudo_inverse(std::int64_t m, std::int64_t n, const Scalar* a, Scalar* inverse,
                                                  const Scalar* b, std::int64_t columns, Scalar* x) {
    const Eigen::CompleteOrthogonalDecomposition<matrix> whole(copied<matrix>(m, n, a));
    if (inverse != nullptr) {
        const matrix result = whole.solve(identity_of_order<matrix>(m));
        copy_to(result, inverse);
    }
    if (x != nullptr) {
        const matrix result = whole.solve(copied<matrix>(m, columns, b));
        copy_to(result, x);
    }
}

template <class Scalar>
std::int64_t dense_decompositions<Scalar>::rank(std::int64_t m, std::int64_t n, const Scalar* a) {
    return Eigen::ColPivHouseholderQR<matrix>(copied<matrix>(m, n, a)).rank();
}

template <class Scalar>
bool dense_decompositions<Scalar>::general_eigen(std::int64_t n, const Scalar* a, complex* values, Scalar* vectors) {
    if constexpr (detail::is_complex_scalar<Scalar>) {
        const Eigen::ComplexEigenSolver<matrix> solver(copied<matrix>(n, n, a));
        if (solver.info() != Eigen::Success) {
            return false;
        }
        copy_to(solver.eigenvalues(), values);
        copy_to(solver.eigenvectors(), vectors);
    } else {
        const Eigen::EigenSolver<matrix> solver(copied<matrix>(n, n, a));
        if (solver.info() != Eigen::Success) {
            return false;
        }
        copy_to(solver.eigenvalues(), values);
        const matrix& parts = solver.pseudoEigenvectors();
        for (std::int64_t j = 0; j < n; ++j) {
            const std::int64_t columns = std::imag(values[j]) != real(0) && j + 1 < n ? 2 : 1;
            const Scalar* const from = parts.data() + j * n;
            real squares(0);
            for (std::int64_t i = 0; i < columns * n; ++i) {
                squares += from[i] * from[i];
            }
            const real scale = std::sqrt(static_cast<real>(columns)) / std::sqrt(squares);
            for (std::int64_t i = 0; i < columns * n; ++i) {
                vectors[j * n + i] = from[i] * scale;
            }
            j += columns - 1;
        }
    }
    return true;
}

template <class Scalar>
bool dense_decompositions<Scalar>::schur(std::int64_t n, const Scalar* a, complex* t, complex* u) {
    if constexpr (detail::is_complex_scalar<Scalar>) {
        const Eigen::ComplexSchur<matrix> schur(copied<matrix>(n, n, a));
        if (schur.info() != Eigen::Success) {
            return false;
        }
        copy_to(schur.matrixT(), t);
        copy_to(schur.matrixU(), u);
    } else {
        const Eigen::RealSchur<matrix> schur(copied<matrix>(n, n, a));
        if (schur.info() != Eigen::Success) {
            return false;
        }
        copy_to(schur.matrixT(), t);
        copy_to(schur.matrixU(), u);
        // One rotation for each pair of conjugate eigenvalues makes the real form, which has blocks of 2 x 2, triangular.
        for (std::int64_t m = n - 1; m > 0; --m) {
            complex* const left = t + (m - 1) * n;  // columns m - 1 and m
            complex* const right = t + m * n;
            const real below = std::real(left[m]);
            left[m] = complex(0);
            if (below == real(0)) {
                continue;
            }
            // The eigenvalue of [p q; below s] minus s that has a positive imaginary part, or is the larger one.
            const complex half = (left[m - 1] - right[m]) / real(2);
            const complex root = std::sqrt(half * half + right[m - 1] * below);
            const complex shifted = half + root;
            const real size = std::hypot(std::hypot(std::real(shifted), std::imag(shifted)), below);
            const complex c = shifted / size;
            const real s = below / size;
            const auto rotate_rows = [&](complex* column, complex lower) {
                const complex upper = column[m - 1];
                column[m - 1] = std::conj(c) * upper + s * lower;
                column[m] = c * lower - s * upper;
            };
            rotate_rows(left, complex(below));
            for (std::int64_t j = m; j < n; ++j) {
                rotate_rows(t + j * n, t[j * n + m]);
            }
            const auto rotate_columns = [&](complex* first, complex* second, std::int64_t rows) {
                for (std::int64_t i = 0; i < rows; ++i) {
                    const complex x = first[i];
                    first[i] = c * x + s * second[i];
                    second[i] = std::conj(c) * second[i] - s * x;
                }
            };
            rotate_columns(left, right, m + 1);
            rotate_columns(u + (m - 1) * n, u + m * n, n);
            left[m] = complex(0);
        }
    }
    return true;
}

#if OTIMES_EXECUTOR_IN_LIBRARY
extern template struct dense_decompositions<float>;
extern template struct dense_decompositions<double>;
#endif

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

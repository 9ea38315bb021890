// SPDX-License-Identifier: MIT
/// @file nearest_kron.hpp
/// The Kronecker product of two matrices that is nearest to a given dense or sparse matrix.
///
/// Mathematics (Van Loan and Pitsianis 1993). With A seen as blocks A_ij of the shape of the second factor, the rearrangement
/// R(A), whose row (i, j) is vec(A_ij)^T, turns the problem into that of the nearest matrix of rank one:
///
///     || A - kron(B, C) ||_F = || R(A) - vec(B) vec(C)^T ||_F
///
/// Its leading singular vectors come from a Lanczos process with restarts on R(A), which is never formed: each step goes over the
/// (stored) elements of A twice. It starts from pseudo-random numbers, always the same ones: a start taken from A itself, a
/// block of it say, can be orthogonal to the leading vector and then stays with another one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/decompositions.hpp>
#include <otimes/adapt/eigen/dense_decompositions.hpp>
#include <otimes/expr/scalar.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// R(A), times a power of two that brings the largest element near 1: squares neither overflow nor vanish.
template <class Matrix>
class rearranged {
public:
    using scalar = typename Matrix::Scalar;
    using real = detail::real_of<scalar>;
    using vector = Eigen::Matrix<scalar, Eigen::Dynamic, 1>;

    rearranged(const Matrix& a, Eigen::Index rows, Eigen::Index cols)
        : a_(a), rows_(rows), cols_(cols), inner_rows_(a.rows() / rows), inner_cols_(a.cols() / cols) {
        using std::abs;
        using std::ilogb;
        using std::ldexp;
        real largest(0);
        for_each_element([&](Eigen::Index, Eigen::Index, const scalar& v) {
            const real re = abs(Eigen::numext::real(v));
            const real im = abs(Eigen::numext::imag(v));
            finite_ = finite_ && detail::is_finite(re) && detail::is_finite(im);
            largest = (std::max)(largest, (std::max)(re, im));
        });
        zero_ = !(largest > real(0));
        if (finite_ && !zero_) {
            // The reciprocal of the least numbers would overflow; to bring those near 1 is not needed.
            const int most = std::numeric_limits<real>::max_exponent - 4;
            exponent_ = (std::min)((std::max)(static_cast<int>(ilogb(largest)), -most), most);
            scale_ = ldexp(real(1), -exponent_);
        }
    }
    [[nodiscard]] bool finite() const noexcept { return finite_; }
    [[nodiscard]] bool zero() const noexcept { return zero_; }
    /// R(A) has been multiplied by 2^-exponent().
    [[nodiscard]] int exponent() const noexcept { return exponent_; }
    [[nodiscard]] Eigen::Index rows() const noexcept { return rows_ * cols_; }
    [[nodiscard]] Eigen::Index cols() const noexcept { return inner_rows_ * inner_cols_; }

    /// R * v: an element for each block of A.
    [[nodiscard]] vector times(const vector& v) const {
        vector result = vector::Zero(rows());
        if constexpr (sparse_matrix_like<Matrix>) {
            for_each_element([&](Eigen::Index i, Eigen::Index j, const scalar& e) {
                result(block_of(i, j)) += scale_ * e * v(place_of(i, j));
            });
        } else {
            const Eigen::Map<const dense_matrix<scalar>> w(v.data(), inner_rows_, inner_cols_);
            for (Eigen::Index j = 0; j < cols_; ++j) {
                for (Eigen::Index i = 0; i < rows_; ++i) {
                    result(i + j * rows_) = (scale_ * block(i, j)).cwiseProduct(w).sum();
                }
            }
        }
        return result;
    }
    /// R^H * u.
    [[nodiscard]] vector adjoint_times(const vector& u) const {
        vector result = vector::Zero(cols());
        if constexpr (sparse_matrix_like<Matrix>) {
            for_each_element([&](Eigen::Index i, Eigen::Index j, const scalar& e) {
                result(place_of(i, j)) += Eigen::numext::conj(scale_ * e) * u(block_of(i, j));
            });
        } else {
            Eigen::Map<dense_matrix<scalar>> w(result.data(), inner_rows_, inner_cols_);
            for (Eigen::Index j = 0; j < cols_; ++j) {
                for (Eigen::Index i = 0; i < rows_; ++i) {
                    w += (scale_ * block(i, j)).conjugate() * u(i + j * rows_);
                }
            }
        }
        return result;
    }

private:
    [[nodiscard]] auto block(Eigen::Index i, Eigen::Index j) const {
        return a_.block(i * inner_rows_, j * inner_cols_, inner_rows_, inner_cols_);
    }
    [[nodiscard]] Eigen::Index block_of(Eigen::Index i, Eigen::Index j) const {
        return i / inner_rows_ + j / inner_cols_ * rows_;
    }
    [[nodiscard]] Eigen::Index place_of(Eigen::Index i, Eigen::Index j) const {
        return i % inner_rows_ + j % inner_cols_ * inner_rows_;
    }
    /// Calls f(i, j, value) for every (stored) element.
    template <class Function>
    void for_each_element(const Function& f) const {
        if constexpr (sparse_matrix_like<Matrix>) {
            for (Eigen::Index outer = 0; outer < a_.outerSize(); ++outer) {
                for (typename Matrix::InnerIterator it(a_, outer); it; ++it) {
                    f(it.row(), it.col(), it.value());
                }
            }
        } else {
            for (Eigen::Index j = 0; j < a_.cols(); ++j) {
                for (Eigen::Index i = 0; i < a_.rows(); ++i) {
                    f(i, j, a_(i, j));
                }
            }
        }
    }

    const Matrix& a_;
    Eigen::Index rows_;
    Eigen::Index cols_;
    Eigen::Index inner_rows_;
    Eigen::Index inner_cols_;
    real scale_{1};
    int exponent_ = 0;
    bool finite_ = true;
    bool zero_ = true;
};

/// The right singular vector of the largest singular value of `r`, of norm 1. A Krylov space of r^H r of up to 20 vectors,
/// all kept orthogonal, from which after that the best 6 go on; with each vector its product with r. The largest Ritz value
/// never falls. @pre r is finite and not zero
template <class Rearranged>
typename Rearranged::vector leading_singular_vector(const Rearranged& r) {
    using vector = typename Rearranged::vector;
    using scalar = typename Rearranged::scalar;
    using real = typename Rearranged::real;
    using matrix = dense_matrix<scalar>;
    constexpr Eigen::Index most = 20;
    constexpr Eigen::Index kept = 6;
    const real least = real(16) * std::numeric_limits<real>::epsilon();
    std::uint64_t state = 0;
    const auto any_number = [&state] {  // splitmix64, in [-1, 1)
        std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return real(static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0);
    };
    vector next(r.cols());
    for (Eigen::Index k = 0; k < next.size(); ++k) {
        if constexpr (detail::is_complex_scalar<scalar>) {
            const real re = any_number();
            next(k) = scalar(re, any_number());
        } else {
            next(k) = any_number();
        }
    }
    next /= next.norm();
    matrix v(r.cols(), 0);  // the space
    matrix w(r.rows(), 0);  // r * v
    real before(0);
    int still = 0;
    for (int step = 0;; ++step) {
        v.conservativeResize(Eigen::NoChange, v.cols() + 1);
        v.col(v.cols() - 1) = next;
        w.conservativeResize(Eigen::NoChange, v.cols());
        w.col(v.cols() - 1) = r.times(next);
        const matrix gram = w.adjoint() * w;
        matrix vectors(v.cols(), v.cols());
        dense_vector<real> values(v.cols());
        dense_decompositions<scalar>::self_adjoint_eigen(v.cols(), gram.data(), nullptr, values.data(), vectors.data());
        const real value = values(v.cols() - 1);
        const vector best = v * vectors.col(v.cols() - 1);
        // Ready where r^H r turns it no further, or where it has not grown for a while: rounding is all that is left.
        still = value <= before + real(2) * std::numeric_limits<real>::epsilon() * before ? still + 1 : 0;
        before = (std::max)(before, value);
        if (still >= 8 || step >= 1000 || v.cols() == r.cols()) {
            return best / best.norm();
        }
        const vector left = w * vectors.col(v.cols() - 1);
        if (v.cols() == most) {
            v = (v * vectors.rightCols(kept)).eval();
            w = (w * vectors.rightCols(kept)).eval();
        }
        next = r.adjoint_times(left);
        for (int again = 0; again < 2; ++again) {
            next -= (v * (v.adjoint() * next)).eval();
        }
        const real size = next.norm();
        if (!(size > least * value)) {
            return best / best.norm();
        }
        next /= size;
        next -= (v * (v.adjoint() * next)).eval();  // what was small has lost digits
        next /= next.norm();
    }
}

/// What a first factor B is divided by, of modulus 1: then B's trace is positive, so that both factors of a kron of positive definite matrices are, too;
/// where B is not square or its trace is near 0, the largest element is.
template <class Scalar>
Scalar phase_of_first(const dense_matrix<Scalar>& b) {
    using real = detail::real_of<Scalar>;
    using std::abs;
    using std::sqrt;
    Scalar decides = b.rows() == b.cols() ? b.trace() : Scalar(0);
    if (!(abs(decides) > sqrt(std::numeric_limits<real>::epsilon()) * b.norm())) {
        Eigen::Index i = 0;
        Eigen::Index j = 0;
        b.cwiseAbs().maxCoeff(&i, &j);
        decides = b(i, j);
    }
    return decides / abs(decides);
}

}  // namespace eigen

/// kron(B, C) nearest to `a` in the Frobenius norm, B of rows x cols, C of the quotients. `a` is a dense or sparse matrix. Where
/// several are nearest, one of them; always the same for the same a. The trace of B is positive; where B is not square, or its trace is 0, its
/// largest element is. With elements that are not finite, all are NaN.
/// Cost: a few tens of passes over the elements of a, some hundreds where nothing in a is near a Kronecker product; memory for 20
/// pairs of factors. @throws shape_error when rows or cols do not divide those of a
template <class Matrix>
requires(eigen::dense<Matrix> || eigen::sparse_matrix_like<Matrix>)
    [[nodiscard]] auto nearest_kron(const Matrix& a, std::int64_t rows, std::int64_t cols) {
    using scalar = typename Matrix::Scalar;
    using real = detail::real_of<scalar>;
    using matrix = eigen::dense_matrix<scalar>;
    if (rows <= 0 || cols <= 0 || a.rows() % rows != 0 || a.cols() % cols != 0) {
        throw shape_error("otimes: nearest_kron(A, " + std::to_string(rows) + ", " + std::to_string(cols) + "): A is " +
                          detail::shape_text(a.rows(), a.cols()) +
                          "; the rows and columns of the first factor must divide those of A.");
    }
    matrix b = matrix::Zero(rows, cols);
    matrix c = matrix::Zero(a.rows() / rows, a.cols() / cols);
    if (a.size() != 0) {
        const eigen::rearranged<Matrix> r(a, rows, cols);
        if (!r.finite()) {
            b.setConstant(scalar(std::numeric_limits<real>::quiet_NaN()));
            c.setConstant(scalar(std::numeric_limits<real>::quiet_NaN()));
        } else if (!r.zero()) {
            using std::ldexp;
            using vector = typename eigen::rearranged<Matrix>::vector;
            // Once to and fro: where a has no elements the factors have none, not what rounding left of the start.
            vector u = r.times(eigen::leading_singular_vector(r));
            vector v = r.adjoint_times(u / u.norm());
            v /= v.norm();
            u = r.times(v);
            const scalar phase = eigen::phase_of_first<scalar>(u.reshaped(rows, cols));
            u *= Eigen::numext::conj(phase);
            v *= Eigen::numext::conj(phase);    // C is its conjugate
            const int half = r.exponent() / 2;  // to each its part: products of large factors do not overflow alone
            b = u.reshaped(rows, cols) * ldexp(real(1), half);
            c = v.conjugate().reshaped(c.rows(), c.cols()) * ldexp(real(1), r.exponent() - half);
        }
    }
    std::vector<matrix> factors;
    factors.push_back(std::move(b));
    factors.push_back(std::move(c));
    return eigen::owned_kron<scalar>(std::move(factors), scalar(1));
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

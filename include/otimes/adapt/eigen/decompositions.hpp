// SPDX-License-Identifier: MIT
/// @file decompositions.hpp
/// LU, Cholesky, QR, eigenvalue and singular value decompositions of a Kronecker product, each the Kronecker product of its
/// factors' decompositions; inverse, pseudo-inverse, determinant, rank and condition number from them.
///
/// Mathematics. kron(F1, .., FN) = alpha * kron of decomposed factors, and by the mixed-product rule the parts gather:
///
///     LU         kron(P_k)^T kron(L_k) kron(U_k)             Cholesky   kron(L_k) kron(L_k)^H
///     QR         kron(Q_k) kron(R_k)                         SVD        kron(U_k) diag(kron(s_k)) kron(V_k)^H
///     self-adjoint eigenvalues    kron(V_k) diag(kron(l_k)) kron(V_k)^H        (of any factors: kron_eigen.hpp)
///     det K = alpha^n * prod_k det(F_k)^(n / n_k),  n = n_1 * .. * n_N          rank K = prod_k rank F_k
///
/// (Van Loan, The ubiquitous Kronecker product, 2000; Horn and Johnson, Topics in Matrix Analysis, chapter 4.)
/// Cost: the factors' decompositions, O(n_k^3) each; solving is one or two applications of K, three or five with steps of refinement, or a solve with
/// each factor (inverted_kron.hpp). Identities, permutations and diagonals
/// (also sparse ones) are decomposed without any work and stay what they are; others become dense, within a limit (factors.hpp).
/// Errors: singular_error for NaN and Inf where an algorithm does not pass them on, budget_error beyond that limit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/dense_decompositions.hpp>
#include <otimes/adapt/eigen/factors.hpp>
#include <otimes/adapt/eigen/inverted_kron.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/adapt/eigen/structured.hpp>
#include <otimes/factorwise/scaled_number.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// alpha * kron of owned matrices.
template <class Scalar>
kron_expr<Scalar> owned_kron(std::vector<dense_matrix<Scalar>> factors, const Scalar& alpha) {
    kron_node<Scalar> node;
    for (dense_matrix<Scalar>& f : factors) {
        node.append(owned_factor<Scalar>(std::move(f)));
    }
    node.set_alpha(alpha);
    node.check_extents();
    return kron_expr<Scalar>(std::move(node));
}

template <class Scalar>
std::string shape_of(const kron_expr<Scalar>& k) {
    return detail::kron_text(k.factor_count()) + ", " + detail::shape_text(k.rows(), k.cols());
}

/// @throws shape_error unless all factors are square; a square kron of other factors is singular.
template <class Scalar>
void require_square_factors(const kron_expr<Scalar>& k, const char* what, const char* instead) {
    std::size_t position = 0;
    for (const leaf& f : k.node().factors()) {
        ++position;
        if (f.rows() != f.cols()) {
            throw shape_error("otimes: " + std::string(what) + " of " + shape_of(k) + ": factor " +
                              std::to_string(position) + " is " + detail::shape_text(f.rows(), f.cols()) +
                              "; all factors must be square. " + instead);
        }
    }
}

/// @throws shape_error unless a kron of so many factors is square, as determinants want it
inline void require_square(std::size_t factors, std::int64_t rows, std::int64_t cols, const char* what) {
    if (rows != cols) {
        throw shape_error("otimes: " + std::string(what) + " of " + detail::kron_text(factors) + ", " +
                          detail::shape_text(rows, cols) + ": the product must be square.");
    }
}

/// @throws shape_error a right-hand side that does not fit
template <class Scalar>
void require_rows(const kron_expr<Scalar>& k, std::int64_t rows, std::int64_t cols) {
    if (rows != k.rows()) {
        throw shape_error("otimes: solve with " + shape_of(k) + ": the right-hand side is " +
                          detail::shape_text(rows, cols) + ". Its rows must equal those of the product.");
    }
}

/// @throws singular_error a scalar of K that is NaN or infinite, which no factor shows
template <class Scalar>
void require_finite_scalar(const kron_expr<Scalar>& k, const char* what) {
    if (!detail::is_finite(k.node().alpha())) {
        throw singular_error("otimes: " + std::string(what) + " of " + shape_of(k) +
                             ": its scalar is NaN or infinite; such a matrix has no decomposition.");
    }
}

/// `of`: what is asked for, of which K.
[[noreturn]] inline void throw_zero_scalar(const std::string& of) {
    throw singular_error("otimes: " + of + ": its scalar is 0.", /*zero_determinant=*/true);
}

/// scale / 2^exponent * kron(v1, .., vN) as a vector, which is allocated first. Their powers of two are dealt out evenly: products of some of them do
/// not overflow or vanish where those of all do not.
template <class Scalar>
dense_vector<Scalar> kron_of_vectors(std::vector<dense_vector<Scalar>> vectors, const Scalar& scale = Scalar(1),
                                     int exponent = 0) {
    vectors.insert(vectors.begin(), dense_vector<Scalar>::Constant(1, scale));
    std::int64_t size = 1;
    std::vector<int> exponents;
    for (const dense_vector<Scalar>& v : vectors) {
        size = saturating_multiply(size, v.size());
        exponents.push_back(exponent_of_largest(v));
    }
    dense_vector<Scalar> result(index_of(size));
    if (size == 0) {
        return result;
    }
    std::vector<int> shares = exponents;
    shares[0] -= exponent;
    shares = dealt_evenly(shares);
    for (std::size_t k = 0; k < vectors.size(); ++k) {
        multiply_by_power(vectors[k], shares[k] - exponents[k]);
    }
    result(0) = vectors[0](0);
    Eigen::Index known = 1;
    for (std::size_t k = 1; k < vectors.size(); ++k) {
        const dense_vector<Scalar>& v = vectors[k];
        for (Eigen::Index i = known; i-- > 0;) {  // from the end: in place
            const Scalar element = result(i);
            result.segment(i * v.size(), v.size()) = element * v;
        }
        known *= v.size();
    }
    return result;
}

/// Eigenvalues or singular values of a kron, scale * kron(v1, .., vN); where some leave the range of the type, or their reciprocals may, over a
/// power of two, too.
template <class Real>
class values_of_kron {
public:
    values_of_kron() = default;
    values_of_kron(const std::vector<dense_vector<Real>>& of_factors, const Real& scale)
        : values_(kron_of_vectors<Real>(of_factors, scale)) {
        if constexpr (std::is_floating_point_v<Real>) {
            detail::scaled_number<Real> most(std::abs(scale));
            detail::scaled_number<Real> least = most;  // of those that are not 0
            for (const dense_vector<Real>& v : of_factors) {
                Real largest(0);
                Real smallest = std::numeric_limits<Real>::infinity();
                for (Eigen::Index i = 0; i < v.size(); ++i) {
                    const Real size = std::abs(v(i));
                    largest = (std::max)(largest, size);
                    smallest = size > Real(0) ? (std::min)(smallest, size) : smallest;
                }
                most.multiply(detail::scaled_number<Real>(largest));
                least.multiply(detail::scaled_number<Real>(smallest));
            }
            constexpr int near = std::numeric_limits<Real>::digits + 8;
            constexpr int top = std::numeric_limits<Real>::max_exponent - near;
            if (!most.is_zero() &&
                (most.exponent() > top || least.exponent() < std::numeric_limits<Real>::min_exponent + near)) {
                exponent_ =
                    static_cast<int>((std::max)((most.exponent() + least.exponent()) / 2, most.exponent() - top));
            }
            if (exponent_ != 0) {
                over_power_ = kron_of_vectors<Real>(of_factors, scale, exponent_);
            }
        }
    }
    [[nodiscard]] const dense_vector<Real>& values() const noexcept { return values_; }
    /// values() / 2^exponent(), which are in the range where those may not be.
    [[nodiscard]] const dense_vector<Real>& over_power() const noexcept {
        return exponent_ == 0 ? values_ : over_power_;
    }
    [[nodiscard]] int exponent() const noexcept { return exponent_; }

private:
    dense_vector<Real> values_;
    dense_vector<Real> over_power_;  ///< where exponent_ is not 0
    int exponent_ = 0;
};

/// V D U^H B / 2^exponent, where `multiply(parts)` applies D. Where the exponent is not 0, columns of B are taken over powers of two of their own.
template <class Result, class Scalar, class Rhs, class Multiply>
Result between_vectors(const kron_expr<Scalar>& u, const kron_expr<Scalar>& v, int exponent, const Rhs& b,
                       const Multiply& multiply) {
    using scalar = typename Result::Scalar;
    if (exponent == 0) {
        Result parts = u.adjoint() * b.template cast<scalar>();
        multiply(parts);
        return Result(v * parts);
    }
    Result x = b.template cast<scalar>();
    std::vector<int> of_columns;
    for (Eigen::Index j = 0; j < x.cols(); ++j) {
        auto column = x.col(j);
        of_columns.push_back(exponent_of_largest(column));
        multiply_by_power(column, -of_columns.back());
    }
    x = between_vectors<Result>(u, v, 0, x, multiply);
    for (Eigen::Index j = 0; j < x.cols(); ++j) {
        auto column = x.col(j);
        multiply_by_power(column, of_columns[static_cast<std::size_t>(j)] - exponent);
    }
    return x;
}

}  // namespace eigen

/// What a decomposition keeps in device memory from one solve there to the next (otimes/device_algebra.hpp): one value for each executor
/// and type. A copy of the decomposition begins without. It is memory of that executor: a decomposition that has solved on a stream of
/// the caller's must end before the stream does, as a DeviceMatrix.
class device_copies {
public:
    device_copies() = default;
    device_copies(const device_copies&) noexcept {}
    device_copies& operator=(const device_copies&) noexcept {
        const std::lock_guard lock(mutex_);
        kept_.clear();
        return *this;
    }
    ~device_copies() = default;

    /// The value for the executor, made by `make()` when it is asked for first.
    template <class Make>
    [[nodiscard]] auto get(std::uint64_t executor_id, const Make& make) const {
        using value_type = decltype(make());
        const std::lock_guard lock(mutex_);
        for (const entry& e : kept_) {
            if (e.executor_id == executor_id && e.type == &tag<value_type>) {
                return std::static_pointer_cast<const value_type>(e.value);
            }
        }
        auto made = std::make_shared<const value_type>(make());
        kept_.push_back({executor_id, &tag<value_type>, made});
        return std::shared_ptr<const value_type>(std::move(made));
    }

private:
    struct entry {
        std::uint64_t executor_id = 0;
        const void* type = nullptr;
        std::shared_ptr<const void> value;
    };
    template <class Value>
    static inline char tag = 0;

    mutable std::mutex mutex_;
    mutable std::vector<entry> kept_;
};

/// LU decompositions of the factors of a kron with square factors, P K = L U: solve, inverse, determinant. Made once, used often; `solve`
/// then costs one application of K, and two more for each of at most two steps of refinement. Of each dense factor it keeps the inverse and both triangles.
template <class ScalarType>
class kron_lu {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;

    /// @throws shape_error a factor that is not square; singular_error a factor whose reciprocal condition number is not above epsilon, a diagonal
    /// with a 0 (others are inverted entry by entry, whatever their condition), one with NaN or Inf
    explicit kron_lu(const kron_expr<Scalar>& k) : alpha_(k.node().alpha()) {
        eigen::require_square_factors(k, "LU decomposition", "For least squares use pseudoInverse().");
        eigen::require_finite_scalar(k, "LU decomposition");
        eigen::lu_of_factors<Scalar> triangles;
        inverted_ = eigen::inverted_kron<Scalar>(k, eigen::inverted_kron<Scalar>::kind::inverse, "inverse", &triangles);
        if (alpha_ == Scalar(0) && k.rows() != 0) {
            eigen::throw_zero_scalar("LU decomposition of " + eigen::shape_of(k));
        }
        const detail::scaled_number<Scalar> one(Scalar(1));
        permutation_ = triangles.permutation.take(one);
        lower_ = triangles.lower.take(one);
        upper_ = triangles.upper.take(detail::scaled_number<Scalar>(alpha_));
    }

    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(inverse().rows()); }
    [[nodiscard]] Eigen::Index cols() const { return rows(); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// P, L and U with P K = L U: krons of the factors' permutations, of their lower triangles with ones on the diagonals, and of their upper ones, with the
    /// scalar of K in U. (Partial pivoting factor by factor: P is not what it would choose for the whole of K.)
    [[nodiscard]] const kron_expr<Scalar>& permutationP() const noexcept { return permutation_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixL() const noexcept { return lower_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixU() const noexcept { return upper_; }
    /// kron of the factors' inverses.
    [[nodiscard]] const kron_expr<Scalar>& inverse() const noexcept { return inverted_.inverse(); }
    /// An estimate of the reciprocal of the condition number: the product of the factors'.
    [[nodiscard]] RealScalar rcond() const noexcept { return inverted_.rcond(); }
    /// May overflow; see logAbsDeterminant().
    [[nodiscard]] Scalar determinant() const { return inverted_.determinant().value(alpha_, inverse().rows()).value(); }
    /// log |det K|, which does not overflow.
    [[nodiscard]] RealScalar logAbsDeterminant() const {
        return inverted_.determinant().log_of_size(alpha_, inverse().rows());
    }
    /// Whether solve() takes steps of refinement: where K makes the roundings of K^-1 B large (inverted_kron.hpp).
    [[nodiscard]] bool refines() const noexcept { return inverted_.how().steps > 0; }
    /// Whether solve() solves with each factor by its LU decomposition, which is made again: where two steps of refinement would be too few.
    [[nodiscard]] bool solves_by_factors() const noexcept { return inverted_.how().by_factors; }

    /// X with K X = B, rows(K) = rows(B). The inverses of the factors are applied, one chain; where refines() one or two steps of
    /// refinement make the residual as small as that of an LU solve (Higham, Accuracy and Stability of Numerical Algorithms,
    /// chapter 12), where solves_by_factors() each factor is solved with. @throws shape_error
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(inverse(), b.rows(), b.cols());  // of K's shape
        return inverted_.template solve<result_type>(b.derived());
    }
    /// The same for B in device memory (otimes/cuda.hpp); a DeviceMatrix. Where solves_by_factors(), B and X are copied to the host and back.
    template <class Rhs>
    requires is_device_operand<Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        eigen::require_rows(inverse(), b.rows(), b.cols());
        return inverted_.solve_on_device(kept_, b);
    }

private:
    Scalar alpha_;
    eigen::inverted_kron<Scalar> inverted_;
    kron_expr<Scalar> permutation_;
    kron_expr<Scalar> lower_;
    kron_expr<Scalar> upper_;
    device_copies kept_;
};

namespace eigen {

inline constexpr const char* not_self_adjoint =
    " is not self-adjoint: its diagonal is not real (of the rest the lower triangle is read).";

/// Of a self-adjoint matrix, but for roundings.
template <class Derived>
bool is_real_diagonal(const Eigen::MatrixBase<Derived>& d) {
    using real = typename Eigen::NumTraits<typename Derived::Scalar>::Real;
    if constexpr (Eigen::NumTraits<typename Derived::Scalar>::IsComplex) {
        const real rounding = real(16) * std::numeric_limits<real>::epsilon() * static_cast<real>(d.size());
        return d.size() == 0 || d.imag().cwiseAbs().maxCoeff() <= rounding * d.real().cwiseAbs().maxCoeff();
    }
    return true;
}

/// The Cholesky decompositions F_k = L_k L_k^H of a kron's factors, or those of -F_k where F_k is negative definite.
template <class Scalar>
class cholesky_of_factors {
public:
    using real = detail::real_of<Scalar>;

    kron_node<Scalar> lower;                 ///< kron(L_k), without K's scalar
    kron_over_powers<Scalar> own;            ///< the F_k,
    kron_over_powers<Scalar> triangles;      ///< the L_k, over the powers of two of the F_k,
    kron_over_powers<Scalar> inverse;        ///< the F_k^-1
    kron_over_powers<Scalar> inverse_lower;  ///< and the L_k^-1
    amplification<real> of_inverse;          ///< by the F_k^-1 and by the L_k^-1
    amplification<real> of_lower;
    /// The inverses of tiny factors may not be, where those of their triangles are.
    bool is_finite = true;
    real rcond = real(1);

    /// @throws singular_error unless K is positive definite; budget_error
    explicit cholesky_of_factors(const kron_expr<Scalar>& k) : k_(k) {
        const Scalar alpha = k.node().alpha();
        require_scalar(std::imag(alpha) == real(0) && std::real(alpha) != real(0));
        for_each_factor(k, "Cholesky decomposition", [this](const factor_reader<Scalar>& f) {
            ++position_;
            if (f.form() != factor_form::other && f.rows() > 1) {
                of_inverse.append_apart();
                of_lower.append_apart();
            }
            if (f.form() == factor_form::identity) {
                const leaf same = leaf::identity(f.rows());
                lower.append(same);
                for (kron_over_powers<Scalar>* const all : {&own, &triangles, &inverse, &inverse_lower}) {
                    all->append(same);
                }
            } else if (f.form() == factor_form::permutation) {
                require_definite(false, position_);  // there is a 0 on the diagonal
            } else if (f.form() == factor_form::diagonal) {
                append_diagonal(f);
            } else {
                append_dense(f);
            }
        });
        if ((negative_ % 2 != 0) != (std::real(alpha) < real(0))) {
            require_scalar(std::real(alpha) > real(0) || negative_ % 2 != 0);
            require_definite(false, last_negative_);
        }
    }

private:
    void require_scalar(bool positive) const {
        if (!positive) {
            throw singular_error("otimes: Cholesky decomposition of " + shape_of(k_) + ": its scalar is not positive.");
        }
    }
    void require_definite(bool definite, std::size_t position) const {
        if (!definite) {
            throw singular_error("otimes: Cholesky decomposition of " + shape_of(k_) + ": factor " +
                                 std::to_string(position) + " is not positive definite.");
        }
    }
    /// Whether the factor can only be negative definite; its diagonal must be real.
    template <class Derived>
    bool is_negative(const Eigen::MatrixBase<Derived>& diagonal) {
        if (!is_real_diagonal(diagonal)) {
            throw singular_error("otimes: Cholesky decomposition of " + shape_of(k_) + ": factor " +
                                 std::to_string(position_) + not_self_adjoint);
        }
        const bool result = diagonal.size() > 0 && std::real(diagonal(0)) < real(0);
        negative_ += result ? 1 : 0;
        last_negative_ = result ? position_ : last_negative_;
        return result;
    }

    void append_diagonal(const factor_reader<Scalar>& f) {
        dense_vector<real> d = f.diagonal().real();
        if (is_negative(f.finite_diagonal())) {
            d = -d;
        }
        require_definite(d.size() == 0 || d.minCoeff() > real(0), position_);
        const dense_vector<Scalar> roots = d.cwiseSqrt().template cast<Scalar>();
        lower.append(owned_diagonal<Scalar>(roots));
        inverse_lower.append(dense_vector<Scalar>(roots.cwiseInverse()));
        dense_vector<Scalar> inverted = d.cwiseInverse().template cast<Scalar>();
        is_finite = is_finite && all_finite(inverted);
        inverse.append(std::move(inverted));
        for (kron_over_powers<Scalar>* const all : {&own, &triangles}) {  // of triangles the inverse stands for it
            all->append(dense_vector<Scalar>(d.template cast<Scalar>()));
        }
        rcond = d.size() > 0 ? rcond * (d.minCoeff() / d.maxCoeff()) : rcond;
    }

    void append_dense(const factor_reader<Scalar>& f) {
        dense_matrix<Scalar> triangle = f.finite_lower_triangle();
        if (is_negative(triangle.diagonal())) {
            triangle = -triangle;
        }
        // Over an even power of two: Eigen divides by complex numbers through their squares.
        scaled_matrix<Scalar> scaled(std::move(triangle));
        const int odd = scaled.exponent % 2 != 0 ? 1 : 0;
        if (odd != 0) {
            scaled.matrix *= Scalar(2);
        }
        const int half = (scaled.exponent - odd) / 2;
        const Eigen::Index n = scaled.matrix.rows();
        dense_matrix<Scalar> l(n, n);
        dense_matrix<Scalar> inverted_l(n, n);
        dense_matrix<Scalar> inverted(n, n);
        dense_matrix<Scalar> whole(n, n);
        if (n > 0) {
            const auto llt = dense_decompositions<Scalar>::cholesky(n, scaled.matrix.data(), l.data(),
                                                                    inverted_l.data(), inverted.data());
            require_definite(llt.definite, position_);
            rcond *= llt.rcond;
            whole = scaled.matrix.template selfadjointView<Eigen::Lower>();
            constexpr bool is_real = !detail::is_complex_scalar<Scalar>;
            of_inverse.append(amplification_of<Scalar>(whole, inverted), n, is_real);
            of_lower.append(amplification_of<Scalar>(l, inverted_l), n, is_real);
        }
        lower.append(owned_factor<Scalar>(l * detail::scaled_number<Scalar>(Scalar(1), half).value()));
        own.append(std::move(whole), 2 * half);
        triangles.append(std::move(l), 2 * half);
        inverse_lower.append(std::move(inverted_l), -half);
        inverse.append(std::move(inverted), -2 * half);
    }

    const kron_expr<Scalar>& k_;
    std::size_t position_ = 0;
    std::size_t last_negative_ = 0;  // position
    int negative_ = 0;
};

}  // namespace eigen

/// Cholesky decompositions of the factors of a kron of self-adjoint positive definite factors: K = L L^H, L = kron(L_k).
template <class ScalarType>
class kron_llt {
public:
    using Scalar = ScalarType;

    using RealScalar = detail::real_of<Scalar>;

    /// The lower triangles of the factors are read, the diagonals of which must be real. Factors, and the scalar, may be negative (definite) where
    /// the product is positive, as kron(-A, -B). @throws shape_error, singular_error where K is not positive definite, budget_error
    explicit kron_llt(const kron_expr<Scalar>& k) {
        eigen::require_square_factors(k, "Cholesky decomposition", "For least squares use pseudoInverse().");
        eigen::require_finite_scalar(k, "Cholesky decomposition");
        eigen::cholesky_of_factors<Scalar> factors(k);
        const RealScalar size = std::abs(k.node().alpha());
        const Scalar root(std::sqrt(size));
        factors.lower.set_alpha(root);
        lower_ = kron_expr<Scalar>(std::move(factors.lower));
        rcond_ = factors.rcond;
        const auto reciprocal = eigen::reciprocal(Scalar(size));
        how_ = eigen::refinement_for(factors.of_inverse, /*of_image=*/true);
        // Of the second product, by L^-H, the roundings come back through L^H: with h = L^H x, |(|L| |L^-1|)^H| |x|, which is of_lower's again.
        const bool by_triangles = !eigen::loses_digits(factors.of_lower.of_image());
        eigen::factors_apart<Scalar> apart;  // made before the inverses are gone
        if (!by_triangles) {
            apart = eigen::factors_apart<Scalar>(factors.triangles, factors.inverse, reciprocal);
        }
        inverse_ = factors.inverse.take(reciprocal);
        if (!factors.is_finite || !detail::is_finite(inverse_.node().alpha())) {
            how_ = {0, /*by_factors=*/true};
        }
        if (by_triangles && (how_.steps > 0 || how_.by_factors)) {
            how_ = {};
            by_triangles_ = true;
            inverse_ = factors.inverse_lower.take(eigen::reciprocal(root));
        } else if (how_.by_factors) {
            apart_ = std::move(apart);
        } else if (how_.steps > 0) {
            own_ = factors.own.take(detail::scaled_number<Scalar>(Scalar(size)));
        }
    }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(lower_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return rows(); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// L, lower triangular.
    [[nodiscard]] const kron_expr<Scalar>& matrixL() const noexcept { return lower_; }
    /// L^H, upper triangular.
    [[nodiscard]] kron_expr<Scalar> matrixU() const { return lower_.adjoint(); }
    /// An estimate of the reciprocal of the condition number: the product of the factors'.
    [[nodiscard]] RealScalar rcond() const noexcept { return rcond_; }
    /// May overflow; see logAbsDeterminant().
    [[nodiscard]] RealScalar determinant() const {
        return root_of_determinant().value(root_of_scalar(), lower_.rows()).power(2).value();
    }
    /// log det K, which does not overflow.
    [[nodiscard]] RealScalar logAbsDeterminant() const {
        return 2 * root_of_determinant().log_of_size(root_of_scalar(), lower_.rows());
    }
    /// Whether solve() applies the inverses of L and of L^H, two chains, where that of K would leave a larger residual (inverted_kron.hpp) or is not
    /// finite.
    [[nodiscard]] bool solves_by_triangles() const noexcept { return by_triangles_; }
    /// Whether solve() takes steps of refinement, where the triangles' inverses would leave a larger residual too.
    [[nodiscard]] bool refines() const noexcept { return how_.steps > 0; }
    /// Whether solve() substitutes with each L_k and L_k^H (of factors with structure it applies the inverses), where two steps of refinement would be
    /// too few.
    [[nodiscard]] bool solves_by_factors() const noexcept { return how_.by_factors; }
    /// X with K X = B, rows(K) = rows(B). The inverses of the factors are applied, one chain, or two where solves_by_triangles(), three or five
    /// where refines(); where solves_by_factors() each factor is solved with. @throws shape_error
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(lower_, b.rows(), b.cols());
        if (how_.by_factors && b.size() > 0) {
            return result_type(substituted<scalar>(b.derived()));
        }
        if (by_triangles_) {
            const result_type half = inverse_ * b.derived();
            result_type x = inverse_.adjoint() * half;
            return x;
        }
        return eigen::refined<result_type>(own_, inverse_, how_.steps, b.derived());
    }
    /// The same for B in device memory (otimes/cuda.hpp); a DeviceMatrix. Where solves_by_factors(), B and X are copied to the host and back.
    template <class Rhs>
    requires is_device_operand<Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        eigen::require_rows(lower_, b.rows(), b.cols());
        if (how_.by_factors) {
            using host_matrix = eigen::dense_matrix<detail::common_scalar<Scalar, typename Rhs::Scalar>>;
            const auto on_host = [this](const host_matrix& host) {
                const scoped_executor here(cpu());
                return host_matrix(solve(host));
            };
            return solve_through_host(on_host, host_matrix(), b);
        }
        if (by_triangles_) {
            const auto half = apply_inverse(lower_, inverse_, 0, kept_, b);
            const kron_expr<Scalar> upper = inverse_.adjoint();
            return apply_inverse(upper, upper, 0, kept_upper_, half);
        }
        return apply_inverse(own_, inverse_, how_.steps, kept_, b);
    }

private:
    template <class To, class Rhs>
    [[nodiscard]] eigen::dense_matrix<To> substituted(const Rhs& b) const {
        using matrix = eigen::dense_matrix<Scalar>;
        return apart_.template solve<To>(b, [](const matrix& l, matrix right) {
            eigen::dense_decompositions<Scalar>::solve_by_triangle(l.rows(), l.data(), right.data(), right.cols());
            return right;
        });
    }
    [[nodiscard]] RealScalar root_of_scalar() const { return std::real(lower_.node().alpha()); }
    /// Of L, from the diagonals.
    [[nodiscard]] eigen::kron_determinant<RealScalar> root_of_determinant() const {
        eigen::kron_determinant<RealScalar> result;
        for (const leaf& l : lower_.node().factors()) {
            detail::scaled_number<RealScalar> of_factor(RealScalar(1));
            for (std::int64_t i = 0; !l.is_identity() && i < l.rows(); ++i) {
                of_factor.multiply(
                    detail::scaled_number<RealScalar>(std::abs(kron_node<Scalar>::element(l, l.view(), i, i))));
            }
            result.append(of_factor, l.rows());
        }
        return result;
    }

    kron_expr<Scalar> lower_;
    RealScalar rcond_ = RealScalar(1);
    bool by_triangles_ = false;
    eigen::refinement how_;
    kron_expr<Scalar> inverse_;           ///< of L where by_triangles_, else of K
    kron_expr<Scalar> own_;               ///< K, where steps of refinement need it
    eigen::factors_apart<Scalar> apart_;  ///< the L_k, where each is solved with by itself
    device_copies kept_;
    device_copies kept_upper_;
};

/// QR decompositions of the factors: K = Q R, Q = kron(Q_k) with orthonormal columns (thin), R = kron(R_k), where each factor
/// has at least as many rows as columns.
template <class ScalarType>
class kron_qr {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;
    /// Cost: a Householder QR decomposition of each factor. @throws singular_error a factor with NaN or Inf; budget_error one that would
    /// be formed beyond 64 MiB and 12 times what it stores
    explicit kron_qr(const kron_expr<Scalar>& k) {
        eigen::require_finite_scalar(k, "QR decomposition");
        kron_node<Scalar> q;
        kron_node<Scalar> r;
        eigen::for_each_factor(k, "QR decomposition", [&](const eigen::factor_reader<Scalar>& f) {
            if (f.moves_only()) {
                q.append(f.source());
                r.append(leaf::identity(f.rows()));
                return;
            }
            if (f.form() == eigen::factor_form::diagonal) {
                q.append(leaf::identity(f.rows()));
                r.append(eigen::owned_diagonal<Scalar>(f.finite_diagonal()));
                return;
            }
            const eigen::scaled_matrix<Scalar> scaled(f.finite());
            const Eigen::Index thin = (std::min)(scaled.matrix.rows(), scaled.matrix.cols());
            eigen::dense_matrix<Scalar> unitary(scaled.matrix.rows(), thin);
            eigen::dense_matrix<Scalar> upper(thin, scaled.matrix.cols());
            eigen::dense_decompositions<Scalar>::qr(f.rows(), f.cols(), scaled.matrix.data(), unitary.data(),
                                                    upper.data());
            upper *= scaled.power();
            q.append(eigen::owned_factor<Scalar>(std::move(unitary)));
            r.append(eigen::owned_factor<Scalar>(std::move(upper)));
        });
        r.set_alpha(k.node().alpha());
        q_ = kron_expr<Scalar>(std::move(q));
        r_ = kron_expr<Scalar>(std::move(r));
    }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(q_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return eigen::index_of(r_.cols()); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// |det K|, which may overflow, and its logarithm, which does not; 0 and -infinity where K is singular. @throws shape_error K is not square
    [[nodiscard]] RealScalar absDeterminant() const {
        return has_square_factors("absDeterminant") ? std::abs(r_.determinant()) : RealScalar(0);
    }
    [[nodiscard]] RealScalar logAbsDeterminant() const {
        return has_square_factors("logAbsDeterminant") ? r_.logAbsDeterminant()
                                                       : -std::numeric_limits<RealScalar>::infinity();
    }
    /// As K.rank(): R is decomposed with column pivoting.
    [[nodiscard]] std::int64_t rank() const { return r_.rank(); }
    /// Q and R with K = Q R, the scalar of K in R.
    [[nodiscard]] const kron_expr<Scalar>& matrixQ() const noexcept { return q_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixR() const noexcept { return r_; }
    /// X with the least |K X - B|, column by column: X = R^-1 Q^H B, two applications, and those of a refinement with R as in kron_lu.
    /// @throws shape_error other rows than K's, a factor with fewer rows than columns; singular_error a factor without full rank,
    /// a scalar 0
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(q_, b.rows(), b.cols());
        if (r_.node().alpha() == Scalar(0)) {
            eigen::throw_zero_scalar("kron_qr::solve with " + detail::kron_text(q_.factor_count()) + ", " +
                                     detail::shape_text(q_.rows(), r_.cols()));
        }
        std::size_t position = 0;
        for (const leaf& r : r_.node().factors()) {
            ++position;
            if (r.rows() != r.cols()) {
                throw shape_error("otimes: kron_qr::solve: factor " + std::to_string(position) + " is " +
                                  detail::shape_text(r.rows(), r.cols()) +
                                  ", with fewer rows than columns. For the solution of least norm write K.solve(B).");
            }
        }
        const result_type projected = q_.adjoint() * b.template cast<scalar>();
        return eigen::inverted_kron<Scalar>(r_, eigen::inverted_kron<Scalar>::kind::inverse, "kron_qr::solve")
            .template solve<result_type>(projected);
    }

private:
    /// Whether all factors are square; of others K is singular. @throws shape_error K is not square
    [[nodiscard]] bool has_square_factors(const char* what) const {
        eigen::require_square(q_.factor_count(), rows(), cols(), what);
        // A factor with fewer columns than rows leaves another one with fewer rows than columns.
        return rows() == 0 || eigen::algebra<kron_expr<Scalar>>::all_square(r_);
    }

    kron_expr<Scalar> q_;
    kron_expr<Scalar> r_;
};

/// Eigenvalues and eigenvectors of a kron of self-adjoint factors: K = V diag(eigenvalues) V^H, V = kron(V_k) unitary. The
/// eigenvalues are in the order of the product, not sorted. The lower triangles of the factors are read.
template <class ScalarType>
class kron_self_adjoint_eigen {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;
    /// @throws shape_error a factor that is not square; unsupported_error a scalar that is not real, a factor whose diagonal is not; singular_error no
    /// convergence
    explicit kron_self_adjoint_eigen(const kron_expr<Scalar>& k) {
        eigen::require_square_factors(k, "eigenvalue decomposition", "For other shapes use kron_svd.");
        eigen::require_finite_scalar(k, "eigenvalue decomposition");
        if (std::imag(k.node().alpha()) != RealScalar(0)) {
            throw unsupported_error(
                "otimes: eigenvalue decomposition of " + eigen::shape_of(k) +
                ": its scalar is not real, so it is not self-adjoint. Decompose the factors alone and multiply "
                "their eigenvalues by the scalar.");
        }
        kron_node<Scalar> vectors;
        std::vector<eigen::dense_vector<RealScalar>>& values = of_factors_;
        eigen::for_each_factor(k, "eigenvalue decomposition", [&](const eigen::factor_reader<Scalar>& f) {
            const auto order = static_cast<Eigen::Index>(f.rows());
            const auto require_real = [&](const auto& diagonal) {
                if (!eigen::is_real_diagonal(diagonal)) {
                    throw unsupported_error("otimes: eigenvalue decomposition of " + eigen::shape_of(k) + ": factor " +
                                            std::to_string(values.size() + 1) + eigen::not_self_adjoint);
                }
            };
            if (f.form() == eigen::factor_form::identity || f.form() == eigen::factor_form::diagonal || order == 0) {
                vectors.append(leaf::identity(f.rows()));
                if (f.form() == eigen::factor_form::diagonal) {
                    require_real(f.finite_diagonal());
                    values.push_back(f.diagonal().real());
                } else {
                    values.push_back(eigen::dense_vector<RealScalar>::Ones(order));
                }
                return;
            }
            const eigen::dense_matrix<Scalar> triangle = f.finite_lower_triangle();
            require_real(triangle.diagonal());
            eigen::dense_matrix<Scalar> v(order, order);
            eigen::dense_vector<RealScalar> of_factor(order);
            if (!eigen::dense_decompositions<Scalar>::self_adjoint_eigen(f.rows(), triangle.data(), nullptr,
                                                                         of_factor.data(), v.data())) {
                throw singular_error("otimes: eigenvalue decomposition of " + eigen::shape_of(k) + ": no convergence.");
            }
            vectors.append(eigen::owned_factor<Scalar>(std::move(v)));
            values.push_back(std::move(of_factor));
        });
        vectors_ = kron_expr<Scalar>(std::move(vectors));
        alpha_ = std::real(k.node().alpha());
        values_ = eigen::values_of_kron<RealScalar>(values, alpha_);
    }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(vectors_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return rows(); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// The eigenvalues in the order of the product, entry (i1, i2, ..) the product of the factors', and the vectors' kron beside them.
    [[nodiscard]] const eigen::dense_vector<RealScalar>& eigenvalues() const noexcept { return values_.values(); }
    [[nodiscard]] const kron_expr<Scalar>& eigenvectors() const noexcept { return vectors_; }
    /// The positive semidefinite square root of K, a kron of the factors' (of F or of -F). @throws singular_error a negative eigenvalue
    [[nodiscard]] kron_expr<Scalar> operatorSqrt() const {
        return root("operatorSqrt", [](RealScalar size) { return std::sqrt(size); });
    }
    /// Its inverse. @throws singular_error an eigenvalue that is not positive
    [[nodiscard]] kron_expr<Scalar> operatorInverseSqrt() const {
        return root("operatorInverseSqrt", [](RealScalar size) { return RealScalar(1) / std::sqrt(size); });
    }
    /// X with K X = B: V diag(1 / eigenvalues) V^H B. @throws shape_error; singular_error an eigenvalue that is 0 to the working precision of its factor
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(vectors_, b.rows(), b.cols());
        if (values_.values().size() > 0) {
            if (alpha_ == RealScalar(0)) {
                eigen::throw_zero_scalar("kron_self_adjoint_eigen::solve with " + eigen::shape_of(vectors_));
            }
            for (std::size_t k = 0; k < of_factors_.size(); ++k) {
                const eigen::dense_vector<RealScalar> sizes = of_factors_[k].cwiseAbs();
                const RealScalar least =
                    vectors_.node().factors()[k].is_identity()  // a diagonal, known to its last digits
                        ? RealScalar(0)
                        : std::numeric_limits<RealScalar>::epsilon() * sizes.maxCoeff();
                if (!(sizes.minCoeff() > least)) {
                    eigen::throw_singular("kron_self_adjoint_eigen::solve", k + 1, sizes.size());
                }
            }
        }
        return eigen::between_vectors<result_type>(
            vectors_, vectors_, values_.exponent(), b.derived(), [this](result_type& parts) {
                parts.array().colwise() /= values_.over_power().template cast<scalar>().array();
            });
    }

private:
    /// kron(V_k diag(function(|values|)) V_k^H), where all eigenvalues of K are positive or, for a function that is finite at 0, 0.
    template <class Function>
    [[nodiscard]] kron_expr<Scalar> root(const char* what, const Function& function) const {
        const eigen::dense_vector<RealScalar>& values = values_.over_power();
        if (values.size() > 0 && !(values.minCoeff() >= RealScalar(0) && std::isfinite(function(values.minCoeff())))) {
            throw singular_error("otimes: " + std::string(what) + " of " + eigen::shape_of(vectors_) +
                                 ": its eigenvalues reach down to " +
                                 detail::number_text(static_cast<double>(values_.values().minCoeff())) + ".");
        }
        kron_node<Scalar> node;
        for (std::size_t k = 0; k < of_factors_.size(); ++k) {
            const eigen::dense_vector<Scalar> f =
                of_factors_[k].unaryExpr([&](RealScalar x) { return function(std::abs(x)); }).template cast<Scalar>();
            const leaf& v = vectors_.node().factors()[k];
            if (v.is_identity()) {
                node.append(eigen::owned_diagonal<Scalar>(f));
            } else {
                const eigen::dense_matrix<Scalar> dense = kron_expr<Scalar>::dense_factor(v);
                node.append(eigen::owned_factor<Scalar>(dense * f.asDiagonal() * dense.adjoint()));
            }
        }
        node.set_alpha(Scalar(function(std::abs(alpha_))));
        return kron_expr<Scalar>(std::move(node));
    }

    kron_expr<Scalar> vectors_;
    std::vector<eigen::dense_vector<RealScalar>> of_factors_;
    RealScalar alpha_ = RealScalar(1);
    eigen::values_of_kron<RealScalar> values_;
};

/// Singular values and vectors: K = U diag(singularValues) V^H, U and V thin krons. The values are in the order of the product.
template <class ScalarType>
class kron_svd {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;
    /// Cost: a Jacobi SVD of each factor; min(rows, cols) of each multiplied out for the values. @throws singular_error a factor with NaN
    /// or Inf; budget_error as kron_qr
    explicit kron_svd(const kron_expr<Scalar>& k) {
        eigen::require_finite_scalar(k, "singular values");
        kron_node<Scalar> u;
        kron_node<Scalar> v;
        std::vector<eigen::dense_vector<RealScalar>> values;
        eigen::for_each_factor(k, "singular values", [&](const eigen::factor_reader<Scalar>& f) {
            const auto rows = static_cast<Eigen::Index>(f.rows());
            if (f.moves_only()) {
                u.append(f.source());
                v.append(leaf::identity(f.rows()));
                values.push_back(eigen::dense_vector<RealScalar>::Ones(rows));
            } else if (f.form() == eigen::factor_form::diagonal) {  // U: of modulus 1
                const eigen::dense_vector<RealScalar> sizes = f.finite_diagonal().cwiseAbs();
                u.append(eigen::owned_diagonal<Scalar>(f.diagonal().unaryExpr([](const Scalar& d) {
                    const RealScalar modulus = std::abs(d);
                    return modulus > RealScalar(0) ? Scalar(d / modulus) : Scalar(1);
                })));
                v.append(leaf::identity(f.rows()));
                values.push_back(sizes);
            } else if (f.empty()) {  // Eigen's decomposition takes none
                u.append(eigen::owned_factor<Scalar>(eigen::dense_matrix<Scalar>(rows, 0)));
                v.append(
                    eigen::owned_factor<Scalar>(eigen::dense_matrix<Scalar>(static_cast<Eigen::Index>(f.cols()), 0)));
                values.emplace_back();
            } else {
                const auto cols = static_cast<Eigen::Index>(f.cols());
                const Eigen::Index thin = (std::min)(rows, cols);
                eigen::dense_matrix<Scalar> of_rows(rows, thin);
                eigen::dense_matrix<Scalar> of_cols(cols, thin);
                eigen::dense_vector<RealScalar> s(thin);
                eigen::dense_decompositions<Scalar>::svd(f.rows(), f.cols(), f.finite().data(), s.data(),
                                                         of_rows.data(), of_cols.data());
                u.append(eigen::owned_factor<Scalar>(std::move(of_rows)));
                v.append(eigen::owned_factor<Scalar>(std::move(of_cols)));
                values.push_back(std::move(s));
            }
        });
        const RealScalar size = std::abs(k.node().alpha());
        values_ = eigen::values_of_kron<RealScalar>(values, size);
        u.set_alpha(size > RealScalar(0) ? Scalar(k.node().alpha() / size) : Scalar(1));
        u_ = kron_expr<Scalar>(std::move(u));
        v_ = kron_expr<Scalar>(std::move(v));
    }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(u_.rows()); }
    [[nodiscard]] Eigen::Index cols() const { return eigen::index_of(v_.rows()); }
    /// Always Eigen::Success: what cannot be decomposed throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// Singular values up to threshold() times the largest count as zero in solve() and rank(); epsilon * min(rows, cols) unless set, as in Eigen.
    [[nodiscard]] RealScalar threshold() const {
        return threshold_ ? *threshold_
                          : Eigen::NumTraits<RealScalar>::epsilon() *
                                RealScalar((std::max)(singularValues().size(), Eigen::Index{1}));
    }
    kron_svd& setThreshold(const RealScalar& threshold) {
        threshold_ = threshold;
        return *this;
    }
    kron_svd& setThreshold(Eigen::Default_t) {
        threshold_.reset();
        return *this;
    }
    /// Of K: how many singular values do not count as zero. (K.rank() is the product of the factors', each with a threshold of its own.)
    [[nodiscard]] Eigen::Index rank() const { return (values_.over_power().array() > least()).count(); }
    /// U and V with K = U diag(singularValues()) V^H, thin; the values in the order of the product, not sorted.
    [[nodiscard]] const kron_expr<Scalar>& matrixU() const noexcept { return u_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixV() const noexcept { return v_; }
    [[nodiscard]] const eigen::dense_vector<RealScalar>& singularValues() const noexcept { return values_.values(); }
    /// X of least norm with the least |K X - B|, column by column: V diag(1 / s) U^H B; see threshold(). @throws shape_error other rows than K's
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(u_, b.rows(), b.cols());
        const eigen::dense_vector<RealScalar> scales = values_.over_power().unaryExpr(
            [least = least()](RealScalar s) { return s > least ? RealScalar(1) / s : RealScalar(0); });
        return eigen::between_vectors<result_type>(u_, v_, values_.exponent(), b.derived(), [&](result_type& parts) {
            parts.array().colwise() *= scales.template cast<scalar>().array();
        });
    }

private:
    /// What counts as zero among the values over their power of two.
    [[nodiscard]] RealScalar least() const {
        return values_.values().size() == 0 ? RealScalar(0) : threshold() * values_.over_power().maxCoeff();
    }

    kron_expr<Scalar> u_;
    kron_expr<Scalar> v_;
    eigen::values_of_kron<RealScalar> values_;
    std::optional<RealScalar> threshold_;
};

template <class ScalarType>
class kron_eigen;

namespace eigen {

/// The members of kron_expr that need factorisations.
template <class Scalar>
struct algebra<kron_expr<Scalar>> {
    using kron_type = kron_expr<Scalar>;
    using real = detail::real_of<Scalar>;

    static bool all_square(const kron_type& k) {
        return std::all_of(k.node().factors().begin(), k.node().factors().end(),
                           [](const leaf& f) { return f.rows() == f.cols(); });
    }

    template <class Rhs>
    static auto solve(const kron_type& k, const Rhs& b) {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        if (all_square(k)) {
            return result_type(kron_lu<Scalar>(k).solve(b));
        }
        require_rows(k, b.rows(), b.cols());
        const result_type right = b.template cast<scalar>();
        return least_squares(k).template solve<result_type>(right);
    }
    template <class Rhs>
    requires is_device_operand<Rhs>
    static auto solve(const kron_type& k, const Rhs& b) {
        if (all_square(k)) {
            return kron_lu<Scalar>(k).solve(b);
        }
        require_rows(k, b.rows(), b.cols());
        return least_squares(k).solve_on_device(device_copies(), b);
    }
    template <class Rhs>
    static auto least_squares_solve(const kron_type& k, const Eigen::MatrixBase<Rhs>& b) {
        return kron_svd<Scalar>(k).solve(b);
    }
    static auto eigenvalues(const kron_type& k) {
        auto result = kron_eigen<Scalar>(k).eigenvalues();
        return result;
    }
    static auto eigenvectors(const kron_type& k) {
        auto result = kron_eigen<Scalar>(k).eigenvectors();
        return result;
    }
    static kron_type inverse(const kron_type& k) { return kron_lu<Scalar>(k).inverse(); }

    static kron_type pseudo_inverse(const kron_type& k) { return least_squares(k).inverse(); }
    /// By the rule of inverse(), which says what it throws otherwise.
    static bool is_invertible(const kron_type& k) {
        if (!all_square(k)) {
            return false;
        }
        try {
            static_cast<void>(kron_lu<Scalar>(k));
            return true;
        } catch (const singular_error&) {
            return false;
        }
    }

    static Scalar determinant(const kron_type& k) {
        require_square(k.factor_count(), k.rows(), k.cols(), "determinant");
        if (k.rows() == 0) {
            return Scalar(1);
        }
        if (!all_square(k)) {
            return Scalar(0);  // rank <= prod min(P, Q) < n
        }
        return determinant_of_factors(k, "determinant").value(k.node().alpha(), k.rows()).value();
    }

    static real log_abs_determinant(const kron_type& k) {
        require_square(k.factor_count(), k.rows(), k.cols(), "logAbsDeterminant");
        if (k.rows() == 0) {
            return real(0);
        }
        if (!all_square(k)) {
            return -std::numeric_limits<real>::infinity();
        }
        return determinant_of_factors(k, "logAbsDeterminant").log_of_size(k.node().alpha(), k.rows());
    }

    /// The largest singular value: the product of the factors'.
    static real operator_norm(const kron_type& k) {
        detail::scaled_number<real> result(std::abs(k.node().alpha()));
        for_each_factor(k, "operatorNorm", [&result](const factor_reader<Scalar>& f) {
            const dense_vector<real> s = extreme_singular_values(f);
            result.multiply(detail::scaled_number<real>(s.size() == 0 ? real(0) : s(0)));
        });
        return result.value();
    }

    static std::int64_t rank(const kron_type& k) {
        require_finite_scalar(k, "rank");
        std::int64_t result = k.node().alpha() == Scalar(0) ? 0 : 1;
        for_each_factor(k, "rank", [&result](const factor_reader<Scalar>& f) {
            if (f.moves_only()) {
                result *= f.rows();
            } else if (f.form() == factor_form::diagonal) {
                const dense_vector<real> sizes = f.finite_diagonal().cwiseAbs();
                result *= (sizes.array() > negligible(sizes)).count();
            } else {
                result *= f.empty() ? 0
                                    : dense_decompositions<Scalar>::rank(
                                          f.rows(), f.cols(), scaled_matrix<Scalar>(f.finite()).matrix.data());
            }
        });
        return result;
    }

    /// Of largest over smallest singular value; infinity where K has rows or columns beyond its rank, 0 * K too; NaN where the scalar is NaN
    /// or infinite; 1 where K has no elements.
    static real condition_number(const kron_type& k) {
        if (k.rows() == 0 || k.cols() == 0) {
            return real(1);
        }
        if (!detail::is_finite(k.node().alpha())) {
            return std::numeric_limits<real>::quiet_NaN();
        }
        detail::scaled_number<real> result(real(1));
        std::int64_t values = 1;
        bool singular = k.node().alpha() == Scalar(0);
        for_each_factor(k, "conditionNumber", [&](const factor_reader<Scalar>& f) {
            const dense_vector<real> s = extreme_singular_values(f);
            values *= (std::min)(f.rows(), f.cols());
            if (s.size() == 0) {
                return;
            }
            singular = singular || s(1) == real(0);
            result.multiply(detail::scaled_number<real>(s(1) == real(0) ? s(0) : s(0) / s(1)));
        });
        if (values < std::min<std::int64_t>(k.rows(), k.cols()) || singular) {
            return std::numeric_limits<real>::infinity();
        }
        return result.value();
    }

    static dense_vector<real> singular_values(const kron_type& k) {
        require_finite_scalar(k, "singularValues");
        std::vector<dense_vector<real>> of_factors;
        for_each_factor(k, "singularValues", [&of_factors](const factor_reader<Scalar>& f) {
            if (f.moves_only()) {
                of_factors.push_back(dense_vector<real>::Ones(static_cast<Eigen::Index>(f.rows())));
            } else if (f.form() == factor_form::diagonal) {
                of_factors.push_back(f.finite_diagonal().cwiseAbs());
            } else if (f.empty()) {
                of_factors.emplace_back();
            } else {
                of_factors.push_back(singular_values_of(f.finite()));
            }
        });
        const dense_vector<real> products = kron_of_vectors<real>(std::move(of_factors), std::abs(k.node().alpha()));
        dense_vector<real> result = dense_vector<real>::Zero((std::min)(k.rows(), k.cols()));
        result.head(products.size()) = products;
        std::sort(result.data(), result.data() + result.size(), [](real a, real b) { return a > b; });
        return result;
    }

private:
    static inverted_kron<Scalar> least_squares(const kron_type& k) {
        require_finite_scalar(k, "pseudo-inverse");
        return inverted_kron<Scalar>(k, inverted_kron<Scalar>::kind::pseudo_inverse, "pseudo-inverse");
    }
    /// @pre all are square and not empty
    static kron_determinant<Scalar> determinant_of_factors(const kron_type& k, const char* what) {
        kron_determinant<Scalar> result;
        for_each_factor(k, what,
                        [&result](const factor_reader<Scalar>& f) { result.append(determinant_of(f), f.rows()); });
        return result;
    }
    /// The largest and the smallest of the min(P, Q) singular values; NaN where an element is NaN or infinite; empty as the factor.
    static dense_vector<real> extreme_singular_values(const factor_reader<Scalar>& f) {
        dense_vector<real> result(2);
        if (f.empty()) {
            return dense_vector<real>();
        }
        if (f.moves_only()) {
            result.setOnes();
            return result;
        }
        if (f.form() == factor_form::diagonal) {
            const dense_vector<real> sizes = f.diagonal().cwiseAbs();
            if (sizes.hasNaN()) {
                result.setConstant(std::numeric_limits<real>::quiet_NaN());
            } else {
                result << sizes.maxCoeff(), sizes.minCoeff();
            }
            return result;
        }
        const dense_matrix<Scalar> dense = f.dense();
        if (!all_finite(dense)) {  // Eigen's decomposition gives nothing
            result.setConstant(std::numeric_limits<real>::quiet_NaN());
            return result;
        }
        const dense_vector<real> s = singular_values_of(dense);
        result << s(0), s(s.size() - 1);
        return result;
    }
    /// Of a matrix that is not empty, descending.
    static dense_vector<real> singular_values_of(const dense_matrix<Scalar>& m) {
        dense_vector<real> result((std::min)(m.rows(), m.cols()));
        dense_decompositions<Scalar>::svd(m.rows(), m.cols(), m.data(), result.data(), nullptr, nullptr);
        return result;
    }
};

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file decompositions.hpp
/// LU, Cholesky, QR, eigenvalue and singular value decompositions of a Kronecker product, each the Kronecker product of its
/// factors' decompositions; inverse, pseudo-inverse, determinant, rank and condition number from them.
///
/// Mathematics. kron(F1, .., FN) = alpha * kron of decomposed factors, and by the mixed-product rule the parts gather:
///
///     LU         kron(P_k)^T kron(L_k) kron(U_k)             Cholesky   kron(L_k) kron(L_k)^H
///     QR         kron(Q_k) kron(R_k)                         SVD        kron(U_k) diag(kron(s_k)) kron(V_k)^H
///     self-adjoint eigenvalues    kron(V_k) diag(kron(l_k)) kron(V_k)^H
///     det K = alpha^n * prod_k det(F_k)^(n / n_k),  n = n_1 * .. * n_N          rank K = prod_k rank F_k
///
/// (Van Loan, The ubiquitous Kronecker product, 2000; Horn and Johnson, Topics in Matrix Analysis, chapter 4.)
/// Cost: the factors' decompositions, O(n_k^3) each; solving is one or two applications of K. Identities, permutations and diagonals
/// (also sparse ones) are decomposed without any work and stay what they are; others become dense, within a limit (factors.hpp).
/// Errors: singular_error for NaN and Inf where an algorithm does not pass them on, budget_error beyond that limit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/dense_decompositions.hpp>
#include <otimes/adapt/eigen/factors.hpp>
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
    throw singular_error("otimes: " + of + ": its scalar is 0.");
}

[[noreturn]] inline void throw_singular(const char* what, std::size_t position, std::int64_t order) {
    throw singular_error("otimes: " + std::string(what) + ": factor " + std::to_string(position) + ", " +
                         detail::shape_text(order, order) +
                         ", is singular to working precision. For the solution of least norm use pseudoInverse().");
}

/// scale * kron(v1, .., vN) as a vector. Their powers of two are dealt out evenly first: products of some of them do not overflow or
/// vanish where those of all do not.
template <class Scalar>
dense_vector<Scalar> kron_of_vectors(std::vector<dense_vector<Scalar>> vectors, const Scalar& scale = Scalar(1)) {
    vectors.insert(vectors.begin(),
                   dense_vector<Scalar>::Constant(1, scale));  // first: behind, it would take the whole once more
    int left = 0;
    std::vector<int> exponents;
    for (const dense_vector<Scalar>& v : vectors) {
        exponents.push_back(exponent_of_largest(v));
        left += exponents.back();
    }
    for (std::size_t k = 0; k < vectors.size(); ++k) {
        const int share = left / static_cast<int>(vectors.size() - k);
        left -= share;
        if (share != exponents[k]) {
            vectors[k] = vectors[k].unaryExpr([shift = share - exponents[k]](const Scalar& x) {
                return detail::scaled_number<Scalar>(x, shift).value();
            });
        }
    }
    dense_vector<Scalar> result = dense_vector<Scalar>::Ones(1);
    for (const dense_vector<Scalar>& v : vectors) {
        dense_vector<Scalar> next(result.size() * v.size());
        for (Eigen::Index i = 0; i < result.size(); ++i) {
            next.segment(i * v.size(), v.size()) = result(i) * v;
        }
        result.swap(next);
    }
    return result;
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

namespace eigen {

/// How much roundings of K^-1 B grow where K's factor F, of inverse G, multiplies them: max_j |diag(norms of F's columns) G e_j|.
template <class Scalar>
detail::real_of<Scalar> amplification_of(const dense_matrix<Scalar>& f, const dense_matrix<Scalar>& inverse) {
    using real = detail::real_of<Scalar>;
    const dense_vector<real> norms = f.colwise().norm().transpose();
    real most(0);
    for (Eigen::Index j = 0; j < inverse.cols(); ++j) {
        real squares(0);
        for (Eigen::Index i = 0; i < inverse.rows(); ++i) {
            const real element = norms(i) * std::abs(inverse(i, j));
            squares += element * element;
        }
        most = squares > most || std::isnan(squares) ? squares : most;
    }
    return std::sqrt(most);
}

/// True where a product with the inverses of K's factors leaves a larger residual than a solve: K has a large condition number (rcond: an estimate of
/// its reciprocal), and makes the roundings of K^-1 B large. Independent roundings of the products with the inverses G come back through K as at most
/// prod_k amplification_of(F_k, G_k) of them, relative to |B| <= |K| |X|; up to 16 the residual stayed below 3 roundings of |K| |X| in float, where LU
/// of the whole K left up to 4 (docs/algebra/solving.md).
template <class Real>
bool loses_digits(Real rcond, Real amplification) noexcept {
    return rcond < Real(100) * std::sqrt(std::numeric_limits<Real>::epsilon()) && !(amplification <= Real(16));
}

}  // namespace eigen

/// LU decompositions of the factors of a kron with square factors: solve, inverse, determinant. Made once, used often; `solve`
/// then costs one application of K, and two more where refines().
template <class ScalarType>
class kron_lu {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;

    /// @throws shape_error a factor that is not square; singular_error a factor whose reciprocal condition number is not above epsilon, a diagonal
    /// with a 0 (others are inverted entry by entry, whatever their condition), one with NaN or Inf
    explicit kron_lu(kron_expr<Scalar> k) : kron_(std::move(k)) {
        eigen::require_square_factors(kron_, "LU decomposition", "For least squares use pseudoInverse().");
        eigen::require_finite_scalar(kron_, "LU decomposition");
        eigen::enable_structure<Scalar>();
        kron_node<Scalar> inverse;
        kron_node<Scalar> own;
        std::size_t position = 0;
        for (const leaf& f : kron_.node().factors()) {
            inverse.append(inverted(f, ++position, own));
        }
        if (kron_.node().alpha() == Scalar(0)) {
            eigen::throw_zero_scalar("LU decomposition of " + eigen::shape_of(kron_));
        }
        inverse.set_alpha(Scalar(1) / kron_.node().alpha());
        inverse_ = kron_expr<Scalar>(std::move(inverse));
        // The matrices may change, or end, before the decomposition does.
        own.set_alpha(kron_.node().alpha());
        if (!refines()) {  // no more than the shape is asked for
            kron_node<Scalar> shape;
            for (const leaf& f : own.factors()) {
                shape.append(leaf::identity(f.rows()));
            }
            own = std::move(shape);
        }
        kron_ = kron_expr<Scalar>(std::move(own));
    }

    /// kron of the factors' inverses.
    [[nodiscard]] const kron_expr<Scalar>& inverse() const noexcept { return inverse_; }
    /// An estimate of the reciprocal of the condition number: the product of the factors'.
    [[nodiscard]] RealScalar rcond() const noexcept { return rcond_; }
    /// Whether solve() takes a step of refinement: where K has a large condition number and makes the roundings of K^-1 B
    /// large, eigen::loses_digits.
    [[nodiscard]] bool refines() const noexcept { return eigen::loses_digits(rcond_, amplification_); }

    /// X with K X = B, rows(K) = rows(B). The inverses of the factors are applied, one chain; where refines() a step of
    /// refinement makes the residual as small as that of an LU solve (Higham, Accuracy and Stability of Numerical Algorithms,
    /// chapter 12). @throws shape_error
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(kron_, b.rows(), b.cols());
        result_type x = inverse_ * b.derived();
        if (refines()) {
            result_type residual = b.template cast<scalar>();
            residual.noalias() -= kron_ * x;
            x.noalias() += inverse_ * residual;
        }
        return x;
    }
    /// The same for B in device memory (otimes/cuda.hpp); a DeviceMatrix.
    template <class Rhs>
    requires is_device_operand<Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        eigen::require_rows(kron_, b.rows(), b.cols());
        return apply_inverse(kron_, inverse_, refines(), kept_, b);
    }

private:
    /// The inverse of f; appends a copy of f to `own`.
    leaf inverted(const leaf& f, std::size_t position, kron_node<Scalar>& own) {
        const eigen::factor_reader<Scalar> reader(f, position, "inverse");
        if (reader.moves_only()) {
            own.append(f);  // of its own
            leaf result = f;
            result.transpose();
            return result;
        }
        if (reader.form() == eigen::factor_form::diagonal) {
            RealScalar least = std::numeric_limits<RealScalar>::infinity();
            RealScalar most(0);
            for (const Scalar& d : reader.finite_diagonal()) {
                least = (std::min)(least, RealScalar(std::abs(d)));
                most = (std::max)(most, RealScalar(std::abs(d)));
            }
            if (f.rows() > 0 && !(least > RealScalar(0))) {
                eigen::throw_singular("inverse", position, f.rows());
            }
            rcond_ = f.rows() > 0 ? rcond_ * (least / most) : rcond_;
            own.append(eigen::owned_diagonal<Scalar>(reader.diagonal()));
            return eigen::owned_diagonal<Scalar>(reader.diagonal().cwiseInverse());
        }
        auto dense = reader.finite();
        own.append(eigen::owned_factor<Scalar>(dense));
        if (dense.rows() == 0) {
            return eigen::owned_factor<Scalar>(std::move(dense));
        }
        const eigen::scaled_matrix<Scalar> scaled(std::move(dense));
        eigen::dense_matrix<Scalar> inverse(scaled.matrix.rows(), scaled.matrix.cols());
        const RealScalar rcond =
            eigen::dense_decompositions<Scalar>::lu(f.rows(), scaled.matrix.data(), nullptr, inverse.data()).rcond;
        if (!(rcond > std::numeric_limits<RealScalar>::epsilon())) {
            eigen::throw_singular("inverse", position, f.rows());
        }
        rcond_ *= rcond;
        amplification_ *= eigen::amplification_of<Scalar>(scaled.matrix, inverse);
        inverse *= scaled.power(-1);
        return eigen::owned_factor<Scalar>(std::move(inverse));
    }

    kron_expr<Scalar> kron_;
    kron_expr<Scalar> inverse_;
    RealScalar rcond_ = RealScalar(1);
    RealScalar amplification_ = RealScalar(1);  ///< of roundings in K^-1 B by K, see refines()
    device_copies kept_;
};

/// Cholesky decompositions of the factors of a kron of self-adjoint positive definite factors: K = L L^H, L = kron(L_k).
template <class ScalarType>
class kron_llt {
public:
    using Scalar = ScalarType;

    /// The lower triangles of the factors are read. @throws shape_error, singular_error where a factor or the scalar is not positive
    explicit kron_llt(const kron_expr<Scalar>& k) {
        eigen::require_square_factors(k, "Cholesky decomposition", "For least squares use pseudoInverse().");
        eigen::require_finite_scalar(k, "Cholesky decomposition");
        using real = detail::real_of<Scalar>;
        const Scalar alpha = k.node().alpha();
        if (!(std::real(alpha) > real(0)) || std::imag(alpha) != real(0)) {
            throw singular_error("otimes: Cholesky decomposition of " + eigen::shape_of(k) +
                                 ": its scalar is not positive.");
        }
        kron_node<Scalar> lower;
        kron_node<Scalar> inverse_lower;
        kron_node<Scalar> inverse;
        real rcond(1);
        real amplification(1);  // as in kron_lu
        bool finite = true;     // the inverses of tiny factors may not be, where those of their triangles are
        eigen::for_each_factor(k, "Cholesky decomposition", [&](const eigen::factor_reader<Scalar>& f) {
            const auto require = [&](bool definite) {
                if (!definite) {
                    throw singular_error("otimes: Cholesky decomposition of " + eigen::shape_of(k) + ": factor " +
                                         std::to_string(lower.factors().size() + 1) + " is not positive definite.");
                }
            };
            if (f.form() == eigen::factor_form::identity) {
                for (kron_node<Scalar>* const node : {&lower, &inverse_lower, &inverse}) {
                    node->append(leaf::identity(f.rows()));
                }
            } else if (f.form() == eigen::factor_form::permutation) {
                require(false);  // there is a 0 on the diagonal
            } else if (f.form() == eigen::factor_form::diagonal) {
                const eigen::dense_vector<real> d = f.finite_diagonal().real();
                require(d.size() == 0 || (d.minCoeff() > real(0) && f.diagonal() == d.template cast<Scalar>()));
                const eigen::dense_vector<Scalar> roots = d.cwiseSqrt().template cast<Scalar>();
                lower.append(eigen::owned_diagonal<Scalar>(roots));
                inverse_lower.append(eigen::owned_diagonal<Scalar>(roots.cwiseInverse()));
                const eigen::dense_vector<Scalar> inverted = d.cwiseInverse().template cast<Scalar>();
                finite = finite && inverted.allFinite();
                inverse.append(eigen::owned_diagonal<Scalar>(inverted));
                rcond = d.size() > 0 ? rcond * (d.minCoeff() / d.maxCoeff()) : rcond;
            } else {
                // Over an even power of two: Eigen divides by complex numbers through their squares.
                eigen::scaled_matrix<Scalar> scaled(f.finite().template triangularView<Eigen::Lower>());
                const int odd = scaled.exponent % 2 != 0 ? 1 : 0;
                if (odd != 0) {
                    scaled.matrix *= Scalar(2);
                }
                const int half = (scaled.exponent - odd) / 2;
                const auto power = [](int exponent) {
                    return detail::scaled_number<Scalar>(Scalar(1), exponent).value();
                };
                const Eigen::Index n = scaled.matrix.rows();
                eigen::dense_matrix<Scalar> l(n, n);
                eigen::dense_matrix<Scalar> inverted_l(n, n);
                eigen::dense_matrix<Scalar> inverted(n, n);
                if (n > 0) {
                    const auto llt = eigen::dense_decompositions<Scalar>::cholesky(n, scaled.matrix.data(), l.data(),
                                                                                   inverted_l.data(), inverted.data());
                    require(llt.definite);
                    rcond *= llt.rcond;
                    amplification *= eigen::amplification_of<Scalar>(
                        eigen::dense_matrix<Scalar>(scaled.matrix.template selfadjointView<Eigen::Lower>()), inverted);
                }
                inverse_lower.append(eigen::owned_factor<Scalar>(inverted_l * power(-half)));
                lower.append(eigen::owned_factor<Scalar>(l * power(half)));
                const eigen::dense_matrix<Scalar> unscaled = inverted * power(-half) * power(-half);
                finite = finite && unscaled.allFinite();
                inverse.append(eigen::owned_factor<Scalar>(unscaled));
            }
        });
        const Scalar root(std::sqrt(std::real(alpha)));
        lower.set_alpha(root);
        inverse_lower.set_alpha(Scalar(1) / root);
        inverse.set_alpha(Scalar(1) / alpha);
        lower_ = kron_expr<Scalar>(std::move(lower));
        by_triangles_ =
            !finite || !std::isfinite(std::real(Scalar(1) / alpha)) || eigen::loses_digits(rcond, amplification);
        inverse_ = kron_expr<Scalar>(std::move(by_triangles_ ? inverse_lower : inverse));
    }
    /// L, lower triangular.
    [[nodiscard]] const kron_expr<Scalar>& matrixL() const noexcept { return lower_; }
    /// log det K, which does not overflow.
    [[nodiscard]] detail::real_of<Scalar> logAbsDeterminant() const {
        detail::real_of<Scalar> result(0);
        if (lower_.rows() == 0) {
            return result;
        }
        const auto n = static_cast<detail::real_of<Scalar>>(lower_.rows());
        for (const leaf& l : lower_.node().factors()) {
            detail::real_of<Scalar> sum(0);
            for (std::int64_t i = 0; !l.is_identity() && i < l.rows(); ++i) {
                sum += std::log(std::abs(kron_node<Scalar>::element(l, l.view(), i, i)));
            }
            result += n / static_cast<detail::real_of<Scalar>>(l.rows()) * 2 * sum;
        }
        return result + 2 * n * std::log(std::abs(lower_.node().alpha()));
    }
    /// Whether solve() applies the inverses of L and of L^H, two chains, where that of K would leave a larger residual (eigen::loses_digits) or is not
    /// finite.
    [[nodiscard]] bool solves_by_triangles() const noexcept { return by_triangles_; }
    /// X with K X = B, rows(K) = rows(B). The inverses of the factors are applied, one chain, or two where solves_by_triangles(). @throws shape_error
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(lower_, b.rows(), b.cols());
        if (!by_triangles_) {
            result_type x = inverse_ * b.derived();
            return x;
        }
        const result_type half = inverse_ * b.derived();
        result_type x = inverse_.adjoint() * half;
        return x;
    }
    /// The same for B in device memory (otimes/cuda.hpp); a DeviceMatrix.
    template <class Rhs>
    requires is_device_operand<Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        eigen::require_rows(lower_, b.rows(), b.cols());
        if (!by_triangles_) {
            return apply_inverse(inverse_, inverse_, false, kept_, b);
        }
        const auto half = apply_inverse(lower_, inverse_, false, kept_, b);
        const kron_expr<Scalar> upper = inverse_.adjoint();
        return apply_inverse(upper, upper, false, kept_upper_, half);
    }

private:
    kron_expr<Scalar> lower_;
    bool by_triangles_ = false;
    kron_expr<Scalar> inverse_;  ///< of L where by_triangles_, else of K
    device_copies kept_;
    device_copies kept_upper_;
};

/// QR decompositions of the factors: K = Q R, Q = kron(Q_k) with orthonormal columns (thin), R = kron(R_k), where each factor
/// has at least as many rows as columns.
template <class ScalarType>
class kron_qr {
public:
    using Scalar = ScalarType;
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
    /// Q and R with K = Q R, the scalar of K in R.
    [[nodiscard]] const kron_expr<Scalar>& matrixQ() const noexcept { return q_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixR() const noexcept { return r_; }
    /// X with the least |K X - B|, column by column: X = R^-1 Q^H B, two applications, the triangular factors of R in place.
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
        kron_node<Scalar> inverse;
        for (const leaf& r : r_.node().factors()) {
            const std::size_t position = inverse.factors().size() + 1;
            if (r.rows() != r.cols()) {
                throw shape_error("otimes: kron_qr::solve: factor " + std::to_string(position) + " is " +
                                  detail::shape_text(r.rows(), r.cols()) +
                                  ", with fewer rows than columns. For the solution of least norm write K.solve(B).");
            }
            if (r.is_identity()) {
                inverse.append(r);
                continue;
            }
            const eigen::dense_vector<Scalar> diagonal = kron_expr<Scalar>(one_factor(r)).diagonal();
            using real = detail::real_of<Scalar>;
            const eigen::dense_vector<real> sizes = diagonal.cwiseAbs();
            const real least =
                Eigen::NumTraits<real>::epsilon() * real(r.rows()) * (sizes.size() == 0 ? real(0) : sizes.maxCoeff());
            if (sizes.size() > 0 && !(sizes.minCoeff() > least)) {
                eigen::throw_singular("kron_qr::solve", position, r.rows());
            }
            if (r.kind() == factor_kind::diagonal) {
                inverse.append(eigen::owned_diagonal<Scalar>(diagonal.cwiseInverse()));
                continue;
            }
            // Without pivots the diagonal need not show that a rank is missing; the condition number does.
            const eigen::scaled_matrix<Scalar> upper(kron_expr<Scalar>::dense_factor(r));
            const eigen::dense_matrix<Scalar> of_upper = upper.matrix.template triangularView<Eigen::Upper>().solve(
                eigen::dense_matrix<Scalar>::Identity(upper.matrix.rows(), upper.matrix.cols()));
            const auto size_of = [](const eigen::dense_matrix<Scalar>& m) {
                return m.size() == 0 ? real(0) : m.cwiseAbs().colwise().sum().maxCoeff();
            };
            if (!(size_of(upper.matrix) * size_of(of_upper) * Eigen::NumTraits<real>::epsilon() < real(1))) {
                eigen::throw_singular("kron_qr::solve", position, r.rows());
            }
            inverse.append(eigen::owned_factor<Scalar>(of_upper * upper.power(-1)));
        }
        inverse.set_alpha(Scalar(1) / r_.node().alpha());
        const result_type projected = q_.adjoint() * b.template cast<scalar>();
        return result_type(kron_expr<Scalar>(std::move(inverse)) * projected);
    }

private:
    static kron_node<Scalar> one_factor(const leaf& f) {
        kron_node<Scalar> node;
        node.append(f);
        return node;
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
    /// @throws shape_error a factor that is not square; unsupported_error a scalar that is not real; singular_error no convergence
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
        std::vector<eigen::dense_vector<RealScalar>> values;
        eigen::for_each_factor(k, "eigenvalue decomposition", [&](const eigen::factor_reader<Scalar>& f) {
            const auto order = static_cast<Eigen::Index>(f.rows());
            if (f.form() == eigen::factor_form::identity || f.form() == eigen::factor_form::diagonal || order == 0) {
                vectors.append(leaf::identity(f.rows()));
                values.push_back(f.form() == eigen::factor_form::diagonal
                                     ? f.finite_diagonal().real().eval()
                                     : eigen::dense_vector<RealScalar>::Ones(order).eval());
                return;
            }
            eigen::dense_matrix<Scalar> v(order, order);
            eigen::dense_vector<RealScalar> of_factor(order);
            if (!eigen::dense_decompositions<Scalar>::self_adjoint_eigen(f.rows(), f.finite().data(), nullptr,
                                                                         of_factor.data(), v.data())) {
                throw singular_error("otimes: eigenvalue decomposition of " + eigen::shape_of(k) + ": no convergence.");
            }
            vectors.append(eigen::owned_factor<Scalar>(std::move(v)));
            values.push_back(std::move(of_factor));
        });
        vectors_ = kron_expr<Scalar>(std::move(vectors));
        values_ = eigen::kron_of_vectors<RealScalar>(std::move(values), std::real(k.node().alpha()));
    }
    /// The eigenvalues in the order of the product, entry (i1, i2, ..) the product of the factors', and the vectors' kron beside them.
    [[nodiscard]] const eigen::dense_vector<RealScalar>& eigenvalues() const noexcept { return values_; }
    [[nodiscard]] const kron_expr<Scalar>& eigenvectors() const noexcept { return vectors_; }

private:
    kron_expr<Scalar> vectors_;
    eigen::dense_vector<RealScalar> values_;
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
        values_ = eigen::kron_of_vectors<RealScalar>(std::move(values), size);
        u.set_alpha(size > RealScalar(0) ? Scalar(k.node().alpha() / size) : Scalar(1));
        u_ = kron_expr<Scalar>(std::move(u));
        v_ = kron_expr<Scalar>(std::move(v));
    }
    /// U and V with K = U diag(singularValues()) V^H, thin; the values in the order of the product, not sorted.
    [[nodiscard]] const kron_expr<Scalar>& matrixU() const noexcept { return u_; }
    [[nodiscard]] const kron_expr<Scalar>& matrixV() const noexcept { return v_; }
    [[nodiscard]] const eigen::dense_vector<RealScalar>& singularValues() const noexcept { return values_; }
    /// X of least norm with the least |K X - B|, column by column: V diag(1 / s) U^H B. Singular values up to
    /// epsilon * min(rows, cols) of the largest count as zero, as in Eigen. @throws shape_error other rows than K's
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        eigen::require_rows(u_, b.rows(), b.cols());
        const RealScalar least = values_.size() == 0 ? RealScalar(0)
                                                     : Eigen::NumTraits<RealScalar>::epsilon() *
                                                           RealScalar(values_.size()) * values_.maxCoeff();
        const eigen::dense_vector<RealScalar> scales =
            values_.unaryExpr([least](RealScalar s) { return s > least ? RealScalar(1) / s : RealScalar(0); });
        result_type parts = u_.adjoint() * b.template cast<scalar>();
        parts.array().colwise() *= scales.template cast<scalar>().array();
        return result_type(v_ * parts);
    }

private:
    kron_expr<Scalar> u_;
    kron_expr<Scalar> v_;
    eigen::dense_vector<RealScalar> values_;
};

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
    static void require_square(const kron_type& k, const char* what) {
        if (k.rows() != k.cols()) {
            throw shape_error("otimes: " + std::string(what) + " of " + shape_of(k) + ": the product must be square.");
        }
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
        result_type x = pseudo_inverse(k) * right;
        return x;
    }
    template <class Rhs>
    requires is_device_operand<Rhs>
    static auto solve(const kron_type& k, const Rhs& b) {
        if (all_square(k)) {
            return kron_lu<Scalar>(k).solve(b);
        }
        require_rows(k, b.rows(), b.cols());
        const kron_type inverse = pseudo_inverse(k);
        return apply_inverse(inverse, inverse, false, device_copies(), b);
    }
    static kron_type inverse(const kron_type& k) { return kron_lu<Scalar>(k).inverse(); }

    static kron_type pseudo_inverse(const kron_type& k) {
        require_finite_scalar(k, "pseudo-inverse");
        kron_node<Scalar> result;
        for_each_factor(k, "pseudo-inverse", [&result](const factor_reader<Scalar>& f) {
            if (f.moves_only()) {
                leaf inverse = f.source();
                inverse.transpose();
                result.append(std::move(inverse));
            } else if (f.form() == factor_form::diagonal) {
                const real least = negligible(f.finite_diagonal().cwiseAbs());
                result.append(owned_diagonal<Scalar>(f.diagonal().unaryExpr(
                    [least](const Scalar& d) { return std::abs(d) > least ? Scalar(Scalar(1) / d) : Scalar(0); })));
            } else if (f.empty()) {
                result.append(owned_factor<Scalar>(
                    dense_matrix<Scalar>(static_cast<Eigen::Index>(f.cols()), static_cast<Eigen::Index>(f.rows()))));
            } else {
                const scaled_matrix<Scalar> scaled(f.finite());
                dense_matrix<Scalar> inverse(scaled.matrix.cols(), scaled.matrix.rows());
                dense_decompositions<Scalar>::pseudo_inverse(f.rows(), f.cols(), scaled.matrix.data(), inverse.data());
                inverse *= scaled.power(-1);
                result.append(owned_factor<Scalar>(std::move(inverse)));
            }
        });
        const Scalar alpha = k.node().alpha();
        result.set_alpha(alpha == Scalar(0) ? Scalar(0) : Scalar(Scalar(1) / alpha));
        return kron_type(std::move(result));
    }

    static Scalar determinant(const kron_type& k) {
        require_square(k, "determinant");
        if (k.rows() == 0) {
            return Scalar(1);
        }
        if (!all_square(k)) {
            return Scalar(0);  // rank <= prod min(P, Q) < n
        }
        const std::int64_t n = k.rows();
        number result = number(k.node().alpha()).power(n);
        for_each_factor(k, "determinant", [&result, n](const factor_reader<Scalar>& f) {
            result.multiply(determinant_of(f).power(n / f.rows()));
        });
        return result.value();
    }

    static real log_abs_determinant(const kron_type& k) {
        require_square(k, "logAbsDeterminant");
        if (k.rows() == 0) {
            return real(0);
        }
        if (!all_square(k)) {
            return -std::numeric_limits<real>::infinity();
        }
        const auto n = static_cast<real>(k.rows());
        real result = n * number(k.node().alpha()).log_of_size();
        for_each_factor(k, "logAbsDeterminant", [&result, n](const factor_reader<Scalar>& f) {
            result += n / static_cast<real>(f.rows()) * determinant_of(f).log_of_size();
        });
        return result;
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
    /// or infinite.
    static real condition_number(const kron_type& k) {
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
        if (values < std::min<std::int64_t>(k.rows(), k.cols()) || (singular && k.rows() != 0 && k.cols() != 0)) {
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
    using number = detail::scaled_number<Scalar>;

    /// What counts as 0 among the elements of a diagonal of these sizes, as in Eigen's decompositions that reveal a rank.
    static real negligible(const dense_vector<real>& sizes) {
        return sizes.size() == 0
                   ? real(0)
                   : Eigen::NumTraits<real>::epsilon() * static_cast<real>(sizes.size()) * sizes.maxCoeff();
    }

    /// @pre square and not empty
    static number determinant_of(const factor_reader<Scalar>& f) {
        if (f.form() == factor_form::identity) {
            return number(Scalar(1));
        }
        number det(Scalar(1));
        const auto multiply = [&det](const auto& diagonal) {
            for (Eigen::Index i = 0; i < diagonal.size(); ++i) {
                det.multiply(number(diagonal(i)));
            }
        };
        if (f.form() == factor_form::diagonal) {
            multiply(f.diagonal());
        } else if (f.form() == factor_form::permutation) {
            return number(Scalar(sign_of(f.source())));
        } else {
            const scaled_matrix<Scalar> scaled(f.dense());
            dense_vector<Scalar> pivots(scaled.matrix.rows());
            const auto lu = dense_decompositions<Scalar>::lu(f.rows(), scaled.matrix.data(), pivots.data(), nullptr);
            det = number(Scalar(lu.sign), scaled.exponent * f.rows());
            multiply(pivots);
        }
        return det;
    }
    /// The sign of a permutation: each cycle of even length changes it.
    static real sign_of(const leaf& permutation) {
        const auto* const to = static_cast<const std::int32_t*>(permutation.view().data);
        std::vector<bool> seen(static_cast<std::size_t>(permutation.rows()), false);
        real sign(1);
        for (std::size_t start = 0; start < seen.size(); ++start) {
            for (std::size_t i = start, length = 0; !seen[i]; i = static_cast<std::size_t>(to[i]), ++length) {
                seen[i] = true;
                sign = length > 0 ? -sign : sign;
            }
        }
        return sign;
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

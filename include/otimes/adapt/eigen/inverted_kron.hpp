// SPDX-License-Identifier: MIT
/// @file inverted_kron.hpp
/// The inverse or the pseudo-inverse of a Kronecker product as the Kronecker product of its factors', and solving with it.
///
/// The roundings of K^-1 B come back through K. Let G_k be the (pseudo-)inverse of the factor F_k and a_k = amplification_of(F_k, G_k). What is left
/// to do before G_k is applied is B = K X without the factors before it, which is at most |F_k| .. |F_N| |X|, and the factors up to F_k bring a rounding
/// of the product with G_k back: independent roundings leave at most sqrt(sum_k a_k^2) of |K| |X|, factors that are multiplied out being one. Measured in |B| they leave a = prod_k a_k at most, which says how far
/// a step, X += K^-1 (B - K X), reduces the residual R: |K| |K^-1 R| may be far above |R|. So a step multiplies it by a * epsilon. (Of a least-squares problem
/// that is the part of R that K X can change.)
/// One or two are taken where they bring it down to 16; where more would be needed, each factor is solved with by its decomposition, one after the
/// other: that is backward stable whatever a is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
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
#include <otimes/plan/grouping.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

[[noreturn]] inline void throw_singular(const char* what, std::size_t position, std::int64_t order) {
    throw singular_error("otimes: " + std::string(what) + ": factor " + std::to_string(position) + ", " +
                             detail::shape_text(order, order) +
                             ", is singular to working precision. For the solution of least norm use pseudoInverse().",
                         /*zero_determinant=*/true);
}

/// What counts as 0 among the elements of a diagonal of these sizes, as in Eigen's decompositions that reveal a rank.
template <class Real>
Real negligible(const dense_vector<Real>& sizes) {
    return sizes.size() == 0 ? Real(0)
                             : Eigen::NumTraits<Real>::epsilon() * static_cast<Real>(sizes.size()) * sizes.maxCoeff();
}

/// Integers of the same sum as `exponents` that differ by at most one.
inline std::vector<int> dealt_evenly(const std::vector<int>& exponents) {
    std::int64_t left = 0;
    for (const int e : exponents) {
        left += e;
    }
    std::vector<int> shares;
    while (shares.size() < exponents.size()) {
        shares.push_back(static_cast<int>(left / static_cast<std::int64_t>(exponents.size() - shares.size())));
        left -= shares.back();
    }
    return shares;
}

/// m * 2^exponent, also where the power alone is out of the range.
template <class Derived>
void multiply_by_power(Eigen::MatrixBase<Derived>& m, int exponent) {
    using scalar = typename Derived::Scalar;
    if (exponent != 0) {
        m = m.unaryExpr([exponent](const scalar& x) {
                 return detail::scaled_number<scalar>(x, exponent).value();
             }).eval();
    }
}

/// How much roundings of K^-1 B grow where K's factor F, of inverse G, multiplies them: max_j |diag(norms of F's columns) G e_j|. Does not change when F's
/// columns are scaled.
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

/// Roundings of |K| |X| that a solve may leave: up to this amplification the residual of K^-1 B stayed below 3 in float, where LU of the whole K left up
/// to 4 (docs/algebra/solving.md).
inline constexpr int allowed_roundings = 16;

/// True of a residual of so many roundings, larger than that of a solve.
template <class Real>
bool loses_digits(Real roundings) noexcept {
    return !(roundings <= Real(allowed_roundings));
}

/// The a_k of the factors' inverses; see the file comment.
template <class Real>
class amplification {
public:
    /// The next factor, a dense one of this order. `is_real`: whether its elements are, so that neighbours of 3 x 3 and 4 x 4 are not multiplied out.
    void append(Real a, std::int64_t order, bool is_real) {
        product_ *= a;
        if (is_real && order == last_order_ && (order == 3 || order == 4)) {
            runs_.clear();
        }
        last_order_ = order;
        // What the planner may multiply out with neighbours in front of it is one factor, whose number is the product.
        Real most(0);
        std::vector<run> longer{{order, a}};
        for (run r : runs_) {
            r.order *= order;
            r.product *= a;
            if (r.order <= planning::most_grouped_extent) {
                longer.push_back(r);
            }
        }
        runs_ = std::move(longer);
        for (const run& r : runs_) {
            most = r.product <= most ? most : r.product;
        }
        squares_ += most * most;
    }
    /// A factor with structure, of order 2 or more, which is not multiplied out: those beside it are no neighbours.
    void append_apart() {
        runs_.clear();
        last_order_ = 0;
    }
    /// Roundings of |B| in K^-1 B.
    [[nodiscard]] Real of_any() const noexcept { return product_; }
    /// Roundings of |K| |X| in K^-1 B, where B = K X.
    [[nodiscard]] Real of_image() const noexcept { return (std::min)(product_, std::sqrt(squares_)); }

private:
    struct run {
        std::int64_t order;
        Real product;
    };
    Real product_ = Real(1);
    Real squares_ = Real(0);
    std::vector<run> runs_;  // neighbours that end with the last factor
    std::int64_t last_order_ = 0;
};

/// How a solve with the inverses comes to a small residual.
struct refinement {
    int steps = 0;
    bool by_factors = false;  ///< each factor by its decomposition, where two steps are too few
};
template <class Real>
refinement refinement_for(const amplification<Real>& a, bool of_image) noexcept {
    refinement result;
    Real left = of_image ? a.of_image() : a.of_any();
    for (; loses_digits(left); left *= a.of_any() * std::numeric_limits<Real>::epsilon()) {
        if (++result.steps > 2) {
            return {0, true};
        }
    }
    return result;
}

/// det K = alpha^n * prod_k det(F_k)^(n / n_k), which does not overflow on the way.
template <class Scalar>
class kron_determinant {
public:
    using number = detail::scaled_number<Scalar>;
    /// Of a factor of this order.
    void append(const number& determinant, std::int64_t order) { parts_.push_back({determinant, order}); }
    /// Of K of order n.
    [[nodiscard]] number value(const Scalar& alpha, std::int64_t n) const {
        number result = n == 0 ? number(Scalar(1)) : number(alpha).power(n);
        for (const part& p : parts_) {
            if (n > 0) {
                result.multiply(p.determinant.power(n / p.order));
            }
        }
        return result;
    }
    /// log |det K|; -infinity where it is 0.
    [[nodiscard]] detail::real_of<Scalar> log_of_size(const Scalar& alpha, std::int64_t n) const {
        using real = detail::real_of<Scalar>;
        if (n == 0) {
            return real(0);
        }
        real result = static_cast<real>(n) * number(alpha).log_of_size();
        for (const part& p : parts_) {
            result += static_cast<real>(n) / static_cast<real>(p.order) * p.determinant.log_of_size();
        }
        return result;
    }

private:
    struct part {
        number determinant;
        std::int64_t order;
    };
    std::vector<part> parts_;
};

/// The sign of a permutation: each cycle of even length changes it.
template <class Real>
Real sign_of(const leaf& permutation) {
    const auto* const to = static_cast<const std::int32_t*>(permutation.view().data);
    std::vector<bool> seen(static_cast<std::size_t>(permutation.rows()), false);
    Real sign(1);
    for (std::size_t start = 0; start < seen.size(); ++start) {
        for (std::size_t i = start, length = 0; !seen[i]; i = static_cast<std::size_t>(to[i]), ++length) {
            seen[i] = true;
            sign = length > 0 ? -sign : sign;
        }
    }
    return sign;
}

/// sign * the product of the elements * 2^exponent
template <class Scalar>
detail::scaled_number<Scalar> product_of_elements(const dense_vector<Scalar>& d,
                                                  detail::real_of<Scalar> sign = detail::real_of<Scalar>(1),
                                                  std::int64_t exponent = 0) {
    detail::scaled_number<Scalar> result(Scalar(sign), exponent);
    for (Eigen::Index i = 0; i < d.size(); ++i) {
        result.multiply(detail::scaled_number<Scalar>(d(i)));
    }
    return result;
}

/// Of a square factor that is not empty.
template <class Scalar>
detail::scaled_number<Scalar> determinant_of(const factor_reader<Scalar>& f) {
    using number = detail::scaled_number<Scalar>;
    if (f.form() == factor_form::identity) {
        return number(Scalar(1));
    }
    if (f.form() == factor_form::diagonal) {
        return product_of_elements<Scalar>(f.diagonal());
    }
    if (f.form() == factor_form::permutation) {
        return number(Scalar(sign_of<detail::real_of<Scalar>>(f.source())));
    }
    const scaled_matrix<Scalar> scaled(f.dense());
    dense_vector<Scalar> pivots(scaled.matrix.rows());
    const auto lu = dense_decompositions<Scalar>::lu(f.rows(), scaled.matrix.data(), pivots.data(), nullptr);
    return product_of_elements<Scalar>(pivots, lu.sign, scaled.exponent * f.rows());
}

/// A scalar times the kron of factors times powers of two. Where products of some of these powers come near the ends of the range, they are dealt out
/// evenly over all: what is in the range as a whole is then in it on the way.
template <class Scalar>
class kron_over_powers {
public:
    /// An identity or a permutation.
    void append(leaf f) { parts_.push_back({std::move(f), {}, {}, form::fixed, 0}); }
    void append(dense_matrix<Scalar> m, int exponent) {
        parts_.push_back({leaf(), std::move(m), {}, form::dense, exponent});
    }
    void append(dense_vector<Scalar> diagonal) {
        parts_.push_back({leaf(), {}, std::move(diagonal), form::diagonal, 0});
    }
    enum class form : std::uint8_t { fixed, dense, diagonal };
    struct part {
        leaf fixed;
        dense_matrix<Scalar> matrix;
        dense_vector<Scalar> diagonal;
        form is = form::fixed;
        int exponent = 0;
    };
    [[nodiscard]] const std::vector<part>& parts() const noexcept { return parts_; }
    /// What has been appended, which is gone then.
    [[nodiscard]] kron_expr<Scalar> take(const detail::scaled_number<Scalar>& alpha) {
        using real = detail::real_of<Scalar>;
        std::vector<int> exponents{static_cast<int>(alpha.exponent())};
        for (const part& p : parts_) {
            if (p.is != form::fixed) {
                exponents.push_back(p.exponent + largest_of(p));
            }
        }
        std::int64_t above = 0;
        std::int64_t below = 0;
        for (const int e : exponents) {
            (e > 0 ? above : below) += e;
        }
        const bool deals = (std::max)(above, -below) > std::numeric_limits<real>::max_exponent / 2;
        const std::vector<int> shares = deals ? dealt_evenly(exponents) : exponents;
        kron_node<Scalar> node;
        std::size_t at = 0;
        for (part& p : parts_) {
            if (p.is == form::fixed) {
                node.append(std::move(p.fixed));
                continue;
            }
            ++at;
            const int shift = p.exponent + shares[at] - exponents[at];
            if (p.is == form::dense) {
                multiply_by_power(p.matrix, shift);
                node.append(owned_factor<Scalar>(std::move(p.matrix)));
            } else {
                multiply_by_power(p.diagonal, shift);
                node.append(owned_diagonal<Scalar>(std::move(p.diagonal)));
            }
        }
        node.set_alpha(alpha.value_over(exponents[0] - shares[0]));
        parts_.clear();
        return kron_expr<Scalar>(std::move(node));
    }

private:
    static int largest_of(const part& p) {
        return p.is == form::dense ? exponent_of_largest(p.matrix) : exponent_of_largest(p.diagonal);
    }
    std::vector<part> parts_;
};

/// 1 / x, of x in any part of the range; 0 for 0.
template <class Scalar>
detail::scaled_number<Scalar> reciprocal(const Scalar& x) {
    const detail::scaled_number<Scalar> number(x);
    return number.is_zero()
               ? number
               : detail::scaled_number<Scalar>(Scalar(1) / number.value_over(number.exponent()), -number.exponent());
}

/// K^-1 B, with so many steps X += K^-1 (B - K X).
template <class Result, class Kron, class Rhs>
Result refined(const Kron& k, const Kron& inverse, int steps, const Rhs& b) {
    if (steps == 0) {
        Result x = inverse * b;
        return x;
    }
    const typename Eigen::internal::nested_eval<Rhs, 3>::type right(b);  // once, what it is may be random
    Result x = inverse * right;
    for (int step = 0; step < steps; ++step) {
        Result residual = right.template cast<typename Result::Scalar>();
        residual.noalias() -= k * x;
        x.noalias() += inverse * residual;
    }
    return x;
}

/// The factors of a kron that is solved with factor by factor, each over a power of two: a matrix, or the inverse of one with structure. The powers of
/// all are multiplied by last, and columns on their way that come near the ends of the range are brought to its middle.
template <class Scalar>
class factors_apart {
public:
    factors_apart() = default;
    /// `inverse`: the inverses of `own`, of which those with structure are taken; `scalar`: the inverse of K's.
    factors_apart(const kron_over_powers<Scalar>& own, const kron_over_powers<Scalar>& inverse,
                  const detail::scaled_number<Scalar>& scalar)
        : scalar_(scalar) {
        using form = typename kron_over_powers<Scalar>::form;
        for (std::size_t k = 0; k < own.parts().size(); ++k) {
            const auto& part = own.parts()[k];
            const auto& inverted = inverse.parts()[k];
            factor& kept = factors_.emplace_back();
            if (part.is == form::dense) {
                kept.matrix = part.matrix;
                kept.exponent = part.exponent;
                kept.dense = true;
            } else if (part.is == form::diagonal) {
                kept.exponent = middle_exponent(part.diagonal, inverted.diagonal);
                kept.inverse =
                    owned_diagonal<Scalar>(inverse_over_power(part.diagonal, inverted.diagonal, kept.exponent));
            } else {
                kept.inverse = inverted.fixed;
            }
        }
    }
    /// X with K X = B, which is not empty. The factors that have structure by their inverses, at once; then the others by solve_with(matrix, right), which
    /// returns what solves matrix * X = right; last all powers of two.
    template <class To, class Rhs, class SolveWith>
    [[nodiscard]] dense_matrix<To> solve(const Rhs& b, const SolveWith& solve_with) const {
        kron_node<Scalar> structured;
        std::vector<Eigen::Index> extents;
        auto exponent = static_cast<int>(scalar_.exponent());
        for (const factor& f : factors_) {
            structured.append(f.dense ? leaf::identity(f.matrix.rows()) : f.inverse);
            extents.push_back(f.dense ? f.matrix.rows() : static_cast<Eigen::Index>(f.inverse.cols()));
            exponent -= f.exponent;
        }
        structured.set_alpha(scalar_.value_over(scalar_.exponent()));
        dense_matrix<To> x = b.template cast<To>();
        std::vector<int> of_column(static_cast<std::size_t>(x.cols()), 0);  // powers of two that it has been divided by
        bring_to_middle(x, of_column);
        x = dense_matrix<To>(kron_expr<Scalar>(std::move(structured)) * x);
        bring_to_middle(x, of_column);
        for (std::size_t k = 0; k < factors_.size(); ++k) {
            if (factors_[k].dense) {
                Eigen::Index inner = 1;
                for (std::size_t behind = k + 1; behind < factors_.size(); ++behind) {
                    inner *= extents[behind];
                }
                x = solved_at(factors_[k].matrix, inner, x, solve_with);
                bring_to_middle(x, of_column);
                extents[k] = factors_[k].matrix.cols();
            }
        }
        for (Eigen::Index j = 0; j < x.cols(); ++j) {
            auto column = x.col(j);
            multiply_by_power(column, exponent + of_column[static_cast<std::size_t>(j)]);
        }
        return x;
    }

private:
    struct factor {
        dense_matrix<Scalar> matrix;
        leaf inverse;
        int exponent = 0;
        bool dense = false;
    };
    /// The middle of the powers of two of a diagonal's elements, but for those whose inverse is taken as 0.
    [[nodiscard]] static int middle_exponent(const dense_vector<Scalar>& d, const dense_vector<Scalar>& inverse) {
        std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
        std::int64_t most = std::numeric_limits<std::int64_t>::lowest();
        for (Eigen::Index i = 0; i < d.size(); ++i) {
            if (inverse(i) != Scalar(0)) {
                const std::int64_t e = detail::scaled_number<Scalar>(d(i)).exponent();
                least = (std::min)(least, e);
                most = (std::max)(most, e);
            }
        }
        return least <= most ? static_cast<int>((least + most) / 2) : 0;
    }
    /// The inverses of d(i) / 2^exponent, which are in the range where those of d(i) may not be.
    [[nodiscard]] static dense_vector<Scalar> inverse_over_power(const dense_vector<Scalar>& d,
                                                                 const dense_vector<Scalar>& inverse, int exponent) {
        return dense_vector<Scalar>::NullaryExpr(d.size(), [&](Eigen::Index i) {
            return inverse(i) == Scalar(0) ? Scalar(0)
                                           : Scalar(Scalar(1) / detail::scaled_number<Scalar>(d(i), -exponent).value());
        });
    }
    /// Divides the columns whose largest elements are beyond an eighth of the range's exponents by their powers of two, which it adds to `of_column`.
    template <class To>
    static void bring_to_middle(dense_matrix<To>& x, std::vector<int>& of_column) {
        for (Eigen::Index j = 0; j < x.cols(); ++j) {
            auto column = x.col(j);
            const int exponent = exponent_of_largest(column);
            if (std::abs(exponent) > std::numeric_limits<detail::real_of<To>>::max_exponent / 8) {
                multiply_by_power(column, -exponent);
                of_column[static_cast<std::size_t>(j)] += exponent;
            }
        }
    }
    /// kron(I, F^-1, I) x, the last identity of order `inner`: each block of x's columns, inner x m, is transposed for F's decomposition.
    template <class To, class SolveWith>
    [[nodiscard]] static dense_matrix<To> solved_at(const dense_matrix<Scalar>& f, Eigen::Index inner,
                                                    const dense_matrix<To>& x, const SolveWith& solve_with) {
        constexpr bool apart = detail::is_complex_scalar<To> && !detail::is_complex_scalar<Scalar>;
        constexpr int parts = apart ? 2 : 1;  // the real and the imaginary part, where F is real
        const Eigen::Index m = f.rows();
        const Eigen::Index n = f.cols();
        const Eigen::Index blocks = x.rows() / (m * inner);
        const Eigen::Index columns = x.cols() * blocks * inner;
        dense_matrix<Scalar> right(m, parts * columns);  // real parts, then imaginary ones
        dense_matrix<To> result(blocks * n * inner, x.cols());
        const Eigen::Index x_block = m * inner;
        for (Eigen::Index at = 0; at < columns; at += inner) {
            const Eigen::Map<const dense_matrix<To>> block(x.data() + at / inner * x_block, inner, m);
            if constexpr (apart) {
                right.middleCols(at, inner) = block.real().transpose();
                right.middleCols(columns + at, inner) = block.imag().transpose();
            } else {
                right.middleCols(at, inner) = block.transpose();
            }
        }
        const dense_matrix<Scalar> left = solve_with(f, std::move(right));
        const Eigen::Index result_block = n * inner;
        for (Eigen::Index at = 0; at < columns; at += inner) {
            Eigen::Map<dense_matrix<To>> block(result.data() + at / inner * result_block, inner, n);
            if constexpr (apart) {
                block.real() = left.middleCols(at, inner).transpose();
                block.imag() = left.middleCols(columns + at, inner).transpose();
            } else {
                block = left.middleCols(at, inner).transpose();
            }
        }
        return result;
    }

    std::vector<factor> factors_;
    detail::scaled_number<Scalar> scalar_{Scalar(1)};
};

/// The triangles of K's factors: P K = L U, but for K's scalar.
template <class Scalar>
struct lu_of_factors {
    kron_over_powers<Scalar> permutation;
    kron_over_powers<Scalar> lower;
    kron_over_powers<Scalar> upper;

    /// Of an identity or a permutation, which times `turned` is the identity.
    void append(leaf turned) {
        const leaf same = leaf::identity(turned.rows());
        permutation.append(std::move(turned));
        lower.append(same);
        upper.append(same);
    }
    /// Of a matrix that is upper triangular itself: a diagonal, or one without elements.
    template <class... Matrix>
    void append_upper(std::int64_t order, Matrix... matrix) {
        const leaf same = leaf::identity(order);
        permutation.append(same);
        lower.append(same);
        upper.append(std::move(matrix)...);
    }
    /// Of 2^exponent times a matrix with these triangles (dense_decompositions::lu).
    void append(const dense_matrix<Scalar>& both, const Eigen::PermutationMatrix<Eigen::Dynamic>& p, int exponent) {
        leaf permuted = make_permutation_leaf(p);
        permuted.set_real_elements(detail::is_complex_scalar<Scalar>);
        permutation.append(std::move(permuted));
        lower.append(dense_matrix<Scalar>(both.template triangularView<Eigen::UnitLower>()), 0);
        upper.append(dense_matrix<Scalar>(both.template triangularView<Eigen::Upper>()), exponent);
    }
};

/// K^-1 or K^+, whose factors are the inverses of K's, and what a solve with it needs beside.
template <class Scalar>
class inverted_kron {
public:
    using real = detail::real_of<Scalar>;
    enum class kind : std::uint8_t { inverse, pseudo_inverse };

    inverted_kron() = default;
    /// `what` names it in errors. The inverse of a scalar 0 is taken as 0. @pre all factors are square for an inverse
    /// @throws singular_error for an inverse, a factor whose reciprocal condition number is not above epsilon, a diagonal with a 0; a factor with
    /// NaN or Inf; budget_error
    /// @param triangles null, or those of an inverse's factors are appended
    inverted_kron(const kron_expr<Scalar>& k, kind of, const char* what, lu_of_factors<Scalar>* triangles = nullptr)
        : kind_(of) {
        enable_structure<Scalar>();
        kron_over_powers<Scalar> own;
        kron_over_powers<Scalar> inverse;
        const bool empty = k.rows() == 0 || k.cols() == 0;
        amplification<real> amplified;
        std::size_t position = 0;
        for_each_factor(k, what, [&](const factor_reader<Scalar>& f) {
            ++position;
            if (f.form() != factor_form::other && of == kind::inverse && !f.empty()) {
                determinant_.append(determinant_of(f), f.rows());
            }
            if (f.form() != factor_form::other && f.rows() > 1) {
                amplified.append_apart();
            }
            if (f.moves_only()) {
                leaf turned = f.source();
                turned.transpose();
                if (triangles != nullptr) {
                    triangles->append(turned);
                }
                inverse.append(std::move(turned));
                own.append(f.source());
            } else if (f.form() == factor_form::diagonal) {
                inverse.append(empty ? f.diagonal() : inverted_diagonal(f, what, position));
                own.append(f.diagonal());
                if (triangles != nullptr) {
                    triangles->append_upper(f.rows(), f.diagonal());
                }
            } else if (empty) {  // a matrix without elements, whatever the other factors are
                const auto zeros = [](std::int64_t rows, std::int64_t cols) {
                    return dense_matrix<Scalar>(
                        dense_matrix<Scalar>::Zero(static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(cols)));
                };
                inverse.append(zeros(f.cols(), f.rows()), 0);
                own.append(zeros(f.rows(), f.cols()), 0);
                if (triangles != nullptr) {
                    triangles->append_upper(f.rows(), zeros(f.rows(), f.cols()), 0);
                }
            } else {
                scaled_matrix<Scalar> scaled(f.finite());
                dense_matrix<Scalar> inverted = inverted_dense(scaled, what, position, triangles);
                amplified.append(amplification_of<Scalar>(scaled.matrix, inverted), f.rows(),
                                 !detail::is_complex_scalar<Scalar>);
                inverse.append(std::move(inverted), -scaled.exponent);
                own.append(std::move(scaled.matrix), scaled.exponent);
            }
        });
        refinement_ = refinement_for(amplified, of == kind::inverse);
        // Matrices of its own: those of K may change, or end, before this does.
        if (refinement_.by_factors) {
            apart_ = factors_apart<Scalar>(own, inverse, reciprocal(k.node().alpha()));
        } else if (refinement_.steps > 0) {
            own_ = own.take(detail::scaled_number<Scalar>(k.node().alpha()));
        }
        inverse_ = inverse.take(reciprocal(k.node().alpha()));
    }

    [[nodiscard]] const kron_expr<Scalar>& inverse() const noexcept { return inverse_; }
    /// An estimate of the reciprocal of K's condition number, of an inverse.
    [[nodiscard]] real rcond() const noexcept { return rcond_; }
    /// Of K, of which there is an inverse.
    [[nodiscard]] const kron_determinant<Scalar>& determinant() const noexcept { return determinant_; }
    [[nodiscard]] const refinement& how() const noexcept { return refinement_; }

    /// X, with K X = B or of least norm with the least |K X - B|. @pre B has K's rows
    template <class Result, class Rhs>
    [[nodiscard]] Result solve(const Rhs& b) const {
        using scalar = typename Result::Scalar;
        if (refinement_.by_factors && b.size() > 0) {
            return Result(solve_by_factors<scalar>(b));
        }
        return refined<Result>(own_, inverse_, refinement_.steps, b);
    }
    /// The same for B in device memory; where each factor is solved with by its decomposition, through the host. `kept`: device_copies.
    template <class Kept, class Rhs>
    [[nodiscard]] auto solve_on_device(const Kept& kept, const Rhs& b) const {
        using host_matrix = dense_matrix<detail::common_scalar<Scalar, typename Rhs::Scalar>>;
        if (refinement_.by_factors) {
            const auto on_host = [this](const host_matrix& host) {
                const scoped_executor here(cpu());
                return solve<host_matrix>(host);
            };
            return solve_through_host(on_host, host_matrix(), b);
        }
        return apply_inverse(own_, inverse_, refinement_.steps, kept, b);
    }

private:
    dense_vector<Scalar> inverted_diagonal(const factor_reader<Scalar>& f, const char* what, std::size_t position) {
        const dense_vector<real> sizes = f.finite_diagonal().cwiseAbs();
        const bool pseudo = kind_ == kind::pseudo_inverse;
        const real least = pseudo ? negligible(sizes) : real(0);
        if (!pseudo && sizes.size() > 0) {
            if (!(sizes.minCoeff() > real(0))) {
                throw_singular(what, position, f.rows());
            }
            rcond_ *= sizes.minCoeff() / sizes.maxCoeff();
        }
        return f.diagonal().unaryExpr([least](const Scalar& d) {  // Eigen's quotients of complex numbers square them
            return std::abs(d) > least ? Scalar(Scalar(1) / d) : Scalar(0);
        });
    }
    dense_matrix<Scalar> inverted_dense(const scaled_matrix<Scalar>& scaled, const char* what, std::size_t position,
                                        lu_of_factors<Scalar>* triangles) {
        const dense_matrix<Scalar>& m = scaled.matrix;
        dense_matrix<Scalar> inverted(m.cols(), m.rows());
        if (kind_ == kind::pseudo_inverse) {
            dense_decompositions<Scalar>::pseudo_inverse(m.rows(), m.cols(), m.data(), inverted.data());
            return inverted;
        }
        dense_vector<Scalar> pivots(m.rows());
        dense_matrix<Scalar> both;
        Eigen::PermutationMatrix<Eigen::Dynamic> permutation;
        if (triangles != nullptr) {
            both.resize(m.rows(), m.cols());
            permutation.resize(m.rows());
        }
        const auto lu = dense_decompositions<Scalar>::lu(m.rows(), m.data(), pivots.data(), inverted.data(), nullptr, 0,
                                                         triangles != nullptr ? both.data() : nullptr,
                                                         permutation.indices().data());
        if (!(lu.rcond > std::numeric_limits<real>::epsilon())) {
            throw_singular(what, position, m.rows());
        }
        rcond_ *= lu.rcond;
        determinant_.append(product_of_elements<Scalar>(pivots, lu.sign, scaled.exponent * m.rows()), m.rows());
        if (triangles != nullptr) {
            triangles->append(both, permutation, scaled.exponent);
        }
        return inverted;
    }

    template <class To, class Rhs>
    [[nodiscard]] dense_matrix<To> solve_by_factors(const Rhs& b) const {
        return apart_.template solve<To>(b, [this](const dense_matrix<Scalar>& f, dense_matrix<Scalar> right) {
            if (kind_ == kind::inverse) {
                dense_decompositions<Scalar>::lu(f.rows(), f.data(), nullptr, nullptr, right.data(), right.cols());
                return right;
            }
            dense_matrix<Scalar> left(f.cols(), right.cols());
            dense_decompositions<Scalar>::pseudo_inverse(f.rows(), f.cols(), f.data(), nullptr, right.data(),
                                                         right.cols(), left.data());
            return left;
        });
    }

    kind kind_ = kind::inverse;
    kron_expr<Scalar> inverse_;
    kron_expr<Scalar> own_;        ///< K, where steps of refinement need it
    factors_apart<Scalar> apart_;  ///< where each is solved with by itself
    refinement refinement_;
    kron_determinant<Scalar> determinant_;
    real rcond_ = real(1);
};

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

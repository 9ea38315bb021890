// SPDX-License-Identifier: MIT
/// @file solvers.hpp
/// Solving with sums of Kronecker products by diagonalising the factors: `(K + s * identity()).solve(B)`,
/// `kron_sum(A, B, C).solve(B)`, finite-element operators `kron(A, M) + kron(M, A)`; Sylvester and Lyapunov equations.
///
/// Mathematics (fast diagonalisation: Lynch, Rice, Thomas 1964). Where at each position k the terms of the sum use at most two
/// different matrices, F_k and G_k (or the identity for G_k), after merged_terms.hpp has made them few, and V_k diagonalises both,
///
///     W_k F_k V_k = diag(l_k),   W_k G_k V_k = I,
///
/// the sum S = sum_t alpha_t kron(..) becomes diagonal: kron(W) S kron(V) = diag(d), d = sum_t alpha_t kron(l_k or 1), so
///
///     S^{-1} = kron(V) diag(1 / d) kron(W)
///
/// | factors | V_k | W_k |
/// |---|---|---|
/// | F self-adjoint, G the identity | unitary eigenvectors of F | V^H |
/// | F self-adjoint, G self-adjoint positive definite | generalised eigenvectors | V^H |
/// | F general, G the identity | eigenvectors of F | V^{-1} |
/// | any F, an invertible G | eigenvectors of G^{-1} F | V^{-1} G^{-1} |
/// | singular F and G | the same of F and G + tau F, by which G is written as a difference | |
/// | F diagonal, G the identity or a positive diagonal | a diagonal | V |
///
/// A real F may have conjugate pairs of eigenvalues. Its V is then V_k Z_k with a real V_k and a unitary Z_k that mixes the two columns of each
/// pair alone: the products stay real, and diag(1 / d) becomes kron(Z) diag(1 / d) kron(Z)^H, plane by plane, in complex numbers.
/// Where both F and G are positive definite, G is the better conditioned; each is taken over a power of two. Where the terms leave the range
/// of the type, or come close to it, S is taken over a power of two as a whole, and so is each column of B: X is in the range, or is not.
///
/// Cost: the factors' decompositions, O(n_k^3) each; a solve is two applications of a kron and one scaling, range by range of
/// the columns of B, with no other memory than d and one range that stays in cache.
///
/// Accuracy. V_k of a factor that is not self-adjoint can be ill-conditioned, and the condition numbers of V_1, .., V_N multiply:
/// an error of some epsilon * cond(V) * |S| / min |d| of X is left, cond(V) = prod_k cond(V_k). Where one is there, a solve
/// therefore applies S to X, looks at the residual of each column, which is refined alone until it is some roundings of |S| |X|: one
/// application more, three for each step. Where that error is above 2^-10, or the steps do not get there, the factors' complex
/// Schur forms F_k = U_k T_k U_k^H take the place of the eigenvectors: kron(U)^H S kron(U) is triangular, and X comes from back
/// substitution through the T_k (Bartels and Stewart 1972 for two factors), which works for defective factors, too. Cost of a column:
/// O(terms * n * (n_1 + .. + n_N)), by plain loops.
/// Self-adjoint F and positive definite G leave some epsilon * prod_k cond(G_k): where that product is above 2^10, such solves are refined,
/// too, and where they do not get there the factors are taken as general ones. logAbsDeterminant() is that of the decompositions.
///
/// Errors: shape_error; singular_error (an eigenvalue of S that is 0, a factor with NaN or Inf); budget_error (factors.hpp);
/// unsupported_error (a sum that cannot be diagonalised factor by factor; the text says why and what to do instead).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/blocks.hpp>
#include <otimes/adapt/eigen/decompositions.hpp>
#include <otimes/adapt/eigen/dense_decompositions.hpp>
#include <otimes/adapt/eigen/factors.hpp>
#include <otimes/adapt/eigen/merged_terms.hpp>
#include <otimes/adapt/eigen/sums.hpp>
#include <otimes/expr/lower_tree.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/refinement.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// a * b by parts: products of std::complex look for infinities.
template <class Complex>
Complex product_by_parts(const Complex& a, const Complex& b) {
    return Complex(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
}

/// sum_t amount_t * kron(M_1 or I, .., M_N or I) with the complex Schur forms M_k = U_k T_k U_k^H: solves by back substitution.
template <class Scalar>
class triangular_sum {
public:
    using Complex = typename dense_decompositions<Scalar>::complex;
    /// What stands at one position: no matrix, a diagonal (its elements), or a matrix.
    struct position {
        std::int64_t order = 1;
        dense_matrix<Scalar> matrix;
        dense_vector<Complex> diagonal;
        std::vector<bool> uses;  ///< of each term: M_k, else the identity
    };

    /// False where the Schur form of the factor `failed_at()` (from 0) did not converge.
    bool compute(const std::vector<position>& positions, std::vector<Complex> amounts) {
        amounts_ = std::move(amounts);
        for (const position& p : positions) {
            level l;
            const auto order = static_cast<Eigen::Index>(p.order);
            l.order = static_cast<std::size_t>(p.order);
            l.uses = p.uses;
            if (p.matrix.size() == 0) {
                l.diagonal = p.diagonal;
                if (l.diagonal.size() == 0) {
                    l.diagonal.setOnes(order);
                }
            } else {
                l.upper.resize(order, order);
                l.unitary.resize(order, order);
                if (!dense_decompositions<Scalar>::schur(p.order, p.matrix.data(), l.upper.data(), l.unitary.data())) {
                    return false;
                }
                l.diagonal.resize(order);
                for (Eigen::Index i = 0; i < order; ++i) {
                    l.diagonal(i) = l.upper(i, i);
                }
            }
            levels_.push_back(std::move(l));
        }
        return true;
    }
    /// Position k where compute() is: that of the failure.
    [[nodiscard]] std::size_t failed_at() const noexcept { return levels_.size(); }
    /// The eigenvalues of M_k, in the order of T_k.
    [[nodiscard]] const dense_vector<Complex>& diagonal(std::size_t k) const { return levels_[k].diagonal; }

    /// X with S X = B, in place: `x` holds `columns` numbers of each row of B, row after row. @pre no eigenvalue of S is 0
    void solve(std::vector<Complex>& x, std::size_t columns) const {
        transform(true, x);
        substitute(0, amounts_, x.data(), x.size() / columns, columns);
        transform(false, x);
    }

private:
    struct level {
        std::size_t order = 1;
        dense_vector<Complex> diagonal;
        dense_matrix<Complex> upper;  ///< T_k; empty for a diagonal
        dense_matrix<Complex> unitary;
        std::vector<bool> uses;

        [[nodiscard]] Complex at(const dense_matrix<Complex>& m, std::size_t i, std::size_t j) const {
            return m.data()[j * order + i];
        }
    };

    static void add(const Complex& amount, const Complex* from, std::size_t count, Complex* to) {
        for (std::size_t i = 0; i < count; ++i) {
            to[i] += product_by_parts(amount, from[i]);
        }
    }
    static void scale(const Complex& amount, Complex* x, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            x[i] = product_by_parts(amount, x[i]);
        }
    }
    /// x becomes kron(U_1, .., U_N) x, or kron(U_1^H, .., U_N^H) x.
    void transform(bool adjoint, std::vector<Complex>& x) const {
        std::size_t inner = x.size();  // numbers of one index of a level
        for (const level& l : levels_) {
            inner /= l.order;
            if (l.unitary.size() == 0) {
                continue;
            }
            const std::vector<Complex> from = x;
            std::fill(x.begin(), x.end(), Complex(0));
            for (std::size_t begin = 0; begin < x.size(); begin += l.order * inner) {
                for (std::size_t i = 0; i < l.order; ++i) {
                    for (std::size_t j = 0; j < l.order; ++j) {
                        add(adjoint ? std::conj(l.at(l.unitary, j, i)) : l.at(l.unitary, i, j),
                            from.data() + begin + j * inner, inner, x.data() + begin + i * inner);
                    }
                }
            }
        }
    }
    /// x becomes S_k^-1 x, S_k = sum_t amounts_t * kron of the levels from k on: block i of the rows of x after those below it.
    void substitute(std::size_t k, const std::vector<Complex>& amounts, Complex* x, std::size_t rows,
                    std::size_t columns) const {
        if (k == levels_.size()) {
            Complex pivot(0);
            for (const Complex& amount : amounts) {
                pivot += amount;
            }
            scale(Complex(1) / pivot, x, columns);  // Eigen's quotients of complex numbers square them
            return;
        }
        const level& l = levels_[k];
        const std::size_t inner = rows / l.order;
        std::vector<Complex> inside(amounts);
        for (std::size_t i = l.order; i-- > 0;) {
            Complex* const block = x + i * inner * columns;
            for (std::size_t t = 0; t < amounts.size(); ++t) {
                inside[t] = l.uses[t] ? amounts[t] * l.diagonal.data()[i] : amounts[t];
            }
            substitute(k + 1, inside, block, inner, columns);
            if (i == 0 || l.upper.size() == 0) {
                continue;
            }
            const std::vector<Complex> above = multiplied(k, amounts, block, inner, columns);
            for (std::size_t j = 0; j < i; ++j) {
                add(-l.at(l.upper, j, i), above.data(), above.size(), x + j * inner * columns);
            }
        }
    }
    /// The sum over the terms that use T_k of amounts_t * kron of the levels behind k, times x.
    [[nodiscard]] std::vector<Complex> multiplied(std::size_t k, const std::vector<Complex>& amounts, const Complex* x,
                                                  std::size_t rows, std::size_t columns) const {
        std::vector<Complex> sum(rows * columns, Complex(0));
        for (std::size_t t = 0; t < amounts.size(); ++t) {
            if (!levels_[k].uses[t]) {
                continue;
            }
            std::vector<Complex> part(x, x + rows * columns);
            std::size_t inner = rows * columns;
            for (std::size_t m = k + 1; m < levels_.size(); ++m) {
                inner /= levels_[m].order;
                if (levels_[m].uses[t]) {
                    apply(levels_[m], inner, part);
                }
            }
            add(amounts[t], part.data(), part.size(), sum.data());
        }
        return sum;
    }
    /// x becomes kron(I, T_k, I) x, the last identity of order `inner`; in place, since T_k is triangular.
    static void apply(const level& l, std::size_t inner, std::vector<Complex>& x) {
        for (std::size_t begin = 0; begin < x.size(); begin += l.order * inner) {
            for (std::size_t i = 0; i < l.order; ++i) {
                Complex* const row = x.data() + begin + i * inner;
                scale(l.diagonal.data()[i], row, inner);
                for (std::size_t j = i + 1; l.upper.size() > 0 && j < l.order; ++j) {
                    add(l.at(l.upper, i, j), x.data() + begin + j * inner, inner, row);
                }
            }
        }
    }

    std::vector<level> levels_;
    std::vector<Complex> amounts_;
};

}  // namespace eigen

/// A sum of krons, diagonalised. Made once, used often.
template <class ScalarType>
class kron_sum_solver {
public:
    using Scalar = ScalarType;
    using RealScalar = detail::real_of<Scalar>;
    using Complex = typename eigen::dense_decompositions<Scalar>::complex;

    /// @throws shape_error, singular_error, unsupported_error, budget_error
    explicit kron_sum_solver(const sum_expr<Scalar>& s) {
        if (s.rows() != s.cols()) {
            throw shape_error("otimes: solve with " + s.tree().name() + ": it is " +
                              detail::shape_text(s.rows(), s.cols()) + "; a sum must be square to be solved with.");
        }
        if (s.rows() == 0) {  // nothing to solve, and Eigen's decompositions take no empty matrix
            kron_node<Scalar> none;
            none.append(leaf::identity(0));
            left_ = right_ = kron_expr<Scalar>(std::move(none));
            return;
        }
        collect(s.tree());
        eigen::term_merger<Scalar>::merge(terms_, solving);
        std::vector<choice> choices;
        bool all_self_adjoint = true;
        for (std::size_t k = 0; k < terms_.front().factors().size(); ++k) {
            choices.push_back(distinct_at(k));
            all_self_adjoint = all_self_adjoint && choices.back().self_adjoint;
        }
        take_amounts(choices);
        const bool have_mass = std::all_of(choices.begin(), choices.end(), [](const choice& c) {
            return c.count < 2 || (c.is_diagonal ? is_positive(c.diagonal_g) : c.rcond > RealScalar(0));
        });
        if (!all_self_adjoint || !have_mass || !diagonalise_self_adjoint(choices)) {
            diagonalise_general(std::move(choices));
        }
    }

    /// "generalised eigenvectors of self-adjoint factors", "complex Schur forms of the factors", ...: which algorithm was chosen.
    [[nodiscard]] const std::string& method() const noexcept { return method_; }
    /// The eigenvalues that are divided by, in the order of the product; those of S / 2^exponent() itself where no mass matrix is there.
    [[nodiscard]] const eigen::dense_vector<Complex>& eigenvalues() const noexcept { return values_; }
    [[nodiscard]] Eigen::Index rows() const { return eigen::index_of(left_.cols()); }
    [[nodiscard]] Eigen::Index cols() const { return rows(); }
    /// Always Eigen::Success: what cannot be diagonalised throws.
    [[nodiscard]] Eigen::ComputationInfo info() const noexcept { return Eigen::Success; }
    /// S is taken over 2^exponent(): 0 but for sums whose terms leave the range of the type, or come close to it.
    [[nodiscard]] std::int64_t exponent() const noexcept { return exponent_; }
    /// log |det S|, which does not overflow.
    [[nodiscard]] RealScalar logAbsDeterminant() const {
        const RealScalar scale = static_cast<RealScalar>(exponent_) * std::log(RealScalar(2));
        return values_.array().abs().log().sum() + log_abs_scale_ + static_cast<RealScalar>(values_.size()) * scale;
    }

    /// X with S X = B; see the file comment for what factors that are not self-adjoint cost more. @throws shape_error
    template <class Rhs>
    [[nodiscard]] auto solve(const Eigen::MatrixBase<Rhs>& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        require_rows(b.rows(), b.cols());
        if (exponent_ != 0) {
            return over_power_of_two<scalar, result_type>(b);
        }
        if (real_ && !refines_) {
            result_type x(b.rows(), b.cols());
            if constexpr (eigen::has_direct_access<Rhs> && std::is_same_v<typename Rhs::Scalar, scalar> &&
                          std::is_same_v<Scalar, scalar>) {
                solve_in_blocks(eigen::view_of(b.derived()), x);
            } else {
                const result_type right = b.template cast<scalar>();
                if constexpr (std::is_same_v<Scalar, scalar>) {
                    solve_in_blocks(eigen::view_of(right), x);
                } else {
                    x = by_eigenvectors<scalar>(right);
                }
            }
            return x;
        }
        return result_type(as_needed<scalar>(eigen::dense_matrix<scalar>(b.template cast<scalar>())));
    }
    /// The same for B in device memory (otimes/cuda.hpp); a DeviceMatrix. The eigenvalues and the eigenvectors go to the device once.
    /// Where the eigenvectors, or the mass matrices, are ill-conditioned, or S is taken over a power of two, B comes to the host, and X goes back.
    template <class Rhs>
    requires is_device_operand<Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        require_rows(b.rows(), b.cols());
        const RealScalar least = std::sqrt(std::sqrt(std::numeric_limits<RealScalar>::epsilon()));
        if (exponent_ != 0 || ((general_ || refines_) && (triangular_ || !(rcond_ >= least)))) {
            using host_matrix = eigen::dense_matrix<scalar>;
            const auto on_host = [this](const host_matrix& host) {
                const scoped_executor here(cpu());
                return host_matrix(solve(host));
            };
            return solve_through_host(on_host, host_matrix(), b);
        }
        const auto left = [this]() -> const kron_expr<Scalar>& { return left_; };
        const auto right = [this]() -> const kron_expr<Scalar>& { return right_; };
        if (real_) {
            const auto reciprocals = [this] { return reciprocals_.template cast<scalar>().eval(); };
            return apply_diagonalised(left, reciprocals, right, kept_, b);
        }
        const auto reciprocals = [this] { return complex_reciprocals_; };
        if constexpr (detail::is_complex_scalar<Scalar>) {
            return apply_diagonalised(left, reciprocals, right, kept_, b);
        } else {
            const auto complex_left = [this] { return with_complex_vectors(left_, true); };
            const auto complex_right = [this] { return with_complex_vectors(right_, false); };
            if constexpr (detail::is_complex_scalar<scalar>) {
                return apply_diagonalised(complex_left, reciprocals, complex_right, kept_, b);
            } else {
                return real_part(apply_diagonalised(complex_left, reciprocals, complex_right, kept_, b));
            }
        }
    }

private:
    void require_rows(std::int64_t rows, std::int64_t cols) const {
        if (rows != values_.size()) {
            throw shape_error("otimes: solve with a sum of Kronecker products of order " +
                              std::to_string(values_.size()) + ": the right-hand side is " +
                              detail::shape_text(rows, cols) + ".");
        }
    }
    /// x, or its real part.
    template <class To>
    static To as_scalar(const Complex& x) {
        if constexpr (detail::is_complex_scalar<To>) {
            return x;
        } else {
            return x.real();
        }
    }
    /// V diag(1 / d) W b, of real factors with pairs of conjugate eigenvalues V Z diag(1 / d) Z^H W b.
    template <class To, class Right>
    [[nodiscard]] Right by_eigenvectors(const Right& b) const {
        Right half = left_ * b;
        if (real_) {
            half.array().colwise() *= reciprocals_.template cast<To>().array();
            return right_ * half;
        }
        std::vector<Complex> column(static_cast<std::size_t>(half.rows()));
        for (Eigen::Index j = 0; j < half.cols(); ++j) {
            for (Eigen::Index i = 0; i < half.rows(); ++i) {
                column[static_cast<std::size_t>(i)] = half(i, j);
            }
            divide(column);
            for (Eigen::Index i = 0; i < half.rows(); ++i) {
                half(i, j) = as_scalar<To>(column[static_cast<std::size_t>(i)]);
            }
        }
        return right_ * half;
    }
    /// x becomes Z diag(1 / d) Z^H x.
    void divide(std::vector<Complex>& x) const {
        rotate_pairs(true, x);
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = eigen::product_by_parts(complex_reciprocals_.data()[i], x[i]);
        }
        rotate_pairs(false, x);
    }
    /// x becomes Z x, or Z^H x: Z = kron(Z_1, .., Z_N), see dense_decompositions::general_eigen.
    void rotate_pairs(bool adjoint, std::vector<Complex>& x) const {
        const RealScalar root = std::sqrt(RealScalar(0.5));
        std::size_t inner = x.size();
        for (const std::vector<bool>& begins : pairs_) {
            const std::size_t order = begins.size();
            inner /= order;
            for (std::size_t index = 0; index < x.size() / inner; ++index) {
                if (!begins[index % order]) {
                    continue;
                }
                for (std::size_t i = index * inner; i < (index + 1) * inner; ++i) {
                    const Complex first = root * x[i];
                    const Complex second = root * x[i + inner];
                    if (adjoint) {
                        const Complex turned(-second.imag(), second.real());
                        x[i] = first - turned;
                        x[i + inner] = first + turned;
                    } else {
                        const Complex difference = first - second;
                        x[i] = first + second;
                        x[i + inner] = Complex(-difference.imag(), difference.real());
                    }
                }
            }
        }
    }
    /// kron(Z_k^H W_k) or kron(V_k Z_k): what multiplies on a device, where the pairs are not rotated one by one.
    [[nodiscard]] kron_expr<Complex> with_complex_vectors(const kron_expr<Scalar>& k, bool left) const {
        kron_node<Complex> node;
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            const leaf& f = k.node().factors()[at];
            if (f.kind() != factor_kind::dense) {
                kron_node<Scalar> alone;
                alone.append(f);
                eigen::append_kron(node, alone);
                continue;
            }
            eigen::dense_matrix<Complex> m = kron_expr<Scalar>::dense_factor(f).template cast<Complex>();
            for (Eigen::Index i = 0; i < m.rows(); ++i) {
                if (!pairs_[at][static_cast<std::size_t>(i)]) {
                    continue;
                }
                const Complex root(std::sqrt(RealScalar(0.5)));
                const Complex turned(RealScalar(0), root.real());
                for (Eigen::Index j = 0; j < m.cols(); ++j) {
                    Complex& first = left ? m(i, j) : m(j, i);
                    Complex& second = left ? m(i + 1, j) : m(j, i + 1);
                    const Complex x = root * first;
                    const Complex y = turned * second;
                    first = left ? x - y : x + y;
                    second = left ? x + y : x - y;
                }
            }
            node.append(eigen::owned_factor<Complex>(std::move(m)));
        }
        node.set_alpha(Complex(k.node().alpha()));
        return kron_expr<Complex>(std::move(node));
    }
    /// By Schur forms. @pre there are some
    template <class To, class Right>
    [[nodiscard]] Right by_schur_forms(const eigen::triangular_sum<Scalar>& forms, const Right& b) const {
        Right x = inverse_mass_ ? Right(*inverse_mass_ * b) : b;
        const auto columns = static_cast<std::size_t>(x.cols());
        std::vector<Complex> by_rows(static_cast<std::size_t>(x.size()));
        const auto at = [&](Eigen::Index i, Eigen::Index j) -> Complex& {
            return by_rows[static_cast<std::size_t>(i) * columns + static_cast<std::size_t>(j)];
        };
        for (Eigen::Index j = 0; j < x.cols(); ++j) {
            for (Eigen::Index i = 0; i < x.rows(); ++i) {
                at(i, j) = x(i, j);
            }
        }
        if (!by_rows.empty()) {
            forms.solve(by_rows, columns);
        }
        for (Eigen::Index j = 0; j < x.cols(); ++j) {
            for (Eigen::Index i = 0; i < x.rows(); ++i) {
                x(i, j) = as_scalar<To>(at(i, j));
            }
        }
        return x;
    }
    /// Refined where that is needed.
    template <class To>
    [[nodiscard]] eigen::dense_matrix<To> as_needed(const eigen::dense_matrix<To>& b) const {
        return (general_ || refines_) && !(triangular_ && !inverse_mass_) ? refined<To>(b) : once<To>(b);
    }
    /// Of S over 2^exponent_, each column of B over a power of two near its largest element.
    template <class To, class Result, class Rhs>
    [[nodiscard]] Result over_power_of_two(const Eigen::MatrixBase<Rhs>& b) const {
        eigen::dense_matrix<To> right = b.template cast<To>();
        std::vector<std::int64_t> exponents;
        const auto scale = [](auto column, std::int64_t by) {
            column = column.unaryExpr([by](const To& x) { return detail::scaled_number<To>(x, by).value(); }).eval();
        };
        for (Eigen::Index j = 0; j < right.cols(); ++j) {
            exponents.push_back(eigen::exponent_of_largest(right.col(j)));
            scale(right.col(j), -exponents.back());
        }
        eigen::dense_matrix<To> x = as_needed<To>(right);
        for (Eigen::Index j = 0; j < x.cols(); ++j) {
            scale(x.col(j), exponents[static_cast<std::size_t>(j)] - exponent_);
        }
        return Result(x);
    }
    template <class To, class Right>
    [[nodiscard]] Right once(const Right& b) const {
        return triangular_ ? by_schur_forms<To>(*triangular_, b) : by_eigenvectors<To>(b);
    }
    /// The same until the residual of each column is some roundings of |S| |x| + |b|; by Schur forms the columns of which it does not get there.
    /// Each column is looked at alone: what one has, NaN for instance, is nothing to the others. @throws singular_error with a mass matrix, where
    /// Schur forms do not get there either
    template <class To>
    [[nodiscard]] eigen::dense_matrix<To> refined(const eigen::dense_matrix<To>& b) const {
        using matrix = eigen::dense_matrix<To>;
        constexpr auto rounding = RealScalar(8) * std::numeric_limits<RealScalar>::epsilon();
        // These columns of m, in order: itself, where they are all.
        const auto of_columns = [](const matrix& m, const std::vector<Eigen::Index>& columns,
                                   matrix& result) -> const matrix& {
            if (static_cast<Eigen::Index>(columns.size()) == m.cols()) {
                return m;
            }
            result.resize(m.rows(), static_cast<Eigen::Index>(columns.size()));
            for (std::size_t j = 0; j < columns.size(); ++j) {
                result.col(static_cast<Eigen::Index>(j)) = m.col(columns[j]);
            }
            return result;
        };
        matrix x = once<To>(b);
        std::vector<Eigen::Index> active;  // columns that are not there yet
        std::vector<Eigen::Index> missed;  // that do not get there
        for (Eigen::Index j = 0; j < b.cols(); ++j) {
            if (eigen::all_finite(b.col(j))) {  // others are as multiply-adds give
                active.push_back(j);
            }
        }
        std::vector<RealScalar> last(static_cast<std::size_t>(b.cols()), std::numeric_limits<RealScalar>::infinity());
        for (int step = 0; !active.empty(); ++step) {
            matrix some;
            matrix others;
            const matrix& wanted = of_columns(b, active, some);
            const matrix& at_hand = of_columns(x, active, others);
            matrix residual = own_ * at_hand;
            residual = wanted - residual;
            std::vector<Eigen::Index> next;       // columns of x
            std::vector<Eigen::Index> positions;  // these in `residual`
            for (Eigen::Index k = 0; k < residual.cols(); ++k) {
                const Eigen::Index j = active[static_cast<std::size_t>(k)];
                const auto left = static_cast<RealScalar>(residual.col(k).cwiseAbs().maxCoeff());
                const auto size = size_ * static_cast<RealScalar>(at_hand.col(k).cwiseAbs().maxCoeff()) +
                                  static_cast<RealScalar>(wanted.col(k).cwiseAbs().maxCoeff());
                const RealScalar relative = left == RealScalar(0) ? left : left / size;
                RealScalar& before = last[static_cast<std::size_t>(j)];
                if (relative <= rounding) {
                    continue;
                }
                if (step < 4 && relative <= before / 2) {
                    before = relative;
                    next.push_back(j);
                    positions.push_back(k);
                } else if (!(relative <= rounding * orders_)) {
                    missed.push_back(j);
                }
            }
            if (!next.empty()) {
                const matrix correction = once<To>(of_columns(residual, positions, some));
                for (std::size_t k = 0; k < next.size(); ++k) {
                    x.col(next[k]) += correction.col(static_cast<Eigen::Index>(k));
                }
            }
            active = std::move(next);
        }
        if (!missed.empty()) {
            std::sort(missed.begin(), missed.end());
            matrix some;
            const matrix found = by_another_method<To>(of_columns(b, missed, some));
            for (std::size_t k = 0; k < missed.size(); ++k) {
                x.col(missed[k]) = found.col(static_cast<Eigen::Index>(k));
            }
        }
        return x;
    }
    /// Of columns that refinement does not solve for.
    template <class To>
    [[nodiscard]] eigen::dense_matrix<To> by_another_method(const eigen::dense_matrix<To>& b) const {
        if (triangular_) {
            throw singular_error(
                "otimes: solve with a sum of Kronecker products: the solution is not reached by refinement; the sum, "
                "or the matrix of the two at a "
                "position that is inverted, is singular to working precision.");
        }
        if (!general_) {
            kron_sum_solver without_mass(*this);
            without_mass.diagonalise_general(choices_);
            return without_mass.template refined<To>(b);
        }
        if (inverse_mass_) {
            kron_sum_solver by_forms(*this);
            by_forms.triangular_ = schur_forms();
            return by_forms.template refined<To>(b);
        }
        return by_schur_forms<To>(schur_forms(), b);
    }
    /// Elements of what lies between the products that several threads may have where columns are short.
    static constexpr std::int64_t short_rows = 32 * 1024;
    /// x = right * (d * (left * b)), by ranges of columns that stay in cache: what lies between the two products is divided
    /// while it is there, and takes no memory of the size of b.
    template <class Result>
    void solve_in_blocks(const matrix_view& b, Result& x) const {
        const matrix_view out = eigen::view_of(x);
        const std::int64_t order = out.rows;
        if (order == 0 || out.cols == 0) {
            return;
        }
        constexpr auto bytes = static_cast<std::int64_t>(sizeof(Scalar));
        if constexpr (!detail::is_complex_scalar<Scalar>) {
            if (eigen::movable_program<Scalar>([&](lowering<Scalar>& low) {
                    write_steps(low, b, out);
                }).run_by_rows((std::max)(8 * order, (std::min)(order * out.cols / 4, short_rows)))) {
                return;
            }
        }
        const std::int64_t step = eigen::indices_in_cache(out.cols, 3 * order * bytes);
        eigen::dense_matrix<Scalar> half(static_cast<Eigen::Index>(order), static_cast<Eigen::Index>(step));
        const auto run = [&](std::int64_t begin, std::int64_t width, std::int64_t count) {
            const matrix_view from = eigen::part_of(b, true, begin, width, bytes);
            const matrix_view to = eigen::part_of(out, true, begin, width, bytes);
            const matrix_view between{half.data(), order, width, 1, order};
            eigen::movable_program<Scalar> first([&](lowering<Scalar>& low) {
                low.add_product(product_of(left_, leaf::borrowed(from)), between, false, Scalar(1));
            });
            eigen::movable_program<Scalar> second([&](lowering<Scalar>& low) {
                low.add_product(product_of(right_, leaf::borrowed(between)), to, false, Scalar(1));
            });
            const auto* from_at = static_cast<const char*>(from.data);
            const auto* to_at = static_cast<const char*>(to.data);
            for (std::int64_t k = 0; k < count; ++k) {
                first.run();
                for (Eigen::Index j = 0; j < static_cast<Eigen::Index>(width); ++j) {
                    half.col(j).array() *= reciprocals_.template cast<Scalar>().array();
                }
                second.run();
                first.move(tensor_role::input, from_at, width * b.col_stride * bytes);
                second.move(tensor_role::output, to_at, width * out.col_stride * bytes);
                from_at += width * b.col_stride * bytes;
                to_at += width * out.col_stride * bytes;
            }
        };
        const std::int64_t whole = out.cols / step;
        run(0, step, whole);
        if (whole * step < out.cols) {
            run(whole * step, out.cols - whole * step, 1);
        }
    }
    /// The whole solve as one program: the left factors, the division, the right factors.
    void write_steps(lowering<Scalar>& low, const matrix_view& b, const matrix_view& x) const {
        program& p = low.target();
        low.add_product(product_of(left_, leaf::borrowed(b)), x, false, Scalar(1));
        const std::int32_t half = p.steps.back().out;
        const tensor result = p.at(half);
        const auto at = [&p](std::int32_t id, std::int32_t k) -> mode& {
            return p.modes[static_cast<std::size_t>(p.at(id).first_mode + k)];
        };
        std::vector<mode> modes;
        for (std::int32_t k = 0; k < result.mode_count; ++k) {
            modes.push_back(at(half, k));
            at(half, k).stride = 0;
        }
        tensor& temporary = p.tensors[static_cast<std::size_t>(half)];
        temporary.role = tensor_role::temporary;
        temporary.binding = -1;
        const std::int32_t divided = low.add_scale(half, reciprocals_.data(), result.type, result.mode_count - 1);
        std::int32_t current = divided;
        std::int32_t position = 0;
        for (const leaf& factor : right_.node().factors()) {
            current = low.add_factor(current, result.type, factor, true, position++);
        }
        tensor& last = p.tensors[static_cast<std::size_t>(current)];
        last.role = tensor_role::output;
        last.binding = result.binding;
        for (std::int32_t k = 0; k < result.mode_count; ++k) {
            at(current, k).stride = modes[static_cast<std::size_t>(k)].stride;
        }
    }
    static product_node<Scalar> product_of(const kron_expr<Scalar>& k, leaf x) {
        product_node<Scalar> node;
        node.x = std::move(x);
        node.left = k.node().factors();
        node.has_left = true;
        node.alpha = k.node().alpha();
        return node;
    }

    /// What stands at one position: no matrix (identities only), F * 2^exponent_f, or also G * 2^exponent_g; by their elements where all are
    /// diagonals.
    struct choice {
        int count = 0;
        int exponent_f = 0;
        int exponent_g = 0;
        RealScalar rcond = RealScalar(1);  ///< of a matrix G that is positive definite; 0 of any other
        eigen::dense_matrix<Scalar> f;
        eigen::dense_matrix<Scalar> g;
        bool is_diagonal = false;
        eigen::dense_vector<Scalar> diagonal_f;
        eigen::dense_vector<Scalar> diagonal_g;
        std::vector<bool> uses_f;  ///< of each term
        bool self_adjoint = true;
        std::int64_t order = 1;

        void exchange() {
            f.swap(g);
            diagonal_f.swap(diagonal_g);
            std::swap(exponent_f, exponent_g);
        }
    };

    void collect(const operator_tree<Scalar>& tree) {
        tree.check();
        if (tree.kind == tree_kind::product) {
            throw unsupported_error("otimes: solve with " + tree.name() +
                                    ": kron_sum_solver takes sums. S.solve(B) solves with the parts of a product one "
                                    "after the other.");
        }
        std::vector<const kron_node<Scalar>*> krons;
        if (tree.kind == tree_kind::kron) {
            krons.push_back(&tree.kron);
        }
        for (const operator_tree<Scalar>& part : tree.parts) {
            if (part.kind != tree_kind::kron) {
                throw unsupported_error(
                    "otimes: solve with " + tree.name() + ": a term is " + part.name() +
                    ", which cannot be diagonalised factor by factor. Use an iterative solver of Eigen "
                    "with otimes::KronPreconditioner.");
            }
            krons.push_back(&part.kron);
        }
        // The factors of a term like which all others split, their identities cut or merged.
        const auto fits_all = [&krons](const kron_node<Scalar>* shape) {
            return std::all_of(krons.begin(), krons.end(), [shape](const kron_node<Scalar>* k) {
                return detail::same_split(detail::split_like(*k, shape->factors()).factors(), shape->factors());
            });
        };
        const auto found = std::find_if(krons.begin(), krons.end(), fits_all);
        const factor_list* shape = &(found == krons.end() ? krons.front() : *found)->factors();
        std::optional<factor_list>
            refined;  // which no term has, where their identities must be cut in each other's places
        if (found == krons.end()) {
            std::vector<const factor_list*> lists;
            bool square = true;
            for (const kron_node<Scalar>* k : krons) {
                lists.push_back(&k->factors());
                square = square && std::all_of(k->factors().begin(), k->factors().end(),
                                               [](const leaf& one) { return one.rows() == one.cols(); });
            }
            refined = square ? detail::common_refinement(lists) : std::nullopt;
            shape = refined ? &*refined : shape;
        }
        for (const kron_node<Scalar>* k : krons) {
            terms_.push_back(detail::split_like(*k, *shape));
            if (!detail::same_split(terms_.back().factors(), *shape)) {
                throw unsupported_error(
                    "otimes: solve with a sum of Kronecker products: the terms split into factors of different orders, "
                    "so they "
                    "cannot be diagonalised together. Use an iterative solver of Eigen with "
                    "otimes::KronPreconditioner.");
            }
        }
        for (const leaf& f : *shape) {
            if (f.rows() != f.cols()) {
                throw unsupported_error("otimes: solve with a sum of Kronecker products: a factor is " +
                                        detail::shape_text(f.rows(), f.cols()) + "; all factors must be square.");
            }
        }
    }

    choice distinct_at(std::size_t k) const {
        choice result;
        result.order = terms_.front().factors()[k].rows();
        std::vector<const leaf*> found;
        std::vector<int> which;
        for (const kron_node<Scalar>& term : terms_) {
            const leaf& f = term.factors()[k];
            if (f.is_identity()) {
                which.push_back(-1);
                continue;
            }
            std::size_t at = 0;
            while (at < found.size() && !(*found[at] == f)) {
                ++at;
            }
            if (at == found.size()) {
                found.push_back(&f);
            }
            which.push_back(static_cast<int>(at));
        }
        const bool with_identity = std::find(which.begin(), which.end(), -1) != which.end();
        if (found.size() > 2 || (found.size() == 2 && with_identity)) {
            throw unsupported_error(
                "otimes: solve with a sum of Kronecker products: at position " + std::to_string(k + 1) +
                " the terms use " + std::to_string(found.size() + (with_identity ? 1 : 0)) +
                " different matrices; at most two can be diagonalised together. Use an iterative solver of "
                "Eigen with otimes::KronPreconditioner.");
        }
        result.count = static_cast<int>(found.size());
        std::vector<eigen::factor_reader<Scalar>> readers;
        readers.reserve(found.size());
        for (const leaf* const m : found) {
            readers.emplace_back(*m, k + 1, solving);
        }
        result.is_diagonal = std::all_of(readers.begin(), readers.end(), [](const auto& r) {
            return r.form() == eigen::factor_form::identity || r.form() == eigen::factor_form::diagonal;
        });
        std::size_t f = 0;  // which is F; G is the mass matrix
        if (result.count > 0 && result.is_diagonal) {
            const auto elements = [&result](const eigen::factor_reader<Scalar>& r) {
                return r.form() == eigen::factor_form::diagonal
                           ? r.finite_diagonal()
                           : eigen::dense_vector<Scalar>::Ones(static_cast<Eigen::Index>(result.order)).eval();
            };
            result.exponent_f = take_scaled(elements(readers[0]), result.diagonal_f);
            if (result.count == 2) {  // G is positive; of two the one that reaches less far
                result.exponent_g = take_scaled(elements(readers[1]), result.diagonal_g);
                if (!is_positive(result.diagonal_g) ||
                    (is_positive(result.diagonal_f) && rcond_of(result.diagonal_f) > rcond_of(result.diagonal_g))) {
                    f = 1;
                    result.exchange();
                }
            }
            result.self_adjoint = is_real(result.diagonal_f);
        } else if (result.count > 0) {
            result.exponent_f = take_scaled(readers[0].finite(), result.f);
            if (result.count == 2) {  // G is positive definite; of two the better conditioned
                result.exponent_g = take_scaled(readers[1].finite(), result.g);
                const RealScalar of_f = rcond_if_positive(result.f);
                result.rcond = rcond_if_positive(result.g);
                if (!(result.rcond > RealScalar(0)) || of_f > result.rcond) {
                    f = 1;
                    result.rcond = of_f;
                    result.exchange();
                }
            }
            result.self_adjoint = is_self_adjoint(result.f);
        }
        for (const int w : which) {
            result.uses_f.push_back(w >= 0 && static_cast<std::size_t>(w) == f);
        }
        return result;
    }

    /// The terms' amounts with the powers of two that their factors are taken over; over one of their own where they leave the range, or come so
    /// close to it that eigenvalues or their reciprocals may.
    void take_amounts(const std::vector<choice>& choices) {
        std::vector<detail::scaled_number<Scalar>> amounts;
        std::optional<std::int64_t> largest;
        for (std::size_t t = 0; t < terms_.size(); ++t) {
            std::int64_t exponent = 0;
            for (const choice& c : choices) {
                exponent += c.count > 0 && c.uses_f[t] ? c.exponent_f : c.count > 1 ? c.exponent_g : 0;
            }
            amounts.emplace_back(terms_[t].alpha(), exponent);
            if (!amounts.back().is_zero()) {
                largest = (std::max)(largest.value_or(amounts.back().exponent()), amounts.back().exponent());
            }
        }
        constexpr int near = std::numeric_limits<RealScalar>::digits + 8;
        if (largest && (*largest > std::numeric_limits<RealScalar>::max_exponent - near ||
                        *largest < std::numeric_limits<RealScalar>::min_exponent + near)) {
            exponent_ = *largest;
        }
        for (std::size_t t = 0; t < terms_.size(); ++t) {
            terms_[t].set_alpha(amounts[t].value_over(exponent_));
        }
    }

    static bool is_real(const eigen::dense_vector<Scalar>& d) { return d == d.conjugate().eval(); }
    static bool is_positive(const eigen::dense_vector<Scalar>& d) {
        return is_real(d) && (d.size() == 0 || d.real().minCoeff() > RealScalar(0));
    }
    static bool is_self_adjoint(const eigen::dense_matrix<Scalar>& m) {
        const eigen::dense_matrix<Scalar> scaled = eigen::scaled_matrix<Scalar>(m).matrix;
        const RealScalar tolerance = RealScalar(8) * std::numeric_limits<RealScalar>::epsilon() * scaled.norm();
        return (scaled - scaled.adjoint()).norm() <= tolerance;
    }
    /// The reciprocal condition number of a self-adjoint positive definite matrix; 0 of any other.
    static RealScalar rcond_if_positive(const eigen::dense_matrix<Scalar>& m) {
        if (!is_self_adjoint(m)) {
            return RealScalar(0);
        }
        return eigen::dense_decompositions<Scalar>::cholesky(m.rows(), m.data(), nullptr, nullptr, nullptr).rcond;
    }
    static RealScalar rcond_of(const eigen::dense_vector<Scalar>& d) {
        return d.cwiseAbs().minCoeff() / d.cwiseAbs().maxCoeff();
    }
    /// m as `to` * 2^result, the largest element near 1.
    static int take_scaled(eigen::dense_matrix<Scalar> m, eigen::dense_matrix<Scalar>& to) {
        eigen::scaled_matrix<Scalar> scaled(std::move(m));
        to = std::move(scaled.matrix);
        return scaled.exponent;
    }
    /// The same of a diagonal, as it is where the least element would vanish.
    static int take_scaled(eigen::dense_vector<Scalar> d, eigen::dense_vector<Scalar>& to) {
        int exponent = eigen::exponent_of_largest(d);
        const auto scaled = [&d](int by) {
            return d.unaryExpr([by](const Scalar& x) { return detail::scaled_number<Scalar>(x, by).value(); }).eval();
        };
        to = scaled(-exponent);
        if (to.unaryExpr([exponent](const Scalar& x) { return detail::scaled_number<Scalar>(x, exponent).value(); }) !=
            d) {
            exponent = 0;
            to = std::move(d);
        }
        return exponent;
    }

    [[noreturn]] static void throw_no_mass_matrix(std::size_t k) {
        throw unsupported_error(
            "otimes: solve with a sum of Kronecker products: at position " + std::to_string(k + 1) +
            " the terms use two matrices, of which one, or a combination, must be invertible. Use an "
            "iterative solver of Eigen with otimes::KronPreconditioner.");
    }

    /// d = sum over the terms of alpha * kron(l_k or 1); of_sizes: of the absolute values of all these.
    template <class Value>
    eigen::dense_vector<Complex> eigenvalues_of(const std::vector<choice>& choices,
                                                const std::vector<eigen::dense_vector<Value>>& values,
                                                bool of_sizes = false) const {
        eigen::dense_vector<Complex> sum;
        for (std::size_t t = 0; t < terms_.size(); ++t) {
            std::vector<eigen::dense_vector<Value>> parts;
            for (std::size_t k = 0; k < choices.size(); ++k) {
                parts.push_back(choices[k].count > 0 && choices[k].uses_f[t]
                                    ? values[k]
                                    : eigen::dense_vector<Value>::Ones(static_cast<Eigen::Index>(choices[k].order)));
                if (of_sizes) {
                    parts.back() = parts.back().cwiseAbs().template cast<Value>().eval();
                }
            }
            const Complex amount = of_sizes ? Complex(std::abs(terms_[t].alpha())) : Complex(terms_[t].alpha());
            const eigen::dense_vector<Complex> term =
                amount * eigen::kron_of_vectors<Value>(std::move(parts)).template cast<Complex>();
            if (t == 0) {
                sum = term;
            } else {
                sum += term;
            }
        }
        return sum;
    }

    /// Takes the eigenvalues of the sum. @throws singular_error one is not known from 0: those of diagonals are known to some roundings of
    /// their terms, however small, those of other factors to some roundings of the largest
    template <class Value>
    void take_values(const std::vector<choice>& choices, const std::vector<eigen::dense_vector<Value>>& values) {
        values_ = eigenvalues_of<Value>(choices, values);
        const RealScalar most = values_.size() == 0 ? RealScalar(0) : values_.cwiseAbs().maxCoeff();
        const bool diagonals =
            std::all_of(choices.begin(), choices.end(), [](const choice& c) { return c.count == 0 || c.is_diagonal; });
        eigen::dense_vector<RealScalar> sizes;  // of each, where that is not the largest
        if (diagonals) {
            sizes = eigenvalues_of<Value>(choices, values, true).real();
        }
        for (Eigen::Index i = 0; i < values_.size(); ++i) {
            const RealScalar size = diagonals ? sizes(i) : most;
            if (!(std::abs(values_(i)) > least_of(size))) {
                throw_singular(values_.cwiseAbs().minCoeff(), most);
            }
        }
        take_reciprocals();
    }
    void take_reciprocals() {
        if (real_) {
            reciprocals_ = values_.real().cwiseInverse();
            return;
        }
        complex_reciprocals_.resize(values_.size());
        for (Eigen::Index i = 0; i < values_.size(); ++i) {
            complex_reciprocals_(i) = Complex(1) / values_(i);  // Eigen's quotients of complex numbers square them
        }
    }
    [[noreturn]] static void throw_singular(RealScalar least, RealScalar most) {
        throw singular_error(
            "otimes: solve with a sum of Kronecker products: it is singular to working precision (its eigenvalues "
            "reach from " +
                detail::number_text(static_cast<double>(least)) + " to " +
                detail::number_text(static_cast<double>(most)) + " in magnitude).",
            /*zero_determinant=*/true);
    }

    /// False where the mass matrices are too ill-conditioned for it.
    bool diagonalise_self_adjoint(const std::vector<choice>& choices) {
        for (const choice& c : choices) {
            rcond_ *= c.rcond;
        }
        refines_ = !(rcond_ >= RealScalar(1) / RealScalar(1024));
        kron_node<Scalar> vectors;
        std::vector<eigen::dense_vector<RealScalar>> values;
        method_ = "eigenvectors of self-adjoint factors";
        RealScalar order(1);
        for (const choice& c : choices) {
            order *= static_cast<RealScalar>(c.order);
        }
        for (std::size_t k = 0; k < choices.size(); ++k) {
            const choice& c = choices[k];
            if (c.count == 0) {
                vectors.append(leaf::identity(c.order));
                values.push_back(eigen::dense_vector<RealScalar>::Ones(static_cast<Eigen::Index>(c.order)));
            } else if (c.is_diagonal && c.count == 1) {
                vectors.append(leaf::identity(c.order));
                values.push_back(c.diagonal_f.real());
            } else if (c.is_diagonal) {
                const eigen::dense_vector<RealScalar> roots = c.diagonal_g.real().array().sqrt();
                log_abs_scale_ += 2 * order / static_cast<RealScalar>(c.order) * roots.array().log().sum();
                vectors.append(eigen::owned_diagonal<Scalar>(roots.cwiseInverse().template cast<Scalar>()));
                values.push_back((c.diagonal_f.real().array() / c.diagonal_g.real().array()).matrix());
                method_ = "generalised eigenvectors of self-adjoint factors";
            } else if (c.count == 1) {
                values.push_back(append_self_adjoint(k, c.f, nullptr, vectors));
            } else {
                values.push_back(append_self_adjoint(k, c.f, c.g.data(), vectors));
                const eigen::dense_matrix<Scalar> v = kron_expr<Scalar>::dense_factor(vectors.factors()[k]);
                eigen::dense_vector<Scalar> pivots(v.rows());
                eigen::dense_decompositions<Scalar>::lu(c.order, v.data(), pivots.data(), nullptr);
                log_abs_scale_ -= 2 * order / static_cast<RealScalar>(c.order) * log_abs_of(pivots);
                method_ = "generalised eigenvectors of self-adjoint factors";
            }
        }
        right_ = kron_expr<Scalar>(std::move(vectors));
        left_ = right_.adjoint();
        real_ = true;
        for (const kron_node<Scalar>& term : terms_) {
            real_ = real_ && std::imag(term.alpha()) == RealScalar(0);
        }
        if (!refines_) {
            take_values<RealScalar>(choices, values);
            return true;
        }
        // The roundings of V grow with the condition numbers of the mass matrices; those of S need not.
        values_ = eigenvalues_of<RealScalar>(choices, values);
        if (!(values_.cwiseAbs().minCoeff() > least_of(values_.cwiseAbs().maxCoeff()))) {
            return false;
        }
        take_reciprocals();
        choices_ = choices;
        measure();
        return true;
    }
    /// Appends the eigenvectors of F, with b of F V = B V diag(values); returns the values.
    eigen::dense_vector<RealScalar> append_self_adjoint(std::size_t k, const eigen::dense_matrix<Scalar>& f,
                                                        const Scalar* b, kron_node<Scalar>& vectors) const {
        eigen::dense_matrix<Scalar> v(f.rows(), f.cols());
        eigen::dense_vector<RealScalar> values(f.rows());
        require_convergence(
            eigen::dense_decompositions<Scalar>::self_adjoint_eigen(f.rows(), f.data(), b, values.data(), v.data()), k);
        vectors.append(eigen::owned_factor<Scalar>(std::move(v)));
        return values;
    }
    static RealScalar log_abs_of(const eigen::dense_vector<Scalar>& d) {
        RealScalar sum(0);
        for (Eigen::Index i = 0; i < d.size(); ++i) {
            sum += std::log(std::abs(d(i)));
        }
        return sum;
    }
    /// What does not count as 0 beside eigenvalues up to `most`.
    static RealScalar least_of(RealScalar most) {
        return RealScalar(4) * std::numeric_limits<RealScalar>::epsilon() * most;
    }

    void diagonalise_general(std::vector<choice> choices) {
        general_ = true;
        real_ = false;
        refines_ = false;
        rcond_ = inverse_size_ = RealScalar(1);
        log_abs_scale_ = size_ = orders_ = RealScalar(0);
        pairs_.clear();
        choices_ = std::move(choices);
        measure();
        divide_by_mass();
        if (!diagonalise_by_eigenvectors()) {
            triangular_ = schur_forms();
            method_ = "complex Schur forms of the factors";
            std::vector<eigen::dense_vector<Complex>> values;
            for (std::size_t k = 0; k < choices_.size(); ++k) {
                values.push_back(triangular_->diagonal(k));
            }
            take_values<Complex>(choices_, values);
        }
    }

    /// The sum with factors of its own, which a refinement applies, and a bound of its maximum row sum.
    void measure() {
        struct factor {
            leaf matrix;
            RealScalar size;  ///< its maximum row sum
        };
        const auto matrix_of = [](const eigen::dense_matrix<Scalar>& m) {
            return factor{eigen::owned_factor<Scalar>(m), m.cwiseAbs().rowwise().sum().maxCoeff()};
        };
        const auto diagonal_of = [](const eigen::dense_vector<Scalar>& d) {
            return factor{eigen::owned_diagonal<Scalar>(d), d.cwiseAbs().maxCoeff()};
        };
        std::vector<factor> of_f;
        std::vector<factor> others;
        for (const choice& c : choices_) {
            orders_ += static_cast<RealScalar>(c.order);
            const factor none{leaf::identity(c.order), RealScalar(1)};
            of_f.push_back(c.count == 0 ? none : c.is_diagonal ? diagonal_of(c.diagonal_f) : matrix_of(c.f));
            others.push_back(c.count < 2 ? none : c.is_diagonal ? diagonal_of(c.diagonal_g) : matrix_of(c.g));
        }
        for (std::size_t t = 0; t < terms_.size(); ++t) {
            kron_node<Scalar> term;
            RealScalar size = std::abs(terms_[t].alpha());
            for (std::size_t k = 0; k < choices_.size(); ++k) {
                const factor& one = choices_[k].count > 0 && choices_[k].uses_f[t] ? of_f[k] : others[k];
                term.append(one.matrix);
                size *= one.size;
            }
            term.set_alpha(terms_[t].alpha());
            own_ = t == 0 ? sum_expr<Scalar>(kron_expr<Scalar>(term)) : own_ + kron_expr<Scalar>(term);
            size_ += size;
        }
    }

    /// Where a position has two matrices F and G, of which none need be self-adjoint: S = kron(G_k or I) S', with G_k^-1 F_k and the identity at
    /// these positions of S'. G is the one of the two that is the better conditioned, or a combination where both are singular. @throws unsupported_error
    /// that is, too
    void divide_by_mass() {
        kron_node<Scalar> inverse;
        RealScalar order(1);
        for (const choice& c : choices_) {
            order *= static_cast<RealScalar>(c.order);
        }
        bool any = false;
        for (std::size_t k = 0; k < choices_.size(); ++k) {
            choice& c = choices_[k];
            if (c.count < 2) {
                inverse.append(leaf::identity(c.order));
                continue;
            }
            any = true;
            const auto exchange = [&c] {
                c.exchange();
                c.uses_f.flip();
            };
            RealScalar log_abs;
            if (c.is_diagonal) {
                if (!(rcond_of(c.diagonal_g) >= rcond_of(c.diagonal_f))) {
                    exchange();
                }
                RealScalar conditioned = rcond_of(c.diagonal_g);
                if (!(conditioned > std::numeric_limits<RealScalar>::epsilon())) {
                    conditioned = combine(k, c.diagonal_f, c.diagonal_g,
                                          [](const eigen::dense_vector<Scalar>& d) { return rcond_of(d); });
                }
                rcond_ *= conditioned;
                const eigen::dense_vector<Scalar> reciprocals = c.diagonal_g.cwiseInverse();
                c.diagonal_f.array() *= reciprocals.array();
                log_abs = log_abs_of(c.diagonal_g);
                inverse_size_ *= reciprocals.cwiseAbs().maxCoeff();
                inverse.append(eigen::owned_diagonal<Scalar>(reciprocals));
            } else {
                const auto rcond_of_matrix = [](const eigen::dense_matrix<Scalar>& m) {
                    return eigen::dense_decompositions<Scalar>::lu(m.rows(), m.data(), nullptr, nullptr).rcond;
                };
                RealScalar conditioned = rcond_of_matrix(c.g);
                const RealScalar of_f = rcond_of_matrix(c.f);
                if (!(conditioned >= of_f)) {
                    exchange();
                    conditioned = of_f;
                }
                if (!(conditioned > std::numeric_limits<RealScalar>::epsilon())) {
                    conditioned = combine(k, c.f, c.g, rcond_of_matrix);
                }
                rcond_ *= conditioned;
                eigen::dense_matrix<Scalar> g_inverse(c.g.rows(), c.g.cols());
                eigen::dense_vector<Scalar> pivots(c.g.rows());
                eigen::dense_decompositions<Scalar>::lu(c.order, c.g.data(), pivots.data(), g_inverse.data(),
                                                        c.f.data(), c.order);
                log_abs = log_abs_of(pivots);
                inverse_size_ *= g_inverse.cwiseAbs().rowwise().sum().maxCoeff();
                inverse.append(eigen::owned_factor<Scalar>(std::move(g_inverse)));
            }
            log_abs_scale_ += order / static_cast<RealScalar>(c.order) * log_abs;
            c.self_adjoint = false;
            c.count = 1;
        }
        inverse_mass_.reset();
        if (any) {
            inverse_mass_ = kron_expr<Scalar>(std::move(inverse));
        }
    }

    /// F and G of position k are singular: G + tau F takes the place of G where one of some is invertible, so that each term with G becomes two,
    /// G = (G + tau F) - tau F. Powers of two, by which nothing is rounded. Returns its reciprocal condition number. @throws unsupported_error
    template <class Matrix, class ConditionOf>
    RealScalar combine(std::size_t k, const Matrix& f, Matrix& g, const ConditionOf& rcond_of_matrix) {
        RealScalar best(0);
        RealScalar tau(0);
        for (const double tried : {1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 4.0, -4.0}) {
            const RealScalar conditioned = rcond_of_matrix(Matrix(g + Scalar(RealScalar(tried)) * f));
            if (conditioned > best) {
                best = conditioned;
                tau = RealScalar(tried);
            }
        }
        if (!(best > std::numeric_limits<RealScalar>::epsilon())) {
            throw_no_mass_matrix(k);
        }
        g += Scalar(tau) * f;
        const std::size_t count = terms_.size();
        for (std::size_t t = 0; t < count; ++t) {
            if (choices_[k].uses_f[t]) {
                continue;
            }
            kron_node<Scalar> part = terms_[t];
            part.set_alpha(Scalar(-tau) * part.alpha());
            terms_.push_back(std::move(part));
            for (choice& c : choices_) {
                c.uses_f.push_back(&c == &choices_[k] || c.uses_f[t]);
            }
        }
        return best;
    }

    /// False where the eigenvectors are too ill-conditioned for S; see the file comment.
    bool diagonalise_by_eigenvectors() {
        kron_node<Scalar> left;
        kron_node<Scalar> right;
        std::vector<eigen::dense_vector<Complex>> values;
        for (std::size_t k = 0; k < choices_.size(); ++k) {
            const choice& c = choices_[k];
            const auto order = static_cast<Eigen::Index>(c.order);
            const leaf* const inverse = inverse_mass_ ? &inverse_mass_->node().factors()[k] : nullptr;
            pairs_.emplace_back(static_cast<std::size_t>(c.order), false);
            if (c.count == 0 || c.is_diagonal) {
                left.append(inverse != nullptr ? *inverse : leaf::identity(c.order));
                right.append(leaf::identity(c.order));
                values.push_back(c.count == 0 ? eigen::dense_vector<Complex>::Ones(order).eval()
                                              : c.diagonal_f.template cast<Complex>().eval());
                continue;
            }
            if (c.self_adjoint) {
                values.push_back(append_self_adjoint(k, c.f, nullptr, right).template cast<Complex>());
                leaf adjoint = right.factors()[k];
                adjoint.transpose();
                if constexpr (detail::is_complex_scalar<Scalar>) {
                    adjoint.conjugate();
                }
                left.append(std::move(adjoint));
                continue;
            }
            eigen::dense_matrix<Scalar> v(order, order);
            eigen::dense_vector<Complex> of_f(order);
            require_convergence(
                eigen::dense_decompositions<Scalar>::general_eigen(c.order, c.f.data(), of_f.data(), v.data()), k);
            if constexpr (!detail::is_complex_scalar<Scalar>) {
                for (Eigen::Index i = 0; i + 1 < order; ++i) {
                    if (of_f(i).imag() != RealScalar(0)) {
                        pairs_.back()[static_cast<std::size_t>(i++)] = true;
                    }
                }
            }
            // W = V^-1 G^-1
            eigen::dense_matrix<Scalar> w = eigen::dense_matrix<Scalar>::Identity(order, order);
            if (inverse != nullptr) {
                w = kron_expr<Scalar>::dense_factor(*inverse);
            }
            rcond_ *=
                eigen::dense_decompositions<Scalar>::lu(c.order, v.data(), nullptr, nullptr, w.data(), c.order).rcond;
            if (!(rcond_ > std::numeric_limits<RealScalar>::epsilon())) {
                return false;
            }
            left.append(eigen::owned_factor<Scalar>(std::move(w)));
            right.append(eigen::owned_factor<Scalar>(std::move(v)));
            values.push_back(std::move(of_f));
        }
        values_ = eigenvalues_of<Complex>(choices_, values);
        const RealScalar least = values_.cwiseAbs().minCoeff() / inverse_size_;
        if (!(std::numeric_limits<RealScalar>::epsilon() * size_ < rcond_ * least / RealScalar(1024))) {
            return false;
        }
        take_reciprocals();
        method_ = "eigenvectors of general factors";
        left_ = kron_expr<Scalar>(std::move(left));
        right_ = kron_expr<Scalar>(std::move(right));
        return true;
    }

    [[nodiscard]] eigen::triangular_sum<Scalar> schur_forms() const {
        std::vector<typename eigen::triangular_sum<Scalar>::position> positions;
        for (const choice& c : choices_) {
            positions.push_back({c.order, c.f, c.diagonal_f.template cast<Complex>(), c.uses_f});
        }
        std::vector<Complex> amounts;
        for (const kron_node<Scalar>& term : terms_) {
            amounts.push_back(Complex(term.alpha()));
        }
        eigen::triangular_sum<Scalar> result;
        require_convergence(result.compute(positions, std::move(amounts)), result.failed_at());
        return result;
    }

    static void require_convergence(bool converged, std::size_t k) {
        if (!converged) {
            throw singular_error("otimes: solve with a sum of Kronecker products: the eigenvalues of factor " +
                                 std::to_string(k + 1) + " did not converge.");
        }
    }

    static constexpr const char* solving = "solve with a sum of Kronecker products";

    std::vector<kron_node<Scalar>> terms_;
    std::int64_t exponent_ = 0;
    kron_expr<Scalar> left_;
    kron_expr<Scalar> right_;
    eigen::dense_vector<Complex> values_;
    eigen::dense_vector<RealScalar> reciprocals_;       ///< of values_, where they are real
    eigen::dense_vector<Complex> complex_reciprocals_;  ///< the same where they are not
    device_copies kept_;
    RealScalar log_abs_scale_ = RealScalar(0);
    std::string method_;
    bool real_ = true;
    bool refines_ = false;  ///< self-adjoint factors whose mass matrices are not well conditioned
    /// @name Of factors that are not self-adjoint.
    /// @{
    bool general_ = false;
    std::vector<choice> choices_;
    sum_expr<Scalar> own_;
    RealScalar size_ = RealScalar(0);       ///< a bound of the maximum row sum of S
    RealScalar orders_ = RealScalar(0);     ///< n_1 + .. + n_N
    RealScalar rcond_ = RealScalar(1);      ///< of the eigenvectors and the mass matrices, the product over the factors
    std::vector<std::vector<bool>> pairs_;  ///< of each factor: whether column i and the next one of V are of a pair
    std::optional<kron_expr<Scalar>> inverse_mass_;  ///< kron(G_k^-1 or I) where positions have two matrices
    RealScalar inverse_size_ = RealScalar(1);        ///< its maximum row sum
    std::optional<eigen::triangular_sum<Scalar>> triangular_;
    /// @}
};

namespace eigen {

/// What errors call a matrix equation and what is in it.
struct equation_names {
    const char* call;
    const char* a;
    const char* b;
    const char* no_unique_solution;  ///< because of what
};

/// Body of sylvester and lyapunov. @pre the shapes fit
template <class DerivedA, class DerivedB, class DerivedC>
auto solve_by_schur_forms(const Eigen::MatrixBase<DerivedA>& a, const Eigen::MatrixBase<DerivedB>& b,
                          const Eigen::MatrixBase<DerivedC>& c, const equation_names& names) {
    using scalar = detail::common_scalar<detail::common_scalar<typename DerivedA::Scalar, typename DerivedB::Scalar>,
                                         typename DerivedC::Scalar>;
    using real = detail::real_of<scalar>;
    using complex = typename dense_decompositions<scalar>::complex;
    using matrix = dense_matrix<complex>;
    const std::string where = "otimes: " + std::string(names.call) + ": ";
    dense_matrix<scalar> result(c.rows(), c.cols());
    if (c.size() == 0) {
        return result;
    }
    for (const bool of_a : {true, false}) {
        if (!(of_a ? all_finite(a) : all_finite(b))) {
            throw singular_error(where + (of_a ? names.a : names.b) +
                                 " has an element that is NaN or infinite; such a matrix has no Schur form.");
        }
    }
    const auto schur = [&where](dense_matrix<scalar> m, const char* name, matrix& triangular) {
        const scaled_matrix<scalar> scaled(std::move(m));
        const Eigen::Index n = scaled.matrix.rows();
        matrix unitary(n, n);
        triangular.resize(n, n);
        if (!dense_decompositions<scalar>::schur(n, scaled.matrix.data(), triangular.data(), unitary.data())) {
            throw singular_error(where + "the Schur form of " + name + " did not converge.");
        }
        triangular *= scaled.power();
        return unitary;
    };
    matrix s;
    matrix t;
    const matrix u = schur(a.template cast<scalar>(), names.a, s);
    const matrix v = schur(b.template cast<scalar>(), names.b, t);
    matrix y = u.adjoint() * c.template cast<complex>() * v;
    const real size = s.cwiseAbs().maxCoeff() + t.cwiseAbs().maxCoeff();
    for (Eigen::Index j = 0; j < y.cols(); ++j) {  // S y_j + y_j t_jj = rhs_j
        if (j > 0) {
            y.col(j) -= y.leftCols(j) * t.col(j).head(j);
        }
        for (Eigen::Index i = y.rows(); i-- > 0;) {
            const complex pivot = s(i, i) + t(j, j);
            if (!(std::abs(pivot) > real(4) * std::numeric_limits<real>::epsilon() * size)) {
                throw singular_error(where + names.no_unique_solution + ", so there is no unique X.");
            }
            y(i, j) /= pivot;
            y.col(j).head(i) -= s.col(i).head(i) * y(i, j);
        }
    }
    const matrix x = u * y * v.adjoint();
    if constexpr (detail::is_complex_scalar<scalar>) {
        result = x;
    } else {
        result = x.real();
    }
    return result;
}

}  // namespace eigen

/// X with A X + X B = C, by the complex Schur forms of A and B (Bartels and Stewart 1972): works for defective A and B too.
/// Cost: O(m^3 + n^3 + m n (m + n)). @throws shape_error; singular_error where A and -B share an eigenvalue, or one has NaN or Inf
template <class DerivedA, class DerivedB, class DerivedC>
[[nodiscard]] auto sylvester(const Eigen::MatrixBase<DerivedA>& a, const Eigen::MatrixBase<DerivedB>& b,
                             const Eigen::MatrixBase<DerivedC>& c) {
    if (a.rows() != a.cols() || b.rows() != b.cols() || c.rows() != a.rows() || c.cols() != b.rows()) {
        throw shape_error("otimes: sylvester(A, B, C): A is " + detail::shape_text(a.rows(), a.cols()) + ", B is " +
                          detail::shape_text(b.rows(), b.cols()) + ", C is " + detail::shape_text(c.rows(), c.cols()) +
                          ". A and B must be square and C must have the rows of A and the columns of B.");
    }
    return eigen::solve_by_schur_forms(
        a, b, c, {"sylvester(A, B, C)", "A", "B", "A and -B have a common eigenvalue to working precision"});
}

/// X with A X + X A^H = Q. @throws shape_error; singular_error where two eigenvalues of A sum to 0 (one conjugated)
template <class DerivedA, class DerivedQ>
[[nodiscard]] auto lyapunov(const Eigen::MatrixBase<DerivedA>& a, const Eigen::MatrixBase<DerivedQ>& q) {
    if (a.rows() != a.cols() || q.rows() != a.rows() || q.cols() != a.rows()) {
        throw shape_error("otimes: lyapunov(A, Q): A is " + detail::shape_text(a.rows(), a.cols()) + ", Q is " +
                          detail::shape_text(q.rows(), q.cols()) + ". Both must be square and of one order.");
    }
    return eigen::solve_by_schur_forms(
        a, a.adjoint(), q, {"lyapunov(A, Q)", "A", "A^H", "A and -A^H have a common eigenvalue to working precision"});
}

namespace eigen {

/// The members of sum_expr that need factorisations.
template <class Scalar>
struct algebra<sum_expr<Scalar>> {
    static detail::real_of<Scalar> log_abs_determinant(const sum_expr<Scalar>& s) {
        if (s.is_kron()) {
            return s.as_kron().logAbsDeterminant();
        }
        if (s.tree().kind == tree_kind::product && std::all_of(s.tree().parts.begin(), s.tree().parts.end(),
                                                               [](const auto& p) { return p.rows() == p.cols(); })) {
            detail::real_of<Scalar> sum = 0;
            for (const operator_tree<Scalar>& part : s.tree().parts) {
                sum += log_abs_determinant(sum_expr<Scalar>(part));
            }
            return sum;
        }
        try {
            return kron_sum_solver<Scalar>(s).logAbsDeterminant();
        } catch (const singular_error& e) {
            if (!e.zero_determinant()) {
                throw;
            }
            return -std::numeric_limits<detail::real_of<Scalar>>::infinity();
        } catch (const unsupported_error&) {  // which speaks of solving
            throw unsupported_error(
                "otimes: logAbsDeterminant of a sum of Kronecker products: its terms cannot be diagonalised together, "
                "so "
                "that it is not known without the matrix. Factorise toDenseMatrix() where that fits, or estimate the "
                "trace of the logarithm with probe vectors.");
        }
    }
    template <class Rhs>
    static auto solve(const sum_expr<Scalar>& s, const Rhs& b) {
        using scalar = detail::common_scalar<Scalar, typename Rhs::Scalar>;
        using result_type = Eigen::Matrix<scalar, Eigen::Dynamic, Rhs::ColsAtCompileTime>;
        if (s.is_kron()) {
            return result_type(s.as_kron().solve(b));
        }
        if (s.tree().kind == tree_kind::product) {
            result_type x = b.template cast<scalar>();
            for (const operator_tree<Scalar>& part : s.tree().parts) {
                if (part.rows() != part.cols()) {
                    throw shape_error("otimes: solve with " + s.tree().name() + ": " + part.name() + " is " +
                                      detail::shape_text(part.rows(), part.cols()) + "; all parts must be square.");
                }
                x = solve(sum_expr<Scalar>(part), x);
            }
            return x;
        }
        return result_type(kron_sum_solver<Scalar>(s).solve(b));
    }
    template <class Rhs>
    requires is_device_operand<Rhs>
    static auto solve(const sum_expr<Scalar>& s, const Rhs& b) {
        if (s.is_kron()) {
            return s.as_kron().solve(b);
        }
        if (s.tree().kind == tree_kind::product) {
            auto x = solve(sum_expr<Scalar>(s.tree().parts.front()), b);
            for (std::size_t i = 1; i < s.tree().parts.size(); ++i) {
                x = solve(sum_expr<Scalar>(s.tree().parts[i]), x);
            }
            return x;
        }
        return kron_sum_solver<Scalar>(s).solve(b);
    }
};

}  // namespace eigen

/// X with S X = B for a sum of krons with factors on the host and B in device memory (device_algebra.hpp).
template <class Scalar, class Rhs>
requires is_device_operand<Rhs>
[[nodiscard]] auto solve_with_host_factors(const std::vector<kron_node<Scalar>>& terms, const Rhs& b) {
    sum_expr<Scalar> s(kron_expr<Scalar>(terms.front()));
    for (std::size_t i = 1; i < terms.size(); ++i) {
        s = s + kron_expr<Scalar>(terms[i]);
    }
    return s.solve(b);
}
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file merged_terms.hpp
/// The terms of a sum of krons that split alike, written with fewer different matrices at each position: those that are equal, element by
/// element, become one, and terms that differ at one position alone become one,
///
///     a kron(L, F, R) + b kron(L, G, R) = kron(L, a F + b G, R).
///
/// What is left at a position then has to be diagonalised together (solvers.hpp): one matrix beside the identity, or two.
///
/// Cost: the elements of every factor are read, and compared with those of the others at its position; no decomposition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/factors.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/factorwise/scaled_number.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

template <class Scalar>
class term_merger {
public:
    /// @pre the terms split alike into square factors, and there is one. @throws budget_error, singular_error (factors.hpp)
    static void merge(std::vector<kron_node<Scalar>>& terms, const std::string& what) {
        for (std::size_t k = 0; k < terms.front().factors().size(); ++k) {
            share(terms, k, what);
        }
        for (std::size_t k = 0; k < terms.front().factors().size(); ++k) {
            if (to_diagonalise(terms, k) < 2) {
                continue;
            }
            std::vector<kron_node<Scalar>> merged;
            for (const kron_node<Scalar>& term : terms) {
                const auto like = std::find_if(merged.begin(), merged.end(), [&term, k](const kron_node<Scalar>& m) {
                    return differ_only_at(k, m, term);
                });
                if (like == merged.end()) {
                    merged.push_back(term);
                } else {
                    *like = sum_of(*like, term, k, what);
                }
            }
            share(merged, k, what);
            if (to_diagonalise(merged, k) < to_diagonalise(terms, k)) {
                terms = std::move(merged);
            }
        }
    }

private:
    using matrix = dense_matrix<Scalar>;
    using vector = dense_vector<Scalar>;
    using real = detail::real_of<Scalar>;

    struct known {
        leaf source;
        vector diagonal;  ///< of a diagonal
        matrix elements;  ///< of any other
    };

    /// Equal matrices at position k become one, identities none.
    static void share(std::vector<kron_node<Scalar>>& terms, std::size_t k, const std::string& what) {
        std::vector<known> found;
        for (kron_node<Scalar>& term : terms) {
            const leaf f = term.factors()[k];
            if (f.is_identity() ||
                std::any_of(found.begin(), found.end(), [&f](const known& other) { return other.source == f; })) {
                continue;
            }
            const factor_reader<Scalar> reader(f, k + 1, what);
            if (reader.form() == factor_form::identity) {
                replace(term, k, leaf::identity(f.rows()));
                continue;
            }
            // What is not finite stays as it is, and is refused later: with -ffast-math it may compare equal to anything.
            known now{f, reader.diagonal(), reader.form() == factor_form::diagonal ? matrix() : reader.dense()};
            if (!all_finite(now.diagonal) || !all_finite(now.elements)) {
                continue;
            }
            if (reader.form() == factor_form::diagonal ? (now.diagonal.array() == Scalar(1)).all()
                                                       : is_identity(now.elements)) {
                replace(term, k, leaf::identity(f.rows()));
                continue;
            }
            const auto same = std::find_if(found.begin(), found.end(), [&now](const known& other) {
                return other.diagonal.size() == now.diagonal.size() && other.diagonal == now.diagonal &&
                       other.elements.size() == now.elements.size() && other.elements == now.elements;
            });
            if (same != found.end()) {
                replace(term, k, same->source);
            } else {
                found.push_back(std::move(now));
            }
        }
    }
    static void replace(kron_node<Scalar>& term, std::size_t k, const leaf& by) {
        kron_node<Scalar> result;
        for (std::size_t i = 0; i < term.factors().size(); ++i) {
            result.append(i == k ? by : term.factors()[i]);
        }
        result.set_alpha(term.alpha());
        term = std::move(result);
    }
    static bool is_identity(const matrix& m) {
        for (Eigen::Index j = 0; j < m.cols(); ++j) {
            for (Eigen::Index i = 0; i < m.rows(); ++i) {
                if (m(i, j) != Scalar(i == j ? 1 : 0)) {
                    return false;
                }
            }
        }
        return true;
    }

    static bool is_same(const leaf& a, const leaf& b) {
        return a.is_identity() ? b.is_identity() : !b.is_identity() && a == b;
    }
    static bool differ_only_at(std::size_t k, const kron_node<Scalar>& a, const kron_node<Scalar>& b) {
        for (std::size_t i = 0; i < a.factors().size(); ++i) {
            if (is_same(a.factors()[i], b.factors()[i]) == (i == k)) {
                return false;
            }
        }
        return true;
    }
    /// How many different matrices the terms have at position k, the identity counted where it is not alone with one.
    static std::size_t to_diagonalise(const std::vector<kron_node<Scalar>>& terms, std::size_t k) {
        std::vector<const leaf*> matrices;
        bool with_identity = false;
        for (const kron_node<Scalar>& term : terms) {
            const leaf& f = term.factors()[k];
            with_identity = with_identity || f.is_identity();
            if (!f.is_identity() &&
                std::none_of(matrices.begin(), matrices.end(), [&f](const leaf* m) { return *m == f; })) {
                matrices.push_back(&f);
            }
        }
        return matrices.size() + (with_identity && matrices.size() > 1 ? 1 : 0);
    }

    /// a + b, which differ at position k alone.
    static kron_node<Scalar> sum_of(const kron_node<Scalar>& a, const kron_node<Scalar>& b, std::size_t k,
                                    const std::string& what) {
        const factor_reader<Scalar> of_a(a.factors()[k], k + 1, what);
        const factor_reader<Scalar> of_b(b.factors()[k], k + 1, what);
        kron_node<Scalar> result = a;
        const auto put = [&](auto from_a, const auto& from_b, const auto& owned) {
            Scalar alpha = a.alpha();
            add(alpha, from_a, b.alpha(), from_b);
            replace(result, k, owned(std::move(from_a)));
            result.set_alpha(alpha);
        };
        if (is_diagonal(of_a) && is_diagonal(of_b)) {
            put(diagonal_of(of_a), diagonal_of(of_b), &owned_diagonal<Scalar>);
        } else {
            put(of_a.finite(), of_b.finite(), &owned_factor<Scalar>);
        }
        return result;
    }
    /// alpha_a * a becomes alpha_a * a + alpha_b * b, with the scalar of the one that is the larger. An element that is nothing but roundings
    /// of the two that it is the sum of becomes 0.
    template <class Elements>
    static void add(Scalar& alpha_a, Elements& a, const Scalar& alpha_b, const Elements& b) {
        const auto is_zero = [](const Scalar& alpha, const Elements& e) {
            return alpha == Scalar(0) || e == Elements::Zero(e.rows(), e.cols());
        };
        if (is_zero(alpha_b, b)) {
            return;
        }
        const detail::scaled_number<Scalar> of_a(alpha_a);
        const detail::scaled_number<Scalar> of_b(alpha_b);
        if (is_zero(alpha_a, a) ||
            of_a.exponent() + exponent_of_largest(a) < of_b.exponent() + exponent_of_largest(b)) {
            Elements sum = b;
            Scalar alpha = alpha_b;
            add(alpha, sum, alpha_a, a);
            a = std::move(sum);
            alpha_a = alpha;
            return;
        }
        const std::int64_t shift = of_b.exponent() - of_a.exponent();
        const Scalar quotient = of_b.value_over(of_b.exponent()) / of_a.value_over(of_a.exponent());
        constexpr real roundings = real(4) * std::numeric_limits<real>::epsilon();
        for (Eigen::Index j = 0; j < a.cols(); ++j) {
            for (Eigen::Index i = 0; i < a.rows(); ++i) {
                const Scalar other = quotient * detail::scaled_number<Scalar>(b(i, j), shift).value();
                const Scalar sum = a(i, j) + other;
                a(i, j) = std::abs(sum) > roundings * (std::abs(a(i, j)) + std::abs(other)) ? sum : Scalar(0);
            }
        }
    }
    static bool is_diagonal(const factor_reader<Scalar>& f) {
        return f.form() == factor_form::identity || f.form() == factor_form::diagonal;
    }
    static vector diagonal_of(const factor_reader<Scalar>& f) {
        return f.form() == factor_form::diagonal ? f.finite_diagonal()
                                                 : vector::Ones(static_cast<Eigen::Index>(f.rows())).eval();
    }
};

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

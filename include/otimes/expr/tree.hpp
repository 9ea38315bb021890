// SPDX-License-Identifier: MIT
/// @file tree.hpp
/// Sums and products of Kronecker products, as a tree that is never multiplied out.
///
/// Mathematics. A tree is one of
///
///     kron      alpha * kron(F1, ..., FN)
///     sum       T1 + T2 + ... + Tn            equal shapes
///     product   T1 * T2 * ... * Tn            cols(Tk) = rows(Tk+1)
///
/// Scalars live in the krons alone. A sum inside a sum and a product inside a product are flattened; terms with the same
/// factors are one term. Transposition reverses products and reaches the factors; nothing is computed.
///
/// Scalar: common to the whole tree. Lifetime: per factor, as in leaf.hpp. Cost: O(factors) words.
/// Errors: shape_error with both shapes.
/// See also: lower_tree.hpp (how it becomes a program), adapt/eigen/sums.hpp (the operators that build one).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

enum class tree_kind : std::uint8_t { kron, sum, product };

/// See the file comment. A value; `parts` of a kron are empty, `kron` of the others has no factors.
template <class Scalar>
struct operator_tree {
    using scalar_type = Scalar;

    tree_kind kind = tree_kind::kron;
    kron_node<Scalar> kron;  ///< its `rewritten` is the tree's own, of any kind
    std::vector<operator_tree> parts;

    operator_tree() = default;
    explicit operator_tree(kron_node<Scalar> node) : kron(std::move(node)) {}

    /// The rules that made the tree and its parts.
    [[nodiscard]] rewrites rewritten() const {
        rewrites all = kron.rewritten();
        for (const operator_tree& part : parts) {
            all.add(part.rewritten());
        }
        return all;
    }
    [[nodiscard]] std::int64_t rows() const { return kind == tree_kind::kron ? kron.rows() : parts.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return kind == tree_kind::kron ? kron.cols() : parts.back().cols(); }

    /// Multiplies the tree by a scalar.
    void scale(const Scalar& amount) {
        kron.rewritten().add(rewrite::scalar_gathered);
        if (kind == tree_kind::kron) {
            kron.set_alpha(kron.alpha() * amount);
        } else if (kind == tree_kind::product) {
            parts.front().scale(amount);
        } else {
            for (operator_tree& part : parts) {
                part.scale(amount);
            }
        }
    }
    void transpose() {
        kron.transpose();
        for (operator_tree& part : parts) {
            part.transpose();
        }
        if (kind == tree_kind::product) {
            std::reverse(parts.begin(), parts.end());
        }
    }
    void conjugate() {
        kron.conjugate();
        for (operator_tree& part : parts) {
            part.conjugate();
        }
    }

    /// Are all factors and scalars real? `by_type`: also the types that the krons' scalars have had.
    [[nodiscard]] bool is_real(bool by_type = false) const {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            const auto real = [](const leaf& f) { return f.is_identity() || f.real_elements(); };
            return kron.alpha().imag() == detail::real_of<Scalar>(0) && !(by_type && kron.complex_scale()) &&
                   std::all_of(kron.factors().begin(), kron.factors().end(), real) &&
                   std::all_of(parts.begin(), parts.end(),
                               [by_type](const operator_tree& part) { return part.is_real(by_type); });
        } else {
            return true;
        }
    }

    /// Calls f(leaf) for every factor.
    template <class Function>
    void for_each_factor(const Function& f) const {
        for (const leaf& factor : kron.factors()) {
            f(factor);
        }
        for (const operator_tree& part : parts) {
            part.for_each_factor(f);
        }
    }

    /// Element (i, j). Cost: the number of factors for sums of krons; a product of trees costs its inner extent times that.
    [[nodiscard]] Scalar coefficient(std::int64_t i, std::int64_t j) const {
        if (kind == tree_kind::kron) {
            return kron.coefficient(i, j);
        }
        Scalar value(0);
        if (kind == tree_kind::sum) {
            for (const operator_tree& part : parts) {
                value = value + part.coefficient(i, j);
            }
            return value;
        }
        std::vector<Scalar> row(static_cast<std::size_t>(parts.front().cols()), Scalar(0));
        for (std::size_t k = 0; k < row.size(); ++k) {
            row[k] = parts.front().coefficient(i, static_cast<std::int64_t>(k));
        }
        for (std::size_t p = 1; p < parts.size(); ++p) {
            const bool last = p + 1 == parts.size();
            std::vector<Scalar> next(last ? 1 : static_cast<std::size_t>(parts[p].cols()), Scalar(0));
            for (std::size_t c = 0; c < next.size(); ++c) {
                for (std::size_t k = 0; k < row.size(); ++k) {
                    next[c] = next[c] + row[k] * parts[p].coefficient(static_cast<std::int64_t>(k),
                                                                      last ? j : static_cast<std::int64_t>(c));
                }
            }
            row.swap(next);
        }
        return row.front();
    }

    /// Borrowed factors may have been resized since the tree was made. Cost: O(factors). @throws shape_error the parts fit no more
    void check() const {
        for (std::size_t k = 0; k < parts.size(); ++k) {
            parts[k].check();
            if (k > 0 && (kind == tree_kind::product
                              ? parts[k - 1].cols() != parts[k].rows()
                              : parts[k].rows() != parts[0].rows() || parts[k].cols() != parts[0].cols())) {
                throw_no_fit(kind == tree_kind::product ? k - 1 : 0, k);
            }
        }
    }

    /// "kron(F1, F2)", "a sum of 3 terms", "a product of 2 operators".
    [[nodiscard]] std::string name() const {
        if (kind == tree_kind::kron) {
            // A term that was written without kron().
            const factor_kind only = kron.factors().size() == 1 ? kron.factors()[0].kind() : factor_kind::dense;
            return only == factor_kind::diagonal      ? "a diagonal matrix"
                   : only == factor_kind::sparse      ? "a sparse matrix"
                   : only == factor_kind::permutation ? "a permutation matrix"
                                                      : detail::kron_text(kron.factors().size());
        }
        return kind == tree_kind::sum ? "a sum of " + std::to_string(parts.size()) + " terms"
                                      : "a product of " + std::to_string(parts.size()) + " operators";
    }

private:
    [[noreturn]] OTIMES_COLD void throw_no_fit(std::size_t i, std::size_t k) const {
        const auto text = [this](std::size_t at) {
            return "part " + std::to_string(at + 1) + " is " + parts[at].name() + ", " +
                   detail::shape_text(parts[at].rows(), parts[at].cols());
        };
        throw shape_error("otimes: " + name() + ": " + text(i) + ", " + text(k) +
                          ". They fitted when the expression was written; a matrix was resized since.");
    }
};

namespace detail {

/// Equal factors in equal places; alpha aside.
template <class Scalar>
bool same_factors(const kron_node<Scalar>& a, const kron_node<Scalar>& b) {
    return a.factors().size() == b.factors().size() &&
           std::equal(a.factors().begin(), a.factors().end(), b.factors().begin());
}

template <class Scalar>
void append_term(operator_tree<Scalar>& sum, const operator_tree<Scalar>& term) {
    if (term.kind == tree_kind::sum) {
        sum.kron.rewritten().add(term.kron.rewritten());
        for (const operator_tree<Scalar>& part : term.parts) {
            append_term(sum, part);
        }
        return;
    }
    if (term.kind == tree_kind::kron) {
        for (operator_tree<Scalar>& part : sum.parts) {
            if (part.kind == tree_kind::kron && same_factors(part.kron, term.kron)) {
                part.kron.set_alpha(part.kron.alpha() + term.kron.alpha());
                part.kron.rewritten().add(term.kron.rewritten());
                part.kron.rewritten().add(rewrite::equal_terms_merged);
                return;
            }
        }
    }
    sum.parts.push_back(term);
}

}  // namespace detail

/// a + b. @throws shape_error when the shapes differ.
template <class Scalar>
operator_tree<Scalar> add_trees(const operator_tree<Scalar>& a, const operator_tree<Scalar>& b) {
    if (a.rows() != b.rows() || a.cols() != b.cols()) {
        throw shape_error("otimes: sum of operators: the first is " + a.name() + ", " +
                          detail::shape_text(a.rows(), a.cols()) + ", the second is " + b.name() + ", " +
                          detail::shape_text(b.rows(), b.cols()) + ". Terms of a sum must have equal shapes.");
    }
    operator_tree<Scalar> result;
    result.kind = tree_kind::sum;
    if (a.kind == tree_kind::sum || b.kind == tree_kind::sum) {
        result.kron.rewritten().add(rewrite::nested_sum_flattened);
    }
    if (a.kind == tree_kind::sum) {  // whose terms are compared with b, not with each other again
        result.kron.rewritten().add(a.kron.rewritten());
        result.parts.reserve(a.parts.size() + 1);
        result.parts = a.parts;
    } else {
        detail::append_term(result, a);
    }
    detail::append_term(result, b);
    if (result.parts.size() == 1) {
        return result.parts.front();
    }
    return result;
}

/// The same tree over a scalar that contains the old one.
template <class Scalar, class Other>
operator_tree<Scalar> promote_tree(const operator_tree<Other>& from) {
    if constexpr (std::is_same_v<Scalar, Other>) {
        return from;
    } else {
        operator_tree<Scalar> to;
        to.kind = from.kind;
        to.kron.append(from.kron);
        for (const operator_tree<Other>& part : from.parts) {
            to.parts.push_back(promote_tree<Scalar>(part));
        }
        return to;
    }
}

}  // namespace otimes

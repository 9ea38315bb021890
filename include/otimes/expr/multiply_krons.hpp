// SPDX-License-Identifier: MIT
/// @file multiply_krons.hpp
/// Products of operators, rewritten where that saves work. Rules, each a property test in exact arithmetic
/// (tests/laws/rewriting.cpp, docs/algebra.md):
///
///     mixed-product         kron(A, B) * kron(C, D) = kron(A C, B D)     where cols(A) = rows(C), cols(B) = rows(D)
///     kron-identity-split   an identity is absorbed, cut first if it is too long: kron(A, I) * kron(I, B) = kron(A, B)
///     identity-runs-merged  neighbouring identities are one, where mixed-product fits only so
///     scalar-gathered       (a K) * (b L) = (a b) (K * L)
///     applied-in-sequence   otherwise the operators are applied one after the other
///
/// A C is not formed here: the product leaf is multiplied out at evaluation, and only where that takes fewer flops for the
/// operand at hand (lower_structured.hpp). Rewriting a result again changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <otimes/expr/structured.hpp>
#include <otimes/expr/tree.hpp>

namespace otimes {
namespace detail {

/// The first part of an identity that is split in two; `rest` receives the second.
inline leaf split_identity(const leaf& whole, std::int64_t first, leaf& rest) {
    rest = leaf::identity(whole.rows() / first);
    return leaf::identity(first);
}

/// The factors with each run of neighbouring identities as one. True where there was such a run.
inline bool merge_identity_runs(const factor_list& factors, factor_list& merged) {
    bool any = false;
    bool after_identity = false;
    for (const leaf& factor : factors) {
        if (factor.is_identity() && after_identity) {
            merged.back() = leaf::identity(merged.back().rows() * factor.rows());
            any = true;
        } else {
            merged.push_back(factor);
        }
        after_identity = factor.is_identity();
    }
    return any;
}

/// a * b factor by factor. False where they do not fit.
template <class Scalar>
bool mixed_factors(const factor_list& a, const factor_list& b, kron_node<Scalar>& product) {
    std::size_t i = 0;
    std::size_t j = 0;
    leaf left;
    leaf right;
    bool has_left = false;
    bool has_right = false;
    while (true) {
        if (!has_left && i < a.size()) {
            left = a[i++];
            has_left = true;
        }
        if (!has_right && j < b.size()) {
            right = b[j++];
            has_right = true;
        }
        if (!has_left || !has_right) {
            break;
        }
        const std::int64_t inner = left.cols();
        const std::int64_t outer = right.rows();
        leaf rest;
        if (inner == outer) {
            if (left.is_identity() || right.is_identity()) {
                product.append(left.is_identity() ? right : left);
                if (left.is_identity() != right.is_identity()) {
                    product.rewritten().add(rewrite::kron_identity_split);
                }
            } else {
                product.append(product_leaf(left, right));
            }
            has_left = has_right = false;
        } else if (left.is_identity() && outer > 0 && inner > outer && inner % outer == 0) {
            split_identity(left, outer, rest);
            product.rewritten().add(rewrite::kron_identity_split);
            product.append(right);
            left = rest;
            has_right = false;
        } else if (right.is_identity() && inner > 0 && outer > inner && outer % inner == 0) {
            split_identity(right, inner, rest);
            product.rewritten().add(rewrite::kron_identity_split);
            product.append(left);
            right = rest;
            has_left = false;
        } else if (inner == 1) {  // a column contracts nothing: it fits anywhere
            product.append(left);
            has_left = false;
        } else if (outer == 1) {
            product.append(right);
            has_right = false;
        } else {
            return false;
        }
    }
    // What is left over must not contract anything: 1 x n or n x 1 factors.
    while (has_left) {
        if (left.cols() != 1) {
            return false;
        }
        product.append(left);
        has_left = i < a.size();
        if (has_left) {
            left = a[i++];
        }
    }
    while (has_right) {
        if (right.rows() != 1) {
            return false;
        }
        product.append(right);
        has_right = j < b.size();
        if (has_right) {
            right = b[j++];
        }
    }
    return true;
}

/// a * b as one kron. False where the factors do not fit. Cost: O(factors).
template <class Scalar>
bool mixed_product(const kron_node<Scalar>& a, const kron_node<Scalar>& b, kron_node<Scalar>& result) {
    kron_node<Scalar> product;
    if (!mixed_factors(a.factors(), b.factors(), product)) {
        factor_list left;
        factor_list right;
        const bool in_left = merge_identity_runs(a.factors(), left);
        const bool in_right = merge_identity_runs(b.factors(), right);
        product = {};
        if (!(in_left || in_right) || !mixed_factors(left, right, product)) {
            return false;
        }
        product.rewritten().add(rewrite::identity_runs_merged);
    }
    product.rewritten().add(rewrite::mixed_product);
    product.rewritten().add(a.rewritten());
    product.rewritten().add(b.rewritten());
    if (!(a.alpha() == Scalar(1)) && !(b.alpha() == Scalar(1))) {
        product.rewritten().add(rewrite::scalar_gathered);
    }
    product.set_alpha(a.alpha() * b.alpha());
    if (a.complex_scale() || b.complex_scale()) {
        product.set_complex_scale();
    }
    result = std::move(product);
    return true;
}

}  // namespace detail

/// a * b. @throws shape_error when cols(a) != rows(b)
template <class Scalar>
operator_tree<Scalar> multiply_trees(const operator_tree<Scalar>& a, const operator_tree<Scalar>& b) {
    if (a.cols() != b.rows()) {
        throw shape_error("otimes: product of operators: the first is " + a.name() + ", " +
                          detail::shape_text(a.rows(), a.cols()) + ", the second is " + b.name() + ", " +
                          detail::shape_text(b.rows(), b.cols()) +
                          ". The columns of the first must equal the rows of the second.");
    }
    operator_tree<Scalar> result;
    result.kind = tree_kind::product;
    const auto append = [&result](const operator_tree<Scalar>& part) {
        if (!result.parts.empty() && part.kind == tree_kind::kron && result.parts.back().kind == tree_kind::kron) {
            kron_node<Scalar> merged;
            if (detail::mixed_product(result.parts.back().kron, part.kron, merged)) {
                result.parts.back() = operator_tree<Scalar>(std::move(merged));
                return;
            }
        }
        result.parts.push_back(part);
    };
    for (const operator_tree<Scalar>* side : {&a, &b}) {
        if (side->kind == tree_kind::product) {
            result.kron.rewritten().add(side->kron.rewritten());
            for (const operator_tree<Scalar>& part : side->parts) {
                append(part);
            }
        } else {
            append(*side);
        }
    }
    if (result.parts.size() == 1) {
        return result.parts.front();
    }
    result.kron.rewritten().add(rewrite::applied_in_sequence);
    return result;
}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file print.hpp
/// Kronecker products and their sums as one line, for `std::cout << K`: the shape, then each factor's kind and shape. No element is read.
///
///     24 x 60: 2 * kron(dense 2 x 3, identity 4 x 4, sparse 3 x 5)
///     24 x 24: kron(dense 4 x 4, identity 6 x 6) - kron(identity 4 x 4, dense 6 x 6)
#pragma once

#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/tree.hpp>

namespace otimes::detail {

/// "dense 2 x 3", "conjugated sparse 3 x 5 in device memory"; of a transposed factor the shape that it has in the product.
inline std::string factor_text(const leaf& f) {
    const auto kind = [&f]() -> std::string {
        switch (f.kind()) {
            case factor_kind::identity: return "identity";
            case factor_kind::diagonal: return "diagonal";
            case factor_kind::permutation: return "permutation";
            case factor_kind::sparse: return "sparse";
            case factor_kind::triangular:
                return f.part() == triangle::lower || f.part() == triangle::unit_lower ? "lower triangular"
                                                                                       : "upper triangular";
            case factor_kind::self_adjoint: return "self-adjoint";
            case factor_kind::low_rank: return "product of factors";
            case factor_kind::callback: return unformed_name(f) != nullptr ? unformed_name(f) : "matrix-free";
            default: return "dense";
        }
    };
    return (f.conjugated() ? "conjugated " : "") + kind() + " " + shape_text(f.rows(), f.cols()) +
           (f.space() == memory_space::device && !f.is_identity() ? " in device memory" : "");
}

/// What stands in front of a kron: "", "-", "2 * "; a scalar that cannot be printed is "a * ".
template <class Scalar>
std::string scale_text(const Scalar& alpha) {
    if constexpr (is_complex_scalar<Scalar>) {
        if (alpha.imag() == real_of<Scalar>(0)) {
            return scale_text(alpha.real());
        }
    }
    if (alpha == Scalar(1)) {
        return "";
    }
    if (alpha == Scalar(-1)) {
        return "-";
    }
    if constexpr (requires(std::ostream & out) { out << alpha; }) {
        std::ostringstream text;
        text << alpha << " * ";
        return text.str();
    } else {
        return "a * ";
    }
}

/// "2 * kron(dense 2 x 3, identity 4 x 4)"; neighbours that read alike are counted.
template <class Scalar>
std::string term_text(const kron_node<Scalar>& node) {
    std::string text = scale_text(node.alpha()) + "kron(";
    const factor_list& factors = node.factors();
    for (std::size_t i = 0; i < factors.size();) {
        const std::string one = factor_text(factors[i]);
        std::size_t end = i + 1;
        while (end < factors.size() && factor_text(factors[end]) == one) {
            ++end;
        }
        text += (i == 0 ? "" : ", ") + (end - i > 1 ? std::to_string(end - i) + " times " : "") + one;
        i = end;
    }
    return text + ")";
}

/// The line for a tree without its shape.
template <class Scalar>
std::string term_text(const operator_tree<Scalar>& tree) {
    if (tree.kind == tree_kind::kron) {
        return term_text(tree.kron);
    }
    std::string text;
    for (const operator_tree<Scalar>& part : tree.parts) {
        const bool nested = tree.kind == tree_kind::product && part.kind == tree_kind::sum;
        const std::string one = nested ? "(" + term_text(part) + ")" : term_text(part);
        if (tree.kind == tree_kind::product) {
            text += (text.empty() ? "" : " * ") + one;
        } else if (!text.empty() && one.front() == '-') {
            text += " - " + one.substr(1);
        } else {
            text += (text.empty() ? "" : " + ") + one;
        }
    }
    return text;
}

/// A node or a tree with its shape, as `<<` writes it.
template <class Node>
std::string line_of(const Node& node) {
    return shape_text(node.rows(), node.cols()) + ": " + term_text(node);
}

}  // namespace otimes::detail

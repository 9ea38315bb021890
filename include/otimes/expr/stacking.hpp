// SPDX-License-Identifier: MIT
/// @file stacking.hpp
/// Which factors of a kron act on which side of the matrix that `kron(F..) * vec(X)` stacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes::detail {

[[noreturn]] OTIMES_COLD inline void throw_unfit_stack(const std::string& k, std::int64_t k_cols, bool by_rows,
                                                       std::int64_t outer, std::int64_t inner) {
    const std::string vec = by_rows ? "vec_r(X)" : "vec(X)";
    const std::string product =
        "otimes: " + k + " * " + vec + ": X is " + shape_text(by_rows ? outer : inner, by_rows ? inner : outer) + ", ";
    if (outer * inner != k_cols) {
        throw shape_error(product + vec + " has " + std::to_string(outer * inner) + " entries, but " + k + " has " +
                          std::to_string(k_cols) + " columns. They must be equally many.");
    }
    throw shape_error(product + "but no cut between the factors has columns that multiply to " + std::to_string(outer) +
                      " in front of it and to " + std::to_string(inner) + " behind it. Write K * " + vec +
                      ".toVector(); of device memory, K times a device_map of one column over it.");
}

/// Before which factor kron(F..) is cut so that the columns of the first part multiply to `outer` and those of the rest to `inner`. The first
/// part has as few factors as fit: one at least, so that A goes with the columns of X where some factor has one column alone;
/// none where K is a single factor and X a column.
template <class Scalar>
std::optional<std::size_t> cut_for_stacking(const kron_node<Scalar>& k, std::int64_t outer, std::int64_t inner) {
    const factor_list& factors = k.factors();
    std::size_t cut = 0;
    std::int64_t done = 1;
    if (factors.size() > 1 || outer != 1) {
        while (cut < factors.size() && (cut == 0 || done != outer)) {
            done *= factors[cut++].cols();
        }
        if (done != outer && outer == 1) {
            cut = 0;
            done = 1;
        }
    }
    std::int64_t rest = 1;
    for (std::size_t i = cut; i < factors.size(); ++i) {
        rest *= factors[i].cols();
    }
    return done == outer && rest == inner ? std::optional(cut) : std::nullopt;
}

/// Cuts kron(F..) as cut_for_stacking says: kron(A, B) * vec(X) = vec(B X A^T), where outer = cols(X). The first part keeps alpha.
/// `by_rows`: vec_r, for the message. @throws shape_error where no cut fits
template <class Scalar>
std::pair<kron_node<Scalar>, kron_node<Scalar>> split_for_stacking(const kron_node<Scalar>& k, std::int64_t outer,
                                                                   std::int64_t inner, bool by_rows) {
    const factor_list& factors = k.factors();
    const std::optional<std::size_t> cut = cut_for_stacking(k, outer, inner);
    if (!cut) {
        throw_unfit_stack(kron_text(factors.size()), k.cols(), by_rows, outer, inner);
    }
    std::pair<kron_node<Scalar>, kron_node<Scalar>> parts;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        (i < *cut ? parts.first : parts.second).append(factors[i]);
    }
    parts.first.set_alpha(k.alpha());
    return parts;
}

/// Outer and inner extent of the matrix whose stack is the image under `tree` of one of outer x inner: as the first term that can be cut has it.
/// Nothing where none can be, unless the tree is square, whose image has the shape of what it is of.
template <class Scalar>
std::optional<std::pair<std::int64_t, std::int64_t>> image_of_stacked(const operator_tree<Scalar>& tree,
                                                                      std::int64_t outer, std::int64_t inner) {
    using extents = std::pair<std::int64_t, std::int64_t>;
    if (tree.rows() == tree.cols()) {
        return extents(outer, inner);
    }
    std::optional<extents> image;
    if (tree.kind == tree_kind::kron) {
        if (const auto cut = cut_for_stacking(tree.kron, outer, inner)) {
            image = extents(1, 1);
            for (std::size_t i = 0; i < tree.kron.factors().size(); ++i) {
                (i < *cut ? image->first : image->second) *= tree.kron.factors()[i].rows();
            }
        }
    } else if (tree.kind == tree_kind::sum) {
        for (auto part = tree.parts.begin(); part != tree.parts.end() && !image; ++part) {
            image = image_of_stacked(*part, outer, inner);
        }
    } else {
        image = extents(outer, inner);
        for (auto part = tree.parts.rbegin(); part != tree.parts.rend() && image; ++part) {
            image = image_of_stacked(*part, image->first, image->second);
        }
    }
    return image;
}

}  // namespace otimes::detail

// SPDX-License-Identifier: MIT
/// @file stacking.hpp
/// Which factors of a kron act on which side of the matrix that `kron(F..) * vec(X)` stacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/program/errors.hpp>

namespace otimes::detail {

/// Cuts kron(F..) before a factor so that the columns of the first part multiply to `outer` and those of the rest to `inner`:
/// kron(A, B) * vec(X) = vec(B X A^T), where outer = cols(X). The first part, which keeps alpha, has as few factors as fit: one
/// at least, so that A goes with the columns of X where some factor has one column alone; none where K is a single factor and
/// X a column. `by_rows`: vec_r, for the message. @throws shape_error where no cut fits
template <class Scalar>
std::pair<kron_node<Scalar>, kron_node<Scalar>> split_for_stacking(const kron_node<Scalar>& k, std::int64_t outer,
                                                                   std::int64_t inner, bool by_rows) {
    const factor_list& factors = k.factors();
    std::size_t cut = 0;
    if (factors.size() > 1 || outer != 1) {
        std::int64_t done = 1;
        while (cut < factors.size() && (cut == 0 || done != outer)) {
            done *= factors[cut++].cols();
        }
        if (done != outer && outer == 1) {
            cut = 0;
        }
    }
    std::pair<kron_node<Scalar>, kron_node<Scalar>> parts;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        (i < cut ? parts.first : parts.second).append(factors[i]);
    }
    if (parts.first.cols() != outer || parts.second.cols() != inner) {
        const std::int64_t rows = by_rows ? outer : inner;
        throw shape_error("otimes: " + kron_text(factors.size()) +
                          (by_rows ? " * vec_r(X): X is " : " * vec(X): X is ") +
                          shape_text(rows, by_rows ? inner : outer) + ", but the product is " +
                          shape_text(k.rows(), k.cols()) + ". The columns of the first factors must multiply to " +
                          std::to_string(outer) + " and those of the others to " + std::to_string(inner) + ".");
    }
    parts.first.set_alpha(k.alpha());
    return parts;
}

}  // namespace otimes::detail

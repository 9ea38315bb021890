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
        throw_unfit_stack(kron_text(factors.size()), k.cols(), by_rows, outer, inner);
    }
    parts.first.set_alpha(k.alpha());
    return parts;
}

}  // namespace otimes::detail

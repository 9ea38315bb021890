// SPDX-License-Identifier: MIT
/// @file trace.hpp
/// The trace of a kron from its factors:
///
///     tr(a kron(F1, .., FN)) = a prod_k tr(F_k)                  all factors square
///                            = a sum_i prod_k F_k[i_k, j_k]      otherwise: i_k and j_k are the digits of i, in the F_k's rows and columns
///
/// Cost: the factors' diagonals; N elements for each entry of the diagonal where a factor is not square. The product neither overflows nor
/// vanishes on the way.
#pragma once

#include <algorithm>
#include <cstdint>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/factorwise/scaled_number.hpp>

namespace otimes::detail {

/// @pre node.rows() == node.cols()
template <class Scalar>
Scalar trace_of(const kron_node<Scalar>& node) {
    const auto is_square = [](const leaf& f) { return f.rows() == f.cols(); };
    if (!std::all_of(node.factors().begin(), node.factors().end(), is_square)) {
        Scalar sum(0);
        for (std::int64_t i = 0; i < node.rows(); ++i) {
            sum = sum + node.coefficient(i, i);
        }
        return sum;
    }
    scaled_number<Scalar> result(node.alpha());
    for (const leaf& f : node.factors()) {
        const matrix_view view = f.view();
        Scalar sum(0);
        for (std::int64_t i = 0; i < view.rows; ++i) {
            sum = sum + kron_node<Scalar>::element(f, view, i, i);
        }
        result.multiply(scaled_number<Scalar>(sum));
    }
    return result.value();
}

}  // namespace otimes::detail

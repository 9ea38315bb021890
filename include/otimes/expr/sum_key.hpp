// SPDX-License-Identifier: MIT
/// @file sum_key.hpp
/// What the program of a sum of krons and its bindings depend on, as words: extents, strides, flags, scalars, and where the factors
/// are. Of X and Y all but where they are. Sums over one scalar type lower to the same program on the same operands exactly where
/// their keys are equal, so that a sum is lowered once and run many times (adapt/evaluate_sum.hpp).
#pragma once

#include <bit>
#include <complex>
#include <cstdint>
#include <vector>

#include <otimes/expr/lower_tree.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

using sum_key = std::vector<std::int64_t>;

/// Describes `y (+)= scale * node` in `key`. False: it is no sum of krons on one side of X whose factors are dense matrices or
/// identities, or X or Y begins where another operand does, so that their addresses could not be told from it. Cost: some
/// nanoseconds per factor of each term.
template <class Scalar>
bool describe_sum(const tree_product_node<Scalar>& node, const matrix_view& y, bool add, const Scalar& scale,
                  sum_key& key) {
    key.clear();
    static_assert(dtype_of<Scalar>() != dtype::other);
    if ((node.left != nullptr) == (node.right != nullptr)) {
        return false;
    }
    const operator_tree<Scalar>& tree = node.left ? *node.left : *node.right;
    if (tree.kind != tree_kind::sum) {
        return false;
    }
    const matrix_view x = node.x.view();
    bool apart = x.data != y.data;
    const auto put_scalar = [&key](const Scalar& value) {
        const std::complex<double> bits(value);
        key.push_back(std::bit_cast<std::int64_t>(bits.real()));
        key.push_back(std::bit_cast<std::int64_t>(bits.imag()));
    };
    const auto put = [&](const leaf& operand, const matrix_view& m) {
        key.push_back((operand.is_identity() ? 1 : 0) | (operand.conjugated() ? 2 : 0) |
                      (operand.real_elements() ? 4 : 0) | static_cast<std::int64_t>(operand.space()) << 3);
        key.insert(key.end(), {m.rows, m.cols, m.row_stride, m.col_stride});
    };
    key.push_back(static_cast<std::int64_t>(dtype_of<Scalar>()) | (add ? 1 : 0) << 8 | (node.left ? 1 : 0) << 9);
    put_scalar(Scalar(scale * node.alpha));
    put(node.x, x);
    key.insert(key.end(), {y.row_stride, y.col_stride});  // its extents follow from the factors
    for (const operator_tree<Scalar>& term : tree.parts) {
        if (term.kind != tree_kind::kron) {
            return false;
        }
        const factor_list& factors = term.kron.factors();
        key.push_back(static_cast<std::int64_t>(factors.size()) << 1 | (term.kron.complex_scale() ? 1 : 0));
        put_scalar(term.kron.alpha());
        for (const leaf& factor : factors) {
            if (!factor.is_dense() && !factor.is_identity()) {
                return false;
            }
            const matrix_view f = factor.view();
            apart = apart && (factor.is_identity() || (f.data != x.data && f.data != y.data));
            put(factor, f);
            key.push_back(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(f.data)));
        }
    }
    return apart;
}

}  // namespace otimes

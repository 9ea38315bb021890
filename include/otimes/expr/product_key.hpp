// SPDX-License-Identifier: MIT
/// @file product_key.hpp
/// What the program of a product of dense operands depends on, as a few words: extents, strides and flags, straight from the
/// expression. Products over one scalar type lower to equal programs exactly where their keys are equal, so that a plan is
/// found without lowering (adapt/evaluate_product.hpp).
#pragma once

#include <complex>
#include <cstdint>

#include <otimes/expr/product.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/plan_key.hpp>

namespace otimes {

/// Describes `y (+)= node` in `key` and binds its operands in the order in which lowering binds them, all but the scalar.
/// `doubled`: it is lowered as a real problem; `in_place`: Y is X, one operand of its program. False: it has more factors than a key has room for, or one with structure.
/// Cost: some nanoseconds per operand.
OTIMES_OUT_OF_LINE inline bool describe_product(const product_operands& node, const matrix_view& y, bool add,
                                                dtype type, bool doubled, bool in_place, plan_key& key,
                                                bindings& bound) {
    const std::size_t left = node.left.size();
    const std::size_t right = node.right.size();
    if (5 * (left + right) + 7 > plan_key::most_words) {
        return false;
    }
    std::int64_t* at = key.words;
    const auto flags_of = [](const leaf& operand) {
        return (operand.is_identity() ? 1 : 0) | (operand.conjugated() ? 2 : 0) | (operand.real_elements() ? 4 : 0) |
               static_cast<std::int64_t>(operand.space()) << 3;
    };
    const auto put = [&](std::int64_t flags, const matrix_view& m) {
        *at++ = flags;
        *at++ = m.rows;
        *at++ = m.cols;
        *at++ = m.row_stride;
        *at++ = m.col_stride;
    };
    const matrix_view x = node.x.view();
    put(flags_of(node.x) | static_cast<std::int64_t>(type) << 8 | (add ? 1 : 0) << 16 | (doubled ? 1 : 0) << 17 |
            (node.has_left ? 1 : 0) << 18 | (node.has_right ? 1 : 0) << 19 | (in_place ? 1 : 0) << 20 |
            static_cast<std::int64_t>(left) << 24 | static_cast<std::int64_t>(right) << 32,
        x);
    bound.pointers.push_back(const_cast<void*>(x.data));
    for (const factor_list* list : {&node.left, &node.right}) {
        for (const leaf& factor : *list) {
            if (!factor.is_dense() && !factor.is_identity()) {
                return false;
            }
            const matrix_view f = factor.view();
            put(flags_of(factor), f);
            if (!factor.is_identity()) {
                bound.pointers.push_back(const_cast<void*>(f.data));
            }
        }
    }
    *at++ = y.row_stride;  // its extents follow from the factors
    *at++ = y.col_stride;
    bound.pointers.push_back(const_cast<void*>(y.data));
    key.count = static_cast<std::size_t>(at - key.words);
    return true;
}

}  // namespace otimes

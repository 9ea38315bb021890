// SPDX-License-Identifier: MIT
/// @file evaluate_product.hpp
/// Evaluates a product: finds the plan by the key of the expression, and lowers it only when this thread has not run it
/// before. Products are what programs evaluate in loops, and a small one takes less time than lowering it.
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <otimes/exec/evaluate.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/product_key.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

#if OTIMES_EXECUTOR_IN_LIBRARY
void run_product(const product_operands& node, const matrix_view& y, bool add, const scalar_facts& facts, bool doubled,
                 const std::complex<double>& alpha);
#else
/// Y is X, and `assign` has found that it may be (eigen::product::runs_in_place): no other overlap gets here.
inline bool overwrites_x(const product_operands& node, const matrix_view& y, bool add) {
    return !add && y.data != nullptr && y.data == node.x.view().data;
}

/// Lowers and evaluates a product, and remembers its plan in `slot` where there is one.
OTIMES_COLD inline void lower_and_run(const product_operands& node, const matrix_view& y, bool add,
                                      const scalar_facts& facts, bool doubled, const std::complex<double>& alpha,
                                      const plan_key* key, keyed_plan* slot) {
    lowering_scratch scratch;
    program_writer writer(scratch.program(), scratch.bindings(), facts);
    writer.write_product(node, y, add, doubled);
    if (overwrites_x(node, y, add)) {
        detail::bind_in_place(scratch.program());
    }
    scratch.bindings().scalars.push_back(alpha);
    scratch.program().steps.back().scalar = scratch.program().scalar_count++;
    const executor& e = current_executor();
    const std::uint64_t id =
        e.id();  // before the plan is looked up: one that is made meanwhile by other choices has another id
    const std::shared_ptr<const plan> found = cached_plan_for(scratch.program(), e);
    if (slot == nullptr) {
        e.run(*found, scratch.bindings(), {});
        return;
    }
    slot->memo.clear();  // before the plan that it was made for goes
    slot->value = found;
    slot->executor_id = id;
    slot->key = *key;
    e.run_first(*found, scratch.bindings(), slot->memo);
}

/// y (+)= alpha * node without its own scalar, over a scalar type with a dtype, on the current executor. @pre shapes fit, no
/// overlap. Cost beside the run: some nanoseconds per operand when this thread has evaluated such a product before.
OTIMES_OUT_OF_LINE OTIMES_EXECUTOR_API void run_product(const product_operands& node, const matrix_view& y, bool add,
                                                        const scalar_facts& facts, bool doubled,
                                                        const std::complex<double>& alpha) {
    plan_key key;
    bindings bound;
    if (!describe_product(node, y, add, facts.type, doubled, overwrites_x(node, y, add), key, bound)) {
        lower_and_run(node, y, add, facts, doubled, alpha, nullptr, nullptr);
        return;
    }
    const executor& e = current_executor();
    keyed_plan* const slot = keyed_plan_slot(key);
    if (slot == nullptr || !slot->holds(key, e.id())) {
        lower_and_run(node, y, add, facts, doubled, alpha, &key, slot);
        return;
    }
    bound.scalars.push_back(alpha);
    // Dense factors call nobody back, so nothing replaces the plan while it runs.
    if (!slot->memo.run(bound)) {
        e.run(*slot->value, bound, {});
    }
}
#endif

/// y (+)= scale * node. @pre shapes fit, no overlap.
template <class Scalar>
void evaluate_product(const product_node<Scalar>& node, const matrix_view& y, bool add, const Scalar& scale) {
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        lowering_scratch scratch;
        lowering<Scalar> low(scratch.program(), scratch.bindings());
        low.add_product(node, y, add, scale);
        evaluate_program<Scalar, operands::dense>(scratch.program(), scratch.bindings());
    } else if constexpr (is_widened(dtype_of<Scalar>())) {
        enable_kernels<Scalar, operands::dense>();  // does not compile, and says why
    } else {
        enable_kernels<Scalar, operands::dense>();
        const Scalar alpha = scale * node.alpha;
        run_product(node, y, add, facts_of<Scalar>(), is_real_problem(node, alpha), std::complex<double>(alpha));
    }
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file evaluate_sum.hpp
/// Evaluates a sum of krons: finds its plan and the operands of its program by the key of the expression, and lowers it only when this
/// thread has not evaluated it lately. Looking for what the terms share takes some microseconds, as long as a small product.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <otimes/exec/cpu/row_steps.hpp>
#include <otimes/exec/evaluate.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/expr/factor_sum.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/sum_key.hpp>
#include <otimes/program/kept_by_thread.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// A sum that this thread has evaluated. The addresses in `operands` are used only for an expression that names the same factors, and
/// after X and Y have been put in place.
struct kept_sum {
    sum_key key;
    std::uint64_t executor_id = 0;
    std::shared_ptr<const plan> value;
    bindings operands;
    std::shared_ptr<formed_factor> formed;  ///< the last of the factors that are formed of others for each run
    std::uint64_t of_x = 0;                 ///< bit k: operand k is X
    std::uint64_t of_y = 0;

    [[nodiscard]] bool holds(const sum_key& wanted, std::uint64_t id) const noexcept {
        return value != nullptr && executor_id == id && key == wanted;
    }
    void run(const executor& e, const void* x, void* y) {
        for (formed_factor* f = formed.get(); f != nullptr; f = f->before.get()) {
            f->form();
        }
        put(of_x, const_cast<void*>(x));
        put(of_y, y);
        e.run(*value, operands, {});
    }
    /// Says where the operands are whose bits are set.
    void put(std::uint64_t which, void* at) noexcept {
        for (; which != 0; which &= which - 1) {
            operands.pointers[static_cast<std::size_t>(std::countr_zero(which))] = at;
        }
    }
};

/// Those of a thread, each in the place that its key says: the newest of a place stays.
struct kept_sums {
    sum_key wanted;  ///< of the sum that is being evaluated
    std::array<kept_sum, 8> sums;

    [[nodiscard]] kept_sum& slot() noexcept {
        std::uint64_t hash = wanted.size();
        for (const std::int64_t word : wanted) {
            hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 32;
        }
        return sums[static_cast<std::size_t>(hash % sums.size())];
    }
};

/// y (+)= scale * node, written by `write(lowering)`, on the current executor. @pre shapes fit, no overlap.
/// Cost beside the run: some nanoseconds per factor of each term when this thread has evaluated such a sum of these factors.
template <class Scalar, class Write>
void evaluate_sum(const tree_product_node<Scalar>& node, const matrix_view& y, bool add, const Scalar& scale,
                  const Write& write) {
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        lowering_scratch scratch;
        lowering<Scalar> low(scratch.program(), scratch.bindings());
        write(low);
        evaluate_program<Scalar>(scratch.program(), scratch.bindings());
    } else {
        auto* const kept = detail::kept_by_thread<kept_sums, kept_sums>();
        const bool described = kept != nullptr && describe_sum(node, y, add, scale, kept->wanted);
        void* const y_at = const_cast<void*>(y.data);
        const executor& e = current_executor();
        const std::uint64_t id = e.id();  // before the plan is looked up: other choices made meanwhile have another
        if (described) {
            kept_sum& found = kept->slot();
            if (found.holds(kept->wanted, id)) {
                found.run(e, node.x.view().data, y_at);
                return;
            }
        }
        lowering_scratch scratch;
        lowering<Scalar> low(scratch.program(), scratch.bindings());
        write(low);
        enable_row_steps<Scalar>();
        const bindings& operands = scratch.bindings();
        std::int64_t formed_bytes = 0;
        for (const formed_factor* f = low.formed(); f != nullptr; f = f->before.get()) {
            formed_bytes += f->bytes();
        }
        constexpr std::int64_t most_formed_bytes = std::int64_t{1} << 20;  // that are kept beyond the evaluation
        if (!described || low.has_formed() || operands.pointers.size() > 64 || formed_bytes > most_formed_bytes) {
            evaluate_program<Scalar>(scratch.program(), operands);
            return;
        }
        enable_kernels<Scalar>();
        kept_sum& entry = kept->slot();
        entry.value = nullptr;  // until all of it is there
        entry.key = kept->wanted;
        entry.executor_id = id;
        entry.operands = operands;
        entry.formed = low.formed() != nullptr ? low.formed()->shared_from_this() : nullptr;
        entry.of_x = entry.of_y = 0;
        for (std::size_t k = 0; k < operands.pointers.size(); ++k) {
            entry.of_x |= std::uint64_t{operands.pointers[k] == node.x.view().data} << k;
            entry.of_y |= std::uint64_t{operands.pointers[k] == y_at} << k;
        }
        entry.value = cached_plan_for(scratch.program(), e);
        e.run(*entry.value, operands, {});
    }
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

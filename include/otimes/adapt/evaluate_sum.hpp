// SPDX-License-Identifier: MIT
/// @file evaluate_sum.hpp
/// Evaluates a sum of krons, or finds the program of one for a plan that the caller has, by the key of the expression: it is lowered only
/// when this thread has not evaluated it lately. Looking for what the terms share takes some microseconds, as long as a small product.
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

/// The operands of a sum's program. The addresses are used only for an expression that names the same factors, and after X and Y have
/// been put in place.
struct kept_operands {
    bindings all;
    std::shared_ptr<formed_factor> formed;  ///< the last of the factors that are formed of others for each run
    std::uint64_t of_x = 0;                 ///< bit k: operand k is X
    std::uint64_t of_y = 0;

    /// Whether those of a lowering may be kept: few, and what was formed is small.
    template <class Scalar>
    [[nodiscard]] static bool may_keep(const lowering<Scalar>& low, const bindings& operands) {
        constexpr std::int64_t most_formed_bytes = std::int64_t{1} << 20;  // beyond the evaluation
        std::int64_t formed_bytes = 0;
        for (const formed_factor* f = low.formed(); f != nullptr; f = f->before.get()) {
            formed_bytes += f->bytes();
        }
        return !low.has_formed() && operands.pointers.size() <= 64 && formed_bytes <= most_formed_bytes;
    }
    template <class Scalar>
    void keep(const lowering<Scalar>& low, const bindings& operands, const void* x, const void* y) {
        all = operands;
        formed = low.formed() != nullptr ? low.formed()->shared_from_this() : nullptr;
        of_x = of_y = 0;
        for (std::size_t k = 0; k < operands.pointers.size(); ++k) {
            of_x |= std::uint64_t{operands.pointers[k] == x} << k;
            of_y |= std::uint64_t{operands.pointers[k] == y} << k;
        }
    }
    /// For a run on X and Y there.
    const bindings& at(const void* x, void* y) {
        for (formed_factor* f = formed.get(); f != nullptr; f = f->before.get()) {
            f->form();
        }
        put(of_x, const_cast<void*>(x));
        put(of_y, y);
        return all;
    }

private:
    void put(std::uint64_t which, void* where) noexcept {
        for (; which != 0; which &= which - 1) {
            all.pointers[static_cast<std::size_t>(std::countr_zero(which))] = where;
        }
    }
};

/// A sum that this thread has evaluated.
struct kept_sum {
    sum_key key;
    std::uint64_t executor_id = 0;
    std::shared_ptr<const plan> value;
    kept_operands operands;

    [[nodiscard]] bool holds(const sum_key& wanted, std::uint64_t id) const noexcept {
        return value != nullptr && executor_id == id && key == wanted;
    }
};

/// The program of one that this thread has run a plan of.
struct kept_sum_program {
    sum_key key;
    bool whole = false;  ///< all of it is there
    program lowered;
    kept_operands operands;
};

/// Those of a thread, each in the place that its key says: the newest of a place stays.
template <class Kept>
struct kept_by_key {
    sum_key wanted;  ///< of the sum that is being evaluated
    std::array<Kept, 8> places;

    [[nodiscard]] Kept& slot() noexcept {
        std::uint64_t hash = wanted.size();
        for (const std::int64_t word : wanted) {
            hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 32;
        }
        return places[static_cast<std::size_t>(hash % places.size())];
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
        using kept_sums = kept_by_key<kept_sum>;
        auto* const kept = detail::kept_by_thread<kept_sums, kept_sums>();
        const bool described = kept != nullptr && describe_sum(node, y, add, scale, kept->wanted);
        void* const y_at = const_cast<void*>(y.data);
        const executor& e = current_executor();
        const std::uint64_t id = e.id();  // before the plan is looked up: other choices made meanwhile have another
        if (described) {
            kept_sum& found = kept->slot();
            if (found.holds(kept->wanted, id)) {
                e.run(*found.value, found.operands.at(node.x.view().data, y_at), {});
                return;
            }
        }
        lowering_scratch scratch;
        lowering<Scalar> low(scratch.program(), scratch.bindings());
        write(low);
        enable_row_steps<Scalar>();
        const bindings& operands = scratch.bindings();
        if (!described || !kept_operands::may_keep(low, operands)) {
            evaluate_program<Scalar>(scratch.program(), operands);
            return;
        }
        enable_kernels<Scalar>();
        kept_sum& entry = kept->slot();
        entry.value = nullptr;  // until all of it is there
        entry.key = kept->wanted;
        entry.executor_id = id;
        entry.operands.keep(low, operands, node.x.view().data, y_at);
        entry.value = cached_plan_for(scratch.program(), e);
        e.run(*entry.value, operands, {});
    }
}

/// use(program, bindings) of y = node, as plans are made for it (by type) and written by `write(lowering)`.
template <class Scalar, class Write, class Use>
void with_sum_program(const tree_product_node<Scalar>& node, const matrix_view& y, const Write& write, const Use& use) {
    lowering_scratch scratch;
    const auto lower = [&](const auto& behind) {
        lowering<Scalar> low(scratch.program(), scratch.bindings(), signature::by_type);
        write(low);
        behind(low);
        use(scratch.program(), scratch.bindings());
    };
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        lower([](const auto&) {});
    } else {
        using kept_programs = kept_by_key<kept_sum_program>;
        auto* const kept = detail::kept_by_thread<kept_programs, kept_programs>();
        if (kept == nullptr || !describe_sum(node, y, false, Scalar(1), kept->wanted)) {
            lower([](const auto&) {});
            return;
        }
        const void* const x_at = node.x.view().data;
        void* const y_at = const_cast<void*>(y.data);
        kept_sum_program& entry = kept->slot();
        if (entry.whole && entry.key == kept->wanted) {
            use(entry.lowered, entry.operands.at(x_at, y_at));
            return;
        }
        entry.whole = false;
        lower([&](const lowering<Scalar>& low) {
            if (kept_operands::may_keep(low, scratch.bindings())) {
                entry.key = kept->wanted;
                entry.lowered = scratch.program();
                entry.operands.keep(low, scratch.bindings(), x_at, y_at);
                entry.whole = true;
            }
        });
    }
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file run_items.hpp
/// Evaluates products along modes (expr/mode_products.hpp). Where all items share the factors, a batch is one more free index
/// of one program, planned as a whole. Where factors differ from item to item, the CPU plans the program of one item once and
/// runs it on the addresses of each, small ones a register's worth at a time, items over the threads; every other executor takes
/// the whole program. The same is done for items that are given by pointers, on every executor.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/adapt/strided/over_threads.hpp>
#include <otimes/exec/cpu/item_lanes.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/evaluate.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/row_hook.hpp>
#include <otimes/expr/mode_products.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/signature.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace batches {

/// The plan that a look-up has found, held by whoever looked.
inline const plan& found_plan(const plan& found) { return found; }
inline const plan& found_plan(const std::shared_ptr<const plan>& found) { return *found; }

/// How many threads a plan of one item may have beside each other, each with so much memory of its own: those that its options say, and one
/// where they limit the workspace; 0: all.
inline std::int64_t threads_for(const plan& one, std::int64_t bytes_each) {
    const bool limited = one.wishes.workspace_limit_bytes != (std::numeric_limits<std::int64_t>::max)();
    return limited && bytes_each > 0 ? 1 : one.wishes.threads;
}

/// Plans of one item that this thread has prepared for several at a time, the last ones, so that a plan that is run again allocates nothing.
template <class Real>
class prepared_lanes {
public:
    /// The plan `one` prepared for `count` items; nullptr where it is none for that.
    const cpu_detail::item_lanes<Real>* find(const plan& one, std::int64_t count) {
        auto at = std::find_if(kept_.begin(), kept_.end(), [&](const prepared& p) {
            return p.known && p.source == one.source && p.passes == one.passes;
        });
        if (at == kept_.end()) {
            at = kept_.begin() + next_;
            next_ = (next_ + 1) % static_cast<std::ptrdiff_t>(kept_.size());
            at->known = false;  // until all is there: what follows may throw
            at->fits = at->lanes.prepare(one, (std::numeric_limits<std::int64_t>::max)());
            at->source = one.source;
            at->passes = one.passes;
            at->known = true;
        }
        return at->fits && at->lanes.pays_for(count) ? &at->lanes : nullptr;
    }

private:
    struct prepared {
        bool known = false;
        bool fits = false;
        program source;
        std::vector<pass> passes;
        cpu_detail::item_lanes<Real> lanes;
    };
    std::array<prepared, 4> kept_;
    std::ptrdiff_t next_ = 0;
};

/// Small items of float or double with the cpu executor: a register's worth of them at a time (exec/cpu/item_lanes.hpp). False where
/// the plan is none for that; then nothing has been written.
template <class Real, class Place>
bool run_items_in_lanes(const plan& one, const bindings& first, std::int64_t count, const Place& place) {
    detail::kept_or_own<prepared_lanes<Real>, prepared_lanes<Real>> kept;
    const cpu_detail::item_lanes<Real>* const found = (*kept).find(one, count);
    if (found == nullptr || static_cast<std::int64_t>(found->bytes()) > one.wishes.workspace_limit_bytes) {
        return false;
    }
    const cpu_detail::item_lanes<Real>& lanes = *found;
    constexpr std::int64_t width = cpu_detail::item_lanes<Real>::width;
    const std::int64_t groups = (count + width - 1) / width;
    threading::over_threads(
        0, groups, static_cast<double>(one.flops) * static_cast<double>(count),
        threads_for(one, static_cast<std::int64_t>(lanes.bytes())), [&](std::int64_t begin, std::int64_t end) {
            const cpu_detail::workspace_lease scratch(lanes.bytes());
            std::array<bindings, static_cast<std::size_t>(width)> items;
            items.fill(first);
            cpu_detail::kept_vector<const void*, prepared_lanes<Real>> held;
            for (std::int64_t group = begin; group < end; ++group) {
                const std::int64_t valid = (std::min)(width, count - group * width);
                for (std::int64_t l = 0; l < width; ++l) {
                    place(group * width + (std::min)(l, valid - 1), items[static_cast<std::size_t>(l)]);
                }
                lanes.run(items, static_cast<std::ptrdiff_t>(valid), scratch.data(), *held);
            }
        });
    return true;
}

/// The executor of operands in device memory: the one that is set if it may reach a GPU, else theirs.
inline const executor& executor_of(const executor& home) {
    const executor* const chosen = default_executor();
    return chosen != nullptr && chosen->where() != placement::cpu ? *chosen : home;
}
/// @throws unsupported_error operands in device memory (`home` is their executor) of a scalar that GPUs have not
template <class Scalar>
void require_scalar_of(const executor* home) {
    if (dtype_of<Scalar>() == dtype::other && home != nullptr) {
        throw unsupported_error("otimes: the scalars of GPUs are float, double and their complex types.");
    }
}

/// The plan that a user runs, with the caller's workspace if there is one; none: the one that a look-up finds.
struct planned {
    const plan* made = nullptr;
    void* workspace = nullptr;
    std::int64_t available_bytes = 0;
};

/// Runs the plan of one item once for every index below `count`; see run_items. In the caller's workspace one item after another.
template <class Scalar, class Place>
void run_items_by(const plan& one, const executor& e, const bindings& first, std::int64_t count, const Place& place,
                  void* workspace = nullptr, std::int64_t available_bytes = 0) {
    if constexpr (std::is_floating_point_v<Scalar>) {
        if (&e == &cpu() && workspace == nullptr && run_items_in_lanes<Scalar>(one, first, count, place)) {
            return;
        }
    }
    bindings bound = first;
    place(0, bound);
    e.run(one, bound, {workspace, available_bytes});  // what cannot be run at all throws here
    const bool on_threads = e.where() == placement::cpu && workspace == nullptr;  // a GPU queues by itself
    threading::over_threads(1, count, on_threads ? static_cast<double>(one.flops) * static_cast<double>(count) : 0,
                            threads_for(one, one.workspace_bytes), [&](std::int64_t begin, std::int64_t end) {
                                bindings own = first;
                                for (std::int64_t i = begin; i < end; ++i) {
                                    place(i, own);
                                    e.run(one, own, {workspace, available_bytes});
                                }
                            });
}

/// The executor that runs a user's plan. @throws unsupported_error the plan is for another place than the operands' executor, or than the
/// one that is set
inline const executor& executor_of_plan(const plan& p, const executor* home) {
    const executor& chosen = home != nullptr ? executor_of(*home) : current_executor();
    if (chosen.where() == placement::automatic || chosen.where() == p.where) {
        return chosen;
    }
    if (home != nullptr || cpu().where() != p.where) {
        throw unsupported_error(
            "otimes: plan::run: the plan is for another place than these operands or the executor that is set. Make a "
            "plan for them, or see otimes::set_default_executor.");
    }
    return cpu();
}
/// @throws unsupported_error the operands are not those that the plan was made for
[[noreturn]] OTIMES_COLD inline void throw_other_operands(const plan& p, const program& given) {
    throw unsupported_error("otimes: plan::run: the plan was made for another expression: " +
                            describe_difference(p.source, given) + ". Make a plan for this one.");
}

/// Runs `item` once for every index below `count`: `place(i, bindings)` sets the addresses of item i in a copy of `first`.
/// One plan; with OpenMP the items are shared out among the threads where there are enough of them. `home`: where X and Y are in
/// device memory, their executor, whose stream they are queued in. @throws unsupported_error `by` is a plan for something else
template <class Scalar, class Place>
void run_items(const program& item, const bindings& first, std::int64_t count, const Place& place,
               const executor* home = nullptr, const planned& by = {}) {
    if (by.made != nullptr && !(item == by.made->source)) {
        throw_other_operands(*by.made, item);
    }
    if (count <= 0) {
        return;
    }
    require_scalar_of<Scalar>(home);
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        bindings bound = first;
        for (std::int64_t i = 0; i < count; ++i) {
            place(i, bound);
            evaluate_program<Scalar>(item, bound);
        }
    } else {
        enable_kernels<Scalar>();
        if (by.made != nullptr) {
            run_items_by<Scalar>(*by.made, executor_of_plan(*by.made, home), first, count, place, by.workspace,
                                 by.available_bytes);
            return;
        }
        const executor& e = home != nullptr ? executor_of(*home) : current_executor();
        const auto& found = cached_plan_for(item, e);
        run_items_by<Scalar>(found_plan(found), e, first, count, place);
    }
}

/// True where the items of a program with factors of their own are run one by one.
template <class Scalar>
bool runs_items_apart() {
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        return false;
    } else {
        const executor& e = current_executor();
        return e.where() == placement::cpu && &e != &reference();
    }
}

/// The indices of the axes along which factors differ, one after another.
template <class Scalar>
class item_walk {
public:
    explicit item_walk(const detail::mode_products<Scalar>& whole) : whole_(whole) {
        for (std::size_t k = 0; k < whole.axes.size(); ++k) {
            if (whole.is_item_axis(k)) {
                axes_.push_back(k);
                count_ *= whole.axes[k].extent_in;
            }
        }
    }
    [[nodiscard]] std::int64_t count() const noexcept { return count_; }
    /// Addresses of item i; X, the factors and Y in the order in which mode_products binds them.
    void place(std::int64_t i, bindings& b) const {
        std::int64_t in = 0;
        std::int64_t out = 0;
        for (std::size_t f = 0; f < whole_.factors.size(); ++f) {
            b.pointers[f + 1] = const_cast<Scalar*>(whole_.factors[f].data);
        }
        for (std::size_t j = axes_.size(); j-- > 0;) {
            const std::size_t k = axes_[j];
            const std::int64_t at = i % whole_.axes[k].extent_in;
            i /= whole_.axes[k].extent_in;
            in += at * whole_.axes[k].stride_in;
            out += at * whole_.axes[k].stride_out;
            for (std::size_t f = 0; f < whole_.factors.size(); ++f) {
                const auto& strides = whole_.factors[f].item_strides;
                if (!strides.empty()) {
                    b.pointers[f + 1] = static_cast<Scalar*>(b.pointers[f + 1]) + at * strides[k];
                }
            }
        }
        b.pointers[0] = const_cast<Scalar*>(whole_.x) + in;
        b.pointers[whole_.factors.size() + 1] = whole_.y + out;
    }

private:
    const detail::mode_products<Scalar>& whole_;
    inline_vector<std::size_t, 8> axes_;
    std::int64_t count_ = 1;
};

/// The executor of operands in device memory may be named. @throws unsupported_error it reaches no device memory
inline const executor* require_device(const executor& where, const char* what) {
    if (where.where() != placement::gpu && where.where() != placement::automatic) {
        throw unsupported_error(
            "otimes: " + std::string(what) + ": executor '" + std::string(where.name()) +
            "' does not reach the memory of one GPU. Name otimes::gpu(), or leave the executor out for "
            "operands in host memory.");
    }
    return &where;
}

/// The same by a user's plan, which is one of the whole or of one item. @throws unsupported_error it was made for something else, or for
/// another place; budget_error the caller's workspace is too small
template <class Scalar>
void evaluate_by(const planned& by, const detail::mode_products<Scalar>& whole, const executor* home) {
    require_scalar_of<Scalar>(home);
    const plan& p = *by.made;
    if (by.workspace != nullptr && by.available_bytes < p.workspace_bytes) {
        detail::throw_small_workspace(by.available_bytes, p.workspace_bytes);
    }
    lowering_scratch all;
    whole.lower(all.program(), all.bindings());
    if (all.program() == p.source) {
        if constexpr (dtype_of<Scalar>() == dtype::other) {
            reference_run<Scalar>(all.program(), all.bindings());
        } else {
            enable_kernels<Scalar>();
            executor_of_plan(p, home).run(p, all.bindings(), {by.workspace, by.available_bytes});
        }
        return;
    }
    if (home != nullptr || !whole.has_item_axis()) {
        throw_other_operands(p, all.program());
    }
    const detail::mode_products<Scalar> item = whole.one_item();
    item.lower(all.program(), all.bindings());
    const item_walk<Scalar> walk(whole);
    run_items<Scalar>(
        all.program(), all.bindings(), walk.count(), [&](std::int64_t i, bindings& b) { walk.place(i, b); }, home, by);
}

/// Y (+)= alpha * X with its factors, on the current executor; `home`: where X and Y are in device memory, their executor.
template <class Scalar>
void evaluate(const detail::mode_products<Scalar>& whole, const executor* home = nullptr, const planned& by = {}) {
    if (by.made != nullptr) {
        evaluate_by(by, whole, home);
        return;
    }
    lowering_scratch scratch;
    if (home != nullptr) {
        require_scalar_of<Scalar>(home);
        if constexpr (dtype_of<Scalar>() != dtype::other) {
            whole.lower(scratch.program(), scratch.bindings());
            const executor& e = executor_of(*home);
            const auto& found = cached_plan_for(scratch.program(), e);
            e.run(found_plan(found), scratch.bindings(), {});
            return;
        }
    }
    if (!whole.has_item_axis() || !runs_items_apart<Scalar>()) {
        whole.lower(scratch.program(), scratch.bindings());
        evaluate_program<Scalar>(scratch.program(), scratch.bindings());
        return;
    }
    const detail::mode_products<Scalar> item = whole.one_item();
    item.lower(scratch.program(), scratch.bindings());
    const item_walk<Scalar> walk(whole);
    run_items<Scalar>(scratch.program(), scratch.bindings(), walk.count(),
                      [&](std::int64_t i, bindings& b) { walk.place(i, b); });
}

/// The plan that `evaluate` runs: of the whole, or of one item. `items` receives how often it is run.
template <class Scalar>
plan plan_of(const detail::mode_products<Scalar>& whole, const options& wishes, std::int64_t& items,
             const executor* home = nullptr) {
    program lowered;
    bindings bound;
    const executor& e = home != nullptr ? executor_of(*home) : current_executor();
    const bool apart = home == nullptr && whole.has_item_axis() && runs_items_apart<Scalar>();
    const detail::mode_products<Scalar> item = apart ? whole.one_item() : detail::mode_products<Scalar>();
    (apart ? item : whole).lower(lowered, bound);
    items = apart ? item_walk<Scalar>(whole).count() : 1;
    options decided = wishes;
    if (decided.placement == placement::automatic) {
        decided.placement = e.where();
    }
    return make_plan(lowered, e.target(), decided);
}

/// Of `items` by a plan of one, how many the current executor takes at a time.
inline std::int64_t items_at_a_time(const plan& p, std::int64_t items) {
    if (&current_executor() != &cpu() || p.source.tensors.empty()) {
        return 1;
    }
    const dtype type = p.source.tensors.front().type;
    cpu_detail::item_lanes<double> doubles;
    cpu_detail::item_lanes<float> floats;
    return type == dtype::f64 && doubles.prepare(p, items)  ? doubles.width
           : type == dtype::f32 && floats.prepare(p, items) ? floats.width
                                                            : 1;
}

/// The plan as text, with the number of items before it where it is run once for each.
inline std::string explain_items(const plan& p, std::int64_t items) {
    if (items == 1) {
        return explain(p);
    }
    const std::int64_t lanes = items_at_a_time(p, items);
    return std::to_string(items) + " items, " +
           (lanes > 1
                ? std::to_string(lanes) + " at a time in the lanes of a register, by the products of this plan of one"
                : std::string("one after another in each thread, all by this plan of one")) +
           ":\n" + explain(p);
}

}  // namespace batches
}  // namespace OTIMES_TARGET
}  // namespace otimes

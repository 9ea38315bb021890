// SPDX-License-Identifier: MIT
/// @file plan_cache.hpp
/// Plans of expressions that were evaluated before. Two levels: a few entries of the calling thread, found without a
/// lock, and a bounded table of the process behind a mutex. An entry is found by the hash of its program and the executor
/// and used only if the whole program is equal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include <otimes/exec/executor.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/compiled.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/plan_key.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

#if !OTIMES_PLANNER_IN_LIBRARY
namespace detail {

struct cached_plan {
    std::uint64_t key = 0;
    std::uint64_t executor_id = 0;
    std::shared_ptr<const plan> value;
    std::uint64_t used = 0;  ///< when it was asked for last, in a plan_table

    [[nodiscard]] bool holds(std::uint64_t wanted, std::uint64_t id, const program& p) const {
        return key == wanted && executor_id == id && value && value->source == p;
    }
};

/// The table of the process: a plan has `ways` places, where a new one replaces the one that was not asked for longest. With one place
/// each, two of the expressions of a loop that share it would evict each other in every round.
class plan_table {
public:
    OTIMES_COLD std::shared_ptr<const plan> find(std::uint64_t key, std::uint64_t id, const program& p) {
        const std::lock_guard lock(mutex_);
        cached_plan* const places = &entries_[first_place(key)];
        for (std::size_t way = 0; way < ways; ++way) {
            if (places[way].holds(key, id, p)) {
                places[way].used = ++clock_;
                return places[way].value;
            }
        }
        return nullptr;
    }
    OTIMES_COLD void keep(cached_plan entry) {
        const std::lock_guard lock(mutex_);
        cached_plan* const places = &entries_[first_place(entry.key)];
        std::size_t oldest = 0;
        for (std::size_t way = 1; way < ways; ++way) {
            oldest = places[way].used < places[oldest].used ? way : oldest;
        }
        entry.used = ++clock_;
        places[oldest] = std::move(entry);
    }
    OTIMES_COLD void clear() {
        const std::lock_guard lock(mutex_);
        entries_.fill({});
    }

    static constexpr std::size_t capacity = 512, ways = 4;

private:
    static std::size_t first_place(std::uint64_t key) noexcept {
        return static_cast<std::size_t>(key >> 20) % (capacity / ways) * ways;
    }

    std::mutex mutex_;
    std::uint64_t clock_ = 0;
    std::array<cached_plan, capacity> entries_;
};

OTIMES_COLD inline plan_table& process_plans() {
    union undestroyed {  // outlives every static object that evaluates
        plan_table table{};
        ~undestroyed() {}
    };
    static undestroyed kept;
    return kept.table;
}

/// Fills `entry` from the table of the process, or by planning.
OTIMES_COLD inline void find_or_make_plan(const program& p, const executor& e, std::uint64_t key, cached_plan& entry) {
    std::shared_ptr<const plan> found = process_plans().find(key, e.id(), p);
    if (!found) {
        found = std::make_shared<const plan>(e.plan_for(p));
        process_plans().keep({key, e.id(), found});
    }
    entry = {key, e.id(), std::move(found)};
}

}  // namespace detail

#endif

/// The plan that `e` runs for `p` with default options, made on first use. It lives as long as the caller keeps it.
/// Thread-safe. Cost: a hash and a comparison of the program when it was seen before, else `make_plan`.
#if OTIMES_PLANNER_IN_LIBRARY
std::shared_ptr<const plan> cached_plan_for(const program& p, const executor& e);
#else
OTIMES_COLD OTIMES_PLANNER_API std::shared_ptr<const plan> cached_plan_for(const program& p, const executor& e) {
    auto* const recent = detail::kept_by_thread<std::array<detail::cached_plan, 16>, detail::cached_plan>();
    const std::uint64_t key = hash_value(p) ^ (e.id() * 0x9e3779b97f4a7c15ull);
    detail::cached_plan own;
    detail::cached_plan& entry =
        recent != nullptr ? (*recent)[static_cast<std::size_t>(key >> 32) % recent->size()] : own;
    if (!entry.holds(key, e.id(), p)) {
        detail::find_or_make_plan(p, e, key, entry);
    }
    return entry.value;
}
#endif

/// A plan that this thread has run, found by a key instead of a program (program/plan_key.hpp).
struct keyed_plan {
    std::uint64_t executor_id = 0;
    std::shared_ptr<const plan> value;
    run_memo memo;  ///< what the executor has prepared for `value`
    plan_key key;

    [[nodiscard]] bool holds(const plan_key& wanted, std::uint64_t id) const noexcept {
        return executor_id == id && value != nullptr && key.equals(wanted);
    }
};

/// The place of this thread for plans with that key; null when the thread has ended. It may hold another's: ask `holds`, and fill it in
/// where it does not. A run that evaluates something else in between may replace it.
inline keyed_plan* keyed_plan_slot(const plan_key& key) {
    auto* const recent = detail::kept_by_thread<std::array<keyed_plan, 16>, keyed_plan>();
    return recent != nullptr ? &(*recent)[static_cast<std::size_t>(key.hash()) % recent->size()] : nullptr;
}

}  // namespace otimes

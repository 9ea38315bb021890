// SPDX-License-Identifier: MIT
/// @file executor.hpp
/// The interface of everything that runs plans, and the default executor of the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

class peer_stores;  // peer_stores.hpp

/// Memory for intermediates that belongs to the caller; `data == nullptr`: take it from the executor's own pool.
struct workspace_view {
    void* data = nullptr;
    std::int64_t bytes = 0;
};

/// What an executor keeps beside a plan that one thread runs again and again, so that the next run prepares less. It belongs to
/// who keeps the plan, is empty until the executor fills it in, and is cleared when the plan is another.
class run_memo {
public:
    using runner = void (*)(void* state, const bindings&);

    run_memo() = default;
    run_memo(const run_memo&) = delete;
    run_memo& operator=(const run_memo&) = delete;
    ~run_memo() { ::operator delete (memory_, std::align_val_t{64}); }

    /// Runs the plan on other operands, if it was prepared. False: it was not.
    bool run(const bindings& b) const {
        if (runner_ == nullptr) {
            return false;
        }
        runner_(memory_, b);
        return true;
    }
    /// Forgets the plan and keeps the memory.
    void clear() noexcept { runner_ = nullptr; }
    /// Memory of `bytes` bytes, aligned to 64, for what `run` is to be called with. Nothing is ever destroyed in it.
    void* reserve(std::size_t bytes) {
        clear();
        if (bytes > bytes_) {
            void* const larger = ::operator new (bytes, std::align_val_t{64});
            ::operator delete (memory_, std::align_val_t{64});
            memory_ = larger;
            bytes_ = bytes;
        }
        return memory_;
    }
    void set_runner(runner called) noexcept { runner_ = called; }

private:
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
    runner runner_ = nullptr;
};

namespace detail {
[[noreturn]] OTIMES_COLD inline void throw_small_workspace(std::int64_t given, std::int64_t needed) {
    throw budget_error("otimes: the workspace has " + std::to_string(given) + " bytes, but the plan needs " +
                           std::to_string(needed) + " (plan.workspace_bytes).",
                       needed);
}
}  // namespace detail

/// A machine with measured choices (machine::tuning), and who makes plans by them: the planner, which not every file compiles.
struct tuned_machine {
    machine where;
    plan (*make)(const program&, const machine&) = nullptr;
};

/// Runs plans. Immutable after construction as far as its users can see, but for `follow`: any thread may call `run` at any time.
class executor {
public:
    executor() noexcept : id_(next_id()) {}
    executor(const executor&) = delete;
    executor& operator=(const executor&) = delete;
    virtual ~executor() = default;

    /// "reference", "cpu avx512 openmp", "gpu NVIDIA H200", ...
    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    /// The machine that plans for this executor are made for.
    [[nodiscard]] virtual const machine& target() const noexcept = 0;
    /// Where its plans run; what `placement::automatic` becomes.
    [[nodiscard]] virtual placement where() const noexcept = 0;
    /// The plan for `p` on this executor with default options; what an expression is evaluated by. An executor makes
    /// only plans of its own kind here, so that a file compiles no more of the planner than it uses. Deterministic.
    [[nodiscard]] virtual plan plan_for(const program& p) const = 0;
    /// Evaluates `p` on the operands of `b`.
    /// @throws unsupported_error a plan that was made for another kind of executor.
    /// @throws budget_error a workspace smaller than `p.workspace_bytes`.
    virtual void run(const plan& p, const bindings& b, workspace_view workspace) const = 0;
    /// The same for who keeps `p`, and `memo` with it, for further runs of this thread: an executor may fill `memo` in, and
    /// `memo.run` then does what this does. @pre `p` lives, unchanged, until `memo` is cleared; one run at a time.
    virtual void run_first(const plan& p, const bindings& b, [[maybe_unused]] run_memo& memo) const { run(p, b, {}); }

    /// As `run`, and about half of the processors are left to what goes on beside it, if the executor can.
    virtual void run_beside(const plan& p, const bindings& b) const { run(p, b, {}); }

    /// What an executor does with the memory of other ranks; null: nothing.
    [[nodiscard]] virtual const peer_stores* stores_for_peers() const noexcept { return nullptr; }

    /// From now on `target` is that machine and plans follow its choices; plans of before are not found in the caches again. It
    /// lives until the process ends: another thread may plan by it at any time. Null: none. False: this executor follows none. See otimes::tune (tune.hpp).
    virtual bool follow([[maybe_unused]] const tuned_machine* choices) const { return false; }

    /// Differs between any two executors of the process, also when one takes the other's address; part of plan cache keys. Another
    /// one where plans of before no longer hold.
    [[nodiscard]] std::uint64_t id() const noexcept { return id_.load(std::memory_order_relaxed); }

protected:
    /// No cache finds a plan of before again.
    void forget_plans() const noexcept { id_.store(next_id(), std::memory_order_relaxed); }

private:
    static std::uint64_t next_id() noexcept {
        static std::atomic<std::uint64_t> counter{1};
        return counter.fetch_add(1, std::memory_order_relaxed);
    }
    mutable std::atomic<std::uint64_t> id_;
};

namespace detail {
inline std::atomic<const executor*>& default_executor_slot() noexcept {
    static std::atomic<const executor*> slot{nullptr};
    return slot;
}
inline const executor*& scoped_executor_slot() noexcept {
    thread_local const executor* slot = nullptr;
    return slot;
}
}  // namespace detail

/// Makes `e` the executor of every expression that names none, in all threads. The executor must outlive its use;
/// nullptr restores the `cpu` executor of each translation unit. Atomic.
inline void set_default_executor(const executor* e) noexcept { detail::default_executor_slot().store(e); }
inline void set_default_executor(const executor& e) noexcept { set_default_executor(&e); }

/// The executor that was set, for this thread's innermost scope first; nullptr when none was.
inline const executor* default_executor() noexcept {
    const executor* scoped = detail::scoped_executor_slot();
    return scoped != nullptr ? scoped : detail::default_executor_slot().load(std::memory_order_acquire);
}

/// Makes an executor the default of this thread until the end of the scope. Scopes nest.
class scoped_executor {
public:
    explicit scoped_executor(const executor& e) noexcept : outer_(detail::scoped_executor_slot()) {
        detail::scoped_executor_slot() = &e;
    }
    scoped_executor(const scoped_executor&) = delete;
    scoped_executor& operator=(const scoped_executor&) = delete;
    ~scoped_executor() { detail::scoped_executor_slot() = outer_; }

private:
    const executor* outer_;
};

}  // namespace otimes

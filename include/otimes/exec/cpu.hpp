// SPDX-License-Identifier: MIT
/// @file cpu.hpp
/// The cpu executor: SIMD for the instruction set that this translation unit is compiled for, OpenMP when it is compiled
/// with it, header-only. It interprets the passes of a plan; kernels are in cpu/.
///
/// Kernels are compiled for the scalar types that a translation unit uses and for no others: whoever builds expressions of
/// `Scalar` calls `enable_cpu<Scalar>()` first (a few stores), and the executor finds the kernels in a table.
#pragma once

#include <otimes/exec/target.hpp>

#if OTIMES_EXECUTOR_IN_LIBRARY

#include <otimes/exec/executor.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

const machine& host_machine();
const executor& cpu();

namespace cpu_detail {
/// Makes all kernels of the library known. A name that no header defines, so that a program with header-only files links it too.
void enable_library() noexcept;
}  // namespace cpu_detail

/// Other names than those of header-only files, with which these may be linked.
inline namespace from_library {
template <class Scalar>
void enable_cpu() noexcept {
    if constexpr (dtype_of<Scalar>() != dtype::other) {
        cpu_detail::enable_library();
    }
}
template <class Scalar>
void enable_cpu_kernels() noexcept {
    enable_cpu<Scalar>();
}
template <class Scalar>
void enable_cpu_steps() noexcept {
    enable_cpu<Scalar>();
}
}  // namespace from_library

}  // namespace OTIMES_TARGET
}  // namespace otimes

#else

#include <atomic>
#include <complex>
#include <cstddef>
#include <string>
#include <string_view>

#include <otimes/exec/cpu/host_machine.hpp>
#include <otimes/exec/cpu/run_plan.hpp>
#include <otimes/exec/executor.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/chain.hpp>
#include <otimes/plan/cpu_plan.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

namespace detail {
using cpu_runner = void (*)(const plan&, const bindings&, workspace_view, run_memo*);
/// For each dtype, kernels of whichever translation unit enabled it first: the last resort of an executor whose own
/// instruction set has none.
inline std::atomic<cpu_runner>& shared_cpu_runner(dtype type) noexcept {
    static std::atomic<cpu_runner> runners[cpu_runner_count] = {};
    return runners[static_cast<std::size_t>(type)];
}
}  // namespace detail

inline namespace OTIMES_TARGET {

namespace cpu_detail {
inline std::atomic<detail::cpu_runner>& own_runner(dtype type) noexcept {
    static std::atomic<detail::cpu_runner> runners[detail::cpu_runner_count] = {};
    return runners[static_cast<std::size_t>(type)];
}
}  // namespace cpu_detail

namespace cpu_detail {
[[noreturn]] OTIMES_COLD inline void throw_device_operand() {
    throw unsupported_error(
        "otimes: the cpu executor runs on the host, but an operand lies in device memory. "
        "Copy it to the host, or evaluate on a GPU executor.");
}
[[noreturn]] OTIMES_COLD inline void throw_no_kernels(dtype type) {
    throw unsupported_error("otimes: no translation unit of this program has compiled kernels for " +
                            std::string(to_string(type)) +
                            ". Build an expression of that type, or call otimes::enable_cpu<Scalar>().");
}
}  // namespace cpu_detail

/// Makes the kernels for `Scalar` (float, double or their complex types) known to the cpu executor: all that a product of
/// dense real matrices needs. Cost after the first call: one load.
template <class Scalar>
void enable_cpu_kernels() noexcept {
    constexpr dtype type = dtype_of<Scalar>();
    if constexpr (type != dtype::other) {
        std::atomic<detail::cpu_runner>& slot = cpu_detail::own_runner(type);
        if (slot.load(std::memory_order_relaxed) == nullptr) {
            slot.store(&cpu_detail::run_plan_as<Scalar>, std::memory_order_relaxed);
            detail::cpu_runner none = nullptr;
            detail::shared_cpu_runner(type).compare_exchange_strong(none, &cpu_detail::run_plan_as<Scalar>);
        }
    }
}

/// Makes the loops for all other steps known: factors with structure, promoted or conjugated operands. Apart from the
/// kernels, because they are half as long to compile and a product of dense matrices has no such step.
template <class Scalar>
void enable_cpu_steps() noexcept {
    constexpr dtype type = dtype_of<Scalar>();
    if constexpr (type != dtype::other) {
        std::atomic<detail::cpu_step_runner>& slot = cpu_detail::own_step_runner(type);
        if (slot.load(std::memory_order_relaxed) == nullptr) {
            slot.store(&cpu_detail::run_step_pass<Scalar>, std::memory_order_relaxed);
            detail::cpu_step_runner none = nullptr;
            detail::shared_step_runner(type).compare_exchange_strong(none, &cpu_detail::run_step_pass<Scalar>);
        }
    }
}

/// Makes everything for `Scalar` known to the cpu executor; nothing for types that only the reference loops know.
template <class Scalar>
void enable_cpu() noexcept {
    enable_cpu_kernels<Scalar>();
    enable_cpu_steps<Scalar>();
}

/// See the file comment. Without state of its own but for the choices that it follows: scratch memory belongs to the calling thread.
class cpu_executor final : public executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "cpu " OTIMES_TARGET_NAME; }
    /// The host, with the measured choices that it follows.
    [[nodiscard]] const machine& target() const noexcept override {
        const tuned_machine* const tuned = tuned_.load(std::memory_order_acquire);
        return tuned != nullptr ? tuned->where : host_machine();
    }
    [[nodiscard]] placement where() const noexcept override { return placement::cpu; }
    /// The CPU's plan, without the candidates that lost: those are for `explain`.
    [[nodiscard]] plan plan_for(const program& p) const override {
        const tuned_machine* const tuned = tuned_.load(std::memory_order_acquire);
        return tuned != nullptr ? tuned->make(p, tuned->where) : planning::default_cpu_plan(p, host_machine().cpu);
    }
    bool follow(const tuned_machine* choices) const override {
        tuned_.store(choices, std::memory_order_release);
        forget_plans();
        return true;
    }

    /// Evaluates `p`. Cost: the passes, plus about 0.1 us per pass; no heap allocation after the first run of a thread.
    /// Threads: p.threads when compiled with OpenMP and called outside a parallel region, else 1.
    /// @throws unsupported_error a plan for a GPU, operands in device memory, or a scalar type that no translation unit
    ///         enabled. @throws budget_error `workspace` is given and smaller than p.workspace_bytes.
    void run(const plan& p, const bindings& b, workspace_view workspace) const override {
        run_with(p, b, workspace, nullptr);
    }
    /// Prepares plans whose passes are one tile each: everything but the factors is laid out once.
    void run_first(const plan& p, const bindings& b, run_memo& memo) const override { run_with(p, b, {}, &memo); }

private:
    static void run_with(const plan& p, const bindings& b, workspace_view workspace, run_memo* memo) {
        for (const tensor& t : p.source.tensors) {
            if (t.space != memory_space::host) {
                cpu_detail::throw_device_operand();
            }
        }
        const dtype type = planning::type_of_kernels(p.source);
        detail::cpu_runner runner = cpu_detail::own_runner(type).load(std::memory_order_relaxed);
        if (runner == nullptr) {
            runner = detail::shared_cpu_runner(type).load(std::memory_order_acquire);
        }
        if (runner == nullptr) {
            cpu_detail::throw_no_kernels(type);
        }
        runner(p, b, workspace, memo);
    }

    mutable std::atomic<const tuned_machine*> tuned_{nullptr};
};

/// The cpu executor of this translation unit's instruction set and threading.
OTIMES_EXECUTOR_API const executor& cpu() {
    static const cpu_executor& instance = *new cpu_executor;  // outlives every static object that evaluates
    return instance;
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

#endif

// SPDX-License-Identifier: MIT
/// @file evaluate.hpp
/// From a lowered expression to its value: choose the executor, look up the plan, run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <otimes/exec/cpu.hpp>
#include <otimes/exec/executor.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

/// The program and bindings that a thread lowers into, kept so that a second evaluation allocates nothing. An evaluation
/// inside another (a scalar type that itself uses otimes) gets its own.
class lowering_scratch {
public:
    lowering_scratch() : contents_(detail::kept_by_thread<contents, contents>()) {
        if (contents_ == nullptr || contents_->busy) {
            own_ = std::make_unique<contents>();
            contents_ = own_.get();
        }
        contents_->busy = true;
    }
    lowering_scratch(const lowering_scratch&) = delete;
    lowering_scratch& operator=(const lowering_scratch&) = delete;
    ~lowering_scratch() {
        contents_->bound.clear();  // no address outlives the evaluation
        contents_->busy = false;
    }
    [[nodiscard]] otimes::program& program() { return contents_->lowered; }
    [[nodiscard]] otimes::bindings& bindings() { return contents_->bound; }

private:
    struct contents {
        otimes::program lowered;
        otimes::bindings bound;
        bool busy = false;
    };
    contents* contents_;  ///< the thread's, or its own
    std::unique_ptr<contents> own_;
};

/// The executor of an expression that names none: the one that was set, else this file's `cpu()`.
inline const executor& current_executor() {
    const executor* const chosen = default_executor();
    return chosen != nullptr ? *chosen : cpu();
}

/// What an expression may consist of.
enum class operands : std::uint8_t {
    any,
    dense  ///< factors with structure only where kron() was given one, which has then enabled the loops for it
};

/// Kernels are compiled for the types that are used. A complex matrix times real factors is a real problem; complex
/// programs also promote and conjugate, which are steps of their own.
template <class Scalar, operands Of = operands::any>
void enable_kernels() noexcept {
    static_assert(
        !is_widened(dtype_of<Scalar>()),
        "otimes: half and bfloat16 are for GPUs; no CPU executor computes in them. Use a DeviceMatrix, or convert "
        "the operands with .cast<float>().");
    if constexpr (Of == operands::dense && !is_complex(dtype_of<Scalar>())) {
        enable_cpu_kernels<Scalar>();
    } else {
        enable_cpu<Scalar>();
    }
    if constexpr (is_complex(dtype_of<Scalar>())) {
        enable_cpu<typename Scalar::value_type>();
    }
}

/// Evaluates a lowered expression of `Scalar` on the current executor. Scalars that no executor knows run through the
/// reference loops of the calling translation unit.
template <class Scalar, operands Of = operands::any>
void evaluate_program(const program& p, const bindings& b) {
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        const executor* const chosen = default_executor();
        if (chosen != nullptr && chosen->where() != placement::cpu && chosen->where() != placement::automatic) {
            throw unsupported_error("otimes: executor '" + std::string(chosen->name()) +
                                    "' does not know this scalar type; only the CPU's reference path does. "
                                    "Evaluate with otimes::on(otimes::cpu(), Y) = expression.");
        }
        reference_run<Scalar>(p, b);
    } else {
        enable_kernels<Scalar, Of>();
        const executor& e = current_executor();
        const std::shared_ptr<const plan> found = cached_plan_for(p, e);
        e.run(*found, b, {});
    }
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

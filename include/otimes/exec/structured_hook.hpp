// SPDX-License-Identifier: MIT
/// @file structured_hook.hpp
/// How executors reach the steps of sparse and callback factors: through function pointers that are set where such a factor is
/// made (structured_steps.hpp), so that a program without them does not compile those loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include <otimes/program/program.hpp>

namespace otimes {

/// An operand of a step as plain loops see it: where element (0, ..., 0) is, and how to reach the others.
struct step_operand {
    void* data = nullptr;
    dtype type = dtype::f64;
    bool conjugate = false;
    std::uint16_t scalar_bytes = 0;
    std::span<const mode> modes;
};

/// Null until a factor with structure is made. `reference`: plain loops; `loops`: the quicker ones of the cpu executor. They
/// return false for a step that they do not know, and have then written nothing. `alpha == nullptr`: 1. `threads`: how many may share
/// the step; those of the reference are one.
template <class Scalar>
struct structured_steps {
    using function = bool (*)(const program& source, const step& s, const step_operand& in, const step_operand& factor,
                              const step_operand& out, const Scalar* alpha, std::int64_t threads);
    static inline std::atomic<function> reference{nullptr};
    static inline std::atomic<function> loops{nullptr};
};

}  // namespace otimes

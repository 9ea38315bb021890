// SPDX-License-Identifier: MIT
/// @file row_hook.hpp
/// How the cpu executor reaches row-by-row evaluation (cpu/row_steps.hpp): through a function pointer that is set where sums,
/// solves and reductions are, so that a program of plain products does not compile it.
#pragma once

#include <atomic>
#include <cstdint>

#include <otimes/exec/target.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

struct plan;

inline namespace OTIMES_TARGET {

namespace cpu_detail {
inline constexpr double flops_per_fork = 4e5;  ///< about two forks of 4 us
}

/// Null until enabled. False: not a program for it; nothing is written then. `threads` 0: as many as OpenMP would start, where the work is worth it.
/// `planned`: a plan whose bits it may have to give; null: there is none.
template <class Scalar>
struct row_steps {
    using function = bool (*)(const program& source, const bindings& b, std::int32_t threads, std::int64_t most_flops,
                              std::int64_t most_elements, const plan* planned);
    static inline std::atomic<function> run{nullptr};
};

}  // namespace OTIMES_TARGET
}  // namespace otimes

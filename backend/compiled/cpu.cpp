// SPDX-License-Identifier: MIT
// otimes::compiled: the cpu executor and the evaluation of products for one instruction set, with or without OpenMP. Compiled
// once for each; every name that reaches a kernel is in a namespace of its target.
#define OTIMES_COMPILED
#define OTIMES_COMPILED_EXECUTOR_SOURCE
#include <complex>
#include <string_view>

#include <otimes/adapt/evaluate_product.hpp>
#include <otimes/exec/cpu.hpp>
#include <otimes/exec/cpu/row_steps.hpp>
#include <otimes/exec/structured_steps.hpp>

static_assert(
    std::string_view(OTIMES_TARGET_NAME).starts_with(OTIMES_COMPILED_EXPECTS " "),
    "otimes: the flags for this file and CMAKE_CXX_FLAGS together select another instruction set than the one that is "
    "being built. Leave -march out of CMAKE_CXX_FLAGS, or name its targets in OTIMES_COMPILED_TARGETS.");

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

void enable_library() noexcept;
void enable_library() noexcept {
    enable_cpu<float>();
    enable_cpu<double>();
    enable_cpu<std::complex<float>>();
    enable_cpu<std::complex<double>>();
}

void enable_row_library() noexcept;
void enable_row_library() noexcept {
    enable_row_steps<std::complex<float>>();  // and of their real types
    enable_row_steps<std::complex<double>>();
}

void enable_structured_library() noexcept;
void enable_structured_library() noexcept {
    enable_structured_steps<std::complex<float>>();  // and of their real types
    enable_structured_steps<std::complex<double>>();
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
// otimes::compiled: the cpu executor and the evaluation of products for one instruction set, with or without OpenMP. Compiled
// once for each; every name that reaches a kernel is in a namespace of its target.
#define OTIMES_COMPILED
#define OTIMES_COMPILED_EXECUTOR_SOURCE
#include <string_view>

#include <otimes/adapt/evaluate_product.hpp>
#include <otimes/exec/cpu.hpp>

static_assert(
    std::string_view(OTIMES_TARGET_NAME).starts_with(OTIMES_COMPILED_EXPECTS " "),
    "otimes: the flags for this file and CMAKE_CXX_FLAGS together select another instruction set than the one that is "
    "being built. Leave -march out of CMAKE_CXX_FLAGS, or name its targets in OTIMES_COMPILED_TARGETS.");

// SPDX-License-Identifier: MIT
/// @file fused_group.hpp
/// The C++ names of a fused kernel's instantiation.
#pragma once

#include <string>

#include <otimes/plan/gpu_group.hpp>

namespace otimes::backend {

using planning::gpu_ending;
using planning::gpu_group;
using planning::group_of;

/// "fused_trailing", "fused_outer", "fused_sum", "fused_terms", "fused_scattered", "fused_telling" or "fused_arriving": the kernel and, with ".cuh", its file.
std::string kernel_of(const gpu_group& g);

/// "otimes::kernels::mode_group<...>"
std::string type_expression(const gpu_group& g);

/// "otimes::kernels::moves<...>", of fused_terms.
std::string moves_expression(const gpu_group& g);

}  // namespace otimes::backend

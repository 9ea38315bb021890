// SPDX-License-Identifier: MIT
/// @file otimes.hpp
/// otimes for users of Eigen: `Y = X * kron(F1, F2, F3)`. Header-only; needs C++20 and Eigen 3.4 or newer, nothing to link.
#pragma once

#if __cplusplus < 202002L
#error "otimes needs C++20: compile with -std=c++20 or newer."
#endif

#if defined(__NVCC__)
#error \
    "otimes: nvcc does not compile the CPU's kernels. In a .cu file include <otimes/cuda.hpp>; Eigen operands belong in files for g++ or clang++."
#endif

#include <otimes/adapt/eigen.hpp>
#include <otimes/batched.hpp>
#include <otimes/einsum.hpp>
#include <otimes/exec/cpu.hpp>
#include <otimes/exec/executor.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/tkron.hpp>

/// Version of otimes, as in EIGEN_*_VERSION.
#define OTIMES_VERSION_MAJOR 0
#define OTIMES_VERSION_MINOR 1
#define OTIMES_VERSION_PATCH 0

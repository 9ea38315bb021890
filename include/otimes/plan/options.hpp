// SPDX-License-Identifier: MIT
/// @file options.hpp
/// What a user may ask of the planner. The order of the members is API: designated initialisers depend on it.
#pragma once

#include <cstdint>
#include <limits>

namespace otimes {

/// How products are rounded.
enum class precision : std::uint8_t {
    standard,  ///< at least as accurate as multiply-adds in the operand's own type, where products of the factors' entries are in its range
    ieee,  ///< multiply-adds in the operand's own type only, a kron's factors one by one: no splitting, none multiplied out
    tf32,  ///< floats: one TF32 product per multiply-add where a GPU's matrix unit takes a mode and kernels are compiled at run time
    bf16   ///< at least as accurate as one bfloat16 product per multiply-add: as tf32
};

/// Where a plan runs.
enum class placement : std::uint8_t { automatic, cpu, gpu, gpus };

/// Options of `make_plan`. Default: decide everything by cost.
struct options {
    /// Upper limit of the workspace in bytes. Kept exactly, or `budget_error` names the least that would do.
    std::int64_t workspace_limit_bytes = (std::numeric_limits<std::int64_t>::max)();
    otimes::precision precision = otimes::precision::standard;
    otimes::placement placement = otimes::placement::automatic;
    /// Threads of the CPU executor, at most most_threads; 0: what OpenMP used when the program first planned, and at a run no more than it would start then
    /// (omp_set_num_threads). 1 without OpenMP, with EIGEN_DONT_PARALLELIZE, and in a parallel region.
    std::int32_t threads = 0;
    /// Ignore tuning tables, and make the bits of each row independent of the number of rows, slabs and batch: what a workspace limit
    /// changes is not which factors are multiplied out, so the least limit that works may be more.
    bool deterministic = false;

    friend bool operator==(const options&, const options&) = default;
};

}  // namespace otimes

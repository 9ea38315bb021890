// SPDX-License-Identifier: MIT
/// @file early_reads.hpp
/// What the first launch of a run may read while the kernel in front of it still runs: kernels/launch_order.cuh. Pure arithmetic on
/// addresses; the executor asks only where nothing else can have come between the two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <otimes/exec/executor.hpp>
#include <otimes/program/program.hpp>

#include "launch_list.hpp"

namespace otimes::backend {

struct address_range {
    std::intptr_t begin = 0;
    std::intptr_t end = 0;  ///< behind the last byte
};

/// The bytes from the first to the last one that a bound tensor may touch; empty for no elements.
address_range range_of(const program& source, const tensor& t, const bindings& b);

/// All that a run may have written: its outputs, and the caller's workspace.
std::vector<address_range> ranges_written(const program& source, const bindings& b, workspace_view workspace);

/// True of a plan whose first launch may read early: it can, and nothing is copied or computed before it.
bool may_read_early(const launch_list& list);

struct early_reads {
    bool factors = false;
    bool x = false;  ///< implies factors
};

/// What the first launch of `list` reads that nothing in `written` touches. @pre may_read_early(list)
early_reads early_reads_of(const launch_list& list, const program& source, const bindings& b,
                           std::span<const address_range> written);

}  // namespace otimes::backend

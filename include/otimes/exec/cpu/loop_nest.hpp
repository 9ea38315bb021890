// SPDX-License-Identifier: MIT
/// @file loop_nest.hpp
/// Loops over all modes of a step but one, over runs of memory: what strided
/// step loops are made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// One index of a loop nest with its strides in up to three operands.
struct loop_index {
    std::int64_t extent = 1;
    std::array<std::int64_t, 3> stride = {0, 0, 0};
};

/// Writes the nest over all modes but `skipped` (-1: none), the one with the smallest stride in `out` last.
inline void loop_nest(const reference_loops::view& out, const reference_loops::view& in,
                      const reference_loops::view& factor, std::int32_t skipped, std::vector<loop_index>& nest) {
    nest.clear();
    for (std::size_t k = 0; k < out.modes.size(); ++k) {
        if (static_cast<std::int32_t>(k) == skipped || (out.modes[k].extent == 1 && in.modes[k].extent == 1)) {
            continue;
        }
        nest.push_back(
            {out.modes[k].extent,
             {out.modes[k].stride, in.modes[k].stride, k < factor.modes.size() ? factor.modes[k].stride : 0}});
    }
    for (std::size_t end = 1; end < nest.size(); ++end) {  // by insertion: std::stable_sort takes memory
        for (std::size_t k = end; k > 0 && std::abs(nest[k].stride[0]) > std::abs(nest[k - 1].stride[0]); --k) {
            std::swap(nest[k], nest[k - 1]);
        }
    }
    // Neighbours that lie without a gap in every operand are one loop.
    for (std::size_t k = nest.size(); k-- > 1;) {
        bool joined = true;
        for (std::size_t s = 0; s < 3; ++s) {
            joined = joined && nest[k - 1].stride[s] == nest[k].stride[s] * nest[k].extent;
        }
        if (joined) {
            nest[k - 1] = {nest[k - 1].extent * nest[k].extent, nest[k].stride};
            nest.erase(nest.begin() + static_cast<std::ptrdiff_t>(k));
        }
    }
}

/// Calls f(offsets of the three operands) for every index of the nest but its
/// last loop.
template <class Function>
void for_each_run(const std::vector<loop_index>& nest, Function&& f) {
    const std::size_t outer = nest.empty() ? 0 : nest.size() - 1;
    kept_vector<std::int64_t, loop_index> kept;
    std::vector<std::int64_t>& at = *kept;
    at.assign(outer, 0);
    std::array<std::int64_t, 3> offset = {0, 0, 0};
    for (const loop_index& l : nest) {
        if (l.extent == 0) {
            return;
        }
    }
    for (;;) {
        f(offset);
        std::size_t k = outer;
        while (k > 0) {
            --k;
            for (std::size_t s = 0; s < 3; ++s) {
                offset[s] += nest[k].stride[s];
            }
            if (++at[k] < nest[k].extent) {
                break;
            }
            for (std::size_t s = 0; s < 3; ++s) {
                offset[s] -= nest[k].stride[s] * nest[k].extent;
            }
            at[k] = 0;
            if (k == 0) {
                return;
            }
        }
        if (outer == 0) {
            return;
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

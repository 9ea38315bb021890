// SPDX-License-Identifier: MIT
/// @file sharing.hpp
/// A sum of products on a GPU has two programs: its terms one after the other, or what several of them have in common once
/// (expr/lower_tree.hpp). Which of the two plans takes less time.
#pragma once

#include <algorithm>
#include <cstddef>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Is `shared` the better plan of a sum than `apart`? Both are plans for one GPU.
///
/// Time. Predictions are of single chains. Terms of one pass each, and those of two whose second one has a single mode and a square factor, become launches
/// of several terms by fused kernels (backend/core/join_launches.cpp): X and Y go through memory once for all of them, and what they share is computed once
/// there, too. Sums of three terms of 8^3 to 64^3 were measured at 0.63 to 0.76 of three products, and count as 0.6 of what is predicted. Where several modes
/// are one pass of a term, what is shared takes more passes, of single modes, which take longer than predicted: four terms of 24^4 1.03 and 1.20 where 0.80
/// and 0.85 was predicted, three of complex 32^3 1.06 for 0.88. Such terms count as 0.75. Of single modes, 72^3 to 200^3, 0.77 to 0.82 was measured where
/// 0.78 was predicted (bench/results/sums_of_long_factors_h200.csv).
///
/// Memory. What is shared lies in buffers where the terms one by one work in Y: no more than twice the operands and the result, and with these no more
/// than half of the device's memory.
OTIMES_ON_DEMAND OTIMES_COLD inline bool sharing_pays(const plan& apart, const plan& shared,
                                                      const gpu_description& gpu) {
    const auto is_fused = [](const pass& p) {
        return p.kernel == pass_kernel::gpu_trailing || p.kernel == pass_kernel::gpu_outer;
    };
    const program& terms = apart.source;
    const auto reads_x = [&terms](const pass& p) { return p.in >= 0 && terms.at(p.in).role == tensor_role::input; };
    const auto is_square = [](const pass_mode& m) { return m.extent_in == m.extent_out; };
    bool joins = std::ranges::none_of(terms.tensors, [](const tensor& t) { return is_complex(t.type); });
    bool together = false;
    for (std::size_t i = 0; i < apart.passes.size(); ++i) {
        const pass& p = apart.passes[i];
        const bool behind = i > 0 && reads_x(apart.passes[i - 1]) && p.sweeps.size() == 1;
        joins = joins && (p.sweeps.empty() ||
                          (is_fused(p) && (reads_x(p) || (behind && std::ranges::all_of(p.modes, is_square)))));
        together = together || p.sweeps.size() > 1;
    }
    const double counted = joins ? 0.6 : together ? 0.75 : 1.0;
    const bool has_room =
        shared.workspace_bytes <= 2 * shared.bytes && shared.workspace_bytes + shared.bytes <= gpu.memory_bytes / 2;
    return has_room && shared.predicted_seconds < counted * apart.predicted_seconds;
}

}  // namespace otimes::planning

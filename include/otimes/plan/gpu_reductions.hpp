// SPDX-License-Identifier: MIT
/// @file gpu_reductions.hpp
/// Products that only a dot product, a norm or a distance reads: which step reduces them, and how they lie where the product's last kernel, or a
/// kernel of its own, reads them beside the other matrix.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// The step behind chain `i` that reduces what the chain computes and nothing else reads, alone or with a matrix in device memory, so
/// that the chain's last kernel can do it instead of storing; nullptr: there is none.
OTIMES_ON_DEMAND OTIMES_COLD inline const step* reduction_behind(const program& source,
                                                                 const std::vector<chain>& chains, std::size_t i) {
    if (i + 1 >= chains.size() || chains[i].add || chains[i + 1].step_count != 0) {
        return nullptr;
    }
    const step& s = source.steps[static_cast<std::size_t>(chains[i + 1].first_step)];
    const std::int32_t id = chains[i].out;
    const tensor& product = source.at(id);
    const bool norm = s.variant == step_variant::squared_norm;
    const bool pairs = s.variant == step_variant::dot || s.variant == step_variant::squared_distance;
    if (s.kind != step_kind::reduce || !(norm || pairs) || product.binding >= 0 || (norm ? s.in : s.factor) != id ||
        read_counts(source)[static_cast<std::size_t>(id)] != 1) {
        return nullptr;
    }
    const tensor& with = source.at(s.in);
    const bool fits = norm || (with.type == product.type && with.binding >= 0 && with.space == memory_space::device &&
                               with.mode_count == product.mode_count &&
                               std::ranges::all_of(source.modes_of(with),
                                                   [](const mode& m) { return m.extent == 1 || m.stride > 0; }));
    return fits ? &s : nullptr;
}

/// Lays out a product that `reduction` reads: `by_kernel`, where the matrix that it is multiplied by has its elements; else, and of a norm,
/// without gaps in the order of the product's input, or of that matrix where the input has one index of a mode that the product makes
/// longer: its place in memory says nothing, and the order must stay that of a matrix.
OTIMES_ON_DEMAND OTIMES_COLD inline void lay_out_for(const step& reduction, bool by_kernel, const program& source,
                                                     const chain& c, std::vector<mode>& modes) {
    const tensor& product = source.at(c.out);
    const auto count = static_cast<std::size_t>(product.mode_count);
    mode* const to = modes.data() + product.first_mode;
    const bool pairs = reduction.variant != step_variant::squared_norm;
    if (by_kernel && pairs) {
        std::ranges::copy(source.modes_of(reduction.in), to);
        return;
    }
    const mode* in = modes.data() + source.at(c.in).first_mode;
    for (std::size_t k = 0; pairs && k < count; ++k) {
        if (in[k].extent == 1 && to[k].extent > 1) {
            in = source.modes_of(reduction.in).data();
            break;
        }
    }
    std::vector<std::size_t> order(count);
    for (std::size_t k = 0; k < count; ++k) {
        order[k] = k;
    }
    std::stable_sort(order.begin(), order.end(),
                     [in](std::size_t a, std::size_t b) { return std::abs(in[a].stride) > std::abs(in[b].stride); });
    std::int64_t next = 1;
    for (std::size_t i = count; i-- > 0;) {
        to[order[i]].stride = next;
        next *= to[order[i]].extent;
    }
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file slabs.hpp
/// Slabs: a free mode is cut so that the intermediates of a slab stay in cache and the workspace stays small. Each thread
/// runs whole slabs, so no barrier is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <otimes/plan/fusion.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// The chain mode that slabs may cut: the longest free one, the outermost of equals; -1: there is none of extent 2 or more.
OTIMES_COLD inline std::int32_t slab_mode_of(const chain& c) {
    std::int32_t best = -1;
    for (std::size_t k = 0; k < c.modes.size(); ++k) {
        if (!c.modes[k].contracted() && c.modes[k].p_extent > 1 &&
            (best < 0 || c.modes[k].p_extent > c.modes[static_cast<std::size_t>(best)].p_extent)) {
            best = static_cast<std::int32_t>(k);
        }
    }
    return best;
}

/// Elements of the largest tensor between two groups of the chain, whole modes; 0 when there is only one group.
OTIMES_COLD inline double largest_intermediate(const fusion_setting& f) {
    double largest = 0;
    for (std::size_t done = 1; done < f.groups.size(); ++done) {
        double elements = 1;
        for (std::size_t k = 0; k < f.source->modes.size(); ++k) {
            elements *= static_cast<double>(extent_after(f, k, done));
        }
        largest = (std::max)(largest, elements);
    }
    return largest;
}

/// Intermediates that live at once: what a pass reads, and what it writes unless that is the result.
inline double live_intermediates(const fusion_setting& f) { return f.groups.size() > 2 ? 2.0 : 1.0; }

/// Slabs of `extent` indices of mode `k`.
OTIMES_COLD inline slab_choice cut(const chain& c, std::int32_t k, std::int64_t extent) {
    const std::int64_t total = c.modes[static_cast<std::size_t>(k)].p_extent;
    if (extent >= total) {
        return {};
    }
    return {k, extent, (total + extent - 1) / extent};
}

/// The slabs worth comparing, those of least workspace first: one index; one whole vector of indices; as many as keep two
/// intermediates in half of L2; no slabs. Near-equal slabs, and at least one for each thread. Where neighbours in memory are cut, slabs are whole cache
/// lines: no two threads write one line, and only whole lines are stored past the caches (10000 doubles by columns, 16 x 16, took 1.17 times as long in slabs
/// of 500 as of 504).
OTIMES_COLD inline std::vector<slab_choice> slab_candidates(const fusion_setting& f) {
    std::vector<slab_choice> result;
    const std::int32_t mode = slab_mode_of(*f.source);
    const double largest = largest_intermediate(f);
    if (mode >= 0 && largest > 0) {
        const std::int64_t total = f.source->modes[static_cast<std::size_t>(mode)].p_extent;
        const std::int64_t vector = vector_count(*f.cpu, f.source->type);
        const chain_mode& cut_mode = f.source->modes[static_cast<std::size_t>(mode)];
        const bool neighbours = cut_mode.stride_in == 1 && cut_mode.stride_out == 1;
        const double index_bytes = live_intermediates(f) * largest / static_cast<double>(total) *
                                   static_cast<double>(element_bytes(f.source->type));
        constexpr std::int64_t line_bytes = 64;
        const std::int64_t line = (std::max)(vector, line_bytes / element_bytes(f.source->type));
        const auto add = [&](std::int64_t extent) {
            extent = std::clamp<std::int64_t>(extent, 1, (total + f.threads - 1) / f.threads);
            const std::int64_t count = (std::min)(total, round_up((total + extent - 1) / extent, f.threads));
            extent = (total + count - 1) / count;
            if (neighbours && extent > line) {
                const std::int64_t longest = round_up(extent, line);
                std::int64_t fair = longest;  // the next that leaves every thread as many slabs
                while (2 * fair > extent && (total + fair - 1) / fair % f.threads != 0) {
                    fair -= line;
                }
                extent = 2 * fair > extent ? fair : longest;
            }
            const slab_choice choice = cut(*f.source, mode, extent);
            if (choice.count > 1 && (result.empty() || result.back().extent < choice.extent)) {
                result.push_back(choice);
            }
        };
        const double fitting = 0.5 * static_cast<double>(f.cpu->l2_bytes) / index_bytes;
        const auto in_cache = static_cast<std::int64_t>((std::min)(fitting, static_cast<double>(total)));
        add(1);
        if (in_cache > vector) {
            add(in_cache / vector * vector);
        } else {
            add(in_cache);
            add(vector);
        }
    }
    result.push_back(slab_choice{});
    return result;
}

/// Where the intermediates of a setting lie.
OTIMES_COLD inline level intermediate_level(const fusion_setting& f) {
    if (f.slab.in_output) {
        return f.outer_out;
    }
    const double bytes =
        live_intermediates(f) * largest_intermediate(f) * static_cast<double>(element_bytes(f.source->type));
    if (f.slab.count > 1) {
        const double total = static_cast<double>(f.source->modes[static_cast<std::size_t>(f.slab.chain_mode)].p_extent);
        return (std::max)(level::l2, level_of(*f.cpu, bytes / total * static_cast<double>(f.slab.extent), f.threads));
    }
    if (f.threads == 1) {
        return (std::max)(level::l2, level_of(*f.cpu, bytes, 1));
    }
    // threads share the intermediates: what another thread wrote comes at best from the shared cache
    return bytes <= 0.5 * static_cast<double>(f.cpu->l3_bytes) ? level::l3 : level::memory;
}

}  // namespace otimes::planning

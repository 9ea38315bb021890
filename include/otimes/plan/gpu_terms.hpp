// SPDX-License-Identifier: MIT
/// @file gpu_terms.hpp
/// Chains that are terms of one sum on a GPU: in which order they go, and which of them become launches of several terms (shared_terms.hpp,
/// backend/core/launch_list.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/gpu_chain.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/shared_terms.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Y = Z, Y += X * K..: the product first where it takes several passes, since its intermediates may lie in Y as long as nothing else
/// does. A product of one pass reads Z while it is stored (backend/core/launch_list.cpp).
OTIMES_ON_DEMAND OTIMES_COLD inline void products_before_matrices(const program& source, std::vector<chain>& chains,
                                                                  const gpu_description& gpu, const options& wishes) {
    for (std::size_t i = 0; i + 1 < chains.size(); ++i) {
        chain& matrix = chains[i];
        chain& product = chains[i + 1];
        const auto is_free = [](const chain_mode& m) { return !m.contracted(); };
        if (matrix.step_count == 0 || product.step_count == 0 || matrix.add || !product.add ||
            !std::ranges::all_of(matrix.modes, is_free) || std::ranges::all_of(product.modes, is_free) ||
            source.at(matrix.out).binding < 0 || source.at(matrix.out).binding != source.at(product.out).binding ||
            source.at(product.in).binding < 0 || source.at(product.in).binding == source.at(product.out).binding) {
            continue;
        }
        chain tried = product;
        sort_by_memory(tried.modes);
        std::vector<factor_group> groups = group_factors(tried, false);
        double seconds = 0;
        gpu_chain_planner planner(tried, groups, gpu, wishes, slab_choice{});
        if (planner.cheapest(seconds).size() > 1) {
            std::swap(matrix, product);
            std::swap(matrix.add, product.add);
        }
    }
}

/// How many chains from `at` on are the terms of one sum, Y = X * kron(..) + X * kron(..) + ..: of one X and Y without gaps, with square factors
/// of the same modes.
OTIMES_ON_DEMAND OTIMES_COLD inline std::size_t terms_from(const program& source, const std::vector<chain>& chains,
                                                           std::size_t at) {
    std::size_t end = at;
    const auto binding = [&source](std::int32_t id) { return source.at(id).binding; };
    for (; end < chains.size() && end < at + static_cast<std::size_t>(most_group_terms); ++end) {
        const chain& c = chains[end];
        const chain& first = chains[at];
        if (c.step_count == 0 || c.add != (end > at) || c.in_place || is_complex(c.type) || !c.unit_factors.empty() ||
            binding(c.in) < 0 || binding(c.out) < 0 || binding(c.in) != binding(first.in) ||
            binding(c.out) != binding(first.out) || c.modes.size() != first.modes.size()) {
            break;
        }
        std::int64_t below = 1;
        std::size_t left = c.modes.size();
        for (; left > 0; --left) {
            const chain_mode& m = c.modes[left - 1];
            const chain_mode& o = first.modes[left - 1];
            if (m.p_extent != m.q_extent || m.stride_in != below || m.stride_out != below || m.p_extent != o.p_extent ||
                m.contracted() != o.contracted()) {
                break;
            }
            below *= m.p_extent;
        }
        if (left > 0) {
            break;
        }
    }
    return end - at;
}

/// True where `count` chains from `at` on, whose first two passes would be `passes`, become two launches: backend/core/launch_list.cpp does
/// that where their factors are shared and both kernels exist.
OTIMES_ON_DEMAND OTIMES_COLD inline bool terms_take_two_passes(const program& source, const std::vector<chain>& chains,
                                                               std::size_t at, std::size_t count,
                                                               const std::vector<pass>& passes,
                                                               const gpu_description& gpu) {
    const auto place = [&passes](std::size_t i, std::vector<std::int64_t>& p) {
        const std::vector<std::uint8_t> contracted = contracted_modes(passes[i]);
        for (std::size_t k = 0; k < contracted.size(); ++k) {
            if (contracted[k] != 0) {
                p.push_back(passes[i].modes[k].extent_in);
            }
        }
        return place_of_group(passes[i].modes, contracted);
    };
    if (passes.size() != 2 || passes[0].kernel != pass_kernel::gpu_trailing ||
        passes[1].kernel != pass_kernel::gpu_outer) {
        return false;
    }
    std::vector<std::int64_t> inner;
    std::vector<std::int64_t> outer;
    const std::optional<group_place> first = place(0, inner);
    const std::optional<group_place> second = place(1, outer);
    // Equal factors of one mode have equal numbers.
    struct numbered {
        std::size_t level = 0;
        std::int32_t id = -1;
    };
    const auto number_in = [&source](std::vector<numbered>& known, std::size_t level, std::int32_t id) {
        const tensor& f = source.at(id);
        const auto same = [&](const numbered& other) {
            const tensor& o = source.at(other.id);
            return other.level == level &&
                   (other.id == id ||
                    (f.space == memory_space::device && o.space == f.space && o.binding == f.binding &&
                     std::ranges::equal(source.modes_of(o), source.modes_of(f))));
        };
        const auto at_known = std::ranges::find_if(known, same);
        const auto number = static_cast<std::int32_t>(at_known - known.begin());
        if (at_known == known.end()) {
            known.push_back({level, id});
        }
        return number;
    };
    sum_of_terms sum;
    std::vector<numbered> known;
    std::vector<numbered> outputs;
    for (std::size_t t = at; t < at + count; ++t) {
        sum.factors.emplace_back();
        std::size_t level = 0;
        for (const chain_mode& m : chains[t].modes) {
            if (!m.contracted()) {
                continue;
            }
            if (level == 0) {
                sum.outputs.push_back(number_in(outputs, 0, m.factor));
            } else {
                sum.factors.back().push_back(number_in(known, level, m.factor));
            }
            ++level;
        }
    }
    if (!first || !second || outer.size() != 1 || outputs.size() > 2 ||
        static_cast<std::int64_t>(known.size()) > most_group_modes || sum.factors.front().size() != inner.size()) {
        return false;
    }
    const std::vector<gpu_move> moves = moves_of_sum(sum).moves();
    group_request r;
    r.outer = true;
    r.type = chains[at].type;
    r.p = r.q = outer;
    r.order = {1};
    r.groups = second->groups();
    r.parts_per_line = second->parts_per_line;
    r.inner = second->inner;
    return moves.size() < count * inner.size() &&
           shared_terms_group(r.type, inner, moves, first->groups(), first->parts_per_line, true, gpu).has_value() &&
           (outputs.size() == 1 || two_inputs_group(r, gpu).has_value());
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file grouping.hpp
/// Which neighbouring small factors are multiplied out to one before use (2 x 2 (x) 2 x 2 (x) 2 x 2 -> 8 x 8). A group does more
/// multiply-adds, but a sweep of tiny factors is bound by its loads and stores; sweep_efficiency says where it pays.
/// Depends on the factors only, never on the number of rows, so that a row's bits do not either.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>

namespace otimes::planning {

/// Largest extent of a multiplied-out group: above it the extra multiply-adds never pay on a CPU.
inline constexpr std::int64_t most_grouped_extent = 16;

/// Cost of sweeping factors `shapes`, outermost first, when the tensor has `elements` elements before: multiply-adds over
/// efficiency, in flops of the peak. The tensor has elements / prod P * prod Q elements after.
inline double grouped_sweep_cost(std::int64_t P, std::int64_t Q, double elements) {
    return 2.0 * elements * static_cast<double>(Q) / sweep_efficiency(P, Q);
}

/// The cheapest grouping of a run of neighbouring contracted modes [first, first + shapes.size()): a dynamic program over
/// the contiguous partitions, each group swept in turn from the outermost. Appends the groups to `result`.
/// @post equals the minimum over all partitions (tests/plan/grouping.cpp).
inline void cheapest_grouping(std::span<const chain_mode> modes, std::int32_t first,
                              std::vector<factor_group>& result) {
    const std::size_t count = modes.size();
    std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
    std::vector<std::size_t> from(count + 1, 0);
    best[0] = 0;
    double before = 1;  // elements, relative, when the modes outside [0, begin) are still P
    for (std::size_t begin = 0; begin < count; ++begin) {
        std::int64_t P = 1;
        std::int64_t Q = 1;
        for (std::size_t end = begin + 1; end <= count; ++end) {
            P *= modes[end - 1].P;
            Q *= modes[end - 1].Q;
            if (end > begin + 1 && (P > most_grouped_extent || Q > most_grouped_extent)) {
                break;
            }
            std::int64_t unused_in = 0;
            std::int64_t unused_out = 0;
            if (end > begin + 1 && !nested(modes.subspan(begin, end - begin), unused_in, unused_out)) {
                break;
            }
            const double total = best[begin] + grouped_sweep_cost(P, Q, before);
            if (total < best[end]) {
                best[end] = total;
                from[end] = begin;
            }
        }
        before = before / static_cast<double>(modes[begin].P) * static_cast<double>(modes[begin].Q);
    }
    const std::size_t at = result.size();
    for (std::size_t end = count; end > 0; end = from[end]) {
        factor_group group{first + static_cast<std::int32_t>(from[end]), static_cast<std::int32_t>(end - from[end]), 1,
                           1};
        for (std::size_t k = from[end]; k < end; ++k) {
            group.P *= modes[k].P;
            group.Q *= modes[k].Q;
        }
        result.insert(result.begin() + static_cast<std::ptrdiff_t>(at), group);
    }
}

/// Groups of a whole chain in memory order; `multiply_out` false: each factor its own group.
inline std::vector<factor_group> group_factors(const chain& c, bool multiply_out) {
    std::vector<factor_group> groups;
    const std::size_t count = c.modes.size();
    for (std::size_t k = 0; k < count;) {
        if (!c.modes[k].contracted()) {
            ++k;
            continue;
        }
        std::size_t end = k + 1;
        while (multiply_out && end < count && c.modes[end].contracted()) {
            ++end;
        }
        if (end == k + 1) {
            groups.push_back({static_cast<std::int32_t>(k), 1, c.modes[k].P, c.modes[k].Q});
        } else {
            cheapest_grouping(std::span(c.modes).subspan(k, end - k), static_cast<std::int32_t>(k), groups);
        }
        k = end;
    }
    return groups;
}

/// Puts groups into the order of least multiply-adds; ties stay outermost first.
inline void order_groups(std::vector<factor_group>& groups) {
    std::stable_sort(groups.begin(), groups.end(), [](const factor_group& a, const factor_group& b) {
        return contracts_before({a.P, a.Q}, {b.P, b.Q});
    });
}

}  // namespace otimes::planning

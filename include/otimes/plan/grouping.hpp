// SPDX-License-Identifier: MIT
/// @file grouping.hpp
/// Which neighbouring small factors are multiplied out to one before use (2 x 2 (x) 2 x 2 (x) 2 x 2 -> 8 x 8). A group does more
/// multiply-adds, but a sweep of tiny factors is bound by its loads and stores; sweep_efficiency says where it pays.
/// Depends on the factors and on how many registers there are, never on the number of rows, so that a row's bits do not either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Largest extent of a multiplied-out group: above it the extra multiply-adds never pay on a CPU.
inline constexpr std::int64_t most_grouped_extent = 16;

/// Cost of sweeping one P x Q factor, multiplied out or not, when the tensor has `elements` elements before: multiply-adds over
/// efficiency, in flops of the peak. The tensor has elements / P * Q elements after.
OTIMES_COLD inline double grouped_sweep_cost(std::int64_t p_extent, std::int64_t q_extent, double elements) {
    return 2.0 * elements * static_cast<double>(q_extent) / sweep_efficiency(p_extent, q_extent);
}

/// Which factors are swept two at a time.
enum class twins : std::uint8_t {
    none,
    of_three,    ///< of 3 x 3
    up_to_four,  ///< of 4 x 4 as well, where there are 32 registers
};

/// True for a factor of 3 x 3 or 4 x 4 with such another one beside it, where two of them are swept at once (cost.hpp), for less than their
/// product.
template <class Shape>
bool has_twin(std::span<const Shape> shapes, std::size_t k, twins which) {
    const std::int64_t extent = shapes[k].p_extent;
    const bool fits = (which != twins::none && extent == 3) || (which == twins::up_to_four && extent == 4);
    const auto equals = [shapes, extent](std::size_t i) {
        return shapes[i].p_extent == extent && shapes[i].q_extent == extent;
    };
    return fits && equals(k) && ((k > 0 && equals(k - 1)) || (k + 1 < shapes.size() && equals(k + 1)));
}

/// What grouped_sweep_cost is for one of two factors that are swept at once.
constexpr double twin_sweep_cost(std::int64_t extent, double elements) noexcept {
    return 2.0 * elements * static_cast<double>(extent) / twin_efficiency;
}

/// Elements before the group [begin, end) is swept, relative to those before the first: the modes on the side that is
/// swept earlier have become Q.
OTIMES_COLD inline double elements_before(std::span<const chain_mode> modes, std::size_t begin, std::size_t end,
                                          bool outermost_first) {
    double elements = 1;
    for (std::size_t k = outermost_first ? 0 : end; k < (outermost_first ? begin : modes.size()); ++k) {
        elements = elements / static_cast<double>(modes[k].p_extent) * static_cast<double>(modes[k].q_extent);
    }
    return elements;
}

/// The cheapest grouping of a run of neighbouring contracted modes, of which the first is mode `first` of the chain, if
/// the groups were swept one after another from the outermost (or the innermost) on: a dynamic program over the
/// contiguous partitions. Appends the groups to `result`, outermost first. @param which of real scalars
/// @post equals the minimum over all partitions (tests/plan/grouping.cpp).
OTIMES_COLD inline void cheapest_grouping(std::span<const chain_mode> modes, std::int32_t first, bool outermost_first,
                                          std::vector<factor_group>& result, twins which = twins::none) {
    const std::size_t count = modes.size();
    std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
    std::vector<std::size_t> from(count + 1, 0);
    best[0] = 0;
    for (std::size_t begin = 0; begin < count; ++begin) {
        std::int64_t p_extent = 1;
        std::int64_t q_extent = 1;
        for (std::size_t end = begin + 1; end <= count; ++end) {
            p_extent *= modes[end - 1].p_extent;
            q_extent *= modes[end - 1].q_extent;
            if (end > begin + 1) {
                std::int64_t unused_in = 0;
                std::int64_t unused_out = 0;
                if (p_extent > most_grouped_extent || q_extent > most_grouped_extent ||
                    !nested(modes.subspan(begin, end - begin), unused_in, unused_out)) {
                    break;
                }
            }
            const double elements = elements_before(modes, begin, end, outermost_first);
            const double total = best[begin] + (end == begin + 1 && has_twin(modes, begin, which)
                                                    ? twin_sweep_cost(p_extent, elements)
                                                    : grouped_sweep_cost(p_extent, q_extent, elements));
            if (total < best[end] * (1 - 1e-9)) {  // of equal ones the larger group inside, where runs are short
                best[end] = total;
                from[end] = begin;
            }
        }
    }
    const std::size_t at = result.size();
    for (std::size_t end = count; end > 0; end = from[end]) {
        factor_group group{first + static_cast<std::int32_t>(from[end]), static_cast<std::int32_t>(end - from[end]), 1,
                           1};
        for (std::size_t k = from[end]; k < end; ++k) {
            group.p_extent *= modes[k].p_extent;
            group.q_extent *= modes[k].q_extent;
        }
        result.push_back(group);
        for (std::size_t k = result.size() - 1; k > at; --k) {  // found from the innermost on
            result[k] = result[k - 1];
        }
        result[at] = group;
    }
}

/// How many of the first factors, all of 2 x 2, to multiply out to one of 4 x 4, or of 8 x 8 where their number is odd; 0: none.
OTIMES_COLD inline std::size_t count_for_four(std::span<const chain_mode> modes) {
    std::size_t twos = 0;
    std::int64_t unused_in = 0;
    std::int64_t unused_out = 0;
    while (twos < modes.size() && modes[twos].contracted() && modes[twos].p_extent == 2 && modes[twos].q_extent == 2 &&
           nested(modes.first(twos + 1), unused_in, unused_out)) {
        ++twos;
    }
    return twos < 2 ? 0 : twos % 2 == 0 ? 2 : 3;
}

/// Puts groups into the order of least multiply-adds; ties stay outermost first.
OTIMES_COLD inline void order_groups(std::vector<factor_group>& groups) {
    sort_few(groups.data(), groups.data() + groups.size(), [](const factor_group& a, const factor_group& b) {
        return contracts_before({a.p_extent, a.q_extent}, {b.p_extent, b.q_extent});
    });
}

/// Cost of sweeping groups in their order: what grouping is decided by.
OTIMES_COLD inline double ordered_cost(std::span<const factor_group> groups, twins which = twins::none) {
    double cost = 0;
    double elements = 1;
    for (std::size_t k = 0; k < groups.size(); ++k) {
        const factor_group& g = groups[k];
        cost += has_twin(groups, k, which) ? twin_sweep_cost(g.p_extent, elements)
                                           : grouped_sweep_cost(g.p_extent, g.q_extent, elements);
        elements = elements / static_cast<double>(g.p_extent) * static_cast<double>(g.q_extent);
    }
    return cost;
}

/// The groups of a chain in the order of execution. `multiply_out` false: each factor its own group. Otherwise the cheapest
/// of these: all apart; the groupings that are best when swept from either end (a group gives up the freedom to sweep its members in the
/// best order, which only the ordered cost sees); with `many_registers` (32 of them) those of 2 x 2 floats as 4 x 4, which are swept two at a time.
OTIMES_COLD inline std::vector<factor_group> group_factors(const chain& c, bool multiply_out,
                                                           bool many_registers = false) {
    enum class way : std::uint8_t { apart, from_outermost, from_innermost, fours };
    const twins which = is_complex(c.type) ? twins::none : many_registers ? twins::up_to_four : twins::of_three;
    const auto grouped = [&c, which](way how) {
        std::vector<factor_group> groups;
        const std::size_t count = c.modes.size();
        for (std::size_t k = 0; k < count;) {
            if (!c.modes[k].contracted()) {
                ++k;
                continue;
            }
            std::size_t end = k + 1;
            while (how != way::apart && how != way::fours && end < count && c.modes[end].contracted()) {
                ++end;
            }
            const std::size_t twos = how == way::fours ? count_for_four(std::span(c.modes).subspan(k)) : 0;
            if (twos > 0) {
                groups.push_back({static_cast<std::int32_t>(k), static_cast<std::int32_t>(twos),
                                  std::int64_t{1} << twos, std::int64_t{1} << twos});
                k += twos;
                continue;
            }
            if (end == k + 1) {
                groups.push_back({static_cast<std::int32_t>(k), 1, c.modes[k].p_extent, c.modes[k].q_extent});
            } else {
                cheapest_grouping(std::span(c.modes).subspan(k, end - k), static_cast<std::int32_t>(k),
                                  how == way::from_outermost, groups, which);
            }
            k = end;
        }
        order_groups(groups);
        return groups;
    };
    std::vector<factor_group> best = grouped(way::apart);
    if (!multiply_out || best.size() < 2) {
        return best;
    }
    double least = ordered_cost(best, which);
    for (const way how : {way::from_outermost, way::from_innermost, way::fours}) {
        if (how == way::fours && (which != twins::up_to_four || element_bytes(c.type) != 4)) {
            break;  // of doubles 2^k took 0.55 to 1.05 of the time on one processor and 0.75 to 1.4 on another
        }
        std::vector<factor_group> other = grouped(how);
        const double cost = ordered_cost(other, which);
        if (cost < least * (1 - 1e-9)) {
            least = cost;
            best = std::move(other);
        }
    }
    return best;
}

}  // namespace otimes::planning

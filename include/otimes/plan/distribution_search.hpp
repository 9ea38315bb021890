// SPDX-License-Identifier: MIT
/// @file distribution_search.hpp
/// Which distributions a product goes through: the search over short sequences of them, and which factors are applied under each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/distributed_costs.hpp>
#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/ordering.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

namespace planning {

/// A sequence of distributions with the factors that are applied under each.
struct distribution_candidate {
    std::vector<layout_choice> layouts;
    std::vector<std::vector<std::int32_t>> factors;  ///< one list for each layout
    double seconds = 0;
    std::int64_t total_moved = 0;
    std::int32_t exchanges = 0;
};

/// The number of rows for which sequences are compared. Deterministic: one for each part, so that the sequence, and with it the bits of a row, does
/// not depend on how many there are, in all or in a slab.
[[nodiscard]] constexpr std::int64_t rows_compared(const distributed_problem& problem) noexcept {
    return problem.wishes.deterministic ? problem.operand.row_parts : problem.rows;
}

/// Searches the sequences of distributions. Small: N modes give about N^2 sequences of a few stages.
class distribution_search {
public:
    distribution_search(const distributed_problem& problem, const machine& where, const interconnect& net)
        : problem_(problem), net_(net), rates_(rates_of(where, problem)), rows_(rows_compared(problem)) {
        for (const distributed_factor& f : problem.factors) {
            before_.push_back(f.p_extent);
            after_.push_back(f.q_extent);
        }
    }

    [[nodiscard]] const std::vector<std::int64_t>& extents_before() const noexcept { return before_; }
    [[nodiscard]] const distribution_rates& rates() const noexcept { return rates_; }

    /// The cheapest sequence; the best of each other kind goes to `losers`.
    OTIMES_COLD distribution_candidate best(std::vector<distribution_candidate>& losers) {
        const layout_choice start = recognised(problem_.operand, before_);
        std::vector<layout_choice> middle = candidates(start);
        std::vector<distribution_candidate> by_kind;
        const auto consider = [&](std::vector<layout_choice> layouts) {
            if (problem_.result_is_fixed) {
                const layout_choice end = recognised(problem_.result, after_);
                if (!(layouts.back() == end)) {
                    layouts.push_back(end);
                }
            }
            distribution_candidate c;
            c.layouts = std::move(layouts);
            if (!assign(c)) {
                return;
            }
            price(c);
            for (distribution_candidate& known : by_kind) {
                if (kind_of(known) == kind_of(c)) {
                    if (better(c, known)) {
                        known = std::move(c);
                    }
                    return;
                }
            }
            by_kind.push_back(std::move(c));
        };
        consider({start});
        for (const layout_choice& first : middle) {
            if (first == start) {
                continue;
            }
            consider({start, first});
            for (const layout_choice& second : middle) {
                if (!(second == first)) {
                    consider({start, first, second});
                }
            }
        }
        std::size_t at = 0;
        for (std::size_t i = 1; i < by_kind.size(); ++i) {
            at = better(by_kind[i], by_kind[at]) ? i : at;
        }
        distribution_candidate chosen = by_kind.at(at);
        by_kind.erase(by_kind.begin() + static_cast<std::ptrdiff_t>(at));
        losers = std::move(by_kind);
        return chosen;
    }

    /// "rows cut, 1 exchange", for the list of losers.
    OTIMES_COLD static std::string kind_of(const distribution_candidate& c) {
        bool cols = false;
        bool rows = false;
        for (std::size_t i = 0; i < c.layouts.size(); ++i) {
            if (!c.factors[i].empty()) {
                cols = cols || c.layouts[i].exact.col_parts > 1;
                rows = rows || c.layouts[i].exact.row_parts > 1;
            }
        }
        return std::string(rows && cols ? "rows and columns cut"
                           : cols       ? "columns cut"
                           : rows       ? "rows cut"
                                        : "whole") +
               ", " + counted(c.exchanges, "exchange");
    }

    /// One stage on the rank with the largest block: the multiply-adds in the order of least work, or one trip to memory.
    OTIMES_COLD double local_seconds(const distribution& where, const std::vector<std::int32_t>& factors,
                                     const std::vector<std::int64_t>& extents) const {
        const std::int64_t cols = product_of(extents);
        double elements = 0;
        for (std::int32_t rank = 0; rank < problem_.ranks; ++rank) {
            elements = (std::max)(elements, static_cast<double>(block_of(where, rows_, cols, rank).elements()));
        }
        std::vector<std::int32_t> order = factors;
        std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            const distributed_factor& x = problem_.factors[static_cast<std::size_t>(a)];
            const distributed_factor& y = problem_.factors[static_cast<std::size_t>(b)];
            return contracts_before({x.p_extent, x.q_extent}, {y.p_extent, y.q_extent});
        });
        const auto weight = static_cast<double>(multiply_add_weight(problem_.type));
        double flops = 0;
        double moved = elements;
        for (const std::int32_t k : order) {
            const distributed_factor& f = problem_.factors[static_cast<std::size_t>(k)];
            flops += 2.0 * weight * elements * terms_of(f);
            elements =
                f.p_extent == 0 ? 0 : elements / static_cast<double>(f.p_extent) * static_cast<double>(f.q_extent);
        }
        moved += elements;
        return (std::max)(flops / rates_.flops_per_second,
                          moved * element_bytes(problem_.type) / rates_.bytes_per_second) +
               rates_.launch_seconds;
    }
    /// The distribution of the result that a candidate leaves.
    [[nodiscard]] distribution result_of(const distribution_candidate& c) const {
        return problem_.result_is_fixed ? problem_.result : c.layouts.back().with(after_);
    }

private:
    /// Multiply-adds for each element of what the factor is applied to.
    [[nodiscard]] static double terms_of(const distributed_factor& f) noexcept {
        if (f.structure == factor_kind::sparse) {
            return static_cast<double>(f.stored) / static_cast<double>((std::max)(f.p_extent, std::int64_t{1}));
        }
        return f.diagonal ? 1.0 : f.structure == factor_kind::permutation ? 0.0 : static_cast<double>(f.q_extent);
    }
    [[nodiscard]] layout_choice recognised(const distribution& p, const std::vector<std::int64_t>& extents) const {
        return {p, cut_mode_of(p, rows_, extents, problem_.ranks)};
    }

    OTIMES_COLD std::vector<layout_choice> candidates(const layout_choice& start) const {
        std::vector<layout_choice> result;
        const auto add = [&](const layout_choice& c) {
            if (std::ranges::find(result, c) == result.end()) {
                result.push_back(c);
            }
        };
        std::vector<distribution> grids{start.exact};
        if (problem_.result_is_fixed) {
            grids.push_back(problem_.result);
        }
        grids.push_back({.col_parts = problem_.ranks});
        for (const distribution& grid : grids) {
            if (grid.col_parts > 1) {
                for (std::size_t k = 0; k < before_.size(); ++k) {
                    distribution plain{.row_parts = grid.row_parts, .col_parts = grid.col_parts};
                    plain.first_rank = grid.first_rank;
                    if (start.mode == static_cast<std::int32_t>(k) && grid == start.exact) {
                        add(start);
                    } else {
                        add({plain, static_cast<std::int32_t>(k)});
                    }
                }
            } else {
                add({grid, -1});
            }
        }
        add({cut_rows(problem_.ranks), -1});
        return result;
    }

    /// Gives every factor its stage. False where one fits nowhere.
    OTIMES_COLD bool assign(distribution_candidate& c) const {
        c.factors.assign(c.layouts.size(), {});
        for (std::size_t k = 0; k < before_.size(); ++k) {
            if (problem_.factors[k].identity) {
                continue;
            }
            std::size_t chosen = c.layouts.size();
            for (std::size_t i = 0; i < c.layouts.size(); ++i) {
                const bool whole = c.layouts[i].mode != static_cast<std::int32_t>(k) || problem_.factors[k].diagonal;
                if (!whole || c.layouts[i].mode == -2) {
                    continue;
                }
                if (chosen == c.layouts.size() || after_[k] > before_[k]) {
                    chosen = i;
                }
            }
            if (chosen == c.layouts.size()) {
                return false;
            }
            c.factors[chosen].push_back(static_cast<std::int32_t>(k));
        }
        return true;
    }

    OTIMES_COLD void price(distribution_candidate& c) const {
        std::vector<std::int64_t> extents = before_;
        const auto bytes = static_cast<std::int64_t>(element_bytes(problem_.type));
        for (std::size_t i = 0; i < c.layouts.size(); ++i) {
            if (i > 0) {
                const distribution from = c.layouts[i - 1].with(extents);
                const distribution to = c.layouts[i].with(extents);
                const moved_elements moved = count_moved(from, to, rows_, product_of(extents), problem_.ranks);
                c.total_moved += moved.total;
                ++c.exchanges;
                c.seconds += exchange_seconds(net_, moved, bytes, from, to, problem_.ranks);
            }
            if (!c.factors[i].empty()) {
                c.seconds += local_seconds(c.layouts[i].with(extents), c.factors[i], extents);
            }
            for (const std::int32_t k : c.factors[i]) {
                extents[static_cast<std::size_t>(k)] = after_[static_cast<std::size_t>(k)];
            }
        }
    }

    /// Less time; at equal time fewer exchanges, then fewer elements moved. Earlier candidates win ties.
    static bool better(const distribution_candidate& a, const distribution_candidate& b) {
        const double close = 1e-9 * (std::max)(a.seconds, b.seconds);
        if (a.seconds < b.seconds - close || b.seconds < a.seconds - close) {
            return a.seconds < b.seconds;
        }
        return a.exchanges != b.exchanges ? a.exchanges < b.exchanges : a.total_moved < b.total_moved;
    }

    const distributed_problem& problem_;
    const interconnect& net_;
    distribution_rates rates_;
    std::int64_t rows_;
    std::vector<std::int64_t> before_;
    std::vector<std::int64_t> after_;
};

}  // namespace planning

}  // namespace otimes

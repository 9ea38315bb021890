// SPDX-License-Identifier: MIT
/// @file shared_terms.hpp
/// Sums of krons on a GPU whose terms share factors: which products are computed once, in which tile, and the kernels that do it.
/// X goes through memory once for all terms; what they have in common is computed once, partial results that continue alike are added first.
///
/// When all modes fit one pass, one kernel does the sum (fused_terms). Else the first pass leaves one partial sum for each of
/// at most two factors of the outermost mode, and the second pass reads both (fused_outer with two inputs).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// A sum of products of one X with factors of the modes 1 to n: `factors[t][l - 1]` says which one term t has on level l (equal numbers: the same
/// factor of the same level), `outputs[t]` where its product goes.
struct sum_of_terms {
    std::vector<std::vector<std::int32_t>> factors;
    std::vector<std::int32_t> outputs;
};

/// The moves that compute a sum, the innermost mode first. At every mode either each different prefix stays apart, or terms that continue alike
/// are added, whichever leaves fewer partial results. A product overwrites its input where nothing else reads that.
OTIMES_ON_DEMAND class moves_of_sum {
public:
    OTIMES_COLD explicit moves_of_sum(const sum_of_terms& sum) : tile_of_{0}, used_{true} {
        struct strand {
            std::size_t value = 0;
            std::size_t term = 0;
            bool scaled = false;
        };
        std::vector<strand> strands;
        for (std::size_t t = 0; t < sum.factors.size(); ++t) {
            strands.push_back({0, t, false});
        }
        const auto first = [](const auto& items, const auto& equal) {
            std::size_t i = 0;
            while (i < items.size() && !equal(items[i])) {
                ++i;
            }
            return i;
        };
        for (std::size_t level = sum.factors.front().size(); level >= 1; --level) {
            const auto factor_of = [&](const strand& s) { return sum.factors[s.term][level - 1]; };
            std::vector<strand> prefixes;
            std::vector<strand> suffixes;
            std::vector<std::size_t> prefix_of;
            std::vector<std::size_t> suffix_of;
            for (const strand& s : strands) {
                const auto same_prefix = [&](const strand& o) {
                    return o.value == s.value && factor_of(o) == factor_of(s);
                };
                const auto same_suffix = [&](const strand& o) {
                    return sum.outputs[o.term] == sum.outputs[s.term] &&
                           std::equal(sum.factors[o.term].begin(),
                                      sum.factors[o.term].begin() + static_cast<std::ptrdiff_t>(level - 1),
                                      sum.factors[s.term].begin());
                };
                prefix_of.push_back(first(prefixes, same_prefix));
                if (prefix_of.back() == prefixes.size()) {
                    prefixes.push_back(s);
                }
                suffix_of.push_back(first(suffixes, same_suffix));
                if (suffix_of.back() == suffixes.size()) {
                    suffixes.push_back(s);
                }
            }
            const bool keeps = level > 1 && prefixes.size() <= suffixes.size();
            std::vector<strand>& next = keeps ? prefixes : suffixes;
            std::vector<contribution> wanted;
            const std::size_t begin = tile_of_.size();
            tile_of_.resize(begin + next.size(), -1);
            for (std::size_t k = 0; k < strands.size(); ++k) {
                const strand& s = strands[k];
                const std::size_t to = begin + (keeps ? prefix_of[k] : suffix_of[k]);
                if (keeps) {
                    if (std::ranges::find(wanted, to, &contribution::to) == wanted.end()) {
                        wanted.push_back({s.value, factor_of(s), to, -1, sum.outputs[s.term]});
                    }
                } else {
                    wanted.push_back({s.value, factor_of(s), to, s.scaled ? -1 : static_cast<std::int32_t>(s.term),
                                      sum.outputs[s.term]});
                }
            }
            std::vector<strand> advanced;
            if (keeps) {
                for (std::size_t k = 0; k < strands.size(); ++k) {
                    advanced.push_back({begin + prefix_of[k], strands[k].term, strands[k].scaled});
                }
            } else {
                for (std::size_t k = 0; k < suffixes.size(); ++k) {
                    advanced.push_back({begin + k, suffixes[k].term, true});
                }
            }
            strands = std::move(advanced);
            schedule(std::move(wanted), static_cast<std::int32_t>(level));
        }
    }

    [[nodiscard]] const std::vector<gpu_move>& moves() const { return moves_; }

private:
    /// One product that is added to value `to`.
    struct contribution {
        std::size_t from = 0;
        std::int32_t factor = 0;
        std::size_t to = 0;
        std::int32_t term = -1;
        std::int32_t output = 0;
    };

    std::int32_t take() {
        std::size_t i = 0;
        while (i < used_.size() && used_[i]) {
            ++i;
        }
        if (i == used_.size()) {
            used_.push_back(false);
        }
        used_[i] = true;
        return static_cast<std::int32_t>(i);
    }

    /// The products of one level in an order that takes few tiles: first what is added to something that stands already, then what takes the
    /// place of its input.
    OTIMES_COLD void schedule(std::vector<contribution> wanted, std::int32_t level) {
        while (!wanted.empty()) {
            const auto rank = [&](const contribution& c) {
                const bool placed = tile_of_[c.to] >= 0;
                const bool last_use = std::ranges::count(wanted, c.from, &contribution::from) == 1;
                const bool direct = level == 1 && std::ranges::count(wanted, c.to, &contribution::to) == 1;
                return placed ? 0 : last_use ? 1 : direct ? 2 : 3;
            };
            const auto at = std::ranges::min_element(wanted, {}, rank);
            const contribution c = *at;
            wanted.erase(at);
            const bool read_again = std::ranges::find(wanted, c.from, &contribution::from) != wanted.end();
            const bool more_to_come = std::ranges::find(wanted, c.to, &contribution::to) != wanted.end();
            const std::int32_t from = tile_of_[c.from];
            const std::int32_t sum = tile_of_[c.to];
            if (level == 1 && !more_to_come) {
                moves_.push_back({from, -1 - c.output, level, c.factor, sum, c.term});
                if (sum >= 0) {
                    used_[static_cast<std::size_t>(sum)] = false;
                }
            } else {
                if (sum < 0) {
                    tile_of_[c.to] = read_again ? take() : from;
                }
                moves_.push_back({from, tile_of_[c.to], level, c.factor, sum, c.term});
                if (sum < 0 && !read_again) {
                    continue;  // in place
                }
            }
            if (!read_again) {
                used_[static_cast<std::size_t>(from)] = false;
            }
        }
    }

    std::vector<std::int32_t> tile_of_;  ///< of each value; -1: not yet
    std::vector<bool> used_;             ///< tiles
    std::vector<gpu_move> moves_;
};

/// The group of fused_terms for a sum over `groups` trailing tensors [p..]; nothing where it does not fit, or would hold fibres that are too long.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> shared_terms_group(
    dtype type, const std::vector<std::int64_t>& p, const std::vector<gpu_move>& moves, std::int64_t groups,
    std::int64_t parts_per_line, bool may_use_unit, const gpu_description& gpu) {
    group_request r;
    r.type = type;
    r.p = r.q = p;
    gpu_group g = without_tile(r);
    g.moves = moves;
    if (is_complex(type) || p.size() < 2) {
        return std::nullopt;
    }
    const std::int64_t words = group_memory::words_of(type);
    const std::int64_t tile = trips_of_one_mode(g, may_use_unit, gpu);
    if (tile == 0) {
        return std::nullopt;
    }
    const bool by_unit = std::ranges::any_of(g.tile.trips, &gpu_trip::matrix);
    const auto may_double = [&] {
        return groups / (2 * g.tile.rows) >= 2 * (std::max)(1, gpu.multiprocessors) &&
               (parts_per_line == 1 || parts_per_line % (2 * g.tile.rows) == 0);
    };
    while (tile * g.tile.rows * 2 * words <= 4096 && may_double()) {
        g.tile.rows *= 2;
    }
    const auto fits = [&](std::int64_t blocks) {
        return shared_bytes_of(g) <= gpu.shared_bytes_per_block &&
               blocks * (shared_bytes_of(g) + 1024) <= gpu.shared_bytes_per_multiprocessor;
    };
    // One block alone: as much work between two barriers as there is room for.
    if (!fits(2) && tile * g.tile.rows * 2 * words <= 8192 && may_double()) {
        g.tile.rows *= 2;
        if (!fits(1)) {
            g.tile.rows /= 2;
        }
    }
    g.tile.threads =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(tile * g.tile.rows * words / 32 / 32 * 32, 64, 256));
    choose_units(g, tile, gpu);
    // The next tile arrives during this one: 2 % gained by multiply-adds, 10 % lost beside a third block of the unit's warps.
    g.tile.slots = by_unit ? 0 : 1;
    g.tile.slots = fits(2) ? g.tile.slots : 0;
    const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(g) + 1024);
    const std::int64_t by_registers =
        gpu.registers_per_multiprocessor / (g.tile.threads * (by_unit && p.back() >= 32 ? 168ll
                                                              : by_unit                 ? 128ll
                                                                                        : 96ll));
    g.tile.blocks = static_cast<std::int32_t>(std::clamp<std::int64_t>((std::min)(by_memory, by_registers), 1, 16));
    return why_illegal(g, gpu).empty() ? std::optional(g) : std::nullopt;
}

/// The group that replaces one outer mode of extent p of two matrices and adds the products.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> two_inputs_group(const group_request& one,
                                                                              const gpu_description& gpu) {
    group_request r = one;
    r.p = {2 * one.p.front()};
    const std::optional<chosen_group> chosen = choose_group(r, gpu);
    if (!chosen) {
        return std::nullopt;
    }
    gpu_group g = chosen->group;
    g.inputs = 2;
    return why_illegal(g, gpu).empty() ? std::optional(g) : std::nullopt;
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file distributed_plan.hpp
/// How `Y (+)= alpha * X * kron(F1, ..., FN)` is evaluated by several ranks that hold parts of X and Y: which factors are
/// applied before, between and after which exchanges. A value like plan.hpp's plan; every rank runs the same one.
///
/// A factor can be applied where its mode is whole on every rank. So a row distribution needs no exchange at all; columns cut
/// along mode a are multiplied by all factors but F_a, then cut along another mode by one all-to-all, then multiplied by F_a:
///
///     X cut along mode 1        after F2, F3             one all-to-all           after F1: Y cut along mode 2
///     rank 0 | rank 1   -->     rank 0 | rank 1   -->    mode 1 whole     -->     rank 0 | rank 1
///
/// The planner walks over short sequences of distributions (that of X, up to two others, that of Y if it is asked for) and takes
/// the cheapest. A factor that shrinks its mode is applied as early as the sequence allows, one that grows it as late.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <otimes/plan/cost.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/ordering.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/plan_text.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

/// One factor as every rank has it.
struct distributed_factor {
    dtype type = dtype::f64;
    std::int64_t p_extent = 1;  ///< rows: what it takes from X
    std::int64_t q_extent = 1;  ///< columns: what it gives to Y
    std::int64_t row_stride = 1;
    std::int64_t col_stride = 1;
    bool conjugate = false;
    bool identity = false;
    memory_space space = memory_space::host;
    bool diagonal = false;  ///< element p at p * (row_stride + col_stride); its mode may be cut where it is applied
    friend bool operator==(const distributed_factor&, const distributed_factor&) = default;
};

/// What is asked for: all ranks must ask for the same.
struct distributed_problem {
    dtype type = dtype::f64;  ///< of X and Y
    memory_space space = memory_space::host;
    std::int32_t ranks = 1;
    std::int64_t rows = 0;
    std::vector<distributed_factor> factors;
    bool add = false;
    bool result_is_fixed = false;  ///< Y has the distribution `result`; otherwise the planner chooses
    distribution operand;
    distribution result;
    options wishes;

    friend bool operator==(const distributed_problem&, const distributed_problem&) = default;
};

/// How ranks reach each other: rates are one way, for one rank that sends to all others at once.
struct interconnect {
    double bytes_per_second = 10e9;       ///< between ranks of one host
    double network_bytes_per_second = 0;  ///< between hosts; 0: there is one host
    std::int32_t ranks_per_host = 0;      ///< 0: all
    double exchange_seconds = 20e-6;      ///< fixed cost of an exchange
    /// Parts into which the rows, or else the cut mode of a local stage and the exchange after it, are cut, so that a part is sent
    /// while the next is computed. Of each part a rank sends at least `least_chunk_bytes`: less does not go on beside work.
    std::int32_t chunks = 1;
    std::int64_t least_chunk_bytes = 16 << 20;
    bool packs = true;  ///< short runs are copied into one message; false: all ranks reach each other's memory
    /// Where they do: the last pass of a local stage may store straight into the memory of the ranks that take its output next.
    bool stores = true;
    double store_bytes_per_second = 0;  ///< at which a pass does so; 0: as an exchange
    friend bool operator==(const interconnect&, const interconnect&) = default;
};

/// store: a local stage of one pass and the exchange after it at once: the pass stores into the memory of the ranks that take its
/// output. Where an executor cannot, the pass stores a block, which is then moved.
enum class stage_kind : std::uint8_t { local, exchange, store };

/// One stage: steps on each rank's own block, or a change of distribution, or one pass that does both.
struct distributed_stage {
    stage_kind kind = stage_kind::local;
    /// Extents of the columns' modes before the stage.
    std::vector<std::int64_t> extents;

    /// @name local, store
    /// @{
    std::vector<std::int32_t> factors;  ///< which are applied, from 0; none: a copy or a sum
    distribution where;                 ///< of input and (local) output
    std::int32_t mode = -1;             ///< that `where` cuts; -1: none, -2: flat ranges that follow no mode
    bool scaled = false;                ///< by alpha
    bool add = false;                   ///< to Y
    std::int32_t chunks = 1;            ///< ranges of the cut mode that are computed, and sent, one after another
    std::vector<plan> plans;            ///< one for each shape of block
    /// [rank * chunks + chunk]: index into `plans`; -1: nothing to do
    std::vector<std::int32_t> plan_of_rank;
    std::int32_t receiver_mode = -1;  ///< store: that `to` cuts; before the factors
    /// @}

    /// @name exchange, store
    /// @{
    distribution from;
    distribution to;
    moved_elements moved;
    /// @}
    double predicted_seconds = 0;

    friend bool operator==(const distributed_stage&, const distributed_stage&) = default;
};

/// See the file comment.
struct distributed_plan {
    distributed_problem source;
    std::vector<distributed_stage> stages;
    distribution result;                        ///< of Y
    std::int64_t bytes_on_wire = 0;             ///< sent by all ranks together in all exchanges; exact
    std::int64_t most_bytes_sent = 0;           ///< by one rank, in all exchanges
    std::vector<std::int64_t> buffer_elements;  ///< for each rank: elements of each of its intermediate buffers
    /// The most that a rank takes beside X, Y and the factors: intermediates, packed messages, the workspace of its steps.
    std::int64_t workspace_bytes = 0;
    double predicted_seconds = 0;
    /// Where `workspace_limit_bytes` asks for it, or to hide exchanges, the rows are done in slabs: `slab_rows` rows of each part of
    /// rows at a time, by slabs[0], the last ones by slabs[1] where they are fewer. Then there are no `stages`.
    std::int64_t slab_rows = 0;
    std::int64_t slab_count = 1;
    bool overlapped = false;  ///< two slabs by turns: one's exchange goes on while the other is computed
    std::vector<distributed_plan> slabs;
    std::vector<rejected_candidate> rejected;
    std::vector<std::string> notes;

    friend bool operator==(const distributed_plan&, const distributed_plan&) = default;
};

namespace planning {

OTIMES_COLD inline std::int64_t product_of(const std::vector<std::int64_t>& extents) {
    std::int64_t product = 1;
    for (const std::int64_t e : extents) {
        product *= e;  // no overflow: the problem was checked
    }
    return product;
}

/// The mode along which a distribution cuts columns with these extents: -1 where the columns are whole, -2 where the cut does not
/// follow a mode.
OTIMES_COLD inline std::int32_t cut_mode_of(const distribution& p, std::int64_t rows,
                                            const std::vector<std::int64_t>& extents, std::int32_t ranks) {
    if (p.col_parts == 1) {
        return -1;
    }
    const std::int64_t cols = product_of(extents);
    for (std::size_t k = 0; k < extents.size(); ++k) {
        distribution along = cut_mode(p.row_parts, p.col_parts, extents, k);
        along.first_rank = p.first_rank;
        if (along == p || same_blocks(along, p, rows, cols, ranks)) {
            return static_cast<std::int32_t>(k);
        }
    }
    return -2;
}

/// What ends where: a distribution by its grid and its mode, so that it keeps its meaning while extents change.
struct layout_choice {
    distribution exact;      ///< as given, for mode -2 (and for the grid)
    std::int32_t mode = -1;  ///< as cut_mode_of
    friend bool operator==(const layout_choice&, const layout_choice&) = default;

    [[nodiscard]] distribution with(const std::vector<std::int64_t>& extents) const {
        if (mode == -1) {  // whole columns: how they are numbered says nothing
            return {.row_parts = exact.row_parts, .first_rank = exact.first_rank};
        }
        if (mode < 0) {
            return exact;
        }
        distribution p = cut_mode(exact.row_parts, exact.col_parts, extents, static_cast<std::size_t>(mode));
        p.first_rank = exact.first_rank;
        return p;
    }
};

/// The local program of a stage for a block of `rows` rows whose columns have these extents (the cut mode's is the rank's own):
/// in (binding 0), the stage's factors, out (last binding). Blocks are row-major and contiguous, but for one mode of which in, or
/// out, has more indices in memory.
struct extent_in_memory {
    std::int32_t mode = -1;
    std::int64_t extent = 0;
};
OTIMES_COLD inline program local_program(const distributed_problem& problem, const std::vector<std::int32_t>& factors,
                                         std::int64_t rows, std::vector<std::int64_t> extents, bool scaled, bool add,
                                         extent_in_memory in_memory, extent_in_memory out_memory) {
    program p;
    std::int32_t bindings = 0;
    const auto make = [&](dtype type, tensor_role role, memory_space space) {
        tensor t;
        t.type = type;
        t.role = role;
        t.space = space;
        t.scalar_bytes = static_cast<std::uint16_t>(element_bytes(type));
        t.alignment_log2 = static_cast<std::uint8_t>(element_bytes(type) == 2 ? 1 : element_bytes(type) == 4 ? 2 : 3);
        if (type == dtype::c64) {
            t.alignment_log2 = 2;
        }
        return p.add_tensor(t);
    };
    const auto add_block = [&](tensor_role role) {
        const extent_in_memory& wider = role == tensor_role::input ? in_memory : out_memory;
        const std::int32_t id = make(problem.type, role, problem.space);
        if (role == tensor_role::temporary) {
            p.add_mode(rows, 0);
            for (const std::int64_t e : extents) {
                p.add_mode(e, 0);
            }
            return id;
        }
        std::vector<std::int64_t> steps(extents.size(), 1);
        std::int64_t stride = 1;
        for (std::size_t k = extents.size(); k-- > 0;) {
            steps[k] = stride;
            stride *= static_cast<std::int32_t>(k) == wider.mode ? wider.extent : extents[k];
        }
        p.add_mode(rows, stride);
        for (std::size_t k = 0; k < extents.size(); ++k) {
            p.add_mode(extents[k], steps[k]);
        }
        p.tensors.back().binding = bindings++;
        return id;
    };
    std::int32_t current = add_block(tensor_role::input);
    for (std::size_t i = 0; i < factors.size(); ++i) {
        const auto k = static_cast<std::size_t>(factors[i]);
        const distributed_factor& f = problem.factors[k];
        const std::int32_t matrix = make(f.type, tensor_role::factor, f.space);
        p.tensors.back().conjugate = f.conjugate;
        if (f.diagonal) {
            p.tensors.back().kind = factor_kind::diagonal;
            p.add_mode(rows, 0);
            for (std::size_t mode = 0; mode < extents.size(); ++mode) {
                p.add_mode(extents[mode], mode == k ? f.row_stride + f.col_stride : 0);
            }
        } else {
            p.add_mode(f.p_extent, f.row_stride);
            p.add_mode(f.q_extent, f.col_stride);
            extents[k] = f.q_extent;
        }
        p.tensors.back().binding = bindings++;
        const bool last = i + 1 == factors.size();
        const std::int32_t out = add_block(last ? tensor_role::output : tensor_role::temporary);
        step s;
        s.kind = f.diagonal ? step_kind::scale : step_kind::contract;
        s.in = current;
        s.factor = matrix;
        s.out = out;
        s.mode = static_cast<std::int32_t>(k) + 1;
        p.steps.push_back(s);
        current = out;
    }
    if (factors.empty()) {
        step s;
        s.kind = step_kind::accumulate;
        s.in = current;
        s.out = add_block(tensor_role::output);
        p.steps.push_back(s);
    }
    p.steps.back().add = add;
    if (scaled) {
        p.steps.back().scalar = p.scalar_count++;
    }
    return p;
}

/// The extents of a rank's block: the cut mode's is the rank's own.
OTIMES_COLD inline std::vector<std::int64_t> local_extents(std::vector<std::int64_t> extents, const distribution& where,
                                                           std::int32_t mode, std::int32_t rank) {
    const std::int32_t part = rank - where.first_rank;
    if (mode >= 0) {
        std::int64_t& cut = extents[static_cast<std::size_t>(mode)];
        cut = part_of(cut, where.col_parts, part % where.col_parts).size();
    }
    return extents;
}

/// Rates of one rank, and of the exchange.
struct distribution_rates {
    double flops_per_second = 1;
    double bytes_per_second = 1;
    double launch_seconds = 0;
};

OTIMES_COLD inline distribution_rates rates_of(const machine& where, const distributed_problem& problem) {
    distribution_rates r;
    if (problem.space == memory_space::device && !where.gpus.empty()) {
        const gpu_description& gpu = where.gpus.front();
        r.flops_per_second = rate_of(gpu, problem.type, problem.wishes.precision, 8, 8).flops_per_second;
        r.bytes_per_second = gpu.memory_bytes_per_second;
        r.launch_seconds = gpu.launch_seconds;
    } else {
        const double threads = (std::max)(1, where.cpu.threads);
        r.flops_per_second = peak_flops(where.cpu, problem.type) * threads;
        r.bytes_per_second = where.cpu.memory_bytes_per_second;
        r.launch_seconds = where.cpu.dispatch_seconds;
    }
    r.flops_per_second = (std::max)(r.flops_per_second, 1.0);
    r.bytes_per_second = (std::max)(r.bytes_per_second, 1.0);
    return r;
}

OTIMES_COLD inline double exchange_seconds(const interconnect& net, const moved_elements& moved, std::int64_t bytes,
                                           std::int32_t ranks) {
    const auto most = static_cast<double>((std::max)(moved.most_sent, moved.most_received) * bytes);
    if (most == 0) {
        return 0;
    }
    double seconds = most / net.bytes_per_second;
    if (net.network_bytes_per_second > 0 && net.ranks_per_host > 0 && ranks > net.ranks_per_host) {
        const double outside =
            static_cast<double>(ranks - net.ranks_per_host) / static_cast<double>((std::max)(1, ranks - 1));
        seconds = (std::max)(seconds * (1 - outside), most * outside / net.network_bytes_per_second);
    }
    return seconds + net.exchange_seconds;
}

/// A sequence of distributions with the factors that are applied under each.
struct distribution_candidate {
    std::vector<layout_choice> layouts;
    std::vector<std::vector<std::int32_t>> factors;  ///< one list for each layout
    double seconds = 0;
    std::int64_t total_moved = 0;
    std::int32_t exchanges = 0;
};

/// Searches the sequences of distributions. Small: N modes give about N^2 sequences of a few stages.
class distribution_search {
public:
    distribution_search(const distributed_problem& problem, const machine& where, const interconnect& net)
        : problem_(problem), net_(net), rates_(rates_of(where, problem)) {
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
            elements = (std::max)(elements, static_cast<double>(block_of(where, problem_.rows, cols, rank).elements()));
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
            flops += 2.0 * weight * elements * (f.diagonal ? 1.0 : static_cast<double>(f.q_extent));
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
    [[nodiscard]] layout_choice recognised(const distribution& p, const std::vector<std::int64_t>& extents) const {
        return {p, cut_mode_of(p, problem_.rows, extents, problem_.ranks)};
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
                const moved_elements moved = count_moved(from, to, problem_.rows, product_of(extents), problem_.ranks);
                c.total_moved += moved.total;
                ++c.exchanges;
                c.seconds += exchange_seconds(net_, moved, bytes, problem_.ranks);
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
    std::vector<std::int64_t> before_;
    std::vector<std::int64_t> after_;
};

/// @throws shape_error extents or an intermediate that do not fit in 63 bits, or a distribution that does not fit.
OTIMES_COLD inline void check_problem(const distributed_problem& problem) {
    std::int64_t before = 1;
    std::int64_t after = 1;
    std::int64_t largest = (std::max)(problem.rows, std::int64_t{1});
    bool fits = problem.rows >= 0;
    for (const distributed_factor& f : problem.factors) {
        fits = fits && checked_multiply(before, f.p_extent, before) && checked_multiply(after, f.q_extent, after) &&
               checked_multiply(largest, (std::max)({f.p_extent, f.q_extent, std::int64_t{1}}), largest);
    }
    fits = fits && checked_multiply(largest, 16, largest);
    if (!fits) {
        throw shape_error("otimes: a distributed product of " + std::to_string(problem.rows) + " rows and " +
                          std::to_string(problem.factors.size()) +
                          " factors: an operand or an intermediate has more than 2^63 - 1 bytes.");
    }
    require_fits(problem.operand, before, problem.ranks);
    if (problem.result_is_fixed) {
        require_fits(problem.result, after, problem.ranks);
    }
}

/// How many intermediate buffers the stages take turns in: three, so that while chunks of a stage arrive in one, later chunks
/// still read another and write a third.
inline constexpr std::size_t most_intermediates = 3;
/// Slabs that are done by turns, each with intermediates of its own.
inline constexpr std::size_t most_slabs_on_their_way = 2;
/// What a GPU takes to begin a pass of which it has done another part before: its blocks read and split the factors again. Measured on H200:
/// 9 to 12 us for factors of 128.
inline constexpr double restart_seconds = 9e-6;
/// Ranks that a pass stores into at most: kernels/fused_scattered.cuh.
inline constexpr std::int32_t most_receivers = 16;
/// Packed messages to different ranks begin at multiples of this.
inline constexpr std::int64_t packing_alignment = 256;

/// What a rank holds beside X, Y, the factors and the workspace of its steps, at most: bytes.
struct held_between {
    std::int64_t buffers = 0;  ///< intermediates
    std::int64_t each = 0;
    std::int64_t packed = 0;
    std::int64_t unpacked = 0;

    [[nodiscard]] std::int64_t total() const noexcept { return buffers * each + packed + unpacked; }
    /// Of two plans that run one after another: memory is used again.
    void join(const held_between& other) noexcept {
        buffers = (std::max)(buffers, other.buffers);
        each = (std::max)(each, other.each);
        packed = (std::max)(packed, other.packed);
        unpacked = (std::max)(unpacked, other.unpacked);
    }
};

OTIMES_COLD inline held_between held_by(const distributed_plan& p, const interconnect& net) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    held_between held;
    // A store may have to be done in two steps, with its block between them.
    const std::size_t moved_blocks = std::ranges::count(p.stages, stage_kind::store, &distributed_stage::kind) > 0;
    held.buffers = static_cast<std::int64_t>(
        (std::min)(most_intermediates, p.stages.empty() ? std::size_t{0} : p.stages.size() - 1 + moved_blocks));
    for (const std::int64_t elements : p.buffer_elements) {
        held.each = (std::max)(held.each, elements * bytes);
    }
    for (const distributed_stage& s : p.stages) {
        if (net.packs && s.moved.total > 0) {
            const std::int64_t gaps = packing_alignment * p.source.ranks;
            held.packed = (std::max)(held.packed, s.moved.most_sent * bytes + gaps);
            held.unpacked = (std::max)(held.unpacked, s.moved.most_received * bytes + gaps);
        }
    }
    return held;
}

/// The extents of the columns' modes behind a stage.
OTIMES_COLD inline std::vector<std::int64_t> extents_after(const distributed_problem& problem,
                                                           const distributed_stage& stage) {
    std::vector<std::int64_t> after = stage.extents;
    for (const std::int32_t k : stage.factors) {
        after[static_cast<std::size_t>(k)] = problem.factors[static_cast<std::size_t>(k)].q_extent;
    }
    return after;
}

/// As many chunks of a local stage as leave each part of the exchange behind it its least size.
OTIMES_COLD inline std::int32_t chunks_of(const distributed_stage& local, const distributed_stage& exchange,
                                          std::int64_t bytes, const interconnect& net) {
    const std::int64_t extent = local.extents[static_cast<std::size_t>(local.mode)] / local.where.col_parts;
    const std::int64_t fit =
        (std::min)(exchange.moved.most_sent * bytes / (std::max)(net.least_chunk_bytes, std::int64_t{1}), extent);
    return static_cast<std::int32_t>(
        std::clamp(fit, std::int64_t{1}, static_cast<std::int64_t>((std::max)(1, net.chunks))));
}

/// How the output of a store on `rank` is divided among the ranks of its part of rows, in their order. @pre the rank has a block
OTIMES_COLD inline scatter_shape scatter_of(const distributed_stage& stage, const distributed_problem& problem,
                                            std::int32_t rank) {
    const std::int32_t parts = stage.where.col_parts;
    const std::int32_t part = (rank - stage.where.first_rank) % parts;
    const std::vector<std::int64_t> after = extents_after(problem, stage);
    const auto cut = static_cast<std::size_t>(stage.mode);
    const auto taken = static_cast<std::size_t>(stage.receiver_mode);
    const index_range own = part_of(after[cut], parts, part);
    scatter_shape to;
    to.cuts_inner = cut < taken;
    to.outer = to.cuts_inner ? own.size() : after[taken];
    to.inner = to.cuts_inner ? after[taken] : own.size();
    const auto [first, last] = std::minmax(cut, taken);
    for (std::size_t k = first + 1; k < after.size(); ++k) {
        (k < last ? to.between : to.below) *= k == last ? 1 : after[k];
    }
    to.whole = after[cut];
    to.whole_first = own.begin;
    to.first.clear();
    for (std::int32_t receiver = 0; receiver < parts; ++receiver) {
        to.first.push_back(part_of(after[taken], parts, receiver).begin);
    }
    to.first.push_back(after[taken]);
    return to;
}

/// Share of a local stage's time in which it waits for memory.
OTIMES_COLD inline double memory_share(const distributed_stage& local, const distribution_rates& rates) {
    double bytes = 0;
    double seconds = 0;
    for (const plan& p : local.plans) {
        seconds += p.predicted_seconds;
        for (const pass& one : p.passes) {
            bytes += static_cast<double>(one.bytes);
        }
    }
    return seconds == 0 ? 0.5 : (std::min)(bytes / rates.bytes_per_second / seconds, 1.0);
}

/// What an exchange of GPUs costs the work beside which it goes on: what is sent and arrives takes memory from it, as far as it waits for
/// memory, and what stays on a rank is copied by its multiprocessors, unless that is much less than what is sent (backend/nccl).
OTIMES_COLD inline double beside_seconds(const distributed_problem& problem, const distributed_stage& exchange,
                                         double waits_for_memory, const distribution_rates& rates) {
    if (problem.space != memory_space::device) {
        return 0;
    }
    const std::int64_t block =
        block_of(exchange.to, problem.rows, product_of(exchange.extents), exchange.to.first_rank).elements();
    const std::int64_t stays = (std::max)(block - exchange.moved.most_received, std::int64_t{0});
    const double copied = 2 * stays > exchange.moved.most_sent ? 2.0 * static_cast<double>(stays) : 0.0;
    const auto passing = static_cast<double>(exchange.moved.most_sent + exchange.moved.most_received);
    return (copied + waits_for_memory * passing) * element_bytes(problem.type) / rates.bytes_per_second;
}

/// What it takes to begin the passes of so many factors once more.
OTIMES_COLD inline double restarts_of(const distributed_problem& problem, std::size_t factors,
                                      const distribution_rates& rates) {
    return static_cast<double>(factors) *
           (problem.space == memory_space::device ? restart_seconds : rates.launch_seconds);
}

/// What one chunk after another costs beside the exchange that it hides.
OTIMES_COLD inline double chunk_seconds(const distributed_problem& problem, const distributed_stage& local,
                                        const distributed_stage& exchange, std::int32_t chunks,
                                        const distribution_rates& rates) {
    return chunks == 1 ? 0.0
                       : (chunks - 1) * restarts_of(problem, local.factors.size(), rates) +
                             beside_seconds(problem, exchange, memory_share(local, rates), rates);
}

/// True where the last pass of a stage can store what it computes into the receivers' memory. In host memory the stage's output is
/// moved instead.
OTIMES_COLD inline bool one_pass_stores(const distributed_stage& stage, const distributed_problem& problem,
                                        const machine& where, const options& wishes) {
    for (const std::int32_t part : {0, stage.where.col_parts - 1}) {  // a longest and a shortest range
        const std::int32_t rank = stage.where.first_rank + part;
        const std::vector<std::int64_t> own = local_extents(stage.extents, stage.where, stage.mode, rank);
        const std::int64_t rows = part_of(problem.rows, stage.where.row_parts, 0).size();
        if (rows == 0 || product_of(own) == 0) {
            continue;
        }
        const plan one =
            make_plan(local_program(problem, stage.factors, rows, own, false, false, {}, {}), where, wishes);
        const bool can = problem.space == memory_space::device ? scatters(one, scatter_of(stage, problem, rank), where)
                                                               : one.passes.size() == 1;
        if (!can) {
            return false;
        }
    }
    return true;
}

/// Replaces the end of local stages, and the exchanges behind them, by stores where one pass does what is stored.
/// @returns the seconds that stores hide
OTIMES_COLD inline double store_in_last_passes(distributed_plan& p, const machine& where, const interconnect& net,
                                               const distribution_search& search) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    double hidden = 0;
    for (std::size_t i = 0; i + 1 < p.stages.size(); ++i) {
        const distributed_stage& local = p.stages[i];
        const distributed_stage& exchange = p.stages[i + 1];
        if (local.kind != stage_kind::local || exchange.kind != stage_kind::exchange || local.mode < 0) {
            continue;
        }
        const std::int32_t taken = cut_mode_of(exchange.to, p.source.rows, exchange.extents, p.source.ranks);
        const bool same_grid = exchange.to.row_parts == local.where.row_parts &&
                               exchange.to.col_parts == local.where.col_parts &&
                               exchange.to.first_rank == local.where.first_rank;
        if (!net.stores || net.packs || !same_grid || taken < 0 || taken == local.mode || local.scaled ||
            i + 2 == p.stages.size() || local.where.col_parts > most_receivers) {
            continue;
        }
        // What is stored: factors behind both modes, so that a row of the pass goes to one rank; as many as one pass takes.
        distributed_stage store;
        store.kind = stage_kind::store;
        store.mode = local.mode;
        store.receiver_mode = taken;
        store.from = exchange.from;
        store.to = exchange.to;
        store.moved = exchange.moved;
        std::vector<std::int32_t> before;
        for (const std::int32_t k : local.factors) {
            (k <= (std::max)(local.mode, taken) ? before : store.factors).push_back(k);
        }
        options wishes = p.source.wishes;
        wishes.placement = p.source.space == memory_space::device ? placement::gpu : placement::cpu;
        wishes.workspace_limit_bytes = (std::numeric_limits<std::int64_t>::max)();
        for (; !store.factors.empty();
             before.push_back(store.factors.front()), store.factors.erase(store.factors.begin())) {
            store.extents = local.extents;
            for (const std::int32_t k : before) {
                store.extents[static_cast<std::size_t>(k)] = p.source.factors[static_cast<std::size_t>(k)].q_extent;
            }
            store.where = layout_choice{local.where, local.mode}.with(store.extents);
            if (one_pass_stores(store, p.source, where, wishes)) {
                break;
            }
        }
        if (store.factors.empty()) {
            continue;
        }
        const double computed = search.local_seconds(store.where, store.factors, store.extents);
        const double stored = net.store_bytes_per_second > 0
                                  ? static_cast<double>(exchange.moved.most_sent * bytes) / net.store_bytes_per_second
                                  : exchange.predicted_seconds;
        const double by_stores =
            computed + exchange.predicted_seconds - (std::max)(computed, stored) - net.exchange_seconds;
        if (by_stores <= 0) {
            continue;
        }
        store.predicted_seconds = stored + net.exchange_seconds;  // ranks wait for each other
        hidden += by_stores;
        p.stages[i].factors = before;
        p.stages[i + 1] = std::move(store);
        if (before.empty()) {
            p.stages.erase(p.stages.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
    return hidden;
}

/// The stages one after another; where one is done in chunks, the last chunk's part of the exchange (or of the stage) is seen.
OTIMES_COLD inline double seconds_of(const distributed_plan& p, const distribution_rates& rates) {
    double seconds = 0;
    for (std::size_t i = 0; i < p.stages.size(); ++i) {
        const distributed_stage& s = p.stages[i];
        seconds += s.predicted_seconds;
        if (s.kind == stage_kind::exchange && i > 0 && p.stages[i - 1].chunks > 1) {
            const distributed_stage& local = p.stages[i - 1];
            seconds += chunk_seconds(p.source, local, s, local.chunks, rates) -
                       (std::min)(local.predicted_seconds, s.predicted_seconds) * (1 - last_chunk_share(local.chunks));
        }
    }
    return seconds;
}

/// The plan that does all rows at once. @param least receives the least `workspace_limit_bytes` with which it can be run; where
/// that is more than the limit, the plan is not complete
/// @param held what is held already, by plans that run before or after it
OTIMES_COLD inline distributed_plan plan_at_once(const distributed_problem& problem, const machine& where,
                                                 const interconnect& net, bool with_local_plans, std::int64_t& least,
                                                 held_between held = {}) {
    distributed_plan result;
    result.source = problem;
    distribution_search search(problem, where, net);
    std::vector<distribution_candidate> losers;
    const distribution_candidate chosen = search.best(losers);
    result.result = search.result_of(chosen);
    const auto bytes = static_cast<std::int64_t>(element_bytes(problem.type));
    std::vector<std::int64_t> extents = search.extents_before();

    const auto add_local = [&](const layout_choice& layout, const std::vector<std::int32_t>& factors) {
        distributed_stage stage;
        stage.extents = extents;
        stage.factors = factors;
        stage.where = layout.with(extents);
        stage.mode = layout.mode;
        result.stages.push_back(std::move(stage));
    };
    for (std::size_t i = 0; i < chosen.layouts.size(); ++i) {
        if (i > 0) {
            distributed_stage stage;
            stage.kind = stage_kind::exchange;
            stage.extents = extents;
            stage.from = chosen.layouts[i - 1].with(extents);
            stage.to = chosen.layouts[i].with(extents);
            stage.moved = count_moved(stage.from, stage.to, problem.rows, product_of(extents), problem.ranks);
            if (!same_blocks(stage.from, stage.to, problem.rows, product_of(extents), problem.ranks)) {
                stage.predicted_seconds = exchange_seconds(net, stage.moved, bytes, problem.ranks);
                result.bytes_on_wire += stage.moved.total * bytes;
                result.most_bytes_sent += stage.moved.most_sent * bytes;
                result.stages.push_back(std::move(stage));
            }
        }
        if (!chosen.factors[i].empty()) {
            add_local(chosen.layouts[i], chosen.factors[i]);
            for (const std::int32_t k : chosen.factors[i]) {
                extents[static_cast<std::size_t>(k)] = problem.factors[static_cast<std::size_t>(k)].q_extent;
            }
        }
    }
    // Y is added to, or scaled, by a local stage; where no other comes last (first), one that copies is added.
    const bool any_local =
        std::ranges::any_of(result.stages, [](const distributed_stage& s) { return s.kind == stage_kind::local; });
    if (!any_local || (problem.add && result.stages.back().kind == stage_kind::exchange)) {
        add_local(chosen.layouts.back(), {});
    }
    for (std::size_t i = result.stages.size(); i-- > 0;) {
        if (result.stages[i].kind == stage_kind::local) {
            result.stages[i].scaled = true;
            break;
        }
    }
    result.stages.back().add = problem.add;

    const double hidden = store_in_last_passes(result, where, net, search);
    result.buffer_elements.assign(static_cast<std::size_t>(problem.ranks), 0);
    const auto extents_behind = [&problem](const distributed_stage& stage) { return extents_after(problem, stage); };
    const auto behind = [](const distributed_stage& stage, const std::vector<std::int64_t>& after) {
        return stage.kind != stage_kind::local ? stage.to
               : stage.mode >= 0               ? layout_choice{stage.where, stage.mode}.with(after)
                                               : stage.where;
    };
    for (std::size_t i = 0; i + 1 < result.stages.size(); ++i) {
        const std::vector<std::int64_t> after = extents_behind(result.stages[i]);
        const distribution out = behind(result.stages[i], after);
        for (std::int32_t rank = 0; rank < problem.ranks; ++rank) {
            std::int64_t& most = result.buffer_elements[static_cast<std::size_t>(rank)];
            most = (std::max)(most, block_of(out, problem.rows, product_of(after), rank).elements());
            if (result.stages[i].kind ==
                stage_kind::store) {  // where the executor cannot, the block is stored here and moved
                most =
                    (std::max)(most, block_of(result.stages[i].from, problem.rows, product_of(after), rank).elements());
            }
        }
    }
    held.join(held_by(result, net));
    options wishes = problem.wishes;
    wishes.placement = problem.space == memory_space::device ? placement::gpu : placement::cpu;
    if (wishes.workspace_limit_bytes != (std::numeric_limits<std::int64_t>::max)()) {
        wishes.workspace_limit_bytes = (std::max)(wishes.workspace_limit_bytes - held.total(), std::int64_t{0});
    }
    std::int64_t steps_need = 0;  // the least workspace of a local plan that the limit refused
    std::int64_t steps_take = 0;
    const auto planned = [&](distributed_stage& stage, const program& source) {
        for (std::size_t n = 0; n < stage.plans.size(); ++n) {
            if (stage.plans[n].source == source) {
                return static_cast<std::int32_t>(n);
            }
        }
        try {
            stage.plans.push_back(make_plan(source, where, wishes));
        } catch (const budget_error& refused) {
            steps_need = (std::max)(steps_need, refused.least_bytes());
            stage.plans.emplace_back();
            stage.plans.back().source = source;
        }
        steps_take = (std::max)(steps_take, stage.plans.back().workspace_bytes);
        return static_cast<std::int32_t>(stage.plans.size()) - 1;
    };
    for (std::size_t i = 0; i < result.stages.size(); ++i) {
        distributed_stage& stage = result.stages[i];
        const std::vector<std::int64_t> after = extents_behind(stage);
        const bool local = stage.kind != stage_kind::exchange;
        if (stage.kind == stage_kind::local && stage.mode >= 0 && i + 1 < result.stages.size() &&
            result.stages[i + 1].kind == stage_kind::exchange) {
            stage.chunks = chunks_of(stage, result.stages[i + 1], bytes, net);
        }
        const std::int32_t mode = local ? stage.mode : -1;
        const distribution out = stage.kind == stage_kind::store ? stage.from : behind(stage, after);
        for (std::int32_t rank = 0; rank < problem.ranks; ++rank) {
            const held_block block = block_of(out, problem.rows, product_of(after), rank);
            if (!local || !with_local_plans) {
                continue;
            }
            if (block.elements() == 0) {
                stage.plan_of_rank.insert(stage.plan_of_rank.end(), static_cast<std::size_t>(stage.chunks), -1);
                continue;
            }
            std::vector<std::int64_t> own = mode == -2 ? std::vector<std::int64_t>{block.cols.size()}  // a flat copy
                                                       : local_extents(stage.extents, stage.where, mode, rank);
            const std::int64_t whole = mode >= 0 ? own[static_cast<std::size_t>(mode)] : 0;
            for (std::int32_t chunk = 0; chunk < stage.chunks; ++chunk) {
                if (stage.chunks > 1) {
                    own[static_cast<std::size_t>(mode)] = chunk_range(whole, stage.chunks, chunk).size();
                    if (own[static_cast<std::size_t>(mode)] == 0) {
                        stage.plan_of_rank.push_back(-1);
                        continue;
                    }
                }
                stage.plan_of_rank.push_back(
                    planned(stage, local_program(problem, stage.factors, block.rows.size(), own, stage.scaled,
                                                 stage.add, {mode, whole}, {mode, whole})));
            }
        }
        if (local) {
            for (std::size_t first = 0; first < stage.plan_of_rank.size();
                 first += static_cast<std::size_t>(stage.chunks)) {
                double seconds = 0;  // of one rank: its chunks one after another
                for (std::size_t n = first; n < first + static_cast<std::size_t>(stage.chunks); ++n) {
                    const std::int32_t which = stage.plan_of_rank[n];
                    seconds += which < 0 ? 0.0 : stage.plans[static_cast<std::size_t>(which)].predicted_seconds;
                }
                stage.predicted_seconds = (std::max)(stage.predicted_seconds, seconds);
            }
        }
    }
    least = held.total() + steps_need;
    result.workspace_bytes = held.total() + steps_take;
    result.predicted_seconds = with_local_plans ? seconds_of(result, search.rates()) : chosen.seconds - hidden;
    for (const distribution_candidate& loser : losers) {
        result.rejected.push_back({distribution_search::kind_of(loser),
                                   three_digits(loser.seconds / (std::max)(chosen.seconds, 1e-12)) + "x the time, " +
                                       bytes_text(static_cast<double>(loser.total_moved * bytes)) + " on the wire",
                                   loser.seconds});
    }
    return result;
}

/// The same rows in slabs of `slab_rows` rows of each part, one after another or overlapped. X and Y have the same parts of rows
/// on the same ranks.
OTIMES_COLD inline distributed_plan plan_in_slabs(const distributed_problem& problem, const distribution& result_layout,
                                                  std::int64_t slab_rows, bool overlapped, const machine& where,
                                                  const interconnect& net, bool with_local_plans, std::int64_t& least) {
    const std::int32_t parts = problem.operand.row_parts;
    const std::int64_t longest = part_of(problem.rows, parts, 0).size();
    distributed_plan result;
    result.source = problem;
    result.result = result_layout;
    result.slab_rows = slab_rows;
    result.overlapped = overlapped;
    result.slab_count = (longest + slab_rows - 1) / slab_rows;
    distributed_problem slab = problem;
    slab.result_is_fixed = true;
    slab.result = result_layout;
    // The last slab has what is left of each part: one row less in the parts that are shorter.
    const std::int64_t full = slab_rows * parts;
    const std::int64_t last = problem.rows - (result.slab_count - 1) * full;
    std::vector<std::int64_t> kinds;
    if (result.slab_count > 1) {
        kinds.push_back(full);
    }
    if (result.slab_count == 1 || last != full) {
        kinds.push_back(last);
    }
    held_between held;
    for (const std::int64_t rows : kinds) {
        slab.rows = rows;
        std::int64_t ignored = 0;
        held.join(held_by(plan_at_once(slab, where, net, false, ignored), net));
    }
    held.buffers *= overlapped ? static_cast<std::int64_t>(most_slabs_on_their_way) : 1;
    least = 0;
    double seen = 0;  // of a slab whose exchanges, or whose local stages, nothing hides
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        slab.rows = kinds[i];
        std::int64_t needed = 0;
        distributed_plan one = plan_at_once(slab, where, net, with_local_plans, needed, held);
        least = (std::max)(least, needed);
        const std::int64_t count = i == 1 ? 1 : result.slab_count - static_cast<std::int64_t>(kinds.size()) + 1;
        result.bytes_on_wire += count * one.bytes_on_wire;
        result.most_bytes_sent += count * one.most_bytes_sent;
        double exchanges = 0;
        double beside = 0;
        double behind = 0;  // local stages after the last exchange
        const distribution_rates rates = rates_of(where, problem);
        for (std::size_t k = 0; k < one.stages.size(); ++k) {
            const distributed_stage& s = one.stages[k];
            if (s.kind == stage_kind::exchange) {
                exchanges += s.predicted_seconds;
                beside += beside_seconds(slab, s, k > 0 ? memory_share(one.stages[k - 1], rates) : 0.5, rates);
                behind = 0;
            } else {
                behind += s.predicted_seconds;
                beside += restarts_of(problem, s.factors.size(), rates);
            }
        }
        const double local = one.predicted_seconds - exchanges + (overlapped ? beside : 0.0);
        // While the last slab's exchange goes on, the one before it does what is behind its own.
        seen = (std::max)(seen, (std::min)(local, (std::max)(exchanges - behind, 0.0)));
        result.predicted_seconds +=
            static_cast<double>(count) * (overlapped ? (std::max)(local, exchanges) : one.predicted_seconds);
        result.workspace_bytes = (std::max)(result.workspace_bytes, one.workspace_bytes);
        result.slabs.push_back(std::move(one));
    }
    result.predicted_seconds += overlapped ? seen : 0.0;
    return result;
}

/// True where a rank has the same rows of X and of Y.
OTIMES_COLD inline bool same_rows(const distribution& x, const distribution& y) {
    return y.row_parts == x.row_parts && y.col_parts == x.col_parts && y.first_rank == x.first_rank;
}

/// How many slabs of rows hide the exchanges of a plan: as many as `chunks` allows and leave a rank its least bytes to send; 1 where
/// nothing is to be hidden or rows are too few.
OTIMES_COLD inline std::int64_t slabs_that_overlap(const distributed_plan& p, const interconnect& net) {
    const auto bytes = static_cast<std::int64_t>(element_bytes(p.source.type));
    std::int64_t count =
        same_rows(p.source.operand, p.result)
            ? (std::min)(part_of(p.source.rows, p.source.operand.row_parts, 0).size(), std::int64_t{net.chunks})
            : 1;
    bool any = false;
    for (const distributed_stage& s : p.stages) {
        if (s.kind != stage_kind::local && s.moved.total > 0) {
            any = true;
            count = (std::min)(count, s.moved.most_sent * bytes / (std::max)(net.least_chunk_bytes, std::int64_t{1}));
        }
    }
    return any ? (std::max)(count, std::int64_t{1}) : 1;
}

}  // namespace planning

/// Decides how a problem is evaluated by ranks of which each is like `where`. Pure. Cost: milliseconds at most for thousands
/// of ranks. `workspace_limit_bytes` bounds what each rank takes beside X, Y and the factors.
/// @throws shape_error as make_plan
/// @throws budget_error not even one row of each part at a time keeps the limit; or X and Y have their rows on different ranks,
/// so that they cannot be done in slabs. The text names the least that would do.
/// @param with_local_plans false: stages without the plans of their blocks (for cost studies).
OTIMES_COLD inline distributed_plan make_distributed_plan(const distributed_problem& problem, const machine& where,
                                                          const interconnect& net, bool with_local_plans = true) {
    using namespace planning;
    check_problem(problem);
    const std::int64_t limit = problem.wishes.workspace_limit_bytes;
    std::int64_t least = 0;
    distributed_plan result = plan_at_once(problem, where, net, with_local_plans, least);
    if (std::ranges::count(result.stages, stage_kind::store, &distributed_stage::kind) > 0) {
        interconnect exchanges_only = net;
        exchanges_only.stores = false;
        std::int64_t needed = 0;  // a store may take a block more
        distributed_plan other = plan_at_once(problem, where, exchanges_only, with_local_plans, needed);
        if (least > limit || (needed <= limit && other.predicted_seconds < result.predicted_seconds)) {
            result = std::move(other);
            least = needed;
        }
    }
    const distribution& x = problem.operand;
    const std::int64_t longest = part_of(problem.rows, x.row_parts, 0).size();
    if (const std::int64_t count = slabs_that_overlap(result, net); count > 1) {
        interconnect whole_slabs = net;
        whole_slabs.chunks = 1;
        whole_slabs.stores = false;
        std::int64_t needed = 0;
        distributed_plan slabs = plan_in_slabs(problem, result.result, (longest + count - 1) / count, true, where,
                                               whole_slabs, with_local_plans, needed);
        // Chunks of the cut mode are for rows that are too few: where both were measured, slabs were as fast or faster.
        double in_one_piece = with_local_plans ? 0.0 : result.predicted_seconds;
        for (const distributed_stage& s : result.stages) {
            in_one_piece += with_local_plans ? s.predicted_seconds : 0.0;
        }
        if (needed <= limit && (least > limit || slabs.predicted_seconds < in_one_piece)) {
            slabs.rejected = std::move(result.rejected);
            return slabs;
        }
    }
    if (least <= limit) {
        return result;
    }
    distribution y = result.result;
    if (!problem.result_is_fixed && !same_rows(x, y)) {  // as X, with the factors' columns
        std::vector<std::int64_t> before;
        std::vector<std::int64_t> after;
        for (const distributed_factor& f : problem.factors) {
            before.push_back(f.p_extent);
            after.push_back(f.q_extent);
        }
        const std::int32_t mode = cut_mode_of(x, problem.rows, before, problem.ranks);
        y = {.row_parts = x.row_parts, .col_parts = x.col_parts, .first_rank = x.first_rank};
        y = mode >= 0 ? layout_choice{y, mode}.with(after) : y;
    }
    for (std::int64_t rows = longest; same_rows(x, y) && rows > 0; rows = rows > 1 ? (rows + 1) / 2 : 0) {
        std::int64_t needed = 0;
        distributed_plan slabs = plan_in_slabs(problem, y, rows, false, where, net, with_local_plans, needed);
        if (needed <= limit) {
            slabs.notes.push_back("workspace limit: " + bytes_text(static_cast<double>(slabs.workspace_bytes)) +
                                  " a rank instead of " + bytes_text(static_cast<double>(least)));
            return slabs;
        }
        least = (std::min)(least, needed);
    }
    throw budget_error(
        "otimes: the distributed product needs a workspace of at least " + std::to_string(least) +
            " bytes on a rank, but workspace_limit_bytes is " + std::to_string(limit) +
            (same_rows(x, y) ? ". Raise the limit to that or more."
                             : ". Raise the limit to that or more, or give X and Y the same parts of rows, "
                               "which can then be done in slabs."),
        least);
}

/// What FastKron's Algorithm 2 sends for the same product (A. Jangda, M. Yadav: Fast Kronecker matrix-matrix multiplication on
/// GPUs, PPoPP 2024, section 5), in elements, all ranks together: a grid of `row_parts` x `col_parts`, flat ranges of columns;
/// as many sliced multiplications as a range allows, from the last factor on, then every rank keeps 1 / col_parts of its block
/// and sends the rest, until all factors are done.
/// @returns -1 where its columns cannot be cut: it needs col_parts to divide the columns, and ranges that hold a slice.
OTIMES_COLD inline std::int64_t algorithm_2_elements(std::int64_t rows, const std::vector<distributed_factor>& factors,
                                                     std::int32_t col_parts) {
    std::int64_t cols = 1;
    for (const distributed_factor& f : factors) {
        cols *= f.p_extent;
    }
    std::int64_t sent = 0;
    std::size_t left = factors.size();
    while (left > 0) {
        if (col_parts < 1 || cols % col_parts != 0) {
            return -1;
        }
        std::int64_t range = cols / col_parts;
        std::int64_t whole = 1;
        std::size_t done = 0;
        while (left > 0 && whole * factors[left - 1].p_extent <= range) {
            const distributed_factor& f = factors[left - 1];
            whole *= f.p_extent;
            cols = cols / f.p_extent * f.q_extent;
            range = range / f.p_extent * f.q_extent;
            whole = whole / f.p_extent * f.q_extent;
            --left;
            ++done;
        }
        if (done == 0) {
            return -1;
        }
        sent += rows * (cols - cols / col_parts);
    }
    return sent;
}

namespace planning {

template <class Archive>
void transfer(Archive& a, distribution& p) {
    a.line("distribution");
    transfer_all(a, p.row_parts, p.col_parts, p.outer, p.extent, p.inner, p.first_rank);
}

template <class Archive>
void transfer(Archive& a, distributed_problem& p) {
    a.line("problem");
    a.choice(p.type, dtype::other);
    a.choice(p.space, memory_space::device);
    transfer_all(a, p.ranks, p.rows, p.add, p.result_is_fixed);
    a.field(p.wishes.workspace_limit_bytes);
    a.choice(p.wishes.precision, precision::bf16);
    a.choice(p.wishes.placement, placement::gpus);
    transfer_all(a, p.wishes.threads, p.wishes.deterministic);
    transfer(a, p.operand);
    transfer(a, p.result);
    a.line("factors");
    const std::size_t factors = a.count(p.factors);
    for (std::size_t i = 0; i < factors; ++i) {
        distributed_factor& f = p.factors[i];
        a.line("factor");
        a.choice(f.type, dtype::other);
        a.choice(f.space, memory_space::device);
        transfer_all(a, f.p_extent, f.q_extent, f.row_stride, f.col_stride, f.conjugate, f.identity, f.diagonal);
    }
}

template <class Archive>
void transfer(Archive& a, distributed_stage& s) {
    a.line("stage");
    a.choice(s.kind, stage_kind::store);
    transfer_all(a, s.mode, s.chunks, s.receiver_mode, s.scaled, s.add, s.moved.total, s.moved.most_sent,
                 s.moved.most_received, s.predicted_seconds);
    transfer_numbers(a, "extents", s.extents);
    transfer_numbers(a, "applied", s.factors);
    transfer_numbers(a, "plan_of_rank", s.plan_of_rank);
    transfer(a, s.where);
    transfer(a, s.from);
    transfer(a, s.to);
    a.line("plans");
    const std::size_t plans = a.count(s.plans);
    for (std::size_t i = 0; i < plans; ++i) {
        transfer(a, s.plans[i]);
    }
    if constexpr (Archive::reading) {
        for (const std::int32_t which : s.plan_of_rank) {
            if (which < -1 || which >= static_cast<std::int32_t>(plans)) {
                refuse_text("a rank has a plan that does not exist");
            }
        }
    }
}

template <class Archive>
void transfer(Archive& a, distributed_plan& p) {
    transfer(a, p.source);
    a.line("distributed");
    transfer_all(a, p.bytes_on_wire, p.most_bytes_sent, p.workspace_bytes, p.slab_rows, p.slab_count, p.overlapped,
                 p.predicted_seconds);
    transfer(a, p.result);
    transfer_numbers(a, "buffers", p.buffer_elements);
    a.line("stages");
    const std::size_t stages = a.count(p.stages);
    for (std::size_t i = 0; i < stages; ++i) {
        transfer(a, p.stages[i]);
    }
    transfer_rejected(a, p.rejected);
    transfer_numbers(a, "notes", p.notes);
    a.line("slabs");
    const std::size_t slabs = a.count(p.slabs);
    for (std::size_t i = 0; i < slabs; ++i) {
        transfer(a, p.slabs[i]);
    }
}

}  // namespace planning

/// A distributed plan as text, without loss; what rank 0 sends to the others.
OTIMES_COLD inline std::string to_text(const distributed_plan& p) {
    return planning::write_text("distributed-plan", p);
}
/// Reads to_text back. @throws unsupported_error foreign, damaged or other-version text.
OTIMES_COLD inline distributed_plan distributed_plan_from_text(std::string_view text) {
    return planning::read_text<distributed_plan>("distributed-plan", text);
}
/// A problem as text: what the ranks compare before they work.
OTIMES_COLD inline std::string to_text(const distributed_problem& p) {
    return planning::write_text("distributed-problem", p);
}
OTIMES_COLD inline distributed_problem distributed_problem_from_text(std::string_view text) {
    return planning::read_text<distributed_problem>("distributed-problem", text);
}

/// The first difference between two ranks' problems, in words.
OTIMES_COLD inline std::string describe_difference(const distributed_problem& mine, const distributed_problem& other) {
    const auto differs = [](const std::string& what, const std::string& here, const std::string& there) {
        return what + " here " + here + ", there " + there;
    };
    if (mine.type != other.type) {
        return differs("the scalar is", std::string(to_string(mine.type)), std::string(to_string(other.type)));
    }
    if (mine.rows != other.rows) {
        return differs("X has rows:", std::to_string(mine.rows), std::to_string(other.rows));
    }
    if (mine.factors.size() != other.factors.size()) {
        return differs("factors:", std::to_string(mine.factors.size()), std::to_string(other.factors.size()));
    }
    for (std::size_t i = 0; i < mine.factors.size(); ++i) {
        const distributed_factor& a = mine.factors[i];
        const distributed_factor& b = other.factors[i];
        if (!(a == b)) {
            const std::string name = "factor " + std::to_string(i + 1) + " is";
            if (a.p_extent != b.p_extent || a.q_extent != b.q_extent) {
                return differs(name, planning::shape_text(a.p_extent, a.q_extent),
                               planning::shape_text(b.p_extent, b.q_extent));
            }
            return name + " stored differently, of another type or conjugated differently";
        }
    }
    if (!(mine.operand == other.operand)) {
        return differs("X is cut:", to_string(mine.operand), to_string(other.operand));
    }
    if (mine.result_is_fixed != other.result_is_fixed || !(mine.result == other.result)) {
        return differs("Y is cut:", mine.result_is_fixed ? to_string(mine.result) : "freely",
                       other.result_is_fixed ? to_string(other.result) : "freely");
    }
    if (mine.add != other.add) {
        return differs("the assignment is", mine.add ? "+=" : "=", other.add ? "+=" : "=");
    }
    if (mine.wishes.workspace_limit_bytes != other.wishes.workspace_limit_bytes) {
        return differs("workspace_limit_bytes is", std::to_string(mine.wishes.workspace_limit_bytes),
                       std::to_string(other.wishes.workspace_limit_bytes));
    }
    return mine == other ? "nothing differs" : "the options, the memory space or the number of ranks differ";
}

/// A plan in words, one line for each stage.
OTIMES_COLD inline std::string explain(const distributed_plan& p) {
    using namespace planning;
    const auto bytes = static_cast<double>(element_bytes(p.source.type));
    std::string text = "distributed over " + counted(p.source.ranks, "rank") + ": X " + to_string(p.source.operand) +
                       "; Y " + to_string(p.result) + (p.source.result_is_fixed ? " (asked for)" : " (chosen)") + "\n";
    std::size_t number = 0;
    if (!p.slabs.empty()) {
        text += "  " + counted(p.slab_count, "slab") + " of at most " + counted(p.slab_rows, "row") +
                " of each part, " +
                (p.overlapped ? "by turns: a slab is sent while the next is computed; each:\n"
                              : "one after another; each:\n");
    }
    for (const distributed_stage& s : p.slabs.empty() ? p.stages : p.slabs.front().stages) {
        text += "  " + std::to_string(++number) + ". ";
        if (s.kind == stage_kind::exchange) {
            text += "exchange: to " + to_string(s.to) + "; " + bytes_text(static_cast<double>(s.moved.total) * bytes) +
                    " on the wire, at most " + bytes_text(static_cast<double>(s.moved.most_sent) * bytes) +
                    " from one rank\n";
            continue;
        }
        text += s.kind == stage_kind::store ? "stores into peers in the last pass: " : "local: ";
        for (std::size_t i = 0; i < s.factors.size(); ++i) {
            text += (i == 0 ? "F" : ", F") + std::to_string(s.factors[i] + 1);
        }
        if (s.kind == stage_kind::store) {
            text += ", to " + to_string(s.to) + "; " + bytes_text(static_cast<double>(s.moved.total) * bytes) +
                    " on the wire, at most " + bytes_text(static_cast<double>(s.moved.most_sent) * bytes) +
                    " from one rank";
        }
        text += std::string(s.factors.empty() ? "copy" : "") + (s.add ? ", added to Y" : "") +
                (s.chunks > 1 ? ", in " + std::to_string(s.chunks) + " chunks that are sent while the next is computed"
                              : "") +
                "; " + counted(static_cast<std::int64_t>(s.plans.size()), "plan") + "\n";
    }
    text += "  bytes on the wire: " + std::to_string(p.bytes_on_wire) + "\n";
    text += "  workspace: at most " + bytes_text(static_cast<double>(p.workspace_bytes)) + " on a rank\n";
    for (const rejected_candidate& r : p.rejected) {
        text += "  not " + r.what + ": " + r.reason + "\n";
    }
    for (const std::string& n : p.notes) {
        text += "  " + n + "\n";
    }
    return text;
}

}  // namespace otimes

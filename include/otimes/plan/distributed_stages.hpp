// SPDX-License-Identifier: MIT
/// @file distributed_stages.hpp
/// What the stages of a distributed plan do to each rank's block: which mode a distribution cuts, the local program of a stage, its chunks,
/// and where a pass that stores leaves its output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/scatter_shape.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

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
        } else if (f.structure == factor_kind::permutation) {
            tensor& indices = p.tensors.back();
            indices.kind = factor_kind::permutation;
            indices.type = dtype::other;
            indices.scalar_bytes = 4;
            indices.alignment_log2 = 2;
            indices.conjugate = false;
            p.add_mode(f.q_extent, 1);
        } else {
            p.tensors.back().kind = f.structure;
            p.tensors.back().stored = f.stored;
            p.add_mode(f.p_extent, f.row_stride);
            p.add_mode(f.q_extent, f.col_stride);
            extents[k] = f.q_extent;
        }
        p.tensors.back().binding = bindings++;
        const bool last = i + 1 == factors.size();
        const std::int32_t out = add_block(last ? tensor_role::output : tensor_role::temporary);
        step s;
        s.kind = f.diagonal                                ? step_kind::scale
                 : f.structure != factor_kind::permutation ? step_kind::contract
                 : f.row_stride == 1                       ? step_kind::gather  // (x^T P)[j] = x[indices[j]]
                                                           : step_kind::scatter;
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

/// The same with the first factor's result in the output's memory, where the others are then applied in place: what they read is one piece there, also where
/// in is not. Nothing where one of them is not square, or has structure.
OTIMES_COLD inline std::optional<program> from_place_to_place(const distributed_problem& problem,
                                                              const std::vector<std::int32_t>& factors, program p) {
    const auto works_in_place = [&problem](std::int32_t k) {
        const distributed_factor& f = problem.factors[static_cast<std::size_t>(k)];
        return f.p_extent == f.q_extent && !f.diagonal && f.structure == factor_kind::dense;
    };
    if (factors.size() < 2 || !std::all_of(factors.begin() + 1, factors.end(), works_in_place)) {
        return std::nullopt;
    }
    const tensor& out = p.at(p.steps.back().out);
    for (std::size_t i = 0; i + 1 < p.steps.size(); ++i) {
        tensor& between = p.tensors[static_cast<std::size_t>(p.steps[i].out)];
        between.role = tensor_role::output;
        between.binding = out.binding;
        std::copy_n(p.modes.begin() + out.first_mode, out.mode_count, p.modes.begin() + between.first_mode);
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

/// The mode of whose ranges a local stage's chunks are.
constexpr std::int32_t chunked_mode(const distributed_stage& local) noexcept {
    return local.chunk_mode >= 0 ? local.chunk_mode : local.mode;
}

/// Chunk `chunk` of a stage's `extent` indices of that mode. Of a mode that is whole everywhere all chunks are equal: the first one is computed
/// before anything is sent, and the last one is multiplied further behind it.
constexpr index_range range_of_chunk(const distributed_stage& local, std::int64_t extent, std::int32_t chunk) noexcept {
    return local.chunk_mode >= 0 ? part_of(extent, local.chunks, chunk) : chunk_range(extent, local.chunks, chunk);
}

/// One of the chunks that an exchange moves: a part of the whole matrix, or, of a mode that is whole on every rank, a matrix of its own that lies on
/// every rank behind those of the chunks before it.
struct moved_chunk {
    distribution from;
    distribution to;
    std::int64_t cols = 0;
    std::int32_t number = 0;  ///< of a part (chunk_range of a rank's range of what `from` cuts)
    std::int32_t count = 1;
    std::int64_t index = 0;   ///< of a matrix of its own: its first index of that mode,
    std::int64_t extent = 1;  ///< of so many

    /// Where it begins in a rank's block of all.
    [[nodiscard]] constexpr std::int64_t begin(std::int64_t block_elements) const noexcept {
        return block_elements / extent * index;
    }
};
/// @param behind the stage behind the exchange, where it is done in chunks, too
OTIMES_COLD inline moved_chunk moved_by_chunk(const distributed_stage& before, const distributed_stage& exchange,
                                              const distributed_stage* behind, std::int32_t chunk) {
    moved_chunk moved{exchange.from, exchange.to, product_of(exchange.extents), chunk, before.chunks};
    if (before.chunk_mode >= 0) {
        std::vector<std::int64_t> extents = exchange.extents;
        std::int64_t& extent = extents[static_cast<std::size_t>(before.chunk_mode)];
        const index_range range = part_of(extent, before.chunks, chunk);
        moved.number = 0;
        moved.count = 1;
        moved.index = range.begin;
        moved.extent = extent;
        extent = range.size();
        moved.from = layout_choice{exchange.from, before.mode}.with(extents);
        moved.to = layout_choice{exchange.to, behind->mode}.with(extents);
        moved.cols = product_of(extents);
    }
    return moved;
}

/// Lets the last local stages go through the exchange between them in chunks of a mode that is whole on every rank throughout. Where that mode has a
/// factor, it comes first, in a stage of its own. Nothing is changed where there is no such mode.
OTIMES_COLD inline void chunk_a_whole_mode(const distributed_problem& problem, std::vector<distributed_stage>& stages,
                                           const interconnect& net) {
    const std::size_t count = stages.size();
    if (count < 3 || stages[count - 1].kind != stage_kind::local || stages[count - 2].kind != stage_kind::exchange ||
        stages[count - 3].kind != stage_kind::local || stages[count - 1].factors.empty()) {
        return;
    }
    distributed_stage& before = stages[count - 3];
    distributed_stage& behind = stages[count - 1];
    if (before.mode == -2 || behind.mode == -2) {
        return;
    }
    const auto bytes = static_cast<std::int64_t>(element_bytes(problem.type));
    const std::int64_t sent = stages[count - 2].moved.most_sent * bytes;
    const auto applied = [](const distributed_stage& s, std::int32_t mode) {
        return std::ranges::find(s.factors, mode) != s.factors.end();
    };
    for (std::int32_t mode = 0; mode < static_cast<std::int32_t>(before.extents.size()); ++mode) {
        const std::int64_t extent = stages[count - 2].extents[static_cast<std::size_t>(mode)];
        const std::int64_t chunks =
            (std::min)({sent / (std::max)(net.least_chunk_bytes, std::int64_t{1}), std::int64_t{net.chunks}, extent});
        const bool has_factor = applied(before, mode);
        if (chunks < 2 || mode == before.mode || mode == behind.mode || applied(behind, mode) ||
            before.factors.size() < (has_factor ? 2u : 1u)) {
            continue;
        }
        distributed_stage in_front = before;
        in_front.factors = {mode};
        in_front.scaled = false;
        std::erase(before.factors, mode);
        before.extents[static_cast<std::size_t>(mode)] = extent;
        before.where = layout_choice{before.where, before.mode}.with(before.extents);
        for (distributed_stage* stage : {&before, &behind}) {
            stage->chunks = static_cast<std::int32_t>(chunks);
            stage->chunk_mode = mode;
        }
        if (has_factor) {
            stages.insert(stages.end() - 3, std::move(in_front));
        }
        return;
    }
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

/// Items of which a receiver of a store has at most so many (distributed_stage::portion_items).
OTIMES_COLD inline std::int64_t items_of(const distributed_stage& store, const distributed_problem& problem) {
    const std::vector<std::int64_t> after = extents_after(problem, store);
    const scatter_shape to = scatter_of(store, problem, store.where.first_rank);
    const std::int64_t most =
        part_of(after[static_cast<std::size_t>(store.receiver_mode)], store.where.col_parts, 0).size();
    std::int64_t others = part_of(problem.rows, store.where.row_parts, 0).size();
    for (std::size_t k = 0; k < after.size(); ++k) {
        others *= static_cast<std::int32_t>(k) == store.mode || static_cast<std::int32_t>(k) == store.receiver_mode
                      ? 1
                      : after[k];
    }
    return others * most / to.below;
}

/// Portions in which a store tells its receivers; 1: at once.
OTIMES_COLD inline std::int64_t portions_of(const distributed_stage& store, const distributed_problem& problem) {
    return store.portion_items == 0 ? 1 : (items_of(store, problem) + store.portion_items - 1) / store.portion_items;
}

}  // namespace planning

}  // namespace otimes

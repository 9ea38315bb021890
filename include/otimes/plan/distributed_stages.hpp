// SPDX-License-Identifier: MIT
/// @file distributed_stages.hpp
/// What the stages of a distributed plan do to each rank's block: which mode a distribution cuts, the local program of a stage, its chunks,
/// and where a pass that stores leaves its output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

// SPDX-License-Identifier: MIT
/// @file launch_list.hpp
/// A plan as the kernels that one GPU launches for it: which kernel, over which strides, from which memory to which. Pure
/// values, made without a GPU. An executor replaces the memory references by addresses and launches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>

#include "fused_group.hpp"

namespace otimes::backend {

/// Where an operand of a launch begins.
struct memory_reference {
    enum class place : std::uint8_t {
        none,
        operand,        ///< `bindings::pointers[index]`
        buffer,         ///< buffer `index` of the plan's workspace
        scratch,        ///< memory of the executor beside the workspace: multiplied-out, promoted and staged factors
        one,            ///< the number 1 of the dtype `index`
        sparse_starts,  ///< of the sparse_operand `bindings::pointers[index]`: its arrays in device memory
        sparse_inner,
        sparse_values
    };
    place where = place::none;
    std::int32_t index = 0;
    std::int64_t offset_bytes = 0;
    std::int64_t slab_bytes = 0;  ///< added once per slab index
    friend bool operator==(const memory_reference&, const memory_reference&) = default;
};

/// True where both begin at the same place in the first slab.
[[nodiscard]] inline bool same_place(const memory_reference& a, const memory_reference& b) noexcept {
    return a.where == b.where && a.index == b.index && a.offset_bytes == b.offset_bytes;
}

/// The array that a reference to a part of a sparse factor means; `operand`: its binding.
void* sparse_array(const memory_reference& at, const void* operand);

/// A free index of a sliced multiply; strides in elements.
struct free_mode {
    std::int64_t extent = 1;
    std::int64_t x = 0;
    std::int64_t y = 0;
    std::int64_t f = 0;
    friend bool operator==(const free_mode&, const free_mode&) = default;
};

inline constexpr std::size_t most_free_modes = 16;

/// Y[f, q] (+)= alpha * sum_p X[f, p] * F[f, p, q] with explicit strides: kernels/generic_sliced_multiply.cuh, blocked_multiply.cuh.
struct sliced_shape {
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    std::int64_t x_p = 0;
    std::int64_t f_p = 0;
    std::int64_t f_q = 0;
    std::int64_t y_q = 0;
    std::vector<free_mode> free;  ///< outermost first in Y
    std::int32_t q_position = 0;
    std::int32_t lanes_log2 = 0;  ///< threads of a sum
    std::int32_t fibres = 1;      ///< that a thread sums at once, kernels/few_fibres.cuh: a power of two; 1: each alone
    bool conjugate_x = false;
    bool conjugate_f = false;
    /// By blocks, kernels/blocked_multiply.cuh, instead of element by element: then the first `batches` free modes are those in which F differs.
    std::optional<planning::blocked_kernel> blocks;
    std::int32_t batches = 0;
    gpu_ending ending = gpu_ending::stored;  ///< of blocks: sums, and of factors that stay on chip scalings too
    friend bool operator==(const sliced_shape&, const sliced_shape&) = default;
};

/// Elements that a sliced launch writes; 0: nothing to do.
std::int64_t outputs_of(const sliced_shape& s) noexcept;

/// Tiles of a launch by blocks, of which a block has one or several. @pre s.blocks; it writes something
std::int64_t blocked_tiles(const sliced_shape& s) noexcept;

/// The place of a fused group's tiles: kernels/tile_memory.cuh.
struct fused_shape {
    gpu_group group;
    planning::group_place place;
    std::vector<std::int64_t> factor_p;  ///< strides of the factors, term by term
    std::vector<std::int64_t> factor_q;
    friend bool operator==(const fused_shape&, const fused_shape&) = default;
};

/// Sums of conj(X) * Y over blocks of a grid, and one number of them: kernels/dot_product.cuh. Strides in elements.
struct dot_shape {
    std::int64_t lines = 1;
    std::int64_t count = 1;
    std::int64_t x_line = 0;
    std::int64_t x_step = 0;
    std::int64_t y_line = 0;
    std::int64_t y_step = 0;
    std::int32_t blocks = 1;  ///< of both launches: as many sums
    bool conjugate_x = false;
    bool conjugate_y = false;
    bool distance = false;  ///< of |X - Y|^2
    friend bool operator==(const dot_shape&, const dot_shape&) = default;
};

/// Y[f, o] (+)= alpha * sum of values[k] * X[f, inner[k]] over the elements k of o: kernels/sparse_multiply.cuh. Strides in elements; those of
/// the free modes in F are 0.
struct sparse_shape {
    std::int64_t outputs = 1;
    std::int64_t inputs = 1;
    std::int64_t x_inner = 0;
    std::int64_t y_outer = 0;
    free_mode turn;               ///< the free index of which a thread or a tile may take several
    std::int32_t together = 1;    ///< so many; of a thread at most planning::sparse_sums_together
    std::vector<free_mode> free;  ///< the others, outermost first in Y
    std::int32_t outer_position = 0;
    std::int32_t lanes_log2 = 0;  ///< threads of a sum
    bool turn_first = false;      ///< neighbours along `turn` are neighbours in memory
    bool tiles = false;           ///< from tiles of X in shared memory
    bool along = false;           ///< of a tile: neighbours along the contracted index are neighbours in memory
    bool conjugate_x = false;
    bool conjugate_values = false;
    friend bool operator==(const sparse_shape&, const sparse_shape&) = default;
};

/// Blocks that have a tile each.
std::int64_t sparse_tile_count(const sparse_shape& s) noexcept;

/// Of the grid of a dot product over so many pairs: the same on every device, so that the sum has the same order.
std::int32_t dot_blocks(std::int64_t pairs) noexcept;

enum class launch_kind : std::uint8_t {
    sliced,
    fused,
    sparse,        ///< a sparse factor in device memory; its three arrays are the factors, as starts, inner, values
    partial_dots,  ///< Y: the sums of `dot.blocks` blocks; X and the one factor: what is multiplied
    finish_dot     ///< Y (+)= alpha * the sum of X, the sums of the blocks of the launch before it
};

struct launch {
    launch_kind kind = launch_kind::sliced;
    dtype type = dtype::f32;
    memory_reference x;
    memory_reference y;
    std::vector<memory_reference> factors;
    std::int32_t scalar = -1;  ///< alpha: position in `bindings::scalars`; -1: 1
    bool add = false;
    memory_reference addend;  ///< with `add`: what is added instead of Y, a matrix that is laid out like Y; fused
    std::int32_t addend_scalar = -1;  ///< times this scalar
    memory_reference second;          ///< second input (groups of two) or output (of moves), laid out like the first
    std::vector<std::int32_t> more_scalars;  ///< alpha of the terms after the first; `factors` holds theirs too
    /// Fused and by blocks, by the ending. Sums: Y is what the product is multiplied by (of a norm any address), and this is where the sums of
    /// `dot.blocks` blocks go, or of fewer, if the device holds fewer at once. Scaling: the vector.
    memory_reference sums_or_diagonal;
    std::int64_t divisor =
        0;  ///< of scaled_along: elements of the vector; of scaled_across: of Y for each of its elements
    sliced_shape sliced;
    sparse_shape sparse;
    fused_shape fused;
    dot_shape dot;
    std::int32_t pass = -1;  ///< of the plan, for traces
    bool factors_ready =
        false;  ///< of a kernel that can: may read its factors while the launch before it runs (kernels/tile_memory.cuh)
    bool evict_first = false;  ///< what it reads and writes is the first to leave the second-level cache
    friend bool operator==(const launch&, const launch&) = default;
};

/// A sliced launch that only scales and adds stretches that are contiguous on both sides, by kernels/scaled_copy.cuh: how many, of
/// how many elements, and their strides.
struct copy_shape {
    std::int64_t lines = 1;
    std::int64_t count = 1;
    std::int64_t x_line = 0;
    std::int64_t y_line = 0;
};

/// A sliced launch that multiplies such stretches by the elements of its factor, by kernels/diagonal_scale.cuh.
struct diagonal_shape {
    copy_shape stretches;
    std::int64_t d_lines = 1;  ///< after so many lines the factor repeats
    std::int64_t d_line = 0;
    std::int64_t d_step = 0;
};

/// True of a launch by blocks whose factor stays on chip: kernels/staying_factor.cuh.
bool keeps_factor(const launch& l) noexcept;

/// True of a kernel that can read its factors, or all it reads, before the launch in front of it has ended: fused, or of a factor that stays on chip.
bool can_read_early(const launch& l) noexcept;

/// The scaling by a vector or a matrix that a launch is; nothing for any other launch.
std::optional<diagonal_shape> diagonal_of(const launch& l);

/// The copy that a launch is; nothing for any other launch.
std::optional<copy_shape> copy_of(const launch& l);

/// A factor in host memory, copied in the order of these modes before the first launch.
struct staged_factor {
    std::int32_t tensor = -1;
    std::int64_t scratch_bytes = 0;  ///< where it goes
    std::int64_t bytes = 0;
    std::vector<mode> modes;  ///< as it lies there: all that are not the same element again
    friend bool operator==(const staged_factor&, const staged_factor&) = default;
};

struct launch_list {
    std::vector<staged_factor> staged;
    std::vector<launch> before;  ///< once: factors
    std::vector<launch> slab;    ///< for each full slab
    std::vector<launch> rest;    ///< for a last slab that is shorter; empty when there is none
    std::vector<launch> after;   ///< once: what the slabs' sums come to
    // `factors_ready` of the first launch of a slab, and of the rest, behind another slab.
    bool slab_factors_ready = false;
    bool rest_factors_ready = false;
    std::int64_t slab_extent = 0;
    std::int64_t slab_count = 1;
    std::vector<std::int64_t> buffer_bytes;  ///< offsets of the workspace buffers
    std::int64_t workspace_bytes = 0;        ///< of the plan
    std::int64_t scratch_bytes = 0;
    std::int64_t intermediate_bytes = 0;  ///< of that, what generic kernels keep between the sweeps of a pass
    friend bool operator==(const launch_list&, const launch_list&) = default;
};

/// Lowers a plan whose inputs and outputs are in device memory; factors may be in host memory.
/// `allow_fused` false: generic kernels only.
/// @throws unsupported_error a step or a mixture of types that no kernel knows.
launch_list lower_to_launches(const plan& p, const gpu_description& gpu, bool allow_fused = true);

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file plan.hpp
/// The plan: how a program is evaluated on a machine, as a plain value without pointers or handles. It compares with
/// ==, serialises without loss (serialize.hpp), prints as text (explain.hpp) and is immutable once made, so any number of
/// threads may run it at once.
///
/// A plan is a list of passes. A pass goes once over its input and its output, tile by tile, and does one or more sweeps
/// (one per contracted mode, or one per group of multiplied-out factors) on each tile while it is on chip:
///
///     for each slab:                       a range of one free mode; intermediates of a slab stay in cache
///       for each pass:
///         for each tile of the pass:       all indices of the contracted modes x `lane_count` lanes of the lane mode
///           load, sweep, ..., sweep, store
///
/// Slabs: `pass_mode` extents are those of the whole mode, also for the mode that is cut (its full extent is
/// slab total x slab_scale). Slab s covers slab indices [s * slab_extent, min((s + 1) * slab_extent, total)): a pass works
/// on pass-mode indices [begin * slab_scale, end * slab_scale). Addresses of program tensors advance by
/// begin * slab_scale * stride; workspace buffers hold one slab and start at its first index. With slab_count > 1 each
/// thread takes whole slabs (own buffers, no barriers); with slab_count == 1 the threads share the tiles of each pass, with
/// a barrier between passes, and so they do, slab after slab, where a plan with slabs has a pass_kernel::step. A pass without
/// sweeps copies.
///
/// A tile is laid out as [contracted modes, outermost first][lanes]. Modes never move: a sweep replaces mode k of extent P
/// by one of extent Q where it stands, so nothing is transposed in memory. When the lane mode is contiguous in the
/// input (output) the vectors are loaded (stored) directly, otherwise the load (store) of a tile transposes on chip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

/// What evaluates a pass.
enum class pass_kernel : std::uint8_t {
    step,          ///< one program step by itself: strided loops, else the reference loops, which have every kind
    cpu_tiles,     ///< SIMD tiles of the cpu executor
    gpu_generic,   ///< generic sliced multiply: every shape, stride and type
    gpu_trailing,  ///< fused trailing group: contiguous segments, `tile.rows` of them per tile
    gpu_outer,     ///< fused outer group: strided tiles with contiguous runs of `tile.run` elements
    gpu_blocked    ///< one long factor by blocks: any shape and stride, every type
};

/// Arithmetic of a sweep.
enum class sweep_kernel : std::uint8_t {
    fibre,      ///< vectors along what is contiguous inside the mode; the factor's entries are broadcast
    row,        ///< the mode itself is innermost: vectors along q, the tile's entries are broadcast
    scalar,     ///< plain loops
    mma_split,  ///< GPU: three TF32 matrix products
    mma_f64,    ///< GPU: double matrix products
    mma_tf32    ///< GPU: one TF32 matrix product
};

/// Modes that a fused GPU kernel replaces together between two barriers. Levels count the pass's contracted modes from 1,
/// outermost first.
struct gpu_trip {
    std::int32_t first = 1;
    std::int32_t count = 1;
    bool matrix = false;     ///< matrix unit instead of multiply-adds
    std::int32_t split = 1;  ///< threads (matrix unit: warps) that share a fibre
    bool warpgroup = false;  ///< with matrix: the unit of a whole warpgroup (float, capability 9.0)
    friend bool operator==(const gpu_trip&, const gpu_trip&) = default;
};

/// How the blocks of a fused GPU kernel work: kernels/mode_group.cuh. No trips: no fused kernel.
struct gpu_tile {
    std::int32_t rows = 1;  ///< segments of a tile (trailing)
    std::int32_t run = 1;   ///< neighbouring inner elements of a tile (outer)
    std::int32_t threads = 256;
    std::int32_t blocks = 1;    ///< per multiprocessor, bounds the registers
    std::int32_t segments = 1;  ///< parts of a tile that arrive one by one
    std::int32_t slots = 0;     ///< staged parts, or places more of a ring; 0: loaded where worked on
    std::int32_t cluster = 1;   ///< blocks that share a tile, cut along its first mode
    std::int32_t slices =
        1;  ///< blocks that each compute so much of the last mode's new index (trailing); threads of a sum (gpu_generic)
    std::int32_t pieces =
        1;  ///< of the first mode's old index, each a tile of its own that adds to a sum over all (trailing)
    std::vector<gpu_trip> trips{};
    friend bool operator==(const gpu_tile&, const gpu_tile&) = default;
};

/// One mode of a pass, outermost first in the memory order of the input (the output's order may differ; free modes of
/// extent 1 are left out, neighbours that are nested in both are merged). Strides in elements.
struct pass_mode {
    std::int64_t extent_in = 1;
    std::int64_t extent_out = 1;
    std::int64_t stride_in = 0;
    std::int64_t stride_out = 0;
    friend bool operator==(const pass_mode&, const pass_mode&) = default;
};

/// One contracted mode of a pass: the factors `factors` (tensor numbers of the program, first factor outermost) are
/// multiplied out to one P x Q matrix (one factor: just packed) and replace pass mode `mode`.
struct sweep {
    std::int32_t mode = 0;
    sweep_kernel kernel = sweep_kernel::fibre;
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    std::vector<std::int32_t> factors{};
    friend bool operator==(const sweep&, const sweep&) = default;
};

/// One pass over memory.
struct pass {
    pass_kernel kernel = pass_kernel::step;
    std::int32_t step = -1;          ///< for pass_kernel::step: the program step; otherwise -1
    std::int32_t in = -1;            ///< tensor number of the program (>= 0), or workspace buffer b as -2 - b
    std::int32_t out = -1;           ///< likewise; on a GPU a pass of square sweeps may work in place (in == out)
    bool add = false;                ///< add to `out`; only ever on the last pass that writes it
    std::int32_t scalar = -1;        ///< alpha, applied once, in this pass; -1: none
    std::vector<pass_mode> modes{};  ///< outermost first; contracted ones are named by the sweeps
    std::vector<sweep> sweeps{};     ///< in the order of execution

    std::int32_t slab_mode = -1;  ///< the pass mode that the plan's slab cuts; -1: not cut
    std::int64_t slab_scale = 1;  ///< indices of that mode per slab index (free modes may have been merged)

    std::int32_t lane_mode = -1;  ///< free mode whose indices are the vector lanes of a tile; -1: none (then the
                                  ///< innermost contracted mode may be swept by `row`). Its last tile may be short.
    std::int64_t lane_count = 1;  ///< lanes of a full tile

    /// CPU, of a pass that is not in place and has one sweep by one dense matrix, block_columns > 0: that matrix is not packed before the
    /// passes. Each thread packs a block of so many rows and columns and sums with it, one after the other; block_rows = 0: the
    /// matrix is read as it lies, by rows or, of few rows of the operand, by columns. The threads share the blocks of columns. 0, 0: the
    /// factors are packed whole, and the threads share tiles.
    std::int64_t block_rows = 0;
    std::int64_t block_columns = 0;

    bool past_caches = false;  ///< CPU: whole cache lines of `out` are stored past the caches (AVX-512)

    gpu_tile tile{};                ///< GPU: of a fused kernel
    std::int32_t shared_bytes = 0;  ///< GPU: dynamic shared memory of a block

    std::int64_t flops = 0;        ///< multiply and add count 2; complex multiply-add counts 8
    std::int64_t bytes = 0;        ///< read + written at the level that `level` names, factors included once
    std::string level{};           ///< "memory", "L3", "L2", "L1": where input and output of the pass lie
    double bound_seconds = 0;      ///< max(bytes / bandwidth of that level, flops / peak)
    double predicted_seconds = 0;  ///< bound corrected by the kernel's modelled efficiency
    std::string reason{};          ///< why the pass ends where it ends, for explain

    friend bool operator==(const pass&, const pass&) = default;
};

/// A candidate that lost, for explain.
struct rejected_candidate {
    std::string what;      ///< e.g. "last factor first", "group F1 x F2 to 9 x 9"
    std::string reason{};  ///< e.g. "29.5 MFLOP instead of 8.2"
    double predicted_seconds = 0;
    friend bool operator==(const rejected_candidate&, const rejected_candidate&) = default;
};

/// An entry of `plan::tensor_buffers`.
inline constexpr std::int32_t in_place_of_result = -2;
/// Elements of the longest fibre that the zero-workspace steps of an in-place plan hold on the stack.
inline constexpr std::int64_t longest_stack_fibre = 4096;

/// Bytes of a CPU's tile up to which several neighbours are taken at once, however large the tiles of other passes are: two buffers of it
/// lie in L1. A single sweep over rows mostly streams from X to Y, and takes so many that its factor's panels are read from L2
/// once for dozens of rows: of long rows 64, up to a megabyte.
constexpr std::int64_t batch_bytes(const pass& p, std::int64_t row_bytes) noexcept {
    constexpr std::int64_t kib = 1024;
    if (p.sweeps.size() != 1 || p.lane_mode >= 0) {
        return 16 * kib;
    }
    const std::int64_t rows = row_bytes > 16 * kib ? 1024 * kib : 64 * row_bytes;
    return rows < 128 * kib ? 128 * kib : rows;
}

/// How a program is evaluated. Made by `make_plan`; see the file comment.
struct plan {
    program source;          ///< what it evaluates: the signature that `run` demands
    otimes::options wishes;  ///< the options it was made with
    otimes::placement where = otimes::placement::cpu;
    std::string machine_name;  ///< of the machine that it was made for
    std::int32_t threads = 1;

    std::vector<pass> passes;
    /// GPU, operands in host memory: slabs of each trip through it. The passes are those of one slab of each.
    std::vector<std::int64_t> trip_slabs;
    std::vector<std::int64_t> trip_passes;  ///< passes of each trip, in turn
    /// Several GPUs, operands in host memory: parts that they take. The passes are those of one.
    std::int32_t part_count = 1;
    std::int64_t slab_extent = 0;  ///< indices of the slab mode per slab; 0: no slabs
    std::int64_t slab_count = 1;
    std::vector<std::int64_t> buffer_elements;  ///< workspace buffers of one slab in flight
    std::int64_t factor_elements = 0;           ///< packed factors, each padded as workspace_layout.hpp says
    std::int64_t tile_elements = 0;  ///< one on-chip tile buffer (CPU); each thread has two. Large enough for
        ///< every stage of every pass with the lanes (of a lane mode) rounded up to whole vectors, and of as many
        ///< neighbours as batch_bytes hold, plus one vector
    std::int32_t vector_count = 1;  ///< real numbers in a vector register: the granule of that padding

    /// Where the temporaries of `source` live, for plans with pass_kernel::step or more than one chain; empty otherwise.
    std::vector<std::int32_t>
        tensor_buffers;              ///< per tensor: workspace buffer, or -1 (an operand, or never stored), or
                                     ///< `in_place_of_result`: it lies where the result will
    std::vector<mode> tensor_modes;  ///< `source.modes` with the strides of stored temporaries filled in
    std::vector<std::int32_t>
        tensor_cuts;  ///< where slabs cut several chains: per tensor the mode that they cut, or -1 (it has none); a stored
                      ///< temporary has slab_extent indices of it. Empty otherwise

    std::int64_t flops = 0;            ///< what the passes do
    std::int64_t bytes = 0;            ///< least traffic: inputs, factors and output once
    std::int64_t workspace_bytes = 0;  ///< exact
    double bound_seconds = 0;          ///< max(bytes / bandwidth of what holds X and Y, least flops / peak, bytes to
                                       ///< or from a GPU / bandwidth of its link), of the plan's threads
    double predicted_seconds = 0;
    std::vector<rejected_candidate> rejected;
    std::vector<std::string> notes;  ///< e.g. "F2 is 1 x 1: folded into F1"

    friend bool operator==(const plan&, const plan&) = default;

    /// Evaluates `destination = expression`. The expression must have the signature that the plan was made for (shapes,
    /// scalar types, strides, operand kinds, how many elements a sparse factor stores): operands and scalars are rebound, nothing is searched. `destination` has
    /// the storage that the plan was made for (by default the plain matrix of the expression).
    /// Cost: the passes; no heap allocation after the first call of a thread. But for: products in which a factor with structure stands beside one
    /// that is not square, whose cheapest order is looked for (some hundred bytes); views of less than 32 x 32 that are unfolded; and terms of a sum
    /// that are no matrices in memory, such as 2 * Z, which are evaluated first. Concurrent calls are allowed.
    /// @throws unsupported_error another signature; the text says what differs.
    /// @throws budget_error `workspace` smaller than `workspace_bytes`.
    template <class Destination, class Expression>
    void run(Destination&& destination, const Expression& expression) const {
        run_bound_plan(*this, destination, expression, nullptr, std::int64_t{0});
    }
    /// The same with the caller's workspace of at least `workspace_bytes` bytes, aligned to 64 bytes; a null pointer is none, and the thread's
    /// own is taken.
    template <class Destination, class Expression>
    void run(Destination&& destination, const Expression& expression, void* workspace,
             std::int64_t available_bytes) const {
        run_bound_plan(*this, destination, expression, workspace, available_bytes);
    }
    /// The same in the memory of a container: a std::span<std::byte>, a std::vector, a matrix, on a GPU a DeviceMatrix.
    template <class Destination, class Expression, class Workspace>
    requires requires(Workspace& w) {
        w.size();
        *w.data();
    }
    void run(Destination&& destination, const Expression& expression, Workspace&& workspace) const {
        const auto available =
            static_cast<std::int64_t>(workspace.size()) * static_cast<std::int64_t>(sizeof(*workspace.data()));
        static std::byte none;  // where an empty container is too small, too
        void* const data = available > 0 ? static_cast<void*>(workspace.data()) : &none;
        void* const taken = workspace_bytes > 0 ? data : nullptr;
        if constexpr (requires {
                          run_bound_plan(*this, destination, expression, taken, available, workspace.home());
                      }) {
            run_bound_plan(*this, destination, expression, taken, available, workspace.home());
        } else {
            run_bound_plan(*this, destination, expression, taken, available);
        }
    }
};

}  // namespace otimes

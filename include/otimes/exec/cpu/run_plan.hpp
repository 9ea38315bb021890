// SPDX-License-Identifier: MIT
/// @file run_plan.hpp
/// A whole plan on the CPU: packs the factors, then runs the passes over slabs (each thread takes whole slabs, with
/// intermediates of its own) or over shared tiles (a barrier between passes).
#pragma once

#include <atomic>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <otimes/exec/cpu/accumulate.hpp>
#include <otimes/exec/cpu/run_pass.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/executor.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/row_hook.hpp>
#include <otimes/exec/structured_hook.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

namespace detail {
/// Runs one pass_kernel::step pass of a slab in the arithmetic of one scalar type. @param buffers the workspace buffers of worker 0
using cpu_step_runner = void (*)(const plan&, const pass&, const bindings&, char* buffers, std::int64_t slab);
inline constexpr std::size_t cpu_runner_count = 8;  // one per dtype
/// For each dtype, the step loops of whichever translation unit enabled them first.
inline std::atomic<cpu_step_runner>& shared_step_runner(dtype type) noexcept {
    static std::atomic<cpu_step_runner> runners[cpu_runner_count] = {};
    return runners[static_cast<std::size_t>(type)];
}
}  // namespace detail

inline namespace OTIMES_TARGET {
namespace cpu_detail {

inline std::atomic<detail::cpu_step_runner>& own_step_runner(dtype type) noexcept {
    static std::atomic<detail::cpu_step_runner> runners[detail::cpu_runner_count] = {};
    return runners[static_cast<std::size_t>(type)];
}

/// Where everything lies in the workspace of one run; the same regions in the same order as plan/workspace_layout.hpp,
/// but without a heap allocation, and larger where a plan for narrower registers is run on wider ones. Offsets in bytes.
struct run_layout {
    std::ptrdiff_t element_bytes = 0;
    std::ptrdiff_t buffers = 0;  ///< after the packed factors
    std::ptrdiff_t worker_stride = 0;
    std::ptrdiff_t workers = 1;
    std::ptrdiff_t tiles = 0;
    std::ptrdiff_t tile_bytes = 0;  ///< one buffer; each thread has two
    std::ptrdiff_t total = 0;
};

constexpr std::ptrdiff_t to_lines(std::ptrdiff_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

/// Is the factor of pass `one` read as it lies, by plan and by the kernels of this translation unit?
template <class Real, int Components>
bool is_read_unpacked(const plan& p, const pass& one, const bindings& b) noexcept {
    if (one.block_columns == 0 || one.block_rows > 0) {
        return false;
    }
    pass_shape<Real> shape;
    count_rows(one, shape);
    return unpacked_factor<Real, Components>(p.source, b, one.sweeps.front(), shape.rows[0], true, true).data !=
           nullptr;
}

/// Bytes of what is packed at a time of the factor of a sweep: all of it, or a block. Instead of a block, a register of columns of all
/// rows may be packed.
template <class Real, int Components>
std::ptrdiff_t packed_bytes(const plan& p, const bindings& b, const pass& one, const sweep& s) noexcept {
    if (is_read_unpacked<Real, Components>(p, one, b)) {
        return 0;
    }
    const auto vector = static_cast<std::ptrdiff_t>(p.vector_count > 1 ? p.vector_count : 1);
    const auto least = [vector](std::ptrdiff_t rows, std::ptrdiff_t columns) {
        const std::ptrdiff_t planned = rows * ((columns + vector - 1) / vector * vector) * Components;
        const std::ptrdiff_t needed = packed_reals<Real, Components>(rows, columns);
        return planned > needed ? planned : needed;
    };
    const auto p_extent = static_cast<std::ptrdiff_t>(s.p_extent);
    std::ptrdiff_t reals = least(p_extent, one.block_columns > 0 ? 1 : static_cast<std::ptrdiff_t>(s.q_extent));
    if (one.block_columns > 0) {
        const std::ptrdiff_t block =
            least(static_cast<std::ptrdiff_t>(one.block_rows), static_cast<std::ptrdiff_t>(one.block_columns));
        reals = block > reals ? block : reals;
    }
    return to_lines(reals * static_cast<std::ptrdiff_t>(sizeof(Real)));
}

/// Of all threads.
template <class Real, int Components>
std::ptrdiff_t all_packed_bytes(const plan& p, const bindings& b, const pass& one, const sweep& s) noexcept {
    return (one.block_columns > 0 ? p.threads : 1) * packed_bytes<Real, Components>(p, b, one, s);
}

template <class Real, int Components>
run_layout layout_run(const plan& p, const bindings& b) noexcept {
    constexpr auto element = static_cast<std::ptrdiff_t>(sizeof(Real)) * Components;
    run_layout layout;
    layout.element_bytes = element;
    std::ptrdiff_t tile = static_cast<std::ptrdiff_t>(p.tile_elements) * Components;
    if (p.slab_count > 1) {
        layout.workers = static_cast<std::ptrdiff_t>(p.threads < p.slab_count ? p.threads : p.slab_count);
    }
    for (const pass& one : p.passes) {
        if (one.kernel == pass_kernel::step) {
            layout.workers = 1;
        }
        for (const sweep& s : one.sweeps) {
            layout.buffers += all_packed_bytes<Real, Components>(p, b, one, s);
        }
        if (one.kernel == pass_kernel::cpu_tiles) {
            const auto lanes = static_cast<std::ptrdiff_t>(one.lane_count);
            const std::ptrdiff_t need =
                stage_reals<Real, Components>(one, lanes, tail_of_tile<Real, Components>(one)) + simd<Real>::width;
            tile = need > tile ? need : tile;
        }
    }
    for (const std::int64_t elements : p.buffer_elements) {
        layout.worker_stride += to_lines(static_cast<std::ptrdiff_t>(elements) * element);
    }
    layout.tiles = layout.buffers + layout.workers * layout.worker_stride;
    layout.tile_bytes = to_lines(tile * static_cast<std::ptrdiff_t>(sizeof(Real)));
    layout.total = layout.tiles + std::ptrdiff_t{2} * p.threads * layout.tile_bytes;
    return layout;
}

/// Where workspace buffer `buffer` of a worker starts, from its first one.
inline std::ptrdiff_t buffer_offset(const plan& p, std::int32_t buffer, std::ptrdiff_t element_bytes) noexcept {
    std::ptrdiff_t offset = 0;
    for (std::int32_t k = 0; k < buffer; ++k) {
        offset += to_lines(static_cast<std::ptrdiff_t>(p.buffer_elements[static_cast<std::size_t>(k)]) * element_bytes);
    }
    return offset;
}

/// Address of a pass's input or output: an operand, or a workspace buffer of a worker.
template <class Real>
Real* address_of(const plan& p, const bindings& b, const run_layout& layout, char* workspace, std::ptrdiff_t worker,
                 std::int32_t id) noexcept {
    if (id >= 0) {
        const std::int32_t binding = p.source.at(id).binding;
        return static_cast<Real*>(b.pointers[static_cast<std::size_t>(binding)]);
    }
    const std::ptrdiff_t buffers = layout.buffers + worker * layout.worker_stride;
    return reinterpret_cast<Real*>(workspace + buffers + buffer_offset(p, -2 - id, layout.element_bytes));
}

/// Fills in what make_shape leaves open.
template <class Real, int Components>
void bind_shape(const plan& p, const pass& one, const bindings& b, char* workspace, pass_shape<Real>& shape) noexcept {
    shape.alpha_re = 1;
    shape.alpha_im = 0;
    if (one.scalar >= 0) {
        const std::complex<double>& alpha = b.scalars[static_cast<std::size_t>(one.scalar)];
        shape.alpha_re = static_cast<Real>(alpha.real());
        shape.alpha_im = Components == 2 ? static_cast<Real>(alpha.imag()) : Real(0);
    }
    shape.conjugate = Components == 2 && one.in >= 0 && p.source.at(one.in).conjugate;
    shape.in_place = one.in == one.out ||
                     (one.in >= 0 && one.out >= 0 && p.source.at(one.in).binding == p.source.at(one.out).binding);
    std::ptrdiff_t offset = 0;
    for (const pass& before : p.passes) {
        int i = 0;
        for (const sweep& s : before.sweeps) {
            if (&before == &one) {
                const factor_place<Real> place = unpacked_factor<Real, Components>(
                    p.source, b, s, shape.rows[i], one.block_columns > 0, one.block_columns > 0 && one.block_rows == 0);
                shape.factors[i++] = place.data != nullptr
                                         ? place
                                         : factor_place<Real>{reinterpret_cast<const Real*>(workspace + offset), 0};
            }
            offset += all_packed_bytes<Real, Components>(p, b, before, s);
        }
        if (&before == &one) {
            return;
        }
    }
}

/// In a pass of one sweep: do the sums over some p lie in the result, in whole registers and alone, so that those over the next p may go on
/// from there? Of a row sweep where the columns are a register or more.
template <class Real, int Components>
bool sums_go_on(const pass_shape<Real>& shape) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    if (Components == 2 || shape.add) {
        return false;
    }
    const std::ptrdiff_t last_lanes = shape.lanes.extent - (shape.lane_blocks - 1) * shape.lane_count;
    return shape.has_lanes ? shape.lanes.out == 1 && shape.lane_count >= width && last_lanes >= width
                           : shape.modes[shape.sweep_mode[0]].out == 1;
}

/// All tiles of a pass that packs its factor in blocks, for the share-th of `shares` equal parts of the factor's columns: a block is packed
/// and summed with while it is in cache, so that a long factor for few lanes is read from far once; or the factor is read as it lies.
/// The bits are those of the factor packed whole. @param a, other tile buffers of `thread`
template <class Real, int Components>
void run_factor_blocks(const plan& p, const pass& one, const bindings& b, pass_shape<Real>& shape,
                       std::ptrdiff_t thread, std::ptrdiff_t share, std::ptrdiff_t shares, const Real* x, Real* y,
                       Real* a, Real* other) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const sweep& s = one.sweeps.front();
    const std::ptrdiff_t p_extent = shape.p_extent[0];
    const std::ptrdiff_t q_extent = shape.q_extent[0];
    const bool as_row = shape.rows[0] > 0;
    const factor_place<Real> place = shape.factors[0];
    tile_mode& contracted = shape.modes[shape.sweep_mode[0]];
    const auto run = [&](const factor_block& block, const Real* factor) {
        shape.factors[0].data = factor;
        shape.p_extent[0] = contracted.extent = block.rows;
        shape.q_extent[0] = block.columns;
        shape.resume = block.p > 0;
        run_tiles<Real, Components>(shape, 0, shape.tile_count, x + block.p * contracted.in,
                                    y + block.q * contracted.out, a, other, nullptr);
    };
    const auto columns = static_cast<std::ptrdiff_t>(one.block_columns);
    const std::ptrdiff_t blocks = (q_extent + columns - 1) / columns;
    std::ptrdiff_t begin = blocks * share / shares * columns;
    std::ptrdiff_t end = blocks * (share + 1) / shares * columns;
    end = end < q_extent ? end : q_extent;
    if (place.p_stride != 0) {  // the kernels read whole registers of it: what is shorter goes with what is before it
        begin = (q_extent - begin) * Components < width && begin > 0 ? q_extent : begin;
        end = (q_extent - end) * Components < width ? q_extent : end;
        if (begin < end) {
            run({0, begin, p_extent, end - begin},
                place.data + begin * (place.q_stride != 0 ? place.q_stride : Components));
        }
        return;
    }
    const std::ptrdiff_t reals =
        packed_bytes<Real, Components>(p, b, one, s) / static_cast<std::ptrdiff_t>(sizeof(Real));
    Real* const packed = const_cast<Real*>(place.data) + thread * reals;  // the workspace's
    const Real alpha_re = shape.alpha_re, alpha_im = shape.alpha_im;
    const bool past = shape.past;
    const auto sum_blocks = [&](std::ptrdiff_t first, std::ptrdiff_t last, std::ptrdiff_t rows, std::ptrdiff_t each) {
        for (std::ptrdiff_t at = 0; at < p_extent && first < last; at += rows) {
            const bool finishes = p_extent - at <= rows;
            shape.alpha_re = finishes ? alpha_re : Real(1);
            shape.alpha_im = finishes ? alpha_im : Real(0);
            shape.past = past && rows >= p_extent;  // sums that go on are needed at once
            for (std::ptrdiff_t q = first; q < last; q += each) {
                const factor_block block = {at, q, finishes ? p_extent - at : rows, last - q < each ? last - q : each};
                pack_factors<Real, Components>(p.source, b, s, as_row, packed, 0, 1, block);
                run(block, packed);
            }
        }
    };
    std::ptrdiff_t middle = begin;  // from here on all rows at a time
    if (one.block_rows > 0 && sums_go_on<Real, Components>(shape)) {
        const std::ptrdiff_t rest = (end - begin) % columns;
        middle = as_row && rest < width ? end - rest : end;
        sum_blocks(begin, middle, static_cast<std::ptrdiff_t>(one.block_rows), columns);
    }
    constexpr std::ptrdiff_t granule = width > Components ? width : Components;
    sum_blocks(middle, end, p_extent, reals / (p_extent * granule) * granule / Components);
}

/// One thread's part of a pass. @param share, shares its tiles are the share-th of `shares` equal parts
/// @param ahead, output_ahead what the caller asks for meanwhile; whether that is also what the plan writes
template <class Real, int Components>
void run_tile_pass(const plan& p, const pass& one, const bindings& b, const run_layout& layout, char* workspace,
                   std::int64_t slab, std::ptrdiff_t worker, std::ptrdiff_t thread, std::ptrdiff_t share,
                   std::ptrdiff_t shares, read_ahead* ahead = nullptr, bool output_ahead = false) noexcept {
    pass_shape<Real> shape;
    const std::ptrdiff_t capacity = layout.tile_bytes / static_cast<std::ptrdiff_t>(sizeof(Real));
    const bool in_blocks = one.block_columns > 0;
    make_shape<Real, Components>(p, one, slab, capacity, in_blocks ? 1 : shares, shape);
    if (shape.tile_count == 0) {
        return;
    }
    bind_shape<Real, Components>(p, one, b, workspace, shape);
    shape.far_out = shape.far_out && !output_ahead;
    const Real* const x = address_of<Real>(p, b, layout, workspace, worker, one.in);
    Real* const y = address_of<Real>(p, b, layout, workspace, worker, one.out);
    shape.past = shape.past && !shape.in_place;
    if (shape.sweep_count == 0 || shape.empty_sum) {
        if (share == 0) {
            run_copy<Real, Components>(p, one, shape, slab, x, y);
        }
        return;
    }
    Real* const a = reinterpret_cast<Real*>(workspace + layout.tiles + 2 * thread * layout.tile_bytes);
    Real* const other = reinterpret_cast<Real*>(workspace + layout.tiles + (2 * thread + 1) * layout.tile_bytes);
    if (in_blocks) {
        run_factor_blocks<Real, Components>(p, one, b, shape, thread, share, shares, x, y, a, other);
        return;
    }
    const std::ptrdiff_t begin = shape.tile_count * share / shares;
    const std::ptrdiff_t end = shape.tile_count * (share + 1) / shares;
    if (begin < end) {
        run_tiles<Real, Components>(shape, begin, end, x, y, a, other, ahead);
    }
}

/// One side of a plan in slabs: where each slab of it is one piece of memory and the next one follows it. bytes 0: it is not so,
/// the slabs are large, or they lie in L2.
struct slab_side {
    const char* data = nullptr;
    std::ptrdiff_t bytes = 0;  ///< of one slab
};
template <class Real, int Components>
slab_side side_of_slabs(const plan& p, const bindings& b, std::ptrdiff_t capacity, bool written) noexcept {
    const pass& one = written ? p.passes.back() : p.passes.front();
    const std::int32_t id = written ? one.out : one.in;
    pass_shape<Real> shape;
    make_shape<Real, Components>(p, one, 0, capacity, 1, shape);
    if (id < 0 || one.slab_mode < 0 || !shape.far || (written && shape.past) ||
        shape.mode_count + shape.loop_count > most_pass_modes) {
        return {};
    }
    for (int k = 0; k < shape.loop_count; ++k) {  // all tiles as one: loops over tiles as modes that no sweep replaces
        shape.modes[shape.mode_count++] = {shape.loops[k].extent, shape.loops[k].in, shape.loops[k].out};
    }
    const std::ptrdiff_t bytes =
        packed_tile_bytes<Real, Components>(shape, shape.lanes.extent, shape.batch.extent, written);
    const pass_mode& cut = one.modes[static_cast<std::size_t>(one.slab_mode)];
    const auto step =
        static_cast<std::ptrdiff_t>((written ? cut.stride_out : cut.stride_in) * p.slab_extent * one.slab_scale) *
        Components * static_cast<std::ptrdiff_t>(sizeof(Real));
    if (bytes > most_slab_bytes<Real> || bytes != step) {
        return {};
    }
    return {static_cast<const char*>(b.pointers[static_cast<std::size_t>(p.source.at(id).binding)]), bytes};
}

/// One thread's part of a whole plan without steps.
template <class Real, int Components>
void run_share(const plan& p, const bindings& b, const run_layout& layout, char* workspace, std::ptrdiff_t thread,
               std::ptrdiff_t threads) noexcept {
    if (p.slab_count > 1) {
        const auto slabs = static_cast<std::ptrdiff_t>(p.slab_count);
        const std::ptrdiff_t capacity = layout.tile_bytes / static_cast<std::ptrdiff_t>(sizeof(Real));
        const slab_side in = side_of_slabs<Real, Components>(p, b, capacity, false);
        const slab_side out = side_of_slabs<Real, Components>(p, b, capacity, true);
        std::ptrdiff_t blocks = 0;
        for (const pass& one : p.passes) {
            pass_shape<Real> shape;
            make_shape<Real, Components>(p, one, 0, capacity, 1, shape);
            blocks += shape.tile_count * blocks_of_tile<Real, Components>(shape, shape.lane_count, shape.batch_count);
        }
        read_ahead ahead;
        const std::ptrdiff_t end = slabs * (thread + 1) / threads;
        for (std::ptrdiff_t slab = slabs * thread / threads; slab < end; ++slab) {
            // A line that is written is read first, and that before the last sweep; then what the next slab reads.
            read_ahead_of(ahead, out.data + slab * out.bytes, out.bytes, blocks, in.data + (slab + 1) * in.bytes,
                          slab + 1 < end ? in.bytes : 0);
            for (const pass& one : p.passes) {
                run_tile_pass<Real, Components>(p, one, b, layout, workspace, slab, thread, thread, 0, 1,
                                                in.bytes + out.bytes > 0 ? &ahead : nullptr, out.bytes > 0);
                finish_stores_past(one.past_caches && slab + 1 == end);
            }
        }
        return;
    }
    bool first = true;
    for (const pass& one : p.passes) {
        if (!first && threads > 1) {
#if OTIMES_OPENMP
#pragma omp barrier
#endif
        }
        first = false;
        run_tile_pass<Real, Components>(p, one, b, layout, workspace, 0, 0, thread, thread, threads);
        finish_stores_past(one.past_caches);
    }
}

/// x = alpha * x contracted along mode `on` with a square factor, in the memory of x: for each group of neighbouring fibres, all
/// of it is read onto the stack before any of it is written.
/// @pre the mode has at most longest_stack_fibre indices
template <class Scalar>
void contract_in_place(const reference_loops::view& x, std::size_t on, const reference_loops::view& factor,
                       const Scalar* alpha) {
    constexpr std::ptrdiff_t capacity = longest_stack_fibre;
    constexpr std::ptrdiff_t most_lanes = 32;
    const mode fibre = x.modes[on];
    mode lanes{1, 0};  // the free mode whose indices lie closest together
    std::size_t lane_mode = x.modes.size();
    std::ptrdiff_t at[most_pass_modes];
    tile_loop loops[most_pass_modes];
    int count = 0;
    for (std::size_t k = 0; k < x.modes.size(); ++k) {
        if (k != on && x.modes[k].extent > 1 && (lane_mode == x.modes.size() || x.modes[k].stride < lanes.stride)) {
            lanes = x.modes[k];
            lane_mode = k;
        }
    }
    for (std::size_t k = 0; k < x.modes.size(); ++k) {
        if (x.modes[k].extent == 0) {
            return;
        }
        if (k != on && k != lane_mode && x.modes[k].extent > 1) {
            at[count] = 0;
            loops[count++] = {static_cast<std::ptrdiff_t>(x.modes[k].extent),
                              static_cast<std::ptrdiff_t>(x.modes[k].stride), 0};
        }
    }
    const auto length = static_cast<std::ptrdiff_t>(fibre.extent);
    const auto step = static_cast<std::ptrdiff_t>(fibre.stride);
    const auto lane_step = static_cast<std::ptrdiff_t>(lanes.stride);
    const std::ptrdiff_t fit = capacity / length;
    const std::ptrdiff_t width = fit < most_lanes ? fit : most_lanes;
    const mode& mp = factor.modes[factor.modes.size() - 2];
    const mode& mq = factor.modes[factor.modes.size() - 1];
    Scalar block[capacity];
    Scalar sums[most_lanes];
    auto* base = static_cast<Scalar*>(x.data);
    for (;;) {
        for (std::ptrdiff_t first = 0; first < static_cast<std::ptrdiff_t>(lanes.extent); first += width) {
            const std::ptrdiff_t left = static_cast<std::ptrdiff_t>(lanes.extent) - first;
            const std::ptrdiff_t some = left < width ? left : width;
            Scalar* const from = base + first * lane_step;
            for (std::ptrdiff_t p = 0; p < length; ++p) {
                for (std::ptrdiff_t l = 0; l < some; ++l) {
                    block[p * some + l] = from[p * step + l * lane_step];
                }
            }
            for (std::ptrdiff_t q = 0; q < length; ++q) {
                for (std::ptrdiff_t l = 0; l < some; ++l) {
                    sums[l] = Scalar(0);
                }
                for (std::ptrdiff_t p = 0; p < length; ++p) {
                    const Scalar entry = reference_loops::read<Scalar>(factor, p * mp.stride + q * mq.stride);
                    for (std::ptrdiff_t l = 0; l < some; ++l) {
                        sums[l] += block[p * some + l] * entry;
                    }
                }
                for (std::ptrdiff_t l = 0; l < some; ++l) {
                    from[q * step + l * lane_step] = alpha == nullptr ? sums[l] : Scalar(*alpha * sums[l]);
                }
            }
        }
        int k = count - 1;
        for (; k >= 0; --k) {
            base += loops[k].in;
            if (++at[k] < loops[k].extent) {
                break;
            }
            base -= loops[k].extent * loops[k].in;
            at[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

/// Threads that may start now: 1 inside a parallel region, no more than OpenMP allows (OMP_THREAD_LIMIT), and unless the options ask for a number
/// no more than it would start (omp_set_num_threads).
inline std::int64_t allowed_threads([[maybe_unused]] const plan& p) noexcept {
#if OTIMES_OPENMP
    if (p.threads > 1 && omp_in_parallel() == 0) {
        const std::int64_t allowed = p.wishes.threads > 0 ? omp_get_thread_limit() : omp_get_max_threads();
        return p.threads < allowed ? p.threads : allowed;
    }
#endif
    return 1;
}

/// Threads worth starting: 1 where the work is shorter than starting them. Strided loops are bound by memory: a byte of theirs takes about as long
/// as a flop.
inline std::ptrdiff_t useful_threads(const plan& p) noexcept {
    auto work = static_cast<double>(p.flops);
    for (const pass& one : p.passes) {
        work += one.kernel == pass_kernel::step ? static_cast<double>(one.bytes) : 0.0;
    }
    const std::int64_t threads = work > flops_per_fork ? allowed_threads(p) : 1;
    // A worker has buffers for one slab in flight, so there are no more threads than slabs.
    return static_cast<std::ptrdiff_t>(p.slab_count > 1 && p.slab_count < threads ? p.slab_count : threads);
}

/// One step by strided loops, or by the reference loops, on the indices of a slab. @param buffers the workspace buffers of worker 0
/// @throws unsupported_error
template <class Scalar>
void run_step_pass(const plan& p, const pass& one, const bindings& b, char* buffers, std::int64_t slab) {
    const step& s = p.source.steps[static_cast<std::size_t>(one.step)];
    const std::vector<mode>& modes = p.tensor_modes.empty() ? p.source.modes : p.tensor_modes;
    kept_vector<mode, plan> of_slab;  // modes of in, factor and out, where the plan cuts them
    of_slab->reserve(p.tensor_cuts.empty() ? 0 : 3 * modes.size());
    const auto cut_to_slab = [&](reference_loops::view& v, std::int32_t id) {
        const std::int32_t k = id < 0 || p.tensor_cuts.empty() ? -1 : p.tensor_cuts[static_cast<std::size_t>(id)];
        if (k < 0) {
            return;
        }
        const std::size_t first = of_slab->size();
        of_slab->insert(of_slab->end(), v.modes.begin(), v.modes.end());
        mode& cut = (*of_slab)[first + static_cast<std::size_t>(k)];
        const std::int64_t begin = slab * p.slab_extent;
        const std::int64_t left = cut.extent - begin;
        cut.extent = left < p.slab_extent ? left : p.slab_extent;
        if (const tensor& t = p.source.at(id); t.binding >= 0) {
            v.data = static_cast<char*>(v.data) + begin * cut.stride * t.scalar_bytes;
        }
        v.modes = {of_slab->data() + first, v.modes.size()};
    };
    const auto view_of = [&](std::int32_t id) {
        reference_loops::view v;
        if (id < 0) {
            return v;
        }
        const tensor& t = p.source.at(id);
        const std::int32_t buffer = p.tensor_buffers.empty() ? -1 : p.tensor_buffers[static_cast<std::size_t>(id)];
        if (buffer == in_place_of_result) {
            v.data = b.pointers[static_cast<std::size_t>(p.source.at(p.passes.front().in).binding)];
            v.type = dtype_of<Scalar>();
            v.modes = {modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
            return v;
        }
        v.data = buffer >= 0 ? buffers + buffer_offset(p, buffer, static_cast<std::ptrdiff_t>(sizeof(Scalar)))
                             : b.pointers[static_cast<std::size_t>(t.binding)];
        v.type = buffer >= 0 ? dtype_of<Scalar>() : t.type;
        v.conjugate = t.conjugate;
        v.modes = {modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
        return v;
    };
    Scalar alpha(0);
    const Scalar* const scalar = reference_loops::scalar_of(s, b, alpha);
    reference_loops::view in = view_of(s.in);
    reference_loops::view factor = view_of(s.factor);
    reference_loops::view out = view_of(s.out);
    cut_to_slab(in, s.in);
    cut_to_slab(factor, s.factor);
    cut_to_slab(out, s.out);
    if (s.kind == step_kind::contract && in.data == out.data) {
        contract_in_place<Scalar>(in, static_cast<std::size_t>(s.mode), factor, scalar);
        return;
    }
    const double work = static_cast<double>(one.flops) + static_cast<double>(one.bytes);
    const std::int64_t threads = work > flops_per_fork * static_cast<double>(p.slab_count) ? allowed_threads(p) : 1;
    if (s.kind == step_kind::accumulate && accumulate_elements<Scalar>(s, in, out, scalar, threads)) {
        return;
    }
    const auto loops = structured_steps<Scalar>::loops.load(std::memory_order_relaxed);
    if (loops == nullptr || !loops(p.source, s, in, factor, out, scalar, threads)) {
        reference_loops::run_step<Scalar>(p.source, s, in, factor, out, scalar);
    }
}

/// A step that sums over nothing, or writes nothing: what a program of dense matrices without elements consists of. False:
/// it is another step.
OTIMES_COLD inline bool run_empty_step(const plan& p, const pass& one, const bindings& b, char* buffers,
                                       std::ptrdiff_t element_bytes) {
    const step& s = p.source.steps[static_cast<std::size_t>(one.step)];
    if (s.kind != step_kind::contract && s.kind != step_kind::accumulate) {
        return false;
    }
    if (element_count(p.source, s.out) == 0) {
        return true;
    }
    if (element_count(p.source, s.in) != 0) {
        return false;
    }
    const tensor& t = p.source.at(s.out);
    const mode* const modes = (p.tensor_modes.empty() ? p.source.modes : p.tensor_modes).data() + t.first_mode;
    const std::int32_t buffer = p.tensor_buffers.empty() ? -1 : p.tensor_buffers[static_cast<std::size_t>(s.out)];
    char* const out = buffer >= 0 ? buffers + buffer_offset(p, buffer, element_bytes)
                                  : static_cast<char*>(b.pointers[static_cast<std::size_t>(t.binding)]);
    for (std::int64_t i = s.add ? 0 : element_count(p.source, s.out); i-- > 0;) {
        std::int64_t rest = i;
        std::int64_t offset = 0;
        for (std::int32_t k = t.mode_count; k-- > 0;) {
            offset += rest % modes[k].extent * modes[k].stride;
            rest /= modes[k].extent;
        }
        std::memset(out + offset * element_bytes, 0, static_cast<std::size_t>(element_bytes));
    }
    return true;
}

/// One step of a plan in the arithmetic of `type`, by whoever has compiled the loops for it.
OTIMES_COLD inline void run_reference_step(dtype type, const plan& p, const pass& one, const bindings& b, char* buffers,
                                           std::ptrdiff_t element_bytes, std::int64_t slab) {
    if (run_empty_step(p, one, b, buffers, element_bytes)) {
        return;
    }
    detail::cpu_step_runner runner = own_step_runner(type).load(std::memory_order_relaxed);
    if (runner == nullptr) {
        runner = detail::shared_step_runner(type).load(std::memory_order_acquire);
    }
    if (runner == nullptr) {
        throw unsupported_error(
            "otimes: no translation unit of this program has compiled the loops that this step needs for " +
            std::string(to_string(type)) + ". Call otimes::enable_cpu<Scalar>() in one of them.");
    }
    runner(p, one, b, buffers, slab);
}

[[noreturn]] OTIMES_COLD inline void throw_large_pass(const pass& one) {
    throw unsupported_error("otimes: a pass of " + std::to_string(one.modes.size()) + " modes and " +
                            std::to_string(one.sweeps.size()) +
                            " sweeps is more than the cpu executor takes (64 and 32). Plan with make_plan.");
}
[[noreturn]] OTIMES_COLD inline void throw_crooked_workspace(std::size_t wanted) {
    throw unsupported_error("otimes: the workspace begins at an address that is no multiple of " +
                            std::to_string(wanted) + ". Align it to 64 bytes.");
}
[[noreturn]] OTIMES_COLD inline void throw_foreign_pass() {
    throw unsupported_error(
        "otimes: the cpu executor cannot run a plan that was made for a GPU. Make it for "
        "this executor's target().");
}

/// A pass of one tile, laid out but for addresses and scalar.
template <class Real>
struct prepared_pass {
    const pass* planned;
    Real* x;  ///< in the workspace, where input_binding is -1
    Real* y;
    std::int32_t input_binding, output_binding;
    int sweep_count;
    bool as_row[most_sweeps];
    std::int32_t factor_binding[most_sweeps];  ///< of a factor that is read as it lies; -1: it is packed
    tile_job<Real> job;
};

/// A plan in a run_memo: this, its passes, its workspace.
template <class Real>
struct prepared_plan {
    const program* source;
    std::size_t pass_count;
    prepared_pass<Real>* passes;
    Real* a;  ///< tile buffers
    Real* b;
};

/// What a run_memo calls.
template <class Real, int Components>
void run_prepared(void* memory, const bindings& b) {
    const prepared_plan<Real>& whole = *static_cast<const prepared_plan<Real>*>(memory);
    for (std::size_t k = 0; k < whole.pass_count; ++k) {
        prepared_pass<Real>& one = whole.passes[k];
        tile_job<Real>& job = one.job;
        for (int i = 0; i < one.sweep_count; ++i) {
            const std::int32_t binding = one.factor_binding[i];
            if (binding >= 0) {
                job.sweeps[i].factor = static_cast<const Real*>(b.pointers[static_cast<std::size_t>(binding)]);
            } else {
                pack_factors<Real, Components>(*whole.source, b, one.planned->sweeps[static_cast<std::size_t>(i)],
                                               one.as_row[i], const_cast<Real*>(job.sweeps[i].factor));
            }
        }
        for (int i = 0; job.tail >= 0 && i < job.tail_work.modes; ++i) {
            job.tail_work.factors[i] = job.sweeps[job.tail + i].factor;
        }
        if (one.planned->scalar >= 0) {
            const std::complex<double>& alpha = b.scalars[static_cast<std::size_t>(one.planned->scalar)];
            set_scalar(job, static_cast<Real>(alpha.real()),
                       Components == 2 ? static_cast<Real>(alpha.imag()) : Real(0));
        }
        const auto address = [&b](std::int32_t binding, Real* buffer) {
            return binding >= 0 ? static_cast<Real*>(b.pointers[static_cast<std::size_t>(binding)]) : buffer;
        };
        run_tile<Real, Components>(job, one.sweep_count, address(one.input_binding, one.x),
                                   address(one.output_binding, one.y), whole.a, whole.b);
    }
}

/// Prepares a small plan of tile passes, each of one tile and for one thread: between two runs of it only addresses, scalars
/// and packed factors change. False: the plan is not of that kind. The bits are those of the ordinary run.
template <class Real, int Components>
bool prepare_plan(const plan& p, const bindings& b, const run_layout& layout, run_memo& memo) {
    constexpr std::ptrdiff_t most_bytes = 64 * 1024;
    if (static_cast<double>(p.flops) > flops_per_fork || p.slab_count > 1 || layout.total > most_bytes) {
        return false;
    }
    const std::ptrdiff_t passes_at = to_lines(sizeof(prepared_plan<Real>));
    const std::ptrdiff_t workspace_at =
        passes_at + to_lines(static_cast<std::ptrdiff_t>(p.passes.size() * sizeof(prepared_pass<Real>)));
    char* const memory = static_cast<char*>(memo.reserve(static_cast<std::size_t>(workspace_at + layout.total)));
    char* const workspace = memory + workspace_at;
    auto* const whole = ::new (static_cast<void*>(memory)) prepared_plan<Real>;
    whole->source = &p.source;
    whole->pass_count = p.passes.size();
    whole->passes = reinterpret_cast<prepared_pass<Real>*>(memory + passes_at);
    whole->a = reinterpret_cast<Real*>(workspace + layout.tiles);
    whole->b = reinterpret_cast<Real*>(workspace + layout.tiles + layout.tile_bytes);
    for (std::size_t k = 0; k < p.passes.size(); ++k) {
        const pass& planned = p.passes[k];
        prepared_pass<Real>& one = *::new (static_cast<void*>(whole->passes + k)) prepared_pass<Real>;
        pass_shape<Real> shape;
        make_shape<Real, Components>(p, planned, 0, layout.tile_bytes / static_cast<std::ptrdiff_t>(sizeof(Real)), 1,
                                     shape);
        if (shape.tile_count != 1 || shape.sweep_count == 0 || shape.empty_sum || planned.block_columns > 0) {
            return false;
        }
        bind_shape<Real, Components>(p, planned, b, workspace, shape);
        shape.past = false;  // so few bytes stay in cache
        make_job<Real, Components>(shape, shape.lane_count, shape.batch_count, one.job);
        clear_gaps(shape, whole->a, whole->b);
        one.planned = &planned;
        one.sweep_count = shape.sweep_count;
        const auto place = [&](std::int32_t id, std::int32_t& binding, Real*& buffer) {
            binding = id >= 0 ? p.source.at(id).binding : -1;
            buffer = id >= 0 ? nullptr : address_of<Real>(p, b, layout, workspace, 0, id);
        };
        place(planned.in, one.input_binding, one.x);
        place(planned.out, one.output_binding, one.y);
        for (int i = 0; i < shape.sweep_count; ++i) {
            const sweep& s = planned.sweeps[static_cast<std::size_t>(i)];
            one.as_row[i] = shape.rows[i] > 0;
            one.factor_binding[i] =
                unpacked_factor<Real, Components>(p.source, b, s, shape.rows[i], false).data != nullptr
                    ? p.source.at(s.factors.front()).binding
                    : -1;
            one.job.sweeps[i].factor = shape.factors[i].data;
        }
    }
    memo.set_runner(&run_prepared<Real, Components>);
    return true;
}

/// Runs `p` in the arithmetic of `Scalar`. @param memo filled in where the plan is small; nullptr: this run is the only one
/// @throws budget_error `given` is smaller than p.workspace_bytes
template <class Scalar>
void run_plan_as(const plan& p, const bindings& b, workspace_view given, run_memo* memo) {
    using Real = decltype(std::real(Scalar()));
    constexpr int components = sizeof(Scalar) == sizeof(Real) ? 1 : 2;
    bool has_steps = false;
    for (const pass& one : p.passes) {
        has_steps = has_steps || one.kernel == pass_kernel::step;
        if (one.modes.size() > static_cast<std::size_t>(most_pass_modes) ||
            one.sweeps.size() > static_cast<std::size_t>(most_sweeps)) {
            throw_large_pass(one);
        }
        if (one.kernel != pass_kernel::step && one.kernel != pass_kernel::cpu_tiles) {
            throw_foreign_pass();
        }
    }
    const run_layout layout = layout_run<Real, components>(p, b);
    if (given.data != nullptr && given.bytes < p.workspace_bytes) {
        detail::throw_small_workspace(given.bytes, p.workspace_bytes);
    }
    if (reinterpret_cast<std::uintptr_t>(given.data) % alignof(Scalar) != 0) {
        throw_crooked_workspace(alignof(Scalar));
    }
    if (!p.tensor_buffers.empty() && !overwrites_input(p.source)) {  // several chains
        const auto by_rows = row_steps<Scalar>::run.load(std::memory_order_relaxed);
        if (by_rows != nullptr && by_rows(p.source, b, static_cast<std::int32_t>(useful_threads(p)), p.flops,
                                          p.workspace_bytes / static_cast<std::int64_t>(sizeof(Scalar)), &p)) {
            return;
        }
    } else if (memo != nullptr && !has_steps && prepare_plan<Real, components>(p, b, layout, *memo)) {
        memo->run(b);
        return;
    }
    // A plan made for another width may need more than it states: then the caller's memory is left alone.
    const bool fits = given.data != nullptr && given.bytes >= layout.total;
    const workspace_lease lease(fits ? 0 : static_cast<std::size_t>(layout.total));
    char* const workspace = static_cast<char*>(fits ? given.data : lease.data());

    const auto pack = [&](std::ptrdiff_t share, std::ptrdiff_t sharers) {
        std::ptrdiff_t offset = 0;
        for (const pass& one : p.passes) {
            if (one.sweeps.empty()) {
                continue;
            }
            pass_shape<Real> shape;
            count_rows(one, shape);
            for (std::size_t i = 0; i < one.sweeps.size(); ++i) {
                if (one.block_columns == 0 &&
                    unpacked_factor<Real, components>(p.source, b, one.sweeps[i], shape.rows[i], false).data ==
                        nullptr) {
                    pack_factors<Real, components>(p.source, b, one.sweeps[i], shape.rows[i] > 0,
                                                   reinterpret_cast<Real*>(workspace + offset), share, sharers);
                }
                offset += all_packed_bytes<Real, components>(p, b, one, one.sweeps[i]);
            }
        }
    };

    [[maybe_unused]] const std::ptrdiff_t threads = useful_threads(p);
#if OTIMES_OPENMP
    constexpr std::int64_t worth_sharing = 16384;  // factor elements whose packing takes longer than a barrier
    if (threads > 1 && !has_steps && p.factor_elements >= worth_sharing) {
#pragma omp parallel num_threads(static_cast <int>(threads))
        {
            pack(omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
            run_share<Real, components>(p, b, layout, workspace, omp_get_thread_num(), omp_get_num_threads());
        }
        return;
    }
#endif
    pack(0, 1);
    // Steps call what users wrote, which may throw and is not asked to be called by several threads.
    for (std::int64_t slab = 0; has_steps && slab < p.slab_count; ++slab) {
        for (const pass& one : p.passes) {
            if (one.kernel == pass_kernel::step) {
                run_reference_step(dtype_of<Scalar>(), p, one, b, workspace + layout.buffers, layout.element_bytes,
                                   slab);
                continue;
            }
#if OTIMES_OPENMP
            if (threads > 1 && (p.slab_count == 1 ||
                                static_cast<double>(one.flops) > flops_per_fork * static_cast<double>(p.slab_count))) {
#pragma omp parallel num_threads(static_cast <int>(threads))
                {
                    const std::ptrdiff_t me = omp_get_thread_num();
                    run_tile_pass<Real, components>(p, one, b, layout, workspace, slab, 0, me, me,
                                                    omp_get_num_threads());
                }
                continue;
            }
#endif
            run_tile_pass<Real, components>(p, one, b, layout, workspace, slab, 0, 0, 0, 1);
        }
    }
    if (has_steps) {
        return;
    }
#if OTIMES_OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(static_cast <int>(threads))
        run_share<Real, components>(p, b, layout, workspace, omp_get_thread_num(), omp_get_num_threads());
        return;
    }
#endif
    run_share<Real, components>(p, b, layout, workspace, 0, 1);
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

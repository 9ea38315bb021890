// SPDX-License-Identifier: MIT
/// @file run_pass.hpp
/// One pass of a plan: all its tiles, or a share of them. A tile goes through
///
///     load -> sweep -> ... -> sweep -> store
///
/// between two small buffers. The first sweep reads the operand itself where its vectors are contiguous there, and the last
/// one writes the result itself, so that a pass of one sweep copies nothing. Where tiles are small, several neighbours are
/// taken at once (`batch`).
///
/// Everything here works on values on the stack: no allocation, no exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <otimes/exec/cpu/factors.hpp>
#include <otimes/exec/cpu/sweep.hpp>
#include <otimes/exec/cpu/tail_kernel.hpp>
#include <otimes/exec/cpu/tile.hpp>
#include <otimes/exec/cpu/twin_kernel.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/plan.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

inline constexpr int most_pass_modes = 64;  ///< more non-trivial modes than a 64-bit extent can have
inline constexpr int most_sweeps = 32;

/// A contracted mode of a tile: its extent in the input and in the output, strides in real elements.
struct tile_mode {
    std::ptrdiff_t extent, in, out;
};

/// A pass as loops over tiles, for one slab. Strides count real elements.
template <class Real>
struct pass_shape {
    int mode_count;
    tile_mode modes[most_pass_modes];  ///< contracted, outermost first
    int sweep_count;
    int sweep_mode[most_sweeps];  ///< which of them a sweep replaces
    std::ptrdiff_t p_extent[most_sweeps];
    std::ptrdiff_t q_extent[most_sweeps];
    std::ptrdiff_t rows[most_sweeps];  ///< of the whole pass, for the row kernels; 0: the sweep takes the fibre kernels
    factor_place<Real> factors[most_sweeps];

    bool has_lanes;
    tile_loop lanes;            ///< the whole lane mode
    std::ptrdiff_t lane_count;  ///< of a full tile
    std::ptrdiff_t lane_blocks;
    tile_loop batch;             ///< the innermost free loop
    std::ptrdiff_t batch_count;  ///< indices of it in a full tile
    std::ptrdiff_t batch_blocks;
    int loop_count;
    tile_loop loops[most_pass_modes];  ///< the other free loops, outermost first
    std::ptrdiff_t tile_count;
    std::ptrdiff_t offset_in, offset_out;  ///< of the slab

    bool add;
    bool resume;    ///< of one sweep: the output holds its sums over the p before these
    bool in_place;  ///< input and output are the same
    bool far;       ///< the operands lie beyond L2: what comes next is asked for ahead
    bool past;      ///< whole cache lines of the output are stored past the caches
    bool far_out;   ///< so does the output, and nobody else asks for it
    bool conjugate;
    Real alpha_re, alpha_im;
    bool empty_sum;  ///< a contracted mode has no index: the result is zero

    int tail;         ///< from this sweep on, tail_modes of them are done together by a tail kernel; -1: none are
    int tail_modes;   ///< the last modes
    int padded_mode;  ///< its stride in a tile buffer is rounded up to whole registers; -1: none is
    std::ptrdiff_t pad_reals;  ///< real elements of a tile buffer with such gaps, which hold zeros; 0: it has none
};

/// Lanes of a tile buffer: whole registers when they are fewer than one register's worth.
template <class Real, int Components>
constexpr std::ptrdiff_t padded_lanes(std::ptrdiff_t lanes) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    return lanes * Components >= width ? lanes : width / Components > 0 ? width / Components : 1;
}

/// The sweeps that a tail kernel does.
template <class Real, int Components>
planning::short_tail tail_of_tile(const pass& p) noexcept {
    if (Components != 1 || tail_kernel_for<Real>(4, 2) == nullptr) {
        return {};
    }
    return planning::tail_of(p, simd<Real>::width * static_cast<std::int64_t>(sizeof(Real)), dtype_of<Real>());
}

/// Real elements of the largest stage of a tile of `lanes` lanes. @param tail tail_of_tile(p)
template <class Real, int Components>
std::ptrdiff_t stage_reals(const pass& p, std::ptrdiff_t lanes, const planning::short_tail& tail) noexcept {
    const bool has_lanes = p.lane_mode >= 0 && p.lane_count > 1;
    std::ptrdiff_t now = (has_lanes ? padded_lanes<Real, Components>(lanes) : 1) * Components;
    std::ptrdiff_t largest = 0;
    // The extent of each contracted mode before its first sweep is that sweep's P.
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        bool first = true;
        for (std::size_t k = 0; k < i; ++k) {
            first = first && p.sweeps[k].mode != p.sweeps[i].mode;
        }
        now *= first ? static_cast<std::ptrdiff_t>(p.sweeps[i].p_extent) : 1;
    }
    largest = now;
    for (const sweep& s : p.sweeps) {
        if (s.p_extent == 0 || s.q_extent == 0) {
            return 0;
        }
        now = now / static_cast<std::ptrdiff_t>(s.p_extent) * static_cast<std::ptrdiff_t>(s.q_extent);
        largest = now > largest ? now : largest;
    }
    return largest / static_cast<std::ptrdiff_t>(tail.elements) * static_cast<std::ptrdiff_t>(tail.padded);
}

/// Which sweeps take the row kernels, for which the factors are packed in another order: there are no lanes, and nothing but
/// single indices inside the mode at that stage. And how many rows they have, over all tiles and slabs. Sets shape.rows and nothing
/// else.
template <class Real>
void count_rows(const pass& p, pass_shape<Real>& shape) noexcept {
    const bool has_lanes = p.lane_mode >= 0 && p.lane_count > 1;
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        bool row = !has_lanes;
        for (std::size_t k = 0; row && k < p.sweeps.size(); ++k) {
            row = p.sweeps[k].mode <= p.sweeps[i].mode || (k < i ? p.sweeps[k].q_extent : p.sweeps[k].p_extent) == 1;
        }
        shape.rows[i] = 0;
        if (!row) {
            continue;
        }
        double rows = 1;  // more than an integer holds, where the result has no index
        for (std::size_t m = 0; m < p.modes.size(); ++m) {
            std::int64_t extent = p.modes[m].extent_in;
            for (std::size_t k = 0; k < i; ++k) {
                extent = p.sweeps[k].mode == static_cast<std::int32_t>(m) ? p.sweeps[k].q_extent : extent;
            }
            rows *= static_cast<std::int32_t>(m) == p.sweeps[i].mode ? 1.0 : static_cast<double>(extent);
        }
        shape.rows[i] = rows < 1                          ? 1
                        : rows > most_unpacked_rows<Real> ? most_unpacked_rows<Real> + 1
                                                          : static_cast<std::ptrdiff_t>(rows);
    }
}

/// Slab `slab` of `p`, or all of it.
/// @param capacity real elements of a tile buffer
/// @param sharers threads that share the tiles
template <class Real, int Components>
void make_shape(const plan& whole, const pass& p, std::int64_t slab, std::ptrdiff_t capacity, std::ptrdiff_t sharers,
                pass_shape<Real>& shape) noexcept {
    shape.mode_count = 0;
    shape.loop_count = 0;
    shape.has_lanes = p.lane_mode >= 0 && p.lane_count > 1;
    shape.lanes = {1, 0, 0};
    shape.lane_count = 1;
    shape.offset_in = shape.offset_out = 0;
    shape.empty_sum = false;
    shape.add = p.add;
    shape.resume = false;
    shape.in_place = p.in == p.out;
    shape.far = p.level == "L3" || p.level == "memory";
    shape.past = simd<Real>::stores_lines && p.past_caches && !p.add;    // what is added to is read anyway
    shape.far_out = shape.far && (p.out >= 0 || whole.slab_count <= 1);  // intermediates of slabs lie in L2
    shape.sweep_count = static_cast<int>(p.sweeps.size());
    int position[most_pass_modes];
    const int modes = static_cast<int>(p.modes.size());
    for (int m = 0; m < modes; ++m) {
        position[m] = -1;
    }
    for (int i = 0; i < shape.sweep_count; ++i) {
        position[p.sweeps[static_cast<std::size_t>(i)].mode] = 0;
    }
    std::ptrdiff_t free_tiles = 1;
    for (int m = 0; m < modes; ++m) {
        const pass_mode& from = p.modes[static_cast<std::size_t>(m)];
        std::ptrdiff_t extent = static_cast<std::ptrdiff_t>(from.extent_in);
        const std::ptrdiff_t in = static_cast<std::ptrdiff_t>(from.stride_in) * Components;
        const std::ptrdiff_t out = static_cast<std::ptrdiff_t>(from.stride_out) * Components;
        if (position[m] == 0) {
            position[m] = shape.mode_count;
            shape.modes[shape.mode_count++] = {extent, in, out};
            shape.empty_sum = shape.empty_sum || extent == 0;
            free_tiles = from.extent_out == 0 ? 0 : free_tiles;
            continue;
        }
        if (m == p.slab_mode && whole.slab_extent > 0) {
            const auto scale = static_cast<std::ptrdiff_t>(p.slab_scale);
            const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(slab * whole.slab_extent) * scale;
            const std::ptrdiff_t left = extent - begin;
            extent = static_cast<std::ptrdiff_t>(whole.slab_extent) * scale;
            extent = left < extent ? left : extent;
            shape.offset_in = p.in >= 0 ? begin * in : 0;
            shape.offset_out = p.out >= 0 ? begin * out : 0;
        }
        if (shape.has_lanes && m == p.lane_mode) {
            shape.lanes = {extent, in, out};
            shape.lane_count = static_cast<std::ptrdiff_t>(p.lane_count);
            shape.lane_count = shape.lane_count < extent ? shape.lane_count : extent;
        } else if (extent != 1) {
            tile_loop* last = shape.loop_count > 0 ? &shape.loops[shape.loop_count - 1] : nullptr;
            if (last != nullptr && last->in == extent * in && last->out == extent * out) {
                *last = {last->extent * extent, in, out};
            } else {
                shape.loops[shape.loop_count++] = {extent, in, out};
            }
        }
        free_tiles *= extent;
    }
    shape.lane_blocks = shape.lane_count > 0 ? (shape.lanes.extent + shape.lane_count - 1) / shape.lane_count : 0;
    const planning::short_tail tail = tail_of_tile<Real, Components>(p);
    // The innermost free loop is taken in batches that fill the tile buffers.
    shape.batch = {1, 0, 0};
    shape.batch_count = 1;
    if (shape.loop_count > 0 && shape.lane_blocks == 1) {
        shape.batch = shape.loops[--shape.loop_count];
        const std::ptrdiff_t one = stage_reals<Real, Components>(p, shape.lane_count, tail);
        constexpr auto real_bytes = static_cast<std::ptrdiff_t>(sizeof(Real));
        const std::ptrdiff_t most_reals = static_cast<std::ptrdiff_t>(batch_bytes(p, one * real_bytes)) / real_bytes;
        const std::ptrdiff_t room = capacity - simd<Real>::width;
        const std::ptrdiff_t fit = (room < most_reals ? room : most_reals) / (one > 0 ? one : 1);
        const std::ptrdiff_t fair = (shape.batch.extent + sharers - 1) / sharers;
        shape.batch_count = fit < 1 ? 1 : fit < fair ? fit : fair;
    }
    shape.batch_blocks = shape.batch.extent == 0 ? 0 : (shape.batch.extent + shape.batch_count - 1) / shape.batch_count;
    if (shape.batch_blocks > 0) {  // near-equal batches, of whole blocks where they are rows
        if (shape.loop_count == 0 && shape.batch_blocks > 1) {  // a round for each of the threads
            shape.batch_blocks = (shape.batch_blocks + sharers - 1) / sharers * sharers;
        }
        const std::ptrdiff_t even = (shape.batch.extent + shape.batch_blocks - 1) / shape.batch_blocks;
        const std::ptrdiff_t block = block_shapes<Real, Components>::row_rows(1);
        const std::ptrdiff_t in_blocks = (even + block - 1) / block * block;
        const bool rows = shape.sweep_count == 1 && !shape.has_lanes;
        shape.batch_count = rows && in_blocks <= shape.batch_count ? in_blocks : even;
        shape.batch_blocks = (shape.batch.extent + shape.batch_count - 1) / shape.batch_count;
    }
    shape.tile_count = free_tiles == 0 ? 0 : shape.lane_blocks * shape.batch_blocks;
    for (int k = 0; k < shape.loop_count; ++k) {
        shape.tile_count *= shape.loops[k].extent;
    }
    for (int i = 0; i < shape.sweep_count; ++i) {
        const sweep& s = p.sweeps[static_cast<std::size_t>(i)];
        shape.sweep_mode[i] = position[s.mode];
        shape.p_extent[i] = static_cast<std::ptrdiff_t>(s.p_extent);
        shape.q_extent[i] = static_cast<std::ptrdiff_t>(s.q_extent);
    }
    count_rows(p, shape);
    shape.tail = tail.count > 0 ? static_cast<int>(tail.first) : -1;
    shape.tail_modes = static_cast<int>(tail.count);
    shape.padded_mode = tail.padded > tail.elements ? shape.mode_count - shape.tail_modes - 1 : -1;
    shape.pad_reals = shape.padded_mode < 0 ? 0 : stage_reals<Real, Components>(p, 1, tail) * shape.batch_count;
}

/// Everything about one shape of tile (full or at an end) but the addresses.
template <class Real>
struct tile_job {
    bool direct_in;
    bool direct_out;
    int tail;   ///< as in the shape
    int last;   ///< the sweep that finishes: of several that are done together the first
    bool adds;  ///< it adds to the result itself
    tail_job<Real> tail_work;
    copy_job<Real> load;
    copy_job<Real> store;
    sweep_job<Real> sweeps[most_sweeps];
};

/// The tile's view of one side: strides of [batch][modes] and of the lanes, in real elements.
struct stage_view {
    std::ptrdiff_t batch;
    std::ptrdiff_t lane;
    std::ptrdiff_t modes[most_pass_modes];
};

/// May sweep i be done together with the next? Both replace a mode of extent 3 (4, 5: twin_kernel.hpp), and between buffers a register
/// or more is contiguous inside both. @param extents of the modes before sweep i
template <class Real, int Components>
bool begins_twin(const pass_shape<Real>& shape, int i, const std::ptrdiff_t* extents, std::ptrdiff_t ld) noexcept {
    if (Components != 1 || simd<Real>::width == 1 || i + 1 >= shape.sweep_count) {
        return false;
    }
    int innermost = 0;
    for (int k = i; k < i + 2; ++k) {
        const std::ptrdiff_t extent = shape.p_extent[i];
        if (shape.rows[k] > 0 || !is_twin_extent<Real>(extent) || shape.p_extent[k] != extent ||
            shape.q_extent[k] != extent) {
            return false;
        }
        innermost = shape.sweep_mode[k] > innermost ? shape.sweep_mode[k] : innermost;
    }
    std::ptrdiff_t run = shape.has_lanes ? ld : 1;
    for (int m = innermost + 1; m < shape.mode_count; ++m) {
        run *= extents[m];
    }
    return shape.sweep_mode[i] != shape.sweep_mode[i + 1] && run >= simd<Real>::width;
}

/// The loops of sweep i, with `twin` also of the next, between two views; false where the views do not suit the kernels.
template <class Real, int Components>
bool make_sweep(const pass_shape<Real>& shape, int i, bool twin, const std::ptrdiff_t* extents, std::ptrdiff_t batch,
                std::ptrdiff_t ld, const stage_view& in, const stage_view& out, bool direct_in, bool direct_out,
                sweep_job<Real>& job) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const int on = shape.sweep_mode[i];
    job.p_extent = shape.p_extent[i];
    job.q_extent = shape.q_extent[i];
    job.x_p = in.modes[on];
    job.y_q = out.modes[on];
    job.factor = shape.factors[i].data;
    job.factor_p = shape.factors[i].p_stride;
    job.factor_q = shape.factors[i].q_stride;
    job.finish = epilogue::store;
    job.alpha_re = 1;
    job.alpha_im = 0;
    job.stage_panels = false;
    job.in_place = false;
    job.resume = shape.resume;
    job.ahead = nullptr;
    job.past = shape.past && direct_out;
    job.claim = shape.far_out && direct_out && job.p_extent >= claimed_fibre<Real>;
    job.twin = twin;
    const int also_on = twin ? shape.sweep_mode[i + 1] : on;
    job.x_r = in.modes[also_on];
    job.y_s = out.modes[also_on];
    if (shape.has_lanes && (in.lane != Components || out.lane != Components)) {
        return false;
    }
    std::ptrdiff_t run = ld * Components;
    tile_loop found[sweep_job<Real>::most_loops];  // innermost first
    int count = 0;
    bool in_run = true;  // still extending the run
    bool nests = false;  // the last loop may be extended
    const auto add_loop = [&](std::ptrdiff_t extent, std::ptrdiff_t from, std::ptrdiff_t to) {
        if (extent == 1) {
            return true;
        }
        if (nests && found[count - 1].in * found[count - 1].extent == from &&
            found[count - 1].out * found[count - 1].extent == to) {
            found[count - 1].extent *= extent;
            return true;
        }
        if (count == sweep_job<Real>::most_loops) {
            return false;
        }
        found[count++] = {extent, from, to};
        nests = true;
        return true;
    };
    for (int m = shape.mode_count - 1; m >= 0; --m) {
        if (m == shape.padded_mode && in_run && !direct_in && !direct_out) {
            run = static_cast<std::ptrdiff_t>(planning::round_up(run, width));  // with the gap
        }
        if (m == on || m == also_on) {
            in_run = false;
            nests = false;
            continue;
        }
        if (extents[m] != 1 && in_run && in.modes[m] == run && out.modes[m] == run) {
            run *= extents[m];
            continue;
        }
        in_run = in_run && extents[m] == 1;
        if (!add_loop(extents[m], in.modes[m], out.modes[m])) {
            return false;
        }
    }
    if (!add_loop(batch, in.batch, out.batch)) {
        return false;
    }
    job.loop_count = count;
    for (int k = 0; k < count; ++k) {
        job.loops[k] = found[count - 1 - k];
    }
    // A sum that is taken in parts goes on from what is in y, which is not the result that it is added to.
    const bool in_parts = Components == 1 && (job.factor_p != 0 ? job.factor_q == 0 : job.p_extent > most_part<Real>);
    if (shape.rows[i] > 0) {
        const std::ptrdiff_t length = job.q_extent * Components;
        const bool overlaps = length > width && length % width != 0;
        job.run = 0;
        return in.modes[on] == Components && out.modes[on] == Components &&
               !(direct_out && shape.add && (overlaps || in_parts));
    }
    job.run = run;
    if (!shape.has_lanes && run == Components && Components < width) {
        // Only single elements are contiguous inside the mode: possible between buffers only when they are.
        for (int m = on + 1; m < shape.mode_count; ++m) {
            if (extents[m] != 1) {
                return false;
            }
        }
    }
    if (run < width) {
        return !direct_in && !twin;
    }
    if (direct_out && shape.add && (run % width != 0 || in_parts)) {
        return false;
    }
    job.stage_panels = job.q_extent >= 8 && stages_rows<Real>(job.p_extent, job.q_extent, job.x_p);
    // Between buffers: a block takes all q, and whole registers, so none of its input is another's output.
    job.in_place = !direct_in && !direct_out && job.p_extent == job.q_extent &&
                   job.q_extent <= block_shapes<Real, Components>::fibre_q(job.q_extent) && run % width == 0 &&
                   !job.stage_panels;
    return true;
}

/// The work of a tail kernel between two views; false where they do not suit it. @param job `modes` is set
template <class Real>
bool make_tail(const pass_shape<Real>& shape, int i, const std::ptrdiff_t* extents, std::ptrdiff_t batch,
               const stage_view& in, const stage_view& out, tail_job<Real>& job) noexcept {
    const int modes = job.modes;
    const std::ptrdiff_t extent = shape.p_extent[i];
    std::ptrdiff_t packed = 1;
    for (int k = 1; k <= modes; ++k, packed *= extent) {
        const int m = shape.mode_count - k;
        if (in.modes[m] != packed || out.modes[m] != packed) {
            return false;
        }
        job.factors[modes - k] = shape.factors[i + modes - k].data;
    }
    tile_loop all = {1, packed, packed};
    for (int m = shape.mode_count - modes - 1; m >= -1; --m) {  // -1: the batch
        const std::ptrdiff_t count = m < 0 ? batch : extents[m];
        const std::ptrdiff_t from = m < 0 ? in.batch : in.modes[m];
        const std::ptrdiff_t to = m < 0 ? out.batch : out.modes[m];
        if (count == 1) {
            continue;
        }
        if (all.extent == 1) {
            all.in = from;
            all.out = to;
        } else if (all.in * all.extent != from || all.out * all.extent != to) {
            return false;
        }
        all.extent *= count;
    }
    job.run = tail_kernel_for<Real>(extent, modes);
    job.count = all.extent;
    job.x_step = all.in;
    job.y_step = all.out;
    job.finish = epilogue::store;
    job.alpha = 1;
    job.past = job.claim = false;
    job.ahead = nullptr;
    return true;
}

/// Sets what the last sweep does with its sums.
template <class Real>
void set_scalar(tile_job<Real>& job, Real re, Real im) noexcept {
    const epilogue finish = job.adds                   ? epilogue::scale_add
                            : re != Real(1) || im != 0 ? epilogue::scale
                                                       : epilogue::store;
    sweep_job<Real>& last = job.sweeps[job.last];
    last.alpha_re = re;
    last.alpha_im = im;
    last.finish = finish;
    if (job.last == job.tail) {
        job.tail_work.alpha = re;
        job.tail_work.finish = finish;
    }
}

/// Does the sweep that finishes a tile, which it writes at y, store whole cache lines? @pre it is no tail
template <class Real, int Components>
bool stores_lines(const tile_job<Real>& job, const Real* y) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const sweep_job<Real>& last = job.sweeps[job.last];
    bool whole =
        is_line(y) && (last.run == 0 ? last.q_extent * Components % width == 0
                                     : last.run % width == 0 && last.y_q % width == 0 && last.y_s % width == 0);
    for (int k = 0; k < last.loop_count; ++k) {
        whole = whole && last.loops[k].out % width == 0;
    }
    return whole;
}

/// Prepares a tile of `lanes` lanes and `batch` batch indices.
template <class Real, int Components>
void make_job(const pass_shape<Real>& shape, std::ptrdiff_t lanes, std::ptrdiff_t batch, tile_job<Real>& job) noexcept {
    const std::ptrdiff_t ld = shape.has_lanes ? padded_lanes<Real, Components>(lanes) : 1;
    const int n = shape.sweep_count;
    std::ptrdiff_t extents[most_pass_modes];
    const auto buffer_view = [&](stage_view& v) {
        std::ptrdiff_t next = ld * Components;
        for (int m = shape.mode_count - 1; m >= 0; --m) {
            next = m == shape.padded_mode ? static_cast<std::ptrdiff_t>(planning::round_up(next, simd<Real>::width))
                                          : next;
            v.modes[m] = next;
            next *= extents[m];
        }
        v.batch = next;
        v.lane = Components;
    };
    const auto memory_view = [&](stage_view& v, bool input) {
        for (int m = 0; m < shape.mode_count; ++m) {
            v.modes[m] = input ? shape.modes[m].in : shape.modes[m].out;
        }
        v.batch = input ? shape.batch.in : shape.batch.out;
        v.lane = input ? shape.lanes.in : shape.lanes.out;
    };
    const auto make_copy = [&](copy_job<Real>& c, bool input) {
        stage_view memory, buffer;
        memory_view(memory, input);
        buffer_view(buffer);
        c.lanes = lanes;
        c.lane_stride = input ? shape.lanes.in : shape.lanes.out;
        c.padded_lanes = ld;
        c.loop_count = 0;
        c.inner = {1, Components, ld * Components};
        c.add = !input && shape.add;
        c.conjugate = input && shape.conjugate;
        c.past = !input && shape.past;
        bool first = true, nests = true;
        tile_loop found[most_pass_modes + 1];
        int count = 0;
        const auto add_loop = [&](std::ptrdiff_t extent, std::ptrdiff_t from, std::ptrdiff_t to) {
            if (extent == 1) {
                return;
            }
            if (first) {
                c.inner = {extent, from, to};
                first = false;
            } else if (count == 0 && nests && c.inner.in * c.inner.extent == from &&
                       c.inner.out * c.inner.extent == to) {
                c.inner.extent *= extent;
            } else if (count > 0 && found[count - 1].in * found[count - 1].extent == from &&
                       found[count - 1].out * found[count - 1].extent == to) {
                found[count - 1].extent *= extent;
            } else {
                found[count++] = {extent, from, to};
            }
        };
        for (int m = shape.mode_count - 1; m >= 0; --m) {
            add_loop(extents[m], memory.modes[m], buffer.modes[m]);
        }
        add_loop(batch, memory.batch, buffer.batch);
        c.loop_count = count;
        for (int k = 0; k < count; ++k) {
            c.loops[k] = found[count - 1 - k];
        }
    };

    for (int m = 0; m < shape.mode_count; ++m) {
        extents[m] = shape.modes[m].extent;
    }
    stage_view before, after;
    const bool whole_registers = !shape.has_lanes || lanes * Components >= simd<Real>::width;
    std::ptrdiff_t last_extents[most_pass_modes];
    for (int m = 0; m < shape.mode_count; ++m) {
        last_extents[m] = extents[m];
    }
    for (int i = 0; i < n; ++i) {
        last_extents[shape.sweep_mode[i]] = shape.q_extent[i];
    }
    // Short rows far apart, all on the same few sets of the first-level cache, would evict each other between the blocks that
    // use them: such a tile is copied, row by row, each cache line once.
    const auto rows_evict = [&](bool input) {
        const std::ptrdiff_t row_bytes = lanes * Components * static_cast<std::ptrdiff_t>(sizeof(Real));
        std::ptrdiff_t rows = 1, nearest = 0;
        for (int m = 0; m < shape.mode_count; ++m) {
            const std::ptrdiff_t stride = input ? shape.modes[m].in : shape.modes[m].out;
            nearest = nearest == 0 || stride < nearest ? stride : nearest;
            rows *= input ? extents[m] : last_extents[m];
        }
        nearest *= static_cast<std::ptrdiff_t>(sizeof(Real));
        constexpr std::ptrdiff_t short_row = 256;
        return n > 1 && shape.has_lanes && row_bytes < short_row && nearest > row_bytes && rows_collide(rows, nearest);
    };
    job.direct_in = whole_registers && !shape.conjugate && !rows_evict(true);
    job.direct_out = whole_registers && !rows_evict(false);
    job.tail = shape.tail;
    job.tail_work.modes = shape.tail_modes;
    if (shape.in_place && (n == 1 || (n == 2 && begins_twin<Real, Components>(shape, 0, extents, ld)))) {
        job.direct_in = false;  // it would overwrite what it still reads
    }
    for (int i = 0; i < n; ++i) {
        const int on = shape.sweep_mode[i];
        const bool tail = i == job.tail;
        const bool twin = !tail && i + 1 != job.tail && begins_twin<Real, Components>(shape, i, extents, ld);
        const int end = i + (tail ? job.tail_work.modes : twin ? 2 : 1);
        bool in_direct = i == 0 && job.direct_in;
        bool out_direct = end == n && job.direct_out;
        // Try the operands themselves first, then one of them, then buffers on both sides.
        for (int attempt = 0;; ++attempt) {
            const bool from_memory = in_direct && attempt != 2 && attempt < 3;
            const bool to_memory = out_direct && attempt != 1 && attempt < 3;
            if (attempt > 0 && attempt < 3 && !(in_direct && out_direct)) {
                continue;
            }
            from_memory ? memory_view(before, true) : buffer_view(before);
            extents[on] = shape.q_extent[i];
            to_memory ? memory_view(after, false) : buffer_view(after);
            extents[on] = shape.p_extent[i];
            if ((tail ? make_tail(shape, i, extents, batch, before, after, job.tail_work)
                      : make_sweep<Real, Components>(shape, i, twin, extents, batch, ld, before, after, from_memory,
                                                     to_memory, job.sweeps[i])) ||
                attempt >= 3) {
                in_direct = from_memory;
                out_direct = to_memory;
                break;
            }
        }
        if (twin) {
            job.sweeps[i + 1].factor = shape.factors[i + 1].data;
        }
        if (i == 0) {
            job.direct_in = in_direct;
            if (!in_direct) {
                make_copy(job.load, true);
            }
        }
        extents[on] = shape.q_extent[i];
        if (tail) {
            job.tail_work.past = shape.past && out_direct;
            job.tail_work.claim = shape.far_out && out_direct;
        }
        if (end == n) {
            job.direct_out = out_direct;
            job.last = i;
            job.adds = shape.add && out_direct;
            set_scalar(job, shape.alpha_re, shape.alpha_im);
            if (!out_direct) {
                make_copy(job.store, false);
            }
        }
        i = end - 1;
    }
}

/// One tile from memory to memory. @param a, b tile buffers
template <class Real, int Components>
OTIMES_NOINLINE void run_tile(const tile_job<Real>& job, int sweep_count, const Real* from, Real* to, Real* a,
                              Real* b) noexcept {
    const Real* now = from;
    Real* next = a;
    Real* other = b;
    if (!job.direct_in) {
        load_tile<Real, Components>(job.load, from, a);
        now = a;
        next = b;
        other = a;
    }
    for (int i = 0; i < sweep_count; ++i) {
        const sweep_job<Real>& sweep = job.sweeps[i];
        const bool tail = i == job.tail;
        const bool twin = !tail && sweep.twin;
        const bool in_place = !tail && now != from && sweep.in_place;  // now is a buffer, and half the cache is enough
        i += tail ? job.tail_work.modes - 1 : twin ? 1 : 0;
        Real* const target = in_place ? other : job.direct_out && i == sweep_count - 1 ? to : next;
        if (tail) {
            job.tail_work.run(job.tail_work, now, target);
        } else if (Components == 1 && twin) {
            run_twin<Real>(sweep, job.sweeps[i].factor, now, target);
        } else {
            run_sweep<Real, Components>(sweep, now, target);
        }
        if (in_place) {
            continue;
        }
        now = target;
        next = other;
        other = target;
    }
    if (!job.direct_out) {
        store_tile<Real, Components>(job.store, now, to);
    }
}

/// Bytes of what a tile of `lanes` lanes and `batch` batch indices reads or, `written`, writes, where that is one piece of memory;
/// else 0.
template <class Real, int Components>
std::ptrdiff_t packed_tile_bytes(const pass_shape<Real>& shape, std::ptrdiff_t lanes, std::ptrdiff_t batch,
                                 bool written = false) noexcept {
    std::ptrdiff_t next = Components;
    bool used[most_pass_modes + 2] = {};
    const int count = shape.mode_count + 2;
    for (int found = 0; found < count; ++found) {
        int hit = -1;
        std::ptrdiff_t extent = 1;
        for (int m = 0; m < count && hit < 0; ++m) {
            tile_loop loop = m == shape.mode_count ? shape.lanes : shape.batch;
            loop.extent = m == shape.mode_count ? lanes : batch;
            if (m < shape.mode_count) {
                loop = {shape.modes[m].extent, shape.modes[m].in, shape.modes[m].out};
                for (int i = 0; written && i < shape.sweep_count; ++i) {
                    loop.extent = shape.sweep_mode[i] == m ? shape.q_extent[i] : loop.extent;
                }
            }
            if (!used[m] && (loop.extent == 1 || (written ? loop.out : loop.in) == next)) {
                hit = m;
                extent = loop.extent;
            }
        }
        if (hit < 0) {
            return 0;
        }
        used[hit] = true;
        next *= extent;
    }
    return next * static_cast<std::ptrdiff_t>(sizeof(Real));
}

/// About how often the kernels of a tile ask for what is read ahead.
template <class Real, int Components>
std::ptrdiff_t blocks_of_tile(const pass_shape<Real>& shape, std::ptrdiff_t lanes, std::ptrdiff_t batch) noexcept {
    std::ptrdiff_t elements = lanes * batch * Components;
    std::ptrdiff_t extents[most_pass_modes];
    for (int m = 0; m < shape.mode_count; ++m) {
        extents[m] = shape.modes[m].extent;
        elements *= extents[m];
    }
    std::ptrdiff_t blocks = 0;
    for (int i = 0; i < shape.sweep_count; ++i) {
        const std::ptrdiff_t q = shape.q_extent[i];
        if (i == shape.tail) {
            std::ptrdiff_t group = rows_side_by_side<Real>(q);
            for (int k = 0; k < shape.tail_modes; ++k) {
                group *= q;
            }
            blocks += elements / group;
            i += shape.tail_modes - 1;
            continue;
        }
        if (i + 1 != shape.tail && begins_twin<Real, Components>(shape, i, extents, lanes)) {
            blocks += elements / (simd<Real>::width * q * q);
            ++i;
            continue;
        }
        extents[shape.sweep_mode[i]] = q;
        elements = shape.p_extent[i] > 0 ? elements / shape.p_extent[i] * q : 0;
        if (shape.p_extent[i] >= long_fibre<Real> && q > 0) {  // registers of i, in threes, times blocks of q
            const int block = block_shapes<Real, Components>::fibre_q(q);
            blocks += elements / (3 * simd<Real>::width * q) * ((q + block - 1) / block);
        }
    }
    return blocks;
}

/// Sets what is to be asked for during `blocks` blocks.
inline void read_ahead_of(read_ahead& r, const void* from, std::ptrdiff_t bytes, std::ptrdiff_t blocks,
                          const void* then = nullptr, std::ptrdiff_t bytes_then = 0) noexcept {
    constexpr std::ptrdiff_t most_lines = 8;  // of more too few arrive in time, and the kernels wait
    const std::ptrdiff_t lines = (bytes + bytes_then + read_ahead::line - 1) / read_ahead::line;
    const std::ptrdiff_t each = blocks > 0 ? (lines + blocks - 1) / blocks : 0;
    r.next = static_cast<const char*>(from);
    r.left = each > 0 ? bytes : 0;
    r.then = static_cast<const char*>(then);
    r.left_then = each > 0 ? bytes_then : 0;
    r.lines_per_block = each < most_lines ? each : most_lines;
}

/// Bytes up to which the input of the next tile, and input and output of a slab, are asked for: beside what is computed on they
/// stay in L2.
inline constexpr std::ptrdiff_t most_ahead_bytes = 256 * 1024;
template <class Real>
inline constexpr std::ptrdiff_t most_slab_bytes = (simd<Real>::has_masks ? 512 : 128) * 1024;

/// Sets tile buffers with gaps to zero: what is computed there must cost no more than other numbers.
template <class Real>
OTIMES_INLINE void clear_gaps(const pass_shape<Real>& shape, Real* a, Real* b) noexcept {
    if (shape.pad_reals > 0) {
        std::memset(a, 0, static_cast<std::size_t>(shape.pad_reals) * sizeof(Real));
        std::memset(b, 0, static_cast<std::size_t>(shape.pad_reals) * sizeof(Real));
    }
}

/// Tiles [begin, end) of a pass from x to y. @param a, b tile buffers of the calling thread
/// @param slab_ahead where the caller asks for whole slabs; nullptr: each tile asks for the next one
template <class Real, int Components>
void run_tiles(const pass_shape<Real>& shape, std::ptrdiff_t begin, std::ptrdiff_t end, const Real* x, Real* y, Real* a,
               Real* b, read_ahead* slab_ahead) noexcept {
    read_ahead tile_ahead;
    std::ptrdiff_t ahead_bytes = 0;
    if (slab_ahead == nullptr && shape.far && end - begin > 1) {
        ahead_bytes = packed_tile_bytes<Real, Components>(shape, shape.lane_count, shape.batch_count);
        ahead_bytes = ahead_bytes <= most_ahead_bytes ? ahead_bytes : 0;
    }
    read_ahead* const ahead = ahead_bytes > 0 ? &tile_ahead : slab_ahead;
    const std::ptrdiff_t blocks =
        ahead_bytes > 0 ? blocks_of_tile<Real, Components>(shape, shape.lane_count, shape.batch_count) : 0;
    tile_job<Real> jobs[4];  // full and last lanes x full and last batch, made when first met
    bool made[4] = {false, false, false, false};
    std::ptrdiff_t at[most_pass_modes];
    std::ptrdiff_t rest = begin;
    std::ptrdiff_t lane_block = rest % shape.lane_blocks;
    rest /= shape.lane_blocks;
    std::ptrdiff_t batch_block = rest % shape.batch_blocks;
    rest /= shape.batch_blocks;
    clear_gaps(shape, a, b);
    const Real* x_loop = x + shape.offset_in;
    Real* y_loop = y + shape.offset_out;
    for (int k = shape.loop_count - 1; k >= 0; --k) {
        at[k] = rest % shape.loops[k].extent;
        rest /= shape.loops[k].extent;
        x_loop += at[k] * shape.loops[k].in;
        y_loop += at[k] * shape.loops[k].out;
    }
    for (std::ptrdiff_t tile = begin; tile < end; ++tile) {
        const std::ptrdiff_t lane = lane_block * shape.lane_count;
        const std::ptrdiff_t batch = batch_block * shape.batch_count;
        const bool last_lanes = lane + shape.lane_count > shape.lanes.extent;
        const bool last_batch = batch + shape.batch_count > shape.batch.extent;
        const int kind = (last_lanes ? 1 : 0) + (last_batch ? 2 : 0);
        tile_job<Real>& job = jobs[kind];
        if (!made[kind]) {
            make_job<Real, Components>(shape, last_lanes ? shape.lanes.extent - lane : shape.lane_count,
                                       last_batch ? shape.batch.extent - batch : shape.batch_count, job);
            if constexpr (simd<Real>::stores_lines) {  // lines that are stored whole need not be asked for
                const Real* const to = y_loop + lane * shape.lanes.out + batch * shape.batch.out;
                if (shape.past && job.last != job.tail && stores_lines<Real, Components>(job, to)) {
                    job.sweeps[job.last].claim = false;
                }
            }
            made[kind] = true;
            for (int i = 0; i < shape.sweep_count; ++i) {
                job.sweeps[i].ahead = ahead;
            }
            job.tail_work.ahead = ahead;
        }
        const Real* const from = x_loop + lane * shape.lanes.in + batch * shape.batch.in;
        if (ahead_bytes > 0 && tile + 1 < end) {  // tiles of one piece mostly follow each other
            read_ahead_of(tile_ahead, reinterpret_cast<const char*>(from) + ahead_bytes, ahead_bytes, blocks);
        }
        run_tile<Real, Components>(job, shape.sweep_count, from,
                                   y_loop + lane * shape.lanes.out + batch * shape.batch.out, a, b);
        if (++lane_block < shape.lane_blocks) {
            continue;
        }
        lane_block = 0;
        if (++batch_block < shape.batch_blocks) {
            continue;
        }
        batch_block = 0;
        for (int k = shape.loop_count - 1; k >= 0; --k) {
            x_loop += shape.loops[k].in;
            y_loop += shape.loops[k].out;
            if (++at[k] < shape.loops[k].extent) {
                break;
            }
            x_loop -= shape.loops[k].extent * shape.loops[k].in;
            y_loop -= shape.loops[k].extent * shape.loops[k].out;
            at[k] = 0;
        }
    }
}

/// A pass that contracts nothing, or over nothing: y (+)= alpha * x, or y (+)= 0. Plain loops.
template <class Real, int Components>
void run_copy(const plan& whole, const pass& p, const pass_shape<Real>& shape, std::int64_t slab, const Real* x,
              Real* y) noexcept {
    if (shape.empty_sum && shape.add) {
        return;
    }
    tile_loop loops[most_pass_modes];
    std::ptrdiff_t at[most_pass_modes];
    int count = 0;
    for (std::size_t m = 0; m < p.modes.size(); ++m) {
        std::ptrdiff_t extent = static_cast<std::ptrdiff_t>(p.modes[m].extent_out);
        if (static_cast<std::int32_t>(m) == p.slab_mode && whole.slab_extent > 0) {
            const auto scale = static_cast<std::ptrdiff_t>(p.slab_scale);
            const std::ptrdiff_t slab_extent = static_cast<std::ptrdiff_t>(whole.slab_extent) * scale;
            const std::ptrdiff_t left = extent - static_cast<std::ptrdiff_t>(slab) * slab_extent;
            extent = left < slab_extent ? left : slab_extent;
        }
        if (extent == 0) {
            return;
        }
        at[count] = 0;
        loops[count++] = {extent, static_cast<std::ptrdiff_t>(p.modes[m].stride_in) * Components,
                          static_cast<std::ptrdiff_t>(p.modes[m].stride_out) * Components};
    }
    x += shape.empty_sum ? 0 : shape.offset_in;
    y += shape.offset_out;
    const bool plain = shape.alpha_re == Real(1) && shape.alpha_im == 0;
    for (;;) {
        Real re = 0, im = 0;
        if (!shape.empty_sum) {
            re = x[0];
            im = Components == 2 ? (shape.conjugate ? -x[Components - 1] : x[Components - 1]) : Real(0);
            if (!plain) {
                const Real scaled = Components == 2 ? shape.alpha_re * re - shape.alpha_im * im : shape.alpha_re * re;
                im = Components == 2 ? shape.alpha_re * im + shape.alpha_im * re : Real(0);
                re = scaled;
            }
        }
        y[0] = shape.add ? y[0] + re : re;
        if (Components == 2) {
            y[1] = shape.add ? y[1] + im : im;
        }
        int k = count - 1;
        for (; k >= 0; --k) {
            x += shape.empty_sum ? 0 : loops[k].in;
            y += loops[k].out;
            if (++at[k] < loops[k].extent) {
                break;
            }
            x -= shape.empty_sum ? 0 : loops[k].extent * loops[k].in;
            y -= loops[k].extent * loops[k].out;
            at[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

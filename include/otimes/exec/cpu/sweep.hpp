// SPDX-License-Identifier: MIT
/// @file sweep.hpp
/// One sweep over one tile: replaces one mode of extent P by one of extent Q,
///
///     y[o, q, i] = sum_p x[o, p, i] * F[p, q]          o: loops outside the mode, i: what is contiguous inside it
///
/// by grids of blocks (micro_kernel.hpp). With i of a register or more the vectors run along i (*fibre*); with i shorter,
/// several o form the registers of a block; with no i at all the vectors run along q (*row*). Which of these, the size of
/// the blocks and so the order in which the factor is packed depend on P, Q and the tile's shape only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <otimes/exec/cpu/column_kernel.hpp>
#include <otimes/exec/cpu/micro_kernel.hpp>
#include <otimes/exec/cpu/rows_in_registers.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// A loop over tiles or over parts of one; strides count real elements.
struct tile_loop {
    std::ptrdiff_t extent, in, out;
};

/// n things in the fewest blocks of at most `largest`, of two sizes that differ by one: `big_count` of `small + 1`, then
/// `small_count` of `small`.
struct even_split {
    std::ptrdiff_t big_count = 0;
    std::ptrdiff_t small_count = 0;
    int small = 0;
    [[nodiscard]] int big() const noexcept { return small + 1; }
};
inline even_split split_evenly(std::ptrdiff_t n, int largest) noexcept {
    even_split s;
    if (n <= 0) {
        return s;
    }
    const std::ptrdiff_t blocks = (n + largest - 1) / largest;
    s.small = static_cast<int>(n / blocks);
    s.big_count = n - blocks * s.small;
    s.small_count = blocks - s.big_count;
    return s;
}

/// The blocks that exist. Rows are real rows (a complex row is two).
template <class Real, int Components>
struct block_shapes {
    static constexpr bool many_registers = OTIMES_TARGET_SIMD_REGISTERS >= 32;
    static constexpr int most_vectors = many_registers ? 3 : 2;  ///< of a row block
    static constexpr int most_rows = many_registers ? 8 : 6;

    /// Registers along the vectors that a fibre block of `rows` takes at most.
    static constexpr int vectors_for(int rows) noexcept { return many_registers || rows <= 3 ? 3 : 2; }
    /// Most values of q in a fibre block. Measured with 16 registers at P = 8: 4 x 2 reaches 97 % of peak and 4 x 3, which
    /// leaves no register free, 82 %; one block of 5 or 6 beats two.
    static constexpr int fibre_q(std::ptrdiff_t q_extent) noexcept {
        if constexpr (Components == 2) {
            return many_registers ? 4 : q_extent % 3 == 0 && q_extent % 2 != 0 ? 3 : 2;
        } else {
            return many_registers ? 8 : q_extent == 5 || q_extent == 10 ? 5 : q_extent == 6 ? 6 : q_extent == 9 ? 3 : 4;
        }
    }
    /// Rows of the tile in a row block of `vectors` registers of q.
    static constexpr int row_rows(int vectors) noexcept {
        return (many_registers || vectors == 1 ? 8 : 4) / Components;
    }

    using kernel = void (*)(const block_grid<Real>&) noexcept;
    /// Fibre kernel for `q` values of q and `vectors` registers.
    static kernel fibre(int q, int vectors) noexcept {
        return fibre_table[static_cast<std::size_t>(q * Components - 1)][static_cast<std::size_t>(vectors - 1)];
    }
    /// Row kernel: the full block (`full`) or one row.
    static kernel row(bool full, int vectors) noexcept {
        return row_table[full ? 1 : 0][static_cast<std::size_t>(vectors - 1)];
    }
    /// Rows of half a block, and their kernel; nullptr: there is none.
    static constexpr int half_rows = 4;
    static kernel half(int vectors) noexcept { return half_table[static_cast<std::size_t>(vectors - 1)]; }

private:
    template <int Rows, int Vectors>
    static constexpr kernel fibre_entry() noexcept {
        if constexpr (Rows % Components == 0 && Vectors <= vectors_for(Rows)) {
            return &block_kernel<Real, Rows, Vectors, false, Components>;
        } else {
            return nullptr;
        }
    }
    template <int Rows>
    static constexpr std::array<kernel, 3> fibre_entries() noexcept {
        return {fibre_entry<Rows, 1>(), fibre_entry<Rows, 2>(), fibre_entry<Rows, 3>()};
    }
    template <int... Rows>
    static constexpr std::array<std::array<kernel, 3>, sizeof...(Rows)> make_fibre(
        std::integer_sequence<int, Rows...>) noexcept {
        return {fibre_entries<Rows + 1>()...};
    }
    template <int Rows, int Vectors>
    static constexpr kernel row_entry() noexcept {
        if constexpr (Vectors <= most_vectors) {
            return &block_kernel<Real, Rows, Vectors, true, Components>;
        } else {
            return nullptr;
        }
    }
    template <int Vectors>
    static constexpr kernel half_entry() noexcept {
        if constexpr (Components == 1 && Vectors <= most_vectors && row_rows(Vectors) > half_rows) {
            return &block_kernel<Real, half_rows, Vectors, true, Components>;
        } else {
            return nullptr;
        }
    }
    static constexpr std::array<kernel, 3> half_table = {half_entry<1>(), half_entry<2>(), half_entry<3>()};
    static constexpr std::array<std::array<kernel, 3>, most_rows> fibre_table =
        make_fibre(std::make_integer_sequence<int, most_rows>());
    static constexpr std::array<std::array<kernel, 3>, 2> row_table = {
        {{row_entry<Components, 1>(), row_entry<Components, 2>(), row_entry<Components, 3>()},
         {row_entry<row_rows(1) * Components, 1>(), row_entry<row_rows(2) * Components, 2>(),
          row_entry<row_rows(3) * Components, 3>()}}};
};

/// Everything about one sweep of one tile shape but the addresses. Made often and used only in part: not initialised.
template <class Real>
struct sweep_job {
    static constexpr int most_loops = 8;
    std::ptrdiff_t p_extent, q_extent;
    std::ptrdiff_t x_p;  ///< from p to p + 1
    std::ptrdiff_t y_q;  ///< from q to q + 1
    std::ptrdiff_t run;  ///< real elements that are contiguous inside the mode in x and y; 0: row sweep
    int loop_count;
    bool stage_panels;  ///< rows p of x fall on the same few cache sets: copy them before use
    bool twin;          ///< done together with the next sweep (twin_kernel.hpp), whose strides are x_r and y_s
    std::ptrdiff_t x_r, y_s;
    read_ahead* ahead;  ///< what is asked for meanwhile; nullptr: nothing
    bool past;          ///< whole cache lines of y are stored past the caches
    bool claim;         ///< y lies far away: blocks ask for what they will write
    bool resume;        ///< y holds the sums over the p before these
    bool in_place;      ///< every block reads all that it writes, and nothing that another block writes
    epilogue finish;
    Real alpha_re, alpha_im;
    const Real* factor;
    std::ptrdiff_t factor_p;      ///< row sweep: from p to p + 1 where it is read as it lies; 0: packed
    std::ptrdiff_t factor_q;      ///< where it is: from q to q + 1, factor_p is 1; 0: the q of a p lie side by side
    tile_loop loops[most_loops];  ///< outermost first
};

/// Bytes of the stack that a sweep uses to bring rows together that collide or lie far apart: with a block's share of the factor and of
/// the results they fit the first-level cache.
template <class Real>
inline constexpr std::ptrdiff_t stage_bytes = (simd<Real>::has_masks ? 32 : 24) * 1024;

/// Indices p that a sweep takes at once. Of a longer fibre the sums over one part stay in y and the next part goes on with them, in the
/// same order, so that the bits are those of one sum; meanwhile a part of the factor stays in the second-level cache, and the three or
/// four registers of each p that all q share in the first. Source: Goto and van de Geijn (2008); see docs/references.md.
template <class Real>
inline constexpr std::ptrdiff_t most_part = stage_bytes<Real> / ((simd<Real>::has_masks ? 3 : 4) * simd<Real>::width *
                                                                 static_cast<std::ptrdiff_t>(sizeof(Real)));

/// Fibres from which on blocks ask for memory ahead: between blocks of fewer multiply-adds it costs more than it hides. Measured:
/// with registers of 64 bytes rows of 7^4 take 0.7 of the time, and 3^7 1.05; on AVX2 rows of 5^5 lose up to a fifth. Sweeps that do several
/// modes at once always ask, between more multiply-adds: 3^7 in float takes 0.87 of the time from memory, and up to 1.05 from a cache.
template <class Real>
inline constexpr std::ptrdiff_t long_fibre = simd<Real>::has_masks ? 5 : 12;

/// Fibres from which on blocks ask for the lines that they will write. Stores to far memory leave one after the other, each when its
/// line has come; while a block of sums is computed all of its lines come. Measured by columns on two cores: with registers of 64
/// bytes 8^5, 16^4 and 128^2 take 0.87 to 0.94 of the time; with those of 32 bytes 8^5 and 16^4 0.89, 5^5 and 6^5 up to 1.1.
template <class Real>
inline constexpr std::ptrdiff_t claimed_fibre = simd<Real>::has_masks ? 5 : 8;

/// True when P rows at a stride fall on so few sets of a first-level cache (64 sets of 64 bytes, 8 ways) that they evict
/// each other before they are used again.
inline bool rows_collide(std::ptrdiff_t p_extent, std::ptrdiff_t stride_bytes) noexcept {
    const std::ptrdiff_t lowest = stride_bytes & -stride_bytes;
    const std::ptrdiff_t places = lowest >= 4096 ? 1 : 4096 / (lowest < 64 ? 64 : lowest);
    return p_extent > 8 && p_extent > 6 * places;
}

/// The largest extents of a factor whose fibres are read as they lie although their rows collide. They come from the second-level cache
/// again for every block of q, of square factors two to four times, while copies on the stack wait for the stores of the results in front of
/// them. Measured on two Xeons by columns, as they lie: 16^4 0.80 and 0.85 of the time in float, 0.72 and 0.91 in double, compiled for
/// AVX2 0.88 and 0.78. What is read more often stays no longer where neighbours take their share of the cache: 48^3 0.92 and 1.8; two factors
/// of 16 > 64 and 16 > 128 in double 1.23 and 1.29.
inline constexpr std::ptrdiff_t most_unstaged = 16;

/// Must rows p of x, `stride` real elements apart, be brought together for q_extent sums each?
template <class Real>
bool stages_rows(std::ptrdiff_t p_extent, std::ptrdiff_t q_extent, std::ptrdiff_t stride) noexcept {
    return (p_extent > most_unstaged || q_extent > most_unstaged) &&
           rows_collide(p_extent, stride * static_cast<std::ptrdiff_t>(sizeof(Real)));
}

/// Calls a kernel on its grid, which asks for its share of what is read ahead. @param ahead nullptr: nothing
template <class Real>
void call_kernel(void (*kernel)(const block_grid<Real>&) noexcept, block_grid<Real>& g, read_ahead* ahead) noexcept {
    if (ahead != nullptr) {
        g.ahead = ahead->take(g.n1 * g.n0);
        g.ahead_lines = ahead->lines_per_block;
    }
    kernel(g);
}

/// Calls the fibre kernels for all q on g.n1 blocks of `vectors` registers.
template <class Real, int Components>
void fibre_blocks(const sweep_job<Real>& j, block_grid<Real>& g, int vectors, read_ahead* ahead) noexcept {
    using shapes = block_shapes<Real, Components>;
    const even_split q = split_evenly(j.q_extent, shapes::fibre_q(j.q_extent));
    Real* const c = g.c;
    if (q.big_count > 0) {
        g.a = j.factor + q.big() * g.p_first * Components;
        g.n0 = q.big_count;
        g.a0 = q.big() * j.p_extent * Components;
        g.c0 = q.big() * j.y_q;
        call_kernel<Real>(shapes::fibre(q.big(), vectors), g, ahead);
    }
    g.a = j.factor + (q.big_count * q.big() * j.p_extent + q.small * g.p_first) * Components;
    g.c = c + q.big_count * q.big() * j.y_q;
    g.n0 = q.small_count;
    g.a0 = q.small * j.p_extent * Components;
    g.c0 = q.small * j.y_q;
    call_kernel<Real>(shapes::fibre(q.small, vectors), g, ahead);
    g.c = c;
}

/// `count` registers that lie `in` and `out` apart, in blocks. With `around`, once for each index of that loop: the kernel
/// then runs through the loop and the blocks of a register group are taken one after the other, so that many short runs
/// cost few calls.
template <class Real, int Components>
void fibre_vectors(const sweep_job<Real>& j, block_grid<Real>& g, std::ptrdiff_t count, std::ptrdiff_t in,
                   std::ptrdiff_t out, read_ahead* ahead, const tile_loop* around = nullptr) noexcept {
    using shapes = block_shapes<Real, Components>;
    g.b_vector = in;
    g.c_vector = out;
    const even_split q = split_evenly(j.q_extent, shapes::fibre_q(j.q_extent));
    const int rows = (q.big_count > 0 ? q.big() : q.small) * Components;
    const even_split v = split_evenly(count, shapes::vectors_for(rows));
    const auto blocks = [&](int vectors, std::ptrdiff_t n) {
        if (n == 0) {
            return;
        }
        if (around == nullptr) {
            g.n1 = n;
            g.b1 = vectors * in;
            g.c1 = vectors * out;
            fibre_blocks<Real, Components>(j, g, vectors, ahead);
            g.b += n * g.b1;
            g.c += n * g.c1;
            return;
        }
        g.n1 = around->extent;
        g.b1 = around->in;
        g.c1 = around->out;
        for (std::ptrdiff_t i = 0; i < n; ++i) {
            fibre_blocks<Real, Components>(j, g, vectors, ahead);
            g.b += vectors * in;
            g.c += vectors * out;
        }
    };
    blocks(v.big(), v.big_count);
    blocks(v.small, v.small_count);
}

/// Contiguous runs of x and y: one, or one for each index of `around`.
/// The end of a run that is no multiple of the width is covered by a register that overlaps the one before it, in the
/// same block, so nothing outside the run is touched.
template <class Real, int Components>
void fibre_run(const sweep_job<Real>& j, block_grid<Real>& g, const Real* x, Real* y, std::ptrdiff_t x_p,
               std::ptrdiff_t run, read_ahead* ahead, const tile_loop* around = nullptr) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const std::ptrdiff_t whole = run / width;
    const std::ptrdiff_t rest = run % width;
    g.b_p = x_p;
    const std::ptrdiff_t single = rest == 0 ? whole : whole - 1;
    if (single > 0) {
        g.b = x;
        g.c = y;
        fibre_vectors<Real, Components>(j, g, single, width, width, ahead, around);
    }
    if (rest > 0) {
        g.b = x + single * width;
        g.c = y + single * width;
        g.b_vector = g.c_vector = rest;
        g.n1 = around != nullptr ? around->extent : 1;
        g.b1 = around != nullptr ? around->in : 0;
        g.c1 = around != nullptr ? around->out : 0;
        fibre_blocks<Real, Components>(j, g, 2, ahead);
    }
}

/// Runs of a register or more whose rows p collide in the cache, or are many: brought together first, a few registers wide.
/// @pre g.p_extent <= most_part, or a register of each p fits stage_bytes and the run is whole registers
template <class Real, int Components>
void fibre_staged(const sweep_job<Real>& j, block_grid<Real>& g, const Real* x, Real* y, read_ahead* ahead) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    alignas(64) Real stage[stage_bytes<Real> / static_cast<std::ptrdiff_t>(sizeof(Real))];
    const std::ptrdiff_t wide = stage_bytes<Real> / static_cast<std::ptrdiff_t>(sizeof(Real)) / g.p_extent / width;
    // Near-equal panels of registers, none of less than one: no element is done twice, since sums may go on from what is there.
    std::ptrdiff_t registers = (j.run + width - 1) / width;
    std::ptrdiff_t panels = (registers + wide - 1) / wide;
    for (std::ptrdiff_t from = 0, count = 0; from < j.run; from += count, --panels) {
        const std::ptrdiff_t here = (registers + panels - 1) / panels;
        registers -= here;
        count = panels > 1 ? here * width : j.run - from;
        for (std::ptrdiff_t p = 0; p < g.p_extent; ++p) {
            std::memcpy(stage + p * count, x + p * j.x_p + from, static_cast<std::size_t>(count) * sizeof(Real));
        }
        fibre_run<Real, Components>(j, g, stage, y + from, count, count, ahead);
    }
}

/// Vectors along q; the tile's entries are broadcast. @pre j.x_p == Components and j.y_q == Components; a factor that is not packed
/// has a register of q and more.
template <class Real, int Components>
void row_rows(const sweep_job<Real>& j, block_grid<Real>& g, const Real* x, Real* y, const tile_loop& rows,
              read_ahead* ahead) noexcept {
    using shapes = block_shapes<Real, Components>;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    if constexpr (Components == 1) {
        if (j.factor_p != 0 && j.factor_q != 0) {
            rows_by_columns<Real>(g, x, y, rows.extent, rows.in, rows.out, j.factor, j.factor_q, j.q_extent);
            return;
        }
    }
    const std::ptrdiff_t length = j.q_extent * Components;
    const std::ptrdiff_t whole = length / width;
    const std::ptrdiff_t rest = length % width;
    const bool packed = j.factor_p == 0;
    const std::ptrdiff_t next = packed ? j.p_extent : 1;  // times the reals of a panel: where the next one begins
    g.a_row = rows.in;
    g.c_row = rows.out;
    g.b_vector = g.c_vector = width;
    g.valid = width;
    g.streams = !packed;
    if (packed && length <= width) {
        g.a = x;
        g.b = j.factor;
        g.c = y;
        const std::ptrdiff_t done = rows_in_registers<Real, Components>(g, j.p_extent, j.q_extent, rows.extent);
        if (done > 0) {
            if (done < rows.extent) {  // too few for a register
                const tile_loop left{rows.extent - done, rows.in, rows.out};
                row_rows<Real, Components>(j, g, x + done * rows.in, y + done * rows.out, left, nullptr);
            }
            return;
        }
    }
    const auto panels = [&](const Real* b, Real* c, int vectors, std::ptrdiff_t count) {
        const int block = shapes::row_rows(vectors);
        const std::ptrdiff_t blocks = rows.extent / block;
        g.b_p = packed ? vectors * width : j.factor_p;
        b += g.p_first * g.b_p;
        g.n1 = count;
        g.a1 = 0;
        g.b1 = vectors * width * next;
        g.c1 = vectors * width;
        g.a = x;
        g.b = b;
        g.c = c;
        if (blocks > 0) {
            g.n0 = blocks;
            g.a0 = block * rows.in;
            g.c0 = block * rows.out;
            call_kernel<Real>(shapes::row(true, vectors), g, ahead);
        }
        std::ptrdiff_t done = blocks * block;
        if (shapes::half(vectors) != nullptr && rows.extent - done >= shapes::half_rows) {
            g.n0 = 1;
            g.a = x + done * rows.in;
            g.c = c + done * rows.out;
            call_kernel<Real>(shapes::half(vectors), g, ahead);
            done += shapes::half_rows;
        }
        if (done < rows.extent) {
            g.n0 = rows.extent - done;
            g.a = x + done * rows.in;
            g.c = c + done * rows.out;
            g.a0 = rows.in;
            g.c0 = rows.out;
            call_kernel<Real>(shapes::row(false, vectors), g, ahead);
        }
    };
    const std::ptrdiff_t single = rest == 0 || whole == 0 ? whole : whole - 1;
    const even_split v = split_evenly(single, shapes::most_vectors);
    const Real* b = j.factor;
    Real* c = y;
    if (v.big_count > 0) {
        panels(b, c, v.big(), v.big_count);
        b += v.big_count * v.big() * width * next;
        c += v.big_count * v.big() * width;
    }
    if (v.small_count > 0) {
        panels(b, c, v.small, v.small_count);
        b += v.small_count * v.small * width * next;
        c += v.small_count * v.small * width;
    }
    if (rest > 0) {
        // The last two registers overlap; a single short one is stored in part.
        g.c_vector = rest;
        g.b_vector = packed ? width : rest;
        g.valid = whole > 0 ? width : rest;
        panels(b, c, whole > 0 ? 2 : 1, 1);
    }
}

/// Parts in which a sweep takes its fibres: one, unless they are long and every part is used often, or the factor is read as it lies
/// in memory. One also where a part could not go on from the sums before it, since a row's bits may not depend on how many rows
/// there are: complex sums are stored combined, and those that are added to y are not alone there.
template <class Real, int Components>
std::ptrdiff_t parts_of_sweep(const sweep_job<Real>& j) noexcept {
    constexpr std::ptrdiff_t few = 8;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    if (Components == 2 || j.finish == epilogue::scale_add) {
        return 1;
    }
    if (j.run == 0 && j.factor_p != 0 && j.factor_q != 0) {
        return 1;
    }
    if (j.run == 0 && j.factor_p != 0) {
        constexpr std::ptrdiff_t streams = 16;  // rows of the factor that the hardware reads ahead
        return (j.p_extent + streams - 1) / streams;
    }
    const bool used_often = j.run > 0
                                ? j.run >= width && (j.q_extent >= few || j.stage_panels)
                                : j.q_extent >= width && j.loop_count > 0 && j.loops[j.loop_count - 1].extent >= few;
    return used_often ? (j.p_extent + most_part<Real> - 1) / most_part<Real> : 1;
}

/// The sum over g.p_extent indices p for all loops of the sweep; x is at the first of them. See run_sweep.
template <class Real, int Components>
void sweep_part(const sweep_job<Real>& j, block_grid<Real>& g, bool stage, const Real* x, Real* y) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    // Which loop is left to the kernels: the innermost one, unless the run alone gives them enough.
    constexpr std::ptrdiff_t few_registers = 12;
    const bool inner_loop = j.loop_count > 0 && !stage && j.run <= few_registers * width;
    const int outer = inner_loop ? j.loop_count - 1 : j.loop_count;
    const tile_loop inner = inner_loop ? j.loops[outer] : tile_loop{1, 0, 0};
    const bool across_runs = j.run > 0 && j.run <= width && !stage;
    if (across_runs) {
        g.valid = j.run;
        g.b_p = j.x_p;
    }
    read_ahead* const ahead = j.p_extent < long_fibre<Real> ? nullptr : j.ahead;
    std::ptrdiff_t at[sweep_job<Real>::most_loops];
    for (int k = 0; k < outer; ++k) {
        at[k] = 0;
    }
    for (;;) {
        if (across_runs) {
            g.b = x;
            g.c = y;
            fibre_vectors<Real, Components>(j, g, inner.extent, inner.in, inner.out, ahead);
        } else if (j.run == 0) {
            row_rows<Real, Components>(j, g, x, y, inner, ahead);
        } else if (stage) {
            fibre_staged<Real, Components>(j, g, x, y, ahead);
        } else {
            fibre_run<Real, Components>(j, g, x, y, j.x_p, j.run, ahead, inner_loop ? &inner : nullptr);
        }
        int k = outer - 1;
        for (; k >= 0; --k) {
            x += j.loops[k].in;
            y += j.loops[k].out;
            if (++at[k] < j.loops[k].extent) {
                break;
            }
            x -= j.loops[k].extent * j.loops[k].in;
            y -= j.loops[k].extent * j.loops[k].out;
            at[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

/// Does the sweep on one tile at x, writing the tile at y. The two do not overlap, or are the same where j.in_place.
/// @pre for 0 < run < width, a whole register may be loaded from every row of x.
template <class Real, int Components>
void run_sweep(const sweep_job<Real>& j, const Real* x, Real* y) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    block_grid<Real> g;
    g.c_row = j.y_q;
    g.valid = width;
    g.alpha_re = j.alpha_re;
    g.alpha_im = j.alpha_im;
    g.claim = j.claim;
    const std::ptrdiff_t parts = parts_of_sweep<Real, Components>(j);
    g.past = j.past && parts == 1;  // sums that go on are needed at once
    const bool fits =
        j.p_extent <= most_part<Real> ||
        (j.run % width == 0 && j.p_extent * width * static_cast<std::ptrdiff_t>(sizeof(Real)) <= stage_bytes<Real>);
    const bool stage = j.run > 0 && (parts > 1 || (j.stage_panels && fits));
    for (std::ptrdiff_t part = 0; part < parts; ++part) {
        g.p_first = j.p_extent * part / parts;
        g.p_extent = j.p_extent * (part + 1) / parts - g.p_first;
        g.resume = j.resume || part > 0;
        g.finish = part + 1 < parts ? epilogue::store : j.finish;
        sweep_part<Real, Components>(j, g, stage, x + g.p_first * j.x_p, y);
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

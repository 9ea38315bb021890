// SPDX-License-Identifier: MIT
/// @file chain_dot.hpp
/// The dot product of v with a chain of contractions of x, of which nothing is stored but a tile:
///
///     sum_{q1..qd} v[q1, .., qd] * y[q1, .., qd]        y[q1, .., qd] = sum_{p1..pd} x[p1, .., pd] F1[p1, q1] .. Fd[pd, qd]
///
/// Whole fibres of y are never needed at once, since F1 can go to the side of v, with the same number of multiply-adds:
///
///     sum_{p1, q2..qd} (sum_{q1} F1[p1, q1] v[q1, q2..qd]) * w[p1, q2..qd]
///     w[p1, q2..qd] = sum_{p2..pd} x[p1, p2..pd] F2[p2, q2] .. Fd[pd, qd]
///
/// A tile of w has a few p1, and a few registers of qd or all of them: the sweeps of the modes d to 2 make it, and the sums on the other
/// side are multiplied by it where they are, in registers. Which of x and v is swept is free, since x K . v = v K^T . x.
///
/// Memory: n^(d-2) elements for each p1 and qd of a tile, twice where a mode between is not square; 32 KB on a thread's stack, or what
/// the caller allows beyond that. Beside it the factors, packed, as for every product: of a single row and two factors these are
/// together twice as large as y. Cost: the multiply-adds of the product; x is read once for each range of qd, v once for each tile.
///
/// Real numbers and dense factors, rows without gaps. Sums are taken tile by tile in an order that depends on extents and on
/// the memory that is allowed, not on threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <otimes/exec/cpu/dot_kernel.hpp>
#include <otimes/exec/cpu/factors.hpp>
#include <otimes/exec/cpu/host_machine.hpp>
#include <otimes/exec/cpu/sweep.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/row_hook.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// A program of contractions of the modes d to 1 and a dot product, prepared.
template <class Real>
class chain_dot {
    static constexpr std::ptrdiff_t width = simd<Real>::width;
    using shapes = block_shapes<Real, 1>;
    static constexpr int most_rows = shapes::many_registers ? 8 : 6;  ///< of a dot_kernel
    /// Elements of the tiles of a thread that lie on its stack: what a first-level cache holds beside x, v and the factors.
    static constexpr std::ptrdiff_t on_stack = 32 * 1024 / static_cast<std::ptrdiff_t>(sizeof(Real));
    static constexpr std::ptrdiff_t on_heap = 4 * on_stack;  ///< and elsewhere, at most
    static constexpr std::ptrdiff_t spare = 2 * width;       ///< whole registers may be read behind the end
    /// Registers of each row of a dot_kernel at most: sums enough that none waits for the one before it.
    static constexpr int vectors_for(int rows) noexcept {
        if constexpr (shapes::many_registers) {
            return rows > 4 ? 2 : rows > 2 ? 4 : 8;
        } else {
            return rows > 3 ? 2 : rows > 1 ? 3 : 6;
        }
    }

public:
    /// False where this is no such program, or no tile fits; nothing has been written then.
    /// @param most_elements of the tiles of all threads
    bool prepare(const program& source, const bindings& b, std::int64_t most_elements) {
        if (!read(source, b) || !choose_tile(static_cast<std::ptrdiff_t>(most_elements))) {
            return false;
        }
        pack();
        return true;
    }

    /// Adds to the result, or stores it. @param threads at most so many
    void run(std::ptrdiff_t threads) {
        const std::ptrdiff_t per_row = (blocks() + tile_blocks_ - 1) / tile_blocks_;
        const std::ptrdiff_t units = (rows_ + tile_rows_ - 1) / tile_rows_ * per_row;
        sums_.assign(static_cast<std::size_t>(units), Real(0));
        threads = std::clamp<std::ptrdiff_t>(most_threads_, 1, (std::min)(threads, units));
        const std::size_t bytes =
            elements_ <= on_stack + spare
                ? 0
                : (static_cast<std::size_t>(elements_) * sizeof(Real) + 63) / std::size_t{64} * 64;
        const workspace_lease lease(bytes * static_cast<std::size_t>(threads));
        const auto share = [&](std::ptrdiff_t me, std::ptrdiff_t count) {
            const std::ptrdiff_t begin = units * me / count;
            const std::ptrdiff_t end = units * (me + 1) / count;
            if (bytes == 0) {
                alignas(64) Real scratch[static_cast<std::size_t>(on_stack + spare)];
                run_units(begin, end, per_row, scratch);
            } else {
                run_units(
                    begin, end, per_row,
                    reinterpret_cast<Real*>(static_cast<char*>(lease.data()) + bytes * static_cast<std::size_t>(me)));
            }
        };
#if OTIMES_OPENMP
        if (threads > 1) {
#pragma omp parallel num_threads(static_cast <int>(threads))
            share(omp_get_thread_num(), omp_get_num_threads());
        } else {
            share(0, 1);
        }
#else
        share(0, 1);
#endif
        Real sum = adds_ ? *result_ : Real(0);
        for (const Real one : sums_) {
            sum += alpha_ * one;
        }
        *result_ = sum;
    }

private:
    /// One mode, in the order 1 to d.
    struct chain_mode {
        std::ptrdiff_t p = 1, q = 1;
        std::int32_t factor = -1;   ///< in factors_program_
        std::ptrdiff_t packed = 0;  ///< where its factor begins
    };

    /// What the program says; false: it is of another kind.
    bool read(const program& source, const bindings& b) {
        if (source.steps.size() < 3 || width == 1) {
            return false;
        }
        const std::size_t d = source.steps.size() - 1;
        const step& last = source.steps.back();
        if (last.kind != step_kind::reduce || last.variant != step_variant::dot || last.factor < 0) {
            return false;
        }
        const std::int32_t input = source.steps.front().in;
        const auto in = source.modes_of(input);
        const auto other = source.modes_of(last.factor);
        const bool has_rows = in.size() == d + 1;
        if ((in.size() != d && !has_rows) || other.size() != in.size()) {
            return false;
        }
        // The modes without the free index, if there is one: before the others or behind them.
        std::size_t first = has_rows ? 1 : 0;
        for (std::size_t k = 0; k < d; ++k) {
            first = source.steps[k].mode == 0 ? 0 : first;
        }
        const std::size_t free = first == 1 ? 0 : d;
        modes_.assign(d, {});
        alpha_ = 1;
        std::int32_t before = input;
        for (std::size_t k = 0; k <= d; ++k) {
            const step& s = source.steps[k];
            if (s.in != before) {
                return false;
            }
            if (s.scalar >= 0) {
                alpha_ *= static_cast<Real>(b.scalars[static_cast<std::size_t>(s.scalar)].real());
            }
            before = s.out;
            if (k == d) {
                break;
            }
            const tensor& f = source.at(s.factor);
            const std::size_t on = static_cast<std::size_t>(s.mode) - first;
            if (s.kind != step_kind::contract || s.add || on >= d || modes_[on].factor >= 0 ||
                f.kind != factor_kind::dense || f.type != dtype_of<Real>() || f.mode_count != 2 || f.binding < 0 ||
                source.at(s.out).binding >= 0 || source.at(s.out).type != dtype_of<Real>()) {
                return false;
            }
            const factor_view view = view_factor(source, b, s.factor);
            modes_[on] = {view.p_extent, view.q_extent, s.factor, 0};
        }
        rows_ = has_rows ? static_cast<std::ptrdiff_t>(in[free].extent) : 1;
        x_ = operand(source, b, input, in, first, free, has_rows, &chain_mode::p, x_row_);
        v_ = operand(source, b, last.factor, other, first, free, has_rows, &chain_mode::q, v_row_);
        const std::int32_t result = source.at(last.out).binding;
        if (x_ == nullptr || v_ == nullptr || result < 0 || rows_ < 1) {
            return false;
        }
        result_ = static_cast<Real*>(b.pointers[static_cast<std::size_t>(result)]);
        adds_ = last.add;
        return choose_sides(source, b, first);
    }
    /// x K . v = v K^T . x: which of them the sweeps take, by multiply-adds of a row against those in the order of the steps. False
    /// where either takes more.
    bool choose_sides(const program& source, const bindings& b, std::size_t first) {
        double in_order = 0;
        double elements = 1;
        for (const chain_mode& m : modes_) {
            elements *= static_cast<double>(m.p);
        }
        for (std::size_t k = 0; k < modes_.size(); ++k) {
            const chain_mode& m = modes_[static_cast<std::size_t>(source.steps[k].mode) - first];
            in_order += elements * static_cast<double>(m.q);
            elements = elements / static_cast<double>(m.p) * static_cast<double>(m.q);
        }
        const double of_x = multiply_adds(&chain_mode::p, &chain_mode::q);
        const double of_v = multiply_adds(&chain_mode::q, &chain_mode::p);
        if (!((std::min)(of_x, of_v) <= 1.001 * in_order)) {
            return false;
        }
        const bool exchange = of_v < of_x;
        if (exchange) {
            std::swap(x_, v_);
            std::swap(x_row_, v_row_);
        }
        factors_program_.clear();
        factors_bindings_.clear();
        for (chain_mode& m : modes_) {
            const tensor& f = source.at(m.factor);
            const auto extents = source.modes_of(m.factor);
            tensor mine = f;
            mine.binding = static_cast<std::int32_t>(factors_bindings_.pointers.size());
            factors_bindings_.pointers.push_back(b.pointers[static_cast<std::size_t>(f.binding)]);
            m.factor = factors_program_.add_tensor(mine);
            for (const std::size_t k :
                 {exchange ? std::size_t{1} : std::size_t{0}, exchange ? std::size_t{0} : std::size_t{1}}) {
                factors_program_.add_mode(extents[k].extent, extents[k].stride);
            }
            if (exchange) {
                std::swap(m.p, m.q);
            }
        }
        return true;
    }
    /// Of a row, the modes from d to 1.
    [[nodiscard]] double multiply_adds(std::ptrdiff_t chain_mode::*from,
                                       std::ptrdiff_t chain_mode::*to) const noexcept {
        double elements = 1, sum = 0;
        for (const chain_mode& m : modes_) {
            elements *= static_cast<double>(m.*from);
        }
        for (std::size_t k = modes_.size(); k-- > 0;) {
            sum += elements * static_cast<double>(modes_[k].*to);
            elements = elements / static_cast<double>(modes_[k].*from) * static_cast<double>(modes_[k].*to);
        }
        return sum;
    }
    /// The address of an operand whose rows have no gaps; nullptr otherwise, and where it has no elements.
    const Real* operand(const program& source, const bindings& b, std::int32_t id, std::span<const mode> modes,
                        std::size_t first, std::size_t free, bool has_rows, std::ptrdiff_t chain_mode::*extent,
                        std::ptrdiff_t& row) const {
        const tensor& t = source.at(id);
        if (t.binding < 0 || t.type != dtype_of<Real>()) {
            return nullptr;
        }
        std::int64_t next = 1;
        for (std::size_t k = modes_.size(); k-- > 0;) {
            const mode& m = modes[first + k];
            if (m.extent != modes_[k].*extent || m.extent < 1 || (m.extent > 1 && m.stride != next)) {
                return nullptr;
            }
            next *= m.extent;
        }
        row = has_rows ? static_cast<std::ptrdiff_t>(modes[free].stride) : 0;
        return static_cast<const Real*>(b.pointers[static_cast<std::size_t>(t.binding)]);
    }

    /// True where the sweep of mode k may be done in the memory of its tile: blocks read whole registers before they write them.
    [[nodiscard]] bool in_place(const chain_mode& m) const noexcept { return m.p == m.q && m.p <= most_part<Real>; }

    /// Largest number of elements of a tile for one p1 and one index qd.
    [[nodiscard]] std::ptrdiff_t elements_per_lane() const noexcept {
        std::ptrdiff_t now = 1;
        for (std::size_t k = 1; k + 1 < modes_.size(); ++k) {
            now *= modes_[k].p;
        }
        std::ptrdiff_t most = now;
        for (std::size_t k = modes_.size() - 1; k-- > 1;) {
            now = now / modes_[k].p * modes_[k].q;
            most = (std::max)(most, now);
        }
        return most;
    }

    [[nodiscard]] double bytes_of_v() const noexcept {
        return static_cast<double>(modes_.front().q * elements_after() * modes_.back().q) * sizeof(Real);
    }
    static constexpr double first_level = 32 * 1024;

    /// A tile: its p1, its qd (all of them, or one or two registers), its buffers.
    struct tile_shape {
        std::ptrdiff_t p1 = 0;
        std::ptrdiff_t lanes = 0;
        std::ptrdiff_t buffers = 0;
    };

    /// Cycles of a multiply-add of registers in the sweeps of the last mode and of those between, and on the other side of the sum, added up:
    /// two multiply-adds or two loads in a cycle, and about two cycles for a line of v from the second-level cache, four from behind
    /// it. Lines that are far apart fall on few sets of a cache, so that v has to fit as a whole. Lanes that are not used count.
    [[nodiscard]] double cycles(const tile_shape& t) const noexcept {
        const auto of_block = [](std::ptrdiff_t rows, std::ptrdiff_t vectors) {
            const auto sums = static_cast<double>(rows * vectors);
            return (std::max)(0.5, (std::max)(4 / sums, static_cast<double>(rows + vectors) / (2 * sums)));
        };
        const std::ptrdiff_t qd = modes_.back().q;
        const bool all = t.lanes == qd;
        const std::ptrdiff_t registers = (t.lanes + width - 1) / width;
        const double of_lanes = static_cast<double>((qd + width - 1) / width * width) / static_cast<double>(qd);
        const std::ptrdiff_t panel = (std::min)(registers, std::ptrdiff_t{shapes::most_vectors});
        const double last = of_lanes * of_block(shapes::row_rows(static_cast<int>(panel)), panel);
        double between = 0;
        if (modes_.size() > 2) {
            const bool staged = t.buffers == 1 && modes_[1].q > shapes::fibre_q(modes_[1].q);
            const std::ptrdiff_t side = all ? t.lanes / width : registers;  // registers side by side
            const int q = shapes::fibre_q(modes_[1].q);
            between = of_block(q, std::clamp<std::ptrdiff_t>(t.buffers == 1 ? side : registers * t.p1, 1,
                                                             shapes::vectors_for(q))) +
                      (staged ? 2.0 / static_cast<double>(modes_[1].q) : 0.0);
        }
        const std::ptrdiff_t rows = (std::min)(t.p1, std::ptrdiff_t{most_rows});
        const double of_v = bytes_of_v();
        const double l2 = 0.75 * static_cast<double>(host_machine().cpu.l2_bytes);
        constexpr double part = static_cast<double>(width * sizeof(Real)) / 64;  // of a line
        const double line = (of_v <= first_level ? 0 : of_v <= l2 ? 2 : 4) * (t.lanes > width ? part : 1);
        const double other =
            (std::max)(of_block(rows, vectors_for(static_cast<int>(rows))), line / static_cast<double>(rows));
        return last + (all ? 1.0 : of_lanes) * (between + other);
    }

    /// Of the tiles that fit and stay near what the sweeps read, the fastest.
    bool choose_tile(std::ptrdiff_t limit) noexcept {
        bool square = true;
        std::ptrdiff_t multiply_adds = modes_.front().p * modes_.back().q * rows_;
        for (std::size_t k = 1; k < modes_.size(); ++k) {
            square = square && (k + 1 == modes_.size() || in_place(modes_[k]));
            multiply_adds *= modes_[k].p;
        }
        // On the heap where more is allowed, for two threads where the work is worth it.
        const bool alone = modes_.size() == 2;
        const std::ptrdiff_t per_lane = elements_per_lane();
        const std::ptrdiff_t qd = modes_.back().q;
        const std::ptrdiff_t least = (square ? 1 : 2) * per_lane * (std::min)(qd, width);
        const auto flops = 2.0 * static_cast<double>(modes_.size()) * static_cast<double>(multiply_adds);
        const bool shared = flops > flops_per_fork;
        const std::ptrdiff_t allowed = shared && 2 * least <= limit ? limit / 2 : limit;
        const std::ptrdiff_t tile = (std::max)(on_stack, (std::min)(allowed - spare, on_heap));
        double best = 0;
        shape_ = {};
        for (const std::ptrdiff_t buffers : {1, 2}) {
            for (const std::ptrdiff_t lanes : {qd, 2 * width, width}) {
                const bool all = lanes == qd;
                const std::ptrdiff_t most = (std::min)(modes_.front().p, tile / (buffers * per_lane * lanes));
                // All lanes of a tile lie side by side: no part of a register in the middle, but at an end.
                if (most < 1 || lanes > qd || (buffers == 1 && (!square || (lanes % width != 0 && !alone))) ||
                    (buffers == 2 && alone) || (all && elements_after() * qd < width)) {
                    continue;
                }
                const bool fit = most < most_rows || most == modes_.front().p;  // as they are
                const tile_shape now{fit ? most : most / most_rows * most_rows, lanes, buffers};
                const double cost = cycles(now);
                if (shape_.p1 == 0 || cost < best) {
                    best = cost;
                    shape_ = now;
                }
            }
        }
        if (shape_.p1 == 0) {
            return false;
        }
        std::ptrdiff_t block = (std::min)(shape_.p1, std::ptrdiff_t{most_rows});
        if (rows_ == 1 && shared) {  // an even number of blocks, so that two threads have as many
            const std::ptrdiff_t count = (modes_.front().p + block - 1) / block;
            block = (modes_.front().p + (count + 1) / 2 * 2 - 1) / ((count + 1) / 2 * 2);
        }
        split_ = split_evenly(modes_.front().p, static_cast<int>(block));
        tile_blocks_ = shape_.p1 == modes_.front().p ? blocks() : shape_.p1 / block;
        if (rows_ == 1 && shared) {
            tile_blocks_ = std::clamp<std::ptrdiff_t>(blocks() / 2, 1, tile_blocks_);
        }
        const std::ptrdiff_t largest = split_.big_count > 0 ? split_.big() : split_.small;
        const std::ptrdiff_t of_row = (std::min)(modes_.front().p, largest * tile_blocks_) * shape_.lanes * per_lane;
        // Several rows where they are short, so that sweeps cost few calls.
        tile_rows_ =
            tile_blocks_ < blocks() ? 1 : std::clamp<std::ptrdiff_t>(tile / (shape_.buffers * of_row), 1, rows_);
        buffer_ = (of_row * tile_rows_ + width - 1) / width * width;
        elements_ = shape_.buffers * buffer_ + spare;
        most_threads_ = !shared ? 1 : elements_ <= on_stack + spare ? rows_ * blocks() : limit / elements_;
        return most_threads_ > 0;
    }

    [[nodiscard]] std::ptrdiff_t blocks() const noexcept { return split_.big_count + split_.small_count; }
    /// The first p1 of a block.
    [[nodiscard]] std::ptrdiff_t begin_of(std::ptrdiff_t block) const noexcept {
        return block * split_.small + (std::min)(block, split_.big_count);
    }

    /// F1 block by block, the factors between as the sweeps read them, Fd by tiles of its columns.
    void pack() {
        const chain_mode& back = modes_.back();
        std::ptrdiff_t reals = modes_.front().p * modes_.front().q;
        for (std::size_t k = 1; k < modes_.size(); ++k) {
            modes_[k].packed = reals;
            reals += k + 1 < modes_.size() ? packed_reals<Real, 1>(modes_[k].p, modes_[k].q)
                                           : back.p * (back.q / width + 1) * width;
        }
        factors_.resize(static_cast<std::size_t>(reals));
        for (std::size_t k = 1; k + 1 < modes_.size(); ++k) {
            pack_mode(modes_[k], false);
        }
        const factor_view f1 = view_factor(factors_program_, factors_bindings_, modes_.front().factor);
        const auto* const f1_data = static_cast<const Real*>(f1.data);
        Real* to = factors_.data();
        for (std::ptrdiff_t block = 0; block < blocks(); ++block) {
            const std::ptrdiff_t end = begin_of(block + 1);
            for (std::ptrdiff_t q = 0; q < f1.q_extent; ++q) {
                for (std::ptrdiff_t p = begin_of(block); p < end; ++p) {
                    *to++ = f1_data[p * f1.p_stride + q * f1.q_stride];
                }
            }
        }
        if (shape_.lanes == back.q) {
            pack_mode(back, true);
            return;
        }
        const factor_view fd = view_factor(factors_program_, factors_bindings_, back.factor);
        to = factors_.data() + back.packed;
        for_each_range([&](std::ptrdiff_t lane, std::ptrdiff_t lanes, std::ptrdiff_t) {
            const Real* from = static_cast<const Real*>(fd.data) + lane * fd.q_stride;
            for (std::ptrdiff_t p = 0; p < fd.p_extent; ++p, from += fd.p_stride) {
                for (std::ptrdiff_t q = 0; q < lanes; ++q) {
                    *to++ = from[q * fd.q_stride];
                }
            }
        });
    }
    void pack_mode(const chain_mode& m, bool as_row) {
        sweep_.p_extent = m.p;
        sweep_.q_extent = m.q;
        sweep_.factors.assign(1, m.factor);
        pack_factors<Real, 1>(factors_program_, factors_bindings_, sweep_, as_row, factors_.data() + m.packed);
    }

    /// Calls use(first qd, number of qd, those to skip) for the tiles' ranges of qd.
    template <class Use>
    void for_each_range(const Use& use) const {
        const std::ptrdiff_t extent = modes_.back().q;
        if (shape_.lanes == extent) {
            use(std::ptrdiff_t{0}, extent, std::ptrdiff_t{0});
            return;
        }
        const std::ptrdiff_t whole = extent / width * width;
        for (std::ptrdiff_t done = 0; done < whole; done += shape_.lanes) {
            use(done, (std::min)(shape_.lanes, whole - done), std::ptrdiff_t{0});
        }
        if (whole < extent) {  // the last register overlaps the one before it
            use(extent - width, width, whole + width - extent);
        }
    }

    void run_units(std::ptrdiff_t begin, std::ptrdiff_t end, std::ptrdiff_t per_row, Real* scratch) noexcept {
        while (begin < end) {
            const std::ptrdiff_t group = begin / per_row;
            const std::ptrdiff_t stop = (std::min)(end, (group + 1) * per_row);
            const std::ptrdiff_t row = group * tile_rows_;
            const std::ptrdiff_t rows = (std::min)(tile_rows_, rows_ - row);
            const Real* fd = factors_.data() + modes_.back().packed;
            for_each_range([&](std::ptrdiff_t lane, std::ptrdiff_t lanes, std::ptrdiff_t skip) {
                for (std::ptrdiff_t unit = begin; unit < stop; ++unit) {
                    const std::ptrdiff_t block = (unit - group * per_row) * tile_blocks_;
                    const std::ptrdiff_t last = (std::min)(block + tile_blocks_, blocks());
                    const std::ptrdiff_t count = begin_of(last) - begin_of(block);
                    const Real* const w = sweep_tile(row, rows, begin_of(block), count, fd, lanes, scratch);
                    for (std::ptrdiff_t k = 0; k < rows; ++k) {
                        sums_[static_cast<std::size_t>(unit)] +=
                            multiply(v_ + (row + k) * v_row_ + lane, w + k * count * elements_after() * lanes, block,
                                     last, lanes, skip);
                    }
                }
                fd += modes_.back().p * lanes;
            });
            begin = stop;
        }
    }

    /// Elements of w for one p1 and one qd: q2 .. q(d-1).
    [[nodiscard]] std::ptrdiff_t elements_after() const noexcept {
        std::ptrdiff_t elements = 1;
        for (std::size_t k = 1; k + 1 < modes_.size(); ++k) {
            elements *= modes_[k].q;
        }
        return elements;
    }

    /// w of `rows` rows, `count` p1 and `lanes` qd, in one of the tiles. @param fd these columns of the last factor
    const Real* sweep_tile(std::ptrdiff_t row, std::ptrdiff_t rows, std::ptrdiff_t p1, std::ptrdiff_t count,
                           const Real* fd, std::ptrdiff_t lanes, Real* scratch) const noexcept {
        const std::size_t d = modes_.size();
        std::ptrdiff_t outer = count;
        for (std::size_t k = 1; k + 1 < d; ++k) {
            outer *= modes_[k].p;
        }
        sweep_job<Real> s;
        s.ahead = nullptr;
        s.claim = s.past = s.twin = s.in_place = s.resume = s.stage_panels = false;
        s.finish = epilogue::store;
        s.alpha_re = 1;
        s.alpha_im = 0;
        s.factor_p = 0;
        s.p_extent = modes_.back().p;
        s.q_extent = lanes;
        s.x_p = s.y_q = 1;
        s.run = 0;
        s.factor = fd;
        std::ptrdiff_t x_p1 = 1;
        for (std::size_t k = 1; k < d; ++k) {
            x_p1 *= modes_[k].p;
        }
        s.loop_count = 0;
        if (rows > 1 && x_row_ != count * x_p1) {
            s.loops[s.loop_count++] = {rows, x_row_, outer * lanes};
        }
        s.loops[s.loop_count] = {s.loop_count == 0 ? rows * outer : outer, s.p_extent, lanes};
        ++s.loop_count;
        run_sweep<Real, 1>(s, x_ + row * x_row_ + p1 * x_p1, scratch);
        outer *= rows;
        s.loop_count = 1;
        Real* now = scratch;
        Real* next = scratch + buffer_;  // used where there are two
        std::ptrdiff_t run = lanes;
        for (std::size_t k = d - 1; k-- > 1;) {
            const chain_mode& m = modes_[k];
            outer /= m.p;
            s.p_extent = m.p;
            s.q_extent = m.q;
            s.x_p = s.y_q = s.run = run;
            s.in_place = shape_.buffers == 1;
            s.stage_panels = s.in_place && m.q > shapes::fibre_q(m.q);
            s.factor = factors_.data() + m.packed;
            s.loops[0] = {outer, m.p * run, m.q * run};
            Real* const to = s.in_place ? now : next;
            run_sweep<Real, 1>(s, now, to);
            next = s.in_place ? next : now;
            now = to;
            run *= m.q;
        }
        return now;
    }

    /// The other side of the sum for the blocks [block, end) of p1, times w[p1, q2 .. qd].
    Real multiply(const Real* v, const Real* w, std::ptrdiff_t block, std::ptrdiff_t end, std::ptrdiff_t lanes,
                  std::ptrdiff_t skip) const noexcept {
        const std::ptrdiff_t q1 = modes_.front().q;
        const std::ptrdiff_t qd = modes_.back().q;
        const std::ptrdiff_t between = elements_after();
        const std::ptrdiff_t run = between * lanes;  // elements of w for one p1
        alignas(64) Real sums[static_cast<std::size_t>(width)] = {};
        dot_grid<Real> g;
        g.q_extent = q1;
        g.v_q = between * qd;
        g.w_row = run;
        g.skip = skip;
        // Registers side by side: neighbours, where a tile has all qd, else those of the indices between.
        const bool along = lanes == qd || between == 1;
        g.v_vector = along ? width : qd;
        g.w_vector = along ? width : lanes;
        g.n1 = along ? 1 : lanes / width;
        g.v1 = g.w1 = width;
        const std::ptrdiff_t positions = along ? run / width : between;
        // With several blocks of p1 a few positions at a time, so that their lines of v are still near for the next block.
        constexpr std::ptrdiff_t worth_a_call = 512;
        const std::ptrdiff_t some =
            end - block == 1 ? positions : (std::max)(std::ptrdiff_t{8}, worth_a_call / q1 / 8 * 8);
        for (std::ptrdiff_t from = 0; from < positions; from += some) {
            const std::ptrdiff_t until = (std::min)(positions, from + some);
            const Real* w_block = w;
            for (std::ptrdiff_t k = block; k < end; ++k) {
                const std::ptrdiff_t first = begin_of(k);
                const std::ptrdiff_t rows = begin_of(k + 1) - first;
                g.a = factors_.data() + first * q1;
                g.v = v + from * g.v_vector;
                g.w = w_block + from * g.w_vector;
                w_block += rows * run;
                std::ptrdiff_t left = until - from;
                const int most = vectors_for(static_cast<int>(rows));
                if (!along && most == 2 && lanes == 2 * width) {  // both registers of a line at once
                    dot_grid<Real> pairs = g;
                    pairs.v_vector = pairs.w_vector = width;
                    pairs.n0 = left;
                    pairs.v0 = qd;
                    pairs.w0 = lanes;
                    pairs.n1 = 1;
                    kernel(rows, 2)(pairs, sums);
                    continue;
                }
                for (const int vectors : {most, most / 2, 1}) {
                    g.n0 = left / vectors;
                    if (g.n0 > 0) {
                        g.v0 = vectors * g.v_vector;
                        g.w0 = vectors * g.w_vector;
                        kernel(rows, vectors)(g, sums);
                        g.v += g.n0 * g.v0;
                        g.w += g.n0 * g.w0;
                        left -= g.n0 * vectors;
                    }
                }
            }
        }
        if (along && run % width != 0) {  // a last register that overlaps the one before it
            g.skip = width - run % width;
            g.n0 = 1;
            g.v0 = g.w0 = 0;
            for (; block < end; ++block) {
                const std::ptrdiff_t first = begin_of(block);
                const std::ptrdiff_t rows = begin_of(block + 1) - first;
                g.a = factors_.data() + first * q1;
                g.v = v + run - width;
                g.w = w + run - width;
                w += rows * run;
                kernel(rows, 1)(g, sums);
            }
        }
        Real sum = 0;
        for (const Real lane : sums) {
            sum += lane;
        }
        return sum;
    }

    using kernel_type = void (*)(const dot_grid<Real>&, Real*) noexcept;
    template <int... Rows>
    static kernel_type kernel_of(std::ptrdiff_t rows, int vectors, std::integer_sequence<int, Rows...>) noexcept {
        static constexpr kernel_type table[sizeof...(Rows)][3] = {
            {&dot_kernel<Real, Rows + 1, 1>, &dot_kernel<Real, Rows + 1, vectors_for(Rows + 1) / 2>,
             &dot_kernel<Real, Rows + 1, vectors_for(Rows + 1)>}...};
        const int most = vectors_for(static_cast<int>(rows));
        return table[rows - 1][vectors == most ? 2 : vectors == 1 ? 0 : 1];
    }
    static kernel_type kernel(std::ptrdiff_t rows, int vectors) noexcept {
        return kernel_of(rows, vectors, std::make_integer_sequence<int, most_rows>());
    }

    std::vector<chain_mode> modes_;
    program factors_program_;  ///< the factors alone, transposed where v takes the sweeps
    bindings factors_bindings_;
    std::ptrdiff_t rows_ = 1;
    const Real* x_ = nullptr;
    const Real* v_ = nullptr;
    std::ptrdiff_t x_row_ = 0, v_row_ = 0;
    Real* result_ = nullptr;
    bool adds_ = false;
    Real alpha_ = 1;
    tile_shape shape_;
    std::ptrdiff_t buffer_ = 0;       ///< elements of a tile
    std::ptrdiff_t elements_ = 0;     ///< of all tiles of a thread
    std::ptrdiff_t tile_blocks_ = 1;  ///< blocks of p1 in a tile
    std::ptrdiff_t tile_rows_ = 1;    ///< rows in a tile, more than one where it has all p1
    std::ptrdiff_t most_threads_ = 1;
    even_split split_;  ///< of p1 into blocks
    std::vector<Real> factors_;
    std::vector<Real> sums_;  ///< of each tile
    sweep sweep_;             ///< a factor as pack_factors reads it
};

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

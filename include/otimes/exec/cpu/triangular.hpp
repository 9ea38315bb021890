// SPDX-License-Identifier: MIT
/// @file triangular.hpp
/// A contraction with a triangular factor: half the flops of a dense one. The
/// triangle is cut into blocks of columns, each of which contracts only the
/// rows that it has, by the kernels of the dense sweeps:
///
///     lower, blocks of q:   y[q0..q1] = sum over p >= q0        upper:
///     y[q0..q1] = sum over p < q1
///
/// Compiled only where a factor with structure is made.
#pragma once

#include <algorithm>
#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/exec/cpu/factors.hpp>
#include <otimes/exec/cpu/loop_nest.hpp>
#include <otimes/exec/cpu/sweep.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// One block of columns of a triangle, packed for the kernels.
template <class Real>
struct triangle_block {
    std::int64_t p_begin = 0, p_count = 0;
    std::int64_t q_begin = 0, q_count = 0;
    std::size_t packed = 0;  ///< offset of its packed factor
};

/// The blocks of a P x Q triangle, at most 8 percent more multiply-adds than it
/// has elements from order 96 on.
template <class Scalar>
class packed_triangle {
    using Real = decltype(std::real(Scalar()));
    static constexpr int components = sizeof(Scalar) == sizeof(Real) ? 1 : 2;

public:
    /// Packs a triangle into the memory of the one before.
    void pack(const step_operand& factor, step_variant part, std::int64_t p_extent, std::int64_t q_extent,
              bool as_row) {
        const bool lower = part == step_variant::lower || part == step_variant::unit_lower;
        const bool unit = part == step_variant::unit_lower || part == step_variant::unit_upper;
        const mode& mp = factor.modes[factor.modes.size() - 2];
        const mode& mq = factor.modes[factor.modes.size() - 1];
        // Of a row kernel's columns whole registers.
        const std::int64_t granule = as_row ? (std::max)(std::int64_t{8}, std::int64_t{simd<Real>::width}) : 8;
        const std::int64_t width =
            std::clamp<std::int64_t>(q_extent / 12 / granule * granule, granule, (std::max)(std::int64_t{64}, granule));
        const bool as_it_lies = factor.type == dtype_of<Scalar>() && !factor.conjugate;
        const auto element = [&](std::int64_t p, std::int64_t q) {
            const std::int64_t at = p * mp.stride + q * mq.stride;
            return as_it_lies ? static_cast<const Scalar*>(factor.data)[at] : reference_loops::read<Scalar>(factor, at);
        };
        tensor t;
        t.type = dtype_of<Scalar>();
        t.role = tensor_role::factor;
        t.binding = 0;
        bound_.pointers.clear();
        bound_.pointers.push_back(nullptr);
        sweep_.factors.assign(1, 0);
        blocks_.clear();
        memory_.clear();
        for (std::int64_t q = 0; q < q_extent; q += width) {
            triangle_block<Real> block;
            block.q_begin = q;
            block.q_count = (std::min)(width, q_extent - q);
            block.p_begin = lower ? (std::min)(q, p_extent) : 0;
            block.p_count = lower ? p_extent - block.p_begin : (std::min)(p_extent, q + block.q_count);
            block.packed = memory_.size();
            if (block.p_count > 0) {
                strip_.assign(static_cast<std::size_t>(block.p_count * block.q_count), Scalar(0));
                for (std::int64_t k = 0; k < block.p_count; ++k) {
                    const std::int64_t p = block.p_begin + k;
                    Scalar* const row = strip_.data() + k * block.q_count;
                    const std::int64_t first = lower ? 0 : (std::max)(std::int64_t{0}, p - q);
                    const std::int64_t end = lower ? (std::min)(block.q_count, p + 1 - q) : block.q_count;
                    for (std::int64_t l = first; l < end; ++l) {
                        row[l] = unit && p == q + l ? Scalar(1) : element(p, q + l);
                    }
                }
                one_.clear();
                one_.add_tensor(t);
                one_.add_mode(block.p_count, block.q_count);
                one_.add_mode(block.q_count, 1);
                bound_.pointers[0] = strip_.data();
                sweep_.p_extent = block.p_count;
                sweep_.q_extent = block.q_count;
                memory_.resize(memory_.size() + static_cast<std::size_t>(packed_reals<Real, components>(
                                                    static_cast<std::ptrdiff_t>(sweep_.p_extent),
                                                    static_cast<std::ptrdiff_t>(sweep_.q_extent))));
                pack_factors<Real, components>(one_, bound_, sweep_, as_row, memory_.data() + block.packed);
            }
            blocks_.push_back(block);
        }
    }

    /// y (+)= alpha * x * F for the fibres that `j` describes; `x` and `y` in
    /// reals. @pre as run_sweep
    void apply(sweep_job<Real> j, const Real* x, Real* y) const noexcept {
        for (const triangle_block<Real>& block : blocks_) {
            j.p_extent = static_cast<std::ptrdiff_t>(block.p_count);
            j.q_extent = static_cast<std::ptrdiff_t>(block.q_count);
            j.factor = memory_.data() + block.packed;
            j.factor_p = 0;
            run_sweep<Real, components>(j, x + block.p_begin * j.x_p, y + block.q_begin * j.y_q);
        }
    }
    /// Are there columns that contract nothing? (More columns than rows, lower.)
    /// The kernels have no sums for them.
    [[nodiscard]] bool has_empty_columns() const noexcept {
        return std::any_of(blocks_.begin(), blocks_.end(), [](const auto& b) { return b.p_count <= 0; });
    }

private:
    std::vector<triangle_block<Real>> blocks_;
    std::vector<Real> memory_;
    std::vector<Scalar> strip_;  ///< a block by p, zeros outside the triangle
    program one_;                ///< a block as pack_factors reads it
    bindings bound_;
    sweep sweep_;
};

/// The contraction of a step, by `threads` threads. False where the reference loops must do it.
template <class Scalar>
bool run_triangular(const step& s, const step_operand& in, const step_operand& factor, const step_operand& out,
                    const Scalar& alpha, std::int64_t threads) {
    using Real = decltype(std::real(Scalar()));
    constexpr std::ptrdiff_t components = sizeof(Scalar) == sizeof(Real) ? 1 : 2;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const auto on = static_cast<std::size_t>(s.mode);
    const mode& from_mode = in.modes[on];
    const mode& to_mode = out.modes[on];
    if (from_mode.extent <= 0 || to_mode.extent <= 0) {
        return false;
    }
    const step_operand none;
    kept_vector<loop_index, sweep> kept_nest;
    std::vector<loop_index>& nest = *kept_nest;
    loop_nest(out, in, none, static_cast<std::int32_t>(on), nest);
    const loop_index run = nest.empty() ? loop_index{} : nest.back();
    const bool rows = from_mode.stride == 1 && to_mode.stride == 1;
    const bool fibres = !rows && run.stride[0] == 1 && run.stride[1] == 1 && run.extent * components >= width;
    // Keeps its memory; nothing below evaluates another step.
    detail::kept_or_own<packed_triangle<Scalar>, packed_triangle<Scalar>> kept_triangle;
    packed_triangle<Scalar>& triangle = *kept_triangle;
    triangle.pack(factor, s.variant, from_mode.extent, to_mode.extent, rows);
    if (triangle.has_empty_columns()) {
        return false;
    }
    const auto* const x = static_cast<const Real*>(in.data);
    auto* const y = static_cast<Real*>(out.data);
    sweep_job<Real> j;
    j.loop_count = 0;
    j.stage_panels = false;
    j.in_place = j.resume = false;
    j.ahead = nullptr;
    j.claim = j.past = false;
    j.finish = s.add ? epilogue::scale_add : alpha == Scalar(1) ? epilogue::store : epilogue::scale;
    j.alpha_re = std::real(alpha);
    j.alpha_im = std::imag(alpha);
    // As many fibres at a time as keep both sides in a second-level cache while
    // the blocks pass.
    const std::int64_t longest = (std::max)(from_mode.extent, to_mode.extent);
    const std::int64_t chunk =
        (std::max)(std::int64_t{1}, std::int64_t{32768} / longest / width) * static_cast<std::int64_t>(width);
    if (rows) {
        j.x_p = components;
        j.y_q = components;
        j.run = 0;
        j.loop_count = 1;
        share_nest(nest, threads, width,
                   [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& start, std::size_t) {
                       const loop_index last = share.empty() ? loop_index{} : share.back();
                       sweep_job<Real> mine = j;
                       for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                           for (std::int64_t begin = 0; begin < last.extent; begin += chunk) {
                               mine.loops[0] = {static_cast<std::ptrdiff_t>((std::min)(chunk, last.extent - begin)),
                                                static_cast<std::ptrdiff_t>(last.stride[1]) * components,
                                                static_cast<std::ptrdiff_t>(last.stride[0]) * components};
                               triangle.apply(mine, x + (start[1] + at[1] + begin * last.stride[1]) * components,
                                              y + (start[0] + at[0] + begin * last.stride[0]) * components);
                           }
                       });
                   });
        return true;
    }
    if (fibres) {
        j.x_p = static_cast<std::ptrdiff_t>(from_mode.stride) * components;
        j.y_q = static_cast<std::ptrdiff_t>(to_mode.stride) * components;
        j.stage_panels = stages_rows<Real>(static_cast<std::ptrdiff_t>(from_mode.extent),
                                           static_cast<std::ptrdiff_t>(to_mode.extent), j.x_p);
        // Every share of the last loop has a register and more, or it is not shared.
        const std::int64_t equal = run.extent / threads / width * width;
        const std::int64_t granule = equal > 0 ? equal : run.extent;
        share_nest(nest, threads, granule,
                   [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& start, std::size_t) {
                       const loop_index last = share.empty() ? loop_index{} : share.back();
                       sweep_job<Real> mine = j;
                       for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                           for (std::int64_t begin = 0; begin < last.extent;) {
                               std::int64_t count = (std::min)(chunk, last.extent - begin);
                               if ((last.extent - begin - count) * components < width) {
                                   count = last.extent - begin;
                               }
                               mine.run = static_cast<std::ptrdiff_t>(count) * components;
                               triangle.apply(mine, x + (start[1] + at[1] + begin) * components,
                                              y + (start[0] + at[0] + begin) * components);
                               begin += count;
                           }
                       });
                   });
        return true;
    }
    // Neither the mode nor the fibres lie side by side: through tiles in which
    // the fibres do.
    const std::int64_t lanes = (std::min)(chunk, (run.extent + width - 1) / width * width);
    struct inputs;
    struct outputs;
    kept_vector<Scalar, inputs> kept_in;
    kept_vector<Scalar, outputs> kept_out;
    std::vector<Scalar>& tile_in = *kept_in;
    std::vector<Scalar>& tile_out = *kept_out;
    tile_in.assign(static_cast<std::size_t>(from_mode.extent * lanes), Scalar(0));
    tile_out.assign(static_cast<std::size_t>(to_mode.extent * lanes), Scalar(0));
    j.finish = epilogue::store;
    j.x_p = static_cast<std::ptrdiff_t>(lanes) * components;
    j.y_q = j.x_p;
    j.run = j.x_p;
    const auto* const from = static_cast<const Scalar*>(in.data);
    auto* const to = static_cast<Scalar*>(out.data);
    for_each_run(nest, [&](const std::array<std::int64_t, 3>& at) {
        for (std::int64_t begin = 0; begin < run.extent; begin += lanes) {
            const std::int64_t count = (std::min)(lanes, run.extent - begin);
            for (std::int64_t p = 0; p < from_mode.extent; ++p) {
                for (std::int64_t i = 0; i < count; ++i) {
                    tile_in[static_cast<std::size_t>(p * lanes + i)] =
                        from[at[1] + (begin + i) * run.stride[1] + p * from_mode.stride];
                }
            }
            triangle.apply(j, reinterpret_cast<const Real*>(tile_in.data()), reinterpret_cast<Real*>(tile_out.data()));
            for (std::int64_t q = 0; q < to_mode.extent; ++q) {
                for (std::int64_t i = 0; i < count; ++i) {
                    Scalar& place = to[at[0] + (begin + i) * run.stride[0] + q * to_mode.stride];
                    const Scalar value = alpha * tile_out[static_cast<std::size_t>(q * lanes + i)];
                    place = s.add ? place + value : value;
                }
            }
        }
    });
    return true;
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file item_lanes.hpp
/// Small products with factors of their own, a register's worth of items at a time: lane l of every register belongs to item l.
///
///     Y_l[.., q, ..] (+)= alpha * sum_p X_l[.., p, ..] * F_l[.., p, q]        l = 0 .. W - 1, one sum per factor
///
/// One item's extents are too short to fill registers and its plan costs more to start than to run; across items every
/// operation is whole. X, the factors and Y are transposed in registers on their way in and out; between, they lie as
/// (element, lane). All W lanes are always computed, the last group repeats its last item, so an item's bits do not depend on its
/// place in the batch.
///
/// Cost of an item: 2 flops for each multiply-add at W lanes, one transposed move for each element of X, F and Y. To prepare: a
/// constant for each element, so that a few items are better run one by one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <otimes/exec/cpu/simd.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Where the elements of one operand lie: `count` elements from memory `offset` on follow element `first` of the packed order.
struct packed_run {
    std::ptrdiff_t first = 0;
    std::ptrdiff_t offset = 0;
    std::ptrdiff_t count = 0;
};

/// The runs of modes of (extent, stride), outermost first, in row-major order of the modes.
inline std::vector<packed_run> packed_runs(const std::vector<mode>& modes) {
    std::vector<packed_run> runs;
    std::vector<std::int64_t> at(modes.size(), 0);
    std::ptrdiff_t offset = 0;
    for (std::ptrdiff_t element = 0;; ++element) {
        if (!runs.empty() && runs.back().offset + runs.back().count == offset) {
            ++runs.back().count;
        } else {
            runs.push_back({element, offset, 1});
        }
        std::size_t k = modes.size();
        while (k > 0 && ++at[k - 1] == modes[k - 1].extent) {
            --k;
            offset -= static_cast<std::ptrdiff_t>((modes[k].extent - 1) * modes[k].stride);
            at[k] = 0;
        }
        if (k == 0) {
            return runs;
        }
        offset += static_cast<std::ptrdiff_t>(modes[k - 1].stride);
    }
}

/// The plan of one item, prepared for W items at a time. Real is float or double.
template <class Real>
class item_lanes {
    using simd_t = simd<Real>;
    using vector = typename simd_t::type;

public:
    static constexpr std::ptrdiff_t width = simd_t::width;
    /// All packed operands of a group stay in a level-two cache, and one item's plan is worth its start beyond.
    static constexpr std::ptrdiff_t most_elements = 2400;

    /// Items from which on what is prepared pays, for each element of one: it takes 4 ns an element (Zen 3), an item gains 0.25 us
    /// where it is small, and reading ahead where the batch comes from memory.
    static constexpr double least_items_per_element = 0.1;

    /// Are these so many items that `prepare` pays?
    [[nodiscard]] bool pays_for(std::int64_t items) const noexcept {
        return static_cast<double>(items) >= least_items_per_element * static_cast<double>(elements_);
    }
    /// False where the plan is not a chain of products with dense factors, or too large, or there are so few items that it doesn't pay.
    /// @param p the plan of one item
    bool prepare(const plan& p, std::int64_t items) {
        const program& s = p.source;
        std::int64_t all = 0;
        if (width == 1 || s.steps.empty() || s.scalar_count != 1) {
            return false;
        }
        for (const tensor& t : s.tensors) {
            if (t.type != dtype_of<Real>() || t.space != memory_space::host ||
                (t.role == tensor_role::factor && (t.kind != factor_kind::dense || s.modes_of(t).size() != 2))) {
                return false;
            }
            std::int64_t elements = 1;
            for (const mode& m : s.modes_of(t)) {
                if (m.extent < 1 || m.extent > most_elements || (elements *= m.extent) > most_elements) {
                    return false;
                }
            }
            all += elements;
        }
        elements_ = all;
        if (!pays_for(items)) {
            return false;
        }
        for (std::size_t k = 0; k < s.steps.size(); ++k) {
            const step& one = s.steps[k];
            const bool last = k + 1 == s.steps.size();
            if (one.kind != step_kind::contract || one.variant != step_variant::none || one.factor < 0 ||
                (one.add && !last) || (one.scalar >= 0) != last || (k > 0 && one.in != s.steps[k - 1].out)) {
                return false;
            }
        }
        const step& last = s.steps.back();
        if (s.at(s.steps.front().in).role != tensor_role::input || s.at(last.out).role != tensor_role::output) {
            return false;
        }
        add_ = last.add;
        scalar_ = last.scalar;
        x_binding_ = s.at(s.steps.front().in).binding;
        y_binding_ = s.at(last.out).binding;

        // The packed order has the modes of X outermost first in memory, so that its runs are long.
        const auto x_modes = s.modes_of(s.steps.front().in);
        const auto y_modes = s.modes_of(last.out);
        std::vector<std::size_t> order(x_modes.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return x_modes[a].stride > x_modes[b].stride; });
        std::vector<mode> from, to;
        for (const std::size_t k : order) {
            from.push_back(x_modes[k]);
            to.push_back(y_modes[k]);
        }
        x_runs_ = packed_runs(from);
        y_runs_ = packed_runs(to);

        stages_.clear();
        std::ptrdiff_t longest = elements_of(from);
        std::ptrdiff_t factors = 0;
        for (const std::size_t k : order_of_steps(p)) {
            const step& one = s.steps[k];
            const auto f = s.modes_of(one.factor);
            const auto at = static_cast<std::size_t>(
                std::find(order.begin(), order.end(), static_cast<std::size_t>(one.mode)) - order.begin());
            stage now;
            now.binding = s.at(one.factor).binding;
            now.p_extent = static_cast<std::ptrdiff_t>(f[0].extent);
            now.q_extent = static_cast<std::ptrdiff_t>(f[1].extent);
            const bool by_columns = f[0].stride < f[1].stride;
            now.f_p_step = by_columns ? 1 : now.q_extent;
            now.f_q_step = by_columns ? now.p_extent : 1;
            now.f_runs = packed_runs(by_columns ? std::vector<mode>{f[1], f[0]} : std::vector<mode>{f[0], f[1]});
            now.f_first = factors;
            factors += now.p_extent * now.q_extent;
            now.inner = elements_of({from.begin() + static_cast<std::ptrdiff_t>(at) + 1, from.end()});
            const std::ptrdiff_t outer = elements_of({from.begin(), from.begin() + static_cast<std::ptrdiff_t>(at)});
            for (std::ptrdiff_t o = 0; o < outer; ++o) {
                for (std::ptrdiff_t i = 0; i < now.inner; ++i) {
                    now.from.push_back((o * now.p_extent * now.inner + i) * width);
                    now.to.push_back((o * now.q_extent * now.inner + i) * width);
                }
            }
            from[at].extent = now.q_extent;
            longest = (std::max)(longest, elements_of(from));
            stages_.push_back(std::move(now));
        }
        if (2 * longest + factors > most_elements) {
            return false;
        }
        buffer_ = longest * width;
        factors_ = factors * width;
        return true;
    }

    /// Bytes of scratch memory, aligned to 64, that `run` wants.
    [[nodiscard]] std::size_t bytes() const noexcept {
        return static_cast<std::size_t>(2 * buffer_ + factors_) * sizeof(Real);
    }

    /// @param items bindings of the W lanes  @param valid lanes that are stored, the first ones
    /// @param scratch `bytes()` bytes  @param held addresses of the shared factors that `scratch` holds from the run before; empty
    /// for the first run
    void run(const std::array<bindings, static_cast<std::size_t>(simd<Real>::width)>& items, std::ptrdiff_t valid,
             void* scratch, std::vector<const void*>& held) const {
        Real* now = static_cast<Real*>(scratch);
        Real* next = now + buffer_;
        Real* const factors = next + buffer_;
        load(items, x_binding_, x_runs_, now);
        held.resize(stages_.size(), nullptr);
        for (std::size_t k = 0; k < stages_.size(); ++k) {
            const stage& s = stages_[k];
            Real* const f = factors + s.f_first * width;
            const auto b = static_cast<std::size_t>(s.binding);
            const void* const first = items[0].pointers[b];
            const bool shared =
                std::all_of(items.begin(), items.end(), [&](const bindings& one) { return one.pointers[b] == first; });
            if (!shared || held[k] != first) {
                load(items, s.binding, s.f_runs, f);
                held[k] = shared ? first : nullptr;
            }
            multiply(s, now, f, next);
            std::swap(now, next);
        }
        store(items, valid, now);
    }

private:
    static constexpr int free_block = 4;
    static constexpr int out_block = OTIMES_TARGET_SIMD_REGISTERS == 32 ? 4 : 2;

    struct stage {
        std::int32_t binding = -1;
        std::ptrdiff_t p_extent = 1;
        std::ptrdiff_t q_extent = 1;
        std::ptrdiff_t inner = 1;     ///< packed elements from one index of the mode to the next
        std::ptrdiff_t f_p_step = 1;  ///< likewise of the factor
        std::ptrdiff_t f_q_step = 1;
        std::ptrdiff_t f_first = 0;  ///< of this factor among the packed ones
        std::vector<packed_run> f_runs;
        std::vector<std::ptrdiff_t> from, to;  ///< reals before each free index, in the input and in the output
    };

    static std::ptrdiff_t elements_of(const std::vector<mode>& modes) {
        std::ptrdiff_t n = 1;
        for (const mode& m : modes) {
            n *= static_cast<std::ptrdiff_t>(m.extent);
        }
        return n;
    }
    /// The steps in the order of the plan's sweeps; as written where sweeps are not the steps.
    static std::vector<std::size_t> order_of_steps(const plan& p) {
        std::vector<std::size_t> order;
        for (const pass& one : p.passes) {
            for (const sweep& s : one.sweeps) {
                for (const std::int32_t factor : s.factors) {
                    for (std::size_t k = 0; k < p.source.steps.size(); ++k) {
                        if (p.source.steps[k].factor == factor) {
                            order.push_back(k);
                        }
                    }
                }
            }
        }
        if (order.size() != p.source.steps.size()) {
            order.resize(p.source.steps.size());
            std::iota(order.begin(), order.end(), std::size_t{0});
        }
        return order;
    }

    /// Items mostly lie at equal distances, too far apart for the processor to see it: what the next group needs is asked for
    /// while this one is moved. An address that is none does no harm.
    static std::uintptr_t to_next_group(const Real* first, const Real* second) noexcept {
        return (reinterpret_cast<std::uintptr_t>(second) - reinterpret_cast<std::uintptr_t>(first)) * width;
    }
    template <bool Write>
    static OTIMES_INLINE void fetch(const Real* now, std::uintptr_t ahead) noexcept {
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(now) + ahead), Write ? 1 : 0);
    }

    template <class Items>
    static void load(const Items& items, std::int32_t binding, const std::vector<packed_run>& runs, Real* to) {
        const Real* lane[static_cast<std::size_t>(width)];
        for (std::ptrdiff_t l = 0; l < width; ++l) {
            lane[l] = static_cast<const Real*>(
                items[static_cast<std::size_t>(l)].pointers[static_cast<std::size_t>(binding)]);
        }
        const std::uintptr_t ahead = to_next_group(lane[0], lane[width > 1 ? 1 : 0]);
        for (const packed_run& r : runs) {
            Real* const run_to = to + r.first * width;
            std::ptrdiff_t e = 0;
            for (; r.count >= width && e < r.count; e += width) {
                e = (std::min)(e, r.count - width);  // the last block may overlap the one before
                vector v[static_cast<std::size_t>(width)];
                OTIMES_UNROLL
                for (int l = 0; l < width; ++l) {
                    v[l] = simd_t::load(lane[l] + r.offset + e);
                    fetch<false>(lane[l] + r.offset + e, ahead);
                }
                transpose_registers<Real>(v);
                OTIMES_UNROLL
                for (int i = 0; i < width; ++i) {
                    simd_t::store(run_to + (e + i) * width, v[i]);
                }
            }
            for (; e < r.count; ++e) {
                OTIMES_UNROLL
                for (int l = 0; l < width; ++l) {
                    run_to[e * width + l] = lane[l][r.offset + e];
                }
            }
        }
    }

    void store(const std::array<bindings, static_cast<std::size_t>(simd<Real>::width)>& items, std::ptrdiff_t valid,
               const Real* from) const {
        const auto alpha = static_cast<Real>(items[0].scalars[static_cast<std::size_t>(scalar_)].real());
        const vector alphas = simd_t::broadcast(alpha);
        const std::uintptr_t ahead = to_next_group(y_of(items, 0), y_of(items, width > 1 ? 1 : 0));
        for (const packed_run& r : y_runs_) {
            const Real* const run_from = from + r.first * width;
            std::ptrdiff_t e = 0;
            for (; e + width <= r.count; e += width) {
                vector v[static_cast<std::size_t>(width)];
                OTIMES_UNROLL
                for (int i = 0; i < width; ++i) {
                    v[i] = alphas * simd_t::load(run_from + (e + i) * width);
                }
                transpose_registers<Real>(v);
                OTIMES_UNROLL
                for (int l = 0; l < width; ++l) {
                    if (l < valid) {
                        Real* const y = y_of(items, l) + r.offset + e;
                        simd_t::store(y, add_ ? simd_t::load(y) + v[l] : v[l]);
                        fetch<true>(y, ahead);
                    }
                }
            }
            for (; e < r.count; ++e) {
                for (std::ptrdiff_t l = 0; l < valid; ++l) {
                    Real& y = y_of(items, l)[r.offset + e];
                    const Real value = alpha * run_from[e * width + l];
                    y = add_ ? y + value : value;
                }
            }
        }
    }
    template <class Items>
    Real* y_of(const Items& items, std::ptrdiff_t lane) const {
        return static_cast<Real*>(items[static_cast<std::size_t>(lane)].pointers[static_cast<std::size_t>(y_binding_)]);
    }

    /// to[o * to_q] of `Free` free indices and `Outs` columns of the factor.
    template <int Free, int Outs>
    static OTIMES_INLINE void block(const stage& s, const Real* from, const Real* f, Real* to, std::size_t free,
                                    std::ptrdiff_t q) {
        const Real* x[static_cast<std::size_t>(Free)];
        OTIMES_UNROLL
        for (int i = 0; i < Free; ++i) {
            x[i] = from + s.from[free + static_cast<std::size_t>(i)];
        }
        const Real* columns = f + q * s.f_q_step * width;
        const std::ptrdiff_t x_step = s.inner * width;
        const std::ptrdiff_t p_step = s.f_p_step * width;
        const std::ptrdiff_t q_step = s.f_q_step * width;
        vector sum[static_cast<std::size_t>(Free)][static_cast<std::size_t>(Outs)] = {};
        for (std::ptrdiff_t p = 0; p < s.p_extent; ++p, columns += p_step) {
            vector b[static_cast<std::size_t>(Outs)];
            OTIMES_UNROLL
            for (int o = 0; o < Outs; ++o) {
                b[o] = simd_t::load(columns + o * q_step);
            }
            OTIMES_UNROLL
            for (int i = 0; i < Free; ++i) {
                const vector a = simd_t::load(x[i] + p * x_step);
                OTIMES_UNROLL
                for (int o = 0; o < Outs; ++o) {
                    sum[i][o] = simd_t::multiply_add(a, b[o], sum[i][o]);
                }
            }
        }
        OTIMES_UNROLL
        for (int i = 0; i < Free; ++i) {
            Real* const y = to + s.to[free + static_cast<std::size_t>(i)] + q * x_step;
            OTIMES_UNROLL
            for (int o = 0; o < Outs; ++o) {
                simd_t::store(y + o * x_step, sum[i][o]);
            }
        }
    }
    template <int Outs>
    static void columns(const stage& s, const Real* from, const Real* f, Real* to, std::ptrdiff_t q) {
        const std::size_t count = s.from.size();
        std::size_t free = 0;
        for (; free + free_block <= count; free += free_block) {
            block<free_block, Outs>(s, from, f, to, free, q);
        }
        for (; free < count; ++free) {
            block<1, Outs>(s, from, f, to, free, q);
        }
    }
    static void multiply(const stage& s, const Real* from, const Real* f, Real* to) {
        std::ptrdiff_t q = 0;
        for (; q + out_block <= s.q_extent; q += out_block) {
            columns<out_block>(s, from, f, to, q);
        }
        for (; q < s.q_extent; ++q) {
            columns<1>(s, from, f, to, q);
        }
    }

    std::vector<stage> stages_;
    std::vector<packed_run> x_runs_;
    std::vector<packed_run> y_runs_;
    std::ptrdiff_t buffer_ = 0;   ///< reals of one of the two buffers
    std::ptrdiff_t factors_ = 0;  ///< reals of all packed factors
    std::int64_t elements_ = 0;   ///< of all operands of one item
    std::int32_t x_binding_ = 0;
    std::int32_t y_binding_ = 0;
    std::int32_t scalar_ = 0;
    bool add_ = false;
};

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

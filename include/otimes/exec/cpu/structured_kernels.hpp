// SPDX-License-Identifier: MIT
/// @file structured_kernels.hpp
/// Register loops for the steps of factors with structure, on runs of memory:
///
///     sparse_lanes    y[q, l] (+)= sum over the stored (p, q) of x[p, l] * F[p, q]     l: lanes, side by side in memory
///     sparse_fibres   y[i, q] (+)= sum over the stored (p, q) of x[i, p] * F[p, q]     p and q: side by side in memory
///     sparse_scatter  y[q]    (+)= the same for one fibre, whose elements are stored by p
///     move_block      y[to(j), l] (+)= alpha * x[from(j), l]                           a gather or a scatter
///     scale_run       y[l] (+)= (alpha * x[l]) * d[l], or * d
///
/// What is added to is added last, and every sum goes in the order in which the elements are stored, with one rounding for each multiply-add
/// where the target can: the bits of an entry do not depend on the lanes, fibres or threads beside it.
///
/// Everything but `sparse_columns::assign` works on given memory: no allocation, no exception.
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include <otimes/exec/cpu/simd.hpp>
#include <otimes/exec/cpu/tile.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Neighbouring stored elements of a sparse factor: those of one q, with their p, or those of one p, with their q.
template <class Scalar>
struct sparse_run {
    const std::int32_t* index;
    const Scalar* value;
    std::int64_t count;
};

/// The runs of a sparse factor and alpha, by value: a loop that writes results need not ask for them again.
template <class Scalar>
struct sparse_runs {
    const std::int64_t* starts;  ///< null: the elements are read where they lie
    const std::int32_t* index;
    const Scalar* values;
    sparse_elements stored;
    Scalar alpha;
    bool scales;

    [[nodiscard]] OTIMES_INLINE sparse_run<Scalar> operator[](std::size_t of) const noexcept {
        if (starts != nullptr) {
            return {index + starts[of], values + starts[of], starts[of + 1] - starts[of]};
        }
        const auto outer = static_cast<std::int64_t>(of);
        const std::int64_t first = stored.begin(outer);
        return {static_cast<const std::int32_t*>(stored.inner) + first,
                static_cast<const Scalar*>(stored.values) + first, stored.end(outer) - first};
    }
};

/// The stored elements of a sparse P x Q factor as the loops below read them: by q, the index of the result, where they lie or in an order of their own;
/// or by p where they lie so and serve so few fibres that ordering them would take longer.
template <class Scalar>
class sparse_columns {
public:
    /// Looks at a factor anew, in the memory of the one before. Cost: nothing where the elements are stored by q in the program's type, or for few fibres;
    /// else O(Q + stored elements). False where an index does not fit 32 bits.
    bool assign(const reference_loops::view& factor, std::int64_t p_extent, std::int64_t q_extent, const Scalar& alpha,
                std::int64_t fibres) {
        constexpr std::int64_t few = 4;
        constexpr bool complex =
            !std::is_same_v<Scalar, decltype(std::real(Scalar()))>;  // whose sums are kept in two parts
        stored_ = static_cast<const sparse_operand*>(factor.data)->elements();
        q_extent_ = static_cast<std::size_t>(q_extent);
        alpha_ = alpha;
        if (p_extent > most_index || q_extent > most_index) {
            return false;
        }
        const bool p_is_row = factor.modes[factor.modes.size() - 2].stride != 0;
        by_q_ = p_is_row == stored_.by_columns;
        const bool as_it_lies = stored_.index_bytes == 4 && factor.type == dtype_of<Scalar>() && !factor.conjugate;
        in_place_ = as_it_lies && (by_q_ || (fibres <= few && !complex));
        if (!in_place_) {
            order(factor);
            by_q_ = true;
        }
        return true;
    }
    /// False: a run is that of one p.
    [[nodiscard]] bool by_q() const noexcept { return by_q_; }
    [[nodiscard]] std::size_t q_extent() const noexcept { return q_extent_; }
    [[nodiscard]] std::size_t run_count() const noexcept {
        return by_q_ ? q_extent_ : static_cast<std::size_t>(stored_.outer_size());
    }
    [[nodiscard]] sparse_runs<Scalar> runs() const noexcept {
        return {
            in_place_ ? nullptr : starts_.data(), index_.data(), values_.data(), stored_, alpha_, alpha_ != Scalar(1)};
    }
    /// Indices from the first to the last element of one run, at most: what has to stay in cache while q advances, where they lie in order.
    [[nodiscard]] std::int64_t reach() const noexcept {
        std::int64_t most = 1;
        const sparse_runs<Scalar> all = runs();
        for (std::size_t q = 0; q < run_count(); ++q) {
            const sparse_run<Scalar> r = all[q];
            if (r.count > 0) {
                const std::int64_t apart = std::int64_t{r.index[r.count - 1]} - r.index[0];
                most = (std::max)(most, (apart < 0 ? -apart : apart) + 1);
            }
        }
        return most;
    }

private:
    static constexpr std::int64_t most_index = 0x7fffffff;

    /// By q, those of one q in the order in which they are stored.
    void order(const reference_loops::view& factor) {
        reference_loops::view values = factor;
        values.data = const_cast<void*>(stored_.values);
        starts_.assign(q_extent_ + 1, 0);
        const auto for_each = [&](const auto& f) {  // f(p, q, position)
            for (std::int64_t outer = 0; outer < stored_.outer_size(); ++outer) {
                for (std::int64_t k = stored_.begin(outer); k < stored_.end(outer); ++k) {
                    const std::int64_t inner = stored_.index(stored_.inner, k);
                    f(by_q_ ? inner : outer, static_cast<std::size_t>(by_q_ ? outer : inner), k);
                }
            }
        };
        for_each([&](std::int64_t, std::size_t q, std::int64_t) { ++starts_[q + 1]; });
        for (std::size_t q = 0; q < q_extent_; ++q) {
            starts_[q + 1] += starts_[q];
        }
        index_.resize(static_cast<std::size_t>(starts_.back()));
        values_.resize(static_cast<std::size_t>(starts_.back()));
        next_.assign(starts_.begin(), starts_.end());
        for_each([&](std::int64_t p, std::size_t q, std::int64_t k) {
            const auto at = static_cast<std::size_t>(next_[q]++);
            index_[at] = static_cast<std::int32_t>(p);
            values_[at] = reference_loops::read<Scalar>(values, k);
        });
    }

    sparse_elements stored_;
    std::size_t q_extent_ = 0;
    Scalar alpha_ = Scalar(1);
    bool by_q_ = true;
    bool in_place_ = false;
    std::vector<std::int32_t> index_;
    std::vector<Scalar> values_;
    std::vector<std::int64_t> starts_;
    std::vector<std::int64_t> next_;
};

/// The first `count` elements of a register from p on, the others 0; nothing behind them is read.
template <class Real>
OTIMES_INLINE typename simd<Real>::type load_some(const Real* p, std::int64_t count) noexcept {
    using simd_t = simd<Real>;
    if constexpr (simd_t::has_masks) {
        return simd_t::load_first(p, static_cast<std::ptrdiff_t>(count));
    } else {
        Real image[static_cast<std::size_t>(simd_t::width)] = {};
        for (std::int64_t i = 0; i < count; ++i) {
            image[i] = p[i];
        }
        return simd_t::load(image);
    }
}
template <class Real>
OTIMES_INLINE void store_some(Real* p, typename simd<Real>::type v, std::int64_t count) noexcept {
    using simd_t = simd<Real>;
    if constexpr (simd_t::has_masks) {
        simd_t::store_first(p, v, static_cast<std::ptrdiff_t>(count));
    } else {
        Real image[static_cast<std::size_t>(simd_t::width)];
        simd_t::store(image, v);
        for (std::int64_t i = 0; i < count; ++i) {
            p[i] = image[i];
        }
    }
}

/// c + a * b as simd::multiply_add rounds it.
template <class Real>
OTIMES_INLINE Real multiply_add_one(Real a, Real b, Real c) noexcept {
#if defined(__FMA__) || defined(__AVX512F__)
    if constexpr (std::is_same_v<Real, float>) {
        return __builtin_fmaf(a, b, c);
    } else {
        return __builtin_fma(a, b, c);
    }
#else
    return c + a * b;
#endif
}

/// A product that the compiler may not fuse with an addition behind it: registers round it, too.
template <class Real>
OTIMES_INLINE Real rounded(Real product) noexcept {
#if defined(__GNUC__) && defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__GNUC__) && defined(__aarch64__)
    asm("" : "+w"(product));
#endif
    return product;
}

/// Which index goes where: entry j of a gather takes what entry index[j] of x holds, a scatter gives entry j of x to entry index[j].
struct moved_indices {
    const std::int64_t* wide;    ///< the list; nullptr: it is `narrow`
    const std::int32_t* narrow;  ///< as permutation matrices store it
    std::int64_t count;
    bool gather;
    [[nodiscard]] std::int64_t index(std::int64_t j) const noexcept { return wide != nullptr ? wide[j] : narrow[j]; }
    [[nodiscard]] std::int64_t to(std::int64_t j) const noexcept { return gather ? j : index(j); }
    [[nodiscard]] std::int64_t from(std::int64_t j) const noexcept { return gather ? index(j) : j; }
    /// Entries [first, first + length) of a gather.
    [[nodiscard]] moved_indices part(std::int64_t first, std::int64_t length) const noexcept {
        return {wide != nullptr ? wide + first : nullptr, wide != nullptr ? nullptr : narrow + first, length, gather};
    }
};

/// y[j] = x[index[j]]. A list that walks through x in long steps, as a stride permutation does, comes back to the neighbour of its first index after
/// `period` entries; then as many periods as a line of the caches has elements go together. Of any other list that is just another order.
template <class Scalar, class Index>
void gather_run(const Index* index, std::int64_t count, Scalar* y, const Scalar* x) noexcept {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(Scalar));
    constexpr std::int64_t long_step = 2 * line;
    constexpr std::int64_t least_count = 4096;  // less lies in the first-level cache in any order
    std::int64_t period = 0;
    if (count >= least_count && std::abs(std::int64_t{index[1]} - index[0]) >= long_step) {
        for (std::int64_t j = line; j <= count / line && period == 0; ++j) {
            period = index[j] - index[0] == 1 ? j : 0;
        }
    }
    std::int64_t done = 0;
    for (; period > 0 && done + line * period <= count; done += line * period) {
        for (std::int64_t first = 0; first < period; first += line) {
            const std::int64_t some = (std::min)(line, period - first);
            for (std::int64_t k = 0; k < line; ++k) {
                const std::int64_t at = done + k * period + first;
                for (std::int64_t j = at; j < at + some; ++j) {
                    y[j] = x[index[j]];
                }
            }
        }
    }
    for (; done < count; ++done) {
        y[done] = x[index[done]];
    }
}

/// y[index[j]] = x[j], one after the other: of two that go to one place the later one stays.
template <class Scalar, class Index>
void scatter_run(const Index* index, std::int64_t count, Scalar* y, const Scalar* x) noexcept {
    for (std::int64_t j = 0; j < count; ++j) {
        y[index[j]] = x[j];
    }
}

/// y[to(j), l] (+)= alpha * x[from(j), l] for lanes side by side in memory, in registers.
template <class Scalar, bool Copies>
void move_lanes(const moved_indices& moved, Scalar* to, std::int64_t to_stride, const Scalar* from,
                std::int64_t from_stride, std::int64_t lanes, bool add, const Scalar& alpha) noexcept {
    using Real = decltype(std::real(Scalar()));
    using simd_t = simd<Real>;
    constexpr auto components = static_cast<std::int64_t>(sizeof(Scalar) / sizeof(Real));
    static_assert(Copies || components == 1);
    const std::int64_t reals = lanes * components;
    const typename simd_t::type scalar = simd_t::broadcast(std::real(alpha));
    for (std::int64_t j = 0; j < moved.count; ++j) {
        auto* const y = reinterpret_cast<Real*>(to + moved.to(j) * to_stride);
        const auto* const x = reinterpret_cast<const Real*>(from + moved.from(j) * from_stride);
        std::int64_t i = 0;
        for (; i + simd_t::width <= reals; i += simd_t::width) {
            const typename simd_t::type v = simd_t::load(x + i);
            simd_t::store(y + i, Copies ? v : add ? simd_t::multiply_add(scalar, v, simd_t::load(y + i)) : scalar * v);
        }
        if (i < reals) {
            const std::int64_t some = reals - i;
            const typename simd_t::type v = load_some(x + i, some);
            store_some(y + i,
                       Copies ? v
                       : add  ? simd_t::multiply_add(scalar, v, load_some(y + i, some))
                              : scalar * v,
                       some);
        }
    }
}

/// y[to(j) * to_stride, l * to_lane] (+)= alpha * x[from(j) * from_stride, l * from_lane]
template <class Scalar>
void move_block(const moved_indices& moved, Scalar* to, std::int64_t to_stride, std::int64_t to_lane,
                const Scalar* from, std::int64_t from_stride, std::int64_t from_lane, std::int64_t lanes, bool add,
                const Scalar& alpha) noexcept {
    using Real = decltype(std::real(Scalar()));
    const bool copies = !add && alpha == Scalar(1);
    if (to_lane == 1 && from_lane == 1 && lanes > 1) {
        if (copies) {
            move_lanes<Scalar, true>(moved, to, to_stride, from, from_stride, lanes, add, alpha);
            return;
        }
        if constexpr (sizeof(Scalar) == sizeof(Real)) {
            move_lanes<Scalar, false>(moved, to, to_stride, from, from_stride, lanes, add, alpha);
            return;
        }
    }
    // With the mode itself innermost a fibre is a run of memory; otherwise the lanes are.
    const auto move = [&](std::int64_t l, std::int64_t j) {
        Scalar& place = to[moved.to(j) * to_stride + l * to_lane];
        const Scalar value = from[moved.from(j) * from_stride + l * from_lane];
        if (copies) {
            place = value;
        } else if constexpr (sizeof(Scalar) == sizeof(Real)) {
            place = add ? multiply_add_one(alpha, value, place) : alpha * value;
        } else {
            place = add ? place + alpha * value : alpha * value;
        }
    };
    if ((to_stride < 0 ? -to_stride : to_stride) < (to_lane < 0 ? -to_lane : to_lane)) {
        for (std::int64_t l = 0; l < lanes; ++l) {
            if (copies && to_stride == 1 && from_stride == 1) {
                Scalar* const y = to + l * to_lane;
                const Scalar* const x = from + l * from_lane;
                const auto run = [&](const auto* index) {
                    if (moved.gather) {
                        gather_run(index, moved.count, y, x);
                    } else {
                        scatter_run(index, moved.count, y, x);
                    }
                };
                if (moved.wide != nullptr) {
                    run(moved.wide);
                } else {
                    run(moved.narrow);
                }
                continue;
            }
            for (std::int64_t j = 0; j < moved.count; ++j) {
                move(l, j);
            }
        }
        return;
    }
    for (std::int64_t j = 0; j < moved.count; ++j) {
        for (std::int64_t l = 0; l < lanes; ++l) {
            move(l, j);
        }
    }
}

/// The complex numbers of a register times re + i im, whose parts are broadcast, those of `im` with alternating signs.
template <class Real>
OTIMES_INLINE typename simd<Real>::type multiply_complex(typename simd<Real>::type v, typename simd<Real>::type re,
                                                         typename simd<Real>::type im) noexcept {
    return simd<Real>::multiply_add(re, v, im * simd<Real>::swap_pairs(v));
}

/// y[i] (+)= (alpha * x[i]) * d for complex y and x, neighbours in memory; d is complex or real.
template <class Scalar, class Factor>
void scale_complex_run(Scalar* to, const Scalar* from, const Factor& d, std::int64_t count, bool add,
                       const Scalar& alpha) noexcept {
    using Real = decltype(std::real(Scalar()));
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    const bool scales = alpha != Scalar(1);
    const vec alpha_re = simd_t::broadcast(alpha.real());
    const vec alpha_im = simd_t::alternating() * alpha.imag();
    const vec re = simd_t::broadcast(std::real(d));
    [[maybe_unused]] vec im{};
    if constexpr (sizeof(Factor) == sizeof(Scalar)) {
        im = simd_t::alternating() * d.imag();
    }
    const auto of = [&](vec v) {
        v = scales ? multiply_complex<Real>(v, alpha_re, alpha_im) : v;
        if constexpr (sizeof(Factor) == sizeof(Scalar)) {
            return multiply_complex<Real>(v, re, im);
        } else {
            return vec(re * v);
        }
    };
    auto* const y = reinterpret_cast<Real*>(to);
    const auto* const x = reinterpret_cast<const Real*>(from);
    std::int64_t i = 0;
    for (; i + simd_t::width <= 2 * count; i += simd_t::width) {
        const vec v = of(simd_t::load(x + i));
        simd_t::store(y + i, add ? simd_t::load(y + i) + v : v);
    }
    if (const std::int64_t some = 2 * count - i; some > 0) {
        const vec v = of(load_some(x + i, some));
        store_some(y + i, add ? load_some(y + i, some) + v : v, some);
    }
}

/// y[i * y_stride] (+)= (alpha * x[i * x_stride]) * d[i * d_stride]; Factor is Scalar or its real type.
template <class Scalar, class Factor>
void scale_run(Scalar* to, std::int64_t to_stride, const Scalar* from, std::int64_t from_stride, const Factor* d,
               std::int64_t d_stride, std::int64_t count, bool add, const Scalar& alpha) noexcept {
    using Real = decltype(std::real(Scalar()));
    if constexpr (sizeof(Scalar) == sizeof(Real)) {
        using simd_t = simd<Real>;
        if (to_stride == 1 && from_stride == 1 && (d_stride == 0 || d_stride == 1)) {
            const typename simd_t::type scalar = simd_t::broadcast(alpha);
            const typename simd_t::type one_d = simd_t::broadcast(*d);
            const auto of = [&](typename simd_t::type x, typename simd_t::type by, typename simd_t::type old) {
                return add ? simd_t::multiply_add(scalar * x, by, old) : (scalar * x) * by;
            };
            std::int64_t i = 0;
            for (; i + simd_t::width <= count; i += simd_t::width) {
                simd_t::store(to + i, of(simd_t::load(from + i), d_stride == 0 ? one_d : simd_t::load(d + i),
                                         add ? simd_t::load(to + i) : typename simd_t::type{}));
            }
            if (i < count) {
                const std::int64_t some = count - i;
                store_some(to + i,
                           of(load_some(from + i, some), d_stride == 0 ? one_d : load_some(d + i, some),
                              add ? load_some(to + i, some) : typename simd_t::type{}),
                           some);
            }
            return;
        }
    }
    if constexpr (sizeof(Scalar) != sizeof(Real) && simd<Real>::width > 1) {
        if (to_stride == 1 && from_stride == 1 && d_stride == 0) {
            scale_complex_run<Scalar>(to, from, *d, count, add, alpha);
            return;
        }
    }
    const auto loop = [&](auto sy, auto sx, auto sd) {
        for (std::int64_t i = 0; i < count; ++i) {
            Scalar& place = to[i * sy];
            const Scalar x = alpha * from[i * sx];
            if constexpr (sizeof(Scalar) == sizeof(Real)) {
                place = add ? multiply_add_one(x, d[i * sd], place) : x * d[i * sd];
            } else {
                place = add ? place + x * d[i * sd] : x * d[i * sd];
            }
        }
    };
    using one = std::integral_constant<std::int64_t, 1>;
    using zero = std::integral_constant<std::int64_t, 0>;
    if (to_stride == 1 && from_stride == 1 && d_stride == 1) {
        loop(one(), one(), one());
    } else if (to_stride == 1 && from_stride == 1 && d_stride == 0) {
        loop(one(), one(), zero());
    } else {
        loop(to_stride, from_stride, d_stride);
    }
}

/// `Vectors` registers of sparse_lanes, for one q; of the only one `count` elements where `Whole` is false.
template <class Scalar, int Vectors, bool Whole, class Real>
OTIMES_INLINE void sparse_block(const sparse_runs<Scalar>& f, const sparse_run<Scalar>& run, const Real* x,
                                std::int64_t x_p, Real* y, std::int64_t count, bool add) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr bool complex = sizeof(Scalar) != sizeof(Real);
    vec sum[Vectors] = {};
    [[maybe_unused]] vec crossed[Vectors] = {};  // by the imaginary parts of F
    for (std::int64_t e = 0; e < run.count; ++e) {
        const Real* const from = x + run.index[e] * x_p;
        vec v[Vectors];
        OTIMES_UNROLL
        for (int k = 0; k < Vectors; ++k) {
            v[k] = Whole ? simd_t::load(from + k * simd_t::width) : load_some(from, count);
        }
        const vec re = simd_t::broadcast(std::real(run.value[e]));
        OTIMES_UNROLL
        for (int k = 0; k < Vectors; ++k) {
            sum[k] = simd_t::multiply_add(re, v[k], sum[k]);
        }
        if constexpr (complex) {
            const vec im = simd_t::broadcast(std::imag(run.value[e]));
            OTIMES_UNROLL
            for (int k = 0; k < Vectors; ++k) {
                crossed[k] = simd_t::multiply_add(im, v[k], crossed[k]);
            }
        }
    }
    OTIMES_UNROLL
    for (int k = 0; k < Vectors; ++k) {
        if constexpr (complex) {
            sum[k] = simd_t::multiply_add(simd_t::alternating(), simd_t::swap_pairs(crossed[k]), sum[k]);
        }
        if (f.scales) {
            if constexpr (complex) {
                sum[k] = multiply_complex<Real>(sum[k], simd_t::broadcast(f.alpha.real()),
                                                simd_t::alternating() * f.alpha.imag());
            } else {
                sum[k] = simd_t::broadcast(f.alpha) * sum[k];
                simd_t::pin(sum[k]);  // rounded before it is added, everywhere
            }
        }
        Real* const to = y + k * simd_t::width;
        if (Whole) {
            simd_t::store(to, add ? simd_t::load(to) + sum[k] : sum[k]);
        } else {
            store_some(to, add ? load_some(to, count) + sum[k] : sum[k], count);
        }
    }
}

/// One entry of the result: alpha times the sum of x[p * x_p] * F[p, q] over the elements of one q.
template <class Scalar>
OTIMES_INLINE Scalar sparse_sum(const sparse_runs<Scalar>& f, const sparse_run<Scalar>& run, const Scalar* x,
                                std::int64_t x_p) noexcept {
    using Real = decltype(std::real(Scalar()));
    if constexpr (sizeof(Scalar) == sizeof(Real)) {
        Real sum = 0;
        for (std::int64_t e = 0; e < run.count; ++e) {
            sum = multiply_add_one(run.value[e], x[run.index[e] * x_p], sum);
        }
        return f.scales ? rounded(f.alpha * sum) : sum;
    } else {
        Real re = 0, im = 0, crossed_re = 0, crossed_im = 0;
        for (std::int64_t e = 0; e < run.count; ++e) {
            const Scalar value = x[run.index[e] * x_p];
            const Scalar by = run.value[e];
            re = multiply_add_one(by.real(), value.real(), re);
            im = multiply_add_one(by.real(), value.imag(), im);
            crossed_re = multiply_add_one(by.imag(), value.real(), crossed_re);
            crossed_im = multiply_add_one(by.imag(), value.imag(), crossed_im);
        }
        re -= crossed_im;
        im += crossed_re;
        if (f.scales) {  // as multiply_complex
            const Real a = f.alpha.real(), b = f.alpha.imag();
            const Real cross = rounded(-b * im), other = rounded(b * re);
            const Real scaled = multiply_add_one(a, re, cross);
            im = multiply_add_one(a, im, other);
            re = scaled;
        }
        return Scalar(re, im);
    }
}

/// One fibre of a factor whose elements lie by p: y[q * y_q] (+)= alpha * sum over the stored (p, q) of x[p * x_p] * F[p, q], in the bits of sparse_sum.
/// @param scratch of Q elements @pre real scalars
template <class Scalar>
void sparse_scatter(const sparse_columns<Scalar>& columns, const Scalar* x, std::int64_t x_p, Scalar* y,
                    std::int64_t y_q, bool add, Scalar* scratch) noexcept {
    if constexpr (std::is_same_v<Scalar, decltype(std::real(Scalar()))>) {
        const auto q_extent = static_cast<std::int64_t>(columns.q_extent());
        const sparse_runs<Scalar> f = columns.runs();
        const bool direct = !add && !f.scales;
        Scalar* const to = direct ? y : scratch;
        const std::int64_t step = direct ? y_q : 1;
        for (std::int64_t q = 0; q < q_extent; ++q) {
            to[q * step] = 0;
        }
        for (std::size_t p = 0; p < columns.run_count(); ++p) {
            const sparse_run<Scalar> run = f[p];
            const Scalar by = x[static_cast<std::int64_t>(p) * x_p];
            for (std::int64_t e = 0; e < run.count; ++e) {
                Scalar& place = to[run.index[e] * step];
                place = multiply_add_one(run.value[e], by, place);
            }
        }
        for (std::int64_t q = 0; !direct && q < q_extent; ++q) {
            const Scalar sum = f.scales ? rounded(f.alpha * scratch[q]) : scratch[q];
            y[q * y_q] = add ? y[q * y_q] + sum : sum;
        }
    }
}

/// Some neighbouring indices of the result.
struct index_range {
    std::size_t begin, end;
};

/// See the file comment. @param x_p,y_q strides of p and q, @param lanes all in elements
template <class Scalar>
void sparse_lanes(const sparse_columns<Scalar>& columns, const index_range& of_q, const Scalar* x, std::int64_t x_p,
                  Scalar* y, std::int64_t y_q, std::int64_t lanes, bool add) noexcept {
    using Real = decltype(std::real(Scalar()));
    constexpr auto components = static_cast<std::int64_t>(sizeof(Scalar) / sizeof(Real));
    constexpr std::int64_t width = simd<Real>::width;
    const sparse_runs<Scalar> f = columns.runs();
    if constexpr (width < components) {
        y += static_cast<std::int64_t>(of_q.begin) * y_q;
        for (std::size_t q = of_q.begin; q < of_q.end; ++q, y += y_q) {
            for (std::int64_t l = 0; l < lanes; ++l) {
                const Scalar sum = sparse_sum(f, f[q], x + l, x_p);
                y[l] = add ? y[l] + sum : sum;
            }
        }
    } else {
        const auto* const from = reinterpret_cast<const Real*>(x);
        auto* to = reinterpret_cast<Real*>(y) + static_cast<std::int64_t>(of_q.begin) * y_q * components;
        const std::int64_t reals = lanes * components;
        for (std::size_t q = of_q.begin; q < of_q.end; ++q, to += y_q * components) {
            const sparse_run<Scalar> run = f[q];
            std::int64_t l = 0;
            for (; l + 4 * width <= reals; l += 4 * width) {
                sparse_block<Scalar, 4, true>(f, run, from + l, x_p * components, to + l, 0, add);
            }
            if (l + 2 * width <= reals) {
                sparse_block<Scalar, 2, true>(f, run, from + l, x_p * components, to + l, 0, add);
                l += 2 * width;
            }
            for (; l + width <= reals; l += width) {
                sparse_block<Scalar, 1, true>(f, run, from + l, x_p * components, to + l, 0, add);
            }
            if (l < reals) {
                sparse_block<Scalar, 1, false>(f, run, from + l, x_p * components, to + l, reals - l, add);
            }
        }
    }
}

/// Fibres that sparse_fibres takes at once, and elements of the memory that it wants for them: 0 where it takes them one by one, because they are
/// too long for `most_bytes`, or because transposing them is no gain.
template <class Scalar>
struct sparse_fibre_blocks {
    using Real = decltype(std::real(Scalar()));
    static constexpr auto components = static_cast<std::int64_t>(sizeof(Scalar) / sizeof(Real));
    std::int64_t lanes = 0;
    std::int64_t elements = 0;

    sparse_fibre_blocks(std::int64_t p_extent, std::int64_t q_extent, std::int64_t count,
                        std::int64_t most_bytes) noexcept {
        constexpr std::int64_t least = simd<Real>::width / components;
        const std::int64_t of_lane = (p_extent + q_extent) * static_cast<std::int64_t>(sizeof(Scalar));
        if (least < 2 || count < least || of_lane > most_bytes / least) {
            return;
        }
        lanes = (std::min)({most_bytes / of_lane / least, count / least, std::int64_t{4}}) * least;
        elements = (p_extent + q_extent) * lanes;
    }
};

/// See the file comment. @param x_fibre,y_fibre from fibre to fibre, in elements @param scratch blocks.elements of them
template <class Scalar>
void sparse_fibres(const sparse_columns<Scalar>& f, const sparse_fibre_blocks<Scalar>& blocks, std::int64_t p_extent,
                   const Scalar* x, std::int64_t x_fibre, Scalar* y, std::int64_t y_fibre, std::int64_t count, bool add,
                   Scalar* scratch) noexcept {
    using Real = decltype(std::real(Scalar()));
    constexpr int components = sizeof(Scalar) == sizeof(Real) ? 1 : 2;
    const auto q_extent = static_cast<std::int64_t>(f.q_extent());
    const std::int64_t lanes = blocks.lanes;
    const sparse_runs<Scalar> runs = f.runs();
    std::int64_t i = 0;
    if (lanes > 0) {
        copy_job<Real> load{};
        load.padded_lanes = static_cast<std::ptrdiff_t>(lanes);
        load.inner = {static_cast<std::ptrdiff_t>(p_extent), components, load.padded_lanes * components};
        load.lane_stride = static_cast<std::ptrdiff_t>(x_fibre) * components;
        copy_job<Real> store = load;
        store.inner.extent = static_cast<std::ptrdiff_t>(q_extent);
        store.lane_stride = static_cast<std::ptrdiff_t>(y_fibre) * components;
        store.add = add;
        Scalar* const image = scratch + p_extent * lanes;
        for (; i < count; i += lanes) {
            load.lanes = store.lanes = static_cast<std::ptrdiff_t>((std::min)(lanes, count - i));
            load_tile<Real, components>(load, reinterpret_cast<const Real*>(x + i * x_fibre),
                                        reinterpret_cast<Real*>(scratch));
            sparse_lanes(f, {0, f.q_extent()}, scratch, lanes, image, lanes, lanes, false);
            store_tile<Real, components>(store, reinterpret_cast<const Real*>(image),
                                         reinterpret_cast<Real*>(y + i * y_fibre));
        }
        return;
    }
    for (; i < count; ++i) {
        const Scalar* const from = x + i * x_fibre;
        Scalar* const to = y + i * y_fibre;
        for (std::int64_t q = 0; q < q_extent; ++q) {
            const Scalar sum = sparse_sum(runs, runs[static_cast<std::size_t>(q)], from, 1);
            to[q] = add ? to[q] + sum : sum;
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

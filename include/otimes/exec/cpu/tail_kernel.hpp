// SPDX-License-Identifier: MIT
/// @file tail_kernel.hpp
/// The last modes of a tensor at once, where each is shorter than a register of AVX-512 (W elements): two of 4 to 8 floats or 4 to 7
/// doubles,
///
///     y[o, q, s] = sum_r (sum_p x[o, p, r] * A[p, q]) * B[r, s]
///
/// or three of 3 or of 4, with one more sum outside. One after the other, each sweep would fill a part of its registers, and store and load all
/// that lies between. Here rows of the last mode of several o lie side by side in one register, W / P of them:
///
///     sum over p     a register is multiplied by one element of A                 P^2 multiply-adds
///     sum over r     element r of each row, P times, is multiplied by row r of B   P^2 multiply-adds and as many shuffles
///
/// Rows of 5 to 7 doubles, one in a register, are spread by loads. Two of 8 floats are transposed between the sums and back after them instead: 3 W + P
/// shuffles. All sums are chains in ascending
/// order as in micro_kernel.hpp, and the sweeps come in their order, so the bits are those of one sweep after the other.
#pragma once

#include <cstddef>
#include <utility>

#include <otimes/exec/cpu/micro_kernel.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

inline constexpr int most_tail_modes = 3;

/// From one row of `extent` elements to the next in a register: three take the place of four, which can be stored without a mask.
OTIMES_INLINE constexpr std::ptrdiff_t slot_of_row(std::ptrdiff_t extent) noexcept { return extent == 3 ? 4 : extent; }

/// How many of these a tail kernel is ahead with what it asks for to write. Measured: 4 and 48 are no better.
inline constexpr std::ptrdiff_t claimed_groups = 16;

/// How many o a tail kernel takes at once.
template <class Real>
OTIMES_INLINE constexpr std::ptrdiff_t rows_side_by_side(std::ptrdiff_t extent) noexcept {
    return simd<Real>::width / slot_of_row(extent);
}

/// What a tail kernel does; strides and counts in elements.
template <class Real>
struct tail_job {
    using kernel = void (*)(const tail_job&, const Real*, Real*) noexcept;
    kernel run;
    int modes;  ///< 2 or 3
    const Real*
        factors[most_tail_modes];  ///< outermost first; F[p, q] at P * p + q, of the last mode B[r, s] at W * r + s
    std::ptrdiff_t count, x_step, y_step;  ///< of o
    epilogue finish;
    Real alpha;
    bool past;          ///< whole cache lines of y are stored past the caches
    bool claim;         ///< lines of y are asked for before they are written
    read_ahead* ahead;  ///< what is asked for meanwhile; nullptr: nothing
};

#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)
/// Rows of `Extent` elements side by side in a register; the elements behind them hold nothing.
template <class Real, int Extent>
struct short_rows {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    static constexpr bool in_parts = Extent < 5;  ///< of 16 or 32 bytes: loaded and stored without masks
    static constexpr int slot = static_cast<int>(slot_of_row(Extent));
    static constexpr int count = static_cast<int>(rows_side_by_side<Real>(Extent));

    /// The rows at from[0] + offset, from[1] + offset, ...
    /// @param behind the element behind each row may be read
    template <class Pointer>
    static OTIMES_INLINE vec load(const Pointer* from, std::ptrdiff_t offset, [[maybe_unused]] bool behind) noexcept {
        if constexpr (in_parts) {
            if (behind || slot == Extent) {
                return load_slots(from, offset, std::make_integer_sequence<int, count>());
            }
        }
        vec v = simd_t::load_first(from[0] + offset, Extent);
        OTIMES_UNROLL
        for (int g = 1; g < count; ++g) {
            simd_t::load_lanes(v, from[g] + offset, g * slot, Extent);
        }
        return v;
    }
    /// @param spill the element behind each row may be overwritten
    static OTIMES_INLINE void store(Real* const* to, std::ptrdiff_t offset, vec v,
                                    [[maybe_unused]] bool spill) noexcept {
        if constexpr (in_parts) {
            if (spill || slot == Extent) {
                store_slots(to, offset, v, std::make_integer_sequence<int, count>());
                return;
            }
        }
        OTIMES_UNROLL
        for (int g = 0; g < count; ++g) {
            simd_t::store_lanes(to[g] + offset, v, g * slot, Extent);
        }
    }
    /// The first row of v in the place of each.
    static OTIMES_INLINE vec repeat(vec v) noexcept {
        return repeat(v, std::make_integer_sequence<int, simd_t::width>());
    }
    /// The product of each row of v and the matrix whose rows, repeated, are `rows`.
    static OTIMES_INLINE vec multiply(vec v, const vec* rows) noexcept {
        return multiply(v, rows, std::make_integer_sequence<int, Extent - 1>());
    }

private:
    template <class Pointer, int... Groups>
    static OTIMES_INLINE vec load_slots(const Pointer* from, std::ptrdiff_t offset,
                                        std::integer_sequence<int, Groups...>) noexcept {
        vec v = simd_t::template load_part<slot>(from[0] + offset);
        ((Groups > 0 ? simd_t::template insert_part<slot, Groups>(v, from[Groups] + offset) : void()), ...);
        return v;
    }
    template <int... Groups>
    static OTIMES_INLINE void store_slots(Real* const* to, std::ptrdiff_t offset, vec v,
                                          std::integer_sequence<int, Groups...>) noexcept {
        (simd_t::template store_part<slot, Groups>(to[Groups] + offset, v), ...);
    }
    template <int... Lanes>
    static OTIMES_INLINE vec repeat(vec v, std::integer_sequence<int, Lanes...>) noexcept {
        return __builtin_shufflevector(v, v, (Lanes % slot)...);
    }
    /// Element R of each row in all places of the row.
    template <int R, int... Lanes>
    static OTIMES_INLINE vec spread(vec v, std::integer_sequence<int, Lanes...>) noexcept {
        return __builtin_shufflevector(v, v, (Lanes / slot < count ? Lanes / slot * slot + R : 0)...);
    }
    template <int... R>
    static OTIMES_INLINE vec multiply(vec v, const vec* rows, std::integer_sequence<int, R...>) noexcept {
        constexpr auto lanes = std::make_integer_sequence<int, simd_t::width>();
        vec sum = spread<0>(v, lanes) * rows[0];
        ((sum = simd_t::multiply_add(spread<R + 1>(v, lanes), rows[R + 1], sum)), ...);
        return sum;
    }
};

/// Asks for the lines of y that are written `claimed_groups` times `count` o after those at y.
template <class Real>
OTIMES_INLINE void claim_rows(const tail_job<Real>& j, const Real* y, std::ptrdiff_t count) noexcept {
    const char* at = reinterpret_cast<const char*>(y + claimed_groups * count * j.y_step);
    const char* const end = at + count * j.y_step * static_cast<std::ptrdiff_t>(sizeof(Real));
    for (; at < end; at += read_ahead::line) {
        __builtin_prefetch(at, 1, 3);
    }
}

template <class Real, int Extent, int Modes>
OTIMES_NOINLINE void tail_kernel(const tail_job<Real>& j, const Real* x, Real* y) noexcept {
    using simd_t = simd<Real>;
    using rows = short_rows<Real, Extent>;
    using vec = typename simd_t::type;
    constexpr int outer = Modes == 3 ? Extent : 1;
    const Real* const first = j.factors[0];
    const Real* const middle = j.factors[Modes - 2];
    vec last[Extent];
    OTIMES_UNROLL
    for (int r = 0; r < Extent; ++r) {
        last[r] = rows::repeat(simd_t::load_first(j.factors[Modes - 1] + r * simd_t::width, Extent));
    }
    const char* ahead = j.ahead != nullptr ? j.ahead->take((j.count + rows::count - 1) / rows::count) : nullptr;
    const std::ptrdiff_t ahead_lines = j.ahead != nullptr ? j.ahead->lines_per_block : 0;
    const vec alpha = simd_t::broadcast(j.alpha);
    for (std::ptrdiff_t o = 0; o < j.count; o += rows::count) {
        if (ahead != nullptr) {
            ahead = read_ahead::ask(ahead, ahead_lines);
        }
        if (j.claim) {
            claim_rows(j, y + o * j.y_step, rows::count);
        }
        const Real* from[rows::count];
        Real* to[rows::count];
        OTIMES_UNROLL
        for (int g = 0; g < rows::count; ++g) {  // the last o once more in the place of those that there are not
            const std::ptrdiff_t at = o + g < j.count ? o + g : j.count - 1;
            from[g] = x + at * j.x_step;
            to[g] = y + at * j.y_step;
        }
        vec t[outer]
             [Extent];  // all of them before the first store: GCC would keep elements of factors for later instead
        OTIMES_UNROLL
        for (int p = 0; p < Extent; ++p) {
            vec v[outer];
            OTIMES_UNROLL
            for (int h = 0; h < outer; ++h) {
                v[h] = rows::load(from, (h * Extent + p) * Extent, h * Extent + p + 1 < outer * Extent);
                simd_t::pin(v[h]);
            }
            OTIMES_UNROLL
            for (int a = 0; a < outer; ++a) {
                vec sum = v[0];
                if constexpr (Modes == 3) {
                    sum = simd_t::broadcast(first[a]) * v[0];
                    OTIMES_UNROLL
                    for (int h = 1; h < outer; ++h) {
                        sum = simd_t::multiply_add(simd_t::broadcast(first[h * Extent + a]), v[h], sum);
                    }
                }
                OTIMES_UNROLL
                for (int q = 0; q < Extent; ++q) {
                    const vec factor = simd_t::broadcast(middle[p * Extent + q]);
                    t[a][q] = p == 0 ? factor * sum : simd_t::multiply_add(factor, sum, t[a][q]);
                }
            }
        }
        OTIMES_UNROLL
        for (int a = 0; a < outer; ++a) {
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                simd_t::pin(t[a][q]);
            }
        }
        OTIMES_UNROLL
        for (int a = 0; a < outer; ++a) {
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                const std::ptrdiff_t at = (a * Extent + q) * Extent;
                vec sum = rows::multiply(t[a][q], last);
                if (j.finish != epilogue::store) {
                    sum = alpha * sum;
                    simd_t::pin(sum);  // as in block_kernel
                    if (j.finish == epilogue::scale_add) {
                        sum += rows::load(to, at, false);
                    }
                }
                // What a row spills is the beginning of the next one, which is stored after it.
                rows::store(to, at, sum, j.finish != epilogue::scale_add && a * Extent + q + 1 < outer * Extent);
            }
        }
    }
}

/// Two modes whose rows have a register each. The sums over p go to the stack, where loads spread their elements: a shuffle takes a port of the
/// multiply-adds on some processors. Those of the next o come before the sums over r of this one, which then wait for nothing.
template <class Real, int Extent>
OTIMES_NOINLINE void tail_of_registers(const tail_job<Real>& j, const Real* x, Real* y) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    static_assert(2 * Extent > simd_t::width && Extent < simd_t::width);
    const Real* const first = j.factors[0];
    vec last[Extent];
    OTIMES_UNROLL
    for (int r = 0; r < Extent; ++r) {
        last[r] = simd_t::load_first(j.factors[1] + r * simd_t::width, Extent);
    }
    const char* ahead = j.ahead != nullptr ? j.ahead->take(j.count) : nullptr;
    const std::ptrdiff_t ahead_lines = j.ahead != nullptr ? j.ahead->lines_per_block : 0;
    const vec alpha = simd_t::broadcast(j.alpha);
    const epilogue finish = j.finish;
    alignas(64) Real sums[2][Extent][simd_t::width];  // of even and of odd o
    for (std::ptrdiff_t o = 0; o <= j.count; ++o, x += j.x_step) {
        if (o < j.count) {
            if (ahead != nullptr) {
                ahead = read_ahead::ask(ahead, ahead_lines);
            }
            if (j.claim) {
                claim_rows(j, y + o * j.y_step, 1);
            }
            vec t[Extent];
            OTIMES_UNROLL
            for (int p = 0; p < Extent; ++p) {
                vec v = simd_t::load_first(x + p * Extent, Extent);
                simd_t::pin(v);
                OTIMES_UNROLL
                for (int q = 0; q < Extent; ++q) {
                    const vec factor = simd_t::broadcast(first[p * Extent + q]);
                    t[q] = p == 0 ? factor * v : simd_t::multiply_add(factor, v, t[q]);
                }
            }
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                simd_t::store(sums[o % 2][q], t[q]);
            }
        }
        asm("" : "+m"(sums));  // else GCC spreads the elements by shuffles out of registers
        if (o > 0) {
            Real* const to = y + (o - 1) * j.y_step;
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                const Real* const row = sums[(o + 1) % 2][q];
                vec sum = simd_t::broadcast(row[0]) * last[0];
                OTIMES_UNROLL
                for (int r = 1; r < Extent; ++r) {
                    sum = simd_t::multiply_add(simd_t::broadcast(row[r]), last[r], sum);
                }
                if (finish != epilogue::store) {
                    sum = alpha * sum;
                    simd_t::pin(sum);  // as in block_kernel
                    if (finish == epilogue::scale_add) {
                        sum += simd_t::load_first(to + q * Extent, Extent);
                    }
                }
                simd_t::store_first(to + q * Extent, sum, Extent);
            }
        }
    }
}

/// sum[q] = sum_p factor[p * step + q] * v[p] for half a register of p and q, p ascending.
template <class Real>
OTIMES_INLINE void contract_halves(const Real* factor, std::ptrdiff_t step, const typename simd<Real>::type* v,
                                   typename simd<Real>::type* sum) noexcept {
    using simd_t = simd<Real>;
    constexpr int half = simd_t::width / 2;
    OTIMES_UNROLL
    for (int q = 0; q < half; ++q) {
        sum[q] = simd_t::broadcast(factor[q]) * v[0];
    }
    OTIMES_UNROLL
    for (int p = 1; p < half; ++p) {
        OTIMES_UNROLL
        for (int q = 0; q < half; ++q) {
            sum[q] = simd_t::multiply_add(simd_t::broadcast(factor[p * step + q]), v[p], sum[q]);
        }
    }
}

/// Two modes of half a register: two o share the registers, and their halves are transposed.
template <class Real>
OTIMES_NOINLINE void tail_of_halves(const tail_job<Real>& j, const Real* x, Real* y) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr int half = simd_t::width / 2;
    const char* ahead = j.ahead != nullptr ? j.ahead->take((j.count + 1) / 2) : nullptr;
    const std::ptrdiff_t ahead_lines = j.ahead != nullptr ? j.ahead->lines_per_block : 0;
    for (std::ptrdiff_t o = 0; o < j.count; o += 2) {
        if (ahead != nullptr) {
            ahead = read_ahead::ask(ahead, ahead_lines);
        }
        const bool both = o + 1 < j.count;
        const Real* const x0 = x + o * j.x_step;
        const Real* const x1 = both ? x0 + j.x_step : x0;
        vec v[half];
        vec sum[half];
        OTIMES_UNROLL
        for (int p = 0; p < half; ++p) {
            v[p] = simd_t::load_halves(x0 + p * half, x1 + p * half);
            simd_t::pin(v[p]);
        }
        contract_halves(j.factors[0], half, v, sum);
        transpose_registers<Real, half / 2, half>(sum);
        contract_halves(j.factors[1], simd_t::width, sum, v);
        transpose_registers<Real, half / 2, half>(v);
        Real* const y0 = y + o * j.y_step;
        Real* const y1 = both ? y0 + j.y_step : y0;
        if (j.finish != epilogue::store) {
            const vec alpha = simd_t::broadcast(j.alpha);
            OTIMES_UNROLL
            for (int q = 0; q < half; ++q) {
                v[q] = alpha * v[q];
                simd_t::pin(v[q]);
                if (j.finish == epilogue::scale_add) {
                    v[q] += simd_t::load_halves(y0 + q * half, y1 + q * half);
                }
            }
        }
        if (j.past && both && is_line(y0) && is_line(y1)) {
            OTIMES_UNROLL
            for (int q = 0; q < half; q += 2) {
                simd_t::store_past(y0 + q * half, simd_t::template join_halves<false>(v[q], v[q + 1]));
            }
            OTIMES_UNROLL
            for (int q = 0; q < half; q += 2) {
                simd_t::store_past(y1 + q * half, simd_t::template join_halves<true>(v[q], v[q + 1]));
            }
            continue;
        }
        OTIMES_UNROLL
        for (int q = 0; q < half; ++q) {
            simd_t::template store_part<half, 0>(y0 + q * half, v[q]);
        }
        if (both) {
            OTIMES_UNROLL
            for (int q = 0; q < half; ++q) {
                simd_t::template store_part<half, 1>(y1 + q * half, v[q]);
            }
        }
    }
}

/// The kernel for so many last modes of equal extents, nullptr where there is none.
template <class Real>
typename tail_job<Real>::kernel tail_kernel_for(std::ptrdiff_t extent, int modes) noexcept {
    if (modes == 3) {
        return extent == 4 ? &tail_kernel<Real, 4, 3> : extent == 3 ? &tail_kernel<Real, 3, 3> : nullptr;
    }
    if (extent == 4) {
        return &tail_kernel<Real, 4, 2>;
    }
    if constexpr (simd<Real>::width == 16) {
        switch (extent) {
            case 5: return &tail_kernel<Real, 5, 2>;
            case 6: return &tail_kernel<Real, 6, 2>;
            case 7: return &tail_kernel<Real, 7, 2>;
            case 8: return &tail_of_halves<Real>;
            default: return nullptr;
        }
    } else {
        switch (extent) {
            case 5: return &tail_of_registers<Real, 5>;
            case 6: return &tail_of_registers<Real, 6>;
            case 7: return &tail_of_registers<Real, 7>;
            default: return nullptr;
        }
    }
}
#else
template <class Real>
constexpr typename tail_job<Real>::kernel tail_kernel_for(std::ptrdiff_t, int) noexcept {
    return nullptr;
}
#endif

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

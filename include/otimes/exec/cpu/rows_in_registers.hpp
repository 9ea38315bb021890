// SPDX-License-Identifier: MIT
/// @file rows_in_registers.hpp
/// Rows of two or four real elements, or of two complex ones, side by side in a register: a product with a square factor,
///
///     y[o, q] = sum_p x[o, p] * F[p, q]          P = Q = 2 or 4 (complex: 2), o contiguous
///
/// A row kernel (micro_kernel.hpp) would fill a part of its registers with each row. Here a register holds W / P rows, and element p of
/// each, P times, is multiplied by row p of F, which stands there for each of them:
///
///     x0 x1 | x2 x3 | ..      times p = 0:  x0 x0 | x2 x2 | ..  *  F00 F01 | F00 F01 | ..      P multiply-adds and as many shuffles
///
/// The sums are chains in ascending order and complex ones are combined once, so the bits are those of the row kernel. A gate on the last
/// qubit of a state is such a product.
#pragma once

#include <cstddef>
#include <utility>

#include <otimes/exec/cpu/micro_kernel.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

#if defined(__GNUC__) || defined(__clang__)
/// Element `First` of every `Length` elements in the place of all of them.
template <class Real, int Length, int First, std::size_t... Positions>
OTIMES_INLINE typename simd<Real>::type repeat_in_rows(typename simd<Real>::type v,
                                                       std::index_sequence<Positions...>) noexcept {
    static_assert(First < Length);
    return __builtin_shufflevector(v, v, (static_cast<int>(Positions) / Length * Length + First)...);
}

/// `registers` registers of rows of `Extent` elements from x to y, by the factor as it is packed for row kernels: a register for each p.
/// x and y may be the same.
template <class Real, int Extent, int Components>
OTIMES_NOINLINE void multiply_in_registers(const block_grid<Real>& g, std::ptrdiff_t registers) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr int width = simd_t::width;
    constexpr int length = Extent * Components;
    constexpr auto all = std::make_index_sequence<static_cast<std::size_t>(width)>();
    vec rows[Extent];  // of F, once for each row that a register holds
    for (int p = 0; p < Extent; ++p) {
        Real image[static_cast<std::size_t>(width)];
        for (int i = 0; i < width; ++i) {
            image[i] = g.b[p * width + i % length];
        }
        rows[p] = simd_t::load(image);
    }
    const vec re = simd_t::broadcast(g.alpha_re);
    [[maybe_unused]] const vec im = simd_t::broadcast(g.alpha_im);
    const bool past = simd_t::stores_lines && g.past;
    const Real* a = g.a;
    Real* c = g.c;
    for (std::ptrdiff_t k = 0; k < registers; ++k, a += width, c += width) {
        const vec x = simd_t::load(a);
        vec sum = repeat_in_rows<Real, length, 0>(x, all) * rows[0];
        if constexpr (Components == 2) {
            vec crossed = repeat_in_rows<Real, length, 1>(x, all) * rows[0];
            sum = simd_t::multiply_add(repeat_in_rows<Real, length, 2>(x, all), rows[1], sum);
            crossed = simd_t::multiply_add(repeat_in_rows<Real, length, 3>(x, all), rows[1], crossed);
            sum = simd_t::multiply_add(simd_t::alternating(), simd_t::swap_pairs(crossed), sum);
        } else {
            sum = simd_t::multiply_add(repeat_in_rows<Real, length, 1>(x, all), rows[1], sum);
            if constexpr (Extent == 4) {
                sum = simd_t::multiply_add(repeat_in_rows<Real, length, 2>(x, all), rows[2], sum);
                sum = simd_t::multiply_add(repeat_in_rows<Real, length, 3>(x, all), rows[3], sum);
            }
        }
        if (g.finish != epilogue::store) {  // as in micro_kernel.hpp, rounding included
            if constexpr (Components == 2) {
                vec crossed = (simd_t::alternating() * im) * simd_t::swap_pairs(sum);
                simd_t::pin(crossed);
                sum = simd_t::multiply_add(re, sum, crossed);
            } else {
                sum = re * sum;
            }
            simd_t::pin(sum);
            if (g.finish == epilogue::scale_add) {
                sum += simd_t::load(c);
            }
        }
        if (past && is_line(c)) {
            simd_t::store_past(c, sum);
        } else {
            simd_t::store(c, sum);
        }
    }
}
#endif

/// Multiplies as many of `count` contiguous rows as fill whole registers; g says where they are and what becomes of the sums.
/// @return rows that are done: 0 where no such kernel serves
template <class Real, int Components>
std::ptrdiff_t rows_in_registers(const block_grid<Real>& g, std::ptrdiff_t p_extent, std::ptrdiff_t q_extent,
                                 std::ptrdiff_t count) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const std::ptrdiff_t length = p_extent * Components;
    if (p_extent != q_extent || g.resume || length > width || g.a_row != length || g.c_row != length) {
        return 0;
    }
    const std::ptrdiff_t registers = count * length / width;
    if (registers == 0) {
        return 0;
    }
    if constexpr (Components == 2) {
        if constexpr (width >= 4) {
            if (p_extent == 2) {
                multiply_in_registers<Real, 2, 2>(g, registers);
                return registers * (width / 4);
            }
        }
    } else {
        if constexpr (width > 2) {
            if (p_extent == 2) {
                multiply_in_registers<Real, 2, 1>(g, registers);
                return registers * (width / 2);
            }
        }
        if constexpr (width > 4) {
            if (p_extent == 4) {
                multiply_in_registers<Real, 4, 1>(g, registers);
                return registers * (width / 4);
            }
        }
    }
#endif
    return 0;
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

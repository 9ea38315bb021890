// SPDX-License-Identifier: MIT
/// @file column_kernel.hpp
/// Few rows by a factor whose columns lie in memory, as Eigen's default order has them:
///
///     y[r, q] (+)= alpha * sum_p x[r, p] * F[p, q]          p ascending; F[p, q] at f[p + q * f_q]
///
/// Packed, every entry would be read, written and read again for a multiply-add or a few. Here W columns at a time are read W rows at a
/// time and transposed in registers (W: elements of a register), so that the sums run along q and each is one chain in ascending order: the
/// bits are those of a packed factor. Cost: W loads and W log2(W) / 2 butterflies for W^2 entries, of which a row makes W multiply-adds.
#pragma once

#include <cstddef>

#include <otimes/exec/cpu/micro_kernel.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Registers of columns that are done at once: each sum waits for its last multiply-add, so two, where there are registers enough.
template <class Real, int Rows>
inline constexpr int column_vectors = simd<Real>::width <= (OTIMES_TARGET_SIMD_REGISTERS >= 32 ? 8
                                                            : Rows <= 2                        ? 4
                                                                                               : 1)
                                          ? 2
                                          : 1;

/// `Rows` rows of x, g.a_row apart, by all columns. Of g: p_extent, finish, alpha_re.
template <class Real, int Rows>
OTIMES_NOINLINE void column_kernel(const block_grid<Real>& g, const Real* f, std::ptrdiff_t f_q,
                                   std::ptrdiff_t q_extent) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr std::ptrdiff_t width = simd_t::width;
    constexpr std::ptrdiff_t vectors = column_vectors<Real, Rows>;
    const std::ptrdiff_t whole = g.p_extent / width * width;
    for (std::ptrdiff_t q = 0; q < q_extent; q += vectors * width, f += vectors * width * f_q) {
        // Columns that are not there repeat the last one; their sums are stored nowhere.
        const std::ptrdiff_t last = q_extent - q - 1;
        const auto column = [&](std::ptrdiff_t i) { return f + (i < last ? i : last) * f_q; };
        vec sum[static_cast<std::size_t>(vectors)][static_cast<std::size_t>(Rows)];
        const auto add = [&](std::ptrdiff_t p, std::ptrdiff_t v, const vec& entries) {
            OTIMES_UNROLL
            for (std::ptrdiff_t r = 0; r < Rows; ++r) {
                const vec x = simd_t::broadcast(g.a[r * g.a_row + p]);
                // A product rounds like a multiply-add to zero.
                sum[v][r] = p == 0 ? x * entries : simd_t::multiply_add(x, entries, sum[v][r]);
            }
        };
        for (std::ptrdiff_t k = 0; k < vectors * Rows; ++k) {
            sum[k / Rows][k % Rows] = simd_t::broadcast(Real(0));
        }
        for (std::ptrdiff_t p = 0; p < whole; p += width) {
            vec block[static_cast<std::size_t>(vectors)][static_cast<std::size_t>(width)];
            OTIMES_UNROLL
            for (std::ptrdiff_t v = 0; v < vectors; ++v) {
                OTIMES_UNROLL
                for (std::ptrdiff_t i = 0; i < width; ++i) {
                    block[v][i] = simd_t::load(column(v * width + i) + p);
                }
                transpose_registers<Real>(block[v]);
            }
            OTIMES_UNROLL
            for (std::ptrdiff_t i = 0; i < width; ++i) {
                OTIMES_UNROLL
                for (std::ptrdiff_t v = 0; v < vectors; ++v) {
                    add(p + i, v, block[v][i]);
                }
            }
        }
        Real image[static_cast<std::size_t>(width)];
        for (std::ptrdiff_t p = whole; p < g.p_extent; ++p) {
            for (std::ptrdiff_t v = 0; v < vectors; ++v) {
                for (std::ptrdiff_t i = 0; i < width; ++i) {
                    image[i] = column(v * width + i)[p];
                }
                add(p, v, simd_t::load(image));
            }
        }
        for (std::ptrdiff_t k = 0; k < vectors * Rows; ++k) {
            const std::ptrdiff_t v = k / Rows, r = k % Rows, columns = q_extent - q - v * width;
            Real* const y = g.c + r * g.c_row + q + v * width;
            vec result = sum[v][r];
            if (g.finish != epilogue::store) {
                result = simd_t::broadcast(g.alpha_re) * result;
                simd_t::pin(result);  // rounded before it is added
            }
            const bool adds = g.finish == epilogue::scale_add;
            if (columns >= width) {
                simd_t::store(y, adds ? result + simd_t::load(y) : result);
            } else if (columns > 0) {
                for (std::ptrdiff_t i = 0; adds && i < width; ++i) {
                    image[i] = i < columns ? y[i] : Real(0);
                }
                simd_t::store(image, adds ? result + simd_t::load(image) : result);
                copy_partial<Real>(y, image, columns);
            }
        }
    }
}

/// Rows of the loop `in` and `out` apart, up to four at a time. More rows take a few columns at a time, so that these are read from afar once.
template <class Real>
void rows_by_columns(block_grid<Real>& g, const Real* x, Real* y, std::ptrdiff_t rows, std::ptrdiff_t in,
                     std::ptrdiff_t out, const Real* f, std::ptrdiff_t f_q, std::ptrdiff_t q_extent) noexcept {
    constexpr std::ptrdiff_t most = 4;
    const std::ptrdiff_t columns = rows <= most ? q_extent : 2 * simd<Real>::width;
    g.a_row = in;
    g.c_row = out;
    for (std::ptrdiff_t q = 0; q < q_extent; q += columns) {
        const std::ptrdiff_t here = q_extent - q < columns ? q_extent - q : columns;
        for (std::ptrdiff_t done = 0, count = 0; done < rows; done += count) {
            g.a = x + done * in;
            g.c = y + done * out + q;
            count = rows - done < most ? rows - done : most;
            const auto kernel = count == 4   ? &column_kernel<Real, 4>
                                : count == 3 ? &column_kernel<Real, 3>
                                : count == 2 ? &column_kernel<Real, 2>
                                             : &column_kernel<Real, 1>;
            kernel(g, f + q * f_q, f_q, here);
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

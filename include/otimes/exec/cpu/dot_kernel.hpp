// SPDX-License-Identifier: MIT
/// @file dot_kernel.hpp
/// The inner kernel of a dot product with a chain of contractions (chain_dot.hpp): a block of sums as in micro_kernel.hpp, which is multiplied by
/// what stands in its place in a tile, and added up, instead of being stored.
///
///     s[lane] += sum_{r, k} (sum_q a[q, r] * v[q, k, lane]) * w[r, k, lane]          q ascending
///
/// Rows * Vectors sums, Vectors registers of v and one broadcast entry of a fit the registers; a line of v serves Rows of them.
#pragma once

#include <cstddef>

#include <otimes/exec/cpu/simd.hpp>
#include <otimes/exec/target.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Blocks for dot_kernel: n1 x n0 of them. Strides count elements.
template <class Real>
struct dot_grid {
    const Real* a;            ///< F1, packed: q after q, the p1 of the block side by side
    const Real* v;            ///< v[q1 = 0] at the first lane
    const Real* w;            ///< the tile at the block's first p1
    std::ptrdiff_t q_extent;  ///< of q1
    std::ptrdiff_t v_q;       ///< from q1 to q1 + 1
    std::ptrdiff_t w_row;     ///< from p1 to p1 + 1
    std::ptrdiff_t v_vector, w_vector;
    std::ptrdiff_t n0, v0, w0;
    std::ptrdiff_t n1, v1, w1;
    std::ptrdiff_t skip;  ///< lanes at the front of each register that another register has
};

/// sums[lane] += sum over rows r and registers k of image[r, k, lane] * w[r, k, lane] for the lanes from `skip` on.
template <class Real>
OTIMES_NOINLINE void add_last_lanes(const dot_grid<Real>& g, const Real* image, int rows, int vectors, const Real* w,
                                    Real* sums) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    for (std::ptrdiff_t r = 0; r < rows; ++r) {
        for (std::ptrdiff_t k = 0; k < vectors; ++k, image += width) {
            for (std::ptrdiff_t lane = g.skip; lane < width; ++lane) {
                sums[lane] += image[lane] * w[r * g.w_row + k * g.w_vector + lane];
            }
        }
    }
}

/// sums[lane] += sum over blocks, rows r and registers k of (sum_q a[q, r] * v[q, k, lane]) * w[r, k, lane]
template <class Real, int Rows, int Vectors>
OTIMES_NOINLINE void dot_kernel(const dot_grid<Real>& g, Real* sums) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    const std::ptrdiff_t v_q = g.v_q, v_vector = g.v_vector, q_extent = g.q_extent;
    vec total[static_cast<std::size_t>(Vectors)];
    OTIMES_UNROLL
    for (int k = 0; k < Vectors; ++k) {
        total[k] = simd_t::broadcast(Real(0));
    }
    for (std::ptrdiff_t i1 = 0; i1 < g.n1; ++i1) {
        const Real* v_block = g.v + i1 * g.v1;
        const Real* w = g.w + i1 * g.w1;
        for (std::ptrdiff_t i0 = 0; i0 < g.n0; ++i0, v_block += g.v0, w += g.w0) {
            vec sum[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Vectors)];
            const Real* a = g.a;
            const Real* v = v_block;
            {  // q = 0 starts the sums by a product
                vec x[static_cast<std::size_t>(Vectors)];
                OTIMES_UNROLL
                for (int k = 0; k < Vectors; ++k) {
                    x[k] = simd_t::load(v + k * v_vector);
                    simd_t::pin(x[k]);
                }
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    const vec f = simd_t::broadcast(a[r]);
                    OTIMES_UNROLL
                    for (int k = 0; k < Vectors; ++k) {
                        sum[r][k] = f * x[k];
                    }
                }
                a += Rows;
                v += v_q;
            }
            for (const Real* const end = g.a + q_extent * Rows; a != end; a += Rows, v += v_q) {
                vec x[static_cast<std::size_t>(Vectors)];
                OTIMES_UNROLL
                for (int k = 0; k < Vectors; ++k) {
                    x[k] = simd_t::load(v + k * v_vector);
                    simd_t::pin(x[k]);
                }
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    const vec f = simd_t::broadcast(a[r]);
                    OTIMES_UNROLL
                    for (int k = 0; k < Vectors; ++k) {
                        sum[r][k] = simd_t::multiply_add(f, x[k], sum[r][k]);
                    }
                }
            }
            if (g.skip == 0) {
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    OTIMES_UNROLL
                    for (int k = 0; k < Vectors; ++k) {
                        total[k] =
                            simd_t::multiply_add(sum[r][k], simd_t::load(w + r * g.w_row + k * g.w_vector), total[k]);
                    }
                }
                continue;
            }
            Real image[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Vectors)]
                      [static_cast<std::size_t>(simd_t::width)];
            OTIMES_UNROLL
            for (int r = 0; r < Rows; ++r) {
                OTIMES_UNROLL
                for (int k = 0; k < Vectors; ++k) {
                    simd_t::store(image[r][k], sum[r][k]);
                }
            }
            add_last_lanes<Real>(g, image[0][0], Rows, Vectors, w, sums);
        }
    }
    OTIMES_UNROLL
    for (int k = 1; k < Vectors; ++k) {
        total[0] += total[k];
    }
    simd_t::store(sums, simd_t::load(sums) + total[0]);
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

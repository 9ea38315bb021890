// SPDX-License-Identifier: MIT
/// @file twin_kernel.hpp
/// Two modes of extent 3 at once:
///
///     y[o, q, s, i] = sum_r (sum_p x[o, p, r, i] * A[p, q]) * B[r, s]          i: contiguous, a register or more
///
/// A sweep of 3 alone is bound by its loads and stores, and multiplied out to 9 x 9 the two take half as many multiply-adds
/// again. Here nine registers are loaded, go through both sweeps and are stored. Both sums are chains in ascending order as in
/// micro_kernel.hpp, so the bits are those of one sweep after the other.
#pragma once

#include <cstddef>

#include <otimes/exec/cpu/micro_kernel.hpp>
#include <otimes/exec/cpu/sweep.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// All runs of `inner`. @param second B; j.factor is A, both at 3 * p + q.
/// @pre j.run >= W; the tiles do not overlap, or are the same where j.in_place.
template <class Real>
OTIMES_NOINLINE void twin_kernel(const sweep_job<Real>& j, const Real* second, const Real* x, Real* y,
                                 const tile_loop& inner) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr std::ptrdiff_t width = simd_t::width;
    vec a[9], b[9];
    OTIMES_UNROLL
    for (int k = 0; k < 9; ++k) {
        a[k] = simd_t::broadcast(j.factor[k]);
        b[k] = simd_t::broadcast(second[k]);
    }
    const std::ptrdiff_t x_p = j.x_p, x_r = j.x_r, y_q = j.y_q, y_s = j.y_s, run = j.run;
    for (std::ptrdiff_t n = 0; n < inner.extent; ++n, x += inner.in, y += inner.out) {
        for (std::ptrdiff_t i = 0; i < run; i += width) {
            i = i + width > run ? run - width : i;  // the last register overlaps the one before it
            const Real* from = x + i;
            Real* to = y + i;
            vec t[3][3];
            OTIMES_UNROLL
            for (int r = 0; r < 3; ++r, from += x_r) {
                vec v[3];
                OTIMES_UNROLL
                for (int p = 0; p < 3; ++p) {
                    v[p] = simd_t::load(from + p * x_p);
                    simd_t::pin(v[p]);
                }
                OTIMES_UNROLL
                for (int q = 0; q < 3; ++q) {
                    t[q][r] = simd_t::multiply_add(a[6 + q], v[2], simd_t::multiply_add(a[3 + q], v[1], a[q] * v[0]));
                }
            }
            OTIMES_UNROLL
            for (int q = 0; q < 3; ++q, to += y_q) {
                OTIMES_UNROLL
                for (int s = 0; s < 3; ++s) {
                    Real* const at = to + s * y_s;
                    vec sum = simd_t::multiply_add(t[q][2], b[6 + s],
                                                   simd_t::multiply_add(t[q][1], b[3 + s], t[q][0] * b[s]));
                    if (j.finish != epilogue::store) {
                        sum = simd_t::broadcast(j.alpha_re) * sum;
                        simd_t::pin(sum);  // as in block_kernel
                        if (j.finish == epilogue::scale_add) {
                            sum += simd_t::load(at);
                        }
                    }
                    if (simd_t::stores_lines && j.past && is_line(at)) {
                        simd_t::store_past(at, sum);
                    } else {
                        simd_t::store(at, sum);
                    }
                }
            }
        }
    }
}

/// Does two sweeps on one tile: j, and the next with the packed factor `second`.
template <class Real>
void run_twin(const sweep_job<Real>& j, const Real* second, const Real* x, Real* y) noexcept {
    const int outer = j.loop_count > 0 ? j.loop_count - 1 : 0;
    const tile_loop inner = j.loop_count > 0 ? j.loops[outer] : tile_loop{1, 0, 0};
    std::ptrdiff_t at[sweep_job<Real>::most_loops];
    for (int k = 0; k < outer; ++k) {
        at[k] = 0;
    }
    for (;;) {
        twin_kernel<Real>(j, second, x, y, inner);
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

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file twin_kernel.hpp
/// Two modes of extent 3 at once, with 32 registers also two of 4 or of 5:
///
///     y[o, q, s, i] = sum_r (sum_p x[o, p, r, i] * A[p, q]) * B[r, s]          i: contiguous, a register or more
///
/// A sweep of so few indices alone is bound by its loads and stores, and multiplied out to 9 x 9 two of 3 take half as many multiply-adds
/// again. Here 9 (16, 25) registers are loaded, go through both sweeps and are stored. Both sums are chains in ascending order as in
/// micro_kernel.hpp, so the bits are those of one sweep after the other.
#pragma once

#include <cstddef>

#include <otimes/exec/cpu/micro_kernel.hpp>
#include <otimes/exec/cpu/sweep.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// Modes of this extent are done two at a time.
template <class Real>
OTIMES_INLINE constexpr bool is_twin_extent(std::ptrdiff_t extent) noexcept {
    return extent == 3 || ((extent == 4 || extent == 5) && simd<Real>::has_masks);
}

/// The elements of a factor: nine in a register each,
template <class Real, int Extent>
struct twin_factor {
    typename simd<Real>::type elements[9];

    OTIMES_INLINE explicit twin_factor(const Real* factor) noexcept {
        static_assert(Extent == 3);
        OTIMES_UNROLL
        for (int k = 0; k < 9; ++k) {
            elements[k] = simd<Real>::broadcast(factor[k]);
        }
    }
    OTIMES_INLINE typename simd<Real>::type at(int k) const noexcept { return elements[k]; }
    OTIMES_INLINE void forget() noexcept {}
};
/// more of them from L1 with each multiply-add.
template <class Real, int Extent>
requires(Extent > 3) struct twin_factor<Real, Extent> {
    const Real* factor;

    OTIMES_INLINE explicit twin_factor(const Real* f) noexcept : factor(f) {}
    OTIMES_INLINE typename simd<Real>::type at(int k) const noexcept { return simd<Real>::broadcast(factor[k]); }
    OTIMES_INLINE void forget() noexcept { simd<Real>::forget(factor); }
};

/// All runs of `inner`. @param second B; j.factor is A, both at Extent * p + q.
/// @pre j.run >= W; the tiles do not overlap, or are the same where j.in_place.
template <class Real, int Extent>
OTIMES_NOINLINE void twin_kernel(const sweep_job<Real>& j, const Real* second, const Real* x, Real* y,
                                 const tile_loop& inner) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr std::ptrdiff_t width = simd_t::width;
    twin_factor<Real, Extent> a(j.factor), b(second);
    const std::ptrdiff_t x_p = j.x_p, x_r = j.x_r, y_q = j.y_q, y_s = j.y_s, run = j.run;
    const char* ahead = j.ahead != nullptr ? j.ahead->take(inner.extent * ((run + width - 1) / width)) : nullptr;
    const std::ptrdiff_t ahead_lines = ahead != nullptr ? j.ahead->lines_per_block : 0;
    for (std::ptrdiff_t n = 0; n < inner.extent; ++n, x += inner.in, y += inner.out) {
        for (std::ptrdiff_t i = 0; i < run; i += width) {
            i = i + width > run ? run - width : i;  // the last register overlaps the one before it
            if (ahead != nullptr) {
                ahead = read_ahead::ask(ahead, ahead_lines);
            }
            const Real* from = x + i;
            Real* to = y + i;
            vec sums[Extent][Extent];
            OTIMES_UNROLL
            for (int r = 0; r < Extent; ++r, from += x_r) {
                a.forget();
                b.forget();
                vec t[Extent];
                OTIMES_UNROLL
                for (int p = 0; p < Extent; ++p) {
                    vec v = simd_t::load(from + p * x_p);
                    simd_t::pin(v);
                    OTIMES_UNROLL
                    for (int q = 0; q < Extent; ++q) {
                        t[q] = p == 0 ? a.at(q) * v : simd_t::multiply_add(a.at(Extent * p + q), v, t[q]);
                    }
                }
                OTIMES_UNROLL
                for (int q = 0; q < Extent; ++q) {
                    OTIMES_UNROLL
                    for (int s = 0; s < Extent; ++s) {
                        const vec factor = b.at(Extent * r + s);
                        sums[q][s] = r == 0 ? t[q] * factor : simd_t::multiply_add(t[q], factor, sums[q][s]);
                    }
                }
            }
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q, to += y_q) {
                OTIMES_UNROLL
                for (int s = 0; s < Extent; ++s) {
                    Real* const at = to + s * y_s;
                    vec sum = sums[q][s];
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
        if constexpr (is_twin_extent<Real>(5)) {
            if (j.p_extent == 5) {
                twin_kernel<Real, 5>(j, second, x, y, inner);
            } else if (j.p_extent == 4) {
                twin_kernel<Real, 4>(j, second, x, y, inner);
            } else {
                twin_kernel<Real, 3>(j, second, x, y, inner);
            }
        } else {
            twin_kernel<Real, 3>(j, second, x, y, inner);
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

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

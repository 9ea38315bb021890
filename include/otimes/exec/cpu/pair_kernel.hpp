// SPDX-License-Identifier: MIT
/// @file pair_kernel.hpp
/// The last two modes of a tensor at once, where each has about half a register's worth of indices (5 to 8 floats of AVX-512):
///
///     y[o, q, s] = sum_r (sum_p x[o, p, r] * A[p, q]) * B[r, s]          all of extent P <= W / 2
///
/// One after the other, either sweep would fill half of each register. Here two o share the registers, the halves are
/// transposed between the sweeps and back after them, and nothing is stored in between: for two o, 2 P^2 multiply-adds and
/// 3 W + P shuffles. Both sums are chains in ascending order as in micro_kernel.hpp, so the bits are the same.
#pragma once

#include <cstddef>

#include <otimes/exec/cpu/micro_kernel.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// What pair_kernel does; strides and counts in elements.
template <class Real>
struct pair_job {
    using kernel = void (*)(const pair_job&, const Real*, Real*) noexcept;
    kernel run;
    const Real* first;                     ///< A[p, q] at P * p + q
    const Real* second;                    ///< B[r, s] at W * r + s
    std::ptrdiff_t count, x_step, y_step;  ///< of o
    epilogue finish;
    Real alpha;
    bool past = false;            ///< whole cache lines of y are stored past the caches
    read_ahead* ahead = nullptr;  ///< what is asked for meanwhile; nullptr: nothing
};

#if OTIMES_TARGET_SIMD_BYTES == 64 && defined(__AVX512F__)
/// sum[q] = sum_p factor[p * step + q] * v[p] for P values of p and q, p ascending; the other sums are 0.
template <class Real, int Extent>
OTIMES_INLINE void contract_halves(const Real* factor, std::ptrdiff_t step, const typename simd<Real>::type* v,
                                   typename simd<Real>::type* sum) noexcept {
    using simd_t = simd<Real>;
    OTIMES_UNROLL
    for (int q = 0; q < simd_t::width / 2; ++q) {
        sum[q] = q < Extent ? simd_t::broadcast(factor[q]) * v[0] : typename simd_t::type{};
    }
    OTIMES_UNROLL
    for (int p = 1; p < Extent; ++p) {
        OTIMES_UNROLL
        for (int q = 0; q < Extent; ++q) {
            sum[q] = simd_t::multiply_add(simd_t::broadcast(factor[p * step + q]), v[p], sum[q]);
        }
    }
}

template <class Real, int Extent>
OTIMES_NOINLINE void pair_kernel(const pair_job<Real>& j, const Real* x, Real* y) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr int half = simd_t::width / 2;
    const char* ahead = j.ahead != nullptr ? j.ahead->take((j.count + 1) / 2) : nullptr;
    const std::ptrdiff_t ahead_lines = j.ahead != nullptr ? j.ahead->lines_per_block : 0;
    for (std::ptrdiff_t o = 0; o < j.count; o += 2) {
        if (ahead != nullptr) {
            for (std::ptrdiff_t n = ahead_lines; n > 0; --n, ahead += read_ahead::line) {
                __builtin_prefetch(ahead, 0, 2);
            }
        }
        const bool both = o + 1 < j.count;
        const Real* const x0 = x + o * j.x_step;
        const Real* const x1 = both ? x0 + j.x_step : x0;
        vec v[half];
        vec sum[half];
        OTIMES_UNROLL
        for (int p = 0; p < Extent; ++p) {  // what lies behind a short row is the next one, but for the last
            v[p] = Extent == half || p + 1 < Extent
                       ? simd_t::load_halves(x0 + p * Extent, x1 + p * Extent)
                       : simd_t::load_first_of_halves(x0 + p * Extent, x1 + p * Extent, Extent);
            simd_t::pin(v[p]);
        }
        contract_halves<Real, Extent>(j.first, Extent, v, sum);
        transpose_registers<Real, half / 2, half>(sum);
        contract_halves<Real, Extent>(j.second, simd_t::width, sum, v);
        transpose_registers<Real, half / 2, half>(v);
        Real* const y0 = y + o * j.y_step;
        Real* const y1 = both ? y0 + j.y_step : y0;
        if (j.finish != epilogue::store) {
            const vec alpha = simd_t::broadcast(j.alpha);
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                v[q] = alpha * v[q];
                simd_t::pin(v[q]);
                if (j.finish == epilogue::scale_add) {
                    v[q] += simd_t::load_first_of_halves(y0 + q * Extent, y1 + q * Extent, Extent);
                }
            }
        }
        if constexpr (Extent == half) {
            if (j.past && both && is_line(y0) && is_line(y1)) {
                OTIMES_UNROLL
                for (int q = 0; q < Extent; q += 2) {
                    simd_t::store_past(y0 + q * Extent, simd_t::template join_halves<false>(v[q], v[q + 1]));
                }
                OTIMES_UNROLL
                for (int q = 0; q < Extent; q += 2) {
                    simd_t::store_past(y1 + q * Extent, simd_t::template join_halves<true>(v[q], v[q + 1]));
                }
                continue;
            }
        }
        OTIMES_UNROLL
        for (int q = 0; q < Extent; ++q) {
            simd_t::template store_first_of_half<false>(y0 + q * Extent, v[q], Extent);
        }
        if (both) {
            OTIMES_UNROLL
            for (int q = 0; q < Extent; ++q) {
                simd_t::template store_first_of_half<true>(y1 + q * Extent, v[q], Extent);
            }
        }
    }
}

/// The kernel for four equal extents, nullptr where there is none.
template <class Real>
typename pair_job<Real>::kernel pair_kernel_for(std::ptrdiff_t p_extent) noexcept {
    if constexpr (simd<Real>::width == 16) {
        switch (p_extent) {
            case 5: return &pair_kernel<Real, 5>;
            case 6: return &pair_kernel<Real, 6>;
            case 7: return &pair_kernel<Real, 7>;
            case 8: return &pair_kernel<Real, 8>;
            default: break;
        }
    }
    return nullptr;
}
#else
template <class Real>
constexpr typename pair_job<Real>::kernel pair_kernel_for(std::ptrdiff_t) noexcept {
    return nullptr;
}
#endif

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

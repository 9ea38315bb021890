// SPDX-License-Identifier: MIT
/// @file tile.hpp
/// Brings a tile from memory into a tile buffer and back:
///
///     buffer[o, r, lane] = x[o, r, lane]      o: loops, r: innermost contracted index, lane: 0 .. lanes - 1
///
/// where the buffer has lanes side by side and x any strides. Where r is contiguous in x instead of the lanes, W x W
/// blocks are transposed in registers; where neither is, element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <otimes/exec/cpu/sweep.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// The shape of a copy between memory and a tile buffer. Strides count real elements. In `loops` and `inner`, `in` is the
/// side of the memory and `out` that of the buffer, also when the copy goes from the buffer to the memory.
template <class Real>
struct copy_job {
    static constexpr int most_loops = 64;
    std::ptrdiff_t lanes;         ///< lanes that exist in memory
    std::ptrdiff_t lane_stride;   ///< of the memory
    std::ptrdiff_t padded_lanes;  ///< lanes in the buffer
    tile_loop inner;              ///< r
    int loop_count;
    bool add;                     ///< towards memory: add to what is there
    bool conjugate;               ///< towards the buffer
    bool past;                    ///< towards memory: whole cache lines past the caches
    tile_loop loops[most_loops];  ///< outermost first
};

/// Calls body(memory offset, buffer offset) for all indices of the loops.
template <class Real, class Body>
OTIMES_INLINE void for_each_offset(const copy_job<Real>& j, Body&& body) noexcept {
    std::ptrdiff_t at[copy_job<Real>::most_loops];
    for (int k = 0; k < j.loop_count; ++k) {
        at[k] = 0;
    }
    std::ptrdiff_t memory = 0, buffer = 0;
    for (;;) {
        body(memory, buffer);
        int k = j.loop_count - 1;
        for (; k >= 0; --k) {
            memory += j.loops[k].in;
            buffer += j.loops[k].out;
            if (++at[k] < j.loops[k].extent) {
                break;
            }
            memory -= j.loops[k].extent * j.loops[k].in;
            buffer -= j.loops[k].extent * j.loops[k].out;
            at[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

/// buffer[r * ld + l] = x[l * stride + r] for r < rows, l < lanes; lanes up to a register's worth repeat the last one.
/// @pre rows >= W.
template <class Real>
void load_transposed(const Real* x, std::ptrdiff_t stride, Real* buffer, std::ptrdiff_t ld, std::ptrdiff_t rows,
                     std::ptrdiff_t lanes) noexcept {
    using simd_t = simd<Real>;
    constexpr std::ptrdiff_t width = simd_t::width;
    const std::ptrdiff_t half = width / 2 * stride;
    for (std::ptrdiff_t l0 = 0; l0 < lanes; l0 += width) {
        if (l0 + width > lanes && lanes >= width) {
            l0 = lanes - width;
        }
        for (std::ptrdiff_t r0 = 0; r0 < rows; r0 += width) {
            if (r0 + width > rows) {
                r0 = rows - width;
            }
            // Loading halves does the first round of butterflies without a shuffle.
            typename simd_t::type v[static_cast<std::size_t>(width)];
            if (lanes >= width) {
                const Real* low = x + l0 * stride + r0;
                const Real* high = low + half;
                OTIMES_UNROLL
                for (int i = 0; i < width / 2; ++i, low += stride, high += stride) {
                    v[i] = simd_t::load_halves(low, high);
                    v[i + width / 2] = simd_t::load_halves(low + width / 2, high + width / 2);
                }
            } else {
                OTIMES_UNROLL
                for (int i = 0; i < width / 2; ++i) {
                    const Real* const low = x + (i < lanes ? i : lanes - 1) * stride + r0;
                    const Real* const high = x + (i + width / 2 < lanes ? i + width / 2 : lanes - 1) * stride + r0;
                    v[i] = simd_t::load_halves(low, high);
                    v[i + width / 2] = simd_t::load_halves(low + width / 2, high + width / 2);
                }
            }
            transpose_registers<Real, width / 4>(v);
            Real* to = buffer + r0 * ld + l0;
            OTIMES_UNROLL
            for (int i = 0; i < width; ++i, to += ld) {
                simd_t::store(to, v[i]);
            }
        }
    }
}

/// y[l * stride + r] (+)= buffer[r * ld + l] for r < rows, l < lanes. `Real` is what is added; `Unit` what is moved (two
/// floats of a complex number move as one double); `past`: whole cache lines past the caches.
/// @pre rows >= W of Unit; the buffer has whole registers of lanes.
template <class Real, class Unit>
void store_transposed(Real* y_reals, std::ptrdiff_t stride, const Real* buffer_reals, std::ptrdiff_t ld,
                      std::ptrdiff_t rows, std::ptrdiff_t lanes, bool add, bool past) noexcept {
    using simd_t = simd<Unit>;
    constexpr std::ptrdiff_t width = simd_t::width;
    Unit* const y = reinterpret_cast<Unit*>(y_reals);
    const Unit* const buffer = reinterpret_cast<const Unit*>(buffer_reals);
    for (std::ptrdiff_t r0 = 0; r0 < rows; r0 += width) {
        std::ptrdiff_t fresh = 0;  // rows before this one are done: a block at the end overlaps them
        if (r0 + width > rows) {
            fresh = r0 - (rows - width);
            r0 = rows - width;
        }
        for (std::ptrdiff_t l0 = 0; l0 < lanes; l0 += width) {
            std::ptrdiff_t first = 0;
            if (l0 + width > lanes && lanes >= width) {
                first = l0 - (lanes - width);
                l0 = lanes - width;
            }
            typename simd_t::type v[static_cast<std::size_t>(width)];
            const Unit* from = buffer + r0 * ld + l0;
            OTIMES_UNROLL
            for (int i = 0; i < width; ++i, from += ld) {
                v[i] = simd_t::load(from);
            }
            transpose_registers<Unit>(v);
            if (!add && l0 + width <= lanes) {
                Unit* to = y + l0 * stride + r0;
                if (simd_t::stores_lines && past && is_line(to) && stride % width == 0) {
                    OTIMES_UNROLL
                    for (int i = 0; i < width; ++i, to += stride) {
                        simd_t::store_past(to, v[i]);
                    }
                    continue;
                }
                OTIMES_UNROLL
                for (int i = 0; i < width; ++i, to += stride) {
                    simd_t::store(to, v[i]);
                }
                continue;
            }
            Unit image[static_cast<std::size_t>(width)][static_cast<std::size_t>(width)];
            OTIMES_UNROLL
            for (int i = 0; i < width; ++i) {
                simd_t::store(image[i], v[i]);
            }
            for (std::ptrdiff_t i = first; i < width && l0 + i < lanes; ++i) {
                Unit* const to = y + (l0 + i) * stride + r0;
                if (add && fresh == 0) {
                    simd<Real>::store(reinterpret_cast<Real*>(to),
                                      simd<Real>::load(reinterpret_cast<const Real*>(to)) +
                                          simd<Real>::load(reinterpret_cast<const Real*>(image[i])));
                } else if (add) {
                    constexpr auto reals = static_cast<std::ptrdiff_t>(sizeof(Unit) / sizeof(Real));
                    Real sum[static_cast<std::size_t>(width * reals)];
                    std::memcpy(sum, to, sizeof(sum));
                    Real more[static_cast<std::size_t>(width * reals)];
                    std::memcpy(more, image[i], sizeof(more));
                    for (std::ptrdiff_t r = fresh * reals; r < width * reals; ++r) {
                        sum[r] += more[r];
                    }
                    std::memcpy(to, sum, sizeof(sum));
                } else {
                    std::memcpy(to, image[i], sizeof(image[i]));
                }
            }
        }
    }
}

/// The element that a transposition moves: a complex float as one double; void where it does not pay.
template <class Real, int Components>
struct transposed_unit {
    using type = Real;
    static constexpr bool exists = simd<Real>::width > 1;
};
template <>
struct transposed_unit<float, 2> {
    using type = double;
    static constexpr bool exists = simd<double>::width > 1;
};
template <>
struct transposed_unit<double, 2> {
    using type = double;
    static constexpr bool exists = false;
};

/// Memory to buffer. Never reads outside the operand.
template <class Real, int Components>
void load_tile(const copy_job<Real>& j, const Real* x, Real* buffer) noexcept {
    using unit = transposed_unit<Real, Components>;
    using Unit = typename unit::type;
    const std::ptrdiff_t ld = j.padded_lanes * Components;
    const bool by_lane = j.lanes > 1 || j.padded_lanes > 1;
    if (!by_lane && j.inner.in == Components) {
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            std::memcpy(buffer + b, x + m, static_cast<std::size_t>(j.inner.extent * Components) * sizeof(Real));
        });
    } else if (by_lane && j.lane_stride == Components) {
        const std::ptrdiff_t reals = j.lanes * Components;
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            if constexpr (simd<Real>::has_masks) {
                if (reals < simd<Real>::width) {  // a row of the buffer is one register, the rest of it 0
                    for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                        simd<Real>::store(buffer + b + r * j.inner.out,
                                          simd<Real>::load_first(x + m + r * j.inner.in, reals));
                    }
                    return;
                }
            }
            for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                Real* const to = buffer + b + r * j.inner.out;
                std::memcpy(to, x + m + r * j.inner.in, static_cast<std::size_t>(j.lanes * Components) * sizeof(Real));
                for (std::ptrdiff_t l = j.lanes * Components; l < ld; ++l) {
                    to[l] = 0;  // computed on, never stored
                }
            }
        });
    } else if (unit::exists && by_lane && j.inner.in == Components && j.inner.out == ld &&
               j.inner.extent >= simd<Unit>::width) {
        constexpr std::ptrdiff_t reals_per_unit = static_cast<std::ptrdiff_t>(sizeof(Unit) / sizeof(Real));
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            load_transposed<Unit>(reinterpret_cast<const Unit*>(x + m), j.lane_stride / reals_per_unit,
                                  reinterpret_cast<Unit*>(buffer + b), j.padded_lanes, j.inner.extent, j.lanes);
        });
    } else {
        const std::ptrdiff_t in = j.inner.in, out = j.inner.out, extent = j.inner.extent;
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            if (!by_lane) {  // elements that lie apart, one after the other
                const Real* from = x + m;
                Real* to = buffer + b;
                for (std::ptrdiff_t r = 0; r < extent; ++r, from += in, to += out) {
                    OTIMES_UNROLL
                    for (int c = 0; c < Components; ++c) {
                        to[c] = from[c];
                    }
                }
                return;
            }
            for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                const Real* const from = x + m + r * j.inner.in;
                Real* const to = buffer + b + r * j.inner.out;
                for (std::ptrdiff_t l = 0; l < j.padded_lanes; ++l) {
                    for (int c = 0; c < Components; ++c) {
                        to[l * Components + c] = l < j.lanes ? from[l * j.lane_stride + c] : Real(0);
                    }
                }
            }
        });
    }
    if (Components == 2 && j.conjugate) {
        for_each_offset(j, [&](std::ptrdiff_t, std::ptrdiff_t b) {
            for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                for (std::ptrdiff_t l = 1; l < ld; l += 2) {
                    buffer[b + r * j.inner.out + l] = -buffer[b + r * j.inner.out + l];
                }
            }
        });
    }
}

/// Buffer to memory, adding when asked. Never touches anything outside the operand.
template <class Real, int Components>
void store_tile(const copy_job<Real>& j, const Real* buffer, Real* y) noexcept {
    using unit = transposed_unit<Real, Components>;
    using Unit = typename unit::type;
    const std::ptrdiff_t ld = j.padded_lanes * Components;
    const bool by_lane = j.lanes > 1 || j.padded_lanes > 1;
    const auto move_run = [&](Real* to, const Real* from, std::ptrdiff_t n) {
        if (simd<Real>::stores_lines && j.past && n % simd<Real>::width == 0 && is_line(to)) {
            for (std::ptrdiff_t i = 0; i < n; i += simd<Real>::width) {
                simd<Real>::store_past(to + i, simd<Real>::load(from + i));
            }
            return;
        }
        if constexpr (simd<Real>::has_masks) {
            if (n < simd<Real>::width && ld == simd<Real>::width) {  // less than the register that the buffer holds
                const typename simd<Real>::type v = simd<Real>::load(from);
                simd<Real>::store_first(to, j.add ? simd<Real>::load_first(to, n) + v : v, n);
                return;
            }
        }
        if (j.add) {
            for (std::ptrdiff_t i = 0; i < n; ++i) {
                to[i] += from[i];
            }
        } else {
            std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(Real));
        }
    };
    if (!by_lane && j.inner.in == Components) {
        for_each_offset(
            j, [&](std::ptrdiff_t m, std::ptrdiff_t b) { move_run(y + m, buffer + b, j.inner.extent * Components); });
    } else if (by_lane && j.lane_stride == Components) {
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                move_run(y + m + r * j.inner.in, buffer + b + r * j.inner.out, j.lanes * Components);
            }
        });
    } else if (unit::exists && by_lane && j.inner.in == Components && j.inner.out == ld &&
               j.inner.extent >= simd<Unit>::width) {
        constexpr std::ptrdiff_t reals_per_unit = static_cast<std::ptrdiff_t>(sizeof(Unit) / sizeof(Real));
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            store_transposed<Real, Unit>(y + m, j.lane_stride / reals_per_unit, buffer + b, j.padded_lanes,
                                         j.inner.extent, j.lanes, j.add, j.past);
        });
    } else {
        const std::ptrdiff_t in = j.inner.in, out = j.inner.out, extent = j.inner.extent;
        const bool add = j.add;
        for_each_offset(j, [&](std::ptrdiff_t m, std::ptrdiff_t b) {
            if (!by_lane) {
                const Real* from = buffer + b;
                Real* to = y + m;
                for (std::ptrdiff_t r = 0; r < extent; ++r, from += out, to += in) {
                    OTIMES_UNROLL
                    for (int c = 0; c < Components; ++c) {
                        to[c] = add ? to[c] + from[c] : from[c];
                    }
                }
                return;
            }
            for (std::ptrdiff_t r = 0; r < j.inner.extent; ++r) {
                Real* const to = y + m + r * j.inner.in;
                const Real* const from = buffer + b + r * j.inner.out;
                for (std::ptrdiff_t l = 0; l < j.lanes; ++l) {
                    for (int c = 0; c < Components; ++c) {
                        to[l * j.lane_stride + c] =
                            j.add ? to[l * j.lane_stride + c] + from[l * Components + c] : from[l * Components + c];
                    }
                }
            }
        });
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

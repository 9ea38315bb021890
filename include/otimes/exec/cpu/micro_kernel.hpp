// SPDX-License-Identifier: MIT
/// @file micro_kernel.hpp
/// The one inner kernel of the cpu executor: a block of `Rows` x `Vectors` registers of sums, one broadcast entry times
/// `Vectors` registers for every row and every p.
///
///     c[r, v, lane] (+)= alpha * sum_p a[r, p] * b[p, v, lane]          p ascending
///
/// As a *fibre* kernel a is the packed factor (r = q) and b the tile (lanes along what lies inside the mode); as a *row*
/// kernel a is the tile (r = rows of it) and b the packed factor (lanes along q). The sum over p is one chain in
/// ascending order whatever the block, so the bits of a result depend on neither blocking nor threads.
///
/// Complex numbers are interleaved (re, im) and use the same loop: each complex row is a pair of real rows, one for the
/// real and one for the imaginary part of a, and the pair is combined once after the sum:
///     c = (re-row) + i * (im-row),   i * (x, y) = (-y, x).
/// This costs the least number of multiply-adds, 4 real ones for each complex one.
///
/// Why these blocks: with R registers, Rows * Vectors sums + Vectors loaded + 1 broadcast must fit, and loads per
/// multiply-add, (Rows + Vectors) / (Rows * Vectors), stay below what the load ports give.
/// Source of the scheme: Goto and van de Geijn (2008), Van Zee and van de Geijn (2015); see docs/references.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include <otimes/exec/cpu/simd.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// What happens to a finished sum.
enum class epilogue : std::uint8_t { store, scale, scale_add };

/// Memory that will soon be read or written, one piece after the other: the kernels ask for a few lines of it behind each block,
/// so that the requests neither wait for each other nor stop the arithmetic.
struct read_ahead {
    static constexpr std::ptrdiff_t line = 64;
    const char* next = nullptr;
    std::ptrdiff_t left = 0;  ///< bytes
    const char* then = nullptr;
    std::ptrdiff_t left_then = 0;
    std::ptrdiff_t lines_per_block = 0;

    /// Asks for `count` lines from `at` on; where those behind them begin.
    static OTIMES_INLINE const char* ask(const char* at, std::ptrdiff_t count) noexcept {
        for (; count > 0; --count, at += line) {
#if defined(__GNUC__)
            __builtin_prefetch(at, 0, 2);
#endif
        }
        return at;
    }

    /// Where the lines of `blocks` blocks begin, nullptr where nothing is left; those behind the end of a piece are harmless.
    const char* take(std::ptrdiff_t blocks) noexcept {
        if (left <= 0) {
            next = then;
            left = left_then;
            left_then = 0;
        }
        if (left <= 0) {
            return nullptr;
        }
        const char* const from = next;
        next += blocks * lines_per_block * line;
        left -= blocks * lines_per_block * line;
        return from;
    }
};

/// A grid of blocks for the kernel: n1 x n0 blocks, whose a, b, c move by the given steps. All strides count real
/// elements (a complex element is two).
template <class Real>
struct block_grid {
    const Real* a = nullptr;
    const Real* b = nullptr;
    Real* c = nullptr;
    std::ptrdiff_t p_extent = 0;
    std::ptrdiff_t p_first = 0;                     ///< of the whole sum: where these p begin (for whoever sets a)
    std::ptrdiff_t a_row = 0;                       ///< row kernel: from one row of a to the next
    std::ptrdiff_t b_p = 0;                         ///< from p to p + 1 in b
    std::ptrdiff_t b_vector = 0;                    ///< from one register of a block to the next in b
    std::ptrdiff_t c_row = 0;                       ///< from one row to the next in c
    std::ptrdiff_t c_vector = 0;                    ///< from one register of a block to the next in c
    std::ptrdiff_t n0 = 1, a0 = 0, b0 = 0, c0 = 0;  ///< inner loop over blocks
    std::ptrdiff_t n1 = 1, a1 = 0, b1 = 0, c1 = 0;  ///< outer loop over blocks
    std::ptrdiff_t valid = 0;                       ///< elements of each register that are stored (all: the width)
    bool resume = false;                            ///< c holds the sums over the p before these
    epilogue finish = epilogue::store;
    Real alpha_re = 1;
    Real alpha_im = 0;
    const char* ahead = nullptr;  ///< asked for: `ahead_lines` lines behind each block; nullptr: nothing
    std::ptrdiff_t ahead_lines = 0;
    bool past = false;     ///< registers of c that are whole cache lines are stored past the caches
    bool claim = false;    ///< c lies far away: a block asks for its lines, to write them, before it computes
    bool streams = false;  ///< of one row or four: b is read once, and what comes up of each of its p is asked for
};

/// Copies the first `count` elements of a register image: pieces of halving size, each of which is one move.
template <class Real>
OTIMES_INLINE void copy_partial(Real* to, const Real* from, std::ptrdiff_t count) noexcept {
    constexpr int width = simd<Real>::width;
    if constexpr (width >= 16) {
        if ((count & 8) != 0) {
            std::memcpy(to, from, 8 * sizeof(Real));
            to += 8;
            from += 8;
        }
    }
    if constexpr (width >= 8) {
        if ((count & 4) != 0) {
            std::memcpy(to, from, 4 * sizeof(Real));
            to += 4;
            from += 4;
        }
    }
    if constexpr (width >= 4) {
        if ((count & 2) != 0) {
            std::memcpy(to, from, 2 * sizeof(Real));
            to += 2;
            from += 2;
        }
    }
    if ((count & 1) != 0) {
        *to = *from;
    }
}

/// c (+)= alpha * sum_p a * b over a grid of blocks; see the file comment.
/// @tparam Rows real rows of a block (complex: twice the complex rows)
/// @tparam IsRow a is the tile (strides a_row, and 1 per p) instead of the packed factor (Rows entries per p)
/// @pre every register of b may be loaded whole; `valid` elements of each register of c may be stored, and with `resume` all of them
/// loaded.
template <class Real, int Rows, int Vectors, bool IsRow, int Components>
OTIMES_NOINLINE void block_kernel(const block_grid<Real>& g) noexcept {
    using simd_t = simd<Real>;
    using vec = typename simd_t::type;
    constexpr int width = simd_t::width;
    constexpr int results = Rows / Components;
    const std::ptrdiff_t p_extent = g.p_extent, a_row = g.a_row, b_p = g.b_p, b_vector = g.b_vector;
    const char* ahead = g.ahead;
    [[maybe_unused]] const bool streams = g.streams;
    const bool past = simd_t::stores_lines && g.past && (g.c_row | g.c_vector) % width == 0;
    const Real* a_outer = g.a;
    const Real* b_outer = g.b;
    Real* c_outer = g.c;
    for (std::ptrdiff_t i1 = 0; i1 < g.n1; ++i1, a_outer += g.a1, b_outer += g.b1, c_outer += g.c1) {
        const Real* a_block = a_outer;
        const Real* b_block = b_outer;
        Real* c = c_outer;
        for (std::ptrdiff_t i0 = 0; i0 < g.n0; ++i0, a_block += g.a0, b_block += g.b0, c += g.c0) {
#if defined(__GNUC__)
            if (g.claim || g.resume) {
                const Real* const soon = g.resume ? c + g.c0 : c;  // sums that go on are needed at once
                for (std::ptrdiff_t r = 0; r < results; ++r) {
                    for (std::ptrdiff_t v = 0; v < Vectors; ++v) {
                        __builtin_prefetch(soon + r * g.c_row + v * g.c_vector, 1, 3);
                    }
                }
            }
#endif
            vec sum[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Vectors)];
            const Real* a = a_block;
            const Real* b = b_block;
            constexpr std::ptrdiff_t a_p = IsRow ? Components : Rows;
            if (g.resume) {
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        sum[r][v] = r % Components == 0 ? simd_t::load(c + (r / Components) * g.c_row + v * g.c_vector)
                                                        : simd_t::broadcast(Real(0));
                    }
                }
            } else {  // p = 0 starts the sums by a product, which rounds like a multiply-add to zero
                vec x[static_cast<std::size_t>(Vectors)];
                OTIMES_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    x[v] = simd_t::load(b + v * b_vector);
                    simd_t::pin(x[v]);
                }
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    const vec f = simd_t::broadcast(IsRow ? a[(r / Components) * a_row + r % Components] : a[r]);
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        sum[r][v] = f * x[v];
                    }
                }
                a += a_p;
                b += b_p;
            }
            for (const Real* const end = a_block + p_extent * a_p; a != end; a += a_p, b += b_p) {
                vec x[static_cast<std::size_t>(Vectors)];
                OTIMES_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    x[v] = simd_t::load(b + v * b_vector);
                    simd_t::pin(x[v]);
#if defined(__GNUC__)
                    if constexpr (IsRow && (Rows == Components || (Components == 1 && Rows == 4))) {
                        if (streams) {
                            constexpr std::uintptr_t ahead_bytes = 1024;  // about five blocks of three registers
                            __builtin_prefetch(reinterpret_cast<const void*>(
                                reinterpret_cast<std::uintptr_t>(b + v * b_vector) + ahead_bytes));
                        }
                    }
#endif
                }
                OTIMES_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    const vec f = simd_t::broadcast(IsRow ? a[(r / Components) * a_row + r % Components] : a[r]);
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        sum[r][v] = simd_t::multiply_add(f, x[v], sum[r][v]);
                    }
                }
            }
            if constexpr (Components == 2) {
                OTIMES_UNROLL
                for (int r = 0; r < results; ++r) {
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        sum[r][v] = simd_t::multiply_add(simd_t::alternating(), simd_t::swap_pairs(sum[2 * r + 1][v]),
                                                         sum[2 * r][v]);
                    }
                }
            }
            if (g.finish != epilogue::store) {
                const vec re = simd_t::broadcast(g.alpha_re);
                [[maybe_unused]] vec im{};
                if constexpr (Components == 2) {
                    im = simd_t::alternating() * g.alpha_im;
                }
                OTIMES_UNROLL
                for (int r = 0; r < results; ++r) {
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        // Pinned, so that every block rounds alike: else the compiler may fuse one product or the
                        // other, or the product with the addition below.
                        if constexpr (Components == 2) {
                            vec crossed = im * simd_t::swap_pairs(sum[r][v]);
                            simd_t::pin(crossed);
                            sum[r][v] = simd_t::multiply_add(re, sum[r][v], crossed);
                        } else {
                            sum[r][v] = re * sum[r][v];
                        }
                        simd_t::pin(sum[r][v]);
                    }
                }
            }
            if (g.valid == width) {
                if (g.finish == epilogue::scale_add) {
                    OTIMES_UNROLL
                    for (int r = 0; r < results; ++r) {
                        OTIMES_UNROLL
                        for (int v = 0; v < Vectors; ++v) {
                            sum[r][v] += simd_t::load(c + r * g.c_row + v * g.c_vector);
                        }
                    }
                }
                if (past && is_line(c)) {
                    OTIMES_UNROLL
                    for (int r = 0; r < results; ++r) {
                        OTIMES_UNROLL
                        for (int v = 0; v < Vectors; ++v) {
                            simd_t::store_past(c + r * g.c_row + v * g.c_vector, sum[r][v]);
                        }
                    }
                } else {
                    OTIMES_UNROLL
                    for (int r = 0; r < results; ++r) {
                        OTIMES_UNROLL
                        for (int v = 0; v < Vectors; ++v) {
                            simd_t::store(c + r * g.c_row + v * g.c_vector, sum[r][v]);
                        }
                    }
                }
            } else if constexpr (simd_t::has_masks) {
                OTIMES_UNROLL
                for (int r = 0; r < results; ++r) {
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        Real* const to = c + r * g.c_row + v * g.c_vector;
                        if (g.finish == epilogue::scale_add) {
                            sum[r][v] += simd_t::load_first(to, g.valid);
                        }
                        simd_t::store_first(to, sum[r][v], g.valid);
                    }
                }
            } else {
                // Fewer than a register's worth of results lie side by side: out through the stack, in rolled loops,
                // since this is rare and should not cost code.
                Real image[static_cast<std::size_t>(results)][static_cast<std::size_t>(Vectors)]
                          [static_cast<std::size_t>(width)];
                OTIMES_UNROLL
                for (int r = 0; r < results; ++r) {
                    OTIMES_UNROLL
                    for (int v = 0; v < Vectors; ++v) {
                        simd_t::store(image[r][v], sum[r][v]);
                    }
                }
                for (std::ptrdiff_t r = 0; r < results; ++r) {
                    for (std::ptrdiff_t v = 0; v < Vectors; ++v) {
                        Real* const to = c + r * g.c_row + v * g.c_vector;
                        if (g.finish == epilogue::scale_add) {
                            for (std::ptrdiff_t i = 0; i < g.valid; ++i) {
                                image[r][v][i] += to[i];
                            }
                        }
                        copy_partial<Real>(to, image[r][v], g.valid);
                    }
                }
            }
            if (ahead != nullptr) {
                ahead = read_ahead::ask(ahead, g.ahead_lines);
            }
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

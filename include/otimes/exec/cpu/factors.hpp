// SPDX-License-Identifier: MIT
/// @file factors.hpp
/// Packs the factors of a sweep: multiplies the members of a group out, reads any strides, converts real to complex and
/// conjugates, and lays the P x Q result out in the order in which the kernels read it:
///
///     fibre:  [block of q][p][q in the block]              one broadcast after the other
///     row:    [panel of registers along q][p][registers]   one load after the other
///
/// Cost: P * Q * (members), once per run, against P * Q times the rest of the tile for the sweep itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include <otimes/exec/cpu/sweep.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// One member of a group, ready to be read.
struct factor_view {
    const void* data = nullptr;
    std::ptrdiff_t P = 1, Q = 1;
    std::ptrdiff_t p_stride = 0, q_stride = 0;  ///< in elements of its own type
    bool complex_data = false;
    bool conjugate = false;
    bool identity = false;
};

inline factor_view view_factor(const program& source, const bindings& b, std::int32_t id) noexcept {
    const tensor& t = source.at(id);
    const auto modes = source.modes_of(t);
    const mode& p = modes[modes.size() - 2];
    const mode& q = modes[modes.size() - 1];
    factor_view v;
    v.P = static_cast<std::ptrdiff_t>(p.extent);
    v.Q = static_cast<std::ptrdiff_t>(q.extent);
    v.p_stride = static_cast<std::ptrdiff_t>(p.stride);
    v.q_stride = static_cast<std::ptrdiff_t>(q.stride);
    v.complex_data = is_complex(t.type);
    v.conjugate = t.conjugate;
    v.identity = t.kind == factor_kind::identity;
    v.data = v.identity || t.binding < 0 ? nullptr : b.pointers[static_cast<std::size_t>(t.binding)];
    return v;
}

/// Entry (p, q) of a member, as (re, im).
template <class Real>
OTIMES_INLINE void read_entry(const factor_view& v, std::ptrdiff_t p, std::ptrdiff_t q, Real& re, Real& im) noexcept {
    if (v.identity) {
        re = p == q ? Real(1) : Real(0);
        im = 0;
        return;
    }
    const std::ptrdiff_t at = p * v.p_stride + q * v.q_stride;
    if (v.complex_data) {
        const Real* const e = static_cast<const Real*>(v.data) + 2 * at;
        re = e[0];
        im = v.conjugate ? -e[1] : e[1];
    } else {
        re = static_cast<const Real*>(v.data)[at];
        im = 0;
    }
}

/// Reals of a row of a multiplied-out group that is built on the stack; longer rows are computed entry by entry.
inline constexpr std::ptrdiff_t most_row_reals = 1024;
inline constexpr std::size_t most_quick_members = 16;

/// Entry (p, q) of the product of all members, as (re, im): one division per member and index.
template <class Real>
void read_product(const program& source, const bindings& b, const sweep& s, std::ptrdiff_t p, std::ptrdiff_t q,
                  Real& re, Real& im) noexcept {
    re = 1;
    im = 0;
    for (std::size_t k = s.factors.size(); k-- > 0;) {
        const factor_view v = view_factor(source, b, s.factors[k]);
        Real f_re, f_im;
        read_entry<Real>(v, p % v.P, q % v.Q, f_re, f_im);
        p /= v.P;
        q /= v.Q;
        const Real t = re * f_re - im * f_im;
        im = re * f_im + im * f_re;
        re = t;
    }
}

/// Calls put(p, q, re, im) for every entry of the multiplied-out matrix. A row of a group is built by outer products,
/// last member first, so that an entry costs about one multiplication.
template <class Real, int Components, class Put>
OTIMES_INLINE void for_each_entry(const program& source, const bindings& b, const sweep& s, Put&& put) noexcept {
    const std::size_t members = s.factors.size();
    if (members == 1) {
        const factor_view v = view_factor(source, b, s.factors[0]);
        if (!v.identity && !v.complex_data) {
            for (std::ptrdiff_t p = 0; p < v.P; ++p) {
                const Real* from = static_cast<const Real*>(v.data) + p * v.p_stride;
                for (std::ptrdiff_t q = 0; q < v.Q; ++q, from += v.q_stride) {
                    put(p, q, *from, Real(0));
                }
            }
        } else {
            for (std::ptrdiff_t p = 0; p < v.P; ++p) {
                for (std::ptrdiff_t q = 0; q < v.Q; ++q) {
                    Real re, im;
                    read_entry<Real>(v, p, q, re, im);
                    put(p, q, re, im);
                }
            }
        }
        return;
    }
    const auto P = static_cast<std::ptrdiff_t>(s.P);
    const auto Q = static_cast<std::ptrdiff_t>(s.Q);
    if (members > most_quick_members || Q * Components > most_row_reals) {
        for (std::ptrdiff_t p = 0; p < P; ++p) {
            for (std::ptrdiff_t q = 0; q < Q; ++q) {
                Real re, im;
                read_product<Real>(source, b, s, p, q, re, im);
                put(p, q, re, im);
            }
        }
        return;
    }
    factor_view views[most_quick_members];
    std::ptrdiff_t digit[most_quick_members];
    for (std::size_t k = 0; k < members; ++k) {
        views[k] = view_factor(source, b, s.factors[k]);
        digit[k] = 0;
    }
    Real row_re[most_row_reals];
    [[maybe_unused]] Real row_im[Components == 2 ? most_row_reals : 1];
    for (std::ptrdiff_t p = 0; p < P; ++p) {
        row_re[0] = 1;
        row_im[0] = 0;
        std::ptrdiff_t length = 1;
        for (std::size_t k = members; k-- > 0;) {
            // Entries j * length + i = F[p_k, j] * row[i]; from the last j down, so that row[i] is still there.
            for (std::ptrdiff_t j = views[k].Q; j-- > 0;) {
                Real f_re, f_im;
                read_entry<Real>(views[k], digit[k], j, f_re, f_im);
                for (std::ptrdiff_t i = 0; i < length; ++i) {
                    if constexpr (Components == 2) {
                        const Real re = row_re[i] * f_re - row_im[i] * f_im;
                        row_im[j * length + i] = row_re[i] * f_im + row_im[i] * f_re;
                        row_re[j * length + i] = re;
                    } else {
                        row_re[j * length + i] = row_re[i] * f_re;
                    }
                }
            }
            length *= views[k].Q;
        }
        for (std::ptrdiff_t q = 0; q < Q; ++q) {
            put(p, q, row_re[q], Components == 2 ? row_im[Components == 2 ? q : 0] : Real(0));
        }
        for (std::size_t k = members; k-- > 0 && ++digit[k] == views[k].P;) {
            digit[k] = 0;
        }
    }
}

/// Real elements that the packed factor of a sweep takes at most.
template <class Real, int Components>
constexpr std::ptrdiff_t packed_reals(std::ptrdiff_t P, std::ptrdiff_t Q) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    return P * ((Q * Components + width - 1) / width * width);
}

/// Packs the factors of `s` for the fibre or the row kernels.
template <class Real, int Components>
void pack_factors(const program& source, const bindings& b, const sweep& s, bool as_row, Real* to) noexcept {
    using shapes = block_shapes<Real, Components>;
    const auto P = static_cast<std::ptrdiff_t>(s.P);
    const auto Q = static_cast<std::ptrdiff_t>(s.Q);
    const auto write = [](Real* at, Real re, [[maybe_unused]] Real im) {
        at[0] = re;
        if constexpr (Components == 2) {
            at[1] = im;
        }
    };
    if (!as_row) {
        const even_split split = split_evenly(Q, shapes::fibre_q(Q));
        const std::ptrdiff_t big_end = split.big_count * split.big();
        std::ptrdiff_t start = 0, rows = 1, in_block = 0;  // the block that q is in, followed as q advances
        for_each_entry<Real, Components>(source, b, s, [&](std::ptrdiff_t p, std::ptrdiff_t q, Real re, Real im) {
            if (q == 0) {
                start = 0;
                in_block = 0;
                rows = big_end > 0 ? split.big() : split.small;
            } else if (++in_block == rows) {
                start += rows;
                in_block = 0;
                rows = start < big_end ? split.big() : split.small;
            }
            write(to + (start * P + p * rows + in_block) * Components, re, im);
        });
        return;
    }
    constexpr std::ptrdiff_t width = simd<Real>::width;
    constexpr std::ptrdiff_t per_vector = width >= Components ? width / Components : 1;
    const std::ptrdiff_t whole = Q * Components / width;
    const even_split split = split_evenly(whole, shapes::most_vectors);
    const std::ptrdiff_t big_end = split.big_count * split.big() * per_vector;
    const std::ptrdiff_t whole_end = whole * per_vector;
    const std::ptrdiff_t tail_first = whole > 0 ? Q - per_vector : 0;  // the last panel may repeat columns
    Real* const tail = to + whole * width * P;
    if (whole_end < Q) {
        for (std::ptrdiff_t i = 0; i < width * P; ++i) {
            tail[i] = 0;
        }
    }
    std::ptrdiff_t start = 0, columns = 0, in_panel = 0;
    for_each_entry<Real, Components>(source, b, s, [&](std::ptrdiff_t p, std::ptrdiff_t q, Real re, Real im) {
        if (q == 0) {
            start = 0;
            in_panel = 0;
            columns = (big_end > 0 ? split.big() : split.small) * per_vector;
        } else if (++in_panel == columns) {
            start += columns;
            in_panel = 0;
            columns = (start < big_end ? split.big() : split.small) * per_vector;
        }
        if (q < whole_end) {
            write(to + (start * P + p * columns + in_panel) * Components, re, im);
        }
        if (whole_end < Q && q >= tail_first) {
            write(tail + p * width + (q - tail_first) * Components, re, im);
        }
    });
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

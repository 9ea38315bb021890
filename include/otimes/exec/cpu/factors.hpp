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

/// Column q of the multiplied-out P x Q matrix into to[p * step], p = 0 .. P - 1; `to` has Components reals an element.
template <class Real, int Components>
void read_column(const program& source, const bindings& b, const sweep& s, std::ptrdiff_t q, Real* to,
                 std::ptrdiff_t step) noexcept {
    const std::size_t members = s.factors.size();
    if (members == 1) {
        const factor_view v = view_factor(source, b, s.factors[0]);
        if (!v.identity && !v.complex_data && Components == 1) {
            const Real* from = static_cast<const Real*>(v.data) + q * v.q_stride;
            for (std::ptrdiff_t p = 0; p < s.P; ++p, from += v.p_stride, to += step) {
                *to = *from;
            }
            return;
        }
    }
    for (std::ptrdiff_t p = 0; p < s.P; ++p, to += step) {
        Real re = 1, im = 0;
        std::ptrdiff_t p_rest = p, q_rest = q;
        for (std::size_t k = members; k-- > 0;) {
            const factor_view v = view_factor(source, b, s.factors[k]);
            Real f_re, f_im;
            read_entry<Real>(v, p_rest % v.P, q_rest % v.Q, f_re, f_im);
            p_rest /= v.P;
            q_rest /= v.Q;
            if constexpr (Components == 2) {
                const Real t = re * f_re - im * f_im;
                im = re * f_im + im * f_re;
                re = t;
            } else {
                re *= f_re;
            }
        }
        to[0] = re;
        if constexpr (Components == 2) {
            to[1] = im;
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
    if (!as_row) {
        const even_split split = split_evenly(Q, shapes::fibre_q(Q));
        std::ptrdiff_t q = 0;
        for (std::ptrdiff_t block = 0; block < split.big_count + split.small_count; ++block) {
            const int rows = block < split.big_count ? split.big() : split.small;
            for (int r = 0; r < rows; ++r) {
                read_column<Real, Components>(source, b, s, q + r, to + r * Components, rows * Components);
            }
            to += rows * P * Components;
            q += rows;
        }
        return;
    }
    constexpr std::ptrdiff_t width = simd<Real>::width;
    constexpr std::ptrdiff_t per_vector = width >= Components ? width / Components : 1;
    const std::ptrdiff_t whole = Q * Components / width;
    const std::ptrdiff_t rest = Q * Components % width;
    const even_split split = split_evenly(whole, shapes::most_vectors);
    std::ptrdiff_t q = 0;
    for (std::ptrdiff_t panel = 0; panel < split.big_count + split.small_count; ++panel) {
        const std::ptrdiff_t vectors = panel < split.big_count ? split.big() : split.small;
        const std::ptrdiff_t columns = vectors * per_vector;
        for (std::ptrdiff_t i = 0; i < columns; ++i) {
            read_column<Real, Components>(source, b, s, q + i, to + i * Components, vectors * width);
        }
        to += vectors * width * P;
        q += columns;
    }
    if (rest > 0) {
        const std::ptrdiff_t first = whole > 0 ? Q - per_vector : 0;
        for (std::ptrdiff_t i = 0; i < per_vector; ++i) {
            if (first + i < Q) {
                read_column<Real, Components>(source, b, s, first + i, to + i * Components, width);
            } else {
                for (std::ptrdiff_t p = 0; p < P; ++p) {
                    to[p * width + i * Components] = 0;
                    to[p * width + (i + 1) * Components - 1] = 0;
                }
            }
        }
    }
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

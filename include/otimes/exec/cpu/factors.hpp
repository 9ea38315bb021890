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

/// One member of a group, ready to be read. Not initialised: arrays of it are made often and used in part.
struct factor_view {
    const void* data;
    std::ptrdiff_t p_extent, q_extent;
    std::ptrdiff_t p_stride, q_stride;  ///< in elements of its own type
    bool complex_data;
    bool conjugate;
    bool identity;
};

inline factor_view view_factor(const program& source, const bindings& b, std::int32_t id) noexcept {
    const tensor& t = source.at(id);
    const auto modes = source.modes_of(t);
    const mode& p = modes[modes.size() - 2];
    const mode& q = modes[modes.size() - 1];
    factor_view v;
    v.p_extent = static_cast<std::ptrdiff_t>(p.extent);
    v.q_extent = static_cast<std::ptrdiff_t>(q.extent);
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
        read_entry<Real>(v, p % v.p_extent, q % v.q_extent, f_re, f_im);
        p /= v.p_extent;
        q /= v.q_extent;
        const Real t = re * f_re - im * f_im;
        im = re * f_im + im * f_re;
        re = t;
    }
}

/// The one member of a group that is no single entry, and the product of those that are; -1: there are several, or none.
template <class Real>
std::int32_t only_matrix(const program& source, const bindings& b, const sweep& s, Real& scale_re,
                         Real& scale_im) noexcept {
    std::int32_t found = s.factors.size() == 1 ? s.factors[0] : -1;
    scale_re = 1;
    scale_im = 0;
    for (std::size_t k = s.factors.size(); s.factors.size() > 1 && k-- > 0;) {
        const factor_view v = view_factor(source, b, s.factors[k]);
        if (v.p_extent != 1 || v.q_extent != 1) {
            if (found >= 0) {
                return -1;
            }
            found = s.factors[k];
            continue;
        }
        Real re, im;
        read_entry<Real>(v, 0, 0, re, im);
        const Real t = scale_re * re - scale_im * im;
        scale_im = scale_re * im + scale_im * re;
        scale_re = t;
    }
    return found;
}

/// Groups of at most this extent (all that the planner makes) are multiplied out member by member, not row by row.
inline constexpr std::ptrdiff_t most_small_extent = 16;

/// rows[p][q] = product of the members' entries, last member first; members are real and in memory. Entries
/// j * length + i of a row are F[p_k, j] * row[i]: whole registers, each of which runs into what the next one writes. With a
/// member the rows of those behind it become as many times more as it has rows; all of them before the next member is taken,
/// since loading what was just stored in other pieces would stall.
template <class Real>
void multiply_out(const factor_view* views, std::size_t members,
                  Real (*rows)[most_small_extent + simd<Real>::width]) noexcept {
    using simd_t = simd<Real>;
    std::ptrdiff_t length = 1;
    std::ptrdiff_t inside = 1;  // rows of the members that were taken
    for (std::size_t k = members; k-- > 0;) {
        const factor_view& v = views[k];
        const std::ptrdiff_t q_extent = v.q_extent;
        const std::ptrdiff_t q_stride = v.q_stride;
        for (std::ptrdiff_t at = v.p_extent; at-- > 0;) {  // the first rows last, from which all others are made
            const Real* const f = static_cast<const Real*>(v.data) + at * v.p_stride;
            for (std::ptrdiff_t r = 0; r < inside; ++r) {
                const Real* const from = rows[r];
                Real* const to = rows[at * inside + r];
                if (length <= simd_t::width) {
                    const typename simd_t::type inner =
                        k + 1 == members ? simd_t::broadcast(Real(1)) : simd_t::load(from);
                    Real* entry = to;
                    const Real* value = f;
                    for (std::ptrdiff_t j = 0; j < q_extent; ++j, entry += length, value += q_stride) {
                        simd_t::store(entry, inner * simd_t::broadcast(*value));
                    }
                } else {
                    for (std::ptrdiff_t j = q_extent; j-- > 0;) {  // so that from[i] is still there
                        for (std::ptrdiff_t i = length; i-- > 0;) {
                            to[j * length + i] = from[i] * f[j * q_stride];
                        }
                    }
                }
            }
        }
        length *= v.q_extent;
        inside *= v.p_extent;
    }
}

/// Rows [p, p + rows) and columns [q, q + columns) of the P x Q matrix of a sweep.
struct factor_block {
    std::ptrdiff_t p, q, rows, columns;
};

/// That block of a member as a matrix of its own. @pre it is all of it, or v is no identity
template <class Real>
factor_view block_of(factor_view v, const factor_block& block) noexcept {
    if (!v.identity) {
        v.data =
            static_cast<const Real*>(v.data) + (block.p * v.p_stride + block.q * v.q_stride) * (v.complex_data ? 2 : 1);
        v.p_extent = block.rows;
        v.q_extent = block.columns;
    }
    return v;
}

/// Calls put(p, q, count, entries) for consecutive stretches of all rows of a block of the multiplied-out matrix, p and q counted from its
/// first; `entries` holds count elements of Components reals. A row of a group is built by outer products, last member first, so that an
/// entry costs about one multiplication.
/// @pre the block is all of it, or there is only_matrix and it is no identity
template <class Real, int Components, class Put>
OTIMES_INLINE void for_each_stretch(const program& source, const bindings& b, const sweep& s, const factor_block& block,
                                    Put&& put) noexcept {
    const std::size_t members = s.factors.size();
    const std::ptrdiff_t p_extent = block.rows;
    const std::ptrdiff_t q_extent = block.columns;
    constexpr std::ptrdiff_t most = most_row_reals / Components;
    Real row[most_row_reals];
    Real scale_re, scale_im;
    if (const std::int32_t only = only_matrix<Real>(source, b, s, scale_re, scale_im); only >= 0) {
        const factor_view v = block_of<Real>(view_factor(source, b, only), block);
        const bool plain = scale_re == Real(1) && scale_im == 0;
        for (std::ptrdiff_t p = 0; p < p_extent; ++p) {
            if (Components == 1 && plain && v.q_stride == 1 && !v.identity) {
                put(p, std::ptrdiff_t{0}, q_extent, static_cast<const Real*>(v.data) + p * v.p_stride);
                continue;
            }
            for (std::ptrdiff_t q = 0; q < q_extent; q += most) {
                const std::ptrdiff_t count = q_extent - q < most ? q_extent - q : most;
                if (Components == 1 && plain && !v.identity) {
                    const Real* const from = static_cast<const Real*>(v.data) + p * v.p_stride + q * v.q_stride;
                    for (std::ptrdiff_t i = 0; i < count; ++i) {
                        row[i] = from[i * v.q_stride];
                    }
                } else {
                    for (std::ptrdiff_t i = 0; i < count; ++i) {
                        Real re, im;
                        read_entry<Real>(v, p, q + i, re, im);
                        row[i * Components] = scale_re * re - scale_im * im;
                        if constexpr (Components == 2) {
                            row[2 * i + 1] = scale_re * im + scale_im * re;
                        }
                    }
                }
                put(p, q, count, static_cast<const Real*>(row));
            }
        }
        return;
    }
    if (members > most_quick_members || q_extent > most) {
        for (std::ptrdiff_t p = 0; p < p_extent; ++p) {
            for (std::ptrdiff_t q = 0; q < q_extent; ++q) {
                Real im;
                read_product<Real>(source, b, s, p, q, row[0], im);
                if constexpr (Components == 2) {
                    row[1] = im;
                }
                put(p, q, std::ptrdiff_t{1}, static_cast<const Real*>(row));
            }
        }
        return;
    }
    factor_view views[most_quick_members];
    std::ptrdiff_t digit[most_quick_members];
    bool plain = Components == 1;  // real entries in memory: read without questions
    for (std::size_t k = 0; k < members; ++k) {
        views[k] = view_factor(source, b, s.factors[k]);
        digit[k] = 0;
        plain = plain && !views[k].identity;
    }
    if constexpr (Components == 1) {
        if (plain && p_extent <= most_small_extent && q_extent <= most_small_extent) {
            Real rows[most_small_extent][most_small_extent + simd<Real>::width];
            multiply_out(views, members, rows);
            for (std::ptrdiff_t p = 0; p < p_extent; ++p) {
                put(p, std::ptrdiff_t{0}, q_extent, static_cast<const Real*>(rows[p]));
            }
            return;
        }
    }
    for (std::ptrdiff_t p = 0; p < p_extent; ++p) {
        row[0] = 1;
        row[Components - 1] = Components == 2 ? Real(0) : Real(1);
        std::ptrdiff_t length = 1;
        for (std::size_t k = members; k-- > 0;) {
            // Entries j * length + i = F[p_k, j] * row[i]; from the last j down, so that row[i] is still there.
            for (std::ptrdiff_t j = views[k].q_extent; j-- > 0;) {
                Real f_re, f_im;
                read_entry<Real>(views[k], digit[k], j, f_re, f_im);
                Real* const to = row + j * length * Components;
                for (std::ptrdiff_t i = 0; i < length; ++i) {
                    if constexpr (Components == 2) {
                        const Real re = row[2 * i], im = row[2 * i + 1];
                        to[2 * i] = re * f_re - im * f_im;
                        to[2 * i + 1] = re * f_im + im * f_re;
                    } else {
                        to[i] = row[i] * f_re;
                    }
                }
            }
            length *= views[k].q_extent;
        }
        put(p, std::ptrdiff_t{0}, q_extent, static_cast<const Real*>(row));
        for (std::size_t k = members; k-- > 0 && ++digit[k] == views[k].p_extent;) {
            digit[k] = 0;
        }
    }
}

/// Real elements that the packed factor of a sweep takes at most.
template <class Real, int Components>
constexpr std::ptrdiff_t packed_reals(std::ptrdiff_t p_extent, std::ptrdiff_t q_extent) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    return p_extent * ((q_extent * Components + width - 1) / width * width);
}

/// Where the kernels of a sweep read its factor, in real elements.
template <class Real>
struct factor_place {
    const Real* data;
    std::ptrdiff_t p_stride;      ///< from p to p + 1, the q of a p side by side; 0: in the packed order
    std::ptrdiff_t q_stride = 0;  ///< else from q to q + 1, the p of a q side by side
};

/// Rows up to which the row kernels read a long factor as it lies in memory: packing it costs a read and a write of every entry,
/// each row a multiply-add. The bits are those of the packed one.
template <class Real>
inline constexpr std::ptrdiff_t most_unpacked_rows = simd<Real>::has_masks ? 32 : 16;
inline constexpr std::ptrdiff_t least_unpacked_extent = 32;

/// Where the factor of `s` may be read as it lies in memory: a single one whose q lie side by side, and either contiguous and packed
/// in one block, or long and for few rows. Else {nullptr, 0}. @param rows that the whole pass gives to the row kernels; 0: no row sweep
/// @param in_blocks the pass takes some columns at a time, which lie in no packed order
/// @param as_planned and by plan they are read as they lie: then the p of a q may be side by side, too (column_kernel.hpp)
template <class Real, int Components>
factor_place<Real> unpacked_factor(const program& source, const bindings& b, const sweep& s, std::ptrdiff_t rows,
                                   bool in_blocks, bool as_planned = false) noexcept {
    using shapes = block_shapes<Real, Components>;
    const auto p_extent = static_cast<std::ptrdiff_t>(s.p_extent);
    const auto q_extent = static_cast<std::ptrdiff_t>(s.q_extent);
    constexpr std::ptrdiff_t width = simd<Real>::width;
    const bool one_block = !in_blocks && (rows > 0 ? q_extent * Components % width == 0 &&
                                                         q_extent * Components <= width * shapes::most_vectors
                                                   : q_extent <= shapes::fibre_q(q_extent));
    const bool few_rows = rows > 0 && rows <= most_unpacked_rows<Real> && p_extent >= least_unpacked_extent &&
                          q_extent >= least_unpacked_extent && q_extent * Components >= width;
    if (s.factors.size() != 1 || !(one_block || few_rows)) {
        return {nullptr, 0};
    }
    const factor_view v = view_factor(source, b, s.factors[0]);
    if (Components == 1 && width > 1 && as_planned && few_rows && v.p_stride == 1 && v.q_stride > 1 && !v.identity &&
        !v.conjugate && !v.complex_data) {
        return {static_cast<const Real*>(v.data), 1, v.q_stride};
    }
    // A p_stride of 0 is one row for all p, which a place would call packed.
    if (v.q_stride != 1 || v.p_stride == 0 || v.identity || v.conjugate || v.complex_data != (Components == 2)) {
        return {nullptr, 0};
    }
    if (one_block && v.p_stride == q_extent) {
        return {static_cast<const Real*>(v.data), 0};
    }
    return few_rows ? factor_place<Real>{static_cast<const Real*>(v.data), v.p_stride * Components}
                    : factor_place<Real>{nullptr, 0};
}

/// to[p * to_stride + i] = from[p, i] for all p and i < columns.
template <class Real>
void pack_columns(const factor_view& v, const Real* from, std::ptrdiff_t columns, Real* to,
                  std::ptrdiff_t to_stride) noexcept {
    constexpr std::ptrdiff_t width = simd<Real>::width;
    if (v.q_stride == 1) {
        const std::ptrdiff_t whole = columns / width * width;
        for (std::ptrdiff_t p = 0; p < v.p_extent; ++p, from += v.p_stride, to += to_stride) {
            for (std::ptrdiff_t i = 0; i < whole; i += width) {
                simd<Real>::store(to + i, simd<Real>::load(from + i));
            }
            copy_partial<Real>(to + whole, from + whole, columns - whole);
        }
        return;
    }
    std::ptrdiff_t whole = 0;  // rows that are transposed in registers
    if constexpr (width > 1) {
        whole = v.p_stride == 1 && columns % width == 0 ? v.p_extent / width * width : 0;
    }
    for (std::ptrdiff_t p = 0; p < whole; p += width, from += width, to += width * to_stride) {
        for (std::ptrdiff_t first = 0; first < columns; first += width) {
            typename simd<Real>::type block[static_cast<std::size_t>(width)];
            OTIMES_UNROLL
            for (std::ptrdiff_t i = 0; i < width; ++i) {
                block[i] = simd<Real>::load(from + (first + i) * v.q_stride);
            }
            transpose_registers<Real>(block);
            OTIMES_UNROLL
            for (std::ptrdiff_t i = 0; i < width; ++i) {
                simd<Real>::store(to + i * to_stride + first, block[i]);
            }
        }
    }
    // A column may be contiguous: a cache line's worth of rows at a time, so that no line is read twice.
    constexpr std::ptrdiff_t line = 64 / static_cast<std::ptrdiff_t>(sizeof(Real));
    for (std::ptrdiff_t p = 0; p < v.p_extent - whole; p += line) {
        const std::ptrdiff_t rows = v.p_extent - whole - p < line ? v.p_extent - whole - p : line;
        const Real* column = from + p * v.p_stride;
        for (std::ptrdiff_t i = 0; i < columns; ++i, column += v.q_stride) {
            for (std::ptrdiff_t r = 0; r < rows; ++r) {
                to[(p + r) * to_stride + i] = column[r * v.p_stride];
            }
        }
    }
}

/// Packs a part of the multiplied-out factors of `s` for the fibre or the row kernels, as a matrix of its own.
/// @param share, sharers of the blocks of one large factor every thread packs some; anything else is packed by the first thread alone.
/// @pre the part is all, or there is only_matrix and it is no identity
template <class Real, int Components>
void pack_factors(const program& source, const bindings& b, const sweep& s, bool as_row, Real* to, std::ptrdiff_t share,
                  std::ptrdiff_t sharers, const factor_block& part) noexcept {
    using shapes = block_shapes<Real, Components>;
    constexpr std::ptrdiff_t width = simd<Real>::width;
    constexpr std::ptrdiff_t per_vector = width >= Components ? width / Components : 1;
    const std::ptrdiff_t p_extent = part.rows;
    const std::ptrdiff_t q_extent = part.columns;
    // Columns [0, big_end) in blocks of `big`, [big_end, small_end) in blocks of `small`, and for rows of registers a last
    // block that repeats columns (two overlapping registers) or is filled up with zeros (one short register).
    std::ptrdiff_t big = 0, big_end = 0, small = 0, small_end = 0, tail_first = q_extent, tail_columns = 0;
    if (!as_row) {
        const even_split split = split_evenly(q_extent, shapes::fibre_q(q_extent));
        big = split.big();
        small = split.small;
        big_end = split.big_count * big;
        small_end = q_extent;
    } else {
        const std::ptrdiff_t whole = q_extent * Components / width;
        const bool rest = q_extent * Components % width != 0;
        const std::ptrdiff_t single = !rest || whole == 0 ? whole : whole - 1;
        const even_split split = split_evenly(single, shapes::most_vectors);
        big = split.big() * per_vector;
        small = split.small * per_vector;
        big_end = split.big_count * big;
        small_end = single * per_vector;
        if (rest) {
            tail_first = small_end;
            tail_columns = whole > 0 ? 2 * per_vector : per_vector;
        }
    }
    Real scale, none;
    if (const std::int32_t only = Components == 1 ? only_matrix<Real>(source, b, s, scale, none) : -1; only >= 0) {
        const factor_view v = block_of<Real>(view_factor(source, b, only), part);
        if (!v.identity) {  // block after block, each written in order
            const auto* const from = static_cast<const Real*>(v.data);
            const auto times_scale = [scale](Real* at, std::ptrdiff_t reals) {
                for (std::ptrdiff_t i = 0; scale != Real(1) && i < reals; ++i) {
                    at[i] *= scale;
                }
            };
            std::ptrdiff_t block = 0;
            for (std::ptrdiff_t first = 0; first < small_end; ++block) {
                const std::ptrdiff_t columns = first < big_end ? big : small;
                if (block % sharers == share) {
                    pack_columns(v, from + first * v.q_stride, columns, to + first * p_extent, columns);
                    times_scale(to + first * p_extent, columns * p_extent);
                }
                first += columns;
            }
            if (block % sharers != share) {
                return;
            }
            Real* const tail = to + tail_first * p_extent;
            if (tail_columns > per_vector) {  // two registers, of which the second ends at Q
                pack_columns(v, from + tail_first * v.q_stride, width, tail, tail_columns);
                pack_columns(v, from + (q_extent - width) * v.q_stride, width, tail + width, tail_columns);
            } else if (tail_columns > 0) {
                for (std::ptrdiff_t i = 0; i < p_extent * width; ++i) {
                    tail[i] = 0;
                }
                pack_columns(v, from + tail_first * v.q_stride, q_extent - tail_first, tail, width);
            }
            times_scale(tail, tail_columns * p_extent);
            return;
        }
    }
    if (share != 0) {
        return;
    }
    const auto copy = [](Real* at, const Real* from, std::ptrdiff_t reals) {
        for (std::ptrdiff_t i = 0; i < reals; ++i) {
            at[i] = from[i];
        }
    };
    for_each_stretch<Real, Components>(
        source, b, s, part, [&](std::ptrdiff_t p, std::ptrdiff_t q, std::ptrdiff_t count, const Real* entries) {
            if (as_row && q == 0 && count == q_extent && q_extent * Components >= width) {  // whole registers all along
                for (std::ptrdiff_t first = 0; first < small_end;) {
                    const std::ptrdiff_t columns = first < big_end ? big : small;
                    Real* const at = to + (first * p_extent + p * columns) * Components;
                    for (std::ptrdiff_t i = 0; i < columns * Components; i += width) {
                        simd<Real>::store(at + i, simd<Real>::load(entries + first * Components + i));
                    }
                    first += columns;
                }
                if (tail_columns > 0) {
                    Real* const tail = to + (tail_first * p_extent + p * tail_columns) * Components;
                    simd<Real>::store(tail, simd<Real>::load(entries + tail_first * Components));
                    simd<Real>::store(tail + width, simd<Real>::load(entries + q_extent * Components - width));
                }
                return;
            }
            const std::ptrdiff_t end = q + count;
            std::ptrdiff_t at = q;
            std::ptrdiff_t first = 0;  // of the block that `at` is in
            if (q > 0 && q < small_end) {
                first = q < big_end ? q / big * big : big_end + (q - big_end) / small * small;
            }
            while (at < end && at < small_end) {
                const std::ptrdiff_t columns = first < big_end ? big : small;
                const std::ptrdiff_t next = first + columns;
                const std::ptrdiff_t stop = next < end ? next : end;
                copy(to + (first * p_extent + p * columns + (at - first)) * Components, entries + (at - q) * Components,
                     (stop - at) * Components);
                at = stop;
                first = next;
            }
            if (tail_columns == 0 || end <= tail_first) {
                return;
            }
            // The registers of the tail start at tail_first and end at Q: the second overlaps the first.
            Real* const tail = to + (tail_first * p_extent + p * tail_columns) * Components;
            const std::ptrdiff_t second = q_extent - per_vector;
            for (std::ptrdiff_t i = at > tail_first ? at : tail_first; i < end; ++i) {
                const Real* const e = entries + (i - q) * Components;
                if (i - tail_first < per_vector) {
                    copy(tail + (i - tail_first) * Components, e, Components);
                }
                if (tail_columns > per_vector && i >= second) {
                    copy(tail + (per_vector + i - second) * Components, e, Components);
                }
            }
            if (tail_columns == per_vector && end == q_extent) {
                for (std::ptrdiff_t i = (q_extent - tail_first) * Components; i < width; ++i) {
                    tail[i] = 0;
                }
            }
        });
}

/// All of them.
template <class Real, int Components>
void pack_factors(const program& source, const bindings& b, const sweep& s, bool as_row, Real* to,
                  std::ptrdiff_t share = 0, std::ptrdiff_t sharers = 1) noexcept {
    pack_factors<Real, Components>(
        source, b, s, as_row, to, share, sharers,
        {0, 0, static_cast<std::ptrdiff_t>(s.p_extent), static_cast<std::ptrdiff_t>(s.q_extent)});
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

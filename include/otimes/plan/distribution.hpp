// SPDX-License-Identifier: MIT
/// @file distribution.hpp
/// Where the elements of a matrix are when several ranks (GPUs, processes) hold it, and what moves when that changes. Values
/// only: nothing here communicates.
///
/// A distribution cuts the rows into `row_parts` ranges and the columns into `col_parts`; rank `first_rank + i * col_parts + j`
/// holds rows part i and columns part j as one row-major block, later ranks hold nothing. The columns are cut along one mode:
/// column c = (o * extent + e) * inner + i belongs to the part whose range holds e. With outer = inner = 1 that is a flat range.
///
///     by rows (4 ranks)          by columns along the first mode        along the last mode
///     [ 0 0 0 0 0 0 0 0 ]        [ 0 0 1 1 2 2 3 3 ]                    [ 0 1 2 3 0 1 2 3 ]
///     [ 1 1 1 1 1 1 1 1 ]        [ 0 0 1 1 2 2 3 3 ]                    [ 0 1 2 3 0 1 2 3 ]
///
/// Ranges are as even as they can be, the first ones longer; more parts than indices leaves the last parts empty.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

/// Indices begin .. end - 1.
struct index_range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    [[nodiscard]] constexpr std::int64_t size() const noexcept { return end - begin; }
    friend bool operator==(const index_range&, const index_range&) = default;
};

/// Part `part` of an extent cut into `parts` ranges: floor(extent / parts) indices, one more in the first extent % parts.
constexpr index_range part_of(std::int64_t extent, std::int32_t parts, std::int32_t part) noexcept {
    const std::int64_t least = extent / parts;
    const std::int64_t longer = extent % parts;
    const std::int64_t begin = part * least + (part < longer ? part : longer);
    return {begin, begin + least + (part < longer ? 1 : 0)};
}

/// Chunk `chunk` of `chunks` of an extent that is computed and sent chunk by chunk. Of the exchange only the last chunk's part is
/// seen, so chunks become shorter: they are as chunks + 1 to ... to 3 to 2.
constexpr index_range chunk_range(std::int64_t extent, std::int32_t chunks, std::int32_t chunk) noexcept {
    const std::int64_t total = std::int64_t{chunks} * (chunks + 3) / 2;
    const auto begin = [&](std::int64_t k) { return extent * (k * (2 * chunks + 3 - k) / 2) / total; };
    return {begin(chunk), begin(chunk + 1)};
}
/// The first and the last chunk's part of the whole.
constexpr double first_chunk_share(std::int32_t chunks) noexcept {
    return chunks == 1 ? 1.0 : 2.0 * (chunks + 1) / (static_cast<double>(chunks) * (chunks + 3));
}
constexpr double last_chunk_share(std::int32_t chunks) noexcept {
    return chunks == 1 ? 1.0 : 4.0 / (static_cast<double>(chunks) * (chunks + 3));
}

/// How a matrix is cut; see the file comment.
struct distribution {
    std::int32_t row_parts = 1;
    std::int32_t col_parts = 1;
    std::int64_t outer = 1;   ///< columns are numbered (outer, extent, inner)
    std::int64_t extent = 0;  ///< the index that is cut; 0: all columns, as flat ranges
    std::int64_t inner = 1;
    std::int32_t first_rank = 0;

    friend bool operator==(const distribution&, const distribution&) = default;

    [[nodiscard]] constexpr std::int32_t parts() const noexcept { return row_parts * col_parts; }
};

/// Rows over `ranks`; columns whole.
constexpr distribution cut_rows(std::int32_t ranks) noexcept { return {.row_parts = ranks}; }
/// Columns over `ranks` as flat ranges; rows whole.
constexpr distribution cut_columns(std::int32_t ranks) noexcept { return {.col_parts = ranks}; }
/// A grid of row_parts x col_parts, the columns cut along mode `mode` (from 0) of a tensor with these extents.
constexpr distribution cut_mode(std::int32_t row_parts, std::int32_t col_parts, std::span<const std::int64_t> extents,
                                std::size_t mode) noexcept {
    distribution p{.row_parts = row_parts, .col_parts = col_parts};
    p.extent = extents[mode];
    for (std::size_t k = 0; k < extents.size(); ++k) {
        std::int64_t& side = k < mode ? p.outer : p.inner;
        side = k == mode ? side : saturating_multiply(side, extents[k]);  // what has too many columns fits no matrix
    }
    return p;
}

namespace planning {

/// A set of columns: [start + t * period, start + t * period + length) for t = 0 .. count - 1. Numbered without gaps, they are
/// the columns of a block.
struct column_set {
    std::int64_t start = 0;
    std::int64_t length = 0;
    std::int64_t period = 1;
    std::int64_t count = 0;

    [[nodiscard]] constexpr std::int64_t size() const noexcept { return length * count; }
    /// The block's number of a column of the set.
    [[nodiscard]] constexpr std::int64_t local(std::int64_t column) const noexcept {
        return column / period * length + (column % period - start);
    }
    /// The column of the block's number `local`. @pre length > 0
    [[nodiscard]] constexpr std::int64_t global(std::int64_t number) const noexcept {
        return number / length * period + start + number % length;
    }
    /// How far apart in the block two columns are that lie `step` apart; `step` is a multiple of the period or stays inside
    /// one interval.
    [[nodiscard]] constexpr std::int64_t local_step(std::int64_t step) const noexcept {
        return step % period == 0 ? step / period * length : step;
    }
};

/// Columns start + a * periods[0] + b * periods[1] + c, for a < counts[0], b < counts[1], c < run.
struct column_runs {
    std::int64_t start = 0;
    std::int64_t run = 0;
    std::array<std::int64_t, 2> counts{1, 1};
    std::array<std::int64_t, 2> periods{0, 0};

    [[nodiscard]] constexpr std::int64_t size() const noexcept { return run * counts[0] * counts[1]; }
};

/// The intersection of [begin, end) with a set: a part of an interval, whole intervals, a part of an interval.
OTIMES_COLD inline void intersect_interval(std::int64_t begin, std::int64_t end, const column_set& s,
                                           std::vector<column_runs>& result) {
    std::int64_t t = (std::max)(std::int64_t{0}, (begin - s.start - s.length + 1 + s.period - 1) / s.period);
    const auto add_part = [&] {
        const std::int64_t from = (std::max)(begin, s.start + t * s.period);
        const std::int64_t to = (std::min)(end, s.start + t * s.period + s.length);
        if (t < s.count && from < to) {
            result.push_back({from, to - from});
        }
        ++t;
    };
    if (t < s.count && s.start + t * s.period < begin) {
        add_part();
    }
    const std::int64_t fit = end - s.start - s.length < 0 ? 0 : (end - s.start - s.length) / s.period + 1;
    const std::int64_t whole = (std::min)(fit, s.count) - t;
    if (whole > 0) {
        result.push_back({s.start + t * s.period, s.length, {1, whole}, {0, s.period}});
        t += whole;
    }
    add_part();
}

/// The columns that two sets share. One entry where the sets are cuts of one tensor, else up to three for each interval of
/// the coarser set.
OTIMES_COLD inline std::vector<column_runs> intersect(const column_set& a, const column_set& b) {
    std::vector<column_runs> result;
    if (a.size() == 0 || b.size() == 0) {
        return result;
    }
    const column_set& coarse = a.period >= b.period ? a : b;
    const column_set& fine = a.period >= b.period ? b : a;
    if (coarse.period == fine.period) {
        const std::int64_t begin = (std::max)(a.start, b.start);
        const std::int64_t end = (std::min)(a.start + a.length, b.start + b.length);
        if (begin < end) {
            result.push_back({begin, end - begin, {1, a.count}, {0, a.period}});
        }
    } else if (coarse.period % fine.period == 0 && coarse.start % fine.period == 0 &&
               coarse.length % fine.period == 0) {
        result.push_back({coarse.start + fine.start,
                          fine.length,
                          {coarse.count, coarse.length / fine.period},
                          {coarse.period, fine.period}});
    } else {
        for (std::int64_t t = 0; t < coarse.count; ++t) {
            intersect_interval(coarse.start + t * coarse.period, coarse.start + t * coarse.period + coarse.length, fine,
                               result);
        }
    }
    return result;
}

}  // namespace planning

/// What one rank holds of a matrix under a distribution.
struct held_block {
    index_range rows;
    planning::column_set cols;

    [[nodiscard]] std::int64_t row_count() const noexcept { return cols.size() == 0 ? 0 : rows.size(); }
    [[nodiscard]] std::int64_t col_count() const noexcept { return rows.size() == 0 ? 0 : cols.size(); }
    [[nodiscard]] std::int64_t elements() const noexcept { return rows.size() * cols.size(); }
};

/// @throws shape_error a distribution that does not fit `cols` columns and `ranks` ranks.
OTIMES_COLD inline void require_fits(const distribution& p, std::int64_t cols, std::int32_t ranks) {
    const std::int64_t parts = std::int64_t{p.row_parts} * p.col_parts;
    if (p.row_parts < 1 || p.col_parts < 1 || p.first_rank < 0 || p.first_rank + parts > ranks) {
        throw shape_error("otimes: a distribution into " + std::to_string(p.row_parts) + " x " +
                          std::to_string(p.col_parts) + " parts" +
                          (p.first_rank == 0 ? "" : " from rank " + std::to_string(p.first_rank) + " on") +
                          " does not fit " + std::to_string(ranks) +
                          " ranks. row_parts * col_parts must be at least 1 and at most the number of ranks.");
    }
    std::int64_t columns = cols;
    const bool counted = p.outer >= 0 && p.extent >= 0 && p.inner >= 0 &&
                         (p.extent == 0 || (checked_multiply(p.outer, p.extent, columns) &&
                                            checked_multiply(columns, p.inner, columns)));
    if (!counted || columns != cols) {
        throw shape_error("otimes: a distribution along a mode of " + std::to_string(p.outer) + " * " +
                          std::to_string(p.extent) + " * " + std::to_string(p.inner) + " columns does not fit " +
                          std::to_string(cols) + " columns.");
    }
}

/// True for a grid: neither rows nor columns are whole on a rank.
[[nodiscard]] constexpr bool cuts_both(const distribution& p) noexcept { return p.row_parts > 1 && p.col_parts > 1; }

/// The same blocks of the same elements, the matrix read row after row as one row of rows * cols columns. @pre not cuts_both(p)
[[nodiscard]] constexpr distribution as_one_row(const distribution& p, std::int64_t rows, std::int64_t cols) noexcept {
    distribution one{.col_parts = p.parts()};
    one.first_rank = p.first_rank;
    if (rows == 0 || cols == 0) {
        return one;
    }
    if (p.row_parts > 1) {
        one.extent = rows;
        one.inner = cols;
    } else if (p.col_parts > 1) {
        one.outer = (p.extent == 0 ? 1 : p.outer) * rows;
        one.extent = p.extent == 0 ? cols : p.extent;
        one.inner = p.extent == 0 ? 1 : p.inner;
    }
    return one;
}

/// The block of `rank`. @pre the distribution fits
OTIMES_COLD inline held_block block_of(const distribution& p, std::int64_t rows, std::int64_t cols, std::int32_t rank) {
    const std::int32_t part = rank - p.first_rank;
    if (part < 0 || part >= p.parts()) {
        return {};
    }
    held_block result;
    result.rows = part_of(rows, p.row_parts, part / p.col_parts);
    const bool flat = p.extent == 0 || p.col_parts == 1;
    const std::int64_t inner = flat ? 1 : p.inner;
    const std::int64_t extent = flat ? cols : p.extent;
    const index_range range = part_of(extent, p.col_parts, part % p.col_parts);
    result.cols = {range.begin * inner, range.size() * inner, (std::max)(std::int64_t{1}, extent * inner),
                   flat ? 1 : p.outer};
    return result;
}

/// True when every rank holds the same elements in the same order under both, whose fields may differ: those that number columns mean nothing
/// where columns are whole.
OTIMES_COLD inline bool same_blocks(const distribution& a, const distribution& b, std::int64_t rows, std::int64_t cols,
                                    std::int32_t ranks) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const held_block x = block_of(a, rows, cols, rank);
        const held_block y = block_of(b, rows, cols, rank);
        if (x.elements() != y.elements()) {
            return false;
        }
        if (x.elements() == 0) {
            continue;
        }
        if (!(x.rows == y.rows)) {
            return false;
        }
        std::int64_t shared = 0;
        for (const planning::column_runs& r : planning::intersect(x.cols, y.cols)) {
            shared += r.size();
        }
        if (shared != x.cols.size()) {
            return false;
        }
    }
    return true;
}

/// What `from` sends to `to` as nested runs: for each index of the three outer levels one run of elements, contiguous on both
/// sides. Starts and strides are in elements of the two blocks.
struct moved_runs {
    std::int64_t run = 0;
    std::array<std::int64_t, 3> counts{1, 1, 1};  ///< rows, then two levels of columns
    std::int64_t from_start = 0;
    std::int64_t to_start = 0;
    std::array<std::int64_t, 3> from_strides{0, 0, 0};
    std::array<std::int64_t, 3> to_strides{0, 0, 0};

    [[nodiscard]] constexpr std::int64_t run_count() const noexcept { return counts[0] * counts[1] * counts[2]; }
    [[nodiscard]] constexpr std::int64_t elements() const noexcept { return run * run_count(); }
    friend bool operator==(const moved_runs&, const moved_runs&) = default;
};

/// What must move from the block of one rank to the block of another (or of the same rank) when a matrix changes from one
/// distribution to another. Neighbouring runs are joined.
/// @param only the columns of `from` that are moved: all of them, or a part (chunk_of)
OTIMES_COLD inline std::vector<moved_runs> moved_between(const held_block& from, const held_block& to,
                                                         const planning::column_set& only) {
    std::vector<moved_runs> result;
    const index_range rows{(std::max)(from.rows.begin, to.rows.begin), (std::min)(from.rows.end, to.rows.end)};
    if (rows.size() <= 0 || from.elements() == 0 || to.elements() == 0) {
        return result;
    }
    for (const planning::column_runs& c : planning::intersect(only, to.cols)) {
        moved_runs m;
        m.run = c.run;
        m.counts = {rows.size(), c.counts[0], c.counts[1]};
        m.from_start = (rows.begin - from.rows.begin) * from.cols.size() + from.cols.local(c.start);
        m.to_start = (rows.begin - to.rows.begin) * to.cols.size() + to.cols.local(c.start);
        m.from_strides = {from.cols.size(), from.cols.local_step(c.periods[0]), from.cols.local_step(c.periods[1])};
        m.to_strides = {to.cols.size(), to.cols.local_step(c.periods[0]), to.cols.local_step(c.periods[1])};
        bool joining = true;  // what is contiguous on both sides, from the innermost level on
        for (std::size_t level = 3; level-- > 0;) {
            const bool one = m.counts[level] == 1;
            if (!one && joining && m.from_strides[level] == m.run && m.to_strides[level] == m.run) {
                m.run *= m.counts[level];
                m.counts[level] = 1;
            } else {
                joining = joining && one;
            }
            if (m.counts[level] == 1) {
                m.from_strides[level] = m.to_strides[level] = 0;
            }
        }
        result.push_back(m);
    }
    return result;
}

OTIMES_COLD inline std::vector<moved_runs> moved_between(const held_block& from, const held_block& to) {
    return moved_between(from, to, from.cols);
}

/// Chunk `chunk` of `chunks` of a block's columns: a range of the index that the distribution cuts.
OTIMES_COLD inline planning::column_set chunk_of(const held_block& block, const distribution& d, std::int32_t chunk,
                                                 std::int32_t chunks) {
    // Without columns there is nothing to divide.
    const std::int64_t inner = d.extent == 0 || d.col_parts == 1 || d.inner == 0 ? 1 : d.inner;
    const index_range range = chunk_range(block.cols.length / inner, chunks, chunk);
    planning::column_set part = block.cols;
    part.start += range.begin * inner;
    part.length = range.size() * inner;
    return part;
}

/// What a change of distribution moves between ranks; what stays on its rank is not counted.
struct moved_elements {
    std::int64_t total = 0;
    std::int64_t most_sent = 0;      ///< by one rank
    std::int64_t most_received = 0;  ///< by one rank
    friend bool operator==(const moved_elements&, const moved_elements&) = default;
};

/// Exact, from what stays. Cost: O(ranks) for cuts of one tensor.
OTIMES_COLD inline moved_elements count_moved(const distribution& from, const distribution& to, std::int64_t rows,
                                              std::int64_t cols, std::int32_t ranks) {
    moved_elements result;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const held_block a = block_of(from, rows, cols, rank);
        const held_block b = block_of(to, rows, cols, rank);
        std::int64_t stays = 0;
        for (const moved_runs& m : moved_between(a, b)) {
            stays += m.elements();
        }
        result.total += a.elements() - stays;
        result.most_sent = (std::max)(result.most_sent, a.elements() - stays);
        result.most_received = (std::max)(result.most_received, b.elements() - stays);
    }
    return result;
}

/// "rows over 4", "columns along 1 * [64] * 4096 over 4", "rows over 2, columns in flat ranges over 3", "rows over 2 from rank 1 on", "all on
/// rank 0". Distributions of equal texts have the same blocks.
OTIMES_COLD inline std::string to_string(const distribution& p) {
    std::string text;
    if (p.row_parts > 1) {
        text = "rows over " + std::to_string(p.row_parts);
    }
    if (p.col_parts > 1) {
        text += std::string(text.empty() ? "" : ", ") +
                (p.extent == 0 ? "columns in flat ranges"
                               : "columns along " + std::to_string(p.outer) + " * [" + std::to_string(p.extent) +
                                     "] * " + std::to_string(p.inner)) +
                " over " + std::to_string(p.col_parts);
    }
    const std::string first = std::to_string(p.first_rank);
    return text.empty() ? "all on rank " + first : text + (p.first_rank == 0 ? "" : " from rank " + first + " on");
}

}  // namespace otimes

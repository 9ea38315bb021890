// SPDX-License-Identifier: MIT
/// @file overlap.hpp
/// Do two strided matrices, or arrays of any order, share a byte? Decided from addresses, extents and strides, not from object identity.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace otimes {

/// The bytes of a strided matrix: element (i, j) at `address + i * row_stride + j * col_stride`, all in bytes. Strides may be negative.
struct strided_memory {
    std::int64_t address = 0;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t row_stride = 0;
    std::int64_t col_stride = 0;
    std::int64_t element_bytes = 0;
};

/// The memory of anything with data, rows, cols and strides in elements.
template <class View>
strided_memory memory_of(const View& view, std::int64_t element_bytes) {
    return {static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data)),
            view.rows,
            view.cols,
            view.row_stride * element_bytes,
            view.col_stride * element_bytes,
            element_bytes};
}

/// The same bytes, from the lowest address upwards: rows and columns that run backwards are counted from their other end.
/// @pre rows > 0 and cols > 0
inline strided_memory upwards(strided_memory m) {
    if (m.row_stride < 0) {
        m.address += (m.rows - 1) * m.row_stride;
        m.row_stride = -m.row_stride;
    }
    if (m.col_stride < 0) {
        m.address += (m.cols - 1) * m.col_stride;
        m.col_stride = -m.col_stride;
    }
    return m;
}

/// True when the two may share a byte. Exact for two blocks of one matrix (strides equal but for their sign, one of them nested in the
/// other) and for disjoint address ranges; otherwise overlapping ranges count as overlap. Cost: a few divisions.
inline bool overlap(const strided_memory& one, const strided_memory& other) {
    if (one.rows <= 0 || one.cols <= 0 || other.rows <= 0 || other.cols <= 0) {
        return false;
    }
    const strided_memory a = upwards(one);
    const strided_memory b = upwards(other);
    const auto last = [](const strided_memory& m) {
        return m.address + (m.rows - 1) * m.row_stride + (m.cols - 1) * m.col_stride + m.element_bytes;
    };
    if (last(a) <= b.address || last(b) <= a.address) {
        return false;
    }
    if (a.row_stride != b.row_stride || a.col_stride != b.col_stride || a.element_bytes != b.element_bytes) {
        return true;
    }
    const bool rows_inner = a.row_stride <= a.col_stride;
    const std::int64_t inner = rows_inner ? a.row_stride : a.col_stride;
    const std::int64_t outer = rows_inner ? a.col_stride : a.row_stride;
    const std::int64_t a_inner = rows_inner ? a.rows : a.cols;
    const std::int64_t b_inner = rows_inner ? b.rows : b.cols;
    const std::int64_t a_outer = rows_inner ? a.cols : a.rows;
    const std::int64_t b_outer = rows_inner ? b.cols : b.rows;
    if (inner < a.element_bytes || outer < inner * (a_inner > b_inner ? a_inner : b_inner)) {
        return true;  // broadcast or interleaved strides: no unique position
    }
    // b's first element sits at (d_outer, d_inner) of a's lattice, if it sits on it at all; the inner offset may be
    // counted forwards from one outer index or backwards from the next.
    const std::int64_t distance = b.address - a.address;
    std::int64_t d_outer = distance / outer;
    std::int64_t rest = distance % outer;
    if (rest < 0) {
        rest += outer;
        --d_outer;
    }
    const auto meet = [&](std::int64_t at_outer, std::int64_t at_inner) {
        const std::int64_t i = at_inner / inner;
        return at_inner % inner != 0 ||  // off the lattice: the elements themselves may interleave
               (at_outer < a_outer && -at_outer < b_outer && i < a_inner && -i < b_inner);
    };
    return meet(d_outer, rest) || meet(d_outer + 1, rest - outer);
}

/// Index differences of two arrays, or of two parts of one, along each stride: do two elements have one address? Exact for slices of
/// one array, which may take turns in memory.
class index_differences {
public:
    /// @pre stride >= 0, least <= most
    void add(std::int64_t stride, std::int64_t least, std::int64_t most) {
        auto at = along_.begin();
        while (at != along_.end() && at->stride > stride) {
            ++at;
        }
        if (stride != 0 && (at == along_.end() || at->stride != stride)) {
            at = along_.insert(at, {stride, 0, 0});
        }
        if (stride != 0) {
            at->least += least;
            at->most += most;
        }
    }
    /// Are there differences with sum difference * stride = distance? Cost: a search in which nested strides leave few choices; where
    /// other strides leave thousands, `true`.
    [[nodiscard]] bool reach(std::int64_t distance) const {
        int tries = 4096;
        return reach(0, distance, tries);
    }

private:
    struct range {
        std::int64_t stride;
        std::int64_t least;
        std::int64_t most;
    };
    bool reach(std::size_t from, std::int64_t distance, int& tries) const {
        if (from == along_.size()) {
            return distance == 0;
        }
        std::int64_t lowest = 0;  // by the smaller strides
        std::int64_t highest = 0;
        for (std::size_t k = from + 1; k < along_.size(); ++k) {
            lowest += along_[k].least * along_[k].stride;
            highest += along_[k].most * along_[k].stride;
        }
        const range& now = along_[from];
        const auto floor_of = [&](std::int64_t n) { return n / now.stride - (n % now.stride < 0 ? 1 : 0); };
        const std::int64_t last = (std::min)(now.most, floor_of(distance - lowest));
        for (std::int64_t d = (std::max)(now.least, -floor_of(highest - distance)); d <= last; ++d) {
            if (--tries < 0 || reach(from + 1, distance - d * now.stride, tries)) {
                return true;
            }
        }
        return false;
    }
    std::vector<range> along_;  ///< the largest stride first
};

}  // namespace otimes

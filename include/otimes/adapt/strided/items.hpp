// SPDX-License-Identifier: MIT
/// @file items.hpp
/// Where the items of a batch lie (batched.hpp): strided or by pointers, whether they share memory, and the texts of what does not fit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <otimes/exec/executor.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {

namespace detail {

/// Where the items of one operand lie: at pointers, or batch_stride apart.
template <class Scalar>
struct item_operand {
    Scalar* data = nullptr;  ///< item 0 of a strided batch
    std::shared_ptr<const std::vector<Scalar*>> pointers;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t row_stride = 1;
    std::int64_t col_stride = 1;
    std::int64_t batch_stride = 0;
    std::int64_t count = 1;
    const executor* home = nullptr;  ///< of items in device memory

    [[nodiscard]] Scalar* at(std::int64_t item) const {
        return pointers ? (*pointers)[static_cast<std::size_t>(item)] : data + item * batch_stride;
    }
    [[nodiscard]] bool by_pointers() const noexcept { return pointers != nullptr; }
    /// Elements from the lowest to the highest of one item.
    [[nodiscard]] std::int64_t reach() const {
        return rows == 0 || cols == 0 ? 0 : (rows - 1) * std::abs(row_stride) + (cols - 1) * std::abs(col_stride) + 1;
    }
    /// The address of the lowest: views of Eigen may run backwards.
    [[nodiscard]] std::intptr_t lowest(std::int64_t item) const {
        const std::int64_t back = reach() == 0 ? 0
                                               : (rows - 1) * (std::min)(row_stride, std::int64_t{0}) +
                                                     (cols - 1) * (std::min)(col_stride, std::int64_t{0});
        return reinterpret_cast<std::intptr_t>(at(item)) +
               static_cast<std::intptr_t>(back * static_cast<std::int64_t>(sizeof(Scalar)));
    }
};

/// Makes items by pointers a strided batch. False where they do not lie evenly spaced, each after the one before; nothing is changed then.
template <class Scalar>
bool make_strided(item_operand<Scalar>& o) {
    if (!o.by_pointers() || o.count == 0) {
        return !o.by_pointers();
    }
    const auto bytes = static_cast<std::intptr_t>(sizeof(Scalar));
    const auto step = [&o](std::int64_t i) {
        return reinterpret_cast<std::intptr_t>(o.at(i + 1)) - reinterpret_cast<std::intptr_t>(o.at(i));
    };
    const std::intptr_t first = o.count > 1 ? step(0) : o.reach() * bytes;
    for (std::int64_t i = 1; i + 1 < o.count; ++i) {
        if (step(i) != first) {
            return false;
        }
    }
    if (first < 0 || first % bytes != 0) {
        return false;
    }
    o.data = o.at(0);
    o.batch_stride = first / bytes;
    o.pointers.reset();
    return true;
}

/// The bytes of all items.
template <class Scalar>
std::pair<std::intptr_t, std::intptr_t> hull_of(const item_operand<Scalar>& o) {
    std::intptr_t begin = 0;
    std::intptr_t end = 0;
    for (std::int64_t i = 0; i < o.count; i += o.by_pointers() || o.count < 3 ? 1 : o.count - 1) {
        const std::intptr_t from = o.lowest(i);
        const auto to = from + static_cast<std::intptr_t>(o.reach() * static_cast<std::int64_t>(sizeof(Scalar)));
        begin = i == 0 || from < begin ? from : begin;
        end = i == 0 || to > end ? to : end;
    }
    return {begin, o.reach() == 0 ? begin : end};
}

using byte_spans = std::vector<std::pair<std::intptr_t, std::intptr_t>>;
/// Spans of two operands, which a thread keeps, so that a plan that is run again allocates nothing.
struct kept_spans {
    byte_spans read, written;
};

/// The bytes of each item, in the order of their addresses.
template <class Scalar>
void find_spans(const item_operand<Scalar>& o, byte_spans& result) {
    result.clear();
    for (std::int64_t i = 0; i < o.count && o.reach() > 0; ++i) {
        const std::intptr_t from = o.lowest(i);
        result.emplace_back(from,
                            from + static_cast<std::intptr_t>(o.reach() * static_cast<std::int64_t>(sizeof(Scalar))));
    }
    std::sort(result.begin(), result.end());
}

/// True when two elements have one address, of an item of `a` and one of `b`; `other_items`: of two items of one operand. Exact for evenly
/// spaced items, as strips of one matrix; others are taken to meet.
template <class First, class Second>
bool elements_meet(item_operand<First> a, item_operand<Second> b, bool other_items) {
    if (!make_strided(a) || !make_strided(b)) {
        return true;
    }
    const auto bytes = static_cast<std::intptr_t>(sizeof(First));
    const std::intptr_t distance = b.lowest(0) - a.lowest(0);
    index_differences differences;
    differences.add(a.batch_stride, other_items ? 1 : 0, a.count - 1);
    differences.add(b.batch_stride, other_items ? 0 : 1 - b.count, 0);
    differences.add(std::abs(a.row_stride), 0, a.rows - 1);
    differences.add(std::abs(a.col_stride), 0, a.cols - 1);
    differences.add(std::abs(b.row_stride), 1 - b.rows, 0);
    differences.add(std::abs(b.col_stride), 1 - b.cols, 0);
    return distance % bytes != 0 || differences.reach(distance / bytes);
}

/// True when an item of `read` shares an element with an item of `written`; items that are not evenly spaced range from first to last element.
template <class Read, class Written>
bool items_meet(const item_operand<Read>& read, const item_operand<Written>& written) {
    const auto x = hull_of(read);
    const auto y = hull_of(written);
    if (x.second <= y.first || y.second <= x.first) {
        return false;
    }
    kept_or_own<kept_spans, kept_spans> kept;
    byte_spans& from = (*kept).read;
    byte_spans& to = (*kept).written;
    find_spans(read, from);
    find_spans(written, to);
    for (std::size_t i = 0, j = 0; i < from.size() && j < to.size();) {
        if (from[i].second <= to[j].first) {
            ++i;
        } else if (to[j].second <= from[i].first) {
            ++j;
        } else {
            return elements_meet(read, written, false);
        }
    }
    return false;
}
/// True when two elements of one item have one address, as in a map with a stride of 0.
template <class Written>
bool item_meets_itself(const item_operand<Written>& o) {
    if (o.count == 0 || o.reach() == 0) {
        return false;
    }
    const std::int64_t down = o.rows > 1 ? std::abs(o.row_stride) : 1;
    const std::int64_t along = o.cols > 1 ? std::abs(o.col_stride) : 1;
    if (down == 0 || along == 0) {
        return true;
    }
    const std::int64_t common = std::gcd(down, along);  // along / common rows further is down / common columns further
    return along / common < o.rows && down / common < o.cols;
}
/// True when two items share an element, likewise.
template <class Written>
bool items_meet(const item_operand<Written>& written) {
    if (!written.by_pointers() && written.batch_stride >= written.reach()) {
        return false;
    }
    kept_or_own<kept_spans, kept_spans> kept;
    byte_spans& spans = (*kept).written;
    find_spans(written, spans);
    for (std::size_t i = 1; i < spans.size(); ++i) {
        if (spans[i].first < spans[i - 1].second) {
            return elements_meet(written, written, true);
        }
    }
    return false;
}

/// The first item in host memory that has elements and no address, else -1. Those of a device are found where they are launched.
template <class Scalar>
std::int64_t null_item(const item_operand<Scalar>& o) {
    if (o.home != nullptr || o.reach() == 0) {
        return -1;
    }
    for (std::int64_t i = 0; i < (o.by_pointers() ? o.count : o.count > 0 ? 1 : 0); ++i) {
        if (o.at(i) == nullptr) {
            return i;
        }
    }
    return -1;
}

[[noreturn]] OTIMES_COLD inline void throw_batch_shape(std::int64_t rows, std::int64_t cols, std::int64_t count,
                                                       std::int64_t batch_stride) {
    throw shape_error("otimes: batched: " + std::to_string(count) + " items of " + shape_text(rows, cols) +
                      " with a batch stride of " + std::to_string(batch_stride) +
                      "; none may be negative, and the last element must lie within 2^63 - 1 bytes.");
}
[[noreturn]] OTIMES_COLD inline void throw_item(const char* rule, std::size_t item, std::int64_t rows,
                                                std::int64_t cols, std::int64_t first_rows, std::int64_t first_cols) {
    throw shape_error("otimes: batched: item " + std::to_string(item) + " is " + shape_text(rows, cols) +
                      ", item 0 is " + shape_text(first_rows, first_cols) + ". " + rule);
}
[[noreturn]] OTIMES_COLD inline void throw_null_item(const std::string& name, std::int64_t item) {
    throw shape_error("otimes: batched: item " + std::to_string(item) + " of " + name + " is at a null pointer.");
}
[[noreturn]] OTIMES_COLD inline void throw_counts(const std::string& name, std::int64_t count, std::int64_t other) {
    throw shape_error("otimes: batched: " + name + " has " + std::to_string(count) + " items, another operand " +
                      std::to_string(other) + ". All batches of an expression have equally many items.");
}
[[noreturn]] OTIMES_COLD inline void throw_batch_spaces(const std::string& name) {
    throw unsupported_error(
        "otimes: batched: " + name +
        " and Y are not in one memory space. Give all batches of an expression in host memory, or all in device "
        "memory: otimes::batched(otimes::gpu(), pointer, rows, cols, count).");
}
[[noreturn]] OTIMES_COLD inline void throw_batch_alias(const std::string& what) {
    throw alias_error("otimes: batched(Y) = ..: an item of Y shares memory with " + what +
                      ". Evaluate by .eval(), or give Y memory of its own.");
}

}  // namespace detail

}  // namespace otimes

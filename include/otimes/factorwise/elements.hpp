// SPDX-License-Identifier: MIT
/// @file elements.hpp
/// The elements of one factor of any kind, in the order in which it has them at least cost: stored elements of diagonals, permutations and
/// sparse matrices, columns of callbacks and of low-rank products, rows or columns of what lies in memory.
///
/// Cost: the stored elements, or all; a column of a product of matrices costs its multiplication with each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes::detail {

/// Few elements in places that are known.
inline bool has_few_elements(const leaf& f) noexcept {
    return f.is_identity() || f.kind() == factor_kind::diagonal || f.kind() == factor_kind::permutation ||
           f.kind() == factor_kind::sparse;
}

/// Is an element known without an application of the factor?
inline bool tells_elements(const leaf& f) {
    return f.kind() != factor_kind::callback || static_cast<const callback_operand*>(f.view().data)->element != nullptr;
}

/// use(i, j, element) for every stored element. @pre has_few_elements
template <class Scalar, class Use>
void for_each_stored(const leaf& f, const Use& use) {
    const matrix_view view = f.view();
    if (f.kind() == factor_kind::sparse) {
        const sparse_elements s = static_cast<const sparse_operand*>(view.data)->elements();
        const bool by_columns = s.by_columns != f.transposed();
        for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
            for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
                const std::int64_t inner = s.index(s.inner, k);
                use(by_columns ? inner : outer, by_columns ? outer : inner, stored_value<Scalar>(f, s.values, k));
            }
        }
        return;
    }
    for (std::int64_t i = 0; i < view.rows; ++i) {
        if (f.kind() != factor_kind::permutation) {
            use(i, i, kron_node<Scalar>::element(f, view, i, i));
        } else {
            const std::int64_t to = static_cast<const std::int32_t*>(view.data)[i];
            use(f.transposed() ? i : to, f.transposed() ? to : i, Scalar(1));
        }
    }
}

/// Column j of a factor of any kind.
template <class Scalar>
void write_column(const leaf& f, std::int64_t j, std::vector<Scalar>& column) {
    const matrix_view view = f.view();
    if (f.kind() == factor_kind::callback) {
        column = callback_column<Scalar>(f, view, j, std::move(column));
        return;
    }
    column.clear();
    for (std::int64_t i = 0; i < view.rows; ++i) {
        column.push_back(kron_node<Scalar>::element(f, view, i, j));
    }
}

/// Column j of parts[0] * parts[1] * ..; `next` and `of_part` are memory for it.
template <class Scalar>
void write_column(const std::vector<leaf>& parts, std::int64_t j, std::vector<Scalar>& column,
                  std::vector<Scalar>& next, std::vector<Scalar>& of_part) {
    write_column<Scalar>(parts.back(), j, column);
    for (std::size_t p = parts.size() - 1; p-- > 0;) {
        const leaf& part = parts[p];
        next.assign(static_cast<std::size_t>(part.rows()), Scalar(0));
        if (has_few_elements(part)) {
            for_each_stored<Scalar>(part, [&](std::int64_t i, std::int64_t k, const Scalar& value) {
                Scalar& sum = next[static_cast<std::size_t>(i)];
                sum = sum + value * column[static_cast<std::size_t>(k)];
            });
        } else {
            for (std::size_t k = 0; k < column.size(); ++k) {
                write_column<Scalar>(part, static_cast<std::int64_t>(k), of_part);
                for (std::size_t i = 0; i < next.size(); ++i) {
                    next[i] = next[i] + of_part[i] * column[k];
                }
            }
        }
        column.swap(next);
    }
}

/// use(element) for every element that may be other than 0, and end_line() behind each row or column of them. @pre no low_rank
template <class Scalar, class Use, class End>
void for_each_element(const leaf& f, const Use& use, const End& end_line) {
    if (has_few_elements(f)) {
        for_each_stored<Scalar>(f, [&use](std::int64_t, std::int64_t, const Scalar& value) { use(value); });
        end_line();
        return;
    }
    const matrix_view view = f.view();
    if (f.kind() == factor_kind::callback) {
        std::vector<Scalar> column;
        for (std::int64_t j = 0; j < view.cols; ++j) {
            write_column<Scalar>(f, j, column);
            for (const Scalar& value : column) {
                use(value);
            }
            end_line();
        }
        return;
    }
    const auto size_of = [](std::int64_t stride) { return stride < 0 ? -stride : stride; };
    const bool by_rows = size_of(view.row_stride) > size_of(view.col_stride);
    const std::int64_t lines = by_rows ? view.rows : view.cols;
    const std::int64_t length = by_rows ? view.cols : view.rows;
    for (std::int64_t line = 0; line < lines; ++line) {
        for (std::int64_t at = 0; at < length; ++at) {
            use(kron_node<Scalar>::element(f, view, by_rows ? line : at, by_rows ? at : line));
        }
        end_line();
    }
}

}  // namespace otimes::detail

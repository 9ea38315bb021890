// SPDX-License-Identifier: MIT
/// @file index_list.hpp
/// What K(rows, cols) takes for rows and columns: one index, or anything with a size and integers in it (std::vector, std::array, std::span, an Eigen
/// vector of integers). A mask of bool is none: its values are not the indices that are meant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/expr/messages.hpp>
#include <otimes/program/errors.hpp>

namespace otimes::detail {

template <class List>
concept index_list = std::is_integral_v<List> || requires(const List& list) {
    list.size();
    requires std::is_integral_v<std::remove_cvref_t<decltype(list[0])>> &&
        !std::is_same_v<std::remove_cvref_t<decltype(list[0])>, bool>;
};

/// The indices of a list. `check` sees each and throws before anything is allocated: what computes its elements may have any number of them.
template <class List, class Check>
std::vector<std::int64_t> indices_of(const List& list, const Check& check) {
    std::vector<std::int64_t> result;
    if constexpr (std::is_integral_v<List>) {
        check(static_cast<std::int64_t>(list));
        result.push_back(static_cast<std::int64_t>(list));
    } else {
        using position = decltype(list.size());
        for (position i = 0; i < list.size(); ++i) {
            check(static_cast<std::int64_t>(list[i]));
        }
        result.reserve(static_cast<std::size_t>(list.size()));
        for (position i = 0; i < list.size(); ++i) {
            result.push_back(static_cast<std::int64_t>(list[i]));
        }
    }
    return result;
}

/// What K.block(i, j, r, c) and its other names select; none: all. Where all is selected its rows are listed.
struct block_indices {
    std::optional<std::vector<std::int64_t>> rows;
    std::optional<std::vector<std::int64_t>> cols;
};
/// @throws shape_error a block that reaches outside the product, which is rows x cols
inline block_indices indices_of_block(std::int64_t i, std::int64_t j, std::int64_t r, std::int64_t c, std::int64_t rows,
                                      std::int64_t cols) {
    const auto fits = [](std::int64_t first, std::int64_t count, std::int64_t extent) {
        return first >= 0 && count >= 0 && first <= extent && count <= extent - first;
    };
    if (!fits(i, r, rows) || !fits(j, c, cols)) {
        throw shape_error("otimes: K.block(" + std::to_string(i) + ", " + std::to_string(j) + ", " + std::to_string(r) +
                          ", " + std::to_string(c) + "): it reaches outside the product, which is " +
                          shape_text(rows, cols) + ".");
    }
    block_indices result;
    const auto list = [](std::optional<std::vector<std::int64_t>>& to, std::int64_t first, std::int64_t count) {
        to.emplace(static_cast<std::size_t>(count));
        std::iota(to->begin(), to->end(), first);
    };
    if (c != cols) {
        list(result.cols, j, c);
    }
    if (r != rows || !result.cols) {
        list(result.rows, i, r);
    }
    return result;
}

}  // namespace otimes::detail

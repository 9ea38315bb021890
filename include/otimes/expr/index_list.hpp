// SPDX-License-Identifier: MIT
/// @file index_list.hpp
/// What K(rows, cols) takes for rows and columns: one index, or anything with a size and integers in it (std::vector, std::array, std::span, an Eigen
/// vector of integers). A mask of bool is none: its values are not the indices that are meant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

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

}  // namespace otimes::detail

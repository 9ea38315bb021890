// SPDX-License-Identifier: MIT
/// @file scatter_shape.hpp
/// How the output of a plan is divided among several matrices: what the last pass of a distributed stage stores straight into the
/// memory of the ranks that take it next (distributed_plan.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace otimes {

namespace planning {
/// Portions of which a receiver is told at most; its GPU keeps a word for each and each sender.
inline constexpr std::int32_t most_portions = 64;
}  // namespace planning

/// A row-major output [.., outer, between, inner, below] of which one of outer and inner is cut: index c of it belongs to the matrix k with
/// first[k] <= c < first[k + 1]. That matrix is row-major too, [.., outer, between, inner, below] with first[k + 1] - first[k] indices of
/// the mode that is cut and `whole` of the other one, of which this output has those from `whole_first` on.
struct scatter_shape {
    std::int64_t outer = 1;
    std::int64_t between = 1;
    std::int64_t inner = 1;
    std::int64_t below = 1;
    bool cuts_inner = false;
    std::int64_t whole = 1;
    std::int64_t whole_first = 0;
    std::vector<std::int64_t> first{0, 1};
    friend bool operator==(const scatter_shape&, const scatter_shape&) = default;

    /// Elements that, wherever a multiple of them ends, end at a stretch of the output that follows itself in one matrix.
    [[nodiscard]] std::int64_t together() const {
        std::int64_t indices = inner;
        for (std::size_t k = 0; cuts_inner && k < first.size(); ++k) {
            indices = std::gcd(indices, first[k]);
        }
        return indices * below;
    }
};

}  // namespace otimes

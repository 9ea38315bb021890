// SPDX-License-Identifier: MIT
/// @file refinement.hpp
/// The coarsest split of square Kronecker products that all terms of a sum can take.
///
/// A factor of order n that stands behind factors of orders that multiply to d reaches from d to d n. A cut is an order at which a factor
/// begins or ends. Identities may be cut wherever the orders divide, other factors nowhere; so the cuts are those of all factors but
/// identities, and the split exists where each cut divides the next one and none lies inside a factor:
///
///     kron(A, I_6) + kron(I_9, B)       A 3 x 3, B 2 x 2: cuts 1, 3, 9, 18, positions of orders 3, 3, 2
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::detail {

/// Identities of the orders of that split, in order; nothing where there is none. Factors of order 1 get a position of their own.
/// @pre all factors are square, all terms of one order
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<factor_list> common_refinement(
    const std::vector<const factor_list*>& terms) {
    using reach = std::pair<std::int64_t, std::int64_t>;
    std::vector<reach> kept;  // of the factors that must not be cut
    std::vector<std::int64_t> cuts{1};
    std::vector<std::int64_t>
        single;  // where factors of order 1 stand that are no identities, as often as they do in a term
    for (const factor_list* const factors : terms) {
        std::int64_t at = 1;
        std::vector<std::int64_t> here;
        for (const leaf& f : *factors) {
            const std::int64_t end = at * f.rows();
            if (!f.is_identity()) {
                cuts.insert(cuts.end(), {at, end});
                kept.emplace_back(at, end);
                if (f.rows() == 1) {
                    here.push_back(at);
                }
            }
            at = end;
        }
        cuts.push_back(at);
        for (const std::int64_t place : here) {
            if (std::count(single.begin(), single.end(), place) < std::count(here.begin(), here.end(), place)) {
                single.push_back(place);
            }
        }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    factor_list result;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        for (auto unit = std::count(single.begin(), single.end(), cuts[i]); unit > 0; --unit) {
            result.push_back(leaf::identity(1));
        }
        if (i + 1 == cuts.size()) {
            break;
        }
        if (cuts[i + 1] % cuts[i] != 0) {
            return std::nullopt;
        }
        const auto is_cut = [cut = cuts[i]](const reach& r) { return r.first < cut && cut < r.second; };
        if (std::any_of(kept.begin(), kept.end(), is_cut)) {
            return std::nullopt;
        }
        result.push_back(leaf::identity(cuts[i + 1] / cuts[i]));
    }
    return result;
}

}  // namespace otimes::detail

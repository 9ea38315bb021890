// SPDX-License-Identifier: MIT
/// @file ordering.hpp
/// In which order the modes of a chain are contracted. Contract steps on different modes commute, so the order is free and
/// decides the number of multiply-adds: a mode that shrinks should shrink early.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Sorts [first, last), a few elements, and keeps the order of equals. std::stable_sort does the same in a dozen functions
/// per type, which every file that evaluates an expression would compile.
template <class Element, class Before>
void sort_few(Element* first, Element* last, const Before& before) {
    for (Element* next = first; next < last; ++next) {
        Element moved = *next;
        Element* place = next;
        for (; place != first && before(moved, place[-1]); --place) {
            *place = place[-1];
        }
        *place = moved;
    }
}

/// Shape of one factor: P rows (extent before) and Q columns (extent after).
struct factor_shape {
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    friend bool operator==(const factor_shape&, const factor_shape&) = default;
};

/// True when contracting `a` before `b` takes strictly fewer multiply-adds than the other way round.
///
/// With K elements before: a then b costs K (Qa + Qa Qb / Pa) multiply-adds, b then a costs K (Qb + Qa Qb / Pb); dividing
/// by K Qa Qb, a goes first exactly when 1/Qa - 1/Pa > 1/Qb - 1/Pb. Multiplied out,
///
///     (Pa - Qa) Pb Qb > (Pb - Qb) Pa Qa
///
/// which is exact in 128 bits: P Q is the element count of a factor and fits in 63 bits. Extents are at least 1.
/// @post a strict weak order; sorting by it is optimal (tests/plan/ordering.cpp compares all permutations).
constexpr bool contracts_before(const factor_shape& a, const factor_shape& b) noexcept {
    const wide_product gain_of_a = multiply_wide(a.p_extent - a.q_extent, b.p_extent * b.q_extent);
    const wide_product gain_of_b = multiply_wide(b.p_extent - b.q_extent, a.p_extent * a.q_extent);
    return gain_of_a > gain_of_b;
}

/// The order of least multiply-adds, as positions in `shapes`. Ties keep the order given (outermost in memory first: its
/// inner run is the longest, so its vectors load directly). Cost: a sort.
OTIMES_COLD inline std::vector<std::int32_t> cheapest_order(std::span<const factor_shape> shapes) {
    std::vector<std::int32_t> order(shapes.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = static_cast<std::int32_t>(i);
    }
    sort_few(order.data(), order.data() + order.size(), [&](std::int32_t a, std::int32_t b) {
        return contracts_before(shapes[static_cast<std::size_t>(a)], shapes[static_cast<std::size_t>(b)]);
    });
    return order;
}

/// Flops of contracting `shapes` in `order`, as a double (an estimate may exceed 2^63): sum over the steps of
/// 2 * weight * rest * P * Q with rest = elements of all other modes at that moment, `free_count` of them free.
OTIMES_COLD inline double chain_flops(std::span<const factor_shape> shapes, std::span<const std::int32_t> order,
                                      double free_count, std::int64_t multiply_add_weight) {
    double elements = free_count;
    for (const factor_shape& s : shapes) {
        elements *= static_cast<double>(s.p_extent);
    }
    double flops = 0;
    for (const std::int32_t i : order) {
        const factor_shape& s = shapes[static_cast<std::size_t>(i)];
        flops += 2.0 * static_cast<double>(multiply_add_weight) * elements * static_cast<double>(s.q_extent);
        elements = elements / static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent);
    }
    return flops;
}

}  // namespace otimes::planning

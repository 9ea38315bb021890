// SPDX-License-Identifier: MIT
/// @file step_cost.hpp
/// What one step of a program costs by its kind: flops and operand bytes, before any decision of the planner. A factor with
/// structure costs what it costs: a diagonal one multiplication per element, a permutation none, a sparse or triangular matrix
/// two flops per stored element and fibre.
#pragma once

#include <cstdint>

#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Elements of an operand that exist: a mode of stride 0 in an operand is a broadcast, a sparse factor has what it stores.
OTIMES_COLD inline std::int64_t stored_elements(const program& source, std::int32_t id) {
    const tensor& t = source.at(id);
    if (t.kind == factor_kind::sparse || t.kind == factor_kind::triangular || t.kind == factor_kind::self_adjoint) {
        return t.stored;
    }
    if (t.kind == factor_kind::callback) {
        return 0;
    }
    std::int64_t count = 1;
    for (const mode& m : source.modes_of(id)) {
        count *= t.role == tensor_role::factor && m.stride == 0 && m.extent > 1 ? 1 : m.extent;
    }
    return count;
}

/// Bytes of an operand; a sparse one has an index of 4 bytes beside each element.
OTIMES_COLD inline std::int64_t operand_bytes(const program& source, std::int32_t id) {
    const tensor& t = source.at(id);
    return stored_elements(source, id) * (t.scalar_bytes + (t.kind == factor_kind::sparse ? 4 : 0));
}

/// Flops of a step: multiply and add count 2, a complex multiply-add 8, a complex multiplication 6.
OTIMES_COLD inline std::int64_t step_flops(const program& source, const step& s) {
    if (s.out < 0 || s.in < 0) {
        return 0;
    }
    const bool complex = is_complex(source.at(s.out).type);
    const std::int64_t weight = 2 * multiply_add_weight(source.at(s.out).type);
    const std::int64_t in = element_count(source, s.in);
    const std::int64_t out = element_count(source, s.out);
    const std::int64_t extent =
        s.mode >= 0 ? source.modes_of(s.in)[static_cast<std::size_t>(s.mode)].extent : std::int64_t{1};
    const std::int64_t fibres = extent == 0 ? 0 : in / extent;
    switch (s.kind) {
        case step_kind::contract:
        case step_kind::callback: {
            const factor_kind kind = s.factor < 0 ? factor_kind::identity : source.at(s.factor).kind;
            if (kind == factor_kind::identity) {
                return 0;
            }
            if (kind == factor_kind::sparse || kind == factor_kind::callback || kind == factor_kind::triangular) {
                return saturating_multiply(weight * fibres, source.at(s.factor).stored);
            }
            return saturating_multiply(weight * out, kind == factor_kind::diagonal ? 1 : extent);
        }
        case step_kind::solve: return saturating_multiply(weight * fibres, extent * (extent + 1) / 2);
        case step_kind::scale: return s.factor < 0 ? 0 : (complex ? 6 : 1) * out;
        case step_kind::reduce:
            return s.variant == step_variant::gram ? saturating_multiply(weight * out, fibres) : weight * in;
        case step_kind::gather:
        case step_kind::scatter:
        case step_kind::accumulate: return 0;
    }
    return 0;
}

}  // namespace otimes::planning

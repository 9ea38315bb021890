// SPDX-License-Identifier: MIT
/// @file signature.hpp
/// What differs between two programs, in words, for the error of a plan that is run on another signature.
#pragma once

#include <cstddef>
#include <string>

#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

namespace detail {

OTIMES_COLD inline std::string tensor_name(const program& p, std::size_t id) {
    const tensor& t = p.tensors[id];
    std::size_t position = 0;
    std::size_t total = 0;
    for (std::size_t k = 0; k < p.tensors.size(); ++k) {
        if (p.tensors[k].role == t.role) {
            ++total;
            position += k <= id ? 1u : 0u;
        }
    }
    switch (t.role) {
        case tensor_role::input: return total == 1 ? "X" : "X" + std::to_string(position);
        case tensor_role::factor: return "factor " + std::to_string(position);
        case tensor_role::output: return "the destination";
        case tensor_role::temporary: return "intermediate " + std::to_string(position);
    }
    return "operand";
}

OTIMES_COLD inline std::string modes_text(const program& p, std::size_t id, bool strides) {
    std::string text = "[";
    for (const mode& m : p.modes_of(static_cast<std::int32_t>(id))) {
        text += (text.size() == 1 ? "" : ", ") + std::to_string(strides ? m.stride : m.extent);
    }
    return text + "]";
}

}  // namespace detail

/// One sentence that names the first difference between the program that a plan was made for and the one it was given;
/// empty when they are equal.
OTIMES_COLD inline std::string describe_difference(const program& planned, const program& given) {
    if (planned == given) {
        return {};
    }
    if (planned.steps.size() != given.steps.size() || planned.tensors.size() != given.tensors.size()) {
        return "the plan has " + std::to_string(planned.steps.size()) + " steps on " +
               std::to_string(planned.tensors.size()) + " tensors, the expression " +
               std::to_string(given.steps.size()) + " on " + std::to_string(given.tensors.size());
    }
    for (std::size_t id = 0; id < planned.tensors.size(); ++id) {
        const tensor& a = planned.tensors[id];
        const tensor& b = given.tensors[id];
        const std::string name = detail::tensor_name(given, id);
        if (a.type != b.type) {
            return name + " is " + std::string(to_string(b.type)) + ", planned was " + std::string(to_string(a.type));
        }
        if (a.space != b.space) {
            return name + " is in " + std::string(to_string(b.space)) + " memory, planned was " +
                   std::string(to_string(a.space)) + " memory";
        }
        for (const bool strides : {false, true}) {
            const std::string planned_text = detail::modes_text(planned, id, strides);
            const std::string given_text = detail::modes_text(given, id, strides);
            if (planned_text != given_text) {
                return name + " has " + (strides ? "strides " : "extents ") + given_text + ", planned were " +
                       planned_text;
            }
        }
        if (!(a.kind == b.kind && a.conjugate == b.conjugate)) {
            return name + " is of another kind or conjugated differently";
        }
        if (a.stored != b.stored) {
            return name + (b.kind == factor_kind::callback ? " takes " : " stores ") + std::to_string(b.stored) +
                   (b.kind == factor_kind::callback ? " multiply-adds" : " elements") + ", planned were " +
                   std::to_string(a.stored);
        }
        if (a.scalar_bytes != b.scalar_bytes) {
            return name + " has elements of " + std::to_string(b.scalar_bytes) + " bytes, planned were " +
                   std::to_string(a.scalar_bytes);
        }
        if (a.alignment_log2 != b.alignment_log2) {
            return name + " is aligned to " + std::to_string(1 << b.alignment_log2) + " bytes, planned were " +
                   std::to_string(1 << a.alignment_log2);
        }
    }
    for (std::size_t k = 0; k < planned.steps.size(); ++k) {
        if (planned.steps[k].add != given.steps[k].add) {
            return given.steps[k].add ? "the expression adds to the destination, the plan overwrites it"
                                      : "the expression overwrites the destination, the plan adds to it";
        }
        if (planned.steps[k].kind != given.steps[k].kind || planned.steps[k].variant != given.steps[k].variant) {
            return "step " + std::to_string(k + 1) +
                   " applies its factor in another way, as a permutation that is inverted or the other triangle";
        }
    }
    return "the steps are connected differently";
}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file operator_leaf.hpp
/// An operator that applies itself (applied.hpp) as a factor, so that it can be a term of a sum and a part of a product. Beside the
/// protocol there it has
///
///     entry(i, j)             an element, indices not checked
///     check()                 throws shape_error where what it is made of has changed its shape and does not fit any more
///     reads(memory)           may what it is made of lie in that memory
///     multiply_adds()         of a product with one column
///     has_functions(),        if it has them: does it pay to ask for a column,
///     write_column(j, out)    and the elements of that
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/structured.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/overlap.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// The operator over its own scalar, in a node over `Scalar`. Its shape is followed. Lifetime: a copy of the operator, and of its
/// transpose; per factor, as in kron. `name`: what it is, for messages; a literal.
template <class Scalar, class Operator>
leaf operator_leaf(const Operator& op, const char* name) {
    using value_type = typename Operator::Scalar;
    struct kept_operator {
        callback_operand operand;
        Operator op;
        Operator transposed;
    };
    enable_structure<Scalar>();
    auto kept = std::make_shared<kept_operator>(kept_operator{{}, op, op.transpose()});
    callback_operand& operand = kept->operand;
    operand.object = kept.get();
    operand.name = name;
    operand.together = 64;  // what it computes of its factors serves all columns
    operand.apply = [](const void* object, bool transposed, const void* in, void* out, std::int64_t count) {
        const auto& k = *static_cast<const kept_operator*>(object);
        const Operator& f = transposed ? k.transposed : k.op;
        const Eigen::Map<const dense_matrix<value_type>> x(static_cast<const value_type*>(in), f.cols(),
                                                           static_cast<Eigen::Index>(count));
        Eigen::Map<dense_matrix<value_type>> y(static_cast<value_type*>(out), f.rows(),
                                               static_cast<Eigen::Index>(count));
        f.template apply<true>(y, x, false, value_type(1));
    };
    operand.element = [](const void* object, std::int64_t i, std::int64_t j, void* out) {
        const auto& k = *static_cast<const kept_operator*>(object);
        *static_cast<value_type*>(out) = k.op.entry(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j));
    };
    if constexpr (requires(value_type * out) { op.write_column(Eigen::Index(0), out); }) {
        if (op.has_functions()) {
            operand.column = [](const void* object, bool transposed, std::int64_t j, void* out) {
                const auto& k = *static_cast<const kept_operator*>(object);
                (transposed ? k.transposed : k.op)
                    .write_column(static_cast<Eigen::Index>(j), static_cast<value_type*>(out));
            };
        }
    }
    operand.reads = [](const void* object, const strided_memory& written) {
        return static_cast<const kept_operator*>(object)->op.reads(written);
    };
    operand.multiply_adds = [](const void* object) {
        return static_cast<const kept_operator*>(object)->op.multiply_adds();
    };
    const auto look = [](const void* object) {
        const auto& k = *static_cast<const kept_operator*>(object);
        k.op.check();
        return matrix_view{&k.operand, k.op.rows(), k.op.cols(), 1, 0};
    };
    const void* const object = kept.get();
    leaf result = leaf::structured(factor_kind::callback, object, look, std::move(kept));
    result.set_real_elements(detail::is_complex_scalar<Scalar> && !detail::is_complex_scalar<value_type>);
    return result;
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

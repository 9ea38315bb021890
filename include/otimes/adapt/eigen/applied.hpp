// SPDX-License-Identifier: MIT
/// @file applied.hpp
/// op * X and X * op as lazy expressions, for an operator that applies itself by code of its own instead of by the steps of a
/// program. The operator's protocol is
///
///     Scalar, rows(), cols()
///     check_operand<FromLeft>(rows, cols)           throws shape_error for an X of that shape
///     factors_read(view, element_bytes)             may what it is made of lie in that memory
///     apply<FromLeft>(destination, x, add, scale)   destination (+)= scale * op * x; right shape, no overlap
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// op * x, or x * op, where x has the operator's scalar and lies in memory.
template <class Operator, class Matrix, bool FromLeft>
struct applied {
    using scalar_type = typename Operator::Scalar;
    static constexpr int rows_at_compile_time = FromLeft ? Eigen::Dynamic : int(bare<Matrix>::RowsAtCompileTime);
    static constexpr int cols_at_compile_time = FromLeft ? int(bare<Matrix>::ColsAtCompileTime) : Eigen::Dynamic;
    static constexpr bool row_major = rows_at_compile_time == 1;
    static constexpr bool holds_dense_term = false;

    Operator op;
    held<Matrix> x;

    [[nodiscard]] std::int64_t rows() const { return FromLeft ? op.rows() : x.rows(); }
    [[nodiscard]] std::int64_t cols() const { return FromLeft ? x.cols() : op.cols(); }
    void check() const { op.template check_operand<FromLeft>(x.rows(), x.cols()); }
    /// The parts of an operator are applied one after the other; only a destination that no operand can see is safe.
    [[nodiscard]] bool reads(const matrix_view& written, std::int64_t bytes) const {
        return overlap(memory_of(view_of(x), static_cast<std::int64_t>(sizeof(scalar_type))),
                       memory_of(written, bytes)) ||
               op.factors_read(written, bytes);
    }
    template <class Destination>
    void evaluate(Destination& destination, bool add, const scalar_type& scale) const {
        op.template apply<FromLeft>(destination, x, add, scale);
    }
    template <class Kept>
    void lower(lowering<scalar_type>& low, const matrix_view& y, bool add, const scalar_type& scale, Kept& kept) const {
        using plain = Eigen::Matrix<scalar_type, Eigen::Dynamic, Eigen::Dynamic>;
        auto value = std::make_shared<plain>(rows(), cols());
        evaluate(*value, false, scalar_type(1));
        low.add_dense(view_of(*value), y, scale, add);
        low.target().noted.operator_apart = true;
        kept.push_back(std::shared_ptr<const void>(std::move(value)));
    }
};

/// op * x (`FromLeft`) or x * op. An x that is computed, or of another scalar, is evaluated here, once; the operator is cast
/// where x is complex and it is not. @throws shape_error
template <bool FromLeft, class Operator, class Matrix>
auto apply(const Operator& op, Matrix&& x) {
    using type = bare<Matrix>;
    using scalar = typename Operator::Scalar;
    if constexpr (std::is_same_v<scalar, scalar_of<Matrix>> && has_direct_access<type>) {
        applied<Operator, Matrix, FromLeft> node{op, std::forward<Matrix>(x)};
        node.check();
        return lazy<decltype(node)>(std::move(node));
    } else {
        static_assert(require_same_line<Matrix, scalar>());
        using common = detail::common_scalar<scalar, scalar_of<Matrix>>;
        if constexpr (std::is_same_v<scalar, common>) {
            using plain = Eigen::Matrix<scalar, type::RowsAtCompileTime, type::ColsAtCompileTime,
                                        type::PlainObject::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor,
                                        type::MaxRowsAtCompileTime, type::MaxColsAtCompileTime>;
            return apply<FromLeft>(op, plain(x.template cast<scalar>()));
        } else {
            return apply<FromLeft>(op.template cast<common>(), std::forward<Matrix>(x));
        }
    }
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

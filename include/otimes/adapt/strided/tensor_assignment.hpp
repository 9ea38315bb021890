// SPDX-License-Identifier: MIT
/// @file tensor_assignment.hpp
/// `C = einsum<..>(A, B)` for a tensor C of Eigen that exists: an Eigen::Tensor, which gets the shape of the result, or an Eigen::TensorMap. Their
/// assignment takes anything and asks these two classes of it. Declared here, so that Eigen's tensors are included by who uses them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <otimes/adapt/strided/view.hpp>
#include <otimes/exec/target.hpp>

namespace Eigen {
struct DefaultDevice;
template <typename LeftXprType, typename RightXprType>
class TensorAssignOp;
template <typename Derived, typename Device>
struct TensorEvaluator;
}  // namespace Eigen

namespace otimes {
inline namespace OTIMES_TARGET {

/// An expression that writes itself into a view of memory, whatever lies there.
template <class Expression>
concept writes_into_tensors = requires(const Expression& e) {
    Expression::order;
    e.extents();
    e.derived();
    e.refuse_operands(nullptr, 0);
};

}  // namespace OTIMES_TARGET
}  // namespace otimes

namespace Eigen {

/// Tensor and expression. @throws alias_error here, since Eigen gives the tensor its shape, and new memory, before it is written.
template <typename Tensor, typename Expression>
requires otimes::writes_into_tensors<Expression>
class TensorAssignOp<Tensor, const Expression> {
public:
    using Index = typename Tensor::Index;
    using Scalar = typename Tensor::Scalar;

    TensorAssignOp(Tensor& to, const Expression& from) : to_(to), from_(from) {
        from.refuse_operands(to.data(),
                             static_cast<std::int64_t>(to.size()) * static_cast<std::int64_t>(sizeof(Scalar)));
    }
    [[nodiscard]] Tensor& to() const { return to_; }
    [[nodiscard]] const Expression& from() const { return from_; }

private:
    Tensor& to_;
    const Expression& from_;
};

/// Writes the whole result where Eigen would evaluate what is nested in an expression, and leaves it no entry to write.
/// @throws shape_error a TensorMap of another shape
template <typename Tensor, typename Expression>
requires otimes::writes_into_tensors<Expression>
struct TensorEvaluator<const TensorAssignOp<Tensor, const Expression>, DefaultDevice> {
    using XprType = TensorAssignOp<Tensor, const Expression>;
    using Dimensions = typename Tensor::Dimensions;
    enum { IsAligned = false, PacketAccess = false, BlockAccess = false, PreferBlockAccess = false, RawAccess = false };

    TensorEvaluator(const XprType& assignment, const DefaultDevice&) : assignment_(assignment) {
        static_assert(static_cast<std::size_t>(Tensor::NumDimensions) == Expression::order,
                      "otimes: einsum: the destination has another number of indices than the result.");
        if constexpr (requires { dimensions_[0] = typename Tensor::Index(0); }) {  // not those of a TensorFixedSize
            for (std::size_t k = 0; k < Expression::order; ++k) {
                dimensions_[k] = static_cast<typename Tensor::Index>(assignment.from().extent(k));
            }
        }
    }
    [[nodiscard]] const Dimensions& dimensions() const { return dimensions_; }
    bool evalSubExprsIfNeeded(const void*) {
        assignment_.from().assign_to(otimes::view(assignment_.to()));
        return false;
    }
    void evalScalar(typename Tensor::Index) {}
    void cleanup() {}

private:
    const XprType& assignment_;
    Dimensions dimensions_;
};

}  // namespace Eigen

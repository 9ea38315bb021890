// SPDX-License-Identifier: MIT
/// @file mode_products.hpp
/// Products along the modes of a strided tensor, the common form of batches (batched.hpp), contractions (einsum.hpp) and the
/// BLAS-like calls (tkron.hpp):
///
///     Y[.., q, ..] (+)= alpha * sum_p op(X)[.., p, ..] * F[.., p, q]        one contract step per factor
///
/// An axis without a factor is a free index; a batch is one more. A factor that differs from item to item has a stride along
/// the axes of the batch; 0: all items share it. Strides of X, Y and F are independent, so no operand is ever transposed.
///
/// Shape and lifetime: plain pointers and strides in elements, borrowed; the caller has checked shapes and overlap.
/// Cost: lowering allocates nothing once the program's vectors have grown.
#pragma once

#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>

#include <otimes/expr/scalar.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/program.hpp>

namespace otimes::detail {

/// One index of X and Y. The extents differ where a factor replaces the mode.
struct product_axis {
    std::int64_t extent_in = 1;
    std::int64_t extent_out = 1;
    std::int64_t stride_in = 0;
    std::int64_t stride_out = 0;
};

/// F along one axis; element (p, q) of an item at p * p_stride + q * q_stride.
template <class Scalar>
struct axis_factor {
    const Scalar* data = nullptr;
    std::int32_t axis = 0;
    std::int64_t p_stride = 0;
    std::int64_t q_stride = 0;
    bool conjugate = false;
    memory_space space = memory_space::host;
    inline_vector<std::int64_t, 8> item_strides;  ///< per axis; empty: shared by all items
};

/// See the file comment.
template <class Scalar>
struct mode_products {
    inline_vector<product_axis, 8> axes;
    inline_vector<axis_factor<Scalar>, 4> factors;
    const Scalar* x = nullptr;
    Scalar* y = nullptr;
    Scalar alpha = Scalar(1);
    bool conjugate_x = false;
    bool add = false;
    memory_space space = memory_space::host;  ///< of X and Y; a shared factor may be in host memory where they are not

    /// True where a factor differs along this axis.
    [[nodiscard]] bool is_item_axis(std::size_t axis) const {
        for (const axis_factor<Scalar>& f : factors) {
            if (axis < f.item_strides.size() && f.item_strides[axis] != 0) {
                return true;
            }
        }
        return false;
    }
    [[nodiscard]] bool has_item_axis() const {
        for (std::size_t k = 0; k < axes.size(); ++k) {
            if (is_item_axis(k)) {
                return true;
            }
        }
        return false;
    }

    /// What one item needs: without the axes along which a factor differs. Addresses are those of the first item.
    [[nodiscard]] mode_products one_item() const {
        mode_products item;
        inline_vector<std::int32_t, 8> renumbered;
        for (std::size_t k = 0; k < axes.size(); ++k) {
            renumbered.push_back(static_cast<std::int32_t>(item.axes.size()));
            if (!is_item_axis(k)) {
                item.axes.push_back(axes[k]);
            }
        }
        for (const axis_factor<Scalar>& f : factors) {
            axis_factor<Scalar> shared = f;
            shared.axis = renumbered[static_cast<std::size_t>(f.axis)];
            shared.item_strides.clear();
            item.factors.push_back(std::move(shared));
        }
        item.x = x;
        item.y = y;
        item.alpha = alpha;
        item.conjugate_x = conjugate_x;
        item.add = add;
        item.space = space;
        return item;
    }

    /// Writes the program and its bindings: X is bound first, then the factors in their order, then Y. This object must
    /// outlive the use of the bindings.
    void lower(program& target, bindings& bound) const {
        target.clear();
        bound.clear();
        std::int32_t current = add_operand(target, bound, tensor_role::input, x, space);
        target.tensors.back().conjugate = conjugate_x && is_complex_scalar<Scalar>;
        for (const product_axis& a : axes) {
            target.add_mode(a.extent_in, a.stride_in);
        }
        const auto push_step = [&](step_kind kind, std::int32_t factor, std::int32_t axis) {
            step s;
            s.kind = kind;
            s.in = current;
            s.factor = factor;
            s.mode = axis;
            target.steps.push_back(s);
        };
        inline_vector<bool, 8> done;  // axes whose factor has been applied
        for (std::size_t k = 0; k < axes.size(); ++k) {
            done.push_back(false);
        }
        const auto add_temporary = [&] {
            target.steps.back().out = target.add_tensor(make_tensor(tensor_role::temporary));
            for (std::size_t k = 0; k < axes.size(); ++k) {
                target.add_mode(done[k] ? axes[k].extent_out : axes[k].extent_in, 0);
            }
            current = target.steps.back().out;
        };
        const bool promote = target.tensors.back().conjugate && !factors.empty();
        if (promote) {  // conjugation is a step of its own
            push_step(step_kind::accumulate, -1, -1);
            add_temporary();
        }
        for (std::size_t k = 0; k < factors.size(); ++k) {
            const axis_factor<Scalar>& f = factors[k];
            const std::int32_t matrix = add_operand(target, bound, tensor_role::factor, f.data, f.space);
            target.tensors.back().conjugate = f.conjugate && is_complex_scalar<Scalar>;
            if (!f.item_strides.empty()) {
                for (std::size_t a = 0; a < axes.size(); ++a) {
                    if (a != static_cast<std::size_t>(f.axis)) {
                        target.add_mode(done[a] ? axes[a].extent_out : axes[a].extent_in, f.item_strides[a]);
                    }
                }
            }
            const product_axis& on = axes[static_cast<std::size_t>(f.axis)];
            target.add_mode(on.extent_in, f.p_stride);
            target.add_mode(on.extent_out, f.q_stride);
            push_step(step_kind::contract, matrix, f.axis);
            done[static_cast<std::size_t>(f.axis)] = true;
            if (k + 1 < factors.size()) {
                add_temporary();
            }
        }
        if (factors.empty()) {
            push_step(step_kind::accumulate, -1, -1);
        }
        const std::int32_t result = add_operand(target, bound, tensor_role::output, y, space);
        for (const product_axis& a : axes) {
            target.add_mode(a.extent_out, a.stride_out);
        }
        step& last = target.steps.back();
        last.out = result;
        last.add = add;
        last.scalar = target.scalar_count++;
        if constexpr (requires { static_cast<bool>(alpha == Scalar(1)); }) {
            if (last.scalar < 64 && alpha == Scalar(1)) {
                target.noted.unit_scalars |= std::uint64_t{1} << last.scalar;
            }
        }
        if constexpr (dtype_of<Scalar>() == dtype::other) {
            bound.opaque_scalars.push_back(&alpha);
        } else if constexpr (is_complex_scalar<Scalar>) {
            bound.scalars.push_back({static_cast<double>(alpha.real()), static_cast<double>(alpha.imag())});
        } else {
            bound.scalars.push_back({static_cast<double>(alpha), 0.0});
        }
    }

private:
    static tensor make_tensor(tensor_role role) {
        tensor t;
        t.type = dtype_of<Scalar>();
        t.role = role;
        t.scalar_bytes = sizeof(Scalar);
        constexpr std::size_t aligned = alignof(Scalar) < 64 ? alignof(Scalar) : 64;
        t.alignment_log2 = static_cast<std::uint8_t>(std::countr_zero(aligned));
        return t;
    }
    static std::int32_t add_operand(program& target, bindings& bound, tensor_role role, const Scalar* data,
                                    memory_space where) {
        const std::int32_t id = target.add_tensor(make_tensor(role));
        target.tensors.back().space = where;
        target.tensors.back().binding = static_cast<std::int32_t>(bound.pointers.size());
        bound.pointers.push_back(const_cast<Scalar*>(data));
        return id;
    }
};

}  // namespace otimes::detail

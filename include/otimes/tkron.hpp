// SPDX-License-Identifier: MIT
/// @file tkron.hpp
/// Batched products of small matrices with vectors, matrices and 3-D arrays, in the manner of BLAS: pointers, leading
/// dimensions, ops, alpha and beta. The interface is that of Jhurani (2013), see docs/references.md; no Eigen is needed.
///
///     tkron1:  y[i]       = alpha * sum_p   op(A)[i, p] x[p]                                        + beta * y[i]
///     tkron2:  Y[i, j]    = alpha * sum_pq  op(A)[i, p] op(B)[j, q] op(X)[p, q]                     + beta * Y[i, j]
///     tkron3:  Y[i, j, k] = alpha * sum_pqr op(A)[i, p] op(B)[j, q] op(C)[k, r] X[p, q, r]          + beta * Y[i, j, k]
///
/// for every item of a batch; with vec stacking by columns, kron(op(B), op(A)) vec(X) and kron(op(C), op(B), op(A)) vec(X).
/// Everything is stored by columns: element (i, j) of a matrix at i + j * leading_stride, (i, j, k) of an array at i + j *
/// leading_stride + k * plane_stride, item b at b * batch_stride. op: as it is, transposed, or transposed and conjugated.
///
///     otimes::tkron2<double>({.how = otimes::op::transpose, .rows = m, .cols = p, .data = A, .leading_stride = p},
///                            {.rows = n, .cols = q, .data = B, .leading_stride = n},
///                            {.data = X, .leading_stride = p, .batch_stride = p * q},
///                            {.data = Y, .leading_stride = m, .batch_stride = m * n}, count, alpha, beta);
///
/// A factor with a batch_stride of its own differs from item to item; 0: all items share it (Jhurani's case).
/// Scalars: float, double and their complex types, and any other scalar by plain loops.
/// beta = 0 never reads Y. Cost: one program, planned once for each signature; beta other than 0 and 1 goes over Y once
/// more, a conjugated X over X once more.
/// Errors, before anything is written: shape_error for extents, strides and pointers; alias_error where Y shares memory with
/// an operand or an item of Y with another.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <otimes/adapt/strided/run_items.hpp>
#include <otimes/expr/mode_products.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {

/// What is taken of a stored matrix.
enum class op : std::uint8_t { none, transpose, adjoint };

/// A factor: op(stored matrix) is rows x cols. `leading_stride` 0: stored without gaps.
template <class Scalar>
struct tkron_factor {
    op how = op::none;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    const Scalar* data = nullptr;
    std::int64_t leading_stride = 0;
    std::int64_t batch_stride = 0;
};

/// X or Y. `leading_stride` and `plane_stride` 0: stored without gaps. `how` is for the X of tkron2 only.
template <class Scalar>
struct tkron_array {
    op how = op::none;
    Scalar* data = nullptr;
    std::int64_t leading_stride = 0;
    std::int64_t plane_stride = 0;
    std::int64_t batch_stride = 0;
};

namespace detail {

[[noreturn]] OTIMES_COLD inline void throw_tkron(int dimension, const std::string& what) {
    throw shape_error("otimes: tkron" + std::to_string(dimension) + ": " + what);
}

/// The elements of an operand, from its first one on.
struct element_range {
    const void* data = nullptr;
    std::int64_t last = -1;  ///< index of the last element; -1: none
    inline_vector<std::int64_t, 4> extents;
    inline_vector<std::int64_t, 4> strides;
};

/// An array with these extents and strides, of elements of `bytes` bytes. Throws where its last element lies beyond 2^63 - 1 bytes.
template <std::size_t Count>
element_range elements_of(int dimension, const char* name, const void* data, std::int64_t bytes,
                          const std::int64_t (&extents)[Count], const std::int64_t (&strides)[Count]) {
    element_range result;
    result.data = data;
    for (std::size_t k = 0; k < Count; ++k) {
        if (extents[k] == 0) {
            return result;
        }
    }
    std::int64_t last = 0;
    for (std::size_t k = 0; k < Count; ++k) {
        std::int64_t part = 0;
        if (!checked_multiply(extents[k] - 1, strides[k], part) || !checked_add(last, part, last) ||
            last >= (std::numeric_limits<std::int64_t>::max)() / bytes) {
            throw_tkron(dimension,
                        std::string(name) + " has an element beyond 2^63 - 1 bytes; extents and strides are 64-bit.");
        }
        result.extents.push_back(extents[k]);
        result.strides.push_back(strides[k]);
    }
    result.last = last;
    return result;
}

/// Do two operands share an element?
inline bool elements_meet(const element_range& a, const element_range& b, std::int64_t bytes) {
    const std::int64_t distance = reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data);
    if (a.last < 0 || b.last < 0 || distance >= (a.last + 1) * bytes || -distance >= (b.last + 1) * bytes) {
        return false;
    }
    index_differences differences;
    for (std::size_t k = 0; k < a.extents.size(); ++k) {
        differences.add(a.strides[k], 0, a.extents[k] - 1);
    }
    for (std::size_t k = 0; k < b.extents.size(); ++k) {
        differences.add(b.strides[k], 1 - b.extents[k], 0);
    }
    return distance % bytes != 0 || differences.reach(distance / bytes);
}
/// Do two items, along index 0, share an element? The elements of one item do not.
inline bool items_meet(const element_range& items) {
    if (items.last < 0 || items.extents[0] < 2) {
        return false;
    }
    index_differences differences;
    differences.add(items.strides[0], 1, items.extents[0] - 1);
    for (std::size_t k = 1; k < items.extents.size(); ++k) {
        differences.add(items.strides[k], 1 - items.extents[k], items.extents[k] - 1);
    }
    return differences.reach(0);
}

/// Checks the arguments and describes the product; Dimension 1, 2 or 3, factors[k] along axis k.
template <int Dimension, class Scalar>
mode_products<Scalar> describe_tkron(const tkron_factor<Scalar> (&factors)[static_cast<std::size_t>(Dimension)],
                                     const tkron_array<const Scalar>& x, const tkron_array<Scalar>& y,
                                     std::int64_t count, const Scalar& alpha) {
    constexpr const char* names[3] = {"A", "B", "C"};
    if (count < 0) {
        throw_tkron(Dimension, "a batch of " + std::to_string(count) + " items; the number must not be negative.");
    }
    if (y.how != op::none || (Dimension != 2 && x.how != op::none)) {
        throw_tkron(Dimension, "only the factors, and X of tkron2, can be transposed.");
    }
    mode_products<Scalar> result;
    result.x = x.data;
    result.y = y.data;
    result.alpha = alpha;
    result.conjugate_x = x.how == op::adjoint;

    const auto bytes = static_cast<std::int64_t>(sizeof(Scalar));
    // X and Y: axis 0 is the batch, axis k + 1 belongs to factor k.
    constexpr auto dimension = static_cast<std::size_t>(Dimension);
    std::int64_t in_extents[dimension + 1] = {count};
    std::int64_t out_extents[dimension + 1] = {count};
    for (std::size_t k = 0; k < dimension; ++k) {
        if (factors[k].rows < 0 || factors[k].cols < 0) {
            throw_tkron(Dimension, std::string("op(") + names[k] + ") is " + std::to_string(factors[k].rows) + " x " +
                                       std::to_string(factors[k].cols) + "; extents must not be negative.");
        }
        in_extents[k + 1] = factors[k].cols;
        out_extents[k + 1] = factors[k].rows;
    }
    const auto fill_strides = [&](const char* name, const auto& array, const std::int64_t* stored,
                                  std::int64_t* strides, bool written) {
        // the least strides, then those given
        std::int64_t least = 1;
        strides[1] = 1;
        const std::int64_t given[3] = {1, array.leading_stride, array.plane_stride};
        for (std::size_t k = 1; k < dimension; ++k) {
            const std::int64_t extent = stored[k] < 1 ? 1 : stored[k];
            if (!checked_multiply(k == 1 ? 1 : strides[k], extent, least)) {
                throw_tkron(Dimension, std::string(name) +
                                           " has an element beyond 2^63 - 1 bytes; extents and strides are "
                                           "64-bit.");
            }
            strides[k + 1] = given[k] == 0 ? least : given[k];
            if (strides[k + 1] < least) {
                throw_tkron(Dimension, std::string(k == 1 ? "the leading stride of " : "the plane stride of ") + name +
                                           " is " + std::to_string(given[k]) + ", but must be at least " +
                                           std::to_string(least) + ".");
            }
        }
        if (array.batch_stride < 0) {
            throw_tkron(Dimension, std::string("the batch stride of ") + name + " is " +
                                       std::to_string(array.batch_stride) + "; it must not be negative.");
        }
        strides[0] = array.batch_stride;
        std::int64_t extents[dimension + 1] = {count};
        std::int64_t steps[dimension + 1] = {strides[0]};
        std::int64_t reach = 1;  // of an item
        for (std::size_t k = 1; k <= dimension; ++k) {
            extents[k] = stored[k];
            steps[k] = strides[k];
        }
        const element_range range = elements_of(Dimension, name, array.data, bytes, extents, steps);
        if (range.last >= 0 && array.data == nullptr) {
            throw_tkron(Dimension, std::string(name) + " is a null pointer.");
        }
        if (written && items_meet(range)) {
            for (std::size_t k = 1; k <= dimension; ++k) {
                reach += (extents[k] - 1) * steps[k];
            }
            throw alias_error("otimes: tkron" + std::to_string(Dimension) +
                              ": the items of Y overlap: the batch stride is " + std::to_string(array.batch_stride) +
                              ", but an item reaches over " + std::to_string(reach) + " elements.");
        }
        return range;
    };
    std::int64_t stored_x[dimension + 1];
    for (std::size_t k = 0; k <= dimension; ++k) {
        stored_x[k] = in_extents[k];
    }
    const bool turned = x.how != op::none;
    if (turned) {
        stored_x[1] = in_extents[dimension];
        stored_x[dimension] = in_extents[1];
    }
    std::int64_t x_strides[dimension + 1] = {};
    std::int64_t y_strides[dimension + 1] = {};
    const element_range x_range = fill_strides("X", x, stored_x, x_strides, false);
    const element_range y_range = fill_strides("Y", y, out_extents, y_strides, true);
    if (turned) {
        const std::int64_t first = x_strides[1];
        x_strides[1] = x_strides[dimension];
        x_strides[dimension] = first;
    }
    for (std::size_t k = 0; k <= dimension; ++k) {
        result.axes.push_back({in_extents[k], out_extents[k], x_strides[k], y_strides[k]});
    }
    const auto refuse_overlap = [&](const char* name, const element_range& range) {
        if (elements_meet(range, y_range, bytes)) {
            throw alias_error("otimes: tkron" + std::to_string(Dimension) + ": Y shares memory with " + name +
                              ". Give Y memory of its own.");
        }
    };
    refuse_overlap("X", x_range);
    for (std::size_t k = 0; k < dimension; ++k) {
        const tkron_factor<Scalar>& f = factors[k];
        const bool transposed = f.how != op::none;
        const std::int64_t stored_rows = transposed ? f.cols : f.rows;
        const std::int64_t stored_cols = transposed ? f.rows : f.cols;
        const std::int64_t leading = f.leading_stride == 0 ? (stored_rows < 1 ? 1 : stored_rows) : f.leading_stride;
        if (leading < stored_rows || leading < 1) {
            throw_tkron(Dimension, std::string("the leading stride of ") + names[k] + " is " + std::to_string(leading) +
                                       ", but must be at least " + std::to_string(stored_rows) + ".");
        }
        if (f.batch_stride < 0) {
            throw_tkron(Dimension, std::string("the batch stride of ") + names[k] + " is " +
                                       std::to_string(f.batch_stride) + "; it must not be negative.");
        }
        const std::int64_t extents[3] = {count, stored_rows, stored_cols};
        const std::int64_t strides[3] = {f.batch_stride, 1, leading};
        const element_range range = elements_of(Dimension, names[k], f.data, bytes, extents, strides);
        if (range.last >= 0 && f.data == nullptr) {
            throw_tkron(Dimension, std::string(names[k]) + " is a null pointer.");
        }
        refuse_overlap(names[k], range);
        axis_factor<Scalar> applied;
        applied.data = f.data;
        applied.axis = static_cast<std::int32_t>(k) + 1;
        applied.p_stride = transposed ? 1 : leading;
        applied.q_stride = transposed ? leading : 1;
        applied.conjugate = f.how == op::adjoint;
        if (f.batch_stride != 0 && count > 1) {
            applied.item_strides.assign(dimension + 1, 0);
            applied.item_strides[0] = f.batch_stride;
        }
        result.factors.push_back(std::move(applied));
    }
    return result;
}

}  // namespace detail

inline namespace OTIMES_TARGET {
namespace batches {

/// y = beta * y + product; `home`: the executor of operands in device memory.
template <class Scalar>
void evaluate_with_beta(detail::mode_products<Scalar>&& product, const Scalar& beta, const executor* home = nullptr) {
    if (home != nullptr) {
        product.space = memory_space::device;
        for (detail::axis_factor<Scalar>& f : product.factors) {
            f.space = memory_space::device;
        }
    }
    if (beta != Scalar(0) && beta != Scalar(1)) {
        detail::mode_products<Scalar> scaling;
        for (const detail::product_axis& a : product.axes) {
            scaling.axes.push_back({a.extent_out, a.extent_out, a.stride_out, a.stride_out});
        }
        scaling.x = scaling.y = product.y;
        scaling.alpha = beta;
        scaling.space = product.space;
        evaluate(scaling, home);  // element by element, in place
    }
    product.add = beta != Scalar(0);
    evaluate(product, home);
}

}  // namespace batches

/// @name See the file comment. `count` items; X of tkron1 is a vector, of tkron2 a matrix, of tkron3 an array of planes.
/// @throws shape_error, alias_error
/// @{
template <class Scalar>
void tkron1(const tkron_factor<Scalar>& first, const tkron_array<const Scalar>& x, const tkron_array<Scalar>& y,
            std::int64_t count = 1, const Scalar& alpha = Scalar(1), const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<1, Scalar>({first}, x, y, count, alpha), beta);
}
template <class Scalar>
void tkron2(const tkron_factor<Scalar>& first, const tkron_factor<Scalar>& second, const tkron_array<const Scalar>& x,
            const tkron_array<Scalar>& y, std::int64_t count = 1, const Scalar& alpha = Scalar(1),
            const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<2, Scalar>({first, second}, x, y, count, alpha), beta);
}
template <class Scalar>
void tkron3(const tkron_factor<Scalar>& first, const tkron_factor<Scalar>& second, const tkron_factor<Scalar>& third,
            const tkron_array<const Scalar>& x, const tkron_array<Scalar>& y, std::int64_t count = 1,
            const Scalar& alpha = Scalar(1), const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<3, Scalar>({first, second, third}, x, y, count, alpha), beta);
}
/// @}

/// @name The same with all pointers to the device memory of an executor, as otimes::gpu(); asynchronous. @throws also unsupported_error where
/// the executor reaches none
/// @{
template <class Scalar>
void tkron1(const executor& where, const tkron_factor<Scalar>& first, const tkron_array<const Scalar>& x,
            const tkron_array<Scalar>& y, std::int64_t count = 1, const Scalar& alpha = Scalar(1),
            const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<1, Scalar>({first}, x, y, count, alpha), beta,
                                batches::require_device(where, "tkron1"));
}
template <class Scalar>
void tkron2(const executor& where, const tkron_factor<Scalar>& first, const tkron_factor<Scalar>& second,
            const tkron_array<const Scalar>& x, const tkron_array<Scalar>& y, std::int64_t count = 1,
            const Scalar& alpha = Scalar(1), const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<2, Scalar>({first, second}, x, y, count, alpha), beta,
                                batches::require_device(where, "tkron2"));
}
template <class Scalar>
void tkron3(const executor& where, const tkron_factor<Scalar>& first, const tkron_factor<Scalar>& second,
            const tkron_factor<Scalar>& third, const tkron_array<const Scalar>& x, const tkron_array<Scalar>& y,
            std::int64_t count = 1, const Scalar& alpha = Scalar(1), const Scalar& beta = Scalar(0)) {
    batches::evaluate_with_beta(detail::describe_tkron<3, Scalar>({first, second, third}, x, y, count, alpha), beta,
                                batches::require_device(where, "tkron3"));
}
/// @}

}  // namespace OTIMES_TARGET
}  // namespace otimes

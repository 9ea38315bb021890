// SPDX-License-Identifier: MIT
/// @file leaf.hpp
/// A matrix as an operand of an expression: where its elements are, and who keeps them alive. This is the only file of
/// expr/ that holds a pointer to a matrix.
///
/// Lifetime. A plain matrix given as an lvalue is borrowed by the address of the object: later changes, also of its
/// memory, are seen. A view is borrowed by its own copy of pointer and strides. An rvalue or a computed expression is
/// owned through a shared, immutable object, so that copying a node is cheap and never dangles.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <otimes/program/program.hpp>

namespace otimes {

/// A matrix in memory, element (i, j) at `data + (i * row_stride + j * col_stride)` elements. Not owning.
struct matrix_view {
    const void* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t row_stride = 1;
    std::int64_t col_stride = 1;
    friend bool operator==(const matrix_view&, const matrix_view&) = default;
};

/// Which elements of a triangular or self-adjoint leaf are stored.
enum class triangle : std::uint8_t { none, lower, upper, unit_lower, unit_upper };

/// The stored triangle of the transposed matrix.
constexpr triangle flipped(triangle part) noexcept {
    switch (part) {
        case triangle::none: return part;
        case triangle::lower: return triangle::upper;
        case triangle::upper: return triangle::lower;
        case triangle::unit_lower: return triangle::unit_upper;
        case triangle::unit_upper: return triangle::unit_lower;
    }
    return part;
}

/// One matrix operand of a node: dense by strides, or the identity of an order.
///
/// Shape: rows() x cols(). Scalar: `real_elements` says that the elements are of the real type that belongs to the
/// node's complex scalar. Cost: a few words; copying may touch one reference count.
class leaf {
public:
    leaf() = default;

    /// The identity matrix of order `order`: no storage, no flops.
    static leaf identity(std::int64_t order) {
        leaf result;
        result.kind_ = factor_kind::identity;
        result.view_ = {nullptr, order, order, 0, 0};
        return result;
    }
    /// A view: pointer and strides are copied, the elements must outlive the expression.
    static leaf borrowed(matrix_view view) {
        leaf result;
        result.view_ = view;
        return result;
    }
    /// A plain object that may change its memory later: `look(object)` tells where it is now.
    static leaf borrowed(const void* object, matrix_view (*look)(const void*)) {
        leaf result;
        result.object_ = object;
        result.look_ = look;
        return result;
    }
    /// Elements inside `owner`, which nobody changes any more.
    static leaf owned(std::shared_ptr<const void> owner, matrix_view view) {
        leaf result;
        result.owner_ = std::move(owner);
        result.view_ = view;
        return result;
    }

    /// A factor of another kind; what `view.data` points to depends on the kind (structured.hpp).
    static leaf structured(factor_kind kind, matrix_view view, std::shared_ptr<const void> owner) {
        leaf result = owned(std::move(owner), view);
        result.kind_ = kind;
        return result;
    }

    /// The same of a shape that may change: `look(object)` tells what it is now. `owner` keeps the object.
    static leaf structured(factor_kind kind, const void* object, matrix_view (*look)(const void*),
                           std::shared_ptr<const void> owner) {
        leaf result = borrowed(object, look);
        result.owner_ = std::move(owner);
        result.kind_ = kind;
        return result;
    }

    [[nodiscard]] factor_kind kind() const noexcept { return kind_; }
    [[nodiscard]] bool is_dense() const noexcept { return kind_ == factor_kind::dense; }
    [[nodiscard]] bool transposed() const noexcept { return transposed_; }
    /// True when the elements belong to the expression: no destination can overlap them.
    [[nodiscard]] bool is_owned() const noexcept { return owner_ != nullptr; }
    [[nodiscard]] bool is_identity() const noexcept { return kind_ == factor_kind::identity; }
    [[nodiscard]] bool conjugated() const noexcept { return conjugated_; }
    [[nodiscard]] bool real_elements() const noexcept { return real_elements_; }
    /// Where the elements are; X and Y of a product share a space, factors may come from the host.
    [[nodiscard]] memory_space space() const noexcept { return space_; }
    [[nodiscard]] std::int64_t rows() const { return view().rows; }
    [[nodiscard]] std::int64_t cols() const { return view().cols; }

    /// Where the matrix is now, transposition applied.
    [[nodiscard]] matrix_view view() const {
        const matrix_view now = look_ != nullptr ? look_(object_) : view_;
        return transposed_ ? matrix_view{now.data, now.cols, now.rows, now.col_stride, now.row_stride} : now;
    }

    /// Which triangle is stored, transposition applied; `none` for all other
    /// kinds.
    [[nodiscard]] triangle part() const noexcept { return transposed_ ? flipped(part_) : part_; }
    /// Makes a dense leaf the triangular or self-adjoint matrix that this
    /// triangle of it describes.
    void set_triangle(factor_kind kind, triangle part) noexcept {
        kind_ = kind;
        part_ = transposed_ ? flipped(part) : part;
    }

    void transpose() noexcept { transposed_ = !transposed_; }
    void conjugate() noexcept { conjugated_ = !conjugated_; }
    void set_real_elements(bool real) noexcept { real_elements_ = real; }
    void set_space(memory_space space) noexcept { space_ = space; }

    /// The same matrix: the same elements, read in the same way. Equal contents do not make two leaves equal.
    friend bool operator==(const leaf&, const leaf&) = default;

private:
    matrix_view view_;
    const void* object_ = nullptr;
    matrix_view (*look_)(const void*) = nullptr;
    std::shared_ptr<const void> owner_;
    factor_kind kind_ = factor_kind::dense;
    triangle part_ = triangle::none;
    bool transposed_ = false;
    bool conjugated_ = false;
    bool real_elements_ = false;
    memory_space space_ = memory_space::host;
};

}  // namespace otimes

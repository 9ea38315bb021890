// SPDX-License-Identifier: MIT
/// @file batched.hpp
/// Batches: the same formula for many matrices at once, with factors that all items share or that each item has for itself.
///
///     batched(Y) = batched(X) * kron(batched(A), B)          Y_i = X_i * kron(A_i, B)          i = 0 .. count - 1
///
/// `batched(data, rows, cols, count)` views items that lie one after another, with any batch stride; a batch stride of 0 is
/// one matrix for all. `batched(span of pointers, rows, cols)` and `batched(vector of matrices)` view items that lie
/// anywhere. A plain Eigen matrix, an identity or a whole kron beside a batch is shared by all items. Left products,
/// products from both sides, transposes, adjoints and scalar multiples are written as for single matrices; `=`, `+=` and `-=`
/// write, `.eval()` gives a vector of matrices.
///
/// How it is evaluated. Strided batches are one program in which the item is one more free index; its stride in a factor
/// that all share is 0, and the plan covers the whole batch. Where factors differ between items, or items are given by
/// pointers, the CPU plans one item and runs that plan for each, items over the threads; `explain` says so.
///
/// Device memory: `batched(otimes::gpu(), pointer, rows, cols, count)`, `batched(otimes::gpu(), span of pointers, rows, cols)` and `batched(dX, count)`, a
/// DeviceMatrix cut into items, are batches there; all of an expression are, what all items share may also come from the host. One
/// program, its launches in the executor's stream; factors that differ are applied by the generic kernel. Items by pointers that are not
/// evenly spaced are queued one by one, by the plan of one. Asynchronous; no `.eval()`.
///
/// Scalars: one type for all operands. Lifetime: batches are views; single matrices are kept as kron() keeps them.
/// Errors, before anything is written: shape_error (counts, shapes), alias_error (an item of Y shares memory with an operand
/// or with another item), unsupported_error (a shared factor that is neither dense nor an identity).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/kron.hpp>
#include <otimes/adapt/eigen/leaf.hpp>
#include <otimes/adapt/eigen/run.hpp>
#include <otimes/adapt/strided/items.hpp>
#include <otimes/adapt/strided/run_items.hpp>
#include <otimes/adapt/strided/view.hpp>
#include <otimes/expr/batch_operand.hpp>
#include <otimes/expr/device_operand.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/mode_products.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

inline namespace OTIMES_TARGET {

template <class ScalarType>
class batch_leaf;
template <class ScalarType>
class conjugated_batch;
template <class ScalarType>
class batched_product;

/// A batch of matrices in memory; made by batched(). Assigning an expression writes the items.
template <class ElementType>
class batch_view {
public:
    using element_type = ElementType;
    using Scalar = std::remove_const_t<ElementType>;

    explicit batch_view(detail::item_operand<ElementType> items) : items_(std::move(items)) {}
    batch_view(const batch_view&) = default;
    [[nodiscard]] std::int64_t rows() const noexcept { return items_.rows; }
    [[nodiscard]] std::int64_t cols() const noexcept { return items_.cols; }
    [[nodiscard]] std::int64_t count() const noexcept { return items_.count; }
    [[nodiscard]] const detail::item_operand<ElementType>& items() const noexcept { return items_; }
    /// Every item transposed, where it lies.
    [[nodiscard]] batch_view transpose() const {
        batch_view result(*this);
        std::swap(result.items_.rows, result.items_.cols);
        std::swap(result.items_.row_stride, result.items_.col_stride);
        return result;
    }
    /// Every item conjugated, an operand that is read.
    [[nodiscard]] auto conjugate() const {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            batch_leaf<Scalar> result(*this);
            result.conjugate();
            return conjugated_batch<Scalar>(std::move(result));
        } else {
            return *this;
        }
    }
    [[nodiscard]] auto adjoint() const { return transpose().conjugate(); }

    /// @name Y_i = expression_i for all items. @throws shape_error, alias_error
    /// @{
    /// batched(Y) = batched(X) copies the elements. A view with a name is not assigned another one: the elements or the view?
    const batch_view& operator=(const batch_view& x) && { return write_other(x, Scalar(1), false); }
    batch_view& operator=(const batch_view&) & {
        static_assert(eigen::always_false<ElementType>,
                      "otimes: batched: y = batched(X) of a view y may mean its elements or the view. Write "
                      "batched(Y) = batched(X) to copy elements, or initialise another view.");
        return *this;
    }
    template <class Expression>
    requires detail::writes_to<Expression, batch_view>
    const batch_view& operator=(const Expression& e) const {
        e.write_to(*this, Scalar(1), false);
        return *this;
    }
    template <class Expression>
    requires detail::writes_to<Expression, batch_view>
    const batch_view& operator+=(const Expression& e) const {
        e.write_to(*this, Scalar(1), true);
        return *this;
    }
    template <class Expression>
    requires detail::writes_to<Expression, batch_view>
    const batch_view& operator-=(const Expression& e) const {
        e.write_to(*this, Scalar(-1), true);
        return *this;
    }
    template <class Other>
    requires(!detail::writes_to<Other, batch_view>) const batch_view& operator=(const Other& x) const {
        return write_other(x, Scalar(1), false);
    }
    template <class Other>
    requires(!detail::writes_to<Other, batch_view>) const batch_view& operator+=(const Other& x) const {
        return write_other(x, Scalar(1), true);
    }
    template <class Other>
    requires(!detail::writes_to<Other, batch_view>) const batch_view& operator-=(const Other& x) const {
        return write_other(x, Scalar(-1), true);
    }
    /// @}

private:
    /// A batch as it is, conjugated or not; anything else does not compile, and says why.
    template <class Other>
    const batch_view& write_other(const Other& x, const Scalar& scale, bool add) const {
        if constexpr (std::is_const_v<ElementType>) {
            static_assert(eigen::always_false<Other>,
                          "otimes: batched(Y) = ..: the items of Y are const, and cannot be written.");
        } else if constexpr (requires {
                                 requires std::is_same_v<typename Other::Scalar, Scalar> && is_batch_operand<Other>;
                             }) {
            batched_product<Scalar>(batch_leaf<Scalar>(x), nullptr, nullptr, Scalar(1)).write_to(*this, scale, add);
        } else {
            static_assert(eigen::always_false<Other>,
                          "otimes: batched(Y) = ..: assigned is a batch or a product of batches, over the scalar type "
                          "of Y. Write batched(Y) = batched(X) * kron(..), and convert what is of another type with "
                          ".cast<Scalar>().");
        }
        return *this;
    }

    detail::item_operand<ElementType> items_;
};

}  // namespace OTIMES_TARGET

template <class Element>
inline constexpr bool is_batch_operand<batch_view<Element>> = true;
template <class Scalar>
inline constexpr bool is_batch_operand<conjugated_batch<Scalar>> = true;

inline namespace OTIMES_TARGET {

namespace batches {
template <class List>
concept pointer_list = requires(const List& list) {
    list.begin();
    list.size();
    requires std::is_pointer_v<typename List::value_type>;
};
}  // namespace batches

/// @name Views of batches. `Order`: Eigen::ColMajor or Eigen::RowMajor.
/// @{

/// `count` matrices, the first at `data`, each `batch_stride` elements after the one before (0: one matrix for all), rows or
/// columns `outer_stride` elements apart (0: without gaps). @throws shape_error
template <int Order = Eigen::ColMajor, class Element>
[[nodiscard]] batch_view<Element> batched(Element* data, std::int64_t rows, std::int64_t cols, std::int64_t count,
                                          std::int64_t batch_stride, std::int64_t outer_stride = 0) {
    const std::int64_t inner = Order == Eigen::RowMajor ? cols : rows;
    const std::int64_t outer = outer_stride == 0 ? inner : outer_stride;
    std::int64_t last = 0;
    std::int64_t batch = 0;
    if (rows < 0 || cols < 0 || count < 0 || batch_stride < 0 || outer < inner ||
        !checked_multiply(outer, Order == Eigen::RowMajor ? rows : cols, last) ||
        !checked_multiply(batch_stride, count, batch) || !checked_add(last, batch, last) ||
        !checked_multiply(last, std::int64_t{sizeof(Element)}, last)) {
        detail::throw_batch_shape(rows, cols, count, batch_stride);
    }
    detail::item_operand<Element> items;
    items.data = data;
    items.rows = rows;
    items.cols = cols;
    items.row_stride = Order == Eigen::RowMajor ? outer : 1;
    items.col_stride = Order == Eigen::RowMajor ? 1 : outer;
    items.batch_stride = batch_stride;
    items.count = count;
    return batch_view<Element>(std::move(items));
}
/// The same with the items one after another without gaps.
template <int Order = Eigen::ColMajor, class Element>
[[nodiscard]] batch_view<Element> batched(Element* data, std::int64_t rows, std::int64_t cols, std::int64_t count) {
    std::int64_t stride = 0;
    if (rows < 0 || cols < 0 || !checked_multiply(rows, cols, stride)) {
        detail::throw_batch_shape(rows, cols, count, 0);
    }
    return batched<Order>(data, rows, cols, count, stride);
}
/// The same in the device memory of an executor, as otimes::gpu(). @throws shape_error; unsupported_error the executor reaches none
template <int Order = Eigen::ColMajor, class Element>
[[nodiscard]] batch_view<Element> batched(const executor& where, Element* data, std::int64_t rows, std::int64_t cols,
                                          std::int64_t count, std::int64_t batch_stride,
                                          std::int64_t outer_stride = 0) {
    auto items = batched<Order>(data, rows, cols, count, batch_stride, outer_stride).items();
    items.home = batches::require_device(where, "batched");
    return batch_view<Element>(std::move(items));
}
template <int Order = Eigen::ColMajor, class Element>
[[nodiscard]] batch_view<Element> batched(const executor& where, Element* data, std::int64_t rows, std::int64_t cols,
                                          std::int64_t count) {
    auto items = batched<Order>(data, rows, cols, count).items();
    items.home = batches::require_device(where, "batched");
    return batch_view<Element>(std::move(items));
}
/// A matrix in device memory as `count` items that lie one after another: its columns (its rows, where it is stored by rows) in equal parts.
/// @throws shape_error they do not come out even
template <class Matrix>
requires(is_device_operand<std::remove_cvref_t<Matrix>>&& requires(Matrix& m) {
    m.data();
    m.outer_stride();
    m.home()->stream();
}) [[nodiscard]] auto batched(Matrix& m, std::int64_t count) {
    constexpr int order = std::remove_cvref_t<Matrix>::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor;
    const std::int64_t cut = order == Eigen::RowMajor ? m.rows() : m.cols();
    if (count < 1 || cut % count != 0 || m.home() == nullptr) {
        throw shape_error("otimes: batched(dX, " + std::to_string(count) + "): dX is " +
                          detail::shape_text(m.rows(), m.cols()) + "; its " +
                          (order == Eigen::RowMajor ? "rows" : "columns") + " must come out even.");
    }
    const std::int64_t rows = order == Eigen::RowMajor ? cut / count : m.rows();
    const std::int64_t cols = order == Eigen::RowMajor ? m.cols() : cut / count;
    return batched<order>(static_cast<const executor&>(*m.home()), m.data(), rows, cols, count);
}
/// Matrices of one shape at the given addresses: a span, a vector or an array of pointers, which are copied. @throws shape_error
template <int Order = Eigen::ColMajor, class Pointers>
requires batches::pointer_list<Pointers>
[[nodiscard]] auto batched(const Pointers& pointers, std::int64_t rows, std::int64_t cols,
                           std::int64_t outer_stride = 0) {
    using element = std::remove_pointer_t<typename Pointers::value_type>;
    auto items = batched<Order>(static_cast<element*>(nullptr), rows, cols, static_cast<std::int64_t>(pointers.size()),
                                0, outer_stride)
                     .items();
    items.pointers = std::make_shared<const std::vector<element*>>(pointers.begin(), pointers.end());
    return batch_view<element>(std::move(items));
}
/// The same in the device memory of an executor; the array of pointers is in host memory. Evenly spaced items are a strided batch, others are
/// queued one by one. @throws shape_error; unsupported_error the executor reaches none
template <int Order = Eigen::ColMajor, class Pointers>
requires batches::pointer_list<Pointers>
[[nodiscard]] auto batched(const executor& where, const Pointers& pointers, std::int64_t rows, std::int64_t cols,
                           std::int64_t outer_stride = 0) {
    auto items = batched<Order>(pointers, rows, cols, outer_stride).items();
    items.home = batches::require_device(where, "batched");
    return batch_view<std::remove_pointer_t<typename Pointers::value_type>>(std::move(items));
}
/// @}

namespace batches {
template <class Element, class Matrices>
batch_view<Element> of_matrices(Matrices& matrices) {
    detail::item_operand<Element> items;
    auto pointers = std::make_shared<std::vector<Element*>>();
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        const matrix_view now = eigen::view_of(matrices[i]);
        if (i == 0) {
            items.rows = now.rows;
            items.cols = now.cols;
            items.row_stride = now.row_stride;
            items.col_stride = now.col_stride;
        } else if (now.rows != items.rows || now.cols != items.cols) {
            detail::throw_item("All items of a batch have one shape.", i, now.rows, now.cols, items.rows, items.cols);
        } else if ((now.rows > 1 && now.row_stride != items.row_stride) ||
                   (now.cols > 1 && now.col_stride != items.col_stride)) {
            detail::throw_item("All items of a batch have the same strides.", i, now.rows, now.cols, items.rows,
                               items.cols);
        }
        pointers->push_back(matrices[i].data());
    }
    items.count = static_cast<std::int64_t>(matrices.size());
    items.pointers = std::move(pointers);
    return batch_view<Element>(std::move(items));
}
}  // namespace batches

/// @name Batches of Eigen's matrices.
/// @{

/// The matrices of a vector, all of one shape. They must not be resized while the view is used. @throws shape_error
template <class Matrix, class Allocator>
requires(eigen::dense<Matrix>&& eigen::has_direct_access<Matrix>)
    [[nodiscard]] auto batched(std::vector<Matrix, Allocator>& matrices) {
    // of maps of const matrices: items that are read
    return batches::of_matrices<std::remove_pointer_t<decltype(matrices[0].data())>>(matrices);
}
template <class Matrix, class Allocator>
requires(eigen::dense<Matrix>&& eigen::has_direct_access<Matrix>)
    [[nodiscard]] auto batched(const std::vector<Matrix, Allocator>& matrices) {
    return batches::of_matrices<const typename Matrix::Scalar>(matrices);
}
template <class Matrix, class Allocator>
void batched(std::vector<Matrix, Allocator>&&) = delete;  // the matrices would be gone before they are read
/// @}

/// One operand of a batched expression: a batch, or a matrix that all items share.
template <class Scalar>
class batch_leaf {
public:
    explicit batch_leaf(const batch_view<const Scalar>& b) : items_(b.items()), is_batch_(true) {}
    explicit batch_leaf(const batch_view<Scalar>& b) : is_batch_(true) {
        const detail::item_operand<Scalar>& from = b.items();
        items_ = {from.data,       nullptr,           from.rows,  from.cols, from.row_stride,
                  from.col_stride, from.batch_stride, from.count, from.home};
        if (from.by_pointers()) {
            items_.pointers =
                std::make_shared<const std::vector<const Scalar*>>(from.pointers->begin(), from.pointers->end());
        }
    }
    explicit batch_leaf(const conjugated_batch<Scalar>& b) : batch_leaf(b.items()) {}
    explicit batch_leaf(leaf shared) : shared_(std::move(shared)) {}

    /// As it is now: a shared matrix may have moved since.
    [[nodiscard]] detail::item_operand<const Scalar> now() const {
        if (is_batch_) {
            return items_;
        }
        const matrix_view v = shared_.view();
        return {static_cast<const Scalar*>(v.data), nullptr, v.rows, v.cols, v.row_stride, v.col_stride, 0, 1, nullptr};
    }
    [[nodiscard]] memory_space space() const noexcept {
        return is_batch_ ? (items_.home != nullptr ? memory_space::device : memory_space::host) : shared_.space();
    }
    [[nodiscard]] bool is_batch() const noexcept { return is_batch_; }
    [[nodiscard]] bool is_identity() const noexcept { return !is_batch_ && shared_.is_identity(); }
    [[nodiscard]] bool is_owned() const noexcept { return !is_batch_ && shared_.is_owned(); }
    [[nodiscard]] bool conjugated() const noexcept { return is_batch_ ? conjugated_ : shared_.conjugated(); }
    [[nodiscard]] std::int64_t rows() const { return is_batch_ ? items_.rows : shared_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return is_batch_ ? items_.cols : shared_.cols(); }
    void transpose() {
        if (is_batch_) {
            std::swap(items_.rows, items_.cols);
            std::swap(items_.row_stride, items_.col_stride);
        } else {
            shared_.transpose();
        }
    }
    void conjugate() {
        if (is_batch_) {
            conjugated_ = !conjugated_;
        } else {
            shared_.conjugate();
        }
    }
    /// As detail::make_strided.
    bool make_strided() { return !is_batch_ || detail::make_strided(items_); }

private:
    detail::item_operand<const Scalar> items_;
    leaf shared_;
    bool is_batch_ = false;
    bool conjugated_ = false;
};

/// The conjugated items of a batch; made by batched(X).conjugate() and .adjoint().
template <class ScalarType>
class conjugated_batch {
public:
    using Scalar = ScalarType;
    explicit conjugated_batch(batch_leaf<Scalar> items) : items_(std::move(items)) {}
    [[nodiscard]] const batch_leaf<Scalar>& items() const noexcept { return items_; }
    [[nodiscard]] conjugated_batch transpose() const {
        conjugated_batch result(*this);
        result.items_.transpose();
        return result;
    }

private:
    batch_leaf<Scalar> items_;
};

/// kron(F1, .., FN) for every item; made by kron() where an argument is a batch.
template <class ScalarType>
class batched_kron {
public:
    using Scalar = ScalarType;

    [[nodiscard]] std::int64_t rows() const { return product_of(true); }
    [[nodiscard]] std::int64_t cols() const { return product_of(false); }
    [[nodiscard]] const std::vector<batch_leaf<Scalar>>& factors() const noexcept { return factors_; }
    [[nodiscard]] const Scalar& alpha() const noexcept { return alpha_; }

    [[nodiscard]] batched_kron transpose() const {
        batched_kron result(*this);
        for (batch_leaf<Scalar>& f : result.factors_) {
            f.transpose();
        }
        return result;
    }
    [[nodiscard]] batched_kron conjugate() const {
        batched_kron result(*this);
        for (batch_leaf<Scalar>& f : result.factors_) {
            f.conjugate();
        }
        result.alpha_ = detail::conjugate_of(alpha_);
        return result;
    }
    [[nodiscard]] batched_kron adjoint() const { return transpose().conjugate(); }
    [[nodiscard]] batched_kron scaled(const Scalar& by) const {
        batched_kron result(*this);
        result.alpha_ = by * alpha_;
        return result;
    }

    /// As detail::make_strided, of every factor.
    bool make_strided() {
        bool all = true;
        for (batch_leaf<Scalar>& f : factors_) {
            all = f.make_strided() && all;
        }
        return all;
    }

    void append(batch_leaf<Scalar> factor) { factors_.push_back(std::move(factor)); }
    /// All factors of a kron; dense ones and identities. @throws unsupported_error
    template <class Kron>
    requires requires(const Kron& k) { k.node().factors(); }
    void append(const Kron& k) {
        for (const leaf& f : k.node().factors()) {
            if (!f.is_dense() && !f.is_identity()) {
                throw unsupported_error(
                    "otimes: batched: a factor that all items share must be dense or an identity. Write "
                    ".toDenseMatrix() of it, or multiply the items one by one.");
            }
            if (f.real_elements() && !f.is_identity()) {
                throw unsupported_error(
                    "otimes: batched: a real factor of a complex kron; all operands of a batch have one scalar type. "
                    "Write .cast<Scalar>().");
            }
            factors_.push_back(batch_leaf<Scalar>(f));
        }
        alpha_ = alpha_ * k.node().alpha();
    }
    /// @throws shape_error extents overflow
    void check_extents() const {
        static_cast<void>(rows());
        static_cast<void>(cols());
    }

private:
    [[nodiscard]] std::int64_t product_of(bool of_rows) const {
        std::int64_t result = 1;
        for (const batch_leaf<Scalar>& f : factors_) {
            if (!checked_multiply(result, of_rows ? f.rows() : f.cols(), result)) {
                throw shape_error("otimes: batched: the extents of " + detail::kron_text(factors_.size()) +
                                  " exceed 2^63 - 1; use fewer or smaller factors.");
            }
        }
        return result;
    }
    std::vector<batch_leaf<Scalar>> factors_;
    Scalar alpha_ = Scalar(1);
};

/// alpha * L_i * X_i * R_i for every item i, lazy; either side may be absent. See the file comment.
template <class ScalarType>
class batched_product {
public:
    using Scalar = ScalarType;
    using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

    /// @throws shape_error counts or shapes that do not fit; no item at all fits whatever its shape (an empty vector tells none)
    batched_product(batch_leaf<Scalar> x, std::shared_ptr<const batched_kron<Scalar>> left,
                    std::shared_ptr<const batched_kron<Scalar>> right, Scalar alpha)
        : x_(std::move(x)), left_(std::move(left)), right_(std::move(right)), alpha_(alpha) {
        bool known = false;
        const auto agree = [&](const batch_leaf<Scalar>& operand, const auto& name) {
            if (!operand.is_batch()) {
                return;
            }
            const std::int64_t count = operand.now().count;
            if (known && count != count_) {
                detail::throw_counts(name(), count, count_);
            }
            count_ = count;
            known = true;
        };
        agree(x_, [] { return std::string("X"); });
        for_each_factor([&](const batch_leaf<Scalar>& f, bool from_left, std::size_t k) {
            agree(f, [&] { return std::string(from_left ? "left " : "") + "factor " + std::to_string(k + 1); });
        });
        check_shapes();
    }

    [[nodiscard]] std::int64_t count() const noexcept { return count_; }
    [[nodiscard]] std::int64_t rows() const { return left_ ? left_->rows() : x_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return right_ ? right_->cols() : x_.cols(); }

    /// The items, one matrix each.
    [[nodiscard]] std::vector<DenseMatrix> eval() const {
        std::vector<DenseMatrix> result(static_cast<std::size_t>(count_));
        eigen::require_index_counts(rows(), cols());
        for (DenseMatrix& item : result) {
            item.resize(static_cast<Eigen::Index>(rows()), static_cast<Eigen::Index>(cols()));
        }
        write_to(batched(result), Scalar(1), false);
        return result;
    }
    operator std::vector<DenseMatrix>() const { return eval(); }

    /// destination (+)= scale * value, item by item, by the plan `by` if there is one. @throws shape_error (also an item at a null pointer),
    /// alias_error; of a plan as plan::run
    void write_to(const batch_view<Scalar>& destination, const Scalar& scale, bool add,
                  const batches::planned& by = {}) const {
        const detail::item_operand<Scalar>& y = destination.items();
        check_shapes();
        if (y.count != count_ || (count_ != 0 && (y.rows != rows() || y.cols != cols()))) {
            throw_unequal_destination(y);
        }
        if (const std::int64_t item = detail::null_item(y); item >= 0) {
            detail::throw_null_item("Y", item);
        }
        if (detail::item_meets_itself(y)) {
            detail::throw_batch_alias("itself: two of its elements have one address");
        }
        if (detail::items_meet(y)) {
            detail::throw_batch_alias("another one");
        }
        const auto refuse = [&](const batch_leaf<Scalar>& operand, const auto& name) {
            if (operand.is_owned() || operand.is_identity()) {
                return;
            }
            if (const std::int64_t item = detail::null_item(operand.now()); item >= 0) {
                detail::throw_null_item(name(), item);
            }
            if (detail::items_meet(operand.now(), y)) {
                detail::throw_batch_alias(name());
            }
        };
        refuse(x_, [] { return std::string("X"); });
        for_each_factor([&](const batch_leaf<Scalar>& f, bool from_left, std::size_t k) {
            refuse(f, [&] { return std::string(from_left ? "left " : "") + "factor " + std::to_string(k + 1); });
        });
        require_one_space(y);
        if (y.home != nullptr && by_pointers(y) && by.made == nullptr) {
            batched_product strided(*this);
            detail::item_operand<Scalar> to = y;
            if (strided.make_strided() && detail::make_strided(to)) {
                strided.write_items(to, scale, add);
                return;
            }
        }
        write_items(y, scale, add, by);
    }

    /// The plan for a result without gaps, stored by columns. `items`: how often it is run, if asked for.
    [[nodiscard]] plan make_plan(const options& wishes = {}, std::int64_t* items = nullptr) const {
        check_shapes();
        detail::item_operand<Scalar> y;
        y.rows = rows();
        y.cols = cols();
        y.col_stride = y.rows;
        y.batch_stride = product_of_extents(y.rows, y.cols);
        y.count = count_;
        y.home = x_.now().home;
        for_each_factor([&](const batch_leaf<Scalar>& f, bool, std::size_t) {
            y.home = y.home != nullptr || f.is_identity() ? y.home : f.now().home;
        });
        return plan_into(y, wishes, items);
    }
    /// The plan for a result that is stored as `destination` is. @throws shape_error
    [[nodiscard]] plan make_plan_into(const batch_view<Scalar>& destination, const options& wishes) const {
        check_shapes();
        const detail::item_operand<Scalar>& y = destination.items();
        if (y.count != count_ || (count_ != 0 && (y.rows != rows() || y.cols != cols()))) {
            throw_unequal_destination(y);
        }
        require_one_space(y);
        return plan_into(y, wishes, nullptr);
    }

    [[nodiscard]] const batch_leaf<Scalar>& x() const noexcept { return x_; }
    [[nodiscard]] const std::shared_ptr<const batched_kron<Scalar>>& left() const noexcept { return left_; }
    [[nodiscard]] const std::shared_ptr<const batched_kron<Scalar>>& right() const noexcept { return right_; }
    [[nodiscard]] const Scalar& alpha() const noexcept { return alpha_; }

private:
    /// @throws shape_error beyond 63 bits: of views of a batch without items, and of a result that nobody has made yet
    static std::int64_t product_of_extents(std::int64_t a, std::int64_t b) {
        std::int64_t result = 0;
        if (!checked_multiply(a, b, result)) {
            throw shape_error("otimes: batched: the extents of an item exceed 2^63 - 1; use fewer or smaller factors.");
        }
        return result;
    }
    [[noreturn]] void throw_unequal_destination(const detail::item_operand<Scalar>& y) const {
        throw shape_error("otimes: batched(Y) = ..: Y has " + std::to_string(y.count) + " items of " +
                          detail::shape_text(y.rows, y.cols) + ", the expression " + std::to_string(count_) + " of " +
                          detail::shape_text(rows(), cols()) + ". A batch is not resized.");
    }
    [[nodiscard]] plan plan_into(const detail::item_operand<Scalar>& y, const options& wishes,
                                 std::int64_t* items) const {
        std::int64_t times = 1;
        const plan result = batches::plan_of(describe(y), wishes, times, y.home);
        if (items != nullptr) {
            *items = by_pointers(y) ? count_ : times;
        }
        return result;
    }
    /// As detail::make_strided, of every operand but Y.
    bool make_strided() {
        bool all = x_.make_strided();
        for (std::shared_ptr<const batched_kron<Scalar>>* const side : {&left_, &right_}) {
            if (*side != nullptr) {
                auto copy = std::make_shared<batched_kron<Scalar>>(**side);
                all = copy->make_strided() && all;
                *side = std::move(copy);
            }
        }
        return all;
    }
    /// write_to after its checks.
    void write_items(const detail::item_operand<Scalar>& y, const Scalar& scale, bool add,
                     const batches::planned& by = {}) const {
        if (count_ == 0) {
            return;
        }
        detail::mode_products<Scalar> product = describe(y);
        product.alpha = scale * alpha_;
        product.add = add;
        if (!by_pointers(y)) {
            batches::evaluate(product, y.home, by);
            return;
        }
        if (by.workspace != nullptr && by.available_bytes < by.made->workspace_bytes) {
            detail::throw_small_workspace(by.available_bytes, by.made->workspace_bytes);
        }
        lowering_scratch scratch;
        product.lower(scratch.program(), scratch.bindings());
        const detail::item_operand<const Scalar> x = x_.now();
        inline_vector<detail::item_operand<const Scalar>, 4> factors;
        for_each_factor([&](const batch_leaf<Scalar>& f, bool, std::size_t) {
            if (!f.is_identity()) {
                factors.push_back(f.now());
            }
        });
        batches::run_items<Scalar>(
            scratch.program(), scratch.bindings(), count_,
            [&](std::int64_t i, bindings& b) {
                b.pointers[0] = const_cast<Scalar*>(x.at(x.count == 1 ? 0 : i));
                for (std::size_t k = 0; k < factors.size(); ++k) {
                    b.pointers[k + 1] = const_cast<Scalar*>(factors[k].at(factors[k].count == 1 ? 0 : i));
                }
                b.pointers[factors.size() + 1] = y.at(i);
            },
            y.home, by);
    }

    /// X, Y and factors that differ are in one memory; what all items share may come from the host.
    void require_one_space(const detail::item_operand<Scalar>& y) const {
        const memory_space space = y.home != nullptr ? memory_space::device : memory_space::host;
        if (x_.space() != space) {
            detail::throw_batch_spaces("X");
        }
        for_each_factor([&](const batch_leaf<Scalar>& f, bool from_left, std::size_t k) {
            if (!f.is_identity() && f.space() != space && (f.is_batch() || space == memory_space::host)) {
                detail::throw_batch_spaces(std::string(from_left ? "left " : "") + "factor " + std::to_string(k + 1));
            }
        });
    }
    template <class Use>
    void for_each_factor(const Use& use) const {
        for (const bool from_left : {true, false}) {
            const auto& side = from_left ? left_ : right_;
            for (std::size_t k = 0; side && k < side->factors().size(); ++k) {
                use(side->factors()[k], from_left, k);
            }
        }
    }
    /// Also of a matrix that all items share and that has been resized since.
    void check_shapes() const {
        if (count_ != 0) {
            check(left_, true);
            check(right_, false);
        }
    }
    void check(const std::shared_ptr<const batched_kron<Scalar>>& side, bool from_left) const {
        if (side == nullptr || (from_left ? side->cols() == x_.rows() : side->rows() == x_.cols())) {
            return;
        }
        const std::string name = detail::kron_text(side->factors().size());
        throw shape_error("otimes: batched: " + (from_left ? name + " * X" : "X * " + name) + ": an item of X is " +
                          detail::shape_text(x_.rows(), x_.cols()) + ", but " + name + " is " +
                          detail::shape_text(side->rows(), side->cols()) + ". The " + (from_left ? "rows" : "columns") +
                          " of X must equal the " + (from_left ? "columns" : "rows") + " of the Kronecker product.");
    }
    [[nodiscard]] bool by_pointers(const detail::item_operand<Scalar>& y) const {
        bool any = y.by_pointers() || x_.now().by_pointers();
        for_each_factor([&](const batch_leaf<Scalar>& f, bool, std::size_t) {
            any = any || (!f.is_identity() && f.now().by_pointers());
        });
        return any;
    }

    /// The product for the whole batch, or, where an operand is given by pointers, for one item.
    [[nodiscard]] detail::mode_products<Scalar> describe(const detail::item_operand<Scalar>& y) const {
        detail::mode_products<Scalar> product;
        product.space = y.home != nullptr ? memory_space::device : memory_space::host;
        const detail::item_operand<const Scalar> x = x_.now();
        const bool apart = by_pointers(y);
        product.x = apart && x.by_pointers() ? (x.count > 0 ? x.at(0) : nullptr) : x.data;
        product.y = apart && y.by_pointers() ? (y.count > 0 ? y.at(0) : nullptr) : y.data;
        product.conjugate_x = x_.conjugated();
        if (!apart) {
            product.axes.push_back({count_, count_, x_.is_batch() ? x.batch_stride : 0, y.batch_stride});
        }
        const auto add_side = [&](const std::shared_ptr<const batched_kron<Scalar>>& side, bool from_left) {
            std::int64_t in = from_left ? x.row_stride : x.col_stride;
            std::int64_t out = from_left ? y.row_stride : y.col_stride;
            if (side == nullptr || side->factors().empty()) {
                const std::int64_t extent = from_left ? x.rows : x.cols;
                product.axes.push_back({extent, extent, in, out});
                return;
            }
            const std::vector<batch_leaf<Scalar>>& factors = side->factors();
            inline_vector<detail::product_axis, 8> axes;
            axes.assign(factors.size(), detail::product_axis());
            for (std::size_t k = factors.size(); k-- > 0;) {  // the last factor's index runs fastest
                const std::int64_t p = from_left ? factors[k].cols() : factors[k].rows();
                const std::int64_t q = from_left ? factors[k].rows() : factors[k].cols();
                axes[k] = {p, q, in, out};
                in = product_of_extents(in, p);
                out = product_of_extents(out, q);
            }
            for (std::size_t k = 0; k < factors.size(); ++k) {
                const auto axis = static_cast<std::int32_t>(product.axes.size());
                product.axes.push_back(axes[k]);
                if (factors[k].is_identity()) {
                    continue;
                }
                const detail::item_operand<const Scalar> f = factors[k].now();
                detail::axis_factor<Scalar> applied;
                applied.data = f.by_pointers() ? (f.count > 0 ? f.at(0) : nullptr) : f.data;
                applied.axis = axis;
                applied.p_stride = from_left ? f.col_stride : f.row_stride;
                applied.q_stride = from_left ? f.row_stride : f.col_stride;
                applied.conjugate = factors[k].conjugated();
                applied.space = factors[k].space();
                if (!apart && f.batch_stride != 0) {
                    applied.item_strides.push_back(f.batch_stride);
                }
                product.factors.push_back(std::move(applied));
            }
        };
        add_side(left_, true);
        add_side(right_, false);
        for (detail::axis_factor<Scalar>& f : product.factors) {
            if (!f.item_strides.empty()) {
                while (f.item_strides.size() < product.axes.size()) {
                    f.item_strides.push_back(0);
                }
            }
        }
        return product;
    }

    batch_leaf<Scalar> x_;
    std::shared_ptr<const batched_kron<Scalar>> left_;
    std::shared_ptr<const batched_kron<Scalar>> right_;
    Scalar alpha_;
    std::int64_t count_ = 1;
};

namespace batches {

/// A kron with factors in device memory, a matrix there, as otimes/cuda.hpp makes them.
template <class Type>
concept device_kron_like = is_device_operand<Type> && requires(const Type& k) {
    k.node().factors();
    k.factor_count();
};
template <class Type>
concept device_matrix_like = is_device_operand<Type> && requires(const Type& m) {
    m.operand().matrix;
};

/// What may stand beside a batch.
template <class Type>
concept single_matrix = eigen::dense<Type> || device_matrix_like<eigen::bare<Type>>;

template <class Scalar, class Argument>
batch_leaf<Scalar> make_leaf(Argument&& argument) {
    using type = eigen::bare<Argument>;
    static_assert(std::is_same_v<typename type::Scalar, Scalar>,
                  "otimes: batched: all operands have one scalar type; convert the others with .cast<Scalar>().");
    if constexpr (is_batch_operand<type>) {
        return batch_leaf<Scalar>(argument);
    } else if constexpr (device_matrix_like<type>) {
        return batch_leaf<Scalar>(std::forward<Argument>(argument).operand().matrix);
    } else {
        return batch_leaf<Scalar>(eigen::make_leaf(std::forward<Argument>(argument)));
    }
}
template <class Scalar, class Argument>
void append(batched_kron<Scalar>& k, Argument&& argument) {
    using type = eigen::bare<Argument>;
    if constexpr (std::is_same_v<type, identity_factor>) {
        k.append(batch_leaf<Scalar>(leaf::identity(argument.order)));
    } else if constexpr (eigen::is_kron<type> || device_kron_like<type>) {
        static_assert(std::is_same_v<typename type::Scalar, Scalar>,
                      "otimes: batched: all operands have one scalar type; convert the others with .cast<Scalar>().");
        k.append(argument);
    } else {
        static_assert(
            is_batch_operand<type> || single_matrix<type>,
            "otimes: batched: kron() of a batch takes batches, dense matrices, identity(n) and krons of them.");
        k.append(make_leaf<Scalar>(std::forward<Argument>(argument)));
    }
}

template <class... Arguments>
struct first_batch;
template <class First, class... Rest>
struct first_batch<First, Rest...> {
    using type =
        typename std::conditional_t<is_batch_operand<First>, std::type_identity<First>, first_batch<Rest...>>::type;
};
template <>
struct first_batch<> {
    using type = void;
};

template <class Kron>
requires(eigen::is_kron<Kron> || device_kron_like<Kron>) auto shared(const Kron& k) {
    auto result = std::make_shared<batched_kron<typename Kron::Scalar>>();
    result->append(k);
    return result;
}
template <class Scalar>
std::shared_ptr<const batched_kron<Scalar>> shared(batched_kron<Scalar> k) {
    return std::make_shared<const batched_kron<Scalar>>(std::move(k));
}

template <class Type>
inline constexpr bool is_batched_kron = false;
template <class Scalar>
inline constexpr bool is_batched_kron<batched_kron<Scalar>> = true;
template <class Type>
inline constexpr bool is_product = false;
template <class Scalar>
inline constexpr bool is_product<batched_product<Scalar>> = true;

template <class Type>
concept some_kron =
    is_batched_kron<eigen::bare<Type>> || eigen::is_kron<eigen::bare<Type>> || device_kron_like<eigen::bare<Type>>;
/// A kron and what it is multiplied by make a batch.
template <class Kron, class Matrix>
concept batched_pair = (some_kron<Kron> && is_batch_operand<eigen::bare<Matrix>>) ||
                       (is_batched_kron<eigen::bare<Kron>> && single_matrix<Matrix>);

/// A batch, a kron of batches, a product of these.
template <class Type>
concept some_batched = is_batch_operand<Type> || is_batched_kron<Type> || is_product<Type>;
template <class Type, class Other>
concept multiplies_batch = some_batched<Other> &&(batched_pair<Type, Other> || (some_kron<Type> && is_product<Other>) ||
                                                  eigen::amount<Type, typename Other::Scalar>);
/// What has no product: a batch beside a matrix or another batch, a sum of krons, ..
template <class First, class Second>
concept refused_pair = (some_batched<First> ||
                        some_batched<Second>)&&!(multiplies_batch<First, Second> || multiplies_batch<Second, First> ||
                                                 batched_pair<First, Second> || batched_pair<Second, First>);

}  // namespace batches

/// kron(F1, .., FN) where an argument is a batch; the others are shared by all items, as kron() keeps them.
/// @throws shape_error extents overflow. @throws unsupported_error a kron with a factor that is not dense
template <class... Factors>
requires any_batch_operand<Factors...>
[[nodiscard]] auto kron(Factors&&... factors) {
    using scalar = typename batches::first_batch<eigen::bare<Factors>...>::type::Scalar;
    batched_kron<scalar> k;
    (batches::append(k, std::forward<Factors>(factors)), ...);
    k.check_extents();
    return k;
}

/// kron(F, .., F), `count` times, of every item. @throws shape_error extents overflow, a count below 1
template <class Batch>
requires is_batch_operand<eigen::bare<Batch>>
[[nodiscard]] auto kron_power(const Batch& batch, std::int64_t count) {
    if (count < 1) {
        throw shape_error("otimes: kron_power(batched(F), " + std::to_string(count) +
                          "): of a batch at least one factor is needed.");
    }
    batched_kron<typename eigen::bare<Batch>::Scalar> k;
    for (std::int64_t i = 0; i < count; ++i) {
        batches::append(k, batch);
    }
    k.check_extents();
    return k;
}

/// @name Products. @throws shape_error
/// @{
template <class Matrix, class Kron>
requires batches::batched_pair<Kron, Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const Kron& k) {
    using scalar = typename Kron::Scalar;
    auto right = batches::shared(k);
    const scalar alpha = right->alpha();
    return batched_product<scalar>(batches::make_leaf<scalar>(std::forward<Matrix>(x)), nullptr, std::move(right),
                                   alpha);
}
template <class Kron, class Matrix>
requires batches::batched_pair<Kron, Matrix>
[[nodiscard]] auto operator*(const Kron& k, Matrix&& x) {
    using scalar = typename Kron::Scalar;
    auto left = batches::shared(k);
    const scalar alpha = left->alpha();
    return batched_product<scalar>(batches::make_leaf<scalar>(std::forward<Matrix>(x)), std::move(left), nullptr,
                                   alpha);
}
/// The other side; a product takes one kron on each.
template <class Scalar, class Kron>
requires batches::some_kron<Kron>
[[nodiscard]] auto operator*(const batched_product<Scalar>& p, const Kron& k) {
    static_assert(
        std::is_same_v<typename Kron::Scalar, Scalar>,
        "otimes: batched: both krons of a product have one scalar type; convert the factors of the other with "
        ".cast<Scalar>().");
    if (p.right()) {
        throw unsupported_error("otimes: batched: X * K * L; multiply by one kron on each side, or evaluate first.");
    }
    auto right = batches::shared(k);
    const Scalar alpha = p.alpha() * right->alpha();
    return batched_product<Scalar>(p.x(), p.left(), std::move(right), alpha);
}
template <class Scalar, class Kron>
requires batches::some_kron<Kron>
[[nodiscard]] auto operator*(const Kron& k, const batched_product<Scalar>& p) {
    static_assert(
        std::is_same_v<typename Kron::Scalar, Scalar>,
        "otimes: batched: both krons of a product have one scalar type; convert the factors of the other with "
        ".cast<Scalar>().");
    if (p.left()) {
        throw unsupported_error("otimes: batched: L * K * X; multiply by one kron on each side, or evaluate first.");
    }
    auto left = batches::shared(k);
    const Scalar alpha = p.alpha() * left->alpha();
    return batched_product<Scalar>(p.x(), std::move(left), p.right(), alpha);
}
/// @}

/// @name Scalar multiples.
/// @{
template <class Batch, class Amount>
requires(is_batch_operand<Batch>&& eigen::amount<Amount, typename Batch::Scalar>) [[nodiscard]] auto operator*(
    const Amount& amount, const Batch& x) {
    using scalar = typename Batch::Scalar;
    return batched_product<scalar>(batch_leaf<scalar>(x), nullptr, nullptr, detail::amount_as<scalar>(amount));
}
template <class Batch, class Amount>
requires(is_batch_operand<Batch>&& eigen::amount<Amount, typename Batch::Scalar>) [[nodiscard]] auto operator*(
    const Batch& x, const Amount& amount) {
    return amount * x;
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const batched_product<Scalar>& p) {
    return batched_product<Scalar>(p.x(), p.left(), p.right(), detail::amount_as<Scalar>(amount) * p.alpha());
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const batched_product<Scalar>& p, const Amount& amount) { return amount * p; }
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const Amount& amount, const batched_kron<Scalar>& k) {
    return k.scaled(detail::amount_as<Scalar>(amount));
}
template <class Scalar, class Amount>
requires eigen::amount<Amount, Scalar>
[[nodiscard]] auto operator*(const batched_kron<Scalar>& k, const Amount& amount) { return amount * k; }
template <class Batched>
requires batches::some_batched<Batched>
[[nodiscard]] auto operator-(const Batched& x) { return typename Batched::Scalar(-1) * x; }
template <class Batched, class Amount>
requires(batches::some_batched<Batched>&& eigen::amount<Amount, typename Batched::Scalar>) [[nodiscard]] auto operator/(
    const Batched& x, const Amount& amount) {
    using scalar = typename Batched::Scalar;
    static_assert(!std::is_integral_v<scalar>,
                  "otimes: batched: matrices of integers cannot be divided, since 1 / n is 0.");
    return (scalar(1) / detail::amount_as<scalar>(amount)) * x;
}
/// @}

/// @name Refused.
/// @{
template <class First, class Second>
requires batches::refused_pair<First, Second>
const First& operator*(const First& a, const Second&) {
    static_assert(
        eigen::always_false<First>,
        "otimes: batched: a batch is multiplied by a kron and by numbers. Write batched(X) * kron(batched(A)) "
        "for one product an item, and apply a sum of krons term by term.");
    return a;
}
template <class First, class Second>
requires(batches::some_batched<First> || batches::some_batched<Second>) const First& operator+(const First& a,
                                                                                               const Second&) {
    static_assert(
        eigen::always_false<First>,
        "otimes: batched: batches have no sums. Write one after the other: batched(Y) = ..; batched(Y) += ..");
    return a;
}
template <class First, class Second>
requires(batches::some_batched<First> || batches::some_batched<Second>) const First& operator-(const First& a,
                                                                                               const Second& b) {
    return a + b;
}
/// @}

/// @name Names the executor of one assignment to a batch or a view, as for matrices.
/// @{
template <class Element>
[[nodiscard]] on_executor<batch_view<Element>> on(const executor& e, const batch_view<Element>& destination) {
    return on_executor<batch_view<Element>>(e, batch_view<Element>(destination));
}
template <class Element, std::size_t Order>
[[nodiscard]] on_executor<strided_view<Element, Order>> on(const executor& e,
                                                           const strided_view<Element, Order>& destination) {
    return on_executor<strided_view<Element, Order>>(e, strided_view<Element, Order>(destination));
}
/// @}

/// @name Plans of batched products, as of a product: made once, run many times, for a batch without gaps by columns or stored as `y` is; where factors
/// differ from item to item, or items are given by pointers, the plan of one item, for any number of them. @throws shape_error, budget_error
/// @{
template <class Scalar>
[[nodiscard]] plan make_plan(const batched_product<Scalar>& p, const options& wishes = {}) {
    return p.make_plan(wishes);
}
template <class Scalar>
[[nodiscard]] plan make_plan(const batch_view<Scalar>& y, const batched_product<Scalar>& p,
                             const options& wishes = {}) {
    return p.make_plan_into(y, wishes);
}
/// Body of plan::run(batched(Y), batched(X) * K); Y may be the vector of matrices, too, whose addresses are then listed at each run.
template <class Destination, class Scalar>
void run_bound_plan(const plan& p, Destination& y, const batched_product<Scalar>& expression, void* workspace,
                    std::int64_t available_bytes) {
    const batches::planned by{&p, workspace, available_bytes};
    if constexpr (is_batch_operand<std::remove_cvref_t<Destination>>) {
        expression.write_to(y, Scalar(1), false, by);
    } else {
        expression.write_to(batched(y), Scalar(1), false, by);
    }
}
/// @}

/// The plan of a batched product as text.
template <class Scalar>
[[nodiscard]] std::string explain(const batched_product<Scalar>& p, const options& wishes = {}) {
    std::int64_t items = 1;
    const plan made = p.make_plan(wishes, &items);
    return batches::explain_items(made, items);
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

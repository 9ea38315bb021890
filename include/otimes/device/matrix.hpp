// SPDX-License-Identifier: MIT
/// @file matrix.hpp
/// Matrices in device memory: DeviceMatrix, which owns it, and DeviceMap, which does not.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <otimes/device/evaluate.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/half.hpp>

namespace otimes {

namespace device {

/// What DeviceMap reads: memory that somebody else owns, `Element` const where it must not be written.
template <class Element, int Order>
class mapped {
public:
    using Scalar = std::remove_const_t<Element>;
    static constexpr bool IsRowMajor = Order == 1;
    static_assert(dtype_of<Scalar>() != dtype::other,
                  "otimes: a device_map is of float, double, their complex types, otimes::half or otimes::bfloat16. "
                  "CUDA's own types of these have the same layout: cast the pointer.");
    static_assert(Order == 0 || Order == 1, "otimes: the order of a device_map is 0 (column-major) or 1 (row-major).");

    /// @pre data is device memory of the executor's device; outer_stride >= the inner extent, in elements.
    mapped(Element* data, std::int64_t rows, std::int64_t cols, std::int64_t outer_stride)
        : data_(data), rows_(rows), cols_(cols), outer_stride_(outer_stride) {
        const std::int64_t inner = IsRowMajor ? cols : rows;
        const std::int64_t lines = IsRowMajor ? rows : cols;
        std::int64_t end = 0;
        if (rows < 0 || cols < 0 || outer_stride < inner ||
            (inner > 0 && lines > 0 &&
             (!checked_multiply(lines - 1, outer_stride, end) || !checked_add(end, inner, end) ||
              !checked_multiply(end, static_cast<std::int64_t>(sizeof(Scalar)), end)))) {
            throw shape_error("otimes: device_map: " + detail::shape_text(rows, cols) + " with an outer stride of " +
                              std::to_string(outer_stride) +
                              "; the extents must not be negative, the stride at least " + std::to_string(inner) +
                              ", and the last element must lie within 2^63 - 1 bytes.");
        }
    }

    [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
    [[nodiscard]] std::int64_t size() const noexcept { return rows_ * cols_; }
    [[nodiscard]] std::int64_t outer_stride() const noexcept { return outer_stride_; }
    [[nodiscard]] Element* data() const noexcept { return data_; }
    [[nodiscard]] matrix_view view() const noexcept {
        return {data_, rows_, cols_, IsRowMajor ? outer_stride_ : 1, IsRowMajor ? 1 : outer_stride_};
    }
    [[nodiscard]] const device_executor* home() const noexcept { return nullptr; }
    [[nodiscard]] device::operand operand() const {
        device::operand o{leaf::borrowed(view()), nullptr};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device_product<Scalar> expression() const { return device_product<Scalar>(operand()); }
    [[nodiscard]] device_product<Scalar> transpose() const { return expression().transpose(); }
    [[nodiscard]] device_product<Scalar> conjugate() const { return expression().conjugate(); }
    [[nodiscard]] device_product<Scalar> adjoint() const { return expression().adjoint(); }
    /// A row or a column as the diagonal of a square factor or term: kron(A, d.asDiagonal()), K + d.asDiagonal(). Borrowed like a view.
    [[nodiscard]] auto asDiagonal() const {
        return device::diagonal_of(static_cast<const DeviceMap<Element, Order>&>(*this));
    }
    /// @name Numbers: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return expression().squaredNorm(); }
    [[nodiscard]] auto norm() const { return expression().norm(); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return expression().dot(y);
    }
    /// @}
    template <class Host = dynamic_host_matrix<Scalar, Order>>
    [[nodiscard]] Host to_host() const {
        return DeviceMatrix<Scalar, Order>(expression()).template to_host<Host>();
    }

private:
    Element* data_;
    std::int64_t rows_;
    std::int64_t cols_;
    std::int64_t outer_stride_;
};

}  // namespace device

/// Device memory that somebody else owns, as a matrix. Order: 0 column-major, 1 row-major (Eigen's numbers). Assigning to
/// it writes through; it is never resized.
template <class ScalarType, int Order>
class DeviceMap : public device::mapped<ScalarType, Order> {
public:
    using Scalar = ScalarType;
    using device::mapped<Scalar, Order>::mapped;
    DeviceMap(const DeviceMap&) = default;

    /// Y = expression, and the sums. Safe when Y overlaps operands. @throws shape_error when the shapes differ.
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator=(const Value& value) const {
        device::require_shape(value, this->rows(), this->cols(), "Y = expression");
        device::assign<Order>(value, this->view(), false, Scalar(1), nullptr);
        return *this;
    }
    const DeviceMap& operator=(const DeviceMap& other) const {
        return this == &other ? *this : *this = other.expression();
    }
    template <device::matrix_of<ScalarType> Matrix>
    const DeviceMap& operator=(const Matrix& other) const {
        return *this = other.expression();
    }
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator+=(const Value& value) const {
        device::require_shape(value, this->rows(), this->cols(), "Y += expression");
        device::assign<Order>(value, this->view(), true, Scalar(1), nullptr);
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    const DeviceMap& operator-=(const Value& value) const {
        device::require_shape(value, this->rows(), this->cols(), "Y -= expression");
        device::assign<Order>(value, this->view(), true, -Scalar(1), nullptr);
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator+=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    const DeviceMap& operator-=(const Other&) const {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::host_matrix Matrix>
    const DeviceMap& operator=(const Matrix&) const {
        device::refuse_other_memory<DeviceMap>();
        return *this;
    }
    /// Promises that Y overlaps no operand. @throws alias_error when it does.
    [[nodiscard]] device::without_alias<const DeviceMap> noalias() const {
        return device::without_alias<const DeviceMap>(*this);
    }
    template <class Value>
    void take_shape(const Value&) const noexcept {}
};

/// The same of memory that is only read.
template <class ScalarType, int Order>
class DeviceMap<const ScalarType, Order> : public device::mapped<const ScalarType, Order> {
public:
    using device::mapped<const ScalarType, Order>::mapped;
    DeviceMap(const DeviceMap&) = default;

    /// @name Do not compile.
    /// @{
    template <class Value>
    const DeviceMap& operator=(const Value&) const {
        return refuse<Value>();
    }
    const DeviceMap& operator=(const DeviceMap&) const = delete;
    template <class Value>
    const DeviceMap& operator+=(const Value&) const {
        return refuse<Value>();
    }
    template <class Value>
    const DeviceMap& operator-=(const Value&) const {
        return refuse<Value>();
    }
    /// @}

private:
    template <class Value>
    const DeviceMap& refuse() const {
        static_assert(
            device::always_false<Value>,
            "otimes: this device_map is of const memory, which is not assigned to. Map a pointer to non-const.");
        return *this;
    }
};

/// Borrowed device memory of any alignment as a matrix. Order: Eigen::ColMajor (0) or Eigen::RowMajor (1).
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<Scalar, Order> device_map(Scalar* data, std::int64_t rows, std::int64_t cols,
                                                  std::int64_t outer_stride) {
    return {data, rows, cols, outer_stride};
}
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<Scalar, Order> device_map(Scalar* data, std::int64_t rows, std::int64_t cols) {
    return {data, rows, cols, Order == 1 ? cols : rows};
}
/// The same of memory that is only read.
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<const Scalar, Order> device_map(const Scalar* data, std::int64_t rows, std::int64_t cols,
                                                        std::int64_t outer_stride) {
    return {data, rows, cols, outer_stride};
}
template <class Scalar, int Order = 0>
[[nodiscard]] DeviceMap<const Scalar, Order> device_map(const Scalar* data, std::int64_t rows, std::int64_t cols) {
    return {data, rows, cols, Order == 1 ? cols : rows};
}

/// A matrix that owns device memory. Allocated, used and freed in the order of its executor's stream, so no call waits
/// except `to_host`. Order: 0 column-major, 1 row-major.
template <class ScalarType, int Order = 0>
class DeviceMatrix {
    static_assert(dtype_of<ScalarType>() != dtype::other,
                  "otimes: a DeviceMatrix holds float, double, their complex types, otimes::half or otimes::bfloat16.");
    static_assert(Order == 0 || Order == 1,
                  "otimes: the order of a DeviceMatrix is 0 (column-major) or 1 (row-major).");

public:
    using Scalar = ScalarType;
    static constexpr bool IsRowMajor = Order == 1;

    /// 0 x 0; the first assignment gives it a shape.
    DeviceMatrix() = default;
    explicit DeviceMatrix(const device_executor& where) : home_(&where) {}
    /// Uninitialised. @throws shape_error for negative or overflowing extents, device_error when memory is short.
    DeviceMatrix(std::int64_t rows, std::int64_t cols) { resize(rows, cols); }
    DeviceMatrix(std::int64_t rows, std::int64_t cols, const device_executor& where) : home_(&where) {
        resize(rows, cols);
    }
    // Those that may throw behind the allocation begin as an empty matrix, whose destructor gives the memory back.
    /// Copy of a host matrix or expression.
    template <device::host_matrix Matrix>
    explicit DeviceMatrix(const Matrix& host) : DeviceMatrix() {
        assign_host(host);
    }
    template <device::host_matrix Matrix>
    DeviceMatrix(const Matrix& host, const device_executor& where) : DeviceMatrix(where) {
        assign_host(host);
    }
    /// Evaluates an expression: `DeviceMatrix<double> dY = dX * K`.
    template <device::value_of<ScalarType> Value>
    DeviceMatrix(const Value& value) : DeviceMatrix() {
        *this = value;
    }
    DeviceMatrix(const DeviceMatrix& other) : DeviceMatrix() {
        home_ = other.home_;
        copy_elements(other);
    }
    template <device::matrix_of<ScalarType> Matrix>
    explicit DeviceMatrix(const Matrix& other) : DeviceMatrix() {
        home_ = other.home();
        *this = other.expression();
    }
    DeviceMatrix(DeviceMatrix&& other) noexcept { swap(other); }
    ~DeviceMatrix() { free(); }

    DeviceMatrix& operator=(const DeviceMatrix& other) {
        if (this != &other) {
            copy_elements(other);
        }
        return *this;
    }
    DeviceMatrix& operator=(DeviceMatrix&& other) noexcept {
        swap(other);
        return *this;
    }
    template <device::matrix_of<ScalarType> Matrix>
    DeviceMatrix& operator=(const Matrix& other) {
        return *this = other.expression();
    }
    template <device::host_matrix Matrix>
    DeviceMatrix& operator=(const Matrix& host) {
        static_assert(
            !requires { host.node(); },
            "otimes: X is in host memory and Y in device memory; X and Y must share a memory space. Write "
            "dY = dX * K with DeviceMatrix<Scalar> dX(X), or dY = (X * K).eval() to compute on the host.");
        assign_host(host);
        return *this;
    }

    /// Y = expression: takes its shape. Safe when Y is one of its operands: it then gets other memory. @throws device_error where that would be in a
    /// capture, as for another size
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator=(const Value& value) {
        device::check_shapes(value);
        if (home_ == nullptr) {
            home_ = &device::executor_for(device::home_of(value));
        }
        if (value.reads(view())) {
            device::executor_for(home_).require_no_capture("a matrix that is its own operand would get other memory");
            DeviceMatrix result(*home_);
            result = value;
            swap(result);
        } else {
            take_shape(value);
            device::evaluate(value, view(), false, Scalar(1), home_);
        }
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator+=(const Value& value) {
        device::require_shape(value, rows_, cols_, "Y += expression");
        device::assign<Order>(value, view(), true, Scalar(1), home_);
        return *this;
    }
    template <device::value_of<ScalarType> Value>
    DeviceMatrix& operator-=(const Value& value) {
        device::require_shape(value, rows_, cols_, "Y -= expression");
        device::assign<Order>(value, view(), true, -Scalar(1), home_);
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator+=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    template <device::value_of_another<ScalarType> Other>
    DeviceMatrix& operator-=(const Other&) {
        device::refuse_another_scalar<Other>();
        return *this;
    }
    /// Promises that Y overlaps no operand. @throws alias_error when it does.
    [[nodiscard]] device::without_alias<DeviceMatrix> noalias() { return device::without_alias<DeviceMatrix>(*this); }

    [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
    [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
    [[nodiscard]] std::int64_t size() const noexcept { return rows_ * cols_; }
    [[nodiscard]] std::int64_t outer_stride() const noexcept { return IsRowMajor ? cols_ : rows_; }
    [[nodiscard]] Scalar* data() noexcept { return data_; }
    [[nodiscard]] const Scalar* data() const noexcept { return data_; }
    /// The executor in whose stream's order the memory is used; nullptr before there is any.
    [[nodiscard]] const device_executor* home() const noexcept { return home_; }
    [[nodiscard]] matrix_view view() const noexcept {
        return {data_, rows_, cols_, IsRowMajor ? cols_ : 1, IsRowMajor ? 1 : rows_};
    }
    [[nodiscard]] DeviceMap<Scalar, Order> map() noexcept { return {data_, rows_, cols_, outer_stride()}; }

    [[nodiscard]] device::operand operand() const& {
        device::operand o{
            leaf::borrowed(this, [](const void* m) { return static_cast<const DeviceMatrix*>(m)->view(); }), home_};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device::operand operand() && {
        const device_executor* const home = home_;
        auto kept = std::make_shared<const DeviceMatrix>(std::move(*this));
        const matrix_view where = kept->view();
        device::operand o{leaf::owned(std::move(kept), where), home};
        o.matrix.set_space(memory_space::device);
        return o;
    }
    [[nodiscard]] device_product<Scalar> expression() const { return device_product<Scalar>(operand()); }
    [[nodiscard]] device_product<Scalar> transpose() const { return expression().transpose(); }
    [[nodiscard]] device_product<Scalar> conjugate() const { return expression().conjugate(); }
    [[nodiscard]] device_product<Scalar> adjoint() const { return expression().adjoint(); }
    /// A row or a column as the diagonal of a square factor or term: kron(A, d.asDiagonal()), K + d.asDiagonal(). Borrowed like a view.
    [[nodiscard]] auto asDiagonal() const& { return device::diagonal_of(*this); }
    [[nodiscard]] auto asDiagonal() && { return device::diagonal_of(std::move(*this)); }
    /// @name Numbers: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return expression().squaredNorm(); }
    [[nodiscard]] auto norm() const { return expression().norm(); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return expression().dot(y);
    }
    /// @}

    /// A copy on the host, an Eigen matrix unless said otherwise; waits for the device. `Host` holds this scalar and has what is asked of an
    /// Eigen matrix: PlainObject, Flags, a constructor from rows and columns, eval(), data(), innerStride(), outerStride().
    /// @throws shape_error a type of other fixed extents
    template <class Host = dynamic_host_matrix<Scalar, Order>>
    [[nodiscard]] Host to_host() const {
        device::require_host_shape<Host>("DeviceMatrix::to_host", rows_, cols_);
        Host host(rows_, cols_);
        copy_to(host);
        return host;
    }
    /// Waiting for the device is not done by accident.
    template <device::assigned_host_matrix Host>
    operator Host() const {
        static_assert(device::always_false<Host>,
                      "otimes: a matrix in device memory does not turn into one in host memory by itself. Write Y = "
                      "dX.to_host(), which waits for the device.");
        return Host();
    }
    /// The same into a matrix or a view of one of the right shape. @throws shape_error when it differs.
    template <device::host_matrix Host>
    void copy_to(Host& host) const {
        static_assert(std::is_same_v<typename Host::Scalar, Scalar>,
                      "otimes: copying to the host: the host matrix has another scalar type. Write "
                      "dX.to_host().cast<Scalar>().");
        static_assert(device::has_writable_data<Host>,
                      "otimes: DeviceMatrix::copy_to(host): this is const, or an expression that has no memory of its "
                      "own. Give it a matrix or a view (Map, Ref, Block) that can be written.");
        if (host.rows() != rows_ || host.cols() != cols_) {
            throw shape_error("otimes: DeviceMatrix::copy_to: the host matrix is " +
                              detail::shape_text(host.rows(), host.cols()) + ", the device matrix " +
                              detail::shape_text(rows_, cols_) + ".");
        }
        if (rows_ != 0 && cols_ != 0) {
            home_->download(host_side(device::host_leaf(host).view()), data_);
        }
    }

    /// Changes the shape; the elements are lost. Keeps the memory when the size stays.
    void resize(std::int64_t rows, std::int64_t cols) {
        std::int64_t count = 0;
        std::int64_t bytes = 0;
        if (rows < 0 || cols < 0 || !checked_multiply(rows, cols, count) ||
            !checked_multiply(count, static_cast<std::int64_t>(sizeof(Scalar)), bytes)) {
            throw shape_error("otimes: DeviceMatrix: " + detail::shape_text(rows, cols) +
                              " is no shape; extents must not be negative and the bytes fit in 63 bits.");
        }
        if (home_ == nullptr) {
            home_ = &device::executor_for(nullptr);
        }
        if (bytes != bytes_) {
            if (data_ != nullptr) {  // a graph could not free it, and would write to memory of its own
                home_->require_no_capture("a matrix would get memory of another size");
            }
            free();
            data_ = bytes == 0 ? nullptr : static_cast<Scalar*>(home_->allocate(bytes));
            bytes_ = bytes;
        }
        rows_ = rows;
        cols_ = cols;
    }
    /// The shape of an expression, in memory of the executor that evaluates it where this has none yet.
    /// @throws device_error as its evaluation would for where its operands are, before the elements are lost
    template <class Value>
    void take_shape(const Value& value) {
        if (home_ == nullptr) {
            home_ = &device::executor_for(device::home_of(value));
        }
        if (data_ != nullptr && (rows_ != value.rows() || cols_ != value.cols())) {
            value.require_reach(device::executor_for(home_));
        }
        resize(value.rows(), value.cols());
    }

    void swap(DeviceMatrix& other) noexcept {
        std::swap(home_, other.home_);
        std::swap(data_, other.data_);
        std::swap(rows_, other.rows_);
        std::swap(cols_, other.cols_);
        std::swap(bytes_, other.bytes_);
    }

private:
    void free() noexcept {
        if (data_ != nullptr) {
            home_->release(data_, bytes_);
        }
        data_ = nullptr;
        bytes_ = 0;
        rows_ = cols_ = 0;
    }
    /// The host matrix's modes in this matrix's memory order.
    [[nodiscard]] static host_tensor host_side(const matrix_view& m) {
        host_tensor t;
        t.data = const_cast<void*>(m.data);
        t.element_bytes = static_cast<std::int64_t>(sizeof(Scalar));
        if constexpr (IsRowMajor) {
            t.modes = {{m.rows, m.row_stride}, {m.cols, m.col_stride}};
        } else {
            t.modes = {{m.cols, m.col_stride}, {m.rows, m.row_stride}};
        }
        return t;
    }
    template <class Matrix>
    void assign_host(const Matrix& host) {
        static_assert(std::is_same_v<typename Matrix::Scalar, Scalar>,
                      "otimes: the host matrix has another scalar type; convert it with .cast<Scalar>().");
        if (home_ == nullptr) {
            home_ = &device::executor_for(nullptr);
        }
        if (host.rows() != 0 && host.cols() != 0) {  // before there is memory, which a graph would get
            home_->require_no_capture("host memory is copied to the device");
        }
        resize(host.rows(), host.cols());
        if (rows_ != 0 && cols_ != 0) {
            const leaf kept = device::host_leaf(host);
            home_->upload(data_, host_side(kept.view()));
        }
    }
    void copy_elements(const DeviceMatrix& other) {
        if (other.data_ == nullptr) {
            free();
            rows_ = other.rows_;
            cols_ = other.cols_;
        } else {
            *this = other.expression();
        }
    }

    const device_executor* home_ = nullptr;
    Scalar* data_ = nullptr;
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t bytes_ = 0;
};

}  // namespace otimes

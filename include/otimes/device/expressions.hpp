// SPDX-License-Identifier: MIT
/// @file expressions.hpp
/// The lazy expressions over device memory as values: products, sums of them, Kronecker products and sums of these.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <otimes/device/operands.hpp>
#include <otimes/expr/messages.hpp>

namespace otimes {

namespace device {

/// What products and sums in device memory have in common: how they become a matrix.
template <class Derived, class Scalar>
class lazy_value {
public:
    /// The value in memory of its own.
    template <int Order = 0>
    [[nodiscard]] DeviceMatrix<Scalar, Order> eval() const {
        return DeviceMatrix<Scalar, Order>(static_cast<const Derived&>(*this));
    }
    /// The value on the host; waits. See DeviceMatrix::to_host.
    template <class Host = dynamic_host_matrix<Scalar>>
    [[nodiscard]] Host to_host() const {
        return eval().template to_host<Host>();
    }
    /// A host matrix cannot be assigned from device memory by accident.
    template <assigned_host_matrix Matrix>
    operator Matrix() const {
        static_assert(always_false<Matrix>,
                      "otimes: X is in device memory and Y in host memory; X and Y must share a memory space. Write "
                      "Y = (dX * K).to_host(), or assign to a DeviceMatrix.");
        return Matrix();
    }
};

/// Instantiated by the overload resolution of `dY = K`.
template <class Scalar>
struct refuse_matrix {
    static_assert(
        always_false<Scalar>,
        "otimes: a Kronecker product does not turn into a matrix by itself. Multiply it with a matrix: dY = dX * K.");
    static constexpr int order = 0;
};
/// What Kronecker products and their sums in device memory have in common: they are no matrices.
class no_matrix {
public:
    template <class Scalar, int Order, int = refuse_matrix<Scalar>::order>
    operator DeviceMatrix<Scalar, Order>() const;
    template <class Scalar, int Order, int = refuse_matrix<Scalar>::order>
    operator DeviceMap<Scalar, Order>() const;
};

}  // namespace device

/// `alpha * L * X * R` over device memory, lazy; also a transpose or a scalar multiple of a device matrix alone. Copying it
/// is cheap. Lifetimes as in expr/leaf.hpp: lvalue matrices are borrowed, rvalues owned.
template <class ScalarType>
class device_product : public device::lazy_value<device_product<ScalarType>, ScalarType> {
public:
    using Scalar = ScalarType;

    explicit device_product(device::operand x) {
        node_.x = std::move(x.matrix);
        device::add_home(homes_, x.home);
    }
    device_product(product_node<Scalar> node, device::homes homes) : node_(std::move(node)), homes_(std::move(homes)) {}

    [[nodiscard]] std::int64_t rows() const { return node_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node_.cols(); }
    [[nodiscard]] const product_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] const device::homes& homes() const noexcept { return homes_; }
    /// True for a matrix without a kron beside it.
    [[nodiscard]] bool is_matrix() const noexcept { return !node_.has_left && !node_.has_right; }

    /// (alpha * L * X * R)^T = alpha * R^T * X^T * L^T.
    [[nodiscard]] device_product transpose() const {
        device_product result(*this);
        result.node_.x.transpose();
        std::swap(result.node_.left, result.node_.right);
        std::swap(result.node_.has_left, result.node_.has_right);
        for (factor_list* const list : {&result.node_.left, &result.node_.right}) {
            for (leaf& f : *list) {
                f.transpose();
            }
        }
        return result;
    }
    [[nodiscard]] device_product conjugate() const {
        device_product result(*this);
        if constexpr (detail::is_complex_scalar<Scalar>) {
            result.node_.x.conjugate();
            result.node_.alpha = detail::conjugate_of(result.node_.alpha);
            for (factor_list* const list : {&result.node_.left, &result.node_.right}) {
                for (leaf& f : *list) {
                    f.conjugate();
                }
            }
        }
        return result;
    }
    [[nodiscard]] device_product adjoint() const { return transpose().conjugate(); }
    /// A row or a column as a diagonal matrix; what is a product is evaluated now.
    [[nodiscard]] auto asDiagonal() const { return device::diagonal_of(*this); }

    /// @name Numbers, without the value itself: see device_algebra.hpp. They wait for the device.
    /// @{
    [[nodiscard]] auto squaredNorm() const { return device::squared_norm_of(*this); }
    [[nodiscard]] auto norm() const { return std::sqrt(squaredNorm()); }
    template <class Other>
    [[nodiscard]] auto dot(const Other& y) const {
        return device::dot_of(*this, y);
    }
    /// @}

    /// May evaluation read memory of `written`?
    [[nodiscard]] bool reads(const matrix_view& written) const {
        return any_operand([&](const leaf& f, tensor_role, std::int64_t bytes) {
            return overlap(memory_of(f.view(), bytes), memory_of(written, static_cast<std::int64_t>(sizeof(Scalar))));
        });
    }
    /// @throws device_error a matrix in device memory is where kernels of that executor do not reach
    void require_reach(const device_executor& where) const {
        static_cast<void>(any_operand([&](const leaf& f, tensor_role role, std::int64_t bytes) {
            if (f.is_dense() && f.rows() != 0 && f.cols() != 0) {
                where.require_reach(f.view().data, role, bytes);
            }
            return false;
        }));
    }

    product_node<Scalar>& edit() noexcept { return node_; }
    device::homes& edit_homes() noexcept { return homes_; }

private:
    /// Is `what(matrix, role, bytes of an element)` true for one in device memory?
    template <class What>
    [[nodiscard]] bool any_operand(const What& what) const {
        const auto is_one = [&](const leaf& f, tensor_role role) {
            const auto bytes =
                static_cast<std::int64_t>(f.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
            return f.space() == memory_space::device && !f.is_identity() && what(f, role, bytes);
        };
        bool any = is_one(node_.x, tensor_role::input);
        for (const factor_list* const list : {&node_.left, &node_.right}) {
            for (const leaf& f : *list) {
                any = any || is_one(f, tensor_role::factor);
            }
        }
        return any;
    }

    product_node<Scalar> node_;
    device::homes homes_;
};

/// A sum of products and matrices in device memory, lazy: `dX * K1 + 2 * dZ - dX * K2`. One program, whose launches share reads and writes of the
/// same X and Y where they can, and products of factors that several terms have where that is faster (lower_sums.hpp: then up to twice the memory of X and
/// Y for what lies between). The first is assigned, the others are added, and matrices come first. Where Y is an operand of any term, into a temporary.
/// Storage of 16 bits is rounded after every term.
template <class ScalarType>
class device_sum : public device::lazy_value<device_sum<ScalarType>, ScalarType> {
public:
    using Scalar = ScalarType;
    using term = device_product<Scalar>;

    explicit device_sum(term first) { terms_.push_back(std::move(first)); }

    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }
    [[nodiscard]] const std::vector<term>& terms() const noexcept { return terms_; }
    [[nodiscard]] const device_executor* home() const noexcept {
        for (const term& t : terms_) {
            if (!t.homes().empty()) {
                return t.homes()[0];
            }
        }
        return nullptr;
    }

    /// Appends `sign` times the terms of another sum. @throws shape_error when the shapes differ.
    void append(const device_sum& other, int sign) {
        if (other.rows() != rows() || other.cols() != cols()) {
            throw shape_error("otimes: sum of products in device memory: the first term is " +
                              detail::shape_text(rows(), cols()) + ", term " + std::to_string(terms_.size() + 1) +
                              " is " + detail::shape_text(other.rows(), other.cols()) + "; they must be equal.");
        }
        for (const term& t : other.terms_) {
            terms_.push_back(t);
            if (sign < 0) {
                terms_.back().edit().alpha = -terms_.back().node().alpha;
            }
        }
    }
    [[nodiscard]] device_sum scaled(const Scalar& amount) const {
        return each([&amount](term t) {
            t.edit().alpha = t.node().alpha * amount;
            return t;
        });
    }
    [[nodiscard]] device_sum transpose() const {
        return each([](const term& t) { return t.transpose(); });
    }
    [[nodiscard]] device_sum conjugate() const {
        return each([](const term& t) { return t.conjugate(); });
    }
    [[nodiscard]] device_sum adjoint() const { return transpose().conjugate(); }

    /// Numbers, without the sum itself: see device/sum_norms.hpp. They wait for the device.
    [[nodiscard]] auto squaredNorm() const { return otimes::squared_norm(*this); }
    [[nodiscard]] auto norm() const { return std::sqrt(squaredNorm()); }

    /// Checks every term again. @throws shape_error an operand was resized since.
    void check() const {
        for (const term& t : terms_) {
            t.node().check();
            if (t.rows() != rows() || t.cols() != cols()) {
                throw shape_error("otimes: sum of products in device memory: a term is " +
                                  detail::shape_text(t.rows(), t.cols()) + ", the first is " +
                                  detail::shape_text(rows(), cols()) + "; an operand was resized.");
            }
        }
    }
    [[nodiscard]] bool reads(const matrix_view& written) const {
        for (const term& t : terms_) {
            if (t.reads(written)) {
                return true;
            }
        }
        return false;
    }
    void require_reach(const device_executor& where) const {
        for (const term& t : terms_) {
            t.require_reach(where);
        }
    }

private:
    template <class Change>
    [[nodiscard]] device_sum each(const Change& change) const {
        device_sum result(change(terms_.front()));
        for (std::size_t i = 1; i < terms_.size(); ++i) {
            result.terms_.push_back(change(terms_[i]));
        }
        return result;
    }
    std::vector<term> terms_;
};

/// A Kronecker product with at least one factor in device memory, lazy. Mathematics and laws: expr/kron.hpp.
template <class ScalarType>
class device_kron : public device::no_matrix {
public:
    using Scalar = ScalarType;

    device_kron() = default;
    device_kron(kron_node<Scalar> node, device::homes homes) : node_(std::move(node)), homes_(std::move(homes)) {}

    [[nodiscard]] std::int64_t rows() const { return node_.rows(); }
    [[nodiscard]] std::int64_t cols() const { return node_.cols(); }
    [[nodiscard]] std::size_t factor_count() const noexcept { return node_.factors().size(); }
    [[nodiscard]] const kron_node<Scalar>& node() const noexcept { return node_; }
    [[nodiscard]] const device::homes& homes() const noexcept { return homes_; }

    [[nodiscard]] device_kron transpose() const {
        device_kron result(*this);
        result.node_.transpose();
        return result;
    }
    [[nodiscard]] device_kron conjugate() const {
        device_kron result(*this);
        result.node_.conjugate();
        return result;
    }
    [[nodiscard]] device_kron adjoint() const { return transpose().conjugate(); }

    /// @name Selected rows and columns, lazy (device/selected.hpp): lists of indices, also in braces, an index, Eigen's seq, last, lastN, and its
    /// all for one of the two; and ranges, named as Eigen names blocks. @throws shape_error
    /// @{
    template <class Rows, class Cols>
    [[nodiscard]] device_selected<Scalar> operator()(const Rows& rows, const Cols& cols) const {
        return device::select_from(*this, rows, cols);
    }
    template <class First, std::size_t RowCount, class Second, std::size_t ColCount>
    [[nodiscard]] device_selected<Scalar> operator()(const First (&rows)[RowCount],
                                                     const Second (&cols)[ColCount]) const {
        return device::select_from(*this, std::vector<First>(rows, rows + RowCount),
                                   std::vector<Second>(cols, cols + ColCount));
    }
    template <class First, std::size_t RowCount, class Cols>
    [[nodiscard]] device_selected<Scalar> operator()(const First (&rows)[RowCount], const Cols& cols) const {
        return device::select_from(*this, std::vector<First>(rows, rows + RowCount), cols);
    }
    template <class Rows, class Second, std::size_t ColCount>
    [[nodiscard]] device_selected<Scalar> operator()(const Rows& rows, const Second (&cols)[ColCount]) const {
        return device::select_from(*this, rows, std::vector<Second>(cols, cols + ColCount));
    }
    [[nodiscard]] device_selected<Scalar> block(std::int64_t i, std::int64_t j, std::int64_t r, std::int64_t c) const {
        return device::block_from(*this, i, j, r, c);
    }
    [[nodiscard]] auto middleRows(std::int64_t i, std::int64_t r) const { return block(i, 0, r, cols()); }
    [[nodiscard]] auto middleCols(std::int64_t j, std::int64_t c) const { return block(0, j, rows(), c); }
    [[nodiscard]] auto topRows(std::int64_t r) const { return block(0, 0, r, cols()); }
    [[nodiscard]] auto bottomRows(std::int64_t r) const { return block(rows() - r, 0, r, cols()); }
    [[nodiscard]] auto leftCols(std::int64_t c) const { return block(0, 0, rows(), c); }
    [[nodiscard]] auto rightCols(std::int64_t c) const { return block(0, cols() - c, rows(), c); }
    /// @}

    /// X with K X = B, B in device memory; copies the factors to the host and decomposes them there (otimes/algebra.hpp: include it).
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        return device::solve_with_copies(std::vector<device_kron>{*this}, b);
    }

    template <class Matrix>
    requires device::factor_or_x<Matrix> || device::host_matrix<Matrix> || device::is_kron<device::bare<Matrix>> ||
        device::host_kron<Matrix> || device::host_structure<Matrix> || device::is_identity_like<Matrix>
    void append(Matrix&& factor);

    kron_node<Scalar>& edit() noexcept { return node_; }

private:
    kron_node<Scalar> node_;
    device::homes homes_;
};

/// A sum of Kronecker products with factors in device memory, lazy: `K1 + 2 * K2`, `K - s * identity()`, `kron_sum(dA, dB)`.
/// `dX * S` and `S * dX` are sums of products (device_sum). A multiple of the identity adds to Y without a copy of X.
template <class ScalarType>
class device_operator : public device::no_matrix {
public:
    using Scalar = ScalarType;

    explicit device_operator(device_kron<Scalar> first) { terms_.push_back(std::move(first)); }

    [[nodiscard]] std::int64_t rows() const { return terms_.front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().cols(); }
    [[nodiscard]] std::size_t term_count() const noexcept { return terms_.size(); }
    [[nodiscard]] const std::vector<device_kron<Scalar>>& terms() const noexcept { return terms_; }

    /// Appends `sign` times the terms of another sum. @throws shape_error when the shapes differ.
    void append(const device_operator& other, int sign) {
        if (other.rows() != rows() || other.cols() != cols()) {
            throw shape_error("otimes: sum of Kronecker products in device memory: the first term is " +
                              detail::shape_text(rows(), cols()) + ", term " + std::to_string(terms_.size() + 1) +
                              " is " + detail::shape_text(other.rows(), other.cols()) + "; they must be equal.");
        }
        for (const device_kron<Scalar>& k : other.terms_) {
            terms_.push_back(k);
            if (sign < 0) {
                terms_.back().edit().set_alpha(-k.node().alpha());
            }
        }
    }
    /// Appends `amount` times the identity of this order. @throws shape_error when the operator is not square.
    void append_identity(const Scalar& amount, std::int64_t order) {
        detail::check_shift(rows(), cols(), order);
        kron_node<Scalar> node;
        node.append(leaf::identity(rows()));
        node.set_alpha(amount);
        terms_.emplace_back(std::move(node), device::homes());
    }
    [[nodiscard]] device_operator scaled(const Scalar& amount) const {
        return each([&amount](device_kron<Scalar> k) {
            k.edit().set_alpha(k.node().alpha() * amount);
            return k;
        });
    }
    [[nodiscard]] device_operator transpose() const {
        return each([](const device_kron<Scalar>& k) { return k.transpose(); });
    }
    [[nodiscard]] device_operator conjugate() const {
        return each([](const device_kron<Scalar>& k) { return k.conjugate(); });
    }
    [[nodiscard]] device_operator adjoint() const { return transpose().conjugate(); }

    /// X with S X = B, B in device memory, by the factors' eigenvectors; as device_kron::solve.
    template <class Rhs>
    [[nodiscard]] auto solve(const Rhs& b) const {
        return device::solve_with_copies(terms_, b);
    }

private:
    template <class Change>
    [[nodiscard]] device_operator each(const Change& change) const {
        device_operator result(*this);
        for (device_kron<Scalar>& k : result.terms_) {
            k = change(k);
        }
        return result;
    }
    std::vector<device_kron<Scalar>> terms_;
};

}  // namespace otimes

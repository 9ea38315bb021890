// SPDX-License-Identifier: MIT
/// @file row_products.hpp
/// Face-splitting and Khatri-Rao products of matrices in device memory, times a matrix there: `face_split(dA, dB) * dX`, `dX * khatri_rao(dA, dB)`.
/// Included by cuda.hpp. The CPU's: adapt/eigen/row_products.hpp.
///
///     face_split(A, B).row(i) = kron(A.row(i), B.row(i))           khatri_rao(A, B).col(k) = kron(A.col(k), B.col(k))
///
/// Neither is formed: with R = face_split(F1, .., FN), of I rows and P1 .. PN columns, R * X contracts PN by FN, which all rows share, and then the
/// others row by row; R^T * X goes the other way. Each is one program (expr/mode_products.hpp), evaluated when the product is written.
/// Memory: I * P1 * .. * P(N-1) * (columns of X) elements between its steps. Flops: 2 I P1 .. PN for a column of X, and less for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/expr/mode_products.hpp>

namespace otimes {

/// face_split(F1, .., FN), or its transpose; a khatri_rao is the transpose of a face_split of transposes. Factors are borrowed as in kron().
template <class ScalarType>
class device_row_product {
public:
    using Scalar = ScalarType;

    [[nodiscard]] std::int64_t rows() const { return transposed_ ? width() : items(); }
    [[nodiscard]] std::int64_t cols() const { return transposed_ ? items() : width(); }
    [[nodiscard]] bool transposed() const noexcept { return transposed_; }
    [[nodiscard]] const std::vector<leaf>& factors() const noexcept { return factors_; }
    [[nodiscard]] const device::homes& homes() const noexcept { return homes_; }
    /// The rows of the factors that are split.
    [[nodiscard]] std::int64_t items() const { return factors_.front().rows(); }

    [[nodiscard]] device_row_product transpose() const {
        device_row_product result(*this);
        result.transposed_ = !transposed_;
        return result;
    }
    [[nodiscard]] device_row_product conjugate() const {
        device_row_product result(*this);
        for (leaf& f : result.factors_) {
            f.conjugate();
        }
        return result;
    }
    [[nodiscard]] device_row_product adjoint() const { return transpose().conjugate(); }

    /// Appends a factor, an I x P matrix. @throws shape_error another I
    void append(const device_product<Scalar>& factor) {
        const device_product<Scalar> value = factor.is_matrix() && factor.node().alpha == Scalar(1)
                                                 ? factor
                                                 : device_product<Scalar>(device::evaluated(factor));
        if (!factors_.empty() && value.rows() != items()) {
            throw shape_error("otimes: face_split or khatri_rao in device memory: factor " +
                              std::to_string(factors_.size() + 1) + " has " + std::to_string(value.rows()) +
                              " rows (columns), factor 1 has " + std::to_string(items()) + "; they must be equal.");
        }
        factors_.push_back(value.node().x);
        for (const device_executor* const home : value.homes()) {
            device::add_home(homes_, home);
        }
    }

private:
    [[nodiscard]] std::int64_t width() const {
        std::int64_t product = 1;
        for (const leaf& f : factors_) {
            if (!checked_multiply(product, f.cols(), product)) {
                throw shape_error("otimes: face_split or khatri_rao in device memory: its width exceeds 2^63 - 1.");
            }
        }
        return product;
    }
    std::vector<leaf> factors_;
    device::homes homes_;
    bool transposed_ = false;
};

template <class Scalar>
inline constexpr bool is_device_operand<device_row_product<Scalar>> = true;

namespace device {

/// Y = R * X (`reduces`) or R^T * X, where the contracted index of X and the new one of Y have these strides, and the others too.
template <class Scalar>
detail::mode_products<Scalar> describe_rows(const device_row_product<Scalar>& r, bool reduces, std::int64_t columns,
                                            std::int64_t x_step, std::int64_t x_column, std::int64_t y_step,
                                            std::int64_t y_column) {
    detail::mode_products<Scalar> product;
    product.space = memory_space::device;
    const std::vector<leaf>& factors = r.factors();
    const std::size_t last = factors.size() - 1;
    std::int64_t stride = reduces ? x_step : y_step;  // of the wide side
    std::vector<detail::product_axis> axes(factors.size());
    for (std::size_t k = factors.size(); k-- > 0;) {
        const std::int64_t extent = factors[k].cols();
        const std::int64_t narrow = k == last ? r.items() : 1;
        const std::int64_t step = k < last ? 0 : reduces ? y_step : x_step;
        axes[k] = reduces ? detail::product_axis{extent, narrow, stride, step}
                          : detail::product_axis{narrow, extent, step, stride};
        stride *= extent;
    }
    for (const detail::product_axis& a : axes) {
        product.axes.push_back(a);
    }
    product.axes.push_back({columns, columns, x_column, y_column});
    const auto add = [&](std::size_t k) {
        const matrix_view f = factors[k].view();
        detail::axis_factor<Scalar> applied;
        applied.data = static_cast<const Scalar*>(f.data);
        applied.axis = static_cast<std::int32_t>(k);
        applied.conjugate = factors[k].conjugated();
        applied.space = memory_space::device;
        if (k == last) {
            applied.p_stride = reduces ? f.col_stride : f.row_stride;
            applied.q_stride = reduces ? f.row_stride : f.col_stride;
        } else {
            (reduces ? applied.p_stride : applied.q_stride) = f.col_stride;
            applied.item_strides.assign(product.axes.size(), 0);
            applied.item_strides[last] = f.row_stride;
        }
        product.factors.push_back(std::move(applied));
    };
    for (std::size_t i = 0; i <= last; ++i) {
        add(reduces ? last - i : i);
    }
    return product;
}

/// S * X (`from_left`) or X * S in memory of its own, of X's order.
template <bool FromLeft, int Order, class Scalar>
DeviceMatrix<Scalar, Order> multiply_rows(const device_product<Scalar>& given, const device_row_product<Scalar>& s) {
    const device_product<Scalar> value = given.is_matrix() ? given : device_product<Scalar>(evaluated(given));
    value.node().check();
    if ((FromLeft ? s.cols() : s.rows()) != (FromLeft ? value.rows() : value.cols())) {
        throw shape_error(std::string("otimes: ") + (FromLeft ? "S * X" : "X * S") +
                          " in device memory with a face_split or khatri_rao S: S is " +
                          detail::shape_text(s.rows(), s.cols()) + ", X is " +
                          detail::shape_text(value.rows(), value.cols()) + ".");
    }
    homes others = value.homes();
    for (const device_executor* const home : s.homes()) {
        add_home(others, home);
    }
    const device_executor& where = executor_for(others.empty() ? nullptr : others[0]);
    DeviceMatrix<Scalar, Order> y(FromLeft ? s.rows() : value.rows(), FromLeft ? value.cols() : s.cols(), where);
    if (y.rows() == 0 || y.cols() == 0) {
        return y;
    }
    const matrix_view from = value.node().x.view();
    const matrix_view to = y.view();
    // X * S = (S^T * X^T)^T: the same with rows and columns exchanged.
    detail::mode_products<Scalar> product = FromLeft ? describe_rows(s, !s.transposed(), from.cols, from.row_stride,
                                                                     from.col_stride, to.row_stride, to.col_stride)
                                                     : describe_rows(s, s.transposed(), from.rows, from.col_stride,
                                                                     from.row_stride, to.col_stride, to.row_stride);
    product.x = static_cast<const Scalar*>(from.data);
    product.y = y.data();
    product.conjugate_x = value.node().x.conjugated();
    product.alpha = value.node().alpha;
    run_on(where, others, [&](scratch& kept) {
        product.lower(kept.program, kept.bindings);
        where.evaluate(kept.program, kept.bindings);
    });
    return y;
}

template <bool OfColumns, class First, class... Rest>
auto row_product(First&& first, Rest&&... rest) {
    using scalar = typename bare<First>::Scalar;
    static_assert(
        (std::is_same_v<typename bare<Rest>::Scalar, scalar> && ...),
        "otimes: face_split and khatri_rao in device memory: the factors have different scalar types. Give them one.");
    static_assert(require_reducible<scalar>());
    device_row_product<scalar> result;
    const auto append = [&](auto&& factor) {
        const device_product<scalar> value = to_product(std::forward<decltype(factor)>(factor));
        result.append(OfColumns ? value.transpose() : value);
    };
    append(std::forward<First>(first));
    (append(std::forward<Rest>(rest)), ...);
    return OfColumns ? result.transpose() : result;
}

}  // namespace device

/// Row by row Kronecker products of matrices in device memory: row i is kron(F1.row(i), .., FN.row(i)). @throws shape_error unequal rows
template <class First, class... Rest>
requires(device::factor_or_x<First> && (device::factor_or_x<Rest> && ...))
    [[nodiscard]] auto face_split(First&& first, Rest&&... rest) {
    return device::row_product<false>(std::forward<First>(first), std::forward<Rest>(rest)...);
}
/// Column by column Kronecker products of matrices in device memory. @throws shape_error unequal columns
template <class First, class... Rest>
requires(device::factor_or_x<First> && (device::factor_or_x<Rest> && ...))
    [[nodiscard]] auto khatri_rao(First&& first, Rest&&... rest) {
    return device::row_product<true>(std::forward<First>(first), std::forward<Rest>(rest)...);
}

/// @name Products with them, a DeviceMatrix of X's order, queued at once. @throws shape_error
/// @{
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_row_product<Scalar>& s, const Matrix& x) {
    static_assert(std::is_same_v<typename Matrix::Scalar, Scalar>,
                  "otimes: face_split and khatri_rao in device memory: X has another scalar type. Give it theirs.");
    return device::multiply_rows<true, device::order_of<Matrix>>(device_product<Scalar>(device::to_product(x)), s);
}
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const Matrix& x, const device_row_product<Scalar>& s) {
    static_assert(std::is_same_v<typename Matrix::Scalar, Scalar>,
                  "otimes: face_split and khatri_rao in device memory: X has another scalar type. Give it theirs.");
    return device::multiply_rows<false, device::order_of<Matrix>>(device_product<Scalar>(device::to_product(x)), s);
}
/// @}

}  // namespace otimes

// After what it uses: few rows or columns of a kron are such products.
#include <otimes/device/selected.hpp>

// SPDX-License-Identifier: MIT
/// @file stacking.hpp
/// Matrices in device memory stacked into vectors, by columns (`vec`) or by rows (`vec_r`), with the convention in the type:
///
///     kron(A, B) * vec(dX)   = vec(B dX A^T)             kron(A, B) * vec_r(dX) = vec_r(A dX B^T)
///
/// Nothing is stacked and nothing transposed: the product runs on dX where it lies. Mixing the two conventions does not compile.
/// `unvec(dy, rows, cols)` and `unvec_r` go back without a copy. Included by cuda.hpp. The CPU's: adapt/eigen/vec.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <otimes/cuda.hpp>
#include <otimes/expr/stacking.hpp>
#include <otimes/program/checked.hpp>

namespace otimes {

/// A stacked matrix or sum of products in device memory, lazy. Operands are borrowed as in a product. `ByRows`: vec_r.
template <class ScalarType, bool ByRows>
class device_stacked {
public:
    using Scalar = ScalarType;
    static constexpr bool by_rows = ByRows;

    explicit device_stacked(device_sum<Scalar> value) : value_(std::move(value)) {}

    [[nodiscard]] std::int64_t rows() const { return value_.rows() * value_.cols(); }
    [[nodiscard]] std::int64_t cols() const { return 1; }
    /// What is stacked.
    [[nodiscard]] const device_sum<Scalar>& matrix() const noexcept { return value_; }

    /// The stacked vector, a column: the matrix is evaluated straight into it.
    [[nodiscard]] DeviceMatrix<Scalar> eval() const {
        const device_executor& where = device::executor_for(value_.home());
        device::check_shapes(value_);
        DeviceMatrix<Scalar> result(rows(), 1, where);
        const std::int64_t r = value_.rows();
        const std::int64_t c = value_.cols();
        device::evaluate(value_, {result.data(), r, c, ByRows ? c : 1, ByRows ? 1 : r}, false, Scalar(1), &where);
        return result;
    }
    operator DeviceMatrix<Scalar>() const { return eval(); }

private:
    device_sum<Scalar> value_;
};

template <class Scalar, bool ByRows>
inline constexpr bool is_device_operand<device_stacked<Scalar, ByRows>> = true;

namespace device {

template <class First>
constexpr void refuse_mixed_stacking() {
    static_assert(always_false<First>,
                  "otimes: vec (by columns) and vec_r (by rows) are mixed. Use one of the two on both sides.");
}

/// A row or a column as the matrix that was stacked into it; its memory is shared, that of an expression's value owned.
template <bool ByRows, class Vector>
auto unstacked(const Vector& y, std::int64_t rows, std::int64_t cols) {
    using scalar = typename Vector::Scalar;
    device_product<scalar> value = to_product(y);
    std::int64_t entries = 0;
    if (rows < 0 || cols < 0 || (value.rows() != 1 && value.cols() != 1) || !checked_multiply(rows, cols, entries) ||
        value.rows() * value.cols() != entries) {
        throw shape_error("otimes: unvec(y, " + std::to_string(rows) + ", " + std::to_string(cols) + "): y is " +
                          detail::shape_text(value.rows(), value.cols()) + ", but " + std::to_string(rows) + " * " +
                          std::to_string(cols) + " entries are asked for.");
    }
    if (!value.is_matrix()) {
        value = device_product<scalar>(evaluated(value));
    }
    const leaf x = value.node().x;
    const matrix_view v = x.view();
    const std::int64_t step = v.cols == 1 ? v.row_stride : v.col_stride;
    const matrix_view unfolded{v.data, rows, cols, ByRows ? step * cols : step, ByRows ? step : step * rows};
    leaf whole = x.is_owned() ? leaf::owned(std::make_shared<const leaf>(x), unfolded) : leaf::borrowed(unfolded);
    if (x.conjugated()) {
        whole.conjugate();
    }
    whole.set_real_elements(x.real_elements());
    whole.set_space(x.space());
    value.edit().x = std::move(whole);
    return value;
}

/// `vec(dY)`, to which can be assigned. A matrix is borrowed by its address, a map by its own copy; neither is resized.
template <class Destination, bool ByRows>
class stacked_destination : public device_stacked<typename bare<Destination>::Scalar, ByRows> {
public:
    using Scalar = typename bare<Destination>::Scalar;
    using value_type = device_stacked<Scalar, ByRows>;

    explicit stacked_destination(Destination y) : value_type(device_sum<Scalar>(to_product(y))), y_(y) {}
    stacked_destination(const stacked_destination&) = default;

    /// vec(dY) = kron(A, B) * vec(dX), also += and -=. Safe where dY is an operand. @throws shape_error
    template <bool OfRows>
    stacked_destination& operator=(const device_stacked<Scalar, OfRows>& value) {
        write(value, [this](const auto& one) { y_ = one; });
        return *this;
    }
    template <bool OfRows>
    stacked_destination& operator+=(const device_stacked<Scalar, OfRows>& value) {
        write(value, [this](const auto& one) { y_ += one; });
        return *this;
    }
    template <bool OfRows>
    stacked_destination& operator-=(const device_stacked<Scalar, OfRows>& value) {
        write(value, [this](const auto& one) { y_ -= one; });
        return *this;
    }
    stacked_destination& operator=(const stacked_destination& other) {
        return *this = static_cast<const value_type&>(other);
    }
    /// vec(dY) = dy, a row or column of as many entries in device memory. @throws shape_error
    template <class Vector>
    requires factor_or_x<Vector> stacked_destination& operator=(const Vector& y) {
        return *this = value_type(device_sum<Scalar>(unstacked<ByRows>(y, y_.rows(), y_.cols())));
    }

private:
    template <bool OfRows, class Write>
    void write(const device_stacked<Scalar, OfRows>& value, const Write& use) const {
        if constexpr (OfRows != ByRows) {
            refuse_mixed_stacking<Write>();
        } else {
            const device_sum<Scalar>& m = value.matrix();
            if (m.rows() != y_.rows() || m.cols() != y_.cols()) {
                throw shape_error("otimes: vec(Y) = vec(X) in device memory: Y is " +
                                  detail::shape_text(y_.rows(), y_.cols()) + ", X is " +
                                  detail::shape_text(m.rows(), m.cols()) + ".");
            }
            if (m.terms().size() == 1) {
                use(m.terms().front());
            } else {
                use(m);
            }
        }
    }
    Destination y_;
};

template <bool ByRows, class Matrix>
auto stack(Matrix&& m) {
    using type = bare<Matrix>;
    if constexpr (is_matrix<type> && std::is_lvalue_reference_v<Matrix> &&
                  !std::is_const_v<std::remove_reference_t<Matrix>>) {
        return stacked_destination<Matrix, ByRows>(m);
    } else if constexpr (is_matrix<type> && std::is_trivially_copyable_v<type>) {
        return stacked_destination<const type, ByRows>(m);  // a map
    } else if constexpr (is_sum<type>) {
        return device_stacked<typename type::Scalar, ByRows>(std::forward<Matrix>(m));
    } else {
        return device_stacked<typename type::Scalar, ByRows>(
            device_sum<typename type::Scalar>(to_product(std::forward<Matrix>(m))));
    }
}

/// kron(F..) * vec(X) as one product for each term of X: the factors whose columns together are X's columns (rows, for vec_r) act on that
/// side. @throws shape_error no split of the factors fits
template <bool ByRows, class Kron, class Scalar>
auto multiply_stacked(const Kron& k, const device_stacked<Scalar, ByRows>& x) {
    using scalar = typename detail::combined_scalar<typename Kron::Scalar, Scalar>::type;
    const device_sum<Scalar>& m = x.matrix();
    const std::int64_t outer = ByRows ? m.rows() : m.cols();
    const std::int64_t inner = ByRows ? m.cols() : m.rows();
    kron_node<scalar> node;
    node.append(k.node());
    const auto [first, second] = detail::split_for_stacking(node, outer, inner, ByRows);
    homes where;
    if (const homes* const known = homes_of(k)) {
        where = *known;
    }
    device_kron<scalar> left(ByRows ? first : second, where);
    device_kron<scalar> right = device_kron<scalar>(ByRows ? second : first, where).transpose();
    const auto image = [&](const device_product<Scalar>& term) {
        return device_sum<scalar>(multiply<false>(multiply<true>(term, left), right));
    };
    device_sum<scalar> sum = image(m.terms().front());
    for (std::size_t i = 1; i < m.terms().size(); ++i) {
        sum.append(image(m.terms()[i]), 1);
    }
    return device_stacked<scalar, ByRows>(std::move(sum));
}

/// S * vec(X), term by term. @throws shape_error as multiply_stacked; unsupported_error a term with a diagonal of all entries of X
template <bool ByRows, class From, class Scalar>
auto multiply_stacked_terms(const device_operator<From>& s, const device_stacked<Scalar, ByRows>& x) {
    using scalar = typename detail::combined_scalar<From, Scalar>::type;
    const device_sum<scalar> m = to_sum<scalar>(x.matrix());
    const auto term = [&](const device_kron<From>& k) {
        const factor_list& factors = k.node().factors();
        if (factors.size() == 1 && factors[0].is_identity() && k.cols() == x.rows()) {
            return m.scaled(scalar(k.node().alpha()));
        }
        if (factors.size() == 1 && factors[0].kind() == factor_kind::diagonal && k.cols() == x.rows() &&
            m.cols() != 1 && m.rows() != 1) {
            throw unsupported_error(
                "otimes: (K + d.asDiagonal()) * vec(X) in device memory: a diagonal multiplies a matrix by rows or by "
                "columns "
                "there, and d has an entry for each element of X. Write it with the stacked vector: (K + "
                "d.asDiagonal()) * "
                "vec(X).eval().");
        }
        return multiply_stacked(k, x).matrix();
    };
    device_sum<scalar> sum = term(s.terms().front());
    for (std::size_t i = 1; i < s.terms().size(); ++i) {
        sum.append(term(s.terms()[i]), 1);
    }
    return device_stacked<scalar, ByRows>(std::move(sum));
}

}  // namespace device

/// @name Stacking: vec(dX), the columns of dX one under the other; vec_r(dX), its rows one after the other, as a column.
/// @{
template <class Matrix>
requires device::summand<Matrix>
[[nodiscard]] auto vec(Matrix&& m) { return device::stack<false>(std::forward<Matrix>(m)); }
template <class Matrix>
requires device::summand<Matrix>
[[nodiscard]] auto vec_r(Matrix&& m) { return device::stack<true>(std::forward<Matrix>(m)); }
/// The matrix with vec(unvec(dy, rows, cols)) = dy, in dy's memory. @throws shape_error
template <class Vector>
requires device::factor_or_x<Vector>
[[nodiscard]] auto unvec(const Vector& y, std::int64_t rows, std::int64_t cols) {
    return device::unstacked<false>(y, rows, cols);
}
template <class Vector>
requires device::factor_or_x<Vector>
[[nodiscard]] auto unvec_r(const Vector& y, std::int64_t rows, std::int64_t cols) {
    return device::unstacked<true>(y, rows, cols);
}
/// @}

/// @name Products with stacked matrices, lazy. @throws shape_error where no split of the factors fits X
/// @{
template <class Kron, class Scalar, bool ByRows>
requires(device::is_kron<Kron> || device::host_kron<Kron>) [[nodiscard]] auto operator*(
    const Kron& k, const device_stacked<Scalar, ByRows>& x) {
    return device::multiply_stacked(k, x);
}
template <class From, class Scalar, bool ByRows>
[[nodiscard]] auto operator*(const device_operator<From>& s, const device_stacked<Scalar, ByRows>& x) {
    return device::multiply_stacked_terms(s, x);
}
/// @}

/// @name Sums and multiples of stacked matrices of one convention.
/// @{
template <class First, bool ByRows, class Second, bool OfRows>
[[nodiscard]] auto operator+(const device_stacked<First, ByRows>& a, const device_stacked<Second, OfRows>& b) {
    if constexpr (ByRows != OfRows) {
        device::refuse_mixed_stacking<First>();
    } else {
        auto sum = device::sum_of(a.matrix(), b.matrix(), 1);
        return device_stacked<typename decltype(sum)::Scalar, ByRows>(std::move(sum));
    }
}
template <class First, bool ByRows, class Second, bool OfRows>
[[nodiscard]] auto operator-(const device_stacked<First, ByRows>& a, const device_stacked<Second, OfRows>& b) {
    return a + -b;
}
template <class Scalar, bool ByRows, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator*(const Amount& amount, const device_stacked<Scalar, ByRows>& x) {
    return device_stacked<Scalar, ByRows>(x.matrix().scaled(device::scalar_from<Scalar>(amount)));
}
template <class Scalar, bool ByRows, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator*(const device_stacked<Scalar, ByRows>& x, const Amount& amount) {
    return amount * x;
}
template <class Scalar, bool ByRows, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator/(const device_stacked<Scalar, ByRows>& x, const Amount& amount) {
    return x * (Scalar(1) / device::scalar_from<Scalar>(amount));
}
template <class Scalar, bool ByRows>
[[nodiscard]] auto operator-(const device_stacked<Scalar, ByRows>& x) {
    return x * -1;
}
/// @}

}  // namespace otimes

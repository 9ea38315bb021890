// SPDX-License-Identifier: MIT
/// @file view.hpp
/// Tensors in memory: `strided_view<T, N>`, a pointer with N extents and strides, and `dense_tensor<T, N>`, which owns its
/// elements. Whatever looks like a tensor or a matrix of Eigen becomes a view by `view(t)`; this header does not include
/// Eigen, and <unsupported/Eigen/CXX11/Tensor> is needed only by who uses its types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/host_matrix.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>

namespace otimes {

class executor;

template <class ScalarType, std::size_t Order>
class strided_view;

namespace detail {

[[noreturn]] OTIMES_COLD inline void throw_view(const char* what, std::size_t index, std::int64_t value) {
    throw shape_error("otimes: strided_view: " + std::string(what) + " " + std::to_string(index) + " is " +
                      std::to_string(value) +
                      "; extents and strides must not be negative, and the last element must "
                      "lie within 2^63 - 1 bytes.");
}

/// "3 x 4 x 5"; no index: "a number".
OTIMES_COLD inline std::string extents_text(const std::int64_t* extents, std::size_t count) {
    std::string text;
    for (std::size_t k = 0; k < count; ++k) {
        text += (k == 0 ? "" : " x ") + std::to_string(extents[k]);
    }
    return count == 0 ? "a number" : text;
}

/// What can be assigned to a view: an expression that writes itself to one.
template <class Expression, class View>
concept writes_to = requires(const Expression& e, const View& v) {
    e.write_to(v, typename View::Scalar(1), false);
};

}  // namespace detail

/// Elements at data + i0 * stride(0) + i1 * stride(1) + ... Borrowed: they must outlive the view. A view is copied like a
/// pointer; assigning an *expression* to it writes the elements.
template <class ScalarType, std::size_t Order>
class strided_view {
public:
    using element_type = ScalarType;
    using Scalar = std::remove_const_t<ScalarType>;
    static constexpr std::size_t order = Order;
    using extents_type = std::array<std::int64_t, Order>;

    /// Any strides >= 0, in elements. @throws shape_error negative extents or strides, or beyond 63 bits
    strided_view(ScalarType* data, const extents_type& extents, const extents_type& strides)
        : data_(data), extents_(extents), strides_(strides) {
        std::int64_t last = 0;
        std::int64_t part = 0;
        for (std::size_t k = 0; k < Order; ++k) {
            if (extents[k] < 0) {
                detail::throw_view("extent", k, extents[k]);
            }
            if (strides[k] < 0) {
                detail::throw_view("stride", k, strides[k]);
            }
        }
        for (std::size_t k = 0; k < Order && !empty(); ++k) {
            if (!checked_multiply(extents[k] - 1, strides[k], part) || !checked_add(last, part, last)) {
                detail::throw_view("stride", k, strides[k]);
            }
            const std::int64_t most = (std::numeric_limits<std::int64_t>::max)() / std::int64_t{sizeof(ScalarType)};
            if (last >= most) {
                detail::throw_view("stride", k, strides[k]);
            }
        }
    }
    strided_view(const strided_view&) = default;
    /// A view of elements that are only read.
    operator strided_view<const ScalarType, Order>() const requires(!std::is_const_v<ScalarType>) {
        const strided_view<const ScalarType, Order> result{data_, extents_, strides_};
        return home_ != nullptr ? result.in(*home_) : result;
    }
    /// The same elements, in the device memory of an executor, as otimes::gpu(): contractions of such views run there. They are not read one by
    /// one.
    [[nodiscard]] strided_view in(const executor& where) const {
        strided_view result(*this);
        result.home_ = &where;
        return result;
    }
    [[nodiscard]] const executor* home() const noexcept { return home_; }

    /// Without gaps, the first index running fastest (as in Eigen and Fortran).
    [[nodiscard]] static strided_view by_columns(ScalarType* data, const extents_type& extents) {
        return {data, extents, packed_strides(extents, false)};
    }
    /// Without gaps, the last index running fastest (as in C and NumPy).
    [[nodiscard]] static strided_view by_rows(ScalarType* data, const extents_type& extents) {
        return {data, extents, packed_strides(extents, true)};
    }

    [[nodiscard]] ScalarType* data() const noexcept { return data_; }
    [[nodiscard]] const extents_type& extents() const noexcept { return extents_; }
    [[nodiscard]] const extents_type& strides() const noexcept { return strides_; }
    [[nodiscard]] std::int64_t extent(std::size_t k) const { return extents_[k]; }
    [[nodiscard]] std::int64_t stride(std::size_t k) const { return strides_[k]; }
    [[nodiscard]] bool empty() const noexcept {
        for (const std::int64_t e : extents_) {
            if (e == 0) {
                return true;
            }
        }
        return false;
    }
    /// An element; indices are not checked.
    template <class... Indices>
    requires(sizeof...(Indices) == Order && (std::is_integral_v<Indices> && ...)) [[nodiscard]] ScalarType& operator()(
        Indices... indices) const {
        std::int64_t offset = 0;
        std::size_t k = 0;
        ((offset += static_cast<std::int64_t>(indices) * strides_[k++]), ...);
        return data_[offset];
    }

    /// @name Write the value of an expression into the elements. @throws shape_error, alias_error
    /// @{
    strided_view& operator=(const strided_view&) = delete;  // the elements or the pointer? Say which
    template <class Expression>
    requires detail::writes_to<Expression, strided_view>
    const strided_view& operator=(const Expression& e) const {
        e.write_to(*this, Scalar(1), false);
        return *this;
    }
    template <class Expression>
    requires detail::writes_to<Expression, strided_view>
    const strided_view& operator+=(const Expression& e) const {
        e.write_to(*this, Scalar(1), true);
        return *this;
    }
    template <class Expression>
    requires detail::writes_to<Expression, strided_view>
    const strided_view& operator-=(const Expression& e) const {
        e.write_to(*this, Scalar(-1), true);
        return *this;
    }
    /// @}

    /// Strides of a tensor without gaps. Extents >= 0. @throws shape_error beyond 63 bits
    [[nodiscard]] static extents_type packed_strides(const extents_type& extents, bool last_fastest) {
        extents_type strides{};
        std::int64_t next = 1;
        for (std::size_t n = 0; n < Order; ++n) {
            const std::size_t k = last_fastest ? Order - 1 - n : n;
            strides[k] = next;
            if (!checked_multiply(next, extents[k] < 1 ? 1 : extents[k], next)) {
                detail::throw_view("extent", k, extents[k]);
            }
        }
        return strides;
    }

private:
    ScalarType* data_;
    extents_type extents_;
    extents_type strides_;
    const executor* home_ = nullptr;
};

/// A tensor that owns its elements, the first index running fastest; what a contraction evaluates to.
template <class ScalarType, std::size_t Order>
class dense_tensor {
public:
    using Scalar = ScalarType;
    static constexpr std::size_t order = Order;
    using extents_type = std::array<std::int64_t, Order>;

    /// Elements are zero. @throws shape_error impossible extents
    explicit dense_tensor(const extents_type& extents) : extents_(extents) {
        const auto shape = strided_view<Scalar, Order>::by_columns(nullptr, extents);  // checks the extents
        std::size_t count = 1;
        for (std::size_t k = 0; k < Order; ++k) {
            count *= static_cast<std::size_t>(shape.extent(k));
        }
        elements_.assign(count, Scalar(0));
    }
    [[nodiscard]] strided_view<Scalar, Order> view() {
        return strided_view<Scalar, Order>::by_columns(elements_.data(), extents_);
    }
    [[nodiscard]] strided_view<const Scalar, Order> view() const {
        return strided_view<const Scalar, Order>::by_columns(elements_.data(), extents_);
    }
    [[nodiscard]] Scalar* data() noexcept { return elements_.data(); }
    [[nodiscard]] const Scalar* data() const noexcept { return elements_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
    [[nodiscard]] const extents_type& extents() const noexcept { return extents_; }
    [[nodiscard]] std::int64_t extent(std::size_t k) const { return extents_[k]; }
    template <class... Indices>
    requires(sizeof...(Indices) == Order) [[nodiscard]] const Scalar& operator()(Indices... indices) const {
        return view()(indices...);
    }

private:
    extents_type extents_;
    std::vector<Scalar> elements_;
};

/// @name A view of what lies in memory: a view, a dense_tensor, a Tensor or TensorMap of Eigen, a Matrix, Map, Block or Ref.
/// @{
template <class Element, std::size_t Order>
[[nodiscard]] strided_view<Element, Order> view(const strided_view<Element, Order>& v) {
    return v;
}
template <class Scalar, std::size_t Order>
[[nodiscard]] auto view(dense_tensor<Scalar, Order>& t) {
    return t.view();
}
template <class Scalar, std::size_t Order>
[[nodiscard]] auto view(const dense_tensor<Scalar, Order>& t) {
    return t.view();
}
/// Like Eigen::Tensor and Eigen::TensorMap: an order, a layout (1: the last index runs fastest), extents and a pointer.
template <class Tensor>
requires requires(Tensor& t) {
    t.data();
    t.dimension(0);
    std::remove_cvref_t<Tensor>::NumDimensions;
    std::remove_cvref_t<Tensor>::Layout;
}
[[nodiscard]] auto view(Tensor&& t) {
    using type = std::remove_cvref_t<Tensor>;
    constexpr auto order = static_cast<std::size_t>(type::NumDimensions);
    using element = std::remove_pointer_t<decltype(t.data())>;
    std::array<std::int64_t, order> extents{};
    for (std::size_t k = 0; k < order; ++k) {
        extents[k] = static_cast<std::int64_t>(t.dimension(static_cast<int>(k)));
    }
    return static_cast<int>(type::Layout) == 1 ? strided_view<element, order>::by_rows(t.data(), extents)
                                               : strided_view<element, order>::by_columns(t.data(), extents);
}
/// Like Eigen's matrices with direct access: rows are index 0, columns index 1.
template <class Matrix>
requires requires(Matrix& m) {
    m.data();
    m.innerStride();
    m.outerStride();
    std::remove_cvref_t<Matrix>::IsRowMajor;
    requires detail::strides_hold<std::remove_cvref_t<Matrix>>;
}
[[nodiscard]] auto view(Matrix&& m) {
    using element = std::remove_pointer_t<decltype(m.data())>;
    const auto inner = static_cast<std::int64_t>(m.innerStride());
    const auto outer = static_cast<std::int64_t>(m.outerStride());
    const bool by_rows = std::remove_cvref_t<Matrix>::IsRowMajor;
    return strided_view<element, 2>(m.data(),
                                    {static_cast<std::int64_t>(m.rows()), static_cast<std::int64_t>(m.cols())},
                                    {by_rows ? outer : inner, by_rows ? inner : outer});
}
/// @}

}  // namespace otimes

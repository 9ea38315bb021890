// SPDX-License-Identifier: MIT
/// @file mdspan.hpp
/// std::mdspan (C++23) and what has its interface, as Kokkos's and CUDA's: a matrix or a vector for products, of any order a view for
/// contractions. It is known by its members, so that no <mdspan> is needed here. The umbrella header does not include this one.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Eigen/Core>

#include <otimes/adapt/strided/view.hpp>
#include <otimes/exec/target.hpp>

namespace otimes {

namespace detail {

/// An mdspan whose elements lie at strides from a pointer, each as it is: not one whose layout has no strides, or whose accessor computes
/// what is read, as those of std::linalg::scaled and conjugated do.
template <class Type>
concept mdspan_like = requires(const Type& m) {
    requires std::same_as<decltype(m.data_handle()), typename Type::element_type*>;
    requires std::same_as<typename Type::reference, typename Type::element_type&>;
    requires Type::is_always_strided();
    Type::rank();
    m.extent(0);
    m.stride(0);
};

/// Matrix, or const Matrix where the elements are.
template <class Element, int Rows, int Cols, int Order>
using mapped_matrix =
    std::conditional_t<std::is_const_v<Element>, const Eigen::Matrix<std::remove_const_t<Element>, Rows, Cols, Order>,
                       Eigen::Matrix<Element, Rows, Cols, Order>>;

}  // namespace detail

inline namespace OTIMES_TARGET {

/// A view of the elements, for `einsum`. Borrowed. @throws shape_error extents or strides beyond 63 bits
template <detail::mdspan_like Mdspan>
[[nodiscard]] auto view(const Mdspan& m) {
    constexpr std::size_t order = Mdspan::rank();
    std::array<std::int64_t, order> extents{};
    std::array<std::int64_t, order> strides{};
    for (std::size_t k = 0; k < order; ++k) {
        extents[k] = static_cast<std::int64_t>(m.extent(k));
        strides[k] = static_cast<std::int64_t>(m.stride(k));
    }
    return strided_view<typename Mdspan::element_type, order>(m.data_handle(), extents, strides);
}

/// An mdspan of order 2 as an Eigen::Map of its elements, which products read and write: index 0 counts rows, index 1 columns. Order: what
/// Eigen takes it for (0 column-major, 1 row-major); the strides are those of `m` in both cases. Borrowed; nothing is copied.
template <int Order = Eigen::ColMajor, detail::mdspan_like Mdspan>
requires(Mdspan::rank() == 2) [[nodiscard]] auto as_matrix(const Mdspan& m) {
    using matrix = detail::mapped_matrix<typename Mdspan::element_type, Eigen::Dynamic, Eigen::Dynamic, Order>;
    using stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    const auto down = static_cast<Eigen::Index>(m.stride(0));
    const auto across = static_cast<Eigen::Index>(m.stride(1));
    return Eigen::Map<matrix, Eigen::Unaligned, stride>(
        m.data_handle(), static_cast<Eigen::Index>(m.extent(0)), static_cast<Eigen::Index>(m.extent(1)),
        Order == Eigen::RowMajor ? stride(down, across) : stride(across, down));
}

/// An mdspan of order 1 as an Eigen::Map of a column. Borrowed.
template <detail::mdspan_like Mdspan>
requires(Mdspan::rank() == 1) [[nodiscard]] auto as_vector(const Mdspan& m) {
    using vector = detail::mapped_matrix<typename Mdspan::element_type, Eigen::Dynamic, 1, Eigen::ColMajor>;
    return Eigen::Map<vector, Eigen::Unaligned, Eigen::InnerStride<>>(
        m.data_handle(), static_cast<Eigen::Index>(m.extent(0)),
        Eigen::InnerStride<>(static_cast<Eigen::Index>(m.stride(0))));
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

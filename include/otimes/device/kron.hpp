// SPDX-License-Identifier: MIT
/// @file kron.hpp
/// kron() with factors in device memory, and products with it.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/device/matrix.hpp>
#include <otimes/expr/batch_operand.hpp>
#include <otimes/expr/dense_factors.hpp>

namespace otimes {

namespace device {

template <class Matrix>
requires is_matrix<bare<Matrix>> operand operand_of(Matrix&& m) { return std::forward<Matrix>(m).operand(); }

/// Scalar of an argument of kron(); void for an identity.
template <class Argument>
struct argument_scalar {
    static_assert(
        is_identity_like<Argument>,
        "otimes: kron() takes device matrices and their transposes, Eigen matrices, otimes::identity(n) and other "
        "krons; of Eigen's diagonal, sparse, triangular and permutation matrices when otimes/otimes.hpp is included.");
    using type = void;
};
template <class Argument>
requires(factor_or_x<Argument> || is_kron<Argument> || host_matrix<Argument> ||
         host_kron<Argument>) struct argument_scalar<Argument> {
    using type = typename Argument::Scalar;
};
template <class Argument>
requires(host_structure<Argument> && !host_matrix<Argument> && !host_kron<Argument>) struct argument_scalar<Argument> {
    using type = std::remove_pointer_t<decltype(scalar_of_structure(static_cast<const kron_node<double>*>(nullptr),
                                                                    static_cast<const Argument*>(nullptr)))>;
};

/// The same leaf in an expression over `To`.
template <class To, class From>
leaf promoted(leaf f) {
    if constexpr (!std::is_same_v<To, From>) {
        f.set_real_elements(true);
    }
    return f;
}

template <class To, class From>
device_product<To> promote(const device_product<From>& from) {
    if constexpr (std::is_same_v<To, From>) {
        return from;
    } else {
        product_node<To> node;
        node.x = promoted<To, From>(from.node().x);
        for (const leaf& f : from.node().left) {
            node.left.push_back(promoted<To, From>(f));
        }
        for (const leaf& f : from.node().right) {
            node.right.push_back(promoted<To, From>(f));
        }
        node.has_left = from.node().has_left;
        node.has_right = from.node().has_right;
        node.alpha = To(from.node().alpha);
        return {std::move(node), from.homes()};
    }
}

template <class Matrix>
auto to_product(Matrix&& m) {
    if constexpr (is_product<bare<Matrix>>) {
        return bare<Matrix>(std::forward<Matrix>(m));
    } else {
        return device_product<typename bare<Matrix>::Scalar>(operand_of(std::forward<Matrix>(m)));
    }
}

template <class Kron>
const homes* homes_of(const Kron& k) {
    if constexpr (is_kron<bare<Kron>>) {
        return &k.homes();
    } else {
        return nullptr;
    }
}

/// The value of a product or a sum in memory of its own, by rows where its (first) X is: an intermediate that is laid out otherwise
/// would be transposed twice, by kernels that do not read whole lines.
template <class Value>
operand evaluated(const Value& value) {
    using scalar = typename Value::Scalar;
    const matrix_view x = [&value] {
        if constexpr (is_sum<Value>) {
            return value.terms().front().node().x.view();
        } else {
            return value.node().x.view();
        }
    }();
    return x.row_stride > x.col_stride || (x.row_stride == x.col_stride && x.rows == 1)
               ? operand_of(DeviceMatrix<scalar, 1>(value))
               : operand_of(DeviceMatrix<scalar, 0>(value));
}

/// True when F * G can be formed factor by factor in device memory: as many of both, inner extents equal, all dense and there.
inline bool multiply_by_factors(const factor_list& first, const factor_list& second) {
    const auto usable = [](const leaf& f) {
        return f.is_identity() || (f.is_dense() && f.space() == memory_space::device && !f.real_elements());
    };
    bool all = first.size() == second.size();
    for (std::size_t i = 0; all && i < first.size(); ++i) {
        all = usable(first[i]) && usable(second[i]) && first[i].cols() == second[i].rows();
    }
    return all;
}

/// F_i * G_i for each i: the factors of kron(F..) * kron(G..). @pre multiply_by_factors
template <class Scalar>
factor_list products_of_factors(const factor_list& first, const factor_list& second, const homes& where) {
    factor_list result;
    for (std::size_t i = 0; i < first.size(); ++i) {
        if (first[i].is_identity() || second[i].is_identity()) {
            result.push_back(first[i].is_identity() ? second[i] : first[i]);
            continue;
        }
        product_node<Scalar> node;
        node.x = first[i];
        node.right.push_back(second[i]);
        node.has_right = true;
        result.push_back(evaluated(device_product<Scalar>(std::move(node), where)).matrix);
    }
    return result;
}

/// Multiply-adds of a chain over `others` indices that no factor touches.
inline double multiply_adds(const factor_list& factors, bool from_left, double others) {
    double elements = others;
    for (const leaf& f : factors) {
        elements *= static_cast<double>(from_left ? f.cols() : f.rows());
    }
    double sum = 0;
    for (const leaf& f : factors) {
        const auto p = static_cast<double>((std::max)(std::int64_t{1}, from_left ? f.cols() : f.rows()));
        const auto q = static_cast<double>(from_left ? f.rows() : f.cols());
        sum += f.is_identity() ? 0 : elements * q;
        elements = elements / p * q;
    }
    return sum;
}

/// Whether X * kron(F..) * kron(G..) takes fewer multiply-adds as X * kron(F * G..). It then also goes over X once instead of twice.
inline bool pays_by_factors(const factor_list& first, const factor_list& second, bool from_left, double others) {
    double products = 0;
    double elements = others;
    for (std::size_t i = 0; i < first.size(); ++i) {
        elements *= static_cast<double>(from_left ? second[i].cols() : first[i].rows());
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
        const auto r = static_cast<double>(first[i].rows());
        const auto c = static_cast<double>(second[i].cols());
        const double p = (std::max)(1.0, from_left ? c : r);
        const double q = from_left ? r : c;
        products +=
            first[i].is_identity() || second[i].is_identity() ? 0 : r * static_cast<double>(first[i].cols()) * c;
        products += first[i].is_identity() && second[i].is_identity() ? 0 : elements * q;
        elements = elements / p * q;
    }
    const factor_list& inner = from_left ? second : first;  // is applied to X first
    const factor_list& outer = from_left ? first : second;
    return products <= multiply_adds(inner, from_left, others) + multiply_adds(outer, from_left, others);
}

/// X * K (`from_left` false) or K * X. A second kron on the same side is multiplied into the first one factor by factor where that
/// costs less, else the first product is evaluated.
template <bool FromLeft, class Matrix, class Kron>
auto multiply(Matrix&& x, const Kron& k) {
    using scalar = typename detail::combined_scalar<typename bare<Matrix>::Scalar, typename Kron::Scalar>::type;
    auto result = promote<scalar>(to_product(std::forward<Matrix>(x)));
    if (FromLeft ? result.node().has_left : result.node().has_right) {
        if constexpr (is_kron<Kron> && std::is_same_v<typename Kron::Scalar, scalar>) {
            const factor_list& known = FromLeft ? result.node().left : result.node().right;
            const factor_list& first = FromLeft ? k.node().factors() : known;
            const factor_list& second = FromLeft ? known : k.node().factors();
            const auto others = static_cast<double>(FromLeft ? result.cols() : result.rows());
            if (multiply_by_factors(first, second) && pays_by_factors(first, second, FromLeft, others)) {
                homes where = result.homes();
                for (const device_executor* const home : k.homes()) {
                    add_home(where, home);
                }
                factor_list merged = products_of_factors<scalar>(first, second, where);
                (FromLeft ? result.edit().left : result.edit().right) = std::move(merged);
                result.edit().alpha = result.node().alpha * k.node().alpha();
                result.edit_homes() = where;
                result.node().check();
                return result;
            }
        }
        result = device_product<scalar>(evaluated(result));
    }
    kron_node<scalar> given;
    given.append(k.node());
    const kron_node<scalar> converted = detail::with_dense_factors(given, is_kron<Kron> ? 0 : detail::most_written_out);
    product_node<scalar>& node = result.edit();
    (FromLeft ? node.left : node.right) = converted.factors();
    (FromLeft ? node.has_left : node.has_right) = true;
    node.alpha = node.alpha * converted.alpha();
    if (const homes* const list = homes_of(k)) {
        for (const device_executor* const home : *list) {
            add_home(result.edit_homes(), home);
        }
    }
    node.check();
    return result;
}

}  // namespace device

template <class ScalarType>
template <class Matrix>
requires device::factor_or_x<Matrix> || device::host_matrix<Matrix> || device::is_kron<device::bare<Matrix>> ||
    device::host_kron<Matrix> || device::host_structure<Matrix> || device::is_identity_like<Matrix>
void device_kron<ScalarType>::append(Matrix&& factor) {
    using type = device::bare<Matrix>;
    if constexpr (device::is_identity_like<type>) {
        const auto identity = detail::shift_of(factor);
        detail::check_factor_order(identity.order);
        node_.append(leaf::identity(identity.order));
        node_.set_alpha(node_.alpha() * device::scalar_from<ScalarType>(identity.scale));
    } else if constexpr (device::is_kron<type>) {
        node_.append(factor.node());
        for (const device_executor* const home : factor.homes()) {
            device::add_home(homes_, home);
        }
    } else if constexpr (device::host_kron<type>) {
        node_.append(factor.node());
        node_ = detail::with_dense_factors(node_, detail::most_written_out);
    } else if constexpr (device::host_structure<type>) {
        append_structure(node_, std::forward<Matrix>(factor));
        node_ = detail::with_dense_factors(node_, detail::most_written_out);
    } else if constexpr (device::host_matrix<type>) {
        node_.append(
            device::promoted<ScalarType, typename type::Scalar>(device::host_leaf(std::forward<Matrix>(factor))));
    } else {
        const auto product = device::to_product(std::forward<Matrix>(factor));
        if (product.is_matrix()) {
            node_.append(device::promoted<ScalarType, typename type::Scalar>(product.node().x));
            node_.set_alpha(node_.alpha() * ScalarType(product.node().alpha));
        } else {
            device::operand value = device::operand_of(DeviceMatrix<typename type::Scalar>(product));
            node_.append(device::promoted<ScalarType, typename type::Scalar>(std::move(value.matrix)));
        }
        for (const device_executor* const home : product.homes()) {
            device::add_home(homes_, home);
        }
    }
}

/// kron(F1, ..., FN) with at least one factor in device memory; host (Eigen) factors are copied to the device when the
/// expression is evaluated, as diagonals of more than 256 rows; others with structure (shorter diagonals, sparse, ..) written out as dense ones
/// now. @throws shape_error when extents overflow; unsupported_error another factor with structure of more than 256 rows or columns
template <class... Factors>
requires(any_device_operand<Factors...> && !any_batch_operand<Factors...> &&
         !(sizeof...(Factors) == 1 && (detail::is_factor_range<device::bare<Factors>> && ...)))
    [[nodiscard]] auto kron(Factors&&... factors) {
    using scalar =
        typename detail::scalar_of_all<typename device::argument_scalar<device::bare<Factors>>::type...>::type;
    device_kron<scalar> k;
    (k.append(std::forward<Factors>(factors)), ...);
    k.node().check_extents();
    return k;
}
/// The Kronecker product of the elements of a vector, a std::array or a span, their number known at run time. An rvalue vector or array is owned as a whole;
/// of an lvalue or a span each element is borrowed.
template <class Range>
requires(any_device_operand<Range>&& detail::is_factor_range<device::bare<Range>>)
    [[nodiscard]] auto kron(Range&& factors) {
    using element = std::remove_cv_t<typename device::bare<Range>::value_type>;
    device_kron<typename device::argument_scalar<element>::type> k;
    constexpr bool owned = detail::owns_factors<Range>;
    for (auto& factor : factors) {
        if constexpr (owned) {
            k.append(element(std::move(factor)));  // copies where the vector is const
        } else {
            k.append(std::as_const(factor));
        }
    }
    k.node().check_extents();
    return k;
}
/// kron(F, F, ..., F) with `count` factors; count 0 is the 1 x 1 one. An rvalue F is stored once.
/// @throws shape_error for a negative count or when extents overflow.
template <class Factor>
requires any_device_operand<Factor>
[[nodiscard]] auto kron_power(Factor&& factor, std::int64_t count) {
    const auto one = kron(std::forward<Factor>(factor));
    using scalar = typename std::remove_const_t<decltype(one)>::Scalar;
    return device_kron<scalar>(detail::power_of(one.node(), count), one.homes());
}

/// @name Products. Shapes are checked here and again at evaluation.
/// @{
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const device_kron<Scalar>& k) {
    return device::multiply<false>(std::forward<Matrix>(x), k);
}
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_kron<Scalar>& k, Matrix&& x) {
    return device::multiply<true>(std::forward<Matrix>(x), k);
}
/// X on the device, all factors on the host.
template <class Matrix, class Kron>
requires(device::factor_or_x<Matrix>&& device::host_kron<Kron>) [[nodiscard]] auto operator*(Matrix&& x,
                                                                                             const Kron& k) {
    return device::multiply<false>(std::forward<Matrix>(x), k);
}
template <class Kron, class Matrix>
requires(device::factor_or_x<Matrix>&& device::host_kron<Kron>) [[nodiscard]] auto operator*(const Kron& k,
                                                                                             Matrix&& x) {
    return device::multiply<true>(std::forward<Matrix>(x), k);
}
template <class Matrix, class Scalar>
requires device::host_matrix<Matrix>
auto operator*(Matrix&&, const device_kron<Scalar>&) {
    static_assert(device::always_false<Matrix>,
                  "otimes: X is in host memory, but the Kronecker product has factors in device memory. Copy X first: "
                  "otimes::DeviceMatrix<Scalar> dX(X); dX * K.");
}
template <class Scalar, class Matrix>
requires device::host_matrix<Matrix>
auto operator*(const device_kron<Scalar>&, Matrix&&) {
    static_assert(device::always_false<Matrix>,
                  "otimes: X is in host memory, but the Kronecker product has factors in device memory. Copy X first: "
                  "otimes::DeviceMatrix<Scalar> dX(X); K * dX.");
}
/// @}

}  // namespace otimes

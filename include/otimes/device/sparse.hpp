// SPDX-License-Identifier: MIT
/// @file sparse.hpp
/// Sparse matrices in device memory, and what is applied one after the other: `W * K * W.transpose() + s * identity()`, of which each application to
/// dX is two sparse products and one by K. Included by cuda.hpp. The CPU's: adapt/eigen/sums.hpp.
///
///     const otimes::DeviceSparse<float> W(w);                       // w: Eigen::SparseMatrix, copied once
///     const auto S = W * kron(dA, dB) * W.transpose() + s2 * otimes::identity();
///     dY = S * dX;
///
/// A DeviceSparse is also a factor of a kron and a term of a sum.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/device/diagonals.hpp>
#include <otimes/device/operator_sums.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
namespace device {

/// The elements of a sparse matrix in one piece of device memory, by columns and by rows, and where they are.
class sparse_storage {
public:
    /// @param elements in host memory @param bytes of a value @throws shape_error an index does not fit 31 bits; device_error memory is short
    OTIMES_COLD sparse_storage(const sparse_elements& elements, std::int64_t bytes, const device_executor& where)
        : where_(where) {
        const std::int64_t count = elements.stored();
        if (count > (std::numeric_limits<std::int32_t>::max)() ||
            elements.rows >= (std::numeric_limits<std::int32_t>::max)() ||
            elements.cols >= (std::numeric_limits<std::int32_t>::max)()) {
            throw shape_error("otimes: DeviceSparse: " + detail::shape_text(elements.rows, elements.cols) + " with " +
                              std::to_string(count) + " elements; its indices are of 32 bits on the device.");
        }
        const std::int64_t sizes[6] = {count * bytes, count * bytes,           (elements.cols + 1) * 4,
                                       count * 4,     (elements.rows + 1) * 4, count * 4};
        std::int64_t offsets[6];
        for (int i = 0; i < 6; ++i) {
            offsets[i] = bytes_;
            bytes_ += (sizes[i] + 255) / 256 * 256;
        }
        std::vector<std::byte> packed(static_cast<std::size_t>(bytes_));
        for (const bool by_columns : {true, false}) {
            auto* const values = packed.data() + offsets[by_columns ? 0 : 1];
            auto* const starts = reinterpret_cast<std::int32_t*>(packed.data() + offsets[by_columns ? 2 : 4]);
            auto* const inner = reinterpret_cast<std::int32_t*>(packed.data() + offsets[by_columns ? 3 : 5]);
            const std::int64_t outer_size = by_columns ? elements.cols : elements.rows;
            const bool as_stored = by_columns == elements.by_columns;
            const auto for_each = [&](const auto& use) {
                for (std::int64_t j = 0; j < elements.outer_size(); ++j) {
                    for (std::int64_t k = elements.begin(j); k < elements.end(j); ++k) {
                        const std::int64_t i = elements.index(elements.inner, k);
                        use(as_stored ? j : i, as_stored ? i : j, k);
                    }
                }
            };
            std::memset(starts, 0, static_cast<std::size_t>(outer_size + 1) * 4);
            for_each([&](std::int64_t outer, std::int64_t, std::int64_t) { ++starts[outer + 1]; });
            for (std::int64_t j = 0; j < outer_size; ++j) {
                starts[j + 1] += starts[j];
            }
            std::vector<std::int32_t> next(starts, starts + outer_size);
            for_each([&](std::int64_t outer, std::int64_t i, std::int64_t k) {
                const std::int32_t at = next[static_cast<std::size_t>(outer)]++;
                inner[at] = static_cast<std::int32_t>(i);
                std::memcpy(values + at * bytes, static_cast<const std::byte*>(elements.values) + k * bytes,
                            static_cast<std::size_t>(bytes));
            });
        }
        memory_ = where.allocate(bytes_);
        try {
            where.upload(memory_, {packed.data(), 1, {{1, bytes_}, {bytes_, 1}}});
        } catch (...) {
            where.release(memory_, bytes_);
            throw;
        }
        for (const bool by_columns : {true, false}) {
            sparse_elements& part = parts_[by_columns ? 0 : 1];
            part.rows = elements.rows;
            part.cols = elements.cols;
            part.by_columns = by_columns;
            const auto* const base = static_cast<const std::byte*>(memory_);
            part.values = base + offsets[by_columns ? 0 : 1];
            part.starts = base + offsets[by_columns ? 2 : 4];
            part.inner = base + offsets[by_columns ? 3 : 5];
            part.known_stored = count;
            operands_[by_columns ? 0 : 1] = {
                &part, [](const void* object) { return *static_cast<const sparse_elements*>(object); }};
        }
    }
    sparse_storage(const sparse_storage&) = delete;
    sparse_storage& operator=(const sparse_storage&) = delete;
    ~sparse_storage() { where_.release(memory_, bytes_); }

    [[nodiscard]] const sparse_operand* operands() const noexcept { return operands_; }
    [[nodiscard]] std::int64_t stored() const noexcept { return parts_[0].known_stored; }

private:
    const device_executor& where_;
    void* memory_ = nullptr;
    std::int64_t bytes_ = 0;
    sparse_elements parts_[2];
    sparse_operand operands_[2];
};

/// A kron of one sparse factor, whose elements in host memory are copied. @throws as sparse_storage
template <class Scalar>
kron_node<Scalar> sparse_node(const sparse_elements& elements, const device_executor& where) {
    auto storage = std::make_shared<const sparse_storage>(elements, static_cast<std::int64_t>(sizeof(Scalar)), where);
    const matrix_view view{storage->operands(), elements.rows, elements.cols, 1, 0};
    leaf factor = leaf::structured(factor_kind::sparse, view, std::move(storage));
    factor.set_space(memory_space::device);
    kron_node<Scalar> node;
    node.append(std::move(factor));
    return node;
}

}  // namespace device

/// A sparse matrix in device memory: a kron of one factor. Its elements are copied once, by columns and by rows (so that its product and that of
/// its transpose take no atomics), twice 4 + sizeof(Scalar) bytes each; copies of it share them, and nobody changes them.
template <class ScalarType>
class DeviceSparse : public device_kron<ScalarType> {
    static_assert(std::is_same_v<ScalarType, float> || std::is_same_v<ScalarType, double> ||
                      std::is_same_v<ScalarType, std::complex<float>> ||
                      std::is_same_v<ScalarType, std::complex<double>>,
                  "otimes: a DeviceSparse holds float, double or their complex types.");

public:
    using Scalar = ScalarType;

    /// @throws shape_error an extent or the number of elements does not fit 31 bits; device_error memory is short
    template <device::host_sparse Matrix>
    explicit DeviceSparse(const Matrix& m) : DeviceSparse(m, device::executor_for(nullptr)) {}
    template <device::host_sparse Matrix>
    DeviceSparse(const Matrix& m, const device_executor& where)
        : device_kron<Scalar>(node_of(m, where), homes_of(where)) {
        device::enable_diagonals<Scalar>();
    }

    [[nodiscard]] DeviceSparse transpose() const { return DeviceSparse(device_kron<Scalar>::transpose()); }
    [[nodiscard]] DeviceSparse conjugate() const { return DeviceSparse(device_kron<Scalar>::conjugate()); }
    [[nodiscard]] DeviceSparse adjoint() const { return transpose().conjugate(); }
    [[nodiscard]] std::int64_t nonZeros() const {
        return static_cast<const sparse_operand*>(this->node().factors()[0].view().data)->elements().stored();
    }

private:
    explicit DeviceSparse(device_kron<Scalar> k) : device_kron<Scalar>(std::move(k)) {}
    static device::homes homes_of(const device_executor& where) {
        device::homes list;
        device::add_home(list, &where);
        return list;
    }
    template <class Matrix>
    static kron_node<Scalar> node_of(const Matrix& given, const device_executor& where) {
        using plain = typename Matrix::PlainObject;
        static_assert(
            std::is_same_v<typename plain::Scalar, Scalar>,
            "otimes: DeviceSparse: the host matrix has another scalar type; convert it with .cast<Scalar>().");
        const plain& m = given;  // an expression is evaluated
        sparse_elements elements;
        elements.rows = m.rows();
        elements.cols = m.cols();
        elements.by_columns = !bool(plain::IsRowMajor);
        elements.index_bytes = sizeof(typename plain::StorageIndex);
        elements.starts = m.outerIndexPtr();
        elements.counts = m.innerNonZeroPtr();
        elements.inner = m.innerIndexPtr();
        elements.values = m.valuePtr();
        return device::sparse_node<Scalar>(elements, where);
    }
};
template <device::host_sparse Matrix>
DeviceSparse(const Matrix&) -> DeviceSparse<typename Matrix::Scalar>;
template <device::host_sparse Matrix>
DeviceSparse(const Matrix&, const device_executor&) -> DeviceSparse<typename Matrix::Scalar>;

template <class Scalar>
inline constexpr bool is_device_operand<DeviceSparse<Scalar>> = true;
template <class Scalar>
inline constexpr bool device::is_kron<DeviceSparse<Scalar>> = true;

/// A sum of products of operators in device memory, `W * K * W.transpose() + s * identity()`. Applied one operator after the other, the last one first;
/// what stands between them is evaluated when `S * dX` is written, the last application when that is assigned.
template <class ScalarType>
class device_composite {
public:
    using Scalar = ScalarType;
    using chain =
        std::vector<device_kron<Scalar>>;  ///< F1 * F2 * ..; of no factors: the identity, which only a sum's shift is

    /// @throws shape_error the inner extents differ
    explicit device_composite(chain factors) {
        for (std::size_t i = 0; i + 1 < factors.size(); ++i) {
            if (factors[i].cols() != factors[i + 1].rows()) {
                throw shape_error("otimes: product of operators in device memory: F" + std::to_string(i + 1) + " is " +
                                  detail::shape_text(factors[i].rows(), factors[i].cols()) + ", F" +
                                  std::to_string(i + 2) + " is " +
                                  detail::shape_text(factors[i + 1].rows(), factors[i + 1].cols()) +
                                  "; the columns of one must equal the rows of the next.");
            }
        }
        terms_.push_back(std::move(factors));
    }

    [[nodiscard]] std::int64_t rows() const { return terms_.front().front().rows(); }
    [[nodiscard]] std::int64_t cols() const { return terms_.front().back().cols(); }
    [[nodiscard]] const std::vector<chain>& terms() const noexcept { return terms_; }

    /// Appends `sign` times the terms of another sum. @throws shape_error when the shapes differ.
    void append(const device_composite& other, int sign) {
        if (other.rows() != rows() || other.cols() != cols()) {
            throw shape_error("otimes: sum of operators in device memory: the first term is " +
                              detail::shape_text(rows(), cols()) + ", term " + std::to_string(terms_.size() + 1) +
                              " is " + detail::shape_text(other.rows(), other.cols()) + "; they must be equal.");
        }
        for (const chain& term : other.terms_) {
            terms_.push_back(term);
            terms_.back().front().edit().set_alpha(term.front().node().alpha() * Scalar(static_cast<float>(sign)));
        }
    }
    [[nodiscard]] device_composite scaled(const Scalar& amount) const {
        device_composite result(*this);
        for (chain& term : result.terms_) {
            term.front().edit().set_alpha(term.front().node().alpha() * amount);
        }
        return result;
    }
    [[nodiscard]] device_composite transpose() const {
        device_composite result(*this);
        for (std::size_t t = 0; t < terms_.size(); ++t) {
            result.terms_[t].clear();
            for (std::size_t i = terms_[t].size(); i-- > 0;) {
                result.terms_[t].push_back(terms_[t][i].transpose());
            }
        }
        return result;
    }
    [[nodiscard]] device_composite conjugate() const {
        device_composite result(*this);
        for (chain& term : result.terms_) {
            for (device_kron<Scalar>& k : term) {
                k = k.conjugate();
            }
        }
        return result;
    }
    [[nodiscard]] device_composite adjoint() const { return transpose().conjugate(); }

    /// this * other, term by term. @throws shape_error
    [[nodiscard]] device_composite times(const device_composite& other) const {
        std::vector<chain> products;
        for (const chain& a : terms_) {
            for (const chain& b : other.terms_) {
                chain both = a;
                both.insert(both.end(), b.begin(), b.end());
                products.push_back(std::move(both));
            }
        }
        device_composite result(products.front());
        for (std::size_t i = 1; i < products.size(); ++i) {
            result.append(device_composite(products[i]), 1);
        }
        return result;
    }

private:
    std::vector<chain> terms_;
};

template <class Scalar>
inline constexpr bool is_device_operand<device_composite<Scalar>> = true;
template <class Scalar>
inline constexpr bool device::is_composite<device_composite<Scalar>> = true;

namespace device {

/// What a product or a sum with composites may consist of.
template <class Type>
concept composable = is_kron<bare<Type>> || is_operator<bare<Type>> || is_composite<bare<Type>> || host_sparse<Type>;
template <class Type>
inline constexpr bool is_sparse = false;
template <class Scalar>
inline constexpr bool is_sparse<DeviceSparse<Scalar>> = true;
/// Products that are composites: of a sparse matrix or a composite with another operator; matching krons are multiplied factor by factor (cuda.hpp).
template <class First, class Second>
concept composition = composable<First> && composable<Second> && any_device_operand<First, Second> &&
    (is_sparse<bare<First>> || is_sparse<bare<Second>> || is_composite<bare<First>> || is_composite<bare<Second>> ||
     host_sparse<First> || host_sparse<Second>);

template <class To, class Operator>
device_composite<To> to_composite(const Operator& f) {
    if constexpr (host_sparse<Operator>) {
        return device_composite<To>(
            {promoted_kron<To>(static_cast<device_kron<typename Operator::Scalar>>(DeviceSparse(f)))});
    } else if constexpr (is_kron<Operator>) {
        return device_composite<To>({promoted_kron<To>(static_cast<const device_kron<typename Operator::Scalar>&>(f))});
    } else if constexpr (is_composite<Operator> && std::is_same_v<typename Operator::Scalar, To>) {
        return f;
    } else {
        const auto term = [&f](std::size_t i) {
            typename device_composite<To>::chain factors;
            if constexpr (is_composite<Operator>) {
                for (const auto& k : f.terms()[i]) {
                    factors.push_back(promoted_kron<To>(k));
                }
            } else {
                factors.push_back(promoted_kron<To>(f.terms()[i]));
            }
            return device_composite<To>(std::move(factors));
        };
        device_composite<To> result = term(0);
        for (std::size_t i = 1; i < f.terms().size(); ++i) {
            result.append(term(i), 1);
        }
        return result;
    }
}

/// K alone or with structure in host memory, as a composite over To: what may be added to one.
template <class To, class Operator>
device_composite<To> addend(Operator&& f, std::int64_t rows, std::int64_t cols) {
    using type = bare<Operator>;
    if constexpr (is_shift<type>) {
        const auto shift = detail::shift_of(f);
        detail::check_shift(rows, cols, shift.order);
        kron_node<To> node;
        node.append(leaf::identity(rows));
        node.set_alpha(scalar_from<To>(shift.scale));
        return device_composite<To>({device_kron<To>(std::move(node), homes())});
    } else if constexpr (host_shift<type>) {
        return addend<To>(shift_of_matrix(static_cast<const kron_node<double>*>(nullptr), f), rows, cols);
    } else if constexpr (composable<type>) {
        return to_composite<To>(f);
    } else {
        return device_composite<To>({structure_on_host<To>(std::forward<Operator>(f))});
    }
}
template <class Type>
struct addend_scalar {
    using type = typename Type::Scalar;
};
template <class Type>
requires is_shift<Type> || host_shift<Type>
struct addend_scalar<Type> {
    using type = void;
};
template <class Type>
requires(!is_shift<Type> && !host_shift<Type> && !composable<Type> && host_structure<Type>) struct addend_scalar<Type> {
    using type = typename argument_scalar<Type>::type;
};
/// Sums with a composite: of operators, identities and matrices with structure.
template <class First, class Second>
concept composite_sum = (is_composite<bare<First>> || is_composite<bare<Second>>)&&(
    composable<First> || is_shift<bare<First>> || host_shift<First> ||
    host_structure<First>)&&(composable<Second> || is_shift<bare<Second>> || host_shift<Second> ||
                             host_structure<Second>);

template <class First, class Second>
auto sum_of_composites(First&& a, Second&& b, int sign) {
    using scalar = typename detail::combined_scalar<typename addend_scalar<bare<First>>::type,
                                                    typename addend_scalar<bare<Second>>::type>::type;
    const auto shape = [&]() -> std::pair<std::int64_t, std::int64_t> {
        if constexpr (is_composite<bare<First>>) {
            return {a.rows(), a.cols()};
        } else {
            return {b.rows(), b.cols()};
        }
    }();
    device_composite<scalar> result = addend<scalar>(std::forward<First>(a), shape.first, shape.second);
    result.append(addend<scalar>(std::forward<Second>(b), shape.first, shape.second), sign);
    return result;
}

/// X * S (`from_left` false) or S * X.
template <bool FromLeft, class Matrix, class From>
auto multiply_composite(Matrix&& x, const device_composite<From>& s) {
    using scalar = typename detail::combined_scalar<typename bare<Matrix>::Scalar, From>::type;
    auto value = promote<scalar>(to_product(std::forward<Matrix>(x)));
    if (FromLeft ? value.node().has_left : value.node().has_right) {
        value = device_product<scalar>(evaluated(value));  // once, not for each term
    }
    const auto image = [&](const typename device_composite<From>::chain& factors) {
        device_product<scalar> y = value;
        for (std::size_t i = 0; i < factors.size(); ++i) {
            const device_kron<From>& k = factors[FromLeft ? factors.size() - 1 - i : i];
            const factor_list& list = k.node().factors();
            if (list.size() == 1 && list[0].is_identity() && k.rows() == (FromLeft ? y.rows() : y.cols())) {
                y.edit().alpha = y.node().alpha * scalar(k.node().alpha());
            } else {
                y = multiply<FromLeft>(std::move(y), k);
            }
        }
        return device_sum<scalar>(std::move(y));
    };
    device_sum<scalar> result = image(s.terms().front());
    for (std::size_t i = 1; i < s.terms().size(); ++i) {
        result.append(image(s.terms()[i]), 1);
    }
    return result;
}

}  // namespace device

/// @name Products and sums of operators of which one is sparse or such a product; sparse Eigen matrices are copied to the device now.
/// @throws shape_error the extents do not fit
/// @{
template <class First, class Second>
requires device::composition<First, Second>
[[nodiscard]] auto operator*(const First& a, const Second& b) {
    using scalar = typename detail::combined_scalar<typename First::Scalar, typename Second::Scalar>::type;
    return device::to_composite<scalar>(a).times(device::to_composite<scalar>(b));
}
template <class First, class Second>
requires device::composite_sum<First, Second>
[[nodiscard]] auto operator+(First&& a, Second&& b) {
    return device::sum_of_composites(std::forward<First>(a), std::forward<Second>(b), 1);
}
template <class First, class Second>
requires device::composite_sum<First, Second>
[[nodiscard]] auto operator-(First&& a, Second&& b) {
    return device::sum_of_composites(std::forward<First>(a), std::forward<Second>(b), -1);
}
template <class Scalar>
[[nodiscard]] auto operator-(const device_composite<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator*(const device_composite<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator*(const Amount& amount, const device_composite<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] auto
    operator/(const device_composite<Scalar>& s, const Amount& amount) {
    return s.scaled(Scalar(1) / device::scalar_from<Scalar>(amount));
}
/// S * dX and dX * S, sums of products.
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(Matrix&& x, const device_composite<Scalar>& s) {
    return device::multiply_composite<false>(std::forward<Matrix>(x), s);
}
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] auto operator*(const device_composite<Scalar>& s, Matrix&& x) {
    return device::multiply_composite<true>(std::forward<Matrix>(x), s);
}
/// @}

}  // namespace otimes

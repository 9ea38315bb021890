// SPDX-License-Identifier: MIT
/// @file selected.hpp
/// Selected rows and columns of a Kronecker product with factors in device memory: `K(rows, cols) * dX`, `dX * K(rows, cols)`, with Eigen's all for one
/// of the two. Included by cuda.hpp. The CPU's: adapt/eigen/selected.hpp.
///
///     K(rows, cols)(i, j) = K(rows[i], cols[j])        indices count from 0, may repeat and come in any order
///
/// With W_r and W_c the 0-1 matrices that take rows and columns (DeviceSparse, copied to the device when the expression is made), the product is
///
///     W_r * (K * (W_c^T * X))                          two matrices of K's extents in X's other one, K applied as a whole
///
/// or, where few are selected, row by row or column by column: the factors' rows are taken, and K(rows, all) is their face_split
/// (device/row_products.hpp), of (number of rows) * (columns of K) multiplications for a column of X. Which one follows from the multiplications and
/// is decided when the expression is made. A selection, a face_split or a khatri_rao of matrices in host memory is copied to the device when it is
/// multiplied. All but the last application is evaluated when the product is written, that one when it is assigned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/device/row_products.hpp>
#include <otimes/device/sparse.hpp>
#include <otimes/expr/index_list.hpp>

namespace otimes {
namespace device {

/// The count x extent matrix with a one in each row, at these columns: what takes rows.
template <class Scalar>
device_kron<Scalar> picking(const std::vector<std::int64_t>& indices, std::int64_t extent,
                            const device_executor& where) {
    const std::vector<Scalar> ones(indices.size(), Scalar(1));
    std::vector<std::int64_t> starts;
    for (std::size_t i = 0; i <= indices.size(); ++i) {
        starts.push_back(static_cast<std::int64_t>(i));
    }
    sparse_elements elements;
    elements.rows = static_cast<std::int64_t>(indices.size());
    elements.cols = extent;
    elements.by_columns = false;
    elements.index_bytes = sizeof(std::int64_t);
    elements.starts = starts.data();
    elements.inner = indices.data();
    elements.values = ones.data();
    homes list;
    add_home(list, &where);
    return {sparse_node<Scalar>(elements, where), list};
}

/// The rows or the columns that are taken of a kron.
template <class Scalar>
struct selection {
    std::int64_t count = 0;
    std::optional<device_kron<Scalar>>
        whole;  ///< takes them of the product; none: all, or they are taken of the factors
    std::vector<device_kron<Scalar>> of_factors;  ///< takes them of each factor
};

/// The rows (columns) of a product of which some are selected.
struct selectable {
    std::int64_t extent;
    const char* name;

    /// @throws shape_error an index outside
    void operator()(std::int64_t index) const {
        if (index < 0 || index >= extent) {
            throw shape_error("otimes: K(rows, cols) in device memory: " + (name + std::to_string(index)) +
                              " is outside the product, whose extent there is " + std::to_string(extent) + ".");
        }
    }
    void operator()(const std::optional<std::vector<std::int64_t>>& indices) const {
        if (indices.has_value()) {
            std::for_each(indices->begin(), indices->end(), [this](std::int64_t i) { (*this)(i); });
        }
    }
};
template <class Product>
selectable rows_of(const Product& k) {
    return {k.rows(), "row "};
}
template <class Product>
selectable columns_of(const Product& k) {
    return {k.cols(), "column "};
}

/// How K(rows, cols) is applied.
enum class selecting : std::uint8_t { whole, by_rows, by_columns };

/// Multiplications of the generic kernel, which reuses nothing by itself, are as dear as this many of a fused one (docs/algebra/batches.md).
inline constexpr double row_by_row_cost = 10;

/// The multiplications for a column of X by `count` rows of a kron, one by one; the last factor's come first and go by a fused kernel.
inline double picked_cost(const factor_list& factors, double count, detail::side contracted) {
    double extent = 1;
    for (const leaf& f : factors) {
        extent *= static_cast<double>(detail::extent_of(f, contracted));
    }
    const double last =
        factors.empty() ? 1 : static_cast<double>(detail::extent_of(factors[factors.size() - 1], contracted));
    return count * extent * (1 + (factors.size() > 1 ? row_by_row_cost / (last < 1 ? 1 : last) : 0));
}

}  // namespace device

/// K(rows, cols) in device memory, lazy; see the file comment. Made by K(rows, cols), selected(), selected_rows(), selected_columns().
template <class ScalarType>
class device_selected {
public:
    using Scalar = ScalarType;
    using indices = std::optional<std::vector<std::int64_t>>;  ///< none: all

    /// @throws shape_error an index outside the product; device_error memory is short
    device_selected(device_kron<Scalar> k, const indices& rows, const indices& cols) : kron_(std::move(k)) {
        static_assert(device::require_reducible<Scalar>());
        device::enable_diagonals<Scalar>();
        device::rows_of(kron_)(rows);
        device::columns_of(kron_)(cols);
        const factor_list& factors = kron_.node().factors();
        const auto dense = [](const leaf& f) {
            return f.is_dense() && f.space() == memory_space::device && !f.real_elements();
        };
        bool can_pick = !factors.empty();
        for (const leaf& f : factors) {
            can_pick = can_pick && dense(f);
        }
        double least = device::multiply_adds(factors, true, 1);
        const auto consider = [&](const indices& picked, detail::side contracted, device::selecting way) {
            if (!picked.has_value() || !can_pick) {
                return;
            }
            const auto count = static_cast<double>(picked->size());
            const double cost = device::picked_cost(factors, count, contracted);
            const bool fits =
                count <= 2 * static_cast<double>(detail::extent_of(factors[factors.size() - 1], contracted));
            if (fits && cost < least) {
                least = cost;
                way_ = way;
            }
        };
        consider(rows, detail::side::cols, device::selecting::by_rows);
        consider(cols, detail::side::rows, device::selecting::by_columns);
        const device_executor& where = device::executor_for(kron_.homes().empty() ? nullptr : kron_.homes()[0]);
        rows_ = select(rows, detail::side::rows, way_ == device::selecting::by_rows, where);
        cols_ = select(cols, detail::side::cols, way_ == device::selecting::by_columns, where);
    }

    [[nodiscard]] std::int64_t rows() const { return rows_->count; }
    [[nodiscard]] std::int64_t cols() const { return cols_->count; }
    [[nodiscard]] device_selected transpose() const {
        device_selected result(*this);
        result.kron_ = kron_.transpose();
        result.rows_.swap(result.cols_);
        result.way_ = way_ == device::selecting::by_rows      ? device::selecting::by_columns
                      : way_ == device::selecting::by_columns ? device::selecting::by_rows
                                                              : way_;
        return result;
    }
    [[nodiscard]] device_selected conjugate() const {
        device_selected result(*this);
        result.kron_ = kron_.conjugate();
        return result;
    }
    [[nodiscard]] device_selected adjoint() const { return transpose().conjugate(); }
    [[nodiscard]] device_selected scaled(const Scalar& by) const {
        device_selected result(*this);
        result.kron_.edit().set_alpha(kron_.node().alpha() * by);
        return result;
    }
    [[nodiscard]] device::selecting way() const noexcept { return way_; }

    /// K(rows, cols) * X. @throws shape_error
    [[nodiscard]] device_product<Scalar> times(const device_product<Scalar>& given) const {
        if (cols() != given.rows()) {
            throw shape_error("otimes: K(rows, cols) * X in device memory: X is " +
                              detail::shape_text(given.rows(), given.cols()) + ", but the selection is " +
                              detail::shape_text(rows(), cols()) + ".");
        }
        device_product<Scalar> value = given;
        const auto apply = [&value](const device_kron<Scalar>& k) {
            value = device::multiply<true>(std::move(value), k);
        };
        if (cols_->whole.has_value()) {
            apply(cols_->whole->transpose());
        }
        if (way_ == device::selecting::whole) {
            apply(kron_);
        } else if (way_ == device::selecting::by_rows) {
            value = multiply_split(value, split(kron_, *rows_));
        } else {
            value = multiply_split(value, split(kron_.transpose(), *cols_).transpose());
        }
        if (rows_->whole.has_value()) {
            apply(*rows_->whole);
        }
        return value;
    }

private:
    [[nodiscard]] std::shared_ptr<const device::selection<Scalar>> select(const indices& list, detail::side which,
                                                                          bool of_factors,
                                                                          const device_executor& where) const {
        auto result = std::make_shared<device::selection<Scalar>>();
        result->count = which == detail::side::rows ? kron_.rows() : kron_.cols();
        if (!list.has_value()) {
            return result;
        }
        if (!of_factors) {
            result->whole = device::picking<Scalar>(*list, result->count, where);
        }
        result->count = static_cast<std::int64_t>(list->size());
        std::int64_t inner = 1;  // extents of the factors behind this one
        const factor_list& factors = kron_.node().factors();
        for (std::size_t k = factors.size(); of_factors && k-- > 0;) {
            const std::int64_t extent = detail::extent_of(factors[k], which);
            std::vector<std::int64_t> digits;
            for (const std::int64_t i : *list) {
                digits.push_back(i / inner % extent);
            }
            result->of_factors.insert(result->of_factors.begin(), device::picking<Scalar>(digits, extent, where));
            inner *= extent;
        }
        return result;
    }
    /// The selected rows of a kron as the face_split of the factors' rows, as the factors are now.
    [[nodiscard]] static device_row_product<Scalar> split(const device_kron<Scalar>& k,
                                                          const device::selection<Scalar>& picked) {
        device_row_product<Scalar> rows;
        for (std::size_t i = 0; i < picked.of_factors.size(); ++i) {
            product_node<Scalar> node;
            node.x = k.node().factors()[i];
            node.alpha = i == 0 ? k.node().alpha() : Scalar(1);
            rows.append(
                device::multiply<true>(device_product<Scalar>(std::move(node), k.homes()), picked.of_factors[i]));
        }
        return rows;
    }
    /// S * X, by rows where X is.
    [[nodiscard]] static device_product<Scalar> multiply_split(const device_product<Scalar>& x,
                                                               const device_row_product<Scalar>& s) {
        const matrix_view view = x.node().x.view();
        return device_product<Scalar>(view.row_stride > view.col_stride
                                          ? device::operand_of(device::multiply_rows<true, 1>(x, s))
                                          : device::operand_of(device::multiply_rows<true, 0>(x, s)));
    }

    device_kron<Scalar> kron_;
    std::shared_ptr<const device::selection<Scalar>> rows_;
    std::shared_ptr<const device::selection<Scalar>> cols_;
    device::selecting way_ = device::selecting::whole;
};

template <class Scalar>
inline constexpr bool is_device_operand<device_selected<Scalar>> = true;

namespace device {

/// Eigen's all, known by having no members and being nothing to count from, as `last` and `fix<2>` are, which have none either.
template <class List>
inline constexpr bool is_all = std::is_empty_v<List> && !detail::index_list<List> && !requires(const List& list) {
    list - 1;
};

/// Eigen's last, seq(..), seqN(..), lastN(..), by what the Eigen front end says of them (adapt/eigen/selected.hpp).
template <class List>
concept index_sequence = requires(const kron_node<double>* node, const List& list, const selectable& among) {
    indices_of_sequence(node, list, among, true);
};
template <class List>
concept selects = detail::index_list<List> || index_sequence<List>;

/// The indices that `list` means. @throws shape_error
template <class List, class Product>
std::vector<std::int64_t> indices_among(const List& list, const Product& k, bool of_rows) {
    if constexpr (index_sequence<List>) {
        return indices_of_sequence(static_cast<const kron_node<double>*>(nullptr), list, k, of_rows);
    } else {
        return detail::indices_of(list, of_rows ? rows_of(k) : columns_of(k));
    }
}

/// Body of K(rows, cols).
template <class Scalar, class Rows, class Cols>
device_selected<Scalar> select_from(const device_kron<Scalar>& k, const Rows& rows, const Cols& cols) {
    static_assert(
        (is_all<Rows> || selects<Rows>)&&(is_all<Cols> || selects<Cols>)&&!(is_all<Rows> && is_all<Cols>)&&!(
            std::is_integral_v<Rows> && std::is_integral_v<Cols>),
        "otimes: K(rows, cols) in device memory takes lists of indices (std::vector, std::array, std::span, "
        "an Eigen vector of integers; when otimes/otimes.hpp is included Eigen's last, seq, seqN and lastN), "
        "an index for one of the two, and Eigen's all for one of the two. Single elements are not read there.");
    typename device_selected<Scalar>::indices of_rows;
    typename device_selected<Scalar>::indices of_cols;
    if constexpr (!is_all<Rows>) {
        of_rows = indices_among(rows, k, true);
    }
    if constexpr (!is_all<Cols>) {
        of_cols = indices_among(cols, k, false);
    }
    return {k, of_rows, of_cols};
}

/// Body of K.block(i, j, r, c) and of its other names.
template <class Scalar>
device_selected<Scalar> block_from(const device_kron<Scalar>& k, std::int64_t i, std::int64_t j, std::int64_t r,
                                   std::int64_t c) {
    const detail::block_indices chosen = detail::indices_of_block(i, j, r, c, k.rows(), k.cols());
    return {k, chosen.rows, chosen.cols};
}

template <class First, class Second>
constexpr bool require_selected_scalar() {
    static_assert(std::is_same_v<First, Second>,
                  "otimes: K(rows, cols) in device memory: X has another scalar type. Give it that of K.");
    return true;
}

}  // namespace device

/// K(rows, cols), all columns, all rows. @throws shape_error an index outside the product
/// @{
template <class Scalar>
[[nodiscard]] device_selected<Scalar> selected(const device_kron<Scalar>& k, std::vector<std::int64_t> rows,
                                               std::vector<std::int64_t> cols) {
    return {k, std::move(rows), std::move(cols)};
}
template <class Scalar>
[[nodiscard]] device_selected<Scalar> selected_rows(const device_kron<Scalar>& k, std::vector<std::int64_t> rows) {
    return {k, std::move(rows), std::nullopt};
}
template <class Scalar>
[[nodiscard]] device_selected<Scalar> selected_columns(const device_kron<Scalar>& k, std::vector<std::int64_t> cols) {
    return {k, std::nullopt, std::move(cols)};
}
template <class Scalar, device::selects Rows, device::selects Cols>
[[nodiscard]] device_selected<Scalar> selected(const device_kron<Scalar>& k, const Rows& rows, const Cols& cols) {
    return {k, device::indices_among(rows, k, true), device::indices_among(cols, k, false)};
}
template <class Scalar, device::selects Rows>
[[nodiscard]] device_selected<Scalar> selected_rows(const device_kron<Scalar>& k, const Rows& rows) {
    return {k, device::indices_among(rows, k, true), std::nullopt};
}
template <class Scalar, device::selects Cols>
[[nodiscard]] device_selected<Scalar> selected_columns(const device_kron<Scalar>& k, const Cols& cols) {
    return {k, std::nullopt, device::indices_among(cols, k, false)};
}
/// @}

/// @name Products with a matrix, a multiple or a transpose in device memory; what they are multiplied with is queued at once, the last application is
/// evaluated where the product is assigned, added or reduced. @throws shape_error
/// @{
template <class Scalar, class Matrix>
requires device::factor_or_x<Matrix>
[[nodiscard]] device_product<Scalar> operator*(const device_selected<Scalar>& s, Matrix&& x) {
    static_assert(device::require_selected_scalar<typename device::bare<Matrix>::Scalar, Scalar>());
    return s.times(device::to_product(std::forward<Matrix>(x)));
}
template <class Matrix, class Scalar>
requires device::factor_or_x<Matrix>
[[nodiscard]] device_product<Scalar> operator*(Matrix&& x, const device_selected<Scalar>& s) {
    static_assert(device::require_selected_scalar<typename device::bare<Matrix>::Scalar, Scalar>());
    const device_product<Scalar> value = device::to_product(std::forward<Matrix>(x));
    if (value.cols() != s.rows()) {
        throw shape_error("otimes: X * K(rows, cols) in device memory: X is " +
                          detail::shape_text(value.rows(), value.cols()) + ", but the selection is " +
                          detail::shape_text(s.rows(), s.cols()) + ".");
    }
    return s.transpose().times(value.transpose()).transpose();
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_selected<Scalar>
    operator*(const device_selected<Scalar>& s, const Amount& amount) {
    return s.scaled(device::scalar_from<Scalar>(amount));
}
template <class Amount, class Scalar>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_selected<Scalar>
    operator*(const Amount& amount, const device_selected<Scalar>& s) {
    return s * amount;
}
template <class Scalar, class Amount>
requires(device::amount<Amount, Scalar>&& std::is_same_v<detail::scaled_scalar<Amount, Scalar>, Scalar>)
    [[nodiscard]] device_selected<Scalar>
    operator/(const device_selected<Scalar>& s, const Amount& amount) {
    return s.scaled(Scalar(1) / device::scalar_from<Scalar>(amount));
}
template <class Scalar>
[[nodiscard]] device_selected<Scalar> operator-(const device_selected<Scalar>& s) {
    return s.scaled(device::scalar_from<Scalar>(-1));
}
/// @}

namespace device {

/// K(rows, cols) of a kron of host matrices, as the Eigen front end makes it (adapt/eigen/selected.hpp).
template <class Type>
concept host_selection = !any_device_operand<Type> && requires(const bare<Type>& s) {
    s.kron().node().factors();
    s.row_indices();
    s.column_indices();
};
/// face_split and khatri_rao of host matrices, also K(rows, all).
template <class Type>
concept host_row_product = !any_device_operand<Type> && requires(const bare<Type>& s) {
    requires host_matrix<decltype(s.factors().front())>;
    s.transposed();
};

/// The same of copies of the factors in the memory of an executor; factors with structure are written out. @throws unsupported_error as
/// with_dense_factors
template <host_selection Selection>
auto copied_to(const device_executor& where, const Selection& s) {
    using scalar = typename Selection::Scalar;
    const kron_node<scalar> node = detail::with_dense_factors(s.kron().node(), detail::most_written_out);
    device_kron<scalar> k;
    for (const leaf& f : node.factors()) {
        if (f.is_dense()) {
            k.append(DeviceMatrix<scalar>(bare<decltype(s.kron())>::dense_factor(f), where));
        } else {
            k.edit().append(f);
        }
    }
    k.edit().set_alpha(node.alpha());
    return device_selected<scalar>(std::move(k), s.row_indices(), s.column_indices());
}
template <host_row_product Product>
auto copied_to(const device_executor& where, const Product& s) {
    using scalar = typename Product::Scalar;
    device_row_product<scalar> result;
    for (const auto& f : s.factors()) {
        result.append(to_product(DeviceMatrix<scalar>(f, where)));
    }
    return s.transposed() ? result.transpose() : result;
}

/// S * X (`FromLeft`) or X * S with S in host memory; a real S beside a complex X is cast.
template <bool FromLeft, class Host, class Matrix>
auto multiply_copied(const Host& s, Matrix&& x) {
    using scalar = typename detail::combined_scalar<typename Host::Scalar, typename bare<Matrix>::Scalar>::type;
    const auto copy = [&] {
        const auto value = to_product(x);
        const device_executor& where = executor_for(value.homes().empty() ? nullptr : value.homes()[0]);
        if constexpr (std::is_same_v<scalar, typename Host::Scalar>) {
            return copied_to(where, s);
        } else {
            return copied_to(where, s.template cast<scalar>());
        }
    }();
    if constexpr (FromLeft) {
        return copy * std::forward<Matrix>(x);
    } else {
        return std::forward<Matrix>(x) * copy;
    }
}

}  // namespace device

/// @name Selections and row-wise products of host matrices with a matrix in device memory. @throws shape_error; unsupported_error a factor with
/// structure of more than 256 rows or columns
/// @{
template <class Host, class Matrix>
requires(device::factor_or_x<Matrix> && (device::host_selection<Host> || device::host_row_product<Host>))
    [[nodiscard]] auto
    operator*(const Host& s, Matrix&& x) {
    return device::multiply_copied<true>(s, std::forward<Matrix>(x));
}
template <class Matrix, class Host>
requires(device::factor_or_x<Matrix> && (device::host_selection<Host> || device::host_row_product<Host>))
    [[nodiscard]] auto
    operator*(Matrix&& x, const Host& s) {
    return device::multiply_copied<false>(s, std::forward<Matrix>(x));
}
/// @}

}  // namespace otimes

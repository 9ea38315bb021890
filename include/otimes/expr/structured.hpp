// SPDX-License-Identifier: MIT
/// @file structured.hpp
/// Factors with structure, as leaves: what `leaf::view().data` points to for each kind, and element access.
///
/// | kind | data | cost of applying it to one fibre |
/// |---|---|---|
/// | diagonal | the diagonal; element (i, i) at i * (row_stride + col_stride) | n multiplications: a scale step |
/// | permutation | int32 indices: the matrix takes e_i to e_indices[i] | none, a move: a gather or scatter step |
/// | sparse | a sparse_operand | 2 * stored elements |
/// | triangular | as dense; `leaf::part` says which triangle is read | 2 for each element of the triangle |
/// | self_adjoint | likewise; the other triangle is its conjugate, the diagonal its real part | that of a dense one, half the bytes |
/// | low_rank | a factor_product: F = F1 * F2 * ..., applied one after the other | the sum of its factors' |
/// | callback | a callback_operand | its owner's |
///
/// Transposition is in the leaf, as for dense matrices. Toeplitz and circulant matrices are dense leaves: their strides
/// reach every element of one vector.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <otimes/expr/leaf.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/overlap.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {

class program_writer;     // lower.hpp
struct product_operands;  // product.hpp

/// Writes the steps of a factor with structure; see program_writer::add_factor.
using lower_structured_function = std::int32_t (*)(program_writer&, std::int32_t current, dtype type,
                                                   const leaf& factor, bool from_left, std::int32_t position);
/// Writes all steps of a product that has products of factors, or factors that run in steps of their own, in the order of least
/// flops. False where that is the order of the factors as they stand; nothing is written then.
using lower_chain_function = bool (*)(program_writer&, const product_operands& node, dtype type, std::int32_t& current);

/// What lowering calls for factors with structure.
struct structured_writers {
    std::atomic<lower_structured_function> lower{nullptr};
    std::atomic<lower_chain_function> chain{nullptr};
};

/// What products over Scalar do with factors that have structure; null until the first such factor is made
/// (lower_structured.hpp), so that who uses none does not compile it.
template <class Scalar>
struct structured_hooks {
    using reads_function = bool (*)(const leaf& factor, const strided_memory& written);
    static inline structured_writers writers;
    static inline std::atomic<reads_function> reads{nullptr};
};

/// F1 * F2 * ... as one factor.
struct factor_product {
    std::vector<leaf> factors;

    /// What a leaf of it looks at. Factors that are borrowed may have been resized. @throws shape_error they do not fit any more
    [[nodiscard]] static matrix_view look(const void* object) {
        const auto& factors = static_cast<const factor_product*>(object)->factors;
        for (std::size_t k = 1; k < factors.size(); ++k) {
            if (factors[k - 1].cols() != factors[k].rows()) {
                throw shape_error("otimes: a product of factors: one is " +
                                  detail::shape_text(factors[k - 1].rows(), factors[k - 1].cols()) + ", the next " +
                                  detail::shape_text(factors[k].rows(), factors[k].cols()) +
                                  ". They fitted when the product was written; a matrix was resized since.");
            }
        }
        return {object, factors.front().rows(), factors.back().cols(), 1, 0};
    }
};

namespace detail {

/// n x n with the diagonal at `data`, `increment` elements apart.
inline leaf diagonal_leaf(const void* data, std::int64_t n, std::int64_t increment, std::shared_ptr<const void> owner) {
    return leaf::structured(factor_kind::diagonal, {data, n, n, increment, 0}, std::move(owner));
}
/// n x n, taking e_i to e_indices[i].
inline leaf permutation_leaf(const std::int32_t* indices, std::int64_t n, std::shared_ptr<const void> owner) {
    return leaf::structured(factor_kind::permutation, {indices, n, n, 1, 0}, std::move(owner));
}

/// Factor k of a product leaf, transposed and conjugated as the leaf is. @pre `factor` is one, of more than k factors
inline leaf product_factor(const leaf& factor, std::size_t k) {
    const auto& factors = static_cast<const factor_product*>(factor.view().data)->factors;
    leaf part = factors[factor.transposed() ? factors.size() - 1 - k : k];
    if (factor.transposed()) {
        part.transpose();
    }
    if (factor.conjugated()) {
        part.conjugate();
    }
    if (factor.real_elements()) {
        part.set_real_elements(true);
    }
    return part;
}
/// All of them; the leaf itself when it is none.
inline std::vector<leaf> product_factors(const leaf& factor) {
    if (factor.kind() != factor_kind::low_rank) {
        return {factor};
    }
    std::vector<leaf> result;
    for (std::size_t k = 0; k < static_cast<const factor_product*>(factor.view().data)->factors.size(); ++k) {
        result.push_back(product_factor(factor, k));
    }
    return result;
}

/// first * second as one factor that is applied in two steps. @pre cols(first) = rows(second).
inline leaf product_leaf(const leaf& first, const leaf& second) {
    auto product = std::make_shared<factor_product>();
    for (const leaf* part : {&first, &second}) {
        for (leaf& factor : product_factors(*part)) {
            product->factors.push_back(std::move(factor));
        }
    }
    const void* const object = product.get();
    leaf result = leaf::structured(factor_kind::low_rank, object, &factor_product::look, std::move(product));
    result.set_real_elements(first.real_elements() && second.real_elements());
    return result;
}

/// Value `position` of an array that holds Scalar or, where the leaf has real elements, its real type.
template <class Scalar>
Scalar stored_value(const leaf& factor, const void* data, std::int64_t position) {
    if constexpr (is_complex_scalar<Scalar>) {
        if (factor.real_elements()) {
            return Scalar(static_cast<const real_of<Scalar>*>(data)[position]);
        }
        const Scalar value = static_cast<const Scalar*>(data)[position];
        return factor.conjugated() ? conjugate_of(value) : value;
    } else {
        return static_cast<const Scalar*>(data)[position];
    }
}

/// The name of an operator that applies itself and is never formed, such as K(rows, cols); null of every other factor.
inline const char* unformed_name(const leaf& factor) {
    return factor.kind() == factor_kind::callback ? static_cast<const callback_operand*>(factor.view().data)->name
                                                  : nullptr;
}

/// Element (i, j) of a callback factor whose owner tells elements, transposed and conjugated as the factor is.
template <class Scalar>
Scalar callback_element(const leaf& factor, const callback_operand& operand, std::int64_t i, std::int64_t j) {
    const std::int64_t row = factor.transposed() ? j : i;
    const std::int64_t col = factor.transposed() ? i : j;
    Scalar value(0);
    if constexpr (is_complex_scalar<Scalar>) {
        if (factor.real_elements()) {
            real_of<Scalar> real(0);
            operand.element(operand.object, row, col, &real);
            return Scalar(real);
        }
        operand.element(operand.object, row, col, &value);
        return factor.conjugated() ? conjugate_of(value) : value;
    } else {
        operand.element(operand.object, row, col, &value);
        return value;
    }
}

/// Column j of F, or row j of F where `factor` is transposed, of a callback factor. `result`: memory for it, which elements are written into.
template <class Scalar>
std::vector<Scalar> callback_column(const leaf& factor, const matrix_view& view, std::int64_t j,
                                    std::vector<Scalar> result = {}) {
    const auto& operand = *static_cast<const callback_operand*>(view.data);
    result.clear();
    result.reserve(static_cast<std::size_t>(view.rows));
    if (operand.element != nullptr && operand.column == nullptr) {
        for (std::int64_t i = 0; i < view.rows; ++i) {
            result.push_back(callback_element<Scalar>(factor, operand, i, j));
        }
        return result;
    }
    const auto apply = [&](auto zero) {
        using value = decltype(zero);
        std::vector<value> column(static_cast<std::size_t>(view.rows), value(0));
        if (operand.column != nullptr) {
            operand.column(operand.object, factor.transposed(), j, column.data());
        } else {
            std::vector<value> unit(static_cast<std::size_t>(view.cols), value(0));
            unit[static_cast<std::size_t>(j)] = value(1);
            operand.apply(operand.object, factor.transposed(), unit.data(), column.data(), 1);
        }
        for (const value& v : column) {
            result.push_back(stored_value<Scalar>(factor, &v, 0));
        }
        return std::move(result);
    };
    if constexpr (is_complex_scalar<Scalar>) {
        if (factor.real_elements()) {
            return apply(real_of<Scalar>(0));
        }
    }
    return apply(Scalar(0));
}

/// Elements of a P x Q triangle that are stored.
inline std::int64_t triangle_size(std::int64_t rows, std::int64_t cols, triangle part) {
    if (part == triangle::upper || part == triangle::unit_upper) {
        std::swap(rows, cols);
    }
    const std::int64_t square = (std::min)(rows, cols);  // lower: the square, and what is below it
    const std::int64_t all = square * (square + 1) / 2 + (rows - square) * cols;
    return part == triangle::unit_lower || part == triangle::unit_upper ? all - square : all;
}
/// May element (i, j) be other than 0, or is it stored?
inline bool in_triangle(triangle part, std::int64_t i, std::int64_t j) {
    return part == triangle::lower || part == triangle::unit_lower ? i >= j : i <= j;
}

/// Element (i, j) of a factor of any kind but identity and dense. Cost: O(1), a search in one column (sparse), one
/// application (callback, unless its owner tells elements), the inner extents (low_rank).
template <class Scalar>
Scalar structured_element(const leaf& factor, const matrix_view& view, std::int64_t i, std::int64_t j) {
    switch (factor.kind()) {
        case factor_kind::diagonal:
            return i == j ? stored_value<Scalar>(factor, view.data, i * (view.row_stride + view.col_stride))
                          : Scalar(0);
        case factor_kind::permutation: {
            const auto* const indices = static_cast<const std::int32_t*>(view.data);
            return Scalar((factor.transposed() ? indices[i] == j : indices[j] == i) ? 1 : 0);
        }
        case factor_kind::triangular:
            if (!in_triangle(factor.part(), i, j)) {
                return Scalar(0);
            }
            if (i == j && (factor.part() == triangle::unit_lower || factor.part() == triangle::unit_upper)) {
                return Scalar(1);
            }
            return stored_value<Scalar>(factor, view.data, i * view.row_stride + j * view.col_stride);
        case factor_kind::self_adjoint:
            if (i == j) {  // of a self-adjoint matrix it is real; an imaginary part that stands there is not read
                return Scalar(
                    real_part_of(stored_value<Scalar>(factor, view.data, i * (view.row_stride + view.col_stride))));
            }
            return in_triangle(factor.part(), i, j)
                       ? stored_value<Scalar>(factor, view.data, i * view.row_stride + j * view.col_stride)
                       : conjugate_of(
                             stored_value<Scalar>(factor, view.data, j * view.row_stride + i * view.col_stride));
        case factor_kind::sparse: {
            const sparse_elements s = static_cast<const sparse_operand*>(view.data)->elements();
            const std::int64_t row = factor.transposed() ? j : i;
            const std::int64_t col = factor.transposed() ? i : j;
            const std::int64_t outer = s.by_columns ? col : row;
            Scalar value(0);
            for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
                if (s.index(s.inner, k) == (s.by_columns ? row : col)) {
                    value = value + stored_value<Scalar>(factor, s.values, k);
                }
            }
            return value;
        }
        case factor_kind::low_rank: {
            const auto element = [](const leaf& f, std::int64_t r, std::int64_t c) {
                const matrix_view v = f.view();
                return f.is_identity() ? Scalar(r == c ? 1 : 0)
                       : f.is_dense()  ? stored_value<Scalar>(f, v.data, r * v.row_stride + c * v.col_stride)
                                       : structured_element<Scalar>(f, v, r, c);
            };
            if (static_cast<const factor_product*>(view.data)->factors.size() == 2) {
                const leaf first = product_factor(factor, 0);
                const leaf second = product_factor(factor, 1);
                Scalar sum(0);
                for (std::int64_t k = 0; k < first.cols(); ++k) {
                    sum = sum + element(first, i, k) * element(second, k, j);
                }
                return sum;
            }
            const std::vector<leaf> parts = product_factors(factor);
            std::vector<Scalar> row;
            for (std::int64_t k = 0; k < parts.front().cols(); ++k) {
                row.push_back(element(parts.front(), i, k));
            }
            for (std::size_t p = 1; p < parts.size(); ++p) {
                std::vector<Scalar> next;
                const bool last = p + 1 == parts.size();
                for (std::int64_t c = last ? j : 0; c < (last ? j + 1 : parts[p].cols()); ++c) {
                    Scalar sum(0);
                    for (std::size_t k = 0; k < row.size(); ++k) {
                        sum = sum + row[k] * element(parts[p], static_cast<std::int64_t>(k), c);
                    }
                    next.push_back(sum);
                }
                row.swap(next);
            }
            return row.front();
        }
        case factor_kind::callback: {
            const auto& operand = *static_cast<const callback_operand*>(view.data);
            if (operand.element != nullptr) {
                return callback_element<Scalar>(factor, operand, i, j);
            }
            std::vector<Scalar> column = callback_column<Scalar>(factor, view, j);
            return column[static_cast<std::size_t>(i)];
        }
        default: break;
    }
    throw unsupported_error("otimes: a factor of this kind has no single elements.");
}

/// True when memory that `written` describes may hold elements of a factor of any kind.
template <class Scalar>
bool factor_reads(const leaf& factor, const strided_memory& written);

/// factor_reads for factors with structure.
template <class Scalar>
bool structured_reads(const leaf& factor, const strided_memory& written) {
    const auto bytes = static_cast<std::int64_t>(factor.real_elements() ? sizeof(real_of<Scalar>) : sizeof(Scalar));
    if (factor.kind() == factor_kind::low_rank) {
        for (const leaf& part : product_factors(factor)) {
            if (factor_reads<Scalar>(part, written)) {
                return true;
            }
        }
        return false;
    }
    if (factor.kind() == factor_kind::sparse) {
        const sparse_elements s = static_cast<const sparse_operand*>(factor.view().data)->elements();
        const std::int64_t last = s.outer_size() == 0 ? 0 : s.end(s.outer_size() - 1);
        return overlap({reinterpret_cast<std::intptr_t>(s.values), last, 1, bytes, bytes, bytes}, written);
    }
    if (factor.kind() == factor_kind::callback) {
        const auto& operand = *static_cast<const callback_operand*>(factor.view().data);
        return operand.reads != nullptr && operand.reads(operand.object, written);
    }
    if (factor.kind() == factor_kind::permutation || factor.is_owned()) {
        return false;
    }
    if (factor.kind() == factor_kind::triangular || factor.kind() == factor_kind::self_adjoint) {
        return overlap(memory_of(factor.view(), bytes), written);
    }
    const matrix_view view = factor.view();  // a diagonal: one vector
    return overlap(memory_of(matrix_view{view.data, view.rows, 1, view.row_stride + view.col_stride, 1}, bytes),
                   written);
}

template <class Scalar>
bool factor_reads(const leaf& factor, const strided_memory& written) {
    if (factor.is_dense()) {
        const auto bytes = static_cast<std::int64_t>(factor.real_elements() ? sizeof(real_of<Scalar>) : sizeof(Scalar));
        return !factor.is_owned() && overlap(memory_of(factor.view(), bytes), written);
    }
    const auto structured = structured_hooks<Scalar>::reads.load(std::memory_order_relaxed);
    return !factor.is_identity() && structured != nullptr && structured(factor, written);
}

}  // namespace detail
}  // namespace otimes

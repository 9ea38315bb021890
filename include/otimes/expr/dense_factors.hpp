// SPDX-License-Identifier: MIT
/// @file dense_factors.hpp
/// Factors with structure for executors whose kernels multiply by dense factors only: diagonals, permutations, sparse, triangular,
/// self-adjoint, low-rank, Toeplitz, circulant and callback factors of small orders, written out when an expression is made. A mode
/// product of such an order hides behind the memory's time; a large one would not, and is refused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/messages.hpp>
#include <otimes/expr/structured.hpp>
#include <otimes/program/errors.hpp>

namespace otimes::detail {

/// Rows and columns up to which a factor with structure is written out. By the measured rates of an H200 a dense factor of 256 takes about twice the
/// time in which its fibres are read and written.
inline constexpr std::int64_t most_written_out = 256;

/// The elements of `f`, by columns, in memory of their own: later changes of what `f` was made from are not seen. Cost: rows x cols
/// element reads. Scalar: `f`'s, real where its elements are. @throws unsupported_error more rows or columns than most_written_out
template <class Scalar>
leaf written_out(const leaf& f, std::size_t position) {
    const matrix_view view = f.view();
    if (view.rows > most_written_out || view.cols > most_written_out) {
        throw unsupported_error(
            "otimes: factor " + std::to_string(position) + ", " + shape_text(view.rows, view.cols) +
            ", has structure. In device memory and over several ranks such factors are written out as dense ones, up "
            "to " +
            shape_text(most_written_out, most_written_out) +
            "; evaluate this product by cpu(), or make it of smaller factors.");
    }
    const auto write = [&](auto zero) {
        using value = decltype(zero);
        auto elements = std::make_shared<std::vector<value>>();
        elements->reserve(static_cast<std::size_t>(view.rows * view.cols));
        for (std::int64_t j = 0; j < view.cols; ++j) {
            const std::vector<Scalar> column =
                f.kind() == factor_kind::callback ? callback_column<Scalar>(f, view, j) : std::vector<Scalar>();
            for (std::int64_t i = 0; i < view.rows; ++i) {
                const Scalar element =
                    column.empty() ? kron_node<Scalar>::element(f, view, i, j) : column[static_cast<std::size_t>(i)];
                if constexpr (!is_complex_scalar<
                                  Scalar>) {  // by itself: clang looks into branches that depend on `value`
                    elements->push_back(element);
                } else if constexpr (std::is_same_v<value, Scalar>) {
                    elements->push_back(element);
                } else {
                    elements->push_back(element.real());
                }
            }
        }
        const matrix_view dense{elements->data(), view.rows, view.cols, 1, view.rows};
        leaf result = leaf::owned(std::move(elements), dense);
        result.set_real_elements(!std::is_same_v<value, Scalar>);
        return result;
    };
    if constexpr (is_complex_scalar<Scalar>) {
        if (f.real_elements()) {
            return write(real_of<Scalar>(0));
        }
    }
    return write(Scalar(0));
}

/// The same product with dense factors, identities and diagonals of more than `longest_diagonal` rows; what lies in device memory stays as it
/// is. @throws unsupported_error as written_out
template <class Scalar>
kron_node<Scalar> with_dense_factors(const kron_node<Scalar>& node,
                                     std::int64_t longest_diagonal = (std::numeric_limits<std::int64_t>::max)()) {
    const auto stays = [longest_diagonal](const leaf& f) {
        return f.is_dense() || f.is_identity() || f.space() == memory_space::device ||
               (f.kind() == factor_kind::diagonal && f.rows() > longest_diagonal);
    };
    if (std::ranges::all_of(node.factors(), stays)) {
        return node;
    }
    kron_node<Scalar> result;
    std::size_t position = 0;
    for (const leaf& f : node.factors()) {
        ++position;
        result.append(stays(f) ? f : written_out<Scalar>(f, position));
    }
    result.set_alpha(node.alpha());
    return result;
}

}  // namespace otimes::detail

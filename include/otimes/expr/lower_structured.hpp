// SPDX-License-Identifier: MIT
/// @file lower_structured.hpp
/// The steps of factors with structure (structured.hpp), and of products of factors. Reached through `structured_hooks`, so that
/// a program without such factors does not compile it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/expr/lower.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes {

template <class Scalar>
class structured_lowering {
public:
    explicit structured_lowering(lowering<Scalar>& low) : low_(low), program_(low.target()) {}

    /// As lowering::add_factor, for the kinds that it does not know.
    std::int32_t add_factor(std::int32_t current, dtype type, const leaf& factor, bool from_left,
                            std::int32_t position) {
        if (factor.kind() != factor_kind::low_rank) {
            return add_structured(current, type, factor, from_left, position);
        }
        const std::int64_t extent = program_.modes_of(current)[static_cast<std::size_t>(position)].extent;
        const double others =
            extent == 0 ? 0.0 : static_cast<double>(element_count(program_, current)) / static_cast<double>(extent);
        std::vector<leaf> parts = merged_products(detail::product_factors(factor), others);
        for (std::size_t k = 0; k < parts.size(); ++k) {
            const leaf& part = parts[from_left ? parts.size() - 1 - k : k];
            current = low_.add_factor(current, type, part, from_left, position);
        }
        return current;
    }

private:
    /// Multiplies neighbours out where applying them one after the other to `others` fibres takes more flops than forming
    /// their product and applying that.
    std::vector<leaf> merged_products(std::vector<leaf> parts, double others) {
        for (std::size_t k = 0; k + 1 < parts.size();) {
            const leaf& f = parts[k];
            const leaf& g = parts[k + 1];
            const auto rows = static_cast<double>(f.rows());
            const auto inner = static_cast<double>(f.cols());
            const auto cols = static_cast<double>(g.cols());
            const auto is = [](const leaf& one, factor_kind kind) { return one.kind() == kind; };
            bool merge = is(f, factor_kind::identity) || is(g, factor_kind::identity);
            if (is(f, factor_kind::dense) && is(g, factor_kind::dense)) {
                merge = rows * inner * cols + others * rows * cols < others * (rows * inner + inner * cols);
            } else if (is(f, factor_kind::diagonal) && is(g, factor_kind::dense)) {
                merge = cols < others;
            } else if (is(f, factor_kind::dense) && is(g, factor_kind::diagonal)) {
                merge = rows < others;
            } else if (is(f, g.kind()) && (is(f, factor_kind::diagonal) || is(f, factor_kind::permutation))) {
                merge = true;
            }
            if (merge) {
                parts[k] = is(f, factor_kind::identity) ? g : is(g, factor_kind::identity) ? f : formed_product(f, g);
                parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(k) + 1);
                k = k > 0 ? k - 1 : 0;
            } else {
                ++k;
            }
        }
        return parts;
    }

    /// A diagonal, permutation, sparse or callback factor.
    std::int32_t add_structured(std::int32_t current, dtype type, const leaf& factor, bool from_left,
                                std::int32_t position) {
        const matrix_view f = factor.view();
        const bool real = detail::is_complex_scalar<Scalar> && factor.real_elements();
        tensor t = lowering<Scalar>::make_tensor(real ? dtype_of<detail::real_of<Scalar>>() : dtype_of<Scalar>(),
                                                 tensor_role::factor, real);
        t.kind = factor.kind();
        t.conjugate = factor.conjugated() && !real;
        const std::int64_t extent = from_left ? f.rows : f.cols;
        const bool stored_as_pq = factor.transposed() == from_left;  // (p, q) are (row, column) as stored
        step_kind kind = step_kind::contract;
        std::int32_t matrix = -1;
        if (factor.kind() == factor_kind::diagonal) {
            kind = step_kind::scale;
            matrix = program_.add_tensor(t);
            const tensor in = program_.at(current);
            for (std::int32_t k = 0; k < in.mode_count; ++k) {
                const std::int64_t n = program_.modes[static_cast<std::size_t>(in.first_mode + k)].extent;
                program_.add_mode(n, k == position ? f.row_stride + f.col_stride : 0);
            }
        } else if (factor.kind() == factor_kind::permutation) {
            // e_i goes to e_indices[i]: (P x)[indices[i]] = x[i], and (x^T P)[j] = x[indices[j]].
            kind = from_left == factor.transposed() ? step_kind::gather : step_kind::scatter;
            t.type = dtype::other;
            t.scalar_bytes = 4;
            t.alignment_log2 = 2;
            t.conjugate = false;
            matrix = program_.add_tensor(t);
            program_.add_mode(extent, 1);
        } else {
            if (factor.kind() == factor_kind::callback) {
                kind = step_kind::callback;
            } else {
                t.stored = static_cast<const sparse_operand*>(f.data)->elements().stored();
            }
            matrix = program_.add_tensor(t);
            program_.add_mode(from_left ? f.cols : f.rows, stored_as_pq ? 1 : 0);
            program_.add_mode(extent, stored_as_pq ? 0 : 1);
        }
        low_.bind(f.data);
        return low_.add_step(kind, current, matrix, type, position, extent);
    }

    /// first * second, formed now and kept with the bindings.
    leaf formed_product(const leaf& first, const leaf& second) {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            if (first.real_elements() && second.real_elements()) {
                leaf result = formed_product_of<detail::real_of<Scalar>>(first, second);
                result.set_real_elements(true);
                return result;
            }
        }
        return formed_product_of<Scalar>(first, second);
    }
    template <class Value>
    leaf formed_product_of(const leaf& first, const leaf& second) {
        const matrix_view f = first.view();
        const matrix_view g = second.view();
        if (first.kind() == factor_kind::permutation) {
            const auto images = [](const leaf& one, const matrix_view& v) {
                std::vector<std::int32_t> image(static_cast<std::size_t>(v.rows));
                const auto* const at = static_cast<const std::int32_t*>(v.data);
                for (std::int32_t i = 0; i < static_cast<std::int32_t>(v.rows); ++i) {
                    image[static_cast<std::size_t>(one.transposed() ? at[i] : i)] = one.transposed() ? i : at[i];
                }
                return image;
            };
            const std::vector<std::int32_t> outer = images(first, f);
            auto indices = std::make_shared<std::vector<std::int32_t>>(images(second, g));
            for (std::int32_t& index : *indices) {
                index = outer[static_cast<std::size_t>(index)];
            }
            low_.keep(indices);
            return detail::permutation_leaf(indices->data(), f.rows, indices);
        }
        const auto value = [](const leaf& one, const matrix_view& v, std::int64_t i, std::int64_t j) {
            const Scalar read = detail::stored_value<Scalar>(one, v.data, i * v.row_stride + j * v.col_stride);
            if constexpr (std::is_same_v<Value, Scalar>) {
                return read;
            } else {
                return read.real();
            }
        };
        if (first.kind() == factor_kind::diagonal && second.kind() == factor_kind::diagonal) {
            auto diagonal = std::make_shared<std::vector<Value>>(static_cast<std::size_t>(f.rows), Value(0));
            for (std::int64_t i = 0; i < f.rows; ++i) {
                (*diagonal)[static_cast<std::size_t>(i)] = value(first, f, i, i) * value(second, g, i, i);
            }
            low_.keep(diagonal);
            return detail::diagonal_leaf(diagonal->data(), f.rows, 1, diagonal);
        }
        auto memory = std::make_shared<std::vector<Value>>(static_cast<std::size_t>(f.rows * g.cols), Value(0));
        Value* const out = memory->data();  // by columns
        for (std::int64_t j = 0; j < g.cols; ++j) {
            for (std::int64_t i = 0; i < (first.is_dense() && second.is_dense() ? 0 : f.rows); ++i) {
                out[j * f.rows + i] = first.kind() == factor_kind::diagonal
                                          ? value(first, f, i, i) * value(second, g, i, j)
                                          : value(first, f, i, j) * value(second, g, j, j);
            }
            for (std::int64_t k = 0; k < (first.is_dense() && second.is_dense() ? f.cols : 0); ++k) {
                const Value right = value(second, g, k, j);
                for (std::int64_t i = 0; i < f.rows; ++i) {
                    out[j * f.rows + i] = out[j * f.rows + i] + value(first, f, i, k) * right;
                }
            }
        }
        low_.keep(memory);
        return leaf::owned(memory, {out, f.rows, g.cols, 1, f.rows});
    }

    lowering<Scalar>& low_;
    program& program_;
};

namespace detail {

/// Makes factors with structure known to products over Scalar. Any number of times, from any thread.
template <class Scalar>
void enable_structured_lowering() {
    structured_hooks<Scalar>::lower.store(
        [](lowering<Scalar>& low, std::int32_t current, dtype type, const leaf& factor, bool from_left,
           std::int32_t position) {
            return structured_lowering<Scalar>(low).add_factor(current, type, factor, from_left, position);
        },
        std::memory_order_relaxed);
    structured_hooks<Scalar>::reads.store(&structured_reads<Scalar>, std::memory_order_relaxed);
}

}  // namespace detail
}  // namespace otimes

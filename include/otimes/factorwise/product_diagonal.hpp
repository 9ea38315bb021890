// SPDX-License-Identifier: MIT
/// @file product_diagonal.hpp
/// The diagonal of a product of operators that begins or ends with sparse, diagonal or permutation matrices, as W * K * W^T does: entry i is
///
///     (T1 * M * T2)[i, i] = sum_ab T1[i, a] * M[a, b] * T2[b, i]        over the stored elements of row i and column i
///
/// Cost: those elements, of M one for each pair. Memory: the stored elements of T1 and T2 with their places.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/tree.hpp>
#include <otimes/factorwise/elements.hpp>

namespace otimes::detail {

/// Is it a kron whose factors have few elements?
template <class Scalar>
bool has_few_elements(const operator_tree<Scalar>& tree) {
    return tree.kind == tree_kind::kron && std::all_of(tree.kron.factors().begin(), tree.kron.factors().end(),
                                                       [](const leaf& f) { return has_few_elements(f); });
}
template <class Scalar>
bool has_product(const operator_tree<Scalar>& tree) {
    return tree.kind == tree_kind::product ||
           std::any_of(tree.parts.begin(), tree.parts.end(),
                       [](const operator_tree<Scalar>& part) { return has_product(part); });
}

/// The stored elements of such a kron, row by row.
template <class Scalar>
class stored_rows {
public:
    explicit stored_rows(const kron_node<Scalar>& node) : alpha_(node.alpha()) {
        for (const leaf& f : node.factors()) {
            factor_rows& rows = factors_.emplace_back();
            rows.cols = f.cols();
            rows.starts.assign(static_cast<std::size_t>(f.rows()) + 1, 0);
            for_each_stored<Scalar>(f, [&rows](std::int64_t i, std::int64_t, const Scalar&) {
                ++rows.starts[static_cast<std::size_t>(i)];
            });
            std::size_t end = 0;
            for (std::size_t& start : rows.starts) {  // where the row ends, from which its elements are put backwards
                end += start;
                start = end;
            }
            rows.elements.resize(end);
            for_each_stored<Scalar>(f, [&rows](std::int64_t i, std::int64_t j, const Scalar& value) {
                rows.elements[--rows.starts[static_cast<std::size_t>(i)]] = {j, value};
            });
        }
    }
    /// use(column, element) for all of row i.
    template <class Use>
    void for_each_in_row(std::int64_t i, const Use& use) const {
        visit(factors_.size(), i, 0, 1, alpha_, use);
    }

private:
    struct element {
        std::int64_t col = 0;
        Scalar value = Scalar(0);
    };
    struct factor_rows {
        std::int64_t cols = 0;
        std::vector<std::size_t> starts;
        std::vector<element> elements;
    };
    /// The first `left` factors of row i; the others have come to this column, of so many, and value.
    template <class Use>
    void visit(std::size_t left, std::int64_t i, std::int64_t column, std::int64_t columns, const Scalar& value,
               const Use& use) const {
        if (left == 0) {
            use(column, value);
            return;
        }
        const factor_rows& rows = factors_[left - 1];
        const auto extent = static_cast<std::int64_t>(rows.starts.size()) - 1;
        const auto row = static_cast<std::size_t>(i % extent);
        for (std::size_t k = rows.starts[row]; k < rows.starts[row + 1]; ++k) {
            const element& e = rows.elements[k];
            visit(left - 1, i / extent, column + e.col * columns, columns * rows.cols, e.value * value, use);
        }
    }
    Scalar alpha_;
    std::vector<factor_rows> factors_;
};

/// A kron of one factor that is a product of matrices, as the product of krons that it is. @pre it is one
template <class Scalar>
operator_tree<Scalar> unfolded_product(const kron_node<Scalar>& node) {
    operator_tree<Scalar> result;
    result.kind = tree_kind::product;
    for (leaf& part : product_factors(node.factors()[0])) {
        kron_node<Scalar> one;
        one.append(std::move(part));
        result.parts.emplace_back(std::move(one));
    }
    result.scale(node.alpha());
    return result;
}

/// put(i, entry) for the first `count` entries of the diagonal of a product. False, and nothing is put, where it is none of the products of
/// the file comment.
template <class Scalar, class Put>
bool diagonal_by_elements(const operator_tree<Scalar>& product, std::int64_t count, const Put& put) {
    const operator_tree<Scalar>& first = product.parts.front();
    const operator_tree<Scalar>& last = product.parts.back();
    const bool by_row = has_few_elements(first);
    const bool by_column = has_few_elements(last);
    const auto columns_of = [](kron_node<Scalar> node) {
        node.transpose();
        return stored_rows<Scalar>(node);
    };
    if (product.parts.size() == 3 && by_row && by_column && !has_product(product.parts[1])) {
        const stored_rows<Scalar> rows(first.kron);
        const stored_rows<Scalar> columns = columns_of(last.kron);
        for (std::int64_t i = 0; i < count; ++i) {
            Scalar sum(0);
            rows.for_each_in_row(i, [&](std::int64_t a, const Scalar& left) {
                columns.for_each_in_row(i, [&](std::int64_t b, const Scalar& right) {
                    sum = sum + left * product.parts[1].coefficient(a, b) * right;
                });
            });
            put(i, sum);
        }
        return true;
    }
    if (product.parts.size() != 2 || !(by_row || by_column) || has_product(by_row ? last : first)) {
        return false;
    }
    const stored_rows<Scalar> lines = by_row ? stored_rows<Scalar>(first.kron) : columns_of(last.kron);
    for (std::int64_t i = 0; i < count; ++i) {
        Scalar sum(0);
        lines.for_each_in_row(i, [&](std::int64_t a, const Scalar& value) {
            sum = sum + (by_row ? value * last.coefficient(a, i) : first.coefficient(i, a) * value);
        });
        put(i, sum);
    }
    return true;
}

}  // namespace otimes::detail

// SPDX-License-Identifier: MIT
/// @file rank_factors.hpp
/// The factors of a kron as the ranks of a distributed product take them (distributed.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <otimes/expr/dense_factors.hpp>
#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/program/structured.hpp>

namespace otimes::detail {

/// True for a factor that CPU ranks apply as it is: sparse matrices and permutations that are too large to be written out.
inline bool applied_as_it_is(const leaf& f) {
    return (f.kind() == factor_kind::sparse || f.kind() == factor_kind::permutation) &&
           (f.rows() > most_written_out || f.cols() > most_written_out);
}

/// The factors as ranks take them: dense ones, identities and diagonals (GPUs do those of up to 256 rows in the pass of their neighbours, as
/// dense ones); on CPUs large sparse matrices and permutations too, which a `Compiled` program has the loops for. @throws unsupported_error
template <bool Compiled, class Scalar>
kron_node<Scalar> rank_factors(bool on_device, const kron_node<Scalar>& source) {
    const bool keeps = Compiled && !on_device;
    kron_node<Scalar> others;
    others.set_alpha(source.alpha());
    for (const leaf& f : source.factors()) {
        others.append(keeps && applied_as_it_is(f) ? leaf::identity(f.rows()) : f);
    }
    const kron_node<Scalar> dense = with_dense_factors(others, on_device ? most_written_out : 0);
    kron_node<Scalar> result;
    result.set_alpha(dense.alpha());
    for (std::size_t i = 0; i < source.factors().size(); ++i) {
        const leaf& f = source.factors()[i];
        result.append(keeps && applied_as_it_is(f) ? f : dense.factors()[i]);
    }
    return result;
}

/// A sparse factor with elements of its own.
template <class Value>
leaf copied_sparse(const leaf& f) {
    struct owner {
        sparse_operand operand;
        sparse_elements elements;
        std::vector<std::int64_t> starts;
        std::vector<std::int64_t> inner;
        std::vector<Value> values;
    };
    const sparse_elements from = static_cast<const sparse_operand*>(f.view().data)->elements();
    auto kept = std::make_shared<owner>();
    kept->starts.push_back(0);
    for (std::int64_t outer = 0; outer < from.outer_size(); ++outer) {
        for (std::int64_t k = from.begin(outer); k < from.end(outer); ++k) {
            kept->inner.push_back(from.index(from.inner, k));
            kept->values.push_back(static_cast<const Value*>(from.values)[k]);
        }
        kept->starts.push_back(static_cast<std::int64_t>(kept->inner.size()));
    }
    kept->elements = {
        .rows = from.rows, .cols = from.cols, .by_columns = from.by_columns, .index_bytes = sizeof(std::int64_t)};
    kept->elements.starts = kept->starts.data();
    kept->elements.inner = kept->inner.data();
    kept->elements.values = kept->values.data();
    kept->operand = {kept.get(), [](const void* object) { return static_cast<const owner*>(object)->elements; }};
    const sparse_operand* const operand = &kept->operand;
    leaf result = leaf::structured(factor_kind::sparse, {operand, from.rows, from.cols, 1, 0}, std::move(kept));
    if (f.transposed()) {
        result.transpose();
    }
    if (f.conjugated()) {
        result.conjugate();
    }
    result.set_real_elements(f.real_elements());
    return result;
}

}  // namespace otimes::detail

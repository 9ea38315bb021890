// SPDX-License-Identifier: MIT
/// @file structured.hpp
/// What the binding of a factor points to when the factor is not dense: the elements of a sparse matrix, or a function that
/// applies the factor. The factor's tensor has the modes (p, q); of these, the mode of the matrix's rows has stride 1 and the
/// mode of its columns stride 0, so that a transposed factor is the same operand.
#pragma once

#include <cstdint>

#include <otimes/program/overlap.hpp>

namespace otimes {

/// The stored elements of a sparse matrix, by columns or by rows.
///
///     outer j holds elements k in [starts[j], ends_j):   matrix(inner[k], j) = values[k]   (by columns)
///     ends_j = starts[j + 1], or starts[j] + counts[j] where `counts` is not null
struct sparse_elements {
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    bool by_columns = true;
    std::uint8_t index_bytes = 4;  ///< of starts, counts and inner: 4 or 8, signed
    const void* starts = nullptr;
    const void* counts = nullptr;
    const void* inner = nullptr;
    const void* values = nullptr;
    std::int64_t known_stored =
        -1;  ///< number of stored elements where the arrays are in device memory; -1: count them

    [[nodiscard]] std::int64_t outer_size() const noexcept { return by_columns ? cols : rows; }
    [[nodiscard]] std::int64_t index(const void* indices, std::int64_t position) const noexcept {
        return index_bytes == 4 ? static_cast<const std::int32_t*>(indices)[position]
                                : static_cast<const std::int64_t*>(indices)[position];
    }
    [[nodiscard]] std::int64_t begin(std::int64_t outer) const noexcept { return index(starts, outer); }
    [[nodiscard]] std::int64_t end(std::int64_t outer) const noexcept {
        return counts != nullptr ? begin(outer) + index(counts, outer) : index(starts, outer + 1);
    }
    /// Number of stored elements. Cost: O(outer size) for a matrix that is not compressed.
    [[nodiscard]] std::int64_t stored() const noexcept {
        if (known_stored >= 0) {
            return known_stored;
        }
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < (counts != nullptr ? outer_size() : 0); ++j) {
            count += index(counts, j);
        }
        return counts != nullptr ? count : starts == nullptr ? 0 : index(starts, outer_size()) - index(starts, 0);
    }
};

/// A sparse factor: where its elements are now. In device memory (the tensor's space says so) the description is on the host, the arrays are on the
/// device, with indices of 4 bytes and without counts, and lie by the index of the result: by columns where the rows are contracted. A leaf's
/// data are two of these there, by columns and by rows, of which lowering binds the one that it needs.
struct sparse_operand {
    const void* object = nullptr;
    sparse_elements (*look)(const void* object) = nullptr;
    [[nodiscard]] sparse_elements elements() const { return look(object); }
};

/// A factor that only its owner can apply. `apply` computes count columns at once:
///
///     out = F * in, or out = F^T * in where `transposed`       in: contracted extent x count, out: other extent x count,
///                                                              both by columns without gaps, in the program's scalar type
struct callback_operand {
    const void* object = nullptr;
    void (*apply)(const void* object, bool transposed, const void* in, void* out, std::int64_t count) = nullptr;
    /// @name What an owner may tell; null where it does not.
    /// @{
    /// Element (i, j) of F, in the program's scalar type; without it a column is applied.
    void (*element)(const void* object, std::int64_t i, std::int64_t j, void* out) = nullptr;
    /// Column j of F, or of its transpose, at less than its elements.
    void (*column)(const void* object, bool transposed, std::int64_t j, void* out) = nullptr;
    /// May F be made of what lies in that memory?
    bool (*reads)(const void* object, const strided_memory& written) = nullptr;
    /// Multiply-adds for one column.
    std::int64_t (*multiply_adds)(const void* object) = nullptr;
    /// What it is, "K(rows, cols)", of an operator that is never formed.
    const char* name = nullptr;
    /// @}
    std::int64_t together = 1;  ///< so many columns at once pay, also where they leave the L1 cache
};

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file blocks.hpp
/// A program that is run on one range after another of an index that it does
/// not contract: lowered and planned once, then only the addresses of X and Y
/// move. What lies between the steps of a range stays in cache, and takes no
/// memory of the size of Y.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <otimes/exec/cpu/row_steps.hpp>
#include <otimes/exec/evaluate.hpp>
#include <otimes/exec/plan_cache.hpp>
#include <otimes/exec/row_hook.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace eigen {

/// Rows [begin, begin + count) of a matrix, or columns where `of_columns`.
inline matrix_view part_of(const matrix_view& m, bool of_columns, std::int64_t begin, std::int64_t count,
                           std::int64_t bytes) {
    matrix_view part = m;
    const std::int64_t stride = of_columns ? m.col_stride : m.row_stride;
    part.data = static_cast<const char*>(m.data) + begin * stride * bytes;
    (of_columns ? part.cols : part.rows) = count;
    return part;
}

inline leaf part_of(const leaf& m, bool of_columns, std::int64_t begin, std::int64_t count, std::int64_t bytes) {
    leaf part = leaf::borrowed(part_of(m.view(), of_columns, begin, count, bytes));
    if (m.conjugated()) {
        part.conjugate();
    }
    part.set_real_elements(m.real_elements());
    part.set_space(m.space());
    return part;
}

/// Bytes of an element of an operand over Scalar.
template <class Scalar>
std::int64_t element_bytes_of(const leaf& m) {
    return static_cast<std::int64_t>(m.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
}

/// A lowered program whose X and Y can be moved. The factors' scratch memory
/// stays.
template <class Scalar>
class movable_program {
public:
    /// `write(lowering)` writes the program.
    template <class Write>
    explicit movable_program(const Write& write) : low_(scratch_.program(), scratch_.bindings()) {
        write(low_);
    }
    void run() {
        enable_row_steps<Scalar>();
        evaluate_program<Scalar>(scratch_.program(), scratch_.bindings());
    }
    /// Runs it row by row where that is possible with intermediates of at most so many elements (exec/cpu/row_steps.hpp).
    /// False: nothing is written.
    bool run_by_rows(std::int64_t most_elements) {
        if constexpr (dtype_of<Scalar>() == dtype::other) {
            return false;
        } else {
            enable_row_steps<Scalar>();
            return &current_executor() == &cpu() &&
                   row_steps<Scalar>::run.load(std::memory_order_relaxed)(scratch_.program(), scratch_.bindings(), 0,
                                                                          (std::numeric_limits<std::int64_t>::max)(),
                                                                          most_elements, nullptr);
        }
    }
    [[nodiscard]] program& steps() { return scratch_.program(); }
    [[nodiscard]] otimes::bindings& operands() { return scratch_.bindings(); }

    /// Moves every operand of this role that starts at `from` by `bytes`. Factors
    /// do not move, wherever they lie.
    void move(tensor_role role, const void* from, std::int64_t bytes) {
        for (const tensor& t : scratch_.program().tensors) {
            if (t.role == role && t.binding >= 0) {
                void*& at = scratch_.bindings().pointers[static_cast<std::size_t>(t.binding)];
                if (at == from) {
                    at = static_cast<char*>(at) + bytes;
                }
            }
        }
    }

private:
    lowering_scratch scratch_;
    lowering<Scalar> low_;
};

/// How many of `total` indices to take at a time, so that `bytes` for each of
/// them fill half of a second-level cache of the current executor; ranges are
/// of equal length but the last. All of them on a GPU, and where all of them
/// fit.
inline std::int64_t indices_in_cache(std::int64_t total, std::int64_t bytes, std::int64_t least = 1) {
    const executor& e = current_executor();
    if (e.where() != placement::cpu || total <= least || bytes <= 0) {
        return (std::max)(total, std::int64_t{1});
    }
    const std::int64_t l2 = e.target().cpu.l2_bytes;
    if (total <= l2 / bytes) {
        return total;
    }
    const std::int64_t threads = (std::max)(1, e.target().cpu.threads);
    const std::int64_t most = (std::max)(least, l2 / 2 / bytes) * threads;
    const std::int64_t count = (total + most - 1) / most;
    return (total + count - 1) / count;
}

}  // namespace eigen
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file sum_norms.hpp
/// Norms of sums in device memory without the sum: `(dX * S).squaredNorm()`, `(dX * K + dZ).norm()`, `column_squared_norms(dX * S)`. Included by cuda.hpp.
///
/// A product and a matrix, as the residual `dX * K - dZ`, are reduced as a dot product is: by the product's last kernel, which reads the matrix, in the same
/// memory (device_algebra.hpp).
///
/// Of other sums: a norm is not linear, so the terms cannot be reduced one by one: the sum is evaluated block by block, by the launches that it has as a whole, into
/// half of the second-level cache, or `workspace_bytes`: then size(Y) / P1 where that is more, P1 the rows of the first factor (the largest, of
/// several terms; at least two rows or columns where there are four), as long as it stays in the cache. Each block is reduced before the next one
/// overwrites it.
/// Blocks are rows (columns, where S stands on the left); of a single row, and with factors on both sides, columns of the terms' first
/// factors, which then are equally many. Flops: those of the sum, and two per entry. Equal runs give equal bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <optional>
#include <utility>

#include <otimes/cuda.hpp>
#include <otimes/device/column_norms.hpp>
#include <otimes/device_algebra.hpp>

namespace otimes {
namespace device {

/// How a sum is cut; see the file comment. A cut of one block has step = total.
template <class Scalar>
block_cut cut_of_sum(const device_sum<Scalar>& y, std::int64_t workspace_bytes, std::int64_t cache_bytes) {
    bool left = false;
    bool right = false;
    std::int64_t inputs = 1;  // the rows of the first factor
    for (const device_product<Scalar>& term : y.terms()) {
        const product_node<Scalar>& node = term.node();
        left = left || node.has_left;
        right = right || node.has_right;
        for (const factor_list* const list : {&node.left, &node.right}) {
            if (list->size() > 0) {
                inputs = (std::max)(inputs, (*list)[0].rows());
            }
        }
    }
    block_cut cut;
    cut.of_columns = left && !right;
    cut.total = cut.of_columns ? y.cols() : y.rows();
    std::int64_t line = cut.of_columns ? y.rows() : y.cols();
    if ((left && right) || cut.total == 1) {
        cut.of_factor = true;
        cut.of_columns = right;
        cut.total = 0;
        bool alike = true;
        for (const device_product<Scalar>& term : y.terms()) {
            const factor_list& list = cut.of_columns ? term.node().right : term.node().left;
            if (list.size() > 0) {
                const std::int64_t extent = cut.of_columns ? list[0].cols() : list[0].rows();
                cut.total = cut.total == 0 ? extent : cut.total;
                alike = alike && extent == cut.total && (list[0].is_dense() || list[0].is_identity());
            }
        }
        const auto whole = y.rows() * y.cols() * static_cast<std::int64_t>(sizeof(Scalar));
        if (cut.total == 0 || !alike) {
            if (whole > (std::max)(allowed_bytes(workspace_bytes, cache_bytes), std::int64_t{1} << 20)) {
                throw unsupported_error(
                    "otimes: the norm of a sum in device memory: a single row or column, or factors on both sides, "
                    "goes by the columns of "
                    "the first factors, and those of this sum differ. Evaluate the sum first, or allow its size by "
                    "workspace_bytes.");
            }
            cut.of_factor = false;
            cut.total = cut.step = cut.of_columns ? y.cols() : y.rows();
            return cut;
        }
        cut.length = (cut.of_columns ? y.cols() : y.rows()) / cut.total;
        line = cut.length * (cut.of_columns ? y.rows() : y.cols());
    }
    const std::int64_t least = !cut.of_factor && cut.total >= 4 ? 2 : 1;
    cut.step = (std::max)(cut.total / inputs, least);
    const std::int64_t line_bytes = line * static_cast<std::int64_t>(sizeof(Scalar));
    if (cache_bytes > 0 && line_bytes > 0) {
        cut.step = std::clamp<std::int64_t>(cache_bytes / line_bytes, 1, cut.step);
        widen(cut, line_bytes, allowed_bytes(workspace_bytes, cache_bytes));
    }
    return cut;
}

/// Evaluates the sum block by block; use(number, block) queues what reads a block.
template <class Scalar, class Use>
void for_each_block(const device_sum<Scalar>& y, const block_cut& cut, const device_executor& where, const Use& use) {
    const matrix_view x = y.terms().front().node().x.view();
    const bool by_rows = x.row_stride > x.col_stride;
    const std::int64_t line = cut.length * (cut.of_columns ? y.rows() : y.cols());
    DeviceMatrix<Scalar> memory(cut.step * line, 1, where);
    for (std::int64_t number = 0; number < cut.count(); ++number) {
        const std::int64_t begin = number * cut.step;
        const std::int64_t width = (std::min)(cut.step, cut.total - begin);
        const auto part_of_term = [&](const device_product<Scalar>& term) {
            const product_node<Scalar>& node = term.node();
            if (cut.of_factor && !(cut.of_columns ? node.has_right : node.has_left)) {
                product_node<Scalar> part = node;
                part.x = part_of<Scalar>(node.x, cut.of_columns, begin * cut.length, width * cut.length);
                return device_product<Scalar>(std::move(part), term.homes());
            }
            return device_product<Scalar>(block_of(node, cut, begin, width), term.homes());
        };
        device_sum<Scalar> part(part_of_term(y.terms().front()));
        for (std::size_t i = 1; i < y.terms().size(); ++i) {
            part.append(device_sum<Scalar>(part_of_term(y.terms()[i])), 1);
        }
        const std::int64_t rows = part.rows();
        const std::int64_t cols = part.cols();
        const matrix_view block{memory.data(), rows, cols, by_rows ? cols : 1, by_rows ? 1 : rows};
        evaluate(part, block, false, Scalar(1), &where, /*sharing=*/false);  // its memory is what was allowed
        use(number, block);
    }
}

/// |a * P + b * Z|^2 = |b|^2 * |Z - (-a / b) * P|^2 of a product P and a matrix Z, as x = |b|^2 * Z and y = (-a / b) * P.
template <class Scalar>
struct distance {
    device_product<Scalar> x;
    device_product<Scalar> y;
};

/// The sum as a distance; nothing where it is none, or a and b differ so much that their quotient or |b|^2 might leave the range of Scalar.
template <class Scalar>
std::optional<distance<Scalar>> as_distance(const device_sum<Scalar>& sum) {
    using real = detail::real_of<Scalar>;
    const auto& terms = sum.terms();
    if (terms.size() != 2 || terms[0].is_matrix() == terms[1].is_matrix()) {
        return std::nullopt;
    }
    distance<Scalar> d{terms[terms[0].is_matrix() ? 0 : 1], terms[terms[0].is_matrix() ? 1 : 0]};
    const Scalar a = d.y.node().alpha;
    const Scalar b = d.x.node().alpha;
    const auto usual = [](const Scalar& value) {
        const real size = std::abs(value);
        return size >= real(1e-6) && size <= real(1e6);
    };
    if (!usual(a) || !usual(b) || d.x.node().x.real_elements()) {
        return std::nullopt;
    }
    d.x.edit().alpha = Scalar(std::norm(b));
    d.y.edit().alpha = -a / b;
    return d;
}

}  // namespace device

/// The squared Frobenius norm of a sum in device memory, without the sum; see the file comment. Waits for the device.
/// @throws shape_error an operand was resized; unsupported_error nothing can be cut; device_error during a capture
template <class Scalar>
auto squared_norm(const device_sum<Scalar>& y, std::int64_t workspace_bytes) {
    static_assert(device::require_reducible<Scalar>());
    y.check();
    if (y.rows() == 0 || y.cols() == 0) {
        return detail::real_of<Scalar>(0);
    }
    if (const auto distance = device::as_distance(y)) {
        return detail::real_part_of(
            device::reduced<Scalar>(step_variant::squared_distance, &distance->x, distance->y, workspace_bytes));
    }
    const device_executor& where = device::executor_for(y.home());
    where.require_no_capture("a reduction returns its number to the host");
    const device::block_cut cut = device::cut_of_sum(y, workspace_bytes, device::half_of_cache(where));
    return detail::real_part_of(device::total_of<Scalar>(where, cut.count(), [&](Scalar* results) {
        device::for_each_block(y, cut, where, [&](std::int64_t number, const matrix_view& block) {
            device::run_on(where, {}, [&](device::scratch& s) {
                lowering<Scalar> low(s.program, s.bindings);
                device::append_reduction<Scalar>(low, s.program, step_variant::squared_norm, nullptr, block, false, -1,
                                                 nullptr, results + number);
                device::mark_result_on_device(s.program);
                where.evaluate(s.program, s.bindings);
            });
        });
        return cut.count();
    }));
}

/// The squared norms of the columns of a sum in device memory, as a column there, without the sum. Asynchronous. @throws as squared_norm
template <class Scalar>
[[nodiscard]] auto column_squared_norms(const device_sum<Scalar>& y, std::int64_t workspace_bytes = 0) {
    static_assert(device::require_reducible<Scalar>());
    y.check();
    using real = detail::real_of<Scalar>;
    const device_executor& where = device::executor_for(y.home());
    DeviceMatrix<real> result(y.cols(), 1, where);
    if (y.rows() == 0 || y.cols() == 0) {
        device::fill_with_zeros(where, result);
        return result;
    }
    const device::block_cut cut = device::cut_of_sum(y, workspace_bytes, device::half_of_cache(where));
    device::for_each_block(y, cut, where, [&](std::int64_t number, const matrix_view& block) {
        device::run_on(where, {}, [&](device::scratch& s) {
            lowering<Scalar> low(s.program, s.bindings);
            real* const to = result.data() + (cut.of_columns ? number * cut.step * cut.length : 0);
            device::append_column_norms<Scalar>(low, s.program, block, -1, Scalar(1), !cut.of_columns && number > 0,
                                                to);
            device::mark_result_on_device(s.program);
            where.evaluate(s.program, s.bindings);
        });
    });
    return result;
}

}  // namespace otimes

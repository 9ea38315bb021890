// SPDX-License-Identifier: MIT
/// @file column_norms.hpp
/// The squared norms of the columns of a product in device memory, without the product: `column_squared_norms(dX * K)`. Included by cuda.hpp.
/// The CPU's: adapt/eigen/reductions.hpp.
///
/// The product goes block by block through memory that stays in the second-level cache, or what the caller allows; a block's squares are
/// added to the result before the next one overwrites it. Flops: those of the product, and two per entry.
/// Long columns are added in pieces, so that the sums of a few columns, too, take the whole GPU; equal runs give equal bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/device_algebra.hpp>

namespace otimes {
namespace device {

/// result (+)= scale * the sums of |m(i, j)|^2 over i. `known`: the binding of m's memory where the program wrote it; -1: it reads it only.
template <class Scalar>
void append_column_norms(lowering<Scalar>& low, program& p, const matrix_view& m, std::int32_t known,
                         const Scalar& scale, bool add, detail::real_of<Scalar>* result) {
    using real = detail::real_of<Scalar>;
    constexpr std::int64_t parts = detail::is_complex_scalar<Scalar> ? 2 : 1;
    for (std::int64_t part = 0; part < parts; ++part) {
        const auto describe = [&](tensor_role role) {
            const std::int32_t id = p.add_tensor(low.make_tensor(dtype_of<real>(), role, parts == 2));
            p.tensors.back().space = memory_space::device;
            return id;
        };
        const auto bind_part = [&] {
            if (known >= 0 && parts == 1) {
                p.tensors.back().binding = known;
            } else {
                low.bind(static_cast<const real*>(m.data) + part);
            }
        };
        const std::int32_t in = describe(tensor_role::input);
        p.add_mode(m.rows, parts * m.row_stride);
        p.add_mode(m.cols, parts * m.col_stride);
        bind_part();
        const std::int32_t itself = describe(tensor_role::factor);  // a column of its own for each column
        p.add_mode(m.cols, parts * m.col_stride);
        p.add_mode(m.rows, parts * m.row_stride);
        p.add_mode(1, 0);
        bind_part();
        const std::int32_t out = describe(tensor_role::output);
        p.add_mode(1, 0);
        p.add_mode(m.cols, 1);
        low.bind(result);
        step s = program_writer::make_step(step_kind::contract, in, itself, out, 0);
        s.add = add || part > 0;
        s.scalar = low.add_scalar(scale);
        p.steps.push_back(s);
    }
}

template <class Real>
void fill_with_zeros(const device_executor& where, DeviceMatrix<Real>& column) {
    std::vector<Real> zeros(static_cast<std::size_t>(column.rows()), Real(0));
    if (!zeros.empty()) {
        where.upload(column.data(),
                     {zeros.data(), static_cast<std::int64_t>(sizeof(Real)), {{1, 1}, {column.rows(), 1}}});
    }
}

}  // namespace device

/// The squared norms of the columns of a matrix, a multiple or a product in device memory, as a column there, without the product. Asynchronous.
/// `workspace_bytes`: memory for blocks of the product where that is more than size(Y) / (rows of the first factor); the more, the fewer
/// launches. 0: half of the second-level cache. @throws shape_error an operand was resized
template <class Product>
requires device::factor_or_x<Product>
[[nodiscard]] auto column_squared_norms(const Product& product, std::int64_t workspace_bytes = 0) {
    using scalar = typename Product::Scalar;
    using real = detail::real_of<scalar>;
    static_assert(device::require_reducible<scalar>());
    const device_product<scalar> y = device::to_product(product);
    const product_node<scalar>& node = y.node();
    node.check();
    const device::homes others = y.homes();
    const device_executor& where = device::executor_for(others.empty() ? nullptr : others[0]);
    DeviceMatrix<real> result(y.cols(), 1, where);
    if (y.cols() == 0) {
        return result;
    }
    if (y.rows() == 0) {
        device::fill_with_zeros(where, result);
        return result;
    }
    const matrix_view x = node.x.view();
    if (y.is_matrix() && !node.x.real_elements()) {
        const scalar square = node.alpha * detail::conjugate_of(node.alpha);
        device::run_on(where, others, [&](device::scratch& s) {
            lowering<scalar> low(s.program, s.bindings);
            device::append_column_norms<scalar>(low, s.program, x, -1, square, false, result.data());
            where.evaluate(s.program, s.bindings);
        });
        return result;
    }
    device::block_cut cut = device::cut_of(node, device::half_of_cache(where));
    const std::int64_t line = cut.length * (cut.of_columns ? y.rows() : y.cols());
    device::widen(cut, line * std::int64_t{sizeof(scalar)},
                  device::allowed_bytes(workspace_bytes, device::half_of_cache(where)));
    DeviceMatrix<scalar> memory(cut.step * line, 1, where);
    const bool by_rows = x.row_stride > x.col_stride;
    for (std::int64_t begin = 0; begin < cut.total; begin += cut.step) {
        device::run_on(where, others, [&](device::scratch& s) {
            lowering<scalar> low(s.program, s.bindings);
            const product_node<scalar> part =
                device::block_of(node, cut, begin, (std::min)(cut.step, cut.total - begin));
            const std::int64_t rows = part.rows();
            const std::int64_t cols = part.cols();
            const matrix_view block{memory.data(), rows, cols, by_rows ? cols : 1, by_rows ? 1 : rows};
            low.add_product(part, block, false, scalar(1));
            const std::int32_t written = s.program.at(s.program.steps.back().out).binding;
            const bool new_columns = cut.of_columns || begin == 0;
            device::append_column_norms<scalar>(low, s.program, block, written, scalar(1), !new_columns,
                                                result.data() + (cut.of_columns ? begin * cut.length : 0));
            device::mark_result_on_device(s.program);
            where.evaluate(s.program, s.bindings);
        });
    }
    return result;
}

}  // namespace otimes

// After what it uses: norms of sums go column by column, too.
#include <otimes/device/sum_norms.hpp>

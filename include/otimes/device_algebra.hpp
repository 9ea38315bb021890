// SPDX-License-Identifier: MIT
/// @file device_algebra.hpp
/// Numbers from products in device memory without the products: `dot(dX, K * dY)`, `(dX * K).squaredNorm()`, `.norm()`,
/// `quadratic_trace(dX, K)` = tr(X^H K X); and what `solve` does with right-hand sides in device memory. Included by cuda.hpp. The CPU's:
/// adapt/eigen/reductions.hpp, adapt/eigen/solvers.hpp.
///
/// The product's last kernel multiplies what it would store by what stands there in the other matrix, and sums: nothing of the product's
/// size is written. A product of one kernel takes no workspace, nor do dot products whose rows go in pieces (plan/gpu_pieces.hpp); others
/// take at most size(Y) / (rows of the first factor), in slabs of rows, or what the caller allows. What has no rows to cut goes block by
/// block over the first factor's columns (rows, for K * X), as few blocks as what the caller allows has room for:
///
///     x^H kron(A, B) y = sum_i x_i^H kron(A.row(i), B) y            x_i: the i-th of rows(A) pieces of x
///
/// So does, over rows or columns (at least two where there are four or more), what the kernels do not reduce: GPUs for which nothing is
/// compiled at run time, matrices of different orders, complex products with real factors; there each block is stored, in no more than stays
/// in the second-level cache. A single row or column of a kron of one factor is evaluated whole. Flops: those of the product, and two per entry.
///
/// A reduction returns a number to the host, so it waits for the stream. Up to four neighbouring products are added in the
/// scalar's precision, these sums in double, in an order that depends on the shapes and the device alone: equal runs give equal bits.
/// @throws device_error the stream is being captured into a graph; nothing is queued then
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/program/kept_by_thread.hpp>

namespace otimes {
namespace device {

/// Columns (`of_columns`) or rows [begin, begin + count) of a matrix.
inline matrix_view part_of(const matrix_view& m, bool of_columns, std::int64_t begin, std::int64_t count,
                           std::int64_t bytes) {
    matrix_view part = m;
    part.data = static_cast<const std::byte*>(m.data) + begin * (of_columns ? m.col_stride : m.row_stride) * bytes;
    (of_columns ? part.cols : part.rows) = count;
    return part;
}
template <class Scalar>
leaf part_of(const leaf& m, bool of_columns, std::int64_t begin, std::int64_t count) {
    const auto bytes = static_cast<std::int64_t>(m.real_elements() ? sizeof(detail::real_of<Scalar>) : sizeof(Scalar));
    leaf part = leaf::borrowed(part_of(m.view(), of_columns, begin, count, bytes));
    if (m.conjugated()) {
        part.conjugate();
    }
    part.set_real_elements(m.real_elements());
    part.set_space(m.space());
    return part;
}

/// How a product is cut into blocks of whole columns or whole rows.
struct block_cut {
    bool of_columns = false;
    std::int64_t total = 1;   ///< indices that are cut
    std::int64_t step = 1;    ///< at a time
    std::int64_t length = 1;  ///< columns (rows) of Y for each of them
    bool of_factor = false;   ///< they are the first factor's; else the free ones of X
    [[nodiscard]] std::int64_t count() const noexcept { return total == 0 ? 0 : (total + step - 1) / step; }
};

/// What a block may take so that it is still in the second-level cache when it is reduced; 0: not known.
inline std::int64_t half_of_cache(const device_executor& where) {
    return where.target().gpus.empty() ? 0 : where.target().gpus.front().l2_bytes / 2;
}

/// As many indices at a time as fit `allowed` bytes, a line of each index; never fewer than before.
inline void widen(block_cut& cut, std::int64_t line_bytes, std::int64_t allowed) {
    cut.step = (std::max)(cut.step, (std::min)(cut.total, allowed / line_bytes));
}

/// What a reduction may take where size(Y) / (rows of the first factor) is less, which of a single column may be a column of one factor: what the
/// caller allows, and where nothing is said (0) what stays in the second-level cache (docs/decisions/0010).
inline std::int64_t allowed_bytes(std::int64_t workspace_bytes, std::int64_t cache_bytes) {
    return workspace_bytes > 0 ? workspace_bytes : cache_bytes;
}

template <class Scalar>
block_cut cut_of(const product_node<Scalar>& node, std::int64_t cache_bytes) {
    block_cut cut;
    const std::int64_t rows = node.rows();
    const std::int64_t cols = node.cols();
    const factor_list& factors = node.has_right ? node.right : node.left;
    const bool both = node.has_left && node.has_right;
    const bool has_factors = (node.has_left || node.has_right) && !factors.empty();
    const std::int64_t pieces =
        has_factors ? (std::max)(std::int64_t{1}, node.has_right ? factors[0].cols() : factors[0].rows()) : 1;
    const std::int64_t inputs =
        has_factors ? (std::max)(std::int64_t{1}, factors[0].rows()) : 1;  // the rows of the first factor
    const bool free_columns = node.has_left && !both;
    cut.of_columns = free_columns;
    cut.total = free_columns ? cols : rows;
    if (both || (cut.total == 1 && factors.size() > 1 && (factors[0].is_dense() || factors[0].is_identity()))) {
        if (both && (factors.empty() || !(factors[0].is_dense() || factors[0].is_identity()))) {
            cut.total = cut.step = 1;
            cut.length = cols;
            cut.of_columns = true;
            return cut;
        }
        cut.of_columns = node.has_right;
        cut.of_factor = true;
        cut.total = pieces;
        cut.length = (cut.of_columns ? cols : rows) / pieces;
        cut.step = (std::max)(std::int64_t{1}, pieces / inputs);
        return cut;
    }
    cut.step = (std::max)(cut.total / inputs, cut.total >= 4 ? std::int64_t{2} : std::int64_t{1});
    const std::int64_t line_bytes = (free_columns ? rows : cols) * static_cast<std::int64_t>(sizeof(Scalar));
    if (cache_bytes > 0 && line_bytes > 0) {
        cut.step = std::clamp<std::int64_t>(cache_bytes / line_bytes, 1, cut.step);
    }
    return cut;
}

/// Block `number` of a product.
template <class Scalar>
product_node<Scalar> block_of(const product_node<Scalar>& node, const block_cut& cut, std::int64_t begin,
                              std::int64_t width) {
    product_node<Scalar> part = node;
    if (!cut.of_factor) {
        if (width != cut.total) {
            part.x = part_of<Scalar>(node.x, cut.of_columns, begin, width);
        }
        return part;
    }
    leaf& first = (cut.of_columns ? part.right : part.left)[0];
    if (!first.is_identity()) {
        first = part_of<Scalar>(first, cut.of_columns, begin, width);
        return part;
    }
    const std::int64_t each = (cut.of_columns ? node.x.cols() : node.x.rows()) / cut.total;
    part.x = part_of<Scalar>(node.x, cut.of_columns, begin * each, width * each);
    first = leaf::identity(width);
    return part;
}

/// result = scale * sum of conj(x) * node, of |x - node|^2, or of |node|^2, which takes no x (`what`), as a program that stores the product nowhere.
/// @pre the product is not lowered as a real problem
template <class Scalar>
void write_reduction(lowering<Scalar>& low, scratch& s, const product_node<Scalar>& node, step_variant what,
                     const leaf* x, const Scalar& scale, Scalar* result) {
    program& p = s.program;
    low.add_product(node, {nullptr, node.rows(), node.cols(), 0, 0}, false);
    const std::int32_t product = p.steps.back().out;
    tensor& t = p.tensors[static_cast<std::size_t>(product)];
    t.role = tensor_role::temporary;
    t.binding = -1;                // the address that was bound last stays unused
    t.space = memory_space::host;  // as temporaries are described
    std::int32_t in = product;
    if (x != nullptr) {
        in = low.describe_matrix(node, x->view(), t.type, tensor_role::input, /*of_result=*/true, /*doubled=*/false);
        p.tensors.back().conjugate = x->conjugated();
        low.bind(x->view().data);
    }
    const std::int32_t out = low.describe_plain({result, 1, 1, 1, 1}, tensor_role::output);
    step reduction = program_writer::make_step(step_kind::reduce, in, x != nullptr ? product : -1, out, -1);
    reduction.variant = what;
    reduction.scalar = low.add_scalar(scale);
    p.steps.push_back(reduction);
    mark_result_on_device(p);
}

/// The plan of a program within so many bytes of workspace, nullptr: there is none; of that within `least` and the one within `most` the faster
/// one by prediction. What a thread asked for last is kept.
OTIMES_COLD inline std::shared_ptr<const plan> plan_within(const device_executor& where, const program& p,
                                                           std::int64_t least, std::int64_t most) {
    struct kept_plan {
        std::uint64_t key = 0;
        std::uint64_t executor_id = 0;
        std::int64_t least = 0, most = 0;
        program source;
        std::shared_ptr<const plan> value;
    };
    struct kept_plans {
        std::vector<kept_plan> all = std::vector<kept_plan>(32);
        std::size_t next = 0;  // in turn: the sizes of block that one reduction tries must not replace each other
    };
    const std::uint64_t key = hash_value(p);
    const auto is_asked_for = [&](const kept_plan& k) {
        return k.key == key && k.executor_id == where.id() && k.least == least && k.most == most && k.source == p;
    };
    kept_plan fresh;
    kept_plans* const kept = otimes::detail::kept_by_thread<kept_plans, kept_plan>();
    kept_plan* entry = &fresh;
    if (kept != nullptr) {
        const auto found = std::ranges::find_if(kept->all, is_asked_for);
        entry = found != kept->all.end() ? &*found : &kept->all[kept->next++ % kept->all.size()];
    }
    if (!is_asked_for(*entry)) {
        const auto within = [&](std::int64_t bytes) -> std::shared_ptr<const plan> {
            try {
                options wishes;
                wishes.workspace_limit_bytes = bytes;
                return std::make_shared<const plan>(where.make_plan_for(p, wishes));
            } catch (const budget_error&) {  // block by block
                return nullptr;
            }
        };
        std::shared_ptr<const plan> made = within(least);
        if (most > least) {
            std::shared_ptr<const plan> more = within(most);
            if (made == nullptr || (more != nullptr && more->predicted_seconds < made->predicted_seconds)) {
                made = std::move(more);
            }
        }
        *entry = {key, where.id(), least, most, p, std::move(made)};
    }
    return entry->value;
}

/// Appends result = sum of conj(x) * y, of |x - y|^2, or of |y|^2, which takes no x (`what`); `y` is bound already where the program wrote it last.
template <class Scalar>
void append_reduction(lowering<Scalar>& low, program& p, step_variant what, const leaf* x, const matrix_view& y,
                      bool y_conjugated, std::int32_t known_binding, const Scalar* scale, Scalar* result) {
    const std::int32_t factor = low.describe_plain(y, tensor_role::input);
    p.tensors.back().conjugate = y_conjugated;
    if (known_binding >= 0) {
        p.tensors.back().binding = known_binding;
    }
    std::int32_t in = factor;
    if (x != nullptr) {
        in = low.describe_plain(x->view(), tensor_role::input);
        p.tensors.back().conjugate = x->conjugated();
    }
    const std::int32_t out = low.describe_plain({result, 1, 1, 1, 1}, tensor_role::output);
    step s = program_writer::make_step(step_kind::reduce, in, x != nullptr ? factor : -1, out, -1);
    s.variant = what;
    if (scale != nullptr) {
        s.scalar = low.add_scalar(*scale);
    }
    p.steps.push_back(s);
}

template <class Scalar>
constexpr bool require_reducible() {
    static_assert(std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double> ||
                      std::is_same_v<Scalar, std::complex<float>> || std::is_same_v<Scalar, std::complex<double>>,
                  "otimes: reductions in device memory are of float, double and their complex types. Evaluate to a "
                  "DeviceMatrix and copy it by to_host().");
    return true;
}

/// The sum of numbers that kernels leave: `queue(numbers)` queues what writes at most `most` of them, and says how many. Waits.
template <class Scalar, class Queue>
Scalar total_of(const device_executor& where, std::int64_t most, const Queue& queue) {
    std::int64_t count = 0;
    using wide = std::conditional_t<detail::is_complex_scalar<Scalar>, std::complex<double>, double>;
    wide sum(0);
    where.receive(
        most * static_cast<std::int64_t>(sizeof(Scalar)),
        [&](void* numbers) {
            count = queue(static_cast<Scalar*>(numbers));
            return count * static_cast<std::int64_t>(sizeof(Scalar));
        },
        [&](const void* numbers) {
            for (std::int64_t i = 0; i < count; ++i) {
                sum += wide(static_cast<const Scalar*>(numbers)[i]);
            }
        });
    return Scalar(sum);
}

/// sum of conj(x(i, j)) * y(i, j), or of |y(i, j)|^2, which takes no x; or alpha * sum of |X(i, j) - y(i, j)|^2, x = alpha * X (`what`). @pre x is a matrix, of
/// y's shape; of a distance y is none, and alpha is real
template <class Scalar>
Scalar reduced(step_variant what, const device_product<Scalar>* x, const device_product<Scalar>& y,
               std::int64_t workspace_bytes) {
    static_assert(require_reducible<Scalar>());
    const product_node<Scalar>& node = y.node();
    node.check();
    homes others = y.homes();
    if (x != nullptr) {
        for (const device_executor* const home : x->homes()) {
            add_home(others, home);
        }
    }
    if (y.rows() == 0 || y.cols() == 0) {
        return Scalar(0);
    }
    const device_executor& where = executor_for(others.empty() ? nullptr : others[0]);
    where.require_no_capture("a reduction returns its number to the host");
    const bool plain = y.is_matrix() && !node.x.real_elements();
    const std::int64_t cache = half_of_cache(where);
    block_cut cut;
    if (plain) {
        cut.total = cut.step = y.rows();
    } else {
        cut = cut_of(node, cache);
    }
    std::int64_t count = cut.count();
    const matrix_view x_view = node.x.view();
    const bool by_rows = x_view.row_stride > x_view.col_stride;  // a block is stored as X is
    const Scalar of_x = x != nullptr ? detail::conjugate_of(x->node().alpha) : Scalar(1);
    return total_of<Scalar>(where, count, [&](Scalar* results) {
        bool doubled = false;
        std::int64_t most_bytes = 0;
        if (!plain) {
            bool done = false;
            run_on(where, others, [&](scratch& s) {
                lowering<Scalar> low(s.program, s.bindings);
                doubled = low.is_doubled(node, node.alpha);
                if (doubled) {
                    return;
                }
                write_reduction<Scalar>(low, s, node, what, x != nullptr ? &x->node().x : nullptr, of_x, results);
                const block_cut whole_blocks = cut_of(node, std::int64_t{0});
                std::int64_t of_block =
                    whole_blocks.step * whole_blocks.length * (whole_blocks.of_columns ? y.rows() : y.cols());
                std::int64_t of_factors = 0;  // the plan counts these, too
                for (const factor_list* const list : {&node.left, &node.right}) {
                    for (const leaf& f : *list) {
                        of_factors += f.is_identity() ? 0 : f.rows() * f.cols() + 64;
                    }
                }
                constexpr auto each = static_cast<std::int64_t>(sizeof(Scalar));
                const std::int64_t least_bytes = (of_block + of_factors) * each;
                most_bytes = (std::max)(least_bytes, allowed_bytes(workspace_bytes, cache + of_factors * each));
                if (const std::shared_ptr<const plan> made = plan_within(where, s.program, least_bytes, most_bytes)) {
                    where.run(*made, s.bindings, {});
                    done = true;
                }
            });
            if (done) {
                return std::int64_t{1};
            }
        }
        // As few blocks as fit.
        const auto write_block = [&](scratch& s, std::int64_t begin, std::int64_t width, Scalar* result) {
            lowering<Scalar> low(s.program, s.bindings);
            leaf matched;
            if (x != nullptr) {
                matched = part_of<Scalar>(x->node().x, cut.of_columns, begin * cut.length, width * cut.length);
            }
            write_reduction<Scalar>(low, s, block_of(node, cut, begin, width), what, x != nullptr ? &matched : nullptr,
                                    of_x, result);
            mark_result_on_device(s.program);
        };
        bool within = false;
        for (std::int64_t width = (cut.total + 1) / 2; !doubled && !within && width > cut.step;
             width = (width + 1) / 2) {
            run_on(where, others, [&](scratch& s) {
                write_block(s, 0, width, results);
                within = plan_within(where, s.program, most_bytes, most_bytes) != nullptr;
            });
            if (within) {
                cut.step = width;
                count = cut.count();
            }
        }
        const std::int64_t line = cut.length * (cut.of_columns ? y.rows() : y.cols());
        if (doubled) {
            widen(cut, line * std::int64_t{sizeof(Scalar)}, allowed_bytes(workspace_bytes, cache));
            count = cut.count();
        }
        DeviceMatrix<Scalar> memory(doubled ? cut.step * line : 0, 1, where);
        for (std::int64_t number = 0; number < count; ++number) {
            const std::int64_t begin = number * cut.step;
            const std::int64_t width = (std::min)(cut.step, cut.total - begin);
            run_on(where, others, [&](scratch& s) {
                if (!plain && !doubled) {
                    write_block(s, begin, width, results + number);
                    const std::shared_ptr<const plan> made = within
                                                                 ? plan_within(where, s.program, most_bytes, most_bytes)
                                                                 : nullptr;  // one for all but a shorter last
                    if (made != nullptr) {
                        where.run(*made, s.bindings, {});
                    } else {
                        where.evaluate(s.program, s.bindings);
                    }
                    return;
                }
                lowering<Scalar> low(s.program, s.bindings);
                leaf matched;
                if (x != nullptr) {
                    matched = part_of<Scalar>(x->node().x, cut.of_columns, begin * cut.length, width * cut.length);
                }
                if (plain) {
                    const Scalar alpha = x != nullptr ? node.alpha * detail::conjugate_of(x->node().alpha)
                                                      : node.alpha * detail::conjugate_of(node.alpha);
                    append_reduction<Scalar>(low, s.program, what, x != nullptr ? &matched : nullptr, x_view,
                                             node.x.conjugated(), -1, &alpha, results);
                } else {
                    const product_node<Scalar> part = block_of(node, cut, begin, width);
                    const std::int64_t rows = part.rows();
                    const std::int64_t cols = part.cols();
                    const matrix_view block{memory.data(), rows, cols, by_rows ? cols : 1, by_rows ? 1 : rows};
                    low.add_product(part, block, false, Scalar(1));
                    const std::int32_t written = s.program.at(s.program.steps.back().out).binding;
                    append_reduction<Scalar>(low, s.program, what, x != nullptr ? &matched : nullptr, block, false,
                                             written, &of_x, results + number);
                }
                mark_result_on_device(s.program);
                where.evaluate(s.program, s.bindings);
            });
        }
        return count;
    });
}

template <class Scalar>
detail::real_of<Scalar> squared_norm_of(const device_product<Scalar>& y, std::int64_t workspace_bytes) {
    return detail::real_part_of(reduced<Scalar>(step_variant::squared_norm, nullptr, y, workspace_bytes));
}

template <class Scalar>
detail::real_of<Scalar> squared_norm_of(const device_product<Scalar>& y) {
    return squared_norm_of(y, std::int64_t{0});
}

template <class First, class Second>
constexpr bool require_one_scalar() {
    static_assert(std::is_same_v<typename First::Scalar, typename Second::Scalar>,
                  "otimes: dot(x, y) in device memory: x and y have different scalar types. Give them one.");
    return true;
}

template <class Scalar>
void require_equal_shapes(const device_product<Scalar>& x, std::int64_t rows, std::int64_t cols) {
    x.node().check();
    if (x.rows() != rows || x.cols() != cols) {
        throw shape_error("otimes: dot(x, y) in device memory: x is " + detail::shape_text(x.rows(), x.cols()) +
                          ", y is " + detail::shape_text(rows, cols) + ". They must have equal shapes.");
    }
}

template <class First, class Second>
typename First::Scalar dot_of(const First& x, const Second& y, std::int64_t workspace_bytes) {
    using scalar = typename First::Scalar;
    if constexpr (is_sum<Second>) {
        static_assert(require_one_scalar<First, Second>());
        scalar sum(0);
        for (const device_product<scalar>& term : y.terms()) {
            sum += dot_of(x, term, workspace_bytes);
        }
        return sum;
    } else if constexpr (is_sum<First>) {
        return detail::conjugate_of(dot_of(y, x, workspace_bytes));
    } else {
        static_assert(require_one_scalar<First, Second>());
        const device_product<scalar> first = to_product(x);
        const device_product<scalar> second = to_product(y);
        require_equal_shapes(first, second.rows(), second.cols());
        if (first.is_matrix() && !first.node().x.real_elements()) {
            return reduced<scalar>(step_variant::dot, &first, second, workspace_bytes);
        }
        if (second.is_matrix() && !second.node().x.real_elements()) {
            return detail::conjugate_of(reduced<scalar>(step_variant::dot, &second, first, workspace_bytes));
        }
        throw unsupported_error(
            "otimes: dot(x, y) in device memory: x and y are both products. Evaluate one of them: "
            "DeviceMatrix<Scalar> dZ; dZ = dX * K1; dot(dZ, dX * K2).");
    }
}

template <class First, class Second>
typename First::Scalar dot_of(const First& x, const Second& y) {
    return dot_of(x, y, std::int64_t{0});
}

}  // namespace device

/// sum of conj(x(i, j)) * y(i, j) in device memory, without y or without x: one of them is a matrix (a multiple, a transpose), the other a
/// matrix, a product, or a sum of these, which is reduced term by term. Waits for the device. `workspace_bytes`: what a product that takes
/// several kernels may use where that is more than size(y) / (rows of the first factor); the more, the faster. 0: half of the second-level
/// cache beside the factors' place; 1: the least.
/// @throws shape_error when the shapes differ; unsupported_error when both are products; device_error during a capture
template <class First, class Second>
requires(device::summand<First>&& device::summand<Second>)
    [[nodiscard]] auto dot(const First& x, const Second& y, std::int64_t workspace_bytes = 0) {
    static_assert(!(device::is_sum<First> && device::is_sum<Second>),
                  "otimes: dot(x, y) in device memory: x and y are both sums. Evaluate one of them first.");
    return device::dot_of(x, y, workspace_bytes);
}
template <class First, class Second>
requires((device::summand<First> && device::host_matrix<Second>) ||
         (device::host_matrix<First> && device::summand<Second>)) auto dot(const First&, const Second&) {
    static_assert(device::always_false<First>,
                  "otimes: dot(x, y): one is in host memory, the other in device memory; x and y must share a memory "
                  "space. Copy one of them: otimes::DeviceMatrix<Scalar> dX(X).");
}

/// The sum of |y(i, j)|^2 in device memory, without y. Waits for the device. `workspace_bytes` and @throws as dot
template <class Product>
requires device::factor_or_x<Product>
[[nodiscard]] auto squared_norm(const Product& y, std::int64_t workspace_bytes = 0) {
    return device::squared_norm_of(device::to_product(y), workspace_bytes);
}

/// tr(X^H K X) for X in device memory and a kron, a sum of krons, or a product with sparse matrices, K: without K * X. Waits for the device.
/// @throws as dot
template <class Matrix, class Kron>
requires(device::factor_or_x<Matrix> &&
         (device::is_kron<Kron> || device::is_operator<Kron> || device::is_composite<Kron> || device::host_kron<Kron>))
    [[nodiscard]] auto quadratic_trace(const Matrix& x, const Kron& k) {
    return otimes::dot(x, k * x);
}

/// @name Solving, with the factors' decompositions on the host (otimes/algebra.hpp) and the right-hand side in device memory.
/// `lu.solve(dB)`, `K.solve(dB)`, `(K + s * identity()).solve(dB)`, `kron_sum(A, B).solve(dB)` with factors in host or device memory; factors in
/// device memory are copied to the host first, which waits for them. Otherwise asynchronous: host matrices go to the device through
/// pinned staging, so a stream that is being captured refuses them. The result is a DeviceMatrix with B's order.
/// @{
namespace device {

template <class Matrix>
inline constexpr int order_of = 0;
template <class Scalar, int Order>
inline constexpr int order_of<DeviceMatrix<Scalar, Order>> = Order;
template <class Scalar, int Order>
inline constexpr int order_of<DeviceMap<Scalar, Order>> = Order;

/// Columns of B that are solved for at a time, for a solve through a temporary.
inline std::int64_t columns_at_a_time(std::int64_t rows, std::int64_t bytes) {
    constexpr std::int64_t most_bytes = std::int64_t{256} << 20;
    return (std::max)(std::int64_t{1}, most_bytes / (std::max)(std::int64_t{1}, rows * bytes));
}

/// A right-hand side as a matrix with strides: products and multiples are evaluated.
template <class Scalar, class Rhs>
device_product<Scalar> right_hand_side(const Rhs& b) {
    device_product<Scalar> value = promote<Scalar>(to_product(b));
    value.node().check();
    if (!value.is_matrix() || value.node().alpha != Scalar(1)) {
        return device_product<Scalar>(evaluated(value));
    }
    return value;
}

/// Appends m *= d, element by element; the program has written `m` last.
template <class Scalar>
void append_scaling(lowering<Scalar>& low, program& p, const matrix_view& m, const matrix_view& d) {
    const std::int32_t written = p.at(p.steps.back().out).binding;
    const std::int32_t in = low.describe_plain(m, tensor_role::input);
    p.tensors.back().binding = written;
    const std::int32_t factor = low.describe_plain(d, tensor_role::factor);
    p.tensors.back().kind = factor_kind::diagonal;
    p.tensors.back().space = memory_space::device;
    const std::int32_t out = low.describe_plain(m, tensor_role::output);
    p.tensors.back().binding = written;
    p.steps.push_back(program_writer::make_step(step_kind::scale, in, factor, out, -1));
}

/// A kron of host matrices with its dense factors of type Scalar in device memory, and these.
template <class Scalar>
struct kron_on_device {
    std::vector<DeviceMatrix<Scalar>> matrices;
    kron_node<Scalar> node;

    template <class Kron>
    kron_on_device(const Kron& k, const device_executor& where) {
        kron_node<Scalar> converted;
        converted.append(k.node());
        for (const leaf& f : converted.factors()) {
            if (!f.is_dense() || f.real_elements() || f.space() == memory_space::device) {
                node.append(f);
                continue;
            }
            const matrix_view v = f.view();
            matrices.emplace_back(v.rows, v.cols, where);
            if (v.rows > 0 && v.cols > 0) {
                where.upload(matrices.back().data(), {const_cast<void*>(v.data),
                                                      static_cast<std::int64_t>(sizeof(Scalar)),
                                                      {{v.cols, v.col_stride}, {v.rows, v.row_stride}}});
            }
            leaf copy = leaf::borrowed(matrices.back().view());
            copy.set_space(memory_space::device);
            if (f.conjugated()) {
                copy.conjugate();
            }
            node.append(std::move(copy));
        }
        node.set_alpha(converted.alpha());
    }

    [[nodiscard]] product_node<Scalar> times(leaf operand) const {
        product_node<Scalar> product;
        product.x = std::move(operand);
        product.left = node.factors();
        product.has_left = true;
        product.alpha = node.alpha();
        return product;
    }
};

/// X = right * (diag(d) * (left * B)): the two products through one temporary, in which the first one's last kernel multiplies by d where it
/// can. All three are made when they go to the device: make_left() = left.
template <int Order, class Scalar, class MakeLeft, class MakeVector, class MakeRight, class Kept>
DeviceMatrix<Scalar, Order> solve_by_diagonal(const MakeLeft& make_left, const MakeVector& make_d,
                                              const MakeRight& make_right, const Kept& kept,
                                              const device_product<Scalar>& b) {
    const std::int64_t rows = b.rows();
    const std::int64_t cols = b.cols();
    const device_executor& where = executor_for(b.homes().empty() ? nullptr : b.homes()[0]);
    DeviceMatrix<Scalar, Order> x(rows, cols, where);
    if (rows == 0 || cols == 0) {
        return x;
    }
    struct parts {
        kron_on_device<Scalar> left;
        kron_on_device<Scalar> right;
        DeviceMatrix<Scalar> d;
    };
    const std::shared_ptr<const parts> at_hand = kept.get(where.id(), [&] {
        return parts{{make_left(), where}, {make_right(), where}, DeviceMatrix<Scalar>(make_d(), where)};
    });
    const std::int64_t step = (std::min)(cols, columns_at_a_time(rows, static_cast<std::int64_t>(sizeof(Scalar))));
    DeviceMatrix<Scalar, Order> half(rows, step, where);
    for (std::int64_t begin = 0; begin < cols; begin += step) {
        const std::int64_t width = (std::min)(step, cols - begin);
        matrix_view between = half.view();
        between.cols = width;
        between.row_stride = Order == 1 ? width : 1;
        run_on(where, b.homes(), [&](scratch& s) {
            lowering<Scalar> low(s.program, s.bindings);
            if constexpr (detail::is_complex_scalar<Scalar>) {
                low.compute_complex();  // all parts in one type
            }
            low.add_product(at_hand->left.times(part_of<Scalar>(b.node().x, true, begin, width)), between, false);
            append_scaling(low, s.program, between, {at_hand->d.data(), rows, width, 1, 0});
            leaf again = leaf::borrowed(between);
            again.set_space(memory_space::device);
            low.add_product(at_hand->right.times(std::move(again)),
                            part_of(x.view(), true, begin, width, static_cast<std::int64_t>(sizeof(Scalar))), false);
            mark_result_on_device(s.program);
            where.evaluate(s.program, s.bindings);
        });
    }
    return x;
}

template <class Scalar>
constexpr bool require_solvable() {
    static_assert(std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double> ||
                      std::is_same_v<Scalar, std::complex<float>> || std::is_same_v<Scalar, std::complex<double>>,
                  "otimes: solves in device memory are of float, double and their complex types.");
    return true;
}

/// A factor in device memory as one in host memory; waits for the device.
template <class Scalar>
leaf host_copy(const leaf& f, const homes& where) {
    if (f.is_identity() || f.space() == memory_space::host) {
        return f;
    }
    if (!f.is_dense()) {
        throw unsupported_error(
            "otimes: solve in device memory with a factor or term that has structure there, as d.asDiagonal(). Its "
            "solver "
            "decomposes dense factors on the host: keep that factor in host memory, or apply an iterative solver.");
    }
    product_node<Scalar> node;
    node.x = f;
    using host = dynamic_host_matrix<Scalar>;
    auto kept = std::make_shared<const host>(
        DeviceMatrix<Scalar>(device_product<Scalar>(std::move(node), where)).template to_host<host>());
    const matrix_view view{kept->data(), kept->rows(), kept->cols(), 1, kept->rows()};
    return leaf::owned(std::move(kept), view);
}

template <class Scalar, class Rhs>
auto solve_with_copies(const std::vector<device_kron<Scalar>>& terms, const Rhs& b) {
    static_assert(require_solvable<Scalar>());
    std::vector<kron_node<Scalar>> copies;
    std::vector<std::pair<leaf, leaf>> known;  // a factor that several terms use stays one
    for (const device_kron<Scalar>& term : terms) {
        kron_node<Scalar> copy;
        for (const leaf& f : term.node().factors()) {
            auto at = std::find_if(known.begin(), known.end(), [&f](const auto& k) { return k.first == f; });
            if (at == known.end()) {
                at = known.emplace(at, f, host_copy<Scalar>(f, term.homes()));
            }
            copy.append(at->second);
        }
        copy.set_alpha(term.node().alpha());
        copies.push_back(std::move(copy));
    }
    if constexpr (requires { solve_with_host_factors(copies, b); }) {
        return solve_with_host_factors(copies, b);
    } else {
        static_assert(always_false<Rhs>,
                      "otimes: K.solve(dB) decomposes the factors on the host: include <otimes/algebra.hpp>.");
    }
}

}  // namespace device

/// What `solve` of otimes/algebra.hpp does with a right-hand side in device memory: X = inverse * B, then `steps` times
/// X += inverse * (B - K * X). `kept`, a device_copies, holds what went to the device for the next time.
template <class Kron, class Kept, class Rhs>
auto apply_inverse(const Kron& k, const Kron& inverse, int steps, const Kept& kept, const Rhs& b) {
    using scalar = typename detail::combined_scalar<typename Kron::Scalar, typename Rhs::Scalar>::type;
    static_assert(device::require_solvable<scalar>());
    using result_type = DeviceMatrix<scalar, device::order_of<Rhs>>;
    const device_product<scalar> right = device::right_hand_side<scalar>(b);
    const device_executor& where = device::executor_for(right.homes().empty() ? nullptr : right.homes()[0]);
    struct parts {
        device::kron_on_device<scalar> inverse;
        std::unique_ptr<const device::kron_on_device<scalar>> kron;  ///< with refinement
    };
    const std::shared_ptr<const parts> at_hand = kept.get(where.id(), [&] {
        return parts{{inverse, where},
                     steps > 0 ? std::make_unique<const device::kron_on_device<scalar>>(k, where) : nullptr};
    });
    const auto operator_of = [&where](const device::kron_on_device<scalar>& of) {
        device::homes home;
        device::add_home(home, &where);
        return device_kron<scalar>(of.node, home);
    };
    const device_kron<scalar> solver = operator_of(at_hand->inverse);
    result_type x(solver * right);
    for (int step = 0; step < steps; ++step) {
        result_type residual(right - operator_of(*at_hand->kron) * x);
        x += solver * residual;
    }
    return x;
}

/// X = right * (diag(d) * (left * B)), likewise, with left = make_left(), d = make_d() of X's scalar, right = make_right(): each is asked for when it
/// goes to the device. No memory beside X, d and the factors but at most 256 MiB, or one column.
template <class MakeLeft, class MakeVector, class MakeRight, class Kept, class Rhs>
auto apply_diagonalised(const MakeLeft& make_left, const MakeVector& make_d, const MakeRight& make_right,
                        const Kept& kept, const Rhs& b) {
    using scalar = typename std::remove_cvref_t<decltype(make_d())>::Scalar;
    static_assert(device::require_solvable<scalar>());
    return device::solve_by_diagonal<device::order_of<Rhs>, scalar>(make_left, make_d, make_right, kept,
                                                                    device::right_hand_side<scalar>(b));
}

/// X = solve(B) by a solver of host matrices of type Host: B is copied to the host, X back to where B is. Waits for the device.
template <class Solve, class Host, class Rhs>
auto solve_through_host(const Solve& solve, const Host&, const Rhs& b) {
    using scalar = typename Host::Scalar;
    static_assert(device::require_solvable<scalar>());
    const device_product<scalar> right = device::right_hand_side<scalar>(b);
    const device_executor& where = device::executor_for(right.homes().empty() ? nullptr : right.homes()[0]);
    const Host x = solve(DeviceMatrix<scalar>(right).template to_host<Host>());
    return DeviceMatrix<scalar, device::order_of<Rhs>>(x, where);
}

/// The real parts of a matrix in device memory.
template <class Real, int Order>
DeviceMatrix<Real, Order> real_part(const DeviceMatrix<std::complex<Real>, Order>& z) {
    const matrix_view all = z.view();
    device::operand parts{leaf::borrowed({all.data, all.rows, all.cols, 2 * all.row_stride, 2 * all.col_stride}),
                          z.home()};
    parts.matrix.set_space(memory_space::device);
    return DeviceMatrix<Real, Order>(device_product<Real>(std::move(parts)));
}
/// @}

}  // namespace otimes

#include <otimes/device/column_norms.hpp>
#include <otimes/device/diagonals.hpp>
#include <otimes/device/operator_sums.hpp>
#include <otimes/device/printing.hpp>
#include <otimes/device/row_products.hpp>
#include <otimes/device/sparse.hpp>
#include <otimes/device/stacking.hpp>

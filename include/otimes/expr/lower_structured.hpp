// SPDX-License-Identifier: MIT
/// @file lower_structured.hpp
/// The steps of factors with structure (structured.hpp), and of products of factors. Reached through `structured_hooks`, so that
/// a program without such factors does not compile it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/expr/lower.hpp>
#include <otimes/expr/structured.hpp>

namespace otimes {

namespace detail {

/// The factors that are applied along one mode, in the order of application.
struct mode_parts {
    std::vector<leaf> parts;
    bool from_left = false;
    std::int32_t position = 0;
};

inline mode_parts parts_along(const leaf& factor, bool from_left, std::int32_t position) {
    mode_parts result{product_factors(factor), from_left, position};
    if (from_left) {
        std::reverse(result.parts.begin(), result.parts.end());
    }
    std::erase_if(result.parts, [](const leaf& part) { return part.is_identity(); });
    return result;
}

/// Triangular factors of a smaller order are unfolded and applied as dense
/// ones: half of their flops in a step of their own take longer than all of
/// them in the fused kernels. Measured, see docs/algebra/structured_factors.md.
inline constexpr std::int64_t least_triangle = 32;

/// Is it applied as a triangle, not unfolded?
inline bool keeps_triangle(const leaf& f) {
    return f.kind() == factor_kind::triangular && (std::min)(f.rows(), f.cols()) >= least_triangle;
}

/// Multiply-adds of a factor for one fibre; a multiplication alone counts half, or three quarters between complex numbers.
inline double fibre_cost(const leaf& f, double multiplication = 0.5) {
    const matrix_view view = f.view();
    switch (f.kind()) {
        case factor_kind::identity:
        case factor_kind::permutation: return 0;
        case factor_kind::diagonal: return multiplication * static_cast<double>(view.rows);
        case factor_kind::low_rank: {
            double cost = 0;
            for (const leaf& part : product_factors(f)) {
                cost += fibre_cost(part, multiplication);
            }
            return cost;
        }
        case factor_kind::sparse:
            return static_cast<double>(static_cast<const sparse_operand*>(view.data)->elements().stored());
        case factor_kind::triangular:
            if (keeps_triangle(f)) {
                return static_cast<double>(triangle_size(view.rows, view.cols, f.part()));
            }
            [[fallthrough]];
        default: return static_cast<double>(view.rows) * static_cast<double>(view.cols);
    }
}

/// The order of a chain's steps: for each step its mode.
struct chain_order {
    double cost = 0;  ///< multiply-adds
    std::vector<std::size_t> steps;
};

/// Extent of a mode of which `done` factors have been applied. 1 without factors: it counts among the others.
inline double extent_after(const mode_parts& m, std::size_t done) {
    if (m.parts.empty()) {
        return 1.0;
    }
    const leaf& f = m.parts[done == 0 ? 0 : done - 1];
    return static_cast<double>((done == 0) == m.from_left ? f.cols() : f.rows());
}

/// Fibres along mode m when `done` says how far the modes are. `others`: extents of what has no factor, and of identities.
inline double fibres_along(const std::vector<mode_parts>& modes, double others, const std::vector<std::size_t>& done,
                           std::size_t m) {
    double count = others;
    for (std::size_t k = 0; k < modes.size(); ++k) {
        count *= k == m ? 1.0 : extent_after(modes[k], done[k]);
    }
    return count;
}

/// The first factor of every mode, then the second of every mode, and so on, which is how the operators of a product are
/// applied one after the other. `sorted`: each round in the order of least multiply-adds, which is the best of all orders
/// where no mode has a second factor; else as the modes stand.
///
/// With K fibres and c multiply-adds for one, a before b takes K (ca / Pa + Qa / Pa * cb / Pb), so a goes first exactly when
/// (Pa - Qa) / ca > (Pb - Qb) / cb: planning::contracts_before, where a factor need not cost P Q. Ties keep the order given.
inline chain_order in_rounds(const std::vector<mode_parts>& modes, double others, double multiplication, bool sorted) {
    chain_order result;
    std::vector<std::size_t> done(modes.size(), 0);
    std::vector<double> gain(modes.size(), 0.0);
    for (std::size_t round = 0;; ++round) {
        std::vector<std::size_t> order;
        for (std::size_t m = 0; m < modes.size(); ++m) {
            if (round < modes[m].parts.size()) {
                order.push_back(m);
                const double shrinks = extent_after(modes[m], round) - extent_after(modes[m], round + 1);
                // Something for nothing is infinitely good or bad; a permutation changes nothing and goes in between.
                gain[m] = shrinks == 0.0 ? 0.0 : shrinks / fibre_cost(modes[m].parts[round], multiplication);
            }
        }
        if (order.empty()) {
            return result;
        }
        if (sorted) {
            std::stable_sort(order.begin(), order.end(),
                             [&](std::size_t a, std::size_t b) { return gain[a] > gain[b]; });
        }
        for (const std::size_t m : order) {
            result.cost += fibres_along(modes, others, done, m) * fibre_cost(modes[m].parts[round], multiplication);
            result.steps.push_back(m);
            ++done[m];
        }
    }
}

/// The cheapest interleaving of the modes' factors, each mode's in their order. One factor for each mode are sorted; else a
/// dynamic program over how many of each mode are done. Beyond 4096 such states: in_rounds.
inline chain_order cheapest_interleaving(const std::vector<mode_parts>& modes, double others,
                                         double multiplication = 0.5) {
    std::size_t states = 1;
    std::size_t longest = 0;
    for (const mode_parts& m : modes) {
        states = states > 4096 ? states : states * (m.parts.size() + 1);
        longest = (std::max)(longest, m.parts.size());
    }
    if (states > 4096 || longest <= 1) {
        return in_rounds(modes, others, multiplication, /*sorted=*/true);
    }
    chain_order result;
    std::vector<std::size_t> done(modes.size(), 0);
    std::vector<double> cost(states, (std::numeric_limits<double>::infinity)());
    std::vector<std::size_t> by(states, modes.size());
    cost[0] = 0;
    for (std::size_t state = 0; state < states; ++state) {
        std::size_t rest = state;
        for (std::size_t k = 0; k < modes.size(); ++k) {
            done[k] = rest % (modes[k].parts.size() + 1);
            rest /= modes[k].parts.size() + 1;
        }
        std::size_t weight = 1;
        for (std::size_t m = 0; m < modes.size(); ++m) {
            if (done[m] < modes[m].parts.size()) {
                const double next = cost[state] + fibres_along(modes, others, done, m) *
                                                      fibre_cost(modes[m].parts[done[m]], multiplication);
                if (next < cost[state + weight]) {
                    cost[state + weight] = next;
                    by[state + weight] = m;
                }
            }
            weight *= modes[m].parts.size() + 1;
        }
    }
    result.cost = cost.back();
    for (std::size_t state = states - 1; state > 0;) {
        const std::size_t m = by[state];
        result.steps.push_back(m);
        std::size_t weight = 1;
        for (std::size_t k = 0; k < m; ++k) {
            weight *= modes[k].parts.size() + 1;
        }
        state -= weight;
    }
    std::reverse(result.steps.begin(), result.steps.end());
    return result;
}

/// Multiply-adds of forming f * g as one factor of a kind that can be formed; -1: it cannot.
inline double forming_cost(const leaf& f, const leaf& g) {
    const auto is = [](const leaf& one, factor_kind kind) { return one.kind() == kind; };
    if (is(f, factor_kind::dense) && is(g, factor_kind::dense)) {
        return static_cast<double>(f.rows()) * static_cast<double>(f.cols()) * static_cast<double>(g.cols());
    }
    if (is(f, factor_kind::diagonal) && is(g, factor_kind::diagonal)) {
        return 0.5 * static_cast<double>(f.rows());
    }
    if ((is(f, factor_kind::diagonal) && is(g, factor_kind::dense)) ||
        (is(f, factor_kind::dense) && is(g, factor_kind::diagonal))) {
        return 0.5 * static_cast<double>(f.rows()) * static_cast<double>(g.cols());
    }
    return is(f, factor_kind::permutation) && is(g, factor_kind::permutation) ? 0 : -1;
}

/// What f * g would be, without elements: for weighing alone.
inline leaf shape_of_product(const leaf& f, const leaf& g) {
    const matrix_view view{nullptr, f.rows(), g.cols(), 1, 0};
    return f.is_dense() || g.is_dense() ? leaf::borrowed(view) : leaf::structured(f.kind(), view, nullptr);
}

}  // namespace detail

template <class Scalar>
class structured_lowering {
public:
    explicit structured_lowering(program_writer& low) : low_(low), program_(low.target()) {}

    /// As program_writer::add_factor, for the kinds that it does not know.
    std::int32_t add_factor(std::int32_t current, dtype type, const leaf& factor, bool from_left,
                            std::int32_t position) {
        if (factor.kind() != factor_kind::low_rank) {
            return add_structured(current, type, factor, from_left, position);
        }
        const std::int64_t extent = program_.modes_of(current)[static_cast<std::size_t>(position)].extent;
        const double others =
            extent == 0 ? 0.0 : static_cast<double>(element_count(program_, current)) / static_cast<double>(extent);
        std::vector<detail::mode_parts> one;
        one.push_back(detail::parts_along(factor, from_left, position));
        return write_parts(current, type, one, others);
    }

    /// The steps of all factors of a product, in the order of least flops. The planner orders dense factors; here is what it
    /// cannot move: factors that run in a step of their own, and products of factors. False, and nothing is written, where there
    /// are none, or where no order takes less than the one that is written.
    bool add_all(const product_operands& node, dtype type, std::int32_t& current) {
        bool products = false;
        bool moves = false;
        std::size_t applied = 0;
        for (const factor_list* list : {&node.left, &node.right}) {
            for (const leaf& f : *list) {
                products = products || f.kind() == factor_kind::low_rank;
                moves = moves || has_its_own_step(f);
                applied += f.is_identity() ? 0u : 1u;
            }
        }
        if (!products && (!moves || applied < 2)) {
            return false;
        }
        std::vector<detail::mode_parts> modes;
        double others = detail::is_complex_scalar<Scalar> && !is_complex(type) ? 2 : 1;
        bool identity_runs = false;
        const auto add_side = [&](const factor_list& factors, bool has, bool from_left, std::int64_t extent) {
            if (!has || factors.empty()) {
                others *= static_cast<double>(extent);
                modes.push_back({{}, from_left, static_cast<std::int32_t>(modes.size())});
                return;
            }
            bool after_identity = false;
            for (const leaf& factor : factors) {
                identity_runs = identity_runs || (after_identity && factor.is_identity());
                after_identity = factor.is_identity();
                modes.push_back(detail::parts_along(factor, from_left, static_cast<std::int32_t>(modes.size())));
                others *= modes.back().parts.empty() ? static_cast<double>(factor.rows()) : 1.0;
            }
        };
        const matrix_view x = node.x.view();
        add_side(node.left, node.has_left, true, x.rows);
        add_side(node.right, node.has_right, false, x.cols);
        if (!products) {
            const double multiplication = multiplication_of(type);
            const double written = detail::in_rounds(modes, others, multiplication, /*sorted=*/false).cost;
            const double best = detail::cheapest_interleaving(modes, others, multiplication).cost;
            if (!(best < written * (1 - 1e-12))) {  // sums of large doubles round: that is a tie
                return false;
            }
        }
        if (identity_runs) {
            program_.rewritten.add(rewrite::identity_runs_merged);  // by the planner, as neighbours
        }
        current = write_parts(current, type, modes, others);
        return true;
    }

private:
    /// Factors that the planner leaves where they stand.
    static bool has_its_own_step(const leaf& f) {
        switch (f.kind()) {
            case factor_kind::diagonal:
            case factor_kind::permutation:
            case factor_kind::sparse:
            case factor_kind::callback: return true;
            default: return detail::keeps_triangle(f);
        }
    }
    /// A multiplication in multiply-adds: 1 flop of 2, complex 6 of 8.
    static double multiplication_of(dtype type) { return is_complex(type) ? 0.75 : 0.5; }

    /// Multiplies neighbours out where that lowers the flops of the whole chain, and writes the steps that are left.
    std::int32_t write_parts(std::int32_t current, dtype type, std::vector<detail::mode_parts>& modes, double others) {
        const double multiplication = multiplication_of(type);
        detail::chain_order best = detail::cheapest_interleaving(modes, others, multiplication);
        for (bool merged = true; merged;) {
            merged = false;
            for (detail::mode_parts& m : modes) {
                for (std::size_t k = 0; k + 1 < m.parts.size() && !merged; ++k) {
                    // In the order of application: on the left of X the right-hand factor comes first.
                    const leaf f = m.parts[m.from_left ? k + 1 : k];
                    const leaf g = m.parts[m.from_left ? k : k + 1];
                    const double forming = detail::forming_cost(f, g);
                    if (forming < 0) {
                        continue;
                    }
                    const std::vector<leaf> before = m.parts;
                    m.parts[k] = detail::shape_of_product(f, g);
                    m.parts.erase(m.parts.begin() + static_cast<std::ptrdiff_t>(k) + 1);
                    detail::chain_order tried = detail::cheapest_interleaving(modes, others, multiplication);
                    if (tried.cost + forming < best.cost || (forming == 0 && tried.cost <= best.cost)) {
                        m.parts[k] = formed(f, g, forming);
                        best = std::move(tried);
                        merged = true;
                    } else {
                        m.parts = before;
                    }
                }
            }
        }
        std::vector<std::size_t> next(modes.size(), 0);
        std::size_t last = 0;
        for (const std::size_t m : best.steps) {
            if (m != last && next[m] > 0) {
                program_.rewritten.add(rewrite::factors_interleaved);
            }
            last = m;
            current = low_.add_factor(current, type, modes[m].parts[next[m]++], modes[m].from_left, modes[m].position);
        }
        return current;
    }

    /// f * g as one factor; counts what that takes.
    leaf formed(const leaf& f, const leaf& g, double forming) {
        if (f.kind() == factor_kind::permutation) {
            program_.rewritten.add(rewrite::permutation_product);
        } else if (f.kind() == factor_kind::diagonal || g.kind() == factor_kind::diagonal) {
            program_.rewritten.add(rewrite::diagonal_product);
        } else {
            program_.rewritten.add(rewrite::product_formed);
        }
        program_.rewritten.formed_flops += static_cast<std::int64_t>(2 * forming);
        return formed_product(f, g);
    }

    /// A diagonal, permutation, sparse, callback, triangular or self-adjoint
    /// factor.
    std::int32_t add_structured(std::int32_t current, dtype type, const leaf& factor, bool from_left,
                                std::int32_t position) {
        const matrix_view f = factor.view();
        if (factor.kind() == factor_kind::self_adjoint ||
            (factor.kind() == factor_kind::triangular && !detail::keeps_triangle(factor))) {
            const leaf whole = unfolded(factor, f);
            const matrix_view w = whole.view();
            const std::int32_t matrix = low_.describe_factor(whole, w, from_left);
            if (factor.kind() == factor_kind::self_adjoint) {
                program_.tensors.back().kind = factor_kind::self_adjoint;
                program_.tensors.back().stored = detail::triangle_size(f.rows, f.cols, factor.part());
            }
            return low_.add_step(step_kind::contract, current, matrix, type, position, from_left ? f.rows : f.cols);
        }
        if (factor.kind() == factor_kind::triangular) {
            const std::int32_t matrix = low_.describe_factor(factor, f, from_left);
            program_.tensors.back().stored = detail::triangle_size(f.rows, f.cols, factor.part());
            const std::int32_t out =
                low_.add_step(step_kind::contract, current, matrix, type, position, from_left ? f.rows : f.cols);
            // (p, q) are (row, column) from the right, (column, row) from the left.
            switch (from_left ? flipped(factor.part()) : factor.part()) {
                case triangle::none:
                case triangle::lower: program_.steps.back().variant = step_variant::lower; break;
                case triangle::upper: program_.steps.back().variant = step_variant::upper; break;
                case triangle::unit_lower: program_.steps.back().variant = step_variant::unit_lower; break;
                case triangle::unit_upper: program_.steps.back().variant = step_variant::unit_upper; break;
            }
            return out;
        }
        const bool real = detail::is_complex_scalar<Scalar> && factor.real_elements();
        tensor t = low_.make_tensor(real ? dtype_of<detail::real_of<Scalar>>() : dtype_of<Scalar>(),
                                    tensor_role::factor, real);
        t.kind = factor.kind();
        t.space = factor.space();
        t.conjugate = factor.conjugated() && !real;
        const std::int64_t extent = from_left ? f.rows : f.cols;
        const void* data = f.data;
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
                const auto* const operand = static_cast<const sparse_operand*>(f.data) +
                                            (factor.space() == memory_space::device && !stored_as_pq ? 1 : 0);
                t.stored = operand->elements().stored();
                data = operand;
            }
            matrix = program_.add_tensor(t);
            program_.add_mode(from_left ? f.cols : f.rows, stored_as_pq ? 1 : 0);
            program_.add_mode(extent, stored_as_pq ? 0 : 1);
        }
        low_.bind(data);
        return low_.add_step(kind, current, matrix, type, position, extent);
    }

    /// A triangular or self-adjoint factor as a dense one, kept with the
    /// bindings: one triangle is read.
    leaf unfolded(const leaf& factor, const matrix_view& f) {
        if constexpr (detail::is_complex_scalar<Scalar>) {
            if (factor.real_elements()) {
                leaf result = unfolded_as<detail::real_of<Scalar>>(factor, f);
                result.set_real_elements(true);
                return result;
            }
        }
        return unfolded_as<Scalar>(factor, f);
    }
    template <class Value>
    leaf unfolded_as(const leaf& factor, const matrix_view& f) {
        auto memory = std::make_shared<std::vector<Value>>(static_cast<std::size_t>(f.rows * f.cols), Value(0));
        Value* const out = memory->data();  // by columns
        const triangle part = factor.part();
        const bool unit = part == triangle::unit_lower || part == triangle::unit_upper;
        for (std::int64_t j = 0; j < f.cols; ++j) {
            for (std::int64_t i = 0; i < f.rows; ++i) {
                if (!detail::in_triangle(part, i, j)) {
                    continue;
                }
                Value value =
                    unit && i == j ? Value(1) : static_cast<const Value*>(f.data)[i * f.row_stride + j * f.col_stride];
                value = factor.conjugated() ? detail::conjugate_of(value) : value;
                if (factor.kind() == factor_kind::self_adjoint) {
                    out[i * f.rows + j] = detail::conjugate_of(value);
                    value = i == j ? Value(detail::real_part_of(value)) : value;
                }
                out[j * f.rows + i] = value;
            }
        }
        low_.keep(memory);
        return leaf::owned(memory, {out, f.rows, f.cols, 1, f.rows});
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

    program_writer& low_;
    program& program_;
};

namespace detail {

/// Makes factors with structure known to products over Scalar. Any number of times, from any thread.
template <class Scalar>
void enable_structured_lowering() {
    structured_hooks<Scalar>::writers.lower.store(
        [](program_writer& low, std::int32_t current, dtype type, const leaf& factor, bool from_left,
           std::int32_t position) {
            return structured_lowering<Scalar>(low).add_factor(current, type, factor, from_left, position);
        },
        std::memory_order_relaxed);
    structured_hooks<Scalar>::writers.chain.store(
        [](program_writer& low, const product_operands& node, dtype type, std::int32_t& current) {
            return structured_lowering<Scalar>(low).add_all(node, type, current);
        },
        std::memory_order_relaxed);
    structured_hooks<Scalar>::reads.store(&structured_reads<Scalar>, std::memory_order_relaxed);
}

}  // namespace detail
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file lower_structured.hpp
/// The steps of factors with structure (structured.hpp), and of products of factors. Reached through `structured_hooks`, so that
/// a program without such factors does not compile it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
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
        case factor_kind::callback: {
            const auto& operand = *static_cast<const callback_operand*>(view.data);
            return operand.multiply_adds != nullptr ? static_cast<double>(operand.multiply_adds(operand.object))
                                                    : static_cast<double>(view.rows) * static_cast<double>(view.cols);
        }
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

/// Multiply-adds of one factor for each mode, applied as the modes stand. @pre no mode has more
inline double cost_as_written(const std::vector<mode_parts>& modes, double others, double multiplication) {
    double cost = 0;
    std::vector<std::size_t> done(modes.size(), 0);
    for (std::size_t m = 0; m < modes.size(); ++m) {
        if (!modes[m].parts.empty()) {
            cost += fibres_along(modes, others, done, m) * fibre_cost(modes[m].parts.front(), multiplication);
            ++done[m];
        }
    }
    return cost;
}

/// Neighbouring factors of one mode, between which nothing is applied.
struct mode_run {
    std::size_t mode = 0;
    std::size_t count = 0;
    double shrinks = 0;  ///< extent before less extent after
    double cost = 0;     ///< multiply-adds for one fibre

    /// Something for nothing is infinitely good or bad; a permutation changes nothing and goes in between.
    [[nodiscard]] double gain() const { return shrinks == 0.0 ? 0.0 : shrinks / cost; }
};

/// The order of least multiply-adds of the modes' factors, each mode's in their order. Cost: a sort.
///
/// With K fibres and c multiply-adds for one, a before b takes K (ca / Pa + Qa / Pa * cb / Pb), so a goes first exactly when
/// (Pa - Qa) / ca > (Pb - Qb) / cb: planning::contracts_before, where a factor need not cost P Q. The same holds of neighbouring
/// factors of a mode, whose extents and costs for a fibre add up. Where a factor would rather go before the one that its mode has
/// before it, nothing comes between the two in a best order, and they are moved as one (Monma and Sidney 1979, see
/// docs/references.md). Ties keep the order given.
inline chain_order cheapest_interleaving(const std::vector<mode_parts>& modes, double others,
                                         double multiplication = 0.5) {
    std::vector<mode_run> runs;
    for (std::size_t m = 0; m < modes.size(); ++m) {
        const std::size_t first = runs.size();
        for (std::size_t k = 0; k < modes[m].parts.size(); ++k) {
            mode_run next{m, 1, extent_after(modes[m], k) - extent_after(modes[m], k + 1),
                          fibre_cost(modes[m].parts[k], multiplication)};
            for (; runs.size() > first && runs.back().gain() < next.gain(); runs.pop_back()) {
                const mode_run& before = runs.back();
                next = {m, before.count + next.count, before.shrinks + next.shrinks, before.cost + next.cost};
            }
            runs.push_back(next);
        }
    }
    std::stable_sort(runs.begin(), runs.end(),
                     [](const mode_run& a, const mode_run& b) { return a.gain() > b.gain(); });
    chain_order result;
    std::vector<std::size_t> done(modes.size(), 0);
    for (const mode_run& run : runs) {
        const double fibres = fibres_along(modes, others, done, run.mode);
        result.cost += fibres * run.cost;
        result.steps.insert(result.steps.end(), run.count, run.mode);
        done[run.mode] += run.count;
    }
    return result;
}

/// Multiply-adds of forming f * g as one factor of a kind that can be formed; -1: it cannot.
inline double forming_cost(const leaf& f, const leaf& g, double multiplication) {
    const auto is = [](const leaf& one, factor_kind kind) { return one.kind() == kind; };
    if (is(f, factor_kind::dense) && is(g, factor_kind::dense)) {
        return static_cast<double>(f.rows()) * static_cast<double>(f.cols()) * static_cast<double>(g.cols());
    }
    if (is(f, factor_kind::diagonal) && is(g, factor_kind::diagonal)) {
        return multiplication * static_cast<double>(f.rows());
    }
    if ((is(f, factor_kind::diagonal) && is(g, factor_kind::dense)) ||
        (is(f, factor_kind::dense) && is(g, factor_kind::diagonal))) {
        return multiplication * static_cast<double>(f.rows()) * static_cast<double>(g.cols());
    }
    return is(f, factor_kind::permutation) && is(g, factor_kind::permutation) ? 0 : -1;
}

/// What f * g would be, without elements: for weighing alone.
inline leaf shape_of_product(const leaf& f, const leaf& g) {
    const matrix_view view{nullptr, f.rows(), g.cols(), 1, 0};
    return f.is_dense() || g.is_dense() ? leaf::borrowed(view) : leaf::structured(f.kind(), view, nullptr);
}

/// Runs of neighbouring factors of one mode as one factor each: what forming it takes at least, over all orders in which they can be
/// multiplied (the dynamic program for products of matrices).
class run_products {
public:
    run_products(const mode_parts& m, double multiplication) : count_(m.parts.size()), runs_(count_ * count_) {
        for (std::size_t length = 1; length <= count_; ++length) {
            for (std::size_t first = 0; first + length <= count_; ++first) {
                run& whole = runs_[first * count_ + first + length - 1];
                if (length == 1) {
                    whole = {0, first, m.parts[first]};
                }
                for (std::size_t k = first; k + 1 < first + length; ++k) {
                    const run& before = at(first, k);
                    const run& behind = at(k + 1, first + length - 1);
                    // In the order of application: on the left of X the right-hand factor comes first.
                    const leaf& f = (m.from_left ? behind : before).shape;
                    const leaf& g = (m.from_left ? before : behind).shape;
                    if (!before.formable() || !behind.formable() || forming_cost(f, g, multiplication) < 0) {
                        continue;
                    }
                    const double forming = before.forming + behind.forming + forming_cost(f, g, multiplication);
                    if (!whole.formable() || forming < whole.forming) {
                        whole = {forming, k, shape_of_product(f, g)};
                    }
                }
            }
        }
    }
    struct run {
        double forming = -1;    ///< multiply-adds; -1: it cannot be formed
        std::size_t split = 0;  ///< the last factor of its first part
        leaf shape;             ///< the product without elements; a single factor itself
        [[nodiscard]] bool formable() const noexcept { return forming >= 0; }
    };
    /// The run of factors [first, last], both included.
    [[nodiscard]] const run& at(std::size_t first, std::size_t last) const { return runs_[first * count_ + last]; }

private:
    std::size_t count_;
    std::vector<run> runs_;
};

/// Which neighbouring factors of each mode are multiplied out, and the order of the steps that are left.
class chain_products {
public:
    /// Nothing is multiplied out.
    chain_products(const std::vector<mode_parts>& modes, double others, double multiplication)
        : modes_(modes), others_(others), multiplication_(multiplication) {
        for (const mode_parts& m : modes) {
            runs_.emplace_back(m, multiplication);
            cuts_.emplace_back(m.parts.empty() ? 0 : m.parts.size() - 1, true);
            forming_.push_back(0);
        }
        order_ = cheapest_interleaving(modes_, others_, multiplication_);
    }
    /// Multiplies out what lowers the cost: of one mode after another, while that helps, the best of all ways to cut up to six
    /// neighbouring factors into runs; of more of them six by six.
    void improve() {
        for (bool better = true; better;) {
            better = false;
            for (std::size_t m = 0; m < cuts_.size(); ++m) {
                const std::size_t width = (std::min)(cuts_[m].size(), std::size_t{5});
                for (std::size_t begin = 0; width > 0 && begin + width <= cuts_[m].size(); ++begin) {
                    for (std::size_t mask = 0; mask < std::size_t{1} << width; ++mask) {
                        std::vector<bool> cuts = cuts_[m];
                        for (std::size_t k = 0; k < width; ++k) {
                            cuts[begin + k] = (mask >> k & 1u) != 0;
                        }
                        better = take_if_better(m, cuts) || better;
                    }
                }
            }
        }
    }
    /// Multiply-adds, of multiplying out too.
    [[nodiscard]] double cost() const { return std::accumulate(forming_.begin(), forming_.end(), order_.cost); }
    [[nodiscard]] const chain_order& order() const noexcept { return order_; }
    /// The products that can be formed of a mode's factors.
    [[nodiscard]] const run_products& runs(std::size_t m) const { return runs_[m]; }
    /// Behind which of a mode's factors, the last one aside, a run ends.
    [[nodiscard]] const std::vector<bool>& cuts(std::size_t m) const { return cuts_[m]; }

private:
    bool take_if_better(std::size_t m, const std::vector<bool>& cuts) {
        mode_parts tried{{}, modes_[m].from_left, modes_[m].position};
        double forming = 0;
        std::size_t first = 0;
        for (std::size_t k = 0; k <= cuts.size(); ++k) {
            if (k == cuts.size() || cuts[k]) {
                const run_products::run& run = runs_[m].at(first, k);
                if (!run.formable()) {
                    return false;
                }
                forming += run.forming;
                tried.parts.push_back(run.shape);
                first = k + 1;
            }
        }
        const double before = cost();
        const bool fewer = forming == forming_[m] && tried.parts.size() < modes_[m].parts.size();
        std::swap(modes_[m], tried);
        std::swap(forming_[m], forming);
        chain_order order = cheapest_interleaving(modes_, others_, multiplication_);
        std::swap(order_, order);
        if (cost() < before || (fewer && cost() == before)) {
            cuts_[m] = cuts;
            return true;
        }
        std::swap(modes_[m], tried);
        std::swap(forming_[m], forming);
        std::swap(order_, order);
        return false;
    }

    std::vector<mode_parts> modes_;  // as they are multiplied out, those products without elements
    double others_;
    double multiplication_;
    std::vector<run_products> runs_;
    std::vector<std::vector<bool>> cuts_;
    std::vector<double> forming_;  // of each mode
    chain_order order_;
};

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
        bool square = true;
        std::size_t applied = 0;
        for (const factor_list* list : {&node.left, &node.right}) {
            for (const leaf& f : *list) {
                products = products || f.kind() == factor_kind::low_rank;
                moves = moves || has_its_own_step(f);
                square = square && f.rows() == f.cols();
                applied += f.is_identity() ? 0u : 1u;
            }
        }
        if (!products && (!moves || applied < 2 || square)) {  // square factors cost the same in any order
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
            const double written = detail::cost_as_written(modes, others, multiplication);
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
    std::int32_t write_parts(std::int32_t current, dtype type, const std::vector<detail::mode_parts>& modes,
                             double others) {
        detail::chain_products best(modes, others, multiplication_of(type));
        best.improve();
        std::vector<std::size_t> next(modes.size(), 0);
        std::size_t last = 0;
        for (const std::size_t m : best.order().steps) {
            if (m != last && next[m] > 0) {
                program_.rewritten.add(rewrite::factors_interleaved);
            }
            last = m;
            const std::size_t first = next[m];
            const std::vector<bool>& cuts = best.cuts(m);
            while (next[m] < cuts.size() && !cuts[next[m]]) {
                ++next[m];
            }
            const leaf factor = formed_run(modes[m], best.runs(m), first, next[m]);
            ++next[m];
            current = low_.add_factor(current, type, factor, modes[m].from_left, modes[m].position);
        }
        return current;
    }

    /// Factors [first, last] of a mode as one.
    leaf formed_run(const detail::mode_parts& m, const detail::run_products& runs, std::size_t first,
                    std::size_t last) {
        if (first == last) {
            return m.parts[first];
        }
        const std::size_t split = runs.at(first, last).split;
        const leaf before = formed_run(m, runs, first, split);
        const leaf behind = formed_run(m, runs, split + 1, last);
        return m.from_left ? formed(behind, before) : formed(before, behind);
    }

    /// f * g as one factor; counts what that takes.
    leaf formed(const leaf& f, const leaf& g) {
        if (f.kind() == factor_kind::permutation) {
            program_.rewritten.add(rewrite::permutation_product);
        } else if (f.kind() == factor_kind::diagonal || g.kind() == factor_kind::diagonal) {
            program_.rewritten.add(rewrite::diagonal_product);
        } else {
            program_.rewritten.add(rewrite::product_formed);
        }
        const bool complex = detail::is_complex_scalar<Scalar> && !(f.real_elements() && g.real_elements());
        program_.rewritten.formed_flops +=
            static_cast<std::int64_t>((complex ? 8 : 2) * detail::forming_cost(f, g, complex ? 0.75 : 0.5));
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
                const auto& operand = *static_cast<const callback_operand*>(f.data);
                kind = step_kind::callback;
                t.stored = operand.multiply_adds != nullptr ? operand.multiply_adds(operand.object) : 0;
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

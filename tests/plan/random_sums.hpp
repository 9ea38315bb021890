// SPDX-License-Identifier: MIT
// Random sums of products with structure, as programs: dense and sparse factors, factors that differ from row to row, identities, diagonals,
// permutations, triangular solves, temporaries that two terms share. With operands whose sums and products are exact in double.
#pragma once

#include <otimes/exec/reference.hpp>
#include <otimes/exec/structured_steps.hpp>
#include <otimes/program/program.hpp>
#include <otimes/program/structured.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "support/random.hpp"

namespace planner_test {

// What the terms of a random sum may hold.
struct sum_wishes {
    bool on_device =
        false;  // operands in device memory (some dense factors and diagonals in host memory), and no steps that a GPU lacks
    bool may_reduce = false;  // some end in a dot product or a norm
    std::int64_t most_rows = 40;
    std::int64_t most_extent = 7;
    otimes::dtype type = otimes::dtype::f64;
};

// Y (+)= sum of terms of X, a matrix of `rows` rows whose columns are modes. Binding 0 is X, 1 is Y.
class random_sum {
public:
    otimes::program program;
    std::int64_t rows = 1;
    bool by_columns = false;

    random_sum(support::random_stream& random, const sum_wishes& wishes) : random_(random), wishes_(wishes) {
        rows = pick(0, 5) == 0 ? pick(1, 3) : pick(2, wishes.most_rows);
        by_columns = pick(0, 2) == 0;
        const std::int64_t count = pick(1, 4);
        const bool square = pick(0, 2) != 0;
        for (std::int64_t k = 0; k < count; ++k) {
            p_.push_back(pick(1, wishes.most_extent));
            q_.push_back(square || pick(0, 2) == 0 ? p_.back() : pick(1, wishes.most_extent));
        }
        const std::int64_t terms = pick(1, 4);
        const bool reduced = wishes.may_reduce && pick(0, 5) == 0;
        bool add = pick(0, 3) == 0;
        for (std::int64_t t = 0; t < terms; ++t) {
            add_term(add, reduced && terms == 1);
            add = true;
        }
        if (reduced && terms == 1) {
            reduce();
        }
        program.scalar_count = 1;
    }

private:
    using id = std::int32_t;
    struct state {
        id tensor = -1;
        std::vector<std::int64_t> extents;  // rows, then the modes of the columns
        std::vector<std::size_t> first;     // of which mode of p_ each of them begins with; one behind the last
        std::vector<bool> done;             // per mode: its extent is that of Y
    };

    std::int64_t pick(std::int64_t low, std::int64_t high) { return random_.integer(low, high); }

    otimes::tensor tensor_of(otimes::tensor_role role, std::int32_t binding) const {
        otimes::tensor t;
        t.type = wishes_.type;
        t.role = role;
        t.binding = binding;
        t.scalar_bytes = static_cast<std::uint16_t>(otimes::element_bytes(wishes_.type));
        t.space = wishes_.on_device ? otimes::memory_space::device : otimes::memory_space::host;
        return t;
    }
    // A matrix with these extents; without strides: a temporary.
    id add_matrix(otimes::tensor_role role, std::int32_t binding, const std::vector<std::int64_t>& extents) {
        const id number = program.add_tensor(tensor_of(role, binding));
        std::vector<std::int64_t> strides(extents.size(), 0);
        std::int64_t next = by_columns ? extents[0] : 1;
        for (std::size_t k = extents.size(); binding >= 0 && k-- > 1;) {
            strides[k] = next;
            next *= extents[k];
        }
        strides[0] = binding < 0 ? 0 : by_columns ? 1 : next;
        for (std::size_t k = 0; k < extents.size(); ++k) {
            program.add_mode(extents[k], strides[k]);
        }
        return number;
    }
    id add_factor(std::int64_t P, std::int64_t Q) {
        otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
        t.space = pick(0, 3) == 0 ? otimes::memory_space::host : t.space;
        const id number = program.add_tensor(t);
        const bool transposed = pick(0, 1) == 0;
        program.add_mode(P, transposed ? 1 : Q);
        program.add_mode(Q, transposed ? P : 1);
        return number;
    }

    // One step on mode `k` of `now` that leaves Q indices of it, not yet with an output.
    otimes::step make_step(const state& now, std::size_t k, std::int64_t Q) {
        const std::int64_t P = now.extents[k];
        otimes::step s;
        s.in = now.tensor;
        s.mode = static_cast<std::int32_t>(k);
        switch (P == Q ? pick(0, wishes_.on_device ? 5 : 8) : pick(0, 2)) {
            case 0: s.factor = add_factor(P, Q); break;
            case 1: {  // sparse: by columns, the rows are contracted
                otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
                t.kind = otimes::factor_kind::sparse;
                t.stored = pick(0, P * Q);
                s.factor = program.add_tensor(t);
                program.add_mode(P, 1);
                program.add_mode(Q, 0);
                break;
            }
            case 2: {  // one for each row, or for some other indices
                const otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
                std::vector<otimes::mode> items;
                std::int64_t next = P * Q;
                for (std::size_t m = 0; m < now.extents.size(); ++m) {
                    if (m == k) {
                        continue;
                    }
                    const bool differs = pick(0, 1) == 0;
                    items.push_back({now.extents[m], differs ? next : 0});
                    next *= differs ? now.extents[m] : 1;
                }
                s.factor = program.add_tensor(t);
                for (const otimes::mode& m : items) {
                    program.add_mode(m.extent, m.stride);
                }
                program.add_mode(P, Q);
                program.add_mode(Q, 1);
                break;
            }
            case 3: {
                otimes::tensor t = tensor_of(otimes::tensor_role::factor, -1);
                t.kind = otimes::factor_kind::identity;
                s.factor = program.add_tensor(t);
                program.add_mode(P, 0);
                program.add_mode(P, 0);
                break;
            }
            case 4:
            case 5: {  // by a diagonal, over some of the modes
                otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
                t.kind = otimes::factor_kind::diagonal;
                t.space = pick(0, 3) == 0 ? otimes::memory_space::host : t.space;
                std::vector<otimes::mode> over(now.extents.size());
                std::int64_t next = 1;
                for (std::size_t m = over.size(); m-- > 0;) {
                    const bool differs = m == k || pick(0, 2) == 0;
                    over[m] = {now.extents[m], differs ? next : 0};
                    next *= differs ? now.extents[m] : 1;
                }
                s.kind = otimes::step_kind::scale;
                s.mode = -1;
                s.factor = program.add_tensor(t);
                for (const otimes::mode& m : over) {
                    program.add_mode(m.extent, m.stride);
                }
                break;
            }
            case 6:
            case 7: {
                otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
                t.type = otimes::dtype::other;
                t.kind = otimes::factor_kind::permutation;
                t.scalar_bytes = pick(0, 1) == 0 ? 4 : 8;
                s.kind = pick(0, 1) == 0 ? otimes::step_kind::gather : otimes::step_kind::scatter;
                s.factor = program.add_tensor(t);
                program.add_mode(P, 1);
                break;
            }
            default: {
                otimes::tensor t = tensor_of(otimes::tensor_role::factor, next_binding_++);
                t.kind = otimes::factor_kind::triangular;
                t.stored = P * (P + 1) / 2;
                s.kind = otimes::step_kind::solve;
                s.variant = pick(0, 1) == 0 ? otimes::step_variant::lower : otimes::step_variant::upper;
                s.factor = program.add_tensor(t);
                program.add_mode(P, P);
                program.add_mode(P, 1);
                break;
            }
        }
        return s;
    }

    void add_term(bool add, bool to_temporary) {
        state now;
        if (!kept_.empty() && pick(0, 2) == 0) {
            now = kept_[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(kept_.size()) - 1))];
        } else {
            now.extents = {rows};
            now.first = {0};
            for (std::size_t k = 0; k < p_.size();) {  // neighbours may be one mode of this term
                const std::size_t count = k + 1 < p_.size() && pick(0, 3) == 0 ? 2 : 1;
                now.first.push_back(k);
                now.extents.push_back(p_[k] * (count == 2 ? p_[k + 1] : 1));
                k += count;
            }
            now.first.push_back(p_.size());
            now.done.assign(now.extents.size(), false);
            now.done[0] = true;
            now.tensor = add_matrix(otimes::tensor_role::input, 0, now.extents);
        }
        const auto new_extent = [&](std::size_t k) {
            std::int64_t q = 1;
            for (std::size_t m = now.first[k]; m < now.first[k + 1]; ++m) {
                q *= q_[m];
            }
            return q;
        };
        std::vector<std::pair<std::size_t, bool>> order;  // mode, and whether its extent becomes that of Y
        for (std::size_t k = 1; k < now.extents.size(); ++k) {
            if (!now.done[k] && (now.extents[k] != new_extent(k) || pick(0, 2) != 0)) {
                order.emplace_back(k, true);
            }
        }
        for (std::int64_t more = pick(0, 1); more > 0; --more) {
            order.emplace_back(static_cast<std::size_t>(pick(1, static_cast<std::int64_t>(now.extents.size()) - 1)),
                               false);
        }
        for (std::size_t i = order.size(); i-- > 1;) {
            std::swap(order[i], order[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(i)))]);
        }
        if (order.empty()) {
            otimes::step s;
            s.kind = otimes::step_kind::accumulate;
            s.in = now.tensor;
            finish(s, now, add, to_temporary);
            return;
        }
        for (std::size_t i = 0; i < order.size(); ++i) {
            const auto [k, becomes] = order[i];
            const std::int64_t q = becomes ? new_extent(k) : now.extents[k];
            otimes::step s = make_step(now, k, q);
            now.extents[k] = q;
            now.done[k] = now.done[k] || becomes;
            if (i + 1 == order.size()) {
                for (std::size_t m = 1; m < now.extents.size(); ++m) {
                    now.extents[m] = new_extent(m);
                }
                finish(s, now, add, to_temporary);
                return;
            }
            s.out = now.tensor = add_matrix(otimes::tensor_role::temporary, -1, now.extents);
            program.steps.push_back(s);
            if (pick(0, 2) == 0) {
                kept_.push_back(now);
            }
        }
    }
    void finish(otimes::step s, const state& now, bool add, bool to_temporary) {
        s.out = to_temporary ? add_matrix(otimes::tensor_role::temporary, -1, now.extents)
                             : add_matrix(otimes::tensor_role::output, 1, now.extents);
        s.add = add && !to_temporary;
        s.scalar = pick(0, 2) == 0 ? 0 : -1;
        program.steps.push_back(s);
        last_ = now;
    }
    void reduce() {
        const id product = program.steps.back().out;
        otimes::step s;
        s.kind = otimes::step_kind::reduce;
        constexpr std::array<otimes::step_variant, 3> variants{
            otimes::step_variant::dot, otimes::step_variant::squared_norm, otimes::step_variant::squared_distance};
        s.variant = variants[static_cast<std::size_t>(pick(0, 2))];
        if (s.variant != otimes::step_variant::squared_norm) {
            s.in = add_matrix(otimes::tensor_role::input, next_binding_++, last_.extents);
            s.factor = product;
        } else {
            s.in = product;
        }
        s.out = program.add_tensor(tensor_of(otimes::tensor_role::output, 1));
        program.steps.push_back(s);
    }

    support::random_stream& random_;
    const sum_wishes& wishes_;
    std::vector<std::int64_t> p_;
    std::vector<std::int64_t> q_;
    std::vector<state> kept_;
    state last_;
    std::int32_t next_binding_ = 2;
};

// Operands of a program of doubles, on the host whatever the program says: small signed powers of two, permutations, triangles with a
// diagonal of ones, sparse factors by columns.
class exact_operands {
public:
    otimes::bindings bound;
    std::vector<double> before;  // what Y holds

    exact_operands(const otimes::program& p, std::uint64_t seed) {
        otimes::enable_structured_steps<double>();
        support::random_stream random(seed);
        std::int32_t count = 0;
        for (const otimes::tensor& t : p.tensors) {
            count = std::max(count, t.binding + 1);
        }
        bound.pointers.assign(static_cast<std::size_t>(count), nullptr);
        data_.resize(static_cast<std::size_t>(count));
        for (const otimes::tensor& t : p.tensors) {
            if (t.binding < 0 || bound.pointers[static_cast<std::size_t>(t.binding)] != nullptr) {
                continue;
            }
            void*& at = bound.pointers[static_cast<std::size_t>(t.binding)];
            const auto modes = p.modes_of(t);
            if (t.kind == otimes::factor_kind::sparse) {
                at = &add_sparse(modes[0].extent, modes[1].extent, t.stored, random).operand;
                continue;
            }
            if (t.kind == otimes::factor_kind::permutation) {
                at = add_permutation(modes[0].extent, t.scalar_bytes, random);
                continue;
            }
            std::int64_t last = 0;
            for (const otimes::mode& m : modes) {
                last += std::max<std::int64_t>(0, m.extent - 1) * m.stride;
            }
            std::vector<double>& values = data_[static_cast<std::size_t>(t.binding)];
            values.resize(static_cast<std::size_t>(last + 1));
            for (double& v : values) {
                v = random.signed_power_of_two();
            }
            for (std::int64_t i = 0; t.kind == otimes::factor_kind::triangular && i < modes[0].extent; ++i) {
                for (std::int64_t j = 0; j < modes[0].extent; ++j) {  // its inverse has small whole entries
                    values[static_cast<std::size_t>(i * (modes[0].stride + modes[1].stride))] = 1;
                    if (i != j) {
                        values[static_cast<std::size_t>(i * modes[0].stride + j * modes[1].stride)] =
                            static_cast<double>(random.integer(-1, 1));
                    }
                }
            }
            at = values.data();
        }
        bound.scalars.push_back({0.5, 0.0});
        before = data_[1];
    }

    std::vector<double>& result() { return data_[1]; }
    // Y as it was, or poisoned, where the program does not read it.
    void restore(const otimes::program& p) {
        data_[1] = before;
        for (const otimes::step& s : p.steps) {
            if (p.at(s.out).role == otimes::tensor_role::output) {
                if (!s.add) {
                    std::fill(data_[1].begin(), data_[1].end(), std::numeric_limits<double>::quiet_NaN());
                }
                return;
            }
        }
    }

private:
    struct sparse {
        std::vector<std::int32_t> starts;
        std::vector<std::int32_t> inner;
        std::vector<double> values;
        otimes::sparse_elements elements;
        otimes::sparse_operand operand;
    };
    sparse& add_sparse(std::int64_t P, std::int64_t Q, std::int64_t stored, support::random_stream& random) {
        sparse_.push_back(std::make_unique<sparse>());
        sparse& s = *sparse_.back();
        std::vector<bool> taken(static_cast<std::size_t>(P * Q), false);
        for (std::int64_t k = 0; k < stored; ++k) {
            std::size_t at = static_cast<std::size_t>(random.integer(0, P * Q - 1));
            while (taken[at]) {
                at = (at + 1) % taken.size();
            }
            taken[at] = true;
        }
        for (std::int64_t q = 0; q < Q; ++q) {
            s.starts.push_back(static_cast<std::int32_t>(s.inner.size()));
            for (std::int64_t p = 0; p < P; ++p) {
                if (taken[static_cast<std::size_t>(q * P + p)]) {
                    s.inner.push_back(static_cast<std::int32_t>(p));
                    s.values.push_back(random.signed_power_of_two());
                }
            }
        }
        s.starts.push_back(static_cast<std::int32_t>(s.inner.size()));
        s.elements.rows = P;
        s.elements.cols = Q;
        s.elements.starts = s.starts.data();
        s.elements.inner = s.inner.data();
        s.elements.values = s.values.data();
        s.operand.object = &s.elements;
        s.operand.look = [](const void* object) { return *static_cast<const otimes::sparse_elements*>(object); };
        return s;
    }
    void* add_permutation(std::int64_t n, std::uint16_t bytes, support::random_stream& random) {
        std::vector<std::int64_t> order(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < order.size(); ++i) {
            order[i] = static_cast<std::int64_t>(i);
            std::swap(order[i], order[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i)))]);
        }
        if (bytes == 8) {
            longs_.push_back(std::make_unique<std::vector<std::int64_t>>(order));
            return longs_.back()->data();
        }
        ints_.push_back(std::make_unique<std::vector<std::int32_t>>(order.begin(), order.end()));
        return ints_.back()->data();
    }

    std::vector<std::vector<double>> data_;
    std::vector<std::unique_ptr<sparse>> sparse_;
    std::vector<std::unique_ptr<std::vector<std::int32_t>>> ints_;
    std::vector<std::unique_ptr<std::vector<std::int64_t>>> longs_;
};

}  // namespace planner_test

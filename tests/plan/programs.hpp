// SPDX-License-Identifier: MIT
// Programs and machines for the planner's tests, written by hand: no expression, no Eigen.
#pragma once

#include <otimes/plan/machine.hpp>
#include <otimes/program/program.hpp>

#include <cstdint>
#include <vector>

namespace planner_test {

using otimes::dtype;
using otimes::program;

// One mode of X: extent before, extent after, and whether a factor replaces it (else the extents are equal).
struct mode_spec {
    std::int64_t before = 1;
    std::int64_t after = 1;
    bool contracted = false;
};

inline mode_spec free_mode(std::int64_t extent) { return {extent, extent, false}; }
inline mode_spec factor(std::int64_t P, std::int64_t Q) { return {P, Q, true}; }

// Everything about a chain program that a test varies. Orders list mode numbers, outermost in memory first; an empty
// order is 0, 1, 2, ... `gap` elements are left unused after the outermost-but-one dimension (an outer stride).
struct chain_spec {
    std::vector<mode_spec> modes;
    std::vector<std::size_t> order_in;
    std::vector<std::size_t> order_out;
    std::int64_t gap = 0;
    std::vector<std::size_t> step_order;  // contracted modes in the order of the steps; empty: last mode first
    dtype type = dtype::f64;
    bool add = false;
    bool scalar = false;
    std::uint32_t real_factors = 0;  // bit i: the factor of step i has real elements beside complex ones
};

inline std::int32_t add_operand(program& p, const chain_spec& spec, const std::vector<std::int64_t>& extents,
                                const std::vector<std::size_t>& order, otimes::tensor_role role, std::int32_t binding) {
    otimes::tensor t;
    t.type = spec.type;
    t.role = role;
    t.binding = binding;
    t.scalar_bytes = static_cast<std::uint16_t>(otimes::element_bytes(spec.type));
    std::vector<std::int64_t> strides(extents.size(), 0);
    if (role != otimes::tensor_role::temporary) {
        std::int64_t next = 1;
        for (std::size_t i = extents.size(); i-- > 0;) {
            const std::size_t k = order.empty() ? i : order[i];
            strides[k] = next;
            next *= extents[k];
            if (i == 1) {
                next += spec.gap;
            }
        }
    }
    const std::int32_t id = p.add_tensor(t);
    for (std::size_t k = 0; k < extents.size(); ++k) {
        p.add_mode(extents[k], strides[k]);
    }
    return id;
}

// X is tensor 0 with binding 0; factors (row-major P x Q) and Y take the bindings after it in the order of the steps.
inline program chain_program(const chain_spec& spec) {
    program p;
    std::vector<std::int64_t> extents;
    std::vector<std::size_t> steps = spec.step_order;
    for (std::size_t k = 0; k < spec.modes.size(); ++k) {
        extents.push_back(spec.modes[k].before);
        if (spec.step_order.empty() && spec.modes[k].contracted) {
            steps.insert(steps.begin(), k);
        }
    }
    std::int32_t binding = 0;
    std::int32_t current = add_operand(p, spec, extents, spec.order_in, otimes::tensor_role::input, binding++);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const mode_spec& m = spec.modes[steps[i]];
        otimes::tensor f;
        f.type = (spec.real_factors >> i & 1u) != 0 ? otimes::real_type_of(spec.type) : spec.type;
        f.role = otimes::tensor_role::factor;
        f.binding = binding++;
        f.scalar_bytes = static_cast<std::uint16_t>(otimes::element_bytes(f.type));
        const std::int32_t factor_id = p.add_tensor(f);
        p.add_mode(m.before, m.after);
        p.add_mode(m.after, 1);
        extents[steps[i]] = m.after;
        const bool last = i + 1 == steps.size();
        otimes::step s;
        s.in = current;
        s.factor = factor_id;
        s.mode = static_cast<std::int32_t>(steps[i]);
        s.out = add_operand(p, spec, extents, last ? spec.order_out : std::vector<std::size_t>{},
                            last ? otimes::tensor_role::output : otimes::tensor_role::temporary, last ? binding++ : -1);
        s.add = last && spec.add;
        s.scalar = last && spec.scalar ? 0 : -1;
        p.steps.push_back(s);
        current = s.out;
    }
    if (steps.empty()) {
        otimes::step s;
        s.kind = otimes::step_kind::accumulate;
        s.in = current;
        s.out = add_operand(p, spec, extents, spec.order_out, otimes::tensor_role::output, binding++);
        s.add = spec.add;
        s.scalar = spec.scalar ? 0 : -1;
        p.steps.push_back(s);
    }
    p.scalar_count = spec.scalar ? 1 : 0;
    return p;
}

// X (M rows) * kron(factors), X and Y row-major or column-major.
inline program rows_program(std::int64_t M, const std::vector<mode_spec>& factors, dtype type = dtype::f32,
                            bool column_major = false) {
    chain_spec spec;
    spec.type = type;
    spec.modes.push_back(free_mode(M));
    spec.modes.insert(spec.modes.end(), factors.begin(), factors.end());
    if (column_major) {
        for (std::size_t k = 1; k <= factors.size(); ++k) {
            spec.order_in.push_back(k);
        }
        spec.order_in.push_back(0);
        spec.order_out = spec.order_in;
    }
    return chain_program(spec);
}

inline program rows_power(std::int64_t M, std::int64_t P, std::size_t count, dtype type = dtype::f32,
                          bool column_major = false) {
    return rows_program(M, std::vector<mode_spec>(count, factor(P, P)), type, column_major);
}

// The sum of chains over the same X (binding 0) and the same Y (binding 1). `shares`: of two terms, the second one goes on with the
// first step's result of the first one. `diagonal`: X * diag(d) is added, a step of no chain.
inline program sum_of_chains(std::int64_t M, const std::vector<std::vector<mode_spec>>& terms,
                             bool column_major = false, bool shares = false, bool diagonal = false) {
    program sum;
    std::int32_t binding = 2;
    const auto append = [&](program term, bool add) {
        const auto tensors = static_cast<std::int32_t>(sum.tensors.size());
        for (otimes::tensor& t : term.tensors) {
            t.first_mode += static_cast<std::int32_t>(sum.modes.size());
            t.binding = t.role == otimes::tensor_role::input    ? 0
                        : t.role == otimes::tensor_role::output ? 1
                        : t.binding < 0                         ? -1
                                                                : binding++;
            sum.tensors.push_back(t);
        }
        sum.modes.insert(sum.modes.end(), term.modes.begin(), term.modes.end());
        for (otimes::step& s : term.steps) {
            s.in += tensors;
            s.factor += s.factor < 0 ? 0 : tensors;
            s.out += tensors;
        }
        term.steps.back().add = add;
        sum.steps.insert(sum.steps.end(), term.steps.begin(), term.steps.end());
    };
    std::vector<std::size_t> first_of;
    for (const std::vector<mode_spec>& factors : terms) {
        first_of.push_back(sum.steps.size());
        append(rows_program(M, factors, dtype::f64, column_major), first_of.size() > 1);
    }
    if (shares) {
        sum.steps[first_of[1] + 1].in = sum.steps.front().out;
        sum.steps.erase(sum.steps.begin() + static_cast<std::ptrdiff_t>(first_of[1]));
    }
    if (diagonal) {
        std::int64_t n = 1;
        for (const mode_spec& m : terms.front()) {
            n *= m.before;
        }
        program last = rows_program(M, {free_mode(n)}, dtype::f64, column_major);
        otimes::tensor d = last.tensors.front();
        d.role = otimes::tensor_role::factor;
        last.steps.front().kind = otimes::step_kind::scale;
        last.steps.front().factor = last.add_tensor(d);
        last.add_mode(M, 0);
        last.add_mode(n, 1);
        append(last, true);
    }
    return sum;
}

// Two cores with AVX-512, 48 KB of L1 and 2 MB of L2: the machine of performance measurements.
inline otimes::machine two_wide_cores() {
    otimes::machine m;
    m.cpu.name = "two-wide-cores";
    m.cpu.threads = 2;
    m.cpu.simd_bytes = 64;
    m.cpu.simd_registers = 32;
    m.cpu.l1_bytes = 48 * 1024;
    m.cpu.l2_bytes = 2 << 20;
    m.cpu.l3_bytes = 32ll << 20;
    m.cpu.flops_f32 = 175e9;
    m.cpu.flops_f64 = 87.5e9;
    m.cpu.l1_bytes_per_second = 400e9;
    m.cpu.l2_bytes_per_second = 130e9;
    m.cpu.l3_bytes_per_second = 40e9;
    m.cpu.memory_bytes_per_second = 42e9;
    return m;
}

// One core with small caches, so that small cases already need slabs, lanes and several passes.
inline otimes::machine tiny_caches(std::int32_t threads = 1) {
    otimes::machine m;
    m.cpu.name = "tiny-caches";
    m.cpu.threads = threads;
    m.cpu.simd_bytes = 32;
    m.cpu.l1_bytes = 512;
    m.cpu.l2_bytes = 2048;
    m.cpu.l3_bytes = 8192;
    m.cpu.dispatch_seconds = 1e-10;
    m.cpu.fork_seconds = 1e-8;
    return m;
}

// The same product in device memory, of which only a reduction is wanted: with a matrix like it, or (squared_norm) of it alone.
inline program reduced_on_device(program p, otimes::step_variant what) {
    const std::int32_t product = p.steps.back().out;
    const auto add = [&](otimes::tensor_role role, bool scalar) {
        otimes::tensor t = p.at(product);
        const std::int32_t from = t.first_mode;
        t.role = role;
        t.binding = static_cast<std::int32_t>(p.tensors.size());
        const std::int32_t id = p.add_tensor(t);
        for (std::int32_t k = 0; k < t.mode_count; ++k) {
            const otimes::mode m = p.modes[static_cast<std::size_t>(from + k)];
            p.add_mode(scalar ? 1 : m.extent, m.stride);
        }
        return id;
    };
    otimes::step reduce;
    reduce.kind = otimes::step_kind::reduce;
    reduce.variant = what;
    if (what == otimes::step_variant::squared_norm) {
        reduce.in = product;
    } else {
        reduce.in = add(otimes::tensor_role::input, false);
        reduce.factor = product;
    }
    reduce.out = add(otimes::tensor_role::output, true);
    for (otimes::tensor& t : p.tensors) {
        t.space = otimes::memory_space::device;
    }
    p.tensors[static_cast<std::size_t>(product)].role = otimes::tensor_role::temporary;
    p.tensors[static_cast<std::size_t>(product)].binding = -1;
    p.steps.push_back(reduce);
    return p;
}

}  // namespace planner_test

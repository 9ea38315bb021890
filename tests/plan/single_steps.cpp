// SPDX-License-Identifier: MIT
// Steps that are planned by themselves: how what lies between them is stored, and how long they are said to take.
#include "plan/programs.hpp"

#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using otimes::dtype;
using otimes::factor_kind;
using otimes::mode;
using otimes::step;
using otimes::step_kind;
using otimes::tensor_role;

struct step_program {
    otimes::program p;
    std::int32_t bound = 0;

    std::int32_t operand(tensor_role role, const std::vector<mode>& modes, dtype type = dtype::f64,
                         factor_kind kind = factor_kind::dense, std::int64_t stored = 0) {
        otimes::tensor t;
        t.type = type;
        t.scalar_bytes = type == dtype::f32 ? 4 : 8;
        t.role = role;
        t.kind = kind;
        t.stored = stored;
        t.binding = role == tensor_role::temporary ? -1 : bound++;
        const std::int32_t id = p.add_tensor(t);
        for (const mode& m : modes) {
            p.add_mode(m.extent, m.stride);
        }
        return id;
    }
};

// 1 GFLOP/s in float and half of it in double, 1 MiB of L3, memory at 1 GB/s.
otimes::machine round_machine(std::int32_t threads) {
    otimes::machine m;
    m.cpu.threads = threads;
    m.cpu.simd_bytes = 16;
    m.cpu.l1_bytes = 1024;
    m.cpu.l2_bytes = 65536;
    m.cpu.l3_bytes = 1 << 20;
    m.cpu.flops_f32 = 1e9;
    m.cpu.flops_f64 = 0.5e9;
    m.cpu.l2_bytes_per_second = 4e9;
    m.cpu.l3_bytes_per_second = 2e9;
    m.cpu.memory_bytes_per_second = 1e9;
    m.cpu.dispatch_seconds = 1e-6;
    return m;
}

// The one pass of `kind` on mode 1 of a rows x n matrix.
otimes::pass pass_of(step_kind kind, factor_kind factor, dtype type, std::int64_t rows, std::int64_t n,
                     std::int64_t stored, std::int32_t threads) {
    step_program made;
    step s;
    s.kind = kind;
    s.mode = 1;
    s.in = made.operand(tensor_role::input, {{rows, n}, {n, 1}}, type);
    s.factor = kind == step_kind::gather ? made.operand(tensor_role::factor, {{n, 1}}, dtype::other, factor, 0)
                                         : made.operand(tensor_role::factor, {{n, 1}, {n, 0}}, type, factor, stored);
    s.out = made.operand(tensor_role::output, {{rows, n}, {n, 1}}, type);
    if (factor == factor_kind::triangular) {
        s.variant = otimes::step_variant::lower;
    }
    made.p.steps.push_back(s);
    const otimes::plan planned =
        otimes::make_plan(made.p, round_machine(threads), {.placement = otimes::placement::cpu, .threads = threads});
    REQUIRE(planned.passes.size() == 1);
    // One pass over the operands: what bounds it bounds the plan, from the caches as well.
    CHECK(planned.bound_seconds == doctest::Approx(planned.passes.front().bound_seconds));
    return planned.passes.front();
}

}  // namespace

TEST_CASE("temporaries nest as the operands from which they are computed") {
    for (const bool by_columns : {false, true}) {
        // T = X scaled along mode 1, U = T gathered along mode 2, Y = U * F on mode 1
        step_program made;
        const auto nested = [by_columns](std::int64_t a, std::int64_t b, std::int64_t c) {
            return by_columns ? std::vector<mode>{{a, 1}, {b, a * c}, {c, a}}
                              : std::vector<mode>{{a, b * c}, {b, c}, {c, 1}};
        };
        const std::int32_t x = made.operand(tensor_role::input, nested(7, 4, 3));
        const std::int32_t d =
            made.operand(tensor_role::factor, {{7, 0}, {4, 1}, {3, 0}}, dtype::f64, factor_kind::diagonal);
        const std::int32_t t = made.operand(tensor_role::temporary, {{7, 0}, {4, 0}, {3, 0}});
        const std::int32_t index = made.operand(tensor_role::factor, {{5, 1}}, dtype::other, factor_kind::permutation);
        const std::int32_t u = made.operand(tensor_role::temporary, {{7, 0}, {4, 0}, {5, 0}});
        const std::int32_t f = made.operand(tensor_role::factor, {{4, 2}, {2, 1}});
        const std::int32_t y = made.operand(tensor_role::output, nested(7, 2, 5));
        made.p.steps = {step{.kind = step_kind::scale, .in = x, .factor = d, .out = t},
                        step{.kind = step_kind::gather, .in = t, .factor = index, .out = u, .mode = 2},
                        step{.in = u, .factor = f, .out = y, .mode = 1}};
        const otimes::plan planned = otimes::make_plan(made.p, planner_test::two_wide_cores());
        REQUIRE(planned.tensor_modes.size() == made.p.modes.size());
        for (const auto& [id, want] : {std::pair{t, nested(7, 4, 3)}, std::pair{u, nested(7, 4, 5)}}) {
            const auto first = static_cast<std::size_t>(made.p.at(id).first_mode);
            for (std::size_t k = 0; k < want.size(); ++k) {
                CHECK(planned.tensor_modes[first + k] == want[k]);
            }
        }
        CHECK(planned.buffer_elements == std::vector<std::int64_t>{7 * 4 * 3, 7 * 4 * 5});
    }
}

TEST_CASE("a step takes its bytes at the pace of their level, or its flops at what its loops reach") {
    for (const std::int32_t threads : {1, 2}) {
        // 4 MiB in and out, of which the lines of the result are read before they are written
        const otimes::pass moved =
            pass_of(step_kind::gather, factor_kind::permutation, dtype::f64, 512, 1024, 0, threads);
        CHECK(moved.level == "memory");
        CHECK(moved.bytes == 2 * 4194304 + 8 * 1024);
        CHECK(moved.bound_seconds == doctest::Approx(8396800 / 1e9));
        CHECK(moved.predicted_seconds == doctest::Approx(12591104 / 1e9 + 1e-6));
        // 128 KiB in and out: a quarter of L3 serves both
        const otimes::pass near =
            pass_of(step_kind::gather, factor_kind::permutation, dtype::f64, 128, 128, 0, threads);
        CHECK(near.level == "L3");
        CHECK(near.predicted_seconds == doctest::Approx((3 * 131072 + 1024) / 2e9 / threads + 1e-6));
        // 8.4 MFLOP at an eighth of the peak; as many by a triangle at six tenths
        const otimes::pass sparse =
            pass_of(step_kind::contract, factor_kind::sparse, dtype::f32, 4096, 32, 1024, threads);
        CHECK(sparse.flops == 2 * 1024 * 4096);
        CHECK(sparse.predicted_seconds == doctest::Approx(8388608 / 0.125e9 / threads + 1e-6));
        const otimes::pass triangle =
            pass_of(step_kind::contract, factor_kind::triangular, dtype::f32, 4096, 64, 2080, threads);
        CHECK(triangle.predicted_seconds == doctest::Approx(2.0 * 2080 * 4096 / 0.6e9 / threads + 1e-6));
        // A function of the user's is called by one thread.
        const otimes::pass function =
            pass_of(step_kind::callback, factor_kind::callback, dtype::f64, 4096, 32, 1024, threads);
        CHECK(function.predicted_seconds == doctest::Approx(8388608 / 2e8 + 1e-6));
    }
}

// SPDX-License-Identifier: MIT
// Every plan computes its program: plans are run element by element as plan.hpp describes them and compared bit by bit with
// the reference loops, for all shapes, strides and orders of a random family.
#include "plan/interpreter.hpp"
#include "plan/programs.hpp"

#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "support/random.hpp"

namespace {

using namespace planner_test;

chain_spec random_spec(support::random_stream& random) {
    chain_spec spec;
    const auto count = static_cast<std::size_t>(random.integer(1, 5));
    for (std::size_t k = 0; k < count; ++k) {
        const std::int64_t before = random.integer(1, 5);
        spec.modes.push_back(random.integer(0, 2) == 0 ? free_mode(random.integer(1, 9))
                                                       : factor(before, random.integer(1, 5)));
    }
    const auto shuffled = [&] {
        std::vector<std::size_t> order(count);
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t k = count; k > 1; --k) {
            std::swap(order[k - 1],
                      order[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(k) - 1))]);
        }
        return order;
    };
    if (random.integer(0, 1) == 0) {
        spec.order_in = shuffled();
        spec.order_out = random.integer(0, 1) == 0 ? shuffled() : spec.order_in;
    }
    for (const std::size_t k : shuffled()) {
        if (spec.modes[k].contracted) {
            spec.step_order.push_back(k);
        }
    }
    spec.gap = random.integer(0, 2);
    spec.add = random.integer(0, 3) == 0;
    spec.scalar = random.integer(0, 2) == 0;
    return spec;
}

void check_random_chains(std::uint64_t seed, int count) {
    support::random_stream random(seed);
    for (int i = 0; i < count; ++i) {
        const otimes::program p = chain_program(random_spec(random));
        for (const std::int32_t threads : {1, 3}) {
            for (const bool tiny : {false, true}) {
                otimes::machine m = tiny ? tiny_caches(threads) : two_wide_cores();
                m.cpu.threads = threads;
                const otimes::plan made = otimes::make_plan(p, m);
                CAPTURE(seed);
                CAPTURE(i);
                CAPTURE(threads);
                CAPTURE(tiny);
                REQUIRE(computes_the_program(made, random.bits()));
                REQUIRE(made.workspace_bytes == otimes::layout_of(made).total);
            }
        }
    }
}

}  // namespace

TEST_CASE("random chains: the plan computes the program") { check_random_chains(1, 1500); }
TEST_CASE("[long] many random chains: the plan computes the program") { check_random_chains(2, 40000); }

TEST_CASE("chains as expressions write them") {
    for (const bool column_major : {false, true}) {
        for (const std::int64_t M : {1, 2, 7, 40}) {
            for (const auto& factors : std::vector<std::vector<mode_spec>>{
                     {factor(2, 3)},
                     {factor(1, 1)},
                     {factor(1, 1), factor(1, 1)},
                     {factor(1, 4), factor(3, 1)},
                     {factor(3, 2), factor(1, 1), factor(4, 5)},
                     {factor(4, 4), free_mode(3), factor(2, 5)},
                     {free_mode(2), factor(4, 4), free_mode(1), free_mode(3)},
                     {factor(2, 2), factor(2, 2), factor(2, 2), factor(2, 2), factor(2, 2)},
                     {factor(8, 8), factor(8, 8), factor(8, 8)},
                     {factor(20, 3), factor(5, 17)},
                 }) {
                for (const bool tiny : {false, true}) {
                    const otimes::program p = rows_program(M, factors, dtype::f64, column_major);
                    const otimes::plan made = otimes::make_plan(p, tiny ? tiny_caches(2) : two_wide_cores());
                    CAPTURE(column_major);
                    CAPTURE(M);
                    CAPTURE(tiny);
                    CHECK(computes_the_program(made));
                }
            }
        }
    }
}

TEST_CASE("real factors of a complex chain are swept like complex ones, on a CPU and on a GPU") {
    using otimes::dtype;
    for (const dtype type : {dtype::c64, dtype::c128}) {
        for (const std::uint32_t real : {1u, 2u, 5u, 7u}) {
            for (const bool on_gpu : {false, true}) {
                CAPTURE(real);
                CAPTURE(on_gpu);
                chain_spec spec;
                spec.type = type;
                spec.modes = {free_mode(20), factor(8, 8), factor(8, 8), factor(8, 8)};
                const otimes::machine m = on_gpu ? otimes::gpu_machine(otimes::h200()) : two_wide_cores();
                const otimes::options wishes{.placement = on_gpu ? otimes::placement::gpu : otimes::placement::cpu};
                const otimes::plan alike = otimes::make_plan(chain_program(spec), m, wishes);
                spec.real_factors = real;
                const otimes::plan mixed = otimes::make_plan(chain_program(spec), m, wishes);
                REQUIRE(mixed.passes.size() == alike.passes.size());
                for (std::size_t k = 0; k < mixed.passes.size(); ++k) {
                    CHECK(mixed.passes[k].kernel == alike.passes[k].kernel);
                    CHECK(mixed.passes[k].sweeps == alike.passes[k].sweeps);
                    CHECK(mixed.passes[k].kernel != otimes::pass_kernel::step);
                }
            }
        }
    }
    // A complex factor of a real chain is no such thing: nothing may be lost.
    chain_spec spec;
    spec.type = dtype::f64;
    spec.modes = {free_mode(20), factor(8, 8)};
    otimes::program p = chain_program(spec);
    p.tensors[static_cast<std::size_t>(p.steps[0].factor)].type = dtype::c128;
    CHECK_FALSE(otimes::planning::fits_a_chain(p, p.steps[0]));
    p.tensors[static_cast<std::size_t>(p.steps[0].factor)].type = dtype::f32;
    CHECK_FALSE(otimes::planning::fits_a_chain(p, p.steps[0]));
}

TEST_CASE("a program of real and complex products, which the CPU's kernels would read wrong, is refused") {
    using otimes::dtype;
    chain_spec spec;
    spec.modes = {free_mode(20), factor(8, 8)};
    for (const bool complex_first : {false, true}) {
        CAPTURE(complex_first);
        spec.type = complex_first ? dtype::c128 : dtype::f64;
        otimes::program p = chain_program(spec);
        CHECK_NOTHROW(otimes::make_plan(p, two_wide_cores()));
        const otimes::step first = p.steps.front();
        otimes::step second = first;
        spec.type = complex_first ? dtype::f64 : dtype::c128;
        using otimes::tensor_role;
        second.in = add_operand(p, spec, {20, 8}, {}, tensor_role::input, 3);
        second.factor = add_operand(p, spec, {8, 8}, {}, tensor_role::factor, 4);
        second.out = add_operand(p, spec, {20, 8}, {}, tensor_role::output, 5);
        second.add = true;  // a term of the same result: two results would not pass through a GPU
        p.steps.push_back(second);
        CHECK_THROWS_WITH_AS(otimes::make_plan(p, two_wide_cores()),
                             "otimes: a program of c128 has a product of f64. The CPU's kernels run a plan in "
                             "one type: evaluate that product by a program of its own.",
                             otimes::unsupported_error);
        CHECK(otimes::make_plan(p, otimes::gpu_machine(otimes::h200())).where == otimes::placement::gpu);
        // Lists of indices are no operands of products, wherever they stand.
        p = chain_program(spec);
        otimes::tensor list;
        list.type = dtype::other;
        list.binding = 3;
        p.tensors.insert(p.tensors.begin(), list);
        for (otimes::step& s : p.steps) {
            ++s.in;
            ++s.factor;
            ++s.out;
        }
        CHECK_NOTHROW(otimes::make_plan(p, two_wide_cores()));
    }
}

TEST_CASE("zero extents are legal") {
    for (const auto& modes : std::vector<std::vector<mode_spec>>{
             {free_mode(0), factor(2, 3)},
             {free_mode(2), factor(0, 3)},
             {free_mode(2), factor(3, 0)},
             {free_mode(2), factor(0, 3), factor(2, 2)},
             {free_mode(2), factor(2, 2), factor(0, 0)},
         }) {
        chain_spec spec;
        spec.modes = modes;
        for (const bool add : {false, true}) {
            spec.add = add;
            const otimes::plan made = otimes::make_plan(chain_program(spec), two_wide_cores());
            CHECK(computes_the_program(made));
        }
    }
}

// SPDX-License-Identifier: MIT
// Few long sums on a GPU: how many threads share one, at what predicted time, and which plans take them instead of a tile.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <otimes/plan/explain.hpp>
#include <otimes/plan/gpu_generic.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

#include "plan/programs.hpp"

namespace {

using namespace planner_test;
using otimes::h200;
using otimes::options;
using otimes::pass_kernel;
using otimes::plan;
using otimes::planning::threads_of_sum;

plan plan_of(std::int64_t rows, const std::vector<mode_spec>& factors, dtype type, bool column_major,
             const options& wishes = {}) {
    program p = rows_program(rows, factors, type, column_major);
    for (otimes::tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    return otimes::make_plan(p, otimes::gpu_machine(h200()), wishes);
}

}  // namespace

TEST_CASE("threads of a sum: eight products and more for each, and no more of them than run side by side") {
    CHECK(threads_of_sum(dtype::f32, 694, 1) == 32);
    CHECK(threads_of_sum(dtype::f32, 255, 1) == 16);
    CHECK(threads_of_sum(dtype::f32, 15, 1) == 1);
    CHECK(threads_of_sum(dtype::f32, 694, 131072) == 1);
    CHECK(threads_of_sum(dtype::f32, 694, 32768) == 4);
    CHECK(threads_of_sum(dtype::f64, 694, 32768) == 8);  // longer elements, twice the threads
    CHECK(threads_of_sum(dtype::f16, 694, 32768) == 4);
    CHECK(threads_of_sum(dtype::c128, 0, 0) == 1);
    for (std::int64_t length = 1; length < 600; length += 7) {
        for (std::int64_t sums = 1; sums < 1'000'000; sums = 3 * sums + 1) {
            const std::int64_t threads = threads_of_sum(dtype::f32, length, sums);
            CHECK((threads & (threads - 1)) == 0);
            CHECK(threads >= 1);
            CHECK(threads <= 32);
            CHECK((threads == 1 || (threads * 8 <= length && threads * sums <= 131072)));
        }
    }
}

TEST_CASE("few long sums: predicted within a factor of 1.7 of what an H200 took") {
    struct measured {
        dtype type;
        std::int64_t length;
        std::int64_t sums;
        double us;  // with the launch
    };
    for (const measured& m : {measured{dtype::f64, 659, 2 * 659, 5.89}, measured{dtype::f64, 397, 397, 3.98},
                              measured{dtype::f32, 694, 4 * 694, 7.18}, measured{dtype::f32, 499, 4 * 499, 5.21},
                              measured{dtype::f32, 228, 4 * 130, 5.64}, measured{dtype::f64, 170, 5 * 170, 5.0}}) {
        CAPTURE(m.length);
        const double us = 1e6 * (h200().launch_seconds + otimes::planning::generic_seconds(
                                                             m.type, m.length, static_cast<double>(m.sums),
                                                             threads_of_sum(m.type, m.length, m.sums), 0, h200()));
        CHECK(us < 1.7 * m.us);
        CHECK(us > m.us / 1.7);
    }
}

TEST_CASE("few rows of a long factor: predicted within a factor of 1.5 of what an H200 took") {
    struct measured {
        dtype type;
        std::int64_t extent;
        std::int64_t fibres;
        double us;  // without the launch
    };
    for (const measured& m : {measured{dtype::f32, 2048, 16, 15.0}, measured{dtype::f32, 4096, 16, 44.9},
                              measured{dtype::f32, 1000, 24, 11.3}, measured{dtype::f32, 4096, 4, 34.0},
                              measured{dtype::f32, 400, 16, 7.1}, measured{dtype::f64, 2048, 16, 26.7},
                              measured{dtype::f64, 4096, 16, 74.1}, measured{dtype::f64, 1000, 24, 14.6}}) {
        CAPTURE(m.extent);
        CAPTURE(m.fibres);
        otimes::sweep s;
        s.p_extent = s.q_extent = m.extent;
        const double us = 1e6 * otimes::planning::few_fibres_seconds(m.type, s, m.fibres, h200());
        CHECK(us < 1.5 * m.us);
        CHECK(us > m.us / 1.5);
    }
    struct of_shape {
        dtype type;
        std::int64_t p;
        std::int64_t q;
        std::int64_t fibres;
        double us;  // with the launch (bench/results/few_rows_choices_h200.txt)
    };
    for (const of_shape& m :
         {of_shape{dtype::f32, 2000, 1500, 2, 10.4}, of_shape{dtype::f64, 2000, 1500, 3, 15.7},
          of_shape{dtype::f32, 2000, 1500, 12, 14.6}, of_shape{dtype::f64, 2000, 1500, 8, 21.8},
          of_shape{dtype::f64, 3301, 501, 13, 33.3}, of_shape{dtype::f32, 2000, 2000, 50, 35.9},
          of_shape{dtype::f32, 10000, 30, 30, 49.8}, of_shape{dtype::f64, 10000, 30, 30, 88.7},
          of_shape{dtype::f32, 30, 10000, 30, 19.5}, of_shape{dtype::f64, 30, 10000, 30, 21.7},
          of_shape{dtype::f32, 256, 256, 256, 6.4}, of_shape{dtype::f64, 256, 256, 256, 8.1},
          of_shape{dtype::f32, 1000, 1000, 256, 45.0}, of_shape{dtype::f64, 4000, 100, 200, 39.8}}) {
        CAPTURE(m.p);
        CAPTURE(m.fibres);
        otimes::sweep s;
        s.p_extent = m.p;
        s.q_extent = m.q;
        const double us =
            1e6 * (otimes::planning::few_fibres_seconds(m.type, s, m.fibres, h200()) + h200().launch_seconds);
        CHECK(us < 1.6 * m.us);
        CHECK(us > m.us / 1.5);
    }
    using otimes::planning::fibres_at_once;
    CHECK(fibres_at_once(dtype::f32, 2) == 2);
    CHECK(fibres_at_once(dtype::f32, 5) == 8);
    CHECK(fibres_at_once(dtype::f64, 100) == 8);
    CHECK(fibres_at_once(dtype::c128, 100) == 4);
}

TEST_CASE(
    "few rows of a long factor are summed several at a time, where the kernel can be had and bits may depend on how "
    "many there are") {
    for (const bool columns : {false, true}) {
        const plan few = plan_of(16, {factor(4096, 4096)}, dtype::f32, columns);
        REQUIRE(few.passes.size() == 1);
        CHECK(few.passes.front().kernel == pass_kernel::gpu_generic);
        CHECK(few.passes.front().tile.rows == 8);
        CHECK(few.passes.front().tile.slices == 16);
        CHECK(otimes::plan_from_text(otimes::to_text(few)) == few);
        CHECK(otimes::explain(few).find("16 threads a sum, 8 fibres at once") != std::string::npos);
    }
    CHECK(plan_of(1, {factor(4096, 4096)}, dtype::f32, false).passes.front().tile.rows == 1);
    CHECK(plan_of(16, {factor(400, 400)}, dtype::f32, false).passes.front().tile.rows == 1);
    CHECK(plan_of(129, {factor(4096, 4096)}, dtype::f32, false).passes.front().tile.rows == 1);
    CHECK(plan_of(1000, {factor(4096, 4096)}, dtype::f32, false).passes.front().kernel == pass_kernel::gpu_blocked);
    CHECK(plan_of(16, {factor(4096, 4096)}, dtype::f32, false, {.deterministic = true}).passes.front().tile.rows == 1);
    // Of a single vector, where the other factor's indices are the fibres.
    const plan vector = plan_of(1, {factor(2048, 2048), factor(16, 16)}, dtype::f64, false);
    CHECK(std::ranges::count_if(vector.passes, [](const otimes::pass& p) {
              return p.kernel == pass_kernel::gpu_generic && p.tile.rows == 8;
          }) == 1);
    // In a sum, too: no other launch joins a factor so long.
    program sum = planner_test::sum_of_chains(16, {{factor(2048, 2048)}, {factor(2048, 2048)}});
    for (otimes::tensor& t : sum.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    CHECK(std::ranges::count_if(otimes::make_plan(sum, otimes::gpu_machine(h200())).passes, [](const otimes::pass& p) {
              return p.kernel == pass_kernel::gpu_generic && p.tile.rows == 8;
          }) == 2);
    for (const bool compiles : {false, true}) {
        otimes::gpu_description small = h200();
        small.compiles = compiles;
        small.shared_bytes_per_block = compiles ? 64 * 1024 : small.shared_bytes_per_block;
        program p = rows_program(16, {factor(4096, 4096)}, dtype::f32, false);
        for (otimes::tensor& t : p.tensors) {
            t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
        }
        CHECK(otimes::make_plan(p, otimes::gpu_machine(small)).passes.front().tile.rows == 1);
    }
}

TEST_CASE(
    "few long sums go without a tile where that is predicted to be faster, in one order where bits must not depend on "
    "rows") {
    const auto without_tile = [](const plan& p) {
        return std::ranges::count_if(p.passes, [](const otimes::pass& one) {
            return one.kernel == pass_kernel::gpu_generic && one.tile.slices > 1;
        });
    };
    // Measured before and after: 200x32 of four columns 62 and 13 us, 228>130 17 and 6, 100x160 of one 27 and 14.
    const plan mixed = plan_of(4, {factor(200, 200), factor(32, 32)}, dtype::f32, true);
    CHECK(without_tile(mixed) == 1);
    CHECK(without_tile(plan_of(4, {factor(228, 130)}, dtype::f32, true)) == 1);
    CHECK(without_tile(plan_of(1, {factor(100, 100), factor(160, 160)}, dtype::f32, true)) == 2);
    CHECK(without_tile(plan_of(4000, {factor(200, 200), factor(32, 32)}, dtype::f32, true)) == 0);
    CHECK(without_tile(plan_of(1, {factor(16, 16), factor(16, 16)}, dtype::f32, false)) == 0);
    CHECK(otimes::plan_from_text(otimes::to_text(mixed)) == mixed);
    CHECK(otimes::explain(mixed).find("4 threads a sum") != std::string::npos);
    options repeatable;
    repeatable.deterministic = true;
    for (const std::int64_t rows : {1, 2, 4, 500}) {
        for (const otimes::pass& one : plan_of(rows, {factor(659, 659)}, dtype::f64, false, repeatable).passes) {
            CHECK(one.tile.slices == 1);
        }
    }
    for (const std::int64_t rows : {4, 4000}) {  // the first of which go without a tile where bits may depend on it
        CHECK(without_tile(plan_of(rows, {factor(200, 200), factor(32, 32)}, dtype::f32, true, repeatable)) == 0);
        CHECK(without_tile(plan_of(rows, {factor(228, 130)}, dtype::f32, true, repeatable)) == 0);
    }
    // Slabs, which bound the workspace, change no bit: the threads are those of all sums.
    options tight;
    tight.workspace_limit_bytes = 170000;  // the factors, and less than X
    for (const otimes::pass& one : plan_of(4, {factor(200, 200), factor(32, 32)}, dtype::f32, true, tight).passes) {
        if (one.kernel == pass_kernel::gpu_generic) {
            CHECK(one.tile.slices == threads_of_sum(dtype::f32, one.sweeps.front().p_extent, 4 * 200 * 32));
        }
    }
}

TEST_CASE("what a trip's threads have to do: fibres of a warp, warps with fibres") {
    using otimes::planning::fibres_of_trip;
    using otimes::planning::use_of_trip;
    otimes::planning::gpu_group g;
    g.type = dtype::f32;
    g.p = {32, 64};
    g.q = {32, 16};
    g.tile = otimes::planning::read_tile("r1 t128 b4 g1 s0 : 2m/4 1m").value();
    CHECK(fibres_of_trip(g, 0) == 32);
    CHECK(fibres_of_trip(g, 1) == 16);  // of the new extent of mode 2
    CHECK(use_of_trip(g, 0).filled == 1);
    CHECK(use_of_trip(g, 0).busy == 1);      // four warps share 32 fibres
    CHECK(use_of_trip(g, 1).filled == 0.5);  // 16 of the 32 that a warp takes
    CHECK(use_of_trip(g, 1).busy == 0.25);
    g.type = dtype::f64;  // 16 a warp
    CHECK(use_of_trip(g, 1).filled == 1);
    g.tile = otimes::planning::read_tile("r3 t128 b4 g1 s0 : 2f 1f/2").value();
    CHECK(use_of_trip(g, 0).busy == 0.75);  // 96 threads
    CHECK(use_of_trip(g, 1).filled == 1);   // 48 fibres, two threads each
    g.tile.rows = 1;
    CHECK(use_of_trip(g, 1).busy == 0.25);
    g.p = g.q = {20, 20};
    CHECK(use_of_trip(g, 0).filled == 20.0 / 32);
}

TEST_CASE("long modes of few fibres: the warps of a block share them") {
    const auto tile = [](std::vector<std::int64_t> p, dtype type, std::int64_t rows) {
        otimes::planning::group_request r;
        r.type = type;
        r.p = r.q = p;
        for (std::size_t i = p.size(); i > 0; --i) {
            r.order.push_back(static_cast<std::int32_t>(i));
        }
        r.groups = rows;
        return otimes::planning::text_of_tile(otimes::planning::choose_group(r, h200())->group.tile, false);
    };
    CHECK(tile({32, 64}, dtype::f32, 1464) == "r1 t128 b4 g1 s0 : 2m/4 1m/2");  // 33 -> 18 us on an H200
    CHECK(tile({60, 60}, dtype::f32, 780) == "r1 t128 b2 g1 s0 : 2m/2 1m/2");
    CHECK(tile({14, 32}, dtype::f32, 26785) == "r4 t128 b4 g1 s0 : 2m/2 1f");
    CHECK(tile({24, 16}, dtype::f64, 4000).find("/") == std::string::npos);  // short ones gain nothing
}

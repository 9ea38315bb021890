// SPDX-License-Identifier: MIT
// The cost model against numbers computed by hand.
#include "plan/programs.hpp"

#include <otimes/plan/cost.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace {

using namespace otimes::planning;
using otimes::dtype;
using otimes::pass;
using otimes::sweep;
using otimes::sweep_kernel;

// A machine whose numbers make arithmetic easy: 1 GFLOP/s per thread, 4 floats in a vector, L1 1 KiB, L2 64 KiB.
otimes::cpu_description round_numbers() {
    otimes::cpu_description cpu;
    cpu.simd_bytes = 16;
    cpu.l1_bytes = 1024;
    cpu.l2_bytes = 65536;
    cpu.l3_bytes = 1 << 20;
    cpu.flops_f32 = 1e9;
    cpu.flops_f64 = 0.5e9;
    cpu.l1_bytes_per_second = 8e9;
    cpu.l2_bytes_per_second = 4e9;
    cpu.l3_bytes_per_second = 2e9;
    cpu.memory_bytes_per_second = 1e9;
    cpu.dispatch_seconds = 1e-6;
    cpu.fork_seconds = 8e-6;
    return cpu;
}

// 64 rows of X (row-major) times a 4 x 4 factor, lanes over the 8 elements inside: modes 64 x [4] x 8.
pass outer_pass() {
    pass p;
    p.kernel = otimes::pass_kernel::cpu_tiles;
    p.modes = {{64, 64, 32, 32}, {4, 4, 8, 8}, {8, 8, 1, 1}};
    p.sweeps = {sweep{1, sweep_kernel::fibre, 4, 4, {}}};
    p.lane_mode = 2;
    p.lane_count = 8;
    return p;
}

}  // namespace

TEST_CASE("levels: half of a cache is counted on") {
    const otimes::cpu_description cpu = round_numbers();
    CHECK(level_of(cpu, 512, 1) == level::l1);
    CHECK(level_of(cpu, 513, 1) == level::l2);
    CHECK(level_of(cpu, 32768, 4) == level::l2);
    CHECK(level_of(cpu, 32769, 1) == level::l3);
    CHECK(level_of(cpu, 524288, 1) == level::l3);
    CHECK(level_of(cpu, 524288, 2) == level::memory);
    CHECK(bandwidth(cpu, level::memory, 2) == 0.5e9);
    CHECK(bandwidth(cpu, level::l2, 2) == 4e9);
}

TEST_CASE("efficiency of a sweep: 0.85 P Q / (P Q + 4 (P + Q))") {
    CHECK(sweep_efficiency(2, 2) == doctest::Approx(0.17));
    CHECK(sweep_efficiency(4, 4) == doctest::Approx(0.85 / 3));
    CHECK(sweep_efficiency(8, 8) == doctest::Approx(0.425));
    CHECK(sweep_efficiency(16, 16) == doctest::Approx(0.85 * 256 / 384));
    CHECK(sweep_efficiency(64, 64) == doctest::Approx(0.85 * 4096 / 4608));
    CHECK(sweep_efficiency(3, 5) == sweep_efficiency(5, 3));  // symmetric: loads and stores cost the same
}

TEST_CASE("neighbours of a small tile are taken at once, as many as 16 KiB hold") {
    pass p = outer_pass();
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 64);  // there are no more
    p.modes[0].extent_in = p.modes[0].extent_out = 100000;
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 128);
    CHECK(otimes::planning::batch_count(p, dtype::c128) == 32);
    p.lane_count = 4;  // of 8 lanes
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 1);
    p.lane_mode = -1;
    p.lane_count = 1;
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 8192);  // a single sweep over rows: 128 KiB
    p.modes[1].extent_in = 1024;
    p.sweeps[0].p_extent = 1024;
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 64);   // of 4 KiB
    CHECK(otimes::planning::batch_count(p, dtype::c128) == 64);  // of 16 KiB: a megabyte
    p.modes[1].extent_in = 8192;
    p.sweeps[0].p_extent = 8192;
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 32);  // of 32 KiB
    p.sweeps.push_back(p.sweeps[0]);
    p.modes[1].extent_in = 8192;
    p.sweeps[0].p_extent = 8192;
    CHECK(otimes::planning::batch_count(p, dtype::f32) == 1);  // 32 KiB
}

TEST_CASE("fibres longer than a part: no conflicts; the results once more a part, the factor once a tile") {
    const otimes::cpu_description cpu = round_numbers();  // 24 KiB in four registers of 16 bytes: parts of 384
    CHECK(part_extent(cpu) == 384);
    pass p;
    p.kernel = otimes::pass_kernel::cpu_tiles;
    p.modes = {{1000, 64, 8, 8}, {8, 8, 1, 1}};
    p.sweeps = {sweep{0, sweep_kernel::fibre, 1000, 64, {}}};
    p.lane_mode = 1;
    p.lane_count = 8;
    CHECK(takes_parts(p, cpu));
    pass_setting where;
    const double arithmetic =
        2.0 * 1000 * 64 * 8 / 1e9 / sweep_efficiency(1000, 64);  // 8 lanes: two whole registers, no conflict_waste
    const double results = 2.0 * 3 * 64 * 8 * 4 / 4e9;           // three parts; 2 KiB lie in L2
    const double factor = 1000.0 * 64 * 4 / 2e9;                 // 256 kB lie in L3
    const double copied = (1000.0 + 64) * 8 * 4 / 4e9;           // the tile of 32 kB as any other
    CHECK(cost_of(p, cpu, dtype::f32, where).compute_seconds ==
          doctest::Approx(arithmetic + 0.5 * (results + factor) + 0.1 * cpu.dispatch_seconds + 0.5 * copied)
              .epsilon(0.02));
    p.sweeps[0].p_extent = p.modes[0].extent_in = 384;
    CHECK_FALSE(takes_parts(p, cpu));  // one part
    p.sweeps[0].p_extent = p.modes[0].extent_in = 1000;
    p.sweeps[0].q_extent = 7;
    CHECK_FALSE(takes_parts(p, cpu));  // too few results for what a part costs
    p.sweeps[0].q_extent = 64;
    p.lane_mode = -1;
    CHECK_FALSE(takes_parts(p, cpu));
}

TEST_CASE("vector waste, transposition and runs") {
    CHECK(vector_waste(8, 4) == 1.0);
    CHECK(vector_waste(5, 4) == doctest::Approx(1.6));
    CHECK(vector_waste(1, 4) == doctest::Approx(7.2));                // in pieces: 1.8 times as much
    CHECK(vector_waste(7, 8, true) == doctest::Approx(1.1 * 8 / 7));  // under a mask
    CHECK(vector_waste(9, 8, true) == doctest::Approx(16.0 / 9));
    CHECK(transpose_flops(4) == doctest::Approx(6.0));  // 3 log2(4)
    CHECK(transpose_flops(16) == doctest::Approx(12.0));
    CHECK(transpose_flops(1) == 0.0);
    CHECK(gather_flops(4) == 24.0);
    CHECK(run_efficiency(level::memory, 512, 512) == 0.5);
    CHECK(run_efficiency(level::l2, 1536, 512) == 0.75);
    CHECK(run_efficiency(level::l1, 4, 512) == 1.0);
    CHECK(lost_by_run(1, false) == 512);
    CHECK(lost_by_run(600, false) == 1200);
    CHECK(lost_by_run(4096, false) == 2048);
    CHECK(lost_by_run(64, true) == 256);
    CHECK(lost_by_run(128, true) == 512);
    CHECK(lost_by_transposing(16) == 1024);
    CHECK(lost_by_transposing(48) == 1536);
    CHECK(busiest_share(10, 4) == doctest::Approx(0.3));
    CHECK(overlapped(4, 2) == 5.0);
    CHECK(overlapped(1, 4) == 4.0);
}

TEST_CASE("a direct pass, one thread") {
    const pass_cost cost = cost_of(outer_pass(), round_numbers(), dtype::f32, {level::memory, level::memory, 1, 1});
    CHECK(cost.flops == 2.0 * 4 * 4 * 8 * 64);     // 16384
    CHECK(cost.bytes == 2.0 * 2048 * 4 + 16 * 4);  // in and out, the factor once
    // tile: 2 x 32 floats in L1, so no tile traffic; all 64 tiles are taken at once, which costs a tenth of a dispatch
    const double compute = 16384 / (1e9 * 0.85 / 3) + 1e-7;
    CHECK(cost.compute_seconds == doctest::Approx(compute));
    // a tile is one contiguous run of 32 floats = 128 bytes: efficiency 128 / 640; what is written is read before
    const double traffic = 3 * 8192 / 1e9 / (128.0 / 640.0);
    CHECK(cost.traffic_seconds == doctest::Approx(traffic));
    CHECK(cost.seconds == doctest::Approx(compute + traffic / 2 + 1e-6));
    CHECK(cost.bound_seconds == doctest::Approx(16384 / 1e9));  // flops over peak beat 16.384 us of bytes by nothing
}

TEST_CASE("threads share tiles, with a barrier; threads take slabs, without") {
    const pass_cost shared = cost_of(outer_pass(), round_numbers(), dtype::f32, {level::l2, level::l2, 3, 1});
    const double compute = 16384 / (1e9 * 0.85 / 3) + 64 * 1e-7;
    const double traffic = 2 * 8192 / 4e9;
    const double share = 22.0 / 64;  // ceil(64 / 3) of 64 tiles
    CHECK(shared.seconds == doctest::Approx(share * compute + share * traffic / 2 + 1e-6 + 2e-6));
    const pass_cost slabs = cost_of(outer_pass(), round_numbers(), dtype::f32, {level::l2, level::l2, 3, 8});
    CHECK(slabs.seconds ==
          doctest::Approx(3.0 / 8 * (compute + traffic / 2) + 3 * 1e-6));  // 3 of 8 slabs, 3 dispatches
}

TEST_CASE("an accumulating pass reads its output too; complex arithmetic counts four times") {
    pass p = outer_pass();
    p.add = true;
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).bytes == 3.0 * 2048 * 4 + 64);
    const pass_cost complex = cost_of(outer_pass(), round_numbers(), dtype::c64, {});
    CHECK(complex.flops == 4 * 16384.0);
    CHECK(complex.bytes == 2.0 * 2048 * 8 + 16 * 8);
    CHECK(cost_of(outer_pass(), round_numbers(), dtype::f64, {}).bound_seconds == doctest::Approx(16384 / 0.5e9));
}

TEST_CASE("lanes that are not contiguous transpose; nothing contiguous gathers") {
    pass p = outer_pass();
    p.modes = {{64, 64, 4, 4}, {4, 4, 1, 1}};  // lanes over rows, the contracted mode innermost
    p.sweeps[0].mode = 1;
    p.lane_mode = 0;
    CHECK(movement_of(p, &otimes::pass_mode::stride_in) == movement::transposing);
    const pass_cost cost = cost_of(p, round_numbers(), dtype::f32, {level::l2, level::l2, 1, 1});
    const double sweeps = 2 * 4 * 256 / (1e9 * 0.85 / 3) + 8 * 1e-7;         // 256 elements, 8 tiles
    CHECK(cost.compute_seconds == doctest::Approx(sweeps + 512 * 6 / 1e9));  // squares of 4 x 4, all full
    // the 8 lanes lie side by side: one run of 128 bytes, as long as it stays within a page; beyond L2 it loses 1024 more
    CHECK(cost.traffic_seconds == doctest::Approx(2 * 1024 / 4e9 * (128.0 + 512) / 128));
    CHECK(cost_of(p, round_numbers(), dtype::f32, {level::memory, level::l2, 1, 1}).traffic_seconds ==
          doctest::Approx(1024 / 1e9 * (128.0 + 1536) / 128 + 1024 / 4e9 * (128.0 + 512) / 128));
    const auto run = [&](double page, std::int64_t vector) {
        return contiguous_run(p, &otimes::pass_mode::stride_in, &otimes::pass_mode::extent_in, page, vector, 1);
    };
    CHECK(run(32, 8) == 32);
    CHECK(run(31, 8) == 4);   // eight lanes at a time are more than a page
    CHECK(run(31, 4) == 32);  // four are not

    // Three rows by columns: their elements are neighbours, and where all three are taken at once their tiles are one run.
    pass few;
    few.modes = {{20, 20, 300, 300}, {100, 100, 3, 3}, {3, 3, 1, 1}};
    few.sweeps = {sweep{1, sweep_kernel::row, 100, 100, {}}};
    const auto run_of_few = [&](std::int64_t vector, double batch) {
        return contiguous_run(few, &otimes::pass_mode::stride_in, &otimes::pass_mode::extent_in, 1024, vector, batch);
    };
    CHECK(run_of_few(8, 2) == 1);
    CHECK(run_of_few(8, 3) == 6000);
    CHECK(run_of_few(2, 3) == 1);  // registers of two are lanes enough
    p.modes = {{64, 64, 5, 5}, {5, 5, 1, 1}};
    p.sweeps[0].p_extent = p.sweeps[0].q_extent = 5;
    const double one = cost_of(p, round_numbers(), dtype::f32, {level::l2, level::l2, 1, 1}).compute_seconds;
    const double fives = 2 * 5 * 320 / (1e9 * 0.85 * 25 / 65) + 8 * 1e-7;
    CHECK(one == doctest::Approx(fives + 640 * 6 / 1e9 * 8 / 5));  // rows of five fill five of eight places
    p.lane_mode = -1;
    p.lane_count = 1;
    CHECK(run(31, 4) == 320);  // row after row
    p.modes = {{64, 64, 6, 5}, {5, 5, 1, 1}};
    CHECK(run(31, 4) == 5);  // with gaps
    p.modes = {{5, 5, 64, 64}, {64, 64, 1, 1}};
    p.sweeps[0].mode = 0;
    CHECK(run(31, 4) == 1);  // its elements lie apart
    p.modes = {{64, 64, 4, 4}, {4, 4, 1, 1}};
    p.sweeps[0].mode = 1;
    CHECK(movement_of(p, &otimes::pass_mode::stride_in) == movement::direct);
    p.modes[1].stride_in = 2;
    CHECK(movement_of(p, &otimes::pass_mode::stride_in) == movement::gathering);
}

TEST_CASE("a tile that is copied holds whole registers of lanes, also where slabs end it") {
    pass p = outer_pass();
    p.modes = {{9, 9, 4, 4}, {4, 4, 1, 1}};  // lanes over 9 rows, vectors of 4: 12 are computed
    p.sweeps[0].mode = 1;
    p.lane_mode = 0;
    p.lane_count = 9;
    const pass_setting here{level::l1, level::l1, 1, 1};
    const double sweep_of_12 = 2 * 4 * 48 / (1e9 * 0.85 / 3);
    CHECK(cost_of(p, round_numbers(), dtype::f32, here).compute_seconds ==
          doctest::Approx(sweep_of_12 + 1e-7 + 72 * 6 / 1e9));
    p.lane_count = 8;  // 8 and 1: two tiles that are taken one by one, 12 lanes as before
    CHECK(cost_of(p, round_numbers(), dtype::f32, here).compute_seconds ==
          doctest::Approx(sweep_of_12 + 2e-7 + 72 * 6 / 1e9));
    p.modes[0] = {36, 36, 4, 4};  // four slabs of 9 rows: each ends with a tile of one
    p.slab_mode = 0;
    p.lane_count = 9;
    CHECK(cost_of(p, round_numbers(), dtype::f32, {level::l1, level::l1, 1, 4}).compute_seconds ==
          doctest::Approx(4 * sweep_of_12 + 4e-7 + 4 * 72 * 6 / 1e9));
    p.lane_count = 8;
    CHECK(cost_of(p, round_numbers(), dtype::f32, {level::l1, level::l1, 1, 4}).compute_seconds ==
          doctest::Approx(4 * sweep_of_12 + 8e-7 + 4 * 72 * 6 / 1e9));
    p.modes = {{64, 64, 32, 32}, {4, 4, 8, 8}, {9, 9, 1, 1}};  // read and written where it lies: nothing is filled up
    p.sweeps[0].mode = 1;
    p.slab_mode = -1;
    p.lane_mode = 2;
    p.lane_count = 8;
    CHECK(cost_of(p, round_numbers(), dtype::f32, here).compute_seconds ==
          doctest::Approx(2 * 4 * 4 * 9 * 64 / (1e9 * 0.85 / 3) * vector_waste(4, 4) + 128 * 1e-7));
}

TEST_CASE("the row kernel wastes what the last vector of a row leaves empty") {
    pass p;
    p.modes = {{10, 10, 5, 5}, {5, 5, 1, 1}};
    p.sweeps = {sweep{1, sweep_kernel::row, 5, 5, {}}};
    const double arithmetic = 2 * 5 * 50 * 1.6 / (1e9 * sweep_efficiency(5, 5));
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).compute_seconds == doctest::Approx(arithmetic + 1e-7));
    otimes::planning::pass_setting tight;
    tight.batches = false;  // row by row
    CHECK(cost_of(p, round_numbers(), dtype::f32, tight).compute_seconds == doctest::Approx(arithmetic + 10 * 1e-7));
}

TEST_CASE("rows of two elements stand side by side in registers, where as many come out") {
    const auto seconds = [](std::int64_t extent, std::int64_t after, dtype type) {
        pass p;
        p.modes = {{10, 10, extent, after}, {extent, after, 1, 1}};
        p.sweeps = {sweep{1, sweep_kernel::row, extent, after, {}}};
        return cost_of(p, round_numbers(), type, {}).compute_seconds;
    };
    const double products = 2 * 2 * 10 * 2;
    CHECK(seconds(2, 2, dtype::f32) == doctest::Approx(products / (1e9 * sweep_efficiency(2, 2)) + 1e-7));
    CHECK(seconds(2, 2, dtype::c64) == doctest::Approx(4 * products / (1e9 * sweep_efficiency(2, 2)) + 1e-7));
    CHECK(seconds(2, 3, dtype::f32) ==
          doctest::Approx(1.5 * products * vector_waste(3, 4) / (1e9 * sweep_efficiency(2, 3)) + 1e-7));
    CHECK(vector_waste(3, 4) > 2);
    // A gate on the last qubit reads its rows as they are.
    for (const dtype type : {dtype::f32, dtype::f64, dtype::c64, dtype::c128}) {
        const otimes::plan gate = otimes::make_plan(
            planner_test::rows_program(1 << 17, {planner_test::factor(2, 2)}, type), planner_test::two_wide_cores());
        CHECK(gate.passes.size() == 1);
        CHECK(gate.passes.front().lane_mode < 0);
    }
}

TEST_CASE("two sweeps of 3 x 3 with a register inside are done at once, of three the last alone") {
    pass p;
    p.modes = {{3, 3, 72, 72}, {3, 3, 24, 24}, {3, 3, 8, 8}, {8, 8, 1, 1}};
    p.sweeps = {sweep{0, sweep_kernel::fibre, 3, 3, {}}, sweep{1, sweep_kernel::fibre, 3, 3, {}},
                sweep{2, sweep_kernel::fibre, 3, 3, {}}};
    p.lane_mode = 3;
    p.lane_count = 8;
    otimes::cpu_description cpu = round_numbers();
    cpu.l1_bytes = 1 << 16;
    const double each = 2.0 * 27 * 3 * 8 / 1e9;
    CHECK(cost_of(p, cpu, dtype::f32, {}).compute_seconds ==
          doctest::Approx(2 * each / twin_efficiency + each / sweep_efficiency(3, 3) + 1e-7));
    CHECK(cost_of(p, cpu, dtype::c64, {}).compute_seconds ==
          doctest::Approx(4 * 3 * each / sweep_efficiency(3, 3) + 1e-7));
    CHECK(begins_twin(p, 0, 8, 4, false));
    CHECK(begins_twin(p, 1, 4, 4, false));
    CHECK_FALSE(begins_twin(p, 1, 3, 4, false));  // less than a register inside
    CHECK_FALSE(begins_twin(p, 2, 8, 4, false));
    p.sweeps[1].q_extent = 4;
    CHECK_FALSE(begins_twin(p, 0, 8, 4, false));
    for (sweep& s : p.sweeps) {
        s.p_extent = s.q_extent = 5;
    }
    CHECK(begins_twin(p, 0, 8, 4, true));  // where there are registers for 25 sums
    CHECK_FALSE(begins_twin(p, 0, 8, 4, false));
    p.sweeps[1].p_extent = p.sweeps[1].q_extent = 3;
    CHECK_FALSE(begins_twin(p, 0, 8, 4, true));
}

TEST_CASE("the last short modes are done at once") {
    otimes::cpu_description cpu = round_numbers();
    cpu.simd_bytes = 64;
    cpu.l1_bytes = 1 << 16;
    const auto rows_of = [](std::int64_t extent, int count) {
        pass p;
        p.modes = {{10, 10, 0, 0}};
        std::int64_t stride = 1;
        for (int k = 0; k < count; ++k) {
            p.modes.insert(p.modes.begin() + 1, {extent, extent, stride, stride});
            p.sweeps.push_back(
                sweep{k + 1, k + 1 == count ? sweep_kernel::row : sweep_kernel::fibre, extent, extent, {}});
            stride *= extent;
        }
        p.modes[0].stride_in = p.modes[0].stride_out = stride;
        return p;
    };
    const auto tail = [&](const pass& p, dtype type) {
        const short_tail found = tail_of(p, cpu.simd_bytes, type);
        return std::pair(found.first, found.count);
    };
    using ends = std::pair<std::size_t, std::size_t>;
    CHECK(tail(rows_of(3, 4), dtype::f64) == ends(1, 3));
    CHECK(tail(rows_of(3, 4), dtype::f32) == ends(1, 3));
    CHECK(tail(rows_of(3, 2), dtype::f64) == ends(0, 0));
    CHECK(tail(rows_of(5, 3), dtype::f32) == ends(1, 2));
    CHECK(tail(rows_of(7, 2), dtype::f64) == ends(0, 2));
    CHECK(tail(rows_of(8, 2), dtype::f32) == ends(0, 2));
    CHECK(tail(rows_of(8, 2), dtype::f64) == ends(0, 0));
    CHECK(tail(rows_of(4, 2), dtype::f32) == ends(0, 2));
    CHECK(tail(rows_of(4, 5), dtype::f64) == ends(2, 3));
    CHECK(tail(rows_of(2, 2), dtype::f32) == ends(0, 0));
    CHECK(tail(rows_of(5, 3), dtype::c64) == ends(0, 0));
    pass p = rows_of(5, 3);
    std::swap(p.sweeps[1], p.sweeps[2]);  // the last mode first
    CHECK(tail(p, dtype::f32) == ends(0, 0));
    p = rows_of(5, 3);
    p.sweeps[1].q_extent = 6;
    CHECK(tail(p, dtype::f32) == ends(0, 0));
    p = rows_of(5, 3);
    p.lane_mode = 0;
    CHECK(tail(p, dtype::f32) == ends(0, 0));

    // Rows of 17 KiB and more whose sweeps before the tail are more than one step: 27, 25 and 49 doubles begin at whole registers.
    const auto gap = [](const pass& rows, dtype type) {
        const short_tail found = tail_of(rows, 64, type);
        return found.padded - found.elements;
    };
    CHECK(gap(rows_of(3, 7), dtype::f64) == 5);
    CHECK(gap(rows_of(5, 5), dtype::f64) == 7);
    CHECK(gap(rows_of(7, 4), dtype::f64) == 7);
    CHECK(gap(rows_of(3, 8), dtype::f32) == 5);
    CHECK(gap(rows_of(3, 7), dtype::f32) == 0);  // 9 KiB
    CHECK(gap(rows_of(4, 7), dtype::f64) == 0);  // 64 are whole registers
    CHECK(gap(rows_of(7, 3), dtype::f64) == 0);  // one sweep, from X to the tail
    pass twin = rows_of(3, 5);                   // the first two together are one step
    twin.modes.insert(twin.modes.begin() + 1, {20, 20, 243, 243});
    for (sweep& s : twin.sweeps) {
        ++s.mode;
    }
    CHECK(gap(twin, dtype::f64) == 0);

    // Two of 5 floats: 3 rows fill 15 of 16 places; 10 multiply-adds a register, 5 shuffles and 2 places filled for 5 of them.
    CHECK(tail_efficiency(5, 2, 16) == doctest::Approx(0.65 * 10 * (15.0 / 16) / (15 + 2)));
    // Three of 3 doubles: 2 rows in 6 of 8 places.
    CHECK(tail_efficiency(3, 3, 8) == doctest::Approx(0.65 * 9 * (6.0 / 8) / (12 + 1)));
    // Two of 7 doubles: a row in 7 of 8 places, which loads spread.
    CHECK(tail_efficiency(7, 2, 8) == doctest::Approx(0.65 * (7.0 / 8)));
    const double each = 2.0 * 10 * 25 * 5;
    CHECK(cost_of(rows_of(5, 2), cpu, dtype::f32, {}).compute_seconds ==
          doctest::Approx(2 * each / (1e9 * tail_efficiency(5, 2, vector_count(cpu, dtype::f32))) + 1e-7));
    otimes::cpu_description narrow = cpu;
    narrow.simd_bytes = 32;
    CHECK(tail_of(rows_of(5, 2), narrow.simd_bytes, dtype::f32).count == 0);
}

TEST_CASE("a tile beyond L1 pays for its traffic, and for unpacked fibres") {
    pass p;
    p.modes = {{4, 4, 4096, 4096}, {64, 64, 64, 64}, {64, 64, 1, 1}};
    p.sweeps = {sweep{1, sweep_kernel::fibre, 64, 64, {}}};
    p.lane_mode = 2;
    p.lane_count = 4;  // 2 x 64 x 4 floats = 2 KiB: L2
    const double tiles = 4 * 16;
    const double arithmetic = 2.0 * 64 * 64 * 4 * 1.25 / (1e9 * sweep_efficiency(64, 64));
    const double traffic = 2.0 * 256 * 4 / 4e9;
    const double copies = 2.0 * 256 * tiles * 4 / 4e9;
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).compute_seconds ==
          doctest::Approx(tiles * (arithmetic + traffic / 2) + tiles * 1e-7 + copies));
    // a tile of 256 floats is 64 runs of 16 bytes; one sweep of 64 packs them, and a transposition hides half of the copies
    CHECK(cost_of(p, round_numbers(), dtype::f32, {level::l3, level::l2, 1, 1}).traffic_seconds ==
          doctest::Approx((16.0 + 256) / 16 * tiles * 1024 * (1 / 2e9 + 1 / 4e9)));
    p.modes[1].stride_in = p.modes[1].stride_out = 1;
    p.modes[2].stride_in = p.modes[2].stride_out = 64;
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).compute_seconds ==
          doctest::Approx(tiles * (arithmetic + traffic / 2) + tiles * 1e-7 +
                          (std::max)(copies, 512 * tiles * 6 / 1e9 + copies / 2)));
}

TEST_CASE("several sweeps of long fibres over lanes in one buffer pay nothing for packing") {
    pass p;
    p.modes = {{64, 64, 512, 512}, {64, 64, 8, 8}, {8, 8, 1, 1}};
    p.sweeps = {sweep{0, sweep_kernel::fibre, 64, 64, {}}, sweep{1, sweep_kernel::fibre, 64, 64, {}}};
    p.lane_mode = 2;
    p.lane_count = 8;  // one buffer of 64 x 64 x 8 floats = 128 KiB: L3
    const double elements = 64 * 64 * 8;
    const auto compute = [&](double waste) {
        const double arithmetic = 2.0 * elements * 64 * waste / (1e9 * sweep_efficiency(64, 64));
        return 2 * (arithmetic + elements * 4 / 2e9) + 1e-7 + 2 * elements * 4 / 2e9;
    };
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).compute_seconds == doctest::Approx(compute(1.0)));
    p.sweeps[1].p_extent = p.sweeps[1].q_extent = 63;  // not all of them are long
    p.modes[1].extent_in = p.modes[1].extent_out = 63;
    const double fewer = elements * 63 / 64;
    const double first = 2.0 * fewer * 64 * 1.25 / (1e9 * sweep_efficiency(64, 64));
    const double second = 2.0 * fewer * 63 / (1e9 * sweep_efficiency(63, 63));
    CHECK(cost_of(p, round_numbers(), dtype::f32, {}).compute_seconds ==
          doctest::Approx(first + second + 2 * fewer * 4 / 2e9 + 1e-7 + 2 * fewer * 4 / 2e9));
}

TEST_CASE("tile buffers: none between the operand, one sweep that works in place, and the result") {
    const otimes::cpu_description cpu = round_numbers();  // registers of 4 floats, 16 of them: blocks take 6 rows
    pass p;
    p.modes = {{9, 9, 800, 800}, {5, 5, 160, 160}, {5, 5, 32, 32}, {5, 5, 8, 8}, {8, 8, 1, 1}};
    p.sweeps = {sweep{1, sweep_kernel::fibre, 5, 5, {}}, sweep{2, sweep_kernel::fibre, 5, 5, {}}};
    p.lane_mode = 4;
    p.lane_count = 8;
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 1);  // written by the first, read by the last
    p.sweeps.push_back(sweep{3, sweep_kernel::fibre, 5, 5, {}});
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 1);  // the second writes where it reads
    CHECK(tile_buffers_of(p, cpu, dtype::c64) == 2);  // complex blocks take 2 rows
    p.lane_count = 6;
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 2);  // the last register would overlap the one before it
    p.lane_count = 2;
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 2);  // less than a register is copied
    p.lane_count = 8;
    p.sweeps[1].q_extent = 4;
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 2);
    p.sweeps[1].q_extent = 5;
    p.modes[4].stride_out = 1000;
    CHECK(tile_buffers_of(p, cpu, dtype::f32) == 2);  // gathered
    p.modes[4].stride_out = 1;
    otimes::cpu_description narrow = cpu;
    for (sweep& s : p.sweeps) {
        s.p_extent = s.q_extent = 7;
    }
    CHECK(tile_buffers_of(p, narrow, dtype::f32) == 2);  // two blocks of 4 and 3
    narrow.simd_registers = 32;
    CHECK(tile_buffers_of(p, narrow, dtype::f32) == 1);  // one block of 7
    p.sweeps.resize(1);
    CHECK(tile_buffers_of(p, narrow, dtype::f32) == 2);  // what streams through takes as much

    // 125 x 8 floats: 4000 bytes once; L1 needs a quarter more, L2 three quarters of its size at most
    p.sweeps = {sweep{1, sweep_kernel::fibre, 5, 5, {}}, sweep{2, sweep_kernel::fibre, 5, 5, {}},
                sweep{3, sweep_kernel::fibre, 5, 5, {}}};
    narrow = cpu;
    narrow.l1_bytes = 5000;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l1);
    narrow.l1_bytes = 4999;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l2);
    narrow.l2_bytes = 5334;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l2);
    narrow.l2_bytes = 5333;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l3);
    p.sweeps[1].q_extent = 4;  // two buffers fill L1 without that
    narrow.l1_bytes = 8000;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l1);
    narrow.l1_bytes = 7999;
    narrow.l2_bytes = 1 << 20;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l2);
    p.lane_count = 1;  // two buffers of one row: a third more than L1 is as good
    p.lane_mode = -1;
    p.sweeps.back().kernel = otimes::sweep_kernel::row;
    const double bytes = 8.0 * tile_peak_elements(p);
    narrow.l1_bytes = static_cast<std::int64_t>(0.75 * bytes) + 1;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l1);
    narrow.l1_bytes = static_cast<std::int64_t>(0.75 * bytes) - 1;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l2);
    p.sweeps.resize(1);  // a single sweep streams through
    narrow.l1_bytes = static_cast<std::int64_t>(8.0 * tile_peak_elements(p)) - 1;
    CHECK(tile_level_of(p, narrow, dtype::f32, 1) == level::l2);
}

TEST_CASE("totals of a plan: least bytes and bound") {
    // 50 x (32 * 64) -> 50 x (8 * 128): X 409 600, Y 204 800, factors 1 024 + 32 768 bytes; 8.192 MFLOP at 2 x 175 GFLOP/s
    const otimes::plan p =
        otimes::make_plan(planner_test::rows_program(50, {planner_test::factor(32, 8), planner_test::factor(64, 128)}),
                          planner_test::two_wide_cores());
    CHECK(p.bytes == 409600 + 204800 + 1024 + 32768);
    CHECK(p.flops == 8192000);
    CHECK(p.bound_seconds == doctest::Approx(8192000 / 350e9));
}

TEST_CASE("flops and bytes beyond 2^63 - 1 stay there, on the CPU and on a GPU") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const std::int64_t long_mode = 1 << 20;
    otimes::program p = planner_test::rows_program(
        1 << 20, {planner_test::factor(long_mode, long_mode), planner_test::factor(2, 2)}, otimes::dtype::c128);
    const otimes::machine m = otimes::gpu_machine(otimes::h200());
    for (const otimes::placement where : {otimes::placement::cpu, otimes::placement::gpu}) {
        for (otimes::tensor& t : p.tensors) {
            t.space = where == otimes::placement::cpu ? otimes::memory_space::host : otimes::memory_space::device;
        }
        const otimes::plan made = otimes::make_plan(p, m, {.placement = where});
        CHECK(made.flops == most);
        CHECK(std::ranges::any_of(made.passes, [](const otimes::pass& one) { return one.flops == most; }));
    }
    // Operands are no costs. What lies between them is kept small by the order: 2^80 elements are never there.
    const auto rows = [](std::int64_t count, const std::vector<planner_test::mode_spec>& factors) {
        static_cast<void>(
            otimes::make_plan(planner_test::rows_program(count, factors), planner_test::two_wide_cores()));
    };
    const std::int64_t wide = 1 << 30;
    CHECK_NOTHROW(rows(1 << 20, {planner_test::factor(1, wide), planner_test::factor(wide, 1)}));
    CHECK_NOTHROW(rows(wide, {planner_test::factor(1 << 20, 2)}));
    CHECK_THROWS_WITH_AS(rows(wide, {planner_test::factor(1 << 20, 2), planner_test::factor(1 << 10, 2)}),
                         "otimes: make_plan: an operand or an intermediate has 4096 PiB, more than any memory holds "
                         "(2^56 bytes). Use fewer or smaller factors, or fewer rows.",
                         otimes::shape_error);
    std::int64_t total = most - 2;
    otimes::saturating_add(total, 1.0);
    CHECK(total >= most - 2);
    otimes::saturating_add(total, 1e19);
    CHECK(total == most);
}

TEST_CASE("the flops of a plan are counted to the last one, whatever its tiles divide") {
    for (const std::int64_t rows : {364, 116, 236, 1 << 12}) {
        for (const std::int64_t p : {5, 6, 12, 37}) {
            for (const otimes::cpu_description& cpu :
                 {otimes::cpu_baseline(), otimes::cpu_avx2(), otimes::cpu_avx512(), otimes::cpu_neon()}) {
                otimes::machine m;
                m.cpu = cpu;
                const otimes::plan made = otimes::make_plan(
                    planner_test::rows_program(
                        rows, {planner_test::factor(p, p), planner_test::factor(13, 13), planner_test::factor(22, 22)}),
                    m, {.precision = otimes::precision::ieee});  // factors one by one
                CHECK(made.flops == 2 * rows * p * 13 * 22 * (p + 13 + 22));
            }
        }
    }
}

TEST_CASE("no plan is predicted to be faster than its bound, also where the operands are in cache") {
    const auto compare = [](const std::vector<planner_test::mode_spec>& factors, std::int64_t rows) {
        for (const otimes::cpu_description& cpu :
             {otimes::cpu_baseline(), otimes::cpu_avx2(), otimes::cpu_avx512(), otimes::cpu_neon()}) {
            for (const std::int32_t threads : {1, 2, 16}) {
                const otimes::plan p =
                    otimes::make_plan(planner_test::rows_program(rows, factors), otimes::cpu_machine(cpu, threads));
                CAPTURE(cpu.name);
                CAPTURE(threads);
                CAPTURE(rows);
                CHECK(p.predicted_seconds >= p.bound_seconds);
            }
        }
    };
    for (const std::int64_t rows : {1, 3, 40, 100, 1000, 20000}) {
        compare({planner_test::factor(8, 8), planner_test::factor(8, 5), planner_test::factor(4, 8)}, rows);
        compare({planner_test::factor(2, 2), planner_test::factor(2, 2)}, rows);
        compare({planner_test::factor(32, 32), planner_test::factor(16, 4)}, rows);
    }
    // Of few rows the factor is most of the bytes.
    for (const std::int64_t rows : {1, 2, 7, 18}) {
        for (const std::int64_t extent : {110, 260, 1000, 2000}) {
            compare({planner_test::factor(extent, extent)}, rows);
            compare({planner_test::factor(extent, extent), planner_test::factor(9, 4)}, rows);
        }
    }
}

TEST_CASE("large results are stored past the caches, with registers of 64 bytes") {
    const auto stored_past = [](std::vector<planner_test::mode_spec> modes, bool columns, bool add = false,
                                std::int32_t simd_bytes = 64, dtype type = dtype::f32) {
        planner_test::chain_spec spec;
        spec.modes = std::move(modes);
        for (std::size_t k = 0; k < spec.modes.size(); ++k) {
            spec.order_in.push_back(columns ? (k + 1) % spec.modes.size() : k);
        }
        spec.order_out = spec.order_in;
        spec.type = type;
        spec.add = add;
        otimes::machine m;
        m.cpu = otimes::cpu_avx512();
        m.cpu.simd_bytes = simd_bytes;
        m.cpu.threads = 2;
        std::vector<bool> marked;
        for (const otimes::pass& one : otimes::make_plan(planner_test::chain_program(spec), m).passes) {
            marked.push_back(one.past_caches);
        }
        return marked;
    };
    const auto cubes = [](std::int64_t rows, std::int64_t extent) {
        return std::vector<planner_test::mode_spec>{planner_test::free_mode(rows), planner_test::factor(extent, extent),
                                                    planner_test::factor(extent, extent),
                                                    planner_test::factor(extent, extent)};
    };
    using marks = std::vector<bool>;
    // Rows: the last pass alone writes Y. Columns: the first leaves in Y what the last reads there.
    CHECK(stored_past(cubes(128, 32), false) == marks{false, true});  // 16 MiB
    CHECK(stored_past(cubes(127, 32), false) == marks{false, false});
    CHECK(stored_past(cubes(128, 32), false, true) == marks{false, false});  // added to Y, which is read anyway
    CHECK(stored_past(cubes(128, 32), false, false, 32).back() == false);
    CHECK(stored_past(cubes(256, 32), true) == marks{false, false});
    CHECK(stored_past(cubes(512, 32), true) == marks{true, false});
    // Of two products that are added up the first is read again.
    const auto first_of_sum = [](std::int64_t rows) {
        planner_test::chain_spec spec;
        spec.modes = {planner_test::free_mode(rows), planner_test::factor(64, 64), planner_test::free_mode(64)};
        spec.type = dtype::f32;
        otimes::program p = planner_test::chain_program(spec);
        otimes::tensor f;
        f.type = spec.type;
        f.role = otimes::tensor_role::factor;
        f.binding = 3;
        f.scalar_bytes = 4;
        otimes::step more = p.steps.back();
        more.factor = p.add_tensor(f);
        p.add_mode(64, 64);
        p.add_mode(64, 1);
        more.add = true;
        p.steps.push_back(more);
        otimes::machine m;
        m.cpu = otimes::cpu_avx512();
        const otimes::plan made = otimes::make_plan(p, m);
        REQUIRE(made.passes.size() == 2);
        CHECK_FALSE(made.passes[1].past_caches);
        return made.passes[0].past_caches;
    };
    CHECK_FALSE(first_of_sum(4095));  // 64 MiB less a row
    CHECK(first_of_sum(4096));
    // Whole lines alone: pairs of 8 x 8 floats and 8 doubles are, rows of 10 or 24 floats are not, nor 8 floats of a single factor.
    CHECK(stored_past(cubes(20000, 8), false).back());
    CHECK(stored_past(cubes(20000, 8), false, false, 64, dtype::f64).back());
    CHECK_FALSE(stored_past(cubes(10000, 10), false).back());
    CHECK_FALSE(stored_past(cubes(2000, 24), false).back());
    CHECK_FALSE(stored_past({planner_test::free_mode(1 << 20), planner_test::factor(8, 8)}, false).back());
    CHECK_FALSE(stored_past(cubes(20000, 4), false, false, 64, dtype::c64).back());
    CHECK(stored_past({planner_test::free_mode(2048), planner_test::factor(64, 64), planner_test::factor(64, 64)}, true)
              .back());
    CHECK_FALSE(
        stored_past({planner_test::free_mode(2056), planner_test::factor(64, 64), planner_test::factor(64, 64)}, true)
            .back());
}

TEST_CASE("one tile is left to one thread, however much there is to do, unless threads share its factor") {
    otimes::machine m = otimes::cpu_machine(otimes::cpu_avx512(), 2);
    otimes::program p = planner_test::rows_program(1, {planner_test::factor(3000, 3000)});
    p.tensors.front().binding = p.tensors.back().binding;  // in place: no blocks
    const otimes::plan one = otimes::make_plan(p, m);
    CHECK(one.predicted_seconds > 32 * m.cpu.fork_seconds);
    CHECK(one.threads == 1);
    CHECK(otimes::make_plan(planner_test::rows_program(1, {planner_test::factor(3000, 3000)}), m).threads == 2);
    CHECK(otimes::make_plan(planner_test::rows_program(200, {planner_test::factor(3000, 3000)}), m).threads == 2);
}

TEST_CASE("a long factor for few rows or lanes is read as it lies, or packed in blocks of a quarter of L2") {
    using namespace planner_test;
    const otimes::machine m = two_wide_cores();
    const auto only_pass = [&m](const otimes::program& p, std::int32_t threads = 2) {
        const otimes::plan made = otimes::make_plan(p, m, {.threads = threads});
        REQUIRE(made.passes.size() == 1);
        CHECK(made.workspace_bytes == otimes::layout_of(made).total);
        return made;
    };
    const auto program = [](std::int64_t rows, std::int64_t P, std::int64_t Q, bool columns, dtype type = dtype::f64) {
        return rows_program(rows, {factor(P, Q)}, type, columns);
    };
    // Few: read as it lies, the two threads half of its columns each, in whole blocks of three registers of eight.
    for (const bool columns : {false, true}) {
        const otimes::plan few = only_pass(program(16, 2000, 1500, columns));
        CHECK(few.passes.front().block_rows == 0);
        CHECK(few.passes.front().block_columns == 768);
        CHECK(few.passes.front().lane_mode == -1);
        CHECK(few.workspace_bytes < 8 * 2000 * 1500 / 4);
        CHECK(otimes::explain(few).find(", factor as it lies") != std::string::npos);
        CHECK(only_pass(program(16, 2000, 1500, columns), 1).passes.front().block_columns == 1500);
    }
    // Its columns are contiguous: packed, since rows are few, in blocks of as many of its rows as leave it three registers of columns.
    const auto turned = [&program](std::int64_t rows, std::int64_t P, std::int64_t Q, bool columns) {
        otimes::program p = program(rows, P, Q, columns);
        otimes::mode* const at = p.modes.data() + p.tensors[1].first_mode;
        at[0].stride = 1;
        at[1].stride = P;
        return p;
    };
    const otimes::plan in_blocks = only_pass(turned(16, 2000, 1500, false));
    const pass& one = in_blocks.passes.front();
    CHECK(one.block_rows == 2000);
    CHECK(one.block_columns % 24 == 0);
    CHECK(one.block_rows * one.block_columns * 8 <= m.cpu.l2_bytes / 4 + one.block_rows * 24 * 8);
    CHECK(only_pass(turned(16, 6001, 1500, false)).passes.front().block_rows == 2001);  // 2730 at most, in equal parts
    // Rows that would not stay in L2 beside them, and few columns: the rows that are summed at once.
    CHECK(only_pass(turned(100, 2000, 1500, false)).passes.front().block_rows == otimes::planning::part_extent(m.cpu));
    CHECK(only_pass(turned(16, 6000, 300, false)).passes.front().block_rows == otimes::planning::part_extent(m.cpu));
    // Up to four rows: it is transposed in registers on its way, and packed nowhere.
    for (const std::int64_t rows : {1, 4}) {
        for (const bool columns : {false, true}) {
            const otimes::plan few = only_pass(turned(rows, 2000, 1500, columns));
            CHECK(few.passes.front().block_rows == 0);
            CHECK(few.passes.front().block_columns == 768);
            CHECK(few.passes.front().lane_mode == -1);
            CHECK(few.workspace_bytes < 8 * 2000 * 1500 / 50);
            CHECK(otimes::explain(few).find(", factor as it lies") != std::string::npos);
        }
        CHECK(only_pass(turned(rows, 70, 60, false), 1).passes.front().block_columns ==
              60);  // a short one, too, of more than 32 KiB
        CHECK(only_pass(turned(rows, 64, 64, false), 1).passes.front().block_columns == 0);
        CHECK(only_pass(turned(rows, 200, 31, false), 1).passes.front().block_columns == 0);
    }
    // Few rows by columns are copied for each block; as many as a register has elements are lanes.
    CHECK(only_pass(turned(5, 2000, 1500, false)).passes.front().block_rows == 2000);
    CHECK(only_pass(turned(5, 2000, 1500, true)).passes.front().block_rows == 2000);
    CHECK(only_pass(turned(5, 2000, 1500, true)).passes.front().lane_mode == -1);
    for (const std::int64_t rows : {8, 12, 16, 30}) {
        CHECK(only_pass(turned(rows, 2000, 1500, true)).passes.front().lane_mode >= 0);
        CHECK(only_pass(turned(rows, 2000, 1500, true)).passes.front().block_rows == 2000);
    }
    // Lanes that would not stay in a quarter of L2 beside a block.
    CHECK(only_pass(turned(40, 2000, 1500, true)).passes.front().block_rows == otimes::planning::part_extent(m.cpu));
    const std::int64_t count = (1500 - 1) / one.block_columns + 1;
    CHECK(count % 2 == 0);
    CHECK(in_blocks.factor_elements == 2 * std::max(one.block_rows * one.block_columns, 2000 * std::int64_t{8}));
    CHECK(otimes::explain(in_blocks).find(", factor in " + std::to_string(one.block_rows) + " x ") !=
          std::string::npos);
    // Sums that are added to Y, or complex, do not wait there: all rows.
    chain_spec spec;
    spec.modes = {free_mode(40), factor(2000, 1500)};
    spec.order_in = spec.order_out = {1, 0};
    spec.add = true;
    CHECK(only_pass(planner_test::chain_program(spec)).passes.front().block_rows == 2000);
    spec.add = false;
    spec.type = dtype::c128;
    CHECK(only_pass(planner_test::chain_program(spec)).passes.front().block_rows == 2000);
    // More lanes: packed in blocks still; very many, a short factor, or in place: whole.
    CHECK(only_pass(program(64, 2000, 1500, true)).passes.front().block_rows > 0);
    CHECK(only_pass(program(20000, 2000, 1500, true)).passes.front().block_columns == 0);
    CHECK(only_pass(program(64, 100, 100, true)).passes.front().block_columns == 0);
    otimes::program in_place = program(16, 2000, 2000, true);
    in_place.tensors.front().binding = in_place.tensors.back().binding;
    CHECK(only_pass(in_place).passes.front().block_columns == 0);
    // A second pass over the same lanes, of which no thread has a tile of its own.
    const otimes::plan two = otimes::make_plan(rows_program(1, {factor(2048, 2048), factor(16, 16)}, dtype::f64), m);
    REQUIRE(two.passes.size() == 2);
    CHECK(two.threads == 2);
    CHECK(two.passes[0].block_columns == 1032);
    CHECK(two.passes[1].block_columns == 0);
}

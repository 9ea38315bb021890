// SPDX-License-Identifier: MIT
// Placement, GPU plans on a machine that is only a value, threads, tuning, and options that plans refuse.
#include "plan/interpreter.hpp"
#include "plan/programs.hpp"

#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/thrown.hpp"

namespace {

using namespace planner_test;
using otimes::pass_kernel;
using otimes::placement;

otimes::program on_device(otimes::program p) {
    for (otimes::tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    return p;
}

std::vector<std::size_t> sweeps_per_pass(const otimes::plan& p) {
    std::vector<std::size_t> counts;
    for (const otimes::pass& one : p.passes) {
        counts.push_back(one.sweeps.size());
    }
    return counts;
}

}  // namespace

TEST_CASE("operands in device memory go to the GPU, and are refused by the CPU") {
    const otimes::program p = on_device(rows_power(1024, 8, 5));
    const otimes::plan made = otimes::make_plan(p, otimes::gpu_machine(otimes::h200()));
    CHECK(made.where == placement::gpu);
    CHECK(made.machine_name == "NVIDIA H200");
    CHECK(made.notes.empty());  // nothing to transfer
    CHECK_THROWS_AS(otimes::make_plan(p, otimes::gpu_machine(otimes::h200()), {.placement = placement::cpu}),
                    otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::make_plan(p, two_wide_cores()), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::make_plan(rows_power(4, 8, 2), two_wide_cores(), {.placement = placement::gpu}),
                    otimes::unsupported_error);
}

TEST_CASE("operands in host memory: the transfer is part of the cost") {
    const otimes::machine m = otimes::gpu_machine(otimes::h200(), 1, 2);
    const otimes::plan small = otimes::make_plan(rows_power(16, 8, 3), m);
    CHECK(small.where == placement::cpu);
    REQUIRE_FALSE(small.rejected.empty());
    CHECK(small.rejected.back().what == "on the GPU, transfers included");
    const otimes::plan large = otimes::make_plan(rows_power(64, 128, 3), m);
    CHECK(large.where == placement::gpu);
    REQUIRE_FALSE(large.rejected.empty());
    CHECK(large.rejected.back().what == "on the CPU");
    CHECK(large.notes.size() == 1);
    // a limit that only one place keeps decides; the GPU's slabs of operands count
    const std::int64_t limit = 64 << 10;
    CHECK_THROWS_AS(
        otimes::make_plan(rows_power(64, 128, 3), m, {.workspace_limit_bytes = limit, .placement = placement::gpu}),
        otimes::budget_error);
    CHECK_THROWS_AS(otimes::make_plan(rows_power(64, 128, 3), m, {.workspace_limit_bytes = limit}),
                    otimes::budget_error);
    const otimes::plan tight = otimes::make_plan(rows_power(64, 128, 3), m, {.workspace_limit_bytes = 12 << 20});
    CHECK(tight.where == placement::cpu);
    CHECK(tight.workspace_bytes <= 12 << 20);
}

// Passes of the literature's cases on an H200, by shared memory and run length (227 KiB, runs of at least 32 bytes).
TEST_CASE("GPU passes of known cases") {
    const otimes::machine h200 = otimes::gpu_machine(otimes::h200());
    const auto passes = [&](std::int64_t M, std::int64_t P, std::size_t count, dtype type = dtype::f32) {
        return otimes::make_plan(on_device(rows_power(M, P, count, type)), h200);
    };
    CHECK(sweeps_per_pass(passes(1024, 8, 5)) == std::vector<std::size_t>{5});
    CHECK(passes(1024, 8, 5).passes[0].kernel == pass_kernel::gpu_trailing);
    CHECK(sweeps_per_pass(passes(1024, 32, 3)) == std::vector<std::size_t>{3});
    CHECK(passes(1024, 32, 3).passes[0].sweeps[0].kernel == otimes::sweep_kernel::mma_split);
    CHECK(sweeps_per_pass(passes(16, 64, 4)) == std::vector<std::size_t>{2, 1, 1});
    CHECK(passes(16, 64, 4).passes[0].kernel == pass_kernel::gpu_trailing);
    CHECK(passes(16, 64, 4).passes[1].kernel == pass_kernel::gpu_outer);
    CHECK(passes(16, 64, 4).passes[1].tile.run == 128);
    CHECK(passes(16, 128, 3).passes.size() == 3);
    CHECK(passes(1024, 8, 5, dtype::f64).passes.size() == 1);
    CHECK(passes(1024, 8, 5, dtype::f64).passes[0].tile.cluster == 4);
    CHECK(passes(1024, 8, 4, dtype::f64).passes[0].sweeps[0].kernel == otimes::sweep_kernel::mma_f64);
    // ieee forbids the split products, and small factors do not fill a tensor core's tile
    const otimes::plan ieee =
        otimes::make_plan(on_device(rows_power(1024, 32, 3)), h200, {.precision = otimes::precision::ieee});
    CHECK(ieee.passes[0].sweeps[0].kernel == otimes::sweep_kernel::fibre);
    CHECK(passes(1024, 3, 7).passes[0].sweeps[0].kernel == otimes::sweep_kernel::fibre);
    for (const otimes::plan& p : {passes(1024, 8, 5), passes(16, 64, 4), passes(1024, 3, 7), passes(16, 128, 3)}) {
        for (const otimes::pass& one : p.passes) {
            CHECK(one.shared_bytes <= 227 * 1024);
            CHECK((one.kernel != pass_kernel::gpu_outer || one.tile.run * 4 >= 32));
            CHECK(one.predicted_seconds >= one.bound_seconds);
        }
        CHECK(p.predicted_seconds >= p.bound_seconds);
    }
}

TEST_CASE("smaller GPUs: more passes from the same program") {
    const auto count = [](const otimes::gpu_description& gpu) {
        return otimes::make_plan(on_device(rows_power(1024, 8, 5)), otimes::gpu_machine(gpu)).passes.size();
    };
    CHECK(count(otimes::h200()) == 1);
    CHECK(count(otimes::a100()) == 2);
    CHECK(count(otimes::gpu_of_capability(86)) == 2);
    CHECK(count(otimes::gpu_of_capability(75)) == 2);
    CHECK(count(otimes::gpu_of_capability(100)) == 1);
    CHECK(count(otimes::gpu_of_capability(120)) == 2);
}

TEST_CASE("several GPUs: rows are cut, or the request is refused") {
    const otimes::machine four = otimes::gpu_machine(otimes::h200(), 4);
    const otimes::options all{.placement = placement::gpus};
    const otimes::plan one = otimes::make_plan(on_device(rows_power(16, 64, 4)), four);
    const otimes::plan cut = otimes::make_plan(on_device(rows_power(16, 64, 4)), four, all);
    CHECK(cut.where == placement::gpus);
    CHECK(cut.predicted_seconds == doctest::Approx(one.predicted_seconds / 4));
    CHECK(cut.notes == std::vector<std::string>{"16 rows are cut into 4 parts of at most 4, one per GPU; no exchange"});
    CHECK(otimes::explain(cut).find("\n  passes of all rows on one GPU:\n") != std::string::npos);
    CHECK(otimes::explain(one).find("passes of") == std::string::npos);
    CHECK_THROWS_AS(otimes::make_plan(on_device(rows_power(3, 64, 4)), four, all), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::make_plan(on_device(rows_power(16, 64, 4)), otimes::gpu_machine(otimes::h200()), all),
                    otimes::unsupported_error);
    const std::vector<mode_spec> term{factor(8, 8), factor(8, 8)};
    for (const otimes::program& p : {sum_of_chains(16, {term, term}), sum_of_chains(16, {term}, false, false, true)}) {
        CHECK(support::text_of<otimes::unsupported_error>([&] { (void)otimes::make_plan(on_device(p), four, all); }) ==
              "otimes: operands in device memory are spread over several GPUs for one product by dense factors alone, "
              "not for sums or factors with structure: use placement::gpu.");
        CHECK(otimes::make_plan(on_device(p), four, {.placement = placement::gpu}).where == placement::gpu);
    }
}

TEST_CASE("operands in host memory: all GPUs where the product is large, one or the CPU where it is not") {
    const otimes::machine four = otimes::gpu_machine(otimes::h200(), 4);
    const otimes::machine single = otimes::gpu_machine(otimes::h200());
    const otimes::plan large = otimes::make_plan(rows_power(1000, 64, 3), four);
    CHECK(large.where == placement::gpus);
    const otimes::plan on_one = otimes::make_plan(rows_power(1000, 64, 3), single, {.placement = placement::gpu});
    CHECK(large.predicted_seconds > on_one.predicted_seconds / 4);
    CHECK(large.predicted_seconds < on_one.predicted_seconds / 3);
    CHECK(large.notes.back() == "an index of extent 1000 is cut into 4 parts of at most 250, one per GPU; no exchange");
    CHECK(otimes::make_plan(rows_power(2, 8, 2), four).where == placement::cpu);
    // a row for each, or fewer parts
    const otimes::options all{.placement = placement::gpus};
    CHECK(otimes::make_plan(rows_power(3, 64, 3), four, all).notes.back() ==
          "an index of extent 3 is cut into 3 parts of at most 1, one per GPU; no exchange");
    CHECK(otimes::make_plan(rows_power(1, 64, 3), four, all).notes.back() ==
          "no index runs through all steps: one GPU does all of it");
    CHECK(otimes::make_plan(rows_power(3, 64, 3), single, all).notes ==
          otimes::make_plan(rows_power(3, 64, 3), single, {.placement = placement::gpu}).notes);
    CHECK(otimes::make_plan(rows_power(1, 64, 3), four).where != placement::gpus);
}

TEST_CASE("operands in host memory: the plan is of one slab and one part, the totals are of the run") {
    const otimes::machine four = otimes::gpu_machine(otimes::h200(), 4);
    const otimes::machine single = otimes::gpu_machine(otimes::h200());
    const otimes::options tight{.workspace_limit_bytes = 64 << 20, .placement = placement::gpus};
    const otimes::plan all = otimes::make_plan(rows_power(4096, 64, 3), four, tight);
    const otimes::plan part = otimes::make_plan(rows_power(1024, 64, 3), single,
                                                {.workspace_limit_bytes = 64 << 20, .placement = placement::gpu});
    CHECK(all.part_count == 4);
    CHECK(all.passes == part.passes);
    CHECK(all.trip_slabs == part.trip_slabs);
    CHECK(all.trip_passes == std::vector<std::int64_t>{static_cast<std::int64_t>(part.passes.size())});
    CHECK(all.workspace_bytes == part.workspace_bytes);
    CHECK(all.flops == 4 * part.flops);
    CHECK(all.notes.front() == "on each GPU: " + part.notes.front());
    CHECK(part.part_count == 1);
    CHECK(part.trip_slabs.front() > 1);
    // of the whole run: 2 n P^2 ... flops, and every byte over one link or four
    const double bytes = 4.0 * 4096 * 64 * 64 * 64;
    CHECK(all.flops == 3ll * 2 * 4096 * 64 * 64 * 64 * 64);
    CHECK(all.bound_seconds >= bytes / (4 * otimes::h200().host_bytes_per_second));
    CHECK(part.bound_seconds >= bytes / 4 / otimes::h200().host_bytes_per_second);
    CHECK(all.bound_seconds < all.predicted_seconds);
    CHECK(part.bound_seconds < part.predicted_seconds);
    const otimes::plan resident = otimes::make_plan(on_device(rows_power(1024, 64, 3)), single);
    CHECK(resident.trip_slabs.empty());
    CHECK(resident.bound_seconds < bytes / 4 / otimes::h200().host_bytes_per_second / 4);
    // what is added to Y comes, too
    otimes::program adds = rows_power(1024, 64, 3);
    adds.steps.back().add = true;
    CHECK(otimes::make_plan(adds, single, {.placement = placement::gpu}).bound_seconds > 1.9 * part.bound_seconds);
}

TEST_CASE("the bound is of the plan's threads") {
    const otimes::plan alone = otimes::make_plan(rows_power(20, 2, 7), two_wide_cores());
    REQUIRE(alone.threads == 1);
    CHECK(alone.bound_seconds ==
          otimes::make_plan(rows_power(20, 2, 7), two_wide_cores(), {.threads = 1}).bound_seconds);
}

TEST_CASE("threads: as many as asked for, one where starting them costs more than they bring") {
    CHECK(otimes::make_plan(rows_power(256, 8, 5), two_wide_cores()).threads == 2);
    CHECK(otimes::make_plan(rows_power(256, 8, 5), two_wide_cores(), {.threads = 7}).threads == 7);
    CHECK(otimes::make_plan(rows_power(256, 8, 5), two_wide_cores(), {.threads = 1}).threads == 1);
    CHECK(otimes::make_plan(rows_power(20, 2, 7), two_wide_cores()).threads == 1);
    CHECK(otimes::make_plan(rows_power(256, 8, 5), two_wide_cores(), {.threads = otimes::most_threads}).threads > 1);
    for (const std::int32_t threads : {-1, otimes::most_threads + 1, std::numeric_limits<std::int32_t>::max()}) {
        CHECK(support::text_of<otimes::unsupported_error>([threads] {
                  (void)otimes::make_plan(rows_power(256, 8, 5), two_wide_cores(), {.threads = threads});
              }) == "otimes: options::threads is " + std::to_string(threads) +
                        ". Ask for 1 to 4096, or for 0, which takes what OpenMP would use.");
    }
}

TEST_CASE("machines that no cost can be reckoned with are refused") {
    using otimes::cpu_description;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinite = std::numeric_limits<double>::infinity();
    const auto refused = [](const auto& change) {
        otimes::machine m = two_wide_cores();
        change(m.cpu);
        CHECK_THROWS_AS((void)otimes::make_plan(rows_power(20, 4, 3), m), otimes::unsupported_error);
    };
    for (double cpu_description::*rate :
         {&cpu_description::flops_f32, &cpu_description::flops_f64, &cpu_description::l1_bytes_per_second,
          &cpu_description::l2_bytes_per_second, &cpu_description::l3_bytes_per_second,
          &cpu_description::memory_bytes_per_second}) {
        for (const double value : {0.0, -1.0, 1e-300, nan, infinite}) {
            refused([&](cpu_description& cpu) { cpu.*rate = value; });
        }
    }
    for (double cpu_description::*time : {&cpu_description::dispatch_seconds, &cpu_description::fork_seconds}) {
        for (const double value : {-1e-9, 1e300, nan, infinite}) {
            refused([&](cpu_description& cpu) { cpu.*time = value; });
        }
    }
    for (const std::int32_t value : {0, 8, 48, std::numeric_limits<std::int32_t>::max()}) {
        refused([&](cpu_description& cpu) { cpu.simd_bytes = value; });
    }
    for (const std::int32_t value : {0, -1, std::numeric_limits<std::int32_t>::max()}) {
        refused([&](cpu_description& cpu) { cpu.simd_registers = value; });
    }
    refused([](cpu_description& cpu) { cpu.l2_bytes = -1; });
    for (const std::int32_t value : {0, -1, otimes::most_threads + 1, std::numeric_limits<std::int32_t>::max()}) {
        refused([&](cpu_description& cpu) { cpu.threads = value; });
    }
    otimes::machine slow = two_wide_cores();  // a FLOP a second
    slow.cpu.flops_f32 = slow.cpu.flops_f64 = 1;
    CHECK(!otimes::make_plan(rows_power(20, 4, 3), slow).passes.empty());
    slow = two_wide_cores();
    slow.cpu.l1_bytes = slow.cpu.l2_bytes = slow.cpu.l3_bytes = 0;
    CHECK(!otimes::make_plan(rows_power(20, 4, 3), slow).passes.empty());
    const auto text = [](double flops) -> std::string {
        otimes::machine m = two_wide_cores();
        m.cpu.flops_f64 = flops;
        try {
            (void)otimes::make_plan(rows_power(20, 4, 3), m);
        } catch (const otimes::unsupported_error& e) {
            return e.what();
        }
        return "not refused";
    };
    CHECK(text(0) == "otimes: machine.cpu.flops_f64 is 0. Give 1 to 1e30 a second.");
    CHECK(text(2.5e-9) == "otimes: machine.cpu.flops_f64 is 2.5e-09. Give 1 to 1e30 a second.");  // was 0.000000
    CHECK(text(-1e300) == "otimes: machine.cpu.flops_f64 is -1e+300. Give 1 to 1e30 a second.");  // were 301 digits
}

TEST_CASE("GPUs that no cost can be reckoned with are refused, what is not known of one is not") {
    using otimes::gpu_description;
    using limits = std::numeric_limits<double>;
    const otimes::program p = rows_power(20, 8, 4);
    const auto refused = [&p](const auto& change) {
        otimes::machine m = otimes::gpu_machine(otimes::h200(), 2);
        change(m.gpus.back());
        for (const otimes::placement where :
             {otimes::placement::automatic, otimes::placement::gpu, otimes::placement::gpus}) {
            CHECK_THROWS_AS((void)otimes::make_plan(p, m, {.placement = where}), otimes::unsupported_error);
        }
        CHECK(otimes::make_plan(p, m, {.placement = otimes::placement::cpu}).where == otimes::placement::cpu);
    };
    for (double gpu_description::*rate :
         {&gpu_description::memory_bytes_per_second, &gpu_description::l2_bytes_per_second, &gpu_description::flops_f32,
          &gpu_description::flops_f64, &gpu_description::flops_f32_split, &gpu_description::flops_f64_mma,
          &gpu_description::host_bytes_per_second, &gpu_description::peer_bytes_per_second,
          &gpu_description::staged_bytes_per_second}) {
        for (const double value : {-1.0, 1e-300, 1e300, limits::quiet_NaN(), limits::infinity()}) {
            refused([&](gpu_description& gpu) { gpu.*rate = value; });
        }
    }
    for (const double value : {-1.0, 1e300, limits::quiet_NaN()}) {
        refused([&](gpu_description& gpu) { gpu.launch_seconds = value; });
        refused([&](gpu_description& gpu) { gpu.graph_node_seconds = value; });
    }
    for (std::int32_t gpu_description::*count :
         {&gpu_description::compute_capability, &gpu_description::multiprocessors,
          &gpu_description::shared_bytes_per_block, &gpu_description::shared_bytes_per_multiprocessor,
          &gpu_description::registers_per_multiprocessor, &gpu_description::cluster_blocks}) {
        for (const std::int32_t value : {-1, std::numeric_limits<std::int32_t>::max()}) {
            refused([&](gpu_description& gpu) { gpu.*count = value; });
        }
    }
    refused([](gpu_description& gpu) { gpu.memory_bytes = -1; });
    refused([](gpu_description& gpu) { gpu.l2_bytes = -1; });
    otimes::machine unknown;
    unknown.gpus.resize(2);
    for (const otimes::placement where : {otimes::placement::gpu, otimes::placement::gpus}) {
        const otimes::plan made = otimes::make_plan(p, unknown, {.placement = where});
        CHECK(std::isfinite(made.predicted_seconds));
        CHECK(std::isfinite(made.bound_seconds));
    }
}

TEST_CASE("scalars that no kernel knows are planned for the reference loops, whatever the machine has") {
    otimes::program p = rows_program(9000, {factor(64, 64), factor(64, 64)}, dtype::f64);
    for (otimes::tensor& t : p.tensors) {
        t.type = dtype::other;
        t.scalar_bytes = 16;
    }
    const otimes::machine m = otimes::gpu_machine(otimes::h200(), 2);
    const otimes::plan made = otimes::make_plan(p, m);
    CHECK(made.where == otimes::placement::cpu);
    CHECK(made.flops == 2 * (2 * 64ll) * 9000 * 64 * 64);
    CHECK(made == otimes::make_plan(p, m, {.placement = otimes::placement::automatic}));
    CHECK_THROWS_AS((void)otimes::make_plan(p, m, {.placement = otimes::placement::gpu}), otimes::unsupported_error);
    CHECK_THROWS_AS((void)otimes::make_plan(p, m, {.placement = otimes::placement::gpus}), otimes::unsupported_error);
}

TEST_CASE("a tuned choice replaces the cost model's, unless the plan must be deterministic") {
    const otimes::program p = rows_power(256, 8, 5);
    otimes::machine m = two_wide_cores();
    const otimes::plan usual = otimes::make_plan(p, m);
    otimes::planning::cpu_request request{2, true, 8, 64, otimes::planning::partition::two_passes};
    m.tuning.push_back({otimes::hash_value(p), otimes::planning::choice_text(request), 1e-3});
    const otimes::plan tuned = otimes::make_plan(p, m);
    CHECK(tuned.passes.size() == 2);
    CHECK(tuned.slab_extent == 8);
    CHECK(otimes::make_plan(p, m, {.deterministic = true}).passes == usual.passes);
    const double infinite = std::numeric_limits<double>::infinity();
    for (const double seconds : {0.0, -1.0, 2e9, 1e300, infinite, std::numeric_limits<double>::quiet_NaN()}) {
        m.tuning.back().seconds = seconds;  // no run took so long
        const otimes::plan made = otimes::make_plan(p, m);
        CHECK(made.passes == usual.passes);
        CHECK(made.notes == usual.notes);
    }
    m.tuning.back().seconds = 1e9;
    CHECK(otimes::make_plan(p, m).passes == tuned.passes);
    m.tuning.back().choice = "threads two";  // a foreign entry is ignored
    CHECK(otimes::make_plan(p, m).passes == usual.passes);
}

TEST_CASE("programs of several chains and steps: temporaries are stored, buffers are shared when dead") {
    // T = X * F on mode 1; S = gather of T; Y = S * G on mode 0; then Y += X2 scaled
    otimes::program p;
    const auto operand = [&p](otimes::tensor_role role, std::int32_t binding, std::vector<otimes::mode> modes,
                              dtype type = dtype::f64) {
        otimes::tensor t;
        t.type = type;
        t.role = role;
        t.binding = binding;
        const std::int32_t id = p.add_tensor(t);
        for (const otimes::mode& m : modes) {
            p.add_mode(m.extent, m.stride);
        }
        return id;
    };
    const auto x = operand(otimes::tensor_role::input, 0, {{4, 6}, {6, 1}});
    const auto f = operand(otimes::tensor_role::factor, 1, {{6, 5}, {5, 1}});
    const auto t = operand(otimes::tensor_role::temporary, -1, {{4, 0}, {5, 0}});
    const auto u = operand(otimes::tensor_role::temporary, -1, {{4, 0}, {5, 0}});
    const auto g = operand(otimes::tensor_role::factor, 2, {{4, 3}, {3, 1}});
    const auto y = operand(otimes::tensor_role::output, 3, {{3, 5}, {5, 1}});
    otimes::step one{.in = x, .factor = f, .out = t, .mode = 1};
    otimes::step two{.kind = otimes::step_kind::scale, .in = t, .out = u};
    otimes::step three{.in = u, .factor = g, .out = y, .mode = 0};
    otimes::step four = three;
    four.add = true;
    p.steps = {one, two, three, four};
    const otimes::plan made = otimes::make_plan(p, two_wide_cores());
    REQUIRE(made.passes.size() == 4);
    CHECK(made.passes[1].kernel == pass_kernel::step);
    CHECK(made.passes[3].add);
    CHECK(made.buffer_elements == std::vector<std::int64_t>{20, 20});
    CHECK(made.tensor_buffers[static_cast<std::size_t>(t)] == 0);
    CHECK(made.tensor_buffers[static_cast<std::size_t>(u)] == 1);
    CHECK(computes_the_program(made));
}

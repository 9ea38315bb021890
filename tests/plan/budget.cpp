// SPDX-License-Identifier: MIT
// The workspace: stated exactly, kept under the limit, and refused with a limit that works.
#include "plan/interpreter.hpp"
#include "plan/programs.hpp"

#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/counting_new.hpp"
#include "support/long_tests.hpp"
#include "support/random.hpp"

namespace {

using namespace planner_test;

// The least workspace that the error text names.
std::int64_t least_workspace(const otimes::program& p, const otimes::machine& m, otimes::placement where) {
    try {
        (void)otimes::make_plan(p, m, {.workspace_limit_bytes = 0, .placement = where});
    } catch (const otimes::budget_error& refused) {
        const std::string text = refused.what();
        const std::string before = " at least ";
        const std::size_t at = text.find(before);
        REQUIRE(at != std::string::npos);
        CHECK(text.find("workspace_limit_bytes is 0") != std::string::npos);
        CHECK(refused.least_bytes() == std::stoll(text.substr(at + before.size())));
        return refused.least_bytes();
    }
    return 0;
}

// Two to five modes, most of them short, of any type.
chain_spec random_chain(support::random_stream& random) {
    chain_spec spec;
    const std::int64_t modes = random.integer(2, 5);
    for (std::int64_t k = 0; k < modes; ++k) {
        const auto extent = [&] { return random.integer(1, 5) < 4 ? random.integer(1, 9) : random.integer(9, 70); };
        const std::int64_t P = extent();
        spec.modes.push_back(random.integer(0, 3) == 0 ? free_mode(P) : factor(P, extent()));
    }
    const dtype types[] = {dtype::f32, dtype::f64, dtype::c64, dtype::c128};
    spec.type = types[random.integer(0, 3)];
    return spec;
}

}  // namespace

TEST_CASE("a negative limit is not kept, nor by a plan without passes") {
    for (const std::int64_t rows : {0, 5}) {
        const otimes::program p = rows_program(rows, {factor(2, 3)}, dtype::f64);
        for (const otimes::placement where : {otimes::placement::automatic, otimes::placement::cpu}) {
            const std::int64_t least = least_workspace(p, two_wide_cores(), where);
            CHECK((least == 0) == (rows == 0));
            for (const std::int64_t limit : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
                try {
                    (void)otimes::make_plan(p, two_wide_cores(), {.workspace_limit_bytes = limit, .placement = where});
                    FAIL_CHECK("a negative limit is kept");
                } catch (const otimes::budget_error& refused) {
                    CHECK(refused.least_bytes() == least);
                }
            }
        }
    }
}

TEST_CASE("every limit from the least up is kept, and the plan still computes the program") {
    const otimes::machine m = tiny_caches(3);
    const std::vector<mode_spec> abc{factor(4, 4), factor(3, 3), factor(2, 2)};
    const std::vector<mode_spec> de{factor(6, 6), factor(4, 4)};
    for (const otimes::program& p :
         {rows_program(5, {factor(2, 3), factor(4, 2), factor(3, 3)}, dtype::f64),
          rows_program(7, {factor(3, 5), factor(5, 3)}, dtype::f64, true),
          rows_program(1, {factor(6, 4), factor(4, 6), factor(2, 2)}, dtype::f64),
          sum_of_chains(5, {abc, de}, false, false, true), sum_of_chains(7, {abc, abc}, true, true)}) {
        const std::int64_t free_choice = otimes::make_plan(p, m).workspace_bytes;
        const std::int64_t least = least_workspace(p, m, otimes::placement::automatic);
        REQUIRE(least > 0);
        REQUIRE(least <= free_choice);
        CHECK_THROWS_AS(otimes::make_plan(p, m, {.workspace_limit_bytes = least - 1}), otimes::budget_error);
        double before = 1e300;
        for (std::int64_t limit = least; limit <= free_choice; limit += 64) {
            const otimes::plan made = otimes::make_plan(p, m, {.workspace_limit_bytes = limit});
            REQUIRE(made.workspace_bytes <= limit);
            REQUIRE(made.workspace_bytes == otimes::layout_of(made).total);
            REQUIRE(computes_the_program(made));
            // more room never makes it slower, but for the last step: without a limit fewer candidates are tried, of sums none with slabs
            const bool is_last = !made.tensor_buffers.empty() && made.workspace_bytes == free_choice;
            REQUIRE((is_last || made.predicted_seconds <= before * 1.1));
            before = made.predicted_seconds;
        }
    }
}

TEST_CASE("the least workspace of a sum does not grow with its rows, and slabs cut all its chains together") {
    const std::vector<mode_spec> abc{factor(8, 8), factor(8, 8), factor(8, 8)};
    for (const bool column_major : {false, true}) {
        for (const bool diagonal : {false, true}) {
            std::int64_t least = 0;
            for (const std::int64_t M : {std::int64_t{40}, std::int64_t{1} << 27}) {
                const otimes::program p = sum_of_chains(M, {abc, abc}, column_major, true, diagonal);
                least = least == 0 ? least_workspace(p, two_wide_cores(), otimes::placement::cpu) : least;
                const otimes::plan made = otimes::make_plan(p, two_wide_cores(), {.workspace_limit_bytes = least});
                CHECK(made.workspace_bytes <= least);
                CHECK(made.slab_count == M);
                CHECK(otimes::make_plan(p, two_wide_cores()).slab_count == 1);
                // steps are done by one thread: one slab in flight
                const otimes::plan roomy = otimes::make_plan(p, two_wide_cores(), {.workspace_limit_bytes = 4 << 20});
                CHECK((M < 1000 || roomy.slab_count > 1));
                CHECK(otimes::layout_of(roomy).worker_count == (M < 1000 || diagonal ? 1 : 2));
            }
        }
    }
}

TEST_CASE("large products shrink their slabs to fit") {
    const otimes::program p = rows_power(256, 8, 5);
    const otimes::plan free_choice = otimes::make_plan(p, two_wide_cores());
    const otimes::plan tight =
        otimes::make_plan(p, two_wide_cores(), {.workspace_limit_bytes = free_choice.workspace_bytes / 2});
    CHECK(tight.workspace_bytes <= free_choice.workspace_bytes / 2);
    CHECK(tight.predicted_seconds >= free_choice.predicted_seconds);
}

TEST_CASE("a GPU plan cuts rows to keep the limit") {
    // The last pass changes the shape, so that no intermediate lies in Y.
    otimes::program p = rows_program(16, {factor(60, 64), factor(64, 64), factor(64, 64), factor(64, 64)}, dtype::f32);
    for (otimes::tensor& t : p.tensors) {
        t.space = otimes::memory_space::device;
    }
    const otimes::machine m = otimes::gpu_machine(otimes::h200());
    const std::int64_t whole = 16ll * 60 * 64 * 64 * 64 * 4;
    CHECK(otimes::make_plan(p, m, {.placement = otimes::placement::gpu}).workspace_bytes > whole);
    const otimes::plan tight =
        otimes::make_plan(p, m, {.workspace_limit_bytes = whole / 3, .placement = otimes::placement::gpu});
    CHECK(tight.workspace_bytes <= whole / 3);
    CHECK(tight.slab_count == 4);
    const std::int64_t least = least_workspace(p, m, otimes::placement::gpu);
    CHECK(otimes::make_plan(p, m, {.workspace_limit_bytes = least, .placement = otimes::placement::gpu})
              .workspace_bytes == least);
    CHECK_THROWS_AS(otimes::make_plan(p, m, {.workspace_limit_bytes = least - 1, .placement = otimes::placement::gpu}),
                    otimes::budget_error);
}

TEST_CASE(
    "on a GPU a square pass between two others works in their buffer; one that changes its extents, or cannot, takes "
    "another") {
    const auto passes_of = [](const std::vector<planner_test::mode_spec>& factors) {
        otimes::program p = rows_program(2, factors, dtype::f64);
        for (otimes::tensor& t : p.tensors) {
            t.space = otimes::memory_space::device;
        }
        return otimes::make_plan(p, otimes::gpu_machine(otimes::h200()), {.placement = otimes::placement::gpu});
    };
    const auto is_buffer = [](std::int32_t name) { return name <= -2; };
    const otimes::plan square =
        passes_of({factor(96, 128), factor(128, 128), factor(128, 128), factor(128, 128)});  // what grows comes last
    REQUIRE(square.passes.size() == 4);
    CHECK(is_buffer(square.passes[0].out));
    for (std::size_t at : {1, 2}) {
        CHECK(square.passes[at].in == square.passes[0].out);
        CHECK(square.passes[at].out == square.passes[0].out);
    }
    CHECK(square.passes[3].in == square.passes[0].out);
    CHECK(square.buffer_elements.size() == 1);
    const otimes::plan grows = passes_of({factor(64, 128), factor(100, 128), factor(128, 128)});
    REQUIRE(grows.passes.size() == 3);
    CHECK(is_buffer(grows.passes[1].in));
    CHECK(is_buffer(grows.passes[1].out));
    CHECK(grows.passes[1].in != grows.passes[1].out);
    const otimes::plan blocks = passes_of({factor(500, 600), factor(600, 600), factor(600, 600)});
    REQUIRE(blocks.passes.size() == 3);
    CHECK(blocks.passes[1].kernel == otimes::pass_kernel::gpu_blocked);
    CHECK(blocks.passes[1].in != blocks.passes[1].out);
}

TEST_CASE("products that only a reduction reads: blocks where tiles are slower, slabs where many pieces are") {
    const auto dot_program = [](std::int64_t rows, const std::vector<planner_test::mode_spec>& factors, dtype type) {
        return planner_test::reduced_on_device(rows_program(rows, factors, type), otimes::step_variant::dot);
    };
    const auto eights = dot_program(1, {factor(200, 200), factor(8, 8), factor(8, 8), factor(8, 8)}, dtype::f32);
    const otimes::plan stored =
        otimes::make_plan(eights, otimes::gpu_machine(otimes::h200()), {.placement = otimes::placement::gpu});
    REQUIRE(stored.passes.size() == 3);
    CHECK(stored.passes[1].kernel == otimes::pass_kernel::gpu_blocked);
    const auto long_rows = dot_program(8, {factor(128, 128), factor(128, 128), factor(128, 128)}, dtype::f64);
    const otimes::plan slabs =
        otimes::make_plan(long_rows, otimes::gpu_machine(otimes::h100()),
                          {.workspace_limit_bytes = 33'949'184, .placement = otimes::placement::gpu});
    CHECK(slabs.slab_count > 1);
    CHECK(slabs.passes[0].tile.pieces == 1);

    // By blocks the last pass reduces what it would store, and the one between works where it reads. In the memory for two rows and a half these are slabs
    // of two rows, in that for three and a quarter of three.
    const auto hundreds = dot_program(8, {factor(100, 100), factor(100, 100), factor(100, 100)}, dtype::f64);
    const auto within = [](const otimes::program& p, std::int64_t limit) {
        return otimes::make_plan(p, otimes::gpu_machine(otimes::h200()),
                                 {.workspace_limit_bytes = limit, .placement = otimes::placement::gpu});
    };
    const auto is_reduced_by_blocks = [](const otimes::plan& p, std::int64_t buffers) {
        REQUIRE(p.passes.size() >= 2);
        const otimes::pass& last = p.passes[p.passes.size() - 2];
        CHECK(last.kernel == otimes::pass_kernel::gpu_blocked);
        CHECK(last.reason == "reduced where it would be stored");
        CHECK(static_cast<std::int64_t>(p.buffer_elements.size()) == buffers);
    };
    for (const auto& [limit, rows] : {std::pair{20'500'000, 2}, {26'500'000, 3}, {65'000'000, 8}}) {
        const otimes::plan p = within(hundreds, limit);
        CHECK((p.slab_count > 1 ? p.slab_extent : 8) == rows);
        is_reduced_by_blocks(p, 1);
    }
    // Slabs are alike: of seven rows there would be four, and a last one of two.
    const otimes::plan alike =
        within(dot_program(30, {factor(1000, 1000), factor(1000, 1000)}, dtype::f32), 39'500'000);
    CHECK(alike.slab_count == 5);
    CHECK(alike.slab_extent == 6);
    // Sums in pieces are added up by another kernel, and so are stored.
    const auto in_pieces = dot_program(512, {factor(512, 512)}, dtype::f32);
    const otimes::plan pieces = within(in_pieces, 1 << 26);
    REQUIRE(pieces.passes.front().tile.slices > 1);
    CHECK(pieces.passes.front().reason != "reduced where it would be stored");
    is_reduced_by_blocks(within(dot_program(64, {factor(512, 512), factor(512, 512)}, dtype::f64), 17'000'000), 1);
}

TEST_CASE("the least is refused by nobody and undercut by nobody: CPU, GPU from the host, GPU alone") {
    otimes::program device = rows_program(9, {factor(40, 30), factor(20, 50), factor(30, 8)});
    const otimes::program host = device;
    for (otimes::tensor& t : device.tensors) {
        t.space = otimes::memory_space::device;
    }
    const otimes::machine m = otimes::gpu_machine(otimes::h200());
    for (const auto& [program, where] : {std::pair{&host, otimes::placement::cpu},
                                         {&host, otimes::placement::gpu},
                                         {&device, otimes::placement::gpu}}) {
        const std::int64_t free_choice = otimes::make_plan(*program, m, {.placement = where}).workspace_bytes;
        std::string text;
        try {
            (void)otimes::make_plan(*program, m, {.workspace_limit_bytes = 1, .placement = where});
        } catch (const otimes::budget_error& refused) {
            text = refused.what();
        }
        const std::int64_t least = std::stoll(text.substr(text.find("at least ") + 9));
        REQUIRE(least <= free_choice);
        try {
            (void)otimes::make_plan(*program, m, {.workspace_limit_bytes = least - 1, .placement = where});
            FAIL("one byte less must be refused");
        } catch (const otimes::budget_error& refused) {
            CHECK(std::string(refused.what()).find("at least " + std::to_string(least) + " bytes") !=
                  std::string::npos);
        }
        for (std::int64_t limit = least; limit < free_choice; limit += 1 + (free_choice - least) / 50) {
            REQUIRE(
                otimes::make_plan(*program, m, {.workspace_limit_bytes = limit, .placement = where}).workspace_bytes <=
                limit);
        }
    }
}

// Random chains on every placement of a machine with GPUs. The least that an error names is a limit that works; one byte less is refused
// and names the same; so it is for all limits between. Programs whose least once depended on the limit come first.
TEST_CASE("the least of random programs works and is the least, on the CPU, a GPU, all GPUs and where cost decides") {
    using otimes::placement;
    const auto check = [](const otimes::program& p, const otimes::machine& m, placement where,
                          support::random_stream& random) {
        const auto made = [&](std::int64_t limit) {
            return otimes::make_plan(p, m, {.workspace_limit_bytes = limit, .placement = where}).workspace_bytes;
        };
        const std::int64_t least = least_workspace(p, m, where);
        REQUIRE(made(least) <= least);
        try {
            (void)made(least - 1);
            REQUIRE(least == 0);
        } catch (const otimes::budget_error& refused) {
            REQUIRE(refused.least_bytes() == (std::max)(least, std::int64_t{0}));
        }
        const std::int64_t most = (std::max)(least, made((std::numeric_limits<std::int64_t>::max)()));
        for (int i = 0; i < 3; ++i) {
            const std::int64_t limit = random.integer(least, most);
            REQUIRE(made(limit) <= limit);
        }
    };
    support::random_stream random(7);
    const auto four = [](std::int32_t capability) {
        return otimes::gpu_machine(otimes::gpu_of_capability(capability), 4);
    };
    // X 65 x 4 x 55 x 62 x 4: the kernels that were chosen with room took more than the slabs left
    check(rows_program(65, {factor(4, 4), factor(62, 1), factor(4, 7)}, dtype::c64), four(80), placement::gpu, random);
    for (int i = 0; i < (support::long_tests() ? 200 : 20); ++i) {
        chain_spec spec = random_chain(random);
        spec.add = random.integer(0, 3) == 0;
        const placement places[] = {placement::automatic, placement::cpu, placement::gpu, placement::gpus};
        const std::int32_t capabilities[] = {75, 80, 90, 120};
        check(chain_program(spec), four(capabilities[random.integer(0, 3)]), places[i % 4], random);
    }
}

// One or several GPUs whose memory may be less than one index of the operands: then no limit works there, the refusal says so, and it has no
// part in what is named where cost decides.
TEST_CASE("the least works and is the least also where the memory of GPUs is small") {
    using otimes::placement;
    constexpr std::int64_t unlimited = (std::numeric_limits<std::int64_t>::max)();
    const auto least_with = [](const otimes::program& p, const otimes::machine& m, placement where,
                               std::int64_t limit) {
        try {
            (void)otimes::make_plan(p, m, {.workspace_limit_bytes = limit, .placement = where});
        } catch (const otimes::budget_error& refused) {
            const bool by_memory = std::string(refused.what()).find("of its memory") != std::string::npos;
            CHECK(by_memory == (refused.least_bytes() == 0));
            return refused.least_bytes();
        }
        return std::int64_t{-1};  // kept
    };
    int impossible = 0;
    const auto check = [&](const otimes::program& p, const otimes::machine& m, placement where) {
        const std::int64_t least = least_with(p, m, where, 0);
        if (least == 0) {
            ++impossible;
            REQUIRE((where == placement::gpu || where == placement::gpus));
            REQUIRE(least_with(p, m, where, unlimited) == 0);
            return;
        }
        REQUIRE(least > 0);
        REQUIRE(least_with(p, m, where, least) == -1);
        REQUIRE(least_with(p, m, where, least - 1) == least);
        REQUIRE(least_with(p, m, where, unlimited) == -1);
    };
    const placement places[] = {placement::automatic, placement::gpu, placement::gpus};
    // X 1 x 400 x 400 x 4: a row takes 5 MB
    const otimes::program row = rows_program(1, {factor(400, 400), factor(400, 400), factor(4, 4)}, dtype::f64);
    otimes::gpu_description small = otimes::gpu_of_capability(80);
    small.memory_bytes = 600'000;
    check(row, otimes::gpu_machine(small), placement::automatic);
    CHECK(impossible == 0);
    check(row, otimes::gpu_machine(small), placement::gpu);
    CHECK(impossible == 1);
    try {
        (void)otimes::make_plan(row, otimes::gpu_machine(small), {.placement = placement::gpu});
    } catch (const otimes::budget_error& refused) {
        CHECK(std::string(refused.what()) ==
              "otimes: operands in host memory pass through the GPU in slabs, which take at least 2624384 bytes there, "
              "more than the 540000 of its memory that they may take, whatever workspace_limit_bytes is. Use "
              "placement::cpu.");
    }
    // Four rows, each of which goes whole where two slabs of it do not.
    const otimes::program rows = rows_program(4, {factor(200, 200), factor(3, 3)}, dtype::f64);
    small.memory_bytes = 400'000;
    check(rows, otimes::gpu_machine(small, 4), placement::gpus);
    check(rows, otimes::gpu_machine(small, 4), placement::automatic);
    support::random_stream random(11);
    for (int i = 0; i < (support::long_tests() ? 300 : 40); ++i) {
        chain_spec spec = random_chain(random);
        small.memory_bytes = std::int64_t{1} << random.integer(9, 23);
        check(chain_program(spec), otimes::gpu_machine(small, static_cast<std::int32_t>(random.integer(1, 5))),
              places[i % 3]);
    }
    CHECK(impossible > 1);
}

// Requests whose plan cannot keep the limit are passed over by this bound.
TEST_CASE("no plan of a request takes less than what it is passed over for") {
    using otimes::planning::partition;
    support::random_stream random(5);
    const otimes::machine machines[] = {tiny_caches(3), two_wide_cores(),
                                        otimes::cpu_machine(otimes::cpu_avx512(), 64)};
    int close = 0;  // within a fifth
    for (int i = 0; i < (support::long_tests() ? 20000 : 2000); ++i) {
        chain_spec spec;
        const std::int64_t modes = random.integer(1, 6);
        for (std::int64_t k = 0; k < modes; ++k) {
            const auto extent = [&] { return random.integer(1, 5) < 4 ? random.integer(1, 9) : random.integer(9, 70); };
            const std::int64_t P = extent();
            const std::int64_t Q = random.integer(0, 1) == 0 ? P : extent();
            spec.modes.push_back(random.integer(0, 3) == 0 ? free_mode(P) : factor(P, Q));
        }
        const dtype types[] = {dtype::f32, dtype::f64, dtype::c64, dtype::c128};
        spec.type = types[random.integer(0, 3)];
        const otimes::program p = chain_program(spec);
        const otimes::cpu_description& cpu = machines[i % 3].cpu;
        const partition ways[] = {partition::by_cost, partition::one_group_each, partition::one_pass,
                                  partition::two_passes};
        otimes::planning::cpu_request request{
            static_cast<std::int32_t>(random.integer(1, cpu.threads)), random.integer(0, 1) == 0, random.integer(-1, 9),
            random.integer(0, 1) == 0 ? 1 : std::int64_t{1} << 40, ways[random.integer(0, 3)]};
        const auto made = otimes::planning::try_request(p, cpu, request);
        if (made.chains.size() != 1 || made.chains.front().step_count == 0) {
            continue;
        }
        const double least =
            otimes::planning::least_workspace_of(p, made.chains.front(), made.decision.groups, cpu, request);
        REQUIRE(least <= static_cast<double>(made.made.workspace_bytes));
        close += least >= 0.8 * static_cast<double>(made.made.workspace_bytes) ? 1 : 0;
    }
    CHECK(close > 100);
}

// The work is counted by its allocations, some tens for each plan.
TEST_CASE("a limit that binds does not make a plan of every request") {
    const auto allocations_of = [](const otimes::program& p, const otimes::machine& m, std::int64_t limit) {
        const support::allocation_counter counted;
        try {
            (void)otimes::make_plan(p, m, {.workspace_limit_bytes = limit});
        } catch (const otimes::budget_error&) {
        }
        return counted.seen().count;
    };
    const otimes::program odd = rows_program(
        5000, {factor(29, 31), factor(7, 5), factor(12, 20), factor(9, 11), factor(3, 4)}, dtype::f32, true);
    const otimes::machine four = otimes::gpu_machine(otimes::h200(), 4);
    std::vector<mode_spec> twos;
    for (const std::int64_t between : {1, 1, 1, 1, 7, 5, 4}) {
        twos.push_back(factor(2, 2));
        twos.push_back(free_mode(between));
    }
    const otimes::program many_rows = rows_program(1'000'000'000, twos, dtype::f64, true);
    otimes::gpu_description small = otimes::gpu_of_capability(89);
    small.memory_bytes = 32768;
    if (support::allocations_are_counted()) {  // twice what they are; of every request 110'000 to 1'300'000
        CHECK(allocations_of(odd, four, 1'000'000) < 110'000);
        CHECK(allocations_of(odd, otimes::cpu_machine(otimes::cpu_avx512(), 64), 100'000) < 11'000);
        CHECK(allocations_of(many_rows, otimes::cpu_machine(otimes::cpu_avx512(), 134), 3072) < 40'000);
        CHECK(allocations_of(odd, otimes::gpu_machine(small, 2), std::int64_t{1} << 60) < 140'000);
    }
}

TEST_CASE("what lost under a limit is said to be beyond it only if it is") {
    chain_spec spec;
    spec.modes = {free_mode(2), factor(1, 1),     factor(2, 2), factor(6, 6),
                  free_mode(4), factor(256, 256), factor(2, 5), factor(2, 2)};
    spec.type = dtype::f64;
    spec.order_in = spec.order_out = {1, 2, 3, 4, 5, 6, 7, 0};  // by columns
    const otimes::program p = chain_program(spec);
    const otimes::cpu_description cpu = otimes::cpu_machine(otimes::cpu_avx2(), 8).cpu;
    const std::int64_t limit = 3'594'229;
    const otimes::plan made = otimes::make_plan(p, otimes::cpu_machine(otimes::cpu_avx2(), 8),
                                                {.workspace_limit_bytes = limit, .deterministic = true});
    const auto reason_of = [&made](const std::string& what) {
        for (const otimes::rejected_candidate& lost : made.rejected) {
            if (lost.what == what) {
                return lost.reason;
            }
        }
        return std::string();
    };
    CHECK(reason_of("all factors kept apart") == "0.951x the time: deterministic: a limit does not change the groups");
    CHECK(otimes::planning::try_request(p, cpu, {.threads = 8, .multiply_out = false, .slab_extent = 0})
              .made.workspace_bytes < limit);
    CHECK(reason_of("no fusion: 3 passes") == "0.887x the time: beyond the workspace limit");
    CHECK(otimes::planning::try_request(
              p, cpu, {.threads = 8, .slab_extent = 0, .partition = otimes::planning::partition::one_group_each})
              .made.workspace_bytes > limit);
}

TEST_CASE("a tuned choice that takes less than the planner's own set lowers the least") {
    const otimes::program p = rows_power(64, 8, 3, dtype::f64);
    otimes::machine m = tiny_caches();
    const std::int64_t usual = least_workspace(p, m, otimes::placement::cpu);
    otimes::planning::cpu_request small{1, false, 1, 1, otimes::planning::partition::one_group_each};
    small.slab_extent = 3;
    m.tuning.push_back({otimes::hash_value(p), otimes::planning::choice_text(small), 1e-3});
    const std::int64_t tuned = otimes::make_plan(p, m).workspace_bytes;
    CHECK(least_workspace(p, m, otimes::placement::cpu) == std::min(usual, tuned));
}

TEST_CASE("the workspace is laid out without overlap in lines of 64 bytes") {
    for (const std::int32_t threads : {1, 2, 5}) {
        otimes::machine m = tiny_caches(threads);
        const otimes::plan p = otimes::make_plan(rows_program(50, {factor(7, 5), factor(3, 4), factor(5, 6)}), m);
        const otimes::workspace_layout layout = otimes::layout_of(p);
        std::int64_t end = 0;
        std::size_t i = 0;
        for (const otimes::pass& one : p.passes) {
            for (const otimes::sweep& s : one.sweeps) {
                REQUIRE(layout.factors[i] == end);
                end = (layout.factors[i] + otimes::packed_factor_elements(s, p.vector_count) * 4 + 63) / 64 * 64;
                ++i;
            }
        }
        REQUIRE(layout.buffers.size() == p.buffer_elements.size());
        for (std::int64_t worker = 0; worker < layout.worker_count; ++worker) {
            for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
                REQUIRE(layout.buffers[b] + worker * layout.worker_stride == end);
                end += (p.buffer_elements[b] * 4 + 63) / 64 * 64;
            }
        }
        REQUIRE(layout.tiles == end);
        CHECK(layout.total == end + p.threads * 2 * layout.tile_bytes);
        CHECK(p.workspace_bytes == layout.total);
    }
}

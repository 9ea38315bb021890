// SPDX-License-Identifier: MIT
// The kernels that plans ask for compile, without a GPU: all of the case table for 9.0, a sample for the other architectures; within
// the registers that their launch bounds promise, and with the shared memory that the planner reckons with.
#include "../../backend/core/fused_group.hpp"
#include "../../backend/cuda/core_set.hpp"
#include "../../backend/cuda/runtime_compiler.hpp"
#include "../../bench/gpu/cases.hpp"
#include "plan/programs.hpp"
#include "support/long_tests.hpp"

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_pieces.hpp>
#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/plan/shared_terms.hpp>
#include <otimes/program/errors.hpp>

#include <doctest/doctest.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace otimes::backend;
using otimes::dtype;
using otimes::gpu_description;
using otimes::program;
using otimes::bench::kron_case;

/// Passes without a tile: by the generic kernel, and by blocks of a long factor.
struct passes_without_tiles {
    int generic = 0;
    int blocked = 0;
};

// The groups that the plan of a case launches; `others` counts its other passes.
std::vector<gpu_group> groups_of(const kron_case& c, dtype type, const gpu_description& gpu,
                                 passes_without_tiles& others) {
    std::vector<planner_test::mode_spec> factors;
    for (std::size_t i = 0; i < c.p.size(); ++i) {
        factors.push_back(planner_test::factor(c.p[i], c.q[i]));
    }
    program p = planner_test::rows_program(type == dtype::f32 ? c.rows_f32 : c.rows_f64, factors, type);
    for (otimes::tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    std::vector<gpu_group> groups;
    for (const otimes::pass& one : otimes::make_plan(p, otimes::gpu_machine(gpu)).passes) {
        if (one.kernel == otimes::pass_kernel::gpu_blocked) {
            ++others.blocked;
        } else if (one.tile.trips.empty()) {
            ++others.generic;
        } else {
            groups.push_back(group_of(one, type));
        }
    }
    return groups;
}

// A kernel whose text does not compile unless its shared memory is what the planner says.
kernel_request checked_request(const gpu_group& g, std::int64_t shared_bytes) {
    kernel_request r = request_of(g);
    const std::string kernel_says = r.value;
    r.value += " / int(" + kernel_says + " == " + std::to_string(shared_bytes) + ")";
    return r;
}

struct job {
    kernel_request request;
    target_architecture architecture;
    gpu_group group;
    kernel_image image{};
    std::string report{};
    std::string failure{};
    double seconds = 0;  // of a core
};

// What this thread has computed so far, whatever else the machine does.
double seconds_of_thread() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void compile_all(std::vector<job>& jobs) {
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < jobs.size(); at = next++) {
                job& j = jobs[at];
                const double start = seconds_of_thread();
                try {
                    j.image = runtime_compiler::instance().compile(j.request, j.architecture, &j.report);
                } catch (const otimes::error& e) {
                    j.failure = e.what();
                }
                j.seconds = seconds_of_thread() - start;
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
}

// The number in front of `words` in the assembler's report; -1 where it says nothing of that.
int number_before(const std::string& report, const std::string& words) {
    const std::size_t at = report.find(words);
    if (at == std::string::npos || at == 0) {
        return -1;
    }
    std::size_t first = at;
    while (first > 0 && report[first - 1] >= '0' && report[first - 1] <= '9') {
        --first;
    }
    return first == at ? -1 : std::atoi(report.c_str() + first);
}

// Checks code, registers and spills; returns how many bytes are spilled.
int check_compiled(const job& j) {
    CAPTURE(j.request.expression);
    CAPTURE(j.architecture.option());
    CHECK(j.failure == "");
    if (!j.failure.empty()) {
        return 0;
    }
    CHECK(j.image.code.size() > 1000);
    CHECK(j.image.function.find(j.request.file.substr(0, j.request.file.find('.'))) != std::string::npos);
    if (j.architecture.ptx) {
        return 0;  // assembled by the driver
    }
    const int registers = number_before(j.report, " registers");
    const int spilled = number_before(j.report, " bytes spill stores");
    REQUIRE(registers > 0);
    REQUIRE(spilled >= 0);
    if (!j.group.p.empty()) {  // registers are given to a warp in units of 8 a thread
        const int blocks_fit = 65536 / ((registers + 7) / 8 * 8 * j.group.tile.threads);
        CHECK(blocks_fit >= j.group.tile.blocks);
    }
    // A few words at the edges of a loop; an array that left the registers is kilobytes.
    // Pieces of a row are alone on their multiprocessor, with twice the products of a thread: measured to be faster than smaller shares.
    const int most = j.group.tile.pieces > 1 ? 768 : 160;
    CHECK(spilled <= most);
    return spilled;
}

// All take minutes: the default run compiles every n-th of them.
void thin(std::vector<job>& jobs, std::size_t n) {
    std::size_t at = 0;
    std::erase_if(jobs, [&at, n](const job&) { return at++ % n != 0 && !support::long_tests(); });
}

}  // namespace

TEST_CASE("every kernel of the case table compiles for 9.0") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        MESSAGE("skipped: " << compiler.reason());
        return;
    }
    const target_architecture hopper = compiler.architecture_for(90);
    std::map<std::string, job> distinct;
    passes_without_tiles others;
    for (const kron_case& c : otimes::bench::kron_cases()) {
        for (const dtype type : {dtype::f32, dtype::f64}) {
            for (const gpu_group& g : groups_of(c, type, otimes::h200(), others)) {
                distinct.try_emplace(request_of(g).expression,
                                     job{checked_request(g, otimes::planning::shared_bytes_of(g)), hopper, g});
            }
        }
    }
    CHECK(others.generic == 4);  // kron of 1 x 1 factors
    CHECK(others.blocked == 6);  // 128 floats between other modes; these are compiled below
    CHECK(distinct.size() > 110);
    std::vector<job> jobs;
    for (auto& [name, one] : distinct) {
        jobs.push_back(std::move(one));
    }
    thin(jobs, 2);
    compile_all(jobs);
    std::size_t spilling = 0;
    int warpgroup = 0;
    for (const job& j : jobs) {
        spilling += check_compiled(j) > 0 ? 1 : 0;
        if (std::ranges::any_of(j.group.tile.trips, &otimes::gpu_trip::warpgroup)) {
            ++warpgroup;
            CHECK(j.report.find("'sm_90a'") != std::string::npos);
        }
    }
    CHECK(warpgroup >= (support::long_tests() ? 8 : 4));
    CHECK(spilling * 8 <= jobs.size());
    // A new shape waits for its slowest kernel: 1.65 s of a core (8^5 in float), the next one 1.2 (docs/gpu.md).
    const auto slowest = std::ranges::max_element(jobs, {}, &job::seconds);
    CHECK(slowest->seconds < 3);
    MESSAGE(jobs.size() << " kernels, " << warpgroup << " of them with the warpgroup's unit; " << spilling
                        << " spill a few words; the slowest takes " << slowest->seconds
                        << " s of a core to compile: " << slowest->request.expression);
}

TEST_CASE("the kernels of sums: terms of one X, mode products, a matrix that is added") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    const gpu_description gpu = otimes::h200();
    std::vector<gpu_group> groups;
    std::vector<gpu_group> ending;  // in a sum or in a scaling
    for (const auto& [type, n] : {std::pair{dtype::f32, 8}, std::pair{dtype::f64, 16}}) {
        const std::vector<std::int64_t> p(3, n);
        groups.push_back(*otimes::planning::sum_group(type, p, 100000, 1, true, gpu));
        otimes::planning::group_request r;
        r.type = type;
        r.p = r.q = p;
        r.order = {3, 2, 1};
        r.groups = 100000;
        groups.push_back(otimes::planning::choose_group(r, gpu)->group);
        ending.push_back(groups.back());
        groups.back().terms = 3;
        groups.push_back(otimes::planning::terms_group(groups.back(), gpu));
        CHECK(groups.back().kept);
    }
    groups[0].addend = groups[4].addend = groups[5].addend = true;
    for (const auto& [type, tile] :
         {std::pair{dtype::f32, "r2 t256 b1 g1 s0 : 2w 1w"}, std::pair{dtype::f64, "r1 t256 b1 g1 s0 : 2m/4 1m/4"}}) {
        gpu_group g;
        g.type = type;
        g.p = g.q = {64, 64};
        g.tile = *otimes::planning::read_tile(tile);
        g.terms = 2;
        groups.push_back(otimes::planning::terms_group(g, gpu));
        CHECK(groups.back().kept);
        g.terms = 3;  // the factors of all terms do not fit
        CHECK(otimes::planning::terms_group(g, gpu) == g);
    }
    // By the matrix unit: a plane; three modes over the blocks of a cluster.
    for (const auto& [type, p] : {std::pair{dtype::f32, std::vector<std::int64_t>{64, 64}},
                                  std::pair{dtype::f64, std::vector<std::int64_t>{64, 64}},
                                  std::pair{dtype::f32, std::vector<std::int64_t>{32, 32, 32}},
                                  std::pair{dtype::f64, std::vector<std::int64_t>{32, 32, 32}},
                                  std::pair{dtype::f64, std::vector<std::int64_t>{8, 9, 24}}}) {
        groups.push_back(*otimes::planning::sum_group(type, p, 100000, 1, true, gpu));
        CHECK(groups.back().tile.trips.front().matrix);
        CHECK((groups.back().tile.cluster > 1) == (p.back() == 32));
        CHECK((groups.back().tile.slots > 0) == (p.back() == 64 && type == dtype::f64));
        CHECK(!otimes::planning::sum_group(type, p, 100000, 1, false, gpu) == (p.back() != 24));
    }
    CHECK(!otimes::planning::sum_group(dtype::f32, {4, 33}, 100, 1, true, gpu));
    // Terms that share factors: all modes by multiply-adds; two sums of one reading of X, and the pass that reads both.
    const auto shared = [&](dtype type, const std::vector<std::int64_t>& p, const otimes::planning::sum_of_terms& sum) {
        const otimes::planning::moves_of_sum moves(sum);
        groups.push_back(*otimes::planning::shared_terms_group(type, p, moves.moves(), 100000, 1, true, gpu));
    };
    shared(dtype::f32, {8, 8, 8}, {{{0, 1, 2}, {3, 4, 2}, {3, 1, 5}}, {0, 0, 0}});
    groups.back().addend = true;
    for (const dtype type : {dtype::f32, dtype::f64}) {
        for (const std::int64_t n : {16, 32, 64}) {
            shared(type, {n, n}, {{{0, 1}, {2, 1}, {0, 3}}, {0, 1, 1}});
            CHECK((groups.back().outputs() == 2 && groups.back().tiles() == 2));
            otimes::planning::group_request r;
            r.outer = true;
            r.type = type;
            r.p = r.q = {n};
            r.order = {1};
            r.groups = 1000;
            r.inner = n * n;
            groups.push_back(*otimes::planning::two_inputs_group(r, gpu));
        }
    }
    gpu_group large;  // the factors of one term at a time
    large.type = dtype::f64;
    large.p = large.q = {32, 32};
    large.tile = *otimes::planning::read_tile("r1 t128 b1 g1 s0 : 2f 1f");
    large.terms = 2;
    groups.push_back(large);
    for (int i = 1; i < 5; ++i) {
        groups.push_back(ending[static_cast<std::size_t>(i % 2)]);
        groups.back().ending = static_cast<otimes::planning::gpu_ending>(i);
        gpu_group added = groups.back();
        added.addend = true;
        CHECK(otimes::planning::why_illegal(added, gpu) != "");
    }
    // Dot products of rows that no block holds: pieces in the blocks of a cluster, by both matrix units and by multiply-adds.
    struct row_shape {
        dtype type;
        std::vector<std::int64_t> p;
        std::vector<std::int64_t> q;
    };
    for (const row_shape& shape :
         {row_shape{dtype::f32, {64, 64, 64}, {64, 64, 64}}, row_shape{dtype::f64, {64, 64, 64}, {64, 64, 64}},
          row_shape{dtype::f32, {128, 128, 128}, {128, 128, 128}},
          row_shape{dtype::f64, {128, 128, 128}, {128, 128, 128}}, row_shape{dtype::f64, {97, 91, 93}, {101, 89, 95}},
          row_shape{dtype::c64, {72, 48, 52}, {75, 48, 52}}}) {
        otimes::planning::group_request r;
        r.type = shape.type;
        r.p = shape.p;
        r.q = shape.q;
        r.order = {3, 2, 1};
        groups.push_back(otimes::planning::group_in_pieces(r, true, gpu).value());
        groups.back().ending = groups.back().tile.pieces > 1 ? otimes::planning::gpu_ending::dot_of_pieces
                                                             : otimes::planning::gpu_ending::dot;
        const std::optional<gpu_group> whole = otimes::planning::group_in_pieces(r, false, gpu);
        CHECK(whole.has_value() == (shape.p[0] == 64));
        if (whole) {  // over a cluster of sixteen
            for (const auto of_whole :
                 {otimes::planning::gpu_ending::squared_norm, otimes::planning::gpu_ending::squared_distance}) {
                groups.push_back(*whole);
                groups.back().ending = of_whole;
            }
        }
    }
    std::vector<job> jobs;
    std::size_t next = 0;
    for (const gpu_group& g : groups) {
        REQUIRE(otimes::planning::why_illegal(g, gpu) == "");
        if (next++ % 4 == 0 || support::long_tests()) {  // all of them take a minute: the default run has every fourth
            jobs.push_back(
                {checked_request(g, otimes::planning::shared_bytes_of(g)), compiler.architecture_for(90), g});
        }
    }
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
}

TEST_CASE("groups whose tiles go to several matrices compile, with the shared memory that the planner says") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    const gpu_description gpu = otimes::h200();
    std::vector<job> jobs;
    const auto add = [&](dtype type, const std::vector<std::int32_t>& extents, const char* tile) {
        gpu_group g;
        g.type = type;
        g.p = g.q = extents;
        g.tile = *otimes::planning::read_tile(tile);
        REQUIRE(otimes::planning::why_illegal(g, gpu) == "");
        const std::int64_t rows = g.tile.rows * g.count_q();
        const auto scattered = otimes::planning::scattered_group(g, rows, gpu);
        REQUIRE(scattered);
        CHECK(!otimes::planning::scattered_group(g, rows + g.count_q() / 2, gpu));  // a tile of two matrices
        jobs.push_back({checked_request(*scattered, otimes::planning::shared_bytes_of(*scattered)),
                        compiler.architecture_for(90), *scattered});
    };
    add(dtype::f32, {64, 64}, "r2 t256 b1 g1 s1 : 2w 1w");
    CHECK((jobs.back().group.tile.rows == 1 &&
           jobs.back().group.tile.threads == 128));  // half a tile, the next one on its way
    CHECK((jobs.back().group.tile.blocks == 2 && jobs.back().group.tile.slots == 1));
    gpu_group telling = jobs.back().group;
    CHECK(otimes::planning::may_tell(telling));
    telling.telling = true;
    add(dtype::f32, {64, 64}, "r2 t256 b1 g1 s1 : 2m 1m");
    CHECK(!otimes::planning::may_tell(jobs.back().group));
    CHECK(
        (jobs.back().group.tile.rows == 2 && jobs.back().group.tile.blocks == 2 && jobs.back().group.tile.slots == 0));
    add(dtype::f32, {128}, "r64 t256 b1 g1 s2 : 1w/2");
    CHECK(jobs.back().group.tile.slots == 1);  // there is no room for two beside the tile
    add(dtype::f64, {32, 32}, "r1 t128 b1 g1 s0 : 2f 1f");
    add(dtype::c64, {5, 3}, "r4 t64 b4 g1 s0 : 2f 1f");
    gpu_group outer = jobs.back().group;
    outer.outer = true;
    CHECK(otimes::planning::why_illegal(outer, gpu) != "");
    // Told in portions: no more than 128 registers a thread, of which those that compute get what the others leave.
    const std::size_t told = jobs.size();
    jobs.push_back(
        {checked_request(telling, otimes::planning::shared_bytes_of(telling)), compiler.architecture_for(90), telling});
    // And what begins with what has arrived.
    for (const auto& [type, extent, tile] : {std::tuple(dtype::f32, 64, "run128 t256 b2 g1 s0 : 1w"),
                                             {dtype::f32, 12, "run64 t128 b4 g1 s0 : 1f"},
                                             {dtype::f64, 5, "run32 t128 b4 g1 s0 : 1f"}}) {
        gpu_group arriving;
        arriving.outer = true;
        arriving.type = type;
        arriving.p = arriving.q = {extent};
        arriving.tile = *otimes::planning::read_tile(tile);
        CHECK(otimes::planning::may_arrive(arriving));
        arriving.arriving = true;
        jobs.push_back({checked_request(arriving, otimes::planning::shared_bytes_of(arriving)),
                        compiler.architecture_for(90), arriving});
    }
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
    CHECK(check_compiled(jobs[told]) == 0);
}

TEST_CASE("the kernels of 16-bit elements compile for 9.0, the measured ones and what formulas choose") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    const gpu_description gpu = otimes::h200();
    std::vector<job> jobs;
    passes_without_tiles others;
    for (const auto& [type, p] :
         {std::pair{dtype::f16, std::vector<int>{8, 8, 8, 8, 8}}, std::pair{dtype::bf16, std::vector<int>{32, 32, 32}},
          std::pair{dtype::f16, std::vector<int>{64, 64}}, std::pair{dtype::bf16, std::vector<int>{16, 16, 16, 16}},
          std::pair{dtype::f16, std::vector<int>{10, 10, 10}}, std::pair{dtype::bf16, std::vector<int>{5, 16, 3}}}) {
        for (const gpu_group& g : groups_of({"", 4096, 4096, p, p}, type, gpu, others)) {
            jobs.push_back(
                {checked_request(g, otimes::planning::shared_bytes_of(g)), compiler.architecture_for(90), g});
        }
    }
    gpu_group floats;  // by single products
    floats.single = true;
    floats.p = floats.q = {64, 64};
    floats.tile = *otimes::planning::read_tile("r2 t256 b2 g1 s0 : 2w 1w");
    jobs.push_back(
        {checked_request(floats, otimes::planning::shared_bytes_of(floats)), compiler.architecture_for(90), floats});
    CHECK(others.generic + others.blocked == 0);
    CHECK(jobs.size() == 8);
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
}

TEST_CASE("kernels by blocks compile: what each architecture has, with the shared memory that the planner allows for") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    std::vector<job> jobs;
    for (const int capability : {75, 80, 90, 100}) {
        const gpu_description gpu = otimes::gpu_of_capability(capability);
        for (const auto& [type, types] :
             {std::pair{dtype::f32, "float, float"}, std::pair{dtype::f64, "double, double"},
              std::pair{dtype::c64, "otimes::kernels::complex<float>, otimes::kernels::complex<float>"},
              std::pair{dtype::c128, "otimes::kernels::complex<double>, otimes::kernels::complex<double>"},
              std::pair{dtype::f16, "otimes::kernels::half, float"}}) {
            if (capability != 90 && type != dtype::f32 && (type != dtype::c64 || !support::long_tests())) {
                continue;
            }
            otimes::planning::blocked_request wanted;
            wanted.type = type;
            wanted.p = wanted.q = 300;
            wanted.fibres = 100000;
            if (const auto kernel = blocked_kernel_for(wanted, gpu)) {
                const bool along = jobs.size() % 2 == 0;
                for (const gpu_ending ending :
                     {gpu_ending::stored, gpu_ending::dot, gpu_ending::squared_norm, gpu_ending::squared_distance}) {
                    if (ending != gpu_ending::stored &&
                        (capability != 90 || type == dtype::f16 || (type == dtype::c64 && !support::long_tests()))) {
                        continue;
                    }
                    kernel_request r = blocked_request(*kernel, types, along, jobs.size() / 2 % 2 == 0, ending);
                    r.value += " / int(" + r.value + " <= " + std::to_string(kernel->shared_bytes()) + ")";
                    jobs.push_back({r, compiler.architecture_for(capability), {}});
                }
            }
        }
    }
    CHECK(jobs.size() >= 8);
    // Doubles ahead, of each width, all layouts.
    for (const auto& [q, fibres, warps] :
         {std::tuple{1000, 30000, 2}, std::tuple{96, 30000, 3}, std::tuple{30, 30000, 1}}) {
        otimes::planning::blocked_request wanted;
        wanted.p = 1000;
        wanted.q = q;
        wanted.fibres = fibres;
        const auto kernel = blocked_kernel_for(wanted, otimes::h200());
        REQUIRE(kernel);
        CHECK(kernel->warps_of_q == warps);
        for (const bool x_along : {true, false}) {
            for (const bool f_along : {true, false}) {
                kernel_request r = blocked_request(*kernel, "double, double", x_along, f_along);
                CHECK(r.file == "blocked_multiply.cuh");
                r.value += " / int(" + r.value + " <= " + std::to_string(kernel->shared_bytes()) + ")";
                jobs.push_back({r, compiler.architecture_for(90), {}});
            }
        }
    }
    // Factors that stay on chip, along p and between other modes; 128 with all registers that a thread can have. Doubles on a newer device, too.
    for (const auto& [p, q] : {std::pair{100, 100}, std::pair{128, 128}, std::pair{40, 65}}) {
        for (const auto& [type, types, capability] :
             {std::tuple{dtype::f32, "float, float", 90}, std::tuple{dtype::f64, "double, double", 90},
              std::tuple{dtype::f64, "double, double", 100}}) {
            for (const bool along : {true, false}) {
                otimes::planning::blocked_request wanted;
                wanted.type = type;
                wanted.p = p;
                wanted.q = q;
                wanted.fibres = 1 << 20;
                const auto kernel = blocked_kernel_for(wanted, otimes::gpu_of_capability(capability));
                REQUIRE(kernel);
                CHECK(kernel->staying_steps == (p + 7) / 8);
                for (const gpu_ending ending :
                     {gpu_ending::stored, gpu_ending::dot, gpu_ending::squared_norm, gpu_ending::squared_distance}) {
                    if (ending != gpu_ending::stored && (capability != 90 || (p != 100 && !support::long_tests()))) {
                        continue;
                    }
                    kernel_request r = blocked_request(*kernel, types, along, false, ending);
                    CHECK(r.file == "staying_factor.cuh");
                    r.value += " / int(" + r.value + " <= " + std::to_string(kernel->shared_bytes()) + ")";
                    jobs.push_back({r, compiler.architecture_for(capability), {}});
                }
            }
        }
    }
    thin(jobs, 3);
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
}

TEST_CASE("outer groups that stage their results compile for 9.0") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    std::vector<job> jobs;
    for (const auto& [type, tile] :
         {std::pair{dtype::f32, "run32 t128 b4 g1 s0 : 2f 1f"}, std::pair{dtype::f64, "run16 t128 b4 g1 s0 : 2m 1m"},
          std::pair{dtype::f32, "run32 t128 b4 g1 s0 : 1+2f"}}) {
        gpu_group g;
        g.type = type;
        g.outer = g.unaligned = true;
        g.p = g.q = tile[21] == '1' ? std::vector<std::int32_t>{4, 4} : std::vector<std::int32_t>{8, 8};
        g.tile = *otimes::planning::read_tile(tile);
        jobs.push_back({checked_request(g, otimes::planning::shared_bytes_of(g)), compiler.architecture_for(90), g});
    }
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
}

TEST_CASE("samples compile for the other architectures, from Turing to the newest") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    std::vector<job> jobs;
    passes_without_tiles others;
    for (const int capability : {75, 80, 100, 120}) {
        const target_architecture architecture = compiler.architecture_for(capability);
        const gpu_description gpu = otimes::gpu_of_capability(capability);
        for (const kron_case& c : otimes::bench::kron_cases()) {
            const dtype type = c.id == "fig9_16^5" ? dtype::f32 : c.id == "fig9_8^6" ? dtype::f64 : dtype::c64;
            if (type == dtype::c64 && c.id != "tab4_06" && (c.id != "jhurani3_7" || capability > 80)) {
                continue;
            }
            for (const gpu_group& g : groups_of(c, type, gpu, others)) {
                jobs.push_back({checked_request(g, otimes::planning::shared_bytes_of(g)), architecture, g});
            }
        }
        for (const char* const tile :
             {"r1 t128 b4 g1 s1 : 3m 2m 1m", "r1 t128 b4 g1 s1 : 1m 2+2m", "r1 t128 b4 g1 s1 : 2+2f 1f"}) {
            gpu_group g;
            g.type = capability == 80 ? dtype::bf16 : dtype::f16;
            g.p = g.q = tile[17] == '3' ? std::vector<std::int32_t>{24, 8, 16} : std::vector<std::int32_t>{8, 8, 8};
            g.tile = *otimes::planning::read_tile(tile);
            if (otimes::planning::why_illegal(g, gpu).empty()) {
                jobs.push_back({checked_request(g, otimes::planning::shared_bytes_of(g)), architecture, g});
            }
        }
        jobs.push_back({generic_request("otimes::kernels::half, float"), architecture, {}});
        jobs.push_back({copy_request("otimes::kernels::half, float"), architecture, {}});
    }
    compile_all(jobs);
    for (const job& j : jobs) {
        check_compiled(j);
    }
    CHECK(jobs.size() - 8 > static_cast<std::size_t>(others.generic));
    CHECK(jobs.size() >= 16);
}

TEST_CASE("kernels whose operands leave the second-level cache first: other code within the same registers") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    std::vector<job> jobs;
    const auto add = [&](kernel_request request, const target_architecture& architecture, const gpu_group& g) {
        for (const bool evict_first : {false, true}) {
            request.evict_first = evict_first;
            jobs.push_back({request, architecture, g});
        }
    };
    for (const target_architecture& architecture :
         {compiler.architecture_for(90), compiler.architecture_for(80), target_architecture{80, true}}) {
        const gpu_description gpu = otimes::gpu_of_capability(architecture.capability);
        passes_without_tiles others;
        for (const kron_case& c : otimes::bench::kron_cases()) {
            if (c.id == "fig9_8^5" || c.id == "fig9_64^3") {
                const std::vector<gpu_group> groups = groups_of(c, dtype::f32, gpu, others);
                add(checked_request(groups.front(), otimes::planning::shared_bytes_of(groups.front())), architecture,
                    groups.front());
            }
        }
        add(generic_request("float, float"), architecture, {});
    }
    REQUIRE(jobs.size() == 18);
    compile_all(jobs);
    for (std::size_t i = 0; i < jobs.size(); i += 2) {
        const job &usual = jobs[i], &other = jobs[i + 1];
        check_compiled(usual);
        check_compiled(other);
        CAPTURE(other.request.expression);
        CAPTURE(other.architecture.option());
        CHECK(otimes::backend::key_of(usual.request, usual.architecture) !=
              otimes::backend::key_of(other.request, other.architecture));
        if (!other.architecture.ptx) {
            CHECK(usual.image.code != other.image.code);
        } else if (!other.group.p.empty()) {
            // No asynchronous copies: of a policy they would have, this compiler leaves an illegal instruction.
            const auto has = [](const job& j, const char* text) {
                return j.image.code.find(text) != std::string::npos;
            };
            CHECK(has(usual, "cp.async.cg"));
            CHECK_FALSE(has(usual, "ld.global.cs"));
            CHECK_FALSE(has(other, "cp.async.ca"));
            CHECK_FALSE(has(other, "cp.async.cg"));
            CHECK_FALSE(has(other, "cache_hint"));
            CHECK(has(other, "ld.global.cs.v4"));
        }
    }
}

TEST_CASE("which code a device gets: exact, else what newer ones compile; the warpgroup's unit in that of 9.0 alone") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    CHECK(compiler.architecture_for(90).option() == "--gpu-architecture=sm_90a");
    CHECK(compiler.architecture_for(80).option() == "--gpu-architecture=sm_80");
    // Between two known ones, and beyond all: code that the driver compiles on.
    CHECK(compiler.architecture_for(81).option() == "--gpu-architecture=compute_80");
    CHECK(compiler.architecture_for(91).option() == "--gpu-architecture=compute_90");
    CHECK(compiler.architecture_for(9999).ptx);
    CHECK(compiler.architecture_for(9999).capability >= 90);
    CHECK_THROWS_AS(static_cast<void>(compiler.architecture_for(10)), otimes::device_error);

    gpu_group g;
    g.type = dtype::f32;
    g.p = g.q = {64};
    g.tile = *otimes::planning::read_tile("r64 t128 b1 g1 s0 : 1w");
    REQUIRE(otimes::planning::why_illegal(g, otimes::h200()) == "");
    CHECK(otimes::planning::why_illegal(g, otimes::gpu_of_capability(100)) == "this GPU has no warpgroup unit");
    // Were it asked for nevertheless: an error of the compiler, not a kernel that stops when it runs.
    CHECK_THROWS_WITH_AS(static_cast<void>(compiler.compile(request_of(g), {90, true})),
                         doctest::Contains("warpgroup's unit"), otimes::device_error);
}

TEST_CASE("the core set has what plans without a compiler ask for, on every architecture") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    const std::vector<core_request> contents = core_set_contents(compiler);
    const auto serves = [&](const kernel_request& wanted, int capability) {
        for (const target_architecture& runs : code_that_runs_on(capability)) {
            for (const core_request& one : contents) {
                if (one.architecture.option() == runs.option() && one.request == wanted) {
                    return true;
                }
            }
        }
        return false;
    };
    for (const int capability : {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130}) {
        CAPTURE(capability);
        CHECK(serves(generic_request("otimes::kernels::bfloat16, float"), capability));
        CHECK(serves(generic_request("double, double"), capability));
        CHECK(serves(copy_request("otimes::kernels::half, float"), capability));
        CHECK(serves(exchange_request(), capability));
        CHECK(serves(scale_request("float, float"), capability));
        for (const kernel_request& r : dot_requests()) CHECK(serves(r, capability));
        const gpu_description gpu = otimes::gpu_of_capability(capability);
        std::size_t fused = 0;
        for (const gpu_group& g : otimes::planning::core_groups(capability)) {
            if (otimes::planning::why_illegal(g, gpu).empty()) {  // else planning::core_group does not choose it
                CHECK_MESSAGE(serves(request_of(g), capability), type_expression(g));
                ++fused;
            }
        }
        CHECK((capability == 75 || fused > 40));
    }
    // Code for 9.0 names its architecture exactly, so nothing else may be given it.
    for (const target_architecture& a : code_that_runs_on(91)) {
        CHECK(a.option() != "--gpu-architecture=sm_90a");
    }
    CHECK(code_that_runs_on(90)[0].option() == "--gpu-architecture=sm_90a");
    CHECK(code_that_runs_on(89)[3].option() == "--gpu-architecture=sm_86");
}

TEST_CASE(
    "what does not compile is a device_error with the log; shared memory that differs from the planner's is noticed") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        return;
    }
    const target_architecture hopper = compiler.architecture_for(90);
    CHECK_THROWS_WITH_AS(
        static_cast<void>(compiler.compile({"fused_trailing.cuh", "otimes::kernels::no_such_kernel<int>", ""}, hopper)),
        doctest::Contains("no_such_kernel"), otimes::device_error);
    gpu_group g;
    g.type = dtype::f32;
    g.p = g.q = {3};
    g.tile = *otimes::planning::read_tile("r4 t32 b1 g1 s0 : 1f");
    const std::int64_t bytes = otimes::planning::shared_bytes_of(g);
    CHECK_NOTHROW(static_cast<void>(compiler.compile(checked_request(g, bytes), hopper)));
    CHECK_THROWS_AS(static_cast<void>(compiler.compile(checked_request(g, bytes + 16), hopper)), otimes::device_error);
}

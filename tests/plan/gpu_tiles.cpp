// SPDX-License-Identifier: MIT
// Plans for a GPU: the passes and tiles of the literature's cases are those that were measured best (bench/gpu/plans.txt), every
// planned launch is one that the GPU can run, and forced, foreign and deterministic choices.
#include "../../bench/gpu/cases.hpp"
#include "plan/programs.hpp"

#include <otimes/plan/explain.hpp>
#include <otimes/plan/gpu_candidates.hpp>
#include <otimes/plan/gpu_pieces.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/scatter.hpp>
#include <otimes/plan/serialize.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace planner_test;
using otimes::gpu_description;
using otimes::pass_kernel;
using otimes::plan;
using otimes::planning::gpu_group;
using otimes::planning::group_of;

program on_device(program p) {
    for (otimes::tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    return p;
}

program program_of(const otimes::bench::kron_case& c, dtype type, bool column_major = false) {
    std::vector<mode_spec> factors;
    for (std::size_t i = 0; i < c.p.size(); ++i) {
        factors.push_back(factor(c.p[i], c.q[i]));
    }
    return on_device(rows_program(type == dtype::f32 ? c.rows_f32 : c.rows_f64, factors, type, column_major));
}

plan planned(const program& p, const gpu_description& gpu, const otimes::options& wishes = {}) {
    return otimes::make_plan(p, otimes::gpu_machine(gpu), wishes);
}

// "T m1-5 r1 ...", as the lines of plans.txt write a pass; modes count from 1. Of passes by blocks, which those lines do not know, what is expected: `want`.
std::string text_of(const plan& p, std::size_t modes, const std::string& want) {
    std::istringstream expected(want);
    std::string text;
    for (const otimes::pass& one : p.passes) {
        std::set<std::size_t> levels;  // chain mode of each sweep: the free row mode stands in front
        for (const otimes::sweep& s : one.sweeps) {
            std::int64_t below = 1;
            for (std::size_t k = static_cast<std::size_t>(s.mode) + 1; k < one.modes.size(); ++k) {
                below *= one.modes[k].extent_in;
            }
            std::size_t level = modes;
            for (std::int64_t now = 1; now < below; --level) {
                now *= s.p_extent;  // square cases only
            }
            levels.insert(level);
        }
        std::string tile;
        std::getline(expected, tile, '|');
        tile = " " + tile.substr(tile.find("m") + 1);
        tile = tile.substr(tile.find(' ', 1) + 1, tile.find_last_not_of(' ') - tile.find(' ', 1));
        // Factors of 128 floats stay on chip but for the last mode's, of which the tile is as fast.
        const bool stays = one.kernel == pass_kernel::gpu_blocked && one.sweeps.front().p_extent == 128;
        const bool outer = one.kernel == pass_kernel::gpu_outer || stays;
        text += std::string(text.empty() ? "" : " | ") + (outer ? "O m" : "T m") + std::to_string(*levels.begin()) +
                (levels.size() > 1 ? "-" + std::to_string(*levels.rbegin()) : "") + " " +
                (stays ? tile : otimes::planning::text_of_tile(one.tile, outer));
    }
    return text;
}

void check_legal(const plan& p, const gpu_description& gpu, dtype type) {
    for (const otimes::pass& one : p.passes) {
        if (one.tile.trips.empty()) {
            continue;
        }
        const gpu_group g = group_of(one, type);
        CHECK(otimes::planning::why_illegal(g, gpu) == "");
        CHECK(one.shared_bytes == otimes::planning::shared_bytes_of(g));
        CHECK(one.shared_bytes <= gpu.shared_bytes_per_block);
        CHECK(std::int64_t{32} * one.tile.threads * one.tile.blocks <= gpu.registers_per_multiprocessor);
        CHECK(one.tile.cluster <= gpu.cluster_blocks);
        std::int64_t line = 1;  // of elements below the group
        for (std::size_t k = one.modes.size(); k-- > 0;) {
            if (std::ranges::any_of(one.sweeps,
                                    [k](const otimes::sweep& s) { return s.mode == static_cast<int>(k); })) {
                break;
            }
            line *= one.modes[k].extent_in;
        }
        const bool whole_sectors = one.tile.run * otimes::element_bytes(type) >= 32;
        CHECK((!g.outer || whole_sectors || one.tile.run <= 8 || one.tile.run == line));
    }
}

// One outer mode of that extent over `inner` neighbours, in tensors that follow each other.
otimes::planning::group_request outer_mode(dtype type, std::int64_t extent, std::int64_t inner, std::int64_t tensors) {
    otimes::planning::group_request r;
    r.outer = true;
    r.type = type;
    r.p = r.q = {extent};
    r.order = {1};
    r.inner = inner;
    r.groups = r.parts_per_line = tensors;
    return r;
}

// Trips by the matrix unit, each of one mode in one block.
int single_modes_by_unit(const plan& made) {
    int matrix = 0;
    for (const otimes::pass& one : made.passes) {
        for (const otimes::gpu_trip& t : one.tile.trips) {
            CHECK((!t.matrix || (t.count == 1 && !t.warpgroup && one.tile.cluster == 1)));
            matrix += t.matrix ? 1 : 0;
        }
    }
    return matrix;
}

}  // namespace

TEST_CASE("the cases of the literature get the passes and tiles that were measured best") {
    const std::vector<otimes::bench::kron_case> cases = otimes::bench::kron_cases();
    std::ifstream lines(std::string(OTIMES_SOURCE_DIR) + "/bench/gpu/plans.txt");
    REQUIRE(lines.good());
    std::string line;
    int seen = 0;
    while (std::getline(lines, line)) {
        if (line.empty() || line[0] == '#') {
            continue;
        }
        std::istringstream words(line);
        std::string id;
        std::string type;
        std::string bar;
        std::string want;
        words >> id >> type >> bar >> std::ws;
        std::getline(words, want);
        for (const otimes::bench::kron_case& c : cases) {
            for (const dtype t : {dtype::f32, dtype::f64}) {
                if (c.id != id || (type != "*" && type != (t == dtype::f32 ? "f32" : "f64"))) {
                    continue;
                }
                const plan p = planned(program_of(c, t), otimes::h200());
                check_legal(p, otimes::h200(), t);
                if (c.p == c.q && std::set<int>(c.p.begin(), c.p.end()).size() == 1) {
                    CHECK_MESSAGE(text_of(p, c.p.size(), want) == want, id << " " << type);
                } else {  // one pass each: the tile says it
                    REQUIRE(p.passes.size() == 1);
                    CHECK_MESSAGE("T m1-" + std::to_string(c.p.size()) + " " +
                                          otimes::planning::text_of_tile(p.passes[0].tile, false) ==
                                      want,
                                  id << " " << type);
                }
                ++seen;
            }
        }
    }
    CHECK(seen > 130);
}

TEST_CASE("complex modes go by the matrix unit from 12 on (double 8), where their extents are multiples of 4") {
    const auto by_unit = [](dtype type, int p, int q, const gpu_description& gpu, const otimes::options& wishes = {}) {
        const plan made = planned(on_device(rows_program(5000, {factor(p, q), factor(q, p)}, type)), gpu, wishes);
        check_legal(made, gpu, type);
        const int matrix = single_modes_by_unit(made);
        for (const otimes::pass& one : made.passes) {
            for (const otimes::sweep& s : one.sweeps) {
                CHECK((s.kernel != otimes::sweep_kernel::mma_split || type == dtype::c64));
                CHECK((s.kernel != otimes::sweep_kernel::mma_f64 || type == dtype::c128));
            }
        }
        return matrix;
    };
    const gpu_description hopper = otimes::h200();
    for (const dtype type : {dtype::c64, dtype::c128}) {
        CHECK(by_unit(type, 16, 16, hopper) == 2);
        CHECK(by_unit(type, 12, 20, hopper) == 2);
        CHECK(by_unit(type, 64, 64, hopper) == 2);
        CHECK(by_unit(type, 14, 14, hopper) == 0);
        CHECK(by_unit(type, 2, 2, hopper) == 0);
        CHECK(by_unit(type, 16, 16, otimes::gpu_of_capability(75)) == 0);
        otimes::options repeatable;
        repeatable.deterministic = true;
        CHECK(by_unit(type, 16, 16, hopper, repeatable) == 0);
        otimes::options plain;
        plain.precision = otimes::precision::ieee;
        CHECK(by_unit(type, 16, 16, hopper, plain) == (type == dtype::c64 ? 0 : 2));
    }
    CHECK(by_unit(dtype::c64, 16, 16, otimes::gpu_of_capability(80)) == 2);
    CHECK(by_unit(dtype::c128, 16, 16, otimes::gpu_of_capability(80)) == 0);
}

TEST_CASE("modes that are no multiples of 8 go by the matrix unit where filling them up was measured to gain") {
    const auto by_unit = [](dtype type, std::int64_t rows, const std::vector<mode_spec>& factors, bool column_major,
                            const gpu_description& gpu, const otimes::options& wishes = {}) {
        const plan made = planned(on_device(rows_program(rows, factors, type, column_major)), gpu, wishes);
        check_legal(made, gpu, type);
        return single_modes_by_unit(made);
    };
    const gpu_description hopper = otimes::h200();
    const std::vector<mode_spec> odd = {factor(25, 25), factor(25, 25)};
    for (const bool columns : {false, true}) {
        CHECK(by_unit(dtype::f64, 4000, odd, columns, hopper) == 2);
        CHECK(by_unit(dtype::f64, 4000, {factor(26, 19), factor(14, 17)}, columns, hopper) == 2);
        CHECK(by_unit(dtype::f64, 9000, {factor(9, 9), factor(9, 9)}, columns, hopper) == 0);  // 3.2 times the products
        CHECK(by_unit(dtype::f64, 4000, {factor(17, 17), factor(6, 6)}, columns, hopper) <= 1);  // 6 stays as it was
        CHECK(by_unit(dtype::f32, 4000, {factor(36, 36), factor(36, 36)}, columns, hopper) == 2);
        CHECK(by_unit(dtype::f32, 4000, {factor(18, 18), factor(18, 18)}, columns, hopper) == 0);
        CHECK(by_unit(dtype::f32, 1500, {factor(50, 50), factor(50, 50)}, columns, hopper) == 2);
    }
    // Floats that come one by one: rows of 33, columns of 100001.
    CHECK(by_unit(dtype::f32, 4000, {factor(33, 33), factor(33, 33)}, false, hopper) == 0);
    CHECK(by_unit(dtype::f32, 100000, {factor(33, 33)}, true, hopper) == 1);
    CHECK(by_unit(dtype::f32, 100001, {factor(33, 33)}, true, hopper) == 0);
    CHECK(by_unit(dtype::f64, 100001, {factor(33, 33)}, true, hopper) == 1);
    // Few small tiles; no unit, or none that is allowed.
    CHECK(by_unit(dtype::f64, 4, {factor(25, 25), factor(18, 18)}, false, hopper) == 0);
    CHECK(by_unit(dtype::f64, 4000, odd, false, otimes::gpu_of_capability(80)) == 0);
    CHECK(by_unit(dtype::f32, 4000, {factor(36, 36), factor(36, 36)}, false, otimes::gpu_of_capability(75)) == 0);
    otimes::options repeatable;
    repeatable.deterministic = true;
    CHECK(by_unit(dtype::f64, 4000, odd, false, hopper, repeatable) == 0);
}

TEST_CASE("tiles of modes that are filled up: warps that have fibres to take, and whole steps for each") {
    const gpu_description hopper = otimes::h200();
    const auto group = [&](dtype type, bool outer, const std::vector<std::int64_t>& p,
                           const std::vector<std::int64_t>& q, std::int64_t groups, std::int64_t inner) {
        otimes::planning::group_request r;
        r.outer = outer;
        r.type = type;
        r.p = p;
        r.q = q;
        for (std::int32_t l = 1; l <= static_cast<std::int32_t>(p.size()); ++l) {
            r.order.push_back(l);
        }
        r.groups = groups;
        r.inner = inner;
        const auto chosen = otimes::planning::choose_group(r, hopper);
        REQUIRE(chosen);
        return chosen->group;
    };
    using otimes::planning::text_of_tile;
    CHECK(text_of_tile(group(dtype::f64, false, {25, 25}, {25, 25}, 6400, 1).tile, false) ==
          "r4 t128 b4 g1 s0 : 2m 1m");
    CHECK(text_of_tile(group(dtype::f64, true, {25}, {25}, 100, 1024).tile, true) == "run64 t128 b2 g1 s2 : 1m");
    CHECK(text_of_tile(group(dtype::f32, true, {36}, {36}, 100, 1024).tile, true) == "run128 t128 b2 g1 s2 : 1m");
    CHECK(group(dtype::f64, true, {25}, {25}, 100, 1023).tile.slots == 0);  // by way of shared memory
    // 45 x 45 in fragments of 48 x 48 for one warp; 9 steps of eight between two warps are five each.
    const gpu_group alone = group(dtype::f64, false, {45, 45}, {45, 45}, 2000, 1);
    CHECK(otimes::planning::group_memory::factor_elements(alone, 1) == 48 * 48);
    const gpu_group shared = group(dtype::f64, true, {65}, {65}, 100, 1024);
    REQUIRE(shared.tile.trips.front().split == 2);
    CHECK(otimes::planning::group_memory::factor_elements(shared, 1) == 72 * 80);
}

TEST_CASE(
    "16-bit elements: one stage as they stand in memory, modes by single TF32 products, in pairs where there are "
    "pairs") {
    const gpu_description hopper = otimes::h200();
    const auto made = [&](dtype type, std::int64_t rows, const std::vector<int>& p, const gpu_description& gpu,
                          const otimes::options& wishes = {}) {
        std::vector<mode_spec> factors;
        for (const int e : p) {
            factors.push_back(factor(e, e));
        }
        const plan result = planned(on_device(rows_program(rows, factors, type)), gpu, wishes);
        check_legal(result, gpu, type);
        for (const otimes::pass& one : result.passes) {
            CHECK((one.tile.slots >= 1 && one.tile.slots <= 2 && one.tile.segments == 1 && one.tile.cluster == 1 &&
                   one.tile.slices == 1));
            for (const otimes::sweep& s : one.sweeps) {
                CHECK((s.kernel == otimes::sweep_kernel::mma_tf32 || s.kernel == otimes::sweep_kernel::fibre));
            }
        }
        return result;
    };
    for (const dtype type : {dtype::f16, dtype::bf16}) {
        const auto tile_of = [&](std::int64_t rows, const std::vector<int>& p) {
            const plan one = made(type, rows, p, hopper);
            CHECK(one.passes.size() == 1);
            return otimes::planning::text_of_tile(one.passes.front().tile, false);
        };
        CHECK(tile_of(16384, {16, 16, 16}) == "r1 t128 b8 g1 s1 : 2+2m 1m");  // measured
        CHECK(tile_of(65536, {16, 32}) == "r8 t64 b8 g1 s2 : 1+2m");          // by formulas
        CHECK(tile_of(50000, {8, 8, 16}) == "r8 t128 b3 g1 s1 : 3m 2m 1m");   // 8 and 16 make no pair
        CHECK(tile_of(50000, {5, 7, 6}) == "r32 t128 b4 g1 s1 : 3f 1+2f");
        CHECK(made(type, 64, {16, 16, 16, 16}, hopper).passes.size() == 2);
        // Worked on in the stage: 16-bit elements twice, and the factors. Else the tile as floats, too.
        otimes::planning::gpu_group g;
        g.type = type;
        g.p = g.q = {32, 32};
        g.tile = *otimes::planning::read_tile("r4 t128 b6 g1 s2 : 1+2m");
        CHECK(otimes::planning::shared_bytes_of(g) == 4 * 1024 * (2 + 2) + 2 * 1024 * 4);
        g.p = g.q = {8, 8, 8};
        g.tile = *otimes::planning::read_tile("r8 t64 b8 g1 s1 : 2+2m 1m");
        CHECK(otimes::planning::shared_bytes_of(g) == 8 * 512 * (4 + 2) + 3 * 64 * 4);
        g.p = g.q = {32, 32};
        for (const char* tile : {"r4 t128 b6 g1 s0 : 1+2m", "r4 t128 b6 g1 s3 : 1+2m", "r1 t128 b6 g1 s1 c2 : 1+2m"}) {
            g.tile = *otimes::planning::read_tile(tile);
            CHECK(otimes::planning::why_illegal(g, hopper) != "");
        }
        otimes::options plain;
        plain.precision = otimes::precision::ieee;
        for (const plan& without_unit :
             {made(type, 5000, {16, 16}, hopper, plain), made(type, 5000, {16, 16}, otimes::gpu_of_capability(75))}) {
            CHECK(!without_unit.passes.front().tile.trips.front().matrix);
        }
    }
    // Eights in a pair: doubles and 16-bit elements, not floats.
    otimes::planning::gpu_group eights;
    eights.p = eights.q = {8, 8};
    eights.tile = *otimes::planning::read_tile("r8 t64 b4 g1 s0 : 1+2m");
    CHECK(otimes::planning::why_illegal(eights, hopper) != "");
    eights.type = dtype::f64;
    CHECK(otimes::planning::why_illegal(eights, hopper) == "");
}

TEST_CASE("factors that no block holds: slices of the new index, a launch for each, X not where Y is") {
    const auto passes_of = [](dtype type, std::int64_t rows, const std::vector<int>& extents) {
        std::vector<mode_spec> factors;
        for (const int e : extents) {
            factors.push_back(factor(e, e));
        }
        plan made = planned(on_device(rows_program(rows, factors, type)), otimes::h200());
        check_legal(made, otimes::h200(), type);
        return made;
    };
    const plan two = passes_of(dtype::c128, 512, {128, 128});
    CHECK(two.passes.size() == 2);
    CHECK(two.passes[0].out != two.passes[1].out);
    for (const otimes::pass& one : two.passes) {
        CHECK(one.tile.slices == 2);
        CHECK(otimes::planning::is_sliced_by_launches(one.tile));
        const otimes::planning::gpu_group whole = group_of(one, dtype::c128);
        const otimes::planning::gpu_group launched = otimes::planning::launched_group(whole);
        CHECK((launched.p_of(1) == 128 && launched.q_of(1) == 64 && launched.tile.slices == 1));
        CHECK(one.shared_bytes == otimes::planning::shared_bytes_of(launched));
    }
    struct sliced {
        dtype type;
        int extent;
        int slices;
    };
    for (const sliced& wanted : {sliced{dtype::c128, 256, 16}, sliced{dtype::f64, 128, 1}}) {
        CAPTURE(wanted.extent);
        const plan one = passes_of(wanted.type, 3000, {wanted.extent});
        CHECK(one.passes.front().tile.slices == wanted.slices);
    }
    // Real ones by blocks, which were measured to be faster: floats of 512 10.5 times a copy, 23 by slices.
    for (const int extent : {256, 512}) {
        CHECK(passes_of(dtype::f32, 100000, {extent}).passes.front().kernel == otimes::pass_kernel::gpu_blocked);
        CHECK(passes_of(dtype::f64, 100000, {extent}).passes.front().kernel == otimes::pass_kernel::gpu_blocked);
    }
    CHECK(passes_of(dtype::f64, 3000, {257}).passes.front().kernel == otimes::pass_kernel::gpu_blocked);
}

TEST_CASE("floats by single TF32 products where that is asked for, never otherwise") {
    const gpu_description hopper = otimes::h200();
    const otimes::program p =
        on_device(rows_program(4096, {factor(64, 64), factor(64, 64), factor(64, 64)}, dtype::f32));
    const auto kernels = [&](otimes::precision wished, const gpu_description& gpu) {
        otimes::options wishes;
        wishes.precision = wished;
        const plan made = planned(p, gpu, wishes);
        check_legal(made, gpu, dtype::f32);
        std::vector<otimes::sweep_kernel> all;
        for (const otimes::pass& one : made.passes) {
            for (const otimes::sweep& s : one.sweeps) {
                all.push_back(s.kernel);
            }
            CHECK(group_of(one, dtype::f32).single == (all.back() == otimes::sweep_kernel::mma_tf32));
        }
        return all;
    };
    const auto all = [](otimes::sweep_kernel k) { return std::vector<otimes::sweep_kernel>(3, k); };
    CHECK(kernels(otimes::precision::standard, hopper) == all(otimes::sweep_kernel::mma_split));
    CHECK(kernels(otimes::precision::tf32, hopper) == all(otimes::sweep_kernel::mma_tf32));
    CHECK(kernels(otimes::precision::bf16, hopper) == all(otimes::sweep_kernel::mma_tf32));
    CHECK(kernels(otimes::precision::ieee, hopper) == all(otimes::sweep_kernel::fibre));
    CHECK(kernels(otimes::precision::tf32, otimes::gpu_of_capability(75)) == all(otimes::sweep_kernel::fibre));
    // What is compiled ahead of time splits: more accurate than asked for.
    gpu_description bare = hopper;
    bare.compiles = false;
    CHECK(kernels(otimes::precision::tf32, bare) == all(otimes::sweep_kernel::mma_split));
}

TEST_CASE("what is planned can run, on every capability, in both orders, for odd and rectangular factors too") {
    std::vector<otimes::bench::kron_case> cases = otimes::bench::kron_cases();
    cases.push_back({"odd", 37, 37, {5, 7, 11}, {7, 5, 3}});
    cases.push_back({"long", 3, 3, {100, 96}, {96, 100}});
    cases.push_back({"huge", 2, 2, {600, 3}, {3, 600}});
    cases.push_back({"many", 1, 1, std::vector<int>(20, 2), std::vector<int>(20, 2)});
    cases.push_back({"mixed", 9, 9, {2, 16, 3, 8, 5}, {2, 16, 3, 8, 5}});
    for (const int capability : {75, 80, 86, 90, 100, 120}) {
        const gpu_description gpu = otimes::gpu_of_capability(capability);
        for (const otimes::bench::kron_case& c : cases) {
            for (const dtype type : {dtype::f32, dtype::f64, dtype::c64, dtype::c128, dtype::f16}) {
                if ((is_complex(type) || is_widened(type)) && c.id.rfind("jhurani", 0) == 0) {
                    continue;
                }
                CAPTURE(c.id);
                CAPTURE(capability);
                for (const bool column_major : {false, true}) {
                    const plan p = planned(program_of(c, type, column_major), gpu);
                    check_legal(p, gpu, type);
                    CHECK(p.predicted_seconds >= p.bound_seconds);
                }
            }
        }
    }
}

TEST_CASE("square chains need no workspace for intermediates: they lie in Y; sums and shapes that change do not") {
    const auto in_y = [](const plan& p) { return p.passes.front().out == p.passes.back().out; };
    const plan square = planned(program_of(otimes::bench::power_case("", 16, 32, 6), dtype::f32), otimes::h200());
    CHECK(square.passes.size() > 1);
    CHECK(in_y(square));
    CHECK(square.buffer_elements.empty());
    CHECK(square.workspace_bytes < (1 << 20));
    const auto rectangular = on_device(rows_program(64, {factor(64, 64), factor(64, 60), factor(64, 64)}));
    const plan grown = planned(rectangular, otimes::h200());
    CHECK(grown.passes.size() > 1);
    chain_spec adding;
    adding.type = dtype::f32;
    adding.modes = {free_mode(64), factor(64, 64), factor(64, 64), factor(64, 64)};
    adding.add = true;
    const plan sum = planned(on_device(chain_program(adding)), otimes::h200());
    REQUIRE(sum.passes.size() > 1);
    CHECK_FALSE(in_y(sum));
    CHECK(sum.passes.back().add);
}

TEST_CASE("neighbours of what the planner chose can be forced, also where runs are longer than what there is") {
    int longer = 0;
    for (const std::int64_t rows : {3, 5, 9, 23}) {
        const otimes::program p = on_device(
            rows_program(rows, {factor(23, 23), factor(39, 39), factor(38, 38), factor(26, 26)}, dtype::f32, true));
        const plan chosen = planned(p, otimes::h200());
        auto choice = otimes::planning::choice_of(chosen).value();
        for (std::size_t i = 0; i < chosen.passes.size(); ++i) {
            const otimes::pass& one = chosen.passes[i];
            if (one.tile.run > one.modes.back().extent_in && one.tile.blocks > 1) {
                choice.parts[i].tile.blocks -= 1;
                ++longer;
            }
        }
        const plan forced = otimes::planning::plan_on_gpu(p, otimes::h200(), {}, choice.slab_extent, &choice);
        CHECK(otimes::planning::choice_of(forced) == choice);
    }
    CHECK(longer > 0);
}

TEST_CASE("adding to Y costs a reading of Y, not a share of the arithmetic") {
    chain_spec adding;
    adding.type = dtype::f32;
    adding.modes = {free_mode(1024), factor(32, 32), factor(32, 32), factor(32, 32)};
    const plan product = planned(on_device(chain_program(adding)), otimes::h200());
    adding.add = true;
    const plan sum = planned(on_device(chain_program(adding)), otimes::h200());
    REQUIRE(product.passes.size() == 1);
    REQUIRE(sum.passes.size() == 1);  // 0.17 ms beside a matrix; in two passes 0.24
    const double reading = 4.0 * 1024 * 32768 / otimes::h200().memory_bytes_per_second;
    CHECK(sum.predicted_seconds - product.predicted_seconds == doctest::Approx(reading).epsilon(0.01));
}

TEST_CASE("column-major and few rows: enough tiles for the multiprocessors, in one more pass if need be") {
    const plan p =
        planned(on_device(rows_program(50, {factor(32, 32), factor(64, 128)}, dtype::f32, true)), otimes::h200());
    REQUIRE(p.passes.size() == 2);
    for (const otimes::pass& one : p.passes) {
        std::int64_t tiles = 1;
        for (std::size_t k = 0; k < one.modes.size(); ++k) {
            const bool contracted = one.sweeps[0].mode == static_cast<std::int32_t>(k);
            const std::int64_t e = one.modes[k].extent_in;
            tiles *= contracted                                      ? 1
                     : static_cast<std::int32_t>(k) == one.lane_mode ? (e + one.tile.run - 1) / one.tile.run
                                                                     : e;
        }
        CHECK(tiles >= 50);
    }
}

TEST_CASE("small tensors between identities: several in a tile, and blocks enough to hide each other's loads") {
    otimes::planning::group_request r = outer_mode(dtype::f64, 8, 8, 32768 * 8);
    const auto tile_of = [&r] {
        return otimes::planning::text_of_tile(otimes::planning::choose_group(r, otimes::h200())->group.tile, true);
    };
    CHECK(tile_of() == "run8 r16 t64 b8 g1 s0 : 1m");
    r.parts_per_line = 24;  // whole tiles only
    CHECK(tile_of() == "run8 r12 t64 b8 g1 s0 : 1m");
    r.parts_per_line = 8 * 37;
    CHECK(tile_of() == "run8 r4 t64 b8 g1 s0 : 1m");
    r.p = r.q = {16};
    r.parts_per_line = r.groups;
    CHECK(tile_of() == "run8 r8 t64 b8 g1 s0 : 1m");
    // Few warps, of which each thread takes several fibres.
    const auto tile_between = [&](dtype type, std::int64_t p, std::int64_t inner) {
        r = outer_mode(type, p, inner, 1 << 18);
        return tile_of();
    };
    CHECK(tile_between(dtype::f32, 10, 16) == "run16 r8 t64 b8 g1 s0 : 1f");
    CHECK(tile_between(dtype::f64, 4, 8) == "run8 r32 t64 b8 g1 s0 : 1f");
    CHECK(tile_between(dtype::f32, 8, 8) == "run8 r16 t64 b6 g1 s2 : 1f");  // lines of 32 bytes
    CHECK(tile_between(dtype::f64, 7, 4) == "run4 r16 t64 b6 g1 s2 : 1f");
    CHECK(tile_between(dtype::f32, 5, 8) == "run8 r32 t128 b8 g1 s0 : 1f");
    CHECK(tile_between(dtype::f32, 10, 8) == "run8 r16 t64 b8 g1 s0 : 1f");   // not of more than eight
    CHECK(tile_between(dtype::f32, 10, 5) == "run5 r32 t128 b8 g1 s0 : 1f");  // one by one
    CHECK(tile_between(dtype::f64, 10, 5) == "run5 r16 t64 b8 g1 s0 : 1f");
    CHECK(tile_between(dtype::f32, 24, 8) == "run8 r8 t64 b8 g1 s0 : 1m");
    CHECK(tile_between(dtype::f32, 16, 16) == "run16 r8 t128 b4 g1 s0 : 1m");  // as before
    r = outer_mode(dtype::f32, 10, 16, 8 * 132 * 8);
    CHECK(tile_of() == "run16 r8 t64 b8 g1 s0 : 1f");
    r = outer_mode(dtype::f32, 10, 16, 8 * 132 * 8 - 8);  // fewer tiles than blocks
    CHECK(tile_of() == "run16 r8 t128 b4 g1 s0 : 1f");
    r = outer_mode(dtype::f32, 16, 16, 1 << 18);
    // As many of them as were measured, of the others as fit.
    const auto most = [&] {
        return otimes::planning::most_resident_blocks(otimes::planning::choose_group(r, otimes::h200())->group);
    };
    CHECK(most() > 100);
    r = outer_mode(dtype::f32, 24, 8, 1 << 18);
    CHECK(most() == 8);
    r = outer_mode(dtype::f32, 8, 8, 1 << 18);
    CHECK(most() == 6);
    r = outer_mode(dtype::f32, 8, 4096, 1 << 10);
    CHECK(most() > 100);
    CHECK(tile_between(dtype::f64, 24, 4) == "run4 r8 t64 b8 g1 s0 : 1m");
    CHECK(tile_between(dtype::f64, 8, 2) ==
          "run2 r128 t128 b6 g1 s0 : 1m");  // lines below 32 bytes, not measured or slower: as before
    CHECK(tile_between(dtype::f64, 14, 2) == "run2 r32 t128 b4 g1 s0 : 1m");
    CHECK(tile_between(dtype::f32, 32, 8) == "run8 r8 t128 b4 g1 s0 : 1m/2");
    CHECK(tile_between(dtype::c64, 4, 8).find("t128") != std::string::npos);
}

TEST_CASE("outer groups: long runs for lines of whole tiles, clusters where there are some, else the next best tile") {
    otimes::planning::group_request r;
    r.outer = true;
    r.type = dtype::f32;
    r.p = r.q = {6, 6};
    r.order = {2, 1};
    const auto tile_of = [&r](std::int64_t groups, std::int64_t inner, const gpu_description& gpu) {
        r.groups = r.parts_per_line = groups;
        r.inner = inner;
        return otimes::planning::text_of_tile(otimes::planning::choose_group(r, gpu)->group.tile, true);
    };
    CHECK(tile_of(1024, 7776, otimes::h200()) == "run288 t288 b2 g1 s0 : 1+2f");  // 27 tiles a line
    CHECK(tile_of(6144, 1296, otimes::h200()) == "run64 t128 b8 g1 s0 : 2f 1f");  // 4.5
    CHECK(tile_of(1, 8000000, otimes::h200()) == "run288 t288 b2 g1 s0 : 1+2f");  // nearly all of them whole
    CHECK(tile_of(36864, 216, otimes::h200()) == "run64 t128 b8 g1 s0 : 2f 1f");  // lines that are shorter
    r.p = r.q = {16, 16, 16};
    r.order = {3, 2, 1};
    CHECK(tile_of(1, 262144, otimes::h200()) == "run32 t128 b3 g1 s0 c8 : 2+2m 1m");
    gpu_description alone = otimes::h200();
    alone.cluster_blocks = 1;
    CHECK(tile_of(1, 262144, alone) == "run8 t256 b1 g1 s0 : 3m 2m 1m");
    r.p = r.q = {8, 8, 8};
    CHECK(tile_of(512, 1024, otimes::h200()) == "run64 t256 b3 g1 s0 c2 : 3f 2f 1f");
    CHECK(tile_of(512, 32, otimes::h200()) == "run32 t128 b3 g1 s0 : 3f 1+2f");  // no 64 neighbours
    CHECK(tile_of(512, 1024, alone) == "run32 t128 b3 g1 s0 : 3f 1+2f");
    r.type = dtype::f64;
    CHECK(tile_of(512, 1024, otimes::h200()) == "run32 t256 b3 g1 s0 c2 : 3m 2m 1m");
    CHECK(tile_of(512, 1024, alone) == "run16 t256 b2 g1 s0 : 3m 2m 1m");
    r.p = r.q = {16, 16, 16};
    CHECK(tile_of(1, 262144, otimes::h200()) == "run16 t128 b3 g1 s0 c8 : 2+2m 1m");
    r.p = r.q = {32, 32};
    r.order = {2, 1};
    CHECK(tile_of(1, 32768, otimes::h200()) == "run16 t512 b1 g2 s1 : 2m 1m");
    CHECK(tile_of(1024, 1024, otimes::h200()) == "run16 t512 b1 g2 s1 : 2m 1m");
    gpu_description less = otimes::h200();  // of shared memory
    less.shared_bytes_per_block = 200000;
    CHECK(tile_of(1, 32768, less) == "run16 t256 b2 g1 s0 c2 : 2m 1m");
    less.cluster_blocks = 1;
    CHECK(tile_of(1, 32768, less) == "run16 t256 b1 g1 s0 : 2m 1m");
    CHECK(tile_of(1024, 1024, less) == "run16 t512 b1 g1 s0 : 2m 1m");
}

TEST_CASE("clusters of sixteen hold rows that no smaller ones hold whole, and larger pieces of others") {
    using namespace otimes::planning;
    group_request r;
    r.may_use_unit = true;
    r.order = {3, 2, 1};
    r.groups = 100;
    gpu_description eight = otimes::h200();
    eight.cluster_blocks = 8;
    const auto tile_of = [&](dtype type, std::int64_t n, bool may_cut, const gpu_description& gpu) {
        r.type = type;
        r.p = r.q = {n, n, n};
        const std::optional<gpu_group> g = group_in_pieces(r, may_cut, gpu);
        if (!g) {
            return std::string();
        }
        CHECK(why_illegal(*g, gpu) == "");
        CHECK(why_illegal(*g, eight) == (g->tile.cluster > 8 ? "this GPU has no clusters of this size" : ""));
        return text_of_tile(g->tile, false);
    };
    CHECK(tile_of(dtype::f32, 64, false, eight).empty());
    CHECK(tile_of(dtype::f32, 64, false, otimes::h200()) == "r1 t256 b1 g1 s0 c16 : 3w 2w 1w");
    CHECK(tile_of(dtype::f64, 64, false, otimes::h200()) == "r1 t256 b1 g1 s0 c16 : 3m/2 2m/2 1m/2");
    CHECK(tile_of(dtype::f32, 64, true, otimes::h200()) == "r1 t256 b1 g1 s0 c16 : 3w 2w 1w");
    CHECK(tile_of(dtype::f32, 64, true, eight) == "r1 t256 b1 g1 s0 c4 p2 : 3w 2w 1w");
    // Whole, a factor of doubles would not lie in shared memory, where it does in halves.
    CHECK(tile_of(dtype::f64, 64, true, otimes::h200()) == "r1 t256 b1 g1 s0 c8 p2 : 3m/2 2m/2 1m");
    CHECK(tile_of(dtype::f32, 128, true, eight) == "r1 t256 b1 g1 s0 c8 p16 : 3m/2 2m/2 1m/2");
    CHECK(tile_of(dtype::f32, 128, true, otimes::h200()) == "r1 t256 b1 g1 s0 c16 p8 : 3m/2 2m/2 1m/2");
    CHECK(tile_of(dtype::f64, 128, true, otimes::h200()) == "r1 t256 b1 g1 s0 c16 p8 : 3m/4 2m/4 1m/2");
    CHECK(tile_of(dtype::f32, 136, true, otimes::h200()).empty());  // longer factors take many times the prediction
    for (const dtype type :
         {dtype::f32, dtype::f64}) {  // what fits in a smaller one stays there, and products keep to these
        CHECK(tile_of(type, 32, true, otimes::h200()) == tile_of(type, 32, true, eight));
        for (const std::int64_t n : {32, 64, 96}) {
            r.type = type;
            r.p = r.q = {n, n, n};
            const auto chosen = choose_group(r, otimes::h200());
            CHECK((!chosen || chosen->group.tile.cluster <= 8));
        }
    }
}

TEST_CASE(
    "beside a second matrix the tiles that were measured so; for few rows, norms and products those of products") {
    using otimes::step_variant;
    using otimes::planning::text_of_tile;
    const auto tile_of = [](const program& p) {
        const plan made = planned(p, otimes::h200());
        REQUIRE(!made.passes.empty());
        CHECK(made.passes.front().kernel == pass_kernel::gpu_trailing);
        gpu_group g = group_of(made.passes.front(), made.source.tensors.front().type);
        CHECK(otimes::planning::why_illegal(g, otimes::h200()) == "");
        CHECK(made.passes.front().shared_bytes == otimes::planning::shared_bytes_of(g));
        return text_of_tile(g.tile, false);
    };
    for (const otimes::planning::tile_beside& entry : otimes::planning::tiles_beside) {
        CAPTURE(entry.group);
        std::istringstream text(entry.group);
        std::string type_name;
        std::string trailing;
        std::int64_t extent = 0;
        char power = 0;
        std::size_t count = 0;
        text >> type_name >> trailing >> extent >> power >> count;
        REQUIRE((trailing == "T" && power == '^' && count > 1));
        const dtype type = type_name == "f32" ? dtype::f32 : dtype::f64;
        const std::vector<mode_spec> factors(count, factor(extent, extent));
        std::int64_t width = 1;
        for (std::size_t i = 0; i < count; ++i) {
            width *= extent;
        }
        const std::int64_t rows = (std::int64_t{1} << 27) / otimes::element_bytes(type) / width;
        const program product = rows_program(rows, factors, type);
        CHECK(tile_of(reduced_on_device(product, step_variant::dot)) == entry.tile);
        CHECK(tile_of(reduced_on_device(product, step_variant::squared_distance)) == entry.tile);
        const std::string own = tile_of(on_device(product));
        CHECK(own != entry.tile);
        CHECK(tile_of(reduced_on_device(product, step_variant::squared_norm)) == own);
        const program few = rows_program(100, factors, type);
        CHECK(tile_of(reduced_on_device(few, step_variant::dot)) == tile_of(on_device(few)));
    }
    // Without the matrix unit the entries that use it do not serve.
    const program sixteens = rows_program(8192, {factor(16, 16), factor(16, 16), factor(16, 16)}, dtype::f32);
    const plan plain =
        planned(reduced_on_device(sixteens, step_variant::dot), otimes::h200(), {.precision = otimes::precision::ieee});
    CHECK(text_of_tile(plain.passes.front().tile, false).find('m') == std::string::npos);
}

TEST_CASE("a cluster's last trip replaces mode 1 alone, also behind a pair, or the last two modes of whole rows") {
    using namespace otimes::planning;
    gpu_group g;
    g.outer = true;
    g.type = dtype::f64;
    g.p = g.q = {16, 16, 16};
    const auto refused = [&g](const char* tile) {
        g.tile = *read_tile(tile);
        return why_illegal(g, otimes::h200());
    };
    const std::string last = "the last trip of a cluster replaces mode 1 alone, or the last two modes as a pair";
    CHECK(refused("run16 t128 b3 g1 s0 c8 : 2+2m 1m").empty());
    CHECK(refused("run16 t128 b3 g1 s0 c8 : 3m 1+2m") == last);
    CHECK(refused("run16 t128 b3 g1 s0 c8 : 1m 2+2m") == last);  // of outer groups not the last two either
    CHECK(refused("run16 t128 b3 g1 s0 c8 : 1m 3m 2m") == last);
    g.outer = false;
    CHECK(refused("r1 t128 b3 g1 s0 c8 : 1m 2+2m").empty());
    // A part of the tile for each block, without padding, and three factors.
    g.outer = true;
    g.tile = *read_tile("run16 t128 b3 g1 s0 c8 : 2+2m 1m");
    CHECK(shared_bytes_of(g) == (16 * 16 * 16 * 16 / 8 + 3 * 256) * 8);
}

TEST_CASE("two barriers for each of several stages that nothing else shares the block with") {
    using namespace otimes::planning;
    gpu_group g;
    g.type = dtype::f64;
    g.p = g.q = {128};
    const auto bytes = [&g](const char* tile) {
        g.tile = *read_tile(tile);
        CHECK(why_illegal(g, otimes::h200()).empty());
        return shared_bytes_of(g);
    };
    const std::int64_t stage = 64 * 132 * 8;  // rows of 128 and four elements between them
    CHECK(bytes("r64 t256 b1 g1 s3 : 1m/8") == 3 * stage + 3 * 16);
    CHECK(bytes("r64 t256 b1 g1 s2 : 1m/8") == 2 * stage + 2 * 16);
    CHECK(bytes("r64 t256 b1 g1 s1 : 1m/8") == 128 * 128 * 8);  // one: where the factor was, on its way to registers
    g.type = dtype::f32;
    g.p = g.q = {64};
    const std::int64_t factor = 2 * 64 * 64 * 4;
    CHECK(bytes("r64 t256 b1 g1 s2 : 1w") == factor + 2 * 64 * 72 * 4 + 2 * 16);
    CHECK(bytes("r64 t256 b2 g1 s2 : 1w") == factor + 2 * 64 * 72 * 4);  // another block hides what this one waits for
}

TEST_CASE("tiles in two of three places: half a tile more of shared memory, without padding, and two barriers") {
    using namespace otimes::planning;
    gpu_group g;
    g.outer = true;
    g.type = dtype::f32;
    g.p = g.q = {32, 32};
    const std::int64_t factors = 2 * 2 * 32 * 32 * 4;
    const std::int64_t half = 16 * 32 * 32 * 4;
    g.tile = *read_tile("run32 t256 b1 g2 s1 : 2w 1w");
    CHECK(group_memory::rotates(g));
    CHECK(why_illegal(g, otimes::h200()).empty());
    CHECK(shared_bytes_of(g) == factors + 3 * half + 16);
    CHECK(!why_illegal(g, otimes::gpu_of_capability(80)).empty());  // too large
    g.terms = 2;
    CHECK(!group_memory::rotates(g));
    CHECK(!why_illegal(g, otimes::h200()).empty());
    g.terms = 1;
    g.tile = *read_tile("run32 t256 b1 g2 s1 : 1w 2w");  // mode 1 must be the last
    CHECK(!group_memory::rotates(g));
    CHECK(!why_illegal(g, otimes::h200()).empty());
    g.type = dtype::f64;
    g.tile = *read_tile("run16 t512 b1 g2 s1 : 2m 1m");
    CHECK(why_illegal(g, otimes::h200()).empty());
    CHECK(shared_bytes_of(g) == factors + 3 * half + 16);
    g.tile = *read_tile("run8 t512 b1 g2 s1 : 2m 1m");  // runs of 64 bytes: staged as other groups' parts
    CHECK(!group_memory::rotates(g));
}

TEST_CASE("slices in a ring: a place for each slice of a row and some more, a barrier each") {
    using namespace otimes::planning;
    const auto group_with = [](std::vector<std::int32_t> p, const char* tile) {
        gpu_group g;
        g.type = dtype::f32;
        g.p = g.q = std::move(p);
        g.tile = *read_tile(tile);
        return g;
    };
    gpu_group g = group_with({8, 8, 8, 8, 8}, "r1 t256 b1 g8 s3 : 1f 4+2f 2+2f");
    const std::int64_t factors = 5 * 8 * 8 * 4;
    const std::int64_t slice = 8 * 8 * (8 * 8 + 4) * 4;  // rows of the last trip's neighbours are padded
    CHECK(group_memory::is_ring(g));
    CHECK(why_illegal(g, otimes::h200()).empty());
    CHECK(shared_bytes_of(g) == factors + 11 * slice + 11 * 8);
    for (const gpu_ending ending : {gpu_ending::dot, gpu_ending::squared_norm}) {
        g.ending = ending;
        CHECK(why_illegal(g, otimes::h200()).empty());
    }
    g.ending = gpu_ending::stored;
    g.tile.slots = 6;  // 14 places
    CHECK(why_illegal(g, otimes::h200()) == "too much shared memory");
    g.tile.slots = 3;
    gpu_description without_barriers = otimes::h200();
    without_barriers.has_bulk_copy = false;
    CHECK(!why_illegal(g, without_barriers).empty());
    // What the kernel does not know is no ring, and then the first trip may not have mode 1.
    const auto refused = [](const gpu_group& other) {
        CHECK(!group_memory::is_ring(other));
        CHECK(!why_illegal(other, otimes::h200()).empty());
    };
    gpu_group other = g;
    other.terms = 2;
    refused(other);
    other = g;
    other.scattered = true;
    refused(other);
    other = g;
    other.type = dtype::c64;
    refused(other);
    refused(group_with({8, 8, 8, 8, 8}, "r1 t128 b1 g8 s3 : 1f 4+2f 2+2f"));  // a warp for each slice
    refused(group_with({8, 8, 8, 8, 8}, "r1 t256 b1 g4 s3 : 1f 4+2f 2+2f"));
    refused(group_with({8, 8, 8, 8}, "r1 t256 b1 g8 s3 : 1f 2+3f"));  // 512 elements in registers
    refused(group_with({8, 8, 8}, "r1 t256 b1 g8 s9 : 1f 3f 2f"));
    CHECK(!why_illegal(group_with({8, 8, 8}, "r1 t256 b2 g8 s3 : 1f 3f 2f"), otimes::h200()).empty());  // all registers
    CHECK(
        !why_illegal(group_with({3, 5, 7}, "r1 t96 b1 g3 s1 : 1f 3f 2f"), otimes::h200()).empty());  // runs of 28 bytes
    CHECK(why_illegal(group_with({3, 5, 9}, "r1 t96 b1 g3 s1 : 1f 3f 2f"), otimes::h200()).empty());
    other = group_with({8, 8, 8}, "r1 t256 b1 g8 s3 : 1f 3f 2f");
    other.q = {8, 8, 7};
    refused(other);
    // Of several matrices one takes whole tiles.
    const auto scattered = scattered_group(g, std::int64_t{1} << 15, otimes::h200());
    REQUIRE(scattered.has_value());
    CHECK(scattered->tile.segments == 1);
    CHECK(scattered->tile.slots == 0);
    const plan p = planned(on_device(rows_program(1024, std::vector(5, factor(8, 8)), dtype::f32)), otimes::h200());
    REQUIRE(p.passes.size() == 1);
    CHECK(text_of_tile(p.passes[0].tile, false) == "r1 t256 b1 g8 s3 : 1f 4+2f 2+2f");
}

TEST_CASE("few rows: blocks share the last new index, in trailing groups by multiply-adds that read X alone") {
    using namespace otimes::planning;
    const plan p = planned(on_device(rows_program(10, {factor(52, 50), factor(65, 20)}, dtype::f32)), otimes::h200());
    REQUIRE(p.passes.size() == 1);
    CHECK(p.passes[0].tile.slices == 5);
    CHECK(otimes::explain(p).find("1 segment over 5 blocks") != std::string::npos);
    CHECK(otimes::plan_from_text(otimes::to_text(p)) == p);
    gpu_group g = group_of(p.passes[0], dtype::f32);
    // 65 x 4 of the second factor, 52 x 50 of the first, 52 x 65 of X. Rows of a factor are padded to whole 16 bytes only where a thread
    // takes whole accesses of them.
    CHECK(shared_bytes_of(g) == (65 * 4 + 52 * 50 + 52 * 65) * 4);
    g.tile = *read_tile("r1 t128 b1 g1 s0 q5 : 2f/2 1f/13");
    CHECK(shared_bytes_of(g) == (65 * 4 + 52 * 52 + 52 * 65) * 4);
    group_request r;
    r.p = {52, 65};
    r.q = {50, 20};
    r.order = {2, 1};
    r.groups = 10;
    CHECK(choose_group(r, otimes::h200())->group.tile.slices == 5);
    r.may_alias = true;  // another slice may still read what this one writes
    CHECK(choose_group(r, otimes::h200())->group.tile.slices == 1);
    const std::string refused = "slices: a trailing group by multiply-adds, its last mode in a trip of its own";
    for (const char* const tile :
         {"r1 t128 b1 g1 s0 q3 : 2f/2 1f/25", "r1 t128 b1 g1 s1 q5 : 2f/2 1f/25", "r1 t128 b1 g1 s0 c2 q5 : 2f/2 1f"}) {
        g.tile = *read_tile(tile);
        CHECK_MESSAGE(why_illegal(g, otimes::h200()) == refused, tile);
    }
    g.p = g.q = {4, 16, 16};
    for (const char* const tile : {"r1 t64 b1 g1 s0 q2 : 3m 2m 1f", "r1 t64 b1 g1 s0 q2 : 2+2f 1f"}) {
        g.tile = *read_tile(tile);
        CHECK_MESSAGE(why_illegal(g, otimes::h200()) == refused, tile);
    }
}

TEST_CASE("a tuned choice is taken where it fits the program and the GPU, ignored elsewhere and when deterministic") {
    using namespace otimes::planning;
    const program p = program_of(otimes::bench::power_case("", 1024, 8, 5), dtype::f32);
    otimes::machine m = otimes::gpu_machine(otimes::h200());
    const plan usual = otimes::make_plan(p, m);
    REQUIRE(choice_of(usual));
    CHECK(read_gpu_choice(choice_text(*choice_of(usual))) == choice_of(usual));
    const std::string two = "gpu slab 64 | 3 r8 t64 b8 g1 s0 : 2+2f 1f | 2 run32 t128 b4 g1 s0 : 2f 1f";
    m.tuning.push_back({otimes::hash_value(p), two, 1e-3});
    const plan tuned = otimes::make_plan(p, m);
    REQUIRE(tuned.passes.size() == 2);
    CHECK(tuned.slab_extent == 64);
    CHECK(choice_text(*choice_of(tuned)) == two);
    CHECK(otimes::plan_from_text(otimes::to_text(tuned)) == tuned);
    otimes::machine without = otimes::gpu_machine(otimes::h200());
    CHECK(otimes::make_plan(p, m, {.deterministic = true}) == otimes::make_plan(p, without, {.deterministic = true}));
    for (const char* const foreign :
         {"", "threads 2", "gpu slab 0", "gpu slab 0 | 5 r1 t256 b1 g4 s2",
          "gpu slab 0 | 4 r1 t128 b1 g1 s0 : 4f 3f 2f 1f", "gpu slab 0 | 5 r1 t256 b4 g1 s0 c64 : 5f 4f 3f 2f 1f",
          "gpu slab 0 | 5 r9999 t256 b1 g1 s0 : 5f 4f 3f 2f 1f", "gpu slab 0 | 5 r1 t33 b1 g1 s0 : 5f 4f 3f 2f 1f",
          "gpu slab 0 | 5 r1 t256 b1 g1 s0 : 5f 4f 3f 2f"}) {
        m.tuning.back().choice = foreign;
        CHECK_MESSAGE(otimes::make_plan(p, m).passes == usual.passes, foreign);
    }
}

TEST_CASE("deterministic plans leave the matrix unit out, so that a row's bits do not depend on how many there are") {
    for (const dtype type : {dtype::f32, dtype::f64}) {
        for (const std::int64_t rows : {4, 200, 100000}) {
            const plan p = planned(program_of(otimes::bench::power_case("", rows, 16, 3), type), otimes::h200(),
                                   {.deterministic = true});
            for (const otimes::pass& one : p.passes) {
                for (const otimes::sweep& s : one.sweeps) {
                    CHECK(s.kernel == otimes::sweep_kernel::fibre);
                }
            }
        }
    }
}

TEST_CASE("candidates to measure: the planner's choice first, all of them legal and different") {
    using namespace otimes::planning;
    const gpu_description gpu = otimes::h200();
    for (const auto& [rows, extent, count] : {std::tuple{1024, 8, 6}, std::tuple{20, 2, 9}, std::tuple{64, 16, 5}}) {
        const program p = program_of(otimes::bench::power_case("", rows, extent, count), dtype::f32);
        const std::vector<gpu_choice> choices = gpu_candidates(p, gpu, {}, 40);
        REQUIRE(choices.size() > 5);
        CHECK(choices.front() == *choice_of(plan_on_gpu(p, gpu, {})));
        std::set<std::string> texts;
        for (const gpu_choice& c : choices) {
            texts.insert(choice_text(c));
            const plan made = plan_on_gpu(p, gpu, {}, 0, &c);
            CHECK(choice_of(made) == c);
            check_legal(made, gpu, dtype::f32);
        }
        CHECK(texts.size() == choices.size());
        CHECK(gpu_candidates(p, gpu, {}, 3).size() == 3);
    }
    CHECK(gpu_candidates(on_device(rows_program(3, {})), gpu, {}, 5).empty());
}

TEST_CASE("without a compiler plans take the core set's kernels, and say so") {
    using namespace otimes::planning;
    for (const int capability : {80, 89, 90, 100, 120}) {
        gpu_description gpu = otimes::gpu_of_capability(capability);
        gpu.compiles = false;
        const std::vector<gpu_group>& core = core_groups(capability);
        CHECK(core.size() > 50);
        for (const auto& [extent, count] : {std::pair{8, 7}, std::pair{16, 4}, std::pair{4, 5}, std::pair{2, 9}}) {
            const plan p = planned(program_of(otimes::bench::power_case("", 512, extent, count), dtype::f32), gpu);
            CHECK(p.passes.size() < static_cast<std::size_t>(count));
            REQUIRE(p.notes.size() == 1);
            for (const otimes::pass& one : p.passes) {
                CHECK(std::ranges::count(core, group_of(one, dtype::f32)) == 1);
            }
        }
        const plan odd = planned(program_of(otimes::bench::power_case("", 512, 7, 3), dtype::f32), gpu);
        for (const otimes::pass& one : odd.passes) {
            CHECK(one.kernel == pass_kernel::gpu_generic);
        }
    }
    CHECK(core_groups(75).empty());
}

TEST_CASE("runs share a line evenly, in as few tiles as the longest would") {
    using otimes::planning::group_memory::even_run;
    CHECK(even_run(9, 16, 4) == 9);
    CHECK(even_run(23, 32, 4) == 24);  // whole accesses
    CHECK(even_run(15, 16, 4) == 16);
    CHECK(even_run(28, 32, 4) == 32);
    CHECK(even_run(22, 16, 2) == 12);
    CHECK(even_run(40, 32, 4) == 20);
    CHECK(even_run(54, 32, 4) == 32);  // nearly two of them
    CHECK(even_run(70, 64, 4) == 64);  // each lane has a fibre
    for (std::int64_t inner = 1; inner <= 400; ++inner) {
        for (const std::int64_t most : {2, 4, 8, 16, 32, 64, 128}) {
            for (const std::int64_t vector : {1, 2, 4}) {
                if (vector > most) {
                    continue;
                }
                const std::int64_t run = even_run(inner, most, vector);
                CAPTURE(inner);
                CAPTURE(most);
                CHECK(run >= 1);
                CHECK(run <= most);
                CHECK((inner + run - 1) / run == (inner + most - 1) / most);
                CHECK((run == inner || run % vector == 0));
            }
        }
    }
}

TEST_CASE("a few rows by columns: a run is a line, and short lines of one mode are side by side") {
    const auto planned_in_columns = [](std::int64_t rows, const std::vector<std::int64_t>& extents, dtype type) {
        std::vector<mode_spec> factors;
        for (const std::int64_t n : extents) {
            factors.push_back(factor(n, n));
        }
        program source = rows_program(rows, factors, type, true);
        for (otimes::tensor& t : source.tensors) {
            t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
        }
        return otimes::make_plan(source, otimes::gpu_machine(otimes::h200()));
    };
    // 38 x 26 x 9 elements follow each other: no lane is without a fibre.
    const plan few = planned_in_columns(9, {23, 39, 38, 26}, dtype::f32);
    CHECK(few.passes.front().sweeps.size() == 2);
    CHECK(few.passes.front().tile.run == 9);
    CHECK(few.passes.front().tile.rows == 1);
    otimes::planning::group_request r = outer_mode(dtype::f32, 30, 23, 28 * 16 * 38);
    const auto tile_of = [&r] { return otimes::planning::choose_group(r, otimes::h200())->group.tile; };
    CHECK(tile_of().run == 23);
    CHECK(tile_of().rows == 2);
    r.inner = 6;
    r.groups = r.parts_per_line = 60;  // few of them: a whole number of accesses
    CHECK(tile_of().run == 8);
    r.p = r.q = {13};
    r.inner = 9;
    r.groups = r.parts_per_line = 2 * 3 * 13 * 19 * 23;
    CHECK(tile_of().run == 9);
    CHECK(tile_of().rows == 19);
    // Two modes of doubles at once, although one block a multiprocessor is all there is room for.
    const plan pairs = planned_in_columns(22, {27, 27, 27, 27}, dtype::f64);
    CHECK(pairs.passes.size() == 2);
}

TEST_CASE("modes one by one by multiply-adds: a tile whose threads have fibres, and blocks have tiles") {
    namespace multiply_adds = otimes::planning::multiply_adds;
    const gpu_description gpu = otimes::gpu_of_capability(90);
    const auto request = [](std::int64_t n, std::size_t modes, std::int64_t rows, std::int64_t inner = 1) {
        otimes::planning::group_request r;
        r.outer = inner > 1;
        r.p.assign(modes, n);
        r.q = r.p;
        r.groups = rows;
        r.inner = inner;
        for (std::size_t level = modes; level > 0; --level) {
            r.order.push_back(static_cast<std::int32_t>(level));
        }
        return r;
    };
    int known = 0;
    for (const std::int64_t n : {17, 19, 21, 22, 23, 25, 26, 27, 29, 31}) {
        for (const std::int64_t inner : {1, 1001, 1000}) {
            const otimes::planning::group_request r = request(n, 2, 6000000 / (n * n * inner), inner);
            const std::optional<gpu_group> by_size = otimes::planning::tile_formula::choose_by_size(r, gpu);
            const std::optional<gpu_group> chosen = otimes::planning::tile_formula::choose(r, gpu);
            REQUIRE(by_size);
            REQUIRE(chosen);
            if (!multiply_adds::knows(*by_size)) {
                continue;
            }
            ++known;
            CAPTURE(n);
            CAPTURE(inner);
            CHECK(otimes::planning::why_illegal(*chosen, gpu).empty());
            CHECK(chosen->tile.blocks * (otimes::planning::shared_bytes_of(*chosen) + 1024) <=
                  gpu.shared_bytes_per_multiprocessor);
            CHECK(multiply_adds::slowness(r, gpu, *chosen) <= multiply_adds::slowness(r, gpu, *by_size));
            for (std::size_t step = 0; step < chosen->tile.trips.size(); ++step) {
                CHECK(multiply_adds::deal(multiply_adds::shape_of(*chosen, step, inner % 4 != 0)).busy > 0.6);
            }
        }
    }
    CHECK(known >= 20);
    // Rows of a tile divide a line of several tensors; few tiles stay as they were.
    otimes::planning::group_request cut = request(17, 2, 21000);
    cut.parts_per_line = 7;
    CHECK(7 % otimes::planning::tile_formula::choose(cut, gpu)->tile.rows == 0);
    const otimes::planning::group_request few = request(17, 2, 50);
    CHECK(otimes::planning::tile_formula::choose(few, gpu) == otimes::planning::tile_formula::choose_by_size(few, gpu));
}

// SPDX-License-Identifier: MIT
// Long factors on a GPU: which kernel by blocks, when, and at what predicted time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <otimes/plan/explain.hpp>
#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

#include "plan/programs.hpp"

namespace {

using namespace planner_test;
using otimes::gpu_description;
using otimes::h200;
using otimes::options;
using otimes::pass_kernel;
using otimes::plan;
using otimes::sweep_kernel;
using otimes::planning::blocked_kernel;
using otimes::planning::blocked_kernel_for;
using otimes::planning::blocked_request;
using otimes::planning::blocked_seconds;

blocked_request request_of(dtype type, std::int64_t p, std::int64_t q, std::int64_t fibres) {
    blocked_request r;
    r.type = type;
    r.p = p;
    r.q = q;
    r.fibres = fibres;
    return r;
}

plan plan_of(std::int64_t rows, const std::vector<mode_spec>& factors, dtype type, const gpu_description& gpu = h200(),
             const options& wishes = {}, bool column_major = false) {
    program p = rows_program(rows, factors, type, column_major);
    for (otimes::tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? otimes::memory_space::device : otimes::memory_space::host;
    }
    return otimes::make_plan(p, otimes::gpu_machine(gpu), wishes);
}

}  // namespace

TEST_CASE("blocks: the arithmetic that the type, the wishes and the device leave") {
    const auto arithmetic = [](dtype type, const gpu_description& gpu, bool unit = true, bool single = false) {
        blocked_request r = request_of(type, 400, 400, 10000);
        r.may_use_unit = unit;
        r.single = single;
        return blocked_kernel_for(r, gpu).value().arithmetic;
    };
    CHECK(arithmetic(dtype::f32, h200()) == sweep_kernel::mma_split);
    CHECK(arithmetic(dtype::f32, h200(), true, true) == sweep_kernel::mma_tf32);
    CHECK(arithmetic(dtype::f32, h200(), false) == sweep_kernel::fibre);
    CHECK(arithmetic(dtype::f64, h200()) == sweep_kernel::mma_f64);
    CHECK(arithmetic(dtype::f16, h200()) == sweep_kernel::mma_tf32);
    CHECK(arithmetic(dtype::c64, h200()) == sweep_kernel::fibre);
    // m16n8k8 of doubles comes with 9.0, TF32 with 8.0.
    CHECK(arithmetic(dtype::f64, otimes::gpu_of_capability(80)) == sweep_kernel::fibre);
    CHECK(arithmetic(dtype::f32, otimes::gpu_of_capability(80)) == sweep_kernel::mma_split);
    CHECK(arithmetic(dtype::f32, otimes::gpu_of_capability(75)) == sweep_kernel::fibre);
}

TEST_CASE("blocks: no longer factor, too little of it, or no room: none") {
    using otimes::planning::suits_blocks;
    CHECK(suits_blocks(request_of(dtype::f64, 50, 50, 1000), h200()));
    CHECK(!suits_blocks(request_of(dtype::f64, 40, 40, 1000), h200()));  // tiles hold several such modes
    CHECK(!suits_blocks(request_of(dtype::f64, 500, 8, 1000), h200()));
    CHECK(!suits_blocks(request_of(dtype::f64, 500, 500, 8), h200()));
    gpu_description small = h200();
    small.shared_bytes_per_block = 8192;
    CHECK(!blocked_kernel_for(request_of(dtype::f64, 400, 400, 1000), small));
    small.shared_bytes_per_block = 64 * 1024;  // floats have room for two warps, doubles for none
    CHECK(blocked_kernel_for(request_of(dtype::f32, 400, 400, 100000), small).value().shared_bytes() <= 64 * 1024);
    CHECK(!blocked_kernel_for(request_of(dtype::f64, 400, 400, 100000), small));
}

TEST_CASE("blocks: as wide as Q wants, narrow where there are few") {
    const auto warps = [](std::int64_t q, std::int64_t fibres) {
        return blocked_kernel_for(request_of(dtype::f32, 300, q, fibres), otimes::gpu_of_capability(80))
            .value()
            .warps_of_q;
    };
    CHECK(warps(64, 1 << 20) == 2);
    CHECK(warps(65, 1 << 20) == 3);
    CHECK(warps(512, 1 << 20) == 2);
    CHECK(warps(512, 200) == 1);
    // By the warpgroup's unit in even shares of Q, a multiple of eight each.
    const auto together = [](std::int64_t q, std::int64_t fibres, bool single = false) {
        blocked_request r = request_of(dtype::f32, 300, q, fibres);
        r.single = single;
        return blocked_kernel_for(r, h200()).value().together;
    };
    CHECK(together(64, 1 << 20) == 64);
    CHECK(together(65, 1 << 20) == 72);
    CHECK(together(512, 1 << 20) == 128);
    CHECK(together(600, 1 << 20) == 120);
    CHECK(together(512, 200) <= 64);
    CHECK(blocked_kernel_for(request_of(dtype::f64, 600, 600, 1 << 20), h200()).value().together == 0);
    CHECK(blocked_kernel_for(request_of(dtype::f16, 300, 300, 1 << 20), h200()).value().together == 0);
    // Monotone: more work is never predicted to take less.
    double last = 0;
    for (const std::int64_t fibres : {100, 1000, 10000, 100000, 1000000}) {
        const blocked_request r = request_of(dtype::f64, 300, 300, fibres);
        const double seconds = blocked_seconds(r, blocked_kernel_for(r, h200()).value(), h200());
        CHECK(seconds >= last);
        last = seconds;
    }
    // Measured on an H200 (docs/notebook/gpu.md), milliseconds: within a half.
    const auto near = [](dtype type, std::int64_t p, std::int64_t q, std::int64_t fibres, bool aligned,
                         double measured) {
        blocked_request r = request_of(type, p, q, fibres);
        r.aligned = aligned;
        const double ms = 1e3 * blocked_seconds(r, blocked_kernel_for(r, h200()).value(), h200());
        CAPTURE(ms);
        CAPTURE(measured);
        CHECK(ms > measured / 1.5);
        CHECK(ms < measured * 1.5);
    };
    near(dtype::f32, 512, 512, 65536, true, 0.434);
    near(dtype::f32, 367, 367, 81741, false, 0.553);
    near(dtype::f64, 100, 100, 49985, true, 0.0468);
}

TEST_CASE("blocks: doubles ahead, of the width that fits Q and fills the device, at the predicted time") {
    const auto width = [](std::int64_t p, std::int64_t q, std::int64_t fibres) {
        const blocked_kernel k = blocked_kernel_for(request_of(dtype::f64, p, q, fibres), h200()).value();
        CHECK(k.ahead());
        return k.warps_of_q;
    };
    CHECK(width(1000, 1000, 30000) == 2);
    CHECK(width(1000, 96, 30000) == 3);
    CHECK(width(1000, 1000, 1000) == 2);
    CHECK(width(1000, 1000, 200) == 1);  // 64 blocks, and 32
    CHECK(width(1000, 30, 30000) == 1);
    CHECK(!blocked_kernel_for(request_of(dtype::f64, 600, 600, 60000), otimes::gpu_of_capability(80)).value().ahead());
    // Where a block has 99 KB, narrow ones have room.
    gpu_description small = h200();
    small.shared_bytes_per_block = 99 * 1024;
    CHECK(blocked_kernel_for(request_of(dtype::f64, 1000, 1000, 30000), small).value().warps_of_q == 1);
    // Measured on an H200 (bench/results/doubles_ahead_h200.txt), milliseconds: within a fifth; rows or columns, accesses of 16 bytes or of elements.
    const auto near = [](std::int64_t p, std::int64_t q, std::int64_t fibres, bool along_p, bool aligned,
                         double measured) {
        blocked_request r = request_of(dtype::f64, p, q, fibres);
        r.x_along_p = along_p;
        r.aligned = r.x_aligned = aligned;
        const blocked_kernel k = blocked_kernel_for(r, h200()).value();
        CHECK(k.ahead());
        const double ms = 1e3 * blocked_seconds(r, k, h200());
        CAPTURE(p);
        CAPTURE(ms);
        CAPTURE(measured);
        CHECK(ms > measured / 1.2);
        CHECK(ms < measured * 1.2);
    };
    near(512, 512, 60000, true, true, 0.600);
    near(512, 512, 61440, false, true, 0.630);
    near(1000, 1000, 1000, true, true, 0.0418);
    near(1000, 1000, 1000, false, true, 0.0432);
    near(1000, 1000, 30000, true, true, 1.112);
    near(1000, 96, 30000, true, true, 0.130);
    near(1000, 200, 30000, true, true, 0.313);
    near(256, 256, 100000, true, true, 0.290);
    near(400, 400, 64000, true, true, 0.447);
    near(501, 501, 50000, true, false, 0.704);
    near(1001, 1001, 1001, false, false, 0.0540);
}

TEST_CASE("blocks: factors that stay on chip, where they have room and enough to do, at the predicted time") {
    const auto kernel = [](std::int64_t p, std::int64_t q, std::int64_t fibres) {
        return blocked_kernel_for(request_of(dtype::f32, p, q, fibres), h200()).value();
    };
    CHECK(kernel(100, 100, 1 << 20).staying_steps == 13);
    CHECK(kernel(100, 100, 1 << 20).together == 104);
    CHECK(kernel(100, 100, 1 << 20).staying_panels() == 4);
    CHECK(kernel(200, 200, 1 << 20).together == 72);      // three shares of 67
    CHECK(kernel(512, 512, 1 << 20).staying_steps == 0);  // X would be split eleven times
    CHECK(kernel(100, 100, 10000).staying_steps == 0);    // fewer tiles than multiprocessors
    CHECK(kernel(52, 52, 1 << 20).staying_steps == 0);    // tiles hold such modes
    CHECK(kernel(32, 300, 1 << 20).staying_steps == 0);   // one panel
    CHECK(kernel(40, 100, 1 << 20).staying_steps == 5);
    CHECK(blocked_kernel_for(request_of(dtype::f32, 100, 100, 1 << 20), otimes::gpu_of_capability(100))
              .value()
              .staying_steps == 0);
    // Doubles by the unit that every warp has: as they are, so that longer ones have room.
    const auto of_doubles = [](std::int64_t p, std::int64_t q, std::int64_t fibres, int capability = 90) {
        return blocked_kernel_for(request_of(dtype::f64, p, q, fibres), otimes::gpu_of_capability(capability)).value();
    };
    CHECK(of_doubles(100, 100, 1 << 20).staying_steps == 13);
    CHECK(of_doubles(100, 100, 1 << 20).together == 104);
    CHECK(of_doubles(100, 100, 1 << 20).staying_panels() == 5);
    CHECK(of_doubles(40, 100, 1 << 20).staying_steps == 5);
    CHECK(of_doubles(30, 60, 1 << 20).staying_steps == 0);        // tiles are 1.15 times as fast between other modes
    CHECK(of_doubles(52, 52, 1 << 20).staying_steps == 0);        // tiles hold such modes
    CHECK(of_doubles(256, 256, 160000).staying_steps == 0);       // by blocks, ahead
    CHECK(of_doubles(600, 600, 1 << 20).staying_steps == 0);      // no room
    CHECK(of_doubles(128, 128, 7808).staying_steps == 0);         // fewer tiles than multiprocessors
    CHECK(of_doubles(100, 100, 1 << 20, 80).staying_steps == 0);  // no such unit
    // X, longer than L2, would be read for each of ten parts of Q: 0.438 ms for 0.402 by blocks.
    CHECK(of_doubles(400, 400, 48000).staying_steps == 0);
    blocked_request rows = request_of(dtype::f64, 65, 65, 1 << 20);
    rows.x_along_p = true;
    rows.aligned = rows.x_aligned = false;
    CHECK(blocked_kernel_for(rows, h200()).value().staying_steps == 0);
    rows.x_along_p = false;
    CHECK(blocked_kernel_for(rows, h200()).value().staying_steps == 9);
    gpu_description small = h200();
    small.shared_bytes_per_block = 160 * 1024;
    CHECK(blocked_kernel_for(request_of(dtype::f32, 100, 100, 1 << 20), small).value().shared_bytes() <= 160 * 1024);
    // Measured on an H200 (bench/results/staying_factor_h200.txt), milliseconds: within a quarter; rows or columns, X or rows of Y by single elements.
    const auto near = [](std::int64_t p, std::int64_t q, std::int64_t fibres, bool along_p, bool x_aligned,
                         double measured, dtype type = dtype::f32) {
        blocked_request r = request_of(type, p, q, fibres);
        r.x_along_p = along_p;
        r.x_aligned = x_aligned;
        r.aligned = x_aligned && q % (16 / otimes::element_bytes(type)) == 0;
        const blocked_kernel k = blocked_kernel_for(r, h200()).value();
        CHECK(k.staying_steps == (p + 7) / 8);
        const double ms = 1e3 * blocked_seconds(r, k, h200());
        CAPTURE(p);
        CAPTURE(ms);
        CAPTURE(measured);
        CHECK(ms > measured / 1.25);
        CHECK(ms < measured * 1.25);
    };
    near(100, 100, 500000, true, true, 0.171);
    near(100, 100, 496000, false, true, 0.174);
    near(128, 128, 384000, false, true, 0.164);
    near(72, 72, 688000, false, true, 0.166);
    near(101, 101, 495040, true, false, 0.269);
    near(101, 101, 480480, false, false, 0.252);
    near(127, 127, 384000, false, true, 0.167);
    near(200, 200, 250000, true, true, 0.297);
    near(100, 100, 40000, true, true, 0.0247);
    near(40, 100, 300000, true, true, 0.0779);
    near(100, 100, 500000, true, true, 0.285, dtype::f64);
    near(100, 100, 160000, false, true, 0.105, dtype::f64);
    near(128, 128, 400000, false, true, 0.331, dtype::f64);
    near(72, 72, 700000, false, true, 0.263, dtype::f64);
    near(101, 101, 480000, true, false, 0.394, dtype::f64);
    near(101, 101, 480480, false, false, 0.447, dtype::f64);
    near(150, 150, 300000, false, true, 0.350, dtype::f64);
    near(200, 200, 200000, true, true, 0.376, dtype::f64);
    near(40, 100, 200000, true, true, 0.0807, dtype::f64);
    // Whoever brings a factor for each tile waits for it each time: of 100 x 100 doubles 6.9 us, of floats 5.
    for (const auto& [type, least, most] :
         {std::tuple{dtype::f64, 6.5e-6, 7.5e-6}, std::tuple{dtype::f32, 4.5e-6, 5.5e-6}}) {
        blocked_request r = request_of(type, 100, 100, 1320 * 128);
        const blocked_kernel k = blocked_kernel_for(r, h200()).value();
        CHECK(k.staying_steps == 13);
        const double one_factor = blocked_seconds(r, k, h200());
        r.batches = 1320;
        r.fibres = 128;
        const double each = (blocked_seconds(r, k, h200()) - one_factor) / 9;  // ten turns
        CHECK(each > least);
        CHECK(each < most);
    }
}

TEST_CASE("blocks: plans take them for long factors, beside tiles for others, and say so") {
    const plan one = plan_of(80000, {factor(367, 367)}, dtype::f32);
    REQUIRE(one.passes.size() == 1);
    CHECK(one.passes[0].kernel == pass_kernel::gpu_blocked);
    CHECK(one.passes[0].sweeps[0].kernel == sweep_kernel::mma_split);
    CHECK(one.passes[0].predicted_seconds >= one.passes[0].bound_seconds);
    CHECK(otimes::explain(one).find("blocks of 128 fibres") != std::string::npos);
    CHECK(otimes::plan_from_text(otimes::to_text(one)) == one);

    // Square factors that stay whole work where they read: what lies between lies in Y.
    for (const dtype type : {dtype::f32, dtype::f64}) {
        for (const bool column_major : {false, true}) {
            const plan cube =
                plan_of(10, {factor(100, 100), factor(100, 100), factor(100, 100)}, type, h200(), {}, column_major);
            REQUIRE(cube.passes.size() == 3);
            for (std::size_t at : {0, 1, 2}) {
                CHECK(cube.passes[at].kernel == pass_kernel::gpu_blocked);
                CHECK(cube.passes[at].out == cube.passes[2].out);
            }
            CHECK(cube.passes[2].in == cube.passes[2].out);
            CHECK(cube.buffer_elements.empty());
        }
    }
    // In front of a factor that makes Y longer they work in one buffer.
    const plan grows = plan_of(1, {factor(96, 128), factor(100, 100), factor(100, 100), factor(100, 100)}, dtype::f64);
    REQUIRE(grows.passes.size() == 4);
    CHECK(grows.passes[0].out <= -2);
    for (std::size_t at : {1, 2}) {
        CHECK(grows.passes[at].kernel == pass_kernel::gpu_blocked);
        CHECK(grows.passes[at].in == grows.passes[0].out);
        CHECK(grows.passes[at].out == grows.passes[0].out);
    }
    CHECK(grows.buffer_elements.size() == 1);
    blocked_request whole = request_of(dtype::f64, 100, 100, 1 << 20);
    CHECK(otimes::planning::in_place_kernel_for(whole, h200()) == blocked_kernel_for(whole, h200()));
    whole.q = 104;
    CHECK(!otimes::planning::in_place_kernel_for(whole, h200()));
    whole.p = whole.q = 136;  // two parts of Q: the second reads what the first has replaced
    CHECK(!otimes::planning::in_place_kernel_for(whole, h200()));
    whole.p = whole.q = 100;
    CHECK(!otimes::planning::in_place_kernel_for(whole, otimes::gpu_of_capability(80)));
    whole.type = dtype::f32;
    CHECK(!otimes::planning::in_place_kernel_for(whole, otimes::gpu_of_capability(100)));
    gpu_description narrow = h200();
    narrow.shared_bytes_per_block = 160 * 1024;
    CHECK(!otimes::planning::in_place_kernel_for(whole, narrow));

    // Other blocks do not: what lies between two of them has a buffer, although Y could hold it.
    const plan two = plan_of(40, {factor(359, 359), factor(401, 401)}, dtype::f64);
    REQUIRE(two.passes.size() == 2);
    for (const otimes::pass& p : two.passes) {
        CHECK(p.kernel == pass_kernel::gpu_blocked);
    }
    CHECK(two.passes[0].out <= -2);
    options tight;
    tight.workspace_limit_bytes = 8 << 20;
    const plan bounded = plan_of(40, {factor(359, 359), factor(401, 401)}, dtype::f64, h200(), tight);
    CHECK(bounded.workspace_bytes <= 8 << 20);

    const plan mixed = plan_of(2000, {factor(4, 4), factor(300, 200), factor(16, 16)}, dtype::f64);
    bool blocks = false;
    bool tiles = false;
    for (const otimes::pass& p : mixed.passes) {
        blocks = blocks || p.kernel == pass_kernel::gpu_blocked;
        tiles = tiles || p.kernel == pass_kernel::gpu_trailing || p.kernel == pass_kernel::gpu_outer;
    }
    CHECK(blocks);
    CHECK(tiles);

    // Floats by the warpgroup's unit from 80 on, tiles of the other unit at 60 (on an H200 1.2 to 1.8 times as fast there).
    for (const otimes::pass& p :
         plan_of(8, {factor(100, 100), factor(100, 100), factor(100, 100)}, dtype::f32, h200(), {}, true).passes) {
        CHECK(p.kernel == pass_kernel::gpu_blocked);
    }
    // At 50 tiles of the other unit are as fast, but where a tile's warps would have few fibres.
    for (const bool column_major : {false, true}) {
        const plan cube =
            plan_of(13, {factor(50, 50), factor(50, 50), factor(50, 50)}, dtype::f32, h200(), {}, column_major);
        CHECK(std::ranges::count(cube.passes, pass_kernel::gpu_blocked, &otimes::pass::kernel) ==
              (column_major ? 1 : 0));
    }
    // A tile that was measured stays, but where a factor that stays on chip gains a seventh: 128 between others, not of rows.
    const plan square = plan_of(640, {factor(128, 128), factor(128, 128)}, dtype::f32);
    REQUIRE(square.passes.size() == 2);
    CHECK(square.passes[0].kernel == pass_kernel::gpu_trailing);
    CHECK(square.passes[1].kernel == pass_kernel::gpu_blocked);
    CHECK(plan_of(200000, {factor(60, 60)}, dtype::f32, h200(), {}, true).passes[0].kernel == pass_kernel::gpu_blocked);
    CHECK(plan_of(200000, {factor(50, 50)}, dtype::f32, h200(), {}, true).passes[0].kernel == pass_kernel::gpu_outer);

    // Beside a tile that would be launched slice by slice: X is read once, so that the bound is the products'.
    const plan sliced = plan_of(64, {factor(512, 512), factor(512, 512)}, dtype::f64);
    for (const otimes::pass& one_of_two : sliced.passes) {
        CHECK(one_of_two.kernel == pass_kernel::gpu_blocked);
        CHECK(one_of_two.bound_seconds ==
              doctest::Approx(static_cast<double>(one_of_two.flops) / h200().flops_f64_mma));
        CHECK(one_of_two.predicted_seconds < 1.4 * one_of_two.bound_seconds);
    }

    gpu_description without = h200();
    without.compiles = false;
    CHECK(plan_of(80000, {factor(367, 367)}, dtype::f32, without).passes[0].kernel == pass_kernel::gpu_generic);
    CHECK(plan_of(80000, {factor(32, 32)}, dtype::f32).passes[0].kernel == pass_kernel::gpu_trailing);
}

TEST_CASE("blocks: sums in equal pieces where whole ones are too few blocks for the device") {
    using otimes::planning::blocks_in_pieces;
    const auto way = [](const blocked_request& r) {
        return otimes::planning::pieces_of_blocks(r, *blocked_kernel_for(r, h200()), h200());
    };
    for (const dtype type : {dtype::f32, dtype::f64}) {
        const blocked_request few = request_of(type, 512, 512, 512);
        const blocks_in_pieces in_pieces = way(few);
        CHECK(in_pieces.pieces == 4);
        CHECK(in_pieces.seconds < 0.9 * blocked_seconds(few, *blocked_kernel_for(few, h200()), h200()));
        CHECK(way(request_of(type, 509, 512, 512)).pieces == 1);    // a prime
        CHECK(way(request_of(type, 512, 512, 20000)).pieces == 1);  // blocks for all
        CHECK(way(request_of(type, 96, 512, 512)).pieces == 1);     // a piece is 64 long at least
        // On a device of ten times as many multiprocessors 16 MiB bound what the pieces' sums take.
        gpu_description large = h200();
        large.multiprocessors *= 10;
        const blocked_request wide = request_of(type, 4000, 900, 900);
        const std::int64_t pieces =
            otimes::planning::pieces_of_blocks(wide, *blocked_kernel_for(wide, large), large).pieces;
        CHECK(pieces > 1);
        CHECK(pieces * 900 * 900 * otimes::element_bytes(type) <= 16 << 20);
        // A piece begins where whole accesses do, unless they are none anyway: 510 = 2 * 255 = 3 * 170 = 5 * 102.
        blocked_request odd = request_of(type, 510, 512, 512);
        const std::int64_t pieces_of_odd = way(odd).pieces;
        CHECK((pieces_of_odd > 1) == (type == dtype::f64));
        CHECK((pieces_of_odd == 1 || 510 / pieces_of_odd * otimes::element_bytes(type) % 16 == 0));
        odd.aligned = odd.x_aligned = false;
        CHECK(way(odd).pieces > 1);
        // A block that is not full takes longer than a full one, much longer where its copies are not set off ahead.
        CHECK(way(request_of(type, 2048, 512, 127)).seconds >
              (type == dtype::f32 ? 1.3 : 1.04) * way(request_of(type, 2048, 512, 128)).seconds);
    }
    CHECK(way(request_of(dtype::f16, 512, 512, 512)).pieces == 1);  // would be rounded on the way

    const plan one = plan_of(512, {factor(512, 512)}, dtype::f64);
    REQUIRE(one.passes.size() == 1);
    CHECK(one.passes[0].kernel == pass_kernel::gpu_blocked);
    CHECK(one.passes[0].tile.slices == 4);
    CHECK(otimes::explain(one).find("blocks of 128 fibres, sums in 4 pieces") != std::string::npos);
    CHECK(otimes::plan_from_text(otimes::to_text(one)) == one);
    options repeatable;
    repeatable.deterministic = true;
    for (const otimes::pass& p : plan_of(512, {factor(512, 512)}, dtype::f64, h200(), repeatable).passes) {
        CHECK((p.kernel != pass_kernel::gpu_blocked || p.tile.slices == 1));
    }
}

TEST_CASE("blocks: the products of tests/cuda/long_factors.cpp, of every type, in both orders") {
    struct product {
        std::int64_t rows;
        std::vector<mode_spec> factors;
    };
    const std::vector<product> products{{5000, {factor(257, 257)}},
                                        {3000, {factor(360, 296)}},
                                        {300, {factor(150, 290), factor(40, 40)}},
                                        {90, {factor(5, 5), factor(463, 270), factor(7, 7)}}};
    for (const dtype type : {dtype::f32, dtype::f64, dtype::c64, dtype::c128}) {
        for (const bool column_major : {false, true}) {
            for (const product& one : products) {
                CAPTURE(one.rows);
                CAPTURE(column_major);
                const plan made = plan_of(one.rows, one.factors, type, h200(), {}, column_major);
                CHECK(std::ranges::any_of(made.passes,
                                          [](const otimes::pass& p) { return p.kernel == pass_kernel::gpu_blocked; }));
            }
        }
    }
}

TEST_CASE("blocks: not for modes of up to 64 of a program with several chains, whose tiles may share a launch") {
    // A Kronecker sum of 64 x 64 doubles: 0.25 ms with one launch for the two inner modes, 0.37 with the last mode by blocks.
    const auto kernel = [](std::int64_t extent, bool alone) {
        chain_spec spec;
        spec.type = dtype::f64;
        spec.add = true;
        spec.modes = {free_mode(64 * 64 * 64), factor(extent, extent)};
        otimes::planning::chain c = otimes::planning::chains_of(chain_program(spec)).front();
        for (otimes::planning::chain_mode& m : c.modes) {
            m.stride_in = m.stride_out = m.contracted() ? 1 : extent;
        }
        otimes::planning::sort_by_memory(c.modes);
        std::vector<otimes::planning::factor_group> groups = otimes::planning::group_factors(c, false);
        const gpu_description gpu = h200();
        otimes::planning::gpu_chain_planner<> planner(c, groups, gpu, {}, {});
        planner.stands_alone(alone);
        otimes::pass p;
        planner.evaluate(0, 1, nullptr, p);
        return p.kernel;
    };
    CHECK(kernel(64, true) == pass_kernel::gpu_blocked);
    CHECK(kernel(64, false) == pass_kernel::gpu_trailing);
    CHECK(kernel(80, false) == pass_kernel::gpu_blocked);  // no launch is shared there
}

TEST_CASE("blocks: for modes of up to 64 of a program with several chains whose launches are their own") {
    // How many passes of a plan for operands in device memory go by blocks.
    const auto by_blocks = [](program p) {
        for (otimes::tensor& t : p.tensors) {
            t.space = otimes::memory_space::device;
        }
        const plan made = otimes::make_plan(p, otimes::gpu_machine(h200()), {.placement = otimes::placement::gpu});
        return std::ranges::count(made.passes, pass_kernel::gpu_blocked, &otimes::pass::kernel);
    };
    const std::vector<mode_spec> short_ones{factor(64, 64), factor(64, 64), factor(64, 64)};
    CHECK(by_blocks(sum_of_chains(60, {short_ones, short_ones})) == 0);  // their tiles share launches
    // With a long mode, 90, the terms have passes of their own: that of 60, too.
    const std::vector<mode_spec> mixed{factor(30, 30), factor(60, 60), factor(90, 90)};
    CHECK(by_blocks(sum_of_chains(100, {mixed, mixed})) == 4);
    // What goes on from what another chain has left, to another place.
    program behind =
        sum_of_chains(4000, {{factor(64, 64), factor(64, 64)}, {factor(64, 64), factor(64, 64)}}, false, true);
    CHECK(otimes::planning::chains_of(behind).size() == 3);
    CHECK(by_blocks(behind) == 1);
}

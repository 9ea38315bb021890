// SPDX-License-Identifier: MIT
// Operands in host memory pass through a GPU in slabs: every budget of device memory from the least up gives the program's
// result, the least is what the refusal names, and sizes that no device holds are planned.
#include "plan/interpreter.hpp"
#include "plan/programs.hpp"

#include <otimes/exec/reference.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace planner_test;
using otimes::placement;
using otimes::planning::plan_stream;
using otimes::planning::stream_plan;
using otimes::planning::stream_stage;

// Calls use(host offset, packed offset) for each element of a host tensor that lies packed, outermost mode first, elsewhere.
template <class Use>
void for_elements(const std::vector<otimes::mode>& modes, const Use& use) {
    odometer index(modes.size(), 0);
    odometer extents;
    for (const otimes::mode& m : modes) {
        extents.push_back(m.extent);
    }
    std::int64_t packed = 0;
    do {
        std::int64_t offset = 0;
        for (std::size_t k = 0; k < modes.size(); ++k) {
            offset += index[k] * modes[k].stride;
        }
        use(static_cast<std::size_t>(offset), static_cast<std::size_t>(packed++));
    } while (advance(index, extents));
}

// What an executor does, slab after slab. The device is a set of vectors that hold exactly one slab, poisoned before each.
void run_stage(const stream_stage& stage, std::vector<double*> host) {
    const auto first = static_cast<std::size_t>(otimes::planning::streaming::first_device_binding(stage.source));
    for (std::int64_t s = 0; s < stage.slab_count; ++s) {
        const bool shorter = s + 1 == stage.slab_count && !stage.rest.passes.empty();
        const otimes::plan& p = shorter ? stage.rest : stage.slab;
        std::vector<std::vector<double>> device(stage.operands.size());
        otimes::bindings bound;
        for (std::size_t i = 0; i < first + device.size(); ++i) {
            bound.pointers.push_back(nullptr);
        }
        const auto moves = [&](std::size_t i, std::vector<otimes::mode>& modes, double*& at) {
            const auto& o = stage.operands[i];
            otimes::program host_slab = stage.source;
            at = host[static_cast<std::size_t>(stage.source.at(o.tensor).binding)];
            if (o.cut_mode >= 0) {
                const std::int64_t begin = s * stage.slab_extent;
                const std::int64_t count = std::min(stage.slab_extent, stage.cut.extent - begin);
                host_slab = otimes::planning::slice_of(stage.source, stage.cut, count);
                at += begin * stage.source.modes_of(o.tensor)[static_cast<std::size_t>(o.cut_mode)].stride;
            }
            modes = otimes::planning::pack(host_slab, o.tensor);
        };
        for (std::size_t i = 0; i < device.size(); ++i) {
            const std::int32_t id = stage.operands[i].tensor;
            REQUIRE(p.source.at(id).space == otimes::memory_space::device);
            REQUIRE(p.source.at(id).binding == static_cast<std::int32_t>(first + i));
            device[i].assign(static_cast<std::size_t>(otimes::element_count(p.source, id)),
                             std::numeric_limits<double>::quiet_NaN());
            bound.pointers[first + i] = device[i].data();
            if (stage.operands[i].read) {
                std::vector<otimes::mode> modes;
                double* from = nullptr;
                moves(i, modes, from);
                for_elements(modes, [&](std::size_t h, std::size_t d) { device[i][d] = from[h]; });
            }
        }
        bound.scalars.push_back({0.5, 0.0});
        otimes::reference_run<double>(p.source, bound);
        for (std::size_t i = 0; i < device.size(); ++i) {
            if (stage.operands[i].written) {
                std::vector<otimes::mode> modes;
                double* to = nullptr;
                moves(i, modes, to);
                for_elements(modes, [&](std::size_t h, std::size_t d) { to[h] = device[i][d]; });
            }
        }
    }
}

bool streams_the_program(const otimes::program& source, const stream_plan& stream) {
    operand_store mine(source, 7);
    operand_store want(source, 7);
    std::vector<double> between(static_cast<std::size_t>(stream.host_temporary_bytes) / sizeof(double));
    std::vector<double*> host = mine.pointers;
    host.push_back(between.data());
    for (const stream_stage& stage : stream.stages) {
        run_stage(stage, host);
    }
    otimes::reference_run<double>(source, want.bound);
    return mine.data == want.data;
}

std::int64_t least_budget(const otimes::program& p, const otimes::gpu_description& gpu) {
    try {
        (void)plan_stream(p, gpu, {.workspace_limit_bytes = 0}, 0);
    } catch (const otimes::budget_error& refused) {
        const std::string text = refused.what();
        const std::string before = "take at least ";
        const std::size_t at = text.find(before);
        REQUIRE(at != std::string::npos);
        CHECK(text.find("workspace_limit_bytes is 0") != std::string::npos);
        return std::stoll(text.substr(at + before.size()));
    }
    return 0;
}

// A GPU on which even these sizes are worth cutting, since copies are slow and start at once.
otimes::gpu_description slow_link() {
    otimes::gpu_description gpu = otimes::h200();
    gpu.host_bytes_per_second = 1e6;
    gpu.launch_seconds = 1e-9;
    return gpu;
}

// Y = X1 * kron(F1, F2) + X2 * kron(F3): two chains over the same rows, the second seen with other modes; `one_x`: X2 is X1.
otimes::program sum_program(std::int64_t rows, bool column_major, bool one_x = false) {
    otimes::program p = rows_program(rows, {factor(3, 4), factor(2, 5)}, dtype::f64, column_major);
    const otimes::program other = rows_program(rows, {factor(one_x ? 6 : 7, 20)}, dtype::f64, column_major);
    const auto tensors = static_cast<std::int32_t>(p.tensors.size());
    const auto modes = static_cast<std::int32_t>(p.modes.size());
    std::int32_t bindings = 0;
    std::int32_t x = 0;
    std::int32_t y = 0;
    for (const otimes::tensor& t : p.tensors) {
        bindings = std::max(bindings, t.binding + 1);
        x = t.role == otimes::tensor_role::input ? t.binding : x;
        y = t.role == otimes::tensor_role::output ? t.binding : y;
    }
    for (otimes::tensor t : other.tensors) {
        t.first_mode += modes;
        t.binding = t.role == otimes::tensor_role::output           ? y
                    : one_x && t.role == otimes::tensor_role::input ? x
                    : t.binding < 0                                 ? -1
                                                                    : bindings++;
        p.tensors.push_back(t);
    }
    p.modes.insert(p.modes.end(), other.modes.begin(), other.modes.end());
    for (otimes::step s : other.steps) {
        s.in += tensors;
        s.factor += tensors;
        s.out += tensors;
        s.add = true;
        p.steps.push_back(s);
    }
    return p;
}

std::vector<otimes::program> programs() {
    chain_spec both;
    both.modes = {factor(3, 5), free_mode(4), factor(2, 3), factor(4, 2)};
    both.add = both.scalar = true;
    both.gap = 3;
    chain_spec row;
    row.modes = {free_mode(1), factor(5, 4), factor(6, 6), factor(3, 4)};
    row.scalar = true;
    chain_spec squares = row;
    squares.modes = {factor(5, 5), factor(6, 6), factor(4, 4)};
    chain_spec added = squares;
    added.add = true;
    return {rows_program(37, {factor(3, 2), factor(2, 4), factor(3, 3)}, dtype::f64),
            rows_program(37, {factor(3, 2), factor(2, 4), factor(3, 3)}, dtype::f64, true),
            chain_program(both),
            sum_program(23, false),
            sum_program(23, true),
            chain_program(row),
            chain_program(squares),
            chain_program(added),
            sum_program(23, false, true),
            sum_program(23, true, true)};
}

}  // namespace

TEST_CASE("streams: every budget of device memory from the least up") {
    const otimes::gpu_description gpu = slow_link();
    int number = 0;
    for (const otimes::program& p : programs()) {
        ++number;
        CAPTURE(number);
        const std::int64_t whole = plan_stream(p, gpu, {}, std::int64_t{1} << 40).device_bytes;
        const std::int64_t least = least_budget(p, gpu);
        REQUIRE(least > 0);
        CHECK(least < whole);
        try {
            (void)plan_stream(p, gpu, {}, least - 1);
            FAIL("one byte less than the least must be refused");
        } catch (const otimes::budget_error& refused) {
            CHECK(std::string(refused.what()).find(std::to_string(least) + " bytes") != std::string::npos);
            CHECK(refused.least_bytes() == least);
        }
        std::int64_t before = -1;
        for (std::int64_t budget = least; budget <= whole; budget += 256) {
            const stream_plan stream = plan_stream(p, gpu, {}, budget);
            REQUIRE(stream.device_bytes <= budget);
            if (stream.device_bytes != before) {  // the same slabs need no second look
                before = stream.device_bytes;
                CAPTURE(budget);
                CAPTURE(stream.stages.size());
                CAPTURE(stream.stages.front().slab_count);
                CAPTURE(stream.stages.front().slab_extent);
                REQUIRE(streams_the_program(p, stream));
            }
        }
    }
}

TEST_CASE("streams: one row passes in two trips, between which squares lie in Y") {
    const otimes::gpu_description gpu = slow_link();
    const std::vector<otimes::program> all = programs();
    const auto tight = [&](std::size_t i) { return plan_stream(all[i], gpu, {}, least_budget(all[i], gpu)); };
    CHECK(tight(5).stages.size() == 2);
    CHECK(tight(6).stages.size() == 2);
    CHECK(tight(6).host_temporary_bytes == 0);
    CHECK(tight(7).host_temporary_bytes == 5 * 6 * 4 * 8);  // Y holds what is added to
}

TEST_CASE("streams: the terms of a sum have one copy of their X, also where they see it with other modes") {
    const otimes::gpu_description gpu = slow_link();
    for (const bool column_major : {false, true}) {
        CAPTURE(column_major);
        const otimes::program apart = sum_program(24, column_major), one = sum_program(24, column_major, true);
        const auto streamed = [&](const otimes::program& p) {
            const stream_plan s = plan_stream(p, gpu, {}, std::int64_t{1} << 40);
            REQUIRE(s.stages.size() == 1);
            CHECK(streams_the_program(p, s));
            return s.stages.front();
        };
        const stream_stage two_copies = streamed(apart), one_copy = streamed(one);
        CHECK(two_copies.operands.size() == 6);  // two of X, three factors, Y
        CHECK(one_copy.operands.size() == 5);
        CHECK(two_copies.bytes_in == 8 * (24 * (6 + 7) + 3 * 4 + 2 * 5 + 7 * 20));
        CHECK(one_copy.bytes_in == 8 * (24 * 6 + 3 * 4 + 2 * 5 + 6 * 20));
        std::int32_t x = -1;
        for (const otimes::tensor& t : one_copy.device.tensors) {
            if (t.role == otimes::tensor_role::input) {
                CHECK(t.space == otimes::memory_space::device);
                CHECK((x < 0 || t.binding == x));
                x = t.binding;
            }
        }
        // The same memory read otherwise is another copy.
        otimes::program turned = one;
        for (otimes::tensor& t : turned.tensors) {
            if (t.role == otimes::tensor_role::input && t.mode_count == 2) {
                std::swap(turned.modes[static_cast<std::size_t>(t.first_mode)].stride,
                          turned.modes[static_cast<std::size_t>(t.first_mode) + 1].stride);
                turned.modes[static_cast<std::size_t>(t.first_mode) + (column_major ? 1 : 0)].stride = 5;
            }
        }
        CHECK(streamed(turned).operands.size() == 6);
    }
}

TEST_CASE("streams: rows of column-major operands go in slabs of long lines, and there are enough slabs to overlap") {
    const auto lines_of = [](std::int64_t rows, dtype type) {
        const otimes::program p = rows_program(rows, {factor(64, 64), factor(64, 64), factor(64, 64)}, type, true);
        const stream_plan s = plan_stream(p, otimes::h200(), {}, std::int64_t{100} << 30);
        REQUIRE(s.stages.size() == 1);
        return std::pair{s.stages.front().slab_extent * otimes::element_bytes(type), s.stages.front().slab_count};
    };
    using pair = std::pair<std::int64_t, std::int64_t>;  // bytes of a line, slabs
    CHECK(lines_of(65536, dtype::f32) == pair{8192, 32});
    CHECK(lines_of(65536, dtype::f64) == pair{8192, 64});
    CHECK(lines_of(32768, dtype::f32) == pair{8192, 16});
    CHECK(lines_of(16384, dtype::f32) == pair{8192, 8});
    CHECK(lines_of(4096, dtype::f32) == pair{2048, 8});
    CHECK(lines_of(4100, dtype::f32) == pair{1920, 9});  // whole cache lines
    CHECK(lines_of(1024, dtype::f32) == pair{512, 8});
}

TEST_CASE("streams: indices that a step mixes are no cut") {
    otimes::program p = rows_program(6, {factor(4, 4), factor(3, 3)}, dtype::f64);
    CHECK(otimes::planning::cuts_of(p).size() == 1);
    p.steps.front().kind = otimes::step_kind::gather;
    p.steps.front().mode = 0;
    CHECK(otimes::planning::cut_along(p, 0).extent == 0);
    p.steps.front().kind = otimes::step_kind::callback;
    CHECK(otimes::planning::cuts_of(p).empty());
}

TEST_CASE("2^36 elements in host memory are planned, on a GPU that holds a quarter of them and on the CPU") {
    const otimes::machine m = otimes::gpu_machine(otimes::h200(), 1, 2);
    const otimes::program p = rows_power(4096, 64, 4);  // 256 GiB of floats in, 256 GiB out
    REQUIRE(otimes::element_count(p, 0) == std::int64_t{1} << 36);
    const otimes::plan streamed = otimes::make_plan(p, m, {.placement = placement::gpu});
    CHECK(streamed.where == placement::gpu);
    CHECK(streamed.workspace_bytes < std::int64_t{1} << 30);
    CHECK(streamed.predicted_seconds > 256.0 * 1024 * 1024 * 1024 / 60e9);
    CHECK(streamed.notes.front().find("slabs") != std::string::npos);
    CHECK(otimes::make_plan(p, m).where == placement::gpu);
    const std::int64_t limit = 128 << 20;
    const otimes::plan slabs = otimes::make_plan(p, m, {.workspace_limit_bytes = limit, .placement = placement::cpu});
    CHECK(slabs.workspace_bytes <= limit);
    const otimes::plan one_row = otimes::make_plan(rows_power(1, 64, 6), m, {.placement = placement::gpu});
    CHECK(one_row.workspace_bytes < std::int64_t{100} << 30);
    CHECK(otimes::explain(one_row).find("then 64 of") != std::string::npos);
    // the same path at a size that can be computed here: 2^12 elements, and a GPU of a few KiB
    const otimes::program small = rows_power(64, 2, 6, dtype::f64);
    otimes::gpu_description gpu = slow_link();
    gpu.memory_bytes = 8 << 10;
    const stream_plan stream = plan_stream(small, gpu, {}, otimes::planning::streaming_budget(gpu, {}));
    REQUIRE(stream.stages.size() == 1);
    CHECK(stream.stages.front().slab_count >= 16);
    CHECK(streams_the_program(small, stream));
}

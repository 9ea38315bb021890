// SPDX-License-Identifier: MIT
// What a kernel may read while the one in front of it runs: only what that does not write.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <otimes/expr/lower.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>

#include "../../backend/core/arguments.hpp"
#include "../../backend/core/early_reads.hpp"
#include "../../backend/core/late_frees.hpp"
#include "../plan/programs.hpp"

namespace {

using namespace otimes;
using namespace otimes::backend;
using planner_test::factor;
using planner_test::rows_program;

program on_device(program p) {
    for (tensor& t : p.tensors) {
        t.space = t.binding >= 0 ? memory_space::device : memory_space::host;
    }
    return p;
}

launch_list lowered(const program& p, std::int64_t workspace_limit = std::numeric_limits<std::int64_t>::max()) {
    machine target;
    target.gpus = {h200()};
    options decided;
    decided.placement = placement::gpu;
    decided.workspace_limit_bytes = workspace_limit;
    return lower_to_launches(make_plan(p, target, decided), h200());
}

// The squared norm of what p writes, instead of that.
program reduced(program p) {
    const std::int32_t product = p.steps.back().out;
    tensor number = p.tensors[static_cast<std::size_t>(product)];
    p.tensors[static_cast<std::size_t>(product)].role = tensor_role::temporary;
    p.tensors[static_cast<std::size_t>(product)].binding = -1;
    const std::int32_t out = p.add_tensor(number);
    step s = program_writer::make_step(step_kind::reduce, product, -1, out, -1);
    s.variant = step_variant::squared_norm;
    p.steps.push_back(s);
    return p;
}

const tensor& first_of(const program& p, tensor_role role) {
    for (const tensor& t : p.tensors) {
        if (t.role == role && t.binding >= 0) {
            return t;
        }
    }
    REQUIRE(false);
    return p.tensors.front();
}

bool factors_ready(const launch& l) {
    const argument_block block = make_arguments(l);
    bool ready = false;
    REQUIRE(block.ready_offset > 0);
    std::memcpy(&ready, block.bytes.data() + block.ready_offset, sizeof(ready));
    return ready;
}

}  // namespace

TEST_CASE("a later pass may read its factors while the pass before it runs, the first one none") {
    const launch_list list = lowered(on_device(rows_program(1024, {factor(64, 64), factor(64, 64)}, dtype::f32, true)));
    REQUIRE(list.slab.size() == 2);
    CHECK(!factors_ready(list.slab[0]));
    CHECK(factors_ready(list.slab[1]));
}

TEST_CASE("so may a pass whose factor stays on chip, and the first pass of every slab but the first one") {
    launch_list list =
        lowered(on_device(rows_program(16, {factor(100, 100), factor(90, 100), factor(100, 100)}, dtype::f64)));
    REQUIRE(list.slab.size() == 3);
    CHECK(std::ranges::all_of(list.slab, keeps_factor));
    CHECK(!factors_ready(list.slab[0]));
    CHECK(factors_ready(list.slab[1]));
    CHECK(factors_ready(list.slab[2]));
    CHECK(!list.slab_factors_ready);
    CHECK(may_read_early(list));
    // Seven rows, four at a time; of a dot product three of eight at a time, the last two by blocks, which know no flag.
    list = lowered(on_device(rows_program(7, {factor(100, 100), factor(90, 100), factor(100, 100)}, dtype::f64)),
                   45'000'000);
    REQUIRE(list.slab_count == 2);
    REQUIRE(!list.rest.empty());
    CHECK(list.slab_factors_ready);
    CHECK(list.rest_factors_ready);
    list =
        lowered(on_device(reduced(rows_program(8, {factor(100, 100), factor(100, 100), factor(100, 100)}, dtype::f64))),
                26'000'000);
    REQUIRE(list.slab_count == 3);
    REQUIRE(!list.rest.empty());
    CHECK(list.slab_factors_ready);
    CHECK(!keeps_factor(list.rest.front()));
    CHECK(!list.rest_factors_ready);
    list = lowered(on_device(rows_program(500, {factor(100, 100), factor(600, 600)}, dtype::f64)));
    REQUIRE(list.slab.size() == 2);
    for (const launch& l : list.slab) {
        REQUIRE(l.sliced.blocks);
        CHECK(!l.factors_ready);
        CHECK((make_arguments(l).ready_offset > 0) == keeps_factor(l));
    }
}

TEST_CASE("the first launch of a run may read what the run in front of it does not write") {
    const program p = on_device(rows_program(10, {factor(52, 50), factor(65, 20)}, dtype::f64));
    const launch_list list = lowered(p);
    REQUIRE(may_read_early(list));
    // Operands in one stretch of memory, one behind the other, with 64 bytes between them.
    std::array<std::int64_t, 8> bytes{};
    std::vector<std::byte> memory(200000);
    bindings b;
    std::size_t operands = 0;
    for (const tensor& t : p.tensors) {
        operands = (std::max)(operands, static_cast<std::size_t>(t.binding + 1));
    }
    for (std::size_t i = 0; i < operands; ++i) {
        b.pointers.push_back(memory.data());
    }
    std::byte* at = memory.data();
    for (const tensor& t : p.tensors) {
        if (t.binding >= 0) {
            const auto index = static_cast<std::size_t>(t.binding);
            b.pointers[index] = at;
            const address_range range = range_of(p, t, b);
            CHECK(range.begin == reinterpret_cast<std::intptr_t>(at));
            bytes[index] = range.end - range.begin;
            at += bytes[index] + 64;
        }
    }
    const tensor& x = first_of(p, tensor_role::input);
    const tensor& f = first_of(p, tensor_role::factor);
    const tensor& y = first_of(p, tensor_role::output);
    CHECK(bytes[static_cast<std::size_t>(x.binding)] == 10 * 52 * 65 * 8);
    CHECK(bytes[static_cast<std::size_t>(y.binding)] == 10 * 50 * 20 * 8);
    const auto read = [&](const std::vector<address_range>& written) { return early_reads_of(list, p, b, written); };
    const std::vector<address_range> own = ranges_written(p, b, {});
    REQUIRE(own.size() == 1);
    CHECK((read(own).factors && read(own).x));  // the same product again
    const auto around = [&](const tensor& t, std::int64_t first, std::int64_t last) {
        const address_range range = range_of(p, t, b);
        return std::vector<address_range>{{range.begin + first, range.end + last}};
    };
    CHECK((read(around(x, 0, 0)).factors && !read(around(x, 0, 0)).x));
    CHECK((!read(around(f, 0, 0)).factors && !read(around(f, 0, 0)).x));
    // One byte at either end counts, the byte behind or in front does not.
    const std::int64_t length = bytes[static_cast<std::size_t>(x.binding)];
    CHECK(!read(around(x, length - 1, 0)).x);
    CHECK(read(around(x, length, 8)).x);
    CHECK(!read(around(x, -8, 1 - length)).x);
    CHECK(read(around(x, -8, -length)).x);
    // The caller's workspace is written, too.
    const workspace_view over_f{b.pointers[static_cast<std::size_t>(f.binding)], 8};
    CHECK(!read(ranges_written(p, b, over_f)).factors);
}

TEST_CASE("nothing is read early behind launches that make factors") {
    program p = on_device(rows_program(10, {factor(52, 50), factor(65, 20)}, dtype::c64));
    for (tensor& t : p.tensors) {
        t.conjugate = t.role == tensor_role::factor;
    }
    const launch_list list = lowered(p);
    CHECK(!list.before.empty());
    CHECK(!may_read_early(list));
}

TEST_CASE("memory that is given back in a capture waits, unless it is the graph's") {
    late_frees late;
    std::array<int, 4> memory{};
    CHECK(!late.keep({&memory[0], 4}, false));
    CHECK(late.take().empty());
    late.allocated_in_capture(&memory[1]);
    late.allocated_in_capture(&memory[2]);
    CHECK(!late.keep({&memory[1], 4}, true));
    CHECK(!late.some_wait());
    CHECK(late.keep({&memory[3], 12}, true));
    CHECK(late.keep({&memory[1], 8}, true));  // the same address again, of another allocation
    CHECK(late.some_wait());
    CHECK(!late.keep({&memory[2], 4}, false));  // after the capture
    const std::vector<late_frees::piece> waited = late.take();
    REQUIRE(waited.size() == 2);
    CHECK(waited[0].memory == &memory[3]);
    CHECK(waited[0].bytes == 12);
    CHECK(waited[1].bytes == 8);
    CHECK(!late.some_wait());
}

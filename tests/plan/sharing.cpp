// SPDX-License-Identifier: MIT
// Whether a sum is evaluated term by term or with what its terms have in common once: by the plans of both.
#include "plan/programs.hpp"

#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/sharing.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace planner_test;
using otimes::planning::sharing_pays;

const otimes::gpu_description& gpu() {
    static const otimes::gpu_description description = otimes::h200();
    return description;
}

// Three terms, one after the other.
otimes::plan apart_of(std::int64_t rows, const std::vector<mode_spec>& factors, bool is_complex = false) {
    otimes::program p = sum_of_chains(rows, {factors, factors, factors});
    for (otimes::tensor& t : p.tensors) {
        t.type = is_complex ? dtype::c128 : t.type;
        t.scalar_bytes = static_cast<std::uint16_t>(otimes::element_bytes(t.type));
        t.space = otimes::memory_space::device;
    }
    return otimes::make_plan(p, otimes::gpu_machine(gpu()), {.placement = otimes::placement::gpu});
}

// What takes so much of the time of `apart`, and no memory.
otimes::plan of_time(const otimes::plan& apart, double share) {
    otimes::plan shared = apart;
    shared.predicted_seconds *= share;
    shared.workspace_bytes = 0;
    return shared;
}

}  // namespace

TEST_CASE(
    "sharing pays where it takes less time; terms that become one launch take three fifths of what is predicted") {
    struct example {
        std::int64_t rows;
        std::vector<mode_spec> factors;
        bool is_complex;
        std::size_t passes;  // that the example stands for
        double counted;
    };
    const std::vector<example> examples{
        {4096, {factor(8, 8), factor(8, 8), factor(8, 8)}, false, 1, 0.6},
        {4096, {factor(8, 6), factor(8, 8), factor(8, 8)}, false, 1, 0.6},
        {4096, {factor(8, 8), factor(8, 8), factor(8, 8)}, true, 1, 0.75},
        {64, {factor(64, 64), factor(64, 64), factor(64, 64)}, false, 2, 0.6},
        {64, {factor(40, 44), factor(48, 48), factor(48, 48)}, false, 2, 0.75},                  // not square
        {40, {factor(24, 24), factor(24, 24), factor(24, 24), factor(24, 24)}, false, 2, 0.75},  // two modes behind
        {16, {factor(100, 100), factor(100, 100), factor(100, 100)}, false, 3, 1},
    };
    for (const example& e : examples) {
        CAPTURE(e.rows);
        CAPTURE(e.factors.front().before);
        CAPTURE(e.is_complex);
        const otimes::plan apart = apart_of(e.rows, e.factors, e.is_complex);
        CHECK(apart.passes.size() == 3 * e.passes);
        CHECK(sharing_pays(apart, of_time(apart, 0.99 * e.counted), gpu()));
        CHECK_FALSE(sharing_pays(apart, of_time(apart, 1.01 * e.counted), gpu()));
    }
}

TEST_CASE("what terms share takes at most twice the operands and the result, and with them half of the device") {
    const otimes::plan apart = apart_of(16, {factor(100, 100), factor(100, 100), factor(100, 100)});
    otimes::plan shared = of_time(apart, 0.5);
    REQUIRE(shared.bytes > 0);
    shared.workspace_bytes = 2 * shared.bytes;
    CHECK(sharing_pays(apart, shared, gpu()));
    otimes::gpu_description small = gpu();
    small.memory_bytes = 6 * shared.bytes;
    CHECK(sharing_pays(apart, shared, small));
    small.memory_bytes -= 2;
    CHECK_FALSE(sharing_pays(apart, shared, small));
    ++shared.workspace_bytes;
    CHECK_FALSE(sharing_pays(apart, shared, gpu()));
}

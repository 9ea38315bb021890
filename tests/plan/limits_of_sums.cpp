// SPDX-License-Identifier: MIT
// Random sums of products with structure under workspace limits, on the CPU and on GPUs: a limit is kept, or refused with one that works; what
// a plan says of its cost is no less than the least; texts read back; CPU plans compute what the program says.
#include "plan/interpreter.hpp"
#include "plan/programs.hpp"
#include "plan/random_sums.hpp"

#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/long_tests.hpp"
#include "support/random.hpp"

namespace {

using namespace planner_test;
using otimes::placement;

// True for a plan whose passes are those of a slab of operands that pass through a GPU.
bool streams(const otimes::plan& p) {
    return p.where != placement::cpu && p.source.tensors.front().space == otimes::memory_space::host;
}

void check_what_is_said(const otimes::plan& p) {
    CHECK(otimes::plan_from_text(otimes::to_text(p)) == p);
    const std::string page = otimes::explain(p);
    CHECK((p.slab_count == 1 || page.find(std::to_string(p.slab_count) + " slabs of at most ") != std::string::npos));
    double bytes = 0;
    for (const otimes::pass& one : p.passes) {
        bytes += static_cast<double>(one.bytes);
        CHECK(one.predicted_seconds >= 0.999 * one.bound_seconds);
    }
    CHECK((streams(p) || bytes >= static_cast<double>(p.bytes)));
    CHECK((streams(p) || p.predicted_seconds >= 0.999 * p.bound_seconds));
}

otimes::machine random_machine(support::random_stream& random, bool with_gpus) {
    otimes::machine m =
        random.integer(0, 1) == 0 ? two_wide_cores() : tiny_caches(static_cast<std::int32_t>(random.integer(1, 4)));
    if (with_gpus) {
        const std::int32_t capabilities[] = {75, 80, 90, 120};
        otimes::gpu_description gpu = otimes::gpu_of_capability(capabilities[random.integer(0, 3)]);
        if (random.integer(0, 2) == 0) {
            gpu.shared_bytes_per_block = 1536;
            gpu.cluster_blocks = 1;
        }
        gpu.compiles = random.integer(0, 3) != 0;
        m.gpus.assign(static_cast<std::size_t>(random.integer(1, 3)), gpu);
    }
    return m;
}

}  // namespace

TEST_CASE("a limit for random sums is kept or refused with one that works, on the CPU, a GPU, all GPUs and by cost") {
    int cut_on_cpu = 0;
    int cut_on_gpu = 0;
    for (int i = 0; i < (support::long_tests() ? 2000 : 60); ++i) {
        CAPTURE(i);
        support::random_stream random(static_cast<std::uint64_t>(i) * 1'000'003 + 17);
        sum_wishes content;
        content.on_device = random.integer(0, 2) == 0;
        content.may_reduce = true;
        const otimes::dtype types[] = {otimes::dtype::f64, otimes::dtype::f64, otimes::dtype::f32, otimes::dtype::c64,
                                       otimes::dtype::c128};
        content.type = types[random.integer(0, 4)];
        content.most_rows = random.integer(0, 4) == 0 ? 300 : 40;
        const random_sum sum(random, content);
        const otimes::program& p = sum.program;
        const placement places[] = {placement::automatic, placement::cpu, placement::gpu, placement::gpus};
        otimes::options wishes;
        wishes.placement = content.on_device ? placement::gpu : places[random.integer(0, 3)];
        wishes.threads = static_cast<std::int32_t>(random.integer(0, 3));
        wishes.deterministic = random.integer(0, 4) == 0;
        const otimes::machine m =
            random_machine(random, wishes.placement != placement::cpu || random.integer(0, 1) == 0);
        const auto planned = [&](std::int64_t limit) {
            wishes.workspace_limit_bytes = limit;
            otimes::plan made = otimes::make_plan(p, m, wishes);
            CHECK(made.workspace_bytes <= limit);
            check_what_is_said(made);
            return made;
        };
        std::vector<otimes::plan> plans{planned(std::numeric_limits<std::int64_t>::max())};
        std::int64_t least = 0;
        try {
            (void)planned(0);
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
            try {
                (void)planned(least - 1);
                FAIL_CHECK("one byte less than the least is kept");
            } catch (const otimes::budget_error& again) {
                CHECK(again.least_bytes() == least);
            }
        }
        const std::int64_t most = std::max(least, plans.front().workspace_bytes);
        plans.push_back(planned(least));
        for (int k = 0; k < 4; ++k) {
            plans.push_back(planned(random.integer(least, most)));
        }
        for (const otimes::plan& made : plans) {
            (made.where == placement::gpu ? cut_on_gpu : cut_on_cpu) +=
                made.slab_count > 1 && !made.tensor_cuts.empty() ? 1 : 0;
        }
        if (content.type != otimes::dtype::f64) {
            continue;
        }
        exact_operands operands(p, static_cast<std::uint64_t>(i));
        operands.restore(p);
        otimes::reference_run<double>(p, operands.bound);
        const std::vector<double> want = operands.result();
        std::vector<double*> pointers;
        for (void* const at : operands.bound.pointers) {
            pointers.push_back(static_cast<double*>(at));
        }
        for (const otimes::plan& made : plans) {
            if (made.where == placement::cpu) {
                operands.restore(p);
                interpreter(made, pointers, 0.5).run();
                CHECK(operands.result() == want);
            }
        }
    }
    CHECK(cut_on_cpu > 40);
    CHECK(cut_on_gpu > 40);
}

TEST_CASE("one row of a sum with a step of its own is enough for a GPU, whatever the rows, as for a sum of chains") {
    const std::vector<mode_spec> terms{factor(8, 8), factor(8, 8), factor(8, 8)};
    otimes::gpu_description small = otimes::h200();
    small.shared_bytes_per_block = 1536;
    small.cluster_blocks = 1;
    otimes::machine m;
    m.gpus = {small};
    std::int64_t least = 0;
    for (const std::int64_t rows : {23, 1000, 70001}) {
        for (const bool by_columns : {false, true}) {
            otimes::program p = sum_of_chains(rows, {terms, terms}, by_columns, true, true);
            for (otimes::tensor& t : p.tensors) {
                t.space = otimes::memory_space::device;
            }
            std::int64_t refused_with = 0;
            try {
                (void)otimes::make_plan(p, m, {.workspace_limit_bytes = 0, .placement = placement::gpu});
            } catch (const otimes::budget_error& refused) {
                refused_with = refused.least_bytes();
            }
            least = least == 0 ? refused_with : least;
            CHECK(refused_with == least);
            const otimes::plan made =
                otimes::make_plan(p, m, {.workspace_limit_bytes = least, .placement = placement::gpu});
            CHECK(made.slab_extent == 1);
            CHECK(made.slab_count == rows);
            CHECK(made.passes.back().kernel == otimes::pass_kernel::step);
            CHECK(otimes::explain(made).find(std::to_string(rows) + " slabs of at most 1, one after another") !=
                  std::string::npos);
        }
    }
    CHECK(least > 0);
}

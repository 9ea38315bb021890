// SPDX-License-Identifier: MIT
// The kernels that choose_group asks for compile for every architecture that NVRTC knows, without a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/program/errors.hpp>

#include "../../backend/core/fused_group.hpp"
#include "../../backend/cuda/runtime_compiler.hpp"

using namespace otimes;
using namespace otimes::backend;

namespace {

using planning::group_request;

group_request request(bool outer, dtype type, std::vector<std::int64_t> p, std::vector<std::int64_t> q,
                      std::int64_t inner = 1) {
    group_request r;
    r.outer = outer;
    r.type = type;
    r.p = std::move(p);
    r.q = std::move(q);
    for (int level = static_cast<int>(r.p.size()); level >= 1; --level) {
        r.order.push_back(level);
    }
    r.groups = 1024;
    r.inner = inner;
    return r;
}

}  // namespace

TEST_CASE("chosen groups compile for every architecture") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) {
        MESSAGE("skipped: " << compiler.reason());
        return;
    }
    std::vector<group_request> requests;
    for (const dtype type : {dtype::f32, dtype::f64}) {
        requests.push_back(request(false, type, {3, 3, 3, 3}, {3, 3, 3, 3}));
        requests.push_back(request(false, type, {16, 16}, {16, 16}));
        requests.push_back(request(false, type, {5, 12}, {7, 4}));
        requests.push_back(request(true, type, {8, 8}, {8, 8}, 100));
        requests.push_back(request(true, type, {6, 3}, {2, 5}, 7));
    }
    struct job {
        kernel_request wanted;
        target_architecture architecture;
    };
    std::vector<job> jobs;
    for (const int capability : {75, 80, 90, 100, 120}) {
        const target_architecture known = compiler.architecture_for(capability);
        const gpu_description gpu = gpu_of_capability(capability);
        for (const group_request& r : requests) {
            const std::optional<planning::chosen_group> chosen = planning::choose_group(r, gpu);
            REQUIRE(chosen);
            jobs.push_back({request_of(chosen->group), known});
        }
        if (capability != 75 && capability != 90) requests.resize(2);  // a sample
    }
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::vector<std::string> failures;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back([&] {
            for (std::size_t j = next++; j < jobs.size(); j = next++) {
                try {
                    const kernel_image image = compiler.compile(jobs[j].wanted, jobs[j].architecture);
                    if (image.code.size() < 1000 || image.function.empty()) throw otimes::device_error("no code");
                } catch (const error& e) {
                    const std::lock_guard lock(mutex);
                    failures.push_back(jobs[j].architecture.option() + ": " + e.what());
                }
            }
        });
    }
    for (std::thread& t : threads) t.join();
    for (const std::string& failure : failures) FAIL_CHECK(failure);
}

TEST_CASE("a kernel that does not compile is a otimes::device_error with the log") {
    const runtime_compiler& compiler = runtime_compiler::instance();
    if (!compiler.usable()) return;
    CHECK_THROWS_AS(compiler.compile({"fused_trailing.cuh", "otimes::kernels::no_such_kernel<int>", ""},
                                     compiler.architecture_for(90)),
                    otimes::device_error);
    CHECK_THROWS_AS(static_cast<void>(compiler.architecture_for(10)), otimes::device_error);
    CHECK(compiler.architecture_for(9999).ptx);
}

// SPDX-License-Identifier: MIT
// What the host's side of the CUDA back end does with memory, captures, kernels and errors, on a pretended driver: see run.sh.
#include <doctest/doctest.h>

#include <Eigen/Dense>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "backend/cuda/core_set.hpp"
#include "backend/cuda/kernel_store.hpp"
#include "pretended_driver/control.hpp"
#include "support/cuda_driver.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using pretended::driver;
using pretended::failing;

namespace otimes::backend {

core_set compiled_core_set() { return {}; }

}  // namespace otimes::backend

namespace {

using matrix = Eigen::MatrixXd;
using by_rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Of small whole numbers, on which products are exact.
matrix whole(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    matrix m(rows, cols);
    for (double& element : m.reshaped()) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        element = static_cast<double>(seed >> 60) - 8;
    }
    return m;
}

matrix dense(const matrix& A, const matrix& B) {
    matrix K(A.rows() * B.rows(), A.cols() * B.cols());
    for (Eigen::Index i = 0; i < A.rows(); ++i)
        for (Eigen::Index j = 0; j < A.cols(); ++j)
            K.block(i * B.rows(), j * B.cols(), B.rows(), B.cols()) = A(i, j) * B;
    return K;
}

/// The text of the device_error that is thrown; empty where there is none.
template <class Run>
std::string refusal(const Run& run) {
    try {
        run();
    } catch (const otimes::device_error& e) {
        return e.what();
    }
    return {};
}

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

const otimes::device_executor& on_new_stream(support::driver& cuda) {
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    return otimes::gpu(stream);
}

}  // namespace

TEST_CASE("a matrix of before a capture that ends in it is freed when the capture has ended") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const matrix A = whole(2, 2, 1), B = whole(3, 3, 2), X = whole(4, 6, 3);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e);
    DeviceMatrix<double> dY(e);
    dY = dX * kron(dA, dB);
    e.synchronize();
    for (const int mode : {0, 1, 2}) {
        CAPTURE(mode);
        const int before = driver().device_blocks;
        auto ends_within = std::make_unique<DeviceMatrix<double>>(X, e);
        REQUIRE(cuda.begin_capture(e.stream(), mode) == 0);
        ends_within.reset();
        dY = dX * kron(dA, dB);
        void* graph = nullptr;
        void* executable = nullptr;
        REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
        CHECK(driver().invalidated == 0);
        CHECK(driver().frees_of_nothing == 0);
        CHECK(driver().device_blocks == before + 1);
        SUBCASE("at the next wait") {}
        SUBCASE("at the next product") { dY = dX * kron(dA, dB); }
        SUBCASE("at the next matrix") { const DeviceMatrix<double> other(2, 2, e); }
        e.synchronize();
        e.synchronize();  // what the first one queued
        CHECK(driver().device_blocks == before);
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        dY = 0 * dX * kron(dA, dB);
        REQUIRE(cuda.graph_launch(executable, e.stream()) == 0);
        CHECK(dY.to_host() == X * dense(A, B));
    }
    // What is made within one is the graph's, also where it ends within it.
    REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
    {
        DeviceMatrix<double> between(e);
        between = dX * kron(dA, dB);
        dY = 2 * between;
    }
    void* graph = nullptr;
    REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
    CHECK(driver().frees_of_nothing == 0);
}

TEST_CASE("without memory pools no matrix is made in a capture, and one that ends there waits, too [no pools]") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const DeviceMatrix<double> dA(whole(2, 2, 1), e), dX(whole(4, 2, 3), e);
    DeviceMatrix<double> dY(e);
    dY = dX * kron(dA);
    auto ends_within = std::make_unique<DeviceMatrix<double>>(whole(4, 6, 1), e);
    REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
    CHECK(holds(refusal([&] { DeviceMatrix<double> within(3, 3, e); }), "without memory pools"));
    ends_within.reset();
    dY = dX * kron(dA);
    void* graph = nullptr;
    REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
    CHECK(driver().invalidated == 0);
}

TEST_CASE("errors of the driver say what to do; a lost context is an error of every call, and no crash") {
    const matrix X = whole(7, 6, 1), A = whole(2, 2, 2), B = whole(3, 3, 3);
    const auto with_code = [&](int code) {
        const failing all("cuMemcpyHtoDAsync", code);
        return refusal([&] { const DeviceMatrix<double> copy(X); });
    };
    for (const auto& [code, what] : std::vector<std::pair<int, const char*>>{{2, "Free device memory"},
                                                                             {3, "forked"},
                                                                             {4, "The process ends"},
                                                                             {201, "has been destroyed"},
                                                                             {209, "Update the driver"},
                                                                             {214, "nvidia-smi"},
                                                                             {400, "has been destroyed"},
                                                                             {702, "drives a display"},
                                                                             {709, "has been destroyed"},
                                                                             {716, "end the process"},
                                                                             {803, "different versions"},
                                                                             {901, "begin again"}}) {
        CAPTURE(code);
        CHECK(holds(with_code(code), what));
    }
    {
        const failing all("cuMemHostRegister");
        const std::string text = refusal([&] { const otimes::pinned_scope pinned(X); });
        CHECK(holds(text, "page-locked memory of the host"));
        CHECK(!holds(text, "device memory"));
    }
    const otimes::pinned_scope pinned(X);
    CHECK(holds(refusal([&] { const otimes::pinned_scope twice(X); }), "pinned already"));

    const DeviceMatrix<double> dX(X), dA(A), dB(B);
    DeviceMatrix<double> dY;
    dY = dX * kron(dA, dB);
    matrix Y(7, 6);
    driver().lost[0] = true;
    for (int twice = 0; twice < 2; ++twice) {
        CHECK(holds(refusal([&] { dY = dX * kron(dA, dB); }), "The context is lost"));
        CHECK(holds(refusal([&] { const DeviceMatrix<double> new_shape = dX * kron(dB, dA); }), "The context is lost"));
        CHECK(holds(refusal([&] { static_cast<void>(dY.to_host()); }), "The context is lost"));
        CHECK(holds(refusal([&] { otimes::on(otimes::gpu(), Y) = X * kron(A, B); }), "The context is lost"));
        CHECK(holds(refusal([&] { otimes::gpu().synchronize(); }), "The context is lost"));
    }
    driver().lost[0] = false;  // no driver does that
}

TEST_CASE("pinned memory comes back from copies that fail, and serves all streams") {
    support::driver cuda;
    const matrix X = whole(5, 6, 1), A = whole(2, 2, 2), B = whole(3, 3, 3), large = whole(1500, 1200, 4);
    const DeviceMatrix<double> dX(X);
    DeviceMatrix<double> dY;
    dY = dX * kron(A, B);
    CHECK(DeviceMatrix<double>(large).to_host() == large);
    const int most = 24;  // in flight at once; each failure lost one
    const int events = driver().events;
    for (int i = 0; i < 30; ++i) {
        for (const char* const call : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventSynchronize"}) {
            const failing all(call, 999);
            static_cast<void>(refusal([&] { const DeviceMatrix<double> copy(large); }));
            static_cast<void>(refusal([&] { dY = dX * kron(A, B); }));
            static_cast<void>(refusal([&] { static_cast<void>(dX.to_host()); }));
        }
        {
            const failing all("cuEventRecord", 999);  // then the stream is waited for
            const DeviceMatrix<double> copy(large);
        }
        dY = dX * kron(A, B);
        CHECK(dY.to_host() == X * dense(A, B));
    }
    otimes::gpu().synchronize();
    CHECK(driver().pinned_blocks <= most);
    CHECK(driver().events <= events + most);
    // One after the other they take the blocks that there are.
    for (int i = 0; i < 30; ++i) {
        const otimes::device_executor& e = on_new_stream(cuda);
        CHECK(DeviceMatrix<double>(X, e).to_host() == X);
        matrix Y = matrix::Constant(5, 6, std::numeric_limits<double>::quiet_NaN());
        otimes::on(e, Y) = X * kron(A, B);
        CHECK(Y == X * dense(A, B));
    }
    CHECK(driver().pinned_blocks <= most);
    CHECK(driver().streams <= 40);  // and those that copy for them
    // Where the system pins no more they are waited for.
    {
        const failing all("cuMemAllocHost");
        CHECK(DeviceMatrix<double>(large).to_host() == large);
    }
    {
        const failing all("cuEventCreate");  // a block without its event is none
        CHECK(DeviceMatrix<double>(large).to_host() == large);
    }
    // Factors of any size pass through blocks of one size.
    for (const int n : {720, 740, 760}) {
        const matrix F = whole(n, n, 5), x = whole(2, n, 6);
        dY = DeviceMatrix<double>(x) * kron(F);
        CHECK(dY.to_host() == x * F);
    }
    CHECK(driver().pinned_blocks <= most);
}

TEST_CASE("compiled kernels that lack something for a moment are tried again, and the description says so") {
    const matrix X = whole(40, 32, 1);
    const DeviceMatrix<double, 1> dA(whole(4, 4, 2)), dB(whole(8, 8, 3)), dX(X);
    const auto value = dX * kron(dA, dB);
    driver().knows_all = true;  // compiled kernels can be loaded
    const otimes::device_executor& e = otimes::gpu();
    const auto later = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1050)); };
    const auto forget = [&](const char* call, int code, const auto& plan, const char* what, bool again) {
        CAPTURE(call);
        {
            const failing once(call, code, 1, 1);
            const std::string text = e.describe(plan);
            CHECK(holds(text, what));
            CHECK(holds(text, "generic kernels in the place of compiled ones"));
            CHECK(holds(text, "tried again later") == again);
        }
        CHECK(holds(e.describe(plan), what));  // not at once
        later();
        CHECK(holds(e.describe(plan), what) != again);
        CHECK(holds(e.describe(plan), "source: generic") != again);
    };
    forget("cuModuleLoadData", 2, otimes::make_plan<1>(value), "OUT_OF_MEMORY", true);
    forget("nvrtcCompileProgram", 1, otimes::make_plan<1>(dX * kron(dB, dA)), "nvrtcCompileProgram", true);
    // What the compiler refuses, and a plan whose bits must not change, stay as they are.
    const DeviceMatrix<double, 1> dC(whole(2, 2, 4)), dD(whole(16, 16, 5));
    forget("nvrtcCompileProgram", 6, otimes::make_plan<1>(dX * kron(dC, dD)), "nvrtcCompileProgram", false);
    forget("cuModuleLoadData", 2, otimes::make_plan<1>(dX * kron(dD, dC), {.deterministic = true}), "OUT_OF_MEMORY",
           false);
    // An assignment and a plan's run look at the clock, too, and one that cannot be had waits longer each time.
    {
        const DeviceMatrix<double, 1> wide(whole(9, 128, 6));
        DeviceMatrix<double, 1> dY;
        const auto fresh = wide * kron(dA, dA, dB);
        const failing all("cuModuleLoadData", 2, 1, 1);
        dY = fresh;
        const int before = driver().modules;
        dY = fresh;
        CHECK(driver().modules == before);
        later();
        dY = fresh;
        CHECK(driver().modules > before);
    }
    driver().knows_all = false;
}

TEST_CASE("kernels that no plan has are unloaded, those of graphs and of other streams stay") {
    namespace backend = otimes::backend;
    support::driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    void* context = nullptr;
    REQUIRE(cuda.primary_retain(&context, 0) == 0);
    driver().knows_all = true;
    backend::kernel_store store(static_cast<CUcontext>(context), 90, 8);
    store.run_on(stream);
    const auto get = [&](int number) {
        return store.get({"generic_sliced_multiply.cuh", "kernel " + std::to_string(number), ""});
    };
    const int before = driver().modules;
    const auto held = get(0);
    get(1)->keep_for_good();
    for (int i = 2; i < 100; ++i) CHECK(get(i) != nullptr);
    CHECK(driver().modules - before <= 8);
    int loaded = driver().modules;
    CHECK(get(0) == held);
    CHECK(get(1) != nullptr);
    CHECK(get(99) != nullptr);
    CHECK(driver().modules == loaded);  // none of them anew
    CHECK(get(50) != nullptr);
    // While the stream is captured they cannot be waited for: they go later.
    REQUIRE(cuda.begin_capture(stream, 0) == 0);
    loaded = driver().modules;
    for (int i = 200; i < 220; ++i) CHECK(get(i) != nullptr);
    CHECK(driver().modules == loaded + 20);
    void* graph = nullptr;
    REQUIRE(cuda.end_capture(stream, &graph) == 0);
    CHECK(driver().invalidated == 0);
    CHECK(get(300) != nullptr);
    CHECK(driver().modules - before <= 8);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 100; ++i)
                if (const auto kernel = get(i * (t + 1) % 23); kernel == nullptr || kernel->function == nullptr)
                    std::abort();
        });
    for (std::thread& t : threads) t.join();
    CHECK(driver().modules - before <= 8 + 4);
    // A kernel that is not in its module is no module for good.
    driver().knows_all = false;
    loaded = driver().modules;
    for (int i = 0; i < 10; ++i) CHECK(holds(refusal([&] { get(400); }), "cuModuleGetFunction"));
    CHECK(driver().modules == loaded);
}

// SPDX-License-Identifier: MIT
// What is left behind where something fails half way, and what is refused before: matrices that are not made, evaluations on another
// executor, workspaces and operands that kernels must not use, captures of other threads.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pretended_driver/host_side.hpp"

using namespace host_side;

TEST_CASE("a matrix whose making fails leaves no memory behind, and its stream is forgotten") {
    support::driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    const matrix A = whole(2, 2, 1), B = whole(3, 3, 2), X = whole(4, 6, 3);
    {
        const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e);
        const DeviceMatrix<double> dY = dX * kron(dA, dB);  // the executor has its own memory now
        e.synchronize();
        const int blocks = driver().device_blocks;
        const auto leaves_nothing = [&](const char* call, const auto& make) {
            CAPTURE(call);
            {
                const failing all(call, 700);
                CHECK(holds(refusal(make), call));
            }
            e.synchronize();
            CHECK(driver().device_blocks == blocks);
        };
        leaves_nothing("cuLaunchKernel", [&] { const DeviceMatrix<double> made = dX * kron(dA, dB); });
        leaves_nothing("cuLaunchKernel", [&] { const DeviceMatrix<double> made(dX); });
        leaves_nothing("cuLaunchKernel", [&] { const DeviceMatrix<double, 1> made(dX); });
        leaves_nothing("cuMemcpyHtoDAsync", [&] { const DeviceMatrix<double> made(X, e); });

        // In a capture, which would keep what is allocated.
        REQUIRE(cuda.begin_capture(stream, 0) == 0);
        CHECK(holds(refusal([&] { const DeviceMatrix<double> made(X, e); }), "host memory is copied"));
        void* graph = nullptr;
        REQUIRE(cuda.end_capture(stream, &graph) == 0);
        std::size_t nodes = 0;
        REQUIRE(cuda.node_count(graph, nullptr, &nodes) == 0);
        CHECK(nodes == 0);
        CHECK(driver().device_blocks == blocks);
    }
    CHECK(otimes::forget_gpu(stream));
}

TEST_CASE("an evaluation that fails behind a launch is waited for by the executors of its operands") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const otimes::device_executor& other = on_new_stream(cuda);
    const matrix A = whole(6, 6, 1), B = whole(7, 7, 2), X = whole(3000, 42, 3);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e), oA(A, other), oB(B, other), oX(X, other);
    DeviceMatrix<double> dY(3000, 42, e), oY(3000, 42, other);
    otimes::on(other, dY) = dX * kron(dA, dB);
    e.synchronize();
    const int steps = [&] {
        const int before = driver().launches;
        otimes::on(other, dY) = dX * kron(dA, dB);
        return driver().launches - before;
    }();
    REQUIRE(steps > 1);
    e.synchronize();
    other.synchronize();
    const int launched = driver().launches, ended = driver().ended_launches;
    for (int i = 0; i < 20; ++i) {
        oY.noalias() = oX * kron(oA, oB);  // it is busy, and so is what fails behind
    }
    {
        const failing second("cuLaunchKernel", 701, 2, 1);
        CHECK(holds(refusal([&] { otimes::on(other, dY) = dX * kron(dA, dB); }), "cuLaunchKernel"));
    }
    // A launch that failed was none.
    e.synchronize();  // so all that `other` does with dY has ended, too
    CHECK(driver().ended_launches - ended == driver().launches - launched);
    CHECK(oY.to_host() == X * dense(A, B));
}

TEST_CASE("a graph that was captured with a workspace of the caller runs beside other work of its executor") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    CUstream_st* beside = nullptr;
    REQUIRE(cuda.stream_create(&beside, 1) == 0);
    const matrix A = whole(2, 2, 1), B = whole(2, 2, 2), C = whole(2, 2, 3), D = whole(2, 2, 4), X = whole(64, 8, 5);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dC(C, e), dD(D, e), dX(X, e);
    DeviceMatrix<double> dY(64, 8, e), dZ(64, 8, e), workspace(4096, 1, e);
    const otimes::plan p = otimes::make_plan(dX * kron(dA, dB, dC));
    const auto run = [&] { p.run(dY, dX * kron(dA, dB, dC), workspace.data(), workspace.size() * 8); };
    run();
    dZ.noalias() = dX * kron(dD, dB, dC);
    e.synchronize();
    const int blocks = driver().device_blocks;
    REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
    run();
    void* graph = nullptr;
    void* executable = nullptr;
    REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
    REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
    bool right = true;
    for (int i = 0; i < 500 && right; ++i) {
        REQUIRE(cuda.graph_launch(executable, beside) == 0);
        dZ.noalias() = dX * kron(dD, dB, dC);
        REQUIRE(cuda.stream_synchronize(beside) == 0);
        right = dY.to_host() == X * dense(dense(A, B), C) && dZ.to_host() == X * dense(dense(D, B), C);
    }
    CHECK(right);
    CHECK(driver().frees_of_nothing == 0);
    CHECK(driver().device_blocks - blocks <= 1);  // the graph's
}

TEST_CASE("what waits for the device is refused in a capture, which stays valid") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const matrix A = whole(2, 2, 1), B = whole(3, 3, 2), X = whole(4, 6, 3);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e);
    const auto K = kron(dA, dB);
    DeviceMatrix<double> dY(e);
    dY = dX * K;
    const auto is_refused = [&](const auto& wait) {
        REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
        CHECK(holds(refusal(wait), "while the stream is being captured into a graph"));
        dY = 2 * dX * K;
        void* graph = nullptr;
        void* executable = nullptr;
        REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
        dY = 0 * dX;
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        REQUIRE(cuda.graph_launch(executable, e.stream()) == 0);
        CHECK(dY.to_host() == 2 * X * dense(A, B));
    };
    is_refused([&] { e.synchronize(); });
    is_refused([&] { static_cast<void>(dY.to_host()); });
    is_refused([&] { static_cast<void>((dX * K).norm()); });
    is_refused([&] { static_cast<void>(otimes::dot(dX, dX * K)); });
    is_refused([&] { static_cast<void>(otimes::tune(dX * K)); });
    is_refused([&] { dY = dX * kron(A, dB); });
}

TEST_CASE("operands that are not aligned to their elements and workspaces out of reach are refused") {
    using number = std::complex<double>;
    const otimes::device_executor& e = otimes::gpu();
    const DeviceMatrix<double> memory(4096, 1, e);
    const auto at = [&memory](std::int64_t doubles) {
        return otimes::device_map<number, 1>(reinterpret_cast<number*>(const_cast<double*>(memory.data()) + doubles), 4,
                                             4);
    };
    const DeviceMatrix<number> K(Eigen::MatrixXcd(Eigen::MatrixXcd::Constant(4, 4, number(1, 2))), e);
    for (const bool input : {false, true}) {
        auto y = at(input ? 512 : 513);
        const auto x = at(input ? 1025 : 1024);
        const std::string text = refusal([&] { y = x * kron(K); });
        CHECK(holds(text, input ? "otimes: X, at" : "otimes: Y, at"));
        CHECK(holds(text, "not aligned to its elements of 16 bytes"));
    }

    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(64, 15, 3);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e);
    DeviceMatrix<double> dY(64, 8, e);
    const otimes::plan p = otimes::make_plan(dX * kron(dA, dB));
    REQUIRE(p.workspace_bytes > 0);
    std::vector<double> host(1 << 16);
    const auto run_in = [&](void* workspace) { p.run(dY, dX * kron(dA, dB), workspace, 1 << 14); };
    CHECK(holds(refusal([&] { run_in(host.data()); }), "is where this GPU does not reach"));
    DeviceMatrix<double> workspace(4096, 1, e);
    CHECK(holds(refusal([&] { run_in(workspace.data() + 1); }), "is not aligned to 64 bytes"));
    run_in(workspace.data());
    CHECK(dY.to_host() == X * dense(A, B));
}

TEST_CASE("a destination of another shape is as it was where an operand is refused") {
    const support::driver cuda;
    std::vector<double> on_host(1 << 16);  // pages that no device has had
    const matrix before = whole(2, 2, 4);
    const DeviceMatrix<double> dA(whole(2, 2, 1)), dB(whole(3, 3, 2)), dX(whole(4, 6, 3));
    DeviceMatrix<double> dY(before);
    const auto out_of_reach = otimes::device_map(on_host.data(), 4, 6);
    const auto K = kron(dA, dB);
    const auto is_as_before = [&](const auto& assign) {
        CHECK(holds(refusal(assign), "is in host memory, which this GPU does not reach"));
        REQUIRE(dY.rows() == 2);
        CHECK(dY.to_host() == before);
    };
    is_as_before([&] { dY = out_of_reach * K; });
    is_as_before([&] { dY = dX * K + out_of_reach; });
    is_as_before([&] { dY.noalias() = dX * kron(otimes::device_map(on_host.data(), 2, 3), dB); });
    is_as_before([&] { otimes::make_plan(dX * K).run(dY, out_of_reach * K); });
    dY = dX * K;
    CHECK(dY.rows() == 4);
}

TEST_CASE("a plan of operands in device memory for another place than one GPU is refused") {
    const DeviceMatrix<double> dA(whole(2, 2, 1)), dB(whole(3, 3, 2)), dX(whole(4, 6, 3));
    const auto value = dX * kron(dA, dB);
    using otimes::placement;
    for (const placement where : {placement::cpu, placement::gpus}) {
        const char* const why =
            where == placement::cpu ? "an operand lies in device memory" : "a plan for several GPUs was asked for";
        CHECK_THROWS_WITH_AS(static_cast<void>(otimes::make_plan(value, {.placement = where})), doctest::Contains(why),
                             otimes::unsupported_error);
        CHECK_THROWS_WITH_AS(static_cast<void>(otimes::make_plan(value + value, {.placement = where})),
                             doctest::Contains(why), otimes::unsupported_error);
        CHECK_THROWS_WITH_AS(static_cast<void>(otimes::tune(value, {.placement = where})),
                             doctest::Contains("options::placement asks for another"), otimes::unsupported_error);
    }
    CHECK(otimes::make_plan(value, {.placement = placement::gpu}) == otimes::make_plan(value));
}

TEST_CASE("generic kernels in the place of compiled ones keep the workspace limit of the plan, or are refused") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const matrix A = whole(3, 3, 1), B = whole(5, 5, 2), C = whole(7, 7, 3), X = whole(512, 105, 4);
    const DeviceMatrix<double> dA(A, e), dB(B, e), dC(C, e);
    const DeviceMatrix<double, 1> dX(X, e);
    DeviceMatrix<double, 1> dY(512, 105, e);
    e.synchronize();
    const long before = driver().device_bytes;
    const auto run_within = [&](std::int64_t limit) {
        const otimes::plan p = otimes::make_plan<1>(dX * kron(dA, dB, dC), {.workspace_limit_bytes = limit});
        REQUIRE(p.workspace_bytes <= limit);
        p.run(dY, dX * kron(dA, dB, dC));
        return p.workspace_bytes;
    };
    const std::int64_t least = run_within(100'000);  // of the kernels that cannot be had: X is four times the limit
    REQUIRE(least < 2000);
    e.synchronize();
    CHECK(driver().device_bytes - before <= 100'000);
    CHECK(dY.to_host() == X * dense(dense(A, B), C));
    CHECK_THROWS_AS(run_within(least), otimes::budget_error);
    // A workspace of what the plan says is too small for them: the executor's is taken, but not for a graph.
    const otimes::plan p = otimes::make_plan<1>(dX * kron(dA, dB, dC), {.workspace_limit_bytes = 100'000});
    DeviceMatrix<double> workspace(p.workspace_bytes / 8, 1, e);
    const auto run = [&] { p.run(dY, dX * kron(dA, dB, dC), workspace); };
    dY = 0 * dX;
    run();
    CHECK(dY.to_host() == X * dense(dense(A, B), C));
    REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
    CHECK(holds(refusal(run), "take more than the given workspace"));
    void* graph = nullptr;
    CHECK(cuda.end_capture(e.stream(), &graph) == 0);
    dY = DeviceMatrix<double, 1>(512, 105, e);
    run_within(std::int64_t{1} << 40);
    CHECK(dY.to_host() == X * dense(dense(A, B), C));
}

TEST_CASE("memory is pinned and unpinned while another thread captures") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const matrix X = whole(50, 6, 1);
    auto before = std::make_unique<otimes::pinned_scope>(X);
    const matrix Y = whole(50, 6, 2);
    REQUIRE(cuda.begin_capture(e.stream(), 0) == 0);
    std::string text;
    std::thread other([&] {
        text = refusal([&] {
            const otimes::pinned_scope within(Y);
            before.reset();
        });
    });
    other.join();
    void* graph = nullptr;
    CHECK(cuda.end_capture(e.stream(), &graph) == 0);
    CHECK(text.empty());
    CHECK(refusal([&] { const otimes::pinned_scope again(X); }).empty());
}

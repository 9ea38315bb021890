// SPDX-License-Identifier: MIT
// Streams of the caller that come and go: what forget_gpu gives back, and when it refuses.
#include <doctest/doctest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pretended_driver/host_side.hpp"

using namespace host_side;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// As much as products on a stream make an executor keep: a workspace, scratch memory for host factors, plans.
void multiply_on(const otimes::device_executor& e, std::int64_t rows, std::uint64_t seed) {
    const matrix A = whole(3, 4, seed), B = whole(5, 2, seed + 1), C = whole(2, 7, seed + 2), X = whole(rows, 30, seed);
    DeviceMatrix<double> dY(e);
    const DeviceMatrix<double> dX(X, e);
    dY = dX * kron(A, B, C);
    CHECK(dY.to_host() == X * dense(dense(A, B), C));
    matrix Y = matrix::Constant(rows, 56, nan);
    otimes::on(e, Y) = X * kron(A, B, C);
    CHECK(Y == X * dense(dense(A, B), C));
}

CUstream_st* new_stream(const support::driver& cuda) {
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    return stream;
}

struct in_use {
    long bytes = driver().device_bytes;
    int blocks = driver().device_blocks;
    int events = driver().events -
                 driver().pinned_blocks;  // those have one each, and how many there are the device's pace decides
    int streams = driver().streams;
};

void come_and_go(support::driver& cuda) {
    multiply_on(otimes::gpu(), 20, 1);  // what the process keeps
    in_use before;
    for (int i = 0; i < 20; ++i) {
        CUstream_st* const stream = new_stream(cuda);
        counting_resource resource;
        for (const std::int64_t rows : {3, 300, 2000}) {  // the workspace grows
            multiply_on(otimes::gpu(stream), rows, 7);
            multiply_on(otimes::gpu(stream, resource), rows, 8);
        }
        CHECK(resource.live > 0);
        CHECK(otimes::forget_gpu(stream));
        CHECK(resource.live == 0);
        CHECK_FALSE(otimes::forget_gpu(stream));
        REQUIRE(cuda.stream_destroy(stream) == 0);
        otimes::gpu().synchronize();
        if (i == 0) before = {};  // pinned blocks and lanes are the context's
    }
    const in_use after;
    CHECK(after.bytes == before.bytes);
    CHECK(after.blocks == before.blocks);
    CHECK(after.events == before.events);
    CHECK(after.streams == before.streams);
    CHECK(driver().frees_of_nothing == 0);
}

}  // namespace

TEST_CASE("streams that come and go leave nothing behind, where they are forgotten") {
    support::driver cuda;
    come_and_go(cuda);
    const matrix A = whole(2, 3, 1), B = whole(3, 2, 2), X = whole(4, 6, 3);
    matrix Y;
    CUstream_st* const stream = new_stream(cuda);
    // [forgotten]
    {
        DeviceMatrix<double> dX(X, otimes::gpu(stream)), dY(otimes::gpu(stream));
        dY = dX * kron(A, B);
        Y = dY.to_host();
    }  // the matrices have ended
    otimes::forget_gpu(stream);
    cuda.stream_destroy(stream);  // cudaStreamDestroy, on a device
    // [/forgotten]
    CHECK(Y == X * dense(A, B));
}

TEST_CASE("streams that come and go leave nothing behind, where they are forgotten [no pools]") {
    support::driver cuda;
    come_and_go(cuda);
}

TEST_CASE("a stream whose executor is in use is not forgotten, and is as before") {
    support::driver cuda;
    CUstream_st* const stream = new_stream(cuda);
    static counting_resource resource;
    const otimes::device_executor& e = otimes::gpu(stream);
    const otimes::device_executor& other = otimes::gpu(stream, resource);
    multiply_on(e, 40, 1);
    multiply_on(other, 40, 1);
    const auto refused = [&](const char* why) {
        for (int twice = 0; twice < 2; ++twice) {
            const std::string text = refusal([&] { otimes::forget_gpu(stream); });
            CAPTURE(text);
            CHECK(text.starts_with("otimes::forget_gpu(stream): "));
            CHECK(holds(text, why));
        }
        CHECK(&otimes::gpu(stream) == &e);
        CHECK(&otimes::gpu(stream, resource) == &other);
    };
    {
        const DeviceMatrix<double> here(whole(3, 5, 1), e);
        refused("matrices still have 120 bytes of the stream's memory in 1 piece.");
        const DeviceMatrix<double> too(whole(2, 2, 1), e);
        refused("152 bytes of the stream's memory in 2 pieces.");
        DeviceMatrix<double> away(otimes::gpu());  // as the text says
        away = here;
        CHECK(away.to_host() == whole(3, 5, 1));
    }
    {
        const DeviceMatrix<double> here(whole(3, 5, 1), other);  // of either executor
        refused("120 bytes");
    }
    otimes::set_default_executor(e);
    refused("the default one");
    otimes::set_default_executor(nullptr);
    {
        const otimes::scoped_executor scope(other);
        refused("the default one");
    }
    REQUIRE(cuda.begin_capture(stream, 0) == 0);
    refused("End the capture first");
    void* graph = nullptr;
    REQUIRE(cuda.end_capture(stream, &graph) == 0);
    CHECK(driver().invalidated == 0);
    multiply_on(e, 40, 2);
    multiply_on(other, 40, 3);
    CHECK(otimes::forget_gpu(stream));
    CHECK(resource.live == 0);
    REQUIRE(cuda.stream_destroy(stream) == 0);
}

TEST_CASE("what has no executor is not forgotten; the executor of the process stays") {
    support::driver cuda;
    CHECK_FALSE(otimes::forget_gpu(nullptr));
    CHECK_FALSE(otimes::forget_gpu(reinterpret_cast<CUstream_st*>(std::uintptr_t{1})));
    CHECK_FALSE(otimes::forget_gpu(reinterpret_cast<CUstream_st*>(std::uintptr_t{2})));
    const otimes::device_executor& own = otimes::gpu();
    CHECK_FALSE(otimes::forget_gpu(own.stream()));
    const otimes::device_executor& beside = otimes::gpu(own.stream());  // another one on that stream
    multiply_on(beside, 9, 1);
    CHECK(otimes::forget_gpu(own.stream()));
    CHECK(&otimes::gpu() == &own);
    multiply_on(own, 9, 1);
    CUstream_st* const stream = new_stream(cuda);
    CHECK_FALSE(otimes::forget_gpu(stream));
    REQUIRE(cuda.stream_destroy(stream) == 0);
}

TEST_CASE("plans of before hold on the stream's next executor, and a matrix that ended in a capture is freed") {
    support::driver cuda;
    CUstream_st* const stream = new_stream(cuda);
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(70, 15, 3);
    const auto make = [&] {
        const DeviceMatrix<double> dX(X, otimes::gpu(stream)), dA(A, otimes::gpu(stream)), dB(B, otimes::gpu(stream));
        return otimes::make_plan(dX * kron(dA, dB));
    };
    const otimes::plan p = make();
    const int before = driver().device_blocks;
    for (int round = 0; round < 3; ++round) {
        const otimes::device_executor& e = otimes::gpu(stream);
        {
            const DeviceMatrix<double> dX((round + 1) * X, e), dA(A, e), dB(B, e);
            DeviceMatrix<double> dY(70, 8, e), dZ(e);
            p.run(dY, dX * kron(dA, dB));
            dZ = dX * kron(dA, dB);  // found by the thread's own list
            CHECK(dY.to_host() == (round + 1) * X * dense(A, B));
            CHECK(dZ.to_host() == dY.to_host());
            auto ends_within = std::make_unique<DeviceMatrix<double>>(X, e);
            void* graph = nullptr;
            REQUIRE(cuda.begin_capture(stream, 0) == 0);
            ends_within.reset();
            REQUIRE(cuda.end_capture(stream, &graph) == 0);
        }
        CHECK(otimes::forget_gpu(stream));
        REQUIRE(cuda.stream_synchronize(stream) == 0);
        CHECK(driver().device_blocks <= before);
    }
    REQUIRE(cuda.stream_destroy(stream) == 0);
}

TEST_CASE("a stream of a lost context is forgotten") {
    support::driver cuda;
    CUstream_st* const stream = new_stream(cuda);
    counting_resource resource;
    multiply_on(otimes::gpu(stream), 30, 1);
    multiply_on(otimes::gpu(stream, resource), 30, 1);
    driver().lost[0] = true;
    CHECK(otimes::forget_gpu(stream));
    CHECK(resource.live == 0);
    driver().lost[0] = false;  // no driver does that
    multiply_on(otimes::gpu(stream), 30, 1);
    CHECK(otimes::forget_gpu(stream));
    REQUIRE(cuda.stream_destroy(stream) == 0);
}

TEST_CASE("threads have streams of their own and forget them, beside each other and the process's") {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&wrong, t] {
            const support::driver cuda;
            const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(10 + t, 15, 3), want = X * dense(A, B);
            for (int i = 0; i < 25; ++i) {
                CUstream_st* stream = nullptr;
                wrong += cuda.stream_create(&stream, 1) != 0;
                {
                    const DeviceMatrix<double> dX(X, otimes::gpu(stream));
                    DeviceMatrix<double> dY(otimes::gpu(stream)), dZ(otimes::gpu());
                    dY = dX * kron(A, B);
                    dZ = dX * kron(A, B);
                    wrong += dY.to_host() != want || dZ.to_host() != want;
                }
                wrong += !otimes::forget_gpu(stream);
                wrong += cuda.stream_destroy(stream) != 0;
            }
        });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
}

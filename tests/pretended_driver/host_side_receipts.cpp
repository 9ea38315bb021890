// SPDX-License-Identifier: MIT
// Numbers that a thread waits for, and sums that the host adds up for them (backend/cuda/receipt.hpp), on a pretended driver: see run.sh.
#include <doctest/doctest.h>

#include <Eigen/Dense>

#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "backend/cuda/executor.hpp"
#include "backend/cuda/receipt.hpp"
#include "pretended_driver/host_side.hpp"

using namespace host_side;

TEST_CASE("the host adds up what the blocks of a reduction have left: one launch, and no second one behind it") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const matrix X = whole(517, 64, 1), Z = whole(517, 64, 2);
    const DeviceMatrix<double> dX(X, e), dZ(Z, e);
    for (int turn = 0; turn < 3; ++turn) {
        const int launches = driver().launches;
        CHECK(otimes::dot(dZ, dX) == Z.cwiseProduct(X).sum());
        CHECK(dX.squaredNorm() == X.squaredNorm());
        CHECK(driver().launches - launches == 2);
    }
    // Where the sums do not come within a millisecond the stream is waited for, and says what happened.
    const failing once("cuLaunchKernel", 700, 1, 1);
    CHECK_THROWS_AS(static_cast<void>(otimes::dot(dZ, dX)), otimes::device_error);
    CHECK(otimes::dot(dZ, dX) == Z.cwiseProduct(X).sum());
}

TEST_CASE(
    "sums that the host adds up: of the waiting thread's executor, for its numbers, as many as there is room for") {
    support::driver cuda;
    const auto& e = static_cast<const otimes::backend::gpu_executor&>(on_new_stream(cuda));
    const auto& other = static_cast<const otimes::backend::gpu_executor&>(on_new_stream(cuda));
    using otimes::backend::receipt;
    using clock = std::chrono::steady_clock;
    alignas(16) std::array<std::byte, 64> numbers{};
    alignas(16) std::array<std::byte, 4096> sums{};
    CHECK(receipt::of_this_thread(e) == nullptr);
    {
        receipt waiting(e, numbers, sums);
        CHECK(receipt::of_this_thread(e) == &waiting);
        CHECK(receipt::of_this_thread(other) == nullptr);
        std::thread([&] { CHECK(receipt::of_this_thread(e) == nullptr); }).join();
        double outside = 0;
        CHECK(waiting.take_sums(1, otimes::dtype::f64, 1.0, &outside) == nullptr);
        CHECK(waiting.take_sums(513, otimes::dtype::f64, 1.0, numbers.data()) == nullptr);
        auto* const of_float =
            reinterpret_cast<double*>(waiting.take_sums(301, otimes::dtype::f32, 0.5, numbers.data()));
        auto* const of_complex = reinterpret_cast<std::complex<double>*>(
            waiting.take_sums(3, otimes::dtype::c128, {0, 1}, numbers.data() + 16));
        REQUIRE(of_float != nullptr);
        REQUIRE(of_complex != nullptr);
        CHECK(reinterpret_cast<std::uintptr_t>(of_complex) % 16 == 0);
        CHECK(waiting.take_sums(206, otimes::dtype::f64, 1.0, numbers.data()) == nullptr);  // there are 1632 bytes left
        for (int b = 0; b < 301; ++b) {
            CHECK(!waiting.come_until(clock::now()));
            of_float[b] = b;
        }
        CHECK(!waiting.come_until(clock::now()));
        of_complex[0] = {1, 2};
        of_complex[1] = {3, 4};
        of_complex[2] = {5, 6};
        CHECK(waiting.come_until(clock::now()));
        waiting.write_totals();
        float half = 0;
        std::complex<double> turned;
        std::memcpy(&half, numbers.data(), sizeof(half));
        std::memcpy(&turned, numbers.data() + 16, sizeof(turned));
        CHECK(half == 0.5f * 300 * 301 / 2);
        CHECK(turned == std::complex<double>(-12, 9));
        {
            receipt inner(e, numbers, sums);
            CHECK(receipt::of_this_thread(e) == &inner);
        }
        CHECK(receipt::of_this_thread(e) == &waiting);
    }
    CHECK(receipt::of_this_thread(e) == nullptr);
}

// SPDX-License-Identifier: MIT
// Devices of capabilities that the table does not have: run.sh runs each case with such a one.
#include <string>

#include "pretended_driver/host_side.hpp"

using namespace host_side;

TEST_CASE(
    "a GPU that is older than all code is refused by a text that says what to do, and make_executor() is the cpu "
    "[old]") {
    for (const int times : {1, 2}) {
        CAPTURE(times);
        const std::string text = refusal([] { static_cast<void>(otimes::gpu()); });
        CHECK(holds(text, "no code for compute capability 7.0"));
        CHECK(holds(text, "Compute on otimes::cpu()"));
    }
    std::string why;
    CHECK(otimes::find_gpu(&why) == nullptr);
    CHECK(holds(why, "compute capability 7.0"));
    CHECK(&otimes::make_executor() == &otimes::cpu());
    CHECK(driver().device_bytes == 0);
    CHECK(driver().streams == 0);
    const otimes::scoped_executor here(otimes::make_executor());
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(400, 15, 3);
    CHECK(matrix(X * kron(A, B)) == X * dense(A, B));
}

TEST_CASE("a GPU that is newer than the table and the compiler runs the newest code that it can [new]") {
    const otimes::device_executor& e = otimes::gpu();
    CHECK(e.target().gpus.front().compute_capability == 135);
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(7, 15, 3);
    const DeviceMatrix<double> dA(A), dB(B), dX(X);
    DeviceMatrix<double> dY;
    dY = dX * kron(dA, dB);
    CHECK(dY.to_host() == X * dense(A, B));
    dY += 2 * dX * kron(A, dB);
    CHECK(dY.to_host() == 3 * X * dense(A, B));
    CHECK(holds(e.describe(otimes::make_plan(dX * kron(dA, dB))), "generic_sliced_multiply"));
}

// SPDX-License-Identifier: MIT
// otimes::cuda without CUDA: programs link and start, and hear which option to turn on.
#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <string>

TEST_CASE("without a CUDA back end gpu() names the option, and make_executor() is the cpu") {
    std::string why;
    CHECK(otimes::find_gpu(&why) == nullptr);
    CHECK(why.find("-DOTIMES_CUDA=ON") != std::string::npos);
    CHECK_THROWS_AS(static_cast<void>(otimes::gpu()), otimes::device_error);
    CHECK(&otimes::make_executor() == &otimes::cpu());
    const Eigen::MatrixXd X = Eigen::MatrixXd::Random(3, 4), A = Eigen::MatrixXd::Random(2, 3),
                          B = Eigen::MatrixXd::Random(2, 2);
    Eigen::MatrixXd Y;
    otimes::on(otimes::make_executor(), Y) = X * otimes::kron(A, B);
    CHECK(Y.isApprox(X * otimes::kron(A, B).toDenseMatrix()));
    CHECK_THROWS_AS(static_cast<void>(otimes::DeviceMatrix<double>{X}), otimes::device_error);
}

TEST_CASE("16-bit numbers round to nearest even and keep infinities and NaN") {
    using otimes::bfloat16;
    using otimes::half;
    for (unsigned bits = 0; bits < 0x10000u; ++bits) {
        half h;
        h.bits = static_cast<std::uint16_t>(bits);
        const float wide = static_cast<float>(h);
        if (wide == wide) {
            REQUIRE(half(wide).bits == h.bits);
        } else {
            REQUIRE((half(wide).bits & 0x7c00u) == 0x7c00u);
            REQUIRE((half(wide).bits & 0x3ffu) != 0);
        }
        bfloat16 b;
        b.bits = static_cast<std::uint16_t>(bits);
        const float wide_b = static_cast<float>(b);
        if (wide_b == wide_b) REQUIRE(bfloat16(wide_b).bits == b.bits);
    }
    CHECK(static_cast<float>(half(1.0f + 0x1p-11f)) == 1.0f);              // a tie goes to even
    CHECK(static_cast<float>(half(1.0f + 0x1.8p-10f)) == 1.0f + 0x1p-9f);  // upwards too
    CHECK(half(65519.0f).bits == 0x7bff);
    CHECK(half(65520.0f).bits == 0x7c00);
    CHECK(half(0x1p-25f).bits == 0);
    CHECK(half(0x1.000002p-25f).bits == 1);
    CHECK(static_cast<float>(bfloat16(1.0f + 0x1p-8f)) == 1.0f);
    CHECK(static_cast<float>(bfloat16(1.0f + 0x1.8p-7f)) == 1.0f + 0x1p-6f);
}

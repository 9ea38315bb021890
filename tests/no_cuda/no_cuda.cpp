// SPDX-License-Identifier: MIT
// otimes::cuda without CUDA: programs link and start, and hear which option to turn on.
#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>
#include <otimes/plan/machine_table.hpp>

#include <atomic>
#include <cmath>
#include <string>

TEST_CASE("without a CUDA back end gpu() names the option, and make_executor() is the cpu") {
    std::string why;
    CHECK(otimes::find_gpu(&why) == nullptr);
    CHECK(why.find("-DOTIMES_CUDA=ON") != std::string::npos);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::gpu()), doctest::Contains("otimes::gpu(): otimes was built without"),
                         otimes::device_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::gpus()),
                         doctest::Contains("otimes::gpus(): otimes was built without"), otimes::device_error);
    CHECK(otimes::find_gpus() == nullptr);
    CHECK_FALSE(otimes::forget_gpu(nullptr));
    CHECK(&otimes::make_executor() == &otimes::cpu());
    const Eigen::MatrixXd X = Eigen::MatrixXd::Random(3, 4), A = Eigen::MatrixXd::Random(2, 3),
                          B = Eigen::MatrixXd::Random(2, 2);
    Eigen::MatrixXd Y;
    otimes::on(otimes::make_executor(), Y) = X * otimes::kron(A, B);
    CHECK(Y.isApprox(X * otimes::kron(A, B).toDenseMatrix()));
    CHECK_THROWS_AS(static_cast<void>(otimes::DeviceMatrix<double>{X}), otimes::device_error);
}

TEST_CASE("host operands are cut over several executors, each with a part of the rows") {
    using otimes::identity;
    using otimes::kron;
    using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    std::atomic<int> asked{0};
    const auto part = [&](std::size_t i) -> const otimes::executor& {
        asked |= 1 << i;
        return i == 1 ? otimes::reference() : otimes::cpu();
    };
    const otimes::spreading_executor three("three", otimes::gpu_machine(otimes::h200(), 3), part);
    const auto check = [&](auto& Y, const auto& expression, const auto& want, int parts) {
        asked = 0;
        otimes::on(three, Y) = expression;
        CHECK((Y - want).norm() <= 1e-13 * want.norm());
        CHECK(asked == (1 << parts) - 1);
    };
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(3, 4), B = Eigen::MatrixXd::Random(5, 2),
                          dense = kron(A, B).toDenseMatrix();
    const Eigen::MatrixXd X = Eigen::MatrixXd::Random(7, 15);
    const row_major R = X;
    Eigen::MatrixXd Y = Eigen::MatrixXd::Constant(7, 8, NAN), T;
    row_major Z;
    check(Y, X * kron(A, B), Eigen::MatrixXd(X * dense), 3);
    check(Z, R * kron(A, B), row_major(X * dense), 3);  // resized
    check(T, kron(A, B).transpose() * X.transpose(), Eigen::MatrixXd(dense.transpose() * X.transpose()), 3);
    check(Z, 2.0 * R * kron(A, B) - R * kron(A, B) / 4.0, row_major(1.75 * X * dense), 3);
    check(T, X.topRows(2) * kron(A, B), Eigen::MatrixXd(X.topRows(2) * dense), 2);  // 2 rows
    check(T, X.topRows(1) * kron(identity(3), B), Eigen::MatrixXd(X.topRows(1) * kron(identity(3), B).toDenseMatrix()),
          3);
    check(T, X.topRows(1) * kron(A, B), Eigen::MatrixXd(X.topRows(1) * dense), 1);  // no index is free
    Eigen::Map<row_major, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> odd(
        Y.data() + 1, 3, 8, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(17, 2));
    check(odd, R.middleRows(1, 3) * kron(A, B), row_major(X.middleRows(1, 3) * dense), 3);
    // a square factor that is also X: the factor stays where it is
    const Eigen::MatrixXd Q = Eigen::MatrixXd::Random(6, 6);
    check(T, Q * kron(Q), Eigen::MatrixXd(Q * Q), 3);
    Eigen::MatrixXd before = Y;
    otimes::on(three, Y) += X * kron(A, B);
    CHECK((Y - before - X * dense).norm() <= 1e-12 * dense.norm());
    T.resize(0, 15);
    otimes::on(three, Y) = T * kron(A, B);
    CHECK(Y.rows() == 0);

    // with the plan of its own, again and again; and the bits of one executor
    const otimes::scoped_executor scope(three);
    const otimes::plan p = otimes::make_plan(X * kron(A, B), {.deterministic = true});
    CHECK(p.where == otimes::placement::gpus);
    Eigen::MatrixXd first, again;
    p.run(first, X * kron(A, B));
    p.run(again, X * kron(A, B));
    CHECK(first == again);

    // what fails on one is thrown, and the next run is whole
    const otimes::spreading_executor broken(
        "broken", otimes::gpu_machine(otimes::h200(), 2), [](std::size_t i) -> const otimes::executor& {
            return i == 0 ? otimes::cpu() : throw otimes::device_error("otimes: gone");
        });
    CHECK_THROWS_WITH_AS(otimes::on(broken, Y) = X * kron(A, B), "otimes: part 2 of 2: gone", otimes::device_error);
    CHECK_THROWS_AS(three.run(otimes::make_plan(X * kron(A, B), {}, otimes::cpu().target()), {}, {}),
                    otimes::unsupported_error);
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

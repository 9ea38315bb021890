// SPDX-License-Identifier: MIT
// Host operands that pass through a GPU in slabs, with a small artificial budget of device memory.
#include <doctest/doctest.h>

#include <Eigen/Dense>

#include <atomic>
#include <complex>
#include <thread>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "cuda/device_support.hpp"

using namespace device_test;
using otimes::kron;
using otimes::placement;

namespace {

otimes::options budget(std::int64_t bytes) { return {.workspace_limit_bytes = bytes, .placement = placement::gpu}; }

// Runs `expression` into Y by a plan for the GPU within `bytes` of its memory.
template <class Matrix, class Expression>
void stream(Matrix& Y, const Expression& expression, std::int64_t bytes) {
    const otimes::plan p = otimes::make_plan(Y, expression, budget(bytes));
    CHECK(p.workspace_bytes <= bytes);
    p.run(Y, expression);
}

// Large enough for dozens of slabs and odd enough for a last one that is shorter.
const std::vector<shapes> tall = {
    {2003, {12, 10, 9}, {10, 12, 7}}, {1537, {33, 31}, {32, 35}}, {7, {40, 36, 30}, {36, 40, 33}}};

}  // namespace

TEST_CASE("streaming: both orders, slabs of every size, the same bits" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::gpu());
    for (const shapes& s : tall) {
        CAPTURE(s.text());
        for_orders([&](auto order) {
            using matrix_f = matrix<float, decltype(order)::value>;
            const auto factors = random_factors<float>(s);
            const matrix_f X = random_matrix<matrix_f>(s.rows, s.inputs(), 1);
            const auto want = expected_right(X, factors);
            const auto K = kron(factors);
            matrix_f first;
            const std::int64_t both = (X.size() + want.size()) * 4;
            for (const std::int64_t bytes : {both * 8, both, both / 4, both / 11}) {
                matrix_f Y = matrix_f::Constant(s.rows, s.outputs(), nan<float>());
                stream(Y, X * K, bytes);
                CHECK(agrees(Y, want, s));
                if (first.size() == 0) {
                    first = Y;
                }
                // The same bits while the same kernels serve all slabs: those of the others depend on the number of rows.
                CHECK((Y == first || &s != &tall[0] || decltype(order)::value == 0));
            }
        });
    }
}

TEST_CASE("streaming: pinned operands, views, both sides, adding, complex numbers" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::gpu());
    const shapes s = tall[0];
    const auto factors = random_factors<double>(s);
    const auto K = kron(factors);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 1);
    const Eigen::MatrixXd want = expected_right(X, factors);
    const std::int64_t bytes = (X.size() + want.size()) * 8 / 5;
    Eigen::MatrixXd Y = Eigen::MatrixXd::Constant(s.rows, s.outputs(), nan<double>());
    {
        const otimes::pinned_scope pin_x(X), pin_y(Y);
        stream(Y, X * K, bytes);
        CHECK(agrees(Y, want, s));
    }
    {
        const otimes::pinned_scope pin_x(X);  // one of them
        Y.setConstant(nan<double>());
        stream(Y, X * K, bytes);
        CHECK(agrees(Y, want, s));
    }
    {
        const matrix<double, 1> by_rows = X;
        matrix<double, 1> Z = matrix<double, 1>::Constant(s.rows, s.outputs(), nan<double>());
        const otimes::pinned_scope pin_x(by_rows), pin_z(Z);
        stream(Z, by_rows * K, bytes);
        CHECK(agrees(Z, want, s));
    }
    Eigen::MatrixXd wide = Eigen::MatrixXd::Constant(s.rows + 5, s.outputs() + 3, nan<double>());
    auto view = wide.block(2, 1, s.rows, s.outputs());
    stream(view, X * K, bytes);
    CHECK(agrees(Eigen::MatrixXd(view), want, s));
    CHECK(wide.row(0).array().isNaN().all());
    CHECK(wide.col(0).array().isNaN().all());
    CHECK(wide.bottomRows(3).array().isNaN().all());
    // the same through the transpose: kron on the left
    Eigen::MatrixXd left = Eigen::MatrixXd::Constant(s.outputs(), s.rows, nan<double>());
    const Eigen::MatrixXd xt = X.transpose();
    stream(left, K.transpose() * xt, bytes);
    CHECK(agrees(Eigen::MatrixXd(left.transpose()), want, s));
    // += evaluates by the default plan; large enough to be cut
    const shapes large{6000, {16, 16}, {16, 16}};
    const auto squares = random_factors<double>(large);
    const Eigen::MatrixXd A = random_matrix<Eigen::MatrixXd>(large.rows, 256, 2);
    Eigen::MatrixXd B = random_matrix<Eigen::MatrixXd>(large.rows, 256, 3);
    const Eigen::MatrixXd sum = B - 2.0 * expected_right(A, squares);
    B -= 2.0 * A * kron(squares);
    CHECK(agrees(B, sum, large));
    using complex = std::complex<float>;
    const auto phases = random_factors<complex>(large);
    const matrix<complex, 0> C = random_matrix<matrix<complex, 0>>(large.rows, 256, 4);
    matrix<complex, 0> D(large.rows, 256);
    stream(D, C * kron(phases), C.size() * 8 / 6);
    CHECK(agrees(D, expected_right(C, phases), large));
}

TEST_CASE("streaming: long lines of pinned columns, copied by the device, have the bits of those that threads copy" *
          needs_gpu()) {
    const otimes::scoped_executor scope(otimes::gpu());
    // Three modes of one group, long factors by blocks, a last slab that is shorter.
    for (const shapes& s :
         {shapes{4100, {8, 8, 8}, {8, 8, 8}}, shapes{2300, {30, 40}, {31, 37}}, shapes{3001, {160}, {144}}}) {
        CAPTURE(s.text());
        const auto factors = random_factors<float>(s);
        const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
        const Eigen::MatrixXf want = expected_right(X, factors);
        const auto K = kron(factors);
        for (const std::int64_t bytes : {(X.size() + want.size()) * 4, (X.size() + want.size()) * 2}) {
            Eigen::MatrixXf Y = Eigen::MatrixXf::Constant(s.rows, s.outputs(), nan<float>());
            stream(Y, X * K, bytes);
            CHECK(agrees(Y, want, s));
            const Eigen::MatrixXf threads = Y;
            const otimes::pinned_scope pin_x(X), pin_y(Y);
            for (int twice = 0; twice < 2; ++twice) {
                Y.setConstant(nan<float>());
                stream(Y, X * K, bytes);
                CHECK(Y == threads);
            }
        }
    }
}

TEST_CASE("streaming: one row passes in two trips" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::gpu());
    for (const shapes& s :
         {shapes{1, {48, 50, 64, 20}, {48, 50, 64, 20}}, shapes{1, {48, 50, 64, 20}, {50, 48, 60, 21}}}) {
        const auto factors = random_factors<double>(s);
        using row = Eigen::Matrix<double, 1, Eigen::Dynamic>;
        const row x = random_matrix<row>(1, s.inputs(), 1);
        row y = row::Constant(s.outputs(), nan<double>());
        stream(y, x * kron(factors), (x.size() + y.size()) * 8 / 4);
        CHECK(agrees(y, row(expected_right(x, factors)), s));
    }
}

TEST_CASE("streaming: a budget that is too small is refused before anything is written" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::gpu());
    const shapes s = tall[1];
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    Eigen::MatrixXf Y = Eigen::MatrixXf::Constant(s.rows, s.outputs(), 3.0f);
    CHECK_THROWS_AS(stream(Y, X * kron(factors), 5000), otimes::budget_error);
    CHECK((Y.array() == 3.0f).all());
    CHECK_THROWS_AS(otimes::pinned_scope(nullptr, 4096), otimes::device_error);
    stream(Y, X * kron(factors), X.size() * 4);
    CHECK(agrees(Y, expected_right(X, factors), s));
}

TEST_CASE("streaming: threads stream through one executor at once" * needs_gpu()) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            const otimes::scoped_executor scope(otimes::gpu());
            const shapes s{1500 + t, {16, 20 + t}, {15, 16}};
            const auto factors = random_factors<float>(s);
            const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), static_cast<std::uint64_t>(t));
            const Eigen::MatrixXf want = expected_right(X, factors);
            const auto expression = X * kron(factors);
            for (int i = 0; i < 4; ++i) {
                Eigen::MatrixXf Y = Eigen::MatrixXf::Constant(s.rows, s.outputs(), nan<float>());
                const otimes::plan p = otimes::make_plan(Y, expression, budget(X.size() * 4 / (2 + i)));
                p.run(Y, expression);
                if (!((Y - want).norm() <= 1e-4f * want.norm())) ++wrong;
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
}

TEST_CASE("all GPUs of the process: parts of the rows, the bits of one GPU" * needs_gpu()) {
    const otimes::executor& all = otimes::gpus();
    CHECK(all.target().gpus.size() >= 1);
    const Eigen::MatrixXf A = Eigen::MatrixXf::Random(32, 32), B = Eigen::MatrixXf::Random(16, 31),
                          C = Eigen::MatrixXf::Random(8, 9);
    for (const Eigen::Index rows : {1, 3, 1001}) {
        const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> X =
            Eigen::MatrixXf::Random(rows, 4096);
        Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> one, Y(rows, 32 * 31 * 9);
        otimes::options wishes{.deterministic = true};
        {
            const otimes::scoped_executor scope(otimes::gpu());
            otimes::make_plan(one, X * kron(A, B, C), wishes).run(one, X * kron(A, B, C));
        }
        Y.setConstant(std::numeric_limits<float>::quiet_NaN());
        const otimes::scoped_executor scope(all);
        const otimes::plan p = otimes::make_plan(Y, X * kron(A, B, C), wishes);
        CHECK(p.where == otimes::placement::gpus);
        p.run(Y, X * kron(A, B, C));
        CHECK((Y.array() == one.array()).all());
        Y.noalias() -= X * kron(A, B, C);
        CHECK(Y.norm() <= 1e-6f * one.norm());
    }
    {
        const otimes::scoped_executor scope(otimes::make_executor());  // whichever place is chosen, its plan runs
        const Eigen::MatrixXf X = Eigen::MatrixXf::Random(300, 4096);
        Eigen::MatrixXf Y, Z;
        const otimes::plan p = otimes::make_plan(X * kron(A, B, C));
        p.run(Y, X * kron(A, B, C));
        otimes::on(otimes::cpu(), Z) = X * kron(A, B, C);
        CHECK((Y - Z).norm() <= 1e-5f * Z.norm());
    }
    const otimes::DeviceMatrix<float> dX(Eigen::MatrixXf::Random(4, 32)), dA(A);
    otimes::DeviceMatrix<float> dY;
    CHECK_THROWS_AS(otimes::on(all, dY) = dX * kron(dA), otimes::unsupported_error);
}

TEST_CASE("streaming: make_executor() streams a large host product" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::make_executor());
    const shapes s{20000, {32, 32}, {32, 32}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    Eigen::MatrixXf Y = X * kron(factors);
    const Eigen::MatrixXf some = X.topRows(50);
    CHECK(agrees(Eigen::MatrixXf(Y.topRows(50)), expected_right(some, factors), s));
    const Eigen::MatrixXf last = X.bottomRows(50);
    CHECK(agrees(Eigen::MatrixXf(Y.bottomRows(50)), expected_right(last, factors), s));
}

// SPDX-License-Identifier: MIT
// Which executor evaluates, and who waits for whom; threads that evaluate while they end. On executors whose device memory is the host's.
#include "cuda/device_support.hpp"
#include "cuda/pretended_gpu.hpp"

#include <doctest/doctest.h>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using namespace device_test;
using otimes::DeviceMatrix;
using otimes::kron;

/// Counts what it is asked for.
class counting_gpu : public pretended_gpu {
public:
    void wait_for(const otimes::device_executor& other) const override {
        CHECK(&other != this);
        ++waits;
    }
    otimes::tuning_report tune(const otimes::program&, const otimes::bindings&, const otimes::options&,
                               const otimes::tuning_options&) const override {
        ++tunings;
        waits_before_tuning = waits;
        return {};
    }
    void forget() const { waits = evaluations = tunings = waits_before_tuning = 0; }
    mutable int waits = 0;
    mutable int tunings = 0;
    mutable int waits_before_tuning = 0;
};

/// Evaluates where its thread destroys it. Made before the thread's first evaluation, it is destroyed after all that the thread keeps.
struct evaluating_at_the_end {
    const counting_gpu* gpu = nullptr;
    Eigen::MatrixXd X, A, B;
    std::vector<double>* results = nullptr;
    evaluating_at_the_end() = default;
    evaluating_at_the_end(const evaluating_at_the_end&) = delete;
    evaluating_at_the_end& operator=(const evaluating_at_the_end&) = delete;
    ~evaluating_at_the_end() {
        if (gpu != nullptr) {
            results->push_back(otimes::device::thread_scratch() == nullptr ? 1 : 0);
            evaluate();
            evaluate();
        }
    }
    void evaluate() const {
        const DeviceMatrix<double> dX(X, *gpu), dA(A, *gpu), dB(B, *gpu);
        DeviceMatrix<double> dY(*gpu);
        dY = dX * kron(dA, dB);
        dY += dX * kron(dA, dB) + 2 * dX;
        results->push_back(dY.to_host().sum());
        results->push_back((dX * kron(dA, dB)).squaredNorm());
    }
};

}  // namespace

TEST_CASE("plan::run and tune take the executor that an assignment takes, and wait for the operands' as it does") {
    const counting_gpu a;
    const counting_gpu b;
    const shapes s{3, {2, 3}, {3, 2}};
    const auto f = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(3, 6, 1);
    const Eigen::MatrixXd want = expected_right(X, f);
    const DeviceMatrix<double> dX(X, a), dA(f[0], a), dB(f[1], a), other(f[1], b);
    const auto value = dX * kron(dA, dB);
    const otimes::plan p = otimes::make_plan(value);
    const auto require = [&](int evaluated_by_a, int evaluated_by_b, int waits_of_each) {
        CHECK(a.evaluations == evaluated_by_a);
        CHECK(b.evaluations == evaluated_by_b);
        CHECK(a.waits == waits_of_each);
        CHECK(b.waits == waits_of_each);
        a.forget();
        b.forget();
    };
    a.forget();
    SUBCASE("Y on another executor") {
        DeviceMatrix<double> dY(3, 6, b);
        dY = value;
        require(0, 1, 1);
        poison(dY);
        p.run(dY, value);
        require(0, 1, 1);
        CHECK(agrees(dY.to_host(), want, s));
        poison(dY);
        const otimes::scoped_executor here(a);  // one that is set evaluates
        dY = value;
        require(1, 0, 1);
        p.run(dY, value);
        require(1, 0, 1);
        CHECK(agrees(dY.to_host(), want, s));
    }
    SUBCASE("Y of no executor: X's") {
        Eigen::MatrixXd memory(3, 6);
        auto map = otimes::device_map(memory.data(), 3, 6);
        map = value;
        require(1, 0, 0);
        memory.setZero();
        p.run(map, value);
        require(1, 0, 0);
        CHECK(agrees(memory, want, s));
    }
    SUBCASE("Y without memory: it is X's executor's from then on") {
        DeviceMatrix<double> run_into;
        p.run(run_into, value);
        require(1, 0, 0);
        CHECK(run_into.home() == &a);
        CHECK(agrees(run_into.to_host(), want, s));
        DeviceMatrix<double> without_alias;
        without_alias.noalias() = value;
        require(1, 0, 0);
        CHECK(without_alias.home() == &a);
        CHECK(agrees(without_alias.to_host(), want, s));
    }
    SUBCASE("a factor of another executor") {
        const auto mixed = dX * kron(dA, other);
        DeviceMatrix<double> dY(3, 6, a);
        dY = mixed;
        require(1, 0, 1);
        poison(dY);
        p.run(dY, mixed);
        require(1, 0, 1);
        CHECK(agrees(dY.to_host(), want, s));
        static_cast<void>(otimes::tune(mixed));
        CHECK(a.tunings == 1);
        CHECK(a.waits_before_tuning == 1);
        require(0, 0, 1);
    }
    SUBCASE("a workspace that is another executor's matrix, which may end behind the run") {
        REQUIRE(p.workspace_bytes > 0);
        DeviceMatrix<double> dY(3, 6, a);
        {
            DeviceMatrix<double> workspace(p.workspace_bytes, 1, b);
            p.run(dY, value, workspace);
        }
        require(1, 0, 1);
        otimes::plan without = p;
        without.workspace_bytes = 0;
        DeviceMatrix<double> not_used(8, 1, b);
        without.run(dY, value, not_used);
        require(1, 0, 0);
    }
    SUBCASE("another signature is refused, and binds nothing for who comes next") {
        DeviceMatrix<double> dY(3, 6, b);
        CHECK_THROWS_AS(p.run(dY, dX * kron(dB, dA)), otimes::error);
        CHECK(otimes::device::thread_scratch()->bindings.pointers.empty());
    }
}

TEST_CASE("on(executor, dY) takes all forms of an assignment") {
    const counting_gpu a;
    const counting_gpu b;
    const shapes s{3, {2, 3}, {2, 3}};
    const auto f = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(3, 6, 1);
    const Eigen::MatrixXd want = expected_right(X, f);
    DeviceMatrix<double> dX(X, a), dY(a);
    const DeviceMatrix<double> dA(f[0], a), dB(f[1], a);
    const auto K = kron(dA, dB);
    a.forget();
    otimes::on(b, dY).noalias() = dX * K;
    otimes::on(b, dY).noalias() += dX * K;
    otimes::on(b, dY).noalias() -= dX * K;
    otimes::on(b, otimes::device_map(dY.data(), 3, 6)).noalias() += dX * K;
    otimes::on(b, dY) *= 0.5;
    CHECK(agrees(dY.to_host(), want, s));
    CHECK_THROWS_AS(otimes::on(b, dX).noalias() = dX * K, otimes::alias_error);
    otimes::on(b, dX) *= K;
    CHECK(agrees(dX.to_host(), want, s));
    CHECK(a.evaluations == 0);
}

TEST_CASE("what plan::run refuses leaves a destination of another shape as it was") {
    const pretended_gpu gpu;
    const otimes::scoped_executor here(gpu);
    const shapes s{5, {2, 3}, {3, 4}};
    const auto f = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(5, 6, 1), before = random_matrix<Eigen::MatrixXd>(2, 7, 2);
    const DeviceMatrix<double> dA(f[0]), dB(f[1]), other(X.topRows(3));
    DeviceMatrix<double> dX(X), dY(before);
    const auto value = dX * kron(dA, dB);
    const auto sum = value + 2 * value;
    const otimes::plan p = otimes::make_plan(value), of_sum = otimes::make_plan(sum);
    const auto leaves = [](DeviceMatrix<double>& y, const Eigen::MatrixXd& as, const auto& run) {
        const double* const memory = y.data();
        CHECK_THROWS_AS(run(), otimes::error);
        REQUIRE(y.rows() == as.rows());
        REQUIRE(y.cols() == as.cols());
        CHECK(y.data() == memory);
        CHECK(y.to_host() == as);
    };
    leaves(dX, X, [&] { p.run(dX, value); });
    leaves(dX, X, [&] { of_sum.run(dX, sum); });
    leaves(dY, before, [&] { p.run(dY, other * kron(dA, dB)); });
    leaves(dY, before, [&] { p.run(dY, sum); });
    leaves(dY, before, [&] { of_sum.run(dY, value); });
    leaves(dY, before, [&] { of_sum.run(dY, value + value + value); });
    otimes::plan demanding = p;
    demanding.workspace_bytes = 65;
    leaves(dY, before, [&] { demanding.run(dY, value, gpu.allocate(64), 64); });
    of_sum.run(dY, sum);
    CHECK(agrees(dY.to_host(), Eigen::MatrixXd(3 * expected_right(X, f)), s));
}

TEST_CASE_TEMPLATE("make_plan(dY, expression) plans for the order and the leading stride of dY", Order,
                   std::integral_constant<int, 0>, std::integral_constant<int, 1>) {
    const pretended_gpu gpu;
    const otimes::scoped_executor here(gpu);
    const shapes s{5, {2, 3}, {3, 4}};
    const auto f = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(5, 6, 1);
    const Eigen::MatrixXd want = expected_right(X, f);
    const DeviceMatrix<double> dX(X), dA(f[0]), dB(f[1]), few(X.topRows(3));
    const auto value = dX * kron(dA, dB);
    std::vector<double> memory(400, -1.0);
    const std::int64_t stride = Order::value == 1 ? 13 : 7;
    const auto map = otimes::device_map<double, Order::value>(memory.data() + 3, 5, 12, stride);
    for (const int times : {1, 2}) {
        CAPTURE(times);
        otimes::make_plan(map, value).run(map, value);
        CHECK(agrees(map.to_host(), want, s));
        otimes::make_plan(map, value + value).run(map, value + value);
        CHECK(agrees(map.to_host(), Eigen::MatrixXd(2 * want), s));
    }
    CHECK(std::ranges::count(memory, -1.0) == 400 - 60);  // between the lines nothing is written
    CHECK_THROWS_WITH_AS(otimes::make_plan<1 - Order::value>(value).run(map, value),
                         doctest::Contains("make_plan(Y, expression) plans for this destination."),
                         otimes::unsupported_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::make_plan(map, few * kron(dA, dB))),
                         doctest::Contains("make_plan: Y is 5 x 12 and cannot be resized"), otimes::shape_error);
    DeviceMatrix<double, Order::value> dY(2, 2);
    const otimes::plan p = otimes::make_plan(dY, value);
    CHECK(dY.rows() == 2);
    CHECK(p == otimes::make_plan<Order::value>(value));
    p.run(dY, value);
    CHECK(agrees(dY.to_host(), want, s));
}

TEST_CASE("a device_map whose last element no address of 64 bits reaches is refused, and not wrapped") {
    double memory[4] = {};
    const std::int64_t large = std::int64_t{1} << 61;  // 2^64 bytes: the second line would lie on the first
    const auto refused = [](const auto& map) {
        CHECK_THROWS_WITH_AS(map(), doctest::Contains("must lie within 2^63 - 1 bytes"), otimes::shape_error);
    };
    refused([&] { return otimes::device_map(memory, 2, 2, large); });
    refused([&] { return otimes::device_map<double, 1>(memory, 2, 2, large); });
    refused([&] { return otimes::device_map(memory, 1, 2, large / 2); });
    refused([&] { return otimes::device_map(memory, large, large); });
    refused([&] { return otimes::device_map(static_cast<const double*>(memory), 2, 3, large / 2); });
    CHECK(otimes::device_map(memory, 2, 1, large).outer_stride() == large);
    CHECK(otimes::device_map(memory, 0, 2, large).size() == 0);
    CHECK(otimes::device_map(memory, 1, 2, large / 2 - 2).cols() == 2);
}

TEST_CASE("an object that evaluates while its thread ends") {
    const counting_gpu gpu;
    std::vector<double> results;
    std::thread([&] {
        thread_local evaluating_at_the_end last;
        last.gpu = &gpu;
        last.X = random_matrix<Eigen::MatrixXd>(5, 6, 1);
        last.A = random_matrix<Eigen::MatrixXd>(2, 2, 2);
        last.B = random_matrix<Eigen::MatrixXd>(3, 3, 3);
        last.results = &results;
        last.evaluate();
    }).join();
    REQUIRE(results.size() == 7);
    CHECK(results[2] == 1);  // what the thread kept was gone
    for (const std::size_t again : {3u, 5u}) {
        CHECK(results[again] == results[0]);
        CHECK(results[again + 1] == results[1]);
    }
    CHECK(gpu.in_use() == 0);
}

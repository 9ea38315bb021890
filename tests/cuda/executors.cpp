// SPDX-License-Identifier: MIT
// Executors of a GPU: streams that they take, waits between them, what tuning tells all of them, operands out of reach, threads that end.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>
#include <otimes/plan/gpu_candidates.hpp>

#include "cuda/device_support.hpp"
#include "support/cuda_driver.hpp"

using otimes::device_map;
using otimes::DeviceMatrix;
using otimes::kron;
using support::driver;
using namespace device_test;

namespace {

const otimes::device_executor& on_new_stream(driver& cuda) {
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    return otimes::gpu(stream);
}

/// Evaluates where its thread destroys it, after all that the thread keeps.
struct evaluating_at_the_end {
    Eigen::MatrixXd X, A, B;
    std::vector<Eigen::MatrixXd>* results = nullptr;
    evaluating_at_the_end() = default;
    evaluating_at_the_end(const evaluating_at_the_end&) = delete;
    evaluating_at_the_end& operator=(const evaluating_at_the_end&) = delete;
    ~evaluating_at_the_end() {
        if (results != nullptr) {
            evaluate();
            evaluate();
        }
    }
    void evaluate() const {
        const DeviceMatrix<double> dX(X), dA(A), dB(B);
        DeviceMatrix<double> dY;
        dY = dX * kron(dA, dB);
        dY += 2 * dX;
        results->push_back(dY.to_host());
    }
};

}  // namespace

TEST_CASE("the default streams are refused under all their names" * needs_gpu()) {
    for (const std::uintptr_t handle : {std::uintptr_t{0}, std::uintptr_t{1}, std::uintptr_t{2}}) {
        CHECK_THROWS_AS(static_cast<void>(otimes::gpu(reinterpret_cast<CUstream_st*>(handle))), otimes::device_error);
    }
}

TEST_CASE("streams come and go, and their executors with them, while they still compute" * needs_gpu()) {
    driver cuda;
    const shapes s{3000, {16, 5, 16}, {16, 7, 16}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const Eigen::MatrixXf want = expected_right(X, factors);
    const DeviceMatrix<float> dX(X);
    DeviceMatrix<float> kept(otimes::gpu());
    for (int i = 0; i < 6; ++i) {
        CAPTURE(i);
        const otimes::device_executor& e = on_new_stream(cuda);
        CUstream_st* const stream = e.stream();
        {
            DeviceMatrix<float> dY(e);
            for (int times = 0; times < 10; ++times) dY = dX * kron(factors);  // host factors: scratch memory, too
            CHECK_THROWS_AS(otimes::forget_gpu(stream), otimes::device_error);
            kept = dY;
        }
        CHECK(otimes::forget_gpu(stream));
        CHECK_FALSE(otimes::forget_gpu(stream));
        REQUIRE(cuda.stream_destroy(stream) == 0);
        CHECK(agrees(kept.to_host(), want, s));
    }
}

TEST_CASE("plan::run waits for the streams of its operands, and they for it" * needs_gpu()) {
    driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const otimes::device_executor& f = on_new_stream(cuda);
    const shapes s{20000, {16, 16}, {16, 16}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf V = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const Eigen::MatrixXf once = expected_right(V, factors), want = expected_right(once, factors);
    const DeviceMatrix<float> A(factors[0], e), B(factors[1], e), dV(V, e), dW(Eigen::MatrixXf(2 * V), e);
    DeviceMatrix<float> dX(s.rows, s.inputs(), e), dY(s.rows, s.inputs(), f);
    const auto value = dX * kron(A, B);
    const otimes::plan p = otimes::make_plan(value);
    const auto queue = [&] {  // work of some milliseconds, the last of which leaves what is to be read
        for (int i = 0; i < 30; ++i) dX.noalias() = dW * kron(A, B);
        dX.noalias() = dV * kron(A, B);
    };
    for (int i = 0; i < 5; ++i) {
        queue();
        p.run(dY, value);
        for (int k = 0; k < 3; ++k) dX.noalias() = dW * kron(A, B);  // not before it has been read
        CHECK(agrees(dY.to_host(), want, s));
    }
    queue();
    DeviceMatrix<float> fresh;
    p.run(fresh, value);
    CHECK(fresh.home() == &e);
    CHECK(agrees(fresh.to_host(), want, s));
    DeviceMatrix<float> memory(s.rows, s.inputs(), e);
    poison(memory);
    queue();
    auto map = memory.map();
    p.run(map, value);
    CHECK(agrees(memory.to_host(), want, s));
}

TEST_CASE("what one executor has tuned, all follow, also those that had a plan" * needs_gpu()) {
    driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const otimes::device_executor& f = on_new_stream(cuda);
    const shapes s{310, {5, 6, 7, 3}, {5, 6, 7, 3}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 3);
    const auto want = expected_right(X, factors);
    const auto with = [&](const otimes::device_executor& where, const auto& use) {
        const DeviceMatrix<float, 1> A(factors[0], where), B(factors[1], where), C(factors[2], where),
            D(factors[3], where), dX(X, where);
        use(dX * kron(A, B, C, D));
    };
    const auto choice_on = [&](const otimes::device_executor& where) {
        std::string choice;
        with(where, [&](const auto& value) {
            DeviceMatrix<float, 1> dY;
            dY = value;
            CHECK(agrees(dY.to_host(), want, s));
            const auto made = otimes::planning::choice_of(otimes::make_plan<1>(value));
            if (made) choice = otimes::planning::choice_text(*made);
        });
        return choice;
    };
    const std::string before = choice_on(f);
    otimes::tuning_report report;
    with(e, [&](const auto& value) {
        report = otimes::tune<1>(value, {}, {.most_candidates = 6, .keep_on_disk = false});
    });
    const std::string& winner = report.candidates.at(report.best).choice;
    CAPTURE(before);
    CHECK(choice_on(e) == winner);
    CHECK(choice_on(f) == winner);
    CHECK(choice_on(on_new_stream(cuda)) == winner);
    const otimes::device_executor& g = on_new_stream(cuda);
    std::thread([&] { CHECK(choice_on(g) == winner); }).join();
}

TEST_CASE_TEMPLATE("tuning compares results of 16-bit elements, also odd numbers of them" * needs_gpu(), Storage,
                   otimes::half, otimes::bfloat16) {
    using host = Eigen::Matrix<Storage, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto stored = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return host(random_matrix<matrix<float, 1>>(rows, cols, seed).template cast<Storage>());
    };
    for (const std::int64_t n : {5, 8, 16}) {
        CAPTURE(n);
        const DeviceMatrix<Storage, 1> A(stored(n, n, 1)), B(stored(n, n, 2)), C(stored(n, n, 3));
        const DeviceMatrix<Storage, 1> dX(stored(301, n * n * n, 4));
        const otimes::tuning_report report =
            otimes::tune<1>(dX * kron(A, B, C), {}, {.most_candidates = 6, .repetitions = 1, .keep_on_disk = false});
        REQUIRE(!report.candidates.empty());
        for (const otimes::tuned_candidate& c : report.candidates) {
            CHECK_MESSAGE(c.valid, c.choice << " differs by " << c.difference);
            CHECK(c.difference >= 0);
            CHECK(c.difference < 0.05);
        }
    }
}

TEST_CASE("operands that kernels do not reach are refused before a launch; the context stays usable" * needs_gpu()) {
    driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    const otimes::scoped_executor here(e);
    const shapes s{5, {3, 4}, {3, 4}};
    auto factors = random_factors<float>(s);
    Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const Eigen::MatrixXf want = expected_right(X, factors);
    const DeviceMatrix<float> dA(factors[0]), dB(factors[1]), dX(X);
    const auto K = kron(dA, dB);
    DeviceMatrix<float> dY;
    dY = dX * K;
    // Where the GPU takes the system's pages, host memory is as good as any; else it is refused.
    const auto refused_or_right = [&](const std::string& name, const auto& evaluate) {
        CAPTURE(name);
        try {
            evaluate();
            e.synchronize();
            MESSAGE("this GPU reaches memory of the host");
        } catch (const otimes::device_error& refusal) {
            const std::string text = refusal.what();
            CAPTURE(text);
            CHECK(text.rfind("otimes: " + name + ", at 0x", 0) == 0);
            CHECK(text.find("is in host memory") != std::string::npos);
        }
        poison(dY);
        dY = dX * K;
        CHECK(agrees(dY.to_host(), want, s));
    };
    const otimes::plan p = otimes::make_plan(dX * K);
    Eigen::MatrixXf Y(s.rows, s.outputs());
    for (int twice = 0; twice < 2; ++twice) {
        refused_or_right("X", [&] {
            dY = device_map(X.data(), s.rows, s.inputs()) * K;
            CHECK(agrees(dY.to_host(), want, s));
        });
        refused_or_right("X", [&] { p.run(dY, device_map(X.data(), s.rows, s.inputs()) * K); });
        refused_or_right("a factor", [&] { dY = dX * kron(dA, device_map(factors[1].data(), 4, 4)); });
        refused_or_right("Y", [&] {
            device_map(Y.data(), s.rows, s.outputs()) = dX * K;
            e.synchronize();
            CHECK(agrees(Y, want, s));
        });
    }
    float* const nowhere = nullptr;
    CHECK_THROWS_AS(dY = device_map(nowhere, s.rows, s.inputs()) * K, otimes::device_error);
    CHECK_THROWS_AS(device_map(nowhere, s.rows, s.outputs()) = dX * K, otimes::device_error);
    DeviceMatrix<float> none;
    none = device_map(nowhere, 0, s.inputs()) * K;  // no element, no address
    CHECK(none.size() == 0);
    // Managed memory, and memory that is pinned, are within reach.
    int (*allocate_managed)(unsigned long long*, std::size_t, unsigned) = nullptr;
    int (*free_memory)(unsigned long long) = nullptr;
    driver::load(allocate_managed, "cuMemAllocManaged");
    driver::load(free_memory, "cuMemFree_v2");
    unsigned long long managed = 0;
    REQUIRE(allocate_managed(&managed, static_cast<std::size_t>(X.size()) * sizeof(float), 1) == 0);
    auto* const elements = reinterpret_cast<float*>(managed);
    Eigen::Map<Eigen::MatrixXf>(elements, X.rows(), X.cols()) = X;
    poison(dY);
    dY = device_map(elements, s.rows, s.inputs()) * K;
    CHECK(agrees(dY.to_host(), want, s));
    CHECK(free_memory(managed) == 0);
    {
        const otimes::pinned_scope pinned(X);
        poison(dY);
        dY = device_map(X.data(), s.rows, s.inputs()) * K;
        CHECK(agrees(dY.to_host(), want, s));
    }
    // An operand that this thread has never used may be asked after while the stream is captured.
    for (const int mode : {0, 2}) {  // global, relaxed
        CAPTURE(mode);
        const DeviceMatrix<float> fresh(X);
        e.synchronize();
        REQUIRE(cuda.begin_capture(e.stream(), mode) == 0);
        dY = fresh * K;
        void* graph = nullptr;
        void* executable = nullptr;
        REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        poison(dY);
        REQUIRE(cuda.graph_launch(executable, e.stream()) == 0);
        CHECK(agrees(dY.to_host(), want, s));
    }
}

TEST_CASE("a pinned_scope ends in a thread that has no context" * needs_gpu()) {
    static_cast<void>(otimes::gpu());
    const Eigen::MatrixXf X = Eigen::MatrixXf::Ones(300, 400);
    for (int i = 0; i < 2; ++i) {  // the second time it would still be pinned
        std::thread([&X] { const otimes::pinned_scope pinned(X); }).join();
    }
    CHECK_NOTHROW(otimes::pinned_scope{X});
}

TEST_CASE("an object that evaluates while its thread ends" * needs_gpu()) {
    std::vector<Eigen::MatrixXd> results;
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(5, 6, 1), A = random_matrix<Eigen::MatrixXd>(2, 2, 2),
                          B = random_matrix<Eigen::MatrixXd>(3, 3, 3);
    std::thread([&] {
        thread_local evaluating_at_the_end last;
        last.X = X;
        last.A = A;
        last.B = B;
        last.results = &results;
        last.evaluate();
    }).join();
    REQUIRE(results.size() == 3);
    const Eigen::MatrixXd want = expected_right(X, std::vector<Eigen::MatrixXd>{A, B}) + 2 * X;
    for (const Eigen::MatrixXd& got : results) CHECK(agrees(got, want, {5, {2, 3}, {2, 3}}));
}

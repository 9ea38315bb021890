// SPDX-License-Identifier: MIT
// What the host's side of the CUDA back end does with memory, captures, kernels and errors, on a pretended driver: see run.sh.
#include <doctest/doctest.h>

#include <Eigen/Dense>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/algebra.hpp>
#include <otimes/cuda.hpp>

#include "backend/cuda/core_set.hpp"
#include "backend/cuda/kernel_store.hpp"
#include "pretended_driver/host_side.hpp"

using namespace host_side;

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

TEST_CASE("numbers that kernels write to the host are taken when they have come, without the driver's wait") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    using std::chrono::microseconds;
    // What kernels do: two numbers of four at most, after a while.
    const auto received = [&e](double first, double second, microseconds after) {
        std::thread kernel;
        std::vector<double> got;
        const auto queue = [&](void* memory) {
            auto* const numbers = static_cast<double*>(memory);
            kernel = std::thread([=] {
                std::this_thread::sleep_for(after);
                std::atomic_ref(numbers[0]).store(first);
                std::this_thread::sleep_for(after);
                std::atomic_ref(numbers[1]).store(second);
            });
            return std::int64_t{16};
        };
        const auto read = [&](const void* memory) {
            const auto* const numbers = static_cast<const double*>(memory);
            got.assign(numbers, numbers + 2);
        };
        const auto join = [&] { kernel.join(); };
        try {
            e.receive(32, queue, read);
        } catch (const otimes::device_error&) {
            got.clear();
        }
        join();
        return got;
    };
    // Not each time: the other thread may get no core within the millisecond.
    const std::vector<double> some{3.5, -2.25};
    bool came = false;
    for (int turn = 0; turn < 1000 && !came; ++turn) {
        driver().fail("cuStreamSynchronize", 1, 700, 1);
        came = received(3.5, -2.25, microseconds(20)) == some;
        driver().fail(nullptr, 0, 0, 0);
    }
    CHECK(came);
    // What has not come within a millisecond is waited for as ever: the driver says what happened.
    driver().fail("cuStreamSynchronize", 1, 700, 1);
    CHECK(received(3.5, -2.25, microseconds(10000)).empty());
    driver().fail(nullptr, 0, 0, 0);
    e.receive(
        8, [](void*) { return std::int64_t{0}; }, [](const void*) {});
}

TEST_CASE("as many blocks are launched as fit, of small tensors side by side no more than their tile says") {
    support::driver cuda;
    const otimes::device_executor& e = on_new_stream(cuda);
    using floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<float, Eigen::RowMajor>;
    const device dX(floats::Ones(8192, 512), e), dF(floats::Ones(8, 8), e);
    device dY(8192, 512, e);
    driver().knows_all = true;
    driver().occupancy = 12;
    dY.noalias() = dX * kron(otimes::identity(8), dF, otimes::identity(8));  // 16 a tile, six blocks a multiprocessor
    CHECK(driver().last_grid == 6 * 132);
    driver().occupancy = 4;
    dY.noalias() = dX * kron(otimes::identity(4), dF, otimes::identity(16));
    CHECK(driver().last_grid == 4 * 132);
    driver().occupancy = 12;
    dY.noalias() = dX * kron(otimes::identity(64), dF);
    CHECK(driver().last_grid == 12 * 132);
    driver().occupancy = 2;
    driver().knows_all = false;
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
    for (const auto& one : std::vector<std::pair<int, const char*>>{{2, "Free device memory"},
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
        CAPTURE(one.first);
        CHECK(holds(with_code(one.first), one.second));
    }
    {
        const failing all("cuMemHostRegister");
        const std::string text = refusal([&] { const otimes::pinned_scope pinned(X); });
        CHECK(holds(text, "page-locked memory of the host"));
        CHECK(!holds(text, "device memory"));
    }
    const DeviceMatrix<double> dX(X), dA(A), dB(B);
    DeviceMatrix<double> dY;
    const auto from_host = [&] { dY = otimes::device_map(X.data(), X.rows(), X.cols()) * kron(dA, dB); };
    {
        const otimes::pinned_scope pinned(X);
        CHECK(holds(refusal([&] { const otimes::pinned_scope twice(X); }), "pinned already"));
        from_host();
        CHECK(dY.to_host() == X * dense(A, B));
    }
    CHECK(holds(refusal(from_host), "is in host memory"));  // it was within reach, and is no more

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
        CAPTURE(std::string(call));
        const auto start = std::chrono::steady_clock::now();
        {
            const failing once(call, code, 1, 1);
            const std::string text = e.describe(plan);
            CHECK(holds(text, what));
            CHECK(holds(text, "generic kernels in the place of compiled ones"));
            CHECK(holds(text, "tried again later") == again);
        }
        const bool at_once = !holds(e.describe(plan), what);
        CHECK((!at_once || std::chrono::steady_clock::now() - start > std::chrono::milliseconds(900)));
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

namespace {

/// A resource that fails at its nth allocation.
struct failing_resource : counting_resource {
    enum class way { bad_alloc, number, null };
    way how = way::bad_alloc;
    int fails_at = 0, asked = 0;
    void* allocate(std::size_t bytes, CUstream_st* stream) override {
        if (++asked == fails_at) {
            if (how == way::bad_alloc) throw std::bad_alloc();
            if (how == way::number) throw 7;
            return nullptr;
        }
        return counting_resource::allocate(bytes, stream);
    }
};

}  // namespace

TEST_CASE("a memory resource that throws, or gives nothing, leaves nothing behind and nothing half written") {
    support::driver cuda;
    static failing_resource resource;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(400, 15, 3), want = X * dense(A, B);
    using way = failing_resource::way;
    for (const way how : {way::bad_alloc, way::number, way::null}) {
        int failed = 0;
        for (int at = 1; at < 12; ++at) {
            for (const bool on_host : {false, true}) {
                resource.how = how;
                resource.asked = 0;
                resource.fails_at = at;
                const int live = resource.live;
                matrix Y = matrix::Constant(400, 8, std::numeric_limits<double>::quiet_NaN());
                try {
                    if (on_host) {
                        otimes::on(e, Y) = X * kron(A, B);
                    } else {
                        const DeviceMatrix<double> dA(A, e), dB(B, e), dX(X, e);
                        DeviceMatrix<double> dY(e);
                        dY = dX * kron(dA, dB);
                        Y = dY.to_host();
                    }
                    CHECK(Y == want);
                } catch (const std::bad_alloc&) {
                    failed += how == way::bad_alloc ? 1 : 0;
                } catch (const int&) {
                    failed += how == way::number ? 1 : 0;
                } catch (const otimes::device_error& error) {
                    failed += how == way::null && holds(error.what(), "device_memory_resource") ? 1 : 0;
                }
                if (Y != want) CHECK(Y.array().isNaN().all());
                CHECK(resource.live <= live + 2);  // the stream's workspaces
            }
        }
        CHECK(failed >= 8);
        resource.fails_at = 0;
    }
}

TEST_CASE(
    "slabs that do not fit beside others become smaller; where none fit that is an error of memory, not of a limit") {
    const matrix A = whole(8, 8, 1), B = whole(40, 40, 2);
    const by_rows X = whole(3000, 320, 3);
    matrix Y;
    const otimes::scoped_executor here(otimes::gpu());
    otimes::gpu().synchronize();
    const long in_use = driver().device_bytes;
    {
        const failing first("cuMemAllocFromPoolAsync", 2, 1, 1);
        Y = X * kron(A, B);
    }
    CHECK(Y == X * dense(A, B));
    driver().memory_bytes = in_use + (1 << 20);
    Y = X * kron(A, B);
    CHECK(Y == X * dense(A, B));
    const matrix F = whole(400, 400, 4);  // of more than that
    const by_rows V = whole(3000, 400, 5);
    Y = matrix::Constant(3000, 400, std::numeric_limits<double>::quiet_NaN());
    const std::string text = refusal([&] { Y = V * kron(F); });
    CHECK(holds(text, "OUT_OF_MEMORY"));
    CHECK(holds(text, "Free device memory"));
    CHECK(Y.array().isNaN().all());
    driver().memory_bytes = 8l << 30;
    Y = V * kron(F);
    CHECK(Y == V * F);
}

namespace {

struct chance {
    std::uint64_t state;
    long pick(long least, long most) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return least + static_cast<long>((state >> 33) % static_cast<std::uint64_t>(most - least + 1));
    }
};

/// Products of views in host memory that pass in slabs, each twice: by a plan within a budget, assigned, added, subtracted.
template <int OfX, int OfY, bool Left>
void stream_randomly(chance& c) {
    using matrix_x = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, OfX>;
    using matrix_y = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, OfY>;
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const auto seed = [&] { return static_cast<std::uint64_t>(c.pick(0, 1 << 20)); };
    const matrix A = whole(c.pick(2, 8), c.pick(2, 8), seed()), B = whole(c.pick(2, 8), c.pick(2, 8), seed());
    const matrix K = dense(A, B);
    const long rows = c.pick(1, 300), around = c.pick(0, 3);
    matrix x = Left ? whole(K.cols(), rows, seed()) : whole(rows, K.rows(), seed());
    const long y_rows = Left ? K.rows() : rows, y_cols = Left ? rows : K.cols();
    matrix_x in = matrix_x::Constant(x.rows() + around, x.cols() + 2 * around, nan);
    matrix_y out = matrix_y::Constant(y_rows + around, y_cols + 2 * around, nan);
    auto X = in.block(around, around, x.rows(), x.cols());
    auto Y = out.block(around, around, y_rows, y_cols);
    const long bytes = (x.size() + y_rows * y_cols) * 8,
               divisor = std::vector<long>{1, 2, 5, 19, 60}[static_cast<std::size_t>(c.pick(0, 4))];
    const otimes::options within{.workspace_limit_bytes = std::max(bytes / divisor, 6000l),
                                 .placement = otimes::placement::gpu};
    std::unique_ptr<otimes::pinned_scope> pinned_in, pinned_out;
    if (c.pick(0, 2) == 0) pinned_in = std::make_unique<otimes::pinned_scope>(in);
    if (c.pick(0, 2) == 0) pinned_out = std::make_unique<otimes::pinned_scope>(out);
    const long way = c.pick(0, 3);
    const matrix before = whole(y_rows, y_cols, seed());
    const auto product = [&] {
        if constexpr (Left) {
            return 2.0 * kron(A, B) * X;
        } else {
            return 2.0 * X * kron(A, B);
        }
    };
    for (int twice = 0; twice < 2; ++twice) {
        X = x;
        const matrix KX = Left ? matrix(K * x) : matrix(x * K);
        if (way < 2) {
            Y.setConstant(nan);
            if (way == 0) otimes::make_plan(Y, product(), within).run(Y, product());
            if (way == 1) Y = product();
            CHECK(Y == 2 * KX);
        } else {
            Y = before;
            if (way == 2) Y.noalias() += product();
            if (way == 3) Y -= product();
            CHECK(Y == before + (way == 2 ? 2 : -2) * KX);
        }
        CHECK(out.array().isNaN().count() == out.size() - Y.size());
        x *= -2;
    }
}

}  // namespace

TEST_CASE("streaming: views, orders, sides, remainders, pinned or not, added or assigned, each run twice") {
    const otimes::scoped_executor here(otimes::gpu());
    chance c{3};
    for (int i = 0; i < 20; ++i) {
        CAPTURE(i);
        stream_randomly<Eigen::RowMajor, Eigen::RowMajor, false>(c);
        stream_randomly<Eigen::ColMajor, Eigen::ColMajor, false>(c);
        stream_randomly<Eigen::ColMajor, Eigen::RowMajor, true>(c);
        stream_randomly<Eigen::RowMajor, Eigen::ColMajor, true>(c);
    }
    CHECK(driver().frees_of_nothing == 0);
}

TEST_CASE(
    "streaming: a call that fails in the middle is an error, or nobody sees it; the next run is whole, and nothing is "
    "lost") {
    const otimes::scoped_executor here(otimes::gpu());
    const matrix A = whole(7, 5, 1), B = whole(6, 8, 2);
    const by_rows X = whole(700, 42, 3), want = X * dense(A, B), old = whole(700, 40, 4);
    by_rows Y(700, 40);
    const otimes::plan p =
        otimes::make_plan(Y, X * kron(A, B), {.workspace_limit_bytes = 60000, .placement = otimes::placement::gpu});
    p.run(Y, X * kron(A, B));
    int failed = 0;
    for (const char* const call :
         {"cuMemAllocFromPoolAsync", "cuMemAllocHost", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpy2DAsync",
          "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuLaunchKernelEx", "cuStreamSynchronize",
          "cuEventCreate", "cuStreamCreate", "cuCtxPushCurrent"}) {
        for (const int nth : {1, 2, 3, 5, 8, 13}) {
            for (const int code : {2, 999}) {
                CAPTURE(std::string(call));
                CAPTURE(nth);
                std::string text;
                {
                    const failing some(call, code, nth, nth % 2 == 0 ? 1 : 1000);
                    text = refusal([&] { p.run(Y, X * kron(A, B)); });
                }
                failed += text.empty() ? 0 : 1;
                CHECK((!text.empty() || Y == want));
                Y = old;
                {
                    const failing some(call, code, nth, 1);
                    text = refusal([&] { Y += X * kron(A, B); });
                }
                CHECK((!text.empty() || Y == old + want));
                Y.setConstant(std::numeric_limits<double>::quiet_NaN());
                p.run(Y, X * kron(A, B));
                CHECK(Y == want);
            }
        }
    }
    CHECK(failed > 60);
    CHECK(driver().pinned_blocks <= 48);
}

TEST_CASE("an executor that cannot be made leaves nothing behind, and is made by a later call [gpus]") {
    support::driver cuda;
    void* context = nullptr;
    REQUIRE(cuda.primary_retain(&context, 2) == 0);
    REQUIRE(cuda.context_push(context) == 0);
    const auto in_use = [] {
        return std::vector<long>{driver().device_bytes, driver().streams, driver().events, driver().modules,
                                 driver().pools};
    };
    const std::vector<long> before = in_use();
    driver().context_flags = 4;  // CU_CTX_SCHED_BLOCKING_SYNC
    // In the order in which they are called; the last two when the context's object is there, which stays.
    for (const char* const call : {"cuCtxGetFlags", "cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemAlloc",
                                   "cuStreamCreate", "cuMemcpyHtoDAsync", "cuStreamSynchronize", "cuModuleLoadData"}) {
        CAPTURE(std::string(call));
        for (int twice = 0; twice < 2; ++twice) {
            const failing once(call, 2, 1, 1);
            CHECK(holds(refusal([] { static_cast<void>(otimes::gpu()); }), call));
            CHECK(in_use() == before);
        }
    }
    std::vector<long> of_context;
    for (int times = 0; times < 4; ++times) {
        CAPTURE(times);
        const failing once(times % 2 == 0 ? "cuEventCreate" : "cuStreamCreate", 2, 1, 1);
        CHECK(!refusal([] { static_cast<void>(otimes::gpu()); }).empty());
        of_context = of_context.empty() ? in_use() : of_context;
        CHECK(in_use() == of_context);
    }
    const matrix A = whole(2, 3, 1), B = whole(3, 2, 2), X = whole(4, 6, 3);
    DeviceMatrix<double> dY(otimes::gpu());
    dY = DeviceMatrix<double>(X, otimes::gpu()) * kron(A, B);
    CHECK(dY.to_host() == X * dense(A, B));
    // Its threads sleep while they wait, also for numbers that are there already.
    const auto queue = [](void* memory) {
        *static_cast<double*>(memory) = 3;
        return std::int64_t{8};
    };
    double got = 0;
    const auto read = [&got](const void* memory) { got = *static_cast<const double*>(memory); };
    {
        const failing once("cuStreamSynchronize", 1, 1, 1);
        CHECK(holds(refusal([&] { otimes::gpu().receive(8, queue, read); }), "cuStreamSynchronize"));
    }
    otimes::gpu().receive(8, queue, read);
    CHECK(got == 3);
    driver().context_flags = 0;
    REQUIRE(cuda.context_pop(&context) == 0);
}

TEST_CASE("matrices of two GPUs: what is refused says how to copy, and that works [gpus]") {
    support::driver cuda;
    const otimes::device_executor& here = otimes::gpu();
    void* context = nullptr;
    REQUIRE(cuda.primary_retain(&context, 1) == 0);
    REQUIRE(cuda.context_push(context) == 0);
    const otimes::device_executor& there = otimes::gpu();
    REQUIRE(cuda.context_pop(&context) == 0);
    REQUIRE(&here != &there);
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), X = whole(4, 15, 3);
    const DeviceMatrix<double> dA(A, here), dB(B, here), dX(X, there), near(dX.to_host(), here);
    DeviceMatrix<double> dY(here);
    CHECK(holds(refusal([&] { dY = dX * kron(dA, dB); }), "X(other.to_host(), executor)"));
    CHECK(holds(refusal([&] { dY = dX; }), "is in the memory of another GPU"));
    dY = near * kron(dA, dB);
    CHECK(dY.to_host() == X * dense(A, B));
    // A plan runs where its operands are.
    const otimes::plan p = otimes::make_plan(near * kron(dA, dB));
    const DeviceMatrix<double> farA(A, there), farB(B, there);
    DeviceMatrix<double> farY(there);
    p.run(farY, dX * kron(farA, farB));
    CHECK(farY.to_host() == X * dense(A, B));
}

TEST_CASE("rows over several GPUs: remainders, fewer rows than GPUs, one that fails [gpus]") {
    const otimes::executor& all = otimes::gpus();
    REQUIRE(all.target().gpus.size() == 3);
    const otimes::scoped_executor here(all);
    const matrix A = whole(3, 4, 1), B = whole(5, 2, 2), K = dense(A, B);
    const Eigen::VectorXd v = whole(8, 1, 6);
    for (const long rows : {0, 1, 2, 3, 4, 100, 301}) {
        CAPTURE(rows);
        const matrix X = whole(rows, 15, 3), Z = whole(8, rows, 4), old = whole(rows, 8, 5);
        matrix Y = matrix::Constant(rows, 8, std::numeric_limits<double>::quiet_NaN());
        by_rows W = by_rows::Constant(15, rows, std::numeric_limits<double>::quiet_NaN());
        Y = X * kron(A, B);
        CHECK(Y == X * K);
        W = kron(A, B) * Z;
        CHECK(W == K * Z);
        Y = old;
        Y.noalias() -= 2 * X * kron(A, B);
        CHECK(Y == old - 2 * X * K);
        for (const int gone : {0, 1, 2}) {
            CAPTURE(gone);
            driver().lost[gone] = true;
            const std::string text = refusal([&] { Y = X * kron(A, B); });
            driver().lost[gone] = false;
            if (rows > gone) {
                const long parts = std::min(rows, 3l);
                CHECK(holds(text, ("part " + std::to_string(gone + 1) + " of " + std::to_string(parts)).c_str()));
                CHECK(holds(text, "The context is lost"));
            } else {
                CHECK(text.empty());
            }
            Y = X * kron(A, B);
            CHECK(Y == X * K);
        }
    }
    const Eigen::VectorXd Kv = kron(A, B) * v;
    CHECK(Kv == K * v);
}

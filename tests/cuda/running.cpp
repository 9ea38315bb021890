// SPDX-License-Identifier: MIT
// How plans run on a GPU: graphs, allocations, threads, streams, workspaces, errors, large sizes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>
#include <otimes/plan/gpu_candidates.hpp>

#include "cuda/device_support.hpp"
#include "support/counting_new.hpp"
#include "support/cuda_driver.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using support::driver;
using namespace device_test;

namespace {

class counting_resource : public otimes::device_memory_resource {
public:
    void* allocate(std::size_t bytes, CUstream_st*) override {
        ++allocations;
        most = std::max(most.load(), bytes);
        void* const memory = otimes::gpu().allocate(static_cast<std::int64_t>(bytes));
        otimes::gpu().synchronize();  // it is another stream's
        return memory;
    }
    void deallocate(void* memory, std::size_t bytes, CUstream_st* stream) noexcept override {
        ++releases;
        static const driver cuda;
        cuda.stream_synchronize(stream);
        otimes::gpu().release(memory, static_cast<std::int64_t>(bytes));
    }
    std::atomic<int> allocations{0};
    std::atomic<int> releases{0};
    std::atomic<std::size_t> most{0};  ///< bytes at once
};

}  // namespace

TEST_CASE("a captured expression replays with new contents" * needs_gpu()) {
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    for (const shapes& s :
         {shapes{64, {4, 4, 4}, {4, 4, 4}}, shapes{5, {3, 4}, {6, 2}}, shapes{2, {65, 52}, {20, 50}}}) {
        CAPTURE(s.text());
        const auto factors = random_factors<float>(s);
        const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
        const DeviceMatrix<float> A(factors[0], e), B(factors[1], e),
            C(factors.size() > 2 ? factors[2] : Eigen::MatrixXf::Ones(1, 1), e);
        DeviceMatrix<float> dX(X, e), dY(e);
        dY = dX * kron(A, B, C);
        REQUIRE(cuda.begin_capture(stream, 2) == 0);
        dY = dX * kron(A, B, C);
        dY += 2.0f * dX * kron(A, B, C);
        void* graph = nullptr;
        void* executable = nullptr;
        std::size_t nodes = 0;
        REQUIRE(cuda.end_capture(stream, &graph) == 0);
        REQUIRE(cuda.node_count(graph, nullptr, &nodes) == 0);
        CHECK(nodes >= 2);
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        const Eigen::MatrixXf X2 = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 2);
        dX = X2;
        poison(dY);
        REQUIRE(cuda.graph_launch(executable, stream) == 0);
        CHECK(agrees(dY.to_host(), Eigen::MatrixXf(3.0f * expected_right(X2, factors)), s));
    }
}

// Sums in pieces and conjugated factors take memory besides the workspace, of which other work of the executor has the same.
TEST_CASE_TEMPLATE("a graph captured with a workspace of the caller runs beside other products" * needs_gpu(), Scalar,
                   double, std::complex<float>) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    driver cuda;
    CUstream_st* stream = nullptr;
    CUstream_st* beside = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    REQUIRE(cuda.stream_create(&beside, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    const bool long_factors = sizeof(Scalar) == sizeof(typename Eigen::NumTraits<Scalar>::Real);
    const Eigen::Index rows = long_factors ? 1 : 64, n = long_factors ? 500 : 8;
    const matrix A = random_matrix<matrix>(n, n, 1), B = random_matrix<matrix>(n, n, 2),
                 C = random_matrix<matrix>(n, n, 3), X = random_matrix<matrix>(rows, n * n, 4);
    const DeviceMatrix<Scalar, 1> dA(A, e), dB(B, e), dC(C, e), dX(X, e);
    DeviceMatrix<Scalar, 1> dY(rows, n * n, e), dZ(rows, n * n, e);
    const auto first = kron(dA, dB).adjoint(), second = kron(dC, dB).adjoint();
    const otimes::plan p = otimes::make_plan<1>(dX * first);
    DeviceMatrix<double> workspace(p.workspace_bytes / 8 + 1, 1, e);
    const auto run = [&] { p.run(dY, dX * first, workspace); };
    run();
    dZ.noalias() = dX * second;
    const matrix want_first = dY.to_host(), want_second = dZ.to_host();
    const shapes of{rows, {n, n}, {n, n}};
    CHECK(agrees(want_first, expected_right(X, std::vector<matrix>{A.adjoint(), B.adjoint()}), of));
    REQUIRE(cuda.begin_capture(stream, 2) == 0);
    run();
    void* graph = nullptr;
    void* executable = nullptr;
    REQUIRE(cuda.end_capture(stream, &graph) == 0);
    REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
    bool right = true;
    for (int i = 0; i < 100 && right; ++i) {
        REQUIRE(cuda.graph_launch(executable, beside) == 0);
        dZ.noalias() = dX * second;
        REQUIRE(cuda.stream_synchronize(beside) == 0);
        right = matrix(dY.to_host()) == want_first && matrix(dZ.to_host()) == want_second;
        poison(dY);
        e.synchronize();
    }
    CHECK(right);
}

// A kernel may be launched before the one in front of it has ended: it must wait for its operand and for its factor, where that one writes them.
// Permutations are exact.
TEST_CASE("each of many launches sees what the one before it wrote, in a stream and in a graph" * needs_gpu()) {
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    const auto shift = [](int n) {
        Eigen::MatrixXf m = Eigen::MatrixXf::Zero(n, n);
        for (int i = 0; i < n; ++i) m(i, (i + 1) % n) = 1;
        return m;
    };
    const Eigen::MatrixXf P = shift(2), Q = shift(3), R = shift(5);
    for (const int rows : {7, 40000}) {
        CAPTURE(rows);
        const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(rows, 30, 1);
        Eigen::MatrixXf all = Eigen::MatrixXf::Identity(30, 30), F = shift(6);  // what X has been multiplied by
        const DeviceMatrix<float> dP(P, e), dQ(Q, e), dR(R, e);
        DeviceMatrix<float> dX(X, e), dY(rows, 30, e), dF(F, e), dG(6, 6, e), dV(rows, 30, e), dW(rows, 30, e);
        const auto turn = [&] {
            dG.noalias() = dF * kron(dP, dQ);
            dY.noalias() = dX * kron(dG, dR);
            dF.noalias() = dG * kron(dP, dQ);
            dX.noalias() = dY * kron(dF, dR);
            dV.noalias() = dX * kron(dP, dQ, dR);  // X is new, the factors are not
            dW.noalias() = dX * kron(dG, dR);      // nothing is
        };
        const auto require_turns = [&](int turns) {
            for (int i = 0; i < 2 * turns; ++i) {
                F = expected_right(F, std::vector<Eigen::MatrixXf>{P, Q});
                all = expected_right(all, std::vector<Eigen::MatrixXf>{F, R});
            }
            CHECK(dF.to_host() == F);
            const Eigen::MatrixXf now = X * all,
                                  G = expected_right(F, std::vector<Eigen::MatrixXf>{P.transpose(), Q.transpose()});
            CHECK(dX.to_host() == now);
            CHECK(dV.to_host() == expected_right(now, std::vector<Eigen::MatrixXf>{P, Q, R}));
            CHECK(dW.to_host() == expected_right(now, std::vector<Eigen::MatrixXf>{G, R}));
        };
        for (int i = 0; i < 50; ++i) turn();
        require_turns(50);
        REQUIRE(cuda.begin_capture(stream, 2) == 0);
        for (int i = 0; i < 10; ++i) turn();
        void* graph = nullptr;
        void* executable = nullptr;
        REQUIRE(cuda.end_capture(stream, &graph) == 0);
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        for (int i = 0; i < 5; ++i) REQUIRE(cuda.graph_launch(executable, stream) == 0);
        require_turns(50);
    }
}

TEST_CASE("capture refuses host operands and host factors by a typed error" * needs_gpu()) {
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(3, 3), B = Eigen::MatrixXd::Random(4, 4),
                          X = Eigen::MatrixXd::Random(5, 12);
    DeviceMatrix<double> dX(X, e), dY(e), dA(A, e), dB(B, e);
    dY = dX * kron(A, B);
    Eigen::MatrixXd Y;
    REQUIRE(cuda.begin_capture(stream, 2) == 0);
    CHECK_THROWS_AS(dY = dX * kron(A, B), otimes::device_error);
    CHECK_THROWS_AS(otimes::on(e, Y) = X * kron(A, B), otimes::device_error);
    CHECK_THROWS_AS(static_cast<void>(dX.to_host()), otimes::device_error);
    CHECK_THROWS_AS(static_cast<void>((dX * kron(dA, dB)).norm()), otimes::device_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::dot(dX, dX)), otimes::device_error);
    void* graph = nullptr;
    std::size_t nodes = 1;
    CHECK(cuda.end_capture(stream, &graph) == 0);
    CHECK(cuda.node_count(graph, nullptr, &nodes) == 0);
    CHECK(nodes == 0);  // nothing was queued before it was refused
    dY = dX * kron(A, B);
    CHECK(agrees(dY.to_host(), expected_right(X, std::vector<Eigen::MatrixXd>{A, B}), {5, {3, 4}, {3, 4}}));
}

TEST_CASE("what a capture of any mode evaluates first is loaded beside it" * needs_gpu()) {
    driver cuda;
    const auto on_new_stream = [&cuda]() -> const otimes::device_executor& {
        CUstream_st* stream = nullptr;
        REQUIRE(cuda.stream_create(&stream, 1) == 0);
        return otimes::gpu(stream);
    };
    const otimes::device_executor& other = on_new_stream();
    for (const int mode : {0, 1, 2}) {  // global, of the thread, relaxed
        CAPTURE(mode);
        const otimes::device_executor& e = on_new_stream();
        const shapes s{21, {6, 5 + mode}, {6, 5 + mode}};  // that no other test has
        const auto factors = random_factors<double>(s);
        const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 1);
        const DeviceMatrix<double, 1> A(factors[0], e), B(factors[1], e), dX(X, e);
        DeviceMatrix<double, 1> dY(s.rows, s.outputs(), e), host_side(X.rows(), X.cols(), other), larger(e);
        poison(dY);
        const DeviceMatrix<double, 1> C(Eigen::MatrixXd(Eigen::MatrixXd::Random(s.inputs(), 40)), e);
        larger = dX * kron(C);  // the executor has its memory; the kernels of the other product are not there yet
        e.synchronize();
        void* graph = nullptr;
        void* executable = nullptr;
        REQUIRE(cuda.begin_capture(e.stream(), mode) == 0);
        try {
            dY = dX * kron(A, B);
            // Another thread's executor may take pinned memory meanwhile.
            std::thread([&] { host_side = X; }).join();
        } catch (const otimes::device_error& refused) {
            FAIL_CHECK(refused.what());
        }
        REQUIRE(cuda.end_capture(e.stream(), &graph) == 0);
        REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
        REQUIRE(cuda.graph_launch(executable, e.stream()) == 0);
        CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
        CHECK(host_side.to_host() == X);
        // The same kernels as without a capture.
        const otimes::plan p = otimes::make_plan<1>(dX * kron(A, B));
        CHECK(e.describe(p) == on_new_stream().describe(p));
    }
}

TEST_CASE("in a capture a matrix keeps its memory, and what would change that leaves the capture valid" * needs_gpu()) {
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream);
    const shapes s{9, {4, 3}, {4, 3}};
    const auto factors = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 1);
    const DeviceMatrix<double> A(factors[0], e), B(factors[1], e);
    const auto K = kron(A, B);
    DeviceMatrix<double> dX(X, e), dY(e), dZ(2, 2, e);
    dY = dX * K;
    dX += dX * K;  // a temporary that ends with the expression
    dX = X;
    e.synchronize();
    REQUIRE(cuda.begin_capture(stream, 0) == 0);
    CHECK_THROWS_AS(dX = dX * K, otimes::device_error);
    CHECK_THROWS_AS(dX *= K, otimes::device_error);
    CHECK_THROWS_AS(dZ = dX * K, otimes::device_error);
    CHECK_NOTHROW(dX += dX * K);
    void* graph = nullptr;
    void* executable = nullptr;
    REQUIRE(cuda.end_capture(stream, &graph) == 0);
    REQUIRE(cuda.instantiate(&executable, graph, 0) == 0);
    Eigen::MatrixXd want = X;
    for (int i = 0; i < 2; ++i) {
        REQUIRE(cuda.graph_launch(executable, stream) == 0);
        want += expected_right(want, factors);
    }
    CHECK(agrees(dX.to_host(), want, s));
}

TEST_CASE("a second run allocates nothing, on the host or on the device" * needs_gpu()) {
    driver cuda;
    static counting_resource resource;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    for (const shapes& s : {shapes{64, {4, 4, 4}, {4, 4, 4}}, shapes{3, {65, 52, 3}, {20, 50, 5}}}) {
        const auto factors = random_factors<double>(s);
        const DeviceMatrix<double> A(factors[0], e), B(factors[1], e), C(factors[2], e);
        const DeviceMatrix<double> dX(random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 1), e);
        DeviceMatrix<double> dY(e);
        for (int i = 0; i < 3; ++i) dY = dX * kron(A, B, C);
        e.synchronize();
        const int before = resource.allocations;
        support::allocation_counter counter;
        for (int i = 0; i < 100; ++i) dY.noalias() = dX * kron(A, B, C);
        const auto seen = counter.seen();
        CHECK(resource.allocations == before);
        if (support::allocations_are_counted()) CHECK(seen.count == 0);
        e.synchronize();
    }
    CHECK(resource.releases > 0);
}

TEST_CASE("a reduction takes memory for a block of the product, and repeats its bits" * needs_gpu()) {
    driver cuda;
    static counting_resource resource;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    const shapes s{4099, {16, 8, 9}, {16, 8, 9}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1), Y = expected_right(X, factors);
    const DeviceMatrix<float> A(factors[0], e), B(factors[1], e), C(factors[2], e);
    const DeviceMatrix<float, 1> dX(X, e), dY(Y, e);
    resource.most = 0;
    const float once = otimes::dot(dY, dX * kron(A, B, C));
    CHECK(std::abs(once - Y.cast<double>().squaredNorm()) <= 1e-5 * Y.cast<double>().squaredNorm());
    CHECK(resource.most > 0);
    CHECK(resource.most <= static_cast<std::size_t>(Y.size()) * sizeof(float) / 16);
    for (int i = 0; i < 20; ++i) CHECK(otimes::dot(dY, dX * kron(A, B, C)) == once);
}

namespace {

// Dot products whose rows no block holds: one kernel that takes them in pieces, against the sum on the host. The rows begin off any
// alignment, with NaN between them.
template <class Scalar>
void check_pieces(const std::vector<shapes>& list) {
    using host = matrix<Scalar, 1>;
    using real = support::real_t<Scalar>;
    using wide = std::conditional_t<support::is_complex<Scalar>, std::complex<long double>, long double>;
    static counting_resource resource;
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    for (const shapes& s : list) {
        CAPTURE(s.p);
        auto factors = random_factors<Scalar>(s);
        const auto run = [&](const host& X, const host& V, std::size_t* most) {
            std::vector<DeviceMatrix<Scalar>> f;
            for (const auto& one : factors) f.emplace_back(one, e);
            const auto K = kron(f);
            const auto padded = [&](const host& m) {
                host all = host::Constant(m.rows() + 1, m.cols() + 5, std::numeric_limits<real>::quiet_NaN());
                all.block(0, 1, m.rows(), m.cols()) = m;
                return DeviceMatrix<Scalar, 1>(all, e);
            };
            const auto view = [&](const DeviceMatrix<Scalar, 1>& all, const host& m) {
                return otimes::device_map<Scalar, 1>(all.data() + 1, m.rows(), m.cols(), all.cols());
            };
            const DeviceMatrix<Scalar, 1> allX = padded(X), allV = padded(V);
            const auto dX = view(allX, X), dV = view(allV, V);
            const Scalar once = otimes::dot(dV, dX * K);
            if (most != nullptr) {
                resource.most = 0;
                for (int i = 0; i < 5; ++i) CHECK(otimes::dot(dV, dX * K) == once);
                *most = resource.most;
            }
            return once;
        };
        host X = random_matrix<host>(s.rows, s.inputs(), 1);
        const host Y = expected_right(X, factors), V = random_matrix<host>(s.rows, Y.cols(), 2);
        wide want(0);
        for (Eigen::Index i = 0; i < Y.rows(); ++i)
            for (Eigen::Index j = 0; j < Y.cols(); ++j)
                want += otimes::detail::conjugate_of(wide(V(i, j))) * wide(Y(i, j));
        const double unit = static_cast<double>(std::numeric_limits<real>::epsilon());
        const double limit = 16 * unit * static_cast<double>(V.norm()) * static_cast<double>(Y.norm());
        std::size_t most = 0;
        CHECK(static_cast<double>(std::abs(wide(run(X, V, &most)) - want)) <= limit);
        std::size_t of_factors = 0;  // the plan counts these, too
        for (const auto& f : factors) of_factors += static_cast<std::size_t>(f.size()) * sizeof(Scalar);
        CHECK(most <= of_factors + 65536);  // sums of blocks
        if constexpr (!support::is_complex<Scalar>) {
            for (auto& f : factors) f = f.cwiseAbs().eval();
            X = X.cwiseAbs().eval();
            const host weights = V.cwiseAbs();
            const auto entry = X.cols() - 2;
            X(X.rows() - 1, entry) = std::numeric_limits<real>::infinity();
            CHECK(run(X, weights, nullptr) == std::numeric_limits<real>::infinity());
            X(0, 0) = std::numeric_limits<real>::quiet_NaN();
            CHECK(std::isnan(run(X, weights, nullptr)));
        }
    }
}

}  // namespace

// In three, so that each ends under compute-sanitizer's racecheck within minutes.
TEST_CASE("dot products of rows that no block holds go in pieces" * needs_gpu()) {
    SUBCASE("float") {
        check_pieces<float>({{24, {64, 64, 64}, {64, 64, 64}},
                             {1, {128, 128, 128}, {128, 128, 128}},
                             {1, {97, 91, 93}, {101, 89, 95}}});
    }
    SUBCASE("double") {
        check_pieces<double>({{1, {64, 64, 64}, {64, 64, 64}}, {1, {128, 128, 128}, {128, 128, 128}}});
    }
    SUBCASE("double, several turns") { check_pieces<double>({{17, {64, 64, 64}, {64, 56, 64}}}); }
    SUBCASE("complex") { check_pieces<std::complex<float>>({{1, {72, 48, 52}, {75, 48, 52}}}); }
}

namespace {

// Norms of rows that one block, or a cluster of eight, does not hold, against the sum on the host; without memory, and the same bits each time.
template <class Scalar>
void check_norms_over_clusters(const std::vector<shapes>& list) {
    using host = matrix<Scalar, 1>;
    static counting_resource resource;
    driver cuda;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    for (const shapes& s : list) {
        CAPTURE(s.p);
        CAPTURE(s.rows);
        const auto factors = random_factors<Scalar>(s);
        const host X = random_matrix<host>(s.rows, s.inputs(), 1), Y = expected_right(X, factors);
        std::vector<DeviceMatrix<Scalar>> f;
        for (const auto& one : factors) f.emplace_back(one, e);
        const auto K = kron(f);
        const DeviceMatrix<Scalar, 1> dX(X, e);
        const auto want = static_cast<double>(Y.template cast<long double>().squaredNorm());
        const Scalar once = (dX * K).squaredNorm();
        CHECK(std::abs(once - want) <= 32 * static_cast<double>(std::numeric_limits<Scalar>::epsilon()) * want);
        resource.most = 0;
        for (int i = 0; i < 5; ++i) CHECK((dX * K).squaredNorm() == once);
        std::size_t of_factors = 0;
        for (const auto& one : factors) of_factors += static_cast<std::size_t>(one.size()) * sizeof(Scalar);
        CHECK(resource.most <= of_factors + 65536);  // sums of blocks
    }
}

}  // namespace

TEST_CASE("norms of rows that only clusters of sixteen hold" * needs_gpu()) {
    SUBCASE("float") {
        check_norms_over_clusters<float>({{1, {64, 64, 64}, {64, 64, 64}}, {19, {64, 56, 64}, {64, 64, 56}}});
    }
    SUBCASE("double") {
        check_norms_over_clusters<double>({{1, {64, 64, 64}, {64, 64, 64}}, {19, {64, 56, 64}, {64, 64, 56}}});
    }
}

TEST_CASE("a norm of one row takes the blocks that the memory it is given has room for" * needs_gpu()) {
    driver cuda;
    static counting_resource resource;
    CUstream_st* stream = nullptr;
    REQUIRE(cuda.stream_create(&stream, 1) == 0);
    const otimes::device_executor& e = otimes::gpu(stream, resource);
    const shapes s{1, {128, 64, 64}, {128, 64, 64}};  // that no cluster holds
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(1, s.inputs(), 1), Y = expected_right(X, factors);
    const DeviceMatrix<float> A(factors[0], e), B(factors[1], e), C(factors[2], e);
    const DeviceMatrix<float, 1> dX(X, e);
    const double want = Y.cast<double>().squaredNorm();
    const auto given = static_cast<std::size_t>(Y.size()) * sizeof(float) * 3 / 4;
    resource.most = 0;
    const float sum = otimes::squared_norm(dX * kron(A, B, C), static_cast<std::int64_t>(given));
    CHECK(std::abs(sum - want) <= 1e-5 * want);
    CHECK(resource.most <= given);
    CHECK(resource.most >= given / 4);  // not a 128th of Y
}

namespace {

// The kernels of many shapes, each ending in a sum: against sums over what the same product leaves in memory, on the host.
template <class Scalar>
void check_endings() {
    using host = matrix<Scalar, 1>;
    using wide = std::conditional_t<support::is_complex<Scalar>, std::complex<long double>, long double>;
    const double unit = static_cast<double>(std::numeric_limits<support::real_t<Scalar>>::epsilon());
    using shape_list = std::vector<std::array<std::int64_t, 3>>;  // n, factors, rows
    shape_list list = support::is_complex<Scalar> ? shape_list{{5, 3, 7}, {16, 2, 20}}
                      : sizeof(Scalar) == 4
                          ? shape_list{{8, 5, 3}, {16, 3, 9}, {32, 3, 4}, {64, 3, 6}, {3, 7, 5}, {128, 2, 1}}
                          : shape_list{{8, 3, 37}, {16, 4, 5}, {32, 3, 4}, {64, 3, 6}, {15, 3, 13}, {128, 2, 1}};
    // By blocks: of factors that stay and of those that pass, even and odd, in slabs of which the last one is shorter.
    const shape_list by_blocks{{100, 3, 9}, {101, 2, 301}, {300, 2, 90}, {257, 2, 70}};
    list.insert(list.end(), by_blocks.begin(), by_blocks.end());
    for (const std::array<std::int64_t, 3>& each : list) {
        const std::int64_t n = each[0], count = each[1], rows = each[2];
        CAPTURE(n);
        CAPTURE(count);
        CAPTURE(rows);
        shapes s{rows, {}, {}};
        for (int k = 0; k < count; ++k) {
            s.p.push_back(n);
            s.q.push_back(n);
        }
        std::vector<DeviceMatrix<Scalar>> f;
        for (const auto& one : random_factors<Scalar>(s)) f.emplace_back(one);
        const auto K = kron(f);
        const host X = random_matrix<host>(s.rows, s.inputs(), 1), V = random_matrix<host>(s.rows, s.inputs(), 2);
        const DeviceMatrix<Scalar, 1> dX(X), dV(V);
        // By rows from the right, by columns (the same memory) from the left, by columns from the right.
        const DeviceMatrix<Scalar> tX(host(X.transpose())), tV(host(V.transpose())), cX(X), cV(V);
        DeviceMatrix<Scalar, 1> dY(rows, s.inputs());
        dY = dX * K;
        const host Y = dY.to_host();
        wide dot(0), norm(0);
        for (Eigen::Index i = 0; i < Y.rows(); ++i)
            for (Eigen::Index j = 0; j < Y.cols(); ++j) {
                dot += otimes::detail::conjugate_of(wide(V(i, j))) * wide(Y(i, j));
                norm += otimes::detail::conjugate_of(wide(Y(i, j))) * wide(Y(i, j));
            }
        const double limit = 16 * unit * static_cast<double>(V.norm()) * static_cast<double>(Y.norm());
        const auto close = [&](Scalar got, wide want, double most) {
            const auto distance = static_cast<double>(std::abs(wide(got) - want));
            if (!(distance <= most)) MESSAGE("distance " << distance << " of " << most);
            return distance <= most;
        };
        CHECK(close(otimes::dot(dV, dX * K), dot, limit));
        CHECK(close(otimes::dot(tV, K.transpose() * tX), dot, limit));
        if (count < 4) CHECK(close(otimes::dot(cV, cX * K), dot, limit));
        CHECK(close(otimes::dot(2 * dV, -3 * dX * K), wide(-6) * dot, 6 * limit));
        const double of_norm = 16 * unit * static_cast<double>(Y.squaredNorm());
        CHECK(close(Scalar((dX * K).squaredNorm()), norm, of_norm));
        CHECK(close(Scalar((K.transpose() * tX * Scalar(2)).squaredNorm()), wide(4) * norm, 4 * of_norm));
        const Scalar once = otimes::dot(dV, dX * K);
        for (int i = 0; i < 5; ++i) CHECK(otimes::dot(dV, dX * K) == once);
        CHECK(close(otimes::dot(dV, dX * K, std::int64_t{1} << 28), dot, limit));  // in one go
    }
}

struct nothing_kept {
    template <class Make>
    auto get(std::uint64_t, const Make& make) const {
        return std::make_shared<const decltype(make())>(make());
    }
};

// X = right * (diag(d) * (left * B)), whose scaling the first product's kernel does: against the same in three steps.
template <class Scalar>
void check_scaling() {
    using host = matrix<Scalar, 0>;
    using vector = Eigen::Matrix<Scalar, -1, 1>;
    using shape_list = std::vector<std::array<std::int64_t, 3>>;  // n, factors, columns
    const shape_list list = support::is_complex<Scalar> ? shape_list{{5, 2, 1}, {16, 2, 5}}
                                                        : shape_list{{8, 3, 37},  {16, 3, 9},    {32, 3, 5}, {64, 3, 3},
                                                                     {15, 3, 13}, {66, 2, 1501}, {100, 3, 5}};
    for (const std::array<std::int64_t, 3>& one : list) {
        const std::int64_t n = one[0], count = one[1], cols = one[2];  // clang++ 14 captures no structured binding
        CAPTURE(n);
        CAPTURE(count);
        shapes s{cols, {}, {}};
        for (int k = 0; k < count; ++k) {
            s.p.push_back(n);
            s.q.push_back(n);
        }
        const auto f = random_factors<Scalar>(s);
        const auto K = kron(f);
        const host B = random_matrix<host>(s.inputs(), cols, 3);
        const vector d = random_matrix<vector>(s.inputs(), 1, 4);
        DeviceMatrix<Scalar> half;
        half = K * DeviceMatrix<Scalar>(B);
        const host between = half.to_host().array().colwise() * d.array();
        DeviceMatrix<Scalar> X;
        X = K * DeviceMatrix<Scalar>(between);
        const host want = X.to_host();
        // Sums of two products, in another order where the other kernel computes them: of n terms each.
        const double limit = (n > 64 ? 16 : 4) * std::numeric_limits<support::real_t<Scalar>>::epsilon() * want.norm();
        const auto make_d = [&d] { return d; };
        const auto make_k = [&K] { return K; };
        const auto close = [&](const auto& dX) { return (host(dX.to_host()) - want).norm() <= limit; };
        CHECK(close(otimes::apply_diagonalised(make_k, make_d, make_k, nothing_kept{}, DeviceMatrix<Scalar>(B))));
        CHECK(close(otimes::apply_diagonalised(make_k, make_d, make_k, nothing_kept{}, DeviceMatrix<Scalar, 1>(B))));
    }
}

}  // namespace

TEST_CASE_TEMPLATE("kernels that end in a sum or in a scaling" * needs_gpu(), Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    check_endings<Scalar>();
    check_scaling<Scalar>();
}

TEST_CASE("threads share an executor, and have their own" * needs_gpu()) {
    driver cuda;
    for (const bool shared : {true, false}) {
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                driver mine;
                CUstream_st* stream = nullptr;
                if (!shared && mine.stream_create(&stream, 1) != 0) {
                    ++wrong;
                    return;
                }
                const otimes::device_executor& e = shared ? otimes::gpu() : otimes::gpu(stream);
                const shapes s{40 + t, {3, 4 + t, 5}, {5, 4, 3 + t}};
                const auto factors = random_factors<double>(s);
                const Eigen::MatrixXd X =
                    random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), static_cast<std::uint64_t>(t));
                const Eigen::MatrixXd want = expected_right(X, factors);
                const DeviceMatrix<double> A(factors[0], e), B(factors[1], e), C(factors[2], e), dX(X, e);
                for (int i = 0; i < 30; ++i) {
                    DeviceMatrix<double> dY(e);
                    dY = dX * kron(A, B, C);
                    if (!((dY.to_host() - want).norm() <= 1e-12 * want.norm())) ++wrong;
                }
            });
        }
        for (std::thread& t : threads) t.join();
        CHECK(wrong == 0);
    }
}

TEST_CASE("operands of one stream, destination on another" * needs_gpu()) {
    driver cuda;
    CUstream_st *first = nullptr, *second = nullptr;
    REQUIRE(cuda.stream_create(&first, 1) == 0);
    REQUIRE(cuda.stream_create(&second, 1) == 0);
    const otimes::device_executor &e = otimes::gpu(first), &f = otimes::gpu(second);
    CHECK(&otimes::gpu(first) == &e);
    const shapes s{300, {16, 16}, {16, 16}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const Eigen::MatrixXf want = expected_right(X, factors);
    for (int i = 0; i < 50; ++i) {
        DeviceMatrix<float> A(factors[0], e), B(factors[1], e), dX(X, e), dY(f), dZ(e);
        dY = dX * kron(A, B);
        dZ = dY;
        CHECK(agrees(dZ.to_host(), want, s));
    }
}

TEST_CASE("bits repeat, and do not depend on the stream" * needs_gpu()) {
    const shapes s{100, {6, 5, 7}, {7, 5, 6}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const DeviceMatrix<float> A(factors[0]), B(factors[1]), C(factors[2]), dX(X);
    DeviceMatrix<float> dY;
    dY = dX * kron(A, B, C);
    const Eigen::MatrixXf once = dY.to_host();
    for (int i = 0; i < 20; ++i) {
        poison(dY);
        dY = dX * kron(A, B, C);
        CHECK(dY.to_host() == once);
    }
}

TEST_CASE("plans: signature, workspace, description" * needs_gpu()) {
    const shapes s{100, {6, 5, 7}, {7, 5, 6}};
    const auto factors = random_factors<float>(s);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 1);
    const DeviceMatrix<float> A(factors[0]), B(factors[1]), C(factors[2]), dX(X);
    DeviceMatrix<float> dY;
    const otimes::plan p = otimes::make_plan(dX * kron(A, B, C));
    CHECK(p.where == otimes::placement::gpu);
    p.run(dY, dX * kron(A, B, C));
    CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
    CHECK_THROWS_AS(p.run(dY, dX * kron(A, B, C, A)), otimes::error);
    if (p.workspace_bytes > 0) CHECK_THROWS_AS(p.run(dY, dX * kron(A, B, C), dY.data(), 0), otimes::budget_error);
    const std::string text = otimes::gpu().describe(p);
    CAPTURE(text);
    CHECK(text.find("source: ") != std::string::npos);
    MESSAGE(text);
}

TEST_CASE("placement: make_executor() runs host and device operands" * needs_gpu()) {
    const otimes::scoped_executor scope(otimes::make_executor());
    const shapes s{50, {6, 5}, {7, 5}};
    const auto factors = random_factors<double>(s);
    const Eigen::MatrixXd X = random_matrix<Eigen::MatrixXd>(s.rows, s.inputs(), 1);
    Eigen::MatrixXd Y;
    Y = X * kron(factors[0], factors[1]);
    CHECK(agrees(Y, expected_right(X, factors), s));
    const DeviceMatrix<double> dX(X), A(factors[0]), B(factors[1]);
    DeviceMatrix<double> dY;
    dY = dX * kron(A, B);
    CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
}

TEST_CASE("errors are typed and leave the executor usable" * needs_gpu()) {
    const DeviceMatrix<float> A(Eigen::MatrixXf::Random(3, 3)), dX(Eigen::MatrixXf::Random(4, 10));
    CHECK_THROWS_AS(static_cast<void>(dX * kron(A, A)), otimes::shape_error);
    CHECK_THROWS_AS(DeviceMatrix<float>(std::int64_t{1} << 40, 1 << 20), otimes::device_error);
    CHECK_THROWS_AS(DeviceMatrix<float>(-1, 2), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::gpu(static_cast<CUstream_st*>(nullptr))), otimes::device_error);
    DeviceMatrix<float> dY(2, 2);
    CHECK_THROWS_AS(dY += dX * kron(A, DeviceMatrix<float>(Eigen::MatrixXf::Random(3, 3))), otimes::error);
    CHECK_THROWS_AS(static_cast<void>(otimes::on(otimes::cpu(), dY)), otimes::unsupported_error);
    otimes::gpu().synchronize();
    const Eigen::MatrixXf a = A.to_host();
    CHECK(a.rows() == 3);
}

TEST_CASE("tuning measures right candidates, and the winner is the plan from then on" * needs_gpu()) {
    const shapes s{300, {5, 6, 7, 3}, {5, 6, 7, 3}};
    const auto factors = random_factors<float>(s);
    const DeviceMatrix<float, 1> A(factors[0]), B(factors[1]), C(factors[2]), D(factors[3]);
    const Eigen::MatrixXf X = random_matrix<Eigen::MatrixXf>(s.rows, s.inputs(), 3);
    const DeviceMatrix<float, 1> dX(X);
    const auto value = dX * kron(A, B, C, D);
    DeviceMatrix<float, 1> dY;
    dY = value;
    const otimes::plan before = otimes::make_plan<1>(value, {.deterministic = true});
    const otimes::tuning_report report = otimes::tune<1>(value, {}, {.most_candidates = 6, .keep_on_disk = false});
    REQUIRE(report.candidates.size() > 2);
    REQUIRE(report.best < report.candidates.size());
    for (const otimes::tuned_candidate& c : report.candidates) {
        CHECK_MESSAGE(c.valid, c.choice << " differs by " << c.difference);
        CHECK(c.seconds > 0);
        CHECK(report.candidates[report.best].seconds <= 1.03 * c.seconds);
    }
    const otimes::plan after = otimes::make_plan<1>(value);
    REQUIRE(otimes::planning::choice_of(after));
    CHECK(otimes::planning::choice_text(*otimes::planning::choice_of(after)) == report.candidates[report.best].choice);
    CHECK(otimes::make_plan<1>(value, {.deterministic = true}) == before);
    dY = value;
    CHECK(agrees(dY.to_host(), expected_right(X, factors), s));
    CHECK_THROWS_AS(otimes::tune(1 * dX), otimes::unsupported_error);
    const float infinite = std::numeric_limits<float>::infinity();
    const DeviceMatrix<float, 1> worse(Eigen::MatrixXf::Constant(s.rows, s.inputs(), infinite));
    CHECK_THROWS_AS(otimes::tune(worse * kron(A, B, C, D)), otimes::device_error);
}

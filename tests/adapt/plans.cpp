// SPDX-License-Identifier: MIT
// make_plan once, run many times: rebinding, refusals, workspaces, threads, no allocation, round trip through text.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(8, 5, 1);
const matrix_d B = random(6, 7, 2);
const matrix_d C = random(3, 4, 3);
const auto k = dense_kron(A, B, C);  // 144 x 140
const matrix_d X = random(40, 144, 4);
const auto xk = times(X, k);

using support::text_of;

// Where plan::run may write. The view itself may be const.
template <class... Destinations>
constexpr bool all_writable = (otimes::eigen::has_writable_elements<Destinations> && ...);
template <class... Destinations>
constexpr bool none_writable = (!otimes::eigen::has_writable_elements<Destinations> && ...);
static_assert(all_writable<matrix_d, Eigen::Matrix3d, Eigen::Map<matrix_d>, const Eigen::Map<matrix_d>,
                           Eigen::Ref<matrix_d>, Eigen::Block<matrix_d>, Eigen::Transpose<Eigen::Block<matrix_d>>,
                           Eigen::Diagonal<matrix_d>, decltype(std::declval<Eigen::MatrixXcd&>().real())>);
static_assert(none_writable<const matrix_d, const Eigen::Matrix3d, Eigen::Map<const matrix_d>,
                            Eigen::Ref<const matrix_d>, Eigen::Block<const matrix_d>, Eigen::Transpose<const matrix_d>,
                            Eigen::Transpose<const Eigen::Map<const matrix_d>>, Eigen::Diagonal<const matrix_d>>);

}  // namespace

TEST_CASE("a plan runs other operands and scalars of the same signature") {
    const otimes::plan p = otimes::make_plan(X * kron(A, B, C));
    auto Y = poisoned(40, 140);
    p.run(Y, X * kron(A, B, C));
    CHECK(support::close(Y, xk, 144));
    const matrix_d X2 = random(40, 144, 5);
    const matrix_d A2 = random(8, 5, 6);
    p.run(Y, -2.5 * X2 * kron(A2, B, C));
    CHECK(support::close(Y, scaled(-2.5, times(X2, dense_kron(A2, B, C))), 144));
    CHECK(p.flops > 0);
    CHECK(p.bytes >= std::int64_t((40 * 144 + 40 * 140) * sizeof(double)));
    matrix_d resized(1, 1);
    p.run(resized, X * kron(A, B, C));
    CHECK(support::close(resized, xk, 144));
    p.run(matrix_d(40, 140), X * kron(A, B, C));  // a destination that is thrown away
}

TEST_CASE("a plan for a destination") {
    row_major_d Y(40, 140);
    const auto e = X * kron(A, B, C);
    const otimes::plan p = otimes::make_plan(Y, e);
    p.run(Y, e);
    CHECK(support::close(Y, xk, 144));
    matrix_d big = poisoned(50, 150);
    const otimes::plan q = otimes::make_plan(big.block(3, 4, 40, 140), e);
    q.run(big.block(3, 4, 40, 140), e);
    CHECK(support::close(matrix_d(big.block(3, 4, 40, 140)), xk, 144));
    matrix_d turned(140, 40);
    const otimes::plan t = otimes::make_plan(turned.transpose(), e);
    t.run(turned.transpose(), e);
    CHECK(support::close(turned, oracle::transpose(xk), 144));
    for (const Eigen::Index rows : {0, 7}) {  // of another shape: planned for as it will be resized
        row_major_d later(rows, 3);
        const otimes::plan r = otimes::make_plan(later, e);
        CHECK(r == p);
        CHECK(later.rows() == rows);
        r.run(later, e);
        CHECK(support::close(matrix_d(later), xk, 144));
    }
    CHECK_THROWS_WITH_AS(
        static_cast<void>(otimes::make_plan(big.topRows(3), e)),
        "otimes: make_plan: the destination is 3 x 150 and cannot be resized, the expression is 40 x 140.",
        otimes::shape_error);
}

TEST_CASE("plans of sums, scaled sums and vectors") {
    const matrix_d Z = random(40, 140, 7);
    const auto e = 2 * (Z + X * kron(A, B, C));
    const otimes::plan p = otimes::make_plan(e);
    matrix_d Y;
    p.run(Y, e);
    CHECK(support::close(Y, scaled(2.0, plus(Z, xk)), 145));
    // Least traffic: Z, X, the factors, and Y once, although both terms write it.
    CHECK(p.bytes == 8 * (Z.size() + X.size() + A.size() + B.size() + C.size() + Y.size()));
    const vector_d v = random<vector_d>(140, 1, 8);
    const otimes::plan q = otimes::make_plan(kron(A, B, C) * v);
    vector_d y;
    q.run(y, kron(A, B, C) * v);
    CHECK(support::close(y, times(k, v), 140));
    const otimes::plan r = otimes::make_plan(X * kron(A, B, C) - 3 * (random(40, 144, 9) * kron(A, B, C)));
    r.run(Y, X * kron(A, B, C) - 3 * (random(40, 144, 9) * kron(A, B, C)));
    CHECK(support::close(Y, plus(xk, scaled(-3.0, times(random(40, 144, 9), k))), 145));
}

TEST_CASE("operators that are applied in turn do not pass through a GPU: what lies between is in host memory") {
    const matrix_d T = random(8, 8, 1), U = random(8, 8, 2), V = random(8, 8, 3), x = random(4000, 64, 4);
    const auto e = x * ((kron(T, T) + kron(U, V)) * (kron(V, T) + kron(T, U)));
    const otimes::machine one = otimes::gpu_machine(otimes::h200()), four = otimes::gpu_machine(otimes::h200(), 4);
    for (const otimes::machine& m : {one, four}) {
        const otimes::plan p = otimes::make_plan(e, {}, m);
        CHECK(p.where == otimes::placement::cpu);
        matrix_d Y = poisoned(4000, 64);
        p.run(Y, e);
        const auto first = plus(dense_kron(T, T), dense_kron(U, V)), second = plus(dense_kron(V, T), dense_kron(T, U));
        CHECK(support::close(Y, times(times(x, first), second), 64 * 64));
    }
    otimes::options gpu;
    gpu.placement = otimes::placement::gpu;
    CHECK_THROWS_WITH_AS(
        static_cast<void>(otimes::make_plan(e, gpu, one)),
        "otimes: a product of operators, with a matrix in host memory between two of them, cannot pass through a GPU. "
        "Evaluate them one by one, or use placement::cpu.",
        otimes::unsupported_error);
    gpu.placement = otimes::placement::gpus;
    CHECK_THROWS_AS(static_cast<void>(otimes::make_plan(e, gpu, four)), otimes::unsupported_error);
    gpu.placement = otimes::placement::gpu;
    CHECK(otimes::make_plan(x * (kron(T, T) + kron(U, V)), gpu, one).where ==
          otimes::placement::gpu);  // terms of one result
    // Y += e: the result is added to, and what lies between is the one matrix that is overwritten.
    otimes::program added = otimes::make_plan(e, {}, one).source;
    for (otimes::step& s : added.steps) {
        const otimes::tensor& to = added.at(s.out);
        s.add = s.add || (to.role == otimes::tensor_role::output &&
                          !otimes::lowering_notes::has(added.noted.scratch_bindings, to.binding));
    }
    CHECK(otimes::make_plan(added, one).where == otimes::placement::cpu);
    CHECK_THROWS_AS(static_cast<void>(otimes::make_plan(added, one, gpu)), otimes::unsupported_error);
}

TEST_CASE("precision::ieee multiplies no factors out: their entries' products may leave the range") {
    using matrix_f = Eigen::MatrixXf;
    otimes::options ieee;
    ieee.precision = otimes::precision::ieee;
    const auto check = [&](float x, float entry, float wanted) {
        const matrix_f X = matrix_f::Constant(3, 8, x), F = matrix_f::Constant(2, 2, entry);
        const auto e = X * kron(F, F, F);
        const otimes::plan p = otimes::make_plan(e, ieee);
        CHECK(p.passes.front().sweeps.front().factors.size() == 1);
        matrix_f Y = matrix_f::Constant(3, 8, std::numeric_limits<float>::quiet_NaN());
        p.run(Y, e);
        CHECK(((Y.array() - wanted).abs() <= 1e-5f * wanted).all());
    };
    check(1e30f, 1e-20f, 8e-30f);
    check(1e-35f, 1e20f, 8e25f);
    ieee.workspace_limit_bytes = 4096;
    check(1e30f, 1e-20f, 8e-30f);
}

TEST_CASE("the least traffic of a sum of krons has X once, whatever its terms are") {
    const matrix_d P = random(12, 12, 11), Q = random(12, 12, 12), R = random(4, 4, 13), S = random(36, 36, 14);
    const matrix_d x = random(40, 144, 15);
    const auto doubles = [](auto... sizes) { return static_cast<std::int64_t>(8 * (0 + ... + sizes)); };
    auto Y = poisoned(40, 144);
    const auto ends = [&](const auto& e, std::int64_t bytes, const auto& wanted) {
        const otimes::plan p = otimes::make_plan(e);
        CHECK(p.bytes == bytes);
        p.run(Y, e);
        CHECK(support::close(Y, wanted, 300));
        Y = poisoned(40, 144);
        Y = e;
        CHECK(support::close(Y, wanted, 300));
    };
    const auto pq = dense_kron(P, Q), rs = dense_kron(R, S);
    const matrix_d twelve = matrix_d::Identity(12, 12);
    ends(x * (kron(P, Q) + kron(R, S)), doubles(2 * x.size(), P.size(), Q.size(), R.size(), S.size()),
         times(x, plus(pq, rs)));
    ends(x * (kron(P, Q) + 2 * otimes::identity()), doubles(2 * x.size(), P.size(), Q.size()),
         plus(times(x, pq), scaled(2.0, x)));
    ends(x * otimes::kron_sum(P, Q), doubles(2 * x.size(), P.size(), Q.size()),
         times(x, plus(dense_kron(P, twelve), dense_kron(twelve, Q))));
}

TEST_CASE("run allocates nothing after the first call of a thread") {
    const auto K = kron(A, B, C);
    const otimes::plan p = otimes::make_plan(X * K);
    matrix_d Y(40, 140);
    p.run(Y, X * K);
    const support::allocation_counter counter;
    for (int i = 0; i < 10; ++i) {
        p.run(Y, X * K);
        p.run(Y, 2.0 * X * kron(A, B, C));
    }
    const auto seen = counter.seen();
    if (support::allocations_are_counted()) {
        CHECK(seen.count == 0);
    }
    CHECK(support::close(Y, scaled(2.0, xk), 144));
}

TEST_CASE("the caller's workspace") {
    const auto K = kron(A, B, C);
    const otimes::plan p = otimes::make_plan(X * K);
    std::vector<std::byte> memory(static_cast<std::size_t>(p.workspace_bytes) + 192, std::byte{0x5a});
    void* start = memory.data() + 64;
    std::size_t room = memory.size() - 64;
    start = std::align(64, static_cast<std::size_t>(p.workspace_bytes), start, room);
    REQUIRE(start != nullptr);
    auto Y = poisoned(40, 140);
    p.run(Y, X * K, start, p.workspace_bytes);
    CHECK(support::close(Y, xk, 144));
    // The size is exact: nothing before it, nothing behind it. And it is what was used.
    const auto* first = static_cast<const std::byte*>(start);
    CHECK(std::any_of(first, first + p.workspace_bytes, [](std::byte b) { return b != std::byte{0x5a}; }));
    for (const std::byte* at = memory.data(); at < first; ++at) {
        REQUIRE(*at == std::byte{0x5a});
    }
    for (const std::byte* at = first + p.workspace_bytes; at < memory.data() + memory.size(); ++at) {
        REQUIRE(*at == std::byte{0x5a});
    }
    const matrix_d before = Y;
    if (p.workspace_bytes > 0) {
        CHECK_THROWS_AS(p.run(Y, X * K * 2, start, p.workspace_bytes - 1), otimes::budget_error);
        CHECK(support::exactly_equal(Y, before));
    }
}

TEST_CASE("a container as the caller's workspace") {
    const otimes::plan p = otimes::make_plan(X * kron(A, B, C));
    REQUIRE(p.workspace_bytes > 0);
    matrix_d Y = poisoned(40, 140);
    Eigen::VectorXd memory = Eigen::VectorXd::Constant(p.workspace_bytes / 8 + 1, 7.0);
    p.run(Y, X * kron(A, B, C), memory);
    CHECK(support::close(Y, xk, 144));
    CHECK((memory.array() != 7.0).any());
    std::vector<double> bytes(static_cast<std::size_t>(p.workspace_bytes / 8 + 1));
    Y = poisoned(40, 140);
    p.run(Y, X * kron(A, B, C), std::span<double>(bytes));
    CHECK(support::close(Y, xk, 144));
    const matrix_d before = Y;
    CHECK_THROWS_AS(p.run(Y, 2 * X * kron(A, B, C), std::span<double>(bytes).first(1)), otimes::budget_error);
    CHECK_THROWS_AS(p.run(Y, 2 * X * kron(A, B, C), std::vector<double>()), otimes::budget_error);
    CHECK(support::exactly_equal(Y, before));
}

TEST_CASE("plans of sums with terms that are no matrices in memory run into any destination") {
    const matrix_d Z = random(40, 140, 7);
    const auto check = [&](const auto& e, const auto& want) {
        const otimes::plan p = otimes::make_plan(e);
        matrix_d empty;
        matrix_d other = random(3, 2, 12);
        matrix_d same = poisoned(40, 140);
        for (matrix_d* const Y : {&empty, &other, &same}) {
            p.run(*Y, e);
            CHECK(support::close(*Y, want, 145));
        }
    };
    check(2 * Z + X * kron(A, B, C), plus(scaled(2.0, Z), xk));
    check(X * kron(A, B, C) + (Z + Z).cwiseProduct(Z), plus(matrix_d((2 * Z).cwiseProduct(Z)), xk));
    check(Z * matrix_d::Identity(140, 140) + X * kron(A, B, C), plus(Z, xk));
    check(2 * (X * kron(A, B, C)) + 3 * (Z + Z), plus(scaled(2.0, xk), scaled(6.0, Z)));
    // One that is an operand of such a term, and would be resized: what it was counts.
    matrix_d Y = random(140, 40, 13);
    const auto want = plus(scaled(2.0, matrix_d(Y.transpose())), xk);
    const auto e = 2 * Y.transpose() + X * kron(A, B, C);
    otimes::make_plan(Y, e).run(Y, e);
    CHECK(support::close(Y, want, 145));
}

TEST_CASE("a workspace that is too small is refused before the destination is resized") {
    // enough rows for a workspace
    const otimes::plan p = otimes::make_plan(X * kron(A, B, C));
    REQUIRE(p.workspace_bytes > 0);
    const matrix_d start = random(3, 2, 12);
    matrix_d Y = start;
    alignas(64) std::byte small[64];
    CHECK(text_of([&] { p.run(Y, X * kron(A, B, C), small, p.workspace_bytes - 1); }) ==
          "otimes: the workspace has " + std::to_string(p.workspace_bytes - 1) + " bytes, but the plan needs " +
              std::to_string(p.workspace_bytes) + " (plan.workspace_bytes).");
    CHECK(support::exactly_equal(Y, start));
}

TEST_CASE("a plan with a complex scalar does not depend on the scalar's value") {
    using complex = std::complex<double>;
    const matrix<complex> Z = X.cast<complex>() * complex(1, -0.5);
    const auto K = kron(A, B, C);  // real factors on a complex X
    const complex turn(0, 1);
    const complex one(1, 0);
    matrix<complex> Y(40, 140);
    for (const complex& planned : {one, turn}) {
        const otimes::plan p = otimes::make_plan(Z * K * planned);
        for (const complex& s : {turn, one, complex(0, 0), complex(-2, 0.25)}) {
            p.run(Y, Z * K * s);
            CHECK(support::close(Y, scaled(s, times(Z, k)), 144));
            p.run(Y, Z * (s * K));
            CHECK(support::close(Y, scaled(s, times(Z, k)), 144));
        }
    }
    // A real scalar stays the quicker real problem.
    CHECK(otimes::make_plan(Z * K * 2.0).flops < otimes::make_plan(Z * K * turn).flops);
    CHECK(otimes::make_plan(-(Z * K)).flops == otimes::make_plan(Z * K).flops);
}

TEST_CASE("plans of sums over complex matrices whose terms are real problems only in part") {
    using complex = std::complex<double>;
    const matrix_d F = random(3, 3, 5), G = random(4, 4, 6), H = random(4, 4, 7), T = random(3, 3, 8);
    const matrix<complex> Z = random<matrix<complex>>(12, 5, 9), W = random<matrix<complex>>(12, 5, 10);
    const auto K = kron(F, G), L = kron(T, H);
    const auto dense = [](const matrix_d& f, const matrix_d& g) {
        matrix<complex> result(12, 12);
        for (Index i = 0; i < 3; ++i) {
            for (Index j = 0; j < 3; ++j) {
                result.block(4 * i, 4 * j, 4, 4) = (f(i, j) * g).cast<complex>();
            }
        }
        return result;
    };
    const matrix<complex> k_z = dense(F, G) * Z, l_z = dense(T, H) * Z, l_w = dense(T, H) * W;
    const complex two(2, 0), turn(0.5, 1);  // two: real by its value alone
    matrix<complex> Y(12, 5);
    const auto runs = [&](const auto& expression, const matrix<complex>& want) {
        CHECK_FALSE(otimes::explain(expression).empty());
        const otimes::plan p = otimes::make_plan(expression);
        Y.setConstant(complex(std::nan(""), 0));
        p.run(Y, expression);
        CHECK((Y - want).norm() < 1e-13 * want.norm());
        return p;
    };
    runs(K * Z - W, k_z - W);
    runs(W.conjugate() + two * K * Z, W.conjugate() + two * k_z);
    runs(two * W + K * Z, two * W + k_z);
    runs(two * K * Z + L * W, two * k_z + l_w);
    runs((two * K + L) * Z, two * k_z + l_z);
    runs((K - two * L) * Z, k_z - two * l_z);
    runs((two * K + L) * Z + L * W, two * k_z + l_z + l_w);
    const matrix<complex> complex_f = F.cast<complex>();
    runs(kron(complex_f, G) * Z + L * W, k_z + l_w);
    runs(two * K * (kron(T, G) * Z) + L * W, two * (dense(F, G) * (dense(T, G) * Z)) + l_w);
    // Other scalars of these types.
    runs((two * K + L) * Z, two * k_z + l_z).run(Y, (turn * K + L) * Z);
    CHECK((Y - turn * k_z - l_z).norm() < 1e-13 * Y.norm());
    // Where all terms are real problems, so is the sum.
    CHECK(otimes::make_plan(K * Z + L * W).flops < otimes::make_plan(K * Z + two * L * W).flops);
    CHECK(otimes::make_plan((K + L) * Z).flops < otimes::make_plan((K + two * L) * Z).flops);
}

TEST_CASE("products of one thread that follow each other in any order find their own plans") {
    const matrix_d other = random(40, 144, 13);
    const row_major_d by_rows = X;
    const matrix_d square = random(12, 12, 14);
    for (int round = 0; round < 3; ++round) {
        for (Index rows = 1; rows <= 40; rows += 3) {  // more shapes than a thread remembers
            matrix_d Y = X.topRows(rows) * kron(A, B, C);
            CHECK(support::close(Y, times(matrix_d(X.topRows(rows)), k), 144));
            Y += other.topRows(rows) * kron(A, B, C);
            CHECK(support::close(Y, times(matrix_d((X + other).topRows(rows)), k), 288));
            row_major_d R = by_rows.topRows(rows) * kron(A, B, C);
            CHECK(support::close(R, times(matrix_d(X.topRows(rows)), k), 144));
        }
        // The same extents with other strides, an identity for a factor, the other side, a transposed factor.
        const matrix_d wide = random(24, 12, 15);
        const matrix_d F = random(3, 3, 16);
        const matrix_d G = random(4, 4, 17);
        matrix_d Y = wide.topRows(12) * kron(F, G);
        CHECK(support::close(Y, times(matrix_d(wide.topRows(12)), dense_kron(F, G)), 12));
        Y = square * kron(F, G);
        CHECK(support::close(Y, times(square, dense_kron(F, G)), 12));
        Y = square * kron(F.transpose(), G);
        CHECK(support::close(Y, times(square, dense_kron(matrix_d(F.transpose()), G)), 12));
        Y = square * kron(F, otimes::identity(4));
        CHECK(support::close(Y, times(square, dense_kron(F, matrix_d::Identity(4, 4))), 12));
        Y = kron(F, G) * square;
        CHECK(support::close(Y, times(dense_kron(F, G), square), 12));
        Y = kron(F, G) * square * kron(G, F);
        CHECK(support::close(Y, times(dense_kron(F, G), times(square, dense_kron(G, F))), 144));
        Y = square * kron(G, F);
        CHECK(support::close(Y, times(square, dense_kron(G, F)), 12));
    }
}

TEST_CASE("several threads run one plan at once") {
    const auto K = kron(A, B, C);
    const otimes::plan p = otimes::make_plan(X * K);
    constexpr int thread_count = 4;
    std::vector<matrix_d> results(thread_count);
    std::vector<std::thread> threads;
    for (int t = 0; t < thread_count; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 25; ++i) {
                p.run(results[static_cast<std::size_t>(t)], (t + 1) * X * K);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (int t = 0; t < thread_count; ++t) {
        CHECK(support::close(results[static_cast<std::size_t>(t)], scaled(static_cast<double>(t + 1), xk), 144));
    }
}

TEST_CASE("several threads evaluate expressions and fill the plan cache at once") {
    std::vector<std::thread> threads;
    std::vector<int> good(4, 0);
    for (std::size_t t = 0; t < good.size(); ++t) {
        threads.emplace_back([&, t] {
            for (Index rows = 1; rows <= 24; ++rows) {
                const matrix_d Y = X.topRows(rows) * kron(A, B, C);
                bool equal = Y.rows() == rows;
                for (Index i = 0; equal && i < rows; ++i) {
                    for (Index j = 0; equal && j < 140; ++j) {
                        const double want =
                            static_cast<double>(xk(static_cast<std::size_t>(i), static_cast<std::size_t>(j)));
                        equal = std::abs(Y(i, j) - want) < 1e-11;  // false for NaN
                    }
                }
                good[t] += equal ? 1 : 0;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const int count : good) {
        CHECK(count == 24);
    }
}

TEST_CASE("a plan refuses another signature, says what differs and writes nothing") {
    const otimes::plan p = otimes::make_plan(X * kron(A, B, C));
    const matrix_d start = random(3, 2, 10);
    matrix_d Y = start;
    const auto refusal = [&](const auto& expression) {
        CHECK_THROWS_AS(p.run(Y, expression), otimes::unsupported_error);
        CHECK(support::exactly_equal(Y, start));
        return text_of([&] { p.run(Y, expression); });
    };
    const std::string opening = "otimes: plan::run: the plan was made for another expression: ";
    const std::string end = ". Make a plan for this one.";
    const std::string other_destination = ". make_plan(Y, expression) plans for this destination.";
    CHECK(refusal(X.topRows(39) * kron(A, B, C)) ==
          opening + "X has extents [39, 8, 6, 3], planned were [40, 8, 6, 3]" + end);
    CHECK(refusal(random(50, 144, 11).topRows(40) * kron(A, B, C)) ==
          opening + "X has strides [1, 900, 150, 50], planned were [1, 720, 120, 40]" + end);
    CHECK(refusal(X * kron(A, C, B)) == opening + "X has extents [40, 8, 3, 6], planned were [40, 8, 6, 3]" + end);
    CHECK(refusal(X * kron(random(5, 8, 12).transpose(), B, C)) ==
          opening + "factor 1 has strides [5, 1], planned were [1, 8]" + end);
    CHECK(refusal(X * kron(A, kron(B, C).toDenseMatrix())) ==
          opening + "the plan has 3 steps on 7 tensors, the expression 2 on 5" + end);
    matrix<float> single = X.cast<float>();
    matrix<float> F(40, 140);
    const std::string other_scalar =
        text_of([&] { p.run(F, single * kron(A.cast<float>(), B.cast<float>(), C.cast<float>())); });
    CHECK(other_scalar == opening + "X is f32, planned was f64" + end);
    auto big = poisoned(50, 150);
    const std::string other_stride = text_of([&] { p.run(big.block(0, 0, 40, 140), X * kron(A, B, C)); });
    CHECK(other_stride == opening + "the destination has strides [1, 1400, 200, 50], planned were [1, 1120, 160, 40]" +
                              other_destination);
    CHECK(big.array().isNaN().all());
    row_major_d R(40, 140);
    CHECK(text_of([&] { p.run(R, X * kron(A, B, C)); }) ==
          opening + "the destination has strides [140, 28, 4, 1], planned were [1, 1120, 160, 40]" + other_destination);
}

TEST_CASE("a plan refuses a destination that an operand of the expression shares") {
    const matrix_d M = random(5, 5, 13);
    matrix_d Y = random(7, 5, 14);
    const matrix_d before = Y;
    const otimes::plan p = otimes::make_plan(Y * kron(M));
    CHECK_THROWS_AS(p.run(Y, Y * kron(M)), otimes::alias_error);
    CHECK(text_of([&] { p.run(Y, Y * kron(M)); }) ==
          "otimes: plan::run: the destination overlaps an operand of the expression. A plan has no temporary for it; "
          "run into "
          "another matrix, or write Y = expression.");
    CHECK(support::exactly_equal(Y, before));
    const otimes::plan q = otimes::make_plan(Y * kron(M.leftCols(2)));
    CHECK_THROWS_AS(q.run(Y, Y * kron(M.leftCols(2))), otimes::alias_error);
    CHECK(text_of([&] { q.run(Y, Y * kron(M.leftCols(2))); }) ==
          "otimes: plan::run: the destination is an operand of the expression and would be resized. Run into another "
          "matrix, or "
          "write Y = expression.");
    CHECK(support::exactly_equal(Y, before));
    matrix_d E(0, 2);  // without elements: it is resized, and overlaps nothing
    const otimes::plan r = otimes::make_plan(E, M.topRows(0).transpose() * kron(E, M.topRows(2)));
    r.run(E, M.topRows(0).transpose() * kron(E, M.topRows(2)));
    CHECK((E.rows() == 5 && E.cols() == 10 && E.isZero(0.0)));
    Eigen::Ref<matrix_d> ref(Y);
    CHECK_THROWS_AS(q.run(ref, before * kron(M.leftCols(2))), otimes::shape_error);
    CHECK(text_of([&] { q.run(ref, before * kron(M.leftCols(2))); }) ==
          "otimes: plan::run: the destination is 7 x 5 and cannot be resized, the expression is 7 x 2.");
}

TEST_CASE("a plan read back from its text is equal and runs") {
    const auto e = X * kron(A, B, C);
    const otimes::plan p = otimes::make_plan(e);
    const otimes::plan copy = otimes::plan_from_text(otimes::to_text(p));
    CHECK(copy == p);
    auto Y = poisoned(40, 140);
    copy.run(Y, e);
    CHECK(support::close(Y, xk, 144));
}

TEST_CASE("a plan for a GPU, made and written down where there is none") {
    // [laptop]
    const otimes::machine there = otimes::gpu_machine(otimes::h200());  // or fields written by hand: plan/machine.hpp
    const otimes::plan p = otimes::make_plan(X * kron(A, B, C), {.placement = otimes::placement::gpu}, there);
    const std::string page = otimes::explain(p);  // passes, bytes, bounds, transfers
    const std::string kept = otimes::to_text(p);  // plan_from_text(kept) == p
    // [/laptop]
    CHECK(page.find("NVIDIA H200") != std::string::npos);
    CHECK(otimes::plan_from_text(kept) == p);
    CHECK(otimes::machine_from_text(otimes::to_text(there)) == there);
    matrix_d Y = poisoned(40, 140);
    CHECK_THROWS_AS(p.run(Y, X * kron(A, B, C)), otimes::unsupported_error);
}

TEST_CASE("explain leaves out the middle ones of many factors of 1 x 1") {
    std::vector<matrix_d> factors(20, matrix_d::Constant(1, 1, 2.0));
    factors[7] = random(3, 5, 1);
    const std::string page = otimes::explain(random(4, 3, 2) * kron(factors));
    CHECK(page.find("  F8⊗F1⊗...⊗F20[3->5]") != page.npos);
    CHECK(page.find("note: 19 factors of 1 x 1 folded into a sweep beside") != page.npos);
}

TEST_CASE("explain counts factors and terms as the formula has them, and says which factor replaces which index") {
    const auto has = [](const std::string& page, const char* text) {
        CAPTURE(page);
        CAPTURE(text);
        CHECK(page.find(text) != std::string::npos);
    };
    const auto lacks = [](const std::string& page, const char* text) {
        CAPTURE(page);
        CAPTURE(text);
        CHECK(page.find(text) == std::string::npos);
    };
    const matrix_d P = random(6, 6, 31), Q = random(6, 6, 32), R = random(8, 8, 33), S = random(3, 3, 34);
    const vector_d d = random<vector_d>(6, 1, 35);
    const otimes::machine m = otimes::cpu_machine(otimes::cpu_avx512(), 1);
    const auto page_of = [&m](const auto& e) { return otimes::explain(otimes::make_plan(e, {}, m)); };
    const std::string structured = page_of(random(40, 384, 36) * kron(R, otimes::identity(8), d.asDiagonal()));
    has(structured, "otimes plan: 2 factors, f64");
    has(structured, "  scale F2  40 x 8 x 8 x F2[6]  ");
    has(structured, "  F1[8] x 1920  ");
    const matrix_d x = random(40, 144, 37);
    const vector_d e = random<vector_d>(144, 1, 38);
    has(page_of(x * (kron(R, P, S) + e.asDiagonal())), "otimes plan: 4 factors in 2 terms, f64");
    const std::string shared = page_of(random(40, 216, 39) * (kron(P, Q, Q) + kron(Q, P, Q) - 2 * kron(Q, Q, P)));
    has(shared, "otimes plan: 9 factors in 3 terms, 7 after sharing, f64");
    has(page_of(x * otimes::kron_sum(R, P, S)), "otimes plan: 3 factors in 3 terms, f64");
    // A plan is for any values of the scalars: those that were 1 are left out.
    lacks(page_of(x * kron(R, P, S)), "a * ");
    has(page_of(3 * x * kron(R, P, S)), "  a * F");
    const std::string sum = page_of(
        x * (2.0 * kron(R, P, S) + kron(random(8, 8, 46), Q, random(3, 3, 47)) * 3.0 - 0.5 * otimes::identity()));
    has(sum, "  a1 * F");
    has(sum, "  a2 * F");
    has(sum, "  add a3 * X  ");
    lacks(sum, "copy");
    lacks(sum, "remark");  // no pass of a sum has one
    // Matrices that are read are told apart, and what lies between two products is none.
    has(page_of(e.replicate(1, 40).transpose().eval() + x * kron(R, P, S)),
        "  X1 40 x 144, X2 40 x 8 x 6 x 3 to Y 40 x 8 x 6 x 3\n");
    has(page_of(x + x * kron(R, P, S)), "  X 40 x 8 x 6 x 3 to Y 40 x 8 x 6 x 3\n");
    const std::string in_turn =
        page_of(x * (kron(R, P, S) * kron(random(12, 12, 44), random(12, 12, 45)) + kron(R, Q, S)));
    has(in_turn, "  X 40 x 8 x 6 x 3 to Y 40 x ");
    has(in_turn, "otimes plan: 8 factors in 2 terms, f64");
    lacks(in_turn, "X1");
}

TEST_CASE("explain says what was evaluated before a plan, and what only the reference loops run") {
    const auto says = [](const std::string& page, const char* text) { return page.find(text) != std::string::npos; };
    const char* const applied = "  an operator was applied before: only its result is read here";
    const char* const evaluated =
        "  a term that is no matrix in memory was evaluated before: only its value is read here";
    const matrix_d x = random(5, 140, 51), z = random(5, 140, 52);
    const matrix_d P = random(7, 8, 53), Q = random(7, 6, 54);
    const auto R = otimes::face_split(P, Q);
    const matrix_d v = random(48, 3, 55);
    CHECK(says(otimes::explain(R * v), applied));
    CHECK(says(otimes::explain(2.0 * (R * v) + random(7, 3, 56)), applied));
    CHECK_FALSE(says(otimes::explain(otimes::sum_expr<double>(R) * v), applied));
    CHECK(says(otimes::explain(otimes::sum_expr<double>(R) * v), "  a function of the operator"));
    CHECK(says(otimes::explain(2 * random(40, 140, 57) + X * kron(A, B, C)), evaluated));
    CHECK_FALSE(says(otimes::explain(X * kron(A, B, C)), evaluated));
    CHECK_FALSE(says(otimes::explain(X * kron(A, B, C)), applied));
    // They say how a program came about: it is equal to one of a matrix in memory.
    const matrix_d w = R * v, three = random(7, 3, 56);
    const auto tested = [&](const auto& e) { return otimes::make_plan(e, {.threads = 1}); };
    CHECK(tested(2.0 * (R * v) + three) == tested(2.0 * (R * v) + w));
    using matrix_ld = Eigen::Matrix<long double, Eigen::Dynamic, Eigen::Dynamic>;
    const matrix_ld a = A.cast<long double>(), y = random(9, 8, 58).cast<long double>();
    const otimes::plan own = otimes::make_plan(y * kron(a), {.threads = 2});
    CHECK(own.threads == 1);
    CHECK(says(otimes::explain(own), "otimes plan: 1 factor, a scalar of your own by reference loops on 1 thread of "));
}

TEST_CASE("options of a plan: workspace limit, threads, explain") {
    const auto e = X * kron(A, B, C);
    const otimes::plan free = otimes::make_plan(e);
    CHECK(otimes::explain(e) == otimes::explain(free));
    CHECK(!otimes::explain(e).empty());
    CHECK(otimes::explain(e + 2 * e).find("added to Y") == std::string::npos);  // the first product writes Y
    CHECK_THROWS_AS(otimes::make_plan(e, {.workspace_limit_bytes = 0}), otimes::budget_error);
    CHECK_THROWS_AS(otimes::make_plan(e, {.threads = -1}), otimes::unsupported_error);
    const std::string refusal = text_of([&] { static_cast<void>(otimes::make_plan(e, {.workspace_limit_bytes = 0})); });
    // The text names the least that would do; asking for exactly that works.
    CAPTURE(refusal);
    std::int64_t least = -1;
    for (std::size_t at = 0; at < refusal.size() && least < 0; ++at) {
        if (refusal[at] >= '1' && refusal[at] <= '9') {
            least = std::stoll(refusal.substr(at));
        }
    }
    REQUIRE(least > 0);
    const otimes::plan tight = otimes::make_plan(e, {.workspace_limit_bytes = least});
    CHECK(tight.workspace_bytes <= least);
    CHECK_THROWS_AS(otimes::make_plan(e, {.workspace_limit_bytes = least - 1}), otimes::budget_error);
    matrix_d Y;
    tight.run(Y, e);
    CHECK(support::close(Y, xk, 144));
    const otimes::plan one = otimes::make_plan(e, {.threads = 1});
    CHECK(one.threads == 1);
    one.run(Y, e);
    CHECK(support::close(Y, xk, 144));
}

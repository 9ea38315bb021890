// SPDX-License-Identifier: MIT
// How often an expression is evaluated, and what it allocates: one evaluation, and nothing of the size of Y.
#include <doctest/doctest.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::kron;

namespace counting {  // compiled together with files that have other ones by these names

namespace {

// Y is 96 x 64 doubles, 48 KiB; X is as large, the factors are small.
const matrix_d A = random(8, 8, 1);
const matrix_d B = random(8, 8, 2);
const matrix_d X = random(96, 64, 3);
const matrix_d Z = random(96, 64, 4);
constexpr std::size_t y_bytes = 96 * 64 * sizeof(double);

// Runs `statement` on Y under a counting executor and returns how often a plan ran and what was allocated. It runs once
// before: then this thread's pool has the workspace and the plan cache has the plan, which both are kept between
// evaluations and are no cost of one.
template <class Statement>
support::allocations count(int expected_runs, const Statement& statement) {
    const counting_executor executor;
    const otimes::scoped_executor scope(executor);
    statement();
    executor.reset();
    const support::allocation_counter counter;
    statement();
    const auto seen = counter.seen();
    CHECK(executor.runs() == expected_runs);
    return seen;
}

// Counts what the cpu executor itself allocates: lowering and planning happen outside.
class measuring_executor final : public otimes::executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "measuring"; }
    [[nodiscard]] const otimes::machine& target() const noexcept override { return otimes::cpu().target(); }
    [[nodiscard]] otimes::placement where() const noexcept override { return otimes::placement::cpu; }
    [[nodiscard]] otimes::plan plan_for(const otimes::program& p) const override { return otimes::cpu().plan_for(p); }
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view workspace) const override {
        const support::allocation_counter counter;
        otimes::cpu().run(p, b, workspace);
        seen_ = counter.seen();
    }
    [[nodiscard]] support::allocations seen() const { return seen_; }

private:
    mutable support::allocations seen_;
};

// What the executor allocates when it runs the plan of `statement` again.
template <class Statement>
support::allocations count_in_executor(const Statement& statement) {
    const measuring_executor executor;
    const otimes::scoped_executor scope(executor);
    statement();
    statement();
    return executor.seen();
}

#define CHECK_NO_ALLOCATION(seen)                 \
    do {                                          \
        const auto allocated = seen;              \
        if (support::allocations_are_counted()) { \
            CHECK(allocated.count == 0);          \
            CHECK(allocated.largest_bytes == 0);  \
        }                                         \
    } while (false)

}  // namespace

TEST_CASE("one product: one evaluation, no allocation") {
    const auto K = kron(A, B);
    matrix_d Y = Z;
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * K * 2; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y -= X * K * 2.0; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() += 2.0 * X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() = -X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y += X * K / 3; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * kron(A, B); }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * (2 * kron(A, otimes::identity(2), B.topLeftCorner(4, 4))); }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.transpose() = K * X.transpose(); }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.topRows(32) = X.bottomRows(32) * K.transpose(); }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.topLeftCorner(64, 64) = K * X.topRows(64) * K; }));
}

TEST_CASE("sums: one evaluation for each product, no allocation") {
    const auto K = kron(A, B);
    matrix_d Y = Z;
    CHECK_NO_ALLOCATION(count(1, [&] { Y = Z + X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * K - Z; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = 2 * (Z + X * K); }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y += Z.cwiseAbs() - X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = Y + X * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y = X * K - Y; }));
    CHECK_NO_ALLOCATION(count(2, [&] { Y = X * K + Z * K; }));
    CHECK_NO_ALLOCATION(count(2, [&] { Y = X * K + Z - Z * K; }));
}

TEST_CASE("a sum of krons that was evaluated before allocates nothing, of other matrices of that shape either") {
    const matrix_d C = random(8, 8, 5);
    const matrix_d D = random(8, 8, 6);
    matrix_d Y = Z;
    const auto S = kron(A, C) + kron(D, B) - 2.0 * kron(D, C);
    CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() = X * S; }));
    CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() += 0.5 * X * S; }));
    const auto L = otimes::kron_sum(A, B);
    CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() = X * L; }));
    Y = Z;
    CHECK_NO_ALLOCATION(count(1, [&] { Y.transpose().noalias() = L * X.transpose(); }));
}

TEST_CASE("a plan of a sum of krons that was run before allocates nothing, with other operands either") {
    const matrix_d C = random(8, 8, 5);
    const matrix_d D = random(8, 8, 6);
    matrix_d Y = Z;
    const auto check = [&](const auto& S) {
        const otimes::plan p = otimes::make_plan(X * S);
        CHECK_NO_ALLOCATION(count(1, [&] { p.run(Y, X * S); }));
        CHECK(support::close(Y, matrix_d(X * S.toDenseMatrix()), 400));
        CHECK_NO_ALLOCATION(count(1, [&] { p.run(Y, Z * S); }));
        CHECK(support::close(Y, matrix_d(Z * S.toDenseMatrix()), 400));
    };
    check(kron(A, C) + kron(D, B) - 2.0 * kron(D, C));
    check(otimes::kron_sum(A, B));
    check(kron(A, B) + 2.0 * otimes::identity());
    // Other factors, and another scalar, of the same signature.
    const auto S = kron(A, C) + kron(D, B);
    const otimes::plan p = otimes::make_plan(X * S);
    p.run(Y, X * S);
    const auto T = kron(C, A) + 3.0 * kron(B, D);
    p.run(Y, X * T);
    CHECK(support::close(Y, matrix_d(X * T.toDenseMatrix()), 400));
    p.run(Y, X * S);
    CHECK(support::close(Y, matrix_d(X * S.toDenseMatrix()), 400));
}

TEST_CASE(
    "products with square factors that have structure allocate nothing when they are evaluated again, by a plan or "
    "without") {
    const vector_d d = random(8, 1, 5);
    Eigen::SparseMatrix<double> w(8, 8);
    for (Index i = 0; i < 8; ++i) {
        w.insert(i, i * 5 % 8) = 1.0 + static_cast<double>(i);
    }
    const auto P = otimes::stride_permutation(8, 2);
    matrix_d Y = Z;
    const auto check = [&](const auto& K) {
        const otimes::plan p = otimes::make_plan(X * K);
        CHECK_NO_ALLOCATION(count(1, [&] { p.run(Y, X * K); }));
        CHECK_NO_ALLOCATION(count(1, [&] { Y.noalias() = X * K; }));
        CHECK(support::close(Y, matrix_d(X * K.toDenseMatrix()), 64));
    };
    check(kron(A, d.asDiagonal()));
    check(kron(d.asDiagonal(), B));
    check(kron(P, A));
    check(kron(w, A));
    check(kron(w, d.asDiagonal()));
}

TEST_CASE("the executor allocates nothing when it runs a plan again, whatever its steps are") {
    const vector_d d = random(8, 1, 5);
    const vector_d diagonal = random(64, 1, 6);
    Eigen::SparseMatrix<double> w(8, 8);
    for (Index i = 0; i < 8; ++i) {
        w.insert(i, i * 5 % 8) = 1.0 + static_cast<double>(i);
    }
    const matrix_d T = random(40, 40, 7);
    const matrix_d wide = random(96, 320, 8);
    const auto with_function = otimes::matrix_free<double>(8, 8, [](bool transposed, const auto& in, auto& out) {
        if (transposed) {
            out.noalias() = A.transpose() * in;
        } else {
            out.noalias() = A * in;
        }
    });
    matrix_d Y;
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * kron(A, d.asDiagonal()); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * kron(otimes::stride_permutation(8, 2), A); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * kron(w, A); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * kron(A, w); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * kron(with_function, A); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = wide * kron(A, T.triangularView<Eigen::Lower>()); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = wide * kron(T.triangularView<Eigen::UnitUpper>(), A); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = wide.topRows(3) * kron(A, T.triangularView<Eigen::Lower>()); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * (kron(A, B) + kron(B, A)); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * (kron(A, B) + diagonal.asDiagonal()); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { Y = X * (otimes::kron_sum(A, B) + 0.5 * otimes::identity()); }));
    row_major_d rows = X;
    row_major_d out;
    CHECK_NO_ALLOCATION(count_in_executor([&] { out = rows * (kron(A, B) + kron(B, A)); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { out = rows * otimes::kron_sum(A, B); }));
    CHECK_NO_ALLOCATION(count_in_executor([&] { out = rows * kron(A, w); }));
}

TEST_CASE("blocks of one matrix that do not meet need no temporary") {
    const auto K = kron(A, B);
    matrix_d M = random(200, 140, 5);
    CHECK_NO_ALLOCATION(count(1, [&] { M.block(0, 0, 96, 64) = M.block(0, 64, 96, 64) * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { M.block(100, 3, 96, 64) = M.block(2, 3, 96, 64) * K; }));
    CHECK_NO_ALLOCATION(count(1, [&] { M.block(100, 70, 96, 64) = M.block(4, 3, 96, 64) * K; }));
    // Where they meet there is one, of Y's size.
    const auto seen = count(1, [&] { M.block(0, 0, 96, 64) = M.block(95, 0, 96, 64) * K; });
    if (support::allocations_are_counted()) {
        CHECK(seen.count == 1);
        CHECK(seen.largest_bytes >= y_bytes);
    }
}

TEST_CASE("a product nested in Eigen expressions is evaluated once") {
    const auto K = kron(A, B);
    matrix_d Y = Z;
    double number = 0;
    count(1, [&] { number += (X * K).sum(); });
    count(1, [&] { number += (X * K).topRows(2).norm(); });
    count(1, [&] { Y = (X * K).array().abs().matrix(); });
    count(1, [&] { Y = (X * K).transpose().replicate(1, 1).transpose(); });
    count(1, [&] { Y = (X * K).cwiseProduct(Z) * A.replicate(8, 8); });
    count(1, [&] { Y = ((Z + X * K) * 2).cwiseMax(Z); });
    CHECK(std::isfinite(number));
}

TEST_CASE("W * (K * (W^T * v)) allocates vectors, not matrices") {
    const auto K = kron(A, B);
    const matrix_d W = random(96, 64, 6);
    const vector_d v = random<vector_d>(96, 1, 7);
    vector_d y = v;
    auto seen = count(1, [&] { y.noalias() = W * (K * (W.transpose() * v)); });
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes < 96 * sizeof(double));  // W^T v and K W^T v have 64 entries; nothing has y's 96
    }
    Eigen::SparseMatrix<double, Eigen::RowMajor> S(96, 64);
    for (Index i = 0; i < 96; ++i) {
        S.insert(i, (i * 7) % 64) = 0.5 + static_cast<double>(i);
    }
    S.makeCompressed();
    seen = count(1, [&] { y.noalias() = S * (K * (S.transpose() * v)); });
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes <= 96 * sizeof(double));
    }
    CHECK(support::close(y, times(matrix_d(S), times(dense_kron(A, B), times(matrix_d(S.transpose()), v))), 64));
}

TEST_CASE("(X * K * B).trace() forms neither X * K nor the product with B") {
    const auto K = kron(A, B);
    const matrix_d tall = random(200, 64, 8);
    const matrix_d wide = random(64, 200, 9);
    double trace = 0;
    trace = (tall * K * wide).trace();
    const support::allocation_counter counter;
    const double again = (tall * K * wide).trace();
    const auto seen = counter.seen();
    CHECK(again == trace);
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes <= 200 * 64 / 8 * sizeof(double));
    }
    const auto product = times(times(tall, dense_kron(A, B)), wide);
    long double want = 0;
    for (std::size_t i = 0; i < 200; ++i) {
        want += product(i, i);
    }
    CHECK(std::abs(trace - static_cast<double>(want)) <= 1e-11 * std::abs(static_cast<double>(want)) + 1e-10);
}

TEST_CASE("copies of an expression share what it owns") {
    const auto K = kron(random(64, 64, 10), random(64, 64, 11));
    const auto e = otimes::own(random(2, 64 * 64, 12)) * K;
    const support::allocation_counter counter;
    const auto copy = e;
    const auto other = K;
    const auto seen = counter.seen();
    CHECK(copy.cols() == other.cols());
    if (support::allocations_are_counted()) {
        CHECK(seen.total_bytes < 64 * 64 * sizeof(double));
    }
}

// What a plan of `expression` allocates when a thread runs it again into `y`, in the library's workspace and in the caller's.
template <class Destination, class Expression>
support::allocations count_again(const Destination& y, const Expression& expression) {
    const otimes::plan p = make_plan(y, expression);
    std::vector<std::byte> room(static_cast<std::size_t>(p.workspace_bytes) + 64);
    std::size_t space = room.size();
    void* at = room.data();
    void* const aligned = std::align(64, static_cast<std::size_t>(p.workspace_bytes), at, space);
    p.run(y, expression);
    p.run(y, expression, aligned, p.workspace_bytes);
    const support::allocation_counter counter;
    p.run(y, expression);
    p.run(y, expression, aligned, p.workspace_bytes);
    return counter.seen();
}

TEST_CASE("plans of batches and contractions allocate nothing when they are run again") {
    using otimes::batched;
    using otimes::strided_view;
    constexpr std::int64_t items = 700;
    const auto strided = [](const auto scalar, std::int64_t m, std::int64_t p, std::int64_t q) {
        using type = std::remove_const_t<decltype(scalar)>;
        const std::vector<type> x(static_cast<std::size_t>(items * m * p * p), scalar), a(x), b(x);
        std::vector<type> y(static_cast<std::size_t>(items * m * q * q));
        const auto Y = batched(y.data(), m, q * q, items);
        CHECK_NO_ALLOCATION(count_again(Y, batched(x.data(), m, p * p, items) *
                                               kron(batched(a.data(), p, q, items), batched(b.data(), p, q, items))));
        CHECK(y.back() == scalar * scalar * scalar * type(static_cast<double>(p * p)));
    };
    strided(2.0, 3, 4, 2);  // in the lanes of registers
    strided(2.0F, 3, 4, 2);
    strided(std::complex<double>(2), 3, 4, 2);  // one by one
    strided(2.0, 11, 13, 7);
    // by pointers
    std::vector<matrix_d> x(items, matrix_d::Constant(3, 8, 2.0)), a(items, matrix_d::Constant(4, 5, 3.0)),
        y(items, poisoned(3, 15));
    const matrix_d shared = matrix_d::Ones(2, 3);
    CHECK_NO_ALLOCATION(count_again(batched(y), batched(x) * kron(batched(a), shared)));
    CHECK(y.back()(2, 14) == 48);
    // a contraction of a factor that all share, and of one that differs
    const std::vector<double> t(3 * 4 * 5, 2.0), m(3 * 4 * 5, 3.0);
    std::vector<double> c(3 * 4 * 6);
    const auto tensor = strided_view<const double, 3>::by_columns(t.data(), {3, 4, 5});
    CHECK_NO_ALLOCATION(count_again(
        strided_view<double, 3>::by_columns(c.data(), {3, 4, 6}),
        otimes::einsum<"mpk,kn->mpn">(tensor, strided_view<const double, 2>::by_columns(m.data(), {5, 6}))));
    CHECK_NO_ALLOCATION(count_again(
        strided_view<double, 2>::by_columns(c.data(), {3, 4}),
        otimes::einsum<"mpk,kmp->mp">(tensor, strided_view<const double, 3>::by_rows(m.data(), {5, 3, 4}))));
    CHECK(c.front() == 30);
}

}  // namespace counting

// SPDX-License-Identifier: MIT
// Who keeps an operand alive. After an expression is built, freed memory is scribbled over: what an expression borrowed by
// mistake shows as NaN (and as a use after free under the address sanitizer).
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

// Takes blocks of the sizes that were freed, fills them with NaN and gives them back.
void scribble() {
    for (int round = 0; round < 4; ++round) {
        std::vector<matrix_d> junk;
        for (const Index n : {1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 20, 24, 30, 36, 60}) {
            for (int i = 0; i < 8; ++i) {
                junk.push_back(matrix_d::Constant(n, 1, std::numeric_limits<double>::quiet_NaN()));
            }
        }
    }
}

// Scribbles over the stack below the caller.
[[gnu::noinline]] void scribble_stack() {
    volatile double junk[4096];
    for (volatile double& value : junk) {
        value = std::numeric_limits<double>::quiet_NaN();
    }
}

[[gnu::noinline]] auto make_kron() {
    const matrix_d local = random(3, 5, 2);
    return kron(random(2, 3, 1), otimes::own(local), random(2, 2, 3) + random(2, 2, 4));
}
[[gnu::noinline]] auto make_product() { return random(4, 12, 5) * make_kron(); }
[[gnu::noinline]] auto make_sum() { return random(4, 30, 6) + random(4, 12, 5) * make_kron(); }
[[gnu::noinline]] auto make_symmetric() {
    auto S = random(4, 12, 5) * make_kron() - 0.5 * (random(4, 12, 5) * make_kron());
    return S;
}

const auto dense_k = dense_kron(random(2, 3, 1), random(3, 5, 2), matrix_d(random(2, 2, 3) + random(2, 2, 4)));
const auto xk = times(random(4, 12, 5), dense_k);

struct member {
    matrix_d F = random(3, 3, 7);
    decltype(random(4, 12, 5) * make_kron()) product;
    decltype(random(4, 30, 6) + random(4, 12, 5) * make_kron()) sum;
    member() : product(make_product()), sum(make_sum()) {}
};

// Made before main, so destroyed behind what the main thread and the library's functions kept. What it finds wrong it can only tell by the
// exit status.
struct evaluates_at_exit {
    matrix_d X = random(13, 12, 5), A = random(3, 5, 6), B = random(4, 5, 7);

    [[nodiscard]] bool is_right() const {
        const matrix_d K = kron(A, B).toDenseMatrix();
        matrix_d Y = X * kron(A, B);
        Y.noalias() += X * kron(A, B) + 2.0 * X * kron(A, 3.0 * B);  // a program with sums, in the thread's workspace
        const matrix_d want = 8.0 * X * K;
        return (Y - want).norm() <= 1e-13 * want.norm();
    }
    ~evaluates_at_exit() {
        if (!is_right()) {
            std::fputs("a static object evaluated wrongly at exit\n", stderr);
            std::_Exit(1);
        }
    }
};
const evaluates_at_exit at_exit;

}  // namespace

TEST_CASE("temporaries as factors and as X are owned") {
    const auto K = make_kron();
    const auto product = make_product();
    const auto sum = make_sum();
    const auto symmetric = make_symmetric();
    scribble();
    scribble_stack();
    CHECK(support::close(K.toDenseMatrix(), dense_k, 1));
    const matrix_d P = product;
    CHECK(support::close(P, xk, 12));
    const matrix_d S = sum;
    CHECK(support::close(S, plus(random(4, 30, 6), xk), 12));
    const matrix_d H = symmetric;
    CHECK(support::close(H, scaled(0.5, xk), 12));
}

TEST_CASE("vectors of rvalues are owned, also const ones") {
    const auto make = [] { return std::vector<matrix_d>{random(2, 3, 1), random(3, 5, 2)}; };
    const auto make_const = []() -> const std::vector<matrix_d> { return {random(2, 3, 1), random(3, 5, 2)}; };
    const auto K = kron(make());
    const auto L = kron(make_const());
    auto factors = std::make_unique<std::vector<matrix_d>>(make());
    const auto M = kron(std::move(*factors));
    factors.reset();
    scribble();
    const auto want = dense_kron(random(2, 3, 1), random(3, 5, 2));
    CHECK(support::close(K.toDenseMatrix(), want, 1));
    CHECK(support::close(L.toDenseMatrix(), want, 1));
    CHECK(support::close(M.toDenseMatrix(), want, 1));
}

TEST_CASE("computed expressions are evaluated when the kron is built") {
    matrix_d F = random(3, 3, 7);
    const auto K = kron(F * F, F + F);
    const matrix_d X = random(2, 9, 8);
    const auto e = (2.0 * X.cwiseAbs()) * K;
    const auto want = times(matrix_d(2.0 * X.cwiseAbs()), dense_kron(matrix_d(F * F), matrix_d(F + F)));
    F.setConstant(std::numeric_limits<double>::quiet_NaN());
    const matrix_d Y = e;
    CHECK(support::close(Y, want, 9));
}

TEST_CASE("views of temporaries' elements: the matrix outlives, the handle need not") {
    const matrix_d F = random(6, 6, 9);
    const auto make_view_kron = [&F] {
        const auto view = F.block(1, 1, 2, 3);
        const Eigen::Map<const matrix_d> map(F.data(), 3, 2);
        const Eigen::Ref<const matrix_d> ref(F.middleCols(2, 2));
        return kron(view, map, ref.transpose());
    };
    const auto K = make_view_kron();
    scribble_stack();
    CHECK(support::close(K.toDenseMatrix(),
                         dense_kron(matrix_d(F.block(1, 1, 2, 3)), matrix_d(Eigen::Map<const matrix_d>(F.data(), 3, 2)),
                                    matrix_d(F.middleCols(2, 2).transpose())),
                         1));
}

TEST_CASE("later changes of an lvalue factor and of X are seen") {
    matrix_d A = random(2, 3, 10);
    matrix_d B = random(3, 2, 11);
    matrix_d X = random(4, 6, 12);
    const auto K = kron(A, B);
    const auto T = kron(A.transpose(), B);
    const auto e = X * K;
    const auto two = 2.0 * X * K;
    const auto check = [&] {
        const matrix_d Y = e;
        CHECK(support::close(Y, times(X, dense_kron(A, B)), 20));
        const matrix_d Y2 = two;
        CHECK(support::close(Y2, scaled(2.0, times(X, dense_kron(A, B))), 20));
        CHECK(support::close(T.toDenseMatrix(), dense_kron(matrix_d(A.transpose()), B), 1));
    };
    check();
    A(1, 2) += 3.0;
    X *= -0.5;
    check();
    A = random(2, 3, 13);
    check();
    SUBCASE("resized") {
        A = random(5, 7, 14);
        X = random(3, 15, 15);
        CHECK(K.rows() == 15);
        CHECK(e.cols() == 14);
        scribble();
        check();
    }
    SUBCASE("moved into and out of") {
        matrix_d elsewhere = std::move(A);
        A = random(2, 3, 16);
        scribble();
        check();
        A.swap(elsewhere);
        check();
    }
    SUBCASE("resized so that it does not fit any more") {
        A.resize(4, 4);
        auto Y = poisoned(1, 1);
        CHECK_THROWS_AS(Y = e, otimes::shape_error);
        CHECK(Y.size() == 1);
    }
}

TEST_CASE("own(x) copies: later changes are not seen") {
    matrix_d A = random(2, 3, 17);
    matrix_d X = random(4, 2, 18);
    const matrix_d a = A;
    const matrix_d x = X;
    const auto e = otimes::own(X) * kron(otimes::own(A));
    A.setConstant(std::numeric_limits<double>::quiet_NaN());
    X.resize(0, 0);
    scribble();
    const matrix_d Y = e;
    CHECK(support::close(Y, times(x, a), 2));

    // and of what is not dense
    vector_d d = random(3, 1, 19);
    matrix_d dense = random(2, 3, 20);
    Eigen::SparseMatrix<double> S = dense.sparseView();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(Eigen::Vector3i(1, 2, 0));
    const auto want =
        dense_kron(matrix_d(d.asDiagonal()), matrix_d(dense.transpose()), matrix_d(P.toDenseMatrix().cast<double>()));
    const auto K = kron(otimes::own(d.asDiagonal()), otimes::own(S.transpose()), otimes::own(P));
    d.setConstant(std::numeric_limits<double>::quiet_NaN());
    S.setZero();
    P.setIdentity();
    scribble();
    CHECK(support::close(K.toDenseMatrix(), want, 1));
}

TEST_CASE("expressions as class members; copies outlive their originals") {
    auto original = std::make_unique<member>();
    const member copy = *original;
    const auto product = original->product;
    original.reset();
    scribble();
    const matrix_d P = copy.product;
    CHECK(support::close(P, xk, 12));
    const matrix_d Q = product;
    CHECK(support::close(Q, xk, 12));
    const matrix_d S = copy.sum;
    CHECK(support::close(S, plus(random(4, 30, 6), xk), 12));
}

TEST_CASE("expressions are assigned, and so are classes with one as a member") {
    const matrix_d Z = random(4, 30, 6);
    const matrix_d Z2 = random(4, 30, 8);
    const auto of = [&](matrix_d X, const matrix_d& term) { return term + std::move(X) * make_kron(); };  // owns X
    auto sum = of(random(4, 12, 5), Z);                                                                   // refers to Z
    auto product = make_product();
    const auto before = product;
    {
        const auto other = of(random(4, 12, 9), Z2);
        sum = other;
        product = random(4, 12, 9) * make_kron();
    }
    scribble();
    const auto other_xk = times(random(4, 12, 9), dense_k);
    CHECK(support::close(matrix_d(product), other_xk, 30));
    CHECK(support::close(matrix_d(before), xk, 30));
    CHECK(support::close(matrix_d(sum), plus(Z2, other_xk), 30));
    product = static_cast<const decltype(product)&>(product);
    CHECK(support::close(matrix_d(product), other_xk, 30));
    member a;
    {
        member b;
        b.product = product;
        a = b;
    }
    scribble();
    CHECK(support::close(matrix_d(a.product), other_xk, 30));
    CHECK(!std::is_assignable_v<decltype(make_product()), decltype(make_product())>);  // (X * K) = X * K
}

TEST_CASE("a transpose of an lvalue follows the matrix, a transpose of an owned one is owned") {
    const auto K = make_kron().transpose();
    scribble();
    CHECK(support::close(K.toDenseMatrix(), oracle::transpose(dense_k), 1));
    matrix_d X = random(30, 2, 19);
    const auto e = X.transpose() * K;
    X = random(30, 5, 20);  // another shape, other memory
    scribble();
    const matrix_d Y = e;
    CHECK(support::close(Y, times(matrix_d(X.transpose()), oracle::transpose(dense_k)), 30));
}

TEST_CASE("a vector of krons, grown while in use") {
    std::vector<otimes::kron_expr<double>> all;
    for (std::uint64_t i = 0; i < 20; ++i) {
        all.push_back(kron(random(2, 2, 30 + i), random(2, 3, 60 + i)));
    }
    scribble();
    for (std::uint64_t i = 0; i < 20; ++i) {
        CHECK(support::close(all[i].toDenseMatrix(), dense_kron(random(2, 2, 30 + i), random(2, 3, 60 + i)), 1));
    }
}

TEST_CASE("destructors of static objects may evaluate what the program has evaluated before") {
    CHECK(at_exit.is_right());  // once more at exit
    CHECK(at_exit.is_right());
}

// SPDX-License-Identifier: MIT
// The laws of the Kronecker product, for every executor, for the scalar and layout that the including file names.
#pragma once

#include <doctest/doctest.h>

#include <complex>
#include <cstddef>
#include <vector>

#include "adapt/helpers.hpp"

namespace laws {

using adapt::Index;

// The executors that the laws must hold on. A new executor is one line here.
inline std::vector<const otimes::executor*> executors() {
    return {
        &otimes::cpu(),
        &otimes::reference(),
    };
}

// X and Y in `Order`, factors in the other one.
template <class ScalarType, int Order>
struct fixture {
    using Scalar = ScalarType;
    using X_matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;
    using F_matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic,
                                   Order == int(Eigen::RowMajor) ? int(Eigen::ColMajor) : int(Eigen::RowMajor)>;

    static X_matrix x(Index rows, Index cols, std::uint64_t seed) { return adapt::random<X_matrix>(rows, cols, seed); }
    static F_matrix f(Index rows, Index cols, std::uint64_t seed) { return adapt::random<F_matrix>(rows, cols, seed); }
    // The value of an expression, computed into memory that starts as NaN.
    template <class Expression>
    static X_matrix value(const Expression& expression) {
        auto Y = adapt::poisoned<X_matrix>(expression.rows(), expression.cols());
        Y.noalias() = expression;
        return Y;
    }
};

// Calls `law(fixture)` on every executor.
template <class Fixture, class Law>
void on_every_executor(const Law& law) {
    for (const otimes::executor* executor : executors()) {
        const otimes::scoped_executor scope(*executor);
        CAPTURE(std::string(executor->name()));
        law(Fixture());
    }
}

template <class First, class Second>
support::verdict equal(const First& got, const Second& want, Index length) {
    return support::close(got, want, static_cast<std::size_t>(length));
}

// Shapes of two factors: unequal, rectangular, odd, with 1; F1 is p x q, F2 is r x s.
struct shape {
    Index p, q, r, s;
};
inline const std::vector<shape> shapes = {{2, 3, 3, 2}, {3, 5, 7, 2},  {1, 4, 6, 1},
                                          {5, 1, 1, 3}, {9, 8, 4, 11}, {17, 16, 3, 3}};

}  // namespace laws

TEST_CASE_TEMPLATE_DEFINE("order and value: X * kron(F, G) is the oracle's", Fixture, law_order) {
    laws::on_every_executor<Fixture>([](auto t) {
        std::uint64_t seed = 1;
        for (const laws::shape s : laws::shapes) {
            CAPTURE(s.p);
            CAPTURE(s.q);
            CAPTURE(s.r);
            CAPTURE(s.s);
            const auto F = t.f(s.p, s.q, ++seed);
            const auto G = t.f(s.r, s.s, ++seed);
            const auto k = adapt::dense_kron(F, G);
            const auto X = t.x(13, s.p * s.r, ++seed);
            const auto Z = t.x(s.q * s.s, 13, ++seed);
            CHECK(laws::equal(t.value(X * otimes::kron(F, G)), adapt::times(X, k), s.p * s.r));
            CHECK(laws::equal(t.value(otimes::kron(F, G) * Z), adapt::times(k, Z), s.q * s.s));
            const auto row = t.x(1, s.p * s.r, ++seed);
            CHECK(laws::equal(t.value(row * otimes::kron(F, G)), adapt::times(row, k), s.p * s.r));
            const auto column = t.x(s.q * s.s, 1, ++seed);
            CHECK(laws::equal(t.value(otimes::kron(F, G) * column), adapt::times(k, column), s.q * s.s));
        }
    });
}

TEST_CASE_TEMPLATE_DEFINE("mixed product: (X * kron(A, B)) * kron(C, D) = X * kron(A C, B D)", Fixture,
                          law_mixed_product) {
    laws::on_every_executor<Fixture>([](auto t) {
        const auto A = t.f(2, 5, 1);
        const auto B = t.f(7, 3, 2);
        const auto C = t.f(5, 4, 3);
        const auto D = t.f(3, 6, 4);
        const auto X = t.x(5, 14, 5);
        const auto twice = t.value(t.value(X * otimes::kron(A, B)) * otimes::kron(C, D));
        CHECK(laws::equal(twice, t.value(X * otimes::kron(A * C, B * D)), 14 * 15));
        CHECK(laws::equal(t.value(X * otimes::kron(A, B) * otimes::kron(C, D)), twice, 14 * 15));
        // The square of a square product of rectangular factors.
        const auto E = t.f(2, 3, 6);
        const auto G = t.f(3, 2, 7);
        const auto K = otimes::kron(E, G);
        const auto k = adapt::dense_kron(E, G);
        const auto Z = t.x(4, 6, 8);
        CHECK(laws::equal(t.value(Z * K * K), adapt::times(adapt::times(Z, k), k), 36));
        CHECK(laws::equal(t.value(K * (K * Z.transpose())), adapt::times(k, adapt::times(k, t.value(Z.transpose()))),
                          36));
    });
}

TEST_CASE_TEMPLATE_DEFINE("transpose: (X * K)^T = K^T * X^T, and likewise for the adjoint", Fixture, law_transpose) {
    laws::on_every_executor<Fixture>([](auto t) {
        for (const laws::shape s : laws::shapes) {
            const auto F = t.f(s.p, s.q, 11);
            const auto G = t.f(s.r, s.s, 12);
            const auto X = t.x(5, s.p * s.r, 13);
            const auto K = otimes::kron(F, G);
            const auto Y = t.value(X * K);
            CHECK(laws::equal(t.value(K.transpose() * X.transpose()), t.value(Y.transpose()), s.p * s.r));
            CHECK(laws::equal(t.value(K.adjoint() * X.adjoint()), t.value(Y.adjoint()), s.p * s.r));
            CHECK(laws::equal(t.value(X.conjugate() * K.conjugate()), t.value(Y.conjugate()), s.p * s.r));
            CHECK(laws::equal(t.value(X * otimes::kron(F.transpose(), G.transpose()).transpose()), Y, s.p * s.r));
        }
    });
}

TEST_CASE_TEMPLATE_DEFINE("bilinearity: linear in X and in each factor", Fixture, law_bilinearity) {
    using Scalar = typename Fixture::Scalar;
    laws::on_every_executor<Fixture>([](auto t) {
        const auto F = t.f(3, 5, 21);
        const auto F2 = t.f(3, 5, 22);
        const auto G = t.f(4, 2, 23);
        const auto G2 = t.f(4, 2, 24);
        const auto X = t.x(6, 12, 25);
        const auto X2 = t.x(6, 12, 26);
        const Scalar a = Scalar(-3) / Scalar(2);
        const auto y = t.value(X * otimes::kron(F, G));
        using plain = typename Fixture::X_matrix;
        CHECK(laws::equal(t.value((X + a * X2) * otimes::kron(F, G)), plain(y + a * t.value(X2 * otimes::kron(F, G))),
                          12));
        CHECK(
            laws::equal(t.value(X * otimes::kron(F + a * F2, G)), plain(y + a * t.value(X * otimes::kron(F2, G))), 12));
        CHECK(
            laws::equal(t.value(X * otimes::kron(F, G + a * G2)), plain(y + a * t.value(X * otimes::kron(F, G2))), 12));
        CHECK(laws::equal(t.value(X * otimes::kron(F, G) + X2 * otimes::kron(F2, G2) * a),
                          plain(y + a * t.value(X2 * otimes::kron(F2, G2))), 12));
        CHECK(laws::equal(t.value(X * otimes::kron(a * F, G)), t.value(a * X * otimes::kron(F, G)), 12));
    });
}

TEST_CASE_TEMPLATE_DEFINE("associativity: grouping the factors changes nothing", Fixture, law_associativity) {
    laws::on_every_executor<Fixture>([](auto t) {
        const auto A = t.f(2, 3, 31);
        const auto B = t.f(3, 4, 32);
        const auto C = t.f(5, 2, 33);
        const auto D = t.f(1, 3, 34);
        const auto X = t.x(7, 30, 35);
        const auto y = t.value(X * otimes::kron(A, B, C, D));
        CHECK(laws::equal(y, adapt::times(X, adapt::dense_kron(A, B, C, D)), 30));
        CHECK(laws::equal(t.value(X * otimes::kron(A, otimes::kron(B, otimes::kron(C, D)))), y, 30));
        CHECK(laws::equal(t.value(X * otimes::kron(otimes::kron(A, B).toDenseMatrix(), C, D)), y, 30));
        CHECK(laws::equal(t.value(X * otimes::kron(A, otimes::kron(B, C, D).toDenseMatrix())), y, 30));
        // One side after the other: L * (X * R) = (L * X) * R.
        const auto L = otimes::kron(A, D);
        const auto R = otimes::kron(B, C);
        const auto Z = t.x(9, 15, 36);
        CHECK(laws::equal(t.value(L * t.value(Z * R)), t.value(t.value(L * Z) * R), 135));
        CHECK(laws::equal(t.value(L * Z * R), t.value(t.value(L * Z) * R), 135));
    });
}

TEST_CASE_TEMPLATE_DEFINE("identity and 1 x 1 factors", Fixture, law_identity) {
    using Scalar = typename Fixture::Scalar;
    laws::on_every_executor<Fixture>([](auto t) {
        const auto F = t.f(4, 3, 41);
        const auto G = t.f(2, 5, 42);
        const auto one = t.f(1, 1, 43);
        const auto X = t.x(5, 24, 44);
        using factor = typename Fixture::F_matrix;
        const factor eye = factor::Identity(3, 3);
        const auto padded = t.value(X * otimes::kron(F, otimes::identity(3), G));
        CHECK(laws::equal(padded, adapt::times(X, adapt::dense_kron(F, eye, G)), 24));
        CHECK(laws::equal(t.value(X * otimes::kron(F, eye, G)), padded, 24));
        CHECK(laws::equal(t.value(X * otimes::kron(F, factor::Identity(3, 3), G)), padded, 24));
        // Two commuting halves: kron(F, I) then kron(I, G).
        const auto Z = t.x(5, 8, 45);
        CHECK(laws::equal(
            t.value(t.value(Z * otimes::kron(F, otimes::identity(2))) * otimes::kron(otimes::identity(3), G)),
            t.value(Z * otimes::kron(F, G)), 24));
        CHECK(laws::equal(
            t.value(t.value(Z * otimes::kron(otimes::identity(4), G)) * otimes::kron(F, otimes::identity(5))),
            t.value(Z * otimes::kron(F, G)), 24));
        CHECK(support::exactly_equal(t.value(X * otimes::kron(otimes::identity(4), factor::Identity(6, 6))), X));
        const auto none = otimes::kron(std::vector<factor>{});
        const Scalar square = one(0, 0) * one(0, 0);
        CHECK(laws::equal(t.value(Z * otimes::kron(one, F, G, one)), t.value(square * Z * otimes::kron(F, G)), 24));
        CHECK(laws::equal(t.value(Z * otimes::kron(none, F, none, G)), t.value(Z * otimes::kron(F, G)), 24));
    });
}

TEST_CASE_TEMPLATE_DEFINE("accumulation: Y += a X K adds, bit by bit the same each time", Fixture, law_accumulation) {
    using Scalar = typename Fixture::Scalar;
    laws::on_every_executor<Fixture>([](auto t) {
        const auto K = otimes::kron_power(t.f(3, 4, 51), 3);
        const auto X = t.x(11, 27, 52);
        const auto start = t.x(11, 64, 53);
        const auto product = t.value(X * K);
        using plain = typename Fixture::X_matrix;
        plain Y = start;
        Y.noalias() += Scalar(2) * X * K;
        CHECK(laws::equal(Y, plain(start + Scalar(2) * product), 27));
        Y.noalias() -= X * K * 2;
        CHECK(laws::equal(Y, start, 27));
        CHECK(support::exactly_equal(t.value(X * K), product));
    });
}

TEST_CASE_TEMPLATE_DEFINE("many factors, and factors of every size to 20", Fixture, law_sizes) {
    laws::on_every_executor<Fixture>([](auto t) {
        std::vector<typename Fixture::F_matrix> factors;
        std::vector<oracle::dense<adapt::wide_of<typename Fixture::F_matrix>>> wide;
        for (std::uint64_t i = 0; i < 9; ++i) {
            factors.push_back(t.f(2, i % 3 == 0 ? 3 : i % 3 == 1 ? 1 : 2, 61 + i));
            wide.push_back(oracle::from(factors.back()));
        }
        const auto X = t.x(3, 512, 71);
        CHECK(laws::equal(t.value(X * otimes::kron(factors)), adapt::times(X, oracle::kron(wide)), 512));
        for (laws::Index n = 1; n <= 20; ++n) {
            CAPTURE(n);
            const auto F = t.f(n, 21 - n, 80);
            const auto G = t.f(3, n, 81);
            const auto Z = t.x(4, 3 * n, 82);
            CHECK(laws::equal(t.value(Z * otimes::kron(G, F)), adapt::times(Z, adapt::dense_kron(G, F)), 3 * n));
        }
    });
}

// Instantiates all laws for one fixture.
#define OTIMES_LAWS(...)                                       \
    TEST_CASE_TEMPLATE_INVOKE(law_order, __VA_ARGS__);         \
    TEST_CASE_TEMPLATE_INVOKE(law_mixed_product, __VA_ARGS__); \
    TEST_CASE_TEMPLATE_INVOKE(law_transpose, __VA_ARGS__);     \
    TEST_CASE_TEMPLATE_INVOKE(law_bilinearity, __VA_ARGS__);   \
    TEST_CASE_TEMPLATE_INVOKE(law_associativity, __VA_ARGS__); \
    TEST_CASE_TEMPLATE_INVOKE(law_identity, __VA_ARGS__);      \
    TEST_CASE_TEMPLATE_INVOKE(law_accumulation, __VA_ARGS__);  \
    TEST_CASE_TEMPLATE_INVOKE(law_sizes, __VA_ARGS__)

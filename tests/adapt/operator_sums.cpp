// SPDX-License-Identifier: MIT
// Sums of Kronecker products: values, how many mode products they take, memory, lifetimes, errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::kron;

namespace {

int count_steps(const otimes::program& p, otimes::step_kind kind) {
    int count = 0;
    for (const otimes::step& s : p.steps) {
        count += s.kind == kind ? 1 : 0;
    }
    return count;
}

struct factors {
    matrix_d A = random(2, 3, 1), B = random(4, 2, 2), C = random(3, 5, 3);
    matrix_d MA = random(2, 3, 4), MB = random(4, 2, 5), MC = random(3, 5, 6);
};

}  // namespace

TEST_CASE("a sum of three krons sharing two factors each takes seven mode products") {
    const factors f;
    const auto S = kron(f.A, f.MB, f.MC) + kron(f.MA, f.B, f.MC) - 0.5 * kron(f.MA, f.MB, f.C);
    const auto s =
        plus(plus(dense_kron(f.A, f.MB, f.MC), dense_kron(f.MA, f.B, f.MC)), scaled(-0.5, dense_kron(f.MA, f.MB, f.C)));
    CHECK(S.term_count() == 3);
    CHECK(support::close(S.toDenseMatrix(), s, 3));
    CHECK(S(5, 7) == doctest::Approx(S.toDenseMatrix()(5, 7)));
    const matrix_d X = random(7, 24, 7);
    auto Y = poisoned(7, 30);
    Y.noalias() = X * S;
    CHECK(support::close(Y, times(X, s), 24));
    Y += 2.0 * X * S;
    CHECK(support::close(Y, scaled(3.0, times(X, s)), 26));
    const row_major_d Z = random<row_major_d>(30, 3, 8);
    row_major_d W = poisoned<row_major_d>(24, 3);
    W = S * Z;
    CHECK(support::close(W, times(s, Z), 30));
    const matrix_d T = S.transpose() * X.transpose();
    CHECK(support::close(T, oracle::transpose(times(X, s)), 24));
    const vector_d v = S * vector_d(Z.col(1));
    CHECK(support::close(v, times(s, matrix_d(Z.col(1))), 30));
    otimes::eigen::with_program(X * S, otimes::eigen::plain_destination(X * S),
                                [](const otimes::program& p, const otimes::bindings&) {
                                    CHECK(count_steps(p, otimes::step_kind::contract) == 7);
                                    CHECK(count_steps(p, otimes::step_kind::accumulate) == 0);
                                });
    // Four terms of four factors: 10 instead of 16.
    const matrix_d D = random(2, 2, 9), MD = random(2, 2, 10);
    const auto four =
        kron(f.A, f.MB, f.MC, MD) + kron(f.MA, f.B, f.MC, MD) + kron(f.MA, f.MB, f.C, MD) + kron(f.MA, f.MB, f.MC, D);
    const matrix_d X4 = random(3, 48, 11);
    otimes::eigen::with_program(X4 * four, otimes::eigen::plain_destination(X4 * four),
                                [](const otimes::program& p, const otimes::bindings&) {
                                    CHECK(count_steps(p, otimes::step_kind::contract) == 10);
                                });
    CHECK(support::close(matrix_d(X4 * four), times(X4, four.toDenseMatrix()), 48));
}

TEST_CASE("a sum that was evaluated before follows its factors, scalars and matrices") {
    const auto sum_of = [](const factors& f) {
        return kron(f.A, f.MB, f.MC) + kron(f.MA, f.B, f.MC) - 0.5 * kron(f.MA, f.MB, f.C);
    };
    const auto expected = [](const factors& f) {
        return plus(plus(dense_kron(f.A, f.MB, f.MC), dense_kron(f.MA, f.B, f.MC)),
                    scaled(-0.5, dense_kron(f.MA, f.MB, f.C)));
    };
    factors f;
    const auto S = sum_of(f);
    const matrix_d X = random(7, 24, 7);
    const auto check = [&](const char* what, const factors& now, const auto& of) {
        INFO(what);
        for (int repeat = 0; repeat < 2; ++repeat) {  // lowered, then found
            auto Y = poisoned(7, 30);
            Y.noalias() = X * of;
            CHECK(support::close(Y, times(X, expected(now)), 24));
        }
    };
    check("first", f, S);
    f.MB = random(4, 2, 11);
    check("other elements", f, S);
    const matrix_d kept = f.C;  // so that the memory of f.C is another
    f.C = matrix_d();
    f.C = 2.0 * kept;
    check("other memory", f, S);
    const factors g;
    check("another sum of the same factors", f, sum_of(f));
    check("a sum of other factors", g, sum_of(g));

    const matrix_d W = random(7, 24, 8);
    const auto s = expected(f);
    auto Y = poisoned(7, 30);
    Y.noalias() = W * S;
    CHECK(support::close(Y, times(W, s), 24));
    Y += X * S;
    CHECK(support::close(Y, times(plus(W, X), s), 24));
    Y -= 3.0 * X * S;
    CHECK(support::close(Y, times(plus(W, scaled(-2.0, X)), s), 30));
    Y -= 2.0 * X * S;
    CHECK(support::close(Y, times(plus(W, scaled(-4.0, X)), s), 30));
    row_major_d V = poisoned<row_major_d>(7, 30);
    V.noalias() = X * S;
    CHECK(support::close(V, times(X, s), 24));
    const matrix_d tall = random(7 + 5, 24, 9);
    auto T = poisoned(7 + 5, 30);
    T.noalias() = tall * S;
    CHECK(support::close(T, times(tall, s), 24));
    T.topRows(7).noalias() = tall.bottomRows(7) * S;
    CHECK(support::close(matrix_d(T.topRows(7)), times(matrix_d(tall.bottomRows(7)), s), 24));
    T.setConstant(std::numeric_limits<double>::quiet_NaN());
    T.topRows(7).noalias() = tall.topRows(7) * S;
    CHECK(support::close(matrix_d(T.topRows(7)), times(matrix_d(tall.topRows(7)), s), 24));
}

TEST_CASE("a sum of more operands than a thread keeps the places of") {
    std::vector<matrix_d> A, B;
    for (std::uint64_t k = 0; k < 40; ++k) {
        A.push_back(random(2, 3, 20 + k));
        B.push_back(random(4, 2, 70 + k));
    }
    otimes::sum_expr<double> S = kron(A[0], B[0]);
    auto s = dense_kron(A[0], B[0]);
    for (std::size_t k = 1; k < A.size(); ++k) {
        S = S + kron(A[k], B[k]);
        s = plus(s, dense_kron(A[k], B[k]));
    }
    const matrix_d X[] = {random(5, 8, 7), random(5, 8, 8)};
    matrix_d Y[] = {poisoned(5, 6), poisoned(5, 6)};
    for (const std::size_t k : {0, 1}) {
        Y[k].noalias() = X[k] * S;
        CHECK(support::close(Y[k], times(X[k], s), 320));
    }
}

TEST_CASE("a matrix that is a factor too, and one of the destination's shape") {
    const matrix_d A = random(6, 6, 1);
    const matrix_d B = random(6, 6, 2);
    const auto S = kron(A) + kron(B, matrix_d::Ones(1, 1)) * 2.0 + kron(matrix_d::Ones(1, 1), B);
    const auto s = plus(A, scaled(3.0, B));
    for (const matrix_d* x : {&A, &B, &A, &A}) {
        auto Y = poisoned(6, 6);
        Y.noalias() = *x * S;
        CHECK(support::close(Y, times(*x, s), 6));
    }
}

TEST_CASE("terms share a factor by its elements, whatever object names them") {
    const factors f;
    const auto sum = kron(f.A, f.MB, f.MC) + kron(Eigen::Map<const matrix_d>(f.A.data(), 2, 3), f.B, f.MC);
    const matrix_d X = random(7, 24, 7);
    const auto count = [](const otimes::plan& p) { return count_steps(p.source, otimes::step_kind::contract); };
    CHECK(count(otimes::make_plan(X * (kron(f.A, f.MB, f.MC) + kron(f.A, f.B, f.MC)))) == 4);
    CHECK(count(otimes::make_plan(X * sum)) == 4);
    CHECK(
        support::close(matrix_d(X * sum), times(X, plus(dense_kron(f.A, f.MB, f.MC), dense_kron(f.A, f.B, f.MC))), 24));
}

TEST_CASE("kron_sum: one mode product per factor, no other step") {
    const matrix_d A = random(3, 3, 1), B = random(4, 4, 2), C = random(5, 5, 3);
    const auto S = otimes::kron_sum(A, B, C);
    const matrix_d I3 = matrix_d::Identity(3, 3), I4 = matrix_d::Identity(4, 4), I5 = matrix_d::Identity(5, 5);
    const auto s = plus(plus(dense_kron(A, I4, I5), dense_kron(I3, B, I5)), dense_kron(I3, I4, C));
    const matrix_d X = random(6, 60, 4);
    CHECK(support::close(matrix_d(X * S), times(X, s), 12));
    CHECK(support::close(matrix_d(S * X.transpose()), times(s, matrix_d(X.transpose())), 12));
    otimes::eigen::with_program(X * S, otimes::eigen::plain_destination(X * S),
                                [](const otimes::program& p, const otimes::bindings&) { CHECK(p.steps.size() == 3); });
    const otimes::plan p = otimes::make_plan(X * S);
    CHECK(p.flops == 2 * 360 * (3 + 4 + 5));
    CHECK(support::close(matrix_d(otimes::kron_sum(A) * I3), oracle::from(A), 3));
    CHECK(S.trace() == doctest::Approx(S.toDenseMatrix().trace()));
}

TEST_CASE("what several factors take from one result to another goes by their sum, as they are at each evaluation") {
    matrix_d K = random(9, 9, 1), L = random(8, 8, 2), M = random(9, 9, 3);
    row_major_d N = random<row_major_d>(8, 8, 4);
    // Of other layouts, transposed, a part of a matrix.
    const matrix_d large = random(12, 20, 5);
    const auto part = large.block(2, 1, 8, 8);
    const auto S = kron(K, N) + kron(M, L.transpose()) - 0.7 * kron(M, N) + 2.0 * kron(M, part);
    const auto expected = [&] {
        return plus(plus(dense_kron(K, matrix_d(N)), dense_kron(M, matrix_d(L.transpose()))),
                    plus(scaled(-0.7, dense_kron(M, matrix_d(N))), scaled(2.0, dense_kron(M, matrix_d(part)))));
    };
    const auto steps = [](const auto& product) {
        otimes::program copy;
        otimes::eigen::with_program(product, otimes::eigen::plain_destination(product),
                                    [&copy](const otimes::program& p, const otimes::bindings&) { copy = p; });
        return copy;
    };
    const matrix_d X = random(5, 72, 6);
    CHECK(count_steps(steps(X * S), otimes::step_kind::contract) == 4);
    CHECK(count_steps(steps(S * X.transpose()), otimes::step_kind::contract) == 4);
    CHECK(steps(X * S).rewritten.holds(otimes::rewrite::factors_added));
    const otimes::plan made = otimes::make_plan(X * S);
    for (int time = 0; time < 3; ++time) {
        CAPTURE(time);
        const auto s = expected();
        for (int repeat = 0; repeat < 2; ++repeat) {  // lowered, then found
            auto Y = poisoned(5, 72);
            Y.noalias() = X * S;
            CHECK(support::close(Y, times(X, s), 72));
            row_major_d Z = poisoned<row_major_d>(72, 5);
            Z.noalias() = S * X.transpose();
            CHECK(support::close(Z, times(s, matrix_d(X.transpose())), 72));
        }
        auto Y = poisoned(5, 72);
        made.run(Y, X * S);
        CHECK(support::close(Y, times(X, s), 72));
        Y += 3.0 * X * S;
        CHECK(support::close(Y, scaled(4.0, times(X, s)), 80));
        (time == 0 ? K : M).array() += 0.25;  // where they are: the sum of before is found again
        N.array() *= -1.5;
    }

    // A shift is no pass of its own; on either side of the terms, and of a diagonal block.
    const matrix_d one = matrix_d::Identity(72, 72);
    const auto sum = plus(dense_kron(K, matrix_d::Identity(8, 8)), dense_kron(matrix_d::Identity(9, 9), L));
    const auto shifted = otimes::kron_sum(K, L) - 0.25 * otimes::identity();
    CHECK(steps(X * shifted).steps.size() == 2);
    CHECK(support::close(matrix_d(X * shifted), plus(times(X, sum), scaled(-0.25, oracle::from(X))), 72));
    const auto before = 2.0 * otimes::identity(72) - otimes::kron_sum(K, L);
    CHECK(steps(X * before).steps.size() == 2);
    CHECK(support::close(matrix_d(X * before), plus(scaled(-1.0, times(X, sum)), scaled(2.0, oracle::from(X))), 72));

    // Few other indices: it would not pay.
    const matrix_d a = random(3, 3, 7), b = random(3, 3, 8);
    const matrix_d x = random(50, 9, 9);
    CHECK_FALSE(steps(x * (kron(a, b) + kron(b, a) + kron(a, a))).rewritten.holds(otimes::rewrite::factors_added));
}

TEST_CASE("sums of factors over complex scalars: real where all of it is, conjugated, never made complex in vain") {
    using cd = std::complex<double>;
    const matrix_d K = random(9, 9, 1), L = random(9, 9, 2);
    const matrix<cd> C = random<matrix<cd>>(9, 9, 3), D = random<matrix<cd>>(9, 9, 4);
    const matrix<cd> X = random<matrix<cd>>(4, 81, 5);
    const matrix_d R = random(4, 81, 6);
    const auto check = [&](const auto& S, bool added, bool added_to_real, int products) {
        const matrix<cd> s = S.toDenseMatrix();
        auto Y = poisoned<matrix<cd>>(4, 81);
        Y.noalias() = X * S;
        CHECK(support::close(Y, times(X, s), 81));
        Y.noalias() = R * S;
        CHECK(support::close(Y, times(R, s), 81));
        const auto seen = [&](const otimes::program& p, bool wanted) {
            CHECK(p.rewritten.holds(otimes::rewrite::factors_added) == wanted);
            CHECK((!wanted || count_steps(p, otimes::step_kind::contract) == products));
        };
        otimes::eigen::with_program(X * S, otimes::eigen::plain_destination(X * S),
                                    [&](const otimes::program& p, const otimes::bindings&) { seen(p, added); });
        otimes::eigen::with_program(R * S, otimes::eigen::plain_destination(R * S),
                                    [&](const otimes::program& p, const otimes::bindings&) { seen(p, added_to_real); });
    };
    check(kron(C, D) + kron(D, C) - cd(0.5, 2) * kron(D, D), true, true, 4);
    check(kron(C, D).conjugate() + kron(D, C).conjugate() - kron(D, D).conjugate(), true, true, 4);
    check(cd(1, 0) * (kron(K, L) + kron(L, K) - 0.5 * kron(L, L)), true, false, 4);
    check(kron(K, L) + kron(L, K) + cd(0, 1) * kron(L, L), false, false, 5);
    check(kron(C, K) + kron(K, D) + cd(0, 1) * kron(C, D), true, true, 4);
    check(otimes::kron_sum(C, D) - cd(0, 2) * otimes::identity(), true, true, 2);
}

TEST_CASE("shifts and diagonals") {
    const matrix_d A = random(3, 3, 1), B = random(4, 4, 2);
    const vector_d d = random<vector_d>(12, 1, 3);
    const matrix_d k = kron(A, B).toDenseMatrix();
    const matrix_d one = matrix_d::Identity(12, 12);
    const matrix_d X = random(5, 12, 4);
    const auto check = [&](const auto& S, const matrix_d& s) {
        CHECK(support::close(S.toDenseMatrix(), s, 4));
        CHECK(support::close(matrix_d(X * S), times(X, s), 13));
        CHECK(support::close(matrix_d(S * X.transpose()), times(s, matrix_d(X.transpose())), 13));
    };
    const auto K = kron(A, B);
    check(K + 0.25 * otimes::identity(), k + 0.25 * one);
    check(2 * otimes::identity() + K, k + 2 * one);
    check(K - otimes::identity(), k - one);
    check(3 * otimes::identity() - K, 3 * one - k);
    check(K + otimes::identity(12), k + one);
    check(K - otimes::identity(12) / 2 + (-otimes::identity()) * 2.0, k - 2.5 * one);
    check(K + matrix_d::Identity(12, 12), k + one);
    check(2 * matrix_d::Identity(12, 12) - K - matrix_d::Identity(12, 12) / 4, 1.75 * one - k);
    check(kron(A, 0.5 * otimes::identity(2), matrix_d::Identity(2, 2)),
          evaluated(0.5 * kron(A, otimes::identity(4)).toDenseMatrix()));
    const Eigen::MatrixXf Af = A.cast<float>(), Bf = B.cast<float>();
    const Eigen::MatrixXf shifted = (kron(Af, Bf) - 2.0F * otimes::identity(12)).toDenseMatrix();
    CHECK(shifted.isApprox((kron(Af, Bf).toDenseMatrix() - 2.0F * Eigen::MatrixXf::Identity(12, 12)).eval(), 1e-6F));
    const std::complex<double> i(0, 1);
    const Eigen::MatrixXcd Z = X * (K + 2.0 * i * otimes::identity());  // a complex shift of a real operator
    CHECK(support::close(matrix_d(Z.real()), times(X, k), 13));
    CHECK(support::close(matrix_d(Z.imag()), matrix_d(2 * X), 2));
    CHECK(support::close(matrix_d(X / 4.0 * K), scaled(0.25, times(X, k)), 13));
    check(K + d.asDiagonal(), k + matrix_d(d.asDiagonal()));
    check(d.asDiagonal() + K, k + matrix_d(d.asDiagonal()));
    check(K - d.asDiagonal() + 0.5 * otimes::identity(), k - matrix_d(d.asDiagonal()) + 0.5 * one);
    check(-(K + K.transpose()) / 2, -(k + k.transpose()) / 2);
    check(K + K, 2 * k);
    CHECK((K + K).term_count() == 1);
}

TEST_CASE("sums inside products, products of sums, both sides") {
    const matrix_d A = random(3, 3, 1), B = random(4, 4, 2), C = random(12, 12, 3);
    const auto S = kron(A, B) + kron(C);
    const matrix_d s = S.toDenseMatrix();
    const auto P = S * S.transpose() * kron(B, A);
    const matrix_d p = s * s.transpose() * kron(B, A).toDenseMatrix();
    const matrix_d X = random(5, 12, 4);
    CHECK(support::close(P.toDenseMatrix(), p, 40));
    CHECK(support::close(matrix_d(X * P), times(X, p), 60));
    CHECK(support::close(matrix_d(P * X.transpose()), times(p, matrix_d(X.transpose())), 60));
    const matrix_d Y = random(12, 12, 5);
    CHECK(support::close(matrix_d(S * Y * S), times(times(s, Y), s), 40));
    CHECK(support::close(matrix_d(kron(A, B) * Y * S), times(times(kron(A, B).toDenseMatrix(), Y), s), 40));
    CHECK(support::close(matrix_d(2 * (X * S) + X), plus(scaled(2.0, times(X, s)), X), 40));
    // Two krons on the right of X become one where their splits fit.
    CHECK(support::close(matrix_d(X * kron(A, B) * kron(A, B)),
                         times(times(X, kron(A, B).toDenseMatrix()), kron(A, B).toDenseMatrix()), 24));
}

TEST_CASE("an expression of temporaries can be returned") {
    const auto make = [] {
        auto K = kron(random(3, 3, 1), random(2, 2, 2));
        auto S = K + K.transpose();
        return S;
    };
    const auto S = make();
    const matrix_d k = kron(random(3, 3, 1), random(2, 2, 2)).toDenseMatrix();
    CHECK(support::close(S.toDenseMatrix(), matrix_d(k + k.transpose()), 4));
}

TEST_CASE("aliases of sums") {
    matrix_d A = random(3, 3, 1), B = random(2, 2, 2);
    const auto S = kron(A, B) + otimes::kron_sum(A, B);
    const matrix_d s = S.toDenseMatrix();
    matrix_d X = random(6, 6, 3);
    const matrix_d x = X;
    X = X * S;
    CHECK(support::close(X, times(x, s), 12));
    matrix_d Y = x;
    Y = S * Y.leftCols(4);
    CHECK(support::close(Y, times(s, matrix_d(x.leftCols(4))), 12));
    A = A * (kron(A) + otimes::identity());
    CHECK(support::close(A, times(random(3, 3, 1), matrix_d(random(3, 3, 1) + matrix_d::Identity(3, 3))), 6));
}

TEST_CASE("complex sums of real and complex krons") {
    using cd = std::complex<double>;
    const auto A = random<matrix<cd>>(3, 3, 1);
    const matrix_d B = random(2, 2, 2);
    const auto S = kron(A, B) + cd(0, 1) * kron(matrix_d(random(3, 3, 3)), B);
    const matrix<cd> s = S.toDenseMatrix();
    const auto X = random<matrix<cd>>(4, 6, 4);
    CHECK(support::close(matrix<cd>(X * S), times(X, s), 12));
    CHECK(support::close(matrix<cd>(S.adjoint() * X.adjoint()), times(matrix<cd>(s.adjoint()), matrix<cd>(X.adjoint())),
                         12));
    const matrix_d R = random(4, 6, 5);
    CHECK(support::close(matrix<cd>(R * S), times(R, s), 12));
    const auto real_sum = kron(random(3, 3, 6), B) + kron(random(3, 3, 7), B);
    CHECK(support::close(matrix<cd>(X * real_sum), times(X, real_sum.toDenseMatrix()), 12));
}

TEST_CASE("sums in Eigen's conjugate gradients") {
    matrix_d A = random(5, 5, 1), B = random(4, 4, 2);
    A = (A * A.transpose()).eval();
    B = (B * B.transpose()).eval();
    const auto S = otimes::kron_sum(A, B) + 0.5 * otimes::identity();
    const vector_d b = random<vector_d>(20, 1, 3);
    Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner> cg;
    cg.setTolerance(1e-12);
    const otimes::sum_expr<double> op = S;
    cg.compute(op);
    const vector_d x = cg.solve(b);
    CHECK(cg.info() == Eigen::Success);
    CHECK(distance(S.toDenseMatrix() * x, b) <= 1e-10 * b.norm());
}

TEST_CASE("no temporary of the size of Y for each term") {
    const Index n = 24;
    const matrix_d A = random(n, n, 1), B = random(n, n, 2), M = random(n, n, 3);
    const auto S = otimes::kron_sum(A, B, M);
    const matrix_d X = random(4, n * n * n, 4);
    matrix_d Y = X * S;  // plans
    const support::allocation_counter counter;
    Y.noalias() = X * S;
    const auto seen = counter.seen();
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes < static_cast<std::size_t>(Y.size()) * sizeof(double));
    }
}

TEST_CASE("errors of sums name both shapes") {
    const matrix_d A = random(3, 3, 1), B = random(2, 4, 2);
    const auto message_of = [](const auto& f) {
        try {
            f();
        } catch (const otimes::shape_error& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    CHECK(message_of([&] { (void)(kron(A, B) + kron(A, A)); }) ==
          "otimes: sum of operators: the first is kron(F1, F2), 6 x 12, the second is kron(F1, F2), 9 x 9. Terms of a "
          "sum must "
          "have equal shapes.");
    CHECK(message_of([&] { (void)(kron(A, B) * kron(A, A)); }) ==
          "otimes: product of operators: the first is kron(F1, F2), 6 x 12, the second is kron(F1, F2), 9 x 9. The "
          "columns of the "
          "first must equal the rows of the second.");
    CHECK(message_of([&] { (void)(kron(A, B) + 2.0 * otimes::identity()); }) ==
          "otimes: operator + s * identity(): the operator is 6 x 12; only a square operator can be shifted.");
    CHECK(message_of([&] { (void)otimes::kron_sum(A, B); }) ==
          "otimes: kron_sum: factor 2 is 2 x 4; the terms of a Kronecker sum are square.");
    const matrix_d X = random(2, 5, 3);
    CHECK(message_of([&] { (void)(X * otimes::kron_sum(A, A)); }) ==
          "otimes: X * S: X is 2 x 5, but S, a sum of 2 terms, is 9 x 9. The columns of X must equal the rows of S.");
    CHECK(message_of([&] { (void)(otimes::kron_sum(A, A) * X); }) ==
          "otimes: S * X: X is 2 x 5, but S, a sum of 2 terms, is 9 x 9. The rows of X must equal the columns of S.");
}

TEST_CASE("sums larger than a cache are evaluated range by range") {
    const matrix_d A = random(8, 8, 1), B = random(11, 11, 2), C = random(9, 9, 3), M = random(11, 11, 4);
    const vector_d d = random<vector_d>(792, 1, 5);
    const auto S = otimes::kron_sum(A, B, C) - 0.5 * kron(A, M, C) + 2.0 * otimes::identity() + d.asDiagonal();
    const matrix_d X = random(1003, 792, 6);
    const row_major_d R = X;
    matrix_d want = X * kron(A, otimes::identity(99)) + X * kron(otimes::identity(8), B, otimes::identity(9)) +
                    X * kron(otimes::identity(88), C) - 0.5 * X * kron(A, M, C);
    want += 2.0 * X + X * d.asDiagonal();
    const auto close = [&](const auto& got, const auto& wanted) {
        return (got - wanted).norm() <= 1e-14 * 64 * wanted.norm();
    };
    matrix_d Y = poisoned(1003, 792);
    Y.noalias() = X * S;
    CHECK(close(Y, want));
    row_major_d Z = poisoned<row_major_d>(1003, 792);
    Z.noalias() = R * S;
    CHECK(close(Z, want));
    Y.noalias() -= 2.0 * R * S;
    CHECK(close(Y, matrix_d(-want)));
    const matrix_d T = S.transpose() * X.transpose();
    CHECK(close(T, matrix_d(want.transpose())));
    Z = S.transpose() * R.transpose();
    CHECK(close(Z, row_major_d(want.transpose())));
    // X is also a factor; the factor stays where it is while X moves on.
    const matrix_d Q = random(792, 792, 7);
    const row_major_d QR = Q;
    const auto P = kron(QR) + kron(A, B, C) + kron(A, M, C);
    const matrix_d whole = Q * kron(Q) + Q * kron(A, B, C) + Q * kron(A, M, C);
    Z.noalias() = QR * P;
    CHECK(close(Z, row_major_d(whole)));
    matrix_d X2 = X;
    X2 = X2 * S;  // aliased
    CHECK(close(X2, want));
}

namespace {

// Every limit that is tried is kept in a workspace of exactly the stated size, and gives the bits of the plan without a limit; running
// such a plan again allocates nothing. Whether rows have been evaluated one by one before makes no difference.
template <class Matrix, class Expression>
void check_limits(Matrix Y, const Expression& expression, bool cuts) {
    const otimes::plan whole = otimes::make_plan(Y, expression, {.threads = 3});
    std::int64_t least = 0;
    try {
        static_cast<void>(otimes::make_plan(Y, expression, {.workspace_limit_bytes = 0, .threads = 3}));
    } catch (const otimes::budget_error& refused) {
        least = refused.least_bytes();
    }
    REQUIRE(least > 0);
    CHECK_THROWS_AS(static_cast<void>(otimes::make_plan(Y, expression, {.workspace_limit_bytes = least - 1})),
                    otimes::budget_error);
    whole.run(Y, expression);
    const Matrix want = Y;
    bool any_cut = false;
    for (int i = 0; i < 8; ++i) {
        const std::int64_t limit = least + (whole.workspace_bytes - least) * i * i / 64;
        otimes::plan p = otimes::make_plan(Y, expression, {.workspace_limit_bytes = limit, .threads = 3});
        REQUIRE(p.workspace_bytes <= limit);
        any_cut = any_cut || (p.slab_count > 1 && otimes::explain(p).find(" slabs of at most ") != std::string::npos);
        p.flops = i % 2 == 0 ? 1 << 30 : p.flops;  // threads are started
        CAPTURE(limit);
        CAPTURE(p.slab_count);
        std::vector<double> memory(static_cast<std::size_t>(p.workspace_bytes) / 8 + 8);
        void* const start = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
        Y = poisoned<Matrix>(Y.rows(), Y.cols());
        p.run(Y, expression, start, p.workspace_bytes);
        CHECK((Y == want));
        Y = poisoned<Matrix>(Y.rows(), Y.cols());
        otimes::eigen::with_program(expression, otimes::eigen::view_of(Y),
                                    [&](const otimes::program&, const otimes::bindings& b) {
                                        otimes::cpu().run(p, b, {});
                                        const support::allocation_counter counter;
                                        otimes::cpu().run(p, b, {});
                                        CHECK(counter.seen().count == 0);
                                    });
        CHECK((Y == want));
    }
    CHECK(any_cut == cuts);
}

}  // namespace

TEST_CASE("a sum keeps its workspace limit in slabs: every limit, the same bits") {
    const matrix_d A = random(8, 9, 1), B = random(11, 10, 2), M = random(11, 10, 3), N = random(8, 9, 4);
    const matrix_d Q = random(9, 9, 5), T = random(10, 10, 6);
    const vector_d d = random<vector_d>(90, 1, 7);
    const auto S = kron(A, B) + kron(N, B) - 0.5 * kron(A, M);
    const auto L =
        otimes::kron_sum(Q, T) + 2.0 * otimes::identity() + d.asDiagonal() + kron(Q, T.triangularView<Eigen::Lower>());
    const matrix_d X = random(33, 88, 8);
    const row_major_d R = random<row_major_d>(33, 90, 9);
    check_limits(matrix_d(33, 90), X * S, true);
    check_limits(row_major_d(33, 90), 3.0 * R * L, true);
    check_limits(matrix_d(88, 33), S * matrix_d(R.transpose()), true);
    Eigen::SparseMatrix<double> w(31, 90);
    for (Index i = 0; i < 90; ++i) {
        w.insert(i * 7 % 31, i) = 1.0 + static_cast<double>(i);
    }
    check_limits(
        matrix_d(31, 40),
        otimes::sum_expr<double>(w * kron(Q, T, otimes::identity(1)) * w.transpose() + 2.0 * otimes::identity()) *
            matrix_d(random(31, 40, 10)),
        true);
}

TEST_CASE("the bits of a sum's plan do not depend on whether its rows are evaluated one by one, where it says so") {
    const matrix_d A = random(2, 2, 1), B = random(2, 2, 2);  // multiplied out by passes, not by rows
    const auto S = kron(A, A, A, A, A, A) + kron(B, B, B, B, B, B);
    const row_major_d R = random<row_major_d>(40, 64, 3);
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    // A plan that runs before any sum was evaluated has the bits of later runs.
    otimes::row_steps<double>::run = nullptr;
    row_major_d first, Y;
    const otimes::plan planned = otimes::make_plan(first, R * S);
    planned.run(first, R * S);
    Y = R * S;
    CHECK((Y == first));
    planned.run(Y, R * S);
    CHECK((Y == first));
    for (const bool deterministic : {true, false}) {
        const std::int64_t bytes = otimes::make_plan(Y, R * S).workspace_bytes;
        const otimes::plan p = otimes::make_plan(
            Y, R * S, {.workspace_limit_bytes = deterministic ? most : bytes, .deterministic = deterministic});
        REQUIRE(std::any_of(p.passes.begin(), p.passes.end(), [](const otimes::pass& one) {
            return !one.sweeps.empty() && one.sweeps.front().factors.size() > 1;
        }));
        p.run(Y, R * S);
        const auto by_rows = otimes::row_steps<double>::run.exchange(nullptr);
        row_major_d by_passes = poisoned<row_major_d>(40, 64);
        p.run(by_passes, R * S);
        otimes::row_steps<double>::run = by_rows;
        CHECK((Y == by_passes));
    }
}

TEST_CASE("no limit changes which factors a deterministic sum multiplies out, down to slabs of one row by columns") {
    const matrix_d A = random(7, 7, 1), M = random(7, 7, 2), B = random(3, 3, 3), C = random(2, 2, 4);
    const auto S = kron(A, B, C) + 2.0 * kron(M, B, C);  // B and C are multiplied out, behind what the terms share
    const matrix_d X = random(38, 42, 5);
    matrix_d Y(38, 42);
    const auto limited = [&](std::int64_t limit) {
        return otimes::make_plan(Y, X * S, {.workspace_limit_bytes = limit, .threads = 1, .deterministic = true});
    };
    const otimes::plan free = limited(std::numeric_limits<std::int64_t>::max());
    free.run(Y, X * S);
    const matrix_d want = Y;
    std::int64_t least = 0;
    try {
        limited(0);
    } catch (const otimes::budget_error& refused) {
        least = refused.least_bytes();
    }
    REQUIRE(least > 0);
    CHECK(limited(least).slab_extent == 1);
    for (std::int64_t limit = least; limit < free.workspace_bytes; limit += 512) {
        CAPTURE(limit);
        Y = poisoned<matrix_d>(38, 42);
        limited(limit).run(Y, X * S);
        CHECK((Y == want));
    }
}

TEST_CASE_TEMPLATE("operators with matrices beside them are terms and factors", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(3, 3, 1);
    const auto B = random<matrix<Scalar>>(4, 4, 2);
    const auto K = kron(A, B);
    const auto w = random<matrix<Scalar>>(6, 12, 3);
    Eigen::SparseMatrix<Scalar> W = w.sparseView();
    const vector<Scalar> d = random<vector<Scalar>>(6, 1, 4);
    const auto C = random<matrix<Scalar>>(2, 2, 5);
    const auto D = random<matrix<Scalar>>(3, 3, 6);
    const auto L = kron(C, D);
    const matrix<Scalar> k = K.toDenseMatrix();
    const matrix<Scalar> l = L.toDenseMatrix();
    const matrix<Scalar> gp = w * k * w.transpose() + Scalar(0.5) * matrix<Scalar>::Identity(6, 6);
    const auto op = W * K * W.transpose() + Scalar(0.5) * otimes::identity();
    const matrix<Scalar> X = random<matrix<Scalar>>(6, 5, 7);
    const auto check = [&](const auto& S, const matrix<Scalar>& dense) {
        CHECK(S.rows() == dense.rows());
        CHECK(distance(evaluated(S * X), dense * X) < 1e-12 * dense.norm() * X.norm());
        CHECK(distance(evaluated(X.transpose() * S), X.transpose() * dense) < 1e-12 * dense.norm() * X.norm());
        CHECK(distance(S.toDenseMatrix(), dense) < 1e-12 * dense.norm());
    };
    check(op + L, matrix<Scalar>(gp + l));
    check(L - op, matrix<Scalar>(l - gp));
    check(op + 2.0 * op, evaluated(3.0 * gp));
    check(op - otimes::kron_sum(C, D), matrix<Scalar>(gp - otimes::kron_sum(C, D).toDenseMatrix()));
    check(op + d.asDiagonal(), matrix<Scalar>(gp + matrix<Scalar>(d.asDiagonal())));
    check((op + L) - 0.25 * otimes::identity(), evaluated(gp + l - 0.25 * matrix<Scalar>::Identity(6, 6)));
    check(W * (K + 2.0 * otimes::identity()) * W.transpose(),
          evaluated(w * (k + 2.0 * matrix<Scalar>::Identity(12, 12)) * w.transpose()));
    check(op * L, evaluated(gp * l));
    check(L * op, evaluated(l * gp));
    check((L + 3.0 * otimes::identity()) * (L - otimes::identity()),
          evaluated((l + 3.0 * matrix<Scalar>::Identity(6, 6)) * (l - matrix<Scalar>::Identity(6, 6))));
    // Borrowed on both sides: later changes of W are seen.
    const auto S = op + L;
    W.coeffRef(1, 2) = Scalar(5);
    matrix<Scalar> changed = w;
    changed(1, 2) = Scalar(5);
    check(S, evaluated(changed * k * changed.transpose() + Scalar(0.5) * matrix<Scalar>::Identity(6, 6) + l));
    CHECK_THROWS_AS((void)(op + K), otimes::shape_error);
}

TEST_CASE("unsigned multiples of an identity are subtracted as such") {
    const matrix_d A = random(2, 2, 60), B = random(3, 3, 61), X = random(6, 2, 62);
    const auto k = dense_kron(A, B);
    const auto shifted = plus(k, matrix_d(-2.0 * matrix_d::Identity(6, 6)));
    CHECK(support::close((kron(A, B) - 2U * otimes::identity()).toDenseMatrix(), shifted, 2));
    CHECK(support::close((kron(A, B) - otimes::identity() * std::size_t(2)).toDenseMatrix(), shifted, 2));
    CHECK(support::close((kron(A, B) + -(2U * otimes::identity(6))).toDenseMatrix(), shifted, 2));
    CHECK(support::close(matrix_d((2U * otimes::identity() - kron(A, B)) * X), scaled(-1.0, times(shifted, X)), 8));
}

TEST_CASE("sparse and diagonal matrices on either side of a sum") {
    const matrix_d A = random(2, 2, 63), B = random(3, 3, 64), X = random(4, 6, 65);
    const auto k = dense_kron(A, B);
    Eigen::SparseMatrix<double> W(6, 6);
    W.insert(0, 5) = 2.0;
    W.insert(3, 1) = -3.0;
    const matrix_d w = W;
    const vector_d d = random<vector_d>(6, 1, 66);
    const matrix_d dense_d = d.asDiagonal();
    const auto K = kron(A, B);
    CHECK(support::close((K + W).toDenseMatrix(), plus(k, w), 2));
    CHECK(support::close((W.transpose() + K).toDenseMatrix(), plus(k, matrix_d(w.transpose())), 2));
    CHECK(support::close(matrix_d(X * (K - W)), times(X, plus(k, matrix_d(-w))), 8));
    CHECK(support::close((W - K).toDenseMatrix(), plus(scaled(-1.0, k), w), 2));
    CHECK(support::close((d.asDiagonal() - K).toDenseMatrix(), plus(scaled(-1.0, k), dense_d), 2));
    const auto wk = times(w, k);
    CHECK(support::close((W * K + W).toDenseMatrix(), plus(wk, w), 8));
    CHECK(support::close((W - W * K).toDenseMatrix(), plus(scaled(-1.0, wk), w), 8));
    CHECK(support::close((d.asDiagonal() - W * K).toDenseMatrix(), plus(scaled(-1.0, wk), dense_d), 8));
}

TEST_CASE("an operator with matrices beside its kron: from the right, transposed, formed") {
    const matrix_d A = random(2, 2, 67), B = random(3, 3, 68), X = random(4, 6, 69);
    const auto k = dense_kron(A, B);
    Eigen::SparseMatrix<double> W(6, 6);
    W.insert(0, 5) = 2.0;
    W.insert(3, 1) = -3.0;
    const matrix_d w = W;
    const auto op = W * kron(A, B) * W.transpose() + 2.0 * otimes::identity();
    const auto formed = plus(times(w, times(k, matrix_d(w.transpose()))), matrix_d(2.0 * matrix_d::Identity(6, 6)));
    CHECK(support::close(op.toDenseMatrix(), formed, 40));
    CHECK(support::close(op.transpose().toDenseMatrix(), oracle::transpose(formed), 40));
    CHECK(support::close(op.adjoint().toDenseMatrix(), oracle::transpose(formed), 40));
    CHECK(support::close(op.conjugate().toDenseMatrix(), formed, 40));
    CHECK(support::close(matrix_d(X * op), times(X, formed), 46));
}

TEST_CASE("computed sparse matrices and blocks of them beside a sum are what they are, not their operands") {
    using scalar = std::complex<double>;
    const auto A = random<matrix<scalar>>(2, 2, 74), B = random<matrix<scalar>>(3, 3, 75);
    const auto w = random<matrix<scalar>>(6, 6, 76), X = random<matrix<scalar>>(6, 2, 77);
    Eigen::SparseMatrix<scalar> W = w.sparseView();
    const auto S = otimes::kron_sum(A, B);
    const matrix<scalar> s = S.toDenseMatrix();
    CHECK(distance((-W) * S * X, -(w * (s * X))) < 1e-12);
    CHECK(distance(W.adjoint() * S * X, w.adjoint() * (s * X)) < 1e-12);
    CHECK(distance(S * W.conjugate() * X, s * (w.conjugate() * X)) < 1e-12);
    CHECK(distance(X.transpose() * (W * kron(A, B) * W.adjoint()),
                   X.transpose() * w * kron(A, B).toDenseMatrix() * w.adjoint()) < 1e-12);
    CHECK(distance(S * W.middleCols(1, 2) * X.topRows(2), s * (w.middleCols(1, 2) * X.topRows(2))) < 1e-12);
    CHECK(distance(W.middleCols(0, 6) * S * X, w * (s * X)) < 1e-12);
}

TEST_CASE("matrices beside an operator that has matrices beside its kron; such an operator as a sum_expr") {
    const matrix_d A = random(2, 2, 66), B = random(3, 3, 67), w = random(4, 6, 68), v = random(4, 5, 69);
    const Eigen::SparseMatrix<double> W = w.sparseView(), V = v.sparseView();
    const vector_d d = random(4, 1, 70);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(4);
    P.indices() << 2, 0, 3, 1;
    const auto op = W * kron(A, B) * W.transpose() + 2.0 * otimes::identity();
    const matrix_d dense = w * (kron(A, B).toDenseMatrix() * w.transpose()) + 2.0 * matrix_d::Identity(4, 4);
    const matrix_d X = random(4, 3, 71), Z = random(5, 3, 72);
    CHECK(distance(op * V * Z, dense * (v * Z)) < 1e-12);
    CHECK(distance(V.transpose() * op * X, v.transpose() * (dense * X)) < 1e-12);
    CHECK(distance(op * d.asDiagonal() * X, dense * (d.asDiagonal() * X)) < 1e-12);
    CHECK(distance(d.asDiagonal() * op * X, d.asDiagonal() * (dense * X)) < 1e-12);
    CHECK(distance(op * P * X, dense * (P * X)) < 1e-12);
    CHECK(distance(P.transpose() * op * X, P.transpose() * (dense * X)) < 1e-12);
    CHECK(distance(V.transpose() * op * V * Z, v.transpose() * (dense * (v * Z))) < 1e-12);
    const matrix_d between = kron(A, B).toDenseMatrix();
    CHECK(distance(W * kron(A, B) * W.transpose() * P * X, w * (between * (w.transpose() * (P * X)))) < 1e-12);
    const Eigen::SparseMatrix<double> U = W.transpose();
    CHECK(distance(kron(A, B) * U * P * X, between * (w.transpose() * (P * X))) < 1e-12);
    const auto complex_v = random<vector<std::complex<double>>>(4, 1, 73);
    const matrix<std::complex<double>> complex_dense = dense.cast<std::complex<double>>();
    CHECK(distance(op * complex_v.asDiagonal() * matrix<std::complex<double>>(X.cast<std::complex<double>>()),
                   complex_dense * (complex_v.asDiagonal() * X.cast<std::complex<double>>())) < 1e-12);

    otimes::sum_expr<double> S = op;
    S += op;
    CHECK(distance(S * X, 2.0 * (dense * X)) < 1e-12);
    S = W * kron(A, B) * W.transpose();
    CHECK(distance(S * X, dense * X - 2.0 * X) < 1e-12);
    CHECK_THROWS_AS((void)(op * W.transpose()), otimes::shape_error);
}

TEST_CASE("sums whose number of terms or factors is known at run time") {
    const std::vector<matrix_d> F{random(2, 2, 70), random(3, 3, 71), random(2, 2, 72)};
    const matrix_d expected = otimes::kron_sum(F[0], F[1], F[2]).toDenseMatrix();
    CHECK(otimes::kron_sum(F).toDenseMatrix() == expected);
    CHECK(otimes::kron_sum(std::span<const matrix_d>(F)).toDenseMatrix() == expected);
    CHECK(otimes::kron_sum(std::vector<matrix_d>(F)).toDenseMatrix() == expected);  // owned
    CHECK(otimes::kron_sum(std::vector<matrix_d>{F[1]}).toDenseMatrix() == F[1]);
    CHECK(otimes::kron_sum(std::vector<matrix_d>()).toDenseMatrix() == matrix_d::Zero(1, 1));
    CHECK_THROWS_AS((void)otimes::kron_sum(std::vector<matrix_d>{F[0], random(2, 3, 73)}), otimes::shape_error);

    otimes::sum_expr<double> S = kron(F[0], F[1]);
    S += kron(F[2], F[1]);
    S -= 0.5 * otimes::identity();
    const matrix_d whole = S.toDenseMatrix();
    CHECK((whole - (kron(F[0], F[1]) + kron(F[2], F[1]) - 0.5 * otimes::identity()).toDenseMatrix()).norm() == 0);
    CHECK_THROWS_AS(S += kron(F[0]), otimes::shape_error);
    CHECK(S.toDenseMatrix() == whole);
}

TEST_CASE(
    "a complex matrix beside a real sum makes it complex; a kron of permutations takes the scalar of the diagonal") {
    using scalar = std::complex<double>;
    const matrix_d A = random(2, 2, 60), B = random(3, 3, 61);
    const auto x = random<vector<scalar>>(6, 1, 62), d = random<vector<scalar>>(6, 1, 63);
    const auto w = random<matrix<scalar>>(4, 6, 64);
    const Eigen::SparseMatrix<scalar> W = w.sparseView();
    const auto S = kron(A, B) + 2 * otimes::identity();
    const matrix<scalar> s = S.toDenseMatrix().cast<scalar>();
    CHECK(distance(W * S * x, w * (s * x)) < 1e-13);
    CHECK(distance((S * W.transpose()) * vector<scalar>(w * x), s * (w.transpose() * (w * x))) < 1e-12);
    CHECK(distance((S + d.asDiagonal()) * x, s * x + d.cwiseProduct(x)) < 1e-13);
    const matrix<scalar> k = kron(A, B).toDenseMatrix().cast<scalar>();
    CHECK(distance(W * kron(A, B) * x, w * (k * x)) < 1e-13);
    CHECK(distance(W * kron(A, B) * W.adjoint() * vector<scalar>(w * x), w * (k * (w.adjoint() * (w * x)))) < 1e-12);
    CHECK(distance(kron(A, B) * d.asDiagonal() * x, k * d.cwiseProduct(x)) < 1e-13);
    const matrix_d v = random(4, 6, 65);
    const Eigen::SparseMatrix<double> V = v.sparseView();
    const matrix<scalar> vc = v.cast<scalar>();
    const vector<scalar> vx = vc * x;
    CHECK(distance((V * kron(A, B) * V.transpose() + 2 * otimes::identity()) * vx,
                   vc * (k * (vc.transpose() * vx)) + 2.0 * vx) < 1e-12);
    CHECK(distance(vx.transpose() * (V * kron(A, B)), vx.transpose() * vc * k) < 1e-12);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 1, 2, 0;
    const Eigen::VectorXf f = d.real().cast<float>(), y = x.imag().cast<float>();
    const Eigen::VectorXf moved = kron(otimes::identity(2), P) * y;
    CHECK(((kron(otimes::identity(2), P) + f.asDiagonal()) * y - moved - f.cwiseProduct(y)).norm() < 1e-6);
}

TEST_CASE("kron_sum takes what kron takes: references, multiples of identities") {
    matrix_d A = random(2, 2, 301);
    const matrix_d B = random(3, 3, 302);
    const auto want = [&] { return matrix_d(otimes::kron_sum(A, B).toDenseMatrix()); };
    const auto of_references = otimes::kron_sum(std::cref(A), std::cref(B));
    const auto of_list = otimes::kron_sum(std::vector<std::reference_wrapper<const matrix_d>>{A, B});
    const std::vector<std::reference_wrapper<const matrix_d>> list{A, B};
    CHECK(support::close(of_references.toDenseMatrix(), want(), 4));
    CHECK(support::close(of_list.toDenseMatrix(), want(), 4));
    CHECK(support::close(otimes::kron_sum(list).toDenseMatrix(), want(), 4));
    A *= 3.0;  // referred to, as in kron
    CHECK(support::close(of_references.toDenseMatrix(), want(), 4));
    CHECK(support::close(of_list.toDenseMatrix(), want(), 4));
    const matrix_d twice = 2.0 * matrix_d::Identity(4, 4);
    CHECK(support::close(otimes::kron_sum(2.0 * otimes::identity(4), B).toDenseMatrix(),
                         matrix_d(otimes::kron_sum(twice, B).toDenseMatrix()), 4));
    CHECK(support::close(otimes::kron_sum(B, 2 * otimes::identity(4), std::ref(A)).toDenseMatrix(),
                         matrix_d(otimes::kron_sum(B, twice, A).toDenseMatrix()), 4));
    CHECK_THROWS_AS((void)otimes::kron_sum(B, 2.0 * otimes::identity()), otimes::shape_error);
    const matrix_d tall = random(3, 2, 303);
    CHECK_THROWS_AS((void)otimes::kron_sum(std::cref(tall), B), otimes::shape_error);
}

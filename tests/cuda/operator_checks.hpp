// SPDX-License-Identifier: MIT
// Sums of Kronecker products in device memory against dense ones: on a GPU, and on an executor that pretends to be one.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>
#include <otimes/plan/serialize.hpp>

#include "cuda/device_support.hpp"

namespace device_test {

template <class Scalar>
void check_operators() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::identity;
    using otimes::kron;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const auto eye = [](std::int64_t n) { return host(host::Identity(n, n)); };
    const host a = random(3, 3, 1), b = random(4, 4, 2), c = random(2, 2, 3), m = random(3, 3, 4), n = random(4, 4, 5),
               X = random(7, 24, 6), Z = random(24, 5, 7);
    const DeviceMatrix<Scalar> A(a), B(b), C(c), M(m), N(n), dZ(Z);
    const DeviceMatrix<Scalar, 1> dX(X);
    DeviceMatrix<Scalar, 1> dY(7, 24);
    DeviceMatrix<Scalar> dT;
    const shapes size{7, {30}, {24}};  // for the tolerance
    const auto check = [&](const auto& S, const host& dense) {
        REQUIRE(S.rows() == dense.rows());
        REQUIRE(S.cols() == dense.cols());
        poison(dY);
        dY = dX * S;
        CHECK(agrees(dY.to_host(), host(X * dense), size));
        dY -= 3 * dX * S;
        CHECK(agrees(dY.to_host(), host(Scalar(-2) * X * dense), size));
        dT = S * dZ;
        CHECK(agrees(dT.to_host(), host(dense * Z), size));
        dT = S.adjoint() * dZ;
        CHECK(agrees(dT.to_host(), host(dense.adjoint() * Z), size));
    };
    const auto dense = [](const host& f, const host& g, const host& h) { return dense_kron<Scalar>({f, g, h}); };
    const host sum = dense(a, n, c) + dense(m, b, c), one = eye(24);
    const host laplacian = dense(a, eye(4), eye(2)) + dense(eye(3), b, eye(2)) + dense(eye(3), eye(4), c);
    const auto eigen_identity = host::Identity(24, 24);
    const auto S = kron(A, N, C) + kron(M, B, C);
    CHECK(S.term_count() == 2);
    check(S, sum);
    check(2 * S - kron(A, B, C) / 2, host(Scalar(2) * sum - dense(a, b, c) / Scalar(2)));
    check(-S + 0.25 * identity(), host(one * Scalar(0.25) - sum));
    check(kron(A, B, C) - identity(), host(dense(a, b, c) - one));
    check(3 * identity() - S, host(Scalar(3) * one - sum));
    check(S + Scalar(3) * eigen_identity, host(sum + Scalar(3) * one));  // Eigen's identity is not formed
    check(eigen_identity * Scalar(2) - kron(A, B, C), host(Scalar(2) * one - dense(a, b, c)));
    check(kron(A, B, C) - eigen_identity, host(dense(a, b, c) - one));
    CHECK_THROWS_AS(static_cast<void>(S + host::Identity(23, 23)), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(S - Scalar(2) * host::Identity(24, 23)), otimes::shape_error);
    check(otimes::kron_sum(A, B, C), laplacian);
    check(otimes::kron_sum(A, B, C) + 2 * identity() + kron(A, B, C),
          host(laplacian + Scalar(2) * one + dense(a, b, c)));
    check(otimes::kron_sum(A, identity(4), c), host(dense(a, eye(4), eye(2)) + one + dense(eye(3), eye(4), c)));
    // Structure in host memory is written out when the kron is made; multiples of identities are factors.
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> d = random(3, 1, 20);
    Eigen::PermutationMatrix<Eigen::Dynamic> turn(4);
    turn.indices() << 2, 0, 3, 1;
    Eigen::SparseMatrix<Scalar> few(4, 4);
    few.insert(0, 2) = Scalar(3);
    few.insert(3, 1) = b(1, 2);
    const auto matrix_of = [](const auto& structured) { return host(structured); };
    const auto diagonal = kron(d.asDiagonal(), B, C);
    check(diagonal, dense(matrix_of(d.asDiagonal()), b, c));
    d(0) += Scalar(1);
    CHECK(diagonal.node().factors()[0].is_dense());
    check(kron(A, turn, C), dense(a, host(turn.toDenseMatrix().template cast<Scalar>()), c));
    check(kron(A, few, 2.0 * identity(2)), host(Scalar(2) * dense(a, matrix_of(few), eye(2))));
    check(kron(a.template triangularView<Eigen::UnitUpper>(), B, C.transpose()),
          dense(matrix_of(a.template triangularView<Eigen::UnitUpper>()), b, host(c.transpose())));
    check(kron(A, few.transpose(), c.template selfadjointView<Eigen::Lower>()),
          dense(a, matrix_of(few.transpose()), host(c.template selfadjointView<Eigen::Lower>() * eye(c.rows()))));
    const host u1 = random(3, 1, 21), v1 = random(3, 1, 22);
    dY = dX * kron(otimes::low_rank(u1, v1), b, c);  // all in host memory
    CHECK(agrees(dY.to_host(), host(X * dense(host(u1 * v1.transpose()), b, c)), size));
    const Eigen::SparseMatrix<Scalar> long_one(257, 257);
    CHECK_THROWS_WITH_AS(static_cast<void>(kron(A, long_one)),
                         "otimes: factor 2, 257 x 257, has structure. In device memory and over several ranks such "
                         "factors are written out as dense ones, up to 256 x 256; evaluate this product by cpu(), or "
                         "make it of smaller factors.",
                         otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(kron(A, 2.0 * identity() * 1)), otimes::shape_error);
    // Y is an operand; a kron on the other side; rectangular terms.
    dY = dX;
    dY = dY * S;
    CHECK(agrees(dY.to_host(), host(X * sum), size));
    const shapes wide_sum{7, {900}, {24}};
    const host l = random(6, 7, 8), F = random(24, 9, 9), G = random(24, 9, 10);
    const DeviceMatrix<Scalar> L(l), dF(F), dG(G);
    dT = kron(L) * dX * (S - identity());
    CHECK(agrees(dT.to_host(), host(l * X * (sum - one)), size));
    // A sum as the X of another product, from either side: it has one value, in memory of its own.
    const host sums = X * sum + Scalar(2) * X, left_sums = Z - sum * Z;
    poison(dY);
    dY = (dX * S + 2 * dX) * kron(A, B, C);
    CHECK(agrees(dY.to_host(), host(sums * dense(a, b, c)), wide_sum));
    dY += 3 * ((dX * S + 2 * dX) * kron(a, b, c));  // factors in host memory
    CHECK(agrees(dY.to_host(), host(Scalar(4) * sums * dense(a, b, c)), wide_sum));
    dY = (dX * S + 2 * dX) * (S - identity());
    CHECK(agrees(dY.to_host(), host(sums * (sum - one)), wide_sum));
    dT = kron(A, B, C) * (dZ - S * dZ);
    CHECK(agrees(dT.to_host(), host(dense(a, b, c) * left_sums), wide_sum));
    dT = ((2 * S) * (dZ - S * dZ)).transpose();
    CHECK(agrees(dT.to_host(), host((Scalar(2) * sum * left_sums).transpose()), wide_sum));
    CHECK_THROWS_AS(static_cast<void>((dX * S - dX) * kron(A, B)), otimes::shape_error);
    dT = dX * (kron(dF) - kron(dG));
    CHECK(agrees(dT.to_host(), host(X * (F - G)), size));

    // Products of krons: factor by factor where that costs less, else one after the other; from both sides.
    const host p = random(3, 5, 11), q = random(4, 2, 12), r = random(5, 2, 13), t = random(2, 7, 14),
               u = random(3, 1, 15), v = random(1, 2, 16);
    const DeviceMatrix<Scalar> P(p), Q(q), T(t), U(u), V(v);
    const DeviceMatrix<Scalar, 1> R(r);
    const host full = dense(p, q, c) * dense(r, t, c);
    const shapes wide{7, {120}, {28}};
    dY = 2 * dX * kron(P, Q, C) * kron(R, T, C);
    CHECK(agrees(host(dY.to_host()), host(Scalar(2) * X * full), wide));
    dY = dX * ((2 * kron(P, Q, C)) * (kron(R, T, C) / 4));
    CHECK(agrees(host(dY.to_host()), host(X * full / Scalar(2)), wide));
    dT = kron(R, T, C).adjoint() * (kron(P, Q, C).adjoint() * dZ);
    CHECK(agrees(dT.to_host(), host(full.adjoint() * Z), wide));
    dT = dX * kron(A, identity(4), C).conjugate() * kron(identity(3), B.transpose(), C);
    CHECK(
        agrees(dT.to_host(), host(X * dense(host(a.conjugate()), host(b.transpose()), host(c.conjugate() * c))), wide));
    dY = dX * kron(U, B, C) * kron(V, N, C);  // 3 -> 1 -> 2: one after the other
    CHECK(agrees(host(dY.to_host()), host(X * dense(host(u * v), host(b * n), host(c * c))), wide));
    dY = dX * kron(A, B, C) * kron(dF);  // other splits
    CHECK(agrees(host(dY.to_host()), host(X * dense(a, b, c) * F), wide));
    dY = dX * kron(A, B, C) * kron(M, n, C);  // a factor in host memory
    CHECK(agrees(host(dY.to_host()), host(X * dense(host(a * m), host(b * n), host(c * c))), wide));
    CHECK_THROWS_WITH_AS(static_cast<void>(kron(P, Q) * kron(A, C)),
                         "otimes: K1 * K2 in device memory: K1 is 12 x 10, K2 is 6 x 6; the columns of K1 must equal "
                         "the rows of K2.",
                         otimes::shape_error);
    CHECK_THROWS_WITH_AS(
        static_cast<void>(kron(A, B) * kron(B, A)),
        "otimes: K1 * K2 in device memory is formed factor by factor; K1 is a kron of 3 x 3, 4 x 4, K2 "
        "a kron of 4 x 4, 3 x 3. Give them factors that match, all in device memory, or multiply one "
        "after the other: (dX * K1) * K2.",
        otimes::unsupported_error);
}

// Sums of long factors, whose terms share products with each other: 3 instead of 4 here, from either side, and what is refused.
template <class Scalar>
void check_shared_sums() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::kron;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const host a = random(70, 90, 1), m = random(70, 90, 2), n = random(80, 66, 3), b = random(80, 66, 4),
               X = random(5, 70 * 80, 5), W = random(3, 70 * 80, 6);
    const DeviceMatrix<Scalar> A(a), M(m), N(n), B(b), dW(W);
    const DeviceMatrix<Scalar, 1> dX(X);
    const shapes size{5, {70, 80}, {90, 66}};
    using factors = std::vector<host>;
    const auto image = [&](const host& x, const host& last) {
        return host(expected_right(x, factors{a, last}) - Scalar(2) * expected_right(x, factors{m, last}));
    };
    const auto S = kron(A, N) - 2 * kron(M, N);
    const host wanted = image(X, n);
    DeviceMatrix<Scalar, 1> dY(5, 90 * 66);
    poison(dY);
    dY = dX * S;
    CHECK(agrees(host(dY.to_host()), wanted, size));
    dY -= 3 * (dX * S);
    CHECK(agrees(host(dY.to_host()), host(Scalar(-2) * wanted), size));
    DeviceMatrix<Scalar> dT;
    dT = S.transpose() * dX.transpose();
    CHECK(agrees(dT.to_host(), host(wanted.transpose()), size));
    // Terms of another X, and a matrix: shared where X is the same.
    const host V = random(5, 70 * 80, 7), Z = random(5, 90 * 66, 8);
    const DeviceMatrix<Scalar> dV(V), dZ(Z);
    const auto mixed = dX * kron(A, N) - dV * kron(M, N) + dZ / 2 - dX * (2 * kron(M, N));
    CHECK(otimes::make_plan(mixed).source.steps.size() == 3 + 2 + 1);
    dT = mixed;
    CHECK(agrees(dT.to_host(), host(wanted - expected_right(V, factors{m, n}) + Z / Scalar(2)), size));
    // The plan is that of the evaluation, and holds for other operands of the same form.
    const otimes::plan p = otimes::make_plan<1>(dX * S);
    CHECK(p.source.rewritten.holds(otimes::rewrite::terms_shared));
    CHECK(p.source.steps.size() == 3);
    CHECK(otimes::explain<1>(dX * S).find("rewritten by terms-shared") != std::string::npos);
    poison(dY);
    p.run(dY, dX * (kron(A, B) - 2 * kron(M, B)));
    CHECK(agrees(host(dY.to_host()), image(X, b), size));
    poison(dY);
    otimes::plan_from_text(otimes::to_text(p)).run(dY, dX * S);  // a plan that was written says nothing of rules
    CHECK(agrees(host(dY.to_host()), wanted, size));
    // Factors in host memory have bindings of their own: that terms share one does not show in the program of the terms one by one.
    dY = dX * (kron(A, n) - 2 * kron(M, n));
    CHECK(agrees(host(dY.to_host()), wanted, size));
    dY = dX * (kron(A, n) - 2 * kron(M, b));
    CHECK(agrees(host(dY.to_host()),
                 host(expected_right(X, factors{a, n}) - Scalar(2) * expected_right(X, factors{m, b})), size));
    CHECK(otimes::make_plan<1>(dX * (kron(A, n) - 2 * kron(M, n))).source.steps.size() == 3);
    const otimes::program nothing_shared = otimes::make_plan<1>(dX * (kron(A, n) - 2 * kron(M, b))).source;
    CHECK(nothing_shared.steps.size() == 4);
    CHECK(nothing_shared.at(nothing_shared.steps[0].in).binding ==
          nothing_shared.at(nothing_shared.steps[2].in).binding);
    const host before(dY.to_host());
    DeviceMatrix<Scalar, 1> few(3, 90 * 66);
    const auto refused = doctest::Contains("the plan was made for another expression");
    CHECK_THROWS_WITH_AS(p.run(few, dW * S), refused, otimes::unsupported_error);
    CHECK_THROWS_WITH_AS(p.run(dY, dX * (kron(A, N) + kron(M, B))), refused, otimes::unsupported_error);
    CHECK_THROWS_WITH_AS(p.run(dY, dX * S + dY), doctest::Contains("the destination overlaps"), otimes::alias_error);
    CHECK(host(dY.to_host()) == before);
    // Small factors stay one by one, since one launch computes several of their terms.
    const DeviceMatrix<Scalar> F(random(8, 8, 9)), G(random(8, 8, 10)), dx(random(64, 512, 11));
    const auto three = dx * (kron(F, G, G) + kron(G, F, G) + kron(G, G, F));
    CHECK(otimes::make_plan(three).source.steps.size() == 9);
    // So do long ones where the workspace limit has no room for what they share.
    const DeviceMatrix<Scalar> P(random(70, 70, 12)), Q(random(70, 70, 13));
    const DeviceMatrix<Scalar, 1> tall(2, 70 * 70 * 70);
    const auto large = tall * (kron(P, Q, Q) + kron(Q, P, Q) + kron(Q, Q, P));
    CHECK(otimes::make_plan<1>(large).source.steps.size() == 7);
    std::int64_t least = 0;
    try {
        static_cast<void>(otimes::make_plan<1>(large, {.workspace_limit_bytes = 1}));
    } catch (const otimes::budget_error& e) {
        least = e.least_bytes();
    }
    const otimes::plan tight = otimes::make_plan<1>(large, {.workspace_limit_bytes = least});
    CHECK(tight.workspace_bytes <= least);
    CHECK(tight.source.steps.size() == 9);
    // And where the bits of a row must not depend on what is quicker for so many rows.
    CHECK(otimes::make_plan<1>(large, {.deterministic = true}).source.steps.size() == 9);
    CHECK(otimes::make_plan<1>(dX * S, {.deterministic = true}).source.steps.size() == 4);
}

// Numbers from products against sums over their entries, in double by plain loops.
template <class Scalar>
void check_reductions() {
    using host = matrix<Scalar, 0>;
    using wide = typename wider<Scalar>::type;
    using otimes::DeviceMatrix;
    using otimes::dot;
    using otimes::identity;
    using otimes::kron;
    const auto sum_of = [](const host& x, const host& y) {
        wide sum(0);
        for (Eigen::Index i = 0; i < y.rows(); ++i)
            for (Eigen::Index j = 0; j < y.cols(); ++j)
                sum += otimes::detail::conjugate_of(wide(x(i, j))) * wide(y(i, j));
        return sum;
    };
    // Of sums of positive and negative terms: relative to the terms.
    const auto close = [&](Scalar got, const host& x, const host& y, std::int64_t length) {
        const double size = static_cast<double>(x.norm()) * static_cast<double>(y.norm());
        const double distance = std::abs(wide(got) - sum_of(x, y));
        const bool good =
            distance <= static_cast<double>(support::tolerance<Scalar>(static_cast<std::size_t>(length))) * size;
        if (!good) MESSAGE("distance " << distance << " of " << size);
        return good;
    };
    for (const shapes& s : {shapes{9, {3, 5, 2}, {4, 3, 7}}, shapes{1, {4, 3, 5}, {2, 3, 6}}, shapes{3, {6, 4}, {5, 1}},
                            shapes{130, {8, 8, 8}, {8, 8, 8}}, shapes{17, {5}, {7}}, shapes{2, {24, 40}, {16, 24}}}) {
        CAPTURE(s.text());
        const auto f = random_factors<Scalar>(s);
        const host X = random_matrix<host>(s.rows, s.inputs(), 1), V = random_matrix<host>(s.rows, s.outputs(), 2),
                   Y = expected_right(X, f);
        std::vector<DeviceMatrix<Scalar>> dF(f.begin(), f.end());
        const auto K = kron(dF);
        const DeviceMatrix<Scalar> dX(X), dV(V), dXt(host(X.transpose())), dVt(host(V.transpose()));
        const DeviceMatrix<Scalar, 1> rX(X), rV(V), rXt(host(X.transpose()));
        const std::int64_t n = 8 * s.inputs();
        CHECK(close(dot(dV, dX * K), V, Y, n));
        CHECK(close(dot(rV, rX * K), V, Y, n));
        CHECK(close(dot(dV, rX * K), V, Y, n));
        CHECK(close(dot(2 * dX * K, 3 * rV), host(Scalar(2) * Y), host(Scalar(3) * V), n));
        CHECK(close(dVt.dot(K.transpose() * dXt), V, Y, n));
        CHECK(close(dot(rV.transpose(), -(K.transpose() * rXt)), V, host(-Y), n));
        CHECK(close(dot(dV.conjugate(), (dX * K).conjugate()), host(V.conjugate()), host(Y.conjugate()), n));
        CHECK(close(dot(dV, dX * K - 2 * dV), V, host(Y - Scalar(2) * V), n));
        const Scalar again = dot(rV, rX * K);
        CHECK(again == dot(rV, rX * K));
        CHECK(close(Scalar((dX * K).squaredNorm()), Y, Y, n));
        CHECK(close(Scalar((K.adjoint() * (2 * dXt.conjugate())).squaredNorm()), host(Scalar(2) * Y),
                    host(Scalar(2) * Y), n));
        CHECK(std::abs(static_cast<double>((rX * K).norm()) - Y.norm()) <=
              static_cast<double>(support::tolerance<Scalar>(static_cast<std::size_t>(n))) * Y.norm());
        CHECK(close(Scalar(otimes::squared_norm(2 * dV)), host(Scalar(2) * V), host(Scalar(2) * V), 8));
        CHECK(close(dot(dV, 2 * rV), V, host(Scalar(2) * V), 8));
    }
    // From both sides, an identity first, host factors, quadratic forms; a single column.
    const host a = random_matrix<host>(4, 4, 3), b = random_matrix<host>(3, 3, 4), x = random_matrix<host>(12, 5, 5),
               l = random_matrix<host>(2, 5, 6), column = random_matrix<host>(12, 1, 7),
               long_column = random_matrix<host>(60, 1, 8);
    const DeviceMatrix<Scalar> A(a), B(b), L(l), dx(x), dc(column), dl(long_column);
    const host k = dense_kron<Scalar>({a, b}), kx = k * x, kxl = kx * l.transpose();
    const DeviceMatrix<Scalar> dkxl(kxl);
    CHECK(close(dot(dkxl, kron(A, B) * dx * kron(L.transpose())), kxl, kxl, 100));
    CHECK(close(otimes::quadratic_trace(dx, kron(A, B)), x, kx, 100));
    CHECK(close(otimes::quadratic_trace(dx, kron(a, b)), x, kx, 100));
    CHECK(close(otimes::quadratic_trace(dx, kron(A, B) + 2 * identity()), x, host(kx + Scalar(2) * x), 100));
    CHECK(close(otimes::quadratic_trace(2 * dx, kron(A, B)), host(Scalar(2) * x), host(Scalar(2) * kx), 100));
    Eigen::SparseMatrix<Scalar> few(12, 12);
    few.insert(2, 7) = Scalar(3);
    few.insert(11, 0) = x(1, 2);
    const otimes::DeviceSparse<Scalar> W(few);
    const host w(few);
    CHECK(close(otimes::quadratic_trace(dx, W * kron(A, B)), x, host(w * kx), 100));
    // Sparse matrices and selections times a sum.
    const std::vector<int> seen{7, 0, 7};
    const host total = kx + Scalar(2) * x;
    const DeviceMatrix<Scalar> dw = W * (kron(A, B) * dx + 2 * dx);
    CHECK(agrees(dw.to_host(), host(w * total), shapes{5, {200}, {12}}));
    const DeviceMatrix<Scalar> ds = kron(A, B)(seen, Eigen::indexing::all) * (kron(A, B) * dx + 2 * dx);
    const host selected = k * total;
    for (Eigen::Index i = 0; i < 3; ++i) {
        const host row = selected.row(seen[static_cast<std::size_t>(i)]);
        CHECK(agrees(host(ds.to_host().row(i)), row, shapes{1, {200}, {5}}));
    }
    const DeviceMatrix<Scalar> dxt(host(x.transpose()));
    CHECK(close(otimes::quadratic_trace(dxt.transpose(), kron(A, B)), x, kx, 100));
    CHECK(close(dot(dc, kron(A, B) * dc), column, host(k * column), 100));
    const host eye = dense_kron<Scalar>({host(host::Identity(5, 5)), a, b});
    CHECK(close(dot(dl, kron(identity(5), A, B) * dl), long_column, host(eye * long_column), 100));
    const DeviceMatrix<Scalar> none(host(0, 12)), padded(random_matrix<host>(20, 5, 9));
    CHECK((none * kron(A, B)).squaredNorm() == 0);
    const auto view = otimes::device_map<Scalar>(padded.data() + 1, 12, 5, 20);
    const host inside = padded.to_host().block(1, 0, 12, 5);
    CHECK(close(view.dot(kron(A, B) * view), inside, host(k * inside), 100));
    CHECK_THROWS_WITH_AS(static_cast<void>(dot(dc, kron(A, B) * dx)),
                         "otimes: dot(x, y) in device memory: x is 12 x 1, y is 12 x 5. They must have equal shapes.",
                         otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(dot(kron(A, B) * dx, kron(A, B) * dx)), otimes::unsupported_error);
}

}  // namespace device_test

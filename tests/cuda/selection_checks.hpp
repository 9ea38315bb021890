// SPDX-License-Identifier: MIT
// Selected rows and columns and norms of sums in device memory against plain loops: on a GPU, and on executors that pretend to be one.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <sstream>
#include <vector>

#include <otimes/otimes.hpp>

#include "cuda/device_support.hpp"
#include "support/counting_new.hpp"

namespace device_test {

// K(rows, cols) from either side, by each of the three ways, with indices that repeat and in any order, none and one.
template <class Scalar>
void check_selected() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::kron;
    using list = std::vector<std::int64_t>;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const host a = random(3, 4, 1), b = random(5, 2, 2), c = random(2, 3, 3);  // K is 30 x 24
    const DeviceMatrix<Scalar> A(a), B(b), C(c);
    const host k = dense_kron<Scalar>({a, b, c});
    const auto K = kron(A, B, C);
    const shapes size{7, {30}, {24}};
    const auto entries = [](const host& of, const list& rows, const list& cols) {
        host m(rows.size(), cols.size());
        for (Eigen::Index i = 0; i < m.rows(); ++i)
            for (Eigen::Index j = 0; j < m.cols(); ++j) m(i, j) = of(rows[i], cols[j]);
        return m;
    };
    const auto run = [&](const auto& S, const host& dense) {
        REQUIRE(S.rows() == dense.rows());
        REQUIRE(S.cols() == dense.cols());
        const host X = random(dense.cols(), 5, 4), Z = random(3, dense.rows(), 5);
        const DeviceMatrix<Scalar> dX(X);
        const DeviceMatrix<Scalar, 1> rX(X), rZ(Z);
        DeviceMatrix<Scalar> dY(dense.rows(), 5), dW(3, dense.cols());
        const host Y = dense * X;
        poison(dY);
        dY = S * dX;
        CHECK(agrees(dY.to_host(), Y, size));
        dY += 2 * (S * rX);
        CHECK(agrees(dY.to_host(), host(Scalar(3) * Y), size));
        dY.noalias() -= (3 * S) * (2 * dX);
        CHECK(agrees(dY.to_host(), host(Scalar(-3) * Y), size));
        poison(dW);
        dW = rZ * S;
        CHECK(agrees(dW.to_host(), host(Z * dense), size));
        dW = -(DeviceMatrix<Scalar>(Z) * S.conjugate());
        CHECK(agrees(dW.to_host(), host(-Z * dense.conjugate()), size));
        const host back = dense.adjoint() * host(Z.transpose());
        CHECK(agrees((S.adjoint() * rZ.transpose()).to_host(), back, size));
        if (dense.size() > 0) {
            const Scalar dot = otimes::dot(dY, S * dX);
            CHECK(std::abs(dot - Scalar(-3) * Y.squaredNorm()) <= 1e-4 * Y.squaredNorm());
        }
    };
    const auto up_to = [](std::int64_t end) {
        list l;
        for (std::int64_t i = 0; i < end; ++i) l.push_back(i);
        return l;
    };
    const list all_rows = up_to(30), all_cols = up_to(24);
    const auto every = Eigen::indexing::all;
    static_assert(otimes::device::is_all<decltype(Eigen::indexing::all)>);
    static_assert(!otimes::device::is_all<decltype(Eigen::indexing::last)>);  // one row
    static_assert(!otimes::device::is_all<decltype(Eigen::fix<2>)>);
    const list few{17, 0, 29, 17}, many{3, 28, 5, 5, 11, 0, 29, 14, 13, 12, 22, 21, 9, 8, 7, 1, 2, 4, 6};
    const list columns{23, 1, 1, 9}, most{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 23, 21, 19, 17, 15, 5};
    for (const list& rows : {few, many, list{29}, list{}})
        for (const list& cols : {columns, most, list{0}}) run(K(rows, cols), entries(k, rows, cols));
    for (const list& rows : {few, many}) run(K(rows, every), entries(k, rows, all_cols));
    for (const list& cols : {columns, most}) run(K(every, cols), entries(k, all_rows, cols));
    run(selected_rows(K, {4, 4}), entries(k, {4, 4}, all_cols));
    run(selected_columns(2 * K, {5}), host(Scalar(2) * entries(k, all_rows, {5})));
    run(selected(K.transpose(), {5, 7}, {29, 1}), entries(host(k.transpose()), {5, 7}, {29, 1}));
    run(K(2, std::array<int, 3>{1, 0, 23}), entries(k, {2}, {1, 0, 23}));
    run(selected(K, std::array<int, 2>{2, 0}, list{1, 0, 23}), entries(k, {2, 0}, {1, 0, 23}));
    run(selected_rows(K, std::array<int, 2>{4, 4}), entries(k, {4, 4}, all_cols));
    run(selected_columns(K, 5), entries(k, all_rows, {5}));
    run(K(few, columns) / Scalar(2), host(entries(k, few, columns) / Scalar(2)));
    {  // as in host memory: ranges, counted from the end, in braces
        using namespace Eigen::indexing;
        run(K.block(3, 5, 4, 7), host(k.block(3, 5, 4, 7)));
        run(K.topRows(3), host(k.topRows(3)));
        run(K.middleRows(7, 2), host(k.middleRows(7, 2)));
        run(K.bottomRows(2), host(k.bottomRows(2)));
        run(K.leftCols(3), host(k.leftCols(3)));
        run(K.middleCols(9, 4), host(k.middleCols(9, 4)));
        run(K.rightCols(1), host(k.rightCols(1)));
        run(K.block(0, 0, 30, 24), k);
        run(K(seqN(2, 3, 4), lastN(2)), host(k(seqN(2, 3, 4), lastN(2))));
        run(K(last, seq(last, 0, -5)), host(k(list{29}, seq(last, 0, -5))));
        run(K(all, last - 1), host(k.col(22)));
        run(K({5, 0}, {7, 7, 1}), entries(k, {5, 0}, {7, 7, 1}));
        run(K({29, 0}, all), entries(k, {29, 0}, all_cols));
        run(selected_rows(K, lastN(2)), host(k.bottomRows(2)));
        CHECK_THROWS_AS(static_cast<void>(K.block(3, 5, 28, 1)), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(K.bottomRows(31)), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(K.leftCols(-1)), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(K(seqN(0, -2), all)), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(K(all, seqN(0, std::int64_t(1) << 40))), otimes::shape_error);
    }
    // Each way was taken; an identity and a sparse factor leave one.
    using otimes::device::selecting;
    const host wide = random(40, 40, 6);
    const DeviceMatrix<Scalar> W(wide);
    const auto large = kron(W, W);
    CHECK(selected_rows(large, {1599, 3}).way() == selecting::by_rows);
    CHECK(selected_columns(large, {1599, 3}).way() == selecting::by_columns);
    CHECK(selected(large, {1, 2, 3, 4, 5}, {1599, 3}).way() == selecting::by_columns);
    CHECK(K(many, most).way() == selecting::whole);
    run(kron(A, otimes::identity(5))(list{14, 3}, list{19, 0, 2}),
        entries(dense_kron<Scalar>({a, host(host::Identity(5, 5))}), {14, 3}, {19, 0, 2}));
    run(large(list{1599, 3}, list{40, 1, 1, 77}), entries(dense_kron<Scalar>({wide, wide}), {1599, 3}, {40, 1, 1, 77}));
    run(large(list{1, 2, 3, 4, 5}, list{7, 1599}),
        entries(dense_kron<Scalar>({wide, wide}), {1, 2, 3, 4, 5}, {7, 1599}));
    // Factors in host memory are copied; an identity stays one, other structure is written out.
    const auto H = kron(a, b, c);
    for (const list& cols : {columns, most}) run(H(few, cols), entries(k, few, cols));
    run(H(few, every), entries(k, few, all_cols));
    run(H(every, columns), entries(k, all_rows, columns));
    run(kron(a, otimes::identity(5))(list{14, 3}, list{19, 0, 2}),
        entries(dense_kron<Scalar>({a, host(host::Identity(5, 5))}), {14, 3}, {19, 0, 2}));
    Eigen::PermutationMatrix<Eigen::Dynamic> turn(2);
    turn.indices() << 1, 0;
    run(kron(turn, c)(list{0, 3}, list{5, 1}),
        entries(dense_kron<Scalar>({host(turn.toDenseMatrix().template cast<Scalar>()), c}), {0, 3}, {5, 1}));
    run(otimes::face_split(host(a.topRows(2)), c), otimes::face_split(host(a.topRows(2)), c).toDenseMatrix());
    if constexpr (support::is_complex<Scalar>) {
        const auto real = random_matrix<matrix<support::real_t<Scalar>, 0>>(4, 3, 10);
        const DeviceMatrix<Scalar> dX(random(2, 2, 11));
        CHECK(agrees((kron(real)(list{3, 1}, list{0, 2}) * dX).to_host(),
                     host(entries(real.template cast<Scalar>(), {3, 1}, {0, 2}) * dX.to_host()), size));
    }
    // A factor that changes is seen, whichever way.
    DeviceMatrix<Scalar> M(wide);
    const auto changing = kron(M, W);
    const auto picked = selected_rows(changing, {1599, 3});
    M = host(Scalar(2) * wide);
    run(picked, entries(dense_kron<Scalar>({host(Scalar(2) * wide), wide}), {1599, 3}, up_to(1600)));
    {
        const host X = random(24, 4, 7), Z = random(2, 4, 9);
        const DeviceMatrix<Scalar> dX(X), dZ(Z);
        DeviceMatrix<Scalar> dY(3, 4);
        poison(dY);
        // [device-selected]
        const std::vector<int> seen{3, 17, 0};
        dY = K(seen, Eigen::indexing::all) * dX;      // three rows of K
        dY += 2 * (K(seen, std::vector{5, 1}) * dZ);  // and two of its columns
        // [/device-selected]
        const host Y = entries(k, {3, 17, 0}, all_cols) * X + Scalar(2) * entries(k, {3, 17, 0}, {5, 1}) * Z;
        CHECK(agrees(dY.to_host(), Y, size));
    }
    CHECK_THROWS_WITH_AS(
        static_cast<void>(K(list{30}, columns)),
        "otimes: K(rows, cols) in device memory: row 30 is outside the product, whose extent there is 30.",
        otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(K(few, list{-1})), otimes::shape_error);
    {  // a list whose elements are computed: refused before memory is taken
        struct counted {
            std::int64_t size() const { return std::int64_t(1) << 40; }
            std::int64_t operator[](std::int64_t i) const { return i; }
        };
        const support::allocation_size_limit at_most(1 << 20);
        CHECK_THROWS_AS(static_cast<void>(K(counted(), every)), otimes::shape_error);
        CHECK_THROWS_AS(static_cast<void>(selected_columns(K, counted())), otimes::shape_error);
    }
    const DeviceMatrix<Scalar> dX(random(5, 2, 8));
    CHECK_THROWS_WITH_AS(static_cast<void>(K(few, columns) * dX),
                         "otimes: K(rows, cols) * X in device memory: X is 5 x 2, but the selection is 4 x 4.",
                         otimes::shape_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(dX * K(few, columns)),
                         "otimes: X * K(rows, cols) in device memory: X is 5 x 2, but the selection is 4 x 4.",
                         otimes::shape_error);
    std::ostringstream line;
    line << 2 * K << '\n' << kron(A, b) - 3 * kron(a, B);
    CHECK(
        line.str() ==
        "30 x 24: 2 * kron(dense 3 x 4 in device memory, dense 5 x 2 in device memory, dense 2 x 3 in device memory)\n"
        "15 x 8: kron(dense 3 x 4 in device memory, dense 5 x 2) - 3 * kron(dense 3 x 4, dense 5 x 2 in device "
        "memory)");
}

// Norms of sums, of the whole and of columns, without the sum; a bound on what is allocated.
template <class Scalar>
void check_sum_norms() {
    using host = matrix<Scalar, 0>;
    using real = support::real_t<Scalar>;
    using otimes::DeviceMatrix;
    using otimes::identity;
    using otimes::kron;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const auto check = [](const auto& sum, const host& Y) {
        double want = 0;
        for (Eigen::Index i = 0; i < Y.rows(); ++i)
            for (Eigen::Index j = 0; j < Y.cols(); ++j) want += static_cast<double>(std::norm(Y(i, j)));
        CHECK(std::abs(static_cast<double>(sum.squaredNorm()) - want) <= 2e-5 * want);
        CHECK(std::abs(static_cast<double>(sum.norm()) - std::sqrt(want)) <= 2e-5 * std::sqrt(want));
        CHECK(sum.squaredNorm() == sum.squaredNorm());
        CHECK(std::abs(static_cast<double>(otimes::squared_norm(sum, std::int64_t{1} << 30)) - want) <= 2e-5 * want);
        const auto columns = otimes::column_squared_norms(sum).to_host();
        REQUIRE(columns.rows() == Y.cols());
        for (Eigen::Index j = 0; j < Y.cols(); ++j) {
            double one = 0;
            for (Eigen::Index i = 0; i < Y.rows(); ++i) one += static_cast<double>(std::norm(Y(i, j)));
            CHECK(std::abs(static_cast<double>(columns(j, 0)) - one) <= 2e-5 * one);
        }
    };
    const host a = random(3, 4, 1), b = random(5, 2, 2), c = random(2, 3, 3), m = random(3, 4, 4), n = random(5, 2, 5);
    const DeviceMatrix<Scalar> A(a), B(b), C(c), M(m), N(n);
    const host k = dense_kron<Scalar>({a, b, c}), l = dense_kron<Scalar>({m, n, c});
    const auto S = kron(A, B, C) - 2 * kron(M, N, C);  // 30 x 24
    const host s = k - Scalar(2) * l;
    for (const std::int64_t rows : {1, 3, 37, 130}) {
        CAPTURE(rows);
        const host X = random(rows, 30, 6), Z = random(24, rows, 7), V = random(rows, 24, 8);
        const DeviceMatrix<Scalar> dX(X), dZ(Z);
        const DeviceMatrix<Scalar, 1> rX(X), rV(V);
        check(dX * S, host(X * s));
        check(rX * S, host(X * s));
        check(S * dZ, host(s * Z));
        check(rX * S - rV / 2, host(X * s - V / Scalar(2)));
        // A product and a matrix: their distance.
        check(rX * kron(A, B, C) - rV, host(X * k - V));
        check(2 * rV + rX * kron(A, B, C) / 4, host(Scalar(2) * V + X * k / Scalar(4)));
        check((dX * kron(A, B, C) - 3 * rV).conjugate(), host((X * k - Scalar(3) * V).conjugate()));
        check(kron(A, B, C) * dZ - rX.transpose(), host(k * Z - X.transpose()));
        check(rX * kron(A, B, C) + dX * kron(M, N, C), host(X * (k + l)));
    }
    const host p = random(4, 4, 9), q = random(6, 6, 10), r = random(3, 3, 11);
    const DeviceMatrix<Scalar> P(p), Q(q), R(r);
    const host i4 = host::Identity(4, 4), i6 = host::Identity(6, 6), i3 = host::Identity(3, 3);
    const host laplacian =
        dense_kron<Scalar>({p, i6, i3}) + dense_kron<Scalar>({i4, q, i3}) + dense_kron<Scalar>({i4, i6, r});
    const host X = random(11, 72, 12), y = random(1, 72, 13), d = random(72, 1, 14), L = random(5, 11, 15),
               O = random(5, 11, 16);
    const DeviceMatrix<Scalar> dX(X), dy(y), dd(d), dL(L), dO(O);
    check(dX * otimes::kron_sum(P, Q, R), host(X * laplacian));
    check(dX * (otimes::kron_sum(P, Q, R) + identity() * 3 + dd.asDiagonal()),
          host(X * laplacian + Scalar(3) * X + X * d.asDiagonal()));
    check(dy * (kron(P, Q, R) + kron(identity(4), Q, R)),  // a single row, by the first factors' columns
          host(y * (dense_kron<Scalar>({p, q, r}) + dense_kron<Scalar>({i4, q, r}))));
    check(kron(dL) * dX * kron(P, Q, R) - kron(dO) * dX * kron(P, Q, R),
          host(L * X * dense_kron<Scalar>({p, q, r}) - O * X * dense_kron<Scalar>({p, q, r})));
    check(2 * dX - dX * kron(P, Q, R), host(Scalar(2) * X - X * dense_kron<Scalar>({p, q, r})));
    if constexpr (support::is_complex<Scalar>) {
        const matrix<real, 0> re = random_matrix<matrix<real, 0>>(72, 72, 17);
        check(dX * kron(DeviceMatrix<real>(re)) + dX, host(X * re.template cast<Scalar>() + X));
    }
    // Of what nearly cancels nothing is lost; long factors go by blocks; what differs too much in size is evaluated as any sum.
    const host f = random(60, 70, 20), g = random(72, 66, 21), T = random(9, 60 * 72, 22);
    const DeviceMatrix<Scalar> F(f), G(g), dT(T);
    DeviceMatrix<Scalar, 1> dU(dT * kron(F, G));
    CHECK((dT * kron(F, G) - dU).norm() <= 1e-5 * dU.norm());
    const host U = expected_right(T, std::vector<host>{f, g}), W = random(9, 70 * 66, 23);
    const DeviceMatrix<Scalar, 1> dW(W);
    check(dT * kron(F, G) - 7 * dW, host(U - Scalar(7) * W));
    check(dT * kron(F, G) + real(1e-9) * dW, U);
    const DeviceMatrix<Scalar, 1> none(host(0, 72));
    CHECK((none * kron(P, Q, R) + none).norm() == 0);
    CHECK(otimes::column_squared_norms(none * kron(P, Q, R) + none).to_host().isZero());
    // Nothing that a single row can be cut by, and too large to be evaluated whole.
    const host e = host::Identity(600, 600);
    const DeviceMatrix<Scalar> E(e), long_row(random(1, 360000, 18)), D(random(360000, 1, 19));
    CHECK_THROWS_AS(static_cast<void>(otimes::squared_norm(long_row * (kron(E, E) + D.asDiagonal()), std::int64_t{1})),
                    otimes::unsupported_error);
}

}  // namespace device_test

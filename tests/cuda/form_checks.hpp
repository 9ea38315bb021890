// SPDX-License-Identifier: MIT
// Diagonals, stacked matrices and column norms in device memory against plain loops: on a GPU, and on executors that pretend to be one.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <vector>

#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>

#include "cuda/device_support.hpp"

namespace device_test {

template <class Scalar>
using column = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

// Diagonal terms and factors, of vectors in device and in host memory.
template <class Scalar>
void check_diagonals() {
    using host = matrix<Scalar, 0>;
    using real = support::real_t<Scalar>;
    using otimes::DeviceMatrix;
    using otimes::identity;
    using otimes::kron;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const host a = random(3, 3, 1), b = random(5, 5, 2), c = random(2, 2, 3), X = random(7, 30, 4),
               Z = random(30, 4, 5), m = random(3, 3, 6);
    column<Scalar> d = random(30, 1, 7), five = random(5, 1, 8);
    const column<real> r = random_matrix<matrix<real, 0>>(30, 1, 9);
    const DeviceMatrix<Scalar> A(a), B(b), C(c), M(m), dZ(Z), dd(d), dfive(five), row(host(d.transpose()));
    const DeviceMatrix<real> dr(r);
    const DeviceMatrix<Scalar, 1> dX(X);
    DeviceMatrix<Scalar, 1> dY(7, 30);
    DeviceMatrix<Scalar> dT(30, 4);
    const shapes size{7, {40}, {30}};
    const auto diagonal = [](const auto& v) {
        host full = host::Zero(v.size(), v.size());
        for (Eigen::Index i = 0; i < v.size(); ++i) full(i, i) = Scalar(v(i));
        return full;
    };
    const auto check = [&](const auto& S, const host& dense) {
        REQUIRE(S.rows() == dense.rows());
        REQUIRE(S.cols() == dense.cols());
        poison(dY);
        dY = dX * S;
        CHECK(agrees(host(dY.to_host()), host(X * dense), size));
        dY -= 3 * (dX * S);
        CHECK(agrees(host(dY.to_host()), host(Scalar(-2) * X * dense), size));
        poison(dT);
        dT = S * dZ;
        CHECK(agrees(dT.to_host(), host(dense * Z), size));
        dT = S.adjoint() * dZ;
        CHECK(agrees(dT.to_host(), host(dense.adjoint() * Z), size));
    };
    const host k = dense_kron<Scalar>({a, b, c}), l = dense_kron<Scalar>({m, b, c}), one = host::Identity(30, 30),
               D = diagonal(d);
    const auto K = kron(A, B, C);
    check(K + dd.asDiagonal(), host(k + D));
    check(K - 2 * dd.asDiagonal() + identity() / 4, host(k - Scalar(2) * D + one / Scalar(4)));
    check(row.asDiagonal() - K - kron(M, B, C), host(D - k - l));
    check(K + dr.asDiagonal(), host(k + diagonal(r)));  // real in a complex sum
    check((2 * dd).asDiagonal(), host(Scalar(2) * D));
    check(dd.asDiagonal().conjugate() + dd.asDiagonal(), host(D.conjugate() + D));
    check(kron(A, dfive.asDiagonal(), C), dense_kron<Scalar>({a, diagonal(five), c}));
    check(kron(A, dfive.asDiagonal(), C) - K, host(dense_kron<Scalar>({a, diagonal(five), c}) - k));
    // In host memory: seen as it is when the sum is evaluated; a temporary is kept.
    const auto from_host = K + d.asDiagonal();
    check(from_host, host(k + D));
    d(0) += Scalar(3);
    check(from_host, host(k + diagonal(d)));
    d(0) -= Scalar(3);
    const auto kept = 2 * K - (Scalar(3) * d).asDiagonal();
    check(kept, host(Scalar(2) * k - Scalar(3) * D));
    check(r.asDiagonal() + K, host(k + diagonal(r)));
    check(K + Eigen::DiagonalMatrix<Scalar, Eigen::Dynamic>(d), host(k + D));
    // Both sides of a product, inside a product, and through Y itself.
    poison(dT);
    dT = dd.asDiagonal() * dZ;
    CHECK(agrees(dT.to_host(), host(D * Z), size));
    dT = K * dZ;
    dT = (K + dd.asDiagonal()) * dT;
    CHECK(agrees(dT.to_host(), host((k + D) * (k * Z)), size));
    dY = dX * K * dd.asDiagonal();
    CHECK(agrees(host(dY.to_host()), host(X * k * D), size));
    dY = dX * dd.asDiagonal() * K;
    CHECK(agrees(host(dY.to_host()), host(X * D * k), size));
    // Longer than what is written out; one beside another.
    const column<Scalar> longer = random(257, 1, 10);
    const host wide = random(3, 514, 11);
    const DeviceMatrix<Scalar, 1> dwide(wide);
    const DeviceMatrix<Scalar> dlonger(longer);
    host scaled = wide * dense_kron<Scalar>({diagonal(longer), c});
    DeviceMatrix<Scalar, 1> dV(3, 514);
    poison(dV);
    dV = dwide * kron(longer.asDiagonal(), C);
    CHECK(agrees(host(dV.to_host()), scaled, size));
    poison(dV);
    dV = dwide * kron(dlonger.asDiagonal(), c);
    CHECK(agrees(host(dV.to_host()), scaled, size));
    // Numbers from them.
    const Scalar dot = otimes::dot(dZ, (K + dd.asDiagonal()) * dZ);
    const host image = (k + D) * Z;
    CHECK(std::abs(dot - Z.conjugate().cwiseProduct(image).sum()) <= 1e-4 * Z.norm() * image.norm());
    const Scalar both = otimes::dot(dZ, dd.asDiagonal() * dZ * kron(DeviceMatrix<Scalar>(host::Identity(4, 4))));
    CHECK(std::abs(both - Z.conjugate().cwiseProduct(D * Z).sum()) <= 1e-4 * Z.norm() * (D * Z).norm());
    CHECK_THROWS_WITH_AS(static_cast<void>(A.asDiagonal()),
                         "otimes: d.asDiagonal() in device memory: d is 3 x 3, neither a row nor a column.",
                         otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(K + dfive.asDiagonal()), otimes::shape_error);
    CHECK_THROWS_AS(dY = dX * kron(dd.asDiagonal(), A), otimes::shape_error);
}

// Stacked matrices: by columns and by rows, from either order of memory, into either.
template <class Scalar>
void check_stacked() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::kron;
    using otimes::vec;
    using otimes::vec_r;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const host a = random(4, 3, 1), b = random(2, 5, 2), X = random(5, 3, 3), s = random(3, 3, 4), t = random(5, 5, 5),
               u = random(1, 1, 6);
    const DeviceMatrix<Scalar> A(a), B(b), dX(X), S(s), T(t), U(u);
    const DeviceMatrix<Scalar, 1> rX(X), rXt(host(X.transpose()));
    const shapes size{2, {15}, {8}};
    const auto stacked = [](const host& m) { return host(Eigen::Map<const host>(m.data(), m.size(), 1)); };
    const auto by_rows = [&](const host& m) { return stacked(host(m.transpose())); };
    const host k = dense_kron<Scalar>({a, b}), Y = b * X * a.transpose();
    CHECK(agrees(stacked(Y), host(k * stacked(X)), size));  // what is tested against
    const auto for_both = [&](const auto& x) {
        for_orders([&](auto order) {
            DeviceMatrix<Scalar, decltype(order)::value> dY(2, 4);
            poison(dY);
            vec(dY) = kron(A, B) * vec(x);
            CHECK(agrees(host(dY.to_host()), Y, size));
            vec(dY) += 2 * (kron(A, B) * vec(x)) - vec(dY) / 2;
            CHECK(agrees(host(dY.to_host()), host(Scalar(2.5) * Y), size));
            vec(dY) -= kron(A, B) * vec(x);
            CHECK(agrees(host(dY.to_host()), host(Scalar(1.5) * Y), size));
            auto map = dY.map();
            poison(dY);
            vec(map) = -(kron(a, b) * vec(x));  // factors in host memory
            CHECK(agrees(host(dY.to_host()), host(-Y), size));
        });
    };
    for_both(dX);
    for_both(rX);
    const DeviceMatrix<Scalar> column = kron(A, B) * vec(rX);
    CHECK(column.cols() == 1);
    CHECK(agrees(column.to_host(), stacked(Y), size));
    // kron(A, B) * vec_r(Z) = vec_r(A Z B^T) with Z = X^T.
    const host Yr = a * X.transpose() * b.transpose();
    DeviceMatrix<Scalar> dYr(4, 2);
    poison(dYr);
    vec_r(dYr) = kron(A, B) * vec_r(rXt);
    CHECK(agrees(dYr.to_host(), Yr, size));
    const DeviceMatrix<Scalar> of_rows = (kron(A, B) * vec_r(rXt)).eval();
    CHECK(agrees(of_rows.to_host(), by_rows(Yr), size));
    // There and back; the same memory.
    const DeviceMatrix<Scalar> x = vec(dX), xr = vec_r(dX);
    CHECK(agrees(x.to_host(), stacked(X), size));
    CHECK(agrees(xr.to_host(), by_rows(X), size));
    DeviceMatrix<Scalar, 1> dY(5, 3);
    dY = otimes::unvec(x, 5, 3);
    CHECK(agrees(host(dY.to_host()), X, size));
    dY = otimes::unvec_r(xr, 5, 3);
    CHECK(agrees(host(dY.to_host()), X, size));
    poison(dY);
    vec(dY) = 2 * x;
    CHECK(agrees(host(dY.to_host()), host(Scalar(2) * X), size));
    CHECK(otimes::unvec(x, 5, 3).node().x.view().data == x.data());
    // Sums, term by term; Y among the operands; three factors, one of them 1 x 1.
    dY = X;
    vec(dY) = (otimes::kron_sum(S, T) + 2 * otimes::identity()) * vec(dY);
    CHECK(agrees(host(dY.to_host()), host(t * X + X * s.transpose() + Scalar(2) * X), size));
    DeviceMatrix<Scalar> dZ(2, 4);
    vec(dZ) = kron(U, A, B) * vec(dX);
    CHECK(agrees(dZ.to_host(), host(u(0, 0) * Y), size));
    vec(dZ) = kron(A, B) * (vec(dX) + vec(2 * dX));
    CHECK(agrees(dZ.to_host(), host(Scalar(3) * Y), size));
    CHECK_THROWS_WITH_AS(
        static_cast<void>(kron(B, A) * vec(dX)),
        "otimes: kron(F1, F2) * vec(X): X is 5 x 3, but no cut between the factors has columns that multiply to 3 in "
        "front of it and to 5 behind it. Write K * vec(X).toVector(); of device memory, K times a device_map of one "
        "column over it.",
        otimes::shape_error);
    CHECK_THROWS_WITH_AS(vec(dY) = kron(A, B) * vec(dX),
                         "otimes: vec(Y) = vec(X) in device memory: Y is 5 x 3, X is 2 x 4.", otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::unvec(x, 4, 3)), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>((kron(S, T) + x.asDiagonal()) * vec(dX)), otimes::unsupported_error);
}

// Squared norms of columns, without the product, against sums over its entries.
template <class Scalar>
void check_column_norms() {
    using host = matrix<Scalar, 0>;
    using real = support::real_t<Scalar>;
    using otimes::column_squared_norms;
    using otimes::DeviceMatrix;
    using otimes::kron;
    const auto close = [](const DeviceMatrix<real>& got, const host& Y) {
        const auto norms = got.to_host();
        REQUIRE(norms.rows() == Y.cols());
        REQUIRE(norms.cols() == 1);
        for (Eigen::Index j = 0; j < Y.cols(); ++j) {
            double want = 0;
            for (Eigen::Index i = 0; i < Y.rows(); ++i) want += static_cast<double>(std::norm(Y(i, j)));
            if (!(std::abs(static_cast<double>(norms(j, 0)) - want) <= 2e-5 * want)) return false;
        }
        return true;
    };
    for (const shapes& s : {shapes{7, {2, 3, 4}, {4, 2, 3}}, shapes{1, {3, 5}, {5, 3}}, shapes{130, {8, 8}, {8, 8}},
                            shapes{5003, {3, 2}, {2, 1}}, shapes{3, {24, 40}, {16, 24}}}) {
        CAPTURE(s.text());
        const auto f = random_factors<Scalar>(s);
        const host X = random_matrix<host>(s.rows, s.inputs(), 1), Y = expected_right(X, f);
        const std::vector<DeviceMatrix<Scalar>> dF(f.begin(), f.end());
        const auto K = kron(dF);
        const DeviceMatrix<Scalar> dX(X), dXt(host(X.transpose()));
        const DeviceMatrix<Scalar, 1> rX(X);
        CHECK(close(column_squared_norms(rX * K), Y));
        CHECK(close(column_squared_norms(dX * K * 2), host(Scalar(2) * Y)));
        CHECK(close(column_squared_norms(K.transpose() * dXt), host(Y.transpose())));
        CHECK(close(column_squared_norms(rX * K, std::int64_t{1} << 30), Y));
        CHECK(close(column_squared_norms(rX), X));
        CHECK(close(column_squared_norms(-2 * dX.transpose()), host(Scalar(2) * X.transpose())));
        const auto once = column_squared_norms(rX * K).to_host();
        CHECK(once == column_squared_norms(rX * K).to_host());
    }
    const host a = random_matrix<host>(4, 3, 3), l = random_matrix<host>(2, 5, 4), x = random_matrix<host>(5, 4, 5);
    const DeviceMatrix<Scalar> A(a), L(l), dx(x), none(host(0, 4)), padded(random_matrix<host>(9, 4, 6));
    CHECK(close(column_squared_norms(kron(L) * dx * kron(A)), host(l * x * a)));
    CHECK(column_squared_norms(none * kron(A)).to_host().isZero());
    const auto view = otimes::device_map<Scalar>(padded.data() + 2, 5, 4, 9);
    const host inside = padded.to_host().block(2, 0, 5, 4);
    CHECK(close(column_squared_norms(view * kron(A)), host(inside * a)));
    if constexpr (support::is_complex<Scalar>) {  // real factors, a real X
        const matrix<real, 0> re = random_matrix<matrix<real, 0>>(4, 3, 7),
                              xr = random_matrix<matrix<real, 0>>(5, 4, 8);
        const DeviceMatrix<real> R(re), dxr(xr);
        CHECK(close(column_squared_norms(dx * kron(R)), host(x * re.template cast<Scalar>())));
        CHECK(close(column_squared_norms(dxr * kron(A)), host(xr.template cast<Scalar>() * a)));
    }
}

// Sparse matrices in device memory: beside a kron, as factors and terms, one after the other.
template <class Scalar>
void check_sparse() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::DeviceSparse;
    using otimes::identity;
    using otimes::kron;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const auto thinned = [&random](std::int64_t rows, std::int64_t cols, std::uint64_t seed, int keep) {
        host m = random(rows, cols, seed);
        for (Eigen::Index i = 0; i < rows; ++i)
            for (Eigen::Index j = 0; j < cols; ++j)
                if ((i * 7 + j * 3) % keep != 0 || i == 2 || j == 1)
                    m(i, j) = Scalar(0);  // an empty row, an empty column
        return m;
    };
    const host a = random(3, 3, 1), b = random(5, 5, 2), c = random(2, 2, 3), w = thinned(11, 30, 4, 4),
               X = random(11, 6, 5), Z = random(30, 6, 6), f = thinned(5, 4, 7, 2), square = thinned(30, 30, 8, 5),
               r = random(6, 11, 9);
    Eigen::SparseMatrix<Scalar> by_columns = w.sparseView();
    const Eigen::SparseMatrix<Scalar, Eigen::RowMajor, std::int64_t> by_rows = w.sparseView();
    by_columns.reserve(Eigen::VectorXi::Constant(30, 9));  // not compressed
    CHECK(!by_columns.isCompressed());
    const DeviceMatrix<Scalar> A(a), B(b), C(c), dX(X), dZ(Z);
    const DeviceMatrix<Scalar, 1> rX(X), rR(r);
    DeviceMatrix<Scalar> dY(11, 6);
    const shapes size{7, {60}, {30}};
    const auto K = kron(A, B, C);
    const host k = dense_kron<Scalar>({a, b, c}), one = host::Identity(11, 11);
    for (const DeviceSparse<Scalar>& W : {DeviceSparse<Scalar>(by_columns), DeviceSparse<Scalar>(by_rows)}) {
        REQUIRE(W.rows() == 11);
        REQUIRE(W.nonZeros() == by_rows.nonZeros());
        const auto S = W * K * W.transpose() + 2 * identity();
        const host dense = w * k * w.transpose() + Scalar(2) * one;
        poison(dY);
        dY = (W * K * W.transpose() + Scalar(2) * host::Identity(11, 11)) * dX;
        CHECK(agrees(dY.to_host(), host(dense * X), size));
        CHECK_THROWS_AS(static_cast<void>(host::Identity(10, 10) - W * K * W.transpose()), otimes::shape_error);
        poison(dY);
        dY = S * dX;
        CHECK(agrees(dY.to_host(), host(dense * X), size));
        dY += S.adjoint() * rX;
        CHECK(agrees(dY.to_host(), host(dense * X + dense.adjoint() * X), size));
        DeviceMatrix<Scalar, 1> dR(6, 11);
        poison(dR);
        dR = rR * S;
        CHECK(agrees(host(dR.to_host()), host(r * dense), size));
        dR = rR * (2 * S - identity() - S.conjugate() / 4 * 4).transpose();
        CHECK(agrees(host(dR.to_host()), host(r * (Scalar(2) * dense - one - dense.conjugate()).transpose()), size));
        // Alone, from both sides, both orders; with a multiple, added.
        dY = W * dZ;
        CHECK(agrees(dY.to_host(), host(w * Z), size));
        dY -= 2 * (W * dZ);
        CHECK(agrees(dY.to_host(), host(-w * Z), size));
        DeviceMatrix<Scalar, 1> dV(30, 6);
        poison(dV);
        dV = W.transpose() * rX;
        CHECK(agrees(host(dV.to_host()), host(w.transpose() * X), size));
        dV = (rX.transpose() * W).transpose();
        CHECK(agrees(host(dV.to_host()), host(w.transpose() * X), size));
        dV = W.adjoint() * dX;
        CHECK(agrees(host(dV.to_host()), host(w.adjoint() * X), size));
        // In a chain that adds up what a solver needs.
        const auto twice = S * S;
        dY = twice * dX;
        CHECK(agrees(dY.to_host(), host(dense * (dense * X)), size));
    }
    // Many sums, of which a thread takes several.
    Eigen::SparseMatrix<Scalar> wide(40, 30011);
    for (int j = 0; j < 30011; j += 3) wide.insert(j * 7 % 40, j) = Scalar(static_cast<float>(j % 11 - 5));
    const host tall = random(40, 19, 14);
    DeviceMatrix<Scalar> dTall(30011, 19);
    poison(dTall);
    dTall = DeviceSparse<Scalar>(wide).transpose() * DeviceMatrix<Scalar>(tall);
    CHECK(agrees(dTall.to_host(), host(wide.transpose() * tall), size));
    // Many fibres, which tiles of them hold: neighbours in memory are those of one side, or the elements of each; a whole access or not.
    const auto in_tiles = [&](Eigen::Index inner, Eigen::Index columns) {
        const host dense =
            dense_kron<Scalar>({host::Identity(9, 9), host(w.transpose()), host::Identity(inner, inner)});
        const host from = random(dense.cols(), columns, 15), to = random(dense.rows(), columns, 16);
        const auto P = kron(identity(9), DeviceSparse<Scalar>(by_columns).transpose(), identity(inner));
        DeviceMatrix<Scalar> left(to), poisoned(dense.rows(), columns);
        DeviceMatrix<Scalar, 1> right(to), right_poisoned(dense.rows(), columns);
        poison(poisoned);
        poisoned = P * DeviceMatrix<Scalar>(from);
        CHECK(agrees(poisoned.to_host(), host(dense * from), size));
        poison(right_poisoned);
        right_poisoned = P * DeviceMatrix<Scalar, 1>(from);
        CHECK(agrees(host(right_poisoned.to_host()), host(dense * from), size));
        left += 2 * (P.conjugate() * DeviceMatrix<Scalar>(from));
        CHECK(agrees(left.to_host(), host(to + Scalar(2) * (dense.conjugate() * from)), size));
        right -= P * DeviceMatrix<Scalar, 1>(from);
        CHECK(agrees(host(right.to_host()), host(to - dense * from), size));
    };
    in_tiles(8, 8);
    in_tiles(5, 7);
    in_tiles(1, 36);
    // Host matrices beside operators on the device; a factor; a term.
    dY = (by_columns * K * by_columns.transpose() + identity()) * dX;
    CHECK(agrees(dY.to_host(), host(w * k * w.transpose() * X + X), size));
    const DeviceSparse F(Eigen::SparseMatrix<Scalar>(f.sparseView())),
        Q(Eigen::SparseMatrix<Scalar>(square.sparseView()));
    DeviceMatrix<Scalar> dV(24, 6);
    poison(dV);
    dV = kron(A, F.transpose(), C) * dZ;
    CHECK(agrees(dV.to_host(), host(dense_kron<Scalar>({a, host(f.transpose()), c}) * Z), size));
    DeviceMatrix<Scalar> dU(30, 6);
    dU = (K + Q + identity()) * dZ;
    CHECK(agrees(dU.to_host(), host((k + square) * Z + Z), size));
    const Scalar dot = otimes::dot(dZ, Q * dZ);
    CHECK(std::abs(dot - Z.conjugate().cwiseProduct(square * Z).sum()) <= 1e-4 * Z.norm() * (square * Z).norm());
    CHECK_THROWS_WITH_AS(
        static_cast<void>(Q * K * F),
        "otimes: product of operators in device memory: F2 is 30 x 30, F3 is 5 x 4; the columns of one must "
        "equal the rows of the next.",
        otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(Q * K + F * F.transpose()), otimes::shape_error);
}

// Row by row and column by column Kronecker products, from both sides, against the formed ones.
template <class Scalar>
void check_row_products() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::face_split;
    using otimes::khatri_rao;
    const auto random = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        return random_matrix<host>(rows, cols, seed);
    };
    const host a = random(7, 3, 1), b = random(7, 4, 2), c = random(7, 2, 3), X = random(24, 5, 4), Z = random(7, 5, 5),
               L = random(6, 7, 6), M = random(6, 24, 7);
    const DeviceMatrix<Scalar> A(a), B(b), dX(X), dZ(Z), dL(L), bT(host(b.transpose()));
    const DeviceMatrix<Scalar, 1> C(c), rX(X), rZ(Z), rM(M);
    const shapes size{7, {24}, {7}};
    host split(7, 24);
    for (Eigen::Index i = 0; i < 7; ++i)
        split.row(i) = dense_kron<Scalar>({host(a.row(i)), host(b.row(i)), host(c.row(i))});
    const auto S = face_split(A, B, C);
    REQUIRE(S.rows() == 7);
    REQUIRE(S.cols() == 24);
    DeviceMatrix<Scalar> dY(7, 5), dW(24, 5);
    poison(dY);
    dY = S * dX;
    CHECK(agrees(dY.to_host(), host(split * X), size));
    dY += 2 * (S * rX);
    CHECK(agrees(dY.to_host(), host(Scalar(3) * split * X), size));
    poison(dW);
    dW = S.adjoint() * dZ;
    CHECK(agrees(dW.to_host(), host(split.adjoint() * Z), size));
    dW = khatri_rao(A.transpose(), bT, C.transpose()) * (2 * rZ);
    CHECK(agrees(dW.to_host(), host(Scalar(2) * split.transpose() * Z), size));
    CHECK(agrees(host((dL * S).to_host()), host(L * split), size));
    CHECK(agrees(host((rM * S.transpose()).to_host()), host(M * split.transpose()), size));
    CHECK(agrees(host((dL.conjugate() * S.conjugate()).to_host()), host((L * split).conjugate()), size));
    CHECK(agrees(host((face_split(B) * (bT * kron(DeviceMatrix<Scalar>(host::Identity(7, 7))))).to_host()),
                 host(b * b.transpose()), size));
    CHECK_THROWS_WITH_AS(static_cast<void>(S * dZ),
                         "otimes: S * X in device memory with a face_split or khatri_rao S: S is 7 x 24, X is 7 x 5.",
                         otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(face_split(A, dX)), otimes::shape_error);
}

}  // namespace device_test

// SPDX-License-Identifier: MIT
// vec(X) and K * vec(X) assigned to vectors, blocks, maps, references and rows, also to ones that X lies in.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

TEST_CASE("a stacked matrix goes straight into a block, a map, a reference, a row") {
    const matrix_d A = random(2, 3, 1), B = random(4, 2, 2), X = random(2, 3, 3), V = random(3, 2, 4);
    const row_major_d R = X;
    const auto K = kron(A, B);
    const auto k = dense_kron(A, B);
    const auto by_columns = times(k, vector_d(X.reshaped()));
    const auto by_rows = times(k, vector_d(V.reshaped<Eigen::RowMajor>()));
    const vector_d before = random(8, 1, 5);
    const auto by_vec = K * otimes::vec(X);
    // y = .., y.noalias() = .., and with each a sum and a difference; nothing beside y changes
    const auto check = [&](auto&& view) {
        const auto holds = [&](const auto& want) {
            CHECK(support::close(view.rows() == 1 ? vector_d(view.transpose()) : vector_d(view), want, 30));
            if (view.rows() == 1) {
                view = before.transpose();
            } else {
                view = before;
            }
        };
        view.setConstant(std::numeric_limits<double>::quiet_NaN());
        view = by_vec;
        holds(by_columns);
        view += K * otimes::vec(R);
        holds(plus(before, by_columns));
        view -= 0.5 * by_vec;
        holds(plus(before, scaled(-0.5, by_columns)));
        view.setConstant(std::numeric_limits<double>::quiet_NaN());
        view.noalias() = K * otimes::vec_r(V);
        holds(by_rows);
        view.noalias() += K * otimes::vec_r(V) + K * otimes::vec_r(2.0 * V);
        holds(plus(before, scaled(3.0, by_rows)));
        view.noalias() -= K * otimes::vec_r(V);
        holds(plus(before, scaled(-1.0, by_rows)));
    };
    vector_d y = vector_d::Constant(11, 7.0);
    check(y.segment(2, 8));
    CHECK((y.head(2).array() == 7).all());
    CHECK(y(10) == 7);
    check(y.head(8));
    check(y.tail<8>());
    matrix_d wide = matrix_d::Constant(9, 4, 7.0);
    row_major_d wide_rows = wide;
    const Eigen::Ref<vector_d> ref = wide.col(3).tail(8);
    check(wide.col(2).head(8));
    check(wide_rows.col(1).tail(8));
    check(Eigen::Ref<vector_d>(ref));
    CHECK((wide.leftCols(2).array() == 7).all());
    CHECK((wide.row(0).tail(1).array() == 7).all());
    CHECK((wide_rows.row(0).array() == 7).all());
    matrix_d flat = matrix_d::Constant(3, 9, 7.0);
    row_major_d flat_rows = flat;
    check(flat.row(1).head(8));
    check(flat_rows.row(2).tail(8));
    CHECK((flat.row(0).tail(1).array() == 7).all());
    double memory[40];
    std::fill(std::begin(memory), std::end(memory), 7.0);
    check(Eigen::Map<vector_d>(memory, 8));
    CHECK(memory[8] == 7);
    check(Eigen::Map<vector_d, 0, Eigen::InnerStride<3>>(memory + 9, 8));
    check(Eigen::Map<Eigen::Matrix<double, 8, 1>, 0, Eigen::InnerStride<>>(memory + 9, Eigen::InnerStride<>(2)));
    CHECK(memory[8] == 7);
    Eigen::Matrix<double, 8, 1> fixed;
    check(fixed);
    matrix_d thin(8, 1);
    check(thin);
    row_vector_d row(8);
    check(row);
    check(y.head(8).reverse());  // no address and stride tell of it

    // X itself, and other expressions
    y.head(6) = otimes::vec(X);
    CHECK(y.head(6) == X.reshaped());
    y.head(6) -= otimes::vec_r(X + 2 * X);
    CHECK((y.head(6) - X.reshaped() + 3 * X.reshaped<Eigen::RowMajor>()).norm() < 1e-14);
    y.segment(1, 4) = otimes::vec(A * V);
    CHECK((y.segment(1, 4) - (A * V).eval().reshaped()).norm() < 1e-14);
    Eigen::VectorXcd z = Eigen::VectorXcd::Constant(9, std::complex<double>(0, 1));
    z.head(8) = by_vec;
    CHECK((z.head(8).imag().array() == 0).all());
    CHECK(support::close(vector_d(z.head(8).real()), by_columns, 20));
    z.tail(8).imag() = by_vec;
    CHECK(support::close(vector_d(z.tail(8).imag()), by_columns, 20));
    // a vector of another size takes the size, a function takes any of them
    vector_d grown(3), copied(by_vec);
    grown = by_vec;
    CHECK(support::close(grown, by_columns, 20));
    CHECK(copied == grown);
    const auto sum_of = [](const Eigen::Ref<const vector_d>& v) { return v.sum(); };
    CHECK(sum_of(by_vec) == grown.sum());
    // inside an expression of Eigen's it is evaluated once
    CHECK(by_vec.norm() == grown.norm());
    CHECK(before.dot(by_vec) == doctest::Approx(before.dot(grown)).epsilon(1e-14));
    CHECK((by_vec.cwiseAbs().eval() - grown.cwiseAbs()).norm() == 0);
    vector_d filled(10);
    filled << 1, by_vec, 2;
    CHECK(filled.segment(1, 8) == grown);
    otimes::vec(thin).noalias() = by_vec;
    CHECK(thin == grown);

    // shapes are looked at first
    const auto refused = [&](auto&& view, const auto& assign, const std::string& text) {
        view.setConstant(7.0);
        CHECK(support::text_of([&] { assign(view); }) == text);
        CHECK((view.array() == 7).all());
    };
    refused(
        y.head(7), [&](auto& v) { v = by_vec; },
        "otimes: Y = expression: Y is 7 x 1 and cannot be resized, the expression is 8 x 1.");
    refused(
        y, [&](auto& v) { v += by_vec; },
        "otimes: Y += expression: Y is 11 x 1, the expression 8 x 1. Only a plain assignment resizes.");
    refused(
        Eigen::Map<vector_d>(memory, 9), [&](auto& v) { v.noalias() -= by_vec; },
        "otimes: Y -= expression: Y is 9 x 1, the expression 8 x 1. Only a plain assignment resizes.");
    matrix_d changing = X;
    const auto stale = K * otimes::vec(changing);
    changing.resize(3, 3);
    changing.setZero();
    y.setConstant(7.0);
    CHECK_THROWS_AS(y.head(8) = stale, otimes::shape_error);
    CHECK_THROWS_AS(y = stale, otimes::shape_error);
    CHECK((y.array() == 7).all());
}

TEST_CASE("a stacked matrix that lies in the vector which it is assigned to") {
    const matrix_d A = random(3, 3, 1), B = random(2, 2, 2);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    const vector_d start = random(9, 1, 3);
    const auto mapped = [](vector_d& v, Index first) { return Eigen::Map<matrix_d>(v.data() + first, 2, 3); };
    for (const Index first : {0, 1, 3}) {
        vector_d y = start;
        y.head(6) = K * otimes::vec(mapped(y, first));
        CHECK((y.head(6) - k * start.segment(first, 6)).norm() < 1e-13);
        CHECK(y.tail(3) == start.tail(3));
        y = start;
        y.head(6).noalias() += K * otimes::vec(mapped(y, first));
        CHECK((y.head(6) - start.head(6) - k * start.segment(first, 6)).norm() < 1e-13);
        // without a product
        y = start;
        y.head(6) = otimes::vec(mapped(y, first));
        CHECK(y.head(6) == start.segment(first, 6));
        y = start;
        y.head(6) += otimes::vec_r(mapped(y, first));
        const vector_d added = y - start;
        y = start;
        CHECK((added.head(6) - mapped(y, first).reshaped<Eigen::RowMajor>()).norm() < 1e-14);
        y = start;
        y = K * otimes::vec(mapped(y, first));  // of another size
        CHECK((y - k * start.segment(first, 6)).norm() < 1e-13);
    }
    matrix_d Y = random(6, 4, 4);
    const matrix_d before = Y;
    Y.col(1) = K * otimes::vec(Y.block(0, 0, 2, 3));
    CHECK((Y.col(1) - k * before.block(0, 0, 2, 3).reshaped()).norm() < 1e-13);
    CHECK(Y.col(0) == before.col(0));
    CHECK(Y.rightCols(2) == before.rightCols(2));
    matrix_d square = random(3, 3, 5);
    const matrix_d old = square;
    otimes::vec(square) = otimes::vec(square.transpose());
    CHECK(square == old.transpose());
}

TEST_CASE("a stacked matrix is written into a vector without a temporary") {
    const matrix_d A = random(30, 20, 1), B = random(25, 20, 2), X = random(20, 20, 3);
    const auto K = kron(A, B);  // 750 x 400
    vector_d y(760);
    matrix_d wide(750, 2);
    const auto K_vec = K * otimes::vec(X);
    const auto K_vec_r = K * otimes::vec_r(X);
    const auto run = [&] {
        y.head(750) = K_vec;
        y.tail(750).noalias() += K_vec_r;
        wide.col(1) -= K_vec;
        Eigen::Map<vector_d>(wide.data(), 750) = K_vec_r;
        y.segment(3, 400) = otimes::vec(X);
    };
    run();
    support::allocations seen;
    {
        const support::allocation_counter counter;
        run();
        seen = counter.seen();
    }
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes < sizeof(double) * 400);
    }
    CHECK(y.segment(3, 400) == X.reshaped());
}

TEST_CASE("dot and entrywise products and comparisons of stacked matrices of one convention") {
    using otimes::vec, otimes::vec_r;
    const matrix_d X = random(3, 5, 1), Y = random(3, 5, 2);
    const row_major_d R = Y;
    const vector_d x = vec(X), y = vec(Y), by_rows = vec_r(Y);
    const support::allocation_counter counter;
    const double values[] = {vec(X).dot(vec(Y)), vec(X).dot(vec(R)), vec_r(X).dot(vec_r(Y))};
    const auto seen = counter.seen();
    for (const double value : values) {
        CHECK(std::abs(value - x.dot(y)) <= 1e-14);
    }
    if (support::allocations_are_counted()) {
        CHECK(seen.count == 0);  // nothing is stacked
    }
    CHECK(std::abs(vec(X).dot(y) - x.dot(y)) <= 1e-14);
    CHECK(vector_d(vec(X).cwiseProduct(vec(Y))) == vector_d(x.cwiseProduct(y)));
    CHECK(vec_r(Y).isApprox(by_rows));
    CHECK(vec(Y).isApprox(vec(R)));
    CHECK_FALSE(vec(X).isApprox(vec(Y)));
}

TEST_CASE("stacked matrices of unequal shapes have no sum, whether they have as many entries or not") {
    using otimes::vec, otimes::vec_r;
    const matrix_d X = random(2, 3, 1), Z = random(3, 2, 2), B = random(4, 5, 3), A = random(3, 3, 4),
                   C = random(2, 2, 5);
    const auto says = [](const std::string& x, const std::string& z) {
        return "otimes: vec(X) + vec(Z): X is " + x + ", Z is " + z +
               ". They must have equal shapes; of others with as many entries write vec(X).toVector() + vec(Z).";
    };
    const auto text = [](const auto& f) { return support::text_of<otimes::shape_error>(f); };
    vector_d y;
    CHECK(text([&] { y = vec(X) + vec(Z); }) == says("2 x 3", "3 x 2"));
    CHECK(text([&] { y = vec(X) - vec(Z); }) == says("2 x 3", "3 x 2"));
    CHECK(text([&] { y = vec_r(B) + vec_r(X); }) == says("4 x 5", "2 x 3"));
    CHECK(text([&] { y = vec_r(X) - vec_r(B); }) == says("2 x 3", "4 x 5"));
    CHECK(text([&] { y = kron(C, A) * vec(Z) - vec(X); }) == says("3 x 2", "2 x 3"));
    CHECK(y.size() == 0);
    y = vec(X).toVector() + vec(Z);
    CHECK(y == X.reshaped() + Z.reshaped());
    y = vec_r(X).toVector() - vec_r(Z);
    CHECK(y == X.reshaped<Eigen::RowMajor>() - Z.reshaped<Eigen::RowMajor>());
}

TEST_CASE("unvec of a product with a stacked matrix is the matrix, without a vector between") {
    using otimes::unvec, otimes::unvec_r, otimes::vec, otimes::vec_r;
    const matrix_d A = random(30, 20, 1), B = random(25, 20, 2), X = random(20, 20, 3), S = random(20, 20, 4);
    const matrix_d by_columns = B * X * A.transpose(), by_rows = A * X * B.transpose();
    for (int run = 0; run < 2; ++run) {
        const support::allocation_counter counter;
        const matrix_d Y = unvec(kron(A, B) * vec(X), 25, 30);
        const auto seen = counter.seen();
        CHECK(distance(Y, by_columns) < 1e-10);
        if (run > 0 && support::allocations_are_counted()) {
            CHECK(seen.total_bytes < 2 * 25 * 30 * sizeof(double));  // Y, once
        }
    }
    CHECK(distance(matrix_d(unvec_r(kron(A, B) * vec_r(X), 30, 25)), by_rows) < 1e-10);
    const vector_d y = vec(by_columns);  // another shape, of as many entries
    CHECK(distance(matrix_d(unvec(kron(A, B) * vec(X), 10, 75)), matrix_d(unvec(y, 10, 75))) < 1e-10);
    CHECK(distance(matrix_d(unvec(otimes::kron_sum(S, S) * vec(X), 20, 20)), matrix_d(S * X + X * S.transpose())) <
          1e-10);
    CHECK_THROWS_AS(static_cast<void>(unvec(kron(A, B) * vec(X), 25, 31)), otimes::shape_error);
}

TEST_CASE("sums and products of krons that are not square have images of stacked matrices, too") {
    using otimes::vec, otimes::vec_r;
    const matrix_d A = random(3, 2, 1), B = random(4, 5, 2), C = random(3, 2, 3), D = random(4, 5, 4);
    const matrix_d E = random(2, 6, 5), F = random(5, 7, 6), X = random(5, 2, 7), Z = random(7, 6, 8);
    const auto check = [](const auto& stacked, const matrix_d& want) {
        CHECK(stacked.matrix().rows() == want.rows());
        CHECK(distance(matrix_d(stacked.matrix()), want) < 1e-12);
    };
    const auto S = kron(A, B) - 2.0 * kron(C, D);
    const matrix_d image = B * X * A.transpose() - 2.0 * D * X * C.transpose();
    check(S * vec(X), image);
    check(S * vec_r(matrix_d(X.transpose())), image.transpose());
    check(kron(A, B) * kron(E, F) * vec(Z), B * F * Z * E.transpose() * A.transpose());  // one kron
    check((S * (kron(E, F) + kron(E, F))) * vec(Z),
          2.0 * (B * F * Z * E.transpose() * A.transpose() - 2.0 * D * F * Z * E.transpose() * C.transpose()));
    CHECK_THROWS_AS(static_cast<void>(S * vec(matrix_d(X.transpose()))), otimes::shape_error);  // no cut
    CHECK_THROWS_AS(static_cast<void>(S * vec(Z)), otimes::shape_error);
}

TEST_CASE("a stacked matrix that does not fit: other entries, or no cut between the factors") {
    using otimes::vec, otimes::vec_r;
    const matrix_d A = random(2, 3, 1), B = random(2, 4, 2), X = random(12, 12, 3), Z = random(6, 2, 4);
    const auto text = [](const auto& f) { return support::text_of<otimes::shape_error>(f); };
    vector_d y;
    CHECK(text([&] { y = kron(A, B) * vec(X); }) ==
          "otimes: kron(F1, F2) * vec(X): X is 12 x 12, vec(X) has 144 entries, but kron(F1, F2) has 12 columns. They "
          "must be equally many.");
    CHECK(text([&] { y = kron(A, B) * vec(Z); }) ==
          "otimes: kron(F1, F2) * vec(X): X is 6 x 2, but no cut between the factors has columns that multiply to 2 in "
          "front of it and to 6 behind it. Write K * vec(X).toVector(); of device memory, K times a device_map of one "
          "column over it.");
    CHECK(
        text([&] { y = kron(A, B) * vec_r(Z); }) ==
        "otimes: kron(F1, F2) * vec_r(X): X is 6 x 2, but no cut between the factors has columns that multiply to 6 in "
        "front of it and to 2 behind it. Write K * vec_r(X).toVector(); of device memory, K times a device_map of one "
        "column over it.");
    CHECK(y.size() == 0);
    y = kron(A, B) * vec(Z).toVector();
    CHECK(support::close(y, times(dense_kron(A, B), vector_d(Z.reshaped())), 12));
}

TEST_CASE("operators with matrices beside them, row-wise products and selections of stacked matrices") {
    using otimes::vec, otimes::vec_r;
    const matrix_d A = random(3, 3, 1), B = random(2, 2, 2), X = random(2, 3, 3), P = random(4, 3, 4),
                   Q = random(4, 2, 5), R = random(3, 2, 6);
    const vector_d d = random<vector_d>(6, 1, 7), x = X.reshaped(), r = R.reshaped<Eigen::RowMajor>();
    Eigen::SparseMatrix<double> W(4, 6);
    W.insert(0, 5) = 2;
    W.insert(3, 1) = -1;
    W.insert(2, 2) = 0.5;
    const matrix_d w = W;
    Eigen::SparseMatrix<double> square = W.transpose() * W;
    const matrix_d s = square;
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    const auto holds = [](const auto& product, const vector_d& want) {
        const vector_d y = product;
        return (y - want).norm() <= 1e-13 && y.size() == want.size();
    };
    CHECK(holds(W * K * vec(X), w * k * x));
    CHECK(holds(W * K * vec_r(R), w * k * r));
    CHECK(holds((square * K * square.transpose() + otimes::identity()) * vec(X), s * k * s.transpose() * x + x));
    CHECK(holds(d.asDiagonal() * K * vec(X), d.asDiagonal() * k * x));
    CHECK(holds(K * d.asDiagonal() * vec(X), k * d.asDiagonal() * x));
    const std::vector<int> rows{4, 1};
    CHECK(holds(K(rows, Eigen::all) * vec(X), k(rows, Eigen::all) * x));
    const auto F = otimes::face_split(P, Q);
    CHECK(holds(F * vec(X), F.toDenseMatrix() * x));
    CHECK(holds(otimes::khatri_rao(A.transpose(), R.transpose()).transpose() * vec_r(matrix_d(X.transpose())),
                otimes::khatri_rao(A.transpose(), R.transpose()).toDenseMatrix().transpose() * x));
    CHECK(holds(otimes::toeplitz(d, d) * vec(X), otimes::kron(otimes::toeplitz(d, d)).toDenseMatrix() * x));
    CHECK(holds(otimes::low_rank(P, P) * vec(matrix_d(P.leftCols(1))), P * P.transpose() * P.col(0)));
    CHECK(holds(2.0 * otimes::identity(6) * vec_r(X), 2.0 * vec_r(X).toVector()));
    // Beside other vectors and stacked matrices; of a temporary, which the product outlives.
    CHECK(holds(square * K * vec(X) + vec(X) - K * vec(X), s * k * x + x - k * x));
    const auto outlives = W * K * vec(matrix_d(2.0 * X));
    const matrix_d elsewhere = matrix_d::Constant(2, 3, 7.0);
    CHECK(holds(outlives, 2.0 * w * k * x));
    matrix_d Y = X;
    vec(Y) = square * K * vec(Y);
    CHECK((Y.reshaped() - s * k * x).norm() <= 1e-13);
    CHECK(support::text_of<otimes::shape_error>([&] { static_cast<void>(W * K * vec(A)); }) ==
          "otimes: operator * X: X is 9 x 1, but the operator is 4 x 6. The rows of X must equal the columns of the "
          "operator.");
}

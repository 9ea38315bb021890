// SPDX-License-Identifier: MIT
// Numbers from products without the product, stacked matrices, row-wise products, selected rows and columns.
#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

TEST_CASE_TEMPLATE("dot, norms and traces without the product", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(3, 4, 1);
    const auto B = random<matrix<Scalar>>(5, 2, 2);
    const auto K = Scalar(2) * kron(A, B);  // 15 x 8
    const matrix<Scalar> k = K.toDenseMatrix();
    const vector<Scalar> x = random<vector<Scalar>>(15, 1, 3);
    const vector<Scalar> y = random<vector<Scalar>>(8, 1, 4);
    CHECK(std::abs(otimes::dot(x, K * y) - x.dot(k * y)) < 1e-12);
    const auto X = random<matrix<Scalar>>(7, 15, 5);
    const auto Z = random<row_major<Scalar>>(7, 8, 6);
    const matrix<Scalar> xk = X * k;
    CHECK(std::abs(otimes::dot(Z, X * K) - (Z.conjugate().cwiseProduct(xk)).sum()) < 1e-11);
    CHECK(otimes::squared_norm(X * K) == doctest::Approx(xk.squaredNorm()));
    CHECK((X * K).squaredNorm() == doctest::Approx(xk.squaredNorm()));
    CHECK((X * K + X * K).norm() == doctest::Approx(2 * xk.norm()));
    CHECK(otimes::squared_norm(3.0 * X * K) == doctest::Approx(9 * xk.squaredNorm()));
    CHECK(distance(otimes::column_squared_norms(X * K), xk.colwise().squaredNorm().transpose()) < 1e-10);
    CHECK(otimes::squared_norm(X.row(2) * K) == doctest::Approx((X.row(2) * k).squaredNorm()));
    CHECK(distance(otimes::column_squared_norms(K * y), (k * y).colwise().squaredNorm().transpose()) < 1e-10);
    const auto S = random<matrix<Scalar>>(3, 3, 7);
    const auto W = random<matrix<Scalar>>(9, 4, 8);
    const matrix<Scalar> s = kron(S, S).toDenseMatrix();
    CHECK(std::abs(otimes::quadratic_trace(W, kron(S, S)) - (W.adjoint() * s * W).trace()) < 1e-11);
    const auto D = random<vector<Scalar>>(3, 1, 9);
    const vector<Scalar> w = random<vector<Scalar>>(9, 1, 10);
    CHECK(std::abs(otimes::dot(w, kron(D.asDiagonal(), S) * w) - w.dot(kron(D.asDiagonal(), S).toDenseMatrix() * w)) <
          1e-12);
    CHECK_THROWS_AS((void)otimes::dot(w, K * y), otimes::shape_error);
}

TEST_CASE_TEMPLATE("dot and trace as Eigen writes them", Scalar, OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const auto A = random<matrix<Scalar>>(3, 4, 1);
    const auto B = random<matrix<Scalar>>(5, 2, 2);
    const auto K = Scalar(2) * kron(A, B);  // 15 x 8
    const matrix<Scalar> k = K.toDenseMatrix();
    const vector<Scalar> x = random<vector<Scalar>>(15, 1, 3);
    const vector<Scalar> y = random<vector<Scalar>>(8, 1, 4);
    const row_vector<Scalar> r = random<row_vector<Scalar>>(1, 15, 5);
    const row_vector<Scalar> s = random<row_vector<Scalar>>(1, 8, 6);
    const auto near = [](const Scalar& got, const Scalar& want) { return std::abs(got - want) < 1e-12; };
    CHECK(near(x.dot(K * y), x.dot(k * y)));
    CHECK(near((K * y).dot(x), (k * y).dot(x)));
    CHECK(near((x + x).dot(3.0 * K * y), Scalar(6) * x.dot(k * y)));
    CHECK(near(s.dot(r * K), s.dot(r * k)));
    CHECK(near(s.transpose().dot(r * K), s.dot(r * k)));
    CHECK(near((r * K).dot(s.transpose()), (r * k).dot(s)));
    CHECK(near((K * y).dot(K * y), (k * y).dot(k * y)));
    CHECK(near(x.dot(K * y + K * y), Scalar(2) * x.dot(k * y)));
    CHECK(near(x.dot((otimes::kron_sum(A * A.adjoint(), B * B.adjoint())) * x),
               x.dot(otimes::kron_sum(A * A.adjoint(), B * B.adjoint()).toDenseMatrix() * x)));
#ifdef NDEBUG  // else Eigen asks, and ends the program
    // Vectors of unequal lengths, also where both sides are evaluated.
    const auto refused = [](const auto& dot, const char* first, const char* second) {
        CHECK(support::text_of<otimes::shape_error>([&] { static_cast<void>(dot()); }) ==
              "otimes: dot(x, y): x is " + std::string(first) + ", y is " + second + ". They must have equal shapes.");
    };
    const vector<std::complex<double>> long_one = vector<std::complex<double>>::Ones(300);
    refused([&] { return y.dot(K * y + K * y); }, "8 x 1", "15 x 1");
    refused([&] { return (K * y + K * y).dot(y); }, "15 x 1", "8 x 1");
    refused([&] { return (K * y).dot(K.transpose() * x); }, "15 x 1", "8 x 1");
    refused([&] { return (r * K).dot(K * y); }, "1 x 8", "15 x 1");
    refused([&] { return long_one.dot(kron(A.real(), B.real()) * y.real()); }, "300 x 1", "15 x 1");
    refused([&] { return y.dot(K * y); }, "8 x 1", "15 x 1");
#endif
    const auto X = random<matrix<Scalar>>(15, 7, 7);
    const auto Z = random<row_major<Scalar>>(8, 7, 8);
    const auto trace_near = [](const Scalar& got, const Scalar& want) { return std::abs(got - want) < 1e-11; };
    CHECK(trace_near((X.transpose() * K * Z).trace(), (X.transpose() * k * Z).trace()));
    CHECK(trace_near((X.adjoint() * K * Z).trace(), (X.adjoint() * k * Z).trace()));
    CHECK(distance((X.transpose() * K * Z).diagonal(), (X.transpose() * k * Z).diagonal()) < 1e-11);
    const auto S = random<matrix<Scalar>>(15, 15, 9);
    const auto L = kron(random<matrix<Scalar>>(3, 3, 10), random<matrix<Scalar>>(5, 5, 11));
    CHECK(trace_near((X.transpose() * (L + otimes::kron(S)) * X).trace(),
                     (X.transpose() * (L.toDenseMatrix() + S) * X).trace()));
    // One vector: the product's rows and columns are cut instead.
    CHECK(trace_near((x.transpose() * K * y).trace(), (x.transpose() * k * y).value()));
}

TEST_CASE("large reductions go range by range: the values, and no memory of the size of Y") {
    const matrix_d A = random(9, 11, 1), B = random(10, 8, 2), C = random(11, 9, 3);
    const auto K = kron(A, B, C);  // 990 x 792
    const matrix_d X = random(501, 990, 4);
    const row_major_d R = X;
    const matrix_d Y = X * K;
    const matrix_d V = random(501, 792, 5);
    const row_major_d W = V;
    const double want = V.cwiseProduct(Y).sum();
    const double scale = V.norm() * Y.norm();
    const support::allocation_counter counter;
    const double values[] = {otimes::dot(V, X * K),
                             otimes::dot(W, X * K),
                             otimes::dot(V, R * K),
                             otimes::dot(W, R * K),
                             otimes::dot(V.transpose(), K.transpose() * X.transpose()),
                             (X * K * V.transpose()).trace()};
    const auto seen = counter.seen();
    for (const double value : values) {
        CHECK(std::abs(value - want) <= 1e-13 * scale);
    }
    CHECK(otimes::squared_norm(R * K) == doctest::Approx(Y.squaredNorm()));
    CHECK((otimes::column_squared_norms(R * K) - Y.colwise().squaredNorm().transpose()).norm() <=
          1e-12 * Y.squaredNorm());
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes <= static_cast<std::size_t>(Y.size()) / 9 * sizeof(double));
    }
}

TEST_CASE(
    "norms of single vectors go through size(y) / P1 or 32 KB, in as few pieces of the first factor as these hold") {
    const auto runs_of = [](const auto& reduce) {
        const counting_executor executor;
        const otimes::scoped_executor scope(executor);
        reduce();
        return executor.runs();
    };
    const matrix_d A = random(103, 101, 1), B = random(7, 5, 2), C = random(200, 90, 3), D = random(97, 90, 4);
    const vector_d x = random(505, 1, 5).col(0), z = random(8100, 1, 6).col(0);
    const auto y = times(dense_kron(A, B), matrix_d(x));
    double want = 0;
    for (std::size_t i = 0; i < 721; ++i) {
        want += static_cast<double>(y(i, 0) * y(i, 0));
    }
    double norm = 0;
    CHECK(runs_of([&] { norm = (kron(A, B) * x).squaredNorm(); }) == 1);
    CHECK(norm == doctest::Approx(want));
    const Eigen::RowVectorXd row = x.transpose();
    CHECK(runs_of([&] { norm = (row * kron(A, B).transpose()).squaredNorm(); }) == 1);
    CHECK(norm == doctest::Approx(want));
    CHECK(runs_of([&] { norm = otimes::column_squared_norms(kron(A, B) * x)(0); }) == 1);
    CHECK(norm == doctest::Approx(want));
    const support::allocation_counter counter;
    CHECK(runs_of([&] { norm = (kron(C, D) * z).squaredNorm(); }) == 5);  // 42 pieces of 97 doubles at a time
    const auto seen = counter.seen();
    CHECK(norm == doctest::Approx(vector_d(kron(C, D) * z).squaredNorm()));
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes < 200 * 97 * sizeof(double));  // the size of the product
    }
}

TEST_CASE_TEMPLATE("numbers from a single vector apply a factor no more often than the product of it does", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    Index fibres = 0;
    const auto B = random<matrix<Scalar>>(30, 30, 1), C = random<matrix<Scalar>>(20, 20, 2);
    const auto counted = otimes::matrix_free<Scalar>(30, 30, [&](bool transposed, const auto& in, auto& out) {
        fibres += in.cols();
        if (transposed) {
            out.noalias() = B.transpose() * in;
        } else {
            out.noalias() = B * in;
        }
    });
    for (const auto& A : {random<matrix<Scalar>>(60, 2, 3), random<matrix<Scalar>>(2, 60, 4)}) {
        const auto K = kron(A, counted, C);
        const auto x = random<vector<Scalar>>(K.rows(), 1, 5), y = random<vector<Scalar>>(K.cols(), 1, 6);
        const vector<Scalar> product = kron(A, B, C) * y;
        const Scalar inner = x.dot(product);
        const auto check = [&](const auto& number, const Scalar& want, Index most) {
            fibres = 0;
            const Scalar value = number();
            CHECK(std::abs(value - want) < 1e-12 * product.norm() * x.norm());
            CHECK(fibres <= most);
        };
        const Index once = 2 * 20;  // what A leaves, or takes: fewer than 60 * 20
        check([&] { return Scalar((K * y).norm()); }, Scalar(product.norm()), once);
        check([&] { return Scalar((y.transpose() * K.transpose()).norm()); }, Scalar(product.norm()), once);
        check([&] { return x.dot(K * y); }, inner, once);
        check([&] { return otimes::dot(K * y, x); }, Eigen::numext::conj(inner), once);
        check([&] { return (x.adjoint() * K * y).trace(); }, inner, once);
    }
}

TEST_CASE("numbers from a single vector store a part of the product, whatever the structure of the first factor") {
    const matrix_d A = random(40, 40, 1), B = random(50, 50, 2), C = random(50, 50, 3), U = random(40, 3, 4);
    const vector_d x = random(100000, 1, 5), y = random(100000, 1, 6), c = random(40, 1, 7);
    const Eigen::SparseMatrix<double> S = A.sparseView(0.7, 1.0);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(40);
    P.setIdentity();
    std::swap(P.indices()(3), P.indices()(17));
    const auto check = [&](const otimes::kron_expr<double>& K) {
        const vector_d product = K * y;
        for (int run = 0; run < 2; ++run) {
            const support::allocation_counter counter;
            const double values[] = {x.dot(K * y), (K * y).squaredNorm(), otimes::column_squared_norms(K * y)(0),
                                     otimes::dot(x.transpose(), y.transpose() * K.transpose())};
            const auto seen = counter.seen();
            CHECK(values[0] == doctest::Approx(x.dot(product)));
            CHECK(values[1] == doctest::Approx(product.squaredNorm()));
            CHECK(values[2] == doctest::Approx(product.squaredNorm()));
            CHECK(values[3] == doctest::Approx(x.dot(product)));
            if (run > 0 && support::allocations_are_counted()) {
                CHECK(seen.largest_bytes <= 40000);  // of 800 000
            }
        }
    };
    check(kron(S, B, C));
    check(kron(P, B, C));
    check(kron(A.triangularView<Eigen::Lower>(), B, C));
    check(kron(A.selfadjointView<Eigen::Lower>(), B, C));
    check(kron(otimes::low_rank(U, U), B, C));
    check(kron(otimes::circulant(c), B, C));
}

TEST_CASE("a dot product takes size(y) / P1 of memory") {
    const matrix_d A = random(16, 16, 1), B = random(16, 16, 2);
    const auto K = kron(A, B, A);
    const vector_d x = random<vector_d>(4096, 1, 3), y = random<vector_d>(4096, 1, 4);
    const double first = otimes::dot(x, K * y);
    const support::allocation_counter counter;
    const double again = x.dot(K * y);
    const auto seen = counter.seen();
    CHECK(first == again);
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes <= 4096 / 16 * sizeof(double) + 64);
    }
    // a block for each element of an identity or a diagonal, of short ones some at a time
    const vector_d d = random<vector_d>(16, 1, 5), e = random<vector_d>(300, 1, 6), z = random<vector_d>(900, 1, 7);
    const auto D = kron(d.asDiagonal(), B, A), I = kron(otimes::identity(16), B, A);
    const auto E = kron(e.asDiagonal(), random(3, 2, 8));
    const double values[] = {otimes::dot(x, D * y), otimes::squared_norm(I * y),
                             otimes::squared_norm(z.transpose() * E)};
    const support::allocation_counter blocks;
    CHECK(values[0] == otimes::dot(x, D * y));
    CHECK(values[1] == otimes::squared_norm(I * y));
    if (support::allocations_are_counted()) {
        CHECK(blocks.seen().largest_bytes <= 4096 / 16 * sizeof(double) + 64);
    }
    CHECK(values[0] == doctest::Approx(x.dot((D * y).eval())));
    CHECK(values[1] == doctest::Approx((I * y).eval().squaredNorm()));
    CHECK(values[2] == doctest::Approx((z.transpose() * E).eval().squaredNorm()));
}

TEST_CASE("operands that were resized after the expression was written are seen before they are read") {
    matrix_d A = random(3, 3, 1), X = random(7, 6, 2);
    vector_d y = random<vector_d>(6, 1, 3);
    const vector_d x = y;
    const auto K = kron(A, random(2, 2, 4));
    const auto product = K * y;
    const auto some = K(std::vector<int>{5, 0}, std::vector<int>{5, 1}) * x.head(2);
    CHECK_THROWS_AS((void)otimes::eigen::diagonal_of_product(X * K, X),
                    otimes::shape_error);  // Eigen asks, but in debug builds alone
    y.resize(5);
    CHECK_THROWS_AS((void)otimes::dot(x, product), otimes::shape_error);
    CHECK_THROWS_AS((void)otimes::squared_norm(product), otimes::shape_error);
    A = random(2, 2, 5);
    CHECK_THROWS_AS((void)some.eval(), otimes::shape_error);
}

TEST_CASE("vec by columns and by rows") {
    const matrix_d A = random(3, 2, 1), B = random(4, 5, 2);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    const matrix_d X = random(5, 2, 3);
    const vector_d by_columns = Eigen::Map<const vector_d>(X.data(), 10);
    CHECK((otimes::vec(X).toVector() - by_columns).norm() == 0);
    const vector_d y = K * otimes::vec(X);
    CHECK(distance(y, k * by_columns) < 1e-13);
    matrix_d Y = poisoned(4, 3);
    otimes::vec(Y) = K * otimes::vec(X);
    CHECK(distance(Y, B * X * A.transpose()) < 1e-13);
    const matrix_d Z = random(2, 5, 4);
    const vector_d z = K * otimes::vec_r(Z);
    CHECK(distance(z, k * otimes::vec_r(Z).toVector()) < 1e-13);
    CHECK(distance(otimes::unvec(y, 4, 3), Y) < 1e-13);
    CHECK(distance(otimes::unvec_r(z, 3, 4), A * Z * B.transpose()) < 1e-13);
    const matrix_d C = random(2, 3, 5);
    const matrix_d W = random(15, 2, 6);  // the columns of X belong to the first factor, the rows to the others
    CHECK(distance((kron(A, B, C) * otimes::vec(W)).toVector(),
                   kron(A, B, C).toDenseMatrix() * otimes::vec(W).toVector()) < 1e-12);
    // [vec-snippet]
    // Y = B X A^T, written with stacked matrices; nothing is stacked, nothing is transposed
    otimes::vec(Y) = kron(A, B) * otimes::vec(X);
    otimes::vec(Y) += 0.5 * (kron(A, B) * otimes::vec(X));
    const vector_d stacked = otimes::vec(Y);             // the columns of Y, one under the other
    const matrix_d back = otimes::unvec(stacked, 4, 3);  // and back
    // [/vec-snippet]
    CHECK(distance(back, 1.5 * B * X * A.transpose()) < 1e-13);
    otimes::vec(Y) -= K * otimes::vec(X) - 2 * (K * otimes::vec(X)) + K * otimes::vec(X);
    CHECK(distance(back, Y) < 1e-13);
    CHECK_THROWS_AS(otimes::vec(Y) += otimes::vec(X), otimes::shape_error);
    // no data movement: the two contractions of B X A^T on X where it lies, for either convention and storage order
    const row_major_d R = X;
    const auto is_bare = [](const otimes::plan& p) {
        return p.source.steps.size() == 2 && p.source.steps[0].kind == otimes::step_kind::contract &&
               p.source.steps[1].kind == otimes::step_kind::contract && p.source.tensors.size() == 5;
    };
    CHECK(is_bare(otimes::make_plan((K * otimes::vec(X)).matrix())));
    CHECK(is_bare(otimes::make_plan((K * otimes::vec(R)).matrix())));
    CHECK(is_bare(otimes::make_plan((kron(B, A) * otimes::vec_r(R)).matrix())));
    CHECK_THROWS_AS((void)(K * otimes::vec(Z)), otimes::shape_error);
    CHECK_THROWS_AS((void)otimes::unvec(y, 5, 3), otimes::shape_error);
    CHECK_THROWS_AS((void)otimes::unvec(vector_d(), std::int64_t(1) << 32, std::int64_t(1) << 32), otimes::shape_error);
    // a matrix of one row or one column at run time, whose entries are an outer stride apart
    const row_major_d by_rows = k;
    CHECK(distance(otimes::unvec(k.topRows(1), 5, 2), otimes::unvec(vector_d(k.row(0)), 5, 2)) == 0);
    CHECK(distance(otimes::unvec_r(by_rows.leftCols(1), 4, 3), otimes::unvec_r(vector_d(k.col(0)), 4, 3)) == 0);
}

TEST_CASE_TEMPLATE("row-wise and column-wise products, selected rows and columns", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(6, 3, 1);
    const auto B = random<matrix<Scalar>>(6, 2, 2);
    const auto C = random<matrix<Scalar>>(6, 4, 3);
    const auto F = otimes::face_split(A, B, C);
    matrix<Scalar> f(6, 24);
    for (Index i = 0; i < 6; ++i) {
        f.row(i) = kron(matrix<Scalar>(A.row(i)), matrix<Scalar>(B.row(i)), matrix<Scalar>(C.row(i))).toDenseMatrix();
    }
    CHECK(distance(F.toDenseMatrix(), f) < 1e-13);
    const auto X = random<matrix<Scalar>>(24, 5, 4);
    CHECK(distance(F * X, f * X) < 1e-12);
    const auto Y = random<matrix<Scalar>>(3, 6, 5);
    CHECK(distance(Y * F, Y * f) < 1e-12);
    const auto R = otimes::khatri_rao(A.transpose(), B.transpose());
    const matrix<Scalar> r = otimes::face_split(A, B).toDenseMatrix().transpose();
    CHECK(distance(R.toDenseMatrix(), r) < 1e-13);
    CHECK(distance(R * matrix<Scalar>(Y.transpose()), r * Y.transpose()) < 1e-12);
    CHECK(distance(matrix<Scalar>(X.topRows(6).transpose()) * R, X.topRows(6).transpose() * r) < 1e-12);
    CHECK_THROWS_AS((void)otimes::face_split(A, matrix<Scalar>(B.topRows(3))), otimes::shape_error);

    // lazy: written where they are assigned, at once where the destination is an operand
    Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> Z = Scalar(2) * F * X;
    CHECK(distance(Z, Scalar(2) * f * X) < 1e-12);
    Z.noalias() -= F * (X + X) * Scalar(3);
    CHECK(distance(Z, Scalar(-4) * f * X) < 1e-12);
    matrix<Scalar> W = X.topRows(6);
    W = R * W;
    CHECK(distance(W, r * X.topRows(6)) < 1e-12);
    W.leftCols(3) += R * matrix<Scalar>(Y.transpose());
    CHECK(distance(W.leftCols(3), r * (X.topRows(6).leftCols(3) + Y.transpose())) < 1e-12);
    matrix<Scalar> V6 = Y;
    CHECK_THROWS_AS(V6 = F * Y, otimes::shape_error);
    CHECK(V6 == Y);

    const auto K = Scalar(2) * kron(A, B);  // 36 x 6
    const matrix<Scalar> k = K.toDenseMatrix();
    const std::vector<std::int64_t> rows{3, 35, 0, 3, 17};
    const std::vector<std::int64_t> cols{5, 1, 1};
    matrix<Scalar> picked(5, 3);
    matrix<Scalar> picked_rows(5, 6);
    for (Index i = 0; i < 5; ++i) {
        picked_rows.row(i) = k.row(static_cast<Index>(rows[static_cast<std::size_t>(i)]));
        for (Index j = 0; j < 3; ++j) {
            picked(i, j) = picked_rows(i, static_cast<Index>(cols[static_cast<std::size_t>(j)]));
        }
    }
    const auto V = random<matrix<Scalar>>(3, 2, 6);
    CHECK(distance(otimes::selected(K, rows, cols) * V, picked * V) < 1e-12);
    const auto U = random<matrix<Scalar>>(2, 5, 7);
    CHECK(distance(U * otimes::selected(K, rows, cols), U * picked) < 1e-12);
    const auto T = random<matrix<Scalar>>(6, 3, 8);
    CHECK(distance(otimes::selected_rows(K, rows) * T, picked_rows * T) < 1e-12);
    const matrix<Scalar> picked_cols = otimes::selected_columns(K, cols).toDenseMatrix();
    CHECK((picked_cols.col(0) - k.col(5)).norm() + (picked_cols.col(2) - k.col(1)).norm() < 1e-12);
    CHECK((otimes::selected(K, {}, cols) * V).rows() == 0);
    CHECK(distance(K(rows, cols) * V, picked * V) < 1e-12);
    const Eigen::VectorXi from_eigen = (Eigen::VectorXi(3) << 5, 1, 1).finished();
    CHECK(distance(U * K(rows, from_eigen), U * picked) < 1e-12);
    CHECK(distance(U * otimes::selected(K, rows, from_eigen), U * picked) < 1e-12);
    CHECK(distance(otimes::selected_rows(K, std::vector<int>{3, 35, 0, 3, 17}) * T, picked_rows * T) < 1e-12);
    CHECK(distance(matrix<Scalar>(otimes::selected_columns(K, from_eigen).toDenseMatrix()), picked_cols) < 1e-12);
    CHECK(distance(otimes::selected_rows(K, 35) * T, picked_rows.row(1) * T) < 1e-12);
    CHECK(distance(K(35, cols) * V, picked.row(1) * V) < 1e-12);
    CHECK(distance(K(rows, otimes::eigen::all_indices()) * T, picked_rows * T) < 1e-12);
    CHECK(distance(matrix<Scalar>(K(otimes::eigen::all_indices(), cols).toDenseMatrix()), picked_cols) < 1e-12);
    CHECK_THROWS_AS((void)K(rows, std::vector<int>{6}), otimes::shape_error);
    CHECK_THROWS_AS((void)otimes::selected(K, {36}, cols), otimes::shape_error);
    CHECK_THROWS_AS((void)otimes::selected_rows(K, {-1}), otimes::shape_error);
    CHECK_THROWS_WITH_AS((void)K(otimes::eigen::all_indices(), std::vector<int>{6}),
                         "otimes: K(rows, cols): column 6 is outside the product, which is 36 x 6.",
                         otimes::shape_error);
}

// Many samples go a few hundred at a time, all blocks of features at once; few samples of many features block by block.
TEST_CASE_TEMPLATE("row-wise products of many and of few samples", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    struct shape {
        Index samples;
        std::vector<Index> features;
    };
    for (const shape& s : {shape{1100, {5, 7}}, shape{700, {3, 5, 4}}, shape{33, {2, 31}}, shape{3, {40, 30}},
                           shape{600, {1, 6}}, shape{2000, {6, 1, 5}}}) {
        std::vector<matrix<Scalar>> factors;
        for (const Index width : s.features) {
            factors.push_back(random<matrix<Scalar>>(s.samples, width, 20 + static_cast<int>(factors.size())));
        }
        const auto F = otimes::face_split(factors);
        matrix<Scalar> f(s.samples, F.cols());
        for (Index i = 0; i < f.rows(); ++i) {
            for (Index j = 0; j < f.cols(); ++j) {
                Scalar entry(1);
                Index rest = j;
                for (std::size_t k = factors.size(); k-- > 0;) {
                    entry *= factors[k](i, rest % factors[k].cols());
                    rest /= factors[k].cols();
                }
                f(i, j) = entry;
            }
        }
        for (const Index columns : {Index{1}, Index{3}}) {
            const auto X = random<matrix<Scalar>>(F.cols(), columns, 31);
            const auto Z = random<row_major<Scalar>>(columns, s.samples, 32);
            auto Y = poisoned<row_major<Scalar>>(s.samples, columns);
            Y = F * X;
            CHECK(distance(Y, f * X) < 1e-11);
            Y -= 2 * F * X;
            CHECK(distance(Y, -(f * X)) < 1e-11);
            auto W = poisoned<matrix<Scalar>>(columns, F.cols());
            W = Z * F;
            CHECK(distance(W, Z * f) < 1e-10);
            const matrix<Scalar> T = F.adjoint() * Z.transpose();
            CHECK(distance(T, f.adjoint() * Z.transpose()) < 1e-10);
        }
    }
}

TEST_CASE("K.block and its other names are ranges of rows and columns") {
    const matrix_d A = random(3, 2, 1), B = random(4, 5, 2), X = random(10, 3, 3), W = random(2, 12, 4);
    const auto K = -2.0 * kron(A, B);  // 12 x 10
    const matrix_d k = K.toDenseMatrix();
    CHECK(distance(K.block(2, 3, 7, 4) * matrix_d(X.topRows(4)), k.block(2, 3, 7, 4) * X.topRows(4)) < 1e-13);
    CHECK(distance(matrix_d(W.leftCols(7)) * K.block(2, 3, 7, 4), W.leftCols(7) * k.block(2, 3, 7, 4)) < 1e-13);
    CHECK(distance(K.middleRows(5, 3) * X, k.middleRows(5, 3) * X) < 1e-13);
    CHECK(distance(K.topRows(5) * X, k.topRows(5) * X) < 1e-13);
    CHECK(distance(K.bottomRows(5) * X, k.bottomRows(5) * X) < 1e-13);
    CHECK(distance(W * K.middleCols(5, 3), W * k.middleCols(5, 3)) < 1e-13);
    CHECK(distance(W * K.leftCols(7), W * k.leftCols(7)) < 1e-13);
    CHECK(distance(W * K.rightCols(7), W * k.rightCols(7)) < 1e-13);
    CHECK(distance(K.block(0, 0, 12, 10) * X, k * X) < 1e-13);
    CHECK(distance(K.block(0, 0, 12, 10).transpose() * W.transpose(), k.transpose() * W.transpose()) < 1e-13);
    CHECK((K.block(12, 10, 0, 0) * matrix_d(0, 3)).rows() == 0);
    CHECK((K.block(4, 10, 2, 0) * matrix_d(0, 3)).eval() == matrix_d::Zero(2, 3));
    CHECK_THROWS_WITH_AS((void)K.block(2, 3, 11, 4),
                         "otimes: K.block(2, 3, 11, 4): it reaches outside the product, which is 12 x 10.",
                         otimes::shape_error);
    constexpr Index most = (std::numeric_limits<Index>::max)();
    for (const auto& wrong : {std::array<Index, 4>{-1, 0, 2, 2},
                              {0, 0, -1, 2},
                              {0, 0, 2, -2},
                              {0, 11, 0, 0},
                              {1, 0, most, 2},
                              {0, 2, 2, most}}) {
        CHECK_THROWS_AS((void)K.block(wrong[0], wrong[1], wrong[2], wrong[3]), otimes::shape_error);
    }
    CHECK_THROWS_AS((void)K.bottomRows(13), otimes::shape_error);
    CHECK_THROWS_AS((void)K.leftCols(-1), otimes::shape_error);
}

TEST_CASE("a stacked matrix is a column of any matrix type; a vector that ends is unstacked into a matrix of its own") {
    const matrix_d A = random(3, 2, 1), B = random(4, 5, 2), X = random(5, 2, 3);
    const auto K = kron(A, B);
    const matrix_d y = K * otimes::vec(X);
    CHECK(distance(y, K.toDenseMatrix() * Eigen::Map<const vector_d>(X.data(), 10)) < 1e-13);
    row_major_d z = poisoned(2, 2);
    z = 2.0 * otimes::vec_r(X);
    CHECK(z.rows() == 10);
    CHECK(z.cols() == 1);
    CHECK(z(1, 0) == 2 * X(0, 1));
    const auto make = [] { return vector_d(vector_d::LinSpaced(6, 1.0, 6.0)); };
    const auto M = otimes::unvec(make(), 2, 3);
    const auto R = otimes::unvec_r(make(), 2, 3);
    const vector_d scribbled = vector_d::Constant(6, -7.0);  // where the vectors were
    CHECK(M(1, 0) == 2);
    CHECK(R(1, 0) == 4);
    CHECK(scribbled(0) == -7);
    CHECK_THROWS_AS((void)otimes::unvec(make(), 4, 3), otimes::shape_error);
}

TEST_CASE("dot products of products and of sums") {
    const matrix_d A = random(2, 2, 80), B = random(3, 3, 81), X = random(6, 2, 82);
    const matrix<std::complex<double>> Z = random<matrix<std::complex<double>>>(6, 2, 83);
    const auto K = kron(A, B);
    const auto S = K + kron(B, A);
    const matrix_d kx = K * X, sx = S * X;
    CHECK(otimes::dot(K * X, X) == doctest::Approx((kx.array() * X.array()).sum()));
    CHECK(otimes::dot(K * X, K * X) == doctest::Approx(kx.squaredNorm()));
    CHECK(otimes::dot(A(0, 0) * X, S * X) == doctest::Approx(A(0, 0) * (sx.array() * X.array()).sum()));
    CHECK(otimes::dot(K * X, S * X) == doctest::Approx((kx.array() * sx.array()).sum()));
    const std::complex<double> z = otimes::dot(K * Z, Z);
    CHECK(std::abs(z - ((K * Z).eval().conjugate().array() * Z.array()).sum()) < 1e-12);
    CHECK_THROWS_AS((void)otimes::dot(A, S * X), otimes::shape_error);
    CHECK(distance(otimes::column_squared_norms(S * X), sx.colwise().squaredNorm().transpose()) < 1e-13);
    CHECK(distance(otimes::column_squared_norms(K * X - X), (kx - X).colwise().squaredNorm().transpose()) < 1e-13);
    CHECK(otimes::quadratic_trace(X, S) == doctest::Approx((sx.array() * X.array()).sum()));
}

TEST_CASE("reductions of products without elements are zero, also where the first factor has no rows to cut") {
    const matrix_d none(0, 3), B = random(2, 2, 94), v = random(6, 1, 95);
    const auto K = kron(none, B);
    CHECK((K * vector_d(v)).squaredNorm() == 0);
    CHECK(otimes::dot(vector_d(0), K * vector_d(v)) == 0);
    CHECK(otimes::column_squared_norms(K * vector_d(v)) == vector_d::Zero(1));
    CHECK((v.transpose() * K.transpose()).norm() == 0);
    CHECK(otimes::dot(v, K.transpose() * vector_d(0)) == 0);
}

TEST_CASE("multiples of stacked matrices, vectors as their values, sums of krons applied to them") {
    const matrix_d A = random(3, 3, 84), B = random(2, 2, 85), X = random(2, 3, 86), R = random(3, 2, 87);
    const vector_d x = otimes::vec(X), y = random<vector_d>(6, 1, 88);
    CHECK(vector_d(otimes::vec(X) * 2) == 2 * x);
    CHECK(vector_d(otimes::vec(X) / 2) == x / 2);
    CHECK(vector_d(-otimes::vec(X)) == -x);
    const auto L = otimes::kron_sum(A, B);
    CHECK(distance(vector_d(L * otimes::vec(X)), L.toDenseMatrix() * x) < 1e-13);
    CHECK(distance(vector_d(L * otimes::vec_r(R)), L.toDenseMatrix() * otimes::vec_r(R).toVector()) < 1e-13);
    matrix_d Y = X;
    otimes::vec(Y) = y;
    CHECK(vector_d(otimes::vec(Y)) == y);
    otimes::vec(Y) += kron(A, B) * y;
    CHECK((vector_d(otimes::vec(Y)) - y - kron(A, B).toDenseMatrix() * y).norm() < 1e-13);
    otimes::vec_r(Y) = y;
    CHECK(vector_d(otimes::vec_r(Y)) == y);
    otimes::vec(Y) -= otimes::vec(Y).toVector();
    CHECK(Y.norm() == 0);
    CHECK_THROWS_AS(otimes::vec(Y) = vector_d(5), otimes::shape_error);

    // A factor of one column may act on either side: A goes with the columns of X. Another shape of as many entries is no error.
    const matrix_d thin = random(3, 1, 89), wide = random(4, 6, 90), tall = random(6, 1, 91), flat = random(1, 6, 92);
    matrix_d Z = poisoned(4, 3);
    otimes::vec(Z) = kron(thin, wide) * otimes::vec(tall);
    CHECK(distance(Z, wide * tall * thin.transpose()) < 1e-13);
    Z = poisoned(6, 4);
    otimes::vec(Z) = kron(wide, tall) * otimes::vec(flat);
    CHECK(distance(Z, tall * flat * wide.transpose()) < 1e-13);
    Z = poisoned(4, 3);
    otimes::vec_r(Z) = kron(wide, thin) * otimes::vec_r(tall);
    CHECK(distance(Z, wide * tall * thin.transpose()) < 1e-13);
    Z = poisoned(4, 1);
    otimes::vec(Z) = kron(wide) * otimes::vec(tall);
    CHECK(distance(Z, wide * tall) < 1e-13);
    Z = poisoned(2, 6);
    otimes::vec(Z) = kron(thin, wide) * otimes::vec(tall);
    CHECK(distance(otimes::vec(Z).toVector(), kron(thin, wide).toDenseMatrix() * tall) < 1e-13);
    CHECK_THROWS_AS(otimes::vec(Z) = otimes::vec(tall), otimes::shape_error);

    const vector_d image = kron(A, B).toDenseMatrix() * x;
    CHECK((vector_d(y + kron(A, B) * otimes::vec(X)) - y - image).norm() < 1e-13);
    CHECK((vector_d(kron(A, B) * otimes::vec(X) - y) - image + y).norm() < 1e-13);
    CHECK(vector_d(y - otimes::vec_r(R)) == y - otimes::vec_r(R).toVector());
    CHECK_THROWS_AS((void)(vector_d(5) + otimes::vec(X)), otimes::shape_error);
    CHECK(distance(otimes::unvec(kron(A, B) * x, 2, 3), B * X * A.transpose()) < 1e-13);
    CHECK(distance(otimes::unvec_r(x.transpose() * kron(A, B).transpose(), 3, 2),
                   A * otimes::unvec_r(x, 3, 2) * B.transpose()) < 1e-13);
    CHECK_THROWS_AS((void)otimes::unvec(kron(A, B) * x, 3, 3), otimes::shape_error);
    const auto rectangular = kron(A, B.leftCols(1)) + kron(A, B.rightCols(1));
    CHECK_THROWS_AS((void)(rectangular * otimes::vec(A)), otimes::shape_error);
}

TEST_CASE("views are stacked as matrices are; a stacked temporary is owned by its product") {
    const matrix_d A = random(3, 5, 93), B = random(4, 2, 94), X = random(2, 5, 95);
    const matrix_d want = B * X * A.transpose();
    matrix_d Y = matrix_d::Zero(6, 5);
    otimes::vec(Y.block(1, 2, 4, 3)) = kron(A, B) * otimes::vec(X);
    CHECK(distance(Y.block(1, 2, 4, 3), want) < 1e-13);
    CHECK(Y.leftCols(2).norm() + Y.row(0).norm() + Y.row(5).norm() == 0);
    matrix_d Z = matrix_d::Ones(3, 4);
    otimes::vec_r(Z.transpose()) += kron(B, A) * otimes::vec_r(X);
    CHECK(distance(Z, (want + matrix_d::Ones(4, 3)).transpose()) < 1e-13);
    otimes::vec(Y.topRows(4).leftCols(3)) = vector_d::LinSpaced(12, 0, 11);
    CHECK(Y(1, 2) == 9);

    const auto by_columns = kron(A, B) * otimes::vec(matrix_d(X));
    const auto by_rows = kron(B, A) * otimes::vec_r(matrix_d(X));
    const matrix_d elsewhere = matrix_d::Constant(2, 5, 7.0), elsewhere_too = matrix_d::Constant(2, 5, 7.0);
    CHECK(distance(by_columns.toVector(), otimes::vec(want).toVector()) < 1e-13);
    CHECK(distance(by_rows.toVector(), otimes::vec_r(want).toVector()) < 1e-13);
    CHECK(std::is_same_v<decltype(otimes::vec(matrix_d(X)).matrix()), matrix_d&&>);
    CHECK(std::is_same_v<decltype(otimes::vec(X).matrix()), const matrix_d&>);
}

TEST_CASE("row-wise products and selections of mixed scalars") {
    using complex_matrix = matrix<std::complex<double>>;
    const matrix_d A = random(3, 2, 89), B = random(3, 4, 90);
    const complex_matrix C = random<complex_matrix>(3, 2, 91), X = random<complex_matrix>(8, 2, 92);
    const complex_matrix ab = otimes::face_split(A, B).toDenseMatrix();
    CHECK(distance(otimes::face_split(A, B) * X, ab * X) < 1e-13);
    CHECK((X.transpose() * otimes::khatri_rao(A.transpose(), B.transpose()) - X.transpose() * ab.transpose()).norm() <
          1e-13);
    const complex_matrix bc = otimes::face_split(B, C).toDenseMatrix();
    CHECK(std::abs(bc(1, 3) - B(1, 1) * C(1, 1)) < 1e-15);
    CHECK(otimes::face_split(B, C).adjoint().toDenseMatrix() == bc.adjoint());
    CHECK(otimes::face_split(B, C).conjugate().toDenseMatrix() == bc.conjugate());
    const matrix_d wide = matrix_d::Ones(1, 1 << 16);
    CHECK_THROWS_AS((void)otimes::face_split(wide, wide, wide, wide), otimes::shape_error);

    const std::vector<int> rows{1, 8, 1}, cols{0, 5};
    const auto K = kron(A, B);
    const matrix_d picked = K(rows, cols).toDenseMatrix();
    CHECK(picked(1, 1) == K(8, 5));
    const complex_matrix Z = X.topRows(2);
    CHECK(distance(K(rows, cols) * Z, picked * Z) < 1e-13);
    CHECK(distance((Z.transpose() * K(rows, cols).transpose()), Z.transpose() * picked.transpose()) < 1e-13);
    const std::vector<int> few{0, 3};
    const auto Kc = kron(A, C);
    CHECK(Kc(rows, few).adjoint().toDenseMatrix() == Kc(rows, few).toDenseMatrix().adjoint());

    const std::complex<double> i(0, 1);
    CHECK((2 * otimes::face_split(A, B)).toDenseMatrix() == 2 * otimes::face_split(A, B).toDenseMatrix());
    CHECK((-otimes::khatri_rao(A.transpose(), B.transpose()) * 2).toDenseMatrix() ==
          -2 * otimes::face_split(A, B).toDenseMatrix().transpose());
    CHECK((i * otimes::face_split(A, B)).toDenseMatrix() == i * ab);
    CHECK((K(rows, cols) * 3).toDenseMatrix() == 3 * picked);
    CHECK((i * K(rows, cols)).toDenseMatrix() == i * picked);
}

TEST_CASE("the snippets of docs/algebra") {
    const matrix_d A = random(6, 3, 1), B = random(6, 2, 2), X = random(6, 4, 3), D = random(5, 6, 4);
    matrix_d Y, Z, S;
    // [khatri-rao-snippet]
    using otimes::face_split, otimes::khatri_rao;
    Y = face_split(A, B) * X;                          // row i of the product: kron(A.row(i), B.row(i))
    Z = D * khatri_rao(A.transpose(), B.transpose());  // column j: kron(of the j-th columns)
    // [/khatri-rao-snippet]
    matrix_d f(6, 6);
    for (Index i = 0; i < 6; ++i) {
        f.row(i) = kron(matrix_d(A.row(i)), matrix_d(B.row(i))).toDenseMatrix();
    }
    CHECK(distance(Y, f * X) < 1e-13);
    CHECK(distance(Z, D * f.transpose()) < 1e-13);
    static_assert(otimes::detail::index_list<std::array<unsigned, 2>> &&
                  !otimes::detail::index_list<std::vector<bool>>);
    // [selected-snippet]
    // data at some points of a grid: rows 3, 35, 0 of K, all of its columns; then some of each
    const std::vector<int> seen{3, 35, 0}, used{5, 1};
    const auto K = kron(A, B);  // 36 x 6
    S = K(seen, used) * X.topRows(2);
    // [/selected-snippet]
    const matrix_d k = K.toDenseMatrix();
    CHECK((S.row(1) - k(35, 5) * X.row(0) - k(35, 1) * X.row(1)).norm() < 1e-13);
}

TEST_CASE_TEMPLATE("K(rows, all) and K(all, cols), few and many of them", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(6, 5, 431);
    const auto B = random<matrix<Scalar>>(9, 7, 432);
    const auto C = random<row_major<Scalar>>(40, 30, 433);
    const auto all = otimes::eigen::all_indices();
    const auto K = Scalar(2) * kron(A, B, C);  // 2160 x 1050
    const matrix<Scalar> k = K.toDenseMatrix();
    std::vector<Index> few{2159, 0, 17, 17}, many;
    for (Index i = 0; i < 1500; ++i) many.push_back((i * 7) % 1050);
    const auto check = [&](const std::vector<Index>& list) {
        const auto count = static_cast<Index>(list.size());
        std::vector<Index> within = list;
        for (Index& i : within) i %= 1050;
        const matrix<Scalar> rows = k(list, all), cols = k(all, within);
        for (const Index c : {1, 3}) {
            const auto X = random<matrix<Scalar>>(1050, c, 434), Z = random<matrix<Scalar>>(count, c, 435);
            matrix<Scalar> Y = random<matrix<Scalar>>(count, c, 436), want = Y;
            Y.noalias() -= Scalar(3) * (K(list, all) * X);
            want -= Scalar(3) * (rows * X);
            CHECK(distance(Y, want) < 1e-9);
            CHECK(distance(evaluated(K(all, within) * Z), cols * Z) < 1e-9);
            const row_major<Scalar> Xt = X.transpose(), Zt = Z.transpose();
            CHECK(distance(evaluated(Zt * K(list, all)), Zt * rows) < 1e-9);
            const auto W = random<matrix<Scalar>>(2160, c, 437);
            CHECK(distance(evaluated(W.transpose() * K(all, within)), W.transpose() * cols) < 1e-9);
            CHECK(distance(evaluated(K(list, all).adjoint() * Z), rows.adjoint() * Z) < 1e-9);
        }
        CHECK(distance(matrix<Scalar>(K(list, all).toDenseMatrix()), rows) < 1e-12);
    };
    check(few);
    check(many);
    check({});
    matrix<Scalar> x = random<matrix<Scalar>>(1050, 2, 438);  // its own destination
    const matrix<Scalar> want = k(many, all) * x;
    x = K(many, all) * x;
    CHECK(distance(x, want) < 1e-9);
    const auto real = kron(A.real().eval(), B.real().eval());  // real factors beside complex numbers
    const auto z = random<matrix<std::complex<double>>>(35, 2, 439);
    const matrix<std::complex<double>> wide = real.toDenseMatrix()(std::vector<Index>{53, 1}, all) * z;
    CHECK(distance(matrix<std::complex<double>>(real(std::vector<Index>{53, 1}, all) * z), wide) < 1e-12);
}

TEST_CASE("K(rows, all) takes no more memory than some times X and the result") {
    if (!support::allocations_are_counted()) return;
    const matrix_d A = random(12, 12, 441);
    const auto K = kron(A, A, A);
    const auto all = otimes::eigen::all_indices();
    for (const Index count : {Index(1), Index(20), Index(1728)}) {
        std::vector<Index> list;
        for (Index i = 0; i < count; ++i) list.push_back((i * 5) % 1728);
        const auto S = K(list, all);
        const matrix_d x = random(1728, 1, 442);
        matrix_d y(count, 1);
        y.noalias() = S * x;  // planned
        const support::allocation_counter counter;
        y.noalias() = S * x;
        const auto seen = counter.seen();
        CHECK(seen.total_bytes <= 8 * 4 * static_cast<std::size_t>(1728 + count));
    }
}

TEST_CASE("rows of thin factors are taken together: X is small, the result is not") {
    if (!support::allocations_are_counted()) return;
    const matrix_d A = random(101, 2, 443), B = random(90, 3, 444);
    const auto K = kron(A, B);  // 9090 x 6
    const auto all = otimes::eigen::all_indices();
    std::vector<Index> list;
    for (Index i = 0; i < 2000; ++i) list.push_back((i * 7) % 9090);
    const matrix_d x = random(6, 1, 445);
    matrix_d y(2000, 1), w(2000, 1);
    const auto S = K(list, all);
    const auto T = kron(A.transpose().eval(), B.transpose().eval())(all, list);
    const support::allocation_counter counter;
    y.noalias() = S * x;
    w.noalias() = T.transpose() * x;
    matrix_d v(6, 1);
    v.noalias() = T * y;
    const auto seen = counter.seen();
    CHECK(seen.count < 1000);                                   // one by one: tens of thousands
    CHECK(seen.total_bytes <= 3 * 8 * 16 * (6 + list.size()));  // three products
    const matrix_d rows = K.toDenseMatrix()(list, all);
    CHECK(distance(y, rows * x) < 1e-12);
    CHECK(distance(w, rows * x) < 1e-12);
    CHECK(distance(v, rows.transpose() * y) < 1e-9);
}

TEST_CASE_TEMPLATE("selections in sums and between operators", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(3, 3, 451), B = random<matrix<Scalar>>(4, 4, 452);
    const auto C = random<matrix<Scalar>>(12, 5, 453);
    const auto K = kron(A, B), L = Scalar(2) * kron(B, A);  // 12 x 12
    const matrix<Scalar> k = K.toDenseMatrix(), l = L.toDenseMatrix();
    const auto all = otimes::eigen::all_indices();
    const std::vector<int> some{7, 0, 11, 4, 4}, others{1, 2, 3, 8, 10};
    const matrix<Scalar> s = k(some, some), t = l(others, some);
    const vector<Scalar> d = random<vector<Scalar>>(5, 1, 454);
    const auto X = random<matrix<Scalar>>(5, 2, 455);
    const matrix<Scalar> unit = matrix<Scalar>::Identity(5, 5);
    const auto same_matrix = [&](const auto& op, const matrix<Scalar>& want) {
        CHECK(op.rows() == want.rows());
        CHECK(distance(matrix<Scalar>(op.toDenseMatrix()), want) < 1e-12);
        const auto Z = random<matrix<Scalar>>(want.cols(), 2, 456);
        CHECK(distance(evaluated(op * Z), want * Z) < 1e-11);
        CHECK(distance(evaluated(op.adjoint() * random<matrix<Scalar>>(want.rows(), 2, 457)),
                       want.adjoint() * random<matrix<Scalar>>(want.rows(), 2, 457)) < 1e-11);
    };
    const auto same = [&](const auto& op, const auto& want) { same_matrix(op, evaluated(want)); };
    same(K(some, some) + 0.5 * otimes::identity(), s + 0.5 * unit);
    same(otimes::identity(5) - K(some, some), unit - s);
    same(K(some, some) - matrix<Scalar>::Identity(5, 5), s - unit);
    same(K(some, some) + d.asDiagonal(), s + matrix<Scalar>(d.asDiagonal()));
    same(d.asDiagonal() - Scalar(2) * K(some, some), matrix<Scalar>(d.asDiagonal()) - Scalar(2) * s);
    same(K(some, some) + L(others, some), s + t);
    same(K(some, some) - L(others, some) + K(some, others), s - t + k(some, others));
    same(K(some, all) * L(all, others), k(some, all) * l(all, others));
    same(K(some, all) * L, k(some, all) * l);
    same(L * K(all, some), l * k(all, some));
    same(d.asDiagonal() * K(some, others), d.asDiagonal() * k(some, others));
    same(-K(some, others), -k(some, others));
    same(K(some, others) * kron(random<matrix<Scalar>>(5, 3, 458)),
         k(some, others) * random<matrix<Scalar>>(5, 3, 458));
    const Eigen::SparseMatrix<Scalar> W = matrix<Scalar>(C.topRows(5)).sparseView();
    same(W.transpose() * K(some, some) * W + otimes::identity(), matrix<Scalar>(W.transpose()) * s * W + unit);
    otimes::sum_expr<Scalar> grows = K(some, some);
    grows += L(others, some);
    same(grows, s + t);
    CHECK(distance(K(some, some).diagonal(), s.diagonal()) < 1e-13);
    CHECK(std::abs(K(some, some).trace() - s.trace()) < 1e-12);
    CHECK(std::abs(K(some, others)(2, 3) - k(11, 8)) < 1e-14);
    CHECK_THROWS_AS((void)K(some, others)(5, 0), otimes::shape_error);
    CHECK_THROWS_AS((void)K(some, all).trace(), otimes::shape_error);
    CHECK_THROWS_AS((void)(K(some, all) + otimes::identity()), otimes::shape_error);
    CHECK_THROWS_AS((void)(K(some, all) + L), otimes::shape_error);
}

TEST_CASE_TEMPLATE("K(rows, cols) does not look at what is not selected", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    // Equal where finite, else of one kind; complex products of infinities are infinite or NaN as their order has it.
    const auto same = [](const matrix<Scalar>& got, const matrix<Scalar>& want) {
        bool all = got.rows() == want.rows() && got.cols() == want.cols();
        for (Index k = 0; all && k < want.size(); ++k) {
            const double a = std::abs(got.data()[k]), b = std::abs(want.data()[k]);
            all = std::isfinite(b)
                      ? std::abs(got.data()[k] - want.data()[k]) < 1e-10
                      : !std::isfinite(a) && (std::isnan(a) == std::isnan(b) || !std::is_same_v<Scalar, double>);
        }
        return all;
    };
    const auto times_selected = [](const matrix<Scalar>& k, const std::vector<int>& rows, const std::vector<int>& cols,
                                   const matrix<Scalar>& X) {
        matrix<Scalar> y = matrix<Scalar>::Zero(static_cast<Index>(rows.size()), X.cols());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            for (std::size_t j = 0; j < cols.size(); ++j) {
                y.row(static_cast<Index>(i)) += k(rows[i], cols[j]) * X.row(static_cast<Index>(j));
            }
        }
        return y;
    };
    std::vector<int> rows, cols;
    for (int i = 0; i < 12; ++i) {
        rows.push_back((i * 5) % 12);
        cols.push_back(i);
    }
    const auto X = random<matrix<Scalar>>(12, 50, 401);
    const auto check = [&](const auto& K) {
        const matrix<Scalar> k = K.toDenseMatrix();
        for (const std::vector<int>& few : {std::vector<int>{0, 1, 2}, rows}) {
            CHECK(same(K(few, cols) * X, times_selected(k, few, cols, X)));
            const matrix<Scalar> Z = X.transpose();
            CHECK(same(Z * K(cols, few), matrix<Scalar>(times_selected(k.transpose(), few, cols, X).transpose())));
        }
        const matrix<Scalar> one = matrix<Scalar>::Ones(3, 1);
        const std::vector<int> first{0, 1, 2};
        CHECK(same(K(first, first) * one, times_selected(k, first, first, one)));
    };
    for (const double odd : {nan, infinity}) {
        for (const Index at :
             {Index(0), Index(3), Index(12), Index(6)}) {  // column and row of B: (0, 0), (3, 0), (0, 3), (2, 1)
            auto B = random<matrix<Scalar>>(4, 4, 402);
            const auto C = random<matrix<Scalar>>(4, 4, 403);
            B.data()[at] = Scalar(odd);
            check(kron(B, C));
            check(kron(C, B));
            check(kron(C, B.transpose()));
            const Eigen::SparseMatrix<Scalar> S = B.sparseView();
            check(kron(S, C));
            check(kron(C, S.transpose()));
            check(kron(C, otimes::low_rank(C, B)));
            check(kron(C, otimes::low_rank(B, C)));
            check(kron(B.template triangularView<Eigen::Lower>(), C));
        }
        vector<Scalar> d = random<vector<Scalar>>(4, 1, 404);
        d(3) = Scalar(odd);
        check(kron(d.asDiagonal(), random<matrix<Scalar>>(4, 4, 405)));
    }
}

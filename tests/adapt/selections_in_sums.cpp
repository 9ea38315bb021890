// SPDX-License-Identifier: MIT
// Selected rows and columns as terms of sums and between operators: applied by themselves, K is not applied as a whole for a few of its entries.
#include <doctest/doctest.h>

#include <complex>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::kron;

namespace {

// Rows and columns of the oracle's K, entry by entry.
template <class Scalar, class Dense>
matrix<Scalar> picked_of(const Dense& k, const std::vector<int>& rows, const std::vector<int>& cols) {
    matrix<Scalar> result(static_cast<Index>(rows.size()), static_cast<Index>(cols.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t j = 0; j < cols.size(); ++j) {
            const auto entry = k(static_cast<std::size_t>(rows[i]), static_cast<std::size_t>(cols[j]));
            if constexpr (support::is_complex<Scalar>) {
                result(static_cast<Index>(i), static_cast<Index>(j)) = Scalar(
                    static_cast<real_of<Scalar>>(std::real(entry)), static_cast<real_of<Scalar>>(std::imag(entry)));
            } else {
                result(static_cast<Index>(i), static_cast<Index>(j)) = static_cast<Scalar>(entry);
            }
        }
    }
    return result;
}

std::vector<int> points(int count, int step, int extent) {
    std::vector<int> result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int>(static_cast<long long>(i) * step % extent));
    return result;
}

}  // namespace

TEST_CASE_TEMPLATE("sums with selections: every side, layout, transpose", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double, std::complex<float>)) {
    const auto A = random<matrix<Scalar>>(4, 4, 1), B = random<matrix<Scalar>>(5, 5, 2);
    const auto C = random<row_major<Scalar>>(3, 3, 3);
    const auto P = random<matrix<Scalar>>(3, 3, 4), Q = random<matrix<Scalar>>(7, 7, 5);
    const auto K = kron(A, B, C), L = kron(B, C, A);  // 60 x 60
    const auto tolerance = static_cast<real_of<Scalar>>(4000) * std::numeric_limits<real_of<Scalar>>::epsilon();
    const Scalar s(real_of<Scalar>(0.5)),
        t = support::is_complex<Scalar> ? random<matrix<Scalar>>(1, 1, 6)(0, 0) : Scalar(-2);
    for (const int count : {21, 210}) {  // entry by entry; K as a whole
        CAPTURE(count);
        const auto n = static_cast<Index>(count);
        const std::vector<int> seen = points(count, 17, 60), others = points(count, 7, 60);
        const matrix<Scalar> k = picked_of<Scalar>(dense_kron(A, B, C), seen, seen);
        const matrix<Scalar> l = picked_of<Scalar>(dense_kron(B, C, A), others, seen);
        const matrix<Scalar> one = matrix<Scalar>::Identity(n, n);
        const auto check_operator = [&](const auto& op, const matrix<Scalar>& want) {
            REQUIRE(op.rows() == want.rows());
            REQUIRE(op.cols() == want.cols());
            const auto near = [&](const auto& got, const auto& exact) {
                return distance(got, exact) <= tolerance * (real_of<Scalar>(1) + exact.norm());
            };
            for (const Index c : {Index(1), Index(3), Index(70)}) {
                const auto X = random<matrix<Scalar>>(want.cols(), c, 7);
                const auto Z = random<row_major<Scalar>>(c, want.rows(), 8);
                auto Y = poisoned<matrix<Scalar>>(want.rows(), c);
                Y = op * X;
                CHECK(near(Y, evaluated(want * X)));
                Y.noalias() -= s * (op * X);
                CHECK(near(Y, evaluated((Scalar(1) - s) * (want * X))));
                auto R = poisoned<row_major<Scalar>>(c, want.cols());
                R = Z * op;
                CHECK(near(R, evaluated(Z * want)));
                auto T = poisoned<row_major<Scalar>>(want.cols(), c);
                T = op.transpose() * Z.transpose();
                CHECK(near(T, evaluated(want.transpose() * Z.transpose())));
                T = op.adjoint() * Z.transpose();
                CHECK(near(T, evaluated(want.adjoint() * Z.transpose())));
                R = Z * op.conjugate();
                CHECK(near(R, evaluated(Z * want.conjugate())));
            }
            CHECK(near(matrix<Scalar>(op.toDenseMatrix()), want));
            CHECK(near(vector<Scalar>(op.diagonal()), vector<Scalar>(want.diagonal())));
            CHECK(near(vector<Scalar>(op.adjoint().diagonal()), vector<Scalar>(want.adjoint().diagonal())));
            CHECK(std::abs(op(2, 1) - want(2, 1)) <= tolerance * (real_of<Scalar>(1) + std::abs(want(2, 1))));
            CHECK(std::abs(op.adjoint()(2, 1) - want.adjoint()(2, 1)) <=
                  tolerance * (real_of<Scalar>(1) + std::abs(want(1, 2))));
        };
        const auto check = [&](const auto& op, const auto& want) { check_operator(op, evaluated(want)); };
        check(K(seen, seen) + s * otimes::identity(), k + s * one);
        check(t * (K(seen, seen) - L(others, seen)) + s * otimes::identity(), t * (k - l) + s * one);
        if (count == 21) {
            const matrix<Scalar> pq = kron(P, Q).toDenseMatrix();
            const vector<Scalar> d = random<vector<Scalar>>(21, 1, 9);
            const auto W = random<matrix<Scalar>>(6, 21, 10);
            const Eigen::SparseMatrix<Scalar, Eigen::RowMajor> sparse = W.sparseView();
            check(kron(P, Q) * K(seen, seen) + d.asDiagonal(), pq * k + matrix<Scalar>(d.asDiagonal()));
            check(K(seen, seen) * kron(P, Q) * L(others, seen), k * pq * l);
            check((K(seen, seen) + kron(P, Q)) * (L(others, seen) + s * otimes::identity()), (k + pq) * (l + s * one));
            check(sparse * K(seen, seen) * sparse.adjoint() + otimes::identity(),
                  W * k * W.adjoint() + matrix<Scalar>::Identity(6, 6));
            const auto all = otimes::eigen::all_indices();
            const std::vector<int> every = points(60, 1, 60);
            check(K(seen, all) * L * K(all, seen), picked_of<Scalar>(dense_kron(A, B, C), seen, every) *
                                                       matrix<Scalar>(L.toDenseMatrix()) *
                                                       picked_of<Scalar>(dense_kron(A, B, C), every, seen));
        }
    }
}

TEST_CASE("real selections beside complex terms, and complex X") {
    using complex = std::complex<double>;
    const matrix_d A = random(4, 4, 11), B = random(3, 3, 12);
    const auto C = random<matrix<complex>>(4, 4, 13);
    const std::vector<int> seen = points(8, 5, 12);
    const matrix_d k = picked_of<double>(dense_kron(A, B), seen, seen);
    const matrix<complex> l = picked_of<complex>(dense_kron(C, B), seen, seen);
    const auto X = random<matrix<complex>>(8, 5, 14);
    const complex i(0, 1);
    const matrix<complex> one = matrix<complex>::Identity(8, 8);
    const auto real = kron(A, B)(seen, seen) + 2 * otimes::identity();
    CHECK(distance(matrix<complex>(real * X), (k + 2 * matrix_d::Identity(8, 8)) * X) < 1e-12);
    const auto mixed = kron(A, B)(seen, seen) + i * kron(C, B)(seen, seen) + i * otimes::identity();
    CHECK(distance(matrix<complex>(mixed * X), (k + i * l + i * one) * X) < 1e-12);
    CHECK(distance(matrix<complex>(mixed.adjoint() * X), (k + i * l + i * one).adjoint() * X) < 1e-12);
    CHECK(distance(vector<complex>(mixed.diagonal()), vector<complex>((k + i * l + i * one).diagonal())) < 1e-13);
    CHECK(distance(matrix<complex>((i * real) * X), i * (k + 2 * matrix_d::Identity(8, 8)) * X) < 1e-12);
}

TEST_CASE("a sum applies a selection in little memory: 300 points of 8^6") {
    const matrix_d A = random(8, 8, 21), small = matrix_d::Identity(8, 8) + 0.02 * (A + A.transpose());
    const auto K = otimes::kron_power(small, 6);
    const std::vector<int> seen = points(300, 55933, 262144);
    const auto S = K(seen, seen) + 0.5 * otimes::identity();
    const matrix_d k = [&] {
        matrix_d result(300, 300);
        for (Index j = 0; j < 300; ++j) {
            for (Index i = 0; i < 300; ++i) {
                int row = seen[static_cast<std::size_t>(i)], col = seen[static_cast<std::size_t>(j)];
                double entry = i == j ? 0.5 : 0.0, product = 1;
                for (int f = 0; f < 6; ++f, row /= 8, col /= 8) product *= small(row % 8, col % 8);
                result(i, j) = entry + product;
            }
        }
        return result;
    }();
    const matrix_d v = random(300, 1, 22), X = random(300, 100, 23);
    matrix_d y = poisoned(300, 1), Y = poisoned(300, 100);
    const support::allocation_counter counter;
    y.noalias() = S * v;
    Y.noalias() = S.transpose() * X;
    const vector_d d = S.diagonal();
    const auto seen_bytes = counter.seen();
    if (support::allocations_are_counted()) CHECK(seen_bytes.largest_bytes <= 2 * 300 * 100 * sizeof(double));
    CHECK(distance(y, k * v) < 1e-11);
    CHECK(distance(Y, k.transpose() * X) < 1e-10);
    CHECK(distance(d, vector_d(k.diagonal())) < 1e-12);
}

TEST_CASE("K as a whole for a selection of many columns takes memory for some of them at a time") {
    if (!support::allocations_are_counted()) return;
    const matrix_d A = random(64, 64, 31), B = random(64, 64, 32);
    const auto K = kron(A, B);
    const std::vector<int> seen = points(1500, 13, 4096);
    const auto all = otimes::eigen::all_indices();
    const matrix_d X = random(1500, 2000, 33), Z = random(4096, 2000, 34);
    matrix_d Y = poisoned(1500, 2000);
    std::size_t largest = 0, largest_rows = 0;
    {
        const support::allocation_counter counter;
        Y.noalias() = K(seen, seen) * X;
        largest = counter.seen().largest_bytes;
    }
    const matrix_d picked = K(seen, std::vector<int>(seen.begin(), seen.end())).toDenseMatrix();
    CHECK(distance(Y.col(1999), picked * X.col(1999)) < 1e-9 * (picked * X.col(1999)).norm());
    {
        const support::allocation_counter counter;
        Y.noalias() = K(seen, all) * Z;
        largest_rows = counter.seen().largest_bytes;
    }
    CHECK(distance(Y.col(1999), picked_of<double>(dense_kron(A, B), seen, points(4096, 1, 4096)) * Z.col(1999)) < 1e-8);
    CHECK(largest <= (std::size_t(1) << 22) * sizeof(double) + 4096);  // a whole K * X: 65 MB
    CHECK(largest_rows <= (std::size_t(1) << 22) * sizeof(double) + 4096);
}

TEST_CASE("a sum notices that a factor of its selection was resized, before anything is written") {
    matrix_d A = random(4, 4, 41), B = random(3, 3, 42);
    const std::vector<int> seen{0, 11, 5};
    const auto all = otimes::eigen::all_indices();
    const auto S = kron(A, B)(seen, seen) + 0.5 * otimes::identity();
    const auto R = kron(A, B)(seen, all) * kron(A, B) + kron(A, B)(seen, all);
    const matrix_d v = random(3, 2, 43), X = random(12, 2, 44);
    matrix_d y = matrix_d::Constant(3, 2, 7.0);
    const auto product = S * v;
    const auto rows = R * X;
    A = random(3, 3, 45);  // row 11 is gone
    CHECK_THROWS_WITH_AS(y = product, "otimes: K(rows, cols): row 11 is outside the product, which is 9 x 9.",
                         otimes::shape_error);
    CHECK_THROWS_AS(y = S * v, otimes::shape_error);
    CHECK_THROWS_AS(y = v.transpose() * S, otimes::shape_error);
    CHECK_THROWS_AS(y = rows, otimes::shape_error);
    CHECK_THROWS_AS((void)S.diagonal(), otimes::shape_error);
    CHECK_THROWS_AS((void)S(0, 0), otimes::shape_error);
    CHECK(y == matrix_d::Constant(3, 2, 7.0));
    A = random(5, 5, 46);  // other entries at these indices; K(seen, all) has another shape
    CHECK(distance(evaluated(S * v), picked_of<double>(dense_kron(A, B), seen, seen) * v + 0.5 * v) < 1e-13);
    CHECK_THROWS_AS(y = rows, otimes::shape_error);
    CHECK(distance(evaluated(R * random(15, 2, 47)), (picked_of<double>(dense_kron(A, B), seen, points(15, 1, 15)) *
                                                      (kron(A, B).toDenseMatrix() + matrix_d::Identity(15, 15))) *
                                                         random(15, 2, 47)) < 1e-11);
}

TEST_CASE("a sum whose selection reads the destination, and one that outlives what made it") {
    matrix_d A = random(4, 4, 51);
    const matrix_d B = random(3, 3, 52);
    const std::vector<int> seen{3, 11, 5, 2};
    const auto S = kron(A, B)(seen, seen) + 0.5 * otimes::identity();
    const matrix_d X = random(4, 4, 53);
    const matrix_d want = picked_of<double>(dense_kron(A, B), seen, seen) * X + 0.5 * X;
    A = S * X;
    CHECK(distance(A, want) < 1e-13);

    otimes::sum_expr<double> kept;
    {
        auto list = std::make_unique<std::vector<int>>(seen);
        matrix_d F = random(4, 4, 54);
        kept = kron(std::move(F), matrix_d(2 * B))(*list, *list) - otimes::identity();
        list->assign(list->size(), 99);
    }
    const matrix_d F = random(4, 4, 54), twice = 2 * B;
    CHECK(distance(evaluated(kept * X), picked_of<double>(dense_kron(F, twice), seen, seen) * X - X) < 1e-13);
}

TEST_CASE("what is not selected is not seen in a sum") {
    const double infinity = std::numeric_limits<double>::infinity();
    matrix_d A = random(4, 4, 61), B = random(5, 5, 62);
    B(4, 4) = infinity;
    for (const int count :
         {4, 40}) {  // entry by entry, K as a whole; the rows of B's last row, columns of its first one
        std::vector<int> rows, cols;
        for (const int i : points(count, 5, 20)) rows.push_back(i + 4), cols.push_back(i);
        const matrix_d v = random(count, 30, 63);
        const matrix_d k = picked_of<double>(dense_kron(A, B), rows, cols);
        REQUIRE(k.allFinite());
        CHECK(distance(evaluated((kron(A, B)(rows, cols) + 2 * otimes::identity()) * v), k * v + 2 * v) < 1e-11);
    }
}

TEST_CASE("norms, traces, plans and texts of sums with selections") {
    const matrix_d A = random(4, 4, 71), B = random(3, 3, 72);
    const std::vector<int> seen{3, 11, 5, 2, 7};
    const matrix_d k = picked_of<double>(dense_kron(A, B), seen, seen);
    const auto S = kron(A, B)(seen, seen) + 0.5 * otimes::identity();
    const matrix_d s = k + 0.5 * matrix_d::Identity(5, 5);
    CHECK(S.trace() == doctest::Approx(s.trace()));
    CHECK(S.norm() == doctest::Approx(s.norm()));
    std::ostringstream text;
    text << S;
    CHECK(text.str().find("K(rows, cols) 5 x 5") != std::string::npos);
    const otimes::plan p = otimes::make_plan(S * matrix_d(random(5, 2, 73)));
    CHECK(otimes::explain(S * matrix_d(random(5, 2, 73))).find("flops") != std::string::npos);
}

TEST_CASE("the norm of a sum with a selection takes a few of its columns") {
    const matrix_d A = random(4, 4, 74), B = random(3, 3, 75);
    std::vector<int> seen;
    for (int i = 0; i < 300; ++i) seen.push_back((37 * i) % 12);
    const otimes::sum_expr<double> S = kron(A, B)(seen, seen) + 0.5 * otimes::identity();
    const matrix_d s = picked_of<double>(dense_kron(A, B), seen, seen) + 0.5 * matrix_d::Identity(300, 300);
    CHECK(S.norm() == doctest::Approx(s.norm()));
    if (!support::allocations_are_counted()) return;
    const support::allocation_counter counter;
    CHECK(S.norm() > 0);
    CHECK(counter.seen().total_bytes <= 12 * sizeof(double) * (16 + 9 + seen.size()));
}

TEST_CASE("entries of a selection of a K with a function: one application for each column") {
    const matrix_d A = random(4, 4, 76), F = random(5, 5, 77);
    int applications = 0;
    const auto function = otimes::matrix_free<double>(5, 5, [&](bool transposed, const auto& in, auto& out) {
        ++applications;
        out = transposed ? matrix_d(F.transpose() * in) : matrix_d(F * in);
    });
    const auto K = kron(function, A.transpose());
    const std::vector<int> rows{3, 19, 5, 2, 7, 7, 11}, cols{1, 0, 18, 18, 9, 4, 2};
    const matrix_d k = picked_of<double>(dense_kron(F, matrix_d(A.transpose())), rows, cols);
    const matrix_d s = k.transpose() + 0.5 * matrix_d::Identity(7, 7);
    const auto applied = [&](auto&& evaluate) {
        applications = 0;
        evaluate();
        return applications;
    };
    matrix_d got;
    CHECK(applied([&] { got = K(rows, cols).toDenseMatrix(); }) == 7);
    CHECK(distance(got, k) < 1e-13);
    const otimes::sum_expr<double> S = K(rows, cols).transpose() + 0.5 * otimes::identity();
    CHECK(applied([&] { got = S.toDenseMatrix(); }) == 7);
    CHECK(distance(got, s) < 1e-13);
    double norm = 0;
    CHECK(applied([&] { norm = S.norm(); }) <= 3 * 7);
    CHECK(norm == doctest::Approx(s.norm()));
}

TEST_CASE("the diagonal of W * K * W.transpose() with one factor takes the stored elements of W") {
    const matrix_d A = random(50, 50, 91);
    Eigen::SparseMatrix<double> W(60, 50);
    for (int i = 0; i < 60; ++i) W.insert(i, (7 * i) % 50) = 1 + i, W.insert(i, (7 * i + 3) % 50) = -2;
    const matrix_d w = W;
    const auto S = W * kron(A) * W.transpose() + 0.5 * otimes::identity();
    CHECK(distance(vector_d(otimes::sum_expr<double>(S).diagonal()),
                   vector_d((w * A * w.transpose()).diagonal() + vector_d::Constant(60, 0.5))) < 1e-10);
    const std::vector<int> seen = points(50, 3, 60);
    const matrix_d B = random(6, 6, 92), C = random(10, 10, 93);
    const matrix_d k = picked_of<double>(dense_kron(B, C), seen, seen);
    CHECK(distance(vector_d((W * kron(B, C)(seen, seen) * W.transpose() + otimes::identity()).diagonal()),
                   vector_d((w * k * w.transpose()).diagonal() + vector_d::Ones(60))) < 1e-10);
}

// SPDX-License-Identifier: MIT
// Factors that are resized between the writing and the evaluation of a sum, a product or an operator: noticed before anything is read or written.
#include <doctest/doctest.h>

#include <string>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

// Everything that reads a sum of operators, for an X that fits the old shape.
template <class Operator>
void check_refused(const Operator& s, const matrix_d& X, const std::string& text) {
    matrix_d y = matrix_d::Constant(3, 2, 7.0);
    CHECK_THROWS_WITH_AS(y = s * X, text.c_str(), otimes::shape_error);
    CHECK_THROWS_WITH_AS(y = X.transpose() * s, text.c_str(), otimes::shape_error);
    CHECK_THROWS_AS(y = s.transpose() * X, otimes::shape_error);
    CHECK_THROWS_WITH_AS((void)s.diagonal(), text.c_str(), otimes::shape_error);
    CHECK_THROWS_WITH_AS((void)s.toDenseMatrix(), text.c_str(), otimes::shape_error);
    CHECK_THROWS_WITH_AS((void)s(0, 0), text.c_str(), otimes::shape_error);
    CHECK_THROWS_AS((void)s.trace(), otimes::shape_error);
    CHECK_THROWS_AS((void)s.norm(), otimes::shape_error);
    CHECK_THROWS_AS((void)(s * X).squaredNorm(), otimes::shape_error);
    CHECK(y == matrix_d::Constant(3, 2, 7.0));
}

}  // namespace

TEST_CASE("terms of a sum that differ in shape after a factor was resized") {
    matrix_d C = random(4, 4, 1);
    const matrix_d A = random(4, 4, 2), B = random(3, 3, 3), X = random(12, 2, 4);
    const vector_d d = random<vector_d>(12, 1, 5);
    const auto S = kron(A, B) + kron(C, B);
    const auto shifted = kron(C, B) + 0.5 * otimes::identity();
    const auto added = d.asDiagonal() + kron(C, B);
    matrix_d y = matrix_d::Constant(3, 2, 7.0);
    const auto product = S * X;
    for (const Index order : {2, 8}) {
        C = random(order, order, 6);
        const std::string shape = std::to_string(3 * order) + " x " + std::to_string(3 * order);
        const std::string resized = ". They fitted when the expression was written; a matrix was resized since.";
        check_refused(
            S, X,
            "otimes: a sum of 2 terms: part 1 is kron(F1, F2), 12 x 12, part 2 is kron(F1, F2), " + shape + resized);
        check_refused(
            shifted, X,
            "otimes: a sum of 2 terms: part 1 is kron(F1, F2), " + shape + ", part 2 is kron(F1), 12 x 12" + resized);
        check_refused(added, X,
                      "otimes: a sum of 2 terms: part 1 is kron(F1, F2), " + shape +
                          ", part 2 is a diagonal matrix, 12 x 12" + resized);
        CHECK_THROWS_AS(y = product, otimes::shape_error);
    }
    CHECK(y == matrix_d::Constant(3, 2, 7.0));
    C = random(4, 4, 7);
    y = product;
    CHECK(distance(y, (kron(A, B).toDenseMatrix() + kron(C, B).toDenseMatrix()) * X) < 1e-12);
}

TEST_CASE("parts of a product that fit no more after a matrix was resized") {
    matrix_d A = random(4, 4, 11);
    const matrix_d B = random(3, 3, 12), w = random(5, 12, 13), X = random(5, 2, 14);
    Eigen::SparseMatrix<double> W = w.sparseView();
    const otimes::sum_expr<double> S = W * kron(A, B) * W.transpose();
    const std::string resized = ". They fitted when the expression was written; a matrix was resized since.";
    A = random(8, 8, 15);
    check_refused(
        S, X,
        "otimes: a product of 3 operators: part 1 is a sparse matrix, 5 x 12, part 2 is kron(F1, F2), 24 x 24" +
            resized);
    A = random(2, 2, 16);
    check_refused(
        S, X,
        "otimes: a product of 3 operators: part 1 is a sparse matrix, 5 x 12, part 2 is kron(F1, F2), 6 x 6" + resized);
    A = random(4, 4, 17);
    W = random(5, 7, 18).sparseView();
    check_refused(
        S, X,
        "otimes: a product of 3 operators: part 1 is a sparse matrix, 5 x 7, part 2 is kron(F1, F2), 12 x 12" +
            resized);
    W = random(9, 12, 19).sparseView();
    CHECK(S.rows() == 9);
    CHECK(distance(matrix_d(S * random(9, 2, 20)),
                   matrix_d(W) * (kron(A, B).toDenseMatrix() * (matrix_d(W).transpose() * random(9, 2, 20)))) < 1e-11);

    // kron(A, B) * kron(C, B) is one kron, of products.
    matrix_d C = random(4, 4, 21);
    const matrix_d Z = random(12, 2, 22);
    const auto P = kron(A, B) * kron(C, B);
    C = random(2, 2, 23);
    check_refused(P, Z,
                  "otimes: a product of factors: one is 4 x 4, the next 2 x 2. They fitted when the product was "
                  "written; a matrix was resized since.");
    C = random(4, 5, 24);
    CHECK(P.cols() == 15);
    CHECK(distance(matrix_d(P * random(15, 2, 25)),
                   kron(A, B).toDenseMatrix() * (kron(C, B).toDenseMatrix() * random(15, 2, 25))) < 1e-11);
}

TEST_CASE("a sparse matrix that was resized, as a factor and beside a kron") {
    Eigen::SparseMatrix<double> F = random(4, 4, 31).sparseView();
    const matrix_d A = random(4, 4, 32), B = random(3, 3, 33), X = random(12, 2, 34);
    matrix_d y = poisoned(12, 2);
    const auto K = kron(F, B);
    const auto product = K * X;
    y = product;
    CHECK(distance(y, kron(matrix_d(F), B).toDenseMatrix() * X) < 1e-12);
    y.setConstant(7);
    for (const Index order : {6, 2}) {
        F = random(order, order, 35).sparseView();
        CHECK(K.rows() == 3 * order);
        CHECK_THROWS_AS(y = product, otimes::shape_error);
        const matrix_d Z = random(3 * order, 2, 36);
        CHECK(distance(matrix_d(K * Z), kron(matrix_d(F), B).toDenseMatrix() * Z) < 1e-12);
        CHECK(distance(vector_d(K.diagonal()), vector_d(kron(matrix_d(F), B).toDenseMatrix().diagonal())) < 1e-13);
    }
    CHECK(y == matrix_d::Constant(12, 2, 7.0));

    Eigen::SparseMatrix<double, Eigen::RowMajor> W = random(5, 12, 37).sparseView();
    const auto op = W * kron(A, B) * W.transpose() + 0.5 * otimes::identity();
    const matrix_d V = random(5, 2, 38);
    y = matrix_d::Constant(5, 2, 7.0);
    W = random(5, 7, 39).sparseView();
    const char* const text =
        "otimes: W * kron(F1, F2): W is 5 x 7, but kron(F1, F2) is 12 x 12. The columns of W must equal the rows of "
        "the "
        "Kronecker product.";
    CHECK_THROWS_WITH_AS(y = op * V, text, otimes::shape_error);
    CHECK_THROWS_WITH_AS((void)op.diagonal(), text, otimes::shape_error);
    CHECK_THROWS_AS((void)op.toDenseMatrix(), otimes::shape_error);
    CHECK(y == matrix_d::Constant(5, 2, 7.0));
}

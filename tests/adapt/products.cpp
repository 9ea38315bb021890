// SPDX-License-Identifier: MIT
// Every way to write a product with a kron, in double, against the oracle. Sizes are unequal, outputs start as NaN.
#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(4, 1, 2);
const matrix_d C = random(3, 5, 3);
const auto kabc = dense_kron(A, B, C);  // 24 x 15

// Evaluates an expression in every way that an expression can be assigned; `want` is its value.
template <class Expression, class Oracle>
void check_assignments(const Expression& expression, const Oracle& want, std::size_t length) {
    using plain = typename Expression::PlainObject;
    const Index rows = static_cast<Index>(want.rows());
    const Index cols = static_cast<Index>(want.cols());
    REQUIRE(expression.rows() == rows);
    REQUIRE(expression.cols() == cols);

    const plain constructed = expression;
    CHECK(support::close(constructed, want, length));
    CHECK(support::close(expression.eval(), want, length));
    plain assigned;
    assigned = expression;
    CHECK(support::close(assigned, want, length));
    auto over_nan = poisoned<plain>(rows, cols);
    over_nan = expression;
    CHECK(support::close(over_nan, want, length));
    auto quick = poisoned<plain>(rows, cols);
    quick.noalias() = expression;
    CHECK(support::close(quick, want, length));
    auto other_shape = poisoned<matrix_d>(rows + 1, cols + 2);
    other_shape = expression;
    CHECK(support::close(other_shape, want, length));

    const auto start = random<plain>(rows, cols, 77);
    plain sum = start;
    sum += expression;
    CHECK(support::close(sum, plus(start, want), length + 1));
    sum = start;
    sum.noalias() += expression;
    CHECK(support::close(sum, plus(start, want), length + 1));
    sum = start;
    sum -= expression;
    CHECK(support::close(sum, plus(start, scaled(-1.0, want)), length + 1));
    sum = start;
    sum.noalias() -= expression;
    CHECK(support::close(sum, plus(start, scaled(-1.0, want)), length + 1));
}

}  // namespace

TEST_CASE("a kron of identities alone keeps no scalar type when it is transposed") {
    const matrix<float> X = random<matrix<float>>(2, 6, 90);
    const matrix<float> Y = X * kron(otimes::identity(2), otimes::identity(3)).transpose();
    CHECK(Y == X);
    const matrix<float> Z = kron(otimes::identity(2)).adjoint().conjugate() * X;
    CHECK(Z == X);
}

TEST_CASE("X * K and K * X") {
    const auto K = kron(A, B, C);
    const matrix_d X = random(7, 24, 10);
    const matrix_d Z = random(15, 7, 11);
    check_assignments(X * K, times(X, kabc), 24);
    check_assignments(K * Z, times(kabc, Z), 15);
    check_assignments(X.topRows(1) * K, times(matrix_d(X.topRows(1)), kabc), 24);
    check_assignments(Z.transpose() * K.transpose(), oracle::transpose(times(kabc, Z)), 15);
    check_assignments(X * kron(A, B, C), times(X, kabc), 24);
    check_assignments((X + X) * K, scaled(2.0, times(X, kabc)), 24);
}

TEST_CASE("K * v is a column and v^T * K a row, known at compile time") {
    const auto K = kron(A, B, C);
    const vector_d v = random<vector_d>(15, 1, 12);
    const vector_d u = random<vector_d>(24, 1, 13);
    const row_vector_d r = u.transpose();
    static_assert(decltype(K * v)::ColsAtCompileTime == 1);
    static_assert(decltype(u.transpose() * K)::RowsAtCompileTime == 1);
    static_assert(decltype(r * K)::RowsAtCompileTime == 1);
    check_assignments(K * v, times(kabc, v), 15);
    check_assignments(u.transpose() * K, times(matrix_d(u.transpose()), kabc), 24);
    check_assignments(r * K, times(r, kabc), 24);
    check_assignments(u.adjoint() * K, times(r, kabc), 24);
    // A row assigned from a column and back, as Eigen allows for vectors.
    row_vector_d as_row = K * v;
    CHECK(support::close(matrix_d(as_row.transpose()), times(kabc, v), 15));
    vector_d as_column = r * K;
    CHECK(support::close(matrix_d(as_column.transpose()), times(r, kabc), 24));
    const double quadratic = u.transpose() * K * v;
    CHECK(support::close(matrix_d::Constant(1, 1, quadratic), times(times(r, kabc), v), 24 * 15));
    CHECK(support::close(matrix_d::Constant(1, 1, u.dot(K * v)), times(times(r, kabc), v), 24 * 15));
}

TEST_CASE("K1 * X * K2, and more on a side") {
    const auto L = kron(A, C);  // 6 x 15
    const auto lac = dense_kron(A, C);
    const auto R = kron(B, A);  // 8 x 3
    const auto rba = dense_kron(B, A);
    const matrix_d X = random(15, 8, 14);
    const auto want = times(times(lac, X), rba);
    check_assignments(L * X * R, want, 15 * 8);
    check_assignments(L * (X * R), want, 15 * 8);
    check_assignments((2 * L) * X * (R * 0.25), scaled(0.5, want), 15 * 8);
    const matrix_d M = random(3, 4, 15);
    const auto S = kron(M);
    check_assignments(L * X * R * S, times(want, M), 15 * 8 * 3);
    check_assignments(kron(M.transpose().leftCols(3)) * (kron(M) * kron(C.transpose()).toDenseMatrix().topRows(4)),
                      times(matrix_d(M.transpose().leftCols(3)), times(M, matrix_d(C.transpose().topRows(4)))), 12);
}

TEST_CASE("scalar multiples anywhere") {
    const auto K = kron(A, B, C);
    const matrix_d X = random(7, 24, 10);
    const auto product = times(X, kabc);
    check_assignments(2 * X * K, scaled(2.0, product), 24);
    check_assignments(X * 2 * K, scaled(2.0, product), 24);
    check_assignments(X * (2 * K), scaled(2.0, product), 24);
    check_assignments(X * (K * 2), scaled(2.0, product), 24);
    check_assignments(X * K * 2, scaled(2.0, product), 24);
    check_assignments(2 * (X * K), scaled(2.0, product), 24);
    check_assignments(0.5f * X * K * 3 * 2.0, scaled(3.0, product), 24);
    check_assignments(-X * K, scaled(-1.0, product), 24);
    check_assignments(-(X * K), scaled(-1.0, product), 24);
    check_assignments(X * -K, scaled(-1.0, product), 24);
    check_assignments(X * K / 4, scaled(0.25, product), 24);
    check_assignments(X / 4 * K, scaled(0.25, product), 24);
    check_assignments(2.0 * (3.0 * X.transpose()).transpose() * K, scaled(6.0, product), 24);
    check_assignments(X * K * 0, scaled(0.0, product), 24);
    check_assignments(-2.0 * K * (K.transpose() * (3.0 * X.transpose())),
                      scaled(-6.0, times(kabc, times(oracle::transpose(kabc), matrix_d(X.transpose())))), 24 * 15);
}

TEST_CASE("transposes and identities in products") {
    const matrix_d X = random(7, 3 * 2 * 4, 16);
    const auto K = kron(A.transpose(), otimes::identity(2), B);
    const auto want = dense_kron(matrix_d(A.transpose()), matrix_d(matrix_d::Identity(2, 2)), B);
    check_assignments(X * K, times(X, want), 12);
    check_assignments(K.transpose() * X.transpose(), oracle::transpose(times(X, want)), 12);
    check_assignments(3.0 * X * kron(otimes::identity(6), otimes::identity(4)), scaled(3.0, X), 1);
    check_assignments(kron(otimes::identity(7)) * X, oracle::from(X), 1);
    check_assignments(matrix_d::Identity(24, 24) * K, want, 1);
    check_assignments(2.0 * matrix_d::Identity(5, 24) * K,
                      scaled(2.0, times(matrix_d(matrix_d::Identity(5, 24)), want)), 1);
}

TEST_CASE("extents of 0 and 1 are legal") {
    const matrix_d no_rows(0, 3);
    const matrix_d no_cols(3, 0);
    SUBCASE("X without rows") {
        const matrix_d X(0, 24);
        const matrix_d Y = X * kron(A, B, C);
        CHECK(Y.rows() == 0);
        CHECK(Y.cols() == 15);
        matrix_d Z(0, 15);
        CHECK_NOTHROW(Z += X * kron(A, B, C));
    }
    SUBCASE("factors without columns") {
        const auto K = kron(A, no_cols);  // 6 x 0
        const matrix_d X = random(4, 6, 1);
        const matrix_d Y = X * K;
        CHECK(Y.rows() == 4);
        CHECK(Y.cols() == 0);
        CHECK(K.toDenseMatrix().cols() == 0);
    }
    SUBCASE("factors without rows: a sum of nothing is zero") {
        const auto K = kron(A, no_rows);  // 0 x 9
        const matrix_d X(4, 0);
        auto Y = poisoned(4, 9);
        Y = X * K;
        CHECK(support::exactly_equal(Y, matrix_d::Zero(4, 9)));
        auto W = poisoned(4, 9);
        W.noalias() = 2.0 * X * K;
        CHECK(support::exactly_equal(W, matrix_d::Zero(4, 9)));
        const matrix_d start = random(4, 9, 3);
        matrix_d Z = start;
        Z += X * K;
        CHECK(support::exactly_equal(Z, start));
        Z -= 2 * X * K;
        CHECK(support::exactly_equal(Z, start));
        Z = start + X * K;
        CHECK(support::exactly_equal(Z, start));
        vector_d y = vector_d::Constant(9, 5.0);
        y = K.transpose() * vector_d(0);
        CHECK(support::exactly_equal(y, vector_d::Zero(9)));
    }
    SUBCASE("both") {
        const matrix_d nothing(0, 0);
        const matrix_d X(2, 0);
        const matrix_d Y = X * kron(nothing, A);
        CHECK(Y.rows() == 2);
        CHECK(Y.cols() == 0);
    }
    SUBCASE("a zero between large extents does not overflow") {
        const auto large = otimes::identity(Index(1) << 40);
        const auto between = kron(large, matrix_d(0, 0), large);
        CHECK(between.rows() == 0);
        CHECK(between.cols() == 0);
        const auto behind = kron(large, large, matrix_d(0, 0));
        CHECK(behind.rows() == 0);
        CHECK(behind.cols() == 0);
        CHECK_THROWS_AS(kron(large, large, matrix_d(1, 0)), otimes::shape_error);  // its rows do not fit
    }
    SUBCASE("ones") {
        const matrix_d one = matrix_d::Constant(1, 1, 3.0);
        const matrix_d Y = one * kron(one, one);
        CHECK(support::exactly_equal(Y, matrix_d::Constant(1, 1, 27.0)));
    }
}

TEST_CASE("what Eigen multiplies a product with must fit, in release builds too") {
    const auto K = kron(A, B, C);
    const matrix_d X = random(3, 24, 18), Z = random(15, 4, 19);
    const Eigen::SparseMatrix<double> W = Z.sparseView();
    const vector_d d = random<vector_d>(15, 1, 20);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(15);
    P.setIdentity();
    matrix_d Y = random(2, 2, 21);
    const matrix_d before = Y;
    const auto refuses = [&](const auto& assign, const std::string& y, const std::string& z) {
        CHECK_THROWS_WITH_AS(
            assign(),
            ("otimes: Y * Z: Y is " + y + ", Z is " + z + ". The columns of Y must equal the rows of Z.").c_str(),
            otimes::shape_error);
        CHECK(support::exactly_equal(Y, before));
    };
    refuses([&] { Y = X * K * X; }, "3 x 15", "3 x 24");
    refuses([&] { Y = X * (X * K); }, "3 x 24", "3 x 15");
    refuses([&] { Y = (X * K) * (X * K); }, "3 x 15", "3 x 15");
    refuses([&] { Y = W * (X * K); }, "15 x 4", "3 x 15");
    refuses([&] { Y = (K.transpose() * X.transpose()) * W; }, "15 x 3", "15 x 4");
    refuses([&] { Y = d.asDiagonal() * (X * K); }, "15 x 15", "3 x 15");
    refuses([&] { Y = P * (X * K); }, "15 x 15", "3 x 15");
    refuses([&] { Y = Z.topRows(4).triangularView<Eigen::Lower>() * (X * K); }, "4 x 4", "3 x 15");
    refuses([&] { Y(0, 0) = (X * K * X).trace(); }, "3 x 15", "3 x 24");

    Y = X * K * Z;
    CHECK(support::close(Y, times(times(X, kabc), Z), 360));
    Y = X * K * W;
    CHECK(support::close(Y, times(times(X, kabc), Z), 360));
    Y = W.transpose() * (K.transpose() * X.transpose());
    CHECK(support::close(matrix_d(Y.transpose()), times(times(X, kabc), Z), 360));
    Y = (X * K) * d.asDiagonal();
    CHECK(support::close(Y, times(times(X, kabc), matrix_d(d.asDiagonal())), 360));
    Y = (X * K) * P;
    CHECK(support::close(Y, times(X, kabc), 24));
    const auto y = X * K;  // a product of row-wise products takes it as an operand of its own
    const matrix_d C1 = random(15, 3, 22), D1 = random(15, 2, 23), E1 = random(3, 4, 24), F1 = random(2, 4, 25);
    const auto S = otimes::face_split(C1, D1) * otimes::khatri_rao(E1, F1);
    Y = y * S;
    const matrix_d dense = matrix_d(C1 * E1).cwiseProduct(matrix_d(D1 * F1));
    CHECK(support::close(Y, times(times(X, kabc), dense), 360));
}

TEST_CASE("beta 0 never reads the destination, alpha 0 still multiplies") {
    const matrix_d X = random(3, 24, 17);
    const auto K = kron(A, B, C);
    auto Y = poisoned(3, 15);
    Y.noalias() = 0.0 * X * K;
    CHECK(support::exactly_equal(Y, matrix_d::Zero(3, 15)));
    matrix_d wide = poisoned(8, 30);  // between the rows of a block nothing is written either
    wide.block(2, 5, 3, 15) = X * K;
    CHECK(support::close(matrix_d(wide.block(2, 5, 3, 15)), times(X, kabc), 24));
    wide.block(2, 5, 3, 15).setConstant(std::numeric_limits<double>::quiet_NaN());
    CHECK(wide.array().isNaN().all());
}

TEST_CASE("Inf and NaN in the operands come out as multiply-adds give them") {
    matrix_d X = random(4, 24, 18);
    X(1, 3) = std::numeric_limits<double>::quiet_NaN();
    X(2, 5) = std::numeric_limits<double>::infinity();
    const matrix_d Y = X * kron(A, B, C);
    CHECK(Y.row(1).array().isNaN().all());
    CHECK(!Y.row(2).allFinite());
    CHECK(support::close(matrix_d(Y.row(0)), times(matrix_d(X.row(0)), kabc), 24));
    CHECK(support::close(matrix_d(Y.row(3)), times(matrix_d(X.row(3)), kabc), 24));
    // Zeros are multiplied by, too; what no sum meets stays finite.
    matrix_d Z = A, N = A;
    Z.col(0).setZero();
    N(0, 0) = std::numeric_limits<double>::quiet_NaN();
    const Index first = B.cols() * C.cols();  // columns that come of column 0 of A
    for (const row_major_d& x : {row_major_d(X), row_major_d(X.middleRows(1, 2))}) {
        const Index nan = x.rows() == 4 ? 1 : 0;
        const row_major_d of_zeros = x * kron(Z, B, C), of_nan = x * kron(N, B, C);
        CHECK(of_zeros.middleRows(nan, 2).leftCols(first).array().isNaN().all());
        CHECK(of_nan.leftCols(first).array().isNaN().all());
        CHECK((x.rows() == 2 || of_nan.row(3).rightCols(of_nan.cols() - first).allFinite()));
    }
}

TEST_CASE("powers of two come out exactly") {
    const auto P = support::powers_of_two_matrix<matrix_d>(3, 2, 1);
    const auto Q = support::powers_of_two_matrix<matrix_d>(5, 7, 2);
    const auto X = support::powers_of_two_matrix<matrix_d>(9, 15, 3);
    const matrix_d Y = X * kron(P, Q);
    CHECK(support::exactly_equal(Y, times(X, dense_kron(P, Q))));
}

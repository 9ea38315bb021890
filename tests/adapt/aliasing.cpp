// SPDX-License-Identifier: MIT
// A destination that is, or overlaps, an operand. Assignment is right by default; nothing is asked of the user.
#include <doctest/doctest.h>

#include <complex>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 2, 2);
const auto k = dense_kron(A, B);  // 6 x 6
const matrix_d C = random(3, 5, 3);
const auto kac = dense_kron(A, C);  // 6 x 15

}  // namespace

TEST_CASE("Y = Y * K, of the same shape") {
    const auto K = kron(A, B);
    matrix_d Y = random(4, 6, 4);
    const matrix_d y = Y;
    const double* const memory = Y.data();
    Y = Y * K;
    CHECK(support::close(Y, times(y, k), 6));
    CHECK(Y.data() == memory);  // a Map or Block of Y that the user holds stays valid
    Y = y;
    Y.noalias() = Y * K;  // noalias() is no licence to be wrong
    CHECK(support::close(Y, times(y, k), 6));
    Y = y;
    Y += Y * K;
    CHECK(support::close(Y, plus(y, times(y, k)), 7));
    Y = y;
    Y -= 2.0 * Y * K;
    CHECK(support::close(Y, plus(y, scaled(-2.0, times(y, k))), 7));
    matrix_d S = random(6, 6, 5);
    const matrix_d s = S;
    S = K * S;
    CHECK(support::close(S, times(k, s), 6));
    S = s;
    S = K * S * K;
    CHECK(support::close(S, times(k, times(s, k)), 36));
    S = s;
    S = S.transpose() * K;
    CHECK(support::close(S, times(matrix_d(s.transpose()), k), 6));
    S = s;
    S.transpose() = S * K;
    CHECK(support::close(S, oracle::transpose(times(s, k)), 6));
    vector_d v = random<vector_d>(6, 1, 6);
    const vector_d old = v;
    v = K * v;
    CHECK(support::close(v, times(k, old), 6));
}

TEST_CASE("Y = Y * K, of another shape") {
    matrix_d Y = random(4, 6, 4);
    const matrix_d y = Y;
    Y = Y * kron(A, C);
    CHECK(support::close(Y, times(y, kac), 6));
    Y = y;
    Y = Y.transpose() * kron(Y.topRows(2), Y.col(0).head(2));  // X and factors at once
    CHECK(support::close(
        Y, times(matrix_d(y.transpose()), dense_kron(matrix_d(y.topRows(2)), matrix_d(y.col(0).head(2)))), 4));
    row_major_d R = y;  // not the plain type of the expression
    R = R.transpose().leftCols(3) * kron(C);
    CHECK(support::close(R, times(matrix_d(y.transpose().leftCols(3)), C), 3));
    matrix_d T = y.transpose();
    T.transpose() = T.transpose() * kron(A, C);
    CHECK(support::close(T, oracle::transpose(times(y, kac)), 6));
    vector_d v = random<vector_d>(15, 1, 7);
    const vector_d old = v;
    v = kron(A, C) * v;
    CHECK(support::close(v, times(kac, old), 15));
}

TEST_CASE("an operand without elements becomes the result, which has some") {
    matrix_d Y(3, 0);
    Y = kron(Y, B) * matrix_d(0, 2);  // 9 x 0 times 0 x 2, since B has two columns and Y none
    CHECK((Y.rows() == 9 && Y.isZero(0.0)));
    Y.resize(0, 4);
    Y = kron(matrix_d(3, 0), B) * Y;
    CHECK((Y.rows() == 9 && Y.cols() == 4 && Y.isZero(0.0)));
    Y.resize(0, 4);
    Y = otimes::face_split(matrix_d(3, 0), A.transpose()) * Y;
    CHECK((Y.rows() == 3 && Y.cols() == 4 && Y.isZero(0.0)));
}

TEST_CASE("sums that read the destination") {
    const auto K = kron(A, B);
    const matrix_d Z = random(4, 6, 8);
    matrix_d Y = random(4, 6, 4);
    const matrix_d y = Y;
    const auto yk = times(y, k);
    Y = Z + Y * K;
    CHECK(support::close(Y, plus(Z, yk), 7));
    Y = y;
    Y = Y + Y * K;
    CHECK(support::close(Y, plus(y, yk), 7));
    Y = y;
    Y = Y * K - Y;
    CHECK(support::close(Y, plus(yk, scaled(-1.0, y)), 7));
    Y = y;
    Y = 2 * (Y + Y * K) - Y;
    CHECK(support::close(Y, plus(y, scaled(2.0, yk)), 7));
    Y = y;
    Y = Z * K + 3.0 * Y;
    CHECK(support::close(Y, plus(times(Z, k), scaled(3.0, y)), 7));
    Y = y;
    Y = (Z + Z * K) + Y;  // Z would be written over Y before Y is read
    CHECK(support::close(Y, plus(plus(Z, times(Z, k)), y), 7));
    Y = y;
    Y = (Z + Z * K) - 2.0 * Y;
    CHECK(support::close(Y, plus(plus(Z, times(Z, k)), scaled(-2.0, y)), 7));
    Y = y;
    Y = Y - (Z + Y * K);
    CHECK(support::close(Y, plus(plus(y, scaled(-1.0, Z)), scaled(-1.0, yk)), 7));
    Y = y;
    Y += Y + Z * K;
    CHECK(support::close(Y, plus(scaled(2.0, y), times(Z, k)), 7));
    Y = y;
    Y -= Z * K - Y;
    CHECK(support::close(Y, plus(scaled(2.0, y), scaled(-1.0, times(Z, k))), 7));
    Y = y;
    Y = Y.rowwise().reverse().eval() + Z * K;
    CHECK(support::close(Y, plus(matrix_d(y.rowwise().reverse()), times(Z, k)), 7));
    matrix_d S = random(6, 6, 9);
    const matrix_d s = S;
    S = S.transpose() + S * K;
    CHECK(support::close(S, plus(matrix_d(s.transpose()), times(s, k)), 7));
    S = s;
    S = S * K + S.transpose();
    CHECK(support::close(S, plus(matrix_d(s.transpose()), times(s, k)), 7));
    S = s;
    S.topRows(4) = S.bottomRows(4) + Z * K;
    CHECK(support::close(matrix_d(S.topRows(4)), plus(matrix_d(s.bottomRows(4)), times(Z, k)), 7));
    CHECK(support::exactly_equal(matrix_d(S.bottomRows(2)), matrix_d(s.bottomRows(2))));
}

TEST_CASE("sums that read a destination of another shape") {
    const auto K = kron(A, B);
    const matrix_d X = random(2, 6, 10);
    const matrix_d M = random(4, 6, 11);
    matrix_d Y = random(6, 6, 12);
    const matrix_d y = Y;
    Y = Y.topRows(2) + X * K;
    CHECK(support::close(Y, plus(matrix_d(y.topRows(2)), times(X, k)), 7));
    Y = y;
    Y = 2.0 * Y.topRows(2) + X * K;
    CHECK(support::close(Y, plus(scaled(2.0, matrix_d(y.topRows(2))), times(X, k)), 7));
    Y = y;
    Y = X * K - Y.bottomRows(2).cwiseAbs();
    CHECK(support::close(Y, plus(times(X, k), scaled(-1.0, matrix_d(y.bottomRows(2).cwiseAbs()))), 7));
    Y = random(2, 4, 13);
    const matrix_d thin = Y;
    Y = Y * M + X * K;
    CHECK(support::close(Y, plus(times(thin, M), times(X, k)), 7));
    row_major_d R = thin;
    R = R * M + X * K;
    CHECK(support::close(R, plus(times(thin, M), times(X, k)), 7));
}

TEST_CASE("nested in Eigen expressions that write to an operand") {
    const auto K = kron(A, B);
    matrix_d Y = random(4, 6, 14);
    const matrix_d y = Y;
    Y.topRows(2) = (Y * K).bottomRows(2);
    CHECK(support::close(matrix_d(Y.topRows(2)), times(matrix_d(y.bottomRows(2)), k), 6));
    CHECK(support::exactly_equal(matrix_d(Y.bottomRows(2)), matrix_d(y.bottomRows(2))));
    Y = y;
    Y = (Y * K).array() * Y.array();
    matrix_d want = y * K;
    want.array() *= y.array();
    CHECK(support::close(Y, want, 6));
    Y = y;
    Y = (Y * K).leftCols(2).eval();
    CHECK(Y.cols() == 2);
}

TEST_CASE("overlapping blocks of one matrix") {
    const auto K = kron(A, B);
    const matrix_d before = random(14, 14, 15);
    // Every offset of a 4 x 6 source against a destination at (5, 4).
    for (Index i = 0; i <= 10; ++i) {
        for (Index j = 0; j <= 8; ++j) {
            matrix_d M = before;
            M.block(5, 4, 4, 6) = M.block(i, j, 4, 6) * K;
            matrix_d want = before;
            want.block(5, 4, 4, 6) = matrix_d(before.block(i, j, 4, 6)) * K;
            CHECK(support::exactly_equal(M, want));
        }
    }
}

TEST_CASE("interleaved and reinterpreted memory") {
    const auto K = kron(A, B);
    std::vector<double> memory(60);
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i] = 0.1 * static_cast<double>(i) - 1.0;
    }
    const std::vector<double> before = memory;
    using strided = Eigen::Map<vector_d, 0, Eigen::InnerStride<2>>;
    SUBCASE("even from odd entries") {
        strided even(memory.data(), 6);
        strided odd(memory.data() + 1, 6);
        const vector_d x = odd;
        even = K * odd;
        CHECK(support::close(vector_d(even), times(k, x), 6));
        CHECK(support::exactly_equal(vector_d(odd), x));
    }
    SUBCASE("the same memory with other strides") {
        Eigen::Map<vector_d> y(memory.data(), 6);
        strided x(memory.data(), 6);
        const vector_d old = x;
        y = K * x;
        CHECK(support::close(vector_d(y), times(k, old), 6));
    }
    SUBCASE("the same memory as another shape and order") {
        Eigen::Map<matrix_d> Y(memory.data(), 6, 4);
        const Eigen::Map<const row_major_d> X(memory.data(), 6, 4);
        const matrix_d old = X;
        Y = K * X;
        CHECK(support::close(matrix_d(Y), times(k, old), 6));
    }
    SUBCASE("shifted by one entry") {
        Eigen::Map<matrix_d> Y(memory.data() + 1, 6, 4);
        const Eigen::Map<const matrix_d> X(memory.data(), 6, 4);
        const matrix_d old = X;
        Y = K * X;
        CHECK(support::close(matrix_d(Y), times(k, old), 6));
        CHECK(memory[0] == before[0]);
        CHECK(memory[25] == before[25]);
    }
    SUBCASE("the real parts of the complex destination") {
        Eigen::Map<vector<std::complex<double>>> Y(reinterpret_cast<std::complex<double>*>(memory.data()), 6);
        const vector_d x = Y.real();
        Y = (K * Y.real()).cast<std::complex<double>>();
        CHECK(support::close(vector_d(Y.real()), times(k, x), 6));
        Eigen::Map<vector<std::complex<double>>> W(reinterpret_cast<std::complex<double>*>(memory.data() + 20), 6);
        const vector_d w = W.real();
        const vector_d imaginary = W.imag();
        W.imag() = K * W.real();
        CHECK(support::close(vector_d(W.imag()), times(k, w), 6));
        CHECK(support::exactly_equal(vector_d(W.real()), w));
        CHECK(!support::exactly_equal(vector_d(W.imag()), imaginary));
    }
}

TEST_CASE("the destination as a factor") {
    matrix_d F = random(3, 3, 16);
    const matrix_d f = F;
    const matrix_d X = random(3, 9, 17);
    F = X * kron(F, F.col(1));
    CHECK(support::close(F, times(X, dense_kron(f, matrix_d(f.col(1)))), 9));
    F = f;
    F.noalias() += X.leftCols(3) * kron(F.transpose());
    CHECK(support::close(F, plus(f, times(matrix_d(X.leftCols(3)), matrix_d(f.transpose()))), 4));
    F = f;
    F = kron(F, F.row(0)) * X.transpose();  // 3 x 9 times 9 x 3
    CHECK(support::close(F, times(dense_kron(f, matrix_d(f.row(0))), matrix_d(X.transpose())), 9));
    F = f;
    F = F * kron(F);
    CHECK(support::close(F, times(f, f), 3));
    F = f;
    F = kron(F) * F * kron(F);
    CHECK(support::close(F, times(f, times(f, f)), 9));
    // Factors that are read where they lie, by tiles that come after others have written.
    matrix_d Y = random(27, 300, 18);
    const Eigen::Map<const matrix_d> corner(Y.data(), 3, 3);
    const matrix_d c = corner;
    const matrix_d Z = random(27, 300, 19);
    Y = kron(corner, corner, corner) * Z;
    CHECK(support::close(Y, times(dense_kron(c, c, c), Z), 27));
    row_major_d R = Y.transpose();
    const Eigen::Map<const row_major_d> first(R.data(), 3, 3);
    const matrix_d r = first;
    R = Z.transpose() * kron(first, first, first);
    CHECK(support::close(R, times(matrix_d(Z.transpose()), dense_kron(r, r, r)), 27));
    F = f;
    F.col(0) = kron(F.transpose()) * F.col(0);
    CHECK(support::close(matrix_d(F.col(0)), times(matrix_d(f.transpose()), matrix_d(f.col(0))), 3));
    F = f;
    F = kron(otimes::own(F)) * otimes::own(F);
    CHECK(support::close(F, times(f, f), 3));
}

TEST_CASE("dense terms of a sum that read other elements of the destination than they write") {
    const auto K = kron(A, B);
    const matrix_d X = random(6, 6, 50), y = random(6, 6, 51);
    const auto xk = times(X, k);
    matrix_d Y = y;
    Y = 2.0 * Y.transpose() + X * K;
    CHECK(support::close(Y, plus(matrix_d(2.0 * y.transpose()), xk), 7));
    Y = y;
    Y += X * K - 2.0 * Y.transpose();
    CHECK(support::close(Y, plus(matrix_d(y - 2.0 * y.transpose()), xk), 8));
    Y = y;
    Y = X * K + Y.reverse();
    CHECK(support::close(Y, plus(matrix_d(y.reverse()), xk), 7));
    Y = y;
    Y = X * K + Y.row(5).replicate(6, 1);
    CHECK(support::close(Y, plus(matrix_d(y.row(5).replicate(6, 1)), xk), 7));
    const std::vector<int> backwards{5, 4, 3, 2, 1, 0};
    Y = y;
    Y = X * K + Y(backwards, backwards);
    CHECK(support::close(Y, plus(matrix_d(y.reverse()), xk), 7));
    Y = y;
    Y.bottomRows(3) = 2.0 * Y.middleRows(2, 3) + X.topRows(3) * K;
    CHECK(support::close(matrix_d(Y.bottomRows(3)),
                         plus(matrix_d(2.0 * y.middleRows(2, 3)), times(matrix_d(X.topRows(3)), k)), 7));
    // Element by element, and products, which Eigen evaluates first: no temporary for the whole.
    Y = y;
    Y = 2.0 * Y + Y.cwiseProduct(X) + X * K;
    CHECK(support::close(Y, plus(matrix_d(2.0 * y + y.cwiseProduct(X)), xk), 8));
    Y = y;
    Y = Y * X + X * K;
    CHECK(support::close(Y, plus(times(y, X), xk), 12));
}

TEST_CASE("a diagonal of the destination beside a kron") {
    const auto K = kron(A, B);
    const matrix_d X = random(6, 6, 52), y = random(6, 6, 53);
    const matrix_d D = matrix_d(y.col(0).asDiagonal());
    matrix_d Y = y;
    Y = Y.col(0).asDiagonal() * K * X;
    CHECK(support::close(Y, times(D, times(k, X)), 7));
    Y = y;
    Y = (Y.col(0).asDiagonal() * K + otimes::identity()) * X;
    CHECK(support::close(Y, plus(times(D, times(k, X)), X), 8));
    Y = y;
    Y = K * Y.col(0).asDiagonal() * X;
    CHECK(support::close(Y, times(k, times(D, X)), 7));
}

TEST_CASE("operands that run backwards over the destination") {
    using strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    using backwards = Eigen::Map<const matrix_d, 0, strides>;
    const auto K = kron(A, B);
    const matrix_d y = random(6, 12, 61), Z = random(6, 6, 62);
    matrix_d Y = y;
    const backwards R(Y.data() + 6 * 8, 6, 6, strides(-6, 1));  // columns 8 to 3
    const matrix_d r = R;
    Y.middleCols(4, 6) = K * R;
    CHECK(support::close(matrix_d(Y.middleCols(4, 6)), times(k, r), 6));
    Y = y;
    Y.middleCols(4, 6) = R + K * Z;
    CHECK(support::close(matrix_d(Y.middleCols(4, 6)), plus(r, times(k, Z)), 7));
    Y = y;
    Y.middleCols(1, 6) = R.transpose() * K;
    CHECK(support::close(matrix_d(Y.middleCols(1, 6)), times(matrix_d(r.transpose()), k), 6));
    Y = y;
    const backwards U(Y.data() + 5, 6, 6, strides(6, -1));  // rows 5 to 0
    const matrix_d u = U;
    Y.leftCols(6) = K * U;
    CHECK(support::close(matrix_d(Y.leftCols(6)), times(k, u), 6));
    Y = y;
    auto block = Y.middleCols(4, 6);
    const auto p = otimes::make_plan(block, K * Z);
    CHECK_THROWS_AS(p.run(block, K * R), otimes::alias_error);
    CHECK((Y == y));
}

TEST_CASE("the elements of a sparse matrix beside a kron") {
    const matrix_d F = random(3, 3, 61);
    const vector_d x = random<vector_d>(3, 1, 62);
    Eigen::SparseMatrix<double> S(3, 3);
    S.insert(0, 1) = 1.5;
    S.insert(1, 0) = 2;
    S.insert(2, 2) = -3;
    S.makeCompressed();
    Eigen::Map<vector_d> values(S.valuePtr(), 3);
    const vector_d before = values;
    const auto refill = [&] { values = before; };
    const matrix_d s = S;
    const auto fx = times(F, matrix_d(x));
    values = (S * kron(F)) * x;
    CHECK(support::close(vector_d(values), times(s, fx), 6));
    refill();
    values = (S * kron(F) * S.transpose() + otimes::identity()) * x;
    CHECK(support::close(vector_d(values),
                         plus(times(s, times(F, times(matrix_d(s.transpose()), matrix_d(x)))), matrix_d(x)), 9));
    refill();
    values = (kron(F) * S) * x;
    CHECK(support::close(vector_d(values), times(F, times(s, matrix_d(x))), 6));
    refill();
    values = ((2.0 * S) * kron(F)) * x;  // an expression does not tell where its elements are
    CHECK(support::close(vector_d(values), scaled(2.0, times(s, fx)), 6));
    refill();
    values = (S.leftCols(3) * kron(F)) * x;
    CHECK(support::close(vector_d(values), times(s, fx), 6));
    // A sparse matrix with gaps: the elements of the last column lie behind as many places as it has elements.
    Eigen::SparseMatrix<double> gaps(3, 3);
    gaps.reserve(Eigen::VectorXi::Constant(3, 4));
    gaps.insert(0, 1) = 1.5;
    gaps.insert(1, 0) = 2;
    gaps.insert(2, 2) = -3;
    REQUIRE_FALSE(gaps.isCompressed());
    Eigen::Map<vector_d> last(gaps.valuePtr() + gaps.outerIndexPtr()[2] - 2, 3);
    last = (gaps * kron(F)) * x;
    CHECK(support::close(vector_d(last), times(s, fx), 6));
}

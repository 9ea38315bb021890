// SPDX-License-Identifier: MIT
// Products with a kron inside sums and inside Eigen's own expressions.
#include <doctest/doctest.h>

#include <complex>
#include <sstream>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 2, 2);
const auto k = dense_kron(A, B);  // 6 x 6, of rectangular factors
const matrix_d X = random(4, 6, 3);
const matrix_d Z = random(4, 6, 4);
const row_major_d R = random(4, 6, 5);
const auto xk = times(X, k);

template <class Expression, class Oracle>
void check_value(const Expression& expression, const Oracle& want) {
    auto Y = poisoned(4, 6);
    Y = expression;
    CHECK(support::close(Y, want, 50));
    matrix_d fresh = expression;
    CHECK(support::close(fresh, want, 50));
    auto W = poisoned<row_major_d>(4, 6);
    W.noalias() = expression;
    CHECK(support::close(W, want, 50));
    W = R;
    W += expression;
    CHECK(support::close(W, plus(R, want), 50));
    W = R;
    W -= expression;
    CHECK(support::close(W, plus(R, scaled(-1.0, want)), 50));
}

}  // namespace

TEST_CASE("sums and differences with any Eigen expression") {
    const auto K = kron(A, B);
    check_value(Z + X * K, plus(Z, xk));
    check_value(X * K + Z, plus(Z, xk));
    check_value(X * K - Z, plus(xk, scaled(-1.0, Z)));
    check_value(Z - X * K, plus(Z, scaled(-1.0, xk)));
    check_value(R + X * K, plus(R, xk));
    check_value(2.0 * Z + 3.0 * X * K, plus(scaled(2.0, Z), scaled(3.0, xk)));
    check_value(X * K * 2 - Z / 2, plus(scaled(2.0, xk), scaled(-0.5, Z)));
    check_value((X * Z.transpose()) * Z + X * K, plus(times(X, times(matrix_d(Z.transpose()), Z)), xk));
    check_value(Z.cwiseProduct(R) - X * K, plus(matrix_d(Z.cwiseProduct(R)), scaled(-1.0, xk)));
    check_value(random(6, 4, 9).transpose() + X * K, plus(matrix_d(random(6, 4, 9).transpose()), xk));
    check_value(random(8, 9, 8).block(2, 1, 4, 6) + X * K, plus(matrix_d(random(8, 9, 8).block(2, 1, 4, 6)), xk));
}

TEST_CASE("sums of products, nested sums and their multiples") {
    const auto K = kron(A, B);
    const auto L = kron(B, A);
    const auto zl = times(Z, dense_kron(B, A));
    check_value(X * K + Z * L, plus(xk, zl));
    check_value(X * K - Z * L, plus(xk, scaled(-1.0, zl)));
    check_value(X * K + Z * L + R, plus(plus(xk, zl), R));
    check_value(R + X * K - Z * L, plus(plus(R, xk), scaled(-1.0, zl)));
    check_value((Z + X * K) + (R - Z * L), plus(plus(Z, xk), plus(R, scaled(-1.0, zl))));
    check_value(Z - (R - X * K), plus(Z, plus(xk, scaled(-1.0, R))));
    check_value(2 * (Z + X * K), scaled(2.0, plus(Z, xk)));
    check_value(-(Z - X * K), plus(xk, scaled(-1.0, Z)));
    check_value((Z + X * K) / 4, scaled(0.25, plus(Z, xk)));
    check_value(3 * (2 * (Z + X * K) - R), scaled(3.0, plus(scaled(2.0, plus(Z, xk)), scaled(-1.0, R))));
    check_value((Z + X * K) * L, times(plus(Z, xk), dense_kron(B, A)));
    check_value((kron(Z.leftCols(4)) * (Z + X * K)), times(matrix_d(Z.leftCols(4)), plus(Z, xk)));
}

TEST_CASE("a real sum with a complex scale") {
    using complex = std::complex<double>;
    using matrix_z = matrix<complex>;
    const auto K = kron(A, B);
    const complex s(0.5, -2.0);
    const auto want = scaled(s, plus(Z, xk));
    auto Y = poisoned<matrix_z>(4, 6);
    Y = s * (Z + X * K);
    CHECK(support::close(Y, want, 50));
    Y += (Z + X * K) * s - s * (Z + X * K);
    CHECK(support::close(Y, want, 50));
    const matrix_z W = random<matrix_z>(4, 6, 9);
    Y = W;
    Y.noalias() -= 2.0 * (s * (Z + X * K)) / complex(0.0, 1.0);
    CHECK(support::close(Y, plus(W, scaled(complex(0.0, 2.0), want)), 50));
    // the sum reads what is written
    Y = W;
    Y = W + s * (Y.real() + X * K);
    CHECK(support::close(Y, plus(W, scaled(s, plus(matrix_d(W.real()), xk))), 50));
    Y = W;
    Y.leftCols(4) =
        s * (Y.real().rightCols(4) + (X * K).rightCols(4) + X.leftCols(2) * kron(A.leftCols(2), B.topRows(1)));
    const auto small = times(matrix_d(X.leftCols(2)), dense_kron(matrix_d(A.leftCols(2)), matrix_d(B.topRows(1))));
    const matrix_d real = W.real().rightCols(4) + matrix_d(X * K).rightCols(4);
    CHECK(support::close(matrix_z(Y.leftCols(4)), scaled(s, plus(real, small)), 50));
    const auto expression = s * (Z + X * K);
    Y.setZero();
    otimes::make_plan(Y, expression).run(Y, expression);
    CHECK(support::close(Y, want, 50));
}

TEST_CASE("nested in Eigen's expressions") {
    const auto K = kron(A, B);
    const matrix_d P = (X * K).eval();
    REQUIRE(support::close(P, xk, 6));
    const auto same = [](const matrix_d& got, const matrix_d& want) {
        return support::close(got, oracle::from(want), 16);
    };
    const auto same_number = [&](double got, double want) {
        return same(matrix_d::Constant(1, 1, got), matrix_d::Constant(1, 1, want));
    };
    CHECK(same((X * K).array().abs().matrix(), P.array().abs().matrix()));
    CHECK(same((X * K).array() * Z.array() + 1.0, P.array() * Z.array() + 1.0));
    CHECK(same((X * K).topRows(2), P.topRows(2)));
    CHECK(same((X * K).block(1, 2, 3, 3), P.block(1, 2, 3, 3)));
    CHECK(same((X * K).col(3), P.col(3)));
    CHECK(same((X * K).row(2), P.row(2)));
    CHECK(same((X * K).diagonal(), P.diagonal()));
    CHECK(same((X * K).transpose(), P.transpose()));
    CHECK(same((X * K).adjoint(), P.adjoint()));
    CHECK(same((X * K).cwiseProduct(Z), P.cwiseProduct(Z)));
    CHECK(same((X * K).cwiseAbs2(), P.cwiseAbs2()));
    CHECK(same((X * K).unaryExpr([](double v) { return v + 1.0; }), (P.array() + 1.0).matrix()));
    CHECK(same((X * K).colwise().sum(), P.colwise().sum()));
    CHECK(same((X * K).rowwise().norm(), P.rowwise().norm()));
    CHECK(same((X * K).rowwise().reverse(), P.rowwise().reverse()));
    CHECK(same((X * K).replicate(2, 1), P.replicate(2, 1)));
    // Eigen adds a vector to each row by the operator that it finds for the product, which is ours
    CHECK(same((X * K).rowwise() + Z.row(1), P.rowwise() + Z.row(1)));
    CHECK(same((X * K).colwise() - Z.col(2), P.colwise() - Z.col(2)));
    CHECK(same((X * K - Z).rowwise() - Z.row(1), (P - Z).rowwise() - Z.row(1)));
    CHECK(same((2.0 * X * K).colwise() + (X * K).col(0), (2.0 * P).colwise() + P.col(0)));
    CHECK(same((X * K).cast<float>().cast<double>(), P.cast<float>().cast<double>()));
    CHECK(same((X * K) * Z.transpose(), P * Z.transpose()));
    CHECK(same(Z.transpose() * (X * K), Z.transpose() * P));
    CHECK(same(X * K * Z.transpose() + Z * Z.transpose(), P * Z.transpose() + Z * Z.transpose()));
    const matrix_d S = random(6, 6, 7);
    // a multiple of Eigen's product of X * K with a matrix, inside something larger
    CHECK(same(Z * Z.transpose() + 2.0 * (X * K * Z.transpose()), Z * Z.transpose() + 2.0 * P * Z.transpose()));
    CHECK(same(X * K - 3 * ((X * K + Z) * S), P - 3.0 * (P + Z) * S));
    CHECK(same((X * K * Z.transpose() * 2.0).cwiseAbs(), (2.0 * P * Z.transpose()).cwiseAbs()));
    CHECK(same(Z + 2.0 * (Z * Z.transpose() * (X * K)), Z + 2.0 * Z * Z.transpose() * P));
    CHECK(same((Z + X * K).topRows(2), (Z + P).topRows(2)));
    CHECK(same((2 * (Z + X * K)).cwiseMax(0.0), (2 * (Z + P)).cwiseMax(0.0)));
    CHECK(same_number((X * K).sum(), P.sum()));
    CHECK(same_number((X * K).norm(), P.norm()));
    CHECK(same_number((X * K).squaredNorm(), P.squaredNorm()));
    CHECK(same_number((X * K).maxCoeff(), P.maxCoeff()));
    CHECK(same_number((X * K).mean(), P.mean()));
    CHECK(same_number((X * K).leftCols(4).trace(), P.leftCols(4).trace()));
    CHECK(same_number((X * K * Z.transpose()).trace(), (P * Z.transpose()).trace()));
    CHECK(same_number((2.0 * (X * K * Z.transpose())).trace(), 2.0 * (P * Z.transpose()).trace()));
    CHECK((X * K).isApprox(P));
    CHECK(!(X * K).isApprox(2.0 * P));
    CHECK((X * K).allFinite());
    std::ostringstream printed;
    printed << X * K;
    std::ostringstream plain;
    plain << P;
    CHECK(printed.str() == plain.str());
}

TEST_CASE("W * (K * (W^T * v))") {
    const auto K = kron(A, B);
    const matrix_d W = random(5, 6, 31);
    const vector_d v = random<vector_d>(5, 1, 32);
    const vector_d y = W * (K * (W.transpose() * v));
    CHECK(support::close(y, times(W, times(k, times(matrix_d(W.transpose()), v))), 6 * 6 * 5));
}

TEST_CASE("destinations that are no plain matrix") {
    const auto K = kron(A, B);
    const auto check = [](const auto& got, const auto& want) { CHECK(support::close(matrix_d(got), want, 8)); };
    auto Y = poisoned(9, 9);
    Y.topLeftCorner(4, 6) = X * K;
    check(Y.topLeftCorner(4, 6), xk);
    Y.bottomRightCorner(6, 4).transpose() = X * K;
    check(Y.bottomRightCorner(6, 4), oracle::transpose(xk));
    Y(Eigen::seq(0, 6, 2), Eigen::seqN(1, 6)) = X * K;
    check(matrix_d(Y(Eigen::seq(0, 6, 2), Eigen::seqN(1, 6))), xk);
    Y.topLeftCorner(4, 6).array() = (X * K).array();
    check(Y.topLeftCorner(4, 6), xk);
    Y.setZero();
    Y.topLeftCorner(4, 6).array() += (X * K).array();
    check(Y.topLeftCorner(4, 6), xk);
    Y.diagonal().head(6) = K * X.row(1).transpose();
    check(Y.diagonal().head(6), times(k, matrix_d(X.row(1).transpose())));
    Y.row(3).tail(6) = X.row(0) * K;
    check(Y.row(3).tail(6), times(matrix_d(X.row(0)), k));
    Y.row(2).head(6) = K * vector_d(X.row(0));  // a column into a row
    check(Y.row(2).head(6).transpose(), times(k, matrix_d(X.row(0).transpose())));
    Y.col(5).head(6) = X.row(0) * K;
    check(Y.col(5).head(6).transpose(), times(matrix_d(X.row(0)), k));
    Y.topLeftCorner(6, 6).triangularView<Eigen::Lower>() = matrix_d(6, 6).setIdentity() * K;
    check(matrix_d(Y.topLeftCorner(6, 6).triangularView<Eigen::Lower>()),
          oracle::from(matrix_d(K.toDenseMatrix().triangularView<Eigen::Lower>())));
    Eigen::ArrayXXd array = (X * K).array();
    check(array.matrix(), xk);
    Eigen::Matrix<std::complex<double>, Eigen::Dynamic, Eigen::Dynamic> complex = (X * K).cast<std::complex<double>>();
    check(complex.real(), xk);
    complex.imag() = X * K;
    check(complex.imag(), xk);
    check(complex.real(), xk);
    complex.bottomRows(2).imag() = 3.0 * complex.topRows(2).real() * kron(otimes::identity(6));
    check(complex.bottomRows(2).imag(), scaled(3.0, matrix_d(complex.real().topRows(2))));
    check(complex.real(), xk);
    complex.resize(0, 6);  // an empty part has no first element
    complex.imag() = complex.real() * K;
    CHECK(matrix_d(complex.transpose().real().transpose() * K).cols() == 6);
}

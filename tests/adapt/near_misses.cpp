// SPDX-License-Identifier: MIT
// What a reader of the formulas writes that is one step beside the documented forms, and what it means: identities and single factors
// beside matrices, dot products and norms of whatever there is, lists in braces. What means nothing is in tests/compile_fail.
#include <doctest/doctest.h>

#include <complex>
#include <string>
#include <type_traits>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::identity;
using otimes::kron;

namespace near_misses {  // compiled together with files that have other ones by these names

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(3, 2, 2);
const auto k = dense_kron(A, B);  // 6 x 6

using permutation = Eigen::PermutationMatrix<Eigen::Dynamic>;
permutation permutation_of_3() {
    permutation p(3);
    p.indices() << 1, 2, 0;
    return p;
}

using support::text_of;

}  // namespace

TEST_CASE("an identity beside a matrix") {
    const matrix_d X = random(4, 6, 3);
    auto Y = poisoned(4, 6);
    Y = X * identity(6);
    CHECK(support::exactly_equal(Y, X));
    Y = identity(4) * X;
    CHECK(support::exactly_equal(Y, X));
    Y = X * (-2 * identity());
    CHECK(support::close(Y, scaled(-2.0, X), 1));
    Y.noalias() += 3.0 * identity(4) * X;
    CHECK(support::close(Y, X, 4));
    Y = identity(4) * (2.0 * X * kron(A, B)) * identity(6);
    CHECK(support::close(Y, scaled(2.0, times(X, k)), 20));
    const std::complex<double> s(0.5, -1.5);
    const matrix<std::complex<double>> Z = X * (s * identity(6));
    CHECK(support::close(Z, scaled(s, X), 2));
    const matrix<int> whole = random(4, 6, 3).cast<int>();
    const matrix<int> doubled = whole * (2 * identity(6));
    CHECK(support::exactly_equal(doubled, matrix<int>(2 * whole)));
    const row_vector_d v = X.row(1);
    const row_vector_d w = v * identity(6);
    CHECK(support::exactly_equal(w, v));
    CHECK(text_of([&] { Y = X * identity(5); }) ==
          "otimes: X * kron(F1): X is 4 x 6, but kron(F1) is 5 x 5. The columns of X must equal the product of the "
          "factors' rows, 5.");
    CHECK_THROWS_AS(Y = identity(6) * X, otimes::shape_error);
}

TEST_CASE("an identity beside an operator is the operator") {
    const matrix_d X = random(3, 6, 3);
    const auto K = kron(A, B);
    const Eigen::SparseMatrix<double> W = random(6, 6, 5).sparseView();
    const auto check = [&](const auto& op, const auto& want) {
        const matrix_d Y = X * op;
        CHECK(support::close(Y, times(X, want), 60));
    };
    check(K * identity(6), k);
    check(identity() * K, k);
    check((-0.5 * identity(6)) * K, scaled(-0.5, k));
    check((K + K) * (2 * identity()), scaled(4.0, k));
    check(identity(6) * (W * K), times(matrix_d(W), k));
    check(+K, k);
    check(+(W * K) / 4, scaled(0.25, times(matrix_d(W), k)));
    check(-(W * K), scaled(-1.0, times(matrix_d(W), k)));
    static_assert(std::is_same_v<decltype(K * identity(6)), otimes::kron_expr<double>>);
    CHECK(text_of([&] { static_cast<void>(K * identity(5)); }) ==
          "otimes: K * identity(n): K is 6 x 6, the identity 5 x 5.");
    CHECK(text_of([&] { static_cast<void>(identity(7) * K); }) ==
          "otimes: identity(n) * K: K is 6 x 6, the identity 7 x 7.");
}

// Eigen adds no product with a permutation in place, since it has no `addTo` for them, and scales a product by its left matrix, of which
// there is no multiple where that is a triangular or self-adjoint view.
TEST_CASE("products with permutations and with views are terms beside a product") {
    const matrix_d X = random(6, 6, 3), Z = random(6, 6, 4);
    const auto K = kron(A, B);
    const auto xk = times(X, k);
    const auto minus = [](const auto& a, const auto& b) { return plus(a, scaled(-1.0, b)); };
    matrix_d Y = adapt::poisoned<matrix_d>(6, 6);
    const auto check = [&](const auto& want) {
        CHECK(support::close(Y, want, 60));
        Y = adapt::poisoned<matrix_d>(6, 6);
    };
    Eigen::PermutationMatrix<Eigen::Dynamic> P(6);
    P.indices() << 4, 2, 0, 1, 5, 3;
    Eigen::Transpositions<Eigen::Dynamic> T(6);
    T.indices() << 3, 1, 5, 3, 4, 5;
    const matrix_d p = P.toDenseMatrix().cast<double>();
    const matrix_d transposed = p.transpose();
    const matrix_d t = T * matrix_d::Identity(6, 6);
    Y = X * K + P * Z;
    check(plus(xk, times(p, Z)));
    Y = Z * P - X * K;
    check(minus(times(Z, p), xk));
    Y = X * K - (X * K) * P.transpose();
    check(minus(xk, times(xk, transposed)));
    Y.noalias() = 2 * (X * K) + T * Z;
    check(plus(scaled(2.0, xk), times(t, Z)));
    Y = Z;
    Y += P.inverse() * X + X * K;
    check(plus(Z, plus(times(transposed, X), xk)));
    Y = Z;
    Y = X * K - P * Y;  // read before it is written
    check(minus(xk, times(p, Z)));

    const Eigen::SparseMatrix<double> W = random(6, 6, 5).sparseView();
    const auto upper = Z.triangularView<Eigen::Upper>();
    const auto whole = Z.selfadjointView<Eigen::Lower>();
    const matrix_d u = upper.toDenseMatrix(), h = whole * matrix_d::Identity(6, 6);
    const matrix_d w = W.selfadjointView<Eigen::Upper>() * matrix_d::Identity(6, 6);
    Y = X * K + upper * X;
    check(plus(xk, times(u, X)));
    Y = X * whole - X * K;
    check(minus(times(X, h), xk));
    Y.noalias() = 2 * (X * K - upper * X);
    check(scaled(2.0, minus(xk, times(u, X))));
    Y = X;
    Y -= X * K + W.selfadjointView<Eigen::Upper>() * Z;
    check(minus(X, plus(xk, times(w, Z))));
}

TEST_CASE("a factor with structure alone multiplies as a kron of one") {
    const matrix_d X = random(3, 6, 3);
    const vector_d c = random(6, 1, 4), r = random(6, 1, 5);
    matrix_d t(6, 6);
    for (Index i = 0; i < 6; ++i) {
        for (Index j = 0; j < 6; ++j) {
            t(i, j) = i >= j ? c(i - j) : r(j - i);
        }
    }
    const auto K = kron(A, B);
    const auto check = [&](const auto& y, const auto& want) { CHECK(support::close(matrix_d(y), want, 100)); };
    check(X * otimes::toeplitz(c, r), times(X, t));
    check(otimes::toeplitz(c, r) * X.transpose(), times(t, matrix_d(X.transpose())));
    check(X * (K * otimes::toeplitz(c, r)), times(times(X, k), t));
    check(X * (otimes::toeplitz(c, r) * K), times(times(X, t), k));
    const matrix_d M = random(6, 6, 6);
    const matrix_d lower = M.triangularView<Eigen::Lower>();
    const permutation P = permutation_of_3();
    permutation wide(6);
    wide.indices() << 2, 3, 4, 5, 0, 1;
    check(X * (M.triangularView<Eigen::Lower>() * K), times(times(X, lower), k));
    check(X * (K * M.triangularView<Eigen::Lower>()), times(times(X, k), lower));
    check(X * (K + M.triangularView<Eigen::Lower>()), plus(times(X, k), times(X, lower)));
    check(X * (M.triangularView<Eigen::Lower>() - K), plus(times(X, lower), scaled(-1.0, times(X, k))));
    check(X * (K - wide), plus(times(X, k), scaled(-1.0, times(X, matrix_d(wide.toDenseMatrix().cast<double>())))));
    check(X * (wide.transpose() + K),
          plus(times(X, k), times(X, matrix_d(wide.transpose().toDenseMatrix().cast<double>()))));
    otimes::sum_expr<double> S = K;
    S += wide;
    check(X * S, plus(times(X, k), times(X, matrix_d(wide.toDenseMatrix().cast<double>()))));
    CHECK_THROWS_AS(S += P, otimes::shape_error);
}

TEST_CASE("dot products and norms of whatever there is") {
    const matrix_d X = random(4, 6, 3), Z = random(4, 6, 4);
    const auto K = kron(A, B);
    const auto S = K + 2.0 * identity();
    const auto sum_of_products = [](const matrix_d& x, const matrix_d& y) {
        long double sum = 0;
        for (Index i = 0; i < x.size(); ++i) {
            sum += static_cast<long double>(x.data()[i]) * static_cast<long double>(y.data()[i]);
        }
        return static_cast<double>(sum);
    };
    const matrix_d xs = X * S;
    CHECK(otimes::dot(X, Z) == doctest::Approx(sum_of_products(X, Z)).epsilon(1e-12));
    const matrix_d M = random(6, 5, 5);
    CHECK(otimes::dot(X * M, Z * M) ==  // products of Eigen's, evaluated once
          doctest::Approx(sum_of_products(matrix_d(X * M), matrix_d(Z * M))).epsilon(1e-12));
    CHECK(otimes::dot(X * S, Z) == doctest::Approx(sum_of_products(xs, Z)).epsilon(1e-12));
    using complex = std::complex<double>;
    const matrix<complex> C = random<matrix<complex>>(4, 6, 8);
    const complex mixed = otimes::dot(C * S, X);  // conjugates its first argument
    CHECK(std::abs(mixed - (C * S).eval().conjugate().cwiseProduct(X.cast<complex>()).sum()) < 1e-11);
    CHECK(std::abs(otimes::dot(C, X) - C.conjugate().cwiseProduct(X.cast<complex>()).sum()) < 1e-12);
    CHECK_THROWS_AS(static_cast<void>(otimes::dot(X, A)), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::dot(A, X * S)), otimes::shape_error);
    CHECK(otimes::squared_norm(X) == doctest::Approx(X.squaredNorm()));
    CHECK(otimes::squared_norm(X * S) == doctest::Approx(xs.squaredNorm()));
    CHECK((X * S).squaredNorm() == doctest::Approx(xs.squaredNorm()));
    CHECK(otimes::squared_norm(K) == doctest::Approx(K.toDenseMatrix().squaredNorm()));

    const matrix_d V = random(2, 3, 9), U = random(3, 2, 10);  // K * vec(V) is vec of a 3 x 2
    const vector_d v = otimes::vec(V), u = otimes::vec(U);
    const double want = sum_of_products(u, K.toDenseMatrix() * v);
    CHECK(otimes::dot(otimes::vec(U), K * otimes::vec(V)) == doctest::Approx(want).epsilon(1e-12));
    CHECK(otimes::dot(u, K * otimes::vec(V)) == doctest::Approx(want).epsilon(1e-12));
    CHECK(otimes::dot(K * otimes::vec(V), u) == doctest::Approx(want).epsilon(1e-12));
    CHECK(otimes::dot(otimes::vec(V), K * otimes::vec(V)) ==  // 2 x 3 beside 3 x 2
          doctest::Approx(sum_of_products(v, K.toDenseMatrix() * v)).epsilon(1e-12));
    const row_vector_d row = otimes::vec(U).transpose() * K;
    CHECK(support::close(row, times(matrix_d(u.transpose()), k), 20));
    const row_vector_d adjoint = otimes::vec_r(U).adjoint();
    CHECK(support::exactly_equal(adjoint, row_vector_d(otimes::vec_r(U).toVector().transpose())));
}

TEST_CASE("selections by lists in braces, and quotients") {
    const matrix_d X = random(2, 3, 3);
    const auto K = kron(A, B);
    const auto entries = [](std::vector<Index> rows, std::vector<Index> cols) {
        matrix_d m(static_cast<Index>(rows.size()), static_cast<Index>(cols.size()));
        for (Index i = 0; i < m.rows(); ++i) {
            for (Index j = 0; j < m.cols(); ++j) {
                m(i, j) = static_cast<double>(k(static_cast<std::size_t>(rows[static_cast<std::size_t>(i)]),
                                                static_cast<std::size_t>(cols[static_cast<std::size_t>(j)])));
            }
        }
        return m;
    };
    CHECK(support::close(K({5, 0, 5}, {1, 3}).toDenseMatrix(), oracle::from(entries({5, 0, 5}, {1, 3})), 2));
    CHECK(support::close(K({4}, {2, 3}).toDenseMatrix(), oracle::from(entries({4}, {2, 3})), 2));
    CHECK(support::close(K({4, 1}, 2).toDenseMatrix(), oracle::from(entries({4, 1}, {2})), 2));
    CHECK(support::close(K(3, {2, 0}).toDenseMatrix(), oracle::from(entries({3}, {2, 0})), 2));
    CHECK(support::close(K({4, 1}, Eigen::indexing::all).toDenseMatrix(),
                         oracle::from(entries({4, 1}, {0, 1, 2, 3, 4, 5})), 2));
    CHECK(support::close(K(std::vector<int>{1}, {0, 2}).toDenseMatrix(), oracle::from(entries({1}, {0, 2})), 2));
    const int rows[] = {2, 3, 0};
    CHECK(support::close(K(rows, rows).toDenseMatrix(), oracle::from(entries({2, 3, 0}, {2, 3, 0})), 2));
    CHECK(K(1, 2) == doctest::Approx(static_cast<double>(k(1, 2))));  // still a number
    CHECK_THROWS_AS(static_cast<void>(K({0, 6}, {0})), otimes::shape_error);
    const matrix_d quotient = X * (K(rows, {0, 1}) / 4);
    CHECK(support::close(quotient, times(scaled(0.25, X), entries({2, 3, 0}, {0, 1})), 10));
}

TEST_CASE("chosen rows and columns of a product, as Eigen writes them of a matrix") {
    using Eigen::indexing::all;
    using Eigen::indexing::last;
    using Eigen::indexing::seqN;
    const matrix_d X = random(6, 6, 5);
    const vector_d v = X.col(1);
    const auto K = kron(A, B);
    const auto of_eigen = [](const auto& m) {
        matrix_d result(m.rows(), m.cols());
        for (Index i = 0; i < result.rows(); ++i) {
            for (Index j = 0; j < result.cols(); ++j) {
                result(i, j) = static_cast<double>(m(static_cast<std::size_t>(i), static_cast<std::size_t>(j)));
            }
        }
        return result;
    };
    const matrix_d xk = of_eigen(times(X, k)), kv = of_eigen(times(k, matrix_d(v)));
    const std::vector<int> chosen{4, 1, 1};
    const auto same = [](const matrix_d& got, const matrix_d& want) {
        return got.rows() == want.rows() && got.cols() == want.cols() && (got - want).norm() < 1e-12;
    };
    CHECK(same((X * K)(chosen, all), xk(chosen, all)));
    CHECK(same((X * K)(all, seqN(1, 2)), xk(all, seqN(1, 2))));
    CHECK(same((X * K)(last, all), xk(last, all)));
    CHECK(same((X * K)({3, 0}, {1, 2, 5}), xk({3, 0}, {1, 2, 5})));
    CHECK(same((X * K)({3, 0}, all), xk({3, 0}, all)));
    CHECK(same((X * K)(all, {3, 0}), xk(all, {3, 0})));
    CHECK(same((K * v)(chosen), kv(chosen, all)));
    CHECK(same((2 * X * K + X)(chosen, chosen) * matrix_d::Ones(3, 2),
               (2 * xk + X)(chosen, chosen) * matrix_d::Ones(3, 2)));
    matrix_d Y = X;
    Y(chosen, all) = (X * K)(chosen, all);
    CHECK(same(Y(chosen, all), xk(chosen, all)));
    CHECK(same(Y.row(0), X.row(0)));
    CHECK(same((X * K).imag(), matrix_d::Zero(6, 6)));
}

TEST_CASE("arrays take products, sums and operators' products as they take Eigen's matrices") {
    const matrix_d X = random(6, 6, 5), Z = random(6, 6, 6);
    const Eigen::SparseMatrix<double> W = Z.sparseView();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(6);
    P.indices() << 1, 2, 0, 4, 5, 3;
    const auto K = kron(A, B);
    const auto xk = times(X, k), kx = times(k, X);
    const auto close = [](const auto& array, const auto& want) {
        return support::close(matrix_d(array.matrix()), want, 10);
    };
    Eigen::ArrayXXd Y = X * K;
    CHECK(close(Y, xk));
    Y = Z + X * K;
    CHECK(close(Y, plus(Z, xk)));
    Eigen::Array<double, 6, 6, Eigen::RowMajor> fixed = X * K - 2 * Z;
    CHECK(close(fixed, plus(xk, scaled(-2.0, Z))));
    fixed.matrix() += X * K + Z;
    CHECK(close(fixed, plus(scaled(2.0, xk), scaled(-1.0, Z))));
    Y = W * K * X;
    CHECK(close(Y, times(Z, kx)));
    Y = P * K * X;
    CHECK(close(Y, times(matrix_d(P), kx)));
    Y = (W * K + otimes::identity()) * X;
    CHECK(close(Y, plus(times(Z, kx), X)));
    const Eigen::ArrayXXcd C = std::complex<double>(0, 1) * (X * K) + Z.cast<std::complex<double>>();
    CHECK(close(C.real(), matrix_d(Z)));
    CHECK(close(C.imag(), xk));
}

TEST_CASE("a kron over its complex type, named executors") {
    using complex = std::complex<double>;
    const auto Z = random<matrix<complex>>(2, 6, 3);
    const matrix<complex> Y = Z * kron(A, B).cast<complex>();
    CHECK(support::close(Y, times(Z, k), 20));
    static_assert(std::is_same_v<decltype(kron(A, B).cast<double>()), otimes::kron_expr<double>>);

    const matrix_d X = random(2, 6, 4);
    matrix_d D = X;
    otimes::on(otimes::reference(), D).noalias() += X * kron(A, B);
    CHECK(support::close(D, plus(X, times(X, k)), 20));
    otimes::on(otimes::reference(), D) *= kron(A, B);
    CHECK(support::close(D, times(plus(X, times(X, k)), k), 60));
}

TEST_CASE("fractions of permutations and identities beside integers are refused, whole multiples are not") {
    const permutation P = permutation_of_3();
    const matrix<int> X = (10.0 * random(2, 9, 1)).cast<int>();
    const matrix<int> p = P.toDenseMatrix();
    const matrix<int> want =
        matrix_d(X.cast<double>() * kron(matrix_d(p.cast<double>()), matrix_d(p.cast<double>()))).cast<int>();
    matrix<int> Y = X * (-3 * kron(P, P));
    CHECK(support::exactly_equal(Y, matrix<int>(-3 * want)));
    auto K = kron(P, P);
    K = 2.0 * K;  // the type of K does not say that it was multiplied by a real number
    Y = X * K;
    CHECK(support::exactly_equal(Y, matrix<int>(2 * want)));
    K = K / 4;
    CHECK(text_of([&] { Y = X * K; }) ==
          "otimes: 0.5 * kron(F1, F2) beside integers: the fraction would be cut off. Multiply by an integer, or "
          ".cast<double>() the integers.");
    CHECK(support::exactly_equal(Y, matrix<int>(2 * want)));
    const matrix_d halved = X.cast<double>() * K;
    CHECK(support::close(halved, scaled(0.5, matrix_d(want.cast<double>())), 2));
    const matrix<float> single = X.cast<float>() * (kron(0.5 * kron(P, P), identity(1)));
    CHECK(support::close(single, scaled(0.5f, matrix<float>(want.cast<float>())), 2));
    CHECK_THROWS_AS(static_cast<void>(kron(X, K)), otimes::unsupported_error);
    CHECK(kron(X, 2 * identity(3)).rows() == 6);
}

}  // namespace near_misses

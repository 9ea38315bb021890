// SPDX-License-Identifier: MIT
// kron as a matrix: every way to write one, its shape, entries, factors, transposes and scalar multiples.
#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <span>
#include <utility>
#include <vector>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(2, 3, 1);
const matrix_d B = random(4, 1, 2);
const matrix_d C = random(1, 5, 3);
const auto expected = dense_kron(A, B, C);

// Entries by toDenseMatrix, by coefficient and by call agree with the oracle.
template <class Kron, class Oracle>
void check_entries(const Kron& K, const Oracle& want) {
    REQUIRE(K.rows() == static_cast<Index>(want.rows()));
    REQUIRE(K.cols() == static_cast<Index>(want.cols()));
    CHECK(support::close(K.toDenseMatrix(), want, 1));
    auto by_call = poisoned<matrix<typename Kron::Scalar>>(K.rows(), K.cols());
    auto by_coeff = by_call;
    for (Index i = 0; i < K.rows(); ++i) {
        for (Index j = 0; j < K.cols(); ++j) {
            by_call(i, j) = K(i, j);
            by_coeff(i, j) = K.coeff(i, j);
        }
    }
    CHECK(support::close(by_call, want, 1));
    CHECK(support::close(by_coeff, want, 1));
    // And what multiplies: I * K.
    const matrix<typename Kron::Scalar> product = matrix<typename Kron::Scalar>::Identity(K.rows(), K.rows()) * K;
    CHECK(support::close(product, want, static_cast<std::size_t>(K.rows())));
}

}  // namespace

TEST_CASE("kron of arguments") {
    const auto K = kron(A, B, C);
    CHECK(K.rows() == 8);
    CHECK(K.cols() == 15);
    CHECK(K.factor_count() == 3);
    check_entries(K, expected);
}

TEST_CASE("kron of a vector, an array or a span equals kron of the arguments") {
    std::vector<matrix_d> factors{A, B, C};
    SUBCASE("lvalue") { check_entries(kron(factors), expected); }
    SUBCASE("const lvalue") { check_entries(kron(std::as_const(factors)), expected); }
    SUBCASE("rvalue") { check_entries(kron(std::vector<matrix_d>(factors)), expected); }
    SUBCASE("moved") {
        const auto K = kron(std::move(factors));
        factors.assign(3, matrix_d::Zero(7, 7));
        check_entries(K, expected);
    }
    SUBCASE("const rvalue") { check_entries(kron(std::move(std::as_const(factors))), expected); }
    SUBCASE("span") { check_entries(kron(std::span(factors)), expected); }
    SUBCASE("span of const") { check_entries(kron(std::span<const matrix_d>(factors)), expected); }
    SUBCASE("array") {
        std::array<matrix_d, 3> array{A, B, C};
        const auto borrowed = kron(array);
        const auto owned = kron(std::move(array));
        check_entries(owned, expected);
        array = {2.0 * A, B, C};
        check_entries(borrowed, scaled(2.0, expected));
        check_entries(owned, expected);
        check_entries(kron(std::as_const(array)), scaled(2.0, expected));
        check_entries(otimes::kron_sum(std::array<matrix_d, 2>{matrix_d::Identity(2, 2), matrix_d::Identity(2, 2)}),
                      scaled(2.0, oracle::identity(4)));
    }
    SUBCASE("one element") { check_entries(kron(std::vector<matrix_d>{A}), oracle::from(A)); }
    SUBCASE("no element") { check_entries(kron(std::vector<matrix_d>{}), oracle::identity(1)); }
    SUBCASE("of maps") {
        using map = Eigen::Map<const matrix_d>;
        check_entries(kron(std::vector<map>{map(A.data(), 2, 3), map(B.data(), 4, 1), map(C.data(), 1, 5)}), expected);
    }
    SUBCASE("of krons") { check_entries(kron(std::vector{kron(A), kron(B, C)}), expected); }
}

TEST_CASE("nested krons are flattened") {
    CHECK(kron(A, kron(B, C)).factor_count() == 3);
    check_entries(kron(A, kron(B, C)), expected);
    check_entries(kron(kron(A, B), C), expected);
    check_entries(kron(kron(kron(A), kron()), kron(kron(B)), C), expected);
    check_entries(kron(2.0 * kron(A, B), C * 0.5), expected);
    check_entries(kron(kron(A, B) * 2.0, kron(C) * 3.0), scaled(6.0, expected));
}

TEST_CASE("a kron of no factors is the 1 x 1 one") {
    CHECK(kron().rows() == 1);
    CHECK(kron().cols() == 1);
    CHECK(kron().factor_count() == 0);
    check_entries(kron(), oracle::identity(1));
    const matrix_d X = random(3, 1, 9);
    const matrix_d Y = 2.0 * X * kron();
    CHECK(support::close(Y, scaled(2.0, X), 1));
    const matrix_d Z = kron() * X.transpose();
    CHECK(support::close(Z, X.transpose(), 1));
    // It has no scalar of its own, so that a loop can begin with it.
    const Eigen::MatrixXf W = X.cast<float>();
    const Eigen::MatrixXf V = W * kron();
    CHECK(support::exactly_equal(V, W));
    const Eigen::MatrixXcf F = Eigen::MatrixXcf::Random(2, 3);
    const auto K = kron(kron(), F);
    CHECK(K.factor_count() == 1);
    CHECK(support::exactly_equal(Eigen::MatrixXcf(K.toDenseMatrix()), F));
}

TEST_CASE("kron_power") {
    const matrix_d F = random(2, 3, 4);
    check_entries(otimes::kron_power(F, 3), dense_kron(F, F, F));
    check_entries(otimes::kron_power(F, 1), oracle::from(F));
    check_entries(otimes::kron_power(F, 0), oracle::identity(1));
    check_entries(otimes::kron_power(random(2, 3, 4), 2), dense_kron(F, F));
    check_entries(otimes::kron_power(kron(F, B), 2), dense_kron(F, B, F, B));
    check_entries(otimes::kron_power(2.0 * kron(F), 2), scaled(4.0, dense_kron(F, F)));
    CHECK(otimes::kron_power(F, 20).rows() == (Index(1) << 20));
}

TEST_CASE("identity factors") {
    const matrix_d eye = matrix_d::Identity(3, 3);
    const auto want = dense_kron(A, eye, C);
    check_entries(kron(A, otimes::identity(3), C), want);
    check_entries(kron(A, matrix_d::Identity(3, 3), C), want);
    check_entries(kron(A, eye, C), want);
    check_entries(kron(otimes::identity(3), A), dense_kron(eye, A));
    check_entries(kron(A, otimes::identity(3)), dense_kron(A, eye));
    check_entries(kron(otimes::identity(3)), oracle::from(eye));
    check_entries(kron(otimes::identity(1), otimes::identity(3), otimes::identity(1)), oracle::from(eye));
    // A rectangular "identity" is a matrix like any other.
    const matrix_d tall = matrix_d::Identity(3, 2);
    check_entries(kron(A, matrix_d::Identity(3, 2)), dense_kron(A, tall));
    static_assert(std::is_same_v<decltype(kron(otimes::identity(2), A.cast<float>()))::Scalar, float>);
    // Of identities alone: the scalar of whatever stands beside it.
    const auto eyes = kron(otimes::identity(3), otimes::identity(2));
    const matrix<float> F = A.cast<float>().replicate(3, 2);  // 6 columns
    const matrix<float> same = F * eyes;
    CHECK(same == F);
    const matrix<std::complex<float>> Z = F.transpose() * std::complex<float>(1, -2);
    const matrix<std::complex<float>> turned = 2 * (eyes * Z);
    CHECK(turned == 2 * Z);
    static_assert(std::is_same_v<decltype(kron(eyes, A.cast<float>()))::Scalar, float>);
    check_entries(kron(eyes, A), dense_kron(matrix_d::Identity(6, 6), A));
    check_entries(2.0 * eyes, scaled(2.0, matrix_d(matrix_d::Identity(6, 6))));
    // No storage: an identity that could not be stored.
    const auto huge = kron(otimes::identity(Index(1) << 31), otimes::identity(Index(1) << 31));
    CHECK(huge.rows() == (Index(1) << 62));
    CHECK(huge(5, 5) == 1.0);
    CHECK(huge(5, 4) == 0.0);
}

TEST_CASE("1 x 1 factors and a single factor") {
    matrix_d one(1, 1);
    one << -2.5;
    check_entries(kron(one), oracle::from(one));
    check_entries(kron(one, A), scaled(-2.5, A));
    check_entries(kron(A, one, B, one, C), scaled(6.25, expected));
    check_entries(kron(A), oracle::from(A));
}

TEST_CASE("any dense expression is a factor") {
    const matrix_d S = random(3, 3, 5);
    const row_major_d R = B;
    const Eigen::Matrix<double, 2, 3> fixed = A;
    check_entries(kron(fixed, R, C), expected);
    check_entries(kron(A.transpose(), B.transpose()), oracle::transpose(dense_kron(A, B)));
    check_entries(kron(A + A, 2.0 * B, -C), scaled(-4.0, expected));
    check_entries(kron(A * S, S.block(0, 1, 2, 2)), dense_kron(matrix_d(A * S), matrix_d(S.block(0, 1, 2, 2))));
    check_entries(kron(S.col(1), S.row(2)), dense_kron(matrix_d(S.col(1)), matrix_d(S.row(2))));
    check_entries(kron(S.triangularView<Eigen::Lower>().toDenseMatrix()),
                  oracle::from(matrix_d(S.triangularView<Eigen::Lower>())));
    check_entries(kron(Eigen::Ref<const matrix_d>(A), B, C), expected);
    const Eigen::Map<const matrix_d, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> strided(
        S.data(), 2, 2, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(3, 2));
    check_entries(kron(strided, B), dense_kron(matrix_d(strided), B));
    const vector_d d = random<vector_d>(3, 1, 6);
    check_entries(kron(d.asDiagonal().toDenseMatrix(), S.diagonal()),
                  dense_kron(matrix_d(d.asDiagonal()), matrix_d(S.diagonal())));
    check_entries(kron(A.array().square().matrix()), oracle::from(matrix_d(A.array().square())));
}

TEST_CASE("factor(i) is the factor") {
    const auto K = kron(A, otimes::identity(2), B.transpose(), C * 2.0);
    CHECK(support::exactly_equal(matrix_d(K.factor(0)), A));
    CHECK(support::exactly_equal(matrix_d(K.factor(1)), matrix_d::Identity(2, 2)));
    CHECK(support::exactly_equal(matrix_d(K.factor(2)), B.transpose()));
    CHECK(support::exactly_equal(matrix_d(K.factor(3)), scaled(2.0, C)));
    CHECK(support::exactly_equal(matrix_d(K.transpose().factor(0)), A.transpose()));
    CHECK(K.factor(0)(1, 2) == A(1, 2));
    CHECK(support::close(matrix_d(K.factor(0) * random(3, 2, 8)), times(A, random(3, 2, 8)), 3));
}

TEST_CASE("transpose, adjoint and conjugate keep the order of the factors") {
    using complex = std::complex<double>;
    const auto P = random<matrix<complex>>(2, 3, 11);
    const auto Q = random<matrix<complex>>(4, 1, 12);
    const matrix_d R = random(3, 2, 13);
    const auto K = kron(P, Q, R);
    const auto want = dense_kron(P, Q, R);
    check_entries(K, want);
    check_entries(K.transpose(), oracle::transpose(want));
    check_entries(K.conjugate(), oracle::conjugate(want));
    check_entries(K.adjoint(), oracle::adjoint(want));
    check_entries(K.adjoint().adjoint(), want);
    check_entries(K.conjugate().transpose().conjugate(), oracle::transpose(want));
    check_entries((complex(0.5, 2.0) * K).adjoint(), oracle::adjoint(scaled(complex(0.5, 2.0), want)));
    // Differently in each factor.
    check_entries(kron(P.adjoint(), Q.conjugate(), R.transpose()),
                  dense_kron(matrix<complex>(P.adjoint()), matrix<complex>(Q.conjugate()), matrix_d(R.transpose())));
    check_entries(kron(kron(P).adjoint(), kron(Q).transpose(), kron(R).conjugate()),
                  dense_kron(matrix<complex>(P.adjoint()), matrix<complex>(Q.transpose()), R));
    check_entries(kron(A, B).adjoint(), oracle::transpose(dense_kron(A, B)));
}

TEST_CASE("scalar multiples of a kron") {
    const auto K = kron(A, B, C);
    check_entries(2.0 * K, scaled(2.0, expected));
    check_entries(K * 2, scaled(2.0, expected));
    check_entries(3 * K * 0.5f, scaled(1.5, expected));
    check_entries(K / 4, scaled(0.25, expected));
    check_entries(-K, scaled(-1.0, expected));
    check_entries(-(-K), expected);
    check_entries((2.0 * K).transpose() / 8, oracle::transpose(scaled(0.25, expected)));
    const std::complex<double> i(0.0, 1.5);
    static_assert(std::is_same_v<decltype(i * K)::Scalar, std::complex<double>>);
    check_entries(i * K, scaled(i, expected));
    check_entries(K * i * i, scaled(-2.25, expected));
}

TEST_CASE("a kron can be a class member, reassigned, copied and returned") {
    struct model {
        matrix_d factor = random(2, 2, 21);  // before K, which reads its extents and refers to it
        otimes::kron_expr<double> K;
        model() : K(kron(factor, random(3, 2, 22))) {}
    };
    model m;
    check_entries(m.K, dense_kron(random(2, 2, 21), random(3, 2, 22)));
    m.K = kron(A, B, C);  // the type does not depend on the number of factors
    check_entries(m.K, expected);
    const otimes::kron_expr<double> copy = m.K;
    m.K = otimes::kron_expr<double>();
    CHECK(m.K.factor_count() == 0);
    check_entries(copy, expected);
}

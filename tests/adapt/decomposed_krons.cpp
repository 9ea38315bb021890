// SPDX-License-Identifier: MIT
// Decompositions of krons: what solves with them leave on ill-conditioned factors, which factors they take, what else they know. The oracles multiply
// entries of factors in long double.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <Eigen/Dense>
#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/solving.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

namespace decomposed {

template <class Scalar>
using wide = std::conditional_t<support::is_complex<Scalar>, std::complex<long double>, long double>;
template <class Scalar>
matrix<wide<Scalar>> wide_kron(const std::vector<matrix<Scalar>>& factors) {
    matrix<wide<Scalar>> result = matrix<wide<Scalar>>::Ones(1, 1);
    for (const matrix<Scalar>& f : factors) {
        matrix<wide<Scalar>> next(result.rows() * f.rows(), result.cols() * f.cols());
        for (Index i = 0; i < next.rows(); ++i) {
            for (Index j = 0; j < next.cols(); ++j) {
                next(i, j) =
                    result(i / f.rows(), j / f.cols()) * static_cast<wide<Scalar>>(f(i % f.rows(), j % f.cols()));
            }
        }
        result = next;
    }
    return result;
}
template <class Scalar>
matrix<Scalar> orthonormal(Index rows, Index cols, std::uint64_t seed) {
    const matrix<Scalar> q = random<matrix<Scalar>>(rows, rows, seed).householderQr().householderQ();
    return q.leftCols(cols);
}
/// Singular values from 1 down to 1 / condition.
template <class Scalar>
matrix<Scalar> graded(Index rows, Index cols, double condition, std::uint64_t seed) {
    const Index thin = std::min(rows, cols);
    vector<Scalar> s(thin);
    for (Index i = 0; i < thin; ++i) {
        s(i) = Scalar(
            static_cast<real_of<Scalar>>(std::pow(condition, -static_cast<double>(i) / static_cast<double>(thin - 1))));
    }
    return orthonormal<Scalar>(rows, thin, seed) * s.asDiagonal() *
           orthonormal<Scalar>(cols, thin, seed + 100).adjoint();
}
template <class Scalar>
matrix<Scalar> graded_definite(Index n, double condition, std::uint64_t seed) {
    const matrix<Scalar> v = orthonormal<Scalar>(n, n, seed), g = graded<Scalar>(n, n, condition, seed);
    const vector<Scalar> s = g.jacobiSvd().singularValues().template cast<Scalar>();
    const matrix<Scalar> m = v * s.asDiagonal() * v.adjoint();
    return (m + m.adjoint().eval()) / Scalar(2);
}
/// The largest |K x - b| in roundings of |x|, by column, of a K of norm 1.
template <class Scalar, class X, class B>
double roundings(const std::vector<matrix<Scalar>>& factors, const X& x, const B& b) {
    using scalar = wide<typename X::Scalar>;
    const matrix<scalar> k = wide_kron<Scalar>(factors).template cast<scalar>();
    const matrix<scalar> left = k * x.template cast<scalar>() - b.template cast<scalar>();
    double most = 0;
    for (Index j = 0; j < x.cols(); ++j) {
        const auto size = static_cast<double>(x.col(j).template cast<scalar>().norm());
        const double of_column = static_cast<double>(left.col(j).norm()) / size;
        most = most > of_column ? most : of_column;
        CHECK(std::isfinite(of_column));
    }
    return most / static_cast<double>(std::numeric_limits<real_of<Scalar>>::epsilon());
}
/// Right-hand sides of a solution that is not large, and any.
template <class Scalar>
matrix<Scalar> right_of(const std::vector<matrix<Scalar>>& factors, std::uint64_t seed) {
    const matrix<wide<Scalar>> k = wide_kron<Scalar>(factors);
    const auto x = random<matrix<Scalar>>(k.cols(), 2, seed);
    return (k * x.template cast<wide<Scalar>>()).template cast<Scalar>();
}

}  // namespace decomposed

TEST_CASE_TEMPLATE("solves leave a residual of some roundings, whatever the condition of the factors", Scalar,
                   OTIMES_ONE_OF(double, float, std::complex<double>)) {
    using namespace decomposed;
    using real = real_of<Scalar>;
    const double most = 0.03 / static_cast<double>(std::numeric_limits<real>::epsilon());
    for (const int count : {1, 2, 3}) {
        for (double condition = 10; condition < most; condition *= 10) {
            CAPTURE(count);
            CAPTURE(condition);
            std::vector<matrix<Scalar>> square, definite, tall, wide_ones;
            for (int k = 0; k < count; ++k) {
                const auto seed = static_cast<std::uint64_t>(10 * k + 1);
                square.push_back(graded<Scalar>(3 + k, 3 + k, condition, seed));
                definite.push_back(graded_definite<Scalar>(3 + k, condition, seed + 1));
                tall.push_back(graded<Scalar>(5 - k % 2, 3, condition, seed + 2));
                wide_ones.push_back(graded<Scalar>(2, 4, condition, seed + 3));
            }
            matrix<Scalar> b = right_of(square, 7);
            matrix<Scalar> x = poisoned<matrix<Scalar>>(b.rows(), b.cols());
            x = otimes::kron_lu<Scalar>(kron(square)).solve(b);
            CHECK(roundings(square, x, b) < 8);
            x = kron(square).solve(b);
            CHECK(roundings(square, x, b) < 8);
            x = otimes::kron_qr<Scalar>(kron(square)).solve(b);
            CHECK(roundings(square, x, b) < 8);
            b = right_of(definite, 8);
            if (condition < most / 10) {  // else rounding may leave one that is not definite
                x = otimes::kron_llt<Scalar>(kron(definite)).solve(b);
                CHECK(roundings(definite, x, b) < 16);
            }
            x = otimes::kron_self_adjoint_eigen<Scalar>(kron(definite)).solve(b);
            CHECK(roundings(definite, x, b) < 16);
            b = right_of(tall, 9);
            x = kron(tall).solve(b);
            CHECK(roundings(tall, x, b) < 8);
            b = right_of(wide_ones, 9);
            x = kron(wide_ones).solve(b);
            CHECK(roundings(wide_ones, x, b) < 8);
        }
    }
    const std::vector<matrix<Scalar>> plain{well_conditioned<Scalar>(4, 1), well_conditioned<Scalar>(5, 2)};
    CHECK_FALSE(otimes::kron_lu<Scalar>(kron(plain)).refines());
    CHECK_FALSE(otimes::kron_lu<Scalar>(kron(plain)).solves_by_factors());
    // Roundings do not multiply from factor to factor: four of condition number 10 need no refinement, although that of their kron is 10^4. (Complex factors of 4 may be multiplied out.)
    std::vector<matrix<Scalar>> four;
    for (std::uint64_t seed = 20; seed < 24; ++seed) {
        four.push_back(
            graded<Scalar>(support::is_complex<Scalar> ? 5 : 4, support::is_complex<Scalar> ? 5 : 4, 10, seed));
    }
    const otimes::kron_lu<Scalar> lu(kron(four));
    CHECK_FALSE(lu.refines());
    CHECK_FALSE(lu.solves_by_factors());
    const matrix<Scalar> b = right_of(four, 5);
    CHECK(roundings(four, matrix<Scalar>(lu.solve(b)), b) < 8);
}

TEST_CASE(
    "powers of two that are dealt out over the inverses do not reach the factors that are solved with one by one") {
    using namespace decomposed;
    const auto check = [](const auto& K, const auto& factors, double size) {
        using scalar = typename std::decay_t<decltype(factors)>::value_type::Scalar;
        REQUIRE(otimes::kron_lu<scalar>(K).solves_by_factors());
        const matrix<scalar> x = matrix<scalar>::Constant(K.cols(), 1, scalar(1));
        const matrix<scalar> b = K * x;
        const matrix<scalar> y = K.solve(b);
        const matrix<scalar> z = otimes::kron_qr<scalar>(K).solve(b);
        CHECK(roundings(factors, y, matrix<scalar>(b / scalar(size))) < 64);
        CHECK(roundings(factors, z, matrix<scalar>(b / scalar(size))) < 64);
    };
    const Eigen::MatrixXf h = hilbert(5).cast<float>(), d = (Eigen::VectorXf(2) << 1, 1e-6f).finished().asDiagonal(),
                          a = well_conditioned<float>(3, 1);
    check(kron(h, h, d, d, d), std::vector<Eigen::MatrixXf>{h, h, d, d, d}, 1);
    const float tiny = std::ldexp(1.0f, -40);
    check(kron(h, h, tiny * a, tiny * a), std::vector<Eigen::MatrixXf>{h, h, a, a}, std::ldexp(1.0, -80));
    const matrix_d H = hilbert(11), A = well_conditioned<double>(3, 1);
    const double small = std::ldexp(1.0, -400), less = std::ldexp(1.0, -300);
    const vector_d e = (vector_d(2) << 1, 0.5).finished();
    check(kron(H, small * A, less * A), std::vector<matrix_d>{H, A, A}, std::ldexp(1.0, -700));
    check(kron(H, (small * e).asDiagonal(), less * A), std::vector<matrix_d>{H, matrix_d(e.asDiagonal()), A},
          std::ldexp(1.0, -700));
}

TEST_CASE("each factor is solved with by its decomposition where refinement does not help: factors of every kind") {
    using namespace decomposed;
    const matrix_d H = hilbert(11), B = well_conditioned<double>(3, 1);
    const vector_d d = (vector_d(2) << 2, -0.25).finished();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    const matrix_d D = d.asDiagonal(), p = P.toDenseMatrix().cast<double>(), two = matrix_d::Identity(2, 2);
    const auto K = -0.5 * kron(d.asDiagonal(), H, P, otimes::identity(2));
    const otimes::kron_lu<double> lu(K);
    REQUIRE(lu.solves_by_factors());
    CHECK_FALSE(lu.refines());
    const std::vector<matrix_d> factors{matrix_d(D / 2), matrix_d(H / 2), p, two};  // of norm 1, or somewhat less
    const matrix_d b = -2 * right_of<double>({D, H, p, two}, 3);
    const matrix<std::complex<double>> c = b * std::complex<double>(1, -2);
    const matrix_d x = lu.solve(b);
    CHECK(roundings(factors, x, matrix_d(-b / 2)) < 8);  // (-0.5 K') x = b
    const matrix<std::complex<double>> y = lu.solve(c);
    CHECK(roundings(factors, y, matrix<std::complex<double>>(-c / 2)) < 8);
    CHECK(lu.solve(matrix_d(b.rows(), 0)).cols() == 0);
    // A column is solved for alone.
    matrix_d with_nan = b;
    with_nan(0, 1) = std::numeric_limits<double>::quiet_NaN();
    CHECK(matrix_d(lu.solve(with_nan)).col(0).isApprox(x.col(0), 1e-15));
    const vector_d single = lu.solve(b.col(0));
    CHECK(single.isApprox(x.col(0), 1e-15));
    // Least squares of least norm: K^+ b, b not in the range.
    const matrix_d tall = graded<double>(5, 3, 1e7, 4), flat = graded<double>(2, 4, 1e6, 5);
    const auto L = kron(tall, flat, B);
    const matrix_d r = random(30, 2, 6), z = L.solve(r);
    const matrix_d left = wide_kron<double>({tall, flat, B}).cast<double>() * z - r;
    CHECK((wide_kron<double>({tall, flat, B}).transpose() * left.cast<long double>()).norm() < 1e-14 * z.norm());
    const matrix_d kernel = matrix_d::Identity(4, 4) - flat.completeOrthogonalDecomposition().solve(flat);
    CHECK((kron(otimes::identity(3), kernel, otimes::identity(3)) * z).norm() < 1e-8 * z.norm());
}

TEST_CASE_TEMPLATE("powers of two of factors are dealt out where inverses would leave the range", Scalar,
                   OTIMES_ONE_OF(double, std::complex<float>)) {
    using real = real_of<Scalar>;
    const double tolerance = 1e3 * static_cast<double>(std::numeric_limits<real>::epsilon());
    const real s = std::ldexp(real(1), std::numeric_limits<real>::max_exponent * 2 / 3);
    const auto A = positive<Scalar>(2, 1), B = positive<Scalar>(3, 2);
    const vector<Scalar> e = vector<Scalar>::LinSpaced(2, Scalar(1), Scalar(2));
    const auto b = random<matrix<Scalar>>(24, 2, 3);
    const matrix<Scalar> want =
        decomposed::wide_kron<Scalar>({A, B, A, matrix<Scalar>(e.asDiagonal())}).template cast<Scalar>().lu().solve(b);
    const matrix<Scalar> up = A * s, down = B / s;
    const matrix<Scalar> down_a = A / s, up_b = B * s;
    const vector<Scalar> up_e = e * s, down_e = e / s, four_e = e * Scalar(4);
    const std::vector<otimes::kron_expr<Scalar>> equal{kron(down_a, down, up, up_e.asDiagonal()),
                                                       kron(up, up_b, down_a, down_e.asDiagonal()),
                                                       (s / 4) * kron(down_a, down, up, four_e.asDiagonal())};
    for (const otimes::kron_expr<Scalar>& K : equal) {
        CHECK(near(matrix<Scalar>(K.solve(b)), want, tolerance));
        CHECK(near(matrix<Scalar>(otimes::kron_qr<Scalar>(K).solve(b)), want, tolerance));
        CHECK(near(matrix<Scalar>(otimes::kron_llt<Scalar>(K).solve(b)), want, tolerance));
        CHECK(near(matrix<Scalar>(K.pseudoInverse() * b), want, tolerance));
    }
    // Refined, too: the product with K is one of these factors.
    const auto hard = decomposed::graded<Scalar>(3, 3, std::is_same_v<real, float> ? 1e4 : 1e9, 4);
    const matrix<Scalar> up_hard = hard * s, right = random<matrix<Scalar>>(36, 1, 5);
    const matrix<Scalar> plain = kron(A, hard, A, B).solve(right);
    CHECK(near(matrix<Scalar>(kron(up, up_hard, down_a, down).solve(right)), plain, 10 * tolerance));
}

TEST_CASE_TEMPLATE("eigenvalues and singular values that leave the range are divided by, and counted", Scalar,
                   OTIMES_ONE_OF(double, float, std::complex<double>)) {
    using real = real_of<Scalar>;
    const double tolerance = 1e3 * static_cast<double>(std::numeric_limits<real>::epsilon());
    const auto A = positive<Scalar>(2, 1), B = positive<Scalar>(3, 2);
    const vector<Scalar> e = vector<Scalar>::LinSpaced(2, Scalar(1), Scalar(2));
    const auto K = kron(A, e.asDiagonal(), B);
    const auto b = random<matrix<Scalar>>(12, 2, 3);
    const matrix<Scalar> want = K.solve(b);
    const otimes::kron_self_adjoint_eigen<Scalar> plain(K);
    constexpr int most = std::numeric_limits<real>::max_exponent;
    for (const int power : {most * 2 / 3, most / 2, -most / 2, -most * 2 / 3, -most + 3}) {
        CAPTURE(power);
        const real s = std::ldexp(real(1), power);
        const matrix<Scalar> scaled_a = A * s, scaled_b = B * s, right = b * s;
        const auto scaled = kron(scaled_a, e.asDiagonal(), scaled_b);
        const otimes::kron_self_adjoint_eigen<Scalar> eigen(scaled);
        CHECK(near(matrix<Scalar>(eigen.solve(right) * s), want, tolerance));
        const vector<Scalar> one = right.col(0);
        CHECK(near(matrix<Scalar>(eigen.solve(one) * s), matrix<Scalar>(want.col(0)), tolerance));
        CHECK(near(matrix<Scalar>(eigen.operatorSqrt().toDenseMatrix() / s), plain.operatorSqrt().toDenseMatrix(),
                   tolerance));
        CHECK(near(matrix<Scalar>(eigen.operatorInverseSqrt().toDenseMatrix() * s),
                   plain.operatorInverseSqrt().toDenseMatrix(), tolerance));
        const otimes::kron_svd<Scalar> svd(scaled);
        CHECK(svd.rank() == 12);
        CHECK(near(matrix<Scalar>(svd.solve(right) * s), want, tolerance));
        // Of rank 2 * 2 * 1.
        const matrix<Scalar> thin = scaled_b.col(0) * (B.row(0) / B(0, 0));
        CHECK(otimes::kron_svd<Scalar>(kron(scaled_a, e.asDiagonal(), thin)).rank() == 4);
    }
}

TEST_CASE_TEMPLATE("Cholesky decompositions count the signs of the factors", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = positive<Scalar>(3, 1), B = positive<Scalar>(4, 2);
    const vector<Scalar> d = vector<Scalar>::LinSpaced(2, Scalar(1), Scalar(3));
    const matrix<Scalar> minus_a = -A, minus_b = -B;
    const vector<Scalar> minus_d = -d;
    const matrix<Scalar> k =
        decomposed::wide_kron<Scalar>({A, B, matrix<Scalar>(d.asDiagonal())}).template cast<Scalar>();
    const auto b = random<matrix<Scalar>>(24, 2, 3);
    const std::vector<otimes::kron_expr<Scalar>> equal{
        kron(A, B, d.asDiagonal()), kron(minus_a, minus_b, d.asDiagonal()), kron(minus_a, B, minus_d.asDiagonal()),
        -1.0 * kron(A, minus_b, d.asDiagonal()), -1.0 * kron(minus_a, minus_b, minus_d.asDiagonal())};
    for (const otimes::kron_expr<Scalar>& K : equal) {
        const otimes::kron_llt<Scalar> llt(K);
        const matrix<Scalar> l = llt.matrixL().toDenseMatrix(), u = llt.matrixU().toDenseMatrix();
        CHECK(near(matrix<Scalar>(l * l.adjoint()), k));
        CHECK(near(u, matrix<Scalar>(l.adjoint())));
        CHECK(near(matrix<Scalar>(k * llt.solve(b)), b));
        CHECK(llt.determinant() == doctest::Approx(std::abs(k.determinant())));
        CHECK(llt.logAbsDeterminant() == doctest::Approx(std::log(std::abs(k.determinant()))));
    }
    const auto text = [](const otimes::kron_expr<Scalar>& K) {
        return support::text_of<otimes::singular_error>([&] { otimes::kron_llt<Scalar>{K}; });
    };
    const std::string of = "otimes: Cholesky decomposition of kron(F1, F2), 12 x 12: ";
    CHECK(text(kron(A, minus_b)) == of + "factor 2 is not positive definite.");
    CHECK(text(kron(minus_a, B)) == of + "factor 1 is not positive definite.");
    CHECK(text(-1.0 * kron(minus_a, minus_b)) == of + "its scalar is not positive.");
    matrix<Scalar> indefinite = B;
    indefinite(1, 1) = Scalar(-1);
    CHECK(text(kron(minus_a, matrix<Scalar>(-indefinite))) == of + "factor 2 is not positive definite.");
}

TEST_CASE("decompositions of self-adjoint factors read the lower triangle and want a real diagonal") {
    using complex = std::complex<double>;
    const auto A = positive<complex>(3, 1), B = positive<complex>(2, 2);
    matrix<complex> any_above = A;
    any_above.triangularView<Eigen::StrictlyUpper>().setConstant(
        complex(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()));
    const matrix<complex> k = decomposed::wide_kron<complex>({A, B}).cast<complex>();
    const auto b = random<matrix<complex>>(6, 2, 3);
    CHECK(near(matrix<complex>(k * otimes::kron_llt<complex>(kron(any_above, B)).solve(b)), b));
    const otimes::kron_self_adjoint_eigen<complex> eigen(kron(any_above, B));
    CHECK(near(matrix<complex>(k * eigen.solve(b)), b));
    // A phase that another factor or the scalar takes back is not seen.
    const complex phase = std::polar(1.0, 0.7);
    const matrix<complex> turned = A * phase, back = B / phase;
    const char* const says = " is not self-adjoint: its diagonal is not real (of the rest the lower triangle is read).";
    CHECK(support::text_of<otimes::singular_error>([&] { otimes::kron_llt<complex>{kron(turned, back)}; }) ==
          std::string("otimes: Cholesky decomposition of kron(F1, F2), 6 x 6: factor 1") + says);
    CHECK(support::text_of<otimes::unsupported_error>([&] {
              otimes::kron_self_adjoint_eigen<complex>{kron(B, turned)};
          }) == std::string("otimes: eigenvalue decomposition of kron(F1, F2), 6 x 6: factor 2") + says);
    const vector<complex> d = vector<complex>::Constant(2, phase);
    CHECK_THROWS_AS(otimes::kron_self_adjoint_eigen<complex>(kron(A, d.asDiagonal())), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::kron_llt<complex>(kron(A, d.asDiagonal())), otimes::singular_error);
    // What rounding leaves of a product with the adjoint is taken.
    matrix<complex> rounded = A;
    rounded.diagonal() += vector<complex>::Constant(3, complex(0, 1e-16));
    CHECK(near(matrix<complex>(k * otimes::kron_llt<complex>(kron(rounded, B)).solve(b)), b));
}

TEST_CASE_TEMPLATE("the nearest kron of a positive definite matrix has positive definite factors", Scalar,
                   OTIMES_ONE_OF(double, std::complex<double>, float, std::complex<float>)) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        const Index n = 2 + static_cast<Index>(seed % 4), m = 2 + static_cast<Index>(seed % 3);
        matrix<Scalar> whole =
            decomposed::wide_kron<Scalar>({positive<Scalar>(n, seed), positive<Scalar>(m, seed + 50)})
                .template cast<Scalar>();
        const double size = static_cast<double>(whole.norm());
        if (seed % 2 != 0) {
            whole += positive<Scalar>(n * m, seed + 100) * Scalar(static_cast<real_of<Scalar>>(size / 100));
        }
        const auto K = otimes::nearest_kron(whole, n, n);
        for (const std::size_t at : {0u, 1u}) {
            const matrix<Scalar> f = K.dense_factor(K.node().factors()[at]);
            CHECK((f - f.adjoint()).norm() < 1e-4 * f.norm());
            CHECK(Eigen::SelfAdjointEigenSolver<matrix<Scalar>>(f).eigenvalues().minCoeff() > 0);
        }
        CHECK(otimes::kron_llt<Scalar>(K).info() == Eigen::Success);
        // Of a negative definite one the second is negative.
        const auto minus = otimes::nearest_kron(matrix<Scalar>(-whole), n, n);
        CHECK(std::real(minus.dense_factor(minus.node().factors()[0]).trace()) > 0);
        CHECK(std::real(minus.dense_factor(minus.node().factors()[1]).trace()) < 0);
    }
    // Without a trace the largest element decides.
    matrix<Scalar> turn = matrix<Scalar>::Zero(2, 2);
    turn(0, 1) = Scalar(-2);
    turn(1, 0) = Scalar(1);
    const matrix<Scalar> whole = decomposed::wide_kron<Scalar>({turn, positive<Scalar>(3, 1)}).template cast<Scalar>();
    const auto K = otimes::nearest_kron(whole, 2, 2);
    CHECK(std::real(K.dense_factor(K.node().factors()[0])(0, 1)) > 0);
    CHECK(near(K.toDenseMatrix(), whole, std::is_same_v<real_of<Scalar>, float> ? 1e-4 : 1e-10));
}

TEST_CASE("a column of a solve with a sum does not depend on the others") {
    using namespace decomposed;
    const Index n = 20;
    const matrix_d A = convection(n, 0.25), eye = matrix_d::Identity(n, n);
    const otimes::kron_sum_solver<double> solver(otimes::kron_sum(A, A));
    const matrix_d whole = (wide_kron<double>({A, eye}) + wide_kron<double>({eye, A})).cast<double>();
    matrix_d b = random(n * n, 3, 1);
    const matrix_d x = solver.solve(b);
    CHECK(backward_error<double>(whole, x, b) < 1e-14);
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        matrix_d with_bad = b;
        with_bad.col(1).setConstant(bad);
        const matrix_d y = solver.solve(with_bad);
        CHECK(y.col(0).isApprox(x.col(0), 1e-14));
        CHECK(y.col(2).isApprox(x.col(2), 1e-14));
        CHECK_FALSE(y.col(1).allFinite());
        matrix_d good(n * n, 2), of_good(n * n, 2);
        good << b.col(0), b.col(2);
        of_good << y.col(0), y.col(2);
        CHECK(backward_error<double>(whole, of_good, good) < 1e-14);
    }
}

TEST_CASE("the diagonal preconditioner looks at the rows of what it is given") {
    const auto K = kron(positive<double>(3, 1), positive<double>(2, 2));
    const vector_d b = random<vector_d>(6, 1, 3);
    CHECK(vector_d(otimes::DiagonalPreconditioner<double>().solve(b)) == b);
    const otimes::DiagonalPreconditioner<double> preconditioner(K);
    CHECK(near(vector_d(preconditioner.solve(b)), vector_d(b.cwiseQuotient(K.toDenseMatrix().diagonal()))));
    CHECK(support::text_of<otimes::shape_error>([&] {
              static_cast<void>(preconditioner.solve(vector_d(vector_d::Ones(5))));
          }) == "otimes: DiagonalPreconditioner of an operator of order 6: the right-hand side is 5 x 1.");
}

TEST_CASE("one rule says what is singular to LU and QR decompositions") {
    const vector_d d = (vector_d(2) << 1, 1e-20).finished();
    const matrix_d B = well_conditioned<double>(3, 1);
    matrix_d graded = matrix_d::Identity(50, 50);
    graded(49, 49) = 20 * std::numeric_limits<double>::epsilon();
    const vector_d b = random<vector_d>(6, 1, 2), c = random<vector_d>(150, 1, 3);
    const auto K = kron(d.asDiagonal(), B), G = kron(graded, B);
    CHECK(K.isInvertible());
    CHECK(G.isInvertible());
    const vector_d x = K.solve(b), z = G.solve(c);
    CHECK(vector_d(otimes::kron_qr<double>(K).solve(b)).isApprox(x, 1e-13));
    CHECK(vector_d(otimes::kron_qr<double>(G).solve(c)).isApprox(z, 1e-13));
    graded(49, 49) = std::numeric_limits<double>::epsilon() / 4;
    const vector_d zero = (vector_d(2) << 1, 0).finished();
    CHECK_FALSE(kron(graded, B).isInvertible());
    CHECK_FALSE(kron(zero.asDiagonal(), B).isInvertible());
    CHECK_FALSE((0.0 * K).isInvertible());
    CHECK_FALSE(kron(matrix_d(2, 3), matrix_d(3, 2)).isInvertible());
    CHECK_THROWS_AS(static_cast<void>(kron(graded, B).solve(c)), otimes::singular_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::kron_qr<double>(kron(graded, B)).solve(c)), otimes::singular_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::kron_qr<double>(kron(zero.asDiagonal(), B)).solve(b)),
                    otimes::singular_error);
}

TEST_CASE("the logarithm of the determinant of a singular sum is -infinity") {
    const matrix_d A = positive<double>(3, 1), B = positive<double>(2, 2), eye = matrix_d::Identity(2, 2);
    const double least = A.selfadjointView<Eigen::Lower>().eigenvalues()(0);
    const double minus = -std::numeric_limits<double>::infinity();
    CHECK((kron(A, eye) - least * otimes::identity()).logAbsDeterminant() == minus);
    CHECK((kron(A, B) - kron(A, B)).logAbsDeterminant() == minus);
    CHECK_THROWS_AS(static_cast<void>((kron(A, B) - kron(A, B)).solve(vector_d::Ones(6).eval())),
                    otimes::singular_error);
    matrix_d bad = A;
    bad(1, 1) = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_AS(static_cast<void>((kron(bad, B) + otimes::identity()).logAbsDeterminant()), otimes::singular_error);
}

TEST_CASE("a kron without elements is solved with, its condition number is 1") {
    const matrix_d none(0, 0), zeros = matrix_d::Zero(2, 2);
    const vector_d empty(0);
    CHECK(kron(zeros, none).solve(empty).size() == 0);
    CHECK(kron(zeros, none).inverse().rows() == 0);
    CHECK((0.0 * kron(none)).solve(matrix_d(0, 3)).cols() == 3);
    CHECK(kron(zeros, matrix_d(2, 0)).solve(vector_d::Ones(4).eval()).size() == 0);
    CHECK(kron(zeros, none).conditionNumber() == 1);
    CHECK(kron(positive<double>(3, 1), none).conditionNumber() == 1);
    CHECK(kron(vector_d(empty).asDiagonal()).conditionNumber() == 1);
}

TEST_CASE_TEMPLATE("Cholesky decompositions of ill-conditioned triangles leave a residual of some roundings", Scalar,
                   OTIMES_ONE_OF(double, std::complex<double>)) {
    using namespace decomposed;
    // W. Kahan, Numerical linear algebra (1966): the inverse of this triangle has elements that grow as powers of 1 + c.
    const auto kahan = [](Eigen::Index n, double s) {
        matrix<Scalar> l = matrix<Scalar>::Identity(n, n);
        l.template triangularView<Eigen::StrictlyLower>().setConstant(Scalar(-std::sqrt(1 - s * s)));
        for (Eigen::Index j = 0; j < n; ++j) {
            l.col(j) *= Scalar(std::pow(s, static_cast<double>(j)));
        }
        const matrix<Scalar> m = l * l.adjoint();
        return matrix<Scalar>(m / m.norm());
    };
    // The kernel of points that lie close together, as in Gaussian processes: its triangle's inverse is large.
    const auto kernel = [](Eigen::Index n, double jitter) {
        matrix<Scalar> k(n, n);
        for (Eigen::Index i = 0; i < n; ++i) {
            for (Eigen::Index j = 0; j < n; ++j) {
                const double d = static_cast<double>(i - j) / static_cast<double>(4 * n);
                k(i, j) = Scalar(std::exp(-d * d) + (i == j ? jitter : 0));
            }
        }
        return matrix<Scalar>(k / k.norm());
    };
    const matrix<Scalar> one = matrix<Scalar>::Ones(1, 1);
    const matrix<Scalar> few = kernel(3, 1);
    enum class by : std::uint8_t { triangles, steps, factors };
    const auto solves = [](const std::vector<matrix<Scalar>>& factors, by way) {
        const otimes::kron_llt<Scalar> llt(kron(factors));
        CHECK(llt.solves_by_triangles() == (way == by::triangles));
        CHECK(llt.refines() == (way == by::steps));
        CHECK(llt.solves_by_factors() == (way == by::factors));
        const matrix<Scalar> b = right_of(factors, 7);
        matrix<Scalar> x = poisoned<matrix<Scalar>>(b.rows(), b.cols());
        x = llt.solve(b);
        CHECK(roundings(factors, x, b) < 8);
        const otimes::kron_llt<Scalar> copy = llt;
        CHECK(copy.solve(b) == x);
        CHECK(copy.solve(matrix<Scalar>(b.rows(), 0)).cols() == 0);
        // of a vector, and of a right-hand side that is complex where the factors are not
        const vector<Scalar> v = llt.solve(b.col(1));
        CHECK(roundings(factors, matrix<Scalar>(v), matrix<Scalar>(b.col(1))) < 8);
        const matrix<std::complex<double>> z = b.template cast<std::complex<double>>() * std::complex<double>(0, 1);
        const matrix<std::complex<double>> y = llt.solve(z);
        CHECK(roundings(factors, y, z) < 8);
    };
    solves({few, one, kahan(12, 0.7)}, by::steps);
    solves({kahan(12, 0.5), one, few}, by::factors);
    solves({kernel(6, 1e-4), one}, by::triangles);
    solves({kernel(6, 1e-8), one}, by::steps);
    solves({one, kernel(20, 1e-8)}, by::steps);
    solves({few, kernel(20, 1e-13), one}, by::factors);
    // Here K.solve() finds the factor singular to working precision.
    const matrix<Scalar> least = kernel(60, 100 * std::numeric_limits<double>::epsilon());
    CHECK_THROWS_AS(otimes::kron_lu<Scalar>{kron(least)}, otimes::singular_error);
    solves({least}, by::factors);
}

TEST_CASE_TEMPLATE("factors are solved with one by one at the ends of the range, too", Scalar,
                   OTIMES_ONE_OF(double, float, std::complex<double>)) {
    using real = real_of<Scalar>;
    constexpr real epsilon = std::numeric_limits<real>::epsilon();
    matrix<Scalar> close(20, 20);  // the kernel of points that lie close together
    for (Eigen::Index i = 0; i < 20; ++i) {
        for (Eigen::Index j = 0; j < 20; ++j) {
            const real d = real(i - j) / real(80);
            close(i, j) = Scalar(std::exp(-d * d) + (i == j ? 84 * epsilon : real(0)));
        }
    }
    const int most = std::numeric_limits<real>::max_exponent;
    // d: elements of the diagonal, over 2^power; b: of the right-hand sides
    const auto solves = [&](real d, int power, int of_b) {
        CAPTURE(power);
        CAPTURE(of_b);
        vector<Scalar> diagonal(2);
        diagonal << Scalar(std::ldexp(real(2) * d, power)), Scalar(std::ldexp(real(1), power));
        const int other = power > most || power < -most ? 0 : -power;
        const matrix<Scalar> f = close * Scalar(std::ldexp(real(1), other));
        const auto K = kron(diagonal.asDiagonal(), f);
        matrix<Scalar> dense = matrix<Scalar>::Zero(40, 40);  // K over 2^(power + other)
        dense.topLeftCorner(20, 20) = close * Scalar(real(2) * d);
        dense.bottomRightCorner(20, 20) = close;
        matrix<Scalar> b = dense * random<matrix<Scalar>>(40, 2, 5);
        const auto leaves = [&](const matrix<Scalar>& solution) {
            // of B and X over their powers of two
            const matrix<Scalar> x = solution.unaryExpr([&](const Scalar& v) {
                return otimes::detail::scaled_number<Scalar>(v, power + other - of_b).value();
            });
            return (dense * x - b).norm() / (epsilon * dense.norm() * x.norm());
        };
        const matrix<Scalar> right = b * Scalar(std::ldexp(real(1), of_b));
        const otimes::kron_llt<Scalar> llt(K);
        REQUIRE(llt.solves_by_factors());
        CHECK(leaves(llt.solve(right)) < 16);
        const otimes::kron_lu<Scalar> lu(K);
        REQUIRE(lu.solves_by_factors());
        CHECK(leaves(lu.solve(right)) < 16);
    };
    for (const int of_b : {0, most * 3 / 10, -most * 3 / 10}) {
        solves(1, 0, of_b);
        solves(1, most * 3 / 4, of_b);
        solves(1, -most * 3 / 4, of_b);
    }
    solves(1, -most - 6, -most * 3 / 4);  // the diagonal's inverse is not finite
    const matrix<Scalar> none(0, 0);
    for (const auto& K : {kron(close, none), kron(none, close)}) {
        CHECK(otimes::kron_llt<Scalar>(K).solve(matrix<Scalar>(0, 3)).cols() == 3);
        CHECK(otimes::kron_lu<Scalar>(K).solve(matrix<Scalar>(0, 3)).cols() == 3);
    }
}

TEST_CASE("steps of refinement take a right-hand side that is an expression once") {
    matrix_d close(20, 20);
    for (Eigen::Index i = 0; i < 20; ++i) {
        for (Eigen::Index j = 0; j < 20; ++j) {
            const double d = static_cast<double>(i - j) / 80;
            close(i, j) = std::exp(-d * d) + (i == j ? 1e-8 : 0);
        }
    }
    const otimes::kron_llt<double> llt{kron(close)};
    const otimes::kron_lu<double> lu{kron(close)};
    REQUIRE(llt.refines());
    REQUIRE(lu.refines());
    int calls = 0;
    const auto b = vector_d::NullaryExpr(20, [&calls](Eigen::Index i) {
        ++calls;
        return std::sin(static_cast<double>(i));
    });
    const vector_d x = llt.solve(b);
    CHECK(calls == 20);
    const vector_d y = lu.solve(b);
    CHECK(calls == 40);
    CHECK(near(matrix_d(close * x), matrix_d(close * y), 1e-6));
}

TEST_CASE("values of more factors than fit are refused before anything is multiplied") {
    const auto K = kron(std::vector<matrix_d>(62, matrix_d(matrix_d::Identity(2, 2) * 1.5)));
    CHECK_THROWS_AS(static_cast<void>(K.singularValues()), std::bad_alloc);
    CHECK_THROWS_AS(otimes::kron_svd<double>{K}, std::bad_alloc);
    CHECK_THROWS_AS(otimes::kron_self_adjoint_eigen<double>{K}, std::bad_alloc);
}

TEST_CASE_TEMPLATE("the triangles of a kron's LU decomposition are krons of its factors'", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(5, 5, 1), B = random<matrix<Scalar>>(3, 3, 2);
    const matrix<Scalar> one = matrix<Scalar>::Constant(1, 1, Scalar(-3));
    const vector<Scalar> d = vector<Scalar>::LinSpaced(2, Scalar(-1), Scalar(3));
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 1, 2, 0;
    Eigen::SparseMatrix<Scalar> sparse(2, 2);
    sparse.insert(0, 1) = Scalar(2);
    sparse.insert(1, 0) = Scalar(5);
    const auto check = [](const auto& K) {
        const otimes::kron_lu<Scalar> lu(K);
        const matrix<Scalar> k = K.toDenseMatrix(), p = lu.permutationP().toDenseMatrix(),
                             l = lu.matrixL().toDenseMatrix(), u = lu.matrixU().toDenseMatrix();
        CHECK((p * p.transpose()).isIdentity(0));
        CHECK(p.cwiseProduct(p) == p);
        CHECK(l.isLowerTriangular(0));
        CHECK(l.diagonal() == vector<Scalar>::Ones(l.rows()));
        CHECK(u.isUpperTriangular(0));
        CHECK(near(matrix<Scalar>(l * u), matrix<Scalar>(p * k)));
    };
    check(Scalar(0.5) * kron(A, d.asDiagonal(), B));
    check(kron(P, B, one));
    check(Scalar(2) * kron(P.transpose(), A));
    check(kron(sparse, otimes::identity(2), A.template triangularView<Eigen::Lower>()));
    check(kron(matrix<Scalar>(A.transpose())).transpose());
    check(kron(matrix<Scalar>(0, 0), B));
    // Factors at both ends of the range.
    const matrix<Scalar> large = A * Scalar(1e300), small = B * Scalar(1e-300);
    check(kron(large, small));
    const otimes::kron_lu<Scalar> of_large(kron(large, small));
    CHECK(of_large.permutationP().factor_count() == 2);
}

TEST_CASE_TEMPLATE("what decompositions know beside solving", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = well_conditioned<Scalar>(3, 1), B = well_conditioned<Scalar>(2, 2);
    const vector<Scalar> d = vector<Scalar>::LinSpaced(2, Scalar(-1), Scalar(3));
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 1, 0, 2;
    const matrix<Scalar> p = P.toDenseMatrix().template cast<Scalar>();
    const auto K = Scalar(0.5) * kron(A, d.asDiagonal(), P, B);
    const matrix<Scalar> k =
        Scalar(0.5) * decomposed::wide_kron<Scalar>({A, matrix<Scalar>(d.asDiagonal()), p, B}).template cast<Scalar>();
    const Scalar det = k.partialPivLu().determinant();
    const otimes::kron_lu<Scalar> lu(K);
    CHECK(std::abs(lu.determinant() - det) < 1e-10 * std::abs(det));
    CHECK(lu.logAbsDeterminant() == doctest::Approx(std::log(std::abs(det))));
    CHECK(lu.rows() == 36);
    CHECK(lu.cols() == 36);
    CHECK(lu.info() == Eigen::Success);
    const otimes::kron_qr<Scalar> qr(K);
    CHECK(qr.absDeterminant() == doctest::Approx(std::abs(det)));
    CHECK(qr.logAbsDeterminant() == doctest::Approx(std::log(std::abs(det))));
    CHECK(qr.rank() == 36);
    const auto tall = random<matrix<Scalar>>(4, 2, 5);
    matrix<Scalar> flat = B;
    flat.col(1) = flat.col(0);
    const otimes::kron_qr<Scalar> other(kron(tall, flat));
    CHECK(other.rank() == 2);
    CHECK(other.rows() == 8);
    CHECK(other.cols() == 4);
    CHECK_THROWS_AS(static_cast<void>(other.absDeterminant()), otimes::shape_error);
    const otimes::kron_qr<Scalar> singular(kron(tall, matrix<Scalar>(tall.adjoint())));
    CHECK(singular.absDeterminant() == 0);
    CHECK(singular.logAbsDeterminant() == -std::numeric_limits<double>::infinity());
    otimes::kron_svd<Scalar> svd(kron(tall, flat));
    CHECK(svd.rank() == 2);
    CHECK(svd.rows() == 8);
    CHECK(svd.cols() == 4);
    CHECK(svd.threshold() == 4 * std::numeric_limits<double>::epsilon());
    const auto s = svd.singularValues();
    vector<double> sorted = s;
    std::sort(sorted.data(), sorted.data() + sorted.size());
    CHECK(svd.setThreshold(0.999 * sorted(3) / sorted(3)).rank() == 1);
    const auto b = random<matrix<Scalar>>(8, 2, 6);
    matrix<Scalar> truncated = matrix<Scalar>::Zero(4, 2);  // of the largest singular value alone
    Index at = 0;
    s.maxCoeff(&at);
    truncated = svd.matrixV().toDenseMatrix().col(at) * (svd.matrixU().toDenseMatrix().col(at).adjoint() * b) / s(at);
    CHECK(near(matrix<Scalar>(svd.solve(b)), truncated));
    CHECK(svd.setThreshold(Eigen::Default).rank() == 2);
    // Of self-adjoint factors, two of them negative.
    const auto F = positive<Scalar>(3, 7), G = positive<Scalar>(2, 8);
    const vector<Scalar> positive_d = vector<Scalar>::LinSpaced(2, Scalar(1), Scalar(4));
    const auto M = 4.0 * kron(matrix<Scalar>(-F), positive_d.asDiagonal(), matrix<Scalar>(-G));
    const matrix<Scalar> m =
        4.0 * decomposed::wide_kron<Scalar>({F, matrix<Scalar>(positive_d.asDiagonal()), G}).template cast<Scalar>();
    const otimes::kron_self_adjoint_eigen<Scalar> eigen(M);
    const matrix<Scalar> root = eigen.operatorSqrt().toDenseMatrix(),
                         inverse = eigen.operatorInverseSqrt().toDenseMatrix();
    CHECK(near(matrix<Scalar>(root * root), m));
    CHECK(near(root, matrix<Scalar>(root.adjoint())));
    CHECK(Eigen::SelfAdjointEigenSolver<matrix<Scalar>>(root).eigenvalues().minCoeff() > 0);
    CHECK(near(matrix<Scalar>(root * inverse), matrix<Scalar>(matrix<Scalar>::Identity(12, 12))));
    const auto c = random<matrix<Scalar>>(12, 2, 9);
    CHECK(near(matrix<Scalar>(m * eigen.solve(c)), c));
    CHECK(eigen.rows() == 12);
    CHECK(otimes::kron_llt<Scalar>(M).rcond() > 1e-4);
    CHECK(otimes::kron_llt<Scalar>(M).rcond() < 1);
    const otimes::kron_self_adjoint_eigen<Scalar> negative(kron(F, matrix<Scalar>(-G)));
    CHECK(support::text_of<otimes::singular_error>([&] {
              static_cast<void>(negative.operatorSqrt());
          }).find("otimes: operatorSqrt of kron(F1, F2), 6 x 6: its eigenvalues reach down to -") == 0);
    const vector<Scalar> zero = (vector<Scalar>(2) << Scalar(0), Scalar(1)).finished();
    const otimes::kron_self_adjoint_eigen<Scalar> semidefinite(kron(F, zero.asDiagonal()));
    CHECK(
        near(matrix<Scalar>(semidefinite.operatorSqrt().toDenseMatrix() * semidefinite.operatorSqrt().toDenseMatrix()),
             kron(F, zero.asDiagonal()).toDenseMatrix()));
    CHECK_THROWS_AS(static_cast<void>(semidefinite.operatorInverseSqrt()), otimes::singular_error);
    CHECK_THROWS_AS(static_cast<void>(semidefinite.solve(vector<Scalar>(vector<Scalar>::Ones(6)))),
                    otimes::singular_error);
    const otimes::kron_sum_solver<Scalar> sum(otimes::kron_sum(A, B));
    CHECK(sum.rows() == 6);
    CHECK(sum.info() == Eigen::Success);
}

// SPDX-License-Identifier: MIT
// Solving where it is hard: factors that are singular but for rounding, badly scaled or ill-conditioned, sums whose terms share matrices.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <Eigen/Dense>
#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/solving.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

TEST_CASE_TEMPLATE("factors whose rank is one too few are refused, whatever rounding left of the last pivot", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double)) {
    const auto B = well_conditioned<Scalar>(3, 2);
    for (std::uint64_t k = 0; k < 40; ++k) {
        CAPTURE(k);
        const Index n = 2 + static_cast<Index>(k % 5);
        const matrix<Scalar> A = random<matrix<Scalar>>(n, n - 1, 2 * k) * random<matrix<Scalar>>(n - 1, n, 2 * k + 1);
        const matrix<Scalar> F =
            random<matrix<Scalar>>(n + 2, n - 1, 2 * k) * random<matrix<Scalar>>(n - 1, n, 2 * k + 1);
        CHECK_THROWS_AS((void)kron(B, A).solve(vector<Scalar>(vector<Scalar>::Ones(3 * n))), otimes::singular_error);
        CHECK_THROWS_AS((void)otimes::kron_qr<Scalar>(kron(F, B)).solve(vector<Scalar>::Ones(3 * n + 6)),
                        otimes::singular_error);
    }
}

TEST_CASE_TEMPLATE("Cholesky decompositions at the ends of the range", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, double, std::complex<float>)) {
    using real = real_of<Scalar>;
    const double tolerance = 1e3 * static_cast<double>(std::numeric_limits<real>::epsilon());
    const auto A = positive<Scalar>(5, 1), B = positive<Scalar>(2, 2);
    const auto b = random<matrix<Scalar>>(10, 2, 3);
    const matrix<Scalar> want = kron(A, B).solve(b);
    for (const int exponent : {-1, 0, 1, -(std::numeric_limits<real>::max_exponent * 11 / 16 + 3),
                               std::numeric_limits<real>::max_exponent * 11 / 16 + 2}) {
        CAPTURE(exponent);
        const real s = std::ldexp(real(1), exponent);
        const auto K = kron(matrix<Scalar>(A * s), B);
        const otimes::kron_llt<Scalar> llt(K);
        CHECK(near(evaluated(llt.solve(b) * s), want, tolerance));
        const matrix<Scalar> l = llt.matrixL().toDenseMatrix() * std::ldexp(real(1), -(exponent / 2));
        const matrix<Scalar> back = l * l.adjoint() * std::ldexp(real(1), exponent / 2 * 2 - exponent);
        CHECK(near(back, matrix<Scalar>(kron(A, B).toDenseMatrix()), tolerance));
        CHECK(llt.logAbsDeterminant() == doctest::Approx(K.logAbsDeterminant()).epsilon(tolerance));
    }
}

TEST_CASE_TEMPLATE(
    "Cholesky decompositions solve with one product, two where one would leave a large residual, or more", Scalar,
    OTIMES_ONE_OF(float, double, std::complex<double>)) {
    using real = real_of<Scalar>;
    const real epsilon = std::numeric_limits<real>::epsilon();
    const auto b = random<matrix<Scalar>>(30, 2, 3);
    const auto residual = [&b](const matrix<Scalar>& k, const matrix<Scalar>& x) {
        return (k * x - b).norm() / (k.norm() * x.norm());
    };
    const auto A = positive<Scalar>(5, 1), B = positive<Scalar>(6, 2);
    const otimes::kron_llt<Scalar> well(kron(A, B));
    CHECK(!well.solves_by_triangles());
    CHECK(residual(kron(A, B).toDenseMatrix(), well.solve(b)) < 10 * epsilon);
    // Kernels of points that lie close together: singular but for what is added to the diagonal.
    const auto kernel = [](Index n, real jitter) {
        matrix<Scalar> k(n, n);
        for (Index i = 0; i < n; ++i) {
            for (Index j = 0; j < n; ++j) {
                const real d = real(i - j) / real(4 * n);
                k(i, j) = std::exp(-d * d);
            }
            k(i, i) += jitter;
        }
        return k;
    };
    const real jitter = 100 * epsilon;
    const auto K = kron(kernel(5, jitter), kernel(6, jitter));
    const otimes::kron_llt<Scalar> ill(K);
    CHECK((ill.refines() || ill.solves_by_factors()));
    CHECK(residual(K.toDenseMatrix(), ill.solve(b)) < 10 * epsilon);
    const auto less = kron(kernel(5, real(1e-3)), kernel(6, real(0.5)));
    const otimes::kron_llt<Scalar> between(less);
    CHECK(between.solves_by_triangles());
    CHECK(residual(less.toDenseMatrix(), between.solve(b)) < 10 * epsilon);
    // The inverse of the smallest numbers is infinite, that of their roots is not. (Eigen's roots of subnormal floats are zeros.)
    if constexpr (!std::is_same_v<real, float>) {
        const real tiny = std::numeric_limits<real>::denorm_min() * 64;
        const vector<Scalar> d = vector<Scalar>::Constant(5, Scalar(tiny));
        const otimes::kron_llt<Scalar> small(kron(d.asDiagonal(), B));
        CHECK(small.solves_by_triangles());
        CHECK(evaluated(small.solve(b * Scalar(tiny))).allFinite());
    }
}

/// S.solve of a sum leaves roundings, and knows its determinant; the oracle is the matrix.
template <class Scalar, class Sum>
void check_solve(const Sum& S, double tolerance = 1e-14) {
    const otimes::kron_sum_solver<Scalar> solver(S);
    const matrix<Scalar> s = S.toDenseMatrix();
    const auto b = random<matrix<Scalar>>(s.rows(), 3, 4);
    CHECK(backward_error<Scalar>(s, solver.solve(b), b) < tolerance);
    CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(s.determinant()))));
}
const char* const three_matrices = "at position 1 the terms use 3 different matrices";

TEST_CASE_TEMPLATE("matrices that are equal count once in a sum, however they are stored", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = well_conditioned<Scalar>(3, 1), B = well_conditioned<Scalar>(4, 2),
               C = well_conditioned<Scalar>(4, 3);
    const auto I = otimes::identity(3);
    // Evaluated factors are matrices of their own, each time.
    check_solve<Scalar>(kron(matrix<Scalar>(A * A), B) + kron(I, C) + kron(matrix<Scalar>(A * A), C));
    const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> by_rows = A;
    const Eigen::SparseMatrix<Scalar> sparse = A.sparseView();
    const Eigen::Map<const matrix<Scalar>, 0, Eigen::OuterStride<>> mapped(A.data(), 3, 3, Eigen::OuterStride<>(3));
    check_solve<Scalar>(kron(A, B) + kron(by_rows, C) + kron(sparse, B) + kron(mapped, C) + kron(I, C));
    const vector<Scalar> d = random<vector<Scalar>>(3, 1, 5) + vector<Scalar>::Constant(3, Scalar(2)), e = d;
    check_solve<Scalar>(kron(d.asDiagonal(), B) + kron(e.asDiagonal(), C) + kron(I, C));
    // What is stored as an identity is one.
    const matrix<Scalar> dense_identity = matrix<Scalar>::Identity(3, 3);
    const vector<Scalar> ones = vector<Scalar>::Ones(3);
    Eigen::PermutationMatrix<Eigen::Dynamic> stays(3);
    stays.setIdentity();
    const auto S = kron(A, B) + kron(dense_identity, C) + kron(ones.asDiagonal(), B) + kron(stays, C);
    check_solve<Scalar>(S);
    CHECK(otimes::kron_sum_solver<Scalar>(kron(A, B) + kron(dense_identity, B)).method() ==
          otimes::kron_sum_solver<Scalar>(kron(A, B) + kron(I, B)).method());
    // One element that differs by a rounding makes another matrix.
    matrix<Scalar> other = A;
    other(2, 1) *= Scalar(1 + std::numeric_limits<double>::epsilon());
    CHECK(support::text_of([&] {
              otimes::kron_sum_solver<Scalar>(kron(A, B) + kron(other, C) + kron(I, B * 2));
          }).find(three_matrices) != std::string::npos);
    // With NaN it is equal to nothing, and refused.
    other(2, 1) = Scalar(std::numeric_limits<double>::quiet_NaN());
    CHECK(support::text_of([&] {
              otimes::kron_sum_solver<Scalar>(kron(other, B) + kron(matrix<Scalar>(other), C));
          }).find("NaN or infinite") != std::string::npos);
}

TEST_CASE_TEMPLATE("terms that differ at one position alone are one term", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = well_conditioned<Scalar>(3, 1), B = well_conditioned<Scalar>(4, 2),
               C = well_conditioned<Scalar>(3, 3), D = well_conditioned<Scalar>(4, 4);
    const auto E = well_conditioned<Scalar>(2, 5), F = well_conditioned<Scalar>(2, 6);
    const auto I = otimes::identity(4);
    check_solve<Scalar>(otimes::kron_sum(A, B) + kron(C, I));
    check_solve<Scalar>(otimes::kron_sum(A, B) - 0.25 * kron(A.adjoint(), I) +
                        kron(otimes::identity(3), D.transpose()));
    check_solve<Scalar>(kron(A, B) + kron(C, I) + otimes::identity());
    check_solve<Scalar>(kron(A, B, E) + 2 * kron(C, B, E) + kron(A, D, F) - kron(A, D, E));
    check_solve<Scalar>(kron(A, B) + 2 * kron(A, D) + kron(C, B) + 2 * kron(C, D));  // one kron
    check_solve<Scalar>(kron(A) + kron(C) + otimes::identity());
    const auto d = random<vector<Scalar>>(3, 1, 7), e = random<vector<Scalar>>(3, 1, 8);
    check_solve<Scalar>(kron(d.asDiagonal(), I) + 3 * kron(e.asDiagonal(), I) + kron(otimes::identity(3), B));
    check_solve<Scalar>(kron(d.asDiagonal(), B) + kron(A, B) + kron(otimes::identity(3), D));
    // Of two singular matrices at one position none can be inverted; their sum can.
    matrix<Scalar> first = A, second = C;
    first.col(1) = first.col(0);
    second.row(2).setZero();
    check_solve<Scalar>(kron(first, B) + kron(second, B));
    // Terms stay as they are where their sums would be more matrices than they.
    check_solve<Scalar>(
        kron(A, B, E) + kron(C, B, E) + kron(A, D, E) + 2 * kron(C, D, E) + kron(A, B, F) + 3 * kron(C, B, F), 1e-13);
    CHECK(support::text_of([&] {
              otimes::kron_sum_solver<Scalar>(kron(A, B) + kron(C, D) + kron(matrix<Scalar>(A * C), I));
          }).find(three_matrices) != std::string::npos);
    // What cancels is 0 and not its roundings.
    const matrix<Scalar> third = A * Scalar(0.3);
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(third, B) - 0.3 * kron(A, B)), otimes::singular_error);
    const matrix<Scalar> none = matrix<Scalar>::Zero(3, 3);
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(none, B) + kron(none, D)), otimes::singular_error);
    check_solve<Scalar>(kron(A, B) - kron(A, B) + kron(C, D));
}

TEST_CASE_TEMPLATE("terms are added at the ends of the range", Scalar, OTIMES_ONE_OF(std::complex<double>, float)) {
    using real = real_of<Scalar>;
    const real s = std::ldexp(real(1), std::numeric_limits<real>::max_exponent * 7 / 8);
    const auto A = well_conditioned<Scalar>(3, 1), B = well_conditioned<Scalar>(4, 2),
               C = well_conditioned<Scalar>(3, 3);
    const auto b = random<matrix<Scalar>>(12, 2, 3);
    const auto I = otimes::identity(4);
    const matrix<Scalar> want = (otimes::kron_sum(A, B) + kron(C, I)).solve(b);
    const matrix<Scalar> large = C * s, small = C / s, none = matrix<Scalar>::Zero(3, 3);
    const double tolerance = 1e3 * static_cast<double>(std::numeric_limits<real>::epsilon());
    CHECK(near(matrix<Scalar>((otimes::kron_sum(A, B) + (1 / s) * kron(large, I)).solve(b)), want, tolerance));
    CHECK(near(matrix<Scalar>((otimes::kron_sum(A, B) + s * kron(small, I)).solve(b)), want, tolerance));
    CHECK(near(matrix<Scalar>((s * kron(small, I) + otimes::kron_sum(A, B)).solve(b)), want, tolerance));
    CHECK(
        near(matrix<Scalar>((kron(none, I) + s * kron(small, I) + otimes::kron_sum(A, B)).solve(b)), want, tolerance));
    CHECK(near(matrix<Scalar>((0 * kron(large, I) + s * kron(small, I) + otimes::kron_sum(A, B)).solve(b)), want,
               tolerance));
    // What is beyond the digits does not count, in either order.
    CHECK(near(matrix<Scalar>((kron(A, I) + kron(small, I) + kron(otimes::identity(3), B)).solve(b)),
               matrix<Scalar>(otimes::kron_sum(A, B).solve(b)), tolerance));
}

TEST_CASE_TEMPLATE("sums with two matrices at a position, at the ends of the range", Scalar,
                   OTIMES_ONE_OF(double, std::complex<float>)) {
    using real = real_of<Scalar>;
    const double tolerance = 200 * static_cast<double>(std::numeric_limits<real>::epsilon());
    const auto A = well_conditioned<Scalar>(3, 1), M = well_conditioned<Scalar>(3, 2);
    const auto B = well_conditioned<Scalar>(4, 3), N = well_conditioned<Scalar>(4, 4);
    const auto P = positive<Scalar>(3, 5), R = positive<Scalar>(3, 6);
    const auto Q = positive<Scalar>(4, 7), T = positive<Scalar>(4, 8);
    const vector<Scalar> d = vector<Scalar>::LinSpaced(3, Scalar(1), Scalar(2)),
                         e = vector<Scalar>::LinSpaced(3, Scalar(-3), Scalar(2));
    const auto b = random<matrix<Scalar>>(12, 2, 9);
    const auto check = [&](const otimes::sum_expr<Scalar>& scaled, const otimes::sum_expr<Scalar>& plain) {
        const otimes::kron_sum_solver<Scalar> solver(scaled);
        const matrix<Scalar> whole = plain.toDenseMatrix();
        CHECK(backward_error<Scalar>(whole, solver.solve(b), b) < tolerance);
        CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(whole.determinant()))));
    };
    for (const int part : {2, 5, 7}) {
        for (const int sign : {-1, 1}) {
            CAPTURE(part * sign);
            const real s = std::ldexp(real(1), sign * part * std::numeric_limits<real>::max_exponent / 8);
            const auto down = [s](const matrix<Scalar>& m) { return matrix<Scalar>(m / s); };
            const auto up = [s](const matrix<Scalar>& m) { return matrix<Scalar>(m * s); };
            check(kron(up(A), down(B)) + kron(down(M), up(N)), kron(A, B) + kron(M, N));
            check(kron(up(P), down(Q)) + kron(down(R), up(T)), kron(P, Q) + kron(R, T));
            check(kron(vector<Scalar>(d * s).asDiagonal(), down(B)) + kron(vector<Scalar>(e / s).asDiagonal(), up(N)),
                  kron(d.asDiagonal(), B) + kron(e.asDiagonal(), N));
            check((1 / s) * kron(up(A), B) + s * kron(down(M), N), kron(A, B) + kron(M, N));
        }
    }
}

TEST_CASE_TEMPLATE("sums whose terms are out of the range as a whole, their solutions not", Scalar,
                   OTIMES_ONE_OF(double, std::complex<float>)) {
    using real = real_of<Scalar>;
    const double tolerance = 200 * static_cast<double>(std::numeric_limits<real>::epsilon());
    const auto A = well_conditioned<Scalar>(3, 1), M = well_conditioned<Scalar>(3, 2);
    const auto B = well_conditioned<Scalar>(4, 3), N = well_conditioned<Scalar>(4, 4);
    const auto P = positive<Scalar>(3, 5), R = positive<Scalar>(3, 6);
    const auto Q = positive<Scalar>(4, 7), T = positive<Scalar>(4, 8);
    matrix<Scalar> defective = matrix<Scalar>::Identity(3, 3);
    defective(0, 1) = defective(1, 2) = Scalar(1);
    const vector<Scalar> d = vector<Scalar>::LinSpaced(3, Scalar(1), Scalar(2)),
                         e = vector<Scalar>::LinSpaced(3, Scalar(-3), Scalar(2));
    const auto I = otimes::identity(4);
    const auto b = random<matrix<Scalar>>(12, 3, 9);
    for (const int sign : {-1, 1}) {
        CAPTURE(sign);
        // S is s^2 times `plain`, X for s B is 1 / s of what it is for B. The second column of B is much smaller, the third is 0.
        const real s = std::ldexp(real(1), sign * (std::numeric_limits<real>::max_exponent * 5 / 8));
        const auto check = [&](const otimes::sum_expr<Scalar>& scaled, const otimes::sum_expr<Scalar>& plain) {
            const otimes::kron_sum_solver<Scalar> solver(scaled);
            const matrix<Scalar> whole = plain.toDenseMatrix();
            CHECK(solver.exponent() != 0);
            CHECK(otimes::kron_sum_solver<Scalar>(plain).exponent() == 0);
            const real small = std::ldexp(real(1), -std::numeric_limits<real>::max_exponent / 4);
            matrix<Scalar> right = b;
            right.col(1) *= small;
            right.col(2).setZero();
            matrix<Scalar> x = solver.solve(matrix<Scalar>(right * s)) * s;
            CHECK(x.col(2) == vector<Scalar>::Zero(12));
            right.col(1) /= small;
            x.col(1) /= small;
            CHECK(backward_error<Scalar>(whole, x.leftCols(2).eval(), right.leftCols(2).eval()) < tolerance);
            CHECK(matrix<Scalar>(scaled.solve(matrix<Scalar>(right * s)) * s)
                      .isApprox(whole.fullPivLu().solve(right), static_cast<real>(100 * tolerance)));
            CHECK(solver.logAbsDeterminant() ==
                  doctest::Approx(std::log(std::abs(whole.determinant())) + 24 * std::log(static_cast<double>(s)))
                      .epsilon(1e-5));
        };
        const auto far = [s](const matrix<Scalar>& m) { return matrix<Scalar>(m * s); };
        check(kron(far(A), far(B)) + kron(far(M), far(N)), kron(A, B) + kron(M, N));
        check(kron(far(P), far(Q)) + kron(far(R), far(T)), kron(P, Q) + kron(R, T));
        check(s * otimes::kron_sum(far(P), far(Q)), otimes::kron_sum(P, Q));
        check(s * otimes::kron_sum(far(defective), far(B)), otimes::kron_sum(defective, B));
        check(kron(vector<Scalar>(d * s).asDiagonal(), far(B)) + kron(vector<Scalar>(e * s).asDiagonal(), far(N)),
              kron(d.asDiagonal(), B) + kron(e.asDiagonal(), N));
        check(kron(far(A), far(B)) + s * kron(far(M), I), kron(A, B) + kron(M, I));
    }
}

TEST_CASE_TEMPLATE("sums of which both matrices at a position are singular, the sum not", Scalar,
                   OTIMES_ONE_OF(double, std::complex<float>)) {
    using real = real_of<Scalar>;
    const double tolerance = 500 * static_cast<double>(std::numeric_limits<real>::epsilon());
    matrix<Scalar> A = well_conditioned<Scalar>(3, 1), M = well_conditioned<Scalar>(3, 2);
    matrix<Scalar> B = well_conditioned<Scalar>(4, 3), N = well_conditioned<Scalar>(4, 4);
    A.row(1).setZero();
    M.col(2) = M.col(0);
    const auto L = well_conditioned<Scalar>(2, 5), C = well_conditioned<Scalar>(2, 6);
    const auto check = [&](const otimes::sum_expr<Scalar>& S) {
        const matrix<Scalar> whole = S.toDenseMatrix();
        const auto b = random<matrix<Scalar>>(whole.rows(), 3, 9);
        const otimes::kron_sum_solver<Scalar> solver(S);
        CHECK(backward_error<Scalar>(whole, solver.solve(b), b) < tolerance);
        const matrix<Scalar> lu = whole.partialPivLu().matrixLU();  // the determinant itself may overflow
        CHECK(solver.logAbsDeterminant() ==
              doctest::Approx(lu.diagonal().cwiseAbs().array().log().sum()).epsilon(1e-4));
    };
    check(kron(A, B) + kron(M, N));
    check(kron(M, N) - Scalar(real(0.5)) * kron(A, B));
    check(kron(A, B, L) + kron(M, B, L) + kron(M, N, C));
    // At both positions, and of large and small elements.
    B.col(0).setZero();
    N.row(3) = N.row(1);
    check(kron(A, B) + kron(A, N) + kron(M, B) - kron(M, N));
    const real s = std::ldexp(real(1), std::numeric_limits<real>::max_exponent / 3);
    const matrix<Scalar> large = A * s, small = M / s;
    check((1 / s) * (kron(large, B) + kron(large, N)) + s * (kron(small, B) - kron(small, N)));
    // Positive semidefinite ones, diagonals.
    matrix<Scalar> P = matrix<Scalar>::Zero(3, 3), R = P;
    P.topLeftCorner(2, 2) = positive<Scalar>(2, 7);
    R.bottomRightCorner(2, 2) = positive<Scalar>(2, 8);
    check(kron(P, positive<Scalar>(4, 9)) + kron(R, positive<Scalar>(4, 10)));
    const vector<Scalar> d = (vector<Scalar>(3) << Scalar(0), Scalar(2), Scalar(-1)).finished();
    const vector<Scalar> e = (vector<Scalar>(3) << Scalar(3), Scalar(real(0.5)), Scalar(0)).finished();
    check(kron(d.asDiagonal(), positive<Scalar>(4, 9)) + kron(e.asDiagonal(), well_conditioned<Scalar>(4, 3)));
    // Singular all the same: a common null vector, and a sum that is 0 on one of its own.
    matrix<Scalar> other = well_conditioned<Scalar>(3, 11);
    other.col(2) = other.col(0);
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(other, B) + kron(M, N)), otimes::unsupported_error);
    const vector<Scalar> f = (vector<Scalar>(2) << Scalar(1), Scalar(0)).finished();
    const vector<Scalar> g = (vector<Scalar>(2) << Scalar(0), Scalar(1)).finished();
    matrix<Scalar> half = matrix<Scalar>::Identity(2, 2);
    half(1, 1) = Scalar(0);
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(f.asDiagonal(), half) + kron(g.asDiagonal(), L)),
                    otimes::singular_error);
}

TEST_CASE("diagonals that reach farther than one power of two can bring near 1") {
    const vector_d d = (vector_d(3) << 1e-200, -1, 1e200).finished(), e = (vector_d(3) << 1e-200, 2, 1e200).finished();
    const vector_d f = (vector_d(2) << 1, -3).finished(), g = (vector_d(2) << 2, 1).finished();
    const auto S = kron(d.asDiagonal(), f.asDiagonal()) + kron(e.asDiagonal(), g.asDiagonal());
    const vector_d x = S.solve(vector_d::Ones(6).eval());
    CHECK((x.array() * S.diagonal().array() - 1).abs().maxCoeff() < 1e-14);
}

TEST_CASE_TEMPLATE("sums with ill-conditioned mass matrices are solved as well as others", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float)) {
    using real = real_of<Scalar>;
    const double epsilon = static_cast<double>(std::numeric_limits<real>::epsilon());
    const auto check = [epsilon](const otimes::sum_expr<Scalar>& S, bool determinant = true) {
        const otimes::kron_sum_solver<Scalar> solver(S);
        const matrix<Scalar> s = S.toDenseMatrix();
        const auto b = random<matrix<Scalar>>(s.rows(), 3, 4);
        CHECK(backward_error<Scalar>(s, solver.solve(b), b) < 64 * epsilon);
        const auto c = random<matrix<std::complex<real>>>(s.rows(), 2, 5);
        const matrix<std::complex<real>> wide = s.template cast<std::complex<real>>();
        CHECK(backward_error<std::complex<real>>(wide, solver.solve(c), c) < 64 * epsilon);
        CHECK(solver.solve(matrix<Scalar>(s.rows(), 0)).cols() == 0);
        if (determinant) {
            CHECK(solver.logAbsDeterminant() ==
                  doctest::Approx(std::log(std::abs(s.determinant()))).epsilon(1e3 * epsilon));
        }
    };
    const Index n = std::is_same_v<real, float> ? 4 : 8;
    const matrix<Scalar> H = hilbert(n).template cast<Scalar>();
    const auto A = positive<Scalar>(n, 1), B = positive<Scalar>(3, 2), M = positive<Scalar>(3, 3);
    const matrix<Scalar> indefinite = A - Scalar(3) * matrix<Scalar>::Identity(n, n);
    // Both definite: the better conditioned one is the mass matrix, in either place.
    check(kron(A, M) + kron(H, B));
    check(kron(H, M) + kron(A, B));
    // The only definite one is ill-conditioned.
    check(kron(indefinite, M) + kron(H, B), false);
    CHECK(otimes::kron_sum_solver<Scalar>(kron(indefinite, M) + kron(H, B)).method() ==
          "generalised eigenvectors of self-adjoint factors");
    // So much that it is definite by a rounding.
    const Index most = std::is_same_v<real, float> ? 6 : 12;
    const matrix<Scalar> least = hilbert(most).template cast<Scalar>();
    const matrix<Scalar> other = positive<Scalar>(most, 4) - Scalar(3) * matrix<Scalar>::Identity(most, most);
    check(kron(other, M) + kron(least, B), false);
    check(kron(least, B) + kron(other, M), false);
    // Graded diagonals, which are known to their last digits.
    vector<Scalar> d(4);
    for (Index i = 0; i < 4; ++i) {
        d(i) = Scalar(std::pow(real(10), static_cast<real>(-3 * i)));
    }
    const vector<Scalar> e = vector<Scalar>::LinSpaced(4, Scalar(1), Scalar(2));
    check(kron(e.asDiagonal(), M) + kron(d.asDiagonal(), B));
    check(kron(d.asDiagonal(), M) + kron(e.asDiagonal(), B));
    check(kron(positive<Scalar>(4, 5), M) + kron(d.asDiagonal(), B));
}

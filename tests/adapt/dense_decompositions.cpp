// SPDX-License-Identifier: MIT
// Eigen's decompositions behind plain pointers, each against its definition; sums whose real factors have conjugate pairs of eigenvalues.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/solving.hpp"

using namespace adapt;
using otimes::kron;
using otimes::eigen::dense_decompositions;

namespace {

/// Real eigenvalues and, from order 2 on, conjugate pairs.
matrix_d with_pairs(Index n, std::uint64_t seed) {
    matrix_d blocks = matrix_d::Zero(n, n);
    for (Index i = 0; i < n; ++i) {
        blocks(i, i) = 2 + 0.3 * static_cast<double>(i / 2);
        if (i % 2 == 1) {
            blocks(i, i - 1) = 1.5;
            blocks(i - 1, i) = -0.5;
        }
    }
    const matrix_d v = well_conditioned<double>(n, seed);
    return v * blocks * v.inverse();
}
/// [R I; 0 R] with a rotation R: one conjugate pair, twice, and too few eigenvectors.
matrix_d defective_pair() {
    matrix_d m = matrix_d::Identity(4, 4) * 2;
    m(0, 1) = m(2, 3) = -1;
    m(1, 0) = m(3, 2) = 1;
    m(0, 2) = m(1, 3) = 1;
    return m;
}

template <class Scalar>
matrix<Scalar> unwritten(Index rows, Index cols) {
    return matrix<Scalar>::Constant(rows, cols, Scalar(std::numeric_limits<double>::quiet_NaN()));
}

template <class Scalar>
void check_schur(const matrix<Scalar>& a) {
    using complex = typename dense_decompositions<Scalar>::complex;
    const Index n = a.rows();
    CAPTURE(n);
    matrix<complex> t = unwritten<complex>(n, n);
    matrix<complex> u = unwritten<complex>(n, n);
    REQUIRE(dense_decompositions<Scalar>::schur(n, a.data(), t.data(), u.data()));
    for (Index j = 0; j < n; ++j) {
        for (Index i = j + 1; i < n; ++i) {
            CHECK(t(i, j) == complex(0));
        }
    }
    CHECK(near(matrix<complex>(u.adjoint() * u), matrix<complex>(matrix<complex>::Identity(n, n)), 1e-12));
    CHECK(near(matrix<complex>(u * t * u.adjoint()), matrix<complex>(a.template cast<complex>()), 1e-12));
}

}  // namespace

TEST_CASE("complex Schur forms of real matrices with conjugate pairs, and of complex ones") {
    for (Index n = 1; n <= 9; ++n) {
        check_schur<double>(with_pairs(n, 3));
        check_schur<double>(random<matrix_d>(n, n, static_cast<std::uint64_t>(n)));
        check_schur<std::complex<double>>(random<matrix<std::complex<double>>>(n, n, 5));
    }
    check_schur<double>(defective_pair());
    matrix_d turn(2, 2);
    turn << 0, -2, 0.5, 0;
    check_schur<double>(turn);
    check_schur<double>(matrix_d::Zero(3, 3));
}

TEST_CASE("real eigenvectors of conjugate pairs") {
    for (Index n = 1; n <= 8; ++n) {
        CAPTURE(n);
        const matrix_d a = with_pairs(n, 4);
        matrix_d v = unwritten<double>(n, n);
        std::vector<std::complex<double>> values(static_cast<std::size_t>(n));
        REQUIRE(dense_decompositions<double>::general_eigen(n, a.data(), values.data(), v.data()));
        Index pairs = 0;
        for (Index j = 0; j < n; ++j) {
            const std::complex<double> value = values[static_cast<std::size_t>(j)];
            if (value.imag() == 0) {
                CHECK(v.col(j).norm() == doctest::Approx(1));
                CHECK((a * v.col(j) - value.real() * v.col(j)).norm() < 1e-12);
                continue;
            }
            CHECK(values[static_cast<std::size_t>(j + 1)] == std::conj(value));
            const vector<std::complex<double>> x =
                (v.col(j).cast<std::complex<double>>() + std::complex<double>(0, 1) * v.col(j + 1)) / std::sqrt(2.0);
            CHECK(x.norm() == doctest::Approx(1));
            CHECK((a.cast<std::complex<double>>() * x - value * x).norm() < 1e-12);
            ++pairs;
            ++j;
        }
        CHECK(pairs == n / 2);
    }
}

TEST_CASE("LU, Cholesky, QR, singular values, pseudo-inverse, rank: what may be null, and rectangular ones") {
    using decompositions = dense_decompositions<double>;
    const matrix_d a = well_conditioned<double>(5, 1), b = random<matrix_d>(5, 3, 2), tall = random<matrix_d>(7, 4, 3);
    const matrix_d spd = positive<double>(5, 4);
    const matrix_d one = matrix_d::Identity(5, 5);

    matrix_d inverse = unwritten<double>(5, 5);
    matrix_d x = b;
    vector<double> pivots(5);
    const auto lu = decompositions::lu(5, a.data(), pivots.data(), inverse.data(), x.data(), 3);
    CHECK(near(matrix_d(a * inverse), one, 1e-13));
    CHECK(near(matrix_d(a * x), b, 1e-13));
    CHECK(lu.sign * pivots.prod() == doctest::Approx(a.determinant()));
    CHECK(lu.rcond > 0.01);
    CHECK(decompositions::lu(5, a.data(), nullptr, nullptr).rcond == lu.rcond);
    matrix_d singular = a;
    singular.col(2).setZero();
    CHECK(decompositions::lu(5, singular.data(), nullptr, nullptr).rcond == 0);

    matrix_d only_lower = spd;
    only_lower.triangularView<Eigen::StrictlyUpper>().setConstant(std::numeric_limits<double>::quiet_NaN());
    matrix_d l = unwritten<double>(5, 5), l_inverse = unwritten<double>(5, 5);
    inverse = unwritten<double>(5, 5);
    const auto llt = decompositions::cholesky(5, only_lower.data(), l.data(), l_inverse.data(), inverse.data());
    REQUIRE(llt.definite);
    CHECK(near(matrix_d(l * l.transpose()), spd, 1e-13));
    CHECK(near(matrix_d(l * l_inverse), one, 1e-13));
    CHECK(near(matrix_d(spd * inverse), one, 1e-12));
    CHECK(decompositions::cholesky(5, spd.data(), nullptr, nullptr, nullptr).rcond == doctest::Approx(llt.rcond));
    const matrix_d indefinite = -spd;
    CHECK(!decompositions::cholesky(5, indefinite.data(), nullptr, nullptr, nullptr).definite);

    for (const matrix_d& m : {tall, matrix_d(tall.transpose())}) {
        const Index rows = m.rows(), cols = m.cols();
        matrix_d q = unwritten<double>(rows, 4), r = unwritten<double>(4, cols);
        decompositions::qr(rows, cols, m.data(), q.data(), r.data());
        CHECK(near(matrix_d(q * r), m, 1e-13));
        CHECK(near(matrix_d(q.transpose() * q), matrix_d(matrix_d::Identity(4, 4)), 1e-13));
        CHECK(r(3, 0) == 0);

        matrix_d u = unwritten<double>(rows, 4), v = unwritten<double>(cols, 4);
        vector<double> s(4), alone(4);
        decompositions::svd(rows, cols, m.data(), s.data(), u.data(), v.data());
        decompositions::svd(rows, cols, m.data(), alone.data(), nullptr, nullptr);
        CHECK(near(matrix_d(u * s.asDiagonal() * v.transpose()), m, 1e-13));
        CHECK((s - alone).norm() < 1e-13);

        matrix_d pseudo = unwritten<double>(cols, rows);
        decompositions::pseudo_inverse(rows, cols, m.data(), pseudo.data());
        CHECK(near(matrix_d(m * pseudo * m), m, 1e-12));
        CHECK(near(matrix_d((m * pseudo).transpose()), matrix_d(m * pseudo), 1e-12));
        const matrix_d right = random(rows, 3, 9);
        matrix_d solved = unwritten<double>(cols, 3);
        decompositions::pseudo_inverse(rows, cols, m.data(), nullptr, right.data(), 3, solved.data());
        CHECK(near(solved, matrix_d(pseudo * right), 1e-12));
        CHECK(decompositions::rank(rows, cols, m.data()) == 4);
    }

    matrix_d vectors = unwritten<double>(5, 5);
    vector<double> values(5);
    const matrix_d symmetric = a + a.transpose();
    REQUIRE(decompositions::self_adjoint_eigen(5, symmetric.data(), spd.data(), values.data(), vectors.data()));
    CHECK(near(matrix_d(symmetric * vectors), matrix_d(spd * vectors * values.asDiagonal()), 1e-11));
    CHECK(near(matrix_d(vectors.transpose() * spd * vectors), one, 1e-12));
}

TEST_CASE("sums whose real factors have conjugate pairs of eigenvalues") {
    const matrix_d A = with_pairs(3, 1), B = with_pairs(4, 2), C = with_pairs(5, 3);
    const matrix_d symmetric = positive<double>(4, 5), M = well_conditioned<double>(3, 6);
    const auto check = [](const auto& s, const char* method) {
        const matrix_d dense = s.toDenseMatrix();
        const otimes::kron_sum_solver<double> solver(s);
        CHECK(solver.method() == method);
        const matrix_d b = random<matrix_d>(dense.rows(), 3, 8);
        CHECK(backward_error<double>(dense, solver.solve(b), b) < 1e-14);
        const vector<double> alone = b.col(1);
        CHECK(near(matrix_d(solver.solve(alone)), matrix_d(dense.partialPivLu().solve(alone)), 1e-10));
        const auto z = random<matrix<std::complex<double>>>(dense.rows(), 2, 9);
        CHECK(backward_error<std::complex<double>>(dense.cast<std::complex<double>>(), solver.solve(z), z) < 1e-14);
        CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(dense.determinant()))));
    };
    const char* const vectors = "eigenvectors of general factors";
    check(otimes::kron_sum(A, B), vectors);
    check(otimes::kron_sum(A, B, C), vectors);
    check(otimes::kron_sum(A, symmetric, C), vectors);
    check(kron(A, B) + 0.5 * otimes::identity(), vectors);
    check(kron(A, B, C) - 2 * kron(A, otimes::identity(4), otimes::identity(5)), vectors);
    check(kron(A, B) + 3 * kron(M, B), vectors);
    check(kron(A, B) + kron(M, otimes::identity(4)), vectors);
    const char* const forms = "complex Schur forms of the factors";
    check(otimes::kron_sum(defective_pair(), B), forms);
    check(otimes::kron_sum(A, defective_pair(), C), forms);
}

TEST_CASE("Sylvester and Lyapunov equations whose real matrices have conjugate pairs") {
    const matrix_d A = with_pairs(4, 1), B = with_pairs(5, 2), D = defective_pair();
    const matrix_d C = random<matrix_d>(4, 5, 3), Q = positive<double>(4, 4);
    const matrix_d x = otimes::sylvester(A, B, C), y = otimes::sylvester(D, B, C), z = otimes::lyapunov(D, Q);
    CHECK(near(matrix_d(A * x + x * B), C, 1e-12));
    CHECK(near(matrix_d(D * y + y * B), C, 1e-12));
    CHECK(near(matrix_d(D * z + z * D.transpose()), Q, 1e-12));
}

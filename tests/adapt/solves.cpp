// SPDX-License-Identifier: MIT
// Solving where it is hard: factors that are singular but for rounding, badly scaled or ill-conditioned, sums whose terms share matrices.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/solving.hpp"

using namespace adapt;
using otimes::kron;

TEST_CASE_TEMPLATE("factors whose rank is one too few are refused, whatever rounding left of the last pivot", Scalar,
                   OTIMES_REAL_AND_COMPLEX(float)) {
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

TEST_CASE_TEMPLATE("Cholesky decompositions at the ends of the range", Scalar, double, std::complex<double>,
                   std::complex<float>) {
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
        CHECK(near(matrix<Scalar>(llt.solve(b) * s), want, tolerance));
        const matrix<Scalar> l = llt.matrixL().toDenseMatrix() * std::ldexp(real(1), -(exponent / 2));
        const matrix<Scalar> back = l * l.adjoint() * std::ldexp(real(1), exponent / 2 * 2 - exponent);
        CHECK(near(back, matrix<Scalar>(kron(A, B).toDenseMatrix()), tolerance));
        CHECK(llt.logAbsDeterminant() == doctest::Approx(K.logAbsDeterminant()).epsilon(tolerance));
    }
}

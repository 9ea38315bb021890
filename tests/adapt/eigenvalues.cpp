// SPDX-License-Identifier: MIT
// Eigenvalues and eigenvectors of krons of any square factors, and least squares whatever the rank, by Eigen's names.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>

#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/scalar_types.hpp"
#include "adapt/solving.hpp"

using namespace adapt;
using otimes::kron;

namespace eigenvalues {

namespace {

/// K V = V diag(l), columns of V of norm 1; the trace is the sum of the eigenvalues.
template <class Scalar>
void check_pairs(const otimes::kron_expr<Scalar>& K) {
    using real = typename Eigen::NumTraits<Scalar>::Real;
    using complex = std::complex<real>;
    const vector<complex> l = K.eigenvalues();
    const matrix<complex> v = K.eigenvectors().toDenseMatrix();
    const matrix<complex> k = K.toDenseMatrix().template cast<complex>();
    REQUIRE(l.size() == K.rows());
    CHECK(near(matrix<complex>(k * v), matrix<complex>(v * l.asDiagonal())));
    CHECK((v.colwise().norm().array() - 1).abs().maxCoeff() < 100 * std::numeric_limits<real>::epsilon());
    CHECK(std::abs(l.sum() - complex(K.trace())) < 1000 * std::numeric_limits<real>::epsilon() * l.cwiseAbs().sum());
}

}  // namespace

TEST_CASE_TEMPLATE("eigenvalues and eigenvectors of any square factors", Scalar,
                   OTIMES_ONE_OF(double, std::complex<double>)) {
    auto A = random<matrix<Scalar>>(3, 3, 1);
    A(0, 1) = 2, A(1, 0) = -3;  // with a conjugate pair where it is real
    const auto B = random<matrix<Scalar>>(4, 4, 2), C = positive<Scalar>(2, 3);
    const auto d = random<vector<Scalar>>(3, 1, 4), c = random<vector<Scalar>>(5, 1, 5);
    const Eigen::SparseMatrix<Scalar> S = random<matrix<Scalar>>(3, 3, 6).sparseView();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(4);
    P.indices() << 2, 0, 3, 1;
    check_pairs<Scalar>(kron(A, B, C));
    check_pairs<Scalar>(Scalar(-2) * kron(C, d.asDiagonal(), otimes::identity(2), A));
    check_pairs<Scalar>(kron(S, P));
    check_pairs<Scalar>(kron(A.template triangularView<Eigen::Upper>(), otimes::circulant(c)));
    const otimes::kron_eigen<Scalar> orthonormal(kron(C, positive<Scalar>(3, 7)));
    const auto v = orthonormal.eigenvectors().toDenseMatrix();
    CHECK(near((v.adjoint() * v).eval(), v.Identity(6, 6).eval()));
    CHECK(orthonormal.eigenvalues().imag().isZero(0));
    CHECK(orthonormal.info() == Eigen::Success);
    CHECK(orthonormal.cols() == 6);
}

TEST_CASE("eigenvalues at the ends of the range, of empty factors, of what has none") {
    const matrix_d A = random(3, 3, 1), B = random(2, 2, 2), R = random(2, 3, 3);
    const auto far = kron(1e200 * A, 1e-200 * B).eigenvalues();
    const auto close = kron(A, B).eigenvalues();
    CHECK((far - close).norm() < 1e-12 * close.norm());
    CHECK(kron(matrix_d(0, 0), A).eigenvalues().size() == 0);
    CHECK(kron(matrix_d(0, 0), A).eigenvectors().rows() == 0);
    check_pairs<std::complex<double>>(std::complex<double>(0, 2) * kron(A, B));
    CHECK_THROWS_AS(static_cast<void>(kron(R, R.transpose()).eigenvalues()), otimes::shape_error);
    matrix_d bad = A;
    bad(2, 0) = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_AS(static_cast<void>(kron(B, bad).eigenvectors()), otimes::singular_error);
    CHECK_THROWS_AS(static_cast<void>((1.0 / 0.0 * kron(A, B)).eigenvalues()), otimes::singular_error);
}

TEST_CASE("least squares of least norm, whatever the rank") {
    const matrix_d F = random(3, 1, 1) * random(1, 3, 2), R = random(4, 3, 3);  // F: of rank 1
    const matrix_d b = random(12, 2, 4);
    const matrix_d want = kron(F, R).toDenseMatrix().completeOrthogonalDecomposition().solve(b);
    CHECK(near(matrix_d(kron(F, R).leastSquaresSolve(b)), want));
    const vector_d x = kron(F, R).leastSquaresSolve(b.col(1));
    CHECK(near(x, vector_d(want.col(1))));
    CHECK_THROWS_AS(static_cast<void>(kron(F, R).leastSquaresSolve(random(9, 1, 5))), otimes::shape_error);
}

}  // namespace eigenvalues

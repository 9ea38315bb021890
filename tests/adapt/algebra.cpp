// SPDX-License-Identifier: MIT
// Solving, decompositions, determinants, preconditioners against Eigen's dense ones.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <Eigen/Dense>
#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>
#include <unsupported/Eigen/IterativeSolvers>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "adapt/solving.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::kron;

TEST_CASE_TEMPLATE("solve, inverse and pseudo-inverse", Scalar, OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const auto A = well_conditioned<Scalar>(3, 1);
    const auto B = well_conditioned<Scalar>(4, 2);
    const auto d = random<vector<Scalar>>(2, 1, 3);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    const auto K = Scalar(2) * kron(A, d.asDiagonal(), B, otimes::identity(2), P);
    const matrix<Scalar> k = K.toDenseMatrix();
    const auto b = random<matrix<Scalar>>(K.rows(), 3, 4);
    CHECK(near(evaluated(k * K.solve(b)), b));
    CHECK(near(evaluated(K.inverse() * evaluated(k * b)), b));
    const vector<Scalar> v = b.col(1);
    const vector<Scalar> x = K.solve(v);
    CHECK(near(vector<Scalar>(k * x), v));
    const auto F = random<matrix<Scalar>>(5, 3, 5);
    const auto G = random<matrix<Scalar>>(2, 4, 6);
    const auto R = kron(F, G);
    const matrix<Scalar> r = R.toDenseMatrix();
    const auto c = random<matrix<Scalar>>(10, 2, 7);
    CHECK(near(R.pseudoInverse().toDenseMatrix(), matrix<Scalar>(r.completeOrthogonalDecomposition().pseudoInverse())));
    CHECK(near(R.solve(c), matrix<Scalar>(r.completeOrthogonalDecomposition().solve(c))));
}

TEST_CASE("an ill-conditioned solve is refined") {
    const matrix_d H = hilbert(8);
    const matrix_d A = well_conditioned<double>(5, 1);
    const auto K = kron(A, H);
    const matrix_d b = random(40, 1, 2);
    const matrix_d x = K.solve(b);
    const matrix_d k = K.toDenseMatrix();
    CHECK(distance(k * x, b) <= 1e-13 * k.norm() * x.norm());
}

TEST_CASE(
    "a solve is refined where the inverses' roundings would come back large, in float from a condition number of some "
    "30 on") {
    const auto definite = [](Index n, std::uint64_t seed) {
        const auto m = random<matrix<float>>(n, n, seed);
        return matrix<float>(m * m.transpose() / static_cast<float>(n) + matrix<float>::Identity(n, n));
    };
    // |K x - b| in roundings of |K| |x|, in the spectral norm, for right-hand sides of random and of the largest solutions.
    const auto residual = [](const matrix<float>& k, const otimes::kron_lu<float>& lu) {
        const Eigen::JacobiSVD<matrix_d> svd(k.cast<double>(), Eigen::ComputeThinV);
        const matrix<float> wanted = svd.matrixV().leftCols(3).cast<float>();
        double most = 0;
        for (const matrix<float>& b : {matrix<float>(k * wanted), random<matrix<float>>(k.rows(), 3, 9)}) {
            const matrix<float> x = lu.solve(b);
            for (Index j = 0; j < b.cols(); ++j) {
                const auto left = (k.cast<double>() * x.col(j).cast<double>() - b.col(j).cast<double>()).norm();
                most = (std::max)(most, left / static_cast<double>(x.col(j).norm()));
            }
        }
        return most / (svd.singularValues()(0) * static_cast<double>(std::numeric_limits<float>::epsilon()));
    };
    const auto A = definite(6, 1);
    const auto B = definite(7, 2);
    matrix<float> scaled =
        definite(5, 3);  // columns of very different size: a large condition number that costs nothing
    scaled.col(2) *= 1000.0F;
    const auto easy = kron(A, B, scaled);
    const otimes::kron_lu<float> plain(easy);
    CHECK(plain.rcond() < 0.01F);
    CHECK_FALSE(plain.refines());
    const auto b = random<matrix<float>>(easy.rows(), 4, 4);
    CHECK(plain.solve(b) == matrix<float>(plain.inverse() * b));
    CHECK(residual(easy.toDenseMatrix(), plain) <= 6);

    matrix<float> hilbert(4, 4);
    for (Index i = 0; i < 4; ++i) {
        for (Index j = 0; j < 4; ++j) {
            hilbert(i, j) = 1.0F / static_cast<float>(i + j + 1);
        }
    }
    const auto hard = kron(A, hilbert);
    const otimes::kron_lu<float> refined(hard);
    CHECK(refined.refines());
    CHECK(residual(hard.toDenseMatrix(), refined) <= 6);
}

TEST_CASE_TEMPLATE("determinant, trace, norm, rank, condition", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(3, 3, 1);
    const auto B = random<matrix<Scalar>>(2, 2, 2);
    const auto K = Scalar(-2) * kron(A, B, otimes::identity(2));
    const matrix<Scalar> k = K.toDenseMatrix();
    CHECK(std::abs(K.determinant() - k.determinant()) <= 1e-12 * std::abs(k.determinant()));
    CHECK(K.logAbsDeterminant() == doctest::Approx(std::log(std::abs(k.determinant()))));
    CHECK(std::abs(K.trace() - k.trace()) < 1e-12);
    CHECK(K.norm() == doctest::Approx(k.norm()));
    CHECK(K.template lpNorm<1>() == doctest::Approx(k.template lpNorm<1>()));
    CHECK(K.template lpNorm<Eigen::Infinity>() == doctest::Approx(k.template lpNorm<Eigen::Infinity>()));
    CHECK(K.operatorNorm() == doctest::Approx(k.jacobiSvd().singularValues()(0)));
    CHECK(K.rank() == 12);
    CHECK(K.conditionNumber() ==
          doctest::Approx(k.jacobiSvd().singularValues()(0) / k.jacobiSvd().singularValues()(11)));
    CHECK(near(K.singularValues(), vector<real_of<Scalar>>(k.jacobiSvd().singularValues())));
    CHECK(near(vector<Scalar>(K.diagonal()), vector<Scalar>(k.diagonal())));
    CHECK(near(row_vector<Scalar>(K.row(5)), row_vector<Scalar>(k.row(5))));
    CHECK(near(vector<Scalar>(K.col(7)), vector<Scalar>(k.col(7))));
    // Square, but of factors that are not.
    const auto F = random<matrix<Scalar>>(2, 3, 3);
    const auto G = random<matrix<Scalar>>(3, 2, 4);
    const auto S = kron(F, G);
    const matrix<Scalar> s = S.toDenseMatrix();
    CHECK(std::abs(S.trace() - s.trace()) < 1e-12);
    CHECK(S.determinant() == Scalar(0));
    CHECK(S.logAbsDeterminant() == -std::numeric_limits<double>::infinity());
    CHECK(S.rank() == 4);
    CHECK(S.singularValues().size() == 6);
    CHECK(near(S.singularValues(), vector<real_of<Scalar>>(s.jacobiSvd().singularValues())));
    CHECK(S.conditionNumber() == std::numeric_limits<double>::infinity());
    CHECK(S.norm() == doctest::Approx(s.norm()));
    CHECK(S.operatorNorm() == doctest::Approx(s.jacobiSvd().singularValues()(0)));
    CHECK(kron(F, A).conditionNumber() == doctest::Approx(kron(F, A).toDenseMatrix().jacobiSvd().singularValues()(0) /
                                                          kron(F, A).toDenseMatrix().jacobiSvd().singularValues()(5)));
}

TEST_CASE("logAbsDeterminant of a sum whose terms have no common eigenvectors says so, and does not speak of solving") {
    const auto A = positive<double>(3, 1);
    const auto B = positive<double>(4, 2);
    const vector<double> d = random<vector<double>>(12, 1, 3);
    const std::string text = support::text_of([&] { (void)(kron(A, B) + d.asDiagonal()).logAbsDeterminant(); });
    CHECK(text.find("logAbsDeterminant of a sum") != std::string::npos);
    CHECK(text.find("solve") == std::string::npos);
}

TEST_CASE("logAbsDeterminant and determinant at the ends of the range") {
    const matrix_d big = 1e30 * matrix_d::Identity(4, 4);
    const matrix_d small = 1e-30 * matrix_d::Identity(5, 5);
    CHECK(kron(big, big).logAbsDeterminant() == doctest::Approx(16 * 60 * std::log(10.0)));
    CHECK(kron(big, big).determinant() == std::numeric_limits<double>::infinity());
    CHECK(kron(small, small).determinant() == 0.0);
    CHECK(kron(big, small).determinant() == doctest::Approx(1.0));  // 1e600 * 1e-600
    CHECK(kron(1e-50 * matrix_d::Identity(3, 3), 1e50 * matrix_d::Identity(3, 3)).determinant() ==
          doctest::Approx(1.0));
}

TEST_CASE("determinants of many factors: no exponent overflows") {
    const double inf = std::numeric_limits<double>::infinity();
    matrix_d d(2, 2);
    d << 1e10, 0, 0, 1e10;
    for (const std::int64_t count : {58, 60, 61, 62}) {
        CAPTURE(count);
        const auto large = otimes::kron_power(d, count);
        CHECK(large.determinant() == inf);
        CHECK(otimes::kron_power(matrix_d(1e-20 * d), count).determinant() == 0.0);
        CHECK(otimes::kron_power(matrix_d(2 * matrix_d::Identity(2, 2)), count).determinant() == inf);
        CHECK((1e-300 * large).determinant() == inf);  // (10^(10 count - 300))^(2^count)
        CHECK((1e300 * otimes::kron_power(matrix_d(1e-20 * d), count)).determinant() == 0.0);
        const double order = std::pow(2.0, static_cast<double>(count));
        CHECK(large.logAbsDeterminant() == doctest::Approx(order * static_cast<double>(count) * 10 * std::log(10.0)));
    }
    const matrix_d tiny = std::numeric_limits<double>::denorm_min() * matrix_d::Identity(2, 2);
    CHECK(kron(tiny, 0x1p1000 * matrix_d::Identity(2, 2), 0x1p74 * matrix_d::Identity(2, 2)).determinant() == 1.0);
    CHECK(kron(tiny, matrix_d::Identity(1, 1)).logAbsDeterminant() == doctest::Approx(-2 * 1074 * std::log(2.0)));
    Eigen::PermutationMatrix<Eigen::Dynamic> P(4);
    P.indices() << 1, 2, 3, 0;
    const matrix_d A = random(3, 3, 1);
    const vector_d e = random<vector_d>(3, 1, 2);
    for (const auto& K : {otimes::kron_expr<double>(kron(P, A)), otimes::kron_expr<double>(kron(A, e.asDiagonal())),
                          otimes::kron_expr<double>(3 * kron(A, otimes::identity(5), P.transpose()))}) {
        CHECK(K.determinant() == doctest::Approx(K.toDenseMatrix().determinant()));
        CHECK(K.logAbsDeterminant() == doctest::Approx(std::log(std::abs(K.toDenseMatrix().determinant()))));
    }
    Eigen::PermutationMatrix<Eigen::Dynamic> swap(3);
    swap.indices() << 0, 2, 1;
    CHECK(kron(swap, matrix_d(matrix_d::Identity(3, 3))).determinant() == -1);
    CHECK(kron(swap, 2 * matrix_d::Identity(1, 1)).determinant() == -8);
}

TEST_CASE("decompositions of NaN and infinite elements say so, numbers are NaN") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const matrix_d B = well_conditioned<double>(2, 1);
    for (const double bad : {nan, inf}) {
        CAPTURE(bad);
        matrix_d N = well_conditioned<double>(3, 2), R = random(3, 2, 3);
        N(0, 1) = R(1, 1) = bad;
        const vector_d d = N.col(1);
        const auto text = [](const auto& f) { return support::text_of([&] { static_cast<void>(f()); }); };
        const auto says = [](const char* what, const char* shape) {
            return "otimes: " + std::string(what) + ": factor 2, " + shape +
                   ", has an element that is NaN or infinite; such a matrix has no decomposition.";
        };
        const auto K = kron(B, N);
        CHECK(text([&] { return K.pseudoInverse(); }) == says("pseudo-inverse", "3 x 3"));
        CHECK(text([&] { return K.rank(); }) == says("rank", "3 x 3"));
        CHECK(text([&] { return K.singularValues(); }) == says("singularValues", "3 x 3"));
        CHECK(text([&] { return kron(B, R).solve(vector_d::Ones(6).eval()); }) == says("pseudo-inverse", "3 x 2"));
        CHECK(text([&] { return otimes::kron_svd<double>(K); }) == says("singular values", "3 x 3"));
        CHECK(text([&] { return otimes::kron_qr<double>(K); }) == says("QR decomposition", "3 x 3"));
        const auto below = kron(B, matrix_d(N.transpose()));  // of which the lower triangle is read
        CHECK(text([&] { return otimes::kron_llt<double>(below); }) == says("Cholesky decomposition", "3 x 3"));
        CHECK(text([&] { return otimes::kron_self_adjoint_eigen<double>(below); }) ==
              says("eigenvalue decomposition", "3 x 3"));
        CHECK(text([&] { return kron(B, d.asDiagonal()).pseudoInverse(); }) == says("pseudo-inverse", "3 x 3"));
        CHECK(text([&] { return kron(B, d.asDiagonal()).rank(); }) == says("rank", "3 x 3"));
        CHECK(text([&] { return K.inverse(); }) == says("inverse", "3 x 3"));
        CHECK(text([&] { return kron(B, d.asDiagonal()).inverse(); }) == says("inverse", "3 x 3"));
        CHECK(text([&] { return kron(B, d.asDiagonal()).solve(vector_d::Ones(6).eval()); }) ==
              says("inverse", "3 x 3"));
        CHECK(text([&] { return otimes::kron_lu<double>(kron(B, d.asDiagonal())); }) == says("inverse", "3 x 3"));
        CHECK(std::isnan(K.operatorNorm()));
        CHECK(std::isnan(K.conditionNumber()));
        CHECK(std::isnan(K.determinant()));
        CHECK_THROWS_AS(static_cast<void>(K.solve(vector_d::Ones(6).eval())), otimes::singular_error);
    }
}

TEST_CASE("a scalar that is NaN or infinite is seen as such a factor is") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const auto K = kron(positive<double>(2, 1), positive<double>(3, 2));
    const auto R = kron(random(2, 2, 3), random(3, 2, 4));
    const auto e = kron(std::vector<matrix_d>{});
    const auto says = [](const std::string& what, const char* shape, const auto& f) {
        CHECK(support::text_of<otimes::singular_error>([&] { static_cast<void>(f()); }) ==
              "otimes: " + what + " of " + shape +
                  ": its scalar is NaN or infinite; such a matrix has no decomposition.");
    };
    const vector_d b = vector_d::Ones(6);
    for (const double bad : {nan, inf, -inf}) {
        CAPTURE(bad);
        const auto N = bad * K;
        const char* const shape = "kron(F1, F2), 6 x 6";
        says("LU decomposition", shape, [&] { return N.inverse(); });
        says("LU decomposition", shape, [&] { return N.solve(b); });
        says("pseudo-inverse", shape, [&] { return N.pseudoInverse(); });
        says("pseudo-inverse", "kron(F1, F2), 6 x 4", [&] { return (bad * R).solve(b); });
        says("rank", shape, [&] { return N.rank(); });
        says("singularValues", shape, [&] { return N.singularValues(); });
        says("Cholesky decomposition", shape, [&] { return otimes::kron_llt<double>(N); });
        says("QR decomposition", shape, [&] { return otimes::kron_qr<double>(N); });
        says("eigenvalue decomposition", shape, [&] { return otimes::kron_self_adjoint_eigen<double>(N); });
        says("singular values", shape, [&] { return otimes::kron_svd<double>(N); });
        CHECK(std::isnan(N.conditionNumber()));
        CHECK(std::isnan((bad * e).conditionNumber()));
        CHECK_THROWS_AS(static_cast<void>((bad * e).rank()), otimes::singular_error);
        CHECK_THROWS_AS(
            static_cast<void>((bad * otimes::kron_sum(positive<double>(2, 1), positive<double>(3, 2))).solve(b)),
            otimes::singular_error);
    }
    CHECK(std::isnan((std::complex<double>(0, nan) * K).conditionNumber()));
    CHECK((std::numeric_limits<double>::max() * K).conditionNumber() == doctest::Approx(K.conditionNumber()));
}

TEST_CASE("the scalar of a kron is looked at whatever its factors, none too") {
    const auto e = kron(std::vector<matrix_d>{});  // 1 x 1
    const auto none = kron(std::vector<matrix<std::complex<double>>>{});
    const auto K = kron(positive<double>(2, 1), otimes::identity(3));
    const matrix_d one = matrix_d::Ones(1, 1), six = matrix_d::Ones(6, 1);
    const auto text = [](const auto& f) {
        return support::text_of<otimes::singular_error>([&] { static_cast<void>(f()); });
    };
    const auto not_positive = [](const char* k) {
        return "otimes: Cholesky decomposition of " + std::string(k) + ": its scalar is not positive.";
    };
    CHECK(text([&] { return otimes::kron_llt<double>(-2.0 * e); }) == not_positive("kron(), 1 x 1"));
    CHECK(text([&] { return otimes::kron_llt<double>(0.0 * K); }) == not_positive("kron(F1, F2), 6 x 6"));
    CHECK(text([&] { return otimes::kron_llt<std::complex<double>>(std::complex<double>(2, 1) * none); }) ==
          not_positive("kron(), 1 x 1"));
    CHECK(text([&] { return otimes::kron_llt<double>(kron(otimes::identity(2), matrix_d(-one))); }) ==
          "otimes: Cholesky decomposition of kron(F1, F2), 2 x 2: factor 2 is not positive definite.");
    CHECK(text([&] { return otimes::kron_qr<double>(0.0 * e).solve(one); }) ==
          "otimes: kron_qr::solve with kron(), 1 x 1: its scalar is 0.");
    CHECK(text([&] { return otimes::kron_qr<double>(0.0 * K).solve(six); }) ==
          "otimes: kron_qr::solve with kron(F1, F2), 6 x 6: its scalar is 0.");
    CHECK(text([&] { return (0.0 * e).inverse(); }) == "otimes: LU decomposition of kron(), 1 x 1: its scalar is 0.");
    CHECK(otimes::kron_llt<double>(4.0 * e).matrixL()(0, 0) == 2);
    CHECK(otimes::kron_qr<double>(4.0 * e).solve(one)(0, 0) == 0.25);
}

TEST_CASE("diagonals are divided by entry by entry, whatever their condition") {
    const matrix_d B = well_conditioned<double>(2, 1);
    const vector_d d = (vector_d(3) << 1, 1e-30, 1e10).finished(), b = random<vector_d>(6, 1, 2);
    const auto K = kron(d.asDiagonal(), B);
    const vector_d x = K.solve(b), by_blocks = kron(B).solve(b.reshaped(2, 3).eval()).reshaped();
    for (Index i = 0; i < 6; ++i) {
        CHECK(x(i) == doctest::Approx(by_blocks(i) / d(i / 2)).epsilon(1e-14));
    }
    const vector_d zero = (vector_d(3) << 1, 0, 1).finished();
    CHECK_THROWS_AS(static_cast<void>(kron(zero.asDiagonal(), B).inverse()), otimes::singular_error);
}

TEST_CASE("condition numbers of zeros, operator norms at the ends of the range") {
    const double inf = std::numeric_limits<double>::infinity();
    const matrix_d A = well_conditioned<double>(3, 1), B = well_conditioned<double>(2, 2), zero = matrix_d::Zero(2, 2);
    CHECK(kron(zero, A).conditionNumber() == inf);
    CHECK((0.0 * kron(B, A)).conditionNumber() == inf);
    CHECK(kron(A, vector_d(zero.col(0)).asDiagonal()).conditionNumber() == inf);
    CHECK(kron(matrix_d(1e200 * A), matrix_d(1e200 * A), matrix_d(1e-300 * B)).operatorNorm() ==
          doctest::Approx(1e100 * kron(A, A, B).operatorNorm()));
    CHECK((1e-300 * kron(matrix_d(1e200 * A), matrix_d(1e200 * B))).operatorNorm() ==
          doctest::Approx(1e100 * kron(A, B).operatorNorm()));
    CHECK(kron(matrix_d(1e-200 * A), matrix_d(1e200 * B)).conditionNumber() ==
          doctest::Approx(kron(A, B).conditionNumber()));
}

TEST_CASE_TEMPLATE("decompositions keep identities, permutations and diagonals", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = positive<Scalar>(3, 1);
    const auto G = random<matrix<Scalar>>(3, 2, 2);
    vector<Scalar> d = random<vector<Scalar>>(4, 1, 3);
    d(2) = Scalar(0);
    const vector<Scalar> full = d + vector<Scalar>::Constant(4, Scalar(2));
    const vector<real_of<Scalar>> p = d.cwiseAbs() + vector<real_of<Scalar>>::Ones(4);
    const vector<Scalar> definite = p.template cast<Scalar>();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    Eigen::SparseMatrix<Scalar> s(4, 4);
    for (Index i = 0; i < 4; ++i) {
        s.insert(i, i) = full(i);
    }
    const auto K = Scalar(2) * kron(G, d.asDiagonal(), P, otimes::identity(2));
    const matrix<Scalar> k = K.toDenseMatrix();
    const Eigen::CompleteOrthogonalDecomposition<matrix<Scalar>> whole(k);
    CHECK(near(K.pseudoInverse().toDenseMatrix(), matrix<Scalar>(whole.pseudoInverse())));
    CHECK(K.pseudoInverse().node().factors()[1].kind() == otimes::factor_kind::diagonal);
    CHECK(K.rank() == whole.rank());
    CHECK(near(K.singularValues(), vector<real_of<Scalar>>(k.jacobiSvd().singularValues())));
    CHECK(K.operatorNorm() == doctest::Approx(k.jacobiSvd().singularValues()(0)));
    const otimes::kron_svd<Scalar> svd(K);
    CHECK(
        near(matrix<Scalar>(svd.matrixU().toDenseMatrix() * svd.singularValues().template cast<Scalar>().asDiagonal() *
                            svd.matrixV().toDenseMatrix().adjoint()),
             k));
    const auto b = random<matrix<Scalar>>(K.rows(), 2, 4);
    CHECK(near(svd.solve(b), matrix<Scalar>(whole.solve(b))));
    const auto R = kron(G, P, full.asDiagonal(), s);
    const otimes::kron_qr<Scalar> qr(R);
    const matrix<Scalar> r = R.toDenseMatrix();
    CHECK(near(evaluated(qr.matrixQ().toDenseMatrix() * qr.matrixR().toDenseMatrix()), r));
    const auto c = random<matrix<Scalar>>(R.rows(), 2, 5);
    CHECK(near(qr.solve(c), matrix<Scalar>(r.completeOrthogonalDecomposition().solve(c))));
    CHECK_THROWS_AS(static_cast<void>(otimes::kron_qr<Scalar>(K).solve(b)), otimes::singular_error);
    const auto S = kron(A, s);
    CHECK(near(evaluated(S.toDenseMatrix() * S.solve(matrix<Scalar>(b.topRows(12)))), matrix<Scalar>(b.topRows(12))));
    CHECK(S.inverse().node().factors()[1].kind() == otimes::factor_kind::diagonal);
    const auto D = kron(definite.asDiagonal(), A, otimes::identity(2));
    const otimes::kron_llt<Scalar> llt(D);
    CHECK(near(evaluated(llt.matrixL().toDenseMatrix() * llt.matrixL().toDenseMatrix().adjoint()), D.toDenseMatrix()));
    CHECK(llt.logAbsDeterminant() == doctest::Approx(D.logAbsDeterminant()));
    const auto f = random<matrix<Scalar>>(24, 2, 6);
    CHECK(near(evaluated(D * llt.solve(f)), f));
    CHECK_THROWS_AS(otimes::kron_llt<Scalar>(kron(A, P)), otimes::singular_error);
    CHECK_THROWS_AS(otimes::kron_llt<Scalar>(kron(A, (-definite).asDiagonal())), otimes::singular_error);
    const otimes::kron_self_adjoint_eigen<Scalar> eig(D);
    const matrix<Scalar> v = eig.eigenvectors().toDenseMatrix();
    CHECK(near(evaluated(v * eig.eigenvalues().template cast<Scalar>().asDiagonal() * v.adjoint()), D.toDenseMatrix()));
    // Sums: a diagonal has its elements as eigenvalues, whatever they are; two of them are a pencil.
    const auto solves = [&f](const auto& sum) {
        CHECK(near(evaluated(sum.toDenseMatrix() * sum.solve(f)), f));
        CHECK(sum.logAbsDeterminant() == doctest::Approx(std::log(std::abs(sum.toDenseMatrix().determinant()))));
    };
    solves(D + 0.5 * otimes::identity());
    solves(otimes::kron_sum(A, definite.asDiagonal(), positive<Scalar>(2, 7)));
    solves(otimes::kron_sum(A, full.asDiagonal(), positive<Scalar>(2, 7)));
    const vector<Scalar> mass = definite.cwiseAbs2();
    solves(kron(A, definite.asDiagonal(), otimes::identity(2)) + kron(A, mass.asDiagonal(), otimes::identity(2)));
}

TEST_CASE_TEMPLATE("decompositions are krons of decompositions", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = positive<Scalar>(3, 1);
    const auto B = positive<Scalar>(4, 2);
    const auto K = 2.0 * kron(A, B);
    const matrix<Scalar> k = K.toDenseMatrix();
    const otimes::kron_llt<Scalar> llt(K);
    const matrix<Scalar> l = llt.matrixL().toDenseMatrix();
    CHECK(near(evaluated(l * l.adjoint()), k));
    CHECK(llt.logAbsDeterminant() == doctest::Approx(std::log(std::abs(k.determinant()))));
    const auto b = random<matrix<Scalar>>(12, 2, 3);
    CHECK(near(evaluated(k * llt.solve(b)), b));
    const otimes::kron_self_adjoint_eigen<Scalar> eig(K);
    const matrix<Scalar> v = eig.eigenvectors().toDenseMatrix();
    CHECK(near(evaluated(v * eig.eigenvalues().template cast<Scalar>().asDiagonal() * v.adjoint()), k));
    const auto F = random<matrix<Scalar>>(5, 3, 4);
    const auto G = random<matrix<Scalar>>(4, 2, 5);
    const auto R = Scalar(-3) * kron(F, G);
    const matrix<Scalar> r = R.toDenseMatrix();
    const otimes::kron_qr<Scalar> qr(R);
    const matrix<Scalar> q = qr.matrixQ().toDenseMatrix();
    CHECK(near(evaluated(q.adjoint() * q), matrix<Scalar>(matrix<Scalar>::Identity(6, 6))));
    CHECK(near(evaluated(q * qr.matrixR().toDenseMatrix()), r));
    const otimes::kron_svd<Scalar> svd(R);
    CHECK(
        near(matrix<Scalar>(svd.matrixU().toDenseMatrix() * svd.singularValues().template cast<Scalar>().asDiagonal() *
                            svd.matrixV().toDenseMatrix().adjoint()),
             r));
    // Least squares: the residual is orthogonal to the range; the solution of a wide or rank-deficient K has no part in its kernel.
    const auto c = random<matrix<Scalar>>(20, 2, 6);
    const matrix<Scalar> x = qr.solve(c);
    CHECK(near(evaluated(r.adjoint() * (r * x)), evaluated(r.adjoint() * c)));
    CHECK(near(svd.solve(c), x));
    CHECK(near(R.solve(c), x));
    matrix<Scalar> flat = G;
    flat.col(1) = Scalar(2) * flat.col(0);
    const auto wide = Scalar(0.5) * kron(F.adjoint().eval(), flat);  // 3 x 5 and 4 x 2 of rank 1
    const matrix<Scalar> w = wide.toDenseMatrix();
    const auto e = random<matrix<Scalar>>(12, 2, 7);
    const Eigen::CompleteOrthogonalDecomposition<matrix<Scalar>> whole(w);
    CHECK(near(otimes::kron_svd<Scalar>(wide).solve(e), matrix<Scalar>(whole.solve(e))));
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::kron_qr<Scalar>(wide).solve(e)),
                         "otimes: kron_qr::solve: factor 1 is 3 x 5, with fewer rows than columns. For the solution of "
                         "least norm write K.solve(B).",
                         otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::kron_qr<Scalar>(kron(F, flat)).solve(c)), otimes::singular_error);
    CHECK_THROWS_AS(static_cast<void>(svd.solve(e)), otimes::shape_error);
}

TEST_CASE_TEMPLATE("solving with sums", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = positive<Scalar>(3, 1);
    const auto B = positive<Scalar>(4, 2);
    const auto C = positive<Scalar>(2, 3);
    const auto b = random<matrix<Scalar>>(24, 3, 4);
    const auto check = [&](const auto& S, const char* method) {
        const otimes::kron_sum_solver<Scalar> solver(S);
        CHECK(solver.method() == method);
        const matrix<Scalar> s = S.toDenseMatrix();
        CHECK(near(evaluated(s * solver.solve(b)), b));
        CHECK(near(evaluated(s * S.solve(b)), b));
        CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(s.determinant()))));
    };
    check(kron(A, B, C) + 0.5 * otimes::identity(), "eigenvectors of self-adjoint factors");
    check(otimes::kron_sum(A, B, C), "eigenvectors of self-adjoint factors");
    check(otimes::kron_sum(A, B, C) - 0.25 * otimes::identity(), "eigenvectors of self-adjoint factors");
    const auto MA = positive<Scalar>(3, 5), MB = positive<Scalar>(4, 6), MC = positive<Scalar>(2, 7);
    check(kron(A, MB, MC) + kron(MA, B, MC) + 2.0 * kron(MA, MB, C),
          "generalised eigenvectors of self-adjoint factors");
    const auto N = well_conditioned<Scalar>(3, 8);
    check(kron(N, B, C) + 0.5 * otimes::identity(), "eigenvectors of general factors");
    check(otimes::kron_sum(N, B, well_conditioned<Scalar>(2, 9)), "eigenvectors of general factors");
    // Splits that no term has: 3 x 8 and 12 x 2 is 3 x 4 x 2; with a factor of order 1 between.
    check(kron(A, otimes::identity(8)) + kron(otimes::identity(12), C), "eigenvectors of self-adjoint factors");
    check(kron(otimes::identity(3), MB, otimes::identity(2)) + kron(A, positive<Scalar>(1, 11), otimes::identity(8)) +
              kron(otimes::identity(12), C),
          "eigenvectors of self-adjoint factors");
    check(kron(N, otimes::identity(8)) + kron(otimes::identity(12), C), "eigenvectors of general factors");
    // 2 x 12 and 12 x 2 would cut a factor of order 12.
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(C, otimes::identity(12)) +
                                                    kron(positive<Scalar>(12, 12), otimes::identity(2))),
                    otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::kron_sum_solver<Scalar>(kron(C, otimes::identity(12)) +  // 2 does not divide 3
                                                    kron(A, otimes::identity(8))),
                    otimes::unsupported_error);
    // A product of operators is solved with part by part.
    const auto P = otimes::kron_sum(A, B, C) * kron(A, otimes::kron(B, C));
    CHECK(near(evaluated(P.toDenseMatrix() * P.solve(b)), b, 1e-9));
}

TEST_CASE("solving with sums of factors whose eigenvectors are ill-conditioned, together or each") {
    const auto check = [](const auto& S, const char* method, double tolerance = 1e-13) {
        const otimes::kron_sum_solver<double> solver(S);
        CHECK(solver.method() == method);
        const matrix_d s = S.toDenseMatrix();
        const matrix_d b = random(s.rows(), 3, 4);
        CHECK(backward_error<double>(s, solver.solve(b), b) < tolerance);
        const vector_d v = S.solve(vector_d(b.col(1)));
        CHECK(backward_error<double>(s, v, b.col(1)) < tolerance);
        const matrix<std::complex<double>> c = random<matrix<std::complex<double>>>(s.rows(), 2, 5);
        CHECK(backward_error<std::complex<double>>(s, solver.solve(c), c) < tolerance);
        CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(s.determinant()))));
    };
    const char* const schur = "complex Schur forms of the factors";
    const matrix_d F = nearly_defective(1), G = nearly_defective(2), H = nearly_defective(3);
    check(otimes::kron_sum(F, G), schur);
    check(otimes::kron_sum(F, G, H), schur);
    check(kron(F, G) + 1.0 * otimes::identity(), schur);
    check(kron(F, G, H) + kron(F, otimes::identity(4)) - 0.5 * otimes::identity(), schur);
    check(kron(F, otimes::identity(3), G) + 2.0 * otimes::identity(), schur);
    // Exactly defective, beside a self-adjoint one and a diagonal.
    matrix_d jordan = 2 * matrix_d::Identity(5, 5);
    jordan.diagonal(1).setConstant(1);
    const matrix_d P = positive<double>(3, 6);
    const vector_d d = vector_d::LinSpaced(4, 1, 2);
    check(otimes::kron_sum(jordan, P), schur);
    check(kron(P, jordan, d.asDiagonal()) + 0.5 * otimes::identity(), schur);
    check(kron(jordan) + 0.5 * otimes::identity(), schur);
    // Moderately ill-conditioned: refined.
    check(otimes::kron_sum(convection(9, 0.4), convection(7, 0.4)), "eigenvectors of general factors", 2e-15);
    check(kron(convection(8, 0.6), P) + 0.5 * otimes::identity(), "eigenvectors of general factors", 2e-15);
    // The equation that otimes::sylvester solves: A X + X A^T = C is kron_sum(A, A) vec(X) = vec(C).
    const matrix_d A = convection(40, 0.4), C = random(40, 40, 7);
    const matrix_d X = otimes::sylvester(A, A.transpose(), C);
    const vector_d x = otimes::kron_sum(A, A).solve(vector_d(Eigen::Map<const vector_d>(C.data(), C.size())));
    CHECK((Eigen::Map<const matrix_d>(x.data(), 40, 40) - X).norm() <= 1e-11 * X.norm());
    const auto Z = random<matrix<std::complex<double>>>(3, 3, 8);
    const matrix<std::complex<double>> J = jordan.cast<std::complex<double>>();
    const auto S = std::complex<double>(0, 2) * kron(Z, J) + kron(otimes::identity(3), J) + otimes::identity();
    const auto c = random<matrix<std::complex<double>>>(15, 2, 9);
    CHECK(backward_error<std::complex<double>>(S.toDenseMatrix(), S.solve(c), c) < 1e-13);
    CHECK_THROWS_AS(
        static_cast<void>((otimes::kron_sum(jordan, jordan) - 4.0 * otimes::identity()).solve(vector_d::Ones(25))),
        otimes::singular_error);
}

TEST_CASE("what is not finite is not solved with") {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const matrix_d B = well_conditioned<double>(2, 1), C = random(3, 2, 2);
    for (const double bad : {inf, nan}) {
        matrix_d A = well_conditioned<double>(3, 3);
        A(0, 1) = bad;
        CHECK(support::text_of([&] { static_cast<void>(otimes::sylvester(A, B, C)); }) ==
              "otimes: sylvester(A, B, C): A has an element that is NaN or infinite; such a matrix has no Schur form.");
        CHECK(support::text_of([&] { static_cast<void>(otimes::sylvester(B, A, C.transpose())); }) ==
              "otimes: sylvester(A, B, C): B has an element that is NaN or infinite; such a matrix has no Schur form.");
        CHECK(support::text_of([&] { static_cast<void>(otimes::lyapunov(A, A)); }) ==
              "otimes: lyapunov(A, Q): A has an element that is NaN or infinite; such a matrix has no Schur form.");
        CHECK(
            support::text_of([&] { static_cast<void>(otimes::kron_sum(B, A).solve(vector_d::Ones(6).eval())); }) ==
            "otimes: solve with a sum of Kronecker products: factor 2, 3 x 3, has an element that is NaN or infinite; "
            "such a matrix has no decomposition.");
    }
    // A right-hand side's NaN is in its column of the result.
    matrix_d b = random(6, 2, 4);
    b(3, 1) = nan;
    const matrix_d x = otimes::kron_sum(B, well_conditioned<double>(3, 3)).solve(b);
    CHECK(x.col(0).allFinite());
    CHECK(x.col(1).hasNaN());
}

TEST_CASE("a solve with many right-hand sides goes by ranges of columns") {
    const matrix_d A = positive<double>(13, 1), B = positive<double>(12, 2), C = positive<double>(15, 3);
    const otimes::kron_sum_solver<double> solver(otimes::kron_sum(A, B, C));
    const matrix_d b = random(2340, 203, 4);
    const row_major_d by_rows = b;
    const support::allocation_counter counter;
    const matrix_d x = solver.solve(b);
    const auto seen = counter.seen();
    const matrix_d back = otimes::kron_sum(A, B, C) * x;
    CHECK(distance(back, b) <= 1e-11 * b.norm());
    CHECK(distance(solver.solve(by_rows), x) <= 1e-12 * x.norm());
    CHECK(distance(solver.solve(b.rightCols(7)), x.rightCols(7)) <= 1e-12 * x.norm());
    CHECK(distance(solver.solve(2.0 * b.col(3)), 2.0 * x.col(3)) <= 1e-12 * x.norm());
    if (support::allocations_are_counted()) {  // the result and one range
        CHECK(seen.total_bytes < 3 * sizeof(double) * static_cast<std::size_t>(b.size()) / 2);
    }
}

TEST_CASE("Sylvester and Lyapunov equations, a defective matrix too") {
    matrix_d A = random(4, 4, 1) + 3 * matrix_d::Identity(4, 4);
    const matrix_d B = random(3, 3, 2) + 3 * matrix_d::Identity(3, 3);
    const matrix_d C = random(4, 3, 3);
    CHECK(near(evaluated(A * otimes::sylvester(A, B, C) + otimes::sylvester(A, B, C) * B), C));
    A << 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1;
    const matrix_d X = otimes::sylvester(A, B, C);
    CHECK(near(evaluated(A * X + X * B), C));
    const auto Z = random<matrix<std::complex<double>>>(4, 4, 5);
    const matrix_d Q = random(4, 4, 6);
    const matrix<std::complex<double>> Y = otimes::lyapunov(Z, Q);
    CHECK(near(matrix<std::complex<double>>(Z * Y + Y * Z.adjoint()), matrix<std::complex<double>>(Q)));
    // The same as the Kronecker sum, by columns: kron_sum(B^T, A) vec(X) = vec(C).
    const matrix_d x = otimes::kron_sum(B.transpose(), random(4, 4, 1) + 3 * matrix_d::Identity(4, 4))
                           .solve(vector_d(Eigen::Map<const vector_d>(C.data(), 12)));
    const matrix_d again = otimes::sylvester(random(4, 4, 1) + 3 * matrix_d::Identity(4, 4), B, C);
    CHECK(near(x, matrix_d(Eigen::Map<const vector_d>(again.data(), 12))));
}

TEST_CASE_TEMPLATE(
    "a factor with a row or column of zeros is singular, whatever Eigen's estimate of its condition number says",
    Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto B = well_conditioned<Scalar>(3, 2);
    for (Index k = 0; k < 24; ++k) {
        auto A = random<matrix<Scalar>>(4, 4, static_cast<std::uint64_t>(k));
        if (k % 2 == 0) {
            A.row(k / 2 % 4).setZero();
        } else {
            A.col(k / 2 % 4).setZero();
        }
        CHECK_THROWS_AS((void)kron(A, B).solve(vector<Scalar>(vector<Scalar>::Ones(12))), otimes::singular_error);
        CHECK_THROWS_AS((void)kron(B, A).inverse(), otimes::singular_error);
    }
}

TEST_CASE_TEMPLATE("solving with sums of two matrices at a position, of which none need be self-adjoint", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto check = [](const auto& S, double tolerance = 1e-14) {
        const otimes::kron_sum_solver<Scalar> solver(S);
        const matrix<Scalar> s = S.toDenseMatrix();
        const auto b = random<matrix<Scalar>>(s.rows(), 3, 4);
        CHECK(backward_error<Scalar>(s, solver.solve(b), b) < tolerance);
        CHECK(backward_error<Scalar>(s, matrix<Scalar>(S.solve(b)), b) < tolerance);
        CHECK(solver.logAbsDeterminant() == doctest::Approx(std::log(std::abs(s.determinant()))));
        const auto c = random<matrix<std::complex<double>>>(s.rows(), 2, 5);
        const matrix<std::complex<double>> wide = s.template cast<std::complex<double>>();
        CHECK(backward_error<std::complex<double>>(wide, solver.solve(c), c) < tolerance);
    };
    const auto A = well_conditioned<Scalar>(4, 1), B = well_conditioned<Scalar>(3, 2),
               M = well_conditioned<Scalar>(4, 3), N = well_conditioned<Scalar>(3, 4);
    const auto C = well_conditioned<Scalar>(2, 5), L = well_conditioned<Scalar>(2, 6);
    check(kron(A, B) + kron(M, N));  // generalised Sylvester equation
    check(kron(A, B) - 0.3 * kron(M, N));
    check(kron(A, N, L) + kron(M, B, L) + 0.5 * kron(M, N, C));  // a mass matrix beside each
    check(kron(A, B, C) + kron(M, otimes::identity(3), C));
    // Self-adjoint, both indefinite; one of the two singular, in either place; diagonals with negative elements.
    const matrix<Scalar> F = A + A.adjoint() - Scalar(2) * matrix<Scalar>::Identity(4, 4);
    const matrix<Scalar> G = M + M.adjoint() - Scalar(3) * matrix<Scalar>::Identity(4, 4);
    check(kron(F, B) + kron(G, N), 1e-13);
    matrix<Scalar> singular = M;
    singular.col(1) = singular.col(0);
    check(kron(A, B) + kron(singular, N), 1e-13);
    check(kron(singular, B) + kron(A, N), 1e-13);
    vector<Scalar> d(4), e(4);
    d << Scalar(1), Scalar(-2), Scalar(0), Scalar(3);
    e << Scalar(-1), Scalar(0.5), Scalar(2), Scalar(-4);
    check(kron(d.asDiagonal(), B) + kron(e.asDiagonal(), N), 1e-13);
    check(kron(d.asDiagonal(), B) + kron(M, N), 1e-13);
    // An ill-conditioned one, and eigenvectors that nearly fall together.
    check(kron(matrix<Scalar>(hilbert(4).template cast<Scalar>()), B) +
              kron(evaluated(hilbert(4).template cast<Scalar>() * hilbert(4).template cast<Scalar>()), N),
          1e-12);
    const matrix<Scalar> P = nearly_defective(1).template cast<Scalar>(),
                         Q = nearly_defective(2).template cast<Scalar>();
    check(kron(evaluated(C * P), B) + kron(C, N), 1e-13);
    check(kron(evaluated(C * P), evaluated(L * Q)) + kron(C, L), 1e-13);
    // Neither can be inverted, nor a combination.
    const std::string text = support::text_of([&] {
        matrix<Scalar> other = A;
        other.col(1) = other.col(0);
        otimes::kron_sum_solver<Scalar>(kron(other, B) + kron(singular, N));
    });
    CHECK(text.find("at position 1 the terms use two matrices, of which one, or a combination, must be invertible") !=
          std::string::npos);
}

TEST_CASE("preconditioners in Eigen's solvers") {
    const matrix_d A = positive<double>(6, 1), B = 100 * positive<double>(5, 2);
    const vector_d d = random<vector_d>(30, 1, 3).cwiseAbs();
    const otimes::sum_expr<double> S = kron(A, B) + d.asDiagonal();
    const vector_d b = random<vector_d>(30, 1, 4);
    const auto run = [&](auto& cg) {
        cg.setTolerance(1e-12);
        cg.compute(S);
        const vector_d x = cg.solve(b);
        CHECK(distance(S.toDenseMatrix() * x, b) <= 1e-9 * b.norm());
        return cg.iterations();
    };
    Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>
        plain;
    Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper, otimes::KronPreconditioner<double>>
        by_kron;
    Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper,
                             otimes::DiagonalPreconditioner<double>>
        by_diagonal;
    const auto without = run(plain);
    run(by_diagonal);
    CHECK(run(by_kron) < without / 2);
    Eigen::BiCGSTAB<otimes::sum_expr<double>, otimes::KronPreconditioner<double>> bicg;
    bicg.preconditioner().set(kron(A, B));
    run(bicg);
    Eigen::ConjugateGradient<otimes::kron_expr<double>, Eigen::Lower | Eigen::Upper, otimes::KronPreconditioner<double>>
        exact;
    const auto K = kron(A, B);
    exact.compute(K);
    const vector_d x = exact.solve(b);
    CHECK(exact.iterations() <= 2);
    CHECK(distance(K.toDenseMatrix() * x, b) <= 1e-9 * b.norm());
}

TEST_CASE("every expression in GMRES and MINRES, with every preconditioner") {
    const matrix_d A = positive<double>(6, 1), B = positive<double>(5, 2);
    const vector_d b = random<vector_d>(30, 1, 3);
    const matrix_d w = random(30, 42, 4);
    const Eigen::SparseMatrix<double> W = w.sparseView();
    const auto K = kron(A, B);
    const otimes::sum_expr<double> S = otimes::kron_sum(A, B) + 0.5 * otimes::identity();
    const auto op = W * kron(positive<double>(6, 5), positive<double>(7, 6)) * W.transpose() + 3.0 * otimes::identity();
    const auto solves = [&](auto&& solver, const auto& e) {
        solver.setTolerance(1e-12);
        solver.setMaxIterations(500);
        solver.compute(e);
        const vector_d x = solver.solve(b);
        const vector_d back = e * x;
        CHECK(distance(back, b) <= 1e-8 * b.norm());
        return solver.iterations();
    };
    using kron_d = otimes::kron_expr<double>;
    using sum_d = otimes::sum_expr<double>;
    using gp_d = std::remove_const_t<decltype(op)>;
    solves(Eigen::GMRES<kron_d, Eigen::IdentityPreconditioner>(), K);
    solves(Eigen::GMRES<sum_d, otimes::DiagonalPreconditioner<double>>(), S);
    CHECK(solves(Eigen::GMRES<sum_d, otimes::KronPreconditioner<double>>(), S) <= 3);
    solves(Eigen::GMRES<gp_d, Eigen::IdentityPreconditioner>(), op);
    solves(Eigen::BiCGSTAB<gp_d, otimes::DiagonalPreconditioner<double>>(), op);
    CHECK(distance(op.diagonal(), (evaluated(op * matrix_d::Identity(30, 30))).diagonal()) < 1e-11);
    CHECK(distance((b.asDiagonal() * K).diagonal(), b.cwiseProduct(K.diagonal())) < 1e-12);
    solves(Eigen::MINRES<kron_d, Eigen::Lower | Eigen::Upper, otimes::DiagonalPreconditioner<double>>(), K);
    solves(Eigen::MINRES<sum_d, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>(), S);
    solves(Eigen::MINRES<gp_d, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>(), op);
    solves(Eigen::BiCGSTAB<kron_d, otimes::DiagonalPreconditioner<double>>(), K);
    const auto grid = kron(A, positive<double>(9, 7));
    std::vector<int> seen;
    for (int i = 0; i < 30; ++i) seen.push_back((i * 17) % 54);
    // [masked-snippet]
    // observations at some points of a grid, and their noise: no matrix is formed
    const auto masked = grid(seen, seen);
    const sum_d noisy = masked + 0.3 * otimes::identity();
    // [/masked-snippet]
    using masked_d = std::remove_const_t<decltype(masked)>;
    solves(Eigen::ConjugateGradient<masked_d, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>(), masked);
    solves(Eigen::ConjugateGradient<sum_d, Eigen::Lower | Eigen::Upper, otimes::DiagonalPreconditioner<double>>(),
           noisy);
#ifndef OTIMES_TEST_ONCE  // a solver compiles for seconds
    solves(Eigen::ConjugateGradient<masked_d, Eigen::Lower | Eigen::Upper, otimes::DiagonalPreconditioner<double>>(),
           masked);
    solves(Eigen::GMRES<masked_d, otimes::DiagonalPreconditioner<double>>(), masked);
    solves(Eigen::MINRES<masked_d, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner>(), masked);
    solves(Eigen::BiCGSTAB<sum_d, Eigen::IdentityPreconditioner>(), noisy);
#endif
    Eigen::ConjugateGradient<sum_d, Eigen::Lower | Eigen::Upper, otimes::KronPreconditioner<double>> near;
    near.preconditioner().set(kron(A, B));
    solves(near, noisy);
    CHECK(distance(noisy.diagonal(), noisy.toDenseMatrix().diagonal()) < 1e-12);
    // Of few points the matrix is formed, as every factor of that size is.
    const vector_d right = random<vector_d>(30, 1, 8);
    CHECK(distance(vector_d(noisy.toDenseMatrix() * noisy.solve(right)), right) < 1e-10);
    const std::vector<int> many(5000, 3);
    const sum_d large = grid(many, many) + otimes::identity();
    CHECK_THROWS_AS((void)large.solve(vector_d(vector_d::Ones(5000))), otimes::budget_error);
}

TEST_CASE_TEMPLATE("row-wise products and selected rows in Eigen's solvers", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = random<matrix<Scalar>>(37, 3, 1), B = random<matrix<Scalar>>(37, 4, 2);
    const auto K = kron(random<matrix<Scalar>>(5, 3, 3), random<matrix<Scalar>>(7, 2, 4));
    std::vector<int> seen;
    for (int i = 0; i < 20; ++i) seen.push_back((i * 11) % 35);
    const auto fits = [](const auto& e, std::uint64_t seed) {  // |e x - b| is least, and |x| where many x are
        const auto b = random<vector<Scalar>>(e.rows(), 1, seed);
        Eigen::LeastSquaresConjugateGradient<std::remove_cvref_t<decltype(e)>, Eigen::IdentityPreconditioner> solver;
        solver.setTolerance(1e-13);
        solver.setMaxIterations(1000);
        solver.compute(e);
        const vector<Scalar> x = solver.solve(b);
        const matrix<Scalar> formed = e.toDenseMatrix();
        CHECK(near(x, vector<Scalar>(formed.completeOrthogonalDecomposition().solve(b)), 1e-7));
    };
    // [least-squares-snippet]
    const auto R = otimes::face_split(A, B);  // 37 samples, features of which each belongs to a pair
    const auto b = random<vector<Scalar>>(R.rows(), 1, 5);
    Eigen::LeastSquaresConjugateGradient<otimes::row_product_expr<Scalar>, Eigen::IdentityPreconditioner> fit(R);
    const vector<Scalar> x = fit.solve(b);
    // [/least-squares-snippet]
    CHECK((R.adjoint() * vector<Scalar>(R * x - b)).norm() < 1e-8);
    {
        // [ridge-snippet]
        const auto F = otimes::face_split(A, B);  // 37 samples, 12 features
        const otimes::sum_expr<Scalar> normal = F.adjoint() * F + Scalar(0.1) * otimes::identity();
        Eigen::ConjugateGradient<otimes::sum_expr<Scalar>, Eigen::Lower | Eigen::Upper,
                                 otimes::DiagonalPreconditioner<Scalar>>
            ridge(normal);
        const vector<Scalar> weights = ridge.solve(F.adjoint() * b);
        // [/ridge-snippet]
        const matrix<Scalar> f = F.toDenseMatrix();
        const matrix<Scalar> formed = f.adjoint() * f + Scalar(0.1) * matrix<Scalar>::Identity(12, 12);
        CHECK(near(weights, vector<Scalar>(formed.ldlt().solve(f.adjoint() * b)), 1e-8));
        const vector<Scalar> w = b.cwiseAbs2() + vector<Scalar>::Ones(37);
        const auto G = otimes::khatri_rao(matrix<Scalar>(A.transpose()), matrix<Scalar>(B.transpose()));
        const otimes::sum_expr<Scalar> weighted = G * w.asDiagonal() * G.adjoint() + Scalar(0.1) * otimes::identity();
        ridge.compute(weighted);
        const vector<Scalar> again = ridge.solve(random<vector<Scalar>>(12, 1, 18));
        CHECK(near(vector<Scalar>(weighted * again), random<vector<Scalar>>(12, 1, 18), 1e-8));
    }
    fits(R, 6);
    fits(Scalar(2) * R, 7);
    fits(R.transpose(), 8);
    fits(otimes::khatri_rao(random<matrix<Scalar>>(6, 5, 16), random<matrix<Scalar>>(7, 5, 17)), 9);
    fits(otimes::khatri_rao(matrix<Scalar>(A.transpose()), matrix<Scalar>(B.transpose())).adjoint(), 10);
    fits(K(seen, otimes::eigen::all_indices()), 11);
    fits(K(otimes::eigen::all_indices(), std::vector<int>{4, 1}), 12);

    // Square ones. Its diagonal does not ask for its entries.
    matrix<Scalar> outer(12, 3), inner(12, 4);
    for (Index i = 0; i < 12; ++i) {  // near the identity of order 12
        outer.row(i) = matrix<Scalar>::Identity(3, 3).row(i / 4);
        inner.row(i) = matrix<Scalar>::Identity(4, 4).row(i % 4);
    }
    outer += Scalar(0.2) * random<matrix<Scalar>>(12, 3, 13);
    inner += Scalar(0.2) * random<matrix<Scalar>>(12, 4, 14);
    const auto solves = [](auto&& solver, const auto& e) {
        const auto right = random<vector<Scalar>>(12, 1, 15);
        solver.setTolerance(1e-12);
        solver.compute(e);
        const vector<Scalar> found = solver.solve(right);
        CHECK(near(vector<Scalar>(e.toDenseMatrix() * found), right, 1e-8));
    };
    const auto S = otimes::face_split(outer, inner);
    using rows_type = otimes::row_product_expr<Scalar>;
    for (const rows_type& e : {rows_type(S), S.adjoint()}) {
        solves(Eigen::BiCGSTAB<rows_type, otimes::DiagonalPreconditioner<Scalar>>(), e);
#ifndef OTIMES_TEST_ONCE
        solves(Eigen::BiCGSTAB<rows_type, Eigen::IdentityPreconditioner>(), e);
        solves(Eigen::GMRES<rows_type, otimes::DiagonalPreconditioner<Scalar>>(), e);
#endif
        CHECK(near(e.diagonal(), vector<Scalar>(e.toDenseMatrix().diagonal()), 1e-14));
    }
    CHECK(near(R.diagonal(), vector<Scalar>(R.toDenseMatrix().diagonal()), 1e-14));
    CHECK(near(R.adjoint().diagonal(), vector<Scalar>(R.adjoint().toDenseMatrix().diagonal()), 1e-14));
}

TEST_CASE("a decomposition does not read its matrices again: they may change, or end") {
    auto A = std::make_unique<matrix_d>(hilbert(6));
    const matrix_d B = well_conditioned<double>(3, 2);
    const vector_d b = random<vector_d>(18, 1, 3);
    const otimes::kron_lu<double> lu(kron(*A, B)), plain(kron(B, B));
    const otimes::kron_lu<double> copy = lu;
    CHECK(lu.refines());
    const vector_d x = lu.solve(b);
    A->setConstant(7);
    CHECK(lu.solve(b) == x);
    A.reset();
    CHECK(copy.solve(b) == x);
    auto end = std::make_unique<otimes::kron_lu<double>>(kron(B, B));
    {
        const matrix_d gone = B;
        end = std::make_unique<otimes::kron_lu<double>>(kron(gone, gone));
    }
    CHECK_FALSE(end->refines());
    CHECK(end->solve(b.head(9)) == plain.solve(b.head(9)));
}

TEST_CASE_TEMPLATE("decompositions and solves at the ends of the range: no square overflows or vanishes", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    const auto A = well_conditioned<Scalar>(4, 1), B = well_conditioned<Scalar>(3, 2);
    const auto F = random<matrix<Scalar>>(5, 3, 3), C = random<matrix<Scalar>>(4, 3, 4);
    const auto b = random<matrix<Scalar>>(12, 2, 5), c = random<matrix<Scalar>>(15, 2, 6);
    matrix<Scalar> J = Scalar(2) * matrix<Scalar>::Identity(4, 4);
    J.diagonal(1).setConstant(Scalar(1));
    for (const double s : {0x1p-640, 0x1p640}) {
        CAPTURE(s);
        const matrix<Scalar> As = A * s, Bs = B * s, Fs = F * s, Js = J * s;
        const auto K = kron(A, B), Ks = kron(As, B);
        CHECK(near(evaluated(Ks.solve(b) * s), K.solve(b)));
        CHECK(near(evaluated(otimes::kron_qr<Scalar>(Ks).solve(b) * s), K.solve(b)));
        CHECK(near(evaluated(kron(Fs, B).solve(c) * s), kron(F, B).solve(c)));
        CHECK(Ks.rank() == 12);
        CHECK(kron(Fs, B).rank() == 9);
        CHECK(Ks.logAbsDeterminant() == doctest::Approx(K.logAbsDeterminant() + 12 * std::log(s)));
        CHECK(near(evaluated(otimes::kron_sum(As, Bs).solve(b) * s), otimes::kron_sum(A, B).solve(b)));
        CHECK(near(evaluated(otimes::kron_sum(Js, Bs).solve(b) * s), otimes::kron_sum(J, B).solve(b)));
        CHECK(near(evaluated((Ks + Scalar(s) * otimes::identity()).solve(b) * s), (K + otimes::identity()).solve(b)));
        CHECK(near(evaluated(otimes::sylvester(As, Bs, C) * s), otimes::sylvester(A, B, C)));
        CHECK(near(vector<real_of<Scalar>>(kron(As, matrix<Scalar>(B / s), As).singularValues() / s),
                   kron(A, B, A).singularValues()));
    }
}

TEST_CASE("sums of diagonals are singular where an element is 0, however far the elements reach") {
    const vector_d d = (vector_d(3) << 1e-20, 1, 1e20).finished(), e = (vector_d(2) << 0, 1e-9).finished();
    const auto S = kron(d.asDiagonal(), otimes::identity(2)) + kron(otimes::identity(3), e.asDiagonal());
    const vector_d x = S.solve(vector_d::Ones(6).eval());
    CHECK(near(x, vector_d(S.diagonal().cwiseInverse()), 1e-15));
    CHECK(S.logAbsDeterminant() == doctest::Approx(S.diagonal().array().log().sum()));
    CHECK_THROWS_AS(static_cast<void>((S - 1e20 * otimes::identity()).solve(x)), otimes::singular_error);
    matrix_d A = 1e-10 * positive<double>(2, 1);
    A.row(1).setZero();
    A.col(1).setZero();
    CHECK(support::text_of([&] {
              static_cast<void>(otimes::kron_sum(A, A).solve(vector_d::Ones(4).eval()));
          }).find("e-10 in magnitude") != std::string::npos);
}

TEST_CASE("a KronPreconditioner solves with a sum of diagonals exactly, and takes a mean beside other terms alone") {
    const vector_d d = random<vector_d>(12, 1, 1).array().abs() + 0.5, b = random<vector_d>(12, 1, 2);
    const otimes::sum_expr<double> diagonals = kron(d.asDiagonal()) + 2.0 * otimes::identity();
    const vector_d x = otimes::KronPreconditioner<double>(diagonals).solve(b);
    CHECK(near(vector_d(x.array() * (d.array() + 2.0)), b));
    const auto A = positive<double>(3, 3);
    const auto B = positive<double>(4, 4);
    const otimes::sum_expr<double> beside = kron(A, B) + kron(d.asDiagonal());
    const vector_d y = otimes::KronPreconditioner<double>(beside).solve(b);
    CHECK(near(vector_d((kron(A, B) + d.mean() * otimes::identity()) * y), b));
    // One that is added to the only factor is exact, too.
    const auto whole = positive<double>(12, 5);
    const otimes::sum_expr<double> added = kron(whole) + d.asDiagonal();
    CHECK(near(vector_d(added * otimes::KronPreconditioner<double>(added).solve(b)), b));
    // Where the sum itself is singular, a mean makes it another one.
    vector_d uneven = vector_d::Constant(12, 12.0);
    uneven(0) = 0;
    const matrix_d C = uneven * uneven.transpose();
    const otimes::sum_expr<double> singular = kron(C) + uneven.asDiagonal();
    CHECK_THROWS_AS(static_cast<void>(singular.solve(b)), otimes::singular_error);
    const vector_d z = otimes::KronPreconditioner<double>(singular).solve(b);
    CHECK(near(vector_d((kron(C) + 11.0 * otimes::identity()) * z), b));
}

TEST_CASE("a KronPreconditioner solves with a product part by part") {
    const auto A = positive<double>(3, 3), B = positive<double>(4, 4);
    const vector_d d = random<vector_d>(12, 1, 1).array().abs() + 0.5;
    const matrix_d b = random(12, 2, 2);
    const otimes::sum_expr<double> product = otimes::kron_sum(A, B) * (kron(A, B) + 0.5 * otimes::identity());
    CHECK(near(matrix_d(product * otimes::KronPreconditioner<double>(product).solve(b)), b));
    const auto beside = d.asDiagonal() * kron(A, B) * d.asDiagonal();  // not a sum_expr: handed over as it is
    Eigen::ConjugateGradient<std::remove_const_t<decltype(beside)>, Eigen::Lower | Eigen::Upper,
                             otimes::KronPreconditioner<double>>
        cg(beside);
    CHECK(near(matrix_d(beside * cg.solve(b)), b));
    CHECK(cg.iterations() <= 2);
    // What is computed next takes the place of the parts.
    otimes::KronPreconditioner<double> p(product);
    p.compute(kron(A, B));
    CHECK(near(matrix_d(kron(A, B) * p.solve(b)), b));
}

TEST_CASE("a KronPreconditioner that could not be computed can be computed again, and says what it needs") {
    const matrix_d A = well_conditioned<double>(2, 1), B = well_conditioned<double>(3, 2);
    const vector_d b = random<vector_d>(6, 1, 3);
    otimes::KronPreconditioner<double> p;
    CHECK_THROWS_AS(p.compute(kron(matrix_d(matrix_d::Zero(2, 2)), B)), otimes::singular_error);
    p.compute(kron(A, B));
    CHECK(near(vector_d(kron(A, B) * p.solve(b)), b));
    CHECK_THROWS_AS(p.set(kron(matrix_d(matrix_d::Zero(2, 2)), B)), otimes::singular_error);
    p.compute(kron(B, A));
    CHECK(near(vector_d(kron(B, A) * p.solve(b)), b));
    // What fails leaves what there was.
    const otimes::sum_expr<double> singular = otimes::kron_sum(A, matrix_d(-A));
    CHECK_THROWS_AS(p.set(singular), otimes::singular_error);
    CHECK_THROWS_AS(p.compute(singular), otimes::singular_error);
    CHECK(near(vector_d(kron(B, A) * p.solve(b)), b));
    p.compute(otimes::sum_expr<double>(otimes::kron_sum(A, B)));
    CHECK(near(vector_d(otimes::kron_sum(A, B) * p.solve(b)), b));
    CHECK_THROWS_AS(p.compute(singular), otimes::singular_error);
    CHECK(near(vector_d(otimes::kron_sum(A, B) * p.solve(b)), b));
    const otimes::sum_expr<double> product = otimes::kron_sum(A, B) * otimes::kron_sum(A, B);
    const Eigen::SparseMatrix<double> W = random(6, 9, 4).sparseView();
    CHECK(support::text_of([&] {
              p.compute(W * otimes::kron_power(B, 2) * W.transpose());
          }).find("preconditioner().set(K)") != std::string::npos);
    CHECK(near(vector_d(otimes::kron_sum(A, B) * p.solve(b)), b));
    CHECK(support::text_of([&] { otimes::kron_sum_solver<double>{product}; }).find("S.solve(B)") != std::string::npos);
}

TEST_CASE_TEMPLATE("the nearest Kronecker product", Scalar, OTIMES_REAL_AND_COMPLEX(double)) {
    const auto B = random<matrix<Scalar>>(3, 2, 1);
    const auto C = random<matrix<Scalar>>(2, 4, 2);
    const matrix<Scalar> exact = kron(B, C).toDenseMatrix();
    CHECK(near(otimes::nearest_kron(exact, 3, 2).toDenseMatrix(), exact));
    const matrix<Scalar> noisy = exact + Scalar(0.05) * random<matrix<Scalar>>(6, 8, 3);
    const auto nearest = otimes::nearest_kron(noisy, 3, 2);
    // The error is that of the best rank-one matrix.
    matrix<Scalar> r(6, 8);
    for (Index i = 0; i < 6; ++i) {
        for (Index j = 0; j < 8; ++j) {
            r((i / 2) * 2 + j / 4, (i % 2) * 4 + j % 4) = noisy(i, j);
        }
    }
    const auto s = r.jacobiSvd().singularValues();
    const double best = s.tail(s.size() - 1).norm();
    CHECK((nearest.toDenseMatrix() - noisy).norm() == doctest::Approx(best).epsilon(1e-6));
    const Eigen::SparseMatrix<Scalar> sparse = noisy.sparseView();
    CHECK(near(otimes::nearest_kron(sparse, 3, 2).toDenseMatrix(), nearest.toDenseMatrix()));
}

TEST_CASE_TEMPLATE("the nearest Kronecker product is the nearest", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double, std::complex<float>)) {
    using real = typename Eigen::NumTraits<Scalar>::Real;
    const double rounding = std::numeric_limits<real>::epsilon();
    // The distance is that of the best matrix of rank one, as the SVD of the rearranged matrix has it; a may be scaled by a
    // power of two that squares of its elements do not survive.
    const auto check = [&](const matrix<Scalar>& a, Index rows, Index cols, int exponent = 0) {
        CAPTURE(rows);
        CAPTURE(cols);
        CAPTURE(exponent);
        const Index r = a.rows() / rows, c = a.cols() / cols;
        matrix<std::complex<double>> blocks(rows * cols, r * c);
        for (Index i = 0; i < a.rows(); ++i) {
            for (Index j = 0; j < a.cols(); ++j) {
                blocks(i / r + j / c * rows, i % r + j % c * r) = std::complex<double>(a(i, j));
            }
        }
        const Eigen::VectorXd s = blocks.jacobiSvd().singularValues();
        const double best = s.tail(s.size() - 1).norm();
        const matrix<Scalar> scaled = a * std::ldexp(real(1), exponent);
        Eigen::SparseMatrix<Scalar> sparse(a.rows(),
                                           a.cols());  // sparseView() drops complex numbers whose squares vanish
        for (Index j = 0; j < a.cols(); ++j) {
            for (Index i = 0; i < a.rows(); ++i) {
                if (scaled(i, j) != Scalar(0)) {
                    sparse.insert(i, j) = scaled(i, j);
                }
            }
        }
        const matrix<Scalar> dense =
            otimes::nearest_kron(scaled, rows, cols).toDenseMatrix() * std::ldexp(real(1), -exponent);
        const matrix<Scalar> of_sparse =
            otimes::nearest_kron(sparse, rows, cols).toDenseMatrix() * std::ldexp(real(1), -exponent);
        for (const matrix<Scalar>* k : {&dense, &of_sparse}) {
            const double distance = (*k - a).template cast<std::complex<double>>().norm();
            CHECK(std::abs(distance - best) <= 200 * rounding * s.norm());
        }
    };
    const auto zeros = [](Index rows, Index cols) { return matrix<Scalar>(matrix<Scalar>::Zero(rows, cols)); };
    const auto unit = [](Index n) { return matrix<Scalar>(matrix<Scalar>::Identity(n, n)); };
    const auto formed = [](const auto& f, const auto& g) { return matrix<Scalar>(kron(f, g).toDenseMatrix()); };
    // Every block is a multiple of I or of T: those of the diagonal, the largest, know nothing of T.
    for (const Index n : {2, 3, 5}) {
        matrix<Scalar> T = zeros(n, n);
        for (Index i = 0; i + 1 < n; ++i) {
            T(i, i + 1) = T(i + 1, i) = Scalar(-1);
        }
        const matrix<Scalar> laplace = formed(unit(n), unit(n)) * Scalar(1.2f) + formed(T, T);
        const int far = std::numeric_limits<real>::max_exponent * 5 / 8;
        for (const int exponent : {0, far, -far}) {
            check(laplace, n, n, exponent);
            check(formed(T, unit(n)) + formed(unit(n), T), n, n, exponent);  // two equal singular values
            check(random<matrix<Scalar>>(n * 2, n * 3, 5), n, 3, exponent);
        }
        const real most = (std::numeric_limits<real>::max)() / 2;
        const matrix<Scalar> large = matrix<Scalar>::Constant(n * n, n * n, most);
        CHECK(near(otimes::nearest_kron(large, n, n).toDenseMatrix() / most, matrix<Scalar>::Ones(n * n, n * n),
                   100 * rounding));
    }
    // Unit matrices in rearranged form: all singular values are equal, or some are.
    matrix<Scalar> swap = zeros(9, 9);
    for (Index i = 0; i < 9; ++i) {
        swap(i, i % 3 * 3 + i / 3) = Scalar(1);
    }
    check(swap, 3, 3);
    swap(0, 0) = Scalar(0);
    check(swap, 3, 3);
    swap(4, 4) = Scalar(2);
    check(swap, 3, 3);
    check(zeros(4, 6), 2, 3);
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        support::random_stream stream(seed);
        const auto rows = static_cast<Index>(stream.integer(1, 4)), cols = static_cast<Index>(stream.integer(1, 4));
        const auto r = static_cast<Index>(stream.integer(1, 5)), c = static_cast<Index>(stream.integer(1, 5));
        matrix<Scalar> a = random<matrix<Scalar>>(rows * r, cols * c, seed);
        check(a, rows, cols);
        // Mostly zeros, all of them of one size.
        for (Index k = 0; k < a.size(); ++k) {
            a.data()[k] = stream.integer(0, 3) == 0 ? Scalar(stream.integer(0, 1) == 0 ? 1 : -1) : Scalar(0);
        }
        check(a, rows, cols);
        // Two or three terms of orthogonal factors, of sizes that differ little.
        if (rows * cols >= 3 && r * c >= 3) {
            a = zeros(rows * r, cols * c);
            for (Index k = 0; k < 3; ++k) {
                matrix<Scalar> f = zeros(rows, cols), g = zeros(r, c);
                f.data()[k] = Scalar(static_cast<real>(1) + static_cast<real>(k) * real(0.01));
                g.data()[(k + 1) % 3] = Scalar(1);
                a += formed(f, g);
            }
            check(a, rows, cols);
        }
    }
    // More vectors than one space holds.
    check(random<matrix<Scalar>>(48, 48, 77), 6, 8);
    // Nothing is nearest to what is not finite.
    matrix<Scalar> infinite = unit(4);
    infinite(1, 2) = Scalar(std::numeric_limits<real>::infinity());
    CHECK(std::isnan(std::abs(otimes::nearest_kron(infinite, 2, 2).toDenseMatrix()(0, 0))));
    CHECK(otimes::nearest_kron(zeros(0, 4), 2, 2).rows() == 0);
}

TEST_CASE("errors of the algebra") {
    const matrix_d A = random(3, 3, 1), R = random(2, 3, 2);
    const matrix_d zero = matrix_d::Zero(2, 2);
    const auto message_of = [](const auto& f) {
        try {
            f();
        } catch (const otimes::error& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    CHECK_THROWS_AS((void)kron(A, zero).inverse(), otimes::singular_error);
    CHECK(message_of([&] { (void)kron(A, zero).solve(vector_d(vector_d::Ones(6))); }) ==
          "otimes: inverse: factor 2, 2 x 2, is singular to working precision. For the solution of least norm use "
          "pseudoInverse().");
    CHECK(message_of([&] { (void)kron(A, R).inverse(); }) ==
          "otimes: LU decomposition of kron(F1, F2), 6 x 9: factor 2 is 2 x 3; all factors must be square. For least "
          "squares use "
          "pseudoInverse().");
    CHECK(message_of([&] { (void)kron(A, R).determinant(); }) ==
          "otimes: determinant of kron(F1, F2), 6 x 9: the product must be square.");
    CHECK(message_of([&] { (void)kron(A, A).solve(vector_d(vector_d::Ones(6))); }) ==
          "otimes: solve with kron(F1, F2), 9 x 9: the right-hand side is 6 x 1. Its rows must equal those of the "
          "product.");
    CHECK_THROWS_AS((void)(kron(A, A) + kron(random(9, 9, 3))).solve(vector_d(vector_d::Ones(9))),
                    otimes::unsupported_error);
    const vector_d e = (vector_d(2) << 1, 0.5).finished(), f = (vector_d(2) << 3e-17, 1).finished();
    CHECK(message_of([&] {
              (void)(kron(matrix_d(e.asDiagonal()), f.asDiagonal()) + 0 * otimes::identity())
                  .solve(vector_d(vector_d::Ones(4)));
          }) ==
          "otimes: solve with a sum of Kronecker products: it is singular to working precision (its eigenvalues reach "
          "from 1.5e-17 to 1 in magnitude).");
    CHECK_THROWS_AS((void)otimes::sylvester(A, matrix_d(-A), A), otimes::singular_error);
    matrix_d turning(2, 2);  // its eigenvalues are i and -i
    turning << 0, 1, -1, 0;
    CHECK(support::text_of([&] { static_cast<void>(otimes::lyapunov(turning, turning)); }) ==
          "otimes: lyapunov(A, Q): A and -A^H have a common eigenvalue to working precision, so there is no unique X.");
    CHECK_THROWS_AS((void)otimes::nearest_kron(A, 2, 3), otimes::shape_error);
    CHECK_THROWS_AS((void)kron(A, R).trace(), otimes::shape_error);
}

TEST_CASE("sums are solved with wherever one term's factors split like all others'") {
    const matrix_d H = positive<double>(3, 90), B = positive<double>(2, 91), two = 2 * matrix_d::Ones(1, 1);
    const auto check = [](const otimes::sum_expr<double>& S) {
        const vector_d b = vector_d::LinSpaced(S.rows(), 1, 2);
        CHECK(distance(S * S.solve(b), b) <= 1e-12 * b.norm());
    };
    check(kron(H, two) + 0.5 * otimes::identity());
    check(kron(otimes::identity(1), H, otimes::identity(1)) + 0.5 * otimes::identity());
    check(kron(H, two, B) + kron(otimes::identity(3), B));
    check(otimes::kron_sum(H, kron(B, H)));  // kron(H, I) + kron(I, B, H): the first term splits like the second
}

TEST_CASE("the algebra of empty matrices") {
    const matrix_d none(0, 0), wide(0, 3), H = positive<double>(3, 90), B = well_conditioned<double>(4, 91);
    const matrix_d nothing(0, 2);
    CHECK(kron(none, B).solve(nothing).cols() == 2);
    CHECK(kron(none, B).determinant() == 1);
    CHECK(kron(none, B).logAbsDeterminant() == 0);
    CHECK(kron(matrix_d(0, 2), matrix_d(2, 0)).determinant() == 1);  // 0 x 0, of factors that are not square
    CHECK(kron(matrix_d(0, 2), matrix_d(2, 0)).logAbsDeterminant() == 0);
    CHECK(otimes::kron_sum(none, B).solve(nothing).cols() == 2);  // B is not self-adjoint
    CHECK((kron(none, H) + 2 * otimes::identity()).solve(nothing).rows() == 0);
    CHECK(kron(wide, B).rank() == 0);
    CHECK(kron(wide, B).operatorNorm() == 0);
    CHECK(kron(wide, B).singularValues().size() == 0);
    CHECK(kron(wide, H).conditionNumber() == 1);
    CHECK(kron(wide, B).solve(nothing).norm() == 0);
    CHECK(otimes::kron_svd<double>(kron(wide, B)).solve(nothing) == matrix_d::Zero(12, 2));
    CHECK(otimes::kron_llt<double>(kron(none, H)).logAbsDeterminant() == 0);
    CHECK(otimes::kron_self_adjoint_eigen<double>(kron(none, H)).eigenvalues().size() == 0);
    CHECK(otimes::kron_qr<double>(kron(matrix_d(3, 0), B)).solve(matrix_d::Ones(12, 2)).rows() == 0);
}

TEST_CASE("a scalar that is not real makes a kron of self-adjoint factors another one") {
    const auto K = std::complex<double>(1, 1) * kron(positive<double>(2, 92), positive<double>(3, 93));
    CHECK_THROWS_AS(otimes::kron_llt<std::complex<double>>(std::as_const(K)), otimes::singular_error);
    CHECK_THROWS_AS(otimes::kron_self_adjoint_eigen<std::complex<double>>(std::as_const(K)), otimes::unsupported_error);
}

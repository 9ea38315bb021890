// SPDX-License-Identifier: MIT
// Row-wise products as operators: their products with each other, plus s * identity(), beside krons, without a matrix of all features.
#include <doctest/doctest.h>

#include <complex>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::face_split;
using otimes::khatri_rao;
using otimes::kron;

namespace {

// Row by row, with plain loops.
template <class Scalar, class... Rest>
matrix<Scalar> split_of(const matrix<Scalar>& first, const Rest&... rest) {
    matrix<Scalar> result = first;
    const auto with = [&result](const matrix<Scalar>& f) {
        matrix<Scalar> next(result.rows(), result.cols() * f.cols());
        for (Index i = 0; i < next.rows(); ++i) {
            for (Index a = 0; a < result.cols(); ++a) {
                for (Index b = 0; b < f.cols(); ++b) next(i, a * f.cols() + b) = result(i, a) * f(i, b);
            }
        }
        result = next;
    };
    (with(rest), ...);
    return result;
}

template <class Scalar>
bool near_matrix(const matrix<Scalar>& got, const matrix<Scalar>& want) {
    const auto tolerance = static_cast<real_of<Scalar>>(2000) * std::numeric_limits<real_of<Scalar>>::epsilon();
    return got.rows() == want.rows() && got.cols() == want.cols() &&
           distance(got, want) <= tolerance * (real_of<Scalar>(1) + want.norm());
}
template <class Scalar, class Got, class Want>
bool near(const Got& got, const Want& want) {
    return near_matrix<Scalar>(evaluated_as<Scalar>::of(got), evaluated_as<Scalar>::of(want));
}

// Everything that an operator does, against the matrix that it is.
template <class Scalar, class Operator>
void check_operator(const Operator& op, const matrix<Scalar>& want) {
    REQUIRE(op.rows() == want.rows());
    REQUIRE(op.cols() == want.cols());
    for (const Index c : {Index(1), Index(5), Index(67)}) {
        const auto X = random<matrix<Scalar>>(want.cols(), c, 7);
        const auto Z = random<row_major<Scalar>>(c, want.rows(), 8);
        auto Y = poisoned<matrix<Scalar>>(want.rows(), c);
        Y = op * X;
        CHECK(near<Scalar>(Y, want * X));
        Y.noalias() -= Scalar(2) * (op * X);
        CHECK(near<Scalar>(Y, -(want * X)));
        auto R = poisoned<row_major<Scalar>>(c, want.cols());
        R = Z * op;
        CHECK(near<Scalar>(R, Z * want));
        R = Z * op.conjugate();
        CHECK(near<Scalar>(R, Z * want.conjugate()));
        auto T = poisoned<row_major<Scalar>>(want.cols(), c);
        T = op.adjoint() * Z.transpose();
        CHECK(near<Scalar>(T, want.adjoint() * Z.transpose()));
        T = op.transpose() * Z.transpose();
        CHECK(near<Scalar>(T, want.transpose() * Z.transpose()));
    }
    CHECK(near<Scalar>(op.toDenseMatrix(), want));
    CHECK(near<Scalar>(matrix<Scalar>(op.diagonal()), matrix<Scalar>(want.diagonal())));
    CHECK(near<Scalar>(matrix<Scalar>(op.adjoint().diagonal()), matrix<Scalar>(want.adjoint().diagonal())));
    CHECK(std::abs(op(1, 0) - want(1, 0)) <= real_of<Scalar>(1e-3));
}
template <class Scalar, class Operator, class Want>
void check(const Operator& op, const Want& want) {
    check_operator<Scalar>(op, evaluated_as<Scalar>::of(want));
}

}  // namespace

TEST_CASE_TEMPLATE("Gram operators of row-wise products, shifted", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, std::complex<float>, double)) {
    const auto A = random<matrix<Scalar>>(9, 3, 1), B = random<matrix<Scalar>>(9, 4, 2),
               C = random<matrix<Scalar>>(9, 2, 3);
    const auto D = random<matrix<Scalar>>(9, 5, 4);
    const Scalar s(real_of<Scalar>(0.5));
    const matrix<Scalar> f = split_of<Scalar>(A, B), g = split_of<Scalar>(A, B, C);  // 9 x 12, 9 x 24
    const matrix<Scalar> one9 = matrix<Scalar>::Identity(9, 9), one12 = matrix<Scalar>::Identity(12, 12);
    const vector<Scalar> w = random<vector<Scalar>>(9, 1, 5), d = random<vector<Scalar>>(12, 1, 6);
    const auto F = face_split(A, B);
    // features against features
    check<Scalar>(F.transpose() * F + s * otimes::identity(), f.transpose() * f + s * one12);
    check<Scalar>(F.adjoint() * F + d.asDiagonal(), f.adjoint() * f + matrix<Scalar>(d.asDiagonal()));
    check<Scalar>(s * otimes::identity(12) - F.transpose() * (w.asDiagonal() * F),
                  s * one12 - f.transpose() * w.asDiagonal() * f);
    const matrix<Scalar> At = A.transpose(), Bt = B.transpose();
    const auto R = khatri_rao(At, Bt);
    check<Scalar>(R * w.asDiagonal() * R.transpose() + s * otimes::identity(),
                  f.transpose() * w.asDiagonal() * f + s * one12);
    // kernels of samples
    check<Scalar>(F * F.adjoint() + s * otimes::identity(), f * f.adjoint() + s * one9);
    check<Scalar>(face_split(A, B, C) * face_split(A, B, C).transpose() - w.asDiagonal(),
                  g * g.transpose() - matrix<Scalar>(w.asDiagonal()));
    check<Scalar>(
        F * F.transpose() + Scalar(3) * (face_split(C, D) * face_split(C, D).transpose()) + s * otimes::identity(),
        f * f.transpose() + Scalar(3) * (split_of<Scalar>(C, D) * split_of<Scalar>(C, D).transpose()) + s * one9);
    // factors that do not meet one by one: (9 x (3 4)) * ((4 3) x 9)
    check<Scalar>(F * face_split(B, A).transpose() + s * otimes::identity(),
                  f * split_of<Scalar>(B, A).transpose() + s * one9);
    // a kron between, and beside
    const auto P = random<matrix<Scalar>>(3, 3, 9), Q = random<matrix<Scalar>>(4, 4, 10);
    const matrix<Scalar> k = kron(P, Q).toDenseMatrix();
    check<Scalar>(F * kron(P, Q) * F.adjoint() + s * otimes::identity(), f * k * f.adjoint() + s * one9);
    check<Scalar>(F.transpose() * F + kron(P, Q), f.transpose() * f + k);
    check<Scalar>(kron(P, Q) - F.transpose() * F + otimes::identity(), k - f.transpose() * f + one12);
    check<Scalar>(F * kron(P, Q) + F, f * k + f);
    const Eigen::SparseMatrix<Scalar> W = random<matrix<Scalar>>(5, 9, 11).sparseView();
    check<Scalar>(W * F - Scalar(2) * (W * F), -(matrix<Scalar>(W) * f));
    check<Scalar>(
        kron(P, Q)(std::vector<int>{0, 5, 7}, std::vector<int>{1, 11, 4}) +
            face_split(matrix<Scalar>(A.topRows(3)), matrix<Scalar>(B.topRows(3))) *
                face_split(matrix<Scalar>(A.middleRows(3, 3)), matrix<Scalar>(B.middleRows(3, 3))).transpose(),
        matrix<Scalar>(k(std::vector<int>{0, 5, 7}, std::vector<int>{1, 11, 4})) +
            f.topRows(3) * f.middleRows(3, 3).transpose());
    otimes::sum_expr<Scalar> grows = F.transpose() * F;
    grows += s * otimes::identity();
    check<Scalar>(grows, f.transpose() * f + s * one12);
}

TEST_CASE("products of row-wise products as matrices, applied and by entries") {
    const matrix_d A = random(9, 3, 21), B = random(9, 4, 22), C = random(7, 3, 23), D = random(7, 4, 24);
    const matrix_d f = split_of<double>(A, B), g = split_of<double>(C, D), fg = f * g.transpose();
    const auto pair = face_split(A, B) * khatri_rao(C.transpose(), D.transpose());  // 9 x 7
    const matrix_d X = random(7, 3, 25);
    matrix_d Y = poisoned(2, 2);
    Y = pair;
    CHECK(near<double>(Y, fg));
    Y += 2 * pair;
    CHECK(near<double>(Y, 3 * fg));
    Y.noalias() -= pair / 2;
    CHECK(near<double>(Y, 2.5 * fg));
    row_major_d R = Y - pair;
    CHECK(near<double>(R, 1.5 * fg));
    CHECK(near<double>((pair * X).eval(), fg * X));
    CHECK(near<double>((X.transpose() * pair.transpose()).eval(), X.transpose() * fg.transpose()));
    CHECK(near<double>((random(3, 9, 26) * pair).eval(), random(3, 9, 26) * fg));
    CHECK(std::abs(pair(8, 6) - fg(8, 6)) < 1e-13);
    CHECK(pair.sum() == doctest::Approx(fg.sum()));
    CHECK(pair.cwiseAbs().maxCoeff() == doctest::Approx(fg.cwiseAbs().maxCoeff()));
    CHECK(pair.squaredNorm() == doctest::Approx(fg.squaredNorm()));
    CHECK(near<double>((-pair + pair - 2.0 * pair).eval(), -2 * fg));
    const auto gram = face_split(A, B) * face_split(A, B).transpose();
    CHECK(near<double>((gram * gram).eval(), f * f.transpose() * f * f.transpose()));
    CHECK(near<double>((gram + matrix_d::Identity(9, 9)).eval(), f * f.transpose() + matrix_d::Identity(9, 9)));
    matrix_d Z = random(9, 9, 27);
    const matrix_d z = Z;
    Z = gram * Z;
    CHECK(near<double>(Z, f * f.transpose() * z));

    // In the other order it is applied, and no matrix.
    const auto features = face_split(A, B).transpose() * face_split(A, B);
    const matrix_d V = random(12, 2, 28);
    CHECK(near<double>((features * V).eval(), f.transpose() * f * V));
    CHECK(near<double>((V.transpose() * features).eval(), V.transpose() * f.transpose() * f));
    CHECK(std::abs(features(11, 3) - (f.transpose() * f)(11, 3)) < 1e-13);
    Y = matrix_d::Constant(2, 2, 7.0);
    CHECK_THROWS_AS(Y = features, otimes::unsupported_error);
    CHECK_THROWS_AS(Y = face_split(A, B) * face_split(B, A).transpose(), otimes::unsupported_error);
    CHECK_THROWS_AS(Y = features + matrix_d::Identity(12, 12), otimes::unsupported_error);
    CHECK(Y == matrix_d::Constant(2, 2, 7.0));
    CHECK_THROWS_AS((void)(face_split(A, B) * face_split(C, D)), otimes::shape_error);
    CHECK_THROWS_AS((void)(features * X), otimes::shape_error);
    CHECK_THROWS_AS((void)(X * features), otimes::shape_error);
    CHECK_THROWS_AS((void)(features + gram), otimes::shape_error);
    CHECK_THROWS_AS((void)(features + otimes::identity(9)), otimes::shape_error);
    CHECK_THROWS_AS((void)(pair + otimes::identity()), otimes::shape_error);
    CHECK_THROWS_AS((void)pair(9, 0), otimes::shape_error);
    const auto F = face_split(A, B);
    CHECK(F(8, 7) == f(8, 7));
    CHECK(F.transpose()(11, 3) == f(3, 11));
    CHECK(F.coeff(0, 11) == f(0, 11));
    CHECK(support::text_of([&] { (void)F(9, 0); }) == "otimes: face_split(9, 0): the product is 9 x 12.");
    CHECK_THROWS_AS((void)F.transpose()(0, -1), otimes::shape_error);
    CHECK_THROWS_AS((void)pair(0, -1), otimes::shape_error);
}

TEST_CASE("row-wise products shifted by Eigen's identity stay what they are") {
    const matrix_d A = random(9, 3, 21), B = random(9, 4, 22), C = random(9, 2, 23), X = random(12, 2, 24);
    const matrix_d f = split_of<double>(A, B), g = split_of<double>(C, B);
    const matrix_d ff = f.transpose() * f, gram = f * f.transpose(), one = matrix_d::Identity(12, 12);
    const auto F = face_split(A, B), G = face_split(C, B);
    const auto I = [](Index n) { return matrix_d::Identity(n, n); };
    const double s = 0.3;
    // features against features: an operator
    const auto applied = [&](const auto& op, const matrix_d& want) {
        matrix_d Y = poisoned(12, 2);
        Y.noalias() = op * X;
        CHECK(near<double>(Y, want * X));
        row_major_d Z = poisoned<row_major_d>(2, 12);
        Z = X.transpose() * op;
        CHECK(near<double>(Z, X.transpose() * want));
        CHECK(std::abs(op(7, 7) - want(7, 7)) < 1e-13);
        CHECK(std::abs(op(11, 3) - want(11, 3)) < 1e-13);
        check<double>(otimes::sum_expr<double>(op), want);
    };
    applied(F.transpose() * F + s * I(12), ff + s * one);
    applied(I(12) * s - F.transpose() * F, s * one - ff);
    applied(F.transpose() * F - I(12) / 4, ff - one / 4);
    applied(I(12) + F.transpose() * F, ff + one);
    applied(2.0 * (F.transpose() * F + 2.0 * (s * I(12))) / 4.0, (ff + 2 * s * one) / 2);
    applied((F.transpose() * F + I(12)) - (2 * (F.transpose() * F) - s * I(12)), (1 + s) * one - ff);
    applied(-F.transpose() * F + Eigen::Matrix<double, 12, 12>::Identity(), one - ff);
    // with other operators as without the shift
    const matrix_d P = random(3, 3, 25), Q = random(4, 4, 26), k = kron(P, Q).toDenseMatrix();
    check<double>(F.transpose() * F + s * I(12) + kron(P, Q), ff + s * one + k);
    check<double>(kron(P, Q) - (F.transpose() * F + s * I(12)), k - ff - s * one);
    check<double>(F.transpose() * F + s * I(12) + otimes::identity(), ff + (s + 1) * one);
    check<double>((F.transpose() * F + kron(P, Q)) + s * I(12), ff + k + s * one);
    // kernels of samples: a matrix as well
    matrix_d Y = poisoned(2, 2);
    Y = F * F.transpose() + s * I(9);
    CHECK(near<double>(Y, gram + s * I(9)));
    Y -= 2 * (G * G.transpose() + F * F.transpose() - s * I(9));
    CHECK(near<double>(Y, -gram - 2 * g * g.transpose() + 3 * s * I(9)));
    CHECK(near<double>((Y + (F * F.transpose() + I(9))).eval(), Y + gram + I(9)));
    const matrix_d v = random(9, 2, 27);
    CHECK(near<double>(((F * F.transpose() + s * I(9)) * v).eval(), gram * v + s * v));
    // real beside complex
    using complex = std::complex<double>;
    const auto Z = random<matrix<complex>>(12, 2, 28);
    const complex i(0.5, 1);
    CHECK(near<complex>(((F.transpose() * F + i * matrix<complex>::Identity(12, 12)) * Z).eval(), ff * Z + i * Z));
    CHECK(near<complex>(((F.transpose() * F + s * I(12)) * Z).eval(), ff * Z + s * Z));
    // transposed, conjugated
    const auto FB = F.transpose() * (C.col(0).asDiagonal() * F) - s * I(12), mixed = F.transpose() * face_split(B, A);
    const matrix_d fb = f.transpose() * C.col(0).asDiagonal() * f - s * one,
                   fm = f.transpose() * split_of<double>(B, A);
    applied(FB.transpose(), fb.transpose());
    applied(mixed.transpose(), fm.transpose());
    applied((2 * mixed).adjoint().conjugate(), 2 * fm.transpose());
    CHECK(near<double>(mixed.toDenseMatrix(), fm));
    CHECK(near<double>((F * F.transpose()).transpose().eval(), gram.transpose()));
    const auto Zf = random<matrix<complex>>(9, 3, 29);
    const matrix<complex> zf = split_of<complex>(Zf, matrix<complex>(B));
    const auto skew = i * (face_split(Zf, B).transpose() * F) + i * matrix<complex>::Identity(12, 12);
    const matrix<complex> skewed = i * (zf.transpose() * f) + i * matrix<complex>::Identity(12, 12);
    CHECK(near<complex>((skew.adjoint() * Z).eval(), skewed.adjoint() * Z));
    CHECK(near<complex>((skew.conjugate() * Z).eval(), skewed.conjugate() * Z));
    CHECK(near<complex>((skew.transpose() * Z).eval(), skewed.transpose() * Z));
    // shapes
    CHECK_THROWS_AS((void)(F.transpose() * F + s * I(9)), otimes::shape_error);
    CHECK_THROWS_AS((void)(F * F.transpose() - I(12)), otimes::shape_error);
    CHECK_THROWS_AS((void)(I(9) + F * face_split(A.topRows(7), B.topRows(7)).transpose()), otimes::shape_error);
    CHECK(support::text_of([&] { (void)(F * F.transpose() + matrix_d::Identity(9, 8)); }) ==
          "otimes: operator + s * Identity(m, n): the identity is 9 x 8; only a square one shifts an operator.");
    CHECK_THROWS_AS((void)(kron(P, Q) + 2 * matrix_d::Identity(12, 11)), otimes::shape_error);
}

TEST_CASE("real row-wise products beside complex shifts, and complex X") {
    using complex = std::complex<double>;
    const matrix_d A = random(6, 3, 31), B = random(6, 2, 32), f = split_of<double>(A, B);
    const auto X = random<matrix<complex>>(6, 3, 33);
    const complex i(0, 1);
    const auto F = face_split(A, B);
    CHECK(near<complex>((F.transpose() * F + i * otimes::identity()) * X,
                        (f.transpose() * f + i * matrix<complex>::Identity(6, 6)) * X));
    CHECK(near<complex>((F * F.transpose()) * X, f * f.transpose() * X));
    CHECK(near<complex>((i * (F * F.transpose())) * X, i * (f * f.transpose() * X)));
    const auto C = random<matrix<complex>>(6, 3, 34);
    const matrix<complex> g = split_of<complex>(C, matrix<complex>(B));
    CHECK(near<complex>((face_split(C, B).adjoint() * F + otimes::identity()) * X,
                        (g.adjoint() * f + matrix<complex>::Identity(6, 6)) * X));
}

TEST_CASE_TEMPLATE("entries and norms of features against features, of unequally many factors", Scalar,
                   OTIMES_REAL_AND_COMPLEX(double)) {
    using Matrix = matrix<Scalar>;
    const auto A = random<Matrix>(40, 2, 51), B = random<Matrix>(40, 3, 52), C = random<Matrix>(40, 4, 53);
    const auto D = random<Matrix>(40, 6, 54);
    const Matrix f = split_of<Scalar>(A, B, C), g = split_of<Scalar>(D, C);  // 40 x 24
    const auto F = face_split(A, B, C), G = face_split(D, C);
    const auto pair = F.adjoint() * G;
    const Matrix fg = f.adjoint() * g;
    for (const Index i : {0, 7, 23}) {
        for (const Index j : {0, 13, 23}) CHECK(std::abs(pair(i, j) - fg(i, j)) < 1e-12);
    }
    const otimes::sum_expr<Scalar> S = pair + Scalar(2) * otimes::identity();
    const Matrix s = fg + Scalar(2) * Matrix::Identity(24, 24);
    CHECK(S.norm() == doctest::Approx(s.norm()));
    CHECK(near<Scalar>(S.diagonal(), s.diagonal()));
}

TEST_CASE("Gram operators form neither the features nor the kernel; they outlive their matrices") {
    otimes::sum_expr<double> features, kernel;
    matrix_d f;
    {
        auto A = std::make_unique<matrix_d>(random(300, 20, 41));
        const matrix_d B = random(300, 25, 42);
        f = split_of<double>(*A, B);  // 300 x 500
        const auto F = face_split(*A, B);
        features = F.transpose() * F + 0.5 * otimes::identity();
        kernel = F * F.transpose() + 0.5 * otimes::identity();
        A->setConstant(9);
    }
    const matrix_d v = random(500, 1, 43), u = random(300, 1, 44);
    matrix_d y = poisoned(500, 1), z = poisoned(300, 1);
    y.noalias() = features * v;  // planned
    z.noalias() = kernel * u;
    const support::allocation_counter counter;
    y.noalias() = features * v;
    z.noalias() = kernel * u;
    const auto seen = counter.seen();
    if (support::allocations_are_counted()) CHECK(seen.largest_bytes <= 1000 * sizeof(double));
    CHECK(near<double>(y, f.transpose() * (f * v) + 0.5 * v));
    CHECK(near<double>(z, f * (f.transpose() * u) + 0.5 * u));
    const support::allocation_counter again;
    const vector_d d = features.diagonal(), e = kernel.diagonal();
    const auto of_diagonals = again.seen();
    if (support::allocations_are_counted()) CHECK(of_diagonals.largest_bytes <= 1000 * sizeof(double));
    CHECK(near<double>(d, (f.transpose() * f).diagonal() + vector_d::Constant(500, 0.5)));
    CHECK(near<double>(e, (f * f.transpose()).diagonal() + vector_d::Constant(300, 0.5)));

    // Many features, few samples: rows of the kernel at a time, no vector of 10^6 features.
    const matrix_d P = random(20, 1000, 45), Q = random(20, 1000, 46), x = random(20, 1, 47);
    const auto wide = face_split(P, Q) * face_split(P, Q).transpose() + otimes::identity();
    matrix_d w = poisoned(20, 1);
    w.noalias() = wide * x;
    const support::allocation_counter third;
    w.noalias() = wide * x;
    const auto of_wide = third.seen();
    if (support::allocations_are_counted()) CHECK(of_wide.largest_bytes <= 4096);
    CHECK(near<double>(w, (P * P.transpose()).cwiseProduct(Q * Q.transpose()) * x + x));
}

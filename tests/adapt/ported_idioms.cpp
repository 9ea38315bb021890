// SPDX-License-Identifier: MIT
// What users of other systems write: factors that Eigen computes late, selections counted from the end, the steps of alternating least squares with
// khatri_rao, weighted bases, log-densities of Gaussian processes. Against the oracle and plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/Cholesky>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SparseCore>
#include <otimes/algebra.hpp>
#include <unsupported/Eigen/KroneckerProduct>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"
#include "support/thrown.hpp"

using namespace adapt;
using otimes::face_split;
using otimes::khatri_rao;
using otimes::kron;

namespace {

// Row i: the products of A(i, j) and B(i, k), k fastest.
template <class Scalar>
matrix<Scalar> row_by_row(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    matrix<Scalar> result(a.rows(), a.cols() * b.cols());
    for (Index i = 0; i < a.rows(); ++i) {
        for (Index j = 0; j < result.cols(); ++j) {
            result(i, j) = a(i, j / b.cols()) * b(i, j % b.cols());
        }
    }
    return result;
}

using support::text_of;

// A list of indices without memory: begin, begin + 1, .., `count` of them.
struct counted_from {
    std::int64_t begin;
    std::int64_t count;
    std::int64_t size() const { return count; }
    std::int64_t operator[](std::int64_t i) const { return begin + i; }
};

}  // namespace

TEST_CASE("factors and operands that Eigen computes when they are assigned") {
    const matrix_d A = random(2, 3, 1), B = random(3, 2, 2), X = random(2, 18, 3);
    const matrix_d C = random(3, 3, 4);
    const auto formed = dense_kron(A, B, C);
    // Eigen's own product as a factor, and as an operand
    const matrix_d Y = X * kron(Eigen::kroneckerProduct(A, B), C);
    CHECK(support::close(Y, times(X, formed), 60));
    const matrix_d Z = kron(B, A) * Eigen::kroneckerProduct(A, B);
    CHECK(support::close(Z, times(dense_kron(B, A), dense_kron(A, B)), 20));
    const matrix_d ab = Eigen::kroneckerProduct(A, B), U = random(6, 6, 31);
    const double d = otimes::dot(Eigen::kroneckerProduct(A, B), U * kron(A, B));  // its scalar type is private
    CHECK(std::abs(d - ab.cwiseProduct(U * ab).sum()) < 1e-11);
    // a null space, whose traits are at its base alone
    matrix_d low(2, 4);
    low.setZero();
    low(0, 1) = 2;
    low(1, 3) = -1;
    const matrix_d kernel = low.fullPivLu().kernel();
    const matrix_d N = kron(low.fullPivLu().kernel(), B).toDenseMatrix();
    CHECK(support::close(N, dense_kron(kernel, B), 2));
    // the orthogonal factor of a QR decomposition
    const auto qr = C.householderQr();
    const matrix_d Q = qr.householderQ();
    CHECK(support::close(kron(qr.householderQ(), B).toDenseMatrix(), dense_kron(Q, B), 2));
    CHECK(support::close(kron(A, qr.householderQ().transpose()).toDenseMatrix(), dense_kron(A, matrix_d(Q.transpose())),
                         2));
    const matrix_d G = random(Q.rows(), 3, 31);
    const matrix_d R = random(1, 2, 32);
    const auto gr = dense_kron(G, R);
    CHECK(support::close((qr.householderQ() * kron(G, R)).toDenseMatrix(), times(Q, gr), 20));
    CHECK(support::close((kron(G, R).transpose() * qr.householderQ()).toDenseMatrix(),
                         times(dense_kron(matrix_d(G.transpose()), matrix_d(R.transpose())), Q), 20));
    const matrix_d V = random(6, 2, 33);
    const matrix_d QKV = qr.householderQ().transpose() * kron(G, R) * V;
    CHECK(support::close(QKV, times(matrix_d(Q.transpose()), times(gr, V)), 40));
}

TEST_CASE("references as factors are borrowed") {
    matrix_d A = random(2, 3, 1), B = random(4, 2, 2);
    const std::vector<std::reference_wrapper<const matrix_d>> list{A, B, A};
    const auto K = kron(list);
    const auto L = kron(std::vector<std::reference_wrapper<const matrix_d>>{A, B});
    const auto M = kron(std::cref(A), B);
    A(1, 2) = 7;
    CHECK(support::close(K.toDenseMatrix(), dense_kron(A, B, A), 3));
    CHECK(support::close(L.toDenseMatrix(), dense_kron(A, B), 2));
    CHECK(support::close(M.toDenseMatrix(), dense_kron(A, B), 2));
}

TEST_CASE("selections that are counted from the end") {
    using namespace Eigen::indexing;
    const matrix_d A = random(2, 3, 1), B = random(3, 2, 2);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    const auto same = [](const auto& selection, const matrix_d& want) {
        CHECK(support::exactly_equal(selection.toDenseMatrix(), want));
    };
    same(K(seq(2, last), seq(1, last - 1)), k.block(2, 1, 4, 4));
    same(K(all, lastN(2)), k.rightCols(2));
    same(K(lastN(3), all), k.bottomRows(3));
    same(K(seq(last, 0, fix<-2>), seqN(1, 2)), k(seq(last, 0, fix<-2>), seqN(1, 2)));
    same(K(last, seqN(0, 3)), k.row(5).head(3));
    same(K({0, 4}, last), k(std::vector<int>{0, 4}, std::vector<int>{5}));
    CHECK(K(last, last - 2) == k(5, 3));
    CHECK(K(last, 1) == k(5, 1));
    CHECK(text_of([&] { static_cast<void>(K(lastN(7), all)); }) ==
          "otimes: K(rows, cols): row -1 is outside the product, which is 6 x 6.");
    // as functions, of any list
    const std::vector<int> rows{4, 0}, cols{1, 1, 5};
    same(otimes::selected(K, rows, cols), k(rows, cols));
    same(otimes::selected_rows(K, rows), k(rows, all));
    same(otimes::selected_columns(K, lastN(2)), k.rightCols(2));
    same(otimes::selected_rows(K, {4, 0}), k(rows, all));
}

TEST_CASE("sequences that reach outside are refused before memory is taken") {
    using namespace Eigen::indexing;
    const matrix_d A = random(2, 3, 1), B = random(3, 5, 2);
    const auto K = kron(A, B);
    const std::int64_t huge = std::int64_t(1) << 40;
    const support::allocation_size_limit at_most(1 << 20);
    const auto text = [](const auto& select) { return text_of([&] { static_cast<void>(select()); }); };
    const auto outside = [](const std::string& what) {
        return "otimes: K(rows, cols): " + what + " is outside the product, which is 6 x 15.";
    };
    const auto negative = [](const std::string& what) {
        return "otimes: K(rows, cols): a sequence of " + what + "; the product is 6 x 15.";
    };
    CHECK(text([&] { return K(seqN(0, -2), all); }) == negative("-2 rows"));
    CHECK(text([&] { return K(all, seqN(0, -1)); }) == negative("-1 columns"));
    CHECK(text([&] { return K(seq(5, 2), seqN(1, 2)); }) == negative("-2 rows"));
    CHECK(text([&] { return K(1, lastN(-3)); }) == negative("-3 columns"));
    CHECK(text([&] { return K(seqN(0, huge), all); }) == outside("row 1099511627775"));
    CHECK(text([&] { return K(all, seqN(3, huge, -1)); }) == outside("column -1099511627772"));
    CHECK(text([&] { return K(lastN(huge), all); }) == outside("row -1099511627770"));
    CHECK(text([&] { return K(seqN(2, huge, huge), all); }) == outside("row 9223372036854775807"));
    CHECK(text([&] { return K(seqN(2, huge, -huge), all); }) == outside("row -9223372036854775805"));
    CHECK(text([&] { return K(seqN(0, std::numeric_limits<std::int64_t>::max(), 0), all); }) ==
          negative("9223372036854775807 rows"));
    CHECK(text([&] { return K(seqN(0, 3, -1), all); }) == outside("row -2"));
    CHECK(text([&] { return K(seqN(0, 3, 3), all); }) == outside("row 6"));
    CHECK(text([&] { return K(seq(1, last + 1), all); }) == outside("row 6"));
    CHECK(text([&] { return K(last + 2, all); }) == outside("row 7"));
    CHECK(text([&] { return K(all, -1); }) == outside("column -1"));
    CHECK(text([&] { return otimes::selected_rows(K, seqN(0, huge)); }) == outside("row 1099511627775"));
    CHECK(text([&] { return otimes::selected(K, 1, seqN(0, -2)); }) == negative("-2 columns"));
    // lists whose elements are computed; of a list in memory the first one is named
    CHECK(text([&] { return K(counted_from{2, huge}, all); }) == outside("row 6"));
    CHECK(text([&] { return K(all, Eigen::VectorXi::LinSpaced(40, 0, 39)); }) == outside("column 15"));
    CHECK(text([&] { return K(std::vector<std::size_t>{1, 0, std::size_t(-1), 9}, all); }) == outside("row -1"));

    const matrix_d k = K.toDenseMatrix();
    const auto same = [](const auto& selection, const matrix_d& want) {
        CHECK(support::exactly_equal(selection.toDenseMatrix(), want));
    };
    same(K(seqN(last, 3, -2), seq(last, 0, -4)), k(seqN(last, 3, -2), seq(last, 0, -4)));
    same(K(seqN(4, 2, -4), seqN(3, 5, 0)), k(seqN(4, 2, -4), seqN(3, 5, 0)));
    same(K(seqN(3, fix<2>), lastN(fix<2>, fix<3>)), k(seqN(3, fix<2>), lastN(fix<2>, fix<3>)));
    same(K(counted_from{2, 3}, Eigen::VectorXi::LinSpaced(3, 1, 3)), k.block(2, 1, 3, 3));
    same(K(seqN(0, 0), all), k.topRows(0));
    same(K(seq(0, -1), all), k.topRows(0));
    same(K(all, seqN(15, 0)), k.leftCols(0));
    same(kron(A, matrix_d(0, 2))(seq(0, last), seqN(2, 3)), matrix_d(0, 3));
}

TEST_CASE_TEMPLATE("alternating least squares: khatri_rao, its Gram matrix, weights, lists of factors", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, double, std::complex<float>)) {
    using dense = matrix<Scalar>;
    const auto A = random<dense>(5, 2, 1), B = random<dense>(3, 2, 2), C = random<dense>(4, 2, 3);
    const auto X = random<dense>(5, 12, 4);
    const dense kr = row_by_row<Scalar>(B.transpose(), C.transpose()).transpose();
    const auto R = khatri_rao(B, C);
    CHECK(support::close(dense(R.adjoint() * R), times(dense(kr.adjoint()), kr), 40));
    const vector<Scalar> w = random<dense>(2, 1, 5);
    const dense weighted = A * w.asDiagonal() * kr.transpose();
    CHECK(support::close(dense(A * (R * w.asDiagonal()).transpose()), as_oracle(weighted), 40));
    CHECK(support::close(dense(X * (R * w.asDiagonal())), times(X, dense(kr * w.asDiagonal())), 40));
    CHECK(support::close(dense((w.asDiagonal() * R.transpose()) * X.transpose()),
                         times(dense(w.asDiagonal() * kr.transpose()), dense(X.transpose())), 40));
    // the number of factors known at run time
    const std::vector<dense> list{A, B, C};
    const dense all = row_by_row<Scalar>(row_by_row<Scalar>(A.transpose(), B.transpose()), C.transpose());
    CHECK(support::close(khatri_rao(list).toDenseMatrix(), as_oracle(dense(all.transpose())), 4));
    const std::vector<dense> rows{dense(A.transpose()), dense(B.transpose())};
    CHECK(support::close(face_split(rows).toDenseMatrix(), as_oracle(row_by_row<Scalar>(rows[0], rows[1])), 4));
    // what is no row-wise product, or does not fit
    CHECK_THROWS_AS(static_cast<void>((R * R.transpose()).eval()), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>((R.transpose() * khatri_rao(C, B)).eval()), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(R.transpose() * khatri_rao(A, C)), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(X.row(0).asDiagonal() * R), otimes::unsupported_error);
    CHECK_THROWS_AS(static_cast<void>(R * X.row(0).asDiagonal()), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(khatri_rao(std::vector<dense>{})), otimes::shape_error);
}

TEST_CASE("real row-wise products with complex weights") {
    const matrix_d A = random(5, 2, 1), B = random(5, 3, 2);
    const vector<std::complex<double>> w = random<matrix<std::complex<double>>>(5, 1, 3);
    const matrix<std::complex<double>> got = (w.asDiagonal() * face_split(A, B)).toDenseMatrix();
    CHECK(support::close(got, as_oracle(matrix<std::complex<double>>(w.asDiagonal() * row_by_row<double>(A, B))), 4));
}

TEST_CASE("a vector takes a stacked matrix in place") {
    const matrix_d A = random(2, 3, 1), B = random(4, 2, 2), V = random(2, 3, 3);
    const vector_d y = random(8, 1, 4);
    const auto image = times(dense_kron(A, B), vector_d(otimes::vec(V)));
    vector_d z = y;
    z += kron(A, B) * otimes::vec(V);
    CHECK(support::close(z, plus(y, image), 20));
    z -= 0.5 * (kron(A, B) * otimes::vec(V));
    CHECK(support::close(z, plus(y, scaled(0.5, image)), 30));
    matrix_d wide(8, 2);
    wide << y, y;
    wide.col(1) -= kron(A, B) * otimes::vec(V);
    CHECK(support::close(wide.col(1).eval(), plus(y, scaled(-1.0, image)), 20));
    CHECK_THROWS_AS(z += otimes::vec(V), otimes::shape_error);
}

TEST_CASE("the log-density of a Gaussian process: log |det| of a shifted kron, of sums and products; traces") {
    const auto definite = [](Index n, std::uint64_t seed) {
        const matrix_d r = random(n, n, seed);
        return matrix_d(r * r.transpose() + matrix_d::Identity(n, n));
    };
    const matrix_d A = definite(3, 1), B = definite(4, 2), D = definite(3, 3), E = definite(4, 4);
    const auto log_det = [](const matrix_d& m) { return std::log(std::abs(m.fullPivLu().determinant())); };
    const matrix_d one = matrix_d::Identity(12, 12);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    CHECK((K + 0.3 * otimes::identity()).logAbsDeterminant() == doctest::Approx(log_det(k + 0.3 * one)));
    CHECK((K + kron(D, E)).logAbsDeterminant() == doctest::Approx(log_det(k + kron(D, E).toDenseMatrix())));
    CHECK((K + K).logAbsDeterminant() == doctest::Approx(log_det(2 * k)));
    const auto product = (K + 0.3 * otimes::identity()) * (kron(D, E) + 0.1 * otimes::identity());
    CHECK(product.logAbsDeterminant() ==
          doctest::Approx(log_det(k + 0.3 * one) + log_det(kron(D, E).toDenseMatrix() + 0.1 * one)));
    const Eigen::SparseMatrix<double> W = random(5, 12, 5).sparseView();
    const auto gp = W * K * W.transpose() + 0.2 * otimes::identity();
    CHECK(gp.trace() == doctest::Approx(gp.toDenseMatrix().trace()));
    CHECK_THROWS_AS(static_cast<void>((W * K).trace()), otimes::shape_error);
}

TEST_CASE("Lyapunov equations and eigenvalues of what is not square say so by their own names") {
    const matrix_d A = random(2, 3, 1), Q = random(3, 3, 2);
    CHECK(text_of([&] { static_cast<void>(otimes::lyapunov(A, Q)); }) ==
          "otimes: lyapunov(A, Q): A is 2 x 3, Q is 3 x 3. Both must be square and of one order.");
    CHECK(text_of([&] { static_cast<void>(otimes::kron_self_adjoint_eigen<double>(kron(Q, A))); }) ==
          "otimes: eigenvalue decomposition of kron(F1, F2), 6 x 9: factor 2 is 2 x 3; all factors must be square. For "
          "other shapes use kron_svd.");
}

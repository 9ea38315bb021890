// SPDX-License-Identifier: MIT
// Programs that define EIGEN_DEFAULT_TO_ROW_MAJOR: there Eigen::MatrixXd is by rows, while the library's own buffers stay by columns.
// What the public functions say, for operands of both orders, against matrices formed by plain loops.
#define EIGEN_DEFAULT_TO_ROW_MAJOR
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

#include <Eigen/Dense>
#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>
#include <otimes/batched.hpp>
#include <otimes/einsum.hpp>
#include <otimes/otimes.hpp>
#include <otimes/tkron.hpp>

#include "support/once.hpp"
#include "support/random.hpp"

namespace {

using Eigen::Index;
using otimes::kron;
using columns = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
using complex_columns = Eigen::Matrix<std::complex<double>, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
using vector = Eigen::Matrix<double, Eigen::Dynamic, 1>;
static_assert(Eigen::MatrixXd::IsRowMajor && !columns::IsRowMajor);

// What is expected is formed entry by entry, and multiplied by columns.
columns dense(const columns& a, const columns& b) {
    columns k(a.rows() * b.rows(), a.cols() * b.cols());
    for (Index j = 0; j < k.cols(); ++j) {
        for (Index i = 0; i < k.rows(); ++i) {
            k(i, j) = a(i / b.rows(), j / b.cols()) * b(i % b.rows(), j % b.cols());
        }
    }
    return k;
}
columns times(const columns& a, const columns& b) {
    columns c = columns::Zero(a.rows(), b.cols());
    for (Index j = 0; j < c.cols(); ++j) {
        for (Index p = 0; p < b.rows(); ++p) {
            for (Index i = 0; i < c.rows(); ++i) {
                c(i, j) += a(i, p) * b(p, j);
            }
        }
    }
    return c;
}
double inner(const columns& a, const columns& b) {
    double sum = 0;
    for (Index j = 0; j < a.cols(); ++j) {
        for (Index i = 0; i < a.rows(); ++i) {
            sum += a(i, j) * b(i, j);
        }
    }
    return sum;
}
columns stacked(const columns& m, bool by_rows) {
    columns v(m.rows() * m.cols(), 1);
    for (Index j = 0; j < m.cols(); ++j) {
        for (Index i = 0; i < m.rows(); ++i) {
            v(by_rows ? i * m.cols() + j : j * m.rows() + i, 0) = m(i, j);
        }
    }
    return v;
}
bool same(const columns& got, const columns& want) {
    return got.rows() == want.rows() && got.cols() == want.cols() && (got - want).norm() <= 1e-9 * (1 + want.norm());
}
bool near(double got, double want) { return std::abs(got - want) <= 1e-9 * (1 + std::abs(want)); }

template <class Matrix>
Matrix random(Index rows, Index cols, std::uint64_t seed) {
    return support::random_matrix<Matrix>(rows, cols, seed);
}
// Far from singular.
template <class Matrix>
Matrix dominant(Index n, std::uint64_t seed) {
    Matrix m = random<Matrix>(n, n, seed);
    m.diagonal().array() += 3.0 * static_cast<double>(n);
    return m;
}

// Operands of one order; K is 12 x 12, L and R have other shapes.
template <class Matrix>
struct operands {
    Matrix A = dominant<Matrix>(3, 1), B = dominant<Matrix>(4, 2);
    Matrix C = random<Matrix>(5, 3, 3), D = random<Matrix>(2, 4, 4);
    Matrix X = random<Matrix>(5, 12, 5), V = random<Matrix>(12, 6, 6), Q = random<Matrix>(4, 3, 7);
    vector v = random<vector>(12, 1, 8), u = random<vector>(12, 1, 9);
    columns K = dense(A, B), L = dense(C, D);
};

}  // namespace

TEST_CASE_TEMPLATE("by rows: products, sums and operators", Matrix, OTIMES_ONE_OF(Eigen::MatrixXd, columns)) {
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    const auto L = kron(o.C, o.D);
    CHECK(same(K.toDenseMatrix(), o.K));
    CHECK(same((L * o.V).eval(), times(o.L, o.V)));
    CHECK(same((L * o.v).eval(), times(o.L, o.v)));
    CHECK(same((o.X * L.transpose()).eval(), times(o.X, o.L.transpose())));
    CHECK(same((o.v.transpose() * K).eval(), times(o.v.transpose(), o.K)));
    CHECK(same((L * o.V * kron(o.A.topRows(2), o.C.topRows(3))).eval(),
               times(times(o.L, o.V), dense(o.A.topRows(2), o.C.topRows(3)))));
    CHECK(same((o.V + 2 * K * o.V).eval(), o.V + 2 * times(o.K, o.V)));
    CHECK(same((K * (K * o.V)).eval(), times(o.K, times(o.K, o.V))));
    CHECK(same((o.X * (K + L.transpose() * L)).eval(), times(o.X, o.K + times(o.L.transpose(), o.L))));
    CHECK(same((otimes::kron_sum(o.A, o.B) * o.V).eval(),
               times(dense(o.A, columns::Identity(4, 4)) + dense(columns::Identity(3, 3), o.B), o.V)));
    Matrix Y = o.V;
    Y = K * Y;
    CHECK(same(Y, times(o.K, o.V)));
    Y.topRows(6) -= (K * o.V).eval().topRows(6);
    Y.bottomRows(6).setZero();
    CHECK(Y.norm() < 1e-9);
    Y = o.X;
    Y *= K;
    CHECK(same(Y, times(o.X, o.K)));
    Matrix planned(o.L.rows(), o.V.cols());
    otimes::make_plan(L * o.V).run(planned, L * o.V);
    CHECK(same(planned, times(o.L, o.V)));
    otimes::make_plan(Y, o.X * K).run(Y, o.X * K);
    CHECK(same(Y, times(o.X, o.K)));

    const Eigen::SparseMatrix<double> W = columns(o.X).sparseView(0.4, 1);
    CHECK(same(((W * K * W.transpose() + 2 * otimes::identity()) * o.X).eval(),
               times(times(columns(W), o.K), times(columns(W).transpose(), o.X)) + 2 * o.X));
    CHECK(same((W * K).toDenseMatrix(), times(columns(W), o.K)));
    CHECK(same((kron(o.A, W) * columns::Ones(36, 2)).eval(), times(dense(o.A, columns(W)), columns::Ones(36, 2))));
    CHECK(same(
        (kron(o.A.template triangularView<Eigen::Lower>(), o.v.head(4).asDiagonal()) * o.V).eval(),
        times(dense(columns(o.A.template triangularView<Eigen::Lower>()), columns(o.v.head(4).asDiagonal())), o.V)));
    CHECK(same((kron(o.A, otimes::low_rank(o.Q, o.Q)) * o.V).eval(),
               times(dense(o.A, times(o.Q, o.Q.transpose())), o.V)));
    const auto apply = [&o](bool transposed, const auto& in, auto& out) {
        out = transposed ? columns(o.B.transpose() * in) : columns(o.B * in);
    };
    CHECK(same((kron(otimes::matrix_free<double>(4, 4, apply), o.A) * o.V).eval(), times(dense(o.B, o.A), o.V)));
}

TEST_CASE_TEMPLATE("by rows: numbers from products", Matrix, OTIMES_ONE_OF(Eigen::MatrixXd, columns)) {
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    CHECK(near(o.v.dot(K * o.u), inner(o.v, times(o.K, o.u))));
    CHECK(near((K * o.v).dot(o.u), inner(times(o.K, o.v), o.u)));
    CHECK(near(otimes::dot(o.v, K * o.u), inner(o.v, times(o.K, o.u))));
    CHECK(near((o.v.transpose() * K).dot(o.u), inner(o.u, times(o.K.transpose(), o.v))));
    CHECK(near(otimes::dot(o.X, o.X * K), inner(o.X, times(o.X, o.K))));
    CHECK(near(otimes::dot(o.V, K * o.V), inner(o.V, times(o.K, o.V))));
    CHECK(near(otimes::dot(2 * o.V, K * o.V), 2 * inner(o.V, times(o.K, o.V))));
    CHECK(near(otimes::dot(o.V, (K + K) * o.V), 2 * inner(o.V, times(o.K, o.V))));
    CHECK(near(otimes::quadratic_trace(o.V, K), inner(o.V, times(o.K, o.V))));
    CHECK(near((o.V.transpose() * K * o.V).trace(), inner(o.V, times(o.K, o.V))));
    CHECK(near((o.V.transpose() * K.adjoint() * o.V).trace(), inner(o.V, times(o.K.transpose(), o.V))));
    CHECK(near((o.X * K * o.X.transpose()).trace(), inner(o.X.transpose(), times(o.K, o.X.transpose()))));
    CHECK(near((o.v.transpose() * K * o.u).trace(), inner(o.v, times(o.K, o.u))));
    CHECK(near((o.V.transpose() * (K + K) * o.V).trace(), 2 * inner(o.V, times(o.K, o.V))));
    CHECK(near((o.X * K).squaredNorm(), times(o.X, o.K).squaredNorm()));
    CHECK(near((K * o.V).norm(), times(o.K, o.V).norm()));
    CHECK(near((K * o.v).norm(), times(o.K, o.v).norm()));
    CHECK(same(otimes::column_squared_norms(o.X * K), times(o.X, o.K).colwise().squaredNorm().transpose()));
    CHECK(same(otimes::column_squared_norms(K * o.V), times(o.K, o.V).colwise().squaredNorm().transpose()));
    CHECK(near(K.norm(), o.K.norm()));
    CHECK(near((K + 2 * kron(o.A.transpose(), o.B)).norm(), (o.K + 2 * dense(o.A.transpose(), o.B)).norm()));
    CHECK(near(K.trace(), o.K.trace()));
    // With a first factor that is not cut, the product is evaluated whole.
    const Eigen::SparseMatrix<double> S = columns(o.A).sparseView();
    const auto sparse = kron(S, o.B);
    CHECK(near(o.v.dot(sparse * o.u), inner(o.v, times(o.K, o.u))));
    CHECK(near(otimes::dot(o.u.transpose(), o.v.transpose() * sparse), inner(o.u, times(o.K.transpose(), o.v))));
    CHECK(near(otimes::dot(o.V, K * o.V * kron(o.A.topLeftCorner(2, 2), o.B.topLeftCorner(3, 3))),
               inner(o.V, times(times(o.K, o.V), dense(o.A.topLeftCorner(2, 2), o.B.topLeftCorner(3, 3))))));
}

TEST_CASE("by rows: numbers from complex products") {
    const operands<Eigen::MatrixXd> o;
    Eigen::MatrixXcd A = o.A.cast<std::complex<double>>();
    A += std::complex<double>(0, 1) * o.A.transpose();
    const complex_columns k = o.K + std::complex<double>(0, 1) * dense(o.A.transpose(), o.B);
    const std::complex<double> want = (o.V.transpose() * k.adjoint() * o.V).trace();
    CHECK(std::abs((o.V.transpose() * kron(A, o.B).adjoint() * o.V).trace() - want) < 1e-9 * std::abs(want));
    const Eigen::VectorXcd w = o.v + std::complex<double>(0, 1) * o.u;
    const std::complex<double> number = (w.adjoint() * k * w).value();
    CHECK(std::abs(w.dot(kron(A, o.B) * w) - number) < 1e-9 * std::abs(number));
}

TEST_CASE_TEMPLATE("by rows: stacked matrices", Matrix, OTIMES_ONE_OF(Eigen::MatrixXd, columns)) {
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    CHECK(same(otimes::vec(o.Q).toVector(), stacked(o.Q, false)));
    CHECK(same(otimes::vec_r(o.Q).toVector(), stacked(o.Q, true)));
    const columns image = times(o.K, stacked(o.Q, false));
    const Matrix T = o.Q.transpose();
    const columns image_r = times(o.K, stacked(T, true));
    CHECK(same((K * otimes::vec(o.Q)).toVector(), image));
    CHECK(same((K * otimes::vec_r(T)).toVector(), image_r));
    CHECK(same((otimes::kron_sum(o.A, o.B) * otimes::vec(o.Q)).toVector(),
               times(otimes::kron_sum(o.A, o.B).toDenseMatrix(), stacked(o.Q, false))));
    Matrix Y = Matrix::Zero(4, 3);
    otimes::vec(Y) = K * otimes::vec(o.Q);
    CHECK(same(stacked(Y, false), image));
    otimes::vec(Y) += vector(image);
    CHECK(same(stacked(Y, false), 2 * image));
    otimes::vec_r(Y) = vector(image);
    CHECK(same(stacked(Y, true), image));
    const vector y = image;
    CHECK(same(stacked(otimes::unvec(y, 4, 3), false), image));
    CHECK(same(stacked(otimes::unvec_r(y, 4, 3), true), image));
    CHECK(same(stacked(otimes::unvec(2 * y, 4, 3), false), 2 * image));
    CHECK(same(stacked(otimes::unvec(K * otimes::vec(o.Q).toVector(), 4, 3), false), image));
    CHECK(same(stacked(otimes::unvec_r(o.v.transpose() * K, 4, 3), true), times(o.K.transpose(), o.v)));
    CHECK(same(stacked(otimes::unvec(o.V.col(1), 4, 3), false), o.V.col(1)));
    CHECK(same(stacked(otimes::unvec(o.X.row(1), 4, 3), false), o.X.row(1).transpose()));
}

TEST_CASE("by rows: solves, decompositions and least squares") {
    using Matrix = Eigen::MatrixXd;
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    CHECK(same(times(o.K, K.solve(o.V)), o.V));
    CHECK(same(times(o.K, K.solve(o.v)), o.v));
    CHECK(same(times(o.K, K.inverse().toDenseMatrix()), columns::Identity(12, 12)));
    CHECK(same((o.X * K.pseudoInverse()).eval(), times(o.X, o.K.inverse())));
    CHECK(near(K.logAbsDeterminant(), std::log(std::abs(o.K.determinant()))));
    CHECK(same(K.singularValues(), Eigen::JacobiSVD<columns>(o.K).singularValues()));

    const auto tall = kron(o.C, o.B);
    const columns t = dense(o.C, o.B);
    const Matrix A = o.A + Matrix(o.A.transpose()), B = o.B + Matrix(o.B.transpose());
    const Matrix b = random<Matrix>(20, 3, 12);
    const columns least = t.colPivHouseholderQr().solve(columns(b));
    CHECK(same(tall.solve(b), least));
    CHECK(same(otimes::kron_qr<double>(tall).solve(b), least));
    CHECK(same(otimes::kron_svd<double>(tall).solve(b), least));
    CHECK(same(times(dense(A, B), otimes::kron_llt<double>(kron(Matrix(A * A), Matrix(B * B))).solve(o.V)),
               columns(dense(A, B).inverse() * o.V)));
    const otimes::kron_self_adjoint_eigen<double> eigen(kron(A, B));
    CHECK(same(times(dense(A, B), eigen.eigenvectors().toDenseMatrix()),
               columns(columns(eigen.eigenvectors().toDenseMatrix()) * eigen.eigenvalues().asDiagonal())));
    CHECK(same(otimes::nearest_kron(Matrix(o.K), 3, 3).toDenseMatrix(), o.K));
}

#ifndef OTIMES_TEST_ONCE  // the decompositions of sums, a third of what this file takes to compile
TEST_CASE("by rows: solves with sums") {
    using Matrix = Eigen::MatrixXd;
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    const columns shifted = o.K + 0.5 * columns::Identity(12, 12);
    CHECK(same(times(shifted, (K + 0.5 * otimes::identity()).solve(o.V)), o.V));
    const Matrix A = o.A + Matrix(o.A.transpose()), B = o.B + Matrix(o.B.transpose());
    const columns symmetric = dense(A, B) + 0.5 * columns::Identity(12, 12);
    CHECK(same(times(symmetric, (kron(A, B) + 0.5 * otimes::identity()).solve(o.V)), o.V));
    CHECK(same(times(symmetric, (kron(A, B) + 0.5 * otimes::identity()).solve(o.v)), o.v));
    const columns sum = dense(A, columns::Identity(4, 4)) + dense(columns::Identity(3, 3), B);
    CHECK(same(times(sum, otimes::kron_sum(A, B).solve(o.V)), o.V));
    CHECK(same(times(otimes::kron_sum(o.A, o.B).toDenseMatrix(), otimes::kron_sum(o.A, o.B).solve(o.V)), o.V));
    CHECK(same(times(sum, otimes::kron_sum(A, B).solve(columns(o.V))), o.V));
    CHECK(same(times(symmetric, (kron(columns(A), columns(B)) + 0.5 * otimes::identity()).solve(columns(o.V))), o.V));
    // More right-hand sides than stay in cache at a time.
    const Matrix wide = random<Matrix>(12, 9000, 11);
    CHECK(same(times(sum, otimes::kron_sum(A, B).solve(wide)), wide));
    const columns both = dense(A, B) + dense(columns::Identity(3, 3), B);
    CHECK(same(times(both, (kron(A, B) + kron(Matrix::Identity(3, 3), B)).solve(o.V)), o.V));
    const columns Z = otimes::sylvester(o.B, o.A, o.Q);
    CHECK(same(times(o.B, Z) + times(Z, o.A), o.Q));
}
#endif

TEST_CASE("by rows: selections, row-wise products, contractions and batches") {
    using Matrix = Eigen::MatrixXd;
    const operands<Matrix> o;
    const auto K = kron(o.A, o.B);
    CHECK(same(K.row(5), o.K.row(5)));
    CHECK(same(K.col(7), o.K.col(7)));
    CHECK(same(K.diagonal(), o.K.diagonal()));
    CHECK(same(K.factor(1), o.B));
    const std::vector<Index> rows{0, 7, 5}, cols{11, 2};
    CHECK(same((K(rows, Eigen::indexing::all) * o.V).eval(), times(columns(o.K(rows, Eigen::indexing::all)), o.V)));
    CHECK(same((K(rows, cols) * o.V.topRows(2)).eval(), times(columns(o.K(rows, cols)), o.V.topRows(2))));
    CHECK(same((o.X * K(Eigen::indexing::all, cols)).eval(), times(o.X, columns(o.K(Eigen::indexing::all, cols)))));
    const Matrix D = o.B.leftCols(3);
    columns khatri_rao(12, 3), face_split(3, 12);
    for (Index j = 0; j < 3; ++j) {
        khatri_rao.col(j) = dense(o.A.col(j), D.col(j));
        face_split.row(j) = dense(o.A.row(j), o.B.row(j));
    }
    CHECK(same((otimes::khatri_rao(o.A, D) * o.A).eval(), times(khatri_rao, o.A)));
    CHECK(same((o.X * otimes::khatri_rao(o.A, D)).eval(), times(o.X, khatri_rao)));
    CHECK(same((otimes::face_split(o.A, Matrix(o.B.topRows(3))) * o.V).eval(), times(face_split, o.V)));

    Matrix Y(3, 4);
    otimes::view(Y) = otimes::einsum<"mk,kn->mn">(o.A, Matrix(o.Q.transpose()));
    CHECK(same(Y, times(o.A, o.Q.transpose())));
    const Eigen::MatrixXd formed = otimes::einsum<"km,nk->mn">(o.A, o.Q);
    CHECK(same(formed, times(o.A.transpose(), o.Q.transpose())));

    // tkron has everything by columns: vec(B Q A^T), and what it writes is by columns
    const columns a = o.A, b = o.B, q = o.Q;
    columns z(4, 3);
    otimes::tkron2<double>({.rows = 4, .cols = 4, .data = b.data()}, {.rows = 3, .cols = 3, .data = a.data()},
                           {.data = q.data()}, {.data = z.data()}, 1);
    CHECK(same(stacked(z, false), times(o.K, stacked(q, false))));

    const std::vector<Matrix> X{o.X, 2 * o.X}, A{o.A, o.A.transpose()};
    std::vector<Matrix> result(2, Matrix(5, 12));
    otimes::batched(result) = otimes::batched(X) * kron(otimes::batched(A), o.B);
    CHECK(same(result[0], times(o.X, o.K)));
    CHECK(same(result[1], 2 * times(o.X, dense(o.A.transpose(), o.B))));
    const std::vector<Eigen::MatrixXd> items = otimes::batched(X) * kron(otimes::batched(A), o.B);
    CHECK(same(items[1], result[1]));
}

// SPDX-License-Identifier: MIT
// Classes that inherit from Eigen's matrices, as its documentation describes: operands, factors, destinations and right-hand sides like the
// matrix in them, which need not lie at their beginning.
#include <doctest/doctest.h>

#include <functional>
#include <utility>
#include <vector>

#include <otimes/algebra.hpp>
#include <otimes/device/operands.hpp>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::kron;

namespace {

// docs of Eigen, "Inheriting from Matrix"; the virtual destructor puts a pointer before the matrix.
template <class Base>
class inheriting : public Base {
public:
    inheriting() = default;
    template <class Other>
    inheriting(const Eigen::MatrixBase<Other>& other) : Base(other) {}
    inheriting(const inheriting&) = default;
    inheriting(inheriting&&) noexcept = default;
    inheriting& operator=(const inheriting&) = default;
    inheriting& operator=(inheriting&&) noexcept = default;
    virtual ~inheriting() = default;
    template <class Other>
    inheriting& operator=(const Eigen::MatrixBase<Other>& other) {
        Base::operator=(other);
        return *this;
    }
    int tag = 7;
};
using my_matrix = inheriting<matrix_d>;
using my_vector = inheriting<vector_d>;
class my_view : public Eigen::Map<matrix_d> {
public:
    using Eigen::Map<matrix_d>::Map;
    using Eigen::Map<matrix_d>::operator=;
};

}  // namespace

TEST_CASE("inherited matrices: operands, factors and destinations") {
    const my_matrix A = random(3, 3, 1), B = random(4, 4, 2), X = random(5, 12, 3), V = random(12, 2, 4);
    const my_vector v = random<vector_d>(12, 1, 5);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    CHECK(support::exactly_equal(k, kron(matrix_d(A), matrix_d(B)).toDenseMatrix()));
    CHECK(distance(X * K, matrix_d(X) * k) < 1e-12);
    CHECK(distance(K * V, k * matrix_d(V)) < 1e-12);
    CHECK(distance(K * v, k * vector_d(v)) < 1e-12);
    CHECK(distance(2 * X * K, 2 * matrix_d(X) * k) < 1e-12);
    CHECK(distance(X.transpose() + K * X.transpose(), matrix_d(X).transpose() + k * matrix_d(X).transpose()) < 1e-12);
    CHECK(distance(X - X * K, matrix_d(X) - matrix_d(X) * k) < 1e-12);
    CHECK(distance(X * K - my_matrix(X), matrix_d(X) * k - matrix_d(X)) < 1e-12);
    CHECK(distance(X * (K + otimes::kron_sum(A, B)), matrix_d(X) * (k + otimes::kron_sum(A, B).toDenseMatrix())) <
          1e-12);
    CHECK(distance(X * kron(std::vector<my_matrix>{A, B}), matrix_d(X) * k) < 1e-12);
    CHECK(distance(X * kron(A, std::cref(B)), matrix_d(X) * k) < 1e-12);
    CHECK(distance(X * otimes::identity(12), X) == 0);
    CHECK(otimes::dot(v, K * v) == doctest::Approx(v.dot(k * v)));
    CHECK(v.dot(K * v) == doctest::Approx(v.dot(k * v)));
    CHECK(otimes::dot(X, X * K) == doctest::Approx(matrix_d(X).cwiseProduct(matrix_d(X) * k).sum()));
    CHECK(distance((K * otimes::vec(my_matrix(B.leftCols(3)))).toVector(), k * otimes::vec(B.leftCols(3)).toVector()) <
          1e-12);
    CHECK(distance(otimes::unvec(v, 4, 3), vector_d(v).reshaped(4, 3)) == 0);
    CHECK(distance(K({3, 1}, Eigen::indexing::all) * V, k({3, 1}, Eigen::indexing::all) * matrix_d(V)) < 1e-12);
    CHECK(distance(otimes::face_split(A, A) * my_matrix(V.topRows(9)),
                   otimes::face_split(matrix_d(A), matrix_d(A)).toDenseMatrix() * V.topRows(9)) < 1e-12);
    CHECK(distance(kron(A, otimes::low_rank(B, B)) * V, kron(A, B * B.transpose()).toDenseMatrix() * V) < 1e-12);

    my_matrix Y = X * K;
    CHECK(distance(Y, matrix_d(X) * k) < 1e-12);
    Y += X * K;
    Y.noalias() -= 3 * X * K;
    CHECK(distance(Y, -matrix_d(X) * k) < 1e-12);
    Y = Y * K;
    CHECK(distance(Y, -matrix_d(X) * k * k) < 1e-11);
    Y *= K;
    CHECK(Y.tag == 7);
    Y = V;
    Y = X * K;  // resized
    CHECK(distance(Y, matrix_d(X) * k) < 1e-12);
    my_matrix Q = B.leftCols(3);
    otimes::vec(Q) = K * otimes::vec(Q);
    CHECK(distance(Q, B * B.leftCols(3) * A.transpose()) < 1e-12);
    matrix_d memory = X;
    my_view view(memory.data(), 5, 12);
    CHECK(distance(view * K, matrix_d(X) * k) < 1e-12);
    view = view * K;
    CHECK(distance(memory, matrix_d(X) * k) < 1e-12);
}

TEST_CASE("inherited matrices: solves and plans") {
    const my_matrix A = random(3, 3, 1) + 3 * matrix_d::Identity(3, 3),
                    B = random(4, 4, 2) + 4 * matrix_d::Identity(4, 4);
    const my_matrix V = random(12, 2, 4), X = random(5, 12, 3);
    const my_vector v = random<vector_d>(12, 1, 5);
    const auto K = kron(A, B);
    const matrix_d k = K.toDenseMatrix();
    CHECK(distance(k * K.solve(V), V) < 1e-9);
    CHECK(distance(k * K.solve(v), v) < 1e-9);
    CHECK(distance((k + matrix_d::Identity(12, 12)) * (K + otimes::identity()).solve(V), V) < 1e-9);
    my_matrix Y;
    otimes::make_plan(X * K).run(Y, X * K);
    CHECK(distance(Y, matrix_d(X) * k) < 1e-12);
    Y.setZero();
    otimes::make_plan(Y, X * K).run(Y, X * K);
    CHECK(distance(Y, matrix_d(X) * k) < 1e-12);
    Y.setZero();
    otimes::on(otimes::reference(), Y) = X * K;
    CHECK(distance(Y, matrix_d(X) * k) < 1e-12);
}

TEST_CASE("inherited matrices: lvalues are borrowed and followed, rvalues moved in") {
    my_matrix A = random(3, 3, 1);
    const my_matrix B = random(4, 4, 2);
    my_matrix X = random(5, 12, 3);
    const auto K = kron(A, my_matrix(B));
    const auto product = X * K;
    A = random(3, 3, 7);
    X = random(2, 12, 8);
    const matrix_d k = kron(matrix_d(A), matrix_d(B)).toDenseMatrix();
    CHECK(distance(K.toDenseMatrix(), k) < 1e-12);
    CHECK(distance(product, matrix_d(X) * k) < 1e-12);
    CHECK(K.node().factors()[0].view().data == A.data());
    CHECK(!K.node().factors()[0].is_owned());
    CHECK(K.node().factors()[1].is_owned());
    my_matrix moved = random(30, 30, 9);
    const double* const data = moved.data();
    CHECK(kron(std::move(moved)).node().factors()[0].view().data == data);
    const my_matrix kept = random(30, 30, 9);
    CHECK(kron(std::move(kept)).node().factors()[0].is_owned());
    // in device expressions, too
    CHECK(otimes::device::host_leaf(my_matrix(B)).is_owned());
    CHECK(otimes::device::host_leaf(B).view().data == B.data());
}

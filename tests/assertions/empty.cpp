// SPDX-License-Identifier: MIT
// Compiled with _GLIBCXX_ASSERTIONS, as distributions build their packages: no call of the standard library breaks its conditions where
// an extent is 0.
#include <doctest/doctest.h>

#include <complex>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "support/random.hpp"

namespace {

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
template <class Scalar>
using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// K X and X K with no column, and no row, of X; what X would be added to keeps its shape.
template <class X, class Operator>
void check(const Operator& k) {
    X wide = k * X(k.cols(), 0);
    CHECK(wide.rows() == k.rows());
    CHECK(wide.cols() == 0);
    wide += k * X(k.cols(), 0);
    X tall = X(0, k.rows()) * k;
    CHECK(tall.rows() == 0);
    CHECK(tall.cols() == k.cols());
    tall.noalias() -= X(0, k.rows()) * k;
    const X x = support::random_matrix<X>(k.cols(), Eigen::Index(1), 1);
    CHECK(X(k * x).rows() == k.rows());
    CHECK(X(X(k * x) * X(1, 0)).cols() == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("products and sums with no rows or columns", Scalar, double, std::complex<float>) {
    const auto A = support::random_matrix<matrix<Scalar>>(3, 3, 1), B = support::random_matrix<matrix<Scalar>>(2, 2, 2),
               C = support::random_matrix<matrix<Scalar>>(5, 4, 3);
    const auto each = [&](const auto& k) {
        check<matrix<Scalar>>(k);
        check<row_major<Scalar>>(k);
    };
    each(otimes::kron(A, B));
    each(otimes::kron(A, C, B));
    each(otimes::kron(A, otimes::identity(4), B));
    each(otimes::kron_sum(A, B));
    each(otimes::kron(A, B, C) + Scalar(2) * otimes::kron(A, A.topLeftCorner(2, 2), C));
    each(otimes::kron_sum(A, B, A) + otimes::identity());
    each(otimes::kron_sum(A, B) * otimes::kron(A, B));
    each(otimes::kron(matrix<Scalar>(0, 3), B));
    each(otimes::kron(matrix<Scalar>(2, 0), B) + otimes::kron(matrix<Scalar>(2, 0), B));
}

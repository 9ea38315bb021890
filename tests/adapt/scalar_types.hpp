// SPDX-License-Identifier: MIT
// One check of products for a pair of scalars; the .cpp files instantiate it for some pairs each.
#pragma once

#include <doctest/doctest.h>

#include <complex>

#include "adapt/helpers.hpp"

namespace adapt {

// X of one scalar, factors of two more. The result's scalar is the complex one if there is one.
template <class X_scalar, class F_scalar, class G_scalar>
void check_scalars() {
    using result =
        support::scalar_of<typename decltype(matrix<X_scalar>() *
                                             otimes::kron(matrix<F_scalar>(), matrix<G_scalar>()))::PlainObject>;
    static_assert(support::is_complex<result> == any_complex<matrix<X_scalar>, matrix<F_scalar>, matrix<G_scalar>>);
    const auto F = random<matrix<F_scalar>>(2, 3, 1);
    const auto G = random<matrix<G_scalar>>(4, 2, 2);
    const auto k = dense_kron(F, G);  // 8 x 6
    const auto K = otimes::kron(F, G);
    const auto X = random<row_major<X_scalar>>(5, 8, 3);
    const auto want = times(X, k);

    auto Y = poisoned<matrix<result>>(5, 6);
    Y = X * K;
    CHECK(support::close(Y, want, 8));
    Y.noalias() += X * K;
    CHECK(support::close(Y, scaled(2.0, want), 9));
    Y -= 3 * X * K;
    CHECK(support::close(Y, scaled(-1.0, want), 10));
    const row_major<result> R = 0.5 * (X * K) * 2.0f;
    CHECK(support::close(R, want, 8));
    const matrix<result> left = K.transpose() * X.transpose();
    CHECK(support::close(left, oracle::transpose(want), 8));
    const matrix<result> adjoint = K.adjoint() * X.adjoint();
    CHECK(support::close(adjoint, oracle::adjoint(want), 8));
    const matrix<result> conjugate = X.conjugate() * K.conjugate();
    CHECK(support::close(conjugate, oracle::conjugate(want), 8));
    const matrix<result> mixed = X * otimes::kron(F.conjugate(), otimes::kron(G.adjoint()).transpose());
    CHECK(support::close(mixed, times(X, dense_kron(matrix<F_scalar>(F.conjugate()), matrix<G_scalar>(G.conjugate()))),
                         8));
    const vector<result> v = X.row(1) * K;
    CHECK(support::close(matrix<result>(v.transpose()), times(matrix<X_scalar>(X.row(1)), k), 8));
    const matrix<result> both =
        otimes::kron(F, otimes::identity(2)) * (X.leftCols(6).topRows(4).transpose() * otimes::kron(G));
    CHECK(support::close(both,
                         times(dense_kron(F, matrix<real_of<F_scalar>>(matrix<real_of<F_scalar>>::Identity(2, 2))),
                               times(matrix<X_scalar>(X.leftCols(6).topRows(4).transpose()), G)),
                         24));
    // Sums with a dense term of the result's scalar and of X's.
    const auto Z = random<matrix<X_scalar>>(5, 6, 4);
    const matrix<result> sum = Z - X * K;
    CHECK(support::close(sum, plus(Z, scaled(-1.0, want)), 9));
    auto started = random<matrix<result>>(5, 6, 5);
    const auto start = oracle::from(started);
    started += 2 * (X * K + Z);
    CHECK(support::close(started, plus(start, scaled(2.0, plus(Z, want))), 10));
    // Identity factors and 1 x 1 factors carry no scalar of their own.
    const matrix<result> padded = X * otimes::kron(otimes::identity(1), F, matrix<real_of<G_scalar>>::Ones(1, 1), G);
    CHECK(support::close(padded, want, 8));
    // Complex multiples, also of a real product.
    using complex = std::complex<real_of<result>>;
    const complex i(0, 2);
    const matrix<complex> turned = i * X * K;
    CHECK(support::close(turned, scaled(i, want), 8));
    const matrix<complex> turned_k = X * (K * i);
    CHECK(support::close(turned_k, scaled(i, want), 8));
    const matrix<complex> turned_twice = X * K * i / i;
    CHECK(support::close(turned_twice, scaled(complex(1), want), 8));
    // A complex destination of a real product.
    auto wide = poisoned<matrix<complex>>(5, 6);
    wide = (X * K).template cast<complex>();
    CHECK(support::close(wide, scaled(complex(1), want), 8));
    CHECK(support::close(K.toDenseMatrix(), k, 1));
}

}  // namespace adapt

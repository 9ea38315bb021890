// SPDX-License-Identifier: MIT
// Solves in device memory: on a GPU, and on an executor that pretends to be one.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <type_traits>

#include <otimes/algebra.hpp>
#include <otimes/otimes.hpp>

#include "cuda/device_support.hpp"

namespace device_test {

// Solutions in device memory against the operator, formed densely, times what was found.
// All: every way to write it and every method, which takes long to compile.
template <class Scalar, bool All = true>
void check_solves() {
    using host = matrix<Scalar, 0>;
    using otimes::DeviceMatrix;
    using otimes::identity;
    using otimes::kron;
    const auto eye = [](std::int64_t n) { return host(host::Identity(n, n)); };
    const auto regular = [&](std::int64_t n, std::uint64_t seed) {
        return host(random_matrix<host>(n, n, seed) + Scalar(4) * eye(n));
    };
    const auto definite = [&](std::int64_t n, std::uint64_t seed) {
        const host m = random_matrix<host>(n, n, seed);
        return host(m * m.adjoint() + eye(n));
    };
    // |S X - B| relative to |S| |X|: what a stable solver leaves.
    const auto solves = [](const auto& dX, const host& dense, const host& right, double factor) {
        const host X = dX.template to_host<host>();
        if (X.rows() != dense.cols() || X.cols() != right.cols()) return false;
        const double unit = static_cast<double>(std::numeric_limits<support::real_t<Scalar>>::epsilon());
        const double left = static_cast<double>((dense * X - right).norm());
        const double limit = factor * unit * static_cast<double>(dense.norm()) * static_cast<double>(X.norm());
        if (!(left <= limit)) MESSAGE("residual " << left << ", limit " << limit);
        return left <= limit;
    };
    const host a = regular(3, 1), b = regular(5, 2), c = regular(2, 3), right = random_matrix<host>(30, 7, 4);
    const host dense = dense_kron<Scalar>({a, b, c});
    const DeviceMatrix<Scalar> A(a), B(b), C(c), R(right);
    const auto K = kron(a, b, c);
    const otimes::kron_lu<Scalar> lu(K);
    CHECK(solves(lu.solve(R), dense, right, 8));
    CHECK(solves(kron(A, B, C).adjoint().solve(3 * R), host(dense.adjoint()), host(Scalar(3) * right), 8));
    // An ill-conditioned factor: the inverse alone would leave more than the step of refinement does.
    host hilbert(5, 5);
    for (Eigen::Index i = 0; i < 5; ++i)
        for (Eigen::Index j = 0; j < 5; ++j)
            hilbert(i, j) = Scalar(1) / Scalar(static_cast<support::real_t<Scalar>>(i + j + 1));
    const host ill = dense_kron<Scalar>({a, hilbert, c}), image = ill * right;  // of a solution that is not large
    CHECK(solves(otimes::kron_lu<Scalar>(kron(a, hilbert, c)).solve(DeviceMatrix<Scalar>(image)), ill, image, 16));

    // By eigenvectors: of self-adjoint factors, and of others (complex).
    const host p = definite(3, 6), q = definite(5, 7), r = definite(2, 8), m = definite(3, 9);
    const DeviceMatrix<Scalar> P(p), Q(q), Rr(r);
    const auto sum_of = [&](const host& f, const host& g, const host& h) {
        return host(dense_kron<Scalar>({f, eye(5), eye(2)}) + dense_kron<Scalar>({eye(3), g, eye(2)}) +
                    dense_kron<Scalar>({eye(3), eye(5), h}));
    };
    const host sum = sum_of(p, q, r), other = sum_of(a, b, c), spd = dense_kron<Scalar>({p, q, r});
    const otimes::kron_sum_solver<Scalar> poisson(otimes::kron_sum(p, q, r));
    CHECK(solves(poisson.solve(R), sum, right, 64));
    CHECK(solves(otimes::kron_sum(P, Q, Rr).solve(R), sum, right, 64));
    CHECK(solves(otimes::kron_sum(A, B, C).solve(R), other, right, 64));
    const host shifted = spd + Scalar(0.5) * eye(30);
    CHECK(solves((kron(P, Q, Rr) + 0.5 * identity()).solve(R), shifted, right, 64));
    CHECK(lu.solve(DeviceMatrix<Scalar>(host(30, 0))).cols() == 0);
    CHECK(poisson.solve(DeviceMatrix<Scalar>(host(30, 0))).cols() == 0);
    CHECK_THROWS_WITH_AS(static_cast<void>(lu.solve(P)),
                         doctest::Contains("the right-hand side is 3 x 3. Its rows must equal those of the product."),
                         otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(poisson.solve(P)), otimes::shape_error);
    CHECK_THROWS_AS(static_cast<void>(kron(DeviceMatrix<Scalar>(host::Ones(3, 3)), B, C).solve(R)),
                    otimes::singular_error);
    if constexpr (All) {
        const DeviceMatrix<Scalar, 1> R1(right);
        CHECK(solves(K.solve(R1), dense, right, 8));
        static_assert(std::is_same_v<decltype(K.solve(R1)), DeviceMatrix<Scalar, 1>>);
        CHECK(solves((2 * K.transpose()).solve(R), host(Scalar(2) * dense.transpose()), right, 8));
        CHECK(solves(kron(A, b, C).solve(R), dense, right, 8));
        DeviceMatrix<Scalar> padded(random_matrix<host>(40, 3, 5));
        const auto view = otimes::device_map<Scalar>(padded.data() + 3, 30, 3, 40);
        CHECK(solves(K.solve(view), dense, host(padded.to_host().block(3, 0, 30, 3)), 8));
        CHECK(solves(poisson.solve(R1), sum, right, 64));
        CHECK(solves(otimes::kron_sum(a, b, c).solve(R1), other, right, 64));
        CHECK(solves((kron(p, q, r) + 0.5 * identity()).solve(R), shifted, right, 64));
        const host mass = dense_kron<Scalar>({p, q, eye(2)}) + dense_kron<Scalar>({m, q, eye(2)});
        CHECK(solves((kron(p, q, identity(2)) + kron(m, q, identity(2))).solve(R), mass, right, 256));
        CHECK(solves(otimes::kron_llt<Scalar>(kron(p, q, r)).solve(R), spd, right, 64));
        CHECK(solves((otimes::kron_sum(p, q, r) * kron(a, b, c)).solve(R), host(sum * dense), right, 256));
        // Least squares: the residual is orthogonal to the columns.
        const host tall = random_matrix<host>(6, 3, 10), over = dense_kron<Scalar>({tall, b}),
                   longer = random_matrix<host>(30, 7, 11);
        const DeviceMatrix<Scalar> T(tall), L(longer);
        for (const host& X : {host(kron(tall, b).solve(L).to_host()), host(kron(T, B).solve(L).to_host())})
            CHECK(static_cast<double>((over.adjoint() * (over * X - longer)).norm()) <=
                  1000.0 * static_cast<double>(std::numeric_limits<support::real_t<Scalar>>::epsilon()) *
                      static_cast<double>(over.norm()) * static_cast<double>(over.norm()));
    }
}

}  // namespace device_test

// SPDX-License-Identifier: MIT
// Factors that no block of the GPU holds whole: a launch for each slice of the new index, first, last and between other modes.
#include <doctest/doctest.h>

#include <complex>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cuda/device_support.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

TEST_CASE_TEMPLATE("factors that no block holds" * needs_gpu(), Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    for (const shapes& s : {shapes{70, {256}, {256}}, shapes{5, {128, 128}, {128, 128}}, shapes{33, {192}, {320}},
                            shapes{3, {4, 256, 3}, {4, 256, 3}}, shapes{2, {512, 8}, {512, 8}}}) {
        CAPTURE(s.text());
        const auto factors = random_factors<Scalar>(s);
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = matrix<Scalar, Order>;
            const host X = random_matrix<host>(s.rows, s.inputs(), 11);
            std::vector<DeviceMatrix<Scalar, Order>> dF;
            for (const auto& f : factors) {
                dF.emplace_back(host(f));
            }
            const matrix<Scalar, 0> want = expected_right(X, factors);
            const DeviceMatrix<Scalar, Order> dX(X);
            DeviceMatrix<Scalar, Order> dY(X.rows(), s.outputs());
            poison(dY);
            dY = dX * kron(dF);
            CHECK(agrees(dY.to_host(), want, s));
            dY -= dX * (Scalar(0.5) * kron(dF));
            CHECK(agrees(dY.to_host(), matrix<Scalar, 0>(Scalar(0.5) * want), s));
            DeviceMatrix<Scalar, Order> dZ(X);
            if (s.p == s.q) {
                dZ = dZ * kron(dF);
                CHECK(agrees(dZ.to_host(), want, s));
            }
            const DeviceMatrix<Scalar, Order> dXt(host(X.transpose()));
            dZ = kron(dF).transpose() * dXt;
            CHECK(agrees(dZ.to_host(), matrix<Scalar, 0>(want.transpose()), s));
        });
    }
}

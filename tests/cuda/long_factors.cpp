// SPDX-License-Identifier: MIT
// Factors that no block of the GPU holds whole, first, last and between other modes: by blocks of a factor (kernels/blocked_multiply.cuh), or by a
// launch for each slice of the new index. Factors whose extents are no steps of the matrix unit: filled up with zeros.
#include <doctest/doctest.h>

#include <complex>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cuda/device_support.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

namespace {

template <class Scalar, int Order>
std::vector<DeviceMatrix<Scalar, Order>> on_device(const std::vector<matrix<Scalar, 0>>& factors, bool transposed) {
    std::vector<DeviceMatrix<Scalar, Order>> dF;
    for (const auto& f : factors) {
        dF.emplace_back(transposed ? matrix<Scalar, Order>(f.transpose()) : matrix<Scalar, Order>(f));
    }
    return dF;
}

// Assigned, added, with transposed factors, in place and from the left. by_blocks: the plan has such a kernel.
template <class Scalar>
void check_products(const shapes& s, bool by_blocks) {
    CAPTURE(s.text());
    const auto factors = random_factors<Scalar>(s);
    for_orders([&](auto order) {
        constexpr int Order = decltype(order)::value;
        using host = matrix<Scalar, Order>;
        const host X = random_matrix<host>(s.rows, s.inputs(), 11);
        const auto dF = on_device<Scalar, Order>(factors, false);
        const matrix<Scalar, 0> want = expected_right(X, factors);
        const DeviceMatrix<Scalar, Order> dX(X);
        DeviceMatrix<Scalar, Order> dY(X.rows(), s.outputs());
        poison(dY);
        if (by_blocks) {
            const otimes::plan plan = otimes::make_plan<Order>(dX * kron(dF));
            const std::string what =
                otimes::gpu().describe(plan);  // floats by the warpgroup's unit, where there is one
            CHECK((what.find("blocked_multiply") != std::string::npos ||
                   (std::is_same_v<Scalar, float> && what.find("warpgroup_blocks") != std::string::npos)));
        }
        dY = dX * kron(dF);
        CHECK(agrees(dY.to_host(), want, s));
        dY -= dX * (Scalar(0.5) * kron(dF));
        CHECK(agrees(dY.to_host(), matrix<Scalar, 0>(Scalar(0.5) * want), s));
        const auto dFt = on_device<Scalar, Order>(factors, true);
        poison(dY);
        dY = dX * kron(dFt).transpose();
        CHECK(agrees(dY.to_host(), want, s));
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

}  // namespace

TEST_CASE_TEMPLATE("factors that no tile holds go by blocks" * needs_gpu(), Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    // Odd extents, so that nothing lies at multiples of 16 bytes, and even ones.
    check_products<Scalar>({5000, {257}, {257}}, true);
    check_products<Scalar>({3000, {360}, {296}}, true);
    check_products<Scalar>({300, {150, 40}, {290, 40}}, true);
    check_products<Scalar>({90, {5, 463, 7}, {5, 270, 7}}, true);
}

TEST_CASE_TEMPLATE("factors that no block holds" * needs_gpu(), Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    check_products<Scalar>({70, {256}, {256}}, false);
    check_products<Scalar>({5, {128, 128}, {128, 128}}, false);
    check_products<Scalar>({33, {192}, {320}}, false);
    check_products<Scalar>({3, {4, 256, 3}, {4, 256, 3}}, false);
    check_products<Scalar>({2, {512, 8}, {512, 8}}, false);
}

TEST_CASE_TEMPLATE("modes that are filled up for the matrix unit, and modes that grow to odd extents" * needs_gpu(),
                   Scalar, float, double, std::complex<float>) {
    check_products<Scalar>({4000, {25, 25}, {25, 25}}, false);
    check_products<Scalar>({801, {45, 38}, {39, 43}}, false);
    check_products<Scalar>({20001, {33}, {36}}, false);
    check_products<Scalar>({20000, {65}, {90}}, false);
    check_products<Scalar>({333, {13, 14, 28}, {15, 12, 26}}, false);
    // Of 22 elements that become 31 the next ones stand 31 further.
    check_products<Scalar>({2419, {6, 21, 22}, {4, 40, 31}}, false);
    check_products<Scalar>({900, {8, 3, 24}, {8, 3, 25}}, false);
    check_products<Scalar>({500, {16, 5, 8}, {16, 6, 9}}, false);
}

// SPDX-License-Identifier: MIT
// Factors that no block of the GPU holds whole, first, last and between other modes: by blocks of a factor (kernels/blocked_multiply.cuh), by a
// launch for each slice of the new index, or few rows several at once (kernels/few_fibres.cuh). Factors whose extents are no steps of the matrix unit: filled up with zeros.
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

enum class goes { anyhow, by_blocks, staying, in_pieces, several_fibres_at_once };

// Assigned, added, with transposed factors, in place and from the left. how: the plan has such a kernel.
template <class Scalar>
void check_products(const shapes& s, goes how) {
    constexpr bool is_complex = !std::is_floating_point_v<Scalar>;
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
        const otimes::plan plan = otimes::make_plan<Order>(dX * kron(dF));
        const std::string what = otimes::gpu().describe(plan);  // floats by the warpgroup's unit, where there is one
        if (how == goes::several_fibres_at_once) {
            CHECK(what.find("few_fibres_multiply") != std::string::npos);
        }
        if (how == goes::in_pieces) {
            CHECK(plan.passes.front().tile.slices > 1);
        }
        if (how == goes::by_blocks || how == goes::in_pieces) {
            CHECK((what.find("blocked_multiply") != std::string::npos ||
                   (std::is_same_v<Scalar, float> && what.find("warpgroup_blocks") != std::string::npos) ||
                   (!is_complex && what.find("staying_factor") != std::string::npos)));
        }
        if (how == goes::staying) {  // where there is a warpgroup's unit, and one of doubles as fast
            const bool stays = otimes::gpu().target().gpus.front().has_warpgroup_mma;
            CHECK((what.find("staying_factor") != std::string::npos) == stays);
            if (stays && s.p == s.q && s.p.size() > 1) {  // what lies between lies in Y
                CHECK(plan.passes.back().in == plan.passes.back().out);
            }
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
    check_products<Scalar>({5000, {257}, {257}}, goes::by_blocks);
    check_products<Scalar>({3000, {360}, {296}}, goes::by_blocks);
    check_products<Scalar>({300, {150, 40}, {290, 40}}, goes::by_blocks);
    check_products<Scalar>({90, {5, 463, 7}, {5, 270, 7}}, goes::by_blocks);
}

// More tiles than multiprocessors; rows that go by 16 bytes, and that begin anywhere; more new indices than a block has; the last tile partly there.
TEST_CASE_TEMPLATE("factors that stay on chip" * needs_gpu(), Scalar, float, double) {
    check_products<Scalar>({40000, {100}, {100}}, goes::staying);
    check_products<Scalar>({40003, {101}, {77}}, goes::staying);
    check_products<Scalar>({50001, {72}, {157}}, goes::staying);
    check_products<Scalar>({500, {100, 96}, {100, 96}}, goes::staying);
    check_products<Scalar>({8, {100, 72, 88}, {100, 72, 88}}, goes::staying);
    check_products<Scalar>({301, {9, 88, 13}, {9, 93, 13}}, goes::anyhow);
    check_products<Scalar>({300, {66, 130}, {90, 67}}, goes::anyhow);
}

TEST_CASE_TEMPLATE("blocks too few for a device sum in pieces" * needs_gpu(), Scalar, float, double) {
    check_products<Scalar>({512, {512}, {512}}, goes::in_pieces);
    check_products<Scalar>({300, {1536}, {200}}, goes::in_pieces);
}

TEST_CASE_TEMPLATE("factors that no block holds" * needs_gpu(), Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    check_products<Scalar>({70, {256}, {256}}, goes::anyhow);
    check_products<Scalar>({5, {128, 128}, {128, 128}}, goes::anyhow);
    check_products<Scalar>({33, {192}, {320}}, goes::anyhow);
    check_products<Scalar>({3, {4, 256, 3}, {4, 256, 3}}, goes::anyhow);
    check_products<Scalar>({2, {512, 8}, {512, 8}}, goes::anyhow);
}

// Of 2 MB and more in every type; more than one panel of X, more than one group of fibres, of the last group some.
TEST_CASE_TEMPLATE("few rows of long factors go several at once" * needs_gpu(), Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    check_products<Scalar>({13, {3301}, {501}}, goes::several_fibres_at_once);
    check_products<Scalar>({2, {1500}, {1500}}, goes::anyhow);
    check_products<Scalar>({1, {1100, 9}, {1023, 9}}, goes::several_fibres_at_once);
    check_products<Scalar>({3, {5, 1301}, {4, 700}}, goes::several_fibres_at_once);
    check_products<Scalar>({1, {3, 1024, 4}, {3, 1024, 4}}, goes::several_fibres_at_once);
}

TEST_CASE_TEMPLATE("modes that are filled up for the matrix unit, and modes that grow to odd extents" * needs_gpu(),
                   Scalar, float, double, std::complex<float>) {
    check_products<Scalar>({4000, {25, 25}, {25, 25}}, goes::anyhow);
    check_products<Scalar>({801, {45, 38}, {39, 43}}, goes::anyhow);
    check_products<Scalar>({20001, {33}, {36}}, goes::anyhow);
    check_products<Scalar>({20000, {65}, {90}}, goes::anyhow);
    check_products<Scalar>({333, {13, 14, 28}, {15, 12, 26}}, goes::anyhow);
    // Of 22 elements that become 31 the next ones stand 31 further.
    check_products<Scalar>({2419, {6, 21, 22}, {4, 40, 31}}, goes::anyhow);
    check_products<Scalar>({900, {8, 3, 24}, {8, 3, 25}}, goes::anyhow);
    check_products<Scalar>({500, {16, 5, 8}, {16, 6, 9}}, goes::anyhow);
}

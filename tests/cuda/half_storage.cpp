// SPDX-License-Identifier: MIT
// Products of 16-bit elements in device memory by the fused kernels: shapes, orders, sides, strides and offsets, scalars, sums, infinities.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cuda/device_support.hpp"

using otimes::device_map;
using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

namespace {

template <class Storage>
constexpr double unit_of = std::is_same_v<Storage, otimes::half> ? 0x1p-11 : 0x1p-8;

template <class Storage, int Order>
using stored = Eigen::Matrix<Storage, Eigen::Dynamic, Eigen::Dynamic, Order>;

template <class Storage, int Order>
stored<Storage, Order> random_stored(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix<matrix<float, Order>>(rows, cols, seed).template cast<Storage>();
}

/// Norm-wise: each mode and the end round to about the storage's precision.
template <class Storage, class Got, class Want>
bool close(const Got& got, const Want& want, std::size_t modes) {
    if (got.rows() != want.rows() || got.cols() != want.cols()) {
        return false;
    }
    const double distance = (got.template cast<float>().template cast<double>() - want.template cast<double>()).norm();
    const double limit = unit_of<Storage> * static_cast<double>(modes + 1) * static_cast<double>(want.norm());
    CAPTURE(distance / (limit > 0 ? limit : 1));
    CHECK(distance <= limit);
    return distance <= limit;
}

std::vector<shapes> fused_shapes() {
    std::vector<shapes> all = test_shapes();
    const auto power = [](std::int64_t rows, std::size_t count, std::int64_t extent) {
        const std::vector<std::int64_t> extents(count, extent);
        return shapes{rows, extents, extents};
    };
    for (const shapes& s : {power(300, 5, 8), power(70, 3, 16), power(5, 4, 16), power(300, 2, 32), power(5, 3, 32),
                            power(130, 1, 64), power(140, 2, 64), power(7, 2, 128), power(50, 7, 3), power(33, 10, 2),
                            power(5, 18, 2), power(41, 3, 10), power(9, 5, 6), power(4100, 1, 16)}) {
        all.push_back(s);
    }
    all.push_back({3, {40, 24}, {24, 40}});
    all.push_back({2000, {8}, {24}});
    all.push_back({3, {256, 16}, {16, 256}});
    return all;
}

}  // namespace

TEST_CASE_TEMPLATE("fused products of 16-bit elements, both orders and sides" * needs_gpu(), Storage, otimes::half,
                   otimes::bfloat16) {
    for (const shapes& s : fused_shapes()) {
        CAPTURE(s.text());
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = stored<Storage, Order>;
            std::vector<matrix<float, 0>> factors;
            std::vector<DeviceMatrix<Storage, Order>> dF;
            for (std::size_t k = 0; k < s.p.size(); ++k) {
                const host f = random_stored<Storage, Order>(s.p[k], s.q[k], 100 + k);
                factors.emplace_back(f.template cast<float>());
                dF.emplace_back(f);
            }
            const host X = random_stored<Storage, Order>(s.rows, s.inputs(), 11);
            const matrix<float, 0> wide_x = X.template cast<float>();
            const matrix<float, 0> want = expected_right(wide_x, factors);
            const DeviceMatrix<Storage, Order> dX(X);
            DeviceMatrix<Storage, Order> dY(s.rows, s.outputs());
            dY = host::Constant(s.rows, s.outputs(), Storage(std::numeric_limits<float>::quiet_NaN())).eval();
            dY = dX * kron(dF);
            CHECK(close<Storage>(dY.to_host(), want, s.p.size()));
            dY -= dX * (0.5f * kron(dF));
            CHECK(close<Storage>(dY.to_host(), matrix<float, 0>(0.5f * want), s.p.size() + 2));
            const DeviceMatrix<Storage, Order> dXt(host(X.transpose()));
            DeviceMatrix<Storage, Order> dZ;
            dZ = kron(dF).transpose() * dXt;
            CHECK(close<Storage>(dZ.to_host(), matrix<float, 0>(want.transpose()), s.p.size()));
        });
    }
}

TEST_CASE_TEMPLATE("16-bit elements at odd addresses and strides, guard zones" * needs_gpu(), Storage, otimes::half,
                   otimes::bfloat16) {
    for (const shapes& s : {shapes{5, {3, 4}, {4, 3}}, shapes{140, {16, 16}, {16, 16}}, shapes{9, {8, 8, 8}, {8, 8, 8}},
                            shapes{3, {16, 16, 32}, {16, 16, 32}}}) {
        CAPTURE(s.text());
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            using host = stored<Storage, Order>;
            std::vector<matrix<float, 0>> factors;
            std::vector<DeviceMatrix<Storage, Order>> dF;
            for (std::size_t k = 0; k < s.p.size(); ++k) {
                const host f = random_stored<Storage, Order>(s.p[k], s.q[k], 100 + k);
                factors.emplace_back(f.template cast<float>());
                dF.emplace_back(f);
            }
            const matrix<float, 0> wide_x = random_stored<Storage, 0>(s.rows, s.inputs(), 5).template cast<float>();
            const matrix<float, 0> want = expected_right(wide_x, factors);
            const std::int64_t inner_x = Order == 1 ? s.inputs() : s.rows, outer_x = Order == 1 ? s.rows : s.inputs();
            const std::int64_t inner_y = Order == 1 ? s.outputs() : s.rows, outer_y = Order == 1 ? s.rows : s.outputs();
            for (int offset : {0, 1, 2, 3, 4, 7, 8}) {
                CAPTURE(offset);
                const std::int64_t gap = offset % 5;  // strides that 2, 4 and 8 elements divide, and others
                using vector = Eigen::Matrix<Storage, Eigen::Dynamic, 1>;
                const Storage guard(77.f);
                vector x = vector::Constant(offset + outer_x * (inner_x + gap) + 16, guard);
                vector y = vector::Constant(offset + outer_y * (inner_y + gap) + 16, guard);
                for (std::int64_t o = 0; o < outer_x; ++o) {
                    for (std::int64_t i = 0; i < inner_x; ++i) {
                        x(offset + o * (inner_x + gap) + i) = Storage(Order == 1 ? wide_x(o, i) : wide_x(i, o));
                    }
                }
                const DeviceMatrix<Storage> dx(x);
                DeviceMatrix<Storage> dy(y);
                const auto X = device_map<Storage, Order>(dx.data() + offset, s.rows, s.inputs(), inner_x + gap);
                auto Y = device_map<Storage, Order>(dy.data() + offset, s.rows, s.outputs(), inner_y + gap);
                Y = X * kron(dF);
                const stored<Storage, 0> got = dy.to_host();
                matrix<float, 0> result(s.rows, s.outputs());
                std::int64_t others = 0;
                for (std::int64_t at = 0; at < got.size(); ++at) {
                    const std::int64_t o = at < offset ? outer_y : (at - offset) / (inner_y + gap);
                    const std::int64_t i = at < offset ? 0 : (at - offset) % (inner_y + gap);
                    const float value = static_cast<float>(got.data()[at]);
                    if (o < outer_y && i < inner_y) {
                        (Order == 1 ? result(o, i) : result(i, o)) = value;
                    } else {
                        others += value == 77.f ? 0 : 1;
                    }
                }
                CHECK(others == 0);
                CHECK(close<Storage>(result, want, s.p.size()));
            }
        });
    }
}

TEST_CASE_TEMPLATE("16-bit elements: sums, in place, infinities, the same bits again" * needs_gpu(), Storage,
                   otimes::half, otimes::bfloat16) {
    const shapes s{200, {16, 16}, {16, 16}};
    using host = stored<Storage, 1>;
    std::vector<matrix<float, 0>> factors;
    std::vector<DeviceMatrix<Storage, 1>> dF;
    for (std::size_t k = 0; k < 2; ++k) {
        const host f = random_stored<Storage, 1>(16, 16, 100 + k);
        factors.emplace_back(f.template cast<float>());
        dF.emplace_back(f);
    }
    host X = random_stored<Storage, 1>(s.rows, s.inputs(), 5);
    const matrix<float, 0> wide_x = X.template cast<float>();
    const matrix<float, 0> want = expected_right(wide_x, factors);
    const DeviceMatrix<Storage, 1> dX(X);
    const auto K = kron(dF[0], dF[1]);
    DeviceMatrix<Storage, 1> dY;
    dY = dX * K + dX * kron(dF[1], dF[0]);
    const matrix<float, 0> other = expected_right(wide_x, std::vector<matrix<float, 0>>{factors[1], factors[0]});
    CHECK(close<Storage>(dY.to_host(), matrix<float, 0>(want + other), 6));
    dY = dX + dX * K;
    CHECK(close<Storage>(dY.to_host(), matrix<float, 0>(wide_x + want), 4));
    dY = dX * kron(dF[0], dF[1]) * kron(dF[1], dF[0]);
    CHECK(close<Storage>(dY.to_host(),
                         matrix<float, 0>(expected_right(want, std::vector<matrix<float, 0>>{factors[1], factors[0]})),
                         8));
    dY = dX * (K + 3 * otimes::identity(256));
    CHECK(close<Storage>(dY.to_host(), matrix<float, 0>(want + 3 * wide_x), 4));
    dY = dX * otimes::kron_sum(dF[0], dF[1]);
    const matrix<float, 0> one = matrix<float, 0>::Identity(16, 16);
    CHECK(close<Storage>(dY.to_host(),
                         matrix<float, 0>(expected_right(wide_x, std::vector<matrix<float, 0>>{factors[0], one}) +
                                          expected_right(wide_x, std::vector<matrix<float, 0>>{one, factors[1]})),
                         6));
    DeviceMatrix<Storage, 1> dZ(X);
    dZ = dZ * K;
    dY = dX * K;
    const host once = dY.to_host();
    dY = dX * K;
    CHECK(std::memcmp(once.data(), dY.to_host().data(), static_cast<std::size_t>(once.size()) * 2) == 0);
    CHECK(close<Storage>(dZ.to_host(), want, 2));

    // A row with an infinity is not finite, the others are as they were.
    X(7, 3) = Storage(std::numeric_limits<float>::infinity());
    const DeviceMatrix<Storage, 1> with_infinity(X);
    dY = with_infinity * K;
    host got = dY.to_host();
    CHECK_FALSE(got.row(7).template cast<float>().allFinite());
    got.row(7) = once.row(7);
    CHECK(std::memcmp(once.data(), got.data(), static_cast<std::size_t>(once.size()) * 2) == 0);
}

TEST_CASE("floats by single TF32 products on request, by three or by multiply-adds otherwise" * needs_gpu()) {
    for (const shapes& s :
         {shapes{300, {16, 16, 16}, {16, 16, 16}}, shapes{140, {64, 64}, {64, 64}}, shapes{4000, {128}, {64}},
          shapes{9, {32, 24, 8}, {24, 32, 16}}, shapes{5, {32, 32, 32}, {32, 32, 32}}}) {
        CAPTURE(s.text());
        for_orders([&](auto order) {
            constexpr int Order = decltype(order)::value;
            const auto factors = random_factors<float>(s);
            std::vector<DeviceMatrix<float, Order>> dF;
            for (const auto& f : factors) {
                dF.emplace_back(matrix<float, Order>(f));
            }
            const matrix<float, Order> X = random_matrix<matrix<float, Order>>(s.rows, s.inputs(), 11);
            const matrix<float, 0> want = expected_right(X, factors);
            const DeviceMatrix<float, Order> dX(X);
            const auto error_with = [&](otimes::precision wished) {
                otimes::options wishes;
                wishes.precision = wished;
                DeviceMatrix<float, Order> dY(s.rows, s.outputs());
                poison(dY);
                otimes::make_plan<Order>(dX * kron(dF), wishes).run(dY, dX * kron(dF));
                const double error = static_cast<double>((dY.to_host() - want).norm() / want.norm());
                CHECK(std::isfinite(error));
                return error;
            };
            CHECK(error_with(otimes::precision::standard) < 2e-6);
            CHECK(error_with(otimes::precision::ieee) < 2e-6);
            const double single = error_with(otimes::precision::tf32);
            CHECK(single < 0x1p-11 * static_cast<double>(s.p.size() + 1));
            CHECK(single > 1e-5);  // a product of three would be closer
        });
    }
}

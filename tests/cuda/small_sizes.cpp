// SPDX-License-Identifier: MIT
// One product and one dot product of a few tiles by each kernel of long factors (small_sizes.hpp), and products of 16-bit elements: cases that end under
// racecheck. bench/gpu/sanitize.sh runs each case of this suite by itself.
#include <doctest/doctest.h>

#include <complex>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cuda/device_support.hpp"
#include "cuda/small_sizes.hpp"

using otimes::DeviceMatrix;
using otimes::kron;
using namespace device_test;

namespace {

template <class Scalar, int Order>
void check_product(const shapes& s) {
    CAPTURE(s.text());
    using host = matrix<Scalar, Order>;
    const auto factors = random_factors<Scalar>(s);
    const host X = random_matrix<host>(s.rows, s.inputs(), 17);
    std::vector<DeviceMatrix<Scalar, Order>> dF;
    for (const auto& f : factors) {
        dF.emplace_back(host(f));
    }
    const DeviceMatrix<Scalar, Order> dX(X);
    DeviceMatrix<Scalar, Order> dY(s.rows, s.outputs());
    poison(dY);
    dY = dX * kron(dF);
    const matrix<Scalar, 0> want = expected_right(X, factors);
    CHECK(agrees(dY.to_host(), want, s));
    const host Z = random_matrix<host>(s.rows, s.outputs(), 18);
    const DeviceMatrix<Scalar, Order> dZ(Z);
    const auto expected = (Z.conjugate().cwiseProduct(want)).sum();
    const auto limit = support::tolerance<Scalar>(static_cast<std::size_t>(s.inputs())) * Z.norm() * want.norm();
    CHECK(std::abs(otimes::dot(dZ, dX * kron(dF)) - expected) <= limit);
}

template <class Storage, int Order>
void check_narrow_product(const shapes& s) {
    CAPTURE(s.text());
    using stored = Eigen::Matrix<Storage, Eigen::Dynamic, Eigen::Dynamic, Order>;
    const auto narrow = [](const auto& m) { return stored(m.template cast<Storage>()); };
    const stored X = narrow(random_matrix<matrix<float, Order>>(s.rows, s.inputs(), 19));
    std::vector<matrix<float, 0>> factors;
    std::vector<DeviceMatrix<Storage, Order>> dF;
    for (const auto& f : random_factors<float>(s)) {
        const stored rounded = narrow(f);
        dF.emplace_back(rounded);
        factors.push_back(rounded.template cast<float>());
    }
    const DeviceMatrix<Storage, Order> dX(X);
    DeviceMatrix<Storage, Order> dY(s.rows, s.outputs());
    dY = dX * kron(dF);
    const matrix<float, 0> want = expected_right(matrix<float, 0>(X.template cast<float>()), factors);
    const float unit = std::is_same_v<Storage, otimes::half> ? 0x1p-11f : 0x1p-8f;
    const float limit = unit * static_cast<float>(s.p.size() + 1) * want.norm();
    CHECK((dY.to_host().template cast<float>() - want).norm() <= limit);
}

template <class Scalar>
struct by_rows {
    using scalar = Scalar;
    static constexpr int order = Eigen::RowMajor;
};
template <class Scalar>
struct by_columns {
    using scalar = Scalar;
    static constexpr int order = Eigen::ColMajor;
};

template <class Form>
void check_products(long_kernel kernel) {
    for (const shapes& s : small_sizes_of(kernel)) {
        check_product<typename Form::scalar, Form::order>(s);
    }
}

}  // namespace

TEST_CASE_TEMPLATE("small: long factors by blocks" * needs_gpu(), Form, by_rows<float>, by_columns<float>,
                   by_rows<double>, by_columns<double>, by_rows<std::complex<float>>,
                   by_columns<std::complex<double>>) {
    check_products<Form>(long_kernel::blocks);
}

TEST_CASE_TEMPLATE("small: floats by warpgroups" * needs_gpu(), Form, by_rows<float>, by_columns<float>) {
    check_products<Form>(long_kernel::warpgroup_blocks);
}

TEST_CASE_TEMPLATE("small: long factors in pieces" * needs_gpu(), Form, by_rows<float>, by_columns<double>) {
    check_products<Form>(long_kernel::pieces);
}

TEST_CASE_TEMPLATE("small: factors that stay on chip" * needs_gpu(), Form, by_rows<float>, by_columns<float>,
                   by_rows<double>, by_columns<double>) {
    check_products<Form>(long_kernel::staying);
}

TEST_CASE_TEMPLATE("small: few rows of long factors" * needs_gpu(), Form, by_rows<float>, by_columns<double>,
                   by_rows<std::complex<float>>, by_columns<std::complex<double>>) {
    check_products<Form>(long_kernel::few_fibres);
}

TEST_CASE_TEMPLATE("small: 16-bit elements" * needs_gpu(), Form, by_rows<otimes::half>, by_columns<otimes::half>,
                   by_rows<otimes::bfloat16>, by_columns<otimes::bfloat16>) {
    for (const shapes& s : {shapes{40, {8, 8, 8}, {8, 8, 8}},
                            {9, {16, 16, 16}, {16, 16, 16}},
                            {70, {32, 32}, {32, 32}},
                            {800, {130}, {67}},
                            {12, {5, 7, 6}, {7, 5, 6}}}) {
        check_narrow_product<typename Form::scalar, Form::order>(s);
    }
}

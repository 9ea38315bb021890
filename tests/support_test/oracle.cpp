// SPDX-License-Identifier: MIT
// The oracle against numbers worked out by hand.
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <complex>
#include <initializer_list>
#include <vector>

#include "support/compare.hpp"

namespace {

oracle::real matrix(std::initializer_list<std::initializer_list<long double>> rows) {
    oracle::real result(rows.size(), rows.begin()->size());
    std::size_t i = 0;
    for (const auto& row : rows) {
        std::size_t j = 0;
        for (const long double entry : row) result(i, j++) = entry;
        ++i;
    }
    return result;
}

}  // namespace

TEST_CASE("kron of two matrices, written out") {
    const auto a = matrix({{1, 2}, {3, -4}});
    const auto b = matrix({{0, 5, 6}});
    CHECK(support::exactly_equal(oracle::kron(a, b), matrix({{0, 5, 6, 0, 10, 12}, {0, 15, 18, 0, -20, -24}})));
    CHECK(support::exactly_equal(oracle::kron(b, a), matrix({{0, 0, 5, 10, 6, 12}, {0, 0, 15, -20, 18, -24}})));
}

TEST_CASE("kron of three is kron of kron, of one the factor, of none the 1 x 1 one") {
    const auto a = matrix({{1, 2}, {3, -4}, {5, 6}});
    const auto b = matrix({{2, -1}});
    const auto c = matrix({{1, 0, 2}, {-3, 4, 1}});
    CHECK(support::exactly_equal(oracle::kron(a, b, c), oracle::kron(oracle::kron(a, b), c)));
    CHECK(support::exactly_equal(oracle::kron(a, b, c), oracle::kron(a, oracle::kron(b, c))));
    CHECK_FALSE(support::exactly_equal(oracle::kron(a, b, c), oracle::kron(c, b, a)));
    CHECK(support::exactly_equal(oracle::kron(std::vector{a}), a));
    CHECK(support::exactly_equal(oracle::kron(std::vector<oracle::real>{}), matrix({{1}})));
}

TEST_CASE("multiply, add, scale, transpose, adjoint") {
    const auto a = matrix({{1, 2}, {3, -4}});
    const auto b = matrix({{5, 6, 7}, {8, 9, -1}});
    CHECK(support::exactly_equal(oracle::multiply(a, b), matrix({{21, 24, 5}, {-17, -18, 25}})));
    CHECK(support::exactly_equal(oracle::add(a, a), oracle::scale(2, a)));
    CHECK(support::exactly_equal(oracle::transpose(b), matrix({{5, 8}, {6, 9}, {7, -1}})));
    CHECK(support::exactly_equal(oracle::multiply(a, oracle::identity(2)), a));
    oracle::complex z(1, 2);
    z(0, 0) = {1, 2};
    z(0, 1) = {3, -4};
    CHECK(oracle::adjoint(z)(1, 0) == std::complex<long double>(3, 4));
    CHECK(oracle::multiply(z, oracle::adjoint(z))(0, 0) == std::complex<long double>(30, 0));
    CHECK(oracle::kron(a, z)(1, 3) == std::complex<long double>(-12, 16));  // mixed: the result is complex
    CHECK_THROWS_AS(oracle::multiply(b, a), std::logic_error);
    CHECK_THROWS_AS(oracle::add(a, b), std::logic_error);
}

TEST_CASE("kron_times_vector is the product with the formed matrix") {
    const std::vector factors{matrix({{1, 2}, {3, -4}, {5, 6}}), matrix({{2, -1}}), matrix({{1, 0, 2}, {-3, 4, 1}})};
    std::vector<long double> v;
    for (int i = 0; i < 12; ++i) v.push_back(i * i - 5 * i + 1);
    oracle::real column(12, 1);
    for (std::size_t i = 0; i < 12; ++i) column(i, 0) = v[i];
    const auto want = oracle::multiply(oracle::kron(factors), column);
    const auto got = oracle::kron_times_vector(factors, v);
    REQUIRE(got.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(got[i] == want(i, 0));
    CHECK_THROWS_AS(oracle::kron_times_vector(factors, std::vector<long double>(11)), std::logic_error);
}

// SPDX-License-Identifier: MIT
// The comparisons must be able to fail: NaN, infinity, wrong shapes and wrong entries are fed to each.
#include "support/compare.hpp"

#include <doctest/doctest.h>

#include <complex>
#include <limits>
#include <vector>

#include "support/oracle.hpp"
#include "support/random.hpp"

namespace {

// A matrix of the type under test, without Eigen.
template <class Scalar>
class matrix {
public:
    matrix(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols), entries_(rows * cols) {}
    std::size_t rows() const { return rows_; }
    std::size_t cols() const { return cols_; }
    Scalar& operator()(std::size_t i, std::size_t j) { return entries_.at(j * rows_ + i); }
    const Scalar& operator()(std::size_t i, std::size_t j) const { return entries_.at(j * rows_ + i); }

private:
    std::size_t rows_, cols_;
    std::vector<Scalar> entries_;
};

template <class Scalar>
matrix<Scalar> rounded(const oracle::dense<oracle::wide_t<Scalar>>& source) {
    matrix<Scalar> result(source.rows(), source.cols());
    for (std::size_t i = 0; i < source.rows(); ++i) {
        for (std::size_t j = 0; j < source.cols(); ++j) result(i, j) = static_cast<Scalar>(source(i, j));
    }
    return result;
}

}  // namespace

TEST_CASE_TEMPLATE("a result rounded once is accepted, a spoiled one is not", Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    using real = support::real_t<Scalar>;
    const auto x = support::random_matrix<matrix<Scalar>>(std::size_t{3}, std::size_t{6}, 1);
    const auto a = support::random_matrix<matrix<Scalar>>(std::size_t{2}, std::size_t{4}, 2);
    const auto b = support::random_matrix<matrix<Scalar>>(std::size_t{3}, std::size_t{5}, 3);
    const std::vector factors{oracle::from(a), oracle::from(b)};
    const auto want = oracle::multiply(oracle::from(x), oracle::kron(factors));
    const auto magnitude =
        oracle::multiply(oracle::magnitudes(oracle::from(x)), oracle::magnitudes(oracle::kron(factors)));
    const std::size_t length = 6;

    const auto accepted = [&](const matrix<Scalar>& y) {
        const bool close = static_cast<bool>(support::close(y, want, length));
        CHECK(close == (support::relative_error(y, want) <= support::tolerance<Scalar>(length)));
        CHECK(close == static_cast<bool>(support::within_rounding(y, want, magnitude, length)));
        CHECK(close == static_cast<bool>(support::close_by_projection(x, factors, y, length)));
        return close;
    };

    const matrix<Scalar> good = rounded<Scalar>(want);
    CHECK(accepted(good));
    CHECK(support::exactly_equal(good, good));

    const auto spoil = [&](Scalar value) {
        matrix<Scalar> bad = good;
        bad(1, 7) = value;
        return bad;
    };
    for (const real special : {std::numeric_limits<real>::quiet_NaN(), std::numeric_limits<real>::infinity(),
                               -std::numeric_limits<real>::infinity()}) {
        const auto bad = spoil(Scalar(special));
        CHECK_FALSE(accepted(bad));
        CHECK_FALSE(support::exactly_equal(bad, bad));  // not even with itself
        CHECK(support::relative_error(bad, bad) == std::numeric_limits<long double>::infinity());
        CHECK(support::same_special_values(bad, bad));
        CHECK_FALSE(support::same_special_values(bad, good));
        CHECK_FALSE(support::same_special_values(good, bad));
    }
    CHECK_FALSE(accepted(spoil(good(1, 7) + Scalar(real(0.01)))));
    CHECK_FALSE(accepted(spoil(-good(1, 7))));
    CHECK_FALSE(
        support::exactly_equal(spoil(good(1, 7) * Scalar(real(1) + std::numeric_limits<real>::epsilon())), good));
    CHECK_FALSE(accepted(matrix<Scalar>(3, 20)));  // all zero
}

TEST_CASE("the reason names the place and the shapes") {
    oracle::real want(2, 3);
    oracle::real got(3, 2);
    CHECK(support::close(got, want, 1).reason == "got 3 x 2, expected 2 x 3");
    CHECK_FALSE(support::close(got, want, 1));
    CHECK_FALSE(support::exactly_equal(got, want));
    CHECK_FALSE(support::same_special_values(got, want));
    oracle::real other = want;
    other(1, 2) = 1.0L;
    CHECK_FALSE(support::close(other, want, 1));  // against zero any error is too large
    CHECK(support::close(other, want, 1).reason.find("(1, 2)") != std::string::npos);
}

TEST_CASE("empty and all-zero results are equal to themselves") {
    CHECK(support::close(oracle::real(0, 3), oracle::real(0, 3), 0));
    CHECK_FALSE(support::close(oracle::real(0, 3), oracle::real(3, 0), 0));
    CHECK(support::close(oracle::real(2, 2), oracle::real(2, 2), 4));
}

TEST_CASE("the tolerance grows with the contraction, not beyond use") {
    CHECK(support::tolerance<float>(1) < support::tolerance<float>(100));
    CHECK(support::tolerance<double>(1 << 20) < 1e-11L);
    CHECK(support::tolerance<float>(1 << 12) < 1e-4L);
    CHECK(support::tolerance<int>(1000) == 0.0L);
    CHECK(support::tolerance<std::complex<double>>(7) == 2 * support::tolerance<double>(7));
}

TEST_CASE("random contents are signed, unequal and repeatable; powers of two are exact; poison is NaN") {
    const auto a = support::random_matrix<matrix<double>>(std::size_t{7}, std::size_t{9}, 5);
    const auto again = support::random_matrix<matrix<double>>(std::size_t{7}, std::size_t{9}, 5);
    const auto other = support::random_matrix<matrix<double>>(std::size_t{7}, std::size_t{9}, 6);
    CHECK(support::exactly_equal(a, again));
    CHECK_FALSE(support::exactly_equal(a, other));
    int negative = 0;
    for (std::size_t i = 0; i < 7; ++i) {
        for (std::size_t j = 0; j < 9; ++j) {
            CHECK(std::abs(a(i, j)) >= 0.1);
            CHECK(std::abs(a(i, j)) <= 1.0);
            negative += a(i, j) < 0 ? 1 : 0;
        }
    }
    CHECK(negative > 15);
    CHECK(negative < 48);
    const auto exact = support::powers_of_two_matrix<matrix<float>>(std::size_t{4}, std::size_t{4}, 2);
    for (std::size_t i = 0; i < 4; ++i) {
        for (std::size_t j = 0; j < 4; ++j) CHECK(std::abs(std::log2(std::abs(exact(i, j)))) <= 2.0f);
    }
    const auto poisoned = support::poisoned_matrix<matrix<std::complex<float>>>(std::size_t{2}, std::size_t{2});
    CHECK(std::isnan(poisoned(1, 1).real()));
    CHECK_FALSE(support::close(poisoned, poisoned, 1));
}

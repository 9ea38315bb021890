// SPDX-License-Identifier: MIT
// What otimes::tune calls equal: elements of every type compared as what they are.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <otimes/program/half.hpp>

#include "../../backend/core/result_difference.hpp"

namespace {

using otimes::dtype;
using otimes::backend::pieces_to_compare;
using otimes::backend::relative_difference;

template <class Scalar>
double difference(const std::vector<Scalar>& got, const std::vector<Scalar>& want,
                  dtype type = otimes::dtype_of<Scalar>()) {
    return relative_difference(std::as_bytes(std::span(got)), std::as_bytes(std::span(want)), type);
}

template <class Scalar>
double squared(const Scalar& x) {
    if constexpr (otimes::is_complex(otimes::dtype_of<Scalar>())) {
        return static_cast<double>(std::norm(x));
    } else {
        return static_cast<double>(x) * static_cast<double>(x);
    }
}

// 1.0 to 1.6 and one 8, of an odd number of elements: no multiple of 8 bytes in any 16-bit or 32-bit type.
template <class Scalar>
std::vector<Scalar> numbers(std::size_t count = 4097) {
    std::vector<Scalar> v;
    for (std::size_t i = 0; i < count; ++i)
        v.push_back(Scalar(i + 1 == count ? 8.0f : 1.0f + static_cast<float>(i % 7) * 0.1f));
    return v;
}

}  // namespace

TEST_CASE_TEMPLATE("a difference is that of the elements, in every type", Scalar, otimes::half, otimes::bfloat16, float,
                   double, std::complex<float>, std::complex<double>) {
    const std::vector<Scalar> want = numbers<Scalar>();
    CHECK(difference(want, want) == 0);
    std::vector<Scalar> got = want;
    const auto middle = static_cast<std::ptrdiff_t>(got.size() / 2);
    std::fill(got.begin(), got.end() - 1, Scalar(0.0f));  // the largest alone is right
    CHECK(difference(got, want) > 0.9);
    got = want;
    std::fill(got.begin() + middle, got.end(), Scalar(0.0f));
    CHECK(difference(got, want) > 0.5);
    CHECK(difference(got, want) < 0.9);
    for (const std::size_t changed : {std::size_t{0}, want.size() / 2, want.size() - 1}) {
        got = want;
        got[changed] = Scalar(2.0f) * want[changed];
        double size = 0;
        for (const Scalar& x : want) size += squared(x);
        CHECK(difference(got, want) == doctest::Approx(std::sqrt(squared(want[changed]) / size)));
    }
}

TEST_CASE("a last bit of 16 is a difference of a last bit") {
    const std::vector<otimes::half> want(1001, otimes::half(1.0f));
    std::vector<otimes::half> got = want;
    for (otimes::half& x : got) ++x.bits;
    CHECK(difference(got, want) == doctest::Approx(0x1p-10));
    std::vector<otimes::bfloat16> wide(1001, otimes::bfloat16(1.0f));
    std::vector<otimes::bfloat16> next = wide;
    for (otimes::bfloat16& x : next) ++x.bits;
    CHECK(difference(next, wide) == doctest::Approx(0x1p-7));
}

TEST_CASE_TEMPLATE("what is not finite is never right", Scalar, otimes::half, otimes::bfloat16, float, double) {
    const std::vector<Scalar> want = numbers<Scalar>(5);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        for (std::size_t i = 0; i < want.size(); ++i) {
            std::vector<Scalar> got = want;
            got[i] = Scalar(bad);
            CHECK(std::isinf(difference(got, want)));
            CHECK(std::isinf(difference(want, got)));
            CHECK(std::isinf(difference(got, got)));
        }
    }
    std::vector<Scalar> unwritten(want.size());
    std::memset(static_cast<void*>(unwritten.data()), 0xff, unwritten.size() * sizeof(Scalar));
    CHECK(std::isinf(difference(unwritten, want)));
}

TEST_CASE("zeros, other sizes, elements whose squares are no numbers") {
    CHECK(difference<float>({0, 0, 0}, {0, 0, 0}) == 0);
    CHECK(difference<float>({}, {}) == 0);
    CHECK(std::isinf(difference<float>({0, 1e-30f, 0}, {0, 0, 0})));
    CHECK(std::isinf(difference<float>({1, 2}, {1, 2, 3})));
    CHECK(std::isinf(difference<otimes::half>(numbers<otimes::half>(3), numbers<otimes::half>(3), dtype::f64)));
    CHECK(std::isinf(difference<float>({1}, {1}, dtype::other)));
    for (const double scale : {1e-320, 1e-200, 1e200, 1e307}) {
        CHECK(difference<double>({3 * scale, 4 * scale}, {3 * scale, 4 * scale}) == 0);
        CHECK(difference<double>({3 * scale, 0}, {3 * scale, 4 * scale}) == doctest::Approx(0.8).epsilon(1e-3));
    }
    CHECK(difference<double>({1e300, 1}, {1, 1}) > 1e100);
}

TEST_CASE("the pieces of a result that are compared") {
    for (const std::int64_t bytes : {std::int64_t{2}, std::int64_t{6}, std::int64_t{64} << 20}) {
        REQUIRE(pieces_to_compare(bytes).size() == 1);
        CHECK(pieces_to_compare(bytes)[0].first == 0);
        CHECK(pieces_to_compare(bytes)[0].bytes == bytes);
    }
    for (const std::int64_t bytes : {(std::int64_t{64} << 20) + 2, std::int64_t{1234567890}, std::int64_t{16} << 32}) {
        const auto pieces = pieces_to_compare(bytes);
        CHECK(pieces.front().first == 0);
        CHECK(pieces.back().first + pieces.back().bytes == bytes);
        for (std::size_t i = 1; i < pieces.size(); ++i) {
            CHECK(pieces[i].first >= pieces[i - 1].first + pieces[i - 1].bytes);
            if (i + 1 < pieces.size()) CHECK(pieces[i].first % 16 == 0);
        }
    }
}

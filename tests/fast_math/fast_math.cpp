// SPDX-License-Identifier: MIT
// Compiled with -ffast-math, which tells the compiler that there is neither NaN nor infinity: what looks for them still finds them.
#include <doctest/doctest.h>

#include <bit>
#include <complex>
#include <cstdint>

#include <otimes/expr/scalar.hpp>
#include <otimes/factorwise/scaled_number.hpp>

namespace {

template <class Real>
Real from_bits(std::uint64_t bits) {
    static volatile std::uint64_t hidden;  // from constant folding
    hidden = bits;
    if constexpr (sizeof(Real) == 4) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(hidden));
    } else {
        return std::bit_cast<double>(static_cast<std::uint64_t>(hidden));
    }
}
template <class Real>
std::uint64_t bits_of(Real x) {
    if constexpr (sizeof(Real) == 4) {
        return std::bit_cast<std::uint32_t>(x);
    } else {
        return std::bit_cast<std::uint64_t>(x);
    }
}

template <class Real>
void check(std::uint64_t infinity, std::uint64_t nan, std::uint64_t largest) {
    using otimes::detail::is_finite;
    using otimes::detail::scaled_number;
    using complex = std::complex<Real>;
    const Real one = from_bits<Real>(bits_of(Real(1)));
    CHECK(is_finite(one));
    CHECK(is_finite(from_bits<Real>(largest)));
    CHECK(is_finite(complex(one, from_bits<Real>(largest))));
    for (const std::uint64_t odd : {infinity, nan}) {
        CHECK_FALSE(is_finite(from_bits<Real>(odd)));
        CHECK_FALSE(is_finite(complex(one, from_bits<Real>(odd))));
        CHECK_FALSE(is_finite(complex(from_bits<Real>(odd), one)));
        // A power of two of what is not finite would be undefined.
        const scaled_number<Real> number(from_bits<Real>(odd));
        CHECK(number.exponent() == 0);
        CHECK(bits_of(number.value()) == odd);
        CHECK(scaled_number<complex>(complex(one, from_bits<Real>(odd))).exponent() == 0);
        CHECK(scaled_number<complex>(complex(from_bits<Real>(odd), one)).exponent() == 0);
    }
    CHECK(scaled_number<Real>(one).exponent() == 0);
    CHECK(scaled_number<Real>(Real(4) * one).exponent() == 2);
}

}  // namespace

TEST_CASE("numbers that are not finite are seen under -ffast-math") {
    check<double>(0x7ff0000000000000u, 0x7ff8000000000000u, 0x7fefffffffffffffu);
    check<float>(0x7f800000u, 0x7fc00000u, 0x7f7fffffu);
}

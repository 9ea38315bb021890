// SPDX-License-Identifier: MIT
/// @file scaled_number.hpp
/// Products of many numbers that neither overflow nor underflow on the way: determinants, norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <otimes/expr/scalar.hpp>

namespace otimes {
namespace detail {

/// mantissa * 2^exponent, 1 <= |mantissa| < 2 in the larger part of a complex one. Of types that are not floating-point numbers of
/// C++ the mantissa is the number. The exponent is a double, which does not overflow; beyond 2^53, where it is rounded, the mantissa has no
/// digits left either.
template <class Scalar>
class scaled_number {
public:
    using real = real_of<Scalar>;
    explicit scaled_number(const Scalar& value, std::int64_t exponent = 0)
        : mantissa_(value), exponent_(static_cast<double>(exponent)) {
        normalise();
    }
    void multiply(const scaled_number& other) {
        mantissa_ = mantissa_ * other.mantissa_;
        exponent_ += other.exponent_;
        normalise();
    }
    [[nodiscard]] scaled_number power(std::int64_t n) const {
        scaled_number result(Scalar(1));
        scaled_number base = *this;
        for (; n > 0; n /= 2) {
            if (n % 2 != 0) {
                result.multiply(base);
            }
            if (n > 1) {
                base.multiply(base);
            }
        }
        return result;
    }
    /// The root of a number that is not negative.
    [[nodiscard]] scaled_number root() const {
        using std::sqrt;
        const bool odd = std::fmod(exponent_, 2.0) != 0;
        scaled_number result(sqrt(odd ? mantissa_ * Scalar(2) : mantissa_));
        result.exponent_ += (exponent_ - (odd ? 1 : 0)) / 2;
        return result;
    }
    /// Infinity or 0 where the number has no other value of its type.
    [[nodiscard]] Scalar value() const { return value_over(0); }
    /// The number / 2^exponent.
    [[nodiscard]] Scalar value_over(std::int64_t exponent) const {
        return scaled(mantissa_, static_cast<int>(std::clamp(exponent_ - static_cast<double>(exponent), -1e5, 1e5)));
    }
    /// log |number|; -infinity for 0.
    [[nodiscard]] real log_of_size() const {
        using std::abs;
        using std::log;
        return log(abs(mantissa_)) + static_cast<real>(exponent_) * log(real(2));
    }
    /// 0 for 0, infinity and NaN. @pre not a power of many
    [[nodiscard]] std::int64_t exponent() const noexcept { return static_cast<std::int64_t>(exponent_); }
    [[nodiscard]] bool is_zero() const { return mantissa_ == Scalar(0); }

private:
    static Scalar scaled(const Scalar& x, int shift) {
        if constexpr (!std::is_floating_point_v<real>) {
            return x;
        } else if constexpr (is_complex_scalar<Scalar>) {
            return Scalar(std::ldexp(x.real(), shift), std::ldexp(x.imag(), shift));
        } else {
            return std::ldexp(x, shift);
        }
    }
    void normalise() {
        if constexpr (std::is_floating_point_v<real>) {
            real size(0);
            if constexpr (is_complex_scalar<Scalar>) {  // the modulus may overflow
                const real a = std::abs(mantissa_.real());
                const real b = std::abs(mantissa_.imag());
                size = a <= b ? b : a;
            } else {
                size = std::abs(mantissa_);
            }
            if (!is_finite(mantissa_) || !(size > real(0))) {
                exponent_ = 0;
                return;
            }
            const int shift = std::ilogb(size);
            mantissa_ = scaled(mantissa_, -shift);
            exponent_ += shift;
        }
    }
    Scalar mantissa_;
    double exponent_ = 0;
};

}  // namespace detail
}  // namespace otimes

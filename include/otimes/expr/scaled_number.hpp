// SPDX-License-Identifier: MIT
/// @file scaled_number.hpp
/// Products of many numbers that neither overflow nor underflow on the way: determinants, norms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <otimes/expr/scalar.hpp>

namespace otimes {
namespace detail {

/// mantissa * 2^exponent, 1 <= |mantissa| < 2 in the larger part of a complex one. Of types that are not floating-point numbers of
/// C++ the mantissa is the number. An exponent beyond 2^61 stays there; what two of those cancel is NaN.
template <class Scalar>
class scaled_number {
public:
    using real = real_of<Scalar>;
    explicit scaled_number(const Scalar& value, std::int64_t exponent = 0) : mantissa_(value), exponent_(exponent) {
        normalise();
    }
    void multiply(const scaled_number& other) {
        if (is_far(exponent_) && is_far(other.exponent_) && (exponent_ > 0) != (other.exponent_ > 0)) {
            mantissa_ = Scalar(std::numeric_limits<real>::quiet_NaN());
        } else {
            mantissa_ = mantissa_ * other.mantissa_;
        }
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
        const bool odd = exponent_ % 2 != 0;
        return scaled_number(sqrt(odd ? mantissa_ * Scalar(2) : mantissa_), (exponent_ - (odd ? 1 : 0)) / 2);
    }
    /// Infinity or 0 where the number has no other value of its type.
    [[nodiscard]] Scalar value() const { return value_over(0); }
    /// The number / 2^exponent.
    [[nodiscard]] Scalar value_over(std::int64_t exponent) const {
        return scaled(mantissa_, std::clamp<std::int64_t>(exponent_ - exponent, -100000, 100000));
    }
    /// log |number|; -infinity for 0.
    [[nodiscard]] real log_of_size() const {
        using std::abs;
        using std::log;
        return log(abs(mantissa_)) + static_cast<real>(exponent_) * log(real(2));
    }
    /// 0 for 0, infinity and NaN.
    [[nodiscard]] std::int64_t exponent() const noexcept { return exponent_; }
    [[nodiscard]] bool is_zero() const { return mantissa_ == Scalar(0); }

private:
    static constexpr std::int64_t most = std::int64_t{1} << 61;
    static constexpr bool is_far(std::int64_t exponent) noexcept { return exponent >= most || exponent <= -most; }
    static Scalar scaled(const Scalar& x, std::int64_t by) {
        const auto shift = static_cast<int>(by);
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
                size = std::isnan(b) ? b : size;
            } else {
                size = std::abs(mantissa_);
            }
            if (!(size > real(0)) || !std::isfinite(size)) {
                exponent_ = 0;
                return;
            }
            const int shift = std::ilogb(size);
            mantissa_ = scaled(mantissa_, -shift);
            exponent_ = std::clamp(exponent_ + shift, -most, most);
        }
    }
    Scalar mantissa_;
    std::int64_t exponent_ = 0;
};

}  // namespace detail
}  // namespace otimes

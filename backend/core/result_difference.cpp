// SPDX-License-Identifier: MIT
#include "result_difference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <otimes/program/half.hpp>

namespace otimes::backend {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

template <class Real>
double element_at(std::span<const std::byte> bytes, std::size_t at) {
    Real value;
    std::memcpy(&value, bytes.data() + at, sizeof(Real));
    return static_cast<double>(value);
}

template <class Real>
double difference_of(std::span<const std::byte> got, std::span<const std::byte> want) {
    if (got.size() != want.size() || want.size() % sizeof(Real) != 0) {
        return infinite;
    }
    double largest = 0;
    double wanted = 0;
    for (std::size_t at = 0; at < want.size(); at += sizeof(Real)) {
        const double w = element_at<Real>(want, at);
        const double g = element_at<Real>(got, at);
        if (!std::isfinite(w) || !std::isfinite(g)) {
            return infinite;
        }
        wanted = std::max(wanted, std::abs(w));
        largest = std::max({largest, std::abs(w), std::abs(g)});
    }
    if (wanted == 0) {
        return largest == 0 ? 0 : infinite;
    }
    // Of fractions of the largest element, whose squares neither overflow nor are lost.
    const int exponent = -std::ilogb(largest);
    double difference = 0;
    double size = 0;
    for (std::size_t at = 0; at < want.size(); at += sizeof(Real)) {
        const double w = std::scalbn(element_at<Real>(want, at), exponent);
        const double d = std::scalbn(element_at<Real>(got, at), exponent) - w;
        difference += d * d;
        size += w * w;
    }
    return size > 0 ? std::sqrt(difference / size) : infinite;
}

}  // namespace

std::vector<result_piece> pieces_to_compare(std::int64_t bytes) {
    constexpr std::int64_t whole = std::int64_t{64} << 20;
    constexpr std::int64_t each = 64 << 10;
    if (bytes <= whole) {
        return {{0, bytes}};
    }
    std::vector<result_piece> pieces;
    constexpr std::int64_t count = 256;
    for (std::int64_t i = 0; i + 1 < count; ++i) {
        pieces.push_back({i * ((bytes - each) / (count - 1)) / 16 * 16, each});
    }
    pieces.push_back({bytes - each, each});
    return pieces;
}

double relative_difference(std::span<const std::byte> got, std::span<const std::byte> want, dtype type) {
    switch (type) {
        case dtype::f16: return difference_of<half>(got, want);
        case dtype::bf16: return difference_of<bfloat16>(got, want);
        case dtype::f32:
        case dtype::c64: return difference_of<float>(got, want);
        case dtype::f64:
        case dtype::c128: return difference_of<double>(got, want);
        case dtype::other: break;
    }
    return infinite;
}

}  // namespace otimes::backend

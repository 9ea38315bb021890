// SPDX-License-Identifier: MIT
// The problem that every rung of the ladder solves, X (1024 x 8^5) times the Kronecker product of five 8 x 8 factors in float,
// and how a rung is checked: sampled entries against their definition in double, in no code that a rung uses.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace ladder {

constexpr int factor_count = 5;
constexpr int factor_order = 8;
constexpr std::int64_t columns = 32768;  // 8^5
constexpr std::int64_t rows = 1024;
constexpr double flops = 2.0 * factor_count * factor_order * static_cast<double>(rows * columns);
constexpr double least_bytes = 2.0 * sizeof(float) * static_cast<double>(rows * columns);

/// A number in [-1, 1) from a counter (the finaliser of SplitMix64).
inline float noise(std::uint64_t n) {
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    n ^= n >> 31;
    return static_cast<float>(static_cast<double>(n >> 40) * 0x1p-23 - 1.0);
}

/// X by rows.
inline std::vector<float> make_x(std::int64_t row_count = rows) {
    std::vector<float> x(static_cast<std::size_t>(row_count * columns));
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = noise(i);
    }
    return x;
}

/// The five factors one after the other, each by rows.
inline std::vector<float> make_factors() {
    std::vector<float> f(factor_count * factor_order * factor_order);
    for (std::size_t i = 0; i < f.size(); ++i) {
        f[i] = noise(i + (1ull << 40));
    }
    return f;
}

/// Y(row, column) = sum over all 32768 columns of X.
inline double entry(const float* x, const float* factors, std::int64_t row, std::int64_t column) {
    double sum = 0.0;
    for (std::int64_t p = 0; p < columns; ++p) {
        double product = x[row * columns + p];
        std::int64_t left = p;
        std::int64_t to = column;
        for (int k = factor_count; k-- > 0;) {
            product *= factors[(k * factor_order + left % factor_order) * factor_order + to % factor_order];
            left /= factor_order;
            to /= factor_order;
        }
        sum += product;
    }
    return sum;
}

/// |got - want| / |want| in the Frobenius norm over 128 sampled entries. NaN stays NaN.
inline double relative_error(const float* x, const float* factors, const float* y, std::int64_t row_count = rows) {
    double difference = 0.0;
    double norm = 0.0;
    for (std::uint64_t s = 0; s < 128; ++s) {
        const auto row = static_cast<std::int64_t>(s * 7919 % static_cast<std::uint64_t>(row_count));
        const auto column = static_cast<std::int64_t>((s * 104729 + s * s * 31) % columns);
        const double want = entry(x, factors, row, column);
        difference += std::pow(y[row * columns + column] - want, 2);
        norm += want * want;
    }
    return std::sqrt(difference / norm);
}

constexpr double tolerance = 1e-5;

/// One row of the table. @returns whether the rung is right
inline bool report(const char* rung, double ms, double relerr, const char* remark) {
    std::printf("%s,%.6g,%.4g,%.4g,%.2e,%s\n", rung, ms, flops / ms * 1e-6, least_bytes / ms * 1e-6, relerr, remark);
    std::fflush(stdout);
    return relerr <= tolerance;
}

inline double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

}  // namespace ladder

// SPDX-License-Identifier: MIT
// What the tests of the kernels compare with: sums written out in complex double, over matrices that stand in memory with gaps.
#pragma once

#include "kernels/host_device.hpp"

#include <scalars.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <otimes/program/half.hpp>

#include "support/random.hpp"

namespace kernel_tests {

using wide = std::complex<double>;
using index = std::int64_t;

template <class Scalar>
struct scalar_traits {
    using real = Scalar;
    static constexpr bool is_complex = false;
    static Scalar make(wide v) { return static_cast<Scalar>(v.real()); }
    static wide widen(Scalar v) { return v; }
};
template <class Real>
struct scalar_traits<otimes::kernels::complex<Real>> {
    using real = Real;
    static constexpr bool is_complex = true;
    static otimes::kernels::complex<Real> make(wide v) {
        return {static_cast<Real>(v.real()), static_cast<Real>(v.imag())};
    }
    static wide widen(otimes::kernels::complex<Real> v) {
        return {static_cast<double>(v.re), static_cast<double>(v.im)};
    }
};
// Sixteen bits, by the conversions that the library's hosts have.
template <class Storage, class Host>
struct storage_traits {
    using real = float;
    static constexpr bool is_complex = false;
    static Storage make(wide v) { return {Host(static_cast<float>(v.real())).bits}; }
    static wide widen(Storage v) {
        Host host;
        host.bits = v.bits;
        return static_cast<double>(host);
    }
};
template <>
struct scalar_traits<otimes::kernels::half> : storage_traits<otimes::kernels::half, otimes::half> {};
template <>
struct scalar_traits<otimes::kernels::bfloat16> : storage_traits<otimes::kernels::bfloat16, otimes::bfloat16> {};
template <class Scalar>
wide widen(Scalar v) {
    return scalar_traits<Scalar>::widen(v);
}
template <class Scalar>
Scalar make(wide v) {
    return scalar_traits<Scalar>::make(v);
}
/// As a kernel of this scalar has it: rounded, and real where the scalar is.
template <class Scalar>
wide rounded(wide v) {
    return widen(make<Scalar>(v));
}

inline wide next_value(support::random_stream& stream) {
    const double re = stream.signed_unit();
    return {re, stream.signed_unit()};
}
template <class Scalar>
std::vector<Scalar> random_values(support::random_stream& stream, index count) {
    std::vector<Scalar> values;
    values.reserve(
        static_cast<std::size_t>(count));  // no room behind the last that the address sanitizer would not know of
    for (index i = 0; i < count; ++i) {
        values.push_back(make<Scalar>(next_value(stream)));
    }
    return values;
}
template <class Scalar>
std::vector<wide> widened(const std::vector<Scalar>& values) {
    std::vector<wide> all;
    for (const Scalar v : values) {
        all.push_back(widen(v));
    }
    return all;
}

/// A factor along a mode: X[before, p, after] -> Y[before, q, after] = sum_p X[before, p, after] F[p, q].
inline std::vector<wide> mode_product(const std::vector<wide>& x, index before, index p_extent, index after,
                                      const std::vector<wide>& f) {
    const index q_extent = static_cast<index>(f.size()) / p_extent;
    std::vector<wide> y(static_cast<std::size_t>(before * q_extent * after));
    for (index b = 0; b < before; ++b) {
        for (index p = 0; p < p_extent; ++p) {
            for (index q = 0; q < q_extent; ++q) {
                const wide entry = f[static_cast<std::size_t>(p * q_extent + q)];
                for (index a = 0; a < after; ++a) {
                    y[static_cast<std::size_t>((b * q_extent + q) * after + a)] +=
                        x[static_cast<std::size_t>((b * p_extent + p) * after + a)] * entry;
                }
            }
        }
    }
    return y;
}

/// A factor along every mode of [rows, p.., inner], factors[k] of p[k] rows.
inline std::vector<wide> product_of(std::vector<wide> x, index rows, index inner, std::vector<index> p,
                                    const std::vector<std::vector<wide>>& factors) {
    for (std::size_t k = p.size(); k-- > 0;) {
        index before = rows;
        index after = inner;
        for (std::size_t i = 0; i < p.size(); ++i) {
            (i < k ? before : after) *= i == k ? 1 : p[i];
        }
        x = mode_product(x, before, p[k], after, factors[k]);
        p[k] = static_cast<index>(factors[k].size()) / p[k];
    }
    return x;
}

/// Elements behind a matrix in memory: none where the address sanitizer sees who goes there.
#if defined(__SANITIZE_ADDRESS__)
constexpr index elements_behind = 0;
#else
constexpr index elements_behind = 16;
#endif

/// Elements [line, i, m] at line * line_stride + i * inner_stride + m behind `offset`; everything else is NaN.
template <class Scalar>
struct matrix_in_memory {
    index lines, count, inner;
    index inner_stride, line_stride, offset;
    std::vector<Scalar> memory;

    matrix_in_memory(index lines_, index count_, index inner_, index gap, index offset_)
        : lines(lines_),
          count(count_),
          inner(inner_),
          inner_stride(inner_ > 1 ? inner_ + gap : 1),
          line_stride(count_ * inner_stride + gap),
          offset(offset_),
          memory(place(lines_ * count_ * inner_ - 1) + 1 + static_cast<std::size_t>(elements_behind),
                 make<Scalar>({std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()})) {}

    [[nodiscard]] std::size_t place(index linear) const {
        const index m = linear % inner;
        const index i = linear / inner % count;
        return static_cast<std::size_t>(offset + linear / inner / count * line_stride + i * inner_stride + m);
    }
    [[nodiscard]] index size() const { return lines * count * inner; }
    Scalar& operator[](index linear) { return memory[place(linear)]; }
    const Scalar& operator[](index linear) const { return memory[place(linear)]; }
    Scalar* data() { return memory.data() + offset; }

    void fill(support::random_stream& stream) {
        for (index i = 0; i < size(); ++i) {
            (*this)[i] = make<Scalar>(next_value(stream));
        }
    }
    [[nodiscard]] std::vector<wide> values() const {
        std::vector<wide> all;
        for (index i = 0; i < size(); ++i) {
            all.push_back(widen((*this)[i]));
        }
        return all;
    }
    /// Bit for bit what `other` has, outside the matrix.
    [[nodiscard]] bool surrounded_as(const matrix_in_memory& other) const {
        std::vector<Scalar> around = memory;
        for (index i = 0; i < size(); ++i) {
            around[place(i)] = other[i];
        }
        return std::memcmp(around.data(), other.memory.data(), around.size() * sizeof(Scalar)) == 0;
    }
};

/// 2-norm of got - want over that of want; infinite where anything is not finite.
inline double relative_distance(const std::vector<wide>& got, const std::vector<wide>& want) {
    double distance = got.size() == want.size() ? 0 : std::numeric_limits<double>::infinity();
    double size = 0;
    for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
        distance += std::norm(got[i] - want[i]);
        size += std::norm(want[i]);
    }
    return std::isfinite(distance) ? std::sqrt(distance / size) : std::numeric_limits<double>::infinity();
}
template <class Scalar>
constexpr double tolerance = sizeof(typename scalar_traits<Scalar>::real) == 4 ? 1e-6 : 2e-15;
template <>
inline constexpr double tolerance<otimes::kernels::half> = 1e-3;
template <>
inline constexpr double tolerance<otimes::kernels::bfloat16> = 4e-3;

}  // namespace kernel_tests

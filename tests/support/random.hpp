// SPDX-License-Identifier: MIT
// Contents for test matrices: deterministic, signed, and unequal, so that swapped indices and lost signs show.
//
// The functions work on anything with rows(), cols() and a writable operator()(row, col).
#pragma once

#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace support {

template <class Scalar>
struct real_part_of {
    using type = Scalar;
};
template <class Real>
struct real_part_of<std::complex<Real>> {
    using type = Real;
};
template <class Scalar>
using real_t = typename real_part_of<Scalar>::type;
template <class Scalar>
inline constexpr bool is_complex = !std::is_same_v<real_t<Scalar>, Scalar>;

// A stream of numbers that is the same on every platform (splitmix64).
class random_stream {
public:
    explicit random_stream(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {}

    std::uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    // A number in [low, high].
    std::int64_t integer(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
    }

    // A number with 0.1 <= |x| < 1 and either sign.
    double signed_unit() {
        const double magnitude = 0.1 + 0.9 * static_cast<double>(bits() >> 11) * 0x1p-53;
        return (bits() & 1) != 0 ? magnitude : -magnitude;
    }

    // One of 1, 2, 4 and 1/2 with either sign: sums and products of a few of them are exact in every floating-point type.
    double signed_power_of_two() {
        static constexpr double powers[] = {1.0, 2.0, 4.0, 0.5};
        const double magnitude = powers[bits() & 3];
        return (bits() & 1) != 0 ? magnitude : -magnitude;
    }

private:
    std::uint64_t state_;
};

namespace detail {

template <class Scalar, class Draw>
Scalar draw_scalar(Draw&& draw) {
    if constexpr (is_complex<Scalar>) {
        using real = real_t<Scalar>;
        const real re = static_cast<real>(draw());
        const real im = static_cast<real>(draw());
        return Scalar(re, im);
    } else {
        return static_cast<Scalar>(draw());
    }
}

template <class Matrix, class Draw>
void fill_each(Matrix& matrix, Draw&& draw) {
    using index = std::remove_cvref_t<decltype(matrix.rows())>;
    using scalar = std::remove_cvref_t<decltype(matrix(index{}, index{}))>;
    for (index i = 0; i < matrix.rows(); ++i) {
        for (index j = 0; j < matrix.cols(); ++j) matrix(i, j) = draw_scalar<scalar>(draw);
    }
}

}  // namespace detail

// Fills a matrix with signed, unequal numbers below 1; one of integers with signed integers up to 9.
template <class Matrix>
void fill_random(Matrix& matrix, std::uint64_t seed) {
    using index = std::remove_cvref_t<decltype(matrix.rows())>;
    using scalar = std::remove_cvref_t<decltype(matrix(index{}, index{}))>;
    random_stream stream(seed);
    if constexpr (std::numeric_limits<scalar>::is_integer) {
        detail::fill_each(matrix,
                          [&] { return stream.integer(0, 1) != 0 ? stream.integer(1, 9) : -stream.integer(1, 9); });
    } else {
        detail::fill_each(matrix, [&] { return stream.signed_unit(); });
    }
}

// Fills a matrix with small signed powers of two, on which a correct product has an error of exactly 0.
template <class Matrix>
void fill_powers_of_two(Matrix& matrix, std::uint64_t seed) {
    random_stream stream(seed);
    detail::fill_each(matrix, [&] { return stream.signed_power_of_two(); });
}

// Fills a destination with NaN, so that an entry that is read or left unwritten shows.
template <class Matrix>
void poison(Matrix& matrix) {
    detail::fill_each(matrix, [] { return std::numeric_limits<double>::quiet_NaN(); });
}

template <class Matrix, class Index>
Matrix random_matrix(Index rows, Index cols, std::uint64_t seed) {
    Matrix matrix(rows, cols);
    fill_random(matrix, seed);
    return matrix;
}

template <class Matrix, class Index>
Matrix powers_of_two_matrix(Index rows, Index cols, std::uint64_t seed) {
    Matrix matrix(rows, cols);
    fill_powers_of_two(matrix, seed);
    return matrix;
}

template <class Matrix, class Index>
Matrix poisoned_matrix(Index rows, Index cols) {
    Matrix matrix(rows, cols);
    poison(matrix);
    return matrix;
}

}  // namespace support

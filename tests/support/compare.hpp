// SPDX-License-Identifier: MIT
// Comparisons of a result with what it must be. Every comparison fails on NaN, on infinity and on a wrong shape.
//
// Used inside doctest's macros, which print the reason on failure: CHECK(support::close(Y, expected, length)).
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/oracle.hpp"
#include "support/random.hpp"

namespace support {

// The outcome of a comparison, with the reason.
struct verdict {
    bool holds = false;
    std::string reason;
    explicit operator bool() const { return holds; }
};
inline std::ostream& operator<<(std::ostream& out, const verdict& value) {
    return out << (value.holds ? "holds: " : "does not hold: ") << value.reason;
}

template <class Matrix>
using scalar_of = std::remove_cvref_t<decltype(std::declval<const Matrix&>()(0, 0))>;

// Distance from 1 to the next number of the type; 0 for integers, in which products are exact.
template <class Scalar>
long double spacing() {
    return static_cast<long double>(std::numeric_limits<real_t<Scalar>>::epsilon());
}

// The largest relative_error() that a product in Scalar may have, where each entry is a sum of `contraction_length`
// terms (for X * kron(F1, ..., FN): the product of the contracted extents). Rounding errors of signed terms add up like
// a random walk: (8 + 4 sqrt(length)) spacings, twice that for complex scalars, whose products are two roundings
// deeper.
template <class Scalar>
long double tolerance(std::size_t contraction_length) {
    const long double steps = 8.0L + 4.0L * std::sqrt(static_cast<long double>(contraction_length));
    return steps * spacing<Scalar>() * (is_complex<Scalar> ? 2.0L : 1.0L);
}

// The largest |got - want| / magnitude that any order of multiply-adds may have, entry by entry, where magnitude is the
// same product of absolute values: Higham's gamma, for `roundings` rounded operations on the way to one entry (a chain:
// the sum of the contracted extents, plus one for each scalar multiple).
template <class Scalar>
long double rounding_bound(std::size_t roundings) {
    const long double unit = spacing<Scalar>() / 2.0L;
    const long double count = static_cast<long double>(roundings + 1) * (is_complex<Scalar> ? 3.0L : 1.0L);
    return count * unit / (1.0L - count * unit);
}

namespace detail {

inline bool is_finite(long double value) { return std::isfinite(value); }
inline bool is_finite(const std::complex<long double>& value) {
    return std::isfinite(value.real()) && std::isfinite(value.imag());
}

inline std::string shape_text(std::size_t rows, std::size_t cols) {
    return std::to_string(rows) + " x " + std::to_string(cols);
}

struct difference {
    bool comparable = true;        // equal shapes, all entries finite
    long double error = 0.0L;      // largest |got - want|
    long double magnitude = 0.0L;  // largest |want|
    std::size_t row = 0, col = 0;  // where the error is largest
    std::string what_is_wrong;
};

template <class Got, class Want>
difference compare_entries(const oracle::dense<Got>& got, const oracle::dense<Want>& want) {
    difference result;
    if (got.rows() != want.rows() || got.cols() != want.cols()) {
        result.comparable = false;
        result.what_is_wrong =
            "got " + shape_text(got.rows(), got.cols()) + ", expected " + shape_text(want.rows(), want.cols());
        return result;
    }
    for (std::size_t i = 0; i < got.rows(); ++i) {
        for (std::size_t j = 0; j < got.cols(); ++j) {
            if (!is_finite(got(i, j)) || !is_finite(want(i, j))) {
                std::ostringstream text;
                text << "entry (" << i << ", " << j << ") is not finite: got " << got(i, j) << ", expected "
                     << want(i, j);
                result.comparable = false;
                result.what_is_wrong = text.str();
                return result;
            }
            const long double error = std::abs(got(i, j) - want(i, j));
            if (error > result.error) {
                result.error = error;
                result.row = i;
                result.col = j;
            }
            result.magnitude = std::max(result.magnitude, static_cast<long double>(std::abs(want(i, j))));
        }
    }
    return result;
}

inline std::string place_text(const difference& found) {
    return "largest at (" + std::to_string(found.row) + ", " + std::to_string(found.col) + ")";
}

}  // namespace detail

// max |got - want| / max |want|. Infinity when the shapes differ or any entry of either is NaN or infinite; 0 when both
// are 0 or empty.
template <class Got, class Want>
long double relative_error(const Got& got, const Want& want) {
    const auto found = detail::compare_entries(oracle::from(got), oracle::from(want));
    if (!found.comparable) return std::numeric_limits<long double>::infinity();
    if (found.error == 0.0L) return 0.0L;
    return found.error / found.magnitude;  // infinity where all of want is 0
}

// relative_error(got, want) <= tolerance<scalar of got>(contraction_length).
template <class Got, class Want>
verdict close(const Got& got, const Want& want, std::size_t contraction_length) {
    const auto found = detail::compare_entries(oracle::from(got), oracle::from(want));
    if (!found.comparable) return {false, found.what_is_wrong};
    const long double limit = tolerance<scalar_of<Got>>(contraction_length);
    const long double error = found.error == 0.0L ? 0.0L : found.error / found.magnitude;
    std::ostringstream text;
    text << "relative error " << error << ", tolerance " << limit << ", " << detail::place_text(found);
    return {error <= limit, text.str()};
}

// |got - want| <= rounding_bound(roundings) * magnitude, entry by entry. Sharper than close() where the data is
// adversarial.
template <class Got, class Want, class Magnitude>
verdict within_rounding(const Got& got, const Want& want, const Magnitude& magnitude, std::size_t roundings) {
    const auto wide_got = oracle::from(got);
    const auto wide_want = oracle::from(want);
    const auto wide_magnitude = oracle::from(magnitude);
    const auto found = detail::compare_entries(wide_got, wide_want);
    if (!found.comparable) return {false, found.what_is_wrong};
    if (wide_magnitude.rows() != wide_got.rows() || wide_magnitude.cols() != wide_got.cols()) {
        return {false, "the magnitudes have another shape"};
    }
    const long double bound = rounding_bound<scalar_of<Got>>(roundings);
    for (std::size_t i = 0; i < wide_got.rows(); ++i) {
        for (std::size_t j = 0; j < wide_got.cols(); ++j) {
            const long double error = std::abs(wide_got(i, j) - wide_want(i, j));
            if (!(error <= bound * std::abs(wide_magnitude(i, j)))) {
                std::ostringstream text;
                text << "error " << error << " at (" << i << ", " << j << ") exceeds " << bound << " * "
                     << wide_magnitude(i, j);
                return {false, text.str()};
            }
        }
    }
    return {true, "within the rounding bound"};
}

// The error is exactly 0 (for data in which the product is exact: support::fill_powers_of_two).
template <class Got, class Want>
verdict exactly_equal(const Got& got, const Want& want) {
    const auto found = detail::compare_entries(oracle::from(got), oracle::from(want));
    if (!found.comparable) return {false, found.what_is_wrong};
    std::ostringstream text;
    text << "difference " << found.error << ", " << detail::place_text(found);
    return {found.error == 0.0L, text.str()};
}

// The same finite, infinite and NaN entries in the same places, infinities with the same sign; finite entries are not
// compared.
template <class Got, class Want>
verdict same_special_values(const Got& got, const Want& want) {
    const auto wide_got = oracle::from(got);
    const auto wide_want = oracle::from(want);
    if (wide_got.rows() != wide_want.rows() || wide_got.cols() != wide_want.cols()) return {false, "the shapes differ"};
    const auto same = [](long double a, long double b) {
        if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
        if (std::isinf(a) || std::isinf(b)) return a == b;
        return true;
    };
    for (std::size_t i = 0; i < wide_got.rows(); ++i) {
        for (std::size_t j = 0; j < wide_got.cols(); ++j) {
            const std::complex<long double> a = wide_got(i, j);
            const std::complex<long double> b = wide_want(i, j);
            if (!same(a.real(), b.real()) || !same(a.imag(), b.imag())) {
                std::ostringstream text;
                text << "entry (" << i << ", " << j << "): got " << wide_got(i, j) << ", expected " << wide_want(i, j);
                return {false, text.str()};
            }
        }
    }
    return {true, "the same special values"};
}

// Freivalds' check of y = x * kron(factors), for sizes at which the oracle cannot form the product: y * r against
// x * (kron(factors) * r) for a random r, in O(size of x and y). `factors` are oracle matrices of one type.
template <class X, class Wide, class Y>
verdict close_by_projection(const X& x, const std::vector<oracle::dense<Wide>>& factors, const Y& y,
                            std::size_t contraction_length, std::uint64_t seed = 1) {
    const auto wide_x = oracle::from(x);
    const auto wide_y = oracle::from(y);
    std::size_t rows = 1;
    std::size_t cols = 1;
    for (const auto& factor : factors) {
        rows *= factor.rows();
        cols *= factor.cols();
    }
    if (wide_x.cols() != rows || wide_y.cols() != cols || wide_x.rows() != wide_y.rows())
        return {false, "the shapes differ"};

    random_stream stream(seed);
    std::vector<Wide> r(cols);
    for (auto& entry : r) entry = Wide(static_cast<long double>(stream.signed_unit()));
    const std::vector<Wide> k_times_r = oracle::kron_times_vector(factors, r);

    long double worst = 0.0L;
    long double scale = 0.0L;
    using both = oracle::detail::common_t<std::remove_cvref_t<decltype(wide_x(0, 0))>, Wide>;
    using all = oracle::detail::common_t<std::remove_cvref_t<decltype(wide_y(0, 0))>, both>;
    for (std::size_t i = 0; i < wide_y.rows(); ++i) {
        all got(0);
        both want(0);
        long double squares = 0.0L;
        for (std::size_t j = 0; j < cols; ++j) {
            const all term = wide_y(i, j) * r[j];
            if (!detail::is_finite(term)) return {false, "an entry in row " + std::to_string(i) + " is not finite"};
            got += term;
            squares += std::norm(term);
        }
        for (std::size_t k = 0; k < rows; ++k) want += wide_x(i, k) * k_times_r[k];
        if (!detail::is_finite(want)) return {false, "an operand is not finite"};
        worst = std::max(worst, static_cast<long double>(std::abs(got - want)));
        scale = std::max(scale, std::max(std::sqrt(squares), static_cast<long double>(std::abs(want))));
    }
    const long double limit = tolerance<scalar_of<Y>>(contraction_length);
    const long double error = worst == 0.0L ? 0.0L : worst / scale;
    std::ostringstream text;
    text << "projected relative error " << error << ", tolerance " << limit;
    return {error <= limit, text.str()};
}

}  // namespace support

// SPDX-License-Identifier: MIT
// The text of kernels/ on the host, block by block, against sums written out: every way of replacing a mode (multiply-adds, one mode or several;
// the matrix unit, real, in pairs and complex), trailing and outer, partial tiles, gaps, odd addresses, alpha and beta,
// values that are infinite or too large for the unit. What stands around Y stays as it was.
#include "kernels/host_device.hpp"

#include <fused_outer.cuh>
#include <fused_trailing.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "support/random.hpp"

namespace {

using namespace otimes::kernels;
using wide = std::complex<double>;
using index = std::int64_t;

template <class Scalar>
struct scalar_traits {
    using real = Scalar;
    static Scalar make(wide v) { return static_cast<Scalar>(v.real()); }
    static wide widen(Scalar v) { return v; }
};
template <class Real>
struct scalar_traits<otimes::kernels::complex<Real>> {
    using real = Real;
    static otimes::kernels::complex<Real> make(wide v) {
        return {static_cast<Real>(v.real()), static_cast<Real>(v.imag())};
    }
    static wide widen(otimes::kernels::complex<Real> v) {
        return {static_cast<double>(v.re), static_cast<double>(v.im)};
    }
};

enum class what { plain, sums_and_gaps, infinite, large };

// A product over [rows, p.., inner], mode by mode.
std::vector<wide> product_of(std::vector<wide> x, index rows, index inner, std::vector<index> extents,
                             const std::vector<index>& q, const std::vector<std::vector<wide>>& factors) {
    for (std::size_t k = extents.size(); k-- > 0;) {
        index before = rows;
        index after = inner;
        for (std::size_t i = 0; i < extents.size(); ++i) {
            (i < k ? before : after) *= i == k ? 1 : extents[i];
        }
        std::vector<wide> y(static_cast<std::size_t>(before * q[k] * after));
        for (index b = 0; b < before; ++b) {
            for (index p = 0; p < extents[k]; ++p) {
                for (index j = 0; j < q[k]; ++j) {
                    const wide f = factors[k][static_cast<std::size_t>(p * q[k] + j)];
                    for (index a = 0; a < after; ++a) {
                        y[static_cast<std::size_t>((b * q[k] + j) * after + a)] +=
                            x[static_cast<std::size_t>((b * extents[k] + p) * after + a)] * f;
                    }
                }
            }
        }
        x = std::move(y);
        extents[k] = q[k];
    }
    return x;
}

template <class Group>
void check(index rows, index inner, what how) {
    using scalar = typename Group::scalar;
    using traits = scalar_traits<scalar>;
    using real = typename traits::real;
    constexpr bool outer = Group::run > 1;
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    CAPTURE(rows);
    CAPTURE(inner);
    CAPTURE(static_cast<int>(how));
    std::vector<index> p;
    std::vector<index> q;
    index in = 1;
    index out = 1;
    for (int level = 1; level <= Group::modes; ++level) {
        p.push_back(Group::p(level));
        q.push_back(Group::q(level));
        in *= p.back();
        out *= q.back();
    }
    const index gap = how == what::sums_and_gaps ? 3 : 0;
    const index x_inner = outer ? inner + gap : 1;
    const index y_inner = outer ? inner + 2 * gap : 1;
    const index x_line = in * x_inner + gap;
    const index y_line = out * y_inner + gap;
    const auto place_x = [&](index r, index i, index m) {
        return static_cast<std::size_t>(r * x_line + i * x_inner + m);
    };
    const auto place_y = [&](index r, index i, index m) {
        return static_cast<std::size_t>(r * y_line + i * y_inner + m + gap);
    };
    support::random_stream stream(static_cast<std::uint64_t>(rows * 100 + inner));
    const auto next = [&stream] { return traits::make({stream.signed_unit(), stream.signed_unit()}); };

    // The row and inner index with special values.
    const index special_row = rows - 1;
    const index special_inner = inner - 1;
    const bool special = how == what::infinite || how == what::large;
    const double small = how == what::large ? 0x1p-20 : 1.0;
    std::vector<std::vector<scalar>> factors;
    std::vector<std::vector<wide>> wide_factors;
    for (std::size_t k = 0; k < p.size(); ++k) {
        factors.emplace_back();
        wide_factors.emplace_back();
        for (index e = 0; e < p[k] * q[k]; ++e) {
            factors[k].push_back(traits::make(small * traits::widen(next())));
            wide_factors[k].push_back(traits::widen(factors[k].back()));
        }
    }
    std::vector<scalar> x(place_x(rows, 0, 0) + 8, traits::make({nan, nan}));
    std::vector<wide> wide_x;
    for (index r = 0; r < rows; ++r) {
        for (index i = 0; i < in; ++i) {
            for (index m = 0; m < inner; ++m) {
                scalar value = next();
                if (r == special_row && m == special_inner && how == what::large) {
                    value = traits::make(static_cast<double>(std::numeric_limits<real>::max()));
                }
                wide_x.push_back(traits::widen(value));
                if (r == special_row && m == special_inner && how == what::infinite && i == 3) {
                    value = traits::make(std::numeric_limits<double>::infinity());
                }
                x[place_x(r, i, m)] = value;
            }
        }
    }
    std::vector<wide> want = product_of(wide_x, rows, inner, p, q, wide_factors);
    std::vector<scalar> y(place_y(rows, 0, 0) + 8, traits::make({nan, nan}));
    const scalar alpha = traits::make(gap > 0 ? wide{0.5, 2} : wide{1, 0});
    const scalar beta = traits::make(gap > 0 ? wide{-1, 0.25} : wide{0, 0});
    std::vector<std::size_t> places;
    for (index r = 0; r < rows; ++r) {
        for (index i = 0; i < out; ++i) {
            for (index m = 0; m < inner; ++m) {
                places.push_back(place_y(r, i, m));
                if (gap > 0) {
                    const scalar before = next();
                    y[places.back()] = before;
                    wide& w = want[places.size() - 1];
                    w = traits::widen(alpha) * w + traits::widen(beta) * traits::widen(before);
                }
            }
        }
    }
    const std::vector<scalar> y_before = y;

    group_arguments<scalar> arguments{};
    arguments.x = x.data();
    arguments.y = y.data() + gap;
    for (std::size_t k = 0; k < p.size(); ++k) {
        arguments.factor[k] = factors[k].data();
        arguments.factor_p_stride[k] = q[k];
        arguments.factor_q_stride[k] = 1;
    }
    arguments.alpha = alpha;
    arguments.beta = beta;
    arguments.lines = rows;
    arguments.parts_per_line = 1;
    arguments.x_line_stride = x_line;
    arguments.y_line_stride = y_line;
    arguments.inner = inner;
    arguments.x_inner = x_inner;
    arguments.y_inner = y_inner;
    gridDim.x = 2;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        std::memset(shared_bytes, 0xff, sizeof(shared_bytes));  // NaN
        host_device::run_block(Group::threads, [&arguments] {
            if constexpr (Group::run > 1) {
                fused_outer<Group>(arguments);
            } else {
                fused_trailing<Group>(arguments);
            }
        });
    }

    double distance = 0;
    double size = 0;
    double special_distance = 0;
    double special_size = 0;
    bool finite = true;
    std::size_t at = 0;
    for (index r = 0; r < rows; ++r) {
        for (index i = 0; i < out; ++i) {
            for (index m = 0; m < inner; ++m, ++at) {
                const wide got = traits::widen(y[places[at]]);
                if (special && r == special_row && m == special_inner) {
                    finite = finite && std::isfinite(got.real()) && std::isfinite(got.imag());
                    const double scale = std::ldexp(1.0, -std::numeric_limits<real>::max_exponent + 1);
                    special_distance += std::norm(scale * (got - want[at]));
                    special_size += std::norm(scale * want[at]);
                } else {
                    distance += std::norm(got - want[at]);
                    size += std::norm(want[at]);
                }
            }
        }
    }
    const double tolerance = sizeof(real) == 4 ? 1e-6 : 2e-15;
    CHECK(std::sqrt(distance) <= tolerance * std::sqrt(size));
    if (how == what::infinite) {
        CHECK_FALSE(finite);
    }
    if (how == what::large) {
        CHECK(finite);
        CHECK(std::sqrt(special_distance) <= tolerance * std::sqrt(special_size));
    }
    std::vector<scalar> around = y;
    for (const std::size_t place : places) {
        around[place] = y_before[place];
    }
    CHECK(std::memcmp(around.data(), y_before.data(), around.size() * sizeof(scalar)) == 0);
}

// Rows (outer: elements below the group) for two tiles and a part of one, and for one.
template <class Group>
void check_group(const char* text) {
    CAPTURE(text);
    constexpr bool outer = Group::run > 1;
    const index rows = outer ? 2 : 2 * Group::rows + 1;
    const index inner = outer ? Group::run + 3 : 1;
    check<Group>(rows, inner, what::plain);
    check<Group>(rows, inner, what::sums_and_gaps);
    check<Group>(1, outer ? 2 * Group::run : 1, what::plain);
    check<Group>(rows, inner, what::infinite);
    check<Group>(rows, inner, what::large);
}

// Rows, run, threads, stages (parts, how many ahead).
template <class Scalar, int Rows, int Run, int Threads, class P, class Q, class Trips, int Segments = 1, int Slots = 0>
using group = mode_group<Scalar, Rows, Run, Threads, 2, Segments, Slots, 1, 1, P, Q, Trips>;
template <int... N>
using e = extents<N...>;
template <int First, int Count = 1>
using adds = trip<First, Count, 0, 1>;  // multiply-adds
template <int First, int Count = 1, int Split = 1>
using unit = trip<First, Count, 1, Split>;  // the matrix unit

using c64 = otimes::kernels::complex<float>;
using c128 = otimes::kernels::complex<double>;

}  // namespace

TEST_CASE_TEMPLATE("multiply-adds replace one mode or several", Scalar, float, double, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<5, 7>, e<7, 3>, trips<adds<2>, adds<1>>>>("2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<3, 4, 4>, e<3, 4, 4>, trips<adds<2, 2>, adds<1>>>>("2+2f 1f");
    check_group<group<Scalar, 1, 8, 64, e<4, 6>, e<6, 4>, trips<adds<2>, adds<1>>>>("outer 2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<8, 4, 4>, e<8, 4, 4>, trips<adds<2, 2>, adds<1>>, 4, 2>>("staged 2+2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<52>, e<50>, trips<trip<1, 1, 0, 4>>>>("1f/4");
}

TEST_CASE_TEMPLATE("the matrix unit replaces one mode", Scalar, float, double, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<8, 16>, e<16, 8>, trips<unit<2>, unit<1>>>>("2m 1m");
    check_group<group<Scalar, 1, 1, 64, e<5, 16>, e<5, 16>, trips<unit<2>, adds<1>>>>("2m 1f");
    check_group<group<Scalar, 1, 8, 64, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("outer 2m 1m");
    check_group<group<Scalar, 4, 1, 128, e<32>, e<32>, trips<unit<1, 1, 2>>>>("1m/2");
    check_group<group<Scalar, 1, 8, 64, e<32>, e<32>, trips<unit<1>>>>("outer 1m, refilled");
    check_group<group<Scalar, 1, 1, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>, 2, 1>>("staged 2m 1m");
}

TEST_CASE_TEMPLATE("the matrix unit replaces complex modes of multiples of four", Scalar, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<12, 20>, e<20, 12>, trips<unit<2>, unit<1>>>>("12 x 20");
    check_group<group<Scalar, 1, 4, 64, e<20, 4>, e<12, 8>, trips<unit<2>, unit<1, 1, 1>>>>("outer 20 x 4");
    check_group<group<Scalar, 1, 1, 128, e<4, 24>, e<4, 40>, trips<unit<2, 1, 2>, unit<1>>>>("2m/2 1m");
}

TEST_CASE("the matrix unit replaces two modes with registers between them") {
    check_group<group<float, 1, 1, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f32 1+2m");
    check_group<group<float, 1, 1, 64, e<16, 16, 16>, e<16, 16, 16>, trips<unit<1>, unit<2, 2>>>>("f32 1m 2+2m");
    check_group<group<float, 1, 32, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f32 outer 1+2m");
    check_group<group<double, 1, 1, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f64 1+2m");
    check_group<group<double, 1, 1, 64, e<8, 8, 8, 8>, e<8, 8, 8, 8>, trips<unit<1, 2>, unit<3, 2>>>>("f64 1+2m 3+2m");
}

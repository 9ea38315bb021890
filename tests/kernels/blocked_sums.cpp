// SPDX-License-Identifier: MIT
// One long factor by blocks or staying on chip, whose products are reduced where they would be stored, on the host. As blocked.cpp.
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/blocked.hpp"

#include <staying_factor.cuh>
#include <warpgroup_blocks.cuh>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

// The sums of all blocks instead of a product: what it would be, times what stands in Y, or squared, or its difference from that. Y is not written, and of a norm
// not read.
template <class Shape>
void check_sum(void (*kernel)(const blocked_arguments<typename Shape::storage, typename Shape::scalar>),
               const blocked_problem& c, int seed) {
    using scalar = typename Shape::scalar;
    using sum = typename sum_type<scalar>::type;
    constexpr bool norm = Shape::ending == ends_in_norm;
    CAPTURE(c.p);
    CAPTURE(c.q);
    CAPTURE(c.gap);
    CAPTURE(c.turned);
    CAPTURE(Shape::ending);
    CAPTURE(Shape::x_along_p);
    REQUIRE(!c.adds);
    blocked_case<scalar> test(c, seed);
    const wide alpha = rounded<scalar>({0.5, 1.0}), was = widen(test.a.sliced.alpha);
    test.a.sliced.alpha = make<scalar>(alpha);
    support::random_stream stream(seed + 1000);
    wide total = 0;
    double size = 0;
    for (std::size_t i = 0; i < test.y.size(); ++i) {
        const bool is_product = std::isnan(widen(test.y[i]).real());
        test.y[i] = make<scalar>({std::numeric_limits<double>::quiet_NaN(), 0});
        if (!is_product) continue;
        const wide product = test.want[i] / was * alpha;
        if (!norm) test.y[i] = make<scalar>(next_value(stream));
        const wide v = std::conj(widen(test.y[i]));
        const wide term = norm                                ? std::norm(product)
                          : Shape::ending == ends_in_distance ? std::norm(product - v)
                                                              : v * product;
        total += term;
        size += std::abs(term);
    }
    const index room = c.grid + 3;
    std::vector<sum> sums(static_cast<std::size_t>(room) + 1, sum(std::numeric_limits<double>::quiet_NaN()));
    test.a.sums = sums.data();
    test.a.sum_count = static_cast<unsigned>(room);
    test.a.conjugate_y = true;
    const std::vector<scalar> before = test.y;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, Shape::threads, Shape::shared_bytes, [&] { kernel(test.a); });
    wide got = 0;
    for (index b = 0; b < room; ++b) {
        got += widen(sums[static_cast<std::size_t>(b)]);
        CHECK((b < c.grid) == (widen(sums[static_cast<std::size_t>(b)]) != wide(0)));
    }
    CHECK(std::abs(got - total) <= 6 * tolerance<scalar> * size);  // both add many terms
    CHECK(std::isnan(widen(sums.back()).real()));                  // behind the last
    CHECK(std::memcmp(before.data(), test.y.data(), before.size() * sizeof(scalar)) == 0);
}

template <class Scalar, bool Unit, bool XAlongP, int Warps, int Ending>
void check_blocked_sum(const blocked_problem& c, int seed) {
    using shape = blocked_shape<Scalar, Scalar, Unit, false, XAlongP, false, Warps, Ending>;
    check_sum<shape>(blocked_multiply<shape>, c, seed);
}

template <bool XAlongP, int Ending>
void check_warpgroup_sum(const blocked_problem& c, int seed) {
    using shape = warpgroup_blocks_shape<false, XAlongP, false, 64, Ending>;
    check_sum<shape>(warpgroup_blocks<shape>, c, seed);
}

template <class Scalar, bool XAlongP, int Ending>
void check_staying_sum(const blocked_problem& c, int seed) {
    using shape = staying_factor_shape<Scalar, false, XAlongP, 7, 72, Ending>;
    check_sum<shape>(staying_factor<shape>, c, seed);
}

template <bool XAlongP, int Ending>
void check_sums(blocked_problem c, int& seed) {
    c.x_along_p = XAlongP;
    check_blocked_sum<float, true, XAlongP, 2, Ending>(c, ++seed);
    check_blocked_sum<double, true, XAlongP, 3, Ending>(c, ++seed);
    check_blocked_sum<float, false, XAlongP, 1, Ending>(c, ++seed);
    check_blocked_sum<double, false, XAlongP, 2, Ending>(c, ++seed);
    check_blocked_sum<c64, false, XAlongP, 1, Ending>(c, ++seed);
    check_blocked_sum<c128, false, XAlongP, 1, Ending>(c, ++seed);
    check_warpgroup_sum<XAlongP, Ending>(c, ++seed);
    check_staying_sum<float, XAlongP, Ending>(c, ++seed);
    check_staying_sum<double, XAlongP, Ending>(c, ++seed);
}

}  // namespace

TEST_CASE(
    "a long factor, by blocks or staying on chip: products are multiplied by what stands in Y, or squared, and "
    "summed") {
    int seed = 100;
    // 16-byte accesses and an edge in each extent; odd rows, factors of their own; padded rows; Y's rows are X's columns, along 16 bytes and not.
    for (blocked_problem c :
         {blocked_problem{52, 100, 66, 6}, blocked_problem{53, 75, 9, 20, 2, true, false, true, false, true, 0, 3},
          blocked_problem{56, 40, 30, 11, 1, true, false, false, false, false, 1, 3}}) {
        for (const bool turned : {false, true}) {
            c.turned = turned;
            check_sums<true, ends_in_dot>(c, seed);
            check_sums<false, ends_in_dot>(c, seed);
            check_sums<true, ends_in_norm>(c, seed);
            check_sums<false, ends_in_norm>(c, seed);
            check_blocked_sum<double, true, true, 3, ends_in_distance>(c, ++seed);
            check_blocked_sum<c64, false, false, 1, ends_in_distance>(c, ++seed);
            check_warpgroup_sum<true, ends_in_distance>(c, ++seed);
            check_staying_sum<float, false, ends_in_distance>(c, ++seed);
            check_staying_sum<double, true, ends_in_distance>(c, ++seed);
        }
    }
}

}  // namespace kernel_tests

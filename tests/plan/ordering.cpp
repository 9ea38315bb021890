// SPDX-License-Identifier: MIT
// The closed form of the order against all permutations, and against a dynamic program over subsets.
#include <otimes/plan/ordering.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "support/random.hpp"

namespace {

using otimes::planning::chain_flops;
using otimes::planning::cheapest_order;
using otimes::planning::contracts_before;
using otimes::planning::factor_shape;

using shapes = std::vector<factor_shape>;

double fewest_flops_of_all_permutations(const shapes& factors) {
    std::vector<std::int32_t> order(factors.size());
    std::iota(order.begin(), order.end(), 0);
    double best = std::numeric_limits<double>::infinity();
    do {
        best = std::min(best, chain_flops(factors, order, 1.0, 1));
    } while (std::next_permutation(order.begin(), order.end()));
    return best;
}

// Least flops to contract every subset of modes: cost[s] = min over the mode contracted last.
double fewest_flops_by_subsets(const shapes& factors) {
    const std::size_t count = factors.size();
    std::vector<double> cost(std::size_t{1} << count, std::numeric_limits<double>::infinity());
    cost[0] = 0;
    for (std::size_t done = 0; done < cost.size(); ++done) {
        double elements = 1;
        for (std::size_t k = 0; k < count; ++k) {
            elements *= static_cast<double>((done >> k & 1) != 0 ? factors[k].q_extent : factors[k].p_extent);
        }
        for (std::size_t k = 0; k < count; ++k) {
            if ((done >> k & 1) == 0) {
                double& next = cost[done | std::size_t{1} << k];
                next = std::min(next, cost[done] + 2.0 * elements * static_cast<double>(factors[k].q_extent));
            }
        }
    }
    return cost.back();
}

double planned_flops(const shapes& factors) { return chain_flops(factors, cheapest_order(factors), 1.0, 1); }

}  // namespace

TEST_CASE("the order has the fewest multiply-adds of all permutations: every two and three factors up to 5 x 5") {
    for (std::int64_t code = 0; code < 25 * 25; ++code) {
        const shapes two{{code % 5 + 1, code / 5 % 5 + 1}, {code / 25 % 5 + 1, code / 125 + 1}};
        REQUIRE(planned_flops(two) == fewest_flops_of_all_permutations(two));
        for (std::int64_t third = 0; third < 25; ++third) {
            shapes three = two;
            three.push_back({third % 5 + 1, third / 5 + 1});
            REQUIRE(planned_flops(three) == doctest::Approx(fewest_flops_of_all_permutations(three)).epsilon(1e-14));
        }
    }
}

TEST_CASE("the order has the fewest multiply-adds: random products of up to ten factors") {
    support::random_stream random(7);
    for (int i = 0; i < 300; ++i) {
        shapes factors(static_cast<std::size_t>(random.integer(4, 10)));
        for (factor_shape& f : factors) {
            f = {random.integer(1, 70), random.integer(1, 70)};
        }
        REQUIRE(planned_flops(factors) == doctest::Approx(fewest_flops_by_subsets(factors)).epsilon(1e-12));
    }
}

TEST_CASE("the comparison is exact where doubles are not") {
    // 1/Q - 1/P differ by about 1e-36 here
    const std::int64_t large = (std::int64_t{1} << 31) - 1;
    CHECK(contracts_before({large, large - 1}, {large + 2, large + 1}));
    CHECK_FALSE(contracts_before({large + 2, large + 1}, {large, large - 1}));
    CHECK(1.0 / static_cast<double>(large - 1) - 1.0 / static_cast<double>(large) ==
          doctest::Approx(1.0 / static_cast<double>(large + 1) - 1.0 / static_cast<double>(large + 2)).epsilon(1e-8));
    // the largest factors that 63 bits can count
    const std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    CHECK(contracts_before({most, 1}, {1, most}));
    CHECK_FALSE(contracts_before({1, most}, {most, 1}));
    CHECK(contracts_before({most, 1}, {most - 1, 1}));
}

TEST_CASE("the comparison is a strict weak order") {
    support::random_stream random(11);
    for (int i = 0; i < 2000; ++i) {
        factor_shape f[3];
        for (factor_shape& one : f) {
            one = {random.integer(1, 6), random.integer(1, 6)};
        }
        REQUIRE_FALSE(contracts_before(f[0], f[0]));
        REQUIRE_FALSE((contracts_before(f[0], f[1]) && contracts_before(f[1], f[0])));
        if (contracts_before(f[0], f[1]) && contracts_before(f[1], f[2])) {
            REQUIRE(contracts_before(f[0], f[2]));
        }
    }
}

TEST_CASE("ties keep the order given: outermost first") {
    const shapes equal(4, factor_shape{3, 3});
    CHECK(cheapest_order(equal) == std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK(cheapest_order(shapes{{2, 2}, {4, 2}, {5, 5}, {2, 4}}) == std::vector<std::int32_t>{1, 0, 2, 3});
}

TEST_CASE("hand-computed: 32 x 8 (x) 64 x 128 with 50 rows, FastKron Table 4 row 7") {
    const shapes factors{{32, 8}, {64, 128}};
    // F1 first: 2 * 50 * (32 * 64 * 8 + 8 * 64 * 128) = 8 192 000; F2 first: 2 * 50 * (32 * 64 * 128 + 32 * 128 * 8)
    CHECK(chain_flops(factors, std::vector<std::int32_t>{0, 1}, 50, 1) == 8192000.0);
    CHECK(chain_flops(factors, std::vector<std::int32_t>{1, 0}, 50, 1) == 29491200.0);
    CHECK(cheapest_order(factors) == std::vector<std::int32_t>{0, 1});
    CHECK(chain_flops(factors, std::vector<std::int32_t>{0, 1}, 50, 4) == 4 * 8192000.0);
}

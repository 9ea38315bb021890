// SPDX-License-Identifier: MIT
// Which plan the table of the process gives up for a new one.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <otimes/exec/plan_cache.hpp>

#if !OTIMES_PLANNER_IN_LIBRARY

TEST_CASE("of the plans that share a place the one not asked for longest goes") {
    const auto table = std::make_unique<otimes::detail::plan_table>();
    constexpr std::size_t ways = otimes::detail::plan_table::ways;
    const otimes::program source;
    const auto key = [](std::size_t i) { return std::uint64_t{7} << 20 | i; };  // all of one place
    const auto holds = [&](std::size_t i) { return table->find(key(i), 1, source) != nullptr; };
    for (std::size_t i = 0; i < ways; ++i) {
        table->keep({key(i), 1, std::make_shared<const otimes::plan>()});
    }
    for (const std::size_t i : {std::size_t{2}, std::size_t{0}}) {  // asked for since
        REQUIRE(holds(i));
    }
    table->keep({key(ways), 1, std::make_shared<const otimes::plan>()});
    CHECK(holds(0));
    CHECK_FALSE(holds(1));
    CHECK(holds(2));
    for (std::size_t i = 3; i <= ways; ++i) {
        CHECK(holds(i));
    }
    CHECK_FALSE(table->find(key(0), 2, source));  // of another executor
    otimes::program other;
    other.tensors.emplace_back();
    CHECK_FALSE(table->find(key(0), 1, other));  // a key that two programs have
    table->clear();
    CHECK_FALSE(holds(0));
}

#endif

// SPDX-License-Identifier: MIT
// Plans and machines survive text; damaged and foreign text is refused.
#include "plan/programs.hpp"

#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/random.hpp"

namespace {
using namespace planner_test;
}

TEST_CASE("a plan reads back equal") {
    otimes::plan odd = otimes::make_plan(rows_power(7, 2, 5), two_wide_cores());
    odd.machine_name = "quote \" backslash \\ newline \n end";
    odd.notes = {"", "⊗", " leading blank"};
    odd.predicted_seconds = 0.1;
    for (const otimes::plan& p :
         {otimes::make_plan(rows_power(256, 8, 5), two_wide_cores()),
          otimes::make_plan(rows_program(50, {factor(32, 8), factor(64, 128)}, dtype::c128, true), tiny_caches(3)),
          otimes::make_plan(rows_power(1024, 8, 6), otimes::gpu_machine(otimes::h200())),
          otimes::make_plan(rows_program(0, {factor(2, 3)}), two_wide_cores()), otimes::plan{}, odd}) {
        const std::string text = otimes::to_text(p);
        const otimes::plan back = otimes::plan_from_text(text);
        CHECK(back == p);
        CHECK(otimes::to_text(back) == text);
    }
}

TEST_CASE("a machine reads back equal, tuning included") {
    for (otimes::machine m : {otimes::machine{}, two_wide_cores(), otimes::gpu_machine(otimes::h200(), 8)}) {
        m.tuning.push_back({0xfedcba9876543210ull, "threads 2", 1e-300});
        CHECK(otimes::machine_from_text(otimes::to_text(m)) == m);
    }
}

TEST_CASE("doubles are exact") {
    support::random_stream random(1);
    otimes::machine m;
    for (int i = 0; i < 2000; ++i) {
        double value = std::bit_cast<double>(random.bits());
        if (std::isnan(value)) {
            continue;
        }
        m.network_bytes_per_second = value;
        const double back = otimes::machine_from_text(otimes::to_text(m)).network_bytes_per_second;
        REQUIRE(std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value));
    }
    using limits = std::numeric_limits<double>;
    for (const double value : {0.0, -0.0, limits::denorm_min(), limits::min(), limits::max(), -limits::infinity()}) {
        m.network_bytes_per_second = value;
        const double back = otimes::machine_from_text(otimes::to_text(m)).network_bytes_per_second;
        CHECK(std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value));
    }
    CHECK(otimes::planning::hex_text(1.5) == "0x1.8p+0");
    CHECK(otimes::planning::hex_text(-0.0625) == "-0x1p-4");
}

TEST_CASE("foreign, damaged and other-version text is refused") {
    const std::string text = otimes::to_text(otimes::make_plan(rows_power(7, 2, 5), two_wide_cores()));
    CHECK_THROWS_AS(otimes::plan_from_text(""), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::plan_from_text("hello"), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::machine_from_text(text), otimes::unsupported_error);
    CHECK_THROWS_AS(otimes::plan_from_text(text + "x"), otimes::unsupported_error);
    std::string newer = text;
    newer.replace(0, 13, "otimes-plan 5");
    CHECK_THROWS_WITH_AS(otimes::plan_from_text(newer),
                         "otimes: this text is not a plan or machine that this version can read: it is of version 5. "
                         "Make it again with to_text of this version.",
                         otimes::unsupported_error);
    for (std::size_t cut = 0; cut < text.size(); cut += 7) {
        CHECK_THROWS_AS(otimes::plan_from_text(text.substr(0, cut)), otimes::unsupported_error);
    }
    for (std::size_t at = 0; at < text.size(); ++at) {
        std::string damaged = text;
        damaged[at] = damaged[at] == '1' ? '2' : '1';
        CHECK_THROWS_AS(otimes::plan_from_text(damaged), otimes::unsupported_error);
    }
}

TEST_CASE("text with a right checksum but wrong fields is refused, not believed") {
    const std::string text = otimes::to_text(otimes::make_plan(rows_power(7, 2, 5), two_wide_cores()));
    const std::string body = text.substr(0, text.rfind("checksum "));
    support::random_stream random(2);
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
        std::string damaged = body;
        const auto at = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(body.size()) - 1));
        damaged[at] = "0123456789 -\n\"px"[random.integer(0, 15)];
        damaged += "checksum " + std::to_string(otimes::planning::checksum_of(damaged)) + "\n";
        try {
            (void)otimes::plan_from_text(damaged);  // may be another valid plan; must not crash
        } catch (const otimes::unsupported_error&) {
            ++refused;
        }
    }
    CHECK(refused > 500);
}

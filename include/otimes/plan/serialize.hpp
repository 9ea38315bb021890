// SPDX-License-Identifier: MIT
/// @file serialize.hpp
/// Plans and machines as text, without loss (plan_text.hpp).
#pragma once

#include <otimes/program/cold.hpp>
#include <otimes/program/compiled.hpp>

#if OTIMES_PLANNER_IN_LIBRARY

#include <string>
#include <string_view>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>

namespace otimes {
std::string to_text(const plan& p);
plan plan_from_text(std::string_view text);
std::string to_text(const machine& m);
machine machine_from_text(std::string_view text);
}  // namespace otimes

#else

#include <string>
#include <string_view>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/plan_text.hpp>

namespace otimes {

/// A plan as text, without loss. @post plan_from_text(to_text(p)) == p (tests/plan/serialize.cpp).
OTIMES_PLANNER_API_ON_DEMAND std::string to_text(const plan& p) { return planning::write_text("plan", p); }
/// Reads to_text back. @throws unsupported_error foreign, damaged or other-version text; the text says what is wrong.
OTIMES_PLANNER_API_ON_DEMAND plan plan_from_text(std::string_view text) {
    return planning::read_text<plan>("plan", text);
}

/// A machine as text, without loss (the store of tuning tables).
OTIMES_PLANNER_API_ON_DEMAND std::string to_text(const machine& m) { return planning::write_text("machine", m); }
/// Reads to_text back. @throws unsupported_error foreign, damaged or other-version text.
OTIMES_PLANNER_API_ON_DEMAND machine machine_from_text(std::string_view text) {
    return planning::read_text<machine>("machine", text);
}

}  // namespace otimes

#endif

// SPDX-License-Identifier: MIT
// What `otimes::make_executor` knows beside the header-only executors.
#include <otimes/cuda.hpp>
#include <otimes/plan/planner.hpp>

namespace otimes {

plan plan_by_cost(const program& p, const machine& where) {
    options wishes;
    wishes.placement = placement::automatic;
    return make_plan(p, where, wishes);
}

}  // namespace otimes

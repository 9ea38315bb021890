// SPDX-License-Identifier: MIT
// otimes::compiled: the planner, its texts and the plan cache, for all targets.
#define OTIMES_COMPILED
#define OTIMES_COMPILED_PLANNER_SOURCE
#include <otimes/exec/plan_cache.hpp>
#include <otimes/plan/cpu_plan.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

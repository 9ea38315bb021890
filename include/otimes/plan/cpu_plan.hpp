// SPDX-License-Identifier: MIT
/// @file cpu_plan.hpp
/// The plan of a program on the CPU, bare: what an expression is evaluated by when nobody asks why. planner.hpp makes the
/// same passes and adds bounds, reasons and the candidates that lost. Kept apart because every file that evaluates an
/// expression compiles this, and only files that plan or explain compile the rest.
#pragma once

#include <otimes/program/compiled.hpp>

#if OTIMES_PLANNER_IN_LIBRARY

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {
plan default_cpu_plan(const program& source, const cpu_description& cpu);
}  // namespace otimes::planning

#else

#include <algorithm>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// True where starting the other threads may cost more than they save, so that the plan of one is worth making: little is to be done, or no
/// pass has a second part for them, as with one row of one short factor.
inline bool is_worth_one_thread(const plan& made, const cpu_request& request, const cpu_description& cpu) {
    double most_parts = 0;
    for (const pass& p : made.passes) {
        most_parts = (std::max)(most_parts, p.kernel == pass_kernel::cpu_tiles ? shared_parts(p) : 2.0);
    }
    return request.threads > 1 && (made.predicted_seconds < 32 * cpu.fork_seconds || most_parts <= 1);
}

/// The plan that the cpu executor makes for an expression: default options, all threads of `cpu`. Deterministic.
OTIMES_COLD OTIMES_PLANNER_API plan default_cpu_plan(const program& source, const cpu_description& cpu) {
    cpu_request request;
    request.threads = (std::max)(1, cpu.threads);
    std::vector<chain> chains = chains_of(source);
    chain_decision decision;
    plan chosen = plan_on_cpu(source, cpu, request, chains, decision);
    if (is_worth_one_thread(chosen, request, cpu)) {
        request.threads = 1;
        chains = chains_of(source);
        plan alone = plan_on_cpu(source, cpu, request, chains, decision);
        if (alone.predicted_seconds <= chosen.predicted_seconds) {
            return alone;
        }
    }
    return chosen;
}

}  // namespace otimes::planning

#endif

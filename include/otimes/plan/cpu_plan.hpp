// SPDX-License-Identifier: MIT
/// @file cpu_plan.hpp
/// The plan of a program on the CPU, bare: what an expression is evaluated by when nobody asks why. planner.hpp makes the
/// same passes and adds bounds, reasons and the candidates that lost. Kept apart because every file that evaluates an
/// expression compiles this, and only files that plan or explain compile the rest.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// The plan with the prediction that decides between requests.
struct cpu_candidate {
    plan made;
    std::vector<chain> chains;
    chain_decision decision;
    cpu_request request;
};

inline cpu_candidate try_request(const program& source, const cpu_description& cpu, const cpu_request& request) {
    cpu_candidate candidate;
    candidate.request = request;
    candidate.chains = chains_of(source);
    candidate.made = plan_on_cpu(source, cpu, request, candidate.chains, candidate.decision);
    return candidate;
}

/// The plan of a request, with one thread instead of several where starting the others costs more than they save.
inline cpu_candidate with_cheapest_threads(const program& source, const cpu_description& cpu,
                                           const cpu_request& request) {
    cpu_candidate chosen = try_request(source, cpu, request);
    if (request.threads > 1 && chosen.made.predicted_seconds < 32 * cpu.fork_seconds) {
        cpu_request alone = request;
        alone.threads = 1;
        cpu_candidate other = try_request(source, cpu, alone);
        if (other.made.predicted_seconds <= chosen.made.predicted_seconds) {
            return other;
        }
    }
    return chosen;
}

/// The plan that the cpu executor makes for an expression: default options, all threads of `cpu`. Deterministic.
inline plan default_cpu_plan(const program& source, const cpu_description& cpu) {
    cpu_request request;
    request.threads = std::max(1, cpu.threads);
    return std::move(with_cheapest_threads(source, cpu, request).made);
}

}  // namespace otimes::planning

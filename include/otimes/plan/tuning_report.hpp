// SPDX-License-Identifier: MIT
/// @file tuning_report.hpp
/// What otimes::tune is asked for and what it found; plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace otimes {

/// How otimes::tune measures.
struct tuning_options {
    std::int32_t most_candidates = 12;  ///< plans that are measured, the planner's own among them
    std::int32_t repetitions = 7;       ///< medians of so many
    /// GPUs: in the cache folder, for later processes too. The cpu executor writes no files: see tuned_choices() in tune.hpp.
    bool keep_on_disk = true;
};

/// One measured plan.
struct tuned_candidate {
    std::string choice;      ///< text form of the passes
    double seconds = 0;      ///< of one evaluation; 0: not measured
    double difference = -1;  ///< from the result of an independent path, Frobenius, relative; negative: not compared
    bool valid = false;      ///< ran, and agrees
};

/// What otimes::tune found; `candidates` begins with the planner's own choice.
struct tuning_report {
    std::vector<tuned_candidate> candidates;
    std::size_t best = 0;  ///< position of the winner
};

}  // namespace otimes

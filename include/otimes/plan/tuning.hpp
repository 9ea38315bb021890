// SPDX-License-Identifier: MIT
/// @file tuning.hpp
/// Measured choices: the text form of a request, and its lookup in a machine's tuning table. Only a tuning function writes
/// entries; options.deterministic ignores them.
#pragma once

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// "threads 2 multiply_out 1 slab_extent 4 most_lanes 64 partition 0": what tuning_entry::choice holds.
OTIMES_ON_DEMAND inline std::string choice_text(const cpu_request& r) {
    return "threads " + std::to_string(r.threads) + " multiply_out " + std::to_string(r.multiply_out ? 1 : 0) +
           " slab_extent " + std::to_string(r.slab_extent) + " most_lanes " + std::to_string(r.most_lanes) +
           " partition " + std::to_string(static_cast<int>(r.partition));
}

/// What rounding may do to a program's result in a type of this epsilon: two right results differ by less, in the Frobenius norm and
/// relative. 4 (4 + sum of the roots of the contracted extents) epsilon.
OTIMES_ON_DEMAND inline double difference_by_rounding(const program& source, double epsilon) {
    double lengths = 4;
    for (const step& s : source.steps) {
        if (s.kind == step_kind::contract && s.factor >= 0) {
            lengths += std::sqrt(static_cast<double>(source.modes_of(s.factor)[0].extent));
        }
    }
    return 4 * lengths * epsilon;
}

/// Reads choice_text back; false (and `r` unchanged) for any other text, so that a foreign table is ignored.
OTIMES_ON_DEMAND inline bool read_choice(const std::string& text, cpu_request& r) {
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    std::string names[5];
    cpu_request read;
    int multiply_out = 0;
    int how = 0;
    in >> names[0] >> read.threads >> names[1] >> multiply_out >> names[2] >> read.slab_extent >> names[3] >>
        read.most_lanes >> names[4] >> how;
    if (!in || read.threads < 1 || how < 0 || how > 3 || read.most_lanes < 1 || read.slab_extent < -1) {
        return false;
    }
    read.multiply_out = multiply_out != 0;
    read.partition = static_cast<partition>(how);
    if (choice_text(read) != text) {  // other names, or more than it writes
        return false;
    }
    r = read;
    return true;
}

/// Is this what a run can have taken? An entry of another time is a foreign one, too.
OTIMES_ON_DEMAND inline bool is_measured_time(double seconds) { return seconds > 0 && seconds <= 1e9; }

/// The request of the table's entry for this program, else `otherwise`. A tuned thread count never exceeds the wish.
/// @param seconds what was measured for it; left alone where there is no entry
OTIMES_ON_DEMAND inline cpu_request tuned_request(const machine& target, const program& source,
                                                  const cpu_request& otherwise, double& seconds) {
    if (target.tuning.empty()) {
        return otherwise;
    }
    const std::uint64_t hash = hash_value(source);
    for (const tuning_entry& entry : target.tuning) {
        cpu_request read;
        if (entry.program_hash == hash && is_measured_time(entry.seconds) && read_choice(entry.choice, read)) {
            read.threads = (std::min)(read.threads, otherwise.threads);
            seconds = entry.seconds;
            return read;
        }
    }
    return otherwise;
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
#include "process_launcher.hpp"

#include <cstdlib>

namespace otimes::backend {

namespace {

/// The number that a variable holds; `none` where it is not set.
long long number_of(const char* variable, long long none) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? none : std::atoll(value);
}

}  // namespace

bool is_one_rank_of_several() {
    if (number_of("OMPI_COMM_WORLD_SIZE", 1) > 1 || number_of("PMI_SIZE", 1) > 1) {
        return true;
    }
    // SLURM_NTASKS and SLURM_PROCID are set in a batch script, too: those of a step that srun has started are what counts. The numbers
    // from this one on are the steps of batch scripts and of interactive shells.
    constexpr long long first_special_step = 0xfffffff0;
    const long long step = number_of("SLURM_STEP_ID", -1);
    return std::getenv("SLURM_PROCID") != nullptr && step >= 0 && step < first_special_step &&
           number_of("SLURM_STEP_NUM_TASKS", 1) > 1;
}

}  // namespace otimes::backend

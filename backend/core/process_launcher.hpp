// SPDX-License-Identifier: MIT
/// @file process_launcher.hpp
/// What the environment says of who started this process.
#pragma once

namespace otimes::backend {

/// A launcher has started this process as one of several: mpirun, or srun. What SLURM tells the shell of an allocation (salloc, sbatch), which
/// is one process however many tasks were asked for, does not count.
bool is_one_rank_of_several();

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
// otimes::distributed where it was built without MPI: a program that mpirun started is told so.
#include <cstdlib>

#include <otimes/program/errors.hpp>

#include "../distributed/transports.hpp"

namespace otimes::backend {

bool started_by_mpi() {
    // One process of a launcher needs no other ones: where their number is told, it counts. (SLURM's is that of a shell, too.)
    for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
        if (const char* const processes = std::getenv(name)) {
            return std::atoll(processes) > 1;
        }
    }
    if (std::getenv("PMI_RANK") == nullptr && std::getenv("PMIX_RANK") == nullptr) {
        return false;
    }
    const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
    return tasks == nullptr || std::atoll(tasks) != 1;
}

std::unique_ptr<transport> make_mpi_transport(const executor&, std::chrono::milliseconds) {
    throw device_error(
        "otimes: this program was started by an MPI launcher, but otimes was built without MPI. Install MPI (Debian "
        "and "
        "Ubuntu: apt-get install libopenmpi-dev) and configure with -DOTIMES_MPI=ON, or start one process.");
}

std::int32_t mpi_rank_on_host(transport&) { return 0; }

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file transports.hpp
/// The transports that may not be there: each has a stub in none/ that says which option turns it on.
#pragma once

#include <chrono>
#include <memory>

#include <otimes/exec/transport.hpp>

namespace otimes::backend {

/// True where this process was started by an MPI launcher, or has called MPI_Init. Built without MPI: by a launcher of several processes.
bool started_by_mpi();
/// This process as one rank of MPI_COMM_WORLD, computing on the CPU. Collective. @throws device_error
std::unique_ptr<transport> make_mpi_transport(const executor& where, std::chrono::milliseconds deadline);
/// Processes of this host with a lower rank among `ranks`, of make_mpi_transport: which of the host's GPUs a rank takes. Collective.
/// @throws device_error a rank that does not answer within the deadline
std::int32_t mpi_rank_on_host(transport& ranks);

/// GPUs of this process, one rank each (`first_gpu` on, `count` of them; 0: all), over NCCL where there are several. With
/// `control` every process brings one GPU, and agreements go over it. `by_copies`: GPUs of one process that reach each other's
/// memory copy instead. Collective. @throws device_error
std::unique_ptr<transport> make_gpu_transport(std::int32_t first_gpu, std::int32_t count,
                                              std::unique_ptr<transport> control, std::chrono::milliseconds deadline,
                                              bool by_copies);
/// GPUs that this process sees; 0 without the CUDA back end.
std::int32_t visible_gpus();

}  // namespace otimes::backend

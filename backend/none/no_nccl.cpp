// SPDX-License-Identifier: MIT
// otimes::distributed where it was built without CUDA or NCCL.
#include <otimes/program/errors.hpp>

#include "../distributed/transports.hpp"

namespace otimes::backend {

std::int32_t visible_gpus() { return 0; }

std::unique_ptr<transport> make_gpu_transport(std::int32_t, std::int32_t, std::unique_ptr<transport>,
                                              std::chrono::milliseconds, bool) {
    throw device_error(
        "otimes::gpu_communicator(): otimes was built without its back ends for several GPUs. Install the CUDA toolkit "
        "and "
        "configure with -DOTIMES_CUDA=ON -DOTIMES_NCCL=ON, or use otimes::make_communicator() for the CPU.");
}

}  // namespace otimes::backend

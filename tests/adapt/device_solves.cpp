// SPDX-License-Identifier: MIT
// Solves with right-hand sides in device memory, on an executor that pretends to be a GPU. Here, and not in no_cuda, because the other files
// of this room compile the same decompositions.
#include "cuda/pretended_gpu.hpp"
#include "cuda/solve_checks.hpp"

TEST_CASE("solves in device memory") {
    const device_test::pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        device_test::check_solves<double, false>();
    }
    CHECK(gpu.in_use() == 0);
}

// SPDX-License-Identifier: MIT
// Solves with right-hand sides in device memory, on a GPU.
#include <doctest/doctest.h>

#include <complex>

#include "cuda/device_support.hpp"
#include "cuda/solve_checks.hpp"

using namespace device_test;

TEST_CASE_TEMPLATE("solves with right-hand sides in device memory" * needs_gpu(), Scalar, float, double,
                   std::complex<double>) {
    check_solves<Scalar>();
}

// SPDX-License-Identifier: MIT
#include "adapt/scalar_types.hpp"

using complex = std::complex<float>;

TEST_CASE("complex X and real factors, float") { adapt::check_scalars<complex, float, float>(); }
TEST_CASE("complex X, one complex factor, float") { adapt::check_scalars<complex, complex, float>(); }

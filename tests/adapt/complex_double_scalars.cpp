// SPDX-License-Identifier: MIT
#include "adapt/scalar_types.hpp"

using complex = std::complex<double>;

TEST_CASE("complex X and complex factors, double") { adapt::check_scalars<complex, complex, complex>(); }
TEST_CASE("complex X and real factors, double") { adapt::check_scalars<complex, double, double>(); }

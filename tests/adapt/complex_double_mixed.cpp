// SPDX-License-Identifier: MIT
#include "adapt/scalar_types.hpp"

using complex = std::complex<double>;

TEST_CASE("real X and complex factors, double") { adapt::check_scalars<double, complex, complex>(); }
TEST_CASE("real X, one complex factor, double") { adapt::check_scalars<double, double, complex>(); }

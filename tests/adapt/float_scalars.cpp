// SPDX-License-Identifier: MIT
#include "adapt/scalar_types.hpp"

TEST_CASE("float products") { adapt::check_scalars<float, float, float>(); }

TEST_CASE("double products by the same check") { adapt::check_scalars<double, double, double>(); }

// SPDX-License-Identifier: MIT
// The one file of the tests that holds doctest's implementation.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

// SPDX-License-Identifier: MIT
/// @file cold.hpp
/// What is said of code that runs once per expression or never: planning, error texts. Every file that evaluates an
/// expression compiles it, so it is compiled for size and kept out of line (docs/decisions/0003).
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define OTIMES_COLD __attribute__((cold, noinline))
#else
#define OTIMES_COLD
#endif

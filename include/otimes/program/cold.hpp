// SPDX-License-Identifier: MIT
/// @file cold.hpp
/// What is said of code that runs once per expression or never: planning, error texts. Every file that evaluates an
/// expression compiles it, so it is compiled for size and kept out of line (docs/decisions/0003).
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define OTIMES_COLD __attribute__((cold, noinline))
#define OTIMES_OUT_OF_LINE __attribute__((noinline))  ///< small, and used in many places
#else
#define OTIMES_COLD
#define OTIMES_OUT_OF_LINE
#endif

/// In front of a function that a plain product does not call, such as the planner for GPUs: a template without anything to deduce, so
/// that what it uses is instantiated only in files that call it (docs/decisions/0003). Its address is `&name<>`.
#define OTIMES_ON_DEMAND template <class = void>

// SPDX-License-Identifier: MIT
/// @file compiled.hpp
/// Header-only, or with the library otimes::compiled (docs/decisions/0003). A file that is compiled with OTIMES_COMPILED, which
/// the CMake target defines, declares the planner and its texts instead of compiling them; exec/target.hpp says the same of
/// the cpu executor.
#pragma once

#include <otimes/program/cold.hpp>

#if defined(OTIMES_COMPILED) && !defined(OTIMES_COMPILED_PLANNER_SOURCE)
#define OTIMES_PLANNER_IN_LIBRARY 1
#else
#define OTIMES_PLANNER_IN_LIBRARY 0
#endif

/// In front of what the library holds: there an ordinary function, header-only an inline one, which is compiled where it is called
/// (OTIMES_ON_DEMAND) unless every product needs it.
#if defined(OTIMES_COMPILED_PLANNER_SOURCE)
#define OTIMES_PLANNER_API
#define OTIMES_PLANNER_API_ON_DEMAND
#else
#define OTIMES_PLANNER_API inline
#define OTIMES_PLANNER_API_ON_DEMAND OTIMES_ON_DEMAND inline
#endif

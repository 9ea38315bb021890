// SPDX-License-Identifier: MIT
// The types of a case that compiles long. By g++ (OTIMES_TEST_ONCE) each such case is there for one of them, in turn; the preset for
// clang++ has all.
#pragma once

#include <complex>

#ifdef OTIMES_TEST_ONCE
#define OTIMES_REAL_AND_COMPLEX(once) once
#define OTIMES_ONE_OF(once, ...) once
#else
#define OTIMES_REAL_AND_COMPLEX(once) double, std::complex<double>
#define OTIMES_ONE_OF(once, ...) once, __VA_ARGS__
#endif

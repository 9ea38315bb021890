// SPDX-License-Identifier: MIT
// The scalars of a case that compiles long. The default run (OTIMES_TEST_ONCE) has each such case for one of them, in turn; the
// presets for sanitizers and clang++ have both.
#pragma once

#include <complex>

#ifdef OTIMES_TEST_ONCE
#define OTIMES_REAL_AND_COMPLEX(once) once
#else
#define OTIMES_REAL_AND_COMPLEX(once) double, std::complex<double>
#endif

// SPDX-License-Identifier: MIT
/// @file target.hpp
/// The name of the instruction set and threading that this translation unit is compiled for. Everything that reaches a
/// kernel of the cpu executor lives in the inline namespace `OTIMES_TARGET`, so that files compiled with different flags
/// link in any order and each runs its own code.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define OTIMES_TARGET_ISA avx512
#define OTIMES_TARGET_SIMD_BYTES 64
#define OTIMES_TARGET_SIMD_REGISTERS 32
#if defined(OTIMES_COMPILED_AVX512)
#define OTIMES_TARGET_IN_LIBRARY 1
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define OTIMES_TARGET_ISA avx2
#define OTIMES_TARGET_SIMD_BYTES 32
#define OTIMES_TARGET_SIMD_REGISTERS 16
#if defined(OTIMES_COMPILED_AVX2)
#define OTIMES_TARGET_IN_LIBRARY 1
#endif
#elif defined(__AVX__)
#define OTIMES_TARGET_ISA avx
#define OTIMES_TARGET_SIMD_BYTES 32
#define OTIMES_TARGET_SIMD_REGISTERS 16
#if defined(OTIMES_COMPILED_AVX)
#define OTIMES_TARGET_IN_LIBRARY 1
#endif
#elif defined(__ARM_NEON)
#define OTIMES_TARGET_ISA neon
#define OTIMES_TARGET_SIMD_BYTES 16
#define OTIMES_TARGET_SIMD_REGISTERS 32
#if defined(OTIMES_COMPILED_NEON)
#define OTIMES_TARGET_IN_LIBRARY 1
#endif
#else
#define OTIMES_TARGET_ISA baseline
#define OTIMES_TARGET_SIMD_BYTES 16
#define OTIMES_TARGET_SIMD_REGISTERS 16
#if defined(OTIMES_COMPILED_BASELINE)
#define OTIMES_TARGET_IN_LIBRARY 1
#endif
#endif

// Threads where OpenMP is enabled, and not where Eigen is told to start none.
#if defined(_OPENMP) && !defined(EIGEN_DONT_PARALLELIZE)
#define OTIMES_OPENMP 1
#define OTIMES_TARGET_THREADING openmp
#else
#define OTIMES_OPENMP 0
#define OTIMES_TARGET_THREADING serial
#endif

// Does the library otimes::compiled hold the cpu executor for this target? Its CMake target says for which it was built; files
// for any other are header-only.
#if defined(OTIMES_COMPILED) && !defined(OTIMES_COMPILED_EXECUTOR_SOURCE) && defined(OTIMES_TARGET_IN_LIBRARY) && \
    (!OTIMES_OPENMP || defined(OTIMES_COMPILED_OPENMP))
#define OTIMES_EXECUTOR_IN_LIBRARY 1
#else
#define OTIMES_EXECUTOR_IN_LIBRARY 0
#endif
#if defined(OTIMES_COMPILED_EXECUTOR_SOURCE)
#define OTIMES_EXECUTOR_API
#else
#define OTIMES_EXECUTOR_API inline
#endif

#define OTIMES_CONCAT_EXPANDED(a, b, c) a##b##c
#define OTIMES_CONCAT(a, b, c) OTIMES_CONCAT_EXPANDED(a, b, c)
#define OTIMES_TEXT_EXPANDED(a) #a
#define OTIMES_TEXT(a) OTIMES_TEXT_EXPANDED(a)

/// e.g. target_avx512_openmp
#define OTIMES_TARGET OTIMES_CONCAT(target_, OTIMES_CONCAT(OTIMES_TARGET_ISA, _, OTIMES_TARGET_THREADING), )
#define OTIMES_TARGET_NAME OTIMES_TEXT(OTIMES_TARGET_ISA) " " OTIMES_TEXT(OTIMES_TARGET_THREADING)

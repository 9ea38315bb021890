// SPDX-License-Identifier: MIT
// Scalars beyond float and double: complex numbers laid out (re, im), and 16-bit storage that is computed with in float.
#pragma once
#include "device_language.cuh"

namespace otimes::kernels {

template <class Real>
struct alignas(2 * sizeof(Real)) complex {
    Real re, im;
    complex() = default;
    __host__ __device__ constexpr complex(Real real_part, Real imaginary_part = Real(0))
        : re(real_part), im(imaginary_part) {}
    __device__ __forceinline__ complex& operator+=(complex b) {
        re += b.re;
        im += b.im;
        return *this;
    }
    friend __device__ __forceinline__ complex operator+(complex a, complex b) { return {a.re + b.re, a.im + b.im}; }
    friend __device__ __forceinline__ complex operator-(complex a, complex b) { return {a.re - b.re, a.im - b.im}; }
    friend __device__ __forceinline__ complex operator*(complex a, complex b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
    friend __device__ __forceinline__ bool operator==(complex a, complex b) { return a.re == b.re && a.im == b.im; }
};

// sum + a * b, in as many multiply-adds as it has products: four over complex numbers (a product that is added to a sum takes six operations).
// Real operands by reference: by value, nvcc 13 orders the loads of a double kernel otherwise and spills (10^2: 296 bytes for 32).
template <class Scalar>
__device__ __forceinline__ Scalar multiply_add(const Scalar& a, const Scalar& b, const Scalar& sum) {
    return sum + a * b;
}
template <class Real>
__device__ __forceinline__ complex<Real> multiply_add(complex<Real> a, complex<Real> b, complex<Real> sum) {
    return {sum.re + a.re * b.re - a.im * b.im, sum.im + a.re * b.im + a.im * b.re};
}

// value == 0; of a double by its bits: a comparison would queue for the unit of double precision behind the matrix unit's products.
template <class Scalar>
__device__ __forceinline__ bool is_zero(Scalar value) {
    if constexpr (is_same<Scalar, double>)
        return (static_cast<unsigned long long>(__double_as_longlong(value)) << 1) == 0;
    else
        return value == Scalar(0);
}

template <class Scalar>
__device__ __forceinline__ Scalar conjugate(Scalar value) {
    return value;
}
template <class Real>
__device__ __forceinline__ complex<Real> conjugate(complex<Real> value) {
    return {value.re, -value.im};
}

struct half {
    unsigned short bits;
};  // IEEE binary16
struct bfloat16 {
    unsigned short bits;
};  // the upper half of a float

// The type in which a storage type is computed.
template <class Storage>
struct computing {
    using type = Storage;
};
template <>
struct computing<half> {
    using type = float;
};
template <>
struct computing<bfloat16> {
    using type = float;
};

#ifndef OTIMES_HOST_DEVICE
__device__ __forceinline__ float float_of_half(unsigned short bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
// To nearest, ties to even.
__device__ __forceinline__ unsigned short half_of_float(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

// storage <-> accumulator
template <class Accumulator, class Storage>
__device__ __forceinline__ Accumulator widen(Storage value) {
    return Accumulator(value);
}
template <>
__device__ __forceinline__ float widen<float, half>(half value) {
    return float_of_half(value.bits);
}
template <>
__device__ __forceinline__ float widen<float, bfloat16>(bfloat16 value) {
    return __uint_as_float(unsigned(value.bits) << 16);
}

template <>
__device__ __forceinline__ complex<double> widen<complex<double>, complex<float>>(complex<float> value) {
    return {double(value.re), double(value.im)};
}

template <class Storage, class Accumulator>
__device__ __forceinline__ Storage narrow(Accumulator value) {
    return Storage(value);
}
template <>
__device__ __forceinline__ complex<float> narrow<complex<float>, complex<double>>(complex<double> value) {
    return {float(value.re), float(value.im)};
}
template <>
__device__ __forceinline__ half narrow<half, float>(float value) {
    return {half_of_float(value)};
}
template <>
__device__ __forceinline__ bfloat16 narrow<bfloat16, float>(float value) {
#if __CUDA_ARCH__ >= 800 && !defined(OTIMES_HOST_DEVICE)
    bfloat16 stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored.bits) : "f"(value));
    return stored;
#else
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return {static_cast<unsigned short>(bits >> 16 | 0x40u)};                      // a NaN stays one
    return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};  // to nearest, ties to even
#endif
}

}  // namespace otimes::kernels

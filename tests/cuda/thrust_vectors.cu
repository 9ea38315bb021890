// SPDX-License-Identifier: MIT
// What nvcc compiles, without Eigen: both headers, and vectors of all element types as matrices.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <complex>
#include <type_traits>

#include <otimes/adapt/thrust.hpp>
#include <otimes/cuda.hpp>

void products(thrust::device_vector<thrust::complex<double>>& v, const thrust::device_vector<thrust::complex<float>>& c,
              const thrust::device_vector<std::complex<float>>& s, thrust::device_vector<double>& d) {
    auto x = otimes::as_matrix<1>(v, 4, 6);
    static_assert(std::is_same_v<std::remove_const_t<decltype(x)::Scalar>, std::complex<double>>);
    const otimes::DeviceMatrix<std::complex<double>, 1> A(2, 2), B(3, 3);
    x = x * otimes::kron(A, B);
    const otimes::DeviceMatrix<std::complex<float>, 1> y =
        otimes::as_matrix<1>(c, 2, 4) * otimes::kron(otimes::as_matrix<1>(s, 4, 4));
    otimes::as_matrix(d, 2, 2) *= otimes::kron(otimes::DeviceMatrix<double>(2, 2));
}

void products_of_16_bits(thrust::device_vector<__half>& h, const thrust::device_vector<__half>& f,
                         thrust::device_vector<__nv_bfloat16>& b) {
    static_assert(sizeof(__half) == sizeof(otimes::half) && alignof(__half) == alignof(otimes::half));
    static_assert(sizeof(__nv_bfloat16) == sizeof(otimes::bfloat16) &&
                  alignof(__nv_bfloat16) == alignof(otimes::bfloat16));
    otimes::as_matrix<1>(h, 3, 4) = otimes::as_matrix<1>(h, 3, 4) * otimes::kron(otimes::as_matrix(f, 4, 4));
    otimes::as_matrix(b, 2, 2) *= otimes::kron(otimes::DeviceMatrix<otimes::bfloat16>(2, 2));
}

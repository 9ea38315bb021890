// SPDX-License-Identifier: MIT
// What nvcc compiles, without Eigen: both headers, and vectors of all element types as matrices.
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

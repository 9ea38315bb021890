// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Multiply it with a matrix: dY = dX * K.
// EXPECT: a Kronecker product is a value that is not changed in place. Write K = 2.0 * K
// EXPECT: the product of a matrix in device memory with a matrix in host memory, or with an identity
// EXPECT: a number of another scalar type beside an expression in device memory
// EXPECT: a matrix in device memory plus or minus what is none
// EXPECT: an expression in device memory is divided by a number of its scalar type and by nothing else
// EXPECT: explain and make_plan take a product with an operand, such as explain(dX * K)
// EXPECT: dot(x, y) in device memory is of two matrices or products
// EXPECT: factors in braces. Write them without, kron(A, B)
#include <complex>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

using otimes::DeviceMatrix;
using otimes::kron;

void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, DeviceMatrix<double>& dY);
void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, DeviceMatrix<double>& dY) {
    auto K = kron(dX, dX);
#ifdef OTIMES_MUST_NOT_COMPILE
    dY = K;
    K *= 2.0;
    static_cast<void>(dX * X);
    static_cast<void>(K * std::complex<float>(1, 1));
    static_cast<void>(dX + X);
    static_cast<void>(dX / K);
    static_cast<void>(explain(K));
    static_cast<void>(otimes::dot(dX, K));
    static_cast<void>(kron({dX, dX}));
#else
    K = 2.0 * K;
    dY = dX * K / 2 + dX * kron(X);
    static_cast<void>(explain(dX * K));
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: otimes: a DistributedMatrix has no sums. Write Y = X * K1; Y += X * K2; one statement for each term.
// EXPECT: otimes: a DistributedMatrix is multiplied by Kronecker products and by numbers. Write a matrix as kron(M)
#include <Eigen/Dense>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

void f(otimes::DistributedMatrix<double>& y, const otimes::DistributedMatrix<double>& x, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
    y = -(x * K) / 2 * 3;
    y *= K;
    y /= 2;
    y += x * otimes::kron(A);
#ifdef OTIMES_MUST_NOT_COMPILE
    y = x + y;
    y = x * K + x * K;
    y = x * K - 2 * x;
    y = x * (K + K);
    y = (K + K) * x;
    y = x * A;
    y = x * y;
#endif
}

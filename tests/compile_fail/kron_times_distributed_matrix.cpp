// SPDX-License-Identifier: MIT
// EXPECT: the factors stand on the right. Hold the transpose of X
#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

void f(otimes::DistributedMatrix<double>& dY, const otimes::DistributedMatrix<double>& dX, const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    dY = otimes::kron(A, A) * dX;
#else
    dY = dX * otimes::kron(A, A).transpose();
#endif
}

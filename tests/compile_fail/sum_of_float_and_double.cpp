// SPDX-License-Identifier: MIT
// EXPECT: the matrix and the Kronecker product have different scalar types
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXf& Z, const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return Z + X * otimes::kron(A);
#else
    return Z.cast<double>() + X * otimes::kron(A);
#endif
}

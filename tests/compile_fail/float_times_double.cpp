// SPDX-License-Identifier: MIT
// EXPECT: the matrix and the Kronecker product have different scalar types
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXf& X, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    return X * K;
#else
    return X.cast<double>() * K;
#endif
}

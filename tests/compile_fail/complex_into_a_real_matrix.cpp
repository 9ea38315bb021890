// SPDX-License-Identifier: MIT
// EXPECT: a complex expression does not fit into a real matrix
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A, const Eigen::MatrixXcd& C) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return X * otimes::kron(A, C);
#else
    return (X * otimes::kron(A, C)).real();
#endif
}

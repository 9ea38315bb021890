// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix()
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    Eigen::MatrixXd D = K;
#else
    Eigen::MatrixXd D = K.toDenseMatrix();
#endif
    return D;
}

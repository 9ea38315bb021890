// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix() to form it, or multiply it with a matrix: Y.noalias() = X * K.
#include <otimes/otimes.hpp>

void use(Eigen::MatrixXd& D, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
    D.noalias() += D * K;
#ifdef OTIMES_MUST_NOT_COMPILE
    D.noalias() += K;
#else
    D.noalias() += K.toDenseMatrix();
#endif
}

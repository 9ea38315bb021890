// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix()
#include <otimes/otimes.hpp>

void use(Eigen::MatrixXd& D, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    D = K({0, 1}, {2, 3});
#else
    D = K({0, 1}, {2, 3}).toDenseMatrix();
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix()
#include <Eigen/SparseCore>  // Eigen then knows how to assign sparse matrices
#include <otimes/otimes.hpp>

void use(Eigen::MatrixXd& D, const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    D = otimes::kron(A, A);
#else
    D = otimes::kron(A, A).toDenseMatrix();
#endif
}

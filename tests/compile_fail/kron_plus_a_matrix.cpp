// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product plus or minus a dense matrix would need all entries of the product
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXd& A, const Eigen::MatrixXd& M) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return (M - otimes::kron(A, A)).toDenseMatrix();
#else
    return M - otimes::kron(A, A).toDenseMatrix();
#endif
}

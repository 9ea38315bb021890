// SPDX-License-Identifier: MIT
// EXPECT: a matrix beside a Kronecker product has another scalar type
#include <Eigen/SparseCore>
#include <otimes/otimes.hpp>

Eigen::VectorXd use(const Eigen::SparseMatrix<float>& W, const Eigen::MatrixXd& A, const Eigen::VectorXd& v) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return (W * otimes::kron(A, A)) * v;
#else
    return (W.cast<double>() * otimes::kron(A, A)) * v;
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: an operator with a Kronecker product does not turn into a matrix by itself
#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXd& A, const Eigen::SparseMatrix<double>& W) {
    const auto shifted = W * otimes::kron(A, A) * W.transpose() + 0.5 * otimes::identity();
#ifdef OTIMES_MUST_NOT_COMPILE
    Eigen::MatrixXd D = shifted;
#else
    Eigen::MatrixXd D = shifted * Eigen::MatrixXd::Identity(shifted.cols(), shifted.cols());
#endif
    return D;
}

// SPDX-License-Identifier: MIT
// EXPECT: the matrix and the Kronecker product have different scalar types
// EXPECT: a matrix beside a Kronecker product has another scalar type
#include <otimes/otimes.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXf& Z, const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(otimes::kron(A) + Z.col(0).asDiagonal());
    return Z + X * otimes::kron(A);
#else
    return Z.cast<double>() + X * otimes::kron(A);
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: the matrix and the Kronecker product have different scalar types
#include <otimes/otimes.hpp>

Eigen::VectorXd use(const Eigen::VectorXd& v, const Eigen::MatrixXf& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A, A) * v;
#else
    return otimes::kron(A.cast<double>(), A.cast<double>()) * v;
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: the operands have different scalar types
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::MatrixXf& A, const Eigen::MatrixXd& B) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A, B).rows();
#else
    return otimes::kron(A.cast<double>(), B).rows();
#endif
}

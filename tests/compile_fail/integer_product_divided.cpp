// SPDX-License-Identifier: MIT
// EXPECT: a product of integers cannot be divided before it is evaluated
#include <otimes/otimes.hpp>

Eigen::MatrixXi use(const Eigen::MatrixXi& X, const Eigen::MatrixXi& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return X * otimes::kron(A) / 2;
#else
    return (X * otimes::kron(A)).eval() / 2;
#endif
}

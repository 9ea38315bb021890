// SPDX-License-Identifier: MIT
// EXPECT: kron() takes dense Eigen matrices and expressions
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::ArrayXXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A).rows();
#else
    return otimes::kron(A.matrix()).rows();
#endif
}

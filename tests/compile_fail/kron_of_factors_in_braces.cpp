// SPDX-License-Identifier: MIT
// EXPECT: factors in braces. Write them without, kron(A, B)
#include <vector>

#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron({A, A.transpose()}).rows();
#else
    return otimes::kron(std::vector<Eigen::MatrixXd>{A, A.transpose()}).rows();
#endif
}

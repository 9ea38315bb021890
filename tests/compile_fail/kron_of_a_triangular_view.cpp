// SPDX-License-Identifier: MIT
// EXPECT: a sparse, diagonal or triangular matrix must be made dense first
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A.triangularView<Eigen::Lower>()).rows();
#else
    return otimes::kron(A.triangularView<Eigen::Lower>().toDenseMatrix()).rows();
#endif
}

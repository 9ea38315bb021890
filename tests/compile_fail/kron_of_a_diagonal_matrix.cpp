// SPDX-License-Identifier: MIT
// EXPECT: a sparse, diagonal or triangular matrix must be made dense first
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::VectorXd& d) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(d.asDiagonal()).rows();
#else
    return otimes::kron(d.asDiagonal().toDenseMatrix()).rows();
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: a sparse, diagonal or triangular matrix must be made dense first
#include <Eigen/SparseCore>
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::MatrixXd& A, const Eigen::SparseMatrix<double>& S) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A, S).rows();
#else
    return otimes::kron(A, S.toDense()).rows();
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: kron() takes dense, sparse, diagonal, triangular, self-adjoint and permutation matrices
// EXPECT: for a multiple 2.0 * kron(A)
#include <otimes/otimes.hpp>

Eigen::Index use(const Eigen::MatrixXd& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(A, 2.0).rows();
#else
    return (otimes::kron(A) * 2.0).rows();
#endif
}

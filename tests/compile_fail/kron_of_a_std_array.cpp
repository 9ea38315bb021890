// SPDX-License-Identifier: MIT
// EXPECT: kron() takes dense, sparse, diagonal, triangular, self-adjoint and permutation matrices
#include <array>
#include <otimes/otimes.hpp>
#include <span>

Eigen::Index use(const std::array<Eigen::MatrixXd, 3>& factors) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return otimes::kron(factors).rows();
#else
    return otimes::kron(std::span(factors)).rows();
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: a product with a Kronecker product has no single coefficients
#include <otimes/otimes.hpp>

double use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    return (X * K)(1, 2);
#else
    return (X * K).eval()(1, 2);
#endif
}

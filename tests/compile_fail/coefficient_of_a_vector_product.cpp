// SPDX-License-Identifier: MIT
// EXPECT: a product with a Kronecker product has no single coefficients
#include <otimes/otimes.hpp>

double use(const Eigen::VectorXd& v, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    return (K * v)[3];
#else
    return (K * v).eval()[3];
#endif
}

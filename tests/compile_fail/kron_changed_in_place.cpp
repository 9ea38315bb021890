// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product is a value that is not changed in place. Write K = 2.0 * K
// EXPECT: a sum of Kronecker products takes += and -= of Kronecker products
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    auto K = otimes::kron(A, A);
    otimes::sum_expr<double> S = K;
    S += K - otimes::identity();
#ifdef OTIMES_MUST_NOT_COMPILE
    K += K;
    K *= 2.0;
    S += X;
    S *= 2.0;
#else
    K = 2.0 * K;
    S = 2.0 * S;
    static_cast<void>(X);
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: a sum is evaluated term by term, so tune each of its products
#include <Eigen/Dense>
#include <otimes/tune.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
    (void)K;
    (void)X;
#ifdef OTIMES_MUST_NOT_COMPILE
    otimes::tune(X + X * K);
#endif
}

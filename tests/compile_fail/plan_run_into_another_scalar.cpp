// SPDX-License-Identifier: MIT
// EXPECT: plan::run: the destination and the expression have different scalar types
#include <otimes/otimes.hpp>

void use(Eigen::MatrixXf& F, Eigen::MatrixXd& D, const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const otimes::plan p = otimes::make_plan(X * otimes::kron(A));
#ifdef OTIMES_MUST_NOT_COMPILE
    p.run(F, X * otimes::kron(A));
#else
    p.run(D, X * otimes::kron(A));
    F = D.cast<float>();
#endif
}

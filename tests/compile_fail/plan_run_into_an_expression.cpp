// SPDX-License-Identifier: MIT
// EXPECT: plan::run writes to a matrix, Map, Block or Ref
// EXPECT: Y, or what it is a view of, is const and cannot be written
#include <otimes/otimes.hpp>

void use(Eigen::MatrixXd& D, const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const otimes::plan p = otimes::make_plan(X * otimes::kron(A));
#ifdef OTIMES_MUST_NOT_COMPILE
    p.run(D + D, X * otimes::kron(A));
    p.run(X.topRows(2), X * otimes::kron(A));
#else
    p.run(D, X * otimes::kron(A));
#endif
}

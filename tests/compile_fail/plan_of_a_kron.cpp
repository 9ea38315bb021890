// SPDX-License-Identifier: MIT
// EXPECT: explain and make_plan take a product with an operand, such as explain(X * K) or make_plan(Y, X * K)
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(explain(K));
    static_cast<void>(make_plan(K + K, {}));
#else
    static_cast<void>(explain(X * K));
    static_cast<void>(make_plan(X, X * (K + K)));
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: explain and make_plan take a product with an operand, such as explain(X * K) or make_plan(Y, X * K)
// EXPECT: make_plan(Y, (K * vec(X)).matrix())
// EXPECT: p.run(Y, (K * vec(X)).matrix())
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A, Eigen::MatrixXd& Y) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(explain(K));
    static_cast<void>(make_plan(K + K, {}));
    const otimes::plan p = otimes::make_plan(Y, K * otimes::vec(X));
    p.run(Y, K * otimes::vec(X));
#else
    static_cast<void>(explain(X * K));
    static_cast<void>(make_plan(X, X * (K + K)));
    const otimes::plan p = otimes::make_plan(Y, (K * otimes::vec(X)).matrix());
    p.run(Y, (K * otimes::vec(X)).matrix());
#endif
}

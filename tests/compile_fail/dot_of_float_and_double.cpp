// SPDX-License-Identifier: MIT
// EXPECT: dot(x, y): x and y have different scalar types
#include <complex>

#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXf& F, const Eigen::MatrixXcd& C) {
    static_cast<void>(otimes::dot(C, X * otimes::kron(X)) + otimes::dot(X, C * otimes::kron(X)));
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(otimes::dot(X, F * otimes::kron(F)));
#else
    static_cast<void>(otimes::dot(X.cast<float>(), F * otimes::kron(F)));
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: nothing is divided by a Kronecker product. Include <otimes/algebra.hpp> and write K.solve(B)
// EXPECT: a Kronecker product is divided by a number of its scalar type and by nothing else
// EXPECT: a product is divided by a number of its scalar type and by nothing else. Entry by entry: (X * K).array() / R
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
    static_cast<void>(X / 2 * (K / 2) / 2);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(X / K);
    static_cast<void>(K / X);
    static_cast<void>(X * K / X);
#endif
}

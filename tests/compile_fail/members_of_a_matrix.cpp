// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product has no lu(): write kron_lu(K)
// EXPECT: a Kronecker product has no eigenvalues(): write K.eigenvalues() of a kron
// EXPECT: a Kronecker product has no array(): it would form it
// EXPECT: a Kronecker product has no maxCoeff(): it would form it
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X) {
    const auto K = otimes::kron(X, X);
    static_cast<void>(K.toDenseMatrix().maxCoeff());
#ifdef OTIMES_MUST_NOT_COMPILE
    K.lu();
    (K + otimes::kron(X, X)).eigenvalues();
    K.array();
    (2.0 * K).maxCoeff();
#endif
}

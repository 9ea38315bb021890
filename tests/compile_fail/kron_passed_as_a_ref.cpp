// SPDX-License-Identifier: MIT
// EXPECT: a Kronecker product does not turn into a matrix by itself. Write K.toDenseMatrix()
#include <otimes/otimes.hpp>

double f(const Eigen::Ref<const Eigen::MatrixXd>& m);
double f(const Eigen::Ref<const Eigen::MatrixXd>& m) { return m.sum(); }

double use(const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    return f(K);
#else
    return f(K.toDenseMatrix());
#endif
}

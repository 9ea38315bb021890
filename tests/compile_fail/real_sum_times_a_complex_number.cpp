// SPDX-License-Identifier: MIT
// EXPECT: a real sum cannot be scaled by a complex number
#include <complex>
#include <otimes/otimes.hpp>

Eigen::MatrixXcd use(const Eigen::MatrixXd& Z, const Eigen::MatrixXd& A, std::complex<double> s) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return s * (Z + Z * otimes::kron(A));
#else
    return s * Z + s * Z * otimes::kron(A);
#endif
}

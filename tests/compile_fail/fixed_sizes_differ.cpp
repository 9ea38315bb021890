// SPDX-License-Identifier: MIT
// EXPECT: YOU_MIXED_MATRICES_OF_DIFFERENT_SIZES
#include <otimes/otimes.hpp>

void use(Eigen::Matrix<double, 3, Eigen::Dynamic>& Y, const Eigen::Matrix<double, 3, 4>& X,
         const Eigen::Matrix<double, 2, 4>& W, const Eigen::MatrixXd& A) {
    Y = X * otimes::kron(A);
#ifdef OTIMES_MUST_NOT_COMPILE
    Y = W * otimes::kron(A);
#else
    static_cast<void>(W);
#endif
}

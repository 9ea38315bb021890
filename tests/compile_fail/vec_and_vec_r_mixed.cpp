// SPDX-License-Identifier: MIT
// EXPECT: vec (by columns) and vec_r (by rows) are mixed
#include <Eigen/Dense>

#include <otimes/otimes.hpp>

int main() {
    Eigen::MatrixXd X = Eigen::MatrixXd::Ones(2, 3), Y = X;
    otimes::vec(Y) = otimes::vec(X);
#ifdef OTIMES_MUST_NOT_COMPILE
    otimes::vec(Y) = otimes::vec_r(X);
#endif
    return 0;
}

// SPDX-License-Identifier: MIT
// EXPECT: vec (by columns) and vec_r (by rows) are mixed
#include <Eigen/Dense>

#include <otimes/otimes.hpp>

int main() {
    Eigen::MatrixXd X = Eigen::MatrixXd::Ones(2, 3), Y = X;
    double sum = otimes::vec(Y).dot(otimes::vec(X));
#ifdef OTIMES_MUST_NOT_COMPILE
    sum += otimes::vec(Y).dot(otimes::vec_r(X));
#endif
    return sum > 0 ? 0 : 1;
}

// SPDX-License-Identifier: MIT
// EXPECT: vec (by columns) and vec_r (by rows) are mixed
#include <Eigen/Dense>

#include <otimes/otimes.hpp>

int main() {
    const Eigen::MatrixXd X = Eigen::MatrixXd::Ones(2, 3), Y = otimes::unvec_r(otimes::vec_r(X), 2, 3);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(otimes::unvec(otimes::vec_r(X), 2, 3));
#endif
    return static_cast<int>(Y.rows() - 2);
}

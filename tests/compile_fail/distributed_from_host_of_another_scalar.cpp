// SPDX-License-Identifier: MIT
// EXPECT: otimes: DistributedMatrix: the host matrix has another scalar type.
#include <Eigen/Dense>
#include <otimes/distributed.hpp>

void f(otimes::DistributedMatrix<double>& x, const Eigen::MatrixXd& same) {
    x.from_host(same);
#ifdef OTIMES_MUST_NOT_COMPILE
    x.from_host(Eigen::MatrixXf(same.cast<float>()));
#endif
}

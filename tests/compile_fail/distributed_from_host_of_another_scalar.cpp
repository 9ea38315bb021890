// SPDX-License-Identifier: MIT
// EXPECT: otimes: DistributedMatrix: the host matrix has another scalar type.
// EXPECT: otimes: DistributedMatrix: the host matrix asked for has another scalar type. Write dX.to_host().cast<Scalar>().
#include <Eigen/Dense>
#include <otimes/distributed.hpp>

void f(otimes::DistributedMatrix<double>& x, const Eigen::MatrixXd& same) {
    x.from_host(same);
    static_cast<void>(x.to_host<Eigen::MatrixXd>());
#ifdef OTIMES_MUST_NOT_COMPILE
    x.from_host(Eigen::MatrixXf(same.cast<float>()));
    static_cast<void>(x.to_host<Eigen::MatrixXf>());
#endif
}

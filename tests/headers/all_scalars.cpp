// SPDX-License-Identifier: MIT
// A product over each scalar type that has kernels, with what structured factors run.
#include <complex>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

template <class Scalar>
void multiply(Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>& y) {
    y = y * otimes::kron(y, y.diagonal().asDiagonal());
}
template void multiply(Eigen::MatrixXf&);
template void multiply(Eigen::MatrixXd&);
template void multiply(Eigen::MatrixXcf&);
template void multiply(Eigen::MatrixXcd&);

// SPDX-License-Identifier: MIT
// A second file that includes the library: what is defined in headers must not clash at link time.
#include <otimes/otimes.hpp>

#include <Eigen/Core>

Eigen::MatrixXd in_second_file(const Eigen::MatrixXd& x, const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) {
    return x * otimes::kron(a, b);
}

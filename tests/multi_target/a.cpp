// SPDX-License-Identifier: MIT
#include "here.hpp"

int empty_product() {
    const Eigen::MatrixXd X = Eigen::MatrixXd::Ones(3, 8);
    Eigen::MatrixXd Y = Eigen::MatrixXd::Ones(3, 7);
    Y = X * otimes::kron(Eigen::MatrixXd::Ones(4, 5), Eigen::MatrixXd(2, 0));
    Eigen::MatrixXd Z = Y.transpose();
    Z = otimes::kron(Eigen::MatrixXd(0, 3), Eigen::MatrixXd::Ones(2, 1)) * X;
    return Y.rows() == 3 && Y.cols() == 0 && Z.rows() == 0 && Z.cols() == 8 ? 1 : 0;
}
target_result run_a() { return run_here(); }

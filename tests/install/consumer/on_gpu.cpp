// SPDX-License-Identifier: MIT
// Linked with the installed otimes::cuda: computes on the GPU where there is one, else is told why not.
#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <cstdio>
#include <string>

#include <Eigen/Core>

int main() {
    const Eigen::MatrixXd a = Eigen::MatrixXd::Random(3, 2);
    const Eigen::MatrixXd b = Eigen::MatrixXd::Random(5, 4);
    const Eigen::MatrixXd x = Eigen::MatrixXd::Random(7, 15);
    const Eigen::MatrixXd expected = x * otimes::kron(a, b);
    Eigen::MatrixXd y;
    otimes::on(otimes::make_executor(), y) = x * otimes::kron(a, b);
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        bool refused = false;
        try {
            otimes::on(otimes::gpu(), y) = x * otimes::kron(a, b);
        } catch (const otimes::device_error&) {
            refused = true;
        }
        return !why.empty() && refused && (y - expected).norm() <= 1e-12 * expected.norm() ? 0 : 1;
    }
    const otimes::DeviceMatrix<double> dx(x), da(a), db(b);
    otimes::DeviceMatrix<double> dy;
    dy = dx * otimes::kron(da, db);
    const Eigen::MatrixXd got = dy.to_host();
    return (y - expected).norm() + (got - expected).norm() <= 1e-12 * expected.norm() ? 0 : 1;
}

// SPDX-License-Identifier: MIT
// The first product on a GPU: the same formula as on the CPU, on matrices in device memory. Compiled by any C++20 compiler,
// linked with otimes::cuda; where there is no GPU it says why and computes on the CPU.
#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include <exception>
#include <iostream>
#include <string>

namespace {

using otimes::DeviceMatrix;
using otimes::kron;

int run() {
    const Eigen::MatrixXf A = Eigen::MatrixXf::Random(16, 16), B = Eigen::MatrixXf::Random(8, 12),
                          C = Eigen::MatrixXf::Random(5, 3);
    const Eigen::MatrixXf X = Eigen::MatrixXf::Random(1000, 16 * 8 * 5);
    const Eigen::MatrixXf expected = X * kron(A, B, C);

    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::cout << "no GPU (" << why << "): computed " << expected.rows() << " x " << expected.cols()
                  << " on the CPU\n";
        return 0;
    }
    const DeviceMatrix<float> dX(X), dA(A), dB(B), dC(C);
    DeviceMatrix<float> dY;
    dY = dX * kron(dA, dB, dC);         // asynchronous, on the stream of otimes::gpu()
    dY += 0.5f * dX * kron(dA, dB, C);  // a factor may stay on the host
    const Eigen::MatrixXf Y = dY.to_host();
    const float difference = (Y - 1.5f * expected).norm() / (1.5f * expected).norm();
    std::cout << "on " << otimes::gpu().name() << ": " << Y.rows() << " x " << Y.cols()
              << ", relative difference from the CPU " << difference << '\n'
              << otimes::gpu().describe(otimes::make_plan(dX * kron(dA, dB, dC)));
    return difference < 1e-5f ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const std::exception& e) {  // no memory left on the GPU, a driver that is too old, ..
        std::cerr << "gpu_first_product: " << e.what() << '\n';
        return 1;
    }
}

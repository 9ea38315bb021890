// SPDX-License-Identifier: MIT
// EXPECT: X and Y must share a memory space. Copy X first: otimes::DeviceMatrix<Scalar> dX(X)
// EXPECT: X and Y must share a memory space. Write Y += (dX * K).to_host(), or take a DeviceMatrix for Y
// EXPECT: X and Y must share a memory space. Write Y = (dX * K).to_host()
// EXPECT: plan::run writes to a matrix, Map, Block or Ref in host memory, where X is
#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

using otimes::DeviceMatrix;
using otimes::kron;

void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, Eigen::MatrixXd& Y, DeviceMatrix<double>& dY,
         const otimes::plan& p);
void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, Eigen::MatrixXd& Y, DeviceMatrix<double>& dY,
         const otimes::plan& p) {
    const auto K = kron(dX, dX);
    const auto v = otimes::device_map(dY.data(), 3, 4, 7);
#ifdef OTIMES_MUST_NOT_COMPILE
    dY += X * kron(X, X);
    dY.noalias() = X * kron(X, X);
    v = X * kron(X, X);
    v -= X;
    Y -= dX * K + dX;
    Y.noalias() += dX * K;
    p.run(Y, dX * K);
    Y.topRows(2) = dX * K;
    Eigen::Map<Eigen::MatrixXd>(Y.data(), 2, 2) = dX;
    p.run(dY, X * kron(X, X));
#else
    dY += dX * kron(X, X);
    dY.noalias() = dX * K;
    v = dX * K + dX;
    v -= dX;
    Y += (dX * K).to_host();
    Y.topRows(2) = X * kron(X, X);
    p.run(dY, dX * K);
    p.run(v, dX * K);
    p.run(Y, X * kron(X, X));
#endif
}

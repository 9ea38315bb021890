// SPDX-License-Identifier: MIT
// EXPECT: X and Y must share a memory space. Write Y = (dX * K).to_host()
// EXPECT: a matrix in device memory does not turn into one in host memory by itself
// EXPECT: X is in host memory and Y in device memory; X and Y must share a memory space
// EXPECT: X is in host memory, but the Kronecker product has factors in device memory
// EXPECT: the operands have different scalar types
// EXPECT: the expression has another scalar type than Y
// EXPECT: the product of two device matrices
// EXPECT: a Kronecker product in device memory plus or minus what is none
// EXPECT: the host matrix has another scalar type
// EXPECT: one is in host memory, the other in device memory; x and y must share a memory space
// EXPECT: dot(x, y) in device memory: x and y have different scalar types
// EXPECT: dot(x, y) in device memory: x and y are both sums
// EXPECT: reductions in device memory are of float, double and their complex types
// EXPECT: K.solve(dB) decomposes the factors on the host: include <otimes/algebra.hpp>
// EXPECT: solves in device memory are of float, double and their complex types
// EXPECT: vec (by columns) and vec_r (by rows) are mixed
// EXPECT: K(rows, cols) in device memory takes lists of indices
// EXPECT: K(rows, cols) in device memory: X has another scalar type
// EXPECT: d.asDiagonal() in device memory is of float, double and their complex types
// EXPECT: this device_map is of const memory
// EXPECT: a DeviceMatrix holds float, double
// EXPECT: a device_map is of float, double
// EXPECT: copying to the host: the host matrix has another scalar type
// EXPECT: DeviceMatrix::copy_to(host): this is const, or an expression
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

using otimes::DeviceMatrix;
using otimes::kron;

void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, const DeviceMatrix<double>& A,
         const DeviceMatrix<float>& F, const DeviceMatrix<otimes::half>& H);
void use(const Eigen::MatrixXd& X, const DeviceMatrix<double>& dX, const DeviceMatrix<double>& A,
         const DeviceMatrix<float>& F, const DeviceMatrix<otimes::half>& H) {
    const auto K = kron(A, A);
    DeviceMatrix<double> dY;
    const std::vector<int> rows{3, 1};
#ifdef OTIMES_MUST_NOT_COMPILE
    Eigen::MatrixXd Y = dX * K;
    Y = dX;
    dY = X * kron(X, X);
    static_cast<void>(X * K);
    static_cast<void>(F * K);
    static_cast<void>(H * kron(F));
    dY = F * kron(F);
    static_cast<void>(dX * A);
    static_cast<void>(K + A);
    dY = X.cast<float>();
    static_cast<void>(otimes::dot(X, dX * K));
    static_cast<void>(otimes::dot(F, dX * K));
    static_cast<void>(otimes::dot(dX + A, dX * K - A));
    static_cast<void>(H.norm());
    static_cast<void>(K.solve(dX));
    static_cast<void>(kron(H).solve(H));
    otimes::vec(dY) = K * otimes::vec_r(dX);
    static_cast<void>(otimes::vec(dX) + otimes::vec_r(dX));
    static_cast<void>(K(3, 4));
    static_cast<void>(K(rows, rows) * F);
    static_cast<void>(H.asDiagonal());
    otimes::device_map(dX.data(), 2, 2) += dX * K;
    DeviceMatrix<int> integers;
    static_cast<void>(otimes::device_map(rows.data(), 2, 1));
    static_cast<void>(F.to_host<Eigen::MatrixXd>());
    dX.copy_to(X);
#else
    DeviceMatrix<float> dF;
    DeviceMatrix<otimes::half> dH;
    dY = X;
    dY = otimes::device_map(dX.data(), 2, 2) * K + otimes::device_map<double>(dY.data(), 2, 4);
    dY = dX * (K * K) + dX * K * K;
    dY *= K;
    dY = K * ((dX * K + dX) * (K - otimes::identity()));
    dY = (dX * K + dX) / 2 + dX * ((K + 2 * K) / 3);
    const DeviceMatrix<double> dZ = dX * K;
    dF = F * kron(F) - F / 2;
    dH = 2 * H * kron(H) + H;
    Eigen::MatrixXd Y = (dX * K + dY).to_host();
    auto part = Y.topRows(3);
    dX.copy_to(part);
    static_cast<void>(otimes::dot(dX, dX * K - dX) + (dX * K).norm() + otimes::squared_norm(dX));
    otimes::vec(dY) = (K + dX.asDiagonal()) * otimes::vec(dX);
    dY = otimes::column_squared_norms(dX * K + dX);
    dY = K(rows, 2) * dX - 2 * (dX * K(Eigen::indexing::all, rows)) + dX * (K + 2 * K).transpose();
    static_cast<void>(explain(dX * K + dX));
    otimes::make_plan(dX * (K + 2 * K)).run(dY, dX * (2 * K - K));
    static_cast<void>((dX * K + dX * K).norm() + (dX * (K + 2 * K)).squaredNorm());
#endif
}

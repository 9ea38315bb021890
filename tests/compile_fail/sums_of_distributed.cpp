// SPDX-License-Identifier: MIT
// EXPECT: otimes: a DistributedMatrix plus or minus what is none.
// EXPECT: otimes: a DistributedMatrix is multiplied by Kronecker products, by sums of them and by numbers. Write a matrix as kron(M).
// EXPECT: otimes: the sum of replicated Kronecker products. Replicate the sum, replicate(ranks, K1 + K2)
#include <Eigen/Dense>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

void f(otimes::DistributedMatrix<double>& y, const otimes::DistributedMatrix<double>& x, const Eigen::MatrixXd& A) {
    const auto K = otimes::kron(A, A);
    y = -(x * K) / 2 * 3;
    y *= K;
    y /= 2;
    y += x * otimes::kron(A);
    y = x + y;
    y = x * K - 2 * x * (K + K);
    y = (K + K) * x;
    y = K * (x * K - y) * K * K;
#ifdef OTIMES_MUST_NOT_COMPILE
    const otimes::DistributedMatrix<float> single;
    const auto R = otimes::replicate(x.ranks(), K);
    y = x * K + A;
    y = A - x;
    y = x - single;
    y = x * A;
    y = x * y;
    y = x * (R + R);
    y = x * (R - otimes::replicate(x.ranks(), K + K));
#endif
}

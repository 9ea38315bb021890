// SPDX-License-Identifier: MIT
// EXPECT: half and bfloat16 are for GPUs; no CPU executor computes in them
#include <otimes/otimes.hpp>

#include <otimes/program/half.hpp>

Eigen::MatrixXf use(const Eigen::MatrixXf& X, const Eigen::MatrixXf& A) {
#ifdef OTIMES_MUST_NOT_COMPILE
    using matrix = Eigen::Matrix<otimes::half, Eigen::Dynamic, Eigen::Dynamic>;
    const matrix h = A.cast<otimes::half>();
    const matrix Y = X.cast<otimes::half>().eval() * otimes::kron(h, h);
    return Y.cast<float>();
#else
    return X * otimes::kron(A, A);
#endif
}

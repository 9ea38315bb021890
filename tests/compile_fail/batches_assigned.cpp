// SPDX-License-Identifier: MIT
// EXPECT: may mean its elements or the view
// EXPECT: the items of Y are const, and cannot be written
// EXPECT: assigned is a batch or a product of batches, over the scalar type of Y
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

void use(std::vector<Eigen::MatrixXd>& Y, const std::vector<Eigen::MatrixXd>& X, const std::vector<Eigen::MatrixXf>& F,
         const Eigen::MatrixXf& A) {
    using otimes::batched;
    batched(Y) = batched(X);
    auto y = batched(Y);
    y += batched(X);
#ifdef OTIMES_MUST_NOT_COMPILE
    y = batched(Y);
    batched(X) = batched(Y);
    batched(Y) = batched(F) * otimes::kron(A);
    batched(Y) -= 2.0;
#else
    static_cast<void>(F);
    static_cast<void>(A);
#endif
}

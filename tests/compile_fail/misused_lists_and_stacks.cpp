// SPDX-License-Identifier: MIT
// EXPECT: batched: all operands have one scalar type
// EXPECT: batched: both krons of a product have one scalar type
// EXPECT: batched: a batch is multiplied by a kron and by numbers
// EXPECT: batched: batches have no sums
// EXPECT: vec (by columns) and vec_r (by rows) are mixed
// EXPECT: vec(X) has no single coefficients
// EXPECT: K(rows, cols) takes indices, lists of indices
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/batched.hpp>

void use(const std::vector<Eigen::MatrixXd>& X, const Eigen::MatrixXf& A, const Eigen::MatrixXd& B) {
    const std::vector<int> rows{0};
    static_cast<void>(otimes::batched(X) * otimes::kron(B, B));
    static_cast<void>(otimes::vec(B) - otimes::vec(B));
    static_cast<void>(otimes::vec(B).toVector()(3));
    static_cast<void>(otimes::kron(B)(rows, rows));
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(otimes::batched(X) * otimes::kron(otimes::batched(X), A));
    static_cast<void>(otimes::kron(A) * (otimes::batched(X) * otimes::kron(B, B)));
    static_cast<void>(otimes::batched(X) * otimes::batched(X));
    static_cast<void>(otimes::batched(X) * otimes::kron(B, B) - otimes::batched(X));
    otimes::vec(B) - otimes::vec_r(B);
    static_cast<void>(otimes::vec(B)(3));
    static_cast<void>(otimes::kron(B)(rows, X));
#else
    static_cast<void>(A);
#endif
}

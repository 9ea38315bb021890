// SPDX-License-Identifier: MIT
// EXPECT: sums of bool
#include <otimes/otimes.hpp>

template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

matrix<int> use(const matrix<bool>& A, const matrix<bool>& X) {
#ifdef OTIMES_MUST_NOT_COMPILE
    return (X * otimes::kron(A, A)).cast<int>();
#else
    return X.cast<int>() * otimes::kron(A.cast<int>(), A.cast<int>());
#endif
}

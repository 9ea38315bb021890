// SPDX-License-Identifier: MIT
// EXPECT: K.solve(B): B is a matrix or a vector. For a Kronecker product B write K.inverse() * B
// EXPECT: K.solve(B): K and B have different scalar types
// EXPECT: K.solve(B) of integers: solutions are fractions
#include <otimes/otimes.hpp>

#include <otimes/algebra.hpp>

Eigen::MatrixXd use(const Eigen::MatrixXd& A, const Eigen::MatrixXf& F) {
    const auto K = otimes::kron(A, A);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(K.solve(K));
    static_cast<void>(K.solve(F));
    const Eigen::MatrixXi N = A.cast<int>();
    static_cast<void>(otimes::kron(N, N).solve(N));
    static_cast<void>((otimes::kron(N, N) + otimes::kron(N, N) * otimes::kron(N, N)).solve(N));
    return A;
#else
    static_cast<void>(K.inverse() * K);
    return K.solve(F.cast<double>());
#endif
}

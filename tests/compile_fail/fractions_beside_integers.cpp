// SPDX-License-Identifier: MIT
// EXPECT: a fraction of a Kronecker product of identities and permutations beside integers would be cut off
// EXPECT: kron(.., s * identity(n), ..) of integers: a fraction s would be cut off
// EXPECT: s is of another scalar type than K, or a fraction beside integers
// EXPECT: a number of another scalar type: real Kronecker products take real numbers
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXi& X, const Eigen::PermutationMatrix<Eigen::Dynamic>& P) {
    using otimes::identity, otimes::kron;
    static_cast<void>(2 * kron(P, identity(2)) * X + kron(2 * identity(3), X) * X + (kron(X) + 3 * identity()) * X);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>((0.5 * kron(P, P)) * X);
    static_cast<void>(kron(0.5 * identity(3), X));
    static_cast<void>(kron(X) + 0.5 * identity());
    static_cast<void>(kron(X) * 0.5);
#endif
}

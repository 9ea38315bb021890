// SPDX-License-Identifier: MIT
// EXPECT: subscripts are letters, one comma and one arrow
// EXPECT: subscripts have the form
// EXPECT: a letter occurs twice in one operand or in the result
// EXPECT: a letter of the result is in neither operand
// EXPECT: sums over one operand are not taken
// EXPECT: no letter is summed over
// EXPECT: several letters are summed over
// EXPECT: one of them must be a matrix
// EXPECT: the result has no letter
// EXPECT: an operand has another number of indices than letters
// EXPECT: the operands have different scalar types
// EXPECT: the destination has another number of indices than the result
// EXPECT: the destination must be writable
#include <otimes/einsum.hpp>

using matrix = otimes::strided_view<const double, 2>;
using cube = otimes::strided_view<const double, 3>;

void use(const matrix& A, const matrix& Z, const cube& B, const otimes::strided_view<float, 2>& F) {
    using otimes::einsum;
    static_cast<void>(einsum<"mk, pkn -> mnp">(A, B));
#ifdef OTIMES_MUST_NOT_COMPILE
    einsum<"mk,pk1->mp1">(A, B);
    einsum<"mk,kn">(A, A);
    einsum<"kk,kmn->mn">(A, B);
    einsum<"mk,kn->mnz">(A, A);
    einsum<"mk,knp->mn">(A, B);
    einsum<"mk,npq->mknpq">(A, B);
    einsum<"mk,mkp->p">(A, B);
    einsum<"mnk,kpq->mnpq">(B, B);
    einsum<"k,k->">(A, A);
    einsum<"mk,kn->mn">(A, B);
    einsum<"mk,kn->mn">(A, F);
    einsum<"mk,kn->mn">(A, A).assign_to(B);
    einsum<"mk,kn->mn">(A, A).assign_to(Z);
#else
    static_cast<void>(Z);
    static_cast<void>(F);
#endif
}

// SPDX-License-Identifier: MIT
// EXPECT: dot(x, y) is of two matrices or products: dot(x, K * y)
// EXPECT: quadratic_trace(X, K), the trace of X^H K X: a matrix and a Kronecker product, in that order
// EXPECT: khatri_rao and face_split take dense matrices, each as an argument of its own
// EXPECT: vec() and vec_r() stack a dense matrix
// EXPECT: unvec(y, rows, cols): a vector, then the rows and columns of the matrix
// EXPECT: kron_power(F, n): a matrix and a whole number
// EXPECT: kron(.., identity(), ..): an identity among factors needs its order
// EXPECT: einsum: the subscripts are a template argument
// EXPECT: einsum: two operands
// EXPECT: einsum: an operand or a destination is no matrix or tensor in memory
// EXPECT: plan::run(Y, X * K): the destination comes first
// EXPECT: on(executor, Y) = X * K: the executor stands first and is called
// EXPECT: on(executor, Y) = X * K: Y is the matrix that is written to
// EXPECT: K.cast<Scalar>() makes a real Kronecker product complex and nothing else
// EXPECT: a Kronecker product has no eval(), which would form it
#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, Eigen::MatrixXd& Y, const Eigen::VectorXd& v) {
    using namespace otimes;
    const auto K = otimes::kron(X, X);
    const auto p = make_plan(X * K);
    static_cast<void>(quadratic_trace(X, K) + otimes::dot(X, K * X) + unvec(v, 2, 3).sum());
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(otimes::dot(X, K));
    static_cast<void>(quadratic_trace(K, X));
    static_cast<void>(khatri_rao(X, K));
    static_cast<void>(vec(K));
    static_cast<void>(unvec(2, 3, v));
    static_cast<void>(kron_power(Y, 2.5));
    static_cast<void>(kron(X, identity()));
    static_cast<void>(einsum("ij,jk->ik", X, X));
    static_cast<void>(einsum<"ij->ji">(X));
    static_cast<void>(einsum<"ij,jk->ik">(X, K));
    p.run(X * K, Y);
    on(cpu, Y) = X * K;
    on(cpu(), X * K) = Y;
    static_cast<void>(K.cast<float>());
    static_cast<void>(K.eval());
#else
    p.run(Y, X * K);
    on(cpu(), Y) = X * K;
#endif
}

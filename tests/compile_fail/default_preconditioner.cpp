// SPDX-License-Identifier: MIT
// EXPECT: the default preconditioner of Eigen's solvers reads the entries of a matrix
#include <Eigen/IterativeLinearSolvers>

#include <otimes/otimes.hpp>

Eigen::VectorXd use(const Eigen::MatrixXd& A, const Eigen::VectorXd& b) {
    const auto K = otimes::kron(A, A);
    using kron = otimes::kron_expr<double>;
#ifdef OTIMES_MUST_NOT_COMPILE
    Eigen::ConjugateGradient<kron, Eigen::Lower | Eigen::Upper> cg(K);
#else
    Eigen::ConjugateGradient<kron, Eigen::Lower | Eigen::Upper, Eigen::IdentityPreconditioner> cg(K);
#endif
    return cg.solve(b);
}

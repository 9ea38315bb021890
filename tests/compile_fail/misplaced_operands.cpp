// SPDX-License-Identifier: MIT
// EXPECT: an array of Eigen multiplies entry by entry, which a Kronecker product does not
// EXPECT: toeplitz(), low_rank(), .. make factors of a Kronecker product. Write kron(toeplitz(c, r))
// EXPECT: otimes::identity(n) is a factor of kron() and multiplies dense matrices, Kronecker products and numbers
// EXPECT: a list of matrices beside a Kronecker product is a batch
// EXPECT: vec(X) is a column and stands on the right of a Kronecker product
// EXPECT: a product with a Kronecker product is a matrix, not an array
// EXPECT: toeplitz(), low_rank(), .. make factors of a Kronecker product. Write K + kron(toeplitz(c, r))
// EXPECT: otimes::identity() is added to Kronecker products and their sums. Beside a matrix write Eigen's
// EXPECT: a number is added to no Kronecker product. Write K + s * otimes::identity()
// EXPECT: a number is added to no matrix. Write (X * K).array() + s
// EXPECT: a Kronecker product plus or minus a dense matrix would need all entries of the product
#include <vector>

#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>

void use(const Eigen::MatrixXd& X, const Eigen::ArrayXXd& R, const Eigen::VectorXd& v,
         const Eigen::SparseMatrix<double>& W, const std::vector<Eigen::MatrixXd>& list) {
    const auto K = otimes::kron(X, X);
    const auto T = otimes::toeplitz(v, v);
    const auto rows = otimes::khatri_rao(X, X);
    const otimes::identity_factor I = otimes::identity(3);
    static_cast<void>(X * K * R.matrix() + X * rows + X * T + X * I);
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(R * K);
    static_cast<void>(2 * T);
    static_cast<void>(W * I);
    static_cast<void>(K * list);
    static_cast<void>(otimes::vec(X) * K);
    static_cast<void>(X * K + R);
    static_cast<void>(K + T);
    static_cast<void>(X + 0.1 * I);
    static_cast<void>(K + 1.0);
    static_cast<void>(X * K + 1.0);
    static_cast<void>(rows - X);
#else
    static_cast<void>(W);
    static_cast<void>(list);
#endif
}

// SPDX-License-Identifier: MIT
#include "adapt/scalar_types.hpp"

using complex = std::complex<double>;

TEST_CASE("real X and complex factors, double") { adapt::check_scalars<double, complex, complex>(); }
TEST_CASE("real X, one complex factor, double") { adapt::check_scalars<double, double, complex>(); }

// As large as factors are that are packed in blocks, read where they lie, multiplied out with others, or swept in pairs.
TEST_CASE("krons of real and complex factors, of any length, order and strides, from either side") {
    using adapt::matrix;
    using matrix_c = matrix<complex>;
    using rows_c = Eigen::Matrix<complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using rows_d = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto check = [](const auto& A, const auto& B, const auto& C) {
        const auto K = otimes::kron(A, B, C);
        const auto k = adapt::dense_kron(A, B, C);
        for (const int rows : {1, 3, 20}) {
            CAPTURE(rows);
            const auto X = adapt::random<matrix_c>(rows, static_cast<int>(K.rows()), rows);
            rows_c Y = adapt::poisoned<rows_c>(rows, static_cast<int>(K.cols()));
            Y.noalias() = complex(0, 2) * (X * K);
            CHECK(support::close(Y, adapt::scaled(complex(0, 2), adapt::times(X, k)), static_cast<int>(K.rows())));
            auto Z = adapt::poisoned<matrix_c>(static_cast<int>(K.cols()), rows);
            Z.noalias() = K.transpose() * X.transpose();
            CHECK(support::close(Z, adapt::scaled(complex(0, -0.5), matrix_c(Y.transpose())),
                                 static_cast<int>(K.rows())));
        }
    };
    const auto C = adapt::random<matrix_c>(4, 3, 1);
    const auto R = adapt::random<rows_d>(40, 50, 2);
    const auto D = adapt::random<matrix<double>>(3, 3, 3);
    const auto E = adapt::random<rows_c>(3, 2, 4);
    check(C, R, D);
    check(R, C, E);
    check(E, D, R);
    check(C.conjugate(), R.transpose(), E);
    check(D, C, adapt::random<matrix<double>>(200, 45, 5).leftCols(40));
    check(D, matrix<double>::Identity(3, 3), C);
}

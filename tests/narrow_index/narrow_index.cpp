// SPDX-License-Identifier: MIT
// Programs that define EIGEN_DEFAULT_DENSE_INDEX_TYPE as int: extents that the library counts in 64 bits and Eigen no longer does are refused
// with shape_error before anything is written; what fits is computed as ever.
#define EIGEN_DEFAULT_DENSE_INDEX_TYPE int
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>
#include <otimes/batched.hpp>
#include <otimes/otimes.hpp>

#include "support/random.hpp"
#include "support/thrown.hpp"

namespace {

using Eigen::MatrixXd;
using Eigen::MatrixXf;
using otimes::kron;
static_assert(sizeof(Eigen::Index) == sizeof(int));

template <class Call>
std::string refused(const Call& call) {
    return support::text_of<otimes::shape_error>(call);
}
const std::string reason =
    " is more than an Eigen::Index of 32 bits counts. Define EIGEN_DEFAULT_DENSE_INDEX_TYPE as a type of 64 bits, or "
    "leave it out; or use smaller operands.";

}  // namespace

TEST_CASE("Eigen::Index of 32 bits: krons, sums and their powers beyond it are refused") {
    const MatrixXf a = MatrixXf::Ones(1, 65536), b = MatrixXf::Ones(1, 65537), x = MatrixXf::Ones(1, 1);
    CHECK(refused([&] { (void)kron(a, b); }) == "otimes: an operator or a product of 1 x 4295032832" + reason);
    CHECK(refused([&] { (void)kron(a.transpose(), b.transpose()); }) ==
          "otimes: an operator or a product of 4295032832 x 1" + reason);
    CHECK(refused([&] {
              (void)kron(std::vector<MatrixXf>{a, b});
          }) == "otimes: an operator or a product of 1 x 4295032832" + reason);
    CHECK(refused([&] { (void)otimes::kron_power(a, 2); }) ==
          "otimes: an operator or a product of 1 x 4294967296" + reason);
    CHECK(refused([&] { (void)kron(otimes::identity(65536), otimes::identity(65536), x); }) ==
          "otimes: an operator or a product of 4294967296 x 4294967296" + reason);
    CHECK(refused([&] { (void)kron(otimes::identity(65536), otimes::identity(65536)); }) ==
          "otimes: an operator or a product of 4294967296 x 4294967296" + reason);
    const std::vector<MatrixXf> squares(32, MatrixXf::Ones(2, 2));
    CHECK(refused([&] { (void)otimes::kron_sum(squares); }) ==
          "otimes: an operator or a product of 4294967296 x 4294967296" + reason);
    CHECK(refused([&] { (void)otimes::face_split(a, b); }) == "otimes: an extent of 4295032832" + reason);
    CHECK(kron(MatrixXf::Ones(1, 65535), MatrixXf::Ones(1, 32768)).cols() == 2147450880);  // 2^31 - 2^15
}

TEST_CASE("Eigen::Index of 32 bits: a factor that grew behind its kron") {
    MatrixXf a = MatrixXf::Ones(1, 2);
    const MatrixXf b = MatrixXf::Ones(1, 65537), x = MatrixXf::Ones(1, 1);
    const auto K = kron(a, b);
    const auto y = x * K;
    CHECK(K.cols() == 131074);
    a.setOnes(1, 65536);
    MatrixXf Y = MatrixXf::Zero(1, 1);
    CHECK(refused([&] { (void)K.cols(); }) == "otimes: an extent of 4295032832" + reason);
    CHECK(refused([&] { (void)(x * K); }) == "otimes: an operator or a product of 1 x 4295032832" + reason);
    CHECK(refused([&] { Y = y; }) == "otimes: an operator or a product of 1 x 4295032832" + reason);
    CHECK((Y.size() == 1 && Y(0) == 0));
}

TEST_CASE("Eigen::Index of 32 bits: matrices of more elements are not formed") {
    const MatrixXf a = MatrixXf::Ones(1, 300), b = MatrixXf::Ones(1, 250), x = MatrixXf::Ones(65536, 1);
    const auto K = kron(a, b);  // 1 x 75000
    MatrixXf Y = MatrixXf::Ones(1, 1);
    CHECK(refused([&] { Y = x * K; }) == "otimes: a matrix of 65536 x 75000 elements" + reason);
    CHECK(refused([&] { Y = 2 * x * K + x * K; }) == "otimes: a matrix of 65536 x 75000 elements" + reason);
    CHECK(refused([&] { (void)otimes::make_plan(Y, x * K); }) == "otimes: a matrix of 65536 x 75000 elements" + reason);
    CHECK(refused([&] { (void)kron(a.transpose(), a, b, b.transpose()).toDenseMatrix(); }) ==
          "otimes: a matrix of 75000 x 75000 elements" + reason);
    const auto tall = kron(a.transpose(), b.transpose());
    CHECK(refused([&] { (void)(kron(tall, K) + 2 * kron(K, tall)).toDenseMatrix(); }) ==
          "otimes: a matrix of 75000 x 75000 elements" + reason);
    CHECK(refused([&] { (void)otimes::vec(x * K).rows(); }) == "otimes: an extent of 4915200000" + reason);
    CHECK((Y.size() == 1 && Y(0) == 1));
    const std::vector<MatrixXf> xs{x, x};
    CHECK(refused([&] { (void)(otimes::batched(xs) * kron(a, b)).eval(); }) ==
          "otimes: a matrix of 65536 x 75000 elements" + reason);
}

TEST_CASE("Eigen::Index of 32 bits: what fits is computed as ever") {
    const MatrixXd A = support::random_matrix<MatrixXd>(3, 3, 1), B = support::random_matrix<MatrixXd>(4, 4, 2);
    const MatrixXd X = support::random_matrix<MatrixXd>(5, 12, 3), V = support::random_matrix<MatrixXd>(12, 2, 4);
    MatrixXd k(12, 12);
    for (int i = 0; i < 12; ++i) {
        for (int j = 0; j < 12; ++j) {
            k(i, j) = A(i / 4, j / 4) * B(i % 4, j % 4);
        }
    }
    const auto K = kron(A, B);
    CHECK((K.toDenseMatrix() - k).norm() < 1e-12);
    CHECK((X * K - X * k).norm() < 1e-12);
    CHECK((MatrixXd(K * V) - k * V).norm() < 1e-12);
    CHECK((MatrixXd((K + otimes::kron_sum(A, B)) * V) - (k + otimes::kron_sum(A, B).toDenseMatrix()) * V).norm() <
          1e-12);
    CHECK(std::abs(V.col(0).dot(K * V.col(1)) - V.col(0).dot(k * V.col(1))) < 1e-12);
    CHECK(((X * K).squaredNorm() == doctest::Approx((X * k).squaredNorm())));
    CHECK((k * K.solve(V) - V).norm() < 1e-9);
    CHECK((otimes::unvec(V.col(0), 4, 3).reshaped() - V.col(0)).norm() == 0);
    MatrixXd Y;
    otimes::make_plan(X * K).run(Y, X * K);
    CHECK((Y - X * k).norm() < 1e-12);
    CHECK((MatrixXd(K({0, 7}, Eigen::indexing::all) * V) - MatrixXd(k({0, 7}, Eigen::indexing::all)) * V).norm() <
          1e-12);
    CHECK((MatrixXd(X * otimes::khatri_rao(A, MatrixXd(B.leftCols(3)))).col(1) -
           X * MatrixXd(B.col(1) * A.col(1).transpose()).reshaped())
              .norm() < 1e-12);
}

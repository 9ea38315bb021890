// SPDX-License-Identifier: MIT
// docs/compatibility.md is true: every row's expression is evaluated by both executors, over a scalar without kernels where the
// row allows it, against dense matrices formed by loops. The columns of GPUs are what tests/cuda and tests/distributed run.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <Eigen/Sparse>

#include <otimes/algebra.hpp>
#include <otimes/batched.hpp>
#include <otimes/einsum.hpp>

#include "adapt/helpers.hpp"

using namespace adapt;
using otimes::identity;
using otimes::kron;

namespace {

template <class Scalar>
matrix<Scalar> formed(const matrix<Scalar>& a, const matrix<Scalar>& b) {
    matrix<Scalar> k(a.rows() * b.rows(), a.cols() * b.cols());
    for (Index i = 0; i < k.rows(); ++i) {
        for (Index j = 0; j < k.cols(); ++j) {
            k(i, j) = a(i / b.rows(), j / b.cols()) * b(i % b.rows(), j % b.cols());
        }
    }
    return k;
}

template <class Scalar>
matrix<Scalar> product(const matrix<Scalar>& a, const std::type_identity_t<matrix<Scalar>>& b) {
    matrix<Scalar> c = matrix<Scalar>::Zero(a.rows(), b.cols());
    for (Index i = 0; i < c.rows(); ++i) {
        for (Index j = 0; j < c.cols(); ++j) {
            for (Index p = 0; p < a.cols(); ++p) {
                c(i, j) += a(i, p) * b(p, j);
            }
        }
    }
    return c;
}

// Rows of the document that were evaluated, by the number in their first column.
using rows_seen = std::set<std::string>;

template <class Scalar>
void evaluate_rows(rows_seen& seen) {
    using dense = matrix<Scalar>;
    using column = vector<Scalar>;
    const auto made = [](Index rows, Index cols, std::uint64_t seed) {
        dense m(rows, cols);
        const auto values = random<matrix_d>(rows, cols, seed);
        for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < cols; ++j) {
                using real = real_of<Scalar>;
                m(i, j) = static_cast<real>(values(i, j));
                if constexpr (support::is_complex<Scalar>) {
                    m(i, j) += Scalar(0, static_cast<real>(values(i, j) * values(rows - 1 - i, j)));
                }
            }
        }
        return m;
    };
    const dense A = made(3, 4, 1);
    const dense B = made(2, 5, 2);
    const dense I3 = dense::Identity(3, 3);
    const dense I4 = dense::Identity(4, 4);
    const dense S = made(3, 3, 3) + Scalar(5) * I3;
    const dense T = made(4, 4, 4) + Scalar(6) * I4;
    const dense X = made(7, 6, 5);
    const dense Z = made(7, 12, 6);
    const dense U = made(12, 3, 7);
    const column d = made(12, 1, 8);
    const auto check = [&seen](const std::string& row, const dense& got, const dense& want) {
        CAPTURE(row);
        seen.insert(row);
        REQUIRE(got.rows() == want.rows());
        REQUIRE(got.cols() == want.cols());
        for (Index i = 0; i < got.rows(); ++i) {
            for (Index j = 0; j < got.cols(); ++j) {
                CHECK(std::abs(got(i, j) - want(i, j)) <= 1e-4 * (1 + std::abs(want(i, j))));
            }
        }
    };
    const dense AB = formed(A, B);
    const dense ST = formed(S, T);
    const auto k = kron(S, T);
    const auto times_k = [&](const auto& factor) { return dense(Z * kron(factor, T)); };
    const auto want_k = [&](const dense& factor) { return product(Z, formed(factor, T)); };

    check("1", X * kron(A, B), product(X, AB));
    check("1", k * U, product(ST, U));
    check("1", kron(S) * U.topRows(3) * kron(S), product(product(S, U.topRows(3)), S));
    dense Y = Z;
    Y += Scalar(2) * Z * k;
    Y -= Z * k;
    check("2", Y, Z + product(Z, ST));
    check("2", Z - Z * k * Scalar(3), Z - Scalar(3) * product(Z, ST));
    check("3", Z * k.adjoint(), product(Z, ST.adjoint()));
    check("3", Z * kron(S.transpose(), T.conjugate()), product(Z, formed<Scalar>(S.transpose(), T.conjugate())));
    check("4", times_k(identity(3)), want_k(I3));
    check("4", times_k(column(d.head(3)).asDiagonal()), want_k(column(d.head(3)).asDiagonal()));
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    dense moves = dense::Zero(3, 3);
    moves(2, 0) = moves(0, 1) = moves(1, 2) = Scalar(1);
    check("4", times_k(P), want_k(moves));
    const dense thin = S.cwiseProduct(moves);
    const Eigen::SparseMatrix<Scalar> W = thin.sparseView();
    check("5", times_k(W), want_k(thin));
    dense lower = S;
    dense hermitian = S;
    for (Index i = 0; i < 3; ++i) {
        for (Index j = 0; j < 3; ++j) {
            lower(i, j) = i < j ? Scalar(0) : S(i, j);
            hermitian(i, j) = i > j ? dense(S.adjoint())(i, j) : S(i, j);
        }
        hermitian(i, i) = Scalar(std::real(S(i, i)));
    }
    check("6", times_k(S.template triangularView<Eigen::Lower>()), want_k(lower));
    check("6", times_k(hermitian.template selfadjointView<Eigen::Upper>()), want_k(hermitian));
    const dense V = made(3, 1, 9);
    const dense beside = made(3, 1, 11);
    check("7", times_k(otimes::low_rank(beside, V)), want_k(product(beside, dense(V.transpose()))));
    const column c = d.head(3);
    dense circulant(3, 3);
    circulant << c(0), c(2), c(1), c(1), c(0), c(2), c(2), c(1), c(0);
    check("7", times_k(otimes::circulant(c)), want_k(circulant));
    const dense St = S.transpose();
    check("8",
          times_k(otimes::matrix_free<Scalar>(
              3, 3, [&](bool transposed, const auto& in, auto& out) { out.noalias() = (transposed ? St : S) * in; })),
          want_k(S));
    check("9", Z * (k * kron(T, S)), product(product(Z, ST), formed(T, S)));
    check("10", Z * (k + kron(I3, T) - Scalar(2) * kron(S, I4)),
          product(Z, ST + formed(I3, T) - Scalar(2) * formed(S, I4)));
    check("10", Z * otimes::kron_sum(S, T), product(Z, formed(S, I4) + formed(I3, T)));
    check("11", (k + Scalar(3) * identity()) * U, product(ST, U) + Scalar(3) * U);
    check("11", (k + d.asDiagonal()) * U, product(ST, U) + product<Scalar>(d.asDiagonal(), U));
    Eigen::SparseMatrix<Scalar> picks(5, 12);
    dense picked = dense::Zero(5, 12);
    for (int i = 0; i < 5; ++i) {
        picks.insert(i, 2 * i + 1) = Scalar(1);
        picked(i, 2 * i + 1) = Scalar(1);
    }
    const dense five = U.topRows(5);
    check("12", (picks * k * picks.transpose() + Scalar(2) * identity()) * five,
          product(product(product(picked, ST), picked.transpose()), five) + Scalar(2) * five);
    check("13", product(ST, k.solve(U)), U);
    const dense ZK = product(Z, ST);
    Scalar dot(0);
    Scalar square(0);
    for (Index i = 0; i < ZK.rows(); ++i) {
        for (Index j = 0; j < ZK.cols(); ++j) {
            dot += dense(Z.conjugate())(i, j) * ZK(i, j);
            square += Scalar(std::norm(ZK(i, j)));
        }
    }
    check("14", dense::Constant(1, 1, otimes::dot(Z, Z * k)), dense::Constant(1, 1, dot));
    check("14", dense::Constant(1, 1, Scalar((Z * k).squaredNorm())), dense::Constant(1, 1, square));
    const dense M = made(4, 3, 10);
    const dense SMT = product(product(T, M), S.transpose());
    const column stacked = k * otimes::vec(M);
    check("15", stacked, Eigen::Map<const dense>(SMT.data(), 12, 1));
    dense split(3, 12);
    dense chosen(3, 3);
    const std::vector<int> some{5, 0, 7};
    for (Index i = 0; i < 3; ++i) {
        split.row(i) = formed<Scalar>(S.row(i), A.row(i));
        for (Index j = 0; j < 3; ++j) {
            chosen(i, j) = ST(some[static_cast<std::size_t>(i)], some[static_cast<std::size_t>(j)]);
        }
    }
    check("16", otimes::face_split(S, A) * U, product(split, U));
    check("16", k(some, some) * I3, chosen);
}

// The rows that only the scalars with kernels have.
rows_seen evaluate_restricted_rows() {
    using scalar = std::complex<float>;
    rows_seen seen;
    const auto A = random<matrix<scalar>>(3, 4, 1);
    const auto B = random<matrix<scalar>>(2, 5, 2);
    const matrix<scalar> At = A.transpose();
    const std::vector<matrix<scalar>> items{random<matrix<scalar>>(7, 6, 3), random<matrix<scalar>>(7, 6, 4)};
    std::vector<matrix<scalar>> results(2, poisoned<matrix<scalar>>(7, 20));
    otimes::batched(results) = otimes::batched(items) * kron(A, B);
    CHECK(distance(results[1], product(items[1], formed(A, B))) < 1e-4);
    seen.insert("17");
    auto C = poisoned<matrix<scalar>>(3, 3);
    otimes::strided_view<scalar, 2>(C.data(), {3, 3}, {1, 3}) = otimes::einsum<"mk,kn->mn">(A, At);
    CHECK(distance(C, product(A, At)) < 1e-4);
    seen.insert("18");
    return seen;
}

}  // namespace

TEST_CASE("docs/compatibility.md: every row, by both executors") {
    std::ifstream file(std::filesystem::path(OTIMES_SOURCE_DIR) / "docs" / "compatibility.md");
    std::set<std::string> rows;        // numbers of the rows
    std::set<std::string> restricted;  // of those that exclude other scalars
    for (std::string line; std::getline(file, line);) {
        if (line.size() > 4 && line.substr(0, 2) == "| " && line[2] >= '0' && line[2] <= '9') {
            const std::string number = line.substr(2, line.find(' ', 2) - 2);
            rows.insert(number);
            const std::size_t expression_ends =
                line.find(" | ", line.find(" | ") + 3);  // then the column of the two executors
            if (line.compare(expression_ends, 12, " | f d c z |") == 0) {
                restricted.insert(number);
            }
        }
    }
    CHECK(rows.size() > 10);
    for (const otimes::executor* e : {&otimes::reference(), &otimes::cpu()}) {
        const otimes::scoped_executor here(*e);
        CHECK(evaluate_restricted_rows() == restricted);
        rows_seen of_other;
        evaluate_rows<long double>(of_other);
        of_other.insert(restricted.begin(), restricted.end());
        CHECK(of_other == rows);
    }
}

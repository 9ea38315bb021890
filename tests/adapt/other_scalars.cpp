// SPDX-License-Identifier: MIT
// Scalars that no executor has kernels for run through the reference loops of the calling file.
#include <doctest/doctest.h>

#include <atomic>
#include <complex>
#include <cstdint>
#include <ostream>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "adapt/scalar_types.hpp"

namespace {

// Integers modulo a prime: sums and products are exact, nothing is ordered, nothing converts to double.
class modular {
public:
    static constexpr std::int64_t prime = 1000003;
    static inline std::atomic<std::int64_t> multiplications = 0;

    modular() = default;
    modular(int value) : value_((value % prime + prime) % prime) {}
    [[nodiscard]] std::int64_t value() const { return value_; }
    modular& operator+=(modular other) { return *this = of(value_ + other.value_); }
    modular& operator-=(modular other) { return *this = of(value_ - other.value_ + prime); }
    modular& operator*=(modular other) {
        ++multiplications;
        return *this = of(value_ * other.value_);
    }
    friend modular operator+(modular a, modular b) { return a += b; }
    friend modular operator-(modular a, modular b) { return a -= b; }
    friend modular operator*(modular a, modular b) { return a *= b; }
    friend bool operator==(modular a, modular b) = default;
    friend std::ostream& operator<<(std::ostream& out, modular a) { return out << a.value_; }

private:
    static modular of(std::int64_t value) {
        modular result;
        result.value_ = value % prime;
        return result;
    }
    std::int64_t value_ = 0;
};

}  // namespace

template <>
struct Eigen::NumTraits<modular> : Eigen::GenericNumTraits<modular> {
    using Real = modular;
    using NonInteger = modular;
    using Nested = modular;
    using Literal = int;
    enum {
        IsComplex = 0,
        IsInteger = 1,
        IsSigned = 0,
        RequireInitialization = 1,
        ReadCost = 1,
        AddCost = 2,
        MulCost = 4
    };
};

using namespace adapt;
using otimes::kron;

TEST_CASE("a modular integer class as scalar") {
    const auto fill = [](Index rows, Index cols, int seed) {
        matrix<modular> m(rows, cols);
        for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < cols; ++j) {
                m(i, j) = modular(static_cast<int>((seed + 7919 * i * i + 104729 * j) % 999983) + 1);
            }
        }
        return m;
    };
    const auto A = fill(2, 3, 5);
    const auto B = fill(3, 4, 900001);
    const auto X = fill(5, 6, 444444);
    matrix<modular> K(6, 12);
    for (Index i = 0; i < 6; ++i) {
        for (Index j = 0; j < 12; ++j) {
            K(i, j) = A(i / 3, j / 4) * B(i % 3, j % 4);
        }
    }
    const auto plain_product = [](const matrix<modular>& a, const matrix<modular>& b) {
        matrix<modular> c = matrix<modular>::Zero(a.rows(), b.cols());
        for (Index i = 0; i < a.rows(); ++i) {
            for (Index j = 0; j < b.cols(); ++j) {
                for (Index l = 0; l < a.cols(); ++l) {
                    c(i, j) += a(i, l) * b(l, j);
                }
            }
        }
        return c;
    };
    const auto want = plain_product(X, K);
    matrix<modular> Y = X * kron(A, B);
    CHECK(Y == want);
    Y.noalias() += modular(3) * X * kron(A, B);
    CHECK(Y == matrix<modular>(want * modular(4)));
    Y -= X * kron(A, B) * 3;
    CHECK(Y == want);
    Y = X * kron(A, B) + Y;
    CHECK(Y == matrix<modular>(want * modular(2)));
    CHECK(kron(A, B).toDenseMatrix() == K);
    matrix<modular> Z = kron(A, B).transpose() * X.transpose();
    CHECK(Z == matrix<modular>(want.transpose()));
    Z = Z.transpose() * kron(B.transpose(), A.transpose());  // overlap with a resize
    CHECK(Z.rows() == 5);
    matrix<modular> KT(12, 6);
    for (Index i = 0; i < 12; ++i) {
        for (Index j = 0; j < 6; ++j) {
            KT(i, j) = B(j / 2, i / 3) * A(j % 2, i % 3);
        }
    }
    CHECK(Z == plain_product(want, KT));
    const auto p = otimes::make_plan(X * kron(A, B));
    matrix<modular> W(5, 12);
    p.run(W, X * kron(A, B));
    CHECK(W == want);
}

TEST_CASE("integers") {
    const auto A = random<matrix<int>>(2, 3, 1);
    const auto B = random<matrix<int>>(3, 2, 2);
    const auto X = random<matrix<int>>(4, 6, 3);
    const matrix<int> Y = 2 * X * kron(A, B);
    CHECK(support::exactly_equal(Y, scaled(2, times(X, dense_kron(A, B)))));
    // A product of integers is divided after its evaluation, entry by entry.
    const matrix<int> halves = (X * kron(A, B)).eval() / 2;
    CHECK(support::exactly_equal(halves, matrix<int>(matrix<int>(X * kron(A, B)) / 2)));
}

TEST_CASE("long double products") { check_scalars<long double, long double, long double>(); }

TEST_CASE("complex long double X and real factors") {
    check_scalars<std::complex<long double>, long double, std::complex<long double>>();
}

TEST_CASE("selected rows of a K with identities: K as a whole, which costs little, not each row over all columns") {
    const auto filled = [](Index rows, Index cols) {
        matrix<modular> m(rows, cols);
        for (Index j = 0; j < cols; ++j) {
            for (Index i = 0; i < rows; ++i) {
                m(i, j) = modular(static_cast<int>(7919 * i * i + 104729 * j + 1));
            }
        }
        return m;
    };
    const matrix<modular> P = filled(3, 2), x = filled(2000, 1), z = filled(40, 1);
    const auto K = kron(otimes::identity(1000), P);  // 3000 x 2000
    std::vector<Index> seen;
    for (Index i = 0; i < 40; ++i) seen.push_back((i * 71) % 2000);
    const auto all = otimes::eigen::all_indices();
    const auto multiplications = [](auto&& evaluate) {
        evaluate();
        modular::multiplications = 0;
        evaluate();
        return modular::multiplications.load();
    };
    matrix<modular> y, w;
    CHECK(multiplications([&] { y = K(seen, all) * x; }) <= 5 * 3000);
    CHECK(multiplications([&] { w = K(all, seen) * z; }) <= 5 * 3000);
    matrix<modular> want = matrix<modular>::Zero(3000, 1);
    for (Index i = 0; i < 40; ++i) {
        const Index row = seen[static_cast<std::size_t>(i)];
        CHECK(y(i, 0) == P(row % 3, 0) * x(row / 3 * 2, 0) + P(row % 3, 1) * x(row / 3 * 2 + 1, 0));
        for (Index p = 0; p < 3; ++p) want(row / 2 * 3 + p, 0) += P(p, row % 2) * z(i, 0);
    }
    CHECK(w == want);
}

namespace {

matrix<modular> filled(Index rows, Index cols, int seed) {
    matrix<modular> m(rows, cols);
    for (Index j = 0; j < cols; ++j) {
        for (Index i = 0; i < rows; ++i) {
            m(i, j) = modular(static_cast<int>(7919 * i * i + 104729 * j + seed));
        }
    }
    return m;
}

}  // namespace

TEST_CASE(
    "selections of a K with a function, a product or a sparse matrix: not entry by entry where a look-up costs a lot") {
    const matrix<modular> A = filled(5, 6, 1), F = filled(30, 20, 2), U = filled(300, 2, 3), V = filled(200, 2, 4);
    const Eigen::SparseMatrix<modular> S = filled(150, 120, 7).sparseView();
    int applications = 0;
    const auto function =
        otimes::matrix_free<modular>(30, 20, [&F, &applications](bool transposed, const auto& in, auto& out) {
            ++applications;
            out = transposed ? matrix<modular>(F.transpose() * in) : matrix<modular>(F * in);
        });
    const auto all = otimes::eigen::all_indices();
    // `count` rows and columns: no more than `most` times the multiplications of K * x
    const auto check = [&](const auto& K, const matrix<modular>& k, Index count, double most) {
        std::vector<Index> rows, cols;
        for (Index i = 0; i < count; ++i) {
            rows.push_back((i * 37) % K.rows());
            cols.push_back((i * 41 + 3) % K.cols());
        }
        const matrix<modular> x = filled(K.cols(), 1, 8), z = filled(count, 1, 9);
        matrix<modular> y;
        const auto cost = [&](auto&& evaluate) {
            evaluate();
            modular::multiplications = 0;
            evaluate();
            return static_cast<double>(modular::multiplications.load());
        };
        const double whole = most * cost([&] { y = K * x; });
        applications = 0;
        CHECK(cost([&] { y = K(rows, cols) * z; }) <= whole);
        CHECK(y == k(rows, cols) * z);
        CHECK(cost([&] { y = K(rows, all) * x; }) <= whole);
        CHECK(y == k(rows, all) * x);
        CHECK(cost([&] { y = K(all, cols) * z; }) <= whole);
        CHECK(y == k(all, cols) * z);
        CHECK(applications <= 6 * 6);  // K applied six times, once or column by column
    };
    check(kron(A, function), kron(A, F).toDenseMatrix(), 8, 3);
    check(kron(function, A), kron(F, A).toDenseMatrix(), 8, 3);
    check(kron(otimes::low_rank(U, V)), matrix<modular>(U * V.transpose()), 20, 8);
    check(kron(A, otimes::low_rank(U, V)), kron(A, matrix<modular>(U * V.transpose())).toDenseMatrix(), 20, 8);
    check(kron(S), matrix<modular>(S), 20, 3);
}

TEST_CASE("a selection in a sum takes the multiplications of its entries; diagonals those of stored elements") {
    const auto multiplications = [](auto&& evaluate) {
        evaluate();
        modular::multiplications = 0;
        evaluate();
        return modular::multiplications.load();
    };
    const matrix<modular> A = filled(8, 8, 1), B = filled(9, 9, 2), x = filled(30, 1, 3), F = filled(50, 50, 4);
    const auto K = kron(A, B, A, B);  // 5184 x 5184
    std::vector<Index> seen;
    for (Index i = 0; i < 30; ++i) seen.push_back(i * 171);
    const auto S = K(seen, seen) + 3 * otimes::identity();
    matrix<modular> y, want = modular(3) * x;
    vector<modular> d;
    CHECK(multiplications([&] { y = S * x; }) <= 30 * 30 * (4 + 4));  // of a whole K: 176256
    CHECK(multiplications([&] { d = S.diagonal(); }) <= 30 * (4 + 3));
    for (Index i = 0; i < 30; ++i) {
        for (Index j = 0; j < 30; ++j) {
            const Index r = seen[static_cast<std::size_t>(i)], c = seen[static_cast<std::size_t>(j)];
            const modular entry =
                A(r / 648, c / 648) * B(r / 72 % 9, c / 72 % 9) * A(r / 9 % 8, c / 9 % 8) * B(r % 9, c % 9);
            want(i, 0) += entry * x(j, 0);
            if (i == j) CHECK(d(i) == entry + modular(3));
        }
    }
    CHECK(y == want);

    Eigen::SparseMatrix<modular> W(60, 50);
    for (int i = 0; i < 60; ++i) {
        W.insert(i, (7 * i) % 50) = modular(1 + i);
        W.insert(i, (7 * i + 3) % 50) = modular(5);
    }
    const otimes::sum_expr<modular> T = W * kron(F) * W.transpose() + otimes::identity();
    CHECK(multiplications([&] { d = T.diagonal(); }) <= 60 * 4 * 6);  // through columns of F: 150000
    const matrix<modular> dense = T.toDenseMatrix();
    for (Index i = 0; i < 60; ++i) CHECK(d(i) == dense(i, i));
}

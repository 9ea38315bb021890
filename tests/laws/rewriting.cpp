// SPDX-License-Identifier: MIT
// Sums, products and structured factors against dense matrices in exact arithmetic (integers modulo a prime): the rewriting
// of expr/lower_tree.hpp and expr/multiply_krons.hpp must not change a single digit, and must not take more flops.
#include <doctest/doctest.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include <Eigen/Core>
#include <Eigen/SparseCore>

#include <otimes/otimes.hpp>
#include <otimes/plan/step_cost.hpp>

#include "support/long_tests.hpp"
#include "support/random.hpp"

namespace {

class residue {
public:
    static constexpr std::int64_t prime = 998244353;
    residue() = default;
    residue(std::int64_t value) : value_((value % prime + prime) % prime) {}
    [[nodiscard]] std::int64_t value() const { return value_; }
    residue& operator+=(residue b) { return *this = residue(value_ + b.value_); }
    residue& operator-=(residue b) { return *this = residue(value_ - b.value_); }
    residue& operator*=(residue b) { return *this = residue(value_ * b.value_); }
    friend residue operator+(residue a, residue b) { return a += b; }
    friend residue operator-(residue a, residue b) { return a -= b; }
    friend residue operator*(residue a, residue b) { return a *= b; }
    friend residue operator-(residue a) { return residue(-a.value_); }
    friend bool operator==(residue, residue) = default;
    friend std::ostream& operator<<(std::ostream& out, residue a) { return out << a.value_; }

private:
    std::int64_t value_ = 0;
};

}  // namespace

template <>
struct Eigen::NumTraits<residue> : Eigen::GenericNumTraits<residue> {
    using Real = residue;
    using NonInteger = residue;
    using Nested = residue;
    using Literal = std::int64_t;
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

namespace {

using Eigen::Index;
using otimes::kron;
using matrix = Eigen::Matrix<residue, Eigen::Dynamic, Eigen::Dynamic>;
using vector = Eigen::Matrix<residue, Eigen::Dynamic, 1>;
using operators = otimes::sum_expr<residue>;

matrix product(const matrix& a, const matrix& b) {
    matrix c = matrix::Zero(a.rows(), b.cols());
    for (Index i = 0; i < a.rows(); ++i) {
        for (Index k = 0; k < a.cols(); ++k) {
            for (Index j = 0; j < b.cols(); ++j) {
                c(i, j) += a(i, k) * b(k, j);
            }
        }
    }
    return c;
}

matrix dense_kron(const matrix& a, const matrix& b) {
    matrix c(a.rows() * b.rows(), a.cols() * b.cols());
    for (Index i = 0; i < c.rows(); ++i) {
        for (Index j = 0; j < c.cols(); ++j) {
            c(i, j) = a(i / b.rows(), j / b.cols()) * b(i % b.rows(), j % b.cols());
        }
    }
    return c;
}

class generator {
public:
    explicit generator(std::uint64_t seed) : stream_(seed) {}

    matrix entries(Index rows, Index cols) {
        matrix m(rows, cols);
        for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < cols; ++j) {
                m(i, j) = residue(static_cast<std::int64_t>(stream_.bits() >> 2));
            }
        }
        return m;
    }
    Index pick(Index low, Index high) { return static_cast<Index>(stream_.integer(low, high)); }

    /// One factor of a random kind, and the matrix that it is.
    otimes::kron_expr<residue> factor(Index rows, Index cols, matrix& dense) {
        const Index kind = rows == cols ? pick(0, 6) : pick(3, 6);
        if (kind == 0) {
            dense = matrix::Identity(rows, rows);
            return residue(1) * kron(otimes::kron_expr<residue>(), otimes::identity(rows));
        }
        if (kind == 1) {
            const vector d = entries(rows, 1);
            dense = matrix::Zero(rows, rows);
            dense.diagonal() = d;
            return kron(Eigen::DiagonalMatrix<residue, Eigen::Dynamic>(d));
        }
        if (kind == 2) {
            Eigen::PermutationMatrix<Eigen::Dynamic> p(rows);
            p.setIdentity();
            for (Index i = rows; i-- > 1;) {
                std::swap(p.indices()(i), p.indices()(pick(0, i)));
            }
            dense = matrix::Zero(rows, rows);
            for (Index i = 0; i < rows; ++i) {
                dense(p.indices()(i), i) = residue(1);
            }
            return kron(otimes::kron_expr<residue>(), p);
        }
        if (kind == 3) {
            Eigen::SparseMatrix<residue> s(rows, cols);
            dense = matrix::Zero(rows, cols);
            for (Index k = 0; k < rows; ++k) {
                const Index i = pick(0, rows - 1);
                const Index j = pick(0, cols - 1);
                dense(i, j) = entries(1, 1)(0, 0);
                s.coeffRef(i, j) = dense(i, j);
            }
            return kron(std::move(s));
        }
        if (kind == 4) {
            const matrix u = entries(rows, 1);
            const matrix v = entries(1, cols);
            dense = product(u, v);
            return kron(otimes::low_rank(matrix(u), matrix(v)));
        }
        dense = entries(rows, cols);
        return kron(matrix(dense));
    }

    /// A random expression of the given splits of rows and columns.
    operators expression(const std::vector<Index>& rows, const std::vector<Index>& cols, int depth, matrix& dense) {
        const Index kind = depth == 0 ? 0 : pick(0, 3);
        if (kind <= 1) {
            otimes::kron_expr<residue> k;
            dense = matrix::Constant(1, 1, residue(1));
            for (std::size_t n = 0; n < rows.size(); ++n) {
                matrix f;
                k = kron(k, factor(rows[n], cols[n], f));
                dense = dense_kron(dense, f);
            }
            const residue scale = entries(1, 1)(0, 0);
            dense *= scale;
            return scale * operators(k);
        }
        if (kind == 2) {
            matrix a;
            matrix b;
            const operators first = expression(rows, cols, depth - 1, a);
            // With luck the second term shares factors with the first.
            const bool again = pick(0, 1) == 0;
            const operators second = again ? first : expression(rows, cols, depth - 1, b);
            dense = again ? matrix(a + a) : matrix(a - b);
            if (again) {
                return first + second;
            }
            return first - second;
        }
        std::vector<Index> inner = rows;
        for (Index& extent : inner) {
            extent = pick(1, 4);
        }
        if (pick(0, 2) == 0) {  // another split of the same extent
            Index total = 1;
            for (const Index extent : inner) {
                total *= extent;
            }
            matrix a;
            matrix b;
            const operators first = expression(rows, inner, depth - 1, a);
            const operators second(kron(factor(total, cols.size() == 1 ? cols[0] : total, b)));
            dense = product(a, b);
            if (cols.size() == 1) {
                return first * second;
            }
            matrix c;
            const operators third = expression(inner, cols, depth - 1, c);
            dense = product(dense, c);
            return first * second * third;
        }
        matrix a;
        matrix b;
        const operators first = expression(rows, inner, depth - 1, a);
        const operators second = expression(inner, cols, depth - 1, b);
        dense = product(a, b);
        return first * second;
    }

private:
    support::random_stream stream_;
};

template <class Expression>
std::int64_t flops_of(const Expression& e) {
    std::int64_t flops = 0;
    otimes::eigen::with_program(e, otimes::eigen::plain_destination(e), [&](const otimes::program& p, const auto&) {
        for (const otimes::step& s : p.steps) {
            flops += otimes::planning::step_flops(p, s);
        }
    });
    return flops;
}

}  // namespace

TEST_CASE("random sums and products of structured krons, exactly") {
    const int cases = support::long_tests() ? 3000 : 250;
    for (int n = 0; n < cases; ++n) {
        CAPTURE(n);
        generator g(static_cast<std::uint64_t>(n) + 17);
        const Index count = g.pick(1, 3);
        std::vector<Index> rows;
        std::vector<Index> cols;
        for (Index k = 0; k < count; ++k) {
            rows.push_back(g.pick(1, 4));
            cols.push_back(g.pick(0, 2) == 0 ? rows.back() : g.pick(1, 4));
        }
        matrix dense;
        const operators e = g.expression(rows, cols, 3, dense);
        REQUIRE(e.rows() == dense.rows());
        REQUIRE(e.cols() == dense.cols());
        CHECK(e.toDenseMatrix() == dense);
        const matrix X = g.entries(g.pick(1, 3), dense.rows());
        matrix Y = X * e;
        CHECK(Y == product(X, dense));
        const residue two(2);
        Y -= two * X * e;
        CHECK(Y == matrix(-product(X, dense)));
        const matrix Z = g.entries(dense.rows(), g.pick(1, 3));
        CHECK(matrix(e.transpose() * Z) == product(dense.transpose(), Z));
        CHECK(e(e.rows() - 1, e.cols() / 2) == dense(dense.rows() - 1, dense.cols() / 2));
    }
}

TEST_CASE("mixed-product: never more flops than one after the other") {
    for (int n = 0; n < 200; ++n) {
        CAPTURE(n);
        generator g(static_cast<std::uint64_t>(n) + 1000);
        std::vector<matrix> a;
        std::vector<matrix> b;
        otimes::kron_expr<residue> K;
        otimes::kron_expr<residue> L;
        for (Index k = 0; k < g.pick(1, 3); ++k) {
            const Index inner = g.pick(1, 5);
            K = kron(K, g.entries(g.pick(1, 5), inner));
            L = kron(L, g.entries(inner, g.pick(1, 5)));
        }
        const operators KL = K * L;
        CHECK(KL.is_kron());
        const matrix X = g.entries(g.pick(1, 9), K.rows());
        const matrix between = X * K;
        // The order of the modes is the planner's; the least that both orders can give is compared factor by factor.
        std::int64_t apart = 0;
        std::int64_t together = flops_of(X * KL);
        apart = flops_of(X * K) + flops_of(between * L);
        const bool same_extents = [&] {
            for (std::size_t k = 0; k < K.factor_count(); ++k) {
                if (K.factor(k).rows() != K.factor(k).cols() || L.factor(k).rows() != L.factor(k).cols()) {
                    return false;
                }
            }
            return true;
        }();
        if (same_extents) {
            CHECK(together <= apart);
        }
        CHECK(matrix(X * KL) == matrix(between * L));
    }
}

TEST_CASE("split-identity: kron(A, I) * kron(I, B) is kron(A, B), and rewriting it again changes nothing") {
    generator g(5);
    const matrix A = g.entries(3, 4);
    const matrix B = g.entries(2, 5);
    const matrix C = g.entries(5, 3);
    const operators once = kron(A, otimes::identity(2)) * kron(otimes::identity(4), B);
    REQUIRE(once.is_kron());
    CHECK(once.as_kron().factor_count() == 2);
    const operators merged = kron(A, otimes::identity(10)) * kron(otimes::identity(8), otimes::kron(C));
    REQUIRE(merged.is_kron());
    CHECK(merged.toDenseMatrix() ==
          product(dense_kron(A, matrix::Identity(10, 10)), dense_kron(matrix::Identity(8, 8), C)));
    const matrix X = g.entries(7, 6);
    CHECK(flops_of(X * once) == flops_of(X * kron(A, B)));
    CHECK(matrix(X * once) == matrix(X * kron(A, B)));
    // Unequal splits without an identity are evaluated one after the other.
    const operators apart = kron(g.entries(2, 6), g.entries(3, 10)) * kron(g.entries(15, 2), g.entries(4, 3));
    CHECK_FALSE(apart.is_kron());
}

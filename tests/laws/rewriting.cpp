// SPDX-License-Identifier: MIT
// Sums, products and structured factors against dense matrices in exact arithmetic (integers modulo a prime): the rewriting
// of expr/lower_tree.hpp and expr/multiply_krons.hpp must not change a single digit, and must not take more flops.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <utility>
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
    [[maybe_unused]] friend residue operator-(residue a, residue b) { return a -= b; }
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

    /// One factor of a random kind, and the matrix that it is; now and then one that was used before.
    otimes::kron_expr<residue> factor(Index rows, Index cols, matrix& dense) {
        std::vector<used_factor>& before = used_[{rows, cols}];
        if (!before.empty() && pick(0, 2) == 0) {
            const used_factor& one = before[static_cast<std::size_t>(pick(0, static_cast<Index>(before.size()) - 1))];
            dense = one.dense;
            return one.factor;
        }
        const otimes::kron_expr<residue> made = new_factor(rows, cols, dense);
        used_[{rows, cols}].push_back({made, dense});
        return made;
    }
    otimes::kron_expr<residue> new_factor(Index rows, Index cols, matrix& dense) {
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
            const matrix v = entries(cols, 1);
            dense = product(u, matrix(v.transpose()));
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
        if (kind == 2 && pick(0, 3) == 0) {  // two krons that differ in one factor
            const std::size_t other = static_cast<std::size_t>(pick(0, static_cast<Index>(rows.size()) - 1));
            otimes::kron_expr<residue> k;
            otimes::kron_expr<residue> l;
            matrix a = matrix::Constant(1, 1, residue(1));
            matrix b = a;
            for (std::size_t n = 0; n < rows.size(); ++n) {
                matrix f = entries(rows[n], cols[n]);
                const otimes::kron_expr<residue> same = n == other ? kron(matrix(f)) : factor(rows[n], cols[n], f);
                k = kron(k, same);
                a = dense_kron(a, f);
                f = n == other ? entries(rows[n], cols[n]) : f;
                l = n == other ? kron(l, matrix(f)) : kron(l, same);
                b = dense_kron(b, f);
            }
            const residue scale = entries(1, 1)(0, 0);
            dense = matrix(a - scale * b);
            return operators(k) - scale * operators(l);
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
            if (dense.rows() == dense.cols() && pick(0, 2) == 0) {
                const residue shift = entries(1, 1)(0, 0);
                dense += shift * matrix::Identity(dense.rows(), dense.rows());
                return (first - second) + otimes::scaled_identity<residue>{shift};
            }
            return first - second;
        }
        std::vector<Index> inner = rows;
        const bool square = pick(0, 1) == 0;
        for (Index& extent : inner) {
            extent = square ? extent : pick(1, 4);
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
    struct used_factor {
        otimes::kron_expr<residue> factor;
        matrix dense;
    };
    std::map<std::pair<Index, Index>, std::vector<used_factor>> used_;
    support::random_stream stream_;
};

/// The flops of the steps, and those of factors that lowering has multiplied out.
template <class Expression>
std::int64_t flops_of(const Expression& e) {
    std::int64_t flops = 0;
    otimes::eigen::with_program(e, otimes::eigen::plain_destination(e), [&](const otimes::program& p, const auto&) {
        flops += p.rewritten.formed_flops;
        for (const otimes::step& s : p.steps) {
            flops += otimes::planning::step_flops(p, s);
        }
    });
    return flops;
}

template <class Expression>
otimes::program program_of(const Expression& e) {
    otimes::program result;
    otimes::eigen::with_program(e, otimes::eigen::plain_destination(e),
                                [&](const otimes::program& p, const auto&) { result = p; });
    return result;
}

/// The least flops of X * kron(factors) over all orders of the modes, X of `rows` rows: counted here from the extents alone.
std::int64_t least_flops(std::int64_t rows, std::vector<std::pair<Index, Index>> factors) {
    std::sort(factors.begin(), factors.end());
    std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
    do {
        std::int64_t total = 0;
        std::int64_t elements = rows;
        for (const auto& [p, q] : factors) {
            elements *= p;
        }
        for (const auto& [p, q] : factors) {
            total += 2 * elements * q;
            elements = elements / p * q;
        }
        least = std::min(least, total);
    } while (std::next_permutation(factors.begin(), factors.end()));
    return least;
}

/// X * S has the value of `dense`, its program names `rule` and so does explain, and it takes at most `flops`.
template <class Operator>
void check_rule(otimes::rewrite rule, const Operator& s, const matrix& dense, std::int64_t flops) {
    CAPTURE(to_string(rule));
    generator g(99);
    const matrix X = g.entries(3, dense.rows());
    REQUIRE(s.rows() == dense.rows());
    CHECK(matrix(X * s) == product(X, dense));
    CHECK(program_of(X * s).rewritten.holds(rule));
    CHECK(otimes::explain(X * s).find("rewritten by ") != std::string::npos);
    CHECK(otimes::explain(X * s).find(std::string(to_string(rule))) != std::string::npos);
    CHECK(flops_of(X * s) <= flops);
}

}  // namespace

TEST_CASE("each rule by itself: the value, the flops, the identifier in explain") {
    using otimes::identity;
    using otimes::rewrite;
    generator g(3);
    const matrix A = g.entries(2, 3);
    const matrix B = g.entries(4, 2);
    const matrix C = g.entries(3, 5);
    const matrix S = g.entries(4, 4);
    const matrix ab = dense_kron(A, B);
    const std::int64_t cost_ab = least_flops(3, {{2, 3}, {4, 2}});
    const auto K = kron(A, B);
    check_rule(rewrite::nested_kron_flattened, kron(A, kron(B, C)), dense_kron(A, dense_kron(B, C)),
               least_flops(3, {{2, 3}, {4, 2}, {3, 5}}) * 2);  // as written; the planner orders the factors
    CHECK(kron(A, kron(B, C)).factor_count() == 3);
    check_rule(rewrite::transpose_to_factors, K.transpose(), ab.transpose(), 2 * cost_ab);
    check_rule(rewrite::scalar_gathered, (residue(3) * K) * residue(5), matrix(ab * residue(15)), 2 * cost_ab);
    CHECK(program_of(g.entries(3, 8) * (residue(3) * K * residue(5))).steps.size() == 2);
    check_rule(rewrite::equal_terms_merged, residue(3) * K + residue(4) * K, matrix(ab * residue(7)), 2 * cost_ab);
    const matrix D = g.entries(2, 3);
    check_rule(rewrite::nested_sum_flattened, (K + kron(D, B)) + kron(A, g.entries(4, 2)) - kron(A, B) - kron(D, B),
               matrix(dense_kron(A,
                                 [] {
                                     generator again(3);
                                     again.entries(2, 3), again.entries(4, 2), again.entries(3, 5), again.entries(4, 4);
                                     again.entries(3, 8), again.entries(2, 3);
                                     return again.entries(4, 2);
                                 }())),
               5 * 2 * cost_ab);
    check_rule(rewrite::identity_runs_merged, kron(A, identity(2), identity(3)), dense_kron(A, matrix::Identity(6, 6)),
               least_flops(3 * 6, {{2, 3}}));
    // Neither identity fits by itself, their product does.
    const matrix F = g.entries(6, 6);
    const operators runs = kron(A, identity(2), identity(3)) * kron(C, F);
    CHECK(runs.is_kron());
    check_rule(rewrite::identity_runs_merged, runs, dense_kron(product(A, C), F),
               least_flops(3, {{2, 3}, {6, 6}}) + least_flops(3, {{3, 5}, {6, 6}}));
    const operators split = kron(A, identity(8)) * kron(identity(6), B);
    CHECK(split.is_kron());
    check_rule(rewrite::kron_identity_split, split, dense_kron(A, dense_kron(matrix::Identity(2, 2), B)),
               2 * 2 * cost_ab);
    CHECK(flops_of(g.entries(3, 16) * split) == flops_of(g.entries(3, 16) * kron(A, identity(2), B)));
    // Where the identities fit as they are, nothing needs to be cut.
    const operators absorbed = kron(A, identity(4)) * kron(identity(3), B);
    CHECK(absorbed.as_kron().factor_count() == 2);
    check_rule(rewrite::kron_identity_split, absorbed, ab, 2 * cost_ab);
    CHECK_FALSE(program_of(g.entries(3, 8) * (kron(A, B) * kron(C, g.entries(2, 3))))
                    .rewritten.holds(rewrite::kron_identity_split));
    CHECK_FALSE(program_of(g.entries(3, 8) * (kron(A, identity(4)) * kron(C, identity(4))))
                    .rewritten.holds(rewrite::kron_identity_split));
    const operators shifted = kron(S, S) + otimes::scaled_identity<residue>{residue(2)};
    check_rule(rewrite::identity_term_split, shifted, matrix(dense_kron(S, S) + residue(2) * matrix::Identity(16, 16)),
               least_flops(3, {{4, 4}, {4, 4}}));
    // Factors and identities of order 1, wherever they stand, keep no identity from joining.
    const matrix unit = g.entries(1, 1);
    check_rule(rewrite::identity_term_split, kron(S, unit) + otimes::scaled_identity<residue>{residue(2)},
               matrix(dense_kron(S, unit) + residue(2) * matrix::Identity(4, 4)), least_flops(3, {{4, 4}, {1, 1}}));
    check_rule(rewrite::identity_term_split, kron(unit, S, S) + kron(identity(1), S, identity(1), identity(4)),
               matrix(dense_kron(unit, dense_kron(S, S)) + dense_kron(S, matrix::Identity(4, 4))),
               least_flops(3, {{1, 1}, {4, 4}, {4, 4}}) + least_flops(3 * 4, {{4, 4}}));
    // A coarser identity joins the finer terms: one sum that shares, not two passes over X.
    const matrix E = g.entries(2, 2);
    const operators coarse = kron(E, S, E) + kron(E, identity(8));
    check_rule(rewrite::identity_term_split, coarse,
               matrix(dense_kron(E, dense_kron(S, E)) + dense_kron(E, matrix::Identity(8, 8))),
               least_flops(3, {{2, 2}, {4, 4}, {2, 2}}) + least_flops(3 * 8, {{2, 2}}));
    check_rule(rewrite::terms_shared, coarse,
               matrix(dense_kron(E, dense_kron(S, E)) + dense_kron(E, matrix::Identity(8, 8))),
               least_flops(3, {{2, 2}, {4, 4}, {2, 2}}));  // E is applied once
    // Four products of 16 x 16 and two sums of 4 x 4, where the terms one by one take six products.
    const matrix M = g.entries(4, 4);
    const matrix N = g.entries(4, 4);
    check_rule(
        rewrite::factors_added, kron(E, E, S, M) + kron(E, E, M, S) - residue(5) * kron(E, E, M, M),
        matrix(dense_kron(dense_kron(E, E), dense_kron(S, M) + dense_kron(M, S) - residue(5) * dense_kron(M, M))),
        2 * 3 * (2 * 2 * 2 * 32 + 4 * 64 * 4) + 2 * 2 * 16);
    // What is not an identity needs no pass of its own beside those that are; X of any layout, factors of either.
    const matrix transposed = S.transpose();
    check_rule(rewrite::factors_added,
               kron(transposed.transpose(), identity(8)) + kron(identity(4), kron(E, N)) +
                   otimes::scaled_identity<residue>{residue(2)},
               matrix(dense_kron(S, matrix::Identity(8, 8)) + dense_kron(matrix::Identity(4, 4), dense_kron(E, N)) +
                      residue(2) * matrix::Identity(32, 32)),
               2 * 3 * 32 * (4 + 2 + 4) + 2 * (16 + 4));
    const matrix G = g.entries(2, 3);
    check_rule(rewrite::mixed_product, kron(A, B) * kron(C, G), dense_kron(product(A, C), product(B, G)),
               least_flops(3, {{2, 3}, {4, 2}}) + least_flops(3, {{3, 5}, {2, 3}}));
    const operators apart = kron(g.entries(2, 6), g.entries(3, 10)) * kron(g.entries(15, 2), g.entries(4, 3));
    CHECK_FALSE(apart.is_kron());
    check_rule(
        rewrite::applied_in_sequence, apart,
        product(apart.tree().parts[0].kron.rows() == 6 ? operators(apart.tree().parts[0]).toDenseMatrix() : matrix(),
                operators(apart.tree().parts[1]).toDenseMatrix()),
        2 * (least_flops(3, {{2, 6}, {3, 10}}) + least_flops(3, {{15, 2}, {4, 3}})));
    // Both factors of K shrink X before either of L makes it grow: mode after mode would take more.
    const matrix thin = g.entries(5, 1);
    const matrix wide = g.entries(1, 5);
    const operators hour_glass = kron(thin, thin) * kron(wide, wide);
    check_rule(rewrite::factors_interleaved, hour_glass, dense_kron(product(thin, wide), product(thin, wide)),
               least_flops(3, {{5, 1}, {5, 1}}) + least_flops(3, {{1, 5}, {1, 5}}));
    check_rule(rewrite::product_formed, kron(S, identity(9)) * kron(S, identity(9)),
               dense_kron(product(S, S), matrix::Identity(9, 9)), least_flops(3 * 9, {{4, 4}}) + 2 * 64);
    const vector d = g.entries(4, 1);
    matrix diagonal = matrix::Zero(4, 4);
    diagonal.diagonal() = d;
    check_rule(rewrite::diagonal_product, kron(S, identity(9)) * kron(d.asDiagonal(), identity(9)),
               dense_kron(product(S, diagonal), matrix::Identity(9, 9)), least_flops(3 * 9, {{4, 4}}) + 16);
    check_rule(rewrite::diagonal_product, kron(d.asDiagonal(), S) * kron(d.asDiagonal(), identity(4)),
               dense_kron(product(diagonal, diagonal), S), least_flops(3 * 4, {{4, 4}}) + 3 * 16 + 4);
    const auto P = otimes::stride_permutation(6, 2);
    const operators permuted = kron(P, S) * kron(P.transpose(), S);
    check_rule(rewrite::permutation_product, permuted, dense_kron(matrix::Identity(6, 6), product(S, S)),
               2 * least_flops(3 * 6, {{4, 4}}));
    // A plain product names no rule.
    CHECK(program_of(g.entries(3, 8) * K).rewritten.empty());
    CHECK(otimes::explain(g.entries(3, 8) * K).find("rewritten") == std::string::npos);
    // How a program came about does not make it another one.
    CHECK(program_of(g.entries(3, 8) * kron(kron(A), B)) == program_of(g.entries(3, 8) * K));
}

TEST_CASE("random sums and products of structured krons, exactly") {
    otimes::rewrites seen;
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
        CHECK(e.diagonal() == dense.diagonal());
        CHECK((e.rows() != e.cols() || e.trace() == dense.trace()));
        const matrix X = g.entries(g.pick(1, 3), dense.rows());
        matrix Y = X * e;
        CHECK(Y == product(X, dense));
        seen.add(program_of(X * e).rewritten);
        // Rewriting what has been rewritten changes nothing.
        const operators again = e * kron(otimes::kron_expr<residue>(), otimes::identity(e.cols()));
        if (e.is_kron() && e.cols() > 0) {
            CHECK(again.is_kron());
            CHECK(again.as_kron().factor_count() == e.as_kron().factor_count());
            CHECK(program_of(X * again) == program_of(X * e));
        }
        CHECK(program_of(X * e.transpose().transpose()) == program_of(X * e));
        const residue two(2);
        Y -= two * X * e;
        CHECK(Y == matrix(-product(X, dense)));
        const matrix Z = g.entries(dense.rows(), g.pick(1, 3));
        CHECK(matrix(e.transpose() * Z) == product(dense.transpose(), Z));
        seen.add(program_of(e.transpose() * Z).rewritten);
        CHECK(e(e.rows() - 1, e.cols() / 2) == dense(dense.rows() - 1, dense.cols() / 2));
    }
    // The random expressions meet every rule.
    for (int rule = 0; rule < otimes::rewrite_count; ++rule) {
        CAPTURE(to_string(static_cast<otimes::rewrite>(rule)));
        CHECK(seen.holds(static_cast<otimes::rewrite>(rule)));
    }
}

TEST_CASE("mixed-product: never more flops than one after the other, each in its best order") {
    int formed = 0;
    for (int n = 0; n < 300; ++n) {
        CAPTURE(n);
        generator g(static_cast<std::uint64_t>(n) + 1000);
        otimes::kron_expr<residue> K;
        otimes::kron_expr<residue> L;
        std::vector<std::pair<Index, Index>> first;
        std::vector<std::pair<Index, Index>> second;
        for (Index k = 0, count = g.pick(1, 3); k < count; ++k) {
            const Index inner = g.pick(1, 6);
            first.emplace_back(g.pick(1, 6), inner);
            second.emplace_back(inner, g.pick(1, 6));
            K = kron(K, g.entries(first.back().first, inner));
            L = kron(L, g.entries(inner, second.back().second));
        }
        const operators KL = K * L;
        CHECK(KL.is_kron());
        const matrix X = g.entries(g.pick(1, 9), K.rows());
        const matrix between = X * K;
        CHECK(flops_of(X * KL) <= least_flops(X.rows(), first) + least_flops(X.rows(), second));
        CHECK(matrix(X * KL) == matrix(between * L));
        const matrix Z = g.entries(L.cols(), g.pick(1, 9));
        std::vector<std::pair<Index, Index>> turned_first;
        std::vector<std::pair<Index, Index>> turned_second;
        for (std::size_t k = 0; k < first.size(); ++k) {
            turned_first.emplace_back(second[k].second, second[k].first);
            turned_second.emplace_back(first[k].second, first[k].first);
        }
        CHECK(flops_of(KL * Z) <= least_flops(Z.cols(), turned_first) + least_flops(Z.cols(), turned_second));
        CHECK(matrix(KL * Z) == product(K.toDenseMatrix(), matrix(L * Z)));
        formed += program_of(X * KL).rewritten.holds(otimes::rewrite::product_formed) ? 1 : 0;
    }
    CHECK(formed > 10);

    // Of eight modes one is L's alone: it grows after the others have shrunk, as it does in L. Sparse: nothing is multiplied out.
    generator g(7);
    otimes::kron_expr<residue> K;
    otimes::kron_expr<residue> L;
    std::vector<std::pair<Index, Index>> first(7, {2, 2});
    std::vector<std::pair<Index, Index>> second(7, {2, 1});
    for (int k = 0; k < 7; ++k) {
        K = kron(K, Eigen::SparseMatrix<residue>(g.entries(2, 2).sparseView()));
        L = kron(L, g.entries(2, 1));
    }
    second.emplace_back(2, 8);
    const operators eight = kron(K, otimes::identity(2)) * kron(L, g.entries(2, 8));
    CHECK(eight.is_kron());
    CHECK(flops_of(g.entries(1, 256) * eight) <= least_flops(2, first) + least_flops(1, second));

    // B C costs less to form than A B and saves more: what is multiplied out is what takes least in all, not what comes first.
    const operators A(kron(g.entries(8, 100)));
    const operators BC = kron(g.entries(100, 64)) * kron(g.entries(64, 1));
    const matrix X = g.entries(8, 8);
    CHECK(flops_of(X * (A * BC)) == 2 * (100 * 64 + 8 * 100 + 8 * 8));
    CHECK(matrix(X * (A * BC)) == matrix(matrix(X * A) * BC));
    // Both outer pairs at once, around a waist.
    const operators waist =
        kron(g.entries(30, 30)) * kron(g.entries(30, 2)) * kron(g.entries(2, 30)) * kron(g.entries(30, 30));
    CHECK(flops_of(g.entries(50, 30) * waist) == 2 * (2 * 30 * 30 * 2 + 2 * 50 * 30 * 2));
}

TEST_CASE("factors-interleaved: the least flops of all orders that keep each mode's") {
    for (int n = 0; n < 300; ++n) {
        CAPTURE(n);
        generator g(static_cast<std::uint64_t>(n) + 5000);
        std::vector<otimes::detail::mode_parts> modes;
        for (Index m = g.pick(1, 4); m-- > 0;) {
            modes.push_back({{}, g.pick(0, 1) == 0, 0});
            Index extent = g.pick(1, 6);
            for (Index k = g.pick(0, 2); k-- > 0;) {
                const Index before = extent;
                const bool diagonal = g.pick(0, 3) == 0;
                extent = diagonal ? extent : g.pick(1, 6);
                const bool turned = modes.back().from_left;
                const otimes::matrix_view view{nullptr, turned ? extent : before, turned ? before : extent, 1, 0};
                modes.back().parts.push_back(
                    diagonal ? otimes::leaf::structured(otimes::factor_kind::diagonal, view, nullptr)
                             : otimes::leaf::borrowed(view));
            }
        }
        std::vector<std::size_t> done(modes.size(), 0);
        const auto least = [&](const auto& self) -> double {
            double best = std::numeric_limits<double>::infinity();
            for (std::size_t m = 0; m < modes.size(); ++m) {
                if (done[m] < modes[m].parts.size()) {
                    const double step = otimes::detail::fibres_along(modes, 3, done, m) *
                                        otimes::detail::fibre_cost(modes[m].parts[done[m]]);
                    ++done[m];
                    best = (std::min)(best, step + self(self));
                    --done[m];
                }
            }
            return best < std::numeric_limits<double>::infinity() ? best : 0.0;
        };
        CHECK(otimes::detail::cheapest_interleaving(modes, 3).cost == doctest::Approx(least(least)));
    }
}

TEST_CASE("factors with structure: the least flops of all orders") {
    int reordered = 0;
    for (int n = 0; n < 200; ++n) {
        CAPTURE(n);
        generator g(static_cast<std::uint64_t>(n) + 3000);
        struct part {
            std::int64_t p, q;
            std::int64_t flops;  // for one fibre
        };
        std::vector<part> parts;
        otimes::kron_expr<residue> K;
        matrix dense = matrix::Constant(1, 1, residue(1));
        bool own_step = false;
        for (Index k = 0, count = g.pick(2, 4); k < count; ++k) {
            const Index kind = g.pick(0, 3);
            const Index p = g.pick(1, 5);
            const Index q = kind == 2 ? p : g.pick(1, 5);
            own_step = own_step || kind != 0;
            matrix f = g.entries(p, q);
            std::int64_t flops = 2 * p * q;
            if (kind == 0) {
                K = kron(K, matrix(f));
            } else if (kind == 1) {
                Eigen::SparseMatrix<residue> s(p, q);
                for (Index i = 0; i < p; ++i) {
                    for (Index j = 0; j < q; ++j) {
                        if (g.pick(0, 2) == 0) {
                            s.insert(i, j) = f(i, j);
                        } else {
                            f(i, j) = residue(0);
                        }
                    }
                }
                flops = 2 * s.nonZeros();
                K = kron(K, std::move(s));
            } else if (kind == 2) {
                const vector d = f.col(0);
                f = matrix::Zero(p, p);
                f.diagonal() = d;
                flops = p;
                K = kron(K, Eigen::DiagonalMatrix<residue, Eigen::Dynamic>(d));
            } else {
                const matrix u = g.entries(p, 1);
                const matrix v = g.entries(q, 1);
                f = product(u, matrix(v.transpose()));
                flops = -1;
                K = kron(K, otimes::low_rank(matrix(u), matrix(v)));
            }
            parts.push_back({p, q, flops});
            dense = dense_kron(dense, f);
        }
        const matrix X = g.entries(g.pick(1, 3), dense.rows());
        CHECK(matrix(X * K) == product(X, dense));
        if (!own_step || std::any_of(parts.begin(), parts.end(), [](const part& f) { return f.flops < 0; })) {
            continue;  // dense factors alone are the planner's, products of factors have a test of their own
        }
        std::vector<std::size_t> order(parts.size());
        for (std::size_t k = 0; k < order.size(); ++k) {
            order[k] = k;
        }
        std::int64_t least = (std::numeric_limits<std::int64_t>::max)();
        std::int64_t written = -1;
        do {
            std::int64_t total = 0;
            std::int64_t elements = X.size();
            for (const std::size_t k : order) {
                total += elements / parts[k].p * parts[k].flops;
                elements = elements / parts[k].p * parts[k].q;
            }
            least = std::min(least, total);
            written = written < 0 ? total : written;
        } while (std::next_permutation(order.begin(), order.end()));
        CHECK(flops_of(X * K) == least);
        reordered += least < written ? 1 : 0;
    }
    CHECK(reordered > 20);
}

TEST_CASE("kron-identity-split: kron(A, I) * kron(I, B) is kron(A, B), and rewriting it again changes nothing") {
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

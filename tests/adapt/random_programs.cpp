// SPDX-License-Identifier: MIT
// Random programs on the CPU against dense matrices multiplied by Eigen: factors with every structure, transposes, sums and products of
// operators, strides, forms of assignment. Elements are small integers, so that every order of summation is exact.
// OTIMES_TEST_SEED (else 1) draws others; the long tests draw more.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/long_tests.hpp"

namespace {

using Eigen::Index;
using otimes::kron;

template <class Scalar>
class random_program {
public:
    using dense = adapt::matrix<Scalar>;
    using column = adapt::vector<Scalar>;
    using one_kron = std::pair<otimes::kron_expr<Scalar>, dense>;  // and what it is
    using strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    using operators = std::pair<otimes::sum_expr<Scalar>, dense>;

    explicit random_program(std::uint64_t seed) : random_(seed) {}

    void run() {
        const Index p = extent(), q = one_of(2) ? p : extent(), others = one_of(10) ? 0 : pick(1, 9);
        if (one_of(2)) {
            multiply(kron_of(p, q), others);
        } else {
            multiply(operators_of(p, q, 0), others);
        }
    }

private:
    Index pick(Index low, Index high) { return random_.integer(low, high); }
    bool one_of(Index n) { return pick(1, n) == 1; }
    Index extent() {
        static constexpr Index extents[] = {1, 2, 3, 4, 6, 6, 8, 12, 12, 16, 20, 24, 30, 36};
        return extents[pick(0, 13)];
    }
    Scalar value() {
        if constexpr (support::is_complex<Scalar>) {
            using real = support::real_t<Scalar>;
            return {static_cast<real>(pick(-2, 2)), static_cast<real>(pick(-2, 2))};
        } else {
            return static_cast<Scalar>(pick(-3, 3));
        }
    }
    dense values(Index rows, Index cols) {
        dense m(rows, cols);
        for (Index i = 0; i < m.size(); ++i) m.data()[i] = value();
        return m;
    }
    template <class Matrix>
    Matrix& keep(Matrix m) {  // krons borrow
        auto kept = std::make_shared<Matrix>(std::move(m));
        kept_.push_back(kept);
        return *kept;
    }
    static dense dense_kron(const dense& a, const dense& b) {
        dense c(a.rows() * b.rows(), a.cols() * b.cols());
        for (Index i = 0; i < c.rows(); ++i)
            for (Index j = 0; j < c.cols(); ++j)
                c(i, j) = a(i / b.rows(), j / b.cols()) * b(i % b.rows(), j % b.cols());
        return c;
    }

    one_kron factor(Index p, Index q) {
        const Index kind = pick(0, p == q ? 14 : 6);
        text_ += std::to_string(kind) + " ";
        const auto one = dense::Ones(1, 1);  // gives factors without a scalar type theirs
        switch (kind) {
            case 0: {
                const auto& a = keep(values(p, q));
                return {kron(a), a};
            }
            case 1: {
                const auto& a = keep(adapt::row_major<Scalar>(values(p, q)));
                return {kron(a), dense(a)};
            }
            case 2: {
                const auto& a = keep(values(q, p));
                return {kron(a.transpose()), dense(a.transpose())};
            }
            case 3: {
                const auto& a = keep(values(q, p));
                return {kron(a.adjoint()), dense(a.adjoint())};
            }
            case 4: {
                const Index inner = pick(1, 3), outer = p * inner + pick(0, 3);
                const auto& block = keep(values(outer * q, 1));
                const Eigen::Map<const dense, 0, strides> a(block.data(), p, q, strides(outer, inner));
                return {kron(a), dense(a)};
            }
            case 5: {
                const auto& a = keep(Eigen::SparseMatrix<Scalar>(values(p, q).sparseView()));
                return {kron(a), dense(a)};
            }
            case 6: {
                const auto& u = keep(values(p, 2));
                const auto& v = keep(values(q, 2));
                return {kron(otimes::low_rank(u, v)), dense(u * v.transpose())};
            }
            case 7: return {kron(otimes::identity(p), one), dense(dense::Identity(p, p))};
            case 8: {
                const auto& d = keep(column(values(p, 1)));
                return {kron(d.asDiagonal()), dense(d.asDiagonal())};
            }
            case 9: {
                Eigen::PermutationMatrix<Eigen::Dynamic> turn(p);
                turn.setIdentity();
                for (Index i = 0; i < p; ++i) std::swap(turn.indices()[i], turn.indices()[pick(0, p - 1)]);
                return {kron(keep(turn), one), dense(turn.toDenseMatrix().template cast<Scalar>())};
            }
            case 10: {
                const auto& a = keep(values(p, p));
                return {kron(a.template triangularView<Eigen::Lower>()),
                        dense(a.template triangularView<Eigen::Lower>())};
            }
            case 11: {
                const auto& a = keep(values(p, p));
                return {kron(a.template triangularView<Eigen::UnitUpper>()),
                        dense(a.template triangularView<Eigen::UnitUpper>())};
            }
            case 12: {
                const auto& a = keep(values(p, p));
                const dense lower = a.template selfadjointView<Eigen::Lower>();
                dense whole = lower;
                whole.diagonal() = lower.diagonal().real().template cast<Scalar>();
                return {kron(a.template selfadjointView<Eigen::Lower>()), whole};
            }
            default: {
                const column c = values(p, 1);
                column r = values(p, 1);
                r(0) = c(0);
                dense m(p, p);
                for (Index i = 0; i < p; ++i)
                    for (Index j = 0; j < p; ++j)
                        m(i, j) = kind == 13 ? c((i - j + p) % p) : i >= j ? c(i - j) : r(j - i);
                return {kind == 13 ? kron(otimes::circulant(c)) : kron(otimes::toeplitz(c, r)), m};
            }
        }
    }

    // n as a product of `count` extents.
    std::vector<Index> cut(Index n, std::size_t count) {
        std::vector<Index> extents(count, 1);
        for (const Index prime : {2, 3, 5}) {
            for (; n % prime == 0; n /= prime)
                extents[static_cast<std::size_t>(pick(0, static_cast<Index>(count) - 1))] *= prime;
        }
        return extents;
    }
    // p x q. @param nested a factor of another kron
    one_kron kron_of(Index p, Index q, bool nested = false) {
        const bool transposed = !nested && one_of(4), conjugated = one_of(4);
        if (transposed) std::swap(p, q);
        const auto count = static_cast<std::size_t>(pick(1, 4));
        const std::vector<Index> rows = cut(p, count);
        const std::vector<Index> cols = p == q && !one_of(4) ? rows : cut(q, count);
        text_ += "(";
        one_kron all{kron(dense::Ones(1, 1)), dense::Ones(1, 1)};
        for (std::size_t i = 0; i < count; ++i) {
            const one_kron next = !nested && one_of(6) ? kron_of(rows[i], cols[i], true) : factor(rows[i], cols[i]);
            all.first = i == 0 ? kron(next.first) : kron(all.first, next.first);
            all.second = dense_kron(all.second, next.second);
        }
        const Scalar amount = one_of(3) ? value() : Scalar(1);
        all = {all.first * amount, all.second * amount};
        if (transposed) all = {all.first.transpose(), dense(all.second.transpose())};
        if (conjugated) all = {all.first.conjugate(), dense(all.second.conjugate())};
        text_ += std::string(")") + (transposed ? "^T" : "") + (conjugated ? "^*" : "") + " ";
        return all;
    }
    operators operators_of(Index p, Index q, int depth) {
        const Index kind = depth < 2 ? pick(p == q ? 0 : 2, 8) : 8;
        text_ += "[" + std::to_string(kind) + " ";
        const auto inner = [&](Index rows, Index cols) { return operators_of(rows, cols, depth + 1); };
        operators result;
        switch (kind) {
            case 0: {
                const auto a = inner(p, p);
                const Scalar shift = value();
                result = {a.first + shift * otimes::identity(), a.second + shift * dense::Identity(p, p)};
                break;
            }
            case 1: {
                const auto a = inner(p, p);
                const auto& d = keep(column(values(p, 1)));
                result = {a.first + d.asDiagonal(), a.second + dense(d.asDiagonal())};
                break;
            }
            case 2:
            case 3: {
                const auto a = inner(p, q), b = inner(p, q);
                result = {a.first + b.first, a.second + b.second};
                break;
            }
            case 4: {
                const auto a = inner(p, q);
                const auto b = kron_of(p, q);
                result = {a.first - b.first, a.second - b.second};
                break;
            }
            case 5: {
                const Index between = extent();
                const auto a = inner(p, between), b = inner(between, q);
                result = {a.first * b.first, a.second * b.second};
                break;
            }
            case 6: {
                const auto a = inner(q, p);
                const Scalar amount = value();
                result = {amount * a.first.adjoint(), amount * dense(a.second.adjoint())};
                break;
            }
            case 7: {
                const auto a = inner(p, q);
                const auto& w = keep(Eigen::SparseMatrix<Scalar>(values(p, q).sparseView()));
                result = {a.first + w, a.second + dense(w)};
                break;
            }
            default: {
                const auto k = kron_of(p, q);
                result = {k.first, k.second};
            }
        }
        text_ += "]";
        return result;
    }

    using strided = Eigen::Map<dense, 0, strides>;
    // A matrix of any strides in a block that is poisoned around it.
    strided place(const dense& m) {
        const Index inner = pick(1, 2), gap = pick(0, 2);
        const bool by_rows = one_of(2);
        const Index outer = (by_rows ? m.cols() : m.rows()) * inner + gap;
        auto& block = keep(adapt::poisoned<dense>(outer * std::max<Index>(by_rows ? m.rows() : m.cols(), 1) + 8, 1));
        strided to(block.data() + pick(0, 7), m.rows(), m.cols(),
                   by_rows ? strides(inner, outer) : strides(outer, inner));
        to = m;
        text_ += by_rows ? " rows" : " cols";
        return to;
    }

    template <class Operator>
    void multiply(const std::pair<Operator, dense>& k, Index others) {
        if (one_of(2)) {
            text_ += "K * X";
            const dense x_value = values(k.second.cols(), others);
            const strided x = place(x_value);
            assign([&](const auto& use) { use(k.first * x, k.second * x_value); });
        } else {
            text_ += "X * K";
            const dense x_value = values(others, k.second.rows());
            const strided x = place(x_value);
            assign([&](const auto& use) { use(x * k.first, x_value * k.second); });
        }
        if (k.second.size() > 0 && one_of(3)) {
            CAPTURE(text_);
            const Index i = pick(0, k.second.rows() - 1), j = pick(0, k.second.cols() - 1);
            CHECK(k.first(i, j) == k.second(i, j));
            CHECK(dense(k.first.toDenseMatrix()) == k.second);
            if (k.second.rows() == k.second.cols()) CHECK(k.first.trace() == k.second.trace());
        }
    }
    template <class Expression>
    void assign(const Expression& expression) {
        expression([&](const auto& product, const dense& is) {
            const Index form = pick(0, 7);
            const dense before = values(is.rows(), is.cols());
            const Scalar amount = value();
            const bool reads = form == 1 || form == 2 || form == 4;
            strided y = place(reads ? before : adapt::poisoned<dense>(is.rows(), is.cols()));
            dense want = is;
            switch (form) {
                case 0: y = product; break;
                case 1:
                    y += product;
                    want = before + is;
                    break;
                case 2:
                    y -= product;
                    want = before - is;
                    break;
                case 3:
                    y.noalias() = amount * product;
                    want = amount * is;
                    break;
                case 4:
                    y.noalias() += product * amount;
                    want = before + amount * is;
                    break;
                case 5:
                    y = before + product;
                    want = before + is;
                    break;
                case 6:
                    y = product - amount * before;
                    want = is - amount * before;
                    break;
                default: y = product.transpose().eval().transpose(); break;
            }
            text_ += " form " + std::to_string(form);
            CAPTURE(text_);
            CHECK(dense(y) == want);
        });
    }

    support::random_stream random_;
    std::string text_;
    std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace

TEST_CASE_TEMPLATE("random programs", Scalar, OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const char* const given = std::getenv("OTIMES_TEST_SEED");
    const std::uint64_t first = (given != nullptr ? std::strtoull(given, nullptr, 10) : 1) * 1'000'000;
    const std::uint64_t count = support::long_tests() ? 20'000 : 500;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        CAPTURE(seed);
        random_program<Scalar>(seed).run();
    }
}

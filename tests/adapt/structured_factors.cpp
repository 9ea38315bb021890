// SPDX-License-Identifier: MIT
// Factors with structure: values against the dense matrix on both sides and in both orders, and what they cost in the plan.
#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::kron;

namespace {

// K against the dense matrix `want`.
template <class Scalar, class Kron, class Dense>
void check(const Kron& K, const Dense& want) {
    const matrix<Scalar> k = K.toDenseMatrix();
    CHECK(support::close(k, want, 8));
    const auto length = static_cast<std::size_t>(K.rows() + K.cols());
    const auto X = random<matrix<Scalar>>(5, K.rows(), 91);
    const row_major<Scalar> R = X;
    const auto xk = times(X, k);
    auto Y = poisoned<matrix<Scalar>>(5, K.cols());
    Y = X * K;
    CHECK(support::close(Y, xk, length));
    auto W = poisoned<row_major<Scalar>>(5, K.cols());
    W.noalias() = R * K;
    CHECK(support::close(W, xk, length));
    W.noalias() += 2 * R * K;
    CHECK(support::close(W, scaled(3.0, xk), length));
    const matrix<Scalar> T = K.transpose() * X.transpose();
    CHECK(support::close(T, oracle::transpose(xk), length));
    const matrix<Scalar> A = K.adjoint() * X.adjoint();
    CHECK(support::close(A, oracle::adjoint(xk), length));
    const vector<Scalar> v = random<vector<Scalar>>(K.cols(), 1, 92);
    const vector<Scalar> kv = K * v;
    CHECK(support::close(kv, times(k, matrix<Scalar>(v)), length));
    matrix<Scalar> reference;
    otimes::on(otimes::reference(), reference) = X * K;
    CHECK(support::close(reference, xk, length));
    for (Index i = 0; i < K.rows(); i += 3) {
        for (Index j = 0; j < K.cols(); j += 2) {
            CHECK(std::abs(K(i, j) - k(i, j)) < 1e-12);
        }
    }
}

// The self-adjoint matrix of which a triangle of `m` is one half: as Eigen multiplies by it, with the real part of the diagonal.
template <unsigned int UpLo, class Matrix>
Matrix self_adjoint(const Matrix& m) {
    return m.template selfadjointView<UpLo>() * Matrix::Identity(m.rows(), m.cols());
}

template <class Scalar>
matrix<Scalar> sparse_pattern(Index rows, Index cols) {
    auto m = random<matrix<Scalar>>(rows, cols, 7);
    for (Index k = 0; k < m.size(); ++k) {
        if (k % 3 != 1) {
            m.data()[k] = Scalar(0);
        }
    }
    return m;
}

template <class Expression>
otimes::plan plan_of(const Expression& e) {
    return otimes::make_plan(e, {.placement = otimes::placement::cpu, .threads = 1});
}

}  // namespace

TEST_CASE("a kron of permutations and identities takes the scalar of what stands beside it") {
    using Scalar = std::complex<float>;
    Eigen::PermutationMatrix<Eigen::Dynamic> P(4), Q(3);
    P.indices() << 2, 0, 3, 1;
    Q.indices() << 1, 2, 0;
    const matrix<Scalar> p = P.toDenseMatrix().cast<Scalar>(), q = Q.toDenseMatrix().cast<Scalar>();
    const auto A = random<matrix<Scalar>>(4, 4, 1);
    const auto B = random<matrix<Scalar>>(3, 3, 2);
    const auto formed = [](const auto& product) {
        matrix<Scalar> m(static_cast<Index>(product.rows()), static_cast<Index>(product.cols()));
        for (Index k = 0; k < m.size(); ++k) {
            m(k / m.cols(), k % m.cols()) = static_cast<Scalar>(
                product(static_cast<std::size_t>(k / m.cols()), static_cast<std::size_t>(k % m.cols())));
        }
        return m;
    };
    const matrix<Scalar> pq = formed(dense_kron(p, q)), ab = formed(dense_kron(A, B));
    const auto X = random<matrix<Scalar>>(5, 12, 3);
    const auto K = kron(P, Q);
    const auto holds = [&](const matrix<Scalar>& y, const auto& want) { CHECK(support::close(y, want, 24)); };
    holds(X * K, times(X, pq));
    holds(K.transpose() * X.transpose(), oracle::transpose(times(X, pq)));
    holds(X * (-K / 2), scaled(-0.5, times(X, pq)));
    holds(X * kron(kron(P, Q.transpose())), times(X, formed(dense_kron(p, matrix<Scalar>(q.transpose())))));
    holds(X * kron(2 * kron(P), B), scaled(2.0, times(X, formed(dense_kron(p, B)))));
    holds(X * (kron(A, B) * K), times(formed(times(X, ab)), pq));
    holds(X * (kron(A, B) - K.adjoint()), times(X, matrix<Scalar>(ab - pq.transpose())));
    const auto Z = random<matrix<Scalar>>(3, 4, 5);
    const vector<Scalar> z = Eigen::Map<const vector<Scalar>>(Z.data(), 12);
    holds((K * otimes::vec(Z)).toVector(), times(pq, matrix<Scalar>(z)));
    const matrix<Scalar> w = sparse_pattern<Scalar>(12, 12);
    const Eigen::SparseMatrix<Scalar> W = w.sparseView();
    holds(W * K * W.transpose() * z, times(w, formed(times(pq, formed(times(matrix<Scalar>(w.transpose()), z))))));
    holds(kron(std::vector{P, P}) * formed(dense_kron(A, A)),
          formed(dense_kron(matrix<Scalar>(p * A), matrix<Scalar>(p * A))));
    holds(otimes::kron_power(Q, 2) * formed(dense_kron(B, B)),
          formed(dense_kron(matrix<Scalar>(q * B), matrix<Scalar>(q * B))));
}

TEST_CASE_TEMPLATE("structured factors have the values of their dense matrices", Scalar,
                   OTIMES_REAL_AND_COMPLEX(std::complex<double>)) {
    const auto A = random<matrix<Scalar>>(3, 2, 1);
    const auto B = random<matrix<Scalar>>(2, 4, 2);
    const auto d = random<vector<Scalar>>(5, 1, 3);
    const matrix<Scalar> D = matrix<Scalar>(d.asDiagonal());
    const auto S = random<matrix<Scalar>>(4, 4, 4);
    SUBCASE("diagonal") {
        check<Scalar>(kron(A, d.asDiagonal(), B), dense_kron(A, D, B));
        check<Scalar>(kron(d.asDiagonal()), oracle::from(D));
        const Eigen::DiagonalMatrix<Scalar, Eigen::Dynamic> M(d);
        check<Scalar>(kron(M, A, M), dense_kron(D, A, D));
        check<Scalar>(kron(Eigen::DiagonalMatrix<Scalar, Eigen::Dynamic>(d), A), dense_kron(D, A));
        check<Scalar>(kron(S.col(1).asDiagonal(), A), dense_kron(matrix<Scalar>(S.col(1).asDiagonal()), A));
        check<Scalar>(kron(A, S.row(2).transpose().asDiagonal()),
                      dense_kron(A, matrix<Scalar>(S.row(2).transpose().asDiagonal())));
    }
    SUBCASE("permutation") {
        Eigen::PermutationMatrix<Eigen::Dynamic> P(4);
        P.indices() << 2, 0, 3, 1;
        const matrix_d p = P.toDenseMatrix().cast<double>();
        check<Scalar>(kron(A, P, B), dense_kron(A, p, B));
        check<Scalar>(kron(P.transpose(), B), dense_kron(matrix_d(p.transpose()), B));
        check<Scalar>(kron(B, P.inverse()), dense_kron(B, matrix_d(p.transpose())));
        check<Scalar>(kron(otimes::stride_permutation(6, 2), A),
                      dense_kron(matrix_d(otimes::stride_permutation(6, 2).toDenseMatrix().cast<double>()), A));
        check<Scalar>((kron(A, P) * kron(B, P)).as_kron(), dense_kron(matrix<Scalar>(A * B), matrix_d(p * p)));
        check<Scalar>((kron(B, P) * kron(S, P).transpose()).as_kron(),
                      dense_kron(matrix<Scalar>(B * S.transpose()), matrix_d(matrix_d::Identity(4, 4))));
    }
    SUBCASE("sparse") {
        const auto s = sparse_pattern<Scalar>(4, 6);
        Eigen::SparseMatrix<Scalar> C = s.sparseView();
        const Eigen::SparseMatrix<Scalar, Eigen::RowMajor> R = C;
        check<Scalar>(kron(A, C, B), dense_kron(A, s, B));
        check<Scalar>(kron(R, B), dense_kron(s, B));
        check<Scalar>(kron(B, C.transpose()), dense_kron(B, matrix<Scalar>(s.transpose())));
        check<Scalar>(kron(B, Eigen::SparseMatrix<Scalar>(C)), dense_kron(B, s));
        C.uncompress();
        check<Scalar>(kron(C, A), dense_kron(s, A));
        const auto K = kron(C, A);
        C.coeffRef(1, 1) = Scalar(5);  // borrowed: later changes are seen
        matrix<Scalar> changed = s;
        changed(1, 1) = Scalar(5);
        check<Scalar>(K, dense_kron(changed, A));
    }
    SUBCASE("Toeplitz, circulant, low rank") {
        const auto c = random<vector<Scalar>>(4, 1, 5);
        const auto r = random<vector<Scalar>>(3, 1, 6);
        matrix<Scalar> t(4, 3);
        for (Index i = 0; i < 4; ++i) {
            for (Index j = 0; j < 3; ++j) {
                t(i, j) = i >= j ? c(i - j) : r(j - i);
            }
        }
        check<Scalar>(kron(otimes::toeplitz(c, r), A), dense_kron(t, A));
        matrix<Scalar> z(4, 4);
        for (Index i = 0; i < 4; ++i) {
            for (Index j = 0; j < 4; ++j) {
                z(i, j) = c((i - j + 4) % 4);
            }
        }
        check<Scalar>(kron(A, otimes::circulant(c)), dense_kron(A, z));
        const auto U = random<matrix<Scalar>>(5, 2, 8);
        const auto V = random<matrix<Scalar>>(6, 2, 9);
        check<Scalar>(kron(A, otimes::low_rank(U, V)), dense_kron(A, matrix<Scalar>(U * V.transpose())));
        check<Scalar>(kron(A, otimes::low_rank(matrix<Scalar>(U), matrix<Scalar>(2 * V))),
                      dense_kron(A, matrix<Scalar>(Scalar(2) * U * V.transpose())));
        CHECK_THROWS_AS(static_cast<void>(otimes::low_rank(U, V.transpose())), otimes::shape_error);
    }
    SUBCASE("triangular and self-adjoint views") {
        check<Scalar>(kron(S.template triangularView<Eigen::Lower>(), A),
                      dense_kron(matrix<Scalar>(S.template triangularView<Eigen::Lower>()), A));
        check<Scalar>(kron(A, S.template selfadjointView<Eigen::Upper>()),
                      dense_kron(A, self_adjoint<Eigen::Upper>(S)));
        check<Scalar>(kron(S.template triangularView<Eigen::StrictlyUpper>(), A),
                      dense_kron(matrix<Scalar>(S.template triangularView<Eigen::StrictlyUpper>()), A));
        // Large enough for a step of half the flops, wider than high and the other way round.
        const auto T = random<matrix<Scalar>>(37, 41, 11);
        check<Scalar>(kron(A, T.template triangularView<Eigen::Upper>()),
                      dense_kron(A, matrix<Scalar>(T.template triangularView<Eigen::Upper>())));
        check<Scalar>(kron(T.transpose().template triangularView<Eigen::UnitLower>(), A),
                      dense_kron(matrix<Scalar>(T.transpose().template triangularView<Eigen::UnitLower>()), A));
        check<Scalar>(kron(T.template triangularView<Eigen::Lower>()),
                      oracle::from(matrix<Scalar>(T.template triangularView<Eigen::Lower>())));
        // Borrowed: later changes are seen; the other triangle is not read.
        auto L = random<matrix<Scalar>>(33, 33, 12);
        const auto K = kron(A, L.template triangularView<Eigen::Lower>());
        L(5, 2) = Scalar(7);
        L.template triangularView<Eigen::StrictlyUpper>().setConstant(
            std::numeric_limits<real_of<Scalar>>::quiet_NaN());
        check<Scalar>(K, dense_kron(A, matrix<Scalar>(L.template triangularView<Eigen::Lower>())));
        auto H = random<matrix<Scalar>>(5, 5, 13);
        const auto M = kron(A, H.template selfadjointView<Eigen::Lower>());
        H(3, 1) = Scalar(-4);
        H.template triangularView<Eigen::StrictlyUpper>().setConstant(
            std::numeric_limits<real_of<Scalar>>::quiet_NaN());
        check<Scalar>(M, dense_kron(A, self_adjoint<Eigen::Lower>(H)));
        const matrix<Scalar> formed = M.toDenseMatrix();
        CHECK(distance(kron(H.template selfadjointView<Eigen::Lower>()).adjoint().toDenseMatrix(),
                       self_adjoint<Eigen::Lower>(H)) == 0);
        CHECK_THROWS_WITH_AS((void)kron(formed.template selfadjointView<Eigen::Lower>()),
                             "otimes: kron: a self-adjoint view of a matrix that is 15 x 10; it must be square.",
                             otimes::shape_error);
    }
    SUBCASE("a function") {
        const auto F = random<matrix<Scalar>>(3, 4, 10);
        int calls = 0;
        const auto free = otimes::matrix_free<Scalar>(3, 4, [F, &calls](bool transposed, const auto& in, auto& out) {
            ++calls;
            if (transposed) {
                out.noalias() = F.transpose() * in;
            } else {
                out.noalias() = F * in;
            }
        });
        check<Scalar>(kron(A, free, B), dense_kron(A, F, B));
        check<Scalar>(kron(free), oracle::from(F));
        CHECK(calls > 0);
    }
}

TEST_CASE("real structured factors in a complex kron") {
    using cd = std::complex<double>;
    const auto C = random<matrix<cd>>(2, 3, 1);
    const auto d = random<vector_d>(4, 1, 2);
    const matrix_d s = sparse_pattern<double>(3, 5);
    const Eigen::SparseMatrix<double> S = s.sparseView();
    const matrix_d F = random(2, 2, 3);
    const auto free = otimes::matrix_free<double>(2, 2, [F](bool transposed, const auto& in, auto& out) {
        if (transposed) {
            out.noalias() = F.transpose() * in;
        } else {
            out.noalias() = F * in;
        }
    });
    check<cd>(kron(C, d.asDiagonal(), S), dense_kron(C, matrix_d(d.asDiagonal()), s));
    check<cd>(cd(1, 0) * kron(d.asDiagonal(), S, free), dense_kron(matrix<cd>(matrix_d(d.asDiagonal())), s, F));
    check<cd>(kron(C, free), dense_kron(C, F));
}

TEST_CASE("a factor's own function may evaluate products, in the middle of a product") {
    const auto F = random(8, 2, 4), G = random(3, 12, 5), A = random(5, 5, 6), B = random(4, 3, 7),
               X = random(7, 480, 8);
    const matrix_d k = kron(F, G).toDenseMatrix();  // 24 x 24
    const auto large = random(200, 480, 9);
    int calls = 0;
    const auto inner = otimes::matrix_free<double>(24, 24, [&](bool transposed, const auto& in, auto& out) {
        ++calls;
        const matrix_d other = large * kron(A, k, B);  // which needs more workspace than the product outside
        CHECK(other.cols() == 360);
        if (transposed) {
            out = kron(F, G).transpose() * in;
        } else {
            out = kron(F, G) * in;
        }
    });
    const auto want = times(X, dense_kron(A, k, B));
    auto Y = poisoned(7, 360);
    for (int again = 0; again < 3; ++again) {
        Y = X * kron(A, inner, B);
        CHECK(support::close(Y, want, 480));
        Y = 2 * Y - X * kron(A, inner, B);
        CHECK(support::close(Y, want, 1440));
        const matrix_d Z = kron(A, inner, B).transpose() * X.transpose();
        CHECK(support::close(matrix_d(Z.transpose()), want, 480));
    }
    CHECK(calls > 0);
}

TEST_CASE("toDenseMatrix() without the memory forms nothing before it says so") {
    int calls = 0;
    const auto free = otimes::matrix_free<double>(2, 2, [&calls](bool, const auto& in, auto& out) {
        ++calls;
        out = in;
    });
    const auto K = kron(free, otimes::identity(std::int64_t(1) << 30));  // 2^62 elements
    CHECK_THROWS_AS(static_cast<void>(K.toDenseMatrix()), std::bad_alloc);
    CHECK(calls == 0);
    CHECK(kron(free, otimes::identity(2)).toDenseMatrix() == matrix_d::Identity(4, 4));
    CHECK(calls > 0);
}

TEST_CASE("what structured factors cost in the plan") {
    const Index m = 7;
    const matrix_d A = random(3, 2, 1);
    const auto d = random<vector_d>(5, 1, 2);
    const matrix_d X = random(m, 15, 3);
    SUBCASE("a diagonal: one multiplication per element") {
        const auto p = plan_of(X * kron(A, d.asDiagonal()));
        CHECK(p.flops == 2 * m * 5 * 3 * 2 + m * 10);  // the cheaper order: A first
        CHECK(p.bytes == 8 * (m * 15 + m * 10 + 6 + 5));
    }
    SUBCASE("a permutation and identities: no flops") {
        Eigen::PermutationMatrix<Eigen::Dynamic> P(5);
        P.setIdentity();
        const auto p = plan_of(X * kron(otimes::identity(3), P));
        CHECK(p.flops == 0);
        CHECK(p.bytes == 8 * (m * 15 + m * 15) + 4 * 5);
        CHECK(plan_of(X * kron(A, P)).flops == plan_of(X * kron(A, otimes::identity(5))).flops);
    }
    SUBCASE("sparse: two flops per stored element and fibre") {
        const matrix_d s = sparse_pattern<double>(5, 4);
        const Eigen::SparseMatrix<double> S = s.sparseView();
        const auto p = plan_of(X * kron(otimes::identity(3), S));
        CHECK(p.flops == 2 * S.nonZeros() * m * 3);
        CHECK(p.bytes == 8 * (m * 15 + m * 12) + (8 + 4) * S.nonZeros());
    }
    SUBCASE("triangular: half the flops and half the bytes, from order 32 on") {
        const matrix_d L = random(40, 40, 6);
        const matrix_d Z = random(m, 120, 7);
        const auto p = plan_of(Z * kron(otimes::identity(3), L.triangularView<Eigen::Lower>()));
        CHECK(p.flops == 2 * m * 3 * (40 * 41 / 2));
        CHECK(p.bytes == 8 * (2 * m * 120 + 40 * 41 / 2));
        const auto unit = plan_of(Z * kron(otimes::identity(3), L.transpose().triangularView<Eigen::UnitLower>()));
        CHECK(unit.flops == 2 * m * 3 * (40 * 39 / 2));
        CHECK(unit.bytes == 8 * (2 * m * 120 + 40 * 39 / 2));
        CHECK(plan_of(X * kron(A, random(5, 5, 8).eval().triangularView<Eigen::Lower>())).flops ==
              plan_of(X * kron(A, random(5, 5, 8))).flops);
    }
    SUBCASE("self-adjoint: the flops of a dense one, half the bytes") {
        const matrix_d H = random(5, 5, 6);
        const auto p = plan_of(X * kron(otimes::identity(3), H.selfadjointView<Eigen::Lower>()));
        CHECK(p.flops == 2 * m * 3 * 25);
        CHECK(p.bytes == 8 * (2 * m * 15 + 15));
    }
    SUBCASE("low rank: two thin products") {
        const matrix_d U = random(5, 1, 4), V = random(5, 1, 5);
        CHECK(plan_of(X * kron(otimes::identity(3), otimes::low_rank(U, V))).flops == 2 * m * 3 * (5 + 5));
        CHECK(plan_of(X * kron(otimes::identity(3), matrix_d(U * V.transpose()))).flops == 2 * m * 3 * 25);
    }
    SUBCASE("Toeplitz: the storage of one vector") {
        const auto c = random<vector_d>(5, 1, 6);
        const auto K = kron(otimes::identity(3), otimes::circulant(c));
        CHECK(plan_of(X * K).flops == 2 * m * 3 * 25);
    }
}

TEST_CASE("toeplitz and circulant take rows and columns of any type, and no other matrix") {
    const matrix_d M = random(2, 2, 1), column = random(3, 1, 2), row = random(1, 4, 3);
    const vector_d c = column, r = row.transpose();
    const matrix_d want = kron(otimes::toeplitz(c, r)).toDenseMatrix();
    CHECK(kron(otimes::toeplitz(column, row)).toDenseMatrix() == want);
    CHECK(kron(otimes::toeplitz(column.transpose(), row.row(0))).toDenseMatrix() == want);
    CHECK(kron(otimes::circulant(row)).toDenseMatrix() == kron(otimes::circulant(r)).toDenseMatrix());
    CHECK(otimes::circulant(vector_d(0)).rows() == 0);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::toeplitz(c, M)),
                         "otimes: toeplitz(column, row): row is 2 x 2; it must be a vector, one row or one column.",
                         otimes::shape_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::toeplitz(M, r)),
                         "otimes: toeplitz(column, row): column is 2 x 2; it must be a vector, one row or one column.",
                         otimes::shape_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(otimes::circulant(M)),
                         "otimes: circulant(column): column is 2 x 2; it must be a vector, one row or one column.",
                         otimes::shape_error);
}

TEST_CASE("sparse vectors are factors") {
    Eigen::SparseVector<double> s(4);
    s.coeffRef(1) = 3;
    s.coeffRef(2) = -1;
    const matrix_d B = random(2, 3, 2), column(s);
    CHECK(kron(s, B).toDenseMatrix() == kron(column, B).toDenseMatrix());
    const matrix_d X = random(3, 8, 1), y = X * kron(s, B), want = X * kron(column, B);
    CHECK(support::close(y, oracle::from(want), 10));
    CHECK(kron(s.transpose(), B).toDenseMatrix() == kron(column.transpose(), B).toDenseMatrix());
}

TEST_CASE("long permutations move single vectors from either side, wherever these lie") {
    constexpr Index n = 97 * 101;
    const auto P = otimes::stride_permutation(n, 101);
    const auto K = kron(P);
    const vector_d v = random<vector_d>(n, 1, 9), before = random<vector_d>(n, 1, 10);
    vector_d to(n), from(n);  // P v, and P^T v
    for (Index i = 0; i < n; ++i) {
        to(P.indices()(i)) = v(i);
        from(i) = v(P.indices()(i));
    }
    vector_d y = vector_d::Constant(n, std::numeric_limits<double>::quiet_NaN());
    y = K * v;
    CHECK(y == to);
    y.setConstant(std::numeric_limits<double>::quiet_NaN());
    y.transpose() = v.transpose() * K;
    CHECK(y == from);
    y.setConstant(std::numeric_limits<double>::quiet_NaN());
    y = K.transpose() * v;
    CHECK(y == from);
    y = before;
    y += K.transpose() * v;
    CHECK(y == vector_d(before + from));
    y = before;
    y -= 2 * (K * v);
    CHECK(y == vector_d(before - 2 * to));
    matrix_d gaps = matrix_d::Constant(3, n, -1);
    gaps.row(1).transpose() = K.transpose() * v;
    CHECK(gaps.row(1).transpose() == from);
    CHECK((gaps.row(0).array() == -1 && gaps.row(2).array() == -1).all());
    const matrix_d rows = v.transpose().replicate(3, 1);
    const matrix_d moved = rows * kron(P);
    CHECK(moved == matrix_d(from.transpose().replicate(3, 1)));
}

TEST_CASE("temporary diagonal, sparse and permutation matrices are owned, lvalues followed") {
    vector_d d = random<vector_d>(6, 1, 3);
    Eigen::SparseMatrix<double> S(6, 6);
    S.insert(1, 2) = 3;
    S.insert(4, 4) = -2;
    S.makeCompressed();
    const Eigen::PermutationMatrix<Eigen::Dynamic> P = otimes::stride_permutation(6, 2);
    const auto make = [&] {
        return kron(Eigen::DiagonalMatrix<double, Eigen::Dynamic>(d), Eigen::SparseMatrix<double>(S),
                    Eigen::PermutationMatrix<Eigen::Dynamic>(P));
    };
    const auto K = make();
    for (int i = 0; i < 16; ++i) {  // takes what was freed
        CHECK(vector_d::Constant(6, std::numeric_limits<double>::quiet_NaN()).array().isNaN().all());
    }
    const auto want = [&] { return dense_kron(matrix_d(d.asDiagonal()), matrix_d(S), matrix_d(P)); };
    CHECK(support::close(K.toDenseMatrix(), want(), 1));
    const auto followed = kron(d.asDiagonal(), S, P);
    d(2) = 7;
    S.insert(0, 0) = 5;  // other memory
    CHECK(support::close(followed.toDenseMatrix(), want(), 1));
}

TEST_CASE("structured factors are not made dense") {
    const Index n = 2000;  // dense: 32 MB
    const auto d = random<vector_d>(n, 1, 1);
    Eigen::SparseMatrix<double> S(n, n);
    for (Index i = 0; i < n; ++i) {
        S.insert(i, (7 * i) % n) = 1.0 + static_cast<double>(i);
    }
    S.makeCompressed();
    const auto c = random<vector_d>(n, 1, 2);
    const matrix_d X = random(2, 3 * n, 3);
    Eigen::PermutationMatrix<Eigen::Dynamic> P = otimes::stride_permutation(n, 4);
    const auto free = otimes::matrix_free<double>(n, n, [&](bool, const auto& in, auto& out) { out = in; });
    const matrix_d A = random(3, 3, 4);
    const support::allocation_counter counter;
    matrix_d Y = X * kron(A, d.asDiagonal());
    Y += X * kron(A, S);
    Y += X * kron(A, P);
    Y += X * kron(A, free);
    Y += X * (kron(A, S) * kron(A, d.asDiagonal()) + kron(A, P) + 2 * otimes::identity());
    const auto seen = counter.seen();
    if (support::allocations_are_counted()) {
        // A dense factor would have 32 MB; X and Y have 96 kB each, the factors up to 36 kB, and threads keep apart by whole lines.
        CHECK(seen.largest_bytes < 4 * 8 * static_cast<std::size_t>(X.size()));
    }
}

TEST_CASE("factors in steps of their own run in the order of least flops, wherever they are written") {
    const matrix_d T = random(40, 40, 201);
    const matrix_d A = random(3, 30, 202);
    const Eigen::SparseMatrix<double> S = T.sparseView();
    const vector_d x = random<vector_d>(1200, 1, 203);
    const row_vector_d y = random<row_vector_d>(1, 120, 204);
    // A first: 40 fibres of 3 * 30, then 3 of what the other factor costs.
    const std::int64_t shrink = 2 * 40 * 3 * 30;
    const std::int64_t sparse = shrink + 2 * 3 * 1600;
    CHECK(plan_of(kron(T, A) * x).flops == sparse);
    CHECK(plan_of(kron(S, A) * x).flops == sparse);
    CHECK(plan_of(kron(A, S) * x).flops == sparse);
    const std::int64_t triangle = shrink + 2 * 3 * (40 * 41 / 2);
    CHECK(plan_of(kron(T.triangularView<Eigen::Lower>(), A) * x).flops == triangle);
    CHECK(plan_of(kron(A, T.triangularView<Eigen::Lower>()) * x).flops == triangle);
    // Here A makes y grow, so it comes last.
    const std::int64_t grow = 2 * 3 * 1600 + shrink;
    CHECK(plan_of(y * kron(A, S)).flops == grow);
    CHECK(plan_of(y * kron(S, A)).flops == grow);
    // A diagonal on the shorter side of A; a permutation does not keep dense factors apart.
    const vector_d d = random<vector_d>(40, 1, 205);
    CHECK(plan_of(kron(d.asDiagonal(), A) * x).flops == shrink + 40 * 3);
    CHECK(plan_of(y * kron(A, d.asDiagonal())).flops == shrink + 40 * 3);
    const auto P = otimes::stride_permutation(6, 2);
    const matrix_d B = random(20, 4, 206);
    CHECK(plan_of(kron(B, P, A) * random<vector_d>(4 * 6 * 30, 1, 207)).flops ==
          plan_of(kron(B, otimes::identity(6), A) * random<vector_d>(4 * 6 * 30, 1, 207)).flops);
    // A complex multiplication is three quarters of a multiply-add.
    using complex = std::complex<double>;
    const matrix<complex> Ac = random<matrix<complex>>(3, 30, 208);
    const vector<complex> dc = random<vector<complex>>(40, 1, 209);
    CHECK(plan_of(kron(dc.asDiagonal(), Ac) * random<vector<complex>>(1200, 1, 210)).flops == 4 * shrink + 6 * 40 * 3);
    check<double>(kron(S, A), dense_kron(T, A));
    check<double>(kron(A, S), dense_kron(A, T));
    check<double>(kron(B, P, A), dense_kron(B, matrix_d(P.toDenseMatrix().cast<double>()), A));
    // No order takes less: the steps are those of the factors as they stand.
    const Eigen::SparseMatrix<double> square = sparse_pattern<double>(3, 3).sparseView();
    const std::string page = otimes::explain(random(5, 12, 211) * kron(random(4, 4, 212), square));
    CHECK(page.find("rewritten") == std::string::npos);
}

TEST_CASE("the mixed product of sparse factors takes no more flops than one after the other") {
    const matrix_d a = random(5, 9, 214);  // all 45 are stored, of b three: k2 must come first
    matrix_d b = matrix_d::Zero(2, 5);
    b(0, 0) = b(0, 4) = b(1, 2) = 3;
    const Eigen::SparseMatrix<double> SA = a.sparseView();
    const Eigen::SparseMatrix<double> SB = b.sparseView();
    const auto k1 = kron(SA, otimes::identity(7), otimes::identity(2));
    const auto k2 = kron(otimes::identity(9), otimes::identity(7), SB);
    const matrix_d X = random(315, 40, 213);
    const matrix_d Z = k2 * X;
    const auto both = k1 * k2;
    REQUIRE(both.is_kron());
    CHECK(plan_of(k2 * X).flops + plan_of(k1 * Z).flops == 65520);
    CHECK(plan_of(both * X).flops <= 65520);
    CHECK(support::close(matrix_d(both * X), matrix_d(k1 * Z), 8));
}

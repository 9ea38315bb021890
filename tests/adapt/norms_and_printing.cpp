// SPDX-License-Identifier: MIT
// Norms of sums of Kronecker products, factor by factor, and products and sums as one line.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <sstream>
#include <string>

#include <Eigen/SparseCore>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::identity;
using otimes::kron;

namespace {

// The Frobenius norm of a matrix that the oracle formed.
template <class Wide>
long double norm_of(const oracle::dense<Wide>& m) {
    long double sum = 0;
    for (std::size_t i = 0; i < m.rows(); ++i) {
        for (std::size_t j = 0; j < m.cols(); ++j) {
            sum += std::norm(m(i, j));
        }
    }
    return std::sqrt(sum);
}

template <class Scalar, class Wide>
void check_norm(const otimes::sum_expr<Scalar>& s, const oracle::dense<Wide>& want) {
    const auto norm = static_cast<double>(norm_of(want));
    const double rounding = 16 * std::numeric_limits<real_of<Scalar>>::epsilon();
    CHECK(std::abs(static_cast<double>(s.norm()) - norm) <= rounding * norm);
    CHECK(std::abs(static_cast<double>(s.squaredNorm()) - norm * norm) <= rounding * norm * norm);
}

template <class Value>
std::string printed(const Value& value) {
    std::ostringstream out;
    out << value;
    return out.str();
}

}  // namespace

TEST_CASE_TEMPLATE("norms of sums of krons, factor by factor", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double, std::complex<float>)) {
    using dense = matrix<Scalar>;
    const dense A = random<dense>(2, 3, 1), B = random<dense>(5, 2, 2), C = random<dense>(3, 4, 3);
    const dense M = random<dense>(2, 3, 4), N = random<dense>(5, 2, 5), L = random<dense>(3, 4, 6);
    const Scalar two(2), half(0.5F);
    check_norm<Scalar>(
        kron(A, B, C) + two * kron(M, N, C) - half * kron(A, N, L),
        plus(plus(dense_kron(A, B, C), scaled(2.0, dense_kron(M, N, C))), scaled(-0.5, dense_kron(A, N, L))));
    // Transposes and adjoints, a single term, no overlap of the two.
    check_norm<Scalar>(kron(A, B).adjoint() + kron(A.transpose(), N.transpose()),
                       plus(dense_kron(dense(A.adjoint()), dense(B.adjoint())),
                            dense_kron(dense(A.transpose()), dense(N.transpose()))));
    check_norm<Scalar>(otimes::sum_expr<Scalar>(kron(A, B)), dense_kron(A, B));
    // Identities are cut where the others are square.
    const dense S = random<dense>(3, 3, 7), T = random<dense>(5, 5, 8), U = random<dense>(2, 2, 9);
    const dense I2 = dense::Identity(2, 2), I3 = dense::Identity(3, 3), I5 = dense::Identity(5, 5);
    const auto sum = plus(plus(dense_kron(S, I5, I2), dense_kron(I3, T, I2)), dense_kron(I3, I5, U));
    check_norm<Scalar>(otimes::kron_sum(S, T, U), sum);
    check_norm<Scalar>(otimes::kron_sum(S, T, U) + two * identity(), plus(sum, scaled(2.0, dense_kron(I3, I5, I2))));
    check_norm<Scalar>(kron(identity(15), U) - kron(S, T, U),
                       plus(dense_kron(I3, I5, U), scaled(-1.0, dense_kron(S, T, U))));
    // Terms of one matrix of few elements, beside factors that split otherwise, and an identity that cannot be cut.
    const vector<Scalar> d = random<vector<Scalar>>(30, 1, 10);
    const dense D = d.asDiagonal();
    check_norm<Scalar>(kron(S, T, U) + d.asDiagonal(), plus(dense_kron(S, T, U), dense_kron(D)));
    Eigen::SparseMatrix<Scalar> w(30, 30);
    w.insert(3, 7) = two;
    w.insert(29, 0) = Scalar(-1.5F);
    w.insert(7, 7) = half;
    check_norm<Scalar>(w - kron(S, T, U), plus(dense_kron(dense(w)), scaled(-1.0, dense_kron(S, T, U))));
    const dense R = random<dense>(3, 2, 11);
    check_norm<Scalar>(kron(A, R) + identity(), plus(dense_kron(A, R), dense_kron(dense(dense::Identity(6, 6)))));
    // Factors with structure, in equal places.
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    dense moves = dense::Zero(3, 3);
    moves(2, 0) = moves(0, 1) = moves(1, 2) = Scalar(1);
    const vector<Scalar> five = random<vector<Scalar>>(5, 1, 12);
    const dense F = five.asDiagonal(), lower = T.template triangularView<Eigen::Lower>();
    check_norm<Scalar>(
        kron(P, T) + kron(S, five.asDiagonal()) + kron(P.transpose(), T.template triangularView<Eigen::Lower>()),
        plus(plus(dense_kron(moves, T), dense_kron(S, F)), dense_kron(dense(moves.transpose()), lower)));
    const auto applied = otimes::matrix_free<Scalar>(3, 3, [&S](bool transposed, const auto& in, auto& out) {
        out.noalias() = (transposed ? dense(S.transpose()) : S) * in;
    });
    check_norm<Scalar>(
        kron(applied, T) + kron(P, T) - kron(applied, I5).transpose(),
        plus(plus(dense_kron(S, T), dense_kron(moves, T)), scaled(-1.0, dense_kron(dense(S.transpose()), I5))));
}

TEST_CASE_TEMPLATE("norms of sums with factors of 1 x 1, wherever they stand", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double, std::complex<float>)) {
    using dense = matrix<Scalar>;
    const dense o = random<dense>(1, 1, 1), p = random<dense>(1, 1, 2), B = random<dense>(3, 3, 3),
                C = random<dense>(2, 2, 4), R = random<dense>(2, 3, 5), Q = random<dense>(2, 3, 6);
    const dense one = dense::Identity(1, 1), I2 = dense::Identity(2, 2), I3 = dense::Identity(3, 3);
    const Scalar s = o(0, 0);
    check_norm<Scalar>(otimes::kron_sum(o, B), plus(dense_kron(o, I3), dense_kron(one, B)));
    check_norm<Scalar>(kron(o, B) + kron(identity(1), B), plus(dense_kron(o, B), dense_kron(B)));
    check_norm<Scalar>(kron(o, B) + kron(B), plus(dense_kron(o, B), dense_kron(B)));
    check_norm<Scalar>(kron(B) - kron(B, o), plus(dense_kron(B), scaled(-1.0, dense_kron(B, o))));
    check_norm<Scalar>(kron(R, o, C) + kron(p, Q, C, p), plus(dense_kron(R, o, C), dense_kron(p, Q, C, p)));
    check_norm<Scalar>(kron(o, p) + kron(p), plus(dense_kron(o, p), dense_kron(p)));
    // Identities on both sides of one are one.
    check_norm<Scalar>(kron(identity(2), o, identity(3)) + kron(identity(3), C) + kron(B, p, identity(2)),
                       plus(plus(dense_kron(I2, o, I3), dense_kron(I3, C)), dense_kron(B, p, I2)));
    const vector<Scalar> u = random<vector<Scalar>>(1, 1, 7), v = random<vector<Scalar>>(1, 1, 8);
    const dense uv = u * v.transpose();
    check_norm<Scalar>(kron(otimes::low_rank(u, v), R) + kron(o, Q), plus(dense_kron(uv, R), dense_kron(o, Q)));
    CHECK(std::abs((kron(o, B) + kron(B)).norm() - std::abs(s + Scalar(1)) * B.norm()) <=
          16 * std::numeric_limits<real_of<Scalar>>::epsilon() * B.norm() * (1 + std::abs(s)));
}

TEST_CASE("norms of sums: memory, cancellation, what is refused") {
    const matrix_d A = random(40, 40, 1), B = random(40, 40, 2), C = random(40, 40, 3);
    const auto S = kron(A, B, C, A) + kron(B, C, A, C);  // 2 560 000 x 2 560 000
    const double want = S.squaredNorm();
    const auto inner = [](const matrix_d& x, const matrix_d& y) { return x.cwiseProduct(y).sum(); };
    const double by_hand = std::pow(A.norm() * B.norm() * C.norm() * A.norm(), 2) +
                           std::pow(B.norm() * C.norm() * A.norm() * C.norm(), 2) +
                           2 * inner(A, B) * inner(B, C) * inner(C, A) * inner(A, C);
    CHECK(want == doctest::Approx(by_hand).epsilon(1e-13));
    CHECK((S - kron(A, B, C, A)).norm() == doctest::Approx(kron(B, C, A, C).norm()));
    const double nothing = (kron(A, B) + kron(matrix_d(-A), B)).norm();
    CHECK(nothing >= 0);
    CHECK(nothing <= 1e-7 * kron(A, B).norm());
    CHECK(kron(A, B).squaredNorm() == doctest::Approx(std::pow(A.norm() * B.norm(), 2)));
    const matrix_d none(0, 3);
    CHECK((kron(none, A) + kron(A, none)).norm() == 0);
    const matrix_d F = random(6, 4, 4), G = random(4, 6, 5);
    CHECK_THROWS_WITH_AS(static_cast<void>((kron(F, G) + kron(G, F)).norm()),
                         "otimes: the norm of a sum of 2 terms: the factors of term 1 are 6 x 4, 4 x 6, those of term "
                         "2 4 x 6, 6 x 4. Norms of "
                         "sums go factor by factor: give all terms factors of the same shapes, or identities.",
                         otimes::unsupported_error);
    const auto product = (kron(A, B) + kron(B, A)) * (kron(A, B) - kron(B, B));
    CHECK_THROWS_WITH_AS(
        static_cast<void>(product.norm()),
        "otimes: the norm of a product of 2 operators: term 1 is a product of 2 operators, whose norm needs its "
        "elements. Write S.toDenseMatrix().norm() if there is room.",
        otimes::unsupported_error);
}

TEST_CASE_TEMPLATE("norms and traces overflow and vanish only where they have no other value", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double, std::complex<float>)) {
    using real = real_of<Scalar>;
    using dense = matrix<Scalar>;
    const real big = std::is_same_v<real, float> ? real(1e30F) : real(1e200);
    const real small = real(1) / big;
    const dense A = random<dense>(3, 3, 1), B = random<dense>(2, 4, 2), C = random<dense>(3, 2, 3);
    const dense large_a = big * A, large_b = big * B, small_a = small * A, small_b = small * B, small_c = small * C;
    const auto close = [](real got, real want) {
        return std::isfinite(got) && std::abs(got - want) <= 64 * std::numeric_limits<real>::epsilon() * want;
    };
    const auto all = [&](const otimes::kron_expr<Scalar>& got, const otimes::kron_expr<Scalar>& want) {
        CHECK(close(got.norm(), want.norm()));
        CHECK(close(got.template lpNorm<1>(), want.template lpNorm<1>()));
        CHECK(close(got.template lpNorm<3>(), want.template lpNorm<3>()));
        CHECK(close(got.template lpNorm<Eigen::Infinity>(), want.template lpNorm<Eigen::Infinity>()));
        CHECK(close(otimes::sum_expr<Scalar>(got).norm(), want.norm()));
    };
    all(kron(large_a, large_b, small_c), real(big) * kron(A, B, C));
    all(kron(small_a, large_b), kron(A, B));
    all(small * kron(large_a, large_b), big * kron(A, B));
    all(kron(small_a, small_b) * big, small * kron(A, B));
    const dense F = big * random<dense>(2, 2, 4);
    const auto S = kron(large_a, F) * small + otimes::kron_sum(large_a, F);
    const dense f = F / big;
    CHECK(close(std::abs(kron(large_a, F, small_a).trace()) / big, std::abs(kron(A, f, A).trace())));
    CHECK(close(S.norm() / big, (kron(A, f) + otimes::kron_sum(A, f)).norm()));
    const vector<Scalar> d = big * random<vector<Scalar>>(6, 1, 5), one = d / big;
    CHECK(close((kron(large_a, F) * small + d.asDiagonal()).norm() / big, (kron(A, f) + one.asDiagonal()).norm()));
    // NaN and infinite elements are seen.
    dense broken = A;
    broken(1, 2) = std::numeric_limits<real>::quiet_NaN();
    CHECK(std::isnan(kron(broken, B).norm()));
    CHECK(std::isnan(kron(broken, B).template lpNorm<Eigen::Infinity>()));
    broken(1, 2) = std::numeric_limits<real>::infinity();
    CHECK(kron(broken, B).norm() == std::numeric_limits<real>::infinity());
    CHECK(kron(broken, B).template lpNorm<1>() == std::numeric_limits<real>::infinity());
}

TEST_CASE_TEMPLATE("norms of krons with structure are those of the matrices", Scalar,
                   OTIMES_ONE_OF(std::complex<double>, float, double)) {
    using dense = matrix<Scalar>;
    const dense A = random<dense>(4, 4, 1), U = random<dense>(9, 2, 2), V = random<dense>(8, 2, 3);
    const vector<Scalar> d = random<vector<Scalar>>(5, 1, 4);
    Eigen::SparseMatrix<Scalar> s(4, 6);
    s.insert(1, 2) = Scalar(-2);
    s.insert(3, 5) = Scalar(0.5F);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.indices() << 2, 0, 1;
    const auto applied = otimes::matrix_free<Scalar>(4, 4, [&A](bool transposed, const auto& in, auto& out) {
        out.noalias() = (transposed ? dense(A.transpose()) : A) * in;
    });
    const auto check = [](const otimes::kron_expr<Scalar>& K) {
        const dense k = K.toDenseMatrix();
        CHECK(K.norm() == doctest::Approx(k.norm()));
        CHECK(K.squaredNorm() == doctest::Approx(k.squaredNorm()));
        CHECK(K.template lpNorm<1>() == doctest::Approx(k.template lpNorm<1>()));
        CHECK(K.template lpNorm<Eigen::Infinity>() == doctest::Approx(k.template lpNorm<Eigen::Infinity>()));
        CHECK(otimes::sum_expr<Scalar>(K).norm() == doctest::Approx(k.norm()));
    };
    check(kron(A, identity(3)));
    check(kron(A, d.asDiagonal()));
    check(kron(A, P).adjoint());
    check(kron(A, s).transpose());
    check(kron(A.template triangularView<Eigen::UnitLower>(), A.template selfadjointView<Eigen::Upper>()));
    check(kron(otimes::low_rank(U, V), d.asDiagonal()).adjoint());
    check(kron(otimes::low_rank(U.topRows(2), V)));
    check(kron(applied, otimes::circulant(d)));
    check((kron(A, s) * kron(A, otimes::low_rank(V.topRows(6), U))).as_kron());
}

TEST_CASE("norms of integers are those of the matrix: no factor's root is cut off") {
    using matrix_i = matrix<int>;
    const matrix_i A = (matrix_i(2, 2) << 1, -2, 3, 0).finished(), B = (matrix_i(2, 3) << 2, 1, 0, -1, 4, 5).finished();
    const Eigen::SparseMatrix<int> W = A.sparseView();
    const auto K = -3 * kron(A, W, B);  // squared norms 14, 14 and 47
    CHECK(K.squaredNorm() == 9 * 14 * 14 * 47);
    CHECK(otimes::squared_norm(K) == K.toDenseMatrix().squaredNorm());
    CHECK(K.norm() == 287);  // of 287.9
    CHECK(K.lpNorm<2>() == K.norm());
    CHECK(K.lpNorm<1>() == 3 * 6 * 6 * 13);
}

TEST_CASE("a kron and a sum are printed as one line") {
    const matrix_d A = random(2, 3, 1), B = random(4, 4, 2), S = random(3, 3, 3), T = random(4, 4, 4);
    const Eigen::VectorXd d = random<vector_d>(5, 1, 5);
    Eigen::SparseMatrix<double> w(3, 5);
    Eigen::PermutationMatrix<Eigen::Dynamic> P(3);
    P.setIdentity();
    // [printing]
    std::ostringstream out;
    out << 2 * kron(A, identity(4), w) << '\n' << kron(S, identity(4)) - kron(identity(3), T);
    // [/printing]
    CHECK(out.str() ==
          "24 x 60: 2 * kron(dense 2 x 3, identity 4 x 4, sparse 3 x 5)\n"
          "12 x 12: kron(dense 3 x 3, identity 4 x 4) - kron(identity 3 x 3, dense 4 x 4)");
    CHECK(printed(kron(d.asDiagonal(), P, S.triangularView<Eigen::Upper>(), S.selfadjointView<Eigen::Lower>())) ==
          "135 x 135: kron(diagonal 5 x 5, permutation 3 x 3, upper triangular 3 x 3, self-adjoint 3 x 3)");
    CHECK(printed(kron(otimes::low_rank(A, A), B)) == "8 x 8: kron(product of factors 2 x 2, dense 4 x 4)");
    CHECK(printed(otimes::kron_power(B, 20)) == "1099511627776 x 1099511627776: kron(20 times dense 4 x 4)");
    CHECK(printed(-kron(A.transpose())) == "3 x 2: -kron(dense 3 x 2)");
    CHECK(printed(kron(identity(3))) == "3 x 3: kron(identity 3 x 3)");
    CHECK(printed((kron(S, T) + kron(T, S)) * (kron(S, T) - 3 * kron(T, S))) ==
          "12 x 12: (kron(dense 3 x 3, dense 4 x 4) + kron(dense 4 x 4, dense 3 x 3)) * (kron(dense 3 x 3, dense 4 x "
          "4) - "
          "3 * kron(dense 4 x 4, dense 3 x 3))");
    const Eigen::MatrixXcd Z = random<Eigen::MatrixXcd>(2, 3, 6);
    CHECK(printed(std::complex<double>(0, 1) * kron(Z).conjugate()) == "2 x 3: (0,1) * kron(conjugated dense 2 x 3)");
    CHECK(printed(kron(identity(100000), B, identity(100000))) ==
          "40000000000 x 40000000000: kron(identity 100000 x 100000, dense 4 x 4, identity 100000 x 100000)");
}

// SPDX-License-Identifier: MIT
// Nothing densifies: the whole public surface under an allocator that throws beyond a stated multiple of inputs plus output.
// And the code of docs/algebra/, whose blocks are copies of what is compiled and checked here.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/IterativeLinearSolvers>
#include <Eigen/SparseCore>

#include <otimes/algebra.hpp>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using otimes::identity;
using otimes::kron;

namespace {

// What an expression may allocate all together while it is built and evaluated, in bytes of its inputs and its output.
// Temporaries that were freed count too: plans, programs, packed factors, decompositions of the factors.
constexpr std::size_t multiple = 12;
constexpr std::size_t order = 12;
constexpr std::size_t rows = 8;

template <class Matrix>
std::size_t bytes_of(const Matrix& m) {
    return static_cast<std::size_t>(m.size()) * sizeof(typename Matrix::Scalar);
}

// Does `what` want more than `bound` bytes?
template <class What>
bool is_refused(std::size_t bound, const What& what) {
    const support::allocation_limit limit(bound);
    try {
        what();
    } catch (const std::bad_alloc&) {
        return true;
    }
    return false;
}

}  // namespace

TEST_CASE("no expression takes memory of the size of the product") {
    if (!support::allocations_are_counted()) {
        return;
    }
    constexpr Index n = order;
    constexpr Index N = n * n * n;  // a dense K has 24 MB, X has 110 kB
    const matrix_d a = random(n, n, 1);
    const matrix_d A = a * a.transpose() + matrix_d::Identity(n, n);
    const matrix_d B = 2.0 * A + matrix_d::Identity(n, n);
    const matrix_d C = random(n, n, 3) + 9 * matrix_d::Identity(n, n);
    const matrix_d R = random(n, n + 3, 4);
    const vector_d d = random<vector_d>(N, 1, 5).cwiseAbs() + vector_d::Ones(N);
    const vector_d e = random<vector_d>(n, 1, 6);
    const matrix_d X = random(rows, N, 7);
    const row_major_d XR = X;
    const matrix_d Z = X.transpose();
    const vector_d v = Z.col(0);
    Eigen::SparseMatrix<double> W(N, N);
    W.reserve(Eigen::VectorXi::Constant(N, 1));
    for (Index i = 0; i < N; ++i) {
        W.insert(i, (5 * i) % N) = 1.0 + static_cast<double>(i % 3);
    }
    W.makeCompressed();
    Eigen::SparseMatrix<double> S(n, n);
    for (Index i = 0; i < n; ++i) {
        S.insert(i, (5 * i) % n) = 2.0;
    }
    const auto P = otimes::stride_permutation(n, 3);
    const auto free = otimes::matrix_free<double>(n, n, [](bool, const auto& in, auto& out) { out = in; });
    const std::vector<std::int64_t> some{0, 7, N - 1, 7};
    const std::size_t inputs = bytes_of(X) + 3 * bytes_of(A) + bytes_of(d);
    const std::size_t bound = multiple * (inputs + bytes_of(X));
    REQUIRE(bound < sizeof(double) * static_cast<std::size_t>(N) * N / 8);

    const auto K = kron(A, B, C);
    const auto L = kron(B, C, A);
    const auto SPD = kron(A, B, A);
    matrix_d Y(rows, N);
    row_major_d YR(rows, N);
    matrix_d T(N, rows);
    std::vector<std::pair<std::string, std::function<void()>>> surface;
    const auto add = [&](const char* name, auto what) { surface.emplace_back(name, std::move(what)); };
    add("X * K", [&] { Y = X * K; });
    add("X * K, by rows", [&] { YR = XR * K; });
    add("K * X", [&] { T = K * Z; });
    add("K * v", [&] { T.col(0) = K * v; });
    add("alias", [&] { Y = Y * K; });
    add("K1 * X * K2", [&] {
        const matrix_d M = Eigen::Map<const matrix_d>(v.data(), n, n * n);
        const matrix_d result = kron(A) * M * kron(B, C);
    });
    add("X * K * L", [&] { Y = X * K * L; });
    add("transpose, adjoint, conjugate", [&] { Y = X * (K.transpose().adjoint().conjugate()); });
    add("scaled", [&] { Y.noalias() -= 2.0 * X * (3.0 * K) / 4.0; });
    add("inside an Eigen expression", [&] { Y = (X * K + 2.0 * X).array().abs().matrix(); });
    add("sum", [&] { Y = X * (K + L - 0.5 * SPD); });
    add("sum, by rows", [&] { YR = XR * (K + L - 0.5 * SPD); });
    add("sum from the left", [&] { T = (K + L - 0.5 * SPD) * Z; });
    add("kron_sum", [&] { YR = XR * otimes::kron_sum(A, B, C); });
    add("shift and diagonal", [&] { YR = XR * (K + 2.0 * otimes::identity() + d.asDiagonal()); });
    add("product of krons", [&] { Y = X * (K * L); });
    add("product in sequence", [&] { Y = X * (K * kron(random(n * n, n * n, 8), A)); });
    add("sum inside a product", [&] { Y = X * ((K + L) * (SPD - otimes::identity())); });
    add("W * K * W^T + s I", [&] { T = (W * K * W.transpose() + 2.0 * otimes::identity()) * Z; });
    add("W * K * W^T + L", [&] { T = (W * K * W.transpose() + L) * Z; });
    add("identity", [&] { Y = X * kron(otimes::identity(n), B, otimes::identity(n)); });
    add("diagonal", [&] { Y = X * kron(A, e.asDiagonal(), C); });
    add("permutation", [&] { Y = X * kron(A, P, C); });
    add("sparse", [&] { Y = X * kron(S, B, S.transpose()); });
    add("triangular", [&] { Y = X * kron(A.triangularView<Eigen::Lower>(), B, C.triangularView<Eigen::UnitUpper>()); });
    add("self-adjoint", [&] { Y = X * kron(A.selfadjointView<Eigen::Lower>(), B, C); });
    add("low rank", [&] { Y = X * kron(otimes::low_rank(e, e), B, C); });
    add("Toeplitz", [&] { Y = X * kron(otimes::toeplitz(e, e), B, otimes::circulant(e)); });
    add("function", [&] { Y = X * kron(A, free, C); });
    add("large sparse factor", [&] { Y = X * kron(W); });
    add("large diagonal factor", [&] { Y = X * kron(d.asDiagonal()); });
    add("row, column, diagonal, element, trace, norms", [&] {
        CHECK(K.row(5).size() + K.col(7).size() + K.diagonal().size() + (K + L).diagonal().size() == 4 * N);
        CHECK(K(3, 4) + K.trace() + K.norm() + K.lpNorm<1>() + K.operatorNorm() != 0.0);
        CHECK((K + L)(3, 4) + (K + L).trace() != 0.0);
    });
    const matrix_d big = random(n * n, n * n, 8);
    add("diagonal of a product", [&] { CHECK((K * kron(big, A)).diagonal().sum() != 0.0); });
    add("diagonal of W * K * W^T + L", [&] {
        const otimes::sum_expr<double> gp = W * K * W.transpose() + L;
        CHECK(gp.diagonal()(1) == doctest::Approx(4 * K(5, 5) + L(1, 1)));
        CHECK(gp.trace() == doctest::Approx(gp.diagonal().sum()));
    });
    add("solve", [&] { T = K.solve(Z); });
    add("solve, one column", [&] { T.col(0) = K.solve(v); });
    add("solve with rectangular factors",
        [&] { T = kron(R.transpose(), B, C).pseudoInverse().transpose() * Z.topRows(N); });
    add("inverse, pseudo-inverse", [&] { Y = X * K.inverse() + X * K.pseudoInverse(); });
    add("determinants, rank, condition, singular values", [&] {
        CHECK(K.determinant() + K.logAbsDeterminant() + K.conditionNumber() != 0.0);
        CHECK(K.rank() == K.singularValues().size());
    });
    add("decompositions", [&] {
        T = otimes::kron_lu<double>(K).solve(Z);
        T = otimes::kron_llt<double>(SPD).solve(Z);
        T = otimes::kron_qr<double>(K).matrixQ() * Z;
        T = otimes::kron_svd<double>(K).matrixU() * Z;
        T = otimes::kron_self_adjoint_eigen<double>(SPD).eigenvectors() * Z;
    });
    add("solve with sums", [&] {
        T = otimes::kron_sum(A, B, A).solve(Z);
        T = (SPD + 0.5 * otimes::identity()).solve(Z);
    });
    add("solve with a sum that is not self-adjoint", [&] { T = otimes::kron_sum(A, B, C).solve(Z); });
    add("conjugate gradients", [&] {
        const otimes::sum_expr<double> sum = SPD + d.asDiagonal();
        Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper,
                                 otimes::DiagonalPreconditioner<double>>
            cg;
        cg.setMaxIterations(3);
        cg.compute(sum);
        T.col(0) = cg.solve(v);
    });
    add("nearest kron", [&] { CHECK(otimes::nearest_kron(matrix_d(random(n * n, n * n, 9)), n, n).rows() == n * n); });
    add("vec", [&] {
        const matrix_d M = Eigen::Map<const matrix_d>(v.data(), n * n, n);
        const vector_d w = kron(A, kron(B, C)) * otimes::vec(M);
        const vector_d u = kron(kron(A, B), C) * otimes::vec_r(M);
        CHECK(w.size() + u.size() == 2 * N);
    });
    add("reductions", [&] {
        CHECK(otimes::dot(X, X * K) + otimes::squared_norm(X * K) + otimes::quadratic_trace(Z, K) != 0.0);
        CHECK(v.dot(K * v) + (X * K).norm() + (Z.transpose() * K * Z).trace() != 0.0);
        CHECK(otimes::column_squared_norms(X * K).size() == N);
    });
    add("row and column products", [&] {
        const matrix_d M = random(9, n, 10);
        const matrix_d f = otimes::face_split(M, M, M) * Z;
        const matrix_d k = X * otimes::khatri_rao(M.transpose(), M.transpose(), M.transpose());
        CHECK(f.size() == k.size());
    });
    add("selected rows and columns", [&] {
        const matrix_d picked = otimes::selected_rows(K, some) * Z;
        const matrix_d both = otimes::selected(K, some, some) * Z.topRows(4);
        CHECK(picked.rows() == both.rows());
    });
    add("plans", [&] {
        const otimes::plan p = otimes::make_plan(X * K);
        p.run(Y, X * K);
        CHECK(otimes::explain(X * (K + L)).size() > 100);
        CHECK(otimes::plan_from_text(otimes::to_text(p)) == p);
    });
    add("the reference executor", [&] { otimes::on(otimes::reference(), Y) = X * kron(A, otimes::identity(n * n)); });
    for (const auto& entry : surface) {
        const std::string& name = entry.first;  // clang++ captures no structured binding
        const auto& what = entry.second;
        CAPTURE(name);
        CHECK_FALSE(is_refused(bound, what));
    }
    // Elements of low-rank factors, one after another.
    CHECK_FALSE(is_refused(multiple * 2 * bytes_of(d),
                           [&] { CHECK(kron(otimes::low_rank(d, d)).trace() == doctest::Approx(d.squaredNorm())); }));
    const vector_d few = d.head(n * n);
    CHECK_FALSE(is_refused(multiple * 2 * bytes_of(few), [&] {
        CHECK(kron(otimes::low_rank(few, few)).lpNorm<1>() == doctest::Approx(few.sum() * few.sum()));
    }));
    // The bound does refuse: forming the product is what toDenseMatrix() says.
    CHECK(is_refused(bound, [&] { const matrix_d whole = K.toDenseMatrix(); }));
}

TEST_CASE("norms and decompositions keep large factors with structure") {
    constexpr Index n = 30000;  // as a dense matrix 7.2 GB
    const matrix_d a = random(3, 3, 1);
    const matrix_d A = a + a.transpose() + 6 * matrix_d::Identity(3, 3);
    const matrix_d N = a + 3 * matrix_d::Identity(3, 3);  // not self-adjoint
    const vector_d d = vector_d::LinSpaced(n, 1, 2), b = random<vector_d>(3 * n, 1, 2);
    Eigen::SparseMatrix<double> S(n, n);
    S.setIdentity();
    Eigen::PermutationMatrix<Eigen::Dynamic> P(n);
    for (Index i = 0; i < n; ++i) {
        P.indices()(i) = static_cast<int>((i + 1) % n);
    }
    const std::size_t bound = multiple * (bytes_of(A) + bytes_of(d) + 2 * bytes_of(b));
    const auto within = [bound](const char* name, const auto& what) {
        CAPTURE(name);
        CHECK_FALSE(is_refused(bound, what));
    };
    const auto numbers = [&](const otimes::kron_expr<double>& K, double norm, double det, double largest,
                             double least) {
        within("norms", [&] {
            CHECK(K.norm() == doctest::Approx(norm));
            CHECK(K.squaredNorm() == doctest::Approx(norm * norm));
            CHECK(K.lpNorm<1>() > norm);
            CHECK(K.lpNorm<Eigen::Infinity>() <= norm);
            CHECK(otimes::sum_expr<double>(K).norm() == doctest::Approx(norm));
        });
        within("determinants", [&] {
            CHECK(K.logAbsDeterminant() == doctest::Approx(det));
            CHECK(std::abs(K.determinant()) == std::numeric_limits<double>::infinity());
        });
        within("rank", [&] { CHECK(K.rank() == 3 * n); });
        within("operator norm, condition", [&] {
            CHECK(K.operatorNorm() == doctest::Approx(largest));
            CHECK(K.conditionNumber() == doctest::Approx(largest / least));
        });
        within("singular values", [&] { CHECK(K.singularValues()(0) == doctest::Approx(largest)); });
        within("solve", [&] { CHECK(distance(K * K.solve(b), b) <= 1e-12 * b.norm()); });
        within("pseudo-inverse", [&] { CHECK(distance(K * (K.pseudoInverse() * b), b) <= 1e-12 * b.norm()); });
        within("kron_svd",
               [&] { CHECK(otimes::kron_svd<double>(K).singularValues().maxCoeff() == doctest::Approx(largest)); });
        within("kron_qr", [&] { CHECK(otimes::kron_qr<double>(K).solve(b).size() == 3 * n); });
    };
    const double size = std::sqrt(static_cast<double>(n));
    const double det = static_cast<double>(n) * std::log(std::abs(A.determinant()));
    const vector_d s = A.jacobiSvd().singularValues();
    numbers(kron(A, identity(n)), A.norm() * size, det, s(0), s(2));
    numbers(kron(A, P), A.norm() * size, det, s(0), s(2));
    numbers(kron(A, S), A.norm() * size, det, s(0), s(2));
    numbers(kron(A, d.asDiagonal()), A.norm() * d.norm(), det + 3 * d.array().log().sum(), 2 * s(0), s(2));
    const auto self_adjoint = [&](const otimes::kron_expr<double>& K) {
        within("kron_llt", [&] { CHECK(distance(K * otimes::kron_llt<double>(K).solve(b), b) <= 1e-12 * b.norm()); });
        within("eigenvalues", [&] { CHECK(K.eigenvalues().real().minCoeff() > 0); });
        within("kron_self_adjoint_eigen",
               [&] { CHECK(otimes::kron_self_adjoint_eigen<double>(K).eigenvalues().minCoeff() > 0); });
        within("shifted", [&] {
            const otimes::sum_expr<double> shifted = K + 0.5 * identity();
            CHECK(distance(shifted * shifted.solve(b), b) <= 1e-12 * b.norm());
        });
        within("shifted, determinant", [&] { CHECK((K + 0.5 * identity()).logAbsDeterminant() > 0); });
    };
    self_adjoint(kron(A, identity(n)));
    self_adjoint(kron(A, d.asDiagonal()));
    self_adjoint(kron(A, S));
    for (const matrix_d& F : {A, N}) {
        within("kron_sum with a diagonal", [&] {
            const auto sum = otimes::kron_sum(F, d.asDiagonal());
            CHECK(distance(sum * sum.solve(b), b) <= 1e-12 * b.norm());
        });
    }
    within("low rank",
           [&] { CHECK(kron(A, otimes::low_rank(d, d)).norm() == doctest::Approx(A.norm() * d.squaredNorm())); });
    within("a sum with low rank", [&] {
        CHECK((kron(A, otimes::low_rank(d, d)) + kron(A, otimes::identity(n))).norm() > A.norm() * d.squaredNorm());
    });
    // What a decomposition would have to form is refused, with its bytes.
    constexpr Index m = 3000;
    const vector_d c = random<vector_d>(m, 1, 3);
    within("a circulant", [&] {
        CHECK(kron(A, otimes::circulant(c)).norm() == doctest::Approx(A.norm() * c.norm() * std::sqrt(1.0 * m)));
    });
    try {
        static_cast<void>(kron(A, otimes::circulant(c)).rank());
        CHECK(false);
    } catch (const otimes::budget_error& e) {
        CHECK(e.least_bytes() == 8 * m * m);
        CHECK(
            std::string(e.what()) ==
            "otimes: rank: factor 2, 3000 x 3000, would be formed as a dense matrix of 72000000 bytes, more than 64 "
            "MiB "
            "and 12 times what it stores. Identities, diagonals and permutations keep their structure; of others take "
            "smaller factors, or iterate.");
    }
    CHECK_THROWS_AS(static_cast<void>(kron(A, otimes::low_rank(d, d)).operatorNorm()), otimes::budget_error);
    CHECK_THROWS_AS(static_cast<void>(otimes::kron_sum(A, P).solve(b)), otimes::budget_error);
}

namespace {

MatrixXd spd(Index n, std::uint64_t seed) {
    const MatrixXd a = random(n, n, seed);
    return a * a.transpose() + MatrixXd::Identity(n, n);
}
bool near(const MatrixXd& got, const MatrixXd& want) { return (got - want).norm() <= 1e-10 * (1 + want.norm()); }

}  // namespace

TEST_CASE("docs/algebra/structured_factors.md") {
    const MatrixXd A = random(3, 3, 1), B = random(4, 4, 2), L = random(40, 40, 3), H = spd(4, 4);
    const VectorXd d = random<vector_d>(4, 1, 5), c = random<vector_d>(6, 1, 6);
    Eigen::SparseMatrix<double> S = MatrixXd(random(4, 4, 7)).sparseView();
    const MatrixXd U = random(20, 2, 8), V = random(20, 2, 9);
    // [structured_factors]
    auto K1 = kron(A, identity(8), d.asDiagonal());                // no flops for I, one per entry for D
    auto K2 = kron(S, otimes::stride_permutation(6, 2), A);        // two flops per stored element; a move
    auto K3 = kron(A, L.triangularView<Eigen::Lower>());           // half the flops of L, half its bytes
    auto K4 = kron(A, H.selfadjointView<Eigen::Lower>());          // half the bytes of H
    auto K5 = kron(otimes::low_rank(U, V), otimes::circulant(c));  // two thin products; n stored elements
    auto K6 = kron(A, otimes::matrix_free<double>(4, 4, [&B](bool transposed, const auto& in, auto& out) {
                       if (transposed) {
                           out.noalias() = B.transpose() * in;
                       } else {
                           out.noalias() = B * in;
                       }
                   }));
    // [/structured_factors]
    CHECK(near(K6.toDenseMatrix(), kron(A, B).toDenseMatrix()));
    CHECK(K1.rows() + K2.rows() + K3.rows() + K4.rows() + K5.rows() == 96 + 72 + 120 + 12 + 120);
    const MatrixXd X = random(7, 120, 10);
    // [structured_cost]
    auto dense = otimes::make_plan(X * kron(A, L));
    auto half = otimes::make_plan(X * kron(A, L.triangularView<Eigen::Lower>()));
    // half.flops - flops of A = 7 * 3 * 40 * 41, dense.flops - flops of A = 7 * 3 * 40 * 80
    // [/structured_cost]
    CHECK(dense.flops - half.flops == 7 * 3 * 40 * 39);
}

TEST_CASE("docs/algebra/rewriting.md") {
    const MatrixXd A = random(3, 4, 1), B = random(2, 5, 2), C = random(4, 2, 3), D = random(5, 3, 4);
    const MatrixXd X = random(6, 6, 5);
    // [rewriting]
    auto K = kron(A, B) * (2.0 * kron(C, D));   // one Kronecker product: 2 * kron(A * C, B * D)
    std::string page = otimes::explain(X * K);  // rewritten by scalar-gathered, mixed-product, ...
    bool one = K.is_kron();
    // [/rewriting]
    CHECK(one);
    CHECK(page.find("rewritten by scalar-gathered, mixed-product") != std::string::npos);
    CHECK(near(X * K, 2.0 * X * kron(MatrixXd(A * C), MatrixXd(B * D))));
}

TEST_CASE("docs/algebra/sums.md") {
    const MatrixXd A = spd(3, 1), B = spd(4, 2), C = spd(2, 3), M = random(3, 3, 4), N = random(4, 4, 5);
    const MatrixXd X = random(5, 24, 6);
    const VectorXd d = random<vector_d>(24, 1, 7);
    const Eigen::SparseMatrix<double> W = MatrixXd(random(24, 12, 8)).sparseView();
    // [sums]
    auto S = kron(A, N, C) + kron(M, B, C) - 0.5 * kron(M, N, C);  // shared factors are applied once
    auto laplacian = otimes::kron_sum(A, B, C);                    // kron(A, I, I) + kron(I, B, I) + kron(I, I, C)
    auto shifted = laplacian + 0.1 * identity() + d.asDiagonal();
    auto gp = W * kron(A, N) * W.transpose() + 2.0 * identity();  // sparse W: applied factor by factor
    auto both = gp + laplacian;                                   // a term like any other
    auto inside = (S + laplacian) * (S - laplacian);              // sums inside products
    MatrixXd Y = X * S + X * both;
    Y.noalias() += 2.0 * X * inside;
    // [/sums]
    const MatrixXd s = S.toDenseMatrix(), l = laplacian.toDenseMatrix(), w = W;
    const MatrixXd g = w * kron(A, N).toDenseMatrix() * w.transpose() + 2.0 * MatrixXd::Identity(24, 24);
    CHECK(near(Y, X * s + X * (g + l) + 2.0 * X * (s + l) * (s - l)));
    CHECK(near(shifted.toDenseMatrix(), l + 0.1 * MatrixXd::Identity(24, 24) + MatrixXd(d.asDiagonal())));
}

TEST_CASE("docs/algebra/solving.md") {
    const MatrixXd A = spd(3, 1), B = spd(4, 2), C = spd(2, 3);
    const MatrixXd b = random(24, 5, 4);
    const MatrixXd R = random(5, 3, 5);
    const VectorXd d = random<vector_d>(24, 1, 6).cwiseAbs();
    // [solving]
    auto K = kron(A, B, C);
    MatrixXd X1 = K.solve(b);                                            // LU of each factor
    MatrixXd X2 = (K + 0.5 * identity()).solve(b);                       // eigenvectors of each factor
    otimes::kron_sum_solver<double> poisson(otimes::kron_sum(A, B, C));  // made once, used often
    MatrixXd X3 = poisson.solve(b);
    auto Q = kron(R, A).pseudoInverse();    // least squares of least norm
    double logdet = K.logAbsDeterminant();  // does not overflow
    double condition = K.conditionNumber(), largest = K.operatorNorm();
    otimes::kron_svd<double> svd(kron(R, B));  // U, V krons; singular values
    // [/solving]
    const MatrixXd k = K.toDenseMatrix();
    CHECK(near(k * X1, b));
    CHECK(near(k * X2 + 0.5 * X2, b));
    CHECK(near(otimes::kron_sum(A, B, C).toDenseMatrix() * X3, b));
    CHECK(near(kron(R, A).toDenseMatrix().transpose() * (kron(R, A) * (Q * random(15, 2, 7)) - random(15, 2, 7)),
               MatrixXd::Zero(9, 2)));
    CHECK(logdet == doctest::Approx(std::log(std::abs(k.determinant()))));
    CHECK(condition * k.jacobiSvd().singularValues()(23) == doctest::Approx(largest));
    CHECK(svd.singularValues().size() == 12);
    // [iterative]
    otimes::sum_expr<double> S = K + d.asDiagonal();  // no closed form: iterate, preconditioned by K + mean(d) * I
    Eigen::ConjugateGradient<otimes::sum_expr<double>, Eigen::Lower | Eigen::Upper, otimes::KronPreconditioner<double>>
        cg;
    cg.compute(S);
    VectorXd x = cg.solve(b.col(0));
    // [/iterative]
    CHECK(distance(S.toDenseMatrix() * x, b.col(0)) < 1e-8 * b.norm());
}

TEST_CASE("docs/algebra/reductions.md") {
    const MatrixXd A = random(4, 4, 1), B = random(5, 5, 2), X = random(20, 7, 3);
    const VectorXd x = random<vector_d>(20, 1, 4), y = random<vector_d>(20, 1, 5);
    // [reductions]
    auto K = kron(A, B);
    double a = x.dot(K * y);                     // as Eigen writes it; K * y is never stored
    double b = otimes::dot(x, K * y);            // the same, also for matrices
    double c = (X.transpose() * K * X).trace();  // neither K * X nor the product is stored
    double e = (K * X).squaredNorm();
    VectorXd columns = otimes::column_squared_norms(K * X);
    // [/reductions]
    const MatrixXd k = K.toDenseMatrix();
    CHECK(a == doctest::Approx(x.dot(k * y)));
    CHECK(b == doctest::Approx(a));
    CHECK(c == doctest::Approx((X.transpose() * k * X).trace()));
    CHECK(e == doctest::Approx((k * X).squaredNorm()));
    CHECK(near(columns, (k * X).colwise().squaredNorm().transpose()));
}

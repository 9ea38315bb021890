// SPDX-License-Identifier: MIT
// Batches against single products: strided and by pointers, own and shared factors, both sides, on both executors.
#include <otimes/batched.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/thrown.hpp"

namespace {

using Eigen::MatrixXd;
using otimes::batched;
using otimes::kron;
using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Matrix = MatrixXd>
std::vector<Matrix> matrices(std::size_t count, Eigen::Index rows, Eigen::Index cols, std::uint64_t seed) {
    std::vector<Matrix> result;
    for (std::size_t i = 0; i < count; ++i) {
        result.push_back(support::powers_of_two_matrix<Matrix>(rows, cols, seed + 100 * i));
    }
    return result;
}
template <class Matrix>
std::vector<Matrix> poisoned(std::size_t count, Eigen::Index rows, Eigen::Index cols) {
    return std::vector<Matrix>(count, support::poisoned_matrix<Matrix>(rows, cols));
}
// Items one after another, `gap` elements between them.
template <class Matrix>
std::vector<typename Matrix::Scalar> packed(const std::vector<Matrix>& items, std::size_t gap) {
    std::vector<typename Matrix::Scalar> result;
    for (const Matrix& m : items) {
        result.insert(result.end(), m.data(), m.data() + m.size());
        result.resize(result.size() + gap, typename Matrix::Scalar(99));
    }
    return result;
}
template <class Matrix>
Matrix item(const std::vector<typename Matrix::Scalar>& data, std::size_t i, Eigen::Index rows, Eigen::Index cols,
            std::size_t stride) {
    return Eigen::Map<const Matrix>(data.data() + i * stride, rows, cols);
}

using support::text_of;

}  // namespace

TEST_CASE("batched: vectors of matrices, own and shared factors, from both sides, on both executors") {
    const std::size_t count = 5;
    const auto X = matrices(count, 6, 12, 1);
    const auto A = matrices(count, 3, 2, 2);
    const auto C = matrices<row_major>(count, 5, 3, 3);
    const MatrixXd B = support::powers_of_two_matrix<MatrixXd>(4, 3, 4);
    for (const otimes::executor* e : {&otimes::cpu(), &otimes::reference()}) {
        const otimes::scoped_executor scope(*e);
        auto Y = poisoned<MatrixXd>(count, 6, 6);
        auto Z = poisoned<row_major>(count, 10, 6);
        // [batched-vectors]
        // X, A, Y: vectors of matrices; B: one matrix for all.  Y[i] = X[i] * kron(A[i], B)
        batched(Y) = batched(X) * kron(batched(A), B);
        // [/batched-vectors]
        batched(Z) = kron(batched(C), otimes::identity(2)) * batched(X) * kron(batched(A), B) * 2;
        batched(Z) -= 0.5 * kron(batched(C), otimes::identity(2)) * batched(X) * kron(A[0], B);
        const std::vector<MatrixXd> V = B * kron(batched(A));  // one X for all
        const std::vector<MatrixXd> T = 2 * batched(X) * kron(batched(A), B), N = -batched(X);
        for (std::size_t i = 0; i < count; ++i) {
            const MatrixXd k = kron(A[i], B).toDenseMatrix();
            const MatrixXd l = kron(C[i], otimes::identity(2)).toDenseMatrix();
            const MatrixXd first = kron(A[0], B).toDenseMatrix();
            CHECK(support::exactly_equal(Y[i], MatrixXd(X[i] * k)));
            CHECK(support::exactly_equal(Z[i], MatrixXd(2 * l * X[i] * k - 0.5 * l * X[i] * first)));
            CHECK(support::exactly_equal(V[i], MatrixXd(B * A[i])));
            CHECK(support::exactly_equal(T[i], MatrixXd(2 * X[i] * k)));
            CHECK(support::exactly_equal(N[i], MatrixXd(-X[i])));
        }
    }
}

TEST_CASE("batched: strided items, gaps, rows first, broadcast factors and broadcast X") {
    const std::size_t count = 7;
    const auto X = matrices<row_major>(count, 3, 8, 1);
    const auto A = matrices(count, 4, 3, 2), B = matrices(count, 2, 5, 3);
    const std::vector<double> x = packed(X, 2), a = packed(A, 1), b = packed(B, 0);
    for (const otimes::executor* e : {&otimes::cpu(), &otimes::reference()}) {
        const otimes::scoped_executor scope(*e);
        for (const bool shared : {false, true}) {
            std::vector<double> y(count * 50, 7.0);
            const double *const x_data = x.data(), *const a_data = a.data(), *const b_data = b.data();
            double* const y_data = y.data();
            const auto a_stride = shared ? 0 : 13;
            // [batched-strided]
            const auto n = static_cast<std::int64_t>(count);
            const auto Xs = batched<Eigen::RowMajor>(x_data, 3, 8, n, 26);  // an item every 26 elements
            const auto As = batched(a_data, 4, 3, n, a_stride);             // stride 0: one matrix for all
            const auto Bs = batched(b_data, 2, 5, n);                       // without gaps
            batched(y_data, 3, 15, n, 50) = Xs * kron(As, Bs);
            // [/batched-strided]
            bool right = true;
            for (std::size_t i = 0; i < count; ++i) {
                const MatrixXd want = X[i] * kron(A[shared ? 0 : i], B[i]).toDenseMatrix();
                right = right && item<MatrixXd>(y, i, 3, 15, 50) == want && y[50 * i + 45] == 7.0;
            }
            CHECK(right);
            batched(y_data, 3, 15, n, 50) += 3.0 * X[0] * kron(As, Bs);
            for (std::size_t i = 0; i < count; ++i) {
                const MatrixXd want = (X[i] + 3.0 * X[0]) * kron(A[shared ? 0 : i], B[i]).toDenseMatrix();
                right = right && item<MatrixXd>(y, i, 3, 15, 50) == want;
            }
            CHECK(right);
        }
    }
    // items that all share their factors are one program with the item as a free index, planned as a whole
    const auto Xs = batched<Eigen::RowMajor>(x.data(), 3, 8, 7, 26);
    std::int64_t items = 0;
    const otimes::plan whole = (Xs * kron(A[0], B[0])).make_plan({}, &items);
    CHECK(items == 1);
    CHECK(whole.flops == 7 * 2 * (3 * 3 * 4 * 2 + 3 * 3 * 2 * 5));
    static_cast<void>((Xs * kron(batched(a.data(), 4, 3, 7, 13), B[0])).make_plan({}, &items));
    CHECK(items == 7);
    CHECK(otimes::explain(Xs * kron(A[0], B[0])).find("items") == std::string::npos);
    CHECK(otimes::explain(Xs * kron(batched(a.data(), 4, 3, 7, 13), B[0])).find("7 items, one after another") == 0);
    const std::vector<double> many(200 * 60 * 60);
    const auto begins = [&many](Eigen::Index items_of, Eigen::Index n, const std::string& text) {
        return otimes::explain(batched(many.data(), 1, n, items_of) * kron(batched(many.data(), n, n, items_of)))
            .find(text);
    };
    CHECK(begins(100, 4, " at a time in the lanes of a register, by the products of this plan of one:\n") == 12);
    CHECK(begins(2, 4, "2 items, one after another in each thread, all by this plan of one:\n") == 0);
    CHECK(begins(200, 60, "200 items, one after another in each thread, all by this plan of one:\n") == 0);
}

TEST_CASE("batched: pointers, complex scalars, adjoints, enough items for all threads") {
    using scalar = std::complex<double>;
    using matrix = Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic>;
    const std::size_t count = 300;
    const auto X = matrices<matrix>(count, 12, 4, 1);
    const auto A = matrices<matrix>(count, 4, 3, 2), B = matrices<matrix>(1, 3, 2, 3);
    auto Y = poisoned<matrix>(count, 6, 4);
    // the items in another order than in memory
    std::vector<const scalar*> x, a;
    std::vector<scalar*> y;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = i * 7 % count;
        x.push_back(X[at].data());
        a.push_back(A[at].data());
        y.push_back(Y[at].data());
    }
    // [batched-pointers]
    const auto Xp = batched(std::span<const scalar* const>(x), 12, 4);
    const auto Ap = batched(std::span<const scalar* const>(a), 4, 3);
    batched(std::span<scalar* const>(y), 6, 4) = kron(Ap, B[0]).adjoint() * Xp;
    // [/batched-pointers]
    bool right = true;
    for (std::size_t i = 0; i < count; ++i) {
        right = right && Y[i] == matrix(kron(A[i], B[0]).adjoint().toDenseMatrix() * X[i]);
    }
    batched(y, 4, 6) = -(Xp.adjoint() * kron(Ap.conjugate(), B[0])) / 2;
    for (std::size_t i = 0; i < count; ++i) {
        const matrix k = kron(A[i].conjugate(), B[0]).toDenseMatrix() / scalar(-2);
        right = right && Eigen::Map<const matrix>(Y[i].data(), 4, 6) == matrix(X[i].adjoint() * k);
    }
    CHECK(right);
}

TEST_CASE("batched: no items, items without elements") {
    std::vector<MatrixXd> none, empty(3, MatrixXd(0, 4)), zeros(3, MatrixXd::Constant(2, 3, 5.0));
    const MatrixXd A = MatrixXd::Ones(4, 3);
    batched(none) = batched(none) * kron(batched(none), MatrixXd(0, 0));
    batched(none) = batched(none) * kron(batched(none), A);  // an empty vector does not tell its items' shape
    CHECK((kron(A, batched(none)) * (batched(none) * kron(A))).eval().empty());
    CHECK((batched(empty) * kron(A)).eval()[2].cols() == 3);
    otimes::on(otimes::reference(), batched(empty)) = batched(empty) * kron(MatrixXd(4, 4));
    batched(zeros) = kron(MatrixXd(2, 0)) * batched(static_cast<double*>(nullptr), 0, 3, 3);
    CHECK(zeros[1] == MatrixXd::Zero(2, 3));
}

TEST_CASE(
    "batched: plans are made once and run for other batches, other numbers of items, in a workspace and within a "
    "limit") {
    const auto X = matrices(9, 5, 6, 1), A = matrices(9, 2, 4, 2), more = matrices(13, 5, 6, 3),
               others = matrices(13, 2, 4, 4);
    const MatrixXd B = support::powers_of_two_matrix<MatrixXd>(3, 7, 5);
    const auto check = [&B](const auto& Y, const auto& xs, const auto& as, double factor) {
        for (std::size_t i = 0; i < xs.size(); ++i) {
            CHECK(Y[i] == MatrixXd(factor * xs[i] * kron(as[i], B).toDenseMatrix()));  // powers of two: exact
        }
    };
    // [batch-plans]
    const auto expression = batched(X) * kron(batched(A), B);
    const otimes::plan p = make_plan(expression);  // of one item: for any number of them
    std::vector<MatrixXd> Y(X.size(), MatrixXd(5, 28));
    p.run(Y, expression);
    // [/batch-plans]
    check(Y, X, A, 1);
    Y = poisoned<MatrixXd>(9, 5, 28);
    p.run(batched(Y), -2.0 * expression);
    check(Y, X, A, -2);
    auto Z = poisoned<MatrixXd>(13, 5, 28);
    p.run(batched(Z), batched(more) * kron(batched(others), B));
    check(Z, more, others, 1);
    CHECK(otimes::plan_from_text(otimes::to_text(p)) == p);
    // The caller's workspace, also one that is too small.
    std::vector<std::byte> room(static_cast<std::size_t>(p.workspace_bytes) + 64);
    Y = poisoned<MatrixXd>(9, 5, 28);
    void* aligned = room.data();
    std::size_t space = room.size();
    std::align(64, static_cast<std::size_t>(p.workspace_bytes), aligned, space);
    p.run(batched(Y), expression, aligned, p.workspace_bytes);
    check(Y, X, A, 1);
    if (p.workspace_bytes > 0) {
        CHECK_THROWS_AS(p.run(batched(Y), expression, aligned, p.workspace_bytes - 1), otimes::budget_error);
    }
    // A limit is kept, or refused with the least that would do.
    otimes::options tight;
    tight.workspace_limit_bytes = 0;
    const auto large = matrices(4, 60, 72, 6), factors = matrices(4, 9, 8, 7);
    const MatrixXd C = support::powers_of_two_matrix<MatrixXd>(8, 9, 8);
    const auto wide = batched(large) * kron(batched(factors), C);
    const std::string refusal = text_of([&] { (void)make_plan(wide, tight); });
    const std::size_t at = refusal.find("at least ");
    REQUIRE(at != std::string::npos);
    tight.workspace_limit_bytes = std::stoll(refusal.substr(at + 9));
    const otimes::plan least = make_plan(wide, tight);
    CHECK(least.workspace_bytes <= tight.workspace_limit_bytes);
    auto L = poisoned<MatrixXd>(4, 60, 72);
    least.run(batched(L), wide);
    for (std::size_t i = 0; i < 4; ++i) CHECK(L[i] == MatrixXd(large[i] * kron(factors[i], C).toDenseMatrix()));
    // Several threads at once.
    std::vector<std::vector<MatrixXd>> results(4, poisoned<MatrixXd>(9, 5, 28));
    std::vector<std::thread> threads;
    for (std::vector<MatrixXd>& mine : results) {
        threads.emplace_back([&p, &expression, &mine] {
            for (int i = 0; i < 20; ++i) p.run(batched(mine), expression);
        });
    }
    for (std::thread& t : threads) t.join();
    for (const std::vector<MatrixXd>& mine : results) check(mine, X, A, 1);
    // Strided, shared factors: one program for the whole batch.
    const auto x = packed(X, 3), a = packed(A, 0);
    std::vector<double> y(9 * 140, std::numeric_limits<double>::quiet_NaN());
    const auto strided = batched(x.data(), 5, 6, 9, 33) * kron(batched(a.data(), 2, 4, 9), B);
    make_plan(batched(y.data(), 5, 28, 9), strided).run(batched(y.data(), 5, 28, 9), strided);
    for (std::size_t i = 0; i < 9; ++i)
        CHECK(item<MatrixXd>(y, i, 5, 28, 140) == MatrixXd(X[i] * kron(A[i], B).toDenseMatrix()));
    const auto shared = batched(x.data(), 5, 6, 9, 33) * kron(A[0], B);
    const otimes::plan whole = make_plan(batched(y.data(), 5, 28, 9), shared);
    whole.run(batched(y.data(), 5, 28, 9), shared);
    for (std::size_t i = 0; i < 9; ++i)
        CHECK(item<MatrixXd>(y, i, 5, 28, 140) == MatrixXd(X[i] * kron(A[0], B).toDenseMatrix()));
    // Refused: other shapes, another number of items where they are an index of the program; nothing is written.
    Y = poisoned<MatrixXd>(9, 5, 28);
    const auto untouched = [&] { return std::isnan(Y[0](0, 0)) && std::isnan(Y[8](4, 27)); };
    CHECK(text_of([&] { least.run(batched(Y), expression); }).find("was made for another expression") !=
          std::string::npos);
    CHECK(text_of([&] { whole.run(batched(Y), expression); }).find("was made for another expression") !=
          std::string::npos);
    CHECK(text_of([&] {
              whole.run(batched(y.data(), 5, 28, 8), batched(x.data(), 5, 6, 8, 33) * kron(A[0], B));
          }).find("was made for another expression") != std::string::npos);
    CHECK(untouched());
    CHECK_THROWS_AS((void)make_plan(batched(Y), wide), otimes::shape_error);
}

TEST_CASE("batched: maps of const matrices are items that are read") {
    const auto X = matrices(3, 2, 4, 1), A = matrices(3, 4, 5, 2);
    std::vector<Eigen::Map<const MatrixXd>> x;
    for (const MatrixXd& m : X) x.emplace_back(m.data(), 2, 4);
    auto Y = poisoned<MatrixXd>(3, 2, 5);
    batched(Y) = batched(x) * kron(batched(A));
    for (std::size_t i = 0; i < 3; ++i) CHECK(Y[i] == MatrixXd(X[i] * A[i]));
}

TEST_CASE("batched: elements of other batches are copied and added") {
    using complex = std::complex<double>;
    const auto X = matrices(4, 2, 3, 1), Z = matrices(4, 3, 2, 2);
    auto Y = poisoned<MatrixXd>(4, 2, 3);
    batched(Y) = batched(X);  // of const matrices
    for (std::size_t i = 0; i < 4; ++i) CHECK(Y[i] == X[i]);
    batched(Y) += batched(Z).transpose();
    for (std::size_t i = 0; i < 4; ++i) CHECK(Y[i] == MatrixXd(X[i] + Z[i].transpose()));
    batched(Y) -= batched(X);
    for (std::size_t i = 0; i < 4; ++i) CHECK(Y[i] == MatrixXd(Z[i].transpose()));
    auto W = matrices(4, 2, 3, 3);
    const auto before = W;
    batched(Y) = batched(W);  // a view of the same type: the elements, since neither has a name
    const auto y = batched(Y);
    y = batched(W);
    for (std::size_t i = 0; i < 4; ++i) CHECK(Y[i] == before[i]);
    for (std::size_t i = 0; i < 4; ++i) CHECK(Y[i].data() != W[i].data());
    CHECK(W == before);
    const std::vector<Eigen::MatrixXcd> C(4, Eigen::MatrixXcd::Constant(3, 2, complex(1, 2)));
    std::vector<Eigen::MatrixXcd> D(4, Eigen::MatrixXcd(2, 3));
    batched(D) = batched(C).adjoint();
    CHECK(D[3] == Eigen::MatrixXcd::Constant(2, 3, complex(1, -2)));
    std::vector<MatrixXd> square(2, MatrixXd::Identity(2, 2));
    CHECK_THROWS_AS(batched(square) = batched(square).transpose(), otimes::alias_error);
    CHECK_THROWS_AS(batched(Y) = batched(Z), otimes::shape_error);
}

TEST_CASE("batched: powers") {
    const auto X = matrices(5, 3, 8, 1), A = matrices(5, 2, 3, 2);
    auto Y = poisoned<MatrixXd>(5, 3, 27);
    batched(Y) = batched(X) * otimes::kron_power(batched(A), 3);
    for (std::size_t i = 0; i < 5; ++i) CHECK(Y[i] == MatrixXd(X[i] * kron(A[i], A[i], A[i]).toDenseMatrix()));
    CHECK_THROWS_AS((void)otimes::kron_power(batched(A), 0), otimes::shape_error);
}

TEST_CASE("batched: strips of one matrix, which take turns in memory") {
    const std::size_t count = 7;
    const auto A = matrices(count, 4, 3, 1);
    const MatrixXd B = support::powers_of_two_matrix<MatrixXd>(2, 5, 2);
    // strips of four rows: the first three are an item of Y, the fourth is between them
    const MatrixXd Xs = support::powers_of_two_matrix<MatrixXd>(28, 8, 3);
    const auto poison = std::numeric_limits<double>::quiet_NaN();
    const auto check = [&](const auto& write, bool shared) {
        MatrixXd Ys = MatrixXd::Constant(28, 15, poison);
        for (Eigen::Index i = 0; i < 7; ++i) Ys.row(4 * i + 3).setConstant(5);
        write(Ys);
        for (std::size_t i = 0; i < count; ++i) {
            const auto at = 4 * static_cast<Eigen::Index>(i);
            const MatrixXd k = kron(A[shared ? 0 : i], B).toDenseMatrix();
            CHECK(MatrixXd(Ys.middleRows(at, 3)) == MatrixXd(Xs.middleRows(at, 3) * k));
            CHECK(MatrixXd(Ys.row(at + 3)) == MatrixXd::Constant(1, 15, 5));
        }
    };
    const auto X = batched(Xs.data(), 3, 8, 7, 4, 28);
    check([&](MatrixXd& Ys) { batched(Ys.data(), 3, 15, 7, 4, 28) = X * kron(batched(A), B); }, false);
    check([&](MatrixXd& Ys) { batched(Ys.data(), 3, 15, 7, 4, 28) = X * kron(A[0], B); }, true);
    check(
        [&](MatrixXd& Ys) {
            std::vector<Eigen::Block<MatrixXd>> strips;
            for (Eigen::Index i = 0; i < 7; ++i) strips.push_back(Ys.block(4 * i, 0, 3, 15));
            batched(strips) = X * kron(batched(A), B);
        },
        false);
    // X and Y in one matrix
    MatrixXd both = MatrixXd::Constant(28, 8, poison);
    for (Eigen::Index i = 0; i < 7; ++i) both.middleRows(4 * i, 2) = Xs.middleRows(4 * i, 2);
    const MatrixXd C = support::powers_of_two_matrix<MatrixXd>(2, 2, 4);
    const auto D = matrices(count, 4, 4, 5);
    batched(both.data() + 2, 2, 8, 7, 4, 28) = batched(both.data(), 2, 8, 7, 4, 28) * kron(batched(D), C);
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = 4 * static_cast<Eigen::Index>(i);
        CHECK(MatrixXd(both.middleRows(at + 2, 2)) == MatrixXd(Xs.middleRows(at, 2) * kron(D[i], C).toDenseMatrix()));
    }
    // strips with a row in common
    const MatrixXd before = both;
    CHECK_THROWS_AS((batched(both.data() + 2, 3, 8, 6, 2, 28) = batched(Xs.data(), 3, 8, 6, 4, 28)),
                    otimes::alias_error);
    CHECK_THROWS_AS((batched(both.data() + 1, 2, 8, 7, 4, 28) = batched(both.data(), 2, 8, 7, 4, 28)),
                    otimes::alias_error);
    CHECK(both == before);
}

TEST_CASE("batched: what is refused, before anything is written") {
    const auto X = matrices(3, 2, 4, 1);
    const auto A = matrices(3, 4, 4, 2), two = matrices(2, 4, 4, 3);
    auto Y = matrices(3, 2, 4, 4);
    const auto before = Y;
    const auto shape = [&](const auto& statement) { return text_of<otimes::shape_error>(statement); };
    const auto alias = [&](const auto& statement) { return text_of<otimes::alias_error>(statement); };
    CHECK(shape([&] { batched(Y) = batched(X) * kron(batched(two)); }) ==
          "otimes: batched: factor 1 has 2 items, another operand 3. All batches of an expression have equally many "
          "items.");
    CHECK(
        shape([&] { batched(Y) = batched(X) * kron(batched(A), A[0]); }) ==
        "otimes: batched: X * kron(F1, F2): an item of X is 2 x 4, but kron(F1, F2) is 16 x 16. The columns of X must "
        "equal the rows of the Kronecker product.");
    CHECK(shape([&] { batched(Y) = batched(X) * kron(batched(A).transpose(), MatrixXd::Ones(1, 2)); }) ==
          "otimes: batched(Y) = ..: Y has 3 items of 2 x 4, the expression 3 of 2 x 8. A batch is not resized.");
    CHECK(alias([&] { batched(Y) = batched(Y) * kron(batched(A)); }) ==
          "otimes: batched(Y) = ..: an item of Y shares memory with X. Evaluate by .eval(), or give Y memory of its "
          "own.");
    double* const y = Y[0].data();
    std::vector<double*> same{y, Y[1].data(), y};
    CHECK(alias([&] {
              batched(std::span<double* const>(same), 2, 4) = batched(X) * kron(batched(A));
          }).find("shares memory with another one") != std::string::npos);
    CHECK(alias([&] { batched(y, 2, 4, 3, 0) = batched(X) * kron(batched(A)); }).find("another one") !=
          std::string::npos);
    using view = Eigen::Map<MatrixXd, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
    std::vector<view> backwards(1, view(y + 7, 2, 4, {-2, -1}));
    CHECK(alias([&] { batched(backwards) = batched(y, 2, 4, 1) * kron(A[0]); }).find("with X") != std::string::npos);
    std::vector<view> folded(1, view(y, 2, 4, {0, 1}));
    CHECK(alias([&] { batched(folded) = batched(X[0].data(), 2, 4, 1) * kron(A[0]); }).find("with itself") !=
          std::string::npos);
    std::vector<view> crossed(1, view(y, 2, 4, {2, 6}));  // element (1, 0) is (0, 3)
    CHECK(alias([&] { batched(crossed) = batched(X[0].data(), 2, 4, 1) * kron(A[0]); }).find("with itself") !=
          std::string::npos);
    std::vector<view> columns{view(y, 4, 1, {4, 1}), view(y, 4, 1, {6, 1})};  // of matrices of other heights
    CHECK_NOTHROW(static_cast<void>(batched(columns)));
    std::vector<const double*> gone{X[0].data(), X[1].data(), nullptr};
    const auto holed = batched(std::span<const double* const>(gone), 2, 4);
    CHECK(shape([&] { batched(Y) = holed * kron(batched(A)); }) ==
          "otimes: batched: item 2 of X is at a null pointer.");
    gone = {A[0].data(), nullptr, A[2].data()};
    CHECK(shape([&] { batched(Y) = batched(X) * kron(batched(std::span<const double* const>(gone), 4, 4)); }) ==
          "otimes: batched: item 1 of factor 1 is at a null pointer.");
    CHECK(shape([&] { batched(static_cast<double*>(nullptr), 2, 4, 3) = batched(X) * kron(batched(A)); }) ==
          "otimes: batched: item 0 of Y is at a null pointer.");
    CHECK_NOTHROW(batched(static_cast<double*>(nullptr), 2, 4, 0) =
                      batched(static_cast<const double*>(nullptr), 2, 4, 0) * kron(A[0]));
    MatrixXd shared = A[0];
    const auto late = batched(X) * kron(shared);
    shared.resize(2, 2);
    CHECK(shape([&] { batched(Y) = late; }).find("but kron(F1) is 2 x 2") != std::string::npos);
    auto odd = X;
    odd[2].resize(4, 2);
    CHECK(shape([&] { static_cast<void>(batched(odd)); }) ==
          "otimes: batched: item 2 is 4 x 2, item 0 is 2 x 4. All items of a batch have one shape.");
    CHECK(
        shape([&] { static_cast<void>(batched(y, 2, -4, 3)); }) ==
        "otimes: batched: 3 items of 2 x -4 with a batch stride of 0; none may be negative, and the last element must "
        "lie within 2^63 - 1 bytes.");
    CHECK_THROWS_AS(static_cast<void>(batched(y, 1, 1, 2, std::int64_t(1) << 61)), otimes::shape_error);  // in bytes
    CHECK_THROWS_AS(static_cast<void>(batched(y, 1, 4, 1, 4, std::int64_t(1) << 60)), otimes::shape_error);
    const auto wide = batched(y, std::int64_t(1) << 40, 1, 0) * kron(batched(y, 1, std::int64_t(1) << 40, 0));
    CHECK(shape([&] { static_cast<void>(make_plan(wide)); }).find("the extents of an item exceed") !=
          std::string::npos);
    const Eigen::VectorXd d = Eigen::VectorXd::Ones(4);
    CHECK(text_of<otimes::unsupported_error>([&] {
              batched(Y) = batched(X) * kron(d.asDiagonal());
          }).find("must be dense or an identity") != std::string::npos);
    CHECK(Y == before);
}

// SPDX-License-Identifier: MIT
// X *= kron(..) with square factors: the same result as through a second matrix, and no second matrix.
#include <doctest/doctest.h>

#include <complex>
#include <string>
#include <vector>

#include "adapt/helpers.hpp"
#include "support/counting_new.hpp"

using namespace adapt;
using otimes::kron;

namespace {

const matrix_d A = random(5, 5, 1);
const matrix_d B = random(3, 3, 2);
const matrix_d C = random(8, 8, 3);
const auto kabc = dense_kron(A, B, C);
constexpr Index size = 120;

// Runs `statement` once more than it counts: then the pool of this thread has what a run needs.
template <class Statement>
support::allocations count(const Statement& statement) {
    statement();
    const support::allocation_counter counter;
    statement();
    return counter.seen();
}

}  // namespace

TEST_CASE("X *= K and its relatives, without a second matrix") {
    const auto K = kron(A, B, C);
    const matrix_d x = random(70, size, 4);
    matrix_d X = x;
    X *= K;
    CHECK(support::close(X, times(x, kabc), size));
    row_major_d R = x;
    R *= K;
    CHECK(support::close(R, times(x, kabc), size));
    matrix_d L = random(size, 9, 5);
    const matrix_d l = L;
    L.applyOnTheLeft(K);
    CHECK(support::close(L, times(kabc, l), size));
    L = l;
    L = -0.5 * K * L;
    CHECK(support::close(L, scaled(-0.5, times(kabc, l)), size));
    matrix_d S = random(15, 24, 6);
    const matrix_d s = S;
    S = kron(A, B) * S * kron(B, C);
    CHECK(support::close(S, times(dense_kron(A, B), times(s, dense_kron(B, C))), 360));
    vector_d v = random<vector_d>(size, 1, 7);
    const vector_d old = v;
    v = K * v;
    CHECK(support::close(v, times(kabc, old), size));
    X = x;
    X = X * kron(A, otimes::identity(24));
    CHECK(support::close(X, times(x, dense_kron(A, matrix_d(matrix_d::Identity(24, 24)))), 5));
    matrix_d wide = random(80, size + 7, 8);
    const matrix_d before = wide;
    wide.block(3, 2, 70, size) = wide.block(3, 2, 70, size) * K;
    CHECK(support::close(matrix_d(wide.block(3, 2, 70, size)), times(matrix_d(before.block(3, 2, 70, size)), kabc),
                         size));
    wide.block(3, 2, 70, size) = before.block(3, 2, 70, size);
    CHECK(wide == before);  // nothing else was touched
    using complex = std::complex<double>;
    using matrix_z = Eigen::Matrix<complex, Eigen::Dynamic, Eigen::Dynamic>;
    const matrix_z z =
        matrix_z(random(20, size, 9).cast<complex>()) + complex(0, 1) * random(20, size, 10).cast<complex>();
    const matrix_z D = complex(0.5, 1) * C.cast<complex>();
    matrix_z Z = z;
    Z *= K;  // real factors: a real problem
    CHECK(support::close(Z, times(z, kabc), size));
    Z = z;
    Z = complex(0, 2) * Z * kron(A, B, D);  // mixed factors go through a second matrix
    CHECK(support::close(Z, scaled(complex(0, 2), times(z, dense_kron(A, B, D))), size));
    Z = z;
    Z *= kron(D, D.topLeftCorner(5, 5), D.bottomRightCorner(3, 3)).conjugate();
    CHECK(support::close(Z,
                         times(z, dense_kron(matrix_z(D.conjugate()), matrix_z(D.topLeftCorner(5, 5).conjugate()),
                                             matrix_z(D.bottomRightCorner(3, 3).conjugate()))),
                         size));
    X = x;
    otimes::on(otimes::reference(), X) = X * K;
    CHECK(support::close(X, times(x, kabc), size));
    // a factor inside X, or one that is not square, takes the way through a second matrix
    matrix_d Q = random(24, 24, 11);
    const matrix_d q = Q;
    Q = Q * kron(Q.topLeftCorner(8, 8), B);
    CHECK(support::close(Q, times(q, dense_kron(matrix_d(q.topLeftCorner(8, 8)), B)), 24));
    const matrix_d T = random(6, 4, 12), U = random(4, 6, 13);
    Q = q;
    Q *= kron(T, U);
    CHECK(support::close(Q, times(q, dense_kron(T, U)), 24));
    Q *= kron(B, random(8, 2, 14));
    CHECK(Q.cols() == 6);
}

TEST_CASE("what the memory page shows") {
    const auto K = kron(A, B, C);
    matrix_d X = random(30, size, 4);
    const matrix_d x = X;
    // clang-format off
    // [in_place]
    X *= K;                    // square factors: X is overwritten, pass by pass
    X.applyOnTheLeft(kron(B, otimes::identity(10)));
    auto bare = otimes::make_plan(X, X * K, {.workspace_limit_bytes = 0});
    bare.run(X, X * K);        // nothing is allocated, nothing beside X is written
    // [/in_place]
    // clang-format on
    const auto left = dense_kron(B, matrix_d(matrix_d::Identity(10, 10)));
    CHECK(support::close(X, times(times(left, times(x, kabc)), kabc), 3 * size * size));
    matrix_d Y(30, size);
    std::string refusal;
    // [budget]
    auto p = otimes::make_plan(Y, X * K, {.workspace_limit_bytes = 20'000});
    // p.workspace_bytes <= 20'000, to the byte what p.run(Y, X * K) uses
    try {
        p = otimes::make_plan(Y, X * K, {.workspace_limit_bytes = 100});
    } catch (const otimes::budget_error& e) {
        refusal = e.what();  // "... needs a workspace of at least N bytes ..."; N is a limit that works
    }
    // [/budget]
    CHECK(p.workspace_bytes <= 20'000);
    CHECK(refusal.find("at least") != std::string::npos);
}

TEST_CASE("in place: what is allocated") {
    const auto K = kron(A, B, C);
    matrix_d X = random(300, size, 4);
    X *= 1e-3;
    const auto product = count([&] { X *= K; });
    const auto one = count([&] { X = X * kron(kron(A, B).toDenseMatrix(), otimes::identity(8)); });
    const auto through = count([&] { X += 1e-3 * X * K; });
    if (support::allocations_are_counted()) {
        CHECK(product.count == 0);
        CHECK(one.largest_bytes < 300 * size * sizeof(double) / 4);
        CHECK(through.largest_bytes >= 300 * size * sizeof(double));
    }
}

TEST_CASE("a plan that overwrites X refuses another destination, and says so") {
    const matrix_d A = random(3, 3, 1), B = random(4, 4, 2);
    matrix_d X = random(5, 12, 3);
    const otimes::plan p = otimes::make_plan(X, X * kron(A, B));
    for (matrix_d Y : {random(5, 12, 4), random(2, 3, 4), matrix_d()}) {  // the last two would be resized
        const matrix_d before = Y;
        std::string text;
        try {
            p.run(Y, X * kron(A, B));
        } catch (const otimes::unsupported_error& refused) {
            text = refused.what();
        }
        CHECK(text.find("the plan overwrites X") != std::string::npos);
        CHECK((Y.rows() == before.rows() && Y.cols() == before.cols() && Y == before));
    }
    const matrix_d want = X * kron(A, B);
    p.run(X, X * kron(A, B));
    CHECK(support::close(X, want, 12));
}

TEST_CASE("in place within every workspace limit from 0 up") {
    const auto run = [](const auto& matrix, const auto& kron_of, const auto& dense) {
        const auto x = matrix;
        auto X = x;
        const auto make = [&](std::int64_t limit) {
            return otimes::make_plan(X, X * kron_of, {.workspace_limit_bytes = limit});
        };
        const std::int64_t most = otimes::make_plan(X, X * kron_of).workspace_bytes;
        CHECK(most < static_cast<std::int64_t>(x.size() * static_cast<Index>(sizeof(x(0, 0)))) + (64 << 10));
        std::int64_t before = -1;
        for (std::int64_t limit = 0; limit <= most; limit += std::max<std::int64_t>(64, most / 9)) {
            const otimes::plan p = make(limit);
            REQUIRE(p.workspace_bytes <= limit);
            if (p.workspace_bytes == before) {
                continue;
            }
            before = p.workspace_bytes;
            X = x;
            p.run(X, X * kron_of);
            CHECK(support::close(X, times(x, dense), static_cast<std::size_t>(x.cols())));
        }
        const otimes::plan bare = make(0);
        CHECK(bare.workspace_bytes == 0);
        std::int64_t least = -1;
        try {
            (void)make(-1);
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
        }
        CHECK(least == 0);
        X = x;
        const auto expression = X * kron_of;
        bare.run(X, expression);
        X = x;
        const support::allocation_counter counter;
        bare.run(X, expression);
        const auto seen = counter.seen();
        if (support::allocations_are_counted()) {
            CHECK(seen.count == 0);
        }
        CHECK(support::close(X, times(x, dense), static_cast<std::size_t>(x.cols())));
    };
    run(random(37, size, 1), kron(A, B, C), kabc);
    run(row_major_d(random(37, size, 2)), kron(A, B, C), kabc);
    run(matrix_d(random(3, size, 3)), 2.0 * kron(A, B, C), scaled(2.0, kabc));
    using matrix_c = Eigen::Matrix<std::complex<float>, Eigen::Dynamic, Eigen::Dynamic>;
    const matrix_c c = matrix_c::Random(11, size);
    const matrix_c D = matrix_c::Random(8, 8);
    run(c, kron(matrix_c(A.cast<std::complex<float>>()), matrix_c(B.cast<std::complex<float>>()), D),
        dense_kron(matrix_c(A.cast<std::complex<float>>()), matrix_c(B.cast<std::complex<float>>()), D));
    // only for the product itself, and only where X is the destination
    matrix_d X = random(4, size, 5), Y = X;
    const otimes::plan p = otimes::make_plan(X, X * kron(A, B, C));
    CHECK_THROWS_AS(p.run(Y, X * kron(A, B, C)), otimes::unsupported_error);
    const otimes::plan q = otimes::make_plan(Y, X * kron(A, B, C));
    CHECK_THROWS_AS(q.run(X, X * kron(A, B, C)), otimes::alias_error);
}

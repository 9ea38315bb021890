// SPDX-License-Identifier: MIT
// Elements that move between ranks, ranks that disagree, links that fail.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "support/compare.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {

using matrix = Eigen::MatrixXd;

double value(std::int64_t i, std::int64_t j) { return static_cast<double>(1000 * i + j); }

matrix expected(Eigen::Index rows, Eigen::Index cols) {
    return matrix::NullaryExpr(rows, cols, [](Eigen::Index i, Eigen::Index j) { return value(i, j); });
}

}  // namespace

TEST_CASE("fill, redistribute, scatter, gather") {
    for (const otimes::communicator& ranks : everyone()) {
        const std::int32_t n = ranks.size();
        CAPTURE(ranks.name());
        for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{5, 12}, {1, 30}, {13, 6}, {2, 0}, {0, 4}}) {
            const matrix want = expected(rows, cols);
            std::vector<distribution> all{otimes::cut_rows(n), otimes::cut_columns(n)};
            if (cols % 6 == 0 && cols > 0) {
                const std::vector<std::int64_t> extents{cols / 6, 3, 2};
                all.push_back(otimes::cut_mode(1, n, extents, 1));
                all.push_back(otimes::cut_mode(1, n, extents, 2));
                const std::vector<std::int64_t> others{2, 3, cols / 6};  // not nested in the ones above
                all.push_back(otimes::cut_mode(1, n, others, 1));
                if (n % 2 == 0) {
                    all.push_back(otimes::cut_mode(n / 2, 2, others, 0));
                }
            }
            for (const distribution& from : all) {
                for (const distribution& to : all) {
                    DistributedMatrix<double> d(ranks, rows, cols, from);
                    d.fill(value);
                    d.redistribute(to);
                    CHECK(d.layout() == to);
                    CHECK((d.to_host().array() == want.array()).all());
                }
                const std::int32_t root = n - 1;
                DistributedMatrix<double> d(ranks, rows, cols, from);
                d.scatter(ranks.rank() + ranks.local_count() > root ? want : matrix(), root);
                const matrix here = d.gather(n / 2);
                const bool holds = ranks.rank() <= n / 2 && n / 2 < ranks.rank() + ranks.local_count();
                CHECK(here.rows() == (holds ? rows : 0));
                if (rows == 1) {  // where nothing is held too: a vector cannot be 0 x 0
                    CHECK(d.gather<Eigen::RowVectorXd>(n / 2).size() == (holds ? cols : 0));
                    CHECK((d.to_host<Eigen::RowVectorXd>().array() == want.array()).all());
                }
                CHECK((!holds || (here.array() == want.array()).all()));
                const DistributedMatrix<double> copy(d);
                CHECK(otimes::dot(d, copy) == doctest::Approx(want.squaredNorm()));
            }
        }
        ranks.barrier();
    }
}

TEST_CASE("every rank refuses together") {
    for (const otimes::communicator& ranks : everyone()) {
        const std::int32_t n = ranks.size();
        DistributedMatrix<double> dX(ranks, 4, 6, otimes::cut_columns(n));
        dX.fill(value);
        DistributedMatrix<double> dY(ranks, 4, 6, otimes::cut_columns(n));
        dY.fill(value);
        const matrix A = matrix::Identity(2, 2);
        const matrix B = matrix::Identity(3, 3);
        CHECK(has(thrown([&] { dY = dX * kron(A, A); }), "shape: otimes: X * kron(F1, F2): X is 4 x 6"));
        CHECK(has(thrown([&] { dY += dX * kron(A, matrix::Ones(3, 4)); }), "shape: otimes: Y += expression"));
        const matrix S(257, 257);
        CHECK(has(thrown([&] { dY = dX * kron(A, S.triangularView<Eigen::Lower>()); }),
                  "unsupported: otimes: factor 2, 257 x 257, has structure"));
        CHECK(has(thrown([&] {
                      DistributedMatrix<double>(ranks, 2, 7, otimes::cut_mode(1, 1, std::vector<std::int64_t>{3}, 0));
                  }),
                  "shape: otimes: a distribution along a mode"));
        CHECK(has(thrown([&] { DistributedMatrix<double>(ranks, 2, 7, otimes::cut_rows(n + 1)); }), "does not fit"));
        CHECK(has(thrown([&] { DistributedMatrix<double>(ranks, -1, 7); }), "is no shape"));
        CHECK(has(thrown([&] { static_cast<void>(dY.to_host<Eigen::Matrix<double, 4, 5>>()); }),
                  "shape: otimes: DistributedMatrix::gather, to_host: the matrix is 4 x 6, which the type"));
        CHECK(has(thrown([&] { static_cast<void>(dY.gather<Eigen::VectorXd>()); }), "shape: otimes: Distri"));
        CHECK(has(thrown([&] { static_cast<void>(dY.to_host<Eigen::Matrix<double, -1, -1, 0, 4, 5>>()); }),
                  "shape: otimes: Distri"));
        CHECK((dY.to_host<Eigen::Matrix<double, 4, 6>>().array() == expected(4, 6).array()).all());
        CHECK((dY.to_host<Eigen::Matrix<double, -1, -1, 0, 5, 6>>().array() == expected(4, 6).array()).all());
        CHECK(has(thrown([&] { DistributedMatrix<double> d(otimes::communicator(), 1, 7); }), "there are no ranks"));
        CHECK((dY.to_host().array() == expected(4, 6).array()).all());  // nothing was written
        dY = dX * kron(A, B);
        CHECK((dY.to_host().array() == expected(4, 6).array()).all());
    }
}

TEST_CASE("ranks that were asked for different things throw together and go on") {
    if (!under_mpi() || everyone().front().size() == 1) {
        return;
    }
    const otimes::communicator& ranks = everyone().front();
    const bool first = ranks.rank() == 0;
    DistributedMatrix<double> dX(ranks, 4, 6, otimes::cut_columns(ranks.size()));
    dX.fill(value);
    DistributedMatrix<double> dY(ranks);
    const matrix A = first ? matrix::Ones(2, 2) : matrix::Ones(3, 3);
    const matrix B = first ? matrix::Ones(3, 3) : matrix::Ones(2, 2);
    const std::string said = thrown([&] { dY = dX * kron(A, B); });
    CHECK(has(said, "unsupported: otimes: the ranks were asked for different products"));
    CHECK((first ? has(said, "this rank agrees with rank 0") : has(said, "factor 1 is here 3 x 3, there 2 x 2")));
    // One rank alone cannot make the call: it says why, the others that it could not.
    const matrix wrong = first ? matrix::Ones(5, 5) : matrix::Ones(3, 3);
    const matrix two = matrix::Ones(2, 2);
    const std::string other = thrown([&] { dY = dX * kron(two, wrong); });
    CHECK(has(other,
              first ? "shape: otimes: X * kron(F1, F2)" : "device: otimes: another rank could not make this call"));
    // Another distribution on one rank is another request too.
    DistributedMatrix<double> dZ(ranks, 4, 6,
                                 first ? otimes::cut_rows(ranks.size()) : otimes::cut_columns(ranks.size()));
    CHECK(has(thrown([&] { dZ = dX * kron(two, matrix::Ones(3, 3)); }), "different products"));
    dY = dX * kron(matrix::Identity(2, 2), matrix::Identity(3, 3));
    CHECK((dY.to_host().array() == expected(4, 6).array()).all());
    // So are moves: a host matrix that does not fit is known to its rank alone.
    CHECK(has(thrown([&] { dX.scatter(matrix(4, first ? 5 : 0)); }),
              first ? "shape: otimes: DistributedMatrix::from_host" : "device: otimes: another rank could not"));
    const std::string moved = thrown([&] { dX.redistribute(first ? otimes::cut_rows(ranks.size()) : dX.layout()); });
    CHECK(has(moved, "unsupported: otimes: the ranks were asked to move different matrices"));
    CHECK(has(moved, first ? "rank 0 the same, another not" : "; rank 0: 4 x 6 elements of 8 bytes, columns"));
    // K * X is planned as one row.
    const std::string side = thrown([&] { dY = first ? kron(two, two) * dX : dX * kron(two, matrix::Ones(3, 3)); });
    CHECK(has(side, first ? "this rank agrees with rank 0"
                          : "X has rows (where K * X is asked for, all of X is one): here 4, there 1"));
    CHECK(has(thrown([&] { dX.redistribute(otimes::cut_rows(first ? 1 : ranks.size() + 1)); }),
              first ? "device: otimes: another rank could not" : "shape: otimes: a distribution into"));
    CHECK(has(thrown([&] { static_cast<void>(dX.gather(ranks.size())); }), "shape: otimes: a distribution into"));
    CHECK((dX.to_host().array() == expected(4, 6).array()).all());
}

TEST_CASE("injected failures of sends and receives [alone]") {
    for (const bool lose : {false, true}) {
        auto [ranks, link] = looped(3);
        DistributedMatrix<double> dX(ranks, 2, 30, otimes::cut_columns(3));
        dX.fill(value);
        DistributedMatrix<double> dY(ranks, 2, 30, otimes::cut_rows(3));
        const auto K = [] { return kron(matrix::Identity(5, 5), matrix::Identity(6, 6)); };
        (lose ? link->lose_at : link->fail_at) = link->starts + 1;
        CHECK(has(thrown([&] { dY = dX * K(); }),
                  lose ? "device: loopback: waited in vain" : "device: loopback: the link"));
        CHECK((dX.to_host().array() == expected(2, 30).array()).all());
        dY = dX * K();
        CHECK((dY.to_host().array() == expected(2, 30).array()).all());
    }
}

// Run by lost_rank.sh under mpirun --enable-recovery: rank 1 dies, every other one must get a device_error in time.
TEST_CASE("a rank dies [alone] [lost_rank]") {
    if (std::getenv("OTIMES_TEST_LOST_RANK") == nullptr) {
        return;
    }
    const auto ranks = otimes::make_communicator({.deadline = std::chrono::seconds(2), .use_gpus = false});
    DistributedMatrix<double> dX(ranks, 2, 4096, otimes::cut_columns(ranks.size()));
    dX.fill(value);
    DistributedMatrix<double> dY(dX);
    const matrix A = matrix::Identity(64, 64);
    dY = dX * kron(A, A);
    ranks.barrier();
    if (ranks.rank() == 1) {
        std::raise(SIGKILL);
    }
    const auto began = std::chrono::steady_clock::now();
    const std::string said = thrown([&] {
        for (int i = 0; i < 100; ++i) {
            dY = dX * kron(A, A);
        }
    });
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    CHECK(has(said, "device: "));
    CHECK(waited < 10);
    CHECK(has(thrown([&] { dY = dX * kron(A, A); }), "device: otimes: the communicator is broken since"));
    if (has(said, "device: ") && waited < 10) {
        std::printf("survivor %d\n", static_cast<int>(ranks.rank()));
        std::fflush(stdout);
    }
}

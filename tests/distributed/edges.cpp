// SPDX-License-Identifier: MIT
// Matrices without elements, without a shape, without ranks, and distributions that are none.
#include "distributed/ranks.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <utility>

#include "support/compare.hpp"
#include "support/random.hpp"

using namespace ranks_test;
using otimes::DistributedMatrix;
using otimes::distribution;
using otimes::kron;

namespace {
using matrix = Eigen::MatrixXd;
}

TEST_CASE("extents of zero, in and behind every mode") {
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::int32_t n = ranks.size();
        std::vector<distribution> cuts{otimes::cut_rows(n), otimes::cut_columns(n)};
        for (const std::vector<std::int64_t>& extents :
             {std::vector<std::int64_t>{2, 0}, std::vector<std::int64_t>{0, 2}, std::vector<std::int64_t>{2, 0, 3}}) {
            for (std::size_t mode = 0; mode < extents.size(); ++mode) {
                cuts.push_back(otimes::cut_mode(1, n, extents, mode));
                if (n % 2 == 0) {
                    cuts.push_back(otimes::cut_mode(2, n / 2, extents, mode));
                }
            }
        }
        for (const distribution& from : cuts) {
            for (const distribution& to : cuts) {
                CAPTURE(to_string(from));
                CAPTURE(to_string(to));
                DistributedMatrix<double> d(ranks, 8, 0, from);
                d.redistribute(to);
                CHECK(d.layout() == to);
                CHECK(d.gather().cols() == 0);
                CHECK(d.to_host().rows() == 8);
                d.scatter(matrix(8, 0), n - 1);
            }
            // Nothing comes out of columns, and of no columns zeros.
            DistributedMatrix<double> x(ranks, 8, 4, otimes::cut_columns(n)), y(ranks, 8, 0, from);
            x.fill([](std::int64_t, std::int64_t) { return 1.0; });
            y = x * kron(matrix::Ones(4, 2), matrix(1, 0));
            CHECK(y.layout() == from);
            CHECK(y.gather().cols() == 0);
            DistributedMatrix<double> z(ranks, 8, 6, otimes::cut_rows(n));
            z.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            z = y * kron(matrix(0, 2), matrix::Ones(2, 3));
            CHECK((z.to_host().array() == 0).all());
        }
        // With a distribution that the planner chooses.
        const std::vector<std::int64_t> extents{2, 4, 2, 1};
        for (std::size_t mode = 0; mode < extents.size(); ++mode) {
            CAPTURE(mode);
            DistributedMatrix<double> x(ranks, 8, 16, otimes::cut_mode(1, n, extents, mode)), y(ranks);
            x.fill([](std::int64_t, std::int64_t) { return 1.0; });
            y = x * kron(matrix::Ones(2, 3), matrix::Ones(4, 3), matrix::Ones(2, 1), matrix(1, 0));
            CHECK(y.gather().cols() == 0);
            CHECK(y.to_host().rows() == 8);
        }
    }
}

TEST_CASE("matrices that have no shape yet, or no ranks") {
    CHECK(has(thrown([] { const otimes::communicator none(nullptr, {}); }),
              "unsupported: otimes: a communicator was made without a transport"));
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        const std::int32_t n = ranks.size();
        DistributedMatrix<double> d(ranks);
        CHECK(d.data() == nullptr);
        CHECK(std::as_const(d).data(ranks.local_count() - 1) == nullptr);
        CHECK(d.sources().size() == static_cast<std::size_t>(ranks.local_count()));
        CHECK(d.gather().size() == 0);
        CHECK(d.to_host().size() == 0);
        CHECK(d.staged_block().empty());
        CHECK(
            has(thrown([&] { static_cast<void>(d.staged_block(ranks.local_count())); }),
                "shape: otimes: DistributedMatrix::block(" + std::to_string(ranks.local_count()) + "): this process"));
        CHECK(has(thrown([&] { static_cast<void>(d.block(-1)); }), "block(-1): this process has "));
        d.scatter(matrix(0, 0));
        CHECK(dot(d, d) == 0);
        DistributedMatrix<double> e(d);
        e = 2.0 * d;
        CHECK(e.rows() == 0);
        DistributedMatrix<double> f(ranks);
        f.redistribute(otimes::cut_columns(n));
        CHECK(f.layout() == otimes::cut_columns(n));
        // What was moved from has no ranks.
        DistributedMatrix<double> moved(std::move(f));
        CHECK(f.data() == nullptr);
        CHECK(f.sources().empty());
        f.fill([](std::int64_t, std::int64_t) { return 1.0; });
        CHECK_THROWS_AS(static_cast<void>(f.gather()), otimes::unsupported_error);
        CHECK_THROWS_AS(static_cast<void>(f.to_host()), otimes::unsupported_error);
        CHECK_THROWS_AS(f.redistribute(otimes::cut_rows(n)), otimes::unsupported_error);
        ranks.barrier();
    }
}

TEST_CASE("distributions whose numbers are too large, or negative") {
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();
    for (const otimes::communicator& ranks : everyone()) {
        CAPTURE(ranks.name());
        DistributedMatrix<double> d(ranks, 6, 6);
        d.fill([](std::int64_t i, std::int64_t j) { return static_cast<double>(6 * i + j); });
        for (const distribution& wrong : {
                 distribution{.row_parts = 65536, .col_parts = 65536},
                 distribution{.row_parts = most, .col_parts = 3},
                 distribution{.first_rank = most},
                 distribution{.first_rank = -1},
                 distribution{.outer = -1, .extent = 6, .inner = -1},
                 distribution{.outer = 1, .extent = -6, .inner = -1},
                 distribution{.outer = -2, .extent = 0, .inner = 1},
                 distribution{.outer = longest, .extent = 3, .inner = 2},
                 distribution{.outer = std::int64_t{1} << 32, .extent = (std::int64_t{1} << 32) + 6, .inner = 1},
                 otimes::cut_mode(1, 1, std::vector<std::int64_t>{6, longest, longest}, 0),
             }) {
            CHECK_THROWS_AS(d.redistribute(wrong), otimes::shape_error);
            CHECK_THROWS_AS(DistributedMatrix<double>(ranks, 6, 6, wrong), otimes::shape_error);
        }
        for (const std::int32_t root : {most, ranks.size(), -1}) {
            CHECK_THROWS_AS(static_cast<void>(d.gather(root)), otimes::shape_error);
            CHECK_THROWS_AS(d.scatter(matrix(6, 6), root), otimes::shape_error);
        }
        CHECK(d.to_host().sum() == 630);
    }
}

// SPDX-License-Identifier: MIT
// Workspace limits on a GPU for products with structured factors: steps of their own, which slabs cut with the chains around them.
#include "host_side.hpp"

#include <Eigen/SparseCore>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace host_side;

namespace {

/// Y = X * kron(A, d, S, B) within every limit from the least up, with d in device memory or on the host.
template <int OrderOfX, int OrderOfY>
void keep_limits(bool diagonal_on_host) {
    const matrix A = whole(4, 6, 1), B = whole(5, 3, 2), X = whole(37, 4 * 3 * 7 * 5, 3);
    const matrix d = whole(3, 1, 4), entries = whole(7, 7, 5);
    matrix some = entries;
    for (Eigen::Index i = 0; i < some.size(); ++i) some.data()[i] *= i % 3 == 0 ? 1 : 0;
    const Eigen::SparseMatrix<double> S = some.sparseView();
    const matrix want = X * dense(dense(dense(A, d.asDiagonal()), some), B);
    const DeviceMatrix<double> dA(A), dB(B), dd(d);
    const otimes::DeviceSparse<double> dS(S);
    const DeviceMatrix<double, OrderOfX> dX(X);
    DeviceMatrix<double, OrderOfY> dY(want.rows(), want.cols());
    const auto check = [&](const auto& product) {
        const auto planned = [&](std::int64_t limit) {
            return otimes::make_plan<OrderOfY>(product, {.workspace_limit_bytes = limit});
        };
        const otimes::plan roomy = planned(std::numeric_limits<std::int64_t>::max());
        CHECK(roomy.slab_count == 1);
        std::int64_t least = 0;
        try {
            static_cast<void>(planned(0));
        } catch (const otimes::budget_error& refused) {
            least = refused.least_bytes();
        }
        REQUIRE(least > 0);
        REQUIRE(least < roomy.workspace_bytes / 8);
        CHECK_THROWS_AS(static_cast<void>(planned(least - 1)), otimes::budget_error);
        std::vector<std::int64_t> seen;
        for (std::int64_t limit = least; limit <= roomy.workspace_bytes; limit += 128) {
            const otimes::plan p = planned(limit);
            REQUIRE(p.workspace_bytes <= limit);
            if (std::ranges::find(seen, p.slab_extent) != seen.end()) continue;
            seen.push_back(p.slab_extent);
            dY = DeviceMatrix<double, OrderOfY>(matrix::Constant(want.rows(), want.cols(), NAN));
            p.run(dY, product);
            CHECK(dY.to_host() == want);
        }
        CHECK(seen.size() > 4);  // all rows, 18, 9, 4, 2, 1
        CHECK(seen.front() == 1);
    };
    if (diagonal_on_host) {
        check(dX * kron(dA, d.asDiagonal(), dS, dB));
    } else {
        check(dX * kron(dA, dd.asDiagonal(), dS, dB));
    }
}

}  // namespace

TEST_CASE("products with diagonal and sparse factors keep a workspace limit by slabs, with the same result") {
    const otimes::scoped_executor here(otimes::gpu());
    for (const bool on_host : {false, true}) {
        CAPTURE(on_host);
        keep_limits<0, 0>(on_host);
        keep_limits<1, 1>(on_host);
        keep_limits<0, 1>(on_host);
    }
    CHECK(driver().frees_of_nothing == 0);
}

// SPDX-License-Identifier: MIT
// Column-major matrices in pinned host memory: the device copies the lines of a slab of rows by itself.
#include "host_side.hpp"

#include <limits>

using namespace host_side;

namespace {

/// What the driver saw while Y = X * K ran.
struct seen {
    int copies_of_lines = 0;
    int compilations_past_cache = 0;
    friend bool operator==(const seen&, const seen&) = default;
};

seen run_pinned(const matrix& A, const matrix& B, const matrix& X, bool pin_x, bool pin_y, std::int64_t limit) {
    const matrix want = X * dense(A, B);
    matrix Y = matrix::Constant(want.rows(), want.cols(), std::numeric_limits<double>::quiet_NaN());
    const otimes::pinned_scope x(X.data(), pin_x ? X.size() * 8 : 0), y(Y.data(), pin_y ? Y.size() * 8 : 0);
    const auto product = X * kron(A, B);
    const otimes::plan p =
        otimes::make_plan(Y, product, {.workspace_limit_bytes = limit, .placement = otimes::placement::gpu});
    const seen before{driver().copies_of_lines, driver().compilations_past_cache};
    p.run(Y, product);
    CHECK(Y == want);
    return {driver().copies_of_lines - before.copies_of_lines,
            driver().compilations_past_cache - before.compilations_past_cache};
}

}  // namespace

TEST_CASE("streaming: the device copies long lines of pinned matrices, beside kernels that spare its cache") {
    const otimes::scoped_executor here(otimes::gpu());
    constexpr std::int64_t roomy = 3000000;  // bytes, a third of X and Y: seven slabs, lines of 17 KiB
    const matrix A = whole(7, 5, 1), B = whole(6, 8, 2), X = whole(16000, 42, 3);
    CHECK(run_pinned(A, B, X, false, false, roomy) == seen{});
    const seen both = run_pinned(A, B, X, true, true, roomy), in = run_pinned(A, B, X, true, false, roomy),
               out = run_pinned(A, B, X, false, true, roomy);
    CHECK(in.copies_of_lines > 2);
    CHECK(in.copies_of_lines == out.copies_of_lines);
    CHECK(both.copies_of_lines == 2 * in.copies_of_lines);
    CHECK(both.compilations_past_cache > 0);
    CHECK(out.compilations_past_cache == 0);  // they are there already
    // A tight budget makes short lines, which threads copy.
    CHECK(run_pinned(A, B, X, true, true, 100000) == seen{});
    // Without a compiler the kernels are the usual ones.
    const matrix C = whole(5, 7, 4), D = whole(8, 6, 5), V = whole(16000, 40, 6);
    const failing refused("nvrtcCompileProgram", 6);
    CHECK(run_pinned(C, D, V, true, true, roomy).copies_of_lines > 4);
}

// SPDX-License-Identifier: MIT
// One long factor by the warpgroup's unit, on the host. As blocked.cpp.
#include "kernels/blocked.hpp"

#include <warpgroup_blocks.cuh>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

template <bool Single, bool XAlongP, bool FAlongP, int NewIndices>
void run_warpgroups(const blocked_case<float>& test, const blocked_problem& c) {
    using shape = warpgroup_blocks_shape<Single, XAlongP, FAlongP, NewIndices>;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, shape::threads, shape::shared_bytes, [&test] { warpgroup_blocks<shape>(test.a); });
}

template <bool Single, int NewIndices>
void check_warpgroups(const blocked_problem& c, double most, int seed) {
    CAPTURE(c.p);
    CAPTURE(c.q);
    CAPTURE(c.f1);
    CAPTURE(c.x_along_p);
    CAPTURE(c.f_along_p);
    CAPTURE(NewIndices);
    blocked_case<float> test(c, seed);
    if (c.x_along_p)
        c.f_along_p ? run_warpgroups<Single, true, true, NewIndices>(test, c)
                    : run_warpgroups<Single, true, false, NewIndices>(test, c);
    else
        c.f_along_p ? run_warpgroups<Single, false, true, NewIndices>(test, c)
                    : run_warpgroups<Single, false, false, NewIndices>(test, c);
    CHECK(relative_distance(widened(test.y), test.want) <= most);
}

}  // namespace

TEST_CASE(
    "a long factor by the warpgroup's unit: edges, gaps, all layouts, one sequence of panels through several tiles") {
    int seed = 1;
    for (const bool x_along_p : {true, false})
        for (const bool f_along_p : {true, false}) {
            // Less than a panel; 16-byte accesses and more tiles than blocks; odd rows, so single elements, added to what is there.
            for (const blocked_problem& c : {blocked_problem{11, 7, 20, 3}, blocked_problem{72, 136, 36, 4},
                                             blocked_problem{70, 33, 9, 15, 1, true, false, false, true, true, 1, 1}}) {
                blocked_problem now = c;
                now.x_along_p = x_along_p;
                now.f_along_p = f_along_p;
                check_warpgroups<false, 32>(now, tolerance<float>, ++seed);
                check_warpgroups<false, 128>(now, tolerance<float>, ++seed);
            }
            const blocked_problem odd{37, 33, 9, 40, 2, x_along_p, f_along_p, true, false, false, 1};
            check_warpgroups<false, 72>(odd, tolerance<float>, ++seed);
            check_warpgroups<true, 64>(odd, 1e-3, ++seed);
            const blocked_problem turned{52, 64, 24, 20, 3, x_along_p, f_along_p, true, false, true, 0, 1, true};
            check_warpgroups<false, 64>(turned, tolerance<float>, ++seed);
        }
}

TEST_CASE(
    "a long factor by the warpgroup's unit: no p leaves beta * Y; infinite, NaN and large floats as multiply-adds give "
    "them") {
    check_empty_and_special(run_warpgroups<false, true, false, 40>);
}

}  // namespace kernel_tests

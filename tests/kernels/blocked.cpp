// SPDX-License-Identifier: MIT
// One long factor by blocks, on the host: every instantiation that launches ask for, with edges in all extents, gaps, both layouts of X and of F, factors of
// their own for each index, products added to Y, and numbers that the matrix unit cannot split. As fused_kernels.cpp.
#include <algorithm>
#include <type_traits>

#include "kernels/blocked.hpp"

#include <staying_factor.cuh>
#include <warpgroup_blocks.cuh>

#include <otimes/plan/gpu_blocks.hpp>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

template <class Storage, bool Unit, bool Single, bool XAlongP, bool FAlongP, int Warps>
void run_blocked(const blocked_case<Storage>& test, const blocked_problem& c) {
    using shape = blocked_shape<Storage, typename computing<Storage>::type, Unit, Single, XAlongP, FAlongP, Warps>;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, shape::threads, shape::shared_bytes, [&test] { blocked_multiply<shape>(test.a); });
}

template <class Storage, bool Unit, bool Single, int Warps>
void check_blocked(const blocked_problem& c, double most, int seed) {
    CAPTURE(c.p);
    CAPTURE(c.q);
    CAPTURE(c.f1);
    CAPTURE(c.x_along_p);
    CAPTURE(c.f_along_p);
    blocked_case<Storage> test(c, seed);
    if (c.x_along_p)
        c.f_along_p ? run_blocked<Storage, Unit, Single, true, true, Warps>(test, c)
                    : run_blocked<Storage, Unit, Single, true, false, Warps>(test, c);
    else
        c.f_along_p ? run_blocked<Storage, Unit, Single, false, true, Warps>(test, c)
                    : run_blocked<Storage, Unit, Single, false, false, Warps>(test, c);
    CHECK(relative_distance(widened(test.y), test.want) <= most);
}

// What the planner says of a block is what the kernel has.
template <class Storage, bool Unit, int Warps>
void check_extents(otimes::dtype type, otimes::sweep_kernel arithmetic) {
    using shape = blocked_shape<Storage, typename computing<Storage>::type, Unit,
                                Unit && sizeof(typename computing<Storage>::type) == 4, true, false, Warps>;
    otimes::planning::blocked_kernel k;
    k.type = type;
    k.arithmetic = arithmetic;
    k.warps_of_q = Warps;
    CHECK(k.threads() == shape::threads);
    CHECK(k.fibres() == shape::fibres);
    CHECK(k.warp_q() * Warps == shape::new_indices);
    CHECK(k.depth() == shape::depth);
    using other = blocked_shape<Storage, typename computing<Storage>::type, Unit, shape::single, false, true, Warps>;
    CHECK(k.shared_bytes() >= std::max(shape::shared_bytes, other::shared_bytes));
}

template <class Shape>
otimes::planning::blocked_kernel by_warpgroups(int staying_steps) {
    constexpr bool doubles = std::is_same_v<typename Shape::scalar, double>;
    otimes::planning::blocked_kernel k;
    k.type = doubles ? otimes::dtype::f64 : otimes::dtype::f32;
    k.arithmetic = doubles         ? otimes::sweep_kernel::mma_f64
                   : Shape::single ? otimes::sweep_kernel::mma_tf32
                                   : otimes::sweep_kernel::mma_split;
    k.together = Shape::new_indices;
    k.staying_steps = staying_steps;
    CHECK(k.threads() == Shape::threads);
    CHECK(k.fibres() == Shape::fibres);
    CHECK(k.new_indices() == Shape::new_indices);
    CHECK(k.depth() == Shape::depth);
    return k;
}

template <bool Single, int NewIndices>
void check_warpgroup_extents() {
    using shape = warpgroup_blocks_shape<Single, true, false, NewIndices>;
    using other = warpgroup_blocks_shape<Single, false, true, NewIndices>;
    CHECK(by_warpgroups<shape>(0).shared_bytes() >= std::max(shape::shared_bytes, other::shared_bytes));
}

template <class Scalar, bool Single, int Steps, int NewIndices>
void check_staying_extents() {
    using shape = staying_factor_shape<Scalar, Single, true, Steps, NewIndices>;
    using other = staying_factor_shape<Scalar, Single, false, Steps, NewIndices>;
    const otimes::planning::blocked_kernel k = by_warpgroups<shape>(Steps);
    CHECK(k.staying_panels() == shape::panels);
    CHECK(k.shared_bytes() == std::max(shape::shared_bytes, other::shared_bytes));
    CHECK(shape::long_panels * shape::panel_steps + (shape::panels - shape::long_panels) * (shape::panel_steps - 1) ==
          Steps);
}

}  // namespace

TEST_CASE("a long factor by blocks: the planner knows the blocks") {
    using otimes::dtype;
    using otimes::sweep_kernel;
    check_extents<float, true, 2>(dtype::f32, sweep_kernel::mma_split);
    check_extents<float, false, 3>(dtype::f32, sweep_kernel::fibre);
    check_extents<double, true, 1>(dtype::f64, sweep_kernel::mma_f64);
    check_extents<double, true, 2>(dtype::f64, sweep_kernel::mma_f64);
    check_extents<double, true, 3>(dtype::f64, sweep_kernel::mma_f64);
    check_extents<double, false, 2>(dtype::f64, sweep_kernel::fibre);
    check_extents<c64, false, 3>(dtype::c64, sweep_kernel::fibre);
    check_extents<c128, false, 2>(dtype::c128, sweep_kernel::fibre);
    check_extents<otimes::kernels::half, true, 2>(dtype::f16, sweep_kernel::mma_tf32);
    check_extents<otimes::kernels::bfloat16, false, 2>(dtype::bf16, sweep_kernel::fibre);
    check_warpgroup_extents<false, 128>();
    check_warpgroup_extents<true, 72>();
    check_warpgroup_extents<false, 32>();
    check_staying_extents<float, false, 13, 104>();
    check_staying_extents<float, true, 16, 128>();
    check_staying_extents<float, false, 5, 40>();
    check_staying_extents<float, false, 27, 72>();
    check_staying_extents<double, false, 13, 104>();
    check_staying_extents<double, false, 5, 32>();
    check_staying_extents<double, false, 16, 128>();
}

TEST_CASE("a long factor by blocks: edges, gaps, both layouts, several tiles a block") {
    int seed = 1;
    for (const bool x_along_p : {true, false})
        for (const bool f_along_p : {true, false}) {
            // Less than a panel; 16-byte accesses and an edge in each extent; odd rows and so single elements; more tiles than blocks.
            for (const blocked_problem& c : {blocked_problem{11, 7, 20, 3}, blocked_problem{36, 40, 44, 3},
                                             blocked_problem{37, 33, 9, 15, 1, true, false, false, true, true, 1},
                                             blocked_problem{48, 100, 130, 2}}) {
                blocked_problem now = c;
                now.x_along_p = x_along_p;
                now.f_along_p = f_along_p;
                check_blocked<float, true, false, 2>(now, tolerance<float>, ++seed);
                check_blocked<double, true, false, 2>(now, tolerance<double>, ++seed);
            }
            blocked_problem odd{37, 33, 9, 15, 1, x_along_p, f_along_p, false, false, false, 1};
            check_blocked<float, true, false, 3>(odd, tolerance<float>, ++seed);
            check_blocked<double, true, false, 1>(odd, tolerance<double>, ++seed);
            check_blocked<float, true, true, 2>(odd, 1e-3, ++seed);
            check_blocked<float, false, false, 2>(odd, tolerance<float>, ++seed);
            check_blocked<double, false, false, 3>(odd, tolerance<double>, ++seed);
            check_blocked<c64, false, false, 2>(odd, tolerance<c64>, ++seed);
            check_blocked<c128, false, false, 2>(odd, tolerance<c128>, ++seed);
            check_blocked<otimes::kernels::half, true, true, 2>(odd, 1e-3, ++seed);
            check_blocked<otimes::kernels::bfloat16, false, false, 2>(odd, 8e-3, ++seed);
            odd.adds = true;
            check_blocked<otimes::kernels::half, true, true, 2>(odd, 1e-3, ++seed);
            const blocked_problem turned{52, 64, 24, 20, 3, x_along_p, f_along_p, true, false, true, 0, 1, true};
            check_blocked<float, true, false, 2>(turned, tolerance<float>, ++seed);
        }
}

TEST_CASE("a long factor of doubles by blocks: copies set off between the products, blocks of all widths") {
    int seed = 1;
    for (const bool x_along_p : {true, false})
        for (const bool f_along_p : {true, false}) {
            // Whole panels and a part of one, tiles that end within a warp's part or leave a warp none, more tiles than blocks; Q odd and rows padded, so
            // that a piece would reach beyond them; single elements.
            for (const blocked_problem& c : {blocked_problem{200, 140, 66, 3},
                                             blocked_problem{192, 33, 130, 1, 2, true, false, true, true, true, 1, 1},
                                             blocked_problem{129, 70, 9, 5, 1, true, false, false, false, false, 1}}) {
                blocked_problem now = c;
                now.x_along_p = x_along_p;
                now.f_along_p = f_along_p;
                check_blocked<double, true, false, 1>(now, tolerance<double>, ++seed);
                check_blocked<double, true, false, 2>(now, tolerance<double>, ++seed);
                check_blocked<double, true, false, 3>(now, tolerance<double>, ++seed);
            }
        }
}

TEST_CASE_TEMPLATE("a long factor by blocks: factors of their own, added to what is there", Scalar, float, double, c64,
                   c128) {
    constexpr bool unit = !scalar_traits<Scalar>::is_complex;
    blocked_problem own{35, 50, 40, 1, 5, true, false, true, true, true};
    check_blocked<Scalar, unit, false, 2>(own, tolerance<Scalar>, 3);
    own.x_along_p = false;
    own.f_along_p = true;
    own.gap = 2;
    check_blocked<Scalar, unit, false, 2>(own, tolerance<Scalar>, 4);
}

TEST_CASE("a long factor by blocks: no p leaves beta * Y; infinite, NaN and large floats are what multiply-adds give") {
    check_empty_and_special(run_blocked<float, true, false, true, false, 2>);
}

}  // namespace kernel_tests

// SPDX-License-Identifier: MIT
// One long factor by blocks, on the host: every instantiation that launches ask for, with edges in all extents, gaps, both layouts of X and of F, factors of
// their own for each index, products added to Y or summed up, and numbers that the matrix unit cannot split. As fused_kernels.cpp.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/oracle.hpp"

#include <blocked_multiply.cuh>
#include <staying_factor.cuh>
#include <warpgroup_blocks.cuh>

#include <otimes/plan/gpu_blocks.hpp>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

using c64 = otimes::kernels::complex<float>;
using c128 = otimes::kernels::complex<double>;

wide conjugated(wide v, bool yes) { return yes ? std::conj(v) : v; }

// X[b, f2, p, f1] where p is not the innermost, else X[b, f2, f1, p]; Y alike with q; F[b or not, p, q] or [q, p]. Rows are `gap` longer than
// what they hold.
struct blocked_problem {
    index p, q, f1, f2 = 1, b = 1;
    bool x_along_p = true, f_along_p = false, own_factors = false, adds = false, backwards = false;
    index gap = 0;
    int grid = 2;
    bool turned = false;  // Y's rows are X's columns
};

template <class Storage>
struct blocked_case {
    using scalar = typename computing<Storage>::type;
    blocked_arguments<Storage, scalar> a{};
    std::vector<Storage> x, f, y;
    std::vector<wide> want;

    explicit blocked_case(const blocked_problem& c, int seed) {
        const bool y_along_q = c.x_along_p != c.turned;
        const index row_x = (c.x_along_p ? c.p : c.f1) + c.gap, row_y = (y_along_q ? c.q : c.f1) + c.gap;
        const index x_f1 = c.x_along_p ? row_x : 1, x_p = c.x_along_p ? 1 : row_x,
                    x_f2 = row_x * (c.x_along_p ? c.f1 : c.p), x_b = x_f2 * c.f2;
        const index y_f1 = y_along_q ? row_y : 1, y_q = y_along_q ? 1 : row_y, y_f2 = row_y * (y_along_q ? c.f1 : c.q),
                    y_b = y_f2 * c.f2;
        const index row_f = (c.f_along_p ? c.p : c.q) + c.gap, f_p = c.f_along_p ? 1 : row_f,
                    f_q = c.f_along_p ? row_f : 1, f_b = row_f * (c.f_along_p ? c.q : c.p);
        support::random_stream stream(seed);
        // What lies between the rows is not a number: it must not come in.
        const Storage nothing = make<Storage>({std::numeric_limits<double>::quiet_NaN(), 0});
        x = random_values<Storage>(stream, x_b * c.b);
        f = random_values<Storage>(stream, f_b * (c.own_factors ? c.b : 1));
        for (std::size_t i = 0; i < x.size(); ++i)
            if (index(i) % row_x >= row_x - c.gap) x[i] = nothing;
        for (std::size_t i = 0; i < f.size(); ++i)
            if (index(i) % row_f >= row_f - c.gap) f[i] = nothing;
        // Behind the last row there is nothing at all.
        x.resize(x.size() - std::size_t(c.gap));
        x.shrink_to_fit();
        f.resize(f.size() - std::size_t(c.gap));
        f.shrink_to_fit();
        y = random_values<Storage>(stream, y_b * c.b);
        auto& s = a.sliced;
        s.x = x.data();
        s.f = f.data();
        s.y = y.data();
        s.alpha = make<scalar>({0.5, c.adds ? 1.0 : 0.0});
        s.beta = make<scalar>({c.adds ? -2.0 : 0.0, 0});
        s.p_extent = c.p;
        s.q_extent = c.q;
        s.x_p_stride = x_p;
        s.f_p_stride = f_p;
        s.f_q_stride = f_q;
        s.y_q_stride = y_q;
        const auto free = [&s](index extent, index x_stride, index y_stride, index f_stride) {
            s.free_extent[s.free_count] = extent;
            s.x_stride[s.free_count] = x_stride;
            s.y_stride[s.free_count] = y_stride;
            s.f_stride[s.free_count++] = f_stride;
        };
        free(c.b, x_b, y_b, c.own_factors ? f_b : 0);
        a.batch_count = c.own_factors ? 1 : 0;
        free(c.f2, x_f2, y_f2, 0);
        free(c.f1, x_f1, y_f1, 0);
        s.conjugate_x = c.adds;
        s.conjugate_f = c.own_factors;
        for (const Storage& before : y) {
            want.push_back(widen(before));  // what lies between the rows stays
        }
        for (index b = 0; b < c.b; ++b)
            for (index i = 0; i < c.f2; ++i)
                for (index j = 0; j < c.f1; ++j)
                    for (index n = 0; n < c.q; ++n) {
                        wide sum = 0;
                        for (index k = 0; k < c.p; ++k)
                            sum += conjugated(widen(x[std::size_t(b * x_b + i * x_f2 + j * x_f1 + k * x_p)]), c.adds) *
                                   conjugated(widen(f[std::size_t((c.own_factors ? b * f_b : 0) + k * f_p + n * f_q)]),
                                              c.own_factors);
                        const auto at = std::size_t(b * y_b + i * y_f2 + j * y_f1 + n * y_q);
                        want[at] = widen(s.alpha) * sum + (c.adds ? widen(s.beta) * want[at] : wide{});
                        if (!c.adds) y[at] = make<Storage>({std::numeric_limits<double>::quiet_NaN(), 0});
                    }
    }
};

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

template <class Scalar, bool Single, bool XAlongP, int Steps, int NewIndices>
void run_staying(const blocked_case<Scalar>& test, const blocked_problem& c) {
    using shape = staying_factor_shape<Scalar, Single, XAlongP, Steps, NewIndices>;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, shape::threads, shape::shared_bytes, [&test] { staying_factor<shape>(test.a); });
}

template <class Scalar, bool Single, int Steps, int NewIndices>
void check_staying(const blocked_problem& c, double most, int seed) {
    CAPTURE(c.p);
    CAPTURE(c.q);
    CAPTURE(c.f1);
    CAPTURE(c.gap);
    CAPTURE(c.x_along_p);
    CAPTURE(c.f_along_p);
    CAPTURE(NewIndices);
    REQUIRE((c.p + 7) / 8 == Steps);
    blocked_case<Scalar> test(c, seed);
    c.x_along_p ? run_staying<Scalar, Single, true, Steps, NewIndices>(test, c)
                : run_staying<Scalar, Single, false, Steps, NewIndices>(test, c);
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

// The sums of all blocks instead of a product: what it would be, times what stands in Y, or squared. Y is not written, and of a norm not read.
template <class Shape>
void check_sum(void (*kernel)(const blocked_arguments<typename Shape::storage, typename Shape::scalar>),
               const blocked_problem& c, int seed) {
    using scalar = typename Shape::scalar;
    using sum = typename sum_type<scalar>::type;
    constexpr bool norm = Shape::ending == ends_in_norm;
    CAPTURE(c.p);
    CAPTURE(c.q);
    CAPTURE(c.gap);
    CAPTURE(c.turned);
    CAPTURE(Shape::ending);
    CAPTURE(Shape::x_along_p);
    REQUIRE(!c.adds);
    blocked_case<scalar> test(c, seed);
    const wide alpha = rounded<scalar>({0.5, 1.0}), was = widen(test.a.sliced.alpha);
    test.a.sliced.alpha = make<scalar>(alpha);
    support::random_stream stream(seed + 1000);
    wide total = 0;
    double size = 0;
    for (std::size_t i = 0; i < test.y.size(); ++i) {
        const bool is_product = std::isnan(widen(test.y[i]).real());
        test.y[i] = make<scalar>({std::numeric_limits<double>::quiet_NaN(), 0});
        if (!is_product) continue;
        const wide product = test.want[i] / was * alpha;
        if (!norm) test.y[i] = make<scalar>(next_value(stream));
        const wide v = widen(test.y[i]), term = norm ? std::norm(product) : std::conj(v) * product;
        total += term;
        size += std::abs(term);
    }
    const index room = c.grid + 3;
    std::vector<sum> sums(static_cast<std::size_t>(room) + 1, sum(std::numeric_limits<double>::quiet_NaN()));
    test.a.sums = sums.data();
    test.a.sum_count = static_cast<unsigned>(room);
    test.a.conjugate_y = true;
    const std::vector<scalar> before = test.y;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, Shape::threads, Shape::shared_bytes, [&] { kernel(test.a); });
    wide got = 0;
    for (index b = 0; b < room; ++b) {
        got += widen(sums[static_cast<std::size_t>(b)]);
        CHECK((b < c.grid) == (widen(sums[static_cast<std::size_t>(b)]) != wide(0)));
    }
    CHECK(std::abs(got - total) <= 6 * tolerance<scalar> * size);  // both add many terms
    CHECK(std::isnan(widen(sums.back()).real()));                  // behind the last
    CHECK(std::memcmp(before.data(), test.y.data(), before.size() * sizeof(scalar)) == 0);
}

template <class Scalar, bool Unit, bool XAlongP, int Warps, int Ending>
void check_blocked_sum(const blocked_problem& c, int seed) {
    using shape = blocked_shape<Scalar, Scalar, Unit, false, XAlongP, false, Warps, Ending>;
    check_sum<shape>(blocked_multiply<shape>, c, seed);
}

template <bool XAlongP, int Ending>
void check_warpgroup_sum(const blocked_problem& c, int seed) {
    using shape = warpgroup_blocks_shape<false, XAlongP, false, 64, Ending>;
    check_sum<shape>(warpgroup_blocks<shape>, c, seed);
}

template <class Scalar, bool XAlongP, int Ending>
void check_staying_sum(const blocked_problem& c, int seed) {
    using shape = staying_factor_shape<Scalar, false, XAlongP, 7, 72, Ending>;
    check_sum<shape>(staying_factor<shape>, c, seed);
}

template <bool XAlongP, int Ending>
void check_sums(blocked_problem c, int& seed) {
    c.x_along_p = XAlongP;
    check_blocked_sum<float, true, XAlongP, 2, Ending>(c, ++seed);
    check_blocked_sum<double, true, XAlongP, 3, Ending>(c, ++seed);
    check_blocked_sum<float, false, XAlongP, 1, Ending>(c, ++seed);
    check_blocked_sum<double, false, XAlongP, 2, Ending>(c, ++seed);
    check_blocked_sum<c64, false, XAlongP, 1, Ending>(c, ++seed);
    check_blocked_sum<c128, false, XAlongP, 1, Ending>(c, ++seed);
    check_warpgroup_sum<XAlongP, Ending>(c, ++seed);
    check_staying_sum<float, XAlongP, Ending>(c, ++seed);
    check_staying_sum<double, XAlongP, Ending>(c, ++seed);
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
    blocked_problem c{40, 34, 30, 2};
    c.adds = true;
    blocked_case<float> empty(c, 5);
    empty.a.sliced.p_extent = 0;
    const std::vector<wide> before = widened(empty.y);
    run_blocked<float, true, false, true, false, 2>(empty, c);
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(widen(empty.y[i]) == -2.0 * before[i]);

    c.adds = false;
    blocked_case<float> special(c, 6);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    special.x[3] = infinity;
    special.x[41] = std::numeric_limits<float>::quiet_NaN();
    special.x[81] = std::numeric_limits<float>::max();
    run_blocked<float, true, false, true, false, 2>(special, c);
    for (index q = 0; q < c.q; ++q) {
        CHECK(special.y[std::size_t(q)] == (special.f[std::size_t(3 * c.q + q)] > 0 ? infinity : -infinity));
        CHECK(std::isnan(special.y[std::size_t(c.q + q)]));
        const float large = 0.5f * special.x[81] * special.f[std::size_t(c.q + q)];
        CHECK(std::abs(special.y[std::size_t(2 * c.q + q)] - large) <= 1e-5f * std::abs(large));
    }
}

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
        }
}

TEST_CASE(
    "a long factor by the warpgroup's unit: no p leaves beta * Y; infinite, NaN and large floats as multiply-adds give "
    "them") {
    blocked_problem c{40, 34, 30, 2};
    c.adds = true;
    blocked_case<float> empty(c, 5);
    empty.a.sliced.p_extent = 0;
    const std::vector<wide> before = widened(empty.y);
    run_warpgroups<false, true, false, 40>(empty, c);
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(widen(empty.y[i]) == -2.0 * before[i]);

    c.adds = false;
    blocked_case<float> special(c, 6);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    special.x[3] = infinity;
    special.x[41] = std::numeric_limits<float>::quiet_NaN();
    special.x[81] = std::numeric_limits<float>::max();
    run_warpgroups<false, true, false, 40>(special, c);
    for (index q = 0; q < c.q; ++q) {
        CHECK(special.y[std::size_t(q)] == (special.f[std::size_t(3 * c.q + q)] > 0 ? infinity : -infinity));
        CHECK(std::isnan(special.y[std::size_t(c.q + q)]));
        const float large = 0.5f * special.x[81] * special.f[std::size_t(c.q + q)];
        CHECK(std::abs(special.y[std::size_t(2 * c.q + q)] - large) <= 1e-5f * std::abs(large));
    }
}

TEST_CASE("a factor that stays on chip: edges, gaps, all layouts, panels of two lengths through several tiles") {
    int seed = 1;
    for (const bool x_along_p : {true, false})
        for (const bool f_along_p : {true, false}) {
            // 16-byte accesses, panels of 3, 3 and 3 steps; 16-byte rows of which the last piece is cut; odd rows, added to what is there.
            for (const blocked_problem& c :
                 {blocked_problem{72, 68, 52, 9}, blocked_problem{66, 136, 100, 6},
                  blocked_problem{70, 33, 41, 15, 1, true, false, false, true, true, 1, 1}}) {
                blocked_problem now = c;
                now.x_along_p = x_along_p;
                now.f_along_p = f_along_p;
                check_staying<float, false, 9, 72>(now, tolerance<float>, ++seed);
                check_staying<float, false, 9, 104>(now, tolerance<float>, ++seed);
                check_staying<double, false, 9, 72>(now, tolerance<double>, ++seed);
                check_staying<double, false, 9, 104>(now, tolerance<double>, ++seed);
            }
            // A factor for each index: a block goes from one to the next. Panels of 3 and 2 steps, of 4 and 3, added to what is there.
            blocked_problem own{37, 33, 9, 40, 2, x_along_p, f_along_p, true, false, false, 1};
            check_staying<float, false, 5, 40>(own, tolerance<float>, ++seed);
            check_staying<double, false, 5, 40>(own, tolerance<double>, ++seed);
            check_staying<float, true, 5, 64>(own, 1e-3, ++seed);
            own = {52, 64, 24, 20, 3, x_along_p, f_along_p, true, true, true, 4, 1};
            check_staying<float, false, 7, 48>(own, tolerance<float>, ++seed);
            check_staying<double, false, 7, 48>(own, tolerance<double>, ++seed);
            own.gap = 0;
            check_staying<float, false, 7, 96>(own, tolerance<float>, ++seed);
            check_staying<double, false, 7, 32>(own, tolerance<double>, ++seed);
            own.turned = true;
            check_staying<float, false, 7, 72>(own, tolerance<float>, ++seed);
            check_staying<double, false, 7, 72>(own, tolerance<double>, ++seed);
            own.adds = false;
            check_staying<float, false, 7, 72>(own, tolerance<float>, ++seed);
            check_staying<double, false, 7, 72>(own, tolerance<double>, ++seed);
            check_warpgroups<false, 64>(own, tolerance<float>, ++seed);
            check_blocked<float, true, false, 2>(own, tolerance<float>, ++seed);
        }
}

TEST_CASE(
    "a long factor, by blocks or staying on chip: products are multiplied by what stands in Y, or squared, and "
    "summed") {
    int seed = 100;
    // 16-byte accesses and an edge in each extent; odd rows, factors of their own; padded rows; Y's rows are X's columns, along 16 bytes and not.
    for (blocked_problem c :
         {blocked_problem{52, 100, 66, 6}, blocked_problem{53, 75, 9, 20, 2, true, false, true, false, true, 0, 3},
          blocked_problem{56, 40, 30, 11, 1, true, false, false, false, false, 1, 3}}) {
        for (const bool turned : {false, true}) {
            c.turned = turned;
            check_sums<true, ends_in_dot>(c, seed);
            check_sums<false, ends_in_dot>(c, seed);
            check_sums<true, ends_in_norm>(c, seed);
            check_sums<false, ends_in_norm>(c, seed);
        }
    }
}

// Two panels and several tiles a block; more than a warp's fibres; what lies between the rows stays.
template <class Scalar>
void check_in_place(blocked_problem c, int seed) {
    CAPTURE(c.x_along_p);
    CAPTURE(c.gap);
    CAPTURE(c.backwards);
    blocked_case<Scalar> test(c, seed);
    test.a.sliced.y = test.x.data();
    c.x_along_p ? run_staying<Scalar, false, true, 7, 56>(test, c) : run_staying<Scalar, false, false, 7, 56>(test, c);
    const index row = (c.x_along_p ? c.p : c.f1) + c.gap;
    std::vector<wide> got, want;
    for (std::size_t i = 0; i < test.x.size(); ++i) {
        if (index(i) % row < row - c.gap) {
            got.push_back(widen(test.x[i]));
            want.push_back(test.want[i]);
        } else {
            CHECK(widen(test.x[i]) != widen(test.x[i]));
        }
    }
    CHECK(relative_distance(got, want) <= tolerance<Scalar>);
}

// A fibre that is multiplied once more, because it holds a float too large to split, is not stored before all of it is read.
void check_in_place_once_more(blocked_problem c, int seed) {
    blocked_case<float> apart(c, seed);
    apart.x[0] = std::numeric_limits<float>::max();
    blocked_case<float> test = apart;
    test.a.sliced.x = test.a.sliced.y = test.x.data();
    test.a.sliced.f = test.f.data();
    apart.a.sliced.y = apart.y.data();
    for (blocked_case<float>* const one : {&apart, &test})
        c.x_along_p ? run_staying<float, false, true, 7, 56>(*one, c)
                    : run_staying<float, false, false, 7, 56>(*one, c);
    CHECK(test.x == apart.y);
}

TEST_CASE("a factor that stays on chip: Y where X was") {
    int seed = 40;
    for (const bool x_along_p : {true, false})
        for (const bool backwards : {false, true}) {
            blocked_problem c{52, 52, 20, 1, 1, x_along_p};
            c.backwards = backwards;
            check_in_place_once_more(c, ++seed);
        }
    for (const bool x_along_p : {true, false})
        for (const index gap : {0, 1})
            for (const bool backwards : {false, true}) {
                blocked_problem c{52, 52, 100, 3, 1, x_along_p};
                c.gap = gap;
                c.backwards = backwards;
                check_in_place<float>(c, ++seed);
                check_in_place<double>(c, ++seed);
                c = {53, 53, 33, 9, 2, x_along_p, false, true, false, backwards, gap, 3};
                check_in_place<float>(c, ++seed);
                check_in_place<double>(c, ++seed);
            }
}

TEST_CASE(
    "a factor that stays on chip: more blocks than tiles; infinite, NaN and large floats as multiply-adds give them") {
    blocked_problem c{40, 36, 300, 2};
    c.grid = 7;
    check_staying<float, false, 5, 40>(c, tolerance<float>, 3);
    check_staying<double, false, 5, 40>(c, tolerance<double>, 3);
    for (const bool x_along_p : {true, false}) {
        c.x_along_p = x_along_p;
        c.f1 = 32;
        blocked_case<float> special(c, 6);
        const index row = x_along_p ? c.p : c.f1, x_f1 = x_along_p ? row : 1, x_p = x_along_p ? 1 : row,
                    y_f1 = x_along_p ? c.q : 1, y_q = x_along_p ? 1 : c.f1;
        constexpr float infinity = std::numeric_limits<float>::infinity();
        special.x[std::size_t(3 * x_p)] = infinity;
        special.x[std::size_t(x_f1 + 1 * x_p)] = std::numeric_limits<float>::quiet_NaN();
        special.x[std::size_t(10 * x_f1 + 1 * x_p)] = std::numeric_limits<float>::max();
        x_along_p ? run_staying<float, false, true, 5, 40>(special, c)
                  : run_staying<float, false, false, 5, 40>(special, c);
        for (index q = 0; q < c.q; ++q) {
            CHECK(special.y[std::size_t(q * y_q)] == (special.f[std::size_t(3 * c.q + q)] > 0 ? infinity : -infinity));
            CHECK(std::isnan(special.y[std::size_t(y_f1 + q * y_q)]));
            const float large = 0.5f * std::numeric_limits<float>::max() * special.f[std::size_t(c.q + q)];
            CHECK(std::abs(special.y[std::size_t(10 * y_f1 + q * y_q)] - large) <= 1e-5f * std::abs(large));
        }
    }
}

}  // namespace kernel_tests

// SPDX-License-Identifier: MIT
// How a kernel deals out the fibres of a tile (kernels/multiply_add_trip.cuh) is what the planner reckons with (plan/gpu_multiply_adds.hpp).
#include "kernels/fused.hpp"

#include <otimes/plan/gpu_multiply_adds.hpp>

namespace kernel_tests {
namespace {

namespace planning = otimes::planning;
namespace multiply_adds = otimes::planning::multiply_adds;

template <class Group>
planning::gpu_group planned() {
    planning::gpu_group g;
    g.outer = Group::run > 1;
    g.type = std::is_same_v<typename Group::scalar, float> ? otimes::dtype::f32 : otimes::dtype::f64;
    for (int level = 1; level <= Group::modes; ++level) {
        g.p.push_back(Group::p(level));
        g.q.push_back(Group::q(level));
    }
    g.tile.rows = Group::rows;
    g.tile.run = Group::run;
    g.tile.threads = Group::threads;
    g.tile.blocks = Group::blocks_per_multiprocessor;
    for (int i = 0; i < Group::steps::count; ++i) {
        otimes::gpu_trip trip;
        trip.first = Group::steps::first(i);
        g.tile.trips.push_back(trip);
    }
    return g;
}

template <class Group>
void agrees() {
    const planning::gpu_group g = planned<Group>();
    CHECK(multiply_adds::knows(g));
    CHECK(multiply_adds::registers_of(g.tile) == Group::registers);
    CHECK(planning::shared_bytes_of(g) == Group::shared_bytes);
    for_constants<0, Group::steps::count>([&](auto i) {
        constexpr int step = decltype(i)::value;
        constexpr bool to_y = step + 1 == Group::steps::count && Group::direct;
        using kernel = otimes::kernels::dealt_fibres<Group, step, 1, to_y>;
        const multiply_adds::trip_shape shape = multiply_adds::shape_of(g, step, Group::unaligned);
        const multiply_adds::dealt_fibres dealt = multiply_adds::deal(shape);
        CAPTURE(step);
        CHECK(shape.fibres == kernel::inner * kernel::outer);
        CHECK(dealt.width == kernel::width);
        CHECK(dealt.at_once == kernel::at_once);
        const std::int64_t places = dealt.rounds * Group::threads * std::max<std::int64_t>(1, dealt.at_once);
        CHECK(places >= shape.fibres / dealt.width);
        CHECK(dealt.busy == doctest::Approx(double(shape.fibres / dealt.width) / double(places)));
    });
}

template <class Scalar, int Rows, int Run, int Threads, int Blocks, class P, class Q, class Trips,
          bool Unaligned = false>
using tile = mode_group<Scalar, Rows, Run, Threads, Blocks, 1, 0, 1, 1, P, Q, Trips, 1, false, false, 1, 0, false,
                        false, Unaligned>;

using one = trips<adds<1>>;
using two = trips<adds<2>, adds<1>>;
using three = trips<adds<3>, adds<2>, adds<1>>;

}  // namespace

TEST_CASE_TEMPLATE("the planner knows how a kernel deals out fibres: rows", Scalar, float, double) {
    agrees<tile<Scalar, 1, 1, 128, 4, e<17, 17, 17>, e<17, 17, 17>, three>>();
    agrees<tile<Scalar, 6, 1, 64, 10, e<21, 21>, e<21, 21>, two>>();
    agrees<tile<Scalar, 14, 1, 192, 3, e<25, 25>, e<25, 25>, two>>();
    agrees<tile<Scalar, 128, 1, 64, 8, e<31>, e<31>, one>>();
    agrees<tile<Scalar, 2, 1, 96, 8, e<12, 12, 12>, e<12, 12, 12>, three>>();
    agrees<tile<Scalar, 16, 1, 128, 6, e<16, 16>, e<16, 16>, two>>();
    agrees<tile<Scalar, 8, 1, 64, 8, e<13, 20>, e<9, 24>, two>>();
    agrees<tile<Scalar, 5, 1, 160, 4, e<3, 11, 8>, e<5, 11, 4>, trips<adds<1>, adds<3>, adds<2>>>>();
}

TEST_CASE_TEMPLATE("the planner knows how a kernel deals out fibres: runs", Scalar, float, double) {
    agrees<tile<Scalar, 1, 32, 128, 4, e<9, 9>, e<9, 9>, two>>();
    agrees<tile<Scalar, 1, 32, 128, 4, e<9, 9>, e<9, 9>, two, true>>();
    agrees<tile<Scalar, 1, 8, 224, 3, e<10, 10, 10>, e<10, 10, 10>, three>>();
    agrees<tile<Scalar, 1, 16, 96, 6, e<21, 21>, e<21, 21>, two>>();
    agrees<tile<Scalar, 1, 64, 64, 8, e<12, 12>, e<12, 12>, two>>();
    agrees<tile<Scalar, 1, 64, 64, 8, e<12, 12>, e<12, 12>, two, true>>();
    agrees<tile<Scalar, 1, 8, 128, 2, e<7, 15>, e<16, 3>, two>>();
}

TEST_CASE(
    "neighbouring fibres go one by one where that leaves fewer threads without any, and where rows of Y begin "
    "anywhere") {
    using many = tile<float, 1, 64, 64, 8, e<12, 12>, e<12, 12>, two>;
    using few = tile<float, 1, 32, 128, 4, e<9, 9>, e<9, 9>, two>;  // 72 accesses for 128 threads
    using anywhere = tile<float, 1, 64, 64, 8, e<12, 12>, e<12, 12>, two, true>;
    CHECK(otimes::kernels::dealt_fibres<many, 1, 1, true>::width == 4);
    CHECK(otimes::kernels::dealt_fibres<few, 1, 1, true>::width == 1);
    CHECK(otimes::kernels::dealt_fibres<few, 1, 1, true>::at_once == 3);
    CHECK(otimes::kernels::dealt_fibres<anywhere, 0, 1, false>::width == 4);
    CHECK(otimes::kernels::dealt_fibres<anywhere, 1, 1, true>::width == 1);
    CHECK(anywhere::direct);
}

}  // namespace kernel_tests

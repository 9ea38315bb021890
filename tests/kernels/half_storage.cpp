// SPDX-License-Identifier: MIT
// Fused kernels of 16-bit elements, which become floats on chip: every kind of trip, trailing and outer, by whole accesses, by small ones and by
// single elements.
#include <type_traits>

#include "kernels/fused.hpp"

namespace kernel_tests {

using half = otimes::kernels::half;
using bfloat16 = otimes::kernels::bfloat16;

template <class Storage, int Rows, int Run, int Threads, class P, class Q, class Trips, int Stages = 1>
using widening = group<Storage, Rows, Run, Threads, P, Q, Trips, 1, Stages>;

TEST_CASE_TEMPLATE("16-bit elements by multiply-adds", Storage, half, bfloat16) {
    check_group<widening<Storage, 2, 1, 64, e<5, 7>, e<7, 3>, trips<adds<2>, adds<1>>>>("2f 1f");
    check_group<widening<Storage, 1, 1, 64, e<3, 4, 4>, e<3, 4, 4>, trips<adds<2, 2>, adds<1>>>>("2+2f 1f");
    check_group<widening<Storage, 1, 16, 64, e<4, 6>, e<6, 4>, trips<adds<2>, adds<1>>>>("outer 2f 1f");
    check_group<widening<Storage, 4, 1, 64, e<3, 6>, e<3, 6>, trips<adds<2>, adds<1>>>>("rows of 36 bytes");
    check_group<widening<Storage, 1, 1, 64, e<52>, e<50>, trips<adds<1, 1, 4>>>>("1f/4");
}

TEST_CASE_TEMPLATE("16-bit elements by the matrix unit", Storage, half, bfloat16) {
    check_group<widening<Storage, 2, 1, 64, e<8, 16>, e<16, 8>, trips<unit<2>, unit<1>>>>("2m 1m");
    check_group<widening<Storage, 1, 16, 64, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("outer 2m 1m");
    check_group<widening<Storage, 4, 1, 128, e<32>, e<32>, trips<unit<1, 1, 2>>>>("1m/2");
    check_group<widening<Storage, 1, 32, 64, e<32>, e<32>, trips<unit<1>>>>("outer 1m");
    check_group<widening<Storage, 1, 1, 64, e<8, 8, 8>, e<8, 8, 8>, trips<unit<3>, adds<2>, unit<1>>>>("3m 2f 1m");
    check_group<widening<Storage, 1, 1, 64, e<16, 16, 16>, e<16, 16, 16>, trips<unit<1>, unit<2, 2>>>>("1m 2+2m");
    check_group<widening<Storage, 1, 1, 64, e<32, 32>, e<32, 32>, trips<unit<1, 2>>>>("1+2m of 32");
    check_group<widening<Storage, 1, 32, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("outer 1+2m");
    check_group<widening<Storage, 2, 1, 64, e<8, 8>, e<8, 8>, trips<unit<1, 2>>>>("1+2m of 8");
    check_group<widening<Storage, 2, 1, 64, e<8, 8>, e<8, 8>, trips<unit<1, 2>>, 2>>("1+2m of 8, two stages");
    check_group<widening<Storage, 2, 1, 64, e<16, 32>, e<16, 32>, trips<unit<1, 2>>, 2>>("1+2m, two stages");
    check_group<widening<Storage, 1, 16, 64, e<16, 8>, e<16, 8>, trips<unit<2>, unit<1>>, 2>>("outer, two stages");
    check_group<widening<Storage, 2, 1, 64, e<9, 13>, e<10, 11>, trips<unit<2>, unit<1>>>>("2m 1m of any extents");
    check_group<widening<Storage, 1, 16, 64, e<13>, e<18>, trips<unit<1>>>>("outer 1m of any extents");
    if constexpr (std::is_same_v<Storage, half>) {  // long rows: storage is read and written alike, and tried above
        check_group<widening<Storage, 1, 1, 64, e<8, 8, 8>, e<8, 8, 8>, trips<unit<2, 2>, unit<1>>>>("2+2m 1m of 8");
        check_group<widening<Storage, 2, 1, 64, e<8, 8, 8, 8>, e<8, 8, 8, 8>, trips<unit<3, 2>, unit<1, 2>>>>(
            "3+2m 1+2m");
        check_group<
            widening<Storage, 1, 1, 128, e<8, 8, 8, 8, 8>, e<8, 8, 8, 8, 8>, trips<unit<4, 2>, unit<2, 2>, unit<1>>>>(
            "4+2m 2+2m 1m");
    }
    check_group<widening<Storage, 1, 32, 64, e<8, 8>, e<8, 8>, trips<unit<1, 2>>>>("outer 1+2m of 8");
    check_group<widening<Storage, 1, 16, 64, e<8, 8, 8>, e<8, 8, 8>, trips<unit<2, 2>, unit<1>>>>("outer 2+2m 1m of 8");
}

// Floats by single products: the precision of half.
template <int Rows, int Run, int Threads, class P, class Q, class Trips, int Segments = 1, int Stages = 0>
using single = mode_group<float, Rows, Run, Threads, 2, Segments, Stages, 1, 1, P, Q, Trips, 1, false, false, 1,
                          ends_stored, false, true>;

TEST_CASE("floats by single products") {
    check_group<single<2, 1, 64, e<8, 16>, e<16, 8>, trips<unit<2>, unit<1>>>>("2m 1m");
    check_group<single<1, 8, 64, e<16, 8>, e<8, 16>, trips<unit<2>, adds<1>>>>("outer 2m 1f");
    check_group<single<1, 1, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>, 2, 1>>("staged 2m 1m");
    check_group<single<1, 32, 64, e<32>, e<32>, trips<unit<1>>, 1, 2>>("outer, staged 1m");
    check_group<single<1, 8, 64, e<32>, e<32>, trips<unit<1>>>>("outer 1m, refilled");
    check_group<single<1, 1, 64, e<16, 16, 16>, e<16, 16, 16>, trips<unit<1>, unit<2, 2>>>>("1m 2+2m");
    check_group<single<2, 1, 64, e<8, 8>, e<8, 8>, trips<unit<1, 2>>>>("1+2m of 8");
    check_group<single<2, 1, 128, e<64, 32>, e<64, 32>, trips<warpgroup<2>, warpgroup<1>>>>("2w 1w");
    check_group<single<1, 32, 128, e<32, 32>, e<32, 32>, trips<unit<2>, unit<1>>, 2, 1>>("rotating 2m 1m");
}

TEST_CASE_TEMPLATE("16-bit elements by the warpgroup's matrix unit", Storage, half, bfloat16) {
    check_group<widening<Storage, 2, 1, 128, e<64, 32>, e<64, 32>, trips<warpgroup<2>, warpgroup<1>>>>("2w 1w");
    check_group<widening<Storage, 1, 32, 256, e<128>, e<128>, trips<warpgroup<1, 2>>>>("outer 1w/2");
    check_group<widening<Storage, 1, 16, 128, e<40>, e<32>, trips<warpgroup<1>>>>("outer 40 x 32, few fibres");
}

}  // namespace kernel_tests

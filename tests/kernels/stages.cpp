// SPDX-License-Identifier: MIT
// Who waits for whom: the warpgroup's unit, tiles that arrive while others are worked on, blocks that share a tile. As fused_kernels.cpp.
#include "kernels/fused.hpp"

namespace kernel_tests {

TEST_CASE("the warpgroup's matrix unit replaces float modes") {
    check_group<group<float, 4, 1, 128, e<32>, e<32>, trips<warpgroup<1>>>>("1w");
    check_group<group<float, 2, 1, 128, e<32, 32>, e<32, 32>, trips<warpgroup<2>, warpgroup<1>>>>("2w 1w");
    check_group<mode_group<float, 64, 1, 256, 1, 1, 2, 1, 1, e<64>, e<64>, trips<warpgroup<1>>>>("1w, stages");
    check_group<mode_group<float, 1, 32, 128, 1, 1, 0, 1, 1, e<32, 4>, e<32, 4>, trips<adds<2>, warpgroup<1>>>>(
        "outer 2f 1w, refilled");
}

TEST_CASE("tiles that arrive while others are worked on") {
    check_group<mode_group<float, 1, 32, 64, 1, 2, 1, 1, 1, e<32, 8>, e<32, 8>, trips<unit<2>, unit<1>>>>(
        "rotating, float");
    check_group<mode_group<double, 1, 16, 64, 1, 2, 1, 1, 1, e<32, 8>, e<32, 8>, trips<unit<2>, unit<1>>>>(
        "rotating, double");
    check_group<mode_group<float, 32, 1, 64, 1, 1, 3, 1, 1, e<16>, e<24>, trips<unit<1>>>>(
        "three stages, held factor, float");
    check_group<mode_group<double, 32, 1, 64, 1, 1, 2, 1, 1, e<16>, e<16>, trips<unit<1>>>>(
        "two stages, held factor, double");
    check_group<mode_group<double, 32, 1, 64, 2, 1, 2, 1, 1, e<7>, e<9>, trips<adds<1>>>>("two stages, multiply-adds");
    check_group<mode_group<c128, 32, 1, 64, 1, 1, 2, 1, 1, e<8>, e<12>, trips<unit<1>>>>("two stages, complex");
    check_group<mode_group<float, 1, 32, 64, 2, 1, 2, 1, 1, e<16>, e<16>, trips<unit<1>>>>("outer, two stages");
}

namespace {

// Slices in a ring, `Slots` places more than a row has slices, a warp for each slice.
template <class Scalar, int Slots, class E, class Trips, int Ending = ends_stored>
using ring_group =
    mode_group<Scalar, 1, 1, 32 * E::at(0), 1, E::at(0), Slots, 1, 1, E, E, Trips, 1, false, false, 1, Ending>;

// As check_group, and rows enough that each place is used again and again.
template <class Group>
void check_ring(const char* text) {
    static_assert(Group::ring);
    check_group<Group>(text);
    for (const bool backwards : {false, true}) {
        check_fused<Group>({19, 1, 1}, what::plain, backwards);
        check_fused<Group>({4, 3, 1}, what::sums_and_gaps, backwards);
    }
}

}  // namespace

TEST_CASE("slices of mode 1 in a ring") {
    using adds_1_3_2 = trips<adds<1>, adds<3>, adds<2>>;
    check_ring<ring_group<float, 3, e<4, 2, 4, 4>, trips<adds<1>, adds<3, 2>, adds<2>>>>("float, 3 of 4 ahead");
    check_ring<ring_group<float, 1, e<3, 5, 9>, adds_1_3_2>>("float, odd, 1 of 3 ahead");
    check_ring<ring_group<float, 2, e<2, 8, 8, 8>, trips<adds<1>, adds<3, 2>, adds<2>>>>("float, a row ahead");
    check_ring<ring_group<double, 2, e<5, 3, 4>, adds_1_3_2>>("double, odd, 2 of 5 ahead");
    check_ring<ring_group<double, 1, e<2, 4, 4, 8>, trips<adds<1>, adds<4>, adds<2, 2>>>>("double, two modes last");
    check_ring<ring_group<float, 1, e<2, 6, 6, 64>, trips<adds<1>, adds<4>, adds<2, 2>>>>(
        "float, twelve fibres of six, of which 64 sums are not whole groups");
    check_ring<ring_group<float, 2, e<3, 4, 8>, adds_1_3_2, ends_in_dot>>("dot product");
    check_ring<ring_group<double, 1, e<3, 4, 8>, adds_1_3_2, ends_in_norm>>("norm");
    check_ring<ring_group<float, 3, e<4, 4, 8>, adds_1_3_2, ends_scaled_along>>("times a diagonal");
}

TEST_CASE("blocks that share a tile") {
    // Slices: each block computes a part of the last mode's new index.
    check_group<mode_group<float, 2, 1, 64, 2, 1, 0, 1, 2, e<5, 7>, e<3, 8>, trips<adds<2>, adds<1>>>>("two slices");
    check_group<mode_group<double, 1, 1, 64, 2, 1, 0, 1, 5, e<12, 9>, e<9, 10>, trips<adds<2>, adds<1>>>>(
        "five slices");
    // Clusters: each block has a part of mode 1, or of the mode that the last trip replaces.
    check_group<mode_group<float, 1, 1, 64, 1, 1, 0, 2, 1, e<16, 8, 8>, e<16, 8, 8>, trips<adds<2, 2>, unit<1>>>>(
        "float, cluster of 2, 2+2f 1m");
    check_group<mode_group<double, 1, 1, 64, 1, 1, 0, 4, 1, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>>>(
        "double, cluster of 4, 2m 1m");
    check_group<mode_group<float, 1, 8, 64, 1, 1, 0, 2, 1, e<16, 8>, e<16, 8>, trips<unit<2>, unit<1>>>>(
        "float, cluster of 2, outer 2m 1m");
    check_group<mode_group<double, 1, 1, 64, 1, 1, 0, 2, 1, e<6, 7>, e<5, 9>, trips<adds<2>, adds<1>>>>(
        "double, cluster of 2, 2f 1f");
    check_group<mode_group<float, 1, 1, 64, 1, 1, 0, 2, 1, e<16, 16, 16>, e<16, 16, 16>, trips<unit<1>, unit<2, 2>>>>(
        "float, cluster of 2, 1m 2+2m");
}

}  // namespace kernel_tests

// SPDX-License-Identifier: MIT
// What becomes of a fused kernel's product other than a store: sums of terms, another matrix that is added, dot products, norms, distances, multiples by a
// diagonal; and X in two halves. As fused_kernels.cpp.
#include "kernels/fused.hpp"

namespace kernel_tests {

namespace {

template <class Scalar, int Rows, int Run, int Threads, class P, class Q, class Trips, int Terms, bool Addend,
          bool Kept, int Inputs = 1, int Ending = ends_stored, int Cluster = 1>
using ending_group =
    mode_group<Scalar, Rows, Run, Threads, 2, 1, 0, Cluster, 1, P, Q, Trips, Terms, Addend, Kept, Inputs, Ending>;

template <class Scalar, int Ending, int Rows, int Run, int Threads, class P, class Q, class Trips, int Cluster = 1>
using ends = ending_group<Scalar, Rows, Run, Threads, P, Q, Trips, 1, false, false, 1, Ending, Cluster>;

}  // namespace

TEST_CASE_TEMPLATE("terms of one X are added up, with a matrix that stands elsewhere", Scalar, float, double, c64) {
    using adds21 = trips<adds<2>, adds<1>>;
    check_group<ending_group<Scalar, 2, 1, 64, e<5, 6>, e<5, 6>, adds21, 2, false, false>>("two terms");
    check_group<ending_group<Scalar, 1, 8, 64, e<5, 6>, e<6, 5>, adds21, 3, true, false>>("outer, three terms, C");
    check_group<ending_group<Scalar, 2, 1, 64, e<5, 8>, e<5, 8>, adds21, 3, true, true>>("three terms, X kept, C");
    check_group<ending_group<Scalar, 2, 1, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>, 2, false, true>>(
        "two terms by the unit, X kept");
    check_group<ending_group<Scalar, 2, 1, 64, e<7, 4>, e<4, 7>, adds21, 1, true, false>>("one term, C");
}

TEST_CASE_TEMPLATE("the two halves of a mode stand in two matrices", Scalar, float, double) {
    check_group<ending_group<Scalar, 1, 8, 64, e<16>, e<16>, trips<unit<1>>, 1, false, false, 2>>("16");
    check_group<ending_group<Scalar, 1, 16, 64, e<32>, e<8>, trips<unit<1>>, 1, false, false, 2>>("32 to 8");
}

TEST_CASE_TEMPLATE("a product is multiplied and summed, or squared and summed", Scalar, float, double, c64, c128) {
    using adds21 = trips<adds<2>, adds<1>>;
    using units21 = trips<unit<2>, unit<1>>;
    check_group<ends<Scalar, ends_in_dot, 2, 1, 64, e<5, 7>, e<7, 3>, adds21>>("dot 2f 1f");
    check_group<ends<Scalar, ends_in_norm, 2, 1, 64, e<5, 7>, e<7, 3>, adds21>>("norm 2f 1f");
    check_group<ends<Scalar, ends_in_dot, 2, 1, 64, e<8, 16>, e<8, 16>, units21>>("dot 2m 1m");
    check_group<ends<Scalar, ends_in_norm, 1, 8, 64, e<16, 8>, e<8, 16>, units21>>("outer, norm 2m 1m");
    check_group<ends<Scalar, ends_in_dot, 1, 8, 64, e<16, 8>, e<8, 16>, units21>>("outer, dot 2m 1m");
}

TEST_CASE_TEMPLATE("a product's difference from another matrix is squared and summed", Scalar, float, double, c64,
                   c128) {
    check_group<ends<Scalar, ends_in_distance, 2, 1, 64, e<5, 7>, e<7, 3>, trips<adds<2>, adds<1>>>>("2f 1f");
    check_group<ends<Scalar, ends_in_distance, 1, 8, 64, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("outer, 2m 1m");
}

TEST_CASE_TEMPLATE("a dot product of pieces of a row, in a cluster", Scalar, float, double) {
    using units21 = trips<unit<2>, unit<1>>;
    check_group<ends<Scalar, ends_in_dot_of_pieces, 1, 1, 64, e<8, 16>, e<16, 16>, units21>>("pieces");
    check_group<ends<Scalar, ends_in_dot_of_pieces, 1, 1, 64, e<8, 16>, e<16, 16>, units21, 2>>("pieces, cluster of 2");
    check_group<ends<Scalar, ends_in_norm, 1, 1, 64, e<16, 8>, e<16, 8>, units21, 2>>("norm, cluster of 2");
    check_group<ends<Scalar, ends_in_distance, 1, 1, 64, e<16, 8>, e<16, 8>, units21, 2>>("distance, cluster of 2");
    // Of doubles the first factor, above 2048 entries, is read where it stands.
    check_group<ends<Scalar, ends_in_norm, 1, 1, 32, e<48, 8>, e<48, 8>, units21, 16>>("norm, cluster of 16");
}

TEST_CASE_TEMPLATE("a product is multiplied by a diagonal", Scalar, float, double, c64) {
    check_group<ends<Scalar, ends_scaled_along, 2, 1, 64, e<5, 8>, e<7, 4>, trips<adds<2>, adds<1>>>>("along 2f 1f");
    check_group<ends<Scalar, ends_scaled_across, 2, 1, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>>>(
        "across 2m 1m");
    check_group<ends<Scalar, ends_scaled_along, 1, 8, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>>>(
        "outer, along 2m 1m");
}

}  // namespace kernel_tests

// SPDX-License-Identifier: MIT
// The text of kernels/ on the host, block by block, against sums written out: every way of replacing a mode (multiply-adds, one mode or several;
// the matrix unit, real, in pairs and complex; the warpgroup's), trailing and outer, partial tiles, gaps, odd addresses, alpha and beta,
// values that are infinite or too large for the unit, Y in X's place. What stands around Y stays as it was.
#include "kernels/fused.hpp"

namespace kernel_tests {

// Results that go by way of shared memory.
template <class Scalar, int Run, class P, class Q, class Trips>
using by_shared_memory =
    mode_group<Scalar, 1, Run, 64, 2, 1, 0, 1, 1, P, Q, Trips, 1, false, false, 1, ends_stored, false, false, true>;

TEST_CASE_TEMPLATE("multiply-adds replace one mode or several", Scalar, float, double, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<5, 7>, e<7, 3>, trips<adds<2>, adds<1>>>>("2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<3, 4, 4>, e<3, 4, 4>, trips<adds<2, 2>, adds<1>>>>("2+2f 1f");
    check_group<group<Scalar, 1, 8, 64, e<4, 6>, e<6, 4>, trips<adds<2>, adds<1>>>>("outer 2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<8, 4, 4>, e<8, 4, 4>, trips<adds<2, 2>, adds<1>>, 4, 2>>("staged 2+2f 1f");
    check_group<group<Scalar, 1, 1, 64, e<52>, e<50>, trips<adds<1, 1, 4>>>>("1f/4");
}

TEST_CASE_TEMPLATE("fibres of nine and more go together, or one by one where Y's rows begin anywhere", Scalar, float,
                   double) {
    check_group<group<Scalar, 3, 1, 64, e<9, 11>, e<11, 9>, trips<adds<2>, adds<1>>>>("9>11 11>9 2f 1f");
    check_group<group<Scalar, 1, 8, 64, e<9, 12>, e<9, 12>, trips<adds<2>, adds<1>>>>("outer 9 12");
    check_group<group<Scalar, 1, 32, 128, e<9>, e<9>, trips<adds<1>>>>("outer 9, few accesses");
    check_group<anywhere<Scalar, 8, 64, e<9, 12>, e<9, 12>, trips<adds<2>, adds<1>>>>("anywhere 2f 1f");
    check_group<anywhere<Scalar, 8, 64, e<4, 4>, e<4, 4>, trips<adds<1, 2>>>>("anywhere 1+2f");
    check_group<anywhere<Scalar, 8, 64, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("anywhere 2m 1m");
}

TEST_CASE_TEMPLATE("the matrix unit replaces one mode", Scalar, float, double, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<8, 16>, e<16, 8>, trips<unit<2>, unit<1>>>>("2m 1m");
    check_group<group<Scalar, 1, 1, 64, e<5, 16>, e<5, 16>, trips<unit<2>, adds<1>>>>("2m 1f");
    check_group<group<Scalar, 1, 8, 64, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("outer 2m 1m");
    check_group<group<Scalar, 4, 1, 128, e<32>, e<32>, trips<unit<1, 1, 2>>>>("1m/2");
    check_group<group<Scalar, 1, 8, 64, e<32>, e<32>, trips<unit<1>>>>("outer 1m, refilled");
    check_group<group<Scalar, 1, 1, 64, e<8, 16>, e<8, 16>, trips<unit<2>, unit<1>>, 2, 1>>("staged 2m 1m");
}

TEST_CASE_TEMPLATE("the matrix unit replaces modes of any extents", Scalar, float, double) {
    check_group<group<Scalar, 2, 1, 64, e<9, 13>, e<9, 13>, trips<unit<2>, unit<1>>>>("odd 2m 1m");
    check_group<group<Scalar, 3, 1, 64, e<11>, e<18>, trips<unit<1>>>>("11>18 1m");
    check_group<group<Scalar, 17, 1, 64, e<9>, e<9>, trips<unit<1>>>>("a fragment and less of it each");
    check_group<group<Scalar, 1, 1, 64, e<10, 6>, e<21, 9>, trips<unit<1>, unit<2>>>>("10>21 6>9 1m 2m");
    check_group<group<Scalar, 1, 1, 128, e<25, 5>, e<19, 5>, trips<unit<1, 1, 1>, adds<2>>>>("25>19 1m 2f");
    check_group<group<Scalar, 1, 8, 64, e<10, 9>, e<15, 7>, trips<unit<2>, unit<1>>>>("outer 10>15 9>7");
    check_group<group<Scalar, 1, 2, 64, e<17>, e<20>, trips<unit<1>>>>("outer run of two");
    check_group<group<Scalar, 1, 8, 128, e<9>, e<31>, trips<unit<1, 1, 2>>>>("outer 9>31 in two parts");
    check_group<group<Scalar, 1, 8, 128, e<7>, e<17>, trips<unit<1, 1, 2>>>>("outer 7>17, a part of one step");
    check_group<group<Scalar, 2, 1, 128, e<5, 10>, e<5, 17>, trips<adds<1>, unit<2, 1, 4>>>>("17 in four parts");
    check_group<group<Scalar, 1, 1, 64, e<13, 8>, e<13, 8>, trips<unit<2>, unit<1>>, 13, 1>>("staged 2m 1m");
    check_group<mode_group<Scalar, 8, 1, 64, 1, 1, 2, 1, 1, e<13>, e<11>, trips<unit<1>>>>("two stages");
    check_group<mode_group<Scalar, 1, 8, 64, 1, 1, 2, 1, 1, e<13>, e<11>, trips<unit<1>>>>("outer, two stages");
}

// A line of X's few rows by columns is a run of its own length, and several of them are one tile.
TEST_CASE_TEMPLATE("runs of any length", Scalar, float, double, c64) {
    check_group<group<Scalar, 1, 9, 64, e<6, 5>, e<4, 7>, trips<adds<2>, adds<1>>>>("run 9");
    check_group<group<Scalar, 3, 5, 64, e<7>, e<6>, trips<adds<1>>>>("three runs of 5");
    check_group<group<Scalar, 13, 3, 64, e<10>, e<10>, trips<adds<1>>>>("thirteen runs of 3");
    check_group<group<Scalar, 1, 12, 96, e<9, 4>, e<9, 4>, trips<adds<2>, adds<1>>>>("run 12");
    check_group<group<Scalar, 2, 7, 64, e<8>, e<16>, trips<unit<1>>>>("two runs of 7 by the unit");
    check_group<group<Scalar, 1, 22, 64, e<8, 12>, e<8, 12>, trips<unit<2>, unit<1>>>>("run 22 by the unit");
    check_group<group<Scalar, 1, 6, 64, e<3, 3, 3>, e<3, 3, 3>, trips<adds<2, 2>, adds<1>>>>("run 6, 2+2f 1f");
    check_group<anywhere<Scalar, 9, 64, e<6, 5>, e<6, 5>, trips<adds<2>, adds<1>>>>("run 9 anywhere");
    check_group<by_shared_memory<Scalar, 11, e<4, 5>, e<4, 5>, trips<adds<2>, adds<1>>>>("run 11 by shared memory");
    if constexpr (!is_same<Scalar, c64>) {
        check_group<group<Scalar, 3, 9, 64, e<13>, e<11>, trips<unit<1>>>>("three runs of 9, 13>11 by the unit");
        check_group<mode_group<Scalar, 1, 28, 64, 1, 1, 2, 1, 1, e<13>, e<11>, trips<unit<1>>>>("run 28, two stages");
    }
}

// Of 22 elements of a mode that grows to 31 the next ones stand 31 further: no whole accesses, although 22 are.
TEST_CASE_TEMPLATE("modes that grow to odd extents", Scalar, float, double, c64) {
    check_group<group<Scalar, 1, 1, 64, e<3, 5, 8>, e<2, 6, 9>, trips<adds<1>, adds<2>, adds<3>>>>("1f 2f 3f");
    check_group<group<Scalar, 1, 1, 64, e<8, 3, 8>, e<8, 3, 9>, trips<unit<1>, adds<2>, adds<3>>>>("1m 2f 3f");
}

TEST_CASE_TEMPLATE("the matrix unit replaces complex modes of multiples of four", Scalar, c64, c128) {
    check_group<group<Scalar, 2, 1, 64, e<12, 20>, e<20, 12>, trips<unit<2>, unit<1>>>>("12 x 20");
    check_group<group<Scalar, 1, 4, 64, e<20, 4>, e<12, 8>, trips<unit<2>, unit<1, 1, 1>>>>("outer 20 x 4");
    check_group<group<Scalar, 1, 1, 128, e<4, 24>, e<4, 40>, trips<unit<2, 1, 2>, unit<1>>>>("2m/2 1m");
}

TEST_CASE("the matrix unit replaces two modes with registers between them") {
    check_group<group<float, 1, 1, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f32 1+2m");
    check_group<group<float, 1, 1, 64, e<16, 16, 16>, e<16, 16, 16>, trips<unit<1>, unit<2, 2>>>>("f32 1m 2+2m");
    check_group<group<float, 1, 32, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f32 outer 1+2m");
    check_group<group<double, 1, 1, 64, e<16, 16>, e<16, 16>, trips<unit<1, 2>>>>("f64 1+2m");
    check_group<group<double, 1, 1, 64, e<8, 8, 8, 8>, e<8, 8, 8, 8>, trips<unit<1, 2>, unit<3, 2>>>>("f64 1+2m 3+2m");
}

// Y = X * kron(..) as it stands in memory.
template <class Problem, class Scalar>
void run_between(const Problem& problem, matrix_in_memory<Scalar>& x, matrix_in_memory<Scalar>& y) {
    group_arguments<Scalar> arguments{};
    arguments.x = x.data();
    arguments.y = y.data();
    arguments.x_line_stride = x.line_stride;
    arguments.y_line_stride = y.line_stride;
    arguments.inner = x.inner;
    arguments.x_inner = x.inner_stride;
    arguments.y_inner = y.inner_stride;
    problem.run(arguments, false);
}

// The relative error of a product in norm.
template <class Group>
double error_of(shape s) {
    fused_problem<Group> problem(s, what::plain);
    matrix_in_memory<float> x(s.lines, problem.in, 1, 0, 0);
    matrix_in_memory<float> y(s.lines, problem.out, 1, 0, 0);
    x.fill(problem.stream);
    run_between(problem, x, y);
    return relative_distance(y.values(), problem.image(x.values()));
}

// With these numbers; without low*low 0.90 of the error of multiply-adds, with it 0.77 and 0.84.
TEST_CASE("sums of 16 floats by the matrix unit are more accurate than by multiply-adds") {
    const shape rows{48, 1, 1};
    using extents = e<16, 16>;
    const double by_adds = error_of<group<float, 1, 1, 64, extents, extents, trips<adds<2>, adds<1>>>>(rows);
    const double one_by_one = error_of<group<float, 1, 1, 64, extents, extents, trips<unit<2>, unit<1>>>>(rows);
    const double in_pairs = error_of<group<float, 1, 1, 64, extents, extents, trips<unit<1, 2>>>>(rows);
    CHECK(by_adds > 5e-8);
    CHECK(one_by_one < 0.83 * by_adds);
    CHECK(in_pairs < 0.87 * by_adds);
}

TEST_CASE_TEMPLATE("outer groups store by way of shared memory", Scalar, float, double, c64) {
    check_group<by_shared_memory<Scalar, 8, e<4, 6>, e<6, 4>, trips<adds<2>, adds<1>>>>("2f 1f");
    check_group<by_shared_memory<Scalar, 16, e<5>, e<9>, trips<adds<1>>>>("1f");
    check_group<by_shared_memory<Scalar, 8, e<3, 4, 4>, e<3, 4, 4>, trips<adds<2, 2>, adds<1>>>>("2+2f 1f");
    check_group<by_shared_memory<Scalar, 8, e<16, 8>, e<8, 16>, trips<unit<2>, unit<1>>>>("2m 1m");
    check_group<by_shared_memory<Scalar, 8, e<32>, e<32>, trips<unit<1>>>>("1m of 32");
    if constexpr (!is_same<Scalar, c64>) {
        check_group<by_shared_memory<Scalar, 8, e<13>, e<10>, trips<unit<1>>>>("1m of 13>10");
    }
}

// 40 fibres, of which a warp takes 32 at a time: of the second warp's lanes three quarters have none, and must not multiply one that another warp
// replaces meanwhile. What they multiply shows in the others' bits: an infinity sends all of a warp's fibres to multiply-adds.
TEST_CASE_TEMPLATE("lanes without a fibre look at none of another warp's", Scalar, float, c64) {
    using outer = group<Scalar, 1, 40, 64, e<24>, e<16>, trips<unit<1>>>;
    const auto image = [](double first) {
        fused_problem<outer> problem({1, 1, 40}, what::plain);
        matrix_in_memory<Scalar> x(1, problem.in, 40, 0, 0);
        matrix_in_memory<Scalar> y(1, problem.out, 40, 0, 0);
        x.fill(problem.stream);
        x[0] = make<Scalar>(first);
        run_between(problem, x, y);
        std::vector<Scalar> last;  // of the second warp
        for (index i = 0; i < problem.out; ++i) {
            for (index m = 32; m < 40; ++m) {
                last.push_back(y[i * 40 + m]);
            }
        }
        return last;
    };
    const std::vector<Scalar> usual = image(1.0);
    const std::vector<Scalar> beside = image(std::numeric_limits<double>::infinity());
    CHECK(std::memcmp(usual.data(), beside.data(), usual.size() * sizeof(Scalar)) == 0);
}

}  // namespace kernel_tests

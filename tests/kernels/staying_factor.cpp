// SPDX-License-Identifier: MIT
// One long factor that stays on chip, on the host; Y where X was, too. As blocked.cpp.
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/blocked.hpp"

#include <staying_factor.cuh>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

template <class Scalar, bool Single, bool XAlongP, int Steps, int NewIndices>
void run_staying(const blocked_case<Scalar>& test, const blocked_problem& c) {
    using shape = staying_factor_shape<Scalar, Single, XAlongP, Steps, NewIndices>;
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, shape::threads, shape::shared_bytes, [&test] { staying_factor<shape>(test.a); });
}

// What the launch in front writes is there when it is waited for, and nothing but NaN before: Y, X but where it may be read early, and F likewise.
template <class Scalar>
class behind_a_launch {
public:
    behind_a_launch(blocked_case<Scalar>& test, int seed) {
        test.a.factor_ready = seed % 3 != 0;
        test.a.x_ready = seed % 3 == 2;
        hide(test.y);
        if (!test.a.x_ready) hide(test.x);
        if (!test.a.factor_ready) hide(test.f);
        host_device::earlier_launches = [this] {
            for (const auto& [to, values] : hidden_)
                if (!written_) *to = values;
            written_ = true;
        };
    }
    ~behind_a_launch() { host_device::earlier_launches = nullptr; }
    behind_a_launch(const behind_a_launch&) = delete;
    behind_a_launch& operator=(const behind_a_launch&) = delete;
    bool waited() const { return written_; }

private:
    void hide(std::vector<Scalar>& values) {
        hidden_.emplace_back(&values, values);
        values.assign(values.size(), std::numeric_limits<Scalar>::quiet_NaN());
    }
    std::vector<std::pair<std::vector<Scalar>*, std::vector<Scalar>>> hidden_;
    bool written_ = false;
};

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
    CAPTURE(seed);
    const behind_a_launch<Scalar> front(test, seed);
    c.x_along_p ? run_staying<Scalar, Single, true, Steps, NewIndices>(test, c)
                : run_staying<Scalar, Single, false, Steps, NewIndices>(test, c);
    CHECK(front.waited());
    CHECK(relative_distance(widened(test.y), test.want) <= most);
}

// Y filled without gaps, each element times one of D: along Y or across.
template <class Scalar, bool XAlongP, int Ending>
void check_scaled(blocked_problem c, index divisor, int seed) {
    CAPTURE(c.q);
    CAPTURE(c.f1);
    CAPTURE(divisor);
    CAPTURE(seed);
    CAPTURE(Ending);
    using shape = staying_factor_shape<Scalar, false, XAlongP, 7, 72, Ending>;
    c.x_along_p = XAlongP;
    REQUIRE((c.gap == 0 && !c.adds));
    blocked_case<Scalar> test(c, seed);
    const auto count = index(test.y.size());
    support::random_stream stream(seed + 2000);
    const std::vector<Scalar> d =
        random_values<Scalar>(stream, 4 + (Ending == ends_scaled_along ? divisor : (count + divisor - 1) / divisor));
    const Scalar* const first = d.data() + seed % 3 % 2;  // at multiples of 16 bytes, or not
    test.a.d = first;
    test.a.divisor = unsigned(divisor);
    const auto bits = int(std::bit_width(unsigned(divisor - 1)));
    test.a.magic = unsigned(((1ull << (31 + bits)) + unsigned(divisor) - 1) / unsigned(divisor));
    test.a.shift = bits - 1;
    for (index i = 0; i < count; ++i)
        test.want[std::size_t(i)] *= widen(first[Ending == ends_scaled_along ? i % divisor : i / divisor]);
    const behind_a_launch<Scalar> front(test, seed);
    gridDim.x = unsigned(c.grid);
    host_device::backwards = c.backwards;
    host_device::run_grid(1, shape::threads, shape::shared_bytes, [&test] { staying_factor<shape>(test.a); });
    CHECK(relative_distance(widened(test.y), test.want) <= tolerance<Scalar>);
}

template <class Scalar>
void check_scalings(const blocked_problem& c, index divisor, int& seed) {
    check_scaled<Scalar, true, ends_scaled_along>(c, divisor, ++seed);
    check_scaled<Scalar, false, ends_scaled_along>(c, divisor, ++seed);
    check_scaled<Scalar, true, ends_scaled_across>(c, divisor, ++seed);
    check_scaled<Scalar, false, ends_scaled_across>(c, divisor, ++seed);
}

}  // namespace

TEST_CASE("a factor that stays on chip: each element times one of a vector, along Y or across") {
    int seed = 300;
    // Accesses of 16 bytes of all, of Y alone, of none; more new indices than a tile has; Y's rows are X's columns.
    for (const bool turned : {false, true})
        for (const auto& [c, divisor] : std::vector<std::pair<blocked_problem, index>>{{{56, 72, 20, 9}, 72 * 20},
                                                                                       {{52, 68, 44, 3}, 34 * 11},
                                                                                       {{53, 75, 13, 11}, 39},
                                                                                       {{56, 100, 40, 4}, 400}}) {
            blocked_problem now = c;
            now.turned = turned;
            now.backwards = turned;
            check_scalings<float>(now, divisor, seed);
            check_scalings<double>(now, divisor, seed);
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

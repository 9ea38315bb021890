// SPDX-License-Identifier: MIT
// The small values of program/: checked arithmetic, scalar type names, inline vectors, programs and their differences.
#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <otimes/program/bindings.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>
#include <otimes/program/signature.hpp>

using namespace otimes;

TEST_CASE("checked products and sums report overflow and leave the result alone") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::int64_t result = -7;
    CHECK(checked_multiply(std::int64_t(1) << 31, std::int64_t(1) << 31, result));
    CHECK(result == std::int64_t(1) << 62);
    result = -7;
    CHECK(!checked_multiply(std::int64_t(1) << 32, std::int64_t(1) << 31, result));
    CHECK(result == -7);
    CHECK(checked_multiply(most, 1, result));
    CHECK(result == most);
    CHECK(checked_multiply(0, most, result));
    CHECK(result == 0);
    CHECK(checked_multiply(most, 0, result));
    CHECK(result == 0);
    CHECK(checked_multiply(7, most / 7, result));
    result = -7;
    CHECK(!checked_multiply(7, most / 7 + 1, result));
    CHECK(result == -7);
    CHECK(checked_add(most - 1, 1, result));
    CHECK(result == most);
    result = -7;
    CHECK(!checked_add(most, 1, result));
    CHECK(result == -7);
    CHECK(saturating_multiply(most, 2) == most);
    CHECK(saturating_multiply(3, 5) == 15);
}

TEST_CASE("a wide product has all bits, and is compared by all of them") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
    const wide_product square = multiply_wide(most, most);  // 2^126 - 2^64 + 1
    CHECK(square.high == (std::int64_t(1) << 62) - 1);
    CHECK(square.low == 1);
    CHECK(multiply_wide(least, least).high == std::int64_t(1) << 62);
    CHECK(multiply_wide(-1, 1).high == -1);
    CHECK(multiply_wide(-1, 1).low == ~std::uint64_t(0));
    CHECK(square > multiply_wide(most - 1, most));
    CHECK(multiply_wide(3, 7) > multiply_wide(4, 5));
    CHECK(multiply_wide(1, 1) > multiply_wide(-1, most));
    CHECK_FALSE(multiply_wide(6, 10) > multiply_wide(5, 12));
#ifdef __SIZEOF_INT128__
    __extension__ using wide = __int128;
    std::uint64_t seed = 1;
    const auto number = [&seed] {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::int64_t>(seed) >> (seed >> 33) % 63;
    };
    std::int64_t a = most, b = least;
    wide before = 0;
    wide_product halves{};
    for (int i = 0; i < 10000; ++i) {
        const wide whole = static_cast<wide>(a) * b;
        const wide_product product = multiply_wide(a, b);
        REQUIRE(product.high == static_cast<std::int64_t>(whole >> 64));
        REQUIRE(product.low == static_cast<std::uint64_t>(whole));
        REQUIRE((product > halves) == (whole > before));
        before = whole;
        halves = product;
        a = number();
        b = number();
    }
#endif
}

TEST_CASE("scalar types have names, sizes and weights") {
    CHECK(to_string(dtype_of<float>()) == "f32");
    CHECK(to_string(dtype_of<double>()) == "f64");
    CHECK(to_string(dtype_of<std::complex<float>>()) == "c64");
    CHECK(to_string(dtype_of<std::complex<double>>()) == "c128");
    CHECK(to_string(dtype_of<long double>()) == "other");
    CHECK(to_string(dtype_of<int>()) == "other");
    CHECK(element_bytes(dtype_of<float>()) == sizeof(float));
    CHECK(element_bytes(dtype_of<double>()) == sizeof(double));
    CHECK(element_bytes(dtype_of<std::complex<float>>()) == sizeof(std::complex<float>));
    CHECK(element_bytes(dtype_of<std::complex<double>>()) == sizeof(std::complex<double>));
    CHECK(element_bytes(dtype::f16) == 2);
    CHECK(element_bytes(dtype::other) == 0);
    CHECK(multiply_add_weight(dtype::c64) == 4);
    CHECK(multiply_add_weight(dtype::f64) == 1);
}

TEST_CASE("an inline vector keeps its entries through growth, copies and moves") {
    using list = inline_vector<std::shared_ptr<int>, 3>;
    list short_list;
    list long_list;
    for (int i = 0; i < 2; ++i) {
        short_list.push_back(std::make_shared<int>(i));
    }
    for (int i = 0; i < 8; ++i) {
        long_list.push_back(std::make_shared<int>(10 + i));
    }
    const auto holds = [](const list& l, int first, std::size_t count) {
        bool good = l.size() == count && l.empty() == (count == 0);
        for (std::size_t i = 0; good && i < count; ++i) {
            good = *l[i] == first + static_cast<int>(i);
        }
        return good;
    };
    CHECK(holds(short_list, 0, 2));
    CHECK(holds(long_list, 10, 8));
    list copy = long_list;
    CHECK(holds(copy, 10, 8));
    copy = short_list;
    CHECK(holds(copy, 0, 2));
    copy = long_list;
    copy = *&copy;
    CHECK(holds(copy, 10, 8));
    list moved = std::move(copy);
    CHECK(holds(moved, 10, 8));
    CHECK(copy.empty());  // NOLINT(bugprone-use-after-move): it is a promise
    copy.push_back(std::make_shared<int>(5));
    CHECK(holds(copy, 5, 1));
    moved = std::move(short_list);
    CHECK(holds(moved, 0, 2));
    moved = list(long_list);
    CHECK(holds(moved, 10, 8));
    CHECK(*moved.back() == 17);
    const std::weak_ptr<int> watched = long_list[7];
    long_list.clear();
    moved.clear();
    CHECK(watched.expired());  // clear gives up what the entries own
    CHECK(holds(long_list, 0, 0));
    long_list.push_back(std::make_shared<int>(3));
    CHECK(holds(long_list, 3, 1));
}

namespace {

// Y[4, 3] = X[4, 2] * F[2, 3]
program small() {
    program p;
    tensor x;
    x.role = tensor_role::input;
    x.binding = 0;
    p.add_tensor(x);
    p.add_mode(4, 1);
    p.add_mode(2, 4);
    tensor f;
    f.role = tensor_role::factor;
    f.binding = 1;
    p.add_tensor(f);
    p.add_mode(2, 3);
    p.add_mode(3, 1);
    tensor y;
    y.role = tensor_role::output;
    y.binding = 2;
    p.add_tensor(y);
    p.add_mode(4, 1);
    p.add_mode(3, 4);
    step s;
    s.in = 0;
    s.factor = 1;
    s.out = 2;
    s.mode = 1;
    s.scalar = p.scalar_count++;
    p.steps.push_back(s);
    return p;
}

template <class Change>
std::string difference(const Change& change) {
    const program planned = small();
    program given = planned;
    change(given);
    CHECK(!(planned == given));
    CHECK(hash_value(planned) != hash_value(given));
    return describe_difference(planned, given);
}

}  // namespace

TEST_CASE("equal programs compare and hash equal") {
    CHECK(small() == small());
    CHECK(hash_value(small()) == hash_value(small()));
    CHECK(describe_difference(small(), small()).empty());
    CHECK(element_count(small(), 0) == 8);
    program p = small();
    p.clear();
    CHECK(p == program());
}

TEST_CASE("the first difference between two programs, in words") {
    CHECK(difference([](program& p) { p.modes[0].extent = 5; }) == "X has extents [5, 2], planned were [4, 2]");
    CHECK(difference([](program& p) { p.modes[1].stride = 5; }) == "X has strides [1, 5], planned were [1, 4]");
    CHECK(difference([](program& p) { p.modes[2].stride = 4; }) == "factor 1 has strides [4, 1], planned were [3, 1]");
    CHECK(difference([](program& p) { p.modes[5].stride = 9; }) ==
          "the destination has strides [1, 9], planned were [1, 4]");
    CHECK(difference([](program& p) { p.tensors[1].type = dtype::f32; }) == "factor 1 is f32, planned was f64");
    CHECK(difference([](program& p) { p.tensors[0].space = memory_space::device; }) ==
          "X is in device memory, planned was host memory");
    CHECK(difference([](program& p) { p.tensors[1].conjugate = true; }) ==
          "factor 1 is of another kind or conjugated differently");
    CHECK(difference([](program& p) { p.tensors[0].alignment_log2 = 4; }) ==
          "X is aligned to 16 bytes, planned were 1");
    CHECK(difference([](program& p) { p.steps[0].add = true; }) ==
          "the expression adds to the destination, the plan overwrites it");
    CHECK(difference([](program& p) { p.tensors[1].stored = 5; }) == "factor 1 stores 5 elements, planned were 0");
    CHECK(difference([](program& p) { p.tensors[0].scalar_bytes = 10; }) ==
          "X has elements of 10 bytes, planned were 8");
    CHECK(difference([](program& p) { p.steps[0].kind = step_kind::gather; }) ==
          "step 1 applies its factor in another way, as a permutation that is inverted or the other triangle");
    CHECK(difference([](program& p) { p.steps[0].mode = 0; }) == "the steps are connected differently");
    CHECK(difference([](program& p) { p.steps.push_back(p.steps[0]); }) ==
          "the plan has 1 steps on 3 tensors, the expression 2 on 3");
}

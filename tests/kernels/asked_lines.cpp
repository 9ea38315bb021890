// SPDX-License-Identifier: MIT
// Which lines a kernel asks for before it copies them (kernels/tile_memory.cuh): all of a tile's part, nothing beside it, a line of one stretch once.
#include "kernels/fused.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kernel_tests {
namespace {

template <class Scalar, int Rows, int Run, int Threads, int Blocks, int Cluster, class P, class Trips,
          int Ending = ends_stored>
using tile = mode_group<Scalar, Rows, Run, Threads, Blocks, 1, 0, Cluster, 1, P, P, Trips, 1, false, false, 1, Ending>;

/// The lines that all threads ask for.
template <class Group>
std::vector<const void*> asked(const tile_place<typename Group::storage>& place, int part) {
    std::vector<const void*> lines;
    host_device::asked_lines = &lines;
    for (unsigned t = 0; t < unsigned(Group::threads); ++t) {
        threadIdx.x = t;
        ask_for_part<Group>(place, part);
    }
    threadIdx.x = 0;
    host_device::asked_lines = nullptr;
    return lines;
}

/// @param elements offsets from `x` of what is to be read
template <class Scalar>
void covers(const std::vector<const void*>& lines, const Scalar* x, std::vector<std::int64_t> elements) {
    constexpr std::int64_t line = 128 / std::int64_t{sizeof(Scalar)};
    std::ranges::sort(elements);
    std::vector<std::int64_t> begins;
    for (const void* at : lines) {
        begins.push_back(static_cast<const Scalar*>(at) - x);
    }
    std::ranges::sort(begins);
    CHECK(std::ranges::all_of(
        begins, [&](std::int64_t at) { return std::ranges::binary_search(elements, at); }));  // nothing beside it
    CHECK(std::ranges::all_of(elements, [&](std::int64_t element) {
        const auto behind = std::ranges::upper_bound(begins, element);
        return behind != begins.begin() && element < *std::prev(behind) + line;
    }));
}

}  // namespace

TEST_CASE("rows, whole ones and the part of a block of a cluster") {
    static float x[4096];
    tile_place<float> place{};
    place.x = x;
    place.run = 1;
    using rows = tile<float, 3, 1, 32, 4, 1, extents<10, 7>, trips<trip<2, 1, 0, 1>, trip<1, 1, 0, 1>>>;
    for (const int exist : {3, 2}) {
        place.rows = exist;
        place.x_row_stride = 80;
        std::vector<std::int64_t> elements;
        for (int r = 0; r < exist; ++r) {
            for (int i = 0; i < 70; ++i) {
                elements.push_back(80 * r + i);
            }
        }
        covers(asked<rows>(place, 0), x, elements);
    }
    using shared =
        tile<float, 1, 1, 128, 2, 4, extents<8, 8, 16>, trips<trip<3, 1, 1, 1>, trip<2, 1, 1, 1>, trip<1, 1, 1, 1>>>;
    place.rows = 1;
    for (const int part : {0, 3}) {
        std::vector<std::int64_t> elements;
        for (int i = 0; i < 256; ++i) {
            elements.push_back(256 * part + i);
        }
        covers(asked<shared>(place, part), x, elements);
    }
}

TEST_CASE("runs with gaps between, shorter ones at the end of a line, and short lines side by side") {
    static double x[8192];
    tile_place<double> place{};
    place.x = x;
    place.rows = 1;
    place.x_inner = 100;
    using runs = tile<double, 1, 40, 64, 4, 1, extents<6>, trips<trip<1, 1, 0, 1>>>;
    for (const int exist : {40, 17}) {
        place.run = exist;
        std::vector<std::int64_t> elements;
        for (int f = 0; f < 6; ++f) {
            for (int i = 0; i < exist; ++i) {
                elements.push_back(100 * f + i);
            }
        }
        covers(asked<runs>(place, 0), x, elements);
    }
    using lines = tile<double, 5, 6, 32, 4, 1, extents<6>, trips<trip<1, 1, 0, 1>>>;
    place.rows = 5;
    place.run = 6;
    place.x_inner = 6;
    std::vector<std::int64_t> elements;
    for (int i = 0; i < 180; ++i) {
        elements.push_back(i);
    }
    const std::vector<const void*> once = asked<lines>(place, 0);
    covers(once, x, elements);
    CHECK(once.size() == 12);  // of 16 elements each
}

TEST_CASE("single modes ask ahead, and two trailing ones by the unit in few warps, unless a second matrix is read") {
    using one = trips<trip<1, 1, 0, 1>>;
    using two = trips<trip<2, 1, 1, 1>, trip<1, 1, 1, 1>>;
    CHECK(tile<float, 1, 64, 128, 4, 1, extents<8>, one>::asks_ahead);
    CHECK(tile<double, 16, 1, 128, 4, 1, extents<13>, one>::asks_ahead);
    CHECK(tile<float, 4, 1, 128, 4, 1, extents<24, 24>, two>::asks_ahead);
    CHECK_FALSE(tile<float, 4, 1, 128, 8, 1, extents<24, 24>, two>::asks_ahead);  // 32 warps
    CHECK_FALSE(tile<float, 1, 32, 128, 4, 1, extents<24, 24>, two>::asks_ahead);
    CHECK_FALSE(tile<float, 4, 1, 128, 4, 1, extents<8, 8>, trips<trip<2, 1, 0, 1>, trip<1, 1, 0, 1>>>::asks_ahead);
    CHECK(tile<float, 8, 16, 128, 4, 1, extents<16>, one>::asks_ahead);
    CHECK_FALSE(tile<float, 32, 8, 128, 8, 1, extents<8>, one>::asks_ahead);
    CHECK_FALSE(tile<float, 1, 64, 128, 4, 1, extents<8>, one, ends_in_dot>::asks_ahead);
    CHECK(tile<float, 1, 64, 128, 4, 1, extents<8>, one, ends_in_norm>::asks_ahead);
    CHECK_FALSE(tile<complex<float>, 1, 128, 64, 8, 1, extents<16>, trips<trip<1, 1, 1, 2>>>::asks_ahead);  // 128 KB
}

}  // namespace kernel_tests

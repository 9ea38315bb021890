// SPDX-License-Identifier: MIT
// Which sparse factors a GPU multiplies from tiles in shared memory, and how large the tiles are.
#include <otimes/plan/gpu_sparse.hpp>
#include <otimes/plan/machine_table.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using otimes::dtype;
using otimes::planning::sparse_sums;
using otimes::planning::sparse_tile_turns;

TEST_CASE("tiles of a sparse factor hold the mode, and as many neighbours as fill banks or bytes") {
    const otimes::gpu_description gpu = otimes::h200();
    const auto of = [&gpu](const sparse_sums& s, dtype type) { return sparse_tile_turns(s, type, gpu); };
    const std::int64_t many = 1'000'000;
    // 64 KiB: 1000 x 16 floats, 1000 x 8 doubles; 32 floats are all banks.
    CHECK(of({1000, 3000, many, 1, many}, dtype::f32) == 16);
    CHECK(of({1000, 3000, many, 1, many}, dtype::f64) == 8);
    CHECK(of({1000, 3000, many, 1, many}, dtype::c128) == 4);
    CHECK(of({100, 300, many, 1, many}, dtype::f32) == 32);
    CHECK(of({4096, 9000, many, 1, many}, dtype::f32) == 4);
    CHECK(of({4097, 9000, many, 1, many}, dtype::f32) == 0);
    // Along the memory: from a single fibre to eight.
    CHECK(of({1000, 3000, many, 1, many, true}, dtype::f32) == 8);
    CHECK(of({16384, 50000, many, 1, many, true}, dtype::f32) == 1);
    CHECK(of({16385, 50000, many, 1, many, true}, dtype::f32) == 0);
    CHECK(of({8193, 50000, many, 1, many, true}, dtype::f64) == 0);
}

TEST_CASE("tiles are enough for the device, not wider than what there is, and read by more than half") {
    otimes::gpu_description gpu = otimes::h200();
    gpu.multiprocessors = 100;
    const auto of = [&gpu](const sparse_sums& s) { return sparse_tile_turns(s, dtype::f32, gpu); };
    CHECK(of({10, 30, 3, 1000, 3000}) == 4);
    CHECK(of({10, 30, 5, 1000, 5000}) == 8);
    CHECK(of({10, 30, 1600, 1, 1600}) == 8);  // 200 tiles; 100 of 16
    CHECK(of({10, 30, 1599, 1, 1599}) == 8);
    CHECK(of({10, 30, 1592, 1, 1592}) == 4);
    CHECK(of({10, 30, 256, 1, 256}) == 4);
    CHECK(of({10, 30, 255, 1, 255}) == 0);  // of all slabs
    CHECK(of({10, 30, 3, 1, 256}) == 4);
    CHECK(of({1000, 500, 1600, 1, 1600}) == 8);
    CHECK(of({1000, 499, 1600, 1, 1600}) == 0);
    CHECK(of({0, 0, 1600, 1, 1600}) == 0);
    gpu.shared_bytes_per_block = 65535;
    CHECK(of({10, 30, 1600, 1, 1600}) == 0);
}

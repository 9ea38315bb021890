// SPDX-License-Identifier: MIT
// What otimes::tune has found for GPUs is every executor's.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <otimes/plan/machine.hpp>

#include "../../backend/core/tuned_choices.hpp"

TEST_CASE("a choice is seen by who asked before it was made, and by GPUs of its kind alone") {
    otimes::backend::tuned_choices table;
    otimes::gpu_description gpu, other, smaller;
    gpu.name = "one kind";
    gpu.multiprocessors = 132;
    other = smaller = gpu;
    other.name = "another";
    smaller.multiprocessors = 16;
    int looks = 0;
    const auto look = [&](const char* found) {
        return [&looks, found] {
            ++looks;
            return std::string(found);
        };
    };
    CHECK(table.version() == 0);
    CHECK(table.find(gpu, 7, look("")).empty());  // what an executor asks for before it plans
    CHECK(table.find(gpu, 7, look("on disk")).empty());
    CHECK(looks == 1);  // the disk is asked once
    table.keep(gpu, 7, "tuned");
    CHECK(table.version() == 1);
    CHECK(table.find(gpu, 7, look("")) == "tuned");
    CHECK(looks == 1);
    CHECK(table.find(gpu, 8, look("")).empty());
    CHECK(table.find(other, 7, look("")).empty());
    CHECK(table.find(smaller, 7, look("on disk")) == "on disk");
    table.keep(gpu, 7, "tuned again");
    CHECK(table.version() == 2);
    CHECK(table.find(gpu, 7, look("")) == "tuned again");
    CHECK(table.find(smaller, 7, look("")) == "on disk");
    // A choice that another thread keeps while the disk is asked is newer than what is found there.
    const auto meanwhile = [&] {
        table.keep(gpu, 9, "kept meanwhile");
        return std::string("on disk");
    };
    CHECK(table.find(gpu, 9, meanwhile) == "kept meanwhile");
    CHECK(&otimes::backend::tuned_choices::of_process() == &otimes::backend::tuned_choices::of_process());
}

TEST_CASE("programs of ever new shapes are forgotten where nothing was tuned for them") {
    otimes::backend::tuned_choices table;
    const otimes::gpu_description gpu;
    int looks = 0;
    const auto nothing = [&] {
        ++looks;
        return std::string();
    };
    table.keep(gpu, 1, "tuned");
    for (std::uint64_t program = 2; program < 10000; ++program) CHECK(table.find(gpu, program, nothing).empty());
    looks = 0;
    for (std::uint64_t program = 2; program < 10000; ++program) table.find(gpu, program, nothing);
    CHECK(looks > 1000);  // they are not all known
    CHECK(table.find(gpu, 1, nothing) == "tuned");
}

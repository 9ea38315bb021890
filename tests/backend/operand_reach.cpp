// SPDX-License-Identifier: MIT
// Which pages a thread knows a GPU to reach, and what an operand out of reach is told.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../../backend/core/operand_reach.hpp"

namespace {

using otimes::tensor_role;
using otimes::backend::host_reads;
using otimes::backend::reach;
using otimes::backend::reached_pages;
using otimes::backend::refusal_of;

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

TEST_CASE("a page that was reached is known, to one GPU") {
    reached_pages pages;
    const int a = 0, b = 0;
    const std::uintptr_t first = 0x7f1234560000;
    CHECK(!pages.holds(&a, at(first)));
    pages.keep(&a, at(first + 16));
    for (const std::uintptr_t offset : {0, 16, 4095}) CHECK(pages.holds(&a, at(first + offset)));
    for (const std::uintptr_t other : {first - 1, first + 4096}) CHECK(!pages.holds(&a, at(other)));
    CHECK(!pages.holds(&b, at(first)));
    CHECK(!pages.holds(&a, nullptr));
    CHECK(!reached_pages().holds(nullptr, at(4096)));
    reached_pages::forget();
    CHECK(!pages.holds(&a, at(first)));
    pages.keep(&a, at(first + 8192));
    CHECK(!pages.holds(&a, at(first)));
    CHECK(pages.holds(&a, at(first + 8192)));
}

TEST_CASE("the operands of several expressions are known at once") {
    reached_pages pages;
    const int gpu = 0;
    // Matrices that follow each other, or lie 2 MiB apart, as an allocator places them.
    for (const std::uintptr_t distance : {std::uintptr_t{4096}, std::uintptr_t{1} << 16, std::uintptr_t{1} << 21}) {
        for (std::uintptr_t i = 0; i < 16; ++i) pages.keep(&gpu, at(0x7f0000000000 + i * distance));
        int known = 0;
        for (std::uintptr_t i = 0; i < 16; ++i) known += pages.holds(&gpu, at(0x7f0000000000 + i * distance)) ? 1 : 0;
        CHECK(known == 16);
    }
    // Many more push others out, and none is taken for another.
    for (std::uintptr_t i = 0; i < 100000; ++i) {
        const void* const next = at((i * 0x9e3779b97f4a7c15u) >> 8 | 1u << 20);
        if (pages.holds(&gpu, next)) continue;
        pages.keep(&gpu, next);
        REQUIRE(pages.holds(&gpu, next));
    }
}

TEST_CASE("a refusal names the operand, where it is and what to do") {
    struct expected {
        reach found;
        std::string has;
    };
    for (const expected& e :
         {expected{reach::nowhere, "Give device_map"}, expected{reach::host_memory, "Copy it"},
          expected{reach::other_address, "cudaHostGetDevicePointer"}, expected{reach::other_gpu, "other.to_host()"}}) {
        const std::string text =
            refusal_of(tensor_role::input, e.found == reach::nowhere ? nullptr : at(0xabc0), e.found);
        CAPTURE(text);
        CHECK(text.find(e.has) != std::string::npos);
        CHECK(text.rfind("otimes: X", 0) == 0);
        CHECK((e.found == reach::nowhere || text.find("at 0xabc0,") != std::string::npos));
    }
    CHECK(refusal_of(tensor_role::output, at(1), reach::host_memory).rfind("otimes: Y, at 0x1, is in host memory", 0) ==
          0);
    CHECK(refusal_of(tensor_role::factor, at(1), reach::host_memory).rfind("otimes: a factor, at", 0) == 0);
}

TEST_CASE("memory of the host is what the host can read") {
    const int here = 1;
    CHECK(host_reads(&here));
    CHECK(!host_reads(at(16)));
    void* const reserved = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // as a driver reserves
    REQUIRE(reserved != MAP_FAILED);
    CHECK(!host_reads(reserved));
    munmap(reserved, 4096);
}

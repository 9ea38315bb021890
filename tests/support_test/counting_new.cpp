// SPDX-License-Identifier: MIT
#include "support/counting_new.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

struct alignas(64) cache_line {
    char bytes[64];
};

// Keeps the compiler from removing an allocation that nothing uses.
void use(void* memory) { asm volatile("" : : "g"(memory) : "memory"); }

}  // namespace

TEST_CASE("allocations are counted, by new and by malloc, on every thread") {
    if (!support::allocations_are_counted()) {
        MESSAGE("skipped: allocations are not counted in this build (sanitizer, or a C library other than glibc)");
        return;
    }
    support::allocation_counter counter;
    const auto before = counter.seen();

    auto number = std::make_unique<int>(1);
    use(number.get());
    const auto after_new = counter.seen();

    auto line = std::make_unique<cache_line>();
    use(line.get());
    const auto after_aligned = counter.seen();

    void* block = std::malloc(100000);
    use(block);
    std::free(block);
    const auto after_malloc = counter.seen();

    void* aligned = nullptr;
    const int failed = posix_memalign(&aligned, 256, 200000);
    use(aligned);
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(aligned) % 256 == 0;
    std::free(aligned);
    const auto after_posix = counter.seen();

    std::thread([] { use(std::vector<char>(300000).data()); }).join();
    const auto after_thread = counter.seen();

    CHECK(before.count == 0);
    CHECK(after_new.count == 1);
    CHECK(after_new.largest_bytes == sizeof(int));
    CHECK(after_aligned.count == 2);
    CHECK(after_malloc.count == 3);
    CHECK(after_malloc.largest_bytes == 100000);
    CHECK(failed == 0);
    CHECK(is_aligned);
    CHECK(after_posix.count == 4);
    CHECK(after_thread.count > 4);
    CHECK(after_thread.largest_bytes == 300000);
    CHECK(after_thread.total_bytes >= 600000);
}

TEST_CASE("nothing is counted outside a counter's life, and a new counter starts at zero") {
    use(std::make_unique<int>(1).get());
    support::allocation_counter counter;
    const auto seen = counter.seen();
    CHECK(seen.count == 0);
    CHECK(seen.largest_bytes == 0);
}

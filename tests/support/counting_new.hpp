// SPDX-License-Identifier: MIT
// Counts heap allocations, by operator new and by malloc alike (Eigen uses malloc), of all threads of the process.
//
//   support::allocation_counter counter;
//   plan.run(Y, expression);
//   const auto seen = counter.seen();             // take the numbers first: doctest's macros allocate
//   if (support::allocations_are_counted()) CHECK(seen.count == 0);
#pragma once

#include <cstddef>
#include <cstdint>

namespace support {

struct allocations {
    std::int64_t count = 0;         // number of allocations
    std::size_t largest_bytes = 0;  // the largest single one
    std::size_t total_bytes = 0;    // all together, freed ones too
};

// False where the C library is not glibc and under the address and thread sanitizers, which have a malloc of their own.
// The counter then sees nothing, and support_test says so.
bool allocations_are_counted();

// Counts from its construction on. One at a time: it resets the process-wide counts.
class allocation_counter {
public:
    allocation_counter();
    ~allocation_counter();
    allocation_counter(const allocation_counter&) = delete;
    allocation_counter& operator=(const allocation_counter&) = delete;

    allocations seen() const;
};

// Refuses memory as soon as all allocations of the process since its construction, freed ones too, would take more than
// `bytes`: operator new and Eigen then throw std::bad_alloc. One at a time; nothing where allocations are not counted.
class allocation_limit {
public:
    explicit allocation_limit(std::size_t bytes);
    ~allocation_limit();
    allocation_limit(const allocation_limit&) = delete;
    allocation_limit& operator=(const allocation_limit&) = delete;
};

// The same for each allocation of more than `bytes`; smaller ones go on.
class allocation_size_limit {
public:
    explicit allocation_size_limit(std::size_t bytes);
    ~allocation_size_limit();
    allocation_size_limit(const allocation_size_limit&) = delete;
    allocation_size_limit& operator=(const allocation_size_limit&) = delete;
};

}  // namespace support

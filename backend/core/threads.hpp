// SPDX-License-Identifier: MIT
/// @file threads.hpp
/// Threads that share out work: as many as the system gives.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>
#include <vector>

namespace otimes::backend {

/// Starts threads that do `work(i)`, i from 0 to count - 1, until the system gives no more. How many it gave; the caller does the rest.
template <class Thread, class Work>
std::size_t start_threads(std::vector<Thread>& threads, std::size_t count, const Work& work) {
    threads.reserve(threads.size() + count);  // else one that runs might be lost
    for (std::size_t i = 0; i < count; ++i) {
        try {
            threads.emplace_back(work, i);
        } catch (const std::system_error&) {
            return i;
        } catch (const std::bad_alloc&) {
            return i;
        }
    }
    return count;
}

}  // namespace otimes::backend

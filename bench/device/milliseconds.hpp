// SPDX-License-Identifier: MIT
// Wall clock of work that is queued on otimes::gpu().
#pragma once

#include <chrono>
#include <functional>

#include <otimes/cuda.hpp>

namespace otimes::bench {

/// Milliseconds of one of `count` calls in a row, until the GPU is done.
inline double milliseconds_of(const std::function<void()>& work, int count) {
    gpu().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < count; ++k) {
        work();
    }
    gpu().synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / count;
}

}  // namespace otimes::bench

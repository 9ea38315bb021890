// SPDX-License-Identifier: MIT
/// @file over_threads.hpp
/// Work of the front end that threads share, outside any plan: items of a batch, samples of a row-wise product.
#pragma once

#include <cstdint>
#include <exception>

#include <otimes/exec/row_hook.hpp>
#include <otimes/exec/target.hpp>

#if OTIMES_OPENMP
#include <omp.h>
#endif

namespace otimes {
inline namespace OTIMES_TARGET {
namespace threading {

/// Threads that may start now, `most` at most (0: all); 1 inside a parallel region and without OpenMP.
inline std::int64_t threads_now([[maybe_unused]] std::int64_t most) {
#if OTIMES_OPENMP
    const std::int64_t all = omp_in_parallel() == 0 ? omp_get_max_threads() : 1;
    return most > 0 && most < all ? most : all;
#else
    return 1;
#endif
}

/// body(begin, end) on parts of [begin, end), shared out among the threads, `most` at most (0: all), where `flops` in all are worth it.
/// @throws what body throws
template <class Body>
void over_threads(std::int64_t begin, std::int64_t end, [[maybe_unused]] double flops,
                  [[maybe_unused]] std::int64_t most, const Body& body) {
#if OTIMES_OPENMP
    const std::int64_t threads = threads_now(most);
    const std::int64_t count = end - begin;
    if (threads > 1 && count > threads && flops > cpu_detail::flops_per_fork) {
        std::exception_ptr failure;
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads))
        for (std::int64_t t = 0; t < threads; ++t) {
            try {
                body(begin + count * t / threads, begin + count * (t + 1) / threads);
            } catch (...) {
#pragma omp critical(otimes_over_threads)
                failure = std::current_exception();
            }
        }
        if (failure) {
            std::rethrow_exception(failure);
        }
        return;
    }
#endif
    body(begin, end);
}

}  // namespace threading
}  // namespace OTIMES_TARGET
}  // namespace otimes

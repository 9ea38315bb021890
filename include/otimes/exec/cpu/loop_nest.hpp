// SPDX-License-Identifier: MIT
/// @file loop_nest.hpp
/// Loops over all modes of a step but one, over runs of memory: what strided
/// step loops are made of, and how threads share them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// One index of a loop nest with its strides in up to three operands.
struct loop_index {
    std::int64_t extent = 1;
    std::array<std::int64_t, 3> stride = {0, 0, 0};
};

/// Writes the nest over all modes but `skipped` (-1: none), the one with the smallest stride in `out` last.
inline void loop_nest(const reference_loops::view& out, const reference_loops::view& in,
                      const reference_loops::view& factor, std::int32_t skipped, std::vector<loop_index>& nest) {
    nest.clear();
    for (std::size_t k = 0; k < out.modes.size(); ++k) {
        if (static_cast<std::int32_t>(k) == skipped || (out.modes[k].extent == 1 && in.modes[k].extent == 1)) {
            continue;
        }
        nest.push_back(
            {out.modes[k].extent,
             {out.modes[k].stride, in.modes[k].stride, k < factor.modes.size() ? factor.modes[k].stride : 0}});
    }
    for (std::size_t end = 1; end < nest.size(); ++end) {  // by insertion: std::stable_sort takes memory
        for (std::size_t k = end; k > 0 && std::abs(nest[k].stride[0]) > std::abs(nest[k - 1].stride[0]); --k) {
            std::swap(nest[k], nest[k - 1]);
        }
    }
    // Neighbours that lie without a gap in every operand are one loop.
    for (std::size_t k = nest.size(); k-- > 1;) {
        bool joined = true;
        for (std::size_t s = 0; s < 3; ++s) {
            joined = joined && nest[k - 1].stride[s] == nest[k].stride[s] * nest[k].extent;
        }
        if (joined) {
            nest[k - 1] = {nest[k - 1].extent * nest[k].extent, nest[k].stride};
            nest.erase(nest.begin() + static_cast<std::ptrdiff_t>(k));
        }
    }
}

/// Elements of a cache line, the least that threads should share a run by.
template <class Scalar>
inline constexpr auto elements_of_line = static_cast<std::int64_t>(sizeof(Scalar) < 64 ? 64 / sizeof(Scalar) : 1);

inline constexpr std::size_t most_nested = 64;  ///< loops of two indices and more: a 64-bit count has fewer

/// Calls f(offsets of the three operands) for every index of the nest but its
/// last loop.
template <class Function>
void for_each_run(std::span<const loop_index> nest, Function&& f) {
    const std::size_t outer = nest.empty() ? 0 : nest.size() - 1;
    std::array<std::int64_t, 3> offset = {0, 0, 0};
    for (const loop_index& l : nest) {
        if (l.extent == 0) {
            return;
        }
    }
    std::int64_t at[most_nested];
    for (std::size_t k = 0; k < outer; ++k) {
        at[k] = 0;
    }
    for (;;) {
        f(offset);
        std::size_t k = outer;
        while (k > 0) {
            --k;
            for (std::size_t s = 0; s < 3; ++s) {
                offset[s] += nest[k].stride[s];
            }
            if (++at[k] < nest[k].extent) {
                break;
            }
            for (std::size_t s = 0; s < 3; ++s) {
                offset[s] -= nest[k].stride[s] * nest[k].extent;
            }
            at[k] = 0;
            if (k == 0) {
                return;
            }
        }
        if (outer == 0) {
            return;
        }
    }
}

/// The loop of a nest whose ranges `threads` threads take: the outermost one that gives them nine tenths of an equal share, else
/// the one that gives them most. Ranges of the last loop are multiples of `granule`.
inline std::size_t shared_loop(std::span<const loop_index> nest, std::int64_t threads, std::int64_t granule) noexcept {
    std::size_t best = 0;
    double most = 0;
    for (std::size_t k = 0; k < nest.size(); ++k) {
        const std::int64_t unit = k + 1 == nest.size() ? granule : 1;
        const std::int64_t units = (nest[k].extent + unit - 1) / unit;
        const std::int64_t rounds = (units + threads - 1) / threads;
        const double use =
            static_cast<double>(units) / static_cast<double>((std::max)(rounds, std::int64_t{1}) * threads);
        if (use > most) {
            best = k;
            most = use;
        }
        if (use >= 0.9) {
            return k;
        }
    }
    return best;
}

/// Calls f(nest, offsets, thread) once with all of it, or on each of `threads` threads with a share (shared_loop). @pre f does not throw there
template <class Function>
void share_nest(std::span<const loop_index> nest, [[maybe_unused]] std::int64_t threads,
                [[maybe_unused]] std::int64_t granule, Function&& f) {
#if OTIMES_OPENMP
    if (threads > 1 && !nest.empty() && nest.size() <= most_nested) {
        const std::size_t on = shared_loop(nest, threads, granule);
        const std::int64_t unit = on + 1 == nest.size() ? granule : 1;
        const std::int64_t units = (nest[on].extent + unit - 1) / unit;
#pragma omp parallel num_threads(static_cast <int>(threads))
        {
            const std::int64_t me = omp_get_thread_num();
            const std::int64_t count = omp_get_num_threads();
            const std::int64_t begin = (std::min)(nest[on].extent, units * me / count * unit);
            const std::int64_t end = (std::min)(nest[on].extent, units * (me + 1) / count * unit);
            loop_index share[most_nested];
            std::copy(nest.begin(), nest.end(), share);
            share[on].extent = end - begin;
            const std::array<std::int64_t, 3>& stride = nest[on].stride;
            if (begin < end) {
                f(std::span<const loop_index>(share, nest.size()),
                  std::array<std::int64_t, 3>{begin * stride[0], begin * stride[1], begin * stride[2]},
                  static_cast<std::size_t>(me));
            }
        }
        return;
    }
#endif
    f(nest, std::array<std::int64_t, 3>{0, 0, 0}, std::size_t{0});
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

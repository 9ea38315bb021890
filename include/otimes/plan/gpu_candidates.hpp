// SPDX-License-Identifier: MIT
/// @file gpu_candidates.hpp
/// The plans of a program that are worth measuring on a GPU: the planner's choice and its neighbours. Only the tuning function
/// includes this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <otimes/plan/gpu_passes.hpp>

namespace otimes::planning {

/// At most `most` choices that can run, the planner's own first, the others by predicted time. Empty for programs that are not
/// one chain of contractions. Neighbours: a boundary between passes moved, removed or added; of one pass half or twice the
/// rows, the run or the threads, one block a multiprocessor more or less.
OTIMES_COLD inline std::vector<gpu_choice> gpu_candidates(const program& source, const gpu_description& gpu,
                                                          const options& wishes, std::size_t most) {
    struct ranked {
        gpu_choice choice;
        double seconds = 0;
    };
    std::vector<ranked> found;
    const auto consider = [&](const gpu_choice& wish) {
        const plan p = plan_on_gpu(source, gpu, wishes, 0, &wish);
        const std::optional<gpu_choice> got = choice_of(p);
        if (!got || got->parts.size() != wish.parts.size()) {
            return;
        }
        for (std::size_t i = 0; i < wish.parts.size(); ++i) {  // an impossible wish is answered by the usual plan
            const gpu_choice::part& want = wish.parts[i];
            if (got->parts[i].sweeps != want.sweeps || got->parts[i].tile.trips.empty() ||
                (!want.any_tile && got->parts[i].tile != want.tile)) {
                return;
            }
        }
        if (p.workspace_bytes <= wishes.workspace_limit_bytes &&
            std::ranges::none_of(found, [&](const ranked& r) { return r.choice == *got; })) {
            found.push_back({*got, p.predicted_seconds});
        }
    };
    const plan usual = plan_on_gpu(source, gpu, wishes);
    const std::optional<gpu_choice> base = choice_of(usual);
    if (!base) {
        return {};
    }
    found.push_back({*base, usual.predicted_seconds});
    const auto any = [](std::int32_t sweeps) {
        gpu_choice::part part;
        part.sweeps = sweeps;
        part.any_tile = true;
        return part;
    };
    for (std::size_t i = 0; i < base->parts.size(); ++i) {
        for (std::int32_t sweeps = 1; sweeps < base->parts[i].sweeps; ++sweeps) {  // one more pass
            gpu_choice wish = *base;
            wish.parts[i] = any(base->parts[i].sweeps - sweeps);
            wish.parts.insert(wish.parts.begin() + static_cast<std::ptrdiff_t>(i), any(sweeps));
            consider(wish);
        }
        if (i + 1 < base->parts.size()) {
            const std::int32_t both = base->parts[i].sweeps + base->parts[i + 1].sweeps;
            for (std::int32_t sweeps = 0; sweeps < both; ++sweeps) {  // another boundary, or none
                gpu_choice wish = *base;
                wish.parts[i + 1] = any(both - sweeps);
                if (sweeps > 0) {
                    wish.parts[i] = any(sweeps);
                } else {
                    wish.parts.erase(wish.parts.begin() + static_cast<std::ptrdiff_t>(i));
                }
                consider(wish);
            }
        }
        const auto with = [&](auto change) {
            gpu_choice wish = *base;
            change(wish.parts[i].tile);
            consider(wish);
        };
        with([](gpu_tile& t) { t.blocks += 1; });
        with([](gpu_tile& t) { t.blocks -= 1; });
        with([](gpu_tile& t) {
            t.threads *= 2;
            t.blocks = (std::max)(1, t.blocks / 2);
        });
        with([](gpu_tile& t) {
            t.threads /= 2;
            t.blocks *= 2;
        });
        with([](gpu_tile& t) { t.run > 1 ? t.run *= 2 : t.rows *= 2; });
        with([](gpu_tile& t) { t.run > 1 ? t.run /= 2 : t.rows /= 2; });
    }
    std::stable_sort(found.begin() + 1, found.end(),
                     [](const ranked& a, const ranked& b) { return a.seconds < b.seconds; });
    std::vector<gpu_choice> result;
    for (std::size_t i = 0; i < (std::min)(most, found.size()); ++i) {
        result.push_back(std::move(found[i].choice));
    }
    return result;
}

}  // namespace otimes::planning

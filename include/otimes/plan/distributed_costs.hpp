// SPDX-License-Identifier: MIT
/// @file distributed_costs.hpp
/// Seconds of the parts of a distributed plan: exchanges, chunks of a local stage, what goes on beside them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <otimes/plan/cost.hpp>
#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

namespace planning {

/// Rates of one rank, and of the exchange.
struct distribution_rates {
    double flops_per_second = 1;
    double bytes_per_second = 1;
    double launch_seconds = 0;
};

OTIMES_COLD inline distribution_rates rates_of(const machine& where, const distributed_problem& problem) {
    distribution_rates r;
    if (problem.space == memory_space::device && !where.gpus.empty()) {
        const gpu_description& gpu = where.gpus.front();
        r.flops_per_second = rate_of(gpu, problem.type, problem.wishes.precision, 8, 8).flops_per_second;
        r.bytes_per_second = gpu.memory_bytes_per_second;
        r.launch_seconds = gpu.launch_seconds;
    } else {
        const double threads = (std::max)(1, where.cpu.threads);
        r.flops_per_second = peak_flops(where.cpu, problem.type) * threads;
        r.bytes_per_second = where.cpu.memory_bytes_per_second;
        r.launch_seconds = where.cpu.dispatch_seconds;
    }
    r.flops_per_second = (std::max)(r.flops_per_second, 1.0);
    r.bytes_per_second = (std::max)(r.bytes_per_second, 1.0);
    return r;
}

/// Least and most share of what a rank sends that leaves its host. Where the grid stays, a rank sends to those with its rows alone; else it
/// is taken to send to all.
struct outside_shares {
    double least = 0;
    double most = 0;
};
OTIMES_COLD inline outside_shares shares_outside(const interconnect& net, const distribution& from,
                                                 const distribution& to, std::int32_t ranks) {
    if (net.network_bytes_per_second <= 0 || net.ranks_per_host <= 0) {
        return {};
    }
    const bool same_grid =
        from.row_parts == to.row_parts && from.col_parts == to.col_parts && from.first_rank == to.first_rank;
    const std::int32_t peers = same_grid ? from.col_parts : ranks;  // with the rank itself
    const std::int32_t begin = same_grid ? from.first_rank : 0;
    const std::int32_t end = same_grid ? begin + from.parts() : ranks;
    outside_shares shares{1, 0};
    for (std::int32_t rank = begin; rank < end; ++rank) {
        const std::int32_t first = rank - (rank - begin) % peers;
        const std::int32_t host = rank - rank % net.ranks_per_host;
        const std::int32_t inside = (std::min)(first + peers, host + net.ranks_per_host) - (std::max)(first, host);
        const double share = static_cast<double>(peers - inside) / static_cast<double>((std::max)(1, peers - 1));
        shares = {(std::min)(shares.least, share), (std::max)(shares.most, share)};
    }
    return shares;
}

OTIMES_COLD inline double exchange_seconds(const interconnect& net, const moved_elements& moved, std::int64_t bytes,
                                           const distribution& from, const distribution& to, std::int32_t ranks) {
    const auto most = static_cast<double>((std::max)(moved.most_sent, moved.most_received) * bytes);
    if (most == 0) {
        return 0;
    }
    const outside_shares outside = shares_outside(net, from, to, ranks);
    double seconds = most * (1 - outside.least) / net.bytes_per_second;
    if (outside.most > 0) {
        seconds = (std::max)(seconds, most * outside.most / net.network_bytes_per_second);
    }
    return seconds + net.exchange_seconds;
}

/// What a GPU takes to begin a pass of which it has done another part before: its blocks read and split the factors again. Measured on H200:
/// 9 to 12 us for factors of 128.
inline constexpr double restart_seconds = 9e-6;
/// What passes take that share multiprocessors with each other, over what they take alone. Measured on H200 with those of 64^4: 3 to 6 % more.
inline constexpr double shared_processor = 1.06;

/// Share of a local stage's time in which it waits for memory.
OTIMES_COLD inline double memory_share(const distributed_stage& local, const distribution_rates& rates) {
    double bytes = 0;
    double seconds = 0;
    for (const plan& p : local.plans) {
        seconds += p.predicted_seconds;
        for (const pass& one : p.passes) {
            bytes += static_cast<double>(one.bytes);
        }
    }
    return seconds == 0 ? 0.5 : (std::min)(bytes / rates.bytes_per_second / seconds, 1.0);
}

/// What an exchange of GPUs costs the work beside which it goes on: what is sent and arrives takes memory from it, as far as it waits for
/// memory, and what stays on a rank is copied by its multiprocessors, unless that is much less than what is sent (backend/nccl).
OTIMES_COLD inline double beside_seconds(const distributed_problem& problem, const distributed_stage& exchange,
                                         double waits_for_memory, const distribution_rates& rates) {
    if (problem.space != memory_space::device) {
        return 0;
    }
    const std::int64_t block =
        block_of(exchange.to, problem.rows, product_of(exchange.extents), exchange.to.first_rank).elements();
    const std::int64_t stays = (std::max)(block - exchange.moved.most_received, std::int64_t{0});
    const double copied = 2 * stays > exchange.moved.most_sent ? 2.0 * static_cast<double>(stays) : 0.0;
    const auto passing = static_cast<double>(exchange.moved.most_sent + exchange.moved.most_received);
    return (copied + waits_for_memory * passing) * element_bytes(problem.type) / rates.bytes_per_second;
}

/// What it takes to begin the passes of so many factors once more.
OTIMES_COLD inline double restarts_of(const distributed_problem& problem, std::size_t factors,
                                      const distribution_rates& rates) {
    return static_cast<double>(factors) *
           (problem.space == memory_space::device ? restart_seconds : rates.launch_seconds);
}

/// Rate of an exchange in chunks beside work, over what is predicted of one alone. 128^4 with one row on four H200: 0.53 ms predicted, 0.60 measured
/// alone, and 0.58 left for it in two chunks.
inline constexpr double chunked_exchange = 0.88;
/// What such copies take from the work beside them, over the time of what they read and write at the memory's rate. The same product in two to four chunks
/// takes 0.18 to 0.20 ms longer than its local stages; at the memory's rate its copies take 0.10.
inline constexpr double chunked_copies = 2;

/// What local stages of so many factors, done in chunks, take in all beside the exchange of the chunks.
OTIMES_COLD inline double seconds_beside_chunks(const distributed_problem& problem, double stages, std::size_t factors,
                                                std::int32_t chunks, const distributed_stage& exchange,
                                                const distribution_rates& rates) {
    return stages + (chunks - 1) * restarts_of(problem, factors, rates) +
           beside_seconds(problem, exchange, chunked_copies, rates);
}

/// What a local stage and the exchange behind it take in chunks of the cut mode: the chunks one after another with the last one on its way, or the first
/// one and the exchange.
OTIMES_COLD inline double seconds_of_chunks(const distributed_problem& problem, const distributed_stage& local,
                                            const distributed_stage& exchange, const distribution_rates& rates) {
    const std::int32_t chunks = local.chunks;
    return (std::max)(
        seconds_beside_chunks(problem, local.predicted_seconds, local.factors.size(), chunks, exchange, rates) +
            last_chunk_share(chunks) * exchange.predicted_seconds,
        first_chunk_share(chunks) * local.predicted_seconds + exchange.predicted_seconds / chunked_exchange);
}

/// What two local stages and the exchange between them take, chunk by chunk of a mode that is whole on every rank: the stages, or the first chunk, the
/// exchange and the last chunk's part of the second stage.
OTIMES_COLD inline double seconds_of_chunks(const distributed_problem& problem, const distributed_stage& before,
                                            const distributed_stage& exchange, const distributed_stage& behind,
                                            const distribution_rates& rates) {
    const double stages = before.predicted_seconds + behind.predicted_seconds;
    return (std::max)(seconds_beside_chunks(problem, stages, before.factors.size() + behind.factors.size(),
                                            before.chunks, exchange, rates),
                      stages / before.chunks + exchange.predicted_seconds / chunked_exchange);
}

/// The time of a pass that stores in portions and of the pass behind it, which begins with what has arrived, while both run side by side and
/// the links do not hold them up, over the sum of what is predicted for each alone. Measured on two H200, 64^4 with 1, 2 and 32 rows: 1.45, 1.35, 1.43; a
/// little more, since slabs by turns, whose prediction is as much too high, were faster with 32.
inline constexpr double beside_portions = 1.5;

/// What a store in portions hides of itself and of the stage behind it, which is stage `i`.
OTIMES_COLD inline double hidden_by_portions(const distributed_plan& p, std::size_t i) {
    if (i == 0 || p.stages[i - 1].portion_items == 0) {
        return 0;
    }
    const distributed_stage& store = p.stages[i - 1];
    const double next = p.stages[i].predicted_seconds;
    double computed = 0;
    for (const plan& pass : store.plans) {
        computed = (std::max)(computed, pass.predicted_seconds);
    }
    const double last = next / static_cast<double>(portions_of(store, p.source));
    const double both = (std::max)(store.predicted_seconds, beside_portions * (computed + next)) + last;
    return (std::max)(store.predicted_seconds + next - both, 0.0);
}

/// The stages one after another, but those that are done in chunks or in portions.
OTIMES_COLD inline double seconds_of(const distributed_plan& p, const distribution_rates& rates) {
    double seconds = 0;
    for (std::size_t i = 0; i < p.stages.size(); ++i) {
        const distributed_stage& s = p.stages[i];
        seconds += s.predicted_seconds - hidden_by_portions(p, i);
        if (s.kind == stage_kind::exchange && i > 0 && p.stages[i - 1].chunks > 1) {
            const distributed_stage& local = p.stages[i - 1];
            const bool goes_on = local.chunk_mode >= 0;  // to the end
            seconds += (goes_on ? seconds_of_chunks(p.source, local, s, p.stages[i + 1], rates)
                                : seconds_of_chunks(p.source, local, s, rates)) -
                       local.predicted_seconds - s.predicted_seconds;
            if (goes_on) {
                break;
            }
        }
    }
    return seconds;
}

}  // namespace planning

}  // namespace otimes

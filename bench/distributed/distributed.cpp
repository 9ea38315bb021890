// SPDX-License-Identifier: MIT
// Distributed products on the GPUs of one host: weak scaling by rows, and columns cut along a mode.
//
//   bench_distributed [GPUS...] [CASES...] > results.csv    one line for each case, number of GPUs and way to exchange
//   mpirun -np 4 bench_distributed                          one process for each GPU
//
// X = s * (x1 (x) x2 (x) ...) row by row, so that a projection of Y is known in closed form: it is checked before the clock
// runs. Each time is the median of 7 repetitions; a repetition queues several evaluations and waits once.
//
//   local_ms       columns: the plan's local stages alone, in one piece. Rows: of one GPU, those of the slowest by itself
//   exchange_ms    its exchanges alone
//   share          columns: max(local_ms, exchange_ms) / ms. Rows: one GPU's time / ms
//   own_steps_ms   the local steps of this way alone, as it does them, slab by slab or chunk by chunk, without exchanges
//   own_share      columns: max(own_steps_ms, exchange_ms) / ms. Rows: local_ms / ms
//   way            how the plan hides exchanges
//   issue_ms       what the host takes to queue an evaluation

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

#include "../arguments.hpp"

namespace {

using matrix = Eigen::MatrixXf;
using otimes::communicator;
using otimes::DistributedMatrix;
using otimes::kron;

double seconds_of(const communicator& ranks, const std::function<void()>& once) {
    using clock = std::chrono::steady_clock;
    const auto repeat = [&](std::uint64_t count) {
        ranks.over().synchronize();
        const auto begin = clock::now();
        for (std::uint64_t i = 0; i < count; ++i) {
            once();
        }
        ranks.over().synchronize();
        return std::chrono::duration<double>(clock::now() - begin).count() / static_cast<double>(count);
    };
    repeat(2);
    const double first = repeat(1);
    auto count = static_cast<std::uint64_t>(std::clamp(0.02 / std::max(first, 1e-6), 2.0, 100.0));
    ranks.over().maximum({&count, 1});  // the same on all ranks
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
        times.push_back(repeat(count));
    }
    std::nth_element(times.begin(), times.begin() + 3, times.end());
    return times[3];
}

// The host's time for one evaluation while the devices are free to take all that it queues.
double issue_seconds_of(const communicator& ranks, const std::function<void()>& once) {
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) {
        ranks.over().synchronize();
        const auto begin = std::chrono::steady_clock::now();
        for (int k = 0; k < 8; ++k) {
            once();
        }
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 8);
    }
    ranks.over().synchronize();
    std::nth_element(times.begin(), times.begin() + 4, times.end());
    return times[4];
}

struct problem {
    int p;
    int n;
    std::int64_t rows;
};

// The exchanges of a plan, or else its local steps, alone, on memory of their own. @param only the steps of this GPU, the others rest; -1: of all
double stage_seconds(const communicator& ranks, const otimes::distributed_plan& whole,
                     const std::vector<const void*>& x, const std::vector<std::vector<const void*>>& factors,
                     bool exchanges, std::int32_t only = -1) {
    otimes::distributed_plan part = whole;
    std::erase_if(part.stages, [&](const otimes::distributed_stage& s) {
        return (s.kind == otimes::stage_kind::exchange) != exchanges;
    });
    if (part.stages.empty()) {
        return 0;
    }
    auto& over = ranks.over();
    std::vector<std::vector<void*>> memory(2);
    std::vector<std::int64_t> bytes;
    for (std::int32_t local = 0; local < ranks.local_count(); ++local) {
        const auto n = static_cast<std::size_t>(local);
        std::int64_t most = whole.buffer_elements[n];
        for (const auto& [d, cols] : {std::pair(whole.source.operand, whole.stages.front().extents)}) {
            most = std::max(most, block_of(d, whole.source.rows, otimes::planning::product_of(cols), local).elements());
        }
        bytes.push_back(2 * most * 4);
        memory[0].push_back(over.allocate(local, bytes[n]));
        memory[1].push_back(over.allocate(local, bytes[n]));
    }
    const auto one = [&](const otimes::distributed_stage& s, std::size_t number) {
        const std::vector<void*>& to = memory[(number + 1) % 2];
        const std::vector<const void*> written(memory[number % 2].begin(), memory[number % 2].end());
        // Finite numbers: Inf and NaN take slower paths.
        const std::vector<const void*>& from = number == 0 ? x : written;
        if (s.kind == otimes::stage_kind::exchange) {
            ranks.move(s.from, from, s.to, to, whole.source.rows, otimes::planning::product_of(s.extents), 4);
            return;
        }
        for (std::int32_t local = 0; local < ranks.local_count(); ++local) {
            const auto n = static_cast<std::size_t>(local);
            if (only >= 0 && local != only) {
                continue;
            }
            for (std::int32_t chunk = 0; chunk < s.chunks; ++chunk) {
                const std::int32_t which =
                    s.plan_of_rank[n * static_cast<std::size_t>(s.chunks) + static_cast<std::size_t>(chunk)];
                if (which < 0) {
                    continue;
                }
                otimes::bindings b;
                b.pointers.push_back(const_cast<void*>(from[n]));
                for (const std::int32_t k : s.factors) {
                    b.pointers.push_back(const_cast<void*>(factors[static_cast<std::size_t>(k)][n]));
                }
                b.pointers.push_back(to[n]);
                if (s.scaled) {
                    b.scalars.push_back(1.0);
                }
                over.executor_of(local).run(s.plans[static_cast<std::size_t>(which)], b, {});
            }
        }
    };
    const double result = seconds_of(ranks, [&] {
        std::size_t number = 0;
        for (const otimes::distributed_stage& s : part.stages) {
            one(s, number++);
        }
    });
    over.synchronize();
    for (std::int32_t local = 0; local < ranks.local_count(); ++local) {
        const auto n = static_cast<std::size_t>(local);
        over.release(local, memory[0][n], bytes[n]);
        over.release(local, memory[1][n], bytes[n]);
    }
    return result;
}

// The local steps of a plan alone: of all ranks (columns), or of the one that takes longest by itself (rows, which exchange nothing). 0: they are in
// several processes.
double own_step_seconds(const communicator& ranks, const otimes::distributed_plan& plan,
                        const std::vector<const void*>& x, const std::vector<std::vector<const void*>>& factors,
                        bool by_columns) {
    if (ranks.local_count() < ranks.size()) {
        return 0;
    }
    double seconds = 0;
    for (std::int32_t rank = 0; rank < ranks.size() && !by_columns; ++rank) {
        seconds = std::max(seconds, stage_seconds(ranks, plan, x, factors, false, rank));
    }
    if (!by_columns) {
        return seconds;
    }
    for (std::size_t i = 0; i < plan.slabs.size(); ++i) {  // all are alike but a last one that is shorter
        const std::int64_t others = static_cast<std::int64_t>(plan.slabs.size()) - 1;
        const std::int64_t count = i == 0 ? plan.slab_count - others : 1;
        seconds += static_cast<double>(count) * stage_seconds(ranks, plan.slabs[i], x, factors, false);
    }
    return seconds + stage_seconds(ranks, plan, x, factors, false);
}

double one_gpu_ms = 0;  // of the row case that was measured last on one GPU

// The parts of a case alone, measured once for all ways to hide exchanges.
struct yardsticks {
    double local = 0;
    double exchange = 0;
};

std::string way_of(const otimes::distributed_plan& plan) {
    if (plan.slab_count > 1) {
        const bool stores = way_of(plan.slabs.front()).starts_with("stores into peers");
        return std::to_string(plan.slab_count) + (stores ? " slabs store" : " slabs") +
               (plan.overlapped ? " by turns" : "");
    }
    std::int32_t chunks = 1;
    bool go_on = false;
    for (const otimes::distributed_stage& s : plan.stages) {
        go_on = go_on || s.chunk_mode >= 0;
        if (s.kind == otimes::stage_kind::store) {
            return s.portion_items > 0 ? "stores into peers in portions" : "stores into peers";
        }
        chunks = std::max(chunks, s.chunks);
    }
    return chunks > 1 ? std::to_string(chunks) + (go_on ? " chunks that go on" : " chunks") : "one piece";
}

void measure(const communicator& ranks, const problem& c, bool by_columns, yardsticks& parts) {
    std::vector<matrix> F;
    std::vector<matrix> x;
    std::vector<matrix> y;
    double projection = 1;
    for (int k = 0; k < c.n; ++k) {
        const float scale = 1.0f / std::sqrt(static_cast<float>(c.p));
        F.push_back(matrix::NullaryExpr(c.p, c.p, [&](Eigen::Index i, Eigen::Index j) {
            return scale * (0.6f + 0.4f * std::sin(static_cast<float>(3 * i + 7 * j + k)));
        }));
        x.push_back(matrix::NullaryExpr(1, c.p, [&](Eigen::Index, Eigen::Index j) {
            return scale * (1.0f + 0.5f * std::cos(static_cast<float>(j + k)));
        }));
        y.push_back(matrix::NullaryExpr(c.p, 1, [&](Eigen::Index i, Eigen::Index) {
            return scale * (1.0f + 0.5f * std::sin(static_cast<float>(2 * i + k)));
        }));
        projection *= (x.back().cast<double>() * F.back().cast<double>() * y.back().cast<double>())(0, 0);
    }
    std::vector<std::int64_t> extents(static_cast<std::size_t>(c.n), c.p);
    std::int64_t cols = 1;
    for (int k = 0; k < c.n; ++k) {
        cols *= c.p;
    }
    const auto cut = by_columns ? otimes::cut_mode(1, ranks.size(), extents, 0) : otimes::cut_rows(ranks.size());
    const auto K = otimes::replicate(ranks, kron(F));
    DistributedMatrix<float> dS(ranks, c.rows, 1);
    dS.fill([](std::int64_t i, std::int64_t) { return 1.0f + 0.25f * static_cast<float>(i % 5); });
    DistributedMatrix<float> dX(ranks, c.rows, cols, cut);
    dX = dS * kron(x);
    // By columns the result is cut along another mode.
    DistributedMatrix<float> dY(
        ranks, c.rows, cols,
        by_columns ? otimes::cut_mode(1, ranks.size(), extents, 1) : otimes::cut_rows(ranks.size()));
    dY = dX * K;
    DistributedMatrix<float> dP(ranks, c.rows, 1);
    dP = dY * kron(y);
    const matrix seen = dP.to_host();
    double error = 0;
    for (Eigen::Index i = 0; i < seen.rows(); ++i) {
        const double want = (1.0 + 0.25 * static_cast<double>(i % 5)) * projection;
        error = std::max(error, std::abs(static_cast<double>(seen(i, 0)) - want) / std::abs(want));
    }
    const auto plan = ranks.plan_for((dX * K).problem(false, &dY.layout(), {}));
    const double seconds = seconds_of(ranks, [&] { dY = dX * K; });
    std::vector<std::vector<const void*>> factors;
    for (int k = 0; k < c.n; ++k) {
        factors.push_back(K.addresses(static_cast<std::size_t>(k)));
    }
    auto chunks = static_cast<std::int32_t>(plan->slab_count);
    for (const otimes::distributed_stage& s : plan->stages) {
        chunks = std::max(chunks, s.chunks);
    }
    const double issue = issue_seconds_of(ranks, [&] { dY = dX * K; });
    if (by_columns && ranks.size() > 1 && parts.local == 0 && way_of(*plan) == "one piece" &&
        ranks.local_count() == ranks.size()) {
        parts.local = stage_seconds(ranks, *plan, dX.sources(), factors, false);
        parts.exchange = stage_seconds(ranks, *plan, dX.sources(), factors, true);
    }
    double local = parts.local > 0 ? parts.local : seconds;
    const double own_steps = own_step_seconds(ranks, *plan, dX.sources(), factors, by_columns);
    if (!by_columns && own_steps > 0) {
        local = own_steps;
    }
    const double exchange = parts.exchange;
    if (!by_columns && ranks.size() == 1) {
        one_gpu_ms = seconds * 1e3;
    }
    const double flops = 2.0 * static_cast<double>(c.rows) * static_cast<double>(cols) * c.p * c.n;
    const std::int64_t theirs = 4 * otimes::algorithm_2_elements(c.rows, plan->source.factors, ranks.size());
    if (ranks.rank() != 0) {
        return;
    }
    std::printf("%s,%d^%d,%lld,%d,%s,%d,%.4f,%.0f,%.4f,%.4f,%.1f,%.3f,%lld,%lld,%.1e,%s,%.4f,%.4f,%.3f\n",
                by_columns ? "columns" : "rows", c.p, c.n, static_cast<long long>(c.rows),
                static_cast<int>(ranks.size()), std::string(ranks.over().name()).c_str(), static_cast<int>(chunks),
                seconds * 1e3, flops / seconds / 1e9, local * 1e3, exchange * 1e3,
                exchange > 0 ? static_cast<double>(plan->most_bytes_sent) / exchange / 1e9 : 0.0,
                by_columns       ? std::max(local, exchange) / seconds
                : one_gpu_ms > 0 ? one_gpu_ms / (seconds * 1e3)
                                 : 0.0,
                static_cast<long long>(plan->bytes_on_wire),
                by_columns && ranks.size() > 1 ? static_cast<long long>(theirs) : 0LL, error, way_of(*plan).c_str(),
                issue * 1e3, own_steps * 1e3, std::max(own_steps, exchange) / seconds);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    // Numbers of GPUs to take (none: 1, 2 and 4, as far as there are), and cases like columns,64^4,2 (none: all).
    const otimes::bench::arguments words(argc, argv, "bench_distributed [GPUS...] [CASES...], a case as columns,64^4,2",
                                         argc);
    std::vector<int> gpu_counts;
    std::vector<std::string> cases;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument.find('^') != std::string::npos) {
            cases.push_back(argument);
        } else {
            gpu_counts.push_back(static_cast<int>(words.whole(argv[i], 1)));
        }
    }
    const auto wanted = [&cases](const char* cut, const problem& c) {
        const std::string name =
            std::string(cut) + "," + std::to_string(c.p) + "^" + std::to_string(c.n) + "," + std::to_string(c.rows);
        return cases.empty() || std::ranges::find(cases, name) != cases.end();
    };
    if (gpu_counts.empty() && !otimes::started_by_mpi()) {
        for (const int gpus : {1, 2, 4}) {
            try {
                [[maybe_unused]] const communicator there = otimes::gpu_communicator({.gpu_count = gpus});
                gpu_counts.push_back(gpus);
            } catch (const otimes::device_error& fewer) {
                std::fprintf(stderr, "not measured on %d GPUs: %s\n", gpus, fewer.what());
                break;
            }
        }
    }
    const auto head = [] {
        std::printf(
            "cut,factors,m,gpus,exchange,chunks,ms,gflops,local_ms,exchange_ms,gbps_sent_per_gpu,share,bytes_on_wire,"
            "algorithm_2_bytes,relerr,way,issue_ms,own_steps_ms,own_share\n");
    };
    try {
        yardsticks none;
        if (otimes::started_by_mpi()) {  // one rank for each GPU; without the yardsticks of the parts
            const communicator ranks = otimes::make_communicator();
            if (ranks.rank() == 0) {
                head();
            }
            for (const std::int64_t rows : {1, 2, 16}) {
                measure(ranks, {64, 4, rows}, true, none);
                measure(ranks, {128, 4, rows}, true, none);
            }
            return 0;
        }
        head();
        for (const int p : {128, 64}) {
            one_gpu_ms = 0;
            for (const int gpus : gpu_counts) {
                const communicator ranks = otimes::gpu_communicator({.gpu_count = gpus});
                if (const problem c{p, 4, (p == 64 ? 16 : 4) * gpus}; wanted("rows", c)) {
                    measure(ranks, c, false, none);
                }
            }
        }
        for (const int gpus : gpu_counts) {
            if (gpus == 1) {
                continue;
            }
            // In one piece (the yardstick), in chunks or slabs, and as the planner chooses by what it knows of the machine (rate 0).
            std::vector<communicator> ways;
            for (const auto& [copies, rate, chunks, stores, portions] : {std::tuple(true, 330e9, 1, false, 1),
                                                                         {true, 330e9, 4, false, 1},
                                                                         {true, 330e9, 1, true, 1},
                                                                         {true, 330e9, 1, true, 16},
                                                                         {true, 0.0, 6, true, 16},
                                                                         {false, 330e9, 1, false, 1}}) {
                ways.push_back(otimes::gpu_communicator({.gpu_count = gpus,
                                                         .exchange_by_copies = copies,
                                                         .links = {.bytes_per_second = rate,
                                                                   .exchange_seconds = 25e-6,
                                                                   .chunks = chunks,
                                                                   .stores = stores,
                                                                   .portions = portions}}));
            }
            for (const problem& c : {problem{64, 4, 1}, problem{64, 4, 2}, problem{64, 4, 16 * gpus},
                                     problem{128, 4, 1}, problem{128, 4, 2}, problem{128, 4, 4 * gpus}}) {
                yardsticks parts;
                for (const communicator& ranks : ways) {
                    if (!wanted("columns", c)) {
                        continue;
                    }
                    measure(ranks, c, true, parts);
                }
            }
        }
    } catch (const otimes::error& failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}

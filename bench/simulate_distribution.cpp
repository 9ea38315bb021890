// SPDX-License-Identifier: MIT
// Beyond the machines at hand: distributed plans are values, so a laptop plans
// and costs the multi-GPU problems of the literature (FastKron, Figure 11) for
// 1 to 1024 GPUs, eight to a host over NVLink and a network between hosts.
//
//   simulate_distribution [NETWORK_GB_PER_SECOND [OUTPUT.csv]]
//       defaults: 50 (one 400 Gbit/s port per GPU), standard output
//   simulate_distribution --measured bench/results/h200_distributed.csv
//       predictions beside what bench/distributed measured
//
// Columns: problem, split, gpus, rows, ms, ms_local, gib_wire,
// gib_wire_algorithm_2, mib_sent_most, efficiency, stages. `rows`: M grows with
// the GPUs, X and Y cut by rows. `columns`: M grows, X cut by columns over up
// to 64 GPUs and by rows beyond, Y wherever it is cheapest. `strong`: M = 2
// whatever the number of GPUs, columns over all of them. efficiency: time of
// one GPU (of one GPU's share, where M grows) over time of all; ms_local: the
// same local steps without exchanges.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/distributed_planner.hpp>
#include <otimes/plan/machine_table.hpp>

#include "arguments.hpp"

namespace {

using otimes::distributed_plan;
using otimes::distributed_problem;

/// Sent by one GPU to the others of its host at once: 320 to 350 GB/s of
/// NVLink's 394 is what large messages reach.
constexpr double nvlink_bytes_per_second = 335e9;
/// By the last pass of a stage.
constexpr double store_bytes_per_second = 330e9;

struct setting {
    otimes::machine where;
    otimes::interconnect net;
    std::FILE* out;
};

distributed_problem problem_of(std::int64_t rows, std::int64_t P, int count, std::int32_t gpus) {
    distributed_problem p;
    p.type = otimes::dtype::f32;
    p.space = otimes::memory_space::device;
    p.ranks = gpus;
    p.rows = rows;
    for (int k = 0; k < count; ++k) {
        otimes::distributed_factor f;
        f.type = p.type;
        f.p_extent = f.q_extent = P;
        f.row_stride = P;
        f.space = p.space;
        p.factors.push_back(f);
    }
    return p;
}

double gib(std::int64_t elements) { return static_cast<double>(elements) * 4.0 / (1 << 30); }

struct prediction {
    double seconds = 0;
    double local = 0;     ///< the local stages alone
    double exchange = 0;  ///< the exchanges alone
};

/// A stage in chunks is sent while the next chunk is computed: of the shorter of the two, the last chunk is seen. So too with slabs by
/// turns. Where chunks go on through the last stage, the stages are seen, or the first chunk of one, the exchange and the last chunk of the other.
prediction predicted(const distributed_plan& plan) {
    prediction p;
    double seen = 0;
    for (std::size_t i = 0; i < plan.slabs.size(); ++i) {
        const auto kinds = static_cast<std::int64_t>(plan.slabs.size());
        const auto count =
            static_cast<double>(i + 1 == plan.slabs.size() && kinds > 1 ? 1 : plan.slab_count - kinds + 1);
        const prediction one = predicted(plan.slabs[i]);
        p.local += count * one.local;
        p.exchange += count * one.exchange;
        p.seconds += count * (plan.overlapped ? std::max(one.local, one.exchange) : one.seconds);
        seen = std::max(seen, plan.overlapped ? std::min(one.local, one.exchange) : 0.0);
    }
    p.seconds += seen;
    double waiting = 0;  // the local stage whose chunks the next exchange sends
    std::int32_t chunks = 1;
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
        const otimes::distributed_stage& stage = plan.stages[i];
        const double seconds = stage.predicted_seconds;
        if (stage.chunk_mode >= 0) {
            const double stages = seconds + plan.stages.at(i + 2).predicted_seconds;
            const double sent = plan.stages.at(i + 1).predicted_seconds;
            p.local += stages;
            p.exchange += sent;
            p.seconds += std::max(stages, stages / stage.chunks + sent);
            break;
        }
        if (stage.kind != otimes::stage_kind::exchange) {
            p.local += seconds;
            p.seconds += seconds - otimes::planning::hidden_by_portions(plan, i);
            waiting = seconds;
            chunks = stage.chunks;
            continue;
        }
        p.exchange += seconds;
        p.seconds += seconds - std::min(waiting, seconds) * (1.0 - otimes::last_chunk_share(chunks));
        waiting = 0;
        chunks = 1;
    }
    return p;
}

/// Prints one line and returns the predicted seconds.
double simulate(const setting& s, const char* split, distributed_problem problem, std::int32_t col_parts,
                double one_gpu_seconds) {
    const std::int64_t P = problem.factors.front().p_extent;
    const std::size_t count = problem.factors.size();
    const std::vector<std::int64_t> extents(count, P);
    const std::int32_t row_parts = problem.ranks / col_parts;
    problem.operand =
        col_parts > 1 ? otimes::cut_mode(row_parts, col_parts, extents, 0) : otimes::cut_rows(problem.ranks);
    const distributed_plan plan = otimes::make_distributed_plan(problem, s.where, s.net, true);
    const prediction seen = predicted(plan);
    const double seconds = seen.seconds;
    const double local = seen.local;
    std::string stages;
    for (const otimes::distributed_stage& stage : (plan.slabs.empty() ? plan : plan.slabs.front()).stages) {
        stages += stages.empty() ? "" : " ";
        stages += stage.kind == otimes::stage_kind::exchange ? "exchange" : std::to_string(stage.factors.size());
    }
    const std::int64_t other =
        col_parts > 1 ? otimes::algorithm_2_elements(problem.rows, problem.factors, col_parts) : std::int64_t{0};
    const double whole = one_gpu_seconds > 0 ? one_gpu_seconds : seconds;
    std::fprintf(s.out, "%lld^%zu,%s,%d,%lld,%.3f,%.3f,%.2f,%.2f,%.1f,%.3f,%s\n", static_cast<long long>(P), count,
                 split, problem.ranks, static_cast<long long>(problem.rows), seconds * 1e3, local * 1e3,
                 static_cast<double>(plan.bytes_on_wire) / (1 << 30), gib(other),
                 static_cast<double>(plan.most_bytes_sent) / (1 << 20), whole / seconds, stages.c_str());
    return seconds;
}

/// The rows of bench/results/h200_distributed.csv on one process (copies
/// between GPUs, or one GPU), with what the plan predicts.
int compare(const char* path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) {
        std::fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    const otimes::machine where = otimes::gpu_machine(otimes::h200());
    std::printf(
        "cut,factors,m,gpus,chunks,local_ms,local_predicted,exchange_ms,exchange_predicted,ms,ms_predicted,"
        "ms_from_measured_parts,ratio\n");
    while (std::getline(file, line)) {
        std::vector<std::string> cells;
        std::istringstream row(line);
        for (std::string cell; std::getline(row, cell, ',');) {
            cells.push_back(cell);
        }
        if (cells.size() < 10 || cells[4].find("nccl") != std::string::npos) {
            continue;
        }
        const std::int64_t P = std::atoll(cells[1].c_str());
        const auto gpus = static_cast<std::int32_t>(std::atoi(cells[3].c_str()));
        distributed_problem problem = problem_of(std::atoll(cells[2].c_str()), P, 4, gpus);
        const std::vector<std::int64_t> extents(4, P);
        problem.operand = cells[0] == "rows" ? otimes::cut_rows(gpus) : otimes::cut_mode(1, gpus, extents, 0);
        if (cells[0] != "rows") {
            problem.result_is_fixed = true;
            problem.result = otimes::cut_mode(1, gpus, extents, 1);
        }
        otimes::interconnect net{.bytes_per_second = nvlink_bytes_per_second, .exchange_seconds = 25e-6};
        net.chunks = static_cast<std::int32_t>(std::atoi(cells[5].c_str()));
        net.least_chunk_bytes = 1;
        net.packs = false;
        net.store_bytes_per_second = store_bytes_per_second;
        const std::string way = cells.size() > 15 ? cells[15] : "";
        net.stores = way.find("store") != std::string::npos;
        net.portions = way.find("portions") != std::string::npos ? 16 : 1;
        std::int64_t least = 0;
        distributed_plan plan =
            way.find("chunks") == std::string::npos
                ? otimes::make_distributed_plan(problem, where, net)
                : otimes::planning::plan_at_once(problem, where, net, true, least, {}, way.ends_with("go on"));
        const prediction p = predicted(plan);
        // How well the parts make up the whole: the measured local stages and exchange in the places of the predicted ones.
        const double ms = std::atof(cells[6].c_str());
        const auto scale = [&](distributed_plan& part) {
            for (otimes::distributed_stage& stage : part.stages) {
                const bool local = stage.kind != otimes::stage_kind::exchange;
                stage.predicted_seconds *=
                    std::atof(cells[local ? 8 : 9].c_str()) * 1e-3 / (local ? p.local : p.exchange);
            }
        };
        scale(plan);
        std::ranges::for_each(plan.slabs, scale);
        const double parts_ms = predicted(plan).seconds * 1e3;
        std::printf("%s,%s,%s,%d,%s,%s,%.4f,%s,%.4f,%.4f,%.4f,%.4f,%.2f\n", cells[0].c_str(), cells[1].c_str(),
                    cells[2].c_str(), gpus, cells[5].c_str(), cells[8].c_str(), p.local * 1e3, cells[9].c_str(),
                    p.exchange * 1e3, ms, p.seconds * 1e3, parts_ms, parts_ms / ms);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 3 && std::strcmp(argv[1], "--measured") == 0) {
        return compare(argv[2]);
    }
    const otimes::bench::arguments words(
        argc, argv,
        "simulate_distribution [NETWORK_GB_PER_SECOND [OUTPUT.csv]], or simulate_distribution --measured RESULTS.csv",
        2);
    setting s;
    const double network = words.amount(1, 50.0) * 1e9;
    s.out = words.output(2);
    s.where = otimes::gpu_machine(otimes::h200());
    s.net = {.bytes_per_second = nvlink_bytes_per_second,
             .network_bytes_per_second = network,
             .ranks_per_host = 8,
             .chunks = 4};
    std::fprintf(s.out,
                 "problem,split,gpus,rows,ms,ms_local,gib_wire,gib_wire_algorithm_2,mib_sent_most,efficiency,stages\n");
    for (const auto& [P, rows] : {std::pair<std::int64_t, std::int64_t>{64, 16}, {128, 4}}) {
        double one = 0;
        for (std::int32_t gpus = 1; gpus <= 1024; gpus *= 2) {
            const double seconds = simulate(s, "rows", problem_of(rows * gpus, P, 4, gpus), 1, one);
            one = one > 0 ? one : seconds;
        }
        for (std::int32_t gpus = 2; gpus <= 1024; gpus *= 2) {
            simulate(s, "columns", problem_of(rows * gpus, P, 4, gpus), std::min<std::int32_t>(gpus, 64), one);
        }
        double alone = 0;
        for (std::int32_t gpus = 1; gpus <= P; gpus *= 2) {
            distributed_problem p = problem_of(2, P, 4, gpus);
            const double seconds = simulate(s, "strong", p, gpus, alone > 0 ? alone / gpus : 0.0);
            alone = alone > 0 ? alone : seconds;
        }
    }
    const bool whole = std::ferror(s.out) == 0;
    if (std::fclose(s.out) != 0 || !whole) {
        std::fprintf(stderr, "not everything could be written\n");
        return 1;
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// Beyond the machines at hand: distributed plans are values, so a laptop plans and costs the multi-GPU problems of the literature
// (FastKron, Figure 11) for 1 to 1024 GPUs, eight to a host over NVLink and a network between hosts.
//
//   simulate_distribution [NETWORK_GB_PER_SECOND [OUTPUT.csv]]      defaults: 50 (one 400 Gbit/s port per GPU), standard output
//
// Columns: problem, split, gpus, rows, ms, ms_local, gib_wire, gib_wire_algorithm_2, mib_sent_most, efficiency, stages.
// `rows`: M grows with the GPUs, X and Y cut by rows. `columns`: M grows, X cut by columns over up to 64 GPUs and by rows beyond, Y
// wherever it is cheapest. `strong`: M = 2 whatever the number of GPUs, columns over all of them. efficiency: time of one GPU (of
// one GPU's share, where M grows) over time of all; ms_local: the same local steps without exchanges.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/machine_table.hpp>

namespace {

using otimes::distributed_plan;
using otimes::distributed_problem;

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
    double local = 0;
    double seconds = 0;
    std::string stages;
    for (const otimes::distributed_stage& stage : plan.stages) {
        const bool exchange = stage.kind == otimes::stage_kind::exchange;
        local += exchange ? 0.0 : stage.predicted_seconds;
        seconds += stage.predicted_seconds;
        stages += stages.empty() ? "" : " ";
        stages += exchange ? "exchange" : std::to_string(stage.factors.size());
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

}  // namespace

int main(int argc, char** argv) {
    setting s;
    const double network = (argc > 1 ? std::atof(argv[1]) : 50.0) * 1e9;
    s.out = argc > 2 ? std::fopen(argv[2], "w") : stdout;
    if (network <= 0 || s.out == nullptr) {
        std::fprintf(stderr, "simulate_distribution [NETWORK_GB_PER_SECOND [OUTPUT.csv]]\n");
        return 1;
    }
    s.where = otimes::gpu_machine(otimes::h200());
    // Sent by one GPU to seven others at once, measured: 320 to 350 GB/s of NVLink's 394.
    s.net = {.bytes_per_second = 335e9, .network_bytes_per_second = network, .ranks_per_host = 8};
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
    if (s.out != stdout) {
        std::fclose(s.out);
    }
    return 0;
}

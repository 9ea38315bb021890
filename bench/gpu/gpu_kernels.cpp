// SPDX-License-Identifier: MIT
// Measures the fused device kernels, each case under each of its plans:
//   gpu_kernels <folder of the repository> [--plans FILE] [--csv FILE] [--only TEXT] [--compile-only] [--check-only] [--yardstick] [--dump FOLDER] [-DNAME=VALUE]
//   gpu_kernels <folder of the repository> --check ...    every kernel against its contract (kernel_check.hpp)
// The kernels' text is compiled at run time, exactly for the shape, with no include path. A plan is checked first (every output entry
// by projection, sampled entries against their definition in double, outputs poisoned with NaN) and then timed:
//   cold   consecutive runs rotate over more than 120 MB of operands;
//   warm   one operand set;  graph: 20 warm runs captured, replayed.
// bound: max(cold device copy of the same bytes in this run, least flops / 102 (float) or 66 (double) TFLOP/s).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "cases.hpp"
#include "cublas_chain.hpp"
#include "kernel_check.hpp"
#include "pass_choice.hpp"
#include "runtime_kernels.hpp"

using namespace otimes::bench;
using otimes::dtype;

namespace {

struct chain {
    int modes;
    int p[16];
    int q[16];
};

struct kernel_entry {
    CUfunction function = nullptr;
    int occupancy = 0;
    std::string report;
};

struct machine {
    CUdevice device;
    CUcontext context;
    CUstream stream, second;
    int multiprocessors = 132;
    std::map<std::string, kernel_entry> kernels;
    CUfunction fill[2], project[2], entry[2];
    std::unique_ptr<cublas_chain> yardstick;
};

struct planned {
    const kron_case* c;
    int type;
    pass_plan plan;
    std::string text;
};

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

template <class T>
struct runner {
    machine& m;
    const planned& pl;
    std::int64_t rows, K, L;
    CUdeviceptr factors;
    std::vector<std::int64_t> factor_at;
    struct resolved {
        const kernel_entry* kernel;
        std::int64_t count_p, count_q;
        unsigned shared;
    };
    std::vector<resolved> passes;

    void resolve() {
        for (const auto& pass : pl.plan.passes)
            passes.push_back({&m.kernels.at(pass.kernel() + pass.type_expression(otimes::dtype_of<T>())),
                              pass.count_p(), pass.count_q(), unsigned(pass.shared_bytes(otimes::dtype_of<T>()))});
    }

    void run(CUdeviceptr x, CUdeviceptr y, CUstream stream, CUstream second, CUevent fork, CUevent join) {
        const auto& plan = pl.plan;
        const std::int64_t slab = plan.slab_rows ? plan.slab_rows : rows;
        const bool two = plan.streams == 2 && rows > slab;
        if (two) {
            CU(cuEventRecord(fork, stream));
            CU(cuStreamWaitEvent(second, fork, 0));
        }
        int turn = 0;
        for (std::int64_t first = 0; first < rows; first += slab, ++turn) {
            const std::int64_t count = std::min(slab, rows - first);
            CUstream s = two && turn % 2 ? second : stream;
            std::int64_t row_in = K;
            CUdeviceptr from = x + first * K * sizeof(T);
            CUdeviceptr to = y + first * L * sizeof(T);
            for (std::size_t n = 0; n < plan.passes.size(); ++n) {
                const fused_pass& pass = plan.passes[n];
                const kernel_entry& k = *passes[n].kernel;
                const std::int64_t in = passes[n].count_p, out = passes[n].count_q;
                group_arguments<T> a{};
                a.x = reinterpret_cast<const T*>(from);
                a.y = reinterpret_cast<T*>(to);
                for (int i = 0; i < pass.modes(); ++i) {
                    a.factor[i] = reinterpret_cast<const T*>(factors + factor_at[pass.first_mode + i] * sizeof(T));
                    a.factor_p_stride[i] = pl.c->q[pass.first_mode + i];
                    a.factor_q_stride[i] = 1;
                }
                a.alpha = 1;
                a.beta = 0;
                a.lines = count;
                const std::int64_t row_out = row_in / in * out;
                a.x_line_stride = row_in;
                a.y_line_stride = row_out;
                std::int64_t tiles;
                if (pass.outer) {
                    std::int64_t inner = 1;  // modes behind the group
                    for (int i = pass.first_mode + pass.modes(); i < int(pl.c->p.size()); ++i) inner *= pl.c->p[i];
                    a.inner = a.x_inner = a.y_inner = inner;
                    a.parts_per_line = row_in / (in * inner);
                    if (pass.tile.rows > 1) {  // rows follow each other: one line of parts
                        a.parts_per_line *= count;
                        a.lines = 1;
                    }
                    tiles = a.lines * a.parts_per_line / pass.tile.rows * ((inner + pass.tile.run - 1) / pass.tile.run);
                } else {
                    a.parts_per_line = row_in / in;
                    if (a.parts_per_line > 1 && a.parts_per_line % pass.tile.rows) {
                        a.lines = count * a.parts_per_line;
                        a.parts_per_line = 1;
                        a.x_line_stride = in;
                        a.y_line_stride = out;
                    }
                    tiles = (a.lines * a.parts_per_line + pass.tile.rows - 1) / pass.tile.rows;
                }
                tiles *= pass.tile.cluster * pass.tile.slices;
                const std::int64_t resident = pass.tile.cluster > 1 ? std::int64_t(k.occupancy) * pass.tile.cluster
                                                                    : std::int64_t(m.multiprocessors) * k.occupancy;
                void* parameters[] = {&a};
                // Early, as the executor launches kernels of few or large blocks (kernels/launch_order.cuh), and their factors first.
                CUlaunchAttribute early{};
                early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                early.value.programmaticStreamSerializationAllowed = 1;
                CUlaunchConfig config{};
                config.gridDimX = unsigned(std::min(tiles, resident - resident % pass.tile.slices));
                config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
                config.blockDimX = unsigned(pass.tile.threads);
                config.sharedMemBytes = passes[n].shared;
                config.hStream = s;
                config.attrs = &early;
                config.numAttrs = pass.tile.cluster == 1 && pass.tile.blocks <= 4 ? 1 : 0;
                a.factors_ready = n > 0;
                CU(cuLaunchKernelEx(&config, k.function, parameters, nullptr));
                from = to;
                row_in = row_out;
            }
        }
        if (two) {
            CU(cuEventRecord(join, second));
            CU(cuStreamWaitEvent(stream, join, 0));
        }
    }
};

template <class T>
void measure(machine& m, const planned& pl, FILE* csv, bool timed) {
    const int type = sizeof(T) == 4 ? 0 : 1;
    const kron_case& c = *pl.c;
    const std::int64_t rows = type ? c.rows_f64 : c.rows_f32;
    std::int64_t K = 1, L = 1;
    for (int e : c.p) K *= e;
    for (int e : c.q) L *= e;
    const auto in_plan = [&](int mode) {
        for (const auto& pass : pl.plan.passes)
            if (mode >= pass.first_mode && mode < pass.first_mode + pass.modes()) return true;
        return false;
    };
    // Least flops over all orders: sorted by 1/Q - 1/P, descending.
    double flops = 0;
    {
        std::vector<int> order(c.p.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = int(i);
        std::sort(order.begin(), order.end(),
                  [&](int a, int b) { return 1.0 / c.q[a] - 1.0 / c.p[a] > 1.0 / c.q[b] - 1.0 / c.p[b]; });
        double k = double(K);
        for (int i : order) {
            if (in_plan(i)) flops += 2.0 * rows * k * c.q[i];
            k = k / c.p[i] * c.q[i];
        }
    }
    const double bytes = double(rows) * (K + L) * sizeof(T);
    const int sets = std::max(1, int(std::min(4096.0, std::ceil(130e6 / bytes) + (bytes < 130e6 ? 1 : 0))));
    const std::int64_t x_bytes = (rows * K * sizeof(T) + 255) / 256 * 256,
                       y_bytes = (rows * L * sizeof(T) + 255) / 256 * 256;
    CUdeviceptr x, y, factors, table, sums, samples;
    CU(cuMemAlloc(&x, x_bytes * sets));
    CU(cuMemAlloc(&y, y_bytes * sets));
    runner<T> r{m, pl, rows, K, L, 0, {}, {}};
    r.resolve();
    std::int64_t total = 0;
    std::vector<T> host_factors;
    std::mt19937_64 random(12345);
    std::uniform_real_distribution<double> uniform(-1, 1);
    chain ch{};
    ch.modes = int(c.p.size());
    std::vector<double> w, u;
    // A plan may leave modes out: those have the identity as their factor.
    std::vector<bool> replaced(c.p.size(), false);
    for (const auto& pass : pl.plan.passes)
        for (int i = 0; i < pass.modes(); ++i) replaced[pass.first_mode + i] = true;
    for (std::size_t i = 0; i < c.p.size(); ++i) {
        ch.p[i] = c.p[i];
        ch.q[i] = c.q[i];
        r.factor_at.push_back(total);
        std::vector<double> wi(c.q[i]);
        for (double& e : wi) e = uniform(random) / std::sqrt(double(c.q[i]) / 3);
        const double scale = 1 / std::sqrt(c.p[i] / 3.0);
        for (int p = 0; p < c.p[i]; ++p) {
            double dot = 0;
            for (int q = 0; q < c.q[i]; ++q) {
                const T f = replaced[i] ? T(scale * uniform(random)) : T(p == q);
                host_factors.push_back(f);
                dot += double(f) * wi[q];
            }
            u.push_back(dot);
        }
        w.insert(w.end(), wi.begin(), wi.end());
        total += std::int64_t(c.p[i]) * c.q[i];
    }
    constexpr int sample_count = 1024;
    CU(cuMemAlloc(&factors, total * sizeof(T)));
    CU(cuMemcpyHtoD(factors, host_factors.data(), total * sizeof(T)));
    r.factors = factors;
    CU(cuMemAlloc(&table, (w.size() + u.size()) * 8));
    CU(cuMemAlloc(&sums, rows * 16));
    CU(cuMemAlloc(&samples, sample_count * 16));
    CU(cuMemcpyHtoD(table, w.data(), w.size() * 8));
    CU(cuMemcpyHtoD(table + w.size() * 8, u.data(), u.size() * 8));
    long long n = x_bytes * sets / sizeof(T);
    unsigned long long seed = 7;
    double one = 1;
    {
        void* p[] = {&x, &n, &seed, &one};
        CU(cuLaunchKernel(m.fill[type], 1024, 1, 1, 256, 1, 1, 0, m.stream, p, nullptr));
    }
    CU(cuMemsetD8Async(y, 0xff, y_bytes * sets, m.stream));  // NaN
    CU(cuMemsetD8Async(sums, 0, rows * 16, m.stream));

    CUevent fork, join, begin, end;
    CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CU(cuEventCreate(&begin, 0));
    CU(cuEventCreate(&end, 0));
    const auto run = [&](int set) { r.run(x + set * x_bytes, y + set * y_bytes, m.stream, m.second, fork, join); };

    run(sets - 1);
    const CUdeviceptr last_x = x + (sets - 1) * x_bytes, last_y = y + (sets - 1) * y_bytes;
    double residual = 0, error = 0;
    {
        long long count = L;
        int use_q = 1;
        CUdeviceptr t = table, s = sums, data = last_y;
        const unsigned chunks = unsigned(std::max<std::int64_t>(1, std::min<std::int64_t>(64, std::max(K, L) / 1024)));
        for (std::int64_t first = 0; first < rows; first += 32768) {
            const unsigned some = unsigned(std::min<std::int64_t>(32768, rows - first));
            count = L;
            use_q = 1;
            t = table;
            s = sums + first * 8;
            data = last_y + first * L * sizeof(T);
            {
                void* p[] = {&data, &count, &ch, &use_q, &t, &s};
                CU(cuLaunchKernel(m.project[type], chunks, some, 1, 256, 1, 1, 0, m.stream, p, nullptr));
            }
            count = K;
            use_q = 0;
            t = table + w.size() * 8;
            s = sums + (rows + first) * 8;
            data = last_x + first * K * sizeof(T);
            {
                void* p[] = {&data, &count, &ch, &use_q, &t, &s};
                CU(cuLaunchKernel(m.project[type], chunks, some, 1, 256, 1, 1, 0, m.stream, p, nullptr));
            }
        }
        long long rr = rows, kk = K, ll = L;
        unsigned long long sample_seed = 99;
        const unsigned sampled = K > (1 << 20) ? 256 : sample_count;
        {
            void* p[] = {const_cast<CUdeviceptr*>(&last_x),
                         const_cast<CUdeviceptr*>(&last_y),
                         &factors,
                         &rr,
                         &kk,
                         &ll,
                         &ch,
                         &sample_seed,
                         &samples};
            CU(cuLaunchKernel(m.entry[type], sampled, 1, 1, 256, 1, 1, 0, m.stream, p, nullptr));
        }
        CU(cuStreamSynchronize(m.stream));
        std::vector<double> h(2 * rows), e(2 * sampled);
        CU(cuMemcpyDtoH(h.data(), sums, rows * 16));
        CU(cuMemcpyDtoH(e.data(), samples, sampled * 16));
        double d2 = 0, n2 = 0;
        for (std::int64_t i = 0; i < rows; ++i) {
            d2 += (h[i] - h[rows + i]) * (h[i] - h[rows + i]);
            n2 += h[rows + i] * h[rows + i];
        }
        const double difference2 = d2;
        double projected2 = n2,
               weight2 = 1;  // a projection may cancel by chance: its expected size counts when that is larger
        for (std::size_t i = 0, at = 0; i < c.q.size(); at += c.q[i], ++i) {
            double norm2 = 0;
            for (int j = 0; j < c.q[i]; ++j) norm2 += w[at + j] * w[at + j];
            weight2 *= norm2;
        }
        d2 = n2 = 0;
        for (unsigned i = 0; i < sampled; ++i) {
            d2 += (e[2 * i] - e[2 * i + 1]) * (e[2 * i] - e[2 * i + 1]);
            n2 += e[2 * i + 1] * e[2 * i + 1];
        }
        residual = std::sqrt(difference2 / std::max(projected2, weight2 * n2 / sampled * double(rows)));
        error = std::sqrt(d2 / n2);
    }
    const double tolerance = type ? 1e-14 : 5e-6;
    const bool right = residual < tolerance && error < tolerance;
    std::string reports;
    for (const auto& pass : pl.plan.passes)
        reports +=
            " [" + m.kernels.at(pass.kernel() + pass.type_expression(type ? dtype::f64 : dtype::f32)).report + "]";
    double cold = 0, warm = 0, graph_time = 0, copy = 0, yardstick_cold = 0, yardstick_warm = 0, yardstick_error = 0;
    if (timed && right) {
        const auto time = [&](int count, auto&& body) {
            CU(cuEventRecord(begin, m.stream));
            for (int i = 0; i < count; ++i) body(i);
            CU(cuEventRecord(end, m.stream));
            CU(cuEventSynchronize(end));
            float ms;
            CU(cuEventElapsedTime(&ms, begin, end));
            return double(ms) / count;
        };
        const auto repeat = [&](int count, int times, auto&& body) {
            std::vector<double> v;
            time(count, body);
            for (int i = 0; i < times; ++i) v.push_back(time(count, body));
            return median(v);
        };
        const double guess = bytes / 3e12 * 1e3 + 0.003;  // ms
        const int count = std::max(sets, int(std::min(64.0, std::ceil(2.0 / guess))));
        cold = repeat(count, 7, [&](int i) { run(i % sets); });
        const std::int64_t half = (x_bytes + y_bytes) / 2;
        (void)half;
        copy = repeat(count, 7, [&](int i) {
            const int s = i % sets;
            if (x_bytes == y_bytes)
                CU(cuMemcpyDtoDAsync(y + s * y_bytes, x + s * x_bytes, rows * K * sizeof(T), m.stream));
            else
                CU(cuMemcpyDtoDAsync(y + s * y_bytes, x + s * x_bytes, std::min(x_bytes, y_bytes), m.stream));
        });
        warm = repeat(count, 7, [&](int) { run(0); });
        CUgraph graph;
        CUgraphExec exec;
        const int nodes = bytes < 2e8 ? 20 : 2;
        CU(cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < nodes; ++i) run(0);
        CU(cuStreamEndCapture(m.stream, &graph));
        CU(cuGraphInstantiate(&exec, graph, 0));
        graph_time = repeat(std::max(1, count / nodes), 5, [&](int) { CU(cuGraphLaunch(exec, m.stream)); }) / nodes;
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
        bool whole = true;
        for (std::size_t i = 0; i < c.p.size(); ++i) whole = whole && replaced[i];
        if (m.yardstick && m.yardstick->exists() && whole && bytes < 2e10) {
            std::int64_t extent = K, largest = L;
            for (std::size_t i = c.p.size(); i-- > 0;) {
                extent = extent / c.p[i] * c.q[i];
                largest = std::max(largest, extent);
            }
            CUdeviceptr scratch, last;
            CU(cuMemAlloc(&scratch, rows * largest * sizeof(T)));
            CU(cuMemAlloc(&last, rows * largest * sizeof(T)));
            std::vector<const T*> f;
            for (std::int64_t at : r.factor_at) f.push_back(reinterpret_cast<const T*>(factors + at * sizeof(T)));
            const auto chain_run = [&](int set) {
                m.yardstick->run<T>(rows, c.p, c.q, reinterpret_cast<const T*>(x + set * x_bytes),
                                    largest == L ? reinterpret_cast<T*>(y + set * y_bytes) : reinterpret_cast<T*>(last),
                                    reinterpret_cast<T*>(scratch), f);
            };
            const int fewer = std::max(1, std::min(count, int(20 / guess / double(c.p.size()))));
            yardstick_cold = repeat(fewer, 3, [&](int i) { chain_run(i % sets); });
            yardstick_warm = repeat(fewer, 3, [&](int) { chain_run(0); });
            if (largest == L) {
                // The same samples once more, of the chain's result.
                chain_run(sets - 1);
                long long rr = rows, kk = K, ll = L;
                unsigned long long sample_seed = 99;
                const unsigned sampled = 256;
                void* p[] = {const_cast<CUdeviceptr*>(&last_x),
                             const_cast<CUdeviceptr*>(&last_y),
                             &factors,
                             &rr,
                             &kk,
                             &ll,
                             &ch,
                             &sample_seed,
                             &samples};
                CU(cuLaunchKernel(m.entry[type], sampled, 1, 1, 256, 1, 1, 0, m.stream, p, nullptr));
                CU(cuStreamSynchronize(m.stream));
                std::vector<double> e(2 * sampled);
                CU(cuMemcpyDtoH(e.data(), samples, sampled * 16));
                double d2 = 0, n2 = 0;
                for (unsigned i = 0; i < sampled; ++i) {
                    d2 += (e[2 * i] - e[2 * i + 1]) * (e[2 * i] - e[2 * i + 1]);
                    n2 += e[2 * i + 1] * e[2 * i + 1];
                }
                yardstick_error = std::sqrt(d2 / n2);
            }
            CU(cuStreamSynchronize(m.stream));
            CU(cuMemFree(scratch));
            CU(cuMemFree(last));
        }
    }
    const double bound = std::max(copy, flops / (type ? 66e12 : 102e12) * 1e3);
    std::printf(
        "%-12s %s %s cold %9.5f warm %9.5f graph %9.5f copy %9.5f bound %9.5f x %5.2f  res %.1e err %.2e cublas %.5f "
        "err %.1e%s | %s\n",
        c.id.c_str(), type ? "f64" : "f32", right ? "ok   " : "WRONG", cold, warm, graph_time, copy, bound,
        bound > 0 ? cold / bound : 0, residual, error, yardstick_warm, yardstick_error, reports.c_str(),
        pl.text.c_str());
    std::fflush(stdout);
    if (csv && right && timed) {
        const auto line = [&](const char* peer, double ms, double of_error) {
            std::fprintf(csv, "%s,%s,%s,%.5f,%.1f,%.1f,%.2e,%.5f,%.3f,\"%s\"\n", c.id.c_str(), type ? "f64" : "f32",
                         peer, ms, flops / ms * 1e-6, bytes / ms * 1e-6, of_error, bound, ms / bound, pl.text.c_str());
        };
        line("otimes", cold, error);
        line("otimes_warm", warm, error);
        line("otimes_graph", graph_time, error);
        if (yardstick_cold > 0) {
            line("cublas_chain", yardstick_cold, yardstick_error);
            line("cublas_chain_warm", yardstick_warm, yardstick_error);
        }
        std::fflush(csv);
    }
    CU(cuEventDestroy(fork));
    CU(cuEventDestroy(join));
    CU(cuEventDestroy(begin));
    CU(cuEventDestroy(end));
    for (CUdeviceptr p : {x, y, factors, table, sums, samples}) CU(cuMemFree(p));
}

int program(int argc, char** argv) {
    const std::string root = argc > 1 ? argv[1] : ".";
    std::string plans = root + "/bench/gpu/plans.txt", csv_path, only, dump;
    std::string cache, ahead_of_time;
    bool compile_only = false, timed = true, check = false, brief = false, yardstick = false;
    for (int i = 2; i < argc; ++i) {
        const std::string a = argv[i];
        const auto value = [&]() -> std::string {
            if (++i == argc) throw std::runtime_error(a + " needs a value");
            return argv[i];
        };
        if (a == "--plans")
            plans = value();
        else if (a == "--csv")
            csv_path = value();
        else if (a == "--only")
            only = value();
        else if (a == "--compile-only")
            compile_only = true;
        else if (a == "--check-only")
            timed = false;
        else if (a == "--check")
            check = true;
        else if (a == "--brief")
            brief = true;
        else if (a == "--yardstick")
            yardstick = true;
        else if (a == "--cache")
            cache = value();
        else if (a == "--ahead-of-time")
            ahead_of_time = value();
        else if (a.rfind("-D", 0) == 0)
            definitions.push_back(a);
        else if (a == "--dump")
            dump = value();
        else
            throw std::runtime_error("unknown option " + a);
    }
    for (const char* h : headers) header_text[h] = read_text(root + "/kernels/" + h);
    if (check) return check_kernels(cache, ahead_of_time, only, brief);
    std::list<kron_case> cases;
    for (const kron_case& c : kron_cases()) cases.push_back(c);
    for (const kron_case& c : column_cases()) cases.push_back(c);
    std::vector<planned> work;
    std::istringstream lines(read_text(plans));
    std::string line;
    while (std::getline(lines, line)) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream words(line);
        std::string id, type;
        words >> id >> type;
        std::string rest;
        std::getline(words, rest);
        if (!only.empty() && line.find(only) == std::string::npos) continue;
        auto c = std::ranges::find(cases, id, &kron_case::id);
        if (c == cases.end()) c = cases.insert(c, case_of(id));
        for (int t = 0; t < 2; ++t)
            if (type == "*" || type == (t ? "f64" : "f32"))
                work.push_back({&*c, t, parse_pass_plan(rest, c->p, c->q), rest});
    }
    std::vector<job> jobs;
    std::map<std::string, int> known;
    for (const auto& w : work)
        for (const auto& pass : w.plan.passes) {
            const std::string type = pass.type_expression(w.type ? dtype::f64 : dtype::f32), key = pass.kernel() + type;
            if (known.emplace(key, 1).second)
                jobs.push_back({key,
                                "#include \"" + pass.kernel() +
                                    ".cuh\"\n__device__ int contract_shared_bytes = " + type + "::shared_bytes;\n",
                                "otimes::kernels::" + pass.kernel() + "<" + type + ">",
                                {},
                                {}});
        }
    jobs.push_back({"check", read_text(root + "/bench/gpu/check_kernels.cuh"), "", {}, {}});
    const auto start = std::chrono::steady_clock::now();
    compile_all(jobs, cache);
    std::printf("%zu kernels compiled in %.1f s\n", jobs.size(),
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (compile_only) {
        for (const auto& j : jobs)
            std::printf("%-16s %.2f s  %s%s\n", short_report(j.result.log).c_str(), j.result.seconds, j.key.c_str(),
                        j.error.substr(0, 600).c_str());
        return 0;
    }

    machine m;
    CU(cuInit(0));
    CU(cuDeviceGet(&m.device, 0));
    CU(cuDevicePrimaryCtxRetain(&m.context, m.device));
    CU(cuCtxSetCurrent(m.context));
    CU(cuDeviceGetAttribute(&m.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, m.device));
    CU(cuStreamCreate(&m.stream, CU_STREAM_NON_BLOCKING));
    if (yardstick) m.yardstick = std::make_unique<cublas_chain>(m.stream);
    CU(cuStreamCreate(&m.second, CU_STREAM_NON_BLOCKING));
    for (auto& j : jobs) {
        if (!j.error.empty()) {
            std::printf("COMPILE FAILED %s\n", j.error.substr(0, 1200).c_str());
            continue;
        }
        CUmodule module;
        CU(cuModuleLoadData(&module, j.result.cubin.data()));
        if (j.key == "check") {
            for (int t = 0; t < 2; ++t) {
                const std::string s = t ? "_f64" : "_f32";
                CU(cuModuleGetFunction(&m.fill[t], module, ("fill" + s).c_str()));
                CU(cuModuleGetFunction(&m.project[t], module, ("project" + s).c_str()));
                CU(cuModuleGetFunction(&m.entry[t], module, ("entry" + s).c_str()));
            }
            continue;
        }
        if (!dump.empty())
            std::ofstream(dump + "/" + std::to_string(m.kernels.size()) + ".cubin", std::ios::binary)
                .write(j.result.cubin.data(), std::streamsize(j.result.cubin.size()));
        kernel_entry k;
        CU(cuModuleGetFunction(&k.function, module, j.result.lowered.c_str()));
        CUdeviceptr at;
        std::size_t size;
        int bytes = 0;
        CU(cuModuleGetGlobal(&at, &size, module, "contract_shared_bytes"));
        CU(cuMemcpyDtoH(&bytes, at, 4));
        int threads = 0, cluster = 1;
        for (const auto& w : work)
            for (const auto& pass : w.plan.passes)
                if (pass.kernel() + pass.type_expression(w.type ? dtype::f64 : dtype::f32) == j.key) {
                    threads = pass.tile.threads;
                    cluster = pass.tile.cluster;
                    if (pass.shared_bytes(w.type ? dtype::f64 : dtype::f32) != bytes)
                        throw std::runtime_error("the planner and mode_group disagree on shared bytes of " + j.key +
                                                 ": " +
                                                 std::to_string(pass.shared_bytes(w.type ? dtype::f64 : dtype::f32)) +
                                                 " / " + std::to_string(bytes));
                }
        const CUresult fits = cuFuncSetAttribute(k.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
        if (fits == CUDA_SUCCESS && cluster == 1)
            CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&k.occupancy, k.function, threads, bytes));
        if (fits == CUDA_SUCCESS && cluster > 1) {  // clusters at a time
            if (cluster > 8) CU(cuFuncSetAttribute(k.function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
            CUlaunchConfig config{};
            CUlaunchAttribute size{};
            size.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            size.value.clusterDim = {unsigned(cluster), 1, 1};
            config.gridDimX = unsigned(cluster);
            config.gridDimY = config.gridDimZ = 1;
            config.blockDimX = unsigned(threads);
            config.blockDimY = config.blockDimZ = 1;
            config.sharedMemBytes = unsigned(bytes);
            config.attrs = &size;
            config.numAttrs = 1;
            if (cuOccupancyMaxActiveClusters(&k.occupancy, k.function, &config) != CUDA_SUCCESS) k.occupancy = 0;
        }
        k.report =
            short_report(j.result.log) + ", " + std::to_string(bytes / 1024) + " KiB, x" + std::to_string(k.occupancy);
        m.kernels[j.key] = k;
    }
    FILE* csv = csv_path.empty() ? nullptr : std::fopen(csv_path.c_str(), "w");
    if (csv) std::fprintf(csv, "id,dtype,peer,ms,gflops,gbps_min,relerr,bound_ms,x_bound,plan\n");
    for (const auto& w : work) {
        bool can_run = true;
        for (const auto& pass : w.plan.passes) {
            const auto k = m.kernels.find(pass.kernel() + pass.type_expression(w.type ? dtype::f64 : dtype::f32));
            if (k == m.kernels.end() || k->second.occupancy < 1) can_run = false;
        }
        if (!can_run) {
            std::printf("%s %s does not fit or compile | %s\n", w.c->id.c_str(), w.type ? "f64" : "f32",
                        w.text.c_str());
            continue;
        }
        if (w.type)
            measure<double>(m, w, csv, timed);
        else
            measure<float>(m, w, csv, timed);
    }
    if (csv) std::fclose(csv);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return program(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gpu_kernels: %s\n", e.what());
        return 1;
    }
}

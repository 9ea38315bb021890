// SPDX-License-Identifier: MIT
// Kronecker products on a GPU through the public API, dY = dX * kron(F1..FN), for every case of bench/cases/kron_cases.json:
//   gpu_cases <folder of the repository> [--csv FILE] [--only TEXT] [--no-yardstick] [--columns]
// Each result is checked first (every output entry by projection, sampled entries against their definition in compensated double,
// outputs poisoned with NaN), by kernels that share no code with the library; a wrong result has no time. Peers:
//   otimes        consecutive evaluations rotate over more than 120 MB of operands (cold)
//   otimes_warm   one operand set          otimes_graph   captured evaluations, replayed
//   otimes_plan   the same plan run by plan::run, wall clock of 1000 asynchronous runs / 1000 (small cases)
//   otimes_columns, otimes_columns_warm    X and Y column-major (--columns: the fig9 cases)
//   cublas_chain, cublas_chain_warm   one strided-batched GEMM of cuBLAS per factor, in the same run
// bound: max(cold device copy of the same bytes in this run, least flops / 102 (float) or 66 (double) TFLOP/s).
// first: seconds of the first evaluation, which compiles or loads the kernels.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <otimes/otimes.hpp>

#include <otimes/cuda.hpp>

#include "cublas_chain.hpp"
#include "runtime_kernels.hpp"

using namespace otimes::bench;

namespace {

struct kron_case {
    std::string id;
    std::int64_t rows[2] = {0, 0};
    bool types[2] = {false, false};
    std::vector<int> p, q;
};

std::int64_t number_after(const std::string& line, const std::string& key) {
    const std::size_t at = line.find(key);
    return at == std::string::npos ? 0 : std::strtoll(line.c_str() + at + key.size(), nullptr, 10);
}

// One case a line, as the file is laid out. Cases for several GPUs are left out.
std::vector<kron_case> read_cases(const std::string& path) {
    std::vector<kron_case> cases;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        const std::size_t id = line.find("\"id\": \"");
        const std::int64_t devices = line.find("run on ") == std::string::npos ? 1 : number_after(line, "run on ");
        if (id == std::string::npos || devices != 1) continue;
        kron_case c;
        c.id = line.substr(id + 7, line.find('"', id + 7) - id - 7);
        const std::size_t by_type = line.find("M_by_dtype");
        for (int t = 0; t < 2; ++t) {
            const std::string name = t ? "\"f64\"" : "\"f32\"";
            c.rows[t] = number_after(line, "\"M\": ");
            if (by_type != std::string::npos) c.rows[t] = number_after(line.substr(by_type), name + ": ");
            c.types[t] = line.find(name) != std::string::npos;
        }
        const char* text = std::strstr(line.c_str(), "\"factors\": [");
        for (text += 12; *text != ']'; ++text)
            if (*text == '[') {
                char* end = nullptr;
                c.p.push_back(int(std::strtol(text + 1, &end, 10)));
                c.q.push_back(int(std::strtol(end + 1, &end, 10)));
                text = end;
            }
        cases.push_back(c);
    }
    if (cases.empty()) throw std::runtime_error("no cases in " + path);
    return cases;
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}
double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct settings {
    std::string root = ".", only, csv;
    bool yardstick = true, columns = false;
};

struct machine {
    CUstream stream;
    CUfunction fill[2], project[2], entry[2];
    CUevent begin, end;

    template <class Body>
    double time(int count, const Body& body) const {
        CU(cuEventRecord(begin, stream));
        for (int i = 0; i < count; ++i) body(i);
        CU(cuEventRecord(end, stream));
        CU(cuEventSynchronize(end));
        float ms = 0;
        CU(cuEventElapsedTime(&ms, begin, end));
        return double(ms) / count;
    }
    template <class Body>
    double repeat(int count, int times, const Body& body) const {
        std::vector<double> v;
        time(count, body);
        for (int i = 0; i < times; ++i) v.push_back(time(count, body));
        return median(v);
    }
    template <class Body>
    double graph(int nodes, int count, const Body& body) const {
        CUgraph graph;
        CUgraphExec exec;
        CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        for (int i = 0; i < nodes; ++i) body(i);
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphInstantiate(&exec, graph, 0));
        const double ms = repeat(count, 5, [&](int) { CU(cuGraphLaunch(exec, stream)); }) / nodes;
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
        return ms;
    }
};

// Frees device memory at the end of a case, also when it fails.
struct device_block {
    CUdeviceptr at = 0;
    explicit device_block(std::int64_t bytes) { CU(cuMemAlloc(&at, std::size_t(std::max<std::int64_t>(bytes, 16)))); }
    device_block(const device_block&) = delete;
    device_block& operator=(const device_block&) = delete;
    ~device_block() { cuMemFree(at); }
};

struct device_chain {  // as in check_kernels.cuh
    int modes;
    int p[16];
    int q[16];
};

template <class T>
class measured_case {
public:
    measured_case(const machine& m, const settings& s, const kron_case& c)
        : m_(m),
          s_(s),
          c_(c),
          rows_(c.rows[type]),
          k_(product(c.p)),
          l_(product(c.q)),
          bytes_(double(rows_) * double(k_ + l_) * sizeof(T)),
          sets_(int(std::clamp(std::ceil(130e6 / bytes_) + (bytes_ < 130e6 ? 1 : 0), 1.0, 4096.0))),
          x_bytes_((rows_ * k_ * std::int64_t(sizeof(T)) + 255) / 256 * 256),
          y_bytes_((rows_ * l_ * std::int64_t(sizeof(T)) + 255) / 256 * 256),
          x_(x_bytes_ * sets_),
          y_(y_bytes_ * sets_) {
        make_factors();
        long long n = x_bytes_ * sets_ / std::int64_t(sizeof(T));
        unsigned long long seed = 7;
        double one = 1;
        void* p[] = {&x_.at, &n, &seed, &one};
        CU(cuLaunchKernel(m_.fill[type], 1024, 1, 1, 256, 1, 1, 0, m_.stream, p, nullptr));
        CU(cuMemsetD8Async(y_.at, 0xff, std::size_t(y_bytes_ * sets_), m_.stream));  // NaN
    }

    void evaluate_once() const {
        evaluate<1>(0);
        CU(cuStreamSynchronize(m_.stream));
    }

    void run(FILE* csv) {
        const double start = seconds_now();
        evaluate<1>(sets_ - 1);
        CU(cuStreamSynchronize(m_.stream));
        const double first = seconds_now() - start;
        double error = 0;
        const bool right = check(sets_ - 1, error);
        const otimes::plan plan = otimes::make_plan<1>(in<1>(0) * kron_);
        const int count = std::max(sets_, int(std::min(64.0, std::ceil(2.0 / guess()))));
        const double cold = right ? m_.repeat(count, 7, [&](int i) { evaluate<1>(i % sets_); }) : 0;
        const double copy = m_.repeat(count, 7, [&](int i) {
            const int set = i % sets_;
            CU(cuMemcpyDtoDAsync(y_.at + CUdeviceptr(set) * y_bytes_, x_.at + CUdeviceptr(set) * x_bytes_,
                                 std::size_t(std::min(x_bytes_, y_bytes_)), m_.stream));
        });
        const double bound = std::max(copy, least_flops() / (type ? 66e12 : 102e12) * 1e3);
        const double warm = right ? m_.repeat(count, 7, [&](int) { evaluate<1>(0); }) : 0;
        const int nodes = bytes_ < 2e8 ? 20 : 2;
        const double graph = right ? m_.graph(nodes, std::max(1, count / nodes), [&](int) { evaluate<1>(0); }) : 0;
        double plan_run = 0;
        if (right && bytes_ < 8e6) {  // launch-bound
            const auto value = in<1>(0) * kron_;
            auto y = out<1>(0);
            std::vector<double> v;
            for (int times = 0; times < 6; ++times) {
                CU(cuStreamSynchronize(m_.stream));
                const double begin = seconds_now();
                for (int i = 0; i < 1000; ++i) plan.run(y, value);
                CU(cuStreamSynchronize(m_.stream));
                if (times > 0) v.push_back((seconds_now() - begin) / 1000 * 1e3);
            }
            plan_run = median(v);
        }
        std::string passes;
        for (const otimes::pass& one : plan.passes)
            passes += (passes.empty() ? "" : " | ") +
                      std::string(one.kernel == otimes::pass_kernel::gpu_blocked ? "blocks"
                                  : one.tile.trips.empty()                       ? "generic"
                                  : one.kernel == otimes::pass_kernel::gpu_outer ? "O "
                                                                                 : "T ") +
                      (one.tile.trips.empty()
                           ? ""
                           : otimes::planning::text_of_tile(one.tile, one.kernel == otimes::pass_kernel::gpu_outer));
        std::printf(
            "%-14s %s %s cold %9.5f warm %9.5f graph %9.5f run %8.5f bound %9.5f x %5.2f err %.2e first %.3f s | %s\n",
            c_.id.c_str(), name(), right ? "ok   " : "WRONG", cold, warm, graph, plan_run, bound, cold / bound, error,
            first, passes.c_str());
        if (right) {
            line(csv, "otimes", cold, error, bound, passes);
            line(csv, "otimes_warm", warm, error, bound, passes);
            line(csv, "otimes_graph", graph, error, bound, passes);
            if (plan_run > 0) line(csv, "otimes_plan", plan_run, error, bound, passes);
        }
        if (type == 0 && right) multiply_adds(csv, count, bound);
        if (s_.columns && right && bytes_ < 2e10) columns(csv, count, bound);
        if (s_.yardstick && right && bytes_ < 2e10) yardstick(csv, count, bound);
        std::fflush(stdout);
    }

private:
    static constexpr int type = sizeof(T) == 4 ? 0 : 1;
    static const char* name() { return type ? "f64" : "f32"; }
    static std::int64_t product(const std::vector<int>& extents) {
        std::int64_t n = 1;
        for (const int e : extents) n *= e;
        return n;
    }
    double guess() const { return bytes_ / 3e12 * 1e3 + 0.003; }  // ms

    template <int Order>
    auto in(int set) const {
        return otimes::device_map<T, Order>(reinterpret_cast<T*>(x_.at + CUdeviceptr(set) * x_bytes_), rows_, k_);
    }
    template <int Order>
    auto out(int set) const {
        return otimes::device_map<T, Order>(reinterpret_cast<T*>(y_.at + CUdeviceptr(set) * y_bytes_), rows_, l_);
    }
    template <int Order>
    void evaluate(int set) const {
        out<Order>(set).noalias() = in<Order>(set) * kron_;
    }

    void make_factors() {
        std::mt19937_64 random(12345);
        std::uniform_real_distribution<double> uniform(-1, 1);
        std::vector<T> all;
        for (std::size_t i = 0; i < c_.p.size(); ++i) {
            std::vector<double> wi(std::size_t(c_.q[i]));
            for (double& e : wi) e = uniform(random) / std::sqrt(double(c_.q[i]) / 3);
            const double scale = 1 / std::sqrt(c_.p[i] / 3.0);
            Eigen::Matrix<T, -1, -1, Eigen::RowMajor> f(c_.p[i], c_.q[i]);
            for (int p = 0; p < c_.p[i]; ++p) {
                double dot = 0;
                for (int q = 0; q < c_.q[i]; ++q) {
                    f(p, q) = T(scale * uniform(random));
                    all.push_back(f(p, q));
                    dot += double(f(p, q)) * wi[std::size_t(q)];
                }
                u_.push_back(dot);
            }
            w_.insert(w_.end(), wi.begin(), wi.end());
            factors_.emplace_back(f);
        }
        packed_ = std::make_unique<device_block>(std::int64_t(all.size() * sizeof(T)));
        CU(cuMemcpyHtoDAsync(packed_->at, all.data(), all.size() * sizeof(T), m_.stream));
        CU(cuStreamSynchronize(m_.stream));
        kron_ = otimes::kron(factors_);
    }

    // Row-major X and Y of a set: every entry by projection on random vectors, 1024 entries by their definition.
    bool check(int set, double& error) const {
        device_chain chain{};
        chain.modes = int(c_.p.size());
        std::copy(c_.p.begin(), c_.p.end(), chain.p);
        std::copy(c_.q.begin(), c_.q.end(), chain.q);
        const device_block table(std::int64_t(w_.size() + u_.size()) * 8), sums(rows_ * 16), samples(1024 * 16);
        CU(cuMemcpyHtoDAsync(table.at, w_.data(), w_.size() * 8, m_.stream));
        CU(cuMemcpyHtoDAsync(table.at + w_.size() * 8, u_.data(), u_.size() * 8, m_.stream));
        CU(cuMemsetD8Async(sums.at, 0, std::size_t(rows_ * 16), m_.stream));
        CUdeviceptr x = x_.at + CUdeviceptr(set) * x_bytes_, y = y_.at + CUdeviceptr(set) * y_bytes_;
        const unsigned chunks = unsigned(std::clamp<std::int64_t>(std::max(k_, l_) / 1024, 1, 64));
        for (std::int64_t from = 0; from < rows_; from += 32768) {
            const unsigned some = unsigned(std::min<std::int64_t>(32768, rows_ - from));
            for (int use_q = 1; use_q >= 0; --use_q) {
                CUdeviceptr data =
                    use_q ? y + CUdeviceptr(from * l_) * sizeof(T) : x + CUdeviceptr(from * k_) * sizeof(T);
                CUdeviceptr vectors = use_q ? table.at : table.at + w_.size() * 8;
                CUdeviceptr to = sums.at + CUdeviceptr(use_q ? from : rows_ + from) * 8;
                long long length = use_q ? l_ : k_;
                void* p[] = {&data, &length, &chain, &use_q, &vectors, &to};
                CU(cuLaunchKernel(m_.project[type], chunks, some, 1, 256, 1, 1, 0, m_.stream, p, nullptr));
            }
        }
        long long rows = rows_, k = k_, l = l_;
        unsigned long long seed = 99;
        const unsigned sampled = k_ > (1 << 20) ? 256 : 1024;
        CUdeviceptr factors = packed_->at, results = samples.at;
        void* p[] = {&x, &y, &factors, &rows, &k, &l, &chain, &seed, &results};
        CU(cuLaunchKernel(m_.entry[type], sampled, 1, 1, 256, 1, 1, 0, m_.stream, p, nullptr));
        CU(cuStreamSynchronize(m_.stream));
        std::vector<double> h(std::size_t(2 * rows_)), e(2 * sampled);
        CU(cuMemcpyDtoH(h.data(), sums.at, std::size_t(rows_ * 16)));
        CU(cuMemcpyDtoH(e.data(), samples.at, sampled * 16));
        double difference2 = 0, projected2 = 0, d2 = 0, n2 = 0;
        for (std::size_t i = 0; i < std::size_t(rows_); ++i) {
            difference2 += (h[i] - h[std::size_t(rows_) + i]) * (h[i] - h[std::size_t(rows_) + i]);
            projected2 += h[std::size_t(rows_) + i] * h[std::size_t(rows_) + i];
        }
        for (unsigned i = 0; i < sampled; ++i) {
            d2 += (e[2 * i] - e[2 * i + 1]) * (e[2 * i] - e[2 * i + 1]);
            n2 += e[2 * i + 1] * e[2 * i + 1];
        }
        double weight2 = 1;  // a projection may cancel by chance: its expected size counts when that is larger
        std::size_t at = 0;
        for (const int q : c_.q) {
            double norm2 = 0;
            for (int j = 0; j < q; ++j) norm2 += w_[at + std::size_t(j)] * w_[at + std::size_t(j)];
            weight2 *= norm2;
            at += std::size_t(q);
        }
        const double residual = std::sqrt(difference2 / std::max(projected2, weight2 * n2 / sampled * double(rows_)));
        error = std::sqrt(d2 / n2);
        const double tolerance = type ? 1e-14 : 5e-6;
        return residual < tolerance && error < tolerance;  // false for NaN
    }

    // The same product by multiply-adds in float alone: what the matrix unit's errors are held against, for the same data.
    void multiply_adds(FILE* csv, int count, double bound) {
        otimes::options wishes;
        wishes.precision = otimes::precision::ieee;
        const auto value = in<1>(0) * kron_;
        const otimes::plan plan = otimes::make_plan<1>(value, wishes);
        CU(cuMemsetD8Async(y_.at, 0xff, std::size_t(y_bytes_), m_.stream));
        auto y = out<1>(0);
        plan.run(y, value);
        double error = 0;
        const bool right = check(0, error);
        const double warm = right ? m_.repeat(std::max(1, count / 4), 3, [&](int) { plan.run(y, value); }) : 0;
        std::printf("%-14s %s %s multiply-adds warm %9.5f err %.2e\n", c_.id.c_str(), name(), right ? "ok   " : "WRONG",
                    warm, error);
        if (right) line(csv, "otimes_multiply_adds_warm", warm, error, bound, "");
    }

    // Column-major: checked against the row-major result through a copy to the other order.
    void columns(FILE* csv, int count, double bound) {
        otimes::DeviceMatrix<T, 1> rows(rows_, k_);
        rows = in<1>(0);
        in<0>(0) = rows.expression();
        CU(cuMemsetD8Async(y_.at, 0xff, std::size_t(y_bytes_), m_.stream));
        evaluate<0>(0);
        otimes::DeviceMatrix<T, 1> result(rows_, l_);
        result = out<0>(0);
        // The check reads row-major operands.
        in<1>(0) = rows.expression();
        out<1>(0) = result.expression();
        double error = 0;
        const bool right = check(0, error);
        double cold = 0, warm = 0;
        if (right) {
            cold = m_.repeat(count, 5, [&](int i) { evaluate<0>(i % sets_); });
            warm = m_.repeat(count, 5, [&](int) { evaluate<0>(0); });
        }
        std::string passes;
        for (const otimes::pass& one : otimes::make_plan<0>(in<0>(0) * kron_).passes)
            passes += (passes.empty() ? "O " : " | O ") + otimes::planning::text_of_tile(one.tile, true);
        std::printf("%-14s %s %s columns cold %9.5f warm %9.5f x %5.2f err %.2e | %s\n", c_.id.c_str(), name(),
                    right ? "ok   " : "WRONG", cold, warm, cold / bound, error, passes.c_str());
        if (right) {
            line(csv, "otimes_columns", cold, error, bound, passes);
            line(csv, "otimes_columns_warm", warm, error, bound, passes);
        }
    }

    void yardstick(FILE* csv, int count, double bound) {
        static const cublas_chain chain(m_.stream);
        if (!chain.exists()) return;
        std::int64_t extent = k_, largest = l_;
        for (std::size_t i = c_.p.size(); i-- > 0;) {
            extent = extent / c_.p[i] * c_.q[i];
            largest = std::max(largest, extent);
        }
        const device_block scratch(rows_ * largest * std::int64_t(sizeof(T)));
        const device_block last(largest == l_ ? 16 : rows_ * largest * std::int64_t(sizeof(T)));
        std::vector<const T*> f;
        std::int64_t at = 0;
        for (std::size_t i = 0; i < c_.p.size(); ++i) {
            f.push_back(reinterpret_cast<const T*>(packed_->at) + at);
            at += std::int64_t(c_.p[i]) * c_.q[i];
        }
        const auto run = [&](int set) {
            chain.run<T>(rows_, c_.p, c_.q, reinterpret_cast<const T*>(x_.at + CUdeviceptr(set) * x_bytes_),
                         reinterpret_cast<T*>(largest == l_ ? y_.at + CUdeviceptr(set) * y_bytes_ : last.at),
                         reinterpret_cast<T*>(scratch.at), f);
        };
        const int fewer = std::max(1, std::min(count, int(20 / guess() / double(c_.p.size()))));
        const double cold = m_.repeat(fewer, 3, [&](int i) { run(i % sets_); });
        const double warm = m_.repeat(fewer, 3, [&](int) { run(0); });
        double error = 0;
        if (largest == l_) check(0, error);
        line(csv, "cublas_chain", cold, error, bound, "");
        line(csv, "cublas_chain_warm", warm, error, bound, "");
    }

    // As the case file counts: last factor first.
    double flops() const {
        double f = 0, k = double(k_);
        for (std::size_t i = c_.p.size(); i-- > 0;) {
            f += 2.0 * double(rows_) * k * c_.q[i];
            k = k / c_.p[i] * c_.q[i];
        }
        return f;
    }
    // Over all orders: by 1/Q - 1/P, descending.
    double least_flops() const {
        std::vector<std::size_t> order(c_.p.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        const auto gain = [&](std::size_t i) { return 1.0 / c_.q[i] - 1.0 / c_.p[i]; };
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return gain(a) > gain(b); });
        double f = 0, k = double(k_);
        for (const std::size_t i : order) {
            f += 2.0 * double(rows_) * k * c_.q[i];
            k = k / c_.p[i] * c_.q[i];
        }
        return f;
    }
    void line(FILE* csv, const char* peer, double ms, double error, double bound, const std::string& passes) const {
        if (csv == nullptr || ms <= 0) return;
        std::fprintf(csv, "%s,%s,%s,%.5f,%.1f,%.1f,%.2e,%.5f,%.3f,\"%s\"\n", c_.id.c_str(), name(), peer, ms,
                     flops() / ms * 1e-6, bytes_ / ms * 1e-6, error, bound, ms / bound, passes.c_str());
        std::fflush(csv);
    }

    const machine& m_;
    const settings& s_;
    const kron_case& c_;
    std::int64_t rows_, k_, l_;
    double bytes_;
    int sets_;
    std::int64_t x_bytes_, y_bytes_;
    device_block x_, y_;
    std::vector<otimes::DeviceMatrix<T, 1>> factors_;
    std::unique_ptr<device_block> packed_;
    otimes::device_kron<T> kron_;
    std::vector<double> w_, u_;
};

int program(int argc, char** argv) {
    settings s;
    if (argc > 1) s.root = argv[1];
    for (int i = 2; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--csv" && i + 1 < argc)
            s.csv = argv[++i];
        else if (a == "--only" && i + 1 < argc)
            s.only = argv[++i];
        else if (a == "--no-yardstick")
            s.yardstick = false;
        else if (a == "--columns")
            s.columns = true;
        else
            throw std::runtime_error("unknown option " + a);
    }
    std::string why;
    const otimes::device_executor* const gpu = otimes::find_gpu(&why);
    if (gpu == nullptr) throw std::runtime_error("no GPU: " + why);
    machine m;
    CU(cuInit(0));
    CUcontext context;
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    m.stream = gpu->stream();
    CU(cuEventCreate(&m.begin, 0));
    CU(cuEventCreate(&m.end, 0));
    const compiled check = compile(read_text(s.root + "/bench/gpu/check_kernels.cuh"), "", false);
    CUmodule module;
    CU(cuModuleLoadData(&module, check.cubin.data()));
    for (int t = 0; t < 2; ++t) {
        const std::string suffix = t ? "_f64" : "_f32";
        CU(cuModuleGetFunction(&m.fill[t], module, ("fill" + suffix).c_str()));
        CU(cuModuleGetFunction(&m.project[t], module, ("project" + suffix).c_str()));
        CU(cuModuleGetFunction(&m.entry[t], module, ("entry" + suffix).c_str()));
    }
    {  // The first second of a process is slower on the host: the driver's first use, clocks.
        const kron_case some{"", {4096, 4096}, {true, true}, {8}, {8}};
        measured_case<float> first(m, s, some);
        const double start = seconds_now();
        while (seconds_now() - start < 0.5) first.evaluate_once();
    }
    FILE* const csv = s.csv.empty() ? nullptr : std::fopen(s.csv.c_str(), "w");
    if (csv != nullptr) std::fprintf(csv, "id,dtype,peer,ms,gflops,gbps_min,relerr,bound_ms,x_bound,plan\n");
    for (const kron_case& c : read_cases(s.root + "/bench/cases/kron_cases.json")) {
        if (!s.only.empty() && c.id.find(s.only) == std::string::npos) continue;
        for (int t = 0; t < 2; ++t) {
            if (!c.types[t]) continue;
            settings here = s;
            here.columns = s.columns && (c.id.rfind("fig9", 0) == 0 || c.id == "tab4_07");
            try {
                if (t)
                    measured_case<double>(m, here, c).run(csv);
                else
                    measured_case<float>(m, here, c).run(csv);
            } catch (const std::exception& e) {
                std::printf("%-14s %s failed: %s\n", c.id.c_str(), t ? "f64" : "f32", e.what());
            }
        }
    }
    if (csv != nullptr) std::fclose(csv);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return program(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gpu_cases: %s\n", e.what());
        return 1;
    }
}

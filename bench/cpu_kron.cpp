// SPDX-License-Identifier: MIT
// Kronecker products on the CPU, timed side by side with what an Eigen user would write instead:
//
//   otimes        Y = X * kron(F1..FN), X row-major;  and Y = kron(..)^T * X, X column-major (the same memory)
//   eigen_chain   one GEMM per factor, last factor first, without transposes: X is seen as R x P, the product F^T * X^T is
//                 Q x R, and after the last factor the result lies transposed. Buffers are allocated beforehand.
//   eigen_dense   X times the materialised kroneckerProduct, where that fits; forming it is not timed
//   ceilings      multiply-adds in registers, and a copy through memory, on the same threads
//
// over the ids of baselines/cpu_peers_2core_spr.csv (`/m` in an id replaces M). No time is printed without its residual, which
// is against a chain of GEMMs in double. Peers alternate; medians. Bars scale with the measured peak.
//
//   cpu_kron [--threads n] [--csv file] [--only text] [--quick]
#include <Eigen/Core>
#include <unsupported/Eigen/KroneckerProduct>

#include <otimes/otimes.hpp>

#include "arguments.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

template <class Scalar>
using row_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Scalar>
using column_major = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

struct settings {
    int threads = 1;
    bool quick = false;
    std::string only;
    std::string csv;
};

struct kron_case {
    std::string id;
    Eigen::Index M = 0;
    std::vector<std::pair<Eigen::Index, Eigen::Index>> factors;
};

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Median times of several bodies, taken in turn.
template <class... Bodies>
std::vector<double> time_in_turn(bool quick, Bodies&&... bodies) {
    constexpr std::size_t count = sizeof...(Bodies);
    std::vector<std::vector<double>> samples(count);
    std::vector<int> repeats(count, 1);
    const auto once = [](auto& body, int n) {
        const double start = seconds_now();
        for (int i = 0; i < n; ++i) {
            body();
        }
        return (seconds_now() - start) / n;
    };
    std::size_t k = 0;
    const auto calibrate = [&](auto& body) {
        body();
        const double t = once(body, 1);
        repeats[k++] = std::max(1, static_cast<int>(std::min(2000.0, 1e-3 / std::max(t, 1e-9))));
    };
    (calibrate(bodies), ...);
    const double budget = quick ? 0.2 : 1.0;
    const double start = seconds_now();
    for (int round = 0; round < 5 || (round < 31 && seconds_now() - start < budget); ++round) {
        k = 0;
        const auto sample = [&](auto& body) {
            samples[k].push_back(once(body, repeats[k]));
            ++k;
        };
        (sample(bodies), ...);
        if (quick && round >= 2 && seconds_now() - start > budget) {
            break;
        }
    }
    std::vector<double> result;
    for (auto& s : samples) {
        result.push_back(median(std::move(s)));
    }
    return result;
}

// Number after `key` in a line of the case file.
Eigen::Index number_after(const std::string& line, const std::string& key) {
    const std::size_t at = line.find(key);
    return at == std::string::npos
               ? 0
               : static_cast<Eigen::Index>(std::strtoll(line.c_str() + at + key.size(), nullptr, 10));
}

// The cases of the ids in the baseline file, in its order.
std::vector<kron_case> read_cases(const std::string& folder) {
    std::vector<std::string> lines;
    std::ifstream cases(folder + "/cases/kron_cases.json");
    for (std::string line; std::getline(cases, line);) {
        lines.push_back(line);
    }
    std::vector<kron_case> result;
    std::ifstream peers(folder + "/baselines/cpu_peers_2core_spr.csv");
    std::string line;
    std::getline(peers, line);
    while (std::getline(peers, line)) {
        kron_case c;
        c.id = line.substr(0, line.find(','));
        if (c.id.rfind("peak", 0) == 0 ||
            std::any_of(result.begin(), result.end(), [&](const kron_case& seen) { return seen.id == c.id; })) {
            continue;
        }
        const std::size_t slash = c.id.find('/');
        const std::string name = c.id.substr(0, slash);
        for (const std::string& text : lines) {
            if (text.find("\"id\": \"" + name + "\"") == std::string::npos) {
                continue;
            }
            c.M = slash == std::string::npos ? number_after(text, "\"M\": ") : std::stoll(c.id.substr(slash + 1));
            std::size_t at = text.find("\"factors\": [") + std::strlen("\"factors\": [");
            while (at < text.size() && text[at] != ']') {
                if (text[at] == '[') {
                    char* end = nullptr;
                    const Eigen::Index P = std::strtoll(text.c_str() + at + 1, &end, 10);
                    c.factors.emplace_back(P, std::strtoll(end + 1, &end, 10));
                    at = static_cast<std::size_t>(end - text.c_str());
                }
                ++at;
            }
        }
        if (c.M > 0) {
            result.push_back(c);
        }
    }
    return result;
}

kron_case power(const std::string& id, Eigen::Index M, Eigen::Index P, std::size_t count) {
    return {id, M, std::vector<std::pair<Eigen::Index, Eigen::Index>>(count, {P, P})};
}

// Multiply-adds of the case, as the case file defines them: last factor first.
double flops_of(const kron_case& c) {
    double columns = 1;
    for (const auto& f : c.factors) {
        columns *= static_cast<double>(f.first);
    }
    double flops = 0;
    for (std::size_t i = c.factors.size(); i-- > 0;) {
        const auto P = static_cast<double>(c.factors[i].first);
        columns = columns / P * static_cast<double>(c.factors[i].second);
        flops += 2.0 * static_cast<double>(c.M) * columns * P;
    }
    return flops;
}

// One GEMM per factor; see the top of the file. The result of `run` is L x M, row-major.
template <class Scalar>
class eigen_chain {
public:
    eigen_chain(const std::vector<row_major<Scalar>>& factors, Eigen::Index most_rows) : factors_(factors) {
        Eigen::Index columns = 1;
        for (const auto& f : factors) {
            columns *= f.rows();
        }
        Eigen::Index largest = columns;
        for (std::size_t i = factors.size(); i-- > 0;) {
            columns = columns / factors[i].rows() * factors[i].cols();
            largest = std::max(largest, columns);
        }
        for (auto& buffer : buffers_) {
            buffer.setZero(largest * most_rows);
        }
    }
    const Scalar* run(const Scalar* x, Eigen::Index elements) {
        using map = Eigen::Map<row_major<Scalar>>;
        using const_map = Eigen::Map<const row_major<Scalar>>;
        int next = 0;
        for (std::size_t i = factors_.size(); i-- > 0;) {
            const row_major<Scalar>& f = factors_[i];
            const Eigen::Index rest = elements / f.rows();
            Scalar* const y = buffers_[next].data();
            map(y, f.cols(), rest).noalias() = f.transpose() * const_map(x, rest, f.rows()).transpose();
            elements = rest * f.cols();
            x = y;
            next ^= 1;
        }
        return x;
    }

private:
    const std::vector<row_major<Scalar>>& factors_;
    Eigen::Matrix<Scalar, Eigen::Dynamic, 1> buffers_[2];
};

// Largest error of y (M x L, any storage) against the chain in double, relative to the largest value.
template <class Scalar, class Y>
double residual(const row_major<Scalar>& x, const std::vector<row_major<Scalar>>& factors, const Y& y) {
    std::vector<row_major<double>> wide;
    for (const auto& f : factors) {
        wide.push_back(f.template cast<double>());
    }
    const Eigen::Index block =
        std::max<Eigen::Index>(1, std::min<Eigen::Index>(x.rows(), (1 << 22) / std::max<Eigen::Index>(1, x.cols())));
    eigen_chain<double> oracle(wide, block);
    double worst = 0, largest = 1e-300;
    for (Eigen::Index row = 0; row < x.rows(); row += block) {
        const Eigen::Index rows = std::min(block, x.rows() - row);
        const row_major<double> part = x.middleRows(row, rows).template cast<double>();
        const Eigen::Map<const row_major<double>> want(oracle.run(part.data(), part.size()), y.cols(), rows);
        largest = std::max(largest, want.cwiseAbs().maxCoeff());
        const double off = (y.middleRows(row, rows).template cast<double>() - want.transpose()).cwiseAbs().maxCoeff();
        worst = off <= worst ? worst : off;  // a NaN stays
    }
    return worst / largest;
}

// The compiler neither knows what v holds afterwards nor may leave out how it came about.
template <class Vector>
inline void keep_in_register(Vector& v) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(v));
#elif defined(__x86_64__)
    asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(v));
#else
    [[maybe_unused]] const volatile Vector read = v;
#endif
}

// Multiply-adds per second in registers, all threads.
template <class Scalar>
double measured_peak(int threads) {
    using namespace otimes::cpu_detail;
    using simd_t = simd<Scalar>;
    double best = 0;
    constexpr int chains = 10;
    constexpr int steps = 1 << 20;
    for (int round = 0; round < 12; ++round) {
        const double start = seconds_now();
#pragma omp parallel num_threads(threads)
        {
            typename simd_t::type sum[chains];
            typename simd_t::type a = simd_t::broadcast(Scalar(0.999)), b = simd_t::broadcast(Scalar(0.001));
            OTIMES_UNROLL
            for (int k = 0; k < chains; ++k) {
                sum[k] = simd_t::broadcast(static_cast<Scalar>(k));  // equal chains would become one
                keep_in_register(sum[k]);
            }
            keep_in_register(a);
            keep_in_register(b);
            for (int i = 0; i < steps; ++i) {
                OTIMES_UNROLL
                for (int k = 0; k < chains; ++k) {
                    sum[k] = simd_t::multiply_add(sum[k], a, b);
                    keep_in_register(sum[k]);
                }
            }
        }
        best = std::max(best, 2.0 * steps * chains * simd_t::width * threads / (seconds_now() - start));
    }
    return best;
}

// Bytes per second, read + written, of a copy through memory.
double measured_copy([[maybe_unused]] int threads) {
    const std::size_t bytes = std::size_t{64} << 20;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    double best = 0;
    for (int round = 0; round < 5; ++round) {
        const double start = seconds_now();
#pragma omp parallel for num_threads(threads)
        for (int part = 0; part < 64; ++part) {
            std::memcpy(to.data() + (bytes / 64) * static_cast<std::size_t>(part),
                        from.data() + (bytes / 64) * static_cast<std::size_t>(part), bytes / 64);
        }
        best = std::max(best, 2.0 * static_cast<double>(bytes) / (seconds_now() - start));
    }
    return best;
}

struct ceilings {
    double peak = 1, copy = 1;
};

struct outcome {
    std::string id;
    double flops = 0, rows_seconds = 0, columns_seconds = 0, chain_seconds = 0, column_major_ratio = 0;
};

class report {
public:
    explicit report(const std::string& csv) {
        if (!csv.empty()) {
            file_.open(csv);
            file_ << "id,dtype,peer,ms,gflops,gbps_min,relerr\n";
        }
    }
    void row(const std::string& id, const char* type, const char* peer, double seconds, double flops, double bytes,
             double error) {
        if (file_.is_open()) {
            char text[256];
            std::snprintf(text, sizeof(text), "%s,%s,%s,%.6f,%.2f,%.2f,%.1e\n", id.c_str(), type, peer, seconds * 1e3,
                          flops / seconds * 1e-9, bytes / seconds * 1e-9, error);
            file_ << text;
        }
    }

private:
    std::ofstream file_;
};

template <class Scalar>
outcome run_case(const kron_case& c, const settings& s, const ceilings& top, report& out) {
    const char* const type = sizeof(Scalar) == 4 ? "f32" : "f64";
    Eigen::Index K = 1, L = 1;
    for (const auto& f : c.factors) {
        K *= f.first;
        L *= f.second;
    }
    std::srand(7);
    const row_major<Scalar> X = row_major<Scalar>::Random(c.M, K);
    const column_major<Scalar> Xt = X.transpose();
    const column_major<Scalar> Xc = X;
    row_major<Scalar> Y = row_major<Scalar>::Constant(c.M, L, std::numeric_limits<Scalar>::quiet_NaN());
    column_major<Scalar> Yt = column_major<Scalar>::Constant(L, c.M, std::numeric_limits<Scalar>::quiet_NaN());
    column_major<Scalar> Yc = column_major<Scalar>::Constant(c.M, L, std::numeric_limits<Scalar>::quiet_NaN());
    std::vector<row_major<Scalar>> factors;
    for (const auto& f : c.factors) {
        factors.push_back(row_major<Scalar>::Random(f.first, f.second));
    }
    const auto product = otimes::kron(factors);
    eigen_chain<Scalar> chain(factors, c.M);
    const Scalar* chained = nullptr;

    const auto rows = [&] { Y.noalias() = X * product; };
    const auto columns = [&] { Yt.noalias() = product.transpose() * Xt; };
    const auto columns_right = [&] { Yc.noalias() = Xc * product; };
    const auto peer = [&] { chained = chain.run(X.data(), X.size()); };
    // Validation first, outside the timed loops.
    rows();
    columns();
    columns_right();
    peer();
    const double error = residual(X, factors, Y);
    const double error_columns = residual(X, factors, Yt.transpose());
    const double error_right = residual(X, factors, Yc);
    const double error_chain = residual(X, factors, Eigen::Map<const row_major<Scalar>>(chained, L, c.M).transpose());
    const std::vector<double> t = time_in_turn(s.quick, rows, peer, columns, columns_right);

    const double flops = flops_of(c);
    double bytes = static_cast<double>(X.size() + Y.size()) * sizeof(Scalar);
    for (const auto& f : factors) {
        bytes += static_cast<double>(f.size()) * sizeof(Scalar);
    }
    const double least = std::min(flops, static_cast<double>(otimes::make_plan(X * product).flops));
    const double bound = std::max(least / top.peak, bytes / top.copy);
    std::printf(
        "%-16s %s otimes %10.4f ms %7.1f GFLOP/s %4.0f %% of bound %.1e | K^T X %10.4f ms %.1e | chain %10.4f ms %6.1f "
        "%.1e "
        "| x%5.2f x%5.2f | X K col/row %.2f %.1e",
        c.id.c_str(), type, t[0] * 1e3, flops / t[0] * 1e-9, 100 * bound / t[0], error, t[2] * 1e3, error_columns,
        t[1] * 1e3, flops / t[1] * 1e-9, error_chain, t[1] / t[0], t[1] / t[2], t[3] / t[0], error_right);
    out.row(c.id, type, "otimes", t[0], flops, bytes, error);
    out.row(c.id, type, "otimes_columns", t[2], flops, bytes, error_columns);
    out.row(c.id, type, "otimes_column_major_x", t[3], flops, bytes, error_right);
    out.row(c.id, type, "eigen_chain", t[1], flops, bytes, error_chain);
    if (K <= 4096 && L <= 4096) {
        row_major<Scalar> dense = factors[0];
        for (std::size_t i = 1; i < factors.size(); ++i) {
            dense = row_major<Scalar>(Eigen::kroneckerProduct(dense, factors[i]));
        }
        row_major<Scalar> Yd(c.M, L);
        const auto materialised = [&] { Yd.noalias() = X * dense; };
        const double td = time_in_turn(true, materialised)[0];
        const double error_dense = residual(X, factors, Yd);
        std::printf(" | dense %.4f ms %.1e", td * 1e3, error_dense);
        out.row(c.id, type, "eigen_dense", td, flops, bytes, error_dense);
    }
    std::printf("\n");
    std::fflush(stdout);
    return {c.id, flops, t[0], t[2], t[1], t[3] / t[0]};
}

int failures = 0;
void bar(const char* what, double value, double limit, bool at_least) {
    const bool met = at_least ? value >= limit : value <= limit;
    failures += met ? 0 : 1;
    std::printf("%-6s %-58s %9.2f   (bar: %s %.2f)\n", met ? "met" : "MISSED", what, value,
                at_least ? "at least" : "at most", limit);
}

template <class Scalar>
void run_type(const std::vector<kron_case>& cases, const settings& s, report& out) {
    const char* const type = sizeof(Scalar) == 4 ? "f32" : "f64";
    ceilings top;
    top.peak = measured_peak<Scalar>(s.threads);
    top.copy = measured_copy(s.threads);
    std::printf("\n%s, %d thread(s), %s: multiply-adds %.1f GFLOP/s, copy %.1f GB/s (read + written)\n", type,
                s.threads, std::string(otimes::cpu().name()).c_str(), top.peak * 1e-9, top.copy * 1e-9);
    std::vector<outcome> all;
    double log_rows = 0, log_columns = 0, lowest = 1e9, worst_ratio = 0;
    for (const kron_case& c : cases) {
        if (!s.only.empty() && c.id.find(s.only) == std::string::npos) {
            continue;
        }
        all.push_back(run_case<Scalar>(c, s, top, out));
        const outcome& o = all.back();
        log_rows += std::log(o.chain_seconds / o.rows_seconds);
        log_columns += std::log(o.chain_seconds / o.columns_seconds);
        lowest = std::min({lowest, o.chain_seconds / o.rows_seconds, o.chain_seconds / o.columns_seconds});
        worst_ratio = std::max(worst_ratio, o.column_major_ratio);
    }
    if (all.empty()) {
        return;
    }
    const double count = static_cast<double>(all.size());
    std::printf("\n%s against the bars (scaled by the peak where they are rates)\n", type);
    bar("geometric mean over eigen_chain, row-major X * K", std::exp(log_rows / count), 2.5, true);
    bar("geometric mean over eigen_chain, column-major K^T * X", std::exp(log_columns / count), 2.5, true);
    bar("lowest speed-up over eigen_chain", lowest, 0.95, true);
    bar("largest time of column-major X * K over row-major", worst_ratio, 1.3, false);
    if (sizeof(Scalar) == 4) {
        const double scale = top.peak / 350e9;
        const struct {
            const char* id;
            double gflops;
        } rates[] = {{"fig9_8^5/", 125}, {"fig9_16^4/", 155}, {"fig9_32^3/", 210}, {"fig9_64^2/", 240}};
        for (const auto& rate : rates) {
            for (const outcome& o : all) {
                if (o.id.rfind(rate.id, 0) == 0) {
                    bar((o.id + " GFLOP/s").c_str(), o.flops / o.rows_seconds * 1e-9, rate.gflops * scale, true);
                }
            }
        }
    }
    if (!s.only.empty()) {
        return;
    }
    std::printf("\n%s, one P against another: about the same number of elements\n", type);
    const outcome eight = run_case<Scalar>(power("P8", 512, 8, 4), s, top, out);
    const struct {
        Eigen::Index P;
        Eigen::Index M;
        std::size_t count;
    } odd[] = {{3, 960, 7}, {5, 672, 5}, {6, 270, 5}, {7, 873, 4}};
    for (const auto& o : odd) {
        const outcome one = run_case<Scalar>(power("P" + std::to_string(o.P), o.M, o.P, o.count), s, top, out);
        bar(("time per flop at P = " + std::to_string(o.P) + " over P = 8").c_str(),
            (one.rows_seconds / one.flops) / (eight.rows_seconds / eight.flops), 1.6, false);
    }
    {
        std::printf("\n%s, K * v\n", type);
        for (const kron_case& c : {power("8^6 v", 1, 8, 6), power("32^4 v", 1, 32, 4), power("3^10 v", 1, 3, 10)}) {
            run_case<Scalar>(c, s, top, out);
        }
    }
    {
        const row_major<Scalar> x = row_major<Scalar>::Random(1, 4), a = row_major<Scalar>::Random(2, 2),
                                b = row_major<Scalar>::Random(2, 2);
        row_major<Scalar> y(1, 4);
        const auto tiny = [&] { y.noalias() = x * otimes::kron(a, b); };
        const double t = time_in_turn(s.quick, tiny)[0];
        std::printf("\n");
        bar("a whole expression of 32 flops, microseconds", t * 1e6, 1.0, false);
    }
}

}  // namespace

int main(int argc, char** argv) {
    settings s;
#ifdef _OPENMP
    s.threads = omp_get_max_threads();
#endif
    const otimes::bench::arguments words(argc, argv, "cpu_kron [--threads n] [--csv file] [--only text] [--quick]",
                                         argc);
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--quick") {
            s.quick = true;
        } else if (i + 1 < argc && word == "--threads") {
            s.threads = static_cast<int>(words.whole(argv[++i], 1));
        } else if (i + 1 < argc && word == "--csv") {
            s.csv = argv[++i];
        } else if (i + 1 < argc && word == "--only") {
            s.only = argv[++i];
        } else {
            words.refuse();
        }
    }
#ifdef _OPENMP
    omp_set_num_threads(s.threads);
#else
    s.threads = 1;
#endif
    Eigen::setNbThreads(s.threads);
    const std::vector<kron_case> cases = read_cases(OTIMES_BENCH_DIR);
    if (cases.empty()) {
        std::printf("no cases found under %s\n", OTIMES_BENCH_DIR);
        return 2;
    }
    report out(s.csv);
    run_type<float>(cases, s, out);
    run_type<double>(cases, s, out);
    std::printf("\n%d bar(s) missed\n", failures);
    return 0;
}

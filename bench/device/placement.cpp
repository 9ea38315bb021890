// SPDX-License-Identifier: MIT
// Does the planner place products where they run fastest? Forty shapes from host and from device operands: the time that
// make_executor() takes against the faster of the CPU and the GPU, and what the planner predicted.
//
//   placement [OUTPUT.csv]
//
// Columns: id, dtype, rows, operands, us_cpu, us_gpu, us_automatic, ratio, chosen, predicted_cpu_us, predicted_gpu_us.
// Operands in device memory on the CPU: copied to the host, multiplied there, and copied back.
#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>
#include <otimes/plan/planner.hpp>

#include "../arguments.hpp"

namespace {

using otimes::kron;
using otimes::placement;

struct product {
    std::int64_t rows;
    std::vector<std::pair<int, int>> factors;
    bool doubles;
};

std::vector<product> products() {
    const auto power = [](std::int64_t rows, int n, int count, bool doubles = false) {
        return product{rows, std::vector<std::pair<int, int>>(static_cast<std::size_t>(count), {n, n}), doubles};
    };
    return {power(1, 2, 4),
            power(1, 8, 3),
            power(1, 16, 4),
            power(1, 16, 5),
            power(1, 64, 3),
            power(1, 128, 3),
            power(1, 2, 20),
            power(4, 3, 5, true),
            power(10, 5, 3),
            power(16, 2, 10),
            power(16, 8, 4),
            power(16, 64, 2),
            power(16, 32, 3, true),
            power(16, 64, 3),
            power(20, 2, 7),
            power(32, 128, 2),
            power(50, 10, 3, true),
            power(64, 8, 5),
            power(64, 32, 2),
            power(64, 16, 3),
            power(100, 4, 6),
            power(100, 12, 4, true),
            power(128, 128, 2),
            power(256, 4, 4),
            power(256, 32, 3),
            power(256, 64, 2, true),
            power(512, 8, 4),
            power(1000, 3, 7),
            power(1024, 8, 3),
            power(1024, 16, 3),
            power(1024, 8, 5),
            power(1024, 64, 2),
            power(4096, 128, 1),
            power(10000, 2, 3),
            power(20000, 6, 3),
            {10, {{5, 5}, {2, 2}, {65, 20}}, false},
            {50, {{2, 36}, {50, 20}}, false},
            {1024, {{52, 50}, {65, 20}}, false},
            {64, {{52, 50}, {65, 20}, {9, 12}}, true},
            {2000, {{7, 31}, {30, 5}, {4, 9}}, false}};
}

std::string text_of(const product& p) {
    std::string text;
    for (std::size_t i = 0; i < p.factors.size(); ++i) {
        text += i > 0 ? "_" : "";
        text += std::to_string(p.factors[i].first);
        text += "x";
        text += std::to_string(p.factors[i].second);
        std::size_t same = i;
        while (same + 1 < p.factors.size() && p.factors[same + 1] == p.factors[i]) {
            ++same;
        }
        if (same > i) {
            text += "^";
            text += std::to_string(same - i + 1);
            i = same;
        }
    }
    return text;
}

/// Medians of several ways to do the same. Each way runs a few times in a row, as a program would run it, the first of them
/// uncounted: threads of another way may still be spinning, and its data in the caches. The blocks take turns.
template <class... Ways>
std::vector<double> medians(const Ways&... ways) {
    using clock = std::chrono::steady_clock;
    std::vector<std::vector<double>> times(sizeof...(ways));
    const auto begin = clock::now();
    for (int round = 0; round < 3 || (round < 12 && clock::now() - begin < std::chrono::milliseconds(150)); ++round) {
        std::size_t i = 0;
        const auto measure = [&](const auto& way) {
            std::this_thread::sleep_for(std::chrono::milliseconds(6));
            way();
            way();
            const auto block = clock::now();
            for (int run = 0; run < 3 || (run < 40 && clock::now() - block < std::chrono::milliseconds(4)); ++run) {
                const auto from = clock::now();
                way();
                times[i].push_back(std::chrono::duration<double, std::micro>(clock::now() - from).count());
            }
            ++i;
        };
        (measure(ways), ...);
        if (clock::now() - begin > std::chrono::milliseconds(800)) {
            break;
        }
    }
    std::vector<double> result;
    for (auto& t : times) {
        std::sort(t.begin(), t.end());
        result.push_back(t[t.size() / 2]);
    }
    return result;
}

struct tally {
    int within = 0;
    int all = 0;
};

template <class Scalar>
void run(const product& p, std::FILE* out, tally& host, tally& device) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    std::vector<matrix> factors;
    Eigen::Index inputs = 1;
    Eigen::Index outputs = 1;
    for (const auto& [rows, cols] : p.factors) {
        factors.push_back(matrix::Random(rows, cols));
        inputs *= rows;
        outputs *= cols;
    }
    const matrix X = matrix::Random(p.rows, inputs);
    matrix Y(p.rows, outputs);
    const auto K = kron(factors);
    const auto Z = X * K;
    const otimes::executor& automatic = otimes::make_executor();
    const otimes::device_executor& gpu = otimes::gpu();
    const auto predicted = [&](placement where) {
        return otimes::make_plan(Z, {.placement = where}, automatic.target()).predicted_seconds * 1e6;
    };
    const auto report = [&](const char* operands, const std::vector<double>& us, const char* chosen, tally& t) {
        const double ratio = us[2] / std::min(us[0], us[1]);
        t.within += ratio <= 1.15 ? 1 : 0;
        ++t.all;
        std::fprintf(out, "%s,%s,%lld,%s,%.2f,%.2f,%.2f,%.3f,%s,%.2f,%.2f\n", text_of(p).c_str(),
                     sizeof(Scalar) == 4 ? "f32" : "f64", static_cast<long long>(p.rows), operands, us[0], us[1], us[2],
                     ratio, chosen, predicted(placement::cpu), predicted(placement::gpu));
        std::fflush(out);
    };
    const otimes::plan chosen = otimes::make_plan(Z, {}, automatic.target());
    report("host",
           medians([&] { otimes::on(otimes::cpu(), Y) = X * K; }, [&] { otimes::on(gpu, Y) = X * K; },
                   [&] { otimes::on(automatic, Y) = X * K; }),
           chosen.where == placement::cpu ? "cpu" : "gpu", host);

    const otimes::DeviceMatrix<Scalar, Eigen::RowMajor> dX(X);
    otimes::DeviceMatrix<Scalar, Eigen::RowMajor> dY(p.rows, outputs);
    std::vector<otimes::DeviceMatrix<Scalar, Eigen::RowMajor>> d(factors.begin(), factors.end());
    const auto dK = kron(d);
    report("device",
           medians(
               [&] {
                   const matrix x = dX.to_host();
                   otimes::on(otimes::cpu(), Y) = x * K;
                   dY = Y;
                   gpu.synchronize();
               },
               [&] {
                   otimes::on(gpu, dY) = dX * dK;
                   gpu.synchronize();
               },
               [&] {
                   const otimes::scoped_executor scope(automatic);
                   dY = dX * dK;
                   gpu.synchronize();
               }),
           "gpu", device);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "placement [OUTPUT.csv]", 1);
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        return 0;
    }
    std::FILE* const out = words.output(1);
    std::fprintf(out,
                 "id,dtype,rows,operands,us_cpu,us_gpu,us_automatic,ratio,chosen,predicted_cpu_us,predicted_gpu_us\n");
    tally host;
    tally device;
    for (const product& p : products()) {
        p.doubles ? run<double>(p, out, host, device) : run<float>(p, out, host, device);
    }
    std::fprintf(stderr, "within 1.15 of the faster: %d of %d from the host, %d of %d from the device\n", host.within,
                 host.all, device.within, device.all);
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// Products over complex scalars in device memory, dY = dX * kron(dF1..dFN), by rows and by columns.
//
//   complex_gpu [OUTPUT.csv [CASE]]       CASE: only the rows whose name begins so
//
// Columns: case,dtype,order,rows,ms,copy_ms,bound_ms,x_bound,relerr,plan. copy_ms: a device copy of X in the same run. bound: max(copy, least
// flops / 102 (complex float) or 66 (complex double) TFLOP/s), a complex multiply-add counted as four real ones. X is larger than the caches;
// medians of 9. relerr: of the first rows, against the cpu executor in double.
#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

namespace {

constexpr std::int64_t operand_bytes = std::int64_t{1} << 27;

double milliseconds_of(const std::function<void()>& work, int count) {
    otimes::gpu().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < count; ++k) {
        work();
    }
    otimes::gpu().synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / count;
}

double median_of(const std::function<void()>& work) {
    milliseconds_of(work, 2);
    std::vector<double> times;
    for (int repeat = 0; repeat < 9; ++repeat) {
        times.push_back(milliseconds_of(work, 4));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

struct kron_case {
    const char* name;
    std::vector<int> p;
};

template <class Scalar, int Order>
void measure(std::FILE* out, const kron_case& c) {
    using matrix =
        Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order == 1 ? Eigen::RowMajor : Eigen::ColMajor>;
    using exact = Eigen::Matrix<std::complex<double>, Eigen::Dynamic, Eigen::Dynamic>;
    Eigen::Index columns = 1;
    double flops_per_element = 0;
    for (const int p : c.p) {
        columns *= p;
        flops_per_element += 8.0 * p;
    }
    const Eigen::Index rows = operand_bytes / static_cast<Eigen::Index>(sizeof(Scalar)) / columns;
    const Eigen::Index checked = std::min<Eigen::Index>(rows, std::max<Eigen::Index>(1, 65536 / columns));
    std::vector<exact> factors;
    std::vector<otimes::DeviceMatrix<Scalar, Order>> device_factors;
    for (const int p : c.p) {
        const matrix f = matrix::Random(p, p) / static_cast<typename Scalar::value_type>(std::sqrt(p * 2.0 / 3.0));
        factors.emplace_back(f.template cast<std::complex<double>>());
        device_factors.emplace_back(f);
    }
    static const Eigen::VectorX<Scalar> entries = Eigen::VectorX<Scalar>::Random(operand_bytes / sizeof(Scalar));
    const Eigen::Map<const matrix> x(entries.data(), rows, columns);
    const otimes::DeviceMatrix<Scalar, Order> dX(x);
    otimes::DeviceMatrix<Scalar, Order> dY(rows, columns);
    const auto K = otimes::kron(device_factors);
    dY = dX * K;
    const matrix y = dY.to_host();
    const exact expected = exact(x.topRows(checked).template cast<std::complex<double>>()) * otimes::kron(factors);
    const double error = (y.topRows(checked).template cast<std::complex<double>>() - expected).norm() / expected.norm();
    const double ms = median_of([&] { dY.noalias() = dX * K; });
    const double copy = median_of([&] { dY = dX; });
    constexpr bool single = std::is_same_v<Scalar, std::complex<float>>;
    const double bound =
        std::max(copy, flops_per_element * static_cast<double>(rows * columns) / (single ? 102e12 : 66e12) * 1e3);
    std::string passes;
    for (const otimes::pass& one : otimes::make_plan<Order>(dX * K).passes) {
        const bool outer = one.kernel == otimes::pass_kernel::gpu_outer;
        passes += (passes.empty() ? "" : " | ") +
                  (one.tile.trips.empty() ? std::string("generic")
                                          : (outer ? "O " : "T ") + otimes::planning::text_of_tile(one.tile, outer));
    }
    std::fprintf(out, "%s,%s,%s,%lld,%.4f,%.4f,%.4f,%.2f,%.1e,\"%s\"\n", c.name, single ? "c64" : "c128",
                 Order == 1 ? "rows" : "columns", static_cast<long long>(rows), ms, copy, bound, ms / bound, error,
                 passes.c_str());
    std::fflush(out);
}

}  // namespace

int main(int argc, char** argv) try {
    const std::vector<kron_case> cases = {{"2^10", std::vector<int>(10, 2)},
                                          {"2^20", std::vector<int>(20, 2)},
                                          {"3^7", std::vector<int>(7, 3)},
                                          {"4^3", {4, 4, 4}},
                                          {"4^6", std::vector<int>(6, 4)},
                                          {"4^7", std::vector<int>(7, 4)},
                                          {"5^5", std::vector<int>(5, 5)},
                                          {"7^3", {7, 7, 7}},
                                          {"8^3", {8, 8, 8}},
                                          {"8^5", std::vector<int>(5, 8)},
                                          {"10^3", {10, 10, 10}},
                                          {"16^2", {16, 16}},
                                          {"16^3", {16, 16, 16}},
                                          {"16^4", {16, 16, 16, 16}},
                                          {"32^2", {32, 32}},
                                          {"32^3", {32, 32, 32}},
                                          {"64^2", {64, 64}},
                                          {"64^3", {64, 64, 64}},
                                          {"128^2", {128, 128}}};
    std::FILE* const out = argc > 1 ? std::fopen(argv[1], "w") : stdout;
    if (out == nullptr) {
        std::fprintf(stderr, "complex_gpu: %s cannot be written\n", argv[1]);
        return 1;
    }
    std::fputs("case,dtype,order,rows,ms,copy_ms,bound_ms,x_bound,relerr,plan\n", out);
    for (const kron_case& c : cases) {
        if (argc > 2 && std::string_view(c.name).substr(0, std::string_view(argv[2]).size()) != argv[2]) {
            continue;
        }
        measure<std::complex<float>, 1>(out, c);
        measure<std::complex<double>, 1>(out, c);
        measure<std::complex<float>, 0>(out, c);
        measure<std::complex<double>, 0>(out, c);
    }
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
} catch (const std::exception& e) {
    std::fprintf(stderr, "complex_gpu: %s\n", e.what());
    return 1;
}

// SPDX-License-Identifier: MIT
// Products over scalars other than float and double, or of floats by single TF32 products, in device memory: dY = dX * kron(dF1..dFN), by rows and
// by columns.
//
//   scalars_gpu [OUTPUT.csv [TYPES [CASE]]]
//
// TYPES: of c64, c128, f16, bf16 and tf32 (float, precision::tf32), joined by commas; all: no choice. CASE: only the rows whose name begins so.
// OTIMES_BENCH_TUNE=1: each product is tuned first.
//
// Columns: case,dtype,order,rows,ms,copy_ms,bound_ms,x_bound,relerr,plan. copy_ms: a device copy of X in the same run. bound: max(copy, least
// flops / 102 (complex float), 306 (tf32) or 66 (complex double) TFLOP/s), a complex multiply-add counted as four real ones; of 16-bit elements
// the copy. X is larger than the caches, its rows a multiple of 16 where there are so many; medians of 9. relerr: of the first rows, against the
// cpu executor in double from the same factors and X.
#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "../arguments.hpp"
#include "milliseconds.hpp"

namespace {

constexpr std::int64_t operand_bytes = std::int64_t{1} << 27;

using otimes::bench::milliseconds_of;

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

/// A scalar on the host: as it is, or 16 bits as the floats that they are computed in.
template <class Scalar>
struct host_of {
    using type = Scalar;
    using exact = std::complex<double>;
};
template <>
struct host_of<float> {
    using type = float;
    using exact = double;
};
template <>
struct host_of<otimes::half> : host_of<float> {};
template <>
struct host_of<otimes::bfloat16> : host_of<float> {};

template <class Scalar, int Order>
void measure(std::FILE* out, const kron_case& c, const char* type) {
    using host = typename host_of<Scalar>::type;
    constexpr int storage_order = Order == 1 ? Eigen::RowMajor : Eigen::ColMajor;
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, storage_order>;
    using wide_matrix = Eigen::Matrix<host, Eigen::Dynamic, Eigen::Dynamic>;
    using exact_scalar = typename host_of<Scalar>::exact;
    using exact = Eigen::Matrix<exact_scalar, Eigen::Dynamic, Eigen::Dynamic>;
    Eigen::Index columns = 1;
    double flops_per_element = 0;
    for (const int p : c.p) {
        columns *= p;
        flops_per_element += (Eigen::NumTraits<host>::IsComplex ? 8.0 : 2.0) * p;
    }
    Eigen::Index rows = operand_bytes / static_cast<Eigen::Index>(sizeof(Scalar)) / columns;
    rows -= rows > 16 ? rows % 16 : 0;
    const Eigen::Index checked = std::min<Eigen::Index>(rows, std::max<Eigen::Index>(1, 65536 / columns));
    std::vector<exact> factors;
    std::vector<otimes::DeviceMatrix<Scalar, Order>> device_factors;
    for (const int p : c.p) {
        const double variance = Eigen::NumTraits<host>::IsComplex ? 2.0 / 3.0 : 1.0 / 3.0;  // of a random element
        const auto length = static_cast<typename Eigen::NumTraits<host>::Real>(std::sqrt(p * variance));
        const matrix f = wide_matrix(wide_matrix::Random(p, p) / length).template cast<Scalar>();
        factors.emplace_back(f.template cast<host>().template cast<exact_scalar>());
        device_factors.emplace_back(f);
    }
    static const Eigen::VectorX<Scalar> entries =
        Eigen::VectorX<host>::Random(operand_bytes / sizeof(Scalar)).template cast<Scalar>();
    const Eigen::Map<const matrix> x(entries.data(), rows, columns);
    const otimes::DeviceMatrix<Scalar, Order> dX(x);
    otimes::DeviceMatrix<Scalar, Order> dY(rows, columns);
    const auto K = otimes::kron(device_factors);
    if (std::getenv("OTIMES_BENCH_TUNE") != nullptr) {
        otimes::tune(dX * K);
    }
    otimes::options wishes;
    wishes.precision = std::is_same_v<Scalar, float> ? otimes::precision::tf32 : otimes::precision::standard;
    const otimes::plan plan = otimes::make_plan<Order>(dX * K, wishes);
    plan.run(dY, dX * K);
    const auto exactly = [&](const auto& m) {
        return exact(m.topRows(checked).template cast<host>().template cast<exact_scalar>());
    };
    const exact expected = exactly(x) * otimes::kron(factors);
    const double error = (exactly(dY.to_host()) - expected).norm() / expected.norm();
    const double ms = median_of([&] { plan.run(dY, dX * K); });
    const double copy = median_of([&] { dY = dX; });
    const otimes::dtype scalar = otimes::dtype_of<Scalar>();
    const double rate = scalar == otimes::dtype::c64    ? 102e12
                        : scalar == otimes::dtype::c128 ? 66e12
                        : scalar == otimes::dtype::f32  ? 306e12
                                                        : 1e30;
    const double bound = std::max(copy, flops_per_element * static_cast<double>(rows * columns) / rate * 1e3);
    std::string passes;
    for (const otimes::pass& one : plan.passes) {
        const bool outer = one.kernel == otimes::pass_kernel::gpu_outer;
        passes += (passes.empty() ? "" : " | ") +
                  (one.tile.trips.empty() ? std::string("generic")
                                          : (outer ? "O " : "T ") + otimes::planning::text_of_tile(one.tile, outer));
    }
    std::fprintf(out, "%s,%s,%s,%lld,%.4f,%.4f,%.4f,%.2f,%.1e,\"%s\"\n", c.name, type, Order == 1 ? "rows" : "columns",
                 static_cast<long long>(rows), ms, copy, bound, ms / bound, error, passes.c_str());
    std::fflush(out);
}

template <class Scalar>
void measure_both(std::FILE* out, const kron_case& c, const char* type, std::string_view types) {
    if (("," + std::string(types) + ",").find("," + std::string(type) + ",") != std::string::npos) {
        measure<Scalar, 1>(out, c, type);
        measure<Scalar, 0>(out, c, type);
    }
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
    const otimes::bench::arguments words(argc, argv, "scalars_gpu [OUTPUT.csv [TYPES [CASE]]]", 3);
    std::FILE* const out = words.output(1);
    std::fputs("case,dtype,order,rows,ms,copy_ms,bound_ms,x_bound,relerr,plan\n", out);
    const std::string_view types = argc > 2 ? argv[2] : "c64,c128,f16,bf16,tf32";
    for (const kron_case& c : cases) {
        if (argc > 3 && std::string_view(c.name).substr(0, std::string_view(argv[3]).size()) != argv[3]) {
            continue;
        }
        measure_both<std::complex<float>>(out, c, "c64", types);
        measure_both<std::complex<double>>(out, c, "c128", types);
        measure_both<otimes::half>(out, c, "f16", types);
        measure_both<otimes::bfloat16>(out, c, "bf16", types);
        measure_both<float>(out, c, "tf32", types);
    }
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
} catch (const std::exception& e) {
    std::fprintf(stderr, "scalars_gpu: %s\n", e.what());
    return 1;
}

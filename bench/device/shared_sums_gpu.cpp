// SPDX-License-Identifier: MIT
// Sums of products in device memory by both of their programs: the terms one after the other, and what they have in common once
// (device/lower_sums.hpp), each by its plan; and which of them an evaluation takes. Each term differs from the others in one factor.
//
//   shared_sums_gpu [OUTPUT.csv]
//
// Columns: case,dtype,rows,terms,product_ms,apart_ms,shared_ms,shared_over_apart,predicted,taken,residual. product_ms: one term. predicted: shared
// over apart by the planner, of single chains. Medians of 15 blocks, the three in turn. residual: of both programs, the larger one, from the sum of
// the terms' products on the cpu executor, Frobenius, relative.
#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "../arguments.hpp"
#include "milliseconds.hpp"

namespace {

using otimes::DeviceMatrix;
using otimes::kron;
using otimes::bench::milliseconds_of;

/// The factors of term t: those of term 0 but for one.
template <class Scalar>
void run(std::FILE* out, const char* type, const std::vector<Eigen::Index>& extents, Eigen::Index rows,
         std::size_t terms) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;
    using real = typename Eigen::NumTraits<Scalar>::Real;
    Eigen::Index width = 1;
    std::vector<matrix> common;
    std::vector<device> common_on_device;
    std::string shape;
    for (const Eigen::Index n : extents) {
        common.emplace_back(matrix::Random(n, n) / static_cast<real>(std::sqrt(static_cast<double>(n))));
        common_on_device.emplace_back(common.back());
        width *= n;
        shape += (shape.empty() ? "" : "x") + std::to_string(n);
    }
    std::vector<matrix> own;
    std::vector<device> own_on_device;
    for (std::size_t t = 0; t < terms; ++t) {
        const Eigen::Index n = extents[t % extents.size()];
        own.emplace_back(matrix::Random(n, n) / static_cast<real>(std::sqrt(static_cast<double>(n))));
        own_on_device.emplace_back(own.back());
    }
    const auto on_host = [&](std::size_t t) {
        std::vector<matrix> factors = common;
        factors[t % extents.size()] = own[t];
        return factors;
    };
    const auto on_device = [&](std::size_t t) {
        otimes::device_kron<Scalar> k;
        for (std::size_t i = 0; i < extents.size(); ++i) {
            k.append(i == t % extents.size() ? own_on_device[t] : common_on_device[i]);
        }
        return k;
    };
    const matrix X = matrix::Random(rows, width);
    matrix Y = X * kron(on_host(0));
    const device dX(X);
    device dY(rows, width);
    const auto first = on_device(0);
    otimes::device_sum<Scalar> sum(dX * first);
    for (std::size_t t = 1; t < terms; ++t) {
        Y += X * kron(on_host(t));
        sum.append(otimes::device_sum<Scalar>(dX * on_device(t)), 1);
    }
    const otimes::device_executor& gpu = otimes::gpu();
    const auto order = otimes::device::order_of_terms(sum);
    std::array<otimes::plan, 2> plans;
    for (const auto form : {otimes::device::sum_form::apart, otimes::device::sum_form::shared}) {
        otimes::program p;
        otimes::bindings b;
        if (!otimes::device::lower_sum(order, dY.view(), false, Scalar(1), form, p, b)) {
            std::fprintf(stderr, "%s: nothing to share\n", shape.c_str());
            return;
        }
        plans[static_cast<std::size_t>(form)] = gpu.make_plan_for(p, {});
    }
    const auto taken = otimes::make_plan<Eigen::RowMajor>(sum);
    const bool shares = taken.source.rewritten.holds(otimes::rewrite::terms_shared);
    double residual = 0;
    for (const otimes::plan& p : plans) {
        dY = matrix::Constant(rows, width, Scalar(std::numeric_limits<real>::quiet_NaN())).eval();
        p.run(dY, sum);
        const double r = static_cast<double>((dY.to_host() - Y).norm() / Y.norm());
        residual = r <= residual ? residual : r;  // NaN stays
    }
    const auto product = [&] { dY.noalias() = dX * first; };
    const auto apart = [&] { plans[0].run(dY, sum); };
    const auto shared = [&] { plans[1].run(dY, sum); };
    std::array<std::vector<double>, 3> times;
    for (int repeat = 0; repeat < 16; ++repeat) {
        const std::array<double, 3> now{milliseconds_of(product, 4), milliseconds_of(apart, 4),
                                        milliseconds_of(shared, 4)};
        for (std::size_t i = 0; i < 3 && repeat > 0; ++i) {
            times[i].push_back(now[i]);
        }
    }
    for (std::vector<double>& t : times) {
        std::sort(t.begin(), t.end());
    }
    std::fprintf(out, "%s,%s,%lld,%zu,%.4f,%.4f,%.4f,%.3f,%.3f,%s,%.1e\n", shape.c_str(), type,
                 static_cast<long long>(rows), terms, times[0][7], times[1][7], times[2][7], times[2][7] / times[1][7],
                 plans[1].predicted_seconds / plans[0].predicted_seconds, shares ? "shared" : "apart", residual);
    std::fflush(out);
}

template <class Scalar>
void run_cube(std::FILE* out, const char* type, Eigen::Index n) {
    const auto rows =
        static_cast<Eigen::Index>(128e6 / static_cast<double>(sizeof(Scalar)) / static_cast<double>(n * n * n));
    run<Scalar>(out, type, {n, n, n}, std::max<Eigen::Index>(rows, 1), 3);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "shared_sums_gpu [OUTPUT.csv]", 1);
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::fprintf(stderr, "%s\n", why.c_str());
        return 1;
    }
    const std::string path = words.text(1);
    std::FILE* const out = path.empty() ? stdout : std::fopen(path.c_str(), "w");
    if (out == nullptr) {
        std::fprintf(stderr, "cannot write %s\n", path.c_str());
        return 1;
    }
    std::fprintf(out,
                 "case,dtype,rows,terms,product_ms,apart_ms,shared_ms,shared_over_apart,predicted,taken,residual\n");
    for (const Eigen::Index n : {8, 16, 32, 40, 64, 72, 100, 128, 200}) {
        run_cube<float>(out, "f32", n);
        run_cube<double>(out, "f64", n);
    }
    run<float>(out, "f32", {16, 16, 16, 16}, 488, 4);
    run<float>(out, "f32", {24, 24, 24, 24}, 96, 4);
    run<double>(out, "f64", {24, 24, 24, 24}, 48, 4);
    run<float>(out, "f32", {16, 16, 16, 16, 16}, 32, 5);
    run<float>(out, "f32", {30, 60, 90}, 200, 3);
    run<double>(out, "f64", {30, 60, 90}, 100, 3);
    run<float>(out, "f32", {100, 100, 100}, 1, 3);
    run<double>(out, "f64", {100, 100, 100}, 1, 3);
    run<float>(out, "f32", {100, 100, 100}, 16, 8);
    run<std::complex<float>>(out, "c64", {32, 32, 32}, 488, 3);
    run<std::complex<double>>(out, "c128", {100, 100, 100}, 8, 3);
    if (!path.empty() && std::fclose(out) != 0) {
        std::fprintf(stderr, "cannot write %s\n", path.c_str());
        return 1;
    }
    return 0;
}

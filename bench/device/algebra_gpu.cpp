// SPDX-License-Identifier: MIT
// What the algebra costs on a GPU beside one product: sums of krons, shifts, a Kronecker sum, a factor between identities, products of
// krons, matrices as terms, dot products without the product, solves. Operands in device memory, by rows; of solves by columns, which is
// the same memory.
//
//   algebra_gpu [OUTPUT.csv [CASE [N]]]
//
// CASE: only the rows whose name begins so, or so, of several beginnings with commas between; N: only factors of this size.
//
// Columns: case,dtype,n,rows,ms,ratio,bar,residual. ratio: the time over that of its yardstick (`dX * kron(dA, dB, dC)` where nothing
// else is said), the bar is what it should not exceed (0: none). Medians of 15 blocks, each between two of the yardstick; X is larger
// than the caches, so that every evaluation reads it from memory. residual: from the cpu executor's result, Frobenius, relative.
#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <otimes/algebra.hpp>
#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

#include "../arguments.hpp"
#include "milliseconds.hpp"

namespace {

using otimes::DeviceMatrix;
using otimes::identity;
using otimes::kron;

using otimes::bench::milliseconds_of;

struct wishes {
    std::FILE* out = stdout;
    std::string only;    ///< beginnings of cases' names, with commas between; empty: every case
    Eigen::Index n = 0;  ///< 0: every size

    [[nodiscard]] bool has(std::string_view name) const {
        for (std::string_view rest = only; !rest.empty();) {
            const std::string_view one = rest.substr(0, rest.find(','));
            if (name.substr(0, one.size()) == one) {
                return true;
            }
            rest.remove_prefix((std::min)(one.size() + 1, rest.size()));
        }
        return only.empty();
    }
};

struct bench {
    const wishes& wanted;
    const char* type;
    Eigen::Index n;
    Eigen::Index rows;

    [[nodiscard]] bool has(const char* name) const { return wanted.has(name); }
    void compare(const char* name, const std::function<void()>& work, const std::function<void()>& yardstick,
                 double bar, double error) const {
        if (!has(name)) {
            return;
        }
        constexpr int count = 6;
        milliseconds_of(yardstick, 2);
        milliseconds_of(work, 2);
        std::vector<double> times;
        std::vector<double> ratios;
        for (int repeat = 0; repeat < 15; ++repeat) {
            const double before = milliseconds_of(yardstick, count);
            times.push_back(milliseconds_of(work, count));
            ratios.push_back(2 * times.back() / (before + milliseconds_of(yardstick, count)));
        }
        std::sort(times.begin(), times.end());
        std::sort(ratios.begin(), ratios.end());
        std::fprintf(wanted.out, "%s,%s,%lld,%lld,%.4f,%.3f,%.2f,%.1e\n", name, type, static_cast<long long>(n),
                     static_cast<long long>(rows), times[7], ratios[7], bar, error);
        std::fflush(wanted.out);
    }
};

// Dot products and norms of X * K, which return a number and so wait: over the product alone, and over a product that is waited for.
// Residuals: from the same after the product.
template <class Scalar>
void run_reductions(const std::vector<Eigen::Index>& factors, Eigen::Index rows, const wishes& wanted) {
    const Eigen::Index n = factors.front();
    const bench b{wanted, sizeof(Scalar) == 4 ? "f32" : "f64", n, rows};
    const bool any = b.has("dot with X * K") || b.has("squaredNorm") || b.has("norm of X * K - Z");
    if ((wanted.n != 0 && wanted.n != n) || !any) {
        return;
    }
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;
    Eigen::Index width = 1;
    std::vector<device> dF;
    std::string shape;  // 3 equal factors go without saying
    for (const Eigen::Index extent : factors) {
        dF.emplace_back(matrix(matrix::Random(extent, extent) / std::sqrt(static_cast<Scalar>(extent))));
        width *= extent;
        shape += (shape.empty() ? "" : " x ") + std::to_string(extent);
    }
    const bool equal = std::ranges::all_of(factors, [n](Eigen::Index extent) { return extent == n; });
    const auto dK = kron(dF);
    const device dX(matrix(matrix::Random(rows, width))), dZ(matrix(matrix::Random(rows, width)));
    device dY(rows, width);
    dY = dX * dK;
    const double scale = static_cast<double>(dY.norm()) * static_cast<double>(dZ.norm());
    const double wanted_dot = static_cast<double>(otimes::dot(dZ, dY)), wanted_norm = std::pow(dY.norm(), 2.0);
    const double error = std::abs(static_cast<double>(otimes::dot(dZ, dX * dK)) - wanted_dot) / scale;
    const double norm_error = std::abs(static_cast<double>((dX * dK).squaredNorm()) - wanted_norm) / wanted_norm;
    device dR(rows, width);
    dR = dX * dK - dZ;
    const double wanted_residual = dR.norm();
    const double residual_error =
        std::abs(static_cast<double>((dX * dK - dZ).norm()) - wanted_residual) / wanted_residual;
    const auto product = [&] { dY.noalias() = dX * dK; };
    const auto waited = [&] {
        product();
        otimes::gpu().synchronize();
    };
    Scalar sum(0);
    const auto dot = [&] { sum += otimes::dot(dZ, dX * dK); };
    const auto norm = [&] { sum += (dX * dK).squaredNorm(); };
    const std::string of = !equal                ? ": " + shape
                           : factors.size() == 3 ? ""
                                                 : ": " + std::to_string(factors.size()) + " factors";
    b.compare(("dot with X * K" + of).c_str(), dot, product, 1.05, error);
    b.compare(("dot with X * K over a product and a wait" + of).c_str(), dot, waited, 1.05, error);
    const auto larger = [&] { sum += otimes::dot(dZ, dX * dK, std::int64_t{16} << 20); };
    b.compare(("dot with X * K in 16 MiB over a product and a wait" + of).c_str(), larger, waited, 1.05, error);
    b.compare(("squaredNorm" + of).c_str(), norm, product, 1.05, norm_error);
    b.compare(("squaredNorm over a product and a wait" + of).c_str(), norm, waited, 1.05, norm_error);
    const auto residual = [&] { sum += (dX * dK - dZ).norm(); };
    b.compare(("norm of X * K - Z over a product and a wait" + of).c_str(), residual, waited, 0, residual_error);
}

// Solves with right-hand sides by columns, over K * B. Residuals: |S X - B| / (|S X| + |B|).
template <class Scalar>
void run_solves(Eigen::Index n, Eigen::Index cols, const wishes& wanted) {
    const bench b{wanted, sizeof(Scalar) == 4 ? "f32" : "f64", n, cols};
    if ((wanted.n != 0 && wanted.n != n) || !b.has("solve")) {
        return;
    }
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    using device = DeviceMatrix<Scalar>;
    const auto definite = [n] {
        const matrix m = matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n));
        return matrix(m * m.transpose() + matrix::Identity(n, n));
    };
    const matrix A = definite(), B = definite(), C = definite();
    const device dA(A), dB(B), dC(C), right(matrix(matrix::Random(n * n * n, cols)));
    const auto dK = kron(dA, dB, dC);
    device y(n * n * n, cols), x;
    const auto product = [&] { y.noalias() = dK * right; };
    product();
    const auto residual = [&] {  // y: S x
        y -= right;
        return static_cast<double>(y.norm()) / static_cast<double>(right.norm());
    };
    const otimes::kron_sum_solver<Scalar> poisson(otimes::kron_sum(A, B, C));
    x = poisson.solve(right);
    y = otimes::kron_sum(dA, dB, dC) * x;
    b.compare(
        "solve: kron_sum", [&] { x = poisson.solve(right); }, product, 2.2, residual());
    const auto K = kron(A, B, C);
    const otimes::kron_lu<Scalar> lu(K);
    x = lu.solve(right);
    y = dK * x;
    b.compare(
        "solve: kron_lu", [&] { x = lu.solve(right); }, product, 2.2, residual());
    const otimes::kron_llt<Scalar> llt(K);
    x = llt.solve(right);
    y = dK * x;
    b.compare(
        "solve: kron_llt", [&] { x = llt.solve(right); }, product, 2.2, residual());
}

template <class Scalar>
void run(Eigen::Index n, Eigen::Index rows, const wishes& wanted) {
    if (wanted.n != 0 && wanted.n != n) {
        return;
    }
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;
    const auto factor = [n] { return matrix(matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n))); };
    const matrix A = factor(), B = factor(), C = factor(), M = factor(), N = factor(), O = factor();
    const Eigen::Index width = n * n * n;
    const matrix X = matrix::Random(rows, width), Z = matrix::Random(rows, width);
    matrix Y(rows, width);
    const device dA(A), dB(B), dC(C), dM(M), dN(N), dO(O), dX(X), dZ(Z);
    device dY(rows, width);
    const auto K = kron(A, B, C);
    const auto dK = kron(dA, dB, dC);
    const auto residual = [&](const device& got) { return static_cast<double>((got.to_host() - Y).norm() / Y.norm()); };
    const auto product = [&] { dY.noalias() = dX * dK; };
    const bench bench_{wanted, sizeof(Scalar) == 4 ? "f32" : "f64", n, rows};
    const auto compare = [&](const char* name, const std::function<void()>& work,
                             const std::function<void()>& yardstick, double bar,
                             double error) { bench_.compare(name, work, yardstick, bar, error); };
    // `device_way` writes dY, `host_way` Y; the two must agree.
    const auto both = [&](const char* name, const std::function<void()>& device_way,
                          const std::function<void()>& host_way, double bar) {
        if (!wanted.has(name)) {
            return;
        }
        host_way();
        dY = matrix::Constant(rows, width, std::numeric_limits<Scalar>::quiet_NaN()).eval();
        device_way();
        compare(name, device_way, product, bar, residual(dY));
    };
    both(
        "product", product, [&] { Y.noalias() = X * K; }, 0);
    dY = dX * dK;
    compare(
        "copy of X", [&] { dY = dX; }, product, 0, 0);
    both(
        "sum of three", [&] { dY.noalias() = dX * (kron(dA, dN, dO) + kron(dM, dB, dO) + kron(dM, dN, dC)); },
        [&] { Y.noalias() = X * (kron(A, N, O) + kron(M, B, O) + kron(M, N, C)); }, 2.5);
    device dT(rows, width);
    both(
        "sum of three with shared factors by hand",
        [&] {
            dT.noalias() = dX * (kron(dA, dN, identity(n)) + kron(dM, dB, identity(n)));
            dY.noalias() = dT * kron(identity(n), identity(n), dO) + dX * kron(dM, dN, dC);
        },
        [] {}, 2.5);
    both(
        "kron_sum", [&] { dY.noalias() = dX * otimes::kron_sum(dA, dB, dC); },
        [&] { Y.noalias() = X * otimes::kron_sum(A, B, C); }, 1.5);
    both(
        "K + s * identity()", [&] { dY.noalias() = dX * (dK + Scalar(0.5) * identity()); },
        [&] { Y.noalias() = X * (K + Scalar(0.5) * identity()); }, 0);
    both(
        "product and a matrix", [&] { dY.noalias() = dX * dK - Scalar(2) * dZ; }, [&] { Y = X * K - Scalar(2) * Z; },
        0);
    both(
        "product of two krons", [&] { dY.noalias() = dX * dK * kron(dM, dN, dO); },
        [&] { Y.noalias() = X * (K * kron(M, N, O)); }, 2.0);
    run_reductions<Scalar>({n, n, n}, rows, wanted);
    run_solves<Scalar>(n, rows, wanted);
    if (!bench_.has("I x F x I over one mode") && !bench_.has("I x F x I over X * K")) {
        return;
    }
    // One mode: the same bytes as n^2 rows each, and the factor in the last place.
    Y.noalias() = X * kron(identity(n), B, identity(n));
    const auto middle = [&] { dY.noalias() = dX * kron(identity(n), dB, identity(n)); };
    middle();
    const double error = residual(dY);
    const auto tall_x = otimes::device_map<Scalar, Eigen::RowMajor>(const_cast<Scalar*>(dX.data()), rows * n * n, n);
    const auto tall_y = otimes::device_map<Scalar, Eigen::RowMajor>(dT.data(), rows * n * n, n);
    compare(
        "I x F x I over one mode", middle, [&] { tall_y.noalias() = tall_x * kron(dB); }, 1.1, error);
    compare("I x F x I over X * K", middle, product, 1.1, error);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "algebra_gpu [OUTPUT.csv [CASE [N]]]", 3);
    wishes wanted;
    wanted.only = words.text(2);
    wanted.n = static_cast<long>(words.number(3, 0));
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        return 0;
    }
    wanted.out = words.output(1);
    std::FILE* const out = wanted.out;
    std::fputs("case,dtype,n,rows,ms,ratio,bar,residual\n", out);
    run<float>(8, 65536, wanted);
    run<double>(8, 32768, wanted);
    run<float>(16, 8192, wanted);
    run<double>(16, 4096, wanted);
    run<float>(32, 1024, wanted);
    run<double>(32, 512, wanted);
    run<float>(64, 128, wanted);
    run<double>(64, 64, wanted);
    run<float>(100, 32, wanted);
    run<double>(100, 16, wanted);
    run_reductions<float>({8, 8, 8, 8, 8}, 1024, wanted);
    run_reductions<double>({16, 16, 16, 16}, 256, wanted);
    for (const Eigen::Index rows : {1, 8}) {  // of several kernels, without rows to cut, or few
        for (const std::vector<Eigen::Index>& factors : std::vector<std::vector<Eigen::Index>>{{128, 128, 128},
                                                                                               {365, 24},
                                                                                               {500, 500},
                                                                                               {1000, 1000},
                                                                                               {2048, 16},
                                                                                               {16, 2048},
                                                                                               {50, 50, 50},
                                                                                               {100, 100, 100},
                                                                                               {200, 8, 8, 8}}) {
            run_reductions<float>(factors, rows, wanted);
            run_reductions<double>(factors, rows, wanted);
        }
    }
    for (const std::vector<Eigen::Index>& factors : std::vector<std::vector<Eigen::Index>>{
             {32, 32, 32, 32}, {64, 64, 64, 64}, {10, 10, 10, 10, 10, 10}, {3000, 3000}}) {
        run_reductions<float>(factors, 1, wanted);
        run_reductions<double>(factors, 1, wanted);
    }
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
}

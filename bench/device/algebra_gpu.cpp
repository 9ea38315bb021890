// SPDX-License-Identifier: MIT
// What the algebra costs on a GPU beside one product: sums of krons, shifts, a Kronecker sum, a factor between identities, products of
// krons, matrices as terms. Operands in device memory, by rows.
//
//   algebra_gpu [OUTPUT.csv [CASE [N]]]
//
// CASE: only the rows whose name begins so; N: only factors of this size.
//
// Columns: case,dtype,n,rows,ms,ratio,bar,residual. ratio: the time over that of its yardstick (`dX * kron(dA, dB, dC)` where nothing
// else is said), the bar is what it should not exceed (0: none). Medians of 15 blocks, each between two of the yardstick; X is larger
// than the caches, so that every evaluation reads it from memory. residual: from the cpu executor's result, Frobenius, relative.
#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>

namespace {

using otimes::DeviceMatrix;
using otimes::identity;
using otimes::kron;

double milliseconds_of(const std::function<void()>& work, int count) {
    otimes::gpu().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < count; ++k) {
        work();
    }
    otimes::gpu().synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / count;
}

struct wishes {
    std::FILE* out = stdout;
    std::string only;    ///< the beginning of a case's name
    Eigen::Index n = 0;  ///< 0: every size
};

template <class Scalar>
void run(Eigen::Index n, Eigen::Index rows, const wishes& wanted) {
    if (wanted.n != 0 && wanted.n != n) {
        return;
    }
    std::FILE* const out = wanted.out;
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
    const auto line = [&](const char* name, double ms, double ratio, double bar, double error) {
        std::fprintf(out, "%s,%s,%lld,%lld,%.4f,%.3f,%.2f,%.1e\n", name, sizeof(Scalar) == 4 ? "f32" : "f64",
                     static_cast<long long>(n), static_cast<long long>(rows), ms, ratio, bar, error);
        std::fflush(out);
    };
    const auto product = [&] { dY.noalias() = dX * dK; };
    const auto compare = [&](const char* name, const std::function<void()>& work,
                             const std::function<void()>& yardstick, double bar, double error) {
        if (std::string_view(name).substr(0, wanted.only.size()) != wanted.only) {
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
        line(name, times[7], ratios[7], bar, error);
    };
    // `device_way` writes dY, `host_way` Y; the two must agree.
    const auto both = [&](const char* name, const std::function<void()>& device_way,
                          const std::function<void()>& host_way, double bar) {
        if (std::string_view(name).substr(0, wanted.only.size()) != wanted.only) {
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
    if (wanted.only.substr(0, 1) != "I" && !wanted.only.empty()) {
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
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        return 0;
    }
    wishes wanted;
    wanted.out = argc > 1 ? std::fopen(argv[1], "w") : stdout;
    if (wanted.out == nullptr) {
        std::perror(argv[1]);
        return 1;
    }
    wanted.only = argc > 2 ? argv[2] : "";
    wanted.n = argc > 3 ? std::atol(argv[3]) : 0;
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
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// Forms in device memory that take more than products: diagonal terms, stacked matrices, column norms, sparse matrices, batches. Operands in device memory, by rows.
//
//   forms_gpu [OUTPUT.csv [CASE]]         CASE: only the rows whose name begins so
//
// Columns: case,dtype,n,rows,ms,yardstick_ms,ratio,residual. The yardstick is `dX * kron(dA, dB, dC)` of the same X where nothing else is said;
// medians of 11 blocks, each behind one of the yardstick. X is larger than the caches. residual: from the same by other means, relative.
#include <Eigen/Core>
#include <Eigen/SparseCore>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <otimes/batched.hpp>
#include <otimes/cuda.hpp>
#include <otimes/otimes.hpp>
#include <otimes/tkron.hpp>

#include "../arguments.hpp"
#include "milliseconds.hpp"

namespace {

using otimes::DeviceMatrix;
using otimes::kron;

using otimes::bench::milliseconds_of;

std::FILE* out = stdout;
std::string only;

void compare(const char* name, const char* type, Eigen::Index n, Eigen::Index rows, const std::function<void()>& work,
             const std::function<void()>& yardstick, double error) {
    constexpr int count = 5;
    milliseconds_of(yardstick, 2);
    milliseconds_of(work, 2);
    std::vector<double> times;
    std::vector<double> of_yardstick;
    for (int repeat = 0; repeat < 11; ++repeat) {
        of_yardstick.push_back(milliseconds_of(yardstick, count));
        times.push_back(milliseconds_of(work, count));
    }
    std::sort(times.begin(), times.end());
    std::sort(of_yardstick.begin(), of_yardstick.end());
    std::fprintf(out, "%s,%s,%lld,%lld,%.4f,%.4f,%.3f,%.1e\n", name, type, static_cast<long long>(n),
                 static_cast<long long>(rows), times[5], of_yardstick[5], times[5] / of_yardstick[5], error);
    std::fflush(out);
}

bool has(const char* name) { return std::string_view(name).substr(0, only.size()) == only; }

template <class Scalar>
void run(Eigen::Index n, Eigen::Index rows) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using column = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;
    const char* const type = sizeof(Scalar) == 4 ? "f32" : "f64";
    const Eigen::Index width = n * n * n;
    const auto factor = [n] { return matrix(matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n))); };
    const device dA(factor()), dB(factor()), dC(factor()), dX(matrix(matrix::Random(rows, width)));
    const column d = column::Random(width);
    const DeviceMatrix<Scalar> dd(d);
    device dY(rows, width), dZ(rows, width);
    const auto K = kron(dA, dB, dC);
    const auto product = [&] { dY.noalias() = dX * K; };
    const auto distance = [&] {
        dY -= dZ;
        return static_cast<double>(dY.norm()) / static_cast<double>(dZ.norm());
    };
    if (has("K + d.asDiagonal()")) {
        const auto work = [&] { dY.noalias() = dX * (K + dd.asDiagonal()); };
        dZ = matrix(dX.to_host() * d.asDiagonal());
        dZ += dX * K;
        work();
        compare("K + d.asDiagonal()", type, n, rows, work, product, distance());
        const auto host = [&] { dY.noalias() = dX * (K + d.asDiagonal()); };
        host();
        compare("K + d.asDiagonal() of a host d", type, n, rows, host, product, distance());
    }
    if (has("column_squared_norms")) {
        DeviceMatrix<Scalar> norms;
        dZ = dX * K;
        const column want = dZ.to_host().colwise().squaredNorm().transpose();
        const auto work = [&] { norms = otimes::column_squared_norms(dX * K); };
        work();
        const double error = static_cast<double>((norms.to_host() - want).norm() / want.norm());
        compare("column_squared_norms(X * K)", type, n, rows, work, product, error);
        const auto larger = [&] { norms = otimes::column_squared_norms(dX * K, std::int64_t{32} << 20); };
        compare("column_squared_norms(X * K) in 32 MiB", type, n, rows, larger, product, error);
        const auto plain = [&] { norms = otimes::column_squared_norms(dZ); };
        plain();
        compare(
            "column_squared_norms(Z) over a copy of Z", type, n, rows, plain, [&] { dY = dZ; },
            static_cast<double>((norms.to_host() - want).norm() / want.norm()));
        const DeviceMatrix<Scalar> by_columns(dZ);
        const auto columns = [&] { norms = otimes::column_squared_norms(by_columns); };
        columns();
        compare(
            "column_squared_norms(Z) by columns over a copy of Z", type, n, rows, columns, [&] { dY = dZ; },
            static_cast<double>((norms.to_host() - want).norm() / want.norm()));
    }
}

// kron(A, B) * vec(X) over the product that it is.
template <class Scalar>
void run_stacked(Eigen::Index n) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    using device = DeviceMatrix<Scalar>;
    if (!has("kron(A, B) * vec(X)")) {
        return;
    }
    const auto factor = [n] { return matrix(matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n))); };
    const device dA(factor()), dB(factor()), dX(matrix(matrix::Random(n * n, n * n)));
    device dY(n * n, n * n), dZ(n * n, n * n);
    const auto K = kron(dA, dB, dA, dB);
    const auto product = [&] { dZ.noalias() = kron(dA, dB) * dX * kron(dA, dB).transpose(); };
    const auto work = [&] { otimes::vec(dY) = K * otimes::vec(dX); };
    product();
    work();
    dY -= dZ;
    compare("kron(A, B) * vec(X) over B X A^T", sizeof(Scalar) == 4 ? "f32" : "f64", n, n * n, work, product,
            static_cast<double>(dY.norm()) / static_cast<double>(dZ.norm()));
}

// The operator of examples/gp_auto_mpg.cpp, W kron(..) W^T + s I with seven factors of 8 and as many cars, 17 right-hand sides: all in device memory, over
// the same with matrices in host memory on the GPU executor, where each product by the kron crosses the bus twice.
void run_interpolated() {
    using matrix = Eigen::MatrixXf;
    if (!has("W")) {
        return;
    }
    constexpr Eigen::Index cars = 313, columns = 17, grid = Eigen::Index{1} << 21;
    std::vector<matrix> F;
    std::vector<DeviceMatrix<float>> dF;
    for (int k = 0; k < 7; ++k) {
        const matrix m = matrix::Random(8, 8) / 8;
        F.push_back(matrix(m * m.transpose()) + matrix::Identity(8, 8));
        dF.emplace_back(F.back());
    }
    std::vector<Eigen::Triplet<float>> entries;
    unsigned random = 1;
    for (int i = 0; i < cars; ++i) {
        std::vector<int> points{0};
        for (int d = 0; d < 7; ++d) {  // four neighbours in five dimensions, a grid point in the others
            random = random * 1664525u + 1013904223u;
            const int first = static_cast<int>(random >> 16) % 5;
            std::vector<int> next;
            for (const int p : points) {
                for (int e = 0; e < (d < 5 ? 4 : 1); ++e) {
                    next.push_back(p * 8 + first + e);
                }
            }
            points = std::move(next);
        }
        for (const int p : points) {
            entries.emplace_back(i, p, 1.0f / 32);
        }
    }
    Eigen::SparseMatrix<float, Eigen::RowMajor> w(cars, grid);
    w.setFromTriplets(entries.begin(), entries.end());
    const matrix X = matrix::Random(cars, columns);
    const auto K = kron(F);
    const auto S = w * K * w.transpose() + 0.5f * otimes::identity();
    matrix Y(cars, columns);
    Y = S * X;  // by cpu()
    const otimes::DeviceSparse<float> dW(w);
    const auto dS = dW * kron(dF) * dW.transpose() + 0.5f * otimes::identity();
    const DeviceMatrix<float> dX(X);
    DeviceMatrix<float> dY(cars, columns);
    const auto work = [&] { dY.noalias() = dS * dX; };
    work();
    const double error = static_cast<double>((dY.to_host() - Y).norm() / Y.norm());
    const otimes::scoped_executor here(otimes::gpu());
    compare(
        "W * K * W.transpose() + s * identity() over host operands", "f32", 8, cars, work, [&] { Y = S * X; }, error);
    DeviceMatrix<float> dZ(grid, columns), dV(grid, columns);
    dZ = dW.transpose() * dX;
    const auto product = [&] { dV.noalias() = kron(dF) * dZ; };
    compare("W * K * W.transpose() + s * identity() over K * Z", "f32", 8, cars, work, product, error);
    compare(
        "W.transpose() * X over K * Z", "f32", 8, cars, [&] { dV.noalias() = dW.transpose() * dX; }, product, 0);
    compare(
        "W * Z over K * Z", "f32", 8, cars, [&] { dY.noalias() = dW * dZ; }, product, 0);
}

// Y_i = X_i * kron(A_i, B_i) with one row an item, over the same with shared factors, which is one product; and tkron2.
template <class Scalar>
void run_batches(Eigen::Index n, Eigen::Index count) {
    if (!has("batched")) {
        return;
    }
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using device = DeviceMatrix<Scalar, Eigen::RowMajor>;
    const char* const type = sizeof(Scalar) == 4 ? "f32" : "f64";
    const matrix A = matrix::Random(count * n, n), B = matrix::Random(count * n, n);
    const device dA(A), dB(B), dX(matrix(matrix::Random(count, n * n))), dC(matrix(matrix::Random(n, n)));
    device dY(count, n * n);
    const auto shared = [&] { dY.noalias() = dX * kron(dC, dC); };
    const auto own = [&] {
        otimes::batched(dY, count) =
            otimes::batched(dX, count) * kron(otimes::batched(dA, count), otimes::batched(dB, count));
    };
    own();
    const matrix X = dX.to_host(), Y = dY.to_host();
    double error = 0;
    for (Eigen::Index i = 0; i < count; i += count / 7) {
        const Eigen::Map<const matrix> x(X.data() + i * n * n, n, n), y(Y.data() + i * n * n, n, n);
        const matrix want = A.middleRows(i * n, n).transpose() * x * B.middleRows(i * n, n);
        error = std::max(error, static_cast<double>((y - want).norm() / want.norm()));
    }
    compare("batched: factors of their own over shared ones", type, n, count, own, shared, error);
    const auto in_tkron = [&] {
        otimes::tkron2<Scalar>(otimes::gpu(), {.rows = n, .cols = n, .data = dC.data()},
                               {.rows = n, .cols = n, .data = dC.data()}, {.data = dX.data(), .batch_stride = n * n},
                               {.data = dY.data(), .batch_stride = n * n}, count);
    };
    in_tkron();
    compare("batched: tkron2 over X * K", type, n, count, in_tkron, shared, 0);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "forms_gpu [OUTPUT.csv [CASE]]", 2);
    std::string why;
    if (otimes::find_gpu(&why) == nullptr) {
        std::printf("no GPU: %s\n", why.c_str());
        return 0;
    }
    out = words.output(1);
    only = words.text(2);
    std::fputs("case,dtype,n,rows,ms,yardstick_ms,ratio,residual\n", out);
    run<float>(8, 65536);
    run<double>(16, 4096);
    run<float>(32, 1024);
    run_stacked<float>(64);
    run_interpolated();
    run_batches<float>(4, 1000000);
    run_batches<float>(8, 250000);
    run_batches<double>(16, 50000);
    if (out != stdout) {
        std::fclose(out);
    }
    return 0;
}

// SPDX-License-Identifier: MIT
// What the algebra costs beside one product: a sum of three krons that share factors, a Kronecker sum, a factor between
// identities, a solve, a dot product without Y. Prints CSV: case,n,rows,ms,ratio,bar,residual; ratio is the time over that of its
// yardstick, the bar is what it should not exceed. Each result is checked before it is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using otimes::kron;
using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Median milliseconds of nine runs of at least 20 ms each.
double milliseconds(const std::function<void()>& run) {
    using clock = std::chrono::steady_clock;
    run();
    std::vector<double> times;
    for (int repeat = 0; repeat < 9; ++repeat) {
        int count = 0;
        const auto start = clock::now();
        double spent = 0;
        do {
            run();
            ++count;
            spent = std::chrono::duration<double, std::milli>(clock::now() - start).count();
        } while (spent < 20);
        times.push_back(spent / count);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void print(const char* name, Index n, Index rows, double ms, double yardstick, double bar, double residual) {
    std::printf("%s,%ld,%ld,%.4f,%.2f,%.2f,%.1e\n", name, static_cast<long>(n), static_cast<long>(rows), ms,
                ms / yardstick, bar, residual);
}

void run(Index n, Index rows) {
    const auto factor = [n](int seed) {
        std::srand(static_cast<unsigned>(seed));
        const MatrixXd a = MatrixXd::Random(n, n);
        return MatrixXd(a * a.transpose() / static_cast<double>(n) + MatrixXd::Identity(n, n));
    };
    const MatrixXd A = factor(1), B = factor(2), C = factor(3), M = factor(4), N = factor(5), O = factor(6);
    const row_major X = row_major::Random(rows, n * n * n);
    row_major Y(rows, n * n * n);
    const auto chain = kron(A, B, C);
    const double product = milliseconds([&] { Y.noalias() = X * chain; });
    print("chain", n, rows, product, product, 1.0, 0);

    const auto sum = kron(A, N, O) + kron(M, B, O) + kron(M, N, C);
    Y.noalias() = X * kron(A, N, O);
    Y.noalias() += X * kron(M, B, O);
    Y.noalias() += X * kron(M, N, C);
    const row_major Z = X * sum;
    print("sum of three", n, rows, milliseconds([&] { Y.noalias() = X * sum; }), product, 2.5,
          (Y - Z).norm() / Z.norm());
    print("three chains", n, rows, milliseconds([&] {
              Y.noalias() = X * kron(A, N, O);
              Y.noalias() += X * kron(M, B, O);
              Y.noalias() += X * kron(M, N, C);
          }),
          product, 3.0, 0);

    const auto laplacian = otimes::kron_sum(A, B, C);
    print("kron_sum", n, rows, milliseconds([&] { Y.noalias() = X * laplacian; }), product, 1.5, 0);

    const auto middle = kron(otimes::identity(n), B, otimes::identity(n));
    const auto single = kron(B);
    const row_major F = row_major::Random(rows * n * n, n);
    row_major G(rows * n * n, n);
    const double mode = milliseconds([&] { G.noalias() = F * single; });
    print("I x F x I over one mode", n, rows, milliseconds([&] { Y.noalias() = X * middle; }), mode, 1.1, 0);

    const MatrixXd right = X.transpose();
    MatrixXd W(right.rows(), right.cols());
    const double left_product = milliseconds([&] { W.noalias() = chain * right; });
    const otimes::kron_lu<double> lu(chain);
    MatrixXd solution = lu.solve(right);
    const MatrixXd back = chain * solution;
    print("solve", n, rows, milliseconds([&] { solution = lu.solve(right); }), left_product, 2.2,
          (back - right).norm() / right.norm());
    const otimes::kron_sum_solver<double> poisson(laplacian);
    solution = poisson.solve(right);
    const MatrixXd back_sum = laplacian * solution;
    print("kron_sum solve", n, rows, milliseconds([&] { solution = poisson.solve(right); }), left_product, 2.2,
          (back_sum - right).norm() / right.norm());

    double sink = 0;
    const row_major V = row_major::Random(rows, n * n * n);
    const double whole = Y.cwiseProduct(V).sum();
    Y.noalias() = X * chain;
    const double value = otimes::dot(V, X * chain);
    print("dot without Y", n, rows, milliseconds([&] { sink += otimes::dot(V, X * chain); }), product, 1.05,
          std::abs(value - Y.cwiseProduct(V).sum()) / (std::abs(whole) + std::abs(value)));
    if (sink == 0.125) {
        std::puts("#");
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::puts("case,n,rows,ms,ratio,bar,residual");
    if (argc == 3) {
        run(std::stol(argv[1]), std::stol(argv[2]));
        return 0;
    }
    run(8, 64);
    run(16, 32);
    run(32, 16);
    run(32, 1);
    return 0;
}

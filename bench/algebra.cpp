// SPDX-License-Identifier: MIT
// What the algebra costs beside one product: a sum of three krons that share factors, a Kronecker sum, a factor between
// identities, a solve, a dot product without Y, the BLAS-like calls of batches. Prints CSV: case,n,rows,ms,ratio,bar,residual; ratio is the time over that of its
// yardstick, the bar is what it should not exceed. Each result is checked before it is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>
#include <otimes/batched.hpp>
#include <otimes/tkron.hpp>

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

/// `rows` items of n x n and of n x n x n: tkron2 and tkron3 beside the product that they are, items the rows of X; factors of
/// their own for each item beside the product of that item, one after the other.
void run_batches(Index n, Index rows) {
    using otimes::op;
    const MatrixXd A = MatrixXd::Random(n, n), B = MatrixXd::Random(n, n), C = MatrixXd::Random(n, n);
    const otimes::tkron_factor<double> a{op::none, n, n, A.data()}, b{op::none, n, n, B.data()},
        c{op::none, n, n, C.data()};
    for (const int dimension : {2, 3}) {
        const Index size = dimension == 2 ? n * n : n * n * n;
        const row_major X = row_major::Random(rows, size);
        row_major Y(rows, size), Z(rows, size);
        const auto K = dimension == 2 ? kron(B, A).transpose() : kron(C, B, A).transpose();
        const double product = milliseconds([&] { Y.noalias() = X * K; });
        const otimes::tkron_array<const double> x{op::none, X.data(), 0, 0, size};
        const otimes::tkron_array<double> z{op::none, Z.data(), 0, 0, size};
        const double ms = milliseconds([&] {
            if (dimension == 2) {
                otimes::tkron2(a, b, x, z, rows);
            } else {
                otimes::tkron3(a, b, c, x, z, rows);
            }
        });
        print(dimension == 2 ? "tkron2 over X * K" : "tkron3 over X * K", n, rows, ms, product, 1.2,
              (Y - Z).norm() / Y.norm());
    }
    const row_major X = row_major::Random(rows, n * n);
    const MatrixXd own_a = MatrixXd::Random(n, n * rows), own_b = MatrixXd::Random(n, n * rows);
    row_major Y(rows, n * n), Z(rows, n * n);
    const auto items = [&](auto& m) { return otimes::batched(m.data(), n, n, rows); };
    // Z_i = A_i X_i B_i, the mode products of tkron2 with factors of their own
    const double apart = milliseconds([&] {
        for (Index i = 0; i < rows; ++i) {
            const Eigen::Map<const MatrixXd> x(X.data() + i * n * n, n, n);
            Eigen::Map<MatrixXd>(Y.data() + i * n * n, n, n).noalias() =
                own_a.middleCols(i * n, n) * (x * own_b.middleCols(i * n, n)).eval();
        }
    });
    const double ms = milliseconds([&] { items(Z) = kron(items(own_a)) * items(X) * kron(items(own_b)); });
    print("own factors over Eigen's loop", n, rows, ms, apart, 1.0, (Y - Z).norm() / Y.norm());
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
    for (const Index n : {3, 4, 8, 10, 16}) {
        run_batches(n, 10000);
    }
    return 0;
}

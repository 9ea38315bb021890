// SPDX-License-Identifier: MIT
// What the algebra costs beside one product: a sum of three krons that share factors, a Kronecker sum, both with a term more, a factor between
// identities, a solve, a dot product without Y, the BLAS-like calls of batches. Prints CSV: case,n,rows,ms,ratio,bar,residual; ratio is
// the time over that of its yardstick (`X * kron(A, B, C)` where nothing else is said), the bar is what it should not exceed. Each
// result is checked before it is timed. Thread time, the median of 31 measurements each between two of its yardstick.
//
//   algebra [N ROWS]    only three factors of N x N and so many rows; without: four such, and batches
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>
#include <otimes/batched.hpp>
#include <otimes/tkron.hpp>

#include "arguments.hpp"

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using otimes::kron;
using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Milliseconds of this thread: what other programs take of the machine is left out.
double now() {
    std::timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

double once(const std::function<void()>& run, int count) {
    const double start = now();
    for (int k = 0; k < count; ++k) {
        run();
    }
    return (now() - start) / count;
}

int count_for(const std::function<void()>& run) {
    run();
    return static_cast<int>(5 / (once(run, 1) + 1e-4)) + 1;
}

/// Prints the median of what `run` takes over what its yardstick takes, the two measured in turn, so that a slower or faster
/// moment of the machine meets both.
void compare(const char* name, Index n, Index rows, const std::function<void()>& run,
             const std::function<void()>& yardstick, double bar, double residual) {
    const int of_run = count_for(run);
    const int of_yardstick = count_for(yardstick);
    std::vector<double> ratios;
    std::vector<double> times;
    for (int repeat = 0; repeat < 31; ++repeat) {
        const double before = once(yardstick, of_yardstick);
        times.push_back(once(run, of_run));
        ratios.push_back(2 * times.back() / (before + once(yardstick, of_yardstick)));
    }
    std::sort(times.begin(), times.end());
    std::sort(ratios.begin(), ratios.end());
    std::printf("%s,%ld,%ld,%.4f,%.2f,%.2f,%.1e\n", name, static_cast<long>(n), static_cast<long>(rows), times[15],
                ratios[15], bar, residual);
    std::fflush(stdout);
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
    const auto product = [&] { Y.noalias() = X * chain; };

    const auto sum = kron(A, N, O) + kron(M, B, O) + kron(M, N, C);
    const auto three_chains = [&] {
        Y.noalias() = X * kron(A, N, O);
        Y.noalias() += X * kron(M, B, O);
        Y.noalias() += X * kron(M, N, C);
    };
    three_chains();
    row_major Z = X * sum;
    compare(
        "sum of three", n, rows, [&] { Z.noalias() = X * sum; }, product, 2.5, (Y - Z).norm() / Z.norm());
    compare("three chains", n, rows, three_chains, product, 3.0, 0);

    const auto laplacian = otimes::kron_sum(A, B, C);
    const otimes::identity_factor I = otimes::identity(n);
    Y.noalias() = X * kron(A, I, I);
    Y.noalias() += X * kron(I, B, I);
    Y.noalias() += X * kron(I, I, C);
    Z.noalias() = X * laplacian;
    compare(
        "kron_sum", n, rows, [&] { Z.noalias() = X * laplacian; }, product, 1.5, (Y - Z).norm() / Z.norm());

    // Operators that differ in one factor are applied by the sum of both: a shift costs nothing, a fourth term either.
    const auto shifted = laplacian - 0.3 * otimes::identity(n * n * n);
    Y.noalias() = X * laplacian;
    Y -= 0.3 * X;
    row_major S = X * shifted;
    compare(
        "shifted kron_sum over kron_sum", n, rows, [&] { S.noalias() = X * shifted; },
        [&] { Z.noalias() = X * laplacian; }, 1.1, (Y - S).norm() / Y.norm());
    const auto three = kron(A, N, N) + kron(N, A, N) + kron(N, N, A);
    const auto helmholtz = three - 0.7 * kron(N, N, N);
    Y.noalias() = X * three;
    Y.noalias() -= 0.7 * X * kron(N, N, N);
    S.noalias() = X * helmholtz;
    compare(
        "three less a kron over three", n, rows, [&] { S.noalias() = X * helmholtz; }, [&] { Z.noalias() = X * three; },
        1.1, (Y - S).norm() / Y.norm());

    using complex_rows = Eigen::Matrix<std::complex<double>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::MatrixXcd P = Eigen::MatrixXcd::Random(n, n), R = B.cast<std::complex<double>>();
    const complex_rows V1 = complex_rows::Random(rows, n * n * n);
    complex_rows V2 = V1 * kron(P, R, P), V3 = V1 * kron(P, B, P);
    compare(
        "one real factor over all complex", n, rows, [&] { V3.noalias() = V1 * kron(P, B, P); },
        [&] { V2.noalias() = V1 * kron(P, R, P); }, 1.1, (V2 - V3).norm() / V2.norm());

    const auto middle = kron(I, B, I);
    const auto single = kron(B);
    const row_major F = row_major::Random(rows * n * n, n);
    row_major G(rows * n * n, n);
    Y.noalias() = X * kron(I, B, I);
    Z.noalias() = X * kron(I, MatrixXd(B), I);
    compare(
        "I x F x I over one mode", n, rows, [&] { Y.noalias() = X * middle; }, [&] { G.noalias() = F * single; }, 1.1,
        (Y - Z).norm() / Z.norm());

    const MatrixXd right = X.transpose();
    MatrixXd W(right.rows(), right.cols());
    const auto left_product = [&] { W.noalias() = chain * right; };
    const otimes::kron_lu<double> lu(chain);
    MatrixXd solution = lu.solve(right);
    MatrixXd back = chain * solution;
    compare(
        "solve", n, rows, [&] { solution = lu.solve(right); }, left_product, 2.2, (back - right).norm() / right.norm());
    const otimes::kron_sum_solver<double> poisson(laplacian);
    solution = poisson.solve(right);
    back = laplacian * solution;
    compare(
        "kron_sum solve", n, rows, [&] { solution = poisson.solve(right); }, left_product, 2.2,
        (back - right).norm() / right.norm());

    double sink = 0;
    const row_major V = row_major::Random(rows, n * n * n);
    Y.noalias() = X * chain;
    const double whole = Y.cwiseProduct(V).sum();
    const double value = otimes::dot(V, X * chain);
    compare(
        "dot without Y", n, rows, [&] { sink += otimes::dot(V, X * chain); }, product, 1.05,
        std::abs(value - whole) / (Y.norm() * V.norm()));
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
        const auto product = [&] { Y.noalias() = X * K; };
        product();
        const otimes::tkron_array<const double> x{op::none, X.data(), 0, 0, size};
        const otimes::tkron_array<double> z{op::none, Z.data(), 0, 0, size};
        const auto batch = [&] {
            if (dimension == 2) {
                otimes::tkron2(a, b, x, z, rows);
            } else {
                otimes::tkron3(a, b, c, x, z, rows);
            }
        };
        batch();
        compare(dimension == 2 ? "tkron2 over X * K" : "tkron3 over X * K", n, rows, batch, product, 1.2,
                (Y - Z).norm() / Y.norm());
    }
    const row_major X = row_major::Random(rows, n * n);
    const MatrixXd own_a = MatrixXd::Random(n, n * rows), own_b = MatrixXd::Random(n, n * rows);
    row_major Y(rows, n * n), Z(rows, n * n);
    const auto items = [&](auto& m) { return otimes::batched(m.data(), n, n, rows); };
    // Z_i = A_i X_i B_i, the mode products of tkron2 with factors of their own
    const auto apart = [&] {
        for (Index i = 0; i < rows; ++i) {
            const Eigen::Map<const MatrixXd> x(X.data() + i * n * n, n, n);
            Eigen::Map<MatrixXd>(Y.data() + i * n * n, n, n).noalias() =
                own_a.middleCols(i * n, n) * (x * own_b.middleCols(i * n, n)).eval();
        }
    };
    apart();
    const auto own = [&] { items(Z) = kron(items(own_a)) * items(X) * kron(items(own_b)); };
    own();
    compare("own factors over Eigen's loop", n, rows, own, apart, 1.0, (Y - Z).norm() / Y.norm());
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "algebra [N ROWS]", 2);
    if (argc == 2) {
        words.refuse();
    }
    const Index n = words.number(1, 0);
    const Index rows = words.number(2, 0);
    std::puts("case,n,rows,ms,ratio,bar,residual");
    if (n > 0) {
        run(n, rows);
        return 0;
    }
    run(8, 64);
    run(16, 32);
    run(32, 16);
    run(32, 1);
    for (const Index order : {3, 4, 8, 10, 16}) {
        run_batches(order, 10000);
    }
    return 0;
}

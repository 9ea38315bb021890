// SPDX-License-Identifier: MIT
//
// The discrete Fourier transform as a product of structured Kronecker products, composed recursively.
//
// For N = P M, with L the stride permutation and T the diagonal of twiddle factors,
//
//     F_N = L(N, P) (I_M (x) F_P) L(N, M) T (I_P (x) F_M) L(N, P)
//
// (Cooley and Tukey in the notation of Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992; as a chain of
// contractions: Cecka 2017). F_M is such a product again, and I (x) (A B C) = (I (x) A)(I (x) B)(I (x) C), so the whole transform
// is one expression of O(log N) structured factors and O(N log N) flops. Checked against the definition to N = 4096.

#include <chrono>
#include <cmath>
#include <complex>
#include <cstdio>
#include <exception>
#include <numbers>

#include <Eigen/Dense>

#include <otimes/otimes.hpp>

namespace {

using Eigen::Index;
using complex = std::complex<double>;
using otimes::identity;
using otimes::kron;
using otimes::stride_permutation;

constexpr double tolerance = 1e-12;

complex root_of_unity(Index n, Index power) {
    return std::polar(1.0, -2.0 * std::numbers::pi * static_cast<double>(power % n) / static_cast<double>(n));
}

/// The definition, n x n.
Eigen::MatrixXcd dft_matrix(Index n) {
    return Eigen::MatrixXcd::NullaryExpr(n, n, [n](Index j, Index k) { return root_of_unity(n, j * k); });
}

/// diag(w^(i j)), i < p, j < m, j running first: what the p transforms of length m are multiplied by.
Eigen::DiagonalMatrix<complex, Eigen::Dynamic> twiddles(Index p, Index m) {
    const Eigen::VectorXcd t =
        Eigen::VectorXcd::NullaryExpr(p * m, [=](Index k) { return root_of_unity(p * m, (k / m) * (k % m)); });
    return Eigen::DiagonalMatrix<complex, Eigen::Dynamic>(t);
}

/// so_far * (I_before (x) F_n).
otimes::sum_expr<complex> times_transform(const otimes::sum_expr<complex>& so_far, Index before, Index n) {
    Index p = n % 4 == 0 ? 4 : 2;
    while (p < n && n % p != 0) {
        ++p;
    }
    if (p >= n) {
        return so_far * kron(identity(before), dft_matrix(n));
    }
    const Index m = n / p;
    const auto outer = so_far * kron(identity(before), stride_permutation(n, p)) *
                       kron(identity(before * m), dft_matrix(p)) * kron(identity(before), stride_permutation(n, m)) *
                       kron(identity(before), twiddles(p, m));
    return times_transform(outer, before * p, m) * kron(identity(before), stride_permutation(n, p));
}

/// F_n as one expression.
otimes::sum_expr<complex> transform(Index n) {
    const auto nothing = kron(Eigen::MatrixXcd::Identity(1, 1), identity(n));
    return times_transform(nothing, 1, n);
}

int run() {
    std::printf("%6s %14s %14s %12s %12s\n", "N", "flops", "dense flops", "error", "inverse");
    bool passed = true;
    for (const Index n : {2, 3, 4, 6, 8, 12, 15, 16, 60, 64, 81, 210, 256, 1000, 1024, 4096}) {
        const Eigen::VectorXcd x = Eigen::VectorXcd::Random(n);
        const auto f = transform(n);
        const Eigen::VectorXcd y = f * x;
        const Eigen::VectorXcd back = f.adjoint() * y / static_cast<double>(n);
        const double error = (y - dft_matrix(n) * x).norm() / y.norm();
        const double inverse = (back - x).norm() / x.norm();
        const auto flops = static_cast<double>(otimes::make_plan(f * x).flops);
        std::printf("%6td %14.0f %14.0f %12.1e %12.1e\n", n, flops, 8.0 * static_cast<double>(n * n), error, inverse);
        passed = passed && error <= tolerance && inverse <= tolerance;
    }
    std::printf(passed ? "OK\n" : "FAILED: an error exceeds its tolerance\n");
    return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr, "usage: fourier_transform, without arguments\n");
        return 2;
    }
    try {
        return run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "fourier_transform: %s\n", e.what());
        return 1;
    }
}

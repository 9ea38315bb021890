// SPDX-License-Identifier: MIT
//
// The Helmholtz equation on the unit cube, solved directly by fast diagonalisation.
//
//     -u_xx - u_yy - u_zz + c u = f  in (0, 1)^3,     u = 0 on the boundary.
//
// With second-order differences on a grid of n_x x n_y x n_z inner points the matrix is a Kronecker sum,
//
//     S = A_x (x) I (x) I + I (x) A_y (x) I + I (x) I (x) A_z + c I,     A = tridiag(-1, 2, -1) / h^2,
//
// and its inverse needs only the eigenvectors of the three A (Lynch, Rice, Thomas: Direct solution of partial difference
// equations by tensor product methods, 1964). The solution is chosen, u = sin(pi x) y (1 - y) e^y sin(2 pi z), and f follows
// from it: with every refinement the error must fall by the square of the step.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numbers>

#include <Eigen/Dense>

#include <otimes/algebra.hpp>

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using std::numbers::pi;

constexpr double shift = 3.0;  // c
constexpr double residual_tolerance = 1e-10;
constexpr double order_tolerance = 0.1;  // around 2

/// -d^2/dx^2 on n inner points of (0, 1), n x n.
MatrixXd second_difference(Index n) {
    const double h = 1.0 / static_cast<double>(n + 1);
    MatrixXd a = MatrixXd::Zero(n, n);
    a.diagonal().setConstant(2.0 / (h * h));
    a.diagonal(1).setConstant(-1.0 / (h * h));
    a.diagonal(-1).setConstant(-1.0 / (h * h));
    return a;
}

/// The n inner points of (0, 1).
VectorXd points(Index n) { return VectorXd::LinSpaced(n, 1.0, static_cast<double>(n)) / static_cast<double>(n + 1); }

/// g(x) g(y) g(z) on the grid, z running first. As a kron of columns it is never more than a formula.
VectorXd on_grid(const VectorXd& gx, const VectorXd& gy, const VectorXd& gz) {
    return otimes::kron(gx, gy, gz).toDenseMatrix();
}

struct step {
    double error = 0.0;     // largest over the grid
    double residual = 0.0;  // |S u - f| / |f|
};

/// Solves on nx x ny x nz points and compares with the known solution.
step solve(Index nx, Index ny, Index nz) {
    const VectorXd x = points(nx);
    const VectorXd y = points(ny);
    const VectorXd z = points(nz);
    const VectorXd ux = (pi * x.array()).sin();
    const VectorXd uy = y.array() * (1.0 - y.array()) * y.array().exp();
    const VectorXd uz = (2.0 * pi * z.array()).sin();
    const VectorXd minus_uy_yy = y.array() * (y.array() + 3.0) * y.array().exp();

    const VectorXd u = on_grid(ux, uy, uz);
    const VectorXd f = (pi * pi + 4.0 * pi * pi + shift) * u + on_grid(ux, minus_uy_yy, uz);

    const auto s = otimes::kron_sum(second_difference(nx), second_difference(ny), second_difference(nz)) +
                   shift * otimes::identity();
    const VectorXd solution = s.solve(f);
    const VectorXd back = s * solution;
    return {(solution - u).cwiseAbs().maxCoeff(), (back - f).norm() / f.norm()};
}

int run() {
    std::printf("-u_xx - u_yy - u_zz + %g u = f on the unit cube, by fast diagonalisation\n\n", shift);
    std::printf("%16s %12s %10s %8s %12s %8s\n", "grid", "unknowns", "error", "order", "residual", "ms");
    bool passed = true;
    double before = 0.0;
    for (const Index n : {16, 32, 64, 128}) {
        // Unequal directions, all refined alike: (n + 1) cells, 5/4 and 3/4 as many.
        const Index nx = n - 1;
        const Index ny = 5 * n / 4 - 1;
        const Index nz = 3 * n / 4 - 1;
        const auto start = std::chrono::steady_clock::now();
        const step at = solve(nx, ny, nz);
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        const double order = before > 0.0 ? std::log2(before / at.error) : 0.0;
        std::printf("%4td x %3td x %3td %12td %10.2e ", nx, ny, nz, nx * ny * nz, at.error);
        before > 0.0 ? std::printf("%8.2f", order) : std::printf("%8s", "-");
        std::printf(" %12.1e %8.1f\n", at.residual, ms);
        passed = passed && at.residual <= residual_tolerance;
        passed = passed && (before == 0.0 || std::abs(order - 2.0) <= order_tolerance);
        before = at.error;
    }
    std::printf(passed ? "OK\n" : "FAILED: the order is not 2, or a residual exceeds its tolerance\n");
    return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr, "usage: helmholtz_3d, without arguments\n");
        return 2;
    }
    try {
        return run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "helmholtz_3d: %s\n", e.what());
        return 1;
    }
}

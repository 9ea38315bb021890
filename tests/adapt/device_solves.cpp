// SPDX-License-Identifier: MIT
// Solves with right-hand sides in device memory, on an executor that pretends to be a GPU. Here, and not in no_cuda, because the other files
// of this room compile the same decompositions.
#include "cuda/pretended_gpu.hpp"
#include "cuda/solve_checks.hpp"

TEST_CASE("solves in device memory") {
    const device_test::pretended_gpu gpu;
    {
        const otimes::scoped_executor here(gpu);
        device_test::check_solves<double, false>();
        // What the first solve takes to the device stays there.
        const Eigen::MatrixXd a = Eigen::MatrixXd::Identity(3, 3) * 2, b = Eigen::MatrixXd::Identity(4, 4) * 3;
        const otimes::DeviceMatrix<double> right(Eigen::MatrixXd(Eigen::MatrixXd::Ones(12, 2)));
        const otimes::kron_lu<double> lu(otimes::kron(a, b));
        const otimes::kron_sum_solver<double> sum(otimes::kron_sum(a, b));
        for (const int round : {0, 1}) {
            const int before = gpu.uploads;
            CHECK((lu.solve(right).to_host() - Eigen::MatrixXd::Ones(12, 2) / 6).norm() <= 1e-14);
            CHECK((sum.solve(right).to_host() - Eigen::MatrixXd::Ones(12, 2) / 5).norm() <= 1e-14);
            CHECK((gpu.uploads > before) == (round == 0));
        }
        const otimes::kron_lu<double> other(lu);
        CHECK((other.solve(right).to_host() - Eigen::MatrixXd::Ones(12, 2) / 6).norm() <= 1e-14);
        // Ill-conditioned factors: two steps of refinement on the device, each factor by its decomposition on the host; rectangular ones, too.
        for (const int n : {9, 11}) {
            CAPTURE(n);
            const Eigen::MatrixXd h =
                Eigen::MatrixXd::NullaryExpr(n, n, [](auto i, auto j) { return 1.0 / static_cast<double>(i + j + 1); });
            const Eigen::MatrixXd tall = h.leftCols(n - 1), known = Eigen::MatrixXd::Ones(3 * n, 2);
            const otimes::kron_lu<double> ill(otimes::kron(a, h));
            CHECK(ill.solves_by_factors() == (n == 11));
            const auto leaves = [&](const auto& k, const Eigen::MatrixXd& wanted, const auto& solver) {
                const Eigen::MatrixXd dense = k.toDenseMatrix(), image = dense * wanted;
                const Eigen::MatrixXd x = solver.solve(otimes::DeviceMatrix<double>(image)).to_host();
                return (dense * x - image).norm() / (dense.norm() * x.norm());
            };
            CHECK(leaves(otimes::kron(a, h), known, ill) < 2e-15);
            const otimes::kron_llt<double> definite(otimes::kron(a, h));
            CHECK(definite.refines() == (n == 9));
            CHECK(definite.solves_by_factors() == (n == 11));
            CHECK(leaves(otimes::kron(a, h), known, definite) < 4e-15);
            CHECK(leaves(otimes::kron(a, tall), known.topRows(3 * (n - 1)), otimes::kron(a, tall)) < 2e-15);
        }
        // The kernels of points that lie close together: a Cholesky decomposition that solves by triangles, and one that refines, on the device.
        for (const int n : {6, 20}) {
            CAPTURE(n);
            const double jitter = n == 6 ? 1e-4 : 1e-8;
            const Eigen::MatrixXd kernel = Eigen::MatrixXd::NullaryExpr(n, n, [&](auto i, auto j) {
                const double d = static_cast<double>(i - j) / (4 * n);
                return std::exp(-d * d) + (i == j ? jitter : 0);
            });
            const otimes::kron_llt<double> close(otimes::kron(a, kernel));
            CHECK(close.solves_by_triangles() == (n == 6));
            CHECK(close.refines() == (n == 20));
            const Eigen::MatrixXd dense = otimes::kron(a, kernel).toDenseMatrix(),
                                  image = dense * Eigen::MatrixXd::Ones(3 * n, 2);
            const Eigen::MatrixXd solved = close.solve(otimes::DeviceMatrix<double>(image)).to_host();
            CHECK((dense * solved - image).norm() <= 2e-15 * dense.norm() * solved.norm());
        }
        // Ill-conditioned eigenvectors: on the host, by Schur forms.
        Eigen::MatrixXd f(2, 2), g(2, 2), y(4, 2);
        f << 1, 1, 0, 1 + 5e-8;
        g << 2, 1, 0, 2 + 5e-8;
        y << 1, 2, 3, 4, 5, 6, 7, 8;
        const otimes::kron_sum_solver<double> hard(otimes::kron_sum(f, g));
        CHECK(hard.method() == "complex Schur forms of the factors");
        const Eigen::MatrixXd want = [&] {
            const otimes::scoped_executor on_host(otimes::cpu());
            return hard.solve(y);
        }();
        CHECK(hard.solve(otimes::DeviceMatrix<double>(y)).to_host() == want);
        CHECK(hard.solve(otimes::DeviceMatrix<double, 1>(y)).to_host() == want);
    }
    CHECK(gpu.in_use() == 0);
}

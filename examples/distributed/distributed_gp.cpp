// SPDX-License-Identifier: MIT
//
// A smooth field, measured with noise on a grid of 48 x 40 x 36 points, and its Gaussian-process posterior mean, on as many
// ranks as there are. The kernel matrix of all 69 120 points is a Kronecker product of three small ones, so that the posterior
// mean  K (K + s2 I)^-1 y  takes conjugate gradients and one line for the operator.
//
//     distributed_gp                      one CPU rank, or all GPUs of this machine
//     mpirun -np 4 distributed_gp         four ranks: on GPUs where each host has some, else on CPUs
//
// The vector has one row, so its columns are spread: along the first dimension of the grid. Every product with K applies two
// of the three factors where the data are, exchanges once, applies the third, and exchanges back.

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Dense>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

namespace {

constexpr int n1 = 48;
constexpr int n2 = 40;
constexpr int n3 = 36;
constexpr double noise = 0.3;

// The kernel exp(-|s - t|^2 / (2 l^2)) between n points of [0, 1].
Eigen::MatrixXd kernel(int n, double length) {
    return Eigen::MatrixXd::NullaryExpr(n, n, [=](Eigen::Index i, Eigen::Index j) {
        const double d = static_cast<double>(i - j) / (n - 1) / length;
        return std::exp(-0.5 * d * d);
    });
}

double field(std::int64_t point) {
    const double x = static_cast<double>(point / (n2 * n3)) / (n1 - 1);
    const double y = static_cast<double>(point / n3 % n2) / (n2 - 1);
    const double z = static_cast<double>(point % n3) / (n3 - 1);
    return std::sin(5 * x) * std::cos(4 * y) + 0.5 * std::sin(3 * z + 2 * x);
}

// Noise of variance 1 that depends on the point alone: every number of ranks sees the same data.
double noise_at(std::int64_t point) {
    double sum = 0;
    auto state = static_cast<std::uint64_t>(point) * 0x9e3779b97f4a7c15u + 12345u;
    for (int i = 0; i < 12; ++i) {
        state = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
        sum += static_cast<double>(state >> 11) * 0x1p-53;
    }
    return sum - 6;
}

int run() {
    // [solve]
    const otimes::communicator ranks = otimes::make_communicator();
    const Eigen::MatrixXd K1 = kernel(n1, 0.2);
    const Eigen::MatrixXd K2 = kernel(n2, 0.25);
    const Eigen::MatrixXd K3 = kernel(n3, 0.3);
    const auto K = otimes::replicate(ranks, otimes::kron(K1, K2, K3));

    const auto cut = otimes::cut_mode(1, ranks.size(), std::vector<std::int64_t>{n1, n2, n3}, 0);
    otimes::DistributedMatrix<double> y(ranks, 1, K.rows(), cut);
    y.fill([](std::int64_t, std::int64_t point) { return field(point) + noise * noise_at(point); });

    // Conjugate gradients for (K + noise^2 I) a = y.
    otimes::DistributedMatrix<double> a(y);
    a = 0.0 * y;
    otimes::DistributedMatrix<double> r(y);
    otimes::DistributedMatrix<double> p(y);
    otimes::DistributedMatrix<double> q(y);
    const double target = 1e-6 * dot(y, y);
    double rr = dot(r, r);
    int steps = 0;
    for (; steps < 500 && rr > target; ++steps) {
        q = p * K + noise * noise * p;
        const double step = rr / dot(p, q);
        a += step * p;
        r -= step * q;
        const double before = std::exchange(rr, dot(r, r));
        p = rr / before * p + r;
    }
    otimes::DistributedMatrix<double> mean(y);
    mean = a * K;
    // [/solve]

    otimes::DistributedMatrix<double> error(mean);
    otimes::DistributedMatrix<double> truth(ranks, 1, K.rows(), cut);
    truth.fill([](std::int64_t, std::int64_t point) { return field(point); });
    error -= truth;
    const double rms = std::sqrt(dot(error, error) / static_cast<double>(K.rows()));
    const std::string plan = explain(a * K);
    if (ranks.rank() == 0) {
        std::printf("%s\n\n%s\n", ranks.name().c_str(), plan.c_str());
        std::printf("%d steps, relative residual %.1e\n", steps, std::sqrt(rr / target * 1e-6));
        std::printf("error of the measurements %.3f, of the posterior mean %.4f\n", noise, rms);
    }
    return rr <= target && rms < noise / 10 ? 0 : 1;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr, "usage: [mpirun -np RANKS] distributed_gp, without arguments\n");
        return 2;
    }
    try {
        return run();
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "distributed_gp: %s\n", failure.what());
        return 1;
    }
}

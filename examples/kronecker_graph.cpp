// SPDX-License-Identifier: MIT
//
// A Kronecker graph (Leskovec, Chakrabarti, Kleinberg, Faloutsos, Ghahramani: Kronecker graphs, JMLR 2010): the adjacency
// matrix of a large graph is the k-th Kronecker power of a small one, here of an asymmetric 3-node pattern with loops. Its
// statistics are powers of those of the pattern, which makes it a good check for whoever computes them otherwise:
//
// * degrees: K 1 = (A 1)^(x k);
// * walks from anywhere to anywhere of length L: 1^T K^L 1 = (1^T A^L 1)^k;
// * closed walks of length 3: trace(K^3) = trace(A^3)^k;
// * the largest eigenvalue is that of A to the power k, and PageRank follows from products with K.
//
// Nothing of the graph is stored but the pattern: 3^12 = 531441 nodes and 5^12 = 244 million edges.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>

#include <Eigen/Dense>

#include <otimes/otimes.hpp>

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr Index power = 12;
constexpr double tolerance = 1e-10;

MatrixXd pattern() {
    MatrixXd a(3, 3);
    a << 1, 1, 0,  //
        1, 0, 1,   //
        0, 0, 1;
    return a;
}

/// Out-degree of `node`, from the digits of its number in base 3: the definition, no Kronecker product.
double degree_by_digits(const MatrixXd& a, Index node) {
    double degree = 1.0;
    for (Index k = 0; k < power; ++k) {
        degree *= a.row(node % a.rows()).sum();
        node /= a.rows();
    }
    return degree;
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

/// PageRank by the power method: p = d K^T D^-1 p + (1 - d) / n. Every node has an edge that leaves it.
VectorXd page_rank(const otimes::kron_expr<double>& k, const VectorXd& degrees, Index* iterations) {
    constexpr double damping = 0.85;
    const auto n = static_cast<double>(k.rows());
    VectorXd p = VectorXd::Constant(k.rows(), 1.0 / n);
    double change = 1.0;
    for (*iterations = 0; change > 1e-13 && *iterations < 500; ++*iterations) {
        const VectorXd spread = p.cwiseQuotient(degrees);
        VectorXd next = k.transpose() * spread;
        next = (damping * next.array() + (1.0 - damping) / n).matrix();
        change = (next - p).lpNorm<1>();
        p = next;
    }
    return p;
}

int run() {
    const auto start = std::chrono::steady_clock::now();
    const MatrixXd a = pattern();
    const auto k = otimes::kron_power(a, power);
    std::printf("%td nodes, %.0f edges; stored: a %td x %td pattern\n", k.rows(), std::pow(a.sum(), power), a.rows(),
                a.cols());
    double worst = 0.0;
    const auto include = [&worst](double error) {  // NaN is the worst, and stays
        worst = std::isnan(error) || error > worst ? error : worst;
    };
    const auto check = [&](const char* what, double got, double want) {
        std::printf("%-28s %.10e, by the pattern %.10e\n", what, got, want);
        include(relative(got, want));
    };

    const VectorXd ones = VectorXd::Ones(k.rows());
    const VectorXd degrees = k * ones;
    for (Index node = 0; node < k.rows(); node += 4999) {
        include(relative(degrees(node), degree_by_digits(a, node)));
    }
    check("edges", degrees.sum(), std::pow(a.sum(), power));
    check("largest out-degree", degrees.maxCoeff(), std::pow(a.rowwise().sum().maxCoeff(), power));

    VectorXd walks = degrees;
    for (int length = 2; length <= 4; ++length) {
        walks = k * walks;
    }
    check("walks of length 4", walks.sum(), std::pow((a * a * a * a).sum(), power));
    // K * K * K is one Kronecker product, of the cubes of the patterns.
    check("closed walks of length 3", (k * k * k).trace(), std::pow((a * a * a).trace(), power));

    VectorXd v = ones.normalized();
    double eigenvalue = 0.0;
    for (int i = 0; i < 120; ++i) {
        VectorXd next = k * v;
        eigenvalue = next.norm();
        v = next / eigenvalue;
    }
    check("largest eigenvalue", eigenvalue, std::pow(a.eigenvalues().cwiseAbs().maxCoeff(), power));

    Index iterations = 0;
    const VectorXd rank = page_rank(k, degrees, &iterations);
    const VectorXd spread = rank.cwiseQuotient(degrees);
    const VectorXd moved = k.transpose() * spread;
    const VectorXd next = (0.85 * moved.array() + 0.15 / static_cast<double>(k.rows())).matrix();
    Index first = 0;
    rank.maxCoeff(&first);
    std::printf("PageRank: %td iterations, fixed-point residual %.1e, sum - 1 = %.1e, first is node %td\n", iterations,
                (next - rank).lpNorm<1>(), rank.sum() - 1.0, first);
    include((next - rank).lpNorm<1>());
    include(std::abs(rank.sum() - 1.0));

    std::printf("Time: %.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (!(worst <= tolerance)) {
        std::printf("FAILED: a statistic is off by %.1e\n", worst);
        return 1;
    }
    std::printf("OK\n");
    return 0;
}

}  // namespace

int main(int argc, char**) {
    if (argc > 1) {
        std::fprintf(stderr, "usage: kronecker_graph, without arguments\n");
        return 2;
    }
    try {
        return run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "kronecker_graph: %s\n", e.what());
        return 1;
    }
}

// SPDX-License-Identifier: MIT
// Sums and dot products of matrices on the GPUs of one host, X cut by rows and along its first mode: what a step of an iterative solver takes.
//
//   bench_distributed_sums [GPUS...] > results.csv    one line for each expression, shape, number of GPUs and cut
//
// Row i of X is s_i * (x (x) y (x) z), so that every entry of a sum of products is known in closed form: all of them are compared with it in
// double before the clock runs, and a wrong result has no time. Times are medians of 7, each of as many evaluations as take 20 ms, with the
// wait at their end; a dot product waits by itself. `over_product`: the time over that of X * K. `dot on the host` copies both
// operands to the host and adds there. `plan`: how the terms are evaluated.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include <otimes/distributed.hpp>

#include "../arguments.hpp"

namespace {

using otimes::communicator;
using otimes::DistributedMatrix;
using otimes::kron;

double milliseconds_of(const communicator& ranks, const std::function<void()>& once) {
    using clock = std::chrono::steady_clock;
    const auto repeat = [&](int count) {
        ranks.over().synchronize();
        const auto begin = clock::now();
        for (int i = 0; i < count; ++i) {
            once();
        }
        ranks.over().synchronize();
        return std::chrono::duration<double, std::milli>(clock::now() - begin).count() / count;
    };
    repeat(2);
    const int count = std::clamp(static_cast<int>(20 / std::max(repeat(1), 1e-3)), 2, 200);
    std::array<double, 7> times{};
    for (double& t : times) {
        t = repeat(count);
    }
    std::nth_element(times.begin(), times.begin() + 3, times.end());
    return times[3];
}

// coefficient * (a (x) b (x) c), a row of a result.
struct rank_one {
    double coefficient;
    Eigen::VectorXd a, b, c;
};

// The largest difference of an entry from its closed form, over the largest entry.
template <class Scalar>
double error_of(const DistributedMatrix<Scalar>& y, const Eigen::VectorXd& s, const std::vector<rank_one>& terms) {
    const std::int64_t n = terms.front().c.size();
    double worst = 0;
    double largest = 0;
    for (std::int32_t local = 0; local < y.ranks().local_count(); ++local) {
        const otimes::held_block held = y.block(local);
        const std::vector<Scalar> got = y.staged_block(local);
        std::size_t at = 0;
        for (std::int64_t i = 0; i < held.row_count(); ++i) {
            for (std::int64_t j = 0; j < held.col_count(); ++j) {
                const std::int64_t column = held.cols.global(j);
                double want = 0;
                for (const rank_one& t : terms) {
                    want += t.coefficient * t.a[column / n / n] * t.b[column / n % n] * t.c[column % n];
                }
                want *= s[held.rows.begin + i];
                const double difference = std::abs(static_cast<double>(got[at++]) - want);
                worst = std::isnan(worst) || difference <= worst ? worst : difference;  // NaN stays
                largest = std::max(largest, std::abs(want));
            }
        }
    }
    return worst / largest;
}

template <class Scalar>
void measure(const communicator& ranks, const char* type, std::int64_t n, std::int64_t rows, bool by_rows) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    const auto random = [n](unsigned seed) {
        std::srand(seed);
        return matrix(matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n)));
    };
    const matrix A = random(1), B = random(2), C = random(3), D = random(4), E = random(5);
    std::srand(6);
    const Eigen::VectorXd s = Eigen::VectorXd::Random(rows);
    // Rounded, so that X is what the closed form says but for a rounding of its products.
    const auto vector = [n] { return Eigen::VectorXd(Eigen::VectorXf::Random(n).cast<double>()); };
    const Eigen::VectorXd x = vector(), y = vector(), z = vector();
    const std::vector<std::int64_t> extents{n, n, n};
    const otimes::distribution cut =
        by_rows ? otimes::cut_rows(ranks.size()) : otimes::cut_mode(1, ranks.size(), extents, 0);
    DistributedMatrix<Scalar> dX(ranks, rows, n * n * n, cut), dY(dX);
    dX.fill([&](std::int64_t i, std::int64_t j) {
        return static_cast<Scalar>(s[i] * x[j / n / n] * y[j / n % n] * z[j % n]);
    });
    const auto K = otimes::replicate(ranks, kron(A, B, C));
    const auto three = otimes::replicate(ranks, kron(A, B, C) + kron(D, B, C) - 2 * kron(A, B, E));
    const auto sum = otimes::replicate(ranks, otimes::kron_sum(A, B, C));
    const auto by = [](const matrix& F, const Eigen::VectorXd& v) {
        return Eigen::VectorXd(F.template cast<double>().transpose() * v);
    };
    const Eigen::VectorXd xA = by(A, x), yB = by(B, y), zC = by(C, z), xD = by(D, x), zE = by(E, z);

    double product_ms = 0;
    const double allowed = sizeof(Scalar) == 4 ? 2e-5 : 1e-13;
    const auto report = [&](const char* what, const std::string& plan, double error,
                            const std::function<void()>& once) {
        const double ms = error < allowed ? milliseconds_of(ranks, once) : std::nan("");
        product_ms = product_ms == 0 ? ms : product_ms;
        std::printf("%s,%s,%lld^3,%lld,%d,%s,%.4f,%.3f,%.1e,%s\n", what, type, static_cast<long long>(n),
                    static_cast<long long>(rows), ranks.size(), by_rows ? "rows" : "columns", ms, ms / product_ms,
                    error, plan.c_str());
        std::fflush(stdout);
    };
    const auto assigned = [&](const char* what, const auto& value, const std::vector<rank_one>& terms) {
        dY.fill([](std::int64_t, std::int64_t) { return std::numeric_limits<Scalar>::quiet_NaN(); });
        dY = value();
        const otimes::distributed_plan plan = make_plan(value());
        const std::string how = plan.shares_steps        ? "at once with common products"
                                : plan.terms_at_once > 0 ? "at once"
                                : plan.in_turn.empty()   ? "one product"
                                                         : "terms in turn";
        report(what, how, error_of(dY, s, terms), [&] { dY = value(); });
    };
    assigned("X * K", [&] { return dX * K; }, {{1, xA, yB, zC}});
    assigned("X * (three krons)", [&] { return dX * three; }, {{1, xA, yB, zC}, {1, xD, yB, zC}, {-2, xA, yB, zE}});
    assigned("X * kron_sum", [&] { return dX * sum; }, {{1, xA, y, z}, {1, x, yB, z}, {1, x, y, zC}});
    assigned("X * K + 2 * X", [&] { return dX * K + 2 * dX; }, {{1, xA, yB, zC}, {2, x, y, z}});
    const double exact = s.squaredNorm() * xA.dot(x) * yB.dot(y) * zC.dot(z);
    const double scale = s.squaredNorm() * xA.norm() * x.norm() * yB.norm() * y.norm() * zC.norm() * z.norm();
    DistributedMatrix<Scalar> dZ(dX);
    dZ = dX * K;
    Scalar found = dot(dX, dZ);
    report("dot(X; Y)", "", std::abs(static_cast<double>(found) - exact) / scale, [&] { found = dot(dX, dZ); });
    const auto on_host = [&] {
        double total = 0;
        for (std::int32_t local = 0; local < ranks.local_count(); ++local) {
            const std::vector<Scalar> a = dX.staged_block(local), b = dZ.staged_block(local);
            for (std::size_t i = 0; i < a.size(); ++i) {
                total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
            }
        }
        found = static_cast<Scalar>(total);
    };
    on_host();
    report("dot(X; Y) on the host", "", std::abs(static_cast<double>(found) - exact) / scale, on_host);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "bench_distributed_sums [GPUS...]", argc);
    std::vector<int> gpu_counts;
    for (int i = 1; i < argc; ++i) {
        gpu_counts.push_back(static_cast<int>(words.whole(argv[i], 1)));
    }
    if (gpu_counts.empty()) {
        gpu_counts = {1, 2, 4};
    }
    std::printf("what,type,factors,m,gpus,cut,ms,over_product,relerr,plan\n");
    for (const int gpus : gpu_counts) {
        try {
            const communicator ranks = otimes::gpu_communicator({.gpu_count = gpus});
            for (const bool by_rows : {true, false}) {
                if (!by_rows && gpus == 1) {
                    continue;
                }
                measure<float>(ranks, "f32", 32, 1024 * gpus, by_rows);
                measure<double>(ranks, "f64", 32, 512 * gpus, by_rows);
                measure<float>(ranks, "f32", 64, 64 * gpus, by_rows);
                measure<double>(ranks, "f64", 64, 64 * gpus, by_rows);
                measure<float>(ranks, "f32", 128, gpus, by_rows);
            }
        } catch (const otimes::device_error& fewer) {
            std::fprintf(stderr, "not measured on %d GPUs: %s\n", gpus, fewer.what());
            return gpus == gpu_counts.front() ? 1 : 0;
        }
    }
    return 0;
}

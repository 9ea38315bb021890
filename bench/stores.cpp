// SPDX-License-Identifier: MIT
// Large results: the planner's plans, which store them past the caches (plan/stores.hpp), against the same plans with the usual stores, in turn within one
// run. `cold`: X and Y change from run to run, 300 MB of them and more; `warm`: always the same. `and_read`: with a sum over Y right after
// it, by as many threads. Medians; one row of CSV for each case, with the largest difference between the two results.
//
//   stores [threads] [seconds for each case]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <otimes/otimes.hpp>

#include "arguments.hpp"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The sum of all elements; each thread reads its own stretch.
template <class Scalar>
double sum_of(const Scalar* y, Eigen::Index count, int threads) {
    double sum = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
#endif
    for (int t = 0; t < threads; ++t) {
        const Eigen::Index begin = count * t / threads;
        const Eigen::Index end = count * (t + 1) / threads;
        sum += static_cast<double>(
            Eigen::Map<const Eigen::Array<Scalar, Eigen::Dynamic, 1>>(y + begin, end - begin).sum());
    }
    return sum;
}

double median(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

struct settings {
    int threads = 2;
    double seconds = 0.5;
};

template <class Scalar, int Order>
void run_case(const std::string& name, Eigen::Index rows, const std::vector<Eigen::Index>& extents, const settings& s) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;
    Eigen::Index cols = 1;
    std::vector<matrix> factors;
    for (const Eigen::Index n : extents) {
        cols *= n;
        factors.push_back(matrix::Random(n, n) / std::sqrt(static_cast<Scalar>(n)));
    }
    const double bytes = static_cast<double>(rows * cols) * sizeof(Scalar);
    const std::size_t sets = std::max<std::size_t>(2, static_cast<std::size_t>(300e6 / bytes));
    std::vector<matrix> X;
    std::vector<matrix> Y;
    for (std::size_t i = 0; i < sets; ++i) {
        X.push_back(matrix::Random(rows, cols));
        Y.push_back(matrix::Zero(rows, cols));
    }
    const auto K = otimes::kron(factors);
    const otimes::plan planned = otimes::make_plan(X[0] * K, {.threads = s.threads});
    otimes::plan usual = planned;
    int passes = 0;
    for (otimes::pass& one : usual.passes) {
        passes += one.past_caches ? 1 : 0;
        one.past_caches = false;
    }
    planned.run(Y[0], X[0] * K);
    usual.run(Y[1], X[0] * K);
    const double difference = static_cast<double>((Y[0] - Y[1]).cwiseAbs().maxCoeff());
    double sum = 0;
    for (const bool warm : {false, true}) {
        std::vector<double> product[2];
        std::vector<double> with_reader[2];
        std::size_t turn = 0;
        const double end = now() + s.seconds;
        while (now() < end || product[1].size() < 5) {
            for (int past = 0; past < 2; ++past) {
                for (int again = 0; again < 2; ++again, ++turn) {  // the first run after the other kind does not count
                    matrix& y = Y[warm ? 0 : turn % sets];
                    const matrix& x = X[warm ? 0 : turn % sets];
                    const double begin = now();
                    (past == 1 ? planned : usual).run(y, x * K);
                    const double done = now();
                    sum += sum_of(y.data(), y.size(), s.threads);
                    if (again == 1) {
                        product[past].push_back(done - begin);
                        with_reader[past].push_back(now() - begin);
                    }
                }
            }
        }
        const double ms[2] = {1e3 * median(product[0]), 1e3 * median(product[1])};
        const double read[2] = {1e3 * median(with_reader[0]), 1e3 * median(with_reader[1])};
        std::printf("%s,%s,%s,%s,%.1f,%d,%zu,%.4f,%.4f,%.3f,%.3f,%.4f,%.4f,%.3f,%.1e\n",
                    sizeof(Scalar) == 4 ? "f32" : "f64", Order == Eigen::RowMajor ? "rows" : "columns",
                    warm ? "warm" : "cold", name.c_str(), bytes * 1e-6, passes, product[1].size(), ms[0], ms[1],
                    ms[1] / ms[0],
                    *std::min_element(product[1].begin(), product[1].end()) /
                        *std::min_element(product[0].begin(), product[0].end()),
                    read[0], read[1], read[1] / read[0], difference);
        std::fflush(stdout);
    }
    if (!std::isfinite(sum) || difference != 0) {
        std::fprintf(stderr, "stores: %s: the results differ\n", name.c_str());
        std::exit(1);
    }
}

template <class Scalar, int Order>
void run_all(const settings& s) {
    run_case<Scalar, Order>("8^5/256", 256, {8, 8, 8, 8, 8}, s);
    run_case<Scalar, Order>("16^4/256", 256, {16, 16, 16, 16}, s);
    run_case<Scalar, Order>("32^3/256", 256, {32, 32, 32}, s);
    run_case<Scalar, Order>("64^2/1024", 1024, {64, 64}, s);
    run_case<Scalar, Order>("128^2/256", 256, {128, 128}, s);
    run_case<Scalar, Order>("64^3/64", 64, {64, 64, 64}, s);
    run_case<Scalar, Order>("4^7/1024", 1024, {4, 4, 4, 4, 4, 4, 4}, s);
    run_case<Scalar, Order>("8^6/64", 64, {8, 8, 8, 8, 8, 8}, s);
    run_case<Scalar, Order>("16^2/20000", 20000, {16, 16}, s);
    run_case<Scalar, Order>("8^4/1024", 1024, {8, 8, 8, 8}, s);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "stores [threads] [seconds for each case]", 2);
    const settings s{static_cast<int>(words.number(1, 2)), words.amount(2, 0.5)};
    std::printf(
        "type,order,operands,case,y_mb,passes_past,rounds,ms_usual,ms_past,ratio,ratio_of_least,ms_usual_and_read,"
        "ms_past_and_read,ratio_and_read,largest_difference\n");
    run_all<float, Eigen::RowMajor>(s);
    run_all<double, Eigen::RowMajor>(s);
    run_all<float, Eigen::ColMajor>(s);
    run_all<double, Eigen::ColMajor>(s);
    return 0;
}

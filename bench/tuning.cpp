// SPDX-License-Identifier: MIT
// How much otimes::tune brings on this machine: the planner's own plan against the best that was measured, for a list of products of
// every kind. What it prints last says how good the planner's choices are here.
//
//   tuning [MOST [REPETITIONS]]    CSV: order of X and Y, type, factors, rows, milliseconds of the planner's plan and of the winner,
//                                  their ratio, the position of the winner, largest difference from the reference, the choice
#include <Eigen/Dense>
#include <otimes/tune.hpp>

#include "arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Eigen::Index;

struct product {
    std::vector<Index> extents;
    Index rows;
};

struct totals {
    double logarithms = 0;
    double least = 1;
    int count = 0;
};

template <class Scalar, int Order>
void measure(const product& what, const otimes::tuning_options& how, totals& all) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Order>;
    std::vector<matrix> factors;
    std::string name;
    Index cols = 1;
    for (const Index extent : what.extents) {
        factors.push_back(matrix::Random(extent, extent));
        name.append(name.empty() ? 0 : 1, 'x').append(std::to_string(extent));
        cols *= extent;
    }
    const matrix X = matrix::Random(what.rows, cols);
    otimes::forget_tuned_choices();
    const otimes::tuning_report report = otimes::tune(X * otimes::kron(factors), {}, how);
    double difference = 0;
    for (const otimes::tuned_candidate& c : report.candidates) {
        difference = std::max(difference, c.difference);
    }
    const otimes::tuned_candidate& own = report.candidates.front();
    const otimes::tuned_candidate& best = report.candidates[report.best];
    const double ratio = best.seconds / own.seconds;
    all.logarithms += std::log(ratio);
    all.least = std::min(all.least, ratio);
    ++all.count;
    std::printf("%s,%s,%s,%td,%.4g,%.4g,%.3f,%zu,%.1e,%s\n", Order == Eigen::RowMajor ? "rows" : "columns",
                sizeof(Scalar) == 4 ? "f32" : "f64", name.c_str(), what.rows, 1e3 * own.seconds, 1e3 * best.seconds,
                ratio, report.best, difference, best.choice.c_str());
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "tuning [MOST [REPETITIONS]]", 2);
    const otimes::tuning_options how{.most_candidates = static_cast<int>(words.number(1, 12)),
                                     .repetitions = static_cast<int>(words.number(2, 7))};
    const std::vector<product> products{{{16, 16}, 10000},
                                        {{64, 64}, 1024},
                                        {{128, 128}, 256},
                                        {{4, 4, 4, 4, 4, 4}, 1526},
                                        {{32, 32, 32}, 64},
                                        {{16, 16, 16, 16}, 32},
                                        {{8, 8, 8, 8, 8}, 64},
                                        {{8, 8, 8, 8}, 512},
                                        {{3, 3, 3, 3, 3, 3, 3}, 1024},
                                        {{5, 5, 5, 5, 5}, 256},
                                        {{6, 6, 6, 6, 6}, 128},
                                        {{7, 7, 7, 7}, 512},
                                        {{10, 10, 10}, 5000},
                                        {{9, 9, 9}, 1000},
                                        {{11, 11, 11}, 700},
                                        {{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 20},
                                        {{20, 20, 20}, 128},
                                        {{52, 65}, 100}};
    std::printf("order,type,factors,rows,planned_ms,best_ms,ratio,position,difference,choice\n");
    totals all;
    for (const product& one : products) {
        measure<float, Eigen::RowMajor>(one, how, all);
        measure<float, Eigen::ColMajor>(one, how, all);
        measure<double, Eigen::RowMajor>(one, how, all);
        measure<double, Eigen::ColMajor>(one, how, all);
    }
    std::fprintf(stderr,
                 "%s, %d threads: the winners take %.3f of the planner's time (geometric mean of %d), the least %.2f\n",
                 otimes::host_machine().cpu.name.c_str(), otimes::host_machine().cpu.threads,
                 std::exp(all.logarithms / all.count), all.count, all.least);
    return 0;
}

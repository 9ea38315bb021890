// SPDX-License-Identifier: MIT
// The rungs of the ladder on the CPU, with all threads that OpenMP has. Prints CSV: rung,ms,gflops,gbps_min,relerr,remark.
// gflops counts the flops of five mode products, whatever a rung really does. `ladder_cpu --brief` leaves out the materialised
// product, which takes 4 GiB.
#include <chrono>
#include <cstring>
#include <limits>
#include <string>

#include <Eigen/Dense>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <otimes/otimes.hpp>

#include "../arguments.hpp"
#include "ladder_case.hpp"

namespace {

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::Index;

const float* factor(const std::vector<float>& factors, int k) {
    return factors.data() + k * ladder::factor_order * ladder::factor_order;
}

template <class Run>
double milliseconds(int repetitions, Run run) {
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) {
        const auto start = std::chrono::steady_clock::now();
        run();
        times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return ladder::median(times);
}

/// Y = X * K entry by entry from the definition, for the first `rows` rows.
void naive(const std::vector<float>& x, const std::vector<float>& f, Index rows, matrix& y) {
    constexpr Index n = ladder::factor_order;
    for (Index row = 0; row < rows; ++row) {
#pragma omp parallel for
        for (Index j = 0; j < ladder::columns; ++j) {
            float sum = 0.0f;
            for (Index i = 0; i < ladder::columns; ++i) {
                float product = x[row * ladder::columns + i];
                for (Index k = ladder::factor_count, p = i, q = j; k-- > 0; p /= n, q /= n) {
                    product *= f[(k * n + p % n) * n + q % n];
                }
                sum += product;
            }
            y(row, j) = sum;
        }
    }
}

/// K itself, 32768 x 32768.
matrix materialise(const std::vector<float>& f) {
    constexpr Index n = ladder::factor_order;
    matrix k(ladder::columns, ladder::columns);
#pragma omp parallel for
    for (Index i = 0; i < k.rows(); ++i) {
        for (Index j = 0; j < k.cols(); ++j) {
            float product = 1.0f;
            for (Index m = ladder::factor_count, p = i, q = j; m-- > 0; p /= n, q /= n) {
                product *= f[(m * n + p % n) * n + q % n];
            }
            k(i, j) = product;
        }
    }
    return k;
}

/// Eigen's GEMM a factor, the last factor first, in place of its mode: a block of 8 x inner entries at a time, for the last factor
/// all at once.
void gemm_chain(const matrix& x, const std::vector<float>& f, matrix& scratch, matrix& y) {
    constexpr Index n = ladder::factor_order;
    const float* from = x.data();
    float* to = y.data();
    float* other = scratch.data();
    for (Index k = ladder::factor_count, inner = 1; k-- > 0; inner *= n) {
        const Eigen::Map<const matrix> a(factor(f, static_cast<int>(k)), n, n);
        if (inner == 1) {
            Eigen::Map<matrix>(to, x.size() / n, n).noalias() = Eigen::Map<const matrix>(from, x.size() / n, n) * a;
        } else {
#pragma omp parallel for
            for (Index block = 0; block < x.size() / (n * inner); ++block) {
                Eigen::Map<matrix>(to + block * n * inner, n, inner).noalias() =
                    a.transpose() * Eigen::Map<const matrix>(from + block * n * inner, n, inner);
            }
        }
        from = to;
        std::swap(to, other);
    }
    if (from != y.data()) {
        y.swap(scratch);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const otimes::bench::arguments words(argc, argv, "ladder_cpu [--brief]", 1);
    const bool brief = std::strcmp(words.text(1), "--brief") == 0;
    if (argc > 1 && !brief) {
        words.refuse();
    }
#ifdef _OPENMP
    const std::string threads = std::to_string(omp_get_max_threads()) + " threads";
#else
    const std::string threads = "1 thread";
#endif
    const std::vector<float> x = ladder::make_x();
    const std::vector<float> f = ladder::make_factors();
    const matrix mx = Eigen::Map<const matrix>(x.data(), ladder::rows, ladder::columns);
    matrix y(ladder::rows, ladder::columns);
    const float nothing = std::numeric_limits<float>::quiet_NaN();
    bool right = true;

    y.setConstant(nothing);
    const double one_row = milliseconds(1, [&] { naive(x, f, 1, y); });
    right &= ladder::report("cpu: naive triple loop", one_row * ladder::rows,
                            ladder::relative_error(x.data(), f.data(), y.data(), 1),
                            (threads + "; one row measured and multiplied by 1024").c_str());

    if (!brief) {
        const matrix k = materialise(f);
        y.setConstant(nothing);
        const double ms = milliseconds(1, [&] { y.noalias() = mx * k; });
        right &= ladder::report("cpu: materialised product", ms, ladder::relative_error(x.data(), f.data(), y.data()),
                                (threads + "; without forming the 4 GiB").c_str());
    }

    matrix scratch(ladder::rows, ladder::columns);
    y.setConstant(nothing);
    const double chain = milliseconds(5, [&] { gemm_chain(mx, f, scratch, y); });
    right &= ladder::report("cpu: one Eigen GEMM a factor", chain, ladder::relative_error(x.data(), f.data(), y.data()),
                            threads.c_str());

    std::vector<matrix> factors;
    for (int k = 0; k < ladder::factor_count; ++k) {
        factors.emplace_back(Eigen::Map<const matrix>(factor(f, k), ladder::factor_order, ladder::factor_order));
    }
    const auto product = otimes::kron(factors);
    y.setConstant(nothing);
    const double fused = milliseconds(15, [&] { y.noalias() = mx * product; });
    right &= ladder::report("cpu: otimes; SIMD and fused", fused, ladder::relative_error(x.data(), f.data(), y.data()),
                            threads.c_str());
    return right ? 0 : 1;
}

// SPDX-License-Identifier: MIT
// Dot products with X * K and K * X tile by tile (exec/cpu/chain_dot.hpp), against loops over one mode after the other in long double.
#include <otimes/algebra.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <Eigen/Core>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "support/counting_new.hpp"

namespace {

struct extents {
    int p, q;
};

// Numbers between -1 and 1 that repeat.
struct numbers {
    std::uint64_t state = 5;
    double operator()() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(state >> 40) / (1 << 23) - 1;
    }
};

// sum_q v[q] sum_p x[p] F1[p1, q1] .. Fd[pd, qd] and the same of absolute values.
template <class Scalar>
void by_loops(const std::vector<extents>& modes, const std::vector<std::vector<Scalar>>& factors, const Scalar* x,
              const Scalar* v, long double& sum, long double& size) {
    std::size_t elements = 1;
    for (const extents& e : modes) {
        elements *= static_cast<std::size_t>(e.p);
    }
    std::vector<long double> now(x, x + elements), absolute(elements);
    for (std::size_t i = 0; i < elements; ++i) {
        absolute[i] = std::abs(now[i]);
    }
    std::size_t outer = 1;
    for (std::size_t k = 0; k < modes.size(); ++k) {  // the first mode first
        const auto p = static_cast<std::size_t>(modes[k].p), q = static_cast<std::size_t>(modes[k].q);
        const std::size_t inner = now.size() / outer / p;
        std::vector<long double> next(outer * q * inner), next_absolute(outer * q * inner);
        for (std::size_t o = 0; o < outer; ++o) {
            for (std::size_t j = 0; j < q; ++j) {
                for (std::size_t i = 0; i < p; ++i) {
                    const long double f = factors[k][i * q + j];
                    for (std::size_t n = 0; n < inner; ++n) {
                        next[(o * q + j) * inner + n] += f * now[(o * p + i) * inner + n];
                        next_absolute[(o * q + j) * inner + n] += std::abs(f) * absolute[(o * p + i) * inner + n];
                    }
                }
            }
        }
        now = next;
        absolute = next_absolute;
        outer *= q;
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
        sum += v[i] * now[i];
        size += std::abs(v[i]) * absolute[i];
    }
}

// dot(V, 2 X K), or of K^T from the left, with rows of X and V at a distance, NaN between and around them.
template <class Scalar>
void check(const std::vector<extents>& modes, int rows, bool from_left) {
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    CAPTURE(modes.size());
    CAPTURE(modes.front().p);
    CAPTURE(modes.back().q);
    CAPTURE(rows);
    CAPTURE(from_left);
    numbers next;
    std::vector<std::vector<Scalar>> factors;
    std::vector<matrix> matrices;
    Eigen::Index length = 1, width = 1;
    for (const extents& e : modes) {
        matrices.emplace_back(e.p, e.q);
        factors.emplace_back();
        for (Eigen::Index i = 0; i < matrices.back().size(); ++i) {
            factors.back().push_back(static_cast<Scalar>(next()));
            matrices.back().data()[i] = factors.back().back();
        }
        length *= e.p;
        width *= e.q;
    }
    constexpr Eigen::Index gap = 3;
    const auto poisoned = [&](Eigen::Index row) {
        std::vector<Scalar> data(static_cast<std::size_t>(gap + rows * (row + gap)),
                                 std::numeric_limits<Scalar>::quiet_NaN());
        for (Eigen::Index r = 0; r < rows; ++r) {
            for (Eigen::Index i = 0; i < row; ++i) {
                data[static_cast<std::size_t>(gap + r * (row + gap) + i)] = static_cast<Scalar>(next());
            }
        }
        return data;
    };
    const std::vector<Scalar> x = poisoned(length), v = poisoned(width);
    long double want = 0, size = 0;
    for (Eigen::Index r = 0; r < rows; ++r) {
        by_loops(modes, factors, x.data() + gap + r * (length + gap), v.data() + gap + r * (width + gap), want, size);
    }
    const Eigen::Map<const matrix, 0, Eigen::OuterStride<>> X(x.data() + gap, rows, length,
                                                              Eigen::OuterStride<>(length + gap));
    const Eigen::Map<const matrix, 0, Eigen::OuterStride<>> V(v.data() + gap, rows, width,
                                                              Eigen::OuterStride<>(width + gap));
    const auto K = otimes::kron(matrices);
    const auto evaluate = [&] {
        return from_left ? otimes::dot(V.transpose(), Scalar(2) * (K.transpose() * X.transpose()))
                         : otimes::dot(V, Scalar(2) * (X * K));
    };
    const Scalar got = evaluate();
    CHECK(std::abs(static_cast<long double>(got) - 2 * want) <=
          20 * static_cast<long double>(std::numeric_limits<Scalar>::epsilon()) * size);
    CHECK(got == evaluate());
#if defined(_OPENMP)
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    CHECK(got == evaluate());
    omp_set_num_threads(threads);
#endif
}

}  // namespace

TEST_CASE_TEMPLATE("dot products tile by tile, of any extents", Scalar, double, float) {
    const std::vector<std::vector<extents>> shapes = {
        {{5, 7}, {9, 11}},                            // less than a register of each, and a rest
        {{70, 65}, {40, 51}},                         // several blocks of the first mode
        {{8, 8}, {8, 8}, {8, 8}},                     // several rows in a tile
        {{3, 3}, {2, 2}, {3, 3}},                     // fewer numbers than a tile of anything
        {{17, 17}, {16, 16}, {35, 35}},               // some registers of the last mode at a time, in place
        {{12, 12}, {12, 12}, {12, 12}},               // all of the last mode
        {{19, 20}, {7, 9}, {21, 21}},                 // two tiles, where a mode is not square
        {{9, 1}, {1, 6}, {6, 16}},                    // extents of one
        {{4, 4}, {4, 4}, {4, 4}, {20, 20}},           // two modes between
        {{5, 5}, {6, 4}, {4, 6}, {17, 18}},           //
        {{16, 16}, {16, 16}, {16, 16}, {16, 16}},     // a tile on the heap, or none
        {{3, 3}, {3, 3}, {3, 3}, {3, 3}, {33, 33}}};  //
    for (const std::vector<extents>& modes : shapes) {
        for (const int rows : {1, 5}) {
            check<Scalar>(modes, rows, false);
            check<Scalar>(modes, rows, true);
        }
    }
    check<Scalar>({{32, 32}, {32, 32}, {32, 32}}, 1, false);  // shared by threads
    check<Scalar>({{12, 12}, {12, 12}, {12, 12}}, 40, false);
}

TEST_CASE("an infinity that two registers hold is one infinity") {
    const Eigen::MatrixXd A = Eigen::MatrixXd::Constant(9, 9, 0.5), B = Eigen::MatrixXd::Constant(37, 37, 0.25);
    const auto K = otimes::kron(A, B);
    const Eigen::VectorXd x = Eigen::VectorXd::Ones(9 * 37);
    for (const Eigen::Index at : {0, 30, 31, 32, 33, 36, 332}) {
        Eigen::VectorXd v = Eigen::VectorXd::Ones(9 * 37);
        v(at) = std::numeric_limits<double>::infinity();
        CHECK(otimes::dot(v, K * x) == std::numeric_limits<double>::infinity());
    }
}

TEST_CASE("a single row of three modes takes less than a piece of the product") {
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(64, 64);
    const auto K = otimes::kron(A, A, A);
    const Eigen::VectorXd x = Eigen::VectorXd::Random(64 * 64 * 64);
    const double first = otimes::dot(x, K * x);
    const support::allocation_counter counter;
    const double again = otimes::dot(x, K * x);
    const auto seen = counter.seen();
    CHECK(first == again);
    if (support::allocations_are_counted()) {
        CHECK(seen.largest_bytes < 64 * 64 * sizeof(double));  // size(y) / P1
    }
}

TEST_CASE("of two factors and a single row memory is taken for the packed factors alone") {
    const Eigen::MatrixXd A = Eigen::MatrixXd::Random(307, 307), B = Eigen::MatrixXd::Random(301, 301);
    const auto K = otimes::kron(A, B);
    const Eigen::VectorXd x = Eigen::VectorXd::Random(307 * 301), v = Eigen::VectorXd::Random(307 * 301);
    const support::allocation_counter counter;
    const double got = otimes::dot(v, K * x);
    const auto seen = counter.seen();
    const Eigen::Map<const Eigen::MatrixXd> X(x.data(), 301, 307), V(v.data(), 301, 307);
    CHECK(std::abs(got - (V.transpose() * B * X * A.transpose()).trace()) <= 1e-9 * v.norm() * x.norm());
    if (support::allocations_are_counted()) {
        CHECK(seen.total_bytes < (307 * 307 + 301 * 304 + 4096) * sizeof(double));
    }
}

// SPDX-License-Identifier: MIT
// Factors that differ from item to item: one plan, items over the threads (exec_native has OpenMP), the same bits as one by one.
#include <otimes/tkron.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

TEST_CASE("items with factors of their own, more of them than threads") {
    const std::int64_t count = 1000, m = 5, p = 4, n = 3, q = 6;
    std::vector<double> a(count * m * p), b(count * n * q), x(count * p * q);
    std::uint64_t state = 1;
    for (std::vector<double>* v : {&a, &b, &x}) {
        for (double& value : *v) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            value = static_cast<double>(state >> 40) / (1 << 23) - 1;
        }
    }
    std::vector<double> together(count * m * n, std::numeric_limits<double>::quiet_NaN()), apart = together;
    otimes::tkron2<double>({otimes::op::none, m, p, a.data(), 0, m * p},
                           {otimes::op::transpose, n, q, b.data(), 0, n * q}, {otimes::op::none, x.data(), 0, 0, p * q},
                           {otimes::op::none, together.data(), 0, 0, m * n}, count);
    for (std::int64_t i = 0; i < count; ++i) {
        otimes::tkron2<double>({otimes::op::none, m, p, a.data() + i * m * p},
                               {otimes::op::transpose, n, q, b.data() + i * n * q},
                               {otimes::op::none, x.data() + i * p * q}, {otimes::op::none, apart.data() + i * m * n});
    }
    CHECK(together == apart);
    const std::int64_t last = count - 1;
    double sum = 0;  // Y[m - 1, n - 1] of the last item
    for (std::int64_t i = 0; i < p; ++i) {
        for (std::int64_t j = 0; j < q; ++j) {
            sum += a[static_cast<std::size_t>(last * m * p + m - 1 + i * m)] *
                   b[static_cast<std::size_t>(last * n * q + j + (n - 1) * q)] *
                   x[static_cast<std::size_t>(last * p * q + i + j * p)];
        }
    }
    CHECK(together.back() == doctest::Approx(sum));
}

namespace {

// Y_i (+)= alpha * op(A_i) X_i op(B_i)^T of random items, at `gap` elements from each other; Y has guards around every item.
template <class Scalar>
void check_items(std::int64_t m, std::int64_t p, std::int64_t n, std::int64_t q, std::int64_t count, std::int64_t gap,
                 bool transposed, bool own_b, double beta) {
    CAPTURE(m);
    CAPTURE(p);
    CAPTURE(n);
    CAPTURE(q);
    CAPTURE(count);
    std::uint64_t state = 7;
    const auto random = [&](std::int64_t size) {
        std::vector<Scalar> v(static_cast<std::size_t>(size));
        for (Scalar& value : v) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            value = static_cast<Scalar>(static_cast<double>(state >> 40) / (1 << 23) - 1);
        }
        return v;
    };
    const std::int64_t a_size = m * p + gap, b_size = n * q + gap, x_size = p * q + gap, y_size = m * n + gap;
    const auto a = random(count * a_size), b = random(count * b_size), x = random(count * x_size);
    const std::vector<Scalar> before = random(count * y_size);
    std::vector<Scalar> y = before;
    const otimes::tkron_factor<Scalar> first =
        transposed ? otimes::tkron_factor<Scalar>{otimes::op::transpose, m, p, a.data(), 0, a_size}
                   : otimes::tkron_factor<Scalar>{otimes::op::none, m, p, a.data(), 0, a_size};
    const otimes::tkron_factor<Scalar> second{otimes::op::none, n, q, b.data(), 0, own_b ? b_size : 0};
    otimes::tkron2<Scalar>(first, second, {otimes::op::none, x.data(), 0, 0, x_size},
                           {otimes::op::none, y.data(), 0, 0, y_size}, count, Scalar(1.5), Scalar(beta));
    bool all = true;
    for (std::int64_t i = 0; i < count; ++i) {
        const Scalar* const A = a.data() + i * a_size;
        const Scalar* const B = b.data() + (own_b ? i * b_size : 0);
        for (std::int64_t r = 0; r < m; ++r) {
            for (std::int64_t s = 0; s < n; ++s) {
                double sum = 0;
                double scale = 1;
                for (std::int64_t k = 0; k < p; ++k) {
                    for (std::int64_t l = 0; l < q; ++l) {
                        const double term = static_cast<double>(transposed ? A[k + r * p] : A[r + k * m]) *
                                            B[s + l * n] * x[static_cast<std::size_t>(i * x_size + k + l * p)];
                        sum += term;
                        scale += std::abs(term);
                    }
                }
                const auto at = static_cast<std::size_t>(i * y_size + r + s * m);
                const double expected = 1.5 * sum + (beta == 0 ? 0 : beta * before[at]);
                const double tolerance =
                    8 * std::numeric_limits<Scalar>::epsilon() * static_cast<double>(p + q) * scale;
                all = all && std::abs(y[at] - expected) <= tolerance;
            }
        }
        for (std::int64_t g = 0; g < gap; ++g) {
            const auto at = static_cast<std::size_t>(i * y_size + m * n + g);
            all = all && y[at] == before[at];
        }
    }
    CHECK(all);
}

}  // namespace

TEST_CASE("items with factors of their own: every remainder of lanes, rows and columns") {
    for (const std::int64_t count : {1, 2, 3, 5, 17, 41, 187}) {
        check_items<double>(3, 3, 3, 3, count, 0, false, true, 0);
        check_items<double>(5, 4, 3, 6, count, 3, true, true, 1);
        check_items<double>(1, 7, 2, 1, count, 1, false, false, -0.5);
        check_items<float>(9, 2, 17, 5, count, 2, true, false, 0);
        check_items<float>(4, 8, 8, 4, count, 0, false, true, 2);
        check_items<double>(30, 31, 29, 30, count, 1, false, true, 0);  // more than lanes are for
    }
}

TEST_CASE("items with factors of their own: NaN in one item stays there, and Y is not read where beta is 0") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> a(5 * 4, 1), b(5 * 4, 1), x(5 * 4, 1), y(5 * 4, nan);
    x[2 * 4] = nan;
    otimes::tkron2<double>({otimes::op::none, 2, 2, a.data(), 0, 4}, {otimes::op::none, 2, 2, b.data(), 0, 4},
                           {otimes::op::none, x.data(), 0, 0, 4}, {otimes::op::none, y.data(), 0, 0, 4}, 5);
    for (std::size_t i = 0; i < y.size(); ++i) {
        CHECK(std::isnan(y[i]) == (i / 4 == 2));
        CHECK((i / 4 == 2 || y[i] == 4));
    }
}

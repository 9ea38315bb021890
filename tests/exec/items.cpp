// SPDX-License-Identifier: MIT
// Factors that differ from item to item: one plan, items over the threads (exec_native has OpenMP), the same bits as one by one.
#include <otimes/tkron.hpp>

#include <doctest/doctest.h>

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

// SPDX-License-Identifier: MIT
// One long factor by blocks, on the host: a product with gaps, its operands and what it is. As fused.hpp.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/oracle.hpp"

#include <blocked_multiply.cuh>

namespace kernel_tests {
using namespace otimes::kernels;

using c64 = otimes::kernels::complex<float>;
using c128 = otimes::kernels::complex<double>;

inline wide conjugated(wide v, bool yes) { return yes ? std::conj(v) : v; }

// X[b, f2, p, f1] where p is not the innermost, else X[b, f2, f1, p]; Y alike with q; F[b or not, p, q] or [q, p]. Rows are `gap` longer than
// what they hold.
struct blocked_problem {
    index p, q, f1, f2 = 1, b = 1;
    bool x_along_p = true, f_along_p = false, own_factors = false, adds = false, backwards = false;
    index gap = 0;
    int grid = 2;
    bool turned = false;  // Y's rows are X's columns
};

template <class Storage>
struct blocked_case {
    using scalar = typename computing<Storage>::type;
    blocked_arguments<Storage, scalar> a{};
    std::vector<Storage> x, f, y;
    std::vector<wide> want;

    explicit blocked_case(const blocked_problem& c, int seed) {
        const bool y_along_q = c.x_along_p != c.turned;
        const index row_x = (c.x_along_p ? c.p : c.f1) + c.gap, row_y = (y_along_q ? c.q : c.f1) + c.gap;
        const index x_f1 = c.x_along_p ? row_x : 1, x_p = c.x_along_p ? 1 : row_x,
                    x_f2 = row_x * (c.x_along_p ? c.f1 : c.p), x_b = x_f2 * c.f2;
        const index y_f1 = y_along_q ? row_y : 1, y_q = y_along_q ? 1 : row_y, y_f2 = row_y * (y_along_q ? c.f1 : c.q),
                    y_b = y_f2 * c.f2;
        const index row_f = (c.f_along_p ? c.p : c.q) + c.gap, f_p = c.f_along_p ? 1 : row_f,
                    f_q = c.f_along_p ? row_f : 1, f_b = row_f * (c.f_along_p ? c.q : c.p);
        support::random_stream stream(seed);
        // What lies between the rows is not a number: it must not come in.
        const Storage nothing = make<Storage>({std::numeric_limits<double>::quiet_NaN(), 0});
        x = random_values<Storage>(stream, x_b * c.b);
        f = random_values<Storage>(stream, f_b * (c.own_factors ? c.b : 1));
        for (std::size_t i = 0; i < x.size(); ++i)
            if (index(i) % row_x >= row_x - c.gap) x[i] = nothing;
        for (std::size_t i = 0; i < f.size(); ++i)
            if (index(i) % row_f >= row_f - c.gap) f[i] = nothing;
        // Behind the last row there is nothing at all.
        x.resize(x.size() - std::size_t(c.gap));
        x.shrink_to_fit();
        f.resize(f.size() - std::size_t(c.gap));
        f.shrink_to_fit();
        y = random_values<Storage>(stream, y_b * c.b);
        auto& s = a.sliced;
        s.x = x.data();
        s.f = f.data();
        s.y = y.data();
        s.alpha = make<scalar>({0.5, c.adds ? 1.0 : 0.0});
        s.beta = make<scalar>({c.adds ? -2.0 : 0.0, 0});
        s.p_extent = c.p;
        s.q_extent = c.q;
        s.x_p_stride = x_p;
        s.f_p_stride = f_p;
        s.f_q_stride = f_q;
        s.y_q_stride = y_q;
        const auto free = [&s](index extent, index x_stride, index y_stride, index f_stride) {
            s.free_extent[s.free_count] = extent;
            s.x_stride[s.free_count] = x_stride;
            s.y_stride[s.free_count] = y_stride;
            s.f_stride[s.free_count++] = f_stride;
        };
        free(c.b, x_b, y_b, c.own_factors ? f_b : 0);
        a.batch_count = c.own_factors ? 1 : 0;
        free(c.f2, x_f2, y_f2, 0);
        free(c.f1, x_f1, y_f1, 0);
        s.conjugate_x = c.adds;
        s.conjugate_f = c.own_factors;
        for (const Storage& before : y) {
            want.push_back(widen(before));  // what lies between the rows stays
        }
        for (index b = 0; b < c.b; ++b)
            for (index i = 0; i < c.f2; ++i)
                for (index j = 0; j < c.f1; ++j)
                    for (index n = 0; n < c.q; ++n) {
                        wide sum = 0;
                        for (index k = 0; k < c.p; ++k)
                            sum += conjugated(widen(x[std::size_t(b * x_b + i * x_f2 + j * x_f1 + k * x_p)]), c.adds) *
                                   conjugated(widen(f[std::size_t((c.own_factors ? b * f_b : 0) + k * f_p + n * f_q)]),
                                              c.own_factors);
                        const auto at = std::size_t(b * y_b + i * y_f2 + j * y_f1 + n * y_q);
                        want[at] = widen(s.alpha) * sum + (c.adds ? widen(s.beta) * want[at] : wide{});
                        if (!c.adds) y[at] = make<Storage>({std::numeric_limits<double>::quiet_NaN(), 0});
                    }
    }
};

// No p leaves beta * Y; what the matrix unit cannot split is what multiply-adds give. `run` multiplies rows along p by F[p, q].
template <class Run>
void check_empty_and_special(Run run) {
    blocked_problem c{40, 34, 30, 2};
    c.adds = true;
    blocked_case<float> empty(c, 5);
    empty.a.sliced.p_extent = 0;
    const std::vector<wide> before = widened(empty.y);
    run(empty, c);
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(widen(empty.y[i]) == -2.0 * before[i]);

    c.adds = false;
    blocked_case<float> special(c, 6);
    constexpr float infinity = std::numeric_limits<float>::infinity();
    special.x[3] = infinity;
    special.x[41] = std::numeric_limits<float>::quiet_NaN();
    special.x[81] = std::numeric_limits<float>::max();
    run(special, c);
    for (index q = 0; q < c.q; ++q) {
        CHECK(special.y[std::size_t(q)] == (special.f[std::size_t(3 * c.q + q)] > 0 ? infinity : -infinity));
        CHECK(std::isnan(special.y[std::size_t(c.q + q)]));
        const float large = 0.5f * special.x[81] * special.f[std::size_t(c.q + q)];
        CHECK(std::abs(special.y[std::size_t(2 * c.q + q)] - large) <= 1e-5f * std::abs(large));
    }
}

}  // namespace kernel_tests

// SPDX-License-Identifier: MIT
// One fused kernel on the host, whatever its group asks for, against sums written out.
#pragma once

#include "kernels/oracle.hpp"

#include <fused_outer.cuh>
#include <fused_trailing.cuh>

namespace kernel_tests {

using namespace otimes::kernels;

enum class what { plain, sums_and_gaps, in_place, infinite, large };

/// Lines of X, tensors in each (outer: of the group's modes), elements below them.
struct shape {
    index lines = 1;
    index parts = 1;
    index inner = 1;
};

template <class Group>
struct fused_problem {
    using scalar = typename Group::scalar;
    using storage = typename Group::storage;
    using traits = scalar_traits<scalar>;
    using real = typename traits::real;
    using sum = typename sum_type<scalar>::type;
    static constexpr bool outer = Group::run > 1;
    static constexpr bool scales = Group::ending == ends_scaled_along || Group::ending == ends_scaled_across;

    shape s;
    what how;
    support::random_stream stream;
    std::vector<index> p, q;                    // of the whole modes
    index in = 1, out = 1;                      // elements of a tensor
    index pieces;                               // of a tensor along mode 1
    std::vector<std::vector<storage>> factors;  // (term, mode)
    std::vector<scalar> alphas;                 // (term)
    scalar beta;

    fused_problem(shape s_, what how_)
        : s(s_),
          how(how_),
          stream(static_cast<std::uint64_t>(s_.lines * 100 + s_.inner)),
          pieces(Group::in_pieces ? s_.parts : 1) {
        for (int level = 1; level <= Group::modes; ++level) {
            p.push_back(Group::p(level) * (level == 1 ? pieces : 1));
            q.push_back(Group::q(level) * (level == Group::modes ? Group::slices : 1));
            in *= p.back();
            out *= q.back();
        }
        if (pieces > 1) {
            s.parts = 1;
        }
        const bool gaps = how == what::sums_and_gaps;
        const double small = how == what::large ? 0x1p-20 : 1.0;
        for (int t = 0; t < Group::terms; ++t) {
            for (std::size_t k = 0; k < p.size(); ++k) {
                factors.push_back(random_values<storage>(stream, p[k] * q[k]));
                for (storage& f : factors.back()) {
                    f = make<storage>(small * widen(f));
                }
            }
            alphas.push_back(make<scalar>(gaps || t > 0 ? wide{0.5 + t, 2} : wide{1, 0}));
        }
        beta = make<scalar>(gaps && !scales ? wide{-1, 0.25} : wide{0, 0});
    }

    // The sum of all terms over X as it was computed from, without alpha where there is one term.
    [[nodiscard]] std::vector<wide> image(const std::vector<wide>& x) const {
        std::vector<wide> all;
        for (int t = 0; t < Group::terms; ++t) {
            std::vector<std::vector<wide>> now;
            for (std::size_t k = 0; k < p.size(); ++k) {
                now.push_back(widened(factors[static_cast<std::size_t>(t) * p.size() + k]));
            }
            std::vector<wide> one = product_of(x, s.lines * s.parts, s.inner, p, now);
            all.resize(one.size());
            for (std::size_t i = 0; i < one.size(); ++i) {
                all[i] += (Group::terms > 1 ? widen(alphas[static_cast<std::size_t>(t)]) : wide{1}) * one[i];
            }
        }
        return all;
    }

    void run(group_arguments<storage>& arguments, bool backwards) const {
        for (std::size_t k = 0; k < factors.size(); ++k) {
            arguments.factor[k] = factors[k].data();
            arguments.factor_p_stride[k] = q[k % p.size()];
            arguments.factor_q_stride[k] = 1;
        }
        for (int i = 1; i < Group::inputs; ++i) {  // its rows of the one factor
            arguments.factor[i] = factors[0].data() + i * (p[0] / Group::inputs) * q[0];
            arguments.factor_p_stride[i] = q[0];
            arguments.factor_q_stride[i] = 1;
        }
        arguments.alpha = alphas[0];
        for (int t = 1; t < Group::terms; ++t) {
            arguments.more_alpha[t - 1] = alphas[static_cast<std::size_t>(t)];
        }
        arguments.beta = beta;
        arguments.lines = s.lines;
        arguments.parts_per_line = s.parts * pieces;
        gridDim.x = 2 * Group::cluster * Group::slices;
        host_device::backwards = backwards;
        host_device::run_grid(Group::cluster, Group::threads, Group::shared_bytes, [&arguments] {
            if constexpr (outer) {
                fused_outer<Group>(arguments);
            } else {
                fused_trailing<Group>(arguments);
            }
        });
    }
};

/// Of a result in norm: that of its elements, of single products that of half.
template <class Group>
constexpr double tolerance_of =
    Group::single_products && !Group::widens ? tolerance<otimes::kernels::half> : tolerance<typename Group::storage>;

/// Runs a group over a shape and checks what it leaves: every element, and what stands around.
template <class Group>
void check_fused(shape s, what how, bool backwards) {
    using problem_type = fused_problem<Group>;
    using storage = typename Group::storage;
    using real = typename problem_type::real;
    CAPTURE(s.lines);
    CAPTURE(s.parts);
    CAPTURE(s.inner);
    CAPTURE(static_cast<int>(how));
    CAPTURE(backwards);
    problem_type problem(s, how);
    s = problem.s;
    const bool special = how == what::infinite || how == what::large;
    const index gap = how == what::sums_and_gaps ? 3 : 0;
    const bool one_place = how == what::in_place;  // Y is X

    matrix_in_memory<storage> x(s.lines, s.parts * problem.in, s.inner, gap, 0);
    matrix_in_memory<storage> y(s.lines, s.parts * problem.out, s.inner, gap > 0 ? gap + 1 : 0, gap);
    x.fill(problem.stream);
    std::vector<wide> wide_x = x.values();
    // The last row and inner index with special values.
    const index of_tensor = problem.in * s.inner;
    for (index i = 0; special && i < problem.in; ++i) {
        const index at = (s.lines * s.parts - 1) * of_tensor + i * s.inner + s.inner - 1;
        if (how == what::large) {
            x[at] = make<storage>(static_cast<double>(std::numeric_limits<real>::max()));
            wide_x[static_cast<std::size_t>(at)] = widen(x[at]);
        } else if (i == problem.in / 2) {
            x[at] = make<storage>(std::numeric_limits<double>::infinity());
        }
    }
    std::vector<wide> want = problem.image(wide_x);
    const wide alpha = Group::terms > 1 ? wide{1} : widen(problem.alphas[0]);

    // What stands in Y before, and C.
    matrix_in_memory<storage> c = y;
    if (one_place) {
        y = x;
    } else if (gap > 0 || Group::reads_y) {
        y.fill(problem.stream);
        c.fill(problem.stream);
    }
    const std::vector<wide> before = y.values();
    group_arguments<storage> arguments{};
    arguments.x = one_place ? y.data() : x.data();
    arguments.y = y.data();
    arguments.x_line_stride = x.line_stride;
    arguments.y_line_stride = y.line_stride;
    arguments.inner = s.inner;
    arguments.x_inner = x.inner_stride;
    arguments.y_inner = y.inner_stride;
    if constexpr (Group::inputs > 1) {
        matrix_in_memory<storage> halves[2] = {{s.lines, s.parts * problem.in / 2, s.inner, gap, 0},
                                               {s.lines, s.parts * problem.in / 2, s.inner, gap, 0}};
        const index half = of_tensor / 2;
        for (index i = 0; i < x.size(); ++i) {
            halves[i % of_tensor / half][i / of_tensor * half + i % half] = x[i];
        }
        // One memory, so that there is a distance from one to the other.
        x.memory = halves[0].memory;
        x.memory.insert(x.memory.end(), halves[1].memory.begin(), halves[1].memory.end());
        arguments.x = x.memory.data();
        arguments.x_line_stride = halves[0].line_stride;
        arguments.second = static_cast<index_t>(halves[0].memory.size());
    }
    std::vector<storage> y_and_c;  // Y, then C
    if constexpr (Group::addend) {
        y_and_c = y.memory;
        y_and_c.insert(y_and_c.end(), c.memory.begin(), c.memory.end());
        arguments.y = y_and_c.data() + y.offset;
        arguments.c_offset = static_cast<index_t>(y.memory.size());
    }
    std::vector<storage> d;
    std::vector<typename problem_type::sum> sums(  // more than there are blocks
        2 * Group::cluster * Group::slices + 7,
        make<typename problem_type::sum>({std::numeric_limits<double>::quiet_NaN(), 0}));
    if constexpr (Group::sums_up) {
        arguments.sums_or_d = sums.data();
        arguments.divisor = static_cast<unsigned>(sums.size());
        arguments.conjugate_y = gap > 0;
    } else if constexpr (problem_type::scales) {
        const unsigned divisor = static_cast<unsigned>(y.line_stride);
        d = random_values<storage>(problem.stream, std::max(y.line_stride, s.lines + 1));
        arguments.sums_or_d = d.data();
        arguments.divisor = divisor;
        int bits = 0;
        while ((std::uint64_t{1} << bits) < divisor) {
            ++bits;
        }
        arguments.magic = static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + divisor - 1) / divisor);
        arguments.shift = bits - 1;
    }
    const matrix_in_memory<storage> y_before = y;
    problem.run(arguments, backwards);
    if constexpr (Group::addend) {
        std::copy_n(y_and_c.begin(), y.memory.size(), y.memory.begin());
        CHECK(std::memcmp(y_and_c.data() + y.memory.size(), c.memory.data(), c.memory.size() * sizeof(storage)) == 0);
    }

    if constexpr (Group::sums_up) {
        wide total = 0;
        double size = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
            const wide z = want[i];
            const wide v = gap > 0 ? std::conj(before[i]) : before[i];
            const wide term = Group::ending == ends_in_norm       ? std::norm(alpha) * std::norm(z)
                              : Group::ending == ends_in_distance ? std::norm(alpha * z - v)
                                                                  : alpha * (v * z);
            total += term;
            size += std::abs(term);
        }
        wide got = 0;
        for (const auto& one : sums) {
            got += widen(one);
        }
        CHECK(std::abs(got - total) <= 2 * tolerance_of<Group> * size);
        CHECK(std::memcmp(y.memory.data(), y_before.memory.data(), y.memory.size() * sizeof(storage)) == 0);
        return;
    }
    const std::vector<wide> added = Group::addend ? c.values() : before;
    for (index i = 0; i < y.size(); ++i) {
        wide& w = want[static_cast<std::size_t>(i)];
        w *= alpha;
        if constexpr (problem_type::scales) {
            const index u = static_cast<index>(y.place(i)) - y.offset;
            const index at = Group::ending == ends_scaled_along ? u % y.line_stride : u / y.line_stride;
            w *= widen(d[static_cast<std::size_t>(at)]);
        } else if (gap > 0) {
            w += widen(problem.beta) * added[static_cast<std::size_t>(i)];
        }
    }
    std::vector<wide> got = y.values();
    if (special) {  // the special line apart, in its own scale
        const double scale = std::ldexp(1.0, -std::numeric_limits<real>::max_exponent + 1);
        std::vector<wide> special_got;
        std::vector<wide> special_want;
        for (index i = 0; i < problem.out; ++i) {
            const std::size_t at =
                static_cast<std::size_t>(((s.lines * s.parts - 1) * problem.out + i) * s.inner + s.inner - 1);
            special_got.push_back(scale * got[at]);
            special_want.push_back(scale * want[at]);
            got[at] = want[at];
        }
        if (how == what::infinite) {
            CHECK(std::any_of(special_got.begin(), special_got.end(),
                              [](wide v) { return !std::isfinite(v.real()) || !std::isfinite(v.imag()); }));
        } else {
            CHECK(relative_distance(special_got, special_want) <= tolerance_of<Group>);
        }
    }
    CHECK(relative_distance(got, want) <= tolerance_of<Group>);
    CHECK(y.surrounded_as(y_before));
}

/// Shapes with whole tiles and a part of one, in both orders of the threads.
template <class Group>
void check_group(const char* text) {
    CAPTURE(text);
    constexpr bool outer = Group::run > 1;
    constexpr bool several_rows = outer && Group::rows > 1;
    const shape some = outer              ? shape{2, several_rows ? Group::rows : 1, Group::run + 3}
                       : Group::in_pieces ? shape{3, 2, 1}
                                          : shape{2 * Group::rows + 1, 1, 1};
    check_fused<Group>(some, what::plain, false);
    check_fused<Group>(some, what::plain, true);
    check_fused<Group>(some, what::sums_and_gaps, true);
    check_fused<Group>(outer ? shape{1, several_rows ? 2 * Group::rows : 3, 2 * Group::run}
                             : shape{Group::in_pieces ? 2 : 3, Group::in_pieces ? 3 : 2 * Group::rows, 1},
                       what::sums_and_gaps, false);
    check_fused<Group>(outer ? shape{1, several_rows ? Group::rows : 1, 2 * Group::run} : shape{1, 1, 1}, what::plain,
                       false);
    if (!Group::sums_up) {
        check_fused<Group>(some, what::infinite, false);
        if (!Group::single_products) {
            check_fused<Group>(some, what::large, true);
        }
    }
    if (Group::is_square() && Group::terms == 1 && Group::ending == ends_stored && !Group::addend &&
        Group::inputs == 1 && Group::slices == 1) {
        check_fused<Group>(some, what::in_place, false);
        check_fused<Group>(some, what::in_place, true);
    }
}

// Rows, run, threads, stages (parts, how many ahead).
template <class Scalar, int Rows, int Run, int Threads, class P, class Q, class Trips, int Segments = 1, int Slots = 0>
using group = mode_group<Scalar, Rows, Run, Threads, 2, Segments, Slots, 1, 1, P, Q, Trips>;
// Run, threads: an outer group that is told that rows of Y begin anywhere.
template <class Scalar, int Run, int Threads, class P, class Q, class Trips>
using anywhere =
    mode_group<Scalar, 1, Run, Threads, 2, 1, 0, 1, 1, P, Q, Trips, 1, false, false, 1, 0, false, false, true>;
template <int... N>
using e = extents<N...>;
template <int First, int Count = 1, int Split = 1>
using adds = trip<First, Count, 0, Split>;  // multiply-adds
template <int First, int Count = 1, int Split = 1>
using unit = trip<First, Count, 1, Split>;  // the matrix unit
template <int First, int Split = 1>
using warpgroup = trip<First, 1, 2, Split>;  // the warpgroup's

using c64 = otimes::kernels::complex<float>;
using c128 = otimes::kernels::complex<double>;

}  // namespace kernel_tests

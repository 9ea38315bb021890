// SPDX-License-Identifier: MIT
// TKRON1, 2 and 3 against plain loops: all ops, strides, scalars, alpha and beta.
#include <otimes/tkron.hpp>

#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/compare.hpp"
#include "support/random.hpp"
#include "support/thrown.hpp"

namespace {

using otimes::op;
using Index = std::int64_t;

template <class Scalar>
using wide = oracle::wide_t<Scalar>;

template <class Scalar>
std::vector<Scalar> numbers(Index count, std::uint64_t seed) {
    std::vector<Scalar> result(static_cast<std::size_t>(count));
    support::random_stream stream(seed);
    for (Scalar& value : result) {
        value = support::detail::draw_scalar<Scalar>([&] { return stream.signed_unit(); });
    }
    return result;
}

// One call of tkron1, 2 or 3 and what it must leave in Y, gaps included.
template <class Scalar>
struct call {
    int dimension = 2;
    op ops[3] = {op::none, op::none, op::none};
    op x_op = op::none;
    Index rows[3] = {1, 1, 1};
    Index cols[3] = {1, 1, 1};
    Index count = 1;
    Index gap = 0;             // more than the least stride, everywhere
    bool own_factors = false;  // each item has factors of its own
    Scalar alpha = Scalar(1), beta = Scalar(0);

    // The largest |got - want| over the rounding bound of an entry, with NaN counting as infinite; checks the gaps.
    void check(std::uint64_t seed) const {
        const auto d = static_cast<std::size_t>(dimension);
        std::vector<Scalar> f[3];
        Index lead[3], stride[3];
        for (std::size_t k = 0; k < d; ++k) {
            const Index stored_rows = ops[k] == op::none ? rows[k] : cols[k];
            const Index stored_cols = ops[k] == op::none ? cols[k] : rows[k];
            lead[k] = stored_rows + gap;
            stride[k] = own_factors ? lead[k] * stored_cols + gap : 0;
            f[k] = numbers<Scalar>(lead[k] * stored_cols + (own_factors ? (count - 1) * stride[k] : 0), seed + k + 1);
        }
        // X[p, q, r] and Y[i, j, k], extents 1 beyond the dimension
        const bool turned = x_op != op::none;
        const Index x_extent[3] = {turned ? cols[1] : cols[0],
                                   dimension < 2 ? 1
                                   : turned      ? cols[0]
                                                 : cols[1],
                                   dimension < 3 ? 1 : cols[2]};
        const Index y_extent[3] = {rows[0], dimension < 2 ? 1 : rows[1], dimension < 3 ? 1 : rows[2]};
        Index xs[4] = {1, x_extent[0] + gap, 0, 0}, ys[4] = {1, y_extent[0] + 2 * gap, 0, 0};
        xs[2] = xs[1] * x_extent[1] + gap;
        ys[2] = ys[1] * y_extent[1] + gap;
        xs[3] = xs[2] * x_extent[2] + 3 * gap;
        ys[3] = ys[2] * y_extent[2] + gap;
        const std::vector<Scalar> x = numbers<Scalar>(count * xs[3], seed);
        std::vector<Scalar> y = numbers<Scalar>(count * ys[3], seed + 9);
        const std::vector<Scalar> before = y;
        if (beta == Scalar(0)) {
            y.assign(y.size(), Scalar(std::numeric_limits<support::real_t<Scalar>>::quiet_NaN()));
        }
        otimes::tkron_factor<Scalar> a[3];
        for (std::size_t k = 0; k < d; ++k) {
            a[k] = {ops[k], rows[k], cols[k], f[k].data(), lead[k], stride[k]};
        }
        const otimes::tkron_array<const Scalar> xa{x_op, x.data(), dimension < 2 ? 0 : xs[1], dimension < 3 ? 0 : xs[2],
                                                   xs[3]};
        const otimes::tkron_array<Scalar> ya{op::none, y.data(), dimension < 2 ? 0 : ys[1], dimension < 3 ? 0 : ys[2],
                                             ys[3]};
        switch (dimension) {
            case 1: otimes::tkron1(a[0], xa, ya, count, alpha, beta); break;
            case 2: otimes::tkron2(a[0], a[1], xa, ya, count, alpha, beta); break;
            default: otimes::tkron3(a[0], a[1], a[2], xa, ya, count, alpha, beta);
        }

        const auto entry = [&](std::size_t k, Index item, Index i, Index p) {  // op(factor k)[i, p]
            const Scalar value = f[k][static_cast<std::size_t>(
                item * stride[k] + (ops[k] == op::none ? i + p * lead[k] : p + i * lead[k]))];
            return ops[k] == op::adjoint ? oracle::detail::conjugated(oracle::detail::widened(value))
                                         : oracle::detail::widened(value);
        };
        bool right = true;
        bool gaps_kept = true;
        std::vector<char> is_element(y.size(), 0);
        for (Index b = 0; b < count; ++b) {
            // one mode after another, in long double
            std::vector<wide<Scalar>> now;
            std::vector<long double> bound;
            Index extent[3] = {cols[0], dimension < 2 ? 1 : cols[1], dimension < 3 ? 1 : cols[2]};
            for (Index r = 0; r < extent[2]; ++r) {
                for (Index q = 0; q < extent[1]; ++q) {
                    for (Index p = 0; p < extent[0]; ++p) {
                        const Index at = b * xs[3] + (turned ? q + p * xs[1] : p + q * xs[1]) + r * xs[2];
                        auto value = oracle::detail::widened(x[static_cast<std::size_t>(at)]);
                        now.push_back(x_op == op::adjoint ? oracle::detail::conjugated(value) : value);
                        bound.push_back(std::abs(value));
                    }
                }
            }
            for (std::size_t k = 0; k < d; ++k) {
                Index next_extent[3] = {extent[0], extent[1], extent[2]};
                next_extent[k] = rows[k];
                std::vector<wide<Scalar>> next;
                std::vector<long double> next_bound;
                for (Index r = 0; r < next_extent[2]; ++r) {
                    for (Index q = 0; q < next_extent[1]; ++q) {
                        for (Index p = 0; p < next_extent[0]; ++p) {
                            Index at[3] = {p, q, r};
                            const Index i = at[k];
                            wide<Scalar> sum(0);
                            long double magnitude = 0;
                            for (at[k] = 0; at[k] < extent[k]; ++at[k]) {
                                const auto from =
                                    static_cast<std::size_t>(at[0] + extent[0] * (at[1] + extent[1] * at[2]));
                                sum += entry(k, b, i, at[k]) * now[from];
                                magnitude += std::abs(entry(k, b, i, at[k])) * bound[from];
                            }
                            next.push_back(sum);
                            next_bound.push_back(magnitude);
                        }
                    }
                }
                now = next;
                bound = next_bound;
                extent[k] = rows[k];
            }
            std::size_t at = 0;
            for (Index r = 0; r < y_extent[2]; ++r) {
                for (Index q = 0; q < y_extent[1]; ++q) {
                    for (Index p = 0; p < y_extent[0]; ++p, ++at) {
                        const auto place = static_cast<std::size_t>(b * ys[3] + p + q * ys[1] + r * ys[2]);
                        is_element[place] = 1;
                        wide<Scalar> want = oracle::detail::widened(alpha) * now[at];
                        long double magnitude = std::abs(oracle::detail::widened(alpha)) * bound[at];
                        if (beta != Scalar(0)) {
                            want += oracle::detail::widened(beta) * oracle::detail::widened(before[place]);
                            magnitude +=
                                std::abs(oracle::detail::widened(beta) * oracle::detail::widened(before[place]));
                        }
                        const long double error = std::abs(oracle::detail::widened(y[place]) - want);
                        const auto terms = static_cast<std::size_t>(cols[0] + cols[1] + cols[2] + 4);
                        right = right && error <= support::rounding_bound<Scalar>(terms) * magnitude;
                    }
                }
            }
        }
        for (std::size_t i = 0; i < y.size(); ++i) {  // poison, or what was there
            if (is_element[i] == 0) {
                gaps_kept = gaps_kept && (beta == Scalar(0) ? !(y[i] == y[i]) : y[i] == before[i]);
            }
        }
        CHECK(right);
        CHECK(gaps_kept);
    }
};

template <class Scalar>
Scalar number(double re, double im) {
    if constexpr (support::is_complex<Scalar>) {
        using real = typename Scalar::value_type;
        return Scalar(static_cast<real>(re), static_cast<real>(im));
    } else {
        return static_cast<Scalar>(re);
    }
}

constexpr op all_ops[3] = {op::none, op::transpose, op::adjoint};

template <class Scalar>
void all_combinations() {
    const Scalar alphas[2] = {Scalar(1), number<Scalar>(-1.5, 0.25)};
    const Scalar betas[3] = {Scalar(0), Scalar(1), number<Scalar>(0.5, -2)};
    std::uint64_t seed = 1;
    for (int dimension = 1; dimension <= 3; ++dimension) {
        const int combinations = dimension == 1 ? 3 : dimension == 2 ? 27 : 27;
        for (int n = 0; n < combinations; ++n) {
            for (int scalars = 0; scalars < 6; ++scalars) {
                call<Scalar> c;
                c.dimension = dimension;
                c.ops[0] = all_ops[n % 3];
                c.ops[1] = all_ops[n / 3 % 3];
                (dimension == 2 ? c.x_op : c.ops[2]) = dimension == 1 ? op::none : all_ops[n / 9];
                const Index shapes[3][2] = {{3, 5}, {4, 2}, {2, 3}};
                for (std::size_t k = 0; k < static_cast<std::size_t>(dimension); ++k) {
                    c.rows[k] = shapes[k][0] + n % 2;
                    c.cols[k] = shapes[k][1] + scalars % 2;
                }
                c.count = 1 + n % 4;
                c.gap = (n + scalars) % 3;
                c.own_factors = (n + scalars / 2) % 2 == 1;
                c.alpha = alphas[scalars % 2];
                c.beta = betas[scalars / 2];
                CAPTURE(dimension);
                CAPTURE(n);
                CAPTURE(scalars);
                c.check(seed++);
            }
        }
    }
}

template <class Scalar>
void all_sizes() {
    for (Index n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 33}) {
        for (int dimension = 1; dimension <= 3; ++dimension) {
            call<Scalar> c;
            c.dimension = dimension;
            c.count = n > 16 ? 2 : 5;
            for (std::size_t k = 0; k < static_cast<std::size_t>(dimension); ++k) {
                c.rows[k] = n;
                c.cols[k] = dimension == 3 && k == 1 ? n + 1 : n;
                c.ops[k] = all_ops[(static_cast<std::size_t>(n) + k) % 3];
            }
            c.own_factors = n % 5 == 0;
            c.alpha = Scalar(2);
            c.beta = n % 2 == 0 ? Scalar(0) : Scalar(1);
            CAPTURE(n);
            CAPTURE(dimension);
            c.check(static_cast<std::uint64_t>(100 * n + dimension));
        }
    }
}

using support::text_of;

}  // namespace

TEST_CASE_TEMPLATE("tkron: all ops, strides, alpha and beta", Scalar, double, std::complex<float>) {
    all_combinations<Scalar>();
}

TEST_CASE_TEMPLATE("tkron: sizes 1 to 16, 20 and 33", Scalar, float, std::complex<double>) { all_sizes<Scalar>(); }

TEST_CASE("tkron: the reference executor gives the same, per-item factors in one program") {
    const otimes::scoped_executor scope(otimes::reference());
    for (const bool own : {false, true}) {
        call<double> c;
        c.dimension = 3;
        c.rows[0] = 2, c.rows[1] = 3, c.rows[2] = 4;
        c.cols[0] = 3, c.cols[1] = 1, c.cols[2] = 2;
        c.count = 3;
        c.gap = 1;
        c.own_factors = own;
        c.check(77);
    }
}

TEST_CASE("tkron: as documents show it") {
    const std::int64_t m = 2, n = 3, p = 4, q = 2, count = 5;
    const std::vector<double> a = numbers<double>(p * m, 1), b = numbers<double>(n * q, 2),
                              x = numbers<double>(count * p * q, 3);
    std::vector<double> y(static_cast<std::size_t>(count * m * n), 7.0);
    // [tkron-call]
    // Y_i = 2 A^T X_i B^T for i < count; A is stored p x m, B n x q, X_i p x q, Y_i m x n, all without gaps
    otimes::tkron2<double>({.how = otimes::op::transpose, .rows = m, .cols = p, .data = a.data()},
                           {.rows = n, .cols = q, .data = b.data()}, {.data = x.data(), .batch_stride = p * q},
                           {.data = y.data(), .batch_stride = m * n}, count, 2.0, 0.0);
    // [/tkron-call]
    double sum = 0;  // Y[1, 2] of item 4
    for (std::size_t i = 0; i < 4; ++i) {
        for (std::size_t j = 0; j < 2; ++j) {
            sum += 2 * a[i + 4] * x[4 * 8 + i + 4 * j] * b[2 + 3 * j];
        }
    }
    CHECK(y.back() == doctest::Approx(sum));
}

TEST_CASE("tkron: nothing to do, sums over nothing") {
    call<double> c;
    c.dimension = 2;
    c.rows[0] = 3, c.rows[1] = 2;
    for (const Index cols : {0, 2}) {
        for (const Index count : {0, 3}) {
            for (const double beta : {0.0, 1.0, 0.5}) {
                c.cols[0] = cols, c.cols[1] = 4;
                c.count = count;
                c.beta = beta;
                c.check(5);
            }
        }
    }
    c.rows[1] = 0;
    c.check(6);
}

TEST_CASE("tkron: arguments that are refused, before anything is written") {
    std::vector<double> a(6, 1.0), x(12, 1.0), y(8, 7.0);
    otimes::tkron_factor<double> A{op::none, 2, 3, a.data(), 2, 0};
    otimes::tkron_array<const double> X{op::none, x.data(), 3, 0, 6};
    otimes::tkron_array<double> Y{op::none, y.data(), 2, 0, 4};
    const auto message = [&] { return text_of<otimes::shape_error>([&] { otimes::tkron2(A, A, X, Y, 2); }); };
    const auto alias = [&] { return text_of<otimes::alias_error>([&] { otimes::tkron2(A, A, X, Y, 2); }); };
    A.leading_stride = 1;
    CHECK(message() == "otimes: tkron2: the leading stride of A is 1, but must be at least 2.");
    A.leading_stride = 2;
    A.rows = -2;
    CHECK(message() == "otimes: tkron2: op(A) is -2 x 3; extents must not be negative.");
    A.rows = 2;
    A.data = nullptr;
    CHECK(message() == "otimes: tkron2: A is a null pointer.");
    A.data = a.data();
    A.batch_stride = -1;
    CHECK(message() == "otimes: tkron2: the batch stride of A is -1; it must not be negative.");
    A.batch_stride = 0;
    X.leading_stride = 2;
    CHECK(message() == "otimes: tkron2: the leading stride of X is 2, but must be at least 3.");
    X.leading_stride = 3;
    X.batch_stride = -6;
    CHECK(message() == "otimes: tkron2: the batch stride of X is -6; it must not be negative.");
    X.batch_stride = 6;
    X.data = nullptr;
    CHECK(message() == "otimes: tkron2: X is a null pointer.");
    X.data = x.data();
    Y.how = op::transpose;
    CHECK(message() == "otimes: tkron2: only the factors, and X of tkron2, can be transposed.");
    Y.how = op::none;
    Y.batch_stride = 3;
    CHECK(alias() ==
          "otimes: tkron2: the items of Y overlap: the batch stride is 3, but an item reaches over 4 elements.");
    Y.batch_stride = 4;
    X.data = y.data();
    CHECK(alias() == "otimes: tkron2: Y shares memory with X. Give Y memory of its own.");
    X.data = x.data();
    CHECK(text_of<otimes::shape_error>([&] { otimes::tkron2(A, A, X, Y, -1); }) ==
          "otimes: tkron2: a batch of -1 items; the number must not be negative.");
    otimes::tkron_array<const double> huge = X;
    huge.leading_stride = (std::numeric_limits<Index>::max)();
    CHECK(text_of<otimes::shape_error>([&] { otimes::tkron2(A, A, huge, Y, 2); }) ==
          "otimes: tkron2: X has an element beyond 2^63 - 1 bytes; extents and strides are 64-bit.");
    huge.leading_stride = Index(1) << 60;  // in bytes
    CHECK(text_of<otimes::shape_error>([&] { otimes::tkron2(A, A, huge, Y, 2); }) ==
          "otimes: tkron2: X has an element beyond 2^63 - 1 bytes; extents and strides are 64-bit.");
    otimes::tkron_array<const double> flat = X;
    flat.plane_stride = 5;
    flat.leading_stride = 3;
    CHECK(text_of<otimes::shape_error>([&] { otimes::tkron3(A, A, A, flat, Y, 1); }) ==
          "otimes: tkron3: the plane stride of X is 5, but must be at least 9.");
    CHECK(y == std::vector<double>(8, 7.0));
    // X and Y take turns in one array, the items of Y between the columns of each other
    std::vector<double> z(20, 7.0);
    for (const std::size_t i : {0, 1, 2, 5, 6, 7, 10, 11, 12}) {
        z[i] = static_cast<double>(i);
    }
    const std::vector<double> one{1.0, 1.0};
    A = {op::none, 1, 3, a.data(), 1, 0};
    const otimes::tkron_factor<double> B{op::none, 1, 3, a.data(), 1, 0};
    otimes::tkron2<double>(A, B, {.data = z.data(), .leading_stride = 5}, {.data = z.data() + 3, .leading_stride = 10},
                           1);
    CHECK(z[3] == 54.0);
    std::vector<double> turns(8, 0.0);
    otimes::tkron2<double>({op::none, 2, 1, one.data(), 2, 0}, {op::none, 2, 1, one.data(), 2, 0},
                           {.data = x.data(), .batch_stride = 1},
                           {.data = turns.data(), .leading_stride = 4, .batch_stride = 2}, 2);
    CHECK(turns == std::vector<double>(8, 1.0));
}

// SPDX-License-Identifier: MIT
// The kernels without tiles, on the host: one mode of any stride, sparse factors, copies, diagonals, dot products, blocks for other GPUs. As
// fused_kernels.cpp.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/oracle.hpp"

#include <diagonal_scale.cuh>
#include <dot_product.cuh>
#include <exchange_blocks.cuh>
#include <few_fibres.cuh>
#include <generic_sliced_multiply.cuh>
#include <scaled_copy.cuh>
#include <sparse_multiply.cuh>

#include <otimes/plan/gpu_generic.hpp>
#include <otimes/plan/gpu_sparse.hpp>

namespace kernel_tests {
using namespace otimes::kernels;

namespace {

using c64 = otimes::kernels::complex<float>;
using c128 = otimes::kernels::complex<double>;

// What sums of a scalar are computed in.
template <class Scalar>
struct accumulator_of {
    using type = Scalar;
};
template <>
struct accumulator_of<float> {
    using type = double;
};
template <>
struct accumulator_of<c64> {
    using type = c128;
};

wide conjugated(wide v, bool yes) { return yes ? std::conj(v) : v; }

template <class Kernel>
void run(unsigned grid, unsigned threads, bool backwards, const Kernel& kernel) {
    gridDim.x = grid;
    host_device::backwards = backwards;
    host_device::run_grid(1, threads, 0, kernel);
}

}  // namespace

TEST_CASE_TEMPLATE("one mode of any stride", Scalar, float, double, c64, c128) {
    // X[f1, p, f2], Y[f2, f1, q] (other order), F[f2 shared or not, p, q] transposed, negative stride of X's f1.
    constexpr index f1 = 3, f2 = 5, p = 21, q = 4;
    for (const bool own_factors : {false, true}) {
        for (const bool adds : {false, true}) {
            CAPTURE(own_factors);
            CAPTURE(adds);
            support::random_stream stream(own_factors ? 1 : 2);
            const std::vector<Scalar> x = random_values<Scalar>(stream, f1 * p * f2);
            const std::vector<Scalar> f = random_values<Scalar>(stream, (own_factors ? f2 : 1) * q * p);
            std::vector<Scalar> y = random_values<Scalar>(stream, f2 * f1 * q);
            sliced_multiply_arguments<Scalar, Scalar> a{};
            a.x = x.data() + (f1 - 1) * p * f2;
            a.f = f.data();
            a.y = y.data();
            a.alpha = make<Scalar>({0.5, adds ? 1.0 : 0.0});
            a.beta = make<Scalar>({adds ? -2.0 : 0.0, 0});
            a.p_extent = p;
            a.q_extent = q;
            a.x_p_stride = f2;
            a.f_p_stride = 1;
            a.f_q_stride = p;
            a.y_q_stride = 1;
            a.free_extent[0] = f2;
            a.x_stride[0] = 1;
            a.y_stride[0] = f1 * q;
            a.f_stride[0] = own_factors ? q * p : 0;
            a.free_extent[1] = f1;
            a.x_stride[1] = -p * f2;
            a.y_stride[1] = q;
            a.f_stride[1] = 0;
            a.free_count = 2;
            a.q_position = 2;
            a.conjugate_x = adds;
            a.conjugate_f = own_factors;
            std::vector<wide> want;
            for (index j = 0; j < f2; ++j) {
                for (index i = 0; i < f1; ++i) {
                    for (index n = 0; n < q; ++n) {
                        wide sum = 0;
                        for (index k = 0; k < p; ++k) {
                            sum +=
                                conjugated(widen(x[static_cast<std::size_t>(((f1 - 1 - i) * p + k) * f2 + j)]), adds) *
                                conjugated(widen(f[static_cast<std::size_t>(((own_factors ? j : 0) * q + n) * p + k)]),
                                           own_factors);
                        }
                        const wide before = adds ? widen(y[static_cast<std::size_t>((j * f1 + i) * q + n)]) : wide{};
                        want.push_back(widen(a.alpha) * sum + widen(a.beta) * before);
                    }
                }
            }
            if (!adds) {
                std::fill(y.begin(), y.end(), make<Scalar>({std::numeric_limits<double>::quiet_NaN(), 0}));
            }
            const std::vector<Scalar> y_before = y;
            for (const int lanes_log2 :
                 {0, 1, 3, 5}) {  // up to as many as the block has threads, and more than there are p
                CAPTURE(lanes_log2);
                a.lanes_log2 = lanes_log2;
                y = y_before;
                run(2, 32, adds, [&a] { generic_sliced_multiply(a); });
                CHECK(relative_distance(widened(y), want) <= tolerance<Scalar>);
            }
            // No p: beta * Y.
            a.p_extent = 0;
            const std::vector<wide> before = widened(y);
            run(1, 32, adds, [&a] { generic_sliced_multiply(a); });
            bool all = true;
            for (std::size_t i = 0; i < y.size(); ++i) {
                all = all && std::abs(widen(y[i]) - widen(a.beta) * before[i]) <= 1e-6;
            }
            CHECK(all);
        }
    }
}

// X[f1, p, f2], Y[f2, q, f1], F[p, q] or transposed, rows of X and Y `gap` longer than what they hold; as many blocks as there are or fewer.
template <class Shape>
void check_few_fibres(index p, bool transposed, bool adds, int lanes_log2, int seed) {
    using Scalar = typename Shape::scalar;
    constexpr index f1 = 3, f2 = 3, q = 41, gap = 2;
    CAPTURE(p);
    CAPTURE(transposed);
    CAPTURE(adds);
    CAPTURE(lanes_log2);
    support::random_stream stream(seed);
    const Scalar nothing = make<Scalar>({std::numeric_limits<double>::quiet_NaN(), 0});
    std::vector<Scalar> x = random_values<Scalar>(stream, f1 * p * (f2 + gap));
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<index>(i) % (f2 + gap) < f2 ? x[i] : nothing;
    }
    const std::vector<Scalar> f = random_values<Scalar>(stream, p * q);
    std::vector<Scalar> y_before = random_values<Scalar>(stream, f2 * q * (f1 + gap));
    std::vector<std::uint8_t> is_y(y_before.size(), 0);
    for (std::size_t i = 0; i < y_before.size(); ++i) {
        is_y[i] = static_cast<index>(i) % (f1 + gap) < f1 ? 1 : 0;
        y_before[i] = is_y[i] != 0 && adds ? y_before[i] : nothing;
    }
    sliced_multiply_arguments<Scalar, Scalar> a{};
    a.x = x.data();
    a.f = f.data();
    a.alpha = make<Scalar>({0.5, adds ? 1.0 : 0.0});
    a.beta = make<Scalar>({adds ? -2.0 : 0.0, 0});
    a.p_extent = p;
    a.q_extent = q;
    a.x_p_stride = f2 + gap;
    a.f_p_stride = transposed ? 1 : q;
    a.f_q_stride = transposed ? p : 1;
    a.y_q_stride = f1 + gap;
    a.free_extent[0] = f1;
    a.x_stride[0] = p * (f2 + gap);
    a.y_stride[0] = 1;
    a.free_extent[1] = f2;
    a.x_stride[1] = 1;
    a.y_stride[1] = q * (f1 + gap);
    a.free_count = 2;
    a.q_position = 1;
    a.lanes_log2 = lanes_log2;
    a.conjugate_x = adds;
    a.conjugate_f = transposed;
    std::vector<wide> want, got;
    std::vector<Scalar> y = y_before;
    a.y = y.data();
    for (const unsigned grid : {2U, 40U}) {
        y = y_before;
        a.y = y.data();
        gridDim.x = grid;
        host_device::backwards = adds;
        host_device::run_grid(1, Shape::threads, static_cast<std::size_t>(Shape::shared_bytes),
                              [&a] { few_fibres_multiply<Shape>(a); });
        want.clear();
        got.clear();
        for (index j = 0; j < f2; ++j) {
            for (index n = 0; n < q; ++n) {
                for (index i = 0; i < f1; ++i) {
                    wide sum = 0;
                    for (index k = 0; k < p; ++k) {
                        sum += conjugated(widen(x[static_cast<std::size_t>((i * p + k) * (f2 + gap) + j)]), adds) *
                               conjugated(widen(f[static_cast<std::size_t>(transposed ? n * p + k : k * q + n)]),
                                          transposed);
                    }
                    const auto at = static_cast<std::size_t>((j * q + n) * (f1 + gap) + i);
                    want.push_back(widen(a.alpha) * sum + (adds ? widen(a.beta) * widen(y_before[at]) : wide{}));
                    got.push_back(widen(y[at]));
                }
            }
        }
        CHECK(relative_distance(got, want) <= tolerance<Scalar>);
        bool beside = true;
        for (std::size_t i = 0; i < y.size(); ++i) {
            beside = beside && (is_y[i] != 0 || std::isnan(widen(y[i]).real()));
        }
        CHECK(beside);
    }
    const std::vector<Scalar> few = y;
    y = y_before;
    run(7, 256, false, [&a] { generic_sliced_multiply(a); });
    bool same = true;
    for (std::size_t i = 0; i < y.size(); ++i) {
        same = same && (is_y[i] == 0 || std::memcmp(&y[i], &few[i], sizeof(Scalar)) == 0);
    }
    CHECK(same);
}

TEST_CASE_TEMPLATE("few fibres of a long factor, with the bits of each alone", Scalar, float, double, c64, c128) {
    constexpr int most = std::is_same_v<Scalar, c128> ? 4 : 8;
    CHECK(few_fibres_shape<Scalar, Scalar, most>::columns == otimes::planning::columns_of_few);  // what launches count
    CHECK(few_fibres_shape<Scalar, Scalar, most>::shared_bytes <= otimes::planning::few_fibres_bytes);
    int seed = 70;
    for (const bool transposed : {false, true}) {
        for (const bool adds : {false, true}) {
            check_few_fibres<few_fibres_shape<Scalar, Scalar, 2>>(75, transposed, adds, 3, ++seed);
            check_few_fibres<few_fibres_shape<Scalar, Scalar, 4>>(331, transposed, adds, 6, ++seed);
            check_few_fibres<few_fibres_shape<Scalar, Scalar, most>>(9, transposed, adds, 4, ++seed);
            check_few_fibres<few_fibres_shape<Scalar, Scalar, most>>((std::is_same_v<Scalar, float> ? 2200 : 1300),
                                                                     transposed, adds, adds ? 5 : 7, ++seed);
        }
    }
}

namespace {

// A sparse factor with rows of 0 to 40 elements, and X[f, i, t], Y[f, o, t] with one of t (`neighbours`) and i, o innermost in memory.
template <class Scalar>
struct sparse_case {
    static constexpr index outputs = 6, f = 2;
    index turns, inputs;
    bool neighbours, adds;
    std::vector<int> starts = {0};
    std::vector<int> at;
    std::vector<Scalar> values, x, y_before;
    sparse_multiply_arguments<Scalar, Scalar> a{};

    sparse_case(index turn_count, index input_count, bool neighbours_, bool adds_)
        : turns(turn_count), inputs(input_count), neighbours(neighbours_), adds(adds_) {
        support::random_stream stream(5);
        for (const int n : {3, 0, 40, 1, 7, 12}) {
            for (int k = 0; k < n; ++k) {
                at.push_back((k * 7 + n) % static_cast<int>(inputs));
            }
            starts.push_back(static_cast<int>(at.size()));
        }
        values = random_values<Scalar>(stream, static_cast<index>(at.size()));
        x = random_values<Scalar>(stream, f * inputs * turns);
        y_before = random_values<Scalar>(stream, f * outputs * turns);
        a.x = x.data();
        a.starts = starts.data();
        a.inner = at.data();
        a.values = values.data();
        a.alpha = make<Scalar>({2, adds ? 0.5 : 0.0});
        a.beta = make<Scalar>({adds ? 1.5 : 0.0, 0});
        a.outputs = outputs;
        a.inputs = inputs;
        a.x_inner_stride = a.y_outer_stride = neighbours ? turns : 1;
        a.turns = turns;
        a.x_turn_stride = neighbours ? 1 : inputs;
        a.y_turn_stride = neighbours ? 1 : outputs;
        a.free_extent[0] = f;
        a.x_stride[0] = inputs * turns;
        a.y_stride[0] = outputs * turns;
        a.free_count = 1;
        a.outer_position = 1;
        a.along = !neighbours;
        a.conjugate_x = adds;
        a.conjugate_values = !adds;
    }
    // Y's place, in its order.
    [[nodiscard]] std::size_t place(index i, index o, index t) const {
        return static_cast<std::size_t>(i * outputs * turns + o * a.y_outer_stride + t * a.y_turn_stride);
    }
    [[nodiscard]] std::vector<wide> want() const {
        std::vector<wide> y(y_before.size());
        for (index i = 0; i < f; ++i) {
            for (index o = 0; o < outputs; ++o) {
                for (index t = 0; t < turns; ++t) {
                    wide sum = 0;
                    for (int k = starts[static_cast<std::size_t>(o)]; k < starts[static_cast<std::size_t>(o) + 1];
                         ++k) {
                        const auto n = static_cast<std::size_t>(k);
                        const index from = i * inputs * turns + at[n] * a.x_inner_stride + t * a.x_turn_stride;
                        sum += conjugated(widen(values[n]), !adds) *
                               conjugated(widen(x[static_cast<std::size_t>(from)]), adds);
                    }
                    y[place(i, o, t)] =
                        widen(a.alpha) * sum + (adds ? widen(a.beta) * widen(y_before[place(i, o, t)]) : wide{});
                }
            }
        }
        return y;
    }
    template <class Kernel>
    [[nodiscard]] double distance(unsigned threads, std::size_t shared, const Kernel& kernel) {
        std::vector<Scalar> y = y_before;
        if (!adds) {
            std::fill(y.begin(), y.end(), make<Scalar>({std::numeric_limits<double>::quiet_NaN(), 0}));
        }
        a.y = y.data();
        gridDim.x = 2;
        host_device::backwards = adds;
        host_device::run_grid(1, threads, shared, [&] { kernel(a); });
        return relative_distance(widened(y), want());
    }
};

}  // namespace

TEST_CASE_TEMPLATE("a sparse factor along one mode", Scalar, float, double, c64, c128) {
    for (const index turns : {11, 16}) {  // whole accesses, or not
        for (const bool neighbours : {true, false}) {
            for (const bool adds : {false, true}) {
                CAPTURE(turns);
                CAPTURE(neighbours);
                CAPTURE(adds);
                sparse_case<Scalar> one(turns, 24, neighbours, adds);
                for (const int lanes_log2 : {0, 2, 5}) {
                    for (const int together : {1, 4, 8}) {
                        CAPTURE(lanes_log2);
                        CAPTURE(together);
                        one.a.lanes_log2 = lanes_log2;
                        one.a.together = together;
                        one.a.turn_first = neighbours;
                        CHECK(one.distance(64, 0, [](const auto& a) { sparse_multiply(a); }) <= tolerance<Scalar>);
                    }
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("a sparse factor along one mode, from tiles of X", Scalar, float, double, c64, c128) {
    constexpr auto shared = static_cast<std::size_t>(sparse_tiles_shape<Scalar, Scalar>::shared_bytes);
    static_assert(shared == otimes::planning::sparse_tile_bytes &&
                  sums_together == otimes::planning::sparse_sums_together &&
                  sparse_tile_threads == otimes::planning::sparse_tile_threads);
    for (const index turns : {11, 16}) {       // whole accesses, or not, and tiles that are not full
        for (const index inputs : {23, 24}) {  // likewise
            for (const bool neighbours : {true, false}) {
                for (const bool adds : {false, true}) {
                    CAPTURE(turns);
                    CAPTURE(inputs);
                    CAPTURE(neighbours);
                    CAPTURE(adds);
                    sparse_case<Scalar> one(turns, inputs, neighbours, adds);
                    for (const int together : {1, 4, 8, 32}) {
                        if (neighbours ? together < 4 : together > sums_together) {
                            continue;
                        }
                        CAPTURE(together);
                        one.a.together = together;
                        CHECK(one.distance(sparse_tile_threads, shared, [](const auto& a) { sparse_tiles(a); }) <=
                              tolerance<Scalar>);
                    }
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("copies and multiples, by a diagonal too", Scalar, float, double, c64, c128) {
    for (const index count : {16, 21}) {         // whole accesses, or not
        for (const index lines : {1, 130}) {     // more than a block has on its way
            for (const index offset : {0, 1}) {  // aligned, or not
                for (const bool adds : {false, true}) {
                    CAPTURE(count);
                    CAPTURE(lines);
                    CAPTURE(offset);
                    CAPTURE(adds);
                    support::random_stream stream(static_cast<std::uint64_t>(count * lines));
                    matrix_in_memory<Scalar> x(lines, count, 1, count % 2 + 4, offset);
                    matrix_in_memory<Scalar> y(lines, count, 1, 4, 0);
                    x.fill(stream);
                    if (adds) {
                        y.fill(stream);
                    }
                    const Scalar alpha = make<Scalar>({0.5, 1});
                    const Scalar beta = make<Scalar>({adds ? -1.0 : 0.0, 0});
                    const auto y_before = y;
                    const auto expected = [&](const auto& diagonal) {
                        std::vector<wide> want;
                        for (index i = 0; i < x.size(); ++i) {
                            want.push_back(widen(alpha) * conjugated(widen(x[i]), adds) *
                                               diagonal(i / count, i % count) +
                                           (adds ? widen(beta) * widen(y_before[i]) : wide{}));
                        }
                        return want;
                    };
                    scaled_copy_arguments<Scalar, Scalar> a{x.data(), y.data(),      alpha,         beta, lines,
                                                            count,    x.line_stride, y.line_stride, adds};
                    run(2, copy_threads, adds, [&a] { scaled_copy(a); });
                    CHECK(relative_distance(y.values(), expected([](index, index) { return wide{1}; })) <=
                          tolerance<Scalar>);
                    CHECK(y.surrounded_as(y_before));

                    // D along the stretches, across them, or a matrix; across, again after 13 of them.
                    const std::vector<Scalar> d = random_values<Scalar>(stream, lines * count);
                    for (const auto& [line_stride, stride, repeats] :
                         {std::array<index, 3>{0, 1, lines}, {1, 0, lines}, {count, 1, lines}, {1, 0, 13}}) {
                        y = y_before;
                        diagonal_arguments<Scalar, Scalar> b{
                            x.data(), d.data(),      y.data(),      alpha,       beta,   lines, count,
                            repeats,  x.line_stride, y.line_stride, line_stride, stride, adds,  !adds};
                        run(2, scale_threads, adds, [&b] { diagonal_scale(b); });
                        CHECK(relative_distance(
                                  y.values(), expected([&](index l, index i) {
                                      return conjugated(
                                          widen(d[static_cast<std::size_t>(l % repeats * line_stride + i * stride)]),
                                          !adds);
                                  })) <= tolerance<Scalar>);
                        CHECK(y.surrounded_as(y_before));
                    }
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("dot products and distances of matrices", Scalar, float, double, c64, c128) {
    using accumulator = typename accumulator_of<Scalar>::type;
    for (const index count : {16, 21}) {
        for (const index stride : {1, 3}) {
            for (const int way : {0, 1, 2, 3}) {
                const bool adds = way % 2 == 1, distance = way >= 2;
                CAPTURE(count);
                CAPTURE(stride);
                CAPTURE(way);
                constexpr index lines = 150;
                support::random_stream stream(static_cast<std::uint64_t>(count + stride));
                const index line = count * stride + 4;
                const std::vector<Scalar> x = random_values<Scalar>(stream, lines * line);
                const std::vector<Scalar> y = random_values<Scalar>(stream, lines * line);
                std::vector<accumulator> sums(3);
                dot_arguments<Scalar, accumulator> a{x.data(), y.data(), sums.data(), lines, count, line,
                                                     stride,   line,     stride,      adds,  !adds, distance};
                run(3, dot_threads, adds, [&a] { partial_dots(a); });
                Scalar result = make<Scalar>({adds ? 3.0 : std::numeric_limits<double>::quiet_NaN(), 0});
                finish_arguments<Scalar, accumulator> b{sums.data(), &result, accumulator(2),
                                                        accumulator(adds ? -1 : 0), 3};
                // In long double: thousands of terms of one sign, one after the other, round to more in
                // double than the kernel's sums of sums do.
                std::complex<long double> want = adds ? -3.0L : 0.0L;
                double size = 0;
                for (index l = 0; l < lines; ++l) {
                    for (index i = 0; i < count; ++i) {
                        const std::size_t at = static_cast<std::size_t>(l * line + i * stride);
                        const wide one = conjugated(widen(x[at]), adds), other = conjugated(widen(y[at]), !adds);
                        const wide term = distance ? wide(std::norm(one - other)) : one * other;
                        want += std::complex<long double>(2.0 * term);
                        size += std::abs(2.0 * term);
                    }
                }
                run(1, dot_threads, adds, [&b] { finish_dot(b); });
                CHECK(std::abs(widen(result) - wide(want)) <= tolerance<Scalar> * size);
            }
        }
    }
}

TEST_CASE("blocks that move to another memory") {
    for (const index unit : {1, 2, 4, 8, 16}) {
        CAPTURE(unit);
        const index run_bytes = 3 * unit;
        constexpr std::array<index, 3> counts = {2, 5, 3};
        constexpr int moves = 3;
        exchange_arguments a{};
        a.count = moves;
        a.unit = static_cast<int>(unit);
        alignas(16) std::array<unsigned char, 8192> from{};
        alignas(16) std::array<unsigned char, 8192> to{};
        for (std::size_t i = 0; i < from.size(); ++i) {
            from[i] = static_cast<unsigned char>(i * 31 + i / 256 + 1);
        }
        std::array<unsigned char, 8192> want{};
        for (int m = 0; m < moves; ++m) {
            block_move& move = a.moves[m];
            move.from = from.data() + m * 2048;
            move.to = to.data() + (moves - 1 - m) * 2048;
            move.run = run_bytes;
            const std::array<index, 3> from_strides = {20 * run_bytes, 4 * run_bytes, run_bytes};
            const std::array<index, 3> to_strides = {run_bytes, 2 * run_bytes, 10 * run_bytes};
            for (int d = 0; d < 3; ++d) {
                move.counts[d] = counts[static_cast<std::size_t>(d)];
                move.from_strides[d] = from_strides[static_cast<std::size_t>(d)];
                move.to_strides[d] = to_strides[static_cast<std::size_t>(d)];
            }
            for (index i = 0; i < counts[0]; ++i) {
                for (index j = 0; j < counts[1]; ++j) {
                    for (index k = 0; k < counts[2]; ++k) {
                        for (index b = 0; b < run_bytes; ++b) {
                            want[static_cast<std::size_t>((moves - 1 - m) * 2048 + i * to_strides[0] +
                                                          j * to_strides[1] + k * to_strides[2] + b)] =
                                from[static_cast<std::size_t>(m * 2048 + i * from_strides[0] + j * from_strides[1] +
                                                              k * from_strides[2] + b)];
                        }
                    }
                }
            }
        }
        run(4, 32, unit % 4 == 0, [&a] { exchange_blocks(a); });
        CHECK(to == want);
    }
}

}  // namespace kernel_tests

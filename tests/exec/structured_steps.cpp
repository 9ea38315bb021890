// SPDX-License-Identifier: MIT
// Steps of factors with structure by the cpu executor, against sums over the dense matrix in long double: every remainder of lanes and fibres, every
// nesting of the modes, gaps, poisoned results, threads.
#include <doctest/doctest.h>

#include <otimes/exec/cpu.hpp>
#include <otimes/exec/cpu/row_steps.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/structured_steps.hpp>
#include <otimes/plan/planner.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/long_tests.hpp"

namespace {

using namespace otimes;

template <class Scalar>
using real_of = decltype(std::real(Scalar()));
using wide = std::complex<long double>;
using three = std::array<std::int64_t, 3>;

template <class Scalar>
constexpr bool complex = !std::is_same_v<Scalar, real_of<Scalar>>;

template <class Scalar>
Scalar draw(std::mt19937& bits) {
    std::uniform_real_distribution<double> between(-1, 1);
    const auto re = static_cast<real_of<Scalar>>(between(bits));
    if constexpr (complex<Scalar>) {
        return Scalar(re, static_cast<real_of<Scalar>>(between(bits)));
    } else {
        return re;
    }
}

enum class structure { sparse, lower, unit_upper, diagonal, real_diagonal, gather, scatter };

// A factor in the form that a program binds, and as a dense P x Q matrix.
template <class Scalar>
struct made_factor {
    std::vector<Scalar> values;
    std::vector<real_of<Scalar>> reals;
    std::vector<std::int32_t> starts, inner, counts;
    std::vector<std::int64_t> long_index;
    sparse_elements elements;
    sparse_operand operand;
    std::vector<wide> dense;
    std::int64_t p_extent, q_extent;

    made_factor(const made_factor&) = delete;
    made_factor& operator=(const made_factor&) = delete;

    made_factor(structure kind, std::int64_t p, std::int64_t q, std::mt19937& bits) : p_extent(p), q_extent(q) {
        dense.assign(static_cast<std::size_t>(p * q), wide(0));
        switch (kind) {
            case structure::sparse: make_sparse(bits); break;
            case structure::lower:
            case structure::unit_upper: make_triangle(kind == structure::lower, bits); break;
            case structure::diagonal:
                for (std::int64_t i = 0; i < p; ++i) {
                    values.push_back(draw<Scalar>(bits));
                    at(i, i) = wide(values.back());
                }
                break;
            case structure::real_diagonal:
                for (std::int64_t i = 0; i < p; ++i) {
                    reals.push_back(draw<real_of<Scalar>>(bits));
                    at(i, i) = wide(reals.back());
                }
                break;
            default:  // y[j] = x[index[j]], or y[index[i]] = x[i]
                for (std::int64_t j = 0; j < (kind == structure::gather ? q : p); ++j) {
                    long_index.push_back(kind == structure::gather ? j * 5 % p : (j + 1) % p);
                    (kind == structure::gather ? at(long_index.back(), j) : at(j, long_index.back())) = wide(1);
                }
        }
    }
    wide& at(std::int64_t p, std::int64_t q) { return dense[static_cast<std::size_t>(p * q_extent + q)]; }

    static sparse_elements look(const void* object) { return static_cast<const made_factor*>(object)->elements; }

private:
    // By columns or by rows of the factor, one of them empty, some elements twice, gaps behind each where it is not compressed.
    void make_sparse(std::mt19937& bits) {
        const bool by_columns = bits() % 2 == 0;
        const bool compressed = bits() % 2 == 0;
        const std::int64_t outer = by_columns ? q_extent : p_extent;
        const std::int64_t extent = by_columns ? p_extent : q_extent;
        starts.push_back(0);
        for (std::int64_t o = 0; o < outer; ++o) {
            const std::int64_t count = o % 7 == 3 ? 0 : 1 + static_cast<std::int64_t>(bits() % 4);
            for (std::int64_t k = 0; k < count; ++k) {
                const auto i = static_cast<std::int64_t>(bits()) % extent;
                inner.push_back(static_cast<std::int32_t>(i));
                values.push_back(draw<Scalar>(bits));
                (by_columns ? at(i, o) : at(o, i)) += wide(values.back());
            }
            counts.push_back(static_cast<std::int32_t>(count));
            if (!compressed) {
                inner.push_back(-1);
                values.push_back(Scalar(std::numeric_limits<real_of<Scalar>>::quiet_NaN()));
            }
            starts.push_back(static_cast<std::int32_t>(inner.size()));
        }
        elements.rows = p_extent;
        elements.cols = q_extent;
        elements.by_columns = by_columns;
        elements.starts = starts.data();
        elements.counts = compressed ? nullptr : counts.data();
        elements.inner = inner.data();
        elements.values = values.data();
        operand = {this, &made_factor::look};
    }
    void make_triangle(bool lower, std::mt19937& bits) {
        values.assign(dense.size(), Scalar(std::numeric_limits<real_of<Scalar>>::quiet_NaN()));  // the rest is not read
        for (std::int64_t p = 0; p < p_extent; ++p) {
            for (std::int64_t q = 0; q < q_extent; ++q) {
                if (lower ? p >= q : p < q) {
                    Scalar& value = values[static_cast<std::size_t>(p * q_extent + q)];
                    value = draw<Scalar>(bits);
                    at(p, q) = wide(value);
                } else if (!lower && p == q) {
                    at(p, q) = wide(1);
                }
            }
        }
    }
};

// A program of one step or of several, operand by operand.
template <class Scalar>
struct made_program {
    program p;
    bindings b;

    std::int32_t operand(tensor_role role, void* data, const std::vector<mode>& modes) {
        tensor t;
        t.type = dtype_of<Scalar>();
        t.role = role;
        t.scalar_bytes = sizeof(Scalar);
        if (data != nullptr) {
            t.binding = static_cast<std::int32_t>(b.pointers.size());
            b.pointers.push_back(data);
        }
        const std::int32_t id = p.add_tensor(t);
        for (const mode& m : modes) {
            p.add_mode(m.extent, m.stride);
        }
        return id;
    }
    // A step of `kind` on mode `on` of tensors with `modes` modes.
    void add_step(structure kind, made_factor<Scalar>& f, std::int32_t in, std::int32_t out, std::int32_t on,
                  std::size_t modes, bool add) {
        step s;
        s.in = in;
        s.out = out;
        s.mode = on;
        s.add = add;
        tensor t;
        t.role = tensor_role::factor;
        t.type = dtype_of<Scalar>();
        t.scalar_bytes = sizeof(Scalar);
        t.binding = static_cast<std::int32_t>(b.pointers.size());
        std::vector<mode> of_factor{{f.p_extent, f.q_extent}, {f.q_extent, 1}};
        void* data = f.values.data();
        switch (kind) {
            case structure::sparse:
                t.kind = factor_kind::sparse;
                t.stored = f.elements.stored();
                of_factor = {{f.p_extent, 1}, {f.q_extent, 0}};
                data = &f.operand;
                break;
            case structure::lower:
            case structure::unit_upper:
                t.kind = factor_kind::triangular;
                t.stored = f.p_extent * (f.p_extent + 1) / 2;
                s.variant = kind == structure::lower ? step_variant::lower : step_variant::unit_upper;
                break;
            case structure::diagonal:
            case structure::real_diagonal:
                s.kind = step_kind::scale;
                t.kind = factor_kind::diagonal;
                s.mode = -1;
                if (kind == structure::real_diagonal) {
                    t.type = dtype_of<real_of<Scalar>>();
                    t.scalar_bytes = sizeof(real_of<Scalar>);
                    data = f.reals.data();
                }
                of_factor.clear();
                for (std::size_t k = 0; k < modes; ++k) {
                    const std::int64_t extent = p.modes_of(in)[k].extent;
                    of_factor.push_back({extent, static_cast<std::int32_t>(k) == on ? 1 : 0});
                }
                break;
            default:
                s.kind = kind == structure::gather ? step_kind::gather : step_kind::scatter;
                t.kind = factor_kind::permutation;
                t.type = dtype::other;
                t.scalar_bytes = 8;
                of_factor = {{static_cast<std::int64_t>(f.long_index.size()), 1}};
                data = f.long_index.data();
        }
        b.pointers.push_back(data);
        s.factor = p.add_tensor(t);
        for (const mode& m : of_factor) {
            p.add_mode(m.extent, m.stride);
        }
        p.steps.push_back(s);
    }
};

std::int64_t reached(const std::vector<mode>& modes) {
    std::int64_t last = 0;
    for (const mode& m : modes) {
        last += (m.extent - 1) * m.stride;
    }
    return last + 1;
}

// How [a, extent, b] may lie in memory.
std::vector<mode> layout_of(int number, std::int64_t a, std::int64_t extent, std::int64_t b) {
    switch (number) {
        case 0: return {{a, extent * b}, {extent, b}, {b, 1}};
        case 1: return {{a, extent * b + 3}, {extent, b}, {b, 1}};             // a gap behind each
        case 2: return {{a, extent * b}, {extent, 1}, {b, extent}};            // fibres side by side
        case 3: return {{a, 1}, {extent, a}, {b, a * extent}};                 // by columns
        case 4: return {{a, (extent + 2) * b}, {extent, 1}, {b, extent + 2}};  // fibres with gaps between them
        default: return {{a, 2 * extent * b}, {extent, 2 * b}, {b, 2}};        // nothing is contiguous
    }
}

template <class Scalar>
struct one_case {
    structure kind;
    std::int64_t a, p, q, b;
    int in_layout, out_layout;
    bool add;
    double alpha;
};

template <class Scalar>
std::string text_of(const one_case<Scalar>& c, std::int32_t threads) {
    return "structure " + std::to_string(static_cast<int>(c.kind)) + ", " + std::to_string(c.a) + " x (" +
           std::to_string(c.p) + " to " + std::to_string(c.q) + ") x " + std::to_string(c.b) + ", layouts " +
           std::to_string(c.in_layout) + " and " + std::to_string(c.out_layout) + (c.add ? ", added" : "") +
           ", alpha " + std::to_string(c.alpha) + ", threads " + std::to_string(threads);
}

// Runs one step for each number of threads; values against sums in long double, the same bits for all.
template <class Scalar>
void check(const one_case<Scalar>& c, const std::vector<std::int32_t>& threads, std::mt19937& bits) {
    made_factor<Scalar> f(c.kind, c.p, c.q, bits);
    const std::vector<mode> x_modes = layout_of(c.in_layout, c.a, c.p, c.b);
    const std::vector<mode> y_modes = layout_of(c.out_layout, c.a, c.q, c.b);
    constexpr std::size_t guard = 32;
    const Scalar nan(std::numeric_limits<real_of<Scalar>>::quiet_NaN());
    std::vector<Scalar> x(static_cast<std::size_t>(reached(x_modes)) + 2 * guard, nan);
    std::vector<Scalar> before(static_cast<std::size_t>(reached(y_modes)) + 2 * guard, nan);
    const auto offset = [](const std::vector<mode>& m, const three& i) {
        return guard + static_cast<std::size_t>(i[0] * m[0].stride + i[1] * m[1].stride + i[2] * m[2].stride);
    };
    const auto for_each = [&](std::int64_t extent, const auto& body) {
        for (std::int64_t i = 0; i < c.a; ++i) {
            for (std::int64_t k = 0; k < extent; ++k) {
                for (std::int64_t l = 0; l < c.b; ++l) {
                    body(three{i, k, l});
                }
            }
        }
    };
    for_each(c.p, [&](const three& i) { x[offset(x_modes, i)] = draw<Scalar>(bits); });
    if (c.add) {
        for_each(c.q, [&](const three& i) { before[offset(y_modes, i)] = draw<Scalar>(bits); });
    }
    std::vector<Scalar> first;
    for (const std::int32_t count : threads) {
        CAPTURE(text_of(c, count));
        std::vector<Scalar> y = before;
        made_program<Scalar> made;
        const std::int32_t in = made.operand(tensor_role::input, x.data() + guard, x_modes);
        const std::int32_t out = made.operand(tensor_role::output, y.data() + guard, y_modes);
        made.add_step(c.kind, f, in, out, 1, 3, c.add);
        if (c.alpha != 1) {
            made.p.steps.back().scalar = made.p.scalar_count++;
            made.b.scalars.push_back(c.alpha);
        }
        machine m = host_machine();
        m.cpu.threads = count;
        const plan planned = make_plan(made.p, m, {.placement = placement::cpu, .threads = count});
        REQUIRE(planned.passes.size() == 1);
        REQUIRE(planned.passes.front().kernel == pass_kernel::step);
        cpu().run(planned, made.b, {});
        std::vector<bool> written(y.size(), false);
        long double worst = 0;
        for_each(c.q, [&](const three& i) {
            wide sum = 0;
            for (std::int64_t p = 0; p < c.p; ++p) {
                sum += wide(x[offset(x_modes, {i[0], p, i[2]})]) * f.at(p, i[1]);
            }
            const std::size_t at = offset(y_modes, i);
            const wide want = static_cast<long double>(c.alpha) * sum + (c.add ? wide(before[at]) : wide(0));
            const long double difference = std::abs(wide(y[at]) - want);
            worst = difference <= worst ? worst : difference;  // NaN is worst
            written[at] = true;
        });
        CHECK(worst <= 40 * static_cast<long double>(std::numeric_limits<real_of<Scalar>>::epsilon()));
        bool others_intact = true;
        for (std::size_t k = 0; k < y.size(); ++k) {
            others_intact = others_intact && (written[k] || std::memcmp(&y[k], &before[k], sizeof(Scalar)) == 0);
        }
        CHECK(others_intact);
        if (first.empty()) {
            first = y;
        }
        CHECK(std::memcmp(first.data(), y.data(), y.size() * sizeof(Scalar)) == 0);
    }
}

template <class Scalar>
void enable() {
    enable_cpu<Scalar>();
    enable_cpu<real_of<Scalar>>();
    enable_structured_steps<Scalar>();
    enable_row_steps<Scalar>();
}

const std::vector<structure> structures{structure::sparse,       structure::lower,  structure::unit_upper,
                                        structure::diagonal,     structure::gather, structure::scatter,
                                        structure::real_diagonal};

bool is_square(structure kind) { return kind != structure::sparse && kind != structure::gather; }

}  // namespace

TEST_CASE_TEMPLATE("cpu: steps of structured factors, every remainder and nesting", Scalar, float, double,
                   std::complex<float>, std::complex<double>) {
    enable<Scalar>();
    std::mt19937 bits(11);
    constexpr std::array<std::int64_t, 6> extents{1, 3, 8, 19, 33, 70};
    constexpr std::array<std::int64_t, 9> lanes{1, 2, 3, 5, 8, 16, 17, 39, 71};
    for (const structure kind : structures) {
        for (int n = 0; n < 160; ++n) {
            one_case<Scalar> c{};
            c.kind = kind;
            c.p = extents[bits() % extents.size()];
            c.q = is_square(kind) ? c.p : extents[bits() % extents.size()];
            c.b = lanes[bits() % lanes.size()];
            c.a = 1 + static_cast<std::int64_t>(bits() % 4);
            c.in_layout = static_cast<int>(bits() % 6);
            c.out_layout = bits() % 3 == 0 ? static_cast<int>(bits() % 6) : c.in_layout;
            c.add = bits() % 2 == 0;
            c.alpha = bits() % 2 == 0 ? 1 : -0.75;
            check(c, {1}, bits);
        }
    }
}

TEST_CASE_TEMPLATE("cpu: threads that share a step of a structured factor change no bit", Scalar, double,
                   std::complex<float>) {
    enable<Scalar>();
    std::mt19937 bits(12);
    int number = 0;  // of a structure and its extents
    for (const structure kind : structures) {
        for (const three& extents : {three{7, 40, 131}, three{1, 45, 600}, three{700, 45, 1}, three{2, 41, 513}}) {
            ++number;
            for (int layout = 0; layout < 6; ++layout) {
                // All of them take half a minute: the default run has two layouts of each, all six of each structure.
                if ((layout + number) % 3 != 0 && !support::long_tests()) continue;
                one_case<Scalar> c{};
                c.kind = kind;
                c.a = extents[0];
                c.p = extents[1];
                c.q = is_square(kind) ? c.p : c.p + 2;
                c.b = extents[2];
                c.in_layout = c.out_layout = layout;
                c.add = layout % 2 == 0;
                c.alpha = layout < 3 ? 1 : 0.5;
                check(c, {1, 2, 3, 5}, bits);
            }
        }
    }
}

// [rows, 6, 35, 9] through four factors, by rows and by columns: row by row where that is possible, by passes elsewhere.
TEST_CASE_TEMPLATE("cpu: products of several structured factors", Scalar, float, double, std::complex<float>,
                   std::complex<double>) {
    enable<Scalar>();
    std::mt19937 bits(13);
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, std::int64_t{90}}) {
        for (const bool by_columns : {false, true}) {
            for (const structure kind : structures) {
                for (const bool add : {false, true}) {
                    CAPTURE(rows);
                    CAPTURE(by_columns);
                    CAPTURE(static_cast<int>(kind));
                    CAPTURE(add);
                    made_factor<Scalar> sparse(structure::sparse, 6, 4, bits);
                    made_factor<Scalar> other(kind, 35, is_square(kind) ? 35 : 33, bits);
                    made_factor<Scalar> last(structure::sparse, 9, 10, bits);
                    const auto modes_of = [&](std::int64_t p1, std::int64_t p2, std::int64_t p3, bool temporary) {
                        std::vector<mode> modes{{rows, p1 * p2 * p3}, {p1, p2 * p3}, {p2, p3}, {p3, 1}};
                        if (by_columns) {
                            modes = {{rows, 1}, {p1, rows * p2 * p3}, {p2, rows * p3}, {p3, rows}};
                        }
                        for (mode& one : modes) {
                            one.stride = temporary ? 0 : one.stride;
                        }
                        return modes;
                    };
                    std::vector<Scalar> x(static_cast<std::size_t>(rows * 6 * 35 * 9));
                    std::generate(x.begin(), x.end(), [&] { return draw<Scalar>(bits); });
                    std::vector<Scalar> before(static_cast<std::size_t>(rows * 4 * other.q_extent * 10));
                    std::generate(before.begin(), before.end(), [&] {
                        return add ? draw<Scalar>(bits) : Scalar(std::numeric_limits<real_of<Scalar>>::quiet_NaN());
                    });
                    std::vector<Scalar> y = before, z = before;
                    made_program<Scalar> made;
                    const std::int32_t in = made.operand(tensor_role::input, x.data(), modes_of(6, 35, 9, false));
                    const std::int32_t one = made.operand(tensor_role::temporary, nullptr, modes_of(4, 35, 9, true));
                    const std::int32_t two =
                        made.operand(tensor_role::temporary, nullptr, modes_of(4, other.q_extent, 9, true));
                    const auto y_modes = modes_of(4, other.q_extent, 10, false);
                    const std::int32_t out = made.operand(tensor_role::output, y.data(), y_modes);
                    const std::size_t out_binding = made.b.pointers.size() - 1;
                    made.add_step(structure::sparse, sparse, in, one, 1, 4, false);
                    made.add_step(kind, other, one, two, 2, 4, false);
                    made.add_step(structure::sparse, last, two, out, 3, 4, add);
                    for (const std::int32_t threads : {1, 3}) {
                        machine m = host_machine();
                        m.cpu.threads = threads;
                        y = before;
                        cpu().run(make_plan(made.p, m, {.placement = placement::cpu, .threads = threads}), made.b, {});
                        if (threads == 1) {
                            z = y;
                        }
                        CHECK(std::memcmp(y.data(), z.data(), y.size() * sizeof(Scalar)) == 0);
                    }
                    std::vector<Scalar> want = before;
                    made.b.pointers[out_binding] = want.data();
                    plan plain;
                    plain.source = made.p;
                    reference().run(plain, made.b, {});
                    double difference = 0;
                    double norm = 0;
                    for (std::size_t k = 0; k < y.size(); ++k) {
                        difference += static_cast<double>(std::norm(y[k] - want[k]));
                        norm += static_cast<double>(std::norm(want[k]));
                    }
                    CHECK(std::sqrt(difference) <=
                          20 * static_cast<double>(std::numeric_limits<real_of<Scalar>>::epsilon()) * std::sqrt(norm));
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("cpu: gathers of long fibres, in whatever order they are taken", Scalar, float, double,
                   std::complex<double>) {
    std::mt19937 bits(3);
    const auto check = [&bits](std::int64_t inputs, const std::vector<std::int64_t>& list) {
        std::vector<Scalar> x;
        for (std::int64_t i = 0; i < inputs; ++i) {
            x.push_back(draw<Scalar>(bits));
        }
        const auto count = static_cast<std::int64_t>(list.size());
        const std::vector<std::int32_t> narrow(list.begin(), list.end());
        const Scalar poison(std::numeric_limits<real_of<Scalar>>::quiet_NaN());
        std::vector<Scalar> wide_y(list.size() + 1, poison);
        std::vector<Scalar> narrow_y(list.size() + 1, poison);
        cpu_detail::gather_run(list.data(), count, wide_y.data(), x.data());
        cpu_detail::gather_run(narrow.data(), count, narrow_y.data(), x.data());
        std::int64_t wrong = 0;
        for (std::size_t j = 0; j < list.size(); ++j) {
            const Scalar& want = x[static_cast<std::size_t>(list[j])];
            wrong += wide_y[j] == want && narrow_y[j] == want ? 0 : 1;
        }
        CHECK(wrong == 0);
        CHECK(wide_y.back() != wide_y.back());  // nothing behind it
        CHECK(narrow_y.back() != narrow_y.back());
    };
    // The transpose of rows x cols, and a part of it from anywhere on.
    using shape = std::array<std::int64_t, 2>;
    for (const shape& one : {shape{96, 80}, shape{80, 97}, shape{16, 400}, shape{4000, 3}, shape{3, 4000},
                             shape{101, 41}, shape{8, 512}, shape{17, 241}}) {
        const std::int64_t rows = one[0];
        const std::int64_t cols = one[1];
        CAPTURE(rows);
        CAPTURE(cols);
        std::vector<std::int64_t> list;
        for (std::int64_t j = 0; j < rows * cols; ++j) {
            list.push_back(j % rows * cols + j / rows);
        }
        check(rows * cols, list);
        list.erase(list.begin(), list.begin() + 37);
        check(rows * cols, list);
        list.resize(4100, 5);
        check(rows * cols, list);
    }
    // Others: one that looks like it at its beginning, one with repetitions, one backwards.
    std::vector<std::int64_t> looks_like{0, 200, 400};
    while (looks_like.size() < 9000) {
        looks_like.push_back(looks_like.size() == 50 ? 1 : static_cast<std::int64_t>(bits()) % 5000);
    }
    check(5000, looks_like);
    std::vector<std::int64_t> repeats;
    for (std::int64_t j = 0; j < 9000; ++j) {
        repeats.push_back(j * 64 % 4096);
    }
    check(4096, repeats);
    std::vector<std::int64_t> backwards;
    for (std::int64_t j = 0; j < 9000; ++j) {
        backwards.push_back(8999 - j);
    }
    check(9000, backwards);
}

// SPDX-License-Identifier: MIT
// Checks every device kernel against its contract on small shapes, entry by entry, on the host in long double:
//   gpu_kernels <folder of the repository> --check [--brief] [--only TEXT] [--cache FOLDER] [--ahead-of-time CUBIN]
// Placements: element offsets 0..15 of X, Y and the factors, odd leading strides, partial tiles, narrow last runs, several parts a line,
// transposed factors, alpha and beta, Y = X, few and many blocks. Data: uniform, exactly representable (the error must be 0), infinite,
// NaN and largest operands (the result must be what multiply-adds give), very small and very large values.
// Y is NaN beforehand; whatever is not an output entry must keep every bit of it. X and the factors stand between NaNs.
#pragma once
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "pass_choice.hpp"
#include "runtime_kernels.hpp"

namespace otimes::bench {

template <class T>
struct scalar_traits {
    using real = T;
    using wide = long double;
    static constexpr bool is_complex = false;
};
template <class R>
struct scalar_traits<std::complex<R>> {
    using real = R;
    using wide = std::complex<long double>;
    static constexpr bool is_complex = true;
};

enum class data_kind { uniform, exact, special_x, special_f, tiny, huge };
inline const char* name_of(data_kind k) {
    const char* names[] = {"uniform", "exact", "special X", "special F", "tiny", "huge"};
    return names[int(k)];
}

struct check_placement {
    std::string name;
    int lines = 1, parts = 1;                               // parts: in tiles of the group's rows
    int x_offset = 0, y_offset = 0, f_offset = 0, pad = 0;  // elements; pad: of the line strides
    int inner = 0, inner_pad = 0;                           // outer groups
    double alpha = 1, beta = 0;
    bool transposed = false, in_place = false;
    data_kind data = data_kind::uniform;
    int tiles_at_once = 1 << 20;  // at most so many tiles in flight
};

struct check_totals {
    int passed = 0, failed = 0;
    double worst_float = 0, worst_double = 0;
};

struct check_group {
    std::string type;
    std::vector<int> p;
    std::vector<int> q;
    std::string pass;
};

template <class T>
class fused_check {
    using real = typename scalar_traits<T>::real;
    using wide = typename scalar_traits<T>::wide;
    static constexpr bool is_complex = scalar_traits<T>::is_complex;

public:
    fused_check(const fused_pass& pass, CUfunction function, CUstream stream, check_totals& totals, std::string name)
        : pass_(pass), function_(function), stream_(stream), totals_(totals), name_(std::move(name)) {}

    void run(const check_placement& c) {
        const std::int64_t in = pass_.count_p(), out = pass_.count_q();
        const std::int64_t inner = pass_.outer ? c.inner : 1,
                           parts = c.parts * (!pass_.outer && c.parts == 1 ? 1 : pass_.tile.rows);
        const std::int64_t x_inner = pass_.outer ? inner + c.inner_pad : 1, y_inner = c.in_place ? x_inner
                                                                                      : pass_.outer
                                                                                          ? inner + 2 * c.inner_pad
                                                                                          : 1;
        const std::int64_t x_line = parts * in * x_inner + c.pad,
                           y_line = c.in_place ? x_line : parts * out * y_inner + 2 * c.pad;
        constexpr std::int64_t guard = 64;
        const std::int64_t x_count = c.lines * x_line + 2 * guard + 16,
                           y_count = c.in_place ? x_count : c.lines * y_line + 2 * guard + 16;
        const std::int64_t x_first = guard + c.x_offset, y_first = c.in_place ? x_first : guard + c.y_offset;

        std::mt19937_64 random(20261121);
        const T poison = [] {
            T v;
            std::memset(static_cast<void*>(&v), 0xff, sizeof(T));
            return v;
        }();
        std::vector<T> x(x_count, poison), y(y_count, poison);
        std::vector<std::vector<T>> factors;
        std::vector<std::int64_t> p_stride, q_stride, factor_at;
        std::vector<T> factor_memory(guard + c.f_offset, poison);
        for (int l = 0; l < pass_.modes(); ++l) {
            const int P = pass_.p[l], Q = pass_.q[l];
            std::vector<T> f(std::size_t(P) * Q);
            for (T& e : f) e = draw_factor(random, c.data, P);
            if (c.data == data_kind::special_f && l == pass_.modes() / 2)
                f[std::size_t(P / 2) * Q + Q / 3] = T(std::numeric_limits<real>::infinity());
            factor_at.push_back(std::int64_t(factor_memory.size()));
            const std::int64_t pad = c.f_offset % 3;
            p_stride.push_back(c.transposed ? 1 : Q + pad);
            q_stride.push_back(c.transposed ? P + pad : 1);
            factor_memory.resize(factor_memory.size() + (c.transposed ? (P + pad) * Q : (Q + pad) * P), poison);
            for (int p = 0; p < P; ++p)
                for (int q = 0; q < Q; ++q)
                    factor_memory[factor_at.back() + p * p_stride.back() + q * q_stride.back()] =
                        f[std::size_t(p) * Q + q];
            factors.push_back(std::move(f));
        }
        factor_memory.resize(factor_memory.size() + guard, poison);

        // X, then what the contract says
        std::vector<char> is_output(y_count, 0);
        for (int m = 0; m < c.lines; ++m)
            for (std::int64_t o = 0; o < parts; ++o)
                for (std::int64_t f = 0; f < in; ++f)
                    for (std::int64_t i = 0; i < inner; ++i)
                        x[x_first + m * x_line + (o * in + f) * x_inner + i] = draw(random, c.data);
        if (c.data == data_kind::special_x) {
            const real inf = std::numeric_limits<real>::infinity();
            const real values[] = {inf, -inf, std::numeric_limits<real>::quiet_NaN(), std::numeric_limits<real>::max()};
            for (int s = 0; s < 4; ++s) {
                const std::int64_t m = s % c.lines, o = s % parts, f = (s * 37 + 5) % in, i = (s * 11) % inner;
                x[x_first + m * x_line + (o * in + f) * x_inner + i] = T(values[s]);
            }
        }
        for (int m = 0; m < c.lines; ++m)
            for (std::int64_t o = 0; o < parts; ++o)
                for (std::int64_t f = 0; f < out; ++f)
                    for (std::int64_t i = 0; i < inner; ++i) {
                        const std::int64_t at = y_first + m * y_line + (o * out + f) * y_inner + i;
                        is_output[at] = 1;
                        if (c.beta != 0 && !c.in_place) y[at] = draw(random, data_kind::uniform);
                    }
        const std::vector<T>& before = c.in_place ? x : y;

        CUdeviceptr dx = 0, dy = 0, df = 0;
        CU(cuMemAlloc(&dx, x_count * sizeof(T)));
        CU(cuMemcpyHtoDAsync(dx, x.data(), x_count * sizeof(T), stream_));
        if (!c.in_place) {
            CU(cuMemAlloc(&dy, y_count * sizeof(T)));
            CU(cuMemcpyHtoDAsync(dy, y.data(), y_count * sizeof(T), stream_));
        }
        CU(cuMemAlloc(&df, factor_memory.size() * sizeof(T)));
        CU(cuMemcpyHtoDAsync(df, factor_memory.data(), factor_memory.size() * sizeof(T), stream_));
        group_arguments<T> a{};
        a.x = reinterpret_cast<const T*>(dx + x_first * sizeof(T));
        a.y = reinterpret_cast<T*>((c.in_place ? dx : dy) + y_first * sizeof(T));
        for (int l = 0; l < pass_.modes(); ++l) {
            a.factor[l] = reinterpret_cast<const T*>(df + factor_at[l] * sizeof(T));
            a.factor_p_stride[l] = p_stride[l];
            a.factor_q_stride[l] = q_stride[l];
        }
        a.alpha = T(real(c.alpha));
        a.beta = T(real(c.beta));
        a.lines = c.lines;
        a.parts_per_line = parts;
        a.x_line_stride = x_line;
        a.y_line_stride = y_line;
        a.inner = inner;
        a.x_inner = x_inner;
        a.y_inner = y_inner;
        const std::int64_t tiles = (c.lines * parts + pass_.tile.rows - 1) / pass_.tile.rows *
                                   (pass_.outer ? (inner + pass_.tile.run - 1) / pass_.tile.run : 1);
        const unsigned grid =
            unsigned(std::min<std::int64_t>(tiles, c.tiles_at_once) * pass_.tile.cluster * pass_.tile.slices);
        void* parameters[] = {&a};
        CU(cuLaunchKernel(function_, grid, 1, 1, pass_.tile.threads, 1, 1, unsigned(pass_.shared_bytes(dtype_of<T>())),
                          stream_, parameters, nullptr));
        std::vector<T> result(y_count);
        CU(cuMemcpyDtoHAsync(result.data(), c.in_place ? dx : dy, y_count * sizeof(T), stream_));
        CU(cuStreamSynchronize(stream_));
        for (CUdeviceptr d : {dx, dy, df})
            if (d) CU(cuMemFree(d));

        double error2 = 0, norm2 = 0, largest = 0;
        std::int64_t stray = 0, wrong_class = 0, entries = 0;
        for (std::int64_t i = 0; i < y_count; ++i)
            if (!is_output[i] && std::memcmp(&result[i], &before[i], sizeof(T)) != 0) ++stray;
        const bool special = c.data == data_kind::special_x || c.data == data_kind::special_f;
        std::vector<wide> tensor;
        std::vector<T> narrow_tensor;
        for (int m = 0; m < c.lines; ++m)
            for (std::int64_t o = 0; o < parts; ++o)
                for (std::int64_t i = 0; i < inner; ++i) {
                    const auto x_at = [&](std::int64_t f) {
                        return x[x_first + m * x_line + (o * in + f) * x_inner + i];
                    };
                    if (special) {
                        narrow_tensor.resize(in);
                        for (std::int64_t f = 0; f < in; ++f) narrow_tensor[f] = x_at(f);
                        contract(narrow_tensor, factors);
                    } else {
                        tensor.resize(in);
                        for (std::int64_t f = 0; f < in; ++f) tensor[f] = wide(x_at(f));
                        contract(tensor, factors);
                    }
                    for (std::int64_t f = 0; f < out; ++f) {
                        const std::int64_t at = y_first + m * y_line + (o * out + f) * y_inner + i;
                        wide want =
                            special ? wide(T(real(c.alpha)) * narrow_tensor[f]) : wide(T(real(c.alpha))) * tensor[f];
                        if (c.beta != 0) want += wide(T(real(c.beta))) * wide(before[at]);
                        ++entries;
                        const wide got = wide(result[at]);
                        if (special && !is_finite(want)) {
                            if (!same_class(got, want)) ++wrong_class;
                            continue;
                        }
                        const double d = double(std::abs(got - want)), w = double(std::abs(want));
                        if (!(d <= 1e300)) {
                            ++wrong_class;
                            continue;
                        }
                        if (special && w > 1e30) continue;  // beside a largest operand: finite is enough
                        error2 += d * d;
                        norm2 += w * w;
                        largest = std::max(largest, d);
                    }
                }
        const double scale = std::sqrt(norm2 / double(std::max<std::int64_t>(1, entries)));
        const double error = norm2 > 0    ? std::sqrt(error2 / norm2)
                             : error2 > 0 ? 1
                                          : 0,
                     spike = scale > 0 ? largest / scale : 0;
        const double tolerance = sizeof(real) == 4 ? 1e-6 : 2e-15;
        // Split floats: sums are exact while the values of a mode have the unit's 11 bits, here for two modes, and while they leave the
        // unit every eight steps; then to the last place.
        int split_modes = 0;
        bool chained = false;
        for (const gpu_trip& t : pass_.tile.trips) {
            split_modes += t.matrix && sizeof(T) == 4 ? t.count : 0;
            chained = chained || t.warpgroup;
        }
        const bool exact_right = chained           ? error <= 1e-7 && spike <= 1e-6
                                 : split_modes > 2 ? error <= 2e-8 && spike <= 3e-7
                                                   : error2 == 0;
        const bool right = stray == 0 && wrong_class == 0 &&
                           (c.data == data_kind::exact ? exact_right : error <= tolerance && spike <= 30 * tolerance);
        (right ? totals_.passed : totals_.failed) += 1;
        if (c.data == data_kind::uniform)
            (sizeof(real) == 4 ? totals_.worst_float : totals_.worst_double) =
                std::max(sizeof(real) == 4 ? totals_.worst_float : totals_.worst_double, error);
        if (!right)
            std::printf(
                "WRONG %s | %s (%s): error %.2e largest %.2e of the mean, %lld not finite as they should, %lld strays, "
                "of %lld entries\n",
                name_.c_str(), c.name.c_str(), name_of(c.data), error, spike, static_cast<long long>(wrong_class),
                static_cast<long long>(stray), static_cast<long long>(entries));
    }

private:
    static real uniform(std::mt19937_64& random) { return real(double(random() >> 11) * 0x1p-52 - 1.0); }
    static T make(real re, real im) {
        if constexpr (is_complex)
            return T(re, im);
        else {
            (void)im;
            return re;
        }
    }
    static T draw(std::mt19937_64& random, data_kind kind) {
        if (kind == data_kind::exact) {
            const real re = real(int(random() % 9) - 4), im = real(int(random() % 9) - 4);
            return make(re, im);
        }
        const real scale = kind == data_kind::tiny ? real(0x1p-110) : kind == data_kind::huge ? real(0x1p100) : real(1);
        const real re = uniform(random) * scale, im = uniform(random) * scale;
        return make(re, im);
    }
    static T draw_factor(std::mt19937_64& random, data_kind kind, int P) {
        if (kind == data_kind::exact) {
            const real values[] = {-2, -1, -0.5, 0, 0.5, 1, 2, 1};
            const real re = values[random() % 8], im = values[random() % 8];
            return make(re, im);
        }
        const real scale = real(1 / std::sqrt(P / 3.0));
        const real re = uniform(random) * scale, im = uniform(random) * scale;
        return make(re, im);
    }
    template <class W>
    static bool is_finite(const W& v) {
        if constexpr (is_complex)
            return std::isfinite(v.real()) && std::isfinite(v.imag());
        else
            return std::isfinite(v);
    }
    static bool same_class(const wide& a, const wide& b) {
        if constexpr (is_complex)
            return !is_finite(a);  // parts depend on how a complex product is formed
        else
            return std::isnan(b) ? std::isnan(a) : a == b;
    }
    template <class W>
    static W multiply_add(const W& x, const W& f, const W& sum) {
        if constexpr (!is_complex && sizeof(W) < sizeof(long double))
            return std::fma(x, f, sum);
        else
            return sum + x * f;
    }
    // The modes in the order of the trips, the last of a trip's first.
    template <class W>
    void contract(std::vector<W>& tensor, const std::vector<std::vector<T>>& factors) const {
        std::vector<int> extent = pass_.p;
        for (const gpu_trip& t : pass_.tile.trips)
            for (int level = t.first + t.count - 1; level >= t.first; --level) {
                const int P = pass_.p[level - 1], Q = pass_.q[level - 1];
                std::int64_t above = 1, below = 1;
                for (int l = 0; l < level - 1; ++l) above *= extent[l];
                for (int l = level; l < pass_.modes(); ++l) below *= extent[l];
                std::vector<W> next(std::size_t(above) * Q * below, W(0));
                for (std::int64_t o = 0; o < above; ++o)
                    for (int p = 0; p < P; ++p)
                        for (int q = 0; q < Q; ++q) {
                            const W f = W(factors[level - 1][std::size_t(p) * Q + q]);
                            for (std::int64_t i = 0; i < below; ++i) {
                                W& sum = next[(o * Q + q) * below + i];
                                sum = multiply_add(tensor[(o * P + p) * below + i], f, sum);
                            }
                        }
                tensor = std::move(next);
                extent[level - 1] = Q;
            }
    }

    fused_pass pass_;
    CUfunction function_;
    CUstream stream_;
    check_totals& totals_;
    std::string name_;
};

// One of each kind of trip, of tile and of arrival; extents equal, rectangular, odd and mixed.
inline std::vector<check_group> check_groups() {
    const auto power = [](int p, int n) { return std::vector<int>(n, p); };
    return {
        // float, matrix unit
        {"f32", power(16, 3), power(16, 3), "T m1-3 r1 t128 b4 g1 s0 : 3m 2m 1m"},
        {"f32", power(16, 4), power(16, 4), "T m1-4 r1 t256 b2 g1 s0 c4 : 4m 3m 2m 1m"},
        {"f32", power(16, 2), power(16, 2), "T m1-2 r8 t64 b8 g1 s0 : 2m 1m"},
        {"f32", power(32, 2), power(32, 2), "T m1-2 r4 t64 b6 g1 s0 : 2m 1m"},
        {"f32", power(32, 3), power(32, 3), "T m1-3 r1 t256 b2 g1 s0 c2 : 3m 2m 1m"},
        {"f32", power(32, 3), power(32, 3), "T m1-3 r1 t256 b1 g8 s2 : 3m 2m 1m"},
        {"f32", power(64, 2), power(64, 2), "T m1-2 r2 t256 b2 g1 s0 : 2m/2 1m/2"},
        {"f32", power(128, 2), power(128, 2), "T m1-2 r1 t256 b1 g1 s0 : 2m/2 1m/2"},
        {"f32", {16, 24, 8}, {8, 16, 24}, "T m1-3 r1 t128 b2 g1 s0 : 3m 2m 1m"},
        {"f32", {5, 16}, {5, 32}, "T m1-2 r4 t64 b2 g1 s0 : 2m 1f"},
        {"f32", power(16, 2), power(16, 2), "O m1-2 run32 t128 b4 g1 s0 : 2m 1m"},
        {"f32", power(32, 2), power(32, 2), "O m1-2 run8 t128 b3 g1 s0 : 2m/2 1m/2"},
        {"f32", power(64, 1), power(64, 1), "O m1 run64 t128 b2 g1 s2 : 1m/2"},
        {"f32", {24}, {40}, "O m1 run16 t64 b2 g1 s0 : 1m"},
        // pair trips: two modes with registers between them
        {"f32", power(16, 2), power(16, 2), "T m1-2 r8 t64 b8 g1 s0 : 1+2m"},
        {"f32", power(16, 3), power(16, 3), "T m1-3 r1 t128 b4 g1 s0 : 1m 2+2m"},
        {"f32", power(16, 4), power(16, 4), "T m1-4 r1 t128 b3 g1 s0 c4 : 1+2m 3+2m"},
        {"f32", power(16, 2), power(16, 2), "O m1-2 run32 t128 b4 g1 s0 : 1+2m"},
        {"f32", power(32, 2), power(32, 2), "T m1-2 r4 t64 b6 g1 s0 : 1+2m"},
        {"f32", power(32, 3), power(32, 3), "T m1-3 r1 t256 b2 g1 s0 c2 : 1m 2+2m"},
        {"f32", {16, 32, 16}, {16, 32, 16}, "T m1-3 r1 t128 b2 g1 s0 : 1m 2+2m"},
        {"f64", power(16, 2), power(16, 2), "T m1-2 r4 t64 b8 g1 s0 : 1+2m"},
        {"f64", power(16, 3), power(16, 3), "T m1-3 r1 t128 b4 g1 s0 : 1m 2+2m"},
        {"f64", power(16, 4), power(16, 4), "T m1-4 r1 t128 b3 g1 s0 c8 : 1+2m 3+2m"},
        {"f64", power(16, 2), power(16, 2), "O m1-2 run16 t128 b3 g1 s0 : 1+2m"},
        {"f64", power(32, 2), power(32, 2), "T m1-2 r2 t64 b4 g1 s0 : 1+2m"},
        {"f64", power(32, 3), power(32, 3), "T m1-3 r1 t128 b3 g1 s0 c4 : 1m 2+2m"},
        {"f32", power(16, 3), power(16, 3), "O m1-3 run8 t128 b2 g1 s0 c4 : 2+2m 1m"},
        {"f32", power(16, 3), power(16, 3), "O m1-3 run32 t256 b2 g1 s0 c8 : 3m 2m 1m"},
        {"f64", power(16, 3), power(16, 3), "O m1-3 run16 t256 b2 g1 s0 c8 : 3m 2m 1m"},
        {"f32", power(16, 2), power(16, 2), "O m1-2 run16 t64 b6 g1 s0 : 1+2m"},
        {"f32", power(32, 3), power(32, 3), "T m1-3 r1 t128 b2 g1 s0 c2 : 2+2m 1m"},
        {"f64", power(16, 2), power(16, 2), "O m1-2 run8 t64 b6 g1 s0 : 1+2m"},
        {"f64", power(16, 3), power(16, 3), "O m1-3 run8 t128 b2 g1 s0 c8 : 2+2m 1m"},
        {"f64", power(16, 3), power(16, 3), "O m1-3 run16 t128 b3 g1 s0 c8 : 2+2m 1m"},
        {"f32", power(16, 3), power(16, 3), "O m1-3 run32 t128 b3 g1 s0 c8 : 2+2m 1m"},
        {"f64", power(8, 3), power(8, 3), "O m1-3 run32 t256 b3 g1 s0 c2 : 3m 2m 1m"},
        {"f64", power(32, 2), power(32, 2), "O m1-2 run16 t256 b2 g1 s0 c2 : 2m 1m"},
        // tiles that rotate through three places
        {"f32", power(32, 2), power(32, 2), "O m1-2 run32 t256 b1 g2 s1 : 2w 1w"},
        {"f32", power(32, 2), power(32, 2), "O m1-2 run32 t512 b1 g2 s1 : 2m 1m"},
        {"f64", power(32, 2), power(32, 2), "O m1-2 run16 t512 b1 g2 s1 : 2m 1m"},
        {"f64", power(64, 1), power(64, 1), "O m1 run32 t128 b2 g1 s3 : 1m/4"},
        {"f64", power(128, 1), power(128, 1), "T m1 r64 t256 b1 g1 s3 : 1m/8"},
        {"f64", power(128, 1), power(128, 1), "O m1 run64 t256 b1 g1 s2 : 1m/8"},
        {"f64", {24}, {40}, "T m1 r16 t64 b2 g1 s2 : 1m"},
        {"f64", power(8, 2), power(8, 2), "T m1-2 r32 t64 b4 g1 s0 : 1+2m"},
        {"f64", power(8, 3), power(8, 3), "T m1-3 r4 t64 b4 g1 s0 : 1m 2+2m"},
        {"f64", power(8, 4), power(8, 4), "T m1-4 r1 t128 b4 g1 s0 : 1+2m 3+2m"},
        {"f64", power(8, 5), power(8, 5), "T m1-5 r1 t128 b3 g1 s0 c4 : 1m 2+2m 4+2m"},
        {"f64", power(8, 5), power(8, 5), "T m1-5 r1 t128 b6 g1 s0 c8 : 1m 2+2m 4+2m"},
        {"f64", power(8, 3), power(8, 3), "O m1-3 run16 t128 b3 g1 s0 : 2+2m 1m"},
        {"f64", power(8, 4), power(8, 4), "O m1-4 run8 t128 b4 g1 s0 c8 : 3+2m 2m 1m"},
        {"f32", {16, 16, 32}, {16, 16, 32}, "T m1-3 r1 t128 b2 g1 s0 : 2+2m 1m"},
        // the warpgroup's matrix unit
        {"f32", power(64, 2), power(64, 2), "T m1-2 r2 t128 b2 g1 s0 : 2w 1w"},
        {"f32", power(32, 2), power(32, 2), "T m1-2 r4 t128 b2 g1 s0 : 2w 1w"},
        {"f32", {64}, {64}, "O m1 run128 t128 b2 g1 s2 : 1w"},
        {"f32", {64}, {64}, "O m1 run64 t128 b2 g1 s2 : 1w"},
        {"f32", {128}, {128}, "T m1 r64 t256 b1 g1 s2 : 1w/2"},
        {"f32", {128}, {128}, "O m1 run64 t256 b1 g1 s2 : 1w/2"},
        {"f32", {24, 64}, {64, 32}, "T m1-2 r4 t128 b1 g1 s0 : 2w 1w"},
        // float, multiply-adds
        {"f32", power(8, 5), power(8, 5), "T m1-5 r1 t256 b1 g4 s2 : 4+2f 2+2f 1f"},
        {"f32", power(8, 3), power(8, 3), "T m1-3 r8 t64 b8 g1 s0 : 2+2f 1f"},
        {"f32", power(4, 6), power(4, 6), "T m1-6 r1 t64 b6 g1 s1 : 4+3f 1+3f"},
        {"f32", power(4, 7), power(4, 7), "T m1-7 r1 t128 b2 g2 s1 : 5+3f 2+3f 1f"},
        {"f32", power(3, 7), power(3, 7), "T m1-7 r1 t128 b6 g1 s0 : 7f 5+2f 3+2f 1+2f"},
        {"f32", power(2, 9), power(2, 9), "T m1-9 r1 t128 b2 g1 s0 : 6+4f 2+4f 1f"},
        {"f32", {5, 5, 2, 25}, {5, 5, 2, 25}, "T m1-4 r1 t256 b1 g1 s0 : 4f 2+2f 1f"},
        {"f32", {52, 50}, {65, 20}, "T m1-2 r1 t256 b1 g1 s0 : 2f/4 1f/4"},
        {"f32", {6, 5, 7}, {7, 3, 10}, "T m1-3 r4 t64 b4 g1 s0 : 3f 2f 1f"},
        {"f32", {2, 3, 5}, {2, 3, 5}, "T m1-3 r1 t64 b4 g1 s0 c2 : 2+2f 1f"},
        {"f32", power(8, 3), power(8, 3), "O m1-3 run32 t128 b3 g1 s0 : 3f 1+2f"},
        {"f32", power(8, 3), power(8, 3), "O m1-3 run64 t256 b3 g1 s0 c2 : 3f 2f 1f"},
        {"f32", power(6, 2), power(6, 2), "O m1-2 run64 t128 b8 g1 s0 : 2f 1f"},
        {"f32", power(6, 2), power(6, 2), "O m1-2 run288 t288 b2 g1 s0 : 1+2f"},
        {"f32", power(8, 4), power(8, 4), "T m1-4 r1 t64 b6 g1 s0 : 3+2f 1+2f"},
        {"f32", {7}, {3}, "O m1 run16 t64 b4 g1 s2 : 1f"},
        {"f32", power(13, 3), power(13, 3), "T m1-3 r1 t256 b4 g1 s0 : 3f 2f 1f"},
        // several fibres a thread
        {"f32", power(15, 3), power(15, 3), "T m1-3 r4 t256 b2 g1 s0 : 3f 2f 1f"},
        {"f32", power(12, 3), power(12, 3), "T m1-3 r4 t128 b7 g1 s0 : 3f 2f 1f"},
        {"f32", {7, 12}, {11, 10}, "T m1-2 r16 t64 b4 g1 s0 : 2f 1f"},
        {"f32", {11}, {13}, "O m1 run36 t32 b8 g1 s0 : 1f"},
        {"f64", power(15, 2), power(15, 2), "T m1-2 r16 t128 b4 g1 s0 : 2f 1f"},
        {"f64", power(14, 3), power(14, 3), "T m1-3 r2 t128 b4 g1 s0 : 3f 2f 1f"},
        {"f64", {9, 10}, {12, 7}, "T m1-2 r8 t64 b4 g1 s0 : 2f 1f"},
        // slices of the last new index, a block each
        {"f32", {52, 65}, {50, 20}, "T m1-2 r1 t64 b1 g1 s0 q5 : 2f 1f/13"},
        {"f32", {5, 5, 2, 25}, {5, 5, 2, 25}, "T m1-4 r1 t64 b1 g1 s0 q5 : 4f 2+2f 1f"},
        {"f32", {6, 5, 7}, {7, 3, 10}, "T m1-3 r4 t64 b4 g1 s0 q2 : 1f 2f 3f"},
        {"f64", {32, 64}, {8, 128}, "T m1-2 r1 t128 b1 g1 s0 q8 : 1f/2 2f/4"},
        {"f64", power(2, 8), power(2, 8), "T m1-8 r2 t32 b1 g1 s0 q2 : 8f 5+3f 1+4f"},
        // a mode that leaves gaps below the next
        {"f32", {5, 6, 10}, {5, 6, 2}, "T m1-3 r4 t64 b4 g1 s0 : 3f 2f 1f"},
        {"f64", {4, 9, 6}, {4, 6, 3}, "T m1-3 r2 t64 b4 g1 s0 : 3f 2f 1f"},
        {"c64", {5, 3, 8}, {4, 2, 8}, "T m1-3 r1 t64 b2 g1 s0 q4 : 3f 2f 1f"},
        // double
        {"f64", power(8, 3), power(8, 3), "T m1-3 r4 t64 b6 g1 s0 : 3m 2m 1m"},
        {"f64", power(8, 5), power(8, 5), "T m1-5 r1 t256 b4 g1 s0 c8 : 5m 4m 3m 2m 1m"},
        {"f64", power(16, 4), power(16, 4), "T m1-4 r1 t256 b2 g1 s0 c8 : 4m 3m 2m 1m"},
        {"f64", power(32, 2), power(32, 2), "T m1-2 r2 t64 b4 g1 s0 : 2m 1m"},
        {"f64", power(64, 2), power(64, 2), "T m1-2 r1 t256 b1 g1 s1 : 2m/4 1m/4"},
        {"f64", power(128, 1), power(128, 1), "T m1 r32 t256 b1 g1 s2 : 1m/8"},
        {"f64", power(128, 1), power(128, 1), "O m1 run32 t256 b1 g1 s2 : 1m/8"},
        {"f64", power(16, 2), power(16, 2), "O m1-2 run32 t256 b1 g1 s0 : 2m 1m"},
        {"f64", {24, 16}, {8, 40}, "T m1-2 r2 t64 b2 g1 s0 : 2m 1m"},
        {"f64", power(4, 6), power(4, 6), "T m1-6 r1 t256 b2 g1 s1 : 5+2f 3+2f 1+2f"},
        {"f64", power(4, 7), power(4, 7), "T m1-7 r1 t256 b1 g2 s1 : 5+3f 2+3f 1f"},
        {"f64", {5, 5, 2, 25}, {5, 5, 2, 25}, "T m1-4 r1 t256 b1 g1 s0 : 4f 2+2f 1f"},
        {"f64", {52, 50}, {65, 20}, "T m1-2 r1 t256 b1 g1 s0 : 2f/4 1f/4"},
        {"f64", power(6, 2), power(6, 2), "O m1-2 run64 t128 b4 g1 s0 : 2f 1f"},
        {"f64", {6, 5, 7}, {7, 3, 10}, "T m1-3 r4 t64 b4 g1 s0 : 3f 2f 1f"},
        // complex: multiply-adds only
        {"c64", power(4, 4), power(4, 4), "T m1-4 r1 t64 b4 g1 s0 : 3+2f 1+2f"},
        {"c64", {5, 3, 7}, {4, 6, 7}, "T m1-3 r2 t64 b2 g1 s0 : 3f 2f 1f"},
        {"c64", power(8, 2), power(8, 2), "O m1-2 run8 t64 b2 g1 s0 : 2f 1f"},
        {"c64", power(8, 3), power(8, 3), "T m1-3 r1 t64 b2 g1 s0 c4 : 3f 2f 1f"},
        {"c128", power(4, 4), power(4, 4), "T m1-4 r1 t64 b4 g1 s1 : 3+2f 1+2f"},
        {"c128", {5, 3, 20}, {4, 6, 7}, "T m1-3 r2 t64 b2 g1 s0 : 3f 2f 1f"},
        {"c128", power(6, 2), power(6, 2), "O m1-2 run8 t64 b2 g1 s0 : 2f 1f"},
    };
}

inline std::vector<check_placement> check_placements(const fused_pass& pass) {
    std::vector<check_placement> all;
    const bool large = pass.count_p() * pass.tile.run >= 16384;
    const auto place = [&](std::string name) {
        check_placement c;
        c.name = std::move(name);
        c.lines = pass.outer ? 2 : large ? 2 * pass.tile.rows + 1 : 3 * pass.tile.rows + 1;
        c.inner = pass.outer ? 2 * pass.tile.run : 0;
        return c;
    };
    const auto add = [&](const check_placement& c) { all.push_back(c); };
    check_placement c = place("whole tiles");
    if (!pass.outer) c.lines = 2 * pass.tile.rows;
    add(c);
    c = place("partial tiles");
    c.inner = pass.outer ? pass.tile.run + pass.tile.run / 2 + 1 : 0;
    c.tiles_at_once = 1;
    add(c);
    if (pass.tile.slots > 0) {  // a block comes back to each stage
        c = place("many tiles");
        (pass.outer ? c.inner : c.lines) = 7 * (pass.outer ? pass.tile.run : pass.tile.rows);
        c.tiles_at_once = 1;
        add(c);
        c.beta = 0.5;
        (pass.outer ? c.inner : c.lines) += 2;
        add(c);
    }
    for (int e = 1; e < 16; e += large && e > 4 ? 5 : 1) {
        c = place("offset " + std::to_string(e));
        c.x_offset = e;
        c.y_offset = e * 7 % 16;
        c.f_offset = e;
        c.pad = e % 2 ? 1 : 3;
        c.alpha = -0.75;
        c.beta = e % 3 ? 0.5 : 0;
        c.transposed = e % 2;
        if (pass.outer) {
            c.inner = 2 * pass.tile.run + e;
            c.inner_pad = e % 4;
            c.parts = e % 2 + 1;
        }
        c.tiles_at_once = e % 4 ? 2 : 1 << 20;
        add(c);
    }
    c = place("offset 4, strides of 16 bytes");
    c.x_offset = c.y_offset = 4;
    c.pad = 4;
    c.inner_pad = 4;
    c.beta = 1;
    c.transposed = true;
    add(c);
    c = place("parts of a line");
    c.parts = 3;
    c.lines = large ? 1 : 2;
    c.pad = 5;
    c.tiles_at_once = 2;
    add(c);
    if (pass.outer) {
        c = place("narrower than a run");
        c.inner = pass.tile.run - 1;
        c.inner_pad = 1;
        add(c);
        c.inner = 1;
        add(c);
    }
    if (pass.p == pass.q && pass.tile.slices == 1) {
        c = place("in place");
        c.in_place = true;
        c.tiles_at_once = 2;
        add(c);
        c.pad = 1;
        c.x_offset = 3;
        c.beta = 0.25;
        add(c);
    }
    for (data_kind kind :
         {data_kind::exact, data_kind::special_x, data_kind::special_f, data_kind::tiny, data_kind::huge}) {
        c = place("data");
        c.data = kind;
        c.tiles_at_once = 3;
        if (kind == data_kind::special_x) {
            c.lines = std::max(c.lines, 5);
            c.x_offset = 1;
        }
        add(c);
    }
    return all;
}

// ---- the generic kernel

template <class Storage, class Accumulator>
struct sliced_multiply_arguments {  // as in kernels/generic_sliced_multiply.cuh
    const Storage* x;
    const Storage* f;
    Storage* y;
    alignas(sizeof(Accumulator)) Accumulator alpha;
    alignas(sizeof(Accumulator)) Accumulator beta;
    long long p_extent, q_extent, x_p_stride, f_p_stride, f_q_stride, y_q_stride;
    long long free_extent[16], x_stride[16], y_stride[16], f_stride[16];
    int free_count, q_position, lanes_log2;
    bool conjugate_x, conjugate_f;
};

struct stored_half {
    std::uint16_t bits;
};
struct stored_bfloat16 {
    std::uint16_t bits;
};

inline float widen_bits(float v) { return v; }
inline float widen_bits(stored_bfloat16 v) {
    const std::uint32_t b = std::uint32_t(v.bits) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
inline float widen_bits(stored_half v) {
    const int sign = v.bits >> 15, exponent = v.bits >> 10 & 31, fraction = v.bits & 1023;
    float f;
    if (exponent == 31)
        f = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    else
        f = exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24);
    return sign ? -f : f;
}

template <class Storage, class Accumulator>
void check_generic(const char* name, CUfunction function, CUstream stream, check_totals& totals, double unit) {
    using wide = typename scalar_traits<Accumulator>::wide;
    using real = typename scalar_traits<Accumulator>::real;
    constexpr bool is_complex = scalar_traits<Accumulator>::is_complex;
    const auto value_of = [](const Storage& s) -> wide {
        if constexpr (std::is_same_v<Storage, Accumulator>)
            return wide(s);
        else
            return wide(widen_bits(s));
    };
    std::mt19937_64 random(3);
    const auto draw = [&] {
        if constexpr (std::is_same_v<Storage, Accumulator>) {
            const real re = real(double(random() >> 11) * 0x1p-52 - 1.0),
                       im = real(double(random() >> 11) * 0x1p-52 - 1.0);
            if constexpr (is_complex)
                return Storage(re, im);
            else {
                (void)im;
                return Storage(re);
            }
        } else if constexpr (std::is_same_v<Storage, stored_half>)
            return stored_half{std::uint16_t((random() & 0x83ff) | (10 + random() % 5) << 10)};
        else
            return stored_bfloat16{std::uint16_t((random() & 0x807f) | (122 + random() % 5) << 7)};
    };
    struct shape {
        std::vector<long long> free;
        long long P, Q;
        int q_position;
        double alpha, beta;
        bool cx, cf, own_factors, backwards;
    };
    const shape shapes[] = {{{7}, 5, 3, 1, 1, 0, false, false, false, false},
                            {{3, 4, 5}, 17, 9, 1, -0.5, 2, true, false, true, true},
                            {{33, 2}, 1, 31, 0, 2, 0, false, true, false, false},
                            {{2, 3, 1, 2, 2, 3}, 64, 7, 6, 1, 1, true, true, true, false},
                            {{}, 200, 11, 0, 1.5, 0, false, false, false, false},
                            {{4}, 0, 6, 1, 1, 0.5, false, false, false, false},
                            {{4, 0, 2}, 3, 6, 2, 1, 0, false, false, false, false},
                            {{129}, 130, 131, 0, 1, 0, false, false, false, false}};
    for (const shape& s : shapes)
        for (int offset : {0, 1, 3, 15}) {
            sliced_multiply_arguments<Storage, Accumulator> a{};
            const int n = int(s.free.size());
            long long x_size = 1, y_size = 1, f_size = 1;
            // X: (f.., p) with a gap at every level; Y: q at its position; F: (own f.., p, q)
            a.x_p_stride = 1;
            x_size = s.P + 1;
            a.f_q_stride = 1;
            a.f_p_stride = s.Q + 2;
            f_size = (s.P + 1) * (s.Q + 2);
            for (int i = n; i >= 0; --i) {
                if (i == s.q_position) {
                    a.y_q_stride = y_size;
                    y_size = y_size * s.Q + 1;
                }
                if (i > 0) {
                    const long long e = s.free[i - 1];
                    a.free_extent[i - 1] = e;
                    a.x_stride[i - 1] = x_size;
                    x_size = x_size * e + 1;
                    a.y_stride[i - 1] = y_size;
                    y_size = y_size * e + 1;
                    a.f_stride[i - 1] = s.own_factors ? f_size : 0;
                    if (s.own_factors) f_size = f_size * e + 1;
                }
            }
            const long long guard = 32;
            Storage poison;
            std::memset(static_cast<void*>(&poison), 0xff, sizeof(poison));
            std::vector<Storage> x(x_size + offset + 2 * guard), f(f_size + offset + 2 * guard),
                y(y_size + offset + 2 * guard, poison);
            for (auto& e : x) e = draw();
            for (auto& e : f) e = draw();
            long long x_first = guard + offset, y_first = guard + (offset * 7) % 16 % (offset + 1),
                      f_first = guard + offset;
            if (s.backwards) {  // the first free index from its last to its first
                x_first += (a.free_extent[0] - 1) * a.x_stride[0];
                a.x_stride[0] = -a.x_stride[0];
            }
            a.free_count = n;
            a.q_position = s.q_position;
            a.lanes_log2 = offset == 0 ? 0 : offset == 1 ? 3 : offset == 3 ? 5 : 4;  // of 256, 256, 96, 256 threads
            a.p_extent = s.P;
            a.q_extent = s.Q;
            a.alpha = Accumulator(real(s.alpha));
            a.beta = Accumulator(real(s.beta));
            a.conjugate_x = s.cx;
            a.conjugate_f = s.cf;
            std::vector<Storage> want_at;
            long long count = s.Q;
            for (long long e : s.free) count *= e;
            std::vector<char> is_output(y.size(), 0);
            std::vector<wide> want(y.size(), wide(0));
            for (long long linear = 0; linear < count; ++linear) {
                long long rest = linear / s.Q, q = linear % s.Q, xa = x_first, fa = f_first + q * a.f_q_stride,
                          ya = y_first + q * a.y_q_stride;
                for (int i = n - 1; i >= 0; --i) {
                    const long long d = rest % s.free[i];
                    rest /= s.free[i];
                    xa += d * a.x_stride[i];
                    fa += d * a.f_stride[i];
                    ya += d * a.y_stride[i];
                }
                if (s.beta != 0) y[ya] = draw();
                wide sum = 0;
                for (long long p = 0; p < s.P; ++p) {
                    wide xv = value_of(x[xa + p * a.x_p_stride]), fv = value_of(f[fa + p * a.f_p_stride]);
                    if constexpr (is_complex) {
                        if (s.cx) xv = std::conj(xv);
                        if (s.cf) fv = std::conj(fv);
                    }
                    sum += xv * fv;
                }
                sum *= wide(a.alpha);
                if (s.beta != 0) sum += wide(a.beta) * value_of(y[ya]);
                is_output[ya] = 1;
                want[ya] = sum;
            }
            CUdeviceptr dx, dy, df;
            CU(cuMemAlloc(&dx, x.size() * sizeof(Storage)));
            CU(cuMemAlloc(&dy, y.size() * sizeof(Storage)));
            CU(cuMemAlloc(&df, f.size() * sizeof(Storage)));
            CU(cuMemcpyHtoDAsync(dx, x.data(), x.size() * sizeof(Storage), stream));
            CU(cuMemcpyHtoDAsync(dy, y.data(), y.size() * sizeof(Storage), stream));
            CU(cuMemcpyHtoDAsync(df, f.data(), f.size() * sizeof(Storage), stream));
            a.x = reinterpret_cast<const Storage*>(dx + x_first * sizeof(Storage));
            a.y = reinterpret_cast<Storage*>(dy + y_first * sizeof(Storage));
            a.f = reinterpret_cast<const Storage*>(df + f_first * sizeof(Storage));
            void* parameters[] = {&a};
            CU(cuLaunchKernel(function, offset == 1 ? 1 : 60, 1, 1, offset == 3 ? 96 : 256, 1, 1, 0, stream, parameters,
                              nullptr));
            std::vector<Storage> got(y.size());
            CU(cuMemcpyDtoHAsync(got.data(), dy, y.size() * sizeof(Storage), stream));
            CU(cuStreamSynchronize(stream));
            for (CUdeviceptr d : {dx, dy, df}) CU(cuMemFree(d));
            double largest = 0, scale = 0;
            int stray = 0;
            for (std::size_t i = 0; i < y.size(); ++i) {
                if (!is_output[i]) {
                    stray += std::memcmp(&got[i], &y[i], sizeof(Storage)) != 0;
                    continue;
                }
                const double d = double(std::abs(value_of(got[i]) - want[i]));
                largest = d <= 1e300 ? std::max(largest, d) : 1e300;
                scale = std::max(scale, double(std::abs(want[i])));
            }
            const bool right = stray == 0 && largest <= 8 * unit * scale;
            (right ? totals.passed : totals.failed) += 1;
            if (!right)
                std::printf(
                    "WRONG generic %s, %d free modes, P %lld Q %lld offset %d: largest error %.2e of %.2e, %d strays\n",
                    name, n, s.P, s.Q, offset, largest, scale, stray);
        }
}

inline int check_kernels(const std::string& cache, const std::string& ahead_of_time, const std::string& only,
                         bool brief) {
    std::vector<job> jobs;
    struct planned_check {
        check_group group;
        fused_pass pass;
        std::string name;
    };
    std::vector<planned_check> work;
    const auto type_of = [](const std::string& t) {
        return t == "f32" ? dtype::f32 : t == "f64" ? dtype::f64 : t == "c64" ? dtype::c64 : dtype::c128;
    };
    for (const check_group& g : check_groups()) {
        planned_check w{g, parse_pass_plan("| " + g.pass, g.p, g.q).passes.at(0), ""};
        const std::string expression =
            "otimes::kernels::" + w.pass.kernel() + "<" + w.pass.type_expression(type_of(g.type)) + ">";
        for (int e : g.p) w.name += (w.name.empty() ? "" : "x") + std::to_string(e);
        w.name = g.type + " " + w.name + " | " + g.pass;
        if (w.name.find(only) == std::string::npos) continue;
        jobs.push_back(
            {w.name, "#include \"scalars.cuh\"\n#include \"" + w.pass.kernel() + ".cuh\"\n", expression, {}, {}});
        work.push_back(std::move(w));
    }
    const char* const generic_types[] = {"float,float",
                                         "double,double",
                                         "otimes::kernels::complex<float>,otimes::kernels::complex<float>",
                                         "otimes::kernels::complex<double>,otimes::kernels::complex<double>",
                                         "otimes::kernels::half,float",
                                         "otimes::kernels::bfloat16,float"};
    const bool with_generic = only.empty() || only.find("generic") != std::string::npos;
    if (with_generic)
        for (const char* t : generic_types)
            jobs.push_back({std::string("generic ") + t,
                            "#include \"generic_sliced_multiply.cuh\"\n",
                            std::string("otimes::kernels::generic_sliced_multiply<") + t + ">",
                            {},
                            {}});
    const auto start = std::chrono::steady_clock::now();
    compile_all(jobs, cache);
    std::printf("%zu kernels compiled in %.1f s\n", jobs.size(),
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());

    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    check_totals totals;
    CUmodule prebuilt = nullptr;
    if (!ahead_of_time.empty()) CU(cuModuleLoad(&prebuilt, ahead_of_time.c_str()));
    const auto check_one = [&](std::size_t i, CUstream stream, std::mutex& one_at_a_time) {
        const job& j = jobs[i];
        if (!j.error.empty()) {
            const std::lock_guard lock(one_at_a_time);
            std::printf("COMPILE FAILED %s: %s\n", j.key.c_str(), j.error.substr(0, 1500).c_str());
            ++totals.failed;
            return;
        }
        CUmodule module;
        CU(cuModuleLoadData(&module, j.result.cubin.data()));
        for (CUmodule from : {module, prebuilt}) {
            CUfunction function;
            if (!from || cuModuleGetFunction(&function, from, j.result.lowered.c_str()) != CUDA_SUCCESS) continue;
            check_totals own;
            const auto begun = std::chrono::steady_clock::now();
            if (i < work.size()) {
                const planned_check& w = work[i];
                const int bytes = int(w.pass.shared_bytes(type_of(w.group.type)));
                CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
                const auto all = [&](auto scalar) {
                    fused_check<decltype(scalar)> check(w.pass, function, stream, own, w.name);
                    for (const check_placement& c : check_placements(w.pass))
                        if (!brief || c.name == "partial tiles" || c.name == "many tiles" || c.name == "offset 2" ||
                            c.name == "offset 4, strides of 16 bytes" || c.data == data_kind::special_x)
                            check.run(c);
                };
                if (w.group.type == "f32")
                    all(float{});
                else if (w.group.type == "f64")
                    all(double{});
                else if (w.group.type == "c64")
                    all(std::complex<float>{});
                else
                    all(std::complex<double>{});
            } else {
                const char* name = j.key.c_str();
                switch (i - work.size()) {
                    case 0: check_generic<float, float>(name, function, stream, own, 1.2e-7); break;
                    case 1: check_generic<double, double>(name, function, stream, own, 2.2e-16); break;
                    case 2:
                        check_generic<std::complex<float>, std::complex<float>>(name, function, stream, own, 1.2e-7);
                        break;
                    case 3:
                        check_generic<std::complex<double>, std::complex<double>>(name, function, stream, own, 2.2e-16);
                        break;
                    case 4: check_generic<stored_half, float>(name, function, stream, own, 1e-3 / 8); break;
                    default: check_generic<stored_bfloat16, float>(name, function, stream, own, 8e-3 / 8); break;
                }
            }
            const std::lock_guard lock(one_at_a_time);
            totals.passed += own.passed;
            totals.failed += own.failed;
            totals.worst_float = std::max(totals.worst_float, own.worst_float);
            totals.worst_double = std::max(totals.worst_double, own.worst_double);
            std::printf("%-5s %3d of %3d  %5.2f s  %s%s, %s\n", own.failed == 0 ? "ok" : "WRONG", own.passed,
                        own.passed + own.failed,
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), j.key.c_str(),
                        from == prebuilt ? ", ahead of time" : "", short_report(j.result.log).c_str());
            std::fflush(stdout);
        }
    };
    std::atomic<std::size_t> next{0};
    std::mutex one_at_a_time;
    std::vector<std::thread> workers;
    for (unsigned n = 0; n < std::max(1u, std::thread::hardware_concurrency()); ++n)
        workers.emplace_back([&] {
            for (std::size_t i = 0; (i = next++) < jobs.size();) try {
                    CUstream stream;
                    CU(cuCtxSetCurrent(context));
                    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
                    check_one(i, stream, one_at_a_time);
                    CU(cuStreamDestroy(stream));
                } catch (const std::exception& e) {
                    const std::lock_guard lock(one_at_a_time);
                    std::printf("FAILED %s: %s\n", jobs[i].key.c_str(), e.what());
                    ++totals.failed;
                }
        });
    for (auto& t : workers) t.join();
    std::printf("%d checks passed, %d failed; largest relative error, uniform data: float %.2e, double %.2e\n",
                totals.passed, totals.failed, totals.worst_float, totals.worst_double);
    return totals.failed == 0 ? 0 : 1;
}

}  // namespace otimes::bench

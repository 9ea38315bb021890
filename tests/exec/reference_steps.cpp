// SPDX-License-Identifier: MIT
// Every kind of step of the reference executor on data that can be checked by hand.
#include <otimes/exec/reference.hpp>

#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace {

using namespace otimes;
using extents = std::vector<mode>;

// Builds a program of one step operand by operand; operands are bound in the order in which they are added.
struct one_step {
    program p;
    bindings b;
    step s;

    template <class Scalar>
    std::int32_t operand(tensor_role role, std::vector<Scalar>& data, const extents& modes, bool conjugate = false) {
        tensor t;
        t.type = dtype_of<Scalar>();
        t.role = role;
        t.conjugate = conjugate;
        t.scalar_bytes = sizeof(Scalar);
        t.binding = static_cast<std::int32_t>(b.pointers.size());
        b.pointers.push_back(data.data());
        const std::int32_t id = p.add_tensor(t);
        for (const mode& m : modes) {
            p.add_mode(m.extent, m.stride);
        }
        return id;
    }
    void scalar(std::complex<double> alpha) {
        s.scalar = p.scalar_count++;
        b.scalars.push_back(alpha);
    }
    void run() {
        p.steps.push_back(s);
        plan made;
        made.source = p;
        reference().run(made, b, {});
    }
};

using doubles = std::vector<double>;
using complexes = std::vector<std::complex<double>>;
const double poison = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("contract: a matrix product, output poisoned, then added to with alpha") {
    doubles x{1, 2, 3, 4, 5, 6};   // 2 x 3
    doubles f{1, 0, 2, -1, 0, 3};  // 3 x 2
    doubles y(4, poison);
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{2, 3}, {3, 1}});
    t.s.factor = t.operand(tensor_role::factor, f, {{3, 2}, {2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 2}, {2, 1}});
    t.s.mode = 1;
    t.run();
    CHECK(y == doubles{5, 7, 14, 13});
    t.s.add = true;
    t.scalar(10.0);
    t.p.steps.clear();
    t.run();
    CHECK(y == doubles{55, 77, 154, 143});
    x[0] = poison;
    f[0] = 0;
    t.p.steps.clear();
    t.run();
    CHECK((std::isnan(y[0]) && std::isnan(y[1]) && y[3] == 273));
}

TEST_CASE("contract: on the outer mode, with strides, and with a factor read transposed") {
    doubles x{1, 2, 0, 3, 4, 0};  // 2 x 2 with a gap after each row
    doubles f{1, 2, 3, 4, 5, 6};  // stored 3 x 2, read as 2 x 3
    doubles y(6, poison);         // 3 x 2 column-major
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{2, 3}, {2, 1}});
    t.s.factor = t.operand(tensor_role::factor, f, {{2, 1}, {3, 2}});
    t.s.out = t.operand(tensor_role::output, y, {{3, 1}, {2, 3}});
    t.s.mode = 0;
    t.run();
    CHECK(y == doubles{1 + 6, 3 + 12, 5 + 18, 2 + 8, 6 + 16, 10 + 24});
}

TEST_CASE("contract: per-item factors have the free modes of the input before (p, q)") {
    doubles x{1, 2, 3, 4};              // 2 items of 2
    doubles f{1, 0, 0, 1, 2, 0, 0, 5};  // 2 items of 2 x 2
    doubles y(4, poison);
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{2, 2}, {2, 1}});
    t.s.factor = t.operand(tensor_role::factor, f, {{2, 4}, {2, 2}, {2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 2}, {2, 1}});
    t.s.mode = 1;
    t.run();
    CHECK(y == doubles{1, 2, 6, 20});
}

TEST_CASE("contract: real factors of a complex product are promoted, conjugation is honoured") {
    complexes x{{1, 2}, {3, -1}};
    doubles f{2, 1};
    complexes y(1, {poison, poison});
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{2, 1}}, true);
    t.s.factor = t.operand(tensor_role::factor, f, {{2, 1}, {1, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{1, 1}});
    t.s.mode = 0;
    t.scalar({0, 1});
    t.run();
    CHECK(y[0] == std::complex<double>(0, 1) * std::complex<double>(5, -3));
}

TEST_CASE("contract: an empty sum is zero, and an empty output is left alone") {
    doubles none(1, poison);
    doubles y(2, poison);
    one_step t;
    t.s.in = t.operand(tensor_role::input, none, {{2, 0}, {0, 1}});
    t.s.factor = t.operand(tensor_role::factor, none, {{0, 1}, {1, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 1}, {1, 1}});
    t.s.mode = 1;
    t.run();
    CHECK(y == doubles{0, 0});
}

TEST_CASE("contract: identity and diagonal factors") {
    doubles x{1, 2, 3};
    doubles d{4, 5, 6};
    doubles y(3, poison);
    for (const factor_kind kind : {factor_kind::identity, factor_kind::diagonal}) {
        one_step t;
        t.s.in = t.operand(tensor_role::input, x, {{3, 1}});
        t.s.factor = t.operand(tensor_role::factor, d, {{3, 1}, {3, 0}});
        t.p.tensors.back().kind = kind;
        t.s.out = t.operand(tensor_role::output, y, {{3, 1}});
        t.s.mode = 0;
        t.run();
        CHECK(y == (kind == factor_kind::identity ? x : doubles{4, 10, 18}));
    }
}

TEST_CASE("accumulate converts real to complex and adds") {
    doubles x{1, 2};
    complexes y{{1, 1}, {1, 1}};
    one_step t;
    t.s.kind = step_kind::accumulate;
    t.s.in = t.operand(tensor_role::input, x, {{2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 1}});
    t.s.add = true;
    t.scalar({0, 2});
    t.run();
    CHECK(y == complexes{{1, 3}, {1, 5}});
}

TEST_CASE("scale by a vector along one mode, and by the reciprocal of a sum of vectors plus a shift") {
    doubles x{6, 12, 18, 24};  // 2 x 2
    doubles v{10, 100};
    doubles y(4, poison);
    one_step t;
    t.s.kind = step_kind::scale;
    t.s.in = t.operand(tensor_role::input, x, {{2, 2}, {2, 1}});
    t.s.factor = t.operand(tensor_role::factor, v, {{2, 0}, {2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 2}, {2, 1}});
    t.run();
    CHECK(y == doubles{60, 1200, 180, 2400});

    doubles both{1, 2, 0, 3};  // (1, 2) along mode 0, then (0, 3) along mode 1
    one_step r;
    r.s.kind = step_kind::scale;
    r.s.variant = step_variant::reciprocal;
    r.s.in = r.operand(tensor_role::input, x, {{2, 2}, {2, 1}});
    r.s.factor = r.operand(tensor_role::factor, both, {{2, 1}, {2, 1}});
    r.s.out = r.operand(tensor_role::output, y, {{2, 2}, {2, 1}});
    r.scalar(1.0);
    r.run();
    CHECK(y == doubles{6.0 / 2, 12.0 / 5, 18.0 / 3, 24.0 / 6});
}

TEST_CASE("gather and scatter along a mode") {
    doubles x{1, 2, 3, 4, 5, 6};  // 2 x 3
    std::vector<std::int32_t> index{2, 0};
    doubles y(4, poison);
    one_step t;
    t.s.kind = step_kind::gather;
    t.s.in = t.operand(tensor_role::input, x, {{2, 3}, {3, 1}});
    t.s.factor = t.operand(tensor_role::factor, index, {{2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {{2, 2}, {2, 1}});
    t.s.mode = 1;
    t.run();
    CHECK(y == doubles{3, 1, 6, 4});

    doubles z(6, 0);
    std::vector<std::int64_t> wide{2, 0};
    one_step back;
    back.s.kind = step_kind::scatter;
    back.s.in = back.operand(tensor_role::input, y, {{2, 2}, {2, 1}});
    back.s.factor = back.operand(tensor_role::factor, wide, {{2, 1}});
    back.s.out = back.operand(tensor_role::output, z, {{2, 3}, {3, 1}});
    back.s.mode = 1;
    back.s.add = true;
    back.run();
    CHECK(z == doubles{1, 0, 3, 4, 0, 6});
}

TEST_CASE("solve undoes a contraction with a triangular factor") {
    for (const bool upper : {true, false}) {
        doubles x{1, 2, 3, -1, 4, 2};  // 2 x 3
        doubles f = upper ? doubles{2, 1, -1, 0, 4, 3, 0, 0, 0.5} : doubles{2, 0, 0, 1, 4, 0, -1, 3, 0.5};
        doubles y(6, poison);
        doubles z(6, poison);
        one_step forward;
        forward.s.in = forward.operand(tensor_role::input, x, {{2, 3}, {3, 1}});
        forward.s.factor = forward.operand(tensor_role::factor, f, {{3, 3}, {3, 1}});
        forward.s.out = forward.operand(tensor_role::output, y, {{2, 3}, {3, 1}});
        forward.s.mode = 1;
        forward.run();
        one_step solve;
        solve.s.kind = step_kind::solve;
        solve.s.variant = upper ? step_variant::upper : step_variant::lower;
        solve.s.in = solve.operand(tensor_role::input, y, {{2, 3}, {3, 1}});
        solve.s.factor = solve.operand(tensor_role::factor, f, {{3, 3}, {3, 1}});
        solve.s.out = solve.operand(tensor_role::output, z, {{2, 3}, {3, 1}});
        solve.s.mode = 1;
        solve.run();
        CHECK(z == x);  // powers of two on the diagonal: exact
    }
}

TEST_CASE("reduce: dot, squared norm and Gram") {
    complexes x{{1, 1}, {0, 2}};
    complexes w{{2, 0}, {1, 1}};
    complexes y(1, {poison, poison});
    one_step t;
    t.s.kind = step_kind::reduce;
    t.s.variant = step_variant::dot;
    t.s.in = t.operand(tensor_role::input, x, {{2, 1}});
    t.s.factor = t.operand(tensor_role::input, w, {{2, 1}});
    t.s.out = t.operand(tensor_role::output, y, {});
    t.run();
    CHECK(y[0] == std::complex<double>(2, -2) + std::complex<double>(2, -2));  // conj(x) . w

    doubles norm(1, poison);
    one_step n;
    n.s.kind = step_kind::reduce;
    n.s.variant = step_variant::squared_norm;
    n.s.in = n.operand(tensor_role::input, x, {{2, 1}});
    n.s.out = n.operand(tensor_role::output, norm, {});
    n.run();
    CHECK(norm[0] == 6);

    doubles a{1, 2, 3, 4};  // 2 x 2: Gram of mode 1 is a^T a
    doubles gram(4, poison);
    one_step g;
    g.s.kind = step_kind::reduce;
    g.s.variant = step_variant::gram;
    g.s.in = g.operand(tensor_role::input, a, {{2, 2}, {2, 1}});
    g.s.factor = g.s.in;
    g.s.out = g.operand(tensor_role::output, gram, {{2, 2}, {2, 1}});
    g.s.mode = 1;
    g.run();
    CHECK(gram == doubles{10, 14, 14, 20});
}

TEST_CASE("what only an owner knows is refused, and so are types that no CPU computes in") {
    doubles x{1};
    doubles y{poison};
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{1, 1}});
    t.s.factor = t.operand(tensor_role::factor, x, {{1, 1}, {1, 1}});
    t.p.tensors.back().kind = factor_kind::sparse;
    t.s.out = t.operand(tensor_role::output, y, {{1, 1}});
    t.s.mode = 0;
    CHECK_THROWS_AS(t.run(), unsupported_error);
    t.p.steps.clear();
    t.s.kind = step_kind::callback;
    CHECK_THROWS_AS(t.run(), unsupported_error);
    t.p.steps.clear();
    t.p.tensors.front().type = dtype::bf16;
    CHECK_THROWS_AS(t.run(), unsupported_error);
    t.p.tensors.front().type = dtype::f64;
    t.p.tensors.front().space = memory_space::device;
    CHECK_THROWS_AS(t.run(), unsupported_error);
}

TEST_CASE("any scalar: integers modulo 7, with an opaque alpha and a temporary") {
    struct modular {
        int value = 0;
        modular() = default;
        explicit modular(int v) : value(((v % 7) + 7) % 7) {}
        modular operator+(const modular& o) const { return modular(value + o.value); }
        modular operator-(const modular& o) const { return modular(value - o.value); }
        modular operator*(const modular& o) const { return modular(value * o.value); }
        modular operator/(const modular& o) const {
            int inverse = 1;
            while (o.value * inverse % 7 != 1) {
                ++inverse;
            }
            return modular(value * inverse);
        }
        bool operator==(const modular&) const = default;
    };
    std::vector<modular> x{modular(3), modular(5)};
    std::vector<modular> f{modular(2), modular(6)};
    std::vector<modular> y(1);
    const modular alpha(4);
    one_step t;
    t.s.in = t.operand(tensor_role::input, x, {{2, 1}});
    t.s.factor = t.operand(tensor_role::factor, f, {{2, 1}, {1, 1}});
    const std::int32_t link = t.p.add_tensor({.type = dtype::other});
    t.p.add_mode(1, 0);
    t.s.out = link;
    t.s.mode = 0;
    t.p.steps.push_back(t.s);
    step copy;
    copy.kind = step_kind::accumulate;
    copy.in = link;
    copy.out = t.operand(tensor_role::output, y, {{1, 1}});
    copy.scalar = 0;
    t.p.steps.push_back(copy);
    t.b.opaque_scalars.push_back(&alpha);
    reference_run<modular>(t.p, t.b);
    CHECK(y[0] == modular(4 * (3 * 2 + 5 * 6)));
}

// SPDX-License-Identifier: MIT
// The nodes without Eigen: kron and product of leaves, and the programs that they become.
#include <doctest/doctest.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <otimes/expr/kron.hpp>
#include <otimes/expr/leaf.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/product.hpp>
#include <otimes/expr/product_key.hpp>
#include <otimes/expr/scalar.hpp>

using namespace otimes;

namespace {

const double numbers[64] = {1, 2, 3, 4, 5, 6, 7, 8};
const std::complex<double> pairs[64] = {{1, 2}, {3, -4}};

leaf dense(std::int64_t rows, std::int64_t cols, const void* data = numbers) {
    return leaf::borrowed({data, rows, cols, cols, 1});
}

template <class Scalar>
product_node<Scalar> right_product(leaf x, std::initializer_list<leaf> factors) {
    product_node<Scalar> node;
    node.x = x;
    for (const leaf& f : factors) {
        node.right.push_back(f);
    }
    node.has_right = true;
    return node;
}

template <class Scalar>
program lowered(const product_node<Scalar>& node, bindings& b, const Scalar& scale = Scalar(1)) {
    program p;
    lowering<Scalar> low(p, b);
    low.add_product(node, {nullptr, node.rows(), node.cols(), node.cols(), 1}, false, scale);
    return p;
}

std::vector<std::int64_t> extents(const program& p, std::int32_t id) {
    std::vector<std::int64_t> result;
    for (const mode& m : p.modes_of(id)) {
        result.push_back(m.extent);
    }
    return result;
}
std::vector<std::int64_t> strides(const program& p, std::int32_t id) {
    std::vector<std::int64_t> result;
    for (const mode& m : p.modes_of(id)) {
        result.push_back(m.stride);
    }
    return result;
}
using list = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("the entries of a kron by the index formula") {
    kron_node<double> k;
    k.append(dense(2, 3));  // 1 2 3 / 4 5 6
    k.append(leaf::identity(2));
    k.append(dense(1, 2));  // 1 2
    k.check_extents();
    CHECK(k.rows() == 4);
    CHECK(k.cols() == 12);
    CHECK(k.coefficient(0, 0) == 1);
    CHECK(k.coefficient(0, 1) == 2);
    CHECK(k.coefficient(0, 2) == 0);  // another index of the identity
    CHECK(k.coefficient(1, 2) == 1);
    CHECK(k.coefficient(3, 11) == 12);  // 6 * 1 * 2
    k.set_alpha(-2);
    CHECK(k.coefficient(3, 11) == -24);
    k.transpose();
    CHECK(k.coefficient(11, 3) == -24);
    CHECK(k.rows() == 12);
}

TEST_CASE("a complex kron of a real and a complex leaf, conjugated") {
    kron_node<std::complex<double>> k;
    leaf real = dense(1, 2);
    real.set_real_elements(true);
    k.append(real);
    k.append(dense(1, 2, pairs));
    CHECK(k.coefficient(0, 3) == std::complex<double>(6, -8));
    k.set_alpha({0, 1});
    k.conjugate();
    CHECK(k.coefficient(0, 3) == std::complex<double>(0, -1) * std::complex<double>(6, 8));
}

TEST_CASE("a borrowed object is looked at each time, an owned one lives as long as a copy") {
    struct object {
        std::vector<double> values;
        std::int64_t rows = 0;
    };
    object o{{1, 2, 3, 4}, 2};
    const leaf l = leaf::borrowed(&o, [](const void* p) {
        const auto* at = static_cast<const object*>(p);
        return matrix_view{at->values.data(), at->rows, static_cast<std::int64_t>(at->values.size()) / at->rows, 1,
                           at->rows};
    });
    CHECK(l.cols() == 2);
    o = {{1, 2, 3, 4, 5, 6}, 2};
    CHECK(l.cols() == 3);
    CHECK(l.view().data == o.values.data());
    auto owner = std::make_shared<const std::vector<double>>(6, 1.0);
    const std::weak_ptr<const std::vector<double>> watched = owner;
    auto first = std::make_unique<leaf>(leaf::owned(owner, {owner->data(), 2, 3, 3, 1}));
    owner.reset();
    leaf copy = *first;
    first.reset();
    CHECK(!watched.expired());
    copy.transpose();
    CHECK(copy.view() == matrix_view{copy.view().data, 3, 2, 1, 3});
    copy = leaf();
    CHECK(watched.expired());
}

TEST_CASE("one contract step for each factor that is no identity, strides from X and Y") {
    bindings b;
    const auto node = right_product<double>(dense(5, 24), {dense(2, 3), leaf::identity(4), dense(3, 7)});
    node.check();
    const program p = lowered(node, b);
    REQUIRE(p.steps.size() == 2);
    CHECK(p.steps[0].kind == step_kind::contract);
    CHECK(p.steps[0].mode == 1);
    CHECK(p.steps[1].mode == 3);
    CHECK(p.steps[0].out == p.steps[1].in);
    CHECK(extents(p, p.steps[0].in) == list{5, 2, 4, 3});
    CHECK(strides(p, p.steps[0].in) == list{24, 12, 3, 1});
    CHECK(extents(p, p.steps[0].out) == list{5, 3, 4, 3});
    CHECK(extents(p, p.steps[1].out) == list{5, 3, 4, 7});
    CHECK(strides(p, p.steps[1].out) == list{84, 28, 7, 1});
    CHECK(extents(p, p.steps[0].factor) == list{2, 3});
    CHECK(p.at(p.steps[1].out).role == tensor_role::output);
    CHECK(p.steps[0].scalar == -1);
    CHECK(p.steps[1].scalar == 0);
    CHECK(!p.steps[1].add);
    CHECK(b.pointers.size() == 4);
    CHECK(b.scalars.size() == 1);
    // The values of scalars are bound, not planned.
    bindings c;
    CHECK(lowered(node, c, -3.0) == p);
    CHECK(c.scalars[0] == std::complex<double>(-3.0));
}

TEST_CASE("nothing but identities, or no factor: one accumulate step") {
    bindings b;
    const program p = lowered(right_product<double>(dense(5, 6), {leaf::identity(2), leaf::identity(3)}), b);
    REQUIRE(p.steps.size() == 1);
    CHECK(p.steps[0].kind == step_kind::accumulate);
    const program q = lowered(right_product<double>(dense(5, 1), {}), b);
    REQUIRE(q.steps.size() == 1);
    CHECK(q.steps[0].kind == step_kind::accumulate);
}

TEST_CASE("from the left the columns of a factor are contracted") {
    product_node<double> node;
    node.x = dense(3, 5);
    node.left.push_back(dense(2, 3));
    node.has_left = true;
    bindings b;
    const program p = lowered(node, b);
    REQUIRE(p.steps.size() == 1);
    CHECK(extents(p, p.steps[0].factor) == list{3, 2});
    CHECK(strides(p, p.steps[0].factor) == list{1, 3});
    CHECK(p.steps[0].mode == 0);
}

TEST_CASE("a complex X with real factors is a real problem of twice the extent") {
    using complex = std::complex<double>;
    leaf real = dense(2, 3);
    real.set_real_elements(true);
    const auto node = right_product<complex>(dense(4, 2, pairs), {real});
    bindings b;
    const program p = lowered(node, b, complex(2.0));
    CHECK(p.at(p.steps[0].in).type == dtype::f64);
    CHECK(extents(p, p.steps[0].in) == list{4, 2, 2});
    CHECK(strides(p, p.steps[0].in) == list{4, 2, 1});
    const program q = lowered(node, b, complex(0.0, 2.0));  // not with a complex multiple
    CHECK(q.at(q.steps[0].in).type == dtype::c128);
    // A real X with complex factors is promoted once.
    leaf x = dense(4, 2);
    x.set_real_elements(true);
    const program r = lowered(right_product<complex>(x, {dense(2, 3, pairs)}), b);
    REQUIRE(r.steps.size() == 2);
    CHECK(r.steps[0].kind == step_kind::accumulate);
    CHECK(r.at(r.steps[0].in).type == dtype::f64);
    CHECK(r.at(r.steps[0].out).type == dtype::c128);
}

TEST_CASE("shape errors of a product") {
    CHECK_THROWS_AS(right_product<double>(dense(5, 5), {dense(2, 3)}).check(), shape_error);
    CHECK_NOTHROW(right_product<double>(dense(5, 2), {dense(2, 3)}).check());
    const std::int64_t big = std::int64_t(1) << 40;
    const leaf wide = leaf::borrowed({numbers, 1, big, 0, 0});
    CHECK_THROWS_AS(right_product<double>(dense(5, 1), {wide, wide}).check(), shape_error);
    // The result fits, an intermediate that some order of the steps has does not.
    const leaf tall = leaf::borrowed({numbers, big, 1, 0, 0});
    const leaf x = leaf::borrowed({numbers, 1, big, 0, 0});
    CHECK_THROWS_AS(right_product<double>(x, {tall, wide}).check(), shape_error);
    CHECK_NOTHROW(right_product<double>(x, {tall}).check());
}

TEST_CASE("which scalars mix, which numbers scale") {
    using detail::scales;
    using cf = std::complex<float>;
    using cd = std::complex<double>;
    static_assert(detail::scalars_mix<double, cd> && detail::scalars_mix<float, float>);
    static_assert(!detail::scalars_mix<float, double> && !detail::scalars_mix<float, cd> &&
                  !detail::scalars_mix<cf, cd>);
    static_assert(scales<int, double> && scales<double, float> && scales<float, cf> && scales<int, cf> &&
                  scales<cd, double>);
    static_assert(!scales<cd, float> && !scales<const char*, double>);
    static_assert(scales<int, int> && scales<long, int> && !scales<double, int> && !scales<float, long>);
    CHECK(detail::amount_as<cf>(3) == cf(3.0f));
    CHECK(detail::amount_as<float>(0.5) == 0.5f);
    CHECK(detail::conjugate_of(cd(1, 2)) == cd(1, -2));
    CHECK(detail::conjugate_of(2.0) == 2.0);
}

TEST_CASE("two products have equal keys exactly where they lower to equal programs, and bind alike") {
    std::vector<product_node<std::complex<double>>> nodes;
    for (const std::int64_t rows : {2, 3}) {
        for (int form = 0; form < 9; ++form) {
            leaf x = leaf::borrowed({pairs, rows, 6, form == 1 ? 1 : 6, form == 1 ? rows : 1});
            leaf f = dense(2, 3, pairs);
            leaf g = form == 2 ? leaf::identity(3) : dense(3, 3, pairs);
            if (form == 3) {
                g.transpose();
            } else if (form == 4) {
                g.conjugate();
            } else if (form == 5) {
                g.set_real_elements(true);
            } else if (form == 6) {
                x.set_real_elements(true);
            } else if (form == 7) {
                f.set_real_elements(true);
                g.set_real_elements(true);
            }
            nodes.push_back(right_product<std::complex<double>>(x, {f, g}));
            if (form == 8) {
                nodes.back().left.push_back(dense(4, rows, pairs));
                nodes.back().has_left = true;
            }
        }
    }
    struct described {
        plan_key key;
        program lowered;
    };
    std::vector<described> all;
    for (const auto& node : nodes) {
        for (const bool add : {false, true}) {
            for (const std::int64_t stride : {1, 5}) {
                node.check();
                const matrix_view y{pairs + 3, node.rows(), node.cols(), stride, 50};
                const bool doubled = is_real_problem(node, node.alpha);
                described one;
                bindings bound;
                REQUIRE(describe_product(node, y, add, dtype::c128, doubled, false, one.key, bound));
                bindings lowered_bound;
                lowering<std::complex<double>> low(one.lowered, lowered_bound);
                low.add_product(node, y, add);
                REQUIRE(bound.pointers.size() == lowered_bound.pointers.size());
                for (std::size_t i = 0; i < bound.pointers.size(); ++i) {
                    CHECK(bound.pointers[i] == lowered_bound.pointers[i]);
                }
                all.push_back(one);
                bindings in_place_bound;
                described in_place = one;  // the result in the memory of X is another program
                REQUIRE(describe_product(node, y, add, dtype::c128, doubled, true, in_place.key, in_place_bound));
                detail::bind_in_place(in_place.lowered);
                all.push_back(in_place);
            }
        }
    }
    int equal = 0;
    for (const described& a : all) {
        for (const described& b : all) {
            equal += a.key.equals(b.key) ? 1 : 0;
            CHECK(a.key.equals(b.key) == (a.lowered == b.lowered));
        }
    }
    CHECK(equal == static_cast<int>(all.size()));
    // Another scalar type, a factor with structure, too many factors.
    plan_key key;
    bindings bound;
    const matrix_view y{pairs + 3, 2, 9, 1, 50};
    const auto differs = [&](const product_node<std::complex<double>>& node, dtype type, bool doubled) {
        CHECK(describe_product(node, y, false, type, doubled, false, key, bound));
        CHECK_FALSE(key.equals(all[0].key));
    };
    CHECK(describe_product(nodes[0], y, false, dtype::c128, false, false, key, bound));
    CHECK(key.equals(all[0].key));
    differs(nodes[0], dtype::c64, false);
    differs(nodes[0], dtype::c128, true);  // what a real scalar beside real factors makes of it
    product_node<std::complex<double>> elsewhere = nodes[0];
    elsewhere.x.set_space(memory_space::device);
    differs(elsewhere, dtype::c128, false);
    nodes[0].right.push_back(detail::diagonal_leaf(pairs, 1, 1, nullptr));
    CHECK_FALSE(describe_product(nodes[0], y, false, dtype::c128, false, false, key, bound));
    product_node<double> many = right_product<double>(dense(1, 1), {});
    for (int k = 0; k < 40; ++k) {
        many.right.push_back(dense(1, 1));
    }
    CHECK_FALSE(describe_product(many, y, false, dtype::f64, false, false, key, bound));
}

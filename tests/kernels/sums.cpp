// SPDX-License-Identifier: MIT
// Kernels over whole rows with tiles of their own: Kronecker sums, sums of products that share factors. As fused_kernels.cpp.
#include "kernels/fused.hpp"

#include <fused_sum.cuh>
#include <fused_terms.cuh>

namespace kernel_tests {

namespace {

// Rows [line, part] of tensors of the group's extents, whose factors are square, and Y (with C) as group_arguments place them.
template <class Group>
struct sum_problem {
    using scalar = typename Group::scalar;
    support::random_stream stream{7};
    index lines, parts, in = 1;
    std::vector<index> extents;
    matrix_in_memory<scalar> x, y;
    std::vector<std::vector<scalar>> factors;
    std::vector<scalar> alphas;
    scalar beta;
    group_arguments<scalar> arguments{};

    static index elements() {
        index n = 1;
        for (int level = 1; level <= Group::modes; ++level) {
            n *= Group::p(level);
        }
        return n;
    }
    // The levels of the factors.
    sum_problem(index lines_, index parts_, index gap, const std::vector<int>& levels)
        : lines(lines_),
          parts(parts_),
          in(elements()),
          x(lines, parts * in, 1, gap, 0),
          y(lines, parts * in, 1, gap, gap) {
        for (int level = 1; level <= Group::modes; ++level) {
            extents.push_back(Group::p(level));
        }
        x.fill(stream);
        for (const int level : levels) {
            const index n = Group::p(level);
            factors.push_back(random_values<scalar>(stream, n * n));
        }
        for (int i = 0; i < max_terms; ++i) {
            alphas.push_back(make<scalar>({gap > 0 || i > 0 ? 0.5 + i : 1.0, gap > 0 ? 1.0 : 0.0}));
        }
        beta = make<scalar>(gap > 0 ? wide{-0.5, 2} : wide{0, 0});
        if (gap > 0) {
            y.fill(stream);
        }
        arguments.x = x.data();
        arguments.y = y.data();
        for (std::size_t k = 0; k < factors.size(); ++k) {
            arguments.factor[k] = factors[k].data();
            arguments.factor_p_stride[k] = Group::p(levels[k]);
            arguments.factor_q_stride[k] = 1;
        }
        arguments.alpha = alphas[0];
        for (int t = 1; t < max_terms; ++t) {
            arguments.more_alpha[t - 1] = alphas[static_cast<std::size_t>(t)];
        }
        arguments.beta = beta;
        arguments.lines = lines;
        arguments.parts_per_line = parts;
        arguments.x_line_stride = x.line_stride;
        arguments.y_line_stride = y.line_stride;
        arguments.inner = arguments.x_inner = arguments.y_inner = 1;
    }

    // x with a factor in place of a mode.
    [[nodiscard]] std::vector<wide> replaced(const std::vector<wide>& from, int level, std::size_t factor) const {
        index before = lines * parts;
        index after = 1;
        for (int l = 1; l <= Group::modes; ++l) {
            (l < level ? before : after) *= l == level ? 1 : extents[static_cast<std::size_t>(l - 1)];
        }
        return mode_product(from, before, extents[static_cast<std::size_t>(level - 1)], after,
                            widened(factors[factor]));
    }
};

void add(std::vector<wide>& to, wide alpha, const std::vector<wide>& what) {
    to.resize(what.size());
    for (std::size_t i = 0; i < what.size(); ++i) {
        to[i] += alpha * what[i];
    }
}

// Y = sum_l alpha_l * (X with F_l in place of mode l) + beta * Y.
template <class Group>
void check_sum(const char* text) {
    CAPTURE(text);
    for (const bool backwards : {false, true}) {
        for (const index gap : {0, 3}) {
            CAPTURE(backwards);
            CAPTURE(gap);
            std::vector<int> levels;
            for (int level = 1; level <= Group::modes; ++level) {
                levels.push_back(level);
            }
            sum_problem<Group> p(gap > 0 ? 3 : 2 * Group::rows + 1, gap > 0 ? 2 * Group::rows : 1, gap, levels);
            std::vector<wide> want;
            add(want, gap > 0 ? widen(p.beta) : 0.0, gap > 0 ? p.y.values() : p.x.values());
            for (const int level : levels) {
                const std::size_t k = static_cast<std::size_t>(level - 1);
                add(want, widen(p.alphas[k]), p.replaced(p.x.values(), level, k));
            }
            const auto before = p.y;
            gridDim.x = 2 * Group::cluster;
            host_device::backwards = backwards;
            host_device::run_grid(Group::cluster, Group::threads, Group::sum_bytes,
                                  [&p] { fused_sum<Group>(p.arguments); });
            CHECK(relative_distance(p.y.values(), want) <= tolerance<typename Group::scalar>);
            CHECK(p.y.surrounded_as(before));
        }
    }
}

template <class Scalar, int Rows, int Threads, class P, class Trips, int Slots = 0, int Cluster = 1,
          bool Addend = false>
using sum_group = mode_group<Scalar, Rows, 1, Threads, 1, 1, Slots, Cluster, 1, P, P, Trips, 1, Addend>;

}  // namespace

TEST_CASE_TEMPLATE("a Kronecker sum in one pass", Scalar, float, double, c64, c128) {
    check_sum<sum_group<Scalar, 2, 64, e<5, 7>, trips<adds<2>, adds<1>>>>("5 x 7");
    check_sum<sum_group<Scalar, 1, 64, e<4, 3, 8>, trips<adds<3>, adds<2>, adds<1>>, 1>>(
        "4 x 3 x 8, the next tile ahead");
}
TEST_CASE_TEMPLATE("a Kronecker sum by the matrix unit", Scalar, float, double) {
    check_sum<sum_group<Scalar, 2, 64, e<8, 16>, trips<unit<2>, unit<1>>>>("8 x 16");
    check_sum<sum_group<Scalar, 1, 64, e<16, 5, 8>, trips<unit<3>, adds<2>, unit<1>>, 1>>("16 x 5 x 8");
    check_sum<sum_group<Scalar, 1, 64, e<16, 8, 8>, trips<unit<3>, unit<2>, unit<1>>, 0, 2>>(
        "16 x 8 x 8, a cluster of two");
}

namespace {

// Y = the sum of what the moves send to output 0, as fused_terms has them; walked one by one over whole matrices.
template <class Group, class Moves>
void check_terms(const char* text, const std::vector<int>& levels) {
    using scalar = typename Group::scalar;
    CAPTURE(text);
    for (const bool backwards : {false, true}) {
        for (const index gap : {0, 3}) {
            CAPTURE(backwards);
            CAPTURE(gap);
            sum_problem<Group> p(gap > 0 ? 3 : 2 * Group::rows + 1, gap > 0 ? 2 * Group::rows : 1, gap, levels);
            constexpr bool two_outputs = Moves::outputs() > 1;
            if (two_outputs) {
                p.arguments.beta = p.beta = scalar(0);
            }
            std::vector<std::vector<wide>> tiles(static_cast<std::size_t>(Moves::tiles()));
            std::vector<std::vector<wide>> outputs(2);
            tiles[0] = p.x.values();
            for_constants<0, Moves::count>([&](auto i) {
                using one = decltype(Moves::template at<decltype(i)::value>());
                const wide alpha = one::term < 0 ? wide{1} : widen(p.alphas[static_cast<std::size_t>(one::term)]);
                std::vector<wide> made;
                add(made, alpha,
                    p.replaced(tiles[static_cast<std::size_t>(one::from)], one::level,
                               static_cast<std::size_t>(one::factor)));
                if (one::sum >= 0) {
                    add(made, 1, tiles[static_cast<std::size_t>(one::sum)]);
                }
                (one::to < 0 ? outputs[static_cast<std::size_t>(-1 - one::to)]
                             : tiles[static_cast<std::size_t>(one::to)]) = made;
            });
            add(outputs[0], gap > 0 && !two_outputs ? widen(p.beta) : 0.0, gap > 0 ? p.y.values() : p.x.values());
            // The second output behind the first.
            auto second = p.y;
            std::vector<scalar> both = p.y.memory;
            both.insert(both.end(), second.memory.begin(), second.memory.end());
            p.arguments.y = both.data() + p.y.offset;
            p.arguments.second = static_cast<index_t>(p.y.memory.size());
            const auto before = p.y;
            gridDim.x = 2;
            host_device::backwards = backwards;
            host_device::run_grid(1, Group::threads, terms_memory<Group, Moves>::bytes,
                                  [&p] { fused_terms<Group, Moves>(p.arguments); });
            std::copy_n(both.begin(), p.y.memory.size(), p.y.memory.begin());
            std::copy_n(both.begin() + static_cast<std::ptrdiff_t>(p.y.memory.size()), second.memory.size(),
                        second.memory.begin());
            CHECK(relative_distance(p.y.values(), outputs[0]) <= tolerance<scalar>);
            CHECK(p.y.surrounded_as(before));
            if (two_outputs) {
                CHECK(relative_distance(second.values(), outputs[1]) <= tolerance<scalar>);
                CHECK(second.surrounded_as(before));
            } else {
                CHECK(std::memcmp(second.memory.data(), before.memory.data(), before.memory.size() * sizeof(scalar)) ==
                      0);
            }
        }
    }
}

}  // namespace

TEST_CASE_TEMPLATE("sums of products that share factors", Scalar, float, double) {
    using adds21 = trips<adds<2>, adds<1>>;
    using units21 = trips<unit<2>, unit<1>>;
    // Factors: 0 and 2 along mode 1, 1 along mode 2. T_1 = X F_1, Y = alpha_0 T_1 F_0 + alpha_1 X F_2 (+ beta Y).
    using by_adds = moves<move<0, 1, 2, 1, -1, -1>, move<1, 2, 1, 0, -1, 0>, move<0, -1, 1, 2, 2, 1>>;
    check_terms<sum_group<Scalar, 2, 64, e<5, 7>, adds21>, by_adds>("5 x 7", {1, 2, 1});
    check_terms<sum_group<Scalar, 2, 64, e<5, 7>, adds21, 1>, by_adds>("5 x 7, the next tile ahead", {1, 2, 1});
    check_terms<sum_group<Scalar, 2, 64, e<16, 8>, units21>, by_adds>("16 x 8", {1, 2, 1});
    // Two outputs: T_1 F_0, and X F_2 times a number.
    using two = moves<move<0, 1, 2, 1, -1, -1>, move<1, -1, 1, 0, -1, -1>, move<0, -2, 1, 2, -1, 1>>;
    check_terms<sum_group<Scalar, 1, 64, e<16, 8>, units21, 1>, two>("16 x 8, two outputs", {1, 2, 1});
    // A sum inside: T_1 = X F_1 + X F_3 (mode 2), Y = T_1 F_0.
    using inside = moves<move<0, 1, 2, 1, -1, 0>, move<0, 1, 2, 2, 1, 1>, move<1, -1, 1, 0, -1, -1>>;
    check_terms<sum_group<Scalar, 2, 64, e<8, 16>, units21>, inside>("8 x 16, a sum inside", {1, 2, 2});
}

}  // namespace kernel_tests

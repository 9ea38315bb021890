// SPDX-License-Identifier: MIT
// Kernels that exchange with other GPUs: rows that go to several receivers, told at once or in portions, and products of what arrives in portions. As
// fused_kernels.cpp.
#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "kernels/fused.hpp"

#include <fused_arriving.cuh>
#include <fused_scattered.cuh>
#include <fused_telling.cuh>

namespace kernel_tests {

namespace {

// Rows of 32 with the indices [before, outer, between, inner, below], of which inner or outer is cut for three receivers of unequal parts.
template <class Group>
struct scattered_problem {
    using scalar = typename Group::scalar;
    static constexpr index in = 32;
    std::array<index, 5> extents;
    bool cuts_inner;
    index rows, whole, whole_first;
    std::array<index, 4> first;
    matrix_in_memory<scalar> x;
    std::array<std::vector<scalar>, 2> factors;
    std::vector<std::vector<wide>> want;
    std::vector<std::vector<scalar>> received;
    scattered_arguments<scalar> arguments{};

    scattered_problem(std::array<index, 5> extents_, bool cuts_inner_, std::array<index, 4> first_)
        : extents(extents_),
          cuts_inner(cuts_inner_),
          rows(std::accumulate(extents.begin(), extents.end(), index{1}, std::multiplies<>())),
          whole((cuts_inner ? extents[1] : extents[3]) + 3),
          whole_first(2),
          first(first_),
          x(rows, in, 1, 0, 0) {
        support::random_stream stream(3);
        x.fill(stream);
        factors = {random_values<scalar>(stream, 16), random_values<scalar>(stream, 64)};
        const scalar alpha = make<scalar>({0.5, -1});
        const std::vector<wide> image =
            product_of(x.values(), rows, 1, {4, 8}, {widened(factors[0]), widened(factors[1])});
        arguments.rows.x = x.data();
        for (std::size_t k = 0; k < 2; ++k) {
            arguments.rows.factor[k] = factors[k].data();
            arguments.rows.factor_p_stride[k] = k == 0 ? 4 : 8;
            arguments.rows.factor_q_stride[k] = 1;
        }
        arguments.rows.alpha = alpha;
        arguments.rows.lines = rows;
        arguments.rows.parts_per_line = 1;
        arguments.rows.x_line_stride = arguments.rows.y_line_stride = in;
        arguments.outer = static_cast<unsigned>(extents[1]);
        arguments.between = static_cast<unsigned>(extents[2]);
        arguments.inner = static_cast<unsigned>(extents[3]);
        arguments.below = static_cast<unsigned>(extents[4]);
        arguments.whole = static_cast<unsigned>(whole);
        arguments.whole_first = static_cast<unsigned>(whole_first);
        arguments.cuts_inner = cuts_inner;
        arguments.count = 3;
        for (std::size_t k = 0; k < 3; ++k) {
            const index own = first[k + 1] - first[k];
            const index outer = cuts_inner ? whole : own;
            const index inner = cuts_inner ? own : whole;
            want.emplace_back(static_cast<std::size_t>(extents[0] * outer * extents[2] * inner * extents[4] * in));
            received.emplace_back(want.back().size(), make<scalar>({-7, 0}));
            std::fill(want.back().begin(), want.back().end(), wide{-7});
            for (index r = 0; r < rows; ++r) {
                const index below = r % extents[4];
                const index i = r / extents[4] % extents[3];
                const index between = r / (extents[4] * extents[3]) % extents[2];
                const index o = r / (extents[4] * extents[3] * extents[2]) % extents[1];
                const index before = r / (extents[4] * extents[3] * extents[2] * extents[1]);
                const index c = cuts_inner ? i : o;
                if (c < first[k] || c >= first[k + 1]) {
                    continue;
                }
                const index o_there = cuts_inner ? o + whole_first : o - first[k];
                const index i_there = cuts_inner ? i - first[k] : i + whole_first;
                const index row =
                    (((before * outer + o_there) * extents[2] + between) * inner + i_there) * extents[4] + below;
                for (index q = 0; q < in; ++q) {
                    want[k][static_cast<std::size_t>(row * in + q)] =
                        widen(alpha) * image[static_cast<std::size_t>(r * in + q)];
                }
            }
            arguments.receivers[k] = received[k].data();
            arguments.first[k] = static_cast<unsigned>(first[k]);
            arguments.most = std::max(arguments.most, static_cast<unsigned>(own));
        }
        arguments.first[3] = static_cast<unsigned>(first[3]);
        gridDim.x = 4;
        host_device::backwards = cuts_inner;
    }

    // Items of a receiver.
    [[nodiscard]] index items(std::size_t k) const { return extents[0] * extents[2] * (first[k + 1] - first[k]); }
    void check_received() const {
        for (std::size_t k = 0; k < 3; ++k) {
            CAPTURE(k);
            CHECK(relative_distance(widened(received[k]), want[k]) <= tolerance<scalar>);
        }
    }
};

template <class Group>
void check_told_at_once(std::array<index, 5> extents, bool cuts_inner, std::array<index, 4> first) {
    CAPTURE(cuts_inner);
    CAPTURE(extents[4]);
    scattered_problem<Group> p(extents, cuts_inner, first);
    std::array<unsigned, 3> told = {5, 6, 7};
    unsigned blocks_done = 0;
    for (std::size_t k = 0; k < 3; ++k) {
        p.arguments.tell.words[k] = &told[k];
    }
    p.arguments.tell.blocks_done = &blocks_done;
    p.arguments.tell.count = 2;  // the third is told nothing
    p.arguments.tell.value = 42;
    host_device::run_grid(1, Group::threads, Group::shared_bytes, [&p] { fused_scattered<Group>(p.arguments); });
    p.check_received();
    CHECK(told == std::array<unsigned, 3>{42, 42, 7});
    CHECK(blocks_done == 0);

    // Who waits for these words goes on: two of them have come, one of them with a later value.
    awaited_arrivals awaited{};
    awaited.words = told.data();
    awaited.count = 2;
    awaited.value = 41;
    gridDim.x = 1;
    host_device::run_grid(1, 32, 0, [&awaited] { await_arrivals(awaited); });
}

template <class Group>
void check_told_in_portions(std::array<index, 5> extents, bool cuts_inner, std::array<index, 4> first, unsigned items) {
    CAPTURE(cuts_inner);
    CAPTURE(items);
    scattered_problem<Group> p(extents, cuts_inner, first);
    constexpr std::size_t portions = 32;
    // (portions, senders): this one is the second of three.
    std::array<std::vector<unsigned>, 3> told;
    std::vector<unsigned> counted(3 * portions + 2);  // tiles done, dealt; blocks done
    for (std::size_t k = 0; k < 3; ++k) {
        told[k].assign(3 * portions, 7);
        p.arguments.tell.words[k] = told[k].data() + 1;
    }
    p.arguments.tell.tiles_done = counted.data();
    p.arguments.tell.tiles_dealt = &counted[3 * portions];
    p.arguments.tell.blocks_done = &counted[3 * portions + 1];
    p.arguments.tell.count = 3;
    p.arguments.tell.value = 42;
    p.arguments.tell.items = items;
    host_device::run_grid(1, Group::threads + 128, Group::shared_bytes, [&p] { fused_telling<Group>(p.arguments); });
    p.check_received();
    for (std::size_t k = 0; k < 3; ++k) {
        CAPTURE(k);
        std::vector<unsigned> expected(3 * portions, 7);
        for (index portion = 0; portion * items < p.items(k); ++portion) {
            expected[static_cast<std::size_t>(3 * portion + 1)] = 42;
        }
        CHECK(told[k] == expected);
    }
    CHECK(std::ranges::all_of(counted, [](unsigned n) { return n == 0; }));
}

// An outer group's product of what three senders send in portions: X's elements are NaN until the kernel looks at the word of their portion for
// the last time that it is not told.
template <class Group>
void check_arriving(index lines, index parts, index inner, index item, unsigned items) {
    CAPTURE(lines);
    CAPTURE(inner);
    CAPTURE(item);
    using scalar = typename Group::scalar;
    constexpr index P = Group::count_p();
    constexpr index Q = Group::count_q();
    constexpr std::size_t senders = 3;
    support::random_stream stream(5);
    const index tensors = lines * parts;
    const std::vector<scalar> sent = random_values<scalar>(stream, tensors * P * inner);
    const std::vector<scalar> factor = random_values<scalar>(stream, P * Q);
    std::vector<scalar> x(sent.size(), make<scalar>({std::numeric_limits<double>::quiet_NaN(), 0}));
    std::vector<scalar> y(static_cast<std::size_t>(tensors * Q * inner), make<scalar>({-7, 0}));
    const auto all = static_cast<std::size_t>((tensors * inner + item * items - 1) / (item * items));
    std::vector<unsigned> words(all * senders, 41);
    std::vector<int> looks(words.size(), 0);
    host_device::before_look = [&](const unsigned* word) {
        const std::size_t which = static_cast<std::size_t>(word - words.data());
        if (++looks[which] != 3) {  // looked for in vain twice
            return;
        }
        const std::size_t portion = which / senders;
        for (index t = 0; t < tensors; ++t) {
            for (index p = 0; p < P; ++p) {
                for (index i = 0; i < inner; ++i) {
                    if (static_cast<std::size_t>((t * inner + i) / item / items) == portion &&
                        static_cast<std::size_t>(p) % senders == which % senders) {
                        const auto at = static_cast<std::size_t>((t * P + p) * inner + i);
                        x[at] = sent[at];
                    }
                }
            }
        }
        words[which] = 42;
    };
    arriving_arguments<scalar> arguments{};
    arguments.rows.x = x.data();
    arguments.rows.y = y.data();
    arguments.rows.factor[0] = factor.data();
    arguments.rows.factor_p_stride[0] = Q;
    arguments.rows.factor_q_stride[0] = 1;
    arguments.rows.alpha = make<scalar>({1, 0});
    arguments.rows.lines = lines;
    arguments.rows.parts_per_line = parts;
    arguments.rows.x_line_stride = parts * P * inner;
    arguments.rows.y_line_stride = parts * Q * inner;
    arguments.rows.inner = arguments.rows.x_inner = arguments.rows.y_inner = inner;
    arguments.awaited.words = words.data();
    arguments.awaited.senders = senders;
    arguments.awaited.value = 42;
    arguments.awaited.deadline = 1;
    arguments.item = item;
    arguments.items = items;
    gridDim.x = 3;
    host_device::run_grid(1, Group::threads, Group::shared_bytes, [&arguments] { fused_arriving<Group>(arguments); });
    host_device::before_look = nullptr;
    CHECK(relative_distance(widened(y), product_of(widened(sent), tensors, inner, {P}, {widened(factor)})) <=
          tolerance<scalar>);
    CHECK(std::ranges::all_of(words, [](unsigned word) { return word == 42; }));
}

}  // namespace

TEST_CASE_TEMPLATE("rows that go to several receivers", Scalar, float, double, c128) {
    using group = mode_group<Scalar, 2, 1, 64, 2, 1, 0, 1, 1, e<4, 8>, e<4, 8>, trips<adds<2>, adds<1>>, 1, false,
                             false, 1, ends_stored, true>;
    for (const bool cuts_inner : {false, true}) {
        // Of the mode that is cut, receiver 0 has 1, receiver 1 has 3 or 2, receiver 2 the rest.
        check_told_at_once<group>({2, 5, 3, 4, 2}, cuts_inner, {0, 1, cuts_inner ? 3 : 4, cuts_inner ? 4 : 5});
    }
    check_told_at_once<group>({2, 3, 3, 6, 1}, true, {0, 2, 4, 6});  // tiles of two items
    check_told_at_once<group>({1, 6, 2, 3, 4}, false, {0, 2, 4, 6});
}

TEST_CASE_TEMPLATE("rows that go to several receivers, told in portions", Scalar, float, double) {
    using group = mode_group<Scalar, 1, 1, 128, 2, 1, 1, 1, 1, e<4, 8>, e<4, 8>, trips<adds<2>, adds<1>>, 1, false,
                             false, 1, ends_stored, true>;
    for (const bool cuts_inner : {false, true}) {
        for (const unsigned items : {1u, 4u, 100u}) {
            check_told_in_portions<group>({2, 5, 3, 4, 2}, cuts_inner, {0, 1, cuts_inner ? 3 : 4, cuts_inner ? 4 : 5},
                                          items);
        }
    }
}

TEST_CASE_TEMPLATE("products of what arrives in portions", Scalar, float, double) {
    using group = mode_group<Scalar, 1, 4, 64, 2, 1, 0, 1, 1, e<6>, e<5>, trips<adds<1>>>;
    check_arriving<group>(2, 1, 30, 5, 1);  // a tile has elements of two portions
    check_arriving<group>(2, 3, 6, 6, 2);   // an item is a tensor
    check_arriving<group>(1, 1, 64, 8, 3);
}

}  // namespace kernel_tests

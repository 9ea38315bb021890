// SPDX-License-Identifier: MIT
// overlap() against sets of bytes: never a missed overlap, and exact where it promises to be.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <otimes/program/overlap.hpp>

#include "support/long_tests.hpp"
#include "support/random.hpp"

namespace {

using otimes::strided_memory;

std::set<std::int64_t> bytes_of(const strided_memory& m) {
    std::set<std::int64_t> bytes;
    for (std::int64_t i = 0; i < m.rows; ++i) {
        for (std::int64_t j = 0; j < m.cols; ++j) {
            for (std::int64_t b = 0; b < m.element_bytes; ++b) {
                bytes.insert(m.address + i * m.row_stride + j * m.col_stride + b);
            }
        }
    }
    return bytes;
}

bool share_a_byte(const strided_memory& a, const strided_memory& b) {
    const auto bytes = bytes_of(a);
    for (const std::int64_t byte : bytes_of(b)) {
        if (bytes.count(byte) != 0) {
            return true;
        }
    }
    return false;
}

}  // namespace

TEST_CASE("all pairs of blocks of a small matrix: exact") {
    // Blocks of a 5 x 4 matrix of 8-byte elements with leading dimension 6, row- and column-major.
    struct block {
        std::int64_t i, j, rows, cols;
    };
    std::vector<block> blocks;
    for (std::int64_t i = 0; i < 5; ++i) {
        for (std::int64_t j = 0; j < 4; ++j) {
            for (std::int64_t rows = 1; i + rows <= 5; ++rows) {
                for (std::int64_t cols = 1; j + cols <= 4; ++cols) {
                    blocks.push_back({i, j, rows, cols});
                }
            }
        }
    }
    for (const bool column_major : {true, false}) {
        const auto memory = [&](const block& b, bool upside_down, bool backwards) {
            const std::int64_t rs = column_major ? 8 : 48;
            const std::int64_t cs = column_major ? 48 : 8;
            strided_memory m{1024 + b.i * rs + b.j * cs, b.rows, b.cols, rs, cs, 8};
            if (upside_down) {
                m.address += (b.rows - 1) * rs;
                m.row_stride = -rs;
            }
            if (backwards) {
                m.address += (b.cols - 1) * cs;
                m.col_stride = -cs;
            }
            return m;
        };
        std::int64_t wrong = 0;
        for (const block& a : blocks) {
            for (const block& b : blocks) {
                const bool meet = a.i < b.i + b.rows && b.i < a.i + a.rows && a.j < b.j + b.cols && b.j < a.j + a.cols;
                for (const int turned : {0, 1, 2, 3, 7, 13}) {
                    const bool said = otimes::overlap(memory(a, (turned & 1) != 0, (turned & 2) != 0),
                                                      memory(b, (turned & 4) != 0, (turned & 8) != 0));
                    wrong += said != meet ? 1 : 0;
                }
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("arrays of any strides share an element exactly where index differences reach it") {
    support::random_stream random(11);
    int wrong = 0;
    int met = 0;
    for (int round = 0; round < 20000; ++round) {
        std::int64_t extents[2][3] = {}, strides[2][3] = {};
        std::set<std::int64_t> elements;
        bool truth = false;
        const std::int64_t distance = random.integer(-40, 40);
        otimes::index_differences differences;
        for (const int array : {0, 1}) {
            for (int k = 0; k < 3; ++k) {
                extents[array][k] = random.integer(1, 4);
                strides[array][k] = array == 1 && round % 2 == 0 ? strides[0][k] : random.integer(0, 30);
                const std::int64_t most = extents[array][k] - 1;
                differences.add(strides[array][k], array == 0 ? 0 : -most, array == 0 ? most : 0);
            }
            for (std::int64_t i = 0; i < 64; ++i) {
                const std::int64_t at[3] = {i % 4, i / 4 % 4, i / 16};
                std::int64_t element = array * distance;
                bool inside = true;
                for (int k = 0; k < 3; ++k) {
                    element += at[k] * strides[array][k];
                    inside = inside && at[k] < extents[array][k];
                }
                if (inside && array == 0) {
                    elements.insert(element);
                } else if (inside) {
                    truth = truth || elements.count(element) != 0;
                }
            }
        }
        wrong += differences.reach(distance) != truth ? 1 : 0;
        met += truth ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(met > 1000);
    CHECK(met < 19000);
}

TEST_CASE("any strides: an overlap is never missed, disjoint ranges are never one") {
    support::random_stream random(7);
    const int rounds = support::long_tests() ? 2000000 : 60000;
    int missed = 0;
    int imagined = 0;
    int met = 0;
    int disjoint = 0;
    for (int round = 0; round < rounds; ++round) {
        const auto draw = [&] {
            strided_memory m;
            m.element_bytes = std::int64_t(1) << random.integer(0, 3);
            m.rows = random.integer(0, 4);
            m.cols = random.integer(0, 4);
            m.row_stride = random.integer(-12, 12);
            m.col_stride = random.integer(-12, 12);
            m.address = 200 + random.integer(0, 60);
            return m;
        };
        const strided_memory a = draw();
        strided_memory b = draw();
        if (round % 2 == 0) {  // as the two operands of one matrix
            b.row_stride = a.row_stride;
            b.col_stride = a.col_stride;
            b.element_bytes = a.element_bytes;
        }
        const bool truth = share_a_byte(a, b);
        const bool said = otimes::overlap(a, b);
        missed += truth && !said ? 1 : 0;
        met += truth ? 1 : 0;
        CHECK(otimes::overlap(b, a) == said);
        const auto bytes_a = bytes_of(a);
        const auto bytes_b = bytes_of(b);
        if (bytes_a.empty() || bytes_b.empty() || *bytes_a.rbegin() < *bytes_b.begin() ||
            *bytes_b.rbegin() < *bytes_a.begin()) {
            imagined += said ? 1 : 0;
            ++disjoint;
        }
    }
    CHECK(missed == 0);
    CHECK(imagined == 0);
    CHECK(met > rounds / 20);  // both kinds did occur
    CHECK(disjoint > rounds / 20);
}

TEST_CASE("one lattice: exact for random blocks, any leading dimension and gap between elements") {
    support::random_stream random(8);
    int wrong = 0;
    int met = 0;
    const int rounds = support::long_tests() ? 500000 : 30000;
    for (int round = 0; round < rounds; ++round) {
        const std::int64_t element = std::int64_t(4) << random.integer(0, 1);
        const std::int64_t inner = element * random.integer(1, 3);
        const std::int64_t lead = random.integer(1, 7);
        const std::int64_t outer = inner * lead + random.integer(0, 2) * inner;
        const auto draw = [&] {
            strided_memory m;
            const std::int64_t i = random.integer(0, lead - 1);
            const std::int64_t j = random.integer(0, 5);
            m.rows = random.integer(1, lead - i);
            m.cols = random.integer(1, 4);
            m.row_stride = inner;
            m.col_stride = outer;
            m.element_bytes = element;
            m.address = 4096 + i * inner + j * outer;
            if (round % 2 != 0) {
                std::swap(m.rows, m.cols);
                std::swap(m.row_stride, m.col_stride);
            }
            return m;
        };
        const strided_memory a = draw();
        const strided_memory b = draw();
        const bool truth = share_a_byte(a, b);
        met += truth ? 1 : 0;
        wrong += otimes::overlap(a, b) != truth ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(met > rounds / 10);
    CHECK(met < rounds * 9 / 10);
}

TEST_CASE("empty matrices share nothing, not even with themselves") {
    const strided_memory empty{64, 0, 5, 8, 8, 8};
    const strided_memory full{0, 100, 100, 8, 800, 8};
    CHECK(!otimes::overlap(empty, full));
    CHECK(!otimes::overlap(full, empty));
    CHECK(!otimes::overlap(empty, empty));
    CHECK(otimes::overlap(full, full));
}

TEST_CASE("memory_of scales strides to bytes") {
    struct view {
        const double* data;
        std::int64_t rows, cols, row_stride, col_stride;
    };
    const double value[1] = {};
    const strided_memory m = otimes::memory_of(view{value, 3, 4, 5, 6}, 8);
    CHECK(m.address == reinterpret_cast<std::intptr_t>(value));
    CHECK(m.rows == 3);
    CHECK(m.cols == 4);
    CHECK(m.row_stride == 40);
    CHECK(m.col_stride == 48);
    CHECK(m.element_bytes == 8);
}

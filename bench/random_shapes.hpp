// SPDX-License-Identifier: MIT
// Random products, the same ones for a seed on every machine.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace otimes::bench {

using Eigen::Index;

struct shape {
    std::vector<Index> p, q;
    Index rows = 1;
    /// "3x4>5": extents, new ones behind > where they differ.
    [[nodiscard]] std::string name() const {
        std::string text;
        for (std::size_t i = 0; i < p.size(); ++i) {
            text += i > 0 ? "x" : "";
            text += std::to_string(p[i]);
            if (p[i] != q[i]) {
                text += '>' + std::to_string(q[i]);
            }
        }
        return text;
    }
    /// The shape of that name.
    [[nodiscard]] static shape named(const std::string& name, Index rows) {
        shape s;
        s.rows = rows;
        for (std::size_t at = 0; at < name.size();) {
            const std::size_t end = (std::min)(name.find('x', at), name.size());
            const std::string one = name.substr(at, end - at);
            const std::size_t between = one.find('>');
            s.p.push_back(std::stoll(one));
            s.q.push_back(between == std::string::npos ? s.p.back() : std::stoll(one.substr(between + 1)));
            at = end + 1;
        }
        return s;
    }
    [[nodiscard]] static Index product(const std::vector<Index>& extents) {
        Index all = 1;
        for (const Index e : extents) {
            all *= e;
        }
        return all;
    }
};

/// How large products are: extents are multiplied up to `room` before the last one; elements of the longer operand with many rows, one of three.
struct sizes {
    Index room = 30000;
    std::array<Index, 3> elements = {200000, 2000000, 8000000};
};

class shapes {
public:
    explicit shapes(unsigned seed, const sizes& of = {}) : random_(seed), sizes_(of) {}
    /// Of one of seven kinds: powers of odd and even extents, mixed, rectangular, halves and doubles, large, one factor, many small ones.
    shape draw(int kind) {
        static constexpr std::array<Index, 32> extents = {3,  5,  6,  7,  9,  10, 11, 12, 13, 14, 15,
                                                          17, 18, 20, 21, 24, 25, 27, 28, 30, 33, 36,
                                                          40, 45, 48, 50, 56, 60, 72, 80, 96, 100};
        static constexpr std::array<Index, 11> large = {32, 48, 64, 65, 96, 100, 128, 129, 160, 200, 256};
        shape s;
        const auto room = [&](Index most) { return std::max(shape::product(s.p), shape::product(s.q)) < most; };
        const auto add = [&](Index p, Index q) {
            s.p.push_back(p);
            s.q.push_back(q);
        };
        const Index one = kind == 3 ? Index{1} << pick(2, 6) : extents[static_cast<std::size_t>(pick(0, 31))];
        const Index other = kind == 3 ? (pick(0, 1) == 0 ? one / 2 : one * 2) : one;
        const Index count = kind == 0   ? pick(1, 7)
                            : kind == 1 ? pick(2, 5)
                            : kind == 4 ? pick(2, 3)
                            : kind == 5 ? 1
                            : kind == 6 ? pick(3, 12)
                                        : pick(2, 4);
        for (Index i = 0; i < count && (i == 0 || room(sizes_.room)); ++i) {
            switch (kind) {
                case 0:
                case 3: add(one, other); break;
                case 1: add(pick(2, 40), 0); break;
                case 2: add(pick(2, 40), pick(2, 40)); break;
                case 4: add(large[static_cast<std::size_t>(pick(0, 10))], 0); break;
                case 5: add(pick(100, 700), pick(0, 1) == 0 ? 0 : pick(50, 500)); break;
                default: add(pick(2, 5), 0); break;
            }
            s.q.back() = s.q.back() == 0 ? s.p.back() : s.q.back();
        }
        const Index elements = pick(0, 3) == 0   ? sizes_.elements[0]
                               : pick(0, 1) == 0 ? sizes_.elements[1]
                                                 : sizes_.elements[2];
        s.rows = pick(0, 5) == 0 ? pick(1, 6)
                                 : std::max<Index>(1, elements / std::max(shape::product(s.p), shape::product(s.q)));
        return s;
    }
    Index pick(Index from, Index to) {
        return from + static_cast<Index>(random_() % static_cast<std::uint32_t>(to - from + 1));
    }

private:
    std::mt19937 random_;
    sizes sizes_;
};

}  // namespace otimes::bench

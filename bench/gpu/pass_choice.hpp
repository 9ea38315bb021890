// SPDX-License-Identifier: MIT
// How a chain of modes is cut into passes of the fused kernels, as plain values: no device, no library, no clock.
// fused_pass is the launch contract of kernels/fused_trailing.cuh and kernels/fused_outer.cuh; its type_expression() names the
// kernel's exact instantiation and shared_bytes() repeats mode_group's arithmetic on the host.
#pragma once
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace otimes::bench {

struct trip {
    int first;               // level of the group's first replaced mode, from 1
    int count;               // modes replaced together
    bool matrix;             // matrix unit instead of multiply-adds
    int split;               // threads (warps) that share a fibre
    bool warpgroup = false;  // with matrix: the warpgroup's unit (float, compiled for sm_90a)
    bool operator==(const trip&) const = default;
};

struct fused_pass {
    bool outer = false;     // fused_outer: strided tiles; else fused_trailing: contiguous rows
    int first_mode = 0;     // of the chain, from 0
    std::vector<int> p, q;  // extents of the group's modes
    int rows = 1;           // rows of a tile (trailing)
    int run = 1;            // neighbouring inner elements of a tile (outer)
    int threads = 256;
    int blocks = 1;    // per multiprocessor, for the register limit
    int segments = 1;  // parts of a tile that arrive one by one
    int slots = 0;     // staged parts; 0: loaded in place
    int cluster = 1;   // blocks that share a tile, cut along mode cut()
    std::vector<trip> trips;
    bool operator==(const fused_pass&) const = default;

    int modes() const { return int(p.size()); }
    int trip_of(int level) const {
        for (int i = 0; i < int(trips.size()); ++i)
            if (level >= trips[i].first && level < trips[i].first + trips[i].count) return i;
        throw std::invalid_argument("fused_pass: level " + std::to_string(level) + " is in no trip");
    }
    // mode_group::swizzled and cut: a pair trip, and the level that a cluster shares out.
    bool swizzled() const {
        return std::any_of(trips.begin(), trips.end(), [](const trip& t) { return t.matrix && t.count == 2; });
    }
    int cut() const { return swizzled() ? trips.back().first : 1; }
    int allotted(int level) const {
        return level == 0 ? rows
               : level == modes() + 1
                   ? run
                   : std::max(p[level - 1], q[level - 1]) / (swizzled() && level == cut() ? cluster : 1);
    }

    // The strides of mode_group::stride, bytes of one element given.
    std::int64_t stride(int level, int element_bytes) const {
        const int words = element_bytes / 4, vector = 16 / element_bytes;
        if (level == modes() + 1) return 1;
        std::int64_t elements = allotted(level + 1) * stride(level + 1, element_bytes);
        if (allotted(level) == 1 || swizzled()) return elements;
        const bool inner_matrix = level >= 1 && elements > 1 && trips[trip_of(level)].matrix;
        const bool last_matrix = level < modes() && run == 1 && level + 1 == modes() && trips[trip_of(modes())].matrix;
        if (inner_matrix || last_matrix) {
            while ((elements * words) % 32 != 8 && (elements * words) % 32 != 24)
                elements += elements % vector ? 1 : vector;
            return elements;
        }
        const int above = level < modes() ? trip_of(level + 1) : -1;
        if (above >= 0 && trips[above].first == level + 1 && !trips[above].matrix) {
            std::int64_t below = 1;
            for (int l = level + 1 + trips[above].count; l <= modes() + 1; ++l) below *= allotted(l);
            if (below == 1) {
                if (elements * words >= 32 && (elements * words) % 8 == 0) elements += 4 / words > 0 ? 4 / words : 1;
            } else if (below * words < 32 && below % vector == 0 && 32 % (below * words) == 0 && elements % vector == 0)
                while ((elements * words) % 32 != below * words) elements += vector;
        }
        return elements;
    }
    std::int64_t factor_count(int level, int element_bytes) const {
        const int vector = 16 / element_bytes;
        const std::int64_t P = p[level - 1], Q = q[level - 1];
        const auto round_up = [&](std::int64_t n) { return (n + vector - 1) / vector * vector; };
        if (trips[trip_of(level)].matrix)
            return P * Q * (element_bytes == 4 && (P * Q <= 4096 || trips[trip_of(level)].warpgroup) ? 2 : 1);
        return round_up(P * round_up(Q));
    }
    std::int64_t shared_bytes(int element_bytes) const {
        const int vector = 16 / element_bytes;
        const auto round_up = [&](std::int64_t n) { return (n + vector - 1) / vector * vector; };
        std::int64_t n = 0;
        for (int level = 1; level <= modes(); ++level) n += factor_count(level, element_bytes);
        const std::int64_t tile = cluster == 1 || swizzled() ? round_up(rows * stride(0, element_bytes))
                                                             : round_up(p[0] / cluster * stride(1, element_bytes));
        const std::int64_t slot = segments == 1 ? tile : round_up(p[0] / segments * stride(1, element_bytes));
        // The last trip stores to Y itself when it leaves runs of at least 32 bytes there; alone and staged, it needs no tile.
        std::int64_t below = run;
        for (int l = trips.back().first + trips.back().count; l <= modes(); ++l) below *= q[l - 1];
        const trip& last = trips.back();
        const bool direct = last.matrix && last.count == 2 ? last.first + 1 == modes() && run == 1
                                                           : below * element_bytes >= 32 || last.matrix;
        const bool only_staged = slots > 0 && trips.size() == 1 && direct;
        // A staged trip alone that keeps its factor in registers: the stages take the factor's place.
        const std::int64_t words = element_bytes / 4;
        const int level = trips.front().first;
        const std::int64_t held_words = only_staged && trips.front().matrix && !trips.front().warpgroup &&
                                                trips.front().count == 1 &&
                                                (words == 2 || p[level - 1] * q[level - 1] <= 4096)
                                            ? factor_count(level, element_bytes) * words / (32 * trips.front().split)
                                            : 0;
        const bool holds_factor = held_words > 0 && held_words <= (words == 2 ? 128 : 64) &&
                                  std::int64_t(blocks) * threads * (held_words + 96) <= 65536;
        if (holds_factor) return std::max(n, slots * slot) * element_bytes;
        return (n + (only_staged ? 0 : tile) + slots * slot) * element_bytes;
    }
    std::int64_t count_p() const {
        std::int64_t n = 1;
        for (int e : p) n *= e;
        return n;
    }
    std::int64_t count_q() const {
        std::int64_t n = 1;
        for (int e : q) n *= e;
        return n;
    }

    // otimes::kernels::fused_trailing<otimes::kernels::mode_group<...>>
    std::string type_expression(const std::string& scalar) const {
        std::ostringstream out;
        const auto list = [&](const std::vector<int>& v) {
            out << "otimes::kernels::extents<";
            for (std::size_t i = 0; i < v.size(); ++i) out << (i ? "," : "") << v[i];
            out << ">";
        };
        out << "otimes::kernels::mode_group<" << scalar << "," << rows << "," << run << "," << threads << "," << blocks
            << "," << segments << "," << slots << "," << cluster << ",";
        list(p);
        out << ",";
        list(q);
        out << ",otimes::kernels::trips<";
        for (std::size_t i = 0; i < trips.size(); ++i)
            out << (i ? "," : "") << "otimes::kernels::trip<" << trips[i].first << "," << trips[i].count << ","
                << trips[i].matrix + trips[i].warpgroup << "," << trips[i].split << ">";
        out << ">>";
        return out.str();
    }
    std::string kernel() const { return outer ? "fused_outer" : "fused_trailing"; }
};

struct pass_plan {
    std::vector<fused_pass> passes;
    std::int64_t slab_rows =
        0;            // 0: all rows at once; else passes follow one another slab by slab, so that Y stays in L2
    int streams = 1;  // slabs take turns on this many streams
};

// One line of text -> plan: `slab=24 streams=2 | O m1-3 run32 t256 b2 g1 s0 : 3m 1+2f | T m4-6 r1 ... : ...`
// (O: outer, T: trailing; trips as first[+count]{f,m,w}[/split], levels counted inside the group; first+2m is a pair trip,
// w the warpgroup's matrix unit.)
inline pass_plan parse_pass_plan(const std::string& text, const std::vector<int>& p, const std::vector<int>& q) {
    pass_plan plan;
    std::istringstream parts(text);
    std::string part;
    bool head = true;
    while (std::getline(parts, part, '|')) {
        std::istringstream words(part);
        std::string word;
        if (head) {
            while (words >> word) {
                if (word.rfind("slab=", 0) == 0) plan.slab_rows = std::stoll(word.substr(5));
                if (word.rfind("streams=", 0) == 0) plan.streams = std::stoi(word.substr(8));
            }
            head = false;
            continue;
        }
        fused_pass pass;
        bool in_trips = false;
        while (words >> word) {
            if (word == ":") {
                in_trips = true;
                continue;
            }
            if (in_trips) {
                trip t{0, 1, false, 1};
                std::size_t at = 0;
                t.first = std::stoi(word, &at);
                if (at < word.size() && word[at] == '+') {
                    std::size_t more = 0;
                    t.count = std::stoi(word.substr(at + 1), &more);
                    at += 1 + more;
                }
                if (at < word.size()) {
                    t.warpgroup = word[at] == 'w';
                    t.matrix = word[at++] != 'f';
                }
                if (at < word.size() && word[at] == '/') t.split = std::stoi(word.substr(at + 1));
                pass.trips.push_back(t);
            } else if (word == "O")
                pass.outer = true;
            else if (word == "T")
                pass.outer = false;
            else if (word.rfind("run", 0) == 0)
                pass.run = std::stoi(word.substr(3));
            else if (word[0] == 'm') {
                const auto dash = word.find('-');
                const int from = std::stoi(word.substr(1)),
                          to = dash == std::string::npos ? from : std::stoi(word.substr(dash + 1));
                pass.first_mode = from - 1;
                pass.p.assign(p.begin() + from - 1, p.begin() + to);
                pass.q.assign(q.begin() + from - 1, q.begin() + to);
            } else if (word[0] == 'r')
                pass.rows = std::stoi(word.substr(1));
            else if (word[0] == 't')
                pass.threads = std::stoi(word.substr(1));
            else if (word[0] == 'b')
                pass.blocks = std::stoi(word.substr(1));
            else if (word[0] == 'g')
                pass.segments = std::stoi(word.substr(1));
            else if (word[0] == 'c')
                pass.cluster = std::stoi(word.substr(1));
            else if (word[0] == 's')
                pass.slots = std::stoi(word.substr(1));
            else
                throw std::invalid_argument("pass plan: unknown word " + word);
        }
        plan.passes.push_back(pass);
    }
    return plan;
}

}  // namespace otimes::bench

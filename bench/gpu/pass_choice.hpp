// SPDX-License-Identifier: MIT
// A chain of modes cut into passes of the fused kernels, read from the lines of plans.txt. What a pass is, its shared memory and its
// kernel's exact instantiation are the planner's (plan/gpu_group.hpp, backend/core/fused_group.hpp): nothing is decided here.
#pragma once
#include <otimes/plan/gpu_group.hpp>

#include "../../backend/core/fused_group.hpp"

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace otimes::bench {

struct fused_pass {
    bool outer = false;              // fused_outer: strided tiles; else fused_trailing: contiguous rows
    bool unaligned = false;          // an outer one whose rows begin anywhere
    int first_mode = 0;              // of the chain, from 0
    std::vector<std::int32_t> p, q;  // extents of the group's modes
    gpu_tile tile;

    planning::gpu_group group(dtype type) const {
        planning::gpu_group g;
        g.outer = outer;
        g.type = type;
        g.p = p;
        g.q = q;
        g.tile = tile;
        g.unaligned = unaligned;
        return g;
    }
    int modes() const { return int(p.size()); }
    std::int64_t count_p() const { return group(dtype::f32).count_p(); }
    std::int64_t count_q() const { return group(dtype::f32).count_q(); }
    std::int64_t shared_bytes(dtype type) const { return planning::shared_bytes_of(group(type)); }
    std::string kernel() const { return backend::kernel_of(group(dtype::f32)); }
    std::string type_expression(dtype type) const { return backend::type_expression(group(type)); }
};

struct pass_plan {
    std::vector<fused_pass> passes;
    std::int64_t slab_rows =
        0;            // 0: all rows at once; else passes follow one another slab by slab, so that Y stays in L2
    int streams = 1;  // slabs take turns on this many streams
};

// One line of text -> plan: `slab=24 streams=2 | O m1-3 run32 t256 b2 g1 s0 : 3m 1+2f | T m4-6 r1 ... : ...`
// (O: outer, U: outer, of rows that begin anywhere, T: trailing; m1-3: modes of the chain; the rest is planning::text_of_tile).
inline pass_plan parse_pass_plan(const std::string& text, const std::vector<int>& p, const std::vector<int>& q) {
    pass_plan plan;
    std::istringstream parts(text);
    std::string part;
    std::getline(parts, part, '|');
    std::istringstream head(part);
    for (std::string word; head >> word;) {
        if (word.rfind("slab=", 0) == 0) plan.slab_rows = std::stoll(word.substr(5));
        if (word.rfind("streams=", 0) == 0) plan.streams = std::stoi(word.substr(8));
    }
    while (std::getline(parts, part, '|')) {
        std::istringstream words(part);
        std::string kind, modes, rest;
        words >> kind >> modes;
        std::getline(words, rest);
        const auto tile = planning::read_tile(rest);
        if ((kind != "O" && kind != "U" && kind != "T") || modes.size() < 2 || modes[0] != 'm' || !tile)
            throw std::invalid_argument("pass plan: " + part);
        fused_pass pass;
        pass.outer = kind != "T";
        pass.unaligned = kind == "U";
        pass.tile = *tile;
        const auto dash = modes.find('-');
        const int from = std::stoi(modes.substr(1)),
                  to = dash == std::string::npos ? from : std::stoi(modes.substr(dash + 1));
        pass.first_mode = from - 1;
        pass.p.assign(p.begin() + from - 1, p.begin() + to);
        pass.q.assign(q.begin() + from - 1, q.begin() + to);
        plan.passes.push_back(pass);
    }
    return plan;
}

}  // namespace otimes::bench

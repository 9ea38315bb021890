// SPDX-License-Identifier: MIT
// Writes the group of every measured tile, those beside a second matrix as dot products, as the type that its kernel is made from, to the file OTIMES_TILES, a line each; without pieces of rows, which are groups of more
// than one tensor, and without tiles too large to be walked on a host.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <otimes/otimes.hpp>
#include <otimes/plan/gpu_tiles.hpp>

#include <doctest/doctest.h>

#include "cuda/runtime_compiler.hpp"

namespace {

constexpr std::int64_t most_elements = 70000;

otimes::dtype type_of(const std::string& name) {
    return name == "f16"   ? otimes::dtype::f16
           : name == "f32" ? otimes::dtype::f32
           : name == "f64" ? otimes::dtype::f64
           : name == "c64" ? otimes::dtype::c64
                           : otimes::dtype::c128;
}

// "f32 T 8^5", "f64 O 16>24 7": reads group_name back.
otimes::planning::gpu_group group_named(const char* name) {
    std::istringstream in(name);
    std::string type;
    std::string kind;
    in >> type >> kind;
    otimes::planning::gpu_group g;
    g.type = type_of(type);
    g.outer = kind == "O";
    for (std::string mode; in >> mode;) {
        const std::int32_t p = std::stoi(mode);
        const std::size_t to = mode.find('>');
        const std::size_t power = mode.find('^');
        const int count = power == std::string::npos ? 1 : std::stoi(mode.substr(power + 1));
        g.p.insert(g.p.end(), static_cast<std::size_t>(count), p);
        g.q.insert(g.q.end(), static_cast<std::size_t>(count),
                   to == std::string::npos ? p : std::stoi(mode.substr(to + 1)));
    }
    return g;
}

}  // namespace

TEST_CASE("the measured tiles can be read back and are legal") {
    const char* const to = std::getenv("OTIMES_TILES");
    REQUIRE(to != nullptr);
    std::ofstream file(to);
    std::set<std::string> seen;
    const auto list = [&](const char* name, const char* text, otimes::planning::gpu_ending ending) {
        CAPTURE(name);
        CAPTURE(text);
        otimes::planning::gpu_group g = group_named(name);
        const auto tile = otimes::planning::read_tile(text);
        REQUIRE(tile);
        g.tile = *tile;
        g.ending = ending;
        CHECK(otimes::planning::why_illegal(g, otimes::h200()) == "");
        if (g.tile.pieces > 1 || (std::max)(g.count_p(), g.count_q()) * g.tile.rows * g.tile.run > most_elements) {
            return;
        }
        const std::string kernel = otimes::backend::request_of(g).expression;
        const std::size_t begin = kernel.find("mode_group<");
        const std::string group = kernel.substr(begin, kernel.size() - begin - 1);  // without the kernel's own '>'
        if (seen.insert(group).second) {
            file << group << '\n';
        }
    };
    for (const otimes::planning::measured_tile& measured : otimes::planning::measured_tiles) {
        list(measured.group, measured.tile, otimes::planning::gpu_ending::stored);
    }
    for (const otimes::planning::tile_beside& measured : otimes::planning::tiles_beside) {
        list(measured.group, measured.tile, otimes::planning::gpu_ending::dot);
    }
    file.close();
    CHECK(file);
    CHECK(seen.size() > 150);
}

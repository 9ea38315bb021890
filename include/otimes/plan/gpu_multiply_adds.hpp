// SPDX-License-Identifier: MIT
/// @file gpu_multiply_adds.hpp
/// Tiles of groups that replace mode after mode by multiply-adds: how their kernel deals out the fibres of a tile to its threads, and which
/// tile, threads and registers leave the fewest threads without work. What was measured: docs/notebook/gpu.md, "Tiles of multiply-adds".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning::multiply_adds {

/// How the threads of a block share the fibres of a tile in one trip: kernels/multiply_add_trip.cuh.
struct dealt_fibres {
    std::int64_t width = 1;  ///< neighbouring fibres of one access
    std::int64_t at_once =
        0;  ///< such accesses whose elements a thread multiplies together; 0: one whole fibre in registers
    std::int64_t rounds = 1;  ///< in which all fibres have had their turn
    double busy = 1;          ///< share of the threads' places in these rounds that have a fibre
    friend bool operator==(const dealt_fibres&, const dealt_fibres&) = default;
};

/// One trip of a tile. Extents are those before the trip.
struct trip_shape {
    std::int64_t p = 1;       ///< old extent
    std::int64_t q = 1;       ///< new extent
    std::int64_t fibres = 1;  ///< of the tile
    std::int64_t threads = 32;
    std::int64_t registers = 32;  ///< of a thread
    std::int64_t words = 1;       ///< of an element
    bool in_vectors = false;      ///< neighbouring fibres are whole accesses
};

/// Registers that a thread has where so many blocks share a multiprocessor.
OTIMES_ON_DEMAND inline std::int64_t registers_of(const gpu_tile& t) {
    const std::int64_t most = 65536 / (std::int64_t{t.threads} * t.blocks);
    return most < 255 ? most / 8 * 8 : 255;
}

/// What a warp spends on a tile: accesses to shared memory of one bank each, and a quarter of the products, which four schedulers issue beside
/// each other. A row of the factor costs two accesses for 16 bytes, however many fibres use it.
OTIMES_ON_DEMAND inline std::int64_t cost(const trip_shape& s, std::int64_t width, std::int64_t k) {
    const std::int64_t each = s.threads * k;
    const std::int64_t rounds = (s.fibres / width + each - 1) / each;
    return rounds * (s.p * ((s.q * s.words + 3) / 4) * 2 + k * width * (s.p + s.q + s.p * s.q * s.words / 4) * s.words);
}

/// As many accesses at once as a thread's registers hold sums for, chosen for the least cost.
OTIMES_ON_DEMAND inline std::int64_t at_once(const trip_shape& s, std::int64_t width) {
    const std::int64_t most = (s.registers - 40) / (width * (s.q + 2) * s.words + 2);
    if ((width > 1 && 32 / s.words / s.q >= width) || most < 1) {
        return 0;
    }
    std::int64_t best = 1;
    for (std::int64_t k = 2; k <= most; ++k) {
        if (cost(s, width, k) < cost(s, width, best)) {
            best = k;
        }
    }
    return best == 1 && width == 1 ? 0 : best;
}

/// The kernel's choice. @pre (std::max)(p, q) * words <= 64
OTIMES_ON_DEMAND inline dealt_fibres deal(const trip_shape& s) {
    const auto least = [&](std::int64_t width) {
        return cost(s, width, (std::max)(std::int64_t{1}, at_once(s, width)));
    };
    dealt_fibres d;
    const std::int64_t vector = 4 / s.words;
    if (s.in_vectors && vector > 1 && (std::max)(s.p, s.q) * vector * s.words <= 64 &&
        s.fibres / vector >= s.threads / 2 && ((std::max)(s.p, s.q) <= 8 || 9 * least(vector) <= 10 * least(1))) {
        d.width = vector;
    }
    d.at_once = at_once(s, d.width);
    const std::int64_t each = s.threads * (std::max)(std::int64_t{1}, d.at_once);
    const std::int64_t items = s.fibres / d.width;
    d.rounds = (items + each - 1) / each;
    d.busy = static_cast<double>(items) / static_cast<double>(d.rounds * each);
    return d;
}

/// True of groups that this file chooses for: one product of floats or doubles, one mode a trip, none by the matrix unit and none whose fibres
/// several threads share, some of nine indices and more (shorter ones are held together, gpu_tiles.hpp). A single outer mode has long runs and
/// stays as it is.
OTIMES_ON_DEMAND OTIMES_COLD inline bool knows(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    const std::int64_t words = group_memory::words_of(g.type);
    const auto longer = [&g](const gpu_trip& trip) { return (std::max)(g.p_of(trip.first), g.q_of(trip.first)); };
    return (g.type == dtype::f32 || g.type == dtype::f64) && !g.sum && g.moves.empty() && g.terms == 1 &&
           g.inputs == 1 && t.segments == 1 && t.slots == 0 && t.cluster == 1 && t.slices == 1 && t.pieces == 1 &&
           (!g.outer || (t.rows == 1 && g.modes() > 1)) &&
           std::ranges::all_of(t.trips,
                               [&](const gpu_trip& trip) {
                                   return !trip.matrix && trip.count == 1 && trip.split == 1 &&
                                          longer(trip) * words <= 64;
                               }) &&
           std::ranges::any_of(t.trips, [&](const gpu_trip& trip) { return longer(trip) >= 9; });
}

/// Trip `step` of a tile; `unaligned`: Y's rows begin at any element, so that the last trip takes fibres one by one.
OTIMES_ON_DEMAND OTIMES_COLD inline trip_shape shape_of(const gpu_group& g, std::size_t step, bool unaligned) {
    using namespace group_memory;
    const std::int64_t vector = vector_of(g.type);
    const std::int32_t level = g.tile.trips[step].first;
    trip_shape s;
    s.p = g.p_of(level);
    s.q = g.q_of(level);
    s.threads = g.tile.threads;
    s.registers = registers_of(g.tile);
    s.words = words_of(g.type);
    s.fibres = std::int64_t{g.tile.rows} * g.tile.run;
    std::int64_t below = g.tile.run;
    std::int64_t stretch = 1;  // neighbours in the tile, below the level
    bool unbroken = true;
    for (std::int32_t l = g.modes() + 1; l > level; --l) {
        const std::int64_t now = l > g.modes() ? g.tile.run : g.trip_of(l) < step ? g.q_of(l) : g.p_of(l);
        below *= l > g.modes() ? 1 : now;
        unbroken = unbroken && (now == 1 || stride(g, l) == stretch);
        stretch *= unbroken ? now : 1;
    }
    for (std::int32_t l = 1; l <= g.modes(); ++l) {
        s.fibres *= l == level ? 1 : g.trip_of(l) < step ? g.q_of(l) : g.p_of(l);
    }
    s.in_vectors = stretch % vector == 0 && below % vector == 0 && (g.tile.run == 1 || g.tile.run % vector == 0) &&
                   !(unaligned && step + 1 == g.tile.trips.size());
    for (std::int32_t l = 0; l <= g.modes(); ++l) {
        s.in_vectors = s.in_vectors && (allotted(g, l) == 1 || stride(g, l) < stretch || stride(g, l) % vector == 0);
    }
    return s;
}

/// All trips of a tile. What depends on neither threads nor registers is most of the work.
OTIMES_ON_DEMAND OTIMES_COLD inline std::vector<trip_shape> shapes_of(const group_request& r, const gpu_group& g) {
    const bool unaligned = g.outer && r.inner % group_memory::vector_of(g.type) != 0;
    std::vector<trip_shape> shapes;
    for (std::size_t i = 0; i < g.tile.trips.size(); ++i) {
        shapes.push_back(shape_of(g, i, unaligned));
    }
    return shapes;
}

/// How much slower a tile is than one that keeps all threads at work: the logarithm of a ratio. Weights fitted to 2400 tiles of 280 products on an
/// H200 (bench/results/multiply_add_tiles_h200.csv); of those of one product, the one ranked first takes 1.07 to 1.09 times the time of
/// the best. `shapes`: shapes_of a tile with as many rows, whatever its threads and blocks.
OTIMES_ON_DEMAND OTIMES_COLD inline double slowness(const group_request& r, const gpu_description& gpu,
                                                    const gpu_group& g, const std::vector<trip_shape>& shapes) {
    const gpu_tile& t = g.tile;
    const std::int64_t words = group_memory::words_of(g.type);
    double busy = 0;
    double whole = 0;
    double rounds = 0;
    double sums = 0;
    std::int64_t tile_words = t.rows * t.run * words;
    for (trip_shape s : shapes) {
        s.threads = t.threads;
        s.registers = registers_of(t);
        const dealt_fibres d = deal(s);
        busy += d.busy;
        whole += d.at_once == 0 && d.width == 1 ? 1 : 0;
        rounds += static_cast<double>(d.rounds);
        sums = (std::max)(sums, static_cast<double>((std::max)(std::int64_t{1}, d.at_once) * d.width *
                                                    ((std::max)(s.p, s.q) + 2) * words));
        tile_words *= (std::max)(s.p, s.q);
    }
    const auto trips = static_cast<double>(t.trips.size());
    const double warps = t.blocks * t.threads / 32.0;
    const std::int64_t tiles = g.outer ? r.groups * ((r.inner + t.run - 1) / t.run) : (r.groups + t.rows - 1) / t.rows;
    const double turns =
        static_cast<double>(tiles) / static_cast<double>(std::int64_t{t.blocks} * (std::max)(1, gpu.multiprocessors));
    const auto above_one = [](double ratio) { return std::log((std::max)(1.0, ratio)); };
    return 0.25 * std::log(trips / busy)                                          // threads without fibres
           + 0.15 * std::log(std::ceil(turns) / turns)                            // blocks without tiles
           + 0.12 * whole / trips                                                 // no read of the factor is shared
           + 0.6 * above_one((sums + 46) / static_cast<double>(registers_of(t)))  // more than the registers hold
           + 0.08 * above_one(2500.0 / static_cast<double>(tile_words))           // barriers around little work
           + (rounds > trips ? 0.015 : 0.0)                                       //
           + (warps <= 12  ? 0.08                                                 // too few to hide what each waits for
              : warps < 16 ? 0.02
                           : 0.0) +
           (t.threads > 128 ? 0.05 : 0.0)  // barriers of more of them
           + (g.outer && t.run < r.inner && t.run * words <= 16 ? t.run * words <= 8 ? 0.25 : 0.07
                                                                : 0.0);  // short runs in memory
}

/// The same of one tile by itself.
OTIMES_ON_DEMAND OTIMES_COLD inline double slowness(const group_request& r, const gpu_description& gpu,
                                                    const gpu_group& g) {
    return slowness(r, gpu, g, shapes_of(r, g));
}

/// The tile among some hundred that is the least slow; `chosen`, where it is one of them, or none of them may run.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group best_tile(const group_request& r, const gpu_description& gpu,
                                                        const gpu_group& chosen) {
    constexpr std::int32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128};
    constexpr std::int32_t runs[] = {4, 8, 16, 32, 64, 128};
    const std::int64_t words = group_memory::words_of(r.type);
    std::int64_t tensor_words = words;
    for (std::size_t i = 0; i < r.p.size(); ++i) {
        tensor_words *= (std::max)(r.p[i], r.q[i]);
    }
    gpu_group best = chosen;
    double least = slowness(r, gpu, chosen);
    const auto consider = [&](gpu_group g) {
        const std::vector<trip_shape> shapes = shapes_of(r, g);
        const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(g) + 1024);
        for (const std::int32_t threads : {64, 96, 128, 160, 192, 224, 256}) {
            g.tile.threads = threads;
            std::int32_t before = 0;
            for (const std::int64_t registers : {64, 80, 96, 128}) {
                const std::int64_t by_registers = gpu.registers_per_multiprocessor / (threads * registers);
                g.tile.blocks = static_cast<std::int32_t>((std::min)({by_memory, by_registers, std::int64_t{16}}));
                if (g.tile.blocks < 1 || g.tile.blocks == before || g.tile.blocks * threads < 256) {
                    continue;
                }
                before = g.tile.blocks;
                const double slow = slowness(r, gpu, g, shapes);
                if (slow < least && why_illegal(g, gpu).empty()) {
                    least = slow;
                    best = g;
                }
            }
        }
    };
    for (const std::int32_t count : row_counts) {
        gpu_group g = chosen;
        if (r.outer) {
            // Shared evenly; a line of a few elements whole.
            const std::int64_t even = group_memory::even_run(r.inner, count, group_memory::vector_of(r.type));
            if (std::ranges::find(runs, count) == std::end(runs) || count >= 2 * r.inner || even < 2 ||
                (even != r.inner && count * words < 8)) {
                continue;
            }
            g.tile.run = static_cast<std::int32_t>(even);
        } else {
            if (r.parts_per_line != 1 && r.parts_per_line % count != 0) {
                continue;
            }
            g.tile.rows = count;
        }
        const std::int64_t tile_words = tensor_words * g.tile.rows * g.tile.run;
        if (tile_words >= 500 && tile_words <= 14000) {
            consider(g);
        }
    }
    return best;
}

}  // namespace otimes::planning::multiply_adds

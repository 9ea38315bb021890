// SPDX-License-Identifier: MIT
/// @file gpu_tiles.hpp
/// Which tile, threads and trips a fused group gets: what was measured for this group, else formulas that were fitted to those
/// measurements. The only place where that is decided; the measuring program (bench/gpu) starts from the same choice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_multiply_adds.hpp>
#include <otimes/plan/gpu_tile_table.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// "f32 T 8^5": the name of a group in the table.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string group_name(const group_request& r) {
    std::string text(to_string(is_widened(r.type) ? dtype::f16 : r.type));  // both 16-bit types have the same tiles
    text += r.outer ? " O" : " T";
    const bool power =
        r.p == r.q && r.p.size() > 1 && std::ranges::count(r.p, r.p.front()) == static_cast<std::ptrdiff_t>(r.p.size());
    if (power) {
        return text + " " + std::to_string(r.p.front()) + "^" + std::to_string(r.p.size());
    }
    for (std::size_t i = 0; i < r.p.size(); ++i) {
        text += " " + std::to_string(r.p[i]);
        if (r.p[i] != r.q[i]) {
            text += ">" + std::to_string(r.q[i]);
        }
    }
    return text;
}

/// A chosen group; `copies` as in the table, 0 where a formula chose.
struct chosen_group {
    gpu_group group;
    double copies = 0;
};

OTIMES_ON_DEMAND inline gpu_group without_tile(const group_request& r) {
    gpu_group g;
    g.outer = r.outer;
    g.type = r.type;
    g.single = r.single;
    for (std::size_t i = 0; i < r.p.size(); ++i) {
        g.p.push_back(static_cast<std::int32_t>(r.p[i]));
        g.q.push_back(static_cast<std::int32_t>(r.q[i]));
    }
    return g;
}

/// True when a group's tile may serve the request: rows divide a line, no matrix unit where it is forbidden.
OTIMES_ON_DEMAND OTIMES_COLD inline bool may_serve(const gpu_group& g, const group_request& r) {
    return (r.may_use_unit || !std::ranges::any_of(g.tile.trips, &gpu_trip::matrix)) &&
           ((!g.outer && r.parts_per_line == 1) || r.parts_per_line % g.tile.rows == 0) &&
           (g.tile.slices == 1 || !r.may_alias);
}

/// The same, and its runs are no longer than what there is. The last tile of a line is filled as far as there are elements, so long runs
/// want lines of whole tiles, or of many.
OTIMES_ON_DEMAND OTIMES_COLD inline bool suits(const gpu_group& g, const group_request& r) {
    const std::int64_t run = g.tile.run;
    return may_serve(g, r) && (!g.outer || run <= r.inner || run == 2) &&
           (run <= 128 || r.inner % run == 0 || r.inner >= 8 * run);
}

/// The tile of a trailing group of so many rows, `parts_per_line` of which are a line, where a second matrix is read beside its products
/// (tiles_beside); else its own. Tiles that do not fill the GPU twice are as they were.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_tile tile_beside_matrix(const gpu_group& g, std::int64_t rows,
                                                                std::int64_t parts_per_line,
                                                                const gpu_description& gpu) {
    group_request r;
    r.type = g.type;
    r.p.assign(g.p.begin(), g.p.end());
    r.q.assign(g.q.begin(), g.q.end());
    r.may_use_unit = std::ranges::any_of(g.tile.trips, &gpu_trip::matrix);
    r.parts_per_line = parts_per_line;
    const std::string name = group_name(r);
    const auto* const entry = std::ranges::find_if(tiles_beside, [&](const tile_beside& t) { return t.group == name; });
    if (entry == std::end(tiles_beside) || g.tile.cluster > 1 || g.tile.slices > 1 || g.tile.pieces > 1) {
        return g.tile;
    }
    gpu_group other = g;
    other.tile = *read_tile(entry->tile);
    const bool fills = rows >= std::int64_t{2} * gpu.multiprocessors * (std::max)(g.tile.rows, other.tile.rows);
    const bool fits = why_illegal(other, gpu).empty() &&
                      other.tile.blocks * shared_bytes_of(other) <= gpu.shared_bytes_per_multiprocessor;
    return fills && fits && may_serve(other, r) ? other.tile : g.tile;
}

/// The table's choice: the entry of this group that was measured with the nearest number of tiles, where the GPU can run it. Entries that were
/// measured with the same number stand for each other, the best one first.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<chosen_group> measured_group(const group_request& r,
                                                                               const gpu_description& gpu) {
    const std::string name = group_name(r);
    const std::int64_t count = r.groups * (r.outer ? r.inner : 1);
    const auto ratio = [count](const measured_tile& m) {
        const auto a = static_cast<double>(count);
        const auto b = static_cast<double>(m.count);
        return a > b ? a / b : b / a;
    };
    const measured_tile* nearest = nullptr;
    for (const measured_tile& m : measured_tiles) {
        if (m.group == name && (nearest == nullptr || ratio(m) < ratio(*nearest))) {
            nearest = &m;
        }
    }
    for (const measured_tile* m = nearest;
         m != nullptr && m != std::end(measured_tiles) && m->group == name && m->count == nearest->count; ++m) {
        chosen_group chosen{without_tile(r), m->copies};
        const std::optional<gpu_tile> tile = read_tile(m->tile);
        if (!tile) {
            return std::nullopt;
        }
        chosen.group.tile = *tile;
        // Tiles that fill the GPU twice are all alike; fewer, or more than a few, are another case.
        const std::int64_t enough = 2ll * gpu.multiprocessors * (r.outer ? tile->run : tile->rows);
        const bool alike = ratio(*m) <= 8 || (std::min)(count, m->count) >= enough;
        if (alike && suits(chosen.group, r) && why_illegal(chosen.group, gpu).empty() &&
            (tile->blocks == 1 ||
             tile->blocks * shared_bytes_of(chosen.group) <= gpu.shared_bytes_per_multiprocessor)) {
            return chosen;
        }
    }
    return std::nullopt;
}

namespace tile_formula {

inline constexpr std::int64_t register_words = 64;  ///< of a thread's fibres in one trip
inline constexpr std::int64_t few_words = 32;       ///< so many leave a thread of 64 registers enough for the rest

/// Extents that a thread may hold together: what was measured to gain on an H200. With few tiles the threads are idle anyway,
/// and short trips finish sooner.
OTIMES_ON_DEMAND inline bool may_hold(const gpu_group& g, std::int64_t held, std::int64_t extent, bool few_tiles,
                                      std::int64_t tile_words) {
    const std::int64_t together = held * extent;
    const std::int64_t words = group_memory::words_of(g.type);
    if (few_tiles) {
        return together <= 10;
    }
    if (is_complex(g.type)) {
        return together * words <= (words == 2 ? 54 : 64);
    }
    if (words > 1) {
        return together * words <= 54 || (extent == 4 && together <= 64 && tile_words >= 16384);
    }
    return together <= 36 || (extent == 4 && together <= 64) || (together <= 64 && tile_words >= 16384);
}

/// True where the unit takes a level and the one above it as a pair.
OTIMES_ON_DEMAND OTIMES_COLD inline bool is_unit_pair(const gpu_group& g, std::int32_t lower) {
    const std::int64_t a = lower > 1 ? g.p_of(lower) : 0;
    const std::int64_t b = lower > 1 ? g.p_of(lower - 1) : 0;
    return a == 8 ? b == 8 : b > 8 && (a <= 16 || (lower == g.modes() && g.tile.run == 1));
}

/// True for groups of 16-bit elements whose modes the unit takes in pairs as far as there are pairs: measured to gain, while floats are split for
/// each product, which hides what a pair saves.
OTIMES_ON_DEMAND OTIMES_COLD inline bool takes_pairs(const gpu_group& g) {
    const auto fits = [](std::int32_t p) { return p == 8 || p == 16 || p == 32; };
    return is_widened(g.type) && g.is_square() && std::ranges::all_of(g.p, fits) && is_unit_pair(g, g.modes()) &&
           (g.tile.run & (g.tile.run - 1)) == 0 && (!g.outer || g.tile.rows == 1);
}

/// What decides about the trips of a group whose rows, run, threads and cluster are set: the same for all of its modes.
struct trip_setting {
    bool few_tiles = false;
    std::int64_t tile_words = 0;
    bool by_unit = false;              ///< the matrix unit may be used
    bool in_one_block = false;         ///< and may fill up modes with zeros, or take fibres one by one
    std::int64_t least_filled_up = 0;  ///< extents from which on filling up gains
    bool fills_up = false;             ///< modes may be filled up
};

/// Extents from which on the unit pays. A float mode of 8 is done faster by multiply-adds.
OTIMES_ON_DEMAND inline std::int64_t least_by_unit(dtype type) {
    return type == dtype::f32 ? 16 : type == dtype::c64 ? 12 : 8;
}

/// True of a mode that is whole steps of the unit, and long enough for it.
OTIMES_ON_DEMAND inline bool is_in_steps(const gpu_group& g, const trip_setting& t, std::int32_t level) {
    const std::int64_t granule = unit_granule(g.type);
    return t.by_unit && (std::min)(g.p_of(level), g.q_of(level)) >= least_by_unit(g.type) &&
           g.p_of(level) % granule == 0 && g.q_of(level) % granule == 0;
}

/// Extents from which on other modes are filled up with zeros, where that was measured to gain: doubles from 12 to 104, as single rows from 19 on, and where runs begin at
/// any element beside an extent of 21 and more; floats from 24 on, as single rows from 48 on, where they come one by one from 37 or 41 on, and beside
/// multiply-adds in the same tile they lose. Few small tiles are done sooner by threads that share a fibre.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t least_filled_up(const group_request& r, const gpu_group& g) {
    const bool aligned = (g.outer ? r.inner : g.p_of(g.modes())) % group_memory::vector_of(g.type) == 0;
    const bool alone = g.modes() == 1 && !is_widened(g.type);
    if (accumulator_of(g.type) != dtype::f32) {
        const std::int32_t longest = (std::max)(*std::ranges::max_element(g.p), *std::ranges::max_element(g.q));
        return alone && !g.outer ? 19 : g.outer && !aligned && longest < 21 ? 21 : least_by_unit(g.type);
    }
    if (alone && !g.outer) {
        return 48;
    }
    if (!aligned) {
        return g.outer ? 41 : 37;
    }
    return g.outer && !alone && g.type == dtype::f32 ? 28 : 24;
}

/// True of a mode whose zeros cost less than the unit gains: steps * steps / (p * q) is what it does for each product.
OTIMES_ON_DEMAND OTIMES_COLD inline bool gains_filled_up(const gpu_group& g, const trip_setting& t,
                                                         std::int32_t level) {
    const std::int64_t p = g.p_of(level);
    const std::int64_t q = g.q_of(level);
    const auto up = [&g](std::int64_t n) { return group_memory::round_up_to(n, unit_granule(g.type)); };
    const double work = static_cast<double>(up(p) * up(q)) / static_cast<double>(p * q);
    return t.by_unit && t.in_one_block && (std::min)(p, q) >= t.least_filled_up &&
           !(t.few_tiles && t.tile_words <= 2048) && (std::max)(p, q) <= 104 &&
           work <= (accumulator_of(g.type) == dtype::f32 ? 1.7 : 2.0);
}

/// True of a mode that the unit does faster than multiply-adds, if its fibres suit it.
OTIMES_ON_DEMAND OTIMES_COLD inline bool wants_unit(const gpu_group& g, const trip_setting& t, std::int32_t level) {
    return is_in_steps(g, t, level) || (t.fills_up && gains_filled_up(g, t, level));
}

/// Floats are filled up in all modes that are no whole steps, or in none.
OTIMES_ON_DEMAND OTIMES_COLD inline trip_setting trip_setting_of(const group_request& r, const gpu_description& gpu,
                                                                 bool few_tiles, std::int64_t tile_words,
                                                                 const gpu_group& g) {
    trip_setting t;
    t.few_tiles = few_tiles;
    t.tile_words = tile_words;
    const bool shared_row = g.tile.cluster > 1 || g.tile.pieces > 1;
    t.by_unit = r.may_use_unit && has_unit(gpu, g.type) && !(is_complex(g.type) && shared_row);
    t.in_one_block = !shared_row && !is_complex(g.type);
    t.least_filled_up = least_filled_up(r, g);
    t.fills_up = true;
    for (std::int32_t l = 1; l <= g.modes() && accumulator_of(g.type) == dtype::f32; ++l) {
        t.fills_up = t.fills_up && (is_in_steps(g, t, l) || gains_filled_up(g, t, l));
    }
    return t;
}

/// Warps that share a fibre of the unit, so that each keeps few sums, and those that would have no fibres have work; 0: even the most of them would
/// keep too many.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int32_t unit_split(const gpu_group& g, const trip_setting& t,
                                                            std::int32_t level, std::int64_t fibres) {
    const bool single = accumulator_of(g.type) == dtype::f32;
    const std::int64_t granule = unit_granule(g.type);
    const std::int64_t p = g.p_of(level);
    const std::int64_t q = group_memory::round_up_to(g.q_of(level), granule);
    const std::int64_t warps_with_fibres = (fibres + unit_fibres(g.type) - 1) / unit_fibres(g.type);
    std::int32_t split = 1;
    const auto may_double = [&] { return split < 8 && g.tile.threads / 32 % (2 * split) == 0; };
    // (Measured: shorter modes gain nothing, for each of these warps splits the fibres anew.)
    const auto idle = [&] {
        return p >= (t.few_tiles ? 64 : 32) && !is_complex(g.type) &&
               2 * split * warps_with_fibres <= g.tile.threads / 32;
    };
    if (p % granule == 0 && g.q_of(level) % granule == 0) {
        const std::int64_t columns = single ? (g.tile.threads >= 256 ? 32 : 64) : 16;
        while ((q / split > columns || idle()) && may_double() && q % (2 * granule * split) == 0 &&
               g.tile.cluster == 1) {
            split *= 2;
        }
        return split;
    }
    if (fibres * group_memory::words_of(g.type) < 32) {  // fewer than a warp takes at once
        return 0;
    }
    const std::int64_t most = single ? 9 : p < 64 ? 6 : 5;
    const auto steps = [&] { return (q / granule + split - 1) / split; };
    while (steps() > most && may_double()) {
        split *= 2;
    }
    if (steps() > most) {
        return 0;
    }
    while (idle() && may_double() && steps() % 2 == 0) {
        split *= 2;
    }
    return split;
}

/// The fibres of a mode in a tile.
struct fibres_now {
    std::int64_t count = 1;
    std::int64_t below = 1;    ///< elements from one element of a fibre to the next
    std::int64_t stretch = 1;  ///< elements that follow each other in any case: a run, or the last mode
};

/// Those of a mode that the next trip takes: what the trips so far replaced has its new extent.
OTIMES_ON_DEMAND OTIMES_COLD inline fibres_now fibres_of_level(const gpu_group& g, std::int32_t level) {
    const auto now = [&g](std::int32_t l) { return g.trip_of(l) < g.tile.trips.size() ? g.q_of(l) : g.p_of(l); };
    fibres_now f;
    f.count = static_cast<std::int64_t>(g.tile.rows) * g.tile.run;
    f.below = g.tile.run;
    for (std::int32_t l = 1; l <= g.modes(); ++l) {
        f.count *= l == level ? 1 : now(l);
        f.below *= l > level ? now(l) : 1;
    }
    f.stretch = g.tile.run > 1 ? g.tile.run : now(g.modes());
    return f;
}

/// Lets a trip by multiply-adds take the modes above its own, too, as far as a thread's registers hold them and the unit wants none of them.
/// @returns the elements that a thread then holds
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t join_neighbours(const gpu_group& g, const trip_setting& t,
                                                                 gpu_trip& trip) {
    std::int64_t held = (std::max)(g.p_of(trip.first), g.q_of(trip.first));
    while (g.is_square() && trip.first > 1 && !wants_unit(g, t, trip.first - 1) &&
           (g.tile.cluster == 1 || trip.first > 2) &&
           may_hold(g, held, g.p_of(trip.first - 1), t.few_tiles, t.tile_words)) {
        held *= g.p_of(trip.first - 1);
        --trip.first;
        ++trip.count;
    }
    return held;
}

/// Long fibres of a trip of one mode, or few that grow: several threads share one, so that each keeps few sums and all have work.
/// @param held elements of a fibre. @returns those that a thread holds; 0: more than its registers do
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t share_fibres(const gpu_group& g, const trip_setting& t,
                                                              std::int64_t fibres, std::int64_t held, gpu_trip& trip) {
    const std::int64_t words = group_memory::words_of(g.type);
    const std::int64_t p = g.p_of(trip.first);
    const std::int64_t q = g.q_of(trip.first);
    const bool idle = fibres * 2 <= g.tile.threads && p <= 8 && q >= 8;
    if (held * words <= register_words && !(t.few_tiles && held >= 16) && !idle) {
        return held;
    }
    const auto part = [&] { return (q + trip.split - 1) / trip.split; };
    while (trip.split < 16 && trip.split * 2 <= q && g.tile.threads % (trip.split * 2) == 0 &&
           (part() * words > 32 || fibres * trip.split * 2 <= g.tile.threads)) {
        trip.split *= 2;
    }
    if (part() * words > register_words) {
        return 0;
    }
    return trip.split > 1 || held * words > register_words ? part() : held;
}

/// Makes a trip one by multiply-adds, of its mode and of those above that it can take. @returns the words of a thread's fibres; 0: more than its registers hold
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t take_multiply_adds(const gpu_group& g, const trip_setting& t,
                                                                    const fibres_now& fibres, gpu_trip& trip) {
    const std::int64_t words = group_memory::words_of(g.type);
    const std::int64_t lane = group_memory::vector_of(g.type);
    std::int64_t held = join_neighbours(g, t, trip);
    held = trip.count == 1 ? share_fibres(g, t, fibres.count, held, trip) : held;
    // Neighbouring fibres of one access, where a thread takes those: kernels/multiply_add_trip.cuh.
    const std::int64_t wide = held * lane * words <= register_words && trip.split == 1 && fibres.stretch % lane == 0 &&
                                      fibres.below % lane == 0 && fibres.below > 1
                                  ? lane
                                  : 1;
    const std::int64_t fibre_words = held * wide * words;
    // Sums that elements stream past, and whole fibres of doubles with their images, want more registers than they have words.
    const bool streams = wide == 1 && !is_complex(g.type) && (trip.count == 1 ? trip.split == 1 : words > 1);
    return streams && fibre_words > 24 ? (std::max)(fibre_words, few_words + 1) : fibre_words;
}

/// The trips of modes that the unit takes in pairs, innermost first.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_pairs(gpu_group& g) {
    for (std::int32_t level = g.modes(); level >= 1; --level) {
        gpu_trip trip;
        trip.matrix = true;
        trip.count = is_unit_pair(g, level) ? 2 : 1;
        trip.first = level -= trip.count - 1;
        g.tile.trips.push_back(trip);
    }
}

/// The trips: neighbouring modes of equal square extents together while a thread's registers hold them; the rest one by one
/// in the order asked for. False when a mode fits no trip. `most_held` receives the words of a thread's fibres.
OTIMES_ON_DEMAND OTIMES_COLD inline bool choose_trips(const group_request& r, const gpu_description& gpu,
                                                      bool few_tiles, std::int64_t tile_words, gpu_group& g,
                                                      std::int64_t& most_held) {
    g.tile.trips.clear();
    most_held = 0;
    const trip_setting t = trip_setting_of(r, gpu, few_tiles, tile_words, g);
    if (t.by_unit && takes_pairs(g)) {
        most_held = register_words;
        take_pairs(g);
        return true;
    }
    std::vector<std::int32_t> order = r.order;
    if (g.is_square()) {
        order.clear();
        for (std::int32_t level = g.modes(); level >= 1; --level) {
            order.push_back(level);
        }
    }
    for (std::size_t at = 0; at < order.size(); ++at) {
        const std::int32_t level = order[at];
        gpu_trip trip;
        trip.first = level;
        const fibres_now fibres = fibres_of_level(g, level);
        // A lane of the matrix unit takes neighbouring fibres by one access, so what is contiguous below must be whole accesses. In one block it may
        // also take them one by one.
        const bool wide_enough =
            fibres.below == 1 ? g.tile.cluster == 1 || level != 1
                              : fibres.stretch % group_memory::vector_of(g.type) == 0 || (t.in_one_block && t.fills_up);
        const std::int32_t shared_by =
            wants_unit(g, t, level) && wide_enough ? unit_split(g, t, level, fibres.count) : 0;
        std::int64_t held = register_words;
        if (shared_by > 0) {
            trip.matrix = true;
            trip.split = shared_by;
            // Modes of 8 need few registers; small tensors side by side then have twice the blocks to hide their loads.
            held = g.outer && g.tile.rows > 1 && g.q_of(level) <= 8 ? 32 : register_words;
        } else {
            held = take_multiply_adds(g, t, fibres, trip);
            if (held == 0) {
                return false;
            }
            at += static_cast<std::size_t>(trip.count - 1);
        }
        most_held = (std::max)(most_held, held);
        g.tile.trips.push_back(trip);
    }
    return true;
}

/// Completes a group whose rows, run and cluster are set: threads, trips, blocks. False when it cannot run.
OTIMES_ON_DEMAND OTIMES_COLD inline bool complete(const group_request& r, const gpu_description& gpu, gpu_group& g) {
    const std::int64_t words = group_memory::words_of(g.type);
    std::int64_t tile = 1;
    for (std::int32_t l = 1; l <= g.modes(); ++l) {
        tile *= (std::max)(g.p_of(l), g.q_of(l));
    }
    const std::int64_t tile_words = tile * g.tile.rows * g.tile.run * words / g.tile.cluster;
    const std::int64_t tiles =
        (r.groups + g.tile.rows - 1) / g.tile.rows * (g.outer ? (r.inner + g.tile.run - 1) / g.tile.run : 1);
    const bool few_tiles = tiles <= (std::max)(1, gpu.multiprocessors);
    const bool large_unit = r.may_use_unit && tile_words >= 4096 && *std::ranges::max_element(g.q) >= 64;
    g.tile.threads = tile_words <= 128 || (takes_pairs(g) && g.modes() == 2 && !g.outer && !few_tiles) ? 64
                     : few_tiles && tile_words > 2048                                                  ? 256
                     : large_unit || tile_words > 16384 || g.tile.cluster > 1                          ? 256
                                                                                                       : 128;
    std::int64_t held = 0;
    if (!choose_trips(r, gpu, few_tiles, tile_words, g, held)) {
        return false;
    }
    // Single modes whose fibres are read element by element: a thread takes several, to share each read of the factor.
    const bool several = !few_tiles && std::ranges::any_of(g.tile.trips, [&](const gpu_trip& trip) {
        const std::int64_t longest = (std::max)(g.p_of(trip.first), g.q_of(trip.first)) * words;
        std::int64_t below = g.tile.run;
        for (std::int32_t l = trip.first + 1; l <= g.modes(); ++l) {
            below *= g.p_of(l);
        }
        return !trip.matrix && trip.count == 1 && trip.split == 1 && longest >= 7 * words && longest <= 64 &&
               below % group_memory::vector_of(g.type) != 0;
    });
    if (is_widened(g.type)) {  // where they are worked on in the stage, the next ones arrive in another
        g.tile.slots = group_memory::reads_raw(g) && g.tile.trips.size() == 1 ? 2 : 1;
    }
    const auto blocks_of = [&](const gpu_group& candidate) {
        const bool many = held > (is_complex(g.type) ? 16 : few_words) || several || g.type == dtype::c128;
        const std::int64_t registers = many ? 128 : 64;  // of a thread
        const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(candidate) + 1024);
        const std::int64_t by_registers = gpu.registers_per_multiprocessor / (candidate.tile.threads * registers);
        return static_cast<std::int32_t>(std::clamp<std::int64_t>((std::min)(by_memory, by_registers), 1, 16));
    };
    g.tile.blocks = blocks_of(g);
    if (!why_illegal(g, gpu).empty()) {
        return false;
    }
    // Where so few blocks share a multiprocessor that they cannot hide each other's loads, the parts of the next tile
    // arrive while one is worked on.
    const gpu_trip& first_trip = g.tile.trips.front();
    const bool heavy = first_trip.matrix && g.p_of(first_trip.first) >= 64;  // hides loads itself
    if (!is_widened(g.type) && !g.outer && g.tile.rows == 1 && g.tile.cluster == 1 && !few_tiles && !heavy &&
        tile_words >= 16384 && first_trip.first > 1) {
        for (const auto& [segments, slots] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{2, 1}}) {
            gpu_group staged = g;
            staged.tile.segments = segments;
            staged.tile.slots = slots;
            // Several blocks hide each other's loads already: then one part ahead is enough, and no block is given up.
            const bool worth_it = g.tile.blocks == 1 || (slots == 1 && blocks_of(staged) >= 2);
            if (worth_it && why_illegal(staged, gpu).empty()) {
                staged.tile.blocks = blocks_of(staged);
                g = staged;
                break;
            }
        }
    }
    return true;
}

/// Trailing modes all by the warps' unit, of which some are filled up: rows until the warps of a block have fibres to take, of one mode a round for each.
OTIMES_ON_DEMAND OTIMES_COLD inline void more_rows(const group_request& r, const gpu_description& gpu, gpu_group& g) {
    const auto by_unit = [](const gpu_trip& t) { return t.matrix; };
    const auto filled_up = [&g](const gpu_trip& t) { return group_memory::is_filled_up(g, t); };
    if (g.modes() > 2 || g.tile.slots > 0 || !std::ranges::all_of(g.tile.trips, by_unit) ||
        !std::ranges::any_of(g.tile.trips, filled_up)) {
        return;
    }
    const std::int64_t words = group_memory::words_of(g.type);
    const std::int64_t most_words = g.modes() == 1 ? 8320 : words == 1 ? 4608 : 5200;
    const std::int64_t most_rows = g.modes() == 1 ? 128 / words : 256;
    for (gpu_group more = g; more.tile.rows * 2 <= most_rows; g = more) {
        more.tile.rows *= 2;
        const std::int64_t rows = more.tile.rows;
        if (rows * (std::max)(g.count_p(), g.count_q()) * words > most_words ||
            r.groups / rows < std::int64_t{2} * (std::max)(1, gpu.multiprocessors) ||
            (r.parts_per_line != 1 && r.parts_per_line % rows != 0) || !complete(r, gpu, more) ||
            !std::ranges::all_of(more.tile.trips, by_unit)) {
            break;
        }
    }
}

/// A single outer mode by the warps' unit, of extents that are filled up: each warp takes its fibres once, and the next tile arrives meanwhile.
/// Measured from 13 to 45 in doubles and from 25 to 65 in floats: 0.85 to 0.95 of the time of four blocks that hide each other's loads.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group one_round_each(const group_request& r, const gpu_description& gpu,
                                                             const gpu_group& chosen) {
    gpu_group g = chosen;
    gpu_trip& trip = g.tile.trips.front();
    if (is_widened(g.type) || g.tile.trips.size() != 1 || !group_memory::is_filled_up(g, trip) || g.p_of(1) > 64) {
        return chosen;
    }
    const std::int64_t words = group_memory::words_of(g.type);
    const std::int64_t least = std::int64_t{4} * (std::max)(1, gpu.multiprocessors);
    const auto tiles = [&](std::int64_t run) { return r.groups * ((r.inner + run - 1) / run); };
    std::int64_t run = 128 / words;
    while (run > 32 / words && (run > r.inner || tiles(run) < least)) {
        run /= 2;
    }
    const std::int64_t even = group_memory::even_run(r.inner, run, group_memory::vector_of(g.type));
    g.tile.run = static_cast<std::int32_t>(even);
    g.tile.rows = 1;
    trip.split = 1;
    g.tile.threads =
        static_cast<std::int32_t>((std::max)(std::int64_t{64}, group_memory::round_up_to(even * words, 32)));
    g.tile.blocks = 256 / g.tile.threads;
    g.tile.slots = 2;
    // Lines of a few runs that do not fill them are better off side by side (small_tensors).
    const bool short_lines = r.inner < 64 / words && r.inner % run != 0;
    return run <= r.inner && !short_lines && tiles(run) >= least && r.inner % group_memory::vector_of(g.type) == 0 &&
                   why_illegal(g, gpu).empty() &&
                   g.tile.blocks * shared_bytes_of(g) <= gpu.shared_bytes_per_multiprocessor
               ? g
               : chosen;
}

/// How many small tensors (of `tensor` elements for each of a run's) that follow each other are one tile, so that its threads have work and its loads are
/// many: a power of two, or, where a line's parts are such that this leaves more than half of the room, as many as divide them.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t small_tensors(const group_request& r, const gpu_description& gpu,
                                                               const gpu_group& g, std::int64_t tensor) {
    const bool light = g.tile.trips.front().matrix && tensor <= 8;  // see choose_trips
    const std::int64_t room = (light ? 4608 : 2304) / (tensor * g.tile.run * group_memory::words_of(r.type));
    const std::int64_t most = (std::min)(room, r.groups / (2 * (std::max)(1, gpu.multiprocessors)));
    std::int64_t rows = 1;
    while (2 * rows <= most && r.parts_per_line % (2 * rows) == 0) {
        rows *= 2;
    }
    for (std::int64_t count = most; 2 * rows <= most && count > rows; --count) {
        rows = r.parts_per_line % count == 0 ? count : rows;
    }
    return rows;
}

/// Small tensors side by side, one mode of up to twelve by multiply-adds or of up to 24 by the matrix unit in whole steps: threads that take several fibres
/// each, in so few warps that these ask for their next tile; or, of lines of 32 bytes by multiply-adds, tiles of half the size, of which the next two
/// arrive meanwhile. Measured on an H200, 2 to 24 between 2 to 24 floats or doubles: 0.71 to 1.04 of the time of blocks of 128 threads, 0.92 in the mean.
/// Odd lines of floats, which are read one by one, want all warps, and so do 5 lines of 32 bytes; 16 floats gain next to nothing. Fewer tiles than such blocks keep
/// the wider ones.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group side_by_side(const group_request& r, const gpu_description& gpu,
                                                           const gpu_group& several) {
    const gpu_trip& trip = several.tile.trips.front();
    const std::int64_t longest = (std::max)(several.p_of(1), several.q_of(1));
    const std::int64_t line_bytes = several.tile.run * element_bytes(several.type);
    const bool doubles = several.type == dtype::f64;
    if (!(doubles || several.type == dtype::f32) || several.tile.rows < 2 || trip.split != 1 ||
        longest > (trip.matrix ? 24 : 12) || group_memory::is_filled_up(several, trip) ||
        (trip.matrix && !doubles && longest < 24)) {
        return several;
    }
    gpu_group g = several;
    const bool all_warps = !trip.matrix && ((!doubles && g.tile.run % 2 != 0) || (line_bytes == 32 && longest == 5));
    g.tile.threads = all_warps ? 128 : 64;
    g.tile.blocks = 8;
    if (trip.matrix && longest == 8) {  // of these a tile holds twice as much (small_tensors)
        if (line_bytes < 32) {
            return several;
        }
        g.tile.rows /= 2;
    } else if (!trip.matrix && line_bytes == 32 && longest <= 8 && !all_warps) {
        g.tile.rows /= 2;
        g.tile.blocks = 6;
        g.tile.slots = 2;
    }
    const std::int64_t bytes = g.tile.blocks * (shared_bytes_of(g) + 1024);
    const bool fills = r.groups / g.tile.rows >= std::int64_t{g.tile.blocks} * (std::max)(1, gpu.multiprocessors);
    return fills && why_illegal(g, gpu).empty() && bytes <= gpu.shared_bytes_per_multiprocessor ? g : several;
}

/// The formulas' choice by what a tile holds.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> choose_by_size(const group_request& r,
                                                                            const gpu_description& gpu) {
    const std::int64_t words = group_memory::words_of(r.type);
    std::int64_t tile = 1;
    for (std::size_t i = 0; i < r.p.size(); ++i) {
        tile *= (std::max)(r.p[i], r.q[i]);
        if ((std::max)(r.p[i], r.q[i]) > 512 || tile > (std::int64_t{1} << 18)) {
            return std::nullopt;
        }
    }
    gpu_group g = without_tile(r);
    const std::int64_t multiprocessors = (std::max)(1, gpu.multiprocessors);
    if (r.outer) {
        if (tile > (std::int64_t{1} << 16)) {
            return std::nullopt;
        }
        // Runs of at least a sector; as long as a cache line where the tile fits; longer for small groups, as long as every
        // multiprocessor still gets two tiles. With few tensors the runs are what is divided among the multiprocessors.
        const std::int64_t sector = (std::max)(std::int64_t{2}, std::int64_t{32} / element_bytes(r.type));
        const auto tiles = [&](std::int64_t run) { return r.groups * ((r.inner + run - 1) / run); };
        std::int64_t run = 2;
        while (run < 128 / element_bytes(r.type) && run < r.inner) {
            run *= 2;
        }
        while (run > sector && tiles(run) < 2 * multiprocessors) {
            run /= 2;
        }
        while (run < r.inner && run < 128 && tile * run * words * 2 <= 4096 && tiles(2 * run) >= 2 * multiprocessors) {
            run *= 2;
        }
        for (; run >= 2 && (run >= sector || run >= r.inner); run /= 2) {
            // A short line of one mode is whole: several of them are one tile. Few tiles gain nothing; of 16-bit elements nothing of this
            // was measured.
            const bool whole = g.modes() == 1 && r.inner <= run && tile * r.inner * words <= 1152;
            const std::int64_t even = group_memory::even_run(r.inner, run, group_memory::vector_of(r.type));
            const bool few = tiles(run) < 2 * multiprocessors;
            g.tile.run = static_cast<std::int32_t>(few || is_widened(r.type) ? run : whole ? r.inner : even);
            g.tile.rows = 1;
            if (!complete(r, gpu, g)) {
                continue;
            }
            gpu_group several = g;
            several.tile.rows = static_cast<std::int32_t>(g.tile.run == r.inner ? small_tensors(r, gpu, g, tile) : 1);
            return several.tile.rows > 1 && complete(r, gpu, several)
                       ? one_round_each(r, gpu, side_by_side(r, gpu, several))
                       : one_round_each(r, gpu, g);
        }
        return std::nullopt;  // runs below a sector waste more than another pass costs
    }
    std::int64_t factor_words = 0;
    for (std::size_t i = 0; i < r.p.size(); ++i) {
        factor_words += r.p[i] * r.q[i] * words;
    }
    // Long factors fill shared memory whatever the rows, and are read once for all of them.
    // Of complex ones the unit's warps take 16 or 32 fibres each.
    const bool few_modes = r.p.size() <= 2;
    const std::int64_t longest = *std::ranges::max_element(r.p);
    const std::int64_t usual = takes_pairs(g)                                        ? 4096
                               : !few_modes || (is_complex(r.type) && longest >= 64) ? 8192
                               : is_complex(r.type)                                  ? 4096
                                                                                     : 2304;
    const std::int64_t enough_words = (std::max)(factor_words / 8, usual);
    std::int64_t rows = 1;
    while (rows < 256 && tile * rows * 2 * words <= enough_words && r.groups / (2 * rows) >= 2 * multiprocessors &&
           (r.parts_per_line == 1 || r.parts_per_line % (2 * rows) == 0)) {
        rows *= 2;
    }
    for (; rows >= 1; rows /= 2) {
        g.tile.rows = static_cast<std::int32_t>(rows);
        if (complete(r, gpu, g) &&
            (rows == 1 || 3 * (shared_bytes_of(g) - 4 * factor_words) <= gpu.shared_bytes_per_block)) {
            more_rows(r, gpu, g);
            if (rows > 1 || g.tile.blocks > 1 || g.tile.slots > 0 || gpu.cluster_blocks < 2 || r.p.size() < 3) {
                return g;
            }
            break;
        }
    }
    // A row that one block cannot hold, or only alone: the blocks of a cluster hold a part each, two or more of them on a
    // multiprocessor.
    const std::optional<gpu_group> alone = rows >= 1 ? std::optional(g) : std::nullopt;
    const bool first_last = g.is_square() || (!r.order.empty() && r.order.back() == 1);
    for (std::int32_t blocks = 2; first_last && blocks <= (std::min)(gpu.cluster_blocks, portable_cluster_blocks);
         blocks *= 2) {
        gpu_group shared = without_tile(r);
        shared.tile.cluster = blocks;
        if (complete(r, gpu, shared) && shared.tile.blocks >= 2) {
            return shared;
        }
    }
    return alone;
}

/// The formulas' choice; of multiply-adds of one mode after the other, and tiles enough, the one that leaves the fewest threads without work.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> choose(const group_request& r,
                                                                    const gpu_description& gpu) {
    std::optional<gpu_group> g = choose_by_size(r, gpu);
    if (g && multiply_adds::knows(*g)) {
        const std::int64_t tiles = g->outer ? r.groups * ((r.inner + g->tile.run - 1) / g->tile.run)
                                            : (r.groups + g->tile.rows - 1) / g->tile.rows;
        if (tiles > 2 * (std::max)(1, gpu.multiprocessors)) {
            g = multiply_adds::best_tile(r, gpu, *g);
        }
    }
    return g;
}

/// A single mode whose factor no block holds: the fewest slices of its new index, each by a launch of its own, that leave room for 32 fibres and
/// more, which share each read of the factor (measured: 128 complex doubles 5.5 and 10 with 16 and 8, 4.3 and 4.5 times a copy with 32).
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_group> choose_slices(const group_request& r,
                                                                           const gpu_description& gpu) {
    constexpr std::int32_t enough = 32;
    std::optional<gpu_group> best;
    const auto fibres = [](gpu_group& g) -> std::int32_t& { return g.outer ? g.tile.run : g.tile.rows; };
    for (const std::int64_t slices : {2, 4, 8, 16}) {
        group_request slice = r;
        slice.q.front() /= slices;
        std::optional<gpu_group> g = r.q.front() % slices == 0 ? choose(slice, gpu) : std::nullopt;
        if (!g || g->tile.slices != 1 || g->tile.cluster != 1 || g->tile.trips.size() != 1 ||
            !g->tile.trips.front().matrix) {
            continue;
        }
        const std::int64_t most = r.outer ? r.inner : r.groups;
        for (gpu_group more = *g; fibres(more) < 2 * enough && 2 * fibres(more) <= most; *g = more) {
            fibres(more) *= 2;
            if (!why_illegal(more, gpu).empty()) {
                break;
            }
        }
        gpu_group together = *g;  // by warpgroups, where they take it
        together.tile.trips.front().warpgroup = true;
        together.tile.trips.front().split =
            static_cast<std::int32_t>((std::max)(std::int64_t{1}, slice.q.front() / 64));
        g = accumulator_of(g->type) == dtype::f32 && why_illegal(together, gpu).empty() ? together : *g;
        g->tile.blocks = static_cast<std::int32_t>(std::clamp<std::int64_t>(
            gpu.shared_bytes_per_multiprocessor / (shared_bytes_of(*g) + 1024), 1, g->tile.blocks));
        g->q.front() = static_cast<std::int32_t>(r.q.front());
        g->tile.slices = static_cast<std::int32_t>(slices);
        if (why_illegal(*g, gpu).empty() && (!best || fibres(*g) > fibres(*best))) {
            best = *g;
            if (fibres(*best) >= enough) {
                break;
            }
        }
    }
    return best;
}

}  // namespace tile_formula

/// The table's choice, else the formulas'.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<chosen_group> any_group(const group_request& r,
                                                                          const gpu_description& gpu) {
    if (std::optional<chosen_group> chosen = measured_group(r, gpu)) {
        return chosen;
    }
    if (std::optional<gpu_group> g = tile_formula::choose(r, gpu)) {
        return chosen_group{std::move(*g), 0};
    }
    if (r.p.size() == 1 && r.one_part && !r.may_alias && r.may_use_unit) {
        if (std::optional<gpu_group> g = tile_formula::choose_slices(r, gpu)) {
            return chosen_group{std::move(*g), 0};
        }
    }
    return std::nullopt;
}

/// The fused kernels of the core set for a compute capability: powers of the common sizes, for many rows, without clusters. Made
/// for the first capability of a family: code for 8.0 serves 8.x, PTX for 9.0 everything newer. Before 8.0 there are none.
OTIMES_ON_DEMAND OTIMES_COLD inline const std::vector<gpu_group>& core_groups(std::int32_t capability) {
    const auto make = [](std::int32_t first) {
        gpu_description gpu = gpu_of_capability(first);
        gpu.cluster_blocks = 1;
        struct size {
            std::int64_t extent;
            std::vector<std::size_t> counts;
        };
        std::vector<gpu_group> groups;
        for (const dtype type : {dtype::f32, dtype::f64}) {
            for (const size& s : {size{2, {1, 2, 3, 6}}, size{4, {1, 2, 3}}, size{8, {1, 2, 3}}, size{16, {1, 2, 3}},
                                  size{32, {1, 2}}, size{64, {1, 2}}}) {
                for (const std::size_t count : s.counts) {
                    for (const bool outer : {false, true}) {
                        group_request r;
                        r.outer = outer;
                        r.type = type;
                        r.p.assign(count, s.extent);
                        r.q = r.p;
                        r.groups = 100000;
                        r.inner = outer ? 32 : 1;
                        if (std::optional<chosen_group> chosen = any_group(r, gpu)) {
                            groups.push_back(std::move(chosen->group));
                        }
                    }
                }
            }
        }
        return groups;
    };
    static const std::vector<gpu_group> none;
    static const std::vector<gpu_group> ampere = make(80);
    static const std::vector<gpu_group> hopper = make(90);
    return capability >= 90 ? hopper : capability >= 80 ? ampere : none;
}

/// The group of the core set for a request, where the GPU can run it.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<chosen_group> core_group(const group_request& r,
                                                                           const gpu_description& gpu) {
    const gpu_group wanted = without_tile(r);  // single products are not among them
    for (const gpu_group& g : core_groups(gpu.compute_capability)) {
        if (g.outer == wanted.outer && g.type == wanted.type && g.p == wanted.p && g.q == wanted.q && may_serve(g, r) &&
            why_illegal(g, gpu).empty()) {
            return chosen_group{g, 0};
        }
    }
    return std::nullopt;
}

/// Chooses tile, threads and trips for a GPU: the table where it knows the group, else the formulas; nothing when no tile fits
/// or the kernels do not know the case.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<chosen_group> choose_group(const group_request& r,
                                                                             const gpu_description& gpu) {
    if (r.p.empty() || static_cast<std::int64_t>(r.p.size()) > most_group_modes || r.type == dtype::other ||
        r.outer != (r.inner > 1)) {
        return std::nullopt;
    }
    if (!gpu.compiles) {
        return core_group(r, gpu);
    }
    return any_group(r, gpu);
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
#include "fused_group.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace otimes::backend {

namespace {

constexpr std::int64_t most_modes = 12;
constexpr std::int64_t register_words = 64;  ///< of a thread's fibres in one trip

int words_of(dtype type) { return type == dtype::f32 ? 1 : 2; }

std::int64_t product(const std::vector<int>& extents) {
    std::int64_t count = 1;
    for (const int e : extents) {
        count *= e;
    }
    return count;
}

/// Shared memory of a group, the tile's padding estimated from above (an eighth).
std::int64_t shared_bytes_estimate(const fused_group& g) {
    const std::int64_t vector = g.type == dtype::f32 ? 4 : 2;
    std::int64_t tile = static_cast<std::int64_t>(g.rows) * g.run;
    std::int64_t factors = 0;
    for (std::size_t i = 0; i < g.p.size(); ++i) {
        tile *= std::max(g.p[i], g.q[i]);
        const bool split_parts = g.type == dtype::f32 && g.p[i] * g.q[i] <= 4096;
        factors +=
            static_cast<std::int64_t>(g.p[i]) * ((g.q[i] + vector - 1) / vector * vector) * (split_parts ? 2 : 1);
    }
    const std::int64_t parts = g.slots * (tile + tile / 8) / std::max(1, g.segments);
    return (factors + tile + tile / 8 + parts + 64) * 4 * words_of(g.type);
}

/// Extents that a thread may hold together: what was measured to gain on an H200 (bench/gpu/plans.txt). With few tiles the
/// threads are idle anyway, and short trips finish sooner.
bool may_hold(const fused_group& g, std::int64_t held, std::int64_t extent, bool few_tiles, std::int64_t tile_words) {
    const std::int64_t together = held * extent;
    if (few_tiles) {
        return together <= 10;
    }
    if (g.type == dtype::f64) {
        return together <= 27 || (extent == 4 && together <= 64 && tile_words >= 16384);
    }
    return together <= 36 || (extent == 4 && together <= 64) || (together <= 64 && tile_words >= 16384);
}

/// The trips: neighbouring modes of equal square extents together while a thread's registers hold them; the rest one by
/// one in the order asked for. Nothing when a mode fits no trip. `most_held` receives the words of a thread's fibres.
bool choose_trips(const fused_request& request, bool few_tiles, std::int64_t tile_words, fused_group& g,
                  std::int64_t& most_held) {
    const int modes = static_cast<int>(g.p.size());
    const int words = words_of(g.type);
    const bool all_square = g.p == g.q;
    const auto extent_p = [&](int level) { return g.p[static_cast<std::size_t>(level - 1)]; };
    const auto extent_q = [&](int level) { return g.q[static_cast<std::size_t>(level - 1)]; };
    std::vector<int> order = request.order;
    if (all_square) {
        order.clear();
        for (int level = modes; level >= 1; --level) {
            order.push_back(level);
        }
    }
    most_held = 0;
    std::vector<bool> replaced(static_cast<std::size_t>(modes) + 1, false);
    for (std::size_t at = 0; at < order.size(); ++at) {
        const int level = order[at];
        fused_trip trip;
        trip.first = level;
        std::int64_t fibres = static_cast<std::int64_t>(g.rows) * g.run;  // of the tile at this moment
        std::int64_t below = g.run;
        for (int l = 1; l <= modes; ++l) {
            const int now = replaced[static_cast<std::size_t>(l)] ? extent_q(l) : extent_p(l);
            fibres *= l == level ? 1 : now;
            below *= l > level ? now : 1;
        }
        // A lane of the matrix unit takes neighbouring fibres by one access, so the contiguous stretch under them must be
        // whole accesses.
        const int lane_elements = g.type == dtype::f32 ? 4 : 2;
        const int stretch = g.run > 1                                   ? g.run
                            : replaced[static_cast<std::size_t>(modes)] ? extent_q(modes)
                                                                        : extent_p(modes);
        const bool wide_enough =
            extent_p(level) % 8 == 0 && extent_q(level) % 8 == 0 && (below == 1 || stretch % lane_elements == 0);
        const int larger = std::max(extent_p(level), extent_q(level));
        if (request.matrix[static_cast<std::size_t>(level - 1)] && wide_enough) {
            trip.matrix = true;
            most_held = std::max<std::int64_t>(most_held, register_words);
            const int columns = g.type == dtype::f32 ? (g.threads >= 256 ? 32 : 64) : 16;  // of a warp at a time
            while (extent_q(level) / trip.split > columns && trip.split < 8 &&
                   extent_q(level) % (16 * trip.split) == 0 && g.threads / 32 % (2 * trip.split) == 0) {
                trip.split *= 2;
            }
        } else {
            std::int64_t held = larger;
            while (all_square && at + 1 < order.size() && extent_p(trip.first - 1) == extent_q(trip.first - 1) &&
                   !(request.matrix[static_cast<std::size_t>(trip.first - 2)] && extent_p(trip.first - 1) % 8 == 0) &&
                   may_hold(g, held, extent_p(trip.first - 1), few_tiles, tile_words)) {
                held *= extent_p(trip.first - 1);
                --trip.first;
                ++trip.count;
                ++at;
            }
            if (trip.count == 1 && (held * words > register_words || (few_tiles && held >= 16))) {
                // Long fibres: several threads share one, so that each keeps few sums and all have work.
                while (trip.split < 16 && trip.split * 2 <= extent_q(level) && g.threads % (trip.split * 2) == 0 &&
                       ((extent_q(level) + trip.split - 1) / trip.split * words > 32 ||
                        fibres * trip.split * 2 <= g.threads)) {
                    trip.split *= 2;
                }
                if ((extent_q(level) + trip.split - 1) / trip.split * words > register_words) {
                    return false;
                }
                held = trip.split > 1 ? (extent_q(level) + trip.split - 1) / trip.split : held;
                if (trip.split == 1 && held * words > register_words) {
                    held = extent_q(level);
                }
            }
            most_held = std::max(most_held, held * words);
        }
        for (int l = trip.first; l < trip.first + trip.count; ++l) {
            replaced[static_cast<std::size_t>(l)] = true;
        }
        g.trips.push_back(trip);
    }
    return true;
}

}  // namespace

std::int64_t fused_group::count_p() const { return product(p); }
std::int64_t fused_group::count_q() const { return product(q); }

std::string fused_group::type_expression() const {
    const auto list = [](const std::vector<int>& values) {
        std::string text = "otimes::kernels::extents<";
        for (std::size_t i = 0; i < values.size(); ++i) {
            text += (i == 0 ? "" : ",") + std::to_string(values[i]);
        }
        return text + ">";
    };
    std::string text = std::string("otimes::kernels::mode_group<") + (type == dtype::f32 ? "float" : "double");
    for (const int value : {rows, run, threads, blocks, segments, slots, cluster}) {
        text += "," + std::to_string(value);
    }
    text += "," + list(p) + "," + list(q) + ",otimes::kernels::trips<";
    for (std::size_t i = 0; i < trips.size(); ++i) {
        const fused_trip& t = trips[i];
        text += (i == 0 ? "otimes::kernels::trip<" : ",otimes::kernels::trip<") + std::to_string(t.first) + "," +
                std::to_string(t.count) + "," + (t.matrix ? "1" : "0") + "," + std::to_string(t.split) + ">";
    }
    return text + ">>";
}

std::optional<fused_group> choose_group(const fused_request& request, const gpu_description& gpu) {
    const auto modes = static_cast<std::int64_t>(request.p.size());
    if (modes == 0 || modes > most_modes || (request.type != dtype::f32 && request.type != dtype::f64) ||
        (request.outer && request.inner < 2)) {
        return std::nullopt;
    }
    const int words = words_of(request.type);
    fused_group g;
    g.outer = request.outer;
    g.type = request.type;
    std::int64_t tile = 1;
    for (std::size_t i = 0; i < request.p.size(); ++i) {
        const std::int64_t larger = std::max(request.p[i], request.q[i]);
        if (larger > 512 || tile * larger > (std::int64_t{1} << 16)) {
            return std::nullopt;
        }
        tile *= larger;
        g.p.push_back(static_cast<int>(request.p[i]));
        g.q.push_back(static_cast<int>(request.q[i]));
    }
    const std::int64_t capacity = gpu.shared_bytes_per_block;
    const auto fits = [&](const fused_group& candidate, std::int64_t limit) {
        return shared_bytes_estimate(candidate) <= limit;
    };
    const std::int64_t many = 2ll * std::max(1, gpu.multiprocessors);
    if (g.outer) {
        const int sector = 8 / words;
        g.run = 2;
        while (g.run < 32 / words && g.run < request.inner) {
            g.run *= 2;
        }
        while (g.run > 2 && !fits(g, capacity)) {
            g.run /= 2;
        }
        if (!fits(g, capacity) || (g.run < sector && g.run < request.inner)) {
            return std::nullopt;  // runs below a sector waste more than another pass costs
        }
        // Small groups take longer runs: more work between two barriers, while every multiprocessor still gets two tiles.
        while (g.run < request.inner && g.run < 128 && tile * g.run * words * 2 <= 4096 &&
               request.tiles_of_one * (request.inner / (2 * g.run)) >= many) {
            g.run *= 2;
        }
    } else {
        if (!fits(g, capacity)) {
            return std::nullopt;
        }
        const std::int64_t enough_words = modes <= 2 ? 2304 : 8192;
        while (g.rows < 256 && tile * g.rows * 2 * words <= enough_words &&
               request.tiles_of_one / (2 * g.rows) >= many) {
            fused_group larger = g;
            larger.rows *= 2;
            if (!fits(larger, capacity / 3) ||
                (request.parts_per_line > 1 && request.parts_per_line % larger.rows != 0)) {
                break;
            }
            g = larger;
        }
    }
    const std::int64_t tile_words = tile * g.rows * g.run * words;
    const std::int64_t tiles = g.outer ? request.tiles_of_one * ((request.inner + g.run - 1) / g.run)
                                       : (request.tiles_of_one + g.rows - 1) / g.rows;
    const bool few_tiles = tiles <= std::max(1, gpu.multiprocessors);
    const bool large_matrix = std::ranges::any_of(request.matrix, [](bool m) { return m; }) && tile_words >= 4096 &&
                              *std::max_element(g.q.begin(), g.q.end()) >= 64;
    g.threads = tile_words <= 128                    ? 64
                : few_tiles && tile_words > 2048     ? 256
                : large_matrix || tile_words > 16384 ? 256
                                                     : 128;
    std::int64_t held = 0;
    if (!choose_trips(request, few_tiles, tile_words, g, held)) {
        return std::nullopt;
    }
    const auto blocks_of = [&](const fused_group& candidate) {
        const std::int64_t registers = held > 32 ? 128 : 64;  // of a thread
        const std::int64_t by_memory = gpu.shared_bytes_per_multiprocessor / (shared_bytes_estimate(candidate) + 1024);
        const std::int64_t by_registers = gpu.registers_per_multiprocessor / (candidate.threads * registers);
        return static_cast<int>(std::clamp<std::int64_t>(std::min(by_memory, by_registers), 1, 16));
    };
    g.blocks = blocks_of(g);
    // Where so few blocks share a multiprocessor that they cannot hide each other's loads, the parts of the next tile
    // arrive while one is worked on.
    const fused_trip& first_trip = g.trips.front();
    const bool heavy =
        first_trip.matrix && g.p[static_cast<std::size_t>(first_trip.first - 1)] >= 64;  // hides loads itself
    if (!g.outer && g.rows == 1 && !few_tiles && !heavy && tile_words >= 16384 && first_trip.first > 1) {
        for (const auto& [segments, slots] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{2, 1}}) {
            fused_group staged = g;
            staged.segments = segments;
            staged.slots = slots;
            // Several blocks hide each other's loads already: then one part ahead is enough, and no block is given up.
            const bool worth_it = g.blocks == 1 || (slots == 1 && blocks_of(staged) >= 2);
            if (g.p.front() % segments == 0 && fits(staged, capacity) && worth_it) {
                staged.blocks = blocks_of(staged);
                return staged;
            }
        }
    }
    return g;
}

}  // namespace otimes::backend

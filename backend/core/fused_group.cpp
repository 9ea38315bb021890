// SPDX-License-Identifier: MIT
#include "fused_group.hpp"

#include <algorithm>
#include <cstddef>

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
    return (factors + tile + tile / 8 + 64) * 4 * words_of(g.type);
}

/// The trips: neighbouring modes of equal square extents together while a thread's registers hold them; the rest one by
/// one in the order asked for. Nothing when a mode fits no trip.
bool choose_trips(const fused_request& request, fused_group& g) {
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
    std::vector<bool> replaced(static_cast<std::size_t>(modes) + 1, false);
    for (std::size_t at = 0; at < order.size(); ++at) {
        const int level = order[at];
        fused_trip trip;
        trip.first = level;
        // Extents of the tile below this mode at this moment.
        std::int64_t below = g.run;
        for (int l = level + 1; l <= modes; ++l) {
            below *= replaced[static_cast<std::size_t>(l)] ? extent_q(l) : extent_p(l);
        }
        // A lane of the matrix unit takes neighbouring fibres by one access, so the contiguous stretch under them must be
        // whole accesses.
        const int lane_elements = g.type == dtype::f32 ? 4 : 2;
        const int stretch = g.run > 1                                   ? g.run
                            : replaced[static_cast<std::size_t>(modes)] ? extent_q(modes)
                                                                        : extent_p(modes);
        const bool wide_enough =
            extent_p(level) % 8 == 0 && extent_q(level) % 8 == 0 && (below == 1 || stretch % lane_elements == 0);
        if (request.matrix[static_cast<std::size_t>(level - 1)] && wide_enough) {
            trip.matrix = true;
            // A warp's accumulators hold Q / split; more than 64 columns at a time would spill.
            while (extent_q(level) / trip.split > 32 && extent_q(level) % (16 * trip.split) == 0 &&
                   g.threads / 32 % (2 * trip.split) == 0) {
                trip.split *= 2;
            }
        } else if (extent_p(level) == extent_q(level)) {
            std::int64_t held = extent_p(level);
            if (held * words > register_words) {
                trip.split = 4;
            }
            while (all_square && trip.split == 1 && at + 1 < order.size() && order[at + 1] == trip.first - 1 &&
                   extent_p(trip.first - 1) == extent_q(trip.first - 1) &&
                   !(request.matrix[static_cast<std::size_t>(trip.first - 2)] && extent_p(trip.first - 1) % 8 == 0) &&
                   held * extent_p(trip.first - 1) * words <= register_words) {
                held *= extent_p(trip.first - 1);
                --trip.first;
                ++trip.count;
                ++at;
            }
        } else if (std::max(extent_p(level), extent_q(level)) * words > register_words) {
            trip.split = 4;
        }
        if (!trip.matrix && trip.count == 1 && trip.split > 1) {
            while (extent_q(level) / trip.split * words > 32 && trip.split < 32) {
                trip.split *= 2;
            }
            if (g.threads % trip.split != 0) {
                return false;
            }
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
        // Small groups take longer runs: more work between two barriers.
        while (g.run < request.inner && g.run < 256 / words && tile * g.run * words < 8192 && fits(g, capacity / 3)) {
            g.run *= 2;
        }
        if (!fits(g, capacity)) {
            g.run /= 2;
        }
    } else {
        if (!fits(g, capacity)) {
            return std::nullopt;
        }
        const std::int64_t enough = 2ll * std::max(1, gpu.multiprocessors);
        while (g.rows < 64 && tile * g.rows * words < 4096 && request.tiles_of_one / (2 * g.rows) >= enough) {
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
    g.threads = tile_words <= 1024 ? 64 : tile_words <= 3072 ? 128 : tile_words >= 28000 ? 512 : 256;
    if (!choose_trips(request, g)) {
        return std::nullopt;
    }
    // 128 registers a thread: what the trips hold (at most 64 words twice) fits without spilling.
    const std::int64_t by_memory =
        std::max<std::int64_t>(1, gpu.shared_bytes_per_multiprocessor / (shared_bytes_estimate(g) + 1024));
    const std::int64_t by_registers = std::max<std::int64_t>(1, gpu.registers_per_multiprocessor / (g.threads * 128));
    g.blocks = static_cast<int>(std::min<std::int64_t>({by_memory, by_registers, 8}));
    return g;
}

}  // namespace otimes::backend

// SPDX-License-Identifier: MIT
/// @file gpu_group.hpp
/// The fused kernels of kernels/ as values: which modes one launch replaces on chip, with which tile, threads and trips; how
/// much shared memory that takes, whether a GPU can run it, and how the group's elements must lie. mode_group.cuh is the
/// same arithmetic at compile time of the kernel; the loader compares the two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes::planning {

/// Modes that one kernel replaces together at most (kernels/tile_memory.cuh).
inline constexpr std::int64_t most_group_modes = 12;
/// Terms that one kernel adds up at most, and the bytes up to which the factors of all of them stay in shared memory; where the input
/// stays, too.
inline constexpr std::int32_t most_group_terms = 4;
inline constexpr std::int64_t most_staying_factor_bytes = 24576;
inline constexpr std::int64_t most_kept_factor_bytes = 131072;

/// One step of fused_terms: T_to = [T_sum +] [alpha_term *] (T_from with a factor in place of mode `level`). Tile 0 is X at first; to = -1 - o: output o.
struct gpu_move {
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int32_t level = 1;
    std::int32_t factor = 0;  ///< position among the launch's factors
    std::int32_t sum = -1;    ///< -1: nothing is added
    std::int32_t term = -1;   ///< whose scalar; -1: none
    friend bool operator==(const gpu_move&, const gpu_move&) = default;
};

/// What becomes of what a fused kernel's last trip computes: kernels/mode_group.cuh has the same numbers.
enum class gpu_ending : std::uint8_t {
    stored,
    dot,              ///< times what stands in its place in Y, summed; nothing is stored
    squared_norm,     ///< squared and summed
    scaled_along,     ///< times a vector along Y's contiguous stretches, stored
    scaled_across,    ///< times a vector with one element for each such stretch
    dot_of_pieces,    ///< as dot, of a product whose rows arrive in pieces: each adds its part to every element of Y
    squared_distance  ///< its difference from what stands in its place in Y, squared and summed
};

/// True of the endings that multiply by an element of a vector as they store.
OTIMES_ON_DEMAND inline bool scales(gpu_ending e) {
    return e == gpu_ending::scaled_along || e == gpu_ending::scaled_across;
}

/// True of the endings that leave the sums of their blocks and store nothing.
OTIMES_ON_DEMAND inline bool sums_up(gpu_ending e) {
    return e == gpu_ending::dot || e == gpu_ending::squared_norm || e == gpu_ending::dot_of_pieces ||
           e == gpu_ending::squared_distance;
}

/// One instantiation of fused_trailing, fused_outer, fused_sum, fused_terms, fused_scattered, fused_telling or fused_arriving.
struct gpu_group {
    bool outer = false;           ///< fused_outer: strided tiles; else fused_trailing: contiguous rows
    dtype type = dtype::f32;      ///< f16, bf16, f32, f64, c64 or c128
    std::vector<std::int32_t> p;  ///< extents of the group's modes before
    std::vector<std::int32_t> q;  ///< and after
    gpu_tile tile;
    bool sum = false;        ///< fused_sum: the modes' products are added up instead of following each other; trailing
    bool addend = false;     ///< adds to another matrix than it writes
    std::int32_t terms = 1;  ///< products of the same input that are added up, each with factors of its own
    bool kept = false;       ///< of several terms: the input and the sum stay on chip for all of them; trailing
    std::vector<gpu_move> moves;  ///< fused_terms: what is computed instead of one product; trailing
    std::int32_t inputs =
        1;  ///< matrices that follow each other along mode 1 of the input, each with its part of the factor; outer
    gpu_ending ending = gpu_ending::stored;
    bool scattered = false;  ///< fused_scattered: its tiles go to several matrices, in whole lines; trailing
    bool telling = false;    ///< fused_telling: scattered, and the receivers are told of portions
    bool arriving = false;   ///< fused_arriving: its input comes from other GPUs while it runs; outer
    bool single = false;     ///< floats: one TF32 product instead of three
    bool unaligned = false;  ///< Y's rows are not aligned for wide stores: neighbouring threads store neighbours; outer
    friend bool operator==(const gpu_group&, const gpu_group&) = default;

    [[nodiscard]] std::int32_t modes() const { return static_cast<std::int32_t>(p.size()); }
    [[nodiscard]] std::int64_t p_of(std::int32_t level) const { return p[static_cast<std::size_t>(level - 1)]; }
    [[nodiscard]] std::int64_t q_of(std::int32_t level) const { return q[static_cast<std::size_t>(level - 1)]; }
    /// Elements of a group before and after.
    [[nodiscard]] std::int64_t count_p() const { return product(p); }
    [[nodiscard]] std::int64_t count_q() const { return product(q); }
    [[nodiscard]] bool is_square() const { return p == q; }
    /// Of fused_terms: tiles, and what they are written to.
    [[nodiscard]] std::int32_t tiles() const { return most_moved(&gpu_move::to, 1); }
    [[nodiscard]] std::int32_t outputs() const { return most_moved(&gpu_move::to, -1); }
    [[nodiscard]] std::int32_t moved_factors() const { return most_moved(&gpu_move::factor, 1); }
    /// Position of the trip that replaces a level; the number of trips when none does.
    [[nodiscard]] std::size_t trip_of(std::int32_t level) const {
        std::size_t i = 0;
        while (i < tile.trips.size() &&
               (level < tile.trips[i].first || level >= tile.trips[i].first + tile.trips[i].count)) {
            ++i;
        }
        return i;
    }

private:
    [[nodiscard]] std::int32_t most_moved(std::int32_t gpu_move::*member, std::int32_t sign) const {
        std::int32_t most = 0;
        for (const gpu_move& m : moves) {
            most = (std::max)(most, sign > 0 ? m.*member + 1 : -(m.*member));
        }
        return most;
    }
    static std::int64_t product(const std::vector<std::int32_t>& extents) {
        std::int64_t count = 1;
        for (const std::int32_t e : extents) {
            count *= e;
        }
        return count;
    }
};

/// Extents that the matrix unit takes are multiples of this: a complex product is a real one of twice the extents.
OTIMES_ON_DEMAND inline std::int32_t unit_granule(dtype type) { return is_complex(type) ? 4 : 8; }

/// True where a GPU has the matrix unit that the fused kernels use for a type.
OTIMES_ON_DEMAND inline bool has_unit(const gpu_description& gpu, dtype type) {
    return type == dtype::f64 || type == dtype::c128 ? gpu.has_f64_mma_wide : gpu.has_tf32_mma;
}

/// How the indices around and inside a group lie: kernels/fused_trailing.cuh and fused_outer.cuh. Strides in elements.
struct group_place {
    std::int64_t lines = 1;
    std::int64_t parts_per_line = 1;
    std::int64_t x_line = 0;
    std::int64_t y_line = 0;
    std::int64_t inner = 1;  ///< contiguous elements below the group; 1: the group is innermost
    std::int64_t x_inner = 1;
    std::int64_t y_inner = 1;
    friend bool operator==(const group_place&, const group_place&) = default;
    [[nodiscard]] std::int64_t groups() const { return lines * parts_per_line; }
    /// The same place with lines that follow each other without a gap as the parts of one line; @pre outer
    [[nodiscard]] group_place with_lines_joined(std::int64_t count_p, std::int64_t count_q) const {
        group_place joined = *this;
        if (parts_per_line == 1 && x_line == count_p * x_inner && y_line == count_q * y_inner) {
            std::swap(joined.lines, joined.parts_per_line);
        }
        return joined;
    }
    /// Tiles of a launch.
    [[nodiscard]] std::int64_t tiles(const gpu_group& g) const {
        return (groups() + g.tile.rows - 1) / g.tile.rows *
               (g.outer ? (inner + g.tile.run - 1) / g.tile.run : std::int64_t{1});
    }
};

/// What a group must do, before its tile is chosen.
struct group_request {
    bool outer = false;
    dtype type = dtype::f32;
    std::vector<std::int64_t> p;
    std::vector<std::int64_t> q;
    std::vector<std::int32_t> order;  ///< levels (from 1) in the order in which they are best contracted
    bool may_use_unit = true;         ///< the matrix unit is allowed
    bool single = false;              ///< floats: and takes one TF32 product
    std::int64_t groups = 1;          ///< rows (trailing) or tensors (outer) in all
    std::int64_t parts_per_line = 1;  ///< rows of a tile must divide it (trailing: unless it is 1)
    std::int64_t inner = 1;           ///< outer: extent below the group
    bool may_alias = false;  ///< the input may lie where the output goes: no block may write what another reads
    bool one_part = false;   ///< a line is one tensor: where slices of the new index may be written one by one
};

/// The group of a fused pass: extents of its contracted modes (of a tile: one piece of the first), and its tile.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group group_of(const pass& p, dtype type) {
    gpu_group g;
    g.outer = p.kernel == pass_kernel::gpu_outer;
    g.type = type;
    g.tile = p.tile;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        const auto is_here = [k](const sweep& s) { return s.mode == static_cast<std::int32_t>(k); };
        if (std::ranges::any_of(p.sweeps, is_here)) {
            g.p.push_back(static_cast<std::int32_t>(p.modes[k].extent_in));
            g.q.push_back(static_cast<std::int32_t>(p.modes[k].extent_out));
        }
    }
    if (!g.p.empty()) {
        g.p.front() /= p.tile.pieces;
    }
    const auto is_single = [](const sweep& s) { return s.kernel == sweep_kernel::mma_tf32; };
    g.single = type == dtype::f32 && std::ranges::any_of(p.sweeps, is_single);
    return g;
}

// --- shared memory: mode_group.cuh on the host ------------------------------------------------------------------------

namespace group_memory {

OTIMES_ON_DEMAND inline std::int64_t round_up_to(std::int64_t n, std::int64_t granule) {
    return (n + granule - 1) / granule * granule;
}
/// Of an element on chip, where 16 bits are a float.
OTIMES_ON_DEMAND inline std::int64_t bytes_of(dtype type) { return element_bytes(accumulator_of(type)); }
OTIMES_ON_DEMAND inline std::int64_t words_of(dtype type) { return bytes_of(type) / 4; }
OTIMES_ON_DEMAND inline std::int64_t vector_of(dtype type) { return 16 / bytes_of(type); }
/// The length of runs of up to `most` that share lines of `inner` elements: `most`, where that leaves little of them empty (a fifth; of a line that one run
/// holds an eighth), or where each lane of a warp has a fibre anyway; else all equally long, of whole accesses of `vector` elements. A line that one
/// run holds is a run of its own length, unless whole accesses take nearly no more.
constexpr std::int64_t even_run(std::int64_t inner, std::int64_t most, std::int64_t vector) noexcept {
    const std::int64_t count = (inner + most - 1) / most;
    if (count > 1 ? most > 32 || 4 * count * most <= 5 * inner : 20 * most <= 23 * inner) {
        return most;
    }
    const std::int64_t whole = ((inner + count - 1) / count + vector - 1) / vector * vector;
    return count > 1 || 20 * whole <= 23 * inner ? whole : inner;
}

/// True of a trip by the matrix unit on extents that are no multiples of its steps.
OTIMES_ON_DEMAND OTIMES_COLD inline bool is_filled_up(const gpu_group& g, const gpu_trip& t) {
    const std::int64_t granule = unit_granule(g.type);
    return t.matrix && (g.p_of(t.first) % granule != 0 || g.q_of(t.first) % (granule * t.split) != 0);
}

/// Two modes that the matrix unit replaces with registers between them.
OTIMES_ON_DEMAND inline bool is_pair(const gpu_trip& t) { return t.matrix && t.count == 2; }
/// A tile in two of three places, one for each half of mode 1; the last trip refills one of them (mode_group.cuh: rotates).
OTIMES_ON_DEMAND OTIMES_COLD inline bool rotates(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    const auto power = [](std::int64_t n) { return (n & (n - 1)) == 0; };
    const auto one_by_unit = [](const gpu_trip& trip) { return trip.matrix && trip.count == 1; };
    return t.segments == 2 && t.slots == 1 && t.run * words_of(g.type) >= 32 && power(t.run) && t.rows == 1 &&
           t.cluster == 1 && g.terms == 1 && g.inputs == 1 && !is_complex(g.type) && g.is_square() && g.p_of(1) == 32 &&
           std::ranges::all_of(g.p, power) && g.modes() > 1 && static_cast<std::int32_t>(t.trips.size()) == g.modes() &&
           std::ranges::all_of(t.trips, one_by_unit) && t.trips.back().first == 1 && t.trips.back().split == 1;
}
/// The slices of mode 1 of one row, and with the slots some of the next row's, in a ring of places, a warp for each (mode_group.cuh: ring).
OTIMES_ON_DEMAND OTIMES_COLD inline bool is_ring(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    const auto in_registers = [&g](const gpu_trip& trip) {
        std::int64_t n = 1;
        for (std::int32_t l = trip.first; l < trip.first + trip.count && l <= g.modes(); ++l) {
            n *= g.p_of(l);
        }
        return !trip.matrix && trip.split == 1 && n * words_of(g.type) <= 128;
    };
    return !g.outer && t.segments > 1 && t.segments == g.p_of(1) && t.slots > 0 && t.slots <= t.segments &&
           t.trips.size() > 1 && t.trips.front().first == 1 && t.trips.front().count == 1 && t.rows == 1 &&
           t.threads == 32 * t.segments && t.cluster == 1 && t.slices == 1 && t.pieces == 1 && g.terms == 1 &&
           g.inputs == 1 && !g.sum && g.moves.empty() && !g.scattered &&
           (g.type == dtype::f32 || g.type == dtype::f64) && g.is_square() &&
           std::ranges::all_of(t.trips, in_registers);
}
/// Groups with a pair, or that rotate, keep their elements close together and exchange 16-byte pieces instead of padding.
OTIMES_ON_DEMAND OTIMES_COLD inline bool is_swizzled(const gpu_group& g) {
    return std::ranges::any_of(g.tile.trips, is_pair<>) || rotates(g);
}
/// 16-bit elements that a pair on the last modes reads as they stand in the stage.
OTIMES_ON_DEMAND OTIMES_COLD inline bool reads_raw(const gpu_group& g) {
    const gpu_trip& first = g.tile.trips.front();
    return is_widened(g.type) && is_pair(first) && first.first + 1 == g.modes() && g.tile.run == 1;
}
/// The level that the blocks of a cluster share out.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int32_t cut_level(const gpu_group& g) {
    return is_swizzled(g) ? g.tile.trips.back().first : 1;
}

/// New extent of a level in one block: of the last mode one slice.
OTIMES_ON_DEMAND inline std::int64_t q_in_block(const gpu_group& g, std::int32_t level) {
    return g.q_of(level) / (level == g.modes() ? g.tile.slices : 1);
}

OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t allotted(const gpu_group& g, std::int32_t level) {
    if (level == 0) {
        return g.tile.rows;
    }
    if (level > g.modes()) {
        return g.tile.run;
    }
    const std::int64_t larger = (std::max)(g.p_of(level), q_in_block(g, level));
    return is_swizzled(g) && level == cut_level(g) ? larger / g.tile.cluster : larger;
}

/// Elements from one index of a level to the next; padded where threads would meet in one bank.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t stride(const gpu_group& g, std::int32_t level) {
    const std::int64_t words = words_of(g.type);
    const std::int64_t vector = vector_of(g.type);
    if (level > g.modes()) {
        return 1;
    }
    std::int64_t elements = allotted(g, level + 1) * stride(g, level + 1);
    if (allotted(g, level) == 1 || is_swizzled(g)) {
        return elements;
    }
    const bool inner_matrix = level >= 1 && elements > 1 && g.tile.trips[g.trip_of(level)].matrix;
    const bool last_matrix =
        level < g.modes() && g.tile.run == 1 && level + 1 == g.modes() && g.tile.trips[g.trip_of(g.modes())].matrix;
    if (inner_matrix || last_matrix) {
        while ((elements * words) % 32 != 8 && (elements * words) % 32 != 24) {
            elements += elements % vector != 0 ? 1 : vector;
        }
        return elements;
    }
    if (level < g.modes()) {
        const gpu_trip& above = g.tile.trips[g.trip_of(level + 1)];
        if (above.first == level + 1 && !above.matrix) {
            std::int64_t below = 1;
            for (std::int32_t l = level + 1 + above.count; l <= g.modes() + 1; ++l) {
                below *= allotted(g, l);
            }
            if (below == 1) {
                if (elements * words >= 32 && (elements * words) % 8 == 0) {
                    elements += (std::max)(std::int64_t{1}, 4 / words);
                }
            } else if (below * words < 32 && below % vector == 0 && 32 % (below * words) == 0 &&
                       elements % vector == 0) {
                while ((elements * words) % 32 != below * words) {
                    elements += vector;
                }
            }
        }
    }
    return elements;
}

/// Entries of a factor's fragments: the unit takes whole steps of eight, as many for each warp that shares a fibre, filled up with zeros.
OTIMES_ON_DEMAND inline std::int64_t unit_entries(const gpu_group& g, std::int32_t level) {
    const std::int64_t granule = unit_granule(g.type);
    return round_up_to(g.p_of(level), granule) *
           round_up_to(g.q_of(level), granule * g.tile.trips[g.trip_of(level)].split);
}

OTIMES_ON_DEMAND inline std::int64_t factor_elements(const gpu_group& g, std::int32_t level) {
    const std::int64_t vector = vector_of(g.type);
    const gpu_trip& trip = g.tile.trips[g.trip_of(level)];
    if (trip.matrix) {
        const std::int64_t entries = unit_entries(g, level);
        const bool last_of_many = g.tile.cluster > portable_cluster_blocks && level == 1;
        if (g.type == dtype::f64 && ((g.tile.pieces > 1 && entries > 8192) || (last_of_many && entries > 2048))) {
            return 0;  // read where it stands
        }
        const bool split = (g.type == dtype::f32 && !g.single) || g.type == dtype::c64;  // into two words
        return entries * (split && (entries <= 4096 || trip.warpgroup) ? 2 : 1);
    }
    // Rows of a factor that threads share by less than an access each are not padded.
    const std::int64_t q = q_in_block(g, level);
    const bool padded = trip.split == 1 || (q + trip.split - 1) / trip.split % vector == 0;
    return round_up_to(g.p_of(level) * (padded ? round_up_to(q, vector) : q), vector);
}

/// The same factors are in shared memory, or read where they stand.
OTIMES_ON_DEMAND OTIMES_COLD inline bool factors_lie_alike(const gpu_group& a, const gpu_group& b) {
    for (std::int32_t level = 1; level <= a.modes(); ++level) {
        if ((factor_elements(a, level) == 0) != (factor_elements(b, level) == 0)) {
            return false;
        }
    }
    return true;
}

}  // namespace group_memory

/// True of a single mode by the matrix unit whose factor no block holds whole: a launch for each slice of the new index, each of which reads all of X.
OTIMES_ON_DEMAND OTIMES_COLD inline bool is_sliced_by_launches(const gpu_tile& t) {
    return t.slices > 1 && t.trips.size() == 1 && t.trips.front().count == 1 && t.trips.front().matrix;
}

/// The group of one launch: of a group that is sliced by launches one slice, else the group.
OTIMES_ON_DEMAND OTIMES_COLD inline gpu_group launched_group(gpu_group g) {
    if (is_sliced_by_launches(g.tile) && g.modes() == 1) {
        g.q.front() /= g.tile.slices;
        g.tile.slices = 1;
    }
    return g;
}

/// Dynamic shared memory of a block, exactly. @pre every level is in one trip.
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t shared_bytes_of(const gpu_group& whole) {
    using namespace group_memory;
    const gpu_group g = launched_group(whole);
    const std::int64_t vector = vector_of(g.type);
    const gpu_tile& t = g.tile;
    std::int64_t factors = 0;
    for (std::int32_t level = 1; level <= g.modes(); ++level) {
        factors += factor_elements(g, level);
    }
    if (g.terms * factors * bytes_of(g.type) <= (g.kept ? most_kept_factor_bytes : most_staying_factor_bytes)) {
        factors *= g.terms;
    }
    const std::int64_t main = (t.cluster == 1 && t.pieces == 1) || is_swizzled(g)
                                  ? round_up_to(t.rows * stride(g, 0), vector)
                                  : round_up_to(g.p_of(1) / t.cluster * stride(g, 1), vector);
    if (g.sum) {
        return (factors + (2 + t.slots) * main) * bytes_of(g.type);
    }
    if (!g.moves.empty()) {
        std::int64_t moved = 0;
        for (std::int32_t f = 0; f < g.moved_factors(); ++f) {
            moved += factor_elements(g, std::ranges::find(g.moves, f, &gpu_move::factor)->level);
        }
        return (moved + (g.tiles() + t.slots) * main) * bytes_of(g.type);
    }
    const std::int64_t slot = is_widened(g.type) ? round_up_to(t.rows * g.count_p() * t.run, 8) / 2  // as in memory
                              : t.segments == 1  ? main
                                                 : round_up_to(g.p_of(1) / t.segments * stride(g, 1), vector);
    // The last trip stores to Y itself when it leaves runs of at least 32 bytes there; alone and staged, it needs no tile.
    const gpu_trip& last = t.trips.back();
    std::int64_t below = t.run;
    for (std::int32_t l = last.first + last.count; l <= g.modes(); ++l) {
        below *= q_in_block(g, l);
    }
    const bool by_unit = last.matrix && !(last.first == g.modes() && t.run == 1 && is_filled_up(g, last));
    const bool direct = !g.scattered && (is_pair(last) ? last.first + 1 == g.modes() && t.run == 1
                                                       : below * element_bytes(g.type) >= 32 || by_unit);
    const bool only_staged = t.slots > 0 && t.trips.size() == 1 && direct && (!is_widened(g.type) || reads_raw(g));
    // A staged trip alone that keeps its factor in registers: the stages take the factor's place.
    const std::int64_t words = words_of(g.type);
    const gpu_trip& first = t.trips.front();
    const bool may_hold = only_staged && first.matrix && !first.warpgroup && first.count == 1 && !is_complex(g.type) &&
                          (words == 2 || (!g.single && unit_entries(g, first.first) <= 4096));
    const std::int64_t held = may_hold ? factor_elements(g, first.first) * words / (32 * first.split) : 0;
    const bool holds_factor =
        held > 0 && held <= (words == 2 ? 128 : 64) && std::int64_t{1} * t.blocks * t.threads * (held + 96) <= 65536;
    const bool flows = only_staged && t.slots > 1 && (holds_factor || t.blocks == 1);
    if (is_ring(g)) {
        const std::int64_t places = t.segments + t.slots;
        return (factors + places * slot) * bytes_of(g.type) + places * 8;
    }
    return (holds_factor ? (std::max)(factors, t.slots * slot)
                         : factors + (only_staged ? 0 : (g.kept ? 2 : 1) * main) + t.slots * slot) *
               bytes_of(g.type) +
           (flows        ? 2 * t.slots * 8
            : rotates(g) ? 2 * 8
                         : 0);
}

/// Most blocks of a group on a multiprocessor, whatever else fits. Of small tensors side by side in blocks of two warps (side_by_side) as many as were
/// measured: as many as a compiler happens to leave registers for may lose a fifth (16 floats between 16: 72 us alone with eight, 87 through the API with what fits).
OTIMES_ON_DEMAND OTIMES_COLD inline std::int64_t most_resident_blocks(const gpu_group& g) {
    const bool two_warps = g.outer && g.modes() == 1 && g.tile.rows > 1 && g.tile.threads == 64 &&
                           (g.type == dtype::f32 || g.type == dtype::f64);
    return two_warps ? g.tile.blocks : (std::numeric_limits<std::int64_t>::max)();
}

/// Why no kernel has a group's type, number of modes and counts.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_counts_illegal(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    if (g.type == dtype::other) {
        return "no fused kernel for this type";
    }
    if (is_widened(g.type) && (g.sum || g.addend || g.terms != 1 || !g.moves.empty() || g.inputs != 1 || g.scattered ||
                               g.ending != gpu_ending::stored || t.segments != 1 || t.slots < 1 || t.slots > 2 ||
                               t.cluster != 1 || t.slices != 1 || t.pieces != 1)) {
        return "half and bfloat16: one product, stored, of tiles that arrive in one stage or two";
    }
    if (g.p.empty() || g.p.size() != g.q.size() || g.modes() > most_group_modes || t.trips.empty()) {
        return "1 to 12 modes";
    }
    if (t.threads < 32 || t.threads > 1024 || t.threads % 32 != 0 || t.rows < 1 || t.run < 1 || t.blocks < 1 ||
        t.segments < 1 || t.slots < 0 || t.cluster < 1 || t.slices < 1 || t.pieces < 1) {
        return "counts out of range";
    }
    return {};
}

/// Why no kernel adds up a group's terms, ends as it does, or takes its tiles in pieces. @pre the counts are right
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_terms_illegal(const gpu_group& g) {
    const gpu_tile& t = g.tile;
    if (g.terms < 1 || g.terms > most_group_terms || g.terms * g.modes() > most_group_modes ||
        (g.terms > 1 && (t.slots != 0 || t.slices != 1))) {
        return "terms: few, and a tile that is loaded where it is worked on";
    }
    if (g.ending != gpu_ending::stored && (g.terms != 1 || g.sum || g.addend || !g.moves.empty() || g.inputs != 1)) {
        return "other endings than a store: one term, to which nothing is added";
    }
    if (g.scattered && (g.outer || g.sum || g.addend || g.terms != 1 || g.inputs != 1 || !g.moves.empty() ||
                        g.ending != gpu_ending::stored || t.cluster != 1 || t.slices != 1)) {
        return "scattered: whole trailing tensors of one product, stored";
    }
    if (t.pieces > 1 &&
        (g.outer || g.sum || g.scattered || g.terms != 1 || g.addend || !g.moves.empty() || t.rows != 1 ||
         t.slots != 0 || t.slices != 1 || t.trips.back().first != 1 || t.trips.back().count != 1)) {
        return "pieces: whole trailing tensors, the mode that is cut last and alone";
    }
    if (g.kept && (g.terms == 1 || g.outer || t.cluster != 1)) {
        return "kept: several terms of whole trailing tensors";
    }
    return {};
}

/// Why fused_sum cannot add up the products of a group's modes; empty: it can, or they follow each other.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_sum_illegal(const gpu_group& g) {
    if (!g.sum) {
        return {};
    }
    const gpu_tile& t = g.tile;
    if (g.outer || !g.is_square() || g.terms != 1 || g.modes() > most_group_terms || is_complex(g.type) ||
        t.segments != 1 || t.slots > 1 || t.slices != 1 || static_cast<std::int32_t>(t.trips.size()) != g.modes()) {
        return "a sum of mode products: square, one mode a trip, few of them";
    }
    for (std::size_t i = 0; i < t.trips.size(); ++i) {
        const gpu_trip& trip = t.trips[i];
        if (trip.count != 1 || trip.first != g.modes() - static_cast<std::int32_t>(i) ||
            (!trip.matrix && (trip.split != 1 || t.cluster != 1)) ||
            // Four floats or two doubles below a mode are one access of the unit.
            (trip.matrix && trip.first < g.modes() && g.p_of(g.modes()) % group_memory::vector_of(g.type) != 0)) {
            return "a sum of mode products: innermost first; in a cluster all by the matrix unit";
        }
    }
    return {};
}

/// Why fused_terms cannot make a group's moves; empty: it can, or there are none.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_moves_illegal(const gpu_group& g) {
    if (g.moves.empty()) {
        return {};
    }
    const gpu_tile& t = g.tile;
    if (g.outer || g.sum || !g.is_square() || g.terms != 1 || g.modes() < 2 || is_complex(g.type) || t.segments != 1 ||
        t.slots > 1 || t.cluster != 1 || t.slices != 1 || static_cast<std::int32_t>(t.trips.size()) != g.modes() ||
        g.moved_factors() > most_group_modes || g.outputs() < 1 || g.outputs() > 2 || (g.outputs() > 1 && g.addend)) {
        return "moves: square trailing modes, one a trip, to one output or two";
    }
    for (const gpu_move& m : g.moves) {
        const auto level_is = [&m](const gpu_trip& trip) { return trip.first == m.level && trip.count == 1; };
        const auto trip = std::ranges::find_if(t.trips, level_is);
        if (trip == t.trips.end() || m.from < 0 || m.from == m.sum || m.sum >= g.tiles() ||
            m.term >= most_group_terms || (m.to >= 0 && m.sum >= 0 && m.sum != m.to) ||
            (!trip->matrix && (trip->split != 1 || (m.to < 0 && (g.outputs() > 1 || &m != &g.moves.back())))) ||
            (trip->matrix &&
             (m.level == g.modes() ? m.to < 0 : g.p_of(g.modes()) % group_memory::vector_of(g.type) != 0))) {
            return "a move that the kernel does not know";
        }
    }
    return {};
}

/// True where the warp's unit takes a mode of any extents, in fragments that are filled up with zeros.
OTIMES_ON_DEMAND OTIMES_COLD inline bool fills_up(const gpu_group& g, const gpu_trip& trip) {
    return trip.count == 1 && !trip.warpgroup && !is_complex(g.type) && g.inputs == 1 && g.tile.cluster == 1 &&
           g.tile.pieces == 1 && !g.sum && g.moves.empty();
}

/// Why a GPU's matrix unit cannot do a trip of existing levels.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_unit_illegal(const gpu_group& g, const gpu_trip& trip,
                                                                 const gpu_description& gpu) {
    const gpu_tile& t = g.tile;
    const bool single = accumulator_of(g.type) == dtype::f32;
    const std::int32_t granule = unit_granule(g.type);
    const bool fills = fills_up(g, trip);
    for (std::int32_t l = trip.first; l < trip.first + trip.count; ++l) {
        const bool in_steps = g.p_of(l) % granule == 0 && g.q_of(l) % (granule * trip.split) == 0;
        if (trip.count > 2 || !(in_steps || fills) || t.threads / 32 % trip.split != 0) {
            return "the matrix unit takes one mode or a pair, multiples of 8 (complex: one, multiples of 4), "
                   "or one mode of any extents of one matrix in one block";
        }
    }
    if (is_complex(g.type) && (trip.count > 1 || trip.warpgroup || t.cluster > 1 || t.pieces > 1)) {
        return "the matrix unit over complex scalars: one mode of a tile in one block";
    }
    if (trip.warpgroup) {
        const std::int64_t q = g.q_of(trip.first) / trip.split;
        if (!single || trip.count != 1 || (t.segments != 1 && !group_memory::rotates(g)) ||
            t.threads / 32 % (4 * trip.split) != 0 || (q != 32 && q != 64)) {
            return "a warpgroup takes 32 or 64 new indices of fibres of floats or 16-bit elements";
        }
        if (!gpu.has_warpgroup_mma) {
            return "this GPU has no warpgroup unit";
        }
    }
    if (group_memory::is_pair(trip)) {
        const std::int64_t a = g.p_of(trip.first);
        const std::int64_t b = g.p_of(trip.first + 1);
        const bool eights =
            b == 8 && (a == 8 || (!single && a % 16 == 0)) && (!single || g.single || is_widened(g.type));
        if (trip.split != 1 || !(eights || (a % 16 == 0 && b % 16 == 0 && a <= 32 && b <= 32))) {
            return "a pair trip takes extents of 16 and 32, of doubles and by single products also 8";
        }
    }
    return has_unit(gpu, g.type) ? std::string() : "this GPU has no such matrix unit";
}

/// Why a group's trips are none that replace every level once.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_trips_illegal(const gpu_group& g, const gpu_description& gpu) {
    std::vector<std::int32_t> covered(g.p.size() + 1, 0);
    for (const gpu_trip& trip : g.tile.trips) {
        if (trip.first < 1 || trip.count < 1 || trip.first + trip.count - 1 > g.modes() || trip.split < 1 ||
            (trip.count > 1 && trip.split > 1)) {
            return "a trip names levels that do not exist";
        }
        for (std::int32_t l = trip.first; l < trip.first + trip.count; ++l) {
            ++covered[static_cast<std::size_t>(l)];
        }
        if (const std::string why = trip.matrix ? why_unit_illegal(g, trip, gpu) : std::string(); !why.empty()) {
            return why;
        }
    }
    for (std::size_t l = 1; l < covered.size(); ++l) {
        if (covered[l] != 1) {
            return "every level belongs to one trip";
        }
    }
    return {};
}

/// Why a tile cannot be kept in 16-byte pieces, a ring or parts; empty: it can, or is kept whole. @pre every level belongs to one trip
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_parts_illegal(const gpu_group& g, const gpu_description& gpu) {
    const gpu_tile& t = g.tile;
    if (group_memory::is_swizzled(g)) {
        const auto power = [](std::int64_t n) { return (n & (n - 1)) == 0; };
        if (!g.is_square() || !std::ranges::all_of(g.p, power) || !power(t.run) ||
            (t.segments != 1 && !group_memory::rotates(g)) || !std::ranges::all_of(t.trips, &gpu_trip::matrix)) {
            return "a pair wants square modes, powers of two, all by the matrix unit";
        }
        if (g.outer && t.rows != 1) {
            return "outer groups with a pair have one row";
        }
    }
    if (group_memory::is_ring(g)) {
        const gpu_trip& last = t.trips.back();
        std::int64_t below = 1;
        for (std::int32_t l = last.first + last.count; l <= g.modes(); ++l) {
            below *= g.q_of(l);
        }
        if (!gpu.has_bulk_copy || t.threads * t.blocks > 256 || below * element_bytes(g.type) < 32) {
            return "a ring: a block alone, of few threads, on a GPU whose copies open barriers, that stores runs of at "
                   "least 32 bytes";
        }
    } else if (t.segments > 1 &&
               (t.slots == 0 || t.rows != 1 || g.p_of(1) % t.segments != 0 || t.trips.front().first == 1)) {
        return "parts of a tile are cut along mode 1, which the first trip leaves alone";
    }
    return {};
}

/// Why several blocks cannot share a tile, by slices, in a cluster or by pieces; empty: they can, or each has its own. @pre every level belongs to one
/// trip
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_shares_illegal(const gpu_group& g, const gpu_description& gpu) {
    const gpu_tile& t = g.tile;
    if (t.slices > 1) {
        const std::size_t last = g.trip_of(g.modes());
        if (g.outer || t.slots != 0 || t.cluster != 1 || g.q.back() % t.slices != 0 ||
            std::ranges::any_of(t.trips, &gpu_trip::matrix) || t.trips[last].count != 1) {
            return "slices: a trailing group by multiply-adds, its last mode in a trip of its own";
        }
    }
    if (t.cluster == 1 && t.pieces == 1) {
        return {};
    }
    if (t.cluster > gpu.cluster_blocks) {
        return "this GPU has no clusters of this size";
    }
    const gpu_trip& last = t.trips.back();
    if (t.rows != 1 || t.slots != 0 || g.p_of(group_memory::cut_level(g)) % t.cluster != 0 ||
        (group_memory::is_pair(last) ? last.first + 1 != g.modes() || t.run != 1
                                     : last.first != 1 || last.count != 1)) {
        return "the last trip of a cluster replaces mode 1 alone, or the last two modes as a pair";
    }
    std::int64_t below = t.run;
    for (std::int32_t l = 2; l <= g.modes(); ++l) {
        below *= g.q_of(l);
    }
    if (!group_memory::is_pair(last) && below * element_bytes(g.type) < 32) {
        return "a cluster stores runs of at least 32 bytes";
    }
    return {};
}

/// Why the kernels cannot run a group on any GPU, whatever its trips are.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_kind_illegal(const gpu_group& g) {
    for (const auto why : {why_counts_illegal<>, why_terms_illegal<>, why_sum_illegal<>, why_moves_illegal<>}) {
        if (std::string text = why(g); !text.empty()) {
            return text;
        }
    }
    const gpu_tile& t = g.tile;
    if (g.inputs != 1 && (g.inputs != 2 || !g.outer || g.modes() != 1 || g.p_of(1) % 16 != 0 || g.terms != 1 ||
                          t.rows != 1 || g.addend || t.segments != 1 || t.cluster != 1 || !t.trips.front().matrix)) {
        return "two inputs: one outer mode by the matrix unit";
    }
    if (g.outer ? t.run < 2 : t.run != 1) {
        return "outer groups have runs, trailing ones none";
    }
    return {};
}

/// Why the kernels or a GPU cannot run a group; empty: they can. The first reason, in an order in which each question may rely on those before it.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string why_illegal(const gpu_group& whole, const gpu_description& gpu) {
    if (is_sliced_by_launches(whole.tile) &&
        (whole.modes() != 1 || whole.q_of(1) % whole.tile.slices != 0 || whole.ending != gpu_ending::stored ||
         whole.scattered || whole.addend || whole.terms != 1 || whole.inputs != 1 || whole.sum ||
         !whole.moves.empty())) {
        return "slices by launches: one mode by the matrix unit, of one product that is stored";
    }
    const gpu_group g = launched_group(whole);
    if (std::string why = why_kind_illegal(g); !why.empty()) {
        return why;
    }
    for (const auto why : {why_trips_illegal<>, why_parts_illegal<>, why_shares_illegal<>}) {
        if (std::string text = why(g, gpu); !text.empty()) {
            return text;
        }
    }
    if (shared_bytes_of(g) > gpu.shared_bytes_per_block) {
        return "too much shared memory";
    }
    if (std::int64_t{32} * g.tile.threads * g.tile.blocks > gpu.registers_per_multiprocessor) {
        return "fewer than 32 registers a thread";
    }
    return {};
}

// --- text -------------------------------------------------------------------------------------------------------------

/// "r1 t256 b1 g4 s2 : 4+2f 2+2f 1f": rows (outer: run, and rows where they are several), threads, blocks per multiprocessor, segments, slots, then the trips
/// as first[+count]{f,m,w}[/split]; "c8" in front of the trips: a cluster, "q5": slices, "p2": pieces.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string text_of_tile(const gpu_tile& t, bool outer) {
    std::string text = (outer ? "run" + std::to_string(t.run) : std::string()) + (outer && t.rows > 1 ? " " : "") +
                       (!outer || t.rows > 1 ? "r" + std::to_string(t.rows) : std::string()) + " t" +
                       std::to_string(t.threads) + " b" + std::to_string(t.blocks) + " g" + std::to_string(t.segments) +
                       " s" + std::to_string(t.slots) + (t.cluster > 1 ? " c" + std::to_string(t.cluster) : "") +
                       (t.slices > 1 ? " q" + std::to_string(t.slices) : "") +
                       (t.pieces > 1 ? " p" + std::to_string(t.pieces) : "") + " :";
    for (const gpu_trip& trip : t.trips) {
        text += " " + std::to_string(trip.first) + (trip.count > 1 ? "+" + std::to_string(trip.count) : "") +
                (trip.warpgroup ? "w"
                 : trip.matrix  ? "m"
                                : "f") +
                (trip.split > 1 ? "/" + std::to_string(trip.split) : "");
    }
    return text;
}

/// Reads text_of_tile back; nothing for any other text.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_tile> read_tile(std::string_view text) {
    gpu_tile t;
    bool in_trips = false;
    const auto number = [&text](std::int32_t& to) {
        std::int64_t value = 0;
        std::size_t digits = 0;
        while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 6) {
            value = 10 * value + (text[digits++] - '0');
        }
        text.remove_prefix(digits);
        to = static_cast<std::int32_t>(value);
        return digits > 0;
    };
    while (!text.empty()) {
        const char c = text.front();
        if (c == ' ') {
            text.remove_prefix(1);
            continue;
        }
        if (c == ':' && !in_trips) {
            in_trips = true;
            text.remove_prefix(1);
            continue;
        }
        if (in_trips) {
            gpu_trip trip;
            if (!number(trip.first)) {
                return std::nullopt;
            }
            if (!text.empty() && text.front() == '+') {
                text.remove_prefix(1);
                if (!number(trip.count)) {
                    return std::nullopt;
                }
            }
            if (text.empty() || (text.front() != 'm' && text.front() != 'f' && text.front() != 'w')) {
                return std::nullopt;
            }
            trip.matrix = text.front() != 'f';
            trip.warpgroup = text.front() == 'w';
            text.remove_prefix(1);
            if (!text.empty() && text.front() == '/') {
                text.remove_prefix(1);
                if (!number(trip.split)) {
                    return std::nullopt;
                }
            }
            t.trips.push_back(trip);
            continue;
        }
        std::int32_t* to = nullptr;
        if (text.substr(0, 3) == "run") {
            to = &t.run;
            text.remove_prefix(3);
        } else {
            switch (c) {
                case 'r': to = &t.rows; break;
                case 't': to = &t.threads; break;
                case 'b': to = &t.blocks; break;
                case 'g': to = &t.segments; break;
                case 's': to = &t.slots; break;
                case 'c': to = &t.cluster; break;
                case 'q': to = &t.slices; break;
                case 'p': to = &t.pieces; break;
                default: return std::nullopt;
            }
            text.remove_prefix(1);
        }
        if (!number(*to)) {
            return std::nullopt;
        }
    }
    if (t.trips.empty()) {
        return std::nullopt;
    }
    return t;
}

// --- what its threads have to do ------------------------------------------------------------------------------------

/// How well a trip's fibres fill those who take them.
struct trip_use {
    double filled = 1;  ///< share of the fibres that a warp takes at once which there are
    double busy = 1;    ///< share of the warps that have fibres to take
};

/// Fibres of a trip in a tile, of which each mode that an earlier trip replaced has its new extent.
OTIMES_ON_DEMAND inline std::int64_t fibres_of_trip(const gpu_group& g, std::size_t at) {
    std::int64_t fibres = static_cast<std::int64_t>(g.tile.rows) * g.tile.run;
    for (std::int32_t level = 1; level <= g.modes(); ++level) {
        const std::size_t by = g.trip_of(level);
        fibres *= by == at ? 1 : by < at ? g.q_of(level) : g.p_of(level);
    }
    return fibres / g.tile.cluster;
}

/// Fibres that a warp of the matrix unit takes at once: kernels/matrix_trip.cuh.
OTIMES_ON_DEMAND inline std::int64_t unit_fibres(dtype type) { return accumulator_of(type) == dtype::f32 ? 32 : 16; }

/// The use of trip `at`; of pairs of modes, warpgroups and complex numbers by the unit it is not known, and counted as full. @pre a legal tile
OTIMES_ON_DEMAND inline trip_use use_of_trip(const gpu_group& g, std::size_t at) {
    const gpu_trip& trip = g.tile.trips[at];
    if (trip.matrix && (trip.warpgroup || trip.count > 1 || is_complex(g.type))) {
        return {};
    }
    const auto rounds = [](std::int64_t n, std::int64_t at_once) { return (n + at_once - 1) / at_once; };
    const std::int64_t fibres = (std::max)(std::int64_t{1}, fibres_of_trip(g, at)) * (trip.matrix ? 1 : trip.split);
    const std::int64_t at_once = trip.matrix ? unit_fibres(g.type) : 32;
    const std::int64_t shares = rounds(fibres, at_once);  // of warps
    const std::int64_t warps = shares * (trip.matrix ? trip.split : 1);
    const std::int64_t all_warps = g.tile.threads / 32;
    return {static_cast<double>(fibres) / static_cast<double>(shares * at_once),
            static_cast<double>(warps) / static_cast<double>(rounds(warps, all_warps) * all_warps)};
}

// --- where a group lies -----------------------------------------------------------------------------------------------

/// 1 for each mode that a pass's sweeps replace, else 0.
OTIMES_ON_DEMAND OTIMES_COLD inline std::vector<std::uint8_t> contracted_modes(const pass& p) {
    std::vector<std::uint8_t> contracted(p.modes.size(), 0);
    for (const sweep& s : p.sweeps) {
        contracted[static_cast<std::size_t>(s.mode)] = 1;
    }
    return contracted;
}

/// The place of a group of pass modes: `contracted[k]` says which modes it replaces. They must be neighbours that are nested
/// on both sides, with at most a line and a part index around them and one contiguous stretch, or nothing, inside them;
/// otherwise nothing.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<group_place> place_of_group(
    const std::vector<pass_mode>& modes, const std::vector<std::uint8_t>& contracted) {
    group_place place;
    std::vector<std::size_t> group;
    std::size_t last = 0;
    std::size_t first = modes.size();
    for (std::size_t k = 0; k < modes.size(); ++k) {
        if (contracted[k] != 0) {
            group.push_back(k);
            first = (std::min)(first, k);
            last = k;
        }
    }
    const auto skipped = [&modes](std::size_t k) { return modes[k].extent_in == 1 && modes[k].extent_out == 1; };
    for (std::size_t k = modes.size(); k-- > last + 1;) {
        if (!skipped(k)) {
            if (modes[k].stride_in != place.inner || modes[k].stride_out != place.inner) {
                return std::nullopt;
            }
            place.inner *= modes[k].extent_in;
        }
    }
    for (std::size_t k = first; k < last; ++k) {
        if (contracted[k] == 0 && !skipped(k)) {
            return std::nullopt;
        }
    }
    const auto nested = [&](std::int64_t pass_mode::*extent, std::int64_t pass_mode::*stride, std::int64_t& unit,
                            std::int64_t& span) {
        unit = place.inner;
        if (place.inner > 1) {
            for (std::size_t i = group.size(); i-- > 0;) {
                if (modes[group[i]].*extent != 1) {
                    unit = modes[group[i]].*stride;
                    break;
                }
            }
        }
        span = unit;
        for (std::size_t i = group.size(); i-- > 0;) {
            const pass_mode& m = modes[group[i]];
            if (m.*extent != 1 && m.*stride != span) {
                return false;
            }
            span *= m.*extent;
        }
        return unit >= place.inner;
    };
    std::int64_t span_in = 0;
    std::int64_t span_out = 0;
    if (group.empty() || !nested(&pass_mode::extent_in, &pass_mode::stride_in, place.x_inner, span_in) ||
        !nested(&pass_mode::extent_out, &pass_mode::stride_out, place.y_inner, span_out)) {
        return std::nullopt;
    }
    std::vector<pass_mode> lines;  // around the group; neighbours that are nested on both sides are one
    for (std::size_t k = 0; k < first; ++k) {
        const pass_mode& next = modes[k];
        if (skipped(k)) {
            continue;
        }
        if (!lines.empty() && lines.back().stride_in == next.stride_in * next.extent_in &&
            lines.back().stride_out == next.stride_out * next.extent_in) {
            const std::int64_t extent = lines.back().extent_in * next.extent_in;
            lines.back() = {extent, extent, next.stride_in, next.stride_out};
        } else {
            lines.push_back(next);
        }
    }
    if (lines.size() > 2 || (lines.size() == 2 && (lines[1].stride_in != span_in || lines[1].stride_out != span_out))) {
        return std::nullopt;
    }
    place.x_line = lines.empty() ? span_in : lines[0].stride_in;
    place.y_line = lines.empty() ? span_out : lines[0].stride_out;
    place.lines = lines.empty() ? 1 : lines[0].extent_in;
    place.parts_per_line = lines.size() == 2 ? lines[1].extent_in : 1;
    return place;
}

}  // namespace otimes::planning

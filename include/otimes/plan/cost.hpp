// SPDX-License-Identifier: MIT
/// @file cost.hpp
/// The planner's cost model of a CPU. Times in seconds of one thread unless said otherwise. Each formula has a test with
/// hand-computed values (tests/plan/cost.cpp); docs/planner.md explains where the constants come from.
///
///     sweep  = overlapped(flops * waste / (peak * efficiency(P, Q)), (in + out) * bytes / bandwidth of the tile's level)
///     pass   = overlapped(sweeps + shuffles, (in + write * out) * bytes / (bandwidth of the level * run efficiency))
///              * busiest thread's share + dispatch * (1 per slab of a thread) + dispatch / 10 per batch of tiles
///              and no less than the factors take from their level; those beyond L2 add to the traffic
///     overlapped(compute, traffic) = max(compute + traffic / 2, traffic)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

/// Where data lies. Ordered from near to far.
enum class level : std::uint8_t { l1, l2, l3, memory };

constexpr const char* level_name(level l) noexcept {
    switch (l) {
        case level::l1: return "L1";
        case level::l2: return "L2";
        case level::l3: return "L3";
        case level::memory: return "memory";
    }
    return "?";
}

/// The nearest level that holds `bytes` private to each of `sharers` threads. Half of a cache is counted on: the other
/// half holds what streams through.
constexpr level level_of(const cpu_description& cpu, double bytes, std::int32_t sharers) noexcept {
    if (bytes <= 0.5 * static_cast<double>(cpu.l1_bytes)) {
        return level::l1;
    }
    if (bytes <= 0.5 * static_cast<double>(cpu.l2_bytes)) {
        return level::l2;
    }
    if (bytes * sharers <= 0.5 * static_cast<double>(cpu.l3_bytes)) {
        return level::l3;
    }
    return level::memory;
}

/// Bytes per second (read + written) that one of `sharers` busy threads gets from a level.
constexpr double bandwidth(const cpu_description& cpu, level l, std::int32_t sharers) noexcept {
    switch (l) {
        case level::l1: return cpu.l1_bytes_per_second;
        case level::l2: return cpu.l2_bytes_per_second;
        case level::l3: return cpu.l3_bytes_per_second;
        case level::memory: return cpu.memory_bytes_per_second / sharers;
    }
    return cpu.memory_bytes_per_second;
}

/// Flops per second of one thread; complex types count their real flops.
constexpr double peak_flops(const cpu_description& cpu, dtype type) noexcept {
    return type == dtype::f32 || type == dtype::c64 ? cpu.flops_f32 : cpu.flops_f64;
}

/// Fraction of the peak that a sweep of full vectors reaches. A fibre of P vectors costs P Q multiply-adds, and P loads and
/// Q stores that each take the time of four; the rest of the machine takes 15 %:
///
///     efficiency = 0.85 P Q / (P Q + 4 (P + Q))         P = Q:  2: 0.17   4: 0.28   8: 0.43   16: 0.57   32: 0.68   64: 0.76
///
/// Fitted to fused kernels on AVX-512 (0.43 at 8, 0.50 at 16, 0.68 at 32, 0.75 at 64, 0.78 at 128).
constexpr double sweep_efficiency(std::int64_t p_extent, std::int64_t q_extent) noexcept {
    const double products = static_cast<double>(p_extent) * static_cast<double>(q_extent);
    return products <= 0
               ? 1.0
               : 0.85 * products / (products + 4.0 * (static_cast<double>(p_extent) + static_cast<double>(q_extent)));
}

/// The same for each of two sweeps of 3 x 3 that are done at once: nine loads and nine stores for 54 multiply-adds.
inline constexpr double twin_efficiency = 0.5;

/// How many times more vector work a run of `run` elements takes than its share: ceil(run / W) W / run. Results of less than
/// a register are stored in pieces, which costs about as much again (measured: 7 elements of 8, 1.9 times 49 of 56), or
/// under a mask where the processor has them.
constexpr double vector_waste(std::int64_t run, std::int64_t vector, bool masks = false) noexcept {
    const double in_pieces = masks ? 1.1 : 1.8;
    return run <= 0 ? 1.0
                    : static_cast<double>((run + vector - 1) / vector * vector) / static_cast<double>(run) *
                          (run < vector ? in_pieces : 1.0);
}

/// Cost of one element that is moved across lanes when a tile is loaded or stored with transposition, in flops of the
/// peak: a W x W block takes W log2(W) shuffles, one a cycle, in which 4 W flops could run; loads hide a quarter.
inline double transpose_flops(std::int64_t vector) noexcept {
    return vector <= 1 ? 0.0 : 3.0 * std::log2(static_cast<double>(vector));
}

/// Cost of one element that is moved alone (no mode of the tile is contiguous): a load and a store in a cycle and a half, 6 W flops.
constexpr double gather_flops(std::int64_t vector) noexcept { return 6.0 * static_cast<double>(vector); }

/// Fraction of a level's bandwidth that runs of `bytes` contiguous bytes reach beyond L1, where the beginning of a run costs what
/// `lost` bytes take.
constexpr double run_efficiency(level l, double bytes, double lost) noexcept {
    return bytes <= 0 || l <= level::l1 ? 1.0 : bytes / (bytes + lost);
}

/// Bytes lost at the beginning of each of the `runs` of a tile: lines that are fetched in part, and the time until the
/// prefetcher follows. At least 512; 2 for each run where there are more than it follows and the translation of addresses
/// remembers (measured at P = 8, 10, 16 and 32: tiles of 512 and more runs of 512 bytes take half as long again as more passes of
/// longer runs). Half as much where a single sweep of 64 and more packs its fibres: nothing there waits for a load.
constexpr double lost_by_run(double runs, bool packs_fibres) noexcept {
    const double lost = packs_fibres ? (std::max)(256.0, 4.0 * runs) : (std::max)(512.0, 2.0 * runs);
    return (std::min)(lost, 2048.0);
}

/// Lost besides where a tile of `lanes` lanes is transposed on its way beyond L2: its runs are followed side by side, each in small
/// steps, and a prefetcher follows about 32 (measured at 3^7: tiles of 48 rows take 5 % longer than those of 16).
constexpr double lost_by_transposing(double lanes) noexcept { return (std::max)(1024.0, 32.0 * lanes); }

/// How a tile is moved between memory and the on-chip buffer.
enum class movement : std::uint8_t { direct, transposing, gathering };

/// Movement of the tiles of a pass; `strides` says which side.
OTIMES_COLD inline movement movement_of(const pass& p, std::int64_t pass_mode::*strides) {
    if (p.lane_mode >= 0 && p.modes[static_cast<std::size_t>(p.lane_mode)].*strides == 1) {
        return movement::direct;
    }
    for (const sweep& s : p.sweeps) {
        if (p.modes[static_cast<std::size_t>(s.mode)].*strides == 1) {
            return p.lane_mode >= 0 && p.lane_count > 1 ? movement::transposing : movement::direct;
        }
    }
    return movement::gathering;
}

/// Fibres of this many rows and more, inside a tile that exceeds L1, fall onto few cache sets (their stride is large, often a
/// power of two); a tile in L1 holds them packed. Measured at P = 128: 220 against 273 GFLOP/s.
inline constexpr std::int64_t packed_fibre_extent = 64;
inline constexpr double conflict_waste = 1.25;
// Several such sweeps over a tile of lanes in one buffer bring their fibres together on the stack and pay nothing: measured at 64^3
// by columns on AVX-512, two of them in one pass take 0.87 to 0.91 of the time of two passes.

/// Indices of a fibre that one sweep takes at once (exec/cpu/sweep.hpp): three or four registers of each fill most of L1. Of a longer
/// fibre the sums over one part wait in the result for the next one.
constexpr std::int64_t part_extent(const cpu_description& cpu) noexcept {
    return cpu.simd_bytes >= 64 ? 32 * 1024 / (3 * cpu.simd_bytes) : 24 * 1024 / (4 * (std::max)(cpu.simd_bytes, 8));
}

/// True for a pass of one sweep over lanes whose fibres are taken in parts.
inline bool takes_parts(const pass& p, const cpu_description& cpu) {
    constexpr std::int64_t few = 8;
    return p.sweeps.size() == 1 && p.lane_mode >= 0 && p.sweeps.front().p_extent > part_extent(cpu) &&
           p.sweeps.front().q_extent >= few;
}

/// Time of arithmetic and memory traffic together: prefetching hides about half of the traffic behind arithmetic.
constexpr double overlapped(double compute, double traffic) noexcept {
    return (std::max)(compute + 0.5 * traffic, traffic);
}

/// True for row sweeps whose rows stand side by side in a register: two or four real elements, or two complex ones, and as many results
/// (exec/cpu/rows_in_registers.hpp).
constexpr bool fills_registers(const sweep& s, dtype type, std::int64_t vector) noexcept {
    const bool two = s.p_extent == 2;
    return s.kernel == sweep_kernel::row && s.p_extent == s.q_extent &&
           (is_complex(type) ? two && vector >= 4 : (two && vector > 2) || (s.p_extent == 4 && vector > 4));
}

/// What a pass costs and why.
struct pass_cost {
    double compute_seconds = 0;  ///< sweeps and shuffles, one thread doing everything
    double traffic_seconds = 0;  ///< input and output at their level, all threads together
    double seconds = 0;          ///< prediction with `threads` threads, dispatch included
    double bound_seconds = 0;    ///< max(bytes / bandwidth, flops / peak) with `threads` threads
    double flops = 0;
    double bytes = 0;
};

/// Elements of a tile before sweep `done` (0: as loaded; sweeps.size(): as stored), for one lane.
OTIMES_COLD inline double tile_stage_elements(const pass& p, std::size_t done) {
    double elements = 1;
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        elements *= static_cast<double>(i < done ? p.sweeps[i].q_extent : p.sweeps[i].p_extent);
    }
    return elements;
}

/// The largest stage of a tile, for one lane.
OTIMES_COLD inline double tile_peak_elements(const pass& p) {
    double peak = 0;
    for (std::size_t i = 0; i <= p.sweeps.size(); ++i) {
        peak = (std::max)(peak, tile_stage_elements(p, i));
    }
    return peak;
}

/// Elements of a tile of `lanes` lanes that are contiguous inside the mode of sweep i, when its turn comes.
OTIMES_COLD inline double run_of_sweep(const pass& p, std::size_t i, double lanes) {
    double run = lanes;
    for (std::size_t j = 0; j < p.sweeps.size(); ++j) {
        if (p.sweeps[j].mode > p.sweeps[i].mode) {
            run *= static_cast<double>(j < i ? p.sweeps[j].q_extent : p.sweeps[j].p_extent);
        }
    }
    return run;
}

/// Longest square fibre whose results one block of the micro-kernel holds, so that a sweep may work in place.
constexpr std::int64_t whole_fibre_extent(const cpu_description& cpu, dtype type) noexcept {
    return cpu.simd_registers >= 32 ? (is_complex(type) ? 4 : 8) : (is_complex(type) ? 2 : 6);
}

/// True for a pass mode that a sweep of the pass contracts.
inline bool is_contracted(const pass& p, std::size_t mode) {
    for (const sweep& s : p.sweeps) {
        if (s.mode == static_cast<std::int32_t>(mode)) {
            return true;
        }
    }
    return false;
}

/// Tiles of a pass over whole modes (all slabs).
OTIMES_COLD inline double tile_count(const pass& p) {
    double tiles = 1;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        if (is_contracted(p, k)) {
            continue;
        }
        const auto extent = static_cast<double>(p.modes[k].extent_in);
        tiles *= static_cast<std::int32_t>(k) == p.lane_mode ? std::ceil(extent / static_cast<double>(p.lane_count))
                                                             : extent;
    }
    return tiles;
}

/// What the threads share of a pass: blocks of the factor's columns, or tiles.
OTIMES_COLD inline double shared_parts(const pass& p) {
    return p.block_columns > 0
               ? std::ceil(static_cast<double>(p.sweeps.front().q_extent) / static_cast<double>(p.block_columns))
               : tile_count(p);
}

/// Tiles that are taken at once, at most: neighbours along a free mode, as many as batch_bytes hold. 1 where the lanes of a tile are
/// not all there are.
OTIMES_COLD inline std::int64_t batch_count(const pass& p, dtype type) {
    if (p.lane_mode >= 0 && p.lane_count < p.modes[static_cast<std::size_t>(p.lane_mode)].extent_in) {
        return 1;
    }
    const double one =
        tile_peak_elements(p) * static_cast<double>(p.lane_count) * static_cast<double>(element_bytes(type));
    const double most = (std::min)(
        static_cast<double>(batch_bytes(p, static_cast<std::int64_t>(one))) / (std::max)(one, 1.0), tile_count(p));
    return (std::max)(std::int64_t{1}, static_cast<std::int64_t>(most));
}

/// Longest contiguous run of a tile on one side, in elements; without lanes of all tiles that follow each other there, since they are
/// taken in that order, and of the `batch` that are taken at once where neighbours in memory are fewer than a register. A tile that is
/// transposed takes `vector` lanes at a time: where those are more than `most_elements`, each lane is a run of its own, also where the
/// lanes lie side by side, since they are not walked in the order of memory.
OTIMES_COLD inline double contiguous_run(const pass& p, std::int64_t pass_mode::*strides,
                                         std::int64_t pass_mode::*extents, double most_elements, std::int64_t vector,
                                         double batch) {
    double run = 1;
    std::size_t inside = 0;  // contracted modes so far
    for (std::size_t k = p.modes.size(); k-- > 0;) {
        const pass_mode& m = p.modes[k];
        if (static_cast<double>(m.*strides) != run) {
            break;
        }
        if (static_cast<std::int32_t>(k) == p.lane_mode) {
            const std::int64_t lanes = (std::min)(m.*extents, p.lane_count);
            if (run > 1 && run * static_cast<double>((std::min)(lanes, vector)) > most_elements) {
                break;
            }
            run *= static_cast<double>(lanes);
            if (p.lane_count < m.*extents) {
                break;
            }
            continue;
        }
        inside += is_contracted(p, k) ? 1U : 0U;
        const bool at_once = run == 1 && m.*extents < vector && batch >= static_cast<double>(m.*extents);
        if (!is_contracted(p, k) && (p.lane_mode >= 0 || (inside < p.sweeps.size() && !at_once))) {
            break;
        }
        run *= static_cast<double>(m.*extents);
    }
    return run;
}

/// Tile buffers that a pass keeps in cache. The first sweep reads the operand and the last one writes the result where the elements
/// lie as the vectors want them; sweeps between two buffers need one where they work in place.
OTIMES_COLD inline int tile_buffers_of(const pass& p, const cpu_description& cpu, dtype type) {
    const std::int64_t vector = vector_count(cpu, type);
    const bool whole = p.lane_mode < 0 || p.lane_count <= 1 || p.lane_count >= vector;
    const bool reads_operand = whole && movement_of(p, &pass_mode::stride_in) == movement::direct;
    const bool writes_result = whole && movement_of(p, &pass_mode::stride_out) == movement::direct;
    const std::size_t count = p.sweeps.size();
    if (!reads_operand || !writes_result || count <= 1) {
        return 2;  // it is copied, which takes about as much again; a single sweep streams as much through the cache
    }
    for (std::size_t i = 1; i + 1 < count; ++i) {
        const sweep& s = p.sweeps[i];
        const auto run = static_cast<std::int64_t>(run_of_sweep(p, i, static_cast<double>(p.lane_count)));
        if (s.kernel == sweep_kernel::row || s.p_extent != s.q_extent || run % vector != 0 ||
            s.q_extent > whole_fibre_extent(cpu, type)) {
            return 2;
        }
    }
    return 1;
}

/// The level that holds the tiles of a pass. One buffer counts a quarter more in L1, since what it is read from and written to passes
/// through beside it. Two buffers of a single row may take a third more than L1: nothing but their ends is lost before it is read.
/// Measured on AVX2 with rows of 1.03 to 1.34 L1, one pass in place of two: 0.86 to 0.97 of the time; from 1.45 on no gain.
OTIMES_COLD inline level tile_level_of(const pass& p, const cpu_description& cpu, dtype type, std::int32_t threads) {
    const int buffers = tile_buffers_of(p, cpu, type);
    const double bytes = tile_peak_elements(p) * static_cast<double>(p.lane_count) *
                         static_cast<double>(element_bytes(type)) * static_cast<double>(buffers);
    const bool row = p.lane_mode < 0 && p.sweeps.size() > 1;
    const double share = buffers == 1 ? 1.25 : row ? 0.75 : 1.0;
    return share * bytes <= static_cast<double>(cpu.l1_bytes)  ? level::l1
           : bytes <= 0.75 * static_cast<double>(cpu.l2_bytes) ? level::l2
                                                               : level_of(cpu, bytes, threads);
}

/// Where a pass reads and writes, and by how many threads it is run.
struct pass_setting {
    level in = level::memory;
    level out = level::memory;
    std::int32_t threads = 1;
    double slab_count = 1;    ///< slabs of the plan: > 1: threads take slabs, 1: threads share tiles
    bool batches = true;      ///< small tiles are taken several at a time: a tight workspace has no room for that
    bool one_matrix = false;  ///< one sweep by one dense factor, no slabs, not in place: it may be packed in blocks
    bool rows_contiguous = false;     ///< and the entries of each of its rows lie side by side, as they are
    bool columns_contiguous = false;  ///< or those of each of its columns
};

/// Row sweeps of up to this many rows read a long factor as it lies, rows of it contiguous (exec/cpu/factors.hpp): packing it would cost a
/// read and a write of every entry, each row a multiply-add.
constexpr double most_unpacked_rows(const cpu_description& cpu) noexcept { return cpu.simd_bytes >= 64 ? 32 : 16; }
inline constexpr std::int64_t least_unpacked_extent = 32;

/// Is the factor of a pass, lanes chosen, read as it lies if its rows are contiguous?
OTIMES_COLD inline bool suits_unpacked(const pass& p, const cpu_description& cpu) {
    return p.sweeps.size() == 1 && p.lane_mode < 0 && tile_count(p) <= most_unpacked_rows(cpu) &&
           (std::min)(p.sweeps.front().p_extent, p.sweeps.front().q_extent) >= least_unpacked_extent;
}

/// Bytes of the matrix of a sweep.
constexpr double matrix_bytes(const sweep& s, dtype type) noexcept {
    return static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent) * static_cast<double>(element_bytes(type));
}

/// What it takes to transpose an element in registers, beside multiply-adds, in flops: log2(W) rounds of one move for a register of W elements.
/// Of 64 bytes they cross more lanes: fitted, twice as much.
inline double turned_flops(const cpu_description& cpu, dtype type) {
    return (cpu.simd_bytes >= 64 ? 4.0 : 2.0) * std::log2(static_cast<double>(vector_count(cpu, type)));
}

/// Rows up to which a factor whose columns are contiguous is read as it lies: squares of it are transposed in registers for all of them at once (exec/cpu/
/// column_kernel.hpp). Of more rows it is packed once.
inline constexpr double most_rows_by_columns = 4;

/// Is it read as it lies if its columns are contiguous?
OTIMES_COLD inline bool suits_columns(const pass& p, const cpu_description& cpu, dtype type) {
    // Less is packed in half a microsecond, and a small plan is then prepared (executor::run_first).
    constexpr double least_bytes = 32 << 10;
    return !is_complex(type) && vector_count(cpu, type) >= 4 && suits_unpacked(p, cpu) &&
           matrix_bytes(p.sweeps.front(), type) > least_bytes && tile_count(p) <= most_rows_by_columns;
}

/// Rows of a pass without lanes that are taken at once: all of its innermost free mode, since they are few.
OTIMES_COLD inline double rows_at_once(const pass& p, dtype type) {
    for (std::size_t k = p.modes.size(); k-- > 0;) {
        if (!is_contracted(p, k)) {
            return (std::min)(static_cast<double>(p.modes[k].extent_in), static_cast<double>(batch_count(p, type)));
        }
    }
    return 1;
}

/// How many times longer the arithmetic of so many rows takes for those that fill no block of eight: each loads its entries of the factor
/// for itself, four of them once for all four.
inline double lone_row_waste(double rows) {
    const double lone = std::fmod(rows, 8.0);
    const double half = lone >= 4 ? 4.0 : 0.0;
    return (rows - lone + 1.25 * half + 2.5 * (lone - half)) / rows;
}

/// Bytes of a factor's block: a quarter of the second-level cache, beside rows or lanes and their sums. A factor of no more is packed whole.
constexpr std::int64_t factor_block_bytes(const cpu_description& cpu) noexcept { return cpu.l2_bytes / 4; }

/// Columns of a factor that one block of registers takes, in whole multiples of which threads share them.
constexpr std::int64_t column_granule(const pass& p, std::int64_t vector) noexcept {
    return p.lane_mode < 0 ? 3 * vector : 8;
}

/// `extent` columns in near-equal blocks of whole granules, a multiple of `blocks` of them if there are so many granules.
constexpr std::int64_t columns_of_block(std::int64_t extent, std::int64_t blocks, std::int64_t granule) noexcept {
    return (std::min)(round_up((extent - 1) / blocks + 1, granule), extent);
}

/// The one sweep of `p`, lanes chosen, reads its factor as it lies, each thread some columns.
OTIMES_COLD inline void read_unpacked(pass& p, const cpu_description& cpu, dtype type, std::int32_t threads) {
    p.block_rows = 0;
    p.block_columns = columns_of_block(p.sweeps.front().q_extent, threads, column_granule(p, vector_count(cpu, type)));
}

/// May the sweep of a pass, lanes chosen, pack its factor in blocks? Where it reads its input as it is: a tile would be copied for each of
/// them. Few rows are little beside a block.
OTIMES_COLD inline bool suits_blocks(const pass& p, const cpu_description& cpu, dtype type) {
    const bool direct = movement_of(p, &pass_mode::stride_in) == movement::direct;
    return p.lane_mode < 0 ? direct || tile_count(p) <= most_unpacked_rows(cpu)
                           : direct && p.lane_count >= vector_count(cpu, type);
}

/// It packs its factor in blocks, of as many rows as are summed at once where sums may wait in the result (exec/cpu/run_plan.hpp), else of
/// all; as many blocks for each thread. @param rows_contiguous as pass_setting's
OTIMES_COLD inline void pack_in_blocks(pass& p, const cpu_description& cpu, dtype type, std::int32_t threads,
                                       bool rows_contiguous) {
    const sweep& s = p.sweeps.front();
    const std::int64_t vector = vector_count(cpu, type);
    const std::int64_t each = element_bytes(type);
    const auto is_contiguous = [&p](std::int32_t mode) {
        return p.modes[static_cast<std::size_t>(mode)].stride_out == 1;
    };
    const bool waits = !is_complex(type) && !p.add && is_contiguous(p.lane_mode < 0 ? s.mode : p.lane_mode);
    const std::int64_t granule = column_granule(p, vector);
    p.block_rows = waits ? (std::min)(s.p_extent, part_extent(cpu)) : s.p_extent;
    if (waits && !rows_contiguous && s.q_extent > factor_block_bytes(cpu) / (p.block_rows * each)) {
        // Its columns are read ahead the better the longer they are. So where X stays in L2 beside several blocks: as many rows as a block of a
        // granule's columns holds, in equal parts.
        const std::int64_t most = (std::max)(factor_block_bytes(cpu) / (granule * each), part_extent(cpu));
        const std::int64_t parts = (s.p_extent - 1) / most + 1;
        const std::int64_t rows = (s.p_extent - 1) / parts + 1;
        const double share = p.lane_mode < 0 ? 0.5 : 0.25;
        if (tile_count(p) * static_cast<double>(p.lane_count * rows * each) <=
            share * static_cast<double>(cpu.l2_bytes)) {
            p.block_rows = rows;
        }
    }
    const std::int64_t most = (std::max)(granule, factor_block_bytes(cpu) / (p.block_rows * each));
    const std::int64_t blocks = round_up((s.q_extent - 1) / most + 1, threads);
    p.block_columns = columns_of_block(s.q_extent, blocks, granule);
}

/// Largest share of the work that falls on one thread: ceil(n / threads) / n for n equal parts.
inline double busiest_share(double parts, std::int32_t threads) {
    return parts <= 0 ? 1.0 : std::ceil(parts / threads) / parts;
}

/// True when sweep i and the next are done at once (exec/cpu/twin_kernel.hpp): both by a factor of 3 x 3, with registers of 64 bytes also
/// 4 x 4 and 5 x 5, and with a register or more of a tile of `lanes` lanes inside both modes.
OTIMES_COLD inline bool begins_twin(const pass& p, std::size_t i, double lanes, std::int64_t vector, bool many) {
    if (vector == 1 || i + 1 >= p.sweeps.size()) {
        return false;
    }
    const std::int64_t extent = p.sweeps[i].p_extent;
    if (extent != 3 && !(many && (extent == 4 || extent == 5))) {
        return false;
    }
    double run = lanes;
    for (std::size_t k = i; k < i + 2; ++k) {
        if (p.sweeps[k].p_extent != extent || p.sweeps[k].q_extent != extent ||
            p.sweeps[k].kernel == sweep_kernel::row) {
            return false;
        }
    }
    for (std::size_t j = 0; j < p.sweeps.size(); ++j) {
        if (p.sweeps[j].mode > (std::max)(p.sweeps[i].mode, p.sweeps[i + 1].mode)) {
            run *= static_cast<double>(j < i ? p.sweeps[j].q_extent : p.sweeps[j].p_extent);
        }
    }
    return p.sweeps[i].mode != p.sweeps[i + 1].mode && run >= static_cast<double>(vector);
}

/// The sweeps that are done at once since their modes are short (exec/cpu/tail_kernel.hpp): `count` from `first` on; none: 0.
struct short_tail {
    std::size_t first = 0;
    std::size_t count = 0;
    std::int64_t elements = 1;  ///< of its modes, which lie side by side
    std::int64_t padded = 1;    ///< from one such group to the next in a tile buffer

    [[nodiscard]] bool holds(std::size_t i) const noexcept { return i >= first && i < first + count; }
};

/// Tiles, in bytes, from which on what a tail kernel takes begins at whole registers in their buffers: sweeps between buffers then work in place, so that
/// one buffer is enough. Measured, rows from L2 on a Xeon: 3^7, 5^5 and 7^4 of doubles and 6^5 of floats 0.8 to 0.9 of the time, 5^5 of floats (12 KiB) 1.08.
inline constexpr double padded_tile_bytes = 16 * 1024;

/// Three square factors of 3 or 4, or two of 4 to 7 or of 8 floats, in that order, on the last modes of a pass without lanes, where a
/// register has 64 bytes. @param simd_bytes of a register
OTIMES_COLD inline short_tail tail_of(const pass& p, std::int64_t simd_bytes, dtype type) {
    if (simd_bytes != 64 || p.lane_mode >= 0 || is_complex(type)) {
        return {};
    }
    const std::int64_t most = type == dtype::f64 ? 7 : 8;
    for (const std::size_t count : {std::size_t{3}, std::size_t{2}}) {
        for (std::size_t first = 0; first + count <= p.sweeps.size(); ++first) {
            const std::int64_t extent = p.sweeps[first].p_extent;
            bool fits = count == 3 ? extent == 3 || extent == 4 : extent >= 4 && extent <= most;
            for (std::size_t k = 0; k < count; ++k) {
                const sweep& s = p.sweeps[first + k];
                fits = fits && static_cast<std::size_t>(s.mode) + count == p.modes.size() + k && s.p_extent == extent &&
                       s.q_extent == extent;
            }
            if (fits) {
                const std::int64_t elements = count == 3 ? extent * extent * extent : extent * extent;
                const std::int64_t each = element_bytes(type);
                const bool between = first > 2 || (first == 2 && !begins_twin(p, 0, 1, simd_bytes / each, true));
                const bool pads = between && tile_peak_elements(p) * static_cast<double>(each) > padded_tile_bytes;
                return {first, count, elements, pads ? round_up(elements, simd_bytes / each) : elements};
            }
        }
    }
    return {};
}

/// Share of the peak that a sweep of full registers reaches beside a tail's shuffles.
inline constexpr double full_sweep_efficiency = 0.65;
/// What a batch of tiles takes to begin, over what a slab takes.
inline constexpr double batch_dispatch = 0.1;
/// What the barrier behind a pass takes, over starting the threads and waiting for them.
inline constexpr double barrier_forks = 0.25;
/// A factor that is packed whole is read, its packed form's lines are read, and written.
inline constexpr double packing_passes = 3.0;

/// Share of the peak that a tail of `count` modes of that extent reaches: multiply-adds on lanes that hold something over all instructions
/// that its kernel issues, shuffles included (a row alone in its register needs none), times the share that a sweep of full registers reaches.
constexpr double tail_efficiency(std::int64_t extent, std::size_t count, std::int64_t vector) noexcept {
    const auto e = static_cast<double>(extent);
    const auto modes = static_cast<double>(count);
    const std::int64_t rows = vector / (extent == 3 ? 4 : extent);
    const double filled = static_cast<double>(rows) * e / static_cast<double>(vector);
    const double shuffled = rows > 1 ? e + static_cast<double>(rows - 1) : 0.0;
    return full_sweep_efficiency * modes * e * filled / (modes * e + shuffled);
}

/// A pass whose cost is predicted, and what several parts of the cost ask for.
struct priced_pass {
    const pass& p;
    const cpu_description& cpu;
    dtype type;
    const pass_setting& where;

    std::int64_t vector = 1;  ///< elements of a register
    double bytes_each = 1;
    double peak = 1;
    movement moves_in = movement::direct;
    movement moves_out = movement::direct;

    double tiles = 1;
    double lane_fill = 1;  ///< average lanes of a tile, the short last one included
    double lane_waste =
        1;  ///< lanes that are computed on over those that there are: buffers hold whole registers of them
    level tile_level = level::l1;
    double tile_bandwidth = 1;

    bool parts = false;  ///< long fibres are summed in parts
    bool packs_all =
        false;  ///< nothing but long fibres that are packed before use, several of them in one buffer of lanes
    bool in_blocks = false;  ///< the factor is taken some columns at a time,
    double blocks = 1;       ///< so many times
    bool unpacked = false;   ///< and read as it lies,
    double rows = 1;         ///< for so many rows at once
};

/// Tiles, and how full their lanes are.
OTIMES_COLD inline void count_lanes(priced_pass& c) {
    const pass& p = c.p;
    const auto lanes = static_cast<double>(p.lane_count);
    c.tiles = tile_count(p);
    c.lane_fill = lanes;
    if (p.lane_mode < 0) {
        return;
    }
    const auto extent = static_cast<double>(p.modes[static_cast<std::size_t>(p.lane_mode)].extent_in);
    // Slabs that cut the lanes end tiles, too.
    const double parts_of_lanes = p.slab_mode == p.lane_mode ? (std::max)(1.0, c.where.slab_count) : 1.0;
    const double each = extent / parts_of_lanes;
    const double tiles_of_each = (std::max)(1.0, std::ceil(each / lanes));
    c.tiles = c.tiles / (std::max)(1.0, std::ceil(extent / lanes)) * tiles_of_each * parts_of_lanes;
    c.lane_fill = each / tiles_of_each;
    if (c.moves_in != movement::direct || c.moves_out != movement::direct) {
        const auto width = static_cast<double>(c.vector);
        const double whole = std::floor(each / lanes);
        const double padded = whole * std::ceil(lanes / width) + std::ceil((each - whole * lanes) / width);
        c.lane_waste = width * padded / (std::max)(each, 1.0);
    }
}

/// Seconds of one tile in the sweeps, which are also counted in flops.
OTIMES_COLD inline double sweep_seconds(const priced_pass& c, double& flops) {
    const pass& p = c.p;
    const auto weight = static_cast<double>(multiply_add_weight(c.type));
    const short_tail tail = tail_of(p, c.cpu.simd_bytes, c.type);
    const auto rate = [&c](level l) { return bandwidth(c.cpu, l, c.where.threads); };
    double seconds = 0;
    bool first_of_twin = false;
    double before = tile_stage_elements(p, 0);
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        const sweep& s = p.sweeps[i];
        const double after = tile_stage_elements(p, i + 1);
        const double multiply_adds = before * c.lane_fill * static_cast<double>(s.q_extent) * weight;
        const bool in_tail = tail.holds(i);
        const bool second_of_twin = first_of_twin;
        first_of_twin = !second_of_twin && !in_tail && !tail.holds(i + 1) && !is_complex(c.type) &&
                        begins_twin(p, i, c.lane_fill, c.vector, c.cpu.simd_bytes == 64);

        const bool in_row = s.kernel == sweep_kernel::row;
        const std::int64_t run = in_row ? s.q_extent : static_cast<std::int64_t>(run_of_sweep(p, i, c.lane_fill));
        const double waste = in_tail || fills_registers(s, c.type, c.vector) ? 1.0
                             : c.lane_waste > 1.0                            ? c.lane_waste
                                                  : vector_waste(run, c.vector, c.cpu.simd_bytes >= 64);
        const double conflicts =
            c.tile_level != level::l1 && s.p_extent >= packed_fibre_extent && !c.packs_all ? conflict_waste : 1.0;
        const double efficiency = in_tail && s.p_extent < 8         ? tail_efficiency(s.p_extent, tail.count, c.vector)
                                  : first_of_twin || second_of_twin ? twin_efficiency
                                                                    : sweep_efficiency(s.p_extent, s.q_extent);
        const bool by_columns = c.unpacked && !c.where.rows_contiguous;
        const double lone = c.unpacked && !by_columns ? lone_row_waste(c.rows) : 1.0;
        const double turned =
            by_columns ? turned_flops(c.cpu, c.type) * matrix_bytes(s, c.type) / c.bytes_each / (c.peak * c.tiles)
                       : 0.0;
        const double arithmetic = 2.0 * multiply_adds * waste * conflicts * lone / (c.peak * efficiency) + turned;

        // traffic to and from L1 is part of sweep_efficiency
        double traffic = c.tile_level == level::l1 || second_of_twin || (in_tail && i != tail.first)
                             ? 0.0
                             : (before + after) * c.lane_fill * c.bytes_each / c.tile_bandwidth;
        if (c.parts) {  // each reads and writes the results, and passes once over its share of the factor
            const double results = after * c.lane_fill * c.bytes_each;
            const double factor = matrix_bytes(s, c.type);
            const double count = std::ceil(static_cast<double>(s.p_extent) / static_cast<double>(part_extent(c.cpu)));
            const level from = c.in_blocks ? level::l2 : level_of(c.cpu, factor, c.where.threads);
            traffic = 2.0 * count * results / rate(level_of(c.cpu, results, c.where.threads)) + factor / rate(from);
        }
        seconds += c.tiles * overlapped(arithmetic, traffic);
        flops += 2.0 * multiply_adds * c.tiles;
        before = after;
    }
    return seconds;
}

/// Seconds to bring the elements into tiles and out of them, transposed where they lie otherwise.
OTIMES_COLD inline double move_seconds(const priced_pass& c, double loaded, double stored) {
    // A register of 64 bytes that starts anywhere lies in two cache lines. Measured with rows of 3^4, 5^3, 6^2, 7^2 and 10^2
    // elements: with the threefold cost the faster of row kernels and transposition is taken in each, 1.2 to 1.6 times.
    const double split_lines = c.cpu.simd_bytes >= 64 ? 3.0 : 1.0;
    const auto move_flops = [&](movement m, double stage_elements) {
        // transposed in squares of a register's elements, which a short stage does not fill
        const auto width = static_cast<double>(c.vector);
        const double filled =
            (std::max)(stage_elements, 1.0) / (width * std::ceil((std::max)(stage_elements, 1.0) / width));
        return m == movement::direct        ? 0.0
               : m == movement::transposing ? split_lines * transpose_flops(c.vector) / filled
                                            : gather_flops(c.vector);
    };
    // copied into the tile, each thread its own where they share the columns of the factor, and out of it
    const double brought = c.in_blocks && c.moves_in != movement::direct ? c.blocks * loaded : loaded;
    const double copied = c.tile_level == level::l1 ? 0.0 : (brought + stored) * c.bytes_each / c.tile_bandwidth;
    const double real_parts = is_complex(c.type) ? 2.0 : 1.0;
    return overlapped((brought * move_flops(c.moves_in, tile_stage_elements(c.p, 0)) +
                       stored * move_flops(c.moves_out, tile_stage_elements(c.p, c.p.sweeps.size()))) *
                          real_parts / c.peak,
                      copied);
}

/// Seconds that X and Y take from and to where they lie, the busiest thread's `share`: bandwidth() is what each of the busy threads gets.
OTIMES_COLD inline double operand_seconds(const priced_pass& c, double bytes_in, double bytes_out, double share,
                                          double batch) {
    const pass& p = c.p;
    const pass_setting& where = c.where;
    const auto lanes = static_cast<double>(p.lane_count);
    const auto efficiency = [&](level l, movement moves, double run, double stage_elements) {
        if (c.unpacked) {  // few rows are taken at once, and each line of them is read once
            return 1.0;
        }
        const double run_bytes = run * c.bytes_each;
        const bool packs_fibres = p.sweeps.size() == 1 && p.sweeps.front().p_extent >= packed_fibre_extent;
        return run_efficiency(
            l, run_bytes,
            lost_by_run(stage_elements * lanes * c.bytes_each / run_bytes, packs_fibres) +
                (moves == movement::transposing && l >= level::l3 ? lost_by_transposing(lanes) : 0.0));
    };
    const double two_pages = 2.0 * 4096.0 / c.bytes_each;
    const double per_byte_in = 1.0 / bandwidth(c.cpu, where.in, where.threads);
    const double per_byte_out = 1.0 / bandwidth(c.cpu, where.out, where.threads);
    // a line that is written is read first, unless the result is added to what is there, and so read anyway
    const double written = where.out >= level::l3 && !p.add ? 2.0 * bytes_out : bytes_out;
    // Each thread reads the input for each of its blocks of the factor, from afar the first time.
    const double again = c.in_blocks && !c.unpacked
                             ? (c.blocks * share - 1.0) * bytes_in /
                                   bandwidth(c.cpu, level_of(c.cpu, bytes_in, where.threads), where.threads)
                             : 0.0;
    return again + share * ((c.in_blocks ? 1.0 / share : 1.0) * bytes_in * per_byte_in /
                                efficiency(where.in, c.moves_in,
                                           contiguous_run(p, &pass_mode::stride_in, &pass_mode::extent_in, two_pages,
                                                          c.vector, batch),
                                           tile_stage_elements(p, 0)) +
                            written * per_byte_out /
                                efficiency(where.out, c.moves_out,
                                           contiguous_run(p, &pass_mode::stride_out, &pass_mode::extent_out, two_pages,
                                                          c.vector, batch),
                                           tile_stage_elements(p, p.sweeps.size())));
}

/// Predicts a cpu_tiles pass of one dtype. Cost: tens of nanoseconds.
OTIMES_COLD inline pass_cost cost_of(const pass& p, const cpu_description& cpu, dtype type, const pass_setting& where) {
    priced_pass c{p, cpu, type, where};
    c.vector = vector_count(cpu, type);
    c.bytes_each = static_cast<double>(element_bytes(type));
    c.peak = peak_flops(cpu, type);
    c.moves_in = movement_of(p, &pass_mode::stride_in);
    c.moves_out = movement_of(p, &pass_mode::stride_out);
    count_lanes(c);
    c.tile_level = tile_level_of(p, cpu, type, where.threads);
    c.tile_bandwidth = bandwidth(cpu, c.tile_level, where.threads);
    c.parts = takes_parts(p, cpu);
    c.packs_all = p.lane_mode >= 0 && p.sweeps.size() > 1 && tile_buffers_of(p, cpu, type) == 1;
    for (const sweep& s : p.sweeps) {
        c.packs_all = c.packs_all && s.p_extent >= packed_fibre_extent;
    }
    c.packs_all = c.packs_all || c.parts;
    c.in_blocks = p.block_columns > 0;
    c.blocks = c.in_blocks ? shared_parts(p) : 1.0;
    c.unpacked = c.in_blocks && p.block_rows == 0;
    c.rows = c.unpacked ? rows_at_once(p, type) : 1.0;

    const double loaded = tile_stage_elements(p, 0) * c.lane_fill * c.tiles;
    const double stored = tile_stage_elements(p, p.sweeps.size()) * c.lane_fill * c.tiles;
    const double batch = where.batches ? static_cast<double>(batch_count(p, type)) : 1.0;
    pass_cost cost;
    cost.compute_seconds = sweep_seconds(c, cost.flops);
    cost.compute_seconds += std::ceil(c.tiles / batch) * batch_dispatch * cpu.dispatch_seconds;
    cost.compute_seconds += move_seconds(c, loaded, stored);

    const double bytes_in = loaded * c.bytes_each;
    const double bytes_out = stored * c.bytes_each * (p.add ? 2.0 : 1.0);
    double factor_bytes = 0;
    for (const sweep& s : p.sweeps) {
        factor_bytes += matrix_bytes(s, type);
    }
    cost.bytes = bytes_in + bytes_out + factor_bytes;
    const double share = busiest_share(c.in_blocks            ? c.blocks
                                       : where.slab_count > 1 ? where.slab_count
                                                              : c.tiles,
                                       where.threads);
    cost.traffic_seconds = operand_seconds(c, bytes_in, bytes_out, share, batch);

    // Each thread reads the factors, once: of few rows that is most of the time. The kernels' efficiency counts it for factors in L2, unless
    // there is next to nothing else; parts have counted theirs.
    const level far = level_of(cpu, factor_bytes, 1);
    const double far_seconds = factor_bytes / bandwidth(cpu, far, where.threads);
    const double factor_seconds = c.unpacked ? share * far_seconds * std::ceil(c.tiles / c.rows)
                                  : c.parts || c.in_blocks || far == level::l1 ? 0.0
                                                                               : far_seconds;
    if (far > level::l2) {
        cost.traffic_seconds += factor_seconds;
    }
    // Packed whole a factor beyond L2 is read, and written there, before all else, each thread a share; in blocks it is read, and written
    // to L2.
    const double packing = c.unpacked || far <= level::l2 ? 0.0
                           : c.in_blocks ? share * (far_seconds + factor_bytes / cpu.l2_bytes_per_second)
                                         : packing_passes * far_seconds / where.threads;
    // A matrix by columns is transposed as it is packed, which few rows do not earn.
    const double turning = where.columns_contiguous && !c.unpacked
                               ? (turned_flops(cpu, type) * factor_bytes / c.bytes_each / c.peak +
                                  2.0 * factor_bytes / cpu.l2_bytes_per_second) /
                                     where.threads
                               : 0.0;
    const double slabs_each = std::ceil(where.slab_count / where.threads);
    cost.seconds = turning +
                   (std::max)(overlapped(cost.compute_seconds * share, cost.traffic_seconds), factor_seconds) +
                   packing + cpu.dispatch_seconds * slabs_each;
    if (where.threads > 1 && where.slab_count <= 1) {
        cost.seconds += barrier_forks * cpu.fork_seconds;  // behind a pass whose tiles are shared
    }
    const double per_byte_in = 1.0 / bandwidth(cpu, where.in, where.threads);
    const double per_byte_out = 1.0 / bandwidth(cpu, where.out, where.threads);
    cost.bound_seconds = (std::max)((bytes_in * per_byte_in + bytes_out * per_byte_out) / where.threads,
                                    cost.flops / (c.peak * where.threads));
    return cost;
}

}  // namespace otimes::planning

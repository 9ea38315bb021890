// SPDX-License-Identifier: MIT
/// @file gpu_blocks.hpp
/// Long factors, of which no tile holds all: which kernel multiplies one mode by one, and how long that takes. A block of kernels/blocked_multiply.cuh
/// computes 128 fibres x 16 to 96 new indices and goes through P in panels of 16 or 32; for floats, where there is a warpgroup's unit, one of
/// kernels/warpgroup_blocks.cuh 128 x 32 to 128, in panels of 32, or, of a factor that stays in shared memory, one of kernels/staying_factor.cuh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// A rate as predictions divide by it: of a machine written by hand that does not say one (0), slow, so that they stay numbers and a plan is
/// found.
OTIMES_ON_DEMAND inline double known_rate(double per_second) { return per_second > 0 ? per_second : 1e9; }

/// Flops per second of single TF32 products, of which a split one takes three.
OTIMES_ON_DEMAND inline double tf32_rate(const gpu_description& gpu) { return 3.0 * gpu.flops_f32_split; }

/// Flops per second of an arithmetic of a type, at its peak.
OTIMES_ON_DEMAND inline double peak_of(sweep_kernel arithmetic, dtype type, const gpu_description& gpu) {
    return known_rate(arithmetic == sweep_kernel::mma_split       ? gpu.flops_f32_split
                      : arithmetic == sweep_kernel::mma_tf32      ? tf32_rate(gpu)
                      : arithmetic == sweep_kernel::mma_f64       ? gpu.flops_f64_mma
                      : type != dtype::f64 && type != dtype::c128 ? gpu.flops_f32
                                                                  : gpu.flops_f64);
}

/// True where the matrix unit takes one TF32 product for each product: of 16-bit elements, and of floats on request. (A wish for bfloat16 products
/// gets these, too: the kernels' floats pass through shared memory, which binds them, not the unit.)
constexpr bool takes_single_products(dtype type, precision wished) noexcept {
    return is_widened(type) || (type == dtype::f32 && (wished == precision::tf32 || wished == precision::bf16));
}

/// True where the wishes leave a type the matrix unit: it sums in an order of its own, and whether it is used depends on the number of tiles.
constexpr bool may_use_unit(dtype type, const options& wishes) noexcept {
    return !wishes.deterministic && (type == dtype::f64 || type == dtype::c128 || wishes.precision != precision::ieee);
}

/// One mode: Y[b, f, q] = sum_p X[b, f, p] F[b, p, q], `fibres` of each of `batches` factors.
struct blocked_request {
    dtype type = dtype::f64;
    std::int64_t p = 1;
    std::int64_t q = 1;
    std::int64_t fibres = 1;
    std::int64_t batches = 1;
    bool may_use_unit = true;
    bool single = false;     ///< floats: single TF32 products
    bool aligned = true;     ///< X and F can be read by 16 bytes
    bool x_aligned = true;   ///< X can
    bool x_along_p = false;  ///< X's values of one fibre are neighbours in memory
};

/// An instantiation of the kernel.
struct blocked_kernel {
    sweep_kernel arithmetic = sweep_kernel::fibre;  ///< fibre: multiply-adds
    std::int32_t warps_of_q = 2;                    ///< a block computes warps_of_q * warp_q() new indices
    dtype type = dtype::f64;
    /// So many new indices a block, by the warpgroup's unit or of a factor that stays: a multiple of 8, 32 to 128; 0: by warps of their own.
    std::int32_t together = 0;
    /// Steps of eight of P, which all stay in shared memory; 0: panels pass.
    std::int32_t staying_steps = 0;

    [[nodiscard]] constexpr bool unit() const noexcept { return arithmetic != sweep_kernel::fibre; }
    /// Doubles by the unit, panels passing: fragments are read ahead of the products, so that one block fills a multiprocessor.
    [[nodiscard]] constexpr bool ahead() const noexcept { return arithmetic == sweep_kernel::mma_f64 && together == 0; }
    /// New indices of a warp.
    [[nodiscard]] constexpr std::int32_t warp_q() const noexcept {
        return unit() || type == dtype::f32 || is_widened(type) ? 32 : 16;
    }
    [[nodiscard]] constexpr std::int32_t fibres() const noexcept { return 128; }
    /// New indices of a block.
    [[nodiscard]] constexpr std::int32_t new_indices() const noexcept {
        return together != 0 ? together : warps_of_q * warp_q();
    }
    /// Values of p in a panel.
    [[nodiscard]] constexpr std::int32_t depth() const noexcept {
        return staying_steps != 0 ? 8 * ((staying_steps + staying_panels() - 1) / staying_panels())
               : together != 0 || (ahead() && warps_of_q > 1) ? 32
                                                              : 16;
    }
    /// Panels of a factor that stays: steps dealt out evenly, of floats at most four each, of doubles three.
    [[nodiscard]] constexpr std::int32_t staying_panels() const noexcept {
        return type == dtype::f64 ? (staying_steps + 2) / 3 : (staying_steps + 3) / 4;
    }
    /// Bytes of an element on chip.
    [[nodiscard]] constexpr std::int32_t scalar_bytes() const noexcept {
        return is_widened(type) ? 4 : static_cast<std::int32_t>(element_bytes(type));
    }
    /// Threads of a block, as in the kernel.
    [[nodiscard]] constexpr std::int32_t threads() const noexcept {
        if (together != 0) {
            return 256;
        }
        const std::int32_t warp_fibres = unit() ? (scalar_bytes() == 4 ? 64 : 32) : scalar_bytes() == 16 ? 32 : 64;
        return 32 * fibres() / warp_fibres * warps_of_q;
    }
    /// Bytes of shared memory, whatever the layouts of X and F: where the fibres begin, and three panels of both; by the warpgroup's unit where those of
    /// four tiles begin, four panels of both, and two of F, split; of a factor that stays all of it, split, and four panels of X (doubles: as it is,
    /// and three).
    [[nodiscard]] constexpr std::int64_t shared_bytes() const noexcept {
        const std::int64_t parts = arithmetic == sweep_kernel::mma_split ? 2 : 1;
        if (staying_steps != 0) {
            const std::int64_t begins = std::int64_t{32} * 4 * 8;  // of eight warps
            const std::int64_t brought = (type == dtype::f64 ? 3 * 24 : 4 * 40) * std::int64_t{fibres()};
            return 4 * (16 * fibres()) + begins + scalar_bytes() * (parts * 8 * staying_steps * together + brought);
        }
        if (together != 0) {
            const std::int64_t brought = std::int64_t{32} * (fibres() + 8) + std::int64_t{36} * together;
            return 4 * (16 * fibres() + 32) + 4 * (4 * brought + 2 * parts * 32 * together);
        }
        constexpr std::int64_t stages = 3;
        const std::int64_t pitch = depth() + 4;
        return 16 * fibres() + stages * pitch * (fibres() + std::int64_t{warps_of_q} * warp_q()) * scalar_bytes();
    }
    /// Blocks of one factor's product.
    [[nodiscard]] constexpr std::int64_t blocks(std::int64_t q, std::int64_t fibres_of_factor) const noexcept {
        return (q + new_indices() - 1) / new_indices() * ((fibres_of_factor + fibres() - 1) / fibres());
    }
    friend constexpr bool operator==(const blocked_kernel&, const blocked_kernel&) = default;
};

/// Less than this of P, Q or fibres leaves most of a block's panel empty; and where the longer of P and Q is less than that, tiles are faster, which
/// may hold several modes, or several terms of a sum.
inline constexpr std::int64_t least_blocked_extent = 24;
inline constexpr std::int64_t least_longer_extent = 48;

/// True where the factor of kernels/staying_factor.cuh may stay in shared memory: two panels at least, no more steps of eight than fit with 32 new
/// indices, and no shorter than tiles were measured to be slower (on an H200 tiles are 1.1 times as fast at 50 and 52, and for rows of doubles that
/// begin anywhere up to 65).
OTIMES_ON_DEMAND inline bool may_stay(const blocked_request& r) noexcept {
    const bool anywhere = r.type == dtype::f64 && r.x_along_p && !r.x_aligned;
    return r.p > 32 && r.p <= 640 && (std::max)(r.p, r.q) > (anywhere ? 65 : 52);
}

/// True where the kernel can be had and has enough to do.
OTIMES_ON_DEMAND inline bool suits_blocks(const blocked_request& r, const gpu_description& gpu) noexcept {
    return gpu.compiles && r.type != dtype::other && (std::min)({r.p, r.q, r.fibres}) >= least_blocked_extent &&
           (std::max)(r.p, r.q) >= least_longer_extent;
}

/// Share of the arithmetic's peak that a long sum of aligned operands reaches, and what is left of it where they are not: measured on an H200
/// (docs/notebook/gpu.md) but for single products, which are guessed; of doubles by the unit ahead_seconds.
OTIMES_ON_DEMAND inline double blocked_share(sweep_kernel arithmetic, bool aligned) noexcept {
    const double share = arithmetic == sweep_kernel::mma_split  ? 0.46
                         : arithmetic == sweep_kernel::mma_tf32 ? 0.25
                                                                : 0.48;
    return aligned ? share : 0.85 * share;
}

/// Seconds of the kernel by the warpgroup's unit without its launch. Measured on an H200: a panel takes as long as at 1.13 of the peak with 53 new indices
/// more (single products: 0.64, 91 more), for X is read and split whatever their number; where accesses are of 4 bytes, 1.8 times that.
/// A tile's end takes as long as two and a half panels.
OTIMES_ON_DEMAND inline double together_seconds(const blocked_request& r, const blocked_kernel& k,
                                                const gpu_description& gpu) noexcept {
    constexpr double panels_at_ends = 2.5;
    constexpr std::int64_t least_panels = 3;
    const bool single = k.arithmetic == sweep_kernel::mma_tf32;
    const std::int64_t panels = (std::max)((r.p + k.depth() - 1) / k.depth(), least_panels);
    const double flops_of_panel = 2.0 * k.fibres() * k.depth() * (k.together + (single ? 91 : 53));
    const double at_once = (std::max)(1, gpu.multiprocessors);
    const double rate = peak_of(k.arithmetic, r.type, gpu) * (single ? 0.64 : 1.13) / (r.aligned ? 1 : 1.8) / at_once;
    const std::int64_t tiles = r.batches * k.blocks(r.q, r.fibres);
    const double turns =
        static_cast<double>((tiles + (std::max)(1, gpu.multiprocessors) - 1) / (std::max)(1, gpu.multiprocessors));
    return turns * (static_cast<double>(panels) + panels_at_ends) * flops_of_panel / rate;
}

/// Seconds of the kernel whose factor stays, without its launch. Measured on an H200 (bench/results/staying_factor_h200.txt): a tile of 128 fibres takes
/// of floats 1.5 us, 0.55 for each panel and 1.25 ns for each step and new index, of doubles 2.6 us and its products at 0.85 of the peak; 1.6 times that
/// where X, or rows of Y, begin anywhere; and whenever a block brings its part of the factor 5 us, of doubles 3.5 and 2.5 ns for each step and new
/// index. Single products save 0.3 of what the steps take, which is guessed. What the L2 cache does not hold of X is read for each part of Q.
OTIMES_ON_DEMAND inline double staying_seconds(const blocked_request& r, const blocked_kernel& k,
                                               const gpu_description& gpu) noexcept {
    const bool doubles = r.type == dtype::f64;
    const std::int64_t at_once = (std::max)(1, gpu.multiprocessors);
    const double of_steps = static_cast<double>(k.staying_steps) * k.together;
    const double rate = 0.85 * peak_of(k.arithmetic, r.type, gpu) / static_cast<double>(at_once);
    const double whole_tile = doubles ? 2.6e-6 + 2.0 * k.fibres() * 8 * of_steps / rate
                                      : 1.5e-6 + 0.55e-6 * k.staying_panels() +
                                            1.25e-9 * (k.arithmetic == sweep_kernel::mma_tf32 ? 0.7 : 1.0) * of_steps;
    const bool wide = r.x_aligned && (!r.x_along_p || r.q % (16 / element_bytes(r.type)) == 0);
    const double tile = (wide ? 1.0 : 1.6) * whole_tile;
    const std::int64_t tiles = r.batches * k.blocks(r.q, r.fibres);
    const double parts = static_cast<double>(r.batches * k.blocks(r.q, 1)) / static_cast<double>(at_once);
    const double bytes_x = static_cast<double>(element_bytes(r.type)) * static_cast<double>(r.batches * r.fibres * r.p);
    const double reads = bytes_x > static_cast<double>(gpu.l2_bytes) ? static_cast<double>(k.blocks(r.q, 1)) : 1;
    const double bytes = bytes_x * (reads + static_cast<double>(r.q) / static_cast<double>(r.p));
    return (std::max)(static_cast<double>((tiles + at_once - 1) / at_once) * tile,
                      bytes / known_rate(gpu.memory_bytes_per_second)) +
           (doubles ? 3.5e-6 + 2.5e-9 * of_steps : 5e-6) * (std::max)(1.0, parts);
}

/// Seconds of doubles by the unit while panels pass, without the launch. Measured on an H200 (bench/results/doubles_ahead_h200.txt): a multiprocessor
/// has one block (of one warp's new indices two), whose panels take 0.70, 0.93 and 0.89 of the peak with one to three warps; its begin and end take as
/// long as three more; where X or F begin anywhere, 1.3 times that, 1.4 along p. A narrow block that is alone takes 0.75 of the time.
OTIMES_ON_DEMAND inline double ahead_seconds(const blocked_request& r, const blocked_kernel& k,
                                             const gpu_description& gpu) noexcept {
    constexpr double panels_at_ends = 2.9;
    const std::int64_t multiprocessors = (std::max)(1, gpu.multiprocessors);
    const std::int64_t tiles = r.batches * k.blocks(r.q, r.fibres);
    const bool narrow = k.warps_of_q == 1;
    const std::int64_t at_once = multiprocessors * (narrow ? 2 : 1);
    const double share = narrow ? 0.70 : k.warps_of_q == 2 ? 0.93 : 0.89;
    const double rate = share * peak_of(k.arithmetic, r.type, gpu) / static_cast<double>(at_once);
    const double panels = static_cast<double>((r.p + k.depth() - 1) / k.depth()) + panels_at_ends;
    const double tile = panels * 2.0 * k.fibres() * k.new_indices() * k.depth() / rate;
    const double turns = static_cast<double>((tiles + at_once - 1) / at_once);
    const double anywhere = r.aligned ? 1 : r.x_along_p ? 1.4 : 1.3;
    const double bytes = static_cast<double>(element_bytes(r.type)) * static_cast<double>(r.batches * r.fibres) *
                         static_cast<double>(r.p + r.q);
    return (std::max)((narrow && tiles <= multiprocessors ? 0.75 : 1.0) * anywhere * turns * tile,
                      bytes / known_rate(gpu.memory_bytes_per_second));
}

/// Seconds of the kernel without its launch, where many blocks are under way. Beginning and ending a tile take as long as so many panels.
OTIMES_ON_DEMAND inline double seconds_of_many_blocks(const blocked_request& r, const blocked_kernel& k,
                                                      const gpu_description& gpu) noexcept {
    if (k.together != 0) {
        return k.staying_steps != 0 ? staying_seconds(r, k, gpu) : together_seconds(r, k, gpu);
    }
    if (k.ahead()) {
        return ahead_seconds(r, k, gpu);
    }
    const double panels_at_ends = r.aligned ? 4 : 10;
    const std::int64_t depth = k.depth();
    const auto ceiling = [](std::int64_t n, std::int64_t d) { return (n + d - 1) / d; };
    // A last block that is nearly empty brings its part of X all the same.
    const std::int64_t block_q = k.new_indices();
    const std::int64_t whole = r.q / block_q * block_q;
    const std::int64_t columns = whole + (r.q > whole ? (std::max)(ceiling(r.q - whole, 8) * 8, block_q / 2) : 0);
    const double flops = 2.0 * static_cast<double>(multiply_add_weight(r.type)) * static_cast<double>(r.batches) *
                         static_cast<double>(r.fibres) * static_cast<double>(columns) * static_cast<double>(depth) *
                         (static_cast<double>(ceiling(r.p, depth)) + panels_at_ends);
    const double seconds = flops / (peak_of(k.arithmetic, r.type, gpu) * blocked_share(k.arithmetic, r.aligned));
    // Whole turns of a block on each multiprocessor; more blocks there hide each other's waits.
    const double tiles = static_cast<double>(r.batches * k.blocks(r.q, r.fibres));
    const double at_once = (std::max)(1, gpu.multiprocessors);
    const double turns = static_cast<double>(static_cast<std::int64_t>((tiles + at_once - 1) / at_once));
    return seconds * turns * at_once / tiles;
}

/// Seconds of the kernel without its launch: at least those of a block that waits for each of its panels (measured: 7 us and 0.6 for each).
OTIMES_ON_DEMAND inline double blocked_seconds(const blocked_request& r, const blocked_kernel& k,
                                               const gpu_description& gpu) noexcept {
    const double panels = static_cast<double>((r.p + k.depth() - 1) / k.depth());
    return (std::max)(seconds_of_many_blocks(r, k, gpu), 7e-6 + 0.6e-6 * panels);
}

/// The arithmetic that the device has for a type.
OTIMES_ON_DEMAND inline blocked_kernel arithmetic_for(const blocked_request& r, const gpu_description& gpu) noexcept {
    blocked_kernel k;
    k.type = r.type;
    if (r.may_use_unit && has_unit(gpu, r.type)) {
        k.arithmetic = r.type == dtype::f64             ? sweep_kernel::mma_f64
                       : is_complex(r.type)             ? sweep_kernel::fibre
                       : is_widened(r.type) || r.single ? sweep_kernel::mma_tf32
                                                        : sweep_kernel::mma_split;
    }
    return k;
}

/// True where the device has the unit that multiplies by factors that stay (and, of floats, by those that pass).
OTIMES_ON_DEMAND inline bool multiplies_together(const blocked_kernel& k, const gpu_description& gpu) noexcept {
    return k.unit() && (k.type == dtype::f64 || (k.type == dtype::f32 && gpu.has_warpgroup_mma));
}

/// New indices of a block where `shares` have Q evenly.
constexpr std::int32_t even_share(std::int64_t q, std::int64_t shares) noexcept {
    return static_cast<std::int32_t>((std::max)(((q + shares - 1) / shares + 7) / 8 * 8, std::int64_t{32}));
}

/// The kernel that may store where it reads, where strides are equal: of a square factor that stays whole, so that a warp reads its fibres, which no
/// other reads, before it stores them. Nothing where there is none. @pre suits_blocks
OTIMES_ON_DEMAND inline std::optional<blocked_kernel> in_place_kernel_for(const blocked_request& r,
                                                                          const gpu_description& gpu) noexcept {
    blocked_kernel k = arithmetic_for(r, gpu);
    k.together = even_share(r.q, 1);
    k.staying_steps = static_cast<std::int32_t>((r.p + 7) / 8);
    const bool is_one = r.p == r.q && r.q <= 128 && may_stay(r) && multiplies_together(k, gpu) &&
                        k.shared_bytes() <= gpu.shared_bytes_per_block;
    return is_one ? std::optional(k) : std::nullopt;
}

/// As many new indices a block as are fastest; nothing where no block has room. @pre suits_blocks
OTIMES_ON_DEMAND inline std::optional<blocked_kernel> blocked_kernel_for(const blocked_request& r,
                                                                         const gpu_description& gpu) noexcept {
    blocked_kernel k = arithmetic_for(r, gpu);
    std::optional<blocked_kernel> best;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int32_t warps : {2, 3, 1}) {  // the best first, where they are equal
        k.warps_of_q = warps;
        const double seconds = seconds_of_many_blocks(r, k, gpu);
        if (k.shared_bytes() <= gpu.shared_bytes_per_block && seconds < 0.98 * least) {
            least = seconds;
            best = k;
        }
    }
    k = arithmetic_for(r, gpu);
    if (multiplies_together(k, gpu)) {
        // Q in even shares, as wide as there are and narrower, so that few fibres are many blocks.
        for (std::int64_t shares = (r.q + 127) / 128; shares <= (r.q + 31) / 32; ++shares) {
            k.together = even_share(r.q, shares);
            const std::int64_t steps = (r.p + 7) / 8;
            for (const bool stays : {false, true}) {
                if (stays ? !may_stay(r) : r.type == dtype::f64) {
                    continue;
                }
                k.staying_steps = stays ? static_cast<std::int32_t>(steps) : 0;
                const double seconds = seconds_of_many_blocks(r, k, gpu);
                // What stays whole may be multiplied in place (in_place_kernel_for), which saves a buffer.
                const bool in_place = stays && r.type == dtype::f64 && r.p == r.q && k.together >= r.q;
                const double as_good = in_place ? 1.1 : 0.98;
                if (k.shared_bytes() <= gpu.shared_bytes_per_block && seconds < as_good * least) {
                    least = seconds;
                    best = k;
                }
            }
        }
    }
    return best;
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file gpu_kernel_choice.hpp
/// Which GPU kernel does a pass, with which tile and arithmetic, and its predicted time. Pure arithmetic on a gpu_description, so a laptop
/// can plan for any GPU. gpu_tiles.hpp chooses the tile of one group of modes.
///
/// A kernel goes once over its input and output. Its tile holds
///   - gpu_trailing: `tile.rows` contiguous segments of prod(P) elements, when the group ends at the innermost mode; the blocks
///     of a cluster may share one;
///   - gpu_outer: prod(P) runs of `tile.run` contiguous elements, runs of at least 32 bytes (one sector);
///   - gpu_blocked: panels of X and of one long factor, any strides (gpu_blocks.hpp);
///   - gpu_generic: nothing; any strides, one output element per thread, or for a few threads (gpu_generic.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/gpu_generic.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_pieces.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Which multiply-adds a sweep uses and their rate in flops per second.
struct gpu_rate {
    sweep_kernel kernel = sweep_kernel::fibre;
    double flops_per_second = 0;
};

/// Tensor cores where they are as accurate as asked for and a factor fills their tiles (extents of at least 8).
OTIMES_ON_DEMAND inline gpu_rate rate_of(const gpu_description& gpu, dtype type, precision wished,
                                         std::int64_t p_extent, std::int64_t q_extent) {
    const bool fills = p_extent >= 8 && q_extent >= 8;
    if (type != dtype::f64 && type != dtype::c128) {
        if (fills && wished != precision::ieee && gpu.has_tf32_mma && gpu.flops_f32_split > gpu.flops_f32) {
            return takes_single_products(type, wished) ? gpu_rate{sweep_kernel::mma_tf32, tf32_rate(gpu)}
                                                       : gpu_rate{sweep_kernel::mma_split, gpu.flops_f32_split};
        }
        return {sweep_kernel::fibre, gpu.flops_f32};
    }
    const bool matrix = fills && (gpu.has_f64_mma || gpu.has_f64_mma_wide) && gpu.flops_f64_mma > gpu.flops_f64;
    return matrix ? gpu_rate{sweep_kernel::mma_f64, gpu.flops_f64_mma} : gpu_rate{sweep_kernel::fibre, gpu.flops_f64};
}

/// What the chain's passes are chosen under.
struct gpu_setting {
    const gpu_description* gpu = nullptr;
    bool unit_f32 = true;     ///< float products may be split over the matrix unit
    bool unit_f64 = true;     ///< double products may take the matrix unit
    bool single = false;      ///< float products may be single TF32 ones
    bool in_l2 = false;       ///< intermediates stay in L2
    bool through_y = false;   ///< intermediates whose remaining sweeps are square lie in Y
    bool one_order = false;   ///< a sum's order depends on its length alone
    bool alone = false;       ///< the program is this chain: nothing is joined with the kernel of a pass
    bool on_chip = false;     ///< a row, or a piece of it, stays on chip: gpu_pieces.hpp
    bool in_pieces = false;   ///< with on_chip: a piece may do
    bool only_tiles = false;  ///< where a tile has room, it is taken
};

/// True for the arithmetic of a matrix unit.
constexpr bool is_unit(sweep_kernel k) noexcept {
    return k == sweep_kernel::mma_split || k == sweep_kernel::mma_f64 || k == sweep_kernel::mma_tf32;
}

/// Share of a unit's peak that the fused kernels reach on a mode of this extent: fitted to the measured passes of an H200.
OTIMES_ON_DEMAND inline double share_of_peak(sweep_kernel kernel, dtype type, std::int64_t extent) {
    if (kernel == sweep_kernel::mma_tf32) {
        return extent >= 64 ? 0.30 : extent >= 32 ? 0.22 : 0.15;  // the tile's way through shared memory
    }
    if (kernel == sweep_kernel::mma_split) {
        return extent >= 128 ? 0.40 : extent >= 64 ? 0.46 : extent >= 32 ? 0.37 : 0.31;
    }
    if (kernel == sweep_kernel::mma_f64) {
        return extent >= 128 ? 0.54 : extent >= 64 ? 0.45 : extent >= 32 ? 0.42 : extent >= 16 ? 0.33 : 0.23;
    }
    // Beyond registers several threads share a fibre, and each reads all of it.
    return is_complex(type) ? 0.6 : extent > 64 ? 0.18 : extent > 48 ? 0.30 : extent > 32 ? 0.38 : 0.45;
}

/// The same of the unit on extents that are filled up to its steps, with the zeros' products. `ahead`: the next tile arrives meanwhile.
OTIMES_ON_DEMAND inline double share_filled_up(sweep_kernel kernel, std::int64_t extent, bool ahead) {
    if (kernel == sweep_kernel::mma_f64) {
        return extent >= 64 ? 0.33 : 0.40;
    }
    return kernel != sweep_kernel::mma_split ? 0.15 : ahead ? 0.5 : 0.33;
}

/// What the matrix unit does for each multiply-add of a sweep, as it takes whole steps of its own: 1 where the extents are such.
OTIMES_ON_DEMAND inline double unit_work(const sweep& s, dtype type) {
    if (!is_unit(s.kernel)) {
        return 1;
    }
    const std::int64_t granule = unit_granule(type);
    const auto filled = [&](std::int64_t n) {
        return static_cast<double>(group_memory::round_up_to(n, granule)) / static_cast<double>(n);
    };
    return filled(s.p_extent) * filled(s.q_extent);
}

/// Leaves a pass of one mode no tile, at the time predicted for a kernel without one.
OTIMES_ON_DEMAND OTIMES_COLD inline void give_up_tile(dtype type, double elements_in, double bound_seconds,
                                                      double predicted_seconds, pass& p) {
    const sweep& s = p.sweeps.front();
    p.tile = {};
    p.shared_bytes = 0;
    p.lane_mode = -1;
    p.lane_count = 1;
    p.bytes = s.p_extent * s.q_extent * element_bytes(type);
    saturating_add(p.bytes,
                   elements_in * static_cast<double>(element_bytes(type)) *
                       (1 + (p.add ? 2.0 : 1.0) * static_cast<double>(s.q_extent) / static_cast<double>(s.p_extent)));
    p.bound_seconds = bound_seconds;
    p.predicted_seconds = predicted_seconds;
}

/// A pass of one mode, of which each slab has an equal share.
OTIMES_ON_DEMAND inline blocked_request blocked_request_of(const gpu_setting& setting, dtype type, double elements_in,
                                                           double slabs, const pass& p) {
    const sweep& s = p.sweeps.front();
    blocked_request request;
    request.type = type;
    request.p = s.p_extent;
    request.q = s.q_extent;
    request.fibres = static_cast<std::int64_t>(elements_in / static_cast<double>(s.p_extent) / slabs);
    request.may_use_unit = is_widened(type) || type == dtype::f32 ? setting.unit_f32 : setting.unit_f64;
    request.single = setting.single;
    const std::int64_t vector = 16 / element_bytes(type);
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        const pass_mode& m = p.modes[k];
        request.x_aligned = request.x_aligned && (m.extent_in == 1 || m.stride_in == 1 || m.stride_in % vector == 0) &&
                            (m.stride_in != 1 || m.extent_in % vector == 0);
        request.x_along_p = request.x_along_p || (static_cast<std::int32_t>(k) == s.mode && m.stride_in == 1);
    }
    request.aligned = request.x_aligned && request.q % vector == 0;
    return request;
}

/// The kernel by blocks of a pass that stores where it reads; nothing where none may.
OTIMES_ON_DEMAND inline std::optional<blocked_kernel> in_place_kernel_of(const blocked_request& request,
                                                                         const gpu_description& gpu, const pass& p) {
    const bool same_places =
        std::ranges::all_of(p.modes, [](const pass_mode& m) { return m.stride_in == m.stride_out; });
    return same_places ? in_place_kernel_for(request, gpu) : std::nullopt;
}

/// Makes a pass of one mode go by blocks of a long factor, where that is predicted to be faster than what it has. A tile that was measured stays,
/// unless the factor may stay on chip and a seventh is gained. in_place: only by blocks that may store where they read.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_blocks(const gpu_setting& setting, dtype type, double elements_in,
                                                     double slabs, double seconds_memory, bool measured, bool in_place,
                                                     pass& p) {
    const gpu_description& gpu = *setting.gpu;
    sweep& s = p.sweeps.front();
    const blocked_request request = blocked_request_of(setting, type, elements_in, slabs, p);
    // Tiles of shorter modes of several chains may share a launch (kernels/fused_sum.cuh).
    if (!suits_blocks(request, gpu) || (!setting.alone && (std::max)(s.p_extent, s.q_extent) <= 64)) {
        return;
    }
    const std::optional<blocked_kernel> kernel =
        in_place ? in_place_kernel_of(request, gpu, p) : blocked_kernel_for(request, gpu);
    if (!kernel || (measured && kernel->staying_steps == 0)) {
        return;
    }
    const double peak = peak_of(kernel->arithmetic, type, gpu);
    const blocks_in_pieces way = setting.one_order || slabs > 1 || in_place
                                     ? blocks_in_pieces{1, blocked_seconds(request, *kernel, gpu)}
                                     : pieces_of_blocks(request, *kernel, gpu);
    const double seconds = slabs * ((std::max)(way.seconds, seconds_memory / slabs) + gpu.launch_seconds);
    const double bound = (std::max)(seconds_memory, static_cast<double>(p.flops) / peak);
    if ((std::max)(seconds, bound) >= (measured ? 0.85 : 1.0) * p.predicted_seconds) {
        return;
    }
    give_up_tile(type, elements_in, bound, (std::max)(seconds, bound), p);
    p.kernel = pass_kernel::gpu_blocked;
    p.tile.slices = static_cast<std::int32_t>(way.pieces);
    s.kernel = kernel->arithmetic;
}

/// Makes a pass of one mode go sum by sum, where that is predicted to be faster than the tile it has: few long sums, which leave most of a tile's
/// threads without work.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_sums(const gpu_setting& setting, dtype type, double elements_in,
                                                   double elements_out, double slabs, double seconds_memory, pass& p) {
    const gpu_description& gpu = *setting.gpu;
    sweep& s = p.sweeps.front();
    const std::int32_t threads = threads_of_sum(type, s.p_extent, static_cast<std::int64_t>(elements_out));
    const double bound =
        (std::max)(seconds_memory, static_cast<double>(p.flops) / peak_of(sweep_kernel::scalar, type, gpu));
    const double seconds =
        (std::max)(bound, generic_seconds(type, s.p_extent, elements_out, threads, seconds_memory, gpu)) +
        slabs * gpu.launch_seconds;
    if (1.3 * seconds >= p.predicted_seconds) {  // predictions of so few microseconds differ by that much
        return;
    }
    give_up_tile(type, elements_in, bound, seconds, p);
    p.kernel = pass_kernel::gpu_generic;
    p.tile.slices = threads;
    s.kernel = sweep_kernel::scalar;
}

/// Makes a pass of one mode sum few fibres by a long factor at once, where that is predicted to be faster than what it has. Of all slabs' fibres, so
/// that slabs change no bit.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_few_fibres(const gpu_setting& setting, dtype type, double elements_in,
                                                         double slabs, double seconds_memory, pass& p) {
    const gpu_description& gpu = *setting.gpu;
    sweep& s = p.sweeps.front();
    const auto fibres = static_cast<std::int64_t>(elements_in / static_cast<double>(s.p_extent));
    if (!has_room_for_few_fibres(gpu) || fibres < 2 || fibres > most_few_fibres ||
        matrix_bytes(s, type) < static_cast<double>(least_few_bytes)) {
        return;
    }
    const double bound =
        (std::max)(seconds_memory, static_cast<double>(p.flops) / peak_of(sweep_kernel::scalar, type, gpu));
    const double seconds = (std::max)(bound, slabs * (few_fibres_seconds(type, s, fibres, gpu) + gpu.launch_seconds));
    if (1.1 * seconds >= p.predicted_seconds) {
        return;
    }
    give_up_tile(type, elements_in, bound, seconds, p);
    p.kernel = pass_kernel::gpu_generic;
    p.tile.slices = threads_of_few;
    p.tile.rows = fibres_at_once(type, fibres);
    s.kernel = sweep_kernel::scalar;
}

/// True of the types whose products are those of floats, 16-bit elements among them.
constexpr bool has_float_products(dtype type) noexcept { return type != dtype::f64 && type != dtype::c128; }

/// What a pass asks of the kernel that is chosen for it, and what the prediction takes from that kernel.
struct kernel_in_use {
    /// How a sweep's fibres are shared out.
    struct sweep_use {
        std::int32_t split = 1;  ///< threads or warps that share a fibre
        trip_use trip;
    };
    double elements_in = 1;
    double elements_out = 1;
    double copies = 0;         ///< measured: the pass takes so many times its memory traffic; 0: formulas decide
    double tiles = 0;          ///< in all
    std::int32_t cluster = 1;  ///< blocks that share a tile
    std::int64_t inner = 1;    ///< contiguous elements below the group
    bool one_by_one = false;   ///< rows or runs begin where no whole access may
    double in_tiles = 1;       ///< of each lane, of which the last tile has but some
    std::vector<sweep_use> sweeps;
};

/// The level of each mode in the group of those that are contracted, from 1, outermost first; 0: it is not contracted.
OTIMES_ON_DEMAND OTIMES_COLD inline std::vector<std::int32_t> group_levels(
    const std::vector<std::uint8_t>& contracted) {
    std::vector<std::int32_t> levels(contracted.size(), 0);
    std::int32_t level = 0;
    for (std::size_t k = 0; k < contracted.size(); ++k) {
        levels[k] = contracted[k] != 0 ? ++level : 0;
    }
    return levels;
}

/// What a pass asks of a tile for the group of its contracted modes. @param levels as of group_levels
OTIMES_ON_DEMAND OTIMES_COLD inline group_request tile_request_of(const fusion_setting& f, const gpu_setting& setting,
                                                                  const group_place& place,
                                                                  const std::vector<std::int32_t>& levels,
                                                                  bool inner_in, const pass& p) {
    group_request request;
    request.outer = place.inner > 1;
    request.type = f.source->type;
    request.may_use_unit = has_float_products(request.type) ? setting.unit_f32 : setting.unit_f64;
    request.single = setting.single && request.type == dtype::f32;
    request.groups = place.groups();
    request.parts_per_line = place.parts_per_line;
    request.inner = place.inner;
    request.may_alias = inner_in && setting.through_y;  // what lies between two passes may lie in Y
    request.one_part = place.parts_per_line == 1;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        if (levels[k] != 0) {
            request.p.push_back(p.modes[k].extent_in);
            request.q.push_back(p.modes[k].extent_out);
        }
    }
    if (request.outer) {
        // A tile of several tensors: their number is the same in every launch of the pass.
        const gpu_group g = without_tile(request);
        request.parts_per_line =
            f.slab.count > 1 ? 1 : place.with_lines_joined(g.count_p(), g.count_q()).parts_per_line;
    }
    for (const sweep& s : p.sweeps) {
        request.order.push_back(levels[static_cast<std::size_t>(s.mode)]);
    }
    return request;
}

/// The group that serves a request: of a row, or a piece of it, that stays on chip; with the tile that it must have (`forced`); or the best one.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<chosen_group> group_for(const gpu_setting& setting,
                                                                          const group_request& request,
                                                                          const gpu_tile* forced) {
    const gpu_description& gpu = *setting.gpu;
    if (setting.on_chip) {
        std::optional<gpu_group> g = group_in_pieces(request, setting.in_pieces, gpu);
        return g ? std::optional(chosen_group{std::move(*g), 0}) : std::nullopt;
    }
    if (forced == nullptr) {
        return choose_group(request, gpu);
    }
    chosen_group chosen{without_tile(request), 0};
    chosen.group.tile = *forced;
    const bool can = why_illegal(chosen.group, gpu).empty() && may_serve(chosen.group, request);
    return can ? std::optional(std::move(chosen)) : std::nullopt;
}

/// Makes a pass one of a chosen group: its kernel, its tile, and the arithmetic of its sweeps.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_group(const chosen_group& chosen, const group_place& place,
                                                    const std::vector<std::int32_t>& levels, pass& p,
                                                    kernel_in_use& use) {
    const gpu_group& g = chosen.group;
    p.kernel = g.outer ? pass_kernel::gpu_outer : pass_kernel::gpu_trailing;
    p.tile = g.tile;
    p.shared_bytes = static_cast<std::int32_t>(shared_bytes_of(g));
    use.copies = chosen.copies;
    use.cluster = g.tile.cluster * g.tile.slices;
    use.tiles = static_cast<double>(place.tiles(g) * g.tile.pieces);
    if (g.outer) {
        const std::int64_t whole = group_memory::round_up_to(place.inner, g.tile.run);
        use.in_tiles = static_cast<double>(whole) / static_cast<double>(place.inner);
        for (std::size_t k = p.modes.size(); k-- > 0 && p.lane_mode < 0;) {
            p.lane_mode = levels[k] == 0 && p.modes[k].extent_in > 1 ? static_cast<std::int32_t>(k) : -1;
        }
        p.lane_count =
            (std::min)(static_cast<std::int64_t>(g.tile.run), p.modes[static_cast<std::size_t>(p.lane_mode)].extent_in);
    }
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        sweep& s = p.sweeps[i];
        const std::size_t at = g.trip_of(levels[static_cast<std::size_t>(s.mode)]);
        const gpu_trip& trip = g.tile.trips[at];
        use.sweeps[i] = {trip.split, use_of_trip(g, at)};
        s.kernel = !trip.matrix                     ? sweep_kernel::fibre
                   : is_widened(g.type) || g.single ? sweep_kernel::mma_tf32
                   : has_float_products(g.type)     ? sweep_kernel::mma_split
                                                    : sweep_kernel::mma_f64;
    }
}

/// Gives an outlined pass a tile where there is one, else the kernel that needs none.
OTIMES_ON_DEMAND OTIMES_COLD inline kernel_in_use choose_tile(const fusion_setting& f, const gpu_setting& setting,
                                                              bool inner_in, const gpu_tile* forced, pass& p) {
    kernel_in_use use;
    for (const pass_mode& m : p.modes) {
        use.elements_in *= static_cast<double>(m.extent_in);
        use.elements_out *= static_cast<double>(m.extent_out);
    }
    use.sweeps.resize(p.sweeps.size());
    p.kernel = pass_kernel::gpu_generic;
    p.tile = {};
    p.shared_bytes = 0;
    p.lane_mode = -1;
    p.lane_count = 1;
    const std::vector<std::uint8_t> contracted = contracted_modes(p);
    const std::optional<group_place> place = p.sweeps.empty() ? std::nullopt : place_of_group(p.modes, contracted);
    if (place && (forced == nullptr || !forced->trips.empty())) {
        const std::vector<std::int32_t> levels = group_levels(contracted);
        const group_request request = tile_request_of(f, setting, *place, levels, inner_in, p);
        use.inner = place->inner;
        use.one_by_one =
            (request.outer ? request.inner : request.p.back()) % group_memory::vector_of(request.type) != 0;
        if (const std::optional<chosen_group> chosen = group_for(setting, request, forced)) {
            take_group(*chosen, *place, levels, p, use);
        }
    }
    for (sweep& s : p.sweeps) {
        s.kernel = p.kernel == pass_kernel::gpu_generic ? sweep_kernel::scalar : s.kernel;
    }
    return use;
}

/// Share of the peak at which sweep `at` runs, where the products with the zeros that fill it up count as well.
OTIMES_ON_DEMAND OTIMES_COLD inline double share_of_sweep(dtype type, const kernel_in_use& use, const pass& p,
                                                          std::size_t at) {
    const sweep& s = p.sweeps[at];
    const bool filled_up = unit_work(s, type) > 1;
    // Of multiply-adds the longer extent where registers do not hold the fibre: 100 x 40 and 40 x 100 floats reach 0.18 of the peak, as 100 x 100.
    const bool held = is_unit(s.kernel) || s.p_extent <= 32;
    double share =
        share_of_peak(s.kernel, type, held ? (std::min)(s.p_extent, s.q_extent) : (std::max)(s.p_extent, s.q_extent));
    if (filled_up) {
        // Of doubles that go through several modes only the first read and the last store come one by one.
        const bool loses = use.one_by_one && (type != dtype::f64 || p.sweeps.size() == 1);
        const bool mixed = std::ranges::any_of(p.sweeps, [](const sweep& other) { return !is_unit(other.kernel); });
        share = share_filled_up(s.kernel, s.p_extent, p.tile.slots == 2 && p.sweeps.size() == 1) *
                (loses ? 0.65 : 1.0) * (mixed ? 0.65 : 1.0) / use.in_tiles;
    } else if (use.copies == 0 && use.sweeps[at].split > 1 && is_unit(s.kernel) && s.p_extent > 64 &&
               !std::has_single_bit(static_cast<std::uint64_t>(s.p_extent))) {
        share *= 0.5;  // warps that share fibres of 80 to 192 (measured)
    }
    // Lanes without a fibre take their time; of warps without one other blocks take over what they can, of the unit's all.
    if (!is_unit(s.kernel) && use.copies == 0) {
        share *= std::sqrt(use.sweeps[at].trip.busy) *
                 std::pow((std::min)(1.0, p.tile.threads * p.tile.blocks / 512.0), 0.25);
    }
    share *= use.sweeps[at].trip.filled / (filled_up ? 1 : use.in_tiles);
    return share;
}

/// What the products of a pass take, in seconds.
struct products_cost {
    double flops = 0;
    double factor_elements = 0;
    double at_peak = 0;
    double expected = 0;
    double alone = 0;  ///< as at the peak, of a block that has a multiprocessor's part to itself
};

/// The products of all sweeps, one after another: of each 2 * weight * elements * q flops, work * flops / (peak * share) seconds.
OTIMES_ON_DEMAND OTIMES_COLD inline products_cost products_of(const gpu_description& gpu, dtype type,
                                                              const kernel_in_use& use, const pass& p) {
    const auto weight = static_cast<double>(multiply_add_weight(type));
    products_cost cost;
    double elements = use.elements_in;
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        const sweep& s = p.sweeps[i];
        const double one = 2.0 * weight * elements * static_cast<double>(s.q_extent);
        const double peak = peak_of(s.kernel, type, gpu);
        const double work = unit_work(s, type);  // what the unit does for each of the products
        const trip_use& trip = use.sweeps[i].trip;
        cost.flops += one;
        cost.at_peak += one / peak;
        cost.expected += work * one / (peak * share_of_sweep(type, use, p, i));
        cost.alone += work * one * use.in_tiles / (peak * trip.filled * trip.busy);
        elements *= static_cast<double>(s.q_extent) / static_cast<double>(s.p_extent);
        cost.factor_elements += static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent);
    }
    return cost;
}

/// What the memory traffic of a pass takes.
struct traffic_cost {
    double bytes = 0;    ///< without the factors
    double once = 0;     ///< seconds of X and Y once, as kernels without a tile have them
    double seconds = 0;  ///< of what a tile has of them, which may be launched slice by slice
    double adding = 0;   ///< seconds of that to read Y first, where it is added to
};

/// X once for each slice that is a launch, Y once for each piece; intermediates in L2 move at its rate.
OTIMES_ON_DEMAND OTIMES_COLD inline traffic_cost traffic_of(const gpu_setting& setting, dtype type,
                                                            const kernel_in_use& use, bool inner_in, bool inner_out,
                                                            const pass& p) {
    const gpu_description& gpu = *setting.gpu;
    const auto bytes_each = static_cast<double>(element_bytes(type));
    const double bytes_in = use.elements_in * bytes_each;
    const double bytes_out = use.elements_out * bytes_each * (p.add ? 2.0 : 1.0);
    const double far = known_rate(gpu.memory_bytes_per_second);
    const double near = setting.in_l2 ? known_rate(gpu.l2_bytes_per_second) : far;
    const double reads = is_sliced_by_launches(p.tile) ? p.tile.slices : 1;  // of the input
    traffic_cost cost;
    cost.bytes = reads * bytes_in + p.tile.pieces * bytes_out;
    cost.once = bytes_in / (inner_in ? near : far) + bytes_out / (inner_out ? near : far);
    cost.seconds = cost.once + (reads - 1) * bytes_in / (inner_in ? near : far) +
                   (p.tile.pieces - 1) * bytes_out / known_rate(gpu.l2_bytes_per_second);
    cost.adding = p.add ? use.elements_out * bytes_each / (inner_out ? near : far) : 0;
    return cost;
}

/// What few tiles take at least, in seconds; 0 where there are many. A block takes 1 us to start, half of one per trip, 0.04 us for each factor
/// element of a thread, and works at the pace of a quarter of a multiprocessor.
OTIMES_ON_DEMAND OTIMES_COLD inline double few_tiles_seconds(const gpu_description& gpu, const kernel_in_use& use,
                                                             const products_cost& products, double slabs,
                                                             const pass& p) {
    const double multiprocessors = (std::max)(1, gpu.multiprocessors);
    // Slices that are launches of their own come one after another, so that what one of them leaves idle adds up (512^2 in double for one
    // vector: 4.2 us each on an H200, at half of a multiprocessor's pace).
    const double in_a_row = is_sliced_by_launches(p.tile) ? p.tile.slices : 1.0;
    const double turns = std::ceil(use.tiles / slabs * use.cluster / in_a_row / (multiprocessors * p.tile.blocks));
    if (turns > (in_a_row > 1 ? 1 : 2)) {
        return 0;
    }
    const double one_tile =
        0.5e-6 * static_cast<double>(p.tile.trips.size()) +
        (in_a_row > 1 ? 2.0 : 4.0) * multiprocessors * products.alone / (std::max)(1.0, use.tiles) / use.cluster;
    const double factors = 0.04e-6 * products.factor_elements / in_a_row / p.tile.threads;
    return slabs * (1e-6 + in_a_row * (factors + turns * one_tile));
}

/// Seconds of a pass by tiles, without the launches: the measured multiple of its memory traffic, or
/// 1.5 us + 1.1 * sqrt(memory^2 + arithmetic^2), and at least what few tiles take.
OTIMES_ON_DEMAND OTIMES_COLD inline double tiled_seconds(const gpu_setting& setting, dtype type,
                                                         const kernel_in_use& use, const products_cost& products,
                                                         const traffic_cost& traffic, double slabs, const pass& p) {
    if (use.copies > 0) {
        return use.copies * (traffic.seconds - traffic.adding) + traffic.adding;
    }
    // One block a multiprocessor with nothing on its way waits for every load; short runs fetch part of a sector's
    // neighbours in vain. What was not measured must promise a tenth more.
    const double multiprocessors = (std::max)(1, setting.gpu->multiprocessors);
    const bool alone = p.tile.blocks == 1 && p.tile.slots == 0 && use.tiles > multiprocessors && !setting.on_chip;
    const double run_bytes = p.tile.run * static_cast<double>(element_bytes(type));
    const bool short_runs = p.tile.run > 1 && p.tile.run < use.inner && run_bytes < (use.one_by_one ? 96 : 64);
    const double in_vain = !short_runs ? 1.0 : use.one_by_one && run_bytes <= 32 ? 1.5 : 1.15;
    const double seconds =
        1.5e-6 + 1.1 * (alone ? 1.25 : 1.0) * in_vain * std::hypot(traffic.seconds, products.expected);
    return (std::max)(seconds, few_tiles_seconds(*setting.gpu, use, products, slabs, p));
}

/// Seconds of a pass without a tile, without the launches: one mode at a time, of which several threads may share a sum.
OTIMES_ON_DEMAND OTIMES_COLD inline double generic_pass_seconds(const gpu_setting& setting, dtype type,
                                                                const kernel_in_use& use, const traffic_cost& traffic,
                                                                pass& p) {
    const std::int64_t length = p.sweeps.empty() ? 0 : p.sweeps.front().p_extent;
    if (!setting.one_order) {
        p.tile.slices = threads_of_sum(type, length, static_cast<std::int64_t>(use.elements_out));
    }
    return p.sweeps.size() > 1
               ? std::numeric_limits<double>::infinity()
               : generic_seconds(type, length, use.elements_out, p.tile.slices, traffic.seconds, *setting.gpu);
}

/// Chooses kernel and tile of an outlined pass (`forced`: the tile that it must have) and predicts it: at least the longer one of its memory traffic
/// and its products at the peak, and a launch for each slab. A pass of one mode may do without a tile.
OTIMES_ON_DEMAND OTIMES_COLD inline void choose_gpu_kernel(const fusion_setting& f, const gpu_setting& setting,
                                                           bool inner_in, bool inner_out, const gpu_tile* forced,
                                                           pass& p) {
    const dtype type = f.source->type;
    const auto slabs = static_cast<double>(f.slab.count);
    const kernel_in_use use = choose_tile(f, setting, inner_in, forced, p);
    const products_cost products = products_of(*setting.gpu, type, use, p);
    const traffic_cost traffic = traffic_of(setting, type, use, inner_in, inner_out, p);
    p.flops = 0;
    saturating_add(p.flops, products.flops);
    p.bytes = 0;
    saturating_add(p.bytes, traffic.bytes + products.factor_elements * static_cast<double>(element_bytes(type)));
    p.level = setting.in_l2 && inner_in && inner_out ? "L2" : "memory";
    p.bound_seconds = (std::max)(traffic.seconds, products.at_peak);
    const double seconds = p.kernel == pass_kernel::gpu_generic
                               ? generic_pass_seconds(setting, type, use, traffic, p)
                               : tiled_seconds(setting, type, use, products, traffic, slabs, p);
    p.predicted_seconds = (std::max)(seconds, p.bound_seconds) + slabs * setting.gpu->launch_seconds;
    const bool tile_stays = setting.on_chip || (setting.only_tiles && !p.tile.trips.empty());
    if (p.sweeps.size() != 1 || (forced != nullptr && !forced->trips.empty()) || tile_stays) {
        return;
    }
    const bool in_place = inner_in && setting.through_y;
    if (!setting.one_order && forced == nullptr && use.copies == 0 && !in_place) {
        if (setting.alone && p.kernel != pass_kernel::gpu_generic) {
            take_sums(setting, type, use.elements_in, use.elements_out, slabs, traffic.once, p);
        }
        take_few_fibres(setting, type, use.elements_in, slabs, traffic.once, p);
    }
    take_blocks(setting, type, use.elements_in, slabs, traffic.once, use.copies > 0, in_place, p);
}

}  // namespace otimes::planning

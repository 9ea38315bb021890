// SPDX-License-Identifier: MIT
/// @file gpu_passes.hpp
/// The plan of a program on one GPU: which modes share a kernel, with which tile, at what predicted time. Pure arithmetic on a
/// gpu_description, so a laptop can plan for any GPU. gpu_tiles.hpp chooses the tile of one group of modes.
///
/// A kernel goes once over its input and output. Its tile holds
///   - gpu_trailing: `tile.rows` contiguous segments of prod(P) elements, when the group ends at the innermost mode; the blocks
///     of a cluster may share one;
///   - gpu_outer: prod(P) runs of `tile.run` contiguous elements, runs of at least 32 bytes (one sector);
///   - gpu_blocked: panels of X and of one long factor, any strides (gpu_blocks.hpp);
///   - gpu_generic: nothing; any strides, one output element per thread, or for a few threads (gpu_generic.hpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/cut.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/gpu_generic.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_pieces.hpp>
#include <otimes/plan/gpu_reductions.hpp>
#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/shared_terms.hpp>
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

/// A measured or forced choice: how many sweeps each pass does and with which tile (none: the generic kernel), and the slabs.
struct gpu_choice {
    struct part {
        std::int32_t sweeps = 0;
        gpu_tile tile;
        bool any_tile = false;  ///< the planner chooses the tile
        friend bool operator==(const part&, const part&) = default;
    };
    std::int64_t slab_extent = 0;  ///< 0: no slabs
    std::vector<part> parts;
    friend bool operator==(const gpu_choice&, const gpu_choice&) = default;
};

/// "gpu slab 8 | 3 r1 t128 b4 g1 s0 : 3m 2m 1m | 2 run32 ...": what tuning_entry::choice holds for a GPU.
OTIMES_ON_DEMAND OTIMES_COLD inline std::string choice_text(const gpu_choice& choice) {
    std::string text = "gpu slab " + std::to_string(choice.slab_extent);
    for (const gpu_choice::part& part : choice.parts) {
        text += " | " + std::to_string(part.sweeps) + " " +
                (part.tile.trips.empty() ? "generic" : text_of_tile(part.tile, part.tile.run > 1));
    }
    return text;
}

/// Reads choice_text back; nothing for any other text, so that a foreign table is ignored.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_choice> read_gpu_choice(std::string_view text) {
    gpu_choice choice;
    const auto word = [&text](std::string_view expected) {
        if (text.substr(0, expected.size()) != expected) {
            return false;
        }
        text.remove_prefix(expected.size());
        return true;
    };
    const auto number = [&text](auto& to) {
        std::int64_t value = 0;
        std::size_t digits = 0;
        while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 15) {
            value = 10 * value + (text[digits++] - '0');
        }
        text.remove_prefix(digits);
        to = static_cast<std::remove_reference_t<decltype(to)>>(value);
        return digits > 0;
    };
    if (!word("gpu slab ") || !number(choice.slab_extent)) {
        return std::nullopt;
    }
    while (!text.empty()) {
        gpu_choice::part part;
        if (!word(" | ") || !number(part.sweeps) || !word(" ") || part.sweeps < 1) {
            return std::nullopt;
        }
        const std::size_t end = (std::min)(text.find(" | "), text.size());
        if (text.substr(0, end) != "generic") {
            const std::optional<gpu_tile> tile = read_tile(text.substr(0, end));
            if (!tile) {
                return std::nullopt;
            }
            part.tile = *tile;
        }
        text.remove_prefix(end);
        choice.parts.push_back(part);
    }
    return choice;
}

/// What the chain's passes are chosen under.
struct gpu_setting {
    const gpu_description* gpu = nullptr;
    bool unit_f32 = true;    ///< float products may be split over the matrix unit
    bool unit_f64 = true;    ///< double products may take the matrix unit
    bool single = false;     ///< float products may be single TF32 ones
    bool in_l2 = false;      ///< intermediates stay in L2
    bool through_y = false;  ///< intermediates whose remaining sweeps are square lie in Y
    bool one_order = false;  ///< a sum's order depends on its length alone
    bool alone = false;      ///< the program is this chain: nothing is joined with the kernel of a pass
    bool on_chip = false;    ///< a row, or a piece of it, stays on chip: gpu_pieces.hpp
    bool in_pieces = false;  ///< with on_chip: a piece may do
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

/// The same of the unit on extents that are filled up to its steps, with the zeros' products.
OTIMES_ON_DEMAND inline double share_filled_up(sweep_kernel kernel, std::int64_t extent) {
    if (kernel == sweep_kernel::mma_f64) {
        return extent >= 64 ? 0.33 : 0.40;
    }
    return kernel == sweep_kernel::mma_split ? 0.33 : 0.15;
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

/// Makes a pass of one mode go by blocks of a long factor, where that is predicted to be faster than what it has.
OTIMES_ON_DEMAND OTIMES_COLD inline void take_blocks(const gpu_setting& setting, dtype type, double elements_in,
                                                     double slabs, double seconds_memory, pass& p) {
    const gpu_description& gpu = *setting.gpu;
    sweep& s = p.sweeps.front();
    blocked_request request;
    request.type = type;
    request.p = s.p_extent;
    request.q = s.q_extent;
    request.fibres = static_cast<std::int64_t>(elements_in / static_cast<double>(s.p_extent) / slabs);
    request.may_use_unit = is_widened(type) || type == dtype::f32 ? setting.unit_f32 : setting.unit_f64;
    request.single = setting.single;
    // Tiles of shorter modes of several chains may share a launch (kernels/fused_sum.cuh).
    if (!suits_blocks(request, gpu) || (!setting.alone && (std::max)(s.p_extent, s.q_extent) <= 64)) {
        return;
    }
    const std::int64_t vector = 16 / element_bytes(type);
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        const pass_mode& m = p.modes[k];
        request.aligned = request.aligned && (m.extent_in == 1 || m.stride_in == 1 || m.stride_in % vector == 0) &&
                          (m.stride_in != 1 || m.extent_in % vector == 0);
    }
    request.aligned = request.aligned && request.q % vector == 0;
    const std::optional<blocked_kernel> kernel = blocked_kernel_for(request, gpu);
    if (!kernel) {
        return;
    }
    const double peak = peak_of(kernel->arithmetic, type, gpu);
    const double seconds =
        slabs * ((std::max)(blocked_seconds(request, *kernel, gpu), seconds_memory / slabs) + gpu.launch_seconds);
    const double bound = (std::max)(seconds_memory, static_cast<double>(p.flops) / peak);
    if ((std::max)(seconds, bound) >= p.predicted_seconds) {
        return;
    }
    give_up_tile(type, elements_in, bound, (std::max)(seconds, bound), p);
    p.kernel = pass_kernel::gpu_blocked;
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

/// Chooses kernel and tile of an outlined pass (`forced`: the tile that it must have) and predicts it:
/// time = sqrt(memory^2 + arithmetic^2), or the measured multiple of a copy; at least what one block needs for its share of the
/// tiles; intermediates in L2 move at its rate.
OTIMES_ON_DEMAND OTIMES_COLD inline void choose_gpu_kernel(const fusion_setting& f, const gpu_setting& setting,
                                                           bool inner_in, bool inner_out, const gpu_tile* forced,
                                                           pass& p) {
    const gpu_description& gpu = *setting.gpu;
    const dtype type = f.source->type;
    const auto bytes_each = static_cast<double>(element_bytes(type));
    const auto weight = static_cast<double>(multiply_add_weight(type));
    const auto slabs = static_cast<double>(f.slab.count);
    double elements_in = 1;
    double elements_out = 1;
    std::vector<std::uint8_t> contracted(p.modes.size(), 0);
    for (const sweep& s : p.sweeps) {
        contracted[static_cast<std::size_t>(s.mode)] = 1;
    }
    for (const pass_mode& m : p.modes) {
        elements_in *= static_cast<double>(m.extent_in);
        elements_out *= static_cast<double>(m.extent_out);
    }
    p.kernel = pass_kernel::gpu_generic;
    p.tile = {};
    p.shared_bytes = 0;
    p.lane_mode = -1;
    p.lane_count = 1;
    double copies = 0;
    double tiles = 0;
    std::int32_t cluster = 1;
    bool one_by_one = false;                               // rows or runs begin where no whole access may
    double in_tiles = 1;                                   // of each lane, of which the last tile has but some
    std::vector<std::int32_t> splits(p.sweeps.size(), 1);  // threads or warps that share a fibre of each sweep
    std::vector<trip_use> uses(p.sweeps.size());
    const std::optional<group_place> place = p.sweeps.empty() ? std::nullopt : place_of_group(p.modes, contracted);
    if (place && (forced == nullptr || !forced->trips.empty())) {
        group_request request;
        request.outer = place->inner > 1;
        request.type = type;
        const bool single = type != dtype::f64 && type != dtype::c128;
        request.may_use_unit = single ? setting.unit_f32 : setting.unit_f64;
        request.single = setting.single && type == dtype::f32;
        request.groups = place->groups();
        request.parts_per_line = place->parts_per_line;
        request.inner = place->inner;
        request.may_alias = inner_in && setting.through_y;  // what lies between two passes may lie in Y
        request.one_part = place->parts_per_line == 1;
        std::vector<std::int32_t> level_of(p.modes.size(), 0);
        for (std::size_t k = 0; k < p.modes.size(); ++k) {
            if (contracted[k] != 0) {
                request.p.push_back(p.modes[k].extent_in);
                request.q.push_back(p.modes[k].extent_out);
                level_of[k] = static_cast<std::int32_t>(request.p.size());
            }
        }
        if (request.outer) {
            // A tile of several tensors: their number is the same in every launch of the pass.
            const gpu_group g = without_tile(request);
            request.parts_per_line =
                f.slab.count > 1 ? 1 : place->with_lines_joined(g.count_p(), g.count_q()).parts_per_line;
        }
        for (const sweep& s : p.sweeps) {
            request.order.push_back(level_of[static_cast<std::size_t>(s.mode)]);
        }
        one_by_one = (request.outer ? request.inner : request.p.back()) % group_memory::vector_of(type) != 0;
        std::optional<chosen_group> chosen;
        if (setting.on_chip) {
            if (std::optional<gpu_group> g = group_in_pieces(request, setting.in_pieces, gpu)) {
                chosen = chosen_group{std::move(*g), 0};
            }
        } else if (forced == nullptr) {
            chosen = choose_group(request, gpu);
        } else {
            chosen = chosen_group{without_tile(request), 0};
            chosen->group.tile = *forced;
            if (!why_illegal(chosen->group, gpu).empty() || !may_serve(chosen->group, request)) {
                chosen.reset();
            }
        }
        if (chosen) {
            const gpu_group& g = chosen->group;
            p.kernel = g.outer ? pass_kernel::gpu_outer : pass_kernel::gpu_trailing;
            p.tile = g.tile;
            p.shared_bytes = static_cast<std::int32_t>(shared_bytes_of(g));
            copies = chosen->copies;
            cluster = g.tile.cluster * g.tile.slices;
            tiles = static_cast<double>(place->tiles(g) * g.tile.pieces);
            if (g.outer) {
                const std::int64_t whole = group_memory::round_up_to(place->inner, g.tile.run);
                in_tiles = static_cast<double>(whole) / static_cast<double>(place->inner);
                for (std::size_t k = p.modes.size(); k-- > 0 && p.lane_mode < 0;) {
                    p.lane_mode = contracted[k] == 0 && p.modes[k].extent_in > 1 ? static_cast<std::int32_t>(k) : -1;
                }
                p.lane_count = (std::min)(static_cast<std::int64_t>(g.tile.run),
                                          p.modes[static_cast<std::size_t>(p.lane_mode)].extent_in);
            }
            for (sweep& s : p.sweeps) {
                const gpu_trip& trip = g.tile.trips[g.trip_of(level_of[static_cast<std::size_t>(s.mode)])];
                splits[static_cast<std::size_t>(&s - p.sweeps.data())] = trip.split;
                uses[static_cast<std::size_t>(&s - p.sweeps.data())] =
                    use_of_trip(g, g.trip_of(level_of[static_cast<std::size_t>(s.mode)]));
                s.kernel = !trip.matrix                   ? sweep_kernel::fibre
                           : is_widened(type) || g.single ? sweep_kernel::mma_tf32
                           : single                       ? sweep_kernel::mma_split
                                                          : sweep_kernel::mma_f64;
            }
        }
    }
    double flops = 0;
    double seconds_at_peak = 0;
    double seconds_compute = 0;
    double seconds_alone = 0;  // as at the peak, of a block that has a multiprocessor's part to itself
    double elements = elements_in;
    double factor_bytes = 0;
    const bool mixed = std::ranges::any_of(p.sweeps, [](const sweep& s) { return !is_unit(s.kernel); });
    for (sweep& s : p.sweeps) {
        if (p.kernel == pass_kernel::gpu_generic) {
            s.kernel = sweep_kernel::scalar;
        }
        const double one = 2.0 * weight * elements * static_cast<double>(s.q_extent);
        const double peak = peak_of(s.kernel, type, gpu);
        flops += one;
        seconds_at_peak += one / peak;
        const double work = unit_work(s, type);  // what the unit does for each of the products
        double share = share_of_peak(s.kernel, type, (std::min)(s.p_extent, s.q_extent));
        if (work > 1) {
            share = share_filled_up(s.kernel, s.p_extent) * (one_by_one ? 0.65 : 1.0) * (mixed ? 0.65 : 1.0) / in_tiles;
        } else if (copies == 0 && splits[static_cast<std::size_t>(&s - p.sweeps.data())] > 1 && is_unit(s.kernel) &&
                   s.p_extent > 64 && !std::has_single_bit(static_cast<std::uint64_t>(s.p_extent))) {
            share *= 0.5;  // warps that share fibres of 80 to 192 (measured)
        }
        // Lanes without a fibre take their time; of warps without one other blocks take over what they can, of the unit's all.
        const trip_use& use = uses[static_cast<std::size_t>(&s - p.sweeps.data())];
        if (!is_unit(s.kernel) && copies == 0) {
            share *= std::sqrt(use.busy) * std::pow((std::min)(1.0, p.tile.threads * p.tile.blocks / 512.0), 0.25);
        }
        share *= use.filled / (work > 1 ? 1 : in_tiles);
        seconds_compute += work * one / (peak * share);
        seconds_alone += work * one * in_tiles / (peak * use.filled * use.busy);
        elements *= static_cast<double>(s.q_extent) / static_cast<double>(s.p_extent);
        factor_bytes += static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent) * bytes_each;
    }
    const double bytes_in = elements_in * bytes_each;
    const double bytes_out = elements_out * bytes_each * (p.add ? 2.0 : 1.0);
    const double far = known_rate(gpu.memory_bytes_per_second);
    const double near = setting.in_l2 ? known_rate(gpu.l2_bytes_per_second) : far;
    const double reads = is_sliced_by_launches(p.tile) ? p.tile.slices : 1;  // of the input
    const double seconds_memory = reads * bytes_in / (inner_in ? near : far) + bytes_out / (inner_out ? near : far) +
                                  (p.tile.pieces - 1) * bytes_out / known_rate(gpu.l2_bytes_per_second);
    p.flops = 0;
    saturating_add(p.flops, flops);
    p.bytes = 0;
    saturating_add(p.bytes, reads * bytes_in + p.tile.pieces * bytes_out + factor_bytes);
    p.level = setting.in_l2 && inner_in && inner_out ? "L2" : "memory";
    p.bound_seconds = (std::max)(seconds_memory, seconds_at_peak);
    double seconds = std::hypot(seconds_memory, seconds_compute);
    if (p.kernel == pass_kernel::gpu_generic) {
        const std::int64_t length = p.sweeps.empty() ? 0 : p.sweeps.front().p_extent;
        if (!setting.one_order) {
            p.tile.slices = threads_of_sum(type, length, static_cast<std::int64_t>(elements_out));
        }
        seconds = p.sweeps.size() > 1 ? std::numeric_limits<double>::infinity()  // it does one mode at a time
                                      : generic_seconds(type, length, elements_out, p.tile.slices, seconds_memory, gpu);
    } else {
        const double multiprocessors = (std::max)(1, gpu.multiprocessors);
        if (copies > 0) {
            const double adding = p.add ? elements_out * bytes_each / (inner_out ? near : far) : 0;  // reading Y first
            seconds = copies * (seconds_memory - adding) + adding;
        } else {
            // One block a multiprocessor with nothing on its way waits for every load; short runs fetch part of a sector's
            // neighbours in vain. What was not measured must promise a tenth more.
            const bool alone = p.tile.blocks == 1 && p.tile.slots == 0 && tiles > multiprocessors && !setting.on_chip;
            const bool short_runs = p.tile.run > 1 && p.tile.run * bytes_each < 64;
            seconds = 1.5e-6 + 1.1 * (alone ? 1.6 : 1.0) * (short_runs ? 1.15 : 1.0) * seconds;
        }
        // Few tiles: a block takes 1 us to start, half of one per trip, 0.04 us for each factor element of a thread, and works at the pace of a
        // quarter of a multiprocessor.
        const double turns = std::ceil(tiles / slabs * cluster / (multiprocessors * p.tile.blocks));
        if (copies == 0 && turns <= 2) {
            const double one_tile = 0.5e-6 * static_cast<double>(p.tile.trips.size()) +
                                    4.0 * multiprocessors * seconds_alone / (std::max)(1.0, tiles) / cluster;
            const double factors = 0.04e-6 * factor_bytes / bytes_each / p.tile.threads;
            seconds = (std::max)(seconds, slabs * (1e-6 + factors + turns * one_tile));
        }
    }
    p.predicted_seconds = (std::max)(seconds, p.bound_seconds) + slabs * gpu.launch_seconds;
    if (p.sweeps.size() == 1 && (forced == nullptr || forced->trips.empty()) && !setting.on_chip && copies == 0 &&
        !(inner_in && setting.through_y)) {
        if (setting.alone && !setting.one_order && forced == nullptr && p.kernel != pass_kernel::gpu_generic) {
            take_sums(setting, type, elements_in, elements_out, slabs, seconds_memory, p);
        }
        take_blocks(setting, type, elements_in, slabs, seconds_memory, p);
    }
}

/// One chain on a GPU: its groups in the order of execution and where its intermediates lie.
OTIMES_ON_DEMAND class gpu_chain_planner {
public:
    gpu_chain_planner(const chain& c, std::vector<factor_group>& groups, const gpu_description& gpu,
                      const options& wishes, const slab_choice& slab)
        : chain_(c) {
        const cpu_request request;
        setting_ = setting_for(c, groups, unused_, request, slab);
        gpu_.gpu = &gpu;
        // The unit sums in an order of its own, and whether it is used depends on the number of tiles.
        gpu_.unit_f64 = may_use_unit(dtype::f64, wishes);
        gpu_.unit_f32 = may_use_unit(dtype::f32, wishes);
        gpu_.single = takes_single_products(c.type, wishes.precision);
        gpu_.one_order = wishes.deterministic;
        gpu_.in_l2 = 2.0 * largest_intermediate(setting_) / static_cast<double>(slab.count) *
                         static_cast<double>(element_bytes(c.type)) <=
                     0.5 * static_cast<double>(gpu.l2_bytes);
    }

    void keep_in_l2() { gpu_.in_l2 = true; }
    void through_y(bool wish) { gpu_.through_y = wish; }
    void stands_alone(bool does) { gpu_.alone = does; }
    void keep_on_chip(bool in_pieces) {
        gpu_.on_chip = true;
        gpu_.in_pieces = in_pieces;
    }
    [[nodiscard]] const fusion_setting& setting() const { return setting_; }

    /// True when the tensor after `done` groups lies in Y: nothing is added to Y, and what follows keeps its shape.
    [[nodiscard]] bool lies_in_y(std::size_t done) const {
        if (!gpu_.through_y || chain_.add || done == 0 || done >= setting_.groups.size()) {
            return false;
        }
        for (std::size_t g = done; g < setting_.groups.size(); ++g) {
            if (setting_.groups[g].p_extent != setting_.groups[g].q_extent) {
                return false;
            }
        }
        return true;
    }

    /// The pass of groups [begin, end). In place only fused: elsewhere the prediction is infinite.
    OTIMES_COLD void evaluate(std::size_t begin, std::size_t end, const gpu_tile* forced, pass& p) {
        const std::size_t count = setting_.groups.size();
        const auto strides_of = [&](std::size_t done, strides& to) {
            strides_after(setting_, done, to);
            if (lies_in_y(done) || (count == 0 && &to == &out_)) {
                for (std::size_t k = 0; k < chain_.modes.size(); ++k) {
                    to[k] = chain_.modes[k].stride_out;
                }
            }
        };
        strides_of(begin, in_);
        strides_of(end, out_);
        outline_pass(setting_, begin, end, in_, out_, p);
        choose_gpu_kernel(setting_, gpu_, begin > 0, end < count, forced, p);
        if (lies_in_y(begin) && (p.kernel == pass_kernel::gpu_generic || p.kernel == pass_kernel::gpu_blocked)) {
            p.predicted_seconds = std::numeric_limits<double>::infinity();
        }
    }

    /// Ends of the passes of the cheapest partition into contiguous passes, and its seconds.
    OTIMES_COLD std::vector<std::size_t> cheapest(double& seconds) {
        const std::size_t count = setting_.groups.size();
        std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
        std::vector<std::size_t> from(count + 1, 0);
        best[0] = 0;
        pass p;
        for (std::size_t end = 1; end <= count; ++end) {
            for (std::size_t begin = 0; begin < end; ++begin) {
                evaluate(begin, end, nullptr, p);
                if (best[begin] + p.predicted_seconds < best[end]) {
                    best[end] = best[begin] + p.predicted_seconds;
                    from[end] = begin;
                }
            }
        }
        seconds = best[count];
        std::vector<std::size_t> ends;
        if (seconds < std::numeric_limits<double>::infinity()) {
            for (std::size_t end = count; end > 0; end = from[end]) {
                ends.insert(ends.begin(), end);
            }
        }
        return ends;
    }

private:
    const chain& chain_;
    cpu_description unused_;
    fusion_setting setting_;
    gpu_setting gpu_;
    strides in_;
    strides out_;
};

/// Y = Z, Y += X * K..: the product first where it takes several passes, since its intermediates may lie in Y as long as nothing else
/// does. A product of one pass reads Z while it is stored (backend/core/launch_list.cpp).
OTIMES_ON_DEMAND OTIMES_COLD inline void products_before_matrices(const program& source, std::vector<chain>& chains,
                                                                  const gpu_description& gpu, const options& wishes) {
    for (std::size_t i = 0; i + 1 < chains.size(); ++i) {
        chain& matrix = chains[i];
        chain& product = chains[i + 1];
        const auto is_free = [](const chain_mode& m) { return !m.contracted(); };
        if (matrix.step_count == 0 || product.step_count == 0 || matrix.add || !product.add ||
            !std::ranges::all_of(matrix.modes, is_free) || std::ranges::all_of(product.modes, is_free) ||
            source.at(matrix.out).binding < 0 || source.at(matrix.out).binding != source.at(product.out).binding ||
            source.at(product.in).binding < 0 || source.at(product.in).binding == source.at(product.out).binding) {
            continue;
        }
        chain tried = product;
        sort_by_memory(tried.modes);
        std::vector<factor_group> groups = group_factors(tried, false);
        double seconds = 0;
        gpu_chain_planner planner(tried, groups, gpu, wishes, slab_choice{});
        if (planner.cheapest(seconds).size() > 1) {
            std::swap(matrix, product);
            std::swap(matrix.add, product.add);
        }
    }
}

/// How many chains from `at` on are the terms of one sum, Y = X * kron(..) + X * kron(..) + ..: of one X and Y without gaps, with square factors
/// of the same modes.
OTIMES_ON_DEMAND OTIMES_COLD inline std::size_t terms_from(const program& source, const std::vector<chain>& chains,
                                                           std::size_t at) {
    std::size_t end = at;
    const auto binding = [&source](std::int32_t id) { return source.at(id).binding; };
    for (; end < chains.size() && end < at + static_cast<std::size_t>(most_group_terms); ++end) {
        const chain& c = chains[end];
        const chain& first = chains[at];
        if (c.step_count == 0 || c.add != (end > at) || c.in_place || is_complex(c.type) || !c.unit_factors.empty() ||
            binding(c.in) < 0 || binding(c.out) < 0 || binding(c.in) != binding(first.in) ||
            binding(c.out) != binding(first.out) || c.modes.size() != first.modes.size()) {
            break;
        }
        std::int64_t below = 1;
        std::size_t left = c.modes.size();
        for (; left > 0; --left) {
            const chain_mode& m = c.modes[left - 1];
            const chain_mode& o = first.modes[left - 1];
            if (m.p_extent != m.q_extent || m.stride_in != below || m.stride_out != below || m.p_extent != o.p_extent ||
                m.contracted() != o.contracted()) {
                break;
            }
            below *= m.p_extent;
        }
        if (left > 0) {
            break;
        }
    }
    return end - at;
}

/// True where `count` chains from `at` on, whose first two passes would be `passes`, become two launches: backend/core/launch_list.cpp does
/// that where their factors are shared and both kernels exist.
OTIMES_ON_DEMAND OTIMES_COLD inline bool terms_take_two_passes(const program& source, const std::vector<chain>& chains,
                                                               std::size_t at, std::size_t count,
                                                               const std::vector<pass>& passes,
                                                               const gpu_description& gpu) {
    const auto place = [&passes](std::size_t i, std::vector<std::int64_t>& p) {
        std::vector<std::uint8_t> contracted(passes[i].modes.size(), 0);
        for (const sweep& s : passes[i].sweeps) {
            contracted[static_cast<std::size_t>(s.mode)] = 1;
        }
        for (std::size_t k = 0; k < contracted.size(); ++k) {
            if (contracted[k] != 0) {
                p.push_back(passes[i].modes[k].extent_in);
            }
        }
        return place_of_group(passes[i].modes, contracted);
    };
    if (passes.size() != 2 || passes[0].kernel != pass_kernel::gpu_trailing ||
        passes[1].kernel != pass_kernel::gpu_outer) {
        return false;
    }
    std::vector<std::int64_t> inner;
    std::vector<std::int64_t> outer;
    const std::optional<group_place> first = place(0, inner);
    const std::optional<group_place> second = place(1, outer);
    // Equal factors of one mode have equal numbers.
    struct numbered {
        std::size_t level = 0;
        std::int32_t id = -1;
    };
    const auto number_in = [&source](std::vector<numbered>& known, std::size_t level, std::int32_t id) {
        const tensor& f = source.at(id);
        const auto same = [&](const numbered& other) {
            const tensor& o = source.at(other.id);
            return other.level == level &&
                   (other.id == id ||
                    (f.space == memory_space::device && o.space == f.space && o.binding == f.binding &&
                     std::ranges::equal(source.modes_of(o), source.modes_of(f))));
        };
        const auto at_known = std::ranges::find_if(known, same);
        const auto number = static_cast<std::int32_t>(at_known - known.begin());
        if (at_known == known.end()) {
            known.push_back({level, id});
        }
        return number;
    };
    sum_of_terms sum;
    std::vector<numbered> known;
    std::vector<numbered> outputs;
    for (std::size_t t = at; t < at + count; ++t) {
        sum.factors.emplace_back();
        std::size_t level = 0;
        for (const chain_mode& m : chains[t].modes) {
            if (!m.contracted()) {
                continue;
            }
            if (level == 0) {
                sum.outputs.push_back(number_in(outputs, 0, m.factor));
            } else {
                sum.factors.back().push_back(number_in(known, level, m.factor));
            }
            ++level;
        }
    }
    if (!first || !second || outer.size() != 1 || outputs.size() > 2 ||
        static_cast<std::int64_t>(known.size()) > most_group_modes || sum.factors.front().size() != inner.size()) {
        return false;
    }
    const std::vector<gpu_move> moves = moves_of_sum(sum).moves();
    group_request r;
    r.outer = true;
    r.type = chains[at].type;
    r.p = r.q = outer;
    r.order = {1};
    r.groups = second->groups();
    r.parts_per_line = second->parts_per_line;
    r.inner = second->inner;
    return moves.size() < count * inner.size() &&
           shared_terms_group(r.type, inner, moves, first->groups(), first->parts_per_line, true, gpu).has_value() &&
           (outputs.size() == 1 || two_inputs_group(r, gpu).has_value());
}

/// Where slabs cut a program of several chains and nothing else; extent 0: it is another one.
OTIMES_ON_DEMAND OTIMES_COLD inline program_cut cut_of_chains(const program& source, const std::vector<chain>& chains) {
    return chains.size() > 1 && std::ranges::all_of(chains, [](const chain& c) { return c.step_count > 0; })
               ? longest_cut_at_end(source)
               : program_cut{};
}

/// plan_on_gpu where intermediates are chosen for their speed as far as wishes.workspace_limit_bytes has room for them.
OTIMES_ON_DEMAND OTIMES_COLD inline plan plan_for_limit(const program& source, const gpu_description& gpu,
                                                        const options& wishes, std::int64_t slab_extent,
                                                        const gpu_choice* choice) {
    plan result;
    result.source = source;
    result.where = placement::gpu;
    result.machine_name = gpu.name;
    result.threads = 1;
    buffer_pool pool(result.buffer_elements);
    std::vector<mode> modes = source.modes;
    std::vector<std::int32_t> buffers(source.tensors.size(), -1);
    std::vector<chain> chains = chains_of(source);
    const program_cut all = slab_extent > 0 ? cut_of_chains(source, chains) : program_cut{};
    const bool cuts_all = slab_extent > 0 && slab_extent < all.extent;
    const auto name_of = [&](std::int32_t id) {
        const std::int32_t buffer = id < 0 ? -1 : buffers[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    };
    const auto store = [&](std::int32_t id) {
        const tensor& t = source.at(id);
        if (t.binding >= 0 || buffers[static_cast<std::size_t>(id)] >= 0) {
            return;
        }
        std::int64_t next = 1;
        for (std::int32_t k = t.mode_count; k-- > 0;) {
            mode& m = modes[static_cast<std::size_t>(t.first_mode + k)];
            m.stride = next;
            next *= cuts_all && k == all.mode[static_cast<std::size_t>(id)] ? slab_extent : m.extent;
        }
        buffers[static_cast<std::size_t>(id)] = pool.take(next);
    };
    products_before_matrices(source, chains, gpu, wishes);
    std::size_t end_of_terms = 0;  // of a sum whose chains take two passes each
    for (std::size_t number = 0; number < chains.size(); ++number) {
        chain& c = chains[number];
        if (c.step_count == 0) {
            const step& s = source.steps[static_cast<std::size_t>(c.first_step)];
            if (s.out >= 0) {
                store(s.out);
            }
            pass p;
            p.step = c.first_step;
            p.in = name_of(s.in);
            p.out = name_of(s.out);
            p.add = s.add;
            p.scalar = s.scalar;
            p.level = "memory";
            p.reason = "generic step";
            p.predicted_seconds = gpu.launch_seconds;
            result.predicted_seconds += p.predicted_seconds;
            result.passes.push_back(std::move(p));
            continue;
        }
        const step* const reduced = reduction_behind(source, chains, number);
        const step* reduction =
            gpu.compiles && !is_widened(c.type) ? reduced : nullptr;  // by the last kernel, nothing is stored
        const auto lay_out = [&] {
            if (reduction == nullptr) {
                store(c.out);
            }
            if (reduced != nullptr) {
                lay_out_for(*reduced, reduction != nullptr, source, c, modes);
            }
            for (chain_mode& m : c.modes) {
                m.stride_in = modes[static_cast<std::size_t>(source.at(c.in).first_mode + m.name)].stride;
                m.stride_out = modes[static_cast<std::size_t>(source.at(c.out).first_mode + m.name)].stride;
            }
        };
        lay_out();
        sort_by_memory(c.modes);
        std::vector<factor_group> groups = group_factors(c, false);
        if (std::ranges::all_of(groups, [](const factor_group& g) { return g.p_extent == g.q_extent; })) {
            // Any order does the same work; the innermost modes first leave contiguous segments to the first pass.
            std::sort(groups.begin(), groups.end(),
                      [](const factor_group& a, const factor_group& b) { return a.first > b.first; });
        }
        const bool whole_program = chains.size() == 1 || (chains.size() == 2 && reduction != nullptr);
        std::vector<std::size_t> ends;
        std::vector<pass> passes;
        slab_choice slab;
        const std::size_t count = groups.size();
        std::optional<gpu_chain_planner<>> planner;
        // Passes under a slab; false when the forced choice, or working through Y, is impossible.
        const auto make = [&](const slab_choice& cut_by, bool through_y, bool in_l2, const gpu_choice* forced) {
            planner.emplace(c, groups, gpu, wishes, cut_by);
            planner->through_y(through_y);
            planner->stands_alone(chains.size() == 1);
            if (in_l2) {
                planner->keep_in_l2();
            }
            double seconds = 0;
            ends.clear();
            if (forced != nullptr) {
                std::size_t end = 0;
                for (const gpu_choice::part& part : forced->parts) {
                    ends.push_back(end += static_cast<std::size_t>(part.sweeps));
                }
                if (end != count) {
                    return false;
                }
            } else if (count == 0) {
                ends.push_back(0);
            } else {
                ends = planner->cheapest(seconds);
                if (ends.empty()) {
                    return false;
                }
            }
            passes.clear();
            std::size_t begin = 0;
            for (std::size_t i = 0; i < ends.size(); ++i) {
                passes.emplace_back();
                const gpu_tile* const tile =
                    forced != nullptr && !forced->parts[i].any_tile ? &forced->parts[i].tile : nullptr;
                planner->evaluate(begin, ends[i], tile, passes.back());
                if (passes.back().predicted_seconds == std::numeric_limits<double>::infinity() ||
                    (tile != nullptr && !tile->trips.empty() && passes.back().tile != *tile)) {
                    return false;
                }
                begin = ends[i];
            }
            slab = cut_by;
            return true;
        };
        const auto slab_of = [&](std::int64_t extent) {
            if (cuts_all) {
                const auto is_cut = [&](const chain_mode& m) {
                    return m.name == all.mode[static_cast<std::size_t>(c.in)];
                };
                return cut(c, static_cast<std::int32_t>(std::ranges::find_if(c.modes, is_cut) - c.modes.begin()),
                           slab_extent);
            }
            return extent > 0 && whole_program && slab_mode_of(c) >= 0 ? cut(c, slab_mode_of(c), extent)
                                                                       : slab_choice{};
        };
        // Terms of one sum that share factors: where no single pass keeps X on chip for all of them, the outermost mode has a pass of its own.
        gpu_choice apart;
        apart.parts.resize(2);
        apart.parts[0].sweeps = static_cast<std::int32_t>(count) - 1;
        apart.parts[1].sweeps = 1;
        apart.parts[0].any_tile = apart.parts[1].any_tile = true;
        if (number >= end_of_terms && count >= 3 && gpu.compiles && !wishes.deterministic && !cuts_all) {
            const std::size_t terms = terms_from(source, chains, number);
            const auto one_pass_keeps_all = [&] {
                gpu_group whole = without_tile(group_request{});
                whole.type = c.type;
                whole.tile = passes.front().tile;
                whole.terms = static_cast<std::int32_t>(terms);
                for (const factor_group& g : groups) {
                    whole.p.push_back(static_cast<std::int32_t>(g.p_extent));
                }
                whole.q = whole.p;
                whole.tile.slots = 0;
                return whole.terms * whole.modes() <= most_group_modes && terms_group(whole, gpu).kept;
            };
            if (terms > 1 && make({}, true, false, nullptr) && passes.size() == 1 && !one_pass_keeps_all() &&
                make({}, true, false, &apart) && planner->lies_in_y(count - 1) &&
                terms_take_two_passes(source, chains, number, terms, passes, gpu) &&
                elements_after(planner->setting(), count - 1) * element_bytes(c.type) <= wishes.workspace_limit_bytes) {
                end_of_terms = number + terms;
            }
        }
        bool made = number < end_of_terms && make({}, true, false, &apart);
        made = made || (choice != nullptr && whole_program && reduction == nullptr &&
                        (make(slab_of(choice->slab_extent), true, choice->slab_extent > 0, choice) ||
                         make(slab_of(choice->slab_extent), false, choice->slab_extent > 0, choice)));
        if (!made && !(reduction == nullptr && make(slab_of(slab_extent), true, false, nullptr))) {
            make(slab_of(slab_extent), false, false, nullptr);
        } else if (!made && ends.size() > 1 && std::ranges::any_of(groups, [](const factor_group& g) {
                       return (std::min)(g.p_extent, g.q_extent) >= least_blocked_extent;
                   })) {
            // Blocks do not work in Y: what lies between the passes in a buffer may pay for itself.
            const auto seconds_of = [&] {
                double seconds = 0;
                for (const pass& one : passes) {
                    seconds += one.predicted_seconds;
                }
                return seconds;
            };
            const double in_y = seconds_of();
            const auto buffers_fit = [&] {
                std::int64_t most = 0;
                std::int64_t between = 0;
                for (std::size_t at = 0; at < ends.size(); ++at) {
                    const std::int64_t next = at + 1 < ends.size() ? elements_after(planner->setting(), ends[at]) : 0;
                    most = (std::max)(most, between + next);
                    between = next;
                }
                std::int64_t factors = result.factor_elements;
                for (const pass& one : passes) {
                    for (const sweep& s : one.sweeps) {
                        factors += packed_factor_elements(s, result.vector_count);
                    }
                }
                return (most + factors) * element_bytes(c.type) <= wishes.workspace_limit_bytes;
            };
            if (!make(slab_of(slab_extent), false, false, nullptr) || seconds_of() >= in_y || !buffers_fit()) {
                make(slab_of(slab_extent), true, false, nullptr);
            }
        }
        if (reduction != nullptr && (passes.back().tile.trips.empty() || is_sliced_by_launches(passes.back().tile))) {
            // No one kernel: stored after all.
            reduction = nullptr;
            lay_out();
            make(slab_choice{}, true, false, nullptr) || make(slab_choice{}, false, false, nullptr);
        }
        if (reduction != nullptr && ends.size() > 1) {
            // One kernel after all, where that is faster, or what lies between the passes has no room: then slabs, if there can be any,
            // take twice their time; many pieces, which read the other matrix as often, were not measured beside slabs.
            double seconds = 0;
            std::int64_t between = 0;
            std::int64_t most = 0;
            for (std::size_t at = 0; at < ends.size(); ++at) {
                seconds += passes[at].predicted_seconds;
                const std::int64_t next = at + 1 < ends.size() ? elements_after(planner->setting(), ends[at]) : 0;
                most = (std::max)(most, between + next);
                between = next;
            }
            pass whole;
            gpu_chain_planner<> one_pass(c, groups, gpu, wishes, slab_choice{});
            one_pass.keep_on_chip(reduction->variant == step_variant::dot);
            one_pass.evaluate(0, count, nullptr, whole);
            if (most * element_bytes(c.type) > wishes.workspace_limit_bytes) {
                const bool smaller_slabs = slab_mode_of(c) >= 0 && slab.extent != 1;
                seconds = !smaller_slabs           ? std::numeric_limits<double>::infinity()
                          : whole.tile.pieces <= 4 ? 2 * seconds
                                                   : seconds;
            }
            if (whole.predicted_seconds < seconds) {
                ends = {count};
                passes = {std::move(whole)};
                slab = {};
            }
        }
        result.slab_extent = slab.extent;
        result.slab_count = slab.count;
        std::int32_t input = name_of(c.in);
        std::size_t begin = 0;
        for (std::size_t at = 0; at < ends.size(); ++at) {
            const std::size_t end = ends[at];
            pass chosen = passes[at];
            for (std::size_t i = begin; i < end; ++i) {
                chosen.sweeps[i - begin].factors = {c.modes[static_cast<std::size_t>(groups[i].first)].factor};
            }
            if (begin == 0 && count == 0 && !c.unit_factors.empty()) {
                chosen.sweeps.push_back(
                    {static_cast<std::int32_t>(chosen.modes.size()), sweep_kernel::scalar, 1, 1, {}});
                chosen.modes.push_back({1, 1, 0, 0});
            }
            if (begin == 0 && !chosen.sweeps.empty()) {
                std::vector<std::int32_t>& carried = chosen.sweeps.front().factors;
                carried.insert(carried.end(), c.unit_factors.begin(), c.unit_factors.end());
            }
            const bool last = end == count;
            chosen.in = input;
            chosen.out = last || planner->lies_in_y(end) ? name_of(c.out)
                                                         : -2 - pool.take(elements_after(planner->setting(), end));
            chosen.scalar = last ? c.scalar : -1;
            if (begin > 0 && input != name_of(c.out)) {
                pool.release(-2 - input);
            }
            if (last) {
                chosen.reason = reduction != nullptr ? "reduced where it would be stored"
                                : begin == 0         ? "everything in one pass"
                                                     : "end of the chain";
            } else {
                pass more;
                planner->evaluate(begin, end + 1, nullptr, more);
                chosen.reason = more.kernel == pass_kernel::gpu_generic
                                    ? "no tile holds the next mode too"
                                    : "with the next mode it would take " + seconds_text(more.predicted_seconds);
            }
            input = chosen.out;
            begin = end;
            saturating_add(result.flops, static_cast<double>(chosen.flops));
            result.predicted_seconds += chosen.predicted_seconds;
            for (const sweep& s : chosen.sweeps) {
                result.factor_elements += packed_factor_elements(s, result.vector_count);
            }
            result.passes.push_back(std::move(chosen));
        }
    }
    if (chains.size() != 1 || chains.front().step_count == 0) {
        result.tensor_buffers = std::move(buffers);
        result.tensor_modes = std::move(modes);
    }
    result.workspace_bytes = layout_of(result).total;
    return result;
}

/// The plan of `source` on `gpu`: chains become fused kernels, other steps stay steps (their kernels are generic).
/// Factors are kept apart: tensor cores and registers do not gain from multiplying them out. `slab_extent` > 0: a program
/// of chains alone runs slab by slab, to bound its workspace. `choice`: what a chain's passes must be; one that does not fit is
/// ignored. Where the limit is not kept by the choices that were made for it, of those for no memory and for any the one that
/// takes least: what a limit is refused with must not depend on the limit.
OTIMES_ON_DEMAND OTIMES_COLD inline plan plan_on_gpu(const program& source, const gpu_description& gpu,
                                                     const options& wishes, std::int64_t slab_extent = 0,
                                                     const gpu_choice* choice = nullptr) {
    plan best = plan_for_limit(source, gpu, wishes, slab_extent, choice);
    for (const std::int64_t limit : {std::int64_t{0}, (std::numeric_limits<std::int64_t>::max)()}) {
        if (best.workspace_bytes <= wishes.workspace_limit_bytes) {
            break;
        }
        options other = wishes;
        other.workspace_limit_bytes = limit;
        plan next = plan_for_limit(source, gpu, other, slab_extent, choice);
        if (next.workspace_bytes < best.workspace_bytes) {
            best = std::move(next);
        }
    }
    return best;
}

/// The choice that a plan of one chain made, to be forced again by plan_on_gpu; nothing for other plans.
OTIMES_ON_DEMAND OTIMES_COLD inline std::optional<gpu_choice> choice_of(const plan& p) {
    gpu_choice choice;
    choice.slab_extent = p.slab_count > 1 ? p.slab_extent : 0;
    for (const pass& one : p.passes) {
        if (one.kernel == pass_kernel::step || one.sweeps.empty()) {
            return std::nullopt;
        }
        choice.parts.push_back({static_cast<std::int32_t>(one.sweeps.size()), one.tile});
    }
    return choice;
}

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file gpu_passes.hpp
/// The plan of a program on one GPU: which modes share a kernel, through how much shared memory, at what predicted time.
/// Pure arithmetic on a gpu_description, so a laptop can plan for any GPU.
///
/// A kernel goes once over its input and output. Its block holds
///   - gpu_trailing: `rows_per_block` contiguous segments of prod(P) elements, when the group ends at the innermost mode;
///   - gpu_outer: prod(P) runs of `lane_count` contiguous elements, runs of at least 32 bytes (one sector);
///   - gpu_generic: nothing; one output element per thread and any strides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Runs of an outer tile shorter than this are never planned: a DRAM sector.
inline constexpr std::int64_t least_run_bytes = 32;
/// Runs that a kernel prefers: a whole cache line.
inline constexpr std::int64_t ideal_run_bytes = 128;

/// Which multiply-adds a sweep uses and their rate in flops per second.
struct gpu_rate {
    sweep_kernel kernel = sweep_kernel::fibre;
    double flops_per_second = 0;
};

/// Tensor cores where they are as accurate as asked for and a factor fills their tiles (extents of at least 8).
inline gpu_rate rate_of(const gpu_description& gpu, dtype type, precision wished, std::int64_t p_extent,
                        std::int64_t q_extent) {
    const bool fills = p_extent >= 8 && q_extent >= 8;
    const bool single = type == dtype::f32 || type == dtype::c64;
    if (single) {
        if (fills && wished != precision::ieee && gpu.has_tf32_mma && gpu.flops_f32_split > gpu.flops_f32) {
            const double products = wished == precision::standard ? 1.0 : 3.0;  // one TF32 product instead of three
            return {sweep_kernel::mma_split, products * gpu.flops_f32_split};
        }
        return {sweep_kernel::fibre, gpu.flops_f32};
    }
    const bool matrix = fills && (gpu.has_f64_mma || gpu.has_f64_mma_wide) && gpu.flops_f64_mma > gpu.flops_f64;
    return matrix ? gpu_rate{sweep_kernel::mma_f64, gpu.flops_f64_mma} : gpu_rate{sweep_kernel::fibre, gpu.flops_f64};
}

/// Bytes of the longest stage of a tile of `rows` segments or `lanes` lanes.
inline double shared_bytes_of(const pass& p, double lanes, double bytes_each) {
    return tile_peak_elements(p) * lanes * bytes_each;
}

/// Chooses kernel, tile and threads of an outlined pass and predicts it. Time = max(bytes / bandwidth of the level / run
/// efficiency, flops / rate) + launch; intermediates of at most half of L2 stay there.
inline void choose_gpu_kernel(const fusion_setting& f, const gpu_description& gpu, precision wished, bool inner_in,
                              bool inner_out, bool in_l2, pass& p) {
    const auto bytes_each = static_cast<double>(element_bytes(f.source->type));
    const auto weight = static_cast<double>(multiply_add_weight(f.source->type));
    double elements_in = 1;
    double elements_out = 1;
    std::int32_t lanes_mode = -1;
    std::size_t trailing = 0;
    std::vector<bool> contracted(p.modes.size(), false);
    for (const sweep& s : p.sweeps) {
        contracted[static_cast<std::size_t>(s.mode)] = true;
    }
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        elements_in *= static_cast<double>(p.modes[k].extent_in);
        elements_out *= static_cast<double>(p.modes[k].extent_out);
        if (!contracted[k] && p.modes[k].stride_in == 1 && p.modes[k].stride_out == 1) {
            lanes_mode = static_cast<std::int32_t>(k);
        }
    }
    std::int64_t next_in = 1;
    std::int64_t next_out = 1;
    for (std::size_t k = p.modes.size(); k-- > 0 && contracted[k];) {
        if (p.modes[k].stride_in != next_in || p.modes[k].stride_out != next_out) {
            break;
        }
        next_in *= p.modes[k].extent_in;
        next_out *= p.modes[k].extent_out;
        ++trailing;
    }
    const double capacity = gpu.shared_bytes_per_block;
    const auto fits = [&](double lanes) { return shared_bytes_of(p, lanes, bytes_each) <= capacity; };
    double run = 1;
    p.kernel = pass_kernel::gpu_generic;
    p.threads_per_block = 256;
    p.lane_mode = -1;
    p.lane_count = 1;
    if (trailing == p.sweeps.size() && trailing > 0 && fits(1)) {
        p.kernel = pass_kernel::gpu_trailing;
        const double segments = elements_in / static_cast<double>(next_in);
        // several short segments per block, while every multiprocessor still gets two blocks
        std::int64_t rows = 1;
        while (shared_bytes_of(p, static_cast<double>(2 * rows), bytes_each) <= 0.25 * capacity && rows < 64 &&
               segments / static_cast<double>(2 * rows) >= 2.0 * gpu.multiprocessors) {
            rows *= 2;
        }
        p.rows_per_block = static_cast<std::int32_t>(rows);
        p.shared_bytes = static_cast<std::int32_t>(shared_bytes_of(p, static_cast<double>(rows), bytes_each));
        run = static_cast<double>((std::min)(next_in, next_out));
    } else if (lanes_mode >= 0 && !p.sweeps.empty()) {
        const std::int64_t extent = p.modes[static_cast<std::size_t>(lanes_mode)].extent_in;
        std::int64_t lanes = std::min<std::int64_t>(extent, ideal_run_bytes / element_bytes(f.source->type));
        const std::int64_t least = std::min<std::int64_t>(extent, least_run_bytes / element_bytes(f.source->type));
        while (lanes > least && !fits(static_cast<double>(lanes))) {
            lanes = (std::max)(least, lanes / 2);
        }
        if (fits(static_cast<double>(lanes))) {
            p.kernel = pass_kernel::gpu_outer;
            p.lane_mode = lanes_mode;
            p.lane_count = lanes;
            p.rows_per_block = 1;
            p.shared_bytes = static_cast<std::int32_t>(shared_bytes_of(p, static_cast<double>(lanes), bytes_each));
            run = static_cast<double>(lanes);
        }
    }
    double flops = 0;
    double seconds_compute = 0;
    double elements = elements_in;
    double sweeps_traffic = 0;
    for (sweep& s : p.sweeps) {
        const gpu_rate rate = p.kernel == pass_kernel::gpu_generic
                                  ? rate_of(gpu, f.source->type, precision::ieee, 1, 1)
                                  : rate_of(gpu, f.source->type, wished, s.p_extent, s.q_extent);
        s.kernel = p.kernel == pass_kernel::gpu_generic ? sweep_kernel::scalar : rate.kernel;
        const double one = 2.0 * weight * elements * static_cast<double>(s.q_extent);
        flops += one;
        seconds_compute += one / rate.flops_per_second;
        const double after = elements / static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent);
        sweeps_traffic += (elements + after) * bytes_each;
        elements = after;
    }
    double factor_bytes = 0;
    for (const sweep& s : p.sweeps) {
        factor_bytes += static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent) * bytes_each;
    }
    if (p.kernel == pass_kernel::gpu_generic && p.sweeps.size() > 1) {
        seconds_compute = std::numeric_limits<double>::infinity();  // the generic kernel does one mode at a time
    }
    const double bytes_in = elements_in * bytes_each;
    const double bytes_out = elements_out * bytes_each * (p.add ? 2.0 : 1.0);
    const double near = in_l2 ? gpu.l2_bytes_per_second : gpu.memory_bytes_per_second;
    const double at_in = bytes_in / (inner_in ? near : gpu.memory_bytes_per_second);
    const double at_out = bytes_out / (inner_out ? near : gpu.memory_bytes_per_second);
    const double sectors = p.kernel == pass_kernel::gpu_generic ? 0.25
                           : run * bytes_each >= 64             ? 1.0
                                                                : 0.8;  // neighbouring 32-byte runs merge in L2, mostly
    p.flops = static_cast<std::int64_t>(flops);
    p.bytes = static_cast<std::int64_t>(bytes_in + bytes_out + factor_bytes);
    p.level = in_l2 && inner_in && inner_out ? "L2" : "memory";
    p.bound_seconds = (std::max)(at_in + at_out, seconds_compute);
    // shared memory is read and written once by every sweep: about eight times the bandwidth of DRAM
    const double exchange = sweeps_traffic / (8.0 * gpu.memory_bytes_per_second);
    p.predicted_seconds = (std::max)({(at_in + at_out) / sectors, seconds_compute, exchange}) + gpu.launch_seconds;
}

/// The plan of `source` on `gpu`: chains become fused kernels, other steps stay steps (their kernels are generic).
/// Factors are kept apart: tensor cores and registers do not gain from multiplying them out. `slab_extent` > 0: a program
/// of one chain runs slab by slab, to bound its workspace.
inline plan plan_on_gpu(const program& source, const gpu_description& gpu, const options& wishes,
                        std::int64_t slab_extent = 0) {
    plan result;
    result.source = source;
    result.where = placement::gpu;
    result.machine_name = gpu.name;
    result.threads = 1;
    buffer_pool pool(result.buffer_elements);
    std::vector<mode> modes = source.modes;
    std::vector<std::int32_t> buffers(source.tensors.size(), -1);
    std::vector<chain> chains = chains_of(source);
    const cpu_description unused;
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
            next *= m.extent;
        }
        buffers[static_cast<std::size_t>(id)] = pool.take(next);
    };
    for (chain& c : chains) {
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
        store(c.out);
        for (chain_mode& m : c.modes) {
            m.stride_in = modes[static_cast<std::size_t>(source.at(c.in).first_mode + m.name)].stride;
            m.stride_out = modes[static_cast<std::size_t>(source.at(c.out).first_mode + m.name)].stride;
        }
        sort_by_memory(c.modes);
        std::vector<factor_group> groups = group_factors(c, false);
        cpu_request request;
        slab_choice slab;
        if (slab_extent > 0 && chains.size() == 1 && slab_mode_of(c) >= 0) {
            slab = cut(c, slab_mode_of(c), slab_extent);
            result.slab_extent = slab.extent;
            result.slab_count = slab.count;
        }
        const fusion_setting f = setting_for(c, groups, unused, request, slab);
        const bool in_l2 = 2.0 * largest_intermediate(f) / static_cast<double>(slab.count) *
                               static_cast<double>(element_bytes(c.type)) <=
                           0.5 * static_cast<double>(gpu.l2_bytes);
        const std::size_t count = groups.size();
        std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
        std::vector<std::size_t> from(count + 1, 0);
        best[0] = 0;
        strides in;
        strides out;
        pass p;
        const auto evaluate = [&](std::size_t begin, std::size_t end) {
            strides_after(f, begin, in);
            strides_after(f, end, out);
            if (count == 0) {
                std::ranges::transform(c.modes, out.begin(), &chain_mode::stride_out);
            }
            outline_pass(f, begin, end, in, out, p);
            choose_gpu_kernel(f, gpu, wishes.precision, begin > 0, end < count, in_l2, p);
            p.predicted_seconds += static_cast<double>(slab.count - 1) * gpu.launch_seconds;
        };
        for (std::size_t end = 1; end <= count; ++end) {
            for (std::size_t begin = 0; begin < end; ++begin) {
                evaluate(begin, end);
                if (best[begin] + p.predicted_seconds < best[end]) {
                    best[end] = best[begin] + p.predicted_seconds;
                    from[end] = begin;
                }
            }
        }
        std::vector<std::size_t> ends;
        for (std::size_t end = count; end > 0; end = from[end]) {
            ends.insert(ends.begin(), end);
        }
        if (ends.empty()) {
            ends.push_back(0);
        }
        std::int32_t input = name_of(c.in);
        std::size_t begin = 0;
        for (const std::size_t end : ends) {
            evaluate(begin, end);
            pass chosen = p;
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
            chosen.out = last ? name_of(c.out) : -2 - pool.take(elements_after(f, end));
            chosen.scalar = last ? c.scalar : -1;
            if (begin > 0) {
                pool.release(-2 - input);
            }
            if (last) {
                chosen.reason = begin == 0 ? "everything in one pass" : "end of the chain";
            } else {
                evaluate(begin, end + 1);
                const double need = shared_bytes_of(p, 1.0, static_cast<double>(element_bytes(c.type)));
                chosen.reason = need > gpu.shared_bytes_per_block
                                    ? "the next mode needs " + bytes_text(need) + " of shared memory, a block has " +
                                          bytes_text(gpu.shared_bytes_per_block)
                                    : "the next mode would leave runs below a sector or costs more fused";
            }
            input = chosen.out;
            begin = end;
            result.flops += chosen.flops;
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

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file placement.hpp
/// Where a plan runs: on the CPU, on one GPU or on several. Residency decides first (operands in device memory stay there),
/// then cost including the transfers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <otimes/plan/cut.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/streaming.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Where the operands of a program are.
struct residency {
    bool any_on_device = false;
    bool any_on_host = false;
    bool matrices_on_host = false;  ///< X or Y; factors aside
};

OTIMES_ON_DEMAND inline residency residency_of(const program& source) {
    residency r;
    for (const tensor& t : source.tensors) {
        if (t.binding < 0) {
            continue;
        }
        const bool on_device = t.space == memory_space::device;
        r.any_on_device = r.any_on_device || on_device;
        r.any_on_host = r.any_on_host || !on_device;
        r.matrices_on_host = r.matrices_on_host || (!on_device && t.role != tensor_role::factor);
    }
    return r;
}

/// Device memory that operands in host memory may take together: the limit, or nine tenths of what the GPU has.
OTIMES_ON_DEMAND inline std::int64_t streaming_budget(const gpu_description& gpu, const options& wishes) {
    return (std::min)(streaming_room(gpu), wishes.workspace_limit_bytes);
}

/// The plan for operands in host memory: how they stream (streaming.hpp), and the passes of a full slab.
/// @throws budget_error not even one index at a time keeps the limit, or fits in the GPU's memory; unsupported_error has_several_results
OTIMES_ON_DEMAND inline plan plan_from_host(const program& source, const gpu_description& gpu, const options& wishes) {
    if (streaming::has_several_results(source)) {
        throw unsupported_error(
            "otimes: a product of operators, with a matrix in host memory between two of them, cannot pass through a "
            "GPU. Evaluate them one by one, or use placement::cpu.");
    }
    const stream_plan stream = plan_stream(source, gpu, wishes, streaming_budget(gpu, wishes));
    plan result;
    result.source = source;
    result.where = placement::gpu;
    result.machine_name = gpu.name;
    double bytes_in = 0;
    double bytes_out = 0;
    std::string slabs;
    for (const stream_stage& stage : stream.stages) {
        const auto name = [&stage](std::int32_t id) {
            return id < 0 || stage.names.empty() ? id : stage.names[static_cast<std::size_t>(id)];
        };
        for (pass p : stage.slab.passes) {
            p.in = name(p.in);
            p.out = name(p.out);
            for (sweep& s : p.sweeps) {
                std::ranges::transform(s.factors, s.factors.begin(), name);
            }
            result.passes.push_back(std::move(p));
        }
        const std::int64_t whole = stage.slab_count - (stage.rest.passes.empty() ? 0 : 1);
        saturating_add(result.flops, static_cast<double>(stage.slab.flops) * static_cast<double>(whole) +
                                         static_cast<double>(stage.rest.flops));
        result.factor_elements += stage.slab.factor_elements;
        for (std::size_t b = 0; b < stage.slab.buffer_elements.size(); ++b) {
            if (b == result.buffer_elements.size()) {
                result.buffer_elements.push_back(0);
            }
            result.buffer_elements[b] = (std::max)(result.buffer_elements[b], stage.slab.buffer_elements[b]);
        }
        result.trip_slabs.push_back(stage.slab_count);
        result.trip_passes.push_back(static_cast<std::int64_t>(stage.slab.passes.size()));
        if (stage.slab_count > 1) {
            slabs += std::string(slabs.empty() ? ", in slabs: " : ", then ") + std::to_string(stage.slab_count) +
                     " of " + bytes_text((stage.bytes_in + stage.bytes_out) / static_cast<double>(stage.slab_count));
        }
        bytes_in += stage.bytes_in;
        bytes_out += stage.bytes_out;
    }
    if (stream.stages.size() == 1) {
        result.tensor_buffers = stream.stages.front().slab.tensor_buffers;
        result.tensor_modes = stream.stages.front().slab.tensor_modes;
    }
    result.workspace_bytes = stream.device_bytes;
    result.predicted_seconds = stream.predicted_seconds;
    result.notes.push_back("operands in host memory are copied to the GPU and back, " + bytes_text(bytes_in) + " and " +
                           bytes_text(bytes_out) + slabs + ": " + seconds_text(stream.predicted_seconds));
    if (stream.host_temporary_bytes > 0) {
        result.notes.push_back("between the two trips " + bytes_text(static_cast<double>(stream.host_temporary_bytes)) +
                               " of host memory hold the modes that are done");
    }
    return result;
}

/// Least workspace of a GPU plan: one index per slab. @throws budget_error when even that exceeds the limit.
OTIMES_ON_DEMAND inline plan gpu_plan_within_limit(const program& source, const machine& target,
                                                   const options& wishes) {
    const gpu_description& gpu = target.gpus.front();
    std::optional<gpu_choice> tuned;
    if (!target.tuning.empty() && !wishes.deterministic) {
        const std::uint64_t hash = hash_value(source);
        for (const tuning_entry& entry : target.tuning) {
            if (entry.program_hash == hash && !tuned) {
                tuned = read_gpu_choice(entry.choice);
            }
        }
    }
    plan best = plan_on_gpu(source, gpu, wishes, 0, tuned ? &*tuned : nullptr);
    if (best.workspace_bytes <= wishes.workspace_limit_bytes) {
        return best;
    }
    std::int64_t least = best.workspace_bytes;
    const std::vector<chain> chains = chains_of(source);
    std::vector<std::int64_t> cut_extents{cut_of_chains(source, chains).extent};
    for (const chain& c : chains) {
        const std::int32_t mode = c.step_count > 0 ? slab_mode_of(c) : -1;
        cut_extents.push_back(mode < 0 ? 0 : c.modes[static_cast<std::size_t>(mode)].p_extent);
    }
    for (const std::int64_t total : cut_extents) {
        for (std::int64_t extent = total / 2; extent > 0; extent /= 2) {
            plan smaller = plan_on_gpu(source, gpu, wishes, extent);
            if (smaller.workspace_bytes <= wishes.workspace_limit_bytes) {
                // Fewer slabs may have room, too: of up to twice the extent, and all alike, so that the last one takes no turn of tiles in vain.
                for (std::int64_t quarters = 7; quarters >= 4; --quarters) {
                    const std::int64_t most = (std::min)(extent * quarters / 4, total - 1);
                    const std::int64_t even = (total - 1) / ((total - 1) / most + 1) + 1;
                    if (even == smaller.slab_extent) {
                        continue;
                    }
                    plan other = plan_on_gpu(source, gpu, wishes, even);
                    if (other.workspace_bytes <= wishes.workspace_limit_bytes &&
                        other.predicted_seconds <= smaller.predicted_seconds) {
                        smaller = std::move(other);
                    }
                }
                return smaller;
            }
            least = (std::min)(least, smaller.workspace_bytes);
        }
    }
    throw budget_error("otimes: the product needs a workspace of at least " + std::to_string(least) +
                           " bytes on the GPU, but workspace_limit_bytes is " +
                           std::to_string(wishes.workspace_limit_bytes) +
                           ". Raise the limit, or cut the rows of X yourself.",
                       least);
}

/// The plan for one GPU; operands in host memory stream through it. @throws unsupported_error the machine has none.
OTIMES_ON_DEMAND inline plan place_on_gpu(const program& source, const machine& target, const options& wishes) {
    if (target.gpus.empty()) {
        throw unsupported_error("otimes: a plan for a GPU was asked for, but machine '" + target.cpu.name +
                                "' has none. Use placement::cpu, or plan for a machine from machine_table.hpp.");
    }
    const gpu_description& gpu = target.gpus.front();
    plan result = residency_of(source).matrices_on_host ? plan_from_host(source, gpu, wishes)
                                                        : gpu_plan_within_limit(source, target, wishes);
    if (!gpu.compiles) {
        result.notes.push_back("no kernel is compiled at run time: those of the core set, and the generic one");
    }
    return result;
}

/// Seconds to start the parts of a product on several GPUs and to wait for them.
inline constexpr double spreading_seconds = 60e-6;

/// Where a program on host operands is cut to be done by `count` executors at the same time: along the index whose parts lie
/// farthest apart, if all of them get one, else along the longest. Extent 0: nowhere.
OTIMES_ON_DEMAND inline program_cut spreading_cut(const program& source, std::int64_t count) {
    program_cut best;
    for (program_cut& cut : cuts_of(source)) {
        // One address for an operand that moves from part to part and for one that does not: they cannot both be right.
        bool consistent = true;
        for (std::size_t a = 0; a < source.tensors.size(); ++a) {
            for (std::size_t b = 0; b < a; ++b) {
                const auto step = [&](std::size_t id) {
                    const std::int32_t k = cut.mode[id];
                    return k < 0 ? 0 : source.modes_of(source.tensors[id])[static_cast<std::size_t>(k)].stride;
                };
                const std::int32_t binding = source.tensors[a].binding;
                consistent = consistent && (binding < 0 || binding != source.tensors[b].binding || step(a) == step(b));
            }
        }
        if (consistent && cut.extent > best.extent && best.extent < count) {
            best = std::move(cut);
        }
    }
    return best;
}

/// The plan for all GPUs of a machine and operands in host memory: each GPU streams a part of them (exec/executor.hpp's
/// `run` cuts), so nothing is exchanged. Where no index can be cut one GPU does it all. `whole`: the plan for one GPU, where
/// one keeps the workspace limit.
OTIMES_ON_DEMAND inline plan spread_from_host(const program& source, const machine& target, const options& wishes,
                                              const std::optional<plan>& whole) {
    const auto count = static_cast<std::int64_t>(target.gpus.size());
    const program_cut cut = spreading_cut(source, count);
    const std::int64_t parts = (std::max)(std::int64_t{1}, (std::min)(count, cut.extent));
    if (parts < 2) {
        plan result = whole ? *whole : place_on_gpu(source, target, wishes);
        result.where = placement::gpus;
        if (count > 1) {
            result.notes.push_back("no index runs through all steps: one GPU does all of it");
        }
        return result;
    }
    const std::int64_t share = (cut.extent + parts - 1) / parts;
    plan result = place_on_gpu(slice_of(source, cut, share), target, wishes);  // each part keeps the limit by itself
    result.source = source;
    result.where = placement::gpus;
    result.part_count = static_cast<std::int32_t>(parts);
    result.predicted_seconds += spreading_seconds;
    const auto of_a_part = static_cast<double>(result.flops);
    result.flops = 0;  // of all parts; the last may be smaller
    saturating_add(result.flops, of_a_part * static_cast<double>(cut.extent) / static_cast<double>(share));
    if (!result.notes.empty()) {
        result.notes.front().insert(0, "on each GPU: ");
    }
    result.notes.push_back("an index of extent " + std::to_string(cut.extent) + " is cut into " +
                           std::to_string(parts) + " parts of at most " + std::to_string(share) +
                           ", one per GPU; no exchange");
    return result;
}

/// The plan for all GPUs of a machine: the longest free mode (the rows) is cut evenly, so nothing is exchanged.
/// @throws unsupported_error no GPU; for operands in device memory: fewer than two, another program than one chain, or no free mode with an
/// index for each.
OTIMES_ON_DEMAND inline plan place_on_gpus(const program& source, const machine& target, const options& wishes) {
    const auto count = static_cast<std::int64_t>(target.gpus.size());
    const bool on_host = !residency_of(source).any_on_device;
    if (count < (on_host ? 1 : 2)) {
        throw unsupported_error("otimes: a plan for several GPUs was asked for, but machine '" + target.cpu.name +
                                "' has " + std::to_string(count) + ". Use placement::gpu or placement::automatic.");
    }
    if (on_host) {
        return spread_from_host(source, target, wishes, std::nullopt);
    }
    const std::vector<chain> chains = chains_of(source);
    const bool one_chain = chains.size() == 1 && chains.front().step_count > 0;
    if (!one_chain) {
        throw unsupported_error(
            "otimes: operands in device memory are spread over several GPUs for one product by dense factors alone, "
            "not for sums or factors with structure: use placement::gpu.");
    }
    const std::int32_t mode = slab_mode_of(chains.front());
    const std::int64_t extent = mode < 0 ? 1 : chains.front().modes[static_cast<std::size_t>(mode)].p_extent;
    if (extent < count) {
        throw unsupported_error("otimes: " + std::to_string(count) +
                                " GPUs need a row each, but the longest mode that no "
                                "factor replaces has extent " +
                                std::to_string(extent) +
                                ". Cutting a contracted mode is not planned yet: use placement::gpu.");
    }
    plan result = place_on_gpu(source, target, wishes);
    result.where = placement::gpus;
    const std::int64_t share = (extent + count - 1) / count;
    result.predicted_seconds *= static_cast<double>(share) / static_cast<double>(extent);
    result.notes.push_back(counted(extent, "row") + " are cut into " + std::to_string(count) + " parts of at most " +
                           std::to_string(share) + ", one per GPU; no exchange");
    return result;
}

}  // namespace otimes::planning

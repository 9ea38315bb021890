// SPDX-License-Identifier: MIT
/// @file placement.hpp
/// Where a plan runs: on the CPU, on one GPU or on several. Residency decides first (operands in device memory stay there),
/// then cost including the transfers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// What a program's operands need to be moved for a GPU.
struct residency {
    bool any_on_device = false;
    bool any_on_host = false;
    double host_bytes_in = 0;   ///< inputs and factors in host memory
    double host_bytes_out = 0;  ///< outputs in host memory
    std::int32_t copies = 0;    ///< how many transfers that takes
};

inline residency residency_of(const program& source) {
    residency r;
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (t.binding < 0) {
            continue;
        }
        if (t.space == memory_space::device) {
            r.any_on_device = true;
            continue;
        }
        r.any_on_host = true;
        const double bytes = static_cast<double>(element_count(source, static_cast<std::int32_t>(id))) * t.scalar_bytes;
        (t.role == tensor_role::output ? r.host_bytes_out : r.host_bytes_in) += bytes;
        ++r.copies;
    }
    for (const step& s : source.steps) {
        if (s.add && s.out >= 0 && source.at(s.out).binding >= 0 && source.at(s.out).space == memory_space::host) {
            r.host_bytes_in += static_cast<double>(element_count(source, s.out)) * source.at(s.out).scalar_bytes;
        }
    }
    return r;
}

/// Seconds to bring host operands to the GPU and host results back; 0 when everything is there. A copy costs its bytes over
/// the link and, to start it and to wait for it, about as much as three launches.
inline double transfer_seconds(const residency& r, const gpu_description& gpu) {
    if (r.copies == 0) {
        return 0.0;
    }
    if (gpu.host_bytes_per_second <= 0) {
        return 1e9;  // no way there is known: never by cost
    }
    return (r.host_bytes_in + r.host_bytes_out) / gpu.host_bytes_per_second + 3.0 * gpu.launch_seconds * r.copies;
}

/// Least workspace of a GPU plan: one index per slab. @throws budget_error when even that exceeds the limit.
inline plan gpu_plan_within_limit(const program& source, const machine& target, const options& wishes) {
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
    for (const chain& c : chains_of(source)) {
        const std::int32_t mode = c.step_count > 0 ? slab_mode_of(c) : -1;
        for (std::int64_t extent = mode < 0 ? 0 : c.modes[static_cast<std::size_t>(mode)].p_extent / 2; extent > 0;
             extent /= 2) {
            plan smaller = plan_on_gpu(source, gpu, wishes, extent);
            if (smaller.workspace_bytes <= wishes.workspace_limit_bytes) {
                return smaller;
            }
            least = (std::min)(least, smaller.workspace_bytes);
        }
    }
    throw budget_error("otimes: the product needs a workspace of at least " + std::to_string(least) +
                       " bytes on the GPU, but workspace_limit_bytes is " +
                       std::to_string(wishes.workspace_limit_bytes) +
                       ". Raise the limit, or cut the rows of X yourself.");
}

/// The plan for one GPU with its transfers accounted for. @throws unsupported_error the machine has none.
inline plan place_on_gpu(const program& source, const machine& target, const options& wishes) {
    if (target.gpus.empty()) {
        throw unsupported_error("otimes: a plan for a GPU was asked for, but machine '" + target.cpu.name +
                                "' has none. Use placement::cpu, or plan for a machine from machine_table.hpp.");
    }
    const gpu_description& gpu = target.gpus.front();
    plan result = gpu_plan_within_limit(source, target, wishes);
    if (!gpu.compiles) {
        result.notes.push_back("no kernel is compiled at run time: those of the core set, and the generic one");
    }
    const double transfer = transfer_seconds(residency_of(source), gpu);
    if (transfer > 0) {
        result.notes.push_back("operands in host memory are copied to the GPU and back: " + seconds_text(transfer));
        result.predicted_seconds += transfer;
    }
    return result;
}

/// The plan for all GPUs of a machine: the longest free mode (the rows) is cut evenly, so nothing is exchanged.
/// @throws unsupported_error fewer than two GPUs, or no free mode with an index for each of them.
inline plan place_on_gpus(const program& source, const machine& target, const options& wishes) {
    const auto count = static_cast<std::int64_t>(target.gpus.size());
    if (count < 2) {
        throw unsupported_error("otimes: a plan for several GPUs was asked for, but machine '" + target.cpu.name +
                                "' has " + std::to_string(count) + ". Use placement::gpu or placement::automatic.");
    }
    const std::vector<chain> chains = chains_of(source);
    const bool one_chain = chains.size() == 1 && chains.front().step_count > 0;
    const std::int32_t mode = one_chain ? slab_mode_of(chains.front()) : -1;
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

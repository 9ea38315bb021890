// SPDX-License-Identifier: MIT
/// @file streaming.hpp
/// Operands in host memory on a GPU: how they pass through device memory in slabs, so that they may be larger than it, with the
/// copy in, the kernels and the copy out of three neighbouring slabs at the same time. A pure function of values.
///
///     slab s:    copy in | compute | copy out
///     slab s+1:            copy in | compute | copy out          two buffers on each side
///
/// A slab is a range of one free index of the program (cut.hpp). Where there is none, or one index of it is too much (one long
/// row), the chain is done in two stages: first every mode but one, in slabs of that one, which is free until then; then that
/// one, in slabs of another. The tensor between them lies in Y where it fits there, else in host memory of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/cut.hpp>
#include <otimes/plan/gpu_passes.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// A host operand of a stage on its way to the device or back. The outputs of a program are one: the terms of a sum write the
/// same matrix.
struct streamed_operand {
    std::int32_t tensor = -1;
    std::int32_t cut_mode = -1;  ///< -1: it is needed whole by every slab, and moved once
    bool read = false;
    bool written = false;
    friend bool operator==(const streamed_operand&, const streamed_operand&) = default;
};

/// One trip of operands through the device.
struct stream_stage {
    program source;                   ///< what the stage computes; operands in host memory
    std::vector<std::int32_t> names;  ///< of its tensors in the whole program, for explain
    program_cut cut;
    std::int64_t slab_extent = 0;  ///< indices of the cut per slab
    std::int64_t slab_count = 1;
    std::vector<streamed_operand> operands;
    program device;        ///< of a full slab: operands in device memory, without gaps
    plan slab;             ///< of `device`
    plan rest;             ///< of a last slab that is shorter; without passes when there is none
    double bytes_in = 0;   ///< host to device, all slabs
    double bytes_out = 0;  ///< device to host
    std::int64_t device_bytes =
        0;  ///< exact: two slabs of each streamed operand, the others whole, the slab's workspace
    double predicted_seconds = 0;
    friend bool operator==(const stream_stage&, const stream_stage&) = default;
};

/// How host operands pass through a GPU.
struct stream_plan {
    std::vector<stream_stage> stages;
    std::int64_t device_bytes = 0;          ///< the most of any stage
    std::int64_t host_temporary_bytes = 0;  ///< host memory between two stages; 0 when Y holds it
    double predicted_seconds = 0;
    friend bool operator==(const stream_plan&, const stream_plan&) = default;
};

/// Bytes of one pinned block, through which pageable operands pass.
inline constexpr std::int64_t pinned_block_bytes = 4ll << 20;

namespace streaming {

inline constexpr std::int64_t buffers_each = 2;
/// In and out. Long against the latency of a copy; below `worth_cutting` the copies of one thread are done sooner than others
/// are started.
inline constexpr double slab_bytes_wanted = 96e6;
inline constexpr double least_slab_bytes = 2e6;
inline constexpr double worth_cutting = 4e6;
inline constexpr std::int64_t slabs_wanted = 24;  ///< so that the first copy in and the last one out are a few percent
/// Ranges of an index whose elements lie side by side are lines of host memory: the longer, the faster they are copied, and the
/// fewer slabs there are to overlap. Their slabs are whole cache lines wide, which is how kernels want them too.
inline constexpr std::int64_t long_line_bytes = 8192;
inline constexpr std::int64_t slabs_of_lines = 8;  ///< at least, of lines longer than the shortest
inline constexpr std::int64_t short_line_bytes = 512;
/// Threads that help with the copies, at most, and the time until they work.
inline constexpr double most_workers = 8;
inline constexpr double workers_start_seconds = 6e-4;
/// Rates of one thread and of all of them.
inline constexpr double workers_gain = 4;
inline constexpr std::int64_t cache_line_bytes = 128;

/// In the device program of a stage, operand i of `stream_stage::operands` has the binding `first_device_binding + i`: two host
/// operands may be the same memory, their copies on the device are not.
OTIMES_ON_DEMAND inline std::int32_t first_device_binding(const program& source) {
    std::int32_t count = 0;
    for (const tensor& t : source.tensors) {
        count = (std::max)(count, t.binding + 1);
    }
    return count;
}

/// True of a program that writes several results, as a product of operators does that are applied one after the other: what lies between two of them is
/// a result of its own, which is read again. Such results do not pass through a GPU together. Several that are overwritten are no terms of one sum;
/// where the last one is added to, the lowering's notes tell what lies between (of the first 64 bindings: else the run refuses it).
OTIMES_ON_DEMAND inline bool has_several_results(const program& source) {
    std::ptrdiff_t overwritten = 0;
    return std::ranges::any_of(source.steps, [&](const step& s) {
        const bool is_output = s.out >= 0 && source.at(s.out).role == tensor_role::output;
        overwritten += is_output && !s.add ? 1 : 0;
        return overwritten > 1 ||
               (is_output && lowering_notes::has(source.noted.scratch_bindings, source.at(s.out).binding));
    });
}

OTIMES_ON_DEMAND inline std::int64_t round_to_allocation(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// True of a matrix in host memory that a GPU needs a copy of; factors with structure are read elsewhere.
OTIMES_ON_DEMAND inline bool passes_through(const tensor& t) {
    return t.binding >= 0 && t.space == memory_space::host &&
           (t.role != tensor_role::factor || t.kind == factor_kind::dense);
}

/// What the packed copy of a tensor holds: its modes as pack() nests them, merged.
OTIMES_ON_DEMAND inline std::vector<mode> modes_of_copy(const program& source, std::int32_t id) {
    std::vector<mode> modes;
    modes.reserve(static_cast<std::size_t>(source.at(id).mode_count));
    for (const std::int32_t k : memory_order(source, id)) {
        modes.push_back(source.modes[static_cast<std::size_t>(k)]);
    }
    return merged_modes(modes);
}

/// True of two inputs of which one copy serves both: the terms of a sum have one X, which each may see with other modes.
OTIMES_ON_DEMAND inline bool share_copy(const program& source, const program_cut& cut, std::int32_t one,
                                        std::int32_t other) {
    const tensor& t = source.at(one);
    const tensor& o = source.at(other);
    if (t.role == tensor_role::output || o.role == tensor_role::output || t.binding != o.binding ||
        t.scalar_bytes != o.scalar_bytes) {
        return false;
    }
    const auto cut_of = [&](std::int32_t id) {
        const std::int32_t k = cut.extent > 0 ? cut.mode[static_cast<std::size_t>(id)] : -1;
        return k < 0 ? mode{0, 0} : source.modes_of(id)[static_cast<std::size_t>(k)];
    };
    return cut_of(one) == cut_of(other) && modes_of_copy(source, one) == modes_of_copy(source, other);
}

/// Which operand of a stage a tensor is, or shares the copy of: as an input, or as a result of another term of the same sum. -1: none.
OTIMES_ON_DEMAND inline std::int32_t operand_of(const stream_stage& stage, std::int32_t id) {
    const tensor& t = stage.source.at(id);
    for (std::size_t i = 0; passes_through(t) && i < stage.operands.size(); ++i) {
        const std::int32_t other = stage.operands[i].tensor;
        const bool both_results = t.role == tensor_role::output && stage.source.at(other).role == tensor_role::output;
        if (other == id || both_results || share_copy(stage.source, stage.cut, id, other)) {
            return static_cast<std::int32_t>(i);
        }
    }
    return -1;
}

/// The program of `count` indices of a stage's cut on the device: operands in device memory, without gaps.
OTIMES_ON_DEMAND inline program on_device(const stream_stage& stage, std::int64_t count) {
    program p = stage.cut.extent > 0 ? slice_of(stage.source, stage.cut, count) : stage.source;
    const std::int32_t first = first_device_binding(stage.source);
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(p.tensors.size()); ++id) {
        const std::int32_t operand = operand_of(stage, id);
        if (operand >= 0) {
            pack(p, id);
            tensor& t = p.tensors[static_cast<std::size_t>(id)];
            t.space = memory_space::device;
            t.alignment_log2 = 6;
            t.binding = first + operand;
        }
    }
    return p;
}

/// The stage that works on slabs of `extent` indices, before its kernels are chosen: device_bytes are those of the slabs.
OTIMES_ON_DEMAND inline stream_stage outline_of(const program& source, const program_cut& cut, std::int64_t extent) {
    stream_stage stage;
    stage.source = source;
    stage.cut = cut;
    const bool is_cut = cut.extent > 0;
    stage.slab_extent = is_cut ? extent : 0;
    stage.slab_count = is_cut ? (cut.extent + extent - 1) / extent : 1;
    std::vector<std::int32_t> operands(source.tensors.size(), -1);  // of each tensor
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(source.tensors.size()); ++id) {
        const auto at = static_cast<std::size_t>(id);
        operands[at] = operand_of(stage, id);
        if (operands[at] < 0 && passes_through(source.at(id))) {
            operands[at] = static_cast<std::int32_t>(stage.operands.size());
            stage.operands.push_back({id, is_cut ? cut.mode[at] : -1, false, false});
        }
    }
    const auto find = [&](std::int32_t id) -> streamed_operand* {
        const std::int32_t at = id < 0 ? -1 : operands[static_cast<std::size_t>(id)];
        return at < 0 ? nullptr : &stage.operands[static_cast<std::size_t>(at)];
    };
    for (const step& s : source.steps) {
        for (const std::int32_t id : {s.in, s.factor, s.add ? s.out : -1}) {
            if (streamed_operand* const o = find(id)) {
                o->read = o->read || !o->written;  // what a step before has written needs no copy in
            }
        }
        if (streamed_operand* const o = find(s.out)) {
            o->written = true;
        }
    }
    stage.device = on_device(stage, extent);
    for (const streamed_operand& o : stage.operands) {
        const tensor& t = source.at(o.tensor);
        const std::int64_t bytes = element_count(stage.device, o.tensor) * t.scalar_bytes;
        stage.device_bytes += round_to_allocation(bytes) * (o.cut_mode >= 0 ? buffers_each : 1);
        const double whole = static_cast<double>(element_count(source, o.tensor)) * t.scalar_bytes;
        stage.bytes_in += o.read ? whole : 0.0;
        stage.bytes_out += o.written ? whole : 0.0;
    }
    return stage;
}

/// Chooses the kernels of an outlined stage, such as keep `budget` bytes with the slabs where they can.
OTIMES_ON_DEMAND inline void choose_kernels(stream_stage& stage, const gpu_description& gpu, const options& wishes,
                                            std::int64_t budget) {
    options left = wishes;  // beside the slabs
    left.workspace_limit_bytes = (std::max)(std::int64_t{0}, budget - stage.device_bytes);
    stage.slab = plan_on_gpu(stage.device, gpu, left);
    double seconds = stage.slab.predicted_seconds * static_cast<double>(stage.slab_count);
    const std::int64_t rest = stage.cut.extent > 0 ? stage.cut.extent % stage.slab_extent : 0;
    if (rest != 0) {
        stage.rest = plan_on_gpu(on_device(stage, rest), gpu, left);
        seconds += stage.rest.predicted_seconds - stage.slab.predicted_seconds;
    }
    stage.device_bytes += (std::max)(stage.slab.workspace_bytes, stage.rest.workspace_bytes);
    if (gpu.host_bytes_per_second > 0) {
        const double in = stage.bytes_in / gpu.host_bytes_per_second;
        const double out = stage.bytes_out / gpu.host_bytes_per_second;
        // Pageable memory: by several threads where the slabs overlap, by the calling one else.
        const double rate = gpu.staged_bytes_per_second / (stage.slab_count > 1 ? 1.0 : workers_gain);
        const double staged = rate > 0 ? (stage.bytes_in + stage.bytes_out) / rate : 0.0;
        const double slowest = (std::max)({in, out, staged, seconds});
        // What is not overlapped: the first slab's way in and the last one's way out; each copy is started and waited for.
        stage.predicted_seconds =
            slowest + (in + out + seconds - (std::max)({in, out, seconds})) / static_cast<double>(stage.slab_count) +
            3.0 * gpu.launch_seconds * static_cast<double>(stage.operands.size()) +
            (stage.slab_count > 1 ? workers_start_seconds : 0.0);
    } else {
        stage.predicted_seconds = 1e9;  // no way there is known: never by cost
    }
}

/// The best stage for `source` within `budget` bytes of device memory; where there is none, the one of least device_bytes. Which
/// slabs are looked at does not depend on the budget, so that the least is a budget that works, and nothing below it is.
/// Kernels are chosen where the slabs leave room for them; where nothing has room, as long as the least may be less.
/// @param refused where nothing fits, stages of so many bytes are of no use: then one of them or more may be returned for the least
OTIMES_ON_DEMAND inline stream_stage best_stage(const program& source, const std::vector<program_cut>& cuts,
                                                const gpu_description& gpu, const options& wishes, std::int64_t budget,
                                                std::int64_t refused) {
    stream_stage best;
    best.device_bytes = (std::numeric_limits<std::int64_t>::max)();
    bool found = false;
    std::vector<stream_stage> without_room;  // the slabs alone take more than the budget
    const auto consider = [&](stream_stage stage) {
        if (stage.device_bytes > budget) {
            without_room.push_back(std::move(stage));
            return false;
        }
        choose_kernels(stage, gpu, wishes, budget);
        const bool fits = stage.device_bytes <= budget;
        const bool better = fits != found ? fits
                            : fits        ? stage.predicted_seconds < best.predicted_seconds
                                          : stage.device_bytes < best.device_bytes;
        if (better) {
            found = fits;
            best = std::move(stage);
        }
        return fits;
    };
    const stream_stage whole = outline_of(source, {}, 0);
    const double moved = whole.bytes_in + whole.bytes_out;
    if (consider(whole) && moved < worth_cutting) {
        return best;  // too little to cut
    }
    for (const program_cut& cut : cuts) {
        const double slab_bytes =
            std::clamp(moved / static_cast<double>(slabs_wanted), least_slab_bytes, slab_bytes_wanted);
        auto extent = static_cast<std::int64_t>(static_cast<double>(cut.extent) * (std::min)(1.0, slab_bytes / moved));
        std::int64_t granule = 1;
        for (const streamed_operand& o : whole.operands) {
            const std::int32_t k = cut.mode[static_cast<std::size_t>(o.tensor)];
            const tensor& t = source.at(o.tensor);
            if (k >= 0 && std::abs(source.modes_of(t)[static_cast<std::size_t>(k)].stride) == 1) {
                // Long lines, as long as that leaves a good number of slabs.
                granule = cache_line_bytes / t.scalar_bytes;
                extent = (std::max)({extent, short_line_bytes / t.scalar_bytes,
                                     (std::min)(long_line_bytes / t.scalar_bytes, cut.extent / slabs_of_lines)});
            }
        }
        extent = std::clamp<std::int64_t>(extent, 1, (cut.extent + 1) / 2);
        const std::int64_t count = (cut.extent + extent - 1) / extent;
        extent = (cut.extent + count - 1) / count;
        if (extent > granule && 2 * round_up(extent, granule) <= cut.extent) {
            extent = round_up(extent, granule);
        }
        for (bool fits = false; !fits && extent > 0; extent /= 2) {
            extent = extent > granule ? extent / granule * granule : extent;
            fits = consider(outline_of(source, cut, extent));
        }
    }
    for (; !found && !without_room.empty(); without_room.pop_back()) {  // the smallest slabs of a cut come first
        stream_stage& stage = without_room.back();
        if (stage.device_bytes >= (std::min)(best.device_bytes, refused)) {
            continue;
        }
        choose_kernels(stage, gpu, wishes, budget);
        if (stage.device_bytes < best.device_bytes) {
            best = std::move(stage);
        }
    }
    return best;
}

/// A chain of contractions in two stages, the one on mode `last` alone in the second. False where the program is no such chain.
/// The tensor between them takes the binding after the program's own; `temporary_bytes`: 0 when it lies in Y.
OTIMES_ON_DEMAND inline bool split_chain(const program& source, std::int32_t last, program& first, program& second,
                                         std::vector<std::int32_t>& first_names,
                                         std::vector<std::int32_t>& second_names, std::int64_t& temporary_bytes) {
    const std::int32_t bindings = first_device_binding(source);
    std::vector<const step*> before;
    const step* alone = nullptr;
    for (const step& s : source.steps) {
        if (s.kind != step_kind::contract || source.at(s.factor).mode_count != 2) {
            return false;
        }
        if (s.mode == last && alone == nullptr) {
            alone = &s;
        } else if (s.mode == last) {
            return false;
        } else {
            before.push_back(&s);
        }
    }
    const step& end = source.steps.back();
    for (std::size_t i = 0; i < source.steps.size(); ++i) {
        if (i > 0 && source.steps[i].in != source.steps[i - 1].out) {
            return false;
        }
    }
    if (alone == nullptr || before.empty()) {
        return false;
    }
    const auto input = source.steps.front().in;
    const auto output = end.out;
    const auto copy = [&](program& to, std::int32_t id) {
        const std::int32_t number = to.add_tensor(source.at(id));
        for (const mode& m : source.modes_of(id)) {
            to.add_mode(m.extent, m.stride);
        }
        return number;
    };
    // The tensor between: Y's modes but the one that is still to be contracted.
    const mode& kept = source.modes_of(input)[static_cast<std::size_t>(last)];
    const mode& made = source.modes_of(output)[static_cast<std::size_t>(last)];
    const bool in_place = kept.extent == made.extent && !end.add;
    const auto between = [&](program& to, tensor_role role) {
        tensor t = source.at(output);
        t.role = role;
        if (!in_place) {
            t.binding = bindings;
        }
        const std::int32_t number = to.add_tensor(t);
        for (std::int32_t k = 0; k < t.mode_count; ++k) {
            const mode& m = source.modes_of(output)[static_cast<std::size_t>(k)];
            to.add_mode(k == last ? kept.extent : m.extent, m.stride);
        }
        to.tensors[static_cast<std::size_t>(number)].mode_count = source.at(output).mode_count;
        if (!in_place) {
            pack(to, number);
        }
        return number;
    };
    first.clear();
    std::int32_t current = copy(first, input);
    for (std::size_t i = 0; i < before.size(); ++i) {
        step s = *before[i];
        const std::int32_t factor = copy(first, s.factor);
        s.in = current;
        s.factor = factor;
        s.add = false;
        s.scalar = -1;
        if (i + 1 == before.size()) {
            s.out = between(first, tensor_role::output);
        } else {
            tensor t = first.at(current);
            t.role = tensor_role::temporary;
            t.binding = -1;
            t.conjugate = false;
            const std::int32_t from = first.at(current).first_mode;
            const std::int32_t modes = t.mode_count;
            s.out = first.add_tensor(t);
            const std::int64_t q = source.modes_of(before[i]->factor)[1].extent;
            for (std::int32_t k = 0; k < modes; ++k) {
                const std::int64_t extent = first.modes[static_cast<std::size_t>(from + k)].extent;
                first.add_mode(k == s.mode ? q : extent, 0);
            }
        }
        first.steps.push_back(s);
        current = s.out;
    }
    second.clear();
    step s = *alone;
    s.in = between(second, tensor_role::input);
    second.tensors[static_cast<std::size_t>(s.in)].conjugate = false;
    s.factor = copy(second, alone->factor);
    s.out = copy(second, output);
    s.add = end.add;
    s.scalar = end.scalar;
    second.steps.push_back(s);
    const std::int32_t link =
        in_place ? output : source.steps.front().out;  // what lies between, a temporary of the source
    second_names = {link, alone->factor, output};
    first_names = {input};
    for (std::size_t i = 0; i < before.size(); ++i) {
        first_names.push_back(before[i]->factor);
        first_names.push_back(link);
    }
    second.scalar_count = first.scalar_count = source.scalar_count;
    temporary_bytes = in_place ? 0 : element_count(second, s.in) * source.at(output).scalar_bytes;
    return true;
}

}  // namespace streaming

/// Bytes of device memory that operands in host memory may take: nine tenths of what the GPU has.
OTIMES_ON_DEMAND inline std::int64_t streaming_room(const gpu_description& gpu) {
    return gpu.memory_bytes > 0 ? gpu.memory_bytes / 10 * 9 : (std::numeric_limits<std::int64_t>::max)();
}

/// How the host operands of `source` pass through `gpu` within `budget` bytes of its memory.
/// @throws budget_error when one index of every cut takes more; the text names the least that would do. Where the GPU has less than that,
/// no limit works, and least_bytes() is 0.
OTIMES_ON_DEMAND inline stream_plan plan_stream(const program& source, const gpu_description& gpu,
                                                const options& wishes, std::int64_t budget) {
    stream_plan result;
    const std::vector<program_cut> cuts = cuts_of(source);
    stream_stage one =
        streaming::best_stage(source, cuts, gpu, wishes, budget, (std::numeric_limits<std::int64_t>::max)());
    std::int64_t least = one.device_bytes;
    if (one.device_bytes <= budget) {
        result.device_bytes = one.device_bytes;
        result.predicted_seconds = one.predicted_seconds;
        result.stages.push_back(std::move(one));
        return result;
    }
    const std::int32_t modes = source.steps.empty() ? 0 : source.at(source.steps.front().in).mode_count;
    result.predicted_seconds = std::numeric_limits<double>::infinity();
    for (std::int32_t k = 0; k < modes; ++k) {
        const std::int64_t refused = result.stages.empty() ? least : budget + 1;
        stream_plan two;
        program parts[2];
        std::vector<std::int32_t> names[2];
        if (!streaming::split_chain(source, k, parts[0], parts[1], names[0], names[1], two.host_temporary_bytes)) {
            continue;
        }
        for (std::size_t i = 0; i < 2 && two.device_bytes < refused; ++i) {
            stream_stage stage = streaming::best_stage(parts[i], cuts_of(parts[i]), gpu, wishes, budget, refused);
            stage.names = names[i];
            two.device_bytes = (std::max)(two.device_bytes, stage.device_bytes);
            two.predicted_seconds += stage.predicted_seconds;
            two.stages.push_back(std::move(stage));
        }
        least = (std::min)(least, two.device_bytes);  // which matters where nothing fits
        if (two.device_bytes <= budget && two.predicted_seconds < result.predicted_seconds) {
            result = std::move(two);
        }
    }
    if (result.stages.empty()) {
        const std::string wanted =
            "otimes: operands in host memory pass through the GPU in slabs, which take at least " +
            std::to_string(least) + " bytes there, ";
        if (const std::int64_t room = streaming_room(gpu); least > room) {
            throw budget_error(
                wanted + "more than the " + std::to_string(room) +
                " of its memory that they may take, whatever workspace_limit_bytes is. Use placement::cpu.");
        }
        throw budget_error(wanted + "but workspace_limit_bytes is " + std::to_string(budget) +
                               ". Raise the limit, or use placement::cpu.",
                           least);
    }
    return result;
}

}  // namespace otimes::planning

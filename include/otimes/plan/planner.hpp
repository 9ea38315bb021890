// SPDX-License-Identifier: MIT
/// @file planner.hpp
/// make_plan: from what (program) to how (plan). A pure function of values: no hardware is asked, no clock is read, no
/// operand is touched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/ordering.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

namespace planning {

/// Gives out workspace buffers: a value lives from the pass that writes it to the last pass that reads it; a buffer whose
/// value is dead is taken again and grows to the larger of the two.
class buffer_pool {
public:
    explicit buffer_pool(std::vector<std::int64_t>& elements) : elements_(elements) {}
    /// A buffer of at least `count` elements, taken.
    std::int32_t take(std::int64_t count) {
        std::size_t best = elements_.size();
        for (std::size_t b = 0; b < elements_.size(); ++b) {
            if (!taken_[b] && (best == elements_.size() || elements_[b] > elements_[best])) {
                best = b;
            }
        }
        if (best == elements_.size()) {
            elements_.push_back(count);
            taken_.push_back(true);
        } else {
            elements_[best] = std::max(elements_[best], count);
            taken_[best] = true;
        }
        return static_cast<std::int32_t>(best);
    }
    void release(std::int32_t buffer) { taken_[static_cast<std::size_t>(buffer)] = false; }

private:
    std::vector<std::int64_t>& elements_;
    std::vector<bool> taken_;
};

/// How one chain is evaluated on the CPU.
struct chain_decision {
    std::vector<factor_group> groups;  ///< in the order of execution
    slab_choice slab;
    std::vector<std::size_t> ends;  ///< of the passes, in groups
    double seconds = 0;
};

/// Bytes of a chain's input and output.
inline double outer_bytes(const chain& c) {
    double in = 1;
    double out = 1;
    for (const chain_mode& m : c.modes) {
        in *= static_cast<double>(m.P);
        out *= static_cast<double>(m.Q);
    }
    return (in + out) * static_cast<double>(element_bytes(c.type));
}

/// Decides groups, order, slabs and passes of a chain.
inline chain_decision decide(const chain& c, const cpu_description& cpu, std::int32_t threads, bool slabs_allowed) {
    chain_decision decision;
    decision.groups = group_factors(c, true);
    order_groups(decision.groups);
    if (decision.groups.empty()) {
        return decision;
    }
    fusion_setting f;
    f.source = &c;
    f.groups = decision.groups;
    f.cpu = &cpu;
    f.threads = threads;
    f.outer_in = f.outer_out = std::max(level::l2, level_of(cpu, outer_bytes(c), 1));
    decision.seconds = std::numeric_limits<double>::infinity();
    for (const slab_choice& slab : slab_candidates(f)) {
        if (slab.count > 1 && !slabs_allowed) {
            continue;
        }
        f.slab = slab;
        f.inner = intermediate_level(f);
        double seconds = 0;
        std::vector<std::size_t> ends = cheapest_partition(f, seconds);
        if (seconds < decision.seconds) {
            decision.seconds = seconds;
            decision.ends = std::move(ends);
            decision.slab = decision.ends.size() > 1 ? slab : slab_choice{};
        }
    }
    return decision;
}

}  // namespace planning

/// Decides how `source` is evaluated on `target`: order, grouping, fusion, slabs, kernels and placement (docs/planner.md).
/// Pure; equal arguments give equal plans. Cost: tens of microseconds for a product of a few factors.
/// @throws budget_error the workspace limit cannot be kept; the text names the least that would do.
/// @throws unsupported_error a placement that the machine does not have.
inline plan make_plan(const program& source, const machine& target, const options& wishes = {}) {
    using namespace planning;
    plan result;
    result.source = source;
    result.wishes = wishes;
    result.machine_name = target.cpu.name;
    result.threads = std::max(1, wishes.threads > 0 ? wishes.threads : target.cpu.threads);

    const std::vector<std::int32_t> reads = read_counts(source);
    const auto step_count = static_cast<std::int32_t>(source.steps.size());
    std::vector<chain> chains;
    for (std::int32_t i = 0; i < step_count;) {
        chains.push_back(chain_at(source, i, reads));
        i += std::max(1, chains.back().step_count);
        if (chains.back().step_count == 0) {
            chains.back().first_step = i - 1;
        }
    }
    for (const tensor& t : source.tensors) {
        if (t.role == tensor_role::output && has_tile_kernels(t.type)) {
            result.vector_count = static_cast<std::int32_t>(vector_count(target.cpu, t.type));
        }
    }
    const bool single = chains.size() == 1 && chains.front().step_count > 0;

    // Temporaries at the ends of chains are stored whole, in the order of their modes' names.
    buffer_pool pool(result.buffer_elements);
    std::vector<mode> tensor_modes = source.modes;
    std::vector<std::int32_t> tensor_buffers(source.tensors.size(), -1);
    std::vector<std::int32_t> last_use(source.tensors.size(), -1);
    for (std::size_t c = 0; c < chains.size(); ++c) {
        const chain& one = chains[c];
        for (std::int32_t i = one.first_step; i < one.first_step + std::max(1, one.step_count); ++i) {
            const step& s = source.steps[static_cast<std::size_t>(i)];
            for (const std::int32_t id : {s.in, s.factor, s.out}) {
                if (id >= 0) {
                    last_use[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(c);
                }
            }
        }
    }
    const auto store = [&](std::int32_t id) {
        const tensor& t = source.at(id);
        if (t.binding >= 0 || tensor_buffers[static_cast<std::size_t>(id)] >= 0) {
            return;
        }
        tensor_buffers[static_cast<std::size_t>(id)] = pool.take(element_count(source, id));
        std::int64_t next = 1;
        for (std::int32_t k = t.mode_count; k-- > 0;) {
            mode& m = tensor_modes[static_cast<std::size_t>(t.first_mode + k)];
            m.stride = next;
            next *= std::max<std::int64_t>(1, m.extent);
        }
    };
    const auto name_of = [&](std::int32_t id) {
        const std::int32_t buffer = tensor_buffers[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    };
    const auto stride_of = [&](std::int32_t id, std::int32_t k) {
        return tensor_modes[static_cast<std::size_t>(source.at(id).first_mode + k)].stride;
    };

    std::int64_t largest_tile = 0;
    strides in;
    strides out;
    for (std::size_t position = 0; position < chains.size(); ++position) {
        chain& c = chains[position];
        if (c.step_count == 0) {
            const step& s = source.steps[static_cast<std::size_t>(c.first_step)];
            if (s.out >= 0) {
                store(s.out);
            }
            pass p;
            p.kernel = pass_kernel::step;
            p.step = c.first_step;
            p.in = s.in >= 0 ? name_of(s.in) : -1;
            p.out = s.out >= 0 ? name_of(s.out) : -1;
            p.add = s.add;
            p.scalar = s.scalar;
            p.level = "memory";
            p.reason = "reference loops";
            result.passes.push_back(std::move(p));
        } else {
            store(c.out);
            for (chain_mode& m : c.modes) {
                m.stride_in = stride_of(c.in, m.name);
                m.stride_out = stride_of(c.out, m.name);
            }
            sort_by_memory(c.modes);
            const chain_decision decision = decide(c, target.cpu, result.threads, single);
            fusion_setting f;
            f.source = &c;
            f.groups = decision.groups;
            f.cpu = &target.cpu;
            f.threads = result.threads;
            f.slab = decision.slab;
            f.outer_in = f.outer_out = std::max(level::l2, level_of(target.cpu, outer_bytes(c), 1));
            f.inner = intermediate_level(f);
            if (single) {
                result.slab_count = decision.slab.count;
                result.slab_extent = decision.slab.extent;
            }
            std::vector<std::size_t> ends = decision.ends;
            if (ends.empty()) {
                ends.push_back(0);
            }
            std::int32_t input = name_of(c.in);
            std::size_t begin = 0;
            for (const std::size_t end : ends) {
                pass p;
                strides_after(f, begin, in);
                strides_after(f, end, out);
                if (end == f.groups.size()) {
                    for (std::size_t k = 0; k < c.modes.size(); ++k) {
                        out[k] = c.modes[k].stride_out;
                    }
                }
                outline_pass(f, begin, end, in, out, p);
                if (f.groups.empty() && !c.unit_factors.empty()) {
                    p.sweeps.push_back({static_cast<std::int32_t>(p.modes.size()), sweep_kernel::fibre, 1, 1, {}});
                    p.modes.push_back({1, 1, 0, 0});
                }
                const pass_setting where = setting_of(f, begin, end);
                const pass_cost cost = choose_lanes(f, where, p);
                for (std::size_t i = begin; i < end; ++i) {
                    const factor_group& group = f.groups[i];
                    for (std::int32_t k = group.first; k < group.first + group.count; ++k) {
                        p.sweeps[i - begin].factors.push_back(c.modes[static_cast<std::size_t>(k)].factor);
                    }
                }
                if (begin == 0 && !p.sweeps.empty()) {
                    p.sweeps.front().factors.insert(p.sweeps.front().factors.end(), c.unit_factors.begin(),
                                                    c.unit_factors.end());
                }
                const bool last = end == f.groups.size();
                p.in = input;
                if (last) {
                    p.out = name_of(c.out);
                    p.scalar = c.scalar;
                } else {
                    p.out = -2 - pool.take(elements_after(f, end));
                }
                if (begin > 0) {
                    pool.release(-2 - input);
                }
                p.flops = static_cast<std::int64_t>(cost.flops);
                p.bytes = static_cast<std::int64_t>(cost.bytes);
                p.level = level_name(std::max(where.in, where.out));
                p.bound_seconds = cost.bound_seconds;
                p.predicted_seconds = cost.seconds;
                for (const sweep& s : p.sweeps) {
                    result.factor_elements += packed_factor_elements(s, result.vector_count);
                }
                const auto stage = static_cast<std::int64_t>(tile_peak_elements(p));
                largest_tile =
                    std::max(largest_tile, stage * round_up(p.lane_count, result.vector_count) + result.vector_count);
                input = p.out;
                begin = end;
                result.flops += p.flops;
                result.predicted_seconds += p.predicted_seconds;
                result.passes.push_back(std::move(p));
            }
        }
        for (std::size_t id = 0; id < source.tensors.size(); ++id) {
            if (tensor_buffers[id] >= 0 && last_use[id] == static_cast<std::int32_t>(position)) {
                pool.release(tensor_buffers[id]);
            }
        }
    }
    result.tile_elements = largest_tile;
    if (!single) {
        result.tensor_buffers = std::move(tensor_buffers);
        result.tensor_modes = std::move(tensor_modes);
    }
    result.workspace_bytes = layout_of(result).total;
    return result;
}

}  // namespace otimes

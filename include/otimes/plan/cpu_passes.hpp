// SPDX-License-Identifier: MIT
/// @file cpu_passes.hpp
/// The plan of a program on a CPU, for one request (threads, slabs, lanes, grouping): chains become fused passes, all other
/// steps one pass each, by strided loops or the reference loops. make_plan decides between requests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cost.hpp>
#include <otimes/plan/cut.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/step_cost.hpp>
#include <otimes/plan/stores.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// How the groups of a chain are cut into passes.
enum class partition : std::uint8_t { by_cost, one_group_each, one_pass, two_passes };

/// What is prescribed to the planner; the defaults leave everything to the cost model.
struct cpu_request {
    std::int32_t threads = 1;
    bool multiply_out = true;       ///< grouping allowed
    std::int64_t slab_extent = -1;  ///< indices per slab; 0: no slabs, -1: by cost
    std::int64_t most_lanes = (std::numeric_limits<std::int64_t>::max)();
    planning::partition partition = planning::partition::by_cost;
};

/// Gives out workspace buffers: a value lives from the pass that writes it to the last pass that reads it; a buffer whose
/// value is dead is taken again and grows to the larger of the two.
class buffer_pool {
public:
    explicit buffer_pool(std::vector<std::int64_t>& elements) : elements_(elements) {}
    /// A buffer of at least `count` elements, taken: of the free ones the largest.
    std::int32_t take(std::int64_t count) {
        std::size_t best = elements_.size();
        for (std::size_t b = 0; b < elements_.size(); ++b) {
            if (taken_[b] == 0 && (best == elements_.size() || elements_[b] > elements_[best])) {
                best = b;
            }
        }
        if (best == elements_.size()) {
            elements_.push_back(0);
            taken_.push_back(0);
        }
        elements_[best] = (std::max)(elements_[best], count);
        taken_[best] = 1;
        return static_cast<std::int32_t>(best);
    }
    void release(std::int32_t buffer) { taken_[static_cast<std::size_t>(buffer)] = 0; }

private:
    std::vector<std::int64_t>& elements_;
    std::vector<std::int64_t> taken_;  // 0 or 1
};

/// How one chain is evaluated on the CPU.
struct chain_decision {
    std::vector<factor_group> groups;  ///< in the order of execution
    slab_choice slab;
    std::vector<std::size_t> ends;  ///< of the passes, in groups
    double seconds = 0;
    double seconds_without_slabs = 0;
};

/// Bytes of a chain's input and output.
inline double outer_bytes(const chain& c) {
    double in = 1;
    double out = 1;
    for (const chain_mode& m : c.modes) {
        in *= static_cast<double>(m.p_extent);
        out *= static_cast<double>(m.q_extent);
    }
    return (in + out) * static_cast<double>(element_bytes(c.type));
}

/// The setting in which the passes of a chain are weighed. Input and output that fit in cache are taken to be there: a
/// product that small is rarely computed once.
OTIMES_COLD inline fusion_setting setting_for(const chain& c, std::span<const factor_group> groups,
                                              const cpu_description& cpu, const cpu_request& request,
                                              const slab_choice& slab) {
    fusion_setting f;
    f.source = &c;
    f.groups = groups;
    f.cpu = &cpu;
    f.slab = slab;
    f.threads = request.threads;
    f.outer_in = f.outer_out = (std::max)(level::l2, level_of(cpu, outer_bytes(c), 1));
    f.inner = intermediate_level(f);
    f.most_lanes = request.most_lanes;
    f.in_place = c.in_place;
    return f;
}

/// Several passes instead of one that transposes its tiles must promise this share of its time, since the model takes rows of 81 and more
/// elements that are transposed for twice as slow as they are: 3^4 and 3^7 in double take 1.4 of the time in two passes, which are
/// predicted to be 8 and 2 % faster.
inline constexpr double passes_must_earn = 0.85;

/// True where one pass over all groups transposes its tiles.
OTIMES_COLD inline bool transposes_in_one_pass(const fusion_setting& f) {
    pass scratch;
    strides in;
    strides out;
    interval_seconds(f, 0, f.groups.size(), scratch, in, out);
    return movement_of(scratch, &pass_mode::stride_in) == movement::transposing;
}

/// Ends of the passes and their predicted seconds, as the request's partition says.
OTIMES_COLD inline std::vector<std::size_t> partition_of(const fusion_setting& f, planning::partition how,
                                                         double& seconds) {
    const std::size_t count = f.groups.size();
    if (how == planning::partition::by_cost) {
        std::vector<std::size_t> cheapest = cheapest_partition(f, seconds);
        if (cheapest.size() > 1) {
            pass scratch;
            strides in;
            strides out;
            const double one_pass = interval_seconds(f, 0, count, scratch, in, out);
            if (movement_of(scratch, &pass_mode::stride_in) == movement::transposing &&
                one_pass * passes_must_earn <= seconds) {
                seconds = one_pass;
                return {count};
            }
        }
        return cheapest;
    }
    std::vector<std::size_t> ends;
    if (how == planning::partition::two_passes && count > 1) {  // one intermediate, so one buffer
        pass scratch;
        strides in;
        strides out;
        seconds = std::numeric_limits<double>::infinity();
        for (std::size_t middle = 1; middle < count; ++middle) {
            const double both =
                interval_seconds(f, 0, middle, scratch, in, out) + interval_seconds(f, middle, count, scratch, in, out);
            if (both < seconds) {
                seconds = both;
                ends.clear();
                ends.push_back(middle);
                ends.push_back(count);
            }
        }
        return ends;
    }
    const std::size_t width = how == planning::partition::one_group_each ? 1 : count;
    pass scratch;
    strides in;
    strides out;
    seconds = 0;
    for (std::size_t begin = 0; begin < count; begin += width) {
        seconds += interval_seconds(f, begin, begin + width, scratch, in, out);
        ends.push_back(begin + width);
    }
    return ends;
}

/// True when every pass but the first does two sweeps or more: then it reads its tile before it writes it, and can work in
/// place without a copy.
inline bool all_fused_behind_first(const std::vector<std::size_t>& ends) {
    for (std::size_t i = 1; i < ends.size(); ++i) {
        if (ends[i] - ends[i - 1] < 2) {
            return false;
        }
    }
    return true;
}

/// Passes that keep what lies between them in the output have a third less memory in use, which the model does not see: 7^4 in
/// float by columns takes 0.75 to 0.83 of the time of passes through a buffer that are predicted to be 3 % faster.
inline constexpr double less_than_in_output = 0.9;
/// The same of slabs, whose passes keep it in their share of L2: 64^3 in float, predicted to be 1 % faster so, takes 1.08 of the time.
inline constexpr double slabs_less_than_in_output = 0.97;

/// Decides groups, order, slabs and passes of a chain. Cost: a few dynamic programs over the groups.
/// @param given the slabs of the program that the chain is a part of
OTIMES_COLD inline chain_decision decide(const chain& c, const cpu_description& cpu, const cpu_request& request,
                                         bool slabs_allowed, const slab_choice& given) {
    chain_decision decision;
    decision.groups = group_factors(c, request.multiply_out, cpu.simd_bytes == 64);
    if (decision.groups.empty()) {
        decision.slab = given;
        return decision;
    }
    decision.seconds = std::numeric_limits<double>::infinity();
    std::vector<slab_choice> candidates;
    const fusion_setting whole = setting_for(c, decision.groups, cpu, request, slab_choice{});
    if (request.slab_extent < 0 && slabs_allowed) {
        candidates = slab_candidates(whole);
        // A small result would go from one thread's second-level cache to the other's and back with every evaluation: written by one in the
        // first pass, by another in the next. A buffer between them goes once, where it, the operand and the result fit. Measured by columns
        // on two cores, microseconds in float and double: 64 rows of 8^3 19, 39 and 11, 19, 20 of 2^10 15, 29 and 13, 25, but 128 of 4^5 40
        // and 48 in float.
        const double all_three = 3.0 * largest_intermediate(whole) * static_cast<double>(element_bytes(c.type));
        if (c.fills_output && (request.threads == 1 || level_of(cpu, all_three, 1) > level::l2)) {
            slab_choice in_output;
            in_output.in_output = true;
            candidates.insert(candidates.begin(), in_output);
        }
    } else {
        candidates.push_back(given);
        const std::int32_t mode = slab_mode_of(c);
        if (request.slab_extent > 0 && slabs_allowed && mode >= 0) {
            candidates.front() = cut(c, mode, request.slab_extent);
        }
    }
    // What is compared: the time, and of one pass that transposes its tiles the share that several passes must promise.
    double least = decision.seconds;
    for (const slab_choice& slab : candidates) {
        const fusion_setting f = setting_for(c, decision.groups, cpu, request, slab);
        double seconds = 0;
        std::vector<std::size_t> ends = partition_of(f, request.partition, seconds);
        if (slab.in_output && !all_fused_behind_first(ends)) {  // as the request's partition has it
            continue;
        }
        if (slab.count <= 1) {
            decision.seconds_without_slabs = seconds;
        }
        // more workspace must earn it
        const double must_earn = !decision.slab.in_output ? 0.99
                                 : slab.count <= 1        ? less_than_in_output
                                                          : slabs_less_than_in_output;
        const bool transposes = slab.count <= 1 && ends.size() == 1 && transposes_in_one_pass(f);
        const double compared = transposes ? passes_must_earn * seconds : seconds;
        if (compared < must_earn * least) {
            least = compared;
            decision.seconds = seconds;
            decision.slab = ends.size() > 1 ? slab : given;
            decision.ends = std::move(ends);
        }
    }
    return decision;
}

/// The chains of a program in order; a step that fits none stands alone with step_count 0.
OTIMES_COLD inline std::vector<chain> chains_of(const program& source) {
    std::vector<chain> chains;
    const std::vector<std::int32_t> reads = read_counts(source);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(source.steps.size());) {
        chains.push_back(chain_at(source, i, reads));
        i += (std::max)(1, chains.back().step_count);
    }
    return chains;
}

/// Per tensor the position of the last chain that reads or writes it; -1: none.
OTIMES_COLD inline std::vector<std::int32_t> last_uses(const program& source, const std::vector<chain>& chains) {
    std::vector<std::int32_t> last(source.tensors.size(), -1);
    for (std::size_t position = 0; position < chains.size(); ++position) {
        const std::int32_t first = chains[position].first_step;
        for (std::int32_t i = first; i < first + (std::max)(1, chains[position].step_count); ++i) {
            const step& s = source.steps[static_cast<std::size_t>(i)];
            for (const std::int32_t id : {s.in, s.factor, s.out}) {
                if (id >= 0) {
                    last[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(position);
                }
            }
        }
    }
    return last;
}

/// @name What the loops of single steps reach (exec/cpu/step_loops.hpp), measured on two cores with AVX-512
/// @{
inline constexpr double sparse_efficiency = 0.125;     ///< of the peak, sparse factors and scalings, from the caches
inline constexpr double triangular_efficiency = 0.6;   ///< of the peak, triangular factors from order 32 on
inline constexpr double plain_flops_per_second = 2e8;  ///< a multiply-add in ten nanoseconds
/// @}

/// Builds the passes of a program one chain after another, and lays out what lies between them.
class cpu_plan_builder {
public:
    cpu_plan_builder(const program& source, const cpu_description& cpu, const cpu_request& request,
                     const program_cut* cut, plan& result)
        : source_(source),
          cpu_(cpu),
          request_(request),
          result_(result),
          pool_(result.buffer_elements),
          modes_(source.modes),
          buffers_(source.tensors.size(), -1) {
        if (cut != nullptr && request.slab_extent > 0 && request.slab_extent < cut->extent) {
            cut_ = cut->mode.data();
            result.slab_extent = request.slab_extent;
            result.slab_count = (cut->extent - 1) / request.slab_extent + 1;
        }
    }

    /// `single` receives the decision about the only chain, if the program is one chain.
    /// @throws unsupported_error a chain is of another type than the program
    void build(std::vector<chain>& chains, chain_decision& single) {
        const bool one_chain = chains.size() == 1 && chains.front().step_count > 0;
        const std::vector<std::int32_t> last_use = last_uses(source_, chains);
        const dtype type = type_of_kernels(source_);
        for (std::size_t position = 0; position < chains.size(); ++position) {
            chain& c = chains[position];
            if (c.step_count == 0) {
                add_step(c.first_step);
            } else {
                if (c.type != type) {
                    throw unsupported_error("otimes: a program of " + std::string(to_string(type)) +
                                            " has a product of " + std::string(to_string(c.type)) +
                                            ". The CPU's kernels run a plan in one type: evaluate that product by a "
                                            "program of its own.");
                }
                store(c.out, c.in);
                for (chain_mode& m : c.modes) {
                    m.stride_in = stride_of(c.in, m.name);
                    m.stride_out = stride_of(c.out, m.name);
                }
                sort_by_memory(c.modes, cut_ != nullptr && result_.slab_extent == 1 ? cut_[c.in] : -1);
                c.fills_output = fills_output(c);
                slab_choice slab;  // those of the whole program
                std::int32_t place = 0;
                for (const chain_mode& m : c.modes) {
                    if (cut_ != nullptr && m.name == cut_[c.in]) {
                        slab.chain_mode = place;
                        slab.extent = result_.slab_extent;
                        slab.count = result_.slab_count;
                    }
                    ++place;
                }
                chain_decision decision = decide(c, cpu_, request_, one_chain, slab);
                if (one_chain) {
                    result_.slab_count = decision.slab.count;
                    result_.slab_extent = decision.slab.extent;
                }
                add_chain(c, decision, last_use[static_cast<std::size_t>(c.out)] > static_cast<std::int32_t>(position));
                if (one_chain) {
                    single = std::move(decision);
                }
            }
            for (std::size_t id = 0; id < buffers_.size(); ++id) {
                if (buffers_[id] >= 0 && last_use[id] == static_cast<std::int32_t>(position)) {
                    pool_.release(buffers_[id]);
                }
            }
        }
        if (!one_chain) {
            result_.tensor_buffers = std::move(buffers_);
            result_.tensor_modes = std::move(modes_);
        }
    }

private:
    /// Gives a temporary that outlives its chain a buffer; whole or a slab of it. Its modes nest as those of `like`, which is read where it is
    /// written: nobody has to transpose on the way.
    void store(std::int32_t id, std::int32_t like) {
        const tensor& t = source_.at(id);
        if (t.type == dtype::other) {
            return;  // only the reference executor runs it, with temporaries of its own
        }
        if (t.binding >= 0 || buffers_[static_cast<std::size_t>(id)] >= 0) {
            return;
        }
        const bool same_modes = like >= 0 && source_.at(like).mode_count == t.mode_count;
        const auto extent_of = [&](std::int32_t k) {
            return cut_ != nullptr && k == cut_[id] ? result_.slab_extent
                                                    : modes_[static_cast<std::size_t>(t.first_mode + k)].extent;
        };
        std::int64_t elements = 1;
        for (std::int32_t k = 0; k < t.mode_count; ++k) {
            std::int64_t inside = 1;
            const std::int64_t own = same_modes ? std::abs(stride_of(like, k)) : 0;
            for (std::int32_t other = 0; other < t.mode_count; ++other) {
                const std::int64_t its = same_modes ? std::abs(stride_of(like, other)) : 0;
                inside *= its < own || (its == own && other > k) ? extent_of(other) : 1;
            }
            modes_[static_cast<std::size_t>(t.first_mode + k)].stride = inside;
            elements *= extent_of(k);
        }
        buffers_[static_cast<std::size_t>(id)] = pool_.take(elements);
    }
    [[nodiscard]] std::int32_t name_of(std::int32_t id) const {
        const std::int32_t buffer = id < 0 ? -1 : buffers_[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    }
    [[nodiscard]] bool fills_output(const chain& c) const {
        bool fills = !c.add && c.in != c.out && source_.at(c.out).binding >= 0;
        for (const chain_mode& m : c.modes) {
            fills = fills && m.p_extent == m.q_extent;
        }
        return fills;
    }
    [[nodiscard]] std::int64_t stride_of(std::int32_t id, std::int32_t k) const {
        return modes_[static_cast<std::size_t>(source_.at(id).first_mode + k)].stride;
    }

    void add_step(std::int32_t number) {
        const step& s = source_.steps[static_cast<std::size_t>(number)];
        if (s.out >= 0) {
            store(s.out, s.in);
        }
        pass p;
        p.kernel = pass_kernel::step;
        p.step = number;
        p.in = name_of(s.in);
        p.out = name_of(s.out);
        p.add = s.add;
        p.scalar = s.scalar;
        const factor_kind kind = s.factor < 0 ? factor_kind::identity : source_.at(s.factor).kind;
        const bool by_reference = s.kind == step_kind::contract && s.factor >= 0 && kind == factor_kind::dense;
        p.reason = by_reference                    ? "reference loops"
                   : s.kind == step_kind::callback ? "a function of the operator"
                                                   : "strided loops";
        for (const std::int32_t id : {s.in, s.factor, s.out, s.add ? s.out : -1}) {  // what it adds to is read, too
            saturating_add(p.bytes, id < 0 ? 0.0 : static_cast<double>(operand_bytes(source_, id)));
        }
        p.flops = step_flops(source_, s);
        const auto bytes = static_cast<double>(p.bytes);
        const auto flops = static_cast<double>(p.flops);
        const level where = (std::max)(level::l2, level_of(cpu_, bytes, 1));
        p.level = level_name(where);
        const double peak = peak_flops(cpu_, s.out < 0 ? dtype::f64 : source_.at(s.out).type);
        const std::int32_t threads = request_.threads;
        p.bound_seconds = (std::max)(bytes / bandwidth(cpu_, where, threads), flops / peak) / threads;
        if (by_reference || s.kind == step_kind::callback || s.kind == step_kind::solve ||
            s.kind == step_kind::reduce) {
            // Plain loops on one thread, or a function that nobody has measured.
            p.predicted_seconds = flops / plain_flops_per_second;
        } else {
            const double fetched =
                where >= level::l3 && !s.add && s.out >= 0 ? static_cast<double>(operand_bytes(source_, s.out)) : 0.0;
            const double efficiency = kind == factor_kind::triangular ? triangular_efficiency : sparse_efficiency;
            p.predicted_seconds =
                (std::max)((bytes + fetched) / bandwidth(cpu_, where, threads), flops / (peak * efficiency)) / threads;
        }
        p.predicted_seconds = (std::max)(p.predicted_seconds, p.bound_seconds) + cpu_.dispatch_seconds;
        finish(std::move(p), dtype::other);
    }

    /// @param used_again a later chain or step reads what this one writes, or writes there
    void add_chain(const chain& c, const chain_decision& decision, bool used_again) {
        const fusion_setting f = setting_for(c, decision.groups, cpu_, request_, decision.slab);
        std::int32_t input = name_of(c.in);
        std::size_t begin = 0;
        std::size_t position = 0;
        do {
            const std::size_t end = decision.ends.empty() ? 0 : decision.ends[position++];
            const bool last = end == f.groups.size();
            pass p;
            strides_after(f, begin, in_);
            strides_after(f, end, out_);
            if (f.groups.empty()) {
                for (std::size_t k = 0; k < c.modes.size(); ++k) {
                    out_[k] = c.modes[k].stride_out;
                }
            }
            outline_pass(f, begin, end, in_, out_, p);
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
            if (begin == 0 && !p.sweeps.empty()) {  // 1 x 1 factors only scale: any sweep may carry them
                std::vector<std::int32_t>& carried = p.sweeps.front().factors;
                for (const std::int32_t factor : c.unit_factors) {
                    carried.push_back(factor);
                    saturating_add(p.bytes, static_cast<double>(element_bytes(c.type)));
                }
            }
            p.in = input;
            p.out = last || c.in_place || f.slab.in_output ? name_of(c.out) : -2 - pool_.take(elements_after(f, end));
            p.scalar = last ? c.scalar : -1;
            if (begin > 0 && !c.in_place && !f.slab.in_output) {
                pool_.release(-2 - input);
            }
            saturating_add(p.flops, cost.flops);
            saturating_add(p.bytes, cost.bytes);
            p.level = level_name((std::max)(where.in, where.out));
            p.bound_seconds = cost.bound_seconds;
            p.predicted_seconds = cost.seconds;
            if (p.out >= 0 && p.in != p.out) {
                const std::int64_t each = element_bytes(c.type);
                const double bytes = static_cast<double>(element_count(source_, c.out)) * static_cast<double>(each);
                p.past_caches = stores_past_caches(cpu_, p, each, bytes, !last || used_again, result_.slab_count > 1);
            }
            input = p.out;
            begin = end;
            finish(std::move(p), c.type);
        } while (begin < f.groups.size());
    }

    void finish(pass p, dtype type) {
        for (const sweep& s : p.sweeps) {
            result_.factor_elements += packed_matrices(result_, p) * packed_elements(p, s, result_.vector_count);
        }
        if (p.kernel == pass_kernel::cpu_tiles) {
            const bool tight = request_.most_lanes < (std::numeric_limits<std::int64_t>::max)();
            const std::int64_t batch = tight ? 1 : batch_count(p, type);
            // A tile buffer holds the longest stage of the tiles that are taken at once, padded to whole vectors (the lanes of a lane mode,
            // or what a tail kernel takes), and one vector more for stores that run past the end of a row.
            const short_tail tail = tail_of(p, cpu_.simd_bytes, type);
            const std::int64_t vector = result_.vector_count;
            const std::int64_t padded = p.lane_mode < 0 ? tail.padded : round_up(p.lane_count, vector);
            const std::int64_t stage = static_cast<std::int64_t>(tile_peak_elements(p)) / tail.elements * padded;
            result_.tile_elements = (std::max)(result_.tile_elements, stage * batch + vector);
        }
        saturating_add(result_.flops, static_cast<double>(p.flops));
        result_.predicted_seconds += p.predicted_seconds;
        result_.passes.push_back(std::move(p));
    }

    const program& source_;
    const cpu_description& cpu_;
    const cpu_request& request_;
    plan& result_;
    buffer_pool pool_;
    std::vector<mode> modes_;
    std::vector<std::int32_t> buffers_;
    const std::int32_t* cut_ =
        nullptr;  ///< per tensor the mode that slabs of the whole program cut; null: there are none
    strides in_;
    strides out_;
};

/// The plan of `source` on `cpu` for one request: passes, buffers, workspace, prediction. `chains` from chains_of.
/// @param cut what the request's slabs cut where the program is more than one chain; null, or of extent 0: nothing
OTIMES_COLD inline plan plan_on_cpu(const program& source, const cpu_description& cpu, const cpu_request& request,
                                    std::vector<chain>& chains, chain_decision& single,
                                    const program_cut* cut = nullptr) {
    plan result;
    result.source = source;
    result.where = placement::cpu;
    result.machine_name = cpu.name;
    result.threads = request.threads;
    for (const tensor& t : source.tensors) {
        if (t.role == tensor_role::output && has_tile_kernels(t.type)) {
            result.vector_count = static_cast<std::int32_t>(vector_count(cpu, t.type));
        }
    }
    cpu_plan_builder(source, cpu, request, cut, result).build(chains, single);
    if (request.threads > 1) {
        result.predicted_seconds += cpu.fork_seconds;
    }
    result.workspace_bytes = layout_of(result).total;
    return result;
}

}  // namespace otimes::planning

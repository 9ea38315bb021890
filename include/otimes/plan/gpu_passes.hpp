// SPDX-License-Identifier: MIT
/// @file gpu_passes.hpp
/// The plan of a program on one GPU: its chains one after another, by gpu_chain.hpp, which asks gpu_kernel_choice.hpp for the kernel of each pass;
/// terms of one sum together where that saves launches (gpu_terms.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/cut.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/gpu_blocks.hpp>
#include <otimes/plan/gpu_chain.hpp>
#include <otimes/plan/gpu_choice.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/gpu_kernel_choice.hpp>
#include <otimes/plan/gpu_reductions.hpp>
#include <otimes/plan/gpu_sum_tiles.hpp>
#include <otimes/plan/gpu_terms.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/step_cost.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// Where slabs cut a program of several chains, or steps of other kinds; extent 0: nowhere, or it is one chain.
OTIMES_ON_DEMAND OTIMES_COLD inline program_cut cut_of_chains(const program& source, const std::vector<chain>& chains) {
    return chains.size() > 1 ? longest_cut_at_end(source) : program_cut{};
}

/// Builds the passes of a program one chain after another, and lays out what lies between them. Intermediates are chosen for their speed as
/// far as wishes.workspace_limit_bytes has room for them.
OTIMES_ON_DEMAND class gpu_plan_builder {
public:
    /// @param slab_extent, choice as plan_on_gpu has them
    gpu_plan_builder(const program& source, const gpu_description& gpu, const options& wishes, std::int64_t slab_extent,
                     const gpu_choice* choice)
        : source_(source),
          gpu_(gpu),
          wishes_(wishes),
          slab_extent_(slab_extent),
          choice_(choice),
          pool_(result_.buffer_elements),
          modes_(source.modes),
          buffers_(source.tensors.size(), -1),
          chains_(chains_of(source)),
          cut_(slab_extent > 0 ? cut_of_chains(source, chains_) : program_cut{}),
          cuts_all_(slab_extent > 0 && slab_extent < cut_.extent) {
        result_.source = source;
        result_.where = placement::gpu;
        result_.machine_name = gpu.name;
        result_.threads = 1;
    }

    /// The plan. Once.
    OTIMES_COLD plan build() {
        products_before_matrices(source_, chains_, gpu_, wishes_);
        const std::vector<std::int32_t> last_use = last_uses(source_, chains_);
        for (std::size_t number = 0; number < chains_.size(); ++number) {
            if (chains_[number].step_count == 0) {
                add_step(chains_[number].first_step);
            } else {
                add_chain(number);
            }
            for (std::size_t id = 0; id < buffers_.size(); ++id) {
                if (buffers_[id] >= 0 && last_use[id] == static_cast<std::int32_t>(number)) {
                    pool_.release(buffers_[id]);
                }
            }
        }
        if (chains_.size() != 1 || chains_.front().step_count == 0) {
            result_.tensor_buffers = std::move(buffers_);
            result_.tensor_modes = std::move(modes_);
        }
        if (cuts_all_) {
            result_.slab_extent = slab_extent_;
            result_.slab_count = (cut_.extent - 1) / slab_extent_ + 1;
            result_.tensor_cuts = cut_.mode;
        }
        result_.workspace_bytes = layout_of(result_).total;
        return std::move(result_);
    }

private:
    [[nodiscard]] std::int32_t name_of(std::int32_t id) const {
        const std::int32_t buffer = id < 0 ? -1 : buffers_[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    }
    /// A buffer for a temporary, packed; of a slab where slabs cut the whole program.
    void store(std::int32_t id) {
        const tensor& t = source_.at(id);
        if (t.binding >= 0 || buffers_[static_cast<std::size_t>(id)] >= 0) {
            return;
        }
        std::int64_t next = 1;
        for (std::int32_t k = t.mode_count; k-- > 0;) {
            mode& m = modes_[static_cast<std::size_t>(t.first_mode + k)];
            m.stride = next;
            next *= cuts_all_ && k == cut_.mode[static_cast<std::size_t>(id)] ? slab_extent_ : m.extent;
        }
        buffers_[static_cast<std::size_t>(id)] = pool_.take(next);
    }

    void add_step(std::int32_t number) {
        const step& s = source_.steps[static_cast<std::size_t>(number)];
        if (s.out >= 0) {
            store(s.out);
        }
        pass p;
        p.step = number;
        p.in = name_of(s.in);
        p.out = name_of(s.out);
        p.add = s.add;
        p.scalar = s.scalar;
        p.level = "memory";
        p.reason = "generic step";
        const bool ends = ends_sums(s);
        for (const std::int32_t id : {ends ? -1 : s.in, ends ? -1 : s.factor, s.out, s.add ? s.out : -1}) {
            saturating_add(p.bytes, id < 0 ? 0.0 : static_cast<double>(operand_bytes(source_, id)));
        }
        if (!ends) {
            p.flops = step_flops(source_, s);
            const dtype type = s.out < 0 ? dtype::f64 : source_.at(s.out).type;
            p.bound_seconds = (std::max)(static_cast<double>(p.bytes) / known_rate(gpu_.memory_bytes_per_second),
                                         static_cast<double>(p.flops) / peak_of(sweep_kernel::scalar, type, gpu_));
        }
        const double launches = cuts_all_ ? static_cast<double>((cut_.extent - 1) / slab_extent_ + 1) : 1.0;
        p.predicted_seconds = p.bound_seconds + launches * gpu_.launch_seconds;
        saturating_add(result_.flops, static_cast<double>(p.flops));
        result_.predicted_seconds += p.predicted_seconds;
        result_.passes.push_back(std::move(p));
    }

    /// True of a reduction of what no pass stores: the kernels in front of it leave sums, and little is left to do.
    [[nodiscard]] bool ends_sums(const step& s) const {
        const std::int32_t id = s.variant == step_variant::squared_norm ? s.in : s.factor;
        return s.kind == step_kind::reduce && id >= 0 && source_.at(id).binding < 0 &&
               buffers_[static_cast<std::size_t>(id)] < 0;
    }

    void add_chain(std::size_t number) {
        chain& c = chains_[number];
        const step* const reduced = reduction_behind(source_, chains_, number);
        const step* reduction =
            gpu_.compiles && !is_widened(c.type) ? reduced : nullptr;  // by the last kernel, nothing is stored
        lay_out(c, reduced, reduction != nullptr);
        sort_by_memory(c.modes);
        std::vector<factor_group> groups = group_factors(c, false);
        if (std::ranges::all_of(groups, [](const factor_group& g) { return g.p_extent == g.q_extent; })) {
            // Any order does the same work; the innermost modes first leave contiguous segments to the first pass.
            std::sort(groups.begin(), groups.end(),
                      [](const factor_group& a, const factor_group& b) { return a.first > b.first; });
        }
        gpu_chain_passes<> made(c, groups, gpu_, wishes_, !may_join(number));
        choose_passes(number, groups, reduction != nullptr, made);
        if (!made.stand()) {  // nothing else is impossible
            throw unsupported_error(
                "otimes: a plan for a GPU of a product whose result takes the place of its operand: no kernel for this "
                "size stores where it reads. Give the result memory of its own.");
        }
        const pass& last = made.passes().back();
        if (reduction != nullptr && !is_one_launch(last)) {  // stored after all
            reduction = nullptr;
            lay_out(c, reduced, false);
            store_passes(c, groups, slab_choice{}, made);
        }
        if (reduction != nullptr && made.count() > 1) {
            reduce_in_one_pass(c, groups, *reduction, made);
        }
        append(c, groups, reduction, made);
    }

    /// May the launches of a chain become one with those of a neighbour (backend/core/join_launches.cpp): a step that is no chain, or a chain that writes the same
    /// result from the same operand, or a matrix? Products with a long mode have passes of their own.
    [[nodiscard]] bool may_join(std::size_t number) const {
        constexpr std::int64_t longest_joined = 64;
        const chain& c = chains_[number];
        const auto is_contracted = [](const chain_mode& m) { return m.contracted(); };
        if (std::ranges::count_if(c.modes, is_contracted) > 1 && std::ranges::any_of(c.modes, [](const chain_mode& m) {
                return m.contracted() && (std::max)(m.p_extent, m.q_extent) > longest_joined;
            })) {
            return false;  // passes of its own
        }
        const auto same_place = [this](std::int32_t a, std::int32_t b) {
            return a == b || (source_.at(a).binding >= 0 && source_.at(a).binding == source_.at(b).binding);
        };
        const auto joins = [&](std::size_t other) {
            if (other >= chains_.size()) {
                return false;
            }
            const chain& o = chains_[other];
            return o.step_count == 0 || (same_place(o.out, c.out) &&
                                         (same_place(o.in, c.in) || std::ranges::none_of(o.modes, is_contracted) ||
                                          std::ranges::none_of(c.modes, is_contracted)));
        };
        return joins(number + 1) || (number > 0 && joins(number - 1));
    }

    /// Does one kernel compute all that a pass stores, so that it may sum it up instead: a tile that is no slice, or blocks, each with whole sums?
    static bool is_one_launch(const pass& p) {
        return p.kernel == pass_kernel::gpu_blocked ? p.tile.slices <= 1
                                                    : !p.tile.trips.empty() && !is_sliced_by_launches(p.tile);
    }

    /// Strides of a chain's input and output. @param reduced the step that alone reads its result, or null
    /// @param by_last_kernel which reduces it where it would be stored
    void lay_out(chain& c, const step* reduced, bool by_last_kernel) {
        if (!by_last_kernel) {
            store(c.out);
        }
        if (reduced != nullptr) {
            lay_out_for(*reduced, by_last_kernel, source_, c, modes_);
        }
        for (chain_mode& m : c.modes) {
            m.stride_in = modes_[static_cast<std::size_t>(source_.at(c.in).first_mode + m.name)].stride;
            m.stride_out = modes_[static_cast<std::size_t>(source_.at(c.out).first_mode + m.name)].stride;
        }
    }

    void choose_passes(std::size_t number, const std::vector<factor_group>& groups, bool is_reduced,
                       gpu_chain_passes<>& made) {
        const chain& c = chains_[number];
        const bool whole_program = chains_.size() == 1 || (chains_.size() == 2 && is_reduced);
        const auto slab_of = [&](std::int64_t extent) {
            if (cuts_all_) {
                const auto is_cut = [&](const chain_mode& m) {
                    return m.name == cut_.mode[static_cast<std::size_t>(c.in)];
                };
                return cut(c, static_cast<std::int32_t>(std::ranges::find_if(c.modes, is_cut) - c.modes.begin()),
                           slab_extent_);
            }
            return extent > 0 && whole_program && slab_mode_of(c) >= 0 ? cut(c, slab_mode_of(c), extent)
                                                                       : slab_choice{};
        };
        const gpu_choice apart = last_sweep_apart(groups.size());
        if (number >= end_of_terms_ && groups.size() >= 3 && gpu_.compiles && !wishes_.deterministic && !cuts_all_) {
            look_for_terms(number, groups, apart, made);
        }
        if (number < end_of_terms_ && made.make({}, true, false, &apart)) {
            return;
        }
        if (choice_ != nullptr && whole_program && !is_reduced) {
            const slab_choice slab = slab_of(choice_->slab_extent);
            const bool in_l2 = choice_->slab_extent > 0;
            if (made.make(slab, true, in_l2, choice_) || made.make(slab, false, in_l2, choice_)) {
                return;
            }
        }
        const slab_choice slab = slab_of(slab_extent_);
        if (is_reduced) {
            made.make(slab, false, false, nullptr);
            if (!has_room_for(c, made)) {
                made.save_memory();
            }
        } else {
            store_passes(c, groups, slab, made);
        }
    }

    /// The passes of a chain that stores its result: what lies between them in the result, where that is possible and no slower.
    void store_passes(const chain& c, const std::vector<factor_group>& groups, const slab_choice& slab,
                      gpu_chain_passes<>& made) {
        if (!made.make(slab, true, false, nullptr)) {
            made.make(slab, false, false, nullptr);
        } else if (made.count() > 1 && std::ranges::any_of(groups, [](const factor_group& g) {
                       return (std::min)(g.p_extent, g.q_extent) >= least_blocked_extent;
                   })) {
            // Not all blocks work in Y: what lies between the passes in a buffer may pay for itself.
            const double in_y = made.seconds();
            if (!made.make(slab, false, false, nullptr) || made.seconds() >= in_y || !has_room_for(c, made)) {
                made.make(slab, true, false, nullptr);
            }
        }
    }

    /// Two passes, of which the second has the last sweep alone.
    static gpu_choice last_sweep_apart(std::size_t count) {
        gpu_choice apart;
        apart.parts.resize(2);
        apart.parts[0].sweeps = static_cast<std::int32_t>(count) - 1;
        apart.parts[1].sweeps = 1;
        apart.parts[0].any_tile = apart.parts[1].any_tile = true;
        return apart;
    }

    /// Terms of one sum that share factors: where no single pass keeps X on chip for all of them, the outermost mode has a pass of its own.
    void look_for_terms(std::size_t number, const std::vector<factor_group>& groups, const gpu_choice& apart,
                        gpu_chain_passes<>& made) {
        const chain& c = chains_[number];
        const std::size_t terms = terms_from(source_, chains_, number);
        const auto one_pass_keeps_all = [&] {
            gpu_group whole = without_tile(group_request{});
            whole.type = c.type;
            whole.tile = made.passes().front().tile;
            whole.terms = static_cast<std::int32_t>(terms);
            for (const factor_group& g : groups) {
                whole.p.push_back(static_cast<std::int32_t>(g.p_extent));
            }
            whole.q = whole.p;
            whole.tile.slots = 0;
            return whole.terms * whole.modes() <= most_group_modes && terms_group(whole, gpu_).kept;
        };
        const std::size_t before_last = groups.size() - 1;
        if (terms > 1 && made.make({}, true, false, nullptr) && made.count() == 1 && !one_pass_keeps_all() &&
            made.make({}, true, false, &apart) && made.planner().lies_in_y(before_last) &&
            terms_take_two_passes(source_, chains_, number, terms, made.passes(), gpu_) &&
            elements_after(made.planner().setting(), before_last) * element_bytes(c.type) <=
                wishes_.workspace_limit_bytes) {
            end_of_terms_ = number + terms;
        }
    }

    /// Does what lies between the passes, with all packed factors, keep the workspace limit?
    [[nodiscard]] bool has_room_for(const chain& c, const gpu_chain_passes<>& made) const {
        std::int64_t factors = result_.factor_elements;
        for (const pass& one : made.passes()) {
            for (const sweep& s : one.sweeps) {
                factors += packed_factor_elements(s, result_.vector_count);
            }
        }
        return (made.most_intermediate_elements() + factors) * element_bytes(c.type) <= wishes_.workspace_limit_bytes;
    }

    /// One kernel for all of a product that is reduced, where that is faster, or what lies between the passes has no room: then slabs, if there
    /// can be any, take twice their time. Many pieces, each of which reads the other matrix, take 1.35 (H200) to 1.7 times (H100) what is predicted.
    void reduce_in_one_pass(const chain& c, std::vector<factor_group>& groups, const step& reduction,
                            gpu_chain_passes<>& made) {
        double seconds = made.seconds();
        pass whole;
        gpu_chain_planner<> one_pass(c, groups, gpu_, wishes_, slab_choice{});
        one_pass.keep_on_chip(reduction.variant == step_variant::dot);
        one_pass.evaluate(0, groups.size(), nullptr, whole);
        if (made.most_intermediate_elements() * element_bytes(c.type) > wishes_.workspace_limit_bytes) {
            const bool smaller_slabs = slab_mode_of(c) >= 0 && made.slab().extent != 1;
            seconds = !smaller_slabs           ? std::numeric_limits<double>::infinity()
                      : whole.tile.pieces <= 4 ? 2 * seconds
                                               : seconds;
        }
        if (whole.predicted_seconds * (whole.tile.pieces > 4 ? 1.4 : 1.0) < seconds) {
            made.replace_by(std::move(whole));
        }
    }

    /// The passes of a chain with their operands, buffers and reasons.
    /// @param reduction the step that the last pass's kernel ends in, or null
    void append(const chain& c, const std::vector<factor_group>& groups, const step* reduction,
                gpu_chain_passes<>& made) {
        result_.slab_extent = made.slab().extent;
        result_.slab_count = made.slab().count;
        const std::size_t count = groups.size();
        gpu_chain_planner<>& planner = made.planner();
        std::int32_t input = name_of(c.in);
        std::size_t begin = 0;
        for (std::size_t at = 0; at < made.count(); ++at) {
            const std::size_t end = made.ends()[at];
            const bool last = end == count;
            pass chosen = made.passes()[at];
            name_factors(c, groups, begin, end, chosen);
            chosen.in = input;
            const bool stays = input <= -2 && input != name_of(c.out) && made.replaces_input(at);
            chosen.out = last || planner.lies_in_y(end) ? name_of(c.out)
                         : stays                        ? input
                                                        : -2 - pool_.take(elements_after(planner.setting(), end));
            chosen.scalar = last ? c.scalar : -1;
            if (begin > 0 && chosen.out != input && input != name_of(c.out)) {
                pool_.release(-2 - input);
            }
            for (std::size_t i = 0; begin == 0 && i < c.unit_factors.size(); ++i) {
                saturating_add(chosen.bytes, static_cast<double>(element_bytes(c.type)));
            }
            if (last) {
                if (reduction != nullptr && reduction->variant != step_variant::squared_norm) {
                    read_beside(c.type, chosen);
                }
                chosen.reason = reduction != nullptr ? "reduced where it would be stored"
                                : begin == 0         ? "everything in one pass"
                                                     : "end of the chain";
            } else {
                pass more;
                planner.evaluate(begin, end + 1, nullptr, more);
                chosen.reason = more.kernel == pass_kernel::gpu_generic
                                    ? "no tile holds the next mode too"
                                    : "with the next mode it would take " + seconds_text(more.predicted_seconds);
            }
            input = chosen.out;
            begin = end;
            saturating_add(result_.flops, static_cast<double>(chosen.flops));
            result_.predicted_seconds += chosen.predicted_seconds;
            for (const sweep& s : chosen.sweeps) {
                result_.factor_elements += packed_factor_elements(s, result_.vector_count);
            }
            result_.passes.push_back(std::move(chosen));
        }
    }

    /// The tile of a pass that ends in a dot product or a distance.
    void read_beside(dtype type, pass& p) const {
        const std::optional<group_place> place = place_of_group(p.modes, contracted_modes(p));
        if (p.kernel != pass_kernel::gpu_trailing || !place) {
            return;
        }
        gpu_group g = group_of(p, type);
        g.tile = tile_beside_matrix(g, place->groups() / (std::max)(std::int64_t{1}, result_.slab_count),
                                    place->parts_per_line, gpu_);
        p.tile = g.tile;
        p.shared_bytes = static_cast<std::int32_t>(shared_bytes_of(g));
    }

    /// Which factors the sweeps of groups [begin, end) apply. The first sweep carries those of 1 x 1.
    static void name_factors(const chain& c, const std::vector<factor_group>& groups, std::size_t begin,
                             std::size_t end, pass& p) {
        for (std::size_t i = begin; i < end; ++i) {
            p.sweeps[i - begin].factors = {c.modes[static_cast<std::size_t>(groups[i].first)].factor};
        }
        if (begin == 0 && groups.empty() && !c.unit_factors.empty()) {
            p.sweeps.push_back({static_cast<std::int32_t>(p.modes.size()), sweep_kernel::scalar, 1, 1, {}});
            p.modes.push_back({1, 1, 0, 0});
        }
        if (begin == 0 && !p.sweeps.empty()) {
            std::vector<std::int32_t>& carried = p.sweeps.front().factors;
            carried.insert(carried.end(), c.unit_factors.begin(), c.unit_factors.end());
        }
    }

    const program& source_;
    const gpu_description& gpu_;
    const options& wishes_;
    std::int64_t slab_extent_;
    const gpu_choice* choice_;
    plan result_;
    buffer_pool pool_;
    std::vector<mode> modes_;
    std::vector<std::int32_t> buffers_;
    std::vector<chain> chains_;
    program_cut cut_;               ///< what slabs of several chains cut
    bool cuts_all_;                 ///< slabs cut the whole program by it
    std::size_t end_of_terms_ = 0;  ///< of a sum whose chains take two passes each
};

/// The plan of `source` on `gpu`: chains become fused kernels, other steps stay steps (their kernels are generic).
/// Factors are kept apart: tensor cores and registers do not gain from multiplying them out. `slab_extent` > 0: the
/// program runs slab by slab, to bound its workspace. `choice`: what a chain's passes must be; one that does not fit is
/// ignored. Where the limit is not kept by the choices that were made for it, of those for no memory and for any the one that
/// takes least: what a limit is refused with must not depend on the limit.
OTIMES_ON_DEMAND OTIMES_COLD inline plan plan_on_gpu(const program& source, const gpu_description& gpu,
                                                     const options& wishes, std::int64_t slab_extent = 0,
                                                     const gpu_choice* choice = nullptr) {
    plan best = gpu_plan_builder<>(source, gpu, wishes, slab_extent, choice).build();
    for (const std::int64_t limit : {std::int64_t{0}, (std::numeric_limits<std::int64_t>::max)()}) {
        if (best.workspace_bytes <= wishes.workspace_limit_bytes) {
            break;
        }
        if (limit == wishes.workspace_limit_bytes) {
            continue;  // that is the best
        }
        options other = wishes;
        other.workspace_limit_bytes = limit;
        plan next = gpu_plan_builder<>(source, gpu, other, slab_extent, choice).build();
        if (next.workspace_bytes < best.workspace_bytes) {
            best = std::move(next);
        }
    }
    return best;
}

}  // namespace otimes::planning

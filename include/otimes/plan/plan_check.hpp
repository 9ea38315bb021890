// SPDX-License-Identifier: MIT
/// @file plan_check.hpp
/// Whether a plan that was read from text is one: the executors index, add up and divide by its numbers without asking, so a text that
/// somebody changed (its checksum too) must not become a plan. Asked once, when text is read. Of plans for GPUs only the numbers that are
/// indices are looked at: their passes describe slabs of operands, which an executor plans again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cut.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// The lowest and the highest element that modes reach, from element (0, ..., 0).
struct reach {
    std::int64_t below = 0;
    std::int64_t above = 0;
    bool is_empty = false;  ///< an extent is 0

    /// False: an extent is negative, or the element lies 2^60 or more away.
    [[nodiscard]] bool add(std::int64_t extent, std::int64_t stride) noexcept {
        constexpr std::int64_t most = std::int64_t{1} << 60;
        std::int64_t length = 0;
        if (extent < 0 || stride <= -most || stride >= most ||
            !checked_multiply((std::max)(extent, std::int64_t{1}) - 1, stride < 0 ? -stride : stride, length)) {
            return false;
        }
        is_empty = is_empty || extent == 0;
        std::int64_t& end = stride < 0 ? below : above;
        return checked_add(end, length, end) && end < most;
    }
    [[nodiscard]] bool lies_in(const reach& other) const noexcept {
        return is_empty || (below <= other.below && above <= other.above);
    }
};

OTIMES_COLD inline bool reach_of(std::span<const mode> modes, reach& result) {
    return std::ranges::all_of(modes, [&result](const mode& m) { return result.add(m.extent, m.stride); });
}

/// What is wrong with a program, in words; empty: nothing.
OTIMES_COLD inline std::string_view fault_of(const program& p) {
    for (const tensor& t : p.tensors) {
        if (t.first_mode < 0 || t.mode_count < 0 ||
            static_cast<std::size_t>(t.first_mode) + static_cast<std::size_t>(t.mode_count) > p.modes.size()) {
            return "a tensor has modes that do not exist";
        }
        std::int64_t bytes = t.scalar_bytes;
        for (const mode& m : p.modes_of(t)) {
            if (m.extent < 0 || !checked_multiply(bytes, m.extent, bytes)) {
                return "a tensor is of no size";
            }
        }
        if (reach r; !reach_of(p.modes_of(t), r) || t.alignment_log2 > 6 || t.stored < 0) {
            return "a tensor lies nowhere";
        }
    }
    for (const step& s : p.steps) {
        for (const std::int32_t id : {s.in, s.factor, s.out}) {
            if (id < -1 || id >= static_cast<std::int32_t>(p.tensors.size())) {
                return "a step names a tensor that does not exist";
            }
        }
        if (s.mode < -1 || (s.mode >= 0 && (s.in < 0 || s.mode >= p.at(s.in).mode_count)) || s.scalar < -1 ||
            s.scalar >= p.scalar_count) {
            return "a step names a mode or a scalar that does not exist";
        }
        if ((s.kind == step_kind::contract &&
             (s.in < 0 || s.factor < 0 || s.out < 0 || s.mode < 0 || s.mode >= p.at(s.out).mode_count)) ||
            (s.kind == step_kind::accumulate && (s.in < 0 || s.out < 0))) {
            return "a step has no operands";
        }
    }
    return {};
}

/// Looks for what is wrong with a plan whose program is right.
class plan_check {
public:
    explicit plan_check(const plan& p) : p_(p) {}

    /// In words; empty: nothing.
    [[nodiscard]] OTIMES_COLD std::string_view fault() const {
        if (p_.threads < 1 || p_.threads > most_threads || p_.vector_count < 1 || p_.vector_count > 64 ||
            p_.slab_extent < 0 || p_.slab_count < 1 || p_.tile_elements < 0 ||
            std::ranges::any_of(p_.buffer_elements, [](std::int64_t e) { return e < 0; })) {
            return "it has no threads or too many, or slabs or buffers of no size";
        }
        if (!trips_have_the_passes()) {
            return "its trips have other passes than it has";
        }
        if (!slabs_are_of_the_program()) {
            return "its slabs cut what is not one index";
        }
        if (!temporaries_exist()) {
            return "a temporary lies outside its buffer";
        }
        for (const pass& one : p_.passes) {
            if (!names_exist(one)) {
                return "a pass names what does not exist";
            }
            if (is_operand(one.out) && p_.source.at(one.out).role != tensor_role::output) {
                return "a pass writes into an operand";
            }
            if (!tile_is_possible(one)) {
                return "a pass has a tile that no kernel has";
            }
            if (one.flops < 0 || one.bytes < 0) {
                return "a pass costs less than nothing";
            }
            if (one.kernel == pass_kernel::step && p_.slab_count > 1 && p_.tensor_cuts.empty() &&
                p_.source.steps[static_cast<std::size_t>(one.step)].kind != step_kind::reduce) {
                return "its slabs cut what is not one index";
            }
            if (!block_is_possible(one)) {
                return "a pass packs a block of what is no single matrix";
            }
            if (p_.where == placement::cpu &&
                !(one.kernel == pass_kernel::step ? operands_exist(one) : stays_in_memory(one))) {
                return "a pass works on what is not there";
            }
        }
        if (p_.where == placement::cpu && !passes_do_the_steps()) {
            return "its passes do not do each step once";
        }
        if (bytes_at_most() >= 0x1p62 || (p_.where == placement::cpu && layout_of(p_).total != p_.workspace_bytes)) {
            return "its workspace is of another size";
        }
        return {};
    }

private:
    [[nodiscard]] bool is_tensor(std::int32_t id) const {
        return id >= 0 && id < static_cast<std::int32_t>(p_.source.tensors.size());
    }
    [[nodiscard]] bool is_buffer(std::int64_t number) const {
        return number >= 0 && number < static_cast<std::int64_t>(p_.buffer_elements.size());
    }
    [[nodiscard]] bool is_operand(std::int32_t id) const { return is_tensor(id) && p_.source.at(id).binding >= 0; }
    [[nodiscard]] static bool is_contracted(const pass& one, std::int32_t k) {
        return std::ranges::any_of(one.sweeps, [k](const sweep& s) { return s.mode == k; });
    }

    /// Each pass belongs to one trip, where there are any.
    [[nodiscard]] bool trips_have_the_passes() const {
        auto left = static_cast<std::int64_t>(p_.passes.size());
        if (p_.part_count < 1 || p_.trip_slabs.size() != p_.trip_passes.size()) {
            return false;
        }
        for (std::size_t k = 0; k < p_.trip_passes.size(); ++k) {
            if (p_.trip_slabs[k] < 1 || p_.trip_passes[k] < 0 || p_.trip_passes[k] > left) {
                return false;
            }
            left -= p_.trip_passes[k];
        }
        return p_.trip_slabs.empty() || left == 0;
    }

    /// Steps take slabs by `tensor_cuts`: an index that runs through all of them, and of which each slab has some.
    [[nodiscard]] bool slabs_are_of_the_program() const {
        const program& source = p_.source;
        if (p_.tensor_cuts.empty()) {
            return p_.where != placement::cpu || p_.slab_count == 1 ||
                   std::ranges::none_of(p_.passes, [](const pass& one) { return one.kernel == pass_kernel::step; });
        }
        const program_cut cut = longest_cut_at_end(source);
        return p_.slab_count > 1 && !p_.tensor_modes.empty() && cut.mode == p_.tensor_cuts &&
               slabs_cover(cut.extent, 1);
    }

    [[nodiscard]] bool temporaries_exist() const {
        const program& source = p_.source;
        if ((!p_.tensor_buffers.empty() && p_.tensor_buffers.size() != source.tensors.size()) ||
            (!p_.tensor_modes.empty() && p_.tensor_modes.size() != source.modes.size())) {
            return false;
        }
        for (std::size_t id = 0; id < source.tensors.size(); ++id) {
            const std::int32_t buffer = p_.tensor_buffers.empty() ? -1 : p_.tensor_buffers[id];
            if (buffer < in_place_of_result || (buffer >= 0 && !is_buffer(buffer)) ||
                (buffer != -1 && source.tensors[id].binding >= 0)) {
                return false;
            }
            const bool on_cpu = p_.where == placement::cpu;
            if (p_.tensor_modes.empty() || (!on_cpu && p_.tensor_cuts.empty())) {  // from the host: of a slab
                if (on_cpu && buffer != -1) {
                    return false;
                }
                continue;
            }
            const tensor& t = source.tensors[id];
            const std::span<const mode> own = source.modes_of(t);
            const auto stored = std::span(p_.tensor_modes).subspan(static_cast<std::size_t>(t.first_mode), own.size());
            // On a GPU what no pass stores lies where what it is multiplied by does.
            if (!std::ranges::equal(stored, own, [buffer, on_cpu](const mode& a, const mode& b) {
                    return a.extent == b.extent && (buffer != -1 || !on_cpu || a.stride == b.stride);
                })) {
                return false;
            }
            reach r;
            if (buffer == -1) {
                continue;
            }
            const std::int32_t cut = p_.tensor_cuts.empty() ? -1 : p_.tensor_cuts[id];
            for (std::size_t k = 0; k < stored.size(); ++k) {
                const bool is_cut = static_cast<std::int32_t>(k) == cut;
                if (!r.add(is_cut ? p_.slab_extent : stored[k].extent, stored[k].stride)) {
                    return false;
                }
            }
            reach whole;
            if (buffer >= 0 && on_cpu && !lie_side_by_side(stored, cut)) {
                return false;
            }
            if (buffer == in_place_of_result) {
                const std::int32_t result = p_.passes.empty() ? -1 : p_.passes.front().in;
                if (!is_operand(result) || !reach_of(source.modes_of(result), whole)) {
                    return false;
                }
            } else {
                whole.above = elements_of(buffer) - 1;
            }
            if (!r.lies_in(whole)) {
                return false;
            }
        }
        return true;
    }
    /// Each element of a temporary, of a slab of it where mode `cut` is, has a place of its own.
    [[nodiscard]] bool lie_side_by_side(std::span<const mode> stored, std::int32_t cut) const {
        std::vector<mode> left(stored.begin(), stored.end());
        if (cut >= 0) {
            left[static_cast<std::size_t>(cut)].extent = p_.slab_extent;
        }
        std::erase_if(left, [](const mode& m) { return m.extent == 1; });
        std::int64_t next = 1;
        while (!left.empty()) {
            const auto inner = std::ranges::find(left, next, &mode::stride);
            if (inner == left.end()) {
                return std::ranges::any_of(stored, [](const mode& m) { return m.extent == 0; });
            }
            next *= inner->extent;
            left.erase(inner);
        }
        return true;
    }
    [[nodiscard]] std::int64_t elements_of(std::int32_t buffer) const {
        return p_.buffer_elements[static_cast<std::size_t>(buffer)];
    }

    [[nodiscard]] bool names_exist(const pass& one) const {
        const auto modes = static_cast<std::int32_t>(one.modes.size());
        const auto steps = static_cast<std::int32_t>(p_.source.steps.size());
        const bool is_step = one.kernel == pass_kernel::step;
        for (const std::int32_t id : {one.in, one.out}) {
            if (id == -1 ? !is_step : id >= 0 ? !is_tensor(id) : !is_buffer(-2 - std::int64_t{id})) {
                return false;
            }
        }
        for (const sweep& s : one.sweeps) {
            if (s.mode < 0 || s.mode >= modes || s.p_extent < 0 || s.q_extent < 0 ||
                !std::ranges::all_of(s.factors, [this](std::int32_t id) { return is_operand(id); })) {
                return false;
            }
        }
        return (is_step ? one.step >= 0 && one.step < steps : one.step == -1) && one.scalar >= -1 &&
               one.scalar < p_.source.scalar_count && one.lane_mode >= -1 && one.lane_mode < modes &&
               one.slab_mode >= -1 && one.slab_mode < modes && one.lane_count >= 1 && one.slab_scale >= 1;
    }

    [[nodiscard]] static bool tile_is_possible(const pass& one) {
        constexpr std::int32_t most = 1 << 20;
        const auto modes = static_cast<std::int32_t>(one.modes.size());
        const gpu_tile& t = one.tile;
        return one.shared_bytes >= 0 && t.slots >= 0 && t.slots <= most && t.rows >= 1 && t.run >= 1 &&
               std::ranges::all_of(std::vector{t.threads, t.blocks, t.segments, t.cluster, t.slices, t.pieces},
                                   [](std::int32_t count) { return count >= 1 && count <= most; }) &&
               t.cluster <= most / t.slices && std::ranges::all_of(t.trips, [modes](const gpu_trip& trip) {
                   return trip.first >= 1 && trip.count >= 1 && trip.count <= modes &&
                          trip.first <= modes - trip.count + 1 && trip.split >= 1;
               });
    }

    /// A pass that does not pack its factor whole has one matrix for one sweep, and writes elsewhere than it reads.
    [[nodiscard]] bool block_is_possible(const pass& one) const {
        if (one.block_columns == 0) {
            return one.block_rows == 0;
        }
        if (one.block_columns < 0 || one.block_rows < 0 || one.kernel != pass_kernel::cpu_tiles ||
            one.sweeps.size() != 1 || one.in == one.out ||
            (is_operand(one.in) && is_operand(one.out) &&
             p_.source.at(one.in).binding == p_.source.at(one.out).binding)) {
            return false;
        }
        const sweep& s = one.sweeps.front();
        const auto matrices = std::ranges::count_if(s.factors, [this](std::int32_t id) {
            const auto modes = p_.source.modes_of(id);
            return modes.size() != 2 || modes[0].extent != 1 || modes[1].extent != 1;
        });
        const bool dense = std::ranges::none_of(
            s.factors, [this](std::int32_t id) { return p_.source.at(id).kind == factor_kind::identity; });
        return matrices == 1 && dense && one.block_rows <= s.p_extent && one.block_columns <= s.q_extent;
    }

    [[nodiscard]] bool is_in_place(std::int32_t id) const {
        return id >= 0 && !p_.tensor_buffers.empty() &&
               p_.tensor_buffers[static_cast<std::size_t>(id)] == in_place_of_result;
    }

    /// What the step of a pass reads and writes is an operand or has a buffer.
    [[nodiscard]] bool operands_exist(const pass& one) const {
        const step& s = p_.source.steps[static_cast<std::size_t>(one.step)];
        if (s.kind == step_kind::contract && (is_in_place(s.in) || is_in_place(s.out))) {
            const mode& from = p_.source.modes_of(s.in)[static_cast<std::size_t>(s.mode)];
            const mode& to = p_.source.modes_of(s.out)[static_cast<std::size_t>(s.mode)];
            if (from.extent != to.extent || from.extent > longest_stack_fibre) {
                return false;
            }
        }
        return std::ranges::all_of(std::vector{s.in, s.factor, s.out}, [this](std::int32_t id) {
            return id < 0 || is_operand(id) || p_.source.at(id).type == dtype::other ||
                   (!p_.tensor_buffers.empty() && p_.tensor_buffers[static_cast<std::size_t>(id)] != -1);
        });
    }

    /// What a pass calls a tensor of the program.
    [[nodiscard]] std::int32_t name_of(std::int32_t id) const {
        const std::int32_t buffer =
            id < 0 || p_.tensor_buffers.empty() ? -1 : p_.tensor_buffers[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    }

    /// Is `one` the pass of step `number` by itself?
    [[nodiscard]] bool does_step(const pass& one, std::int32_t number) const {
        const step& s = p_.source.steps[static_cast<std::size_t>(number)];
        const pass& first = p_.passes.front();  // names the memory of what lies in place of the result
        return one.step == number && one.add == s.add && one.scalar == s.scalar &&
               one.in == (is_in_place(s.in) ? first.in : name_of(s.in)) &&
               one.out == (is_in_place(s.out) ? first.out : name_of(s.out));
    }

    /// How many passes from position `at` on do the steps of a chain together: each sweeps what the one before it left, every factor is
    /// applied once, and the last pass adds and scales. 0: they do something else.
    [[nodiscard]] std::size_t passes_of_chain(const chain& c, std::size_t at) const {
        std::vector<std::int32_t> wanted = c.unit_factors;
        for (const chain_mode& m : c.modes) {
            if (m.contracted()) {
                wanted.push_back(m.factor);
            }
        }
        const std::int32_t to = name_of(c.out);
        std::vector<std::int32_t> applied;
        std::int32_t from = name_of(c.in);
        for (std::size_t next = at; next < p_.passes.size(); ++next) {
            const pass& one = p_.passes[next];
            for (const sweep& s : one.sweeps) {
                applied.insert(applied.end(), s.factors.begin(), s.factors.end());
            }
            const bool last = applied.size() >= wanted.size();
            // Between two passes a buffer holds what the first one left, or the output where nothing is added to it.
            const bool arrives = one.out == to ? last || !c.add : !last && one.out < 0;
            if (one.kernel != pass_kernel::cpu_tiles || one.in != from || !arrives ||
                (one.in == one.out && one.in < 0) || one.sweeps.empty() != wanted.empty() ||
                one.add != (last && c.add) || one.scalar != (last ? c.scalar : -1)) {
                return 0;
            }
            if (last) {
                std::ranges::sort(wanted);
                std::ranges::sort(applied);
                return applied == wanted ? next + 1 - at : 0;
            }
            from = one.out;
        }
        return 0;
    }

    [[nodiscard]] std::int64_t stride_of(std::int32_t id, std::int32_t k) const {
        const std::vector<mode>& modes = p_.tensor_modes.empty() ? p_.source.modes : p_.tensor_modes;
        return modes[static_cast<std::size_t>(p_.source.at(id).first_mode + k)].stride;
    }

    /// The passes of a chain have the modes that the planner outlines for their sweeps, so that each reads what it must and writes where it must.
    [[nodiscard]] bool lie_as_outlined(chain c, std::span<const pass> passes) const {
        for (chain_mode& m : c.modes) {
            m.stride_in = stride_of(c.in, m.name);
            m.stride_out = stride_of(c.out, m.name);
        }
        const bool cuts_to_one = p_.slab_count > 1 && p_.slab_extent == 1 && !p_.tensor_cuts.empty();
        sort_by_memory(c.modes, cuts_to_one ? p_.tensor_cuts[static_cast<std::size_t>(c.in)] : -1);
        std::vector<std::size_t> ends;
        const std::vector<factor_group> groups = groups_of(c, passes, ends);
        fusion_setting f;
        f.source = &c;
        f.groups = groups;
        f.in_place = c.in_place;
        f.slab.in_output = passes.size() > 1 && !c.in_place && passes.front().out == name_of(c.out);
        if (p_.slab_count > 1) {
            for (std::size_t k = 0; k < c.modes.size() && !p_.tensor_cuts.empty(); ++k) {
                const bool is_cut = c.modes[k].name == p_.tensor_cuts[static_cast<std::size_t>(c.in)];
                f.slab.chain_mode = is_cut ? static_cast<std::int32_t>(k) : f.slab.chain_mode;
            }
            f.slab.chain_mode = p_.tensor_cuts.empty() ? slab_mode_of(c) : f.slab.chain_mode;
            f.slab.extent = p_.slab_extent;
        }
        strides in;
        strides out;
        pass outlined;
        std::size_t begin = 0;
        for (std::size_t i = 0; i < passes.size(); ++i) {
            double elements = 1;
            for (std::size_t k = 0; k < c.modes.size(); ++k) {
                elements *= static_cast<double>(extent_after(f, k, ends[i]));
            }
            if (elements >= 0x1p60) {
                return false;
            }
            strides_after(f, begin, in);
            strides_after(f, ends[i], out);
            for (std::size_t k = 0; k < c.modes.size() && groups.empty(); ++k) {
                out[k] = c.modes[k].stride_out;
            }
            outline_pass(f, begin, ends[i], in, out, outlined);
            if (groups.empty() && !c.unit_factors.empty()) {
                outlined.sweeps.push_back(
                    {static_cast<std::int32_t>(outlined.modes.size()), sweep_kernel::fibre, 1, 1, {}});
                outlined.modes.push_back({1, 1, 0, 0});
            }
            if (outlined.modes != passes[i].modes || outlined.slab_mode != passes[i].slab_mode ||
                outlined.slab_scale != passes[i].slab_scale ||
                !std::ranges::equal(outlined.sweeps, passes[i].sweeps, {}, &sweep::mode, &sweep::mode)) {
                return false;
            }
            begin = ends[i];
        }
        return true;
    }

    /// The groups of a chain's modes whose factors the sweeps apply, and where each pass ends in them. What is no group is left out.
    [[nodiscard]] static std::vector<factor_group> groups_of(const chain& c, std::span<const pass> passes,
                                                             std::vector<std::size_t>& ends) {
        std::vector<factor_group> groups;
        std::vector<bool> taken(c.modes.size(), false);
        for (const pass& one : passes) {
            for (const sweep& s : one.sweeps) {
                const bool carries = &s == passes.front().sweeps.data();  // the 1 x 1 factors
                const std::size_t count =
                    s.factors.size() - (carries ? (std::min)(c.unit_factors.size(), s.factors.size()) : 0);
                for (std::size_t first = 0; count > 0 && first + count <= c.modes.size(); ++first) {
                    bool is_this = true;
                    for (std::size_t k = 0; k < count; ++k) {
                        is_this = is_this && !taken[first + k] && c.modes[first + k].factor == s.factors[k];
                    }
                    if (is_this) {
                        std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(first), count, true);
                        groups.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(count),
                                          s.p_extent, s.q_extent});
                        break;
                    }
                }
            }
            ends.push_back(groups.size());
        }
        return groups;
    }

    /// The passes of a CPU's plan do the steps of the program in their order, each once.
    [[nodiscard]] bool passes_do_the_steps() const {
        const program& source = p_.source;
        const auto steps = static_cast<std::int32_t>(source.steps.size());
        if (p_.passes.empty()) {
            return steps == 0 || has_empty_output(source);
        }
        const std::vector<std::int32_t> reads = read_counts(source);
        if (std::ranges::find(p_.tensor_buffers, in_place_of_result) != p_.tensor_buffers.end()) {
            const chain whole = chain_at(source, 0, reads);
            if (!whole.in_place || whole.step_count != steps) {
                return false;
            }
        }
        std::int32_t done = 0;
        for (std::size_t at = 0; at < p_.passes.size();) {
            if (done == steps) {
                return false;
            }
            if (p_.passes[at].kernel == pass_kernel::step) {
                if (!does_step(p_.passes[at], done)) {
                    return false;
                }
                ++at;
                ++done;
                continue;
            }
            const chain c = chain_at(source, done, reads);
            const std::size_t passes = c.step_count > 0 ? passes_of_chain(c, at) : 0;
            if (passes == 0 || !lie_as_outlined(c, std::span(p_.passes).subspan(at, passes))) {
                return false;
            }
            at += passes;
            done += c.step_count;
        }
        return done == steps;
    }

    /// A pass of tiles: its sweeps are the factors', and it reads and writes its operands and buffers alone.
    [[nodiscard]] bool stays_in_memory(const pass& one) const {
        const auto modes = static_cast<std::int32_t>(one.modes.size());
        for (std::size_t i = 0; i < one.sweeps.size(); ++i) {
            const sweep& s = one.sweeps[i];
            std::int64_t p_extent = 1;
            std::int64_t q_extent = 1;
            for (const std::int32_t id : s.factors) {
                const std::span<const mode> factor = p_.source.modes_of(id);
                if (factor.size() != 2 || !checked_multiply(p_extent, factor[0].extent, p_extent) ||
                    !checked_multiply(q_extent, factor[1].extent, q_extent)) {
                    return false;
                }
            }
            const pass_mode& m = one.modes[static_cast<std::size_t>(s.mode)];
            if (p_extent != s.p_extent || q_extent != s.q_extent || m.extent_in != p_extent ||
                m.extent_out != q_extent ||
                std::any_of(one.sweeps.begin(), one.sweeps.begin() + static_cast<std::ptrdiff_t>(i),
                            [&s](const sweep& before) { return before.mode == s.mode; })) {
                return false;
            }
        }
        reach in;
        reach out;
        double elements = 1;  // of all tiles and stages at most
        for (std::int32_t k = 0; k < modes; ++k) {
            const pass_mode& m = one.modes[static_cast<std::size_t>(k)];
            const bool cut = k == one.slab_mode && p_.slab_count > 1;
            if (!is_contracted(one, k) && m.extent_in != m.extent_out) {
                return false;
            }
            if (cut && !slabs_cover(m.extent_in, one.slab_scale)) {
                return false;
            }
            const std::int64_t slab = cut ? (std::min)(m.extent_in, p_.slab_extent * one.slab_scale) : m.extent_in;
            if (!in.add(one.in < 0 ? slab : m.extent_in, m.stride_in) ||
                !out.add(one.out < 0 ? (cut ? slab : m.extent_out) : m.extent_out, m.stride_out)) {
                return false;
            }
            elements *= static_cast<double>((std::max)({m.extent_in, m.extent_out, std::int64_t{1}}));
        }
        const bool cut = one.slab_mode >= 0 && !is_contracted(one, one.slab_mode);
        const bool lanes_exist =
            one.lane_mode < 0 ? one.lane_count == 1
                              : !is_contracted(one, one.lane_mode) &&
                                    one.lane_count <= one.modes[static_cast<std::size_t>(one.lane_mode)].extent_in;
        return lanes_exist && (p_.slab_count > 1 ? cut : one.slab_mode < 0) && elements < 0x1p60 && fits(one.in, in) &&
               fits(one.out, out);
    }
    [[nodiscard]] bool slabs_cover(std::int64_t extent, std::int64_t scale) const {
        const std::int64_t total = extent / scale;
        return extent % scale == 0 && p_.slab_extent >= 1 && p_.slab_extent <= total &&
               (total - 1) / p_.slab_extent + 1 == p_.slab_count;
    }
    [[nodiscard]] bool fits(std::int32_t id, const reach& r) const {
        if (id < 0) {
            return r.lies_in({0, elements_of(-2 - id) - 1, false});
        }
        reach whole;
        return is_operand(id) && reach_of(p_.source.modes_of(id), whole) && r.lies_in(whole);
    }

    /// What the workspace takes, too large rather than too small, so that layout_of may add it up.
    [[nodiscard]] double bytes_at_most() const {
        double elements = 2.0 * p_.threads * static_cast<double>(p_.tile_elements);
        for (const pass& one : p_.passes) {
            for (const sweep& s : one.sweeps) {
                elements += static_cast<double>(s.p_extent) * (static_cast<double>(s.q_extent) + p_.vector_count) *
                            (one.block_columns > 0 ? p_.threads : 1);
            }
        }
        for (const std::int64_t e : p_.buffer_elements) {
            elements += static_cast<double>(p_.threads) * static_cast<double>(e);
        }
        return elements * static_cast<double>((std::max)(std::int64_t{1}, plan_element_bytes(p_.source)));
    }

    const plan& p_;
};

}  // namespace otimes::planning

// SPDX-License-Identifier: MIT
/// @file gpu_chain.hpp
/// One chain on a GPU: where its passes end, where its intermediates lie, and the passes under a choice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <otimes/plan/chain.hpp>
#include <otimes/plan/cpu_passes.hpp>
#include <otimes/plan/fusion.hpp>
#include <otimes/plan/gpu_choice.hpp>
#include <otimes/plan/gpu_kernel_choice.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/grouping.hpp>
#include <otimes/plan/machine.hpp>
#include <otimes/plan/options.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/slabs.hpp>
#include <otimes/program/cold.hpp>

namespace otimes::planning {

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
    void take_only_tiles() { gpu_.only_tiles = true; }
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

    /// The pass of groups [begin, end). In place fused, or by blocks that may store where they read: elsewhere the prediction is infinite.
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
        if ((lies_in_y(begin) && p.kernel == pass_kernel::gpu_generic) ||
            (overwrites_x(begin, end) && !may_overwrite(p))) {
            p.predicted_seconds = std::numeric_limits<double>::infinity();
        }
    }
    /// True where Y is X's memory, and groups [begin, end) go from the one to the other.
    [[nodiscard]] bool overwrites_x(std::size_t begin, std::size_t end) const {
        const std::size_t count = setting_.groups.size();
        return chain_.in_place && count > 0 && begin == 0 && (end == count || lies_in_y(end));
    }
    [[nodiscard]] bool may_overwrite(const pass& p) const {
        return p.tile.slices <= 1 && more_in_place(p) <= 0 &&
               std::ranges::all_of(p.modes, [](const pass_mode& m) { return m.stride_in == m.stride_out; });
    }
    /// Seconds that the pass takes longer where it stores where it reads; infinite where it may not. Tiles may: each one's place is its own, before and
    /// after.
    [[nodiscard]] double more_in_place(const pass& p) const {
        constexpr double never = std::numeric_limits<double>::infinity();
        if (p.kernel != pass_kernel::gpu_blocked) {
            return p.kernel != pass_kernel::gpu_generic ? 0 : never;
        }
        double elements = 1;
        for (const pass_mode& m : p.modes) {
            elements *= static_cast<double>(m.extent_in);
        }
        const auto slabs = static_cast<double>(setting_.slab.count);
        const gpu_description& gpu = *gpu_.gpu;
        const blocked_request request = blocked_request_of(gpu_, setting_.source->type, elements, slabs, p);
        const std::optional<blocked_kernel> in_place = in_place_kernel_of(request, gpu, p);
        const std::optional<blocked_kernel> best = blocked_kernel_for(request, gpu);
        return !in_place ? never
               : in_place == best
                   ? 0
                   : slabs * (blocked_seconds(request, *in_place, gpu) - blocked_seconds(request, *best, gpu));
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

/// The passes of one chain, made under one choice after the other; those that were made last stand.
OTIMES_ON_DEMAND class gpu_chain_passes {
public:
    /// @param alone the program is this chain
    gpu_chain_passes(const chain& c, std::vector<factor_group>& groups, const gpu_description& gpu,
                     const options& wishes, bool alone)
        : chain_(c), groups_(groups), gpu_(gpu), wishes_(wishes), alone_(alone) {}

    /// False where the forced choice, or working through Y, is impossible.
    /// @param in_l2 intermediates are known to stay in L2
    OTIMES_COLD bool make(const slab_choice& slab, bool through_y, bool in_l2, const gpu_choice* forced) {
        stand_ = false;
        planner_.emplace(chain_, groups_, gpu_, wishes_, slab);
        planner_->through_y(through_y);
        planner_->stands_alone(alone_);
        if (in_l2) {
            planner_->keep_in_l2();
        }
        if (forced != nullptr && forced->only_tiles) {
            planner_->take_only_tiles();
        }
        if (!choose_ends(forced)) {
            return false;
        }
        passes_.clear();
        saves_memory_ = false;
        std::size_t begin = 0;
        for (std::size_t i = 0; i < ends_.size(); ++i) {
            passes_.emplace_back();
            const gpu_tile* const tile =
                forced != nullptr && !forced->parts[i].any_tile ? &forced->parts[i].tile : nullptr;
            planner_->evaluate(begin, ends_[i], tile, passes_.back());
            if (passes_.back().predicted_seconds == std::numeric_limits<double>::infinity() ||
                (tile != nullptr && !tile->trips.empty() && passes_.back().tile != *tile)) {
                return false;
            }
            begin = ends_[i];
        }
        slab_ = slab;
        return stand_ = true;
    }
    /// False where what was made last was impossible.
    [[nodiscard]] bool stand() const { return stand_; }
    /// One pass of all groups, without slabs, in the place of what was made.
    void replace_by(pass whole) {
        ends_ = {groups_.size()};
        passes_.clear();
        passes_.push_back(std::move(whole));
        slab_ = {};
    }

    /// From here on passes between two others may take the place of what they read where that takes longer, at most twice as long.
    void save_memory() {
        saves_memory_ = true;
        for (std::size_t at = 0; at < passes_.size(); ++at) {
            passes_[at].predicted_seconds += replaces_input(at) ? planner_->more_in_place(passes_[at]) : 0;
        }
    }

    [[nodiscard]] std::size_t count() const { return ends_.size(); }
    /// Behind which group each pass ends.
    [[nodiscard]] const std::vector<std::size_t>& ends() const { return ends_; }
    [[nodiscard]] const std::vector<pass>& passes() const { return passes_; }
    [[nodiscard]] const slab_choice& slab() const { return slab_; }
    [[nodiscard]] gpu_chain_planner<>& planner() { return *planner_; }

    [[nodiscard]] double seconds() const {
        double sum = 0;
        for (const pass& one : passes_) {
            sum += one.predicted_seconds;
        }
        return sum;
    }
    /// True of a pass between two others whose result may take the place of what it reads.
    [[nodiscard]] bool replaces_input(std::size_t at) const {
        const pass& p = passes_[at];
        const double more = planner_->more_in_place(p);
        return at > 0 && at + 1 < ends_.size() && (saves_memory_ ? more < p.predicted_seconds : more <= 0) &&
               p.tile.slices == 1 &&
               std::ranges::all_of(p.modes, [](const pass_mode& m) { return m.stride_in == m.stride_out; }) &&
               std::ranges::all_of(p.sweeps, [](const sweep& s) { return s.p_extent == s.q_extent; });
    }
    /// Elements of the intermediates in memory at a time, at most: what a pass reads and what it writes, but for X and Y.
    [[nodiscard]] std::int64_t most_intermediate_elements() const {
        std::int64_t most = 0;
        std::int64_t read = 0;
        for (std::size_t at = 0; at < ends_.size(); ++at) {
            const std::int64_t written = at + 1 < ends_.size() ? elements_after(planner_->setting(), ends_[at]) : 0;
            most = (std::max)(most, replaces_input(at) ? read : read + written);
            read = written;
        }
        return most;
    }

private:
    bool choose_ends(const gpu_choice* forced) {
        ends_.clear();
        if (forced != nullptr) {
            std::size_t end = 0;
            for (const gpu_choice::part& part : forced->parts) {
                ends_.push_back(end += static_cast<std::size_t>(part.sweeps));
            }
            return end == groups_.size();
        }
        if (groups_.empty()) {
            ends_.push_back(0);
            return true;
        }
        double seconds = 0;
        ends_ = planner_->cheapest(seconds);
        return !ends_.empty();
    }

    const chain& chain_;
    std::vector<factor_group>& groups_;
    const gpu_description& gpu_;
    const options& wishes_;
    bool alone_;
    std::optional<gpu_chain_planner<>> planner_;
    std::vector<std::size_t> ends_;
    std::vector<pass> passes_;
    slab_choice slab_;
    bool saves_memory_ = false;
    bool stand_ = false;
};

}  // namespace otimes::planning

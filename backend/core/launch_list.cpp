// SPDX-License-Identifier: MIT
#include "launch_list.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/shared_terms.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/structured.hpp>

#include "join_launches.hpp"

namespace otimes::backend {

namespace {

constexpr std::int64_t scratch_alignment = 256;

/// A P x Q factor in device memory.
struct placed_factor {
    memory_reference at;
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    std::int64_t p_stride = 0;
    std::int64_t q_stride = 0;
    bool conjugate = false;
};

/// One mode on its way through a pass.
struct pass_extent {
    std::int64_t extent = 1;
    std::int64_t stride = 0;
};

dtype real_of(dtype type) { return type == dtype::c64 ? dtype::f32 : type == dtype::c128 ? dtype::f64 : type; }

/// Brings the free modes into Y's memory order, outermost first, merges neighbours that are nested in X, Y and F alike, and
/// finds q's place among them.
void order_free_modes(sliced_shape& shape) {
    std::vector<free_mode> modes;
    for (const free_mode& m : shape.free) {
        if (m.extent != 1) {
            modes.push_back(m);
        }
    }
    std::stable_sort(modes.begin(), modes.end(),
                     [](const free_mode& a, const free_mode& b) { return std::abs(a.y) > std::abs(b.y); });
    shape.free.clear();
    shape.q_position = 0;
    bool q_placed = shape.q_extent == 1;
    bool may_merge = false;
    for (const free_mode& m : modes) {
        if (!q_placed && std::abs(m.y) <= std::abs(shape.y_q)) {
            shape.q_position = static_cast<std::int32_t>(shape.free.size());
            q_placed = true;
            may_merge = false;
        }
        if (may_merge) {
            free_mode& outer = shape.free.back();
            if (outer.x == m.x * m.extent && outer.y == m.y * m.extent && outer.f == m.f * m.extent) {
                outer = {outer.extent * m.extent, m.x, m.y, m.f};
                continue;
            }
        }
        shape.free.push_back(m);
        may_merge = true;
    }
    if (!q_placed) {
        shape.q_position = static_cast<std::int32_t>(shape.free.size());
    }
    if (shape.free.size() > most_free_modes) {
        throw unsupported_error("otimes: the GPU's generic kernel takes " + std::to_string(most_free_modes) +
                                " free indices after merging, this step has " + std::to_string(shape.free.size()) +
                                ". Evaluate on otimes::cpu(), or copy the operands into contiguous matrices.");
    }
}

class lowering_to_launches {
public:
    lowering_to_launches(const plan& p, const gpu_description& gpu, bool allow_fused)
        : plan_(p), gpu_(gpu), allow_fused_(allow_fused) {}

    launch_list run() {
        const workspace_layout layout = layout_of(plan_);
        result_.buffer_bytes = layout.buffers;
        result_.workspace_bytes = layout.total;
        result_.slab_extent = plan_.slab_extent;
        result_.slab_count = std::max<std::int64_t>(1, plan_.slab_count);
        const std::int64_t total = slab_total();
        lower_passes(result_.slab, plan_.slab_extent);
        // What the factors need is there after the first round; a shorter last slab finds it there.
        if (result_.slab_count > 1 && total % plan_.slab_extent != 0) {
            lower_passes(result_.rest, total % plan_.slab_extent);
        }
        result_.scratch_bytes = scratch_;
        if (result_.slab_count == 1) {
            join_launches(result_.slab, gpu_);
        }
        return std::move(result_);
    }

private:
    /// Indices of the slab mode in all; 0 without slabs.
    [[nodiscard]] std::int64_t slab_total() const {
        for (const pass& p : plan_.passes) {
            if (p.slab_mode >= 0) {
                return p.modes[static_cast<std::size_t>(p.slab_mode)].extent_in / p.slab_scale;
            }
        }
        return 0;
    }

    void lower_passes(std::vector<launch>& to, std::int64_t slab) {
        list_ = &to;
        std::int32_t position = 0;
        for (const pass& p : plan_.passes) {
            pass_ = position++;
            if (p.kernel == pass_kernel::step) {
                if (plan_.slab_count > 1) {  // a reduction: what all slabs come to, once
                    if (!result_.after.empty()) {
                        continue;
                    }
                    list_ = &result_.after;
                }
                if (joined_.where != memory_reference::place::none) {
                    finish_sums(p);
                } else {
                    lower_step(p);
                }
            } else {
                lower_pass(p, slab);
            }
        }
    }

    // --- memory -----------------------------------------------------------------------------------------------------

    memory_reference reference_to(std::int32_t name) const {
        memory_reference at;
        if (name >= 0 && name == unstored_name_) {
            at = unstored_;
        } else if (name >= 0) {
            const tensor& t = plan_.source.at(name);
            if (t.space != memory_space::device) {
                throw unsupported_error("otimes: a GPU kernel was given an operand in host memory.");
            }
            at.where = memory_reference::place::operand;
            at.index = t.binding;
        } else if (name <= -2) {
            at.where = memory_reference::place::buffer;
            at.index = -2 - name;
        }
        return at;
    }
    memory_reference take_scratch(std::int64_t bytes) {
        memory_reference at;
        at.where = memory_reference::place::scratch;
        at.offset_bytes = scratch_;
        scratch_ += (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
        return at;
    }

    // --- factors ----------------------------------------------------------------------------------------------------

    /// A factor of the program as it lies in device memory, staged if it comes from the host. Each is placed once.
    placed_factor place(std::int32_t id) {
        for (const auto& [known, where] : placed_) {
            if (known == id) {
                return where;
            }
        }
        const tensor& t = plan_.source.at(id);
        if ((t.kind != factor_kind::dense && t.kind != factor_kind::self_adjoint) || t.mode_count != 2 ||
            t.binding < 0) {
            throw unsupported_error(
                "otimes: the GPU knows dense factors, one matrix for all rows; this one is of another "
                "kind. Evaluate on otimes::cpu(), or make the factor dense.");
        }
        const std::span<const mode> modes = plan_.source.modes_of(id);
        placed_factor f;
        f.p_extent = modes[0].extent;
        f.q_extent = modes[1].extent;
        f.conjugate = t.conjugate;
        if (t.space == memory_space::device) {
            f.at.where = memory_reference::place::operand;
            f.at.index = t.binding;
            f.p_stride = modes[0].stride;
            f.q_stride = modes[1].stride;
        } else {
            f.p_stride = f.q_extent;
            f.q_stride = 1;
            const std::int64_t bytes = f.p_extent * f.q_extent * t.scalar_bytes;
            f.at = take_scratch(bytes);
            result_.staged.push_back({id, f.at.offset_bytes, bytes, {modes.begin(), modes.end()}});
        }
        placed_.emplace_back(id, f);
        return f;
    }

    /// The factors of a sweep as one matrix of `type`: real ones promoted, several multiplied out, first factor outermost.
    placed_factor place_all(std::span<const std::int32_t> ids, dtype type) {
        for (const combined& known : combined_) {
            if (std::ranges::equal(known.ids, ids)) {
                return known.where;
            }
        }
        std::optional<placed_factor> whole;
        for (const std::int32_t id : ids) {
            placed_factor next = place(id);
            const dtype given = plan_.source.at(id).type;
            if (given != type) {
                next = promote(next, given, type);
            }
            whole = whole ? multiply_out(*whole, next, type) : next;
        }
        if (!whole) {  // a sweep that only scales
            whole = placed_factor{};
            whole->at = one(type);
        }
        if (ids.size() > 1 || (ids.size() == 1 && plan_.source.at(ids[0]).type != type)) {
            combined_.push_back({{ids.begin(), ids.end()}, *whole});
        }
        return *whole;
    }

    placed_factor promote(const placed_factor& f, dtype from, dtype to) {
        if (real_of(to) != from || from == to) {
            throw unsupported_error("otimes: the GPU cannot use a factor of type " + std::string(to_string(from)) +
                                    " in an expression of type " + std::string(to_string(to)) + ".");
        }
        placed_factor wide = f;
        wide.at = take_scratch(f.p_extent * f.q_extent * element_bytes(to));
        wide.p_stride = f.q_extent;
        wide.q_stride = 1;
        wide.conjugate = false;
        launch zero;  // an empty sum: every element becomes 0
        zero.type = to;
        zero.y = wide.at;
        zero.sliced.p_extent = 0;
        zero.sliced.q_extent = f.p_extent * f.q_extent;
        zero.sliced.y_q = 1;
        result_.before.push_back(zero);
        launch copy;
        copy.type = from;
        copy.x = f.at;
        copy.y = wide.at;
        copy.factors = {one(from)};
        copy.sliced.free = {{f.p_extent, f.p_stride, 2 * f.q_extent, 0}, {f.q_extent, f.q_stride, 2, 0}};
        order_free_modes(copy.sliced);
        result_.before.push_back(copy);
        return wide;
    }

    placed_factor multiply_out(const placed_factor& a, const placed_factor& b, dtype type) {
        placed_factor c;
        c.p_extent = a.p_extent * b.p_extent;
        c.q_extent = a.q_extent * b.q_extent;
        c.q_stride = 1;
        c.p_stride = c.q_extent;
        c.at = take_scratch(c.p_extent * c.q_extent * element_bytes(type));
        launch l;
        l.type = type;
        l.x = a.at;
        l.y = c.at;
        l.factors = {b.at};
        l.sliced.q_extent = b.q_extent;
        l.sliced.f_q = b.q_stride;
        l.sliced.y_q = 1;
        l.sliced.conjugate_x = a.conjugate;
        l.sliced.conjugate_f = b.conjugate;
        l.sliced.free = {{a.p_extent, a.p_stride, b.p_extent * c.q_extent, 0},
                         {b.p_extent, 0, c.q_extent, b.p_stride},
                         {a.q_extent, a.q_stride, b.q_extent, 0}};
        order_free_modes(l.sliced);
        result_.before.push_back(l);
        return c;
    }

    static memory_reference one(dtype type) {
        memory_reference at;
        at.where = memory_reference::place::one;
        at.index = static_cast<std::int32_t>(type);
        return at;
    }

    // --- steps ------------------------------------------------------------------------------------------------------

    std::span<const mode> modes_of(std::int32_t id) const {
        const tensor& t = plan_.source.at(id);
        const std::vector<mode>& all = plan_.tensor_modes.empty() ? plan_.source.modes : plan_.tensor_modes;
        return {all.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
    }

    /// What a plan calls a tensor: its number, or -2 - a buffer.
    std::int32_t name_of(std::int32_t id) const {
        const std::int32_t buffer =
            plan_.tensor_buffers.empty() ? -1 : plan_.tensor_buffers[static_cast<std::size_t>(id)];
        return buffer >= 0 ? -2 - buffer : id;
    }

    /// The launch that adds up such pairs, as lines of equal steps, Y's innermost mode last.
    launch partial_sums(dtype type, sliced_shape pairs) const {
        order_free_modes(pairs);
        if (pairs.free.size() > 2) {
            throw unsupported_error("otimes: the GPU reduces matrices; this step has " +
                                    std::to_string(pairs.free.size()) +
                                    " indices after merging. Evaluate on otimes::cpu().");
        }
        launch partial;
        partial.kind = launch_kind::partial_dots;
        partial.type = type;
        partial.pass = pass_;
        dot_shape& d = partial.dot;
        if (!pairs.free.empty()) {
            d.count = pairs.free.back().extent;
            d.x_step = pairs.free.back().x;
            d.y_step = pairs.free.back().y;
        }
        if (pairs.free.size() == 2) {
            d.lines = pairs.free.front().extent;
            d.x_line = pairs.free.front().x;
            d.y_line = pairs.free.front().y;
        }
        return partial;
    }

    /// out (+)= alpha * sum conj(in) * factor, or of |in|^2: sums of the blocks of a grid, then one number.
    void lower_reduction(const pass& p, const step& s) {
        const bool norm = s.variant == step_variant::squared_norm;
        if (!norm && s.variant != step_variant::dot) {
            throw unsupported_error(
                "otimes: the GPU executor knows dot products and norms; this reduction is another. Evaluate on "
                "otimes::cpu().");
        }
        const std::int32_t other = norm ? s.in : s.factor;
        const tensor& x = plan_.source.at(s.in);
        const tensor& y = plan_.source.at(other);
        const dtype type = plan_.source.at(s.out).type;
        if (x.type != type || y.type != type || element_bytes(type) < 4) {
            throw unsupported_error(
                "otimes: the GPU reduces operands of one type, float, double or complex; these are " +
                std::string(to_string(x.type)) + " and " + std::string(to_string(y.type)) + ".");
        }
        sliced_shape pairs;
        const std::span<const mode> x_modes = modes_of(s.in);
        const std::span<const mode> y_modes = modes_of(other);
        std::int64_t count = 1;
        for (std::size_t k = 0; k < x_modes.size(); ++k) {
            pairs.free.push_back({x_modes[k].extent, x_modes[k].stride, y_modes[k].stride, 0});
            count *= x_modes[k].extent;
        }
        launch partial = partial_sums(type, std::move(pairs));
        partial.x = reference_to(p.in);
        partial.factors = {reference_to(name_of(other))};
        dot_shape& d = partial.dot;
        d.conjugate_x = is_complex(type) && !x.conjugate;
        d.conjugate_y = is_complex(type) && y.conjugate;
        d.blocks = dot_blocks(count);
        partial.y = take_scratch(d.blocks * std::int64_t{16});  // of the widest accumulator
        launch finish;
        finish.kind = launch_kind::finish_dot;
        finish.type = type;
        finish.x = partial.y;
        finish.y = reference_to(p.out);
        finish.scalar = s.scalar;
        finish.add = s.add;
        finish.dot = d;
        finish.pass = pass_;
        list_->push_back(std::move(partial));
        list_->push_back(std::move(finish));
    }

    /// The same, where the kernels in front of it have left the sums of their blocks.
    void finish_sums(const pass& p) {
        const step& s = plan_.source.steps[static_cast<std::size_t>(p.step)];
        launch finish;
        finish.kind = launch_kind::finish_dot;
        finish.type = plan_.source.at(s.out).type;
        finish.x = joined_;
        finish.x.slab_bytes = 0;
        finish.y = reference_to(p.out);
        finish.scalar = s.scalar;
        finish.add = s.add;
        finish.dot.blocks = static_cast<std::int32_t>(joined_blocks_ * result_.slab_count);
        finish.pass = pass_;
        list_->push_back(std::move(finish));
        if (result_.slab_count == 1) {
            joined_ = {};  // of the next product
        }
    }

    /// The reduction that a pass does instead of storing what the program never stores; nullptr: it stores.
    const step* reduction_of(const pass& p) const {
        if (p.out < 0 || plan_.source.at(p.out).binding >= 0) {
            return nullptr;
        }
        return &plan_.source.steps[static_cast<std::size_t>(plan_.passes[static_cast<std::size_t>(pass_ + 1)].step)];
    }

    /// Makes a fused launch into what `reduction` reads one that sums up.
    void end_in_sums(const step& reduction, launch& l) {
        constexpr std::int64_t most_resident = 32;  // blocks of a multiprocessor, on any device
        const gpu_group& group = l.fused.group;
        const bool norm = reduction.variant == step_variant::squared_norm;
        if (joined_.where == memory_reference::place::none) {  // the first slab: a shorter last one has fewer blocks
            const std::int64_t sharing = std::int64_t{group.tile.cluster} * group.tile.slices;
            const std::int64_t turn =
                std::max<std::int64_t>(1, gpu_.multiprocessors * most_resident / sharing) * sharing;
            joined_blocks_ = std::min(l.fused.place.tiles(group) * sharing, turn);
            joined_ = take_scratch(result_.slab_count * joined_blocks_ * std::int64_t{16});  // the widest accumulator
            joined_.slab_bytes = joined_blocks_ * (is_complex(l.type) ? 16 : 8);
        }
        l.fused.group.ending = norm                    ? gpu_ending::squared_norm
                               : group.tile.pieces > 1 ? gpu_ending::dot_of_pieces
                                                       : gpu_ending::dot;
        l.sums_or_diagonal = joined_;
        l.dot.blocks = static_cast<std::int32_t>(joined_blocks_);
        l.dot.conjugate_x = !norm && is_complex(l.type) && !plan_.source.at(reduction.in).conjugate;
        if (norm) {
            l.y = l.x;
        }
    }

    /// Memory for what the plan does not store, where its kernel cannot be had.
    memory_reference stored_after_all(std::int32_t name) {
        if (unstored_name_ != name) {
            std::int64_t span = 1;
            for (const mode& m : modes_of(name)) {
                span += (m.extent - 1) * m.stride;
            }
            unstored_ = take_scratch(span * plan_.source.at(name).scalar_bytes);
            unstored_name_ = name;
        }
        return unstored_;
    }

    /// What a scaling multiplies by, in device memory and of the result's type: `strides` for each mode of its input.
    struct placed_diagonal {
        memory_reference at;
        std::vector<std::int64_t> strides;
    };
    placed_diagonal place_diagonal(std::int32_t id, dtype type) {
        const tensor& d = plan_.source.at(id);
        const std::span<const mode> modes = modes_of(id);
        placed_diagonal placed;
        std::int64_t count = 1;
        std::vector<mode> stored;
        for (std::size_t k = modes.size(); k-- > 0;) {
            const bool repeats = modes[k].stride == 0 || modes[k].extent == 1;
            placed.strides.insert(placed.strides.begin(), repeats ? 0 : count);
            if (!repeats) {
                stored.insert(stored.begin(), modes[k]);
                count *= modes[k].extent;
            }
        }
        placed_factor packed;  // without gaps, as one row
        packed.p_extent = packed.p_stride = 1;
        packed.q_extent = count;
        packed.q_stride = 1;
        if (d.space != memory_space::device) {
            packed.at = take_scratch(count * d.scalar_bytes);
            result_.staged.push_back({id, packed.at.offset_bytes, count * d.scalar_bytes, stored});
        } else {
            packed.at = reference_to(name_of(id));
            if (d.type == type) {
                placed.strides.clear();
                for (const mode& m : modes) {
                    placed.strides.push_back(m.stride);
                }
            } else if (stored.size() > 1) {
                throw unsupported_error(
                    "otimes: the GPU promotes a real diagonal of one mode in a complex expression; this one has "
                    "several. Convert it "
                    "to the complex type.");
            } else if (!stored.empty()) {
                packed.q_stride = stored.front().stride;
            }
        }
        placed.at = d.type == type ? packed.at : promote(packed, d.type, type).at;
        return placed;
    }

    /// out (+)= alpha * in * factor, element by element; in place too.
    void lower_scale(const pass& p, const step& s) {
        const tensor& in = plan_.source.at(s.in);
        const tensor& out = plan_.source.at(s.out);
        const tensor& d = plan_.source.at(s.factor);
        if (s.variant != step_variant::none || in.type != out.type || d.mode_count != in.mode_count) {
            throw unsupported_error(
                "otimes: the GPU executor multiplies by elements of a diagonal; this step scales otherwise. "
                "Evaluate on otimes::cpu().");
        }
        launch l;
        l.type = out.type;
        l.x = reference_to(p.in);
        l.y = reference_to(p.out);
        const placed_diagonal placed = place_diagonal(s.factor, out.type);
        l.factors = {placed.at};
        l.scalar = s.scalar;
        l.add = s.add;
        l.pass = pass_;
        l.sliced.conjugate_x = in.conjugate;
        l.sliced.conjugate_f = d.conjugate;
        for (std::size_t k = 0; k < modes_of(s.in).size(); ++k) {
            l.sliced.free.push_back(
                {modes_of(s.in)[k].extent, modes_of(s.in)[k].stride, modes_of(s.out)[k].stride, placed.strides[k]});
        }
        order_free_modes(l.sliced);
        list_->push_back(std::move(l));
    }

    /// A contraction with a sparse factor in device memory.
    void lower_sparse(const step& s, launch l) {
        constexpr std::int64_t wide_sum = 4;                  // elements of a thread, at least
        constexpr std::int64_t busy = std::int64_t{1} << 18;  // threads
        const tensor& factor = plan_.source.at(s.factor);
        if (factor.space != memory_space::device || factor.type != l.type || factor.mode_count != 2) {
            throw unsupported_error(
                "otimes: the GPU multiplies by sparse factors of the result's type in device memory; this one is not. "
                "Make a DeviceSparse of "
                "it, or evaluate on otimes::cpu().");
        }
        const std::span<const mode> from = modes_of(s.in);
        const std::span<const mode> to = modes_of(s.out);
        const auto on = static_cast<std::size_t>(s.mode);
        sliced_shape order;  // the result's index as q, for its place in Y's order
        order.q_extent = to[on].extent;
        order.y_q = to[on].stride;
        for (std::size_t k = 0; k < from.size(); ++k) {
            if (k != on) {
                order.free.push_back({from[k].extent, from[k].stride, to[k].stride, 0});
            }
        }
        order_free_modes(order);
        l.kind = launch_kind::sparse;
        for (const auto part : {memory_reference::place::sparse_starts, memory_reference::place::sparse_inner,
                                memory_reference::place::sparse_values}) {
            l.factors.push_back({part, factor.binding});
        }
        sparse_shape& shape = l.sparse;
        shape.outputs = order.q_extent;
        shape.x_inner = from[on].stride;
        shape.y_outer = order.y_q;
        shape.free = order.free;
        shape.outer_position = order.q_extent == 1 ? static_cast<std::int32_t>(order.free.size()) : order.q_position;
        const auto widest = std::ranges::max_element(shape.free, {}, &free_mode::extent);
        if (widest != shape.free.end()) {
            shape.turn = *widest;
            shape.outer_position -= widest - shape.free.begin() < shape.outer_position ? 1 : 0;
            shape.free.erase(widest);
        }
        // Several sums of a thread share indices and values, where enough threads are left.
        std::int64_t threads = shape.outputs * shape.turn.extent << shape.lanes_log2;
        for (const free_mode& m : shape.free) {
            threads *= m.extent;
        }
        while (shape.together < sparse_sums_together && shape.together < shape.turn.extent &&
               threads / (2 * shape.together) >= busy) {
            shape.together *= 2;
        }
        shape.conjugate_x = l.sliced.conjugate_x;
        shape.conjugate_values = factor.conjugate;
        const std::int64_t mean = shape.outputs == 0 ? 0 : factor.stored / shape.outputs;
        while (shape.lanes_log2 < 5 && mean >= (wide_sum << shape.lanes_log2) * 2) {
            ++shape.lanes_log2;
        }
        l.sliced = {};
        list_->push_back(std::move(l));
    }

    /// A contraction whose factor has elements of its own for each free index, or some of them.
    void lower_items(const step& s, launch l) {
        const tensor& factor = plan_.source.at(s.factor);
        const std::span<const mode> from = modes_of(s.in);
        const std::span<const mode> to = modes_of(s.out);
        const std::span<const mode> items = modes_of(s.factor);
        if (factor.kind != factor_kind::dense || factor.type != l.type || items.size() != from.size() + 1 ||
            (factor.space != memory_space::device && factor.binding >= 0)) {
            throw unsupported_error(
                "otimes: the GPU multiplies by factors that differ from index to index where they are dense, of the "
                "result's type and "
                "in device memory; this one is not. Copy it there, or evaluate on otimes::cpu().");
        }
        const mode& p = items[items.size() - 2];
        const mode& q = items[items.size() - 1];
        l.factors = {reference_to(name_of(s.factor))};
        l.sliced.conjugate_f = factor.conjugate;
        l.sliced.p_extent = p.extent;
        l.sliced.q_extent = q.extent;
        l.sliced.f_p = p.stride;
        l.sliced.f_q = q.stride;
        for (std::size_t k = 0, item = 0; k < from.size(); ++k) {
            if (static_cast<std::int32_t>(k) == s.mode) {
                l.sliced.x_p = from[k].stride;
                l.sliced.y_q = to[k].stride;
            } else {
                l.sliced.free.push_back({from[k].extent, from[k].stride, to[k].stride, items[item++].stride});
            }
        }
        order_free_modes(l.sliced);
        sum_in_pieces(std::move(l));
    }

    /// Few long sums: pieces of them, as many as keep a GPU busy, and then the sums of these. Neighbouring threads read neighbouring elements, also
    /// where the sum runs along the memory: a piece then takes every so many-th of them. Depends on the shapes alone.
    void sum_in_pieces(launch l) {
        constexpr std::int64_t busy = std::int64_t{1} << 17;  // outputs
        constexpr std::int64_t least_piece = 64;
        const sliced_shape& s = l.sliced;
        std::int64_t outputs = s.q_extent;
        bool along = true;  // the memory, in X
        for (const free_mode& m : s.free) {
            outputs *= m.extent;
            along = along && std::abs(m.x) > std::abs(s.x_p);
        }
        const std::int64_t pieces = outputs == 0 ? 1 : std::min(s.p_extent / least_piece, busy / outputs);
        if (pieces < 2 || element_bytes(l.type) < 4 || s.free.size() == most_free_modes) {
            list_->push_back(std::move(l));
            return;
        }
        const std::int64_t length = s.p_extent / pieces;
        const std::int64_t rest = s.p_extent % pieces;  // one more element for the first so many
        launch part = l;
        part.scalar = -1;
        part.add = false;
        part.sliced.p_extent = length;
        launch sum = l;
        sum.sliced = {};
        std::int64_t stride = along ? pieces : 1;
        for (auto i = static_cast<std::int32_t>(s.free.size()); i >= 0; --i) {
            if (i == s.q_position) {
                part.sliced.y_q = stride;
                sum.sliced.free.push_back({s.q_extent, stride, s.y_q, 0});
                stride *= s.q_extent;
            }
            if (i > 0) {
                free_mode& m = part.sliced.free[static_cast<std::size_t>(i - 1)];
                sum.sliced.free.push_back({m.extent, stride, m.y, 0});
                m.y = stride;
                stride *= m.extent;
            }
        }
        part.y = take_scratch(pieces * outputs * element_bytes(l.type));
        launch last = part;  // the elements that the pieces leave, behind all of them
        const std::int64_t behind = pieces * length * element_bytes(l.type);
        last.x.offset_bytes += behind * s.x_p;
        last.factors.front().offset_bytes += behind * s.f_p;
        last.sliced.p_extent = 1;
        last.add = true;
        const free_mode piece{pieces, along ? s.x_p : length * s.x_p, along ? 1 : outputs,
                              along ? s.f_p : length * s.f_p};
        const free_mode behind_piece{rest, s.x_p, piece.y, s.f_p};
        if (along) {
            part.sliced.x_p = pieces * s.x_p;
            part.sliced.f_p = pieces * s.f_p;
            part.sliced.free.push_back(piece);
            last.sliced.free.push_back(behind_piece);
        } else {
            for (launch* const one : {&part, &last}) {
                std::vector<free_mode>& free = one->sliced.free;
                free.insert(free.begin(), one == &part ? piece : behind_piece);
                ++one->sliced.q_position;
            }
        }
        sum.x = part.y;
        sum.factors = {one(l.type)};
        sum.sliced.p_extent = pieces;
        sum.sliced.x_p = piece.y;
        order_free_modes(sum.sliced);
        list_->push_back(std::move(part));
        if (rest > 0) {
            list_->push_back(std::move(last));
        }
        sum_in_pieces(std::move(sum));
    }

    void lower_step(const pass& p) {
        const step& s = plan_.source.steps[static_cast<std::size_t>(p.step)];
        if (s.kind == step_kind::scale && s.factor >= 0) {
            lower_scale(p, s);
            return;
        }
        if (s.kind == step_kind::reduce) {
            lower_reduction(p, s);
            return;
        }
        const bool contraction = s.kind == step_kind::contract;
        if (!contraction && !(s.kind == step_kind::accumulate && s.factor < 0)) {
            throw unsupported_error(
                "otimes: the GPU executor knows contractions, sums, scalings and reductions; this expression has a "
                "step of "
                "another kind. Evaluate on otimes::cpu().");
        }
        const tensor& in = plan_.source.at(s.in);
        const tensor& out = plan_.source.at(s.out);
        const bool identity = contraction && plan_.source.at(s.factor).kind == factor_kind::identity;
        const std::span<const mode> from = modes_of(s.in);
        const std::span<const mode> to = modes_of(s.out);
        launch l;
        l.type = out.type;
        l.x = reference_to(p.in);
        l.y = reference_to(p.out);
        l.scalar = s.scalar;
        l.add = s.add;
        l.pass = pass_;
        l.sliced.conjugate_x = in.conjugate;
        std::int64_t x_unit = 1;
        std::int64_t y_unit = 1;
        if (in.type != out.type) {
            if (contraction || real_of(out.type) != in.type || s.add || s.scalar >= 0) {
                throw unsupported_error("otimes: the GPU cannot combine an operand of type " +
                                        std::string(to_string(in.type)) + " with a result of type " +
                                        std::string(to_string(out.type)) + " in this step.");
            }
            launch zero;
            zero.type = out.type;
            zero.y = l.y;
            zero.pass = pass_;
            zero.sliced.p_extent = 0;
            for (const mode& m : to) {
                zero.sliced.free.push_back({m.extent, 0, m.stride, 0});
            }
            order_free_modes(zero.sliced);
            list_->push_back(zero);
            l.type = in.type;
            y_unit = 2;
        }
        if (contraction && plan_.source.at(s.factor).kind == factor_kind::sparse) {
            lower_sparse(s, std::move(l));
            return;
        }
        if (contraction && !identity && plan_.source.at(s.factor).mode_count > 2) {
            lower_items(s, std::move(l));
            return;
        }
        for (std::size_t k = 0; k < from.size(); ++k) {
            if (contraction && !identity && static_cast<std::int32_t>(k) == s.mode) {
                const std::int32_t id = s.factor;
                const placed_factor f = place_all({&id, 1}, out.type);
                l.factors = {f.at};
                l.sliced.p_extent = f.p_extent;
                l.sliced.q_extent = f.q_extent;
                l.sliced.x_p = from[k].stride;
                l.sliced.y_q = to[k].stride;
                l.sliced.f_p = f.p_stride;
                l.sliced.f_q = f.q_stride;
                l.sliced.conjugate_f = f.conjugate;
            } else {
                l.sliced.free.push_back({from[k].extent, from[k].stride * x_unit, to[k].stride * y_unit, 0});
            }
        }
        if (l.factors.empty()) {
            l.factors = {one(l.type)};
        }
        order_free_modes(l.sliced);
        list_->push_back(l);
    }

    // --- passes -----------------------------------------------------------------------------------------------------

    dtype type_of(const pass& p) const {
        for (const sweep& s : p.sweeps) {
            if (!s.factors.empty()) {
                return plan_.source.at(s.factors.front()).type;
            }
        }
        for (const std::int32_t name : {p.in, p.out}) {
            if (name >= 0) {
                return plan_.source.at(name).type;
            }
        }
        for (const tensor& t : plan_.source.tensors) {
            if (t.role == tensor_role::output) {
                return t.type;
            }
        }
        return dtype::f64;
    }

    void lower_pass(const pass& p, std::int64_t slab) {
        const dtype type = type_of(p);
        const std::int64_t bytes = element_bytes(type);
        std::vector<pass_extent> in;
        std::vector<pass_extent> out;
        for (const pass_mode& m : p.modes) {
            in.push_back({m.extent_in, m.stride_in});
            out.push_back({m.extent_out, m.stride_out});
        }
        const step* const reduction = reduction_of(p);
        const bool fuses = allow_fused_ && !p.tile.trips.empty() && (reduction == nullptr || p.out != unstored_name_);
        memory_reference from = reference_to(p.in);
        memory_reference to = reduction == nullptr                      ? reference_to(p.out)
                              : !fuses                                  ? stored_after_all(p.out)
                              : reduction->variant == step_variant::dot ? reference_to(reduction->in)
                                                                        : memory_reference{};
        if (p.slab_mode >= 0 && slab > 0) {
            const auto k = static_cast<std::size_t>(p.slab_mode);
            const std::int64_t step = plan_.slab_extent * p.slab_scale * bytes;
            if (p.in >= 0) {
                from.slab_bytes = step * in[k].stride;
            }
            if (p.out >= 0) {
                to.slab_bytes = step * out[k].stride;
            }
            in[k].extent = out[k].extent = slab * p.slab_scale;
        }
        if (p.sweeps.empty()) {
            launch l;
            l.type = type;
            l.x = from;
            l.y = to;
            l.factors = {one(l.type)};
            l.scalar = p.scalar;
            l.add = p.add;
            l.pass = pass_;
            for (std::size_t k = 0; k < in.size(); ++k) {
                l.sliced.free.push_back({in[k].extent, in[k].stride, out[k].stride, 0});
            }
            order_free_modes(l.sliced);
            list_->push_back(l);
            return;
        }
        memory_reference with;  // what a product that had to be stored is multiplied by
        if (fuses) {
            launch l;
            l.type = type;
            l.x = from;
            l.y = to;
            l.scalar = p.scalar;
            l.add = p.add;
            l.pass = pass_;
            if (make_fused(p, in, out, l)) {
                if (reduction != nullptr) {
                    end_in_sums(*reduction, l);
                }
                list_->push_back(std::move(l));
                return;
            }
            if (reduction != nullptr) {
                with = std::exchange(to, stored_after_all(p.out));
                to.slab_bytes = with.slab_bytes;
            }
        }
        // One mode at a time; an intermediate keeps the modes' order, without gaps. What is written where it is read, and
        // nothing else in between, goes through an intermediate too.
        const bool in_place = p.sweeps.size() == 1 && p.in == p.out;
        memory_reference spare[2];
        std::int64_t spare_bytes[2] = {0, 0};
        int turn = 0;
        for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
            const bool last = i + 1 == p.sweeps.size() && !in_place;
            const auto mode = static_cast<std::size_t>(p.sweeps[i].mode);
            std::vector<pass_extent> middle = in;
            middle[mode].extent = p.sweeps[i].q_extent;
            std::int64_t count = 1;
            for (std::size_t k = middle.size(); k-- > 0;) {
                middle[k].stride = count;
                count *= middle[k].extent;
            }
            launch l;
            l.type = type;
            l.x = from;
            l.scalar = last ? p.scalar : -1;
            l.add = last && p.add;
            l.pass = pass_;
            generic(p.sweeps[i], in, last ? out : middle, l);
            if (last) {
                l.y = to;
            } else {
                if (spare_bytes[turn] < count * bytes) {
                    spare[turn] = take_scratch(count * bytes);
                    spare_bytes[turn] = count * bytes;
                }
                l.y = spare[turn];
            }
            list_->push_back(l);
            from = l.y;
            turn = 1 - turn;
            in = middle;
        }
        if (reduction != nullptr && joined_.where != memory_reference::place::none) {
            // A shorter last slab that the kernel of the others does not take: sums in their place.
            const bool norm = reduction->variant == step_variant::squared_norm;
            sliced_shape pairs;
            for (const pass_extent& m : out) {
                pairs.free.push_back({m.extent, m.stride, m.stride, 0});
            }
            launch partial = partial_sums(type, std::move(pairs));
            partial.x = norm ? to : with;
            partial.factors = {to};
            partial.y = joined_;
            partial.dot.blocks = static_cast<std::int32_t>(joined_blocks_);
            partial.dot.conjugate_x = is_complex(type) && (norm || !plan_.source.at(reduction->in).conjugate);
            list_->push_back(std::move(partial));
        }
        if (in_place) {
            launch copy;
            copy.type = type;
            copy.x = from;
            copy.y = to;
            copy.factors = {one(type)};
            copy.scalar = p.scalar;
            copy.add = p.add;
            copy.pass = pass_;
            for (std::size_t k = 0; k < in.size(); ++k) {
                copy.sliced.free.push_back({in[k].extent, in[k].stride, out[k].stride, 0});
            }
            order_free_modes(copy.sliced);
            list_->push_back(copy);
        }
    }

    void generic(const sweep& s, const std::vector<pass_extent>& in, const std::vector<pass_extent>& out, launch& l) {
        const placed_factor f = place_all(s.factors, l.type);
        const auto k = static_cast<std::size_t>(s.mode);
        l.factors = {f.at};
        l.sliced.p_extent = s.p_extent;
        l.sliced.q_extent = s.q_extent;
        l.sliced.x_p = in[k].stride;
        l.sliced.y_q = out[k].stride;
        l.sliced.f_p = f.p_stride;
        l.sliced.f_q = f.q_stride;
        l.sliced.conjugate_f = f.conjugate;
        for (std::size_t m = 0; m < in.size(); ++m) {
            if (m != k) {
                l.sliced.free.push_back({in[m].extent, in[m].stride, out[m].stride, 0});
            }
        }
        order_free_modes(l.sliced);
    }

    /// Makes `l` the launch of a fused pass over these extents (of one slab); false where they do not suit its tile.
    bool make_fused(const pass& p, const std::vector<pass_extent>& in, const std::vector<pass_extent>& out, launch& l) {
        std::vector<pass_mode> modes;
        std::vector<std::uint8_t> contracted(in.size(), 0);
        std::vector<const sweep*> sweeps(in.size(), nullptr);
        for (const sweep& s : p.sweeps) {
            contracted[static_cast<std::size_t>(s.mode)] = 1;
            sweeps[static_cast<std::size_t>(s.mode)] = &s;
        }
        for (std::size_t k = 0; k < in.size(); ++k) {
            modes.push_back({in[k].extent, out[k].extent, in[k].stride, out[k].stride});
        }
        std::optional<planning::group_place> place = planning::place_of_group(modes, contracted);
        fused_shape shape;
        shape.group = group_of(p, l.type);
        const gpu_tile& tile = p.tile;
        if (place && place->inner > 1 && tile.rows > 1) {
            place = place->with_lines_joined(shape.group.count_p(), shape.group.count_q());
        }
        if (!place || (place->inner > 1) != shape.group.outer || (tile.pieces > 1 && place->parts_per_line > 1) ||
            ((shape.group.outer || place->parts_per_line > 1) && place->parts_per_line % tile.rows != 0) ||
            !planning::why_illegal(shape.group, gpu_).empty()) {
            return false;
        }
        shape.place = *place;
        shape.place.parts_per_line *= tile.pieces;
        for (std::size_t k = 0; k < in.size(); ++k) {
            if (sweeps[k] != nullptr) {
                const placed_factor f = without_conjugation(place_all(sweeps[k]->factors, l.type), l.type);
                l.factors.push_back(f.at);
                shape.factor_p.push_back(f.p_stride);
                shape.factor_q.push_back(f.q_stride);
            }
        }
        l.kind = launch_kind::fused;
        l.fused = std::move(shape);
        return true;
    }

    /// Fused kernels read factors as they are: a conjugated one is copied first.
    placed_factor without_conjugation(const placed_factor& f, dtype type) {
        if (!f.conjugate || !is_complex(type)) {
            return f;
        }
        for (const auto& [from, copied] : conjugated_) {
            if (from == f.at) {
                return copied;
            }
        }
        placed_factor plain = f;
        plain.conjugate = false;
        plain.p_stride = f.q_extent;
        plain.q_stride = 1;
        plain.at = take_scratch(f.p_extent * f.q_extent * element_bytes(type));
        launch copy;
        copy.type = type;
        copy.x = f.at;
        copy.y = plain.at;
        copy.factors = {one(type)};
        copy.sliced.conjugate_x = true;
        copy.sliced.free = {{f.p_extent, f.p_stride, f.q_extent, 0}, {f.q_extent, f.q_stride, 1, 0}};
        order_free_modes(copy.sliced);
        result_.before.push_back(copy);
        conjugated_.emplace_back(f.at, plain);
        return plain;
    }

    struct combined {
        std::vector<std::int32_t> ids;
        placed_factor where;
    };

    const plan& plan_;
    const gpu_description& gpu_;
    bool allow_fused_;
    launch_list result_;
    std::vector<launch>* list_ = nullptr;
    std::int64_t scratch_ = 0;
    std::int32_t pass_ = 0;
    std::vector<std::pair<std::int32_t, placed_factor>> placed_;
    std::vector<combined> combined_;
    std::vector<std::pair<memory_reference, placed_factor>> conjugated_;
    memory_reference joined_;  // the sums of kernels that reduce
    std::int64_t joined_blocks_ = 0;
    std::int32_t unstored_name_ = -1;
    memory_reference unstored_;
};

}  // namespace

void* sparse_array(const memory_reference& at, const void* operand) {
    const sparse_elements elements = static_cast<const sparse_operand*>(operand)->elements();
    return const_cast<void*>(at.where == memory_reference::place::sparse_starts  ? elements.starts
                             : at.where == memory_reference::place::sparse_inner ? elements.inner
                                                                                 : elements.values);
}

std::int32_t dot_blocks(std::int64_t pairs) noexcept {
    // 16 pairs a thread; not more blocks than any device holds at once, few enough for one block to add their sums.
    return static_cast<std::int32_t>(std::clamp<std::int64_t>((pairs + 4095) / 4096, 1, 512));
}

namespace {

/// The stretches that a launch goes over, element by element.
std::optional<copy_shape> stretches_of(const launch& l) {
    const sliced_shape& s = l.sliced;
    if (l.kind != launch_kind::sliced || s.p_extent != 1 || s.q_extent != 1 || s.free.size() > 2 ||
        l.factors.size() != 1) {
        return std::nullopt;
    }
    copy_shape copy;
    if (!s.free.empty()) {
        const free_mode& inner = s.free.back();
        if (inner.x != 1 || inner.y != 1) {
            return std::nullopt;
        }
        copy.count = inner.extent;
    }
    if (s.free.size() == 2) {
        copy.lines = s.free.front().extent;
        copy.x_line = s.free.front().x;
        copy.y_line = s.free.front().y;
    }
    return copy;
}

}  // namespace

std::optional<copy_shape> copy_of(const launch& l) {
    return !l.sliced.conjugate_f && l.factors.size() == 1 && l.factors.front().where == memory_reference::place::one
               ? stretches_of(l)
               : std::nullopt;
}

std::optional<diagonal_shape> diagonal_of(const launch& l) {
    const std::optional<copy_shape> stretches = stretches_of(l);
    if (!stretches || l.factors.front().where == memory_reference::place::one || element_bytes(l.type) < 4 ||
        l.sliced.free.empty()) {
        return std::nullopt;
    }
    diagonal_shape scale{*stretches, 0, l.sliced.free.back().f};
    if (l.sliced.free.size() == 2) {
        scale.d_line = l.sliced.free.front().f;
    }
    return scale;
}

launch_list lower_to_launches(const plan& p, const gpu_description& gpu, bool allow_fused) {
    return lowering_to_launches(p, gpu, allow_fused).run();
}

}  // namespace otimes::backend

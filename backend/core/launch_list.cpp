// SPDX-License-Identifier: MIT
#include "launch_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

#include <otimes/plan/gpu_generic.hpp>
#include <otimes/plan/gpu_tiles.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/structured.hpp>

#include "join_launches.hpp"
#include "lowering_to_launches.hpp"

namespace otimes::backend {

namespace {

constexpr std::int64_t scratch_alignment = 256;

}  // namespace

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

launch_list lowering_to_launches::run() {
    const workspace_layout layout = layout_of(plan_);
    result_.buffer_bytes = layout.buffers;
    result_.workspace_bytes = layout.total;
    result_.slab_extent = plan_.slab_extent;
    result_.slab_count = std::max<std::int64_t>(1, plan_.slab_count);
    total_ = slab_total();
    lower_passes(result_.slab, plan_.slab_extent);
    // What the factors need is there after the first round; a shorter last slab finds it there.
    if (result_.slab_count > 1 && total_ % plan_.slab_extent != 0) {
        lower_passes(result_.rest, total_ % plan_.slab_extent);
    }
    result_.scratch_bytes = scratch_;
    if (result_.slab_count == 1) {
        join_launches(result_.slab, gpu_);
    }
    return std::move(result_);
}

std::int64_t lowering_to_launches::slab_total() const {
    for (const pass& p : plan_.passes) {
        if (p.slab_mode >= 0) {
            return p.modes[static_cast<std::size_t>(p.slab_mode)].extent_in / p.slab_scale;
        }
    }
    for (std::size_t id = 0; id < plan_.tensor_cuts.size(); ++id) {
        if (plan_.tensor_cuts[id] >= 0) {
            return plan_.source.modes_of(plan_.source.tensors[id])[static_cast<std::size_t>(plan_.tensor_cuts[id])]
                .extent;
        }
    }
    return 0;
}

std::int32_t lowering_to_launches::cut_of(std::int32_t id) const {
    return plan_.tensor_cuts.empty() ? -1 : plan_.tensor_cuts[static_cast<std::size_t>(id)];
}

void lowering_to_launches::lower_passes(std::vector<launch>& to, std::int64_t slab) {
    list_ = &to;
    slab_ = slab;
    if (!plan_.tensor_cuts.empty()) {
        slab_modes_ = plan_.tensor_modes;
        for (std::size_t id = 0; id < plan_.tensor_cuts.size(); ++id) {
            if (plan_.tensor_cuts[id] >= 0) {
                slab_modes_[static_cast<std::size_t>(plan_.source.tensors[id].first_mode + plan_.tensor_cuts[id])]
                    .extent = slab;
            }
        }
    }
    std::int32_t position = 0;
    for (const pass& p : plan_.passes) {
        pass_ = position++;
        if (p.kernel == pass_kernel::step) {
            if (plan_.slab_count > 1 && plan_.tensor_cuts.empty()) {  // a reduction: what all slabs come to, once
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

memory_reference lowering_to_launches::reference_to(std::int32_t name) const {
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
        if (const std::int32_t k = cut_of(name); k >= 0) {
            at.slab_bytes =
                plan_.slab_extent * whole_modes_of(name)[static_cast<std::size_t>(k)].stride * t.scalar_bytes;
        }
    } else if (name <= -2) {
        at.where = memory_reference::place::buffer;
        at.index = -2 - name;
    }
    return at;
}

bool lowering_to_launches::has_room(std::int64_t bytes) const {
    return bytes <= plan_.wishes.workspace_limit_bytes - plan_.workspace_bytes - scratch_;
}

memory_reference lowering_to_launches::take_scratch(std::int64_t bytes) {
    memory_reference at;
    at.where = memory_reference::place::scratch;
    at.offset_bytes = scratch_;
    scratch_ += (bytes + scratch_alignment - 1) / scratch_alignment * scratch_alignment;
    return at;
}

placed_factor lowering_to_launches::place(std::int32_t id) {
    for (const auto& [known, where] : placed_) {
        if (known == id) {
            return where;
        }
    }
    const tensor& t = plan_.source.at(id);
    if ((t.kind != factor_kind::dense && t.kind != factor_kind::self_adjoint) || t.mode_count != 2 || t.binding < 0) {
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

placed_factor lowering_to_launches::place_all(std::span<const std::int32_t> ids, dtype type) {
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

placed_factor lowering_to_launches::promote(const placed_factor& f, dtype from, dtype to) {
    if (real_type_of(to) != from || from == to) {
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

placed_factor lowering_to_launches::multiply_out(const placed_factor& a, const placed_factor& b, dtype type) {
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

void lowering_to_launches::contract(launch& l, const placed_factor& f, std::int64_t x_stride, std::int64_t y_stride) {
    l.factors = {f.at};
    l.sliced.p_extent = f.p_extent;
    l.sliced.q_extent = f.q_extent;
    l.sliced.x_p = x_stride;
    l.sliced.y_q = y_stride;
    l.sliced.f_p = f.p_stride;
    l.sliced.f_q = f.q_stride;
    l.sliced.conjugate_f = f.conjugate;
}

memory_reference lowering_to_launches::one(dtype type) {
    memory_reference at;
    at.where = memory_reference::place::one;
    at.index = static_cast<std::int32_t>(type);
    return at;
}

dtype lowering_to_launches::type_of(const pass& p) const {
    for (const std::int32_t name : {p.in, p.out}) {
        if (name >= 0) {
            return plan_.source.at(name).type;
        }
    }
    // Between two buffers: as the chain. Its factor may be a real one in a complex chain.
    for (const sweep& s : p.sweeps) {
        for (const std::int32_t factor : s.factors) {
            for (const step& contraction : plan_.source.steps) {
                if (contraction.factor == factor) {
                    return plan_.source.at(contraction.in).type;
                }
            }
        }
    }
    for (const tensor& t : plan_.source.tensors) {
        if (t.role == tensor_role::output) {
            return t.type;
        }
    }
    return dtype::f64;
}

pass_in_memory lowering_to_launches::memory_of(const pass& p, std::int64_t slab, const step* reduction, bool reduces) {
    pass_in_memory at;
    at.type = type_of(p);
    for (const pass_mode& m : p.modes) {
        at.in.push_back({m.extent_in, m.stride_in});
        at.out.push_back({m.extent_out, m.stride_out});
    }
    at.from = reference_to(p.in);
    at.to = reduction == nullptr                               ? reference_to(p.out)
            : !reduces                                         ? stored_after_all(p.out)
            : reduction->variant != step_variant::squared_norm ? reference_to(reduction->in)
                                                               : memory_reference{};
    if (p.slab_mode >= 0 && slab > 0) {
        const auto k = static_cast<std::size_t>(p.slab_mode);
        const std::int64_t step = plan_.slab_extent * p.slab_scale * element_bytes(at.type);
        if (p.in >= 0) {
            at.from.slab_bytes = step * at.in[k].stride;
        }
        if (p.out >= 0) {
            at.to.slab_bytes = step * at.out[k].stride;
        }
        at.in[k].extent = at.out[k].extent = slab * p.slab_scale;
    }
    return at;
}

launch lowering_to_launches::whole_pass(const pass& p, const pass_in_memory& at) const {
    launch l;
    l.type = at.type;
    l.x = at.from;
    l.y = at.to;
    l.scalar = p.scalar;
    l.add = p.add;
    l.pass = pass_;
    return l;
}

void lowering_to_launches::lower_pass(const pass& p, std::int64_t slab) {
    const step* const reduction = reduction_of(p);
    // By blocks, too, one kernel reduces what it would store, unless it was stored already.
    const bool sums_by_blocks = allow_fused_ && reduction != nullptr && p.out != unstored_name_ &&
                                p.kernel == pass_kernel::gpu_blocked && p.sweeps.size() == 1 && p.tile.slices <= 1;
    const bool fuses = allow_fused_ && !p.tile.trips.empty() && (reduction == nullptr || p.out != unstored_name_);
    pass_in_memory at = memory_of(p, slab, reduction, fuses || sums_by_blocks);
    if (p.sweeps.empty()) {
        lower_copy(p, at);
        return;
    }
    if (sums_by_blocks && lower_sums_by_blocks(p, *reduction, at)) {
        return;
    }
    if (fuses && lower_fused(p, reduction, at)) {
        return;
    }
    const bool stored = lower_sweeps(p, at);
    if (reduction != nullptr && joined_.where != memory_reference::place::none) {
        sum_what_was_stored(*reduction, at);
    }
    if (!stored) {
        lower_copy(p, at);
    }
}

void lowering_to_launches::lower_copy(const pass& p, const pass_in_memory& at) {
    launch l = whole_pass(p, at);
    l.factors = {one(l.type)};
    for (std::size_t k = 0; k < at.in.size(); ++k) {
        l.sliced.free.push_back({at.in[k].extent, at.in[k].stride, at.out[k].stride, 0});
    }
    order_free_modes(l.sliced);
    list_->push_back(l);
}

void lowering_to_launches::store_after_all(const pass& p, pass_in_memory& at) {
    at.with = std::exchange(at.to, stored_after_all(p.out));
    at.to.slab_bytes = at.with.slab_bytes;
}

bool lowering_to_launches::lower_sums_by_blocks(const pass& p, const step& reduction, pass_in_memory& at) {
    launch l = whole_pass(p, at);
    generic(p.sweeps.front(), at.in, at.out, l);
    take_blocks(l);
    if (l.sliced.blocks) {
        end_in_sums(reduction, l);
        list_->push_back(std::move(l));
        return true;
    }
    store_after_all(p, at);
    return false;
}

bool lowering_to_launches::lower_fused(const pass& p, const step* reduction, pass_in_memory& at) {
    launch l = whole_pass(p, at);
    if (!make_fused(p, at.in, at.out, l)) {
        if (reduction != nullptr) {
            store_after_all(p, at);
        }
        return false;
    }
    if (reduction != nullptr) {
        end_in_sums(*reduction, l);
    }
    const std::int64_t slices = planning::is_sliced_by_launches(p.tile) ? p.tile.slices : 1;
    for (std::int64_t slice = 0; slice < slices; ++slice) {
        list_->push_back(l);
        const std::int64_t indices = l.fused.group.count_q() * element_bytes(at.type);  // of the slice, times bytes
        l.y.offset_bytes += indices * l.fused.place.y_inner;
        l.factors.front().offset_bytes += indices * l.fused.factor_q.front();
    }
    return true;
}

bool lowering_to_launches::fits_one_kernel_in_place(const pass& p, const pass_in_memory& at) {
    if (p.kernel != pass_kernel::gpu_blocked || p.add || !std::ranges::equal(at.in, at.out)) {
        return false;
    }
    launch l;
    l.type = at.type;
    generic(p.sweeps.front(), at.in, at.out, l);
    take_blocks(l, slabs_cut::nothing, true);
    return l.sliced.blocks.has_value();
}

bool lowering_to_launches::lower_sweeps(const pass& p, pass_in_memory& at) {
    // What is written where it is read, and nothing else in between, goes through an intermediate too, but by a kernel that may store there.
    const bool in_place = p.sweeps.size() == 1 && stores_where_it_reads(p);
    const bool by_one_kernel = in_place && fits_one_kernel_in_place(p, at);
    const bool stores = !in_place || by_one_kernel;
    memory_reference spare[2];
    std::int64_t spare_bytes[2] = {0, 0};
    int turn = 0;
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        const bool last = i + 1 == p.sweeps.size() && stores;
        std::vector<pass_extent> middle = at.in;
        middle[static_cast<std::size_t>(p.sweeps[i].mode)].extent = p.sweeps[i].q_extent;
        std::int64_t count = 1;
        for (std::size_t k = middle.size(); k-- > 0;) {
            middle[k].stride = count;
            count *= middle[k].extent;
        }
        launch l;
        l.type = at.type;
        l.x = at.from;
        l.scalar = last ? p.scalar : -1;
        l.add = last && p.add;
        l.pass = pass_;
        generic(p.sweeps[i], at.in, last ? at.out : middle, l);
        const std::int64_t pieces = take_sliced_kernel(p, count, by_one_kernel, l);
        if (last) {
            l.y = at.to;
        } else {
            const std::int64_t bytes = count * element_bytes(at.type);
            if (spare_bytes[turn] < bytes) {
                spare[turn] = take_scratch(bytes);
                result_.intermediate_bytes += bytes;
                spare_bytes[turn] = bytes;
            }
            l.y = spare[turn];
        }
        at.from = l.y;
        at.in = std::move(middle);
        turn = 1 - turn;
        push_in_pieces(std::move(l), pieces, count);
    }
    return stores;
}

std::int64_t lowering_to_launches::take_sliced_kernel(const pass& p, std::int64_t count, bool in_place,
                                                      launch& l) const {
    if (p.kernel == pass_kernel::gpu_blocked) {
        take_blocks(l, slabs_cut::nothing, in_place);
        return l.sliced.blocks && p.tile.slices > 1 && l.sliced.p_extent % p.tile.slices == 0 &&
                       l.sliced.free.size() < most_free_modes && has_room(p.tile.slices * count * element_bytes(l.type))
                   ? p.tile.slices
                   : 1;
    }
    if (p.kernel == pass_kernel::gpu_generic) {
        const std::int32_t threads = std::clamp(p.tile.slices, 1, 256);  // of a sum; the kernel's blocks have 256
        l.sliced.lanes_log2 = std::bit_width(static_cast<std::uint32_t>(threads)) - 1;
        const std::int32_t fibres = std::clamp(p.tile.rows, 1, planning::most_fibres_at_once(l.type));
        if (allow_fused_ && std::has_single_bit(static_cast<std::uint32_t>(fibres)) &&
            planning::has_room_for_few_fibres(gpu_)) {
            l.sliced.fibres = fibres;
        }
    }
    return 1;
}

void lowering_to_launches::push_in_pieces(launch l, std::int64_t pieces, std::int64_t sums) {
    if (pieces <= 1) {
        list_->push_back(std::move(l));
        return;
    }
    auto [part, sum] = in_pieces(l, pieces, false);
    const std::int32_t threads = planning::threads_of_sum(l.type, pieces, sums);
    sum.sliced.lanes_log2 = std::bit_width(static_cast<std::uint32_t>(threads)) - 1;
    list_->push_back(part);
    take_blocks(list_->back());
    list_->push_back(sum);
}

void lowering_to_launches::sum_what_was_stored(const step& reduction, const pass_in_memory& at) {
    const bool norm = reduction.variant == step_variant::squared_norm;
    sliced_shape pairs;
    for (const pass_extent& m : at.out) {
        pairs.free.push_back({m.extent, m.stride, m.stride, 0});
    }
    launch partial = partial_sums(at.type, std::move(pairs));
    partial.x = norm ? at.to : at.with;
    partial.factors = {at.to};
    partial.y = joined_;
    partial.dot.blocks = static_cast<std::int32_t>(joined_blocks_);
    partial.dot.distance = reduction.variant == step_variant::squared_distance;
    partial.dot.conjugate_x =
        is_complex(at.type) && (norm || plan_.source.at(reduction.in).conjugate == partial.dot.distance);
    list_->push_back(std::move(partial));
}

bool lowering_to_launches::stores_where_it_reads(const pass& p) const {
    if (p.in < 0 || p.out < 0) {
        return p.in == p.out;
    }
    const std::int32_t binding = plan_.source.at(p.in).binding;
    return p.in == p.out || (binding >= 0 && binding == plan_.source.at(p.out).binding);
}

void lowering_to_launches::generic(const sweep& s, const std::vector<pass_extent>& in,
                                   const std::vector<pass_extent>& out, launch& l) {
    const auto k = static_cast<std::size_t>(s.mode);
    contract(l, place_all(s.factors, l.type), in[k].stride, out[k].stride);
    for (std::size_t m = 0; m < in.size(); ++m) {
        if (m != k) {
            l.sliced.free.push_back({in[m].extent, in[m].stride, out[m].stride, 0});
        }
    }
    order_free_modes(l.sliced);
}

void lowering_to_launches::take_blocks(launch& l, slabs_cut cut, bool in_place) const {
    if (!allow_fused_) {
        return;
    }
    sliced_shape& s = l.sliced;
    planning::blocked_request request;
    request.type = l.type;
    request.p = s.p_extent;
    request.q = s.q_extent;
    request.may_use_unit = planning::may_use_unit(l.type, plan_.wishes);
    request.single = planning::takes_single_products(l.type, plan_.wishes.precision);
    for (const free_mode& m : s.free) {
        (m.f != 0 ? request.batches : request.fibres) *= m.extent;
    }
    if (cut != slabs_cut::nothing) {
        std::int64_t& of_slab = cut == slabs_cut::factors ? request.batches : request.fibres;
        of_slab = of_all_slabs(of_slab);
    }
    if (!planning::suits_blocks(request, gpu_)) {
        return;
    }
    s.blocks = in_place ? planning::in_place_kernel_for(request, gpu_) : planning::blocked_kernel_for(request, gpu_);
    if (!s.blocks) {
        return;
    }
    const auto fibres =
        std::stable_partition(s.free.begin(), s.free.end(), [](const free_mode& m) { return m.f != 0; });
    s.batches = static_cast<std::int32_t>(fibres - s.free.begin());
}

bool lowering_to_launches::make_fused(const pass& p, const std::vector<pass_extent>& in,
                                      const std::vector<pass_extent>& out, launch& l) {
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
        !planning::why_illegal(shape.group, gpu_).empty() ||
        (planning::is_sliced_by_launches(tile) && place->parts_per_line > 1)) {
        return false;
    }
    shape.group = planning::launched_group(std::move(shape.group));
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

placed_factor lowering_to_launches::without_conjugation(const placed_factor& f, dtype type) {
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

void* sparse_array(const memory_reference& at, const void* operand) {
    const sparse_elements elements = static_cast<const sparse_operand*>(operand)->elements();
    return const_cast<void*>(at.where == memory_reference::place::sparse_starts  ? elements.starts
                             : at.where == memory_reference::place::sparse_inner ? elements.inner
                                                                                 : elements.values);
}

std::int64_t outputs_of(const sliced_shape& s) noexcept {
    std::int64_t count = s.q_extent;
    for (const free_mode& m : s.free) {
        count *= m.extent;
    }
    return count;
}

std::int64_t blocked_tiles(const sliced_shape& s) noexcept {
    std::int64_t batches = 1;
    for (std::int32_t i = 0; i < s.batches; ++i) {
        batches *= s.free[static_cast<std::size_t>(i)].extent;
    }
    return batches * s.blocks->blocks(s.q_extent, outputs_of(s) / s.q_extent / batches);
}

std::int64_t sparse_tile_count(const sparse_shape& s) noexcept {
    std::int64_t tiles = (s.turn.extent + s.together - 1) / s.together;
    for (const free_mode& m : s.free) {
        tiles *= m.extent;
    }
    return tiles;
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

bool keeps_factor(const launch& l) noexcept {
    return l.kind == launch_kind::sliced && l.sliced.blocks && l.sliced.blocks->staying_steps > 0;
}

bool can_read_early(const launch& l) noexcept { return l.kind == launch_kind::fused || keeps_factor(l); }

std::optional<copy_shape> copy_of(const launch& l) {
    return !l.sliced.conjugate_f && l.factors.size() == 1 && l.factors.front().where == memory_reference::place::one
               ? stretches_of(l)
               : std::nullopt;
}

std::optional<diagonal_shape> diagonal_of(const launch& l) {
    const std::vector<free_mode>& free = l.sliced.free;
    if (l.factors.size() != 1 || l.factors.front().where == memory_reference::place::one || element_bytes(l.type) < 4 ||
        free.empty()) {
        return std::nullopt;
    }
    if (free.size() == 3 && free[0].f == 0 && free[0].x == free[1].x * free[1].extent &&
        free[0].y == free[1].y * free[1].extent) {  // one mode of X and Y, over which the factor repeats
        launch merged = l;
        merged.sliced.free = {{free[0].extent * free[1].extent, free[1].x, free[1].y, free[1].f}, free[2]};
        std::optional<diagonal_shape> scale = diagonal_of(merged);
        if (scale) {
            scale->d_lines = free[1].extent;
        }
        return scale;
    }
    const std::optional<copy_shape> stretches = stretches_of(l);
    if (!stretches) {
        return std::nullopt;
    }
    return diagonal_shape{*stretches, std::max<std::int64_t>(1, stretches->lines),
                          free.size() == 2 ? free.front().f : 0, free.back().f};
}

namespace {

/// May `l` read its factors while `front`, the launch before it, runs?
bool factors_stand_behind(const launch& l, const launch& front) {
    const auto is_written = [&front](const memory_reference& factor) {
        const auto same = [&factor](const memory_reference& to) {
            return to.where == factor.where && to.index == factor.index;
        };
        return same(front.y) || same(front.second);
    };
    return can_read_early(l) && can_read_early(front) && std::ranges::none_of(l.factors, is_written);
}

/// Says which launches of a list may read their factors before the launch in front of them has ended.
void find_ready_factors(std::vector<launch>& list) {
    for (std::size_t i = 1; i < list.size(); ++i) {
        list[i].factors_ready = factors_stand_behind(list[i], list[i - 1]);
    }
}

/// True where a thread of the last trip holds neighbouring fibres, which it would store one by one (kernels/multiply_add_trip.cuh, matrix_trip.cuh).
bool ends_in_neighbours(const planning::gpu_group& g) {
    const gpu_trip& last = g.tile.trips.back();
    std::int64_t held = 1;
    for (std::int32_t level = last.first; level < last.first + last.count; ++level) {
        held *= std::max(g.p_of(level), g.q_of(level));
    }
    return last.matrix || (last.split == 1 && held * planning::group_memory::vector_of(g.type) *
                                                      planning::group_memory::words_of(g.type) <=
                                                  planning::tile_formula::register_words);
}

/// Marks the outer groups of one product whose rows of Y begin at any element.
void mark_unaligned_results(std::vector<launch>& list) {
    for (launch& l : list) {
        if (l.kind != launch_kind::fused) {
            continue;
        }
        planning::gpu_group& g = l.fused.group;
        const std::int64_t vector = 16 / element_bytes(l.type);
        const planning::group_place& place = l.fused.place;
        const bool aligned = place.y_inner % vector == 0 && (place.lines == 1 || place.y_line % vector == 0);
        g.unaligned = g.outer && vector > 1 && !is_widened(l.type) && !aligned && !g.sum && g.moves.empty() &&
                      !g.addend && g.terms == 1 && g.inputs == 1 && !g.scattered && g.ending == gpu_ending::stored &&
                      g.tile.slots == 0 && g.tile.cluster == 1 && g.tile.slices == 1 && ends_in_neighbours(g);
    }
}

}  // namespace

launch_list lower_to_launches(const plan& p, const gpu_description& gpu, bool allow_fused) {
    launch_list list = lowering_to_launches(p, gpu, allow_fused).run();
    if (gpu.compiles) {
        mark_unaligned_results(list.slab);
        mark_unaligned_results(list.rest);
    }
    find_ready_factors(list.slab);
    find_ready_factors(list.rest);
    list.slab_factors_ready =
        list.slab_count > 1 && !list.slab.empty() && factors_stand_behind(list.slab.front(), list.slab.back());
    list.rest_factors_ready =
        !list.rest.empty() && !list.slab.empty() && factors_stand_behind(list.rest.front(), list.slab.back());
    return list;
}

}  // namespace otimes::backend

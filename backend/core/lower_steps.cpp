// SPDX-License-Identifier: MIT
// The steps that are no passes over modes: reductions, scalings, sparse factors, items.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <otimes/plan/gpu_sparse.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/structured.hpp>

#include "lowering_to_launches.hpp"

namespace otimes::backend {

std::span<const mode> lowering_to_launches::modes_of(std::int32_t id) const {
    const tensor& t = plan_.source.at(id);
    return slab_modes_.empty()
               ? whole_modes_of(id)
               : std::span<const mode>(slab_modes_.data() + t.first_mode, static_cast<std::size_t>(t.mode_count));
}

std::span<const mode> lowering_to_launches::whole_modes_of(std::int32_t id) const {
    const tensor& t = plan_.source.at(id);
    const std::vector<mode>& all = plan_.tensor_modes.empty() ? plan_.source.modes : plan_.tensor_modes;
    return {all.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
}

std::int32_t lowering_to_launches::name_of(std::int32_t id) const {
    const std::int32_t buffer = plan_.tensor_buffers.empty() ? -1 : plan_.tensor_buffers[static_cast<std::size_t>(id)];
    return buffer >= 0 ? -2 - buffer : id;
}

launch lowering_to_launches::partial_sums(dtype type, sliced_shape pairs) const {
    order_free_modes(pairs);
    if (pairs.free.size() > 2) {
        throw unsupported_error("otimes: the GPU reduces matrices; this step has " + std::to_string(pairs.free.size()) +
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

void lowering_to_launches::lower_reduction(const pass& p, const step& s) {
    const bool norm = s.variant == step_variant::squared_norm, distance = s.variant == step_variant::squared_distance;
    if (!norm && !distance && s.variant != step_variant::dot) {
        throw unsupported_error(
            "otimes: the GPU executor knows dot products and norms; this reduction is another. Evaluate on "
            "otimes::cpu().");
    }
    const std::int32_t other = norm ? s.in : s.factor;
    const tensor& x = plan_.source.at(s.in);
    const tensor& y = plan_.source.at(other);
    const dtype type = plan_.source.at(s.out).type;
    if (x.type != type || y.type != type || element_bytes(type) < 4) {
        throw unsupported_error("otimes: the GPU reduces operands of one type, float, double or complex; these are " +
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
    d.distance = distance;
    d.conjugate_x = is_complex(type) && x.conjugate == distance;
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

void lowering_to_launches::finish_sums(const pass& p) {
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

const step* lowering_to_launches::reduction_of(const pass& p) const {
    if (p.out < 0 || plan_.source.at(p.out).binding >= 0) {
        return nullptr;
    }
    return &plan_.source.steps[static_cast<std::size_t>(plan_.passes[static_cast<std::size_t>(pass_ + 1)].step)];
}

void lowering_to_launches::end_in_sums(const step& reduction, launch& l) {
    constexpr std::int64_t most_resident = 32;  // blocks of a multiprocessor, on any device
    const gpu_group& group = l.fused.group;
    const bool norm = reduction.variant == step_variant::squared_norm, fused = l.kind == launch_kind::fused;
    if (joined_.where == memory_reference::place::none) {  // the first slab: a shorter last one has fewer blocks
        const std::int64_t sharing = std::int64_t{group.tile.cluster} * group.tile.slices;
        const std::int64_t turn = std::max<std::int64_t>(1, gpu_.multiprocessors * most_resident / sharing) * sharing;
        const std::int64_t tiles = fused ? l.fused.place.tiles(group) : blocked_tiles(l.sliced);
        joined_blocks_ = std::min(tiles * sharing, turn);
        joined_ = take_scratch(result_.slab_count * joined_blocks_ * std::int64_t{16});  // the widest accumulator
        joined_.slab_bytes = joined_blocks_ * (is_complex(l.type) ? 16 : 8);
    }
    const bool distance = reduction.variant == step_variant::squared_distance;
    (fused ? l.fused.group.ending : l.sliced.ending) = norm                    ? gpu_ending::squared_norm
                                                       : distance              ? gpu_ending::squared_distance
                                                       : group.tile.pieces > 1 ? gpu_ending::dot_of_pieces
                                                                               : gpu_ending::dot;
    l.sums_or_diagonal = joined_;
    l.dot.blocks = static_cast<std::int32_t>(joined_blocks_);
    l.dot.conjugate_x = !norm && is_complex(l.type) && plan_.source.at(reduction.in).conjugate == distance;
    if (norm) {
        l.y = l.x;
    }
}

memory_reference lowering_to_launches::stored_after_all(std::int32_t name) {
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

lowering_to_launches::placed_diagonal lowering_to_launches::place_diagonal(std::int32_t id, dtype type) {
    const auto known =
        std::ranges::find_if(diagonals_, [&](const known_diagonal& one) { return one.id == id && one.type == type; });
    if (known != diagonals_.end()) {
        return known->where;
    }
    placed_diagonal placed = place_whole_diagonal(id, type);
    const std::int32_t k = cut_of(id);
    placed.at.slab_bytes = k < 0 || name_of(id) < 0
                               ? 0
                               : plan_.slab_extent * placed.strides[static_cast<std::size_t>(k)] * element_bytes(type);
    diagonals_.push_back({id, type, placed});
    return placed;
}

lowering_to_launches::placed_diagonal lowering_to_launches::place_whole_diagonal(std::int32_t id, dtype type) {
    const tensor& d = plan_.source.at(id);
    const std::span<const mode> modes = whole_modes_of(id);
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
        packed.at.slab_bytes = 0;
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

void lowering_to_launches::lower_scale(const pass& p, const step& s) {
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

void lowering_to_launches::lower_sparse(const step& s, launch l) {
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
    shape.inputs = from[on].extent;
    shape.x_inner = from[on].stride;
    shape.y_outer = order.y_q;
    shape.free = order.free;
    shape.outer_position = order.q_extent == 1 ? static_cast<std::int32_t>(order.free.size()) : order.q_position;
    const auto neighbours = std::ranges::find_if(shape.free, [](const free_mode& m) { return m.x == 1 && m.y == 1; });
    shape.turn_first = neighbours != shape.free.end();
    const auto widest = shape.turn_first ? neighbours : std::ranges::max_element(shape.free, {}, &free_mode::extent);
    if (widest != shape.free.end()) {
        shape.turn = *widest;
        shape.outer_position -= widest - shape.free.begin() < shape.outer_position ? 1 : 0;
        shape.free.erase(widest);
    }
    shape.conjugate_x = l.sliced.conjugate_x;
    shape.conjugate_values = factor.conjugate;
    l.sliced = {};
    std::int64_t others = 1;
    for (const free_mode& m : shape.free) {
        others *= m.extent;
    }
    bool any_neighbours = false;  // of the whole matrices: a slab may have one of them
    for (std::size_t k = 0; k < from.size(); ++k) {
        any_neighbours = any_neighbours ||
                         (k != on && whole_modes_of(s.in)[k].extent > 1 && from[k].stride == 1 && to[k].stride == 1);
    }
    shape.along = !any_neighbours && shape.x_inner == 1;
    const std::int64_t fibres = of_all_slabs(shape.turn.extent * others);
    const std::int64_t tile =
        allow_fused_ && (any_neighbours || shape.along)
            ? planning::sparse_tile_turns({shape.inputs, factor.stored, shape.turn.extent, others, fibres, shape.along},
                                          l.type, gpu_)
            : 0;
    if (tile > 0) {
        shape.tiles = true;
        shape.together = static_cast<std::int32_t>(tile);
        list_->push_back(std::move(l));
        return;
    }
    // Several sums of a thread share indices and values: those of one access, and more where enough threads are left.
    const std::int64_t packet = std::max<std::int64_t>(1, 16 / element_bytes(l.type));
    if (shape.turn_first && shape.turn.extent % packet == 0) {
        shape.together = static_cast<std::int32_t>(packet);
    }
    const std::int64_t threads = shape.outputs * shape.turn.extent * others;
    while (shape.together < planning::sparse_sums_together && shape.together < shape.turn.extent &&
           threads / (2 * shape.together) >= busy) {
        shape.together *= 2;
    }
    const std::int64_t mean = shape.outputs == 0 ? 0 : factor.stored / shape.outputs;
    while (shape.lanes_log2 < 5 && mean >= (wide_sum << shape.lanes_log2) * 2) {
        ++shape.lanes_log2;
    }
    list_->push_back(std::move(l));
}

void lowering_to_launches::lower_items(const step& s, launch l) {
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
    sum_in_pieces(std::move(l), cut_of(s.factor) >= 0 ? slabs_cut::factors : slabs_cut::fibres);
}

std::pair<launch, launch> lowering_to_launches::in_pieces(const launch& l, std::int64_t pieces, bool along) {
    const sliced_shape& s = l.sliced;
    const std::int64_t length = s.p_extent / pieces;
    std::pair<launch, launch> both{l, l};
    auto& [part, sum] = both;
    part.scalar = -1;
    part.add = false;
    part.sliced.p_extent = length;
    part.sliced.blocks.reset();
    part.sliced.batches = 0;
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
    const std::int64_t outputs = along ? stride / pieces : stride;
    part.y = take_scratch(pieces * outputs * element_bytes(l.type));
    if (along) {
        part.sliced.x_p = pieces * s.x_p;
        part.sliced.f_p = pieces * s.f_p;
        part.sliced.free.push_back({pieces, s.x_p, 1, s.f_p});
    } else {
        part.sliced.free.insert(part.sliced.free.begin(), {pieces, length * s.x_p, outputs, length * s.f_p});
        ++part.sliced.q_position;
    }
    sum.x = part.y;
    sum.factors = {one(l.type)};
    sum.sliced.p_extent = pieces;
    sum.sliced.x_p = along ? 1 : outputs;
    order_free_modes(sum.sliced);
    return both;
}

void lowering_to_launches::sum_in_pieces(launch l, slabs_cut cut) {
    constexpr std::int64_t busy = std::int64_t{1} << 17;  // outputs
    constexpr std::int64_t least_piece = 64;
    const sliced_shape& s = l.sliced;
    std::int64_t outputs = s.q_extent;
    bool along = true;  // the memory, in X
    for (const free_mode& m : s.free) {
        outputs *= m.extent;
        along = along && std::abs(m.x) > std::abs(s.x_p);
    }
    const std::int64_t pieces = outputs == 0 ? 1 : std::min(s.p_extent / least_piece, busy / of_all_slabs(outputs));
    if (pieces < 2 || element_bytes(l.type) < 4 || s.free.size() == most_free_modes) {
        take_blocks(l, cut);
        list_->push_back(std::move(l));
        return;
    }
    auto [part, sum] = in_pieces(l, pieces, along);
    const std::int64_t length = s.p_extent / pieces;
    const std::int64_t rest = s.p_extent % pieces;  // one more element for the first so many
    launch last = part;                             // the elements that the pieces leave, behind all of them
    const std::int64_t behind = pieces * length * element_bytes(l.type);
    last.x.offset_bytes += behind * s.x_p;
    last.factors.front().offset_bytes += behind * s.f_p;
    last.sliced.p_extent = 1;
    last.add = true;
    free_mode& piece = along ? last.sliced.free.back() : last.sliced.free.front();
    piece.extent = rest;
    piece.x = s.x_p;
    piece.f = s.f_p;
    list_->push_back(std::move(part));
    if (rest > 0) {
        list_->push_back(std::move(last));
    }
    sum_in_pieces(std::move(sum), slabs_cut::fibres);
}

void lowering_to_launches::lower_step(const pass& p) {
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
        if (contraction || real_type_of(out.type) != in.type || s.add || s.scalar >= 0) {
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
            contract(l, place_all({&id, 1}, out.type), from[k].stride, to[k].stride);
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

}  // namespace otimes::backend

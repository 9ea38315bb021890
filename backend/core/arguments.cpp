// SPDX-License-Identifier: MIT
#include "arguments.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include <otimes/program/errors.hpp>

namespace otimes::backend {

namespace {

template <class Scalar>
void put(std::byte* to, const Scalar& value) {
    std::memcpy(to, &value, sizeof(value));
}

template <class Arguments>
void finish(argument_block& block, const Arguments& arguments) {
    block.bytes.resize(sizeof(arguments));
    std::memcpy(block.bytes.data(), &arguments, sizeof(arguments));
}

template <class Accumulator>
argument_block copy_block(const launch& l, const copy_shape& copy, Accumulator one, Accumulator zero) {
    using arguments = copy_arguments<Accumulator>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.lines = copy.lines;
    a.count = copy.count;
    a.x_line_stride = copy.x_line;
    a.y_line_stride = copy.y_line;
    a.conjugate_x = l.sliced.conjugate_x;
    argument_block block;
    finish(block, a);
    block.addresses.push_back({offsetof(arguments, x), l.x});
    block.addresses.push_back({offsetof(arguments, y), l.y});
    block.alpha_offset = offsetof(arguments, alpha);
    return block;
}

template <class Accumulator>
argument_block diagonal_block(const launch& l, const diagonal_shape& scale, Accumulator one, Accumulator zero) {
    using arguments = diagonal_arguments<Accumulator>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.lines = scale.stretches.lines;
    a.count = scale.stretches.count;
    a.x_line_stride = scale.stretches.x_line;
    a.y_line_stride = scale.stretches.y_line;
    a.d_lines = scale.d_lines;
    a.d_line_stride = scale.d_line;
    a.d_stride = scale.d_step;
    a.conjugate_x = l.sliced.conjugate_x;
    a.conjugate_d = l.sliced.conjugate_f;
    argument_block block;
    finish(block, a);
    block.addresses = {
        {offsetof(arguments, x), l.x}, {offsetof(arguments, d), l.factors.front()}, {offsetof(arguments, y), l.y}};
    block.alpha_offset = offsetof(arguments, alpha);
    return block;
}

/// Says by what a kernel divides the places of Y: u / d = u * ceil(2^(31 + b) / d) / 2^(31 + b) for u < 2^31 and d <= 2^b: what is rounded up
/// stays below 1 / d.
template <class Arguments>
void divide_by(std::int64_t divisor, Arguments& a) {
    const auto d = static_cast<std::uint64_t>(divisor);
    const auto bits = static_cast<int>(std::bit_width(d - 1));  // of another type in libraries of before 2021
    a.divisor = static_cast<unsigned>(d);
    a.magic = static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + d - 1) / d);
    a.shift = bits - 1;
}

template <class Accumulator>
argument_block sliced_block(const launch& l, Accumulator one, Accumulator zero) {
    if (const std::optional<copy_shape> copy = copy_of(l)) {
        return copy_block(l, *copy, one, zero);
    }
    if (const std::optional<diagonal_shape> scale = diagonal_of(l)) {
        return diagonal_block(l, *scale, one, zero);
    }
    using arguments = sliced_arguments<Accumulator>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    const sliced_shape& s = l.sliced;
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.p_extent = s.p_extent;
    a.q_extent = s.q_extent;
    a.x_p_stride = s.x_p;
    a.f_p_stride = s.f_p;
    a.f_q_stride = s.f_q;
    a.y_q_stride = s.y_q;
    for (std::size_t i = 0; i < s.free.size(); ++i) {
        a.free_extent[i] = s.free[i].extent;
        a.x_stride[i] = s.free[i].x;
        a.y_stride[i] = s.free[i].y;
        a.f_stride[i] = s.free[i].f;
    }
    a.free_count = static_cast<int>(s.free.size());
    a.q_position = s.q_position;
    a.lanes_log2 = s.lanes_log2;
    a.conjugate_x = s.conjugate_x;
    a.conjugate_f = s.conjugate_f;
    argument_block block;
    if (s.blocks) {
        blocked_arguments<Accumulator> with_batches;
        std::memset(static_cast<void*>(&with_batches), 0, sizeof(with_batches));
        with_batches.sliced = a;
        with_batches.batch_count = s.batches;
        with_batches.factor_ready = l.factors_ready;
        if (planning::scales(s.ending)) {
            divide_by(l.divisor, with_batches);
            block.addresses.push_back({offsetof(blocked_arguments<Accumulator>, d), l.sums_or_diagonal});
        } else if (s.ending != gpu_ending::stored) {
            with_batches.sum_count = static_cast<unsigned>(l.dot.blocks);
            with_batches.conjugate_y = l.dot.conjugate_x;
            block.addresses.push_back({offsetof(blocked_arguments<Accumulator>, sums), l.sums_or_diagonal});
        }
        finish(block, with_batches);
        if (keeps_factor(l)) {
            block.ready_offset = offsetof(blocked_arguments<Accumulator>, factor_ready);
            static_assert(offsetof(blocked_arguments<Accumulator>, x_ready) ==
                          offsetof(blocked_arguments<Accumulator>, factor_ready) + 1);
        }
    } else {
        finish(block, a);
    }
    block.addresses.push_back({offsetof(arguments, x), l.x});
    block.addresses.push_back({offsetof(arguments, f), l.factors.empty() ? memory_reference{} : l.factors.front()});
    block.addresses.push_back({offsetof(arguments, y), l.y});
    block.alpha_offset = offsetof(arguments, alpha);
    return block;
}

template <class Accumulator>
argument_block sparse_block(const launch& l, Accumulator one, Accumulator zero) {
    using arguments = sparse_arguments<Accumulator>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    const sparse_shape& s = l.sparse;
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.outputs = s.outputs;
    a.inputs = s.inputs;
    a.x_inner_stride = s.x_inner;
    a.y_outer_stride = s.y_outer;
    a.turns = s.turn.extent;
    a.x_turn_stride = s.turn.x;
    a.y_turn_stride = s.turn.y;
    a.together = s.together;
    for (std::size_t i = 0; i < s.free.size(); ++i) {
        a.free_extent[i] = s.free[i].extent;
        a.x_stride[i] = s.free[i].x;
        a.y_stride[i] = s.free[i].y;
    }
    a.free_count = static_cast<int>(s.free.size());
    a.outer_position = s.outer_position;
    a.lanes_log2 = s.lanes_log2;
    a.turn_first = s.turn_first;
    a.along = s.along;
    a.conjugate_x = s.conjugate_x;
    a.conjugate_values = s.conjugate_values;
    argument_block block;
    finish(block, a);
    block.addresses = {{offsetof(arguments, x), l.x},
                       {offsetof(arguments, starts), l.factors[0]},
                       {offsetof(arguments, inner), l.factors[1]},
                       {offsetof(arguments, values), l.factors[2]},
                       {offsetof(arguments, y), l.y}};
    block.alpha_offset = offsetof(arguments, alpha);
    return block;
}

template <class Scalar>
argument_block group_block(const launch& l, Scalar one, Scalar zero) {
    using arguments = group_arguments<Scalar>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    const fused_shape& s = l.fused;
    for (std::size_t i = 0; i < s.factor_p.size(); ++i) {
        a.factor_p_stride[i] = s.factor_p[i];
        a.factor_q_stride[i] = s.factor_q[i];
    }
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.lines = s.place.lines;
    a.parts_per_line = s.place.parts_per_line;
    a.x_line_stride = s.place.x_line;
    a.y_line_stride = s.place.y_line;
    a.inner = s.place.inner;
    a.x_inner = s.place.x_inner;
    a.y_inner = s.place.y_inner;
    a.factors_ready = l.factors_ready;
    for (Scalar& alpha : a.more_alpha) {
        alpha = one;
    }
    if (l.divisor > 1) {
        divide_by(l.divisor, a);
    }
    if (planning::sums_up(s.group.ending)) {
        a.divisor = static_cast<unsigned>(l.dot.blocks);
        a.conjugate_y = l.dot.conjugate_x;
    }
    argument_block block;
    finish(block, a);
    block.addresses.push_back({offsetof(arguments, x), l.x});
    block.addresses.push_back({offsetof(arguments, y), l.y});
    if (s.group.ending != gpu_ending::stored) {
        block.addresses.push_back({offsetof(arguments, sums_or_d), l.sums_or_diagonal});
    }
    for (std::size_t i = 0; i < l.more_scalars.size(); ++i) {
        if (l.more_scalars[i] >= 0) {
            block.more_scalars.push_back({offsetof(arguments, more_alpha) + i * sizeof(Scalar), l.more_scalars[i]});
        }
    }
    if (l.addend.where != memory_reference::place::none) {
        if (l.addend_scalar >= 0) {
            block.more_scalars.push_back({offsetof(arguments, beta), l.addend_scalar});
        }
        block.distances.push_back(
            {offsetof(arguments, c_offset), static_cast<std::int64_t>(sizeof(Scalar)), l.y, l.addend});
    }
    if (l.second.where != memory_reference::place::none) {
        block.distances.push_back({offsetof(arguments, second), static_cast<std::int64_t>(sizeof(Scalar)),
                                   s.group.inputs > 1 ? l.x : l.y, l.second});
    }
    for (std::size_t i = 0; i < l.factors.size(); ++i) {
        block.addresses.push_back({offsetof(arguments, factor) + i * sizeof(void*), l.factors[i]});
    }
    if (s.group.scattered || s.group.arriving) {
        block.rest_offset = sizeof(arguments);
        block.bytes.resize(sizeof(arguments) + (s.group.scattered ? sizeof(scattered_rest) : sizeof(arriving_rest)));
    }
    block.alpha_offset = offsetof(arguments, alpha);
    block.ready_offset = offsetof(arguments, factors_ready);
    static_assert(offsetof(arguments, x_ready) == offsetof(arguments, factors_ready) + 1);
    return block;
}

argument_block sliced_block_of(const launch& l) {
    switch (accumulator_of(l.type)) {
        case dtype::f32: return sliced_block<float>(l, 1, 0);
        case dtype::f64: return sliced_block<double>(l, 1, 0);
        case dtype::c64: return sliced_block<device_complex<float>>(l, {1, 0}, {});
        case dtype::c128: return sliced_block<device_complex<double>>(l, {1, 0}, {});
        default: break;
    }
    throw unsupported_error("otimes: the GPU does not know this scalar type; only the CPU's reference path does.");
}

argument_block group_block_of(const launch& l) {
    switch (accumulator_of(l.type)) {
        case dtype::f32: return group_block<float>(l, 1, 0);
        case dtype::f64: return group_block<double>(l, 1, 0);
        case dtype::c64: return group_block<device_complex<float>>(l, {1, 0}, {});
        default: return group_block<device_complex<double>>(l, {1, 0}, {});
    }
}

argument_block sparse_block_of(const launch& l) {
    switch (l.type) {
        case dtype::f32: return sparse_block<float>(l, 1, 0);
        case dtype::f64: return sparse_block<double>(l, 1, 0);
        case dtype::c64: return sparse_block<device_complex<float>>(l, {1, 0}, {});
        default: return sparse_block<device_complex<double>>(l, {1, 0}, {});
    }
}

argument_block dot_block(const launch& l) {
    dot_arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    a.lines = l.dot.lines;
    a.count = l.dot.count;
    a.x_line_stride = l.dot.x_line;
    a.x_stride = l.dot.x_step;
    a.y_line_stride = l.dot.y_line;
    a.y_stride = l.dot.y_step;
    a.conjugate_x = l.dot.conjugate_x;
    a.conjugate_y = l.dot.conjugate_y;
    a.distance = l.dot.distance;
    argument_block block;
    finish(block, a);
    block.addresses = {{offsetof(dot_arguments, x), l.x},
                       {offsetof(dot_arguments, y), l.factors.front()},
                       {offsetof(dot_arguments, sums), l.y}};
    return block;
}

template <class Accumulator>
argument_block finish_block(const launch& l, Accumulator one, Accumulator zero) {
    using arguments = finish_arguments<Accumulator>;
    arguments a;
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    a.alpha = one;
    a.beta = l.add ? one : zero;
    a.count = l.dot.blocks;
    argument_block block;
    finish(block, a);
    block.addresses = {{offsetof(arguments, sums), l.x}, {offsetof(arguments, result), l.y}};
    block.alpha_offset = offsetof(arguments, alpha);
    return block;
}

argument_block block_of(const launch& l) {
    switch (l.kind) {
        case launch_kind::sliced: return sliced_block_of(l);
        case launch_kind::sparse: return sparse_block_of(l);
        case launch_kind::fused: return group_block_of(l);
        case launch_kind::partial_dots: return dot_block(l);
        case launch_kind::finish_dot: break;
    }
    return is_complex(l.type) ? finish_block<device_complex<double>>(l, {1, 0}, {}) : finish_block<double>(l, 1, 0);
}

}  // namespace

argument_block make_arguments(const launch& l) {
    argument_block block = block_of(l);
    block.accumulator = l.kind == launch_kind::finish_dot ? sum_type_of(l.type) : accumulator_of(l.type);
    block.scalar = l.scalar;
    return block;
}

void write_scalar(std::byte* to, dtype accumulator, std::complex<double> value) {
    switch (accumulator) {
        case dtype::f32: put(to, static_cast<float>(value.real())); break;
        case dtype::f64: put(to, value.real()); break;
        case dtype::c64:
            put(to, device_complex<float>{static_cast<float>(value.real()), static_cast<float>(value.imag())});
            break;
        case dtype::c128: put(to, device_complex<double>{value.real(), value.imag()}); break;
        default: break;
    }
}

void write_scattered(std::byte* to, const scatter_shape& shape, std::span<void* const> receivers,
                     std::int64_t row_elements, const arrival_signal* tell) {
    scattered_rest rest;
    std::memset(static_cast<void*>(&rest), 0, sizeof(rest));
    std::ranges::copy(receivers, rest.receivers);
    std::ranges::transform(shape.first, rest.first, [](std::int64_t index) { return static_cast<unsigned>(index); });
    rest.count = static_cast<unsigned>(receivers.size());
    rest.outer = static_cast<unsigned>(shape.outer);
    rest.between = static_cast<unsigned>(shape.between);
    rest.inner = static_cast<unsigned>(shape.inner);
    rest.below = static_cast<unsigned>(shape.below / row_elements);
    rest.whole = static_cast<unsigned>(shape.whole);
    rest.whole_first = static_cast<unsigned>(shape.whole_first);
    for (std::size_t k = 0; k < receivers.size(); ++k) {
        rest.most = std::max(rest.most, rest.first[k + 1] - rest.first[k]);
    }
    rest.cuts_inner = shape.cuts_inner;
    if (tell != nullptr) {
        std::ranges::copy(tell->words, rest.tell.words);
        rest.tell.blocks_done = tell->blocks_done;
        rest.tell.count = static_cast<unsigned>(tell->words.size());
        rest.tell.value = tell->value;
        rest.tell.tiles_done = tell->tiles_done;
        rest.tell.tiles_dealt = tell->tiles_dealt;
        rest.tell.items = tell->items;
    }
    put(to, rest);
}

void write_arriving(std::byte* to, const awaited_signal& awaited) {
    arriving_rest rest;
    std::memset(static_cast<void*>(&rest), 0, sizeof(rest));
    rest.awaited.words = awaited.words;
    rest.awaited.senders = awaited.senders;
    rest.awaited.value = awaited.value;
    rest.awaited.deadline = static_cast<unsigned long long>(awaited.deadline.count());
    rest.item = awaited.item_elements;
    rest.items = awaited.items;
    put(to, rest);
}

}  // namespace otimes::backend

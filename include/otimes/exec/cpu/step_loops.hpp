// SPDX-License-Identifier: MIT
/// @file step_loops.hpp
/// Steps that are no contractions with a dense factor, by strided loops over runs of memory: scaling by vectors, gathers and
/// scatters, sparse and triangular factors, callbacks. What they do not handle is left to the reference loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <type_traits>
#include <vector>

#include <otimes/exec/cpu/host_machine.hpp>
#include <otimes/exec/cpu/loop_nest.hpp>
#include <otimes/exec/cpu/structured_kernels.hpp>
#include <otimes/exec/cpu/triangular.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/program.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// y (+)= (alpha * x) * f, elementwise; Factor is Scalar or its real type.
template <class Scalar, class Factor>
void scale_elements(const std::vector<loop_index>& nest, std::int64_t threads, Scalar* y, const Scalar* x,
                    const Factor* f, bool add, const Scalar& alpha) {
    share_nest(nest, threads, elements_of_line<Scalar>,
               [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& from, std::size_t) {
                   const loop_index run = share.empty() ? loop_index{} : share.back();
                   for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                       scale_run(y + from[0] + at[0], run.stride[0], x + from[1] + at[1], run.stride[1],
                                 f + from[2] + at[2], run.stride[2], run.extent, add, alpha);
                   });
               });
}

/// The nest of a step on a mode, with the indices of the result's mode in front where that is the outermost one of the result and threads may have ranges
/// of it: each of them writes one stretch of memory then, the same one in every step that writes there, which stays in its caches. Its third
/// stride counts them.
inline bool share_mode(std::vector<loop_index>& nest, std::int64_t threads, std::int64_t extent, std::int64_t stride) {
    const bool shared =
        threads > 1 && extent >= 4 * threads && (nest.empty() || std::abs(stride) > std::abs(nest.front().stride[0]));
    if (shared) {
        nest.insert(nest.begin(), loop_index{extent, {0, 0, 1}});
    }
    return shared;
}

/// A gather or scatter step.
template <class Scalar>
void move_elements(std::vector<loop_index>& nest, std::int64_t threads, const moved_indices& moved, Scalar* y,
                   const Scalar* x, std::int64_t to_stride, std::int64_t from_stride, bool add, const Scalar& alpha) {
    // Two indices of a scatter may go to one place.
    const bool ranges = moved.gather && share_mode(nest, threads, moved.count, to_stride);
    share_nest(nest, threads, elements_of_line<Scalar>,
               [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& start, std::size_t) {
                   moved_indices mine = moved;
                   Scalar* to = y + start[0];
                   if (ranges) {
                       mine = moved.part(start[2], share.front().extent);
                       to += start[2] * to_stride;
                       share = share.subspan(1);
                   }
                   const loop_index run = share.empty() ? loop_index{} : share.back();
                   for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                       move_block(mine, to + at[0], to_stride, run.stride[0], x + start[1] + at[1], from_stride,
                                  run.stride[1], run.extent, add, alpha);
                   });
               });
}

/// A contraction with a sparse factor.
template <class Scalar>
void contract_sparse(std::vector<loop_index>& nest, std::int64_t threads, const sparse_columns<Scalar>& f, Scalar* y,
                     const Scalar* x, const mode& to_mode, const mode& from_mode, bool add) {
    const loop_index run = nest.empty() ? loop_index{} : nest.back();
    const bool by_lanes = f.by_q() && !nest.empty() && run.stride[0] == 1 && run.stride[1] == 1;
    const bool by_fibres = f.by_q() && !by_lanes && to_mode.stride == 1 && from_mode.stride == 1 && run.extent > 1;
    const bool ranges = f.by_q() && !by_fibres && share_mode(nest, threads, to_mode.extent, to_mode.stride);
    const std::int64_t l2_bytes = host_machine().cpu.l2_bytes;
    constexpr auto element_bytes = static_cast<std::int64_t>(sizeof(Scalar));
    // So many lanes that what the elements of one q read stays in cache for the next q.
    constexpr std::int64_t least_lanes = 8 * elements_of_line<Scalar>;
    const std::int64_t reach = by_lanes ? f.reach() : 1;
    const std::int64_t fit = l2_bytes / 2 / element_bytes / reach / least_lanes * least_lanes;
    const std::int64_t most_lanes = std::clamp<std::int64_t>(fit, least_lanes, 1024);
    const sparse_fibre_blocks<Scalar> blocks(from_mode.extent, to_mode.extent, by_fibres ? run.extent : 0,
                                             l2_bytes / 4);
    const std::int64_t scratch_elements = f.by_q() ? blocks.elements : to_mode.extent;
    // Memory of all threads, which may take none themselves; as it was left, for nothing of it is read before it is written.
    struct of_fibres;
    detail::kept_or_own<workspace_pool, of_fibres> kept_scratch;
    auto* const scratch = static_cast<Scalar*>(
        (*kept_scratch).reserve(static_cast<std::size_t>(scratch_elements * threads * element_bytes)));
    share_nest(
        nest, threads, by_fibres ? (std::max)(std::int64_t{1}, blocks.lanes) : elements_of_line<Scalar>,
        [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& start, std::size_t thread) {
            index_range of_q{0, f.q_extent()};
            if (ranges) {
                of_q = {static_cast<std::size_t>(start[2]), static_cast<std::size_t>(start[2] + share.front().extent)};
                share = share.subspan(1);
            }
            const loop_index lanes = share.empty() ? loop_index{} : share.back();
            Scalar* const mine = scratch + thread * static_cast<std::size_t>(scratch_elements);
            for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                Scalar* const to = y + start[0] + at[0];
                const Scalar* const from = x + start[1] + at[1];
                if (by_fibres) {
                    sparse_fibres(f, blocks, from_mode.extent, from, lanes.stride[1], to, lanes.stride[0], lanes.extent,
                                  add, mine);
                    return;
                }
                for (std::int64_t l = 0; by_lanes && l < lanes.extent; l += most_lanes) {
                    sparse_lanes(f, of_q, from + l, from_mode.stride, to + l, to_mode.stride,
                                 (std::min)(most_lanes, lanes.extent - l), add);
                }
                for (std::int64_t i = 0; !by_lanes && i < lanes.extent; ++i) {
                    Scalar* const to_fibre = to + i * lanes.stride[0];
                    const Scalar* const from_fibre = from + i * lanes.stride[1];
                    if (!f.by_q()) {
                        sparse_scatter(f, from_fibre, from_mode.stride, to_fibre, to_mode.stride, add, mine);
                        continue;
                    }
                    const sparse_runs<Scalar> runs = f.runs();
                    for (std::size_t q = of_q.begin; q < of_q.end; ++q) {
                        const Scalar sum = sparse_sum(runs, runs[q], from_fibre, from_mode.stride);
                        Scalar& place = to_fibre[static_cast<std::int64_t>(q) * to_mode.stride];
                        place = add ? place + sum : sum;
                    }
                }
            });
        });
}

/// A callback step whose function takes columns of Value: `parts` of them for a fibre. pack(element, part) is what goes in, unpack(element,
/// distance of the parts) what comes out.
template <class Value, class Scalar, class Pack, class Unpack>
void run_callback(const reference_loops::view& factor, const std::vector<loop_index>& nest, Scalar* y, const Scalar* x,
                  const mode& to_mode, const mode& from_mode, bool add, const Scalar& alpha, int parts,
                  const Pack& pack, const Unpack& unpack) {
    const auto& operand = *static_cast<const callback_operand*>(factor.data);
    const bool transposed = factor.modes[factor.modes.size() - 2].stride != 0;
    const loop_index run = nest.empty() ? loop_index{} : nest.back();
    // As many fibres at a time as fill an L1 cache, or as the factor asks for, at most 64.
    const std::int64_t longest = (std::max)({from_mode.extent, to_mode.extent, std::int64_t{1}});
    const std::int64_t most_fibres = (std::max)(
        std::int64_t{1},
        (std::min)({std::int64_t{64}, run.extent, (std::max)(operand.together, std::int64_t{4096} / longest)}));
    struct inputs;
    struct images;
    kept_vector<Value, inputs> packed;
    kept_vector<Value, images> image;
    packed->assign(static_cast<std::size_t>(from_mode.extent * most_fibres * parts), Value(0));
    image->assign(static_cast<std::size_t>(to_mode.extent * most_fibres * parts), Value(0));
    for_each_run(nest, [&](const std::array<std::int64_t, 3>& at) {
        for (std::int64_t begin = 0; begin < run.extent; begin += most_fibres) {
            const std::int64_t fibres = (std::min)(most_fibres, run.extent - begin);
            Value* to_pack = packed->data();
            for (int part = 0; part < parts; ++part) {
                for (std::int64_t i = 0; i < fibres; ++i) {
                    const Scalar* const from = x + at[1] + (begin + i) * run.stride[1];
                    for (std::int64_t k = 0; k < from_mode.extent; ++k) {
                        *to_pack++ = pack(from[k * from_mode.stride], part);
                    }
                }
            }
            operand.apply(operand.object, transposed, packed->data(), image->data(), fibres * parts);
            const Value* from_image = image->data();
            for (std::int64_t i = 0; i < fibres; ++i) {
                Scalar* const to = y + at[0] + (begin + i) * run.stride[0];
                for (std::int64_t k = 0; k < to_mode.extent; ++k) {
                    const Scalar value = alpha * unpack(from_image++, fibres * to_mode.extent);
                    Scalar& place = to[k * to_mode.stride];
                    place = add ? place + value : value;
                }
            }
        }
    });
}

/// Evaluates one step. False when it is none of those that these loops know; then nothing has been written.
/// @param threads that share it, where the step is no function of the user's
template <class Scalar>
bool run_step_loops(const program& source, const step& s, const reference_loops::view& in,
                    const reference_loops::view& factor, const reference_loops::view& out, const Scalar* alpha_or_null,
                    std::int64_t threads) {
    const Scalar alpha = alpha_or_null == nullptr ? Scalar(1) : *alpha_or_null;
    using real = decltype(std::real(Scalar()));
    constexpr dtype type = dtype_of<Scalar>();
    if (in.type != type || out.type != type || in.conjugate || out.conjugate || s.factor < 0 || in.data == nullptr) {
        return false;
    }
    auto* const y = static_cast<Scalar*>(out.data);
    const auto* const x = static_cast<const Scalar*>(in.data);
    const auto on = static_cast<std::size_t>(s.mode < 0 ? 0 : s.mode);
    const factor_kind kind = source.at(s.factor).kind;
    const reference_loops::view none;
    kept_vector<loop_index, program> kept_nest;
    std::vector<loop_index>& nest = *kept_nest;

    if (s.kind == step_kind::scale && s.variant == step_variant::none && !factor.conjugate) {
        loop_nest(out, in, factor, -1, nest);
        if (factor.type == type) {
            scale_elements(nest, threads, y, x, static_cast<const Scalar*>(factor.data), s.add, alpha);
            return true;
        }
        if (factor.type == dtype_of<real>()) {
            scale_elements(nest, threads, y, x, static_cast<const real*>(factor.data), s.add, alpha);
            return true;
        }
        return false;
    }
    if (s.kind == step_kind::contract && kind == factor_kind::triangular) {
        return run_triangular<Scalar>(s, in, factor, out, alpha, threads);
    }
    const bool moves = s.kind == step_kind::gather || s.kind == step_kind::scatter;
    const bool sparse = s.kind == step_kind::contract && kind == factor_kind::sparse;
    const bool callback = s.kind == step_kind::callback && (factor.type == type || factor.type == dtype_of<real>());
    if (!moves && !sparse && !callback) {
        return false;
    }
    loop_nest(out, in, none, static_cast<std::int32_t>(on), nest);
    const mode& to_mode = out.modes[on];
    const mode& from_mode = in.modes[on];
    if (moves) {
        const std::uint16_t bytes = source.at(s.factor).scalar_bytes;
        const bool gather = s.kind == step_kind::gather;
        const std::int64_t count = gather ? to_mode.extent : from_mode.extent;
        moved_indices moved{nullptr, nullptr, count, gather};
        kept_vector<std::int64_t, step> kept_index;
        if (factor.modes[0].stride != 1 && count > 1) {
            std::vector<std::int64_t>& index = *kept_index;
            index.resize(static_cast<std::size_t>(count));
            for (std::size_t j = 0; j < index.size(); ++j) {
                index[j] = reference_loops::index_at(factor, bytes, static_cast<std::int64_t>(j));
            }
            moved.wide = index.data();
        } else if (bytes == 4) {
            moved.narrow = static_cast<const std::int32_t*>(factor.data);
        } else {
            moved.wide = static_cast<const std::int64_t*>(factor.data);
        }
        move_elements(nest, threads, moved, y, x, to_mode.stride, from_mode.stride, s.add, alpha);
        return true;
    }
    if (sparse) {
        // Keeps its memory; nothing below evaluates another step.
        detail::kept_or_own<sparse_columns<Scalar>, sparse_columns<Scalar>> kept_elements;
        std::int64_t fibres = 1;
        for (const loop_index& l : nest) {
            fibres *= l.extent;
        }
        if (!(*kept_elements).assign(factor, from_mode.extent, to_mode.extent, alpha, fibres)) {
            return false;
        }
        contract_sparse(nest, threads, *kept_elements, y, x, to_mode, from_mode, s.add);
        return true;
    }
    if (factor.type == type) {
        const auto as_stored = [conjugate = factor.conjugate](const Scalar& value) {
            return conjugate ? reference_loops::conjugated(value) : value;
        };
        run_callback<Scalar>(
            factor, nest, y, x, to_mode, from_mode, s.add, alpha, 1,
            [&](const Scalar& value, int) { return as_stored(value); },
            [&](const Scalar* value, std::int64_t) { return as_stored(*value); });
    } else if constexpr (!std::is_same_v<real, Scalar>) {  // a real function: real and imaginary parts as columns
        run_callback<real>(
            factor, nest, y, x, to_mode, from_mode, s.add, alpha, 2,
            [](const Scalar& value, int part) { return part == 0 ? value.real() : value.imag(); },
            [](const real* value, std::int64_t apart) { return Scalar(*value, value[apart]); });
    }
    return true;
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file step_loops.hpp
/// Steps that are no contractions with a dense factor, by strided loops over runs of memory: scaling by vectors, gathers and
/// scatters, sparse and triangular factors, callbacks. What they do not handle is left to the reference loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <otimes/exec/cpu/loop_nest.hpp>
#include <otimes/exec/cpu/triangular.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/program.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// y (+)= alpha * x * f, elementwise; Factor is Scalar or its real type.
template <class Scalar, class Factor>
void scale_elements(const std::vector<loop_index>& nest, Scalar* y, const Scalar* x, const Factor* f, bool add,
                    const Scalar& alpha) {
    const loop_index run = nest.empty() ? loop_index{} : nest.back();
    for_each_run(nest, [&](const std::array<std::int64_t, 3>& at) {
        Scalar* const to = y + at[0];
        const Scalar* const from = x + at[1];
        const Factor* const by = f + at[2];
        const auto loop = [&](auto sy, auto sx, auto sf) {
            if (add) {
                for (std::int64_t i = 0; i < run.extent; ++i) {
                    to[i * sy] += alpha * from[i * sx] * by[i * sf];
                }
            } else {
                for (std::int64_t i = 0; i < run.extent; ++i) {
                    to[i * sy] = alpha * from[i * sx] * by[i * sf];
                }
            }
        };
        using one = std::integral_constant<std::int64_t, 1>;
        using zero = std::integral_constant<std::int64_t, 0>;
        if (run.stride[0] == 1 && run.stride[1] == 1 && run.stride[2] == 1) {
            loop(one(), one(), one());
        } else if (run.stride[0] == 1 && run.stride[1] == 1 && run.stride[2] == 0) {
            loop(one(), one(), zero());
        } else {
            loop(run.stride[0], run.stride[1], run.stride[2]);
        }
    });
}

/// to[i * to_stride] (+)= alpha * from[i * from_stride]
template <class Scalar>
void move_run(Scalar* to, std::int64_t to_stride, const Scalar* from, std::int64_t from_stride, std::int64_t count,
              bool add, const Scalar& alpha) {
    if (to_stride == 1 && from_stride == 1) {
        if (add) {
            for (std::int64_t i = 0; i < count; ++i) {
                to[i] += alpha * from[i];
            }
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                to[i] = alpha * from[i];
            }
        }
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        to[i * to_stride] = add ? to[i * to_stride] + alpha * from[i * from_stride] : alpha * from[i * from_stride];
    }
}

/// The stored elements of a sparse factor as (p, q, value), in the order in which they are stored.
template <class Scalar>
struct sparse_triplet {
    std::int64_t p;
    std::int64_t q;
    Scalar value;
};

template <class Scalar>
void triplets_of(const reference_loops::view& factor, std::vector<sparse_triplet<Scalar>>& result) {
    const sparse_elements s = static_cast<const sparse_operand*>(factor.data)->elements();
    const bool p_is_row = factor.modes[factor.modes.size() - 2].stride != 0;
    reference_loops::view values = factor;
    values.data = const_cast<void*>(s.values);
    result.clear();
    result.reserve(static_cast<std::size_t>(s.stored()));
    for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
        for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
            const std::int64_t inner = s.index(s.inner, k);
            const bool inner_is_p = p_is_row == s.by_columns;
            result.push_back(
                {inner_is_p ? inner : outer, inner_is_p ? outer : inner, reference_loops::read<Scalar>(values, k)});
        }
    }
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
template <class Scalar>
bool run_step_loops(const program& source, const step& s, const reference_loops::view& in,
                    const reference_loops::view& factor, const reference_loops::view& out,
                    const Scalar* alpha_or_null) {
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
            scale_elements(nest, y, x, static_cast<const Scalar*>(factor.data), s.add, alpha);
            return true;
        }
        if (factor.type == dtype_of<real>()) {
            scale_elements(nest, y, x, static_cast<const real*>(factor.data), s.add, alpha);
            return true;
        }
        return false;
    }
    const bool moves = s.kind == step_kind::gather || s.kind == step_kind::scatter;
    const bool sparse = s.kind == step_kind::contract && kind == factor_kind::sparse;
    if (s.kind == step_kind::contract && kind == factor_kind::triangular) {
        return run_triangular<Scalar>(s, in, factor, out, alpha);
    }
    const bool callback = s.kind == step_kind::callback && (factor.type == type || factor.type == dtype_of<real>());
    if (!moves && !sparse && !callback) {
        return false;
    }
    loop_nest(out, in, none, static_cast<std::int32_t>(on), nest);
    const loop_index run = nest.empty() ? loop_index{} : nest.back();
    const mode& to_mode = out.modes[on];
    const mode& from_mode = in.modes[on];
    // With the mode itself innermost a fibre is a run of memory; otherwise the last loop of the nest is.
    const bool by_fibres = std::abs(to_mode.stride) < std::abs(run.stride[0]) || nest.empty();

    if (moves) {
        const std::uint16_t bytes = source.at(s.factor).scalar_bytes;
        const bool gather = s.kind == step_kind::gather;
        const std::int64_t count = gather ? to_mode.extent : from_mode.extent;
        kept_vector<std::int64_t, step> kept_index;
        std::vector<std::int64_t>& index = *kept_index;
        index.resize(static_cast<std::size_t>(count));
        for (std::int64_t j = 0; j < count; ++j) {
            index[static_cast<std::size_t>(j)] = reference_loops::index_at(factor, bytes, j);
        }
        for_each_run(nest, [&](const std::array<std::int64_t, 3>& at) {
            if (by_fibres) {
                for (std::int64_t i = 0; i < run.extent; ++i) {
                    Scalar* const to = y + at[0] + i * run.stride[0];
                    const Scalar* const from = x + at[1] + i * run.stride[1];
                    for (std::int64_t j = 0; j < count; ++j) {
                        const std::int64_t other = index[static_cast<std::size_t>(j)];
                        Scalar& place = to[(gather ? j : other) * to_mode.stride];
                        const Scalar value = alpha * from[(gather ? other : j) * from_mode.stride];
                        place = s.add ? place + value : value;
                    }
                }
                return;
            }
            for (std::int64_t j = 0; j < count; ++j) {
                const std::int64_t other = index[static_cast<std::size_t>(j)];
                move_run(y + at[0] + (gather ? j : other) * to_mode.stride, run.stride[0],
                         x + at[1] + (gather ? other : j) * from_mode.stride, run.stride[1], run.extent, s.add, alpha);
            }
        });
        return true;
    }
    if (sparse) {
        kept_vector<sparse_triplet<Scalar>, step> kept_elements;
        std::vector<sparse_triplet<Scalar>>& elements = *kept_elements;
        triplets_of<Scalar>(factor, elements);
        for (sparse_triplet<Scalar>& e : elements) {
            e.value = alpha * e.value;
        }
        constexpr std::int64_t most_lanes =
            1024;  // of x and y at a time, so that both stay in L1 while the elements pass
        for_each_run(nest, [&](const std::array<std::int64_t, 3>& at) {
            for (std::int64_t begin = 0; begin < run.extent; begin += by_fibres ? 1 : most_lanes) {
                const std::int64_t lanes = by_fibres ? 1 : (std::min)(most_lanes, run.extent - begin);
                Scalar* const to = y + at[0] + begin * run.stride[0];
                const Scalar* const from = x + at[1] + begin * run.stride[1];
                if (!s.add) {
                    for (std::int64_t q = 0; q < to_mode.extent; ++q) {
                        for (std::int64_t i = 0; i < lanes; ++i) {
                            to[q * to_mode.stride + i * run.stride[0]] = Scalar(0);
                        }
                    }
                }
                for (const sparse_triplet<Scalar>& e : elements) {
                    move_run(to + e.q * to_mode.stride, run.stride[0], from + e.p * from_mode.stride, run.stride[1],
                             lanes, true, e.value);
                }
            }
        });
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

// SPDX-License-Identifier: MIT
/// @file chain.hpp
/// Chains: the runs of contract steps in a program that a fused pass can evaluate. X -> T1 -> ... -> Y, each step on another
/// mode, all factors dense and shared, one scalar type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <otimes/plan/ordering.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// One mode of a chain: extent P before and Q after the whole chain (equal when free).
struct chain_mode {
    std::int32_t name = 0;     ///< mode number in the program's tensors
    std::int32_t factor = -1;  ///< tensor number of its factor; -1: free
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    std::int64_t stride_in = 0;       ///< in the chain's input, elements
    std::int64_t stride_out = 0;      ///< in the chain's output, elements
    bool rows_contiguous = false;     ///< the entries of each row of its factor lie side by side, as they are
    bool columns_contiguous = false;  ///< likewise those of each column
    [[nodiscard]] bool contracted() const noexcept { return factor >= 0; }
};

/// A chain, its modes outermost first in the memory order of its input. Free modes of extent 1 are left out, and so are
/// modes with a 1 x 1 factor: those only scale, whichever sweep they are folded into.
struct chain {
    std::int32_t first_step = 0;
    std::int32_t step_count = 0;
    std::int32_t in = -1;
    std::int32_t out = -1;
    bool add = false;
    bool in_place = false;  ///< `in` and `out` are the same memory, and all factors are square
    std::int32_t scalar = -1;
    dtype type = dtype::f64;
    std::vector<chain_mode> modes;
    std::vector<std::int32_t> unit_factors;  ///< tensor numbers of the 1 x 1 factors
    bool fills_output = false;  ///< the output is an operand with the extents of the input, and is overwritten
};

/// Neighbouring contracted modes [first, first + count) of a chain that are swept as one P x Q factor.
struct factor_group {
    std::int32_t first = 0;
    std::int32_t count = 1;
    std::int64_t p_extent = 1;
    std::int64_t q_extent = 1;
    friend bool operator==(const factor_group&, const factor_group&) = default;
};

/// True for the types that the CPU's tile kernels know.
constexpr bool has_tile_kernels(dtype type) noexcept {
    return type == dtype::f32 || type == dtype::f64 || type == dtype::c64 || type == dtype::c128;
}

/// The type in which the CPU's kernels run a program: its only one, and complex where tensors are complex.
inline dtype type_of_kernels(const program& source) noexcept {
    dtype type = dtype::other;
    for (const tensor& t : source.tensors) {
        type = type == dtype::other || is_complex(t.type) ? t.type : type;
    }
    return type;
}

/// True when a chain may contain this step: a contraction with a dense (or identity) factor that all items share, or a
/// plain copy; operands of one type, to which a real factor of a complex chain is widened when it is packed; extents that are not 0 (those
/// are the reference loops' business).
OTIMES_COLD inline bool fits_a_chain(const program& source, const step& s) {
    if (s.kind != step_kind::contract && s.kind != step_kind::accumulate) {
        return false;
    }
    const tensor& in = source.at(s.in);
    const tensor& out = source.at(s.out);
    if (in.type == dtype::other || in.type != out.type || in.mode_count != out.mode_count || in.conjugate ||
        out.conjugate || in.role == tensor_role::factor) {
        return false;
    }
    for (std::int32_t k = 0; k < in.mode_count; ++k) {
        if (source.modes_of(in)[static_cast<std::size_t>(k)].extent <= 0 ||
            source.modes_of(out)[static_cast<std::size_t>(k)].extent <= 0) {
            return false;
        }
    }
    if (s.kind == step_kind::accumulate) {
        return s.factor < 0;
    }
    const tensor& factor = source.at(s.factor);
    const bool dense = factor.kind == factor_kind::dense || factor.kind == factor_kind::self_adjoint;
    return factor.kind == factor_kind::identity ||
           (dense && factor.mode_count == 2 && (factor.type == in.type || factor.type == real_type_of(in.type)) &&
            factor.binding >= 0);
}

/// True when every output of a program has an extent of 0.
OTIMES_ON_DEMAND inline bool has_empty_output(const program& source) {
    bool any = false;
    for (const tensor& t : source.tensors) {
        if (t.role == tensor_role::output) {
            any = true;
            if (!std::ranges::any_of(source.modes_of(t), [](const mode& m) { return m.extent == 0; })) {
                return false;
            }
        }
    }
    return any;
}

/// How often each tensor is read by the steps; a temporary that is read once can stay inside a pass.
OTIMES_COLD inline std::vector<std::int32_t> read_counts(const program& source) {
    std::vector<std::int32_t> counts;
    counts.resize(source.tensors.size());
    for (const step& s : source.steps) {
        for (const std::int32_t id : {s.in, s.factor}) {
            if (id >= 0) {
                ++counts[static_cast<std::size_t>(id)];
            }
        }
        if (s.add && s.out >= 0) {
            ++counts[static_cast<std::size_t>(s.out)];
        }
    }
    return counts;
}

/// Orders the modes of a chain outermost first: by decreasing |stride| in the input, for modes of extent 1 there by their
/// stride in the output; ties in the order of their names.
/// @param cut_to_one name of the mode of which a slab has one index, -1: none. In a temporary it has the stride of the mode around it, which
/// stays around it
OTIMES_COLD inline void sort_by_memory(std::vector<chain_mode>& modes, std::int32_t cut_to_one = -1) {
    sort_few(modes.data(), modes.data() + modes.size(),
             [](const chain_mode& a, const chain_mode& b) { return std::abs(a.stride_in) > std::abs(b.stride_in); });
    bool is_inside = false;
    chain_mode* const sorted = modes.data();
    for (std::size_t at = 1; at < modes.size(); ++at) {
        const chain_mode one = sorted[at - 1];
        const chain_mode next = sorted[at];
        if (one.name == cut_to_one && std::abs(one.stride_in) == std::abs(next.stride_in) &&
            (is_inside || next.p_extent > 1)) {
            is_inside = true;
            sorted[at - 1] = next;
            sorted[at] = one;
        }
    }
}

/// The longest chain that starts at step `first`; step_count == 0 when that step is none. `reads` from read_counts.
/// Strides of temporaries at the ends are left as the program has them (0); the planner lays them out.
OTIMES_COLD inline chain chain_at(const program& source, std::int32_t first, std::span<const std::int32_t> reads) {
    chain found;
    found.first_step = first;
    const auto total = static_cast<std::int32_t>(source.steps.size());
    std::vector<std::int32_t> factor_of_mode;
    for (std::int32_t i = first; i < total; ++i) {
        const step& s = source.steps[static_cast<std::size_t>(i)];
        if (!fits_a_chain(source, s)) {
            break;
        }
        if (found.step_count == 0) {
            found.in = s.in;
            found.type = source.at(s.in).type;
            factor_of_mode.assign(static_cast<std::size_t>(source.at(s.in).mode_count), -1);
        } else {
            const tensor& link = source.at(found.out);
            if (s.in != found.out || link.role != tensor_role::temporary || link.binding >= 0 || found.add ||
                reads[static_cast<std::size_t>(found.out)] != 1 || (s.scalar >= 0 && found.scalar >= 0)) {
                break;
            }
        }
        if (s.kind == step_kind::contract && source.at(s.factor).kind != factor_kind::identity) {
            std::int32_t& slot = factor_of_mode[static_cast<std::size_t>(s.mode)];
            if (slot >= 0) {
                break;  // a second factor on the same mode: the next chain
            }
            slot = s.factor;
        }
        found.out = s.out;
        found.add = s.add;
        found.scalar = s.scalar >= 0 ? s.scalar : found.scalar;
        ++found.step_count;
    }
    if (found.step_count == 0) {
        return found;
    }
    const std::span<const mode> in = source.modes_of(found.in);
    const std::span<const mode> out = source.modes_of(found.out);
    found.in_place = source.at(found.in).binding >= 0 && source.at(found.in).binding == source.at(found.out).binding;
    for (std::size_t k = 0; k < in.size(); ++k) {
        const std::int32_t factor = factor_of_mode[k];
        if (in[k].extent == 1 && out[k].extent == 1) {
            if (factor >= 0) {
                found.unit_factors.push_back(factor);
            }
            continue;
        }
        bool rows_contiguous = false;
        bool columns_contiguous = false;
        if (factor >= 0 && source.modes_of(factor).size() == 2) {
            const tensor& t = source.at(factor);
            const std::span<const mode> of_factor = source.modes_of(t);
            const bool as_it_is = !t.conjugate && t.type == found.type;
            rows_contiguous = as_it_is && of_factor[1].stride == 1 && of_factor[0].stride != 0;
            columns_contiguous = as_it_is && of_factor[0].stride == 1 && of_factor[1].stride > 1;
        }
        found.modes.push_back({static_cast<std::int32_t>(k), factor, in[k].extent, out[k].extent, in[k].stride,
                               out[k].stride, rows_contiguous, columns_contiguous});
    }
    return found;
}

/// True when modes [first, first + count) are nested without gaps on both sides, so that they can be read and written as
/// one mode. `*_stride` receive the stride of that mode.
OTIMES_COLD inline bool nested(std::span<const chain_mode> modes, std::int64_t& in_stride, std::int64_t& out_stride) {
    const auto fold = [modes](std::int64_t chain_mode::*extent, std::int64_t chain_mode::*stride,
                              std::int64_t& result) {
        std::int64_t count = 1;
        result = modes.back().*stride;
        for (std::size_t k = modes.size(); k-- > 0;) {
            const chain_mode& m = modes[k];
            if (m.*extent == 1) {
                continue;
            }
            if (count == 1) {
                result = m.*stride;
            } else if (m.*stride != result * count) {
                return false;
            }
            count *= m.*extent;
        }
        return true;
    };
    return fold(&chain_mode::p_extent, &chain_mode::stride_in, in_stride) &&
           fold(&chain_mode::q_extent, &chain_mode::stride_out, out_stride);
}

}  // namespace otimes::planning

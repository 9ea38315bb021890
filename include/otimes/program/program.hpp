// SPDX-License-Identifier: MIT
/// @file program.hpp
/// The program: what an expression asks for, as a plain value. A short list of steps over numbered tensors; the steps
/// are a small closed set. No pointer, no template parameter, no device handle. An expression node writes one
/// (expr/, adapt/), the planner reads it (plan/).
///
/// A tensor is a list of modes, each an extent and a stride in elements. Operands state their strides; temporaries leave
/// them 0, since their layout is the planner's to choose. The order of the modes carries meaning only as a name ("mode
/// 2"): memory order follows from the strides.
///
/// `X * kron(F1..FN)` becomes, with X seen as a tensor [M, P1..PN], N contract steps on modes 1..N:
///
///     Y[f, q] (+)= alpha * sum_p X[f, p] * F[f, p, q]        f: all other modes
///
/// Such steps commute, so the planner may reorder, group and fuse them; each replaces its mode in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <otimes/program/dtype.hpp>
#include <otimes/program/rewriting.hpp>

namespace otimes {

/// One index of a tensor. `stride` is in elements; 0 in a temporary (not laid out yet) or where all indices share one
/// element (broadcast).
struct mode {
    std::int64_t extent = 1;
    std::int64_t stride = 0;
    friend bool operator==(const mode&, const mode&) = default;
};

/// What part a tensor plays.
enum class tensor_role : std::uint8_t { input, factor, output, temporary };

/// How the elements of a factor are held. `dense` is P x Q by strides; `identity` has no storage; `sparse` and `callback`
/// bind a description (structured.hpp); `diagonal` and `permutation` are the vectors of scale, gather and scatter steps.
/// `triangular` is P x Q by strides, of which only the triangle is read that the step's variant names. `self_adjoint` is dense
/// by strides for who runs it; its owner holds one triangle, which lowering has unfolded. The other kinds are lowered to these
/// by the nodes of the algebra.
enum class factor_kind : std::uint8_t {
    dense,
    identity,
    diagonal,
    permutation,
    triangular,
    sparse,
    low_rank,
    toeplitz,
    circulant,
    callback,
    self_adjoint
};

/// Description of one operand or temporary. The modes are `program::modes[first_mode, first_mode + mode_count)`.
/// A factor's last two modes are (p, q), always of extents P and Q. A per-item factor has the free modes of the step before
/// them: all modes of the step's input but the contracted one, in their order, stride 0 where items share it. A diagonal
/// factor holds F[p, p] at p * (stride of p + stride of q). An index operand of gather and scatter has one mode and elements
/// of `dtype::other`, signed integers of 4 or 8 `scalar_bytes`.
struct tensor {
    dtype type = dtype::f64;
    memory_space space = memory_space::host;
    tensor_role role = tensor_role::temporary;
    factor_kind kind = factor_kind::dense;
    bool conjugate = false;           ///< read as its complex conjugate
    std::uint8_t alignment_log2 = 0;  ///< the address is a multiple of 2^alignment_log2 bytes, at most 2^6
    std::uint16_t scalar_bytes = 8;   ///< bytes of one element
    std::int32_t first_mode = 0;
    std::int32_t mode_count = 0;
    std::int32_t binding = -1;  ///< position of its pointer in `bindings::pointers`; -1: a temporary
    std::int32_t reserved = 0;
    std::int64_t stored = 0;  ///< sparse, triangular, self-adjoint: stored elements; callback: multiply-adds of one
                              ///< application
    friend bool operator==(const tensor&, const tensor&) = default;
};

/// The closed set of steps.
enum class step_kind : std::uint8_t {
    contract,  ///< out[f, q] (+)= alpha * sum_p in[f, p] * factor[f, p, q] on `mode`
    scale,     ///< out (+)= alpha * in * factor, where the factor has the modes of `in`, stride 0 where it is constant
    gather,    ///< out[f, j] (+)= alpha * in[f, index[j]] along `mode`
    scatter,   ///< out[f, index[i]] (+)= alpha * in[f, i] along `mode`
    solve,     ///< out[f, q] (+)= x[f, q] with sum_p x[f, p] * factor[p, q] = alpha * in[f, q], factor triangular
    accumulate,  ///< out (+)= alpha * in, shapes equal; also converts real to complex
    reduce,      ///< dot, squared norm or Gram of a mode
    callback     ///< a factor that only its owner can apply
};

/// Which flavour of a step; the meaning depends on the kind.
enum class step_variant : std::uint8_t {
    none,
    reciprocal,  ///< scale: out (+)= in / (v_0[i_0] + v_1[i_1] + ... + shift): `factor` has the modes of `in`; the vectors of
                 ///< the modes whose stride is not 0 lie one after another; `scalar` is the shift
    lower,            ///< solve, contract: F[p, q] = 0 for p < q
    upper,            ///< solve, contract: F[p, q] = 0 for p > q
    dot,              ///< reduce: sum_f conj(in[f]) * factor[f]
    squared_norm,     ///< reduce: sum_f |in[f]|^2
    gram,             ///< reduce: out[p, q] = sum_f conj(in[f, p]) * factor[f, q] on `mode`
    unit_lower,       ///< contract: lower, and F[p, p] = 1 without being read
    unit_upper,       ///< contract: upper, and F[p, p] = 1 without being read
    squared_distance  ///< reduce: sum_f |in[f] - factor[f]|^2
};

/// One step. Tensor numbers index `program::tensors`; `scalar` indexes `bindings::scalars`, -1 means 1.
struct step {
    step_kind kind = step_kind::contract;
    step_variant variant = step_variant::none;
    bool add = false;  ///< add to `out` instead of overwriting it; when false, `out` is never read
    std::uint8_t reserved = 0;
    std::int32_t in = -1;
    std::int32_t factor = -1;
    std::int32_t out = -1;
    std::int32_t mode = -1;    ///< the mode of `in` and of `out` that the step works on
    std::int32_t scalar = -1;  ///< alpha
    friend bool operator==(const step&, const step&) = default;
};

/// Steps over numbered tensors. Compares with ==; two expressions with equal programs can share a plan. Extents,
/// strides, scalar types, alignment classes and memory spaces are part of it; addresses and the values of scalars
/// are not.
struct program {
    std::vector<tensor> tensors;
    std::vector<mode> modes;
    std::vector<step> steps;
    std::int32_t scalar_count = 0;
    rewrites rewritten;      ///< how it came about; not compared, not hashed, not written by to_text
    lowering_notes noted{};  ///< likewise

    friend bool operator==(const program& a, const program& b) {
        // Every run of a plan asks this: what has no padding compares as bytes.
        const auto same = []<class Part>(const std::vector<Part>& x, const std::vector<Part>& y) {
            static_assert(std::has_unique_object_representations_v<Part>);
            return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(Part)) == 0);
        };
        return a.scalar_count == b.scalar_count && same(a.tensors, b.tensors) && same(a.modes, b.modes) &&
               same(a.steps, b.steps);
    }

    /// The modes of a tensor, in the order of their names.
    [[nodiscard]] std::span<const mode> modes_of(std::int32_t id) const {
        const tensor& t = tensors[static_cast<std::size_t>(id)];
        return {modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
    }
    [[nodiscard]] std::span<const mode> modes_of(const tensor& t) const {
        return {modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
    }
    [[nodiscard]] const tensor& at(std::int32_t id) const { return tensors[static_cast<std::size_t>(id)]; }

    /// Forgets everything and keeps the memory, so that lowering into the same object again allocates nothing.
    void clear() noexcept {
        tensors.clear();
        modes.clear();
        steps.clear();
        scalar_count = 0;
        rewritten = {};
        noted = {};
    }

    /// Appends a tensor whose modes are appended next by `add_mode`. Returns its number.
    std::int32_t add_tensor(tensor t) {
        t.first_mode = static_cast<std::int32_t>(modes.size());
        t.mode_count = 0;
        tensors.push_back(t);
        return static_cast<std::int32_t>(tensors.size()) - 1;
    }
    /// Appends a mode to the tensor that was added last.
    void add_mode(std::int64_t extent, std::int64_t stride) {
        modes.push_back({extent, stride});
        ++tensors.back().mode_count;
    }
};

/// Elements of a tensor (the product of its extents, which the lowering has checked for overflow).
inline std::int64_t element_count(const program& p, std::int32_t id) {
    std::int64_t count = 1;
    for (const mode& m : p.modes_of(id)) {
        count *= m.extent;
    }
    return count;
}

/// True for a program whose result overwrites its first operand: `X = X * K` in the memory of X.
inline bool overwrites_input(const program& p) noexcept {
    return !p.tensors.empty() && p.tensors.back().role == tensor_role::output &&
           p.tensors.front().role == tensor_role::input && p.tensors.back().binding == p.tensors.front().binding;
}

/// A 64-bit hash of a program for the plan cache; equal programs hash equal, in every process of one byte order.
inline std::uint64_t hash_value(const program& p) noexcept {
    std::uint64_t h = 0x9e3779b97f4a7c15ull;
    const auto mix = [&h](std::uint64_t word) {
        h = (h ^ word) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    };
    for (const tensor& t : p.tensors) {
        mix(static_cast<std::uint64_t>(t.type) | static_cast<std::uint64_t>(t.space) << 8 |
            static_cast<std::uint64_t>(t.role) << 16 | static_cast<std::uint64_t>(t.kind) << 24 |
            static_cast<std::uint64_t>(t.conjugate) << 32 | static_cast<std::uint64_t>(t.alignment_log2) << 40 |
            static_cast<std::uint64_t>(t.scalar_bytes) << 48);
        mix(static_cast<std::uint64_t>(static_cast<std::uint32_t>(t.binding)) << 32 |
            static_cast<std::uint32_t>(t.mode_count));
        if (t.stored != 0) {
            mix(static_cast<std::uint64_t>(t.stored));
        }
    }
    for (const mode& m : p.modes) {
        mix(static_cast<std::uint64_t>(m.extent) * 0x2545f4914f6cdd1dull + static_cast<std::uint64_t>(m.stride));
    }
    for (const step& s : p.steps) {
        mix(static_cast<std::uint64_t>(s.kind) | static_cast<std::uint64_t>(s.variant) << 8 |
            static_cast<std::uint64_t>(s.add) << 16 |
            static_cast<std::uint64_t>(static_cast<std::uint32_t>(s.mode)) << 32);
        mix(static_cast<std::uint64_t>(static_cast<std::uint32_t>(s.in)) << 32 | static_cast<std::uint32_t>(s.out));
        mix(static_cast<std::uint64_t>(static_cast<std::uint32_t>(s.factor)) << 32 |
            static_cast<std::uint32_t>(s.scalar));
    }
    mix(static_cast<std::uint64_t>(p.scalar_count));
    return h;
}

}  // namespace otimes

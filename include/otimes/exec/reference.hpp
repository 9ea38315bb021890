// SPDX-License-Identifier: MIT
/// @file reference.hpp
/// The reference executor: every step of a program by plain loops in the order of the program, for any scalar. Slow and
/// obvious; the oracle of every other executor, and the only one for scalars that no kernel knows. No tiling, no reordering,
/// no grouping. Cost: steps x elements x P multiply-adds, one heap allocation per temporary.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <otimes/exec/executor.hpp>
#include <otimes/exec/structured_hook.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace reference_loops {

using view = step_operand;

using index = std::vector<std::int64_t>;

template <class Scalar>
struct real_part_of {
    using type = void;  // not a complex type
};
template <class Real>
struct real_part_of<std::complex<Real>> {
    using type = Real;
};

/// The complex conjugate; a scalar without one is its own.
template <class Scalar>
Scalar conjugated(const Scalar& value) {
    if constexpr (!std::is_arithmetic_v<Scalar> && requires { Scalar(conj(value)); }) {
        return Scalar(conj(value));
    } else {
        return value;
    }
}

/// True when the elements are of the real type that belongs to a complex Scalar. Where neither has a dtype, their size
/// tells.
template <class Scalar>
bool holds_reals(const view& v) {
    using real = typename real_part_of<Scalar>::type;
    if constexpr (std::is_void_v<real>) {
        return false;
    } else if constexpr (dtype_of<Scalar>() == dtype::other) {
        return v.type == dtype::other && v.scalar_bytes == sizeof(real);
    } else {
        return v.type == dtype_of<real>();
    }
}

/// a / b; only some steps need it, so that a ring without division can be a scalar.
template <class Scalar>
Scalar divided(const Scalar& a, const Scalar& b) {
    if constexpr (requires { Scalar(a / b); }) {
        return Scalar(a / b);
    } else {
        throw unsupported_error("otimes: the expression divides, but its scalar type has no division.");
    }
}

/// Element at `offset`, promoted from real to complex where the operand is real and the program complex.
template <class Scalar>
Scalar read(const view& v, std::int64_t offset) {
    using real = typename real_part_of<Scalar>::type;
    if constexpr (!std::is_void_v<real>) {
        if (holds_reals<Scalar>(v)) {
            return Scalar(static_cast<const real*>(v.data)[offset]);
        }
    }
    if (v.type == dtype_of<Scalar>()) {
        const Scalar value = static_cast<const Scalar*>(v.data)[offset];
        return v.conjugate ? conjugated(value) : value;
    }
    throw unsupported_error("otimes: the reference executor cannot read an operand of type " +
                            std::string(to_string(v.type)) + " in a program of type " +
                            std::string(to_string(dtype_of<Scalar>())) + ". Convert the operand first.");
}

/// Stores (or adds) `value`; into a real operand of a complex program goes the real part.
template <class Scalar>
void write(const view& v, std::int64_t offset, bool add, const Scalar& value) {
    using real = typename real_part_of<Scalar>::type;
    if constexpr (!std::is_void_v<real>) {
        if (holds_reals<Scalar>(v)) {
            real& place = static_cast<real*>(v.data)[offset];
            place = add ? place + value.real() : value.real();
            return;
        }
    }
    Scalar& place = static_cast<Scalar*>(v.data)[offset];
    place = add ? Scalar(place + value) : value;
}

/// Offset of element `i`; a view with fewer modes than `i` has indices uses the first ones.
inline std::int64_t offset_of(const view& v, const index& i) {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < v.modes.size() && k < i.size(); ++k) {
        offset += i[k] * v.modes[k].stride;
    }
    return offset;
}

/// Calls f(i) for every index of a shape, the last mode running first.
template <class Function>
void for_each_index(std::span<const mode> shape, Function&& f) {
    index i(shape.size(), 0);
    for (const mode& m : shape) {
        if (m.extent == 0) {
            return;
        }
    }
    for (;;) {
        f(i);
        std::size_t k = shape.size();
        while (k > 0 && ++i[k - 1] == shape[k - 1].extent) {
            i[--k] = 0;
        }
        if (k == 0) {
            return;
        }
    }
}

/// Offset of F[f, 0, 0]. A shared factor has the modes (p, q); a per-item factor has one mode for each mode of the input but
/// the contracted one, in their order, then (p, q).
inline std::int64_t item_offset(const view& factor, const index& i, std::size_t contracted) {
    std::int64_t offset = 0;
    for (std::size_t k = 0, j = 0; k < i.size() && factor.modes.size() > 2; ++k) {
        offset += k == contracted ? 0 : i[k] * factor.modes[j++].stride;
    }
    return offset;
}

/// Signed integer `position` of an index operand (gather, scatter): one mode, elements of 4 or 8 bytes.
inline std::int64_t index_at(const view& v, std::uint16_t bytes, std::int64_t position) {
    const std::int64_t offset = position * v.modes[0].stride;
    return bytes == 4 ? static_cast<const std::int32_t*>(v.data)[offset]
                      : static_cast<const std::int64_t*>(v.data)[offset];
}

/// A sparse or callback step, by the loops of structured_steps.hpp. False when no such factor was ever made.
template <class Scalar>
bool run_structured_step(const program& source, const step& s, const view& in, const view& factor, const view& out,
                         const Scalar* alpha) {
    const auto run = structured_steps<Scalar>::reference.load(std::memory_order_relaxed);
    return run != nullptr && run(source, s, in, factor, out, alpha, 1);
}

[[noreturn]] inline void refuse(const char* what) {
    throw unsupported_error(std::string("otimes: the reference executor cannot evaluate ") + what +
                            "; only the owner of that factor can. Use toDenseMatrix() of the factor.");
}

/// Evaluates one step. `alpha == nullptr`: 1. The views have the modes of the step's tensors, strides filled in.
/// @throws unsupported_error a kind of factor or step that has no meaning without its owner.
template <class Scalar>
void run_step(const program& source, const step& s, const view& in, const view& factor, const view& out,
              const Scalar* alpha) {
    const auto scaled = [alpha](const Scalar& value) { return alpha == nullptr ? value : Scalar(*alpha * value); };
    const auto on = static_cast<std::size_t>(s.mode < 0 ? 0 : s.mode);
    const factor_kind kind = s.factor < 0 ? factor_kind::identity : source.at(s.factor).kind;
    const std::uint16_t index_bytes = s.factor < 0 ? std::uint16_t{0} : source.at(s.factor).scalar_bytes;
    switch (s.kind) {
        case step_kind::contract: {
            if ((kind == factor_kind::sparse || kind == factor_kind::triangular) &&
                run_structured_step(source, s, in, factor, out, alpha)) {
                return;
            }
            if (kind != factor_kind::dense && kind != factor_kind::self_adjoint && kind != factor_kind::identity &&
                kind != factor_kind::diagonal) {
                refuse("a factor of this kind");
            }
            for_each_index(out.modes, [&](const index& i) {
                const std::int64_t q = i[on];
                const std::int64_t from = offset_of(in, i) - q * in.modes[on].stride;
                Scalar sum(0);
                if (kind == factor_kind::identity) {
                    sum = read<Scalar>(in, from + q * in.modes[on].stride);
                } else {
                    const std::int64_t entry = item_offset(factor, i, on);
                    const mode& mp = factor.modes[factor.modes.size() - 2];
                    const mode& mq = factor.modes[factor.modes.size() - 1];
                    const std::int64_t first = kind == factor_kind::diagonal ? q : 0;
                    const std::int64_t last = kind == factor_kind::diagonal ? q + 1 : in.modes[on].extent;
                    for (std::int64_t p = first; p < last; ++p) {
                        sum = sum + read<Scalar>(in, from + p * in.modes[on].stride) *
                                        read<Scalar>(factor, entry + p * mp.stride + q * mq.stride);
                    }
                }
                write<Scalar>(out, offset_of(out, i), s.add, scaled(sum));
            });
            return;
        }
        case step_kind::accumulate:
            for_each_index(out.modes, [&](const index& i) {
                write<Scalar>(out, offset_of(out, i), s.add, scaled(read<Scalar>(in, offset_of(in, i))));
            });
            return;
        case step_kind::scale:
            for_each_index(out.modes, [&](const index& i) {
                Scalar value = read<Scalar>(in, offset_of(in, i));
                if (s.variant == step_variant::reciprocal) {
                    Scalar divisor = alpha == nullptr ? Scalar(0) : *alpha;
                    std::int64_t vector = 0;  // the vectors of the modes lie one after another
                    for (std::size_t k = 0; k < factor.modes.size(); ++k) {
                        if (factor.modes[k].stride != 0) {
                            divisor = divisor + read<Scalar>(factor, vector + i[k] * factor.modes[k].stride);
                            vector += factor.modes[k].extent * factor.modes[k].stride;
                        }
                    }
                    write<Scalar>(out, offset_of(out, i), s.add, divided(value, divisor));
                    return;
                }
                if (s.factor >= 0) {
                    value = value * read<Scalar>(factor, offset_of(factor, i));
                }
                write<Scalar>(out, offset_of(out, i), s.add, scaled(value));
            });
            return;
        case step_kind::gather:
        case step_kind::scatter: {
            const bool gather = s.kind == step_kind::gather;
            for_each_index(gather ? out.modes : in.modes, [&](const index& i) {
                index other = i;
                other[on] = index_at(factor, index_bytes, i[on]);
                const Scalar value = read<Scalar>(in, offset_of(in, gather ? other : i));
                write<Scalar>(out, offset_of(out, gather ? i : other), s.add, scaled(value));
            });
            return;
        }
        case step_kind::solve: {
            // x F = b along the mode: what a contraction with the inverse of F would give
            if (s.variant != step_variant::lower && s.variant != step_variant::upper) {
                refuse("a solve that is not triangular");
            }
            std::vector<mode> fibres(in.modes.begin(), in.modes.end());
            const std::int64_t n = fibres[on].extent;
            fibres[on].extent = n == 0 ? 0 : 1;
            std::vector<Scalar> x(static_cast<std::size_t>(n), Scalar(0));
            for_each_index(fibres, [&](const index& i) {
                const std::int64_t entry = item_offset(factor, i, on);
                const mode& mp = factor.modes[factor.modes.size() - 2];
                const mode& mq = factor.modes[factor.modes.size() - 1];
                for (std::int64_t done = 0; done < n; ++done) {
                    const bool upper = s.variant == step_variant::upper;
                    const std::int64_t q = upper ? done : n - 1 - done;
                    Scalar rest = scaled(read<Scalar>(in, offset_of(in, i) + q * in.modes[on].stride));
                    for (std::int64_t p = upper ? 0 : q + 1; p < (upper ? q : n); ++p) {
                        rest = rest - x[static_cast<std::size_t>(p)] *
                                          read<Scalar>(factor, entry + p * mp.stride + q * mq.stride);
                    }
                    x[static_cast<std::size_t>(q)] =
                        divided(rest, read<Scalar>(factor, entry + q * (mp.stride + mq.stride)));
                }
                for (std::int64_t q = 0; q < n; ++q) {
                    write<Scalar>(out, offset_of(out, i) + q * out.modes[on].stride, s.add,
                                  x[static_cast<std::size_t>(q)]);
                }
            });
            return;
        }
        case step_kind::reduce: {
            if (s.variant == step_variant::gram) {
                for_each_index(out.modes, [&](const index& pq) {
                    std::vector<mode> fibres(in.modes.begin(), in.modes.end());
                    fibres[on].extent = 1;
                    Scalar sum(0);
                    for_each_index(fibres, [&](const index& i) {
                        sum = sum + conjugated(read<Scalar>(in, offset_of(in, i) + pq[0] * in.modes[on].stride)) *
                                        read<Scalar>(factor, offset_of(factor, i) + pq[1] * factor.modes[on].stride);
                    });
                    write<Scalar>(out, offset_of(out, pq), s.add, scaled(sum));
                });
                return;
            }
            Scalar sum(0);
            for_each_index(in.modes, [&](const index& i) {
                const Scalar value = read<Scalar>(in, offset_of(in, i));
                if (s.variant == step_variant::dot) {
                    sum = sum + conjugated(value) * read<Scalar>(factor, offset_of(factor, i));
                } else if (s.variant == step_variant::squared_distance) {
                    const Scalar difference = value - read<Scalar>(factor, offset_of(factor, i));
                    sum = sum + conjugated(difference) * difference;
                } else {
                    sum = sum + conjugated(value) * value;
                }
            });
            write<Scalar>(out, 0, s.add, scaled(sum));
            return;
        }
        case step_kind::callback:
            if (run_structured_step(source, s, in, factor, out, alpha)) {
                return;
            }
            break;
    }
    refuse("a step of this kind");
}

/// The scalar of a step: nullptr for 1, else the address of `storage`, filled from the bindings.
template <class Scalar>
const Scalar* scalar_of(const step& s, const bindings& b, Scalar& storage) {
    if (s.scalar < 0) {
        return nullptr;
    }
    const auto position = static_cast<std::size_t>(s.scalar);
    if constexpr (dtype_of<Scalar>() == dtype::other) {
        storage = *static_cast<const Scalar*>(b.opaque_scalars[position]);
    } else if constexpr (std::is_void_v<typename real_part_of<Scalar>::type>) {
        storage = static_cast<Scalar>(b.scalars[position].real());
    } else {
        storage = Scalar(b.scalars[position]);
    }
    return &storage;
}

}  // namespace reference_loops

/// Runs `source` step by step on the operands of `b`, with temporaries of its own. `Scalar` is the program's type: complex
/// when any operand is complex (real operands are promoted when read), or the scalar itself for dtype::other.
/// A step that does not add never reads its output.
/// @throws unsupported_error an operand or a step that plain loops cannot interpret.
template <class Scalar>
void reference_run(const program& source, const bindings& b) {
    using reference_loops::view;
    std::vector<std::vector<Scalar>> storage(source.tensors.size());
    std::vector<mode> modes = source.modes;
    std::vector<mode> result_modes;
    std::vector<view> views(source.tensors.size());
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        const std::span<mode> shape(modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count));
        views[id] = {nullptr, t.type, t.conjugate, t.scalar_bytes, shape};
        if (t.binding >= 0) {
            views[id].data = b.pointers[static_cast<std::size_t>(t.binding)];
            continue;
        }
        std::int64_t count = 1;
        for (std::size_t k = shape.size(); k-- > 0;) {
            shape[k].stride = count;
            count *= shape[k].extent;
        }
        storage[id].assign(static_cast<std::size_t>(count), Scalar(0));
        views[id].data = storage[id].data();
        views[id].type = dtype_of<Scalar>();
    }
    // A result that overwrites the input is formed beside it.
    std::size_t in_place = source.tensors.size();
    view result;
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (id == 0 || t.role != tensor_role::output || source.tensors.front().binding != t.binding) {
            continue;
        }
        in_place = id;
        result = views[id];
        const std::span<mode> shape(modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count));
        result_modes.assign(shape.begin(), shape.end());
        result.modes = result_modes;
        std::int64_t count = 1;
        for (std::size_t k = shape.size(); k-- > 0;) {
            shape[k].stride = count;
            count *= shape[k].extent;
        }
        storage[id].assign(static_cast<std::size_t>(count), Scalar(0));
        views[id].data = storage[id].data();
        views[id].type = dtype_of<Scalar>();
    }
    const view none;
    const auto of = [&](std::int32_t id) -> const view& { return id < 0 ? none : views[static_cast<std::size_t>(id)]; };
    for (const step& s : source.steps) {
        Scalar alpha(0);
        reference_loops::run_step<Scalar>(source, s, of(s.in), of(s.factor), of(s.out),
                                          reference_loops::scalar_of(s, b, alpha));
    }
    if (in_place < source.tensors.size()) {
        reference_loops::for_each_index(result.modes, [&](const reference_loops::index& i) {
            const view& from = views[in_place];
            reference_loops::write<Scalar>(result, reference_loops::offset_of(result, i), false,
                                           reference_loops::read<Scalar>(from, reference_loops::offset_of(from, i)));
        });
    }
}

/// The type that a program computes in: complex when any value in it is complex. @throws unsupported_error a half type.
inline dtype computing_type(const program& source) {
    dtype result = dtype::other;
    for (const tensor& t : source.tensors) {
        if (t.type == dtype::f16 || t.type == dtype::bf16) {
            throw unsupported_error("otimes: operands of type " + std::string(to_string(t.type)) +
                                    " are for GPUs; no CPU executor computes in them. Convert to float.");
        }
        if (t.type != dtype::other && (result == dtype::other || is_complex(t.type))) {
            result = t.type;
        }
    }
    return result;
}

/// Ignores how a plan wants to do it, and does what its program says. A template, so that only who names it compiles its loops.
template <class Lazy = void>
class reference_executor final : public executor {
public:
    [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
    [[nodiscard]] const machine& target() const noexcept override { return target_; }
    [[nodiscard]] placement where() const noexcept override { return placement::cpu; }
    /// It runs the program's steps as they are: nothing to plan.
    [[nodiscard]] plan plan_for(const program& p) const override {
        plan result;
        result.source = p;
        return result;
    }
    void run(const plan& p, const bindings& b, workspace_view /*its temporaries are its own*/) const override {
        for (const tensor& t : p.source.tensors) {
            if (t.space == memory_space::device) {
                throw unsupported_error(
                    "otimes: the reference executor runs on the host, but an operand lies in device "
                    "memory. Copy it to the host, or evaluate on a GPU executor.");
            }
        }
        switch (computing_type(p.source)) {
            case dtype::f32: return reference_run<float>(p.source, b);
            case dtype::f64: return reference_run<double>(p.source, b);
            case dtype::c64: return reference_run<std::complex<float>>(p.source, b);
            case dtype::c128: return reference_run<std::complex<double>>(p.source, b);
            default: break;
        }
        throw unsupported_error(
            "otimes: this scalar type has no name in a plan; only the translation unit that built the "
            "expression can evaluate it. Assign the expression instead of running a plan.");
    }

private:
    machine target_;
};

/// The oracle.
template <class Lazy = void>
const executor& reference() {
    static const reference_executor<Lazy>& instance = *new reference_executor<Lazy>;
    return instance;
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

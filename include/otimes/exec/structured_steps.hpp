// SPDX-License-Identifier: MIT
/// @file structured_steps.hpp
/// Plain loops for sparse, triangular and callback factors, and the switch that makes them and the cpu executor's known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <otimes/exec/cpu/step_loops.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/structured_hook.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/structured.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace reference_loops {

/// Calls apply(fibre of the input, fibre of the output) for every fibre along mode `on`; adds or writes what it leaves in
/// the latter, which starts as zero.
template <class Scalar, class Scaled, class Apply>
void for_each_fibre(const view& in, const view& out, std::size_t on, bool add, const Scaled& scaled, Apply&& apply) {
    std::vector<mode> fibres(in.modes.begin(), in.modes.end());
    const std::int64_t before = fibres[on].extent;
    const std::int64_t after = out.modes[on].extent;
    fibres[on].extent = 1;
    std::vector<Scalar> x(static_cast<std::size_t>(before), Scalar(0));
    std::vector<Scalar> y(static_cast<std::size_t>(after), Scalar(0));
    for_each_index(fibres, [&](const index& i) {
        for (std::int64_t p = 0; p < before; ++p) {
            x[static_cast<std::size_t>(p)] = read<Scalar>(in, offset_of(in, i) + p * in.modes[on].stride);
        }
        y.assign(static_cast<std::size_t>(after), Scalar(0));
        apply(x, y);
        for (std::int64_t q = 0; q < after; ++q) {
            write<Scalar>(out, offset_of(out, i) + q * out.modes[on].stride, add,
                          scaled(y[static_cast<std::size_t>(q)]));
        }
    });
}

/// y[q] += x[p] * F[p, q] over the stored elements of a sparse factor.
template <class Scalar>
void apply_sparse(const view& factor, const std::vector<Scalar>& x, std::vector<Scalar>& y) {
    const sparse_elements s = static_cast<const sparse_operand*>(factor.data)->elements();
    const bool p_is_row = factor.modes[factor.modes.size() - 2].stride != 0;
    view values = factor;
    values.data = const_cast<void*>(s.values);
    for (std::int64_t outer = 0; outer < s.outer_size(); ++outer) {
        for (std::int64_t k = s.begin(outer); k < s.end(outer); ++k) {
            const std::int64_t inner = s.index(s.inner, k);
            const auto p = static_cast<std::size_t>(p_is_row == s.by_columns ? inner : outer);
            const auto q = static_cast<std::size_t>(p_is_row == s.by_columns ? outer : inner);
            y[q] = y[q] + x[p] * read<Scalar>(values, k);
        }
    }
}

/// y = F^T x with the factor's own function; a real function is applied to the real and to the imaginary part.
template <class Scalar>
void apply_callback(const view& factor, const std::vector<Scalar>& x, std::vector<Scalar>& y) {
    const auto& operand = *static_cast<const callback_operand*>(factor.data);
    const bool p_is_row = factor.modes[factor.modes.size() - 2].stride != 0;
    using real = typename real_part_of<Scalar>::type;
    if constexpr (!std::is_void_v<real>) {
        if (factor.type == dtype_of<real>()) {
            std::vector<real> part(x.size(), real(0));
            std::vector<real> image(y.size(), real(0));
            for (const bool imaginary : {false, true}) {
                for (std::size_t k = 0; k < x.size(); ++k) {
                    part[k] = imaginary ? x[k].imag() : x[k].real();
                }
                operand.apply(operand.object, p_is_row, part.data(), image.data(), 1);
                for (std::size_t k = 0; k < y.size(); ++k) {
                    y[k] += imaginary ? Scalar(real(0), image[k]) : Scalar(image[k]);
                }
            }
            return;
        }
    }
    if (!factor.conjugate) {
        operand.apply(operand.object, p_is_row, x.data(), y.data(), 1);
        return;
    }
    std::vector<Scalar> conjugate_x = x;
    for (Scalar& value : conjugate_x) {
        value = conjugated(value);
    }
    operand.apply(operand.object, p_is_row, conjugate_x.data(), y.data(), 1);
    for (Scalar& value : y) {
        value = conjugated(value);
    }
}

/// y[q] += x[p] * F[p, q] over one triangle of F.
template <class Scalar>
void apply_triangular(const view& factor, step_variant part, const std::vector<Scalar>& x, std::vector<Scalar>& y) {
    const bool lower = part == step_variant::lower || part == step_variant::unit_lower;
    const bool unit = part == step_variant::unit_lower || part == step_variant::unit_upper;
    const mode& mp = factor.modes[factor.modes.size() - 2];
    const mode& mq = factor.modes[factor.modes.size() - 1];
    for (std::size_t q = 0; q < y.size(); ++q) {
        for (std::size_t p = lower ? q : 0; p < x.size() && (lower || p <= q); ++p) {
            const auto at = static_cast<std::int64_t>(p) * mp.stride + static_cast<std::int64_t>(q) * mq.stride;
            y[q] = y[q] + (unit && p == q ? x[p] : Scalar(x[p] * read<Scalar>(factor, at)));
        }
    }
}

/// A contraction with a sparse or triangular factor, or a callback step.
template <class Scalar>
bool run_structured(const program& source, const step& s, const view& in, const view& factor, const view& out,
                    const Scalar* alpha, std::int64_t /*threads*/) {
    const auto scaled = [alpha](const Scalar& value) { return alpha == nullptr ? value : Scalar(*alpha * value); };
    const auto on = static_cast<std::size_t>(s.mode);
    const factor_kind kind = s.factor < 0 ? factor_kind::identity : source.at(s.factor).kind;
    if (s.kind != step_kind::callback && kind != factor_kind::sparse && kind != factor_kind::triangular) {
        return false;
    }
    for_each_fibre<Scalar>(in, out, on, s.add, scaled, [&](const std::vector<Scalar>& x, std::vector<Scalar>& y) {
        if (s.kind == step_kind::callback) {
            apply_callback<Scalar>(factor, x, y);
        } else if (kind == factor_kind::triangular) {
            apply_triangular<Scalar>(factor, s.variant, x, y);
        } else {
            apply_sparse<Scalar>(factor, x, y);
        }
    });
    return true;
}

}  // namespace reference_loops

#if OTIMES_EXECUTOR_IN_LIBRARY

namespace cpu_detail {
/// Makes the library's loops for factors with structure known. A name that no header defines.
void enable_structured_library() noexcept;
}  // namespace cpu_detail
inline namespace from_library {
template <class Scalar>
void enable_structured_steps() noexcept {
    if constexpr (dtype_of<Scalar>() != dtype::other) {
        cpu_detail::enable_structured_library();
    } else {
        structured_steps<Scalar>::reference.store(&reference_loops::run_structured<Scalar>, std::memory_order_relaxed);
    }
}
}  // namespace from_library

#else

/// Makes the steps of factors with structure known to the executors for `Scalar`, and for its real type.
template <class Scalar>
void enable_structured_steps() noexcept {
    structured_steps<Scalar>::reference.store(&reference_loops::run_structured<Scalar>, std::memory_order_relaxed);
    if constexpr (dtype_of<Scalar>() != dtype::other) {
        structured_steps<Scalar>::loops.store(&cpu_detail::run_step_loops<Scalar>, std::memory_order_relaxed);
        using real = decltype(std::real(Scalar()));
        if constexpr (!std::is_same_v<real, Scalar>) {
            enable_structured_steps<real>();
        }
    }
}

#endif

}  // namespace OTIMES_TARGET
}  // namespace otimes

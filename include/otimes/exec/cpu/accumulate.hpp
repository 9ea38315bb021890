// SPDX-License-Identifier: MIT
/// @file accumulate.hpp
/// y (+)= alpha * x by runs of memory, for x of the program's type or of its real type: how a real X meets complex factors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <otimes/exec/cpu/loop_nest.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/reference.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// One run; In is Scalar or its real type.
template <class Scalar, class In>
void accumulate_run(Scalar* y, std::int64_t y_step, const In* x, std::int64_t x_step, std::int64_t count,
                    bool conjugate, bool add, const Scalar* alpha) noexcept {
    const auto loop = [&](const auto& value_of) {
        if (add) {
            for (std::int64_t i = 0; i < count; ++i) {
                y[i * y_step] += value_of(x[i * x_step]);
            }
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                y[i * y_step] = value_of(x[i * x_step]);
            }
        }
    };
    if (alpha == nullptr && !conjugate) {
        loop([](const In& value) { return Scalar(value); });
    } else {
        loop([&](const In& value) {
            const Scalar read = conjugate ? reference_loops::conjugated(Scalar(value)) : Scalar(value);
            return alpha == nullptr ? read : Scalar(*alpha * read);
        });
    }
}

/// An accumulate step, by `threads` threads. False where it has other types; then nothing has been written.
template <class Scalar>
bool accumulate_elements(const step& s, const step_operand& in, const step_operand& out, const Scalar* alpha,
                         std::int64_t threads) {
    using real = decltype(std::real(Scalar()));
    constexpr dtype type = dtype_of<Scalar>();
    if (out.type != type || out.conjugate || (in.type != type && in.type != dtype_of<real>()) ||
        in.modes.size() != out.modes.size()) {
        return false;
    }
    const bool from_reals = in.type != type;
    const step_operand none;
    struct of_accumulate;
    kept_vector<loop_index, of_accumulate> kept_nest;
    loop_nest(out, in, none, -1, *kept_nest);
    auto* const y = static_cast<Scalar*>(out.data);
    share_nest(*kept_nest, threads, elements_of_line<Scalar>,
               [&](std::span<const loop_index> share, const std::array<std::int64_t, 3>& start, std::size_t) {
                   const loop_index run = share.empty() ? loop_index{} : share.back();
                   for_each_run(share, [&](const std::array<std::int64_t, 3>& at) {
                       const std::int64_t from = start[1] + at[1];
                       Scalar* const to = y + start[0] + at[0];
                       if (from_reals) {
                           accumulate_run(to, run.stride[0], static_cast<const real*>(in.data) + from, run.stride[1],
                                          run.extent, false, s.add, alpha);
                       } else {
                           accumulate_run(to, run.stride[0], static_cast<const Scalar*>(in.data) + from, run.stride[1],
                                          run.extent, in.conjugate, s.add, alpha);
                       }
                   });
               });
    return true;
}

}  // namespace cpu_detail
}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
// A pretended GPU that goes all the way to launches: what it evaluates is planned for an H200, lowered to generic kernels, and these are
// done by loops that follow their contracts (kernels/generic_sliced_multiply.cuh, dot_product.cuh).
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <otimes/plan/gpu_sparse.hpp>

#include "../../backend/core/host_copy.hpp"
#include "../../backend/core/launch_list.hpp"
#include "cuda/pretended_gpu.hpp"

namespace device_test {

class launching_gpu final : public pretended_gpu {
public:
    void run(const otimes::plan& p, const otimes::bindings& b, otimes::workspace_view) const override { launch(p, b); }
    void evaluate(const otimes::program& p, const otimes::bindings& b) const override {
        ++evaluations;
        launch(make_plan_for(p, {}), b);
    }
    mutable int launches = 0;
    mutable int by_blocks = 0;   ///< of them
    mutable int from_tiles = 0;  ///< of sparse factors, from tiles along the memory and others
    mutable int from_tiles_along = 0;
    bool all_kernels = false;  ///< else the generic ones alone; fused kernels are not pretended

private:
    using memory_reference = otimes::backend::memory_reference;
    struct memory {
        const otimes::backend::launch_list& list;
        const otimes::bindings& b;
        std::vector<std::byte> workspace;
        std::vector<std::byte> scratch;
        template <class T>
        T* at(const memory_reference& r, std::int64_t slab) {
            static T one(1);
            std::byte* base = nullptr;
            switch (r.where) {
                case memory_reference::place::none: return nullptr;
                case memory_reference::place::operand:
                    base = static_cast<std::byte*>(b.pointers[static_cast<std::size_t>(r.index)]);
                    break;
                case memory_reference::place::buffer:
                    base = workspace.data() + list.buffer_bytes[static_cast<std::size_t>(r.index)];
                    break;
                case memory_reference::place::scratch: base = scratch.data(); break;
                case memory_reference::place::one: return &one;
                case memory_reference::place::sparse_starts:
                case memory_reference::place::sparse_inner:
                case memory_reference::place::sparse_values:
                    return static_cast<T*>(
                        otimes::backend::sparse_array(r, b.pointers[static_cast<std::size_t>(r.index)]));
            }
            return reinterpret_cast<T*>(base + r.offset_bytes + slab * r.slab_bytes);
        }
        template <class T>
        T scalar(std::int32_t number) const {
            if (number < 0) return T(1);
            const auto value = b.scalars[static_cast<std::size_t>(number)];
            if constexpr (otimes::detail::is_complex_scalar<T>) {
                return T(value);
            } else {
                return static_cast<T>(value.real());
            }
        }
    };

    void launch(const otimes::plan& p, const otimes::bindings& b) const {
        if (p.passes.empty()) return;
        using otimes::backend::lower_to_launches;
        const otimes::backend::launch_list with_all = lower_to_launches(p, target().gpus.front(), true);
        const auto has_no_loop = [](const otimes::backend::launch& l) {
            return l.kind == otimes::backend::launch_kind::fused || l.sliced.blocks || l.sliced.fibres > 1;
        };
        const bool pretended = all_kernels || (!std::ranges::any_of(with_all.slab, has_no_loop) &&
                                               !std::ranges::any_of(with_all.rest, has_no_loop));
        const otimes::backend::launch_list list =
            pretended ? with_all : lower_to_launches(p, target().gpus.front(), false);
        memory m{list, b, std::vector<std::byte>(static_cast<std::size_t>(list.workspace_bytes) + 64, std::byte{0xff}),
                 std::vector<std::byte>(static_cast<std::size_t>(list.scratch_bytes) + 64, std::byte{0xff})};
        for (const otimes::backend::staged_factor& f : list.staged) {
            const otimes::tensor& t = p.source.at(f.tensor);
            CHECK(t.space == otimes::memory_space::host);
            CHECK(f.bytes == otimes::backend::count_of(f.modes) * t.scalar_bytes);
            otimes::backend::gather_elements(
                static_cast<const std::byte*>(b.pointers[static_cast<std::size_t>(t.binding)]), f.modes, t.scalar_bytes,
                0, otimes::backend::count_of(f.modes), m.scratch.data() + f.scratch_bytes);
        }
        const auto all = [&](const std::vector<otimes::backend::launch>& some, std::int64_t slab) {
            for (const otimes::backend::launch& l : some) {
                ++launches;
                by_blocks += l.sliced.blocks ? 1 : 0;
                from_tiles += l.sparse.tiles && !l.sparse.along ? 1 : 0;
                from_tiles_along += l.sparse.tiles && l.sparse.along ? 1 : 0;
                switch (l.type) {
                    case otimes::dtype::f32: one<float>(m, l, slab); break;
                    case otimes::dtype::f64: one<double>(m, l, slab); break;
                    case otimes::dtype::c64: one<std::complex<float>>(m, l, slab); break;
                    case otimes::dtype::c128: one<std::complex<double>>(m, l, slab); break;
                    default: FAIL("no such type");
                }
            }
        };
        all(list.before, 0);
        for (std::int64_t s = 0; s < list.slab_count; ++s)
            all(s + 1 == list.slab_count && !list.rest.empty() ? list.rest : list.slab, s);
        all(list.after, 0);
    }

    static const std::int32_t* starts_of(memory& m, const otimes::backend::launch& l, std::int64_t slab) {
        return m.at<std::int32_t>(l.factors[0], slab);
    }
    template <class T>
    static void run_sparse(memory& m, const otimes::backend::launch& l, std::int64_t slab) {
        const otimes::backend::sparse_shape& s = l.sparse;
        REQUIRE(s.outer_position >= 0);
        REQUIRE(s.outer_position <= static_cast<int>(s.free.size()));
        REQUIRE(s.lanes_log2 <= 5);
        REQUIRE(s.together >= 1);
        const std::int64_t bytes = static_cast<std::int64_t>(sizeof(T));
        if (s.tiles) {  // kernels/sparse_multiply.cuh
            REQUIRE(s.inputs * s.together * bytes <= otimes::planning::sparse_tile_bytes);
            REQUIRE((s.along ? s.together <= otimes::planning::sparse_sums_together : s.together * bytes >= 16));
            REQUIRE((s.together & (s.together - 1)) == 0);
        } else {
            REQUIRE(s.together <= otimes::planning::sparse_sums_together);
        }
        for (std::int32_t k = starts_of(m, l, slab)[0]; k < starts_of(m, l, slab)[s.outputs]; ++k)
            REQUIRE(m.at<std::int32_t>(l.factors[1], slab)[k] < s.inputs);
        const auto* const starts = starts_of(m, l, slab);
        const auto* const inner = m.at<std::int32_t>(l.factors[1], slab);
        const T* const values = m.at<T>(l.factors[2], slab);
        std::int64_t count = 1;
        for (const auto& free : s.free) count *= free.extent;
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t rest = i, ox = 0, oy = 0;
            for (std::size_t k = s.free.size(); k-- > 0;) {
                ox += rest % s.free[k].extent * s.free[k].x;
                oy += rest % s.free[k].extent * s.free[k].y;
                rest /= s.free[k].extent;
            }
            for (std::int64_t at = 0; at < s.outputs * s.turn.extent; ++at) {
                const std::int64_t o = at / s.turn.extent, t = at % s.turn.extent;
                T sum(0);
                for (std::int32_t k = starts[o]; k < starts[o + 1]; ++k) {
                    const T x = m.at<T>(l.x, slab)[ox + t * s.turn.x + inner[k] * s.x_inner];
                    sum += (s.conjugate_x ? otimes::detail::conjugate_of(x) : x) *
                           (s.conjugate_values ? otimes::detail::conjugate_of(values[k]) : values[k]);
                }
                T& to = m.at<T>(l.y, slab)[oy + t * s.turn.y + o * s.y_outer];
                to = m.scalar<T>(l.scalar) * sum + (l.add ? to : T(0));
            }
        }
    }

    template <class T>
    static void one(memory& m, const otimes::backend::launch& l, std::int64_t slab) {
        using otimes::backend::launch_kind;
        REQUIRE(l.kind != launch_kind::fused);
        const T* x = m.at<T>(l.x, slab);
        T* y = m.at<T>(l.y, slab);
        const auto conjugate = [](const T& value, bool conj) {
            return conj ? otimes::detail::conjugate_of(value) : value;
        };
        if (l.kind == launch_kind::partial_dots) {
            T sum(0);
            const T* f = m.at<T>(l.factors.front(), slab);
            for (std::int64_t line = 0; line < l.dot.lines; ++line)
                for (std::int64_t i = 0; i < l.dot.count; ++i) {
                    const T a = conjugate(x[line * l.dot.x_line + i * l.dot.x_step], l.dot.conjugate_x),
                            b = conjugate(f[line * l.dot.y_line + i * l.dot.y_step], l.dot.conjugate_y);
                    sum += l.dot.distance ? conjugate(a - b, true) * (a - b) : a * b;
                }
            *y = sum;  // all in the first block's place
            return;
        }
        if (l.kind == launch_kind::finish_dot) {
            *y = m.scalar<T>(l.scalar) * *x + (l.add ? *y : T(0));
            return;
        }
        if (l.kind == launch_kind::sparse) {
            run_sparse<T>(m, l, slab);
            return;
        }
        const otimes::backend::sliced_shape& s = l.sliced;
        REQUIRE(s.free.size() <= otimes::backend::most_free_modes);
        if (s.blocks) {
            for (std::size_t k = 0; k < s.free.size(); ++k)  // kernels/blocked_multiply.cuh
                CHECK((s.free[k].f != 0) == (k < static_cast<std::size_t>(s.batches)));
        }
        REQUIRE(s.q_position >= 0);
        REQUIRE(s.q_position <= static_cast<int>(s.free.size()));
        const T* f = l.factors.empty() ? nullptr : m.at<T>(l.factors.front(), slab);
        std::int64_t count = 1;
        for (const auto& free : s.free) count *= free.extent;
        std::vector<T> sums(static_cast<std::size_t>(s.q_extent));  // of a fibre, which Y may replace
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t rest = i, ox = 0, of = 0, oy = 0;
            for (std::size_t k = s.free.size(); k-- > 0;) {
                const std::int64_t digit = rest % s.free[k].extent;
                rest /= s.free[k].extent;
                ox += digit * s.free[k].x;
                of += digit * s.free[k].f;
                oy += digit * s.free[k].y;
            }
            for (std::int64_t q = 0; q < s.q_extent; ++q) {
                T& sum = sums[static_cast<std::size_t>(q)] = T(0);
                for (std::int64_t p = 0; p < s.p_extent; ++p)
                    sum += conjugate(x[ox + p * s.x_p], s.conjugate_x) *
                           conjugate(f[of + p * s.f_p + q * s.f_q], s.conjugate_f);
            }
            for (std::int64_t q = 0; q < s.q_extent; ++q) {
                T& to = y[oy + q * s.y_q];
                to = m.scalar<T>(l.scalar) * sums[static_cast<std::size_t>(q)] + (l.add ? to : T(0));
            }
        }
    }
};

}  // namespace device_test

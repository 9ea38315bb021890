// SPDX-License-Identifier: MIT
/// @file row_steps.hpp
/// A program whose steps all leave one index free, index by index ("row by row"): all steps of a row run while its
/// intermediates are in cache, straight on the rows of X and Y, with the kernels of the sweeps and factors that are packed once.
/// What a sum of Kronecker products, a reduction of a product, a product between diagonal scalings and one of factors with structure are
/// made of; passes over all rows, one for each chain, would move every intermediate through memory.
///
/// Rows: the free index has the largest stride in every operand, and what is inside lies without gaps. Other programs are left
/// to the passes of the plan. Compiled only where sums, solves and reductions are.
#pragma once

#include <otimes/exec/target.hpp>

#if OTIMES_EXECUTOR_IN_LIBRARY

#include <otimes/exec/cpu.hpp>
#include <otimes/exec/row_hook.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {
/// Makes the library's row-by-row evaluation known. A name that no header defines.
void enable_row_library() noexcept;
}  // namespace cpu_detail
inline namespace from_library {
template <class Scalar>
void enable_row_steps() noexcept {
    if constexpr (dtype_of<Scalar>() != dtype::other) {
        cpu_detail::enable_row_library();
    }
}
}  // namespace from_library
}  // namespace OTIMES_TARGET
}  // namespace otimes

#else

#include <algorithm>
#include <atomic>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <otimes/exec/cpu/chain_dot.hpp>
#include <otimes/exec/cpu/factors.hpp>
#include <otimes/exec/cpu/host_machine.hpp>
#include <otimes/exec/cpu/structured_kernels.hpp>
#include <otimes/exec/cpu/sweep.hpp>
#include <otimes/exec/cpu/triangular.hpp>
#include <otimes/exec/cpu/workspace_pool.hpp>
#include <otimes/exec/row_hook.hpp>
#include <otimes/exec/target.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/step_cost.hpp>
#include <otimes/program/bindings.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/program.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {
namespace cpu_detail {

/// The steps of a program, prepared for rows of one free index.
template <class Scalar>
class row_program {
    using Real = decltype(std::real(Scalar()));
    static constexpr std::ptrdiff_t components = sizeof(Scalar) == sizeof(Real) ? 1 : 2;
    static constexpr std::ptrdiff_t width = simd<Real>::width;

public:
    /// False where rows are not the way for this program; nothing has been written then.
    /// @param most_elements of intermediates
    /// @param threads that are to have rows
    bool prepare(const program& source, const bindings& b, std::int64_t most_elements, std::int64_t threads) {
        source_ = &source;
        bound_ = &b;
        for (const tensor& t : source.tensors) {
            if (t.role != tensor_role::factor && (t.type != dtype_of<Scalar>() || t.conjugate)) {
                return false;
            }
        }
        // The free index: the first or the last mode of the first input, whichever is outermost in memory.
        std::int32_t input = -1;
        for (std::size_t id = 0; id < source.tensors.size() && input < 0; ++id) {
            input = source.tensors[id].role == tensor_role::input ? static_cast<std::int32_t>(id) : -1;
        }
        if (input < 0) {
            return false;
        }
        const auto modes = source.modes_of(input);
        if (modes.size() < 2) {
            return false;
        }
        const auto outermost = [&](const mode& one) {
            return one.extent == 1 || std::all_of(modes.begin(), modes.end(), [&](const mode& other) {
                       return other.extent == 1 || other.stride <= one.stride;
                   });
        };
        from_front_ = outermost(modes.front());
        if (!from_front_ && !outermost(modes.back())) {
            return false;
        }
        rows_ = from_front_ ? modes.front().extent : modes.back().extent;
        // Where threads have no row each, products one after the other are what they can share; and a single step has nothing to stay in cache for.
        if (rows_ < (std::max)(std::int64_t{1}, threads) || (rows_ == 1 && source.steps.size() == 1)) {
            return false;
        }
        reductions_ = 0;
        sparse_count_ = triangle_count_ = 0;
        indices_.clear();
        tensors_.assign(source.tensors.size(), {});
        for (std::size_t id = 0; id < source.tensors.size(); ++id) {
            const tensor& t = source.tensors[id];
            if (t.role == tensor_role::factor || is_scalar_result(static_cast<std::int32_t>(id))) {
                continue;
            }
            if (!describe(static_cast<std::int32_t>(id))) {
                return false;
            }
        }
        jobs_.clear();
        jobs_.reserve(source.steps.size());
        std::size_t packed = 0;
        for (const step& s : source.steps) {
            if (!add_job(s, packed)) {
                return false;
            }
        }
        batch_ = 1;
        place_temporaries();
        const std::int64_t l2_bytes = host_machine().cpu.l2_bytes;
        const std::int64_t in_cache = l2_bytes / static_cast<std::int64_t>(sizeof(Scalar));
        // What registers may read behind the end of each intermediate does not count.
        most_elements = (std::min)(most_elements, in_cache) + static_cast<std::int64_t>(jobs_.size()) * 32;
        if (scratch_elements_ > most_elements) {
            return false;
        }
        // A few rows at a time where they are short, so that their steps cost few calls.
        constexpr std::int64_t short_bytes = 96 * 1024;
        const std::int64_t together = (std::min)(short_bytes, l2_bytes / 8) / static_cast<std::int64_t>(sizeof(Scalar));
        const std::int64_t of_row = (std::max)(scratch_elements_, std::int64_t{1});
        batch_ = std::clamp<std::int64_t>((std::min)(together, most_elements) / of_row, 1, rows_);
        if (batch_ > 1) {
            place_temporaries();
        }
        factors_.resize(packed);
        fibre_elements_ = 0;
        for (job& j : jobs_) {
            if (j.how == way::sparse && !sparse_[j.packed].by_q()) {
                fibre_elements_ = (std::max)(fibre_elements_, j.q_extent);
            } else if (j.how == way::sparse && j.inner == 1) {
                j.together = sparse_fibre_blocks<Scalar>(j.p_extent, j.q_extent, batch_ * j.outer, l2_bytes / 4);
                fibre_elements_ = (std::max)(fibre_elements_, j.together.elements);
            }
            if (j.how == way::dense) {
                sweep_.p_extent = j.p_extent;
                sweep_.q_extent = j.q_extent;
                sweep_.factors.assign(1, j.step->factor);
                pack_factors<Real, components>(source, b, sweep_, j.inner == 1, factors_.data() + j.packed);
            }
        }
        return true;
    }

    void run(std::ptrdiff_t threads) {
        const auto reals = static_cast<std::size_t>((scratch_elements_ + width + fibre_elements_) * components + width);
        // All memory is taken here, before anything is written: no exception may leave a team of threads.
        const std::size_t bytes = (reals * sizeof(Real) + 63) / 64 * 64;
        const workspace_lease lease(bytes * static_cast<std::size_t>(threads));
        const auto scratch_of = [&](std::ptrdiff_t thread) {
            return reinterpret_cast<Real*>(static_cast<char*>(lease.data()) + bytes * static_cast<std::size_t>(thread));
        };
        if (threads > 1) {
            row_sums_.resize(static_cast<std::size_t>(reductions_ * rows_));
        }
        for (const job& j : jobs_) {  // what reductions add to
            if (j.step->kind == step_kind::reduce && !j.step->add) {
                *result_of(j) = Scalar(0);
            }
        }
#if OTIMES_OPENMP
        if (threads > 1) {
#pragma omp parallel num_threads(static_cast <int>(threads))
            {
                const std::int64_t me = omp_get_thread_num();
                const std::int64_t count = omp_get_num_threads();
                run_rows(rows_ * me / count, rows_ * (me + 1) / count, scratch_of(me), row_sums_.data());
            }
            // Row after row, as one thread adds them up: the same bits whatever the threads.
            for (const job& j : jobs_) {
                for (std::int64_t row = 0; j.step->kind == step_kind::reduce && row < rows_; ++row) {
                    *result_of(j) += row_sums_[static_cast<std::size_t>(j.reduction * rows_ + row)];
                }
            }
            return;
        }
#endif
        run_rows(0, rows_, scratch_of(0), nullptr);
    }

private:
    struct row_tensor {
        std::int64_t elements = 0;    ///< of one row
        std::int64_t row_stride = 0;  ///< in elements; 0 for a temporary
        std::int64_t offset = 0;      ///< of a temporary in the scratch memory, in elements
        std::int64_t last_use = -1;
    };
    struct range {
        std::int64_t begin, end;
        std::int64_t last_use;
    };
    /// What a step does to a mode, [outer, P, inner] to [outer, Q, inner]; `other`: it has none, or its factor all of them.
    enum class way : std::uint8_t { other, dense, sparse, triangle, move, diagonal };
    struct job {
        const otimes::step* step = nullptr;
        way how = way::other;
        std::int64_t p_extent = 1, q_extent = 1;
        std::int64_t outer = 1, inner = 1;
        std::size_t packed = 0;  ///< where its factor begins, or among those of its kind
        Scalar alpha = Scalar(1);
        std::int64_t reduction = 0;  ///< its number among the reductions
        std::int64_t stride = 0;     ///< of a diagonal
        bool real_diagonal = false;  ///< of a complex program
        sparse_fibre_blocks<Scalar> together{0, 0, 0, 0};
    };

    [[nodiscard]] bool is_scalar_result(std::int32_t id) const {
        return std::any_of(source_->steps.begin(), source_->steps.end(),
                           [id](const otimes::step& s) { return s.kind == step_kind::reduce && s.out == id; });
    }
    /// Extents without the free index, outermost first.
    [[nodiscard]] std::span<const mode> inside(std::int32_t id) const {
        const auto modes = source_->modes_of(id);
        return from_front_ ? modes.subspan(1) : modes.first(modes.size() - 1);
    }
    [[nodiscard]] const mode& outside(std::int32_t id) const {
        const auto modes = source_->modes_of(id);
        return from_front_ ? modes.front() : modes.back();
    }
    bool describe(std::int32_t id) {
        if (source_->modes_of(id).empty() || outside(id).extent != rows_) {
            return false;
        }
        row_tensor& t = tensors_[static_cast<std::size_t>(id)];
        t.elements = 1;
        const bool temporary = source_->at(id).binding < 0;
        const auto modes = inside(id);
        for (std::size_t k = modes.size(); k-- > 0;) {
            if (!temporary && modes[k].extent > 1 && modes[k].stride != t.elements) {
                return false;
            }
            t.elements *= modes[k].extent;
        }
        t.row_stride = temporary ? 0 : outside(id).stride;
        return t.elements > 0 && (temporary || rows_ == 1 || t.row_stride >= t.elements);
    }
    bool add_job(const otimes::step& s, std::size_t& packed) {
        job j;
        j.step = &s;
        if (s.scalar >= 0) {
            const std::complex<double>& value = bound_->scalars[static_cast<std::size_t>(s.scalar)];
            if constexpr (components == 2) {
                j.alpha = Scalar(static_cast<Real>(value.real()), static_cast<Real>(value.imag()));
            } else {
                j.alpha = static_cast<Real>(value.real());
            }
        }
        const auto position = static_cast<std::int32_t>(jobs_.size());
        for (const std::int32_t id : {s.in, s.kind == step_kind::reduce ? s.factor : -1, s.out}) {
            if (id >= 0) {
                tensors_[static_cast<std::size_t>(id)].last_use = position;
            }
        }
        if (s.kind == step_kind::contract) {
            const tensor& f = source_->at(s.factor);
            if (f.mode_count != 2 || f.binding < 0 || !describe_mode(s, s.mode, j)) {
                return false;
            }
            if (f.kind == factor_kind::sparse) {
                j.how = way::sparse;
                j.packed = sparse_count_++;
                sparse_.resize((std::max)(sparse_.size(), sparse_count_));
                if (!sparse_[j.packed].assign(operand_of(f, s.factor), j.p_extent, j.q_extent, j.alpha,
                                              rows_ * j.outer * j.inner)) {
                    return false;
                }
            } else if (f.kind == factor_kind::triangular) {
                // Shorter lanes, and columns that contract nothing, have no kernel.
                if ((j.inner > 1 && j.inner * components < width) || j.p_extent <= 0 || j.q_extent <= 0) {
                    return false;
                }
                j.how = way::triangle;
                j.packed = triangle_count_++;
                triangles_.resize((std::max)(triangles_.size(), triangle_count_));
                triangles_[j.packed].pack(operand_of(f, s.factor), s.variant, j.p_extent, j.q_extent, j.inner == 1);
                if (triangles_[j.packed].has_empty_columns()) {
                    return false;
                }
            } else if (f.kind == factor_kind::dense || f.kind == factor_kind::self_adjoint) {
                if (j.inner > 1 && j.inner * components < width && source_->at(s.in).binding >= 0) {
                    return false;  // the kernels would read beyond the end of X
                }
                j.how = way::dense;
                j.packed = packed;
                packed += static_cast<std::size_t>(packed_reals<Real, static_cast<int>(components)>(
                    static_cast<std::ptrdiff_t>(j.p_extent), static_cast<std::ptrdiff_t>(j.q_extent)));
            } else {
                return false;
            }
        } else if (s.kind == step_kind::gather || s.kind == step_kind::scatter) {
            if (s.factor < 0 || source_->at(s.factor).binding < 0 || !describe_mode(s, s.mode, j)) {
                return false;
            }
            j.how = way::move;
            j.packed = indices_.size();
            const tensor& f = source_->at(s.factor);
            const std::int64_t count = s.kind == step_kind::gather ? j.q_extent : j.p_extent;
            // Lanes of less than a register are moved one by one, as longer fibres.
            const std::int64_t expanded = j.inner * components < width ? j.inner : 1;
            for (std::int64_t k = 0; k < count; ++k) {
                const std::int64_t other = reference_loops::index_at(operand_of(f, s.factor), f.scalar_bytes, k);
                for (std::int64_t l = 0; l < expanded; ++l) {
                    indices_.push_back(other * expanded + l);
                }
            }
            j.p_extent *= expanded;
            j.q_extent *= expanded;
            j.inner /= expanded;
        } else if (s.kind == step_kind::scale) {
            if (s.factor < 0 || s.variant != step_variant::none || source_->at(s.factor).conjugate ||
                source_->at(s.factor).binding < 0) {
                return false;
            }
            const tensor& t = source_->at(s.factor);
            j.real_diagonal = t.type != dtype_of<Scalar>();
            if (j.real_diagonal && t.type != dtype_of<Real>()) {
                return false;
            }
            const auto f = source_->modes_of(s.factor);
            if ((from_front_ ? f.front() : f.back()).stride != 0 && rows_ > 1) {
                return false;
            }
            // A vector along all indices inside, without gaps, or along one of them.
            const auto f_inside = from_front_ ? f.subspan(1) : f.first(f.size() - 1);
            std::int64_t next = 1;
            bool whole = !j.real_diagonal;
            std::int32_t along = -1;
            std::int32_t vectors = 0;
            for (std::size_t k = f_inside.size(); k-- > 0;) {
                whole = whole && (f_inside[k].extent <= 1 || f_inside[k].stride == next);
                next *= f_inside[k].extent;
                if (f_inside[k].extent > 1 && f_inside[k].stride != 0) {
                    along = static_cast<std::int32_t>(k) + (from_front_ ? 1 : 0);
                    ++vectors;
                }
            }
            if (!whole) {
                if (vectors != 1 || !describe_mode(s, along, j)) {
                    return false;
                }
                j.how = way::diagonal;
                j.stride = f[static_cast<std::size_t>(along)].stride;
            }
        } else if (s.kind == step_kind::reduce) {
            if (s.variant != step_variant::dot || s.factor < 0 || source_->at(s.out).binding < 0) {
                return false;
            }
            j.reduction = reductions_++;
        } else if (s.kind != step_kind::accumulate || s.factor >= 0) {
            return false;
        }
        jobs_.push_back(j);
        return true;
    }
    /// Fills in the extents of a job on mode `number`; false where that is the free index.
    bool describe_mode(const otimes::step& s, std::int32_t number, job& j) const {
        const std::int32_t inside_number = from_front_ ? number - 1 : number;
        const auto in = inside(s.in);
        const auto out = inside(s.out);
        if (inside_number < 0 || static_cast<std::size_t>(inside_number) >= in.size()) {
            return false;
        }
        for (std::size_t k = 0; k < in.size(); ++k) {
            (static_cast<std::int32_t>(k) < inside_number   ? j.outer
             : static_cast<std::int32_t>(k) > inside_number ? j.inner
                                                            : j.p_extent) *= in[k].extent;
        }
        j.q_extent = out[static_cast<std::size_t>(inside_number)].extent;
        return true;
    }
    [[nodiscard]] step_operand operand_of(const tensor& t, std::int32_t id) const {
        step_operand v;
        v.data = bound_->pointers[static_cast<std::size_t>(t.binding)];
        v.type = t.type;
        v.conjugate = t.conjugate;
        v.scalar_bytes = t.scalar_bytes;
        v.modes = source_->modes_of(id);
        return v;
    }
    /// Temporaries share scratch memory where their lives do not meet.
    void place_temporaries() {
        scratch_elements_ = 0;
        taken_.clear();
        for (std::size_t position = 0; position < jobs_.size(); ++position) {
            const std::int32_t id = jobs_[position].step->out;
            row_tensor& t = tensors_[static_cast<std::size_t>(id)];
            if (id < 0 || source_->at(id).binding >= 0 || jobs_[position].step->add) {
                continue;
            }
            const auto now = static_cast<std::int64_t>(position);
            std::erase_if(taken_, [now](const range& r) { return r.last_use < now; });
            std::sort(taken_.begin(), taken_.end(), [](const range& a, const range& b) { return a.begin < b.begin; });
            const std::int64_t length =
                (t.elements * batch_ + 15) / 16 * 16 + 16;  // whole registers may be read behind the end
            std::int64_t at = 0;
            for (const range& r : taken_) {
                if (at + length <= r.begin) {
                    break;
                }
                at = (std::max)(at, r.end);
            }
            t.offset = at;
            taken_.push_back({at, at + length, t.last_use});
            scratch_elements_ = (std::max)(scratch_elements_, at + length);
        }
    }
    [[nodiscard]] Scalar* result_of(const job& j) const {
        return static_cast<Scalar*>(bound_->pointers[static_cast<std::size_t>(source_->at(j.step->out).binding)]);
    }
    [[nodiscard]] Real* address(std::int32_t id, std::int64_t row, Real* scratch) const noexcept {
        const row_tensor& t = tensors_[static_cast<std::size_t>(id)];
        const std::int32_t binding = source_->at(id).binding;
        if (binding < 0) {
            return scratch + t.offset * components;
        }
        return static_cast<Real*>(bound_->pointers[static_cast<std::size_t>(binding)]) +
               row * t.row_stride * components;
    }

    /// @param row_sums (reduction, row) receives what each row adds to the results; nullptr: it is added at once
    void run_rows(std::int64_t begin, std::int64_t end, Real* scratch, Scalar* row_sums) const noexcept {
        for (std::int64_t row = begin; row < end; row += batch_) {
            const std::int64_t count = (std::min)(batch_, end - row);
            for (const job& j : jobs_) {
                const Real* const x = address(j.step->in, row, scratch);
                if (j.how != way::other) {
                    work_on_mode(j, x, address(j.step->out, row, scratch), count, scratch);
                    continue;
                }
                switch (j.step->kind) {
                    case step_kind::scale:
                    case step_kind::accumulate: {
                        Real* const y = address(j.step->out, row, scratch);
                        for (std::int64_t k = 0; k < count; ++k) {
                            scale(j, x + k * from_row_to_row(j.step->in), y + k * from_row_to_row(j.step->out));
                        }
                        break;
                    }
                    default: {
                        const Real* const v = address(j.step->factor, row, scratch);
                        for (std::int64_t k = 0; k < count; ++k) {
                            const Scalar of_row = j.alpha * dot(j, x + k * from_row_to_row(j.step->in),
                                                                v + k * from_row_to_row(j.step->factor));
                            if (row_sums == nullptr) {
                                *result_of(j) += of_row;
                            } else {
                                row_sums[j.reduction * rows_ + row + k] = of_row;
                            }
                        }
                        break;
                    }
                }
            }
        }
    }
    /// In reals.
    [[nodiscard]] std::ptrdiff_t from_row_to_row(std::int32_t id) const noexcept {
        const row_tensor& t = tensors_[static_cast<std::size_t>(id)];
        return static_cast<std::ptrdiff_t>(t.row_stride == 0 ? t.elements : t.row_stride) * components;
    }
    void work_on_mode(const job& j, const Real* x, Real* y, std::int64_t rows, Real* scratch) const noexcept {
        if (j.how == way::dense || j.how == way::triangle) {
            contract(j, x, y, rows);
            return;
        }
        const auto* const from = reinterpret_cast<const Scalar*>(x);
        auto* const to = reinterpret_cast<Scalar*>(y);
        const std::int64_t x_outer = j.p_extent * j.inner;
        const std::int64_t y_outer = j.q_extent * j.inner;
        const std::int64_t x_row = from_row_to_row(j.step->in) / components;
        const std::int64_t y_row = from_row_to_row(j.step->out) / components;
        // All rows at once where they follow each other.
        const bool joined = x_row == j.outer * x_outer && y_row == j.outer * y_outer;
        const std::int64_t parts = joined ? 1 : rows;
        const std::int64_t outer = joined ? rows * j.outer : j.outer;
        for (std::int64_t part = 0; part < parts; ++part) {
            const Scalar* const x_part = from + part * x_row;
            Scalar* const y_part = to + part * y_row;
            Scalar* const of_fibres = reinterpret_cast<Scalar*>(scratch) + scratch_elements_ + width;
            if (j.how == way::sparse && !sparse_[j.packed].by_q()) {
                for (std::int64_t i = 0; i < outer * j.inner; ++i) {
                    sparse_scatter(sparse_[j.packed], x_part + i / j.inner * x_outer + i % j.inner, j.inner,
                                   y_part + i / j.inner * y_outer + i % j.inner, j.inner, j.step->add, of_fibres);
                }
                continue;
            }
            if (j.how == way::sparse && j.inner == 1) {
                sparse_fibres(sparse_[j.packed], j.together, j.p_extent, x_part, x_outer, y_part, y_outer, outer,
                              j.step->add, of_fibres);
                continue;
            }
            if (j.how == way::move && j.inner == 1) {
                move_block(moved_by(j), y_part, 1, y_outer, x_part, 1, x_outer, outer, j.step->add, j.alpha);
                continue;
            }
            for (std::int64_t o = 0; o < outer; ++o) {
                work_on_fibres(j, x_part + o * x_outer, y_part + o * y_outer);
            }
        }
    }
    [[nodiscard]] moved_indices moved_by(const job& j) const noexcept {
        const bool gather = j.step->kind == step_kind::gather;
        return {indices_.data() + j.packed, nullptr, gather ? j.q_extent : j.p_extent, gather};
    }
    /// [P, inner] to [Q, inner]
    void work_on_fibres(const job& j, const Scalar* x, Scalar* y) const noexcept {
        const bool add = j.step->add;
        if (j.how == way::sparse) {
            sparse_lanes(sparse_[j.packed], {0, sparse_[j.packed].q_extent()}, x, j.inner, y, j.inner, j.inner, add);
        } else if (j.how == way::move) {
            move_block(moved_by(j), y, j.inner, 1, x, j.inner, 1, j.inner, add, j.alpha);
        } else {
            const void* const d = bound_->pointers[static_cast<std::size_t>(source_->at(j.step->factor).binding)];
            if (j.real_diagonal) {
                scale_by(j, x, y, static_cast<const Real*>(d));
            } else {
                scale_by(j, x, y, static_cast<const Scalar*>(d));
            }
        }
    }
    template <class Factor>
    void scale_by(const job& j, const Scalar* x, Scalar* y, const Factor* d) const noexcept {
        if (j.inner == 1) {
            scale_run(y, 1, x, 1, d, j.stride, j.p_extent, j.step->add, j.alpha);
            return;
        }
        for (std::int64_t p = 0; p < j.p_extent; ++p) {
            scale_run(y + p * j.inner, 1, x + p * j.inner, 1, d + p * j.stride, 0, j.inner, j.step->add, j.alpha);
        }
    }
    void contract(const job& j, const Real* x, Real* y, std::int64_t rows) const noexcept {
        sweep_job<Real> s;
        s.p_extent = static_cast<std::ptrdiff_t>(j.p_extent);
        s.q_extent = static_cast<std::ptrdiff_t>(j.q_extent);
        const auto inner = static_cast<std::ptrdiff_t>(j.inner) * components;
        s.x_p = inner;
        s.y_q = inner;
        s.run = j.inner == 1 ? 0 : inner;
        s.in_place = s.resume = false;
        s.ahead = nullptr;
        s.claim = s.past = false;
        s.stage_panels = inner >= width && stages_rows<Real>(s.p_extent, s.q_extent, s.x_p);
        s.finish = j.step->add ? epilogue::scale_add : j.alpha == Scalar(1) ? epilogue::store : epilogue::scale;
        s.alpha_re = std::real(j.alpha);
        s.alpha_im = std::imag(j.alpha);
        s.factor = j.how == way::dense ? factors_.data() + j.packed : nullptr;
        s.factor_p = 0;
        const auto outer = static_cast<std::ptrdiff_t>(j.outer);
        const std::ptrdiff_t x_row = from_row_to_row(j.step->in);
        const std::ptrdiff_t y_row = from_row_to_row(j.step->out);
        if (rows > 1 && x_row == outer * s.p_extent * inner && y_row == outer * s.q_extent * inner) {
            s.loop_count = 1;
            s.loops[0] = {static_cast<std::ptrdiff_t>(rows) * outer, s.p_extent * inner, s.q_extent * inner};
        } else {
            s.loop_count = 2;
            s.loops[0] = {static_cast<std::ptrdiff_t>(rows), x_row, y_row};
            s.loops[1] = {outer, s.p_extent * inner, s.q_extent * inner};
            if (rows == 1) {
                s.loops[0] = s.loops[1];
                s.loop_count = 1;
            }
        }
        if (j.how == way::triangle) {
            triangles_[j.packed].apply(s, x, y);
            return;
        }
        run_sweep<Real, static_cast<int>(components)>(s, x, y);
    }
    void scale(const job& j, const Real* x, Real* y) const noexcept {
        const auto* const from = reinterpret_cast<const Scalar*>(x);
        auto* const to = reinterpret_cast<Scalar*>(y);
        const std::int64_t count = tensors_[static_cast<std::size_t>(j.step->in)].elements;
        const Scalar alpha = j.alpha;
        const Scalar* const by =
            j.step->factor < 0 ? nullptr
                               : static_cast<const Scalar*>(
                                     bound_->pointers[static_cast<std::size_t>(source_->at(j.step->factor).binding)]);
        for (std::int64_t i = 0; i < count; ++i) {
            const Scalar value = by == nullptr ? alpha * from[i] : alpha * from[i] * by[i];
            to[i] = j.step->add ? to[i] + value : value;
        }
    }
    /// sum of conj(x) * v, in eight partial sums.
    Scalar dot(const job& j, const Real* x, const Real* v) const noexcept {
        constexpr std::int64_t lanes = 8;
        const auto* const a = reinterpret_cast<const Scalar*>(x);
        const auto* const b = reinterpret_cast<const Scalar*>(v);
        const std::int64_t count = tensors_[static_cast<std::size_t>(j.step->in)].elements;
        Scalar sums[lanes] = {};
        std::int64_t i = 0;
        const auto conjugated = [](const Scalar& value) {
            if constexpr (components == 2) {
                return Scalar(value.real(), -value.imag());
            } else {
                return value;
            }
        };
        if constexpr (components == 1) {
            using simd_t = simd<Real>;
            typename simd_t::type parts[4] = {};
            for (; i + 4 * width <= count; i += 4 * width) {
                OTIMES_UNROLL
                for (int k = 0; k < 4; ++k) {
                    parts[k] = simd_t::multiply_add(simd_t::load(a + i + k * width), simd_t::load(b + i + k * width),
                                                    parts[k]);
                }
            }
            Real image[static_cast<std::size_t>(width)];
            simd_t::store(image, (parts[0] + parts[1]) + (parts[2] + parts[3]));
            for (const Real value : image) {
                sums[0] += value;
            }
        }
        for (; i + lanes <= count; i += lanes) {
            for (std::int64_t k = 0; k < lanes; ++k) {
                sums[k] += conjugated(a[i + k]) * b[i + k];
            }
        }
        for (; i < count; ++i) {
            sums[0] += conjugated(a[i]) * b[i];
        }
        for (std::int64_t k = 1; k < lanes; ++k) {
            sums[0] += sums[k];
        }
        return sums[0];
    }

    const program* source_ = nullptr;
    const bindings* bound_ = nullptr;
    std::int64_t rows_ = 0;
    std::int64_t batch_ = 1;  ///< rows at a time
    std::int64_t scratch_elements_ = 0;
    bool from_front_ = true;
    std::int64_t reductions_ = 0;
    std::vector<Scalar> row_sums_;  ///< of several threads
    std::vector<row_tensor> tensors_;
    std::vector<job> jobs_;
    std::vector<Real> factors_;
    std::vector<sparse_columns<Scalar>> sparse_;  ///< those before sparse_count_; the others keep their memory
    std::size_t sparse_count_ = 0;
    std::vector<packed_triangle<Scalar>> triangles_;
    std::size_t triangle_count_ = 0;
    std::vector<std::int64_t> indices_;  ///< of gathers and scatters
    std::int64_t fibre_elements_ = 0;    ///< that sparse_fibres wants
    sweep sweep_;                        ///< a factor as pack_factors reads it
    std::vector<range> taken_;           ///< scratch memory in use, while temporaries are placed
};

/// True where the steps of a plan's program one after the other add the same numbers in the same order as its passes: no factors
/// multiplied out, no other order, and a scalar where a chain ends.
OTIMES_COLD inline bool adds_as_its_passes(const plan& p) {
    std::size_t next = 0;
    for (const pass& one : p.passes) {
        for (std::size_t i = 0; i < one.sweeps.size(); ++i) {
            while (next < p.source.steps.size() && p.source.steps[next].kind != step_kind::contract) {
                ++next;
            }
            if (next == p.source.steps.size() || one.sweeps[i].factors.size() != 1 ||
                one.sweeps[i].factors.front() != p.source.steps[next].factor ||
                p.source.steps[next].scalar != (i + 1 == one.sweeps.size() ? one.scalar : -1)) {
                return false;
            }
            ++next;
        }
    }
    return true;
}

/// The steps of `source` row by row, in the order of the program. False where that is not possible, where a row of everything
/// does not fit in a second-level cache, or where that order takes more than `most_flops`, the
/// intermediates more than `most_elements`; nothing is written then. Nor where a plan promises other bits: one with a limit promises
/// the same for every limit, whatever fits into it, and a deterministic one for every number of rows.
template <class Scalar>
bool run_by_rows(const program& source, const bindings& b, std::int32_t threads, std::int64_t most_flops,
                 std::int64_t most_elements, const plan* planned) {
    if (planned != nullptr &&
        (planned->wishes.deterministic ||
         planned->wishes.workspace_limit_bytes < (std::numeric_limits<std::int64_t>::max)()) &&
        !adds_as_its_passes(*planned)) {
        return false;
    }
    std::int64_t flops = 0;
    for (const step& s : source.steps) {
        flops += planning::step_flops(source, s);
    }
    if (flops > most_flops) {
        return false;
    }
    if (threads == 0) {
        threads = 1;
#if OTIMES_OPENMP
        if (static_cast<double>(flops) > flops_per_fork && omp_in_parallel() == 0) {
            threads = static_cast<std::int32_t>(omp_get_max_threads());
        }
#endif
    }
    if constexpr (sizeof(Scalar) == sizeof(decltype(std::real(Scalar())))) {
        detail::kept_or_own<chain_dot<Scalar>, chain_dot<Scalar>> dot;  // keeps its memory
        if (planned == nullptr && (*dot).prepare(source, b, most_elements)) {
            (*dot).run(threads);
            return true;
        }
    }
    detail::kept_or_own<row_program<Scalar>, row_program<Scalar>> prepared;
    row_program<Scalar>& rows = *prepared;
    // All threads together keep the limit.
    if (!rows.prepare(source, b, most_elements / threads, threads)) {
        return false;
    }
    rows.run(threads);
    return true;
}

}  // namespace cpu_detail

/// Makes row-by-row evaluation known to the cpu executor for `Scalar`, and for its real type.
template <class Scalar>
void enable_row_steps() noexcept {
    if constexpr (dtype_of<Scalar>() != dtype::other) {
        row_steps<Scalar>::run.store(&cpu_detail::run_by_rows<Scalar>, std::memory_order_relaxed);
        using real = decltype(std::real(Scalar()));
        if constexpr (!std::is_same_v<real, Scalar>) {
            enable_row_steps<real>();
        }
    }
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

#endif

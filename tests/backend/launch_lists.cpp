// SPDX-License-Identifier: MIT
// Plans for a GPU, lowered to launches and interpreted on the host: what the kernels are told to do is what the program says.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <otimes/exec/reference.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/machine_table.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/plan/serialize.hpp>

#include "../../backend/core/arguments.hpp"
#include "../../backend/core/host_copy.hpp"
#include "../../backend/core/launch_list.hpp"
#include "plan/programs.hpp"
#include "plan/random_sums.hpp"
#include "support/long_tests.hpp"
#include "support/random.hpp"

namespace {

using namespace otimes;
using namespace otimes::backend;

plan plan_for_h200(const program& p) {
    machine target;
    target.gpus = {h200()};
    options decided;
    decided.placement = placement::gpu;
    return make_plan(p, target, decided);
}

// Interprets a launch list. Memory is real host memory; scalars are Scalar throughout.
template <class Scalar>
class interpreter {
public:
    interpreter(const plan& p, const launch_list& list, const bindings& b, const gpu_description& gpu)
        : plan_(p),
          list_(list),
          bindings_(b),
          gpu_(gpu),
          workspace_(static_cast<std::size_t>(list.workspace_bytes) + 64),
          scratch_(static_cast<std::size_t>(list.scratch_bytes) + 64) {}

    void run() {
        for (const staged_factor& f : list_.staged) {
            const tensor& t = plan_.source.at(f.tensor);
            otimes::backend::gather_elements(
                static_cast<const std::byte*>(bindings_.pointers[static_cast<std::size_t>(t.binding)]), f.modes,
                t.scalar_bytes, 0, otimes::backend::count_of(f.modes), scratch_.data() + f.scratch_bytes);
        }
        all(list_.before, 0);
        for (std::int64_t s = 0; s < list_.slab_count; ++s)
            all(s + 1 == list_.slab_count && !list_.rest.empty() ? list_.rest : list_.slab, s);
        all(list_.after, 0);
    }
    int fused = 0;
    int sliced = 0;
    int in_place = 0;
    int mode_sums = 0;         ///< modes of fused sums
    int moves = 0;             ///< mode products of launches whose terms share factors
    int outputs = 0;           ///< of these launches
    int two_inputs = 0;        ///< launches that read two matrices
    int summed = 0;            ///< fused launches of several terms
    int added = 0;             ///< fused launches that read another matrix than Y
    int reduced = 0;           ///< launches of reductions
    int several = 0;           ///< fused launches whose tiles hold runs of several tensors
    int scaled = 0;            ///< fused launches that multiply by a vector as they store
    int ended = 0;             ///< fused launches that sum up and store nothing
    int pieces = 0;            ///< of these those whose tiles are pieces of a row
    int ended_blocks = 0;      ///< launches by blocks that sum up and store nothing
    int scaled_by_blocks = 0;  ///< launches by blocks that multiply by a vector as they store

private:
    void all(const std::vector<launch>& launches, std::int64_t slab) {
        for (const launch& l : launches) {
            if (l.kind == launch_kind::sliced) {
                ++sliced;
                run_sliced(l, slab);
            } else if (l.kind == launch_kind::sparse) {
                run_sparse(l, slab);
            } else if (l.kind != launch_kind::fused) {
                ++reduced;
                run_reduction(l, slab);
            } else {
                ++fused;
                run_fused(l, slab);
            }
        }
    }
    Scalar* at(const memory_reference& r, std::int64_t slab) {
        std::byte* base = nullptr;
        switch (r.where) {
            case memory_reference::place::none: return nullptr;
            case memory_reference::place::operand:
                base = static_cast<std::byte*>(bindings_.pointers[static_cast<std::size_t>(r.index)]);
                break;
            case memory_reference::place::buffer:
                base = workspace_.data() + list_.buffer_bytes[static_cast<std::size_t>(r.index)];
                break;
            case memory_reference::place::scratch: base = scratch_.data(); break;
            case memory_reference::place::one: return &one_;
            default:
                base = static_cast<std::byte*>(sparse_array(r, bindings_.pointers[static_cast<std::size_t>(r.index)]));
                break;
        }
        return reinterpret_cast<Scalar*>(base + r.offset_bytes + slab * r.slab_bytes);
    }
    Scalar scalar(std::int32_t number) const {
        return number < 0 ? Scalar(1) : static_cast<Scalar>(bindings_.scalars[static_cast<std::size_t>(number)].real());
    }
    Scalar alpha(const launch& l) const { return scalar(l.scalar); }
    static void store(Scalar& y, Scalar value, bool add) { y = add ? y + value : value; }
    // What a product and what stands in its place add to a sum.
    static double term_of(gpu_ending ending, double value, double v) {
        return ending == gpu_ending::squared_norm       ? value * value
               : ending == gpu_ending::squared_distance ? (value - v) * (value - v)
                                                        : value * v;
    }

    void run_sliced(const launch& l, std::int64_t slab) {
        const sliced_shape& s = l.sliced;
        REQUIRE(s.free.size() <= most_free_modes);
        REQUIRE(s.q_position >= 0);
        REQUIRE(s.q_position <= static_cast<int>(s.free.size()));
        std::int64_t count = 1;
        for (const free_mode& m : s.free) count *= m.extent;
        const Scalar* x = at(l.x, slab);
        const Scalar* f = l.factors.empty() ? nullptr : at(l.factors.front(), slab);
        Scalar* y = at(l.y, slab);
        // In place only by the kernel that reads its fibres, all of each, before it stores them.
        const bool dot = s.ending == gpu_ending::dot || s.ending == gpu_ending::squared_distance,
                   norm = s.ending == gpu_ending::squared_norm;
        const bool along = s.ending == gpu_ending::scaled_along, across = s.ending == gpu_ending::scaled_across;
        REQUIRE((dot || norm || along || across || s.ending == gpu_ending::stored));
        if (along || across) {
            REQUIRE(keeps_factor(l));
            REQUIRE(!l.add);
            REQUIRE(l.divisor > 1);
            const argument_block block = make_arguments(l);
            blocked_arguments<Scalar> a;
            REQUIRE(block.bytes.size() == sizeof(a));
            std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
            CHECK(a.divisor == l.divisor);
            CHECK(std::ranges::count(block.addresses, l.sums_or_diagonal, &argument_block::hole::at) == 1);
            for (const std::int64_t u : {std::int64_t{0}, l.divisor - 1, l.divisor, (std::int64_t{1} << 31) - 1})
                CHECK(((static_cast<std::uint64_t>(u) * a.magic) >> (32 + a.shift)) ==
                      static_cast<std::uint64_t>(u / l.divisor));
            ++scaled_by_blocks;
        }
        std::vector<double> of_blocks;
        if (dot || norm) {
            REQUIRE(s.blocks);
            REQUIRE(!l.add);
            const argument_block block = make_arguments(l);
            blocked_arguments<Scalar> a;
            REQUIRE(block.bytes.size() == sizeof(a));
            std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
            REQUIRE(static_cast<int>(a.sum_count) == l.dot.blocks);
            REQUIRE(l.dot.blocks > 0);
            CHECK(std::ranges::count(block.addresses, l.sums_or_diagonal, &argument_block::hole::at) == 1);
            of_blocks.assign(static_cast<std::size_t>(l.dot.blocks), 0.0);
            ++ended_blocks;
        }
        if (l.x == l.y && s.p_extent > 1 && !norm) {
            REQUIRE(s.blocks);
            REQUIRE(s.blocks->staying_steps > 0);
            REQUIRE(s.blocks->together >= s.q_extent);
            REQUIRE(s.p_extent == s.q_extent);
            REQUIRE(s.x_p == s.y_q);
            for (const free_mode& m : s.free) REQUIRE(m.x == m.y);
            ++in_place;
        }
        std::vector<Scalar> sums(static_cast<std::size_t>(s.q_extent));
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
                Scalar& sum = sums[static_cast<std::size_t>(q)] = Scalar(0);
                for (std::int64_t p = 0; p < s.p_extent; ++p) sum += x[ox + p * s.x_p] * f[of + p * s.f_p + q * s.f_q];
            }
            for (std::int64_t q = 0; q < s.q_extent; ++q) {
                Scalar value = alpha(l) * sums[static_cast<std::size_t>(q)];
                const std::int64_t u = oy + q * s.y_q;
                if (along || across) value *= at(l.sums_or_diagonal, slab)[along ? u % l.divisor : u / l.divisor];
                if (dot || norm)
                    of_blocks[static_cast<std::size_t>(i) % of_blocks.size()] += term_of(
                        s.ending, static_cast<double>(value), norm ? 0.0 : static_cast<double>(y[oy + q * s.y_q]));
                else
                    store(y[oy + q * s.y_q], value, l.add);
            }
        }
        if (dot || norm) std::ranges::copy(of_blocks, at_sums(l.sums_or_diagonal, slab));
    }
    // kernels/sparse_multiply.cuh by its contract.
    void run_sparse(const launch& l, std::int64_t slab) {
        const sparse_shape& s = l.sparse;
        REQUIRE(l.factors.size() == 3);
        REQUIRE(s.free.size() < most_free_modes);
        REQUIRE((s.outer_position >= 0 && s.outer_position <= static_cast<int>(s.free.size())));
        const auto array = [&](std::size_t which) { return static_cast<const void*>(at(l.factors[which], slab)); };
        const auto* starts = static_cast<const std::int32_t*>(array(0));
        const auto* inner = static_cast<const std::int32_t*>(array(1));
        const auto* values = static_cast<const Scalar*>(array(2));
        std::vector<free_mode> free = s.free;
        free.push_back(s.turn);
        std::int64_t count = 1;
        for (const free_mode& m : free) count *= m.extent;
        const Scalar* x = at(l.x, slab);
        Scalar* y = at(l.y, slab);
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t rest = i, ox = 0, oy = 0;
            for (const free_mode& m : free) {
                ox += rest % m.extent * m.x;
                oy += rest % m.extent * m.y;
                rest /= m.extent;
            }
            for (std::int64_t o = 0; o < s.outputs; ++o) {
                Scalar sum(0);
                for (std::int32_t k = starts[o]; k < starts[o + 1]; ++k)
                    sum += values[k] * x[ox + inner[k] * s.x_inner];
                store(y[oy + o * s.y_outer], alpha(l) * sum, l.add);
            }
        }
    }
    double* at_sums(const memory_reference& r, std::int64_t slab) {
        return reinterpret_cast<double*>(scratch_.data() + r.offset_bytes + slab * r.slab_bytes);
    }
    // kernels/dot_product.cuh by its contract, with its argument blocks. The sum of block b is that of the pairs it takes.
    void run_reduction(const launch& l, std::int64_t slab) {
        const argument_block block = make_arguments(l);
        if (l.kind == launch_kind::finish_dot) {
            finish_arguments<double> a;
            REQUIRE(block.bytes.size() == sizeof(a));
            std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
            CHECK(block.accumulator == dtype::f64);
            double sum = 0;
            for (int b = 0; b < a.count; ++b) sum += at_sums(l.x, slab)[b];
            store(*at(l.y, slab), alpha(l) * static_cast<Scalar>(sum), a.beta == 1.0);
            return;
        }
        dot_arguments a;
        REQUIRE(block.bytes.size() == sizeof(a));
        std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
        REQUIRE(l.factors.size() == 1);
        const Scalar* x = at(l.x, slab);
        const Scalar* y = at(l.factors.front(), slab);
        for (int b = 0; b < l.dot.blocks; ++b) {
            double sum = 0;
            for (std::int64_t first = b * 1024ll; first < a.lines * a.count; first += l.dot.blocks * 1024ll)
                for (std::int64_t k = first; k < std::min<std::int64_t>(first + 1024, a.lines * a.count); ++k) {
                    const std::int64_t line = k / a.count, i = k % a.count;
                    sum += term_of(a.distance ? gpu_ending::squared_distance : gpu_ending::dot,
                                   static_cast<double>(x[line * a.x_line_stride + i * a.x_stride]),
                                   static_cast<double>(y[line * a.y_line_stride + i * a.y_stride]));
                }
            at_sums(l.y, slab)[b] = sum;
        }
    }

    // kernels/fused_trailing.cuh and fused_outer.cuh by their contracts.
    void run_fused(const launch& l, std::int64_t slab) {
        const fused_shape& s = l.fused;
        const gpu_group& g = s.group;
        const planning::group_place& place = s.place;
        const std::size_t modes = g.p.size(), terms = static_cast<std::size_t>(g.terms);
        if (g.sum) {
            run_sum(l, slab);
            return;
        }
        if (!g.moves.empty()) {
            run_terms(l, slab);
            return;
        }
        if (g.inputs > 1) {
            run_two_inputs(l, slab);
            return;
        }
        REQUIRE(l.second.where == memory_reference::place::none);
        REQUIRE(modes * terms == l.factors.size());
        REQUIRE(l.factors.size() == s.factor_p.size());
        REQUIRE(l.more_scalars.size() + 1 == terms);
        summed += g.terms > 1 ? 1 : 0;
        const bool has_addend = l.addend.where != memory_reference::place::none;
        added += has_addend ? 1 : 0;
        REQUIRE((!has_addend || l.add));
        REQUIRE((terms == 1 || !(l.x == l.y)));
        several += g.outer && g.tile.rows > 1 ? 1 : 0;
        const bool along = g.ending == gpu_ending::scaled_along, across = g.ending == gpu_ending::scaled_across;
        scaled += along || across ? 1 : 0;
        const bool in_pieces = g.ending == gpu_ending::dot_of_pieces;
        const bool dot = in_pieces || g.ending == gpu_ending::dot || g.ending == gpu_ending::squared_distance,
                   norm = g.ending == gpu_ending::squared_norm;
        ended += dot || norm ? 1 : 0;
        pieces += in_pieces ? 1 : 0;
        REQUIRE(in_pieces == (g.tile.pieces > 1));
        std::vector<double> sums;
        group_arguments<Scalar> arguments;
        if (g.ending != gpu_ending::stored) {
            const argument_block block = make_arguments(l);
            REQUIRE(block.bytes.size() == sizeof(arguments));
            std::memcpy(static_cast<void*>(&arguments), block.bytes.data(), sizeof(arguments));
        }
        if (dot || norm) {
            REQUIRE(l.dot.blocks > 0);
            REQUIRE(static_cast<int>(arguments.divisor) == l.dot.blocks);
            REQUIRE(l.dot.blocks % (g.tile.cluster * g.tile.slices) == 0);
            sums.assign(static_cast<std::size_t>(l.dot.blocks), 0.0);
        }
        REQUIRE(((!g.outer && place.parts_per_line == 1) || place.parts_per_line % g.tile.rows == 0));
        REQUIRE(g.outer == (place.inner > 1));
        REQUIRE(planning::why_illegal(g, gpu_) == "");
        // In place only where the kernels allow it: every element is read and written by one tile.
        if (l.x == l.y && !dot && !norm) {
            REQUIRE(g.is_square());
            REQUIRE(place.x_line == place.y_line);
            REQUIRE(place.x_inner == place.y_inner);
            ++in_place;
        }
        std::vector<int> covered(g.p.size() + 1, 0);
        for (const gpu_trip& t : g.tile.trips)
            for (int i = t.first; i < t.first + t.count; ++i) ++covered[static_cast<std::size_t>(i)];
        for (std::size_t i = 1; i < covered.size(); ++i) REQUIRE(covered[i] == 1);
        const std::int64_t P = g.count_p(), Q = g.count_q();
        for (std::int64_t line = 0; line < place.lines; ++line)
            for (std::int64_t part = 0; part < place.parts_per_line; ++part)
                for (std::int64_t i = 0; i < place.inner; ++i) {
                    const Scalar* from = at(l.x, slab) + line * place.x_line + part * P * place.x_inner + i;
                    Scalar* y = at(l.y, slab) + line * place.y_line + (in_pieces ? 0 : part) * Q * place.y_inner + i;
                    std::vector<Scalar> x(
                        static_cast<std::size_t>(P));  // in place: all is read before anything is written
                    for (std::int64_t p = 0; p < P; ++p) x[static_cast<std::size_t>(p)] = from[p * place.x_inner];
                    const Scalar* c = has_addend ? at(l.addend, slab) + (y - at(l.y, slab)) : y;
                    for (std::int64_t q = 0; q < Q * static_cast<std::int64_t>(terms); ++q) {
                        const auto term = static_cast<std::size_t>(q / Q);
                        Scalar sum(0);
                        for (std::int64_t p = 0; p < P; ++p) {
                            Scalar product = x[static_cast<std::size_t>(p)];
                            std::int64_t rest_p = p, rest_q = q % Q;
                            for (std::size_t k = g.p.size(); k-- > 0;) {
                                const std::size_t f = term * modes + k;
                                const std::int64_t first = in_pieces && k == 0 ? part * g.p[0] : 0;
                                product *= at(
                                    l.factors[f],
                                    slab)[(first + rest_p % g.p[k]) * s.factor_p[f] + rest_q % g.q[k] * s.factor_q[f]];
                                rest_p /= g.p[k];
                                rest_q /= g.q[k];
                            }
                            sum += product;
                        }
                        if (dot || norm) {
                            const double value = static_cast<double>(alpha(l) * sum);
                            sums[static_cast<std::size_t>(line * 7 + part) % sums.size()] +=
                                term_of(g.ending, value, norm ? 0.0 : static_cast<double>(y[q * place.y_inner]));
                            continue;
                        }
                        Scalar& to = y[q % Q * place.y_inner];
                        if (term > 0)
                            to += scalar(l.more_scalars[term - 1]) * sum;
                        else if (l.add)
                            to = scalar(l.addend_scalar) * c[q * place.y_inner] + alpha(l) * sum;
                        else
                            to = alpha(l) * sum;
                        if (along || across) {  // the kernel's division
                            const auto u = static_cast<std::uint64_t>(&to - at(l.y, slab));
                            const std::uint64_t quotient = (u * arguments.magic) >> (32 + arguments.shift);
                            CHECK(quotient == u / arguments.divisor);
                            to *= at(l.sums_or_diagonal, slab)[along ? u % arguments.divisor : quotient];
                        }
                    }
                }
        if (dot || norm) std::ranges::copy(sums, at_sums(l.sums_or_diagonal, slab));
    }

    // A launch's second matrix as the kernels find it: `second` elements from the first one.
    Scalar* second_of(const launch& l, const memory_reference& first, std::int64_t slab) {
        for (const argument_block::distance_hole& hole : make_arguments(l).distances)
            if (hole.to == l.second) {
                REQUIRE(hole.from == first);
                REQUIRE(hole.element_bytes == static_cast<std::int64_t>(sizeof(Scalar)));
                REQUIRE((hole.offset == offsetof(group_arguments<Scalar>, second)));
                return at(hole.to, slab);
            }
        FAIL("no place for the second matrix");
        return nullptr;
    }

    // kernels/fused_terms.cuh by its contract.
    void run_terms(const launch& l, std::int64_t slab) {
        const fused_shape& s = l.fused;
        const gpu_group& g = s.group;
        const planning::group_place& place = s.place;
        REQUIRE(planning::why_illegal(g, gpu_) == "");
        REQUIRE(l.factors.size() == static_cast<std::size_t>(g.moved_factors()));
        REQUIRE(l.factors.size() == s.factor_p.size());
        REQUIRE((place.inner == 1 && !(l.x == l.y) && !(l.x == l.second)));
        REQUIRE((place.parts_per_line == 1 || place.parts_per_line % g.tile.rows == 0));
        const bool has_addend = l.addend.where != memory_reference::place::none;
        REQUIRE((g.outputs() == 1 || (!l.add && !(l.second == l.y))));
        moves += static_cast<int>(g.moves.size());
        outputs += g.outputs();
        added += has_addend ? 1 : 0;
        const std::int64_t P = g.count_p();
        for (std::int64_t row = 0; row < place.groups(); ++row) {
            const std::int64_t line = row / place.parts_per_line, part = row % place.parts_per_line;
            const Scalar* x = at(l.x, slab) + line * place.x_line + part * P;
            const std::int64_t to_row = line * place.y_line + part * P;
            const Scalar nan = std::numeric_limits<Scalar>::quiet_NaN();
            std::vector<std::vector<Scalar>> tiles(static_cast<std::size_t>(g.tiles()),
                                                   std::vector<Scalar>(static_cast<std::size_t>(P), nan));
            tiles[0].assign(x, x + P);
            std::vector<int> written(static_cast<std::size_t>(g.outputs()), 0);
            for (const planning::gpu_move& m : g.moves) {
                std::int64_t step = 1;
                for (std::int32_t level = m.level + 1; level <= g.modes(); ++level) step *= g.p_of(level);
                const std::int64_t n = g.p_of(m.level);
                const std::vector<Scalar> from = tiles[static_cast<std::size_t>(m.from)];
                const Scalar* f = at(l.factors[static_cast<std::size_t>(m.factor)], slab);
                const std::int64_t f_p = s.factor_p[static_cast<std::size_t>(m.factor)],
                                   f_q = s.factor_q[static_cast<std::size_t>(m.factor)];
                const Scalar alpha = m.term < 0    ? Scalar(1)
                                     : m.term == 0 ? scalar(l.scalar)
                                                   : scalar(l.more_scalars[static_cast<std::size_t>(m.term - 1)]);
                for (std::int64_t i = 0; i < P; ++i) {
                    const std::int64_t q = i / step % n;
                    Scalar value(0);
                    for (std::int64_t p = 0; p < n; ++p)
                        value += from[static_cast<std::size_t>(i + (p - q) * step)] * f[p * f_p + q * f_q];
                    value *= alpha;
                    if (m.sum >= 0) value += tiles[static_cast<std::size_t>(m.sum)][static_cast<std::size_t>(i)];
                    if (m.to >= 0)
                        tiles[static_cast<std::size_t>(m.to)][static_cast<std::size_t>(i)] = value;
                    else {
                        Scalar& y = (m.to == -1 ? at(l.y, slab) : second_of(l, l.y, slab))[to_row + i];
                        const Scalar c = has_addend ? at(l.addend, slab)[to_row + i] : y;
                        y = l.add ? scalar(l.addend_scalar) * c + value : value;
                    }
                }
                if (m.to < 0) ++written[static_cast<std::size_t>(-1 - m.to)];
            }
            for (const int times : written) REQUIRE(times == 1);
        }
    }

    // kernels/fused_outer.cuh with two inputs.
    void run_two_inputs(const launch& l, std::int64_t slab) {
        const fused_shape& s = l.fused;
        const gpu_group& g = s.group;
        const planning::group_place& place = s.place;
        REQUIRE(planning::why_illegal(g, gpu_) == "");
        REQUIRE((l.factors.size() == 2 && s.factor_p.size() == 2 && !l.add && l.scalar < 0));
        REQUIRE((place.x_line == place.y_line && place.x_inner == place.y_inner));
        ++two_inputs;
        const std::int64_t n = g.q_of(1);
        REQUIRE(g.p_of(1) == 2 * n);
        for (std::int64_t line = 0; line < place.lines; ++line)
            for (std::int64_t part = 0; part < place.parts_per_line; ++part)
                for (std::int64_t i = 0; i < place.inner; ++i) {
                    const std::int64_t first = line * place.x_line + part * n * place.x_inner + i;
                    std::vector<Scalar> sums(static_cast<std::size_t>(n), Scalar(0));
                    for (int input = 0; input < 2; ++input) {
                        const Scalar* x = input == 0 ? at(l.x, slab) : second_of(l, l.x, slab);
                        const auto k = static_cast<std::size_t>(input);
                        for (std::int64_t p = 0; p < n; ++p)
                            for (std::int64_t q = 0; q < n; ++q)
                                sums[static_cast<std::size_t>(q)] +=
                                    x[first + p * place.x_inner] *
                                    at(l.factors[k], slab)[p * s.factor_p[k] + q * s.factor_q[k]];
                    }
                    for (std::int64_t q = 0; q < n; ++q)
                        at(l.y, slab)[first + q * place.y_inner] = sums[static_cast<std::size_t>(q)];
                }
    }

    // kernels/fused_sum.cuh by its contract.
    void run_sum(const launch& l, std::int64_t slab) {
        const fused_shape& s = l.fused;
        const gpu_group& g = s.group;
        const planning::group_place& place = s.place;
        const std::size_t modes = g.p.size();
        REQUIRE(planning::why_illegal(g, gpu_) == "");
        REQUIRE(modes == l.factors.size());
        REQUIRE(modes == l.more_scalars.size() + 1);
        REQUIRE(place.inner == 1);
        REQUIRE(!(l.x == l.y));
        REQUIRE((place.parts_per_line == 1 || place.parts_per_line % g.tile.rows == 0));
        const bool has_addend = l.addend.where != memory_reference::place::none;
        mode_sums += static_cast<int>(modes);
        added += has_addend ? 1 : 0;
        const std::int64_t P = g.count_p();
        for (std::int64_t row = 0; row < place.groups(); ++row) {
            const std::int64_t line = row / place.parts_per_line, part = row % place.parts_per_line;
            const Scalar* x = at(l.x, slab) + line * place.x_line + part * P;
            Scalar* y = at(l.y, slab) + line * place.y_line + part * P;
            const Scalar* c = has_addend ? at(l.addend, slab) + (y - at(l.y, slab)) : y;
            for (std::int64_t i = 0; i < P; ++i) {
                Scalar sum(0);
                std::int64_t below = P;
                for (std::size_t k = 0; k < modes; ++k) {
                    below /= g.p[k];
                    const std::int64_t q = i / below % g.p[k];
                    Scalar product(0);
                    for (std::int64_t p = 0; p < g.p[k]; ++p)
                        product +=
                            x[i + (p - q) * below] * at(l.factors[k], slab)[p * s.factor_p[k] + q * s.factor_q[k]];
                    sum += scalar(k == 0 ? l.scalar : l.more_scalars[k - 1]) * product;
                }
                y[i] = l.add ? scalar(l.addend_scalar) * c[i] + sum : sum;
            }
        }
    }

    const plan& plan_;
    const launch_list& list_;
    const bindings& bindings_;
    const gpu_description gpu_;
    std::vector<std::byte> workspace_;
    std::vector<std::byte> scratch_;
    Scalar one_ = Scalar(1);
};

struct test_case {
    std::int64_t rows;
    std::vector<std::pair<std::int64_t, std::int64_t>> factors;
    bool row_major_x;
    bool row_major_y;
    std::int64_t pad;  // added to both leading strides
    bool from_left;
    bool add;
    bool host_factors;
};

template <class Scalar>
void check(const test_case& t, const options& wishes, const gpu_description& gpu, bool allow_fused,
           int* fused = nullptr, int* in_place = nullptr, int* several = nullptr) {
    std::int64_t in = 1, out = 1;
    for (const auto& [p, q] : t.factors) {
        in *= p;
        out *= q;
    }
    support::random_stream random(static_cast<std::uint64_t>(in * 131 + out));
    const auto fill = [&](std::int64_t count) {
        std::vector<Scalar> v(static_cast<std::size_t>(count));
        for (Scalar& e : v) e = static_cast<Scalar>(random.signed_power_of_two());
        return v;
    };
    // From the left X is in x rows, from the right rows x in.
    const std::int64_t x_rows = t.from_left ? in : t.rows, x_cols = t.from_left ? t.rows : in;
    const std::int64_t y_rows = t.from_left ? out : t.rows, y_cols = t.from_left ? t.rows : out;
    const std::int64_t ldx = (t.row_major_x ? x_cols : x_rows) + t.pad,
                       ldy = (t.row_major_y ? y_cols : y_rows) + 2 * t.pad;
    const std::vector<Scalar> x = fill(ldx * (t.row_major_x ? x_rows : x_cols) + 1);
    std::vector<Scalar> y = fill(ldy * (t.row_major_y ? y_rows : y_cols) + 1);
    std::vector<Scalar> want = y;
    std::vector<std::vector<Scalar>> data;
    product_node<Scalar> node;
    node.x = leaf::borrowed({x.data(), x_rows, x_cols, t.row_major_x ? ldx : 1, t.row_major_x ? 1 : ldx});
    node.x.set_space(memory_space::device);
    for (const auto& [p, q] : t.factors) {
        data.push_back(fill(p * q));
        leaf f = t.from_left ? leaf::borrowed({data.back().data(), q, p, 1, q})
                             : leaf::borrowed({data.back().data(), p, q, 1, p});
        f.set_space(t.host_factors ? memory_space::host : memory_space::device);
        (t.from_left ? node.left : node.right).push_back(f);
    }
    (t.from_left ? node.has_left : node.has_right) = true;
    node.alpha = Scalar(2);
    program p;
    bindings b;
    lowering<Scalar> low(p, b);
    low.add_product(node, {want.data(), y_rows, y_cols, t.row_major_y ? ldy : 1, t.row_major_y ? 1 : ldy}, t.add);
    reference_run<Scalar>(p, b);

    program given;
    bindings bound;
    lowering<Scalar> again(given, bound);
    again.add_product(node, {y.data(), y_rows, y_cols, t.row_major_y ? ldy : 1, t.row_major_y ? 1 : ldy}, t.add);
    for (tensor& one : given.tensors)
        if (one.binding >= 0 && one.role != tensor_role::factor) one.space = memory_space::device;
    machine m;
    m.gpus = {gpu};
    options decided = wishes;
    decided.placement = placement::gpu;
    const plan made = make_plan(given, m, decided);
    const launch_list list = lower_to_launches(made, gpu, allow_fused);
    interpreter<Scalar> run(made, list, bound, gpu);
    run.run();
    CHECK(y == want);  // powers of two: exact, gaps included
    if (fused != nullptr) *fused += run.fused;
    if (in_place != nullptr) *in_place += run.in_place;
    if (several != nullptr) *several += run.several;
}

std::vector<test_case> cases() {
    std::vector<test_case> result;
    const std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> chains{
        {{2, 3}, {4, 2}, {3, 4}},
        {{3, 3}, {3, 3}, {3, 3}, {3, 3}},
        {{1, 5}, {4, 1}},
        {{1, 1}, {2, 3}, {1, 1}},
        {{6, 6}},
        {{2, 2}, {2, 2}, {2, 2}, {2, 2}, {2, 2}},
    };
    for (const auto& chain : chains)
        for (const std::int64_t rows : {1, 2, 5})
            for (int bits = 0; bits < 32; ++bits)
                result.push_back({rows, chain, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0 ? 3 : 0,
                                  (bits & 8) != 0, (bits & 16) != 0, bits % 3 == 0});
    return result;
}

// Y = (or, with `add`, Y +=) the sum of the products.
void add_products(program& p, bindings& b, const std::vector<product_node<double>>& nodes, const matrix_view& y,
                  bool add) {
    lowering<double> low(p, b);
    for (const product_node<double>& node : nodes) {
        low.add_product(node, y, add);
        add = true;
    }
}

// All operands in device memory, each bound once, as DeviceMatrix expressions are lowered.
void place_on_device(program& p, const bindings& b) {
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
        tensor& t = p.tensors[i];
        if (t.binding < 0) continue;
        t.space = memory_space::device;
        for (std::size_t j = 0; j < i; ++j)
            if (p.tensors[j].binding >= 0 && p.tensors[j].role == t.role &&
                b.pointers[static_cast<std::size_t>(p.tensors[j].binding)] ==
                    b.pointers[static_cast<std::size_t>(t.binding)])
                t.binding = p.tensors[j].binding;
    }
}

}  // namespace

TEST_CASE("launch lists compute what their programs say") {
    int fused = 0;
    for (const test_case& t : cases()) {
        CAPTURE(t.rows);
        CAPTURE(t.factors.size());
        CAPTURE(t.row_major_x);
        CAPTURE(t.row_major_y);
        CAPTURE(t.from_left);
        check<double>(t, {}, h200(), true, &fused);
        check<float>(t, {}, gpu_of_capability(75), true);
        check<double>(t, {}, h200(), false);
    }
    CHECK(fused > 400);  // the fused kernels are reached
}

// The interpreter refuses tiles that the GPU cannot run (planning::why_illegal).
TEST_CASE("launch lists of random products, for random GPUs of every capability") {
    support::random_stream random(20);
    const auto pick = [&random](std::int64_t least, std::int64_t most) { return random.integer(least, most); };
    const int count = support::long_tests() ? 400 : 30;
    int fused = 0;
    for (int i = 0; i < count; ++i) {
        test_case t{pick(1, 40),
                    {},
                    pick(0, 1) == 1,
                    pick(0, 1) == 1,
                    pick(-2, 4) > 0 ? pick(1, 5) : 0,
                    pick(0, 1) == 1,
                    pick(0, 1) == 1,
                    pick(0, 2) == 0};
        const bool square = pick(0, 1) == 1;
        std::int64_t in = 1, out = 1;
        for (std::int64_t left = pick(1, 5); left > 0; --left) {
            const std::int64_t p = pick(0, 4) == 0 ? pick(1, 40) : pick(1, 9), q = square ? p : pick(1, 12);
            if (in * p > 800 || out * q > 800) break;
            in *= p;
            out *= q;
            t.factors.emplace_back(p, q);
        }
        if (t.factors.empty()) continue;
        const std::vector<std::int32_t> capabilities{75, 80, 86, 89, 90, 100, 103, 110, 120, 121};
        gpu_description gpu = gpu_of_capability(capabilities[static_cast<std::size_t>(i) % capabilities.size()]);
        if (pick(0, 3) == 0) gpu.shared_bytes_per_block = static_cast<std::int32_t>(8192 * pick(1, 6));
        if (pick(0, 3) == 0) gpu.multiprocessors = static_cast<std::int32_t>(pick(1, 20));
        gpu.compiles = pick(0, 6) > 0;
        options wishes;
        wishes.precision = pick(0, 2) == 0 ? precision::ieee : precision::standard;
        wishes.deterministic = pick(0, 4) == 0;
        CAPTURE(i);
        CAPTURE(gpu.name);
        check<double>(t, wishes, gpu, true, &fused);
        check<float>(t, wishes, gpu, true, &fused);
        try {
            wishes.workspace_limit_bytes = 0;
            check<double>(t, wishes, gpu, true);
        } catch (const budget_error& refusal) {  // what it says is enough
            wishes.workspace_limit_bytes = refusal.least_bytes();
            check<double>(t, wishes, gpu, true);
        }
    }
    CHECK(fused > count);
}

TEST_CASE("a factor that no block holds: a launch for each slice of the new index") {
    gpu_description small = h200();
    small.shared_bytes_per_block = 8192;  // a factor of 32 x 32 doubles alone
    small.multiprocessors = 1;            // each launch leaves none idle
    for (const auto& chain : std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>{
             {{32, 32}}, {{32, 32}, {32, 32}}, {{24, 48}}, {{40, 32}, {3, 2}}, {{32, 32}, {5, 5}, {32, 32}}}) {
        int fused = 0;
        const int every = chain.size() < 3 || support::long_tests() ? 1 : 3;  // of long rows fewer in the default run
        for (int bits = 0; bits < 32; bits += every) {
            const test_case t{40,
                              chain,
                              (bits & 1) != 0,
                              (bits & 2) != 0,
                              (bits & 4) != 0 ? 3 : 0,
                              (bits & 8) != 0,
                              (bits & 16) != 0,
                              false};
            check<double>(t, {}, small, true, &fused);
        }
        CHECK(fused * every >= 32);  // two launches where nothing stands between the modes
    }
}

namespace {

// The launches of X * K with X of `rows` rows, everything in device memory.
launch_list launches_of(std::int64_t rows, const std::vector<std::pair<std::int64_t, std::int64_t>>& factors,
                        dtype type, bool row_major, const options& wishes = {}, const gpu_description& gpu = h200(),
                        bool allow_fused = true) {
    planner_test::program p = planner_test::rows_program(
        rows,
        [&] {
            std::vector<planner_test::mode_spec> modes;
            for (const auto& [p_extent, q_extent] : factors) modes.push_back(planner_test::factor(p_extent, q_extent));
            return modes;
        }(),
        type, !row_major);
    for (tensor& t : p.tensors) t.space = t.binding >= 0 ? memory_space::device : memory_space::host;
    machine m;
    m.gpus = {gpu};
    options decided = wishes;
    decided.placement = placement::gpu;
    return lower_to_launches(make_plan(p, m, decided), gpu, allow_fused);
}

}  // namespace

TEST_CASE("long factors go by blocks, where their kernel can be compiled; what they do is the generic kernel's") {
    const std::vector<std::pair<std::int64_t, std::int64_t>> factors{{359, 290}, {301, 359}};
    const launch_list list = launches_of(500, factors, dtype::f64, true);
    REQUIRE(list.slab.size() == 2);
    for (const launch& l : list.slab) {
        REQUIRE(l.kind == launch_kind::sliced);
        REQUIRE(l.sliced.blocks);
        CHECK(l.sliced.blocks->arithmetic == sweep_kernel::mma_f64);
        CHECK(l.sliced.batches == 0);
        const argument_block block = make_arguments(l);
        CHECK(block.bytes.size() == sizeof(blocked_arguments<double>));
    }
    options repeatable;
    repeatable.deterministic = true;
    for (const launch& l : launches_of(500, factors, dtype::f64, true, repeatable).slab) {
        REQUIRE(l.sliced.blocks);
        CHECK(l.sliced.blocks->arithmetic == sweep_kernel::fibre);
    }
    for (const launch& l : launches_of(500, factors, dtype::f64, true, {}, h200(), false).slab) CHECK(!l.sliced.blocks);
    gpu_description without = h200();
    without.compiles = false;
    for (const launch& l : launches_of(500, factors, dtype::f64, true, {}, without).slab) CHECK(!l.sliced.blocks);
    // The interpreter of launches does what they say, long sums included.
    for (const bool row_major : {false, true}) {
        const test_case t{40, {{300, 3}, {2, 2}}, row_major, row_major, 1, false, true, false};
        check<double>(t, {}, h200(), true);
        check<double>(test_case{70, {{90, 80}}, row_major, !row_major, 0, row_major, false, false}, {}, h200(), true);
    }
}

TEST_CASE("long sums of few blocks: pieces beside each other, and the sum of these, as the plan says") {
    for (const bool row_major : {false, true}) {
        const launch_list list = launches_of(300, {{512, 64}}, dtype::f64, row_major);
        REQUIRE(list.slab.size() == 2);
        const launch& pieces = list.slab[0];
        const launch& sum = list.slab[1];
        REQUIRE(pieces.sliced.blocks);
        CHECK(pieces.sliced.batches == 1);
        CHECK(pieces.sliced.p_extent * sum.sliced.p_extent == 512);
        CHECK(pieces.sliced.free.front().extent == sum.sliced.p_extent);
        CHECK(sum.sliced.p_extent > 1);
        CHECK(!sum.sliced.blocks);
        CHECK(pieces.y == sum.x);
        CHECK(list.scratch_bytes >= std::int64_t{8} * 300 * 64 * sum.sliced.p_extent);
        // The interpreter of launches does what they say; Y is added to, and both ends have strides.
        check<double>(test_case{300, {{512, 64}}, row_major, true, 1, false, false, false}, {}, h200(), true);
        check<double>(test_case{6, {{50, 50}, {512, 64}}, row_major, false, 0, true, true, false}, {}, h200(), true);
    }
    // A plan that names pieces which are not equal, or none.
    planner_test::program p = planner_test::rows_program(300, {planner_test::factor(512, 64)}, dtype::f64);
    for (tensor& t : p.tensors) t.space = t.binding >= 0 ? memory_space::device : memory_space::host;
    plan made = make_plan(p, gpu_machine(h200()));
    REQUIRE(made.passes.front().tile.slices > 1);
    for (const int slices : {0, -4, 1, 3, 2048}) {
        made.passes.front().tile.slices = slices;
        CHECK(lower_to_launches(made, h200()).slab.size() == 1);
    }
}

TEST_CASE("few long sums: several threads for each, as the plan says, with slabs and without") {
    const auto lanes = [](std::int64_t rows, const options& wishes = {}) {
        std::vector<std::int32_t> of;
        for (const launch& l : launches_of(rows, {{659, 659}}, dtype::f64, true, wishes).slab) {
            REQUIRE(l.kind == launch_kind::sliced);
            of.push_back(l.sliced.lanes_log2);
            sliced_arguments<double> a;
            const argument_block block = make_arguments(l);
            REQUIRE(block.bytes.size() == sizeof(a));
            std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
            CHECK(a.lanes_log2 == l.sliced.lanes_log2);
        }
        return of;
    };
    CHECK(lanes(2) == std::vector<std::int32_t>{5});
    CHECK(lanes(20) == std::vector<std::int32_t>{4});  // 13180 sums
    options repeatable;
    repeatable.deterministic = true;
    CHECK(lanes(2, repeatable) == std::vector<std::int32_t>{0});
    // A plan that names what no block has.
    planner_test::program p = planner_test::rows_program(2, {planner_test::factor(659, 659)}, dtype::f64);
    for (tensor& t : p.tensors) t.space = t.binding >= 0 ? memory_space::device : memory_space::host;
    plan made = make_plan(p, gpu_machine(h200()));
    REQUIRE(made.passes.front().tile.slices == 32);
    for (const auto& [threads, log2] : {std::pair{0, 0}, std::pair{-5, 0}, std::pair{3, 1}, std::pair{4096, 8}}) {
        made.passes.front().tile.slices = threads;
        CHECK(lower_to_launches(made, h200()).slab.front().sliced.lanes_log2 == log2);
    }
}

TEST_CASE("few rows of a long factor: several fibres a thread, as the plan says, where their kernel can be had") {
    const auto fibres = [](std::int64_t rows, bool allow_fused = true, const gpu_description& gpu = h200(),
                           const options& wishes = {}) {
        const launch_list list = launches_of(rows, {{2000, 1500}}, dtype::f64, true, wishes, gpu, allow_fused);
        REQUIRE(list.slab.size() == 1);
        const launch& l = list.slab.front();
        REQUIRE(l.kind == launch_kind::sliced);
        CHECK(make_arguments(l).bytes.size() == sizeof(sliced_arguments<double>));  // those of the generic kernel
        CHECK((l.sliced.fibres == 1 || l.sliced.lanes_log2 == 4));
        return l.sliced.fibres;
    };
    CHECK(fibres(12) == 8);
    CHECK(fibres(3) == 4);
    CHECK(fibres(1) == 1);
    CHECK(fibres(12, false) == 1);
    gpu_description small = h200();
    small.shared_bytes_per_block = 64 * 1024;
    CHECK(fibres(12, true, small) == 1);
    options repeatable;
    repeatable.deterministic = true;
    CHECK(fibres(12, true, h200(), repeatable) == 1);
    // A plan that names what no kernel has.
    planner_test::program p = planner_test::rows_program(12, {planner_test::factor(2000, 1500)}, dtype::f64);
    for (tensor& t : p.tensors) t.space = t.binding >= 0 ? memory_space::device : memory_space::host;
    plan made = make_plan(p, gpu_machine(h200()));
    REQUIRE(made.passes.front().tile.rows == 8);
    for (const auto& [rows, taken] : {std::pair{1, 1}, std::pair{3, 1}, std::pair{4, 4}, std::pair{4096, 8}}) {
        made.passes.front().tile.rows = rows;
        CHECK(lower_to_launches(made, h200()).slab.front().sliced.fibres == taken);
    }
    // The interpreter of launches does what they say.
    check<double>(test_case{12, {{900, 310}}, true, false, 1, false, true, false}, {}, h200(), true);
    check<double>(test_case{5, {{310, 900}, {2, 2}}, false, true, 0, true, false, false}, {}, h200(), true);
}

TEST_CASE("outer groups are told where the rows of Y begin at any element") {
    const auto unaligned = [](std::int64_t rows, const std::vector<std::pair<std::int64_t, std::int64_t>>& factors,
                              dtype type, const gpu_description& gpu = h200()) {
        int count = 0;
        for (const launch& l : launches_of(rows, factors, type, false, {}, gpu).slab)
            count += l.kind == launch_kind::fused && l.fused.group.unaligned ? 1 : 0;
        return count;
    };
    CHECK(unaligned(100001, {{8, 16}, {8, 16}}, dtype::f32) > 0);
    CHECK(unaligned(100002, {{8, 16}, {8, 16}}, dtype::f32) > 0);
    CHECK(unaligned(100004, {{8, 16}, {8, 16}}, dtype::f32) == 0);
    CHECK(unaligned(100001, {{8, 16}, {8, 16}}, dtype::f64) > 0);
    CHECK(unaligned(100002, {{8, 16}, {8, 16}}, dtype::f64) == 0);
    CHECK(unaligned(100001, {{8, 16}, {8, 16}}, dtype::c128) == 0);  // an element is an access
    CHECK(unaligned(75001, {{25, 25}}, dtype::f32) == 0);  // a thread holds one fibre: its neighbours store neighbours
    gpu_description without = h200();
    without.compiles = false;
    CHECK(unaligned(100001, {{8, 16}, {8, 16}}, dtype::f32, without) == 0);
}

TEST_CASE("real factors of a complex product are widened once, before the kernels that are fused read them") {
    const auto launches = [](std::uint32_t real_factors, std::int64_t extent) {
        planner_test::chain_spec spec;
        spec.type = dtype::c128;
        const auto longer = planner_test::factor(extent, extent + 2);
        spec.modes = {planner_test::free_mode(50), longer, longer, longer};
        spec.real_factors = real_factors;
        program p = chain_program(spec);
        for (tensor& t : p.tensors) {
            t.space = memory_space::device;
        }
        return lower_to_launches(plan_for_h200(p), h200());
    };
    for (const std::int64_t extent : {12, 100}) {  // in two passes; in three, one of them between two intermediates
        const launch_list alike = launches(0, extent);
        CHECK(alike.before.empty());
        CHECK(alike.slab.size() == (extent == 12 ? 2 : 3));
        for (std::uint32_t real_factors = 1; real_factors < 8; ++real_factors) {  // bit i: of step i
            CAPTURE(extent);
            CAPTURE(real_factors);
            const launch_list mixed = launches(real_factors, extent);
            REQUIRE(mixed.slab.size() == alike.slab.size());
            const auto count = static_cast<std::size_t>(std::popcount(real_factors));
            REQUIRE(mixed.before.size() == 2 * count);  // of each factor zeros, and the real parts among them
            for (std::size_t i = 0; i < mixed.before.size(); i += 2) {
                CHECK(mixed.before[i].type == dtype::c128);
                CHECK(mixed.before[i].sliced.q_extent == extent * (extent + 2));
                CHECK(mixed.before[i + 1].type == dtype::f64);
                CHECK(mixed.before[i].y == mixed.before[i + 1].y);
            }
            std::size_t widened = 0;
            for (const launch& l : mixed.slab) {
                CHECK(l.type == dtype::c128);
                for (const memory_reference& f : l.factors) {
                    for (std::size_t i = 0; i < mixed.before.size(); i += 2) {
                        widened += f == mixed.before[i].y ? 1 : 0;
                    }
                }
            }
            CHECK(widened == count);
        }
    }
}

TEST_CASE("a scalar that the GPU does not know is refused by the planner, not by a division") {
    CHECK_THROWS_AS((void)launches_of(10, {{3, 3}}, dtype::other, false), unsupported_error);
}

TEST_CASE("launch lists keep a workspace limit by slabs") {
    const test_case t{53, {{4, 7}, {6, 5}, {3, 4}}, false, true, 0, false, true, false};
    gpu_description small = h200();
    small.shared_bytes_per_block = 512;  // several passes
    for (const std::int64_t limit : {200, 1000, 5000, 100000}) {
        options wishes;
        wishes.workspace_limit_bytes = limit * 8;
        try {
            check<double>(t, wishes, small, true);
        } catch (const budget_error&) {
        }
    }
}

TEST_CASE("intermediates of square passes lie in Y, fused and one mode at a time, with and without slabs") {
    gpu_description small = h200();
    small.shared_bytes_per_block = 2048;  // several passes
    small.cluster_blocks = 1;
    int in_place = 0;
    for (int bits = 0; bits < 32; ++bits) {
        const test_case t{9,
                          {{4, 4}, {5, 5}, {4, 4}, {3, 3}},
                          (bits & 1) != 0,
                          (bits & 2) != 0,
                          (bits & 4) != 0 ? 3 : 0,
                          (bits & 8) != 0,
                          (bits & 16) != 0,
                          false};
        check<double>(t, {}, small, true, nullptr, t.add ? nullptr : &in_place);
        check<float>(t, {}, small, false);
        test_case changing = t;  // the first pass changes the shape, the rest lies in Y
        changing.factors[3] = {3, 2};
        check<double>(changing, {}, small, true, nullptr, &in_place);
        options limited;
        limited.workspace_limit_bytes = 6000;
        try {
            check<double>(changing, limited, small, true);
        } catch (const budget_error&) {
        }
    }
    CHECK(in_place > 10);
    // By blocks, where a square factor stays on chip whole: the last of two passes.
    in_place = 0;
    const auto by_blocks = [](bool row_major) {
        return test_case{160, {{100, 100}, {100, 100}}, row_major, false, 0, false, false, false};
    };
    for (const bool row_major : {false, true}) {
        check<double>(by_blocks(row_major), {}, h200(), true, nullptr, &in_place);
    }
    CHECK(in_place == 2);
    // Where no kernel can be had, by the generic one, which may not.
    check<double>(by_blocks(true), {}, h200(), false, nullptr, &in_place);
    CHECK(in_place == 2);
}

TEST_CASE("small tensors share a tile where their number allows it; slabs of any size stay right") {
    gpu_description small = h200();
    small.multiprocessors = 1;
    small.shared_bytes_per_block = 1536;
    small.cluster_blocks = 1;
    int several = 0;
    for (int bits = 0; bits < 16; ++bits)
        for (const std::int64_t rows : {1, 12, 32}) {
            const test_case t{rows,
                              {{4, 4}, {6, 2}, {4, 4}, {4, 8}},
                              (bits & 1) != 0,
                              (bits & 1) != 0,
                              (bits & 2) != 0 ? 3 : 0,
                              (bits & 4) != 0,
                              (bits & 8) != 0,
                              false};
            check<double>(t, {}, small, true, nullptr, nullptr, &several);
            options limited;
            limited.workspace_limit_bytes = 20000;
            try {
                check<float>(t, limited, small, true);
            } catch (const budget_error&) {
            }
        }
    CHECK(several >= 4);
}

TEST_CASE("sums: terms of one X share a launch, a matrix is read where it is added") {
    // Y (+)= [2 Z or X] + K1 + K2 + K3, one program; X and Y are bound once, as the front end does it.
    const auto run = [](const std::vector<std::vector<std::int64_t>>& terms, std::int64_t rows, std::int64_t pad,
                        int matrix, bool add, const gpu_description& gpu, bool allow_fused, int& summed, int& added,
                        int* mode_sums = nullptr, std::size_t* launches = nullptr, unsigned alike = 0) {
        std::int64_t n = 1;
        for (const std::int64_t e : terms.front()) n *= std::abs(e);
        support::random_stream random(static_cast<std::uint64_t>(rows * 7 + n));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const std::int64_t ld = n + pad;
        const std::vector<double> x = fill(rows * ld), z = fill(rows * ld);
        std::vector<double> y = fill(rows * ld), want = y;
        std::vector<std::vector<double>> data;
        std::vector<product_node<double>> nodes;
        std::vector<leaf> shared;  // the first two factors of the terms in the set `alike`
        const auto operand = [&](const std::vector<double>& m) {
            leaf l = leaf::borrowed({m.data(), rows, n, ld, 1});
            l.set_space(memory_space::device);
            return l;
        };
        if (matrix > 0) {
            nodes.emplace_back();
            nodes.back().x = operand(matrix == 1 ? z : x);
            nodes.back().alpha = 2;
        }
        for (const std::vector<std::int64_t>& term : terms) {
            nodes.emplace_back();
            nodes.back().x = operand(x);
            nodes.back().has_right = true;
            nodes.back().alpha = 0.5 * static_cast<double>(nodes.size());
            for (const std::int64_t signed_extent : term) {
                const std::int64_t e = std::abs(signed_extent);
                const std::size_t at = nodes.back().right.size();
                const bool is_shared = at < 2 && (alike >> (&term - terms.data()) & 1u) != 0;
                if (is_shared && shared.size() > at) {
                    nodes.back().right.push_back(shared[at]);
                    continue;
                }
                if (signed_extent < 0) {
                    nodes.back().right.push_back(leaf::identity(e));
                    continue;
                }
                data.push_back(fill(e * e));
                leaf f = leaf::borrowed({data.back().data(), e, e, 1, e});
                f.set_space(memory_space::device);
                if (is_shared) shared.push_back(f);
                nodes.back().right.push_back(f);
            }
        }
        program p, given;
        bindings b, bound;
        add_products(p, b, nodes, {want.data(), rows, n, ld, 1}, add);
        reference_run<double>(p, b);
        add_products(given, bound, nodes, {y.data(), rows, n, ld, 1}, add);
        place_on_device(given, bound);
        machine m;
        m.gpus = {gpu};
        options decided;
        decided.placement = placement::gpu;
        const plan made = make_plan(given, m, decided);
        const launch_list list = lower_to_launches(made, gpu, allow_fused);
        interpreter<double> device(made, list, bound, gpu);
        device.run();
        CHECK(y == want);
        summed += device.summed;
        added += device.added;
        if (mode_sums != nullptr) *mode_sums = device.mode_sums;
        if (launches != nullptr) *launches = list.slab.size();
    };
    gpu_description small = h200();
    small.shared_bytes_per_block = 1000;  // several passes
    small.cluster_blocks = 1;
    for (int bits = 0; bits < 12; ++bits) {
        CAPTURE(bits);
        const int matrix = bits % 3;
        const bool add = (bits & 4) != 0;
        const std::int64_t pad = bits % 2 * 3;
        int summed = 0, added = 0;
        run({{4, 3, 2}, {4, 3, 2}, {4, 3, 2}}, 5, pad, matrix, add, h200(), true, summed, added);
        CHECK(summed == 1);
        CHECK(added == (matrix > 0 && !add ? 1 : 0));
        summed = added = 0;
        run({{4, 3, 2}, {6, 4}, {6, 4}, {4, 3, 2}}, 3, pad, matrix, add, h200(), true, summed, added);
        CHECK(summed == 1);  // the two in the middle
        CHECK(added == (matrix > 0 && !add ? 1 : 0));
        run({{4, 3, 2}, {4, 3, 2}}, 3, pad, matrix, add, h200(), false, summed, added);
        summed = added = 0;
        run({{4, 4, 4, 4}, {4, 4, 4, 4}}, 7, pad, matrix, add, small, true, summed, added);
        CHECK(added == 0);  // several passes: through Y, then the matrix
        if (bits < 3) {     // whose tile would rotate through three places, but not with several terms
            summed = 0;
            gpu_description one = h200();
            one.multiprocessors = 1;
            run({{32, 32, -16}, {32, 32, -16}}, 2, pad, matrix, add, one, true, summed, added);
            CHECK(summed == 1);
        }
        // Terms that end with the same pass: their first passes are added up, in one launch, and it is done once.
        std::size_t apart = 0, together = 0;
        const std::vector<std::vector<std::int64_t>> four{{4, 4, 4, 4}, {4, 4, 4, 4}, {4, 4, 4, 4}, {4, 4, 4, 4}};
        run(four, 7, pad, matrix, add, small, true, summed, added, nullptr, &apart);
        summed = 0;
        run(four, 7, pad, matrix, add, small, true, summed, added, nullptr, &together, 13);
        CHECK(together == apart - (add || pad == 0 ? 4 : 2));  // the first one through a Y with gaps stays apart
        CHECK(summed == 1);
        // One mode each: as far as they follow each other up to the innermost. Negative: an identity.
        int sums = 0;
        added = 0;
        run({{4, -3, -5}, {-4, 3, -5}, {-4, -3, 5}}, 5, pad, matrix, add, h200(), true, summed, added, &sums);
        CHECK(sums == 3);
        CHECK(added == (matrix > 0 && !add ? 1 : 0));
        run({{4, -3, -4}, {-4, -3, 4}, {-4, 3, -4}, {-4, -3, 4}}, 600, pad, matrix, add, h200(), true, summed, added,
            &sums);
        CHECK(sums == 3);
        run({{-4, -3, 4}, {4, -3, -4}}, 5, pad, matrix, add, h200(), true, summed, added, &sums);
        CHECK(sums == 0);  // a gap
        run({{41, -3, -4}, {-41, -3, 4}, {-41, 3, -4}}, 5, pad, matrix, add, h200(), true, summed, added, &sums);
        CHECK(sums == 2);  // fibres of 41 are too long
        run({{40, -3, -4}, {-40, -3, 4}, {-40, 3, -4}}, 5, pad, matrix, add, h200(), true, summed, added, &sums);
        CHECK(sums == 3);  // by the matrix unit
        run({{2, -3, -4}, {-2, 3, 4}, {-2, -3, 4}}, 5, pad, matrix, add, h200(), true, summed, added, &sums);
        CHECK(sums == 0);
        gpu_description ahead = h200();
        ahead.compiles = false;
        summed = 0;
        run({{4, -3, -4}, {-4, 3, -4}, {-4, -3, 4}}, 5, pad, matrix, add, ahead, true, summed, added, &sums);
        CHECK(sums == 0);
        summed = 0;
        run({{4, 4, 4}, {4, 4, 4}}, 300, pad, matrix, add, ahead, true, summed, added);
        CHECK(summed == 0);
    }
}

TEST_CASE("sums keep a workspace limit by slabs, every limit with the same result") {
    using planner_test::factor;
    const std::vector<planner_test::mode_spec> abc{factor(4, 4), factor(5, 5), factor(6, 6)};
    const std::vector<planner_test::mode_spec> de{factor(10, 10), factor(12, 12)};
    gpu_description small = h200();
    small.shared_bytes_per_block = 1536;  // several passes
    small.cluster_blocks = 1;
    machine target;
    target.gpus = {small};
    for (int bits = 0; bits < 8; ++bits) {
        program p =
            planner_test::sum_of_chains(23, {abc, (bits & 1) != 0 ? abc : de}, (bits & 2) != 0, (bits & 1) != 0);
        const bool add = (bits & 4) != 0;
        for (tensor& t : p.tensors) t.space = memory_space::device;
        for (step& s : p.steps) s.add = s.add || (add && p.at(s.out).role == tensor_role::output);
        support::random_stream random(static_cast<std::uint64_t>(bits));
        std::vector<std::vector<double>> data;
        bindings b;
        for (const tensor& t : p.tensors) data.resize(std::max(data.size(), static_cast<std::size_t>(t.binding + 1)));
        for (std::size_t id = 0; id < p.tensors.size(); ++id) {
            if (p.tensors[id].binding < 0) continue;
            auto& values = data[static_cast<std::size_t>(p.tensors[id].binding)];
            values.resize(static_cast<std::size_t>(element_count(p, static_cast<std::int32_t>(id))));
            for (double& v : values) v = random.signed_power_of_two();
        }
        for (auto& values : data) b.pointers.push_back(values.data());
        std::vector<double>& y = data[1];
        const std::vector<double> before = y;
        reference_run<double>(p, b);
        const std::vector<double> want = y;
        options wishes;
        wishes.placement = placement::gpu;
        const std::int64_t most = make_plan(p, target, wishes).workspace_bytes;
        wishes.workspace_limit_bytes = 0;
        std::int64_t least = 0;
        try {
            static_cast<void>(make_plan(p, target, wishes));
        } catch (const budget_error& refused) {
            least = refused.least_bytes();
        }
        REQUIRE(least > 0);
        REQUIRE(least < most / 4);
        wishes.workspace_limit_bytes = least - 1;
        CHECK_THROWS_AS(static_cast<void>(make_plan(p, target, wishes)), budget_error);
        for (std::int64_t limit = least; limit <= most; limit += (most - least) / 5) {
            wishes.workspace_limit_bytes = limit;
            const plan made = make_plan(p, target, wishes);
            CHECK(made.workspace_bytes <= limit);
            CHECK((limit > least || made.slab_count == 23));
            CHECK(plan_from_text(to_text(made)) == made);
            for (const bool allow_fused : {true, false}) {
                y = before;
                if (!add) std::fill(y.begin(), y.end(), std::numeric_limits<double>::quiet_NaN());
                const launch_list list = lower_to_launches(made, small, allow_fused);
                interpreter<double>(made, list, b, small).run();
                CHECK(y == want);
            }
        }
    }
}

TEST_CASE("a buffer that one term has left and another one takes is not written before the first has been read") {
    // T = X A, Y = (X B) F + T D + (X C) F: the products of B and C may be added up in front of F, in the buffer of the last one, which was T's.
    gpu_description small = h200();
    small.shared_bytes_per_block = 1536;  // F in a pass of its own
    small.cluster_blocks = 1;
    machine target;
    target.gpus = {small};
    const std::vector<std::int64_t> extents{23, 4, 5, 6};
    program p;
    std::int32_t bindings_used = 2;
    const auto matrix = [&](tensor_role role, std::int32_t binding) {
        tensor t;
        t.role = role;
        t.binding = binding;
        t.space = memory_space::device;
        const std::int32_t id = p.add_tensor(t);
        std::int64_t stride = 23 * 120;
        for (const std::int64_t extent : extents) p.add_mode(extent, binding < 0 ? 0 : stride /= extent);
        return id;
    };
    const auto factor = [&](std::int32_t mode) {
        tensor t;
        t.role = tensor_role::factor;
        t.binding = bindings_used++;
        t.space = memory_space::device;
        const std::int64_t n = extents[static_cast<std::size_t>(mode)];
        const std::int32_t id = p.add_tensor(t);
        p.add_mode(n, n);
        p.add_mode(n, 1);
        return std::pair{id, mode};
    };
    using factors = std::vector<std::pair<std::int32_t, std::int32_t>>;
    const auto term = [&](std::int32_t from, const factors& by, std::int32_t to, bool add) {
        for (std::size_t i = 0; i < by.size(); ++i) {
            step s;
            s.in = from;
            s.factor = by[i].first;
            s.mode = by[i].second;
            s.add = add && i + 1 == by.size();
            s.out = from = i + 1 < by.size() ? matrix(tensor_role::temporary, -1) : to;
            p.steps.push_back(s);
        }
    };
    const std::int32_t x = matrix(tensor_role::input, 0), t = matrix(tensor_role::temporary, -1);
    const auto F = factor(1);
    term(x, {factor(3)}, t, false);
    term(x, {factor(3), factor(2), F}, matrix(tensor_role::output, 1), false);
    term(t, {factor(2)}, matrix(tensor_role::output, 1), true);
    term(x, {factor(3), factor(2), F}, matrix(tensor_role::output, 1), true);
    options wishes;
    wishes.placement = placement::gpu;
    const plan made = make_plan(p, target, wishes);
    REQUIRE(made.passes.size() == 6);
    REQUIRE(made.passes[4].out == made.passes[0].out);
    planner_test::exact_operands operands(p, 1);
    operands.restore(p);
    reference_run<double>(p, operands.bound);
    const std::vector<double> want = operands.result();
    operands.restore(p);
    const launch_list list = lower_to_launches(made, small);
    interpreter<double>(made, list, operands.bound, small).run();
    CHECK(operands.result() == want);
}

TEST_CASE("products with structure and their sums keep a workspace limit by slabs, every limit with the same result") {
    int cut = 0, with_steps = 0;
    for (int i = 0; i < (support::long_tests() ? 1500 : 120); ++i) {
        CAPTURE(i);
        support::random_stream random(static_cast<std::uint64_t>(i) * 100'003);
        planner_test::sum_wishes content;
        content.on_device = content.may_reduce = true;
        const planner_test::random_sum sum(random, content);
        const program& p = sum.program;
        gpu_description gpu = h200();
        if (random.integer(0, 1) == 0) {
            gpu.shared_bytes_per_block = 1536;  // several passes
            gpu.cluster_blocks = 1;
        }
        gpu.compiles = random.integer(0, 3) != 0;
        machine target;
        target.gpus = {gpu};
        options wishes;
        wishes.placement = placement::gpu;
        const auto planned = [&](std::int64_t limit) {
            wishes.workspace_limit_bytes = limit;
            return make_plan(p, target, wishes);
        };
        const std::int64_t most = planned(std::numeric_limits<std::int64_t>::max()).workspace_bytes;
        std::int64_t least = 0;
        try {
            static_cast<void>(planned(0));
        } catch (const budget_error& refused) {
            least = refused.least_bytes();
            CHECK_THROWS_AS(static_cast<void>(planned(least - 1)), budget_error);
        }
        REQUIRE(least <= most);
        planner_test::exact_operands operands(p, static_cast<std::uint64_t>(i));
        operands.restore(p);
        reference_run<double>(p, operands.bound);
        const std::vector<double> want = operands.result();
        for (std::int64_t limit = least; limit <= most; limit += 1 + (most - least) / 4) {
            const plan made = planned(limit);
            CHECK(made.workspace_bytes <= limit);
            CHECK(plan_from_text(to_text(made)) == made);
            const bool has_steps =
                std::ranges::any_of(made.passes, [](const pass& one) { return one.kernel == pass_kernel::step; });
            cut += made.slab_count > 1 ? 1 : 0;
            with_steps += made.slab_count > 1 && has_steps ? 1 : 0;
            CHECK((made.slab_count == 1 || explain(made).find(" slabs of at most ") != std::string::npos));
            for (const bool allow_fused : {true, false}) {
                operands.restore(p);
                const launch_list list = lower_to_launches(made, gpu, allow_fused);
                interpreter<double>(made, list, operands.bound, gpu).run();
                CHECK(operands.result() == want);
            }
        }
    }
    CHECK(cut > 100);
    CHECK(with_steps > 100);
}

TEST_CASE("slabs change neither the pieces of few long sums nor the kernel of a factor for each item") {
    // Rows of P x other to Q x other, by a factor for each row, or for each of the others; from a copy of X, which slabs make shorter.
    struct shape {
        std::int64_t p, q, other;
        bool differs;
    };
    for (const shape& of :
         {shape{640, 3, 40, true}, shape{640, 3, 40, false}, shape{64, 64, 30, true}, shape{64, 64, 30, false}}) {
        const std::int64_t P = of.p, Q = of.q, other = of.other;
        const bool differs = of.differs;
        CAPTURE(P);
        CAPTURE(differs);
        program p;
        const auto add = [&](tensor_role role, std::int32_t binding, const std::vector<mode>& modes) {
            tensor t;
            t.role = role;
            t.binding = binding;
            t.space = memory_space::device;
            const std::int32_t id = p.add_tensor(t);
            for (const mode& m : modes) p.add_mode(m.extent, m.stride);
            return id;
        };
        const std::int32_t x = add(tensor_role::input, 0, {{147, P * other}, {P, other}, {other, 1}});
        const std::int32_t between = add(tensor_role::temporary, -1, {{147, 0}, {P, 0}, {other, 0}});
        const std::int32_t items =
            add(tensor_role::factor, 2, {{147, differs ? P * Q : 0}, {other, differs ? 0 : P * Q}, {P, Q}, {Q, 1}});
        const std::int32_t y = add(tensor_role::output, 1, {{147, Q * other}, {Q, other}, {other, 1}});
        step copy;
        copy.kind = step_kind::accumulate;
        copy.in = x;
        copy.out = between;
        p.steps.push_back(copy);
        step product;
        product.in = between;
        product.factor = items;
        product.mode = 1;
        product.out = y;
        p.steps.push_back(product);
        planner_test::exact_operands operands(p, 3);
        operands.restore(p);
        reference_run<double>(p, operands.bound);
        const std::vector<double> want = operands.result();
        machine target;
        target.gpus = {h200()};
        options wishes;
        wishes.placement = placement::gpu;
        const auto sums = [](const std::vector<launch>& list) {
            std::vector<std::string> each;  // what decides in which order a launch adds
            for (const launch& l : list)
                if (l.kind == launch_kind::sliced && !copy_of(l))
                    each.push_back(std::to_string(l.sliced.p_extent) + (l.sliced.blocks ? " by blocks of " : " ") +
                                   std::to_string(l.sliced.blocks ? l.sliced.blocks->new_indices() : 0));
            return each;
        };
        const launch_list whole = lower_to_launches(make_plan(p, target, wishes), h200());
        REQUIRE(whole.slab_count == 1);
        CHECK((P < 100 ? sums(whole.slab).back().find("blocks") != std::string::npos : sums(whole.slab).size() > 1));
        // Room for so many rows; slabs of so many are alike.
        for (const auto& [rows, extent] : {std::pair{73, 49}, std::pair{18, 17}, std::pair{1, 1}}) {
            wishes.workspace_limit_bytes = rows * P * other * 8;
            const plan made = make_plan(p, target, wishes);
            REQUIRE(made.slab_extent == extent);
            const launch_list list = lower_to_launches(made, h200());
            CHECK(sums(list.slab) == sums(whole.slab));
            CHECK((list.rest.empty() || sums(list.rest) == sums(whole.slab)));
            operands.restore(p);
            interpreter<double>(made, list, operands.bound, h200()).run();
            CHECK(operands.result() == want);
        }
    }
}

TEST_CASE("sums whose terms share factors: each shared product once, one reading of X, at most two passes") {
    // Y (+)= sum over the terms of c_t X * kron(factors named by letters); a letter has another factor on each mode. No letters: c_t Z.
    struct outcome {
        std::size_t launches = 0;
        int moves = 0, outputs = 0, two_inputs = 0, added = 0;
    };
    const auto run = [](const std::vector<std::int64_t>& extents, const std::vector<std::string>& terms,
                        std::int64_t rows, const gpu_description& gpu, bool add = false, std::int64_t pad = 0,
                        bool deterministic = false, std::int64_t limit = std::numeric_limits<std::int64_t>::max()) {
        std::int64_t n = 1;
        for (const std::int64_t e : extents) n *= e;
        support::random_stream random(static_cast<std::uint64_t>(rows + n));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const std::int64_t ld = n + pad;
        const std::vector<double> x = fill(rows * ld), z = fill(rows * ld);
        std::vector<double> y = fill(rows * ld);
        if (!add)
            for (std::int64_t i = 0; i < rows * ld; ++i)
                if (i % ld < n) y[static_cast<std::size_t>(i)] = std::numeric_limits<double>::quiet_NaN();
        std::vector<double> want = y;
        std::map<std::pair<char, std::size_t>, std::vector<double>> data;
        std::vector<product_node<double>> nodes;
        for (const std::string& term : terms) {
            product_node<double>& node = nodes.emplace_back();
            node.x = leaf::borrowed({(term.empty() ? z : x).data(), rows, n, ld, 1});
            node.x.set_space(memory_space::device);
            node.has_right = !term.empty();
            node.alpha = 0.5 * static_cast<double>(nodes.size());
            for (std::size_t k = 0; k < term.size(); ++k) {
                const std::int64_t e = extents[k];
                std::vector<double>& f = data[{term[k], k}];
                if (f.empty()) f = fill(e * e);
                leaf l = leaf::borrowed({f.data(), e, e, e, 1});
                l.set_space(memory_space::device);
                node.right.push_back(l);
            }
        }
        program p, given;
        bindings b, bound;
        add_products(p, b, nodes, {want.data(), rows, n, ld, 1}, add);
        reference_run<double>(p, b);
        add_products(given, bound, nodes, {y.data(), rows, n, ld, 1}, add);
        place_on_device(given, bound);
        machine m;
        m.gpus = {gpu};
        options decided;
        decided.placement = placement::gpu;
        decided.deterministic = deterministic;
        decided.workspace_limit_bytes = limit;
        const plan made = make_plan(given, m, decided);
        const launch_list list = lower_to_launches(made, gpu);
        interpreter<double> device(made, list, bound, gpu);
        device.run();
        CHECK(y == want);
        CHECK(made.workspace_bytes <= limit);
        return outcome{list.slab.size(), device.moves, device.outputs, device.two_inputs, device.added};
    };
    const std::vector<std::string> three{"ANO", "MBO", "MNC"};
    gpu_description small = h200();  // nothing keeps three modes on chip
    small.shared_bytes_per_block = 20000;
    small.cluster_blocks = 1;
    for (const std::int64_t pad : {0, 3})
        for (const bool add : {false, true}) {
            CAPTURE(pad);
            CAPTURE(add);
            // By multiply-adds, in one pass: 7 products, not 9.
            outcome o = run({3, 5, 4}, three, 7, h200(), add, pad);
            CHECK(o.launches == 1);
            CHECK(o.moves == 7);
            // The outermost mode apart: 5 products into two sums, then both.
            o = run({16, 8, 8}, three, 3, small, add, pad);
            CHECK((o.moves == 5) == (!add && pad == 0));
            CHECK((o.two_inputs == 1) == (!add && pad == 0));
            CHECK(o.launches == (!add && pad == 0 ? 2 : o.launches));
        }
    CHECK(run({3, 5, 4}, {"AN0", "AB1", "AN1", "AB0"}, 5, h200()).moves == 7);  // 2 + 4 + 1
    CHECK(run({3, 5, 4}, {"ABC", "ABC"}, 5, h200()).moves == 4);                // 1 + 1 + 2, each with its number
    CHECK(run({3, 5}, {"AB", "CB"}, 5, h200()).moves == 3);
    CHECK(run({3, 5, 4}, {"ABC", "DEF"}, 5, h200()).moves == 0);       // nothing is shared
    outcome o = run({3, 5, 4}, {"", "ANO", "MBO", "MNC"}, 5, h200());  // a matrix is read where the sum is stored
    CHECK((o.launches == 1 && o.moves == 7 && o.added == 1));
    o = run({16, 8, 8}, {"ANO", "ABO"}, 3, small);  // one factor outside: one sum
    CHECK((o.launches == 2 && o.moves == 3 && o.outputs == 1 && o.two_inputs == 0));
    o = run({16, 8, 8}, {"ANO", "MBO", "DNC"}, 3, small);  // three outside
    CHECK(o.two_inputs == 0);
    o = run({16, 8, 8}, three, 3, small, false, 0, true);  // deterministic: no matrix unit, no joint pass
    CHECK(o.moves == 0);
    gpu_description ahead = small;
    ahead.compiles = false;
    CHECK(run({16, 8, 8}, three, 3, ahead).moves == 0);
    // Sizes of which one pass holds a single product: two passes where both kernels share X.
    o = run({32, 32, 32}, three, 1, h200());
    CHECK((o.launches == 2 && o.moves == 5 && o.outputs == 2 && o.two_inputs == 1));
    for (const std::int64_t limit : {10000, 30000, 40000}) {  // no room for what stands between them, or for all else
        CHECK((run({16, 8, 8}, three, 3, small, false, 0, false, limit).two_inputs == 1) == (limit == 40000));
    }
}

TEST_CASE("reductions: a product, then sums of blocks, then one number") {
    for (int bits = 0; bits < 48; ++bits) {
        CAPTURE(bits);
        const std::int64_t m = bits % 2 == 0 ? 61 : 1, pad = (bits & 2) != 0 ? 3 : 0;
        const bool by_rows = (bits & 4) != 0, same_order = (bits & 8) != 0, norm = (bits & 16) != 0,
                   distance = bits >= 32;
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const auto view = [&](const std::vector<double>& v, std::int64_t cols, bool rows) {
            return matrix_view{v.data(), m, cols, rows ? cols + pad : 1, rows ? 1 : m + pad};
        };
        const std::vector<double> x = fill((m + pad) * (12 + pad)), a = fill(4 * 5), b = fill(3 * 40),
                                  v = fill((m + pad) * (200 + pad));
        std::vector<double> y(static_cast<std::size_t>((m + pad) * (200 + pad)), -7), result{3}, want{3};
        const auto write = [&](program& p, bindings& bound, double& to) {
            product_node<double> node;
            node.x = leaf::borrowed(view(x, 12, by_rows));
            node.x.set_space(memory_space::device);
            for (leaf f : {leaf::borrowed({a.data(), 4, 5, 1, 4}), leaf::borrowed({b.data(), 3, 40, 40, 1})}) {
                f.set_space(memory_space::device);
                node.right.push_back(f);
            }
            node.has_right = true;
            lowering<double> low(p, bound);
            const matrix_view block = view(y, 200, by_rows);
            low.add_product(node, block, false);
            const std::int32_t written = p.at(p.steps.back().out).binding;
            const std::int32_t factor = low.describe_plain(block, tensor_role::input);
            p.tensors.back().binding = written;
            std::int32_t in = factor;
            if (!norm) in = low.describe_plain(view(v, 200, same_order ? by_rows : !by_rows), tensor_role::input);
            const std::int32_t out = low.describe_plain({&to, 1, 1, 1, 1}, tensor_role::output);
            step s = program_writer::make_step(step_kind::reduce, in, norm ? -1 : factor, out, -1);
            s.variant = norm       ? step_variant::squared_norm
                        : distance ? step_variant::squared_distance
                                   : step_variant::dot;
            s.scalar = low.add_scalar(0.5);
            s.add = true;
            p.steps.push_back(s);
            for (tensor& t : p.tensors)
                if (t.binding >= 0) t.space = memory_space::device;
        };
        program p, given;
        bindings bound, again;
        write(p, bound, want[0]);
        reference_run<double>(p, bound);
        write(given, again, result[0]);
        const plan made = plan_for_h200(given);
        const launch_list list = lower_to_launches(made, h200());
        interpreter<double> run(made, list, again, h200());
        run.run();
        CHECK(result == want);  // powers of two: exact
        CHECK(run.reduced == 2);
        CHECK(list.slab[list.slab.size() - 2].dot.blocks == (m == 61 ? 3 : 1));
    }
    CHECK(dot_blocks(0) == 1);
    CHECK(dot_blocks(std::int64_t{1} << 40) == 512);
}

TEST_CASE("a product that is reduced is stored nowhere: its last kernel sums up, slab by slab where it takes several") {
    int ended = 0, slabs = 0, stored = 0, shorter = 0;
    for (int bits = 0; bits < 96; ++bits) {
        CAPTURE(bits);
        const std::int64_t m = bits % 2 == 0 ? 61 : 1, pad = (bits & 2) != 0 ? 3 : 0;
        const bool by_rows = (bits & 4) != 0, same_order = (bits & 8) != 0, distance = bits >= 64,
                   norm = !distance && (bits & 16) != 0, left = (bits & (distance ? 16 : 32)) != 0;
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const auto view = [&](const std::vector<double>& v, std::int64_t n, bool rows) {
            const std::int64_t high = left ? n : m, wide = left ? m : n;
            return matrix_view{v.data(), high, wide, rows ? wide + pad : 1, rows ? 1 : high + pad};
        };
        const std::int64_t inputs = 4 * 3 * 4, outputs = 5 * 6 * 4;
        const std::vector<double> x = fill((m + pad) * (inputs + pad)), a = fill(4 * 5), b = fill(3 * 6), c = fill(16),
                                  v = fill((m + pad) * (outputs + pad));
        product_node<double> node;
        node.x = leaf::borrowed(view(x, inputs, by_rows));
        node.x.set_space(memory_space::device);
        for (leaf f : {leaf::borrowed({a.data(), left ? 5 : 4, left ? 4 : 5, 1, left ? 5 : 4}),
                       leaf::borrowed({b.data(), left ? 6 : 3, left ? 3 : 6, left ? 3 : 6, 1}),
                       leaf::borrowed({c.data(), 4, 4, 4, 1})}) {
            f.set_space(memory_space::device);
            (left ? node.left : node.right).push_back(f);
        }
        (left ? node.has_left : node.has_right) = true;
        node.alpha = 2;
        const auto write = [&](program& p, bindings& bound, double& to) {
            lowering<double> low(p, bound);
            low.add_product(node, {nullptr, node.rows(), node.cols(), 0, 0}, false);
            const std::int32_t product = p.steps.back().out;
            p.tensors.back().role = tensor_role::temporary;
            p.tensors.back().binding = -1;
            std::int32_t in = product;
            if (!norm) {
                const matrix_view with = view(v, outputs, same_order ? by_rows : !by_rows);
                in = low.describe_matrix(node, with, dtype::f64, tensor_role::input, true, false);
                low.bind(with.data);
            }
            const std::int32_t out = low.describe_plain({&to, 1, 1, 1, 1}, tensor_role::output);
            step s = program_writer::make_step(step_kind::reduce, in, norm ? -1 : product, out, -1);
            s.variant = norm       ? step_variant::squared_norm
                        : distance ? step_variant::squared_distance
                                   : step_variant::dot;
            s.scalar = low.add_scalar(0.5);
            s.add = true;
            p.steps.push_back(s);
            for (tensor& t : p.tensors)
                if (t.binding >= 0) t.space = memory_space::device;
        };
        double want = 3;
        program p, given;
        bindings bound, again;
        write(p, bound, want);
        reference_run<double>(p, bound);
        double result = 3;
        write(given, again, result);
        gpu_description several = h200(), ahead = h200();
        several.shared_bytes_per_block = 1200;
        several.cluster_blocks = 1;
        ahead.compiles = false;
        const std::int64_t size = m * outputs * 8;
        for (const gpu_description& gpu : {h200(), several, ahead}) {
            for (const std::int64_t limit : {size + 4096, size / 4}) {
                for (const bool allow_fused : {true, false}) {
                    machine target;
                    target.gpus = {gpu};
                    options wishes;
                    wishes.placement = placement::gpu;
                    wishes.workspace_limit_bytes = limit;
                    plan made;
                    try {
                        made = make_plan(given, target, wishes);
                    } catch (const budget_error&) {
                        CHECK((m == 1 || !gpu.compiles || (!norm && !same_order) || by_rows == left));  // no slabs
                        continue;
                    }
                    CHECK(made.workspace_bytes <= limit);
                    const launch_list list = lower_to_launches(made, gpu, allow_fused);
                    interpreter<double> run(made, list, again, gpu);
                    result = 3;
                    run.run();
                    CHECK(result == want);  // powers of two: exact
                    ended += run.ended;
                    slabs += list.slab_count > 1 && run.ended > 0 ? 1 : 0;
                    shorter += list.rest.empty() ? 0 : 1;
                    stored += run.ended == 0 ? 1 : 0;
                    if (gpu == h200() && allow_fused && (norm || same_order) && (m > 1 || pad == 0)) {
                        CHECK(made.buffer_elements.empty());
                        CHECK(run.ended == 1);
                        CHECK(run.fused == 1);
                    }
                }
            }
        }
    }
    CHECK(ended > 100);
    CHECK(slabs > 10);
    CHECK(shorter > 10);
    CHECK(stored > 50);
}

namespace {

// to = the dot product of `with` and a product that nothing else reads, their squared distance, or that product's squared norm.
void write_dot(const product_node<double>& node, const matrix_view& with, program& p, bindings& bound, double& to,
               step_variant what = step_variant::dot) {
    const bool norm = what == step_variant::squared_norm;
    lowering<double> low(p, bound);
    low.add_product(node, {nullptr, node.rows(), node.cols(), 0, 0}, false);
    const std::int32_t product = p.steps.back().out;
    p.tensors.back().role = tensor_role::temporary;
    p.tensors.back().binding = -1;
    std::int32_t in = product;
    if (!norm) {
        in = low.describe_matrix(node, with, dtype::f64, tensor_role::input, true, false);
        low.bind(with.data);
    }
    const std::int32_t out = low.describe_plain({&to, 1, 1, 1, 1}, tensor_role::output);
    step s = program_writer::make_step(step_kind::reduce, in, norm ? -1 : product, out, -1);
    s.variant = what;
    p.steps.push_back(s);
    for (tensor& t : p.tensors)
        if (t.binding >= 0) t.space = memory_space::device;
}

}  // namespace

TEST_CASE("a product by blocks that is reduced is stored nowhere, in slabs and without") {
    std::ptrdiff_t slabs = 0, stays = 0;
    for (int bits = 0; bits < 12; ++bits) {
        CAPTURE(bits);
        const step_variant what = bits >= 8         ? step_variant::squared_distance
                                  : (bits & 1) != 0 ? step_variant::squared_norm
                                                    : step_variant::dot;
        const bool left = (bits & 1) != 0, cut = (bits & 2) != 0, long_one = (bits & 4) != 0;
        // A row that no block holds; the last pass is that of the first factor.
        const std::int64_t m = 5, pad = 3, a = long_one ? 304 : 96, b = long_one ? 96 : 304, inputs = a * b,
                           outputs = inputs;
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const auto view = [&](const std::vector<double>& v, std::int64_t n) {
            return left ? matrix_view{v.data(), n, m, 1, n + pad} : matrix_view{v.data(), m, n, n + pad, 1};
        };
        const std::vector<double> x = fill(m * (inputs + pad)), v = fill(m * (outputs + pad)), A = fill(a * a),
                                  B = fill(b * b);
        product_node<double> node;
        node.x = leaf::borrowed(view(x, inputs));
        node.x.set_space(memory_space::device);
        for (leaf f : {leaf::borrowed({A.data(), a, a, 1, a}), leaf::borrowed({B.data(), b, b, b, 1})}) {
            f.set_space(memory_space::device);
            (left ? node.left : node.right).push_back(f);
        }
        (left ? node.has_left : node.has_right) = true;
        node.alpha = 2;
        double want = 0, result = 0;
        program reference, given;
        bindings bound, again;
        write_dot(node, view(v, outputs), reference, bound, want, what);
        reference_run<double>(reference, bound);
        write_dot(node, view(v, outputs), given, again, result, what);
        gpu_description gpu = h200();
        gpu.cluster_blocks = 1;
        gpu.multiprocessors = 2;  // so that a few rows are work enough
        gpu.flops_f64_mma /= 66;
        gpu.flops_f64 /= 66;
        machine target;
        target.gpus = {gpu};
        options wishes;
        wishes.placement = placement::gpu;
        const std::int64_t factors = (a * a + b * b) * 8 + 256;
        wishes.workspace_limit_bytes = factors + (cut ? m * outputs * 8 / 2 : m * outputs * 8);
        const plan made = make_plan(given, target, wishes);
        CHECK(made.workspace_bytes <= wishes.workspace_limit_bytes);
        CHECK((made.slab_count > 1) == cut);
        CHECK(plan_from_text(to_text(made)) == made);
        const launch_list list = lower_to_launches(made, gpu, true);
        interpreter<double> run(made, list, again, gpu);
        run.run();
        CHECK(result == want);  // powers of two: exact
        slabs += !list.rest.empty() && run.ended_blocks > 1 ? 1 : 0;
        stays += std::ranges::count_if(list.slab, [](const launch& l) {
            return l.sliced.ending != gpu_ending::stored && l.sliced.blocks->staying_steps > 0;
        });
        CHECK(run.ended_blocks == static_cast<int>(list.slab_count));
    }
    CHECK(slabs > 0);
    CHECK(stays > 0);
}

TEST_CASE("a dot product with rows that no block holds takes them in pieces, by one kernel and without memory") {
    int pieces = 0, clusters = 0;
    for (int bits = 0; bits < 16; ++bits) {
        CAPTURE(bits);
        const std::int64_t m = (bits & 1) != 0 ? 5 : 1, pad = (bits & 2) != 0 ? 3 : 0;
        const bool left = (bits & 4) != 0, grows = (bits & 8) != 0;
        const std::vector<std::int64_t> p{6, 12, 10}, q = grows ? std::vector<std::int64_t>{8, 13, 10} : p;
        const std::int64_t inputs = 6 * 12 * 10, outputs = q[0] * q[1] * q[2];
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        // Rows that follow each other, with a gap between them; for K * X columns.
        const auto view = [&](const std::vector<double>& v, std::int64_t n) {
            return left ? matrix_view{v.data(), n, m, 1, n + pad} : matrix_view{v.data(), m, n, n + pad, 1};
        };
        const std::vector<double> x = fill(m * (inputs + pad)), v = fill(m * (outputs + pad));
        std::vector<std::vector<double>> f;
        product_node<double> node;
        node.x = leaf::borrowed(view(x, inputs));
        node.x.set_space(memory_space::device);
        for (std::size_t k = 0; k < p.size(); ++k) {
            f.push_back(fill(p[k] * q[k]));
            leaf one = leaf::borrowed(left ? matrix_view{f[k].data(), q[k], p[k], 1, q[k]}
                                           : matrix_view{f[k].data(), p[k], q[k], 1, p[k]});
            one.set_space(memory_space::device);
            (left ? node.left : node.right).push_back(one);
        }
        (left ? node.has_left : node.has_right) = true;
        node.alpha = 2;
        double want = 0, result = 0;
        program reference, given;
        bindings bound, again;
        write_dot(node, view(v, outputs), reference, bound, want);
        reference_run<double>(reference, bound);
        write_dot(node, view(v, outputs), given, again, result);
        for (const std::int32_t cluster : {1, 2}) {
            gpu_description gpu = h200();
            gpu.shared_bytes_per_block = cluster == 1 ? 4500 : 3600;
            gpu.cluster_blocks = cluster;
            machine target;
            target.gpus = {gpu};
            options wishes;
            wishes.placement = placement::gpu;
            wishes.workspace_limit_bytes = 3072;  // for the factors, not for what lies between two kernels
            const plan made = make_plan(given, target, wishes);
            CHECK(made.workspace_bytes <= 3072);
            CHECK(made.buffer_elements.empty());
            CHECK(plan_from_text(to_text(made)) == made);
            const launch_list list = lower_to_launches(made, gpu, true);
            CHECK(list.slab_count == 1);
            interpreter<double> run(made, list, again, gpu);
            run.run();
            CHECK(result == want);  // powers of two: exact
            CHECK(run.fused == 1);
            pieces += run.pieces;
            clusters += made.passes.front().tile.cluster > 1 ? 1 : 0;
        }
    }
    CHECK(pieces > 20);
    CHECK(clusters > 8);
}

TEST_CASE("a stored product is reduced where the modes that it makes longer have a place of their own in no operand") {
    // kron(A, B) * X with A 5 x 1: X has one row for A, which lies neither outside nor inside of its columns. `ahead`: no kernel reduces it.
    gpu_description ahead = h200();
    ahead.compiles = false;
    for (int bits = 0; bits < 16; ++bits) {
        CAPTURE(bits);
        const bool by_rows = (bits & 1) != 0, same_order = (bits & 2) != 0, innermost = (bits & 4) != 0,
                   left = (bits & 8) != 0;
        const std::int64_t m = 4, inputs = 6, outputs = 15;
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const auto view = [&](const std::vector<double>& v, std::int64_t n, bool rows) {
            const std::int64_t high = left ? n : m, wide = left ? m : n;
            return matrix_view{v.data(), high, wide, rows ? wide : 1, rows ? 1 : high};
        };
        const std::vector<double> x = fill(m * inputs), a = fill(5), b = fill(6 * 3), v = fill(m * outputs);
        product_node<double> node;
        node.x = leaf::borrowed(view(x, inputs, by_rows));
        node.x.set_space(memory_space::device);
        std::vector<leaf> factors{leaf::borrowed({a.data(), left ? 5 : 1, left ? 1 : 5, 1, left ? 5 : 1}),
                                  leaf::borrowed({b.data(), left ? 3 : 6, left ? 6 : 3, left ? 6 : 3, 1})};
        if (innermost) std::swap(factors[0], factors[1]);
        for (leaf& f : factors) {
            f.set_space(memory_space::device);
            (left ? node.left : node.right).push_back(f);
        }
        (left ? node.has_left : node.has_right) = true;
        double want = 0, result = 0;
        program p, given;
        bindings bound, again;
        const matrix_view with = view(v, outputs, same_order ? by_rows : !by_rows);
        write_dot(node, with, p, bound, want);
        reference_run<double>(p, bound);
        write_dot(node, with, given, again, result);
        for (const gpu_description& gpu : {h200(), ahead, gpu_of_capability(80)}) {
            machine target;
            target.gpus = {gpu};
            options wishes;
            wishes.placement = placement::gpu;
            const plan made = make_plan(given, target, wishes);
            const launch_list list = lower_to_launches(made, gpu);
            interpreter<double> run(made, list, again, gpu);
            result = std::numeric_limits<double>::quiet_NaN();
            run.run();
            CHECK(result == want);  // powers of two: exact
        }
    }
}

TEST_CASE("a machine that does not say its rates has plans") {
    gpu_description nothing, unit = gpu_of_capability(86);
    unit.has_f64_mma_wide = true;  // and no rate of it
    gpu_description no_memory = h200();
    no_memory.memory_bytes_per_second = no_memory.l2_bytes_per_second = 0;
    const test_case t{5, {{8, 8}, {16, 16}}, true, true, 0, false, false, false};
    for (const gpu_description& gpu : {nothing, unit, no_memory}) {
        check<double>(t, {}, gpu, true);
        check<float>(t, {}, gpu, true);
    }
}

TEST_CASE("a product whose result takes the place of its operand: by tiles or through scratch, or it is refused") {
    // Chunks of a mode that no rank cuts (plan/distributed_stages.hpp): out of a larger block by the first factor, then in place.
    distributed_problem asked;
    asked.space = memory_space::device;
    asked.rows = 3;
    const std::vector<std::int64_t> extents{4, 6, 5, 8};
    for (const std::int64_t e : extents) {
        distributed_factor f;
        f.p_extent = f.q_extent = e;
        f.row_stride = e;
        f.space = memory_space::device;
        asked.factors.push_back(f);
    }
    const std::vector<std::int32_t> factors{1, 3};
    const program apart = planning::local_program(asked, factors, 3, extents, false, false, {2, 9}, {});
    const std::optional<program> in_place = planning::from_place_to_place(asked, factors, apart);
    REQUIRE(in_place);
    support::random_stream random(77);
    const auto fill = [&](std::size_t count) {
        std::vector<double> v(count);
        for (double& e : v) e = random.signed_power_of_two();
        return v;
    };
    std::vector<double> x = fill(3 * 4 * 6 * 9 * 8), b = fill(36), d = fill(64);
    std::vector<double> want(3 * 4 * 6 * 5 * 8), y = want;
    const auto bound = [&](std::vector<double>& to) {
        bindings all;
        for (std::vector<double>* v : {&x, &b, &d, &to}) all.pointers.push_back(v->data());
        return all;
    };
    reference_run<double>(apart, bound(want));
    const plan made = plan_for_h200(*in_place);
    REQUIRE(made.passes.size() == 2);
    CHECK(!made.passes[1].tile.trips.empty());
    for (const bool fused : {true, false}) {  // without kernels of their own
        y.assign(y.size(), std::numeric_limits<double>::quiet_NaN());
        const launch_list list = lower_to_launches(made, h200(), fused);
        const bindings all = bound(y);
        interpreter<double> run(made, list, all, h200());
        run.run();
        CHECK(y == want);  // powers of two: exact
        CHECK(run.in_place == (fused ? 1 : 0));
        CHECK((list.slab.size() == 2) == fused);  // else a copy, too
    }
    // A size that goes without a tile.
    asked.factors[3].p_extent = asked.factors[3].q_extent = asked.factors[3].row_stride = 128;
    const program long_one = planning::local_program(asked, factors, 1, {3, 6, 2, 128}, false, false, {2, 9}, {});
    CHECK_THROWS_AS(static_cast<void>(plan_for_h200(*planning::from_place_to_place(asked, factors, long_one))),
                    unsupported_error);
    CHECK_NOTHROW(static_cast<void>(plan_for_h200(long_one)));
}

TEST_CASE("a product, its elements times those of a vector, in place, and another product") {
    int by_staying = 0;
    for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7, 10, 11}) {
        CAPTURE(bits);
        const bool by_rows = (bits & 1) != 0, same_order = (bits & 2) != 0, add = (bits & 4) != 0;
        const bool stays = (bits & 8) != 0;  // the first factor is so long that it stays on chip
        const std::int64_t first = stays ? 100 : 4, rows = first * 3, cols = stays ? 4001 : 7;
        support::random_stream random(static_cast<std::uint64_t>(bits));
        const auto fill = [&](std::int64_t count) {
            std::vector<double> v(static_cast<std::size_t>(count));
            for (double& e : v) e = random.signed_power_of_two();
            return v;
        };
        const auto view = [&](const std::vector<double>& v, bool order) {
            return matrix_view{v.data(), rows, cols, order ? cols : 1, order ? 1 : rows};
        };
        const std::vector<double> x = fill(rows * cols), a = fill(first * first), b = fill(9), d = fill(rows);
        std::vector<double> half = fill(rows * cols), y = fill(rows * cols), want = y;
        const auto write = [&](program& p, bindings& bound, std::vector<double>& to) {
            const auto product = [&](const matrix_view& from) {
                product_node<double> node;
                node.x = leaf::borrowed(from);
                node.x.set_space(memory_space::device);
                for (leaf f :
                     {leaf::borrowed({a.data(), first, first, 1, first}), leaf::borrowed({b.data(), 3, 3, 3, 1})}) {
                    f.set_space(memory_space::device);
                    node.left.push_back(f);
                }
                node.has_left = true;
                return node;
            };
            lowering<double> low(p, bound);
            const matrix_view between = view(half, by_rows);
            low.add_product(product(view(x, same_order ? by_rows : !by_rows)), between, false);
            const std::int32_t written = p.at(p.steps.back().out).binding;
            const std::int32_t in = low.describe_plain(between, tensor_role::input);
            p.tensors.back().binding = written;
            const std::int32_t factor = low.describe_plain({d.data(), rows, cols, 1, 0}, tensor_role::factor);
            p.tensors.back().kind = factor_kind::diagonal;
            const std::int32_t out = low.describe_plain(between, tensor_role::output);
            p.tensors.back().binding = written;
            p.steps.push_back(program_writer::make_step(step_kind::scale, in, factor, out, -1));
            low.add_product(product(between), view(to, by_rows), add, 0.5);
            for (tensor& t : p.tensors)
                if (t.binding >= 0) t.space = memory_space::device;
        };
        program p, given;
        bindings bound, again;
        write(p, bound, want);
        reference_run<double>(p, bound);
        write(given, again, y);
        const plan made = plan_for_h200(given);
        const auto scales = [](const launch& l) { return diagonal_of(l).has_value(); };
        // In one kernel with the first product; where kernels are those that were compiled ahead of time, in one of its own.
        const std::vector<double> before = y;
        const launch_list joined = lower_to_launches(made, h200());
        interpreter<double> fused(made, joined, again, h200());
        fused.run();
        CHECK(y == want);  // powers of two: exact
        if (stays) {
            REQUIRE(std::ranges::any_of(joined.slab, keeps_factor));
            CHECK(fused.scaled + fused.scaled_by_blocks + (std::ranges::any_of(joined.slab, scales) ? 1 : 0) == 1);
            by_staying += fused.scaled_by_blocks;
            continue;
        }
        CHECK(fused.scaled == (same_order ? 1 : 0));  // else the generic kernel computes the first product
        CHECK(std::ranges::any_of(joined.slab, scales) == !same_order);
        if (same_order) {
            CHECK(fused.fused == 2);
            gpu_description small = h200();
            small.shared_bytes_per_block = 300;  // two passes, in place
            y = before;
            machine m;
            m.gpus = {small};
            options decided;
            decided.placement = placement::gpu;
            const plan several = make_plan(given, m, decided);
            const launch_list passes = lower_to_launches(several, small);
            interpreter<double> two(several, passes, again, small);
            two.run();
            CHECK(y == want);
            CHECK(two.scaled == 1);
            CHECK(two.fused == 4);
        }
        y = before;
        gpu_description ahead = h200();
        ahead.compiles = false;
        const launch_list list = lower_to_launches(made, ahead);
        interpreter<double> run(made, list, again, ahead);
        run.run();
        CHECK(y == want);
        CHECK(run.scaled == 0);
        REQUIRE(std::ranges::count_if(list.slab, scales) == 1);
        const launch& scale = *std::ranges::find_if(list.slab, scales);
        CHECK(!copy_of(scale));
        const argument_block block = make_arguments(scale);
        diagonal_arguments<double> s;
        REQUIRE(block.bytes.size() == sizeof(s));
        std::memcpy(static_cast<void*>(&s), block.bytes.data(), sizeof(s));
        CHECK(s.lines == (by_rows ? rows : cols));
        CHECK(s.count == (by_rows ? cols : rows));
        CHECK(s.d_stride == (by_rows ? 0 : 1));
        CHECK(s.d_line_stride == (by_rows ? 1 : 0));
        CHECK(s.x_line_stride == s.count);
        CHECK(s.beta == 0);
        REQUIRE(block.addresses.size() == 3);
        CHECK(block.addresses[0].at == block.addresses[2].at);
        launch strided = scale;
        strided.sliced.free.back().x = 2;
        CHECK(!diagonal_of(strided));  // by the generic kernel
    }
    CHECK(by_staying > 0);
}

TEST_CASE("a diagonal between modes that it does not scale: stretches after which it repeats") {
    launch l;
    l.type = dtype::f64;
    memory_reference vector;
    vector.where = memory_reference::place::scratch;
    l.factors = {vector};
    l.sliced.free = {{3, 35, 35, 0}, {5, 7, 7, 1}, {7, 1, 1, 0}};
    REQUIRE(diagonal_of(l));
    CHECK(diagonal_of(l)->stretches.lines == 15);
    CHECK(diagonal_of(l)->stretches.count == 7);
    CHECK(diagonal_of(l)->d_lines == 5);
    CHECK(diagonal_of(l)->d_line == 1);
    CHECK(diagonal_of(l)->d_step == 0);
    const argument_block block = make_arguments(l);
    diagonal_arguments<double> a;
    REQUIRE(block.bytes.size() == sizeof(a));
    std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
    CHECK(a.d_lines == 5);
    launch other = l;
    other.sliced.free[0].x = 36;  // a gap
    CHECK(!diagonal_of(other));
    other = l;
    other.sliced.free[0].y = 36;
    CHECK(!diagonal_of(other));
    other = l;
    other.sliced.free[0].f = 5;  // one of both modes, in two
    CHECK(!diagonal_of(other));
    other = l;
    other.sliced.free.erase(other.sliced.free.begin());
    REQUIRE(diagonal_of(other));
    CHECK(diagonal_of(other)->d_lines == 5);
}

TEST_CASE("which launches are copies") {
    launch l;
    memory_reference one;
    one.where = memory_reference::place::one;
    l.factors = {one};
    l.sliced.free = {{3, 10, 20, 0}, {7, 1, 1, 0}};
    REQUIRE(copy_of(l));
    CHECK(copy_of(l)->lines == 3);
    CHECK(copy_of(l)->count == 7);
    CHECK(copy_of(l)->x_line == 10);
    CHECK(copy_of(l)->y_line == 20);
    l.type = dtype::f64;
    l.scalar = 0;
    const argument_block block = make_arguments(l);
    REQUIRE(block.bytes.size() == sizeof(copy_arguments<double>));
    CHECK(block.addresses.size() == 2);
    CHECK(block.alpha_offset == offsetof(copy_arguments<double>, alpha));
    launch other = l;
    other.sliced.free[1].x = 2;
    CHECK(!copy_of(other));
    other = l;
    other.sliced.free.push_back({2, 1, 1, 0});
    CHECK(!copy_of(other));
    other = l;
    other.sliced.p_extent = 0;  // an empty sum
    CHECK(!copy_of(other));
    other = l;
    other.factors.front().where = memory_reference::place::scratch;
    CHECK(!copy_of(other));
    other = l;
    other.sliced.free.clear();
    REQUIRE(copy_of(other));
    CHECK(copy_of(other)->count == 1);
}

TEST_CASE("zero extents launch nothing that reads or writes outside") {
    for (const bool left : {false, true}) {
        check<double>({3, {{0, 2}, {3, 2}}, true, true, 0, left, false, false}, {}, h200(), true);
        check<double>({3, {{2, 0}, {3, 2}}, true, true, 0, left, false, false}, {}, h200(), true);
        check<double>({0, {{2, 3}, {3, 2}}, true, true, 0, left, false, false}, {}, h200(), true);
    }
}

TEST_CASE("argument blocks hold what the kernel reads") {
    launch l;
    l.type = dtype::c64;
    l.add = true;
    l.scalar = 0;
    l.x.where = memory_reference::place::operand;
    l.sliced.p_extent = 3;
    l.sliced.q_extent = 5;
    l.sliced.x_p = 7;
    l.sliced.free = {{11, 13, 17, 19}, {23, 29, 31, 37}};
    l.sliced.q_position = 1;
    l.sliced.conjugate_f = true;
    argument_block block = make_arguments(l);
    using arguments = sliced_arguments<device_complex<float>>;
    REQUIRE(block.bytes.size() == sizeof(arguments));
    write_scalar(block.bytes.data() + block.alpha_offset, block.accumulator, {2, -3});
    arguments a;
    std::memcpy(static_cast<void*>(&a), block.bytes.data(), sizeof(a));
    CHECK(a.alpha.re == 2.0f);
    CHECK(a.alpha.im == -3.0f);
    CHECK(a.beta.re == 1.0f);
    CHECK(a.p_extent == 3);
    CHECK(a.q_extent == 5);
    CHECK(a.x_p_stride == 7);
    CHECK(a.free_count == 2);
    CHECK(a.free_extent[1] == 23);
    CHECK(a.x_stride[1] == 29);
    CHECK(a.y_stride[0] == 17);
    CHECK(a.f_stride[1] == 37);
    CHECK(a.q_position == 1);
    CHECK(a.conjugate_f);
    CHECK(!a.conjugate_x);
    REQUIRE(block.addresses.size() == 3);
    CHECK(block.addresses[0].offset == 0);
    CHECK(block.addresses[1].offset == 8);
    CHECK(block.addresses[2].offset == 16);
}

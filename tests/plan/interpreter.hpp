// SPDX-License-Identifier: MIT
// Runs a plan's cpu_tiles passes element by element, exactly as plan.hpp describes them and nothing more: what an executor
// may rely on. Workspace, tiles and packed factors are checked against the sizes that the plan states.
#pragma once

#include <otimes/exec/reference.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/workspace_layout.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace planner_test {

inline void demand(bool holds, const char* what) {
    if (!holds) {
        throw std::logic_error(what);
    }
}

using odometer = std::vector<std::int64_t>;

// Advances an index below `extents`, the last running first; false after the last one.
inline bool advance(odometer& index, const odometer& extents) {
    for (std::size_t k = index.size(); k-- > 0;) {
        if (++index[k] < extents[k]) {
            return true;
        }
        index[k] = 0;
    }
    return false;
}

class interpreter {
public:
    interpreter(const otimes::plan& p, std::vector<double*> operands, double alpha)
        : plan_(p), operands_(std::move(operands)), alpha_(alpha) {
        for (const std::int64_t elements : p.buffer_elements) {
            buffers_.emplace_back(static_cast<std::size_t>(elements), poison_);
        }
    }

    void run() {
        for (std::int64_t slab = 0; slab < plan_.slab_count; ++slab) {
            for (auto& buffer : buffers_) {
                std::fill(buffer.begin(), buffer.end(), poison_);
            }
            for (const otimes::pass& p : plan_.passes) {
                demand(p.kernel == otimes::pass_kernel::cpu_tiles || p.kernel == otimes::pass_kernel::step, "kernel");
                if (p.kernel == otimes::pass_kernel::step) {
                    run_step(p, slab);
                } else {
                    run_pass(p, slab);
                }
            }
        }
    }

private:
    double* address(std::int32_t name, std::int64_t& room) {
        if (name >= 0) {
            room = -1;
            return operands_[static_cast<std::size_t>(plan_.source.at(name).binding)];
        }
        std::vector<double>& buffer = buffers_[static_cast<std::size_t>(-2 - name)];
        room = static_cast<std::int64_t>(buffer.size());
        return buffer.data();
    }

    void run_step(const otimes::pass& p, std::int64_t slab) {
        const otimes::step& s = plan_.source.steps[static_cast<std::size_t>(p.step)];
        std::vector<std::vector<otimes::mode>> of_slab;
        of_slab.reserve(3);
        const auto view_of = [&](std::int32_t id) {
            otimes::reference_loops::view v;
            if (id < 0) {
                return v;
            }
            const otimes::tensor& t = plan_.source.at(id);
            const std::int32_t buffer = plan_.tensor_buffers[static_cast<std::size_t>(id)];
            std::int64_t room = 0;
            v.data = address(buffer >= 0 ? -2 - buffer : id, room);
            v.type = t.type;
            v.conjugate = t.conjugate;
            v.modes = {plan_.tensor_modes.data() + t.first_mode, static_cast<std::size_t>(t.mode_count)};
            demand(plan_.slab_count == 1 || !plan_.tensor_cuts.empty(), "what slabs cut of a step's tensors is said");
            if (plan_.slab_count > 1 && plan_.tensor_cuts[static_cast<std::size_t>(id)] >= 0) {
                otimes::mode& cut = of_slab.emplace_back(
                    v.modes.begin(),
                    v.modes.end())[static_cast<std::size_t>(plan_.tensor_cuts[static_cast<std::size_t>(id)])];
                const std::int64_t begin = slab * plan_.slab_extent;
                cut.extent = std::min(plan_.slab_extent, cut.extent - begin);
                v.data = static_cast<double*>(v.data) + (buffer >= 0 ? 0 : begin * cut.stride);
                v.modes = of_slab.back();
                std::int64_t last = 0;
                for (const otimes::mode& m : v.modes) {
                    last += (m.extent - 1) * m.stride;
                }
                demand(buffer < 0 || last < room, "a slab of a temporary fits into its buffer");
            }
            return v;
        };
        otimes::reference_loops::run_step<double>(plan_.source, s, view_of(s.in), view_of(s.factor), view_of(s.out),
                                                  s.scalar >= 0 ? &alpha_ : nullptr);
    }

    // The packed P x Q matrix of a sweep: the Kronecker product of its factors, the first one outermost.
    std::vector<double> packed(const otimes::sweep& s) {
        std::vector<double> matrix{1.0};
        std::int64_t rows = 1;
        std::int64_t cols = 1;
        for (const std::int32_t id : s.factors) {
            const auto modes = plan_.source.modes_of(id);
            const double* entries = operands_[static_cast<std::size_t>(plan_.source.at(id).binding)];
            std::vector<double> next(static_cast<std::size_t>(rows * modes[0].extent * cols * modes[1].extent));
            for (std::int64_t i = 0; i < rows; ++i) {
                for (std::int64_t p = 0; p < modes[0].extent; ++p) {
                    for (std::int64_t j = 0; j < cols; ++j) {
                        for (std::int64_t q = 0; q < modes[1].extent; ++q) {
                            next[static_cast<std::size_t>(((i * modes[0].extent + p) * cols + j) * modes[1].extent +
                                                          q)] = matrix[static_cast<std::size_t>(i * cols + j)] *
                                                                entries[p * modes[0].stride + q * modes[1].stride];
                        }
                    }
                }
            }
            matrix = next;
            rows *= modes[0].extent;
            cols *= modes[1].extent;
        }
        demand(rows == s.p_extent && cols == s.q_extent, "a sweep's factors multiply out to P x Q");
        return matrix;
    }

    void run_pass(const otimes::pass& p, std::int64_t slab) {
        const std::size_t count = p.modes.size();
        std::vector<bool> contracted(count, false);
        for (const otimes::sweep& s : p.sweeps) {
            demand(!contracted[static_cast<std::size_t>(s.mode)], "one sweep per mode");
            contracted[static_cast<std::size_t>(s.mode)] = true;
            demand(p.modes[static_cast<std::size_t>(s.mode)].extent_in == s.p_extent, "P");
            demand(p.modes[static_cast<std::size_t>(s.mode)].extent_out == s.q_extent, "Q");
        }
        std::int64_t room_in = 0;
        std::int64_t room_out = 0;
        const double* in = address(p.in, room_in);
        double* out = address(p.out, room_out);
        odometer first(count, 0);  // first index and number of indices of this slab, per mode
        odometer extents(count, 0);
        for (std::size_t k = 0; k < count; ++k) {
            extents[k] = p.modes[k].extent_in;
            if (static_cast<std::int32_t>(k) == p.slab_mode && plan_.slab_count > 1) {
                const std::int64_t begin = slab * plan_.slab_extent * p.slab_scale;
                const std::int64_t end = std::min(extents[k], begin + plan_.slab_extent * p.slab_scale);
                extents[k] = end - begin;
                demand(extents[k] > 0, "no empty slab");
                in += room_in < 0 ? begin * p.modes[k].stride_in : 0;
                out += room_out < 0 ? begin * p.modes[k].stride_out : 0;
            }
        }
        demand(plan_.slab_count == 1 || p.slab_mode >= 0, "every pass of a plan with slabs is cut");
        demand(p.lane_mode < 0 ? p.lane_count == 1 : !contracted[static_cast<std::size_t>(p.lane_mode)],
               "lanes are free");
        odometer grid(count, 1);  // tiles
        for (std::size_t k = 0; k < count; ++k) {
            if (!contracted[k]) {
                const std::int64_t step = static_cast<std::int32_t>(k) == p.lane_mode ? p.lane_count : 1;
                grid[k] = (extents[k] + step - 1) / step;
            }
        }
        odometer tile(count, 0);
        do {
            odometer start(count, 0);
            odometer size(count, 1);
            for (std::size_t k = 0; k < count; ++k) {
                if (contracted[k]) {
                    size[k] = p.modes[k].extent_in;
                } else if (static_cast<std::int32_t>(k) == p.lane_mode) {
                    start[k] = tile[k] * p.lane_count;
                    size[k] = std::min(p.lane_count, extents[k] - start[k]);
                } else {
                    start[k] = tile[k];
                }
            }
            run_tile(p, contracted, start, size, in, room_in, out, room_out);
        } while (advance(tile, grid));
    }

    void run_tile(const otimes::pass& p, const std::vector<bool>& contracted, const odometer& start, odometer size,
                  const double* in, std::int64_t room_in, double* out, std::int64_t room_out) {
        const std::size_t count = p.modes.size();
        std::int64_t lanes = 1;
        for (std::size_t k = 0; k < count; ++k) {
            lanes *= contracted[k] ? 1 : size[k];
        }
        const std::int64_t vector = plan_.vector_count;
        const std::int64_t padded = p.lane_mode < 0 ? 1 : (p.lane_count + vector - 1) / vector * vector;
        // the tile: index over all modes of the pass; the lane mode is moved last in memory, which only its size shows
        const auto elements = [&] {
            std::int64_t n = 1;
            for (std::size_t k = 0; k < count; ++k) {
                n *= contracted[k] ? size[k] : 1;
            }
            return n;
        };
        const auto check_tile = [&] {
            demand(elements() * padded + plan_.vector_count <= plan_.tile_elements, "tile");
        };
        const auto total = [&] { return static_cast<std::size_t>(elements() * lanes); };
        const auto offset = [&](const odometer& i, std::int64_t otimes::pass_mode::*stride) {
            std::int64_t o = 0;
            for (std::size_t k = 0; k < count; ++k) {
                o += (start[k] + i[k]) * (p.modes[k].*stride);
            }
            return o;
        };
        check_tile();
        std::vector<double> now(total());
        odometer i(count, 0);
        std::size_t at = 0;
        do {
            const std::int64_t o = offset(i, &otimes::pass_mode::stride_in);
            demand(room_in < 0 || (o >= 0 && o < room_in), "reads inside the buffer");
            now[at++] = in[o];
        } while (advance(i, size));
        for (const otimes::sweep& s : p.sweeps) {
            const std::vector<double> matrix = packed(s);
            const auto m = static_cast<std::size_t>(s.mode);
            std::int64_t inner = 1;
            for (std::size_t k = m + 1; k < count; ++k) {
                inner *= size[k];
            }
            odometer after = size;
            after[m] = s.q_extent;
            const std::int64_t outer = static_cast<std::int64_t>(total()) / (s.p_extent * inner);
            size = after;
            check_tile();
            std::vector<double> next(total());
            for (std::int64_t a = 0; a < outer; ++a) {
                for (std::int64_t q = 0; q < s.q_extent; ++q) {
                    for (std::int64_t c = 0; c < inner; ++c) {
                        double sum = 0;
                        for (std::int64_t b = 0; b < s.p_extent; ++b) {
                            sum += now[static_cast<std::size_t>((a * s.p_extent + b) * inner + c)] *
                                   matrix[static_cast<std::size_t>(b * s.q_extent + q)];
                        }
                        next[static_cast<std::size_t>((a * s.q_extent + q) * inner + c)] = sum;
                    }
                }
            }
            now = next;
        }
        std::fill(i.begin(), i.end(), 0);
        at = 0;
        do {
            const std::int64_t o = offset(i, &otimes::pass_mode::stride_out);
            demand(room_out < 0 || (o >= 0 && o < room_out), "writes inside the buffer");
            const double value = p.scalar >= 0 ? alpha_ * now[at] : now[at];
            ++at;
            out[o] = p.add ? out[o] + value : value;
        } while (advance(i, size));
    }

    static constexpr double poison_ = std::numeric_limits<double>::quiet_NaN();
    const otimes::plan& plan_;
    std::vector<double*> operands_;
    double alpha_;
    std::vector<std::vector<double>> buffers_;
};

// Storage of all operands of a program of doubles, filled with small signed powers of two.
struct operand_store {
    std::vector<std::vector<double>> data;
    otimes::bindings bound;
    std::vector<double*> pointers;

    explicit operand_store(const otimes::program& p, std::uint64_t seed) {
        std::size_t count = 0;
        for (const otimes::tensor& t : p.tensors) {
            count = std::max(count, static_cast<std::size_t>(t.binding + 1));
        }
        data.resize(count);
        for (const otimes::tensor& t : p.tensors) {
            if (t.binding < 0) {
                continue;
            }
            std::int64_t last = 0;
            for (const otimes::mode& m : p.modes_of(t)) {
                last += std::max<std::int64_t>(0, m.extent - 1) * m.stride;
            }
            auto& values = data[static_cast<std::size_t>(t.binding)];
            values.resize(static_cast<std::size_t>(last + 1));
            for (double& v : values) {
                seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                v = ((seed >> 40) & 1 ? -1.0 : 1.0) * ((seed >> 41) & 1 ? 0.5 : 1.0);
            }
        }
        for (auto& values : data) {
            pointers.push_back(values.data());
            bound.pointers.push_back(values.data());
        }
        bound.scalars.push_back({0.5, 0.0});
    }
};

// True when the plan computes what the reference loops compute, bit by bit, also in the elements that it must not touch.
inline bool computes_the_program(const otimes::plan& p, std::uint64_t seed = 1) {
    operand_store mine(p.source, seed);
    operand_store want(p.source, seed);
    interpreter(p, mine.pointers, 0.5).run();
    otimes::reference_run<double>(p.source, want.bound);
    return mine.data == want.data;
}

}  // namespace planner_test

// SPDX-License-Identifier: MIT
/// @file cut.hpp
/// Cutting a program: a free index that runs through all of its steps may be worked on range by range, each range a smaller
/// program of the same steps. This is how operands that do not fit on a device pass through it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include <otimes/program/cold.hpp>
#include <otimes/program/program.hpp>

namespace otimes::planning {

/// A free index of a whole program.
struct program_cut {
    std::vector<std::int32_t> mode;  ///< per tensor the mode that is cut; -1: the tensor does not have the index
    std::int64_t extent = 0;         ///< of the index; 0: there is no such cut
    friend bool operator==(const program_cut&, const program_cut&) = default;
};

namespace cutting {

/// Gives tensor `id` the cut mode `k`; false when it has another one already, another extent, or no such mode.
OTIMES_ON_DEMAND inline bool mark(const program& source, program_cut& cut, std::int32_t id, std::int32_t k) {
    if (k >= source.at(id).mode_count) {
        return false;
    }
    std::int32_t& held = cut.mode[static_cast<std::size_t>(id)];
    if (held >= 0) {
        return held == k;
    }
    held = k;
    return source.modes_of(id)[static_cast<std::size_t>(k)].extent == cut.extent;
}

/// Carries the cut of a step's result over to what the step reads; false where every index of the result needs all of it.
OTIMES_ON_DEMAND inline bool carry(const program& source, program_cut& cut, const step& s) {
    if (s.out < 0 || s.in < 0) {
        return false;
    }
    const std::int32_t k = cut.mode[static_cast<std::size_t>(s.out)];
    if (k < 0) {
        return false;
    }
    std::int32_t in_factor = -1;  // the factor's mode for this index, where it has one
    switch (s.kind) {
        case step_kind::contract:
        case step_kind::solve:
        case step_kind::gather:
        case step_kind::scatter:
            if (s.mode == k) {
                return false;
            }
            if (s.factor >= 0 && source.at(s.factor).mode_count > 2) {
                in_factor = k < s.mode ? k : k - 1;
            }
            break;
        case step_kind::scale:
            if (s.variant != step_variant::none) {
                return false;
            }
            in_factor = s.factor >= 0 ? k : -1;
            break;
        case step_kind::accumulate: break;
        default: return false;
    }
    if (in_factor >= 0 &&
        (in_factor >= source.at(s.factor).mode_count ||
         source.modes_of(s.factor)[static_cast<std::size_t>(in_factor)].stride != 0) &&
        !mark(source, cut, s.factor, in_factor)) {
        return false;
    }
    return mark(source, cut, s.in, k);
}

}  // namespace cutting

/// The cut along mode `k` of the program's first output; extent 0 where some step mixes the indices of that mode.
OTIMES_ON_DEMAND inline program_cut cut_along(const program& source, std::int32_t k) {
    program_cut cut;
    cut.mode.assign(source.tensors.size(), -1);
    mode first;
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (t.role != tensor_role::output) {
            continue;
        }
        const auto modes = source.modes_of(t);
        if (cut.extent == 0) {
            if (k >= t.mode_count) {
                return {};
            }
            first = modes[static_cast<std::size_t>(k)];
            cut.extent = first.extent;
            cut.mode[id] = k;
            continue;
        }
        // The other terms of a sum write the same matrix, seen with other modes: the cut one has the same stride.
        for (std::size_t m = 0; m < modes.size() && cut.mode[id] < 0; ++m) {
            cut.mode[id] = modes[m] == first ? static_cast<std::int32_t>(m) : -1;
        }
        if (cut.mode[id] < 0) {
            return {};
        }
    }
    for (std::size_t i = source.steps.size(); i-- > 0;) {
        if (!cutting::carry(source, cut, source.steps[i])) {
            return {};
        }
    }
    return cut;
}

/// All cuts with at least two indices, the one whose indices lie farthest apart in the result first: its ranges are the
/// longest stretches of memory.
OTIMES_ON_DEMAND inline std::vector<program_cut> cuts_of(const program& source) {
    std::vector<std::pair<std::int64_t, program_cut>> found;
    for (const tensor& t : source.tensors) {
        if (t.role != tensor_role::output) {
            continue;
        }
        for (std::int32_t k = 0; k < t.mode_count; ++k) {
            const mode& m = source.modes_of(t)[static_cast<std::size_t>(k)];
            if (m.extent < 2) {
                continue;
            }
            program_cut cut = cut_along(source, k);
            if (cut.extent > 0) {
                std::size_t at = 0;
                while (at < found.size() && found[at].first >= std::abs(m.stride)) {
                    ++at;
                }
                found.insert(found.begin() + static_cast<std::ptrdiff_t>(at), {std::abs(m.stride), std::move(cut)});
            }
        }
        break;
    }
    std::vector<program_cut> result;
    result.reserve(found.size());
    for (auto& [stride, cut] : found) {
        result.push_back(std::move(cut));
    }
    return result;
}

/// The cut along the first mode of every matrix of a program, or along the last: its rows or columns, or an identity that a kron begins
/// or ends with. Extent 0: some step mixes its indices, or overwrites what another range reads. A matrix that one operator writes
/// and the next one reads has modes of its own for each of them, which say nothing of each other but at the ends.
OTIMES_ON_DEMAND inline program_cut cut_at_end(const program& source, bool first) {
    program_cut cut;
    cut.mode.assign(source.tensors.size(), -1);
    const auto end_of = [&](std::size_t id) { return first ? 0 : source.tensors[id].mode_count - 1; };
    const auto step_of = [&](std::size_t id) {
        return cut.mode[id] < 0 ? 0
                                : source.modes_of(source.tensors[id])[static_cast<std::size_t>(cut.mode[id])].stride;
    };
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor& t = source.tensors[id];
        if (t.role == tensor_role::output) {
            if (t.mode_count == 0) {
                return {};
            }
            const std::int64_t extent = source.modes_of(t)[static_cast<std::size_t>(end_of(id))].extent;
            if (cut.extent != 0 && cut.extent != extent) {
                return {};
            }
            cut.extent = extent;
            cut.mode[id] = end_of(id);
        }
    }
    for (std::size_t i = source.steps.size(); i-- > 0;) {
        step s = source.steps[i];
        s.kind = s.kind == step_kind::callback ? step_kind::contract : s.kind;  // mixes the same indices
        if (!cutting::carry(source, cut, s)) {
            return {};
        }
    }
    for (std::size_t a = 0; a < source.tensors.size(); ++a) {
        if (source.tensors[a].role != tensor_role::factor && cut.mode[a] >= 0 && cut.mode[a] != end_of(a)) {
            return {};
        }
        for (std::size_t b = 0; b < source.tensors.size() && source.tensors[a].role == tensor_role::output; ++b) {
            if (source.tensors[a].binding == source.tensors[b].binding && step_of(a) != step_of(b)) {
                return {};
            }
        }
    }
    return cut;
}

/// The longer of the two, of equals the first one; extent 0 also where a tensor has no elements.
OTIMES_ON_DEMAND inline program_cut longest_cut_at_end(const program& source) {
    if (std::ranges::any_of(source.modes, [](const mode& m) { return m.extent == 0; })) {
        return {};
    }
    program_cut cut = cut_at_end(source, true);
    program_cut last = cut_at_end(source, false);
    return cut.extent >= last.extent ? cut : last;
}

/// The program of `count` indices of a cut. Strides stay; the addresses of its operands are those of the whole plus
/// `first * stride of the cut mode` elements.
OTIMES_ON_DEMAND inline program slice_of(const program& source, const program_cut& cut, std::int64_t count) {
    program slice = source;
    for (std::size_t id = 0; id < slice.tensors.size(); ++id) {
        if (cut.mode[id] >= 0) {
            slice.modes[static_cast<std::size_t>(slice.tensors[id].first_mode + cut.mode[id])].extent = count;
        }
    }
    return slice;
}

/// The modes of tensor `id`, as positions in `p.modes`, from the largest stride to the smallest.
OTIMES_ON_DEMAND inline std::vector<std::int32_t> memory_order(const program& p, std::int32_t id) {
    const tensor& t = p.at(id);
    std::vector<std::int32_t> order;
    const auto stride = [&p](std::int32_t k) { return std::abs(p.modes[static_cast<std::size_t>(k)].stride); };
    for (std::int32_t k = t.first_mode; k < t.first_mode + t.mode_count; ++k) {
        std::size_t at = order.size();
        while (at > 0 && stride(order[at - 1]) < stride(k)) {
            --at;
        }
        order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), k);
    }
    return order;
}

/// Modes, outermost first, of which those that follow each other without a gap are one, and those of extent 1 are none.
OTIMES_ON_DEMAND inline std::vector<mode> merged_modes(std::span<const mode> given) {
    std::vector<mode> modes;
    for (const mode& m : given) {
        if (m.extent == 1) {
            continue;
        }
        if (!modes.empty() && modes.back().stride == m.stride * m.extent) {
            modes.back() = {modes.back().extent * m.extent, m.stride};
        } else {
            modes.push_back(m);
        }
    }
    return modes;
}

/// Gives tensor `id` strides without gaps, its modes nested as they are now (largest stride outermost). Returns the modes as
/// they were, outermost first.
OTIMES_ON_DEMAND inline std::vector<mode> pack(program& p, std::int32_t id) {
    const std::vector<std::int32_t> order = memory_order(p, id);
    std::vector<mode> before;
    before.reserve(order.size());
    for (const std::int32_t k : order) {
        before.push_back(p.modes[static_cast<std::size_t>(k)]);
    }
    std::int64_t next = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
        mode& m = p.modes[static_cast<std::size_t>(order[i])];
        m.stride = next;
        next *= m.extent;
    }
    return before;
}

}  // namespace otimes::planning

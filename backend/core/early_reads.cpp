// SPDX-License-Identifier: MIT
#include "early_reads.hpp"

#include <algorithm>

namespace otimes::backend {

address_range range_of(const program& source, const tensor& t, const bindings& b) {
    const auto at = reinterpret_cast<std::intptr_t>(b.pointers[static_cast<std::size_t>(t.binding)]);
    std::int64_t first = 0;
    std::int64_t last = 0;
    for (const mode& m : source.modes_of(t)) {
        if (m.extent == 0) {
            return {at, at};
        }
        (m.stride < 0 ? first : last) += (m.extent - 1) * m.stride;
    }
    return {at + first * t.scalar_bytes, at + (last + 1) * t.scalar_bytes};
}

std::vector<address_range> ranges_written(const program& source, const bindings& b, workspace_view workspace) {
    std::vector<address_range> ranges;
    for (const tensor& t : source.tensors) {
        if (t.role == tensor_role::output && t.binding >= 0) {
            ranges.push_back(range_of(source, t, b));
        }
    }
    if (workspace.data != nullptr) {
        const auto at = reinterpret_cast<std::intptr_t>(workspace.data);
        ranges.push_back({at, at + workspace.bytes});
    }
    return ranges;
}

bool may_read_early(const launch_list& list) {
    const auto is_operand = [](const memory_reference& at) { return at.where == memory_reference::place::operand; };
    return list.staged.empty() && list.before.empty() && !list.slab.empty() && can_read_early(list.slab.front()) &&
           std::ranges::all_of(list.slab.front().factors, is_operand);
}

early_reads early_reads_of(const launch_list& list, const program& source, const bindings& b,
                           std::span<const address_range> written) {
    const launch& first = list.slab.front();
    // An operand of which the program does not say where it ends may be anywhere.
    const auto untouched = [&](const memory_reference& at) {
        const auto is_bound = [&at](const tensor& t) { return t.binding == at.index && t.kind == factor_kind::dense; };
        const auto t = std::ranges::find_if(source.tensors, is_bound);
        if (at.where != memory_reference::place::operand || t == source.tensors.end()) {
            return false;
        }
        const address_range read = range_of(source, *t, b);
        return std::ranges::none_of(
            written, [&read](const address_range& w) { return w.begin < read.end && read.begin < w.end; });
    };
    early_reads may;
    may.factors = std::ranges::all_of(first.factors, untouched);
    may.x = may.factors && first.second.where == memory_reference::place::none && untouched(first.x);
    return may;
}

}  // namespace otimes::backend

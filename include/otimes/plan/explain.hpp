// SPDX-License-Identifier: MIT
/// @file explain.hpp
/// Plans for people: `explain` as a table of passes with totals, notes and the candidates that lost; `operator<<` as
/// initialisers that can be pasted into a test.
#pragma once

#include <otimes/program/cold.hpp>
#include <otimes/program/compiled.hpp>

#if OTIMES_PLANNER_IN_LIBRARY

#include <iosfwd>
#include <string>

#include <otimes/plan/plan.hpp>

namespace otimes {
std::string explain(const plan& p);
std::ostream& operator<<(std::ostream& out, const pass_mode& m);
std::ostream& operator<<(std::ostream& out, const sweep& s);
std::ostream& operator<<(std::ostream& out, const pass& p);
std::ostream& operator<<(std::ostream& out, const plan& p);
}  // namespace otimes

#else

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <otimes/plan/cost.hpp>
#include <otimes/plan/gpu_group.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/plan/workspace_layout.hpp>
#include <otimes/program/checked.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

constexpr std::string_view to_string(pass_kernel k) noexcept {
    switch (k) {
        case pass_kernel::step: return "step";
        case pass_kernel::cpu_tiles: return "cpu_tiles";
        case pass_kernel::gpu_generic: return "gpu_generic";
        case pass_kernel::gpu_trailing: return "gpu_trailing";
        case pass_kernel::gpu_outer: return "gpu_outer";
        case pass_kernel::gpu_blocked: return "gpu_blocked";
    }
    return "?";
}

constexpr std::string_view to_string(sweep_kernel k) noexcept {
    switch (k) {
        case sweep_kernel::fibre: return "fibre";
        case sweep_kernel::row: return "row";
        case sweep_kernel::scalar: return "scalar";
        case sweep_kernel::mma_split: return "mma_split";
        case sweep_kernel::mma_tf32: return "mma_tf32";
        case sweep_kernel::mma_f64: return "mma_f64";
    }
    return "?";
}

constexpr std::string_view to_string(placement p) noexcept {
    switch (p) {
        case placement::automatic: return "automatic";
        case placement::cpu: return "cpu";
        case placement::gpu: return "gpu";
        case placement::gpus: return "gpus";
    }
    return "?";
}

constexpr std::string_view to_string(precision p) noexcept {
    switch (p) {
        case precision::standard: return "standard";
        case precision::ieee: return "ieee";
        case precision::tf32: return "tf32";
        case precision::bf16: return "bf16";
    }
    return "?";
}

constexpr std::string_view to_string(step_kind k) noexcept {
    switch (k) {
        case step_kind::contract: return "contract";
        case step_kind::scale: return "scale";
        case step_kind::gather: return "gather";
        case step_kind::scatter: return "scatter";
        case step_kind::solve: return "solve";
        case step_kind::accumulate: return "accumulate";
        case step_kind::reduce: return "reduce";
        case step_kind::callback: return "callback";
    }
    return "?";
}

namespace planning {

/// Columns of text, each as wide as its longest cell. Cells are UTF-8; a code point counts as one column.
class text_table {
public:
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    /// Columns named in `right` are aligned right. Lines are indented by two blanks and carry no trailing ones.
    [[nodiscard]] std::string text(const std::vector<bool>& right) const {
        std::vector<std::size_t> widths;
        for (const auto& cells : rows_) {
            widths.resize((std::max)(widths.size(), cells.size()), 0);
            for (std::size_t c = 0; c < cells.size(); ++c) {
                widths[c] = (std::max)(widths[c], columns(cells[c]));
            }
        }
        std::string result;
        for (const auto& cells : rows_) {
            std::string line = "  ";
            for (std::size_t c = 0; c < cells.size(); ++c) {
                const std::string pad(widths[c] - columns(cells[c]), ' ');
                line += (c == 0 ? "" : "  ") + (c < right.size() && right[c] ? pad + cells[c] : cells[c] + pad);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            result += line + "\n";
        }
        return result;
    }

private:
    static std::size_t columns(std::string_view text) {
        return static_cast<std::size_t>(std::count_if(
            text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
    }
    std::vector<std::vector<std::string>> rows_;
};

/// Position of each factor in the formula, from 1; 0 for other tensors. Factors count by the mode that they replace, chain
/// after chain; a factor that is used again keeps its number.
OTIMES_ON_DEMAND inline std::vector<std::int32_t> factor_positions(const program& source) {
    std::vector<std::int32_t> position(source.tensors.size(), 0);
    std::int32_t next = 1;
    std::vector<std::pair<std::int32_t, std::int32_t>> run;  // mode, factor
    const auto flush = [&] {
        std::stable_sort(run.begin(), run.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& [on, id] : run) {
            if (position[static_cast<std::size_t>(id)] == 0) {
                position[static_cast<std::size_t>(id)] = next++;
            }
        }
        run.clear();
    };
    for (std::size_t i = 0; i < source.steps.size(); ++i) {
        const step& s = source.steps[i];
        if (i > 0 && s.in != source.steps[i - 1].out) {
            flush();
        }
        if (s.factor >= 0 && source.at(s.factor).role == tensor_role::factor) {
            run.emplace_back(s.mode, s.factor);
        }
    }
    flush();
    return position;
}

/// "256 x 8 x 8" of a tensor; "2^16 x 1" where more than eight extents in a row are alike.
OTIMES_ON_DEMAND inline std::string extents_text(const program& source, std::int32_t id) {
    const std::span<const mode> modes = source.modes_of(id);
    std::string text;
    for (std::size_t k = 0; k < modes.size();) {
        std::size_t end = k + 1;
        while (end < modes.size() && modes[end].extent == modes[k].extent) {
            ++end;
        }
        end = end - k > 8 ? end : k + 1;
        text.append(k == 0 ? "" : " x ").append(std::to_string(modes[k].extent));  // GCC 12 warns of operator+ here
        if (end - k > 1) {
            text.append("^").append(std::to_string(end - k));
        }
        k = end;
    }
    return text.empty() ? "scalar" : text;
}

/// "F2", "F1⊗F2⊗F3": the factors of a sweep, the first outermost; beyond six the middle ones are left out.
OTIMES_ON_DEMAND inline std::string factors_text(const sweep& s, const std::vector<std::int32_t>& positions) {
    std::string text;
    for (std::size_t i = 0; i < s.factors.size(); ++i) {
        if (s.factors.size() > 6 && i == 2) {  // 1 x 1 factors, folded into another
            text += "⊗...";
            i = s.factors.size() - 1;
        }
        text += (i == 0 ? "F" : "⊗F") + std::to_string(positions[static_cast<std::size_t>(s.factors[i])]);
    }
    return text;
}

/// One entry of a list of factors: its text, and what makes it one of a run F2, F3, F4 or F5⊗F6, F3⊗F4, F1⊗F2.
struct listed_factor {
    std::string text;
    std::string extents;     ///< those in a run are alike
    std::int32_t first = 0;  ///< positions in the formula, of which none is left out between; 0: it is in no run
    std::int32_t last = 0;
};

/// A sweep as an entry of a list, its text that of its factors.
OTIMES_ON_DEMAND inline listed_factor listed(const sweep& s, const std::vector<std::int32_t>& positions) {
    listed_factor one;
    one.text = factors_text(s, positions);
    const auto position = [&](std::size_t i) { return positions[static_cast<std::size_t>(s.factors[i])]; };
    bool dense = !s.factors.empty();
    for (std::size_t i = 1; i < s.factors.size(); ++i) {
        dense = dense && position(i) == position(i - 1) + 1;
    }
    if (dense) {
        one.first = position(0);
        one.last = position(s.factors.size() - 1);
    }
    return one;
}

/// The entries with `between` between them. Of a run of `most` and more, of groups of four, the middle ones are left out: F2[8] x ... x F6[8].
OTIMES_ON_DEMAND inline std::string list_text(const std::vector<listed_factor>& list, std::string_view between,
                                              std::size_t most) {
    std::string text;
    const auto append = [&](std::string_view one) { (text += text.empty() ? "" : between) += one; };
    const auto follows = [](const listed_factor& a, const listed_factor& b) {
        return a.first > 0 && b.first == a.last + 1 && a.extents == b.extents;
    };
    for (std::size_t i = 0; i < list.size();) {
        std::size_t up = i + 1;
        while (up < list.size() && follows(list[up - 1], list[up])) {
            ++up;
        }
        std::size_t down = i + 1;
        while (down < list.size() && follows(list[down], list[down - 1])) {
            ++down;
        }
        const std::size_t end = (std::max)(up, down);
        if (end - i >= (list[i].first < list[i].last ? 4 : most)) {
            append(list[i].text);
            append("...");
            append(list[end - 1].text);
            i = end;
        } else {
            append(list[i++].text);
        }
    }
    return text;
}

/// "8", "8->5".
OTIMES_ON_DEMAND inline std::string extent_text(std::int64_t in, std::int64_t out) {
    return std::to_string(in) + (in == out ? "" : "->" + std::to_string(out));
}

/// "256 x F1[8] x 4096", "50 x F1[32->8] x F2[64->128]": the indices of the input in the order of memory, those that a factor
/// replaces in brackets behind it.
OTIMES_ON_DEMAND inline std::string pass_shape_text(const pass& p, const std::vector<std::int32_t>& positions) {
    std::vector<listed_factor> list;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        listed_factor one;
        one.text = extent_text(p.modes[k].extent_in, p.modes[k].extent_out);
        for (const sweep& s : p.sweeps) {
            if (s.mode == static_cast<std::int32_t>(k)) {
                const std::string extents = "[" + one.text + "]";
                one = listed(s, positions);
                one.text += extents;
                one.extents = extents;
            }
        }
        list.push_back(std::move(one));
    }
    return list.empty() ? "1" : list_text(list, " x ", 4);
}

/// The same of a step: the indices as the program names them.
OTIMES_ON_DEMAND inline std::string step_shape_text(const program& source, const step& s,
                                                    const std::vector<std::int32_t>& positions) {
    if (s.in < 0) {
        return "-";
    }
    if (s.mode < 0 || s.factor < 0 || s.out < 0 || s.mode >= source.at(s.out).mode_count ||
        positions[static_cast<std::size_t>(s.factor)] == 0) {
        return extents_text(source, s.in);
    }
    std::string text;
    for (std::int32_t k = 0; k < source.at(s.in).mode_count; ++k) {
        const std::int64_t extent = source.modes_of(s.in)[static_cast<std::size_t>(k)].extent;
        const std::int64_t after = source.modes_of(s.out)[static_cast<std::size_t>(s.mode)].extent;
        text +=
            (k == 0 ? "" : " x ") + (k == s.mode ? "F" + std::to_string(positions[static_cast<std::size_t>(s.factor)]) +
                                                       "[" + extent_text(extent, after) + "]"
                                                 : std::to_string(extent));
    }
    return text;
}

/// True of a matrix that holds what lies between two products of a program.
OTIMES_ON_DEMAND inline bool is_scratch(const program& source, const tensor& t) {
    return lowering_notes::has(source.noted.scratch_bindings, t.binding);
}

/// True of the result, and not of what lies between two products.
OTIMES_ON_DEMAND inline bool is_result(const program& source, std::int32_t id) {
    return id >= 0 && source.at(id).role == tensor_role::output && !is_scratch(source, source.at(id));
}

/// A tensor of each matrix that a program reads, the one of most modes; of matrices that all lie at one place, one.
OTIMES_ON_DEMAND inline std::vector<std::int32_t> inputs_of(const program& source) {
    std::vector<std::int32_t> inputs;
    bool differ = false;
    const auto more_modes = [&source](std::int32_t a, std::int32_t b) {
        return source.at(a).mode_count < source.at(b).mode_count;
    };
    for (std::size_t k = 0; k < source.tensors.size(); ++k) {
        const auto id = static_cast<std::int32_t>(k);
        const tensor& t = source.at(id);
        if (t.role != tensor_role::input || is_scratch(source, t)) {
            continue;
        }
        const auto same =
            std::ranges::find_if(inputs, [&](std::int32_t other) { return source.at(other).binding == t.binding; });
        if (same != inputs.end()) {
            *same = (std::max)(*same, id, more_modes);
        } else {
            differ = differ || (!inputs.empty() && !lowering_notes::has(source.noted.repeated_bindings, t.binding));
            inputs.push_back(id);
        }
    }
    if (!differ && inputs.size() > 1) {
        inputs = {*std::ranges::max_element(inputs, more_modes)};
    }
    return inputs;
}

/// "X" (of several "X1", "X2"), "Y", "T" for program tensors; "W1" for workspace buffer 0.
OTIMES_ON_DEMAND inline std::string place_text(const program& source, std::int32_t name) {
    if (name <= -2) {
        return std::string("W").append(std::to_string(-1 - name));  // GCC 12 warns of operator+ here
    }
    if (name < 0) {
        return "-";
    }
    if (is_scratch(source, source.at(name))) {
        return "T";
    }
    switch (source.at(name).role) {
        case tensor_role::input: {
            const std::vector<std::int32_t> inputs = inputs_of(source);
            const auto found = std::ranges::find_if(
                inputs, [&source, name](std::int32_t id) { return source.at(id).binding == source.at(name).binding; });
            return inputs.size() < 2 ? "X" : std::string("X").append(std::to_string(found - inputs.begin() + 1));
        }
        case tensor_role::factor: return "F";
        case tensor_role::output: return "Y";
        case tensor_role::temporary: return "T";
    }
    return "?";
}

/// "a * " of the scalar that a pass multiplies by, "a2 * " where the program has several; nothing of one that was 1. A plan is for
/// any values of scalars, and so knows none.
OTIMES_ON_DEMAND inline std::string scalar_text(const program& source, std::int32_t scalar) {
    std::int32_t number = 0;
    std::int32_t count = 0;
    for (std::int32_t k = 0; k < source.scalar_count; ++k) {
        count += lowering_notes::has(source.noted.unit_scalars, k) ? 0 : 1;
        number = k == scalar ? count : number;
    }
    return scalar < 0 || lowering_notes::has(source.noted.unit_scalars, scalar)
               ? ""
               : (count > 1 ? "a" + std::to_string(number) : std::string("a")) + " * ";
}

/// "F1, F2⊗F3", "a * F2": what a pass does, its sweeps in their order; "add a * X" where it has none.
OTIMES_ON_DEMAND inline std::string work_text(const program& source, const pass& p,
                                              const std::vector<std::int32_t>& positions) {
    std::vector<listed_factor> list;
    for (const sweep& s : p.sweeps) {
        if (!s.factors.empty()) {
            list.push_back(listed(s, positions));
        }
    }
    const std::string scalar = scalar_text(source, p.scalar);
    if (!list.empty()) {
        return scalar + list_text(list, ", ", 7);
    }
    return p.add            ? "add " + scalar + place_text(source, p.in)
           : scalar.empty() ? "copy"
                            : scalar + place_text(source, p.in);
}

/// "contract F1", "a * scale F2": a pass of one step.
OTIMES_ON_DEMAND inline std::string step_text(const program& source, const step& s,
                                              const std::vector<std::int32_t>& positions) {
    const std::int32_t position = s.factor < 0 ? 0 : positions[static_cast<std::size_t>(s.factor)];
    // The scalar of a reciprocal is added to the divisors.
    return (s.variant == step_variant::reciprocal ? "" : scalar_text(source, s.scalar)) +
           std::string(to_string(s.kind)) + (position > 0 ? " F" + std::to_string(position) : "");
}

/// "9 factors in 3 terms, 7 after sharing": the factors as the formula has them, and the terms that are added up.
OTIMES_ON_DEMAND inline std::string factor_count_text(const program& source,
                                                      const std::vector<std::int32_t>& positions) {
    const std::int64_t applied = positions.empty() ? 0 : *std::ranges::max_element(positions);
    const std::int64_t written = applied + source.noted.factors_saved;
    const std::int64_t terms =
        std::ranges::count_if(source.steps, [&source](const step& s) { return is_result(source, s.out); }) +
        source.noted.terms_saved;
    return counted(written, "factor") + (terms > 1 ? " in " + counted(terms, "term") : "") +
           (written > applied ? ", " + std::to_string(applied) + " after sharing" : "");
}

/// Of which part of the run the passes are, where they are not of all of it: operands that pass through GPUs.
OTIMES_ON_DEMAND inline std::string part_text(const plan& p) {
    std::string text;
    for (std::size_t k = 0; k < p.trip_slabs.size(); ++k) {
        const bool whole = p.trip_slabs[k] == 1;
        text += k == 0 ? "passes of " : "; in the next trip of ";
        text += !whole ? "one slab of " + std::to_string(p.trip_slabs[k]) : k == 0 ? "the first trip" : "all of it";
    }
    if (p.trip_slabs == std::vector<std::int64_t>{1}) {
        text = p.part_count > 1 ? "passes" : "";
    }
    if (p.where == placement::gpus && p.trip_slabs.empty() && !p.passes.empty()) {
        return "passes of all rows on one GPU";  // of operands in device memory, which several share evenly
    }
    return text + (p.part_count > 1 ? " on each of " + std::to_string(p.part_count) + " GPUs" : "");
}

/// What a tile is: lanes, the way it is loaded and stored, and its bytes; or a block of a GPU.
OTIMES_ON_DEMAND inline std::string tile_text(const plan& whole, const pass& p) {
    switch (p.kernel) {
        case pass_kernel::step: return "-";
        case pass_kernel::gpu_generic:
            return p.tile.slices > 1 ? std::to_string(p.tile.slices) + " threads a sum" +
                                           (p.tile.rows > 1 ? ", " + counted(p.tile.rows, "fibre") + " at once" : "")
                                     : "-";
        case pass_kernel::gpu_blocked:
            return p.tile.slices > 1 ? "blocks of 128 fibres, sums in " + std::to_string(p.tile.slices) + " pieces"
                                     : "blocks of 128 fibres";
        case pass_kernel::gpu_trailing:
        case pass_kernel::gpu_outer: {
            const std::string what = p.kernel == pass_kernel::gpu_outer ? "runs of " + std::to_string(p.tile.run)
                                                                        : counted(p.tile.rows, "segment");
            return what + (p.tile.pieces > 1 ? " in " + counted(p.tile.pieces, "piece") : "") +
                   (is_sliced_by_launches(p.tile)        ? " in " + std::to_string(p.tile.slices) + " launches"
                    : p.tile.cluster * p.tile.slices > 1 ? " over " + counted(p.tile.cluster * p.tile.slices, "block")
                                                         : "") +
                   ", " + bytes_text(p.shared_bytes) + " shared";
        }
        case pass_kernel::cpu_tiles: break;
    }
    std::string text;
    if (p.lane_mode < 0) {
        text = "row kernel";
    } else {
        const pass_mode& lanes = p.modes[static_cast<std::size_t>(p.lane_mode)];
        text = counted(p.lane_count, "lane");
        if (lanes.stride_in != 1 || lanes.stride_out != 1) {
            text += lanes.stride_in != 1 && lanes.stride_out != 1 ? ", transposed"
                    : lanes.stride_in != 1                        ? ", transposed in"
                                                                  : ", transposed out";
        }
    }
    const double bytes = tile_peak_elements(p) * static_cast<double>(p.lane_count) *
                         static_cast<double>(plan_element_bytes(whole.source));
    text += ", " + bytes_text(bytes);
    if (p.block_columns > 0) {
        text += p.block_rows == 0
                    ? ", factor as it lies"
                    : ", factor in " + std::to_string(p.block_rows) + " x " + std::to_string(p.block_columns);
    }
    return text;
}

/// What is evaluated and where, in two lines: "otimes plan: 3 factors, double on ..."; "X 256 x 8 x 8 to Y 256 x 8 x 8".
OTIMES_ON_DEMAND inline std::string heading_text(const plan& p, const std::vector<std::int32_t>& positions) {
    const program& source = p.source;
    std::int32_t output = -1;  // of the terms' views of Y the one of most modes
    for (std::size_t k = 0; k < source.tensors.size(); ++k) {
        const auto id = static_cast<std::int32_t>(k);
        output = is_result(source, id) && (output < 0 || source.at(id).mode_count > source.at(output).mode_count)
                     ? id
                     : output;
    }
    std::string inputs;
    for (const std::int32_t id : inputs_of(source)) {
        inputs += (inputs.empty() ? "" : ", ") + place_text(source, id) + " " + extents_text(source, id);
    }
    bool adds = false;  // what was in Y counts: the first step that writes it adds
    for (std::size_t k = source.steps.size(); k-- > 0;) {
        adds = is_result(source, source.steps[k].out) ? source.steps[k].add : adds;
    }
    std::string text = "otimes plan: " + factor_count_text(source, positions);
    if (output >= 0) {
        const dtype type = source.at(output).type;
        text +=
            ", " + (type == dtype::other ? "a scalar of your own by reference loops" : std::string(to_string(type)));
    }
    text +=
        " on " + std::string(p.where == placement::cpu ? counted(p.threads, "thread") + " of " : "") + p.machine_name;
    text += p.part_count > 1             ? " (" + std::to_string(p.part_count) + " GPUs)\n"
            : p.where == placement::gpus ? " (several GPUs)\n"
                                         : "\n";
    if (!inputs.empty() && output >= 0) {
        text += "  " + inputs + (adds ? " added to Y " : " to Y ") + extents_text(source, output) + "\n";
    }
    return text;
}

/// What the plan is made from, where that is not the formula and its defaults: a line each.
OTIMES_ON_DEMAND inline std::string origin_text(const plan& p) {
    const program& source = p.source;
    std::string text;
    if (source.noted.operator_apart) {
        text +=
            "  an operator was applied before: only its result is read here; with otimes::sum_expr<Scalar>(op) in its "
            "place all steps are shown\n";
    }
    if (source.noted.term_apart) {
        text += "  a term that is no matrix in memory was evaluated before: only its value is read here\n";
    }
    if (p.wishes.precision != precision::standard || p.wishes.deterministic) {
        text += "  options: precision " + std::string(to_string(p.wishes.precision)) +
                (p.wishes.deterministic ? ", deterministic" : "") + "\n";
    }
    if (!source.rewritten.empty()) {
        text += "  rewritten by ";
        for (int k = 0, named = 0; k < rewrite_count; ++k) {
            const auto rule = static_cast<rewrite>(k);
            if (source.rewritten.holds(rule)) {
                text += (named++ > 0 ? ", " : "") + std::string(to_string(rule));
            }
        }
        if (source.rewritten.formed_flops > 0) {
            text += " (" + flops_text(static_cast<double>(source.rewritten.formed_flops)) + " before the plan)";
        }
        text += "\n";
    }
    return text;
}

/// The times of the whole, and how its slabs follow each other.
OTIMES_ON_DEMAND inline std::string prediction_text(const plan& p) {
    const double rate = p.predicted_seconds > 0 ? static_cast<double>(p.flops) / p.predicted_seconds : 0;
    std::string text = "  predicted " + seconds_text(p.predicted_seconds) + " (" + flops_text(rate) + "/s), bound " +
                       seconds_text(p.bound_seconds) + "\n";
    if (p.slab_count > 1) {
        // Threads take whole slabs, but not of steps.
        const bool one_by_one = p.where != placement::cpu || std::ranges::any_of(p.passes, [](const pass& one) {
                                    return one.kernel == pass_kernel::step;
                                });
        text += "  " + counted(p.slab_count, "slab") + " of at most " + std::to_string(p.slab_extent) +
                (one_by_one ? ", one after another\n" : ", each run through all passes by one thread\n");
    }
    return text;
}

/// The passes, a row each, with a row of totals behind each trip or behind them all.
OTIMES_ON_DEMAND inline std::string passes_text(const plan& p, const std::vector<std::int32_t>& positions) {
    const program& source = p.source;
    const std::string shown = part_text(p);
    const auto remark_of = [&p](const pass& one) {  // a chain in one pass is not all that a sum does
        return p.passes.size() > 1 && one.reason == "everything in one pass" ? std::string() : one.reason;
    };
    const bool remarks = std::ranges::any_of(p.passes, [&](const pass& one) { return !remark_of(one).empty(); });
    text_table table;
    table.row({"pass", "sweeps", "shape", "from", "to", "tile", "flops", "bytes", "level", "predicted", "bound",
               remarks ? "remark" : ""});
    double predicted = 0;
    std::int64_t flops = 0;
    std::int64_t bytes = 0;
    const auto total = [&](const std::string& of, std::int64_t all_flops, const std::string& bound) {
        table.row({"", of, "", "", "", "", flops_text(static_cast<double>(all_flops)),
                   quantity(static_cast<double>(bytes), "B"), "", seconds_text(predicted), bound, ""});
        predicted = 0;
        flops = bytes = 0;
    };
    std::size_t trip = 0;
    std::size_t end_of_trip =
        shown.empty() || p.trip_passes.empty() ? 0 : static_cast<std::size_t>(p.trip_passes.front());
    for (std::size_t i = 0; i < p.passes.size(); ++i) {
        const pass& one = p.passes[i];
        const step* const alone =
            one.kernel == pass_kernel::step ? &source.steps[static_cast<std::size_t>(one.step)] : nullptr;
        table.row({std::to_string(i + 1),
                   alone != nullptr ? step_text(source, *alone, positions) : work_text(source, one, positions),
                   alone != nullptr ? step_shape_text(source, *alone, positions) : pass_shape_text(one, positions),
                   place_text(source, one.in), (one.add ? "+" : "") + place_text(source, one.out), tile_text(p, one),
                   flops_text(static_cast<double>(one.flops)), quantity(static_cast<double>(one.bytes), "B"),
                   one.level + (one.past_caches ? ", past caches" : ""), seconds_text(one.predicted_seconds),
                   seconds_text(one.bound_seconds), remark_of(one)});
        predicted += one.predicted_seconds;
        saturating_add(flops, static_cast<double>(one.flops));
        saturating_add(bytes, static_cast<double>(one.bytes));
        if (i + 1 == end_of_trip) {
            const std::int64_t slabs = p.trip_slabs[trip++];
            total("one " + (slabs > 1          ? "slab of " + std::to_string(slabs)
                            : p.part_count > 1 ? "part of " + std::to_string(p.part_count)
                                               : std::string("trip")),
                  flops, "");
            end_of_trip += trip < p.trip_passes.size() ? static_cast<std::size_t>(p.trip_passes[trip]) : 0;
        }
    }
    if (trip == 0) {
        // That of operands in host memory is of the way there, too.
        total("total", p.flops, shown.empty() && p.trip_slabs.empty() ? seconds_text(p.bound_seconds) : "");
    }
    return (shown.empty() ? "" : "  " + shown + ":\n") +
           table.text({true, false, false, false, false, false, true, true, false, true, true, false});
}

/// What has to be moved in any case, and the workspace with its parts.
OTIMES_ON_DEMAND inline std::string memory_text(const plan& p) {
    std::string text = "  least traffic " + quantity(static_cast<double>(p.bytes), "B") + "; workspace " +
                       (p.part_count > 1 ? "of each GPU " : "") + bytes_text(static_cast<double>(p.workspace_bytes));
    const workspace_layout layout = layout_of(p);
    const std::int64_t factor_bytes = layout.buffers.empty() ? layout.tiles : layout.buffers.front();
    if (p.workspace_bytes > 0) {
        std::int64_t named = 0;
        std::string parts;
        const auto part = [&](const char* name, std::int64_t count, std::int64_t each) {
            if (each > 0) {
                named += count * each;
                parts += std::string(parts.empty() ? "" : ", ") + name + " " +
                         (count > 1 ? std::to_string(count) + " x " : "") + bytes_text(static_cast<double>(each));
            }
        };
        part("factors", 1, factor_bytes);
        part("intermediates", layout.worker_count, layout.worker_stride);
        part("tiles", p.threads, layout.tile_stride);
        // More than what rounding to pages leaves: operands of the host that pass through in slabs.
        part("slabs of the operands", 1, p.workspace_bytes - named > 65536 ? p.workspace_bytes - named : 0);
        text += parts.empty() ? "" : " (" + parts + ")";
    }
    return text + "\n";
}

/// The notes, and the candidates that lost with the reason.
OTIMES_ON_DEMAND inline std::string notes_text(const plan& p) {
    std::string text;
    for (const std::string& note : p.notes) {
        text += "  note: " + note + "\n";
    }
    if (!p.rejected.empty()) {
        text += "\n  rejected\n";
        text_table losers;
        for (const rejected_candidate& r : p.rejected) {
            losers.row({"  " + r.what, seconds_text(r.predicted_seconds), r.reason});
        }
        text += losers.text({false, true, false});
    }
    return text;
}

}  // namespace planning

/// A plan as a page of text: what is evaluated, one row per pass, totals, notes, and the candidates that lost with the
/// reason. Deterministic; no line depends on the locale. Factors count from 1 as in the formula; F2[8] is an index that F2 replaces.
OTIMES_PLANNER_API_ON_DEMAND std::string explain(const plan& p) {
    using namespace planning;
    const std::vector<std::int32_t> positions = factor_positions(p.source);
    std::string text = heading_text(p, positions);
    text.append(origin_text(p)).append(prediction_text(p)).append("\n");
    text.append(passes_text(p, positions)).append("\n");
    return text.append(memory_text(p)).append(notes_text(p));
}

OTIMES_PLANNER_API_ON_DEMAND std::ostream& operator<<(std::ostream& out, const pass_mode& m) {
    return out << "{.extent_in = " << m.extent_in << ", .extent_out = " << m.extent_out
               << ", .stride_in = " << m.stride_in << ", .stride_out = " << m.stride_out << '}';
}

OTIMES_PLANNER_API_ON_DEMAND std::ostream& operator<<(std::ostream& out, const sweep& s) {
    out << "{.mode = " << s.mode << ", .kernel = otimes::sweep_kernel::" << to_string(s.kernel)
        << ", .P = " << s.p_extent << ", .Q = " << s.q_extent << ", .factors = {";
    for (std::size_t i = 0; i < s.factors.size(); ++i) {
        out << (i == 0 ? "" : ", ") << s.factors[i];
    }
    return out << "}}";
}

/// What decides how a pass runs, as a designated initialiser; predictions are left out.
OTIMES_PLANNER_API_ON_DEMAND std::ostream& operator<<(std::ostream& out, const pass& p) {
    out << "{.kernel = otimes::pass_kernel::" << to_string(p.kernel) << ", .step = " << p.step << ", .in = " << p.in
        << ", .out = " << p.out << ", .add = " << (p.add ? "true" : "false") << ", .scalar = " << p.scalar
        << ", .modes = {";
    for (std::size_t i = 0; i < p.modes.size(); ++i) {
        out << (i == 0 ? "" : ", ") << p.modes[i];
    }
    out << "}, .sweeps = {";
    for (std::size_t i = 0; i < p.sweeps.size(); ++i) {
        out << (i == 0 ? "" : ", ") << p.sweeps[i];
    }
    out << "}, .slab_mode = " << p.slab_mode << ", .slab_scale = " << p.slab_scale << ", .lane_mode = " << p.lane_mode
        << ", .lane_count = " << p.lane_count;
    if (p.block_columns > 0) {
        out << ", .block_rows = " << p.block_rows << ", .block_columns = " << p.block_columns;
    }
    out << (p.past_caches ? ", .past_caches = true" : "");
    if (p.kernel != pass_kernel::cpu_tiles && p.kernel != pass_kernel::step) {
        out << ", .tile = " << planning::text_of_tile(p.tile, p.kernel == pass_kernel::gpu_outer)
            << ", .shared_bytes = " << p.shared_bytes;
    }
    return out << '}';
}

/// The table of explain.
OTIMES_PLANNER_API_ON_DEMAND std::ostream& operator<<(std::ostream& out, const plan& p) { return out << explain(p); }

}  // namespace otimes

#endif

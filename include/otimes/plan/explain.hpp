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
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// "256 x 8 x 8" of a tensor.
OTIMES_ON_DEMAND inline std::string extents_text(const program& source, std::int32_t id) {
    std::string text;
    for (const mode& m : source.modes_of(id)) {
        text += (text.empty() ? "" : " x ") + std::to_string(m.extent);
    }
    return text.empty() ? "scalar" : text;
}

/// "256 x [8] x 4096", "50 x [32->8] x [64->128]": contracted modes in brackets.
OTIMES_ON_DEMAND inline std::string pass_shape_text(const pass& p) {
    std::string text;
    for (std::size_t k = 0; k < p.modes.size(); ++k) {
        const pass_mode& m = p.modes[k];
        const bool contracted = std::any_of(p.sweeps.begin(), p.sweeps.end(),
                                            [k](const sweep& s) { return s.mode == static_cast<std::int32_t>(k); });
        std::string one = std::to_string(m.extent_in);
        if (m.extent_out != m.extent_in) {
            one += "->" + std::to_string(m.extent_out);
        }
        text += (k == 0 ? "" : " x ") + (contracted ? "[" + one + "]" : one);
    }
    return text.empty() ? "1" : text;
}

/// "F1, F2⊗F3 as 9 x 9": the sweeps of a pass in their order; beyond six factors of one the middle ones are left out.
OTIMES_ON_DEMAND inline std::string sweeps_text(const pass& p, const std::vector<std::int32_t>& positions) {
    std::string text;
    for (const sweep& s : p.sweeps) {
        text += text.empty() ? "" : ", ";
        for (std::size_t i = 0; i < s.factors.size(); ++i) {
            if (s.factors.size() > 6 && i == 2) {  // 1 x 1 factors, folded into another
                text += "⊗...";
                i = s.factors.size() - 1;
            }
            text += (i == 0 ? "F" : "⊗F") + std::to_string(positions[static_cast<std::size_t>(s.factors[i])]);
        }
        if (s.factors.size() > 1) {
            text += " as " + shape_text(s.p_extent, s.q_extent);
        }
    }
    return text.empty() ? "copy" : text;
}

/// "X", "Y", "T" for program tensors; "W1" for workspace buffer 0.
OTIMES_ON_DEMAND inline std::string place_text(const program& source, std::int32_t name) {
    if (name <= -2) {
        return std::string("W").append(std::to_string(-1 - name));  // GCC 12 warns of operator+ here
    }
    if (name < 0) {
        return "-";
    }
    switch (source.at(name).role) {
        case tensor_role::input: return "X";
        case tensor_role::factor: return "F";
        case tensor_role::output: return "Y";
        case tensor_role::temporary: return "T";
    }
    return "?";
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
    double peak = 0;
    double now = 1;
    for (const sweep& s : p.sweeps) {
        now *= static_cast<double>(s.p_extent);
    }
    peak = now;
    for (const sweep& s : p.sweeps) {
        now = now / static_cast<double>(s.p_extent) * static_cast<double>(s.q_extent);
        peak = (std::max)(peak, now);
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
    const double bytes =
        peak * static_cast<double>(p.lane_count) * static_cast<double>(plan_element_bytes(whole.source));
    text += ", " + bytes_text(bytes);
    if (p.block_columns > 0) {
        text += p.block_rows == 0
                    ? ", factor as it lies"
                    : ", factor in " + std::to_string(p.block_rows) + " x " + std::to_string(p.block_columns);
    }
    return text;
}

}  // namespace planning

/// A plan as a page of text: what is evaluated, one row per pass, totals, notes, and the candidates that lost with the
/// reason. Deterministic; no line depends on the locale. Factors count from 1 as in the formula, [8] is a contracted extent.
OTIMES_PLANNER_API_ON_DEMAND std::string explain(const plan& p) {
    using namespace planning;
    const program& source = p.source;
    const std::vector<std::int32_t> positions = factor_positions(source);
    std::int32_t input = -1;
    std::int32_t output = -1;
    for (std::size_t id = 0; id < source.tensors.size(); ++id) {
        const tensor_role role = source.tensors[id].role;
        input = role == tensor_role::input && input < 0 ? static_cast<std::int32_t>(id) : input;
        output = role == tensor_role::output ? static_cast<std::int32_t>(id) : output;
    }
    std::int64_t contractions = 0;
    bool adds = false;  // what was in Y counts: the first step that writes it adds
    for (std::size_t k = source.steps.size(); k-- > 0;) {
        contractions += source.steps[k].kind == step_kind::contract ? 1 : 0;
        const std::int32_t out = source.steps[k].out;
        adds = out >= 0 && source.at(out).role == tensor_role::output ? source.steps[k].add : adds;
    }
    std::string text = "otimes plan: " + counted(contractions, "factor");
    if (output >= 0) {
        text += ", " + std::string(to_string(source.at(output).type));
    }
    text +=
        " on " + std::string(p.where == placement::cpu ? counted(p.threads, "thread") + " of " : "") + p.machine_name;
    text += p.where == placement::gpus ? " (several GPUs)\n" : "\n";
    if (input >= 0 && output >= 0) {
        text += "  X " + extents_text(source, input) + (adds ? " added to Y " : " to Y ") +
                extents_text(source, output) + "\n";
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
    const double rate = p.predicted_seconds > 0 ? static_cast<double>(p.flops) / p.predicted_seconds : 0;
    text += "  predicted " + seconds_text(p.predicted_seconds) + " (" + flops_text(rate) + "/s), bound " +
            seconds_text(p.bound_seconds) + "\n";
    if (p.slab_count > 1) {
        // Threads take whole slabs, but not of steps.
        const bool one_by_one = p.where != placement::cpu || std::ranges::any_of(p.passes, [](const pass& one) {
                                    return one.kernel == pass_kernel::step;
                                });
        text += "  " + counted(p.slab_count, "slab") + " of at most " + std::to_string(p.slab_extent) +
                (one_by_one ? ", one after another\n" : ", each run through all passes by one thread\n");
    }
    text += "\n";

    text_table table;
    table.row({"pass", "sweeps", "shape", "from", "to", "tile", "flops", "bytes", "level", "predicted", "bound",
               "ends because"});
    double predicted = 0;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < p.passes.size(); ++i) {
        const pass& one = p.passes[i];
        std::string what = sweeps_text(one, positions);
        std::string shape = pass_shape_text(one);
        if (one.kernel == pass_kernel::step) {
            const step& s = source.steps[static_cast<std::size_t>(one.step)];
            what = std::string(to_string(s.kind)) +
                   (s.factor >= 0 && positions[static_cast<std::size_t>(s.factor)] > 0
                        ? " F" + std::to_string(positions[static_cast<std::size_t>(s.factor)])
                        : "");
            shape = s.in >= 0 ? extents_text(source, s.in) : "-";
        }
        table.row({std::to_string(i + 1), what, shape, place_text(source, one.in),
                   (one.add ? "+" : "") + place_text(source, one.out), tile_text(p, one),
                   flops_text(static_cast<double>(one.flops)), quantity(static_cast<double>(one.bytes), "B"),
                   one.level + (one.past_caches ? ", past caches" : ""), seconds_text(one.predicted_seconds),
                   seconds_text(one.bound_seconds), one.reason});
        predicted += one.predicted_seconds;
        saturating_add(bytes, static_cast<double>(one.bytes));
    }
    table.row({"", "total", "", "", "", "", flops_text(static_cast<double>(p.flops)),
               quantity(static_cast<double>(bytes), "B"), "", seconds_text(predicted), seconds_text(p.bound_seconds),
               ""});
    text += table.text({true, false, false, false, false, false, true, true, false, true, true, false});

    text += "\n  least traffic " + quantity(static_cast<double>(p.bytes), "B") + "; workspace " +
            bytes_text(static_cast<double>(p.workspace_bytes));
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
    text += "\n";
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

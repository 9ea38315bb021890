// SPDX-License-Identifier: MIT
/// @file distributed_text.hpp
/// Distributed plans and problems as text: without loss (what ranks send and compare), and for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <otimes/plan/distributed_plan.hpp>
#include <otimes/plan/distributed_stages.hpp>
#include <otimes/plan/distribution.hpp>
#include <otimes/plan/plan_text.hpp>
#include <otimes/plan/text.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/dtype.hpp>

namespace otimes {

namespace planning {

template <class Archive>
void transfer(Archive& a, distribution& p) {
    a.line("distribution");
    transfer_all(a, p.row_parts, p.col_parts, p.outer, p.extent, p.inner, p.first_rank);
}

template <class Archive>
void transfer(Archive& a, distributed_problem& p) {
    a.line("problem");
    a.choice(p.type, dtype::other);
    a.choice(p.space, memory_space::device);
    transfer_all(a, p.ranks, p.rows, p.add, p.result_is_fixed);
    a.field(p.wishes.workspace_limit_bytes);
    a.choice(p.wishes.precision, precision::bf16);
    a.choice(p.wishes.placement, placement::gpus);
    transfer_all(a, p.wishes.threads, p.wishes.deterministic);
    transfer(a, p.operand);
    transfer(a, p.result);
    a.line("factors");
    const std::size_t factors = a.count(p.factors);
    for (std::size_t i = 0; i < factors; ++i) {
        distributed_factor& f = p.factors[i];
        a.line("factor");
        a.choice(f.type, dtype::other);
        a.choice(f.space, memory_space::device);
        transfer_all(a, f.p_extent, f.q_extent, f.row_stride, f.col_stride, f.conjugate, f.identity, f.diagonal);
        a.choice(f.structure, factor_kind::self_adjoint);
        transfer_all(a, f.stored);
    }
}

template <class Archive>
void transfer(Archive& a, distributed_stage& s) {
    a.line("stage");
    a.choice(s.kind, stage_kind::store);
    transfer_all(a, s.mode, s.chunks, s.chunk_mode, s.receiver_mode, s.portion_items, s.scaled, s.add, s.moved.total,
                 s.moved.most_sent, s.moved.most_received, s.predicted_seconds);
    transfer_numbers(a, "extents", s.extents);
    transfer_numbers(a, "applied", s.factors);
    transfer_numbers(a, "plan_of_rank", s.plan_of_rank);
    transfer(a, s.where);
    transfer(a, s.from);
    transfer(a, s.to);
    a.line("plans");
    const std::size_t plans = a.count(s.plans);
    for (std::size_t i = 0; i < plans; ++i) {
        transfer(a, s.plans[i]);
    }
    if constexpr (Archive::reading) {
        if (s.chunks < 1 || s.chunk_mode < -1 || s.chunk_mode >= static_cast<std::int32_t>(s.extents.size())) {
            refuse_text("a stage has chunks of a mode that does not exist");
        }
        for (const std::int32_t which : s.plan_of_rank) {
            if (which < -1 || which >= static_cast<std::int32_t>(plans)) {
                refuse_text("a rank has a plan that does not exist");
            }
        }
    }
}

/// How deep plans lie in each other: one in turn holds slabs.
inline constexpr int most_nested_plans = 2;

/// @param depth plans around this one
template <class Archive>
void transfer(Archive& a, distributed_plan& p, int depth = 0) {
    if (Archive::reading && depth > most_nested_plans) {
        refuse_text("its plans lie deeper in each other than the planner's do");
    }
    transfer(a, p.source);
    a.line("distributed");
    transfer_all(a, p.bytes_on_wire, p.most_bytes_sent, p.workspace_bytes, p.slab_rows, p.slab_count, p.overlapped,
                 p.copied_bytes, p.predicted_seconds);
    transfer(a, p.result);
    transfer_numbers(a, "buffers", p.buffer_elements);
    a.line("stages");
    const std::size_t stages = a.count(p.stages);
    for (std::size_t i = 0; i < stages; ++i) {
        transfer(a, p.stages[i]);
    }
    for (std::size_t i = 0; Archive::reading && i < stages;
         ++i) {  // two stages with the exchange between them, at the end
        if (p.stages[i].chunk_mode >= 0 && i + 3 != stages && i + 1 != stages) {
            refuse_text("chunks go on from another stage than the last but two");
        }
    }
    transfer_rejected(a, p.rejected);
    transfer_numbers(a, "notes", p.notes);
    a.line("slabs");
    const std::size_t slabs = a.count(p.slabs);
    for (std::size_t i = 0; i < slabs; ++i) {
        transfer(a, p.slabs[i], depth + 1);
    }
    a.line("in_turn");
    const std::size_t in_turn = a.count(p.in_turn);
    for (std::size_t i = 0; i < in_turn; ++i) {
        transfer(a, p.in_turn[i], depth + 1);
    }
    a.line("at_once");
    const std::size_t at_once = a.count(p.at_once);
    for (std::size_t i = 0; i < at_once; ++i) {
        transfer(a, p.at_once[i]);
    }
    transfer_numbers(a, "rows_at_once", p.rows_at_once);
    a.line("terms_at_once");
    transfer_all(a, p.terms_at_once, p.shares_steps);
    if constexpr (Archive::reading) {
        if (p.rows_at_once.size() != at_once) {
            refuse_text("plans of all terms at once are not as many as their numbers of rows");
        }
    }
}

}  // namespace planning

/// A distributed plan as text, without loss; what rank 0 sends to the others.
OTIMES_COLD inline std::string to_text(const distributed_plan& p) {
    return planning::write_text("distributed-plan", p);
}
/// Reads to_text back. @throws unsupported_error foreign, damaged or other-version text.
OTIMES_COLD inline distributed_plan distributed_plan_from_text(std::string_view text) {
    return planning::read_text<distributed_plan>("distributed-plan", text);
}
/// A problem as text: what the ranks compare before they work.
OTIMES_COLD inline std::string to_text(const distributed_problem& p) {
    return planning::write_text("distributed-problem", p);
}
OTIMES_COLD inline distributed_problem distributed_problem_from_text(std::string_view text) {
    return planning::read_text<distributed_problem>("distributed-problem", text);
}

/// The first difference between two ranks' problems, in words.
OTIMES_COLD inline std::string describe_difference(const distributed_problem& mine, const distributed_problem& other) {
    const auto differs = [](const std::string& what, const std::string& here, const std::string& there) {
        return what + " here " + here + ", there " + there;
    };
    if (mine.type != other.type) {
        return differs("the scalar is", std::string(to_string(mine.type)), std::string(to_string(other.type)));
    }
    if (mine.rows != other.rows) {
        return differs("X has rows (where K * X is asked for, all of X is one):", std::to_string(mine.rows),
                       std::to_string(other.rows));
    }
    if (mine.factors.size() != other.factors.size()) {
        return differs("factors:", std::to_string(mine.factors.size()), std::to_string(other.factors.size()));
    }
    for (std::size_t i = 0; i < mine.factors.size(); ++i) {
        const distributed_factor& a = mine.factors[i];
        const distributed_factor& b = other.factors[i];
        if (!(a == b)) {
            const std::string name = "factor " + std::to_string(i + 1) + " is";
            if (a.p_extent != b.p_extent || a.q_extent != b.q_extent) {
                return differs(name, planning::shape_text(a.p_extent, a.q_extent),
                               planning::shape_text(b.p_extent, b.q_extent));
            }
            return name + " stored differently, of another type or conjugated differently";
        }
    }
    if (!(mine.operand == other.operand)) {
        return differs("X is cut:", to_string(mine.operand), to_string(other.operand));
    }
    if (mine.result_is_fixed != other.result_is_fixed || !(mine.result == other.result)) {
        return differs("Y is cut:", mine.result_is_fixed ? to_string(mine.result) : "freely",
                       other.result_is_fixed ? to_string(other.result) : "freely");
    }
    if (mine.add != other.add) {
        return differs("the assignment is", mine.add ? "+=" : "=", other.add ? "+=" : "=");
    }
    if (mine.wishes.workspace_limit_bytes != other.wishes.workspace_limit_bytes) {
        return differs("workspace_limit_bytes is", std::to_string(mine.wishes.workspace_limit_bytes),
                       std::to_string(other.wishes.workspace_limit_bytes));
    }
    return mine == other ? "nothing differs" : "the options, the memory space or the number of ranks differ";
}

/// How a local stage goes in chunks, in words.
OTIMES_COLD inline std::string in_chunks(const distributed_stage& s, bool last) {
    if (s.chunks == 1) {
        return {};
    }
    const std::string many = ", in " + std::to_string(s.chunks) + " chunks";
    return s.chunk_mode < 0 ? many + " that are sent while the next is computed"
           : last           ? many + ", each when it has arrived"
                            : many + " of mode " + std::to_string(s.chunk_mode + 1) +
                        " that are sent, and multiplied further, while the next ones are computed";
}

/// A plan in words, one line for each stage.
OTIMES_COLD inline std::string explain(const distributed_plan& p) {
    using namespace planning;
    if (!p.in_turn.empty()) {
        std::string text = std::to_string(p.in_turn.size()) + " plans one after another" +
                           (p.copied_bytes > 0 ? ", through matrices that are cut by columns\n" : "\n");
        for (std::size_t i = 0; i < p.in_turn.size(); ++i) {
            text += std::to_string(i + 1) + " of " + std::to_string(p.in_turn.size()) + ", " + explain(p.in_turn[i]);
        }
        return text + "in all: bytes on the wire: " + std::to_string(p.bytes_on_wire) + "; workspace: at most " +
               bytes_text(static_cast<double>(p.workspace_bytes)) + " on a rank" +
               (p.copied_bytes > 0 ? ", the copies with it\n" : "\n");
    }
    const auto bytes = static_cast<double>(element_bytes(p.source.type));
    std::string text = "distributed over " + counted(p.source.ranks, "rank") + ": X " + to_string(p.source.operand) +
                       "; Y " + to_string(p.result) + (p.source.result_is_fixed ? " (asked for)" : " (chosen)") + "\n";
    std::size_t number = 0;
    if (!p.at_once.empty()) {
        text += "  1. local: " + std::to_string(p.terms_at_once) + " terms at once" +
                (p.shares_steps ? ", products that they have in common once" : ", one after another") +
                (p.source.add ? ", added to Y; " : "; ") +
                counted(static_cast<std::int64_t>(p.at_once.size()), "plan") + "\n";
    }
    if (!p.slabs.empty()) {
        text += "  " + counted(p.slab_count, "slab") + " of at most " + counted(p.slab_rows, "row") +
                " of each part, " +
                (p.overlapped ? "by turns: a slab is sent while the next is computed; each:\n"
                              : "one after another; each:\n");
    }
    const std::vector<distributed_stage>& stages = p.slabs.empty() ? p.stages : p.slabs.front().stages;
    for (const distributed_stage& s : stages) {
        text += "  " + std::to_string(++number) + ". ";
        if (s.kind == stage_kind::exchange) {
            text += "exchange: to " + to_string(s.to) + "; " + bytes_text(static_cast<double>(s.moved.total) * bytes) +
                    " on the wire, at most " + bytes_text(static_cast<double>(s.moved.most_sent) * bytes) +
                    " from one rank\n";
            continue;
        }
        text += s.kind == stage_kind::store ? "stores into peers in the last pass: " : "local: ";
        for (std::size_t i = 0; i < s.factors.size(); ++i) {
            text += (i == 0 ? "F" : ", F") + std::to_string(s.factors[i] + 1);
        }
        if (s.kind == stage_kind::store) {
            text += ", to " + to_string(s.to) + "; " + bytes_text(static_cast<double>(s.moved.total) * bytes) +
                    " on the wire, at most " + bytes_text(static_cast<double>(s.moved.most_sent) * bytes) +
                    " from one rank" +
                    (s.portion_items > 0 ? "; the next stage begins with what has arrived, in " +
                                               counted(portions_of(s, p.source), "portion")
                                         : "");
        }
        text += std::string(s.factors.empty() ? "copy" : "") + (s.add ? ", added to Y" : "") +
                in_chunks(s, &s == &stages.back()) + "; " + counted(static_cast<std::int64_t>(s.plans.size()), "plan") +
                "\n";
    }
    text += "  bytes on the wire: " + std::to_string(p.bytes_on_wire) + "\n";
    text += "  workspace: at most " + bytes_text(static_cast<double>(p.workspace_bytes)) + " on a rank\n";
    for (const rejected_candidate& r : p.rejected) {
        text += "  not " + r.what + ": " + r.reason + "\n";
    }
    for (const std::string& n : p.notes) {
        text += "  " + n + "\n";
    }
    return text;
}

}  // namespace otimes

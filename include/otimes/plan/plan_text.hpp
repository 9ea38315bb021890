// SPDX-License-Identifier: MIT
/// @file plan_text.hpp
/// How values of the planner are written as text and read back: doubles in hexadecimal, strings quoted, a version in front and a
/// checksum behind. What is written and what is read is one list of fields (`transfer`), so they cannot differ.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/plan/machine.hpp>
#include <otimes/plan/plan.hpp>
#include <otimes/plan/plan_check.hpp>
#include <otimes/program/cold.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/program.hpp>

namespace otimes {

namespace planning {

/// Version of the text; a reader refuses every other. Raise it with any change of `transfer`.
inline constexpr int text_version = 9;

/// A double as a hexadecimal significand and a binary exponent: "0x1.8p+3", "-0x0p+0", "inf", "nan".
OTIMES_ON_DEMAND inline std::string hex_text(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::string sign = (bits >> 63) != 0 ? "-" : "";
    const auto exponent = static_cast<std::int64_t>((bits >> 52) & 0x7ff);
    std::uint64_t fraction = bits & 0xfffffffffffffull;
    if (exponent == 0x7ff) {
        return fraction == 0 ? sign + "inf" : "nan";
    }
    if (exponent == 0 && fraction == 0) {
        return sign + "0x0p+0";
    }
    std::string digits;
    for (int shift = 48; shift >= 0; shift -= 4) {
        digits += "0123456789abcdef"[(fraction >> shift) & 15];
    }
    while (!digits.empty() && digits.back() == '0') {
        digits.pop_back();
    }
    const std::int64_t power = exponent == 0 ? -1022 : exponent - 1023;
    return sign + (exponent == 0 ? "0x0" : "0x1") + (digits.empty() ? "" : "." + digits) + "p" +
           (power < 0 ? "" : "+") + std::to_string(power);
}

/// FNV-1a of a text.
constexpr std::uint64_t checksum_of(std::string_view text) noexcept {
    std::uint64_t h = 0xcbf29ce484222325ull;
    for (const char c : text) {
        h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
    return h;
}

[[noreturn]] inline void refuse_text(std::string_view what) {
    throw unsupported_error("otimes: this text is not a plan or machine that this version can read: " +
                            std::string(what) + ". Make it again with to_text of this version.");
}

/// Writes fields separated by blanks; `line` starts a new line with a name.
class text_writer {
public:
    static constexpr bool reading = false;
    explicit text_writer(std::string_view kind)
        : text_("otimes-" + std::string(kind) + " " + std::to_string(text_version)) {}

    void line(std::string_view name) { (text_ += "\n") += name; }
    void integer(std::int64_t value) { (text_ += ' ') += std::to_string(value); }
    void field(double& value) { (text_ += ' ') += hex_text(value); }
    void field(std::string& value) {
        text_ += " \"";
        for (const char c : value) {
            if (c == '"' || c == '\\') {
                text_ += '\\';
            }
            c == '\n' ? text_ += "\\n" : text_ += c;
        }
        text_ += '"';
    }
    template <class Integer>
    requires std::is_integral_v<Integer>
    void field(Integer& value) { integer(static_cast<std::int64_t>(value)); }
    template <class Enum>
    void choice(Enum& value, Enum /*last*/) {
        integer(static_cast<std::int64_t>(value));
    }
    template <class Element>
    std::size_t count(std::vector<Element>& list, std::size_t /*least*/ = 2) {
        integer(static_cast<std::int64_t>(list.size()));
        return list.size();
    }
    [[nodiscard]] std::string finish() && {
        text_ += "\n";
        return text_ + "checksum " + std::to_string(checksum_of(text_)) + "\n";
    }

private:
    std::string text_;
};

/// Reads what text_writer wrote. @throws unsupported_error anything else.
class text_reader {
public:
    static constexpr bool reading = true;
    text_reader(std::string_view kind, std::string_view text) {
        const std::size_t mark = text.rfind("checksum ");
        const std::string head = "otimes-" + std::string(kind) + " ";
        if (text.substr(0, head.size()) != head) {
            refuse_text("it does not begin with '" + head + std::to_string(text_version) + "'");
        }
        if (text.substr(head.size(), text.find('\n') - head.size()) != std::to_string(text_version)) {
            refuse_text("it is of version " + std::string(text.substr(head.size(), text.find('\n') - head.size())));
        }
        if (mark == std::string_view::npos ||
            text.substr(mark) != "checksum " + std::to_string(checksum_of(text.substr(0, mark))) + "\n") {
            refuse_text("its checksum is wrong");
        }
        rest_ = text.substr(0, mark);
        rest_.remove_prefix(text.find('\n'));
    }

    void line(std::string_view name) {
        if (rest_.empty() || rest_.front() != '\n' || rest_.substr(1, name.size()) != name) {
            refuse_text("line '" + std::string(name) + "' is missing");
        }
        rest_.remove_prefix(1 + name.size());
    }
    std::int64_t integer() {
        const std::string_view word = next_word();
        const bool negative = !word.empty() && word.front() == '-';
        const std::uint64_t most = negative ? 1ull << 63 : (1ull << 63) - 1;
        std::uint64_t value = 0;
        for (const char c : word.substr(negative ? 1 : 0)) {
            const auto digit = static_cast<std::uint64_t>(c - '0');
            if (c < '0' || c > '9' || value > (most - digit) / 10) {
                refuse_text("'" + std::string(word) + "' is not a number");
            }
            value = value * 10 + digit;
        }
        if (word.size() == (negative ? 1u : 0u)) {
            refuse_text("a number is missing");
        }
        const auto number = static_cast<std::int64_t>(negative ? 0 - value : value);
        if (std::to_string(number) != word) {  // "04", "-0"
            refuse_text("'" + std::string(word) + "' is not a number as it is written");
        }
        return number;
    }
    void field(double& value) {
        std::string_view word = next_word();
        const std::string whole(word);
        const bool negative = !word.empty() && word.front() == '-';
        word.remove_prefix(negative ? 1 : 0);
        std::uint64_t bits = negative ? 1ull << 63 : 0;
        if (word == "inf" || word == "nan") {
            bits |= word == "inf" ? 0x7ff0000000000000ull : 0x7ff8000000000000ull;
        } else if (word != "0x0p+0") {
            const std::size_t p = word.find('p');
            if (p == std::string_view::npos || (word.substr(0, 3) != "0x1" && word.substr(0, 3) != "0x0")) {
                refuse_text("'" + whole + "' is not a hexadecimal number");
            }
            std::uint64_t fraction = 0;
            int digits = 0;
            for (std::size_t i = 4; i < p; ++i, ++digits) {
                const std::size_t digit = std::string_view("0123456789abcdef").find(word[i]);
                if (digit == std::string_view::npos) {
                    refuse_text("'" + whole + "' is not a hexadecimal number");
                }
                fraction = fraction << 4 | digit;
            }
            std::int64_t power = 0;
            for (const char c : word.substr((std::min)(p + 2, word.size()))) {
                if (c < '0' || c > '9' || power > 1023) {
                    refuse_text("'" + whole + "' is not a double");
                }
                power = power * 10 + (c - '0');
            }
            power = word.substr(p + 1, 1) == "-" ? -power : power;
            if (digits > 13 || power < -1022 || power > 1023) {
                refuse_text("'" + whole + "' is not a double");
            }
            bits |= fraction << 4 * (13 - digits);
            bits |= word[2] == '0' ? 0 : static_cast<std::uint64_t>(power + 1023) << 52;
        }
        value = std::bit_cast<double>(bits);
        if (hex_text(value) != whole) {
            refuse_text("'" + whole + "' is not a double");
        }
    }
    void field(std::string& value) {
        value.clear();
        if (rest_.substr(0, 2) != " \"") {
            refuse_text("a string is missing");
        }
        rest_.remove_prefix(2);
        while (!rest_.empty() && rest_.front() != '"') {
            const bool escaped = rest_.front() == '\\' && rest_.size() > 1;
            const char c = rest_[escaped ? 1 : 0];
            value += escaped && c == 'n' ? '\n' : c;
            rest_.remove_prefix(escaped ? 2 : 1);
        }
        if (rest_.empty()) {
            refuse_text("a string has no end");
        }
        rest_.remove_prefix(1);
    }
    template <class Integer>
    requires std::is_integral_v<Integer>
    void field(Integer& value) {
        if constexpr (std::is_same_v<Integer, std::uint64_t>) {
            value = static_cast<std::uint64_t>(integer());
        } else {
            const std::int64_t read = integer();
            value = static_cast<Integer>(read);
            if (static_cast<std::int64_t>(value) != read) {
                refuse_text(std::to_string(read) + " is out of range");
            }
        }
    }
    template <class Enum>
    void choice(Enum& value, Enum last) {
        const std::int64_t read = integer();
        if (read < 0 || read > static_cast<std::int64_t>(last)) {
            refuse_text("choice " + std::to_string(read) + " is unknown");
        }
        value = static_cast<Enum>(read);
    }
    /// @param least characters of the shortest entry, so that no text makes a list that is many times longer than itself
    template <class Element>
    std::size_t count(std::vector<Element>& list, std::size_t least = 2) {
        const std::int64_t read = integer();
        if (read < 0 || read > static_cast<std::int64_t>(rest_.size() / least)) {
            refuse_text("a list of " + std::to_string(read) + " entries is longer than the text");
        }
        list.clear();
        list.resize(static_cast<std::size_t>(read));
        return list.size();
    }
    void finish() const {
        if (rest_ != "\n") {
            refuse_text("there is more text than a plan has");
        }
    }

private:
    std::string_view next_word() {
        if (rest_.empty() || rest_.front() != ' ') {
            refuse_text("a field is missing");
        }
        rest_.remove_prefix(1);
        const std::size_t end = (std::min)(rest_.find_first_of(" \n"), rest_.size());
        const std::string_view word = rest_.substr(0, end);
        rest_.remove_prefix(end);
        return word;
    }
    std::string_view rest_;
};

template <class Archive, class... Fields>
void transfer_all(Archive& a, Fields&... fields) {
    (a.field(fields), ...);
}

template <class Archive, class Number>
void transfer_numbers(Archive& a, std::string_view name, std::vector<Number>& list) {
    a.line(name);
    const std::size_t count = a.count(list);
    for (std::size_t i = 0; i < count; ++i) {
        a.field(list[i]);
    }
}

template <class Archive>
void transfer_modes(Archive& a, std::string_view name, std::vector<mode>& list) {
    a.line(name);
    const std::size_t count = a.count(list);
    for (std::size_t i = 0; i < count; ++i) {
        transfer_all(a, list[i].extent, list[i].stride);
    }
}

template <class Archive>
void transfer(Archive& a, program& p) {
    a.line("program");
    a.field(p.scalar_count);
    const std::size_t tensors = a.count(p.tensors, 20);
    for (std::size_t i = 0; i < tensors; ++i) {
        tensor& t = p.tensors[i];
        a.line("tensor");
        a.choice(t.type, dtype::other);
        a.choice(t.space, memory_space::device);
        a.choice(t.role, tensor_role::temporary);
        a.choice(t.kind, factor_kind::self_adjoint);
        transfer_all(a, t.conjugate, t.alignment_log2, t.scalar_bytes, t.first_mode, t.mode_count, t.binding, t.stored);
    }
    transfer_modes(a, "modes", p.modes);
    a.line("steps");
    const std::size_t steps = a.count(p.steps, 20);
    for (std::size_t i = 0; i < steps; ++i) {
        step& s = p.steps[i];
        a.line("step");
        a.choice(s.kind, step_kind::callback);
        a.choice(s.variant, step_variant::squared_distance);
        transfer_all(a, s.add, s.reserved, s.in, s.factor, s.out, s.mode, s.scalar);
    }
    if constexpr (Archive::reading) {
        if (const std::string_view fault = fault_of(p); !fault.empty()) {
            refuse_text(fault);
        }
    }
}

template <class Archive>
void transfer(Archive& a, pass& p) {
    a.line("pass");
    a.choice(p.kernel, pass_kernel::gpu_blocked);
    transfer_all(a, p.step, p.in, p.out, p.add, p.scalar, p.slab_mode, p.slab_scale, p.lane_mode, p.lane_count,
                 p.block_rows, p.block_columns, p.past_caches, p.shared_bytes, p.flops, p.bytes, p.level,
                 p.bound_seconds, p.predicted_seconds, p.reason);
    a.line("tile");
    transfer_all(a, p.tile.rows, p.tile.run, p.tile.threads, p.tile.blocks, p.tile.segments, p.tile.slots,
                 p.tile.cluster, p.tile.slices, p.tile.pieces);
    const std::size_t trips = a.count(p.tile.trips);
    for (std::size_t i = 0; i < trips; ++i) {
        gpu_trip& t = p.tile.trips[i];
        transfer_all(a, t.first, t.count, t.matrix, t.split, t.warpgroup);
    }
    a.line("pass_modes");
    const std::size_t modes = a.count(p.modes);
    for (std::size_t i = 0; i < modes; ++i) {
        transfer_all(a, p.modes[i].extent_in, p.modes[i].extent_out, p.modes[i].stride_in, p.modes[i].stride_out);
    }
    a.line("sweeps");
    const std::size_t sweeps = a.count(p.sweeps, 20);
    for (std::size_t i = 0; i < sweeps; ++i) {
        sweep& s = p.sweeps[i];
        a.line("sweep");
        a.field(s.mode);
        a.choice(s.kernel, sweep_kernel::mma_tf32);
        transfer_all(a, s.p_extent, s.q_extent);
        transfer_numbers(a, "factors", s.factors);
    }
}

template <class Archive, class Candidates>
void transfer_rejected(Archive& a, Candidates& rejected) {
    a.line("rejected");
    const std::size_t count = a.count(rejected, 20);
    for (std::size_t i = 0; i < count; ++i) {
        a.line("candidate");
        transfer_all(a, rejected[i].what, rejected[i].reason, rejected[i].predicted_seconds);
    }
}

template <class Archive>
void transfer(Archive& a, plan& p) {
    transfer(a, p.source);
    a.line("options");
    a.field(p.wishes.workspace_limit_bytes);
    a.choice(p.wishes.precision, precision::bf16);
    a.choice(p.wishes.placement, placement::gpus);
    transfer_all(a, p.wishes.threads, p.wishes.deterministic);
    a.line("plan");
    a.choice(p.where, placement::gpus);
    transfer_all(a, p.machine_name, p.threads, p.slab_extent, p.slab_count, p.factor_elements, p.tile_elements,
                 p.vector_count, p.flops, p.bytes, p.workspace_bytes, p.bound_seconds, p.predicted_seconds);
    transfer_numbers(a, "buffers", p.buffer_elements);
    transfer_numbers(a, "tensor_buffers", p.tensor_buffers);
    transfer_modes(a, "tensor_modes", p.tensor_modes);
    transfer_numbers(a, "tensor_cuts", p.tensor_cuts);
    a.line("passes");
    const std::size_t passes = a.count(p.passes, 60);
    for (std::size_t i = 0; i < passes; ++i) {
        transfer(a, p.passes[i]);
    }
    a.line("parts");
    a.field(p.part_count);
    transfer_numbers(a, "trip_slabs", p.trip_slabs);
    transfer_numbers(a, "trip_passes", p.trip_passes);
    transfer_rejected(a, p.rejected);
    transfer_numbers(a, "notes", p.notes);
    if constexpr (Archive::reading) {
        if (const std::string_view fault = plan_check(p).fault(); !fault.empty()) {
            refuse_text(fault);
        }
    }
}

template <class Archive>
void transfer(Archive& a, machine& m) {
    cpu_description& c = m.cpu;
    a.line("cpu");
    transfer_all(a, c.name, c.threads, c.simd_bytes, c.simd_registers, c.l1_bytes, c.l2_bytes, c.l3_bytes, c.flops_f32,
                 c.flops_f64, c.l1_bytes_per_second, c.l2_bytes_per_second, c.l3_bytes_per_second,
                 c.memory_bytes_per_second, c.dispatch_seconds, c.fork_seconds);
    a.line("gpus");
    const std::size_t gpus = a.count(m.gpus, 50);
    for (std::size_t i = 0; i < gpus; ++i) {
        gpu_description& g = m.gpus[i];
        a.line("gpu");
        transfer_all(a, g.name, g.compute_capability, g.multiprocessors, g.memory_bytes, g.l2_bytes,
                     g.shared_bytes_per_block, g.shared_bytes_per_multiprocessor, g.registers_per_multiprocessor,
                     g.has_warpgroup_mma, g.compiles, g.cluster_blocks, g.has_async_copy, g.has_bulk_copy,
                     g.has_tf32_mma, g.has_f64_mma, g.has_f64_mma_wide, g.memory_bytes_per_second,
                     g.l2_bytes_per_second, g.flops_f32, g.flops_f64, g.flops_f32_split, g.flops_f64_mma,
                     g.launch_seconds, g.graph_node_seconds, g.host_bytes_per_second, g.peer_bytes_per_second,
                     g.staged_bytes_per_second);
    }
    a.line("network");
    a.field(m.network_bytes_per_second);
    a.line("tuning");
    const std::size_t entries = a.count(m.tuning, 12);
    for (std::size_t i = 0; i < entries; ++i) {
        a.line("entry");
        transfer_all(a, m.tuning[i].program_hash, m.tuning[i].choice, m.tuning[i].seconds);
    }
}

template <class Value>
std::string write_text(std::string_view kind, const Value& value) {
    text_writer out(kind);
    Value copy = value;  // `transfer` serves both directions and so takes a mutable reference
    transfer(out, copy);
    return std::move(out).finish();
}

template <class Value>
Value read_text(std::string_view kind, std::string_view text) {
    text_reader in(kind, text);
    Value value;
    transfer(in, value);
    in.finish();
    return value;
}

}  // namespace planning

}  // namespace otimes

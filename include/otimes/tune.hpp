// SPDX-License-Identifier: MIT
/// @file tune.hpp
/// Measured plans for the CPU: `otimes::tune(X * K)` runs the planner's best few plans for that signature, and the fastest right one is
/// the plan of `Y = X * K` from then on, in all threads. Nothing else searches, and without a call the planner decides alone.
///
///     otimes::tune(X * kron(A, B, C));                 // some milliseconds to seconds, once
///     Y = X * kron(A, B, C);                           // by the plan that was measured
///     const std::string kept = otimes::tuned_choices();   // text, for a file
///     otimes::use_tuned_choices(kept);                 // in a later process on the same machine
///
/// Included when used; the umbrella header does not need it. Matrices in device memory have a `tune` of their own (cuda.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <locale>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <otimes/exec/reference.hpp>
#include <otimes/expr/scalar.hpp>
#include <otimes/otimes.hpp>
#include <otimes/plan/cpu_candidates.hpp>
#include <otimes/plan/cpu_plan.hpp>
#include <otimes/plan/tuning_report.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// The choices of this file's cpu executor. Machines that were followed before stay until the process ends, since plans may be made
/// by them at this moment.
class tuned_table {
public:
    static tuned_table& of_process() {
        static tuned_table* const table = new tuned_table;  // outlives every static that evaluates
        return *table;
    }
    /// Adds entries, or replaces those of the same programs, and has the executor follow them.
    void keep(const std::vector<tuning_entry>& more) {
        const std::lock_guard lock(mutex_);
        for (const tuning_entry& entry : more) {
            const auto known = std::find_if(entries_.begin(), entries_.end(), [&entry](const tuning_entry& e) {
                return e.program_hash == entry.program_hash;
            });
            if (known != entries_.end()) {
                *known = entry;
            } else {
                entries_.push_back(entry);
            }
        }
        follow();
    }
    /// Forgets the choice for a program, where there is one.
    void drop(std::uint64_t program_hash) {
        const std::lock_guard lock(mutex_);
        if (std::erase_if(entries_, [program_hash](const tuning_entry& e) { return e.program_hash == program_hash; }) >
            0) {
            follow();
        }
    }
    void clear() {
        const std::lock_guard lock(mutex_);
        entries_.clear();
        cpu().follow(nullptr);
    }
    [[nodiscard]] std::vector<tuning_entry> entries() const {
        const std::lock_guard lock(mutex_);
        return entries_;
    }

private:
    static plan plan_by_choice(const program& p, const machine& where) {
        const std::uint64_t hash = hash_value(p);
        const bool chosen =
            std::ranges::any_of(where.tuning, [hash](const tuning_entry& entry) { return entry.program_hash == hash; });
        return chosen ? make_plan(p, where, {.placement = placement::cpu})
                      : planning::default_cpu_plan(p, where.cpu);  // what it would be without a table, and sooner
    }
    void follow() {
        auto next = std::make_unique<tuned_machine>();
        next->where = host_machine();
        next->where.tuning = entries_;
        next->make = &plan_by_choice;
        followed_.push_back(std::move(next));
        cpu().follow(followed_.back().get());
    }

    mutable std::mutex mutex_;
    std::vector<tuning_entry> entries_;
    std::vector<std::unique_ptr<const tuned_machine>> followed_;
};

/// Memory for a result that lies as `like` does.
template <class Scalar>
class result_memory {
public:
    explicit result_memory(const matrix_view& like)
        : values_(like.rows <= 0 || like.cols <= 0
                      ? 0
                      : static_cast<std::size_t>((like.rows - 1) * std::abs(like.row_stride) +
                                                 (like.cols - 1) * std::abs(like.col_stride) + 1)),
          view_(like) {
        std::int64_t first = 0;
        first += like.row_stride < 0 ? (1 - like.rows) * like.row_stride : 0;
        first += like.col_stride < 0 ? (1 - like.cols) * like.col_stride : 0;
        view_.data = values_.empty() ? nullptr : values_.data() + first;
    }
    [[nodiscard]] const matrix_view& view() const noexcept { return view_; }
    /// NaN everywhere, so that an element which is not written is seen.
    void poison() {
        std::fill(values_.begin(), values_.end(), Scalar(std::numeric_limits<detail::real_of<Scalar>>::quiet_NaN()));
    }
    [[nodiscard]] Scalar at(std::int64_t i, std::int64_t j) const {
        return static_cast<const Scalar*>(view_.data)[i * view_.row_stride + j * view_.col_stride];
    }

private:
    std::vector<Scalar> values_;
    matrix_view view_;
};

/// Frobenius norm of got - want over that of want; NaN where an element is none, or is not finite.
template <class Scalar>
double relative_difference(const result_memory<Scalar>& got, const result_memory<Scalar>& want) {
    // In double, over the largest element, so that no square overflows or vanishes.
    using wide = std::conditional_t<is_complex(dtype_of<Scalar>()), std::complex<double>, double>;
    double largest = 0;
    for (std::int64_t i = 0; i < want.view().rows; ++i) {
        for (std::int64_t j = 0; j < want.view().cols; ++j) {
            largest = (std::max)(largest, std::abs(wide(want.at(i, j))));
        }
    }
    const double unit = largest > 0 && detail::is_finite(largest) ? largest : 1;
    double difference = 0;
    double size = 0;
    for (std::int64_t i = 0; i < want.view().rows; ++i) {
        for (std::int64_t j = 0; j < want.view().cols; ++j) {
            const wide wanted = wide(want.at(i, j)) / unit;
            difference += std::norm(wide(got.at(i, j)) / unit - wanted);
            size += std::norm(wanted);
        }
    }
    return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

inline double seconds_of(const executor& e, const plan& p, const bindings& b, std::int64_t count) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i) {
        e.run(p, b, {});
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(count);
}

/// Measures candidates in turn, so that a slow moment falls on all of them: medians, and who takes half as long again as the fastest
/// one leaves after the first round.
inline void measure(const executor& e, const std::vector<planning::cpu_candidate_choice>& plans, const bindings& b,
                    std::int32_t repetitions, std::vector<tuned_candidate>& candidates) {
    std::vector<std::vector<double>> times(plans.size());
    std::vector<std::int64_t> counts(plans.size(), 1);
    double fastest = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < plans.size(); ++k) {
        if (candidates[k].valid) {
            const double once = seconds_of(e, plans[k].made, b, 1);
            counts[k] = static_cast<std::int64_t>(std::clamp(5e-4 / (std::max)(once, 1e-9), 1.0, 2000.0));
        }
    }
    for (std::int32_t round = 0; round < (std::max)(1, repetitions); ++round) {
        for (std::size_t k = 0; k < plans.size(); ++k) {
            if (!candidates[k].valid || (round > 0 && k > 0 && times[k].front() > 1.5 * fastest)) {
                continue;
            }
            times[k].push_back(seconds_of(e, plans[k].made, b, counts[k]));
            fastest = (std::min)(fastest, times[k].back());
        }
    }
    for (std::size_t k = 0; k < plans.size(); ++k) {
        if (!times[k].empty()) {
            const auto middle = times[k].begin() + static_cast<std::ptrdiff_t>(times[k].size() / 2);
            std::nth_element(times[k].begin(), middle, times[k].end());
            candidates[k].seconds = *middle;
        }
    }
}

/// Body of tune for a destination that lies as `like`.
template <class Node>
tuning_report tune_product(const lazy<Node>& expression, const matrix_view& like, const options& wishes,
                           const tuning_options& how) {
    using scalar = typename Node::scalar_type;
    static_assert(is_product_node<Node>,
                  "otimes: tune(X * K) measures the plans of one product; a sum is evaluated term by term, so tune "
                  "each of its products.");
    static_assert(dtype_of<scalar>() != dtype::other,
                  "otimes: tune(X * K): products over this scalar type run through the reference loops; there is "
                  "nothing to choose.");
    if (current_executor().where() != placement::cpu) {
        throw unsupported_error("otimes::tune: it measures plans of the cpu executor, but executor '" +
                                std::string(current_executor().name()) +
                                "' evaluates this expression. Name the CPU: const otimes::scoped_executor "
                                "scope(otimes::cpu());");
    }
    if (wishes.placement != placement::automatic && wishes.placement != placement::cpu) {
        throw unsupported_error(
            "otimes::tune: it measures plans of the cpu executor, but options::placement asks for another. Leave it "
            "out.");
    }
    expression.node().check();
    enable_kernels<scalar>();
    result_memory<scalar> wanted(like);
    result_memory<scalar> got(like);
    program p;
    bindings b;
    lowering<scalar> low(p, b);
    low.add_product(expression.node().node, got.view(), false, scalar(1));
    const std::vector<planning::cpu_candidate_choice> plans = planning::cpu_candidates(
        p, host_machine(), wishes, static_cast<std::size_t>((std::max)(1, how.most_candidates)));
    if (std::ranges::none_of(plans.front().made.passes,
                             [](const pass& one) { return one.kernel == pass_kernel::cpu_tiles; })) {
        throw unsupported_error(
            "otimes::tune: nothing in this expression is a chain of products by dense factors; only those have plans "
            "to choose from.");
    }
    // The independent path: the reference loops where that is a matter of a second, else one factor a pass on one thread.
    wanted.poison();
    program q;
    bindings other;
    lowering<scalar> low_again(q, other);
    low_again.add_product(expression.node().node, wanted.view(), false, scalar(1));
    constexpr std::int64_t reference_flops = 20'000'000;
    if (plans.front().made.flops <= reference_flops) {
        reference_run<scalar>(p, other);
    } else {
        machine alone = host_machine();
        alone.tuning.push_back(
            {hash_value(p),
             planning::choice_text({1, false, 0, std::int64_t{1} << 40, planning::partition::one_group_each}),
             (std::numeric_limits<double>::min)()});
        cpu().run(make_plan(p, alone, {.placement = placement::cpu}), other, {});
    }
    tuning_report report;
    for (const planning::cpu_candidate_choice& candidate : plans) {
        tuned_candidate measured;
        measured.choice = candidate.choice.empty() ? "the planner's" : candidate.choice;
        got.poison();
        cpu().run(candidate.made, b, {});
        measured.difference = relative_difference(got, wanted);
        measured.valid =
            measured.difference <= planning::difference_by_rounding(
                                       p, static_cast<double>(std::numeric_limits<detail::real_of<scalar>>::epsilon()));
        report.candidates.push_back(std::move(measured));
    }
    measure(cpu(), plans, b, how.repetitions, report.candidates);
    for (std::size_t k = 0; k < plans.size(); ++k) {
        const tuned_candidate& best = report.candidates[report.best];
        const tuned_candidate& one = report.candidates[k];
        // A change below the noise is none: the planner's choice stays.
        if (one.valid && (!best.valid || one.seconds < (report.best == 0 ? 0.97 : 1.0) * best.seconds)) {
            report.best = k;
        }
    }
    const tuned_candidate& winner = report.candidates[report.best];
    if (!winner.valid) {
        throw unsupported_error(
            "otimes::tune: no candidate agrees with the reference on these operands (do they hold values that are not "
            "finite?). Nothing was kept.");
    }
    program adding;  // Y += X * K takes the same choice
    bindings unused;
    lowering<scalar> low_adding(adding, unused);
    low_adding.add_product(expression.node().node, got.view(), true, scalar(1));
    tuned_table& table = tuned_table::of_process();
    if (report.best > 0) {
        table.keep(
            {{hash_value(p), winner.choice, winner.seconds}, {hash_value(adding), winner.choice, winner.seconds}});
    } else {  // also where another one had won before
        table.drop(hash_value(p));
        table.drop(hash_value(adding));
    }
    return report;
}

}  // namespace eigen

/// Measures the planner's best few plans for `Y = expression`, Y the plain matrix of its type, each one first compared with the result of
/// an independent path, and makes the fastest right one the plan of this signature (shapes, strides, scalar types) on this file's cpu
/// executor, in all threads of the process; `Y += expression` takes it too. The planner's own stays unless another takes less than
/// 0.97 of its time. Operands are read, no matrix of the caller is written. options::deterministic ignores what was tuned.
/// With wishes.deterministic the planner's plan is the only candidate.
/// Cost: tens of milliseconds of planning, one evaluation by the independent path, of each candidate two evaluations and as many
/// repetitions as asked for, each of 0.5 ms at least, and memory for two results.
/// @throws shape_error; unsupported_error another executor than a CPU's is the current one or asked for, there is nothing to choose, or the operands
///         hold values that are not finite; budget_error wishes.workspace_limit_bytes is too small.
template <class Node>
tuning_report tune(const lazy<Node>& expression, const options& wishes = {}, const tuning_options& how = {}) {
    return eigen::tune_product(expression, eigen::plain_destination(expression), wishes, how);
}
/// The same for a destination that lies as `destination` does: its storage order and strides are part of the signature.
template <class Destination, class Node>
requires(eigen::dense<Destination>&& eigen::has_direct_access<Destination>) tuning_report
    tune(const Destination& destination, const lazy<Node>& expression, const options& wishes = {},
         const tuning_options& how = {}) {
    return eigen::tune_product(expression, eigen::resized_destination("tune", destination, expression), wishes, how);
}

/// What tune() has kept on this file's cpu executor, as text: a line that names the machine, and one for each signature.
[[nodiscard]] inline std::string tuned_choices() {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.precision(17);
    const cpu_description& cpu = host_machine().cpu;
    text << "otimes tuned choices 1: " << cpu.name << ", " << cpu.threads << " threads, caches of " << cpu.l1_bytes
         << ' ' << cpu.l2_bytes << ' ' << cpu.l3_bytes << '\n';
    for (const tuning_entry& entry : eigen::tuned_table::of_process().entries()) {
        text << entry.program_hash << ' ' << entry.seconds << ' ' << entry.choice << '\n';
    }
    return text.str();
}

/// Follows the choices of a text that tuned_choices() wrote, beside those that are kept already. Returns how many: 0 for the text of
/// another machine, whose times say nothing here. Cost: one line at a time; plans are made again when they are needed.
/// @throws unsupported_error a text of another kind, or a line that is none; nothing is followed then.
inline std::size_t use_tuned_choices(std::string_view text) {
    std::istringstream lines{std::string(text)};
    lines.imbue(std::locale::classic());
    std::string line;
    std::getline(lines, line);
    if (line.rfind("otimes tuned choices 1: ", 0) != 0) {
        throw unsupported_error(
            "otimes::use_tuned_choices: the text does not begin as tuned_choices() writes it, with \"otimes tuned "
            "choices 1\".");
    }
    const std::string own = tuned_choices();
    const bool of_this_machine = own.compare(0, own.find('\n'), line) == 0;
    std::vector<tuning_entry> read;
    for (std::size_t number = 2; std::getline(lines, line); ++number) {
        std::istringstream words(line);
        words.imbue(std::locale::classic());
        tuning_entry entry;
        planning::cpu_request unused;
        words >> entry.program_hash >> entry.seconds >> std::ws;
        std::getline(words, entry.choice);
        if (words.fail() || line.front() < '0' || line.front() > '9' || !planning::is_measured_time(entry.seconds) ||
            !planning::read_choice(entry.choice, unused)) {
            throw unsupported_error("otimes::use_tuned_choices: line " + std::to_string(number) +
                                    " is not one that tuned_choices() writes: " + line);
        }
        read.push_back(std::move(entry));
    }
    if (!of_this_machine || read.empty()) {
        return 0;
    }
    eigen::tuned_table::of_process().keep(read);
    return read.size();
}

/// Forgets all choices: the planner decides alone again.
inline void forget_tuned_choices() { eigen::tuned_table::of_process().clear(); }

}  // namespace OTIMES_TARGET
}  // namespace otimes

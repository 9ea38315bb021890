// SPDX-License-Identifier: MIT
/// @file run.hpp
/// Plans, `explain` and `otimes::on` for expressions over device memory.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <otimes/device/sums.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/program/signature.hpp>

namespace otimes {

/// @name Plans.
/// @{
namespace device {
template <class Scalar, class Use>
void with_program(const device_product<Scalar>& value, const matrix_view& y, const Use& use) {
    value.node().check();
    program p;
    bindings b;
    lowering<Scalar> low(p, b);
    low.add_product(value.node(), y, false, Scalar(1));
    mark_result_on_device(p);
    use(p, b);
}

/// A destination without gaps that has no memory yet.
template <class Value>
matrix_view packed_view(const Value& value, bool by_rows) {
    return {nullptr, value.rows(), value.cols(), by_rows ? value.cols() : 1, by_rows ? 1 : value.rows()};
}

/// `y` as it is when a value is written to it: a matrix of another shape is resized then.
/// @throws shape_error a device_map of another shape
template <class Destination, class Value>
matrix_view resized_destination(const char* call, const Destination& y, const Value& value) {
    if (y.rows() == value.rows() && y.cols() == value.cols()) {
        return y.view();
    }
    if constexpr (!requires(Destination & matrix) { matrix.resize(1, 1); }) {
        require_shape(value, y.rows(), y.cols(), call);
    }
    return packed_view(value, Destination::IsRowMajor);
}

template <class Scalar>
plan plan_into(const device_product<Scalar>& value, const matrix_view& y, const device_executor& where,
               const options& wishes) {
    plan result;
    with_program(value, y, [&](const program& p, const bindings&) { result = where.make_plan_for(p, wishes); });
    return result;
}
/// Of one program for all terms, which shares products between them where an evaluation would (device/lower_sums.hpp) and the workspace
/// limit has room for it; with options::deterministic of one for each term, since what is quicker depends on the rows.
template <class Scalar>
plan plan_into(const device_sum<Scalar>& value, const matrix_view& y, const device_executor& where,
               const options& wishes) {
    value.check();
    program p;
    bindings b;
    const auto term_by_term = [&] { lower_sum(order_of_terms(value), y, false, Scalar(1), sum_form::apart, p, b); };
    if (wishes.deterministic) {
        term_by_term();
    } else if (lower_as_evaluated(value, y, false, Scalar(1), where, p, b) == sum_form::shared) {
        try {
            return where.make_plan_for(p, wishes);
        } catch (const budget_error&) {
            term_by_term();
        }
    }
    return where.make_plan_for(p, wishes);
}
}  // namespace device

/// The plan for `Y = expression` with a contiguous Y of `Order`, on the executor that would evaluate it.
/// @throws shape_error an operand was resized; budget_error no form keeps the workspace limit
template <int Order = 0, class Scalar>
[[nodiscard]] plan make_plan(const device_product<Scalar>& value, const options& wishes = {}) {
    return device::plan_into(value, device::packed_view(value, Order == 1),
                             device::executor_for(device::home_of(value)), wishes);
}
template <int Order = 0, class Scalar>
[[nodiscard]] plan make_plan(const device_sum<Scalar>& value, const options& wishes = {}) {
    return device::plan_into(value, device::packed_view(value, Order == 1),
                             device::executor_for(device::home_of(value)), wishes);
}
/// The plan for `y = expression`, with the storage order and the leading stride of y, a device_map too; a DeviceMatrix of another shape is
/// planned for as plan::run will resize it. @throws shape_error a device_map of another shape; as above
template <class Destination, class Value>
requires(device::is_matrix<Destination> && (device::is_product<Value> || device::is_sum<Value>)) [[nodiscard]] plan
    make_plan(const Destination& y, const Value& value, const options& wishes = {}) {
    const matrix_view planned = device::resized_destination("make_plan", y, value);
    return device::plan_into(value, planned,
                             device::executor_for(y.home() != nullptr ? y.home() : device::home_of(value)), wishes);
}
/// The plan as text, see plan/explain.hpp; which kernels it launches is device_executor::describe.
template <int Order = 0, class Scalar>
[[nodiscard]] std::string explain(const device_product<Scalar>& value, const options& wishes = {}) {
    return explain(make_plan<Order>(value, wishes));
}
template <int Order = 0, class Scalar>
[[nodiscard]] std::string explain(const device_sum<Scalar>& value, const options& wishes = {}) {
    return explain(make_plan<Order>(value, wishes));
}
/// Measures the planner's best few plans for `Y = expression` (a contiguous Y of `Order`) on the executor that would evaluate
/// it, each one first compared with the generic kernels' result, and makes the fastest right one the plan of this expression's
/// signature from now on, on every executor of a GPU of this kind: in this process, and (`how.keep_on_disk`) by the cache folder in later
/// ones. Nothing else searches:
/// an expression that was never tuned has the planner's deterministic plan, and options::deterministic ignores what was tuned.
/// Blocks. Cost: seconds (each candidate's kernels are compiled), and device memory for two more results.
/// @throws unsupported_error the expression is not one chain of products; device_error as evaluation.
template <int Order = 0, class Scalar>
tuning_report tune(const device_product<Scalar>& value, const options& wishes = {}, const tuning_options& how = {}) {
    tuning_report report;
    const matrix_view y = device::packed_view(value, Order == 1);
    const device_executor& where = device::executor_for(device::home_of(value));
    device::run_on(where, value.homes(), [&](device::scratch&) {
        device::with_program(value, y,
                             [&](const program& p, const bindings& b) { report = where.tune(p, b, wishes, how); });
    });
    return report;
}
/// Body of plan::run for device expressions: on the executor that `Y = expression` would take, after what the operands' executors have
/// queued, and they go on after it; so does the executor whose matrix the workspace is. A matrix of another shape is resized when nothing is left to refuse but what the device itself does.
/// @throws shape_error a device_map of another shape, unsupported_error another signature, alias_error Y overlaps an operand, budget_error
template <class Destination, class Value>
requires(device::is_matrix<device::bare<Destination>> &&
         (device::is_product<Value> ||
          device::is_sum<Value>)) void run_bound_plan(const plan& p, Destination& y, const Value& value,
                                                      void* workspace, std::int64_t available_bytes,
                                                      const device_executor* of_workspace = nullptr) {
    using scalar = typename Value::Scalar;
    device::check_shapes(value);
    if (workspace != nullptr && available_bytes < p.workspace_bytes) {
        detail::throw_small_workspace(available_bytes, p.workspace_bytes);
    }
    const auto with_source = [&](const matrix_view& at, device::scratch& s, const auto& use) {
        const auto demand_signature = [&](const program& given, const bindings& b) {
            if (!(given == p.source)) {
                const std::string difference = describe_difference(p.source, given);
                throw unsupported_error("otimes: plan::run: the plan was made for another expression: " + difference +
                                        (difference.starts_with("the destination has")
                                             ? ". make_plan(Y, expression) plans for this destination."
                                             : ". Make a plan for this one."));
            }
            use(b);
        };
        if constexpr (device::is_product<Value>) {
            device::with_lowered(value.node(), at, false, scalar(1), s, demand_signature);
        } else {
            const auto order = device::order_of_terms(value);
            const auto lower = [&](device::sum_form form) {
                return device::lower_sum(order, at, false, scalar(1), form, s.program, s.bindings);
            };
            // The plan may be of either form.
            if (!lower(device::sum_form::shared) || !(s.program == p.source)) {
                lower(device::sum_form::apart);
            }
            demand_signature(s.program, s.bindings);
        }
    };
    const bool is_operand = value.reads(y.view());
    if (y.rows() != value.rows() || y.cols() != value.cols()) {
        const matrix_view resized = device::resized_destination("plan::run", y, value);
        if (is_operand) {
            throw alias_error(
                "otimes: plan::run: the destination is an operand of the expression and would be resized. "
                "Run into another matrix, or write Y = expression.");
        }
        device::scratch of_check;
        with_source(resized, of_check, [](const bindings&) {});
        y.take_shape(value);
    } else if (is_operand) {
        throw alias_error(
            "otimes: plan::run: the destination overlaps an operand of the expression. A plan has no temporary "
            "for it; run into another matrix, or write Y = expression.");
    }
    const device_executor& where = device::executor_for(y.home() != nullptr ? y.home() : device::home_of(value));
    device::homes others = device::homes_of(value, y.home());
    device::add_home(others, workspace != nullptr ? of_workspace : nullptr);
    device::run_on(where, others, [&](device::scratch& s) {
        with_source(y.view(), s, [&](const bindings& b) { where.run(p, b, {workspace, available_bytes}); });
    });
}
/// @}

namespace device {
/// What `on(executor, dY)` returns. Destination: a reference to a matrix or a map, or what its `noalias()` is.
template <class Destination>
class on_executor {
public:
    on_executor(const executor& e, Destination y) : executor_(e), y_(y) {
        if (e.where() == placement::cpu) {
            throw unsupported_error("otimes::on(): executor '" + std::string(e.name()) +
                                    "' cannot reach device memory; name a GPU, or copy by to_host().");
        }
        if (e.where() == placement::gpus) {
            throw unsupported_error("otimes::on(): executor '" + std::string(e.name()) +
                                    "' cuts matrices in host memory; name one GPU, or use DistributedMatrix "
                                    "(otimes/distributed.hpp).");
        }
    }
    template <class Expression>
    void operator=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ = value;
    }
    template <class Expression>
    void operator+=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ += value;
    }
    template <class Expression>
    void operator-=(const Expression& value) const {
        const scoped_executor scope(executor_);
        y_ -= value;
    }
    /// Y = Y * K, Y = s * Y
    template <class Operator>
    void operator*=(const Operator& k) const {
        const scoped_executor scope(executor_);
        y_ *= k;
    }
    /// Promises that Y overlaps no operand.
    [[nodiscard]] auto noalias() const { return on_executor<decltype(y_.noalias())>(executor_, y_.noalias()); }

private:
    const executor& executor_;
    Destination y_;
};
}  // namespace device

/// Names the executor of one assignment to device memory.
template <class Destination>
requires device::is_matrix<device::bare<Destination>>
[[nodiscard]] auto on(const executor& e, Destination&& y) {
    return device::on_executor<std::remove_reference_t<Destination>&>(e, y);
}

}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file run.hpp
/// What users do with a lazy expression besides assigning it: plan it, have the plan explained, run a plan, name the
/// executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <otimes/adapt/eigen/index.hpp>
#include <otimes/adapt/eigen/internal.hpp>
#include <otimes/adapt/eigen/lazy.hpp>
#include <otimes/exec/evaluate.hpp>
#include <otimes/plan/explain.hpp>
#include <otimes/plan/planner.hpp>
#include <otimes/program/signature.hpp>

namespace otimes {
inline namespace OTIMES_TARGET {

namespace eigen {

/// Lowers `expression` as an assignment to memory at `destination` and calls `use(program, bindings)`.
/// `in_place`: the destination is the expression's X, and is overwritten pass by pass.
template <class Node, class Use>
void with_program(const lazy<Node>& expression, const matrix_view& destination, const Use& use, bool in_place = false) {
    using scalar = typename Node::scalar_type;
    expression.node().check();
    if constexpr (requires { expression.node().with_program(destination, use); }) {
        return expression.node().with_program(destination, use);
    }
    lowering_scratch scratch;
    lowering<scalar> low(scratch.program(), scratch.bindings(), signature::by_type);
    if (!lowers_as_real(expression.node(), signature::by_type)) {
        low.compute_complex();
    }
    std::vector<std::shared_ptr<const void>> kept;  // values of terms that are no operands in memory
    expression.node().lower(low, destination, false, scalar(1), kept);
    if (in_place) {
        detail::bind_in_place(scratch.program());
    }
    use(scratch.program(), scratch.bindings());
}

/// A destination without gaps that has no memory yet.
template <class Destination>
matrix_view packed_view(std::int64_t rows, std::int64_t cols) {
    return {nullptr, rows, cols, Destination::IsRowMajor ? cols : 1, Destination::IsRowMajor ? 1 : rows};
}

/// True when `expression` may overwrite its own X at `destination`; a CPU plan then needs no second matrix.
template <class Node>
bool runs_in_place(const lazy<Node>& expression, const matrix_view& destination) {
    if constexpr (is_product_node<Node>) {
        return expression.node().runs_in_place(destination, signature::by_type);
    } else {
        return false;
    }
}

/// The options of a plan for the current executor: where it works, unless they say otherwise. Scalars that no kernel knows go by the
/// reference loops whatever the executor is.
template <class Scalar>
options placed_options(options wishes) {
    if (wishes.placement == placement::automatic) {
        wishes.placement = dtype_of<Scalar>() == dtype::other ? placement::cpu : current_executor().where();
    }
    return wishes;
}

/// The destination of the plain matrix that the expression would become.
template <class Node>
matrix_view plain_destination(const lazy<Node>& expression) {
    return packed_view<typename lazy<Node>::PlainObject>(expression.rows(), expression.cols());
}

/// The destination as it is when the expression is evaluated into it: one of another shape is resized then.
/// @throws shape_error it cannot be.
template <class Destination, class Node>
matrix_view resized_destination(const char* caller, const Destination& destination, const lazy<Node>& expression) {
    if (destination.rows() == expression.rows() && destination.cols() == expression.cols()) {
        return view_of(destination);
    }
    if (!takes_shape<bare<Destination>>(expression.rows(), expression.cols())) {
        throw shape_error("otimes: " + std::string(caller) + ": the destination is " +
                          detail::shape_text(destination.rows(), destination.cols()) +
                          " and cannot be resized, the expression is " +
                          detail::shape_text(expression.rows(), expression.cols()) + ".");
    }
    require_index_counts(expression.rows(), expression.cols());
    return packed_view<bare<Destination>>(expression.rows(), expression.cols());
}

/// May elements be written there? Not those of a const matrix, of a `Map<const MatrixXd>`, of a block of a const matrix.
template <class Destination>
inline constexpr bool has_writable_elements =
    (is_plain<bare<Destination>> && !std::is_const_v<Destination>) || is_writable_view<bare<Destination>>;

}  // namespace eigen

/// The plan for evaluating `expression` into the plain matrix of its type, for the machine of the current executor.
/// Cost: some microseconds to milliseconds, once. @throws shape_error, budget_error (the least workspace is named).
template <class Node>
[[nodiscard]] plan make_plan(const lazy<Node>& expression, const options& wishes, const machine& where) {
    plan result;
    eigen::with_program(expression, eigen::plain_destination(expression),
                        [&](const program& p, const bindings&) { result = make_plan(p, where, wishes); });
    return result;
}
template <class Node>
[[nodiscard]] plan make_plan(const lazy<Node>& expression, const options& wishes = {}) {
    const options decided = eigen::placed_options<typename Node::scalar_type>(wishes);
    return make_plan(expression, decided, current_executor().target());
}
/// The plan for evaluating `expression` into `destination`: its storage order and strides are planned for; a matrix of another
/// shape is planned for as `run` will resize it. `X, X * K` with square factors gives, on the CPU, a plan that overwrites X; with
/// workspace_limit_bytes = 0 it needs no other memory at all.
/// @throws shape_error a destination of another shape that cannot be resized; budget_error.
template <class Destination, class Node>
requires(eigen::dense<Destination>&& eigen::has_direct_access<Destination>) [[nodiscard]] plan
    make_plan(const Destination& destination, const lazy<Node>& expression, const options& wishes = {}) {
    const options decided = eigen::placed_options<typename Node::scalar_type>(wishes);
    plan result;
    const matrix_view planned = eigen::resized_destination("make_plan", destination, expression);
    eigen::with_program(
        expression, planned,
        [&](const program& p, const bindings&) { result = make_plan(p, current_executor().target(), decided); },
        decided.placement == placement::cpu && eigen::runs_in_place(expression, planned));
    return result;
}

/// The plan of an expression as text: passes, costs, bounds, and what was rejected and why.
template <class Node>
[[nodiscard]] std::string explain(const lazy<Node>& expression, const options& wishes = {}) {
    return explain(make_plan(expression, wishes));
}
template <class Node>
[[nodiscard]] std::string explain(const lazy<Node>& expression, const options& wishes, const machine& where) {
    return explain(make_plan(expression, wishes, where));
}

/// Body of plan::run; see there.
template <class Destination, class Node>
void run_bound_plan(const plan& p, Destination& destination, const lazy<Node>& expression, void* workspace,
                    std::int64_t available_bytes) {
    using scalar = typename Node::scalar_type;
    static_assert(eigen::dense<Destination> && eigen::has_direct_access<eigen::bare<Destination>>,
                  "otimes: plan::run writes to a matrix, Map, Block or Ref in host memory, where X is.");
    static_assert(eigen::has_writable_elements<Destination>,
                  "otimes: plan::run(Y, expression): Y, or what it is a view of, is const and cannot be written.");
    static_assert(std::is_same_v<eigen::scalar_of<Destination>, scalar>,
                  "otimes: plan::run: the destination and the expression have different scalar types.");
    expression.node().check();
    const auto demand_signature = [&](const program& given) {
        if (!(given == p.source)) {
            const std::string difference = describe_difference(p.source, given);
            throw unsupported_error("otimes: plan::run: the plan was made for another expression: " + difference +
                                    (difference.starts_with("the destination has")
                                         ? ". make_plan(Y, expression) plans for this destination."
                                         : ". Make a plan for this one."));
        }
    };
    const auto refuse_other_matrix = [] {
        throw unsupported_error(
            "otimes: plan::run: the plan overwrites X, as make_plan(X, X * K) asks for, and the destination is another "
            "matrix. Run it into X, or make a plan for this one: make_plan(Y, X * K).");
    };
    const executor& chosen = current_executor();
    const bool any_place = chosen.where() == placement::automatic;  // it takes plans for each of its places
    const executor& e = any_place || chosen.where() == p.where ? chosen : cpu();
    if (!any_place && e.where() != p.where) {
        throw unsupported_error(
            "otimes: plan::run: the plan is not for the CPU and no executor of its kind is the "
            "default; see otimes::set_default_executor.");
    }
    if (workspace != nullptr && available_bytes < p.workspace_bytes) {
        detail::throw_small_workspace(available_bytes, p.workspace_bytes);
    }
    if (destination.rows() != expression.rows() || destination.cols() != expression.cols()) {
        [[maybe_unused]] const matrix_view resized = eigen::resized_destination("plan::run", destination, expression);
        if constexpr (eigen::is_resizable<eigen::bare<Destination>>) {
            const auto bytes = static_cast<std::int64_t>(sizeof(scalar));
            if (eigen::reads_when_lowered(expression.node(), eigen::view_of(destination), bytes)) {
                throw alias_error(
                    "otimes: plan::run: the destination is an operand of the expression and would be resized. "
                    "Run into another matrix, or write Y = expression.");
            }
            if (overwrites_input(p.source)) {  // what has another shape is not X
                refuse_other_matrix();
            }
            // A plan that refuses the expression leaves the destination as it was.
            eigen::with_program(expression, resized,
                                [&](const program& given, const bindings&) { demand_signature(given); });
            if (destination.rows() == 0 || destination.cols() == 0 ||
                expression.node().reads(eigen::view_of(destination), bytes)) {
                // Empty it overlaps nothing, but may be an operand all the same, whose shape would change under the expression; of some terms of a sum
                // nobody knows what they read.
                typename eigen::bare<Destination>::PlainObject value(expression.rows(), expression.cols());
                run_bound_plan(p, value, expression, workspace, available_bytes);
                if constexpr (eigen::is_plain<eigen::bare<Destination>>) {
                    destination.swap(value);
                } else {  // a transposed view of a matrix
                    destination.resize(expression.rows(), expression.cols());
                    destination = value;
                }
                return;
            }
            using type = eigen::bare<Destination>;
            if (destination.size() != expression.rows() * expression.cols()) {  // as in assign(), lazy.hpp
                destination.resize(type::RowsAtCompileTime == Eigen::Dynamic ? 0 : expression.rows(),
                                   type::ColsAtCompileTime == Eigen::Dynamic ? 0 : expression.cols());
            }
            destination.resize(expression.rows(), expression.cols());
        }
    }
    const bool in_place = overwrites_input(p.source) && eigen::runs_in_place(expression, eigen::view_of(destination));
    if (overwrites_input(p.source) && !in_place) {
        refuse_other_matrix();
    }
    if (!in_place && eigen::reads_when_lowered(expression.node(), eigen::view_of(destination),
                                               static_cast<std::int64_t>(sizeof(scalar)))) {
        throw alias_error(
            "otimes: plan::run: the destination overlaps an operand of the expression. A plan has no temporary "
            "for it; run into another matrix, or write Y = expression.");
    }
    eigen::with_program(
        expression, eigen::view_of(destination),
        [&](const program& given, const bindings& b) {
            demand_signature(given);
            if constexpr (dtype_of<scalar>() == dtype::other) {
                reference_run<scalar>(given, b);
            } else {
                enable_kernels<scalar>();
                e.run(p, b, {workspace, available_bytes});
            }
        },
        in_place);
}

/// `on(executor, Y) = expression`; also += and -=. Y may be a view.
template <class Destination>
class on_executor {
public:
    on_executor(const executor& e, Destination destination)
        : executor_(e), destination_(std::forward<Destination>(destination)) {}
    on_executor(const on_executor&) = delete;

    template <class Expression>
    void operator=(const Expression& expression) {
        const scoped_executor scope(executor_);
        destination_ = expression;
    }
    template <class Expression>
    void operator+=(const Expression& expression) {
        const scoped_executor scope(executor_);
        destination_ += expression;
    }
    template <class Expression>
    void operator-=(const Expression& expression) {
        const scoped_executor scope(executor_);
        destination_ -= expression;
    }
    /// Y = Y * K
    template <class Operator>
    void operator*=(const Operator& k) {
        const scoped_executor scope(executor_);
        destination_ *= k;
    }
    /// An expression of otimes is written without a temporary wherever that is right; nothing is to be promised.
    [[nodiscard]] on_executor& noalias() noexcept { return *this; }

private:
    const executor& executor_;
    Destination destination_;
};

namespace eigen {
/// A matrix or an array, or a view of one.
template <class Derived>
std::true_type probe_coefficients(const Eigen::DenseBase<Derived>*);
std::false_type probe_coefficients(...);
template <class Type>
concept assigned_to =
    std::is_class_v<bare<Type>> && decltype(probe_coefficients(static_cast<bare<Type>*>(nullptr)))::value;
}  // namespace eigen

/// Names the executor of one assignment, to a matrix or, by `=`, to an array. The executor must be able to reach the operands' memory.
template <class Destination>
requires eigen::assigned_to<Destination>
[[nodiscard]] on_executor<Destination> on(const executor& e, Destination&& destination) {
    static_assert(
        !eigen::lazy_node<Destination>,
        "otimes: on(executor, Y) = X * K: Y is the matrix that is written to, the product stands on the right.");
    return on_executor<Destination>(e, std::forward<Destination>(destination));
}

/// on(otimes::cpu, Y) = .., on(Y, otimes::cpu()) = ..
template <class First, class Second>
requires(std::is_function_v<First> ||
         (eigen::dense<First> && std::is_base_of_v<executor, Second>)) auto on(const First&, Second& y) {
    static_assert(eigen::always_false<First>,
                  "otimes: on(executor, Y) = X * K: the executor stands first and is called, on(otimes::cpu(), Y).");
    return on_executor<Second&>(cpu(), y);
}

}  // namespace OTIMES_TARGET
}  // namespace otimes

// SPDX-License-Identifier: MIT
/// @file evaluate.hpp
/// How a product or a sum over device memory is written to its destination: shapes, overlap, then the launches.
/// Part of cuda.hpp, which programs include.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <otimes/device/expressions.hpp>
#include <otimes/device/lower_sums.hpp>
#include <otimes/expr/lower.hpp>
#include <otimes/expr/product_key.hpp>
#include <otimes/program/errors.hpp>
#include <otimes/program/kept_by_thread.hpp>
#include <otimes/program/overlap.hpp>

namespace otimes {

namespace device {

/// `use(scratch)` after the work that `others` have queued; they wait for it in turn, also where it throws: some of it may have been queued.
template <class Use>
void run_on(const device_executor& where, const homes& others, const Use& use) {
    const auto let_others_wait = [&] {
        for (const device_executor* const other : others) {
            if (other != &where) {
                other->wait_for(where);
            }
        }
    };
    for (const device_executor* const other : others) {
        if (other != &where) {
            where.wait_for(*other);
        }
    }
    try {
        if (scratch* const kept = thread_scratch()) {
            struct clear_at_end {
                scratch& kept;
                ~clear_at_end() { kept.bindings.clear(); }
            } const clear{*kept};
            use(*kept);
        } else {
            scratch own;
            use(own);
        }
    } catch (...) {
        try {
            let_others_wait();
        } catch (const device_error&) {  // the first error is told
        }
        throw;
    }
    let_others_wait();
}

/// A program that this thread has lowered.
struct known_program {
    plan_key key;
    otimes::program lowered;
};
/// The place of this thread for programs of products with that key; it may hold another's. nullptr: the thread ends, and keeps none.
inline known_program* known_program_slot(const plan_key& key) {
    constexpr std::size_t slots = 16;
    using places = std::array<known_program, slots>;
    places* const recent = otimes::detail::kept_by_thread<places, known_program>();
    return recent == nullptr ? nullptr : &(*recent)[static_cast<std::size_t>(key.hash()) % slots];
}

/// use(program of y (+)= scale * node, its bindings). A small product takes less time than lowering it: what this thread has lowered
/// is found by the key of the expression, and only its operands are bound. Cost then: some nanoseconds per operand.
template <class Scalar, class Use>
void with_lowered(const product_node<Scalar>& node, const matrix_view& y, bool add, const Scalar& scale, scratch& s,
                  const Use& use) {
    const Scalar alpha = scale * node.alpha;
    plan_key key;
    s.bindings.clear();
    const bool keyed =
        describe_product(node, y, add, dtype_of<Scalar>(), is_real_problem(node, alpha), false, key, s.bindings);
    known_program* const known = keyed ? known_program_slot(key) : nullptr;
    if (known != nullptr && known->key.equals(key)) {
        s.bindings.scalars.push_back(bound_scalar(alpha));
        use(known->lowered, s.bindings);
        return;
    }
    lowering<Scalar> low(s.program, s.bindings);
    low.add_product(node, y, add, scale);
    mark_result_on_device(s.program);
    if (known != nullptr) {
        known->key = key;
        known->lowered = s.program;
    }
    use(s.program, s.bindings);
}

/// The executors that queue work on what an evaluation reads or writes: those of the operands, and `home`, of Y (null: unknown).
template <class Scalar>
homes homes_of(const device_product<Scalar>& value, const device_executor* home) {
    homes all = value.homes();
    add_home(all, home);
    return all;
}
template <class Scalar>
homes homes_of(const device_sum<Scalar>& value, const device_executor* home) {
    homes all;
    add_home(all, home);
    for (const device_product<Scalar>& term : value.terms()) {
        for (const device_executor* const other : term.homes()) {
            add_home(all, other);
        }
    }
    return all;
}

/// Assignment shared by matrices and maps: shapes have been made equal, `y` is the destination's memory.
template <class Scalar>
void evaluate(const device_product<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home) {
    const device_executor& where = executor_for(home != nullptr         ? home
                                                : value.homes().empty() ? nullptr
                                                                        : value.homes()[0]);
    run_on(where, homes_of(value, home), [&](scratch& s) {
        with_lowered(value.node(), y, add, scale, s,
                     [&](const program& p, const bindings& b) { where.evaluate(p, b); });
    });
}

/// All terms by one program, whose launches share reads and writes of what they have in common (lower_sums.hpp). `sharing`: products, too, which takes
/// memory. @pre Y is no operand of any term.
template <class Scalar>
void evaluate(const device_sum<Scalar>& value, const matrix_view& y, bool add, const Scalar& scale,
              const device_executor* home, bool sharing = true) {
    const device_executor& where = executor_for(home != nullptr ? home : value.home());
    run_on(where, homes_of(value, home), [&](scratch& s) {
        const auto lower_apart = [&] {
            lower_sum(order_of_terms(value), y, add, scale, sum_form::apart, s.program, s.bindings);
        };
        sum_form form = sum_form::apart;
        if (sharing) {
            form = lower_as_evaluated(value, y, add, scale, where, s.program, s.bindings);
        } else {
            lower_apart();
        }
        try {
            where.evaluate(s.program, s.bindings);
        } catch (const device_memory_error&) {
            // What is shared has no room beside what else is in the device's memory; from now on the terms one by one. Where they are added, nobody
            // knows here whether some were.
            if (form == sum_form::apart || add) {
                throw;
            }
            lower_apart();
            if (known_form* const known = known_form_slot(s.program);
                known != nullptr && known->executor_id == where.id() && known->apart == s.program) {
                known->form = sum_form::apart;
            }
            where.evaluate(s.program, s.bindings);
        }
    });
}

template <class Scalar>
void check_shapes(const device_product<Scalar>& value) {
    value.node().check();
}
template <class Scalar>
void check_shapes(const device_sum<Scalar>& value) {
    value.check();
}
template <class Scalar>
const device_executor* home_of(const device_product<Scalar>& value) {
    return value.homes().empty() ? nullptr : value.homes()[0];
}
template <class Scalar>
const device_executor* home_of(const device_sum<Scalar>& value) {
    return value.home();
}

/// The value of a destination's `=`, `+=`, `-=`: products and sums of its own scalar. Others are refused by a sentence.
template <class Value, class Scalar>
concept value_of = std::is_same_v<Value, device_product<Scalar>> || std::is_same_v<Value, device_sum<Scalar>>;
template <class Value, class Scalar>
concept value_of_another = (is_product<Value> || is_sum<Value> ||
                            is_matrix<Value>)&&!std::is_same_v<typename Value::Scalar, Scalar>;

/// A matrix in device memory of a destination's scalar.
template <class Matrix, class Scalar>
concept matrix_of = is_matrix<Matrix> && std::is_same_v<typename Matrix::Scalar, Scalar>;

template <class Value>
constexpr void refuse_another_scalar() {
    static_assert(always_false<Value>,
                  "otimes: Y = expression in device memory: the expression has another scalar type than Y. Give Y the "
                  "type of the expression; a real Y takes no complex one, and there is no conversion on the device.");
}

/// Y (op)= expression where `Destination`, Y's type, is of the other memory.
template <class Destination>
constexpr void refuse_other_memory() {
    static_assert(is_matrix<Destination> || always_false<Destination>,
                  "otimes: X is in device memory and Y in host memory; X and Y must share a memory space. Write "
                  "Y += (dX * K).to_host(), or take a DeviceMatrix for Y.");
    static_assert(
        !is_matrix<Destination>,
        "otimes: X is in host memory and Y in device memory; X and Y must share a memory space. Copy X first: "
        "otimes::DeviceMatrix<Scalar> dX(X).");
}

template <class Value>
void require_shape(const Value& value, std::int64_t rows, std::int64_t cols, const char* what) {
    if (value.rows() != rows || value.cols() != cols) {
        throw shape_error("otimes: " + std::string(what) + ": Y is " + detail::shape_text(rows, cols) +
                          " and cannot be resized, the expression is " +
                          detail::shape_text(value.rows(), value.cols()) + ".");
    }
}

/// Y (+)= scale * value where Y has the right shape; through a temporary where Y overlaps an operand.
template <int Order, class Value, class Scalar>
void assign(const Value& value, const matrix_view& y, bool add, const Scalar& scale, const device_executor* home) {
    check_shapes(value);
    if (value.reads(y)) {
        const DeviceMatrix<Scalar, Order> copy(value);
        evaluate(device_product<Scalar>(copy.operand()), y, add, scale, home);
    } else {
        evaluate(value, y, add, scale, home);
    }
}

/// What `y.noalias()` returns: assignment without a temporary.
template <class Destination>
class without_alias {
public:
    using Scalar = typename Destination::Scalar;
    explicit without_alias(Destination& y) : y_(y) {}
    template <value_of<Scalar> Value>
    void operator=(const Value& value) const {
        run(value, false, Scalar(1), true);
    }
    template <value_of<Scalar> Value>
    void operator+=(const Value& value) const {
        run(value, true, Scalar(1), false);
    }
    template <value_of<Scalar> Value>
    void operator-=(const Value& value) const {
        run(value, true, -Scalar(1), false);
    }
    template <host_matrix Matrix>
    void operator=(const Matrix&) const {
        refuse_other_memory<bare<Destination>>();
    }
    template <host_matrix Matrix>
    void operator+=(const Matrix&) const {
        refuse_other_memory<bare<Destination>>();
    }
    template <host_matrix Matrix>
    void operator-=(const Matrix&) const {
        refuse_other_memory<bare<Destination>>();
    }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator=(const Matrix& x) const { *this = x.expression(); }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator+=(const Matrix& x) const { *this += x.expression(); }
    template <class Matrix>
    requires is_matrix<Matrix>
    void operator-=(const Matrix& x) const { *this -= x.expression(); }

private:
    template <class Value>
    void run(const Value& value, bool add, const Scalar& scale, bool may_resize) const {
        check_shapes(value);
        if (value.reads(y_.view())) {
            throw alias_error(
                "otimes: Y.noalias() = expression: Y overlaps an operand of the expression. Write Y = expression, "
                "which takes a temporary, or another Y.");
        }
        if (may_resize) {
            y_.take_shape(value);
        }
        require_shape(value, y_.rows(), y_.cols(), "Y.noalias() op= expression");
        evaluate(value, y_.view(), add, scale, y_.home());
    }
    Destination& y_;
};

}  // namespace device

}  // namespace otimes
